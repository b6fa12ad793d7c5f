//! The descent with AVX-512: eight packets take each step at once.

use crate::classifier::tree::ranks::{Keys, Ranks, STEP};
use crate::classifier::tree::{Branch, Trees, WORDS_MAX};
use std::arch::x86_64::*;

/// Packets in a register.
const LANES: usize = 8;
const GROUPS: usize = STEP / LANES;
/// With more words than this, words that differ by packet are gathered instead of selected from
/// registers.
const FEW_WORDS: usize = 4;

/// Eight packets' words that rules look at: where they lie, and where these packets begin among
/// all.
struct Group<'a, const W: usize> {
    keys: &'a Keys<W>,
    at: usize,
}

impl<const W: usize> Group<'_, W> {
    /// Returns word `slot` of each packet.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn word(&self, slot: usize) -> __m512i {
        let words: &[u64; LANES] = self.keys.0[slot][self.at * LANES..][..LANES]
            .try_into()
            .unwrap_or(&[0; LANES]); // never: as long as that
        // SAFETY: 64 readable bytes.
        unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
    }

    /// Returns for each packet the word whose slot is in the lowest bits of `slots`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn words(&self, slots: __m512i) -> __m512i {
        const { assert!(W <= FEW_WORDS || W == WORDS_MAX) }
        if W > FEW_WORDS {
            let slots = _mm512_and_si512(slots, ones(Branch::WIDTHS[0]));
            let lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
            let lane = _mm512_add_epi64(lane, all((self.at * LANES) as u64));
            let index =
                _mm512_add_epi64(_mm512_slli_epi64::<{ STEP.trailing_zeros() }>(slots), lane);
            // SAFETY: a slot has four bits and keys of more than a few words have all 16 slots
            // ([`WORDS_MAX`]); the packet's index is below the length of each word's array.
            return unsafe { _mm512_i64gather_epi64::<8>(index, self.keys.0.as_ptr().cast()) };
        }
        let mut words = self.word(0);
        let slots = _mm512_and_si512(slots, ones(Branch::WIDTHS[0]));
        for slot in 1..W {
            let chosen = _mm512_cmpeq_epi64_mask(slots, all(slot as u64));
            words = _mm512_mask_mov_epi64(words, chosen, self.word(slot));
        }
        words
    }

    /// Returns the bits of the run that is at bit `from` of each packet's branch, and their number.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn run(&self, branches: __m512i, from: u32) -> (__m512i, __m512i) {
        let [word, shift, bits] = Branch::WIDTHS;
        let run = _mm512_srl_epi64(branches, count(from));
        let words = self.words(run);
        let run = _mm512_srl_epi64(run, count(word));
        let words = _mm512_srlv_epi64(words, _mm512_and_si512(run, ones(shift)));
        let bits = _mm512_and_si512(_mm512_srl_epi64(run, count(shift)), ones(bits));
        let beyond = _mm512_sllv_epi64(all(u64::MAX), bits);
        (_mm512_andnot_si512(beyond, words), bits)
    }

    /// Does [`Branch::child`] for eight packets.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn children(&self, branches: __m512i) -> __m512i {
        let [first, second] = Branch::RUNS;
        let (low, bits) = self.run(branches, first);
        let (high, _) = self.run(branches, second);
        let index = _mm512_or_si512(low, _mm512_sllv_epi64(high, bits));
        _mm512_add_epi64(index, _mm512_and_si512(branches, ones(32)))
    }
}

/// Returns the number in all eight lanes.
#[target_feature(enable = "avx512f")]
#[inline]
fn all(number: u64) -> __m512i {
    _mm512_set1_epi64(number as i64)
}

/// Returns a mask of the lowest `bits` bits in each lane.
#[target_feature(enable = "avx512f")]
#[inline]
fn ones(bits: u32) -> __m512i {
    all(!(u64::MAX << bits))
}

/// Returns a shift count.
#[target_feature(enable = "avx512f")]
#[inline]
fn count(bits: u32) -> __m128i {
    _mm_cvtsi32_si128(bits as i32)
}

/// Does [`Trees::descend`] for all packets.
#[target_feature(enable = "avx512f")]
pub(crate) fn descend<const W: usize>(
    trees: &Trees,
    keys: &Keys<W>,
    wanted: u32,
    ranks: &mut Ranks,
) {
    let groups = ((u32::BITS - wanted.leading_zeros()) as usize).div_ceil(LANES);
    let mut best = [all(u64::from(trees.otherwise)); GROUPS];
    for tree in &trees.trees {
        let mut branches = [all(tree.root.0); GROUPS];
        let mut left = [0_u8; GROUPS];
        let mut any = 0;
        for at in 0..groups {
            let below = _mm512_cmpgt_epu64_mask(best[at], all(u64::from(tree.first)));
            left[at] = (wanted >> (at * LANES)) as u8 & below;
            any |= left[at];
        }
        if any == 0 {
            break;
        }
        while any != 0 {
            any = 0;
            for at in 0..groups {
                let inner =
                    _mm512_mask_cmpge_epi64_mask(left[at], branches[at], _mm512_setzero_si512());
                if inner == 0 {
                    continue;
                }
                any = inner;
                let children = Group { keys, at }.children(branches[at]);
                // SAFETY: `Trees::check` has checked that branches of inner nodes lead to nodes,
                // whatever a packet's bits are.
                branches[at] = unsafe {
                    _mm512_mask_i64gather_epi64::<8>(
                        branches[at],
                        inner,
                        children,
                        trees.nodes.as_ptr().cast(),
                    )
                };
            }
        }
        compare(trees, keys, groups, &branches, &mut left, &mut best);
    }
    for (out, best) in ranks.0.chunks_exact_mut(LANES).zip(best) {
        // SAFETY: 32 writable bytes.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi64_epi32(best)) };
    }
}

/// Compares packets with the rules of their leaves.
#[target_feature(enable = "avx512f")]
#[inline]
fn compare<const W: usize>(
    trees: &Trees,
    keys: &Keys<W>,
    groups: usize,
    leaves: &[__m512i; GROUPS],
    left: &mut [u8; GROUPS],
    best: &mut [__m512i; GROUPS],
) {
    let words = if W < WORDS_MAX { W } else { trees.words.len() };
    let stride = all(words as u64 + 1);
    // Where each packet's next rule is, and where its leaf ends.
    let mut next = [_mm512_setzero_si512(); GROUPS];
    let mut end = next;
    let mut any = 0;
    for at in 0..groups {
        let rules = _mm512_srl_epi64(leaves[at], count(Branch::COUNT));
        let rules = _mm512_and_si512(rules, ones(Branch::COUNT_WIDTH));
        next[at] = _mm512_and_si512(leaves[at], ones(32));
        end[at] = _mm512_add_epi64(next[at], _mm512_mul_epu32(rules, stride));
        left[at] &= _mm512_cmplt_epu64_mask(next[at], end[at]);
        any |= left[at];
    }
    let rules = trees.leaves.as_ptr();
    let masks = trees.masks.as_ptr();
    let zero = _mm512_setzero_si512();
    while any != 0 {
        any = 0;
        for at in 0..groups {
            if left[at] == 0 {
                continue;
            }
            // SAFETY: `Trees::check` has checked that leaves lie in `leaves` and masks in `masks`;
            // packets that are left have another rule in their leaf: so many words of values and a
            // last one, which names a mask of so many words.
            let (differs, last) = unsafe {
                let last = _mm512_mask_i64gather_epi64::<8>(
                    zero,
                    left[at],
                    next[at],
                    rules.wrapping_add(words).cast(),
                );
                let mask_at = _mm512_srl_epi64(last, count(32));
                let mask_at = _mm512_mul_epu32(mask_at, all(words as u64));
                let mut differs = zero;
                for slot in 0..words {
                    let value = _mm512_mask_i64gather_epi64::<8>(
                        zero,
                        left[at],
                        next[at],
                        rules.wrapping_add(slot).cast(),
                    );
                    let mask = _mm512_mask_i64gather_epi64::<8>(
                        zero,
                        left[at],
                        mask_at,
                        masks.wrapping_add(slot).cast(),
                    );
                    let bits = _mm512_and_si512(Group { keys, at }.word(slot), mask);
                    differs = _mm512_or_si512(differs, _mm512_xor_si512(bits, value));
                }
                (differs, last)
            };
            let met = _mm512_mask_cmpeq_epi64_mask(left[at], differs, zero);
            let rank = _mm512_and_si512(last, ones(32));
            best[at] = _mm512_mask_min_epu64(best[at], met, best[at], rank);
            next[at] = _mm512_add_epi64(next[at], stride);
            left[at] &= !met & _mm512_cmplt_epu64_mask(next[at], end[at]);
            any |= left[at];
        }
    }
}
