//! A queue's recent work: cycles in each of the last intervals.

use std::collections::VecDeque;

/// Seconds in an interval, as Open vSwitch's `PMD_INTERVAL_LEN`.
pub(crate) const INTERVAL_SECONDS: u64 = 5;
/// Intervals that are kept: one minute.
pub(crate) const INTERVALS: usize = 12;

/// A counter's growth over the last minute.
#[derive(Default)]
pub(crate) struct History {
    last: u64,
    growth: VecDeque<u64>,
}

impl History {
    /// Ends an interval, with the counter at `now`.
    pub fn note(&mut self, now: u64) {
        if self.growth.len() == INTERVALS {
            self.growth.pop_front();
        }
        self.growth.push_back(now.saturating_sub(self.last));
        self.last = now;
    }

    /// Returns the growth over the last minute, including that since the last interval ended.
    pub fn recent(&self, now: u64) -> u64 {
        self.growth.iter().sum::<u64>() + now.saturating_sub(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_minute_counts() {
        let mut history = History::default();
        for interval in 1..=20 {
            history.note(interval * 10);
        }
        assert_eq!(history.recent(205), 125);
    }
}
