//! What follows from an experiment's cells: its expectations, held against its figures.

use crate::advice;
use crate::experiment::{self, Expectation, Pick};
use crate::methods::Method;
use crate::results::{Cell, Experiment, Figure, Finding, Measure};
use crate::statistics::{self, median};

/// Returns how many expectations of all experiments held, how many did not, and of how many that
/// cannot be told. Advice on the host's settings is none.
pub fn count(experiments: &[Experiment]) -> (usize, usize, usize) {
    let experiments = || experiments.iter().filter(|one| one.id != advice::ID);
    let all = || experiments().flat_map(|one| &one.findings);
    let with = |holds| all().filter(|finding| finding.holds == Some(holds)).count();
    let open = all().filter(|finding| finding.open).count();
    (with(true), with(false), open)
}

/// Evaluates an experiment's expectations.
pub fn findings(definition: &experiment::Experiment, found: &Experiment) -> Vec<Finding> {
    let computed = definition.method() == Method::Simulation;
    definition
        .expect
        .iter()
        .map(|expectation| {
            let judged = judge(expectation, found, computed);
            let otherwise = (judged.holds == Some(false)).then(|| expectation.otherwise.clone());
            let because = [Some(judged.figures), judged.doubt, otherwise.flatten()];
            Finding {
                text: expectation.text.clone(),
                holds: judged.holds,
                open: judged.holds.is_none(),
                because: because.into_iter().flatten().collect::<Vec<_>>().join("; "),
            }
        })
        .collect()
}

/// What became of an expectation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Judged {
    /// Whether it came out; absent where that cannot be told.
    pub holds: Option<bool>,
    /// The figures, or which of them is missing.
    pub figures: String,
    /// Why figures that there are cannot tell.
    pub doubt: Option<String>,
}

/// Holds an expectation against an experiment's figures. It came out, or did not, only if it does
/// so wherever in their intervals the figures lie; and where something else than the switch was the
/// limit, also if the switch is any better than its figure. `computed`: figures have no error.
pub(crate) fn judge(expectation: &Expectation, found: &Experiment, computed: bool) -> Judged {
    let (left, right) = (&expectation.left, &expectation.right);
    let sides = (side(left, found, computed), side(right, found, computed));
    let (mut one, mut other) = match sides {
        (Ok(one), Ok(other)) => (one, other),
        (Err(why), _) | (_, Err(why)) => {
            return Judged {
                figures: why,
                ..Judged::default()
            };
        }
    };
    let unit = unit(left, found);
    let single = one.single || other.single;
    // Two measures of one cell move together: their ratio in each run is compared.
    if let (Some(cell), Some(same)) = (one.cell, other.cell)
        && std::ptr::eq(cell, same)
        && let Some(ratios) = ratios(cell, left, right)
    {
        (one.runs, other.runs) = (ratios, vec![1.0]);
        (one.limit, other.limit) = (None, None);
    }
    let ratio = statistics::ratio(&one.runs, &other.runs);
    let figures = format!(
        "{}{unit} and {}{unit}",
        round(one.median),
        round(other.median)
    );
    let figures = match ratio {
        Some((ratio, low, high)) if low < high => format!(
            "{figures}: {} times ({} to {})",
            round(ratio),
            round(low),
            round(high)
        ),
        Some((ratio, ..)) => format!("{figures}: {} times", round(ratio)),
        None => figures,
    };
    let factor = expectation.factor.unwrap_or(1.0);
    let is = expectation.is.as_str();
    let (plain, whole) = match ratio {
        Some((_, low, high)) => {
            let (better, worse) = (one.rises() || other.falls(), one.falls() || other.rises());
            let least = if worse { 0.0 } else { low };
            let most = if better { f64::INFINITY } else { high };
            let sure = (1.0, 1.0);
            (
                decide((low, high), is, factor, sure),
                decide((least, most), is, factor, sure),
            )
        }
        // Ratios of what may be nothing say nothing.
        None => (
            decide(one.interval, is, factor, other.interval),
            decide(one.possible(), is, factor, other.possible()),
        ),
    };
    let doubt = match (plain, whole) {
        _ if single => Some("one window alone does not say how far it is off".into()),
        (None, _) => Some("what the windows scatter by leaves it open".into()),
        (Some(_), None) => {
            let limits = [(left, &one), (right, &other)];
            let limits = limits.iter().filter_map(|(pick, side)| {
                let limit = side.limit.as_ref()?;
                Some(format!(
                    "{}{} was limited by {limit}",
                    pick.subject,
                    at(pick)
                ))
            });
            let limits: Vec<String> = limits.collect();
            Some(format!(
                "{}, so that the switch may do better and this says nothing of it",
                limits.join(", and ")
            ))
        }
        (Some(_), Some(_)) => None,
    };
    Judged {
        holds: plain.filter(|_| doubt.is_none()),
        figures,
        doubt,
    }
}

/// Whether one is above, below or about so many times the other, wherever in the intervals they
/// are; none where that depends.
fn decide(one: (f64, f64), is: &str, factor: f64, other: (f64, f64)) -> Option<bool> {
    let (yes, no) = match is {
        "above" => (one.0 > other.1 * factor, one.1 <= other.0 * factor),
        "below" => (one.1 < other.0 * factor, one.0 >= other.1 * factor),
        // Within the factor, either way.
        _ => {
            let factor = factor.max(1.0 / factor);
            (
                one.1 <= other.0 * factor && one.0 >= other.1 / factor,
                one.0 > other.1 * factor || one.1 < other.0 / factor,
            )
        }
    };
    match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// A side of a comparison.
struct Side<'a> {
    median: f64,
    interval: (f64, f64),
    runs: Vec<f64>,
    /// Whether it has no interval, since there was one window only.
    single: bool,
    /// What was the limit: without it the figure would be as much or `better`.
    limit: Option<String>,
    better: &'a str,
    /// The cell that it is from, where it is one.
    cell: Option<&'a Cell>,
}

impl Side<'_> {
    /// Whether the switch's own figure may be higher.
    fn rises(&self) -> bool {
        self.limit.is_some() && self.better == "higher"
    }

    /// Whether it may be lower.
    fn falls(&self) -> bool {
        self.limit.is_some() && self.better == "lower"
    }

    /// Where the switch's own figure may lie.
    fn possible(&self) -> (f64, f64) {
        let (low, high) = self.interval;
        (
            if self.falls() { f64::NEG_INFINITY } else { low },
            if self.rises() { f64::INFINITY } else { high },
        )
    }
}

/// The runs of two measures of a cell, as ratios; none where they do not fit together.
fn ratios(cell: &Cell, left: &Pick, right: &Pick) -> Option<Vec<f64>> {
    let runs = |pick: &Pick| Some(&cell.figures.get(&pick.measure)?.runs);
    let (one, other) = (runs(left)?, runs(right)?);
    let fit = one.len() == other.len() && one.len() > 1 && other.iter().all(|run| *run != 0.0);
    fit.then(|| one.iter().zip(other).map(|(a, b)| a / b).collect())
}

/// The figure of the cell that fits, or of several the medians of medians and of ends of intervals;
/// or why there is none.
fn side<'a>(pick: &Pick, found: &'a Experiment, computed: bool) -> Result<Side<'a>, String> {
    let fits = |cell: &&Cell| {
        cell.subject == pick.subject && pick.at.iter().all(|(name, v)| cell.at.get(name) == Some(v))
    };
    let ours: Vec<&Cell> = found.cells.iter().filter(fits).collect();
    let papers: Vec<&Cell> = found.paper_cells.iter().filter(fits).collect();
    let cells: Vec<&Cell> = ours.iter().chain(&papers).copied().collect();
    let with: Vec<(&Cell, &Figure)> = cells
        .iter()
        .filter_map(|cell| Some((*cell, cell.figures.get(&pick.measure)?)))
        .collect();
    if with.is_empty() {
        let why = cells.iter().find_map(|cell| cell.missing.clone());
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        return Err(format!(
            "{} was not measured{}{why}",
            pick.subject,
            at(pick)
        ));
    }
    let middle = |part: fn(&Figure) -> f64| {
        let all: Vec<f64> = with.iter().map(|(_, figure)| part(figure)).collect();
        median(&all)
    };
    let limits: Vec<&String> = with
        .iter()
        .filter_map(|(cell, _)| cell.limited_by.as_ref())
        .collect();
    let measure = found.measures.iter().find(|m| m.name == pick.measure);
    // Round by round the median of all cells, where all have as many rounds.
    let count = with[0].1.runs.len();
    let runs = match with.iter().all(|(_, figure)| figure.runs.len() == count) {
        true => (0..count)
            .map(|run| {
                let all: Vec<f64> = with.iter().map(|(_, figure)| figure.runs[run]).collect();
                median(&all)
            })
            .collect(),
        false => with.iter().map(|(_, figure)| figure.median).collect(),
    };
    Ok(Side {
        runs,
        median: middle(|figure| figure.median),
        interval: (middle(|figure| figure.low), middle(|figure| figure.high)),
        single: !computed
            && !ours.is_empty()
            && with.iter().all(|(_, figure)| figure.runs.len() == 1),
        limit: limits
            .first()
            .filter(|_| 2 * limits.len() >= with.len())
            .map(|limit| limit.to_string()),
        better: measure.map_or("", |measure| measure.better.as_str()),
        cell: match &with[..] {
            [(cell, _)] => Some(*cell),
            _ => None,
        },
    })
}

/// Where a pick is, in words.
fn at(pick: &Pick) -> String {
    let at: Vec<_> = pick
        .at
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    match at.is_empty() {
        true => String::new(),
        false => format!(" at {}", at.join(", ")),
    }
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
    use crate::results::Value;
    use std::collections::BTreeMap;

    fn found() -> Experiment {
        let cell = |subject: &str, flows: f64, rate: Option<f64>| Cell {
            subject: subject.into(),
            at: BTreeMap::from([("flows".to_string(), Value::Number(flows))]),
            figures: rate
                .map(|rate| ("rate".to_string(), statistics::figure(&[rate; 3])))
                .into_iter()
                .collect(),
            missing: rate.is_none().then(|| "it is not installed".into()),
            ..Cell::default()
        };
        Experiment {
            measures: vec![Measure {
                name: "rate".into(),
                unit: "Mpps".into(),
                better: "higher".into(),
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
        evaluate_in(&found(), left, is, factor, right)
    }

    fn evaluate_in(
        found: &Experiment,
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
            otherwise: Some("for a reason".into()),
        }];
        findings(&definition, found).remove(0)
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
            let why = if holds { "" } else { "; for a reason" };
            assert_eq!(
                finding.because,
                format!("10.0 Mpps and 5.00 Mpps: 2.00 times{why}")
            );
        }
        let reversed = evaluate(("ovs", None), "about", 2.1, ("sluice", Some(1.0)));
        assert_eq!(reversed.holds, Some(true));
        // Of several cells the median.
        let finding = evaluate(("sluice", None), "about", 1.0, ("sluice", None));
        assert_eq!((finding.holds, &finding.because[..4]), (Some(true), "9.50"));
    }

    /// With the runs of Sluice's cell at one flow, and perhaps something that limited it.
    fn with(runs: &[f64], limit: Option<&str>) -> Experiment {
        let mut found = found();
        let cell = &mut found.cells[0];
        cell.figures.insert("rate".into(), statistics::figure(runs));
        cell.limited_by = limit.map(str::to_string);
        found
    }

    #[test]
    fn what_lies_within_the_intervals_is_left_open() {
        let against = |runs: &[f64], is: &str, factor: f64| {
            let found = with(runs, None);
            evaluate_in(&found, ("sluice", Some(1.0)), is, factor, ("ovs", None))
        };
        for is in ["above", "below", "about"] {
            let finding = against(&[9.0, 10.0, 11.0], is, 1.9);
            assert_eq!((finding.holds, finding.open), (None, true), "{is}");
            assert!(finding.because.contains("leaves it open"), "{finding:?}");
        }
        assert_eq!(against(&[9.0, 10.0, 11.0], "above", 1.5).holds, Some(true));
        assert_eq!(against(&[9.9, 10.0, 10.1], "above", 1.9).holds, Some(true));
        assert_eq!(against(&[9.0, 10.0, 11.0], "above", 2.9).holds, Some(false));
        // Where nothing is a possible figure, by their intervals.
        assert_eq!(against(&[0.0, 0.0, 0.0], "below", 0.1).holds, Some(true));
        assert_eq!(against(&[0.0, 0.0, 9.0], "below", 0.1).holds, None);
        let finding = against(&[10.0], "above", 1.0);
        assert_eq!((finding.holds, finding.open), (None, true));
        assert!(finding.because.contains("one window alone"), "{finding:?}");
    }

    #[test]
    fn what_a_limit_makes_moot_is_left_open() {
        let limited = with(&[10.0; 3], Some("the generator"));
        let sluice = ("sluice", Some(1.0));
        let is = |is, factor| evaluate_in(&limited, sluice, is, factor, ("ovs", None));
        // It is above what it was found to be, if anything.
        assert_eq!(is("above", 1.9).holds, Some(true));
        for (word, factor) in [
            ("below", 1.9),
            ("below", 2.1),
            ("above", 2.1),
            ("about", 2.1),
        ] {
            let finding = is(word, factor);
            // What does not hold even so, does not hold.
            if (word, factor) == ("below", 1.9) {
                assert_eq!(finding.holds, Some(false));
                continue;
            }
            assert_eq!((finding.holds, finding.open), (None, true), "{word}");
            assert!(
                finding
                    .because
                    .contains("sluice at flows 1 was limited by the generator, so that"),
                "{finding:?}"
            );
        }
    }

    #[test]
    fn measures_of_one_cell_are_compared_run_by_run() {
        let mut found = with(&[9.0, 10.0, 12.0], Some("the generator"));
        let offered = statistics::figure(&[9.001, 10.001, 12.001]);
        found.cells[0].figures.insert("offered".into(), offered);
        let expectation = |factor| Expectation {
            text: String::new(),
            left: Pick {
                measure: "rate".into(),
                subject: "sluice".into(),
                at: found.cells[0].at.clone(),
            },
            is: "about".into(),
            factor: Some(factor),
            right: Pick {
                measure: "offered".into(),
                subject: "sluice".into(),
                at: found.cells[0].at.clone(),
            },
            otherwise: None,
        };
        assert_eq!(judge(&expectation(1.001), &found, false).holds, Some(true));
        assert_eq!(
            judge(&expectation(1.00001), &found, false).holds,
            Some(false)
        );
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
