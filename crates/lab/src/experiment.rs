//! What is to be measured: an experiment's YAML file.

use crate::results::{Measure, Parameter, Plot, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
}

/// A parameter and its values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The parameter.
    #[serde(flatten)]
    pub parameter: Parameter,
    /// Its values.
    pub values: Vec<Value>,
    /// Those of `--quick`; absent: all.
    #[serde(default)]
    pub quick: Option<Vec<Value>>,
    /// Those of `--full`; absent: all.
    #[serde(default)]
    pub full: Option<Vec<Value>>,
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
