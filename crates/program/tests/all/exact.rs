//! Exact tables whose rules all change at once, in each epoch, while workers execute packets by
//! their verdicts.

use crate::support::Met;
use packet::key::at;
use packet::{Field, Frame, HeapFrame, Match, Value};
use program::Program;
use program::actions::{Op, OpList};
use program::counters::CounterId;
use program::exec::Engine;
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, LOOKUP_MAX, RuleRef};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Rules of a generation, in addition to the one for all other packets.
const RULES: u32 = 200;
const GENERATIONS: u32 = 150;
/// Port of rules that edit: what they write identifies them and their generation.
const EDITED: u32 = 1;
/// First port of rules that share a port, to which their generation's number is added. Their
/// counters identify them.
const SHARED: u32 = 1 << 16;
/// First port of the others, to which their own number and [`RULES`] times their generation's are
/// added.
const OWN: u32 = 1 << 17;

/// Returns where the rule with this number and generation sends, and what it writes.
fn way_out(number: u32, generation: u32) -> (u32, Option<[u8; 6]>) {
    match number % 3 {
        0 => (OWN + generation * (RULES + 1) + number, None),
        1 => {
            let [.., high, low] = number.to_be_bytes();
            let [a, b, c, d] = generation.to_be_bytes();
            (EDITED, Some([high, low, a, b, c, d]))
        }
        _ => (SHARED + generation, None),
    }
}

/// What rules match.
#[derive(Clone, Copy, PartialEq)]
enum Matched {
    /// Ethernet destinations: one word.
    Stations,
    /// Ethernet destinations and sources: two words.
    Pairs,
    /// IPv6 sources, which are not in mini keys.
    Ipv6,
}

impl Matched {
    fn matching(self, number: u32) -> Match {
        let mut matching = Match::any();
        let address = number.to_be_bytes();
        match self {
            Matched::Ipv6 => {
                matching.set_exact(Field::EthType, 0x86dd);
                matching.set_exact(Field::Ipv6Src, 0xfd << 120 | u128::from(number));
            }
            Matched::Stations | Matched::Pairs => {
                matching.set_exact(Field::EthType, 0x0800);
                matching.set_bytes(at::ETH_DST + 2, &address, &[0xff; 4]);
            }
        }
        if self == Matched::Pairs {
            matching.set_bytes(at::ETH_SRC + 2, &address, &[0xff; 4]);
        }
        matching
    }

    /// Returns a packet that meets the rule with this number, or the one for all others, with
    /// number `at` in its burst.
    fn frame(self, number: u32, at: u8) -> HeapFrame {
        let address = number.to_be_bytes();
        let mut bytes = [&[2, 0][..], &address, &[2, 0], &address].concat();
        if self == Matched::Ipv6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, at, 0, 8, 17, 64, 0xfd]);
            bytes.extend([0; 11]);
            bytes.extend(address);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            bytes.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        } else {
            bytes.extend([8, 0, 0x45, 0, 0, 28, 0, at, 0, 0, 64, 17, 0, 0]);
            bytes.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 8, 0, 0]);
        }
        bytes.resize(bytes.len().max(60), 0);
        HeapFrame::new(&bytes)
    }

    /// Returns the offset of a packet's number: in the flow label of IPv6, or in the identification
    /// of IPv4.
    fn number_at(self) -> usize {
        if self == Matched::Ipv6 { 17 } else { 19 }
    }

    /// Returns the rule of a number and generation, or the one for all other packets.
    fn spec(self, program: &Program, number: u32, generation: u32) -> RuleSpec {
        let matching = if number < RULES {
            self.matching(number)
        } else {
            Match::any()
        };
        let (port, written) = way_out(number, generation);
        let edit = written.map(|[a, b, c, d, e, f]| {
            let value = u128::from(u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
            let (field, value) = (Field::EthSrc, Value::from_u128(value, 6));
            let mask = field.def().place();
            Op::SetField { field, value, mask }
        });
        let ops = edit.into_iter().chain([Op::Output(port)]).collect();
        RuleSpec {
            matching,
            // Some are above those that they replace, some have the same precedence.
            priority: if number < RULES {
                10 + generation * (number % 2)
            } else {
                1
            },
            ops: Arc::new(OpList::new(ops)),
            counter: program.counters.allocate().unwrap(),
            cookie: 0,
        }
    }
}

/// Returns the rule's number for the packet at `at` of a burst: each meets a rule of its own, or in
/// one burst of four neighbours meet the same.
fn number_of(turn: u32, at: u32) -> u32 {
    let at = if turn.is_multiple_of(4) { at / 3 } else { at };
    (at * 7 + turn * 13) % (RULES + RULES / 16)
}

/// Each epoch has a generation of its own, with the same number. A worker's packets must meet their
/// rules of that generation, each its own, and leave each port in the order of arrival, whether
/// they have verdicts, are marked meanwhile or are looked up in the tuple; and they must be counted
/// with these rules.
fn workers_meet_the_rules_of_their_epoch(kind: Matched) {
    let program = Arc::new(Program::new());
    let mut writer = BridgeWriter::new(Bridge::new(Arc::clone(&program)));
    // Counters of each rule, by generation and number.
    let mut counters: HashMap<(u32, u32), CounterId> = HashMap::new();
    let mut insert = |writer: &mut BridgeWriter, number, generation| {
        let spec = kind.spec(&program, number, generation);
        counters.insert((generation, number), spec.counter);
        writer.insert(0, spec)
    };
    let first = program.domain.current() as u32 + 1;
    let mut rules: Vec<RuleRef> = (0..=RULES)
        .map(|number| insert(&mut writer, number, first))
        .collect();
    writer.commit();
    program.domain.publish();
    writer.shape_now();
    let why = writer.describe(0).why;
    assert!(why.contains("told by value"), "{why}");
    let bridge = Arc::clone(writer.bridge());
    let mut told = 0;
    let (stop, bursts) = (AtomicBool::new(false), AtomicU64::new(0));
    let counted = std::thread::scope(|scope| {
        let (program, bridge, stop, bursts) = (&program, &bridge, &stop, &bursts);
        let read = move |seed: u32| {
            let mut reader = program.domain.reader().unwrap();
            program.counters.add_worker(reader.index());
            let mut engine = Engine::new();
            let mut turn = seed;
            let mut counted: HashMap<(u32, u32), u64> = HashMap::new();
            while !stop.load(Ordering::Relaxed) {
                let guard = reader.begin();
                turn += 1;
                let generation = guard.epoch() as u32;
                let mut expected = Vec::new();
                let mut frames = Vec::new();
                for at in 0..LOOKUP_MAX as u32 {
                    let number = number_of(turn, at);
                    let frame = kind.frame(number, at as u8);
                    let rule = number.min(RULES);
                    let (port, written) = way_out(rule, generation);
                    let mut bytes = frame.to_vec();
                    assert_eq!(bytes[kind.number_at()], at as u8);
                    if let Some(written) = written {
                        bytes[6..12].copy_from_slice(&written);
                    }
                    expected.push((port, bytes));
                    *counted.entry((generation, rule)).or_default() += 1;
                    frames.push(frame);
                }
                let mut met = Met::default();
                engine.burst(bridge, &guard, 1, &mut frames, 0, 1, &mut met);
                // By port; within each in order of arrival.
                expected.sort_by_key(|(port, _)| *port);
                let mut sent = met.only_sent();
                sent.sort_by_key(|(port, _)| *port);
                assert_eq!(sent, expected);
                bursts.fetch_add(1, Ordering::Relaxed);
                if turn.is_multiple_of(50) {
                    reader.offline();
                }
            }
            counted
        };
        let readers = [1, 2].map(|seed| scope.spawn(move || read(seed)));
        let has_failed = || readers.iter().any(|reader| reader.is_finished());
        for generation in first + 1..first + GENERATIONS {
            // Some bursts of each generation, unless workers wait for a processor longer than that.
            let before = bursts.load(Ordering::Relaxed);
            for _ in 0..1000 {
                if bursts.load(Ordering::Relaxed) > before + 2 || has_failed() {
                    break;
                }
                std::thread::yield_now();
            }
            for (number, rule) in rules.iter_mut().enumerate() {
                let new = insert(&mut writer, number as u32, generation);
                writer.remove(0, std::mem::replace(rule, new));
            }
            writer.commit();
            program.domain.publish();
            writer.housekeep(usize::MAX);
            program.domain.collect();
            writer.shape_now();
            told += u32::from(writer.describe(0).why.contains("told by value"));
        }
        stop.store(true, Ordering::Relaxed);
        let mut counted: HashMap<(u32, u32), u64> = HashMap::new();
        for reader in readers {
            for (rule, packets) in reader.join().unwrap() {
                *counted.entry(rule).or_default() += packets;
            }
        }
        counted
    });
    for (rule, counter) in counters {
        let wanted = counted.get(&rule).copied().unwrap_or(0);
        let packets = program.counters.read(counter).packets;
        assert_eq!(packets, wanted, "generation and number {rule:?}");
    }
    assert!(bursts.into_inner() > 0);
    // Not where too many rules of earlier generations wait to be unlinked.
    assert!(told > 0);
}

#[test]
fn workers_meet_the_stations_of_their_epoch() {
    workers_meet_the_rules_of_their_epoch(Matched::Stations);
}

#[test]
fn workers_meet_the_pairs_of_their_epoch() {
    workers_meet_the_rules_of_their_epoch(Matched::Pairs);
}

#[test]
fn workers_meet_the_sources_of_ipv6_of_their_epoch() {
    workers_meet_the_rules_of_their_epoch(Matched::Ipv6);
}
