//! A gate in front of something that two sides use: workers, burst after burst, and whoever may take it away.
//!
//! A queue of a device must not be touched while the device is being reconfigured, and not at all once it is gone. Workers
//! enter the gate around every burst, which costs one atomic operation; the other side closes it, which waits until nobody
//! is inside. A queue object that outlives its device is then merely useless: its gate stays closed.

use std::sync::atomic::{AtomicBool, Ordering};

/// How often a sender looks again before it gives up on a queue that another worker holds. Each look after the first few
/// yields the core, so this is some tens of milliseconds even when that worker was preempted.
const PATIENCE: u32 = 100_000;
const SPINS: u32 = 200;

/// See the module. It has a cache line to itself, as gates stand in arrays and each is used by another worker.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Gate {
    /// Somebody is inside, or looks whether he may be.
    busy: AtomicBool,
    closed: AtomicBool,
}

/// Inside the gate until dropped.
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// A gate that lets in.
    pub(crate) fn open() -> Gate {
        Gate {
            busy: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// A gate that does not let in yet.
    pub(crate) fn closed() -> Gate {
        Gate {
            busy: AtomicBool::new(false),
            closed: AtomicBool::new(true),
        }
    }

    /// Goes in, unless the gate is closed or somebody is inside.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        // Either the one who closes sees that somebody is inside, or who comes in sees that it is closed: both write their own word before they read the
        // other's, in one order for all.
        if self.busy.swap(true, Ordering::SeqCst) {
            return None;
        }
        let inside = Inside(self);
        (!self.closed.load(Ordering::SeqCst)).then_some(inside)
    }

    /// Goes in, waiting a bounded time for whoever is inside. None when the gate is closed, or stays busy.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Inside<'_>> {
        self.try_enter().or_else(|| self.enter_slowly())
    }

    #[cold]
    fn enter_slowly(&self) -> Option<Inside<'_>> {
        for look in 0..PATIENCE {
            if self.closed.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(inside) = self.try_enter() {
                return Some(inside);
            }
            if look < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        None
    }

    /// Closes the gate and waits until nobody is inside. There is no limit to this wait because going on would free memory
    /// in use; what is done inside is one burst, which never blocks.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut looks = 0u32;
        while self.busy.load(Ordering::SeqCst) {
            looks = looks.saturating_add(1);
            if looks < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Lets in again.
    pub(crate) fn reopen(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn one_at_a_time_and_none_when_closed() {
        let gate = Gate::open();
        let inside = gate.try_enter().expect("open and free");
        assert!(gate.try_enter().is_none());
        drop(inside);
        assert!(gate.enter().is_some());
        gate.close();
        assert!(gate.try_enter().is_none());
        assert!(gate.enter().is_none());
        gate.reopen();
        assert!(gate.enter().is_some());
    }

    #[test]
    fn nobody_is_inside_after_close() {
        let gate = Gate::open();
        let stop = AtomicBool::new(false);
        let alive = AtomicBool::new(true);
        let bursts = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(_inside) = gate.enter() {
                            assert!(alive.load(Ordering::SeqCst), "used after close");
                            bursts.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let mut closings = 0;
            while closings < 200 || bursts.load(Ordering::Relaxed) < 1000 {
                closings += 1;
                gate.close();
                alive.store(false, Ordering::SeqCst);
                std::thread::yield_now();
                alive.store(true, Ordering::SeqCst);
                gate.reopen();
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
