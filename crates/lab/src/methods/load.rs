//! What comes of an offered load: rate, loss and latency of one trial. A sweep of loads is a sweep
//! of cells (paper a, figure 9).

use super::{Found, Limits, Trial};

/// Measures `rate` and `offered` (Mpps), `loss` (%), latency (`latency` the mean, `p50`, `p90`,
/// `p99`, `p999`, `max`; us), `reordered` and `duplicates` (frames).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, String> {
    let outcome = trial.run(limits.load, limits.seconds)?;
    if outcome.sent == 0 {
        return Err("no frame was sent".into());
    }
    let mut found = Found::default();
    found.describe(&outcome);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
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
