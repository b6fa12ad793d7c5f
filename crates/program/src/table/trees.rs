//! Decision trees: a lookup with a bounded number of memory accesses, whatever bits the rules look at.
//!
//! A tree's inner node takes a run of bits of one word of the key and uses them as an index into its children; a leaf holds a few rules, which are compared one
//! after the other, highest precedence first. So one tree over a table of prefixes is a multibit trie, and one over an access list cuts
//! where the list's rules differ most (HiCuts, Gupta and McKeown 1999; cutting by chosen bits as in ByteCuts, Daly and Torng 2018). Rules that leave most of a
//! tree's bits open would have to be copied into many children; they go to another tree, which cuts elsewhere (EffiCuts, Vamanan et al. 2010). What no
//! tree separates stays in tuples.
//!
//! Rules are named by rank: 0 is the one of the highest precedence. A lookup in all trees gives the lowest rank that matches, and only then is asked for the
//! rule. Trees are made once ([`build`]) and never changed, but for one thing: a rank whose rule is freed is emptied, or handed to the rule that
//! replaces it. A packet whose rank leads to no rule of its epoch is looked up in the table's tuples, which hold all rules always.
//!
//! What stands at a rank ([`Place`]) says of most rules all that their packets need to know, so these are not read.
//!
//! A burst descends level by level, each packet's next node prefetched while the others take their step.

mod build;

use super::LOOKUP_MAX;
use super::effort::Count;
use super::places::{ASK, EditsOf, Place, Told, resolve};
use crate::epoch::Epoch;
use crate::rule::Rule;
use crate::tuple::{Words, prefetch};
use crate::walk::Stretches;
pub(super) use build::{Built, Snapshot};
use packet::FlowKey;
use packet::matching::MatchWord;
use smallvec::SmallVec;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// No rule.
const NONE: u32 = u32::MAX;
/// Most words of the key that rules in trees look at together.
const WORDS_MAX: usize = 16;

/// A child: an inner node, or a leaf. Bits 0 to 31 say where its children or its rules begin (which of all nodes, which word of all leaves); of an inner node 32
/// to 37 the word, 38 to 43 how far it is shifted, 44 to 48 how many bits are taken; of a leaf, which has bit 63, 49 to 62 how many rules it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Branch(u64);

impl Branch {
    const EMPTY: Branch = Branch::leaf(0, 0);

    fn inner(base: u32, word: u8, shift: u32, bits: u32) -> Branch {
        debug_assert!(word < 64 && shift < 64 && bits < 32);
        Branch(
            u64::from(base)
                | u64::from(word) << 32
                | u64::from(shift) << 38
                | u64::from(bits) << 44,
        )
    }

    const fn leaf(first: u32, rules: u16) -> Branch {
        Branch(first as u64 | (rules as u64) << 49 | 1 << 63)
    }

    #[inline(always)]
    fn is_leaf(self) -> bool {
        self.0 >> 63 != 0
    }

    /// Where its children or rules begin.
    #[inline(always)]
    fn base(self) -> usize {
        self.0 as u32 as usize
    }

    /// The number of a leaf's rules.
    #[inline(always)]
    fn rules(self) -> usize {
        (self.0 >> 49 & 0x3fff) as usize
    }

    /// The place of the child that a key belongs to; of a leaf its base.
    #[inline(always)]
    fn child(self, key: &impl Words) -> usize {
        let word = u64::from_be(key.word((self.0 >> 32 & 63) as u8));
        let bits = word >> (self.0 >> 38 & 63) & !(u64::MAX << (self.0 >> 44 & 31));
        self.base() + bits as usize
    }
}

/// One tree.
#[derive(Clone, Copy, Debug)]
struct Tree {
    root: Branch,
    /// The lowest rank in it.
    first: u32,
}

/// More places than this are fetched before they are read.
const FEW: usize = 1024;

/// The trees of a table.
pub(crate) struct Trees {
    /// The first epoch all of whose rules are in the trees, or in tuples beside them.
    since: Epoch,
    /// Which of a rule's two places ([`Rule::places`]) says its rank here.
    lane: usize,
    /// By the lowest rank.
    trees: Box<[Tree]>,
    nodes: Box<[Branch]>,
    /// Rules of leaves: a value for each of `words`, then the rank and, 32 bits up, the number of the mask. A leaf that fits one cache line lies in one.
    leaves: Box<[u64]>,
    /// Masks: one for each of `words`.
    masks: Box<[u64]>,
    /// The words of the key that rules look at, without those of `shared`.
    words: SmallVec<[u8; WORDS_MAX]>,
    /// What all rules want alike: asked for once, before the descent.
    shared: Box<[MatchWord]>,
    /// By rank.
    places: Box<[Place]>,
    /// What rules that edit and send do: theirs while one of the rules lives that a place without [`ASK`] names them for.
    stretches: Box<[Stretches]>,
}

// SAFETY: rules are reached only under a guard of the domain, and a rank is emptied before its rule is retired (see `Domain::retire`); `Rule` is Sync.
unsafe impl Send for Trees {}
// SAFETY: as above; what is not atomic does not change.
unsafe impl Sync for Trees {}

impl Trees {
    /// The words of packets that a lookup reads: also those that only rules look at which have gone since.
    pub fn reads(&self) -> impl Iterator<Item = u8> {
        let shared = self.shared.iter().map(|word| word.word);
        self.words.iter().copied().chain(shared)
    }

    /// Whether a lookup in this epoch finds all there is.
    #[inline(always)]
    pub fn hold_in(&self, epoch: Epoch) -> bool {
        self.since <= epoch
    }

    /// Finds the best rule for each packet. Packets for which it cannot tell, because the best rule's rank leads to none that holds in the epoch, are given
    /// to `missed`. Where somebody is to be told what is known of rules, those are not fetched.
    #[inline(always)]
    pub fn find<'k, 'g, K: Words + 'k>(
        &'g self,
        key: &impl Fn(usize) -> &'k K,
        epoch: Epoch,
        out: &mut [Option<&'g Rule>],
        mut told: Option<&mut Told<'g>>,
        missed: impl FnMut(usize, &mut Option<&'g Rule>),
    ) {
        let mut ranks = [NONE; LOOKUP_MAX];
        let ranks = &mut ranks[..out.len()];
        let mut strangers = 0_u64;
        if !self.shared.is_empty() {
            for (index, rank) in ranks.iter_mut().enumerate() {
                let stranger = !key(index).has(&self.shared);
                strangers |= u64::from(stranger) << index;
                // No tree has a lower one.
                *rank = if stranger { 0 } else { NONE };
            }
        }
        match self.words.len() {
            1 => self.descend(key, ranks, |branch, key| self.compare::<1>(branch, key)),
            2 => self.descend(key, ranks, |branch, key| self.compare::<2>(branch, key)),
            3 => self.descend(key, ranks, |branch, key| self.compare::<3>(branch, key)),
            4 => self.descend(key, ranks, |branch, key| self.compare::<4>(branch, key)),
            _ => self.descend(key, ranks, |branch, key| self.compare_many(branch, key)),
        }
        while strangers != 0 {
            ranks[strangers.trailing_zeros() as usize] = NONE;
            strangers &= strangers - 1;
        }
        if let Some(told) = &mut told {
            told.edits = EditsOf::Listed(&self.stretches);
        }
        let place_of = |index: usize| self.places.get(ranks[index] as usize);
        resolve(place_of, epoch, out, told, missed);
    }

    /// Gives each packet the lowest rank that matches it in any tree, and fetches what stands there, while other packets wait for their leaves.
    #[inline(always)]
    fn descend<'k, K: Words + 'k>(
        &self,
        key: &impl Fn(usize) -> &'k K,
        ranks: &mut [u32],
        compare: impl Fn(Branch, &K) -> u32,
    ) {
        let mut branches = [Branch::EMPTY; LOOKUP_MAX];
        let mut places = [0_u32; LOOKUP_MAX];
        let mut active = [0_u8; LOOKUP_MAX];
        let mut waiting = [0_u8; LOOKUP_MAX];
        let far = self.places.len() > FEW;
        let fetch = |rank: u32| {
            if far {
                prefetch(self.places.as_ptr().wrapping_add(rank as usize));
            }
        };
        for tree in &self.trees {
            let mut count = 0;
            for (index, rank) in ranks.iter().enumerate() {
                active[count] = index as u8;
                count += usize::from(*rank > tree.first);
            }
            let active = &active[..count];
            if active.is_empty() {
                return;
            }
            if tree.root.is_leaf() {
                for index in active {
                    let index = usize::from(*index);
                    ranks[index] = ranks[index].min(compare(tree.root, key(index)));
                    fetch(ranks[index]);
                }
                continue;
            }
            for index in active {
                let index = usize::from(*index);
                let place = tree.root.child(key(index));
                places[index] = place as u32;
                prefetch(&raw const self.nodes[place]);
            }
            waiting[..count].copy_from_slice(active);
            while count > 0 {
                let mut deeper = 0;
                for at in 0..count {
                    let index = usize::from(waiting[at]);
                    let branch = self.nodes[places[index] as usize];
                    branches[index] = branch;
                    let place = branch.child(key(index));
                    places[index] = place as u32;
                    waiting[deeper] = index as u8;
                    deeper += usize::from(!branch.is_leaf());
                    self.prefetch_next(branch, place);
                }
                count = deeper;
            }
            for index in active {
                let index = usize::from(*index);
                ranks[index] = ranks[index].min(compare(branches[index], key(index)));
                fetch(ranks[index]);
            }
        }
    }

    #[inline(always)]
    fn prefetch_next(&self, branch: Branch, place: usize) {
        let node = self.nodes.as_ptr().wrapping_add(place).cast::<u64>();
        let leaf = self.leaves.as_ptr().wrapping_add(place);
        prefetch(if branch.is_leaf() { leaf } else { node });
    }

    /// The first rule of a leaf that matches, where rules look at W words.
    #[inline(always)]
    fn compare<const W: usize>(&self, leaf: Branch, key: &impl Words) -> u32 {
        let key: [u64; W] = std::array::from_fn(|index| key.word(self.words[index]));
        let rules = &self.leaves[leaf.base()..][..leaf.rules() * (W + 1)];
        for rule in rules.chunks_exact(W + 1) {
            let mask = &self.masks[(rule[W] >> 32) as usize * W..][..W];
            let mut differs = 0;
            for index in 0..W {
                differs |= (key[index] & mask[index]) ^ rule[index];
            }
            if differs == 0 {
                return rule[W] as u32;
            }
        }
        NONE
    }

    /// [`Trees::compare`] for any number of words.
    #[inline(never)]
    fn compare_many(&self, leaf: Branch, key: &impl Words) -> u32 {
        let count = self.words.len();
        let rules = &self.leaves[leaf.base()..][..leaf.rules() * (count + 1)];
        for rule in rules.chunks_exact(count + 1) {
            let mask = &self.masks[(rule[count] >> 32) as usize * count..][..count];
            let mut all = self.words.iter().zip(mask).zip(rule);
            if all.all(|((word, mask), value)| key.word(*word) & mask == *value) {
                return rule[count] as u32;
            }
        }
        NONE
    }

    /// Whether this rule has a rank.
    pub fn has(&self, rule: NonNull<Rule>) -> bool {
        self.place(rule).is_some()
    }

    fn place(&self, rule: NonNull<Rule>) -> Option<&Place> {
        // SAFETY: the writer asks about rules that are linked, or just being unlinked.
        let rank = unsafe { rule.as_ref() }.places[self.lane].load(Ordering::Relaxed);
        let place = self.places.get(rank as usize)?;
        (place.get(Ordering::Relaxed).0 == rule.as_ptr()).then_some(place)
    }

    /// Says that a rule ends with an epoch that has not been published yet.
    pub fn ends(&self, rule: NonNull<Rule>) {
        if let Some(place) = self.place(rule) {
            place.put(rule.as_ptr());
        }
    }

    /// Empties the rank of a rule that is being unlinked, or hands it to the one that replaces it: the next of its chain, of the same precedence.
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

    /// Number of trees.
    pub fn count(&self) -> usize {
        self.trees.len()
    }

    /// Notes what looking one key up reads; returns the precedence of what it finds.
    pub fn read_by(&self, key: &FlowKey, count: &mut Count) -> Option<u32> {
        count.reads(&*self.shared);
        if !key.has(&self.shared) {
            return None;
        }
        let mut best = NONE;
        for tree in self.trees.iter() {
            if best < tree.first {
                break;
            }
            let mut branch = tree.root;
            while !branch.is_leaf() {
                count.probes += 1;
                let child = &self.nodes[branch.child(key)];
                count.reads(child);
                branch = *child;
            }
            let stride = self.words.len() + 1;
            let rank = self.compare_many(branch, key);
            let rules = &self.leaves[branch.base()..][..branch.rules() * stride];
            for rule in rules.chunks_exact(stride) {
                count.compares += 1;
                count.reads(rule);
                if rule[stride - 1] as u32 == rank {
                    break;
                }
            }
            best = best.min(rank);
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

    /// Memory, without the rules.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.nodes)
            + size_of_val(&*self.leaves)
            + size_of_val(&*self.masks)
            + size_of_val(&*self.places)
            + size_of_val(&*self.stretches)
    }
}
