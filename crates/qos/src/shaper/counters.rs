//! What a queue has done, for others to read while its shaper works.

use super::prefetch::{Many, fetch};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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

/// What a queue has done so far.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct QueueCounters {
    pub sent_packets: Count,
    pub sent_bytes: Count,
    pub marked: Count,
    dropped: [Count; 4],
}

/// The counters of a port's queues, by their places; any thread may read them.
pub struct Counters {
    queues: Many<QueueCounters>,
    /// Packets that wait. They lie apart, since this is all that a packet changes when it comes.
    waiting: Many<AtomicU32>,
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
    pub fn drop(&self, reason: DropReason) {
        self.dropped[reason as usize].add(1);
    }
}

impl Counters {
    pub(crate) fn new(queues: usize) -> Counters {
        Counters {
            queues: Many::new(queues, (0..queues).map(|_| QueueCounters::default())),
            waiting: Many::new(queues, (0..queues).map(|_| AtomicU32::new(0))),
        }
    }

    /// What a queue has done.
    pub fn totals(&self, queue: usize) -> QueueTotals {
        let counters = &self.queues[queue];
        QueueTotals {
            packets: counters.sent_packets.get(),
            bytes: counters.sent_bytes.get(),
            marked: counters.marked.get(),
            dropped: std::array::from_fn(|at| counters.dropped[at].get()),
            waiting: self.waiting[queue].load(Ordering::Relaxed).into(),
        }
    }

    /// What each queue has done, in the order of their places.
    pub fn all(&self) -> impl Iterator<Item = QueueTotals> + '_ {
        (0..self.queues.len()).map(|queue| self.totals(queue))
    }

    #[inline(always)]
    pub(crate) fn of(&self, queue: usize) -> &QueueCounters {
        &self.queues[queue]
    }

    /// So many packets of a queue wait now.
    #[inline(always)]
    pub(crate) fn wait(&self, queue: usize, packets: u32) {
        self.waiting[queue].store(packets, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn fetch_waiting(&self, queue: usize) {
        fetch(&self.waiting[queue]);
    }

    #[inline(always)]
    pub(crate) fn fetch(&self, queue: usize) {
        fetch(&self.queues[queue]);
    }

    /// A queue goes on from where another stopped.
    pub(crate) fn inherit(&self, queue: usize, old: QueueTotals) {
        let counters = &self.queues[queue];
        counters.sent_packets.set(old.packets);
        counters.sent_bytes.set(old.bytes);
        counters.marked.set(old.marked);
        for (count, old) in counters.dropped.iter().zip(old.dropped) {
            count.set(old);
        }
    }
}
