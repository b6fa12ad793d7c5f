//! Compares the parser with a reference that reads headers through their views, on valid, unusual
//! and broken packets.

use super::reference;
use super::*;
use crate::build::Builder;
use crate::frame::HeapFrame;
use crate::key::at;
use proptest::prelude::*;

/// Valid packets of every kind that is parsed.
pub fn packets() -> impl Strategy<Value = Vec<u8>> {
    let tags = proptest::collection::vec(
        (prop_oneof![Just(0x8100u16), Just(0x88a8)], any::<u16>()),
        0..4,
    );
    let network = 0..13u8;
    let transport = 0..9u8;
    let numbers = any::<(u32, u32, u16, u16, [u8; 16], [u8; 16])>();
    let small = (0..8u8, any::<u8>(), any::<bool>(), 0..40usize, 0..30usize);
    let options =
        proptest::collection::vec((0..4u8, prop_oneof![Just([0; 6]), any::<[u8; 6]>()]), 0..4);
    let chain = proptest::collection::vec(
        (
            prop_oneof![Just(0u8), Just(43), Just(44), Just(51), Just(60)],
            0..3u8,
        ),
        0..4,
    );
    (tags, network, transport, numbers, small, options, chain).prop_map(
        |(
            tags,
            network,
            transport,
            (a, b, c, d, e, f),
            (small, octet, snap, payload, padding),
            options,
            chain,
        )| {
            let mut builder = Builder::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
            for (tpid, tci) in tags {
                builder = builder.tag(tpid, tci);
            }
            if snap && small == 0 {
                builder = builder.snap();
            }
            builder = match network {
                0..=4 => {
                    let fragment = [0, 0x4000, 0, 0, 0x2000, 1, 0x2010, 0x8000][usize::from(small)];
                    let options = vec![1; usize::from(octet % 3) * 4];
                    let builder = builder.ipv4(a, b).ipv4_options(&options);
                    builder.with_ipv4(|ip| {
                        ip.set_fragment(fragment);
                        ip.set_tos(octet);
                    })
                }
                5..=8 => {
                    let mut builder = builder
                        .ipv6(e, f)
                        .with_ipv6(|ip| ip.set_flow(6 << 28 | a >> 4));
                    for (kind, units) in chain {
                        builder = match kind {
                            44 => builder.fragment(if small < 4 { 0 } else { c & 0x19 }),
                            51 => builder.extension(
                                51,
                                &[&[units * 2][..], &vec![0; 6 + 8 * usize::from(units)]].concat(),
                            ),
                            kind => builder.extension(
                                kind,
                                &[&[units][..], &vec![0; 6 + 8 * usize::from(units)]].concat(),
                            ),
                        };
                    }
                    builder
                }
                9 => {
                    return builder
                        .arp(c & 0x1ff, [3; 6], a, [4; 6], b)
                        .padding(padding)
                        .bytes();
                }
                10 => {
                    for label in 0..small {
                        let bottom = u32::from(label + 1 == small && octet < 200) << 8;
                        builder = builder.mpls(a & !0x100 | bottom | u32::from(label));
                    }
                    return builder.payload(&vec![octet; payload]).bytes();
                }
                11 => {
                    let builder = builder.pbb(a, [5; 6], [6; 6]);
                    let builder = if small < 4 {
                        builder.vlan(c & 0xfff)
                    } else {
                        builder
                    };
                    builder.ipv4(a, b)
                }
                _ => return builder.eth_type(c).payload(&vec![octet; payload]).bytes(),
            };
            builder = match transport {
                0 | 1 => builder.tcp(c, d, a as u16),
                2 | 3 => builder.udp(c, d),
                4 => builder.sctp(c, d),
                5 => builder.icmp(octet, small, a),
                6 => builder.icmpv6(octet, small, a),
                7 => builder.neighbour(135 + octet % 2, e, &options),
                _ => builder,
            };
            builder
                .payload(&vec![octet; payload])
                .padding(padding)
                .bytes()
        },
    )
}

/// The same packets with bytes changed, removed or added.
pub fn broken_packets() -> impl Strategy<Value = Vec<u8>> {
    let changes = proptest::collection::vec((0..120usize, any::<u8>()), 0..4);
    let length = prop_oneof![3 => Just(None), 2 => (0..150usize).prop_map(Some)];
    (packets(), changes, length).prop_map(|(mut bytes, changes, length)| {
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        if let Some(length) = length {
            bytes.resize(length.min(bytes.len() + 20), 0);
        }
        bytes
    })
}

/// Returns the words of the set with their numbers.
fn chosen(key: &FlowKey, words: WordSet) -> Vec<(usize, u64)> {
    words
        .iter()
        .map(|word| (word, key.words[word].to_be()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(4000)))]

    #[test]
    fn parser_and_reference_agree(
        bytes in broken_packets(),
        in_port: u32,
        others: u64,
        limit in 1..=2u8,
    ) {
        let needed = WordSet(others | 1 << 19 | 1 << 21);
        let (expected, expected_layers) = reference::parse(&bytes, in_port, limit);
        let mut key = FlowKey { words: [0x5555_5555_5555_5555; crate::key::WORDS] };
        let layers = general::extract(&bytes, bytes.len(), in_port, needed, &mut key, limit);
        let words = needed.union(WordSet::MINI_KEY);
        prop_assert_eq!(chosen(&key, words), chosen(&expected, words));
        prop_assert_eq!(layers, expected_layers);
        if limit == 1 {
            // The same through the common case.
            let mut key = FlowKey { words: [0xaaaa_aaaa_aaaa_aaaa; crate::key::WORDS] };
            let layers = parse(&bytes, bytes.len(), in_port, needed, &mut key);
            prop_assert_eq!(chosen(&key, words), chosen(&expected, words));
            prop_assert_eq!(layers, expected_layers);
        }
    }

    #[test]
    fn segments_make_no_difference(
        bytes in broken_packets(),
        cuts in proptest::collection::vec(0..100usize, 0..4),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let segments: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        let mut frame = HeapFrame::with_segments(&segments);
        let (expected, expected_layers) = reference::parse(&bytes, 1, 1);
        let mut key = FlowKey::ZERO;
        let layers = parse_frame(&mut frame, 1, PACKET_WORDS, &mut key);
        prop_assert_eq!(chosen(&key, PACKET_WORDS), chosen(&expected, PACKET_WORDS));
        prop_assert_eq!(layers, expected_layers);
    }

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200), total in 0..300usize) {
        let mut key = FlowKey::ZERO;
        let layers = parse(&bytes, total, 1, PACKET_WORDS, &mut key);
        prop_assert!(usize::from(layers.l3) <= total && usize::from(layers.l4) <= total);
        prop_assert!(layers.end as usize <= total);
    }
}

fn parsed(bytes: &[u8]) -> (FlowKey, Layers) {
    let mut key = FlowKey::ZERO;
    let layers = parse(bytes, bytes.len(), 7, PACKET_WORDS, &mut key);
    (key, layers)
}

fn udp() -> Builder {
    Builder::ethernet([1; 6], [2; 6])
        .vlan(5)
        .ipv4(0x0a00_0001, 0x0a00_0002)
        .udp(1000, 2000)
        .payload(&[9; 30])
}

#[test]
fn a_tagged_udp_packet() {
    let (key, layers) = parsed(&udp().padding(3).bytes());
    assert_eq!(
        layers,
        Layers {
            l3: 18,
            l4: 38,
            end: 76,
            transport: true,
            vlans: 1,
            malformed: None
        }
    );
    assert_eq!(key.u32(at::IN_PORT), 7);
    assert_eq!(key.u16(at::VLAN_TCI), 0x1005);
    assert_eq!(key.u16(at::ETH_TYPE), 0x0800);
    assert_eq!(key.bytes()[at::ETH_DST..at::ETH_DST + 6], [1; 6]);
    assert_eq!(key.bytes()[at::ETH_SRC..at::ETH_SRC + 6], [2; 6]);
    assert_eq!(
        (key.u32(at::IPV4_SRC), key.u32(at::IPV4_DST)),
        (0x0a00_0001, 0x0a00_0002)
    );
    assert_eq!((key.u16(at::TP_SRC), key.u16(at::TP_DST)), (1000, 2000));
    assert_eq!(
        (
            key.u8(at::IP_PROTO),
            key.u8(at::IP_TTL),
            key.u8(at::IP_FRAG)
        ),
        (17, 64, 0)
    );
}

#[test]
fn lies_have_their_reasons() {
    let mut bytes = udp().bytes();
    let reason = |bytes: &[u8]| parsed(bytes).1.malformed;
    assert_eq!(reason(&bytes), None);
    assert_eq!(reason(&bytes[..13]), Some(Malformed::Ethernet));
    assert_eq!(reason(&bytes[..17]), Some(Malformed::Vlan));
    assert_eq!(reason(&bytes[..37]), Some(Malformed::Ipv4Short));
    assert_eq!(reason(&bytes[..60]), Some(Malformed::Ipv4TotalLength));
    bytes[18] = 0x44;
    assert_eq!(reason(&bytes), Some(Malformed::Ipv4HeaderLength));
    bytes[18] = 0x45;
    bytes[21] = 27;
    assert_eq!(reason(&bytes), Some(Malformed::Transport));
    assert_eq!(parsed(&bytes).0.u16(at::TP_SRC), 0);
    bytes[21] = 19;
    assert_eq!(reason(&bytes), Some(Malformed::Ipv4TotalLength));
}

#[test]
fn headers_beyond_the_limit_are_not_reached() {
    let mut builder = Builder::ethernet([1; 6], [2; 6]).ipv6([1; 16], [2; 16]);
    for _ in 0..200 {
        builder = builder.extension(60, &[0; 7]);
    }
    let bytes = builder.udp(1, 2).bytes();
    assert_eq!(parsed(&bytes).1.malformed, Some(Malformed::Ipv6Extension));
    let mut frame = HeapFrame::with_segments(&[&bytes[..100], &bytes[100..]]);
    let layers = parse_frame(&mut frame, 1, PACKET_WORDS, &mut FlowKey::ZERO.clone());
    assert_eq!(layers.malformed, Some(Malformed::Ipv6Extension));
}

#[test]
fn payload_that_looks_like_a_long_neighbour_option_is_no_reason_to_drop() {
    // An option of 255 * 8 bytes reaches beyond the limit for headers, but not beyond the packet.
    let mut payload = vec![0; 4000];
    payload[..2].copy_from_slice(&[9, 255]);
    let bytes = Builder::ethernet([1; 6], [2; 6])
        .ipv6([1; 16], [2; 16])
        .neighbour(135, [7; 16], &[])
        .payload(&payload)
        .bytes();
    let (key, layers) = parsed(&bytes);
    assert_eq!(layers.malformed, None);
    assert_eq!(key.bytes()[at::ND_TARGET..at::ND_TARGET + 16], [7; 16]);
}

#[test]
fn a_tcp_data_offset_that_lies_leaves_no_transport_fields() {
    for (offset, sound) in [(0x40, false), (0x50, true), (0x60, false)] {
        let mut bytes = Builder::ethernet([1; 6], [2; 6])
            .ipv4(1, 2)
            .tcp(3, 4, 2)
            .bytes();
        bytes[14 + 20 + 12] = offset;
        let (key, layers) = parsed(&bytes);
        assert_eq!(layers.transport, sound, "{offset:#x}");
        assert_eq!(key.u16(at::TP_DST) == 4, sound);
    }
}

#[test]
fn reasons_are_named_apart() {
    let names: std::collections::HashSet<&str> =
        Malformed::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), Malformed::ALL.len());
    for (index, reason) in Malformed::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
    }
}

#[test]
fn a_burst_is_parsed_frame_by_frame() {
    let mut frames: Vec<HeapFrame> = (0..10).map(|vid| udp().vlan(vid).frame()).collect();
    frames[3] = HeapFrame::new(&[1, 2, 3]);
    let mut keys = [FlowKey::ZERO; 9];
    let mut layers = [Layers::default(); 16];
    assert_eq!(
        parse_burst(&mut frames, 4, WordSet::EMPTY, &mut keys, &mut layers),
        9
    );
    assert_eq!(layers[3].malformed, Some(Malformed::Ethernet));
    assert!(keys.iter().all(|key| key.u32(at::IN_PORT) == 4));
    assert!(layers[4..9].iter().all(|layers| layers.l4 == 38));
}
