//! Policers of ports.
//!
//! * For sending, [`PortPolicer`]: either one rate for all queues (Open vSwitch's
//!   `egress-policer`), or two rates per queue and two of the port (`trtcm-policer`): the queue
//!   marks a packet colour-blind, and the port marks it again by that colour; green and yellow
//!   packets pass.
//! * For receiving, [`IngressPolicer`]: bits, packets, or both.
//!
//! Any number of workers share one without a lock. When a policer is reconfigured, rates that stay
//! keep their tokens.

use super::{Color, Profile, SingleRate, TwoRates, counted};
use crate::meter::{BandKind, BandSpec, Meter, MeterOutcome, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Highest rate, in bytes per second: 400 Gbit/s.
pub const MAX_RATE: u64 = 50_000_000_000;
/// Largest burst, in bytes: one second at the highest rate.
pub const MAX_BURST: u64 = 50_000_000_000;

/// A committed and an excess rate (RFC 4115).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// Packets within it are green.
    pub committed: Profile,
    /// Packets within it are yellow.
    pub excess: Profile,
}

impl Rates {
    fn check(&self) -> Result<(), PolicerError> {
        check(self.committed, "cir", "cbs")?;
        check(self.excess, "eir", "ebs")
    }

    fn marker(&self, now_ns: u64) -> Arc<TwoRates> {
        Arc::new(TwoRates::new(self.committed, self.excess, now_ns))
    }
}

fn check(profile: Profile, rate: &'static str, burst: &'static str) -> Result<(), PolicerError> {
    if profile.rate > MAX_RATE {
        return Err(PolicerError::Rate(rate, profile.rate));
    }
    if profile.burst > MAX_BURST {
        return Err(PolicerError::Burst(burst, profile.burst));
    }
    if profile.rate > 0 && profile.burst == 0 {
        return Err(PolicerError::NoBurst(rate, profile.rate, burst));
    }
    Ok(())
}

/// Configuration of a port's sending policer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicerSpec {
    /// One rate for all packets.
    One(Profile),
    /// Rates of the port and of queues by number. A packet without a queue, or with one that is not
    /// listed, uses queue 0; if that is not listed either, the packet is dropped.
    Queues {
        /// The port's rates.
        port: Rates,
        /// The queues' rates.
        queues: Vec<(u32, Rates)>,
    },
}

/// Why a policer's configuration is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum PolicerError {
    /// A rate is too high.
    #[error("{0}: {1} bytes a second are more than {MAX_RATE}")]
    Rate(&'static str, u64),
    /// A burst is too large.
    #[error("{0}: {1} bytes are more than {MAX_BURST}")]
    Burst(&'static str, u64),
    /// A rate without a burst lets nothing pass.
    #[error("{0} of {1} bytes a second needs {2}, the bytes that may come at once")]
    NoBurst(&'static str, u64, &'static str),
    /// A single rate is missing: nothing would pass.
    #[error("cir is missing: nothing would pass")]
    NoRate,
    /// A queue's rates are invalid.
    #[error("queue {0}: {1}")]
    Queue(u32, Box<PolicerError>),
    /// Two queues have this number.
    #[error("queue {0} is there twice")]
    Twice(u32),
}

impl PolicerSpec {
    /// Checks the configuration.
    pub fn check(&self) -> Result<(), PolicerError> {
        match self {
            PolicerSpec::One(Profile { rate: 0, .. }) => Err(PolicerError::NoRate),
            PolicerSpec::One(profile) => check(*profile, "cir", "cbs"),
            PolicerSpec::Queues { port, queues } => {
                port.check()?;
                let mut numbers = std::collections::HashSet::new();
                queues.iter().try_for_each(|(number, rates)| {
                    if !numbers.insert(*number) {
                        return Err(PolicerError::Twice(*number));
                    }
                    let wrong = |error| PolicerError::Queue(*number, Box::new(error));
                    rates.check().map_err(wrong)
                })
            }
        }
    }
}

/// Packets that a queue has passed and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PolicerTotals {
    /// Packets that passed.
    pub packets: u64,
    /// Their bytes, as policers count them: without the Ethernet header.
    pub bytes: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

#[derive(Default, Debug)]
struct Counts {
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    fn totals(&self) -> PolicerTotals {
        PolicerTotals {
            packets: self.packets.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }
}

#[derive(Clone, Debug)]
struct Queue {
    number: u32,
    rates: Rates,
    marker: Arc<TwoRates>,
    counts: Arc<Counts>,
}

#[derive(Debug)]
enum Markers {
    One {
        profile: Profile,
        marker: Arc<SingleRate>,
    },
    Queues {
        rates: Rates,
        marker: Arc<TwoRates>,
        /// Sorted by number.
        queues: Box<[Queue]>,
    },
}

/// Polices what a port sends.
#[derive(Debug)]
pub struct PortPolicer(Markers);

impl PortPolicer {
    /// Makes a policer with full buckets.
    pub fn new(spec: &PolicerSpec, now_ns: u64) -> PortPolicer {
        PortPolicer::after(None, spec, now_ns)
    }

    /// Returns the reconfigured policer: rates that stay keep their tokens, and queues their
    /// counts.
    pub fn changed(&self, spec: &PolicerSpec, now_ns: u64) -> PortPolicer {
        PortPolicer::after(Some(self), spec, now_ns)
    }

    fn after(old: Option<&PortPolicer>, spec: &PolicerSpec, now_ns: u64) -> PortPolicer {
        let old = old.map(|old| &old.0);
        PortPolicer(match spec {
            PolicerSpec::One(profile) => Markers::One {
                profile: *profile,
                marker: match old {
                    Some(Markers::One {
                        profile: before,
                        marker,
                    }) if before == profile => Arc::clone(marker),
                    _ => Arc::new(SingleRate::new(*profile, 0, now_ns)),
                },
            },
            PolicerSpec::Queues { port, queues } => {
                let (marker, before) = match old {
                    Some(Markers::Queues {
                        rates,
                        marker,
                        queues,
                    }) => ((rates == port).then(|| Arc::clone(marker)), &queues[..]),
                    _ => (None, &[][..]),
                };
                let queue = |(number, rates): &(u32, Rates)| {
                    let before = find(before, *number);
                    let same = before.filter(|before| before.rates == *rates);
                    Queue {
                        number: *number,
                        rates: *rates,
                        marker: same
                            .map_or_else(|| rates.marker(now_ns), |same| Arc::clone(&same.marker)),
                        counts: before
                            .map_or_else(Arc::default, |before| Arc::clone(&before.counts)),
                    }
                };
                let mut queues: Vec<Queue> = queues.iter().map(queue).collect();
                queues.sort_by_key(|queue| queue.number);
                Markers::Queues {
                    rates: *port,
                    marker: marker.unwrap_or_else(|| port.marker(now_ns)),
                    queues: queues.into(),
                }
            }
        })
    }

    /// Returns whether a frame of this many bytes may be sent, and takes its tokens.
    pub fn pass(&self, queue: Option<u32>, frame: usize, now_ns: u64) -> bool {
        let bytes = counted(frame);
        match &self.0 {
            Markers::One { marker, .. } => marker.mark(bytes, now_ns) == Color::Green,
            Markers::Queues { marker, queues, .. } => {
                let named = queue.and_then(|number| find(queues, number));
                let Some(queue) = named.or_else(|| find(queues, 0)) else {
                    return false;
                };
                let color = queue.marker.mark(bytes, Color::Green, now_ns);
                let passes = marker.mark(bytes, color, now_ns) != Color::Red;
                if passes {
                    queue.counts.packets.fetch_add(1, Ordering::Relaxed);
                    queue.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                } else {
                    queue.counts.dropped.fetch_add(1, Ordering::Relaxed);
                }
                passes
            }
        }
    }

    /// Returns the totals of each queue, ascending by number; none if one rate polices all.
    pub fn totals(&self) -> Vec<(u32, PolicerTotals)> {
        let queues = match &self.0 {
            Markers::One { .. } => &[][..],
            Markers::Queues { queues, .. } => queues,
        };
        queues
            .iter()
            .map(|queue| (queue.number, queue.counts.totals()))
            .collect()
    }
}

fn find(queues: &[Queue], number: u32) -> Option<&Queue> {
    let at = queues.binary_search_by_key(&number, |queue| queue.number);
    at.ok().map(|at| &queues[at])
}

/// Configuration of a port's receiving policer, in the units of Open vSwitch's
/// `ingress_policing_*`. A rate of 0 polices nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IngressSpec {
    /// Rate in kilobits per second.
    pub kbits_rate: u32,
    /// Burst in kilobits; 0 for 8000.
    pub kbits_burst: u32,
    /// Rate in thousands of packets per second, up to [`IngressSpec::MAX_KPKTS`].
    pub kpkts_rate: u32,
    /// Burst in thousands of packets, up to [`IngressSpec::MAX_KPKTS`]; 0 for 16.
    pub kpkts_burst: u32,
}

impl IngressSpec {
    /// Largest packet rate and burst, in thousands of packets.
    pub const MAX_KPKTS: u32 = u32::MAX / 1000;

    /// Returns whether nothing is policed.
    pub fn is_none(&self) -> bool {
        self.kbits_rate == 0 && self.kpkts_rate == 0
    }
}

/// Polices what a port receives.
#[derive(Debug)]
pub struct IngressPolicer {
    bits: Option<Meter>,
    packets: Option<Meter>,
}

impl IngressPolicer {
    /// Makes a policer with full buckets; None if nothing is to be policed.
    pub fn new(spec: &IngressSpec, now_ns: u64) -> Option<IngressPolicer> {
        let meter = |unit, rate: u32, burst: u32, default: u32, scale: u32| {
            let burst = if burst == 0 { default } else { burst };
            let band = BandSpec {
                kind: BandKind::Drop,
                rate: rate.saturating_mul(scale),
                burst: burst.saturating_mul(scale),
            };
            (rate > 0).then(|| Meter::new(unit, &[band], now_ns))
        };
        (!spec.is_none()).then(|| IngressPolicer {
            bits: meter(Unit::Kilobits, spec.kbits_rate, spec.kbits_burst, 8000, 1),
            packets: meter(Unit::Packets, spec.kpkts_rate, spec.kpkts_burst, 16, 1000),
        })
    }

    /// Returns whether a received frame of this many bytes passes, and takes its tokens.
    pub fn pass(&self, frame: usize, now_ns: u64) -> bool {
        let bytes = counted(frame);
        let meters = [&self.bits, &self.packets];
        let mut meters = meters.into_iter().flatten();
        meters.all(|meter| meter.police(bytes, now_ns) == MeterOutcome::Pass)
    }
}
