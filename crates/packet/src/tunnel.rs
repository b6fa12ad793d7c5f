//! Tunnel headers: VXLAN, Geneve, GRE, NVGRE, GTP-U and STT, over IPv4 and IPv6.
//!
//! Pure codecs: no ports, no routes, no state. A tunnel's outer header is described by a
//! [`TunnelInfo`], which is converted to and from the `tun_*` words of a
//! [`FlowKey`](crate::FlowKey).
//!
//! * Encapsulation: a [`HeaderSpec`] describes what all packets to one remote endpoint have in
//!   common. It is compiled once into a [`Header`], whose [`push`](Header::push) copies it in front
//!   of a frame and fills in what differs: lengths, checksums, the key, the source port.
//! * Decapsulation: [`parse`] checks a frame's outer headers and returns what they say and where
//!   the inner packet is; [`decapsulate()`] then removes them.
//!
//! Which frames are valid, and what happens to others, follows Open vSwitch 3.1's userspace tunnels
//! (`netdev-native-tnl.c`; ECN and flags as in `ofproto/tunnel.c`), except where an item's
//! documentation says otherwise.
//!
//! | kind | header | source |
//! | --- | --- | --- |
//! | `vxlan` | UDP, 8 bytes: flags, optional group policy, 24-bit VNI | RFC 7348, draft-smith-vxlan-group-policy-05 |
//! | `geneve` | UDP, 8 bytes with a 24-bit VNI, up to 252 bytes of options | RFC 8926 |
//! | `gre`, `ip6gre` | 4 bytes, optional checksum, 32-bit key and sequence number | RFC 2784, RFC 2890 |
//! | `nvgre` | GRE whose key is a 24-bit VSID and an 8-bit FlowID | RFC 7637 |
//! | `gtpu` | UDP, 8 bytes with a 32-bit TEID, optional sequence number; carries bare IP | 3GPP TS 29.281 |
//!
//! | `stt` | TCP-like, 20 bytes a segment; 18 with a 64-bit key in the first | draft-davie-stt-08 |
//!
//! Not supported: ERSPAN and VXLAN's GPE extension.

mod decapsulate;
mod geneve;
mod header;
mod info;
mod inner;
pub mod stt;
#[cfg(test)]
mod tests;
mod words;

pub use decapsulate::{Decapsulated, Reason, Usual, decapsulate, parse, parse_into, parse_quick};
pub use geneve::{GeneveOption, GeneveOptions, Mapping, OPTION_WORDS, OptionBuffer, OptionMap};
pub use header::{Header, HeaderSpec, PerPacket, PushError, SpecError, Vlan};
pub use info::{Addresses, TunnelFlags, TunnelInfo};
pub use inner::{
    InnerIp, SOURCE_PORTS, add_ethernet, flow_hash, flow_hash_ipv4, flow_hash_ipv6, outer_tos,
    outer_ttl, set_source_ports, source_port, source_ports, strip_ethernet,
};
pub use words::{Place, TunnelWords};

/// Tunnel protocols.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TunnelKind {
    /// VXLAN over IPv4 or IPv6, with the Group Policy extension if `gbp` is set. Without it, frames
    /// with the extension's flag are refused.
    Vxlan {
        /// Whether the Group Policy extension is in use (`exts=gbp` in Open vSwitch).
        gbp: bool,
    },
    /// Geneve over IPv4 or IPv6.
    Geneve,
    /// GRE over IPv4.
    Gre,
    /// GRE over IPv6.
    Ip6Gre,
    /// NVGRE over IPv4 or IPv6.
    Nvgre,
    /// GTP-U version 1 over IPv4 or IPv6.
    Gtpu,
    /// STT over IPv4 or IPv6. A frame may come in several segments: [`stt`] reads them and puts
    /// them together.
    Stt,
}

impl TunnelKind {
    /// Every kind.
    pub const ALL: [TunnelKind; 8] = [
        TunnelKind::Vxlan { gbp: false },
        TunnelKind::Vxlan { gbp: true },
        TunnelKind::Geneve,
        TunnelKind::Gre,
        TunnelKind::Ip6Gre,
        TunnelKind::Nvgre,
        TunnelKind::Gtpu,
        TunnelKind::Stt,
    ];

    /// Returns its name: Open vSwitch's interface type, if there is one.
    pub fn name(self) -> &'static str {
        match self {
            TunnelKind::Vxlan { .. } => "vxlan",
            TunnelKind::Geneve => "geneve",
            TunnelKind::Gre => "gre",
            TunnelKind::Ip6Gre => "ip6gre",
            TunnelKind::Nvgre => "nvgre",
            TunnelKind::Gtpu => "gtpu",
            TunnelKind::Stt => "stt",
        }
    }

    /// Returns its usual destination port: of UDP, or (STT) of TCP. None for kinds over neither.
    pub fn usual_port(self) -> Option<u16> {
        match self {
            TunnelKind::Vxlan { .. } => Some(4789),
            TunnelKind::Geneve => Some(6081),
            TunnelKind::Gtpu => Some(2152),
            TunnelKind::Stt => Some(7471),
            TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Nvgre => None,
        }
    }

    /// Returns whether it is over UDP.
    pub fn is_udp(self) -> bool {
        matches!(
            self,
            TunnelKind::Vxlan { .. } | TunnelKind::Geneve | TunnelKind::Gtpu
        )
    }

    /// Returns the width of the tunnel's key, in bits.
    pub fn key_bits(self) -> u32 {
        match self {
            TunnelKind::Vxlan { .. } | TunnelKind::Geneve | TunnelKind::Nvgre => 24,
            TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Gtpu => 32,
            TunnelKind::Stt => 64,
        }
    }

    /// Returns whether its outer header may be IPv6 (with `ipv6`) or IPv4 (without).
    fn allows(self, ipv6: bool) -> bool {
        match self {
            TunnelKind::Gre => !ipv6,
            TunnelKind::Ip6Gre => ipv6,
            _ => true,
        }
    }

    /// Returns the protocol number in the outer IP header.
    pub fn ip_protocol(self) -> u8 {
        match self {
            TunnelKind::Stt => TCP,
            kind if kind.is_udp() => UDP,
            _ => GRE,
        }
    }
}

/// What a tunnel carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Payload {
    /// Frames with their Ethernet header.
    #[default]
    Ethernet,
    /// Packets without an Ethernet header, of this Ethertype (0x600 or more).
    Packet(u16),
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Transparent Ethernet Bridging (RFC 1701): the protocol type of an Ethernet frame in GRE and
/// Geneve.
const ETHERNET_BRIDGING: u16 = 0x6558;

const UDP_LEN: usize = 8;

/// VXLAN flag: the VNI is valid (RFC 7348 section 5).
const VXLAN_VNI: u8 = 0x08;
/// VXLAN flag: the Group Policy extension is present.
const VXLAN_GBP: u8 = 0x80;
/// Flags of the Group Policy extension: 0x40, do not learn; 0x08, policy applied.
const GBP_FLAGS: u8 = 0x48;

/// Bit of Geneve's second byte: control packet.
const GENEVE_OAM: u8 = 0x80;
/// Bit of Geneve's second byte: there are critical options.
const GENEVE_CRITICAL: u8 = 0x40;

const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;

/// GTP-U's first byte: version 1, and GTP rather than GTP'.
const GTPU_VERSION: u8 = 0x30;
/// The bits of GTP-U's first byte that [`GTPU_VERSION`] determines.
const GTPU_VERSION_MASK: u8 = 0xf0;
/// Bit of GTP-U's first byte: extension headers follow.
const GTPU_EXTENSION: u8 = 0x04;
/// Bit of GTP-U's first byte: the sequence number is valid.
const GTPU_SEQUENCE: u8 = 0x02;
/// Bits of GTP-U's first byte, each of which makes the header 4 bytes longer.
const GTPU_OPTIONAL: u8 = 0x07;
/// GTP-U's message type of a user's packet (G-PDU).
const GTPU_G_PDU: u8 = 255;
