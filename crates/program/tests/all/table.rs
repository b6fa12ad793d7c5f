//! Tables compared with a reference: a list of rules with the epochs in which they hold.

use packet::{Field, FlowKey, Match};
use program::Program;
use program::actions::{Op, OpList};
use program::epoch::Epoch;
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, LOOKUP_MAX, RuleRef, Template};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn spec(program: &Program, matching: Match, priority: u32, cookie: u64) -> RuleSpec {
    let counter = program.counters.allocate().unwrap();
    RuleSpec {
        matching,
        priority,
        ops: Arc::new(OpList::new(vec![Op::Output(1)])),
        counter,
        cookie,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert {
        mask: usize,
        value: u64,
        priority: u32,
    },
    Remove(usize),
    Publish,
    Housekeep,
    /// Build trees at once.
    Shape,
    /// Build trees in the background.
    Begin,
    /// Look up a burst.
    Look(Vec<(u64, u64)>),
}

const MASKS: [(u64, u64); 6] = [(0, 0), (7, 0), (0, 7), (3, 1), (7, 7), (0, 4)];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        // Few values for the rules, many for the packets: rules of a mask often agree in bits in
        // which packets differ.
        6 => (0..MASKS.len(), 0_u64..64, 0_u32..6).prop_map(|(mask, value, priority)| Step::Insert { mask, value, priority }),
        3 => (0..MASKS.len(), 0_u64..2, 0_u32..6).prop_map(|(mask, value, priority)| Step::Insert { mask, value: value * 9, priority }),
        3 => (0_usize..200).prop_map(Step::Remove),
        2 => Just(Step::Publish),
        1 => Just(Step::Housekeep),
        1 => Just(Step::Shape),
        1 => Just(Step::Begin),
        6 => prop::collection::vec((0_u64..8, 0_u64..8), 1..LOOKUP_MAX).prop_map(Step::Look),
    ];
    prop::collection::vec(step, 1..250)
}

struct Entry {
    rule: RuleRef,
    matching: Match,
    priority: u32,
    cookie: u64,
    added: Epoch,
    removed: Epoch,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn lookups_find_what_a_list_finds(steps in steps()) {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        let mut reader = program.domain.reader().unwrap();
        let mut reference: Vec<Entry> = Vec::new();
        for (cookie, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert { mask, value, priority } => {
                    let mut matching = Match::any();
                    matching.set_word(6, value & 7, MASKS[mask].0);
                    matching.set_word(9, value >> 3, MASKS[mask].1);
                    // One rule of a match and priority at a time: pipelines replace, they do not
                    // stack.
                    for entry in reference.iter_mut().filter(|entry| entry.removed == Epoch::MAX && entry.matching == matching && entry.priority == priority) {
                        entry.removed = program.domain.next();
                        writer.remove(3, entry.rule);
                    }
                    let rule = writer.insert(3, spec(&program, matching.clone(), priority, cookie as u64));
                    reference.push(Entry { rule, matching, priority, cookie: cookie as u64, added: program.domain.next(), removed: Epoch::MAX });
                }
                Step::Remove(index) => {
                    let alive: Vec<_> = reference.iter_mut().filter(|entry| entry.removed == Epoch::MAX).collect();
                    let count = alive.len();
                    if let Some(entry) = alive.into_iter().nth(index % count.max(1)) {
                        entry.removed = program.domain.next();
                        writer.remove(3, entry.rule);
                    }
                }
                Step::Publish => {
                    writer.commit();
                    program.domain.publish();
                }
                Step::Housekeep => {
                    writer.housekeep(usize::MAX);
                    program.domain.collect();
                }
                Step::Shape => writer.shape_now(),
                Step::Begin => {
                    writer.shape_tables();
                }
                Step::Look(keys) => {
                    let keys: Vec<FlowKey> = keys.into_iter().map(|(a, b)| {
                        let mut key = FlowKey::ZERO;
                        key.words[6] = a;
                        key.words[9] = b;
                        key
                    }).collect();
                    let guard = reader.begin();
                    let epoch = guard.epoch();
                    let mut found = [None; LOOKUP_MAX];
                    bridge.lookup_burst(3, keys.len(), |index| &keys[index], &guard, &mut found);
                    for (key, found) in keys.iter().zip(found) {
                        let best = reference.iter()
                            .filter(|entry| entry.added <= epoch && epoch < entry.removed && entry.matching.matches(key))
                            .map(|entry| entry.priority).max();
                        prop_assert_eq!(found.map(|rule| rule.spec.priority), best);
                        if let Some(rule) = found {
                            let entry = reference.iter().find(|entry| entry.cookie == rule.spec.cookie).unwrap();
                            prop_assert!(entry.matching.matches(key) && entry.added <= epoch && epoch < entry.removed);
                        }
                    }
                }
            }
        }
    }
}

/// Every published state has exactly one of two generations of 400 rules; readers must never see
/// both, neither, or a freed rule.
#[test]
fn readers_see_whole_generations_while_a_writer_replaces_everything() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let stop = Arc::new(AtomicBool::new(false));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let exact = |index: u64| {
        let mut matching = Match::any();
        matching.set_word(6, index, u64::MAX);
        matching
    };
    let mut rules: Vec<RuleRef> = (0..400)
        .map(|index| writer.insert(0, spec(&program, exact(index), 1, 0)))
        .collect();
    writer.commit();
    program.domain.publish();
    let begun = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (program, bridge, stop) =
                (Arc::clone(&program), Arc::clone(&bridge), Arc::clone(&stop));
            let begun = Arc::clone(&begun);
            std::thread::spawn(move || {
                let mut reader = program.domain.reader().unwrap();
                program.counters.add_worker(reader.index());
                let mut bursts = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    let guard = reader.begin();
                    let keys: Vec<FlowKey> = (0..400)
                        .step_by(37)
                        .map(|index| {
                            let mut key = FlowKey::ZERO;
                            key.words[6] = index;
                            key
                        })
                        .collect();
                    let mut out = vec![None; keys.len()];
                    bridge.lookup_burst(0, keys.len(), |index| &keys[index], &guard, &mut out);
                    let generations: Vec<u64> = out
                        .iter()
                        .map(|rule| {
                            rule.expect("every key has a rule in every epoch")
                                .spec
                                .cookie
                        })
                        .collect();
                    assert!(
                        generations
                            .iter()
                            .all(|generation| *generation == generations[0]),
                        "{generations:?}"
                    );
                    begun.fetch_add(u64::from(bursts == 0), Ordering::Relaxed);
                    bursts += 1;
                    if bursts.is_multiple_of(50) {
                        reader.offline();
                    }
                }
                bursts
            })
        })
        .collect();
    // They may have to wait for a processor.
    while begun.load(Ordering::Relaxed) < 2 && !readers.iter().any(|reader| reader.is_finished()) {
        std::thread::yield_now();
    }
    for generation in 1..300 {
        rules = rules
            .into_iter()
            .enumerate()
            .map(|(index, rule)| {
                writer.remove(0, rule);
                writer.insert(0, spec(&program, exact(index as u64), 1, generation))
            })
            .collect();
        writer.commit();
        program.domain.publish();
        writer.housekeep(usize::MAX);
        program.domain.collect();
    }
    stop.store(true, Ordering::Relaxed);
    let bursts: u64 = readers
        .into_iter()
        .map(|reader| reader.join().unwrap())
        .sum();
    assert!(bursts > 0);
    let (lookups, matches) = bridge.table_counters(0);
    assert_eq!(lookups, matches);
    assert!(lookups >= bursts);
}

#[test]
fn removed_rules_are_unlinked_and_their_counters_come_back() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    for round in 0..50 {
        let rules: Vec<_> = (0..100)
            .map(|index| {
                let mut matching = Match::any();
                matching.set_word(7, index, u64::MAX);
                let spec = spec(&program, matching, 5, round);
                (spec.counter, writer.insert(1, spec))
            })
            .collect();
        writer.commit();
        program.domain.publish();
        for (counter, rule) in rules {
            writer.remove(1, rule);
            writer.release_counter(counter);
        }
        program.domain.publish();
        writer.housekeep(usize::MAX);
        assert_eq!(writer.waiting(), 0);
        program.domain.publish();
        program.domain.collect();
        program.domain.publish();
        program.domain.collect();
    }
    assert!(
        program.counters.in_use() <= 101,
        "{} counters leaked",
        program.counters.in_use()
    );
}

#[test]
fn a_table_filled_right_after_it_was_emptied_does_not_stay_a_list() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let mut reader = program.domain.reader().unwrap();
    let exact = |value: u64| {
        let mut matching = Match::any();
        matching.set_word(6, value, u64::MAX);
        matching
    };
    let old: Vec<RuleRef> = (0..50)
        .map(|value| writer.insert(0, spec(&program, exact(value), 1, value)))
        .collect();
    writer.commit();
    program.domain.publish();
    for rule in old {
        writer.remove(0, rule);
    }
    program.domain.publish();
    reader.begin();
    // The old rules go, and a reader may still reach their chains while many new ones are added in
    // one batch.
    writer.housekeep(49);
    for value in 0..500 {
        writer.insert(0, spec(&program, exact(value), 1, 1000 + value));
    }
    writer.commit();
    program.domain.publish();
    reader.begin();
    writer.housekeep(usize::MAX);
    let guard = reader.begin();
    assert_eq!(writer.describe(0).template, Template::Hash);
    let mut key = FlowKey::ZERO;
    for value in 0..500 {
        key.words[6] = value;
        let rule = bridge.lookup(0, &key, &guard).unwrap();
        assert_eq!(rule.spec.cookie, 1000 + value);
    }
}

#[test]
fn a_large_tuple_is_passed_over_only_by_packets_that_have_no_rule_in_it() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let mut reader = program.domain.reader().unwrap();
    let exact = |value: u64| {
        let mut matching = Match::any();
        matching.set_word(6, value, u64::MAX);
        matching
    };
    // All begin with the same bits; others match by their word 9.
    let (base, other) = (0x1_0000_0000, 0x2_0000_0000);
    for number in 0..3000 {
        writer.insert(0, spec(&program, exact(base + number * 7), 5, number));
    }
    for value in 0..20 {
        let mut matching = Match::any();
        matching.set_word(9, value, 0xff);
        writer.insert(0, spec(&program, matching, 1, 10_000 + value));
    }
    writer.commit();
    program.domain.publish();
    let mut newcomers = Vec::new();
    for round in 0..300_u64 {
        let keys: Vec<FlowKey> = (0..LOOKUP_MAX as u64)
            .map(|index| {
                let number = round * 97 + index * 13;
                let mut key = FlowKey::ZERO;
                key.words[6] = [base, other, 0][number as usize % 3] + number % 22_000;
                key.words[9] = number % 25;
                key
            })
            .collect();
        let guard = reader.begin();
        let mut found = [None; LOOKUP_MAX];
        bridge.lookup_burst(0, LOOKUP_MAX, |index| &keys[index], &guard, &mut found);
        for (key, found) in keys.iter().zip(found) {
            let (first, second) = (key.words[6], key.words[9]);
            let offset = first.wrapping_sub(base);
            let wanted = if newcomers.contains(&first) {
                Some(20_000 + first)
            } else if offset < 21_000 && offset % 7 == 0 {
                Some(offset / 7)
            } else {
                (second < 20).then_some(10_000 + second)
            };
            assert_eq!(found.map(|rule| rule.spec.cookie), wanted);
        }
        if round % 50 == 49 {
            // A rule that differs in the bits that the others have in common.
            let value = if round < 100 { other + round } else { round };
            writer.insert(0, spec(&program, exact(value), 5, 20_000 + value));
            newcomers.push(value);
            writer.commit();
            program.domain.publish();
        }
    }
}

/// Changes to rules over addresses and ports, of many shapes, with much overlap; and lookups.
#[derive(Clone, Debug)]
enum Change {
    /// Insert a rule of this shape, its values by a number.
    Insert(usize, u32, u32),
    /// Replace a rule by another of the same match and precedence.
    Replace(usize),
    Remove(usize),
    Publish,
    Housekeep,
    Shape,
    Begin,
    /// A reader begins in the newest epoch.
    Begun,
    /// Look up packets that meet a rule, with other bits at random.
    Look(usize, u64),
}

/// Masks of source, destination and ports.
const SHAPES: [(u32, u32, u32); 16] = [
    (0, 0, 0),
    (0xff00_0000, 0, 0),
    (0xffff_0000, 0, 0),
    (0xffff_ffff, 0, 0),
    (0, 0xffff_ff00, 0),
    (0, 0xffff_ffff, 0),
    (0, 0, 0xffff),
    (0, 0, 0xffff_0000),
    (0xffff_ff00, 0xff00_0000, 0),
    (0xfff0_0000, 0xffff_f000, 0xffff),
    (0xffff_ffff, 0xffff_ffff, 0xffff_ffff),
    (0x0000_ffff, 0, 0xf0),
    (0, 0x00ff_00ff, 0xff00_0000),
    (0x8000_0000, 0x8000_0000, 0),
    (0xffff_ff00, 0xffff_ff00, 0),
    (0, 0xffff_0000, 0xff00),
];

fn access_rule(shape: usize, number: u32) -> Match {
    use packet::key::at;
    let (source, destination, ports) = SHAPES[shape];
    // Few different bytes in each place, so that rules overlap.
    let spread = |salt: u32| {
        let mut bits = number
            .wrapping_mul(0x9e37_79b9)
            .wrapping_add(salt.wrapping_mul(0x85eb_ca6b));
        bits ^= bits >> 15;
        bits & 0xff0f_1133
    };
    let mut matching = Match::any();
    for (offset, salt, mask) in [
        (at::IPV4_SRC, 1, source),
        (at::IPV4_DST, 2, destination),
        (at::TP_SRC, 3, ports),
    ] {
        matching.set_bytes(offset, &spread(salt).to_be_bytes(), &mask.to_be_bytes());
    }
    matching
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        30 => (0..SHAPES.len(), 0_u32..4000, 0_u32..60).prop_map(|(shape, number, priority)| Change::Insert(shape, number, priority)),
        3 => (0_usize..1000).prop_map(Change::Replace),
        6 => (0_usize..1000).prop_map(Change::Remove),
        4 => Just(Change::Publish),
        2 => Just(Change::Housekeep),
        1 => Just(Change::Shape),
        1 => Just(Change::Begin),
        3 => Just(Change::Begun),
        12 => (0_usize..1000, any::<u64>()).prop_map(|(rule, noise)| Change::Look(rule, noise)),
    ];
    prop::collection::vec(change, 100..500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    #[test]
    fn trees_and_what_comes_beside_them_find_what_a_list_finds(changes in changes(), common in 0..3) {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        // Lookups continue in the epoch in which this reader has begun.
        let mut reader = program.domain.reader().unwrap();
        let mut held = program.domain.reader().unwrap();
        let mut guard = held.begin();
        let mut reference: Vec<Entry> = Vec::new();
        let end = |writer: &mut BridgeWriter, entry: &mut Entry| {
            entry.removed = program.domain.next();
            writer.remove(0, entry.rule);
        };
        let begin = |writer: &mut BridgeWriter, matching: Match, priority: u32, cookie: u64| {
            let rule = writer.insert(0, spec(&program, matching.clone(), priority, cookie));
            Entry { rule, matching, priority, cookie, added: program.domain.next(), removed: Epoch::MAX }
        };
        for (cookie, change) in changes.into_iter().enumerate() {
            let cookie = cookie as u64;
            let alive: Vec<usize> = (0..reference.len()).filter(|index| reference[*index].removed == Epoch::MAX).collect();
            let pick = |number: usize| (!alive.is_empty()).then(|| alive[number % alive.len()]);
            match change {
                Change::Insert(shape, number, priority) => {
                    let mut matching = access_rule(shape, number);
                    // A word that no rule, each rule, or nearly each rule matches with the same
                    // value.
                    if common == 1 || common == 2 && number % 50 != 0 {
                        matching.set_exact(Field::EthType, 0x0800);
                    }
                    for entry in reference.iter_mut().filter(|entry| entry.removed == Epoch::MAX && entry.matching == matching && entry.priority == priority) {
                        end(&mut writer, entry);
                    }
                    reference.push(begin(&mut writer, matching, priority, cookie));
                }
                Change::Replace(number) => if let Some(index) = pick(number) {
                    end(&mut writer, &mut reference[index]);
                    let (matching, priority) = (reference[index].matching.clone(), reference[index].priority);
                    reference.push(begin(&mut writer, matching, priority, cookie));
                },
                Change::Remove(number) => if let Some(index) = pick(number) {
                    end(&mut writer, &mut reference[index]);
                },
                Change::Publish => {
                    writer.commit();
                    program.domain.publish();
                }
                Change::Housekeep => {
                    writer.housekeep(usize::MAX);
                    program.domain.collect();
                }
                Change::Shape => writer.shape_now(),
                Change::Begin => {
                    writer.shape_tables();
                }
                Change::Begun => {
                    guard = held.begin();
                }
                Change::Look(number, noise) => {
                    let mut keys = Vec::new();
                    for index in 0..24 {
                        let mut key = FlowKey::ZERO;
                        if !reference.is_empty() {
                            let entry = &reference[(number + index * 7) % reference.len()];
                            for word in 1..3 {
                                key.words[word] = noise.rotate_left(index as u32 * 5 + word as u32) & 0xff0f_1133_ff0f_1133_u64.to_be();
                            }
                            for word in entry.matching.words() {
                                let bits = &mut key.words[usize::from(word.word)];
                                *bits = *bits & !word.mask | word.value;
                            }
                            if noise >> index & 3 == 0 {
                                key.words[packet::key::at::ETH_TYPE / 8] = 0;
                            }
                        }
                        keys.push(key);
                    }
                    let now = reader.begin();
                    for guard in [&guard, &now] {
                        let epoch = guard.epoch();
                        let mut out = vec![None; keys.len()];
                        bridge.lookup_burst(0, keys.len(), |index| &keys[index], guard, &mut out);
                        for (key, found) in keys.iter().zip(out) {
                            let best = reference.iter()
                                .filter(|entry| entry.added <= epoch && epoch < entry.removed && entry.matching.matches(key))
                                .map(|entry| entry.priority).max();
                            prop_assert_eq!(found.map(|rule| rule.spec.priority), best);
                            if let Some(rule) = found {
                                let entry = reference.iter().find(|entry| entry.cookie == rule.spec.cookie).unwrap();
                                prop_assert!(entry.matching.matches(key) && entry.added <= epoch && epoch < entry.removed);
                            }
                        }
                    }
                    reader.offline();
                }
            }
        }
    }
}

/// Adds rules of many shapes.
fn many_shapes(program: &Program, writer: &mut BridgeWriter) -> Vec<RuleRef> {
    let rules = (0..1500_u32)
        .map(|number| {
            let matching = access_rule(number as usize % SHAPES.len(), number * 31);
            writer.insert(0, spec(program, matching, number % 700, number.into()))
        })
        .collect();
    writer.commit();
    program.domain.publish();
    rules
}

#[test]
fn a_table_of_many_shapes_gets_trees_in_the_background_and_gives_them_up_when_it_is_small() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let rules = many_shapes(&program, &mut writer);
    assert_eq!(writer.describe(0).template, Template::Tuples);
    assert!(writer.shape_tables(), "begun");
    let begun = std::time::Instant::now();
    while writer.shape_tables() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60));
        std::thread::yield_now();
    }
    let description = writer.describe(0);
    assert_eq!(description.template, Template::Trees, "{description:?}");
    assert!(description.worst.accesses < 80.0 && description.bytes > 1000);
    for rule in &rules[5..] {
        writer.remove(0, *rule);
    }
    program.domain.publish();
    writer.housekeep(usize::MAX);
    assert_eq!(writer.waiting(), 0);
    let description = writer.describe(0);
    assert_eq!(
        (description.template, description.rules),
        (Template::Linear, 5)
    );
}

#[test]
fn a_rule_that_goes_while_trees_are_made_is_freed_when_they_are_in_use() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let rules = many_shapes(&program, &mut writer);
    let mut reader = program.domain.reader().unwrap();
    for rule in &rules[..20] {
        writer.shape_tables();
        writer.remove(0, *rule);
        writer.commit();
        program.domain.publish();
        let begun = std::time::Instant::now();
        while writer.waiting() > 0 {
            assert!(begun.elapsed() < std::time::Duration::from_secs(60));
            writer.housekeep(usize::MAX);
            std::thread::yield_now();
        }
        program.domain.publish();
        program.domain.collect();
        let guard = reader.begin();
        for number in 0..200_u32 {
            let mut key = FlowKey::ZERO;
            for word in access_rule(number as usize % SHAPES.len(), number * 31).words() {
                key.words[usize::from(word.word)] = word.value;
            }
            assert!(bridge.lookup(0, &key, &guard).is_some());
        }
        reader.offline();
    }
}

/// A table whose rules are replaced keeps no more dead ones than its readers need, even without
/// housekeeping: one rule in a list, and one of many.
#[test]
fn what_is_replaced_goes_as_fast_as_it_comes() {
    for others in [0, 100] {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        let mut reader = program.domain.reader().unwrap();
        let matching = |value: u64| {
            let mut matching = Match::any();
            matching.set_exact(Field::Metadata, value.into());
            matching
        };
        for value in 1..=others {
            writer.insert(0, spec(&program, matching(value), 1, value));
        }
        let mut rule = writer.insert(0, spec(&program, matching(0), 1, 0));
        let template = writer.describe(0).template;
        for cookie in 1..5_000 {
            // Versions that were never published are not kept at all.
            for _ in 0..cookie % 7 {
                writer.remove(0, rule);
                rule = writer.insert(0, spec(&program, matching(0), 1, u64::MAX));
            }
            writer.remove(0, rule);
            rule = writer.insert(0, spec(&program, matching(0), 1, cookie));
            writer.commit();
            program.domain.publish();
            assert!(writer.waiting() <= 2, "{} dead rules", writer.waiting());
            let guard = reader.begin();
            let found = bridge.lookup(0, &FlowKey::ZERO, &guard);
            assert_eq!(found.map(|rule| rule.spec.cookie), Some(cookie));
        }
        assert_eq!(writer.describe(0).template, template);
        assert_eq!(
            writer.describe(0).rules,
            others as usize + 1 + writer.waiting()
        );
    }
}
