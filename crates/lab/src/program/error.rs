//! Why a program has not measured an experiment.

use super::{LINES_MAX, last_line};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Why a program has not measured an experiment, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run has too few cores for it.
    #[error("its program needs two cores, and the run has one (--core)")]
    TooFewCores,
    /// The setting is a number.
    #[error("settings.program is not a name")]
    NotText,
    /// The setting is no name of a program.
    #[error(
        "settings.program: {0:?} is not the name of a program of the lab \
         (lab_forwarding.py, lab_slicing.py, lab_steering.py)"
    )]
    Name(String),
    /// It is not known where the lab itself is.
    #[error("own path: {0}")]
    OwnPath(std::io::Error),
    /// The program is in none of these directories.
    #[error("{program} is in none of {}: SLUICE_LAB_PROGRAMS says where", listed(.places))]
    NotFound {
        /// The program.
        program: String,
        /// Where it could be.
        places: Vec<PathBuf>,
    },
    /// Its log cannot be written.
    #[error("{path}: {error}")]
    Log {
        /// The log.
        path: String,
        /// Why not.
        error: std::io::Error,
    },
    /// It cannot be started or waited for.
    #[error("{path}: {what}: {error}")]
    Process {
        /// The program.
        path: String,
        /// `start` or `wait`.
        what: &'static str,
        /// Why not.
        error: std::io::Error,
    },
    /// It has no pipe for its output.
    #[error("{0}: no output")]
    NoOutput(String),
    /// It does what it should not.
    #[error("{program}: {misdeed}")]
    Misdeed {
        /// The program.
        program: String,
        /// What it does.
        misdeed: Misdeed,
    },
    /// It has failed.
    #[error("{program} ended with {status}: {}see {log}", before(.said))]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// The last line of its log.
        said: Option<String>,
        /// The log.
        log: String,
    },
    /// The thread that runs it has ended early.
    #[error("the program's thread has failed")]
    Panicked,
}

impl Error {
    /// Returns the error of a program that ended so; it has written its log from `from` on.
    pub(super) fn ended(program: &str, status: ExitStatus, log: &Path, from: u64) -> Error {
        Error::Failed {
            program: program.to_owned(),
            status,
            said: last_line(log, from),
            log: log.display().to_string(),
        }
    }
}

/// What a program should not do.
#[derive(Debug, thiserror::Error)]
pub enum Misdeed {
    /// It prints a line that is no cell.
    #[error("{line:?} is not a cell: {error}")]
    Line {
        /// The beginning of the line.
        line: String,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// It prints too many lines.
    #[error("printed more than {LINES_MAX} lines")]
    TooManyLines,
    /// It takes longer than this, seconds.
    #[error("was not done within {0} s")]
    Late(u64),
}

fn listed(places: &[PathBuf]) -> String {
    let places: Vec<String> = places.iter().map(|at| at.display().to_string()).collect();
    places.join(", ")
}

fn before(said: &Option<String>) -> String {
    said.as_ref()
        .map_or(String::new(), |line| format!("{line}; "))
}
