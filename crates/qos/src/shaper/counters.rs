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

/// What a queue has sent so far.
#[derive(Default)]
#[repr(align(16))]
struct Sent {
    packets: Count,
    bytes: Count,
}

/// What has happened to few of its packets.
#[derive(Default)]
struct Rare {
    marked: Count,
    dropped: [Count; 4],
}

/// The counters of a port's queues, by their places; any thread may read them.
pub struct Counters {
    /// What every packet changes that leaves, close together, so that many queues' share a cache.
    sent: Many<Sent>,
    rare: Many<Rare>,
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

impl Counters {
    pub(crate) fn new(queues: usize) -> Counters {
        Counters {
            sent: Many::new(queues, (0..queues).map(|_| Sent::default())),
            rare: Many::new(queues, (0..queues).map(|_| Rare::default())),
            waiting: Many::new(queues, (0..queues).map(|_| AtomicU32::new(0))),
        }
    }

    /// What a queue has done.
    pub fn totals(&self, queue: usize) -> QueueTotals {
        let (sent, rare) = (&self.sent[queue], &self.rare[queue]);
        QueueTotals {
            packets: sent.packets.get(),
            bytes: sent.bytes.get(),
            marked: rare.marked.get(),
            dropped: std::array::from_fn(|at| rare.dropped[at].get()),
            waiting: self.waiting[queue].load(Ordering::Relaxed).into(),
        }
    }

    /// What each queue has done, in the order of their places.
    pub fn all(&self) -> impl Iterator<Item = QueueTotals> + '_ {
        (0..self.sent.len()).map(|queue| self.totals(queue))
    }

    /// So many packets of a queue have left, of so many bytes.
    #[inline(always)]
    pub(crate) fn send(&self, queue: usize, packets: u64, bytes: u64) {
        let sent = &self.sent[queue];
        sent.packets.add(packets);
        sent.bytes.add(bytes);
    }

    /// One of them was to be marked.
    #[cold]
    pub(crate) fn mark(&self, queue: usize) {
        self.rare[queue].marked.add(1);
    }

    /// A packet of a queue was dropped.
    #[cold]
    pub(crate) fn refuse(&self, queue: usize, reason: DropReason) {
        self.rare[queue].dropped[reason as usize].add(1);
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
        fetch(&self.sent[queue]);
    }

    /// A queue goes on from where another stopped.
    pub(crate) fn inherit(&self, queue: usize, old: QueueTotals) {
        let (sent, rare) = (&self.sent[queue], &self.rare[queue]);
        sent.packets.set(old.packets);
        sent.bytes.set(old.bytes);
        rare.marked.set(old.marked);
        for (count, old) in rare.dropped.iter().zip(old.dropped) {
            count.set(old);
        }
    }
}
