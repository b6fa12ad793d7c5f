//! What a run of the lab found: the layout of `results.json`.
//!
//! Everything that the report shows is here, so that it can be drawn again, and two runs compared,
//! without the machine that made them.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the layout.
pub const SCHEMA: u32 = 1;

/// One `sluice lab run`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was run.
    pub made: Made,
    /// What it ran on.
    pub machine: Machine,
    /// The switches, in the order in which the report shows them.
    pub subjects: Vec<Subject>,
    /// What was found, in the order of the experiments' names.
    pub experiments: Vec<Experiment>,
}

/// How a run was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// Version of `sluice`, and the commit it was built from where known.
    pub version: String,
    /// The command line.
    pub command: String,
    /// `quick`, `normal` or `full`.
    pub mode: String,
    /// When it began, RFC 3339 in UTC.
    pub began: String,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Windows of measurement that were repeated, since the machine's speed moved meanwhile.
    pub repeated: u32,
    /// Whether it was ended before all experiments were done.
    pub interrupted: bool,
}

/// What a run was made on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Cores that the run may use.
    pub cores: u32,
    /// Whether cores are threads of shared cores.
    pub threads: bool,
    /// Frequency of the time stamp counter, MHz.
    pub tsc_mhz: f64,
    /// Caches: name (`L1d`, `L2`, `L3`) and bytes.
    pub caches: Vec<(String, u64)>,
    /// Main memory, MiB.
    pub memory_mib: u64,
    /// Huge pages that were there or could be made, MiB.
    pub huge_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The hypervisor, if it is a virtual machine.
    pub hypervisor: Option<String>,
    /// Physical network interfaces that the experiments were given.
    pub nics: Vec<String>,
    /// Share of time in which the machine did something else (stolen, interrupted), 0 to 1.
    pub noise: f64,
    /// Speeds that the probe of the machine's speed found, relative to their median: one for each
    /// window.
    pub speeds: Vec<f64>,
    /// Nanoseconds of a cache line's way between two cores and back: one for each window with two
    /// cores, and those before and after each program.
    #[serde(default)]
    pub between_ns: Vec<f64>,
    /// What limits what can be shown here, a sentence each.
    pub limits: Vec<String>,
    /// The headroom table (B11): what this host allows at each bottleneck.
    pub headroom: Vec<(String, Figure, String)>,
}

/// A switch that was measured, or could not be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Its name in cells: `sluice`, `ovs-dpdk`, `ovs-netdev`, `linux-bridge`, `linux-ip`,
    /// `testpmd`, `vpp`.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Its version.
    pub version: String,
    /// How it was set up, in words.
    pub setup: String,
    /// Why it was not measured.
    pub missing: Option<String>,
}

/// What an experiment found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// `A1` to `D13`, or a name of one's own.
    pub id: String,
    /// What it is about, a few words.
    pub title: String,
    /// `a`, `b`, `c`, `d`, or empty.
    pub paper: String,
    /// Why one would want to know.
    pub purpose: String,
    /// How it was built here.
    pub topology: String,
    /// The command that runs it again.
    pub command: String,
    /// Seconds that it took.
    pub seconds: f64,
    /// How it ended.
    pub state: State,
    /// What this machine cannot show, and what was put in its place.
    pub substituted: Vec<String>,
    /// Parameters of its cells, in the order in which they are shown.
    pub parameters: Vec<Parameter>,
    /// What was measured in its cells.
    pub measures: Vec<Measure>,
    /// Its plots.
    pub plots: Vec<Plot>,
    /// The paper's own figures, as cells with one figure each.
    pub paper_cells: Vec<Cell>,
    /// What was measured.
    pub cells: Vec<Cell>,
    /// What follows from them.
    pub findings: Vec<Finding>,
}

/// How an experiment ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// All cells have been measured.
    #[default]
    Done,
    /// The run was ended before.
    Interrupted,
    /// It could not be done; why.
    Failed(String),
}

/// A parameter that is swept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name in cells.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// Its unit; empty where it has none.
    #[serde(default)]
    pub unit: String,
}

/// A quantity that is measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Its name in cells.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// Its unit: `Mpps`, `us`, `cycles`, `%`.
    #[serde(default)]
    pub unit: String,
    /// Whether more is `higher` or `lower`, is better; empty: neither.
    #[serde(default)]
    pub better: String,
}

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "is neither a number nor a word")]
pub enum Value {
    /// A number.
    Number(f64),
    /// A word.
    Text(String),
}

/// One measured point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Which switch; in the paper's figures whatever the paper calls it.
    pub subject: String,
    /// Where in the sweep.
    pub at: BTreeMap<String, Value>,
    /// What was measured.
    pub figures: BTreeMap<String, Figure>,
    /// What limited at least half of its windows if not the switch: the generator, for one.
    #[serde(default)]
    pub limited_by: Option<String>,
    /// Why it has no figures.
    #[serde(default)]
    pub missing: Option<String>,
    /// What became of its windows of measurement.
    #[serde(default)]
    pub windows: Windows,
    /// Seconds that it took.
    #[serde(default)]
    pub seconds: f64,
}

/// Windows of a cell: how many, and of how many what is to be known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Windows {
    /// Those that the cell's figures are of.
    pub measured: u32,
    /// Those that gave none.
    pub failed: u32,
    /// Why the first of these did not.
    pub because: Option<String>,
    /// Those that gave figures, but are put aside: the machine was not as it was most of the time
    /// ([`speed::Usual`](crate::speed::Usual)). They are not among the measured.
    #[serde(default)]
    pub aside: u32,
    /// Those, of the measured, in which the machine's speed moved even the last time.
    pub moved: u32,
    /// How often windows were repeated since the machine's speed moved.
    pub repeated: u32,
    /// Those, of the measured, that something else than the switch limited.
    pub limited: u32,
}

impl Windows {
    /// Whether what limited windows limited their median: at least half of them.
    pub fn are_limited(&self) -> bool {
        self.limited > 0 && 2 * self.limited >= self.measured
    }
}

/// A figure with what is known about its error.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The median of the runs.
    pub median: f64,
    /// Lower end of the interval in which the next run's median lies with 95%.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// Standard deviation of the runs.
    #[serde(default)]
    pub deviation: f64,
    /// The runs.
    #[serde(default)]
    pub runs: Vec<f64>,
    /// Degrees of freedom of its scatter that were borrowed from other cells of the experiment
    /// ([`scatter`](crate::scatter)), beside one less than runs. 0 where the interval is from its
    /// own runs only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub borrowed: f64,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// A plot of cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plot {
    /// Its title.
    pub title: String,
    /// `line`, `bars`, or `stack` (measures on each other, for cycles by stage).
    pub kind: String,
    /// The parameter along the horizontal axis.
    pub x: String,
    /// Whether the horizontal axis is logarithmic.
    pub x_log: bool,
    /// Measures along the vertical axis: several only in a `stack`.
    pub y: Vec<String>,
    /// Whether the vertical axis is logarithmic.
    pub y_log: bool,
    /// What tells lines or bars apart: `subject` or a parameter.
    pub series: String,
    /// Only cells with these values.
    pub only: BTreeMap<String, Value>,
    /// Whether the paper's figures are drawn beside.
    pub paper: bool,
}

/// What follows from the cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// What was expected, or what was found, a sentence.
    pub text: String,
    /// Whether it came out; absent where nothing was expected, and where these figures cannot tell.
    pub holds: Option<bool>,
    /// Whether something was expected, and these figures cannot tell.
    #[serde(default)]
    pub open: bool,
    /// The figures behind it, or why it did not come out, or why they cannot tell.
    pub because: String,
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "{text}"),
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        Value::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

/// Why a text is no results.
#[derive(Debug, thiserror::Error)]
pub enum BadResults {
    /// It is no JSON, or a field is missing or of another type.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Its layout is of this other version.
    #[error("its layout is version {0}, and this program reads {SCHEMA}")]
    Version(u32),
}

fn parse(text: &str) -> Result<Results, BadResults> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let version: Version = serde_json::from_str(text)?;
    match version.schema {
        SCHEMA => Ok(serde_json::from_str(text)?),
        other => Err(BadResults::Version(other)),
    }
}

impl Results {
    /// Reads `results.json`, or that of a directory.
    pub fn read(path: &Path) -> Result<Results, Error> {
        let file = if path.is_dir() {
            path.join("results.json")
        } else {
            path.to_path_buf()
        };
        let text =
            std::fs::read_to_string(&file).map_err(|error| Error::file("read", &file, error))?;
        parse(&text).map_err(|error| Error::Results {
            file: file.display().to_string(),
            error,
        })
    }

    /// Writes `results.json` into a directory, in one step: whoever reads it meanwhile gets the
    /// whole old one.
    pub fn write(&self, directory: &Path) -> Result<(), Error> {
        let (path, new) = (
            directory.join("results.json"),
            directory.join(".results.json.new"),
        );
        let text = serde_json::to_string_pretty(self).expect("it has text as keys only");
        std::fs::write(&new, text + "\n").map_err(|error| Error::file("write", &new, error))?;
        std::fs::rename(&new, &path).map_err(|error| Error::file("write", &path, error))
    }
}
