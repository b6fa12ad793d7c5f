//! Compares every variant that the processor has with the portable one, and that with the parser,
//! on common, unusual and broken packets.

use super::*;
use crate::HeapFrame;
use crate::build::Builder;
use crate::io::Lengths;
use crate::parse::tests::packets;
use crate::parse::{MoreWords, PACKET_WORDS};
use crate::{FlowKey, Layers, WordSet};
use proptest::prelude::*;

/// Mostly the common kinds: UDP and TCP over IPv4 and IPv6, ICMPv6 and ARP, tagged or not.
fn common() -> impl Strategy<Value = Vec<u8>> {
    let numbers = any::<(u32, u32, u16, u16, u16, u8)>();
    (numbers, any::<bool>(), 0..12_u8, 0..70_usize, 0..20_usize).prop_map(
        |((a, b, c, d, e, f), tagged, kind, payload, padding)| {
            let mut builder = Builder::ethernet([2, f, 0, 0, 0, 1], [2, 0, 0, f, 0, 2]);
            if tagged {
                builder = builder.tag(0x8100, e);
            }
            builder = match kind {
                0..=7 => builder.ipv4(a, b).with_ipv4(|ip| ip.set_tos(f)),
                8..=10 => builder.ipv6([f; 16], [c as u8; 16]).with_ipv6(|ip| {
                    ip.set_flow(6 << 28 | u32::from(f) << 20 | a >> 12);
                }),
                _ => {
                    let builder = builder.arp(c % 300, [f; 6], a, [5; 6], b);
                    return builder.padding(padding).bytes();
                }
            };
            builder = match kind {
                10 => builder.icmpv6(f, e as u8 % 2, a),
                _ if kind.is_multiple_of(2) => builder.tcp(c, d, e),
                _ => builder.udp(c, d),
            };
            builder.payload(&vec![1; payload]).padding(padding).bytes()
        },
    )
}

/// Packets of which some have a few bytes changed or are cut short.
fn frames() -> impl Strategy<Value = Vec<HeapFrame>> {
    let kind = prop_oneof![4 => common().boxed(), 1 => packets().boxed()];
    let changes = prop_oneof![
        3 => Just(Vec::new()).boxed(),
        1 => proptest::collection::vec((0..60_usize, any::<u8>()), 1..3).boxed(),
    ];
    let cut = prop_oneof![3 => Just(usize::MAX), 1 => 0..80_usize];
    let one = (kind, changes, cut, any::<bool>()).prop_map(|(mut bytes, changes, cut, split)| {
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        bytes.truncate(cut);
        let middle = if split { bytes.len() / 2 } else { bytes.len() };
        HeapFrame::with_segments(&[&bytes[..middle], &bytes[middle..]])
    });
    proptest::collection::vec(one, 0..8)
}

/// Packets of TCP and UDP, alternating, tagged or not; some have an invalid length, protocol or
/// data offset.
fn in_turns() -> impl Strategy<Value = Vec<HeapFrame>> {
    let broken = prop_oneof![
        24 => Just(None),
        1 => (prop_oneof![Just(16_usize), Just(17), Just(23), Just(46)], any::<u8>()).prop_map(Some),
        1 => (14..50_usize, any::<u8>()).prop_map(Some),
    ];
    let one = (
        any::<(u32, u16, u16, u8)>(),
        any::<bool>(),
        12..32_usize,
        broken,
    );
    let tagged = prop_oneof![Just([false; 2]), Just([true; 2]), Just([false, true])];
    (tagged, proptest::collection::vec(one, 2..24)).prop_map(|(tagged, packets)| {
        let packets = packets.into_iter().enumerate();
        let frames = packets.map(|(index, ((a, b, c, f), tcp, payload, broken))| {
            let mut builder = Builder::ethernet([2, f, 0, 0, 0, 1], [2, 0, 0, f, 0, 2]);
            let tagged = tagged[index / 8 % 2];
            if tagged {
                builder = builder.tag(0x8100, b);
            }
            builder = builder.ipv4(a, !a).with_ipv4(|ip| ip.set_tos(f));
            builder = if tcp {
                builder.tcp(b, c, c)
            } else {
                builder.udp(b, c)
            };
            let mut bytes = builder.payload(&vec![f; payload]).bytes();
            if let Some((at, byte)) = broken {
                let place = bytes.get_mut(at + if tagged { 4 } else { 0 });
                place.into_iter().for_each(|place| *place = byte);
            }
            HeapFrame::with_segments(&[&bytes])
        });
        frames.collect()
    })
}

fn patterns() -> impl Strategy<Value = Vec<Pattern>> {
    let bits = prop_oneof![
        Just((2_u8, 0xff_u64 << 32, 17_u64 << 32)),
        Just((2, 0xff << 32, 6 << 32)),
        Just((0, u64::from(u16::MAX) << 32, 0x0008 << 32)),
        (0..5_u8, any::<u64>(), any::<u64>()).prop_map(|(word, a, b)| (word, a & b & (a >> 7), 0)),
        (0..5_u8, any::<u64>(), any::<u64>()),
    ];
    let one = proptest::collection::vec(bits, 0..3)
        .prop_map(|words| Pattern::of(words).expect("mini keys only"));
    proptest::collection::vec(one, 0..5)
}

/// A pattern made from some bits of some fields of a generated packet, of which one may be changed.
#[derive(Debug)]
struct Model {
    packet: usize,
    fields: Vec<(u8, u64)>,
    other: Option<(u8, u64)>,
}

fn models() -> impl Strategy<Value = Vec<Model>> {
    let bytes = |from: usize, len: usize| {
        let (mut mask, at) = ([0; 8], from % 8);
        mask[at..at + len].fill(0xff);
        Just(((from / 8) as u8, u64::from_ne_bytes(mask)))
    };
    let field = prop_oneof![
        bytes(at::IN_PORT, 4),
        bytes(at::ETH_TYPE, 2),
        bytes(at::VLAN_TCI, 2),
        bytes(at::IPV4_SRC, 4),
        bytes(at::IPV4_DST, 3),
        bytes(at::TP_SRC, 2),
        bytes(at::TP_DST, 2),
        bytes(at::IP_PROTO, 1),
        bytes(at::IP_TOS, 1),
        bytes(at::IP_TTL, 1),
        bytes(at::IP_FRAG, 1),
        bytes(at::ETH_DST, 6),
        bytes(at::ETH_SRC, 6),
        bytes(at::TCP_FLAGS, 2),
        (0..5_u8, any::<u64>()),
    ];
    let one_bit = (0..5_u8, 0..64_u32).prop_map(|(word, bit)| (word, 1 << bit));
    let fields = proptest::collection::vec(field, 0..5);
    let one = (0..8_usize, fields, proptest::option::weighted(0.3, one_bit));
    let one = one.prop_map(|(packet, fields, other)| Model {
        packet,
        fields,
        other,
    });
    proptest::collection::vec(one, 0..4)
}

impl Model {
    fn of(&self, packets: &[MiniKey]) -> Pattern {
        let any = MiniKey::ZERO;
        let hot = packets
            .get(self.packet % packets.len().max(1))
            .unwrap_or(&any);
        let mut words = hot.words;
        let other = self.other.into_iter();
        other
            .clone()
            .for_each(|(word, bit)| words[usize::from(word)] ^= bit);
        let all = self.fields.iter().copied().chain(other);
        Pattern::of(all.map(|(word, mask)| (word, mask, words[usize::from(word)])))
            .expect("mini keys only")
    }
}

/// Groups consecutive packets with the same first pattern.
fn runs_of(frames: &[HeapFrame], found: &[u8]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (frame, found) in frames.iter().zip(found) {
        if runs.last().is_none_or(|last| last.found != *found) {
            runs.push(Run {
                found: *found,
                ..Run::default()
            });
        }
        let last = runs.last_mut().expect("one has been pushed");
        last.packets += 1;
        last.bytes += frame.len() as u64;
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(20_000)))]
    #[test]
    fn all_variants_read_the_same(frames in frames(), patterns in patterns(), port: u32) {
        let (mut theirs, mut wanted) = ([MiniKey::ZERO; 8], [0; 8]);
        let known = portable(&frames, port, &patterns, &mut theirs, &mut wanted);
        for variant in Variant::ALL.into_iter().filter(|variant| variant.is_there()) {
            let (mut ours, mut found) = ([MiniKey::ZERO; 8], [0; 8]);
            let read = read_burst_by(variant, &frames, port, &patterns, &mut ours, &mut found);
            prop_assert_eq!(read, known, "{}", variant);
            prop_assert_eq!(&ours[..read.count], &theirs[..read.count], "{}", variant);
            prop_assert_eq!(&found[..read.count], &wanted[..read.count], "{}", variant);
        }
    }

    #[test]
    fn all_variants_read_tcp_and_udp_in_turns(frames in in_turns(), patterns in patterns(), port: u32) {
        const MOST: usize = 24;
        let (mut theirs, mut wanted) = ([MiniKey::ZERO; MOST], [0; MOST]);
        let known = portable(&frames, port, &patterns, &mut theirs, &mut wanted);
        for variant in Variant::ALL.into_iter().filter(|variant| variant.is_there()) {
            let (mut ours, mut found) = ([MiniKey::ZERO; MOST], [0; MOST]);
            let read = read_burst_by(variant, &frames, port, &patterns, &mut ours, &mut found);
            prop_assert_eq!(read, known, "{}", variant);
            prop_assert_eq!(&ours[..read.count], &theirs[..read.count], "{}", variant);
            prop_assert_eq!(&found[..read.count], &wanted[..read.count], "{}", variant);
        }
    }

    #[test]
    fn sorting_finds_what_reading_finds(
        frames in frames(),
        patterns in patterns(),
        models in models(),
        port in 1..3_u32,
    ) {
        let (mut hot, mut wanted) = ([MiniKey::ZERO; 8], [0; 8]);
        let known = portable(&frames, port, &[], &mut hot, &mut wanted);
        let mut all: Vec<Pattern> = models.iter().map(|model| model.of(&hot[..known.count])).collect();
        all.extend(patterns);
        let known = portable(&frames, port, &all, &mut hot, &mut wanted);
        let sorting = RawPrefilter::new(&all).expect("few");
        let mut runs = vec![Run::default()];
        for variant in Variant::ALL.into_iter().filter(|variant| variant.is_there()) {
            let (read, lengths) = sort_burst_by(variant, &frames, port, &sorting, &mut runs);
            prop_assert_eq!(read, known, "{}", variant);
            let mut these = Lengths::default();
            frames[..known.count].iter().for_each(|frame| these.add(frame.len()));
            prop_assert_eq!(lengths, these, "{}", variant);
            prop_assert_eq!(&runs, &runs_of(&frames[..known.count], &wanted), "{}", variant);
        }
    }

    #[test]
    fn mini_keys_and_more_words_are_all_that_the_parser_reads(frames in frames(), port: u32) {
        for frame in frames {
            let mut hot = [0; MINI_KEY_WORDS];
            let Some(extent) = parse::mini_key(frame.head(), frame.len(), port, &mut hot) else {
                continue;
            };
            let mut read = FlowKey::ZERO;
            read.words[..MINI_KEY_WORDS].copy_from_slice(&hot);
            let more = MoreWords::of(frame.head(), extent);
            more.fill(&mut read);
            let mut key = FlowKey::ZERO;
            let bytes = frame.to_vec();
            let layers = parse::with_limit(&bytes, port, PACKET_WORDS, &mut key, 1);
            prop_assert_eq!(read, key);
            prop_assert_eq!(extent.layers(), layers);
            for word in WordSet(u64::MAX).minus(WordSet::MINI_KEY).iter() {
                prop_assert_eq!(more.word(word), key.words[word]);
            }
            if extent.is_ipv4() {
                prop_assert_eq!(more, MoreWords::ZERO);
            }
        }
    }
}

/// Common kinds are read, tagged or not, with the right offsets of their layers; others are not.
#[test]
fn these_kinds_are_common_and_those_are_not() {
    let ethernet = |tagged| {
        let builder = Builder::ethernet([2; 6], [4; 6]);
        if tagged { builder.vlan(5) } else { builder }
    };
    let read = |builder: &Builder| {
        let (frame, mut words) = (builder.frame(), [0; MINI_KEY_WORDS]);
        parse::mini_key(frame.head(), frame.len(), 1, &mut words).map(Extent::layers)
    };
    for tagged in [false, true] {
        let ipv6 = || ethernet(tagged).ipv6([1; 16], [2; 16]);
        let l3 = 14 + if tagged { 4 } else { 0 };
        let layers = |l4, len: u16| {
            Some(Layers {
                l3,
                l4,
                end: u32::from(l3 + len),
                transport: l4 != 0,
                vlans: tagged.into(),
                malformed: None,
            })
        };
        assert_eq!(read(&ipv6().udp(1, 2)), layers(l3 + 40, 48));
        assert_eq!(read(&ipv6().tcp(1, 2, 2)), layers(l3 + 40, 60));
        assert_eq!(read(&ipv6().icmpv6(128, 0, 1)), layers(l3 + 40, 48));
        let arp = ethernet(tagged).arp(1, [4; 6], 1, [0; 6], 2).padding(18);
        assert_eq!(read(&arp), layers(0, 46));
        assert_eq!(read(&ipv6().neighbour(135, [1; 16], &[])), None);
        assert_eq!(read(&ipv6().extension(60, &[0; 7]).udp(1, 2)), None);
        assert_eq!(read(&ipv6().sctp(1, 2)), None);
    }
    let large = |payload: usize| {
        let mut bytes = ethernet(false)
            .ipv6([1; 16], [2; 16])
            .udp(1, 2)
            .payload(&vec![0; payload])
            .bytes();
        bytes.truncate(14 + 40 + 8 + payload);
        let mut words = [0; MINI_KEY_WORDS];
        parse::mini_key(&bytes, bytes.len(), 1, &mut words).is_some()
    };
    // The IP packet's length must fit 16 bits.
    assert!(large(0xffff - 48));
    assert!(!large(0xffff - 47));
}

#[test]
fn patterns_know_mini_keys_only() {
    assert!(Pattern::of([(4, 1, 1)]).is_some());
    assert!(Pattern::of([(5, 1, 1)]).is_none());
}
