//! Flow set-up: how long until packets obey a rule that was changed; from sending the change, and
//! from the answer to the barrier behind it, which promises that they do (OpenFlow 1.5.1, 7.3.8).

use super::{Found, Limits, Trial};
use crate::statistics::median;

/// Measures `setup` and `barrier` (us, medians over the changes; negative: packets obeyed before
/// the answer), `setup_p99` and `barrier_p99` (us) and `changes` (how many).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, String> {
    let changes = trial.changes(limits.seconds)?;
    if changes.is_empty() {
        return Err("no change of a rule was seen".into());
    }
    let mut found = Found::default();
    found.set("changes", changes.len() as f64);
    for (name, mut times) in [
        (
            "setup",
            changes.iter().map(|c| c.0 * 1e6).collect::<Vec<_>>(),
        ),
        ("barrier", changes.iter().map(|c| c.1 * 1e6).collect()),
    ] {
        found.set(name, median(&times));
        times.sort_by(f64::total_cmp);
        let at = ((times.len() as f64 * 0.99).ceil() as usize).clamp(1, times.len());
        found.set(&format!("{name}_p99"), times[at - 1]);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::{Outcome, limits};

    struct Changes(Vec<(f64, f64)>);

    impl Trial for Changes {
        fn run(&mut self, _: Option<f64>, _: f64) -> Result<Outcome, String> {
            unreachable!()
        }

        fn changes(&mut self, _: f64) -> Result<Vec<(f64, f64)>, String> {
            Ok(self.0.clone())
        }
    }

    #[test]
    fn medians_and_tails_of_changes() {
        let mut changes: Vec<_> = (1..=99).map(|n| (f64::from(n) * 1e-6, -1e-6)).collect();
        changes.push((1.0, 2e-3));
        let found = measure(&mut Changes(changes), &limits()).unwrap().figures;
        assert!((found["setup"] - 50.5).abs() < 1e-6);
        assert!((found["setup_p99"] - 99.0).abs() < 1e-6);
        assert!((found["barrier"] + 1.0).abs() < 1e-6);
        assert_eq!(found["changes"], 100.0);
        assert!(measure(&mut Changes(Vec::new()), &limits()).is_err());
    }
}
