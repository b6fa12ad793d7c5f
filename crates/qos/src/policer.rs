//! Policers and the three-colour markers they are made of.
//!
//! * [`SingleRate`] (RFC 2697): one rate with two bursts. Tokens fill the committed bucket first
//!   and then the excess one. Implemented as two buckets of the same rate: the committed one, and
//!   one as deep as both together. Their difference is exactly what the excess bucket holds,
//!   because tokens are lost only when both are full.
//! * [`TwoRates`] (RFC 4115): a committed and an excess rate, each with its own bucket; also for
//!   packets that are coloured already.
//! * [`PeakRate`] (RFC 2698): a peak rate above the committed one.
//!
//! A port uses [`PortPolicer`] for what it sends, by queue, and [`IngressPolicer`] for what it
//! receives, which is made of meters ([`crate::meter`]) since it polices bits and packets.
//!
//! Rates are in bytes per second and bursts in bytes, as in these RFCs and Open vSwitch's `cir`,
//! `cbs`, `eir` and `ebs`, and count packets from the IP header on. The buckets are those of
//! [`crate::bucket`], so workers share a policer without a lock.

use crate::bucket::{Rate, TokenBucket};

mod port;

pub use port::{
    IngressPolicer, IngressSpec, PolicerError, PolicerSpec, PolicerTotals, PortPolicer, Rates,
};

/// A marker's colours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Color {
    /// Within the committed rate.
    Green,
    /// Within the excess rate or burst.
    Yellow,
    /// Beyond both.
    Red,
}

/// A rate with its burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// Bytes per second.
    pub rate: u64,
    /// Depth of the bucket, in bytes.
    pub burst: u64,
}

/// Returns the bytes of a frame that a policer counts: those after its Ethernet header, as in Open
/// vSwitch.
pub fn counted(frame: usize) -> u64 {
    frame.saturating_sub(14) as u64
}

/// Converts a rate in bytes per second: exact up to 4.29 GB/s, above that to a kilobyte.
fn rate(bytes: u64) -> Rate {
    match u32::try_from(bytes) {
        Ok(bytes) => Rate::per_second(bytes),
        Err(_) => Rate::thousands_per_second((bytes / 1000).try_into().unwrap_or(u32::MAX)),
    }
}

fn bucket(profile: Profile, now_ns: u64) -> TokenBucket {
    TokenBucket::new(rate(profile.rate), profile.burst, now_ns)
}

/// A single-rate three-colour marker.
#[derive(Debug)]
pub struct SingleRate {
    committed: TokenBucket,
    both: TokenBucket,
}

impl SingleRate {
    /// Makes a marker with full buckets; `excess` in bytes.
    pub fn new(committed: Profile, excess: u64, now_ns: u64) -> SingleRate {
        let both = Profile {
            burst: committed.burst.saturating_add(excess),
            ..committed
        };
        SingleRate {
            committed: bucket(committed, now_ns),
            both: bucket(both, now_ns),
        }
    }

    /// Returns a packet's colour and takes its tokens.
    pub fn mark(&self, bytes: u64, now_ns: u64) -> Color {
        if self.committed.take(bytes, now_ns) {
            self.both.take(bytes, now_ns);
            return Color::Green;
        }
        let committed = self.committed.level(now_ns);
        let excess = self.both.level(now_ns).saturating_sub(committed);
        if excess >= bytes && self.both.take(bytes, now_ns) {
            return Color::Yellow;
        }
        Color::Red
    }
}

/// A two-rate three-colour marker with separate excess.
#[derive(Debug)]
pub struct TwoRates {
    committed: TokenBucket,
    excess: TokenBucket,
}

impl TwoRates {
    /// Makes a marker with full buckets.
    pub fn new(committed: Profile, excess: Profile, now_ns: u64) -> TwoRates {
        TwoRates {
            committed: bucket(committed, now_ns),
            excess: bucket(excess, now_ns),
        }
    }

    /// Returns the colour of a packet that has one already ([`Color::Green`] for colour-blind
    /// marking), and takes its tokens.
    pub fn mark(&self, bytes: u64, came_as: Color, now_ns: u64) -> Color {
        match came_as {
            Color::Green if self.committed.take(bytes, now_ns) => Color::Green,
            Color::Green | Color::Yellow if self.excess.take(bytes, now_ns) => Color::Yellow,
            _ => Color::Red,
        }
    }
}

/// A two-rate three-colour marker with a peak rate.
#[derive(Debug)]
pub struct PeakRate {
    committed: TokenBucket,
    peak: TokenBucket,
}

impl PeakRate {
    /// Makes a marker with full buckets.
    pub fn new(committed: Profile, peak: Profile, now_ns: u64) -> PeakRate {
        PeakRate {
            committed: bucket(committed, now_ns),
            peak: bucket(peak, now_ns),
        }
    }

    /// Returns a packet's colour (colour-blind), and takes its tokens.
    pub fn mark(&self, bytes: u64, now_ns: u64) -> Color {
        if !self.peak.take(bytes, now_ns) {
            Color::Red
        } else if self.committed.take(bytes, now_ns) {
            Color::Green
        } else {
            Color::Yellow
        }
    }
}
