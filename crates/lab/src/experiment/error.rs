//! What is wrong with an experiment's file.

use super::MOST_CELLS;
use crate::methods::Method;
use crate::settings::BadSetting;

/// What is wrong with an experiment's file, and in which field.
#[derive(Debug, thiserror::Error)]
pub enum Defect {
    /// The file is no YAML, or a field is unknown, missing or of another type.
    #[error(transparent)]
    Yaml(#[from] serde_yaml_ng::Error),
    /// The ID cannot be one.
    #[error("id: {0:?} is not a name of letters, digits, - and _ (other than all)")]
    Id(String),
    /// There is no such method.
    #[error("method: there is no {:?}; there are {}", .0, Method::names().join(", "))]
    Method(String),
    /// A list, at this place, has to have something and is empty.
    #[error("{0}: there is none")]
    Empty(String),
    /// A name occurs twice.
    #[error("{place}: {name:?} occurs twice")]
    Twice {
        /// The list.
        place: &'static str,
        /// The name.
        name: String,
    },
    /// A name is none of those that there are.
    #[error("{place}: there is no {name:?}; {}", there(.known))]
    Unknown {
        /// The field.
        place: String,
        /// The name.
        name: String,
        /// Those that there are. None if nothing is swept.
        known: Vec<String>,
    },
    /// A time is out of range.
    #[error("{field}: {seconds} is not within 0 and 86,400")]
    Seconds {
        /// The field.
        field: &'static str,
        /// Its value.
        seconds: f64,
    },
    /// A number of rounds is out of range.
    #[error("{field}: {rounds} is not within 1 and 100")]
    Rounds {
        /// The field.
        field: &'static str,
        /// Its value.
        rounds: u32,
    },
    /// What is not measured by a program is to be measured with others.
    #[error("quick_with: is for the method program")]
    QuickWith,
    /// No program is named.
    #[error("settings.program: is missing; the method needs it")]
    NoProgram,
    /// The factor of the expectation at this place cannot be one.
    #[error("{0}.factor: is not above 0")]
    Factor(String),
    /// A value of the sweep cannot be one of its setting.
    #[error("sweep: {list}: {error}")]
    SweepValue {
        /// Which list of values: `values`, `quick` or `full`.
        list: &'static str,
        /// The setting, and what is wrong.
        error: BadSetting,
    },
    /// The sweep has too many combinations; their number.
    #[error("sweep: {0} cells are more than {MOST_CELLS}")]
    TooManyCells(usize),
    /// Settings of a cell are wrong, or do not go together.
    #[error("settings: {0}")]
    Settings(BadSetting),
    /// The method does not measure this.
    #[error(
        "measures: the method {} does not measure {measure:?}; it measures {}",
        .method.name(),
        .method.measures().join(", ")
    )]
    Measure {
        /// The method.
        method: Method,
        /// The measure.
        measure: String,
    },
}

fn there(known: &[String]) -> String {
    let names: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
    match names.is_empty() {
        true => "nothing is swept".to_owned(),
        false => format!("there are {}", names.join(", ")),
    }
}
