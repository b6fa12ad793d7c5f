//! How a worker falls asleep without missing anything, and is woken.

use crate::sync::{AtomicBool, Ordering, fence};
use crate::wake::Wake;

/// Whether a worker sleeps, and what wakes it.
pub(crate) struct Sleeper {
    sleeping: AtomicBool,
    wake: Wake,
}

impl Sleeper {
    /// Creates it for a worker that is awake.
    pub fn new(wake: Wake) -> Sleeper {
        Sleeper {
            sleeping: AtomicBool::new(false),
            wake,
        }
    }

    /// Wakes the worker if it sleeps; to be called after putting something where it looks.
    pub fn nudge(&self) {
        // Pairs with the fence in `lie_down`: either the worker sees what was put, or this sees
        // that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed) {
            self.wake.raise();
        }
    }

    /// For the worker: announces that it is about to sleep. It must then look once more at all that
    /// others fill; only if there is nothing it waits for [`Sleeper::wake`], and then calls
    /// [`Sleeper::get_up`].
    pub fn lie_down(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// For the worker: ends its sleep, after somebody has raised its wake (`woken`) or for another
    /// reason.
    pub fn get_up(&self, woken: bool) {
        if woken {
            self.wake.clear();
        }
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Returns what wakes the worker.
    pub fn wake(&self) -> &Wake {
        &self.wake
    }
}
