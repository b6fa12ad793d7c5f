//! Settings that control makes for flow caches, and figures that these report.

use crate::epoch::MAX_READERS;
use crate::exec::flow_cache::controller::{CacheController, Standing};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Flows that a worker stores for a bridge by default: 2 MiB of lines.
const ENTRIES: usize = 32768;

/// When flow caches are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CacheMode {
    /// Where they save cycles.
    Auto = 0,
    /// Always; every walk that can be stored is.
    Always = 1,
    /// Never.
    Never = 2,
}

/// One worker's figures.
#[derive(Default)]
pub(crate) struct Cell {
    hits: AtomicU64,
    misses: AtomicU64,
    entries: AtomicU64,
    ways: AtomicU64,
    records: AtomicU64,
    standing: AtomicU8,
    walk: AtomicU64,
    cached: AtomicU64,
}

/// One worker's report of its cache. Figures are those of the bridge that last had packets, unless
/// they say all bridges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheReport {
    /// The worker's number among readers.
    pub worker: usize,
    /// Whether the cache is used, and why.
    pub standing: &'static str,
    /// Packets that hit, of all bridges.
    pub hits: u64,
    /// Packets that missed, of all bridges.
    pub misses: u64,
    /// Flows stored.
    pub entries: u64,
    /// Different paths among them.
    pub ways: u64,
    /// Walks recorded.
    pub records: u64,
    /// Cycles for each packet without the cache, when last measured; 0 for not yet.
    pub walk_cycles: u64,
    /// Cycles for each packet with the cache, when last measured; 0 for not yet.
    pub cached_cycles: u64,
}

/// State shared by all caches of a program.
pub struct CacheBoard {
    mode: AtomicU8,
    entries: AtomicUsize,
    cells: Box<[CachePadded<Cell>]>,
}

impl Default for CacheBoard {
    fn default() -> Self {
        CacheBoard {
            mode: AtomicU8::new(CacheMode::Auto as u8),
            entries: AtomicUsize::new(ENTRIES),
            cells: (0..MAX_READERS).map(|_| CachePadded::default()).collect(),
        }
    }
}

impl CacheBoard {
    /// Sets when caches are used; takes effect with each worker's next burst.
    pub fn set_mode(&self, mode: CacheMode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Returns when caches are used.
    #[inline(always)]
    pub fn mode(&self) -> CacheMode {
        match self.mode.load(Ordering::Relaxed) {
            1 => CacheMode::Always,
            2 => CacheMode::Never,
            _ => CacheMode::Auto,
        }
    }

    /// Sets how many flows each worker stores for each bridge: rounded up to a power of two, at
    /// least 512.
    pub fn set_entries(&self, entries: usize) {
        self.entries.store(entries.min(1 << 24), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn of(&self, worker: usize) -> &Cell {
        &self.cells[worker]
    }

    /// Returns whether every worker has measured whether its cache pays. Workers that have had no
    /// burst by which to tell (too few packets, or of kinds that are not cached) do not count.
    pub fn is_judged(&self) -> bool {
        self.cells.iter().all(|cell| match cell.standing() {
            Some(standing) => standing.is_judged(),
            None => true,
        })
    }

    /// Returns the reports of all workers that have had packets.
    pub fn reports(&self) -> Vec<CacheReport> {
        let cells = self.cells.iter().enumerate();
        cells
            .filter_map(|(worker, cell)| cell.report(worker))
            .collect()
    }
}

impl Cell {
    /// Adds a burst's figures. Only the worker itself calls this.
    #[inline(always)]
    pub fn add(&self, hits: u64, misses: u64, records: u64) {
        for (count, more) in [
            (&self.hits, hits),
            (&self.misses, misses),
            (&self.records, records),
        ] {
            let sum = count.load(Ordering::Relaxed).wrapping_add(more);
            count.store(sum, Ordering::Relaxed);
        }
    }

    pub fn show(&self, controller: &CacheController, entries: usize, ways: usize) {
        let show = |place: &AtomicU64, value| place.store(value, Ordering::Relaxed);
        show(&self.entries, entries as u64);
        show(&self.ways, ways as u64);
        show(&self.walk, controller.walk_cycles());
        show(&self.cached, controller.cached_cycles());
        let standing = controller.standing() as u8 + 1;
        self.standing.store(standing, Ordering::Relaxed);
    }

    /// Returns the standing that it reported last, if any.
    fn standing(&self) -> Option<Standing> {
        let shown = self.standing.load(Ordering::Relaxed).checked_sub(1)?;
        Standing::ALL.get(usize::from(shown)).copied()
    }

    fn report(&self, worker: usize) -> Option<CacheReport> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Some(CacheReport {
            worker,
            standing: self.standing()?.name(),
            hits: read(&self.hits),
            misses: read(&self.misses),
            entries: read(&self.entries),
            ways: read(&self.ways),
            records: read(&self.records),
            walk_cycles: read(&self.walk),
            cached_cycles: read(&self.cached),
        })
    }
}
