//! Writes any field, masked: finds it in the frame, and updates the checksum that covers it.

use super::encapsulation::{label_place, reread, service_place, type_place};
use super::{Changed, IPV4, IPV6, fix_transport, set_ipv4_byte, set_tos, vlan};
use crate::checksum::{self, Delta};
use crate::fields::{Field, FieldDef};
use crate::frame::Frame;
use crate::key::{FlowKey, WordSet, at};
use crate::parse::{Layers, PACKET_WORDS};
use crate::value::Value;

/// The checksum that covers the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Covered {
    Nothing,
    Ipv4Header,
    Ipv4Address,
    Ipv6Address,
    Transport,
}

/// Returns whether a field is not part of the packet: setting it changes the key only.
pub fn is_metadata(field: Field) -> bool {
    matches!(field, Field::InPort | Field::InPortOxm)
        || field.tunnel_option().is_some()
        || field.def().words().intersect(PACKET_WORDS) == WordSet::EMPTY
}

/// Returns the mask limited to the field's bits; None if the field cannot be written, or value or
/// mask do not have the field's length.
pub fn masked(field: Field, value: &[u8], mask: &[u8]) -> Option<Value> {
    let def = field.def();
    if !def.writable || value.len() != def.bytes || mask.len() != def.bytes {
        return None;
    }
    let mut inside = def.place();
    for (byte, mask) in inside.iter_mut().zip(mask) {
        *byte &= mask;
    }
    Some(inside)
}

/// Implements [`super::set_field`]; the mask comes from [`masked`].
pub fn set<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    field: Field,
    value: &Value,
    mask: &Value,
) -> bool {
    match field {
        Field::VlanTci | Field::DlVlan | Field::DlVlanPcp | Field::VlanVid | Field::VlanPcp => {
            let (value, mask) = (value.to_u64() as u16, mask.to_u64() as u16);
            return vlan::set_tci(frame, layers, key, value, mask, field == Field::VlanTci);
        }
        Field::IpDscp | Field::IpDscpShifted | Field::IpEcn => {
            set_tos(frame, layers, key, value[0], mask[0]);
        }
        Field::EthType | Field::IpProto | Field::MplsBos => {
            set_shape(frame, layers, key, field, value, mask);
        }
        Field::PbbUca => {
            if let Some(from) = service_place(frame.head(), layers, key) {
                let byte = &mut frame.head_mut()[from];
                *byte = *byte & !(mask[0] << 3) | (value[0] & mask[0]) << 3;
                merge(&mut key.bytes_mut()[at::PBB_UCA..], value, mask);
            }
        }
        _ if is_metadata(field) => merge(&mut key.bytes_mut()[field.def().offset..], value, mask),
        _ => set_in_header(frame, layers, key, field.def(), value, mask),
    }
    true
}

/// Merges `bytes & !mask | value & mask`, over the mask's length.
fn merge(bytes: &mut [u8], value: &[u8], mask: &[u8]) {
    for ((byte, value), mask) in bytes.iter_mut().zip(value).zip(mask) {
        *byte = *byte & !mask | value & mask;
    }
}

/// Writes fields that decide what follows, and parses what follows again.
#[cold]
fn set_shape<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    field: Field,
    value: &[u8],
    mask: &[u8],
) {
    let from = match field {
        Field::EthType => type_place(frame.head(), layers).map(|(place, _)| place),
        Field::MplsBos => label_place(frame.head(), layers, key).map(|label| label + 2),
        _ => protocol_place(frame.head(), layers, key),
    };
    let Some(from) = from else { return };
    let head = frame.head_mut();
    let Some(bytes) = head.get_mut(from..from + mask.len()) else {
        return;
    };
    if field != Field::IpProto {
        merge(bytes, value, mask);
        return reread(frame, layers, key);
    }
    let old = bytes[0];
    let new = old & !mask[0] | value[0] & mask[0];
    let l3 = usize::from(layers.l3);
    match head.get_mut(l3..l3 + 20) {
        Some(header) if key.u16(at::ETH_TYPE) == IPV4 => set_ipv4_byte(header, 9, new),
        _ => head[from] = new,
    }
    // The transport header stays as it is, but its checksum covers the protocol number: update it
    // while its place is still known.
    let mut delta = Delta::new();
    delta.word(old.into(), new.into());
    fix_transport(frame, layers, key, delta, Changed::Addresses);
    reread(frame, layers, key);
}

/// Returns the offset of the protocol number of what follows the IP header; for IPv6, in the last
/// extension header. None for later fragments of IPv6.
fn protocol_place(head: &[u8], layers: &Layers, key: &FlowKey) -> Option<usize> {
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    if l4 == 0 {
        return None;
    }
    match key.u16(at::ETH_TYPE) {
        IPV4 => Some(l3 + 9),
        IPV6 => {
            let (mut place, mut from) = (l3 + 6, l3 + 40);
            while from < l4 {
                let header = head.get(from..from + 8)?;
                let length = match *head.get(place)? {
                    44 => 8,
                    51 => (usize::from(header[1]) + 2) * 4,
                    _ => (usize::from(header[1]) + 1) * 8,
                };
                (place, from) = (from, from + length);
            }
            let later = key.u8(at::IP_FRAG) & 2 != 0;
            (from == l4 && !later).then_some(place)
        }
        _ => None,
    }
}

/// Writes fields whose bytes in the key are their bytes in the frame.
fn set_in_header<F: Frame>(
    frame: &mut F,
    layers: &mut Layers,
    key: &mut FlowKey,
    def: &FieldDef,
    value: &[u8],
    mask: &[u8],
) {
    if mask.iter().all(|byte| *byte == 0) {
        return;
    }
    let Some((from, covered)) = locate(def.field, frame.head(), layers, key) else {
        return;
    };
    let sctp = matches!(def.field, Field::SctpSrc | Field::SctpDst);
    let (l4, end) = (usize::from(layers.l4), layers.end as usize);
    let before = if sctp {
        checksum::sctp(frame, l4, end)
    } else {
        0
    };
    if def.field == Field::ArpOp && frame.head()[from - 1] != 0 {
        // The key reads opcodes above 255 as zero, so bits that are not written become zero.
        frame.head_mut()[from - 1..=from].fill(0);
    }
    let Some(bytes) = frame.head_mut().get_mut(from..from + def.bytes) else {
        return;
    };
    let mut delta = Delta::new();
    for (index, byte) in bytes.iter_mut().enumerate() {
        let new = *byte & !mask[index] | value[index] & mask[index];
        // Headers begin at even offsets of the area that their checksum covers.
        let base = if covered == Covered::Transport {
            l4
        } else {
            layers.l3.into()
        };
        delta.byte(from + index - base.min(from), *byte, new);
        *byte = new;
    }
    merge(&mut key.bytes_mut()[def.offset..], value, mask);
    if matches!(covered, Covered::Ipv4Header | Covered::Ipv4Address) {
        fix_ipv4_header(frame, layers, delta);
    }
    match covered {
        Covered::Nothing | Covered::Ipv4Header => {}
        Covered::Ipv4Address => fix_transport(frame, layers, key, delta, Changed::Addresses),
        Covered::Ipv6Address => {
            if def.field != Field::Ipv6Dst || !routed_onward(frame.head(), layers) {
                fix_transport(frame, layers, key, delta, Changed::Addresses);
            }
        }
        Covered::Transport if sctp => fix_sctp(frame, l4, end, before),
        Covered::Transport => fix_transport(frame, layers, key, delta, Changed::Transport),
    }
}

fn fix_ipv4_header<F: Frame>(frame: &mut F, layers: &Layers, delta: Delta) {
    let from = usize::from(layers.l3) + 10;
    if let Some(field) = frame.head_mut().get_mut(from..from + 2) {
        let new = delta.applied_to(u16::from_be_bytes([field[0], field[1]]));
        field.copy_from_slice(&new.to_be_bytes());
    }
}

/// Xors the change into the checksum: a wrong checksum stays wrong by the same bits, so that an
/// edit does not hide damage.
fn fix_sctp<F: Frame>(frame: &mut F, l4: usize, end: usize, before: u32) {
    let after = checksum::sctp(frame, l4, end);
    if let Some(field) = frame.head_mut().get_mut(l4 + 8..l4 + 12) {
        for (byte, change) in field.iter_mut().zip((before ^ after).to_le_bytes()) {
            *byte ^= change;
        }
    }
}

/// Returns where a field's bytes begin in the frame, if the packet has the field.
fn locate(field: Field, head: &[u8], layers: &Layers, key: &FlowKey) -> Option<(usize, Covered)> {
    use Field::*;
    let (l3, l4) = (usize::from(layers.l3), usize::from(layers.l4));
    let eth_type = key.u16(at::ETH_TYPE);
    let when = |condition: bool, offset: usize, covered| condition.then_some((offset, covered));
    let ipv4 = eth_type == IPV4 && l4 != 0;
    let ipv6 = eth_type == IPV6 && l4 != 0;
    let transport =
        |protocol| (ipv4 || ipv6) && layers.transport && key.u8(at::IP_PROTO) == protocol;
    let label =
        |offset| label_place(head, layers, key).map(|label| (label + offset, Covered::Nothing));
    match field {
        EthDst => when(head.len() >= 14, 0, Covered::Nothing),
        EthSrc => when(head.len() >= 14, 6, Covered::Nothing),
        MplsLabel => label(0),
        MplsTc => label(2),
        MplsTtl => label(3),
        PbbIsid => service_place(head, layers, key).map(|tag| (tag + 1, Covered::Nothing)),
        ArpOp => when(is_arp(head, l3, eth_type), l3 + 7, Covered::Nothing),
        ArpSha => when(is_arp(head, l3, eth_type), l3 + 8, Covered::Nothing),
        ArpSpa => when(is_arp(head, l3, eth_type), l3 + 14, Covered::Nothing),
        ArpTha => when(is_arp(head, l3, eth_type), l3 + 18, Covered::Nothing),
        ArpTpa => when(is_arp(head, l3, eth_type), l3 + 24, Covered::Nothing),
        IpTtl if ipv6 => Some((l3 + 7, Covered::Nothing)),
        IpTtl => when(ipv4, l3 + 8, Covered::Ipv4Header),
        Ipv4Src => when(ipv4, l3 + 12, Covered::Ipv4Address),
        Ipv4Dst => when(ipv4, l3 + 16, Covered::Ipv4Address),
        // The label has the same place in its word as in the frame, after version and traffic
        // class.
        Ipv6Label => when(ipv6, l3, Covered::Nothing),
        Ipv6Src => when(ipv6, l3 + 8, Covered::Ipv6Address),
        Ipv6Dst => when(ipv6, l3 + 24, Covered::Ipv6Address),
        TcpSrc => when(transport(6), l4, Covered::Transport),
        TcpDst => when(transport(6), l4 + 2, Covered::Transport),
        UdpSrc => when(transport(17), l4, Covered::Transport),
        UdpDst => when(transport(17), l4 + 2, Covered::Transport),
        SctpSrc => when(transport(132), l4, Covered::Transport),
        SctpDst => when(transport(132), l4 + 2, Covered::Transport),
        Icmpv4Type => when(ipv4 && transport(1), l4, Covered::Transport),
        Icmpv4Code => when(ipv4 && transport(1), l4 + 1, Covered::Transport),
        Icmpv6Type => when(ipv6 && transport(58), l4, Covered::Transport),
        Icmpv6Code => when(ipv6 && transport(58), l4 + 1, Covered::Transport),
        NdTarget | NdSll | NdTll if ipv6 && transport(58) => neighbour(field, head, layers),
        _ => None,
    }
}

fn is_arp(head: &[u8], l3: usize, eth_type: u16) -> bool {
    matches!(eth_type, 0x0806 | 0x8035)
        && head
            .get(l3..l3 + 28)
            .is_some_and(|arp| arp[..6] == [0, 1, 8, 0, 6, 4])
}

/// Locates fields of neighbour discovery (RFC 4861 sections 4.3, 4.4 and 4.6.1).
fn neighbour(field: Field, head: &[u8], layers: &Layers) -> Option<(usize, Covered)> {
    let l4 = usize::from(layers.l4);
    let message = head.get(l4..(layers.end as usize).min(head.len()))?;
    let (kind, code) = (*message.first()?, *message.get(1)?);
    let wanted = match field {
        Field::NdSll => kind == 135,
        Field::NdTll => kind == 136,
        _ => matches!(kind, 135 | 136),
    };
    if !wanted || code != 0 || message.len() < 24 {
        return None;
    }
    // Offsets of the link-layer addresses: source, target.
    let mut addresses = [None; 2];
    let mut from = 24;
    while let Some(header) = message.get(from..from + 8) {
        let length = usize::from(header[1]) * 8;
        if length == 0 {
            break;
        }
        if matches!(header[0], 1 | 2) && length == 8 {
            let place = &mut addresses[usize::from(header[0] - 1)];
            // The parser ignores a message with two addresses of one kind, so there are no fields
            // to write.
            if place.replace(l4 + from + 2).is_some() {
                return None;
            }
        }
        from += length;
    }
    let place = match field {
        Field::NdSll => addresses[0],
        Field::NdTll => addresses[1],
        _ => Some(l4 + 8),
    };
    place.map(|place| (place, Covered::Transport))
}

/// Returns whether a routing header has segments left: then the destination address is not the one
/// in the pseudo header (RFC 8200 section 8.1).
fn routed_onward(head: &[u8], layers: &Layers) -> bool {
    let (mut from, end) = (usize::from(layers.l3) + 40, usize::from(layers.l4));
    let Some(mut protocol) = head.get(usize::from(layers.l3) + 6).copied() else {
        return false;
    };
    while from < end {
        let Some(header) = head.get(from..from + 8) else {
            return false;
        };
        from += match protocol {
            43 if header[3] > 0 => return true,
            0 | 43 | 60 => (usize::from(header[1]) + 1) * 8,
            44 => 8,
            51 => (usize::from(header[1]) + 2) * 4,
            _ => return false,
        };
        protocol = header[0];
    }
    false
}
