//! What a tunnel's outer header says, without Geneve options.

use crate::key::{FlowKey, WordSet, at};

/// Outer addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Source.
        src: u32,
        /// Destination.
        dst: u32,
    },
    /// IPv6.
    V6 {
        /// Source.
        src: [u8; 16],
        /// Destination.
        dst: [u8; 16],
    },
}

impl Addresses {
    /// Returns whether the addresses are of IPv6.
    pub fn is_ipv6(&self) -> bool {
        matches!(self, Addresses::V6 { .. })
    }
}

bitflags::bitflags! {
    /// Flags of a tunnel header; the bits are Open vSwitch's `FLOW_TNL_F_*`. Rules can match and
    /// set only [`TunnelFlags::OAM`] (`tun_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct TunnelFlags: u16 {
        /// A control packet (Geneve's O bit).
        const OAM = 1;
        /// The outer IPv4 header says "don't fragment". Open vSwitch's userspace tunnels do not
        /// report it for received packets.
        const DF = 1 << 1;
        /// There is an outer checksum of UDP, TCP (STT) or GRE.
        const CSUM = 1 << 2;
        /// The header has a key. Otherwise `id` is 0 and has no meaning.
        const KEY = 1 << 3;
    }
}

/// What a packet's outer headers say, or are to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TunnelInfo {
    /// The key: VNI (24 bits), VSID (24), GRE key (32) or TEID (32), in the low bits, or STT's
    /// context id (64).
    pub id: u64,
    /// Outer addresses; None if no destination has been set.
    pub addresses: Option<Addresses>,
    /// Flags.
    pub flags: TunnelFlags,
    /// Outer DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Outer TTL or hop limit.
    pub ttl: u8,
    /// VXLAN Group Policy ID; 0 without one.
    pub gbp_id: u16,
    /// VXLAN Group Policy flags: 0x40, do not learn; 0x08, policy applied.
    pub gbp_flags: u8,
    /// GTP-U's first byte: version and flags (TS 29.281 section 5.1). Not in the key.
    pub gtpu_flags: u8,
    /// GTP-U's message type; 255 is a user's packet. Not in the key.
    pub gtpu_message: u8,
}

impl TunnelInfo {
    /// The words of the key that hold it. Geneve options are in others
    /// ([`OptionMap`](super::OptionMap)).
    pub const WORDS: WordSet = WordSet::of_bytes(at::TUN_ID, 8)
        .union(WordSet::of_bytes(at::TUN_SRC, 8))
        .union(WordSet::of_bytes(at::TUN_IPV6_SRC, 32))
        .union(WordSet::of_bytes(at::TUN_FLAGS, 8));

    /// Writes all of [`TunnelInfo::WORDS`], in the form that match fields read.
    pub fn to_key(&self, key: &mut FlowKey) {
        key.clear(TunnelInfo::WORDS);
        key.set_u64(at::TUN_ID, self.id);
        match &self.addresses {
            None => {}
            Some(Addresses::V4 { src, dst }) => {
                key.set_u32(at::TUN_SRC, *src);
                key.set_u32(at::TUN_DST, *dst);
            }
            Some(Addresses::V6 { src, dst }) => {
                let bytes = key.bytes_mut();
                bytes[at::TUN_IPV6_SRC..at::TUN_IPV6_SRC + 16].copy_from_slice(src);
                bytes[at::TUN_IPV6_DST..at::TUN_IPV6_DST + 16].copy_from_slice(dst);
            }
        }
        key.set_u16(at::TUN_FLAGS, self.flags.bits());
        key.set_u16(at::TUN_GBP_ID, self.gbp_id);
        key.set_u8(at::TUN_GBP_FLAGS, self.gbp_flags);
        key.set_u8(at::TUN_TOS, self.tos);
        key.set_u8(at::TUN_TTL, self.ttl);
    }

    /// Reads what [`TunnelInfo::to_key`] writes. The outer packet is IPv4 if `tun_dst` is not zero,
    /// else IPv6 if `tun_ipv6_dst` is not, as in Open vSwitch; undefined bits of `tun_flags` are
    /// dropped.
    pub fn from_key(key: &FlowKey) -> TunnelInfo {
        let address = |from: usize| {
            let mut address = [0; 16];
            address.copy_from_slice(&key.bytes()[from..from + 16]);
            address
        };
        let (dst, dst6) = (key.u32(at::TUN_DST), address(at::TUN_IPV6_DST));
        let addresses = if dst != 0 {
            let src = key.u32(at::TUN_SRC);
            Some(Addresses::V4 { src, dst })
        } else if dst6 != [0; 16] {
            let src = address(at::TUN_IPV6_SRC);
            Some(Addresses::V6 { src, dst: dst6 })
        } else {
            None
        };
        TunnelInfo {
            id: key.u64(at::TUN_ID),
            addresses,
            flags: TunnelFlags::from_bits_truncate(key.u16(at::TUN_FLAGS)),
            tos: key.u8(at::TUN_TOS),
            ttl: key.u8(at::TUN_TTL),
            gbp_id: key.u16(at::TUN_GBP_ID),
            gbp_flags: key.u8(at::TUN_GBP_FLAGS),
            gtpu_flags: 0,
            gtpu_message: 0,
        }
    }
}
