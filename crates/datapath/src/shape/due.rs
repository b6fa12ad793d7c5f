//! What is said beside a shaper of what is in it: when its owner has something to do next, and
//! whether it has come to its end.

use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Of no time at all.
const NEVER: u64 = u64::MAX;

/// When the next frame may leave.
///
/// It lies with the shaper and not with the owner, for there may be two who take themselves for
/// that: while owners change, one is told before the other. Whoever has had the shaper in hand says
/// here what he has left in it; so the owner knows of frames that another has put there.
pub(super) struct Due {
    next_ns: AtomicU64,
    ended: AtomicBool,
}

impl Due {
    /// Of an empty shaper.
    pub fn new() -> Due {
        Due {
            next_ns: AtomicU64::new(NEVER),
            ended: AtomicBool::new(false),
        }
    }

    /// For whoever has the shaper in hand: when the next frame may leave, in nanoseconds of the
    /// clock; none where none waits.
    #[inline]
    pub fn set(&self, due_ns: Option<u64>) {
        // Who is about to sleep sees it by the fences of `Sleeper`.
        self.next_ns
            .store(due_ns.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// What has been said last.
    #[inline]
    pub fn get(&self) -> Option<u64> {
        let due_ns = self.next_ns.load(Ordering::Relaxed);
        (due_ns != NEVER).then_some(due_ns)
    }

    /// For the owner, who is about to empty the shaper and its ring for good.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        // Pairs with that in `has_ended`: the owner finds what was put in, or who has put it there
        // finds that it has ended.
        fence(Ordering::SeqCst);
    }

    /// For one who puts nothing in any more: whether the owner has emptied it, perhaps before he
    /// found what this one has put there, who takes it out himself then.
    pub fn has_ended(&self) -> bool {
        fence(Ordering::SeqCst);
        self.ended.load(Ordering::Relaxed)
    }
}
