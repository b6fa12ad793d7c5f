//! What is remembered of one connection.

use crate::alg::Relations;
use crate::established::{Content, NO_LINE, Short, Whole};
use crate::extract::{Packet, PacketProtocol};
use crate::key::Key;
use crate::nat::{Direction, Inner, Translation};
use crate::request::{Helper, Request};
use crate::slab::NONE;
use crate::tcp::{self, Side, Step, TcpState};
use crate::timeouts::{Policies, Timeout};

/// State of connections other than TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Traffic {
    /// One packet.
    First,
    /// Several packets, all from the side that began.
    Single,
    /// Packets in both directions.
    Both,
}

/// The protocol's part of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Tcp([Side; 2]),
    Icmp(Traffic),
    Other(Traffic),
}

/// Neighbours in a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    pub before: u32,
    pub after: u32,
}

impl Links {
    pub const NONE: Links = Links {
        before: NONE,
        after: NONE,
    };
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub original: Key,
    /// The tuple of replies as they come in.
    pub reply: Key,
    label: [u64; 2],
    pub mark: u32,
    /// Number of this connection among those of its shard; see [`crate::shard::Home`].
    pub serial: u32,
    /// When it ends, in milliseconds; if it has a line, what that says counts.
    pub expires: u64,
    /// What packets read without the shard's lock, or [`NO_LINE`].
    pub line: u32,
    /// Links among those that are examined at the same tick of the wheel, and the tick.
    pub due: Links,
    pub tick: u32,
    /// Links among half-open connections, if it is one: all of the shard, and those of its zone.
    pub half: Links,
    pub half_of_zone: Links,
    pub half_open: bool,
    /// The direction of translation that was asked for.
    pub nat: Option<Direction>,
    pub helper: Option<Helper>,
    pub protocol: Protocol,
    /// None: it has no helper and was not announced.
    pub relations: Option<Box<Relations>>,
}

/// What a packet means for the connection it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Update {
    /// It belongs to it.
    Established,
    /// It belongs to it, but the connection is not more than begun.
    New,
    /// It begins another one with the same tuple.
    Replace,
    /// It does not fit.
    BadFlags,
    /// It does not fit.
    BadWindow,
}

impl Conn {
    /// Begins a connection with its first packet.
    pub fn new(packet: &Packet, reply: Key, request: &Request<'_>) -> Conn {
        let protocol = match packet.kind {
            PacketProtocol::Tcp(segment) => Protocol::Tcp(tcp::begin(&segment)),
            PacketProtocol::Icmp => Protocol::Icmp(Traffic::First),
            PacketProtocol::Other => Protocol::Other(Traffic::First),
        };
        Conn {
            original: packet.key,
            reply,
            label: [0; 2],
            mark: 0,
            serial: 0,
            expires: 0,
            line: NO_LINE,
            due: Links::NONE,
            tick: 0,
            half: Links::NONE,
            half_of_zone: Links::NONE,
            half_open: false,
            nat: request.nat.and_then(|nat| nat.direction),
            helper: request.helper,
            protocol,
            relations: None,
        }
    }

    /// Returns the timeout of a connection that has just begun.
    pub fn first_timeout(&self) -> Timeout {
        match self.protocol {
            Protocol::Tcp(_) => Timeout::TcpSynSent,
            Protocol::Icmp(_) => Timeout::IcmpFirst,
            Protocol::Other(_) => Timeout::UdpFirst,
        }
    }

    /// Whether replies come in with other addresses or ports than the first packet had.
    pub fn translated(&self) -> bool {
        self.reply != self.original.reversed()
    }

    /// Whether packets may go by a line: all that they change is the time of the end, and TCP's
    /// numbers.
    pub fn is_settled(&self) -> bool {
        let settled = match &self.protocol {
            Protocol::Tcp(sides) => tcp::is_open(sides),
            Protocol::Icmp(traffic) | Protocol::Other(traffic) => *traffic == Traffic::Both,
        };
        settled && self.helper.is_none() && self.relations.is_none()
    }

    /// Returns what packets may read without the shard's lock, if they may go by a line. `changes`
    /// counts changes of timeouts, to be read before the policies.
    pub fn content(&self, policies: &Policies, changes: u32) -> Option<Content> {
        if !self.is_settled() {
            return None;
        }
        let (original, reply, translated) = (&self.original, &self.reply, self.translated());
        let timeout = match self.protocol {
            Protocol::Tcp(_) => Timeout::TcpEstablished,
            Protocol::Icmp(_) => Timeout::IcmpReply,
            Protocol::Other(_) => Timeout::UdpMultiple,
        };
        let timeout_ms = policies.expiry(self.original.zone, timeout, 0);
        Some(Content {
            tuple: Short::of(original),
            replies: translated.then(|| Short::of(reply)),
            addresses: match (original.v6, translated) {
                (false, _) => Whole::Nothing,
                (true, false) => Whole::One(original.addresses),
                (true, true) => Whole::Both([original.addresses, reply.addresses]),
            },
            nat: self.nat,
            policies: changes,
            timeout_ms: timeout_ms.try_into().ok()?,
            mark: self.mark,
            label: self.label(),
        })
    }

    pub fn label(&self) -> u128 {
        u128::from(self.label[0]) << 64 | u128::from(self.label[1])
    }

    /// Writes the mark and label that are asked for; one that was announced keeps its parent's.
    pub fn write(&mut self, request: &Request<'_>) {
        if self.parent().is_some() {
            return;
        }
        self.mark = self.mark & !request.mark.mask | request.mark.value & request.mark.mask;
        let mask = request.label.mask;
        if mask != 0 {
            let label = self.label() & !mask | request.label.value & mask;
            self.label = [(label >> 64) as u64, label as u64];
        }
    }

    /// Whether the other side has not taken part yet: TCP's handshake is not complete, or no packet
    /// of another protocol has been answered.
    pub fn is_half_open(&self) -> bool {
        match &self.protocol {
            Protocol::Tcp(sides) => sides.iter().any(|side| side.state < TcpState::Established),
            Protocol::Icmp(traffic) | Protocol::Other(traffic) => *traffic != Traffic::Both,
        }
    }

    /// Whether a packet has only bytes that were not sent before.
    pub fn is_fresh(&self, packet: &Packet, reply: bool) -> bool {
        match (&self.protocol, &packet.kind) {
            (Protocol::Tcp(sides), PacketProtocol::Tcp(segment)) => {
                let ahead = segment
                    .sequence
                    .wrapping_sub(sides[usize::from(reply)].sent());
                ahead as i32 >= 0
            }
            _ => true,
        }
    }

    /// Moves its state on by a packet, and returns the new time of its end, if it changes.
    pub fn update(
        &mut self,
        packet: &Packet,
        reply: bool,
        check_sequence: bool,
        policies: &Policies,
        now_ms: u64,
    ) -> (Update, Option<u64>) {
        let (update, timeout) = match (&mut self.protocol, &packet.kind) {
            (Protocol::Tcp(sides), PacketProtocol::Tcp(segment)) => {
                match tcp::step(sides, usize::from(reply), segment, check_sequence) {
                    Step::Valid(timeout) => (Update::Established, timeout),
                    Step::Again(timeout) => (Update::New, Some(timeout)),
                    Step::Reuse => (Update::Replace, None),
                    Step::BadFlags => (Update::BadFlags, None),
                    Step::BadWindow => (Update::BadWindow, None),
                }
            }
            (Protocol::Icmp(traffic), _) => {
                if reply {
                    *traffic = Traffic::Both;
                }
                match traffic {
                    Traffic::Both => (Update::Established, Some(Timeout::IcmpReply)),
                    _ => (Update::New, Some(Timeout::IcmpFirst)),
                }
            }
            (Protocol::Other(traffic), _) => {
                match (reply, *traffic) {
                    (true, _) => *traffic = Traffic::Both,
                    (false, Traffic::First) => *traffic = Traffic::Single,
                    _ => {}
                }
                match traffic {
                    Traffic::Both => (Update::Established, Some(Timeout::UdpMultiple)),
                    _ => (Update::New, Some(Timeout::UdpSingle)),
                }
            }
            // The protocol is part of the key.
            (Protocol::Tcp(_), _) => (Update::BadFlags, None),
        };
        let expires = timeout.map(|timeout| policies.expiry(self.original.zone, timeout, now_ms));
        (update, expires)
    }

    /// Returns how a packet of one direction is to be changed, and the bits of `ct_state` that say
    /// so. None if no translation was asked for when the connection was committed.
    pub fn translation(&self, reply: bool, related: bool) -> Option<(Translation, u32)> {
        let direction = self.nat?;
        // The packet as it comes in and as it is to go out.
        let (from, to, translated) = if reply {
            let other = match direction {
                Direction::Source => Direction::Destination,
                Direction::Destination => Direction::Source,
            };
            (self.reply, self.original.reversed(), other)
        } else {
            (self.original, self.reply.reversed(), direction)
        };
        let address = |end: usize| from.addresses[end] != to.addresses[end];
        let changed = |end: usize| from.changed(&to, end);
        let bits = match translated {
            Direction::Source => crate::state::SOURCE_NAT,
            Direction::Destination => crate::state::DESTINATION_NAT,
        };
        let translation = if related {
            // The error itself has no ports. It quotes a packet of the other direction.
            let outer = |end: usize| address(end).then(|| (to.end(end).0, 0));
            Translation {
                source: outer(0),
                destination: outer(1),
                inner: Some(Inner {
                    source: changed(1),
                    destination: changed(0),
                }),
            }
        } else {
            Translation {
                source: changed(0),
                destination: changed(1),
                inner: None,
            }
        };
        Some((translation, bits))
    }
}

const _: () = assert!(size_of::<Option<Conn>>() <= 256);
