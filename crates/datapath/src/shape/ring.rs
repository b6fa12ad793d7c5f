//! Frames that other workers have sent to a shaped port.

use crate::sync::{ArrayQueue, AtomicU32, Ordering};

/// Frames that may wait in a port's ring.
pub(super) const RING: usize = 4096;
/// Queues that have a count of their own in the ring; others share one with them.
const SHARES: usize = 256;

/// A frame on its way to the owner.
pub(super) struct Arrival<F> {
    pub frame: F,
    /// When it came.
    pub at_ns: u64,
    pub queue: Option<u32>,
    pub flow: u32,
}

/// Frames that other workers have sent.
///
/// A queue may use no more of the ring than it leaves free, so that a flood to one queue does not keep others' frames out, as in the shaper itself.
pub(super) struct Ring<F> {
    frames: ArrayQueue<Arrival<F>>,
    /// Frames in it, by queue.
    shares: [AtomicU32; SHARES],
}

impl<F> Ring<F> {
    pub fn new() -> Ring<F> {
        Ring {
            frames: ArrayQueue::new(RING),
            shares: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn share(&self, queue: Option<u32>) -> &AtomicU32 {
        &self.shares[queue.unwrap_or(0) as usize % SHARES]
    }

    /// False where the frame's queue has no room, and the frame is gone.
    pub fn push(&self, arrival: Arrival<F>) -> bool {
        let share = self.share(arrival.queue);
        let free = RING - self.len();
        if share.fetch_add(1, Ordering::Relaxed) as usize >= free {
            share.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let pushed = self.frames.push(arrival);
        pushed.map_err(|arrival| self.count_out(&arrival)).is_ok()
    }

    fn count_out(&self, arrival: &Arrival<F>) {
        let share = self.share(arrival.queue);
        share.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn pop(&self) -> Option<Arrival<F>> {
        let arrival = self.frames.pop()?;
        self.count_out(&arrival);
        Some(arrival)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_room_in_the_ring() {
        let ring = Ring::new();
        let arrival = |queue| Arrival {
            frame: (),
            at_ns: 0,
            queue: Some(queue),
            flow: 0,
        };
        for flooded in 1..=5 {
            let taken = (0..RING).filter(|_| ring.push(arrival(flooded))).count();
            assert!(taken >= RING / 64, "{taken} of queue {flooded}");
            let quiet = 100 + flooded;
            assert!(ring.push(arrival(quiet)), "with {flooded} floods");
        }
        let left = std::iter::from_fn(|| ring.pop()).count();
        assert!(left > RING / 2 && left <= RING, "{left}");
        let shares = ring.shares.iter();
        assert!(
            shares
                .into_iter()
                .all(|share| share.load(Ordering::Relaxed) == 0)
        );
    }
}
