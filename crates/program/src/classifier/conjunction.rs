//! Conjunctive match: rules that are parts of a condition (ovs-fields(7), "Conjunctive Match
//! Fields").
//!
//! A rule whose steps are [`Op::Conjunction`](crate::actions::Op::Conjunction) is a *soft* rule: a
//! lookup never returns it. Each of its clauses says that the packet fulfils clause k of n of a
//! numbered condition. Where soft rules of one precedence, above that of the best ordinary rule,
//! fulfil all n, the table is looked up again, without soft rules, with that number as `conj_id`,
//! and the rule found is the answer. If none is found, the next condition is tried. So n sets of m
//! rules do the work of m^n.
//!
//! Soft rules lie in tuples of their own, so a table without them pays nothing, and ordinary rules
//! are looked up as usual. The clauses that a packet fulfils are collected in a hash table of the
//! worker's, which costs one probe for each clause of each soft rule that it matches, however many
//! rules there are.

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

/// Most fulfilled conditions that one lookup tries: each costs a further lookup. Conditions of one
/// priority must not overlap (ovs-fields(7)), so in a correct table a packet fulfils at most one
/// for each priority.
const CONDITIONS_MAX: usize = 256;

/// The writer's state of a table's soft rules.
#[derive(Default)]
pub(crate) struct SoftWriter {
    tuples: TupleWriters,
}

impl SoftWriter {
    /// Links a rule; returns true when the published list of tuples must be replaced.
    pub fn link(&mut self, program: &Program, rule: RuleRef) -> bool {
        self.tuples.link(program, rule).raised
    }

    /// Unlinks a rule; returns true when the published list of tuples must be replaced.
    pub fn unlink(&mut self, rule: RuleRef) -> bool {
        self.tuples.unlink(rule)
    }

    pub fn is_empty(&self) -> bool {
        self.tuples.len() == 0
    }

    /// Describes the cost of collecting clauses.
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

/// The clauses of one condition that a packet has fulfilled. An unused slot has none.
#[derive(Clone, Copy, Default)]
struct Condition {
    priority: u32,
    id: u32,
    clauses: u8,
    fulfilled: u64,
}

/// A worker's memory for one lookup, reused by the next.
struct Scratch {
    secret: Secret,
    /// Hash table with open addressing; its length is a power of two, and at least half is unused.
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

    /// Returns the slot where a condition is, or goes. Clauses with the same id but different `of`
    /// belong to different conditions.
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

    /// Collects the clauses that a key fulfils by soft rules above a precedence.
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

/// Returns the answer of a table that has soft rules: `ordinary` is the best of its other rules,
/// `look_up` finds the best of these for another key.
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
        // The order of fulfilled conditions of one precedence is undefined; take the lowest id
        // first.
        scratch.complete.sort_unstable();
        let mut key = *key;
        let found = scratch.complete.iter().find_map(|(_, id)| {
            key.set_u32(at::CONJ_ID, *id);
            look_up(&key)
        });
        found.or(ordinary)
    })
}

/// A table with soft rules, and the lookup of its ordinary rules, if any.
pub(crate) struct Conjunctive {
    pub(crate) ordinary: Option<Box<Classifier>>,
    pub(crate) soft: Box<[TupleEntry]>,
}

impl Classify for Conjunctive {
    /// Clauses are collected from whole keys.
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

    /// Searches the ordinary rules, because learned rules are such.
    fn find_exact<'g>(&'g self, learn: &Learn, key: &FlowKey, epoch: Epoch) -> Option<&'g Rule> {
        self.ordinary.as_deref()?.find_exact(learn, key, epoch)
    }

    fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count) {
        if let Some(ordinary) = &self.ordinary {
            ordinary.count_effort(key, epoch, count);
        }
        // Every tuple of soft rules is probed, because each may fulfil a clause.
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

    /// Returns the sum of probe distances of all these conditions, with a new secret.
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

    /// Conditions with ids that differ only in their upper bits, or that an unkeyed hash would map
    /// to the same slot, are found as fast as others.
    #[test]
    fn conditions_are_spread_whatever_their_numbers() {
        let known = Secret::numbered(0);
        let alike = (0..).filter(|id| known.hash([words(*id)]) & 0x3ff == 5);
        for ids in [
            (0..1000).map(|id| id << 20).collect::<Vec<u32>>(),
            alike.take(1000).collect(),
        ] {
            // With a few secrets the multiplier keeps some of them together, so compare the median.
            let mut steps: Vec<usize> = (0..21).map(|_| steps(&ids)).collect();
            steps.sort_unstable();
            assert!(steps[10] < ids.len() * 5, "{steps:?}");
        }
    }
}
