//! Edits packets, keeping bytes, key, layers and checksums consistent.
//!
//! A set-field is compiled once, when its rule is installed ([`CompiledSet::new`]), and run on
//! every packet. Fields of a header that the packet lacks are left alone. Old values are read from
//! the frame, not from the key, whose words are filled only as far as rules need them.
//!
//! Checksums are updated incrementally (RFC 1624). A frame whose transport checksum is still to be
//! computed holds the pseudo header's sum instead, which only changes of addresses affect.
//! Transport fields are written only where the transport header is: not in later fragments.

mod encapsulation;
mod fields;
mod rewrite;
#[cfg(test)]
mod tests;
mod vlan;

use crate::checksum::{self, Delta};
use crate::fields::Field;
use crate::frame::Frame;
use crate::key::{FlowKey, WordSet, at};
use crate::parse::Layers;
use crate::value::Value;

pub use encapsulation::{
    MplsTtl, copy_ttl_in, copy_ttl_out, dec_mpls_ttl, pop_mpls, pop_pbb, push_mpls, push_pbb,
};
pub use fields::is_metadata;
pub use rewrite::Rewrite;
pub use vlan::{pop_vlan, push_vlan, set_vlan_pcp, set_vlan_vid};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Writes the bits of `value` that are set in `mask`, both in the form of the key, to the packet
/// and its key.
///
/// Does nothing if the packet lacks the field's header, if the field is not writable, or if value
/// or mask do not have the field's length. Writing an ICMPv6 type does not update the key's
/// neighbour discovery words. Writing an Ethertype, an IP protocol or a bottom-of-stack bit parses
/// the packet again and fills all of [`crate::parse::PACKET_WORDS`] of the key. Writing a TCI
/// ([`Field::VlanTci`]) with the bit 0x1000 adds a tag if there is none, and without it removes the
/// tag. Returns false only if there was no room for such a tag or memory ran out: then the packet
/// must be dropped.
pub fn set_field<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    field: Field,
    value: &Value,
    mask: &Value,
) -> bool {
    if value.len() == mask.len()
        && mask.iter().all(|byte| *byte == 0xff)
        && let Some(set) = CompiledSet::whole(field, value)
    {
        return set.run(frame, layers, key);
    }
    match fields::masked(field, value, mask) {
        Some(mask) => fields::set(frame, layers, key, field, value, &mask),
        None => true,
    }
}

/// A compiled set-field.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum CompiledSet {
    /// The whole Ethernet destination.
    EthDst([u8; 6]),
    /// The whole Ethernet source.
    EthSrc([u8; 6]),
    /// Both whole Ethernet addresses, destination first.
    EthAddresses([u8; 12]),
    /// The whole IPv4 source.
    Ipv4Src(u32),
    /// The whole IPv4 destination.
    Ipv4Dst(u32),
    /// Both whole IPv4 addresses, source first.
    Ipv4Addresses(u32, u32),
    /// A whole source port of this IP protocol (6, 17).
    SourcePort(u8, u16),
    /// A whole destination port of this IP protocol (6, 17).
    DestinationPort(u8, u16),
    /// The IPv4 TTL or IPv6 hop limit.
    IpTtl(u8),
    /// Bits of the IPv4 ToS or IPv6 traffic class.
    IpTos {
        /// The bits, none outside the mask.
        value: u8,
        /// Which bits.
        mask: u8,
    },
    /// Bits of the outermost VLAN tag of a tagged packet.
    VlanTci {
        /// The bits, none outside the mask.
        value: u16,
        /// Which bits.
        mask: u16,
    },
    /// Does nothing: the field cannot be written.
    Nothing,
    /// Bits of one word of metadata: `word = word & !mask | value`.
    Metadata {
        /// Which word of the key.
        word: u8,
        /// The bits, none outside the mask, in the form of the key.
        value: u64,
        /// Which bits.
        mask: u64,
    },
    /// Any other field; value and mask have the field's length, and the mask lies within the field.
    Other {
        /// Which field.
        field: Field,
        /// The bits.
        value: Value,
        /// Which bits.
        mask: Value,
    },
}

impl CompiledSet {
    /// Compiles a set-field; `value` and `mask` have the form of the key.
    pub fn new(field: Field, value: &Value, mask: &Value) -> CompiledSet {
        let def = field.def();
        let Some(mask) = fields::masked(field, value, mask) else {
            return CompiledSet::Nothing;
        };
        let bits = mask.to_u64();
        let number = value.to_u64() & bits;
        if mask.iter().all(|byte| *byte == 0xff)
            && let Some(set) = CompiledSet::whole(field, value)
        {
            return set;
        }
        match field {
            Field::IpDscp | Field::IpDscpShifted | Field::IpEcn => CompiledSet::IpTos {
                value: number as u8,
                mask: bits as u8,
            },
            Field::DlVlan | Field::DlVlanPcp | Field::VlanVid | Field::VlanPcp => {
                CompiledSet::VlanTci {
                    value: number as u16,
                    mask: bits as u16,
                }
            }
            _ if fields::is_metadata(field) && def.offset % 8 + def.bytes <= 8 => {
                metadata(field, value, &mask)
            }
            _ => CompiledSet::Other {
                field,
                value: value.clone(),
                mask,
            },
        }
    }

    /// Returns the specialized set for a whole field; None if there is none for the field, or the
    /// value does not have the field's length.
    #[inline]
    fn whole(field: Field, value: &[u8]) -> Option<CompiledSet> {
        let word = || value.try_into().map(u32::from_be_bytes).ok();
        let port = || value.try_into().map(u16::from_be_bytes).ok();
        Some(match field {
            Field::EthDst => CompiledSet::EthDst(value.try_into().ok()?),
            Field::EthSrc => CompiledSet::EthSrc(value.try_into().ok()?),
            Field::Ipv4Src => CompiledSet::Ipv4Src(word()?),
            Field::Ipv4Dst => CompiledSet::Ipv4Dst(word()?),
            Field::TcpSrc => CompiledSet::SourcePort(6, port()?),
            Field::UdpSrc => CompiledSet::SourcePort(17, port()?),
            Field::TcpDst => CompiledSet::DestinationPort(6, port()?),
            Field::UdpDst => CompiledSet::DestinationPort(17, port()?),
            Field::IpTtl if value.len() == 1 => CompiledSet::IpTtl(value[0]),
            _ => return None,
        })
    }

    /// Returns one set that does what `self` and then `next` do, if there is one.
    pub fn and_then(&self, next: &CompiledSet) -> Option<CompiledSet> {
        use CompiledSet::*;
        let pair = |dst: &[u8; 6], src: &[u8; 6]| {
            let mut both = [0; 12];
            both[..6].copy_from_slice(dst);
            both[6..].copy_from_slice(src);
            EthAddresses(both)
        };
        Some(match (self, next) {
            (EthDst(_), EthDst(_) | EthAddresses(_))
            | (EthSrc(_), EthSrc(_) | EthAddresses(_))
            | (EthAddresses(_), EthAddresses(_))
            | (Ipv4Src(_), Ipv4Src(_) | Ipv4Addresses(..))
            | (Ipv4Dst(_), Ipv4Dst(_) | Ipv4Addresses(..))
            | (Ipv4Addresses(..), Ipv4Addresses(..))
            | (IpTtl(_), IpTtl(_))
            | (Nothing, _) => next.clone(),
            (_, Nothing) => self.clone(),
            (EthDst(dst), EthSrc(src)) | (EthSrc(src), EthDst(dst)) => pair(dst, src),
            (EthAddresses(both), EthSrc(src)) => pair(both[..6].try_into().ok()?, src),
            (EthAddresses(both), EthDst(dst)) => pair(dst, both[6..].try_into().ok()?),
            (Ipv4Src(src), Ipv4Dst(dst))
            | (Ipv4Dst(dst), Ipv4Src(src))
            | (Ipv4Addresses(src, _), Ipv4Dst(dst))
            | (Ipv4Addresses(_, dst), Ipv4Src(src)) => Ipv4Addresses(*src, *dst),
            (IpTos { value, mask }, IpTos { value: v, mask: m }) => IpTos {
                value: value & !m | v,
                mask: mask | m,
            },
            (VlanTci { value, mask }, VlanTci { value: v, mask: m }) => VlanTci {
                value: value & !m | v,
                mask: mask | m,
            },
            (
                Metadata { word, value, mask },
                Metadata {
                    word: same,
                    value: v,
                    mask: m,
                },
            ) if word == same => Metadata {
                word: *word,
                value: value & !m | v,
                mask: mask | m,
            },
            _ => return None,
        })
    }

    /// Returns the words of the key that it may change, not counting the tags of a VLAN TCI set.
    pub fn words(&self) -> WordSet {
        match self {
            CompiledSet::EthDst(_) => Field::EthDst.def().words(),
            CompiledSet::EthSrc(_) => Field::EthSrc.def().words(),
            CompiledSet::EthAddresses(_) => Field::EthDst
                .def()
                .words()
                .union(Field::EthSrc.def().words()),
            CompiledSet::Ipv4Src(_) => Field::Ipv4Src.def().words(),
            CompiledSet::Ipv4Dst(_) | CompiledSet::Ipv4Addresses(..) => {
                Field::Ipv4Dst.def().words()
            }
            CompiledSet::SourcePort(..) | CompiledSet::DestinationPort(..) => {
                Field::TcpSrc.def().words()
            }
            CompiledSet::IpTtl(_) | CompiledSet::IpTos { .. } => Field::IpTtl.def().words(),
            CompiledSet::VlanTci { .. } => Field::VlanTci.def().words(),
            CompiledSet::Metadata { word, .. } => WordSet::of_word(usize::from(*word)),
            CompiledSet::Nothing => WordSet::EMPTY,
            CompiledSet::Other { field, .. } => field.def().words(),
        }
    }

    /// Runs it on a packet; returns false as [`set_field`] does.
    #[inline]
    pub fn run<F: Frame>(&self, frame: &mut F, layers: &mut Layers, key: &mut FlowKey) -> bool {
        match self {
            CompiledSet::EthDst(to) => set_ethernet(frame, key, 0, at::ETH_DST, *to),
            CompiledSet::EthSrc(to) => set_ethernet(frame, key, 6, at::ETH_SRC, *to),
            CompiledSet::EthAddresses(to) => {
                let head = frame.head_mut();
                if head.len() >= 14 {
                    head[..12].copy_from_slice(to);
                    let key = key.bytes_mut();
                    key[at::ETH_DST..at::ETH_DST + 6].copy_from_slice(&to[..6]);
                    key[at::ETH_SRC..at::ETH_SRC + 6].copy_from_slice(&to[6..]);
                }
            }
            CompiledSet::Ipv4Src(to) => set_ipv4(frame, layers, key, 12, at::IPV4_SRC, *to),
            CompiledSet::Ipv4Dst(to) => set_ipv4(frame, layers, key, 16, at::IPV4_DST, *to),
            CompiledSet::Ipv4Addresses(src, dst) => {
                set_ipv4_pair(frame, layers, key, *src, *dst);
            }
            CompiledSet::SourcePort(protocol, to) => {
                set_port(frame, layers, key, *protocol, 0, at::TP_SRC, *to)
            }
            CompiledSet::DestinationPort(protocol, to) => {
                set_port(frame, layers, key, *protocol, 2, at::TP_DST, *to)
            }
            CompiledSet::Metadata { word, value, mask } => {
                let word = &mut key.words[usize::from(*word) % crate::key::SINGLE];
                *word = *word & !mask | value;
            }
            CompiledSet::IpTtl(to) => set_ttl(frame, layers, key, *to),
            CompiledSet::IpTos { value, mask } => set_tos(frame, layers, key, *value, *mask),
            CompiledSet::VlanTci { value, mask } => {
                return vlan::set_tci(frame, layers, key, *value, *mask, false);
            }
            CompiledSet::Nothing => {}
            CompiledSet::Other { field, value, mask } => {
                return fields::set(frame, layers, key, *field, value, mask);
            }
        }
        true
    }
}

fn metadata(field: Field, value: &Value, mask: &Value) -> CompiledSet {
    let def = field.def();
    let (mut value_bytes, mut mask_bytes) = ([0; 8], [0; 8]);
    let from = def.offset % 8;
    for (index, place) in def.place().iter().enumerate() {
        mask_bytes[from + index] = mask[index] & place;
        value_bytes[from + index] = value[index] & mask[index] & place;
    }
    CompiledSet::Metadata {
        word: (def.offset / 8) as u8,
        value: u64::from_ne_bytes(value_bytes),
        mask: u64::from_ne_bytes(mask_bytes),
    }
}

#[inline(always)]
fn set_ethernet<F: Frame>(
    frame: &mut F,
    key: &mut FlowKey,
    offset: usize,
    place: usize,
    to: [u8; 6],
) {
    let head = frame.head_mut();
    if head.len() < 14 {
        return;
    }
    head[offset..offset + 6].copy_from_slice(&to);
    key.bytes_mut()[place..place + 6].copy_from_slice(&to);
}

#[inline(always)]
fn set_ipv4<F: Frame>(
    frame: &mut F,
    layers: &Layers,
    key: &mut FlowKey,
    offset: usize,
    place: usize,
    to: u32,
) {
    if key.u16(at::ETH_TYPE) != IPV4 || layers.l4 == 0 {
        return;
    }
    let l3 = usize::from(layers.l3);
    let Some(header) = frame.head_mut().get_mut(l3..l3 + 20) else {
        return;
    };
    let old = u32::from_be_bytes(header[offset..offset + 4].try_into().unwrap());
    let mut delta = Delta::new();
    delta.words(old, to);
    header[offset..offset + 4].copy_from_slice(&to.to_be_bytes());
    let checksum = u16::from_be_bytes([header[10], header[11]]);
    header[10..12].copy_from_slice(&delta.applied_to(checksum).to_be_bytes());
    key.set_u32(place, to);
    fix_transport(frame, layers, key, delta, Changed::Addresses);
}

/// Sets both addresses with one update of each checksum.
#[inline(always)]
fn set_ipv4_pair<F: Frame>(frame: &mut F, layers: &Layers, key: &mut FlowKey, src: u32, dst: u32) {
    if key.u16(at::ETH_TYPE) != IPV4 || layers.l4 == 0 {
        return;
    }
    let l3 = usize::from(layers.l3);
    let Some(header) = frame.head_mut().get_mut(l3..l3 + 20) else {
        return;
    };
    let mut delta = Delta::new();
    for (offset, to) in [(12, src), (16, dst)] {
        let old = u32::from_be_bytes(header[offset..offset + 4].try_into().unwrap());
        delta.words(old, to);
        header[offset..offset + 4].copy_from_slice(&to.to_be_bytes());
    }
    let checksum = u16::from_be_bytes([header[10], header[11]]);
    header[10..12].copy_from_slice(&delta.applied_to(checksum).to_be_bytes());
    key.set_u32(at::IPV4_SRC, src);
    key.set_u32(at::IPV4_DST, dst);
    fix_transport(frame, layers, key, delta, Changed::Addresses);
}

#[inline(always)]
fn set_port<F: Frame>(
    frame: &mut F,
    layers: &Layers,
    key: &mut FlowKey,
    protocol: u8,
    offset: usize,
    place: usize,
    to: u16,
) {
    let ip = matches!(key.u16(at::ETH_TYPE), IPV4 | IPV6);
    if !ip || key.u8(at::IP_PROTO) != protocol || !layers.transport {
        return;
    }
    let from = usize::from(layers.l4) + offset;
    let Some(bytes) = frame.head_mut().get_mut(from..from + 2) else {
        return;
    };
    let mut delta = Delta::new();
    delta.word(u16::from_be_bytes([bytes[0], bytes[1]]), to);
    bytes.copy_from_slice(&to.to_be_bytes());
    key.set_u16(place, to);
    fix_transport(frame, layers, key, delta, Changed::Transport);
}

/// What a checksum difference belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changed {
    /// Addresses in the pseudo header.
    Addresses,
    /// Bytes of the transport header.
    Transport,
}

/// Applies a difference to the transport checksum, if there is one that covers the changed bytes.
#[inline(always)]
fn fix_transport<F: Frame>(
    frame: &mut F,
    layers: &Layers,
    key: &FlowKey,
    delta: Delta,
    changed: Changed,
) {
    let in_pseudo_header = changed == Changed::Transport;
    let offset = match key.u8(at::IP_PROTO) {
        6 => 16,
        17 => 6,
        58 if in_pseudo_header || key.u16(at::ETH_TYPE) == IPV6 => 2,
        1 if in_pseudo_header => 2,
        _ => return,
    };
    if !layers.transport {
        return;
    }
    let offload = frame.offload();
    let partial = offload.partial_checksum && offload.csum_start == layers.l4;
    let udp = offset == 6;
    let from = usize::from(layers.l4) + offset;
    if partial && changed == Changed::Transport {
        return;
    }
    let Some(field) = frame.head_mut().get_mut(from..from + 2) else {
        return;
    };
    let new = update_transport(delta, field, partial, udp);
    if new == 0 && offset == 2 {
        mend_zero(frame, layers, from);
    }
}

/// Applies a difference to a transport checksum field and returns its new value; `partial` if a
/// device is to finish the sum. A UDP datagram without a checksum stays without (RFC 768).
#[inline(always)]
fn update_transport(delta: Delta, field: &mut [u8], partial: bool, udp: bool) -> u16 {
    let old = u16::from_be_bytes([field[0], field[1]]);
    let new = if partial {
        delta.applied_to_sum(old)
    } else if udp && old == 0 {
        0
    } else {
        match delta.applied_to(old) {
            0 if udp => 0xffff,
            new => new,
        }
    };
    field.copy_from_slice(&new.to_be_bytes());
    new
}

/// An incremental update cannot tell the two zeros of one's complement apart. A sum that covers a
/// pseudo header is never zero, but an ICMP message of zeros has the checksum 0xffff, and receivers
/// reject 0.
#[cold]
fn mend_zero<F: Frame>(frame: &mut F, layers: &Layers, field: usize) {
    if checksum::frame_sum(frame, layers.l4.into(), layers.end as usize) == 0
        && let Some(field) = frame.head_mut().get_mut(field..field + 2)
    {
        field.fill(0xff);
    }
}

/// Returns the first bytes of a valid IP header, and whether it is IPv4.
#[inline(always)]
fn ip_header<'f, F: Frame>(
    frame: &'f mut F,
    layers: &Layers,
    key: &FlowKey,
) -> Option<(&'f mut [u8], bool)> {
    let eth_type = key.u16(at::ETH_TYPE);
    if !matches!(eth_type, IPV4 | IPV6) || layers.l4 == 0 {
        return None;
    }
    let l3 = usize::from(layers.l3);
    let header = frame.head_mut().get_mut(l3..l3 + 20)?;
    Some((header, eth_type == IPV4))
}

/// Writes a byte of an IPv4 header and updates the header's checksum.
#[inline(always)]
fn set_ipv4_byte(header: &mut [u8], offset: usize, to: u8) {
    let mut delta = Delta::new();
    delta.byte(offset, header[offset], to);
    header[offset] = to;
    let checksum = u16::from_be_bytes([header[10], header[11]]);
    header[10..12].copy_from_slice(&delta.applied_to(checksum).to_be_bytes());
}

#[inline(always)]
fn set_ttl<F: Frame>(frame: &mut F, layers: &Layers, key: &mut FlowKey, to: u8) {
    match ip_header(frame, layers, key) {
        Some((header, true)) => set_ipv4_byte(header, 8, to),
        Some((header, false)) => header[7] = to,
        None => return,
    }
    key.set_u8(at::IP_TTL, to);
}

/// Writes ToS bits; the IPv6 traffic class spans two bytes.
#[inline(always)]
fn set_tos<F: Frame>(frame: &mut F, layers: &Layers, key: &mut FlowKey, value: u8, mask: u8) {
    let to = match ip_header(frame, layers, key) {
        Some((header, true)) => {
            let to = header[1] & !mask | value & mask;
            set_ipv4_byte(header, 1, to);
            to
        }
        Some((header, false)) => {
            let old = header[0] << 4 | header[1] >> 4;
            let to = old & !mask | value & mask;
            header[0] = header[0] & 0xf0 | to >> 4;
            header[1] = header[1] & 0x0f | to << 4;
            to
        }
        None => return,
    };
    key.set_u8(at::IP_TOS, to);
}

/// The packet's TTL is 0 or 1, and cannot be decremented.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("TTL expired")]
pub struct TtlExpired;

/// Decrements the IPv4 TTL or IPv6 hop limit; leaves other packets alone. A TTL of 0 or 1 stays and
/// is an error.
#[inline]
pub fn dec_ttl<F: Frame>(
    frame: &mut F,
    layers: &Layers,
    key: &mut FlowKey,
) -> Result<(), TtlExpired> {
    let Some((header, ipv4)) = ip_header(frame, layers, key) else {
        return Ok(());
    };
    let old = header[if ipv4 { 8 } else { 7 }];
    if old <= 1 {
        return Err(TtlExpired);
    }
    if ipv4 {
        set_ipv4_byte(header, 8, old - 1);
    } else {
        header[7] = old - 1;
    }
    key.set_u8(at::IP_TTL, old - 1);
    Ok(())
}
