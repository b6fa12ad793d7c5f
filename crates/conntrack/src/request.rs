//! What a `ct` action asks, and the answer.

use crate::alg::Rewrite;
use crate::established::Settled;
use crate::nat::{Nat, Translation};
use packet::parse::Layers;
use std::net::IpAddr;

/// A value of which only the bits in `mask` are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Masked<T> {
    /// The bits to be written; those outside the mask are ignored.
    pub value: T,
    /// Which bits are written; zero writes nothing.
    pub mask: T,
}

/// Protocols that announce further connections, which are then related to the one that has
/// announced them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Helper {
    /// FTP (RFC 959).
    Ftp,
    /// TFTP (RFC 1350).
    Tftp,
}

impl Helper {
    /// Returns the name that `alg=` and dumps use.
    pub fn name(self) -> &'static str {
        match self {
            Helper::Ftp => "ftp",
            Helper::Tftp => "tftp",
        }
    }
}

/// What a `ct` action asks for one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request<'a> {
    /// The zone; connections of different zones know nothing of each other.
    pub zone: u16,
    /// Whether a packet that begins a connection has it remembered.
    pub commit: bool,
    /// Whether a connection of which this packet is a reply is replaced by one that this packet
    /// begins. Only with `commit`.
    pub force: bool,
    /// Written to `ct_mark` of the connection, if there is one.
    pub mark: Masked<u32>,
    /// Written to `ct_label` of the connection, if there is one.
    pub label: Masked<u128>,
    /// Translation; None leaves packets of translated connections as they are.
    pub nat: Option<&'a Nat>,
    /// The application's protocol, remembered with a new connection, which may then announce
    /// others.
    pub helper: Option<Helper>,
}

impl Request<'_> {
    /// Whether it changes nothing about a connection that is known.
    pub(crate) fn only_asks(&self) -> bool {
        !self.force && self.mark.mask == 0 && self.label.mask == 0
    }
}

/// The addresses and ports of one direction, as in the fields `ct_nw_src` to `ct_tp_dst`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port; ICMP and ICMPv6: the type; 0 for protocols without ports.
    pub source_port: u16,
    /// Destination port; ICMP and ICMPv6: the code; 0 for protocols without ports.
    pub destination_port: u16,
}

/// The answer for one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tracked {
    /// Bits of [`crate::state`].
    pub state: u32,
    /// The zone asked for.
    pub zone: u16,
    /// The connection's mark, 0 without one.
    pub mark: u32,
    /// The connection's label, 0 without one.
    pub label: u128,
    /// The tuple of the connection's first packet (of one that another has announced: the other's
    /// first packet); without a connection, the packet's own; None if the packet could not be read.
    pub original: Option<Tuple>,
    /// How the packet is to be changed.
    pub translation: Translation,
    /// What else is to be written into the packet, after the translation; written by
    /// [`rewrite`](crate::Tracker::rewrite).
    pub rewrite: Option<Rewrite>,
    /// The answer is that of a connection in the table, which has seen the packet.
    pub has_connection: bool,
}

impl Tracked {
    /// Returns what the packet's next `ct` action is to know of this one, which was asked to
    /// translate or not. As in Open vSwitch, the connection is not remembered behind a `nat`.
    pub fn earlier(&self, with_nat: bool) -> Earlier {
        Earlier {
            state: self.state,
            zone: self.zone,
            has_connection: self.has_connection && !with_nat,
        }
    }
}

/// What an earlier `ct` action answered for a packet. The default is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Earlier {
    /// Bits of [`crate::state`]; 0 without an earlier action.
    pub state: u32,
    /// The earlier action's zone.
    pub zone: u16,
    /// It found or made the packet's connection, whose state machine has seen the packet, and has
    /// no `nat`.
    pub has_connection: bool,
}

/// A packet of a burst that is tracked.
#[derive(Debug)]
pub struct Coming<'a, F> {
    /// Tells whose answer it is.
    pub number: usize,
    /// The frame.
    pub frame: &'a F,
    /// The frame's layers.
    pub layers: Layers,
    /// What an earlier `ct` action answered for it.
    pub earlier: Earlier,
    /// The zone.
    pub zone: u16,
}

/// Takes the answers for packets of a burst, in their order, each with the number of its packet.
pub trait Answers {
    /// Takes that of a packet of an established connection, as most are. To be inlined, so that the
    /// answer is not written to memory.
    fn settled(&mut self, number: usize, settled: &Settled);

    /// Takes any other.
    fn other(&mut self, number: usize, tracked: &Tracked);
}
