//! Composes packets that match a rule. Fields that the match leaves open are random if they
//! distinguish flows, and have usual values otherwise.

use super::{Arrival, Random};
use packet::build::Builder;
use packet::key::at;
use packet::{FlowKey, Match};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const MPLS: [u16; 2] = [0x8847, 0x8848];
/// TCP's flag ACK.
const ACK: u16 = 0x10;

/// Returns a packet within `matching`, of `size` bytes or as many as its headers need.
pub(super) fn arrival(matching: &Match, size: usize, random: &mut Random) -> Arrival {
    let key = fields(matching, random);
    let mut bytes = frame(&key, &[]);
    let missing = size.saturating_sub(bytes.len());
    if missing > 0 {
        bytes = frame(&key, &vec![0; missing]);
        bytes.resize(bytes.len().max(size), 0);
    }
    Arrival {
        in_port: key.u32(at::IN_PORT),
        bytes,
    }
}

/// Returns the fields of one packet.
fn fields(matching: &Match, random: &mut Random) -> FlowKey {
    let mut key = FlowKey::ZERO;
    let any = |key: &mut FlowKey, offset: usize, len: usize, random: &mut Random| {
        for byte in &mut key.bytes_mut()[offset..offset + len] {
            *byte = random.next() as u8;
        }
    };
    for (offset, len) in [
        (at::IPV4_SRC, 8),
        (at::TP_SRC, 4),
        (at::ETH_SRC, 6),
        (at::ETH_DST, 6),
        (at::IPV6_SRC, 32),
        (at::ND_TARGET, 16),
    ] {
        any(&mut key, offset, len, random);
    }
    // Unicast addresses that are not assigned to anybody.
    key.set_u8(at::ETH_SRC, 2);
    key.set_u8(at::ETH_DST, 2);
    key.set_u16(at::ETH_TYPE, IPV4);
    key.set_u8(at::IP_PROTO, 17);
    key.set_u8(at::IP_TTL, 64);
    // A segment without any flag is of no connection.
    key.set_u16(at::TCP_FLAGS, ACK);
    let wanted = |key: &mut FlowKey| {
        for word in matching.words() {
            let place = &mut key.words[usize::from(word.word)];
            *place = *place & !word.mask | word.value;
        }
    };
    wanted(&mut key);
    // ICMP type and code have one byte each; a tag has its present bit; an ARP opcode is a small
    // number.
    match (key.u16(at::ETH_TYPE), key.u8(at::IP_PROTO)) {
        (IPV4, 1) | (IPV6, 58) => {
            key.set_u16(at::TP_SRC, key.u16(at::TP_SRC) & 0xff);
            key.set_u16(at::TP_DST, key.u16(at::TP_DST) & 0xff);
        }
        (ARP | RARP, 17) => key.set_u8(at::IP_PROTO, 1),
        _ => {}
    }
    wanted(&mut key);
    key
}

fn frame(key: &FlowKey, payload: &[u8]) -> Vec<u8> {
    let six =
        |offset: usize| -> [u8; 6] { std::array::from_fn(|index| key.bytes()[offset + index]) };
    let sixteen =
        |offset: usize| -> [u8; 16] { std::array::from_fn(|index| key.bytes()[offset + index]) };
    let mut builder = Builder::ethernet(six(at::ETH_DST), six(at::ETH_SRC));
    for tci in [key.u16(at::VLAN_TCI), key.u16(at::VLAN_TCI2)] {
        if tci & 0x1000 != 0 {
            builder = builder.tag(0x8100, tci & 0xefff);
        }
    }
    let (tos, ttl) = (key.u8(at::IP_TOS), key.u8(at::IP_TTL));
    let builder = match key.u16(at::ETH_TYPE) {
        IPV4 => {
            let (src, dst) = (key.u32(at::IPV4_SRC), key.u32(at::IPV4_DST));
            let place = match key.u8(at::IP_FRAG) {
                0 => 0,
                1 => 0x2000,
                _ => 0x2000 | 100,
            };
            let builder = builder.ipv4(src, dst).with_ipv4(|header| {
                header.set_tos(tos);
                header.set_ttl(ttl);
                header.set_fragment(place);
            });
            transport(builder, key, key.u8(at::IP_FRAG) & 2 != 0)
        }
        IPV6 => transport(
            builder.ipv6(sixteen(at::IPV6_SRC), sixteen(at::IPV6_DST)),
            key,
            false,
        ),
        ARP | RARP => {
            let (spa, tpa) = (key.u32(at::IPV4_SRC), key.u32(at::IPV4_DST));
            let operation = key.u8(at::IP_PROTO).into();
            builder.arp(operation, six(at::ARP_SHA), spa, six(at::ARP_THA), tpa)
        }
        other if MPLS.contains(&other) => builder.mpls(key.u32(at::MPLS_LSE) | 0x100),
        // The key represents 802.2 without SNAP by a length that no packet has.
        0x05ff => builder.eth_type(0x0026),
        other => builder.eth_type(other),
    };
    with_protocol(builder.payload(payload).bytes(), key)
}

/// Writes the protocol number of a protocol without a header here into the IP header.
fn with_protocol(mut bytes: Vec<u8>, key: &FlowKey) -> Vec<u8> {
    let (eth_type, protocol) = (key.u16(at::ETH_TYPE), key.u8(at::IP_PROTO));
    let tags = [at::VLAN_TCI, at::VLAN_TCI2].map(|tag| key.u16(tag) & 0x1000 != 0);
    let l3 = 14 + 4 * tags.into_iter().filter(|tag| *tag).count();
    match (eth_type, protocol) {
        (IPV4 | IPV6, 6 | 17 | 132) => {}
        (IPV4, _) => {
            bytes[l3 + 9] = protocol;
            bytes[l3 + 10..l3 + 12].fill(0);
            let checksum = packet::checksum::ipv4_header(&bytes[l3..l3 + 20]);
            bytes[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        (IPV6, _) => bytes[l3 + 6] = protocol,
        _ => {}
    }
    bytes
}

fn transport(builder: Builder, key: &FlowKey, later_fragment: bool) -> Builder {
    let (src, dst) = (key.u16(at::TP_SRC), key.u16(at::TP_DST));
    match key.u8(at::IP_PROTO) {
        _ if later_fragment => builder,
        6 => builder.tcp(src, dst, key.u16(at::TCP_FLAGS) & 0x0fff),
        17 => builder.udp(src, dst),
        132 => builder.sctp(src, dst),
        1 => builder.icmp(src as u8, dst as u8, 0),
        58 if matches!(src, 135 | 136) => builder.neighbour(
            src as u8,
            std::array::from_fn(|index| key.bytes()[at::ND_TARGET + index]),
            &[],
        ),
        58 => builder.icmpv6(src as u8, dst as u8, 0),
        _ => builder,
    }
}
