//! What the processor at hand reads by against the portable reading, on packets that are common, odd and broken.

use super::*;
use crate::HeapFrame;
use crate::build::Builder;
use crate::parse::tests::packets;
use proptest::prelude::*;

/// Mostly the common case: UDP and TCP over IPv4, tagged or not.
fn common() -> impl Strategy<Value = Vec<u8>> {
    let numbers = any::<(u32, u32, u16, u16, u16, u8)>();
    (
        numbers,
        any::<bool>(),
        any::<bool>(),
        0..70_usize,
        0..20_usize,
    )
        .prop_map(|((a, b, c, d, e, f), tagged, tcp, payload, padding)| {
            let mut builder = Builder::ethernet([2, f, 0, 0, 0, 1], [2, 0, 0, f, 0, 2]);
            if tagged {
                builder = builder.tag(0x8100, e);
            }
            builder = builder.ipv4(a, b).with_ipv4(|ip| ip.set_tos(f));
            builder = match tcp {
                true => builder.tcp(c, d, e),
                false => builder.udp(c, d),
            };
            builder.payload(&vec![1; payload]).padding(padding).bytes()
        })
}

/// Packets with a few bytes that are other ones, cut short or not.
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

fn patterns() -> impl Strategy<Value = Vec<Pattern>> {
    let bits = prop_oneof![
        Just((2_u8, 0xff_u64 << 32, 17_u64 << 32)),
        Just((2, 0xff << 32, 6 << 32)),
        Just((0, u64::from(u16::MAX) << 32, 0x0008 << 32)),
        (0..5_u8, any::<u64>(), any::<u64>()).prop_map(|(word, a, b)| (word, a & b & (a >> 7), 0)),
        (0..5_u8, any::<u64>(), any::<u64>()),
    ];
    let one = proptest::collection::vec(bits, 0..3)
        .prop_map(|words| Pattern::of(words).expect("hot words only"));
    proptest::collection::vec(one, 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]
    #[test]
    fn read_as_by_the_portable_reading(frames in frames(), patterns in patterns(), port: u32) {
        let (mut ours, mut theirs) = ([HotWords::ZERO; 8], [HotWords::ZERO; 8]);
        let (mut found, mut wanted) = ([0; 8], [0; 8]);
        let read = read_burst(&frames, port, &patterns, &mut ours, &mut found);
        let known = portable(&frames, port, &patterns, &mut theirs, &mut wanted);
        prop_assert_eq!(read, known);
        prop_assert_eq!(&ours[..read.count], &theirs[..read.count]);
        prop_assert_eq!(&found[..read.count], &wanted[..read.count]);
    }
}

#[test]
fn patterns_know_hot_words_only() {
    assert!(Pattern::of([(4, 1, 1)]).is_some());
    assert!(Pattern::of([(5, 1, 1)]).is_none());
}
