//! Rules that change while packets pass: the time from a change, and from the answer to its
//! barrier, to the first packet that obeys; and how long a switch takes to tell its statistics
//! meanwhile.
//!
//! Frames are sent at one interface all the time, [`GAP`] apart. A rule sends them to one of two
//! others, and is changed to send them to the other one, again and again. The kernel stamps what
//! arrives, so the times include a packet's way through the switch, and are exact to the gap.
//! OpenFlow 1.0, which every daemon speaks, by the bridge's own socket.

mod error;

pub use self::error::{Awaited, Error};

use openflow::action::{Action, Instruction};
use openflow::flow::{FlowMod, FlowModCommand, FlowStatsRequest, TABLE_ALL};
use openflow::header::{HEADER, Header};
use openflow::message::{FlowFormat, FlowModForm, Hello, MultipartRequest};
use openflow::{Message, Version, group, port};
use packet::{Field, Match};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;
use rustix::net::socket_with;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time between frames.
pub const GAP: Duration = Duration::from_micros(20);
/// How long a rule stays as it is before the next change.
const SETTLED: Duration = Duration::from_millis(3);
/// How long a change, a barrier or statistics may take.
const LIMIT: Duration = Duration::from_secs(10);
/// Rules that are added before the next barrier.
const AT_A_TIME: u32 = 500;
/// The most frames that are taken from an interface before others have their turn.
const BURST: usize = 256;

/// Types of messages that come. They are not decoded: statistics of thousands of rules would take
/// longer than what is measured.
const ERROR: u8 = 1;
const ECHO_REQUEST: u8 = 2;
const STATS_REPLY: u8 = 17;
const BARRIER_REPLY: u8 = 19;
/// Types of frames: those that pass, and those that no one sends, of the rules beside.
const PASSING: u16 = 0x88b5;
const BESIDE: u16 = 0x88b6;
/// Gives the time at which the last frame read from a socket came, a `timespec`.
const SIOCGSTAMPNS: libc::c_ulong = 0x8907;

/// Where packets pass: interfaces in a namespace, as `ip netns` names it. The switch's ports behind
/// them are numbered from 1, the source first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wires {
    /// The namespace.
    pub namespace: String,
    /// Frames are sent here.
    pub source: String,
    /// They come out at one of these.
    pub sinks: [String; 2],
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// For each change the seconds from sending it to the first packet that obeyed, and from the
    /// answer to the barrier to it (negative: it obeyed before the answer).
    pub times: Vec<(f64, f64)>,
    /// Seconds from asking for the statistics of all rules to the end of the answer.
    pub statistics: Vec<f64>,
}

/// Changes a rule again and again for so many seconds, with so many other rules beside it, from a
/// core. Leaves the switch's other rules as they are.
pub fn measure(
    socket: &Path,
    wires: &Wires,
    beside: u32,
    core: usize,
    seconds: f64,
    stop: &dyn Fn() -> bool,
) -> Result<Changes, Error> {
    let path = Path::new("/run/netns").join(&wires.namespace);
    let there = File::open(&path).map_err(|error| Error::File {
        path: path.display().to_string(),
        error,
    })?;
    let names = [&wires.source, &wires.sinks[0], &wires.sinks[1]];
    // A thread of its own has its own namespace and core.
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let ended = &ended;
        scope.spawn(move || {
            let work = || {
                crate::place::pin(core);
                move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(|error| Error::Namespace(error.into()))?;
                let sockets = names.map(|name| {
                    packets(name).map_err(|error| Error::Interface {
                        name: name.clone(),
                        error,
                    })
                });
                let [source, one, other] = sockets;
                let mut session = Session::open(socket).map_err(Error::OpenFlow)?;
                let (source, sinks) = (source?, [one?, other?]);
                let found = session.fill(beside).and_then(|()| {
                    let stop = || ended.load(std::sync::atomic::Ordering::Relaxed);
                    session.change(&source, &sinks, seconds, &stop)
                });
                let emptied = session.empty();
                found.and_then(|found| emptied.map(|()| found))
            };
            let _ = sender.send(work());
        });
        loop {
            match receiver.recv_timeout(Duration::from_millis(50)) {
                Ok(found) => return found,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    ended.store(stop(), std::sync::atomic::Ordering::Relaxed);
                }
                Err(_) => return Err(Error::Panicked),
            }
        }
    })
}

/// A socket for all frames of an interface of this thread's namespace. Reading does not wait.
fn packets(name: &str) -> io::Result<OwnedFd> {
    let protocol = PASSING.to_be();
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let of_protocol = NonZeroU32::new(protocol.into()).map(Protocol::from_raw);
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, of_protocol)?;
    let index = name_to_index(&socket, name)?;
    // SAFETY: the address is plain data, of which all zeros is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index as i32;
    // SAFETY: the address has this size and lives until the call returns.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as u32,
        )
    };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    // Stamps begin with the first question for one.
    let _ = stamp(socket.as_raw_fd());
    Ok(socket)
}

/// When the last frame came that was read from a socket, seconds since 1970; now where it is not
/// known.
fn stamp(socket: RawFd) -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the request takes a timespec, which lives until the call returns.
    match unsafe { libc::ioctl(socket, SIOCGSTAMPNS, &raw mut time) } {
        0 => time.tv_sec as f64 + time.tv_nsec as f64 / 1e9,
        _ => now(),
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// A frame that passes, without its check sequence.
fn frame() -> [u8; 60] {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0x0b]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x0a]);
    frame[12..14].copy_from_slice(&PASSING.to_be_bytes());
    frame
}

/// Takes what has come at a socket; says when the first of it came.
fn drain(socket: &OwnedFd) -> Option<f64> {
    let mut first = None;
    let mut bytes = [0_u8; 128];
    for _ in 0..BURST {
        match rustix::net::recv(socket, &mut bytes, RecvFlags::empty()) {
            Ok((1.., _)) => {}
            _ => break,
        }
        first.get_or_insert_with(|| stamp(socket.as_raw_fd()));
    }
    first
}

/// What is being waited for.
enum Phase {
    /// The next change.
    Settled(Instant),
    /// A packet that obeys, and the barrier's answer.
    Changed {
        began: Instant,
        sent: f64,
        answered: Option<f64>,
        obeyed: Option<f64>,
    },
    /// Statistics.
    Asked(Instant),
}

/// A connection to a bridge.
struct Session {
    stream: UnixStream,
    input: Vec<u8>,
    /// Of the last message that wants an answer.
    id: u32,
}

/// A message's type, ID and body.
type Came = (u8, u32, Vec<u8>);

impl Session {
    fn open(socket: &Path) -> io::Result<Session> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_write_timeout(Some(LIMIT))?;
        let versions = 1 << Version::V1_0 as u32;
        stream.write_all(&message(0, &Message::Hello(Hello { versions })))?;
        stream.set_nonblocking(true)?;
        Ok(Session {
            stream,
            input: Vec::new(),
            id: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let end = Instant::now() + LIMIT;
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(Error::OpenFlow(error)),
            }
        }
        Ok(())
    }

    /// Messages that have come, other than echo requests. An error that the switch sends is one.
    fn read(&mut self) -> Result<Vec<Came>, Error> {
        let mut part = [0; 65536];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => return Err(Error::Closed),
                Ok(count) => self.input.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Error::OpenFlow(error)),
            }
        }
        let (mut messages, mut at) = (Vec::new(), 0);
        while let Some(header) = Header::of(&self.input[at..]) {
            let length = usize::from(header.length).max(HEADER);
            let Some(body) = self.input.get(at + HEADER..at + length) else {
                break;
            };
            messages.push((header.kind, header.xid, body.to_vec()));
            at += length;
        }
        self.input.drain(..at);
        for (kind, id, body) in &messages {
            match *kind {
                ECHO_REQUEST => self.write(&message(*id, &Message::EchoReply(body.clone())))?,
                ERROR => {
                    let code = body.get(..4).unwrap_or_default();
                    return Err(Error::Refused(code.to_vec()));
                }
                _ => {}
            }
        }
        Ok(messages)
    }

    /// Sends this and a barrier; waits for the answer.
    fn finish(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.id += 1;
        let id = self.id;
        self.write(&[bytes, &message(id, &Message::BarrierRequest)].concat())?;
        let end = Instant::now() + LIMIT;
        while !self
            .read()?
            .iter()
            .any(|m| (m.0, m.1) == (BARRIER_REPLY, id))
        {
            if Instant::now() > end {
                return Err(Error::NoBarrier);
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Adds rules that no frame meets.
    fn fill(&mut self, count: u32) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for number in 0..count {
            let mut matching = of_type(BESIDE);
            matching.set_exact(Field::EthDst, 0x0200_0100_0000 + u128::from(number));
            bytes.extend(add(matching, 1, 2));
            if (number + 1) % AT_A_TIME == 0 || number + 1 == count {
                self.finish(&bytes)?;
                bytes.clear();
            }
        }
        Ok(())
    }

    /// Removes all rules that were added here.
    fn empty(&mut self) -> Result<(), Error> {
        self.finish(&[PASSING, BESIDE].map(|kind| delete(of_type(kind))).concat())
    }

    fn change(
        &mut self,
        source: &OwnedFd,
        sinks: &[OwnedFd; 2],
        seconds: f64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Changes, Error> {
        let mut found = Changes::default();
        let to = |sink: usize| {
            let mut matching = of_type(PASSING);
            matching.set_exact(Field::InPortOxm, 1);
            add(matching, u16::MAX, sink as u32 + 2)
        };
        let mut target = 0;
        self.finish(&to(target))?;
        let began = Instant::now();
        let mut due = began;
        let mut phase = Phase::Settled(began + SETTLED);
        let frame = frame();
        loop {
            let at = Instant::now();
            if at >= due {
                // What the interface does not take is not sent again.
                let _ = rustix::net::send(source, &frame, SendFlags::empty());
                due = at + GAP;
            }
            wait(
                [self.stream.as_fd(), sinks[0].as_fd(), sinks[1].as_fd()],
                due.saturating_duration_since(Instant::now()),
            );
            let came = [drain(&sinks[0]), drain(&sinks[1])];
            let messages = self.read()?;
            let heard = now();
            let answers = |kind| messages.iter().filter(move |message| message.0 == kind);
            let at = Instant::now();
            let (since, awaited) = match &mut phase {
                Phase::Settled(until) => {
                    if stop() {
                        return Err(Error::Stopped);
                    }
                    if began.elapsed().as_secs_f64() >= seconds && !found.times.is_empty() {
                        return Ok(found);
                    }
                    if at >= *until {
                        target = 1 - target;
                        self.id += 1;
                        let barrier = message(self.id, &Message::BarrierRequest);
                        let sent = now();
                        self.write(&[to(target), barrier].concat())?;
                        phase = Phase::Changed {
                            began: at,
                            sent,
                            answered: None,
                            obeyed: None,
                        };
                    }
                    continue;
                }
                Phase::Changed {
                    began,
                    sent,
                    answered,
                    obeyed,
                } => {
                    let id = self.id;
                    if answers(BARRIER_REPLY).any(|message| message.1 == id) {
                        *answered = Some(heard);
                    }
                    *obeyed = obeyed.or(came[target].filter(|came| *came >= *sent));
                    if let (Some(answered), Some(obeyed)) = (*answered, *obeyed) {
                        found.times.push((obeyed - *sent, obeyed - answered));
                        self.id += 1;
                        self.write(&statistics(self.id))?;
                        phase = Phase::Asked(Instant::now());
                        continue;
                    }
                    let awaited = match answered {
                        None => Awaited::Barrier,
                        Some(_) => Awaited::Packet,
                    };
                    (*began, awaited)
                }
                Phase::Asked(since) => {
                    // The last part says that there is no more.
                    let last = |body: &[u8]| body.get(3).is_some_and(|flags| flags & 1 == 0);
                    if answers(STATS_REPLY).any(|(_, _, body)| last(body)) {
                        found.statistics.push(since.elapsed().as_secs_f64());
                        phase = Phase::Settled(Instant::now() + SETTLED);
                        continue;
                    }
                    (*since, Awaited::Statistics)
                }
            };
            if since.elapsed() > LIMIT {
                return Err(Error::InVain(awaited));
            }
        }
    }
}

/// Waits until there is something to read, or for so long.
fn wait(descriptors: [BorrowedFd<'_>; 3], limit: Duration) {
    let mut polls = descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let _ = poll(&mut polls, Some(&limit));
}

fn message(id: u32, message: &Message) -> Vec<u8> {
    openflow::encode(Version::V1_0, id, message)
}

/// All frames of a type.
fn of_type(kind: u16) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, kind.into());
    matching
}

/// Adds a rule that sends to a port.
fn add(matching: Match, priority: u16, port: u32) -> Vec<u8> {
    let output = Action::Output { port, max_len: 0 };
    change(FlowMod::add(
        matching,
        priority,
        vec![Instruction::ApplyActions(vec![output])],
    ))
}

/// Deletes all rules within a match.
fn delete(matching: Match) -> Vec<u8> {
    change(FlowMod {
        command: FlowModCommand::Delete,
        ..FlowMod::add(matching, 0, Vec::new())
    })
}

fn change(change: FlowMod) -> Vec<u8> {
    let form = FlowModForm::default();
    message(0, &Message::FlowMod { change, form })
}

/// Asks for the statistics of all rules of all tables.
fn statistics(id: u32) -> Vec<u8> {
    let request = FlowStatsRequest {
        table: TABLE_ALL,
        matching: Match::any(),
        cookie: 0,
        cookie_mask: 0,
        out_port: port::ANY,
        out_group: group::ANY,
    };
    let request = MultipartRequest::Flow {
        request,
        format: FlowFormat::Standard,
    };
    let more = false;
    message(id, &Message::MultipartRequest { request, more })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the specification of OpenFlow 1.0.0 has them.
    #[test]
    fn messages_have_their_layout() {
        let mut matching = of_type(PASSING);
        matching.set_exact(Field::InPortOxm, 1);
        matching.set_exact(Field::EthDst, 0x0200_0100_0007);
        let add = add(matching, 9, 2);
        let matched = &add[8..48];
        // All wildcards but those of the ingress port, the destination and the type; 32 or more in
        // the six bits of an address of IPv4 stand for all of it.
        let wildcards = u32::from_be_bytes(matched[..4].try_into().unwrap());
        assert_eq!(wildcards | 0x1f << 8 | 0x1f << 14, 0x003f_ffe6);
        assert_eq!(
            (&matched[4..6], &matched[22..24]),
            (&[0, 1][..], &[0x88, 0xb5][..])
        );
        assert_eq!(matched[12..18], [2, 0, 1, 0, 0, 7]);
        assert_eq!((add.len(), add[1], add[3]), (80, 14, 80));
        assert_eq!(add[56..58], [0, 0]);
        assert_eq!(add[62..64], [0, 9]);
        assert_eq!(add[72..], [0, 0, 0, 8, 0, 2, 0, 0]);
        assert_eq!(delete(of_type(PASSING)).len(), 72);
        assert_eq!(statistics(5).len(), 56);
    }

    #[test]
    fn what_a_switch_refuses_is_an_error() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut session = Session {
            stream: ours,
            input: Vec::new(),
            id: 0,
        };
        // In parts, with an echo request before.
        let echo = message(4, &Message::EchoRequest(b"there?".to_vec()));
        theirs.write_all(&echo[..9]).unwrap();
        assert_eq!(session.read().unwrap(), []);
        theirs.write_all(&echo[9..]).unwrap();
        assert_eq!(session.read().unwrap().len(), 1);
        let mut reply = [0; 14];
        theirs.read_exact(&mut reply).unwrap();
        assert_eq!((reply[1], &reply[8..]), (3, &b"there?"[..]));
        theirs
            .write_all(&[1, ERROR, 0, 12, 0, 0, 0, 0, 0, 3, 0, 1])
            .unwrap();
        let refused = session.read().unwrap_err();
        assert!(refused.to_string().contains("[0, 3, 0, 1]"), "{refused}");
        drop(theirs);
        assert!(matches!(session.read(), Err(Error::Closed)));
    }
}
