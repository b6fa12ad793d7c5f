//! What a lookup looks at, whatever values are chosen; and a tuple against a map, where slots are made anew all the time.

use super::*;
use crate::ops::OpList;
use crate::rule::RuleSpec;
use packet::Field;
use packet::key::at;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tuple of rules of their own, by 8 bytes of metadata.
struct Table {
    tuple: Tuple,
    domain: Domain,
    rules: BTreeMap<u64, Box<Rule>>,
}

fn matching(value: u64) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::Metadata, value.into());
    matching
}

impl Table {
    fn new(secrets: fn(u32) -> Secret) -> Table {
        let all: Vec<_> = matching(0)
            .words()
            .iter()
            .map(|word| (word.word, word.mask))
            .collect();
        Table {
            tuple: Tuple::with(&all, secrets),
            domain: Domain::default(),
            rules: BTreeMap::new(),
        }
    }

    fn insert(&mut self, value: u64) {
        let spec = RuleSpec {
            priority: 1,
            counter: crate::counters::CounterId(0),
            ops: Arc::new(OpList::new(Vec::new())),
            cookie: value,
            matching: matching(value),
        };
        self.tuple.expect(&spec.matching);
        let rule = self
            .rules
            .entry(value)
            .insert_entry(Box::new(Rule::new(spec, 1)));
        assert_eq!(
            self.tuple
                .insert(&self.domain, NonNull::from(&**rule.get())),
            None
        );
    }

    fn remove(&mut self, value: u64) {
        let rule = self.rules.remove(&value).unwrap();
        self.tuple.remove(NonNull::from(&*rule));
    }

    fn finds(&self, value: u64) -> bool {
        let mut key = FlowKey::ZERO;
        key.words[at::METADATA / 8] = matching(value).words()[0].value;
        let view = self.tuple.view();
        let hash = view.hash(&key);
        let found = view.find(hash, &key, 1);
        assert_eq!(
            found.map(|rule| rule.spec.cookie),
            self.rules.contains_key(&value).then_some(value)
        );
        // The short way, too.
        let bits = [key.words[at::METADATA / 8]];
        let short = view.find_likely(view.likely(view.hash_bits(bits)), bits, &key, 1);
        assert!(short.map(std::ptr::from_ref) == found.map(std::ptr::from_ref));
        found.is_some()
    }

    /// How many slots a lookup of each rule looks at, and the most that one of any packet does.
    fn looks(&self) -> (Vec<usize>, usize) {
        let slots = self.tuple.slots();
        let mask = slots.slots.len() - 1;
        let chains = slots.slots.iter().enumerate();
        let chains = chains.map(|(at, slot)| (at, slot.load(Ordering::Relaxed)));
        let looks = chains
            .filter(|(_, slot)| *slot > DELETED)
            .map(|(at, slot)| {
                // SAFETY: linked rules are alive.
                let head = unsafe { address(slot).as_ref() };
                (at.wrapping_sub(slots.secret.hash_of(&head.spec.matching) as usize) & mask) + 1
            });
        (looks.collect(), slots.reach)
    }
}

/// Values that all meet in one slot, and have one tag, of any table of up to 2048 slots that hashes with what is no secret.
fn crowd(count: usize) -> Vec<u64> {
    let hash = |value: &u64| Secret::numbered(0).hash_of(&matching(*value));
    let same = |value: &u64| hash(value) & 0x7ff == 0x123;
    (0..).filter(same).take(count).collect()
}

/// Rules that somebody has chosen who knows the code, but not the secret, meet hardly more often than others: with nearly all secrets.
#[test]
fn rules_that_would_meet_do_not_where_the_secret_is_one() {
    let crowd = crowd(400);
    let looks = |_| {
        let mut table = Table::new(Secret::random);
        crowd.iter().for_each(|value| table.insert(*value));
        let (looks, most) = table.looks();
        assert_eq!((looks.len(), most), (400, REACH));
        assert!(crowd.iter().all(|value| table.finds(*value)));
        looks.iter().sum::<usize>()
    };
    // Half full at most: 1.5 each on average. The usual multiplier keeps some of the crowd together with one secret in fifteen, so half of them is never.
    let mut looks: Vec<usize> = (0..41).map(looks).collect();
    looks.sort_unstable();
    assert!(looks[20] < 400 * 5, "{looks:?}");
}

/// Of those that do meet, a lookup looks at [`REACH`] slots at most: where one more comes, the table hashes with another secret.
#[test]
fn no_lookup_looks_further_than_its_reach() {
    let crowd = crowd(400);
    let mut table = Table::new(Secret::numbered);
    for (count, value) in crowd.iter().enumerate() {
        table.insert(*value);
        let (looks, most) = table.looks();
        assert_eq!(most, REACH.min(table.tuple.slots().slots.len()));
        assert!(looks.iter().all(|looks| *looks <= most));
        let usual = table.tuple.slots().secret == Secret::numbered(0);
        // Slots that are made anew since there are more rules begin with the usual secret again.
        assert!(usual || count >= REACH);
    }
    assert!(crowd.iter().all(|value| table.finds(*value)));
    assert!(!table.finds(1));
    for value in &crowd {
        table.remove(*value);
        assert!(!table.finds(*value));
    }
}

/// Where no secret helps, all rules are found all the same.
#[test]
fn rules_of_one_hash_are_found() {
    let same = |_| Secret {
        start: 5,
        factor: 0,
    };
    let mut table = Table::new(same);
    (0..2 * REACH as u64).for_each(|value| table.insert(value));
    assert!((0..2 * REACH as u64).all(|value| table.finds(value)));
    assert!(!table.finds(1 << 40));
    table.remove(3);
    assert!(!table.finds(3) && table.finds(2 * REACH as u64 - 1));
    table.insert(3);
    assert!(table.finds(3));
}

proptest! {
    #[test]
    fn a_tuple_is_a_map(changes in prop::collection::vec((0..500_u64, 0..4_u8), 0..1200)) {
        // Of the first attempts with a number of slots, one or two put many rules into few places.
        let crowded = |attempt| match attempt {
            0 | 2 => Secret { start: 0, factor: 1 << 58 },
            _ => Secret::numbered(attempt),
        };
        let mut table = Table::new(crowded);
        for (value, what) in changes {
            match (table.rules.contains_key(&value), what) {
                (true, 0) => table.remove(value),
                (false, 1..) => table.insert(value),
                _ => {}
            }
            table.finds(value);
        }
        prop_assert!((0..500).all(|value| table.finds(value) == table.rules.contains_key(&value)));
        let (looks, most) = table.looks();
        prop_assert_eq!(looks.len(), table.rules.len());
        prop_assert!(looks.iter().all(|looks| *looks <= most));
    }
}
