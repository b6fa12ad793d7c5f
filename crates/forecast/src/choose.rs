//! Chooses the model to believe, or says that none can be trusted.
//!
//! Without records, the description of the arrivals decides. With records, each model predicts the
//! past from its arrivals alone, and is compared with the measured waits. Of the models whose
//! difference can be explained by chance and their own error, the likeliest is chosen; of equals,
//! the one with the smallest error. Prediction and measurement are then averaged, weighted by their
//! errors: the model is more precise if waits are rare, the measurement if arrivals violate the
//! model's assumptions. If no model fits, the forecast says so, and the past is taken as the
//! forecast.
//!
//! The interval is for the mean over a future period ([`Question::horizon`]), so it includes the
//! randomness of that period. The answer is "cannot tell" if 1 - rho is within its own error and no
//! measurement helps.

use crate::model::{MODELS, Model};
use crate::queue::{Load, Server};
use crate::replay;
use crate::seen::Waited;
use crate::{Error, Span, Z95};
use serde::Serialize;

/// A request for a forecast.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The queue.
    pub server: &'a Server,
    /// The arrivals.
    pub load: &'a Load,
    /// The measured waits, if there are any.
    pub waited: Option<&'a Waited>,
    /// Length of the future period, as a multiple of the recorded one; infinite for the long-run
    /// mean.
    pub horizon: f64,
    /// Differences of waits that are ignored, in seconds.
    pub resolution: f64,
}

/// One model's prediction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The model.
    pub model: Model,
    /// Mean wait, in seconds, with the error of the inputs and of the model.
    pub wait: Span,
    /// Predicted share of packets dropped.
    pub loss: f64,
    /// Relative difference from the measurement: 0.1 for 10% too much.
    pub off: Option<f64>,
    /// Whether chance and the model's own error explain the difference.
    pub fits: bool,
}

/// A forecast.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forecast {
    /// The model chosen.
    pub model: Model,
    /// Mean wait, in seconds.
    pub wait: Span,
    /// Share of packets dropped.
    pub loss: f64,
    /// Offered rate over the queue's.
    pub utilization: Span,
    /// Why nothing can be told, if so; the wait is then only a guess.
    pub cannot_tell: Option<String>,
    /// Why this model was chosen.
    pub reason: String,
    /// The predictions of all models that apply.
    pub candidates: Vec<Candidate>,
}

impl Forecast {
    /// Returns the mean of the chosen model alone, before it is averaged with the measurement.
    pub fn own(&self, waited: &Waited) -> f64 {
        let mut candidates = self.candidates.iter();
        let chosen = candidates.find(|candidate| candidate.model == self.model);
        chosen.map_or(waited.mean, |candidate| candidate.wait.value)
    }
}

/// Standard deviation of the logarithm of a value that is unknown.
const ANYTHING: f64 = 2.0;
/// An interval wider than this, in standard deviations of the logarithm, is useless.
const USELESS: f64 = 0.35;
/// Correlation of the errors of model and measurement, which share their packets.
const SHARED: f64 = 0.5;
/// Fewest packets of a usable record.
const FEWEST: u64 = 500;

/// Returns a model's mean and the standard deviation of its logarithm.
fn believe(
    model: Model,
    server: &Server,
    load: &Load,
    resolution: f64,
) -> Result<(f64, f64, f64), Error> {
    let outcome = model.evaluate(server, load)?;
    if !outcome.wait.is_finite() {
        return Ok((f64::INFINITY, ANYTHING, outcome.loss));
    }
    let mut variance = model.own_error().powi(2);
    if load.doubt.rate > 0.0 {
        let step = (Z95 * load.doubt.rate).exp();
        let at = |factor: f64| {
            model
                .evaluate(server, &load.times(factor))
                .map(|outcome| outcome.wait + resolution)
        };
        let (low, high) = (at(1.0 / step)?, at(step)?);
        let slope = if high.is_finite() {
            (high / low).ln().abs() / (2.0 * Z95)
        } else {
            // The upper end is infinite: assume it is at least as far away as the lower one.
            ((outcome.wait + resolution) / low)
                .ln()
                .abs()
                .max(ANYTHING / 2.0)
        };
        variance += slope * slope;
    }
    if model == Model::Replay {
        variance += replay::simulate(server, load, replay::STEPS, 1)?
            .deviation
            .powi(2);
    }
    if !matches!(
        model,
        Model::Mm1 | Model::Mm1k | Model::Cap | Model::Sawtooth | Model::Periodic
    ) {
        variance += load.doubt.unevenness.powi(2);
    }
    Ok((outcome.wait, variance.sqrt().min(ANYTHING), outcome.loss))
}

/// Returns the model that assumes exactly what is stated about arrivals.
fn by_assumption(server: &Server, load: &Load) -> Model {
    use crate::queue::Arrivals::*;
    let endless = server.limit.is_none() && server.bound.is_none();
    match load.arrivals {
        _ if !endless && server.burst == 0.0 && Model::Mg1k.evaluate(server, load).is_ok() => {
            Model::Mg1k
        }
        _ if !endless => Model::Replay,
        Poisson => Model::Mg1,
        Batches(_) => Model::Batches,
        Periodic if load.size_scv() == 0.0 => Model::Periodic,
        _ if !load.gaps.is_empty() => Model::Replay,
        Varying(_) | Periodic => Model::Gg1,
    }
}

fn utilization(server: &Server, load: &Load) -> Span {
    Span::spread(load.utilization(server), load.doubt.rate)
}

/// Computes a forecast.
pub fn forecast(question: &Question<'_>) -> Result<Forecast, Error> {
    let Question {
        server,
        load,
        waited,
        resolution,
        ..
    } = *question;
    server.check()?;
    load.check()?;
    let rho = utilization(server, load);
    let endless = server.limit.is_none() && server.bound.is_none();
    match waited.filter(|waited| waited.packets >= FEWEST && waited.deviation.is_finite()) {
        Some(waited) => from_past(question, waited, rho),
        None => {
            let candidates = candidates(server, load, None, resolution);
            let model = by_assumption(server, load);
            let chosen = candidates.iter().find(|candidate| candidate.model == model);
            let chosen = *chosen
                .ok_or_else(|| Error::new(format!("{} cannot be computed", model.name())))?;
            let mut cannot_tell = None;
            if endless && rho.high >= 1.0 {
                cannot_tell = Some(match rho.low >= 1.0 {
                    true => "more comes than leaves: the wait grows without end".to_owned(),
                    false => format!(
                        "1 - rho, {:.4}, is inside the error of rho",
                        1.0 - rho.value
                    ),
                });
            }
            if waited.is_some() {
                cannot_tell = Some("too few packets have been seen".to_owned());
            }
            Ok(Forecast {
                model,
                wait: chosen.wait,
                loss: chosen.loss,
                utilization: rho,
                cannot_tell,
                reason: "by what is said about arrivals; nothing was measured".to_owned(),
                candidates,
            })
        }
    }
}

/// Forecasts the same arrivals at another rate, with the model that explained the records; its
/// difference from them counts as its error. Senders that fill their queue (`cap`, `sawtooth`) are
/// assumed to adapt to the new rate.
pub fn elsewhere(question: &Question<'_>, answer: &Forecast, rate: f64) -> Result<Forecast, Error> {
    let Question {
        load, resolution, ..
    } = *question;
    let server = Server {
        rate,
        ..*question.server
    };
    server.check()?;
    let closed = matches!(answer.model, Model::Cap | Model::Sawtooth);
    let rho = match closed {
        true => answer.utilization,
        false => utilization(&server, load),
    };
    let candidates = candidates(&server, load, None, resolution);
    let explained = answer.model != Model::Seen;
    let model = match explained {
        true => answer.model,
        false => by_assumption(&server, load),
    };
    let find = |all: &[Candidate]| all.iter().find(|one| one.model == model).copied();
    let chosen = find(&candidates)
        .ok_or_else(|| Error::new(format!("{} cannot be computed", model.name())))?;
    let off = find(&answer.candidates).and_then(|here| here.off);
    let endless = server.limit.is_none() && server.bound.is_none();
    let mut wait = chosen.wait;
    let mut deviation = ANYTHING;
    if wait.value.is_finite() {
        let own = ((wait.high + resolution) / (wait.low + resolution)).ln() / (2.0 * Z95);
        let misfit = off.map_or(0.0, |off| (1.0 + off).max(1e-3).ln());
        deviation = own.hypot(misfit);
        let spread = Span::spread(wait.value + resolution, deviation);
        wait.low = (spread.low - resolution).max(0.0);
        wait.high = spread.high - resolution;
    }
    let cannot_tell = if endless && rho.value >= 1.0 && !closed {
        Some("more comes than would leave: the wait would grow without end".to_owned())
    } else if endless && rho.high >= 1.0 && !closed {
        Some(format!(
            "1 - rho, {:.4}, is inside the error of rho",
            1.0 - rho.value
        ))
    } else if !explained {
        Some("no model has explained what was seen at the present rate".to_owned())
    } else if deviation > USELESS && wait.high > 3.0 * resolution {
        Some("the model's error is too large there".to_owned())
    } else {
        None
    };
    Ok(Forecast {
        model,
        wait,
        loss: chosen.loss,
        utilization: rho,
        cannot_tell,
        reason: "the model that explains what was seen, asked about another rate".to_owned(),
        candidates,
    })
}

fn candidates(
    server: &Server,
    load: &Load,
    waited: Option<&Waited>,
    resolution: f64,
) -> Vec<Candidate> {
    MODELS
        .into_iter()
        .filter_map(|model| {
            let (wait, deviation, loss) = believe(model, server, load, resolution).ok()?;
            let off = waited.map(|waited| (wait + resolution) / (waited.mean + resolution) - 1.0);
            let fits = waited.is_some_and(|waited| {
                let explained = (deviation.powi(2) + waited.deviation.powi(2)).sqrt();
                wait.is_finite()
                    && ((wait + resolution) / (waited.mean + resolution))
                        .ln()
                        .abs()
                        <= Z95 * explained
            });
            let wait = if wait.is_finite() {
                Span::spread(wait, deviation)
            } else {
                Span {
                    value: wait,
                    low: 0.0,
                    high: wait,
                }
            };
            Some(Candidate {
                model,
                wait,
                loss,
                off,
                fits,
            })
        })
        .collect()
}

fn from_past(question: &Question<'_>, waited: &Waited, rho: Span) -> Result<Forecast, Error> {
    let Question {
        server,
        load,
        horizon,
        resolution,
        ..
    } = *question;
    let candidates = candidates(server, load, Some(waited), resolution);
    let measured = waited.mean + resolution;
    // Waits of a few resolutions cannot be known better than that.
    let chance = waited.deviation.max(0.002);
    let deviation = |candidate: &Candidate| {
        let width = ((candidate.wait.high + resolution) / (candidate.wait.low + resolution)).ln();
        (width / (2.0 * Z95)).clamp(1e-3, ANYTHING)
    };
    // A closed loop has no arrivals of its own, so models of arrivals do not apply.
    let open = |model: Model| !waited.saturated || matches!(model, Model::Cap | Model::Sawtooth);
    let likelihood = |candidate: &Candidate| {
        let variance = deviation(candidate).powi(2) + chance * chance;
        let distance = ((candidate.wait.value + resolution) / measured).ln();
        -distance * distance / (2.0 * variance) - variance.ln() / 2.0
    };
    let best = candidates
        .iter()
        .filter(|candidate| {
            candidate.fits && candidate.model != Model::Paper && open(candidate.model)
        })
        .max_by(|a, b| likelihood(a).total_cmp(&likelihood(b)));
    let (model, wait, error) = match best {
        Some(best) => {
            let own = deviation(best);
            let weight = chance * chance / (own * own + chance * chance);
            let mean = ((best.wait.value + resolution).ln() * weight
                + measured.ln() * (1.0 - weight))
                .exp();
            let common = 2.0 * weight * (1.0 - weight) * SHARED * own * chance;
            let variance = (weight * own).powi(2) + ((1.0 - weight) * chance).powi(2) + common;
            (best.model, mean - resolution, variance)
        }
        None => (Model::Seen, waited.mean, chance * chance),
    };
    let reason = match best {
        Some(best) => format!(
            "{} is {:+.1}% off what was measured, within its error and chance",
            best.model.name(),
            best.off.unwrap_or(0.0) * 100.0
        ),
        None if waited.saturated => "packets nearly always wait: senders fill the queue, and what was seen stands for what comes".to_owned(),
        None => "no model fits what was measured, which stands for what comes".to_owned(),
    };
    let to_come = if horizon > 0.0 {
        chance * chance / horizon
    } else {
        0.0
    };
    // The error estimate of a small sample is itself uncertain.
    let total = 1.1 * (error + to_come).sqrt();
    let spread = Span::spread(wait.max(0.0) + resolution, total);
    let wait = Span {
        value: wait.max(0.0),
        low: (spread.low - resolution).max(0.0),
        high: spread.high - resolution,
    };
    let tiny = waited.mean < 3.0 * resolution && wait.high < 3.0 * resolution;
    let endless = server.limit.is_none() && server.bound.is_none();
    let cannot_tell = if total > USELESS && !tiny {
        Some(format!(
            "waits varied too much: the interval would be {:.0}% to either side",
            wait.half_width() * 100.0
        ))
    } else if endless && rho.value >= 1.0 && !waited.saturated {
        Some("more comes than leaves: the wait grows".to_owned())
    } else {
        None
    };
    let loss = best.map_or(waited.loss, |best| {
        if waited.loss > 0.0 {
            waited.loss
        } else {
            best.loss
        }
    });
    Ok(Forecast {
        model,
        wait,
        loss,
        utilization: rho,
        cannot_tell,
        reason,
        candidates,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Arrivals, Doubt};

    /// Poisson arrivals at half of 10 Mbit/s, with the waits of M/D/1.
    fn half() -> (Server, Load, Waited) {
        let load = Load {
            doubt: Doubt {
                rate: 0.01,
                unevenness: 0.01,
            },
            ..Load::new(5e6, 1000.0, Arrivals::Poisson)
        };
        let waited = Waited {
            mean: 50e-6,
            deviation: 0.02,
            packets: 10_000,
            loss: 0.0,
            saturated: false,
        };
        (Server::new(10e6), load, waited)
    }

    fn question<'a>(server: &'a Server, load: &'a Load, waited: &'a Waited) -> Question<'a> {
        Question {
            server,
            load,
            waited: Some(waited),
            horizon: 1.0,
            resolution: 1e-6,
        }
    }

    #[test]
    fn another_rate_is_asked_of_the_model_that_explained() {
        let (server, load, waited) = half();
        let question = question(&server, &load, &waited);
        let here = forecast(&question).unwrap();
        assert!((here.own(&waited) - 50e-6).abs() < 5e-6, "{here:?}");
        let same = elsewhere(&question, &here, 10e6).unwrap();
        assert!(
            (same.wait.value - here.own(&waited)).abs() < 1e-9,
            "{same:?}"
        );
        // At rho 0.25, the wait is a sixth of a packet's 50 us.
        let faster = elsewhere(&question, &here, 20e6).unwrap();
        assert!(
            (faster.wait.value - 50e-6 / 6.0).abs() < 1e-6 && faster.cannot_tell.is_none(),
            "{faster:?}"
        );
        for rate in [5e6, 4e6, 5.01e6] {
            let slower = elsewhere(&question, &here, rate).unwrap();
            assert!(slower.cannot_tell.is_some(), "{slower:?}");
        }
        assert!(elsewhere(&question, &here, -1.0).is_err());
    }

    #[test]
    fn a_wait_that_no_model_explains_is_not_forecast_for_another_rate() {
        let (server, load, mut waited) = half();
        waited.mean = 5e-3;
        let question = question(&server, &load, &waited);
        let here = forecast(&question).unwrap();
        assert_eq!((here.model, here.own(&waited)), (Model::Seen, 5e-3));
        let there = elsewhere(&question, &here, 20e6).unwrap();
        assert!(there.cannot_tell.is_some(), "{there:?}");
    }
}
