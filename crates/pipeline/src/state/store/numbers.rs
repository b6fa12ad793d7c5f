//! A hash table of rule numbers, by a hash of table, match and priority.
//!
//! Each entry is one word with a number and 32 bits of its hash, in the first free place from that
//! hash on (linear probing), so a lookup and the insertion that follows it look at one cache line,
//! which can be prefetched. The caller compares the rules: two may have one hash. A freed place is
//! filled from the entries behind it, so there are no tombstones.
//!
//! When the table grows or shrinks, entries move a few at a time, with each insertion and removal:
//! moving a million at once takes a quarter of a second. Meanwhile an entry is in either the old or
//! the new places.

use super::RuleId;

/// Minimum number of places.
const LEAST: usize = 16;
const FREE: u64 = 0;
/// Steps of moving with each insertion or removal. A step takes one entry or passes one free place,
/// so a move takes about 1.5 steps per place. Another can begin at the earliest after a sixteenth
/// as many insertions or removals as there are places; by then the move has ended.
const STEPS: usize = 32;

/// The numbers, each with its hash.
#[derive(Default)]
pub(super) struct Numbers {
    /// At most half full; empty at first.
    places: Places,
    /// The places from which entries are being moved; `moved` is how far this has come.
    old: Places,
    moved: usize,
    /// Entries in both.
    taken: usize,
}

/// A power of two of places, or none.
#[derive(Default)]
struct Places(Vec<u64>);

/// Encodes an entry. Zero means free: numbers are below `u32::MAX`.
fn word(hash: u64, id: RuleId) -> u64 {
    (u64::from(id) + 1) << 32 | u64::from(hash as u32)
}

fn id_of(word: u64) -> RuleId {
    ((word >> 32) - 1) as RuleId
}

impl Places {
    fn first(&self, hash: u64) -> usize {
        hash as u32 as usize & (self.0.len() - 1)
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.0.len() - 1)
    }

    fn expect(&self, hash: u64) {
        if !self.0.is_empty() {
            program::prefetch(&self.0[self.first(hash)]);
        }
    }

    fn of(&self, hash: u64) -> impl Iterator<Item = RuleId> {
        let mut place = (!self.0.is_empty()).then(|| self.first(hash));
        std::iter::from_fn(move || {
            loop {
                let at = place?;
                let found = self.0[at];
                place = (found != FREE).then(|| self.after(at));
                if found != FREE && found as u32 == hash as u32 {
                    return Some(id_of(found));
                }
            }
        })
    }

    fn put(&mut self, word: u64) {
        let mut place = self.first(word);
        while self.0[place] != FREE {
            place = self.after(place);
        }
        self.0[place] = word;
    }

    /// Removes an entry; false if it is not there.
    fn remove(&mut self, word: u64) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let mut place = self.first(word);
        while self.0[place] != word {
            if self.0[place] == FREE {
                return false;
            }
            place = self.after(place);
        }
        self.close(place);
        true
    }

    /// Frees a place, moving entries behind it forward where lookups still find them.
    fn close(&mut self, mut free: usize) {
        let mask = self.0.len() - 1;
        let mut place = free;
        loop {
            place = self.after(place);
            let word = self.0[place];
            if word == FREE {
                break;
            }
            // An entry may move to any place between its hash's first place and its current one.
            let wished = self.first(word);
            if place.wrapping_sub(wished) & mask >= place.wrapping_sub(free) & mask {
                self.0[free] = word;
                free = place;
            }
        }
        self.0[free] = FREE;
    }
}

impl Numbers {
    /// Prefetches the first memory that a lookup of this hash reads.
    pub fn expect(&self, hash: u64) {
        self.places.expect(hash);
        self.old.expect(hash);
    }

    /// Returns the numbers of this hash, and perhaps others.
    pub fn of(&self, hash: u64) -> impl Iterator<Item = RuleId> {
        self.places.of(hash).chain(self.old.of(hash))
    }

    /// Adds a number that is not there yet.
    pub fn insert(&mut self, hash: u64, id: RuleId) {
        let places = self.places.0.len();
        if (self.taken + 1) * 2 > places {
            self.resize((places * 2).max(LEAST));
        }
        self.taken += 1;
        self.places.put(word(hash, id));
        self.go_on(STEPS);
    }

    /// Removes a number, if it is there.
    pub fn remove(&mut self, hash: u64, id: RuleId) {
        let word = word(hash, id);
        if !self.places.remove(word) && !self.old.remove(word) {
            return;
        }
        self.taken -= 1;
        let places = self.places.0.len();
        if places > LEAST && self.taken * 16 < places {
            self.resize((places / 4).max(LEAST));
        }
        self.go_on(STEPS);
    }

    fn resize(&mut self, places: usize) {
        // Usually the previous move has ended long ago.
        self.go_on(usize::MAX);
        self.old = std::mem::replace(&mut self.places, Places(vec![FREE; places]));
        self.moved = 0;
    }

    /// Moves entries out of the old places, `steps` steps of one entry or one free place each.
    fn go_on(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(word) = self.old.0.get(self.moved).copied() else {
                (self.old, self.moved) = Default::default();
                return;
            };
            if word == FREE {
                self.moved += 1;
            } else {
                // The entries behind it move forward, so that lookups still find them.
                self.old.close(self.moved);
                self.places.put(word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Behaves like a list of pairs while numbers come and go; hashes often collide, in all of
        /// their bits or only in the low ones.
        #[test]
        fn as_a_set_of_pairs(changes in prop::collection::vec((any::<bool>(), 0..12_u64, 0..3_u64, 0..40_u32), 1..600)) {
            let mut numbers = Numbers::default();
            let mut pairs: BTreeSet<(u64, RuleId)> = BTreeSet::new();
            for (come, low, high, id) in changes {
                let hash = low | high << 8 | high << 40;
                if !come {
                    numbers.remove(hash, id);
                    pairs.remove(&(hash, id));
                } else if pairs.insert((hash, id)) {
                    numbers.insert(hash, id);
                }
                prop_assert_eq!(numbers.taken, pairs.len());
                for hash in (0..12).flat_map(|low| (0..3).map(move |high| low | high << 8 | high << 40)) {
                    let mut found: Vec<RuleId> = numbers.of(hash).collect();
                    found.sort_unstable();
                    let wanted: Vec<RuleId> = pairs.iter().filter(|pair| pair.0 == hash).map(|pair| pair.1).collect();
                    prop_assert_eq!(found, wanted);
                }
            }
        }
    }

    /// While the table grows or shrinks all numbers are found, and no operation moves all of them.
    #[test]
    fn numbers_move_some_at_a_time() {
        let mut numbers = Numbers::default();
        let hash = |id: RuleId| u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let is_there = |numbers: &Numbers, id| numbers.of(hash(id)).any(|found| found == id);
        let (mut between, mut begun) = (0, 0);
        let mut note = |numbers: &Numbers| {
            between += usize::from(!numbers.old.0.is_empty());
            // A move that has just begun has taken at most this many steps.
            begun += usize::from(numbers.moved > 0 && numbers.moved <= STEPS);
        };
        for id in 0..50_000 {
            numbers.insert(hash(id), id);
            note(&numbers);
            assert!(is_there(&numbers, id) && is_there(&numbers, id / 2));
        }
        for id in 0..50_000 {
            numbers.remove(hash(id), id);
            note(&numbers);
            assert!(!is_there(&numbers, id) && (id == 49_999 || is_there(&numbers, 49_999)));
            let later = id + (50_000 - id) / 2;
            assert!(later == id || later >= 50_000 || is_there(&numbers, later));
        }
        assert!(
            numbers.taken == 0 && between > 5_000 && begun > 10,
            "{between} {begun}"
        );
    }

    #[test]
    fn memory_goes_with_the_numbers() {
        let mut numbers = Numbers::default();
        let hash = |id: RuleId| u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (0..100_000).for_each(|id| numbers.insert(hash(id), id));
        assert!((0..100_000).all(|id| numbers.of(hash(id)).any(|found| found == id)));
        (0..100_000).for_each(|id| numbers.remove(hash(id), id));
        assert!(numbers.taken == 0 && numbers.places.0.len() <= LEAST);
    }
}
