use super::*;
use crate::Program;
use crate::actions::{Op, OpList};
use crate::classifier::mini_key::Reads;
use crate::rule::RuleSpec;
use crate::table::Bridge;
use crate::table::BridgeWriter;
use packet::Field;
use packet::key::at;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Fills buckets with these values, nearly full, each with its number as counter and port; returns
/// them and the slots of those for which there was room.
fn filled<const N: usize, const SLOTS: usize>(
    words: [(u8, u64); N],
    all: &[[u64; N]],
) -> (Buckets<N, SLOTS>, Vec<Option<usize>>) {
    let mut buckets = Buckets::new(words, all.len() / 2 + SLOTS);
    let put =
        |(number, values): (usize, &[u64; N])| buckets.put(*values, number as u32, number as u32);
    let slots = all.iter().enumerate().map(put).collect();
    (buckets, slots)
}

fn check<const N: usize, const SLOTS: usize>(
    words: [(u8, u64); N],
    all: &[[u64; N]],
    others: &[[u64; N]],
) -> Result<(), TestCaseError> {
    let (buckets, slots) = filled::<N, SLOTS>(words, all);
    let find = |values| {
        let slot = buckets.find(buckets.own(values), values)?;
        match buckets.answer(slot).verdict(&[])? {
            (counter, Verdict::Sends(port)) => Some((slot, (counter, port))),
            (_, Verdict::Edits(_)) => None,
        }
    };
    for (number, values) in all.iter().enumerate() {
        let answer = (CounterId(number as u32), number as u32);
        prop_assert_eq!(find(*values), slots[number].map(|slot| (slot, answer)));
    }
    for values in others.iter().filter(|values| !all.contains(values)) {
        prop_assert_eq!(find(*values), None);
    }
    // Marks affect one rule only.
    for slot in slots.iter().step_by(2).flatten() {
        buckets.answer(*slot).ask();
    }
    for (number, values) in all.iter().enumerate() {
        let is_told = slots[number].is_some() && number % 2 == 1;
        prop_assert_eq!(find(*values).is_some(), is_told);
        if slots[number].is_some() {
            let marked = buckets.find(buckets.own(*values), *values);
            prop_assert_eq!(marked, slots[number]);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_that_found_room_are_found_and_no_others(
        values in prop::collection::btree_set(0..300_u64, 0..200),
        pairs in prop::collection::btree_set([0..20_u64, 0..20_u64], 0..200),
    ) {
        let all: Vec<_> = values.into_iter().map(|value| [value]).collect();
        let others: Vec<_> = (0..300).map(|value| [value]).collect();
        check::<1, 4>([(3, u64::MAX)], &all, &others)?;
        let all: Vec<_> = pairs.into_iter().collect();
        let others: Vec<_> = (0..400).map(|pair| [pair / 20, pair % 20]).collect();
        check::<2, 2>([(1, u64::MAX), (3, u64::MAX)], &all, &others)?;
    }
}

/// Checks that at most `most` percent of these values find no room in their own bucket.
fn are_spread<const N: usize, const SLOTS: usize>(all: &[[u64; N]], most: usize, what: &str) {
    let mut buckets = Buckets::<N, SLOTS>::new([(3, u64::MAX); N], all.len());
    let mut elsewhere = 0;
    let mut seen = BTreeSet::new();
    for values in all {
        assert!(seen.insert(*values));
        let own = Some(buckets.own(*values) as usize);
        let slot = buckets.put(*values, 0, 0);
        elsewhere += usize::from(slot.map(|slot| slot / SLOTS) != own);
    }
    let count = all.len();
    assert!(
        elsewhere * 100 <= count * most,
        "{elsewhere} of {count} {what}"
    );
}

/// Consecutive addresses, wherever in a word they are, find room in their own bucket except for 7%;
/// random ones except for 2%. Of random pairs, two a bucket, 8% do not.
#[test]
fn addresses_in_a_row_are_spread() {
    let in_row = |number: u64, bytes: u32, shift: u32| {
        let address = 0x0a00_0000 + number;
        (address << (64 - 8 * bytes)).swap_bytes() << shift
    };
    for count in [1000, 10_000, 100_000] {
        for (bytes, shift) in [(4, 0), (4, 32), (6, 0), (6, 16)] {
            let what = format!("addresses of {bytes} bytes at {shift}");
            let one = |number| in_row(number, bytes, shift);
            let single: Vec<_> = (0..count).map(|number| [one(number)]).collect();
            are_spread::<1, 4>(&single, 7, &what);
            // Each of a hundred with many others.
            let pair = |number| [one(number % 100), one(number / 100)];
            let pairs: Vec<_> = (0..count).map(pair).collect();
            are_spread::<2, 2>(&pairs, 12, &format!("pairs of {what}"));
        }
    }
}

/// Effort counts each bucket up to the one with the values, and no more than a run.
#[test]
fn all_buckets_that_are_read_are_counted() {
    let mut buckets = Buckets::<1, 4>::new([(0, u64::MAX)], 200);
    let own = buckets.own([0]);
    let mut crowd = (0..).filter(|value| buckets.own([*value]) == own);
    let crowd: Vec<u64> = crowd.by_ref().take(4 * RUN + 2).collect();
    for (number, value) in crowd.into_iter().enumerate() {
        let mut key = FlowKey::ZERO;
        key.words[0] = value;
        let reads = |buckets: &Buckets<1, 4>| {
            let mut count = Count::default();
            let is_found = buckets.read_by(&key, &mut count);
            (is_found, count.lines())
        };
        let run = (number / 4 + 1).min(RUN);
        assert_eq!(reads(&buckets), (false, run), "before {number}");
        let slot = buckets.put([value], 0, 0);
        assert_eq!(slot.is_some(), number < 4 * RUN);
        assert_eq!(reads(&buckets), (slot.is_some(), run), "behind {number}");
    }
}

/// Two rules of one bucket are distinguished.
#[test]
fn packets_of_one_bucket_part_where_their_values_do() {
    let known = Buckets::<1, 4>::new([(0, u64::MAX)], 200);
    let own = |value: u64| known.own([value]);
    let beside = (6..).find(|value| own(*value) == own(5)).unwrap();
    let elsewhere = (6..).find(|value| own(*value) != own(5)).unwrap();
    let differ = |one: u64, other: u64| {
        let key = |value: u64| {
            let mut key = FlowKey::ZERO;
            key.words[0] = value;
            key
        };
        let mut buckets = [0; LOOKUP_MAX];
        (buckets[3], buckets[9]) = (own(one), own(other));
        let search = Search {
            known: &known,
            shared: &[],
            edits: &[],
            own: &buckets,
        };
        search.differ((3, &key(one)), (9, &key(other)))
    };
    assert!(differ(5, beside) && differ(5, elsewhere));
    assert!(!differ(5, 5) && !differ(beside, beside));
}

/// Returns a match on packets from this port.
fn from_port(port: u32) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::InPort, port.into());
    matching
}

/// Chosen values may all belong to one bucket: some are in the exact table, the others are left to
/// the tuple, and no lookup reads much.
#[test]
fn rules_that_crowd_into_a_bucket_are_found_by_few_reads() {
    const IN_ROW: u32 = 600;
    const CROWD: usize = 400;
    let value = |port: u32| from_port(port).words()[0];
    let alike = Buckets::<1, 4>::new([(value(0).word, value(0).mask)], IN_ROW as usize + CROWD);
    let own = |port: u32| alike.own([value(port).value]);
    let mut crowd = (IN_ROW..).filter(|port| own(*port) == own(7));
    let ports: Vec<u32> = (0..IN_ROW).chain(crowd.by_ref().take(CROWD)).collect();
    let strangers: Vec<u32> = crowd.take(50).collect();

    let program = Arc::new(Program::new());
    let mut writer = BridgeWriter::new(Bridge::new(Arc::clone(&program)));
    let mut rules = Vec::new();
    for port in &ports {
        let spec = RuleSpec {
            matching: from_port(*port),
            priority: 10,
            ops: Arc::new(OpList::new(vec![Op::Output(2)])),
            counter: program.counters.allocate().unwrap(),
            cookie: 0,
        };
        rules.push(writer.insert(0, spec));
    }
    writer.commit();
    program.domain.publish();
    writer.shape_now();
    let bridge = Arc::clone(writer.bridge());
    let mut reader = program.domain.reader().unwrap();
    let key = |port: u32| {
        let mut key = FlowKey::ZERO;
        key.set_u32(at::IN_PORT, port);
        key
    };
    // Counts how many are found, and how many of these by the exact table.
    let mut look_up = || {
        let guard = reader.begin();
        let (mut matched, mut told_of) = (0, 0);
        for port in ports.iter().chain(&strangers) {
            let (mut found, mut summaries) = ([None], Summaries::NOTHING);
            assert!(bridge.lookup_mini_keys(
                0,
                &[key(*port)],
                Reads::MiniKey,
                &guard,
                &mut found,
                Some(&mut summaries),
            ));
            if let Some(rule) = found[0] {
                assert_eq!(rule.spec.matching, from_port(*port));
                matched += 1;
                told_of += usize::from(summaries.verdict(0, rule).is_some());
            }
            let effort = bridge.effort(0, &key(*port), &guard);
            assert!(effort.lines < 20, "{effort:?}");
        }
        (matched, told_of)
    };
    let (matched, told_of) = look_up();
    assert_eq!(matched, ports.len());
    // No more of the crowd than fit a run, perhaps replacing others.
    let (some, few) = (IN_ROW as usize, 4 * RUN);
    assert!((some - few..=some + few).contains(&told_of), "{told_of}");
    let why = writer.describe(0).why;
    assert!(
        why.contains(&format!("{told_of} rules told by value")),
        "{why}"
    );
    // Removes rules of the crowd, whether in the exact table or not.
    for rule in rules.iter().step_by(2) {
        writer.remove(0, *rule);
    }
    program.domain.publish();
    assert_eq!(look_up().0, ports.len() / 2);
}
