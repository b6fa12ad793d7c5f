//! Policers: markers that drop what exceeds a rate.
//!
//! * [`SingleRate`] (RFC 2697): one rate with two bursts. Tokens fill the committed bucket and then
//!   the excess one. This is kept as two buckets of the same rate, the committed one and one that
//!   holds both: what the excess bucket has is their difference, to the token, because tokens are
//!   lost only when both are full.
//! * [`TwoRates`] (RFC 4115): a committed and an excess rate, each with a bucket of its own, also
//!   for packets that come with a colour.
//! * [`PeakRate`] (RFC 2698): a peak rate above the committed one.
//!
//! A port's policers are made of them: [`PortPolicer`] for what it sends, by queues, and
//! [`IngressPolicer`] for what it receives, which is made of meters ([`crate::meter`]), as it
//! polices bits and packets.
//!
//! Rates are in bytes a second and bursts in bytes, as these RFCs and Open vSwitch's `cir`, `cbs`,
//! `eir` and `ebs` have them, and count packets from the IP header on. Buckets are
//! those of [`crate::bucket`], so workers share a policer without a lock.

use crate::bucket::{Bucket, Rate};

mod port;

pub use port::{
    IngressPolicer, IngressSpec, PolicerError, PolicerSpec, PolicerTotals, PortPolicer, Rates,
};

/// What a marker says of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Color {
    /// Within the committed rate.
    Green,
    /// Within the excess.
    Yellow,
    /// Beyond.
    Red,
}

/// A rate with its burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// Bytes a second.
    pub rate: u64,
    /// Bytes at once.
    pub burst: u64,
}

/// Bytes of a frame that a policer counts: those after its Ethernet header, as Open vSwitch's
/// policers count.
pub fn counted(frame: usize) -> u64 {
    frame.saturating_sub(14) as u64
}

/// A rate of so many bytes a second: exact up to 4.29 GB/s, and above that to a kilobyte.
fn rate(bytes: u64) -> Rate {
    match u32::try_from(bytes) {
        Ok(bytes) => Rate::per_second(bytes),
        Err(_) => Rate::thousands_per_second((bytes / 1000).try_into().unwrap_or(u32::MAX)),
    }
}

fn bucket(profile: Profile, now_ns: u64) -> Bucket {
    Bucket::new(rate(profile.rate), profile.burst, now_ns)
}

/// A single-rate three-colour marker.
#[derive(Debug)]
pub struct SingleRate {
    committed: Bucket,
    both: Bucket,
}

impl SingleRate {
    /// One with full buckets; `excess` in bytes.
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

    /// The colour of a packet, and its tokens taken.
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
    committed: Bucket,
    excess: Bucket,
}

impl TwoRates {
    /// One with full buckets.
    pub fn new(committed: Profile, excess: Profile, now_ns: u64) -> TwoRates {
        TwoRates {
            committed: bucket(committed, now_ns),
            excess: bucket(excess, now_ns),
        }
    }

    /// The colour of a packet that comes with one ([`Color::Green`] for colour-blind marking), and
    /// its tokens taken.
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
    committed: Bucket,
    peak: Bucket,
}

impl PeakRate {
    /// One with full buckets.
    pub fn new(committed: Profile, peak: Profile, now_ns: u64) -> PeakRate {
        PeakRate {
            committed: bucket(committed, now_ns),
            peak: bucket(peak, now_ns),
        }
    }

    /// The colour of a packet, colour-blind, and its tokens taken.
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
