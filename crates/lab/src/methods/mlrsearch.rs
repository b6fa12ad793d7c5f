//! NDR and PDR by Multiple Loss Ratio search (draft-ietf-bmwg-mlrsearch).
//!
//! Two goals are searched at once: no loss (NDR) and at most 0.5% (PDR). Trials begin short and
//! with wide intervals; their duration grows and the width narrows from phase to phase, so that
//! long trials are spent only near the edges. Each load's trials are kept and shared by the goals.
//! A load is classified as the draft does: it is a lower bound if even with the worst outcome of
//! the trials that are still missing no more than the exceed ratio of the time has been bad, an
//! upper bound if even with the best more has been, and undecided otherwise, when it is tried
//! again. So a trial that loses by accident does not end the search.
//!
//! Differences from the draft: loss is compared per trial, and the conditional throughput is that
//! quantile of the trials' forwarding rates at the relevant lower bound which the exceed ratio
//! says.

use super::{Error, Found, Limits, Outcome, Trial};

/// Most trials of a search.
pub const MOST_TRIALS: u32 = 120;
/// Share of time in which a load may exceed the goal's loss and still be a lower bound.
const EXCEED: f64 = 0.5;
/// Phases before the final one; each has twice the width and half the duration of the next.
const PHASES: u32 = 2;
/// Trials of the final duration that a load needs, at least.
const FINAL_TRIALS: f64 = 3.0;
/// Below this share of the highest load a search gives up.
const LEAST: f64 = 1e-4;

/// What is searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Share of a trial's frames that may be lost.
    pub loss: f64,
    /// Seconds of a trial that counts fully.
    pub duration: f64,
    /// Seconds of such trials that a load needs.
    pub sum: f64,
    /// Width of the final interval, relative to its upper end.
    pub width: f64,
}

/// A trial of the search.
#[derive(Clone, Debug)]
struct Tried {
    load: f64,
    seconds: f64,
    loss: f64,
    rate: f64,
    /// What was the limit if not the device.
    limits: Option<String>,
}

/// What is known of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Lower,
    Upper,
    Undecided,
}

/// Classifies a load by its trials ("Load Classification Code" of the draft).
fn classify(tried: &[Tried], load: f64, goal: &Goal) -> Class {
    let (mut good, mut bad, mut good_short, mut bad_short) = (0.0, 0.0, 0.0, 0.0);
    for trial in tried.iter().filter(|t| t.load == load) {
        let sum = match (
            trial.seconds >= goal.duration * 0.999,
            trial.loss <= goal.loss,
        ) {
            (true, true) => &mut good,
            (true, false) => &mut bad,
            (false, true) => &mut good_short,
            (false, false) => &mut bad_short,
        };
        *sum += trial.seconds;
    }
    let balancing = good_short * EXCEED / (1.0 - EXCEED);
    let bad = bad + f64::max(0.0, bad_short - balancing);
    let whole = f64::max(good + bad, goal.sum);
    let missing = whole - good - bad;
    let allowed = whole * EXCEED + 1e-9;
    if bad + missing <= allowed {
        Class::Lower
    } else if bad > allowed {
        Class::Upper
    } else {
        Class::Undecided
    }
}

/// The state of a search.
struct Search<'a> {
    trial: &'a mut dyn Trial,
    tried: Vec<Tried>,
    most: f64,
    seconds: f64,
    /// Why no more than `most` can be offered, where that is less than was asked for.
    capped: Option<String>,
}

impl Search<'_> {
    fn try_load(&mut self, load: f64, seconds: f64) -> Result<Outcome, Error> {
        if self.tried.len() >= MOST_TRIALS as usize {
            return Err(Error::Endless(MOST_TRIALS));
        }
        let outcome = self.trial.run(Some(load), seconds)?;
        if outcome.sent == 0 {
            return Err(Error::NothingSent);
        }
        self.seconds += seconds;
        self.tried.push(Tried {
            load,
            seconds,
            loss: outcome.loss(),
            rate: outcome.rate(),
            limits: outcome.limits(),
        });
        Ok(outcome)
    }

    /// The relevant bounds: the least upper bound, and the greatest lower bound below it.
    fn bounds(&self, goal: &Goal) -> (Option<f64>, Option<f64>) {
        let mut loads: Vec<f64> = self.tried.iter().map(|t| t.load).collect();
        loads.sort_by(f64::total_cmp);
        loads.dedup();
        let mut lower = None;
        for load in loads {
            match classify(&self.tried, load, goal) {
                Class::Lower => lower = Some(load),
                Class::Upper => return (lower, Some(load)),
                Class::Undecided => {}
            }
        }
        (lower, None)
    }

    /// Narrows the interval of a goal to its width.
    fn narrow(&mut self, goal: &Goal) -> Result<(), Error> {
        let mut step = goal.width;
        loop {
            let (lower, upper) = self.bounds(goal);
            let load = match (lower, upper) {
                (Some(lower), None) if lower >= self.most => return Ok(()),
                (Some(lower), None) => {
                    step *= 2.0;
                    (lower / (1.0 - step).max(0.5)).min(self.most)
                }
                (Some(lower), Some(upper)) if upper - lower <= goal.width * upper => return Ok(()),
                // Where an earlier phase found a bound, the new one is likely near it.
                (Some(lower), Some(upper)) => {
                    let near = if lower / upper < 1.0 - 4.0 * goal.width {
                        step
                    } else {
                        0.0
                    };
                    if near > 0.0 {
                        step *= 2.0;
                        (lower / (1.0 - near).max(0.5)).min((lower + upper) / 2.0)
                    } else {
                        (lower + upper) / 2.0
                    }
                }
                (None, Some(upper)) if upper <= self.most * LEAST => {
                    return Err(Error::TooMuchLost(upper));
                }
                (None, Some(upper)) => {
                    let rate = self
                        .tried
                        .iter()
                        .filter(|t| t.load == upper)
                        .map(|t| t.rate);
                    let rate = rate.fold(f64::INFINITY, f64::min);
                    let next = upper * (1.0 - step).max(0.5);
                    step *= 2.0;
                    next.min(rate * (1.0 - goal.width / 2.0))
                        .max(self.most * LEAST)
                }
                // Nothing yet: what came back of the first trial, short trials' guess.
                (None, None) => self.guess(goal),
            };
            // At most as often as the sum of durations asks for, since each trial adds to it.
            while classify(&self.tried, load, goal) == Class::Undecided {
                self.try_load(load, goal.duration)?;
            }
        }
    }

    /// A load to begin with: the greatest that passed so far, or what came back of the highest.
    fn guess(&self, goal: &Goal) -> f64 {
        let passed = self
            .tried
            .iter()
            .filter(|t| t.loss <= goal.loss)
            .map(|t| t.load);
        match passed.fold(0.0, f64::max) {
            0.0 => {
                let rates = self.tried.iter().map(|t| t.rate);
                rates.fold(self.most, f64::min).max(self.most * LEAST)
            }
            load => load,
        }
    }

    /// What limited at least half of the trials at one of the relevant bounds, if not the device:
    /// it limits what is between the bounds. At the greatest load that can be offered: why that is.
    fn limits(&self, goal: &Goal) -> Option<String> {
        let (lower, upper) = self.bounds(goal);
        [upper, lower].into_iter().flatten().find_map(|load| {
            if load >= self.most && self.capped.is_some() {
                return self.capped.clone();
            }
            let at: Vec<_> = self.tried.iter().filter(|t| t.load == load).collect();
            let mut reasons = at.iter().filter_map(|t| t.limits.as_ref());
            let first = reasons.next()?;
            (2 * (1 + reasons.count()) >= at.len()).then(|| first.clone())
        })
    }

    /// The forwarding rate at the relevant lower bound that the exceed ratio of its time is below.
    fn conditional(&self, goal: &Goal) -> Result<(f64, f64), Error> {
        let lower = self.bounds(goal).0.ok_or(Error::NonePassed)?;
        let mut rates: Vec<(f64, f64)> = self
            .tried
            .iter()
            .filter(|t| t.load == lower && t.seconds >= goal.duration * 0.999)
            .map(|t| (t.rate.min(lower), t.seconds))
            .collect();
        rates.sort_by(|a, b| a.0.total_cmp(&b.0));
        let whole: f64 = rates.iter().map(|(_, seconds)| seconds).sum();
        let mut before = 0.0;
        for (rate, seconds) in rates {
            before += seconds;
            if before > whole * EXCEED {
                return Ok((rate, lower));
            }
        }
        Ok((lower, lower))
    }
}

/// Searches several goals; returns the conditional throughput and the relevant lower bound of each
/// (packets per second), and what was the limit, if not the device.
#[allow(clippy::type_complexity, reason = "named by the documentation above")]
pub fn search(
    trial: &mut dyn Trial,
    most: f64,
    goals: &[Goal],
) -> Result<(Vec<(f64, f64)>, Option<String>, f64), Error> {
    let mut search = Search {
        trial,
        tried: Vec::new(),
        most,
        seconds: 0.0,
        capped: None,
    };
    let shortest = goals
        .iter()
        .map(|g| g.duration)
        .fold(f64::INFINITY, f64::min);
    let first = search.try_load(most, shortest / f64::from(1 << PHASES))?;
    if first.limited.is_some() && first.offered() < most * 0.999 {
        // Loads above what can be sent are not trials of those loads.
        search.most = first.offered();
        search.tried[0].load = search.most;
        search.capped = first.limits();
    }
    for phase in 0..=PHASES {
        let factor = f64::from(1 << (PHASES - phase));
        for goal in goals {
            let goal = Goal {
                duration: goal.duration / factor,
                // Early phases decide by one trial.
                sum: if phase == PHASES {
                    goal.sum
                } else {
                    goal.duration / factor
                },
                width: (goal.width * factor).min(0.5),
                ..*goal
            };
            search.narrow(&goal)?;
        }
    }
    let found = goals
        .iter()
        .map(|goal| search.conditional(goal))
        .collect::<Result<Vec<_>, _>>()?;
    let limited = goals.iter().find_map(|goal| search.limits(goal));
    Ok((found, limited, search.seconds))
}

/// Measures `ndr` and `pdr` (Mpps, conditional throughput), `ndr_low` and `pdr_low` (Mpps, relevant
/// lower bounds), `trials` and `searched` (seconds of trials). PDR allows the limits' loss, or 0.5%
/// where that is 0.
pub fn measure(trial: &mut dyn Trial, limits: &Limits) -> Result<Found, Error> {
    let goal = |loss| Goal {
        loss,
        duration: limits.seconds,
        sum: limits.seconds * FINAL_TRIALS,
        width: limits.width,
    };
    let partial = if limits.loss > 0.0 {
        limits.loss
    } else {
        0.005
    };
    let mut trials = 0;
    let mut counting = Counting {
        trial,
        trials: &mut trials,
    };
    let (found, limited, searched) =
        search(&mut counting, limits.most, &[goal(partial), goal(0.0)])?;
    let mut result = Found::default();
    result.set("pdr", found[0].0 / 1e6);
    result.set("pdr_low", found[0].1 / 1e6);
    result.set("ndr", found[1].0 / 1e6);
    result.set("ndr_low", found[1].1 / 1e6);
    result.set("trials", f64::from(trials));
    result.set("searched", searched);
    result.limited = limited;
    Ok(result)
}

struct Counting<'a> {
    trial: &'a mut dyn Trial,
    trials: &'a mut u32,
}

impl Trial for Counting<'_> {
    fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
        *self.trials += 1;
        self.trial.run(offered, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::limits;
    use crate::simulated::{Device, Random};
    use proptest::prelude::*;

    fn tried(load: f64, seconds: f64, loss: f64) -> Tried {
        Tried {
            load,
            seconds,
            loss,
            rate: load * (1.0 - loss),
            limits: None,
        }
    }

    #[test]
    fn loads_are_classified_as_in_the_draft() {
        let goal = Goal {
            loss: 0.0,
            duration: 1.0,
            sum: 3.0,
            width: 0.01,
        };
        let class = |trials: &[Tried]| classify(trials, 1.0, &goal);
        assert_eq!(class(&[]), Class::Undecided);
        assert_eq!(class(&[tried(1.0, 1.0, 0.0)]), Class::Undecided);
        // Half of three seconds may be bad: two good ones decide, and two bad ones.
        assert_eq!(
            class(&[tried(1.0, 1.0, 0.0), tried(1.0, 1.0, 0.0)]),
            Class::Lower
        );
        assert_eq!(
            class(&[tried(1.0, 1.0, 0.1), tried(1.0, 1.0, 0.1)]),
            Class::Upper
        );
        let mixed = [tried(1.0, 1.0, 0.1), tried(1.0, 1.0, 0.0)];
        assert_eq!(class(&mixed), Class::Undecided);
        // Short good trials decide nothing, but balance short bad ones.
        let short = [
            tried(1.0, 0.5, 0.0),
            tried(1.0, 0.5, 0.0),
            tried(1.0, 0.5, 0.0),
        ];
        assert_eq!(class(&short), Class::Undecided);
        assert_eq!(
            class(&[tried(1.0, 1.0, 0.1), tried(1.0, 0.6, 0.1)]),
            Class::Upper
        );
        let balanced = [
            tried(1.0, 1.0, 0.1),
            tried(1.0, 0.6, 0.1),
            tried(1.0, 0.6, 0.0),
        ];
        assert_eq!(class(&balanced), Class::Undecided);
        // Other loads' trials do not count.
        assert_eq!(class(&[tried(2.0, 9.0, 0.1)]), Class::Undecided);
    }

    proptest! {
        #[test]
        fn finds_the_capacity_within_its_width(
            capacity in 0.05e6..19e6_f64, width in 0.005..0.05_f64, queue in 0.0..500.0_f64,
        ) {
            let mut device = Device { queue, ..Device::new(capacity) };
            let found = measure(&mut device, &Limits { width, ..limits() }).unwrap();
            let (ndr, pdr) = (found.figures["ndr"] * 1e6, found.figures["pdr"] * 1e6);
            // What the queue holds passes, too.
            let edge = capacity + queue / limits().seconds;
            prop_assert!(ndr <= edge * 1.001, "{} above {}", ndr, edge);
            prop_assert!(ndr >= edge * (1.0 - width) * 0.998, "{} below {}", ndr, edge);
            prop_assert!(pdr >= edge * (1.0 - width) * 0.998 && pdr <= edge * 1.006);
            prop_assert!(device.trials <= 60, "{} trials", device.trials);
        }
    }

    #[test]
    fn noise_and_accidents_do_not_mislead_it() {
        for seed in 0..40 {
            let mut device = Device {
                noise: 0.005,
                flaky: 0.15,
                random: Random::new(seed),
                ..Device::new(3e6)
            };
            let found = measure(
                &mut device,
                &Limits {
                    width: 0.02,
                    ..limits()
                },
            )
            .unwrap()
            .figures;
            assert!((found["pdr"] - 3.0).abs() < 0.12, "seed {seed}: {found:?}");
            assert!(
                found["ndr"] > 2.5 && found["ndr"] < 3.1,
                "seed {seed}: {found:?}"
            );
            assert!(
                found["pdr"] >= found["ndr"] * 0.98,
                "seed {seed}: {found:?}"
            );
            assert!(device.trials < MOST_TRIALS);
        }
    }

    #[test]
    fn long_trials_are_few() {
        let mut device = Device::new(3e6);
        let found = measure(&mut device, &limits()).unwrap().figures;
        // A search with full trials at every load would take more than 30 of three times 0.5 s.
        assert!(found["searched"] < 12.0, "{found:?}");
    }

    #[test]
    fn a_generator_that_is_slower_is_the_limit() {
        let mut device = Device {
            generator: 2e6,
            ..Device::new(3e6)
        };
        let found = measure(&mut device, &limits()).unwrap();
        assert!((found.figures["ndr"] - 2.0).abs() < 0.02, "{found:?}");
        assert!(found.limited.is_some());
        let mut device = Device {
            generator: 5e6,
            ..Device::new(3e6)
        };
        let found = measure(&mut device, &limits()).unwrap();
        assert_eq!(found.limited, None, "{found:?}");
        device.hindered = Some("guests");
        let found = measure(&mut device, &limits()).unwrap();
        assert_eq!(found.limited.as_deref(), Some("guests"), "{found:?}");
    }

    /// Loses some of the most that the generator can send, and nothing of 1% less.
    #[test]
    fn a_generator_is_the_limit_also_where_its_most_does_not_pass() {
        struct Edge(Device);
        impl Trial for Edge {
            fn run(&mut self, offered: Option<f64>, seconds: f64) -> Result<Outcome, Error> {
                let mut outcome = self.0.run(offered, seconds)?;
                if outcome.offered() > 0.99 * self.0.generator {
                    outcome.received -= outcome.received / 100;
                }
                Ok(outcome)
            }
        }
        let mut device = Edge(Device {
            generator: 2e6,
            ..Device::new(3e6)
        });
        let found = measure(
            &mut device,
            &Limits {
                width: 0.02,
                ..limits()
            },
        )
        .unwrap();
        assert!(found.figures["ndr"] > 1.95, "{found:?}");
        assert!(found.limited.is_some());
    }

    #[test]
    fn a_device_that_always_loses_ends_the_search() {
        let mut device = Device {
            flaky: 1.0,
            ..Device::new(3e6)
        };
        let error = measure(&mut device, &limits()).unwrap_err();
        assert!(
            matches!(error, Error::TooMuchLost(_) | Error::Endless(_)),
            "{error}"
        );
        assert!(device.trials <= MOST_TRIALS);
    }
}
