//! RFC 2544, 26.5: the time until a device that was overloaded forwards all again.
//!
//! The device is offered 110% of its throughput, then at once half of that, by one run of the
//! generator. The time of recovery is from the change to the time at which the last frame was due
//! that was lost. Frames that wait in the switch's queues at the change are not lost, and do not
//! count; frames that are dropped while queues are still full do.

use super::{Error, Found, Limits, Trial, rfc2544};

/// What is offered first, relative to the throughput.
const OVERLOAD: f64 = 1.1;

/// Measures `recovery` (us) and `lost` (frames after the change).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let edge = rfc2544::measure(trial, limits)?;
    let over = 1e6 * edge.figures["rate"] * OVERLOAD;
    let stepped = trial.step((over, over / 2.0), (limits.seconds, limits.seconds))?;
    let (sent, received) = stepped.after;
    let mut found = Found::default();
    found.set("lost", sent.saturating_sub(received) as f64);
    let seconds = stepped.last_lost.unwrap_or(0.0).max(0.0);
    found.set("recovery", 1e6 * seconds);
    let (sent, received) = stepped.before;
    let in_vain = (received >= sent).then(|| {
        let load = over / 1e6;
        format!("an overload that was none: of {load:.3} Mpps nothing was lost")
    });
    found.limited = edge.limited.or(stepped.limited).or(in_vain);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Outcome, Stepped, limits};
    use crate::simulated::Device;

    /// Loses all of the first 5 ms after an overload.
    struct Slow(Device);

    impl Trial for Slow {
        fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
            self.0.run(offered, seconds)
        }

        fn step(&mut self, rates: (f64, f64), times: (f64, f64)) -> Result<Stepped, Error> {
            let mut stepped = self.0.step(rates, times)?;
            if stepped.before.1 < stepped.before.0 {
                stepped.after.1 -= (0.005 * rates.1) as u64;
                stepped.last_lost = Some(0.005);
            }
            Ok(stepped)
        }
    }

    #[test]
    fn finds_the_time() {
        let found = measure(&mut Slow(Device::new(3e6)), &limits()).unwrap();
        assert_eq!(found.figures["recovery"], 5000.0);
        // Half of 110% of 3 Mpps.
        assert!((found.figures["lost"] - 8250.0).abs() < 100.0, "{found:?}");
        assert_eq!(found.limited, None);
        let found = measure(&mut Device::new(3e6), &limits()).unwrap();
        assert_eq!(found.figures["recovery"], 0.0);
        assert_eq!(found.figures["lost"], 0.0);
    }

    #[test]
    fn an_overload_that_is_none_is_said() {
        let mut device = Device::new(30e6);
        let found = measure(&mut device, &limits()).unwrap();
        let why = found.limited.unwrap();
        assert!(why.contains("nothing was lost"), "{why}");
    }
}
