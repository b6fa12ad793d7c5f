//! What changed between two runs beyond noise: figures whose intervals have nothing in common.

use crate::findings::round;
use crate::report::cells;
use crate::results::{Cell, Experiment, Figure, Results, Value};
use std::collections::{BTreeMap, HashMap};

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
    /// The experiment's ID.
    pub id: String,
    /// The subject's ID.
    pub subject: String,
    /// Where in the sweep.
    pub at: BTreeMap<String, Value>,
    /// The same, in words.
    pub place: String,
    /// The measure's name.
    pub name: String,
    /// Its title.
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

    /// How much it is, for the order of changes: a ratio above 1.
    fn size(&self) -> f64 {
        let ratio = self.after.median / self.before.median;
        match ratio.is_finite() && ratio > 0.0 {
            true => ratio.max(1.0 / ratio),
            false => f64::MAX,
        }
    }
}

/// Two runs compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// What changed: for the worse first, then the greatest changes.
    pub changes: Vec<Change>,
    /// Figures that may be the same.
    pub same: usize,
    /// Figures of which one has no interval, so that nothing can be said.
    pub unknown: usize,
    /// Figures that only the earlier run has, in words.
    pub only_before: Vec<String>,
    /// Figures that only the later run has, in words.
    pub only_now: Vec<String>,
    /// What differs besides figures, a sentence each: why they may not be comparable.
    pub remarks: Vec<String>,
    /// How well the earlier run foretold the later one, by experiment.
    pub foretold: Vec<(String, Foretold)>,
}

/// How well intervals of one run foretell the medians of another. Figures of one run only count
/// where they are exact: where the other run has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Foretold {
    /// Figures that both runs have.
    pub figures: usize,
    /// Of these: those whose later median lies in the earlier interval.
    pub inside: usize,
    /// And those whose earlier interval is [`NARROW`].
    pub narrow: usize,
}

/// An interval is narrow if its half-width is at most this share of the median, or so many
/// percentage points where the figure is a percentage.
pub const NARROW: f64 = 0.1;
/// Percentage points that make an interval narrow.
pub const POINTS: f64 = 1.0;

impl Foretold {
    fn count(&mut self, before: &Figure, after: &Figure, unit: &str) {
        self.figures += 1;
        // Results have twelve digits of what was measured.
        let slack = 1e-9 * before.median.abs();
        let inside = before.low - slack <= after.median && after.median <= before.high + slack;
        self.inside += usize::from(inside);
        let half = (before.high - before.low) / 2.0;
        let points = if unit == "%" { POINTS } else { 0.0 };
        // A single run has no interval: that it is exact is seen by the other one.
        let known = before.runs.len() > 1 || inside;
        let narrow = half <= (NARROW * before.median.abs()).max(points);
        self.narrow += usize::from(known && narrow);
    }

    fn add(self, other: Foretold) -> Foretold {
        Foretold {
            figures: self.figures + other.figures,
            inside: self.inside + other.inside,
            narrow: self.narrow + other.narrow,
        }
    }

    /// What is to hold of a run on a still machine, in words.
    fn text(self) -> String {
        let share = |count: usize| 100.0 * count as f64 / self.figures.max(1) as f64;
        format!(
            "{} of {} figures of the second lie in the first's intervals ({:.1}%); {} intervals \
             ({:.1}%) have a half-width of at most 10% or one percentage point",
            self.inside,
            self.figures,
            share(self.inside),
            self.narrow,
            share(self.narrow)
        )
    }
}

/// Compares a run with an earlier one. Two figures differ if their intervals are disjoint; a single
/// window has none, so nothing is said of it.
pub fn compare(later: &Results, earlier: &Results) -> Comparison {
    let mut comparison = Comparison {
        remarks: remarks(later, earlier),
        ..Default::default()
    };
    let none = Experiment::default();
    let of = |results: &'_ Results, id: &str| -> Option<usize> {
        results.experiments.iter().position(|one| one.id == id)
    };
    for (number, after) in later.experiments.iter().enumerate() {
        let before = of(earlier, &after.id).map_or(&none, |at| &earlier.experiments[at]);
        cells_of(after, before, number, &mut comparison);
        comparison.only_now.extend(only(after, before));
    }
    for before in &earlier.experiments {
        let after = of(later, &before.id).map_or(&none, |at| &later.experiments[at]);
        comparison.only_before.extend(only(before, after));
    }
    comparison.changes.sort_by(|left, right| {
        let rank = |change: &Change| match change.way {
            Way::Worse => 0,
            Way::Better => 1,
            Way::Other => 2,
        };
        rank(left)
            .cmp(&rank(right))
            .then(right.size().total_cmp(&left.size()))
    });
    comparison
}

/// An experiment's figures that another run of it does not have, in words.
fn only(one: &Experiment, other: &Experiment) -> Vec<String> {
    let theirs: HashMap<String, &Cell> = by_key(other);
    let mut found = Vec::new();
    for cell in &one.cells {
        let same = theirs.get(&cells::cell_key(cell));
        let names = cell.figures.keys();
        let only = names.filter(|name| !same.is_some_and(|cell| cell.figures.contains_key(*name)));
        found.extend(only.map(|name| words(&one.id, &cell.subject, &cell.at, name)));
    }
    found
}

fn by_key(experiment: &Experiment) -> HashMap<String, &Cell> {
    let cells = experiment.cells.iter();
    cells.map(|cell| (cells::cell_key(cell), cell)).collect()
}

fn cells_of(after: &Experiment, before: &Experiment, number: usize, comparison: &mut Comparison) {
    let earlier = by_key(before);
    let mut foretold = Foretold::default();
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
            foretold.count(before, after_figure, &measure.unit);
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
                id: after.id.clone(),
                subject: cell.subject.clone(),
                at: cell.at.clone(),
                name: measure.name.clone(),
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
    if foretold.figures > 0 {
        comparison.foretold.push((after.id.clone(), foretold));
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
    for (when, results) in [("earlier", earlier), ("later", later)] {
        if results.made.interrupted {
            remarks.push(format!("The {when} run was ended before it was done."));
        }
    }
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

/// A figure's place as people type it: `A4 sluice flows=1 rate`.
fn words(id: &str, subject: &str, at: &BTreeMap<String, Value>, measure: &str) -> String {
    let at: Vec<_> = at
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    [id, subject, &at.join(","), measure]
        .iter()
        .filter(|word| !word.is_empty())
        .copied()
        .collect::<Vec<_>>()
        .join(" ")
}

impl Comparison {
    /// How many figures went a way.
    pub fn count(&self, way: Way) -> usize {
        let changes = self.changes.iter();
        changes.filter(|change| change.way == way).count()
    }

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

    /// Text for people: what changed beyond noise, the greatest changes of each way first.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for remark in &self.remarks {
            text += &format!("note: {remark}\n");
        }
        for change in &self.changes {
            let title = match change.way {
                Way::Worse => "worse",
                Way::Better => "better",
                Way::Other => "different",
            };
            let figure = |f: &Figure| {
                let [median, low, high] = [f.median, f.low, f.high].map(round);
                format!("{median} ({low} to {high})")
            };
            text += &format!(
                "{title}: {}: {} -> {} {}\n",
                words(&change.id, &change.subject, &change.at, &change.name),
                figure(&change.before),
                figure(&change.after),
                change.unit
            );
        }
        for (list, when) in [(&self.only_before, "first"), (&self.only_now, "second")] {
            if let Some(first) = list.first() {
                text += &format!(
                    "only in the {when}: {} figures, {first} first\n",
                    list.len()
                );
            }
        }
        if self.unknown > 0 {
            text += &format!("{} figures have no interval to compare by\n", self.unknown);
        }
        for (id, foretold) in &self.foretold {
            text += &format!("{id}: {}\n", foretold.text());
        }
        if self.foretold.len() > 1 {
            let all = self.foretold.iter().map(|(_, foretold)| *foretold);
            let all = all.fold(Foretold::default(), Foretold::add);
            text += &format!("all: {}\n", all.text());
        }
        text + &format!(
            "{} figures compared: {} better, {} worse, {} different, {} within their intervals\n",
            self.changes.len() + self.same,
            self.count(Way::Better),
            self.count(Way::Worse),
            self.count(Way::Other),
            self.same
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Measure;
    use crate::statistics::figure;

    fn run(median: f64, error: f64, better: &str) -> Results {
        let figure = Figure {
            median,
            low: median - error,
            high: median + error,
            deviation: error,
            runs: vec![median; 3],
            borrowed: 0.0,
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

    /// Of figures of one experiment, by subject.
    fn figures(cells: &[(&str, &[f64])]) -> Results {
        let mut results = run(1.0, 0.1, "higher");
        results.experiments[0].cells = cells
            .iter()
            .map(|(subject, runs)| Cell {
                subject: subject.to_string(),
                figures: [("rate".to_string(), figure(runs))].into(),
                ..Cell::default()
            })
            .collect();
        results
    }

    #[test]
    fn the_text_has_the_greatest_change_first_and_what_is_missing() {
        let before = figures(&[
            ("a", &[1.0; 3]),
            ("b", &[1.0; 3]),
            ("c", &[1.0]),
            ("e", &[1.0]),
        ]);
        let mut now = figures(&[
            ("a", &[0.9; 3]),
            ("b", &[0.5; 3]),
            ("d", &[1.0]),
            ("e", &[2.0]),
        ]);
        now.made.mode = "full".into();
        now.made.interrupted = true;
        let text = compare(&now, &before).text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "note: Mode: none before, full now.",
                "note: The later run was ended before it was done.",
                "worse: A1 b rate: 1.00 (1.00 to 1.00) -> 0.500 (0.500 to 0.500) ",
                "worse: A1 a rate: 1.00 (1.00 to 1.00) -> 0.900 (0.900 to 0.900) ",
                "only in the first: 1 figures, A1 c rate first",
                "only in the second: 1 figures, A1 d rate first",
                "1 figures have no interval to compare by",
                "A1: 0 of 3 figures of the second lie in the first's intervals (0.0%); 2 intervals \
                 (66.7%) have a half-width of at most 10% or one percentage point",
                "2 figures compared: 0 better, 2 worse, 0 different, 0 within their intervals",
            ]
        );
    }

    #[test]
    fn medians_in_the_earlier_intervals_are_counted() {
        let one = |low, median, high, runs: usize| Figure {
            median,
            low,
            high,
            deviation: 0.0,
            runs: vec![median; runs],
            borrowed: 0.0,
        };
        let mut foretold = Foretold::default();
        for (before, after, unit, inside, narrow) in [
            (one(95.0, 100.0, 105.0, 3), 104.0, "Mpps", 1, 1),
            (one(95.0, 100.0, 105.0, 3), 106.0, "Mpps", 0, 1),
            (one(80.0, 100.0, 120.0, 3), 81.0, "Mpps", 1, 0),
            // A loss of 0.2% that is known within a percentage point.
            (one(0.0, 0.2, 1.1, 3), 0.9, "%", 1, 1),
            (one(0.0, 0.2, 1.1, 3), 0.9, "us", 1, 0),
            // What one run says is known only if it is the same again.
            (one(7.0, 7.0, 7.0, 1), 7.0, "", 1, 1),
            (one(7.0, 7.0, 7.0, 1), 7.1, "", 0, 0),
        ] {
            let mut this = Foretold::default();
            this.count(&before, &one(after, after, after, 3), unit);
            assert_eq!(
                (this.inside, this.narrow),
                (inside, narrow),
                "{before:?} {after}"
            );
            foretold = foretold.add(this);
        }
        assert_eq!(
            (foretold.figures, foretold.inside, foretold.narrow),
            (7, 5, 4)
        );
        assert!(
            foretold.text().starts_with("5 of 7 figures"),
            "{}",
            foretold.text()
        );
    }
}
