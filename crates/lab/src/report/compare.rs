//! What changed between two runs beyond noise: figures whose intervals have nothing in common.

use super::cells;
use crate::results::{Cell, Experiment, Figure, Results};
use std::collections::HashMap;

/// Which way a figure changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// For the better.
    Better,
    /// For the worse.
    Worse,
    /// Neither is better.
    Other,
}

/// A figure that changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Number of its experiment in the later run.
    pub experiment: usize,
    /// The subject's ID.
    pub subject: String,
    /// Where in the sweep.
    pub place: String,
    /// The measure's title.
    pub measure: String,
    /// Its unit.
    pub unit: String,
    /// The earlier figure.
    pub before: Figure,
    /// The later one.
    pub after: Figure,
    /// Which way.
    pub way: Way,
}

impl Change {
    /// The change as a share of the earlier figure.
    pub fn share(&self) -> f64 {
        (self.after.median - self.before.median) / self.before.median.abs()
    }
}

/// Two runs compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// What changed: for the worse first, then by size.
    pub changes: Vec<Change>,
    /// Figures that may be the same.
    pub same: usize,
    /// Figures of which one has no interval, so that nothing can be said.
    pub unknown: usize,
    /// What differs besides figures, a sentence each.
    pub remarks: Vec<String>,
}

impl Comparison {
    /// The changes of one measure of one subject in one experiment the same way together: the
    /// largest, and how many there are. A sweep of a thousand cells is one of these.
    pub fn groups(&self) -> Vec<(&Change, usize)> {
        let mut groups: Vec<(&Change, usize)> = Vec::new();
        let mut known: HashMap<(usize, &str, &str, Way), usize> = HashMap::new();
        for change in &self.changes {
            let key = (
                change.experiment,
                change.subject.as_str(),
                change.measure.as_str(),
                change.way,
            );
            match known.get(&key) {
                Some(&group) => groups[group].1 += 1,
                None => {
                    known.insert(key, groups.len());
                    groups.push((change, 1));
                }
            }
        }
        groups
    }
}

/// Compares a run with an earlier one.
pub fn compare(later: &Results, earlier: &Results) -> Comparison {
    let mut comparison = Comparison {
        remarks: remarks(later, earlier),
        ..Default::default()
    };
    for (number, experiment) in later.experiments.iter().enumerate() {
        let Some(before) = earlier
            .experiments
            .iter()
            .find(|other| other.id == experiment.id)
        else {
            continue;
        };
        cells_of(experiment, before, number, &mut comparison);
    }
    let size = |change: &Change| {
        let share = change.share().abs();
        if share.is_nan() { 0.0 } else { share }
    };
    comparison.changes.sort_by(|left, right| {
        let rank = |change: &Change| match change.way {
            Way::Worse => 0,
            Way::Better => 1,
            Way::Other => 2,
        };
        rank(left)
            .cmp(&rank(right))
            .then(size(right).total_cmp(&size(left)))
    });
    comparison
}

fn cells_of(after: &Experiment, before: &Experiment, number: usize, comparison: &mut Comparison) {
    let earlier: HashMap<String, &Cell> = before
        .cells
        .iter()
        .map(|cell| (cells::cell_key(cell), cell))
        .collect();
    for cell in &after.cells {
        let Some(before) = earlier.get(&cells::cell_key(cell)) else {
            continue;
        };
        for measure in &after.measures {
            let figures = (
                before.figures.get(&measure.name),
                cell.figures.get(&measure.name),
            );
            let (Some(before), Some(after_figure)) = figures else {
                continue;
            };
            let intervals = (cells::interval(before), cells::interval(after_figure));
            let (Some((low, high)), Some((low_after, high_after))) = intervals else {
                comparison.unknown += 1;
                continue;
            };
            let rises = low_after > high;
            if !rises && high_after >= low {
                comparison.same += 1;
                continue;
            }
            comparison.changes.push(Change {
                experiment: number,
                subject: cell.subject.clone(),
                place: cells::place(after, cell),
                measure: cells::title(measure),
                unit: measure.unit.clone(),
                before: before.clone(),
                after: after_figure.clone(),
                way: match (measure.better.as_str(), rises) {
                    ("higher", true) | ("lower", false) => Way::Better,
                    ("higher", false) | ("lower", true) => Way::Worse,
                    _ => Way::Other,
                },
            });
        }
    }
}

/// What differs besides figures: who compares should know.
fn remarks(later: &Results, earlier: &Results) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut differs = |what: &str, before: &str, after: &str| {
        if before != after {
            let named = |text: &str| if text.is_empty() { "none" } else { text }.to_string();
            remarks.push(format!(
                "{what}: {} before, {} now.",
                named(before),
                named(after)
            ));
        }
    };
    let (before, after) = (&earlier.machine, &later.machine);
    differs("Another processor", &before.processor, &after.processor);
    differs("Cores", &before.cores.to_string(), &after.cores.to_string());
    differs("Kernel", &before.kernel, &after.kernel);
    differs("Mode", &earlier.made.mode, &later.made.mode);
    for subject in &later.subjects {
        let old = earlier.subjects.iter().find(|old| old.id == subject.id);
        if let Some(old) = old {
            differs(&subject.name, &old.version, &subject.version);
        }
    }
    let listed = |from: &Results, other: &Results| -> Vec<String> {
        from.experiments
            .iter()
            .filter(|one| !other.experiments.iter().any(|two| two.id == one.id))
            .map(|experiment| experiment.id.clone())
            .collect()
    };
    for (words, ids) in [
        ("Not in the earlier run", listed(later, earlier)),
        ("Only in the earlier run", listed(earlier, later)),
    ] {
        if !ids.is_empty() {
            remarks.push(format!("{words}: {}.", ids.join(", ")));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Measure, Value};

    fn run(median: f64, error: f64, better: &str) -> Results {
        let figure = Figure {
            median,
            low: median - error,
            high: median + error,
            deviation: error,
            runs: vec![median; 3],
        };
        Results {
            experiments: vec![Experiment {
                id: "A1".into(),
                measures: vec![Measure {
                    name: "rate".into(),
                    better: better.into(),
                    ..Default::default()
                }],
                cells: vec![Cell {
                    subject: "sluice".into(),
                    at: [("size".to_string(), Value::Number(64.0))].into(),
                    figures: [("rate".to_string(), figure)].into(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn only_intervals_with_nothing_in_common_are_changes() {
        let changed = compare(&run(10.0, 0.5, "higher"), &run(8.0, 1.0, "higher"));
        assert_eq!(changed.changes.len(), 1);
        assert_eq!(changed.changes[0].way, Way::Better);
        assert!((changed.changes[0].share() - 0.25).abs() < 1e-9);
        let noise = compare(&run(10.0, 0.5, "higher"), &run(8.0, 1.6, "higher"));
        assert_eq!((noise.changes.len(), noise.same), (0, 1));
    }

    #[test]
    fn a_sweep_that_changed_is_one_group_with_its_largest_change() {
        let (mut later, mut earlier) = (run(5.0, 0.1, "higher"), run(8.0, 0.1, "higher"));
        for results in [&mut later, &mut earlier] {
            let mut cell = results.experiments[0].cells[0].clone();
            cell.at.insert("size".into(), Value::Number(65.0));
            results.experiments[0].cells.push(cell);
        }
        let figure = later.experiments[0].cells[1]
            .figures
            .get_mut("rate")
            .unwrap();
        (figure.median, figure.low, figure.high) = (4.0, 3.9, 4.1);
        let compared = compare(&later, &earlier);
        let groups = compared.groups();
        assert_eq!(groups.len(), 1);
        assert_eq!((groups[0].0.after.median, groups[0].1), (4.0, 2));
    }

    #[test]
    fn what_is_better_decides_the_way() {
        for (better, way) in [
            ("higher", Way::Worse),
            ("lower", Way::Better),
            ("", Way::Other),
        ] {
            let changed = compare(&run(5.0, 0.1, better), &run(8.0, 0.1, better));
            assert_eq!(changed.changes[0].way, way);
        }
    }

    #[test]
    fn without_an_interval_nothing_is_said() {
        let compared = compare(&run(f64::NAN, 0.1, "higher"), &run(8.0, 0.1, "higher"));
        assert_eq!((compared.changes.len(), compared.unknown), (0, 1));
    }

    #[test]
    fn other_machines_and_experiments_are_told() {
        let mut later = run(5.0, 0.1, "");
        later.machine.kernel = "6.12".into();
        later.experiments[0].id = "A2".into();
        let compared = compare(&later, &run(5.0, 0.1, ""));
        assert_eq!(
            compared.remarks,
            [
                "Kernel: none before, 6.12 now.",
                "Not in the earlier run: A2.",
                "Only in the earlier run: A1."
            ]
        );
    }
}
