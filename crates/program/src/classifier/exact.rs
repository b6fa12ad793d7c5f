//! Exact match: for rules that all look at the same bits, a hash table from their values to what
//! their packets need to know.
//!
//! A tuple's slot only names a rule that a packet may have met; whether it matches, its counter and
//! its port are in the rule, a cache line anywhere in memory. Here value, counter and port, or the
//! index of the edits, are in the slot, so a packet with a verdict (`exec::first_table`) reads one
//! line. Other packets read the line of the rule's summary as well. Bits in which all rules agree
//! are compared once, before, and one or two words are left to compare. A bucket is one cache line
//! of four rules, or two where they have two words; all of them are compared without a branch, so
//! that none is mispredicted. Rule summaries ([`RuleSummary`]), which hold the rule's address, are
//! kept apart for packets that need them.
//!
//! An exact table is built from what a tuple holds at one moment and not changed afterwards except
//! for marks. A rule is marked before its end is published, and also before another rule with the
//! same value is. Packets that find a mark or nothing are looked up in the tuple, which always
//! holds all rules; when many rules have changed the exact table is rebuilt. Rules that find no
//! room in their own bucket or the two behind it are left to the tuple too: a lookup reads at most
//! these three, whatever values there are.

#[cfg(test)]
mod tests;

use super::tuple_space::{TupleEntry, lookup_pending};
use super::verdicts::{FoundRules, Verdicts};
use crate::actions::OpList;
use crate::actions::block::ActionBlock;
use crate::burst::LOOKUP_MAX;
use crate::burst::Words;
use crate::classifier::effort::Count;
use crate::classifier::tuple::Tuple;
use crate::classifier::tuple_space::{TupleWriter, TupleWriters};
use crate::counters;
use crate::counters::CounterId;
use crate::epoch::{Domain, Epoch, NEVER};
use crate::pace::Pace;
use crate::prefetch::prefetch;
use crate::rule::Rule;
use crate::rule::RuleRef;
use crate::rule::summary;
use crate::rule::summary::Summaries;
use crate::rule::summary::{CountedVerdict, Edits, Effect, RuleSummary, Verdict};
use crate::secret::Secret;
use packet::matching::MatchWord;
use packet::{FlowKey, Match};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

/// Most tuples of a table that has an exact table; with more, a table gets trees.
const MASKS_MAX: usize = 2;
/// Fewest rules for which an exact table pays off: fewer stay in a first-level cache.
const RULES_MIN: usize = 64;
/// Most rules: building is done on the control thread and takes about a tenth of a microsecond a
/// rule.
const RULES_MAX: usize = 1 << 17;
/// The pause after a build is this many times as long as [`Pace`] makes it, because builds do not
/// run in the background.
const PATIENCE: u32 = 10;

/// A random-looking odd number.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Number of consecutive buckets in which a rule may be, from its own on, and so the most cache
/// lines that a lookup reads, whatever values an attacker chooses. Rules that do not fit are left
/// to the tuple.
const RUN: usize = 3;

/// Most different edits, because their copies are made on the control thread; rules with further
/// ones are looked up in the tuple.
const EDITS_MAX: usize = 1 << 14;

/// Mark in [`Answer::counter`]: packets are looked up in the tuple. Above the bits of a counter's
/// number.
const ASK: u32 = 1 << 31;
/// Mark in [`Answer::counter`]: the rule edits before it sends.
const EDITS: u32 = 1 << 30;
const _: () = assert!(counters::MOST <= EDITS as usize);

/// Counter of unused slots, which includes [`ASK`].
const EMPTY: u32 = u32::MAX;

/// The counter of a rule's packets, and the port or edits.
struct Answer {
    /// Counter number, perhaps with [`ASK`] and [`EDITS`], or [`EMPTY`].
    counter: AtomicU32,
    /// The port, or the index of the edits.
    action: u32,
}

/// Up to `SLOTS` rules: `N` words of each to compare, and its answer. Filled from the front.
#[repr(C, align(64))]
struct HashBucket<const N: usize, const SLOTS: usize> {
    /// Values, by word, then slot.
    values: [[u64; SLOTS]; N],
    answers: [Answer; SLOTS],
}

const _: () = assert!(size_of::<HashBucket<1, 4>>() == 64 && size_of::<HashBucket<2, 2>>() == 64);

impl Answer {
    fn is_empty(&self) -> bool {
        self.counter.load(Ordering::Relaxed) == EMPTY
    }

    /// Makes lookups go to the tuple, at once. Only the writer calls it.
    fn ask(&self) {
        let counter = self.counter.load(Ordering::Relaxed);
        self.counter.store(counter | ASK, Ordering::Relaxed);
    }

    /// Returns whether packets are looked up in the tuple.
    fn asks(&self) -> bool {
        self.counter.load(Ordering::Relaxed) & ASK != 0
    }

    /// Returns the rule's verdict; None where packets are looked up in the tuple.
    #[inline(always)]
    fn verdict<'g>(&self, edits: &'g [ActionBlock]) -> Option<CountedVerdict<'g>> {
        // Relaxed suffices: a mark is stored before the rule's end is published, a guard's epoch is
        // read before this, and nothing else of an answer ever changes.
        let counter = self.counter.load(Ordering::Relaxed);
        match counter & (ASK | EDITS) {
            0 => Some((CounterId(counter), Verdict::Sends(self.action))),
            EDITS => {
                let block = edits.get(self.action as usize)?;
                Some((CounterId(counter & !EDITS), Verdict::Edits(block)))
            }
            _ => None,
        }
    }
}

impl<const N: usize, const SLOTS: usize> HashBucket<N, SLOTS> {
    fn new() -> Self {
        HashBucket {
            values: [[0; SLOTS]; N],
            answers: std::array::from_fn(|_| Answer {
                counter: AtomicU32::new(EMPTY),
                action: 0,
            }),
        }
    }

    /// Returns the first slot with these values, possibly an unused one.
    #[inline(always)]
    fn find(&self, values: [u64; N]) -> Option<usize> {
        let mut hits = 0_u32;
        for slot in 0..SLOTS {
            let words = self.values.iter().zip(values);
            let differ = words.fold(0, |differ, (all, value)| differ | all[slot] ^ value);
            hits |= u32::from(differ == 0) << slot;
        }
        (hits != 0).then(|| hits.trailing_zeros() as usize % SLOTS)
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        !self.answers[SLOTS - 1].is_empty()
    }
}

/// A hash table of rules by `N` words of each. A rule for which its own bucket has no room goes to
/// the next of [`RUN`] that has.
pub(crate) struct Buckets<const N: usize, const SLOTS: usize> {
    /// The words in which the rules differ, and the bits of them that they look at.
    words: [(u8, u64); N],
    secret: Secret,
    /// Of the last buckets, [`RUN`] - 1 are no rule's own.
    buckets: Box<[HashBucket<N, SLOTS>]>,
    /// Summaries of the rules, by slot.
    places: Box<[RuleSummary]>,
}

impl<const N: usize, const SLOTS: usize> Buckets<N, SLOTS> {
    /// Allocates buckets for this many rules, with enough spare that few are outside their own.
    fn new(words: [(u8, u64); N], rules: usize) -> Self {
        let count = (rules * 5).div_ceil(2 * SLOTS).max(1) + RUN - 1;
        Buckets {
            words,
            secret: Secret::draw(0),
            buckets: (0..count).map(|_| HashBucket::new()).collect(),
            places: (0..count * SLOTS).map(|_| RuleSummary::default()).collect(),
        }
    }

    /// Returns a rule's values of the words that are compared.
    fn wanted(&self, matching: &Match) -> [u64; N] {
        self.words.map(|(word, _)| {
            let wanted = matching.words().iter().find(|wanted| wanted.word == word);
            wanted.map_or(0, |wanted| wanted.value)
        })
    }

    /// Returns a packet's values of the words that are compared.
    #[inline(always)]
    fn values(&self, key: &impl Words) -> [u64; N] {
        self.words.map(|(word, mask)| key.word(word) & mask)
    }

    /// Returns the index of the bucket to which these values hash.
    #[inline(always)]
    fn own(&self, values: [u64; N]) -> u32 {
        // Multiply once more: hashes of consecutive addresses are unevenly spread in their upper
        // half, and half of 100,000 rules would not fit in their own buckets.
        let hash = self.secret.hash(values).wrapping_mul(SPREAD) >> 32;
        let owned = self.buckets.len() - (RUN - 1);
        ((hash * owned as u64) >> 32) as u32
    }

    /// Returns the slot with these values, searching from bucket `own` on; possibly an unused one.
    #[inline(always)]
    fn find(&self, own: u32, values: [u64; N]) -> Option<usize> {
        let own = own as usize;
        for at in own..own + RUN {
            let bucket = &self.buckets[at];
            if let Some(slot) = bucket.find(values) {
                return Some(at * SLOTS + slot);
            }
            if !bucket.is_full() {
                break;
            }
        }
        None
    }

    #[inline(always)]
    fn answer(&self, slot: usize) -> &Answer {
        &self.buckets[slot / SLOTS].answers[slot % SLOTS]
    }

    /// Stores counter (perhaps with [`EDITS`]) and action of a rule and returns its slot; None
    /// where there is no room. No rule with the same values may be there.
    fn put(&mut self, values: [u64; N], counter: u32, action: u32) -> Option<usize> {
        debug_assert!(counter & ASK == 0);
        let own = self.own(values) as usize;
        let (at, slot) = (own..own + RUN).find_map(|at| {
            let free = self.buckets[at].answers.iter().position(Answer::is_empty)?;
            Some((at, free))
        })?;
        let bucket = &mut self.buckets[at];
        for (all, value) in bucket.values.iter_mut().zip(values) {
            all[slot] = value;
        }
        bucket.answers[slot] = Answer {
            counter: counter.into(),
            action,
        };
        Some(at * SLOTS + slot)
    }

    /// Adds a rule whose `action` is a port or an index of edits; returns false where there is no
    /// room.
    fn add(&mut self, rule: &Rule, is_edit: bool, action: u32) -> bool {
        let counter = rule.spec.counter;
        let (mark, place_mark) = if is_edit {
            (EDITS, summary::EDITS)
        } else {
            (0, 0)
        };
        let slot = self.put(self.wanted(&rule.spec.matching), counter.0 | mark, action);
        if let Some(slot) = slot {
            self.places[slot] = RuleSummary::new(NonNull::from(rule), place_mark, counter, action);
        }
        slot.is_some()
    }

    /// Makes packets with a rule's values go to the tuple, at once.
    fn ask(&self, rule: &Rule) {
        let values = self.wanted(&rule.spec.matching);
        if let Some(slot) = self.find(self.own(values), values) {
            self.answer(slot).ask();
            self.places[slot].ask(true);
        }
    }

    /// Counts what looking one key up reads; returns whether it finds a rule.
    fn read_by(&self, key: &FlowKey, count: &mut Count) -> bool {
        let values = self.values(key);
        for bucket in &self.buckets[self.own(values) as usize..][..RUN] {
            count.reads(bucket);
            if let Some(slot) = bucket.find(values) {
                return !bucket.answers[slot].asks();
            }
            if !bucket.is_full() {
                break;
            }
        }
        false
    }

    fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.places)
    }
}

/// Buckets, or searches in them, of rules that differ in one word (four a bucket) or in two (two a
/// bucket).
pub(crate) enum ByWords<One, Two> {
    One(One),
    Two(Two),
}

/// Evaluates the same expression for either variant.
macro_rules! with_either {
    ($either:expr, $each:ident => $what:expr) => {
        match $either {
            ByWords::One($each) => $what,
            ByWords::Two($each) => $what,
        }
    };
}

/// The exact table of one tuple.
pub(crate) struct Exact {
    tuple: Arc<Tuple>,
    /// The epoch in which it was built: its rules hold in this and later ones unless marked.
    from: Epoch,
    /// The lowest precedence in it. Rules below the other tuple's highest are left out.
    floor: u32,
    /// Values that all its rules have in common.
    shared: Box<[MatchWord]>,
    known: ByWords<Buckets<1, 4>, Buckets<2, 2>>,
    /// The edits of rules that edit and send, copied into one array.
    edits: Box<[ActionBlock]>,
    /// Number of rules in it.
    rules: usize,
}

impl Exact {
    /// Builds it from what a tuple holds. None where its rules differ in more than two words, or
    /// fewer than half could be put in. Also returns how many were left out that can be put in
    /// later.
    fn of(largest: &Largest<'_>, domain: &Domain) -> (Option<Exact>, usize) {
        let writer = largest.tuple;
        let (mut shared, mut words) = (Vec::new(), Vec::new());
        for ((word, mask), agreed) in writer.shared.words().iter().zip(&writer.agreed) {
            if agreed.mask == *mask {
                shared.push(*agreed);
            } else {
                words.push((*word, *mask));
            }
        }
        let rules = writer.rules();
        let known = match words[..] {
            [one] => ByWords::One(Buckets::new([one], rules)),
            [one, other] => ByWords::Two(Buckets::new([one, other], rules)),
            _ => return (None, 0),
        };
        let mut exact = Exact {
            tuple: Arc::clone(&writer.shared),
            from: domain.current(),
            floor: u32::MAX,
            shared: shared.into(),
            known,
            edits: Box::default(),
            rules: 0,
        };
        let mut edits = Vec::new();
        // Index into `edits` by the rule's list of steps.
        let mut numbers: HashMap<*const OpList, u32> = HashMap::new();
        let mut later = 0;
        writer.shared.each_chain(|chain| {
            let Some(rule) = chain.next() else {
                return;
            };
            // Packets that meet this rule must be looked up in the other tuple as well.
            if rule.spec.priority < largest.floor {
                return;
            }
            if rule.added > exact.from || rule.removed() != NEVER {
                later += 1;
                return;
            }
            let (is_edit, action) = match Effect::of(rule) {
                Effect::Sends(port) => (false, port),
                Effect::Edits(blocks) => {
                    let Some(block) = blocks.first() else {
                        return;
                    };
                    let ops = Arc::as_ptr(&rule.spec.ops);
                    if edits.len() == EDITS_MAX && !numbers.contains_key(&ops) {
                        return;
                    }
                    let number = *numbers.entry(ops).or_insert_with(|| {
                        edits.push(block.clone());
                        edits.len() as u32 - 1
                    });
                    (true, number)
                }
                Effect::More => return,
            };
            if with_either!(&mut exact.known, known => known.add(rule, is_edit, action)) {
                exact.floor = exact.floor.min(rule.spec.priority);
                exact.rules += 1;
            }
        });
        exact.edits = edits.into();
        // Of rules with the same match only the one of the highest precedence is in it.
        let worth_it = (exact.rules + later) * 2 >= rules.max(RULES_MIN);
        (worth_it.then_some(exact), later)
    }

    /// Makes packets that this rule's match holds for go to the tuple, at once.
    fn ask(&self, rule: &Rule) {
        if self.tuple.takes(&rule.spec.matching) {
            with_either!(&self.known, known => known.ask(rule));
        }
    }

    /// Counts what looking one key up reads; returns whether it finds a rule, so that no tuple is
    /// looked up.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) -> bool {
        count.reads(&*self.shared);
        count.probes += 1;
        let found = with_either!(&self.known, known => known.read_by(key, count));
        found && key.has(&self.shared)
    }

    /// Returns whether a rule found here in this epoch is the answer, so that the other tuple,
    /// whose best rule has the precedence `next`, need not be looked up.
    #[inline(always)]
    pub fn decides(&self, epoch: Epoch, next: Option<u32>) -> bool {
        self.from <= epoch && next <= Some(self.floor)
    }

    fn bytes(&self) -> usize {
        with_either!(&self.known, known => known.bytes()) + size_of_val(&*self.edits)
    }

    /// Starts a search for the packets with these indices in a burst of at most [`LOOKUP_MAX`].
    #[inline(always)]
    pub fn search<'g, 'n, K: Words>(
        &'g self,
        keys: &[K],
        those: impl Iterator<Item = usize>,
        own: &'n mut [u32; LOOKUP_MAX],
    ) -> ByWords<Search<'g, 'n, 1, 4>, Search<'g, 'n, 2, 2>> {
        match &self.known {
            ByWords::One(known) => ByWords::One(self.search_in(known, keys, those, own)),
            ByWords::Two(known) => ByWords::Two(self.search_in(known, keys, those, own)),
        }
    }

    /// Computes and prefetches packets' buckets.
    #[inline(never)] // keeps what its loop needs in registers
    fn search_in<'g, 'n, K: Words, const N: usize, const SLOTS: usize>(
        &'g self,
        known: &'g Buckets<N, SLOTS>,
        keys: &[K],
        those: impl Iterator<Item = usize>,
        own: &'n mut [u32; LOOKUP_MAX],
    ) -> Search<'g, 'n, N, SLOTS> {
        for index in those {
            let bucket = known.own(known.values(&keys[index]));
            own[index % LOOKUP_MAX] = bucket;
            prefetch(known.buckets.as_ptr().wrapping_add(bucket as usize));
        }
        Search {
            known,
            shared: &self.shared,
            edits: &self.edits,
            own,
        }
    }

    /// Finds the rules of the pending packets that are in force here, stores their summaries, and
    /// leaves the other packets in `pending`. `out` must be None for all of them. Only for a guard
    /// whose epoch passes [`Exact::decides`].
    #[inline(always)]
    pub fn look_up<'g, K: Words>(
        &'g self,
        pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
        keys: &[K],
        out: &mut [Option<&'g Rule>],
        summaries: &mut Summaries<'g>,
    ) {
        let those = pending.iter().map(|index| usize::from(*index));
        let mut own = [0; LOOKUP_MAX];
        with_either!(self.search(keys, those, &mut own), search => search.resolve(pending, keys, out, summaries));
    }
}

/// A search for packets of a burst by `N` words, whose buckets have been computed and prefetched.
pub(crate) struct Search<'g, 'n, const N: usize, const SLOTS: usize> {
    known: &'g Buckets<N, SLOTS>,
    shared: &'g [MatchWord],
    edits: &'g [ActionBlock],
    /// The packets' buckets, in the caller's memory.
    own: &'n [u32; LOOKUP_MAX],
}

impl<'g, const N: usize, const SLOTS: usize> Search<'g, '_, N, SLOTS> {
    /// Returns whether two packets, given by index and key, have different values.
    #[inline(always)]
    pub fn differ<K: Words>(&self, (a, one): (usize, &K), (b, other): (usize, &K)) -> bool {
        // Different buckets decide most cases.
        self.own[a % LOOKUP_MAX] != self.own[b % LOOKUP_MAX]
            || self.known.values(one) != self.known.values(other)
    }

    #[inline(always)]
    fn admits(&self, key: &impl Words) -> bool {
        match *self.shared {
            [] => true,
            // The usual case: all rules agree in one word, the kind of packet.
            [
                MatchWord {
                    word, mask, value, ..
                },
            ] => key.word(word) & mask == value,
            _ => key.has(self.shared),
        }
    }

    #[inline(always)]
    fn slot(&self, index: usize, key: &impl Words) -> Option<usize> {
        let slot = (self.known).find(self.own[index % LOOKUP_MAX], self.known.values(key))?;
        self.admits(key).then_some(slot)
    }

    /// Returns the verdict of the rule that packet `index` meets, where it has one. Only for a
    /// guard whose epoch passes [`Exact::decides`].
    #[inline(always)]
    pub fn verdict(&self, index: usize, key: &impl Words) -> Option<CountedVerdict<'g>> {
        let slot = self.slot(index, key)?;
        self.known.answer(slot).verdict(self.edits)
    }

    /// See [`Exact::look_up`].
    #[inline(never)]
    pub fn resolve<K: Words>(
        &self,
        pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
        keys: &[K],
        out: &mut [Option<&'g Rule>],
        summaries: &mut Summaries<'g>,
    ) {
        let places = &*self.known.places;
        summaries.edits = Edits::Own(self.edits);
        let mut slots = [None; LOOKUP_MAX];
        // Borrow once, because `SmallVec` checks where its elements are with each index.
        let indices = &mut pending[..];
        for (slot, index) in slots.iter_mut().zip(&*indices) {
            let index = usize::from(*index);
            *slot = self.slot(index, &keys[index]);
            if let Some(slot) = *slot {
                prefetch(places.as_ptr().wrapping_add(slot));
            }
        }
        let mut left = 0;
        for turn in 0..indices.len().min(LOOKUP_MAX) {
            let index = indices[turn];
            let place = slots[turn].map(|slot| &places[slot]);
            let rule = place.and_then(|place| {
                let (rule, marks) = place.get(Ordering::Acquire);
                // Check the mark first: a marked rule may have been freed.
                if marks & summary::ASK != 0 {
                    return None;
                }
                // SAFETY: null in a slot that is not used. Else the rule came no later than `from`,
                // and the guard's epoch is not before that (`decides`); and it is marked
                // before its end is published. So this one, without a mark, is in force in the
                // guard's epoch, and freed only after the guard is gone.
                unsafe { rule.as_ref() }
            });
            if let Some(place) = place {
                summaries.tell(usize::from(index), place);
            }
            out[usize::from(index)] = rule;
            indices[left] = index;
            left += usize::from(rule.is_none());
        }
        pending.truncate(left);
    }
}

/// The tuple of a table that may get an exact table.
pub(crate) struct Largest<'a> {
    tuple: &'a TupleWriter,
    /// The lowest precedence of rules that beat all in the other tuple.
    floor: u32,
}

/// The writer's state.
#[derive(Default)]
pub(crate) struct ExactWriter {
    made: Option<Arc<Exact>>,
    /// Number of rules that came or went since it was built.
    changed: usize,
    /// Rebuild only after more changes than this.
    wait_for: usize,
    pace: Pace,
}

impl ExactWriter {
    /// Returns the exact table of this tuple, for its readers.
    pub fn of(&self, tuple: &Arc<Tuple>) -> Option<Arc<Exact>> {
        let made = self.made.as_ref();
        made.filter(|made| Arc::ptr_eq(&made.tuple, tuple)).cloned()
    }

    /// Marks a rule that comes or goes; must be called before that is published.
    pub fn changes(&mut self, rule: RuleRef) {
        self.changed += 1;
        if let Some(made) = &self.made {
            made.ask(rule.rule());
        }
    }

    /// Returns whether the exact table should be built, rebuilt or given up once its pace permits.
    pub fn is_wanted<'a>(&self, candidate: impl FnOnce() -> Option<Largest<'a>>) -> bool {
        self.changed > self.wait_for && (self.made.is_some() || candidate().is_some())
    }

    /// Rebuilds the exact table when it is time to; returns true when the published classifier must
    /// be replaced.
    pub fn renew<'a>(
        &mut self,
        candidate: impl FnOnce() -> Option<Largest<'a>>,
        domain: &Domain,
        now: Instant,
    ) -> bool {
        if self.changed <= self.wait_for || !self.pace.is_time(self.changed, now) {
            return false;
        }
        let had = self.made.take().is_some();
        let Some(candidate) = candidate() else {
            return had;
        };
        self.pace.begun(now);
        let began = Instant::now();
        let (made, later) = Exact::of(&candidate, domain);
        self.pace.done(began.elapsed() * PATIENCE);
        self.wait_for = match made {
            Some(_) => 0,
            None => candidate.tuple.rules() / 8,
        };
        self.made = made.map(Arc::new);
        self.changed = later;
        had || self.made.is_some()
    }

    /// Drops the exact table until one pays off again; returns true when the published classifier
    /// must be replaced.
    pub fn give_up(&mut self) -> bool {
        (self.wait_for, self.changed) = (0, self.changed.max(1));
        self.made.take().is_some()
    }

    /// Returns the tuple that may get an exact table: the one with most rules, if the table has few
    /// tuples and lookups reach this one first.
    pub fn candidate(tuples: &TupleWriters) -> Option<Largest<'_>> {
        let fits = (RULES_MIN..=RULES_MAX).contains(&tuples.len()) && tuples.masks() <= MASKS_MAX;
        if !fits {
            return None;
        }
        let tuple = tuples.writers().max_by_key(|writer| writer.rules())?;
        let mut others = tuples
            .writers()
            .filter(|other| !std::ptr::eq(*other, tuple));
        let floor = match others.next() {
            Some(other) if other.highest() <= tuple.highest() => other.highest().unwrap_or(0),
            // Patterns tell which packets may meet the single rule, and the others begin with the
            // large tuple (`Patterned::look_up`).
            Some(other) if !other.is_single() => return None,
            _ => 0,
        };
        Some(Largest { tuple, floor })
    }

    /// Lets the next build start without waiting.
    pub fn forget(&mut self) {
        self.pace.forget();
    }

    /// Returns the number of rules in the exact table, and its memory in bytes.
    pub fn summaries(&self) -> Option<(usize, usize)> {
        let made = self.made.as_ref()?;
        Some((made.rules, made.bytes()))
    }
}

/// Packets that are being looked up in an exact table.
pub(crate) struct ExactMatches<'g, 'n, const N: usize, const SLOTS: usize> {
    pub(crate) tuples: &'g [TupleEntry],
    pub(crate) search: Search<'g, 'n, N, SLOTS>,
}

impl<'g, const N: usize, const SLOTS: usize> Verdicts<'g> for ExactMatches<'g, '_, N, SLOTS> {
    #[inline(always)]
    fn differ<K: Words>(&self, one: (usize, &K), other: (usize, &K)) -> bool {
        self.search.differ(one, other)
    }

    #[inline(always)]
    fn verdict<K: Words>(&self, index: usize, key: &K) -> Option<CountedVerdict<'g>> {
        self.search.verdict(index, key)
    }

    #[inline(never)] // as above
    fn rules<'a, K: Words>(
        &'a self,
        from: usize,
        keys: &[K],
        epoch: Epoch,
        room: &'a mut FoundRules<'g>,
    ) -> &'a FoundRules<'g> {
        let FoundRules { found, summaries } = &mut *room;
        let out = &mut found[..keys.len()];
        let mut pending = (from as u8..keys.len() as u8).collect();
        self.search.resolve(&mut pending, keys, out, summaries);
        lookup_pending(self.tuples, &mut pending, &|index| &keys[index], epoch, out);
        room
    }
}
