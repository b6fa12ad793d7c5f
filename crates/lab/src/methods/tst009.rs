//! ETSI GS NFV-TST 009, 12.3.3: binary search with loss verification.
//!
//! A load that loses frames is tried again; if nothing is lost then, the loss is taken for a
//! transient (a stolen time slice, an interrupt) and the load passes. So loss that comes by chance
//! does not end the search far below what the device can do, as it does RFC 2544's.

use super::{Error, Found, Limits, Trial, rfc2544};

/// Trials in which a load may pass.
pub const VERIFICATIONS: u32 = 2;

/// Measures `rate` (Mpps), `gbit` and `trials`.
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let mut trials = 0;
    let edge = rfc2544::bisect(limits, |load| {
        let mut tries = 0;
        loop {
            let outcome = trial.run(Some(load), limits.seconds)?;
            (tries, trials) = (tries + 1, trials + 1);
            let passed = outcome.loss() <= limits.loss;
            // Loss of more than a tenth is no accident.
            if passed || tries == VERIFICATIONS || outcome.loss() > 0.1 {
                break Ok((outcome, passed));
            }
        }
    })?;
    Ok(edge.found(trials, limits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
    use crate::simulated::{Device, Random};

    /// One trial in eight loses frames by accident. RFC 2544's search is misled far more often.
    #[test]
    fn accidents_do_not_end_it() {
        let right = |measure: fn(&mut dyn Trial, &Limits) -> Result<Found, Error>| {
            (0..60)
                .filter(|&seed| {
                    let mut device = Device {
                        flaky: 0.125,
                        random: Random::new(seed),
                        ..Device::new(3e6)
                    };
                    let found = measure(&mut device, &limits());
                    assert!(device.trials <= 2 * rfc2544::MOST_TRIALS);
                    found.is_ok_and(|found| found.figures["rate"] > 2.95)
                })
                .count()
        };
        let (verified, plain) = (right(measure), right(rfc2544::measure));
        assert!(verified >= 50, "{verified} of 60");
        assert!(verified > plain, "{verified} and {plain}");
    }
}
