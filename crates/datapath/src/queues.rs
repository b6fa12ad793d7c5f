//! Counters of a port's queues.
//!
//! A frame names its queue (`set_queue`, `enqueue`); without one, or with one that the port does
//! not have, it goes by queue 0. Only frames that name a queue are counted one by one; queue 0 has
//! the rest of what the port has sent. Workers share the counters, since a port with queues is not
//! on the fastest path anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one queue has sent.
#[derive(Default)]
struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Clone)]
struct Queue {
    number: u32,
    since_ms: u64,
    counter: Arc<Counter>,
}

/// The queues of a port, by their numbers.
#[derive(Clone, Default)]
pub(crate) struct Queues(Vec<Queue>);

/// What a queue of a port has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueTotals {
    /// Its number.
    pub queue: u32,
    /// Packets sent through it.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Packets dropped by the queue.
    pub errors: u64,
    /// When it was added, in milliseconds of the datapath's clock.
    pub since_ms: u64,
}

impl Queues {
    /// Returns the port's queues with other numbers; queues that stay keep their counts and age.
    pub fn changed(&self, numbers: &[u32], now_ms: u64) -> Queues {
        let mut numbers = numbers.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let queue = |number| {
            let old = self.0.iter().find(|queue| queue.number == number);
            old.cloned().unwrap_or_else(|| Queue {
                number,
                since_ms: now_ms,
                counter: Arc::default(),
            })
        };
        Queues(numbers.into_iter().map(queue).collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a frame that names a queue.
    #[cold]
    pub fn count(&self, number: u32, bytes: u64) {
        if let Ok(at) = self.0.binary_search_by_key(&number, |queue| queue.number) {
            let counter = &self.0[at].counter;
            counter.packets.fetch_add(1, Ordering::Relaxed);
            counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns all counts, given what the port has sent in total.
    pub fn totals(&self, packets: u64, bytes: u64) -> Vec<QueueTotals> {
        let mut all: Vec<QueueTotals> = self
            .0
            .iter()
            .map(|queue| QueueTotals {
                queue: queue.number,
                packets: queue.counter.packets.load(Ordering::Relaxed),
                bytes: queue.counter.bytes.load(Ordering::Relaxed),
                errors: 0,
                since_ms: queue.since_ms,
            })
            .collect();
        let others = |of: fn(&QueueTotals) -> u64, all: &[QueueTotals]| -> u64 {
            all.iter().filter(|queue| queue.queue != 0).map(of).sum()
        };
        let packets = packets.saturating_sub(others(|queue| queue.packets, &all));
        let bytes = bytes.saturating_sub(others(|queue| queue.bytes, &all));
        if let Some(default) = all.first_mut().filter(|queue| queue.queue == 0) {
            (default.packets, default.bytes) = (packets, bytes);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_queues_count_for_the_default_queue() {
        let queues = Queues::default().changed(&[7, 0, 3], 5);
        queues.count(3, 100);
        queues.count(7, 60);
        queues.count(7, 60);
        queues.count(0, 60);
        queues.count(99, 60);
        let counts = |queues: &Queues| -> Vec<(u32, u64, u64)> {
            let all = queues.totals(10, 1000);
            all.iter()
                .map(|queue| (queue.queue, queue.packets, queue.bytes))
                .collect()
        };
        assert_eq!(counts(&queues), [(0, 7, 780), (3, 1, 100), (7, 2, 120)]);
        let fewer = queues.changed(&[7, 8], 9);
        assert_eq!(counts(&fewer), [(7, 2, 120), (8, 0, 0)]);
        let since = fewer.totals(0, 0);
        assert_eq!((since[0].since_ms, since[1].since_ms), (5, 9));
    }
}
