//! How long a worker that holds frames back for shaped ports sleeps between polls, learned from
//! arrivals and from how long frames wait.
//!
//! A worker with 1 Gbit/s to shape sends a frame every 12 us, and would poll all the time. But
//! where frames wait for milliseconds, some microseconds more or less do not matter: the worker
//! sleeps that long and then handles what came and fell due meanwhile. A nap is a small fraction of
//! the shortest wait, so a queue that is nearly empty is served as exactly as before; and it is
//! short enough for what comes meanwhile to be one burst, so a busy worker polls. Frames that need
//! not wait are delayed nevertheless where they come by a queue that does not cut naps short
//! ([`super::watch`]): hence [`MOST`].

use super::to_cycles;
use std::time::Duration;

/// Longest nap where all frames that do not cut it short have to wait anyway. Falling asleep and
/// waking cost some 6 us here.
pub(super) const MOST_PATIENT: Duration = Duration::from_micros(200);
/// Longest nap where some of these frames need not wait, and are delayed until the worker wakes.
pub(super) const MOST: Duration = Duration::from_micros(50);
/// Longest nap where a queue has a bound: well within the slack that its promise allows
/// ([`qos::shaper::PortSpec::slack_ns`]).
pub(super) const MOST_BOUNDED: Duration = Duration::from_micros(30);
/// Shortest nap: below this it does not pay, because falling asleep and waking takes some
/// microseconds.
const LEAST: Duration = Duration::from_micros(15);
/// A nap is the shortest wait divided by this.
const PART: u64 = 16;
/// Most frames that may come during a nap.
const FRAMES: u64 = 32;
/// How often to recompute the nap.
const WINDOW: Duration = Duration::from_millis(1);

/// The current nap; times in cycles, except for waits.
pub(super) struct Nap {
    window: u64,
    began: u64,
    /// Frames received when the window began.
    frames: u64,
    now: Option<Duration>,
}

impl Nap {
    /// Creates it for a worker that has learned nothing and polls.
    pub fn new(now: u64) -> Nap {
        Nap {
            window: to_cycles(WINDOW),
            began: now,
            frames: 0,
            now: None,
        }
    }

    /// Forgets what was learned, because no frames are held.
    pub fn forget(&mut self, now: u64, frames: u64) {
        (self.began, self.frames, self.now) = (now, frames, None);
    }

    /// Returns how long to nap for a worker that has received `frames` in all and holds some back;
    /// None if it is to poll. Calls `shortest` once a window: the shortest wait, in nanoseconds, of
    /// the frames that have left shaped ports since the last call; None where there were none.
    pub fn next(
        &mut self,
        now: u64,
        frames: u64,
        shortest: impl FnOnce() -> Option<u64>,
    ) -> Option<Duration> {
        let passed = now.wrapping_sub(self.began);
        if passed > self.window {
            let came = frames.wrapping_sub(self.frames).max(1);
            let window_ns = super::to_time(passed).as_nanos() as u64;
            let by_frames = window_ns.saturating_mul(FRAMES) / came;
            // Where nothing has left, frames wait for longer than the window.
            let by_waits = shortest().unwrap_or(window_ns) / PART;
            let nap = Duration::from_nanos(by_frames.min(by_waits)).min(MOST_PATIENT);
            self.now = (nap >= LEAST).then_some(nap);
            (self.began, self.frames) = (now, frames);
        }
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is learned from one window of a millisecond (and a microsecond).
    fn learned(frames: u64, shortest: Option<u64>) -> Option<Duration> {
        let now = to_cycles(WINDOW + Duration::from_micros(1));
        Nap::new(0).next(now, frames, || shortest)
    }

    #[test]
    fn naps_are_a_part_of_the_shortest_wait() {
        assert_eq!(learned(80, Some(40_000_000)), Some(MOST_PATIENT));
        assert_eq!(learned(80, Some(400_000)), Some(Duration::from_micros(25)));
        assert_eq!(learned(80, Some(100_000)), None, "it would not pay");
        assert_eq!(learned(80, Some(0)), None);
        let held = learned(0, None);
        assert!(held.is_some(), "who holds frames for long need not poll");
    }

    #[test]
    fn a_worker_that_receives_at_a_high_rate_does_not_nap() {
        let short = learned(800, Some(40_000_000));
        assert!(
            short.is_some_and(|nap| nap > LEAST && nap < MOST),
            "{short:?}"
        );
        assert_eq!(learned(8_000, Some(40_000_000)), None);
    }

    #[test]
    fn nap_length_is_learned_again_in_each_window_and_kept_while_frames_wait() {
        let mut nap = Nap::new(0);
        let window = to_cycles(WINDOW) + 1;
        let long = || Some(1 << 30);
        assert_eq!(nap.next(window / 2, 10, || unreachable!()), None);
        assert_eq!(nap.next(window, 10, long), Some(MOST_PATIENT));
        let later = nap.next(window + window / 2, 10_000, || unreachable!());
        assert_eq!(later, Some(MOST_PATIENT));
        assert_eq!(nap.next(2 * window, 20_000, long), None);
        assert_eq!(nap.next(3 * window, 20_010, long), Some(MOST_PATIENT));
        nap.forget(3 * window + 2, 20_010);
        assert_eq!(nap.next(4 * window, 20_010, || unreachable!()), None);
        assert_eq!(nap.next(4 * window + 2, 20_010, long), Some(MOST_PATIENT));
    }
}
