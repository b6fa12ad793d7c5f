//! Builds trees from rules, on another thread than those that change and use them.
//!
//! Rules are collected from the table's tuples by a reader of its own, which holds an epoch so that
//! nothing is freed, while changes go on. Where to cut is chosen by estimated cost: few rules a
//! child, few copies of rules that leave the index's bits open. Big nodes are judged by a sample.
//! Rules that look at different parts of packets go to trees of their own ([`groups`]); those that
//! a leaf has no room for go to another tree. Everything is bounded: bits of an index, depth, rules
//! of a leaf, trees, copies; rules that do not fit are left to tuples.

mod cut;
mod estimate;
mod groups;

use crate::actions::OpList;
use crate::actions::block::ActionBlocks;
use crate::classifier::describe::Work;
use crate::classifier::tree::{Branch, NONE, Tree, Trees, WORDS_MAX};
use crate::classifier::tuple::Tuple;
use crate::epoch::{Epoch, NEVER, Reader};
use crate::rule::Rule;
use crate::rule::summary::{ASK, EDITS, Effect, RuleSummary};
use cut::{Cut, Scratch};
use packet::matching::MatchWord;
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Most trees of a table.
const TREES_MAX: usize = 6;
/// Most inner nodes on a path.
const DEPTH_MAX: usize = 8;
/// Most bits of an index.
const BITS_MAX: u32 = 16;
/// Most rules of a leaf.
const LEAF_MAX: usize = 32;
/// Most rules of a table that are tried in one group, too.
const WHOLE_MAX: usize = 1 << 16;
/// Words of leaves in a cache line.
const LINE: usize = 8;
/// Leaves of at most this many rules are not cut further.
const LEAF_SMALL: usize = 3;

/// The rules that trees are to be built from.
pub(crate) struct Snapshot {
    /// All tuples of the table.
    pub tuples: Vec<Arc<Tuple>>,
    /// Keeps memory retired from [`Snapshot::from`] on from being freed.
    pub reader: Reader,
    /// Rules that have ended in this epoch or before are left out.
    pub from: Epoch,
    /// Rules that begin later than this epoch are left out, too.
    pub until: Epoch,
    /// See [`Trees::lane`].
    pub lane: usize,
}

/// The result of a build.
pub(crate) struct Built {
    /// The trees; None where rules look at too many words.
    pub trees: Option<Arc<Trees>>,
    /// For each tuple of the snapshot, the highest precedence of its rules that are in no tree.
    pub rest: Vec<(Arc<Tuple>, u32)>,
    /// Work in trees for packets that meet their rules evenly.
    pub typical: Work,
    /// Most work in trees.
    pub worst: Work,
    /// Number of rules in trees.
    pub rules: usize,
    /// Duration of the build.
    pub took: Duration,
    /// Keeps the rules from being freed until the trees are in use.
    pub reader: Reader,
}

impl Snapshot {
    /// Builds the trees.
    pub fn build(self) -> Built {
        let begun = Instant::now();
        let ranked = self.gather();
        // Rules behind it are found in tuples, when a lookup meets it and it has gone.
        let before = ranked.iter().position(Ranked::matches_all);
        let before = before.unwrap_or(ranked.len());
        let shared = self.shared(&ranked[..before]);
        let words = self.words(&shared);
        let mut built = Built {
            trees: None,
            rest: Vec::new(),
            typical: Work::default(),
            worst: Work::default(),
            rules: 0,
            took: Duration::ZERO,
            reader: self.reader,
        };
        // Leaves have about as many rules as the builder's budget, at most twice that with the gaps
        // that align them; `finish` checks it.
        let fits = 12 * (ranked.len() + 4096) * (words.len() + 1) < NONE as usize;
        if words.len() <= WORDS_MAX && !ranked.is_empty() && fits {
            let builder = Builder::new(&words, &self.tuples, &ranked);
            let (builder, trees) = builder.best_trees(before);
            let rest = builder.rest(self.tuples.len(), &ranked[..before]);
            built.rules = before - builder.left.iter().filter(|left| **left).count();
            built.rest = self
                .tuples
                .into_iter()
                .zip(rest)
                .filter_map(|(tuple, highest)| Some((tuple, highest?)))
                .collect();
            built.worst = builder.worst(&trees);
            built.typical = builder.typical(&trees);
            built.trees = Some(Arc::new(
                builder.finish(trees, &words, shared, &ranked, self.from, self.lane),
            ));
        }
        built.took = begun.elapsed();
        built
    }

    /// Returns the rules, by rank.
    fn gather(&self) -> Vec<Ranked> {
        let mut ranked: Vec<Ranked> = Vec::new();
        for (index, tuple) in self.tuples.iter().enumerate() {
            tuple.each_chain(|chain| {
                let mut last = None;
                for rule in chain {
                    let priority = rule.spec.priority;
                    let wanted = rule.added <= self.until && rule.removed() > self.from;
                    // Only the newest version of a rule is needed: readers follow its chain.
                    if wanted && last != Some(priority) {
                        last = Some(priority);
                        ranked.push(Ranked {
                            priority,
                            tuple: index as u32,
                            rule: NonNull::from(rule),
                        });
                    }
                }
            });
        }
        ranked.sort_by_key(|rule| Reverse(rule.priority));
        ranked
    }

    /// Returns the masked words that all these rules have in common.
    fn shared(&self, ranked: &[Ranked]) -> Vec<MatchWord> {
        let mut matches = ranked.iter().map(|ranked| {
            // SAFETY: the snapshot's reader holds the rules that were gathered.
            unsafe { ranked.rule.as_ref() }.spec.matching.words()
        });
        let mut shared = matches.next().map_or(Vec::new(), <[MatchWord]>::to_vec);
        for words in matches {
            if shared.is_empty() {
                break;
            }
            shared.retain(|word| words.contains(word));
        }
        shared
    }

    /// Returns the words that rules look at, other than those in `shared`.
    fn words(&self, shared: &[MatchWord]) -> Vec<u8> {
        let mut set = 0_u128;
        for tuple in &self.tuples {
            for (word, _) in tuple.words() {
                set |= 1 << word;
            }
        }
        for word in shared {
            set &= !(1 << word.word);
        }
        (0..packet::key::WORDS as u8)
            .filter(|word| set >> word & 1 == 1)
            .collect()
    }
}

/// A rule to put into trees.
struct Ranked {
    priority: u32,
    /// Index of its tuple in the snapshot, and so of its mask.
    tuple: u32,
    rule: NonNull<Rule>,
}

impl Ranked {
    fn matches_all(&self) -> bool {
        // SAFETY: the snapshot's reader holds the rules that were gathered.
        let rule = unsafe { self.rule.as_ref() };
        rule.spec.matching.words().is_empty()
    }
}

/// The state of a build. Masks and values are numbers here, with a field's first byte as their
/// highest.
#[derive(Clone)]
struct Builder {
    words: usize,
    masks: Vec<u64>,
    mask_of: Vec<u32>,
    values: Vec<u64>,
    nodes: Vec<Branch>,
    leaves: Vec<u64>,
    /// Rules in leaves, counting copies.
    entries: usize,
    /// Limit of `entries`.
    budget: usize,
    /// By rank: the leaf with this rule alone.
    singles: Vec<Branch>,
    /// See [`Trees::otherwise`].
    otherwise: u32,
    /// By rank: whether the rule is in no tree.
    left: Vec<bool>,
    /// For judging cuts.
    scratch: Scratch,
}

impl Builder {
    fn new(words: &[u8], tuples: &[Arc<Tuple>], ranked: &[Ranked]) -> Builder {
        let mut masks = vec![0; tuples.len() * words.len()];
        for (tuple, masks) in tuples
            .iter()
            .zip(masks.chunks_exact_mut(words.len().max(1)))
        {
            for (word, mask) in tuple.words() {
                if let Ok(slot) = words.binary_search(word) {
                    masks[slot] = u64::from_be(*mask);
                }
            }
        }
        let mut values = vec![0; ranked.len() * words.len()];
        for (rule, values) in ranked
            .iter()
            .zip(values.chunks_exact_mut(words.len().max(1)))
        {
            // SAFETY: the snapshot's reader holds the rules that were gathered.
            for word in unsafe { rule.rule.as_ref() }.spec.matching.words() {
                if let Ok(slot) = words.binary_search(&word.word) {
                    values[slot] = u64::from_be(word.value);
                }
            }
        }
        Builder {
            words: words.len(),
            masks,
            mask_of: ranked.iter().map(|rule| rule.tuple).collect(),
            values,
            nodes: Vec::new(),
            leaves: Vec::new(),
            entries: 0,
            budget: 5 * ranked.len() + 4096,
            singles: vec![Branch::EMPTY; ranked.len()],
            otherwise: NONE,
            left: vec![false; ranked.len()],
            scratch: Scratch::new(),
        }
    }

    fn mask(&self, rank: u32) -> &[u64] {
        let first = self.mask_of[rank as usize] as usize * self.words;
        &self.masks[first..first + self.words]
    }

    fn value(&self, rank: u32) -> &[u64] {
        let first = rank as usize * self.words;
        &self.values[first..first + self.words]
    }

    /// Builds trees of the first `rules` rules as far as trees separate them, and marks the rest in
    /// `left`. The rule after them, if there is one, matches all packets.
    fn best_trees(mut self, rules: usize) -> (Builder, Vec<Tree>) {
        if rules < self.mask_of.len() {
            self.otherwise = rules as u32;
        }
        let all: Vec<u32> = (0..rules as u32).collect();
        let groups = self.groups(&all);
        if groups.len() < 2 || rules > WHOLE_MAX {
            let trees = self.trees(groups);
            return (self, trees);
        }
        // In groups, a rule hides none of other groups that it covers.
        let mut whole = self.clone();
        let (trees, others) = (self.trees(groups), whole.trees(vec![all]));
        if whole.cycles(&others) < self.cycles(&trees) {
            (whole, others)
        } else {
            (self, trees)
        }
    }

    /// Estimates the cycles of a packet in trees and the tuples beside them.
    fn cycles(&self, trees: &[Tree]) -> f64 {
        let mut masks: Vec<u32> = (self.mask_of.iter().zip(&self.left))
            .filter_map(|(mask, left)| left.then_some(*mask))
            .collect();
        masks.sort_unstable();
        masks.dedup();
        let tuples = Work::in_tuples(masks.len());
        let bytes = 8 * (self.leaves.len() + self.nodes.len());
        self.typical(trees).and(tuples).cycles(bytes)
    }

    /// Returns for each tuple the highest precedence of these rules that are left.
    fn rest(&self, tuples: usize, ranked: &[Ranked]) -> Vec<Option<u32>> {
        let mut rest = vec![None; tuples];
        for (rule, left) in ranked.iter().zip(&self.left) {
            if *left {
                // Ranks ascend, so the first is of the highest precedence.
                rest[rule.tuple as usize].get_or_insert(rule.priority);
            }
        }
        rest
    }

    /// Builds trees of groups of rules.
    fn trees(&mut self, groups: Vec<Vec<u32>>) -> Vec<Tree> {
        let mut groups = VecDeque::from(groups);
        let mut trees = Vec::new();
        // Rules that the trees of their groups do not separate.
        let mut rest = Vec::new();
        while trees.len() < TREES_MAX && self.copied() < 1.0 {
            let rules = match groups.pop_front() {
                Some(rules) => rules,
                None => std::mem::take(&mut rest),
            };
            if rules.is_empty() {
                break;
            }
            let before = rules.len();
            let over = self.tree(&rules, &mut trees);
            let stuck = groups.is_empty() && rest.is_empty() && over.len() == before;
            rest.extend(over);
            if stuck {
                break;
            }
            rest.sort_unstable();
        }
        for rank in groups.into_iter().flatten().chain(rest) {
            self.left[rank as usize] = true;
        }
        trees.sort_by_key(|tree| tree.first);
        trees
    }

    /// Builds a tree of some rules, unless nothing separates enough of them; returns those that are
    /// not in it.
    fn tree(&mut self, rules: &[u32], trees: &mut Vec<Tree>) -> Vec<u32> {
        let mut known = vec![0; self.words];
        let cut = (rules.len() > LEAF_SMALL)
            .then(|| self.best_cut(rules, &known, true))
            .flatten();
        let (kept, mut others): (Vec<u32>, Vec<u32>) = match &cut {
            Some(cut) => rules
                .iter()
                .partition(|rank| self.open_bits(**rank, cut) <= cut.open),
            None if rules.len() <= LEAF_MAX => (rules.to_vec(), Vec::new()),
            None => (Vec::new(), rules.to_vec()),
        };
        let Some(first) = kept.first().copied() else {
            return others;
        };
        let root = match cut {
            Some(cut) => self.divide(&kept, cut, &mut known, 1),
            None => self.leaf(&kept),
        };
        let count = kept.len();
        let over = |rank: &u32| std::mem::take(&mut self.left[*rank as usize]);
        let over: Vec<u32> = kept.into_iter().filter(over).collect();
        // A tree all of whose rules go to another one, too, is of no use.
        if over.len() < count {
            trees.push(Tree { root, first });
        }
        others.extend(over);
        others
    }

    /// Builds the branch for rules; `known` are the bits that have been looked at on the way to it.
    fn branch(&mut self, rules: &[u32], known: &mut [u64], depth: usize) -> Branch {
        let rules = self.until_covered(rules, known);
        let room = self.copied() < 1.0;
        if rules.len() > LEAF_SMALL
            && depth < DEPTH_MAX
            && room
            && let Some(cut) = self.best_cut(rules, known, false)
        {
            return self.divide(rules, cut, known, depth + 1);
        }
        self.leaf(rules)
    }

    /// Returns how much of the budget for rules in leaves is used, from 0 to 1.
    fn copied(&self) -> f64 {
        self.entries as f64 / self.budget as f64
    }

    /// Returns the rules up to the first that matches all packets that come here.
    fn until_covered<'a>(&self, rules: &'a [u32], known: &[u64]) -> &'a [u32] {
        let covers = |rank: &u32| {
            let mut bits = self.mask(*rank).iter().zip(known);
            bits.all(|(mask, known)| mask & !known == 0)
        };
        match rules.iter().position(covers) {
            Some(at) => &rules[..=at],
            None => rules,
        }
    }

    fn leaf(&mut self, rules: &[u32]) -> Branch {
        if let [rank] = rules
            && self.singles[*rank as usize] != Branch::EMPTY
        {
            return self.singles[*rank as usize];
        }
        // Always keep the last rule. Where it matches all packets that come here, the rules behind
        // it have been left out; they are found in tuples when a lookup meets it and it has gone.
        let mut kept: SmallVec<[u32; LEAF_MAX]> =
            SmallVec::from_slice(&rules[..rules.len().min(LEAF_MAX)]);
        if let (Some(last), [.., covering]) = (kept.last_mut(), rules) {
            let others = &rules[LEAF_MAX.min(rules.len())..];
            if !others.is_empty() {
                self.left[std::mem::replace(last, *covering) as usize] = true;
            }
            for rank in others.iter().filter(|rank| *rank != covering) {
                self.left[*rank as usize] = true;
            }
        }
        let rules = &kept[..];
        if rules.is_empty() {
            return Branch::EMPTY;
        }
        self.entries += rules.len();
        let size = rules.len() * (self.words + 1);
        if size <= LINE && self.leaves.len() % LINE + size > LINE {
            self.leaves
                .resize(self.leaves.len().next_multiple_of(LINE), 0);
        }
        let first = self.leaves.len();
        for rank in rules {
            let at = *rank as usize * self.words;
            self.leaves
                .extend_from_slice(&self.values[at..at + self.words]);
            let mask = u64::from(self.mask_of[*rank as usize]);
            self.leaves.push(u64::from(*rank) | mask << 32);
        }
        let branch = Branch::leaf(first as u32, rules.len() as u16);
        if let [rank] = rules {
            self.singles[*rank as usize] = branch;
        }
        branch
    }

    /// Builds an inner node and all that is below it.
    fn divide(&mut self, rules: &[u32], cut: Cut, known: &mut [u64], depth: usize) -> Branch {
        let children = 1_usize << cut.bits();
        let mut starts = vec![0_u32; children + 1];
        for rank in rules {
            self.each_index(*rank, &cut, |index| starts[index + 1] += 1);
        }
        for index in 0..children {
            starts[index + 1] += starts[index];
        }
        let mut sorted = vec![0_u32; starts[children] as usize];
        let mut next = starts.clone();
        for rank in rules {
            self.each_index(*rank, &cut, |index| {
                sorted[next[index] as usize] = *rank;
                next[index] += 1;
            });
        }
        let base = self.nodes.len();
        self.nodes.resize(base + children, Branch::EMPTY);
        let before: SmallVec<[u64; WORDS_MAX]> = SmallVec::from_slice(known);
        for run in cut.runs {
            known[run.slot] |= run.place();
        }
        // Children whose indexes differ only in bits that rules leave open have the same rules:
        // share their branch.
        let mut made: HashMap<&[u32], Branch> = HashMap::new();
        let copied = sorted.len() > rules.len();
        for index in 0..children {
            let rules = &sorted[starts[index] as usize..starts[index + 1] as usize];
            let branch = match made.get(rules) {
                _ if rules.is_empty() => continue,
                Some(branch) => *branch,
                None => self.branch(rules, known, depth),
            };
            // Leaves of a single rule are shared by `singles`.
            if copied && rules.len() > 1 {
                made.insert(rules, branch);
            }
            self.nodes[base + index] = branch;
        }
        known.copy_from_slice(&before);
        Branch::inner(base as u32, cut.runs)
    }

    /// Returns the index that a rule's bits give, and which bits of an index it leaves open.
    #[inline(always)]
    fn index_of(&self, rank: u32, cut: &Cut) -> (u64, u64) {
        let (value, mask) = (self.value(rank), self.mask(rank));
        let (mut index, mut open, mut at) = (0, 0, 0);
        for run in cut.runs {
            index |= (value[run.slot] >> run.shift & run.mask()) << at;
            open |= (!mask[run.slot] >> run.shift & run.mask()) << at;
            at += run.bits;
        }
        (index, open)
    }

    /// Returns how many of a cut's bits a rule leaves open.
    #[inline(always)]
    fn open_bits(&self, rank: u32, cut: &Cut) -> u32 {
        self.index_of(rank, cut).1.count_ones()
    }

    /// Calls `with` for each index that a rule belongs to.
    #[inline(always)]
    fn each_index(&self, rank: u32, cut: &Cut, mut with: impl FnMut(usize)) {
        let (index, open) = self.index_of(rank, cut);
        let mut bits = 0_u64;
        loop {
            with((index | bits) as usize);
            bits = bits.wrapping_sub(open) & open;
            if bits == 0 {
                return;
            }
        }
    }

    /// Converts everything to its final form.
    fn finish(
        self,
        mut trees: Vec<Tree>,
        words: &[u8],
        shared: Vec<MatchWord>,
        ranked: &[Ranked],
        since: Epoch,
        lane: usize,
    ) -> Trees {
        assert!(self.nodes.len() < NONE as usize && self.leaves.len() < NONE as usize - LINE);
        let (leaves, skew) = aligned(&self.leaves);
        let shift = |branch: &mut Branch| {
            if branch.is_leaf() {
                *branch = Branch::leaf((branch.base() + skew) as u32, branch.rules() as u16);
            }
        };
        let mut nodes = self.nodes.into_boxed_slice();
        nodes.iter_mut().for_each(shift);
        trees.iter_mut().for_each(|tree| shift(&mut tree.root));
        let mut edits = Edits::default();
        let places = (ranked.iter().enumerate())
            .map(|(rank, ranked)| {
                // SAFETY: as in `new`.
                let rule = unsafe { ranked.rule.as_ref() };
                rule.places[lane].store(rank as u32, Ordering::Relaxed);
                let (mut marks, action) = edits.of(rule);
                // Rules that end from now on are marked by the writer.
                if rule.added > since || rule.removed() != NEVER {
                    marks |= ASK;
                }
                RuleSummary::new(ranked.rule, marks, rule.spec.counter, action)
            })
            .collect();
        let trees = Trees {
            since,
            lane,
            trees: trees.into(),
            otherwise: self.otherwise,
            nodes,
            leaves,
            masks: self.masks.into(),
            words: words.into(),
            shared: shared.into(),
            places,
            blocks: edits.blocks.into(),
        };
        trees.check();
        trees
    }
}

/// Copies words to memory that begins at a cache line; returns how many words of padding come
/// first.
fn aligned(words: &[u64]) -> (Box<[u64]>, usize) {
    let mut copy = vec![0; words.len() + LINE - 1].into_boxed_slice();
    let skew = copy.as_ptr().align_offset(LINE * 8).min(LINE - 1);
    copy[skew..skew + words.len()].copy_from_slice(words);
    (copy, skew)
}

/// Edits of rules that edit and send, each once.
#[derive(Default)]
struct Edits {
    blocks: Vec<ActionBlocks>,
    /// Index of each list of steps.
    places: HashMap<*const OpList, u32>,
}

impl Edits {
    /// Returns the marks of a rule's summary, and its action: a port or an index of edits.
    fn of(&mut self, rule: &Rule) -> (usize, u32) {
        let blocks = match Effect::of(rule) {
            Effect::Sends(port) => return (0, port),
            Effect::More => return (ASK, 0),
            Effect::Edits(blocks) => blocks,
        };
        let place = *(self.places)
            .entry(Arc::as_ptr(&rule.spec.ops))
            .or_insert_with(|| {
                self.blocks.push(blocks);
                self.blocks.len() as u32 - 1
            });
        (EDITS, place)
    }
}
