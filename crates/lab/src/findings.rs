//! What follows from an experiment's cells: its expectations, held against its figures.

use crate::experiment::{self, Pick};
use crate::results::{Cell, Experiment, Finding, Measure};
use crate::statistics::median;

/// Returns how many expectations of all experiments held, and how many did not.
pub fn count(experiments: &[Experiment]) -> (usize, usize) {
    let all = || experiments.iter().flat_map(|one| &one.findings);
    let with = |holds| all().filter(|finding| finding.holds == Some(holds)).count();
    (with(true), with(false))
}

/// Evaluates an experiment's expectations.
pub fn findings(definition: &experiment::Experiment, found: &Experiment) -> Vec<Finding> {
    definition
        .expect
        .iter()
        .map(|expectation| {
            let factor = expectation.factor.unwrap_or(1.0);
            let (left, right) = (
                pick(&expectation.left, found),
                pick(&expectation.right, found),
            );
            let (holds, because) = match (left, right) {
                (Ok(left), Ok(right)) => {
                    let wanted = right * factor;
                    let holds = match expectation.is.as_str() {
                        "above" => left > wanted,
                        "below" => left < wanted,
                        // Within the factor, either way.
                        _ => {
                            let factor = factor.max(1.0 / factor);
                            let ratio = left / right;
                            left == right || (ratio <= factor && ratio >= 1.0 / factor)
                        }
                    };
                    let unit = unit(&expectation.left, found);
                    let ratio = match right != 0.0 {
                        true => format!(": {} times", round(left / right)),
                        false => String::new(),
                    };
                    let words = format!("{}{unit} and {}{unit}{ratio}", round(left), round(right));
                    (Some(holds), words)
                }
                (Err(why), _) | (_, Err(why)) => (None, why),
            };
            Finding {
                text: expectation.text.clone(),
                holds,
                because,
            }
        })
        .collect()
}

/// The median of the cells that fit, or why there is none.
fn pick(pick: &Pick, found: &Experiment) -> Result<f64, String> {
    let fits = |cell: &&Cell| {
        cell.subject == pick.subject && pick.at.iter().all(|(name, v)| cell.at.get(name) == Some(v))
    };
    let cells: Vec<&Cell> = found
        .cells
        .iter()
        .chain(&found.paper_cells)
        .filter(fits)
        .collect();
    let figures: Vec<f64> = cells
        .iter()
        .filter_map(|cell| Some(cell.figures.get(&pick.measure)?.median))
        .collect();
    if !figures.is_empty() {
        return Ok(median(&figures));
    }
    let at: Vec<_> = pick
        .at
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let place = if at.is_empty() {
        String::new()
    } else {
        format!(" at {}", at.join(", "))
    };
    let why = cells.iter().find_map(|cell| cell.missing.clone());
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    Err(format!("{} was not measured{place}{why}", pick.subject))
}

fn unit(pick: &Pick, found: &Experiment) -> String {
    let measure = found
        .measures
        .iter()
        .find(|m: &&Measure| m.name == pick.measure);
    match measure {
        Some(measure) if !measure.unit.is_empty() => format!(" {}", measure.unit),
        _ => String::new(),
    }
}

/// Three digits.
pub fn round(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let digits = (2 - value.abs().log10().floor() as i32).max(0) as usize;
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Expectation;
    use crate::results::{Figure, Value};
    use std::collections::BTreeMap;

    fn found() -> Experiment {
        let cell = |subject: &str, flows: f64, rate: Option<f64>| Cell {
            subject: subject.into(),
            at: BTreeMap::from([("flows".to_string(), Value::Number(flows))]),
            figures: rate
                .map(|median| {
                    (
                        "rate".to_string(),
                        Figure {
                            median,
                            ..Figure::default()
                        },
                    )
                })
                .into_iter()
                .collect(),
            missing: rate.is_none().then(|| "it is not installed".into()),
            ..Cell::default()
        };
        Experiment {
            measures: vec![Measure {
                name: "rate".into(),
                unit: "Mpps".into(),
                ..Measure::default()
            }],
            cells: vec![
                cell("sluice", 1.0, Some(10.0)),
                cell("sluice", 2.0, Some(9.0)),
                cell("ovs", 1.0, Some(5.0)),
                cell("vpp", 1.0, None),
            ],
            ..Experiment::default()
        }
    }

    fn evaluate(
        left: (&str, Option<f64>),
        is: &str,
        factor: f64,
        right: (&str, Option<f64>),
    ) -> Finding {
        let pick = |(subject, flows): (&str, Option<f64>)| Pick {
            measure: "rate".into(),
            subject: subject.into(),
            at: flows
                .map(|f| ("flows".to_string(), Value::Number(f)))
                .into_iter()
                .collect(),
        };
        let mut definition = crate::experiment::Experiment::all()
            .unwrap()
            .into_iter()
            .find(|e| e.id == "A4")
            .unwrap();
        definition.expect = vec![Expectation {
            text: "So it is.".into(),
            left: pick(left),
            is: is.into(),
            factor: Some(factor),
            right: pick(right),
        }];
        findings(&definition, &found()).remove(0)
    }

    #[test]
    fn expectations_come_out_or_not() {
        let cases = [
            ("above", 1.9, true),
            ("above", 2.1, false),
            ("below", 2.1, true),
            ("below", 1.9, false),
            ("about", 2.1, true),
            ("about", 1.9, false),
        ];
        for (is, factor, holds) in cases {
            let finding = evaluate(("sluice", Some(1.0)), is, factor, ("ovs", None));
            assert_eq!(finding.holds, Some(holds), "{is} {factor}");
            assert_eq!(finding.because, "10.0 Mpps and 5.00 Mpps: 2.00 times");
        }
        let reversed = evaluate(("ovs", None), "about", 2.1, ("sluice", Some(1.0)));
        assert_eq!(reversed.holds, Some(true));
        // Of several cells the median.
        let finding = evaluate(("sluice", None), "about", 1.0, ("sluice", None));
        assert_eq!((finding.holds, &finding.because[..4]), (Some(true), "9.50"));
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let finding = evaluate(("vpp", Some(1.0)), "above", 1.0, ("ovs", None));
        assert_eq!(finding.holds, None);
        assert_eq!(
            finding.because,
            "vpp was not measured at flows 1: it is not installed"
        );
        let finding = evaluate(("ovs", None), "above", 1.0, ("ovs", Some(7.0)));
        assert_eq!(finding.because, "ovs was not measured at flows 7");
    }
}
