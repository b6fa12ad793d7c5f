//! Publication by epochs.
//!
//! Every rule carries the epoch in which it appears and the one in which it goes. The writer
//! prepares any number of changes for epoch `current + 1` and publishes them all by one store. A
//! worker reads the epoch at the start of each burst ([`Reader::begin`]), before it receives
//! packets, and sees exactly the rules of that epoch in every table of every bridge.
//!
//! A worker's `begin` also says that it holds nothing from earlier bursts. So when every worker has
//! begun a burst in epoch `e` or later ([`Domain::passed`]), a barrier for `e` may be answered, and
//! what was unlinked before `e` was published may be freed. A sleeping worker marks itself offline
//! and counts as having passed everything; it reads the epoch again before its next burst.

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence};
use crossbeam_utils::CachePadded;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A point in the sequence of published changes.
pub type Epoch = u64;

/// Later than every epoch: the end of rules that nobody has removed, and the epoch of an offline
/// reader.
pub const NEVER: Epoch = u64::MAX;

/// Distance from the current epoch to a reserved one: up to this many others may be published
/// before it. Even if one were reserved every millisecond the numbers would last for two years.
const AHEAD: Epoch = 1 << 28;

/// Most readers (workers) at a time.
pub const MAX_READERS: usize = 64;

/// Marks a reader slot that is not in use.
const FREE: u64 = u64::MAX;
/// Marks an offline reader.
const OFFLINE: u64 = u64::MAX - 1;

/// Garbage, with the epoch that all readers must have reached before it is freed.
type Retired = VecDeque<(Epoch, Box<dyn Any + Send>)>;

/// The epoch shared by a writer and its readers.
pub struct Domain {
    epoch: CachePadded<AtomicU64>,
    seen: Box<[CachePadded<AtomicU64>]>,
    /// For each reader the oldest epoch from which it still holds something between its bursts,
    /// [`NEVER`] for none.
    held: Box<[AtomicU64]>,
    /// On cache lines of its own, because control writes it often and workers read its neighbours
    /// in every turn.
    retired: CachePadded<Mutex<Retired>>,
    /// For each reader the oldest epoch in which packets met rules whose counters are still to be
    /// updated, [`NEVER`] for none.
    deferred: Box<[AtomicU64]>,
    /// The reserved epoch, [`NEVER`] for none.
    reserved: AtomicU64,
    /// The last of the epochs behind it that are reserved with it.
    last_reserved: AtomicU64,
    /// Epochs kept by [`Domain::pin`], and how many pins keep each.
    pins: Mutex<BTreeMap<Epoch, usize>>,
    /// The oldest pinned epoch, [`NEVER`] for none.
    pinned: AtomicU64,
}

impl Default for Domain {
    fn default() -> Self {
        Domain {
            epoch: CachePadded::new(AtomicU64::new(1)),
            seen: (0..MAX_READERS)
                .map(|_| CachePadded::new(AtomicU64::new(FREE)))
                .collect(),
            held: (0..MAX_READERS).map(|_| AtomicU64::new(NEVER)).collect(),
            retired: CachePadded::default(),
            deferred: (0..MAX_READERS).map(|_| AtomicU64::new(NEVER)).collect(),
            reserved: AtomicU64::new(NEVER),
            last_reserved: AtomicU64::new(NEVER),
            pins: Mutex::default(),
            pinned: AtomicU64::new(NEVER),
        }
    }
}

impl Domain {
    /// Returns the epoch published last.
    pub fn current(&self) -> Epoch {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the epoch that the next [`Domain::publish`] starts: what new rules carry as their
    /// first and removed rules as their end.
    pub fn next(&self) -> Epoch {
        self.current() + 1
    }

    /// Makes all changes prepared for [`Domain::next`] visible and returns that epoch. Only the one
    /// writer (the control thread) calls this.
    pub fn publish(&self) -> Epoch {
        let epoch = self.next();
        if epoch >= self.reserved.load(Ordering::Relaxed) {
            // All numbers below the reserved epoch are used up, which takes days: changes wait for
            // it.
            return self.current();
        }
        self.begin(epoch)
    }

    /// Reserves an epoch for changes that take long to prepare. They carry it, while others are
    /// published before it, and all of them become visible at once by [`Domain::publish_reserved`].
    /// None while another one is reserved.
    pub fn reserve(&self) -> Option<Epoch> {
        if self.reserved.load(Ordering::Relaxed) != NEVER {
            return None;
        }
        let epoch = self.current() + AHEAD;
        self.last_reserved.store(epoch, Ordering::Relaxed);
        self.reserved.store(epoch, Ordering::Relaxed);
        Some(epoch)
    }

    /// Reserves one more epoch, behind those that are reserved; None where none is. All are
    /// published at once, so bursts see the changes of all of them. A walk in a pinned one of them
    /// ([`Domain::pin`]) sees the changes of it and those before it.
    pub fn reserve_next(&self) -> Option<Epoch> {
        if self.reserved.load(Ordering::Relaxed) == NEVER {
            return None;
        }
        let epoch = self.last_reserved.load(Ordering::Relaxed) + 1;
        self.last_reserved.store(epoch, Ordering::Relaxed);
        Some(epoch)
    }

    /// Returns the latest epoch that a change being prepared may carry.
    pub fn horizon(&self) -> Epoch {
        match self.reserved.load(Ordering::Relaxed) {
            NEVER => self.next(),
            _ => self.last_reserved.load(Ordering::Relaxed),
        }
    }

    /// Publishes the last reserved epoch, and with it makes visible what was prepared for the
    /// reserved ones and for [`Domain::next`]; returns it, or the current one when none is
    /// reserved.
    pub fn publish_reserved(&self) -> Epoch {
        match self.reserved.swap(NEVER, Ordering::Relaxed) {
            NEVER => self.current(),
            _ => self.begin(self.last_reserved.load(Ordering::Relaxed)),
        }
    }

    /// Keeps all that a walk in this epoch or a later one may look at, until the result is dropped.
    /// Only the one writer calls this, before it publishes a later epoch. Meanwhile memory and
    /// rules that have ended are not freed; barriers are answered.
    pub fn pin(self: &Arc<Self>, epoch: Epoch) -> Pinned {
        debug_assert!(epoch >= self.current(), "pinning what may be gone already");
        let mut pins = self.pins();
        *pins.entry(epoch).or_default() += 1;
        self.note_pins(&pins);
        Pinned {
            domain: Arc::clone(self),
            epoch,
        }
    }

    fn pins(&self) -> MutexGuard<'_, BTreeMap<Epoch, usize>> {
        self.pins
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn note_pins(&self, pins: &BTreeMap<Epoch, usize>) {
        let oldest = pins.first_key_value().map_or(NEVER, |(epoch, _)| *epoch);
        self.pinned.store(oldest, Ordering::Release);
    }

    fn begin(&self, epoch: Epoch) -> Epoch {
        self.epoch.store(epoch, Ordering::Release);
        // Pairs with the fence in `Reader::begin`: either the reader sees this epoch, or `passed`
        // sees that it is online and behind.
        fence(Ordering::SeqCst);
        epoch
    }

    /// Returns whether every reader has begun a burst in `epoch` or later, or is offline.
    pub fn passed(&self, epoch: Epoch) -> bool {
        fence(Ordering::SeqCst);
        self.seen
            .iter()
            .all(|seen| seen.load(Ordering::Acquire) >= epoch)
    }

    /// Returns whether the reader in this slot has begun a burst and has not gone offline since.
    pub fn is_online(&self, index: usize) -> bool {
        let seen = self.seen.get(index);
        seen.is_some_and(|seen| !matches!(seen.load(Ordering::Relaxed), FREE | OFFLINE))
    }

    /// Returns whether nobody works in an epoch before `epoch`, or holds something of one
    /// ([`Guard::hold`]): rules that ended with it may be unlinked.
    pub fn quiet(&self, epoch: Epoch) -> bool {
        self.passed(epoch)
            && self
                .held
                .iter()
                .chain([&self.pinned])
                .all(|held| held.load(Ordering::Acquire) >= epoch)
    }

    /// Returns whether [`Domain::quiet`] holds and also nobody keeps what was retired in an epoch
    /// before `epoch` ([`Guard::keep`]) or has deferred counter updates of one: rules that ended,
    /// and their counters, are not in use.
    pub fn unread(&self, epoch: Epoch) -> bool {
        let deferred = |oldest: &AtomicU64| oldest.load(Ordering::Acquire) >= epoch;
        self.quiet(epoch) && self.deferred.iter().all(deferred)
    }

    /// Takes a reader slot; None when all [`MAX_READERS`] are taken. The reader starts offline.
    pub fn reader(self: &Arc<Self>) -> Option<Reader> {
        let index = self.claim()?;
        Some(Reader {
            domain: Arc::clone(self),
            index,
        })
    }

    fn claim(&self) -> Option<usize> {
        (0..MAX_READERS).find(|index| {
            self.seen[*index]
                .compare_exchange(FREE, OFFLINE, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Takes garbage that readers can no longer reach once [`Domain::next`] has been published, or
    /// the reserved epoch where there is one (the writer may read it until then).
    /// [`Domain::collect`] drops it later.
    pub fn retire(&self, garbage: Box<dyn Any + Send>) {
        let epoch = self.horizon();
        self.retired().push_back((epoch, garbage));
    }

    /// Drops garbage that no reader can see any more and returns how many things still wait.
    pub fn collect(&self) -> usize {
        self.collect_some(usize::MAX)
    }

    /// Like [`Domain::collect`], but drops at most `limit` things, because freeing a million rules
    /// takes long; the others wait for the next call.
    pub fn collect_some(&self, limit: usize) -> usize {
        let oldest = {
            fence(Ordering::SeqCst);
            self.seen
                .iter()
                .map(|seen| &**seen)
                .chain(self.held.iter())
                .chain(self.deferred.iter())
                .chain([&self.pinned])
                .map(|seen| seen.load(Ordering::Acquire))
                .min()
                .unwrap_or(NEVER)
                .min(self.current())
        };
        let mut dead = Vec::new();
        let waiting = {
            let mut retired = self.retired();
            let is_dead = |(epoch, _): &(Epoch, _)| *epoch <= oldest;
            while dead.len() < limit && retired.front().is_some_and(is_dead) {
                dead.extend(retired.pop_front());
            }
            retired.len()
        };
        drop(dead); // outside the lock: destructors may retire more
        waiting
    }

    /// Returns how many retired things wait to be dropped.
    pub fn garbage(&self) -> usize {
        self.retired().len()
    }

    fn retired(&self) -> MutexGuard<'_, Retired> {
        self.retired
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// An epoch that is kept for walks yet to come ([`Domain::pin`]).
pub struct Pinned {
    domain: Arc<Domain>,
    epoch: Epoch,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut pins = self.domain.pins();
        if let Some(count) = pins.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.epoch);
            }
        }
        self.domain.note_pins(&pins);
    }
}

/// A worker's reader slot in a [`Domain`].
pub struct Reader {
    domain: Arc<Domain>,
    index: usize,
}

impl Reader {
    /// Starts a burst: says that nothing from earlier bursts is held, and returns a guard with the
    /// epoch to work in. Must be called before receiving, so that packets received after a
    /// barrier's reply are handled in the barrier's epoch or later. What is looked up under the
    /// guard cannot outlive it.
    #[inline]
    pub fn begin(&mut self) -> Guard<'_> {
        let epoch = self.enter();
        Guard {
            epoch,
            reader: self,
        }
    }

    #[inline]
    fn enter(&self) -> Epoch {
        let seen = &self.domain.seen[self.index];
        let epoch = self.domain.epoch.load(Ordering::Acquire);
        if seen.load(Ordering::Relaxed) != epoch {
            seen.store(epoch, Ordering::Release);
            // The store must be visible before anything of this epoch is read, and the epoch must
            // be read again after it: coming from offline, a publication may have happened in
            // between, and the writer may have taken this reader for offline.
            fence(Ordering::SeqCst);
            let again = self.domain.epoch.load(Ordering::Acquire);
            if again != epoch {
                seen.store(again, Ordering::Release);
            }
            return again;
        }
        epoch
    }

    /// Says, before sleeping, that nothing is held and that nothing will be before the next
    /// [`Reader::begin`].
    #[inline]
    pub fn offline(&mut self) {
        self.domain.seen[self.index].store(OFFLINE, Ordering::Release);
    }

    /// Returns the slot's index: a number below [`MAX_READERS`] that no other live reader has.
    pub fn index(&self) -> usize {
        self.index
    }
}

/// A burst in progress: rules seen under it stay valid as long as it lives.
pub struct Guard<'a> {
    epoch: Epoch,
    reader: &'a Reader,
}

impl Guard<'_> {
    /// Returns the epoch whose rules hold for this burst.
    #[inline(always)]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns the reader's slot, which is also its worker's number for counters.
    #[inline(always)]
    pub fn index(&self) -> usize {
        self.reader.index
    }

    /// Returns the domain it belongs to.
    #[inline(always)]
    pub fn domain(&self) -> &Domain {
        &self.reader.domain
    }

    /// Says that what was seen in `oldest` and later is still held after this guard, until the next
    /// call; [`NEVER`] for nothing. Meanwhile memory and rules that have ended are not freed;
    /// barriers are answered. `oldest` is this guard's epoch, or one that has been held without a
    /// break.
    pub(crate) fn hold(&self, oldest: Epoch) {
        debug_assert!(
            oldest >= self.epoch.min(self.held()),
            "holding what may be gone already"
        );
        self.domain().held[self.index()].store(oldest, Ordering::Release);
    }

    /// Says that counter updates of packets that met rules in `oldest` and later are deferred;
    /// [`NEVER`] for none. Meanwhile counters are not reused; barriers are answered. `oldest` is
    /// this guard's epoch, or not before that of the last call.
    pub(crate) fn defers(&self, oldest: Epoch) {
        self.domain().deferred[self.index()].store(oldest, Ordering::Release);
    }

    /// Says that what was seen in `oldest` and later is read after this guard by somebody who does
    /// not count packets; [`NEVER`] for no longer. Meanwhile memory is not freed; rules that have
    /// ended may be unlinked, and barriers are answered. `oldest` is this guard's epoch.
    pub(crate) fn keep(&self, oldest: Epoch) {
        self.defers(oldest);
    }

    /// Returns the epoch of the last [`Guard::hold`].
    pub(crate) fn held(&self) -> Epoch {
        self.domain().held[self.index()].load(Ordering::Relaxed)
    }

    /// Returns a guard for a walk in `epoch`, which is not before the pinned one and not behind
    /// this guard's.
    pub fn in_pinned<'g>(&'g self, pinned: &'g Pinned, epoch: Epoch) -> Guard<'g> {
        assert!(
            std::ptr::eq(&*pinned.domain, self.domain())
                && (pinned.epoch..=self.epoch).contains(&epoch),
            "an epoch that is not pinned"
        );
        Guard {
            epoch,
            reader: self.reader,
        }
    }

    /// Returns a guard for resuming a walk in an epoch that is held.
    pub(crate) fn in_held(&self, epoch: Epoch) -> Guard<'_> {
        assert!(
            epoch >= self.epoch.min(self.held()),
            "an epoch that is not held"
        );
        Guard {
            epoch,
            reader: self.reader,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.domain.held[self.index].store(NEVER, Ordering::Release);
        self.domain.deferred[self.index].store(NEVER, Ordering::Release);
        self.domain.seen[self.index].store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_barrier_waits_for_readers_that_are_online() {
        let domain = Arc::new(Domain::default());
        let mut reader = domain.reader().unwrap();
        reader.begin();
        let epoch = domain.publish();
        assert!(!domain.passed(epoch));
        reader.begin();
        assert!(domain.passed(epoch) && domain.is_online(reader.index()));
        let later = domain.publish();
        assert!(!domain.passed(later));
        reader.offline();
        assert!(domain.passed(later) && !domain.is_online(reader.index()));
        assert!(!domain.is_online(MAX_READERS));
    }

    #[test]
    fn garbage_lives_until_readers_have_moved_on() {
        struct Witness(Arc<AtomicBool>);
        impl Drop for Witness {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let domain = Arc::new(Domain::default());
        let mut reader = domain.reader().unwrap();
        reader.begin();
        let dropped = Arc::new(AtomicBool::new(false));
        domain.retire(Box::new(Witness(Arc::clone(&dropped))));
        assert_eq!(domain.collect(), 1);
        domain.publish();
        assert_eq!(domain.collect(), 1, "the reader may still hold it");
        reader.begin();
        assert_eq!(domain.collect(), 0);
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[test]
    fn a_reserved_epoch_begins_after_others_and_only_when_told() {
        let domain = Arc::new(Domain::default());
        let reserved = domain.reserve().unwrap();
        assert!(domain.reserve().is_none(), "one at a time");
        assert_eq!(domain.horizon(), reserved);
        let mut reader = domain.reader().unwrap();
        for _ in 0..1000 {
            assert!(domain.publish() < reserved);
            assert!(reader.begin().epoch() < reserved);
        }
        assert_eq!(domain.publish_reserved(), reserved);
        assert!(!domain.passed(reserved));
        assert_eq!(reader.begin().epoch(), reserved);
        assert!(domain.passed(reserved));
        assert_eq!(domain.publish(), reserved + 1);
        assert_eq!(domain.publish_reserved(), reserved + 1, "nothing reserved");
        assert!(domain.reserve().is_some());
    }

    #[test]
    fn epochs_reserved_one_after_the_other_begin_together() {
        let domain = Arc::new(Domain::default());
        assert_eq!(domain.reserve_next(), None, "nothing reserved");
        let first = domain.reserve().unwrap();
        assert_eq!(domain.reserve_next(), Some(first + 1));
        assert_eq!(domain.reserve_next(), Some(first + 2));
        assert_eq!(domain.horizon(), first + 2);
        assert!(domain.publish() < first);
        assert_eq!(domain.publish_reserved(), first + 2);
        assert_eq!(domain.horizon(), first + 3);
        assert_eq!(domain.publish(), first + 3);
    }

    #[test]
    fn what_a_pinned_epoch_sees_stays_until_nobody_pins_it() {
        let domain = Arc::new(Domain::default());
        let mut reader = domain.reader().unwrap();
        let first = domain.reserve().unwrap();
        let pins = [domain.pin(first), domain.pin(first), domain.pin(first + 1)];
        domain.retire(Box::new("of an epoch before the pinned one"));
        domain.reserve_next();
        domain.retire(Box::new("that readers of the pinned epoch need"));
        let last = domain.publish_reserved();
        {
            let guard = reader.begin();
            assert_eq!(guard.epoch(), last);
            assert_eq!(guard.in_pinned(&pins[0], first).epoch(), first);
        }
        // Barriers are answered, and what ended with a later epoch is kept.
        assert!(domain.passed(last));
        assert!(domain.quiet(first) && !domain.quiet(last));
        assert_eq!(domain.collect(), 1);
        let [one, two, later] = pins;
        drop(one);
        assert_eq!(domain.collect(), 1);
        drop(two);
        assert_eq!(domain.pinned.load(Ordering::Relaxed), first + 1);
        assert!(domain.quiet(last));
        assert_eq!(domain.collect(), 0);
        drop(later);
        assert_eq!(domain.pinned.load(Ordering::Relaxed), NEVER);
        assert!(domain.pins().is_empty());
    }

    #[test]
    #[should_panic(expected = "not pinned")]
    fn nobody_walks_in_an_epoch_before_the_pinned_one() {
        let domain = Arc::new(Domain::default());
        let mut reader = domain.reader().unwrap();
        let pinned = domain.pin(domain.next());
        domain.publish();
        let guard = reader.begin();
        let _ = guard.in_pinned(&pinned, 1);
    }

    #[test]
    fn when_numbers_run_out_changes_wait_for_the_reserved_epoch() {
        let domain = Domain::default();
        let reserved = domain.reserve().unwrap();
        domain.epoch.store(reserved - 2, Ordering::Release);
        assert_eq!(domain.publish(), reserved - 1);
        assert_eq!(domain.publish(), reserved - 1);
        assert_eq!(
            (domain.next(), domain.publish_reserved()),
            (reserved, reserved)
        );
    }

    #[test]
    fn garbage_is_collected_in_parts() {
        let domain = Domain::default();
        (0..10).for_each(|number: u32| domain.retire(Box::new(number)));
        domain.publish();
        assert_eq!(domain.collect_some(4), 6);
        assert_eq!(domain.collect_some(4), 2);
        assert_eq!(domain.collect(), 0);
    }

    #[test]
    fn slots_run_out_and_come_back() {
        let domain = Arc::new(Domain::default());
        let mut readers: Vec<_> = (0..MAX_READERS).map(|_| domain.reader().unwrap()).collect();
        assert!(domain.reader().is_none());
        readers.pop();
        assert!(domain.reader().is_some());
    }

    #[test]
    fn a_reader_never_works_in_an_epoch_that_was_declared_passed() {
        let domain = Arc::new(Domain::default());
        let stop = Arc::new(AtomicBool::new(false));
        let declared = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (domain, stop, declared) = (
                    Arc::clone(&domain),
                    Arc::clone(&stop),
                    Arc::clone(&declared),
                );
                std::thread::spawn(move || {
                    let mut reader = domain.reader().unwrap();
                    let mut turns = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        let floor = declared.load(Ordering::SeqCst);
                        let epoch = reader.begin().epoch();
                        assert!(
                            epoch >= floor,
                            "began in {epoch}, but {floor} had been declared passed"
                        );
                        turns += 1;
                        if turns.is_multiple_of(7) {
                            reader.offline();
                        }
                    }
                })
            })
            .collect();
        for _ in 0..20_000 {
            let epoch = domain.publish();
            while !domain.passed(epoch) {
                std::thread::yield_now();
            }
            declared.store(epoch, Ordering::SeqCst);
        }
        stop.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    }
}
