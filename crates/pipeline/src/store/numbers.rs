//! Rules' numbers by a hash of what they match.
//!
//! One word holds a number and 32 bits of its hash, and stands in the first free place from that hash on, so a question and the insertion that follows it look
//! at one cache line, which can be fetched ahead. Whoever asks compares the rules: two may have one hash. A place that becomes free is closed by those
//! behind it, so there are no marks of what has gone.

use super::RuleId;

/// Places at least.
const LEAST: usize = 16;
const FREE: u64 = 0;

/// The numbers, each with its hash.
#[derive(Default)]
pub(super) struct Numbers {
    /// A power of two of them, at most half taken; none at first.
    places: Vec<u64>,
    taken: usize,
}

/// What stands for a number. Zero stands for none: numbers are below `u32::MAX`.
fn word(hash: u64, id: RuleId) -> u64 {
    (u64::from(id) + 1) << 32 | u64::from(hash as u32)
}

fn id_of(word: u64) -> RuleId {
    ((word >> 32) - 1) as RuleId
}

impl Numbers {
    fn first(&self, hash: u64) -> usize {
        hash as u32 as usize & (self.places.len() - 1)
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    /// Fetches what a question about this hash will look at first.
    pub fn expect(&self, hash: u64) {
        if !self.places.is_empty() {
            program::prefetch(&self.places[self.first(hash)]);
        }
    }

    /// The numbers of this hash, and perhaps others.
    pub fn of(&self, hash: u64) -> impl Iterator<Item = RuleId> {
        let mut place = if self.places.is_empty() {
            None
        } else {
            Some(self.first(hash))
        };
        std::iter::from_fn(move || {
            loop {
                let at = place?;
                let found = self.places[at];
                place = (found != FREE).then(|| self.after(at));
                if found != FREE && found as u32 == hash as u32 {
                    return Some(id_of(found));
                }
            }
        })
    }

    /// Adds a number, which is not there.
    pub fn insert(&mut self, hash: u64, id: RuleId) {
        if (self.taken + 1) * 2 > self.places.len() {
            self.resize((self.places.len() * 2).max(LEAST));
        }
        self.taken += 1;
        self.put(word(hash, id));
    }

    fn put(&mut self, word: u64) {
        let mut place = self.first(word);
        while self.places[place] != FREE {
            place = self.after(place);
        }
        self.places[place] = word;
    }

    fn resize(&mut self, places: usize) {
        let old = std::mem::replace(&mut self.places, vec![FREE; places]);
        for word in old.into_iter().filter(|word| *word != FREE) {
            self.put(word);
        }
    }

    /// Takes a number out, if it is there.
    pub fn remove(&mut self, hash: u64, id: RuleId) {
        if self.places.is_empty() {
            return;
        }
        let wanted = word(hash, id);
        let mut place = self.first(hash);
        while self.places[place] != wanted {
            if self.places[place] == FREE {
                return;
            }
            place = self.after(place);
        }
        self.close(place);
        self.taken -= 1;
        if self.places.len() > LEAST && self.taken * 8 < self.places.len() {
            self.resize(self.places.len() / 4);
        }
    }

    /// Frees a place, into which moves what is behind it and may stand there.
    fn close(&mut self, mut free: usize) {
        let mask = self.places.len() - 1;
        let mut place = free;
        loop {
            place = self.after(place);
            let word = self.places[place];
            if word == FREE {
                break;
            }
            // It may go where it is found on the way from its first place to where it stands.
            let wished = self.first(word);
            if place.wrapping_sub(wished) & mask >= place.wrapping_sub(free) & mask {
                self.places[free] = word;
                free = place;
            }
        }
        self.places[free] = FREE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// As a list of pairs, while numbers come and go; hashes meet often, in all of their bits or only in the low ones.
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

    #[test]
    fn memory_goes_with_the_numbers() {
        let mut numbers = Numbers::default();
        let hash = |id: RuleId| u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (0..100_000).for_each(|id| numbers.insert(hash(id), id));
        assert!((0..100_000).all(|id| numbers.of(hash(id)).any(|found| found == id)));
        (0..100_000).for_each(|id| numbers.remove(hash(id), id));
        assert!(numbers.taken == 0 && numbers.places.len() <= LEAST);
    }
}
