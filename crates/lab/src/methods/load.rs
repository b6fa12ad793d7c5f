//! What comes of an offered load: rate, loss and latency of one trial. A sweep of loads is a sweep
//! of cells (paper a, figure 9).

use super::{Error, Found, Limits, Trial};

/// Measures `rate` and `offered` (Mpps), `loss` (%), latency (`latency` the mean, `p50`, `p90`,
/// `p99`, `p999`, `max`; us), `reordered` and `duplicates` (frames).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let mut outcome = trial.run(limits.load, limits.seconds)?;
    if outcome.sent == 0 && limits.load.is_some() {
        // It was still sending what had been due before the window: less can be sent than is asked
        // for, and as much as can be sent is offered instead.
        outcome = trial.run(None, limits.seconds)?;
        let why =
            "the generator, which cannot send so much to these ports: what it can was offered";
        outcome.hindered = Some(why.into());
    }
    if outcome.sent == 0 {
        return Err(Error::NothingSent);
    }
    let mut found = Found::default();
    found.describe(&outcome);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Outcome, limits};
    use crate::simulated::Device;

    #[test]
    fn below_the_capacity_all_comes_back_and_above_it_the_rest_is_lost() {
        let mut device = Device {
            queue: 1000.0,
            ..Device::new(1e6)
        };
        let below = Limits {
            load: Some(0.5e6),
            ..limits()
        };
        let found = measure(&mut device, &below).unwrap().figures;
        assert_eq!((found["rate"], found["loss"]), (0.5, 0.0));
        assert!((found["p99"] - 1.0).abs() < 0.01);
        let above = Limits {
            load: Some(2e6),
            ..limits()
        };
        let found = measure(&mut device, &above).unwrap().figures;
        assert!((found["loss"] - 49.9).abs() < 0.01, "{found:?}");
        assert!(found["p50"] > 1000.0);
    }

    /// Sends nothing of what is due in the window if much is asked for.
    struct Slow(Device);

    impl Trial for Slow {
        fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
            let outcome = self.0.run(offered, seconds)?;
            match offered {
                Some(_) => Ok(Outcome::default()),
                None => Ok(outcome),
            }
        }
    }

    #[test]
    fn what_can_be_sent_is_offered_where_the_load_cannot() {
        let mut slow = Slow(Device {
            generator: 0.2e6,
            ..Device::new(3e6)
        });
        let above = Limits {
            load: Some(2e6),
            ..limits()
        };
        let found = measure(&mut slow, &above).unwrap();
        assert!((found.figures["offered"] - 0.2).abs() < 0.001);
        assert!(found.limited.unwrap().contains("cannot send so much"));
    }

    #[test]
    fn a_generator_that_falls_behind_is_named() {
        let mut device = Device {
            generator: 1e6,
            ..Device::new(3e6)
        };
        let found = measure(
            &mut device,
            &Limits {
                load: Some(2e6),
                ..limits()
            },
        )
        .unwrap();
        assert!(found.limited.is_some());
    }
}
