//! What can go wrong with a run as a whole. What goes wrong with a cell is recorded in the cell.

use crate::experiment::Defect;
use crate::journal::Mismatch;
use crate::results::BadResults;
use crate::settings::BadSetting;
use std::path::Path;

/// Why a run cannot be made, gone on with or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An experiment's file is wrong.
    #[error("{file}: {defect}")]
    Experiment {
        /// The file.
        file: String,
        /// The field, and what is wrong with it.
        defect: Defect,
    },
    /// There is no such experiment.
    #[error(
        "there is no experiment {name:?}; there are {} and all, and files of one's own (NAME.yaml)",
        .known.join(", ")
    )]
    NoExperiment {
        /// The name.
        name: String,
        /// The IDs of those that there are.
        known: Vec<String>,
    },
    /// Two experiments that are to be run have the same ID.
    #[error("{name}: there are two different experiments with the ID {id:?}")]
    SameId {
        /// The second one's name, or its file.
        name: String,
        /// The ID.
        id: String,
    },
    /// No experiment is to be run.
    #[error("there is no experiment to run")]
    NoExperiments,
    /// No core is to be used.
    #[error("there is no core to run on")]
    NoCores,
    /// There is no such switch.
    #[error("there is no subject {name:?}; there are {}", .known.join(", "))]
    NoSubject {
        /// The name.
        name: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// None of the experiments measures this switch.
    #[error("no experiment measures the subject {0:?}")]
    NotMeasured(String),
    /// A setting of a cell is wrong.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// A file could not be read or written.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// `read`, `write`.
        what: &'static str,
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Results cannot be read.
    #[error("{file}: {error}")]
    Results {
        /// The file.
        file: String,
        /// Why.
        error: BadResults,
    },
    /// A directory has a run, and is to have another one.
    #[error(
        "{0} has a run already: go on with it (--resume), or choose another directory (--output)"
    )]
    HasRun(String),
    /// Another run writes this journal.
    #[error("{0} is written by a run")]
    Busy(String),
    /// A run cannot be resumed.
    #[error("cannot resume {directory}: {mismatch}")]
    Resume {
        /// Where it was made.
        directory: String,
        /// Why.
        mismatch: Mismatch,
    },
}

impl Error {
    /// A file that could not be read or written.
    pub fn file(what: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::File {
            what,
            path: path.display().to_string(),
            source,
        }
    }
}
