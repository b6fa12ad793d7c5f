//! How many slots a lookup reads, whatever values are chosen; and a tuple compared with a map,
//! while slots are rebuilt all the time.

use super::*;
use crate::actions::OpList;
use crate::rule::RuleSpec;
use packet::Field;
use packet::key::at;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tuple and the rules that it owns, which match 8 bytes of metadata.
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
        // The fast path, too.
        let bits = [key.words[at::METADATA / 8]];
        let short = view.find_likely(view.likely(view.hash_bits(bits)), bits, &key, 1);
        assert!(short.map(std::ptr::from_ref) == found.map(std::ptr::from_ref));
        found.is_some()
    }

    /// Returns how many slots the lookup of each rule reads, and the most that any packet's does.
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

/// Returns values that all collide in one slot with the same tag, in any table of up to 2048 slots
/// with an unkeyed hash.
fn crowd(count: usize) -> Vec<u64> {
    let hash = |value: &u64| Secret::numbered(0).hash_of(&matching(*value));
    let same = |value: &u64| hash(value) & 0x7ff == 0x123;
    (0..).filter(same).take(count).collect()
}

/// Rules chosen by somebody who knows the code, but not the secret, collide hardly more often than
/// others, with nearly all secrets.
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
    // Half full at most: 1.5 each on average. With one secret in fifteen the usual multiplier keeps
    // some of the crowd together, so compare the median.
    let mut looks: Vec<usize> = (0..41).map(looks).collect();
    looks.sort_unstable();
    assert!(looks[20] < 400 * 5, "{looks:?}");
}

/// If rules collide, a lookup reads at most [`REACH`] slots: when one more comes, the table hashes
/// with another secret.
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
        // Slots that are rebuilt because there are more rules begin with the usual multiplier
        // again.
        assert!(usual || count >= REACH);
    }
    assert!(crowd.iter().all(|value| table.finds(*value)));
    assert!(!table.finds(1));
    for value in &crowd {
        table.remove(*value);
        assert!(!table.finds(*value));
    }
}

/// Where no secret helps, all rules are found nevertheless.
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

/// Checks that slots being filled have what those in use have.
fn agree(table: &Table) {
    let (tuple, slots) = (&table.tuple, table.tuple.slots());
    let growing = tuple.growing();
    let there = growing.as_ref().map_or(0, |growing| growing.next);
    let chains = |slots: &Slots, from: usize| -> std::collections::BTreeSet<u64> {
        let slots = slots.slots[from..].iter();
        let slots = slots.map(|slot| slot.load(Ordering::Relaxed));
        (slots.filter(|slot| *slot > DELETED))
            .map(|slot| slot & ADDRESS)
            .collect()
    };
    let (all, later) = (chains(slots, 0), chains(slots, there));
    assert_eq!(all.len(), table.rules.len());
    assert_eq!(slots.counts.chains(), all.len());
    assert!(slots.counts.used() * 2 <= slots.slots.len());
    if let Some(growing) = growing.as_ref() {
        assert_eq!(
            chains(&growing.to, 0),
            all.difference(&later).copied().collect()
        );
        assert_eq!(growing.to.counts.chains(), all.len() - later.len());
    }
}

/// Many slots are filled while others are in use, and rules come and go meanwhile: no rule is lost,
/// and none waits for all of them.
#[test]
fn a_large_tuple_grows_with_each_rule() {
    // The second attempt at growing, each time, hashes everything to one slot.
    let unlucky = |attempt| match attempt {
        0 => Secret {
            start: 5,
            factor: 0,
        },
        _ => Secret::random(attempt),
    };
    for secrets in [Secret::random as fn(u32) -> Secret, unlucky] {
        let mut table = Table::new(secrets);
        let (mut grown, mut begun) = (0, 0);
        let mut slots = 0;
        for value in 0..40_000_u64 {
            table.insert(value);
            // A third of the rules go again, old ones and new ones, and some come back with values
            // used before.
            if value % 3 == 0 {
                table.remove(value / 2 + value % 2);
            }
            if value % 21 == 0 && value > 0 {
                table.insert(value / 3 / 2 * 3 / 2 * 7 + (1 << 40));
                table.remove(value / 3 / 2 * 3 / 2 * 7 + (1 << 40));
            }
            begun += usize::from(table.tuple.growing().is_some());
            let now = table.tuple.slots().slots.len();
            if now != slots && slots > AT_ONCE {
                grown += 1;
            }
            slots = now;
            if value % 997 == 0 {
                agree(&table);
            }
        }
        assert!(grown > 0 && begun > 100, "{grown} {begun}");
        agree(&table);
        for value in 0..40_000 {
            table.finds(value);
        }
        let all: Vec<u64> = table.rules.keys().copied().collect();
        all.iter().for_each(|value| table.remove(*value));
        assert!(!all.iter().any(|value| table.finds(*value)));
        agree(&table);
    }
}

proptest! {
    #[test]
    fn a_tuple_is_a_map(changes in prop::collection::vec((0..500_u64, 0..4_u8), 0..1200)) {
        // Of the first attempts with a number of slots, one or two hash many rules to few slots.
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

/// A tuple of rules that are replaced, with its expected contents: all versions by value and
/// precedence, in the order in which they came.
struct Versions {
    tuple: Tuple,
    domain: Domain,
    /// The epoch in which the next change takes effect.
    next: Epoch,
    linked: BTreeMap<(u64, u32), Vec<NonNull<Rule>>>,
    /// Every rule ever made, because readers may be at any of them. Boxed, so that linked ones do
    /// not move.
    #[allow(clippy::vec_box)]
    all: Vec<Box<Rule>>,
}

impl Versions {
    fn new() -> Versions {
        let all: Vec<_> = matching(0)
            .words()
            .iter()
            .map(|word| (word.word, word.mask))
            .collect();
        Versions {
            tuple: Tuple::with(&all, Secret::numbered),
            domain: Domain::default(),
            next: 1,
            linked: BTreeMap::new(),
            all: Vec::new(),
        }
    }

    /// Ends the version in force of a rule, if there is one; unlinks one that was never published.
    fn end(&mut self, value: u64, priority: u32) {
        let Some(versions) = self.linked.get_mut(&(value, priority)) else {
            return;
        };
        let Some(last) = versions.last().copied() else {
            return;
        };
        // SAFETY: all rules live as long as the test.
        let rule = unsafe { last.as_ref() };
        if rule.removed() != crate::epoch::NEVER {
            return;
        }
        rule.remove_in(self.next);
        if rule.added == self.next {
            self.tuple.remove(last);
            versions.pop();
        }
    }

    fn replace(&mut self, value: u64, priority: u32) {
        self.end(value, priority);
        let spec = RuleSpec {
            priority,
            counter: crate::counters::CounterId(0),
            ops: Arc::new(OpList::new(Vec::new())),
            cookie: self.all.len() as u64,
            matching: matching(value),
        };
        let rule = Box::new(Rule::new(spec, self.next));
        let name = NonNull::from(&*rule);
        self.all.push(rule);
        let versions = self.linked.entry((value, priority)).or_default();
        assert_eq!(
            self.tuple.insert(&self.domain, name),
            versions.last().copied(),
            "the version before it"
        );
        versions.push(name);
    }

    /// Unlinks the oldest version of a rule, if no reader in `quiet` or later needs it.
    fn unlink(&mut self, value: u64, priority: u32, quiet: Epoch) {
        let Some(versions) = self.linked.get_mut(&(value, priority)) else {
            return;
        };
        let Some(first) = versions.first().copied() else {
            return;
        };
        // SAFETY: as above.
        if unsafe { first.as_ref() }.removed() <= quiet {
            self.tuple.remove(first);
            versions.remove(0);
        }
    }

    fn view(&self, value: u64) -> (View<'_>, u64, FlowKey) {
        let mut key = FlowKey::ZERO;
        key.words[at::METADATA / 8] = matching(value).words()[0].value;
        let view = self.tuple.view();
        let hash = view.hash(&key);
        (view, hash, key)
    }

    /// Checks every way to look a value up in `epoch` against what is linked.
    fn check(&self, value: u64, epoch: Epoch) {
        let wanted: Vec<u64> = (self.linked.range((value, 0)..=(value, u32::MAX)).rev())
            .filter_map(|(_, versions)| {
                // SAFETY: as above.
                let mut rules = versions.iter().map(|rule| unsafe { rule.as_ref() });
                rules.find(|rule| rule.holds_in(epoch))
            })
            .map(|rule| rule.spec.cookie)
            .collect();
        let (view, hash, key) = self.view(value);
        let found = view.find(hash, &key, epoch).map(|rule| rule.spec.cookie);
        assert_eq!(found, wanted.first().copied());
        let held = view.held(hash, &key, epoch);
        assert_eq!(
            held.map(|rule| rule.spec.cookie).collect::<Vec<_>>(),
            wanted
        );
        let linked = self.linked.range((value, 0)..=(value, u32::MAX)).rev();
        let linked = linked.flat_map(|(_, versions)| versions.iter().rev().copied());
        let chain = view.chain(hash, &key).map(NonNull::from);
        assert_eq!(chain.collect::<Vec<_>>(), linked.collect::<Vec<_>>());
    }
}

/// Dead versions of a rule do not delay lookups, whether one version is in force or not.
#[test]
fn a_lookup_passes_over_dead_versions_at_once() {
    let mut versions = Versions::new();
    versions.replace(7, 1);
    for _ in 0..10_000 {
        versions.replace(7, 5);
        versions.next += 1;
    }
    let (view, hash, key) = versions.view(7);
    let newest: Vec<_> = newest_from(view.head(hash, &key)).collect();
    assert_eq!(newest.len(), 2, "one of each precedence");
    // A lookup reads the version in force, those that came later, and one that has ended.
    for (back, looks) in [(1, 1), (2, 2), (10, 10)] {
        let epoch = versions.next - back;
        let later = versions_from(newest[0]).take_while(|rule| rule.added > epoch);
        assert_eq!(later.count() + 1, looks);
        versions.check(7, epoch);
    }
    versions.end(7, 5);
    versions.next += 1;
    versions.check(7, versions.next - 1);
    let (view, hash, key) = versions.view(7);
    let found = view.find(hash, &key, versions.next - 1);
    assert_eq!(found.map(|rule| rule.spec.priority), Some(1));
}

proptest! {
    /// Rules are replaced, ended, published and unlinked in any order, in a few chains; readers of
    /// the last four epochs find the right ones.
    #[test]
    fn versions_are_found_by_their_epochs(
        steps in prop::collection::vec((0..3_u64, 1..4_u32, 0..8_u8), 0..300),
    ) {
        let mut versions = Versions::new();
        for (value, priority, what) in steps {
            match what {
                0..=3 => versions.replace(value, priority),
                4 => versions.end(value, priority),
                5 => versions.next += 1,
                _ => {
                    let quiet = versions.next.saturating_sub(4);
                    versions.unlink(value, priority, quiet);
                }
            }
            for epoch in versions.next.saturating_sub(4)..versions.next {
                versions.check(value, epoch);
            }
        }
    }

    /// From an older version, which a rank may name, a reader gets to the newer ones.
    #[test]
    fn older_versions_lead_to_newer_ones(count in 1..20_usize, unlinked in 0..20_usize) {
        let mut versions = Versions::new();
        for _ in 0..count {
            versions.replace(1, 3);
            versions.next += 1;
        }
        let first = versions.linked[&(1, 3)][0];
        for _ in 0..unlinked.min(count - 1) {
            versions.unlink(1, 3, versions.next);
        }
        // SAFETY: all rules live as long as the test.
        let from_first = newest_from(Some(unsafe { first.as_ref() }));
        prop_assert_eq!(from_first.count(), count);
    }
}
