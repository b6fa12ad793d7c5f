//! Simulates independent gaps and sizes, drawn from a description or from records, through the
//! shaper's own rules: bucket, limit, bound and ticks.
//!
//! The simulation has a fixed seed, so its result is reproducible, and takes some milliseconds.

use crate::model::Outcome;
use crate::queue::{Arrivals, Load, Server};
use crate::random::{Draw, Random};
use crate::{Error, Z95};
use std::collections::VecDeque;

/// Default number of packets drawn.
pub const STEPS: usize = 200_000;
/// Most exponential phases of a gap.
const MOST_PHASES: f64 = 64.0;
/// Batches from which its statistical error is estimated.
const BATCHES: usize = 20;

/// Result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// The means.
    pub outcome: Outcome,
    /// Relative standard deviation of the mean wait, from the simulation's randomness.
    pub deviation: f64,
}

enum Gaps {
    Exponential(f64),
    Fixed(f64),
    /// Exponential with one of two means: probability of the first, both means.
    Either(f64, f64, f64),
    /// A constant plus the sum of this many exponential gaps of this mean.
    Sum(f64, u32, f64),
    /// Zero, or with this probability exponential.
    Batches(f64, f64),
    Drawn(Draw),
}

impl Gaps {
    fn of(load: &Load) -> Gaps {
        if let Some(draw) = Draw::new(&load.gaps) {
            return Gaps::Drawn(draw);
        }
        let mean = 1.0 / load.packets;
        match load.arrivals {
            Arrivals::Poisson => Gaps::Exponential(mean),
            Arrivals::Periodic => Gaps::Fixed(mean),
            Arrivals::Batches(size) => Gaps::Batches(1.0 / size, mean * size),
            Arrivals::Varying(scv) if scv < 1e-4 => Gaps::Fixed(mean),
            Arrivals::Varying(scv) if scv < 1.0 => {
                let count = (1.0 / scv).round().clamp(1.0, MOST_PHASES);
                // If more phases would be needed, only a part of the gap varies.
                let share = (scv * MOST_PHASES).sqrt().min(1.0);
                Gaps::Sum(mean * (1.0 - share), count as u32, mean * share / count)
            }
            Arrivals::Varying(scv) => {
                // Two phases with balanced means.
                let share = (1.0 + ((scv - 1.0) / (scv + 1.0)).sqrt()) / 2.0;
                Gaps::Either(share, mean / (2.0 * share), mean / (2.0 * (1.0 - share)))
            }
        }
    }

    #[inline]
    fn draw(&self, random: &mut Random) -> f64 {
        match self {
            Gaps::Exponential(mean) => random.exponential(*mean),
            Gaps::Fixed(gap) => *gap,
            Gaps::Either(share, short, long) => {
                let mean = if random.unit() < *share { short } else { long };
                random.exponential(*mean)
            }
            Gaps::Sum(fixed, count, mean) => {
                let varying: f64 = (0..*count).map(|_| random.exponential(*mean)).sum();
                fixed + varying
            }
            Gaps::Batches(share, mean) => {
                if random.unit() < *share {
                    random.exponential(*mean)
                } else {
                    0.0
                }
            }
            Gaps::Drawn(draw) => draw.draw(random),
        }
    }
}

/// Simulates this many packets.
pub fn simulate(server: &Server, load: &Load, steps: usize, seed: u64) -> Result<Run, Error> {
    server.check()?;
    load.check()?;
    let endless = server.limit.is_none() && server.bound.is_none();
    if endless && load.utilization(server) >= 1.0 {
        return Ok(Run {
            outcome: Outcome {
                wait: f64::INFINITY,
                loss: 0.0,
            },
            deviation: 0.0,
        });
    }
    let sizes = Draw::new(&load.sizes).ok_or_else(|| Error::new("the sizes' weights are all 0"))?;
    let gaps = Gaps::of(load);
    let mut random = Random::new(seed);
    let limit = server
        .limit
        .map_or(usize::MAX, |limit| limit.round() as usize);
    let bound = server.bound.unwrap_or(f64::INFINITY);
    let warm_up = steps / 10;
    let (mut now, mut loan) = (0.0_f64, 0.0_f64);
    let mut waiting: VecDeque<f64> = VecDeque::new();
    let mut batches = [(0.0_f64, 0.0_f64); BATCHES];
    let mut refused = 0.0;
    for step in 0..steps + warm_up {
        let gap = gaps.draw(&mut random);
        now += gap;
        loan = (loan - gap * server.rate).max(0.0);
        while waiting.front().is_some_and(|leaves| *leaves <= now) {
            waiting.pop_front();
        }
        let mut size = sizes.draw(&mut random);
        if load.exponential_sizes {
            size = random.exponential(size);
        }
        let mut wait = (loan - server.burst).max(0.0) / server.rate;
        let counts = step >= warm_up;
        if wait > bound || waiting.len() >= limit {
            refused += f64::from(u8::from(counts));
            continue;
        }
        if wait > 0.0 {
            if server.tick > 0.0 {
                wait = ((now + wait) / server.tick).ceil() * server.tick - now;
            }
            if limit != usize::MAX {
                waiting.push_back(now + wait);
            }
        }
        loan += size;
        if counts {
            let batch = &mut batches[(step - warm_up) * BATCHES / steps];
            batch.0 += wait;
            batch.1 += 1.0;
        }
    }
    let sum: f64 = batches.iter().map(|batch| batch.0).sum();
    let sent: f64 = batches.iter().map(|batch| batch.1).sum();
    let wait = sum / sent.max(1.0);
    let squares: f64 = batches
        .iter()
        .map(|batch| (batch.0 - wait * batch.1).powi(2))
        .sum();
    let deviation = if sum > 0.0 {
        (squares * 1.05).sqrt() / sum
    } else {
        0.0
    };
    Ok(Run {
        outcome: Outcome {
            wait,
            loss: refused / steps as f64,
        },
        deviation: deviation.min(1.0 / Z95),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_gaps_take_few_draws_and_vary_as_said() {
        for scv in [0.5, 0.01, 0.0004] {
            let load = Load::new(1e6, 1000.0, Arrivals::Varying(scv));
            let gaps = Gaps::of(&load);
            assert!(
                matches!(gaps, Gaps::Sum(_, phases, _) if phases <= 64),
                "{scv}"
            );
            let mut random = Random::new(7);
            let count = 20_000;
            let (mut sum, mut squares) = (0.0, 0.0);
            for _ in 0..count {
                let gap = gaps.draw(&mut random) * load.packets - 1.0;
                sum += gap;
                squares += gap * gap;
            }
            let (mean, variance) = (sum / f64::from(count), squares / f64::from(count));
            assert!(
                mean.abs() < 5.0 * (scv / f64::from(count)).sqrt(),
                "{scv}: {mean}"
            );
            assert!((variance / scv - 1.0).abs() < 0.1, "{scv}: {variance}");
        }
    }
}
