//! A bounded cache of paths through long pipelines, by packets' bits.
//!
//! A packet of the common kinds that agrees with an earlier one in all bits that the bridge's rules
//! look at takes the same path through the tables (`optimizer::unwildcarded`). Where rules look at
//! words of IPv6 and ARP packets beyond their mini keys, such packets are walked. A path is stored
//! as straight-line steps without lookups, and the rules and tables that count it. So instead of a
//! walk through thirty tables a packet costs a hash, one cache line for the bits, one for the path,
//! and the steps that change or send it.
//!
//! * [`store`]: bits -> path, and the paths themselves. Many flows share a path, which is kept
//!   once.
//! * [`record`]: observes an ordinary walk, and what of it can be stored. Packets whose walks ask
//!   control, meet meters or groups, or depend on more than those bits are stored as such that must
//!   be walked.
//! * [`controller`]: tries the cache where walks are long, keeps it on where packets cost fewer
//!   cycles with it than without, and switches it off otherwise. Where walks are one lookup that
//!   costs no more than one in the cache, the cache is not tried at all.
//! * [`board`]: settings from control for caches, and their reports.
//!
//! *Rules change.* A path knows its tables; in a later epoch it holds only if none of them has
//! changed since. It owns its steps and names its counters by number, so it does not refer to
//! rules.
//!
//! *Counting.* Sixty counter updates a packet would cost more than all the rest, so a path counts
//! packets and bytes itself. Paths with counts stand in a queue, of which each burst flushes some:
//! all of them when bursts are small, and an idle worker flushes all before it sleeps. Sums are
//! exact; a busy worker's rules show them some milliseconds late. Until then they are deferred
//! ([`Guard::defers`]), which keeps counters from being given to other rules.

pub(crate) mod board;
mod controller;
mod record;
mod store;

pub use board::{CacheBoard, CacheMode, CacheReport};

use crate::actions::PortNo;
use crate::burst::LOOKUP_MAX;
use crate::clock::cycles;
use crate::counters::WorkerCounters;
use crate::epoch::{Epoch, Guard, NEVER};
use crate::exec::Engine;
use crate::exec::first_table::WORTH_IT;
use crate::exec::interpreter::{Burst, Next, Steps};
use crate::host::Host;
use board::Cell;
use controller::CacheController;
use packet::Frame;
use packet::mini_key::{self, NO_PATTERN};
use packet::parse::MoreWords;
use record::{CachedPath, Recording};
use stages::Stage;
use std::collections::VecDeque;
use store::{CachedVerdict, NO_PATH, Store, WALKED};

/// Bridges for which a worker keeps caches.
const BRIDGES: usize = 8;
/// Bursts of fewer packets flush the counters of all paths.
const SMALL: usize = 16;
/// Paths whose counters are flushed after each larger burst.
const FLUSHED: usize = 2;
/// Paths flushed in each turn of a worker that has nothing else to do.
const FLUSHED_IDLE: usize = 64;
/// Walks recorded in a burst, when the controller decides.
const RECORDED: usize = 2;

/// A worker's caches, one for each bridge.
pub(crate) struct Caches {
    caches: VecDeque<Box<Cache>>,
    /// The last call of [`Guard::defers`]. None at first, when an engine that failed before this
    /// one may have left something.
    deferred: Option<Epoch>,
    /// Bursts that need no decision, while they are of the same bridge.
    quiet: u32,
    /// The bridge of the last burst.
    bridge: u64,
    /// Packets of bursts without a decision.
    passed: usize,
}

/// The cache of one bridge.
struct Cache {
    bridge: u64,
    upheavals: u64,
    store: Option<Store>,
    controller: CacheController,
}

/// How a burst uses the cache.
pub(crate) struct Use {
    /// Whether the rest of the burst is looked up in the cache.
    used: bool,
    /// Walks that it may still record.
    records: usize,
    packets: usize,
    hits: u64,
    misses: u64,
    recorded: u64,
    /// Start time in cycles, if the burst is measured.
    since: Option<u64>,
}

impl Caches {
    pub fn new() -> Caches {
        Caches {
            caches: VecDeque::new(),
            deferred: None,
            quiet: 0,
            bridge: 0,
            passed: 0,
        }
    }

    /// Returns whether deferred counter updates remain.
    #[inline(always)]
    pub fn has_deferred(&self) -> bool {
        self.deferred != Some(NEVER)
    }

    /// Begins a burst of a bridge, and moves the bridge's cache to the front. `possible`: packets
    /// may take the short ways.
    #[inline(always)]
    pub fn begin(&mut self, burst: &Burst<'_, '_>, possible: bool, packets: usize) -> Option<Use> {
        let bridge = burst.bridge.unwildcarded.serial();
        let auto = burst.bridge.program().walk_caches.mode() == CacheMode::Auto;
        if !possible || auto && self.quiet > 0 && self.bridge == bridge {
            self.quiet = self.quiet.saturating_sub(1);
            self.passed += packets;
            return None;
        }
        self.think(burst, packets)
    }

    #[inline(never)]
    fn think(&mut self, burst: &Burst<'_, '_>, packets: usize) -> Option<Use> {
        let bridge = burst.bridge.unwildcarded.serial();
        if self
            .caches
            .front()
            .is_none_or(|cache| cache.bridge != bridge)
        {
            self.bring(burst, bridge);
        }
        let board = &burst.bridge.program().walk_caches;
        let cache = self.caches.front_mut()?;
        let mode = board.mode();
        if self.bridge == bridge {
            cache.controller.pass(self.passed);
        }
        self.bridge = bridge;
        self.passed = 0;
        let plan = if mode == CacheMode::Auto && burst.bridge.is_quick(burst.guard) {
            cache.controller.needless()
        } else {
            cache.controller.begin(mode, packets)
        };
        self.quiet = if plan.used { 0 } else { plan.rest };
        if plan.used {
            cache.make_ready(board.entries(), burst.bridge.unwildcarded.upheavals());
        }
        Some(Use {
            used: plan.used,
            records: if mode == CacheMode::Always {
                LOOKUP_MAX
            } else {
                RECORDED
            },
            packets,
            hits: 0,
            misses: 0,
            recorded: 0,
            since: plan.measured.then(cycles),
        })
    }

    /// Finds a bridge's cache, or creates it in place of the least recently used one.
    #[cold]
    fn bring(&mut self, burst: &Burst<'_, '_>, bridge: u64) {
        let at = self.caches.iter().position(|cache| cache.bridge == bridge);
        let mut cache = match at.and_then(|at| self.caches.remove(at)) {
            Some(cache) => cache,
            None if self.caches.len() < BRIDGES => Box::new(Cache::new()),
            None => self
                .caches
                .pop_back()
                .unwrap_or_else(|| Box::new(Cache::new())),
        };
        if cache.bridge != bridge {
            if let Some(store) = &mut cache.store {
                store.flush_deferred(usize::MAX, burst.as_they_are());
            }
            *cache = Cache::new();
            cache.bridge = bridge;
        }
        self.caches.push_front(cache);
    }

    /// Ends a burst.
    #[inline(always)]
    pub fn end(&mut self, burst: &Burst<'_, '_>, cached: Option<Use>) {
        if let Some(cached) = cached {
            self.account(burst, cached);
        }
    }

    #[inline(never)]
    fn account(&mut self, burst: &Burst<'_, '_>, cached: Use) {
        if let Some(cache) = self.caches.front_mut() {
            let spent = cached.since.map(|since| cycles().wrapping_sub(since));
            cache.controller.end(cached.packets, cached.hits, spent);
            let cell = burst.bridge.program().walk_caches.of(burst.guard.index());
            cell.add(cached.hits, cached.misses, cached.recorded);
            if let Some(store) = &mut cache.store {
                let limit = if cached.packets < SMALL {
                    usize::MAX
                } else {
                    FLUSHED
                };
                store.flush_deferred(limit, burst.as_they_are());
            }
            if cached.recorded > 0 || cached.since.is_some() {
                cache.tell(cell);
            }
        }
        self.say_deferred(burst.guard);
        if self.has_deferred() {
            self.quiet = 0;
        }
    }

    /// Tells the domain what is deferred.
    #[inline(always)]
    fn say_deferred(&mut self, guard: &Guard<'_>) {
        let oldest = self
            .caches
            .iter()
            .filter_map(|cache| cache.store.as_ref()?.deferred_since());
        let oldest = oldest.min().unwrap_or(NEVER);
        if self.deferred != Some(oldest) {
            guard.defers(oldest);
            self.deferred = Some(oldest);
        }
    }

    /// Flushes up to `limit` paths of each bridge.
    fn flush_deferred(&mut self, limit: usize, counters: WorkerCounters<'_>, guard: &Guard<'_>) {
        for store in self
            .caches
            .iter_mut()
            .filter_map(|cache| cache.store.as_mut())
        {
            store.flush_deferred(limit, counters);
        }
        self.say_deferred(guard);
    }
}

impl Cache {
    fn new() -> Cache {
        Cache {
            bridge: 0,
            upheavals: 0,
            store: None,
            controller: CacheController::new(),
        }
    }

    /// Ensures that there is a store of the wanted size that holds nothing from before the last
    /// upheaval.
    #[inline(always)]
    fn make_ready(&mut self, entries: usize, upheavals: u64) {
        let ready = self.upheavals == upheavals
            && self
                .store
                .as_ref()
                .is_some_and(|store| store.is_of(entries));
        if !ready {
            self.renew(entries, upheavals);
        }
    }

    #[cold]
    fn renew(&mut self, entries: usize, upheavals: u64) {
        match &mut self.store {
            Some(store) if store.is_of(entries) => store.forget(),
            Some(store) if store.deferred_since().is_some() => {
                // Its deferred counters are flushed burst by burst, and then it is replaced.
                store.forget();
            }
            store => *store = Some(Store::new(entries)),
        }
        self.upheavals = upheavals;
    }

    fn tell(&self, cell: &Cell) {
        let (entries, ways) = self.store.as_ref().map_or((0, 0), Store::size);
        cell.show(&self.controller, entries, ways);
    }
}

impl<F: Frame> Engine<F> {
    /// Returns whether deferred counter updates remain: then call [`Engine::flush_deferred`] before
    /// sleeping.
    #[inline(always)]
    pub fn has_deferred(&self) -> bool {
        self.caches.has_deferred()
    }

    /// Flushes some of the deferred counters; see [`Engine::has_deferred`].
    pub fn flush_deferred(&mut self, program: &crate::Program, guard: &Guard<'_>) {
        let counters = program.counters.of_worker(guard.index());
        self.caches.flush_deferred(FLUSHED_IDLE, counters, guard);
    }

    /// Takes frames from the front, runs the stored paths of those that have one, and looks the
    /// others up in the first table. Returns false, with nothing done, where the frames in front
    /// are not of the common kinds.
    pub(crate) fn by_cache<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        cached: &mut Use,
        mirrored: u32,
        host: &mut H,
    ) -> bool {
        if !cached.used {
            return false;
        }
        let all = frames.len().min(LOOKUP_MAX);
        let mut first = [NO_PATTERN; LOOKUP_MAX];
        stages::go(Stage::Parse, all);
        let read = mini_key::read_burst(&frames[..all], in_port, &[], &mut self.hot, &mut first);
        let count = read.count;
        if count < all.min(WORTH_IT) {
            cached.used = false;
            return false;
        }
        self.walks.resize_with(
            self.walks.len().max(count),
            crate::exec::interpreter::Walk::new,
        );
        let Some(cache) = self.caches.caches.front_mut() else {
            return false;
        };
        let Some(store) = &mut cache.store else {
            return false;
        };
        stages::go(Stage::Lookup, count);
        let bits = burst.bridge.unwildcarded.bits();
        let mut found = [NO_PATH; LOOKUP_MAX];
        store.find(&self.hot[..count], &bits, &mut found);
        // Further words of IPv6 and ARP packets are not among the bits that are stored.
        let told_by_bits = burst.valid.intersect(MoreWords::WORDS).is_empty();
        let mut hits = 0;
        for (way, hot) in found[..count].iter_mut().zip(&self.hot) {
            if !told_by_bits && !hot.extent.is_ipv4() {
                *way = WALKED;
                continue;
            }
            if !store.holds(*way, &burst.bridge.unwildcarded, burst.guard.epoch()) {
                *way = NO_PATH;
            }
            hits += u64::from(*way != NO_PATH);
        }
        cached.hits += hits;
        cached.misses += count as u64 - hits;
        stages::go(Stage::Actions, count);
        self.received += read.bytes;
        self.carry_out(
            burst,
            in_port,
            frames,
            &found[..count],
            cached,
            mirrored,
            host,
        );
        true
    }

    /// Runs what was found for the first frames, in their order.
    #[allow(clippy::too_many_arguments)] // as for `burst`
    #[inline(always)]
    fn carry_out<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        in_port: PortNo,
        frames: &mut Vec<F>,
        found: &[u32],
        cached: &mut Use,
        mirrored: u32,
        host: &mut H,
    ) {
        let mut frames = frames.drain(..found.len());
        let mut index = 0;
        while index < found.len() {
            let store = self
                .caches
                .caches
                .front_mut()
                .and_then(|cache| cache.store.as_mut());
            let Some(store) = store else { break };
            let way = found[index];
            match store.verdict(way) {
                CachedVerdict::Port(port) => {
                    let same = |way: &&u32| store.verdict(**way) == CachedVerdict::Port(port);
                    let run = found[index..].iter().take_while(same).count();
                    for (way, hot) in found[index..].iter().zip(&self.hot[index..]).take(run) {
                        store.note(*way, hot.len.into(), burst);
                    }
                    host.output_run(in_port, port, mirrored, &mut frames.by_ref().take(run));
                    index += run;
                    continue;
                }
                CachedVerdict::Lost(reason) => {
                    store.note(way, self.hot[index].len.into(), burst);
                    drop(frames.next());
                    host.dropped(reason);
                }
                CachedVerdict::Steps => {
                    store.note(way, self.hot[index].len.into(), burst);
                    let steps = Steps::of(store.steps(way));
                    if let Some(frame) = frames.next() {
                        self.begin_walk(burst, index, frame, mirrored);
                        let walk = &mut self.walks[index];
                        walk.at.steps = steps;
                        let next = walk.run(burst, host);
                        debug_assert!(matches!(next, Next::Done), "a way has no lookups");
                    }
                }
                CachedVerdict::Walk => {
                    if let Some(frame) = frames.next() {
                        // The first ones that miss are recorded and walked to their ends, so that
                        // no packet overtakes one of its flow.
                        if way == NO_PATH && cached.records > 0 {
                            cached.records -= 1;
                            cached.recorded += 1;
                            self.begin_walk(burst, index, frame, mirrored);
                            self.record(burst, index, host);
                        } else {
                            if way != WALKED {
                                cached.records = 0;
                            }
                            self.lanes.begin(index, &self.hot[index], frame);
                            self.lanes.look_up_first(index);
                        }
                    }
                }
            }
            index += 1;
        }
        drop(frames);
        let arrival = super::lanes::Arrival { in_port, mirrored };
        self.drive_lanes(burst, arrival, host);
    }

    /// Walks a packet to its end, and stores its path.
    #[cold]
    fn record<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, index: usize, host: &mut H) {
        let mut recording = Recording::new(host);
        let mut next = Next::Lookup(0);
        while let Next::Lookup(table) = next {
            let walk = &mut self.walks[index];
            let found = burst.bridge.lookup(table, &walk.key, burst.guard);
            recording.host().looked_up(table, Some(&walk.key), found);
            recording.looked(burst.bridge, table, found, walk.resubmitted);
            next = match found {
                Some(rule) => {
                    walk.count(burst, rule);
                    Self::hit(walk, burst, &mut recording, table, rule)
                }
                None => Self::missed(walk, burst, &mut recording, table),
            };
        }
        let ended = matches!(next, Next::Done);
        if !ended {
            self.run_to_end(burst, &mut recording, index, next);
        }
        let way = recording.finish(ended);
        self.remember(burst, index, way);
    }

    fn remember(&mut self, burst: &Burst<'_, '_>, index: usize, way: CachedPath) {
        let Some(cache) = self.caches.caches.front_mut() else {
            return;
        };
        if let Some(store) = &mut cache.store {
            let bits = burst.bridge.unwildcarded.bits();
            let unwildcarded = &burst.bridge.unwildcarded;
            store.remember(
                &self.hot[index],
                &bits,
                way,
                unwildcarded,
                burst.guard.epoch(),
            );
        }
    }
}
