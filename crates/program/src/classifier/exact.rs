//! Exact match: for rules that all look at the same bits, a hash table by value of what their
//! packets need to know.
//!
//! A tuple's slot names the rule that a packet may have met; whether it has, where it is counted
//! and where it goes stands in the rule, a cache line anywhere in memory. Here value, counter and
//! port, or the number of edits, stand in the slot, so a packet that is carried out by what they
//! say (`walk::front`) reads one line. Others read the line of the rule's place as well. Bits in
//! which all rules agree are asked for once, before, and one or two words are left to compare.
//! A cache line is a bucket of four rules, or of two where they have two words: they are compared
//! without a choice, so that it does not matter to the processor's guesses which of them it is.
//! What else is known of a rule, above all its address, stands apart ([`super::places`]), for those
//! who ask.
//!
//! Such a table is made from what a tuple holds at one moment, and not changed afterwards but for
//! marks: a rule that ends is marked before its end is published, and so is one whose value another
//! rule has that comes. Packets that are led to a mark or to nothing are looked up in the tuple,
//! which holds all rules always; when there are many of them the table is made anew. So are those
//! of a rule that has found no room in its own bucket or the two behind it: a lookup reads no more
//! than these, whatever values there are.

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

/// Most tuples of a table that has this: others have trees.
const MASKS_MAX: usize = 2;
/// Fewest rules of a table for which this is worth while: fewer stay in a first-level cache.
const RULES_MIN: usize = 64;
/// Most rules, for it is made on the control thread, in about a tenth of a microsecond a rule.
const RULES_MAX: usize = 1 << 17;
/// How much longer than it took to make one passes before the next one, beside what is usual: this
/// is not done in the background.
const PATIENCE: u32 = 10;

/// An odd number that looks random.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many buckets in a row a rule may stand in, from its own on: as many lines a lookup reads at
/// most, whatever values somebody chooses. What finds no room in these is left to the tuple.
const RUN: usize = 3;

/// Different edits of which there are copies at most, for copies are made on the control thread
/// too; rules with others are looked up in the tuple.
const EDITS_MAX: usize = 1 << 14;

/// Of a rule in a bucket: its packets are looked up in the tuple. Beyond the bits of a counter's
/// number.
const ASK: u32 = 1 << 31;
/// It edits before it sends.
const EDITS: u32 = 1 << 30;
const _: () = assert!(counters::MOST <= EDITS as usize);

/// Slots that are not used have no counter, and say [`ASK`] already.
const EMPTY: u32 = u32::MAX;

/// Where a rule's packets are counted and where they go.
struct Answer {
    /// A number, perhaps with [`ASK`] and [`EDITS`], or [`EMPTY`].
    counter: AtomicU32,
    /// The port, or the number of the edits.
    action: u32,
}

/// Some rules: `N` words of each that are compared, and what becomes of their packets. They fill it
/// from the front.
#[repr(C, align(64))]
struct Bucket<const N: usize, const SLOTS: usize> {
    /// By word.
    values: [[u64; SLOTS]; N],
    answers: [Answer; SLOTS],
}

const _: () = assert!(size_of::<Bucket<1, 4>>() == 64 && size_of::<Bucket<2, 2>>() == 64);

impl Answer {
    fn is_empty(&self) -> bool {
        self.counter.load(Ordering::Relaxed) == EMPTY
    }

    /// Sees to it that packets are looked up in the tuple, at once. Only the writer does.
    fn ask(&self) {
        let counter = self.counter.load(Ordering::Relaxed);
        self.counter.store(counter | ASK, Ordering::Relaxed);
    }

    /// Whether packets are looked up in the tuple.
    fn asks(&self) -> bool {
        self.counter.load(Ordering::Relaxed) & ASK != 0
    }

    /// The rule's verdict, by the edits of its table; none where packets are looked up in the
    /// tuple.
    #[inline(always)]
    fn verdict<'g>(&self, edits: &'g [ActionBlock]) -> Option<CountedVerdict<'g>> {
        // A mark is there before its rule's end is published, and a guard's epoch is read before
        // this: no other order is needed, for nothing else of an answer ever changes.
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

impl<const N: usize, const SLOTS: usize> Bucket<N, SLOTS> {
    fn new() -> Self {
        Bucket {
            values: [[0; SLOTS]; N],
            answers: std::array::from_fn(|_| Answer {
                counter: AtomicU32::new(EMPTY),
                action: 0,
            }),
        }
    }

    /// The first slot with these values, which may be one that is not used.
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

/// Rules by `N` words of each. What does not find room in its own bucket stands in the next one
/// that has some, of [`RUN`].
pub(crate) struct Buckets<const N: usize, const SLOTS: usize> {
    /// The words in which the rules differ, and the bits that they look at.
    words: [(u8, u64); N],
    secret: Secret,
    /// The last ones, all but one of a run, are nobody's own.
    buckets: Box<[Bucket<N, SLOTS>]>,
    /// The rules themselves, slot by slot.
    places: Box<[RuleSummary]>,
}

impl<const N: usize, const SLOTS: usize> Buckets<N, SLOTS> {
    /// Room for so many rules, with enough to spare that few of them stand in other buckets than
    /// their own.
    fn new(words: [(u8, u64); N], rules: usize) -> Self {
        let count = (rules * 5).div_ceil(2 * SLOTS).max(1) + RUN - 1;
        Buckets {
            words,
            secret: Secret::draw(0),
            buckets: (0..count).map(|_| Bucket::new()).collect(),
            places: (0..count * SLOTS).map(|_| RuleSummary::default()).collect(),
        }
    }

    /// What a rule wants in the words that are compared.
    fn wanted(&self, matching: &Match) -> [u64; N] {
        self.words.map(|(word, _)| {
            let wanted = matching.words().iter().find(|wanted| wanted.word == word);
            wanted.map_or(0, |wanted| wanted.value)
        })
    }

    /// What a packet has there.
    #[inline(always)]
    fn values(&self, key: &impl Words) -> [u64; N] {
        self.words.map(|(word, mask)| key.word(word) & mask)
    }

    /// The bucket where these values belong.
    #[inline(always)]
    fn own(&self, values: [u64; N]) -> u32 {
        // Once more, for the upper half of what comes of addresses in a row is none too well
        // spread: half of 100,000 would not find room where they belong.
        let hash = self.secret.hash(values).wrapping_mul(SPREAD) >> 32;
        let owned = self.buckets.len() - (RUN - 1);
        ((hash * owned as u64) >> 32) as u32
    }

    /// The slot with these values, of which `own` is the bucket. It may be one that is not used.
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

    /// Says where a rule of these values counts, perhaps with [`EDITS`], and what it does, and in
    /// which slot that stands; None where there is no room for it. There is none with the same
    /// values.
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

    /// Puts a rule in, what it does being a port or the number of edits; false where there is no
    /// room for it.
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

    /// Sees to it that packets which have a rule's values are looked up in the tuple, at once.
    fn ask(&self, rule: &Rule) {
        let values = self.wanted(&rule.spec.matching);
        if let Some(slot) = self.find(self.own(values), values) {
            self.answer(slot).ask();
            self.places[slot].ask(true);
        }
    }

    /// Notes what looking one key up reads; returns whether it finds a rule.
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

/// The same by one word and by two, of which buckets hold four rules and two: buckets themselves,
/// or searches in them.
pub(crate) enum ByWords<One, Two> {
    One(One),
    Two(Two),
}

/// Does the same with either.
macro_rules! with_either {
    ($either:expr, $each:ident => $what:expr) => {
        match $either {
            ByWords::One($each) => $what,
            ByWords::Two($each) => $what,
        }
    };
}

/// What is known of the rules of one tuple.
pub(crate) struct Exact {
    tuple: Arc<Tuple>,
    /// The epoch in which it was made: its rules hold in this one and later, unless they are
    /// marked.
    from: Epoch,
    /// No rule in it has a lower precedence. Rules below the other tuple's highest are left out.
    floor: u32,
    /// What all rules want alike.
    shared: Box<[MatchWord]>,
    known: ByWords<Buckets<1, 4>, Buckets<2, 2>>,
    /// What those do that edit before they send: copies of their own, so that a number leads to
    /// them without another line.
    edits: Box<[ActionBlock]>,
    /// How many are known.
    rules: usize,
}

impl Exact {
    /// Made of what a tuple holds; None where its rules differ in too much or few of them only
    /// send, perhaps after edits. Also how many of them have been left out that may be put in
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
        // By the list of steps.
        let mut numbers: HashMap<*const OpList, u32> = HashMap::new();
        let mut later = 0;
        writer.shared.each_chain(|chain| {
            let Some(rule) = chain.next() else {
                return;
            };
            // Of a packet that meets such a rule, the other tuple is asked as well.
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
        // Of rules with one match only the first one is here.
        let worth_it = (exact.rules + later) * 2 >= rules.max(RULES_MIN);
        (worth_it.then_some(exact), later)
    }

    /// Sees to it that packets which this rule's match holds for are looked up in the tuple, at
    /// once.
    fn ask(&self, rule: &Rule) {
        if self.tuple.takes(&rule.spec.matching) {
            with_either!(&self.known, known => known.ask(rule));
        }
    }

    /// Notes what looking one key up reads; returns whether it finds a rule, so that nothing else
    /// is asked.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) -> bool {
        count.reads(&*self.shared);
        count.probes += 1;
        let found = with_either!(&self.known, known => known.read_by(key, count));
        found && key.has(&self.shared)
    }

    /// Whether a lookup in this epoch that finds a rule here needs no other tuple, of which the
    /// best rule has the precedence `next`.
    #[inline(always)]
    pub fn decides(&self, epoch: Epoch, next: Option<u32>) -> bool {
        self.from <= epoch && next <= Some(self.floor)
    }

    fn bytes(&self) -> usize {
        with_either!(&self.known, known => known.bytes()) + size_of_val(&*self.edits)
    }

    /// Begins a search for those packets of a burst, of [`LOOKUP_MAX`] at most, whose numbers these
    /// are.
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

    /// Asks for packets' buckets.
    #[inline(never)] // so that what its loop needs stays in registers
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

    /// Finds the rules of those packets of a burst that can be summaries here, says what is known
    /// of these, and leaves the others in `pending`, of which `out` has none so far. Only for a
    /// guard of whose epoch [`Exact::decides`] says so.
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

/// A search for packets of a burst by `N` words, of which each one's bucket is known and has been
/// asked for.
pub(crate) struct Search<'g, 'n, const N: usize, const SLOTS: usize> {
    known: &'g Buckets<N, SLOTS>,
    shared: &'g [MatchWord],
    edits: &'g [ActionBlock],
    /// Where whoever asks keeps them.
    own: &'n [u32; LOOKUP_MAX],
}

impl<'g, const N: usize, const SLOTS: usize> Search<'g, '_, N, SLOTS> {
    /// Whether two packets, of which these are the numbers and the keys, have different values.
    #[inline(always)]
    pub fn differ<K: Words>(&self, (a, one): (usize, &K), (b, other): (usize, &K)) -> bool {
        // Their buckets tell at once, most of the time.
        self.own[a % LOOKUP_MAX] != self.own[b % LOOKUP_MAX]
            || self.known.values(one) != self.known.values(other)
    }

    #[inline(always)]
    fn admits(&self, key: &impl Words) -> bool {
        match *self.shared {
            [] => true,
            // Nearly always: the kind of packet.
            [MatchWord { word, mask, value }] => key.word(word) & mask == value,
            _ => key.has(self.shared),
        }
    }

    #[inline(always)]
    fn slot(&self, index: usize, key: &impl Words) -> Option<usize> {
        let slot = (self.known).find(self.own[index % LOOKUP_MAX], self.known.values(key))?;
        self.admits(key).then_some(slot)
    }

    /// The verdict of the rule that packet `index` meets, where that is known. Only for a guard of
    /// whose epoch [`Exact::decides`] says so.
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
        // Once, for a `SmallVec` asks with each index where its bytes lie.
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
                // The mark first: a rule with one may have been freed.
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

/// The tuple of a table that this may be worth while for.
pub(crate) struct Largest<'a> {
    tuple: &'a TupleWriter,
    /// The least precedence of rules that beat all in the other tuple.
    floor: u32,
}

/// The writer's side.
#[derive(Default)]
pub(crate) struct ExactWriter {
    made: Option<Arc<Exact>>,
    /// Rules that came or went since it was made.
    changed: usize,
    /// More must have changed before it is made anew.
    wait_for: usize,
    pace: Pace,
}

impl ExactWriter {
    /// What is known of a tuple's rules, for its readers.
    pub fn of(&self, tuple: &Arc<Tuple>) -> Option<Arc<Exact>> {
        let made = self.made.as_ref();
        made.filter(|made| Arc::ptr_eq(&made.tuple, tuple)).cloned()
    }

    /// Says that a rule holds from the next epoch on, or ends with it.
    pub fn changes(&mut self, rule: RuleRef) {
        self.changed += 1;
        if let Some(made) = &self.made {
            made.ask(rule.rule());
        }
    }

    /// Whether what is there is to be made anew, or given up, as soon as it is time to.
    pub fn is_wanted<'a>(&self, candidate: impl FnOnce() -> Option<Largest<'a>>) -> bool {
        self.changed > self.wait_for && (self.made.is_some() || candidate().is_some())
    }

    /// Makes it anew where it is time to; true when the published shape must be made anew, too.
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

    /// Gives it up, until it is worth while again; true when the published shape must be made anew.
    pub fn give_up(&mut self) -> bool {
        (self.wait_for, self.changed) = (0, self.changed.max(1));
        self.made.take().is_some()
    }

    /// The tuple of a table that this may be worth while for: the one with most rules, if there are
    /// few others and lookups come to it first.
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
            // Patterns tell which packets meet it, and the others begin with the large one
            // (`Patterned::look_up`).
            Some(other) if !other.is_single() => return None,
            _ => 0,
        };
        Some(Largest { tuple, floor })
    }

    /// The next making need not wait.
    pub fn forget(&mut self) {
        self.pace.forget();
    }

    /// How many rules are summaries of, and the memory for it.
    pub fn summaries(&self) -> Option<(usize, usize)> {
        let made = self.made.as_ref()?;
        Some((made.rules, made.bytes()))
    }
}

/// Packets in a table of exact matches.
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
