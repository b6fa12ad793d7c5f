//! Network calculus: worst-case bounds for traffic that keeps to a token bucket (Le Boudec and
//! Thiran, "Network Calculus", 1.4).
//!
//! Let traffic send at most `b + r t` bits in any time `t`, through a queue that serves at least
//! `R (t - T)` bits of what waits. Then nothing waits longer than `T + b / R`, and no more than
//! `b + r T` bits wait, as long as `r` does not exceed `R`. In a row of queues the burst is paid
//! only once, at the slowest: `sum T + b / min R`.

use crate::Error;
use serde::Serialize;

/// Traffic that keeps to a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Envelope {
    /// Its rate, in bit/s.
    pub rate: f64,
    /// Its burst, in bits; at least the largest packet.
    pub burst: f64,
}

/// The minimum service of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Service {
    /// Its rate, in bit/s.
    pub rate: f64,
    /// How late service may begin, in seconds.
    pub latency: f64,
}

/// Returns the longest wait, in seconds, through these queues in a row.
pub fn delay(envelope: Envelope, services: &[Service]) -> Result<f64, Error> {
    let slowest = services
        .iter()
        .map(|service| service.rate)
        .fold(f64::INFINITY, f64::min);
    if envelope.rate > slowest {
        return Err(Error::new(format!(
            "no bound: {:.0} bit/s come to a queue of {:.0} bit/s",
            envelope.rate, slowest
        )));
    }
    let latency: f64 = services.iter().map(|service| service.latency).sum();
    Ok(latency + envelope.burst / slowest)
}

/// Returns the largest backlog, in bits, of one queue.
pub fn backlog(envelope: Envelope, service: Service) -> Result<f64, Error> {
    delay(envelope, &[service])?;
    Ok(envelope.burst + envelope.rate * service.latency)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Traffic that keeps to its bucket keeps to the bound: packets through a fluid server that
        /// begins late.
        #[test]
        fn bounds_hold(
            packets in prop::collection::vec((1.0..12_000.0_f64, 0.0..0.01_f64), 1..200),
            rate in 1e5..1e7_f64,
            faster in 1.0..3.0_f64,
            latency in 0.0..0.005_f64,
            burst in 12_000.0..100_000.0_f64,
        ) {
            let service = Service { rate: rate * faster, latency };
            let bound = delay(Envelope { rate, burst }, &[service]).unwrap();
            let most = backlog(Envelope { rate, burst }, service).unwrap();
            let (mut now, mut tokens, mut free, mut sent): (f64, f64, f64, Vec<(f64, f64)>) =
                (0.0, burst, 0.0, Vec::new());
            for (size, gap) in packets {
                now += gap;
                tokens = (tokens + gap * rate).min(burst);
                if tokens < size {
                    now += (size - tokens) / rate;
                    tokens = size;
                }
                tokens -= size;
                // A server that begins as late as allowed, whenever it was idle.
                free = if free > now { free } else { now + latency } + size / service.rate;
                prop_assert!(free - now <= bound * 1.000_001);
                sent.push((free, size));
                let waiting: f64 = sent.iter().filter(|(gone, _)| *gone > now).map(|(_, size)| size).sum();
                // The packet being served counts as a whole.
                prop_assert!(waiting <= (most + 12_000.0) * 1.000_001);
            }
        }
    }

    #[test]
    fn a_burst_is_paid_once_and_too_much_has_no_bound() {
        let envelope = Envelope {
            rate: 1e6,
            burst: 24_000.0,
        };
        let slow = Service {
            rate: 2e6,
            latency: 0.001,
        };
        let fast = Service {
            rate: 1e9,
            latency: 0.002,
        };
        assert!((delay(envelope, &[slow, fast]).unwrap() - 0.015).abs() < 1e-12);
        let too_slow = Service {
            rate: 9e5,
            latency: 0.0,
        };
        assert!(delay(envelope, &[fast, too_slow]).is_err());
    }
}
