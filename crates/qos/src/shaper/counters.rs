//! What a queue has done, for others to read while its shaper works.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// It could not have left within the queue's bound.
    OverBound,
    /// The queue was full.
    QueueFull,
    /// The port's queues together were full.
    PortFull,
    /// It had waited longer than the bound when its turn came.
    Late,
}

/// Every reason and its name, in the order of [`QueueTotals::dropped`].
pub const DROP_REASONS: [(DropReason, &str); 4] = [
    (DropReason::OverBound, "over_bound"),
    (DropReason::QueueFull, "queue_full"),
    (DropReason::PortFull, "port_full"),
    (DropReason::Late, "late"),
];

/// A counter that one thread writes.
#[derive(Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline(always)]
    pub fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    #[inline(always)]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A queue's counters.
#[derive(Default)]
#[repr(align(64))]
pub struct QueueCounters {
    pub(crate) sent_packets: Count,
    pub(crate) sent_bytes: Count,
    pub(crate) marked: Count,
    pub(crate) dropped: [Count; 4],
    /// Packets that wait.
    pub(crate) waiting: Count,
}

/// What a queue's counters show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueTotals {
    /// Packets sent.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Of them those that were to be marked.
    pub marked: u64,
    /// Packets dropped, by [`DROP_REASONS`].
    pub dropped: [u64; 4],
    /// Packets that wait.
    pub waiting: u64,
}

impl QueueTotals {
    /// Packets dropped for any reason.
    pub fn dropped_packets(&self) -> u64 {
        self.dropped.iter().sum()
    }
}

impl QueueCounters {
    /// What they show now.
    pub fn totals(&self) -> QueueTotals {
        QueueTotals {
            packets: self.sent_packets.get(),
            bytes: self.sent_bytes.get(),
            marked: self.marked.get(),
            dropped: std::array::from_fn(|at| self.dropped[at].get()),
            waiting: self.waiting.get(),
        }
    }

    pub(crate) fn drop(&self, reason: DropReason) {
        self.dropped[reason as usize].add(1);
    }

    /// Goes on from where another stopped.
    pub(crate) fn inherit(&self, old: QueueTotals) {
        self.sent_packets.set(old.packets);
        self.sent_bytes.set(old.bytes);
        self.marked.set(old.marked);
        for (count, old) in self.dropped.iter().zip(old.dropped) {
            count.set(old);
        }
    }
}
