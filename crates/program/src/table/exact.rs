//! Exact match: for rules that all look at the same bits, a hash table by value of what their packets need to know.
//!
//! A tuple's slot names the rule that a packet may have met; whether it has, where it is counted and where it goes stands in the rule, a cache line anywhere in memory. Here value, counter and
//! port stand in the slot ([`super::places`]), so a packet that is only sent reads one line. Bits in which all rules agree are asked for once, before, and one or two words are left to compare.
//!
//! Such a table is made from what a tuple holds at one moment, and not changed afterwards but for marks: a rule that ends is marked before its end is published, and so is one whose
//! value another rule has that comes. Packets that are led to a mark or to nothing are looked up in the tuple, which holds all rules always; when there are many of them the table is made anew.

use super::effort::Count;
use super::pace::Pace;
use super::places::{ASK, Does, Place};
use super::{LOOKUP_MAX, RuleRef, Told, TupleWriter, TupleWriters};
use crate::epoch::{Domain, Epoch, NEVER};
use crate::rule::Rule;
use crate::tuple::{Tuple, View, Words, prefetch};
use packet::matching::MatchWord;
use packet::{FlowKey, Match};
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Most tuples of a table that has this: others have trees.
const MASKS_MAX: usize = 2;
/// Fewest rules of a table for which this is worth while: fewer stay in a first-level cache.
const RULES_MIN: usize = 64;
/// Most rules, for it is made on the control thread, in about a tenth of a microsecond a rule.
const RULES_MAX: usize = 1 << 17;
/// Words that are compared.
const WORDS_MAX: usize = 2;
/// How much longer than it took to make one passes before the next one, beside what is usual: this is not done in the background.
const PATIENCE: u32 = 10;

/// A rule's values, those that are compared, and what is to be known of it; two of these fill a cache line.
#[derive(Default)]
#[repr(C, align(32))]
struct Slot {
    values: [u64; WORDS_MAX],
    /// Without a rule in a slot that is not used.
    place: Place,
}

/// What is known of the rules of one tuple.
pub(crate) struct Exact {
    tuple: Arc<Tuple>,
    /// The epoch in which it was made: its rules hold in this one and later, unless they are marked.
    from: Epoch,
    /// No rule in it has a lower precedence.
    floor: u32,
    /// What all rules want alike.
    shared: Box<[MatchWord]>,
    /// The words in which they differ, and the bits that they look at.
    words: SmallVec<[(u8, u64); WORDS_MAX]>,
    /// A power of two, at most half of them used.
    slots: Box<[Slot]>,
    /// How many are used.
    rules: usize,
}

impl Exact {
    /// Made of what a tuple holds; None where its rules differ in too much or few of them only send. Also how many of them have been left out that may be put in later.
    fn of(writer: &TupleWriter, domain: &Domain) -> (Option<Exact>, usize) {
        let (mut shared, mut words) = (Vec::new(), SmallVec::new());
        for ((word, mask), agreed) in writer.shared.words().iter().zip(&writer.agreed) {
            if agreed.mask == *mask {
                shared.push(*agreed);
            } else {
                words.push((*word, *mask));
            }
        }
        if !(1..=WORDS_MAX).contains(&words.len()) {
            return (None, 0);
        }
        let rules = writer.rules();
        let slots = (rules * 2).next_power_of_two();
        let mut exact = Exact {
            tuple: Arc::clone(&writer.shared),
            from: domain.current(),
            floor: u32::MAX,
            shared: shared.into(),
            words,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            rules: 0,
        };
        let mut later = 0;
        writer.shared.each_chain(|chain| {
            let Some(rule) = chain.next() else {
                return;
            };
            if rule.added > exact.from || rule.removed() != NEVER {
                later += 1;
            } else if let Does::Sends(port) = Does::of(rule) {
                let values = exact.values(&rule.spec.matching);
                let at = exact.place(values);
                let place = Place::new(NonNull::from(rule), 0, rule.spec.counter, port);
                exact.slots[at] = Slot { values, place };
                exact.floor = exact.floor.min(rule.spec.priority);
                exact.rules += 1;
            }
        });
        // Of rules with one match only the first one is here.
        let worth_it = (exact.rules + later) * 2 >= rules;
        (worth_it.then_some(exact), later)
    }

    /// What a rule wants in the words that are compared.
    fn values(&self, matching: &Match) -> [u64; WORDS_MAX] {
        let mut values = [0; WORDS_MAX];
        for (value, (word, _)) in values.iter_mut().zip(&self.words) {
            let wanted = matching.words().iter().find(|wanted| wanted.word == *word);
            *value = wanted.map_or(0, |wanted| wanted.value);
        }
        values
    }

    /// The slot with these values, or the one where they belong.
    fn place(&self, values: [u64; WORDS_MAX]) -> usize {
        let hash = match *self.words {
            [_] => View::hash_bits([values[0]]),
            _ => View::hash_bits(values),
        };
        let mut at = hash as usize & (self.slots.len() - 1);
        while self.slots[at].is_used() && self.slots[at].values != values {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    /// Sees to it that packets which this rule's match holds for are looked up in the tuple, from the next epoch on.
    fn ask(&self, rule: &Rule) {
        if self.tuple.takes(&rule.spec.matching) {
            let slot = &self.slots[self.place(self.values(&rule.spec.matching))];
            if slot.is_used() {
                slot.place.ask(true);
            }
        }
    }

    /// Notes what looking one key up reads; returns the precedence of what it finds.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) -> Option<u32> {
        count.reads(&*self.shared);
        count.probes += 1;
        let mut values = [0; WORDS_MAX];
        for (value, (word, mask)) in values.iter_mut().zip(&self.words) {
            *value = key.word(*word) & mask;
        }
        let slot = &self.slots[self.place(values)];
        count.reads(slot);
        let (rule, marks) = slot.place.get(Ordering::Acquire);
        let tells = marks & ASK == 0 && key.has(&self.shared);
        // SAFETY: as in `find_by`: whoever counts does so under a guard.
        let rule = tells.then(|| unsafe { rule.as_ref() }).flatten();
        rule.map(|rule| rule.spec.priority)
    }

    /// Whether a lookup in this epoch that finds a rule here needs no other tuple, of which the best rule has the precedence `next`.
    #[inline(always)]
    pub fn decides(&self, epoch: Epoch, next: Option<u32>) -> bool {
        self.from <= epoch && next <= Some(self.floor)
    }

    /// Finds the rules of those packets that can be told here, says what is known of these, and leaves the others in `pending`, of which `out` has none so far.
    #[inline(never)]
    pub fn find<'k, 'g, K: Words + 'k>(
        &'g self,
        pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
        key: &impl Fn(usize) -> &'k K,
        out: &mut [Option<&'g Rule>],
        told: &mut Told<'g>,
    ) {
        match *self.words {
            [one] => self.find_by([one], pending, key, out, told),
            [one, other] => self.find_by([one, other], pending, key, out, told),
            _ => {}
        }
    }

    #[inline(always)]
    fn find_by<'k, 'g, K: Words + 'k, const N: usize>(
        &'g self,
        words: [(u8, u64); N],
        pending: &mut SmallVec<[u8; LOOKUP_MAX]>,
        key: &impl Fn(usize) -> &'k K,
        out: &mut [Option<&'g Rule>],
        told: &mut Told<'g>,
    ) {
        let slots = &*self.slots;
        let mask = slots.len() - 1;
        let bits = |key: &K| words.map(|(word, mask)| key.word(word) & mask);
        let mut first = [0_u32; LOOKUP_MAX];
        let count = pending.len().min(LOOKUP_MAX);
        for (first, index) in first.iter_mut().zip(&pending[..count]) {
            let at = View::hash_bits(bits(key(usize::from(*index)))) as usize & mask;
            *first = at as u32;
            prefetch(slots.as_ptr().wrapping_add(at));
        }
        let mut left = 0;
        for turn in 0..count {
            let index = pending[turn];
            let key = key(usize::from(index));
            let bits = bits(key);
            let mut at = first[turn % LOOKUP_MAX] as usize;
            let place = loop {
                let slot = &slots[at & mask];
                let both = slot.values.iter().zip(bits);
                let differ = both.fold(0, |differ, (value, bits)| differ | value ^ bits);
                if differ == 0 || !slot.is_used() {
                    break &slot.place;
                }
                at += 1;
            };
            let (rule, marks) = place.get(Ordering::Acquire);
            let tells = marks & ASK == 0 && key.has(&self.shared);
            // SAFETY: null in a slot that is not used; else a rule without a mark is in force in the epoch of every guard under which that is seen, so it is freed only after they are gone.
            let rule = tells.then(|| unsafe { rule.as_ref() }).flatten();
            out[usize::from(index)] = rule;
            told.tell(usize::from(index), place);
            pending[left] = index;
            left += usize::from(rule.is_none());
        }
        pending.truncate(left);
    }
}

impl Slot {
    fn is_used(&self) -> bool {
        !self.place.get(Ordering::Relaxed).0.is_null()
    }
}

/// The writer's side.
#[derive(Default)]
pub(super) struct ExactWriter {
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

    /// Whether what is there is to be made anew, or given up, as soon as it is time to. `tuple`: the one that it is for.
    pub fn is_wanted<'a>(&self, tuple: impl FnOnce() -> Option<&'a TupleWriter>) -> bool {
        self.changed > self.wait_for && (self.made.is_some() || tuple().is_some())
    }

    /// Makes it anew where it is time to; true when the published shape must be made anew, too.
    pub fn renew(&mut self, tuple: Option<&TupleWriter>, domain: &Domain, now: Instant) -> bool {
        if !self.is_wanted(|| tuple) || !self.pace.is_time(self.changed, now) {
            return false;
        }
        let had = self.made.take().is_some();
        let Some(tuple) = tuple else {
            return had;
        };
        self.pace.begun(now);
        let (made, later) = Exact::of(tuple, domain);
        self.wait_for = if made.is_some() { 0 } else { tuple.rules() / 8 };
        self.made = made.map(Arc::new);
        self.changed = later;
        self.pace.done(now.elapsed() * PATIENCE);
        had || self.made.is_some()
    }

    /// The tuple of a table that this is worth while for: the one with most rules, if there are few others.
    pub fn candidate(tuples: &TupleWriters) -> Option<&TupleWriter> {
        let fits = (RULES_MIN..=RULES_MAX).contains(&tuples.len()) && tuples.masks() <= MASKS_MAX;
        let largest = tuples.writers().max_by_key(|writer| writer.rules());
        largest.filter(|_| fits)
    }

    /// The next making need not wait.
    pub fn forget(&mut self) {
        self.pace.forget();
    }

    /// How many rules are told of, and the memory for it.
    pub fn told(&self) -> Option<(usize, usize)> {
        let made = self.made.as_ref()?;
        Some((made.rules, size_of_val(&*made.slots)))
    }
}
