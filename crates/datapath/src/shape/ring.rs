//! Frames that other workers have sent to a shaped port.

use crate::sync::{ArrayQueue, AtomicU32, AtomicU64, Ordering};

/// Most frames that wait in a port's ring.
pub(super) const RING: usize = 4096;
/// Most bytes that wait in it of frames that take several buffers: so it holds no more buffers than
/// [`RING`] and 4,096.
const LONG_BYTES: u64 = 8 << 20;
/// The longest frame that takes one buffer.
const SHORT: usize = 2048;
/// Queues that have a count of their own in the ring; others share one with them.
const SHARES: usize = 256;

/// A frame on its way to the owner.
pub(super) struct Arrival<F> {
    pub frame: F,
    /// When it was sent to the port.
    pub at_ns: u64,
    pub queue: Option<u32>,
    pub flow: u32,
    /// Its bytes, if it takes several buffers; else 0. See [`long_bytes`].
    pub long: u32,
}

/// Returns how much of [`LONG_BYTES`] a frame of this length uses.
#[inline]
pub(super) fn long_bytes(len: usize) -> u32 {
    if len > SHORT { len as u32 } else { 0 }
}

/// The ring of frames that other workers have sent.
///
/// A queue may use no more of the ring than it leaves free, so that a flood to one queue does not
/// block other queues' frames, as in the shaper itself.
pub(super) struct Ring<F> {
    frames: ArrayQueue<Arrival<F>>,
    /// Bytes of frames that take several buffers.
    long: AtomicU64,
    /// Frames in it, by queue.
    shares: [AtomicU32; SHARES],
}

impl<F> Ring<F> {
    pub fn new() -> Ring<F> {
        Ring {
            frames: ArrayQueue::new(RING),
            long: AtomicU64::new(0),
            shares: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    /// Returns the number of frames in it.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    fn share(&self, queue: Option<u32>) -> &AtomicU32 {
        &self.shares[queue.unwrap_or(0) as usize % SHARES]
    }

    /// Puts a frame in; returns false where the frame's queue has no room, and drops the frame.
    pub fn push(&self, arrival: Arrival<F>) -> bool {
        let share = self.share(arrival.queue);
        let long = u64::from(arrival.long);
        if long > 0 && self.long.fetch_add(long, Ordering::Relaxed) + long > LONG_BYTES {
            self.long.fetch_sub(long, Ordering::Relaxed);
            return false;
        }
        let free = RING - self.len();
        if share.fetch_add(1, Ordering::Relaxed) as usize >= free {
            self.count_out(&arrival);
            return false;
        }
        let pushed = self.frames.push(arrival);
        pushed.map_err(|arrival| self.count_out(&arrival)).is_ok()
    }

    fn count_out(&self, arrival: &Arrival<F>) {
        let share = self.share(arrival.queue);
        share.fetch_sub(1, Ordering::Relaxed);
        if arrival.long > 0 {
            self.long.fetch_sub(arrival.long.into(), Ordering::Relaxed);
        }
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
            long: 0,
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

    #[test]
    fn long_frames_hold_only_so_many_buffers() {
        let ring = Ring::new();
        let arrival = |len| Arrival {
            frame: (),
            at_ns: 0,
            queue: None,
            flow: 0,
            long: long_bytes(len),
        };
        for _ in 0..3 {
            let taken = (0..RING).filter(|_| ring.push(arrival(65_536))).count();
            assert_eq!(taken, 128);
            assert!(ring.push(arrival(2048)), "short ones are counted only");
            while ring.pop().is_some() {}
            assert_eq!(ring.long.load(Ordering::Relaxed), 0);
        }
    }
}
