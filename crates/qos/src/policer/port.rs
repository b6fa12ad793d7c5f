//! What polices a port.
//!
//! * What it sends, [`PortPolicer`]: one rate whatever the queue (Open vSwitch's `egress-policer`),
//!   or two of each queue and two of the port (`trtcm-policer`): the queue marks a packet, blind to
//!   colours, and the port marks it again by that; green and yellow ones pass.
//! * What it receives, [`IngressPolicer`]: bits, packets, or both.
//!
//! Any number of workers share one without a lock. One that changes keeps the tokens of what stays.

use super::{Color, Profile, SingleRate, TwoRates, counted};
use crate::meter::{BandKind, BandSpec, Meter, Unit, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Highest rate, in bytes a second: 400 Gbit/s.
pub const MAX_RATE: u64 = 50_000_000_000;
/// Largest burst, in bytes: a second of the highest rate.
pub const MAX_BURST: u64 = 50_000_000_000;

/// A committed and an excess rate (RFC 4115).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// Within it packets are green.
    pub committed: Profile,
    /// Within it they are yellow.
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

/// What a port's sending is policed by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicerSpec {
    /// One rate for all packets.
    One(Profile),
    /// Rates of the port and of queues by their numbers. A packet that names none that is there
    /// goes by queue 0; where that is not there either, it is dropped.
    Queues {
        /// The port's.
        port: Rates,
        /// The queues'.
        queues: Vec<(u32, Rates)>,
    },
}

/// Why a policer cannot be so.
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
    /// What a queue's rates are wrong in.
    #[error("queue {0}: {1}")]
    Queue(u32, Box<PolicerError>),
    /// A number is used twice.
    #[error("queue {0} is there twice")]
    Twice(u32),
}

impl PolicerSpec {
    /// Whether such a policer can be.
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

/// What a queue has let pass and dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PolicerTotals {
    /// Packets that passed.
    pub packets: u64,
    /// Their bytes, as policers count them: without the Ethernet header.
    pub bytes: u64,
    /// Packets that did not.
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
enum Kind {
    One {
        profile: Profile,
        marker: Arc<SingleRate>,
    },
    Queues {
        rates: Rates,
        marker: Arc<TwoRates>,
        /// By number, sorted.
        queues: Box<[Queue]>,
    },
}

/// Polices what a port sends.
#[derive(Debug)]
pub struct PortPolicer(Kind);

impl PortPolicer {
    /// One with full buckets.
    pub fn new(spec: &PolicerSpec, now_ns: u64) -> PortPolicer {
        PortPolicer::after(None, spec, now_ns)
    }

    /// What this one becomes: rates that stay keep their tokens, and queues their counts.
    pub fn changed(&self, spec: &PolicerSpec, now_ns: u64) -> PortPolicer {
        PortPolicer::after(Some(self), spec, now_ns)
    }

    fn after(old: Option<&PortPolicer>, spec: &PolicerSpec, now_ns: u64) -> PortPolicer {
        let old = old.map(|old| &old.0);
        PortPolicer(match spec {
            PolicerSpec::One(profile) => Kind::One {
                profile: *profile,
                marker: match old {
                    Some(Kind::One {
                        profile: before,
                        marker,
                    }) if before == profile => Arc::clone(marker),
                    _ => Arc::new(SingleRate::new(*profile, 0, now_ns)),
                },
            },
            PolicerSpec::Queues { port, queues } => {
                let (marker, before) = match old {
                    Some(Kind::Queues {
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
                Kind::Queues {
                    rates: *port,
                    marker: marker.unwrap_or_else(|| port.marker(now_ns)),
                    queues: queues.into(),
                }
            }
        })
    }

    /// Whether a frame of so many bytes may be sent, and its tokens taken.
    pub fn pass(&self, queue: Option<u32>, frame: usize, now_ns: u64) -> bool {
        let bytes = counted(frame);
        match &self.0 {
            Kind::One { marker, .. } => marker.mark(bytes, now_ns) == Color::Green,
            Kind::Queues { marker, queues, .. } => {
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

    /// What queues have let pass, in the order of their numbers; none where one rate polices all.
    pub fn totals(&self) -> Vec<(u32, PolicerTotals)> {
        let queues = match &self.0 {
            Kind::One { .. } => &[][..],
            Kind::Queues { queues, .. } => queues,
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

/// What a port's receiving is policed by, in the units of Open vSwitch's `ingress_policing_*`. A
/// rate of 0 polices nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IngressSpec {
    /// Kilobits a second.
    pub kbits_rate: u32,
    /// Kilobits at once; 0 for 8000.
    pub kbits_burst: u32,
    /// Thousands of packets a second, up to [`IngressSpec::MAX_KPKTS`].
    pub kpkts_rate: u32,
    /// Thousands of packets at once, up to [`IngressSpec::MAX_KPKTS`]; 0 for 16.
    pub kpkts_burst: u32,
}

impl IngressSpec {
    /// Most thousands of packets.
    pub const MAX_KPKTS: u32 = u32::MAX / 1000;

    /// Whether nothing is policed.
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
    /// One with full buckets; none where nothing is to be policed.
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

    /// Whether a frame of so many bytes may come in, and its tokens taken.
    pub fn pass(&self, frame: usize, now_ns: u64) -> bool {
        let bytes = counted(frame);
        let meters = [&self.bits, &self.packets];
        let mut meters = meters.into_iter().flatten();
        meters.all(|meter| meter.police(bytes, now_ns) == Verdict::Pass)
    }
}
