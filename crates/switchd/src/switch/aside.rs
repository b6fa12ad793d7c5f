//! Calls that open, close and change devices, made on threads of tokio's pool.
//!
//! Most of them wait for the kernel's lock of all network devices, which whoever deletes a network
//! namespace may have for seconds, and a DPDK device takes as long to start. Control answers
//! controllers meanwhile. Who changes the configuration waits for each call before the next one
//! ([`crate::switch::Switch::apply`]), so calls about one device never overlap.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Calls under way.
static RUNNING: Mutex<usize> = Mutex::new(0);
static FEWER: Condvar = Condvar::new();

fn running() -> MutexGuard<'static, usize> {
    RUNNING
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Counts a call until it is dropped.
struct Count;

impl Count {
    fn new() -> Count {
        *running() += 1;
        Count
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        *running() -= 1;
        FEWER.notify_all();
    }
}

/// Makes a call and waits for it while other tasks run; None if it panicked (which ends the
/// process) or the runtime is shutting down. If the future is dropped the call is made all the
/// same, and its result is dropped.
pub async fn call<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let count = Count::new();
    let call = tokio::task::spawn_blocking(move || {
        let result = act();
        drop(count);
        result
    });
    call.await.ok()
}

/// Waits until no call is under way, for this long at most; returns whether that is so. Before DPDK
/// is shut down, whose devices calls may use.
pub fn finish(limit: Duration) -> bool {
    let waited = FEWER.wait_timeout_while(running(), limit, |running| *running > 0);
    match waited {
        Ok((running, _)) => *running == 0,
        Err(poisoned) => *poisoned.into_inner().0 == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn other_tasks_run_during_a_call_and_the_end_waits_for_it() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let (go, wait) = channel();
        let result = runtime.block_on(async {
            let slow = call(move || wait.recv_timeout(LONG).map(|()| 7));
            let other = async {
                assert!(!finish(Duration::from_millis(1)), "it has not begun to end");
                go.send(()).unwrap();
            };
            tokio::join!(slow, other).0
        });
        assert_eq!(result, Some(Ok(7)));
        assert!(finish(LONG));
        // A call whose caller has gone ends as well.
        let (go, wait) = channel();
        let (done, ended) = channel();
        runtime.block_on(async {
            let call = call(move || {
                wait.recv_timeout(LONG).unwrap();
                done.send(()).unwrap();
            });
            assert!(tokio::time::timeout(Duration::ZERO, call).await.is_err());
        });
        go.send(()).unwrap();
        ended.recv_timeout(LONG).unwrap();
        assert!(finish(LONG));
    }
}
