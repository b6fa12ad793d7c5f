//! Compares the ranks found by each variant with rules compared one after the other.

use super::*;
use crate::Program;
use crate::actions::{Op, OpList};
use crate::classifier::Classifier;
use crate::counters::CounterId;
use crate::rule::RuleSpec;
use crate::table::Bridge;
use crate::table::BridgeWriter;
use packet::key::at;
use packet::{Field, Match};
use proptest::prelude::*;
use std::sync::Arc;

/// Words that rules may look at; each with one of the masks in [`MASKS`].
const WORDS: [u8; 6] = [1, 2, 3, 6, 9, 63];
const MASKS: [u64; 6] = [
    0,
    u64::MAX,
    0xff00_0000_0000_0000,
    0xffff_0000_f000_0000,
    0x0000_0000_ffff_ff00,
    0x00ff,
];

/// Returns values that often agree in many of their bits.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0_u32..64, 0_u64..4).prop_map(|(shift, bits)| bits << shift)
    ]
}

/// A rule's precedence, the index of each word's mask, and its values.
type OneRule = (u32, [usize; WORDS.len()], [u64; WORDS.len()]);

fn rule() -> impl Strategy<Value = OneRule> {
    (
        0_u32..50,
        prop::array::uniform(0..MASKS.len()),
        prop::array::uniform(value()),
    )
}

fn matching(words: usize, alike: bool, (_, masks, values): &OneRule) -> Match {
    let mut matching = Match::any();
    for slot in 0..words {
        let mask = MASKS[masks[slot]];
        matching.set_word(
            usize::from(WORDS[slot]),
            (values[slot] & mask).to_be(),
            mask.to_be(),
        );
    }
    if alike {
        matching.set_word(0, 5, 7);
    }
    matching
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn all_variants_find_the_first_rule_that_matches(
        words in 1..=WORDS.len(),
        alike: bool,
        last in prop::option::of(0_u32..50),
        rules in prop::collection::vec(rule(), 16..400),
        packets in prop::collection::vec((any::<usize>(), prop::array::uniform::<_, 6>(value())), 1..=LOOKUP_MAX),
    ) {
        let mut all: Vec<(Match, u32)> = (rules.iter())
            .map(|rule| (matching(words, alike, rule), rule.0))
            .collect();
        all.extend(last.map(|priority| (Match::any(), priority)));
        let keys: Vec<FlowKey> = packets.iter().map(|(number, noise)| {
            let mut key = FlowKey::ZERO;
            let (_, masks, values) = &rules[number % rules.len()];
            for slot in 0..WORDS.len() {
                let mask = MASKS[masks[slot]];
                key.words[usize::from(WORDS[slot])] = (values[slot] & mask | noise[slot] & !mask).to_be();
            }
            key.words[0] = if number % 16 == 0 { 4 } else { 13 };
            key
        }).collect();
        compare(&all, &keys);
    }
}

/// An access list: all of its rules are in trees.
#[test]
fn rules_over_two_addresses_are_found_by_all_variants() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let masks: Vec<[u64; 2]> = (0..30)
        .map(|_| {
            let [source, destination] = [(); 2].map(|()| u64::from(u32::MAX << (next() % 25)));
            [
                source << 32 | destination,
                next() & 0xffff_ff00_0000_0000 | 0xff << 40,
            ]
        })
        .collect();
    let mut rules = Vec::new();
    let mut keys = Vec::new();
    for number in 0..1000 {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        let mut key = FlowKey::ZERO;
        key.set_u16(at::ETH_TYPE, 0x0800);
        for (slot, mask) in masks[number % masks.len()].iter().enumerate() {
            let value = next();
            matching.set_word(1 + slot, value.to_be(), mask.to_be());
            key.words[1 + slot] = (value & mask | next() & !mask).to_be();
        }
        rules.push((matching, 10 + number as u32));
        keys.push(key);
    }
    rules.push((Match::any(), 1));
    // One that meets none but the last.
    keys.push(FlowKey::ZERO);
    for keys in keys.chunks(LOOKUP_MAX) {
        assert_eq!(compare(&rules, keys), Some(true));
    }
}

/// Returns value and mask of each block of ports that a range consists of.
fn blocks(mut from: u32, until: u32) -> Vec<(u32, u32)> {
    let mut blocks = Vec::new();
    while from < until {
        let mut size = 1 << from.trailing_zeros().min(15);
        while from + size > until {
            size /= 2;
        }
        blocks.push((from, 0xffff & !(size - 1)));
        from += size;
    }
    blocks
}

/// Returns rules as an access list of ClassBench's has them, and packets that meet them: filters of
/// two prefixes, or of one, and of ranges of ports, each of which is several rules with masks of
/// their own; some share their addresses.
fn filters(count: u32) -> (Vec<(Match, u32)>, Vec<FlowKey>) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |limit: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % limit
    };
    let mut addresses: Vec<[(u32, u32); 2]> = Vec::new();
    let (mut rules, mut keys) = (Vec::new(), Vec::new());
    for filter in 0..count {
        if filter == 0 || below(4) != 0 {
            let open = below(12);
            addresses.push([0, 1].map(|at| match open == at {
                true => (0, 0),
                false => {
                    let mask = u32::MAX << below(13);
                    (below(1 << 32) as u32 & mask, mask)
                }
            }));
        }
        let [source, destination] = addresses[below(addresses.len() as u64) as usize];
        let [from, to] = [4, 16].map(|most| {
            let mut ports = match below(3) {
                0 => vec![(0, 0)],
                1 => vec![(below(65_536) as u32, 0xffff)],
                _ => {
                    let (one, other) = (below(65_536) as u32, below(65_536) as u32);
                    blocks(one.min(other), one.max(other) + 1)
                }
            };
            ports.truncate(most);
            ports
        });
        for (from, to) in from
            .iter()
            .flat_map(|from| to.iter().map(move |to| (from, to)))
        {
            let mut matching = Match::any();
            matching.set_exact(Field::EthType, 0x0800);
            let mut key = FlowKey::ZERO;
            key.set_u16(at::ETH_TYPE, 0x0800);
            let ports = (from.0 << 16 | to.0, from.1 << 16 | to.1);
            let fields = [
                (at::IPV4_SRC, source),
                (at::IPV4_DST, destination),
                (at::TP_SRC, ports),
            ];
            for (offset, (value, mask)) in fields {
                matching.set_bytes(offset, &value.to_be_bytes(), &mask.to_be_bytes());
                key.set_u32(offset, value | below(1 << 32) as u32 & !mask);
            }
            rules.push((matching, 10 + count - filter));
            keys.push(key);
        }
    }
    (rules, keys)
}

#[test]
fn rules_of_ranges_of_ports_are_all_in_trees() {
    let (mut rules, keys) = filters(120);
    rules.push((Match::any(), 1));
    assert!(rules.len() > 1000, "{}", rules.len());
    for keys in keys.chunks(LOOKUP_MAX).step_by(10) {
        assert_eq!(compare(&rules, keys), Some(true));
    }
}

/// Compares what each variant finds with rules compared one after the other; returns whether the
/// trees hold all rules, if there are trees.
fn compare(rules: &[(Match, u32)], keys: &[FlowKey]) -> Option<bool> {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    for (matching, priority) in rules {
        let spec = RuleSpec {
            matching: matching.clone(),
            priority: *priority,
            ops: Arc::new(OpList::new(vec![Op::Output(2)])),
            counter: CounterId(0),
            cookie: 0,
        };
        writer.insert(0, spec);
    }
    writer.shape_now();
    writer.commit();
    program.domain.publish();
    let mut reader = program.domain.reader().unwrap();
    let guard = reader.begin();
    let Some(Classifier::Trees(shape)) = bridge.classifier(0, &guard) else {
        return None;
    };
    let trees = &shape.trees;
    let expected: Vec<u32> = keys
        .iter()
        .map(|key| {
            let rank = trees.places.iter().position(|place| {
                let rule = place.get(Ordering::Relaxed).0;
                // SAFETY: no rule has been removed.
                unsafe { rule.as_ref() }.is_some_and(|rule| rule.spec.matching.matches(key))
            });
            rank.map_or(NONE, |rank| rank as u32)
        })
        .collect();
    let mut portable = Vec::new();
    for variant in Variant::ALL
        .into_iter()
        .filter(|variant| variant.is_there())
    {
        let mut ranks = vec![0; keys.len()];
        // SAFETY: the processor has the variant.
        unsafe { trees.find_ranks(variant, &|index| &keys[index], &mut ranks) };
        // Rules that are not in trees are looked up in tuples.
        if shape.beside.is_empty() {
            assert_eq!(&ranks, &expected, "{}", variant);
        }
        if variant == Variant::Portable {
            portable = ranks;
        } else {
            assert_eq!(&ranks, &portable, "{}", variant);
        }
    }
    Some(shape.beside.is_empty())
}
