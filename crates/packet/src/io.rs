//! Traits of queues that receive and send frames. `ports` implements them for real devices, tests
//! for vectors.
//!
//! The control thread opens a port and keeps what it needs to change and close it. It gives each
//! receive queue to one worker and a transmit queue to every worker. Each queue is owned by its
//! worker, so no method here takes a lock that another worker may hold for long.

use crate::frame::Frame;
use std::os::fd::RawFd;

/// Maximum number of frames in a burst. The fixed costs of a turn and a burst are divided by this
/// many; twice as many would no longer fit a first-level cache.
pub const BURST: usize = 64;

/// A receive queue, owned by one worker.
pub trait RxQueue<F: Frame>: Send {
    /// Receives up to [`BURST`] frames, appending them to `out`, and returns how many. Never
    /// blocks.
    fn receive(&mut self, out: &mut Vec<F>) -> usize;

    /// Like `receive`, where the frames of the last call have not been processed yet.
    fn receive_more(&mut self, out: &mut Vec<F>) -> usize {
        self.receive(out)
    }

    /// Sets how many frames `receive` returns at most from now on, 1 to [`BURST`]; a queue may
    /// round up to what its device can do. A worker asks for fewer where each takes it long.
    fn limit(&mut self, most: usize) {
        let _ = most;
    }

    /// Returns a descriptor that becomes readable when `receive` may return frames; None if there
    /// is none that can be waited on.
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Returns whether polling an empty queue costs a system call, so that a worker that is busy
    /// with other queues polls it less often. May change with a `receive`; workers ask now and
    /// then.
    fn is_costly(&self) -> bool {
        self.wait_fd().is_some()
    }

    /// Returns whether `wait_fd` stays the same between calls of `receive` and reports every
    /// arrival by itself, so that the queue need not be polled until then, however long that
    /// takes.
    fn is_steady(&self) -> bool {
        false
    }

    /// Returns whether no frame can come until the other end has done something that may take a
    /// millisecond: for example, a guest that does not use this queue of its device. Workers then
    /// poll the queue about once a millisecond.
    fn is_dormant(&self) -> bool {
        false
    }

    /// Returns how long the first frame of the last burst had waited to be received, in
    /// nanoseconds; 0 if unknown.
    fn waited_ns(&self) -> u64 {
        0
    }

    /// Asks for a wake-up (guest notifications on a vring), before the worker waits on `wait_fd`.
    /// Returns true if frames arrived meanwhile, so that the worker must not sleep.
    fn arm(&mut self) -> bool {
        false
    }

    /// Turns notifications off again, when the worker is awake.
    fn disarm(&mut self) {}

    /// Returns whether no frame of this queue ever carries offload work ([`crate::Offload`]), so
    /// that senders need not check. The answer never changes.
    fn never_offloads(&self) -> bool {
        false
    }

    /// Returns the number of frames lost inside the queue, by reason.
    fn drops(&self) -> QueueDrops {
        QueueDrops::default()
    }
}

/// The indirection table (RETA) of a device with several receive queues: the packets of one hash go
/// to the queue of one entry. Entries move without reordering packets: the new queue keeps those of
/// an entry that moves until the old one has handed out all of its own.
pub trait Indirection: Send + Sync {
    /// Returns the number of entries.
    fn entries(&self) -> usize;

    /// Returns the index of the queue that an entry leads to.
    fn queue(&self, entry: usize) -> u16;

    /// Sets whether packets are counted by entry.
    fn watch(&self, on: bool);

    /// Returns the number of packets of an entry so far, extrapolated from samples.
    fn packets(&self, entry: usize) -> u64;

    /// Begins to move entries to other queues, as pairs of an entry and a queue's index. Returns
    /// false, and does nothing, while earlier moves have not ended, if the device is closed, or if
    /// there is no such entry or queue.
    fn begin_moves(&self, moves: &[(u16, u16)]) -> bool;

    /// Returns what has become of moves so far.
    fn counts(&self) -> IndirectionCounts;
}

/// What has become of moves of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndirectionCounts {
    /// Moves done.
    pub moved: u64,
    /// Of these, moves in which packets may have been reordered: more came than can be kept, or the
    /// old queue was not emptied in time.
    pub hurried: u64,
    /// Moves that the device refused.
    pub failed: u64,
    /// Frames that wait now for a move to end.
    pub parked: u64,
}

/// A transmit queue, owned by one worker.
pub trait TxQueue<F: Frame>: Send {
    /// Sends all frames in order and leaves `frames` empty. Drops frames that cannot be sent. Does
    /// in software the segmentation and checksums that the device cannot do. Never blocks.
    fn send(&mut self, frames: &mut Vec<F>) -> TxOutcome;

    /// Like [`TxQueue::send`], for frames without offload work ([`crate::Offload`]) whose lengths
    /// are known.
    fn send_finished(&mut self, frames: &mut Vec<F>, lengths: Lengths) -> TxOutcome {
        let _ = lengths;
        self.send(frames)
    }
}

/// Lengths of a batch of frames.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Total bytes.
    pub bytes: u64,
    /// An upper bound on each frame's length: all lengths or-ed. That takes one instruction per
    /// frame, a maximum two; the maximum is computed only if this bound is too large.
    pub most: u64,
}

impl Lengths {
    /// Returns the lengths of one frame of `len` bytes.
    #[inline(always)]
    pub fn of(len: usize) -> Lengths {
        Lengths {
            bytes: len as u64,
            most: len as u64,
        }
    }

    /// Adds a frame of `len` bytes.
    #[inline(always)]
    pub fn add(&mut self, len: usize) {
        self.bytes += len as u64;
        self.most |= len as u64;
    }
}

/// What became of the frames given to [`TxQueue::send`]. Segmented frames are counted as the device
/// counts them.
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
    /// Frames that nobody fetched in time, lost in the kernel or device.
    pub missed: u64,
    /// Frames refused because their lengths were invalid.
    pub malformed: u64,
    /// Frames for which there was no buffer.
    pub no_buffer: u64,
}
