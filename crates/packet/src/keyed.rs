//! Hashes for what peers choose and what is asked for with every rule: a multiplication for each
//! word, by numbers that peers do not know.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes hashers of one secret, which each `default()` draws anew.
#[derive(Clone, Debug)]
pub struct Keyed {
    start: u64,
    factor: u64,
}

impl Default for Keyed {
    fn default() -> Self {
        let random = RandomState::new();
        Keyed {
            start: random.hash_one(0),
            factor: random.hash_one(1) | 1,
        }
    }
}

impl BuildHasher for Keyed {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding {
            hash: self.start,
            factor: self.factor,
        }
    }
}

/// A hash that grows word by word: both halves of the product count.
#[derive(Debug)]
pub struct Folding {
    hash: u64,
    factor: u64,
}

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
        self.write_u64(bytes.len() as u64);
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.hash ^ word) * u128::from(self.factor);
        self.hash = product as u64 ^ (product >> 64) as u64;
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}
