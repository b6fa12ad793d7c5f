//! What a panic does. One of a worker costs the frames in its hands: the worker catches it, counts
//! it and goes on. Any other ends the process at once, whichever thread it is on and whoever would
//! catch it (a task's `JoinHandle`, a thread's `join`, a callback from C): what that thread was
//! changing is half done, a batch of rules stays open, and what it did is done no more, while
//! everything else looks well. The monitor or the service manager sees a process that has crashed
//! and starts another.

use std::panic::{self, PanicHookInfo};
use std::time::Duration;

use crate::vlog;

/// How long the last lines get to reach the log.
const LAST_LINES: Duration = Duration::from_secs(1);
/// After how many seconds the process ends although its last lines cannot be written, because the
/// panic came while something was locked that writing them needs.
const LIMIT: u32 = 5;

/// From now on panics are logged, where a daemon's operator looks, and end the process as said
/// above. They do not unwind first, so a core file shows where.
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
            // Nobody else writes what has been logged.
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
