//! Reference implementations, slow and obvious. A meter's tokens drop into each bucket one by one,
//! at the ticks of a counter that runs at `rate` per second since the clock's zero.
//!
//! Single-threaded, without wrap-around or optimisation.

pub mod shaper;

use crate::meter::{BandKind, BandSpec, MeterOutcome, Unit};

/// One bucket.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: u128,
    depth: u128,
    level: u128,
    last_ns: u128,
}

impl TokenBucket {
    /// Makes a full bucket.
    pub fn new(per_second: u64, depth: u64, now_ns: u64) -> TokenBucket {
        TokenBucket {
            per_second: per_second.into(),
            depth: depth.into(),
            level: depth.into(),
            last_ns: now_ns.into(),
        }
    }

    fn ticks(&self, at_ns: u128) -> u128 {
        at_ns * self.per_second / 1_000_000_000
    }

    /// Takes all the tokens or none.
    pub fn take(&mut self, tokens: u64, now_ns: u64) -> bool {
        let now_ns = u128::from(now_ns);
        let came = self.ticks(now_ns) - self.ticks(self.last_ns);
        self.last_ns = now_ns;
        self.level = (self.level + came).min(self.depth);
        let enough = self.level >= tokens.into();
        if enough {
            self.level -= u128::from(tokens);
        }
        enough
    }
}

/// A meter.
#[derive(Clone, Debug)]
pub struct Meter {
    unit: Unit,
    bands: Vec<(BandSpec, TokenBucket)>,
}

impl Meter {
    /// Makes a meter with full buckets.
    pub fn new(unit: Unit, bands: &[BandSpec], now_ns: u64) -> Meter {
        let scale = if unit == Unit::Kilobits { 1000 } else { 1 };
        let bands = bands.iter().map(|band| {
            let burst = if band.burst == 0 {
                band.rate
            } else {
                band.burst
            };
            let bucket = TokenBucket::new(
                u64::from(band.rate) * scale,
                u64::from(burst) * scale,
                now_ns,
            );
            (*band, bucket)
        });
        Meter {
            unit,
            bands: bands.collect(),
        }
    }

    /// Returns what happens to a packet, and which band acted.
    pub fn police(&mut self, bytes: u64, now_ns: u64) -> (MeterOutcome, Option<usize>) {
        let tokens = if self.unit == Unit::Kilobits {
            bytes * 8
        } else {
            1
        };
        let mut exceeded: Vec<(usize, BandSpec)> = Vec::new();
        for (index, (spec, bucket)) in self.bands.iter_mut().enumerate() {
            if !bucket.take(tokens, now_ns) {
                exceeded.push((index, *spec));
            }
        }
        // The band of the highest rate; of equal ones, the first.
        exceeded.sort_by_key(|(index, spec)| (std::cmp::Reverse(spec.rate), *index));
        match exceeded.first() {
            None => (MeterOutcome::Pass, None),
            Some((index, spec)) => match spec.kind {
                BandKind::Drop => (MeterOutcome::Drop, Some(*index)),
                BandKind::Remark(steps) => (MeterOutcome::Remark(steps), Some(*index)),
            },
        }
    }
}
