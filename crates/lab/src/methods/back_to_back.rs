//! RFC 9004: the longest burst, sent as fast as the generator can, of which nothing is lost; and
//! the time that the device's buffer holds, corrected for what it forwards meanwhile.

use super::{Error, Found, Limits, Trial};

/// Bursts of each length.
const REPEATS: u32 = 10;
/// The longest burst that is tried, frames.
const MOST: u64 = 1 << 20;

/// Measures `burst` (frames), `buffer` (us; RFC 9004's corrected buffer time) and `rate` (Mpps, of
/// the greatest load).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let full = trial.run(Some(limits.most), limits.seconds)?;
    if full.sent == 0 {
        return Err(Error::NothingSent);
    }
    let mut found = Found::default();
    found.set("rate", full.rate() / 1e6);
    if full.loss() == 0.0 {
        found.limited = Some(full.limits().unwrap_or_else(|| {
            "nothing is lost at the highest load, so no burst is too long".into()
        }));
    }
    let (mut low, mut high) = (1_u64, 2_u64);
    let mut hindered = full.hindered.clone();
    let mut passes = |trial: &mut dyn Trial, frames| {
        let outcome = trial.burst(frames, REPEATS)?;
        hindered = hindered.take().or(outcome.hindered.clone());
        Ok::<_, Error>(outcome.loss() <= limits.loss)
    };
    while high <= MOST && passes(trial, high)? {
        (low, high) = (high, high * 2);
    }
    if high <= MOST {
        while high - low > 1.max((low as f64 * limits.width) as u64) {
            let middle = low.midpoint(high);
            if passes(trial, middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
    }
    found.limited = found.limited.or(hindered);
    let sent = full.offered().max(1.0);
    let implied = low as f64 / sent;
    found.set("burst", low as f64);
    found.set(
        "buffer",
        1e6 * (implied - implied * full.rate() / sent).max(0.0),
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
    use crate::simulated::Device;

    #[test]
    fn finds_the_queue() {
        let mut device = Device {
            queue: 1000.0,
            generator: 20e6,
            ..Device::new(10e6)
        };
        let found = measure(&mut device, &limits()).unwrap();
        // Half of a burst is forwarded while it arrives, so 2000 frames fit a queue of 1000.
        assert!((found.figures["burst"] - 2000.0).abs() < 25.0, "{found:?}");
        assert!((found.figures["buffer"] - 50.0).abs() < 2.0, "{found:?}");
        assert!(device.trials < 40);
        assert_eq!(found.limited, None);
    }

    #[test]
    fn a_device_that_keeps_up_has_no_longest_burst() {
        let found = measure(
            &mut Device {
                generator: 5e6,
                ..Device::new(10e6)
            },
            &limits(),
        );
        let found = found.unwrap();
        assert!(found.limited.is_some());
        assert_eq!(found.figures["burst"], MOST as f64);
    }
}
