//! Panics. A panic of a worker costs the frames in its hands: the worker catches it, counts it and
//! continues. Any other panic ends the process at once, on whichever thread and whoever would catch
//! it (a task's `JoinHandle`, a thread's `join`, a callback from C): the thread's changes are half
//! done, a batch of rules stays open, and its work is no longer done, while everything else seems
//! to be fine. The monitor or the service manager sees a crash and restarts the daemon.

use std::panic::{self, PanicHookInfo};
use std::time::Duration;

use crate::vlog;

/// How long to wait until the last lines have reached the log.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Seconds after which the process ends even if its last lines cannot be written, because the
/// thread panicked with a lock held that writing them needs.
const LIMIT: u32 = 5;

/// Installs the hook that logs panics and ends the process as described above. The stack is not
/// unwound first, so that a core file shows the place.
pub fn install() {
    panic::set_hook(Box::new(|information| {
        if datapath::catches_panics() {
            log(information);
            return;
        }
        // SAFETY: alarm takes a number of seconds. The signal's default action, which nobody
        // changes, ends the process.
        unsafe { libc::alarm(LIMIT) };
        log(information);
        if std::thread::current().name() == Some(vlog::WRITER) {
            // No other thread writes queued log lines.
            eprintln!("{information}");
        } else {
            vlog::flush(LAST_LINES);
        }
        std::process::abort();
    }));
}

fn log(information: &PanicHookInfo<'_>) {
    vlog::emergency("util", &format!("assertion failed: {information}"));
}
