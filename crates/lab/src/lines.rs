//! What measured a cell says about it: lines, one for each run, that become cells.

use crate::results::{Value, Windows};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What one run found for one cell. Programs print them as JSON, one a line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Which switch.
    pub subject: String,
    /// Where in the sweep.
    #[serde(default)]
    pub at: BTreeMap<String, Value>,
    /// What was measured, by measure.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
    /// What limited it if not the switch.
    #[serde(default)]
    pub limited_by: Option<String>,
    /// Why there are no figures.
    #[serde(default)]
    pub missing: Option<String>,
    /// The experiments that it is for, where one measurement serves more than the one for which the
    /// program was run. Empty: that one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<String>,
}

impl Line {
    /// What it says for an experiment; none if it is for others only. `own`: whether the program
    /// was run for this experiment. `measures` are the experiment's: a line for several has more.
    pub fn told(&self, experiment: &str, own: bool, measures: &BTreeSet<&str>) -> Option<Line> {
        if self.of.is_empty() {
            return own.then(|| self.clone());
        }
        if !self.of.iter().any(|id| id == experiment) {
            return None;
        }
        let mut line = self.clone();
        line.figures
            .retain(|name, _| measures.contains(name.as_str()));
        Some(line)
    }
}

/// The runs of one cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Runs {
    /// Which switch.
    pub subject: String,
    /// Where in the sweep.
    pub at: BTreeMap<String, Value>,
    /// Figures of the runs, by measure.
    pub figures: BTreeMap<String, Vec<f64>>,
    /// What limited a run.
    pub limited_by: Option<String>,
    /// Why a run has no figures.
    pub missing: Option<String>,
    /// How many runs there were.
    pub windows: Windows,
}

/// Groups lines by their cells, in the order in which cells came first. A figure that is not a
/// number is left out, with a word that it was not one.
pub fn group(lines: impl IntoIterator<Item = Line>) -> Vec<Runs> {
    let mut cells: Vec<Runs> = Vec::new();
    for line in lines {
        let same = |cell: &&mut Runs| cell.subject == line.subject && cell.at == line.at;
        let cell = match cells.iter_mut().find(same) {
            Some(cell) => cell,
            None => {
                cells.push(Runs {
                    subject: line.subject,
                    at: line.at,
                    ..Runs::default()
                });
                let Some(cell) = cells.last_mut() else {
                    continue;
                };
                cell
            }
        };
        let mut missing = line.missing;
        let mut measured = false;
        for (measure, value) in line.figures {
            if value.is_finite() {
                cell.figures.entry(measure).or_default().push(value);
                measured = true;
            } else {
                missing = missing.or(Some(format!("{measure} was not a number")));
            }
        }
        let windows = &mut cell.windows;
        if measured {
            windows.measured += 1;
            windows.limited += u32::from(line.limited_by.is_some());
        }
        if !measured || missing.is_some() {
            windows.failed += 1;
            windows.because = windows.because.take().or(missing.clone());
        }
        cell.limited_by = cell.limited_by.take().or(line.limited_by);
        cell.missing = cell.missing.take().or(missing);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(subject: &str, at: f64, rate: f64) -> Line {
        Line {
            subject: subject.into(),
            at: BTreeMap::from([("flows".into(), Value::Number(at))]),
            figures: BTreeMap::from([("rate".into(), rate)]),
            ..Line::default()
        }
    }

    #[test]
    fn runs_of_a_cell_are_put_together_in_the_order_of_cells() {
        let lines = [
            line("a", 1.0, 5.0),
            line("b", 1.0, 7.0),
            line("a", 1.0, 6.0),
            line("a", 2.0, f64::NAN),
        ];
        let cells = group(lines);
        let shown: Vec<_> = cells
            .iter()
            .map(|cell| (cell.subject.as_str(), cell.figures.get("rate").cloned()))
            .collect();
        let wanted = [
            ("a", Some(vec![5.0, 6.0])),
            ("b", Some(vec![7.0])),
            ("a", None),
        ];
        assert_eq!(shown, wanted);
        assert_eq!(cells[2].missing.as_deref(), Some("rate was not a number"));
    }

    #[test]
    fn runs_that_failed_or_were_limited_are_counted() {
        let limited = Line {
            limited_by: Some("the sender".into()),
            ..line("a", 1.0, 5.0)
        };
        let failed = Line {
            figures: BTreeMap::new(),
            missing: Some("it broke".into()),
            ..line("a", 1.0, 0.0)
        };
        let cells = group([limited, failed, line("a", 1.0, 6.0), line("a", 1.0, 6.0)]);
        let windows = &cells[0].windows;
        assert_eq!(
            (windows.measured, windows.failed, windows.limited),
            (3, 1, 1)
        );
        assert_eq!(windows.because.as_deref(), Some("it broke"));
        // One of three does not decide their median.
        assert!(!windows.are_limited());
    }

    #[test]
    fn lines_are_read_strictly() {
        let text = r#"{"subject":"sluice","at":{"burst":16,"bucket":"own"},"figures":{"lost":0}}"#;
        let line: Line = serde_json::from_str(text).unwrap();
        assert_eq!(line.at["burst"], Value::Number(16.0));
        assert_eq!(line.at["bucket"], Value::Text("own".into()));
        assert!(serde_json::from_str::<Line>(r#"{"subject":"a","figure":{}}"#).is_err());
        assert!(serde_json::from_str::<Line>("{}").is_err());
    }

    #[test]
    fn lines_for_several_experiments_say_each_what_it_asks_for() {
        let measures = BTreeSet::from(["rate"]);
        let plain = line("a", 1.0, 5.0);
        assert_eq!(plain.told("C1", true, &measures), Some(plain.clone()));
        assert_eq!(plain.told("C3", false, &measures), None);
        let mut shared = Line {
            of: vec!["C1".into(), "C3".into()],
            ..plain
        };
        shared.figures.insert("lost".into(), 1.0);
        let told = shared.told("C3", false, &measures).unwrap();
        assert_eq!(told.figures, BTreeMap::from([("rate".into(), 5.0)]));
        assert_eq!(shared.told("C4", true, &measures), None);
    }
}
