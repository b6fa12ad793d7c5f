//! DSCP, ECN and TTL of inner and outer headers, flow hashes, packets without an Ethernet header.

use super::*;
use crate::build::Builder;
use crate::checksum::{ChecksumStatus, verify};
use crate::frame::Offload;
use crate::key::{FlowKey, at};
use crate::keyed::Keyed;
use crate::parse::{PACKET_WORDS, parse as parse_key};
use proptest::prelude::*;

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn ipv4(tos: u8) -> Builder {
    let builder = Builder::ethernet(A, B).ipv4(0x0a00_0001, 0x0a00_0002);
    builder.with_ipv4(|ip| ip.set_tos(tos))
}

fn ipv6(tos: u8) -> Builder {
    let builder = Builder::ethernet(A, B).ipv6([1; 16], [2; 16]);
    builder.with_ipv6(|ip| ip.set_flow(6 << 28 | u32::from(tos) << 20 | 0x54321))
}

fn key_of(builder: &Builder) -> FlowKey {
    let (bytes, mut key) = (builder.bytes(), FlowKey::ZERO);
    parse_key(&bytes, bytes.len(), 1, PACKET_WORDS, &mut key);
    key
}

#[test]
fn dscp_and_ttl_are_inherited_or_configured_and_ecn_is_inherited() {
    // Configured, inner, outer.
    let cases = [
        (None, None, 0),
        (None, Some(0xb8), 0xb8),
        (None, Some(0xb9), 0xb9),
        (None, Some(0xba), 0xba),
        (None, Some(0xbb), 0xba),
        (Some(0x23), None, 0x20),
        (Some(0x20), Some(0xb9), 0x21),
        (Some(0x20), Some(0xbb), 0x22),
    ];
    for (configured, inner, outer) in cases {
        assert_eq!(
            outer_tos(configured, inner),
            outer,
            "{configured:?} {inner:?}"
        );
    }
    assert_eq!(outer_ttl(None, None), 64);
    assert_eq!(outer_ttl(None, Some(3)), 3);
    assert_eq!(outer_ttl(Some(9), Some(3)), 9);
    assert_eq!(outer_ttl(Some(9), None), 9);
}

#[test]
fn an_inner_header_is_found_behind_tags_and_without_ethernet() {
    let found = |bytes: &[u8], start: usize, payload: Payload| {
        let frame = frame(bytes, &[start + 3, start + 15, start + 17, start + 24]);
        InnerIp::find(&frame, start, bytes.len(), payload)
            .map(|ip| (ip.place, ip.ipv6, ip.tos, ip.ttl))
    };
    let tagged = Builder::ethernet(A, B).tag(0x88a8, 5).vlan(6).ipv4(1, 2);
    let tagged = tagged.with_ipv4(|ip| ip.set_tos(0x47)).udp(1, 2).bytes();
    let v6 = ipv6(0x9b).udp(1, 2).bytes();
    assert_eq!(
        found(&tagged, 0, Payload::Ethernet),
        Some((22, false, 0x47, 64))
    );
    assert_eq!(found(&v6, 0, Payload::Ethernet), Some((14, true, 0x9b, 64)));
    assert_eq!(
        found(&v6, 14, Payload::Packet(0x86dd)),
        Some((14, true, 0x9b, 64))
    );
    // A version that contradicts the type, another type, an incomplete header, three tags.
    assert_eq!(found(&v6, 14, Payload::Packet(0x0800)), None);
    assert_eq!(found(&plain(), 0, Payload::Ethernet), None);
    assert_eq!(found(&v6[..53], 0, Payload::Ethernet), None);
    let three = Builder::ethernet(A, B).vlan(1).vlan(2).vlan(3).ipv4(1, 2);
    assert_eq!(found(&three.bytes(), 0, Payload::Ethernet), None);
}

/// RFC 6040's table, except that an outer ECT(1) changes nothing.
#[test]
fn congestion_is_carried_over() {
    for tos in 0..=255 {
        let (outer_ecn, inner_ecn) = (tos >> 2 & 3, tos & 3);
        let inners = [
            ipv4(tos & 0xf0 | inner_ecn).tcp(1, 2, 0x10),
            ipv6(tos & 0xf0 | inner_ecn).tcp(1, 2, 0x10),
            Builder::ethernet(A, B)
                .vlan(4)
                .ipv4(1, 2)
                .with_ipv4(|ip| ip.set_tos(tos & 0xf0 | inner_ecn))
                .udp(1, 2),
        ];
        for inner in inners {
            let bytes = inner.payload(b"some data").bytes();
            let packet = PerPacket {
                tos: outer_ecn,
                ..PerPacket::default()
            };
            let spec = HeaderSpec::new(TunnelKind::Vxlan { gbp: false }, V4);
            let outer = encapsulated(&spec, &packet, &bytes);
            let mut frame = frame(&outer, &[40, 60, 68, 70, 75]);
            let found = parse(&mut frame, spec.kind).unwrap();
            let result = decapsulate(&mut frame, &found);
            if outer_ecn == 3 && inner_ecn == 0 {
                assert_eq!(result, Err(Reason::Congestion));
                assert_eq!(frame.to_vec(), outer);
                continue;
            }
            result.unwrap();
            let mut key = FlowKey::ZERO;
            let layers = parse_key(&frame.to_vec(), frame.len(), 1, PACKET_WORDS, &mut key);
            let ecn = if outer_ecn == 3 { 3 } else { inner_ecn };
            assert_eq!(key.u8(at::IP_TOS), tos & 0xf0 | ecn);
            assert_eq!(verify(&frame, &layers, &key), ChecksumStatus::Good);
            if ecn == inner_ecn {
                assert_eq!(frame.to_vec(), bytes);
            }
        }
    }
}

#[test]
fn other_packets_do_not_know_of_congestion() {
    let packet = PerPacket {
        tos: 3,
        ..PerPacket::default()
    };
    let spec = HeaderSpec::new(TunnelKind::Geneve, V6);
    let mut frame = frame(&encapsulated(&spec, &packet, &plain()), &[]);
    let found = parse(&mut frame, spec.kind).unwrap();
    decapsulate(&mut frame, &found).unwrap();
    assert_eq!(frame.to_vec(), plain());
}

#[test]
fn bare_packets_know_of_it() {
    for (inner, eth_type) in [(ipv4(2), IPV4), (ipv6(2), IPV6)] {
        let inner = inner.udp(1, 2).bytes();
        let spec = HeaderSpec {
            payload: Payload::Packet(eth_type),
            ..HeaderSpec::new(TunnelKind::Gre, V4)
        };
        let packet = PerPacket {
            tos: 3,
            ..PerPacket::default()
        };
        let mut frame = frame(&inner, &[]);
        assert!(strip_ethernet(&mut frame, 14));
        let header = Header::new(&spec).unwrap();
        header.push(&mut frame, &packet).unwrap();
        let found = parse(&mut frame, spec.kind).unwrap();
        decapsulate(&mut frame, &found).unwrap();
        assert!(add_ethernet(&mut frame, A, B, eth_type));
        let mut key = FlowKey::ZERO;
        let layers = parse_key(frame.head(), frame.len(), 1, PACKET_WORDS, &mut key);
        assert_eq!(key.u8(at::IP_TOS), 3);
        assert_eq!(verify(&frame, &layers, &key), ChecksumStatus::Good);
    }
}

#[test]
fn partial_checksums_move_with_the_ethernet_header() {
    let inner = ipv4(0).udp(1, 2).partial_checksum();
    let before = inner.frame();
    let mut frame = before.clone();
    assert!(strip_ethernet(&mut frame, 14));
    assert_eq!(frame.offload().csum_start, 20);
    assert!(add_ethernet(&mut frame, A, B, IPV4));
    assert_eq!(frame, before);
    // Neither more than the header nor more than the frame can be removed.
    assert!(!strip_ethernet(&mut frame, 35));
    assert!(!strip_ethernet(&mut frame, 500));
    let far = Offload {
        csum_start: 0xfff8,
        ..before.offload()
    };
    frame.set_offload(far);
    assert!(!add_ethernet(&mut frame, A, B, IPV4));
    assert_eq!(frame.to_vec(), before.to_vec());
}

#[test]
fn a_flow_has_one_source_port() {
    let keyed = Keyed::default();
    let hash = |builder: &Builder| flow_hash(&keyed, &key_of(builder));
    let flow = ipv4(0).tcp(1000, 80, 2);
    let same = ipv4(0x47).tcp(1000, 80, 0x10).payload(b"later");
    assert_eq!(hash(&flow), hash(&same));
    let bytes = flow.bytes();
    let addresses = u64::from_be_bytes(bytes[26..34].try_into().unwrap());
    let ports = u32::from_be_bytes(bytes[34..38].try_into().unwrap());
    assert_eq!(hash(&flow), flow_hash_ipv4(&keyed, addresses, ports, 6));
    let tagged = Builder::ethernet(B, A)
        .vlan(7)
        .ipv4(0x0a00_0001, 0x0a00_0002);
    assert_eq!(hash(&flow), hash(&tagged.tcp(1000, 80, 0x10)));
    let others = [
        ipv4(0).tcp(1001, 80, 2),
        ipv4(0).udp(1000, 80),
        ipv6(0).tcp(1000, 80, 2),
        Builder::ethernet(A, B)
            .ipv4(0x0a00_0001, 0x0a00_0003)
            .tcp(1000, 80, 2),
        Builder::ethernet(A, B).eth_type(0x88b5),
        Builder::ethernet(B, A).eth_type(0x88b5),
        Builder::ethernet(A, B).eth_type(0x88b6),
        Builder::ethernet(A, B)
            .ipv6([1; 16], [3; 16])
            .tcp(1000, 80, 2),
    ];
    let hashes: std::collections::HashSet<u32> = others.iter().map(hash).collect();
    // Two of these nine are equal once in 100 million runs.
    assert_eq!(hashes.len(), others.len());
    assert!(!hashes.contains(&hash(&flow)));
    // Only the first fragment has ports.
    let fragment = |word: u16| {
        let builder = ipv4(0).with_ipv4(|ip| ip.set_fragment(word));
        builder.udp(1000, 53).payload(&[1; 16])
    };
    assert_eq!(hash(&fragment(0x2000)), hash(&fragment(0x0010)));
    // Type and code of ICMP, which are where ports would be, are not hashed.
    assert_eq!(hash(&ipv4(0).icmp(8, 0, 1)), hash(&ipv4(0).icmp(3, 1, 1)));
}

#[test]
fn source_ports_cover_their_range() {
    assert_eq!(source_port(0), 32768);
    assert_eq!(source_port(u32::MAX), 60999);
    let ports: Vec<u16> = (0..=255).map(|high| source_port(high << 24)).collect();
    assert!(ports.is_sorted_by(|a, b| a < b));
    assert!(ports.iter().all(|port| SOURCE_PORTS.contains(port)));
}

fn addresses() -> impl Strategy<Value = Option<Addresses>> {
    prop_oneof![
        Just(None),
        any::<(u32, u32)>().prop_map(|(src, dst)| Some(Addresses::V4 { src, dst: dst | 1 })),
        any::<([u8; 16], [u8; 15])>().prop_map(|(src, rest)| {
            let mut dst = [1; 16];
            dst[1..].copy_from_slice(&rest);
            Some(Addresses::V6 { src, dst })
        }),
    ]
}

proptest! {
    #[test]
    fn tunnel_metadata_written_to_a_key_is_read_back(
        addresses in addresses(),
        id: u64,
        flags in 0..16u16,
        (tos, ttl, gbp_id, gbp_flags) in any::<(u8, u8, u16, u8)>(),
        garbage: u64,
    ) {
        let info = TunnelInfo {
            id,
            addresses,
            flags: TunnelFlags::from_bits_truncate(flags),
            tos,
            ttl,
            gbp_id,
            gbp_flags,
            gtpu_flags: 0,
            gtpu_message: 0,
        };
        let mut key = FlowKey::ZERO;
        key.words.fill(garbage);
        info.to_key(&mut key);
        prop_assert_eq!(TunnelInfo::from_key(&key), info);
        let mut words = TunnelWords::ZERO;
        words.write(14, garbage, u64::MAX);
        words.set(&info);
        prop_assert_eq!(words.info(), info);
        for word in TunnelInfo::WORDS.iter() {
            prop_assert_eq!(words.word(word as u8), key.words[word]);
            prop_assert!(TunnelWords::holds(word));
        }
        prop_assert_eq!(words.word(13) | words.word(42) | words.word(69), 0);
        for word in 0..crate::key::WORDS {
            let is_own = TunnelInfo::WORDS.contains(word);
            prop_assert!(is_own || key.words[word] == garbage);
        }
        // In the form of match fields.
        use crate::Field;
        let number = |field: Field| {
            let def = field.def();
            let bytes = &key.bytes()[def.offset..def.offset + def.bytes];
            crate::Value::from_bytes(bytes).to_u128() & ((1 << def.bits.min(127)) - 1)
        };
        prop_assert_eq!(number(Field::TunId), id.into());
        prop_assert_eq!(number(Field::TunFlags), u128::from(flags & 1));
        prop_assert_eq!(number(Field::TunTos), tos.into());
        prop_assert_eq!(number(Field::TunTtl), ttl.into());
        prop_assert_eq!(number(Field::TunGbpId), gbp_id.into());
        prop_assert_eq!(number(Field::TunGbpFlags), gbp_flags.into());
        if let Some(Addresses::V4 { src, dst }) = addresses {
            prop_assert_eq!(number(Field::TunSrc), src.into());
            prop_assert_eq!(number(Field::TunDst), dst.into());
        }
    }
}
