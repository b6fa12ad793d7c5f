//! Which flow a frame belongs to: a function of its sequence number, so that a receiver can
//! compute it, too.

use crate::random::{Alias, number, share};
use crate::spec::Order;
use std::sync::Arc;

/// Most flows of which each has a weight of its own: their table takes 8 bytes a flow.
pub const MOST_WEIGHED: u64 = 1 << 24;
/// Most frames of a period of [`Order::Pareto`], 4 bytes each.
pub const PERIOD_MAX: u64 = 1 << 24;
/// Most frames of a flow in a row.
const ROW_MAX: f64 = 65_536.0;

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
    /// The flows of the frames of a period.
    Period(Arc<[u32]>),
}

impl Chooser {
    /// Makes a chooser among `count` flows, at least 1, and at most [`MOST_WEIGHED`] for zipf and
    /// Pareto. A period of Pareto's ends with [`PERIOD_MAX`] frames; if that is before its last
    /// flow, [`Chooser::is_whole`] says so.
    pub fn new(count: u64, order: &Order, seed: u64) -> Chooser {
        let order = match *order {
            _ if count == 1 => Chosen::InTurn,
            Order::InTurn => Chosen::InTurn,
            Order::Random => Chosen::Random,
            Order::Zipf { s } => {
                let weights: Vec<f64> = (1..=count).map(|k| (k as f64).powf(-s)).collect();
                Chosen::Weighed(Alias::new(&weights))
            }
            Order::Pareto { a, b } => {
                let mut period = Vec::new();
                for flow in 0..count {
                    let frames = (b * share(seed, flow).powf(-1.0 / a))
                        .ceil()
                        .clamp(1.0, ROW_MAX);
                    period.extend(std::iter::repeat_n(flow as u32, frames as usize));
                    if period.len() as u64 > PERIOD_MAX {
                        break;
                    }
                }
                period.truncate(PERIOD_MAX as usize);
                Chosen::Period(period.into())
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
            Chosen::Period(flows) => flows[(sequence % flows.len() as u64) as usize].into(),
        }
    }

    /// Returns the flows of frame `sequence` and those behind it.
    #[inline(always)]
    pub fn from(&self, sequence: u64) -> Flows<'_> {
        Flows {
            chooser: self,
            sequence,
            next: self.of(sequence),
        }
    }

    /// Returns whether every flow has its turn.
    pub fn is_whole(&self) -> bool {
        match &self.order {
            Chosen::Period(flows) => flows.last().copied() == Some((self.count - 1) as u32),
            _ => true,
        }
    }

    /// Returns how many flows there are.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Flows of frames in order: in turn, without a division for each frame.
pub struct Flows<'a> {
    chooser: &'a Chooser,
    sequence: u64,
    next: u64,
}

impl Flows<'_> {
    /// Returns the flow of the next frame.
    #[inline(always)]
    pub fn take(&mut self) -> u64 {
        let flow = self.next;
        self.sequence += 1;
        self.next = match &self.chooser.order {
            Chosen::InTurn if flow + 1 == self.chooser.count => 0,
            Chosen::InTurn => flow + 1,
            _ => self.chooser.of(self.sequence),
        };
        flow
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

    #[test]
    fn flows_in_order_are_those_of_their_frames() {
        let some = 1 << 32;
        for order in [
            Order::InTurn,
            Order::Random,
            Order::Zipf { s: 1.0 },
            Order::Pareto { a: 1.0, b: 0.5 },
        ] {
            for (count, first) in [(1, 0), (3, 1), (1000, 995), (7, some - 3)] {
                let chooser = Chooser::new(count, &order, 5);
                let mut flows = chooser.from(first);
                for sequence in first..first + 20 {
                    assert_eq!(flows.take(), chooser.of(sequence), "{order:?} {count}");
                }
            }
        }
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

    /// Chi-square of the lengths of runs against Pareto's distribution: 1, 2 to 3, 4 to 7, and so
    /// on.
    #[test]
    fn pareto_has_its_runs() {
        let count = 200_000;
        for (seed, a, b) in [(1, 1.0, 0.1), (2, 1.0, 0.9), (3, 2.0, 0.5)] {
            let chooser = Chooser::new(count, &Order::Pareto { a, b }, seed);
            assert!(chooser.is_whole());
            let Chosen::Period(period) = &chooser.order else {
                unreachable!("it is asked for")
            };
            let mut runs = vec![0; 8];
            let mut next = 0;
            for run in period.chunk_by(|a, b| a == b) {
                assert_eq!(run[0], next, "each flow has one run");
                next += 1;
                runs[run.len().ilog2().min(7) as usize] += 1;
            }
            assert_eq!(u64::from(next), count);
            let above = |n: f64| if n < b { 1.0 } else { (b / n).powf(a) };
            let weights: Vec<f64> = (0..8)
                .map(|k| {
                    let low = above(2_f64.powi(k) - 1.0);
                    let low = if k == 0 { 1.0 } else { low };
                    let high = above(2_f64.powi(k + 1) - 1.0);
                    low - if k == 7 { 0.0 } else { high }
                })
                .collect();
            let chi = chi_square(&runs, &weights);
            // 7 degrees of freedom: exceeded by one seed of a thousand.
            assert!(chi < 24.3, "{a} {b}: {chi} {runs:?} {weights:?}");
        }
        let endless = Order::Pareto { a: 0.1, b: 1.0 };
        assert!(!Chooser::new(1_000_000, &endless, 1).is_whole());
    }

    #[test]
    fn a_million_flows_are_no_effort() {
        let chooser = Chooser::new(1_000_000, &Order::Zipf { s: 1.0 }, 5);
        let first = (0..100_000).filter(|&n| chooser.of(n) == 0).count() as f64;
        // The weights' sum is 14.39.
        assert!((first / 100_000.0 - 1.0 / 14.39).abs() < 0.004, "{first}");
    }
}
