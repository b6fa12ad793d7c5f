//! RFC 2544, 26.1: the greatest load of which nothing is lost, by bisection.
//!
//! Begins at the highest load; where the generator cannot send that, what it can send is the
//! highest load. Ends when the interval between a load without loss and one with loss is narrower
//! than the width. One lost frame is loss (but see `tst009`); a `loss` above 0 makes it a partial
//! drop rate.

use super::{Error, Found, Limits, Outcome, Trial, gbit};

/// Most trials of a search.
pub const MOST_TRIALS: u32 = 40;

/// The result of a bisection.
pub(super) struct Edge {
    /// The greatest load that passed, packets per second.
    pub load: f64,
    /// What was the limit at its ends, if not the device.
    pub limited: Option<String>,
}

impl Edge {
    /// Returns what was found by this many trials.
    pub fn found(self, trials: u32, limits: &Limits) -> Found {
        let mut found = Found::default();
        found.set("rate", self.load / 1e6);
        found.set("gbit", gbit(self.load, limits.size));
        found.set("trials", f64::from(trials));
        found.limited = self.limited;
        found
    }
}

/// Searches for the greatest load that passes. `passes` runs trials at a load.
pub(super) fn bisect(
    limits: &Limits,
    mut passes: impl FnMut(f64) -> Result<(Outcome, bool), Error>,
) -> Result<Edge, Error> {
    let (first, passed) = passes(limits.most)?;
    if first.sent == 0 {
        return Err(Error::NothingSent);
    }
    let most = first.offered().min(limits.most);
    if passed {
        return Ok(Edge {
            load: most,
            limited: first.limits(),
        });
    }
    // What limited the trials at both ends of the interval limits what is between them: also where
    // a frame got lost of the most that the generator could send.
    let (mut why_low, mut why_high) = (None, first.limits());
    // What came back is near the edge: it saves half of the trials.
    let (mut low, mut high) = (0.0, most);
    let mut next = (first.rate() * (1.0 - limits.width / 2.0)).clamp(most * 1e-6, most);
    let (mut trials, mut sent) = (1, 0.0);
    while high - low > limits.width * high {
        if trials == MOST_TRIALS {
            return Err(Error::EndlessBetween { trials, low, high });
        }
        let (outcome, passed) = passes(next)?;
        trials += 1;
        if passed {
            why_low = outcome.limits();
            // Not more than was sent; but the search goes on from what was asked for.
            sent = next.min(outcome.offered());
            low = next;
            // Far below the upper end once, then by halves.
            next = (low * (1.0 + 2.0 * limits.width)).min((low + high) / 2.0);
            if trials > 3 {
                next = (low + high) / 2.0;
            }
        } else {
            why_high = outcome.limits();
            high = next;
            next = if low > 0.0 {
                (low + high) / 2.0
            } else {
                // A device that loses some at any load: give up below a thousandth.
                if high < most / 1000.0 {
                    return Err(Error::AlwaysLost(high));
                }
                high * (1.0 - (limits.width * 4.0 * f64::from(trials)).min(0.5))
            };
        }
    }
    Ok(Edge {
        load: sent,
        limited: why_high.or(why_low),
    })
}

/// Measures `rate` (Mpps), `gbit` and `trials`.
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let mut trials = 0;
    let edge = bisect(limits, |load| {
        trials += 1;
        let outcome = trial.run(Some(load), limits.seconds)?;
        let passed = outcome.loss() <= limits.loss;
        Ok((outcome, passed))
    })?;
    Ok(edge.found(trials, limits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
    use crate::simulated::Device;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ends_within_its_width(capacity in 0.05e6..19e6_f64, width in 0.005..0.1_f64) {
            let mut device = Device::new(capacity);
            let found = measure(&mut device, &Limits { width, ..limits() }).unwrap();
            let rate = found.figures["rate"] * 1e6;
            prop_assert!(rate <= capacity * 1.0001 && rate >= capacity * (1.0 - width) * 0.999,
                "{} of {}", rate, capacity);
            prop_assert!(device.trials <= 20, "{} trials", device.trials);
        }
    }

    #[test]
    fn a_generator_that_is_slower_is_the_limit() {
        let mut device = Device {
            generator: 2e6,
            ..Device::new(3e6)
        };
        let found = measure(&mut device, &limits()).unwrap();
        assert!((found.figures["rate"] - 2.0).abs() < 0.01);
        assert!(found.limited.is_some());
        // Not where the switch is slower than it.
        let mut device = Device {
            generator: 4e6,
            ..Device::new(3e6)
        };
        assert_eq!(measure(&mut device, &limits()).unwrap().limited, None);
        // But where other things than its speed are the limit.
        device.hindered = Some("guests");
        let found = measure(&mut device, &limits()).unwrap();
        assert_eq!(found.limited.as_deref(), Some("guests"));
    }

    /// A frame got lost by accident of the most that the generator can send: the search ends just
    /// below that, and the switch was not the limit.
    #[test]
    fn a_generator_is_the_limit_also_where_its_first_load_does_not_pass() {
        let mut device = Accident(Device {
            generator: 2e6,
            ..Device::new(3e6)
        });
        let found = measure(&mut device, &limits()).unwrap();
        let rate = found.figures["rate"];
        assert!(rate > 1.97 && rate <= 2.0, "{rate}");
        assert!(found.limited.is_some());
    }

    /// Loses a frame of its first trial.
    struct Accident(Device);

    impl Trial for Accident {
        fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
            let mut outcome = self.0.run(offered, seconds)?;
            outcome.received -= u64::from(self.0.trials == 1);
            Ok(outcome)
        }
    }

    #[test]
    fn a_device_that_always_loses_ends_the_search() {
        let mut device = Device {
            flaky: 1.0,
            ..Device::new(3e6)
        };
        let error = measure(&mut device, &limits()).unwrap_err();
        assert!(
            matches!(error, Error::AlwaysLost(_) | Error::EndlessBetween { .. }),
            "{error}"
        );
        assert!(device.trials <= MOST_TRIALS);
    }

    #[test]
    fn loss_that_is_allowed_is_no_loss() {
        let mut device = Device {
            flaky: 1.0,
            ..Device::new(3e6)
        };
        let found = measure(
            &mut device,
            &Limits {
                loss: 0.005,
                ..limits()
            },
        )
        .unwrap();
        assert!((found.figures["rate"] - 3.0).abs() < 0.05, "{found:?}");
    }
}
