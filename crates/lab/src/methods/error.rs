//! Why a method has measured nothing.

/// Why a method has measured nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Whoever carries trials out could not.
    #[error(transparent)]
    Trial(Box<dyn std::error::Error + Send + Sync>),
    /// Trials have no bursts here.
    #[error("this generator sends no bursts")]
    NoBursts,
    /// Trials have no steps here.
    #[error("this generator changes no rate")]
    NoSteps,
    /// Trials change no rules here.
    #[error("rules cannot be changed here while packets pass")]
    NoChanges,
    /// The method has no trials.
    #[error("is measured outside")]
    Outside,
    /// A trial sent nothing.
    #[error("no frame was sent")]
    NothingSent,
    /// None of so many frames came back.
    #[error("of {0} frames none came out")]
    NothingCame(u64),
    /// Frames do not say when they were due.
    #[error("frames carry no time stamps here")]
    NoStamps,
    /// Rules were changed, and no packet obeyed.
    #[error("no change of a rule was seen")]
    NoChangeSeen,
    /// No load of a search passed.
    #[error("no load passed")]
    NonePassed,
    /// A search of bounds took too many trials, this many.
    #[error("the search has not ended after {0} trials")]
    Endless(u32),
    /// A bisection took too many trials.
    #[error(
        "the search has not ended after {trials} trials: between {low:.0} and {high:.0} packets \
         per second"
    )]
    EndlessBetween {
        /// The trials.
        trials: u32,
        /// The greatest load that passed, packets per second.
        low: f64,
        /// The least that did not.
        high: f64,
    },
    /// More than is allowed was lost of the least load of a search, packets per second.
    #[error("too much is lost even at {0:.0} packets per second")]
    TooMuchLost(f64),
    /// Frames were lost of a small part of the load, packets per second.
    #[error("frames are lost even at {0:.0} packets per second")]
    AlwaysLost(f64),
}
