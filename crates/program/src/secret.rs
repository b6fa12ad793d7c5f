//! Numbers that nobody outside knows, for hash tables whose keys others choose.
//!
//! Whoever may choose rules, or packets, and knows how they are hashed can choose many that meet in
//! one place, so that all lookups there become long. So a hash begins with a number that is drawn
//! at random when its table is made, and where too many have met in spite of that it is multiplied
//! by another one, too.

use packet::Match;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

/// What most hashes are multiplied by: of the golden ratio, with which addresses in a row are
/// spread better than by chance.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Whether nothing is drawn.
static FIXED: AtomicBool = AtomicBool::new(cfg!(test));

/// Makes every table of this process from now on as in any other that calls this, so that what is
/// counted of its lookups is the same from run to run. For benchmarks only: the numbers stand in
/// this file.
#[doc(hidden)]
pub fn fix() {
    FIXED.store(true, Ordering::Relaxed);
}

/// What one table hashes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Secret {
    /// A hash begins with this.
    pub start: u64,
    /// And is multiplied by this with each word.
    pub factor: u64,
}

impl Secret {
    /// For a table that is made for the `attempt`th time (0, 1, ...) without what it holds having
    /// become different: at random, unless somebody has called [`fix`].
    pub fn draw(attempt: u32) -> Secret {
        if FIXED.load(Ordering::Relaxed) {
            Secret::numbered(attempt)
        } else {
            Secret::random(attempt)
        }
    }

    /// At random: `std` draws the keys of the hash that this is of from the system's source of
    /// random numbers.
    pub fn random(attempt: u32) -> Secret {
        let random = RandomState::new();
        Secret::of(random.hash_one(0_u8), random.hash_one(1_u8), attempt)
    }

    /// The same one for each number, and the first attempt's for ever.
    pub fn numbered(attempt: u32) -> Secret {
        let number = u64::from(attempt) << 32;
        Secret::of(
            0x2545_f491_4f6c_dd1d ^ number,
            0xd6e8_feb8_6659_fd93 ^ number,
            attempt,
        )
    }

    fn of(start: u64, factor: u64, attempt: u32) -> Secret {
        let factor = match attempt {
            0 => GOLDEN,
            // Rules can be so chosen that the usual one spreads them badly whatever a hash begins
            // with. Not an even one, which would lose a bit.
            _ => factor | 1,
        };
        Secret { start, factor }
    }

    /// A hash that goes on with one more word.
    #[inline(always)]
    fn mix(self, hash: u64, word: u64) -> u64 {
        let product = u128::from(hash ^ word) * u128::from(self.factor);
        product as u64 ^ (product >> 64) as u64
    }

    /// The hash of these words.
    #[inline(always)]
    pub fn hash(self, words: impl IntoIterator<Item = u64>) -> u64 {
        let words = words.into_iter();
        words.fold(self.start, |hash, word| self.mix(hash, word))
    }

    /// The hash of a rule's values.
    pub fn hash_of(self, matching: &Match) -> u64 {
        self.hash(matching.words().iter().map(|word| word.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever knows the numbers of one table knows those of no other; a table that is made anew
    /// gets another factor.
    #[test]
    fn no_table_hashes_as_another() {
        let all: Vec<Secret> = (0..50).map(Secret::random).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.start != one.start));
            assert!(at < 2 || all[..at].iter().all(|other| other.factor != one.factor));
            assert_eq!(one.factor % 2, 1);
        }
        assert_eq!(Secret::numbered(3), Secret::numbered(3));
        assert_ne!(Secret::random(0).start, Secret::random(0).start);
        assert_eq!(Secret::draw(1), Secret::numbered(1), "tests' own");
    }
}
