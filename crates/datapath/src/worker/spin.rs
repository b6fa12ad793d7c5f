//! How long a worker keeps polling before it sleeps, learned from how long it has slept.

use super::to_cycles;
use std::time::Duration;

/// How long a worker keeps polling after its last frame.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// Longer polling, for a worker with a processor of its own where frames have lately come sooner
/// than this.
pub(crate) const PATIENT_SPIN: Duration = Duration::from_millis(1);
/// Longest polling, where frames have come continuously: for as long as they have, at most this. A
/// sender that loses its processor for some milliseconds then finds the worker awake.
pub(crate) const STEADY_SPIN: Duration = Duration::from_millis(10);

/// How long to keep polling, in cycles.
pub(super) struct Spin {
    now: u64,
    least: u64,
    most: u64,
    /// How long frames have come with gaps shorter than `most`, minus the longer gaps that were
    /// polled through: so at most half of the time that a worker polls is without frames.
    steady: u64,
    steadiest: u64,
}

impl Spin {
    /// Creates it for a worker with a processor of its own (`pinned`), or for one that takes other
    /// threads' time when it polls.
    pub fn new(pinned: bool) -> Spin {
        let least = to_cycles(SPIN);
        Spin {
            now: least,
            least,
            most: if pinned {
                to_cycles(PATIENT_SPIN)
            } else {
                least
            },
            steady: 0,
            steadiest: if pinned { to_cycles(STEADY_SPIN) } else { 0 },
        }
    }

    /// Returns the cycles to keep polling after the last frame.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now.max(self.steady)
    }

    /// Records that frames have come this many cycles after those before.
    #[inline(always)]
    pub fn came(&mut self, gap: u64) {
        self.steady = if gap < self.most {
            (self.steady + gap).min(self.steadiest)
        } else {
            self.steady.saturating_sub(gap)
        };
    }

    /// Records the end of a sleep: with frames that many cycles after the last ones, or (`None`)
    /// without.
    pub fn learn(&mut self, rest: Option<u64>) {
        self.steady = 0;
        self.now = match rest {
            Some(cycles) if cycles < self.most => self.most,
            _ => (self.now / 2).max(self.least),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_gaps_are_polled_through_and_long_ones_slept_through() {
        let mut spin = Spin::new(true);
        let (least, most) = (to_cycles(SPIN), to_cycles(PATIENT_SPIN));
        assert_eq!(spin.now(), least);
        spin.learn(Some(2 * least));
        assert_eq!(spin.now(), most);
        for _ in 0..8 {
            spin.learn(Some(5 * most));
        }
        assert_eq!(spin.now(), least);
        spin.learn(Some(most));
        assert_eq!(spin.now(), least, "as long as the longest polling");
        spin.learn(Some(0));
        for _ in 0..8 {
            spin.learn(None);
        }
        assert_eq!(spin.now(), least);
    }

    #[test]
    fn after_steady_frames_a_longer_gap_is_polled_through() {
        let mut spin = Spin::new(true);
        let (most, steadiest) = (to_cycles(PATIENT_SPIN), to_cycles(STEADY_SPIN));
        (0..100).for_each(|_| spin.came(most / 20));
        assert_eq!(spin.now(), most / 20 * 100, "as long as frames have come");
        (0..1000).for_each(|_| spin.came(most / 20));
        assert_eq!(spin.now(), steadiest);
        spin.came(steadiest - most);
        assert_eq!(spin.now(), most, "what was polled through is spent");
        (0..1000).for_each(|_| spin.came(most / 20));
        spin.learn(None);
        assert_eq!(
            spin.now(),
            to_cycles(SPIN),
            "a rest that was longer is not polled through again"
        );
        // Frames that come seldom are not continuous.
        (0..1000).for_each(|_| spin.came(2 * most));
        assert_eq!(spin.now(), to_cycles(SPIN));
    }

    #[test]
    fn a_worker_that_shares_its_processor_does_not_learn() {
        let mut spin = Spin::new(false);
        spin.came(to_cycles(SPIN) / 2);
        spin.learn(Some(to_cycles(SPIN)));
        assert_eq!(spin.now(), to_cycles(SPIN));
    }
}
