//! Why a run cannot go on with a journal.

use super::NAME;

/// Why a journal is not one of this run.
#[derive(Debug, thiserror::Error)]
pub enum Mismatch {
    /// A line is no entry.
    #[error("{NAME}: line {number}: {error}")]
    Line {
        /// The line, from 1 on.
        number: usize,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// The first entry is not a run's.
    #[error("{NAME} does not begin as one")]
    Beginning,
    /// The run was made in another way.
    #[error("it was made with {what} {before}, and this is {now}")]
    Differs {
        /// What differs.
        what: &'static str,
        /// What it was.
        before: String,
        /// What it is now.
        now: String,
    },
    /// The experiment with this ID is another one than it was.
    #[error("experiment {0} has been changed since")]
    Experiment(String),
}
