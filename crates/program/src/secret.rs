//! Secret hash keys, for hash tables whose keys others choose.
//!
//! An attacker who may choose rules or packets, and knows how they are hashed, can choose many that
//! collide, so that all lookups of them become long. So a hash begins with a number that is drawn
//! at random when its table is made, and where too many collide in spite of that it uses another
//! random multiplier, too.

use packet::Match;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

/// The usual multiplier: from the golden ratio, which spreads consecutive addresses better than
/// chance.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Whether keys are fixed instead of random.
static FIXED: AtomicBool = AtomicBool::new(cfg!(test));

/// Makes this process use the same keys for each table in every run, so that counts of its lookups
/// are reproducible. For benchmarks only: the keys are in this file.
#[doc(hidden)]
pub fn fix() {
    FIXED.store(true, Ordering::Relaxed);
}

/// The key of one table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Secret {
    /// Initial value of a hash.
    pub start: u64,
    /// Multiplier for each word.
    pub factor: u64,
}

impl Secret {
    /// Draws the key of a table that is made for the `attempt`th time (0, 1, ...) with the same
    /// contents: at random, unless [`fix`] has been called.
    pub fn draw(attempt: u32) -> Secret {
        if FIXED.load(Ordering::Relaxed) {
            Secret::numbered(attempt)
        } else {
            Secret::random(attempt)
        }
    }

    /// Draws a random key: `std` seeds this hasher from the system's random numbers.
    pub fn random(attempt: u32) -> Secret {
        let random = RandomState::new();
        Secret::of(random.hash_one(0_u8), random.hash_one(1_u8), attempt)
    }

    /// Returns the fixed key of this number.
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
            // Rules can be chosen so that the usual multiplier spreads them badly whatever the
            // start. Must be odd, because an even one would lose a bit.
            _ => factor | 1,
        };
        Secret { start, factor }
    }

    /// Mixes one more word into a hash.
    #[inline(always)]
    fn mix(self, hash: u64, word: u64) -> u64 {
        let product = u128::from(hash ^ word) * u128::from(self.factor);
        product as u64 ^ (product >> 64) as u64
    }

    /// Hashes these words.
    #[inline(always)]
    pub fn hash(self, words: impl IntoIterator<Item = u64>) -> u64 {
        let words = words.into_iter();
        words.fold(self.start, |hash, word| self.mix(hash, word))
    }

    /// Hashes a rule's values.
    pub fn hash_of(self, matching: &Match) -> u64 {
        self.hash(matching.words().iter().map(|word| word.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knowing one table's key tells nothing of another's; a rebuilt table gets another multiplier.
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
