//! Compares sets with lists of their members, and lookups of sets in a table of one tuple with
//! those of whole keys.

use super::*;
use crate::Program;
use crate::actions::{Op, OpList};
use crate::burst::{Members, One};
use crate::rule::RuleSpec;
use crate::secret::Secret;
use crate::table::Bridge;
use crate::table::BridgeWriter;
use packet::build::Builder;
use packet::mini_key::MiniKey;
use packet::mini_key::NO_PATTERN;
use packet::{Field, FlowKey, HeapFrame, Layers, Match};
use proptest::prelude::*;
use std::collections::HashSet;
use std::sync::Arc;

fn sets() -> impl Strategy<Value = u64> {
    let run = (0..64_u32, 1..=64_u32)
        .prop_map(|(first, count)| (u64::MAX >> (64 - count)).wrapping_shl(first));
    let one = (0..64_u32).prop_map(|lane| 1 << lane);
    prop_oneof![any::<u64>(), run, one, Just(0)]
}

/// Returns a match of this many words, which differs from others in most of them.
fn matching(words: usize, value: u32) -> Match {
    let mut matching = Match::any();
    if words == 1 || words == 4 {
        matching.set_exact(Field::EthDst, value.into());
    }
    if words > 1 {
        matching.set_exact(Field::EthType, 0x0800);
        matching.set_exact(Field::Ipv4Src, value.into());
    }
    if words > 2 {
        matching.set_exact(Field::IpProto, 17);
        matching.set_exact(Field::UdpDst, value.into());
    }
    assert_eq!(matching.words().len(), words);
    matching
}

fn frame((source, port): (u32, u32)) -> HeapFrame {
    let [_, _, _, last] = source.to_be_bytes();
    let builder = Builder::ethernet([2, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, last]);
    let builder = builder.ipv4(source, 9).udp(5, port as u16);
    builder.payload(&[0; 32]).frame()
}

proptest! {
    #[test]
    fn sets_show_their_members(bits in sets()) {
        let set = LaneSet(bits);
        let wanted: Vec<usize> = (0..64).filter(|lane| bits >> lane & 1 == 1).collect();
        let mut all: [usize; LOOKUP_MAX] = std::array::from_fn(|lane| lane);
        let folded = set.fold(&all, Vec::new(), |mut shown, lane| {
            shown.push(*lane);
            shown
        });
        let (mut over, mut each) = (Vec::new(), Vec::new());
        set.over(&mut all, |lane| over.push(*lane));
        set.each(|lane| each.push(lane));
        prop_assert_eq!(&folded, &wanted);
        prop_assert_eq!(&over, &wanted);
        prop_assert_eq!(&each, &wanted);
        let only = if let [one] = wanted[..] { Some(one) } else { None };
        prop_assert_eq!(set.only().map(One::place), only);
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), wanted);
        let ports = std::array::from_fn(|lane| (bits.rotate_left(23) >> lane & 3) as u32);
        for port in 0..4 {
            prop_assert_eq!(set.those_with(&ports, port), set.those(|lane| ports[lane] == port));
        }
    }

    #[test]
    fn one_tuple_is_looked_up_by_sets_as_by_keys(
        words in 1_usize..5,
        rules in prop::collection::vec((0_u32..24, 0_u32..3, 0_u8..4), 20..60),
        packets in prop::collection::vec((0_u32..32, prop_oneof![Just(None), (0_u32..32).prop_map(Some)]), 1..=LOOKUP_MAX),
        bits in any::<u64>(),
    ) {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        let mut reader = program.domain.reader().unwrap();
        let (mut seen, mut gone) = (HashSet::new(), Vec::new());
        for (value, priority, verdict) in rules {
            if !seen.insert((value, priority)) {
                continue;
            }
            let rule = writer.insert(0, RuleSpec {
                matching: matching(words, value),
                priority,
                ops: Arc::new(OpList::new(vec![Op::Output(2)])),
                counter: program.counters.allocate().unwrap(),
                cookie: 0,
            });
            if verdict == 0 {
                gone.push(rule);
            }
        }
        writer.commit();
        program.domain.publish();
        // They stay in their chains, but do not hold any more.
        for rule in gone {
            writer.remove(0, rule);
        }
        program.domain.publish();
        let guard = reader.begin();
        let mut frames: Vec<HeapFrame> = packets.iter().map(|(source, port)| frame((*source, port.unwrap_or(*source)))).collect();
        let (mut hot, mut first) = ([MiniKey::ZERO; LOOKUP_MAX], [NO_PATTERN; LOOKUP_MAX]);
        packet::mini_key::read_burst(&frames, 1, &[], &mut hot, &mut first);
        let all = LaneSet::run(0, frames.len());
        let address = |rule: &Rule| std::ptr::from_ref(rule);
        for set in [all, LaneSet(all.0 & bits)] {
            if set.is_empty() {
                continue;
            }
            let mut found = Found::new();
            prop_assert!(bridge.lookup_lanes(0, set, &hot, &guard, &mut found));
            let mut rest = set;
            for (rule, met) in found.list() {
                prop_assert!(!met.is_empty() && rest.minus(*met).union(*met) == rest);
                rest = rest.minus(*met);
                for lane in met.iter() {
                    let (mut key, mut layers) = (FlowKey::ZERO, Layers::default());
                    packet::parse::parse_frame_into(&mut frames[lane], 1, bridge.needed(), &mut key, &mut layers);
                    let wanted = bridge.lookup(0, &key, &guard);
                    prop_assert_eq!(rule.map(address), wanted.map(address));
                }
            }
            prop_assert!(rest.is_empty());
        }
    }
}

/// Returns two Ethernet addresses whose hashes have the same tag and lead to the same slot of any
/// table of up to 4096.
fn alike_by_hash() -> [u64; 2] {
    let address = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xffff_ffff_ffff;
    let mut seen = std::collections::HashMap::new();
    for number in 1..1 << 20 {
        let [word] = station(address(number)).words()[..] else {
            panic!("one word");
        };
        let hash = Secret::draw(0).hash([word.value]);
        if let Some(other) = seen.insert((hash >> 48, hash & 0xfff), number) {
            return [other, number].map(address);
        }
    }
    panic!("2^28 ways, and 2^39 pairs");
}

fn station(address: u64) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::EthDst, address.into());
    matching
}

/// The slot that is read first then leads to the other address's rule.
#[test]
fn a_tag_is_not_taken_for_the_values() {
    let [one, other] = alike_by_hash();
    for (first, second) in [(one, Some(other)), (other, Some(one)), (one, None)] {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        let mut reader = program.domain.reader().unwrap();
        // Enough rules for a tuple.
        for address in [Some(first), second].into_iter().flatten().chain(1..30) {
            writer.insert(
                0,
                RuleSpec {
                    matching: station(address),
                    priority: 1,
                    ops: Arc::new(OpList::new(vec![Op::Output(2)])),
                    counter: program.counters.allocate().unwrap(),
                    cookie: 0,
                },
            );
        }
        writer.commit();
        program.domain.publish();
        let guard = reader.begin();
        let frames = [one, other].map(|address| {
            let [_, _, address @ ..] = address.to_be_bytes();
            let builder = Builder::ethernet(address, [2, 0, 0, 0, 0, 1]);
            builder.ipv4(1, 2).udp(3, 4).payload(&[0; 32]).frame()
        });
        let (mut hot, mut patterns) = ([MiniKey::ZERO; LOOKUP_MAX], [NO_PATTERN; LOOKUP_MAX]);
        packet::mini_key::read_burst(&frames, 1, &[], &mut hot, &mut patterns);
        let mut found = Found::new();
        let both = LaneSet::run(0, 2);
        assert!(bridge.lookup_lanes(0, both, &hot, &guard, &mut found));
        let mut met = [const { None }; 2];
        for (rule, lanes) in found.list() {
            lanes.each(|lane| met[lane] = rule.map(|rule| rule.spec.matching.clone()));
        }
        let wanted = [one, other]
            .map(|address| (address == first || Some(address) == second).then(|| station(address)));
        assert_eq!(met, wanted);
    }
}
