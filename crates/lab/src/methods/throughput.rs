//! The most that comes through: as much as can be sent is sent, and what comes out is counted, for
//! one window. What is lost does not matter (paper b's "throughput").
//!
//! Ports that feed themselves have no generator, so nothing is lost before the switch.

use super::{Error, Found, Limits, Trial, gbit};

/// Measures `rate` (Mpps), `gbit` (Gbit/s on a wire), `cycles` (of all workers, per packet that
/// came out), `offered` (Mpps) and `loss` (%).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let outcome = trial.run(limits.load, limits.seconds)?;
    if outcome.received == 0 {
        return Err(Error::NothingCame(outcome.sent));
    }
    let mut found = Found::default();
    let rate = outcome.rate();
    found.set("rate", rate / 1e6);
    found.set("gbit", gbit(rate, limits.size));
    found.set("cycles", limits.cycles / rate);
    found.set("offered", outcome.offered() / 1e6);
    found.set("loss", outcome.loss() * 100.0);
    // That the generator could not send more matters only where the switch forwarded all of it.
    found.limited = match outcome.loss() < 0.001 && outcome.sent > 0 {
        true => outcome.limits(),
        false => outcome.hindered,
    };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
    use crate::simulated::Device;

    #[test]
    fn finds_the_capacity() {
        let found = measure(&mut Device::new(3e6), &limits()).unwrap();
        assert!((found.figures["rate"] - 3.0).abs() < 0.01);
        assert!((found.figures["cycles"] - 2600.0 / 3.0).abs() < 3.0);
        assert_eq!(found.limited, None);
    }

    #[test]
    fn says_when_the_generator_was_the_limit() {
        let mut device = Device {
            generator: 2e6,
            ..Device::new(3e6)
        };
        let found = measure(&mut device, &limits()).unwrap();
        assert!((found.figures["rate"] - 2.0).abs() < 0.01);
        assert_eq!(found.limited.as_deref(), Some("the generator sent less"));
        // Not where the switch lost a part of that; but slow guests are the limit whatever is lost.
        let mut device = Device {
            generator: 4e6,
            ..Device::new(3e6)
        };
        assert_eq!(measure(&mut device, &limits()).unwrap().limited, None);
        device.hindered = Some("guests");
        let found = measure(&mut device, &limits()).unwrap();
        assert_eq!(found.limited.as_deref(), Some("guests"));
    }

    #[test]
    fn nothing_is_no_figure() {
        assert!(
            measure(&mut Device::new(0.1), &limits())
                .unwrap_err()
                .to_string()
                .contains("none came out")
        );
    }
}
