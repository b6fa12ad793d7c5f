//! Counters of queues, which any thread may read while the shaper works.

use super::prefetch::{Many, fetch};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// It could not have left within the queue's bound.
    OverBound,
    /// The queue was full.
    QueueFull,
    /// The port's shared room was used up.
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

/// Counters that every sent packet changes.
#[derive(Default)]
#[repr(align(16))]
struct Sent {
    packets: Count,
    bytes: Count,
}

/// Counters that few packets change.
#[derive(Default)]
struct Rare {
    marked: Count,
    dropped: [Count; 4],
}

/// The counters of a port's queues, by place; any thread may read them.
pub struct Counters {
    /// Kept compact, since every departure changes it: the counters of many queues fit the cache.
    sent: Many<Sent>,
    rare: Many<Rare>,
    /// Waiting packets; kept apart, since this is all that an arrival changes.
    waiting: Many<AtomicU32>,
}

/// A snapshot of a queue's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueTotals {
    /// Packets sent.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Packets of these that were to be ECN-marked.
    pub marked: u64,
    /// Packets dropped, by [`DROP_REASONS`].
    pub dropped: [u64; 4],
    /// Packets waiting.
    pub waiting: u64,
}

impl QueueTotals {
    /// Returns the packets dropped for any reason.
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

    /// Returns a queue's counters.
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

    /// Returns the counters of all queues, by place.
    pub fn all(&self) -> impl Iterator<Item = QueueTotals> + '_ {
        (0..self.sent.len()).map(|queue| self.totals(queue))
    }

    /// Counts packets and bytes that have left a queue.
    #[inline(always)]
    pub(crate) fn send(&self, queue: usize, packets: u64, bytes: u64) {
        let sent = &self.sent[queue];
        sent.packets.add(packets);
        sent.bytes.add(bytes);
    }

    /// Counts a sent packet that was to be marked.
    #[cold]
    pub(crate) fn mark(&self, queue: usize) {
        self.rare[queue].marked.add(1);
    }

    /// Counts a dropped packet.
    #[cold]
    pub(crate) fn refuse(&self, queue: usize, reason: DropReason) {
        self.rare[queue].dropped[reason as usize].add(1);
    }

    /// Sets the number of waiting packets of a queue.
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

    /// Sets a queue's counters to those of its predecessor.
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
