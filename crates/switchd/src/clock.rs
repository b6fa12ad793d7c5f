//! Monotonic time that tests can stop. Timers of the control plane (idle and hard timeouts,
//! MAC ageing, back-off, probes) read this clock and not the kernel's, so that under
//! `--enable-dummy` the commands `time/stop` and `time/warp` can step a scenario of minutes in an
//! instant and with exact results, as Open vSwitch's own tests do.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Milliseconds added by warps; while the clock is stopped, the time itself.
static OFFSET: AtomicI64 = AtomicI64::new(0);
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Serialises `stop` and `warp`; readers need no lock.
static CHANGE: Mutex<()> = Mutex::new(());
static CHANGED: LazyLock<Notify> = LazyLock::new(Notify::new);

/// The longest step of one warp, about 24 days: timers add their spans to the time and must not
/// overflow.
const MAXIMUM_WARP: i64 = i32::MAX as i64;

/// The datapath's clock, which is stopped and warped along with this one.
static DATAPATH: std::sync::OnceLock<std::sync::Arc<datapath::clock::Clock>> =
    std::sync::OnceLock::new();

/// Ties the datapath's clock to this one; only the first call counts.
pub fn attach(clock: &std::sync::Arc<datapath::clock::Clock>) {
    let _ = DATAPATH.set(std::sync::Arc::clone(clock));
}

fn real() -> i64 {
    START.elapsed().as_millis() as i64
}

/// Milliseconds since the clock was first read; never goes back.
pub fn now() -> i64 {
    if STOPPED.load(Ordering::Acquire) {
        OFFSET.load(Ordering::Acquire)
    } else {
        real() + OFFSET.load(Ordering::Acquire)
    }
}

/// Returns whether `time/stop` holds the clock.
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Acquire)
}

/// Stops the clock. Only [`warp`] moves it afterwards.
pub fn stop() {
    let _guard = CHANGE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if !STOPPED.load(Ordering::Acquire) {
        OFFSET.fetch_add(real(), Ordering::AcqRel);
        STOPPED.store(true, Ordering::Release);
        if let Some(clock) = DATAPATH.get() {
            clock.stop();
        }
    }
    CHANGED.notify_waiters();
}

/// Moves the clock on by `milliseconds` (clamped to 0 ..= 2^31-1) and wakes everybody who sleeps on
/// it.
pub fn warp(milliseconds: i64) {
    let _guard = CHANGE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    let milliseconds = milliseconds.clamp(0, MAXIMUM_WARP);
    OFFSET.fetch_add(milliseconds, Ordering::AcqRel);
    if let Some(clock) = DATAPATH.get() {
        clock.warp(milliseconds as u64);
    }
    CHANGED.notify_waiters();
}

/// Sleeps until the clock shows `deadline` (milliseconds, as [`now`] counts).
pub async fn sleep_until(deadline: i64) {
    loop {
        // Registered before the clock is read, so a warp in between is not missed.
        let changed = CHANGED.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let left = deadline.saturating_sub(now());
        if left <= 0 {
            return;
        }
        if is_stopped() {
            changed.await;
        } else {
            let left = Duration::from_millis(left as u64);
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

/// Sleeps for `span` of this clock.
pub async fn sleep(span: Duration) {
    let span = i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    sleep_until(now().saturating_add(span)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only test here: the clock belongs to the whole process, and stays stopped.
    #[tokio::test]
    async fn stopped_time_moves_by_warps_alone() {
        let before = now();
        stop();
        let held = now();
        assert!(held >= before);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(now(), held);
        let sleeper = sleep_until(held + 1000);
        tokio::pin!(sleeper);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), &mut sleeper)
                .await
                .is_err()
        );
        warp(999);
        assert!(
            tokio::time::timeout(Duration::from_millis(20), &mut sleeper)
                .await
                .is_err()
        );
        warp(1);
        assert_eq!(now(), held + 1000);
        tokio::time::timeout(Duration::from_secs(10), sleeper)
            .await
            .expect("the warp wakes the sleeper");
        warp(-5);
        assert_eq!(now(), held + 1000);
        stop();
        assert_eq!(now(), held + 1000);
    }
}
