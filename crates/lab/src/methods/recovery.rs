//! RFC 2544, 26.5: the time until a device that was overloaded forwards all again.
//!
//! The device is offered 110% of its throughput, then at once half of it. What is lost of the
//! second load, divided by that load, is the time that it took to recover. A generator that must be
//! started anew leaves a gap between the two in which queues empty, so what this finds is what
//! outlasts the gap.

use super::{Found, Limits, Trial, rfc2544};

/// Measures `recovery` (us) and `lost` (frames after the change).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, String> {
    let edge = rfc2544::measure(trial, limits)?;
    let rate = 1e6 * edge.figures["rate"];
    let over = trial.run(Some(rate * 1.1), limits.seconds)?;
    let after = trial.run(Some(rate / 2.0), limits.seconds)?;
    let lost = after.sent.saturating_sub(after.received);
    let mut found = Found::default();
    found.set("lost", lost as f64);
    found.set("recovery", 1e6 * lost as f64 / after.offered().max(1.0));
    // Nothing to recover from where the generator could not overload it.
    found.limited = edge.limited.or(over.limits()).or(after.limits());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Outcome, limits};
    use crate::simulated::Device;

    /// Loses the first 5 ms of what comes after an overload.
    struct Slow(Device, bool);

    impl Trial for Slow {
        fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, String> {
            let mut outcome = self.0.run(offered, seconds)?;
            let half = offered.is_some_and(|pps| pps < 0.6 * self.0.capacity);
            if self.1 && half {
                let lost = (offered.unwrap() * 0.005) as u64;
                outcome.received = outcome.received.saturating_sub(lost);
            }
            self.1 = outcome.loss() > 0.0;
            Ok(outcome)
        }
    }

    #[test]
    fn finds_the_time() {
        let found = measure(&mut Slow(Device::new(3e6), false), &limits()).unwrap();
        assert!(
            (found.figures["recovery"] - 5000.0).abs() < 50.0,
            "{found:?}"
        );
        let found = measure(&mut Device::new(3e6), &limits()).unwrap();
        assert_eq!(found.figures["recovery"], 0.0);
    }
}
