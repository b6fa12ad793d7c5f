//! Reference: writes the outer packet field by field, as the RFCs draw it, without preparation.

use super::super::*;
use crate::frame::Offload;

/// Returns the checksum of RFC 1071, word by word.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns the checksum of UDP or TCP, with 0xffff for 0.
fn transport_checksum(addresses: &Addresses, protocol: u8, datagram: &[u8]) -> u16 {
    let mut all = Vec::new();
    match addresses {
        Addresses::V4 { src, dst } => {
            all.extend(src.to_be_bytes());
            all.extend(dst.to_be_bytes());
        }
        Addresses::V6 { src, dst } => {
            all.extend(src);
            all.extend(dst);
        }
    }
    all.extend((datagram.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(datagram);
    match checksum(&all) {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn udp(spec: &HeaderSpec, packet: &PerPacket<'_>, payload: &[u8]) -> Vec<u8> {
    // The hash as a fraction of the range.
    let source = 32768 + (u128::from(packet.hash) * (61000 - 32768) / (1 << 32)) as u16;
    let mut datagram = Vec::new();
    datagram.extend(source.to_be_bytes());
    datagram.extend(spec.dst_port.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    let ipv6 = matches!(spec.addresses, Addresses::V6 { .. });
    if spec.checksum || ipv6 || spec.kind == TunnelKind::Gtpu {
        let checksum = transport_checksum(&spec.addresses, 17, &datagram);
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    datagram
}

fn vxlan(gbp: bool, packet: &PerPacket<'_>) -> Vec<u8> {
    let flags = packet.gbp_flags & 0x48;
    let mut bytes = vec![0x08, 0, 0, 0];
    if gbp && (flags, packet.gbp_id) != (0, 0) {
        bytes = vec![0x88, flags];
        bytes.extend(packet.gbp_id.to_be_bytes());
    }
    bytes.extend(&packet.id.to_be_bytes()[5..]);
    bytes.push(0);
    bytes
}

fn geneve(packet: &PerPacket<'_>) -> Vec<u8> {
    let options = packet.options.bytes();
    let critical = packet.options.iter().any(|option| option.kind >= 0x80);
    let mut bytes = vec![(options.len() / 4) as u8];
    bytes.push(if packet.oam { 0x80 } else { 0 } | if critical { 0x40 } else { 0 });
    bytes.extend([0x65, 0x58]);
    bytes.extend(&packet.id.to_be_bytes()[5..]);
    bytes.push(0);
    bytes.extend(options);
    bytes
}

fn gtpu(spec: &HeaderSpec, packet: &PerPacket<'_>, inner: &[u8]) -> Vec<u8> {
    let mut optional = Vec::new();
    if spec.sequence {
        optional.extend((packet.sequence as u16).to_be_bytes());
        optional.extend([0, 0]);
    }
    let mut bytes = vec![if spec.sequence { 0x32 } else { 0x30 }, 255];
    bytes.extend(((optional.len() + inner.len()) as u16).to_be_bytes());
    bytes.extend((packet.id as u32).to_be_bytes());
    bytes.extend(optional);
    bytes
}

fn gre(spec: &HeaderSpec, packet: &PerPacket<'_>, inner: &[u8]) -> Vec<u8> {
    let mut flags = 0;
    let mut fields = Vec::new();
    if spec.checksum {
        flags |= 0x80;
        fields.extend([0; 4]);
    }
    if spec.key {
        flags |= 0x20;
        if spec.kind == TunnelKind::Nvgre {
            fields.extend(&packet.id.to_be_bytes()[5..]);
            fields.push(packet.hash as u8);
        } else {
            fields.extend((packet.id as u32).to_be_bytes());
        }
    }
    if spec.sequence {
        flags |= 0x10;
        fields.extend(packet.sequence.to_be_bytes());
    }
    let protocol = match spec.payload {
        Payload::Ethernet => 0x6558,
        Payload::Packet(eth_type) => eth_type,
    };
    let mut bytes = vec![flags, 0];
    bytes.extend(protocol.to_be_bytes());
    bytes.extend(fields);
    bytes.extend(inner);
    if spec.checksum {
        let checksum = checksum(&bytes);
        bytes[4..6].copy_from_slice(&checksum.to_be_bytes());
    }
    bytes
}

/// Returns the TCP segment that carries all of `inner`, which has lost its tag and has this work
/// left to do.
fn stt(
    spec: &HeaderSpec,
    packet: &PerPacket<'_>,
    (flags, l4, mss, tag): (u8, u8, u16, u16),
    inner: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((49152 + (packet.hash >> 18) as u16).to_be_bytes());
    bytes.extend(spec.dst_port.to_be_bytes());
    bytes.extend(((18 + inner.len() as u32) << 16).to_be_bytes());
    bytes.extend(packet.sequence.to_be_bytes());
    bytes.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    bytes.extend([0, flags, l4, 0]);
    bytes.extend(mss.to_be_bytes());
    bytes.extend(tag.to_be_bytes());
    bytes.extend(packet.id.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(inner);
    let checksum = transport_checksum(&spec.addresses, 6, &bytes);
    bytes[16..18].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// Returns the frame that carries `inner`, whose header has a tag taken out of `inner` and this
/// offload work.
pub fn outer_stt(
    spec: &HeaderSpec,
    packet: &PerPacket<'_>,
    inner: &[u8],
    offload: Offload,
) -> Vec<u8> {
    let is_tagged = inner.len() >= 18 && inner[12..14] == [0x81, 0] && inner[14] & 0x10 == 0;
    let (tag, rest) = match is_tagged {
        true => (
            u16::from_be_bytes([inner[14] | 0x10, inner[15]]),
            [&inner[..12], &inner[16..]].concat(),
        ),
        false => (0, inner.to_vec()),
    };
    // Behind all tags.
    let mut at = 12;
    while matches!(rest.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8])) {
        at += 4;
    }
    let ipv4 = rest.get(at..at + 2) == Some(&[8, 0]);
    let said = match offload.partial_checksum {
        false => (u8::from(offload.checksum_valid), 0, 0, tag),
        true => (
            2 | if ipv4 { 4 } else { 0 } | if offload.csum_offset == 16 { 8 } else { 0 },
            (offload.csum_start - if is_tagged { 4 } else { 0 }) as u8,
            offload.gso_size,
            tag,
        ),
    };
    wrap(spec, packet, 6, stt(spec, packet, said, &rest))
}

/// Returns the frame that carries `inner`.
pub fn outer(spec: &HeaderSpec, packet: &PerPacket<'_>, inner: &[u8]) -> Vec<u8> {
    let tunnel = match spec.kind {
        TunnelKind::Vxlan { gbp } => vxlan(gbp, packet),
        TunnelKind::Geneve => geneve(packet),
        TunnelKind::Gtpu => gtpu(spec, packet, inner),
        _ => Vec::new(),
    };
    let (protocol, payload) = match spec.kind {
        TunnelKind::Stt => return outer_stt(spec, packet, inner, Offload::default()),
        TunnelKind::Gre | TunnelKind::Ip6Gre | TunnelKind::Nvgre => (47, gre(spec, packet, inner)),
        _ => (17, udp(spec, packet, &[&tunnel, inner].concat())),
    };
    wrap(spec, packet, protocol, payload)
}

/// Returns the frame with these bytes in an IP packet.
fn wrap(spec: &HeaderSpec, packet: &PerPacket<'_>, protocol: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut bytes = [spec.eth_dst, spec.eth_src].concat();
    if let Some(vlan) = spec.vlan {
        bytes.extend(vlan.tpid.to_be_bytes());
        bytes.extend(vlan.tci.to_be_bytes());
    }
    match spec.addresses {
        Addresses::V4 { src, dst } => {
            bytes.extend([8, 0]);
            let mut ip = vec![0x45, packet.tos];
            ip.extend((20 + payload.len() as u16).to_be_bytes());
            let id = if spec.df { 0 } else { packet.identification };
            ip.extend(id.to_be_bytes());
            ip.extend([if spec.df { 0x40 } else { 0 }, 0]);
            ip.extend([packet.ttl, protocol, 0, 0]);
            ip.extend(src.to_be_bytes());
            ip.extend(dst.to_be_bytes());
            let checksum = checksum(&ip);
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
            bytes.extend(ip);
        }
        Addresses::V6 { src, dst } => {
            bytes.extend([0x86, 0xdd]);
            bytes.extend((6 << 28 | u32::from(packet.tos) << 20).to_be_bytes());
            bytes.extend((payload.len() as u16).to_be_bytes());
            bytes.extend([protocol, packet.ttl]);
            bytes.extend(src);
            bytes.extend(dst);
        }
    }
    bytes.extend(payload);
    bytes
}
