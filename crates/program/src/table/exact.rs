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
    /// No rule in it has a lower precedence. Rules below the other tuple's highest are left out.
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
    fn of(largest: &Largest<'_>, domain: &Domain) -> (Option<Exact>, usize) {
        let writer = largest.tuple;
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
            // Of a packet that meets such a rule, the other tuple is asked as well.
            if rule.spec.priority < largest.floor {
                return;
            }
            if rule.added > exact.from || rule.removed() != NEVER {
                later += 1;
            } else if let Does::Sends(port) = Does::of(rule) {
                let values = exact.values(&rule.spec.matching);
                let at = exact.slot_of(values);
                let place = Place::new(NonNull::from(rule), 0, rule.spec.counter, port);
                exact.slots[at] = Slot { values, place };
                exact.floor = exact.floor.min(rule.spec.priority);
                exact.rules += 1;
            }
        });
        // Of rules with one match only the first one is here.
        let worth_it = (exact.rules + later) * 2 >= rules.max(RULES_MIN);
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
    fn slot_of(&self, values: [u64; WORDS_MAX]) -> usize {
        match *self.words {
            [_] => {
                let values = [values[0]];
                probe(&self.slots, View::hash_bits(values) as usize, values)
            }
            _ => probe(&self.slots, View::hash_bits(values) as usize, values),
        }
    }

    /// Sees to it that packets which this rule's match holds for are looked up in the tuple, at once.
    fn ask(&self, rule: &Rule) {
        if self.tuple.takes(&rule.spec.matching) {
            let slot = &self.slots[self.slot_of(self.values(&rule.spec.matching))];
            if slot.is_used() {
                slot.place.ask(true);
            }
        }
    }

    /// Notes what looking one key up reads; returns whether it finds a rule, so that nothing else is asked.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) -> bool {
        count.reads(&*self.shared);
        count.probes += 1;
        let mut values = [0; WORDS_MAX];
        for (value, (word, mask)) in values.iter_mut().zip(&self.words) {
            *value = key.word(*word) & mask;
        }
        let slot = &self.slots[self.slot_of(values)];
        count.reads(slot);
        let (rule, marks) = slot.place.get(Ordering::Relaxed);
        !rule.is_null() && marks & ASK == 0 && key.has(&self.shared)
    }

    /// Whether a lookup in this epoch that finds a rule here needs no other tuple, of which the best rule has the precedence `next`.
    #[inline(always)]
    pub fn decides(&self, epoch: Epoch, next: Option<u32>) -> bool {
        self.from <= epoch && next <= Some(self.floor)
    }

    /// Finds the rules of those packets that can be told here, says what is known of these, and leaves the others in `pending`, of which `out` has none so far. Only
    /// for a guard of whose epoch [`Exact::decides`] says so. `pending` has [`LOOKUP_MAX`] packets at most.
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
        debug_assert!(pending.len() <= LOOKUP_MAX);
        let mut first = [0_u32; LOOKUP_MAX];
        // Once, for a `SmallVec` asks with each index where its bytes lie.
        let indices = &mut pending[..];
        for (first, index) in first.iter_mut().zip(&*indices) {
            let at = View::hash_bits(bits(key(usize::from(*index)))) as usize & mask;
            *first = at as u32;
            prefetch(slots.as_ptr().wrapping_add(at));
        }
        let mut left = 0;
        for turn in 0..indices.len().min(LOOKUP_MAX) {
            let index = indices[turn];
            let key = key(usize::from(index));
            let place = &slots[probe(slots, first[turn] as usize, bits(key))].place;
            let (rule, marks) = place.get(Ordering::Acquire);
            let tells = marks & ASK == 0 && key.has(&self.shared);
            let rule = if tells {
                // SAFETY: null in a slot that is not used. Else the rule came no later than `from`, and the guard's epoch is not before that (`decides`); and it is marked
                // before its end is published. So one without a mark is in force in the guard's epoch, and freed only after the guard is gone.
                unsafe { rule.as_ref() }
            } else {
                None
            };
            out[usize::from(index)] = rule;
            told.tell(usize::from(index), place);
            indices[left] = index;
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

/// The slot with these values, or the one where they belong: the first of these from `at` on.
#[inline(always)]
fn probe<const N: usize>(slots: &[Slot], mut at: usize, values: [u64; N]) -> usize {
    let mask = slots.len() - 1;
    loop {
        let slot = &slots[at & mask];
        let both = slot.values.iter().zip(values);
        let differ = both.fold(0, |differ, (value, wanted)| differ | value ^ wanted);
        if differ == 0 || !slot.is_used() {
            return at & mask;
        }
        at += 1;
    }
}

/// The tuple of a table that this may be worth while for.
pub(super) struct Largest<'a> {
    tuple: &'a TupleWriter,
    /// The least precedence of rules that beat all in the other tuple.
    floor: u32,
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

    /// The tuple of a table that this may be worth while for: the one with most rules, if there are few others and lookups come to it first.
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
            // Patterns tell which packets meet it, and the others begin with the large one (`Patterned::look_up`).
            Some(other) if !other.is_single() => return None,
            _ => 0,
        };
        Some(Largest { tuple, floor })
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
