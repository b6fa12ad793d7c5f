//! What goes in comes out unchanged, for any packets, headers and segments; and no received bytes,
//! however broken, come out longer than they were.

use super::reference::{self, checksum};
use super::*;
use crate::build::Builder;
use crate::checksum::finish_partial;
use crate::frame::{Gso, Offload};
use crate::parse::tests::{broken_packets, packets};
use proptest::prelude::*;

/// All inputs of an encapsulation.
#[derive(Clone, Debug)]
struct Case {
    spec: HeaderSpec,
    packet: PerPacket<'static>,
    options: OptionBuffer,
    inner: Vec<u8>,
    offload: Offload,
    cuts: Vec<usize>,
}

impl Case {
    fn packet(&self) -> PerPacket<'_> {
        let options = match self.spec.kind {
            TunnelKind::Geneve => self.options.options(),
            _ => GeneveOptions::NONE,
        };
        PerPacket {
            options,
            ..self.packet
        }
    }

    fn frame(&self) -> HeapFrame {
        let mut frame = frame(&self.inner, &self.cuts);
        frame.set_offload(self.offload);
        frame
    }

    /// Returns what its outer headers say.
    fn info(&self) -> TunnelInfo {
        let (spec, packet) = (&self.spec, &self.packet);
        let kind = spec.kind;
        let ipv6 = spec.addresses.is_ipv6();
        let always = matches!(kind, TunnelKind::Gtpu | TunnelKind::Stt);
        let is_checked = spec.checksum || kind.is_udp() && ipv6 || always;
        let mut flags = TunnelFlags::empty();
        flags.set(TunnelFlags::DF, spec.df && !ipv6);
        flags.set(TunnelFlags::KEY, spec.key);
        flags.set(TunnelFlags::CSUM, is_checked);
        flags.set(TunnelFlags::OAM, packet.oam && kind == TunnelKind::Geneve);
        let has_policy = kind == TunnelKind::Vxlan { gbp: true };
        let is_gtpu = kind == TunnelKind::Gtpu;
        TunnelInfo {
            id: if spec.key {
                packet.id & (u64::MAX >> (64 - kind.key_bits()))
            } else {
                0
            },
            addresses: Some(spec.addresses),
            flags,
            tos: packet.tos,
            ttl: packet.ttl,
            gbp_id: if has_policy { packet.gbp_id } else { 0 },
            gbp_flags: if has_policy {
                packet.gbp_flags & 0x48
            } else {
                0
            },
            gtpu_flags: match (is_gtpu, spec.sequence) {
                (false, _) => 0,
                (true, false) => 0x30,
                (true, true) => 0x32,
            },
            gtpu_message: if is_gtpu { 255 } else { 0 },
        }
    }
}

fn specs() -> impl Strategy<Value = HeaderSpec> {
    let kinds = proptest::sample::select(&TunnelKind::ALL[..]);
    let vlan = proptest::option::of((prop_oneof![Just(0x8100), Just(0x88a8)], any::<u16>()));
    let flags = any::<(bool, bool, bool, bool, bool, bool)>();
    let addresses = any::<(u32, u32, [u8; 16], [u8; 16])>();
    let other = any::<([u8; 6], [u8; 6], u16, u16)>();
    (kinds, vlan, flags, addresses, other).prop_map(
        |(kind, vlan, (ipv6, bare, df, checksum, key, sequence), addresses, other)| {
            let (src, dst, src6, dst6) = addresses;
            let (eth_src, eth_dst, dst_port, eth_type) = other;
            let ipv6 = kind == TunnelKind::Ip6Gre || ipv6 && kind != TunnelKind::Gre;
            let is_gre = matches!(kind, TunnelKind::Gre | TunnelKind::Ip6Gre);
            HeaderSpec {
                kind,
                payload: match kind {
                    TunnelKind::Gtpu => Payload::Packet(if bare { 0x0800 } else { 0x86dd }),
                    // Any type but Ethernet's.
                    _ if is_gre && bare => Payload::Packet(0x6559 + eth_type % 0x9000),
                    _ => Payload::Ethernet,
                },
                eth_src,
                eth_dst,
                vlan: vlan.map(|(tpid, tci)| Vlan { tpid, tci }),
                addresses: if ipv6 {
                    Addresses::V6 {
                        src: src6,
                        dst: dst6,
                    }
                } else {
                    Addresses::V4 { src, dst }
                },
                dst_port,
                df,
                checksum: checksum && !matches!(kind, TunnelKind::Nvgre | TunnelKind::Stt),
                key: key || !is_gre,
                sequence: sequence && (is_gre || kind == TunnelKind::Gtpu),
                mtu: 0,
            }
        },
    )
}

fn per_packet() -> impl Strategy<Value = PerPacket<'static>> {
    let small = (any::<u64>(), any::<u8>(), any::<u8>(), any::<u32>());
    let more = (any::<u32>(), any::<bool>(), any::<u16>(), any::<u8>());
    (small, more).prop_map(
        |((id, tos, ttl, hash), (sequence, oam, gbp_id, gbp_flags))| PerPacket {
            id,
            // Congestion has tests of its own.
            tos: if tos & 3 == 3 { tos ^ 1 } else { tos },
            ttl,
            hash,
            sequence,
            identification: (hash >> 16) as u16 ^ sequence as u16,
            oam,
            gbp_id,
            gbp_flags,
            options: GeneveOptions::NONE,
        },
    )
}

fn options() -> impl Strategy<Value = OptionBuffer> {
    let one = (any::<u16>(), any::<u8>(), 0..32usize, any::<u8>());
    proptest::collection::vec(one, 0..4).prop_map(|all| {
        let mut buffer = OptionBuffer::new();
        for (class, kind, words, byte) in all {
            buffer.push(class, kind, &vec![byte; words * 4]);
        }
        buffer
    })
}

/// Frames with a checksum that their sender has left to a device.
fn partial_frames() -> impl Strategy<Value = (Vec<u8>, Offload)> {
    let numbers = any::<(u32, u32, u16, u16, [u8; 16], [u8; 16])>();
    let payload = proptest::collection::vec(any::<u8>(), 0..40);
    (numbers, payload, 0..6u8, 0..3usize).prop_map(|((a, b, c, d, e, f), payload, shape, tags)| {
        let mut builder = Builder::ethernet([2; 6], [4; 6]);
        for _ in 0..tags {
            builder = builder.vlan(7);
        }
        builder = if shape & 1 == 0 {
            builder.ipv4(a, b)
        } else {
            builder.ipv6(e, f)
        };
        let l4 = 14 + 4 * tags as u16 + if shape & 1 == 0 { 20 } else { 40 };
        builder = match shape / 2 {
            0 => builder.tcp(c, d, 0x10),
            1 => builder.udp(c, d),
            _ => builder.sctp(c, d),
        };
        let bytes = builder.payload(&payload).partial_checksum().bytes();
        let offload = Offload {
            partial_checksum: true,
            csum_start: l4,
            csum_offset: [16, 6, 8][usize::from(shape / 2)],
            ..Offload::default()
        };
        (bytes, offload)
    })
}

fn inners() -> impl Strategy<Value = (Vec<u8>, Offload)> {
    prop_oneof![
        packets().prop_map(|bytes| (bytes, Offload::default())),
        partial_frames(),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let cuts = proptest::collection::vec(any::<usize>(), 0..4);
    (specs(), per_packet(), options(), inners(), cuts).prop_map(
        |(spec, packet, options, (mut inner, mut offload), cuts)| {
            // A bare packet is the frame without its Ethernet header.
            if let Payload::Packet(eth_type) = spec.payload {
                inner.drain(..14);
                if inner.is_empty() {
                    inner.push(0);
                }
                if spec.kind == TunnelKind::Gtpu {
                    let version = if eth_type == 0x0800 { 0x40 } else { 0x60 };
                    inner[0] = version | inner[0] & 0x0f;
                }
                offload.csum_start = offload.csum_start.saturating_sub(14);
            }
            Case {
                spec,
                packet,
                options,
                inner,
                offload,
                cuts,
            }
        },
    )
}

/// Returns the frame with its pending checksum finished.
fn finished(frame: &HeapFrame) -> Vec<u8> {
    let mut frame = frame.clone();
    assert!(finish_partial(&mut frame));
    frame.to_vec()
}

/// Returns whether the checksums of IPv4 header, UDP and GRE, as far as there are any, are right.
fn is_right(case: &Case, bytes: &[u8]) -> bool {
    let l3 = if case.spec.vlan.is_some() { 18 } else { 14 };
    let (l4, addresses) = match case.spec.addresses {
        Addresses::V4 { .. } => {
            if checksum(&bytes[l3..l3 + 20]) != 0 {
                return false;
            }
            (l3 + 20, &bytes[l3 + 12..l3 + 20])
        }
        Addresses::V6 { .. } => (l3 + 40, &bytes[l3 + 8..l3 + 40]),
    };
    let body = &bytes[l4..];
    match case.spec.kind.ip_protocol() {
        47 => !case.spec.checksum || checksum(body) == 0,
        17 if body[6..8] == [0, 0] => !case.info().flags.contains(TunnelFlags::CSUM),
        protocol => {
            let length = (body.len() as u32).to_be_bytes();
            let all = [addresses, &length, &[0, 0, 0, protocol], body].concat();
            checksum(&all) == 0
        }
    }
}

/// Parses bytes as any kind, and checks that nothing extends beyond them and that the inner packet
/// lies within them.
fn parse_anything(bytes: &[u8], cuts: &[usize], offload: Offload) {
    for kind in TunnelKind::ALL {
        let mut frame = frame(bytes, cuts);
        frame.set_offload(offload);
        let Ok(found) = parse(&mut frame, kind) else {
            continue;
        };
        assert_eq!(frame.to_vec(), bytes);
        assert!(found.start <= found.end && found.end <= bytes.len());
        assert!(found.start <= frame.head().len());
        let options = found.options(&frame);
        assert!(options.bytes().len() <= GeneveOptions::MAX);
        assert!(options.bytes().is_empty() || kind == TunnelKind::Geneve);
        let offload = frame.offload();
        let result = decapsulate(&mut frame, &found);
        if let Err(reason) = result {
            let is_stt = kind == TunnelKind::Stt;
            assert!(reason == Reason::Congestion || is_stt && reason == Reason::Offload);
            assert_eq!(frame.to_vec(), bytes);
            continue;
        }
        let inner = frame.to_vec();
        if kind == TunnelKind::Stt {
            // The outer packet's offload work is gone, and the inner one's is sound.
            let offload = frame.offload();
            assert!(!offload.partial_checksum || usize::from(offload.csum_start) < inner.len());
            let tag = inner.len() - (found.end - found.start);
            assert!(tag == 0 || tag == 4 && inner[12..14] == [0x81, 0]);
            continue;
        }
        assert_eq!(inner.len(), found.end - found.start);
        if found.info.tos & 3 != 3 {
            assert_eq!(inner, bytes[found.start..found.end]);
        }
        if found.start == 0 {
            assert_eq!(frame.offload(), offload);
        } else if frame.offload().partial_checksum {
            let start = usize::from(frame.offload().csum_start);
            assert_eq!(start + found.start, usize::from(offload.csum_start));
            assert!(start < inner.len());
        }
    }
}

fn offloads() -> impl Strategy<Value = Offload> {
    (any::<(bool, bool, bool)>(), 0..120u16, 0..20u16).prop_map(
        |((partial_checksum, checksum_valid, gso), csum_start, csum_offset)| Offload {
            partial_checksum,
            checksum_valid,
            csum_start,
            csum_offset,
            gso: if gso && csum_start < 8 {
                Gso::UdpL4
            } else {
                Gso::None
            },
            gso_size: 0,
        },
    )
}

proptest! {
    /// `parse_quick` finds the same as `parse`, and what it finds is removed as `decapsulate` does.
    #[test]
    fn the_quick_way_finds_the_same(case in cases()) {
        let header = Header::new(&case.spec).unwrap();
        let mut sent = frame(&case.inner, &case.cuts);
        let packet = PerPacket { options: case.options.options(), ..case.packet };
        prop_assume!(header.push(&mut sent, &packet).is_ok());
        for kind in TunnelKind::ALL {
            if let Some(quick) = parse_quick(&sent, kind) {
                let found = quick.decapsulated(&sent, kind);
                prop_assert_eq!(parse(&mut sent.clone(), kind), Ok(found));
                prop_assert_eq!(quick.options(&sent), found.options(&sent));
                let (mut by_quick, mut by_all) = (sent.clone(), sent.clone());
                let carried = match quick.is_congested() {
                    true => quick.carry_congestion(&mut by_quick),
                    false => Ok(()),
                };
                if carried.is_ok() {
                    quick.remove(&mut by_quick);
                }
                prop_assert_eq!(carried, decapsulate(&mut by_all, &found));
                prop_assert_eq!(by_quick, by_all);
            }
        }
        // It handles the most common kinds.
        let plain = HeaderSpec::new(TunnelKind::Vxlan { gbp: false }, Addresses::V4 { src: 1, dst: 2 });
        let mut common = HeapFrame::new(&[7; 64]);
        let packet = PerPacket { id: case.packet.id, tos: case.packet.tos, ..PerPacket::default() };
        prop_assert_eq!(Header::new(&plain).unwrap().push(&mut common, &packet), Ok(()));
        prop_assert!(parse_quick(&common, plain.kind).is_some());
        // With options, too.
        let geneve = HeaderSpec::new(TunnelKind::Geneve, Addresses::V4 { src: 1, dst: 2 });
        let mut common = HeapFrame::new(&[7; 64]);
        let packet = PerPacket { id: case.packet.id, options: case.options.options(), ..PerPacket::default() };
        let geneve = HeaderSpec { checksum: case.packet.id & 1 == 1, ..geneve };
        if Header::new(&geneve).unwrap().push(&mut common, &packet).is_ok() {
            let quick = parse_quick(&common, geneve.kind);
            prop_assert_eq!(quick.map(|quick| quick.options(&common)), Some(case.options.options()));
        }
    }
}

proptest! {
    /// `push_quick` writes the same header as `push`, or leaves the frame alone.
    #[test]
    fn the_quick_way_is_the_same(mut case in cases()) {
        case.packet.oam = false;
        (case.packet.gbp_id, case.packet.gbp_flags, case.packet.sequence) = (0, 0, 0);
        let header = Header::new(&case.spec).unwrap();
        let options = case.options.options();
        let packet = PerPacket { options, ..case.packet };
        let PerPacket { id, tos, ttl, hash, .. } = packet;
        let mut quick = frame(&case.inner, &case.cuts);
        let (before, mut slow) = (quick.clone(), quick.clone());
        if header.push_quick(&mut quick, id, tos, ttl, hash, options) {
            prop_assert_eq!(header.push(&mut slow, &packet), Ok(()));
            prop_assert_eq!(quick, slow);
        } else {
            prop_assert_eq!(quick, before);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(2000)))]

    #[test]
    fn encapsulated_packets_come_out_unchanged(
        case in cases(),
        padding in 0..20usize,
        cuts in proptest::collection::vec(any::<usize>(), 0..5),
    ) {
        let mut sent = case.frame();
        let inner = finished(&sent);
        Header::new(&case.spec).unwrap().push(&mut sent, &case.packet()).unwrap();

        let outer = finished(&sent);
        if case.spec.kind == TunnelKind::Stt {
            // The header says what is left to do, unless that is a checksum of SCTP.
            let (body, work) = match case.offload.csum_offset {
                8 => (inner.clone(), Offload { checksum_valid: true, ..Offload::default() }),
                _ => (case.inner.clone(), case.offload),
            };
            prop_assert_eq!(&outer, &reference::outer_stt(&case.spec, &case.packet, &body, work));
            prop_assert!(is_right(&case, &outer));
            let mut padded = outer.clone();
            padded.resize(outer.len() + padding, 0);
            for mut received in [sent, frame(&padded, &cuts)] {
                let found = parse(&mut received, case.spec.kind).unwrap();
                prop_assert_eq!(found.info, case.info());
                decapsulate(&mut received, &found).unwrap();
                prop_assert_eq!(received.to_vec(), &body[..]);
                prop_assert_eq!(received.offload(), work);
                prop_assert_eq!(finished(&received), &inner[..]);
            }
            return Ok(());
        }
        prop_assert_eq!(&outer, &reference::outer(&case.spec, &case.packet(), &inner));
        prop_assert!(is_right(&case, &outer));
        if sent.offload().partial_checksum {
            let by = sent.len() - case.inner.len();
            let start = usize::from(case.offload.csum_start) + by;
            prop_assert_eq!(usize::from(sent.offload().csum_start), start);
        } else {
            prop_assert_eq!(sent.to_vec(), &outer[..]);
        }

        // As it was sent, within this host.
        let left = sent.offload().partial_checksum;
        let found = parse(&mut sent, case.spec.kind).unwrap();
        prop_assert_eq!(found.info, case.info());
        decapsulate(&mut sent, &found).unwrap();
        prop_assert_eq!(finished(&sent), &inner[..]);
        prop_assert_eq!(sent.offload().partial_checksum, left);

        // As received from the wire: padded, in other segments.
        let mut padded = outer.clone();
        padded.resize(outer.len() + padding, 0);
        let mut received = frame(&padded, &cuts);
        let found = parse(&mut received, case.spec.kind).unwrap();
        prop_assert_eq!(found.info, case.info());
        prop_assert_eq!(found.payload, case.spec.payload);
        prop_assert_eq!(found.options(&received), case.packet().options);
        decapsulate(&mut received, &found).unwrap();
        prop_assert_eq!(received.to_vec(), inner);
        prop_assert_eq!(received.offload(), Offload::default());
    }

    #[test]
    fn a_changed_byte_under_a_checksum_is_noticed(
        mut case in cases(),
        place: usize,
        change in 1..=255u8,
    ) {
        if case.spec.kind == TunnelKind::Nvgre {
            case.spec.kind = TunnelKind::Vxlan { gbp: false };
        }
        case.spec.checksum = case.spec.kind != TunnelKind::Stt;
        let mut sent = case.frame();
        Header::new(&case.spec).unwrap().push(&mut sent, &case.packet()).unwrap();
        let mut bytes = finished(&sent);
        // Behind the checksum field, which could become 0 ("none").
        let l4 = bytes.len() - case.inner.len();
        bytes[l4 + place % case.inner.len()] ^= change;
        let result = parse(&mut frame(&bytes, &case.cuts), case.spec.kind);
        prop_assert_eq!(result.map(|_| ()), Err(Reason::Checksum));
    }

    #[test]
    fn broken_frames_are_borne(
        case in cases(),
        changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        right in any::<bool>(),
        length in proptest::option::of(any::<usize>()),
        offload in offloads(),
    ) {
        let mut bytes = reference::outer(&case.spec, &case.packet(), &case.inner);
        let headers = bytes.len() - case.inner.len() + 2;
        for (place, byte) in changes {
            let place = place % headers;
            bytes[place] = byte;
        }
        // So that more than the checksum is tested.
        let l3 = if case.spec.vlan.is_some() { 18 } else { 14 };
        if right && !case.spec.addresses.is_ipv6() {
            bytes[l3 + 10..l3 + 12].fill(0);
            let sum = checksum(&bytes[l3..l3 + 20]);
            bytes[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        if let Some(length) = length {
            bytes.truncate(length % (bytes.len() + 1));
        }
        let valid = Offload { checksum_valid: true, ..Offload::default() };
        for offload in [Offload::default(), valid, offload] {
            parse_anything(&bytes, &case.cuts, offload);
        }
    }

    #[test]
    fn any_bytes_are_borne(
        bytes in prop_oneof![proptest::collection::vec(any::<u8>(), 0..200), broken_packets()],
        cuts in proptest::collection::vec(any::<usize>(), 0..4),
        offload in offloads(),
    ) {
        parse_anything(&bytes, &cuts, offload);
    }
}
