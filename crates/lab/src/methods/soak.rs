//! A load for long: the same trial again and again, to see what changes.

use super::{Error, Found, Limits, Trial};
use crate::statistics::median;

/// Trials.
pub const SLICES: u32 = 20;

/// Measures `rate` (Mpps, the median slice), `least` (Mpps, the slowest slice), `loss` (%, of all),
/// `worst_loss` (%, of the worst slice), `p99` (us, the median slice), `max` (us, of all) and
/// `drift` (%, how much faster the last quarter of slices was than the first).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let (mut rates, mut tails, mut losses) = (Vec::new(), Vec::new(), Vec::new());
    let (mut sent, mut received, mut max) = (0, 0, None::<f64>);
    let mut found = Found::default();
    for _ in 0..SLICES {
        let outcome = trial.run(limits.load, limits.seconds)?;
        if outcome.sent == 0 {
            return Err(Error::NothingSent);
        }
        rates.push(outcome.rate() / 1e6);
        losses.push(outcome.loss() * 100.0);
        (sent, received) = (sent + outcome.sent, received + outcome.received);
        if let Some(latency) = outcome.latency {
            tails.push(latency.p99 / 1e3);
            max = Some(max.unwrap_or(0.0).max(latency.max / 1e3));
        }
        found.limited = found.limited.or(outcome.limits());
    }
    let quarter = rates.len() / 4;
    let (first, last) = (
        median(&rates[..quarter]),
        median(&rates[rates.len() - quarter..]),
    );
    found.set("rate", median(&rates));
    found.set("least", rates.iter().copied().fold(f64::INFINITY, f64::min));
    found.set(
        "loss",
        100.0 * (1.0 - received.min(sent) as f64 / sent as f64),
    );
    found.set("worst_loss", losses.iter().copied().fold(0.0, f64::max));
    found.set("drift", 100.0 * (last / first.max(1e-12) - 1.0));
    if let Some(max) = max {
        found.set("p99", median(&tails));
        found.set("max", max);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Outcome, limits};
    use crate::simulated::Device;

    /// Forwards less from slice to slice.
    struct Tiring(Device);

    impl Trial for Tiring {
        fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
            self.0.capacity *= 0.99;
            self.0.run(offered, seconds)
        }
    }

    #[test]
    fn a_device_that_tires_is_seen() {
        let limits = Limits {
            load: Some(2e6),
            ..limits()
        };
        let steady = measure(&mut Device::new(1e6), &limits).unwrap().figures;
        assert!(steady["drift"].abs() < 0.01);
        assert!((steady["loss"] - 50.0).abs() < 0.01);
        let tiring = measure(&mut Tiring(Device::new(1e6)), &limits)
            .unwrap()
            .figures;
        assert!(tiring["drift"] < -10.0, "{tiring:?}");
        assert!(tiring["least"] < tiring["rate"] && tiring["worst_loss"] > tiring["loss"]);
    }
}
