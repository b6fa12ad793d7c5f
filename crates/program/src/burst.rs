//! A burst's packets as lanes: sets of them, and what lookups read of each.

use crate::port::reserved;
use packet::FlowKey;
use packet::key::at;
use packet::matching::MatchWord;
use packet::mini_key::MiniKey;
#[cfg(target_arch = "x86_64")]
use packet::mini_key::Variant;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Most packets that are looked up together.
pub const LOOKUP_MAX: usize = 64;

const _: () = assert!(LOOKUP_MAX == u64::BITS as usize);

/// A set of packets of a burst, by their places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LaneSet(pub(crate) u64);

const _: () = assert!(LOOKUP_MAX == u64::BITS as usize);

impl LaneSet {
    /// None.
    pub const EMPTY: LaneSet = LaneSet(0);

    /// `count` of them, at least one, from `first` on.
    #[inline(always)]
    pub fn run(first: usize, count: usize) -> LaneSet {
        debug_assert!(count > 0 && first + count <= LOOKUP_MAX);
        LaneSet((u64::MAX >> (LOOKUP_MAX - count)) << first)
    }

    /// One of them.
    #[inline(always)]
    pub fn one(lane: usize) -> LaneSet {
        LaneSet(1 << lane)
    }

    /// Those in one of both.
    #[inline(always)]
    pub fn union(self, other: LaneSet) -> LaneSet {
        LaneSet(self.0 | other.0)
    }

    /// Those that are not in the other.
    #[inline(always)]
    pub fn minus(self, other: LaneSet) -> LaneSet {
        LaneSet(self.0 & !other.0)
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The first.
    #[inline(always)]
    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// The first `count` of them, or all.
    #[inline(always)]
    pub fn front(self, count: usize) -> LaneSet {
        let rest = (0..count).fold(self.0, |rest, _| rest & rest.wrapping_sub(1));
        LaneSet(self.0 & !rest)
    }

    /// Their places, ascending, each below [`LOOKUP_MAX`].
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let lane = rest.first()?;
            rest.0 &= rest.0 - 1;
            Some(lane)
        })
    }

    /// Its only member, if it has one only.
    #[inline(always)]
    pub fn only(self) -> Option<One> {
        // Of one bit, all below it and itself change where one is taken away: more than are left.
        let below = self.0.wrapping_sub(1);
        (self.0 ^ below > below).then(|| One(self.0.trailing_zeros() as usize))
    }

    /// Its places from the first to the last, if they are neighbours.
    #[inline(always)]
    fn as_run(self) -> Option<std::ops::Range<usize>> {
        let lowest = self.0 & self.0.wrapping_neg();
        let (first, end) = (self.0.trailing_zeros(), u64::BITS - self.0.leading_zeros());
        // Adding one at the lowest carries through a run and beyond it.
        let run = self.0 & self.0.wrapping_add(lowest) == 0;
        run.then_some(first as usize..end as usize)
    }

    /// Folds what stands at its places; fastest where they are neighbours, as in most sets.
    #[inline(always)]
    pub fn fold<T, A>(self, all: &[T; LOOKUP_MAX], from: A, mut with: impl FnMut(A, &T) -> A) -> A {
        match self.as_run() {
            Some(run) => all.get(run).unwrap_or_default().iter().fold(from, with),
            None => (self.iter()).fold(from, |folded, lane| with(folded, &all[lane % LOOKUP_MAX])),
        }
    }

    /// Those at whose places this stands. All places are compared: whole vectors at once, and none
    /// by itself.
    #[inline(always)]
    pub fn those_with(self, all: &[u32; LOOKUP_MAX], wanted: u32) -> LaneSet {
        #[cfg(target_arch = "x86_64")]
        if Variant::used() == Variant::Avx512 {
            // SAFETY: only a variant that the processor has is ever used.
            return LaneSet(self.0 & unsafe { places_with(all, wanted) });
        }
        let equal: [u8; LOOKUP_MAX] = std::array::from_fn(|lane| u8::from(all[lane] == wanted));
        let (eights, _) = equal.as_chunks();
        let bits = eights.iter().rev().fold(0, |bits, eight| {
            bits << 8 | u64::from_le_bytes(*eight).wrapping_mul(TO_BITS) >> 56
        });
        LaneSet(self.0 & bits)
    }

    /// Those of which it is true.
    #[inline(always)]
    pub fn those(self, mut holds: impl FnMut(usize) -> bool) -> LaneSet {
        self.iter().fold(LaneSet::EMPTY, |those, lane| {
            LaneSet(those.0 | u64::from(holds(lane)) << lane)
        })
    }
}

/// A bit for each place at which this stands.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn places_with(all: &[u32; LOOKUP_MAX], wanted: u32) -> u64 {
    let wanted = _mm512_set1_epi32(wanted as i32);
    let (sixteens, _) = all.as_chunks::<16>();
    sixteens.iter().rev().fold(0, |bits, sixteen| {
        // SAFETY: 64 readable bytes.
        let sixteen = unsafe { _mm512_loadu_si512(sixteen.as_ptr().cast()) };
        bits << 16 | u64::from(_mm512_cmpeq_epi32_mask(sixteen, wanted))
    })
}

/// A lane's bit, for each of eight bytes that are one or zero, when these are multiplied by it: the
/// highest byte of the product.
const TO_BITS: u64 = 0x0102_0408_1020_4080;

/// Packets of a burst: a set of them, or one, for which all is simpler.
pub(crate) trait Members: Copy {
    /// Shows each of their places, ascending, each below [`LOOKUP_MAX`].
    fn each(self, with: impl FnMut(usize));

    /// Shows what stands at each of their places.
    fn over<T>(self, all: &mut [T; LOOKUP_MAX], with: impl FnMut(&mut T));

    /// The same, for what is much code.
    fn places(self) -> impl Iterator<Item = usize>;

    /// How many.
    fn len(self) -> usize;

    /// The set of them.
    fn whole(self) -> LaneSet;
}

impl Members for LaneSet {
    /// As [`LaneSet::iter`]; faster where they are neighbours, as in most sets.
    #[inline(always)]
    fn each(self, mut with: impl FnMut(usize)) {
        match self.as_run() {
            Some(run) => run.for_each(|lane| with(lane % LOOKUP_MAX)),
            None => self.iter().for_each(with),
        }
    }

    #[inline(always)]
    fn over<T>(self, all: &mut [T; LOOKUP_MAX], mut with: impl FnMut(&mut T)) {
        match self.as_run() {
            Some(run) => (all.get_mut(run).unwrap_or_default().iter_mut()).for_each(with),
            None => self
                .iter()
                .for_each(|lane| with(&mut all[lane % LOOKUP_MAX])),
        }
    }

    #[inline(always)]
    fn places(self) -> impl Iterator<Item = usize> {
        self.iter()
    }

    #[inline(always)]
    fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    #[inline(always)]
    fn whole(self) -> LaneSet {
        self
    }
}

/// A packet's place in its burst, below [`LOOKUP_MAX`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct One(usize);

impl One {
    /// The place.
    #[inline(always)]
    pub fn place(self) -> usize {
        self.0 % LOOKUP_MAX
    }
}

impl Members for One {
    #[inline(always)]
    fn each(self, mut with: impl FnMut(usize)) {
        with(self.0 % LOOKUP_MAX);
    }

    #[inline(always)]
    fn over<T>(self, all: &mut [T; LOOKUP_MAX], mut with: impl FnMut(&mut T)) {
        with(&mut all[self.0 % LOOKUP_MAX]);
    }

    #[inline(always)]
    fn places(self) -> impl Iterator<Item = usize> {
        std::iter::once(self.0 % LOOKUP_MAX)
    }

    #[inline(always)]
    fn len(self) -> usize {
        1
    }

    #[inline(always)]
    fn whole(self) -> LaneSet {
        LaneSet::one(self.0)
    }
}
/// What lookups read: a whole key, or only the part of it that they need.
pub(crate) trait Words {
    /// Words below this number are read without a choice.
    const AT_HAND: u8;

    /// Word `index` of the key.
    fn word(&self, index: u8) -> u64;

    /// The same of one below [`Words::AT_HAND`].
    #[inline(always)]
    fn at_hand(&self, index: usize) -> u64 {
        self.word(index as u8)
    }

    /// Whether these bits are as wanted.
    #[inline(always)]
    fn has(&self, words: &[MatchWord]) -> bool {
        words
            .iter()
            .all(|word| self.word(word.word) & word.mask == word.value)
    }

    /// The whole key, where it is one.
    #[inline(always)]
    fn whole(&self) -> Option<&FlowKey> {
        None
    }

    /// These packets' keys as mini keys behind each other, where they are.
    #[inline(always)]
    fn hot(_: &[Self]) -> Option<&[MiniKey]>
    where
        Self: Sized,
    {
        None
    }

    /// The bits of word `index` in which some of a set of packets differ from `wanted`.
    #[inline(always)]
    fn differing(packets: &[Self; LOOKUP_MAX], set: LaneSet, index: u8, wanted: u64) -> u64
    where
        Self: Sized,
    {
        set.fold(packets, 0, |differ, packet| {
            differ | packet.word(index) ^ wanted
        })
    }
}

impl<W: Words> Words for &W {
    const AT_HAND: u8 = W::AT_HAND;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        W::word(self, index)
    }

    #[inline(always)]
    fn at_hand(&self, index: usize) -> u64 {
        W::at_hand(self, index)
    }

    #[inline(always)]
    fn whole(&self) -> Option<&FlowKey> {
        W::whole(self)
    }
}

impl Words for FlowKey {
    const AT_HAND: u8 = 64;

    #[inline(always)]
    fn whole(&self) -> Option<&FlowKey> {
        Some(self)
    }

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        self.words[usize::from(index)]
    }
}

impl Words for MiniKey {
    const AT_HAND: u8 = packet::parse::MINI_KEY_WORDS as u8;

    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        // Only asked by shapes that read nothing else.
        self.words[usize::from(index)]
    }

    #[inline(always)]
    fn hot(keys: &[MiniKey]) -> Option<&[MiniKey]> {
        Some(keys)
    }
}

/// A word that packets of the common kinds do not have of their own, but for [`MoreWords`]: as
/// [`begin_key`] begins it.
#[inline(always)]
pub(crate) fn beyond(index: u8) -> u64 {
    const UNSET: u64 = {
        assert!(at::ACTSET_OUTPUT.is_multiple_of(8));
        let [a, b, c, d] = reserved::UNSET.to_be_bytes();
        u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0])
    };
    if usize::from(index) == at::ACTSET_OUTPUT / 8 {
        UNSET
    } else {
        0
    }
}
