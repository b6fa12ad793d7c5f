//! How a table's rules are looked up.
//!
//! A table's *shape* is the lookup that fits its rules:
//!
//! * [`Shape::Linear`]: up to [`LINEAR_MAX`](linear::LINEAR_MAX) rules, compared one after the other by precedence. Cost grows with the number of rules and with nothing
//!   else, so a table of four rules over four masks (the tuple space explosion of Csikor et al.) costs four compares for any traffic.
//! * [`Shape::Tuples`]: one hash table for each set of masked bits, tried in the order of the highest precedence in each, until what was found
//!   beats all that is left. A packet that differs from what all rules of a tuple have in common, their protocol for instance, passes it over
//!   without a look into memory. Hash tables grow in place; the list of tuples is replaced as a whole.
//! * [`Shape::Trees`]: decision trees made in the background, and tuples for what they do not hold ([`tree`]).
//! * [`Shape::Prefixes`]: a trie over one field that is changed in place, and tuples for rules that are no prefixes of it ([`trie`]).
//! * [`Shape::Conjunctive`]: one of the above, and beside it the rules that are parts of conditions ([`conjunction`]).

pub(crate) mod conjunction;
pub(crate) mod describe;
pub(crate) mod effort;
pub(crate) mod exact;
pub(crate) mod lanes;
pub(crate) mod linear;
pub(crate) mod mini_key;
pub(crate) mod tree;
pub(crate) mod trie;
pub(crate) mod tuple;
pub(crate) mod tuple_space;

use crate::actions::learn::Learn;
use crate::burst::{LOOKUP_MAX, Words};
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::Told;
use linear::{LinearEntry, linear};
use mini_key::Reads;
use packet::FlowKey;
use std::sync::Arc;
use tree::Trees;
use trie::{NextHops, Trie};
use tuple::MaskedWord;
use tuple_space::{TupleEntry, lookup_one, lookup_pending, lookup_tuples};

/// A table's lookup.
pub(crate) enum Shape {
    /// Compare all, in order.
    Linear(Box<[LinearEntry]>),
    /// Hash, tuple by tuple.
    Tuples(Box<[TupleEntry]>),
    /// Descend, then hash what has come since.
    Trees(TreesShape),
    /// Follow the bits of an address, then hash for what is no prefix.
    Prefixes(PrefixesShape),
    /// Ordinary rules, if there are any, and soft ones.
    Conjunctive {
        ordinary: Option<Box<Shape>>,
        soft: Box<[TupleEntry]>,
    },
}

/// Trees, and what they do not hold.
pub(crate) struct TreesShape {
    pub(crate) trees: Arc<Trees>,
    /// Tuples with rules that are not in the trees, with the highest precedence of those.
    pub(crate) beside: Box<[TupleEntry]>,
    /// All tuples.
    pub(crate) all: Box<[TupleEntry]>,
}

/// A trie, and what it does not hold.
pub(crate) struct PrefixesShape {
    pub(crate) trie: Arc<Trie>,
    /// As of [`TreesShape`].
    pub(crate) beside: Box<[TupleEntry]>,
    pub(crate) all: Box<[TupleEntry]>,
}

// SAFETY: rules are reached only under a guard of the domain, and outlive it (see `Domain::retire`); `Rule` itself is Sync.
unsafe impl Send for Shape {}

// SAFETY: as above; a published shape is not changed except through atomics inside `Tuple`.
unsafe impl Sync for Shape {}

/// A shape as readers find it.
pub(crate) struct Published {
    pub(crate) shape: Shape,
    /// What of a packet it looks at.
    pub(crate) reads: Reads,
    /// The matches of a short list, or the agreed bits of a few tuples, that look at hot words only.
    pub(crate) patterns: Option<Box<[packet::hot::Pattern]>>,
    /// The same of the first table's list, made ready for packets as they lie, where its rules only send or drop.
    pub(crate) sorting: Option<Box<packet::hot::Sorting>>,
    /// Whether no cache is expected to find sooner what a packet meets.
    pub(crate) quick: bool,
}

/// Most tuples of which a lookup costs no more than one in a cache of walks, which is one of the same kind.
pub(crate) const QUICK_TUPLES: usize = 2;

impl Shape {
    /// Whether a lookup costs no more than one in a cache of walks: that hashes five words, and reads a set's tags, a line and its way.
    pub(crate) fn is_quick(&self) -> bool {
        match self {
            Shape::Linear(_) => true,
            Shape::Tuples(tuples) => tuples.len() <= QUICK_TUPLES,
            Shape::Prefixes(shape) => shape.beside.len() < QUICK_TUPLES,
            Shape::Trees(_) | Shape::Conjunctive { .. } => false,
        }
    }
}

/// The rule that `learn` means where `key` has its values.
pub(crate) fn find_exact<'g>(
    shape: &'g Shape,
    learn: &Learn,
    key: &FlowKey,
    epoch: Epoch,
) -> Option<&'g Rule> {
    let priority = learn.priority.into();
    match shape {
        Shape::Linear(entries) => entries.iter().find_map(|entry| {
            let same = |(word, (at, mask)): (&MaskedWord, &(u8, u64))| {
                (word.word, word.mask) == (*at, *mask)
                    && key.words[usize::from(*at)] & mask == word.value
            };
            let same = entry.words.len() == learn.shape.len()
                && entry.words.iter().zip(&learn.shape).all(same);
            let rule = entry.rule();
            (same && rule.spec.priority == priority && rule.holds_in(epoch)).then_some(rule)
        }),
        Shape::Tuples(tuples)
        | Shape::Trees(TreesShape { all: tuples, .. })
        | Shape::Prefixes(PrefixesShape { all: tuples, .. }) => tuples
            .iter()
            .find_map(|entry| entry.tuple.find_exact(&learn.shape, key, priority, epoch)),
        // Learned rules are ordinary ones.
        Shape::Conjunctive { ordinary, .. } => find_exact(ordinary.as_deref()?, learn, key, epoch),
    }
}

/// Apart, so that other tables' lookups keep their registers.
#[inline(never)]
pub(crate) fn lookup_trees<'k, 'g, K: Words + 'k>(
    shape: &'g TreesShape,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    told: Option<&mut Told<'g>>,
) {
    if !shape.trees.hold_in(epoch) {
        return lookup_tuples(&shape.all, key, epoch, out);
    }
    // Where others are looked up beside, rules' precedences are compared.
    let told = told.filter(|_| shape.beside.is_empty());
    shape.trees.find(key, epoch, out, told, |index, out| {
        *out = lookup_one(&shape.all, key(index), epoch);
    });
    if !shape.beside.is_empty() {
        lookup_tuples(&shape.beside, key, epoch, out);
    }
}

/// Apart, so that other tables' lookups keep their registers.
#[inline(never)]
pub(crate) fn lookup_prefixes<'k, 'g, K: Words + 'k>(
    shape: &'g PrefixesShape,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
    told: Option<&mut Told<'g>>,
) {
    let mut numbers = [0; LOOKUP_MAX];
    let next_hops = shape.trie.next_hops(key, out.len(), &mut numbers);
    shape.resolve(&next_hops, 0, key, epoch, out, told);
}

impl PrefixesShape {
    /// Whether what stands beside is not of higher precedence than any prefix, most often a table's last rule: only packets without a prefix ask for it.
    #[inline(always)]
    pub(crate) fn decides(&self) -> bool {
        let highest = self.beside.first().map(|entry| entry.max_priority);
        highest <= Some(self.trie.floor())
    }

    /// The rules of packets whose next hops these are, from number `from` on.
    #[inline(always)]
    pub(crate) fn resolve<'k, 'g, K: Words + 'k>(
        &'g self,
        next_hops: &NextHops<'g, '_>,
        from: usize,
        key: &impl Fn(usize) -> &'k K,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        told: Option<&mut Told<'g>>,
    ) {
        let decides = self.decides();
        let told = told.filter(|_| decides);
        next_hops.resolve(from, epoch, out, told, |index, out| {
            *out = lookup_one(&self.all, key(index), epoch);
        });
        if !self.beside.is_empty() {
            let mut pending = (from as u8..out.len() as u8)
                .filter(|index| !decides || out[usize::from(*index)].is_none())
                .collect();
            lookup_pending(&self.beside, &mut pending, key, epoch, out);
        }
    }
}

#[inline(never)]
pub(crate) fn lookup_conjunctive<'k, 'g>(
    ordinary: Option<&'g Shape>,
    soft: &'g [TupleEntry],
    key: &impl Fn(usize) -> &'k FlowKey,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    let look_up = |key: &FlowKey| {
        let mut out = [None];
        lookup_ordinary(ordinary, &|_| key, epoch, &mut out);
        out[0]
    };
    lookup_ordinary(ordinary, key, epoch, out);
    for (index, found) in out.iter_mut().enumerate() {
        *found = conjunction::look_up(soft, key(index), epoch, *found, look_up);
    }
}

pub(crate) fn lookup_ordinary<'k, 'g, K: Words + 'k>(
    shape: Option<&'g Shape>,
    key: &impl Fn(usize) -> &'k K,
    epoch: Epoch,
    out: &mut [Option<&'g Rule>],
) {
    match shape {
        Some(Shape::Linear(entries)) => {
            for (index, found) in out.iter_mut().enumerate() {
                *found = linear(entries, key(index), epoch);
            }
        }
        Some(Shape::Tuples(tuples)) => lookup_tuples(tuples, key, epoch, out),
        Some(Shape::Trees(shape)) => lookup_trees(shape, key, epoch, out, None),
        Some(Shape::Prefixes(shape)) => lookup_prefixes(shape, key, epoch, out, None),
        Some(Shape::Conjunctive { .. }) | None => {}
    }
}
