//! RFC 2544, 26.2: latency at the throughput.
//!
//! The RFC tags one frame of each of twenty streams of two minutes; here every frame of one stream
//! carries the time at which it was scheduled. A load that is given is used instead of the
//! throughput, since loss without a cause (a stolen time slice) makes the throughput meaningless on
//! a virtual machine.

use super::{Error, Found, Limits, Trial, rfc2544};

/// Measures what [`load`](super::load) measures.
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let (load, limited) = match limits.load {
        Some(load) => (load, None),
        None => {
            let edge = rfc2544::measure(trial, limits)?;
            (1e6 * edge.figures["rate"], edge.limited)
        }
    };
    let outcome = trial.run(Some(load), limits.seconds)?;
    if outcome.latency.is_none() {
        return Err(Error::NoStamps);
    }
    let mut found = Found::default();
    found.describe(&outcome);
    // A load below the switch's throughput is not that at which its latency is asked for.
    found.limited = found.limited.or(limited);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
    use crate::simulated::Device;

    #[test]
    fn measures_at_the_throughput() {
        let mut device = Device {
            queue: 100.0,
            ..Device::new(2e6)
        };
        let found = measure(&mut device, &limits()).unwrap().figures;
        assert!(
            found["offered"] <= 2.0 && found["offered"] > 1.97,
            "{found:?}"
        );
        assert!((found["p50"] - 0.5).abs() < 0.01);
    }

    #[test]
    fn what_limited_the_search_limits_the_latency() {
        let mut device = Device {
            generator: 1e6,
            ..Device::new(2e6)
        };
        let found = measure(&mut device, &limits()).unwrap();
        assert!(found.limited.is_some());
    }
}
