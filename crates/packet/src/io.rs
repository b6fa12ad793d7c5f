//! How frames come in and go out. `ports` implements these traits on real devices, tests on
//! vectors.
//!
//! A port is opened by the control thread, which keeps what it needs to change and close it, and
//! hands each receive queue to one worker and a transmit queue to every worker. Queues are owned by
//! their worker, so no call here takes a lock that another worker may hold for long.

use crate::frame::Frame;
use std::os::fd::RawFd;

/// Frames handled at a time. What a turn and a burst cost by themselves is shared by this many;
/// twice as many would no longer fit a first-level cache.
pub const BURST: usize = 64;

/// A receive queue, owned by one worker.
pub trait RxQueue<F: Frame>: Send {
    /// Receives up to [`BURST`] frames, appending them to `out`, and returns how many. Never
    /// blocks.
    fn receive(&mut self, out: &mut Vec<F>) -> usize;

    /// A descriptor that becomes readable when `receive` may return something, if there is one that
    /// can be waited on.
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Whether looking for frames in vain costs a system call, so that a worker that is busy with
    /// other queues looks less often. May change with a `receive`; workers ask now and then.
    fn is_costly(&self) -> bool {
        self.wait_fd().is_some()
    }

    /// Whether `wait_fd` stays the same from one `receive` to the next, and tells of frames by
    /// itself: then nobody need look at the queue until it does, however long that takes.
    fn is_steady(&self) -> bool {
        false
    }

    /// Whether no frame can come before whoever is at the other end has done something that may
    /// take a millisecond, such as a guest that does not use this queue of its device: it is looked
    /// at about that often.
    fn is_dormant(&self) -> bool {
        false
    }

    /// How long the first frame of the last burst had waited to be received, in nanoseconds, where
    /// that is known; else 0.
    fn waited_ns(&self) -> u64 {
        0
    }

    /// Called before the worker waits on `wait_fd`: asks for a wake-up (guest notifications on a
    /// vring). True when frames arrived meanwhile, so that the worker must not sleep.
    fn arm(&mut self) -> bool {
        false
    }

    /// Called when the worker is awake again: notifications are no longer needed.
    fn disarm(&mut self) {}

    /// Whether no frame of this queue comes with work left to be done to it ([`crate::Offload`]),
    /// so that nobody need ask before it is sent as it came. Always the same.
    fn never_offloads(&self) -> bool {
        false
    }

    /// Counts of frames lost inside the queue, by reason.
    fn drops(&self) -> QueueDrops {
        QueueDrops::default()
    }
}

/// A transmit queue, owned by one worker.
pub trait TxQueue<F: Frame>: Send {
    /// Sends all frames in `frames`, in order, and leaves it empty. Frames that could not be sent
    /// are dropped. Segmentation and checksums that the device cannot do are done here in
    /// software. Never blocks.
    fn send(&mut self, frames: &mut Vec<F>) -> TxOutcome;

    /// [`TxQueue::send`] for frames to which nothing is left to be done ([`crate::Offload`]), and
    /// which are so long.
    fn send_finished(&mut self, frames: &mut Vec<F>, lengths: Lengths) -> TxOutcome {
        let _ = lengths;
        self.send(frames)
    }
}

/// How long some frames are.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of all of them.
    pub bytes: u64,
    /// No frame has more bytes: their numbers or-ed, which one instruction does, where the longest
    /// takes two and is only asked where this is too much.
    pub most: u64,
}

impl Lengths {
    /// Of one frame.
    #[inline(always)]
    pub fn of(len: usize) -> Lengths {
        Lengths {
            bytes: len as u64,
            most: len as u64,
        }
    }

    /// One more frame, of `len` bytes.
    #[inline(always)]
    pub fn add(&mut self, len: usize) {
        self.bytes += len as u64;
        self.most |= len as u64;
    }
}

/// What became of the frames given to [`TxQueue::send`]. Frames after segmentation are counted as
/// the device counts them.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct TxOutcome {
    /// Frames sent.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that the device had no room for.
    pub full: u64,
    /// Frames longer than the device takes.
    pub too_long: u64,
    /// Frames that asked to be cut into segments that are too small, or too many
    /// ([`crate::segment::SegmentError::Size`]).
    pub tiny_segments: u64,
    /// Frames lost to an error or to exhausted memory.
    pub failed: u64,
}

impl std::ops::AddAssign for TxOutcome {
    fn add_assign(&mut self, other: TxOutcome) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.full += other.full;
        self.too_long += other.too_long;
        self.tiny_segments += other.tiny_segments;
        self.failed += other.failed;
    }
}

/// Frames lost while receiving.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct QueueDrops {
    /// Lost in the kernel or device because nobody fetched them in time.
    pub missed: u64,
    /// Refused because they were malformed (lengths that lie).
    pub malformed: u64,
    /// No buffer to hold them.
    pub no_buffer: u64,
}
