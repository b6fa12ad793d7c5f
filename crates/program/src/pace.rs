//! When something that takes long is made again after changes, in the background.
//!
//! Ten times as long as the last making took passes before the next one, so what never stands still
//! costs a tenth of a processor at most. Where changes seem to have come to an end the next one
//! begins sooner, so that the last ones do not wait; the rest is added to the next one's then.

use std::time::{Duration, Instant};

/// Times the last making that pass before the next one begins.
const REST: u32 = 10;
/// Least time between the end of one making and the next one's beginning.
const REST_MIN: Duration = Duration::from_millis(50);
/// Least time without a change after which the next making need not wait that long.
pub(crate) const CALM: Duration = Duration::from_millis(100);
/// When to try again after no thread could be had.
const REFUSED: Duration = Duration::from_secs(10);

/// The state of one thing.
#[derive(Default)]
pub(crate) struct Pace {
    /// When the next making may begin.
    pub not_before: Option<Instant>,
    /// Whether the last one began before that, so that this one may not.
    early: bool,
    /// How long the last one took.
    pub took: Duration,
    /// How much had changed at the last look, and the first one that saw so much.
    seen: Option<(usize, Instant)>,
}

impl Pace {
    /// Whether to make anew, when so much has changed since the last time. Ask now and then.
    pub fn is_time(&mut self, changes: usize, now: Instant) -> bool {
        let seen = self.seen.filter(|(before, _)| *before == changes);
        let (_, since) = *self.seen.insert(seen.unwrap_or((changes, now)));
        let calm = now.saturating_duration_since(since) >= self.took.max(CALM);
        self.is_rested(now) || calm && !self.early
    }

    fn is_rested(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|time| time <= now)
    }

    /// Making has begun.
    pub fn begun(&mut self, now: Instant) {
        self.early = !self.is_rested(now);
    }

    /// It could not begin.
    pub fn refused(&mut self, now: Instant) {
        self.not_before = Some(now + REFUSED);
        self.early = true;
    }

    /// It has come to an end.
    pub fn done(&mut self, took: Duration) {
        let now = Instant::now();
        let from = self.not_before.filter(|time| *time > now).unwrap_or(now);
        self.not_before = Some(from + (took * REST).max(REST_MIN));
        self.took = took;
    }

    /// The next making need not wait.
    pub fn forget(&mut self) {
        self.not_before = None;
    }
}
