//! Decides when something that takes long is rebuilt after changes, in the background.
//!
//! The pause before the next build is ten times as long as the last one took, so constant changes
//! cost a tenth of a processor at most. Where changes seem to have stopped the next build begins
//! early, so that the last ones do not wait; the rest of the pause is added to the next one.

use std::time::{Duration, Instant};

/// Pause before the next build, as a multiple of the last one's duration.
const REST: u32 = 10;
/// Shortest pause between two builds.
const REST_MIN: Duration = Duration::from_millis(50);
/// Shortest time without a change after which the next build may begin early.
pub(crate) const CALM: Duration = Duration::from_millis(100);
/// When to try again after no thread could be started.
const REFUSED: Duration = Duration::from_secs(10);

/// The pace of one thing's builds.
#[derive(Default)]
pub(crate) struct Pace {
    /// When the next build may begin.
    pub not_before: Option<Instant>,
    /// Whether the last build began early, so that this one may not.
    early: bool,
    /// Duration of the last build.
    pub took: Duration,
    /// Number of changes at the last call, and the time of the first call with that number.
    seen: Option<(usize, Instant)>,
}

impl Pace {
    /// Returns whether to build now, given the number of changes since the last build. Must be
    /// called regularly.
    pub fn is_time(&mut self, changes: usize, now: Instant) -> bool {
        let seen = self.seen.filter(|(before, _)| *before == changes);
        let (_, since) = *self.seen.insert(seen.unwrap_or((changes, now)));
        let calm = now.saturating_duration_since(since) >= self.took.max(CALM);
        self.is_rested(now) || calm && !self.early
    }

    fn is_rested(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }

    /// Records that a build has begun.
    pub fn begun(&mut self, now: Instant) {
        self.early = !self.is_rested(now);
    }

    /// Records that a build could not begin.
    pub fn refused(&mut self, now: Instant) {
        self.not_before = Some(now + REFUSED);
        self.early = true;
    }

    /// Records that a build has ended.
    pub fn done(&mut self, took: Duration) {
        let now = Instant::now();
        let from = self.not_before.filter(|time| *time > now).unwrap_or(now);
        self.not_before = Some(from + (took * REST).max(REST_MIN));
        self.took = took;
    }

    /// Lets the next build begin without a pause.
    pub fn forget(&mut self) {
        self.not_before = None;
    }
}
