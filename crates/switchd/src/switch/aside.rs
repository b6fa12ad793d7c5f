//! Calls that open, close and change devices, made on a thread of their own, one after the other.
//!
//! Most of them wait for the kernel's lock of all network devices, which whoever deletes a network
//! namespace may have for seconds, and a DPDK device takes as long to start. Control answers
//! controllers meanwhile. Who changes the configuration waits for each call before the next one
//! ([`crate::switch::Switch::apply`]).

use std::sync::mpsc::{Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::sync::oneshot;

/// Bytes of the thread's stack: it runs DPDK's drivers.
const STACK: usize = 2 << 20;

type Job = Box<dyn FnOnce() + Send>;

/// Where calls go; None where there is no thread. Control has a call or two under way at a time, so
/// there are few.
static CALLS: OnceLock<Option<Sender<Job>>> = OnceLock::new();

/// Calls under way, with those that wait.
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

/// Starts the thread. It inherits the caller's processors, and others that it starts inherit its.
fn start() -> Option<Sender<Job>> {
    let (calls, called) = channel::<Job>();
    let thread = std::thread::Builder::new()
        .name("devices".to_owned())
        .stack_size(STACK);
    let begun = thread.spawn(move || {
        for job in called {
            // One that fails (which ends the daemon) must not leave others waiting.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    });
    match begun {
        Ok(_) => Some(calls),
        Err(error) => {
            tracing::warn!(target: "bridge", "no thread to open devices: {error}; control waits for them");
            None
        }
    }
}

/// Makes a call without waiting for it; [`finish`] does.
pub fn post(act: impl FnOnce() + Send + 'static) {
    let count = Count::new();
    let job: Job = Box::new(move || {
        act();
        drop(count);
    });
    match CALLS.get_or_init(start) {
        Some(calls) => {
            if let Err(unsent) = calls.send(job) {
                (unsent.0)();
            }
        }
        None => job(),
    }
}

/// Makes a call, at once and after those made before; returns a future for its result, None if it
/// panicked. If the future is dropped the call is made all the same, and its result is dropped by
/// the thread, unless it is there already.
pub fn call<R, F>(act: F) -> impl Future<Output = Option<R>> + use<R, F>
where
    R: Send + 'static,
    F: FnOnce() -> R + Send + 'static,
{
    let (answer, answered) = oneshot::channel();
    // A result that nobody takes is dropped here, before the call counts as finished.
    post(move || drop(answer.send(act())));
    async move { answered.await.ok() }
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
