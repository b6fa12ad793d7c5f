//! RFC 2544, 26.3: frame loss from the greatest load downwards, in steps of a tenth, until two
//! trials in a row lose nothing.

use super::{Error, Found, Limits, Trial};

/// Measures `loss` (%, at the highest load), `loss_90` to `loss_50` (%, at these percentages of
/// it), `rate` (Mpps, received at the highest) and `knee` (Mpps, the highest step without loss).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let mut found = Found::default();
    let mut most = limits.most;
    let (mut without, mut knee) = (0, 0.0_f64);
    for step in 0..10 {
        let load = most * f64::from(10 - step) / 10.0;
        let outcome = trial.run(Some(load), limits.seconds)?;
        if outcome.sent == 0 {
            return Err(Error::NothingSent);
        }
        let lost = outcome.loss();
        found.limited = found.limited.or_else(|| outcome.hindered.clone());
        if step == 0 {
            found.limited = outcome.limits();
            most = outcome.offered().min(most);
            found.set("rate", outcome.rate() / 1e6);
            found.set("loss", lost * 100.0);
        } else if step <= 5 {
            found.set(&format!("loss_{}", 100 - 10 * step), lost * 100.0);
        }
        if lost <= limits.loss {
            without += 1;
            knee = knee.max(outcome.offered());
        } else {
            without = 0;
        }
        if without == 2 {
            break;
        }
    }
    // Steps below two without loss have none by definition of the method.
    for percent in [90, 80, 70, 60, 50] {
        found
            .figures
            .entry(format!("loss_{percent}"))
            .or_insert(0.0);
    }
    found.set("knee", knee / 1e6);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
    use crate::simulated::Device;

    #[test]
    fn loss_falls_to_nothing_at_the_capacity() {
        let mut device = Device::new(15e6);
        let found = measure(&mut device, &limits()).unwrap().figures;
        assert!((found["loss"] - 25.0).abs() < 0.01);
        assert!((found["loss_90"] - 100.0 * 3.0 / 18.0).abs() < 0.01);
        assert_eq!(
            (found["loss_70"], found["loss_50"], found["knee"]),
            (0.0, 0.0, 14.0)
        );
        assert_eq!(device.trials, 5, "ends after two without loss");
    }
}
