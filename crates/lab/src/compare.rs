//! What changed between two runs beyond noise.

use crate::findings::round;
use crate::results::{Cell, Experiment, Figure, Results, Value};
use std::collections::BTreeMap;

/// A figure that is in both runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The experiment.
    pub experiment: String,
    /// Which switch.
    pub subject: String,
    /// Where in the sweep.
    pub at: BTreeMap<String, Value>,
    /// The measure.
    pub measure: String,
    /// Its unit.
    pub unit: String,
    /// Before.
    pub before: Figure,
    /// Now.
    pub now: Figure,
    /// Which way it went.
    pub way: Way,
}

/// Which way a figure went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The intervals overlap: it may be noise.
    Same,
    /// It is better.
    Better,
    /// It is worse.
    Worse,
    /// It is different, and neither is better.
    Other,
}

/// What two runs have in common, and not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Figures that are in both.
    pub changes: Vec<Change>,
    /// Figures that only the first has, in words.
    pub only_before: Vec<String>,
    /// Figures that only the second has, in words.
    pub only_now: Vec<String>,
    /// Why figures may not be comparable: other machines, other modes.
    pub cautions: Vec<String>,
}

/// Compares two runs. Two figures differ if their intervals are disjoint; a single run's interval
/// is itself, so those of single runs are never said to differ.
pub fn compare(before: &Results, now: &Results) -> Comparison {
    let mut comparison = Comparison {
        cautions: cautions(before, now),
        ..Comparison::default()
    };
    let find = |results: &'_ Results, id: &str| {
        results
            .experiments
            .iter()
            .find(|e| e.id == id)
            .cloned()
            .unwrap_or_default()
    };
    let mut ids: Vec<&String> = now.experiments.iter().map(|e| &e.id).collect();
    ids.extend(
        before
            .experiments
            .iter()
            .map(|e| &e.id)
            .filter(|id| !now.experiments.iter().any(|e| e.id == **id)),
    );
    for id in ids {
        let (old, new) = (find(before, id), find(now, id));
        for (cell, measure, figure) in figures(&new) {
            match lookup(&old, cell, measure) {
                Some(earlier) => comparison
                    .changes
                    .push(change(&new, cell, measure, earlier, figure)),
                None => comparison.only_now.push(words(id, cell, measure)),
            }
        }
        for (cell, measure, _) in figures(&old) {
            if lookup(&new, cell, measure).is_none() {
                comparison.only_before.push(words(id, cell, measure));
            }
        }
    }
    comparison
}

fn figures(experiment: &Experiment) -> impl Iterator<Item = (&Cell, &String, &Figure)> {
    experiment.cells.iter().flat_map(|cell| {
        cell.figures
            .iter()
            .map(move |(measure, figure)| (cell, measure, figure))
    })
}

fn lookup<'a>(experiment: &'a Experiment, cell: &Cell, measure: &str) -> Option<&'a Figure> {
    let same = |other: &&Cell| other.subject == cell.subject && other.at == cell.at;
    experiment.cells.iter().find(same)?.figures.get(measure)
}

fn change(
    experiment: &Experiment,
    cell: &Cell,
    name: &str,
    before: &Figure,
    now: &Figure,
) -> Change {
    let measure = experiment.measures.iter().find(|m| m.name == name);
    let apart = before.high < now.low || now.high < before.low;
    let known = before.runs.len() != 1 && now.runs.len() != 1;
    let more = now.median > before.median;
    let way = match (apart && known, measure.map_or("", |m| &m.better)) {
        (false, _) => Way::Same,
        (true, "higher") if more => Way::Better,
        (true, "lower") if !more => Way::Better,
        (true, "higher" | "lower") => Way::Worse,
        (true, _) => Way::Other,
    };
    Change {
        experiment: experiment.id.clone(),
        subject: cell.subject.clone(),
        at: cell.at.clone(),
        measure: name.into(),
        unit: measure.map_or_else(String::new, |m| m.unit.clone()),
        before: before.clone(),
        now: now.clone(),
        way,
    }
}

fn words(experiment: &str, cell: &Cell, measure: &str) -> String {
    let at: Vec<_> = cell
        .at
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    [experiment, &cell.subject, &at.join(","), measure]
        .iter()
        .filter(|word| !word.is_empty())
        .copied()
        .collect::<Vec<_>>()
        .join(" ")
}

fn cautions(before: &Results, now: &Results) -> Vec<String> {
    let mut cautions = Vec::new();
    let mut differ = |what: &str, before: String, now: String| {
        if before != now {
            cautions.push(format!("the {what} was {before}, and is {now}"));
        }
    };
    differ("mode", before.made.mode.clone(), now.made.mode.clone());
    differ(
        "processor",
        before.machine.processor.clone(),
        now.machine.processor.clone(),
    );
    let cores = |results: &Results| format!("{} cores", results.machine.cores);
    differ("machine", cores(before), cores(now));
    differ(
        "kernel",
        before.machine.kernel.clone(),
        now.machine.kernel.clone(),
    );
    for (when, results) in [("first", before), ("second", now)] {
        if results.made.interrupted {
            cautions.push(format!("the {when} run was ended before it was done"));
        }
    }
    cautions
}

impl Comparison {
    /// How many figures went a way.
    pub fn count(&self, way: Way) -> usize {
        self.changes
            .iter()
            .filter(|change| change.way == way)
            .count()
    }

    /// Text for people: what changed beyond noise, the greatest changes first.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for caution in &self.cautions {
            text += &format!("note: {caution}\n");
        }
        for (way, title) in [
            (Way::Worse, "worse"),
            (Way::Better, "better"),
            (Way::Other, "different"),
        ] {
            let mut changes: Vec<_> = self.changes.iter().filter(|c| c.way == way).collect();
            changes.sort_by(|a, b| size(b).total_cmp(&size(a)));
            for change in changes {
                let cell = Cell {
                    subject: change.subject.clone(),
                    at: change.at.clone(),
                    ..Cell::default()
                };
                let figure = |f: &Figure| {
                    format!(
                        "{} ({} to {})",
                        round(f.median),
                        round(f.low),
                        round(f.high)
                    )
                };
                text += &format!(
                    "{title}: {}: {} -> {} {}\n",
                    words(&change.experiment, &cell, &change.measure),
                    figure(&change.before),
                    figure(&change.now),
                    change.unit
                );
            }
        }
        for (lists, when) in [(&self.only_before, "first"), (&self.only_now, "second")] {
            if !lists.is_empty() {
                text += &format!(
                    "only in the {when}: {} figures, {} first\n",
                    lists.len(),
                    lists[0]
                );
            }
        }
        text + &format!(
            "{} figures compared: {} better, {} worse, {} different, {} within their intervals\n",
            self.changes.len(),
            self.count(Way::Better),
            self.count(Way::Worse),
            self.count(Way::Other),
            self.count(Way::Same)
        )
    }
}

/// How much a figure changed, as a ratio above 1.
fn size(change: &Change) -> f64 {
    let ratio = change.now.median / change.before.median;
    if ratio.is_finite() && ratio > 0.0 {
        ratio.max(1.0 / ratio)
    } else {
        f64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Measure;
    use crate::statistics::figure;

    fn results(cells: &[(&str, &str, &[f64])]) -> Results {
        let measure = |name: &str, better: &str| Measure {
            name: name.into(),
            better: better.into(),
            unit: "Mpps".into(),
            ..Measure::default()
        };
        Results {
            experiments: vec![Experiment {
                id: "A4".into(),
                measures: vec![
                    measure("rate", "higher"),
                    measure("p99", "lower"),
                    measure("load", ""),
                ],
                cells: cells
                    .iter()
                    .map(|(subject, measure, runs)| Cell {
                        subject: subject.to_string(),
                        figures: BTreeMap::from([(measure.to_string(), figure(runs))]),
                        ..Cell::default()
                    })
                    .collect(),
                ..Experiment::default()
            }],
            ..Results::default()
        }
    }

    #[test]
    fn only_what_is_apart_has_changed() {
        let way = |measure, before: &[f64], now: &[f64]| {
            let comparison = compare(
                &results(&[("a", measure, before)]),
                &results(&[("a", measure, now)]),
            );
            assert_eq!(comparison.changes.len(), 1);
            comparison.changes[0].way
        };
        let (low, high) = ([1.0, 1.01, 1.02], [2.0, 2.01, 2.02]);
        assert_eq!(way("rate", &low, &high), Way::Better);
        assert_eq!(way("rate", &high, &low), Way::Worse);
        assert_eq!(way("p99", &low, &high), Way::Worse);
        assert_eq!(way("p99", &high, &low), Way::Better);
        assert_eq!(way("load", &high, &low), Way::Other);
        assert_eq!(way("rate", &low, &[1.0, 1.02, 1.03]), Way::Same);
        assert_eq!(
            way("rate", &[1.0], &[2.0]),
            Way::Same,
            "single runs have no interval"
        );
    }

    #[test]
    fn the_text_has_the_greatest_change_first_and_what_is_missing() {
        let before = results(&[
            ("a", "rate", &[1.0, 1.0, 1.0]),
            ("b", "rate", &[1.0, 1.0, 1.0]),
            ("c", "rate", &[1.0]),
        ]);
        let mut now = results(&[
            ("a", "rate", &[0.9, 0.9, 0.9]),
            ("b", "rate", &[0.5, 0.5, 0.5]),
            ("d", "rate", &[1.0]),
        ]);
        now.made.mode = "full".into();
        let text = compare(&before, &now).text();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("note: the mode was"), "{text}");
        assert!(lines[1].starts_with("worse: A4 b rate: 1.00"), "{text}");
        assert!(lines[2].starts_with("worse: A4 a rate"), "{text}");
        assert!(
            lines[3].contains("only in the first: 1 figures, A4 c rate"),
            "{text}"
        );
        assert!(text.ends_with(
            "2 figures compared: 0 better, 2 worse, 0 different, 0 within their intervals\n"
        ));
    }
}
