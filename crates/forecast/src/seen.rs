//! Loads and waiting times from a shaper's records ([`qos::shaper::watch`]), with their statistical
//! errors.
//!
//! Packets of one queue are not independent of each other, but batches of many nearly are. So
//! errors are estimated from batches: that of a rate from how much the bits of batches differ from
//! what their duration would have brought; that of a mean wait from how much the sums of batches
//! differ from their share of the mean. Both are widened if neighbouring batches are correlated.

use crate::queue::{Arrivals, Doubt, Load, Server};
use qos::shaper::watch::{Atom, Batch, Seen};
use serde::Serialize;

/// With fewer batches, errors are unknown.
const FEWEST: usize = 8;

/// Measured waiting times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Waited {
    /// The mean, in seconds.
    pub mean: f64,
    /// Its relative standard deviation; infinite if unknown.
    pub deviation: f64,
    /// Number of packets.
    pub packets: u64,
    /// Share of arrivals that were dropped on arrival.
    pub loss: f64,
    /// Whether packets nearly always waited: the queue sends as much as it can.
    pub saturated: bool,
}

/// A queue's record.
#[derive(Clone, Debug, PartialEq)]
pub struct Past {
    /// The arrivals.
    pub load: Load,
    /// Their waiting times.
    pub waited: Waited,
    /// The rate at which the queue sent while packets waited, in bit/s; None if that was too rare.
    pub service_rate: Option<f64>,
    /// Mean number of packets that left together while packets waited.
    pub group: Option<f64>,
}

fn atoms(atoms: &[Atom], unit: f64) -> Vec<(f64, f64)> {
    atoms
        .iter()
        .map(|atom| (atom.mean * unit, atom.count as f64))
        .collect()
}

/// Returns the variance of a sum's terms, widened by the correlation of neighbours.
fn spread(residuals: &[f64]) -> f64 {
    let count = residuals.len() as f64;
    let squares: f64 = residuals.iter().map(|x| x * x).sum();
    if squares == 0.0 {
        return 0.0;
    }
    let neighbours: f64 = residuals.windows(2).map(|two| two[0] * two[1]).sum();
    // Residuals add up to 0, which makes neighbours look slightly anticorrelated.
    let likeness = (neighbours / squares + 1.0 / count).clamp(0.0, 0.9);
    squares / (count - 1.0) * (1.0 + likeness) / (1.0 - likeness)
}

/// Returns the relative standard deviation of the ratio of two sums over batches.
pub(crate) fn ratio_deviation(pairs: &[(f64, f64)]) -> f64 {
    let (above, below) = pairs
        .iter()
        .fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    if pairs.len() < FEWEST || below == 0.0 {
        return f64::INFINITY;
    }
    if above == 0.0 {
        return 0.0;
    }
    let ratio = above / below;
    let residuals: Vec<f64> = pairs.iter().map(|pair| pair.0 - ratio * pair.1).collect();
    (spread(&residuals) * pairs.len() as f64).sqrt() / above
}

/// Returns the variance over the mean of what arrived in a batch's time, in packets of mean size.
fn dispersion(batches: &[Batch], size: f64) -> Option<f64> {
    let bits: f64 = batches.iter().map(|batch| batch.bytes as f64 * 8.0).sum();
    let time: f64 = batches.iter().map(|batch| batch.ns as f64).sum();
    if batches.len() < FEWEST || time == 0.0 {
        return None;
    }
    let residual = |batch: &Batch| batch.bytes as f64 * 8.0 - bits / time * batch.ns as f64;
    let residuals: Vec<f64> = batches.iter().map(residual).collect();
    Some(spread(&residuals) * batches.len() as f64 / (bits * size))
}

impl Past {
    /// Evaluates a record; None before packets have arrived.
    pub fn of(seen: &Seen) -> Option<Past> {
        if seen.arrivals < 2 || seen.ns == 0 || seen.sent == 0 || seen.sizes.is_empty() {
            return None;
        }
        let arrivals = seen.arrivals as f64;
        let gaps = arrivals - 1.0;
        let mean_gap = seen.ns as f64 / gaps;
        let scv = (seen.gaps_squared / gaps / (mean_gap * mean_gap) - 1.0).max(0.0);
        let size = seen.bytes as f64 * 8.0 / arrivals;
        let pairs = |of: fn(&Batch) -> (f64, f64)| -> Vec<(f64, f64)> {
            seen.batches.iter().map(of).collect()
        };
        let rates = pairs(|batch| (batch.bytes as f64, batch.ns as f64));
        let load = Load {
            packets: gaps / (seen.ns as f64 * 1e-9),
            sizes: atoms(&seen.sizes, 8.0),
            arrivals: Arrivals::Varying(scv),
            gaps: atoms(&seen.gaps, 1e-9),
            dispersion: dispersion(&seen.batches, size),
            lost: Some(seen.refused as f64 / arrivals),
            exponential_sizes: false,
            doubt: Doubt {
                rate: ratio_deviation(&rates).min(1.0),
                unevenness: (3.0 / arrivals.sqrt()).min(1.0),
            },
        };
        let waits = pairs(|batch| (batch.waited_ns as f64, batch.sent as f64));
        let waited = Waited {
            mean: seen.waited_ns / seen.sent as f64 * 1e-9,
            deviation: ratio_deviation(&waits),
            packets: seen.sent,
            loss: seen.refused as f64 / arrivals,
            saturated: seen.busy_ns as f64 > 0.97 * seen.ns as f64,
        };
        let busy = seen.busy_packets >= 100 && seen.busy_ns > 0;
        Some(Past {
            load,
            waited,
            service_rate: busy.then(|| seen.busy_bytes as f64 * 8e9 / seen.busy_ns as f64),
            group: busy.then(|| seen.busy_packets as f64 / seen.groups.max(1) as f64),
        })
    }
}

/// Returns the queue without its limit if it has never come near it, since most models do not
/// support limits.
pub fn endless(server: &Server, seen: &Seen, past: &Past) -> Server {
    let longest = seen.waits.last().map_or(0.0, |wait| wait.mean * 1e-9);
    let full = server
        .limit
        .map(|limit| limit * past.load.size() / server.rate);
    let near = [full, server.bound]
        .into_iter()
        .flatten()
        .any(|end| longest > end / 2.0);
    if near || seen.refused > 0 || past.waited.saturated {
        return *server;
    }
    Server {
        limit: None,
        bound: None,
        ..*server
    }
}

/// Returns the mean wait in seconds and the number of packets between two records; None if there
/// were none, or the record was restarted.
pub fn between(before: &Seen, after: &Seen) -> Option<(f64, u64)> {
    let packets = after
        .sent
        .checked_sub(before.sent)
        .filter(|packets| *packets > 0)?;
    let waited = after.waited_ns - before.waited_ns;
    (waited >= 0.0).then(|| (waited * 1e-9 / packets as f64, packets))
}

/// Returns a quantile of waiting times, in seconds, to within a quarter of a doubling.
pub fn quantile(waits: &[Atom], share: f64) -> Option<f64> {
    let total: u64 = waits.iter().map(|atom| atom.count).sum();
    let wanted = (share.clamp(0.0, 1.0) * total as f64).ceil() as u64;
    let mut below = 0;
    waits
        .iter()
        .find(|atom| {
            below += atom.count;
            below >= wanted
        })
        .map(|atom| atom.mean * 1e-9)
}

/// Returns the queue of a shaper's specification, if it gets `rate`: only its guaranteed rate, or
/// as much as its maximum.
pub fn server(port: &qos::shaper::PortSpec, queue: &qos::shaper::QueueSpec, rate: u64) -> Server {
    let limit = queue.limit_packets.min(port.limit_packets);
    Server {
        rate: rate as f64,
        burst: queue.burst as f64,
        limit: Some(limit.into()),
        bound: queue.max_latency_ns.map(|ns| ns as f64 * 1e-9),
        group: 1.0,
        tick: qos::shaper::TICK_NS as f64 * 1e-9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_come_from_counts() {
        let atom = |count, mean| Atom { count, mean };
        let waits = [atom(90, 0.0), atom(9, 1000.0), atom(1, 5000.0)];
        let at = |share| quantile(&waits, share).map(|wait| (wait * 1e9).round());
        assert_eq!(at(0.5), Some(0.0));
        assert_eq!(at(0.95), Some(1000.0));
        assert_eq!(at(1.0), Some(5000.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn few_batches_say_nothing_of_chance() {
        assert_eq!(ratio_deviation(&[(1.0, 1.0); 3]), f64::INFINITY);
        assert_eq!(ratio_deviation(&[(1.0, 1.0); 30]), 0.0);
        let uneven: Vec<(f64, f64)> = (0..64).map(|at| (1.0 + f64::from(at % 2), 1.0)).collect();
        let deviation = ratio_deviation(&uneven);
        // One third of the mean either way, over the square root of 64.
        assert!((deviation - 1.0 / 24.0).abs() < 2e-3, "{deviation}");
        assert!(Past::of(&Seen::default()).is_none());
    }
}
