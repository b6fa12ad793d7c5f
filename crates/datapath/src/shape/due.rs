//! What is noted beside a shaper about its contents: when its owner has something to do next, and
//! whether it has come to its end.

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Stands for "no frame waits".
const NEVER: u64 = u64::MAX;

/// When the next frame may leave.
///
/// It is kept beside the shaper and not by the owner, because two workers may take themselves for
/// the owner: while owners change, one is told before the other. Whoever has had the shaper locked
/// notes here what is left in it; so the owner knows of frames that another has put there.
pub(super) struct Due {
    next_ns: AtomicU64,
    ended: AtomicBool,
}

impl Due {
    /// Creates it for an empty shaper.
    pub fn new() -> Due {
        Due {
            next_ns: AtomicU64::new(NEVER),
            ended: AtomicBool::new(false),
        }
    }

    /// For the worker that has the shaper locked: sets when the next frame may leave, in
    /// nanoseconds of the clock; None where none waits.
    #[inline]
    pub fn set(&self, due_ns: Option<u64>) {
        // A worker about to sleep sees it by the fences of `Sleeper`.
        self.next_ns
            .store(due_ns.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Returns when the next frame may leave.
    #[inline]
    pub fn get(&self) -> Option<u64> {
        let due_ns = self.next_ns.load(Ordering::Relaxed);
        (due_ns != NEVER).then_some(due_ns)
    }

    /// For the owner, which is about to empty the shaper and its ring for good.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        // Pairs with the fence in `has_ended`: either the owner finds what was put in, or the
        // worker that put it there finds that the shaper has ended.
        fence(Ordering::SeqCst);
    }

    /// For a worker that puts nothing in any more: returns whether the owner has emptied the
    /// shaper, perhaps before this worker's last frames, which it must then take out itself.
    pub fn has_ended(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ended.load(Ordering::Relaxed)
    }
}
