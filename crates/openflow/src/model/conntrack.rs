//! Connection tracking (`NXAST_CT`, `NXAST_NAT`) and generic encapsulation (`NXAST_ENCAP`).
//!
//! `ct` contains actions that apply to the connection: `nat`, and writes to its mark and label.

use crate::model::action::{Action, Subfield};
use std::net::IpAddr;

/// `NXAST_CT`: send the packet through the connection tracker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ct {
    /// Whether to commit the connection to the tracker.
    pub commit: bool,
    /// Whether this packet's direction becomes the original one, ending an earlier connection.
    pub force: bool,
    /// The zone.
    pub zone: CtZone,
    /// The table in which a tracked copy of the packet continues; None for no copy.
    pub table: Option<u8>,
    /// Port number of the helper for related connections: 21 for FTP, 69 for TFTP, 0 for none.
    pub alg: u16,
    /// Actions on the connection: [`Action::Nat`], and writes to `ct_mark` and `ct_label`.
    pub actions: Vec<Action>,
}

/// The zone of a [`Ct`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CtZone {
    /// A fixed zone.
    Number(u16),
    /// The zone whose number is in these 16 bits.
    Field(Subfield),
}

/// `NXAST_NAT`: translates the connection's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Nat {
    /// The address to translate; None for the translation with which the connection was committed.
    pub direction: Option<NatDirection>,
    /// Whether a host always gets the same address, as long as the daemon runs.
    pub persistent: bool,
    /// Whether ports are chosen by a hash.
    pub hash: bool,
    /// Whether ports are chosen at random.
    pub random: bool,
    /// The addresses and ports to choose from.
    pub range: Option<NatRange>,
}

/// The address that a [`Nat`] translates.
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
    /// The highest address, of the same family and at least `min`.
    pub max: Option<IpAddr>,
    /// The lowest port, 0 for any.
    pub min_port: u16,
    /// The highest port; 0 for none, then `min_port` is the only one.
    pub max_port: u16,
}

/// `NXAST_ENCAP`: pushes a header.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Encap {
    /// Bytes of the header, 0 if not given.
    pub header_size: u16,
    /// `OXM_OF_PACKET_TYPE` of the resulting packet: [`PACKET_TYPE_ETHERNET`] or
    /// [`PACKET_TYPE_NSH`].
    pub packet_type: u32,
    /// Properties of the header.
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
/// In a decap: the packet type follows from the header that is removed.
pub const PACKET_TYPE_NEXT: u32 = 0x0000_fffe;
