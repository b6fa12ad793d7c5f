//! Conjunctive match: rules that are parts of a condition (ovs-fields(7), "Conjunctive Match
//! Fields").
//!
//! A rule whose steps are [`Op::Conjunction`](crate::actions::Op::Conjunction) is a *soft* rule: it
//! is never what a lookup finds. Each of its clauses says that the packet fulfils clause k of n of
//! a condition with a number. Where all n are fulfilled by soft rules of one precedence above the
//! best ordinary rule, the table is looked up again, soft rules left out, with that number as
//! `conj_id`; what this finds is the answer. If it finds nothing, the next condition has its turn.
//! So n sets of m rules do the work of m^n.
//!
//! Soft rules lie in tuples of their own, so that a table without them pays nothing, and one with
//! them has its ordinary rules looked up as ever. A packet's fulfilled clauses are gathered in a
//! hash table of the worker's, which costs one probe for each clause of each soft rule that it
//! matches, however many rules there are.

use super::effort::Count;
use super::mini_key::Reads;
use super::{Classifier, Classify, Keys};
use crate::Program;
use crate::actions::Clause;
use crate::actions::learn::Learn;
use crate::burst::Words;
use crate::classifier::describe::Description;
use crate::classifier::tuple_space::{TupleEntry, TupleWriters};
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::RuleRef;
use crate::rule::summary::Summaries;
use crate::secret::Secret;
use packet::FlowKey;
use packet::key::at;
use std::cell::RefCell;
use std::cmp::Reverse;

/// Conditions that one packet may fulfil before its lookup gives up: each costs a lookup. Those
/// that rules of one priority describe must not overlap, so a table that is used as it should be
/// fulfils one for each priority.
const CONDITIONS_MAX: usize = 256;

/// The writer's side: the soft rules of a table.
#[derive(Default)]
pub(crate) struct SoftWriter {
    tuples: TupleWriters,
}

impl SoftWriter {
    /// Links a rule; true when the published list of tuples must be made anew.
    pub fn link(&mut self, program: &Program, rule: RuleRef) -> bool {
        self.tuples.link(program, rule).raised
    }

    /// Unlinks a rule; true as for `link`.
    pub fn unlink(&mut self, rule: RuleRef) -> bool {
        self.tuples.unlink(rule)
    }

    pub fn is_empty(&self) -> bool {
        self.tuples.len() == 0
    }

    /// What gathering costs.
    pub fn describe(&self) -> Description {
        self.tuples.describe()
    }

    pub fn entries(&self) -> Box<[TupleEntry]> {
        self.tuples.entries()
    }

    pub fn rules(&self) -> Vec<RuleRef> {
        self.tuples.rules()
    }
}

/// One condition as far as a packet has fulfilled it. An unused place has no clauses.
#[derive(Clone, Copy, Default)]
struct Condition {
    priority: u32,
    id: u32,
    clauses: u8,
    fulfilled: u64,
}

/// A worker's memory for one lookup, kept for the next.
struct Scratch {
    secret: Secret,
    /// Open addressing; a power of two of places, at least half of them unused.
    places: Vec<Condition>,
    used: Vec<u32>,
    complete: Vec<(Reverse<u32>, u32)>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::new(Secret::draw(0)));
}

impl Scratch {
    fn new(secret: Secret) -> Scratch {
        Scratch {
            secret,
            places: Vec::new(),
            used: Vec::new(),
            complete: Vec::new(),
        }
    }

    fn begin(&mut self) {
        for place in self.used.drain(..) {
            self.places[place as usize] = Condition::default();
        }
        self.complete.clear();
    }

    /// Where a condition is, or goes. Rules that disagree about the number of clauses speak of
    /// different conditions.
    fn place(&self, priority: u32, clause: &Clause) -> usize {
        let mask = self.places.len() - 1;
        let words = u64::from(clause.id) << 32 | u64::from(priority) << 7 | u64::from(clause.of);
        let mut at = self.secret.hash([words]) as usize & mask;
        loop {
            let place = &self.places[at];
            let same = place.id == clause.id && place.priority == priority;
            if place.clauses == 0 || same && place.clauses == clause.of {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    fn fulfil(&mut self, priority: u32, clause: &Clause) {
        if (self.used.len() + 1) * 2 > self.places.len() {
            self.grow();
        }
        let at = self.place(priority, clause);
        let place = &mut self.places[at];
        if place.clauses == 0 {
            *place = Condition {
                priority,
                id: clause.id,
                clauses: clause.of,
                fulfilled: 0,
            };
            self.used.push(at as u32);
        }
        let all = u64::MAX >> (64 - u32::from(clause.of));
        let before = place.fulfilled;
        place.fulfilled |= 1 << clause.index;
        if place.fulfilled == all && before != all && self.complete.len() < CONDITIONS_MAX {
            self.complete.push((Reverse(priority), clause.id));
        }
    }

    #[cold]
    fn grow(&mut self) {
        let old = std::mem::take(&mut self.places);
        self.places = vec![Condition::default(); (old.len() * 2).max(64)];
        let used = std::mem::take(&mut self.used);
        for condition in used.iter().map(|at| old[*at as usize]) {
            let clause = Clause {
                id: condition.id,
                index: 0,
                of: condition.clauses,
            };
            let at = self.place(condition.priority, &clause);
            self.places[at] = condition;
            self.used.push(at as u32);
        }
    }

    /// Gathers what the soft rules above a precedence say about a key.
    fn gather(&mut self, soft: &[TupleEntry], key: &FlowKey, epoch: Epoch, floor: Option<u32>) {
        let above = |priority: u32| floor.is_none_or(|floor| priority > floor);
        for entry in soft {
            if !above(entry.max_priority) {
                return;
            }
            let tuple = entry.tuple.view();
            for rule in tuple.held(tuple.hash(key), key, epoch) {
                if !above(rule.spec.priority) {
                    break;
                }
                for clause in rule.spec.ops.clauses().unwrap_or_default() {
                    self.fulfil(rule.spec.priority, clause);
                }
            }
        }
    }
}

/// The answer of a table that has soft rules: `ordinary` is the best of its other rules, `look_up`
/// finds the best of these for another key.
#[cold]
pub(crate) fn look_up<'g>(
    soft: &[TupleEntry],
    key: &FlowKey,
    epoch: Epoch,
    ordinary: Option<&'g Rule>,
    look_up: impl Fn(&FlowKey) -> Option<&'g Rule>,
) -> Option<&'g Rule> {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.begin();
        let floor = ordinary.map(|rule| rule.spec.priority);
        scratch.gather(soft, key, epoch, floor);
        if scratch.complete.is_empty() {
            return ordinary;
        }
        // Which of several conditions of one precedence comes first is not defined; the lowest
        // number does.
        scratch.complete.sort_unstable();
        let mut key = *key;
        let found = scratch.complete.iter().find_map(|(_, id)| {
            key.set_u32(at::CONJ_ID, *id);
            look_up(&key)
        });
        found.or(ordinary)
    })
}

/// Ordinary rules, if there are any, and soft ones.
pub(crate) struct Conjunctive {
    pub(crate) ordinary: Option<Box<Classifier>>,
    pub(crate) soft: Box<[TupleEntry]>,
}

impl Classify for Conjunctive {
    /// Conditions are gathered from whole keys.
    fn reads(&self) -> Reads {
        Reads::Whole
    }

    /// Finds nothing for keys that are not whole.
    #[inline(never)]
    fn look_up<'k, 'g, K: Words + 'k>(
        &'g self,
        keys: impl Keys<'k, K>,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        _: Option<&mut Summaries<'g>>,
    ) {
        let ordinary = self.ordinary.as_deref();
        let look_up_again = |key: &FlowKey| {
            let mut out = [None];
            if let Some(ordinary) = ordinary {
                ordinary.look_up(std::slice::from_ref(key), epoch, &mut out, None);
            }
            out[0]
        };
        let whole = |index| keys.key(index).whole();
        debug_assert!((0..out.len()).all(|index| whole(index).is_some()));
        if let Some(ordinary) = ordinary {
            ordinary.look_up(keys, epoch, out, None);
        }
        for (index, found) in out.iter_mut().enumerate() {
            if let Some(key) = whole(index) {
                *found = look_up(&self.soft, key, epoch, *found, look_up_again);
            }
        }
    }

    /// Learned rules are ordinary ones.
    fn find_exact<'g>(&'g self, learn: &Learn, key: &FlowKey, epoch: Epoch) -> Option<&'g Rule> {
        self.ordinary.as_deref()?.find_exact(learn, key, epoch)
    }

    fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count) {
        if let Some(ordinary) = &self.ordinary {
            ordinary.count_effort(key, epoch, count);
        }
        // Every tuple of soft rules is looked at, for each may fulfil a clause.
        for entry in &self.soft {
            count.probes += 1;
            entry.tuple.view().read_by(key, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(id: u32) -> u64 {
        u64::from(id) << 32 | 7 << 7 | 2
    }

    /// How far all of these conditions stand from where they are looked for first, with a new
    /// secret.
    fn steps(ids: &[u32]) -> usize {
        let mut scratch = Scratch::new(Secret::random(0));
        for id in ids {
            let clause = Clause {
                id: *id,
                index: 0,
                of: 2,
            };
            scratch.fulfil(7, &clause);
        }
        let mask = scratch.places.len() - 1;
        let far = |place: &u32| {
            let condition = &scratch.places[*place as usize];
            let home = scratch.secret.hash([words(condition.id)]) as usize;
            (*place as usize).wrapping_sub(home) & mask
        };
        assert_eq!(scratch.used.len(), ids.len());
        scratch.used.iter().map(far).sum()
    }

    /// Conditions whose numbers differ in their upper bits only, or in a way that a hash which is
    /// no secret makes nothing of, are found as soon as others.
    #[test]
    fn conditions_are_spread_whatever_their_numbers() {
        let known = Secret::numbered(0);
        let alike = (0..).filter(|id| known.hash([words(*id)]) & 0x3ff == 5);
        for ids in [
            (0..1000).map(|id| id << 20).collect::<Vec<u32>>(),
            alike.take(1000).collect(),
        ] {
            // The multiplier keeps some of them together with a few secrets, so half of these is
            // never.
            let mut steps: Vec<usize> = (0..21).map(|_| steps(&ids)).collect();
            steps.sort_unstable();
            assert!(steps[10] < ids.len() * 5, "{steps:?}");
        }
    }
}
