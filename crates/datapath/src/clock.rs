//! Time as workers see it: cycles for accounting, milliseconds for rules and learned addresses.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use program::clock::cycles;

/// Returns the frequency of [`cycles`], measured once, over some milliseconds.
pub fn cycles_per_second() -> u64 {
    static RATE: OnceLock<u64> = OnceLock::new();
    *RATE
        .get_or_init(|| {
            let (start, from) = (Instant::now(), cycles());
            std::thread::sleep(Duration::from_millis(10));
            let (elapsed, spent) = (start.elapsed(), cycles().wrapping_sub(from));
            ((u128::from(spent) * 1_000_000_000) / elapsed.as_nanos().max(1)) as u64
        })
        .max(&1)
}

/// The datapath's clock: `CLOCK_MONOTONIC`, except that it can be stopped and moved forward
/// (`time/stop`, `time/warp`).
#[derive(Default, Debug)]
pub struct Clock {
    /// Milliseconds added to the monotonic clock.
    offset: AtomicI64,
    /// The time at which the clock is stopped; 0 when it runs.
    stopped: AtomicU64,
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn monotonic_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

impl Clock {
    /// Returns the time in milliseconds. Never 0, which counters use for "never".
    #[inline]
    pub fn now_ms(&self) -> u64 {
        let stopped = self.stopped.load(Ordering::Relaxed);
        if stopped != 0 {
            return stopped;
        }
        let offset = self.offset.load(Ordering::Relaxed);
        monotonic_ms().saturating_add_signed(offset).max(1)
    }

    /// Returns the time in nanoseconds, for rates.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        let stopped = self.stopped.load(Ordering::Relaxed);
        if stopped != 0 {
            return stopped.saturating_mul(1_000_000);
        }
        let offset = self.offset.load(Ordering::Relaxed);
        monotonic_ns().saturating_add_signed(offset.saturating_mul(1_000_000))
    }

    /// Stops the clock.
    pub fn stop(&self) {
        self.stopped.store(self.now_ms(), Ordering::Relaxed);
    }

    /// Lets a stopped clock continue from its time.
    pub fn go(&self) {
        let shown = self.stopped.swap(0, Ordering::Relaxed);
        if shown != 0 {
            let offset = (shown as i64).wrapping_sub(monotonic_ms() as i64);
            self.offset.store(offset, Ordering::Relaxed);
        }
    }

    /// Moves the clock forward, running or not.
    pub fn warp(&self, ms: u64) {
        if self.stopped.load(Ordering::Relaxed) != 0 {
            self.stopped.fetch_add(ms, Ordering::Relaxed);
        } else {
            let ms = i64::try_from(ms).unwrap_or(i64::MAX);
            self.offset.fetch_add(ms, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_moves_only_when_warped_and_never_back() {
        let clock = Clock::default();
        let before = clock.now_ms();
        clock.warp(10_000);
        clock.stop();
        let stopped = clock.now_ms();
        assert!(stopped >= before + 10_000);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(clock.now_ms(), stopped);
        clock.warp(500);
        assert_eq!(clock.now_ms(), stopped + 500);
        clock.go();
        assert!(clock.now_ms() >= stopped + 500);
    }
}
