//! Counts that many threads change: each thread has a part of its own, so that two that begin and
//! end connections do not wait for each other's cache lines. A reader adds the parts up.

use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use zerocopy::FromZeros;

/// Parts of a count. Where there are more threads, some share one.
const STRIPES: usize = 16;
/// What a part of a [`Bounded`] holds at most before it is added to the whole.
const SLACK: u64 = 64;
/// By how much the whole of a [`Bounded`] may be wrong, and then as much again.
const MARGIN: u64 = 2 * STRIPES as u64 * SLACK;

/// Locks for zones with limits.
const LIMITED: usize = 64;

static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Returns the number of the thread's part.
#[inline]
fn own() -> usize {
    let own = STRIPE.get();
    if own < STRIPES { own } else { assign() }
}

#[cold]
fn assign() -> usize {
    let own = THREADS.fetch_add(1, Ordering::Relaxed) % STRIPES;
    STRIPE.set(own);
    own
}

/// Returns how many parts threads have.
fn used() -> usize {
    THREADS.load(Ordering::Relaxed).min(STRIPES)
}

/// Counts of `N` things.
#[derive(Debug)]
pub(crate) struct Striped<const N: usize>([CachePadded<[AtomicU64; N]>; STRIPES]);

impl<const N: usize> Default for Striped<N> {
    fn default() -> Striped<N> {
        let zero = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Striped(std::array::from_fn(|_| zero()))
    }
}

impl<const N: usize> Striped<N> {
    /// Adds to a count, and returns the thread's part of it. Wraps around: what one thread takes
    /// off may have been added by another.
    #[inline]
    pub fn add(&self, which: usize, more: u64) -> u64 {
        let part = &self.0[own()][which];
        part.fetch_add(more, Ordering::Relaxed).wrapping_add(more)
    }

    /// Returns a count.
    pub fn get(&self, which: usize) -> u64 {
        let parts = self.0[..used()].iter();
        parts
            .map(|part| part[which].load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }
}

/// A count with a limit. Far below the limit threads count for themselves, and add that to the
/// whole from time to time; near it each looks at all parts, one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Bounded {
    whole: CachePadded<AtomicU64>,
    parts: Striped<1>,
    near: Mutex<()>,
}

impl Bounded {
    /// Counts one more if there are fewer than `limit`; else returns false. Threads may pass the
    /// limit together: by one each, and by what an interrupted thread is moving to the whole.
    #[inline]
    pub fn reserve(&self, limit: usize) -> bool {
        let whole = self.whole.load(Ordering::Relaxed);
        // While others are being counted the whole may be below zero.
        if (whole as i64).max(0) as u64 + MARGIN < limit as u64 {
            self.add(1);
            return true;
        }
        self.reserve_near(limit)
    }

    #[cold]
    fn reserve_near(&self, limit: usize) -> bool {
        // Who floods a full table only reads.
        if self.get() >= limit {
            return false;
        }
        let _alone = self.near.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.get() < limit;
        if free {
            self.add(1);
        }
        free
    }

    /// Counts one less.
    #[inline]
    pub fn release(&self) {
        self.add(1_u64.wrapping_neg());
    }

    #[inline]
    fn add(&self, more: u64) {
        let part = self.parts.add(0, more) as i64;
        if part.unsigned_abs() >= SLACK {
            let moved = part as u64;
            self.parts.add(0, moved.wrapping_neg());
            self.whole.fetch_add(moved, Ordering::Relaxed);
        }
    }

    /// Returns the count.
    pub fn get(&self) -> usize {
        let whole = self.whole.load(Ordering::Relaxed);
        let all = whole.wrapping_add(self.parts.get(0)) as i64;
        // Not all parts are read at the same moment.
        all.max(0) as usize
    }
}

/// Counts of connections by zone.
#[derive(Debug)]
pub(crate) struct Zones {
    /// Zeroed memory, of which only what is used takes room.
    parts: Box<[[AtomicU32; Zones::COUNT]]>,
    /// By zone, modulo their number: who counts in a zone with a limit is alone.
    limited: [CachePadded<Mutex<()>>; LIMITED],
}

impl Zones {
    const COUNT: usize = 1 << 16;

    pub fn new() -> Zones {
        let parts = <[[AtomicU32; Zones::COUNT]]>::new_box_zeroed_with_elems(STRIPES);
        Zones {
            // Without memory for this there is none for connections.
            parts: parts.expect("memory for counts of zones"),
            limited: std::array::from_fn(|_| CachePadded::default()),
        }
    }

    /// Counts one more connection of a zone.
    #[inline]
    pub fn add(&self, zone: u16) {
        self.parts[own()][usize::from(zone)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one more connection of a zone if it has fewer than `limit`; else returns false.
    pub fn reserve(&self, zone: u16, limit: u32) -> bool {
        // Who floods a full zone only reads, and zones are each other's concern by chance only.
        if self.get(zone) >= limit {
            return false;
        }
        let limited = &self.limited[usize::from(zone) % LIMITED];
        let _alone = limited.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.get(zone) < limit;
        if free {
            self.add(zone);
        }
        free
    }

    /// Counts one less.
    #[inline]
    pub fn release(&self, zone: u16) {
        self.parts[own()][usize::from(zone)].fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many connections a zone has.
    pub fn get(&self, zone: u16) -> u32 {
        let parts = self.parts[..used()].iter();
        let all = parts
            .map(|part| part[usize::from(zone)].load(Ordering::Relaxed))
            .fold(0, u32::wrapping_add);
        // Not all parts are read at the same moment.
        (all as i32).max(0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// What several threads add and take off in turns is what is there in the end, and a limit is
    /// kept by all of them together.
    #[test]
    fn threads_count_together() {
        const THREADS: usize = 5;
        let (striped, zones, bounded) = (Striped::<2>::default(), Zones::new(), Bounded::default());
        let limit = 3 * MARGIN as usize + 7;
        let barrier = Barrier::new(THREADS);
        let reserved: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (striped, zones, bounded) = (&striped, &zones, &bounded);
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        for _ in 0..1000 {
                            striped.add(1, 3);
                            zones.add(65535);
                        }
                        barrier.wait();
                        // Others take off what this one has added.
                        for _ in 0..1000 - number {
                            zones.release(65535);
                        }
                        let mut reserved = 0;
                        for _ in 0..limit {
                            reserved += usize::from(bounded.reserve(limit));
                            zones.reserve(7, 1234);
                        }
                        reserved
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        assert_eq!((striped.get(0), striped.get(1)), (0, 15_000));
        assert_eq!(
            (zones.get(65535), zones.get(7), zones.get(0)),
            (10, 1234, 0)
        );
        assert_eq!(bounded.get(), reserved);
        assert!((limit..limit + THREADS).contains(&reserved), "{reserved}");
        for left in (0..reserved).rev() {
            bounded.release();
            assert_eq!(bounded.get(), left);
        }
        assert!(!bounded.reserve(0) && bounded.reserve(1) && !bounded.reserve(1));
    }
}
