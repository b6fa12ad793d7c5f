//! OpenFlow meters (OpenFlow 1.3.5 section 5.7).
//!
//! A meter has bands, each with a rate and a bucket. A packet is checked against every band. Of the
//! bands with too few tokens for it, the one with the highest rate acts: it drops or remarks the
//! packet, and counts it. A band with enough tokens spends them, whatever the others do (as in Open
//! vSwitch). Buckets begin full. Buckets and counters are atomic: workers share a meter without a
//! lock.

use crate::bucket::{Rate, TokenBucket};
use std::sync::atomic::{AtomicU64, Ordering};

/// Unit of rates and bursts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Kilobits of frames without FCS.
    Kilobits,
    /// Packets.
    Packets,
}

/// What a band does to packets above its rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BandKind {
    /// Drops them.
    Drop,
    /// Raises the drop precedence of their DSCP by this many steps.
    Remark(u8),
}

/// A band's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BandSpec {
    /// The action.
    pub kind: BandKind,
    /// Units per second; 0 lets only the burst pass.
    pub rate: u32,
    /// Depth of the bucket, in units; 0 for one second of the rate, as in Open vSwitch.
    pub burst: u32,
}

impl BandSpec {
    /// Returns the depth of the bucket.
    pub fn depth(&self) -> u32 {
        if self.burst == 0 {
            self.rate
        } else {
            self.burst
        }
    }
}

/// Result of metering a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MeterOutcome {
    /// The packet passes.
    Pass,
    /// The packet is dropped.
    Drop,
    /// The packet passes with its drop precedence raised by this many steps.
    Remark(u8),
}

/// A number of packets and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
}

#[derive(Default, Debug)]
struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    fn add(&self, bytes: u64) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> Count {
        Count {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug)]
struct Band {
    kind: BandKind,
    rate: u32,
    bucket: TokenBucket,
    acted: Counter,
}

/// A meter.
#[derive(Debug)]
pub struct Meter {
    unit: Unit,
    bands: Box<[Band]>,
    met: Counter,
}

impl Meter {
    /// Makes a meter with full buckets.
    pub fn new(unit: Unit, bands: &[BandSpec], now_ns: u64) -> Meter {
        let bands = bands.iter().map(|spec| {
            let (rate, depth) = match unit {
                Unit::Kilobits => (
                    Rate::thousands_per_second(spec.rate),
                    u64::from(spec.depth()) * 1000,
                ),
                Unit::Packets => (Rate::per_second(spec.rate), spec.depth().into()),
            };
            Band {
                kind: spec.kind,
                rate: spec.rate,
                bucket: TokenBucket::new(rate, depth, now_ns),
                acted: Counter::default(),
            }
        });
        Meter {
            unit,
            bands: bands.collect(),
            met: Counter::default(),
        }
    }

    /// Meters and counts a packet of `bytes`.
    pub fn police(&self, bytes: u64, now_ns: u64) -> MeterOutcome {
        self.met.add(bytes);
        let tokens = match self.unit {
            Unit::Kilobits => bytes * 8,
            Unit::Packets => 1,
        };
        let mut acting: Option<&Band> = None;
        for band in &self.bands {
            if !band.bucket.take(tokens, now_ns)
                && acting.is_none_or(|other| band.rate > other.rate)
            {
                acting = Some(band);
            }
        }
        let Some(band) = acting else {
            return MeterOutcome::Pass;
        };
        band.acted.add(bytes);
        match band.kind {
            BandKind::Drop => MeterOutcome::Drop,
            BandKind::Remark(steps) => MeterOutcome::Remark(steps),
        }
    }

    /// Returns the packets that were metered.
    pub fn met(&self) -> Count {
        self.met.read()
    }

    /// Returns the packets that each band has acted on.
    pub fn acted(&self) -> impl ExactSizeIterator<Item = Count> + '_ {
        self.bands.iter().map(|band| band.acted.read())
    }
}

/// Raises the drop precedence of a DSCP by `steps`, as far as its class allows: only the assured
/// forwarding classes AF1x to AF4x have drop precedences, 1 to 3 (RFC 2597 section 6); other code
/// points stay.
pub fn raise_drop_precedence(dscp: u8, steps: u8) -> u8 {
    let (class, precedence) = (dscp >> 3 & 7, dscp >> 1 & 3);
    if !(1..=4).contains(&class) || precedence == 0 || dscp & 1 != 0 {
        return dscp;
    }
    class << 3 | precedence.saturating_add(steps).min(3) << 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_precedence_rises_within_its_class() {
        assert_eq!(raise_drop_precedence(10, 1), 12, "AF11 to AF12");
        assert_eq!(raise_drop_precedence(10, 2), 14, "AF11 to AF13");
        assert_eq!(raise_drop_precedence(36, 200), 38, "AF42 to AF43");
        assert_eq!(raise_drop_precedence(34, 0), 34);
        for other in [0, 8, 46, 48, 11, 40, 63] {
            assert_eq!(raise_drop_precedence(other, 1), other);
        }
    }
}
