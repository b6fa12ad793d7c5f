//! Judges forecasts by a part of the sweep, and checks that wrong forecasts are detected. Times are
//! virtual: the same on every machine.

use forecast::choose::{Question, forecast};
use forecast::model::Model;
use forecast::seen::Past;
use forecast::sweep::simulate::{Effort, HORIZON, measure};
use forecast::sweep::{RESOLUTION, Scenario, Summary, judge, within};

const EFFORT: Effort = Effort {
    first: 20_000,
    most: 700_000,
    precision: 0.03,
    reference: 400,
};

/// Scenarios that need no long runs.
fn scenarios() -> impl Iterator<Item = Scenario> {
    let all = (0..60).map(Scenario::new);
    all.filter(|scenario| scenario.load < 0.85)
}

#[test]
fn forecasts_hold() {
    let rows: Vec<_> = scenarios()
        .map(|scenario| judge(&scenario, EFFORT).unwrap())
        .collect();
    let summary = Summary::of(&rows);
    let all = summary.scenarios;
    assert!(all >= 40, "{summary:?}");
    assert!(summary.within * 10 >= all * 9, "{summary:?}");
    assert!(
        summary.intervals.held as usize * 200 >= all * 181,
        "{summary:?}"
    );
    assert!(summary.median_half_width <= 0.15, "{summary:?}");
    assert!(summary.cannot_tell * 10 <= all, "{summary:?}");
    assert!(summary.trivial * 5 <= all, "{summary:?}");
    // Several models are needed, and the past alone is the last resort.
    let chosen = |wanted: Model| {
        let models = summary.models.iter();
        models
            .filter(|one| one.0 == wanted)
            .map(|one| one.1)
            .sum::<usize>()
    };
    assert!(chosen(Model::Seen) * 3 < all, "{summary:?}");
    assert!(
        chosen(Model::Mg1) > 0 && chosen(Model::Replay) > 0,
        "{summary:?}"
    );
}

/// From arrivals alone, without the measurement, M/G/1 finds the wait of Poisson arrivals, and a
/// model with the wrong rate does not.
#[test]
fn a_broken_model_is_seen() {
    let (mut right, mut wrong, mut fooled, mut all) = (0, 0, 0, 0);
    for scenario in (0..60).map(Scenario::new) {
        let poisson = matches!(scenario.source, forecast::sweep::source::Source::Poisson);
        if !poisson || scenario.limit.is_some() || !(0.3..0.85).contains(&scenario.load) {
            continue;
        }
        let run = measure(&scenario, EFFORT).unwrap();
        if run.measured.value < 5.0 * RESOLUTION {
            continue;
        }
        all += 1;
        let past = Past::of(&run.seen).unwrap();
        let server = scenario.server();
        let says = Model::Mg1.evaluate(&server, &past.load).unwrap().wait;
        right += u32::from(within(says, run.measured.value));
        let slow = forecast::queue::Server {
            rate: server.rate * 0.9,
            ..server
        };
        let says = Model::Mg1.evaluate(&slow, &past.load).unwrap().wait;
        wrong += u32::from(within(says, run.measured.value));
        // The choice rejects it, too.
        let answer = forecast(&Question {
            server: &slow,
            load: &past.load,
            waited: Some(&past.waited),
            horizon: HORIZON,
            resolution: RESOLUTION,
        });
        fooled += u32::from(answer.unwrap().model == Model::Mg1);
    }
    assert!(all >= 5, "{all}");
    assert!(right * 10 >= all * 8, "{right} of {all}");
    assert!(wrong == 0 && fooled == 0, "{wrong}, {fooled} of {all}");
}
