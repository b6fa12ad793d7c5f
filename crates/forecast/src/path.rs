//! Several queues and links in a row: one estimate from end to end.
//!
//! Means add up whatever the dependencies. Errors of different queues have different causes, so
//! they are added as independent ones (root of the sum of squares). The sum of all lower and of all
//! upper ends, which holds even if all errors go the same way, is given, too.

use crate::calculus::{self, Envelope, Service};
use crate::{Error, Span};
use serde::Serialize;

/// One queue or link of the path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its mean delay, in seconds.
    pub delay: Span,
    /// Why its delay is unknown, if so.
    pub cannot_tell: Option<String>,
    /// Its minimum service, if bounds are wanted.
    #[serde(skip)]
    pub service: Option<Service>,
}

impl Part {
    /// Makes a link: transmission of a packet of this size (bits) at this rate (bit/s; infinite for
    /// no transmission time), plus propagation (seconds).
    pub fn link(name: &str, rate: f64, propagation: f64, size: f64) -> Result<Part, Error> {
        if !(rate > 0.0 && propagation >= 0.0 && propagation.is_finite() && size > 0.0) {
            return Err(Error::new(format!(
                "{name}: a link of {rate} bit/s and {propagation} s cannot be"
            )));
        }
        let delay = size / rate + propagation;
        Ok(Part {
            name: name.to_owned(),
            delay: Span::exact(delay),
            cannot_tell: None,
            service: Some(Service {
                rate,
                latency: delay,
            }),
        })
    }
}

/// The whole path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathForecast {
    /// Mean delay, in seconds, with independent errors of the parts.
    pub delay: Span,
    /// The interval if all errors go the same way.
    pub together: Span,
    /// Longest delay of any packet whose flow keeps to its token bucket, in seconds; None if not
    /// requested or impossible.
    pub bound: Option<f64>,
    /// The parts whose delay is unknown.
    pub cannot_tell: Vec<String>,
    /// The parts.
    pub parts: Vec<Part>,
}

/// Adds up the parts of a path.
pub fn add(parts: Vec<Part>, envelope: Option<Envelope>) -> Result<PathForecast, Error> {
    if parts.is_empty() {
        return Err(Error::new("a path needs at least one queue or link"));
    }
    let sum = |of: &dyn Fn(&Span) -> f64| -> f64 { parts.iter().map(|part| of(&part.delay)).sum() };
    let value = sum(&|delay| delay.value);
    let low = sum(&|delay| (delay.value - delay.low).powi(2)).sqrt();
    let high = sum(&|delay| (delay.high - delay.value).powi(2)).sqrt();
    let together = Span {
        value,
        low: sum(&|delay| delay.low),
        high: sum(&|delay| delay.high),
    };
    let services: Option<Vec<Service>> = parts.iter().map(|part| part.service).collect();
    let bound = match (envelope, services) {
        (Some(envelope), Some(services)) => Some(calculus::delay(envelope, &services)?),
        _ => None,
    };
    let doubtful = parts.iter().filter(|part| part.cannot_tell.is_some());
    Ok(PathForecast {
        delay: Span {
            value,
            low: if value.is_finite() {
                (value - low).max(together.low)
            } else {
                together.low
            },
            high: if value.is_finite() {
                value + high
            } else {
                value
            },
        },
        together,
        bound,
        cannot_tell: doubtful.map(|part| part.name.clone()).collect(),
        parts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(name: &str, value: f64, half: f64) -> Part {
        Part {
            name: name.into(),
            delay: Span {
                value,
                low: value - half,
                high: value + half,
            },
            cannot_tell: None,
            service: None,
        }
    }

    proptest! {
        #[test]
        fn the_sum_lies_between_and_independent_errors_are_smaller(
            parts in prop::collection::vec((1e-6..1.0_f64, 0.0..1.0_f64), 1..8),
        ) {
            let parts: Vec<Part> = parts.iter().map(|(value, share)| part("q", *value, value * share)).collect();
            let path = add(parts.clone(), None).unwrap();
            let sum: f64 = parts.iter().map(|part| part.delay.value).sum();
            prop_assert!((path.delay.value / sum - 1.0).abs() < 1e-9);
            prop_assert!(path.together.low <= path.delay.low + 1e-12 && path.delay.low <= sum);
            prop_assert!(path.together.high >= path.delay.high - 1e-12 && path.delay.high >= sum);
            let widest = parts.iter().map(|part| part.delay.high - part.delay.value).fold(0.0, f64::max);
            prop_assert!(path.delay.high - sum >= widest * 0.999_999);
        }
    }

    #[test]
    fn links_bounds_and_what_cannot_be() {
        let link = Part::link("fibre", 1e9, 5e-6, 12_000.0).unwrap();
        assert!((link.delay.value - 17e-6).abs() < 1e-12);
        let envelope = Envelope {
            rate: 1e6,
            burst: 24_000.0,
        };
        let path = add(vec![link.clone()], Some(envelope)).unwrap();
        assert!((path.bound.unwrap() - 41e-6).abs() < 1e-12);
        assert!(
            add(
                vec![link],
                Some(Envelope {
                    rate: 2e9,
                    burst: 1.0
                })
            )
            .is_err()
        );
        assert!(add(Vec::new(), None).is_err());
        assert!(Part::link("x", 0.0, 0.0, 1.0).is_err());
        assert!(Part::link("x", 1e6, f64::NAN, 1.0).is_err());
    }
}
