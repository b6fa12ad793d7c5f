//! A fast keyed hash for maps whose keys peers choose and that are looked up for every rule: one
//! multiplication per word, by a secret number, so that peers cannot construct collisions.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Builds hashers that share one secret; each `default()` draws a new one.
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

/// A hash that multiplies word by word and xors both halves of the 128-bit product.
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
