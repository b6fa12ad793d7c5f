//! Decision trees: a lookup with a bounded number of memory accesses, whatever bits the rules look
//! at.
//!
//! A tree's inner node takes one or two runs of bits of the key as an index into its children; a
//! leaf holds a few rules, which are compared one after the other, highest precedence first. So one
//! tree over a table of prefixes is a multibit trie, and one over an access list cuts where the
//! list's rules differ most, by the beginnings of both addresses for instance (HiCuts, Gupta and
//! McKeown 1999; cutting by chosen bits as in ByteCuts, Daly and Torng 2018). Rules that leave most
//! of a tree's bits open would have to be copied into many children; they go to another tree, which
//! cuts elsewhere (EffiCuts, Vamanan et al. 2010). Rules that no tree separates stay in tuples.
//!
//! Rules are named by rank: 0 is the one of the highest precedence. A lookup in all trees gives the
//! lowest rank that matches, and only then reads the rule. Trees are built once ([`build`]) and
//! never changed, except that a rank whose rule is freed is emptied, or handed to the rule that
//! replaces it. A packet whose rank leads to no rule of its epoch is looked up in the table's
//! tuples, which always hold all rules.
//!
//! Each rank has a [`RuleSummary`], which for most rules is all that their packets need, so the
//! rules themselves are not read.
//!
//! The first rule that matches all packets is in no tree: packets that meet no rule there meet this
//! one.
//!
//! A burst descends level by level ([`ranks`]).

mod build;
mod ranks;
#[cfg(test)]
mod tests;

use super::effort::Count;
use super::mini_key::Reads;
use super::tuple_space::{TupleEntry, find_exact, lookup_one, lookup_tuples, of_tuples, words_of};
use super::{Classify, Keys};
use crate::actions::block::ActionBlocks;
use crate::actions::learn::Learn;
use crate::burst::LOOKUP_MAX;
use crate::burst::Words;
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::rule::summary::{ASK, Edits, RuleSummary, Summaries, resolve};
pub(crate) use build::{Built, Snapshot};
use packet::FlowKey;
use packet::matching::MatchWord;
use packet::mini_key::Variant;
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::slice::ChunksExact;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// No rank.
const NONE: u32 = u32::MAX;
/// Most words of the key that rules in trees look at together.
const WORDS_MAX: usize = 16;

/// A run of bits of one of the words that rules look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// Index of the word in `Trees::words`.
    slot: usize,
    /// Number of the word's bits below the run.
    shift: u32,
    bits: u32,
}

impl Run {
    /// No bits.
    const EMPTY: Run = Run {
        slot: 0,
        shift: 0,
        bits: 0,
    };

    /// Returns the run's bits as a mask of their word.
    fn place(self) -> u64 {
        self.mask() << self.shift
    }

    /// Returns a mask of as many low ones as the run has bits.
    #[inline(always)]
    fn mask(self) -> u64 {
        !(u64::MAX << self.bits)
    }
}

/// Points to a child: an inner node, or a leaf. Bits 0 to 31 say where its children begin among all
/// nodes, or its rules among all words of leaves. An inner node has its two runs from bit
/// [`Branch::RUNS`] on: which word, how far it is shifted, how many bits are taken; the first run's
/// bits are the lower ones of the index. A leaf, which has bit 63, has its number of rules from bit
/// [`Branch::COUNT`] on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Branch(u64);

impl Branch {
    const EMPTY: Branch = Branch::leaf(0, 0);
    /// First bit of each run.
    const RUNS: [u32; 2] = [32, 47];
    /// Widths in bits of a run's parts: word, shift, number of bits.
    const WIDTHS: [u32; 3] = [4, 6, 5];
    /// First bit of a leaf's number of rules.
    const COUNT: u32 = 49;
    const COUNT_WIDTH: u32 = 14;

    fn inner(base: u32, runs: [Run; 2]) -> Branch {
        let [word, shift, _] = Branch::WIDTHS;
        let packed = |run: Run| {
            debug_assert!(run.slot < WORDS_MAX && run.shift < 64 && run.bits <= 16);
            run.slot as u64 | u64::from(run.shift) << word | u64::from(run.bits) << (word + shift)
        };
        let [first, second] = Branch::RUNS;
        Branch(u64::from(base) | packed(runs[0]) << first | packed(runs[1]) << second)
    }

    const fn leaf(first: u32, rules: u16) -> Branch {
        Branch(first as u64 | (rules as u64) << Branch::COUNT | 1 << 63)
    }

    #[inline(always)]
    fn is_leaf(self) -> bool {
        self.0 >> 63 != 0
    }

    /// Returns where its children or rules begin.
    #[inline(always)]
    fn base(self) -> usize {
        self.0 as u32 as usize
    }

    /// Returns a leaf's number of rules.
    #[inline(always)]
    fn rules(self) -> usize {
        (self.0 >> Branch::COUNT & !(u64::MAX << Branch::COUNT_WIDTH)) as usize
    }

    /// Returns the runs of an inner node.
    #[inline(always)]
    fn runs(self) -> [Run; 2] {
        let [word, shift, bits] = Branch::WIDTHS;
        Branch::RUNS.map(|from| Run {
            slot: (self.0 >> from & !(u64::MAX << word)) as usize,
            shift: (self.0 >> (from + word) & !(u64::MAX << shift)) as u32,
            bits: (self.0 >> (from + word + shift) & !(u64::MAX << bits)) as u32 & 31,
        })
    }

    /// Returns the number of an inner node's children.
    fn children(self) -> usize {
        1 << self.runs().iter().map(|run| run.bits).sum::<u32>()
    }

    /// Returns the index of the child that a key belongs to; `word` returns the key's word of each
    /// slot. For a leaf, some index behind its base.
    #[inline(always)]
    fn child(self, word: impl Fn(usize) -> u64) -> usize {
        let [first, second] = self.runs();
        let low = word(first.slot) >> first.shift & first.mask();
        let high = word(second.slot) >> second.shift & second.mask();
        self.base() + (low | high << first.bits) as usize
    }
}

/// One tree.
#[derive(Clone, Copy, Debug)]
struct Tree {
    root: Branch,
    /// The lowest rank in it.
    first: u32,
}

/// The trees of a table.
pub(crate) struct Trees {
    /// The first epoch all of whose rules are in the trees, or in tuples beside them.
    since: Epoch,
    /// Which of a rule's two [`Rule::places`] holds its rank in these trees.
    lane: usize,
    /// The trees, by their lowest ranks.
    trees: Box<[Tree]>,
    /// Rank of packets that meet no rule of a tree; higher than all ranks in trees.
    otherwise: u32,
    nodes: Box<[Branch]>,
    /// Rules of leaves: for each rule a value for each of `words`, then the rank and, 32 bits up,
    /// the index of its mask. A leaf that fits one cache line does not cross two.
    leaves: Box<[u64]>,
    /// Masks: one value for each of `words`. Here and in leaves a field's first byte is the highest
    /// of its word.
    masks: Box<[u64]>,
    /// The words of the key that rules look at, other than those in `shared`, by slot.
    words: SmallVec<[u8; WORDS_MAX]>,
    /// Values that all rules of trees have in common: compared once, before the descent.
    shared: Box<[MatchWord]>,
    /// Summaries, by rank.
    places: Box<[RuleSummary]>,
    /// Blocks of rules that edit and send. An entry is valid while one of its rules lives whose
    /// summary has no [`ASK`].
    blocks: Box<[ActionBlocks]>,
}

// SAFETY: rules are reached only under a guard of the domain, and a rank is emptied before its rule
// is retired (see `Domain::retire`); `Rule` is Sync.
unsafe impl Send for Trees {}
// SAFETY: as above; what is not atomic does not change.
unsafe impl Sync for Trees {}

impl Trees {
    /// Returns the words of packets that a lookup reads, including words that only removed rules
    /// look at.
    pub fn reads(&self) -> impl Iterator<Item = u8> {
        let shared = self.shared.iter().map(|word| word.word);
        self.words.iter().copied().chain(shared)
    }

    /// Returns whether a lookup in this epoch finds all rules.
    #[inline(always)]
    pub fn hold_in(&self, epoch: Epoch) -> bool {
        self.since <= epoch
    }

    /// Finds the best rule for each packet. Calls `missed` for packets for which it cannot tell,
    /// because the best rank leads to no rule that holds in the epoch. With `summaries`, rules that
    /// have one are not prefetched.
    #[inline(always)]
    pub fn find<'k, 'g, K: Words + 'k>(
        &'g self,
        key: &impl Fn(usize) -> &'k K,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        mut summaries: Option<&mut Summaries<'g>>,
        missed: impl FnMut(usize, &mut Option<&'g Rule>),
    ) {
        let mut ranks = [NONE; LOOKUP_MAX];
        // SAFETY: `Variant::used` only returns variants that the processor has.
        unsafe { self.find_ranks(Variant::used(), key, &mut ranks[..out.len()]) };
        if let Some(summaries) = &mut summaries {
            summaries.edits = Edits::Listed(&self.blocks);
        }
        let place_of = |index: usize| self.places.get(ranks[index] as usize);
        resolve(place_of, epoch, out, summaries, missed);
    }

    /// Returns whether this rule has a rank here.
    pub fn has(&self, rule: NonNull<Rule>) -> bool {
        self.place(rule).is_some()
    }

    fn place(&self, rule: NonNull<Rule>) -> Option<&RuleSummary> {
        // SAFETY: the writer asks about rules that are linked, or just being unlinked.
        let rank = unsafe { rule.as_ref() }.places[self.lane].load(Ordering::Relaxed);
        let place = self.places.get(rank as usize)?;
        (place.get(Ordering::Relaxed).0 == rule.as_ptr()).then_some(place)
    }

    /// Marks the rank of a rule that ends; must be called before its end is published.
    pub fn ends(&self, rule: NonNull<Rule>) {
        if let Some(place) = self.place(rule) {
            place.put(rule.as_ptr());
        }
    }

    /// Empties the rank of a rule that is being unlinked, or hands it to the rule that replaces it:
    /// the next in its chain, if of the same precedence.
    pub fn unlink(&self, rule: NonNull<Rule>) {
        let Some(place) = self.place(rule) else {
            return;
        };
        // SAFETY: as in `place`; the rules that follow it in its chain are linked.
        let gone = unsafe { rule.as_ref() };
        let next = NonNull::new(gone.next.load(Ordering::Relaxed)).filter(|next| {
            // SAFETY: as above.
            let next = unsafe { next.as_ref() };
            next.spec.priority == gone.spec.priority
        });
        match next.filter(|next| !self.has(*next)) {
            Some(next) => {
                let rank = gone.places[self.lane].load(Ordering::Relaxed);
                // SAFETY: as above.
                unsafe { next.as_ref() }.places[self.lane].store(rank, Ordering::Relaxed);
                place.put(next.as_ptr());
            }
            None => {
                place.put(std::ptr::null_mut());
            }
        }
    }

    /// Returns the rules of a leaf.
    #[inline(always)]
    fn rules_of(&self, leaf: Branch) -> ChunksExact<'_, u64> {
        let stride = self.words.len() + 1;
        self.leaves[leaf.base()..][..leaf.rules() * stride].chunks_exact(stride)
    }

    /// Returns a rule's values, its rank and its mask.
    #[inline(always)]
    fn parts_of<'a>(&'a self, rule: &'a [u64]) -> (&'a [u64], u32, &'a [u64]) {
        let count = rule.len() - 1;
        let mask = (rule[count] >> 32) as usize * count;
        let (values, rank) = (&rule[..count], rule[count] as u32);
        (values, rank, &self.masks[mask..][..count])
    }

    /// Returns the number of trees.
    pub fn count(&self) -> usize {
        self.trees.len()
    }

    /// Counts what looking one key up reads; returns the precedence of the rule found.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) -> Option<u32> {
        count.reads(&*self.shared);
        let mut best = self.otherwise;
        let word = |slot: usize| u64::from_be(key.word(self.words[slot]));
        let trees = if key.has(&self.shared) {
            &self.trees[..]
        } else {
            &[]
        };
        for tree in trees {
            if best < tree.first {
                break;
            }
            let mut branch = tree.root;
            while !branch.is_leaf() {
                count.probes += 1;
                let child = &self.nodes[branch.child(word)];
                count.reads(child);
                branch = *child;
            }
            for rule in self.rules_of(branch) {
                count.compares += 1;
                count.reads(rule);
                let (values, rank, mask) = self.parts_of(rule);
                let mut slots = values.iter().zip(mask).enumerate();
                if slots.all(|(slot, (value, mask))| word(slot) & mask == *value) {
                    best = best.min(rank);
                    break;
                }
            }
        }
        let place = self.places.get(best as usize)?;
        count.reads(place);
        let (rule, marks) = place.get(Ordering::Acquire);
        // SAFETY: as in `find`: whoever counts does so under a guard.
        let rule = unsafe { rule.as_ref() }?;
        if marks & ASK != 0 {
            count.reads_rule(rule);
        }
        Some(rule.spec.priority)
    }

    /// Returns the memory in bytes, without the rules.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.nodes)
            + size_of_val(&*self.leaves)
            + size_of_val(&*self.masks)
            + size_of_val(&*self.places)
            + size_of_val(&*self.blocks)
    }
}

/// Trees, and tuples for rules that are not in them.
pub(crate) struct TreeClassifier {
    pub(crate) trees: Arc<Trees>,
    /// Tuples with rules that are not in the trees, and the highest precedence of those.
    pub(crate) beside: Box<[TupleEntry]>,
    /// All tuples.
    pub(crate) all: Box<[TupleEntry]>,
}

impl Classify for TreeClassifier {
    fn reads(&self) -> Reads {
        let trees = self.trees.reads().map(|word| (word, u64::MAX));
        Reads::of(words_of(&self.all).chain(trees))
    }

    /// Looks packets up. Not inlined, so that other tables' lookups keep their registers.
    #[inline(never)]
    fn look_up<'k, 'g, K: Words + 'k>(
        &'g self,
        keys: impl Keys<'k, K>,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
    ) {
        let key = &move |index| keys.key(index);
        if !self.trees.hold_in(epoch) {
            return lookup_tuples(&self.all, key, epoch, out);
        }
        // With tuples beside the trees, precedences are compared, so rules must be read.
        let summaries = summaries.filter(|_| self.beside.is_empty());
        self.trees.find(key, epoch, out, summaries, |index, out| {
            *out = lookup_one(&self.all, key(index), epoch);
        });
        if !self.beside.is_empty() {
            lookup_tuples(&self.beside, key, epoch, out);
        }
    }

    fn find_exact<'g>(&'g self, learn: &Learn, key: &FlowKey, epoch: Epoch) -> Option<&'g Rule> {
        find_exact(&self.all, learn, key, epoch)
    }

    fn count_effort(&self, key: &FlowKey, epoch: Epoch, count: &mut Count) {
        let best = self.trees.read_by(key, count);
        of_tuples(&self.beside, key, best, epoch, count);
    }
}
