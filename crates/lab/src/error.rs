//! What can go wrong with a run as a whole. What goes wrong with a cell is recorded in the cell.

use std::path::Path;

/// What went wrong, in words.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An experiment's file is wrong.
    #[error("{file}: {what}")]
    Experiment {
        /// The file.
        file: String,
        /// The field, and what is wrong with it.
        what: String,
    },
    /// A name is not known; the text says which are.
    #[error("{0}")]
    Unknown(String),
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
    #[error("{file}: {what}")]
    Results {
        /// The file.
        file: String,
        /// Why.
        what: String,
    },
    /// A run cannot be resumed.
    #[error("cannot resume {directory}: {what}")]
    Resume {
        /// Where it was made.
        directory: String,
        /// Why.
        what: String,
    },
    /// A run cannot be made.
    #[error("{0}")]
    Run(String),
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
