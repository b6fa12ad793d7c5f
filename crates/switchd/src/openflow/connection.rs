//! One connection: hello, then reading, writing and probing side by side.

use super::hub::Hub;
use super::session::{Kind, Live, Next, Session};
use crate::clock;
use crate::turns;
use openflow::decode::{DecodeOptions, negotiate};
use openflow::message::{ErrorKind, ErrorMessage, Hello, Message};
use openflow::{Error, Repeats, Version, decode, decode_added, encode, frame_length};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// How long the peer may take over its hello.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// Bytes read at a time; what is read together is published together.
const READ_SIZE: usize = 64 << 10;
/// How long messages that were read together are carried out before others have their turn.
const TURN: Duration = Duration::from_millis(10);

/// Copied pieces that may wait for a snooper.
const SNOOP_QUEUE: usize = 1024;

/// What a connection is run with.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) kind: Kind,
    /// Whether asynchronous messages are sent unasked.
    pub(super) asynchronous: bool,
    /// The DSCP of what is sent, where the connection has one.
    pub(super) dscp: u8,
    /// What may change meanwhile.
    pub(super) live: Rc<Live>,
}

/// What others want to know of a connection while it runs.
pub(super) trait Observer {
    /// The version is agreed on.
    fn established(&self, session: &Rc<Session>);
    /// A probe was sent, or answered.
    fn idle(&self, idle: bool);
}

/// Bytes that came in and have not been understood yet.
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

    /// Where the next whole message ends, if it is there.
    fn next(&self) -> Result<Option<usize>, Error> {
        let rest = &self.bytes[self.start..];
        let length = frame_length(rest)?;
        Ok((rest.len() >= length).then_some(self.start + length))
    }

    /// Reads more; false at the end of the stream.
    async fn fill(&mut self, reader: &mut (impl AsyncRead + Unpin)) -> std::io::Result<bool> {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.reserve(READ_SIZE);
        Ok(reader.read_buf(&mut self.bytes).await? > 0)
    }
}

/// Runs a connection until it ends, and says why.
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
        exchange_hellos(hub, &mut reader, &mut writer, &mut inbox),
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
        never = session.expire_bundles() => match never {},
        never = session.release_packet_ins() => match never {},
        never = session.follow_monitors(hub) => match never {},
        () = session.closing.notified() => "disconnecting".into(),
    }
}

/// Keeps a session in the hub as long as it lives, however its task ends.
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
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    inbox: &mut Inbox,
) -> Result<Version, String> {
    let ours = hub.versions.get();
    let highest = negotiate(ours, ours).ok_or("no OpenFlow version is allowed")?;
    let hello = encode(highest, 1, &Message::Hello(Hello { versions: ours }));
    write_all(writer, &hello).await?;
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

/// Reads requests and carries them out.
async fn read(
    hub: &Hub,
    session: &Rc<Session>,
    reader: &mut (impl AsyncRead + Unpin),
    inbox: &mut Inbox,
) -> String {
    let mut repeats = Repeats::default();
    loop {
        let mut changed = false;
        let mut gathered = false;
        let mut turn = Instant::now();
        loop {
            let end = match inbox.next() {
                Ok(Some(end)) => end,
                Ok(None) => break,
                Err(error) => {
                    session.send_error(&inbox.bytes[inbox.start..], error);
                    return flushed(session, "received a message with an impossible length").await;
                }
            };
            // The messages of a bundle that were read together were heard together.
            if !gathered {
                session.last_heard.set(clock::now());
            }
            let start = inbox.start;
            let bytes = &inbox.bytes[start..end];
            hub.snoop(session, bytes);
            let next = turns::step(
                || described(bytes),
                || take(hub, session, bytes, &mut repeats),
            );
            inbox.start = end;
            gathered = matches!(next, Next::Gathered);
            if gathered {
                continue;
            }
            match next {
                Next::Continue | Next::Gathered => {}
                Next::Changed => changed = true,
                Next::Barrier(xid) => {
                    turns::step(|| "publishing".into(), || hub.switch().publish());
                    changed = false;
                    hub.switch().barrier().await;
                    let reply = encode(session.version, xid, &Message::BarrierReply);
                    session.outbox.send(reply);
                }
                Next::Answer { xid, question } => {
                    if std::mem::take(&mut changed) {
                        hub.switch().publish();
                    }
                    if let Err(error) = session.answer(hub, xid, &question).await {
                        let bytes = &inbox.bytes[start..end];
                        session.send_error(bytes, error);
                    }
                }
                Next::Close(reason) => return flushed(session, reason).await,
            }
            session.outbox.room().await;
            // A thousand questions that each look at every rule fit into one read.
            if turn.elapsed() > TURN {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
        if changed {
            hub.switch().publish();
        }
        // A sender on this processor would be interrupted for every message of its bundle: to wake up for one costs more than to read many. Where
        // nobody else wants to run this is over at once.
        if gathered {
            std::thread::yield_now();
        }
        // A peer that always has more to say must not starve the others.
        tokio::task::yield_now().await;
        match inbox.fill(reader).await {
            Ok(true) => {}
            Ok(false) => return "connection closed by peer".into(),
            Err(error) => return format!("connection dropped ({})", crate::plain_error(&error)),
        }
    }
}

/// A message in a few words: its type and length, which are in every version's first bytes.
fn described(bytes: &[u8]) -> String {
    let kind = bytes.get(1).copied().unwrap_or_default();
    format!("a message of type {kind} and {} bytes", bytes.len())
}

/// Decodes one message and carries it out.
fn take(hub: &Hub, session: &Rc<Session>, bytes: &[u8], repeats: &mut Repeats) -> Next {
    let options = session.decode_options();
    if let Some(added) = decode_added(bytes, &options, repeats) {
        return session.gather(hub, bytes, added);
    }
    match decode(bytes, &options) {
        Ok((header, message)) => session.handle(hub, bytes, header, message),
        Err(failure) => {
            tracing::info!(target: "connmgr", "{}: {failure}", session.peer);
            session.send_error(bytes, failure.error);
            if failure.error == Error::BadVersion {
                return Next::Close("received a message of another version than was agreed on");
            }
            Next::Continue
        }
    }
}

/// Lets the writer have a moment to send what says why the connection ends.
async fn flushed(session: &Session, reason: &str) -> String {
    let sent = async {
        while !session.outbox.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _late = tokio::time::timeout(Duration::from_millis(200), sent).await;
    reason.to_owned()
}

/// Writes what waits.
async fn write(hub: &Hub, session: &Session, writer: &mut (impl AsyncWrite + Unpin)) -> String {
    loop {
        let Some(bytes) = session.outbox.take().await else {
            return "the peer does not read: too much waits to be sent".into();
        };
        hub.snoop(session, &bytes);
        if let Err(reason) = write_all(writer, &bytes).await {
            return format!("connection dropped ({reason})");
        }
        session.outbox.written(bytes.len());
    }
}

/// Asks a silent peer whether it is there, and gives it up when it stays silent.
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
        tracing::debug!(target: "rconn", "{}: idle {} seconds, sending inactivity probe", session.peer, interval / 1000);
        observer.idle(true);
        session.outbox.send(encode(
            session.version,
            0,
            &Message::EchoRequest(Vec::new()),
        ));
        clock::sleep_until(heard.saturating_add(interval.saturating_mul(2))).await;
        if last_heard.get() == heard {
            return format!(
                "no response to inactivity probe after {} seconds, disconnecting",
                interval / 1000
            );
        }
        observer.idle(false);
    }
}

/// Runs a connection that gets copies of what primary controllers and the switch say to each other. What it sends is read and ignored.
pub(super) async fn run_snooper(hub: &Rc<Hub>, stream: impl AsyncRead + AsyncWrite, peer: &str) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut inbox = Inbox::new();
    let agreed = tokio::time::timeout(
        HELLO_LIMIT,
        exchange_hellos(hub, &mut reader, &mut writer, &mut inbox),
    );
    let Ok(Ok(version)) = agreed.await else {
        return;
    };
    let live = Rc::new(Live::new(Duration::ZERO, SNOOP_QUEUE));
    let session = Rc::new(Session::new(Kind::Service, version, peer, false, live));
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
