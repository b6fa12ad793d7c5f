//! Helpers for protocols whose connections announce others: FTP and TFTP.
//!
//! A connection that is committed with a helper is a *control connection*. What it announces is
//! *expected* for a while ([`expect`]): a new connection to the announced address and port is
//! related to it (`+rel`), has its mark and label, and is translated as it is. Where the control
//! connection is translated, the addresses that it announces are, too (`rewrite`), and sequence
//! numbers are corrected for what that does to lengths ([`stream`]).
//!
//! In FTP, clients announce where the server is to connect to (active mode), and servers where the
//! client is to ([`ftp`]). In TFTP, the answer to a request comes from another port.

mod expect;
mod ftp;
mod rewrite;
mod stream;

pub use rewrite::Rewrite;

pub(crate) use expect::{Expectations, Expected};
pub(crate) use rewrite::rewrite;

use crate::connection::{Conn, Protocol};
use crate::counters::Counter;
use crate::extract::{Packet, PacketProtocol};
use crate::key::{Key, from_ip, to_ip};
use crate::nat::Direction;
use crate::request::{Helper, Request, Tracked};
use crate::state;
use crate::tcp::{self, Segment, flag};
use crate::tracker::{Job, Tracker};
use expect::Refusal;
use ftp::{Announced, Form, LINE, Reading, Text};
use packet::Frame;
use packet::parse::Layers;
use rewrite::Replace;
use stream::{Edit, Overlap, Stream};

/// Most connections that are expected at a time on behalf of one. The oldest give way.
pub(crate) const PER_CONNECTION: usize = 8;
/// Ports that are tried for a translated connection whose own is announced by another.
const PORTS: usize = 16;

/// What only connections have that are control connections or were expected.
#[derive(Debug, Default)]
pub(crate) struct Relations {
    /// The connection that has announced this one.
    pub parent: Option<Key>,
    pub control: Option<Control>,
}

/// State of a control connection.
#[derive(Debug)]
pub(crate) struct Control {
    number: u64,
    /// By direction.
    streams: [Stream; 2],
    /// By direction: a segment whose text was not yet replaced, because the action that saw it
    /// first does not translate.
    pending: [Option<u32>; 2],
    /// What is expected, oldest first.
    announced: Vec<Promise>,
}

/// What was announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Promise {
    reply: bool,
    /// As it was announced.
    port: u16,
    /// As it is expected.
    key: Key,
}

/// The frame that is being tracked, without its type.
pub(crate) trait Source {
    /// Reads bytes at an offset into the IP packet's payload as the transport sees it.
    fn transport(&self, at: usize, out: &mut [u8]) -> bool;
    /// Bytes of transport header and payload.
    fn transport_length(&self) -> usize;
}

/// A frame and its layers.
pub(crate) struct View<'a, F> {
    pub frame: &'a F,
    pub layers: &'a Layers,
}

impl<F: Frame> Source for View<'_, F> {
    fn transport(&self, at: usize, out: &mut [u8]) -> bool {
        self.frame.read_at(usize::from(self.layers.l4) + at, out)
    }

    fn transport_length(&self) -> usize {
        (self.layers.end as usize).saturating_sub(self.layers.l4.into())
    }
}

/// What a packet of a control connection asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Helped {
    /// Further bits of `ct_state`.
    state: u32,
    /// Bits of `ct_state` that do not apply.
    without: u32,
    rewrite: Option<Rewrite>,
}

impl Helped {
    /// Completes the answer for the packet.
    pub fn apply_to(&self, tracked: &mut Tracked) {
        tracked.state = tracked.state & !self.without | self.state;
        tracked.rewrite = self.rewrite;
    }
}

impl Conn {
    /// Makes it a control connection, with a number that no other has.
    pub fn set_control(&mut self, number: u64) {
        self.relations_mut().control = Some(Control {
            number,
            streams: Default::default(),
            pending: [None; 2],
            announced: Vec::new(),
        });
    }

    /// Makes it related to the connection that has announced it.
    pub fn set_parent(&mut self, parent: Key) {
        self.relations_mut().parent = Some(parent);
    }

    /// Whether both sides of a TCP connection have been heard, and neither has closed it.
    fn is_open(&self) -> bool {
        matches!(&self.protocol, Protocol::Tcp(sides) if tcp::is_open(sides))
    }

    fn relations_mut(&mut self) -> &mut Relations {
        self.relations.get_or_insert_default()
    }

    fn control_mut(&mut self) -> Option<&mut Control> {
        self.relations.as_mut()?.control.as_mut()
    }

    /// Returns the tuple of the connection that has announced this one, if any.
    pub fn parent(&self) -> Option<&Key> {
        self.relations.as_ref()?.parent.as_ref()
    }

    /// Returns a packet of a control connection with the numbers that it was sent with; those of
    /// one that has been translated are as they are received.
    pub fn as_sent(&self, packet: &Packet, reply: bool, translated: bool) -> Option<Packet> {
        let control = self.relations.as_ref()?.control.as_ref()?;
        let PacketProtocol::Tcp(segment) = packet.kind else {
            return None;
        };
        let (own, other) = control.streams(reply);
        let mut sent = segment;
        if translated {
            sent.sequence = own.back(segment.sequence);
            let end = own.back(segment.sequence.wrapping_add(segment.length));
            sent.length = end.wrapping_sub(sent.sequence);
        } else {
            sent.acknowledgement = other.back(segment.acknowledgement);
        }
        Some(Packet {
            kind: PacketProtocol::Tcp(sent),
            ..*packet
        })
    }
}

impl Control {
    fn streams(&self, reply: bool) -> (&Stream, &Stream) {
        let [original, back] = &self.streams;
        if reply {
            (back, original)
        } else {
            (original, back)
        }
    }

    /// Says what can be done about a text that was not replaced before, and takes note of it.
    fn now(&mut self, own: usize, sequence: u32, fresh: bool, translates: bool) -> Now {
        let pending = &mut self.pending[own];
        if !translates {
            if fresh {
                *pending = Some(sequence);
            }
            return Now::Later;
        }
        if pending.take() == Some(sequence) || fresh {
            Now::Replaces
        } else {
            Now::Passes
        }
    }
}

/// Who is expected where, before translation.
struct Route {
    key: Key,
    direction: Direction,
    address: crate::key::Address,
}

/// Returns the route of a connection that one side of a control connection announces with a port.
fn route(conn: &Conn, reply: bool, port: u16) -> Route {
    let (original, back) = (&conn.original, &conn.reply);
    let to_destination = conn.nat == Some(Direction::Destination);
    let (addresses, direction, address) = match (reply, to_destination) {
        (true, true) => (
            original.addresses,
            Direction::Destination,
            back.addresses[0],
        ),
        (true, false) => (original.addresses, Direction::Source, back.addresses[1]),
        (false, true) => (back.addresses, Direction::Source, original.addresses[1]),
        (false, false) => (
            back.addresses,
            Direction::Destination,
            original.addresses[0],
        ),
    };
    Route {
        key: Key {
            addresses,
            ports: [0, port],
            ..*original
        },
        direction,
        address,
    }
}

impl Tracker {
    /// Returns how many announced connections are expected.
    pub fn expected(&self) -> usize {
        self.expectations.len()
    }

    /// Returns what is known of a connection that a packet may begin.
    pub(crate) fn find_expected(&self, job: &Job<'_>) -> Option<Expected> {
        let (key, begin) = (&job.packet.key, job.request.commit);
        (self.expectations).find(self.secret, key, job.now_ms, begin)
    }

    /// No longer expects what a connection that has ended has announced.
    pub(crate) fn forget_expected(&self, conn: &mut Conn) {
        let Some(control) = conn.control_mut() else {
            return;
        };
        for promise in control.announced.drain(..) {
            (self.expectations).remove(self.secret, &promise.key, control.number);
        }
    }

    /// Does what the helper of a packet's connection does. `fresh` tells that the packet has only
    /// bytes that were not sent before, `translates` that the packet is translated now.
    pub(crate) fn help(
        &self,
        conn: &mut Conn,
        reply: bool,
        job: &Job<'_>,
        fresh: bool,
        translates: bool,
    ) -> Helped {
        match (conn.helper, job.packet.kind) {
            (Some(Helper::Tftp), PacketProtocol::Other) if !reply => {
                let mut operation = [0; 2];
                let is_request =
                    job.frame.transport(8, &mut operation) && matches!(operation, [0, 1 | 2]);
                let announced = Announced {
                    address: None,
                    port: conn.original.ports[0],
                    form: Form::Port,
                    at: 0,
                    length: 0,
                };
                let as_seen = conn.reply.ports[1];
                if !is_request || job.frame.transport_length() < 12 {
                    self.counters.add(Counter::InvalidAnnouncement);
                } else if let Err(refusal) = self.expect(conn, reply, job, &announced, as_seen) {
                    self.refused(refusal);
                }
                Helped::default()
            }
            (Some(Helper::Ftp), PacketProtocol::Tcp(segment)) => {
                self.help_ftp(conn, reply, job, &segment, fresh, translates)
            }
            _ => Helped::default(),
        }
    }

    fn refused(&self, _refusal: Refusal) {
        self.counters.add(Counter::RefusedExpectation);
    }

    fn help_ftp(
        &self,
        conn: &mut Conn,
        reply: bool,
        job: &Job<'_>,
        segment: &Segment,
        fresh: bool,
        translates: bool,
    ) -> Helped {
        let mut helped = Helped::default();
        let own = usize::from(reply);
        let Some(control) = conn.control_mut() else {
            return helped;
        };
        control.streams[own].sent(segment.sequence);
        let acknowledges = segment.flags & flag::ACK != 0;
        if acknowledges {
            control.streams[1 - own].acknowledged(segment.acknowledgement);
        }
        let mut edit = None;
        match control.streams[own].overlap(segment.sequence, segment.length) {
            Overlap::Whole(found) => edit = Some(found),
            Overlap::Part if translates => {
                self.counters.add(Counter::InvalidAnnouncement);
                // Its numbers stay as they are, so no rule for a connection's packets may send it.
                helped.state = state::INVALID;
                helped.without = state::NEW | state::ESTABLISHED | state::REPLY | state::RELATED;
                return helped;
            }
            Overlap::Part => {}
            // Whoever writes lines before the other side has answered may forge its address, and
            // one packet must not be enough for others to come in.
            Overlap::Nothing if !conn.is_open() || segment.flags & flag::SYN != 0 => {}
            Overlap::Nothing => match self.read_line(conn, reply, job, segment) {
                Reading::Nothing => {}
                Reading::Lie => {
                    self.counters.add(Counter::InvalidAnnouncement);
                    helped.state = state::INVALID;
                }
                Reading::Announced(announced) => {
                    let now = match conn.control_mut() {
                        Some(control) => control.now(own, segment.sequence, fresh, translates),
                        None => Now::Passes,
                    };
                    edit = self.announce(conn, reply, job, segment, &announced, now);
                }
            },
        }
        let Some(control) = conn.control_mut().filter(|_| translates) else {
            return helped;
        };
        let (stream, other) = control.streams(reply);
        let rewrite = Rewrite {
            sequence: stream
                .forward(segment.sequence)
                .wrapping_sub(segment.sequence),
            acknowledgement: match acknowledges {
                true => (other.back(segment.acknowledgement)).wrapping_sub(segment.acknowledgement),
                false => 0,
            },
            edit: edit.map(|edit| Replace {
                at: edit.start.wrapping_sub(segment.sequence),
                length: edit.length,
                text: edit.text,
            }),
        };
        helped.rewrite = (rewrite != Rewrite::default()).then_some(rewrite);
        helped
    }

    /// Reads what a segment announces. An address must be that of the side that announces it.
    fn read_line(&self, conn: &Conn, reply: bool, job: &Job<'_>, segment: &Segment) -> Reading {
        let mut line = [0; LINE];
        let length = (segment.length as usize).min(LINE);
        let begin = (job.frame.transport_length()).saturating_sub(segment.length as usize);
        if length == 0 || !job.frame.transport(begin, &mut line[..length]) {
            return Reading::Nothing;
        }
        let reading = ftp::read(&line[..length], reply, conn.original.v6);
        let Reading::Announced(Announced {
            address: Some(address),
            ..
        }) = reading
        else {
            return reading;
        };
        let own = if reply {
            [conn.reply.addresses[0], conn.original.addresses[1]]
        } else {
            [conn.original.addresses[0], conn.reply.addresses[1]]
        };
        if own.contains(&from_ip(address)) {
            reading
        } else {
            Reading::Lie
        }
    }

    /// Expects what a segment announces; returns what is to be replaced in it.
    fn announce(
        &self,
        conn: &mut Conn,
        reply: bool,
        job: &Job<'_>,
        segment: &Segment,
        announced: &Announced,
        now: Now,
    ) -> Option<Edit> {
        let (own, v6) = (usize::from(reply), conn.original.v6);
        let seen_as = if reply {
            conn.original.addresses[1]
        } else {
            conn.reply.addresses[1]
        };
        let moved = announced
            .address
            .is_some_and(|address| from_ip(address) != seen_as);
        if now == Now::Passes && moved {
            // It has passed before as it is, and its receiver may have it already.
            self.refused(Refusal::Taken);
            return None;
        }
        let has_room = |control: &mut Control| control.streams[own].has_room();
        let may_edit = now == Now::Replaces && conn.control_mut().is_some_and(has_room);
        if now == Now::Replaces && moved && !may_edit {
            self.refused(Refusal::Full);
            return None;
        }
        let mut port = announced.port;
        let changes = route(conn, reply, port).direction == Direction::Destination
            && conn.translated()
            && may_edit;
        let begun = conn.control_mut().and_then(|control| {
            let mut promises = control.announced.iter();
            promises.find(|promise| (promise.reply, promise.port) == (reply, announced.port))
        });
        if let Some(promise) = begun {
            port = promise.key.ports[1];
        }
        let mut result = self.expect(conn, reply, job, announced, port);
        for _ in 0..PORTS {
            if !changes || result != Err(Refusal::Taken) {
                break;
            }
            port = (self.random() % (0x1_0000 - 1024)) as u16 + 1024;
            result = self.expect(conn, reply, job, announced, port);
        }
        match result {
            Ok(()) => {}
            // The action that translates the packet tries again.
            Err(Refusal::Taken) if now == Now::Later && conn.translated() => return None,
            Err(refusal) => {
                self.refused(refusal);
                return None;
            }
        }
        if !may_edit || !moved && port == announced.port {
            return None;
        }
        let edit = Edit::new(
            segment.sequence.wrapping_add(announced.at as u32),
            announced.length as u8,
            Text {
                form: announced.form,
                address: to_ip(seen_as, v6),
                port,
            },
        );
        let control = conn.control_mut()?;
        control.streams[own].replace(edit).then_some(edit)
    }

    /// Expects a connection to `port`, which leads to the port that was announced.
    fn expect(
        &self,
        conn: &mut Conn,
        reply: bool,
        job: &Job<'_>,
        announced: &Announced,
        port: u16,
    ) -> Result<(), Refusal> {
        let Route {
            key,
            direction,
            address,
        } = route(conn, reply, port);
        let expected = Expected {
            direction,
            address,
            port: announced.port,
            mark: conn.mark,
            label: conn.label(),
            parent: conn.original,
        };
        let Some(control) = conn.control_mut() else {
            return Ok(());
        };
        let (secret, number) = (self.secret, control.number);
        let known = self.expectations.has(&key, number, job.now_ms);
        (self.expectations).insert(secret, key, expected, number, job.now_ms)?;
        let promise = Promise {
            reply,
            port: announced.port,
            key,
        };
        control.announced.retain(|other| other.key != key);
        if control.announced.len() == PER_CONNECTION {
            let oldest = control.announced.remove(0);
            (self.expectations).remove(secret, &oldest.key, number);
        }
        control.announced.push(promise);
        if !known {
            self.counters.add(Counter::Expected);
        }
        Ok(())
    }
}

/// What can be done about a text that is to be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Now {
    Replaces,
    /// A later action translates the packet.
    Later,
    /// The text was sent before as it is.
    Passes,
}

impl Expected {
    /// Returns a request to commit the connection: its own translation, and its parent's mark and
    /// label.
    pub fn request<'a>(&self, asked: &Request<'a>, nat: &'a crate::nat::Nat) -> Request<'a> {
        use crate::request::Masked;
        Request {
            nat: asked.nat.map(|_| nat),
            mark: Masked {
                value: self.mark,
                mask: u32::MAX,
            },
            label: Masked {
                value: self.label,
                mask: u128::MAX,
            },
            ..*asked
        }
    }
}
