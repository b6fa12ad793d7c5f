//! Packet and byte counts in slots that never move.
//!
//! A slot is a number. Each worker has its own copy of every slot, in chunks allocated when the
//! first slot in them is, so a worker counts without a lock or a shared cache line, and the control
//! thread sums the copies on demand (paper a measured the cost of a shared counter).
//!
//! A counter may stand for several others, so that a worker adds once for all rules of a path:
//! these others have *shares* of it, and reading one of them includes what was counted on the
//! shared one. When a shared counter is freed ([`Counters::settle`]), its counts are credited to
//! those with shares.
//!
//! Packets may be counted longer or shorter than they are: as Open vSwitch does it, with the length
//! that they were received with, when they come in behind a patch port with a tag more or less. For
//! each such [difference](DIFFERENCES) a worker has further copies of all slots, which count
//! lengths as they are, and whoever reads them adds the difference for each packet. So the common
//! ways of packets need not know of it. These copies' memory is only used where packets have been
//! counted.

use crossbeam_utils::CachePadded;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::epoch::MAX_READERS;
#[cfg(target_arch = "x86_64")]
use crate::vector::Quads;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Slots in a chunk.
const CHUNK: usize = 4096;
/// Most chunks: 16 million slots.
const CHUNKS: usize = 4096;
/// Most counters; their numbers are below this.
pub(crate) const MOST: usize = CHUNK * CHUNKS;

/// By how many bytes more packets can be counted than they have: for one or two tags or labels that
/// have been pushed (then less) or popped.
pub const DIFFERENCES: [i32; 4] = [-8, -4, 4, 8];

/// A counter's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CounterId(pub u32);

/// One worker's copy of a counter.
#[repr(C, align(32))]
#[derive(Default)]
struct Slot {
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Time of the last count, in milliseconds of the datapath's clock.
    used_ms: AtomicU64,
}

type Chunk = [Slot; CHUNK];
const _: () = assert!(CHUNK.is_power_of_two() && size_of::<Slot>().is_power_of_two());

/// A counter's sum over all workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Packets.
    pub packets: u64,
    /// Bytes, without FCS.
    pub bytes: u64,
    /// Time of the last count, in milliseconds of the datapath's clock; 0 for never.
    pub used_ms: u64,
}

/// Which part of another counter a share is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Share {
    /// Packets, bytes and time: a rule's counter.
    Rule,
    /// A table's lookups: packets are counted as lookups.
    Lookup,
    /// A table's lookups and matches: packets are counted as both.
    Match,
}

impl Share {
    fn of(self, totals: Totals) -> Totals {
        let Totals { packets, .. } = totals;
        let (bytes, used_ms) = (0, 0);
        match self {
            Share::Rule => totals,
            Share::Lookup => Totals {
                packets,
                bytes,
                used_ms,
            },
            Share::Match => Totals {
                packets,
                bytes: packets,
                used_ms,
            },
        }
    }
}

impl Totals {
    fn and(self, other: Totals) -> Totals {
        Totals {
            packets: self.packets.wrapping_add(other.packets),
            bytes: self.bytes.wrapping_add(other.bytes),
            used_ms: self.used_ms.max(other.used_ms),
        }
    }

    /// Returns what has been counted since `before`.
    fn since(self, before: Totals) -> Totals {
        let packets = self.packets.wrapping_sub(before.packets);
        Totals {
            packets,
            bytes: self.bytes.wrapping_sub(before.bytes),
            used_ms: if packets == 0 { 0 } else { self.used_ms },
        }
    }
}

/// One counter's shares of another.
#[derive(Clone, Copy, Default)]
struct Link {
    times: u64,
    /// Totals of the other counter when this one was last reset.
    before: Totals,
}

impl Link {
    /// Returns the shares' worth when the other counter has these totals.
    fn of(self, share: Share, totals: Totals) -> Totals {
        let Totals {
            packets,
            bytes,
            used_ms,
        } = share.of(totals.since(self.before));
        Totals {
            packets: packets.wrapping_mul(self.times),
            bytes: bytes.wrapping_mul(self.times),
            used_ms,
        }
    }
}

/// All shares, and the credits from shared counters that were freed. A rule's counter may have
/// thousands of shares.
#[derive(Default)]
struct Shares {
    /// By counter, the shares that it has.
    links: HashMap<u32, HashMap<(CounterId, Share), Link>>,
    /// By counter, the holders of its shares.
    holders: HashMap<u32, Vec<(CounterId, Share)>>,
    settled: HashMap<u32, Totals>,
}

struct Directory {
    chunks: Box<[AtomicPtr<Chunk>; CHUNKS]>,
}

/// A directory whose chunks take no memory where nothing has been written to them.
struct SparseDirectory {
    directory: Directory,
    /// The memory that the chunks are in, from [`Box::into_raw`].
    memory: Mutex<Vec<Memory>>,
}

struct Memory(*mut [u64]);

// SAFETY: it stands for a box of integers, which may be freed by any thread.
unsafe impl Send for Memory {}

impl SparseDirectory {
    fn new() -> SparseDirectory {
        SparseDirectory {
            directory: Directory::new(),
            memory: Mutex::default(),
        }
    }

    /// Does what [`Directory::ensure`] does, with memory that the system zeroes when it is touched:
    /// allocators do that only for what needs no more than their own alignment.
    fn ensure(&self, id: CounterId) {
        const WORD: usize = size_of::<u64>();
        let place = &self.directory.chunks[id.0 as usize / CHUNK];
        if place.load(Ordering::Acquire).is_null() {
            let words = (size_of::<Chunk>() + align_of::<Chunk>()) / WORD;
            let memory = Box::into_raw(vec![0_u64; words].into_boxed_slice());
            let first = memory.cast::<u64>();
            let skip = first.align_offset(align_of::<Chunk>());
            let skip = skip.min(align_of::<Chunk>() / WORD);
            // SAFETY: at most the words of one alignment are skipped, and `memory` has those more
            // than a chunk takes.
            let chunk = unsafe { first.add(skip) }.cast::<Chunk>();
            chunk.expose_provenance(); // vector code uses addresses (`find_eight`)
            let mut all = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            all.push(Memory(memory));
            place.store(chunk, Ordering::Release);
        }
    }
}

impl Drop for SparseDirectory {
    fn drop(&mut self) {
        for place in self.directory.chunks.iter() {
            // So that the directory does not free it as a box of its own.
            place.store(std::ptr::null_mut(), Ordering::Release);
        }
        let all = self
            .memory
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for Memory(memory) in all.drain(..) {
            // SAFETY: made by `Box::into_raw` in `ensure`, and nobody else can hold `self` now.
            drop(unsafe { Box::from_raw(memory) });
        }
    }
}

impl Directory {
    fn new() -> Directory {
        Directory {
            chunks: Box::new([const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS]),
        }
    }

    #[inline(always)]
    fn slot(&self, id: CounterId) -> Option<&Slot> {
        WorkerCounters(&self.chunks).slot(id)
    }

    fn ensure(&self, id: CounterId) {
        let place = &self.chunks[id.0 as usize / CHUNK];
        if place.load(Ordering::Acquire).is_null() {
            let chunk: Vec<Slot> = (0..CHUNK).map(|_| Slot::default()).collect();
            let chunk: Box<Chunk> = chunk
                .into_boxed_slice()
                .try_into()
                .unwrap_or_else(|_| unreachable!());
            let chunk = Box::into_raw(chunk);
            chunk.expose_provenance(); // vector code uses addresses (`find_eight`)
            place.store(chunk, Ordering::Release);
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        for place in self.chunks.iter() {
            let chunk = place.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: made by `Box::into_raw` in `ensure`, and nobody else can hold `self` now.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

#[derive(Default)]
struct Allocation {
    next: u32,
    free: Vec<u32>,
    workers: usize,
}

/// All counters of a program.
pub struct Counters {
    directories: Box<[Directory]>,
    /// By worker, those for packets that are counted with another length than they have, in the
    /// order of [`DIFFERENCES`].
    differing: Box<[OnceLock<[SparseDirectory; DIFFERENCES.len()]>]>,
    /// Whether any packet has been counted so.
    differ: CachePadded<AtomicBool>,
    /// On cache lines of its own, because workers read the next field in every burst.
    allocation: CachePadded<Mutex<Allocation>>,
    shares: Mutex<Shares>,
    /// Whether any shares have ever been given.
    shared: AtomicBool,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            directories: (0..MAX_READERS).map(|_| Directory::new()).collect(),
            differing: (0..MAX_READERS).map(|_| OnceLock::new()).collect(),
            differ: CachePadded::default(),
            allocation: CachePadded::default(),
            shares: Mutex::default(),
            shared: AtomicBool::new(false),
        }
    }
}

impl Counters {
    /// Locks the shares; None if there have never been any.
    fn shares(&self) -> Option<std::sync::MutexGuard<'_, Shares>> {
        let shared = self.shared.load(Ordering::Acquire);
        shared.then(|| {
            let shares = self.shares.lock();
            shares.unwrap_or_else(|poisoned| poisoned.into_inner())
        })
    }

    /// Gives counters shares of `of`, which is zero and on which nobody counts yet.
    pub(crate) fn share(&self, of: CounterId, holders: &[(CounterId, Share)]) {
        self.shared.store(true, Ordering::Release);
        let Some(mut shares) = self.shares() else {
            return;
        };
        for (holder, share) in holders {
            let links = shares.links.entry(holder.0).or_default();
            links.entry((of, *share)).or_default().times += 1;
        }
        shares.holders.insert(of.0, holders.to_vec());
    }

    /// Frees a counter that others may have shares of, and credits its counts to them. The caller
    /// must ensure that no worker can still count on it.
    pub(crate) fn settle(&self, of: CounterId) {
        let totals = self.read_own(of);
        if let Some(mut shares) = self.shares() {
            for (holder, share) in shares.holders.remove(&of.0).unwrap_or_default() {
                let Some(links) = shares.links.get_mut(&holder.0) else {
                    continue;
                };
                // None for the second of two equal shares, and where the holder's number has been
                // reused.
                let Some(link) = links.remove(&(of, share)) else {
                    continue;
                };
                if links.is_empty() {
                    shares.links.remove(&holder.0);
                }
                let settled = shares.settled.entry(holder.0).or_default();
                *settled = settled.and(link.of(share, totals));
            }
        }
        self.free(of);
    }

    fn allocation(&self) -> std::sync::MutexGuard<'_, Allocation> {
        self.allocation
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Prepares counting by worker `index`; to be called before the worker's first burst. Counts of
    /// an earlier worker with that number stay.
    pub fn add_worker(&self, index: usize) {
        let mut allocation = self.allocation();
        if index >= allocation.workers {
            for worker in allocation.workers..=index {
                for first in (0..allocation.next).step_by(CHUNK) {
                    self.ensure(worker, CounterId(first));
                }
            }
            allocation.workers = index + 1;
        }
    }

    /// Makes room for a worker's copies of a counter.
    fn ensure(&self, worker: usize, id: CounterId) {
        self.directories[worker].ensure(id);
        let differing =
            self.differing[worker].get_or_init(|| std::array::from_fn(|_| SparseDirectory::new()));
        differing.iter().for_each(|one| one.ensure(id));
    }

    /// Returns workers' copies of a counter for packets that are counted with another length than
    /// they have, each with the difference.
    fn differing(
        &self,
        workers: usize,
        id: CounterId,
    ) -> impl Iterator<Item = (&Slot, i32)> + use<'_> {
        let workers = match self.differ.load(Ordering::Relaxed) {
            true => workers,
            false => 0,
        };
        let all = self.differing[..workers].iter().filter_map(OnceLock::get);
        all.flat_map(move |one| {
            let slots = one.iter().zip(DIFFERENCES);
            slots.filter_map(move |(one, by)| Some((one.directory.slot(id)?, by)))
        })
    }

    /// Allocates a counter that is zero; None when 16 million are in use.
    pub fn allocate(&self) -> Option<CounterId> {
        let mut allocation = self.allocation();
        let id = match allocation.free.pop() {
            Some(id) => CounterId(id),
            None if allocation.next as usize == MOST => return None,
            None => {
                let id = CounterId(allocation.next);
                for worker in 0..allocation.workers {
                    self.ensure(worker, id);
                }
                allocation.next += 1;
                id
            }
        };
        let workers = allocation.workers;
        drop(allocation);
        self.reset_of(workers, id);
        Some(id)
    }

    /// Frees a counter. The caller must ensure that no worker can still count on it (retire,
    /// collect).
    pub fn free(&self, id: CounterId) {
        if let Some(mut shares) = self.shares() {
            shares.links.remove(&id.0);
            shares.settled.remove(&id.0);
        }
        self.allocation().free.push(id.0);
    }

    /// Sets a counter to zero. A concurrent count by a worker may overwrite that.
    pub fn reset(&self, id: CounterId) {
        let workers = self.allocation().workers;
        if let Some(mut shares) = self.shares() {
            shares.settled.remove(&id.0);
            for ((of, _), link) in shares.links.get_mut(&id.0).into_iter().flatten() {
                link.before = self.read_own(*of);
            }
        }
        self.reset_of(workers, id);
    }

    fn reset_of(&self, workers: usize, id: CounterId) {
        for directory in &self.directories[..workers] {
            if let Some(slot) = directory.slot(id) {
                slot.packets.store(0, Ordering::Relaxed);
                slot.bytes.store(0, Ordering::Relaxed);
                slot.used_ms.store(0, Ordering::Relaxed);
            }
        }
        for (slot, _) in self.differing(workers, id) {
            // Writing zeros to memory that is not in use would have it used.
            if slot.packets.load(Ordering::Relaxed) != 0 {
                slot.packets.store(0, Ordering::Relaxed);
                slot.bytes.store(0, Ordering::Relaxed);
                slot.used_ms.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Returns the sum over all workers, including the counter's shares of others.
    pub fn read(&self, id: CounterId) -> Totals {
        let own = self.read_own(id);
        let Some(shares) = self.shares() else {
            return own;
        };
        let settled = shares.settled.get(&id.0).copied().unwrap_or_default();
        let links = shares.links.get(&id.0).into_iter().flatten();
        links.fold(own.and(settled), |sum, ((of, share), link)| {
            sum.and(link.of(*share, self.read_own(*of)))
        })
    }

    fn read_own(&self, id: CounterId) -> Totals {
        let workers = self.allocation().workers;
        let mut totals = Totals::default();
        for slot in self.directories[..workers]
            .iter()
            .filter_map(|directory| directory.slot(id))
        {
            totals.packets += slot.packets.load(Ordering::Relaxed);
            totals.bytes += slot.bytes.load(Ordering::Relaxed);
            totals.used_ms = totals.used_ms.max(slot.used_ms.load(Ordering::Relaxed));
        }
        for (slot, by) in self.differing(workers, id) {
            let packets = slot.packets.load(Ordering::Relaxed);
            let bytes = slot.bytes.load(Ordering::Relaxed);
            let more = i64::from(by).wrapping_mul(packets as i64);
            totals.packets += packets;
            totals.bytes = totals.bytes.wrapping_add(bytes).wrapping_add_signed(more);
            totals.used_ms = totals.used_ms.max(slot.used_ms.load(Ordering::Relaxed));
        }
        totals
    }

    /// Adds to worker `worker`'s copy. Only that worker may call this with its number, so a plain
    /// load and store suffice.
    #[inline(always)]
    pub fn add(&self, worker: usize, id: CounterId, packets: u64, bytes: u64, now_ms: u64) {
        if let Some(slot) = self.directories[worker].slot(id) {
            slot.packets.store(
                slot.packets.load(Ordering::Relaxed).wrapping_add(packets),
                Ordering::Relaxed,
            );
            slot.bytes.store(
                slot.bytes.load(Ordering::Relaxed).wrapping_add(bytes),
                Ordering::Relaxed,
            );
            slot.used_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Returns worker `worker`'s copies, for a burst; only that worker may ask for them.
    #[inline(always)]
    pub fn of_worker(&self, worker: usize) -> WorkerCounters<'_> {
        WorkerCounters(&self.directories[worker].chunks)
    }

    /// Like [`Counters::of_worker`], for a burst of packets that are to be counted as `by` bytes
    /// longer than they are; if that is none of [`DIFFERENCES`], as long as they are.
    #[inline(always)]
    pub fn of_worker_by(&self, worker: usize, by: i32) -> WorkerCounters<'_> {
        match by {
            0 => self.of_worker(worker),
            by => self.differing_of(worker, by),
        }
    }

    #[cold]
    #[inline(never)]
    fn differing_of(&self, worker: usize, by: i32) -> WorkerCounters<'_> {
        let at = DIFFERENCES.iter().position(|one| *one == by);
        match at.zip(self.differing[worker].get()) {
            None => self.of_worker(worker),
            Some((at, differing)) => {
                if !self.differ.load(Ordering::Relaxed) {
                    self.differ.store(true, Ordering::Relaxed);
                }
                WorkerCounters(&differing[at].directory.chunks)
            }
        }
    }

    /// Returns the number of counters in use.
    pub fn in_use(&self) -> usize {
        let allocation = self.allocation();
        allocation.next as usize - allocation.free.len()
    }
}

/// One worker's copies of all counters.
#[derive(Clone, Copy)]
pub struct WorkerCounters<'a>(&'a [AtomicPtr<Chunk>; CHUNKS]);

/// Prefetches the cache line at `place`.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect but on the cache; SSE, which it belongs to,
    // is part of x86_64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

impl<'a> WorkerCounters<'a> {
    /// Returns whether there are too many counters for a first-level cache.
    #[inline(always)]
    pub(crate) fn are_many(&self) -> bool {
        !self.0[1].load(Ordering::Relaxed).is_null()
    }

    #[inline(always)]
    fn slot(self, id: CounterId) -> Option<&'a Slot> {
        let chunk = self.0[id.0 as usize / CHUNK % CHUNKS].load(Ordering::Acquire);
        // SAFETY: a chunk pointer is null or was made by `Box::into_raw` in `Directory::ensure`,
        // and is freed only when the directory is dropped, whose list this is.
        unsafe { chunk.as_ref() }.map(|chunk| &chunk[id.0 as usize % CHUNK])
    }

    /// Prefetches a counter that is about to be added to.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: CounterId) {
        if let Some(slot) = self.slot(id) {
            prefetch(slot);
        }
    }

    /// Finds this worker's copy of a counter, so that whoever prefetches it need not find it twice.
    #[inline(always)]
    pub(crate) fn find(&self, id: CounterId) -> Option<WorkerCounter<'a>> {
        self.slot(id).map(WorkerCounter)
    }

    /// Returns the addresses ([`WorkerCounter::address`]) of the eight counters with these numbers;
    /// zero in lanes that are not `wanted`, or where no counter has the number.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) fn find_eight(self, wanted: __mmask8, ids: __m512i) -> __m512i {
        let chunk = _mm512_srli_epi64::<{ CHUNK.trailing_zeros() }>(ids);
        // SAFETY: pointers have no padding bytes.
        let chunks = unsafe { Quads::of(&self.0[..]) }.gather(wanted, chunk);
        let within = _mm512_and_si512(ids, _mm512_set1_epi64(CHUNK as i64 - 1));
        let offset = _mm512_slli_epi64::<{ size_of::<Slot>().trailing_zeros() }>(within);
        _mm512_maskz_add_epi64(_mm512_test_epi64_mask(chunks, chunks), chunks, offset)
    }

    /// Adds to a counter.
    #[inline(always)]
    pub fn add(&self, id: CounterId, packets: u64, bytes: u64, now_ms: u64) {
        if let Some(counter) = self.find(id) {
            counter.add(packets, bytes, now_ms);
        }
    }

    /// Adds counts that were made up to `used_ms` and deferred.
    pub fn add_late(&self, id: CounterId, packets: u64, bytes: u64, used_ms: u64) {
        if let Some(slot) = self.slot(id) {
            let used_ms = used_ms.max(slot.used_ms.load(Ordering::Relaxed));
            self.add(id, packets, bytes, used_ms);
        }
    }
}

/// One worker's copy of a counter.
#[derive(Clone, Copy)]
pub(crate) struct WorkerCounter<'a>(&'a Slot);

impl<'a> WorkerCounter<'a> {
    /// Returns its address.
    #[inline(always)]
    pub fn address(self) -> usize {
        std::ptr::from_ref(self.0).expose_provenance()
    }

    /// Returns the copy at this address; None for 0.
    ///
    /// # Safety
    /// The address is 0, or that of a counter whose directory lives for 'a.
    #[inline(always)]
    pub unsafe fn at(address: usize) -> Option<WorkerCounter<'a>> {
        // SAFETY: the caller guarantees this; the provenance of counters' addresses has been
        // exposed, by `address` or with their chunks.
        unsafe { std::ptr::with_exposed_provenance::<Slot>(address).as_ref() }.map(WorkerCounter)
    }

    /// Prefetches it.
    #[inline(always)]
    pub fn prefetch(self) {
        prefetch(self.0);
    }

    /// Adds to the counter. Only the worker it belongs to may call this.
    #[inline(always)]
    pub fn add(self, packets: u64, bytes: u64, now_ms: u64) {
        let add = |to: &AtomicU64, more: u64| {
            to.store(
                to.load(Ordering::Relaxed).wrapping_add(more),
                Ordering::Relaxed,
            );
        };
        add(&self.0.packets, packets);
        add(&self.0.bytes, bytes);
        self.0.used_ms.store(now_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_count_apart_and_are_summed() {
        let counters = Counters::default();
        counters.add_worker(0);
        let a = counters.allocate().unwrap();
        counters.add_worker(2);
        let b = counters.allocate().unwrap();
        counters.add(0, a, 1, 60, 5);
        counters.add(2, a, 2, 200, 9);
        counters.add(2, b, 1, 1, 1);
        assert_eq!(
            counters.read(a),
            Totals {
                packets: 3,
                bytes: 260,
                used_ms: 9
            }
        );
        counters.free(a);
        let c = counters.allocate().unwrap();
        assert_eq!(
            (c, counters.read(c)),
            (a, Totals::default()),
            "a slot comes back empty"
        );
        assert_eq!(counters.read(b).packets, 1);
    }

    #[test]
    fn slots_keep_their_counts_when_more_are_made() {
        let counters = Counters::default();
        counters.add_worker(0);
        let first = counters.allocate().unwrap();
        counters.add(0, first, 7, 7, 7);
        let ids: Vec<_> = (0..3 * CHUNK)
            .map(|_| counters.allocate().unwrap())
            .collect();
        counters.add(0, *ids.last().unwrap(), 1, 1, 1);
        assert_eq!(counters.read(first).packets, 7);
        assert_eq!(counters.in_use(), 3 * CHUNK + 1);
    }

    #[test]
    fn shares_are_read_reset_and_settled() {
        let counters = Counters::default();
        counters.add_worker(0);
        counters.add_worker(1);
        let [rule, table, way, other] = [(); 4].map(|()| counters.allocate().unwrap());
        let sum = |packets, bytes, used_ms| Totals {
            packets,
            bytes,
            used_ms,
        };
        counters.share(way, &[(rule, Share::Rule), (table, Share::Match)]);
        // A rule that a path passes twice counts twice.
        counters.share(
            other,
            &[
                (rule, Share::Rule),
                (rule, Share::Rule),
                (table, Share::Lookup),
            ],
        );
        counters.add(0, rule, 1, 60, 3);
        counters.add(0, way, 2, 120, 5);
        counters.add(1, way, 1, 60, 4);
        counters.add(1, other, 10, 1000, 9);
        assert_eq!(counters.read(rule), sum(24, 2240, 9));
        assert_eq!(counters.read(table), sum(13, 3, 0));
        counters.reset(rule);
        assert_eq!(counters.read(rule), Totals::default());
        assert_eq!(counters.read(table), sum(13, 3, 0));
        counters.add(0, way, 1, 70, 12);
        assert_eq!(counters.read(rule), sum(1, 70, 12));
        counters.settle(way);
        assert_eq!(counters.read(rule), sum(1, 70, 12));
        assert_eq!(counters.read(table), sum(14, 4, 0));
        // A counter that is freed and allocated again gets nothing from its former shares.
        counters.free(rule);
        assert_eq!(counters.allocate(), Some(rule));
        assert_eq!(counters.read(rule), Totals::default());
        counters.add(0, other, 5, 300, 20);
        counters.settle(other);
        assert_eq!(counters.read(rule), Totals::default());
        assert_eq!(counters.read(table), sum(19, 4, 0));
        assert_eq!(counters.in_use(), 2);
    }

    /// Packets that are counted longer or shorter than they are: by readers, with all else alike.
    #[test]
    fn differences_of_length_are_added_when_read() {
        let counters = Counters::default();
        counters.add_worker(0);
        let (first, second) = (counters.allocate().unwrap(), counters.allocate().unwrap());
        counters.add_worker(1);
        counters.of_worker(0).add(first, 2, 200, 5);
        for (worker, by) in [(0, 4), (1, -8), (1, 4), (1, 3)] {
            let behind = counters.of_worker_by(worker, by);
            behind.add(first, 1, 100, 7);
        }
        let wanted = Totals {
            packets: 6,
            bytes: 600 + 4 - 8 + 4,
            used_ms: 7,
        };
        assert_eq!(counters.read(first), wanted);
        assert_eq!(counters.read(second), Totals::default());
        let shared = counters.allocate().unwrap();
        counters.share(shared, &[(second, Share::Rule)]);
        counters.of_worker_by(1, -4).add(shared, 3, 300, 8);
        assert_eq!(counters.read(second).bytes, 288);
        counters.settle(shared);
        assert_eq!(counters.read(second).bytes, 288);
        counters.reset(first);
        assert_eq!(counters.read(first), Totals::default());
        counters.free(first);
        let again = counters.allocate();
        assert_eq!(again.map(|id| counters.read(id)), Some(Totals::default()));
    }
}
