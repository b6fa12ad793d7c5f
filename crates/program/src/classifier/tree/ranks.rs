//! The descent of a burst through all trees, from packets to ranks.
//!
//! The words that rules look at are first copied out of the packets, word by word and as numbers,
//! so that all steps find them in the cache. Then packets descend level by level, and those that
//! have reached their leaves are compared with the rules there.
//!
//! With AVX-512 eight packets take each step at once (`avx512`): loads are gathers, so many memory
//! accesses are in flight, and the end of a leaf is mispredicted once in eight packets. Elsewhere
//! each packet's next node is prefetched while the others take their step.

#[cfg(target_arch = "x86_64")]
mod avx512;

use crate::burst::Words;
use crate::classifier::tree::{Branch, NONE, Trees, WORDS_MAX};
use crate::prefetch::prefetch;
use packet::mini_key::Variant;

/// Packets that descend together.
const STEP: usize = 32;
/// Summaries are prefetched where there are more than this.
const FEW: usize = 1024;

/// Packets' words that rules look at: up to W, with a field's first byte as the highest of its
/// word.
#[repr(align(64))]
struct Keys<const W: usize>([[u64; STEP]; W]);

/// Each packet's rank.
#[repr(align(64))]
struct Ranks([u32; STEP]);

impl Trees {
    /// Gives each packet the lowest rank that matches it in any tree, and prefetches the rank's
    /// summary.
    ///
    /// # Safety
    /// The processor has the variant.
    #[inline(always)]
    pub(crate) unsafe fn find_ranks<'k, K: Words + 'k>(
        &self,
        variant: Variant,
        key: &impl Fn(usize) -> &'k K,
        out: &mut [u32],
    ) {
        for (at, out) in out.chunks_mut(STEP).enumerate() {
            let key = |index: usize| key(at * STEP + index);
            match self.words.len() {
                1 => self.find_step::<1, K>(variant, &key, out),
                2 => self.find_step::<2, K>(variant, &key, out),
                3 => self.find_step::<3, K>(variant, &key, out),
                4 => self.find_step::<4, K>(variant, &key, out),
                _ => self.find_step_by_many(variant, &key, out),
            }
            if self.places.len() > FEW {
                for rank in out {
                    prefetch(self.places.as_ptr().wrapping_add(*rank as usize));
                }
            }
        }
    }

    #[inline(never)]
    fn find_step_by_many<'k, K: Words + 'k>(
        &self,
        variant: Variant,
        key: &impl Fn(usize) -> &'k K,
        out: &mut [u32],
    ) {
        self.find_step::<WORDS_MAX, K>(variant, key, out);
    }

    #[inline(always)]
    fn find_step<'k, const W: usize, K: Words + 'k>(
        &self,
        variant: Variant,
        key: &impl Fn(usize) -> &'k K,
        out: &mut [u32],
    ) {
        let mut keys = Keys([[0; STEP]; W]);
        let count = out.len().min(STEP);
        // One word of all packets at a time, so that each loop is simple.
        for (word, slot) in self.words.iter().zip(&mut keys.0) {
            for (index, to) in slot[..count].iter_mut().enumerate() {
                *to = u64::from_be(key(index).word(*word));
            }
        }
        let wanted = self.wanted(key, count);
        let mut ranks = Ranks([self.otherwise; STEP]);
        match variant {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller of `find_ranks` guarantees that the processor has the variant.
            Variant::Avx512 => unsafe { avx512::descend(self, &keys, wanted, &mut ranks) },
            _ => self.descend(&keys, wanted, &mut ranks),
        }
        out[..count].copy_from_slice(&ranks.0[..count]);
    }

    /// Returns which of the first `count` packets have the values that all rules of trees share.
    #[inline(always)]
    fn wanted<'k, K: Words + 'k>(&self, key: &impl Fn(usize) -> &'k K, count: usize) -> u32 {
        let mut differs = [0; STEP];
        for shared in &self.shared {
            for (index, differs) in differs[..count].iter_mut().enumerate() {
                *differs |= (key(index).word(shared.word) ^ shared.value) & shared.mask;
            }
        }
        let wanted = differs[..count].iter().enumerate();
        wanted.fold(0, |wanted, (index, differs)| {
            wanted | u32::from(*differs == 0) << index
        })
    }

    /// Gives each of the `wanted` packets that meets a rule of a tree its rank.
    #[inline(never)] // so that what its loops need stays in registers
    fn descend<const W: usize>(&self, keys: &Keys<W>, wanted: u32, ranks: &mut Ranks) {
        let mut branches = [Branch::EMPTY; STEP];
        let mut active = [0_u8; STEP];
        let mut waiting = [0_u8; STEP];
        for tree in &self.trees {
            let mut count = 0;
            for (index, rank) in ranks.0.iter().enumerate() {
                active[count] = index as u8;
                count += usize::from(wanted >> index & 1 != 0 && *rank > tree.first);
            }
            let active = &active[..count];
            if active.is_empty() {
                return;
            }
            branches.fill(tree.root);
            if !tree.root.is_leaf() {
                waiting[..count].copy_from_slice(active);
            } else {
                count = 0;
            }
            // Each packet's next node, which has been prefetched.
            let mut places = [0_u32; STEP];
            for index in &waiting[..count] {
                let index = usize::from(*index) % STEP;
                let place = tree.root.child(|slot| keys.0[slot][index]);
                places[index] = place as u32;
                prefetch(&raw const self.nodes[place]);
            }
            while count > 0 {
                let mut deeper = 0;
                for at in 0..count {
                    let index = usize::from(waiting[at]) % STEP;
                    let branch = self.nodes[places[index] as usize];
                    branches[index] = branch;
                    if branch.is_leaf() {
                        prefetch(self.leaves.as_ptr().wrapping_add(branch.base()));
                        continue;
                    }
                    let place = branch.child(|slot| keys.0[slot][index]);
                    places[index] = place as u32;
                    prefetch(self.nodes.as_ptr().wrapping_add(place));
                    waiting[deeper] = index as u8;
                    deeper += 1;
                }
                count = deeper;
            }
            for index in active {
                let index = usize::from(*index) % STEP;
                let rank = self.compare::<W>(branches[index], |slot| keys.0[slot][index]);
                ranks.0[index] = ranks.0[index].min(rank);
            }
        }
    }

    /// Returns the rank of the first rule of a leaf that matches.
    #[inline(always)]
    fn compare<const W: usize>(&self, leaf: Branch, key: impl Fn(usize) -> u64) -> u32 {
        for rule in self.rules_of(leaf) {
            let (values, rank, mask) = self.parts_of(rule);
            let mut differs = 0;
            for (slot, (value, mask)) in values.iter().zip(mask).enumerate() {
                differs |= (key(slot % W) & mask) ^ value;
            }
            if differs == 0 {
                return rank;
            }
        }
        NONE
    }

    /// Checks what unchecked memory accesses rely on: branches lead to nodes, and leaves have rules
    /// with masks.
    ///
    /// # Panics
    ///
    /// If that does not hold.
    pub(crate) fn check(&self) {
        let words = self.words.len();
        let roots = self.trees.iter().map(|tree| &tree.root);
        for branch in self.nodes.iter().chain(roots) {
            if branch.is_leaf() {
                let rules = branch.rules() * (words + 1);
                assert!(branch.base() + rules <= self.leaves.len());
                for rule in self.rules_of(*branch) {
                    let mask = (rule[words] >> 32) as usize;
                    assert!((mask + 1) * words <= self.masks.len());
                }
            } else {
                assert!(branch.base() + branch.children() <= self.nodes.len());
                assert!(branch.runs().iter().all(|run| run.slot < words));
            }
        }
    }
}
