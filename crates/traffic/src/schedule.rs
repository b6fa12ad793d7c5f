//! When frames are due.

use crate::random::share;
use std::sync::Arc;

/// When the next frame is due. Times are in nanoseconds from the run's start.
#[derive(Clone, Debug)]
pub struct Schedule {
    kind: Arrivals,
    seed: u64,
    /// How many random numbers have been taken.
    drawn: u64,
    /// How many frames have been taken.
    taken: u64,
    next: u64,
}

/// Kinds of schedules.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// Always.
    Most,
    /// At this distance, in nanoseconds, so many frames at a time.
    Even {
        /// From one burst to the next.
        distance: f64,
        /// Frames of a burst, at least 1.
        length: u64,
    },
    /// With exponential distances of this mean.
    Poisson {
        /// Mean distance, nanoseconds.
        mean: f64,
        /// The time of the next frame, not rounded.
        at: f64,
    },
    /// At even distances while it is on.
    OnOff {
        /// Distance while on, nanoseconds.
        distance: f64,
        /// Mean time on, nanoseconds.
        on: f64,
        /// Mean time off, nanoseconds.
        off: f64,
        /// The time of the next frame, not rounded.
        at: f64,
        /// When the present time on ends.
        until: f64,
    },
    /// At distances that change.
    Steps {
        /// Each begins later than the one before; the first at 0.
        parts: Arc<[Part]>,
        /// The number of the first frame of each part that has begun; at first 0.
        firsts: Vec<u64>,
    },
    /// At recorded times, from the first one on, again and again.
    Recorded {
        /// Times, never decreasing.
        times: Arc<[u64]>,
        /// From the start to the start of the next round.
        round: u64,
    },
}

/// A part of a schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// When it begins, nanoseconds from the schedule's start. A frame is due then.
    pub from: f64,
    /// From one frame to the next, nanoseconds.
    pub distance: f64,
}

impl Schedule {
    /// Makes a schedule. Distances must be above 0.
    pub fn new(kind: Arrivals, seed: u64) -> Schedule {
        let mut schedule = Schedule {
            kind,
            seed,
            drawn: 0,
            taken: 0,
            next: 0,
        };
        if let Arrivals::OnOff { on, .. } = schedule.kind {
            let first = schedule.exponential(on);
            if let Arrivals::OnOff { until, .. } = &mut schedule.kind {
                *until = first;
            }
        }
        schedule
    }

    /// Returns whether frames are always due.
    pub fn is_most(&self) -> bool {
        matches!(self.kind, Arrivals::Most)
    }

    /// Returns the mean distance of two frames and the distance of two bursts, nanoseconds, where
    /// these are exact.
    pub fn distances(&self) -> Option<(f64, f64)> {
        match self.kind {
            Arrivals::Even { distance, length } => Some((distance / length as f64, distance)),
            _ => None,
        }
    }

    /// Returns the parts of a schedule that has any.
    #[inline(always)]
    pub fn parts(&self) -> &[Part] {
        match &self.kind {
            Arrivals::Steps { parts, .. } => parts,
            _ => &[],
        }
    }

    /// Returns when a frame was due, of those taken from a schedule with parts; None if it was not
    /// taken, or there are no parts.
    pub fn time_of(&self, number: u64) -> Option<u64> {
        let Arrivals::Steps { parts, firsts } = &self.kind else {
            return None;
        };
        if number >= self.taken {
            return None;
        }
        // One that has no frame begins with the one after it.
        let step = firsts
            .partition_point(|first| *first <= number)
            .checked_sub(1)?;
        let part = parts.get(step)?;
        Some((part.from + (number - firsts[step]) as f64 * part.distance) as u64)
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        self.drawn += 1;
        -share(self.seed, self.drawn).ln() * mean
    }

    /// Returns the time at which the next frame is due.
    #[inline(always)]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Goes on to the frame after the next.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.taken += 1;
        match &mut self.kind {
            Arrivals::Most => {}
            Arrivals::Even {
                distance,
                length: 1,
            } => self.next = (self.taken as f64 * *distance) as u64,
            Arrivals::Even { distance, length } => {
                if self.taken.is_multiple_of(*length) {
                    self.next = ((self.taken / *length) as f64 * *distance) as u64;
                }
            }
            _ => self.advance_slowly(),
        }
    }

    fn advance_slowly(&mut self) {
        match self.kind {
            Arrivals::Steps {
                ref parts,
                ref mut firsts,
            } => {
                let step = firsts.len() - 1;
                let part = &parts[step];
                let next = part.from + (self.taken - firsts[step]) as f64 * part.distance;
                match parts.get(step + 1) {
                    Some(after) if next >= after.from => {
                        firsts.push(self.taken);
                        self.next = after.from as u64;
                    }
                    _ => self.next = next as u64,
                }
            }
            Arrivals::Poisson { mean, at } => {
                let next = at + self.exponential(mean);
                self.kind = Arrivals::Poisson { mean, at: next };
                self.next = next as u64;
            }
            Arrivals::OnOff {
                distance,
                on,
                off,
                mut at,
                mut until,
            } => {
                at += distance;
                // A time on may be shorter than the distance: then nothing is sent in it.
                while at >= until {
                    let begin = until + self.exponential(off);
                    at = at.max(begin);
                    until = begin + self.exponential(on);
                }
                self.kind = Arrivals::OnOff {
                    distance,
                    on,
                    off,
                    at,
                    until,
                };
                self.next = at as u64;
            }
            Arrivals::Recorded { ref times, round } => {
                let count = times.len().max(1) as u64;
                let place = (self.taken % count) as usize;
                let offset = times.get(place).copied().unwrap_or(0);
                self.next = (self.taken / count) * round + offset;
            }
            Arrivals::Most | Arrivals::Even { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::chi_square;
    use proptest::prelude::*;

    fn times(schedule: &mut Schedule, count: usize) -> Vec<u64> {
        (0..count)
            .map(|_| {
                let next = schedule.next();
                schedule.advance();
                next
            })
            .collect()
    }

    proptest! {
        #[test]
        fn the_rate_is_exact(pps in 1.0_f64..5e7, length in 1_u64..100) {
            let kind = Arrivals::Even { distance: 1e9 / pps * length as f64, length };
            let all = times(&mut Schedule::new(kind, 0), 10_000);
            for (n, &time) in all.iter().enumerate() {
                let burst = n as u64 / length * length;
                let exact = burst as f64 * 1e9 / pps;
                prop_assert!((time as f64 - exact).abs() <= 1.0 + exact * 1e-12, "{n}");
            }
        }
    }

    #[test]
    fn poisson_has_exponential_distances() {
        for seed in 1..4 {
            let kind = Arrivals::Poisson {
                mean: 1000.0,
                at: 0.0,
            };
            let all = times(&mut Schedule::new(kind, seed), 100_001);
            // Twenty classes, equally likely.
            let mut counts = [0; 20];
            for pair in all.windows(2) {
                let distance = (pair[1] - pair[0]) as f64 / 1000.0;
                counts[((1.0 - (-distance).exp()) * 20.0) as usize] += 1;
            }
            // 19 degrees of freedom: 43.8 is exceeded by one seed of a thousand.
            let chi = chi_square(&counts, &[1.0; 20]);
            assert!(chi < 43.8, "{seed}: {chi}");
        }
    }

    #[test]
    fn on_and_off_take_their_shares() {
        let kind = Arrivals::OnOff {
            distance: 1000.0,
            on: 1e6,
            off: 3e6,
            at: 0.0,
            until: 0.0,
        };
        let all = times(&mut Schedule::new(kind, 1), 1_000_000);
        let last = *all.last().unwrap() as f64;
        let rate = all.len() as f64 / last * 1e9;
        assert!((rate / 250_000.0 - 1.0).abs() < 0.1, "{rate}");
        let off: Vec<u64> = all.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let apart = off.iter().filter(|&&distance| distance > 1001).count();
        // A thousand times on, of 1000 frames each.
        assert!((900..1100).contains(&apart), "{apart}");
        assert!(off.iter().all(|&distance| distance >= 999));
    }

    #[test]
    fn steps_begin_when_they_should() {
        let part = |from, distance| Part { from, distance };
        let kind = Arrivals::Steps {
            parts: [part(0.0, 10.0), part(35.0, 100.0), part(40.0, 2.5)].into(),
            firsts: vec![0],
        };
        let mut schedule = Schedule::new(kind, 0);
        assert_eq!(schedule.time_of(0), None);
        let all = times(&mut schedule, 8);
        assert_eq!(all, [0, 10, 20, 30, 35, 40, 42, 45]);
        for (number, time) in (0..).zip(all) {
            assert_eq!(schedule.time_of(number), Some(time), "{number}");
        }
        assert_eq!(schedule.time_of(8), None);
        assert_eq!(schedule.parts().len(), 3);
    }

    #[test]
    fn recorded_times_are_kept_and_repeated() {
        let kind = Arrivals::Recorded {
            times: [0, 5, 5, 30].into(),
            round: 40,
        };
        let all = times(&mut Schedule::new(kind, 0), 9);
        assert_eq!(all, [0, 5, 5, 30, 40, 45, 45, 70, 80]);
    }
}
