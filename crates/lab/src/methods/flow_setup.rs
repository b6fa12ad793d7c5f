//! Flow set-up: how long until packets obey a rule that was changed; from sending the change, and
//! from the answer to the barrier behind it, which promises that they do (OpenFlow 1.5.1, 7.3.8).

use super::{Error, Found, Limits, Trial};
use crate::statistics::median;

/// Measures `setup` and `barrier` (us, medians over the changes; negative: packets obeyed before
/// the answer), `setup_p99` and `barrier_p99` (us), `statistics` and `statistics_p99` (us, of an
/// answer with the statistics of all rules) and `changes` (how many).
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let found = trial.changes(limits.seconds)?;
    if found.times.is_empty() {
        return Err(Error::NoChangeSeen);
    }
    let of = |time: fn(&(f64, f64)) -> f64| found.times.iter().map(time).collect::<Vec<f64>>();
    let all = [
        ("setup", of(|times| times.0)),
        ("barrier", of(|times| times.1)),
        ("statistics", found.statistics.clone()),
    ];
    let changes = found.times.len();
    let mut found = Found::default();
    found.set("changes", changes as f64);
    for (name, mut times) in all {
        if times.is_empty() {
            continue;
        }
        found.set(name, 1e6 * median(&times));
        times.sort_by(f64::total_cmp);
        let at = ((times.len() as f64 * 0.99).ceil() as usize).clamp(1, times.len());
        found.set(&format!("{name}_p99"), 1e6 * times[at - 1]);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::Changes;
    use crate::methods::{Outcome, limits};

    struct Changing(Changes);

    impl Trial for Changing {
        fn run(&mut self, _: Option<f64>, _: f64) -> Result<Outcome, Error> {
            unreachable!()
        }

        fn changes(&mut self, _: f64) -> Result<Changes, Error> {
            Ok(self.0.clone())
        }
    }

    #[test]
    fn medians_and_tails_of_changes() {
        let mut changes: Vec<_> = (1..=99).map(|n| (f64::from(n) * 1e-6, -1e-6)).collect();
        changes.push((1.0, 2e-3));
        let mut trial = Changing(Changes {
            times: changes,
            statistics: vec![1e-3, 3e-3, 2e-3],
        });
        let found = measure(&mut trial, &limits()).unwrap().figures;
        assert!((found["statistics"] - 2000.0).abs() < 1e-6);
        assert!((found["statistics_p99"] - 3000.0).abs() < 1e-6);
        assert!((found["setup"] - 50.5).abs() < 1e-6);
        assert!((found["setup_p99"] - 99.0).abs() < 1e-6);
        assert!((found["barrier"] + 1.0).abs() < 1e-6);
        assert_eq!(found["changes"], 100.0);
        assert!(measure(&mut Changing(Changes::default()), &limits()).is_err());
    }
}
