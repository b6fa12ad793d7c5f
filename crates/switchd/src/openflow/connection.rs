//! One connection: hello, then reading, writing and probing concurrently.

use super::hub::Hub;
use super::outbox::count_overflow;
use super::removals::PATIENCE;
use super::session::{ConnectionType, Live, Next, Session};
use crate::clock;
use crate::turns;
use openflow::decode::{DecodeOptions, negotiate};
use openflow::message::{ErrorKind, ErrorMessage, Hello, Message};
use openflow::{Error, Repeats, Version, decode, decode_added, encode, frame_length};
use std::future::Future;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long to poll for the next message after a barrier reply, without sleeping.
const AWAKE: Duration = Duration::from_micros(100);
/// Longest wait for the peer's hello.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Bytes read at a time; changes that were read together are published together.
const READ_SIZE: usize = 64 << 10;
/// How long messages that were read together are processed before other tasks run.
const TURN: Duration = Duration::from_millis(5);
/// How long messages may wait for the switch before the ones behind them are scanned for echo
/// requests.
const DEAF: Duration = Duration::from_millis(10);
/// Most bytes that are read ahead in search of echo requests.
const AHEAD: usize = 4 * READ_SIZE;

/// Most pieces that wait for a snooper.
const SNOOP_QUEUE: usize = 1024;

/// Settings of a connection.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) kind: ConnectionType,
    /// Whether asynchronous messages are sent without being asked for.
    pub(super) asynchronous: bool,
    /// The DSCP of sent packets; for connections over IP.
    pub(super) dscp: u8,
    /// Settings that may change while the connection is up.
    pub(super) live: Rc<Live>,
}

/// Callbacks from a running connection.
pub(super) trait Observer {
    /// A version has been negotiated.
    fn established(&self, session: &Rc<Session>);
    /// A probe was sent, or answered.
    fn idle(&self, idle: bool);
}

/// Received bytes that have not been decoded yet.
struct Inbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Inbox {
    fn new() -> Inbox {
        Inbox {
            bytes: Vec::with_capacity(READ_SIZE),
            start: 0,
        }
    }

    /// Returns where the next message ends, if all of it has been received.
    fn next(&self) -> Result<Option<usize>, Error> {
        let rest = &self.bytes[self.start..];
        let length = frame_length(rest)?;
        Ok((rest.len() >= length).then_some(self.start + length))
    }

    /// Answers the complete echo requests among the received bytes from `scanned` on, and advances
    /// `scanned`. They are turned into echo replies, which are ignored when their turn comes. At
    /// most what was read ahead is answered, so a peer that does not read gains nothing.
    fn answer_echoes(&mut self, session: &Session, scanned: &mut usize) {
        const ECHO_REQUEST: u8 = 2;
        const ECHO_REPLY: u8 = 3;
        while let Some(rest) = self.bytes.get(*scanned..)
            && let Ok(length) = frame_length(rest)
            && rest.len() >= length
        {
            if rest[1] == ECHO_REQUEST
                && let Ok((header, Message::EchoRequest(data))) =
                    decode(&rest[..length], &session.decode_options())
            {
                session.answer_echo(header, data);
                self.bytes[*scanned + 1] = ECHO_REPLY;
            }
            *scanned += length;
        }
    }

    /// Reads more and appends it, without moving what is there; false at the end of the stream, or
    /// if there is no room.
    async fn fill_behind(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> bool {
        if self.bytes.len() - self.start >= AHEAD {
            return false;
        }
        self.bytes.reserve(READ_SIZE);
        matches!(reader.read_buf(&mut self.bytes).await, Ok(read) if read > 0)
    }

    /// Reads more; false at the end of the stream.
    async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> std::io::Result<bool> {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.reserve(READ_SIZE);
        Ok(reader.read_buf(&mut self.bytes).await? > 0)
    }
}

/// Runs a connection until it ends, and returns the reason.
pub(super) async fn run(
    hub: &Rc<Hub>,
    stream: impl AsyncRead + AsyncWrite,
    peer: &str,
    terms: &Terms,
    observer: &dyn Observer,
) -> String {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut inbox = Inbox::new();
    let agreed = tokio::time::timeout(
        HELLO_LIMIT,
        exchange_hellos(hub, peer, &mut reader, &mut writer, &mut inbox),
    );
    let version = match agreed.await {
        Ok(Ok(version)) => version,
        Ok(Err(reason)) => return reason,
        Err(_) => return "no hello within 10 seconds".into(),
    };
    let session = Rc::new(Session::new(
        terms.kind,
        version,
        peer,
        terms.asynchronous,
        terms.live.clone(),
    ));
    if !hub.add(&session) {
        return "too many connections".into();
    }
    let _registered = Registered {
        hub,
        session: &session,
    };
    observer.established(&session);
    tokio::select! {
        reason = read(hub, &session, &mut reader, &mut inbox) => reason,
        reason = write(hub, &session, &mut writer) => reason,
        reason = probe(&session, observer) => reason,
        never = session.expire_bundles(hub) => match never {},
        never = session.release_packet_ins() => match never {},
        never = session.follow_monitors(hub) => match never {},
        () = session.closing.notified() => "disconnecting".into(),
    }
}

/// Keeps a session in the hub while it lives, however its task ends.
struct Registered<'a> {
    hub: &'a Hub,
    session: &'a Rc<Session>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.hub.remove(self.session);
    }
}

/// Sends our hello, reads the peer's, and agrees on a version.
async fn exchange_hellos(
    hub: &Hub,
    peer: &str,
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    inbox: &mut Inbox,
) -> Result<Version, String> {
    let ours = hub.versions.get();
    let highest = negotiate(ours, ours).ok_or("no OpenFlow version is allowed")?;
    let hello = encode(highest, 1, &Message::Hello(Hello { versions: ours }));
    write_all(writer, &hello).await?;
    tracing::debug!(target: "vconn", "{peer}: sent (Success): {}", named(&hello));
    let end = loop {
        match inbox.next() {
            Ok(Some(end)) => break end,
            Ok(None) => {}
            Err(error) => return Err(format!("bad hello ({error})")),
        }
        match inbox.fill(reader).await {
            Ok(true) => {}
            Ok(false) => return Err("connection closed by peer".into()),
            Err(error) => return Err(crate::plain_error(&error)),
        }
    };
    let bytes = &inbox.bytes[inbox.start..end];
    tracing::debug!(target: "vconn", "{peer}: received: {}", named(bytes));
    let decoded = decode(bytes, &DecodeOptions::default());
    inbox.start = end;
    let theirs = match decoded {
        Ok((_, Message::Hello(hello))) => hello.versions,
        Ok((_, Message::Error(error))) => {
            return Err(format!("peer refuses ({:?})", error.kind));
        }
        _ => return Err("connection's first message is not a hello".into()),
    };
    if let Some(version) = negotiate(ours, theirs) {
        return Ok(version);
    }
    let text =
        format!("We support versions {ours:#x}, you support {theirs:#x}, no common versions.");
    let refusal = Message::Error(ErrorMessage {
        kind: ErrorKind::Known(Error::HelloIncompatible),
        data: text.clone().into_bytes(),
    });
    write_all(writer, &encode(highest, 0, &refusal)).await?;
    Err(format!("version negotiation failed: {text}"))
}

async fn write_all(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), String> {
    let write = async {
        writer.write_all(bytes).await?;
        writer.flush().await
    };
    write.await.map_err(|error| crate::plain_error(&error))
}

/// Waits for something while the peer's messages have to wait. If that takes long, echo requests
/// among them are answered: a controller that checks whether the switch is alive must not mistake a
/// long change for its end.
async fn meanwhile<T>(
    session: &Session,
    reader: &mut (impl AsyncRead + Unpin),
    inbox: &mut Inbox,
    what: impl Future<Output = T>,
) -> T {
    let mut what = std::pin::pin!(what);
    if let Ok(done) = tokio::time::timeout(DEAF, &mut what).await {
        return done;
    }
    let mut scanned = inbox.start;
    let mut more = true;
    loop {
        inbox.answer_echoes(session, &mut scanned);
        tokio::select! {
            biased;
            done = &mut what => return done,
            filled = inbox.fill_behind(reader), if more => {
                more = filled;
                if filled {
                    session.last_heard.set(clock::now());
                }
            }
        }
    }
}

/// Waits for the switch as [`meanwhile`] does; the peer is not considered silent meanwhile.
async fn hold<T>(
    session: &Session,
    reader: &mut (impl AsyncRead + Unpin),
    inbox: &mut Inbox,
    what: impl Future<Output = T>,
) -> T {
    session.held.set(true);
    let done = meanwhile(session, reader, inbox, what).await;
    session.held.set(false);
    session.last_heard.set(clock::now());
    done
}

/// Reads requests and carries them out.
async fn read(
    hub: &Hub,
    session: &Rc<Session>,
    reader: &mut (impl AsyncRead + Unpin),
    inbox: &mut Inbox,
) -> String {
    let mut repeats = Repeats::default();
    // Whether a barrier reply was just sent: most likely the next change follows at once.
    let mut answered = false;
    loop {
        let mut changed = false;
        let mut gathered = false;
        let mut turn = Instant::now();
        loop {
            // Also before the first message of this read: a reply must not overtake what still
            // waits to be sent to the peer.
            if !session.has_room() {
                publish(hub, &mut changed);
                meanwhile(session, reader, inbox, session.room()).await;
            }
            let end = match inbox.next() {
                Ok(Some(end)) => end,
                Ok(None) => break,
                Err(error) => {
                    session.send_error(&inbox.bytes[inbox.start..], error);
                    return flushed(session, "received a message with an impossible length").await;
                }
            };
            // Messages of a bundle that were read together count as received at one time.
            if !gathered {
                session.last_heard.set(clock::now());
            }
            let start = inbox.start;
            let bytes = &inbox.bytes[start..end];
            hub.snoop(session, bytes);
            // Logged here, because a message may be tried several times while the switch is busy.
            tracing::debug!(target: "vconn", "{}: received: {}", session.peer, named(bytes));
            let mut next = turns::step(
                || described(bytes),
                || take(hub, session, bytes, &mut repeats),
            );
            inbox.start = end;
            while matches!(next, Next::Busy) {
                publish(hub, &mut changed);
                hold(session, reader, inbox, hub.idle()).await;
                next = take(hub, session, &inbox.bytes[start..end], &mut repeats);
            }
            gathered = matches!(next, Next::Gathered);
            if gathered {
                continue;
            }
            match next {
                Next::Continue | Next::Gathered | Next::Busy => {}
                Next::Changed => {
                    changed = true;
                    if let Some(made_up) = hub.switch().make_up() {
                        publish(hub, &mut changed);
                        hold(session, reader, inbox, made_up).await;
                    }
                }
                Next::Slow(slow) => {
                    publish(hub, &mut changed);
                    let done = hold(session, reader, inbox, session.finish(hub, slow)).await;
                    if let Err(error) = done {
                        session.send_error(&inbox.bytes[start..end], error);
                    }
                }
                Next::Barrier(xid) => {
                    turns::step(|| "publishing".into(), || hub.switch().publish());
                    changed = false;
                    hub.switch().barrier().await;
                    let reply = encode(session.version, xid, &Message::BarrierReply);
                    session.outbox.send(reply);
                    answered = true;
                }
                Next::Answer { xid, question } => {
                    publish(hub, &mut changed);
                    let answered = session.answer(hub, xid, &question);
                    if let Err(error) = meanwhile(session, reader, inbox, answered).await {
                        let bytes = &inbox.bytes[start..end];
                        session.send_error(bytes, error);
                    }
                }
            }
            // One read may contain a thousand requests that each look at every rule.
            if turn.elapsed() > TURN {
                publish(hub, &mut changed);
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
        publish(hub, &mut changed);
        // If the sender shares this processor, waking up would interrupt it for every message of
        // its bundle, which costs more than reading many at once. If no other task wants to run,
        // this returns at once.
        if gathered {
            std::thread::yield_now();
        }
        // A peer that keeps sending must not starve other tasks.
        tokio::task::yield_now().await;
        let filled = match std::mem::take(&mut answered) {
            true => tokio::select! {
                biased;
                filled = inbox.fill(reader) => Some(filled),
                () = stay_awake() => None,
            },
            false => None,
        };
        let filled = match filled {
            Some(filled) => filled,
            None => inbox.fill(reader).await,
        };
        match filled {
            Ok(true) => {}
            Ok(false) => return "connection closed by peer".into(),
            Err(error) => return format!("connection dropped ({})", crate::plain_error(&error)),
        }
    }
}

/// Polls for a moment instead of sleeping, while yielding to other tasks: a peer that sends one
/// change after each reply would otherwise wait for this thread to wake up each time.
async fn stay_awake() {
    let begun = Instant::now();
    while begun.elapsed() < AWAKE {
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

/// Describes a message by its type and length, which all versions have in the same place.
fn described(bytes: &[u8]) -> String {
    let kind = bytes.get(1).copied().unwrap_or_default();
    format!("a message of type {kind} and {} bytes", bytes.len())
}

/// Formats a message's header for the log: `OFPT_FLOW_MOD (OF1.3) (xid=0x7): 56 bytes`.
fn named(bytes: &[u8]) -> impl std::fmt::Display {
    struct Named<'b>(&'b [u8]);
    impl std::fmt::Display for Named<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let [version, kind, _, _, xid @ ..] = self.0 else {
                return write!(f, "{} bytes", self.0.len());
            };
            match openflow::header::type_name(*version, *kind) {
                Some(name) => write!(f, "{name}")?,
                None => write!(f, "message of type {kind}")?,
            }
            match version {
                1..=6 => write!(f, " (OF1.{})", version - 1)?,
                _ => write!(f, " (version {version:#04x})")?,
            }
            if let Some(xid) = xid.first_chunk() {
                write!(f, " (xid={:#x})", u32::from_be_bytes(*xid))?;
            }
            write!(f, ": {} bytes", self.0.len())
        }
    }
    Named(bytes)
}

/// Logs each sent message, if that level is enabled.
fn tell_sent(session: &Session, mut bytes: &[u8]) {
    if !tracing::event_enabled!(target: "vconn", tracing::Level::DEBUG) {
        return;
    }
    while let Some(length) = bytes.get(2..4) {
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        let message = &bytes[..length.clamp(4, bytes.len())];
        tracing::debug!(target: "vconn", "{}: sent (Success): {}", session.peer, named(message));
        bytes = &bytes[message.len()..];
    }
}

/// Publishes the changes of a connection's messages, if there are any. Must be called before every
/// wait: otherwise another publication in between would put a part of them in force.
fn publish(hub: &Hub, changed: &mut bool) {
    if std::mem::take(changed) {
        turns::step(|| "publishing".into(), || hub.switch().publish());
    }
}

/// Decodes one message and carries it out.
fn take(hub: &Hub, session: &Rc<Session>, bytes: &[u8], repeats: &mut Repeats) -> Next {
    let options = session.decode_options();
    if let Some(added) = decode_added(bytes, &options, repeats) {
        return session.gather(hub, bytes, added);
    }
    match decode(bytes, &options) {
        Ok((header, message)) => session.handle(hub, bytes, header, message),
        Err(failure) if failure.error == Error::BadVersion => {
            session.refuse_version(bytes);
            Next::Continue
        }
        Err(failure) => {
            tracing::info!(target: "connmgr", "{}: {failure}", session.peer);
            session.send_error(bytes, failure.error);
            Next::Continue
        }
    }
}

/// Gives the writer a moment to send the error that explains why the connection ends.
async fn flushed(session: &Session, reason: &str) -> String {
    let sent = async {
        while !session.outbox.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _late = tokio::time::timeout(Duration::from_millis(200), sent).await;
    reason.to_owned()
}

/// Writes queued messages.
async fn write(hub: &Hub, session: &Session, writer: &mut (impl AsyncWrite + Unpin)) -> String {
    loop {
        let Some(bytes) = session.outbox.take().await else {
            return "the peer does not read: too much waits to be sent".into();
        };
        hub.snoop(session, &bytes);
        tell_sent(session, &bytes);
        let mut written = std::pin::pin!(write_all(writer, &bytes));
        let done = loop {
            match tokio::time::timeout(PATIENCE, &mut written).await {
                Ok(done) => break done,
                Err(_) if session.is_clogged() => {
                    count_overflow();
                    return "the peer does not read: too much waits to be sent".into();
                }
                Err(_) => {}
            }
        };
        if let Err(reason) = done {
            return format!("connection dropped ({reason})");
        }
        session.outbox.written(bytes.len());
        session.send_removals();
    }
}

/// Probes a silent peer with an echo request, and ends the connection if it stays silent.
async fn probe(session: &Session, observer: &dyn Observer) -> String {
    let (live, last_heard) = (&session.live, &session.last_heard);
    loop {
        let interval = i64::try_from(live.probe.get().as_millis()).unwrap_or(i64::MAX);
        if interval == 0 {
            live.changed.notified().await;
            continue;
        }
        let heard = last_heard.get();
        tokio::select! {
            () = clock::sleep_until(heard.saturating_add(interval)) => {}
            () = live.changed.notified() => continue,
        }
        if last_heard.get() != heard {
            continue;
        }
        if session.held.get() {
            last_heard.set(clock::now());
            continue;
        }
        tracing::debug!(target: "rconn", "{}: idle {} seconds, sending inactivity probe", session.peer, interval / 1000);
        observer.idle(true);
        session.outbox.send(encode(
            session.version,
            0,
            &Message::EchoRequest(Vec::new()),
        ));
        clock::sleep_until(heard.saturating_add(interval.saturating_mul(2))).await;
        if last_heard.get() == heard && !session.held.get() {
            return format!(
                "no response to inactivity probe after {} seconds, disconnecting",
                interval / 1000
            );
        }
        observer.idle(false);
    }
}

/// Runs a connection of a snooper, which gets copies of all messages between primary controllers
/// and the switch. What it sends is read and ignored.
pub(super) async fn run_snooper(hub: &Rc<Hub>, stream: impl AsyncRead + AsyncWrite, peer: &str) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut inbox = Inbox::new();
    let agreed = tokio::time::timeout(
        HELLO_LIMIT,
        exchange_hellos(hub, peer, &mut reader, &mut writer, &mut inbox),
    );
    let Ok(Ok(version)) = agreed.await else {
        return;
    };
    let live = Rc::new(Live::new(Duration::ZERO, SNOOP_QUEUE));
    let session = Rc::new(Session::new(
        ConnectionType::Service,
        version,
        peer,
        false,
        live,
    ));
    if !hub.add_snooper(&session) {
        return;
    }
    let _registered = Snooping {
        hub,
        session: &session,
    };
    let discard = async {
        let mut buffer = [0; 4096];
        while matches!(reader.read(&mut buffer).await, Ok(n) if n > 0) {}
    };
    tokio::select! {
        () = discard => {}
        _ = write(hub, &session, &mut writer) => {}
    }
}

struct Snooping<'a> {
    hub: &'a Hub,
    session: &'a Rc<Session>,
}

impl Drop for Snooping<'_> {
    fn drop(&mut self) {
        self.hub.remove_snooper(self.session);
    }
}
