//! What is to be measured: an experiment's YAML file.

mod error;

pub use self::error::Defect;

use crate::Error;
use crate::methods::Method;
use crate::results::{Measure, Parameter, Plot, Value};
use crate::settings::{self, BadSetting, Settings};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// An experiment's file, by its name.
macro_rules! embed {
    ($name:literal) => {
        ($name, include_str!(concat!("../experiments/", $name)))
    };
}

/// The experiments that the binary has, by file name.
const EMBEDDED: &[(&str, &str)] = &[
    embed!("a1.yaml"),
    embed!("a2.yaml"),
    embed!("a3.yaml"),
    embed!("a4.yaml"),
    embed!("a5.yaml"),
    embed!("a6.yaml"),
    embed!("a7.yaml"),
    embed!("a8.yaml"),
    embed!("a9.yaml"),
    embed!("a10.yaml"),
    embed!("a11.yaml"),
    embed!("a12.yaml"),
    embed!("b1.yaml"),
    embed!("b2.yaml"),
    embed!("b3.yaml"),
    embed!("b4.yaml"),
    embed!("b5.yaml"),
    embed!("b6.yaml"),
    embed!("b7.yaml"),
    embed!("b8.yaml"),
    embed!("b9.yaml"),
    embed!("b10.yaml"),
    embed!("b11.yaml"),
    embed!("c1.yaml"),
    embed!("c2.yaml"),
    embed!("c3.yaml"),
    embed!("c4.yaml"),
    embed!("c5.yaml"),
    embed!("c6.yaml"),
    embed!("c7.yaml"),
    embed!("c8.yaml"),
    embed!("c9.yaml"),
    embed!("c10.yaml"),
    embed!("c11.yaml"),
    embed!("d1.yaml"),
    embed!("d2.yaml"),
    embed!("d3.yaml"),
    embed!("d4.yaml"),
    embed!("d5.yaml"),
    embed!("d6.yaml"),
    embed!("d7.yaml"),
    embed!("d8.yaml"),
    embed!("d9.yaml"),
    embed!("d10.yaml"),
    embed!("d11.yaml"),
    embed!("d12.yaml"),
    embed!("d13.yaml"),
    embed!("e1.yaml"),
    embed!("e2.yaml"),
    embed!("e3.yaml"),
];

/// Seconds of a window in a quick run. What scatters are starts and the machine's minutes, which
/// longer windows do not even out.
const QUICK: f64 = 0.3;

/// Most windows of a cell in a quick run.
const QUICK_ROUNDS: u32 = 3;

/// Most cells of one experiment.
pub const MOST_CELLS: usize = 10_000;

/// How thoroughly a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Few values, short windows.
    Quick,
    /// What an experiment says.
    Normal,
    /// All values, long windows, many rounds.
    Full,
}

impl Mode {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Quick => "quick",
            Mode::Normal => "normal",
            Mode::Full => "full",
        }
    }
}

/// An experiment. `experiments/` has those of the papers; anybody can write more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// `A1`, or a name of one's own.
    pub id: String,
    /// A few words.
    pub title: String,
    /// `a` to `d`; absent for one's own.
    #[serde(default)]
    pub paper: String,
    /// Why one would want to know.
    pub purpose: String,
    /// How ports, generator and switch are connected, in words.
    pub topology: String,
    /// How a cell is measured: the name of a method.
    pub method: String,
    /// Switches that are measured where they are installed.
    pub subjects: Vec<String>,
    /// What is swept: each combination is a cell.
    #[serde(default)]
    pub sweep: Vec<Sweep>,
    /// Settings that all cells share; those of a sweep go before.
    #[serde(default)]
    pub settings: BTreeMap<String, Value>,
    /// What is measured.
    pub measures: Vec<Measure>,
    /// How it is drawn.
    #[serde(default)]
    pub plots: Vec<Plot>,
    /// The paper's figures.
    #[serde(default)]
    pub paper_figures: Vec<PaperFigure>,
    /// What should come out.
    #[serde(default)]
    pub expect: Vec<Expectation>,
    /// What every machine without the paper's hardware has in its place.
    #[serde(default)]
    pub substituted: Vec<String>,
    /// Seconds of one window of measurement.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Windows of each cell.
    #[serde(default)]
    pub rounds: Option<u32>,
    /// Windows of each cell in a quick run, where fewer than else.
    #[serde(default)]
    pub quick_rounds: Option<u32>,
    /// About how many seconds a round of its program takes in a quick run.
    #[serde(default)]
    pub takes: Option<f64>,
    /// Experiments whose programs print this one's cells, too, in a quick run
    /// ([`Line::of`](crate::lines::Line::of)): where all of them have been measured before, it is
    /// not measured again.
    #[serde(default)]
    pub quick_with: Vec<String>,
}

impl Experiment {
    /// Reads an experiment and checks it. `file` is named in errors.
    pub fn parse(file: &str, text: &str) -> Result<Experiment, Error> {
        let read = || -> Result<Experiment, Defect> {
            let experiment: Experiment = serde_yaml_ng::from_str(text)?;
            experiment.check()?;
            Ok(experiment)
        };
        read().map_err(|defect| Error::Experiment {
            file: file.into(),
            defect,
        })
    }

    /// Reads an experiment of one's own.
    pub fn read(path: &Path) -> Result<Experiment, Error> {
        let text =
            std::fs::read_to_string(path).map_err(|error| Error::file("read", path, error))?;
        Experiment::parse(&path.display().to_string(), &text)
    }

    /// The experiments that the binary has, by their IDs.
    pub fn all() -> Result<Vec<Experiment>, Error> {
        let mut all: Vec<_> = EMBEDDED
            .iter()
            .map(|(file, text)| Experiment::parse(file, text))
            .collect::<Result<_, _>>()?;
        // A2 before A11.
        all.sort_by_key(|e: &Experiment| {
            let digits = e.id.trim_start_matches(|c: char| !c.is_ascii_digit());
            let letters = e.id[..e.id.len() - digits.len()].to_string();
            (letters, digits.parse::<u32>().unwrap_or(0))
        });
        Ok(all)
    }

    /// Picks experiments: IDs, `all`, or files (whatever ends in `.yaml` or `.yml` or has a slash).
    pub fn choose(names: &[String]) -> Result<Vec<Experiment>, Error> {
        let mut chosen: Vec<Experiment> = Vec::new();
        let embedded = Experiment::all()?;
        for name in names {
            let is_file = name.contains('/') || name.ends_with(".yaml") || name.ends_with(".yml");
            let found = if is_file {
                vec![Experiment::read(Path::new(name))?]
            } else if name == "all" {
                embedded.clone()
            } else {
                let found = embedded.iter().find(|e| e.id.eq_ignore_ascii_case(name));
                vec![found.cloned().ok_or_else(|| Error::NoExperiment {
                    name: name.clone(),
                    known: embedded.iter().map(|e| e.id.clone()).collect(),
                })?]
            };
            for experiment in found {
                match chosen.iter().find(|other| other.id == experiment.id) {
                    None => chosen.push(experiment),
                    Some(same) if *same == experiment => {}
                    Some(_) => {
                        return Err(Error::SameId {
                            name: name.clone(),
                            id: experiment.id,
                        });
                    }
                }
            }
        }
        Ok(chosen)
    }

    /// How its cells are measured.
    pub fn method(&self) -> Method {
        Method::by_name(&self.method).expect("checked when it was read")
    }

    /// Windows of measurement of each cell.
    pub fn rounds(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Quick => {
                // A program starts its switches anew for every round, which takes most of it.
                let usual = if self.method().is_outside() { 2 } else { 3 };
                let most = self
                    .quick_rounds
                    .map_or(usual, |rounds| rounds.min(QUICK_ROUNDS));
                self.rounds.unwrap_or(most).min(most)
            }
            Mode::Normal => self.rounds.unwrap_or(5),
            Mode::Full => self.rounds.unwrap_or(9).max(9),
        }
    }

    /// Seconds of a window.
    pub fn seconds(&self, mode: Mode) -> f64 {
        match mode {
            Mode::Quick => self.seconds.unwrap_or(QUICK).min(QUICK),
            Mode::Normal => self.seconds.unwrap_or(2.0),
            Mode::Full => self.seconds.unwrap_or(10.0).max(10.0),
        }
    }

    /// Whether others that come before it in such a run measure it, too. `all` are those of the
    /// run, in their order.
    pub fn is_with_others(&self, mode: Mode, all: &[Experiment]) -> bool {
        let before = all.iter().take_while(|other| other.id != self.id);
        let before: BTreeSet<&str> = before.map(|other| other.id.as_str()).collect();
        let there = |id: &String| before.contains(id.as_str());
        mode == Mode::Quick && !self.quick_with.is_empty() && self.quick_with.iter().all(there)
    }

    /// Every combination of the sweep's values; the last parameter changes fastest. None where a
    /// program says which there are.
    pub fn cells(&self, mode: Mode) -> Vec<BTreeMap<String, Value>> {
        if self.method().is_outside() {
            return Vec::new();
        }
        let mut cells = vec![BTreeMap::new()];
        for sweep in &self.sweep {
            let values = sweep.of(mode);
            cells = cells
                .into_iter()
                .flat_map(|cell: BTreeMap<String, Value>| {
                    values.iter().map(move |value| {
                        let mut cell = cell.clone();
                        cell.insert(sweep.parameter.name.clone(), value.clone());
                        cell
                    })
                })
                .collect();
        }
        cells
    }

    /// The settings of a cell.
    pub fn settings(&self, at: &BTreeMap<String, Value>) -> Result<Settings, BadSetting> {
        let mut all = self.settings.clone();
        all.extend(at.iter().map(|(name, value)| (name.clone(), value.clone())));
        let settings = Settings::of(&all)?;
        settings.check()?;
        Ok(settings)
    }

    /// Says what is wrong, and where.
    fn check(&self) -> Result<(), Defect> {
        let fine = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.id.is_empty() || self.id == "all" || !self.id.chars().all(fine) {
            return Err(Defect::Id(self.id.clone()));
        }
        let method = Method::by_name(&self.method);
        let method = method.ok_or_else(|| Defect::Method(self.method.clone()))?;
        if self.subjects.is_empty() {
            return Err(Defect::Empty("subjects".into()));
        }
        unique("subjects", self.subjects.iter())?;
        for (field, seconds) in [("seconds", self.seconds), ("takes", self.takes)] {
            if let Some(seconds) = seconds
                && !(seconds > 0.0 && seconds <= 86_400.0)
            {
                return Err(Defect::Seconds { field, seconds });
            }
        }
        for (field, rounds) in [("rounds", self.rounds), ("quick_rounds", self.quick_rounds)] {
            if let Some(rounds) = rounds
                && !(1..=100).contains(&rounds)
            {
                return Err(Defect::Rounds { field, rounds });
            }
        }
        if !self.quick_with.is_empty() && method != Method::Program {
            return Err(Defect::QuickWith);
        }
        self.check_sweep()?;
        self.check_measures(method)?;
        self.check_plots()?;
        let parameters = self.parameters();
        for (number, figure) in self.paper_figures.iter().enumerate() {
            let place = format!("paper_figures[{number}]");
            for name in figure.at.keys() {
                known(&format!("{place}.at"), name, &parameters)?;
            }
            for name in figure.figures.keys() {
                known(&format!("{place}.figures"), name, &self.measured())?;
            }
        }
        for (number, expectation) in self.expect.iter().enumerate() {
            let place = format!("expect[{number}]");
            known(
                &format!("{place}.is"),
                &expectation.is,
                &["above", "below", "about"],
            )?;
            if expectation
                .factor
                .is_some_and(|f| !f.is_finite() || f <= 0.0)
            {
                return Err(Defect::Factor(place));
            }
            for (side, pick) in [("left", &expectation.left), ("right", &expectation.right)] {
                let place = format!("{place}.{side}");
                known(&format!("{place}.measure"), &pick.measure, &self.measured())?;
                let papers = self
                    .paper_figures
                    .iter()
                    .map(|figure| figure.subject.as_str());
                let subjects: Vec<_> = self
                    .subjects
                    .iter()
                    .map(String::as_str)
                    .chain(papers)
                    .collect();
                known(&format!("{place}.subject"), &pick.subject, &subjects)?;
                for name in pick.at.keys() {
                    known(&format!("{place}.at"), name, &parameters)?;
                }
            }
        }
        Ok(())
    }

    fn check_sweep(&self) -> Result<(), Defect> {
        unique("sweep", self.sweep.iter().map(|s| &s.parameter.name))?;
        if self.method().is_outside() {
            // Its parameters are its own, and so are their values where there are none here.
            for name in self.settings.keys() {
                known("settings", name, &["program"])?;
            }
            let program = self.settings.contains_key("program");
            return match (program, self.method() == Method::Program) {
                (false, true) => Err(Defect::NoProgram),
                _ => Ok(()),
            };
        }
        for name in self.settings.keys() {
            known("settings", name, settings::NAMES)?;
        }
        let mut cells = 1_usize;
        for sweep in &self.sweep {
            let name = &sweep.parameter.name;
            known("sweep: name", name, settings::NAMES)?;
            let lists = [
                ("values", Some(&sweep.values)),
                ("quick", sweep.quick.as_ref()),
                ("full", sweep.full.as_ref()),
            ];
            for (list, values) in lists {
                let Some(values) = values else { continue };
                if values.is_empty() {
                    return Err(Defect::Empty(format!("sweep: {name}: {list}")));
                }
                for value in values {
                    let at = BTreeMap::from([(name.clone(), value.clone())]);
                    Settings::of(&at).map_err(|error| Defect::SweepValue { list, error })?;
                }
            }
            let most = sweep
                .values
                .len()
                .max(sweep.full.as_ref().map_or(0, Vec::len));
            cells = cells.saturating_mul(most);
        }
        if cells > MOST_CELLS {
            return Err(Defect::TooManyCells(cells));
        }
        for mode in [Mode::Quick, Mode::Normal, Mode::Full] {
            for at in self.cells(mode) {
                self.settings(&at).map_err(Defect::Settings)?;
            }
        }
        Ok(())
    }

    fn check_measures(&self, method: Method) -> Result<(), Defect> {
        if self.measures.is_empty() {
            return Err(Defect::Empty("measures".into()));
        }
        unique("measures", self.measures.iter().map(|m| &m.name))?;
        for measure in &self.measures {
            if !method.is_outside() && !method.measures().contains(&measure.name.as_str()) {
                return Err(Defect::Measure {
                    method,
                    measure: measure.name.clone(),
                });
            }
            let better = format!("measures: {}: better", measure.name);
            known(&better, &measure.better, &["higher", "lower", ""])?;
        }
        Ok(())
    }

    fn check_plots(&self) -> Result<(), Defect> {
        let parameters = self.parameters();
        for (number, plot) in self.plots.iter().enumerate() {
            let place = format!("plots[{number}]");
            known(
                &format!("{place}.kind"),
                &plot.kind,
                &["line", "bars", "stack"],
            )?;
            let axis = [&parameters[..], &["subject"]].concat();
            known(&format!("{place}.x"), &plot.x, &axis)?;
            // A stack's measures tell themselves apart.
            if plot.kind != "stack" || !plot.series.is_empty() {
                known(&format!("{place}.series"), &plot.series, &axis)?;
            }
            if plot.y.is_empty() {
                return Err(Defect::Empty(format!("{place}.y")));
            }
            for name in &plot.y {
                known(&format!("{place}.y"), name, &self.measured())?;
            }
            for name in plot.only.keys() {
                known(&format!("{place}.only"), name, &axis)?;
            }
        }
        Ok(())
    }

    fn parameters(&self) -> Vec<&str> {
        self.sweep
            .iter()
            .map(|s| s.parameter.name.as_str())
            .collect()
    }

    fn measured(&self) -> Vec<&str> {
        self.measures.iter().map(|m| m.name.as_str()).collect()
    }
}

/// Checks that a name is one of these.
fn known(place: &str, name: &str, names: &[&str]) -> Result<(), Defect> {
    if names.contains(&name) {
        return Ok(());
    }
    Err(Defect::Unknown {
        place: place.to_owned(),
        name: name.to_owned(),
        known: names.iter().map(|name| (*name).to_owned()).collect(),
    })
}

/// Checks that no name occurs twice.
fn unique<'a>(place: &'static str, names: impl Iterator<Item = &'a String>) -> Result<(), Defect> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            let name = name.clone();
            return Err(Defect::Twice { place, name });
        }
    }
    Ok(())
}

impl Sweep {
    /// The values of a mode.
    pub fn of(&self, mode: Mode) -> &[Value] {
        match mode {
            Mode::Quick => self.quick.as_ref().unwrap_or(&self.values),
            Mode::Normal => &self.values,
            Mode::Full => self.full.as_ref().unwrap_or(&self.values),
        }
    }
}

/// A parameter and its values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "SweepText", into = "SweepText")]
pub struct Sweep {
    /// The parameter.
    pub parameter: Parameter,
    /// Its values.
    pub values: Vec<Value>,
    /// Those of `--quick`; absent: all.
    pub quick: Option<Vec<Value>>,
    /// Those of `--full`; absent: all.
    pub full: Option<Vec<Value>>,
}

/// A [`Sweep`] as it is written: the parameter's fields beside the values. (Serde's `flatten` would
/// accept unknown fields.)
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepText {
    name: String,
    title: String,
    #[serde(default)]
    unit: String,
    values: Vec<Value>,
    #[serde(default)]
    quick: Option<Vec<Value>>,
    #[serde(default)]
    full: Option<Vec<Value>>,
}

impl From<SweepText> for Sweep {
    fn from(text: SweepText) -> Sweep {
        Sweep {
            parameter: Parameter {
                name: text.name,
                title: text.title,
                unit: text.unit,
            },
            values: text.values,
            quick: text.quick,
            full: text.full,
        }
    }
}

impl From<Sweep> for SweepText {
    fn from(sweep: Sweep) -> SweepText {
        SweepText {
            name: sweep.parameter.name,
            title: sweep.parameter.title,
            unit: sweep.parameter.unit,
            values: sweep.values,
            quick: sweep.quick,
            full: sweep.full,
        }
    }
}

/// A figure of the paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperFigure {
    /// What the paper calls what it measured: `Open vSwitch`, `DPDK vSwitch`.
    pub subject: String,
    /// Where in the sweep.
    #[serde(default)]
    pub at: BTreeMap<String, Value>,
    /// By measure.
    pub figures: BTreeMap<String, f64>,
}

/// What should come out: a comparison of two figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// A sentence.
    pub text: String,
    /// The figure on the left.
    pub left: Pick,
    /// `above`, `below` or `about` (within `factor`).
    pub is: String,
    /// What the right side is multiplied by; 1 if absent.
    #[serde(default)]
    pub factor: Option<f64>,
    /// The figure on the right.
    pub right: Pick,
    /// Why it need not come out here, half a sentence: shown where it does not.
    #[serde(default)]
    pub otherwise: Option<String>,
}

/// Picks a figure: of the cells that fit, the median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pick {
    /// A measure.
    pub measure: String,
    /// A switch.
    pub subject: String,
    /// Where in the sweep.
    #[serde(default)]
    pub at: BTreeMap<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "
id: own
title: Sizes
purpose: To see.
topology: Two ports.
method: throughput
subjects: [sluice, ovs-dpdk]
sweep:
  - {name: size, title: Size, unit: bytes, values: [64, 128], quick: [64], full: [64, 65, 66]}
  - {name: flows, title: Flows, values: [1, 10]}
settings: {path: p-p, job: stations, size: 1500}
measures: [{name: rate, title: Rate, unit: Mpps, better: higher}]
plots: [{title: Rates, kind: line, x: size, y: [rate], series: subject}]
expect:
  - text: Small frames are as fast.
    left: {measure: rate, subject: sluice, at: {size: 64}}
    is: above
    factor: 0.9
    right: {measure: rate, subject: sluice, at: {size: 128}}
seconds: 3
rounds: 4
";

    #[test]
    fn all_that_there_are_are_embedded_and_right() {
        let mut files: Vec<_> =
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/experiments"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
        files.sort();
        let mut names: Vec<_> = EMBEDDED.iter().map(|(name, _)| name.to_string()).collect();
        names.sort();
        assert_eq!(files, names);
        let all = Experiment::all().unwrap();
        for experiment in &all {
            let file = format!("{}.yaml", experiment.id.to_lowercase());
            assert!(files.contains(&file), "{file}");
            for mode in [Mode::Quick, Mode::Normal, Mode::Full] {
                let outside = experiment.method().is_outside();
                assert_eq!(experiment.cells(mode).is_empty(), outside, "{file}");
            }
        }
        let ids: Vec<_> = all.iter().map(|e| e.id.as_str()).collect();
        let at = |id| ids.iter().position(|other| *other == id).unwrap();
        assert!(at("D2") < at("D10") && at("A4") < at("C1"), "{ids:?}");
    }

    /// What is expected is told from cells that each kind of run measures.
    #[test]
    fn expectations_are_of_cells_that_are_measured() {
        let all = Experiment::all().unwrap();
        for experiment in all.iter().filter(|e| !e.method().is_outside()) {
            for mode in [Mode::Quick, Mode::Normal, Mode::Full] {
                let cells = experiment.cells(mode);
                let picks = experiment.expect.iter().flat_map(|e| [&e.left, &e.right]);
                for pick in picks.filter(|pick| experiment.subjects.contains(&pick.subject)) {
                    let fits = |cell: &BTreeMap<String, Value>| {
                        pick.at
                            .iter()
                            .all(|(name, value)| cell.get(name) == Some(value))
                    };
                    assert!(
                        cells.iter().any(fits),
                        "{} {mode:?} {pick:?}",
                        experiment.id
                    );
                }
            }
        }
    }

    #[test]
    fn sweeps_become_cells_whose_settings_go_before() {
        let own = Experiment::parse("own.yaml", OWN).unwrap();
        let cells = own.cells(Mode::Normal);
        assert_eq!(cells.len(), 4);
        assert_eq!(own.cells(Mode::Quick).len(), 2);
        assert_eq!(own.cells(Mode::Full).len(), 6);
        assert_eq!(cells[1]["flows"], Value::Number(10.0));
        let settings = own.settings(&cells[2]).unwrap();
        assert_eq!((settings.size, settings.flows), (128, 1));
        assert_eq!((own.rounds(Mode::Quick), own.rounds(Mode::Full)), (3, 9));
        assert_eq!(
            (own.seconds(Mode::Quick), own.seconds(Mode::Normal)),
            (QUICK, 3.0)
        );
        // Written and read again it is the same.
        let text = serde_yaml_ng::to_string(&own).unwrap();
        assert_eq!(Experiment::parse("again", &text).unwrap(), own);
    }

    #[test]
    fn errors_name_file_and_field_and_what_there_is() {
        let cases = [
            ("title: Sizes", "titel: Sizes", "unknown field `titel`"),
            ("unit: bytes,", "unt: bytes,", "unknown field `unt`"),
            ("better: higher", "beter: higher", "unknown field `beter`"),
            (
                "better: higher",
                "better: more",
                "measures: rate: better: there is no \"more\"; there are \"higher\"",
            ),
            ("kind: line", "kin: line", "unknown field `kin`"),
            (
                "kind: line",
                "kind: pie",
                "plots[0].kind: there is no \"pie\"; there are \"line\", \"bars\"",
            ),
            (
                "x: size",
                "x: sizes",
                "plots[0].x: there is no \"sizes\"; there are \"size\", \"flows\"",
            ),
            (
                "method: throughput",
                "method: guess",
                "method: there is no \"guess\"; there are throughput, load",
            ),
            ("id: own", "id: all", "id: \"all\" is not a name"),
            ("[sluice, ovs-dpdk]", "[]", "subjects: there is none"),
            (
                "[sluice, ovs-dpdk]",
                "[sluice, sluice]",
                "subjects: \"sluice\" occurs twice",
            ),
            (
                "values: [64, 128]",
                "values: [64, 1]",
                "sweep: values: size: \"1\" is not a whole number within 64",
            ),
            (
                "values: [64, 128]",
                "values: [[64], 128]",
                "sweep[0].values: is neither a number nor a word",
            ),
            (
                "name: flows",
                "name: floes",
                "sweep: name: there is no \"floes\"; there are \"path\"",
            ),
            (
                "path: p-p",
                "path: p-q",
                "settings: path: there is no \"p-q\"; there are p-p",
            ),
            (
                "path: p-p",
                "pth: p-p",
                "settings: there is no \"pth\"; there are \"path\"",
            ),
            (
                "measures: [{name: rate",
                "measures: [{name: rat",
                "does not measure \"rat\"; it measures rate, gbit",
            ),
            (
                "is: above",
                "is: over",
                "expect[0].is: there is no \"over\"; there are \"above\"",
            ),
            ("factor: 0.9", "factor: -1", "expect[0].factor"),
            (
                "subject: sluice, at: {size: 128}",
                "subject: vpp, at: {size: 128}",
                "expect[0].right.subject: there is no \"vpp\"; there are \"sluice\"",
            ),
            (
                "at: {size: 128}",
                "at: {siz: 128}",
                "expect[0].right.at: there is no \"siz\"; there are \"size\"",
            ),
            ("seconds: 3", "seconds: 0", "seconds: 0 is not within"),
            (
                "rounds: 4",
                "rounds: 1000",
                "rounds: 1000 is not within 1 and 100",
            ),
            ("rounds: 4", "rounds: few", "rounds: invalid type"),
        ];
        for (from, to, error) in cases {
            assert!(OWN.contains(from), "{from}");
            let found = Experiment::parse("own.yaml", &OWN.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(
                found.starts_with("own.yaml: ") && found.contains(error),
                "{to}: {found}"
            );
        }
    }

    #[test]
    fn experiments_are_chosen_by_name_and_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("own.yaml");
        std::fs::write(&file, OWN).unwrap();
        let own = file.display().to_string();
        let chosen = Experiment::choose(&["a4".into(), own.clone(), "A4".into()]).unwrap();
        let ids: Vec<_> = chosen.iter().map(|e| e.id.as_str()).collect();
        assert_eq!(ids, ["A4", "own"]);
        assert!(Experiment::choose(&["all".into()]).unwrap().len() > 20);
        let error = Experiment::choose(&["Z9".into()]).unwrap_err().to_string();
        assert!(
            error.contains("no experiment \"Z9\"; there are A"),
            "{error}"
        );
        std::fs::write(&file, OWN.replace("id: own", "id: A4")).unwrap();
        let error = Experiment::choose(&["A4".into(), own])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("two different experiments with the ID \"A4\""),
            "{error}"
        );
        let error = Experiment::choose(&["no/such.yaml".into()])
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot read no/such.yaml"), "{error}");
    }

    #[test]
    fn quick_runs_measure_together_what_others_measure() {
        let all = Experiment::all().unwrap();
        for experiment in &all {
            for id in &experiment.quick_with {
                assert!(
                    all.iter().any(|other| other.id == *id),
                    "{}: {id}",
                    experiment.id
                );
            }
            if !experiment.quick_with.is_empty() {
                assert!(
                    experiment.is_with_others(Mode::Quick, &all),
                    "{}",
                    experiment.id
                );
                assert!(!experiment.is_with_others(Mode::Normal, &all));
                // Alone, or before the others, it is measured.
                assert!(!experiment.is_with_others(Mode::Quick, std::slice::from_ref(experiment)));
                let turned: Vec<_> = all.iter().rev().cloned().collect();
                assert!(!experiment.is_with_others(Mode::Quick, &turned));
            }
        }
    }
}
