//! Which tables give verdicts, and which ones. Without verdicts bursts would take other ways, which
//! could not be seen from what becomes of packets.

use super::*;
use crate::Program;
use crate::actions::{Op, OpList};
use crate::rule::RuleSpec;
use crate::rule::summary::CountedVerdict;
use crate::rule::summary::Verdict;
use crate::table::Bridge;
use crate::table::BridgeWriter;
use packet::key::at;
use packet::{Field, HeapFrame, Match, Value};
use std::sync::Arc;

/// What rules match.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Matched {
    /// Ethernet destinations: one word.
    Stations,
    /// Ethernet destinations and sources: two words.
    Pairs,
    /// IPv6 sources: one word beyond those of the mini key.
    Sources,
    /// Prefixes of sources, in tries.
    Ipv4Prefixes,
    Ipv6Prefixes,
}

/// Rules of each table; a trie needs this many prefixes.
const RULES: u32 = 300;

impl Matched {
    fn is_ipv6(self) -> bool {
        matches!(self, Matched::Sources | Matched::Ipv6Prefixes)
    }

    /// Returns the match of the rule with this number, and its precedence: longer prefixes within
    /// shorter ones are above these.
    fn matching(self, number: u32) -> (Match, u32) {
        let mut matching = Match::any();
        let kind = if self.is_ipv6() { 0x86dd } else { 0x0800 };
        matching.set_exact(Field::EthType, kind);
        let address = number.to_be_bytes();
        let from = 0xfd << 120 | u128::from(number);
        let shorter = number.trailing_zeros().min(3);
        match self {
            Matched::Stations | Matched::Pairs => {
                matching.set_bytes(at::ETH_DST + 2, &address, &[0xff; 4]);
                if self == Matched::Pairs {
                    matching.set_bytes(at::ETH_SRC + 2, &address, &[0xff; 4]);
                }
            }
            Matched::Sources => matching.set_exact(Field::Ipv6Src, from),
            Matched::Ipv4Prefixes => {
                let mask = u32::MAX << shorter;
                let address = (0x0a00_0000 | number) & mask;
                matching.set(Field::Ipv4Src, &address.to_be_bytes(), &mask.to_be_bytes());
            }
            Matched::Ipv6Prefixes => {
                let mask = u128::MAX << shorter;
                let address = from & mask;
                matching.set(Field::Ipv6Src, &address.to_be_bytes(), &mask.to_be_bytes());
            }
        }
        (matching, 10 - shorter)
    }

    /// Returns a packet that meets the rule with this number.
    fn frame(self, number: u32) -> HeapFrame {
        let address = number.to_be_bytes();
        let mut bytes = [&[2, 0][..], &address, &[2, 0], &address].concat();
        if self.is_ipv6() {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64, 0xfd]);
            bytes.extend([0; 11]);
            bytes.extend(address);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        } else {
            bytes.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
            bytes.extend((0x0a00_0000 | number).to_be_bytes());
            bytes.extend([10, 0, 0, 2]);
        }
        bytes.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        bytes.resize(bytes.len().max(60), 0);
        HeapFrame::new(&bytes)
    }
}

/// Returns what a rule does: one in three edits first, and one in sixteen does more than verdicts
/// can express.
fn ops(number: u32) -> Vec<Op> {
    let (field, value) = (Field::EthSrc, Value::from_u128(number.into(), 6));
    let mask = field.def().place();
    let set = Op::SetField { field, value, mask };
    match number {
        _ if does_more(number) => vec![Op::Output(1), Op::Output(2)],
        _ if number % 3 == 1 => vec![set, Op::Output(number)],
        _ => vec![Op::Output(number)],
    }
}

fn does_more(number: u32) -> bool {
    number % 16 == 5
}

/// Asks for the verdicts of packets in a table of such rules as bursts do, and checks that each is
/// that of its rule.
fn tells_verdicts(kind: Matched) {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let counters: Vec<CounterId> = (0..RULES)
        .map(|number| {
            let (matching, priority) = kind.matching(number);
            let counter = program.counters.allocate().unwrap();
            writer.insert(
                0,
                RuleSpec {
                    matching,
                    priority,
                    ops: Arc::new(OpList::new(ops(number))),
                    counter,
                    cookie: 0,
                },
            );
            counter
        })
        .collect();
    writer.commit();
    program.domain.publish();
    writer.shape_now();
    program.domain.publish();
    let description = writer.describe(0);
    let mut reader = program.domain.reader().unwrap();
    let guard = reader.begin();
    // As `Engine::front` does.
    let reads = if kind.is_ipv6() {
        Reads::Deep
    } else {
        Reads::MiniKey
    };
    assert_eq!(bridge.reads(0, &guard), reads);
    let mut without = 0;
    for first in (0..RULES).step_by(LOOKUP_MAX) {
        let numbers = first..RULES.min(first + LOOKUP_MAX as u32);
        let frames: Vec<HeapFrame> = numbers.clone().map(|number| kind.frame(number)).collect();
        let mut hot = [MiniKey::ZERO; LOOKUP_MAX];
        let mut gates = [NO_PATTERN; LOOKUP_MAX];
        let read = mini_key::read_burst(&frames, 1, &[], &mut hot, &mut gates);
        assert_eq!(read.count, frames.len(), "all are of the common kinds");
        let hot = &hot[..read.count];
        let more: Vec<MoreWords> = (hot.iter().zip(&frames))
            .map(|(hot, frame)| MoreWords::of(frame.head(), hot.extent))
            .collect();
        let keys = AllWords::of(hot, &more);
        let mut numbers_of_places = [0; LOOKUP_MAX];
        let verdicts = match reads {
            Reads::Deep => bridge.verdicts(0, &keys, reads, &guard, &mut numbers_of_places),
            _ => bridge.verdicts(0, hot, reads, &guard, &mut numbers_of_places),
        };
        let verdicts =
            verdicts.unwrap_or_else(|| panic!("no verdicts of {kind:?}: {description:?}"));
        for (index, number) in numbers.enumerate() {
            let verdict = match (&verdicts, kind) {
                (VerdictsBy::OneWord(by), Matched::Stations) => by.verdict(index, &hot[index]),
                (VerdictsBy::OneWord(by), Matched::Sources) => by.verdict(index, &keys[index]),
                (VerdictsBy::TwoWords(by), Matched::Pairs) => by.verdict(index, &hot[index]),
                (VerdictsBy::Routes(by), Matched::Ipv4Prefixes) => by.verdict(index, &hot[index]),
                (VerdictsBy::Routes(by), Matched::Ipv6Prefixes) => by.verdict(index, &keys[index]),
                _ => panic!("not the lookup for {kind:?}"),
            };
            if does_more(number) {
                assert!(verdict.is_none(), "{kind:?} {number}");
                continue;
            }
            let Some((counter, ends)) = verdict else {
                without += 1;
                continue;
            };
            assert_eq!(counter.0, counters[number as usize].0, "{kind:?} {number}");
            match ends {
                Verdict::Sends(port) => assert!(port == number && number % 3 != 1),
                Verdict::Edits(block) => {
                    assert!(block.port() == Some(number) && number % 3 == 1);
                }
            }
        }
    }
    // By chance the buckets of an exact table may have no room for a rule.
    let is_trie = matches!(kind, Matched::Ipv4Prefixes | Matched::Ipv6Prefixes);
    assert!(without <= if is_trie { 0 } else { 3 }, "{kind:?} {without}");
}

#[test]
fn stations_have_verdicts() {
    tells_verdicts(Matched::Stations);
}

#[test]
fn pairs_of_stations_have_verdicts() {
    tells_verdicts(Matched::Pairs);
}

#[test]
fn sources_of_ipv6_have_verdicts() {
    tells_verdicts(Matched::Sources);
}

#[test]
fn prefixes_of_ipv4_have_verdicts() {
    tells_verdicts(Matched::Ipv4Prefixes);
}

#[test]
fn prefixes_of_ipv6_have_verdicts() {
    tells_verdicts(Matched::Ipv6Prefixes);
}

#[test]
fn bursts_of_many_rules_go_by_verdicts_whatever_their_first_two_packets() {
    /// Rules of packets, by the numbers of the rules they have met.
    struct Numbers<'a>(&'a [u32]);
    impl<'g> Verdicts<'g> for Numbers<'_> {
        fn differ<K: Words>(&self, (one, _): (usize, &K), (other, _): (usize, &K)) -> bool {
            self.0[one] != self.0[other]
        }
        fn verdict<K: Words>(&self, _: usize, _: &K) -> Option<CountedVerdict<'g>> {
            None
        }
        fn rules<'a, K: Words>(
            &'a self,
            _: usize,
            _: &[K],
            _: crate::epoch::Epoch,
            room: &'a mut FoundRules<'g>,
        ) -> &'a FoundRules<'g> {
            room
        }
    }
    let by_verdicts =
        |rules: &[u32]| Numbers(rules).should_batch(rules.len(), |_| &packet::FlowKey::ZERO);
    for many in [
        &[1][..],
        &[1, 2],
        &[1, 1, 2],
        &[1, 1, 2, 3],
        &[1, 1, 1, 2, 3, 4],
    ] {
        assert!(by_verdicts(many), "{many:?}");
    }
    for one in 2..=LOOKUP_MAX {
        assert!(!by_verdicts(&vec![7; one]), "{one}");
    }
    assert!(!by_verdicts(&[]));
}
