//! Connection tracking (`NXAST_CT`, `NXAST_NAT`) and generic encapsulation (`NXAST_ENCAP`).
//!
//! `ct` holds actions that are carried out on the connection: `nat`, and writes to its mark and
//! label.

use crate::model::action::{Action, Subfield};
use std::net::IpAddr;

/// `NXAST_CT`: send the packet through the connection tracker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ct {
    /// Remember the connection.
    pub commit: bool,
    /// Begin the connection anew in this packet's direction.
    pub force: bool,
    /// In which zone.
    pub zone: CtZone,
    /// The table in which a copy of the packet goes on, tracked; None for no copy.
    pub table: Option<u8>,
    /// Port number of a protocol with related connections: 21 for FTP, 69 for TFTP, 0 for none.
    pub alg: u16,
    /// What is done to the connection: [`Action::Nat`], and writes to `ct_mark` and `ct_label`.
    pub actions: Vec<Action>,
}

/// The zone of a [`Ct`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CtZone {
    /// This one.
    Number(u16),
    /// The one whose number these 16 bits hold.
    Field(Subfield),
}

/// `NXAST_NAT`: translate addresses of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Nat {
    /// Which address is translated; None for what the connection has been committed with.
    pub direction: Option<NatDirection>,
    /// The same address for one host, as long as the daemon runs.
    pub persistent: bool,
    /// Ports are chosen by a hash.
    pub hash: bool,
    /// Ports are chosen at random.
    pub random: bool,
    /// Addresses, and ports, to choose from.
    pub range: Option<NatRange>,
}

/// Which address a [`Nat`] translates.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NatDirection {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// Addresses and ports of a [`Nat`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NatRange {
    /// The lowest address, not zero.
    pub min: IpAddr,
    /// The highest, of the same family and at least `min`.
    pub max: Option<IpAddr>,
    /// The lowest port, 0 for any.
    pub min_port: u16,
    /// The highest port, 0 for none; then `min_port` is the only one.
    pub max_port: u16,
}

/// `NXAST_ENCAP`: put a header in front of the packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Encap {
    /// Bytes of the header, 0 when not said.
    pub header_size: u16,
    /// `OXM_OF_PACKET_TYPE` of the packet with its header: [`PACKET_TYPE_ETHERNET`] or
    /// [`PACKET_TYPE_NSH`].
    pub packet_type: u32,
    /// What goes into the header.
    pub properties: Vec<EncapProperty>,
}

/// A property of an [`Encap`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EncapProperty {
    /// NSH metadata type.
    NshMdType(u8),
    /// NSH metadata of variable length.
    NshTlv {
        /// Class.
        class: u16,
        /// Type.
        kind: u8,
        /// Value.
        value: Vec<u8>,
    },
}

/// Packet type of an Ethernet frame.
pub const PACKET_TYPE_ETHERNET: u32 = 0;
/// Packet type of a network service header (RFC 8300).
pub const PACKET_TYPE_NSH: u32 = 0x0001_894f;
/// In a decap: the packet type is what the header says comes next.
pub const PACKET_TYPE_NEXT: u32 = 0x0000_fffe;
