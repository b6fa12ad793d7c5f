//! Reference parser for tests and the fuzz target: header by header through views, all packet words
//! at once.

use super::{Layers, Malformed};
use crate::key::{FlowKey, at};
use crate::wire::{
    Arp, Ethernet, Icmp, Ipv4, Ipv6, Ipv6Extension, Ipv6Fragment, Mpls, Pbb, Snap, Tcp, Vlan,
};

/// Returns all packet words and the layers of a frame that is contiguous and has at most
/// [`super::HEADERS_LIMIT`] bytes.
pub fn parse(bytes: &[u8], in_port: u32, vlan_limit: u8) -> (FlowKey, Layers) {
    let mut key = FlowKey::ZERO;
    key.set_u32(at::IN_PORT, in_port);
    let mut layers = Layers {
        end: bytes.len() as u32,
        ..Layers::default()
    };
    layers.malformed = parse_ethernet(bytes, vlan_limit, &mut key, &mut layers).err();
    (key, layers)
}

fn put(key: &mut FlowKey, offset: usize, bytes: &[u8]) {
    key.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn parse_ethernet(
    bytes: &[u8],
    limit: u8,
    key: &mut FlowKey,
    layers: &mut Layers,
) -> Result<(), Malformed> {
    let ethernet = Ethernet::new_checked(bytes).map_err(|_| Malformed::Ethernet)?;
    put(key, at::ETH_DST, &ethernet.dst());
    put(key, at::ETH_SRC, &ethernet.src());
    let mut eth_type = ethernet.eth_type();
    let mut rest = ethernet.payload();
    let offset = |rest: &[u8]| (bytes.len() - rest.len()) as u16;
    for tag in 0..limit {
        if eth_type != 0x8100 && eth_type != 0x88a8 {
            break;
        }
        key.set_u16(at::ETH_TYPE, eth_type);
        layers.l3 = offset(rest);
        let vlan = Vlan::new_checked(rest).map_err(|_| Malformed::Vlan)?;
        match tag {
            0 => key.set_u16(at::VLAN_TCI, vlan.tci() | 0x1000),
            1 => key.set_u16(at::VLAN_TCI2, vlan.tci() | 0x1000),
            _ => {}
        }
        eth_type = vlan.eth_type();
        rest = &rest[4..];
        layers.vlans = tag + 1;
    }
    if eth_type < 0x600 {
        eth_type = 0x5ff;
        if let Ok(snap) = Snap::new_checked(rest)
            && snap.is_ethernet()
        {
            rest = &rest[8..];
            if snap.eth_type() >= 0x600 {
                eth_type = snap.eth_type();
            }
        }
    }
    key.set_u16(at::ETH_TYPE, eth_type);
    layers.l3 = offset(rest);
    match eth_type {
        0x0800 => parse_ipv4(rest, key, layers),
        0x86dd => parse_ipv6(rest, key, layers),
        0x0806 | 0x8035 => parse_arp(rest, key),
        0x88e7 => {
            let pbb = Pbb::new_checked(rest).map_err(|_| Malformed::Pbb)?;
            key.set_u32(at::PBB_ISID, pbb.service());
            key.set_u8(at::PBB_UCA, pbb.uses_customer_addresses().into());
            Ok(())
        }
        0x8847 | 0x8848 => {
            let mut depth = 0;
            loop {
                layers.l3 = offset(rest);
                let label = Mpls::new_checked(rest).map_err(|_| Malformed::Mpls)?;
                if depth < 3 {
                    key.set_u32(at::MPLS_LSE + 4 * depth, label.entry());
                    depth += 1;
                    key.set_u8(at::MPLS_DEPTH, depth as u8);
                }
                rest = &rest[4..];
                layers.l3 = offset(rest);
                if label.bottom() {
                    return Ok(());
                }
            }
        }
        _ => Ok(()),
    }
}

fn parse_arp(bytes: &[u8], key: &mut FlowKey) -> Result<(), Malformed> {
    let arp = Arp::new_checked(bytes).map_err(|_| Malformed::Arp)?;
    if !arp.is_ethernet_ipv4() {
        return Ok(());
    }
    key.set_u32(at::IPV4_SRC, arp.spa());
    key.set_u32(at::IPV4_DST, arp.tpa());
    key.set_u8(at::IP_PROTO, u8::try_from(arp.operation()).unwrap_or(0));
    put(key, at::ARP_SHA, &arp.sha());
    put(key, at::ARP_THA, &arp.tha());
    Ok(())
}

fn parse_ipv4(bytes: &[u8], key: &mut FlowKey, layers: &mut Layers) -> Result<(), Malformed> {
    let ip = Ipv4::new_checked(bytes).map_err(|_| Malformed::Ipv4Short)?;
    if ip.header_len() < 20 || ip.header_len() > bytes.len() {
        return Err(Malformed::Ipv4HeaderLength);
    }
    let payload = match ip.payload() {
        Ok(payload) if bytes.len() - usize::from(ip.total_length()) <= 0xffff => payload,
        _ => return Err(Malformed::Ipv4TotalLength),
    };
    layers.end = u32::from(layers.l3) + u32::from(ip.total_length());
    layers.l4 = layers.l3 + ip.header_len() as u16;
    key.set_u32(at::IPV4_SRC, ip.src());
    key.set_u32(at::IPV4_DST, ip.dst());
    key.set_u8(at::IP_PROTO, ip.protocol());
    key.set_u8(at::IP_TOS, ip.tos());
    key.set_u8(at::IP_TTL, ip.ttl());
    let fragment = u8::from(ip.is_fragment()) | u8::from(ip.is_later_fragment()) << 1;
    key.set_u8(at::IP_FRAG, fragment);
    if ip.is_later_fragment() {
        return Ok(());
    }
    parse_transport(payload, ip.protocol(), key, layers)
}

fn parse_ipv6(bytes: &[u8], key: &mut FlowKey, layers: &mut Layers) -> Result<(), Malformed> {
    let ip = Ipv6::new_checked(bytes).map_err(|_| Malformed::Ipv6Short)?;
    let mut rest = match ip.payload() {
        Ok(payload) if bytes.len() - 40 - payload.len() <= 0xffff => payload,
        _ => return Err(Malformed::Ipv6PayloadLength),
    };
    layers.end = u32::from(layers.l3) + 40 + u32::from(ip.payload_length());
    put(key, at::IPV6_SRC, &ip.src());
    put(key, at::IPV6_DST, &ip.dst());
    let mut chain = vec![ip.next_header()];
    let mut fragment = 0;
    let result = loop {
        let kind = *chain.last().unwrap();
        if ![0, 43, 44, 51, 60].contains(&kind) {
            break Ok(kind);
        }
        let Ok(header) = Ipv6Extension::new_checked(rest) else {
            break Err(Malformed::Ipv6Extension);
        };
        if header.len_of(kind) > rest.len() {
            break Err(Malformed::Ipv6Extension);
        }
        if kind == 44 {
            let part = Ipv6Fragment::new_checked(rest).unwrap();
            rest = &rest[8..];
            if part.offset_flags() != 0 {
                fragment = 1;
            }
            if part.offset_flags() >> 3 != 0 {
                fragment = 3;
                break Ok(44);
            }
        } else {
            rest = &rest[header.len_of(kind)..];
        }
        chain.push(header.next_header());
    };
    key.set_u16(at::IPV6_EXT, parse_extension_bits(&chain));
    let protocol = result?;
    layers.l4 = (layers.end as usize - rest.len()) as u16;
    key.set_u32(at::IPV6_LABEL, ip.label());
    key.set_u8(at::IP_PROTO, protocol);
    key.set_u8(at::IP_TOS, ip.traffic_class());
    key.set_u8(at::IP_TTL, ip.hop_limit());
    key.set_u8(at::IP_FRAG, fragment);
    if fragment & 2 != 0 {
        return Ok(());
    }
    parse_transport(rest, protocol, key, layers)
}

/// Implements OpenFlow 1.3.5 section 7.2.3.9 by counting headers and comparing ranks pairwise.
fn parse_extension_bits(chain: &[u8]) -> u16 {
    let bit = |kind: u8| match kind {
        59 => Some(0),
        50 => Some(1),
        51 => Some(2),
        60 => Some(3),
        44 => Some(4),
        43 => Some(5),
        0 => Some(6),
        _ => None,
    };
    let known: Vec<u8> = chain
        .iter()
        .copied()
        .filter(|kind| bit(*kind).is_some())
        .collect();
    let mut bits = known
        .iter()
        .fold(0, |bits, kind| bits | 1 << bit(*kind).unwrap());
    for kind in &known {
        let allowed = if *kind == 60 { 2 } else { 1 };
        if known.iter().filter(|other| *other == kind).count() > allowed {
            bits |= 1 << 7;
        }
    }
    let rank = |index: usize| match known[index] {
        0 => 1,
        60 if index == 0 || known[index - 1] == 0 => 2,
        43 => 3,
        44 => 4,
        51 => 5,
        50 => 6,
        60 => 7,
        _ => 8,
    };
    if (1..known.len()).any(|index| rank(index) < rank(index - 1)) {
        bits |= 1 << 8;
    }
    bits
}

fn parse_transport(
    bytes: &[u8],
    protocol: u8,
    key: &mut FlowKey,
    layers: &mut Layers,
) -> Result<(), Malformed> {
    let shortest = match protocol {
        6 => 20,
        17 => 8,
        132 => 12,
        1 | 2 | 58 => 8,
        _ => return Ok(()),
    };
    if bytes.len() < shortest {
        return Err(Malformed::Transport);
    }
    if protocol == 6 && !(20..=bytes.len()).contains(&(usize::from(bytes[12] >> 4) * 4)) {
        return Err(Malformed::Transport);
    }
    layers.transport = true;
    if let (6, Ok(tcp)) = (protocol, Tcp::new_checked(bytes)) {
        key.set_u16(at::TCP_FLAGS, tcp.flags());
    }
    if ![1, 2, 58].contains(&protocol) {
        put(key, at::TP_SRC, &bytes[..4]);
        return Ok(());
    }
    let icmp = Icmp::new_checked(bytes).unwrap();
    key.set_u16(at::TP_SRC, icmp.kind().into());
    key.set_u16(at::TP_DST, icmp.code().into());
    let Ok(target) = icmp.target() else {
        return Ok(());
    };
    if protocol != 58 || !icmp.is_neighbour() {
        return Ok(());
    }
    let addresses: Vec<(u8, [u8; 6])> = icmp
        .options()
        .filter(|option| [1, 2].contains(&option.kind) && option.bytes.len() == 8)
        .map(|option| (option.kind, option.bytes[2..].try_into().unwrap()))
        .collect();
    key.set_u8(
        at::ND_OPTIONS_TYPE,
        addresses.first().map_or(0, |first| first.0),
    );
    for (kind, place) in [(1, at::ARP_SHA), (2, at::ARP_THA)] {
        let mut of_kind = addresses.iter().filter(|address| address.0 == kind);
        // Zero addresses do not count.
        let given = of_kind.clone().filter(|address| address.1 != [0; 6]);
        let first = of_kind.clone().position(|address| address.1 != [0; 6]);
        if first.is_some_and(|first| of_kind.clone().count() > first + 1) {
            put(key, at::ND_TARGET, &[0; 16]);
            put(key, at::ARP_SHA, &[0; 6]);
            put(key, at::ARP_THA, &[0; 6]);
            return Ok(());
        }
        put(key, at::ND_TARGET, &target);
        if let Some(address) = given.clone().next().or(of_kind.next()) {
            put(key, place, &address.1);
        }
    }
    Ok(())
}
