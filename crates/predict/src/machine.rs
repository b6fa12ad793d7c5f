//! How fast the machine is during a measurement.
//!
//! A virtual machine shares its processors, caches and memory with others, so its speed may change
//! by a factor of two within minutes. A [`Watch`] times fixed work between the slices of a
//! measurement, on the same processor: [additions](Reading::additions), which show the processor's
//! speed, and [loads](Reading::memory_ns), which show the speed of what lies behind the processor's
//! own caches: a shared cache or memory. If neither changed during a measurement, the machine was
//! constant; and two measurements with equal readings can be compared.

use crate::Error;
use crate::engine::on_a_thread;
use crate::memory::in_huge_pages;
use crate::spread::Spread;
use datapath::clock::{cycles, cycles_per_second};
use serde::{Deserialize, Serialize};
use std::hint::black_box;

/// Words that are added up: they fit the first-level cache.
const WORDS: usize = 1024;
/// How often they are added up in a sample: some microseconds, so that most samples are not
/// interrupted.
const PASSES: usize = 16;
/// Samples of additions per reading.
const ADDING: usize = 31;
/// Cache lines that are followed from one to the next: 32 MB, more than a processor's own caches
/// hold. A shared cache may be larger, and then many of these loads hit it.
const LINES: usize = 1 << 19;
/// Cache lines per sample.
const STEPS: usize = 256;
/// Samples of loads per reading.
const LOADING: usize = 15;
/// How much readings may differ for the machine to count as constant.
pub const STILL: f64 = 0.05;

/// The machine's speed at one moment.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reading {
    /// Additions of words in the first-level cache per nanosecond, as many at a time as the
    /// processor can.
    pub additions: f64,
    /// Nanoseconds for a random load that misses the processor's own caches and is served by a
    /// shared cache or memory; loads follow each other.
    pub memory_ns: f64,
}

/// The machine's speed during a measurement.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Additions per nanosecond; the interval is from the 10th to the 90th percentile of the
    /// readings.
    pub additions: Spread,
    /// Nanoseconds to load a line from a shared cache or memory, likewise.
    pub memory_ns: Spread,
    /// How much additions changed: the upper end of their interval over the lower one, minus 1.
    pub moved: f64,
    /// How much loads changed, likewise.
    pub memory_moved: f64,
    /// Mean of all readings, for comparing different times: if the machine's speed alternates
    /// within milliseconds, the median jumps and the mean does not.
    pub mean: Reading,
    /// Number of readings.
    pub readings: usize,
}

impl Machine {
    /// Summarises readings.
    pub fn of(readings: &[Reading]) -> Machine {
        let spread = |part: fn(&Reading) -> f64| Spread::of(readings.iter().map(part).collect());
        let (additions, memory_ns) = (spread(|r| r.additions), spread(|r| r.memory_ns));
        let count = readings.len().max(1) as f64;
        let mean = |part: fn(&Reading) -> f64| readings.iter().map(part).sum::<f64>() / count;
        Machine {
            mean: Reading {
                additions: mean(|r| r.additions),
                memory_ns: mean(|r| r.memory_ns),
            },
            additions,
            memory_ns,
            moved: additions.extent(),
            memory_moved: memory_ns.extent(),
            readings: readings.len(),
        }
    }

    /// Returns whether the machine was constant.
    pub fn stood_still(&self) -> bool {
        self.moved <= STILL && self.memory_moved <= STILL
    }
}

/// One cache line of a ring: the index of the next.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line(u32);

/// Takes readings.
pub struct Watch {
    /// The processor; None lets the scheduler choose.
    cpu: Option<usize>,
    words: Vec<u64>,
    lines: Vec<Line>,
    at: u32,
    readings: Vec<Reading>,
}

impl Watch {
    /// Makes a watch for measurements on this processor.
    pub fn new(cpu: Option<usize>) -> Watch {
        let mut lines = Vec::with_capacity(LINES);
        in_huge_pages(&mut lines);
        // A linear congruential sequence of full period (Hull and Dobell): visits each line once,
        // in an order that no prefetcher predicts.
        let next = |line: usize| (line.wrapping_mul(1_664_525) + 1_013_904_223) % LINES;
        lines.extend((0..LINES).map(|line| Line(next(line) as u32)));
        Watch {
            cpu,
            words: (0..WORDS as u64).collect(),
            lines,
            at: 0,
            readings: Vec::new(),
        }
    }

    /// Takes a reading, which takes about a millisecond. Fails if the processor or a thread is not
    /// available.
    pub fn look(&mut self) -> Result<(), Error> {
        let reading = on_a_thread(self.cpu, || Ok(self.read()))?;
        self.readings.push(reading);
        Ok(())
    }

    fn read(&mut self) -> Reading {
        let per_ns = cycles_per_second() as f64 / 1e9;
        // In the first sample, words and code are cold; the median ignores it.
        let adding = (0..ADDING).map(|_| self.cycles_of_additions());
        let additions = Spread::of(adding.collect()).median;
        let loading = (0..LOADING).map(|_| self.cycles_of_loads());
        let loads = Spread::of(loading.collect()).median;
        Reading {
            additions: (PASSES * WORDS) as f64 * per_ns / additions.max(1.0),
            memory_ns: loads / STEPS as f64 / per_ns,
        }
    }

    fn cycles_of_additions(&self) -> f64 {
        let start = cycles();
        for _ in 0..PASSES {
            let sum = |sum: u64, word: &u64| sum.wrapping_add(*word);
            black_box(black_box(&self.words).iter().fold(0, sum));
        }
        cycles().wrapping_sub(start) as f64
    }

    fn cycles_of_loads(&mut self) -> f64 {
        let start = cycles();
        for _ in 0..STEPS {
            self.at = self.lines[self.at as usize].0;
        }
        black_box(self.at);
        cycles().wrapping_sub(start) as f64
    }

    /// Returns the readings so far, in order, and forgets them.
    pub fn take(&mut self) -> Vec<Reading> {
        std::mem::take(&mut self.readings)
    }

    /// Returns the readings, in order.
    pub fn into_readings(self) -> Vec<Reading> {
        self.readings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_through_all_lines() {
        let watch = Watch::new(None);
        let (mut at, mut steps) = (0, 0);
        loop {
            at = watch.lines[at as usize].0;
            steps += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, LINES);
    }

    #[test]
    fn readings_say_something() {
        let mut watch = Watch::new(None);
        watch.look().unwrap();
        watch.look().unwrap();
        let readings = watch.into_readings();
        assert_eq!(readings.len(), 2);
        for reading in readings {
            assert!(reading.additions > 0.0 && reading.memory_ns > 0.0);
        }
    }

    #[test]
    fn a_processor_that_there_is_not_is_an_error() {
        let mut watch = Watch::new(Some(1 << 20));
        assert!(watch.look().is_err());
        assert!(watch.into_readings().is_empty());
    }

    #[test]
    fn a_machine_whose_speed_changed_is_told_from_a_steady_one() {
        let reading = |additions, memory_ns| Reading {
            additions,
            memory_ns,
        };
        let still: Vec<_> = (0..10)
            .map(|n| reading(10.0 + n as f64 / 100.0, 80.0))
            .collect();
        let machine = Machine::of(&still);
        assert!(machine.stood_still() && machine.moved < 0.01, "{machine:?}");
        let mut moved = still.clone();
        moved.extend(still.iter().map(|r| reading(r.additions / 2.0, 80.0)));
        let machine = Machine::of(&moved);
        assert!(!machine.stood_still() && machine.moved > 0.9, "{machine:?}");
        assert!((machine.mean.additions - 10.045 * 0.75).abs() < 1e-9);
        assert!((machine.mean.memory_ns - 80.0).abs() < 1e-9);
        let mut slower = still.clone();
        slower.extend(still.iter().map(|r| reading(r.additions, 100.0)));
        assert!(!Machine::of(&slower).stood_still());
        assert_eq!(Machine::of(&[]).readings, 0);
        assert!(Machine::of(&[]).stood_still());
    }
}
