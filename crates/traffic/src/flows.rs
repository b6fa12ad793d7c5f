//! Which flow a frame belongs to: a function of its sequence number, so that a receiver can
//! compute it, too.

use crate::random::{Alias, number};
use crate::spec::Order;

/// Most flows of which each has a weight of its own: their table takes 8 bytes a flow.
pub const MOST_WEIGHED: u64 = 1 << 24;

/// Chooses flows.
#[derive(Clone, Debug)]
pub struct Chooser {
    count: u64,
    seed: u64,
    order: Chosen,
}

#[derive(Clone, Debug)]
enum Chosen {
    InTurn,
    Random,
    Weighed(Alias),
}

impl Chooser {
    /// Makes a chooser among `count` flows, at least 1, and at most [`MOST_WEIGHED`] for zipf.
    pub fn new(count: u64, order: &Order, seed: u64) -> Chooser {
        let order = match *order {
            _ if count == 1 => Chosen::InTurn,
            Order::InTurn => Chosen::InTurn,
            Order::Random => Chosen::Random,
            Order::Zipf { s } => {
                let weights: Vec<f64> = (1..=count).map(|k| (k as f64).powf(-s)).collect();
                Chosen::Weighed(Alias::new(&weights))
            }
        };
        Chooser { count, seed, order }
    }

    /// Returns the flow of frame `sequence`, from 0 on.
    #[inline(always)]
    pub fn of(&self, sequence: u64) -> u64 {
        match &self.order {
            Chosen::InTurn if self.count == 1 => 0,
            // The division of 32-bit numbers takes half as long on many processors.
            Chosen::InTurn => match (u32::try_from(sequence), u32::try_from(self.count)) {
                (Ok(sequence), Ok(count)) => u64::from(sequence % count),
                _ => sequence % self.count,
            },
            Chosen::Random => {
                ((u128::from(number(self.seed, sequence)) * u128::from(self.count)) >> 64) as u64
            }
            Chosen::Weighed(alias) => alias.choose(number(self.seed, sequence)) as u64,
        }
    }

    /// Returns how many flows there are.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::chi_square;

    fn counts(chooser: &Chooser, frames: u64) -> Vec<u64> {
        let mut counts = vec![0; chooser.count() as usize];
        for sequence in 0..frames {
            counts[chooser.of(sequence) as usize] += 1;
        }
        counts
    }

    #[test]
    fn in_turn_is_one_after_the_other() {
        let chooser = Chooser::new(3, &Order::InTurn, 0);
        let flows: Vec<u64> = (0..7).map(|n| chooser.of(n)).collect();
        assert_eq!(flows, [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(chooser.of(1 << 40), (1 << 40) % 3);
        assert_eq!(
            Chooser::new(1 << 33, &Order::InTurn, 0).of(1 << 32),
            1 << 32
        );
    }

    /// 99 degrees of freedom: 148.2 is exceeded by one seed of a thousand.
    const LIMIT: f64 = 148.2;

    #[test]
    fn random_flows_are_equally_likely() {
        for seed in 1..4 {
            let chooser = Chooser::new(100, &Order::Random, seed);
            let chi = chi_square(&counts(&chooser, 100_000), &[1.0; 100]);
            assert!(chi < LIMIT, "{seed}: {chi}");
        }
    }

    #[test]
    fn zipf_has_its_frequencies() {
        for (seed, s) in [(1, 0.5), (2, 1.0), (3, 1.5)] {
            let chooser = Chooser::new(100, &Order::Zipf { s }, seed);
            let weights: Vec<f64> = (1..=100).map(|k| f64::from(k).powf(-s)).collect();
            let found = counts(&chooser, 1_000_000);
            let chi = chi_square(&found, &weights);
            assert!(chi < LIMIT, "{s}: {chi}");
            // The test can tell exponents apart.
            let other: Vec<f64> = (1..=100).map(|k| f64::from(k).powf(-s - 0.02)).collect();
            assert!(chi_square(&found, &other) > LIMIT, "{s}");
        }
    }

    #[test]
    fn a_million_flows_are_no_effort() {
        let chooser = Chooser::new(1_000_000, &Order::Zipf { s: 1.0 }, 5);
        let first = (0..100_000).filter(|&n| chooser.of(n) == 0).count() as f64;
        // The weights' sum is 14.39.
        assert!((first / 100_000.0 - 1.0 / 14.39).abs() < 0.004, "{first}");
    }
}
