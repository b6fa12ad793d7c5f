//! Sets of lanes (packets of a burst), and the forms in which lookups read a packet's key.

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

/// A set of lanes of a burst, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LaneSet(pub(crate) u64);

const _: () = assert!(LOOKUP_MAX == u64::BITS as usize);

impl LaneSet {
    /// The empty set.
    pub const EMPTY: LaneSet = LaneSet(0);

    /// Returns the set of `count` lanes, at least one, from `first` on.
    #[inline(always)]
    pub fn run(first: usize, count: usize) -> LaneSet {
        debug_assert!(count > 0 && first + count <= LOOKUP_MAX);
        LaneSet((u64::MAX >> (LOOKUP_MAX - count)) << first)
    }

    /// Returns the set of one lane.
    #[inline(always)]
    pub fn one(lane: usize) -> LaneSet {
        LaneSet(1 << lane)
    }

    /// Returns the union of both sets.
    #[inline(always)]
    pub fn union(self, other: LaneSet) -> LaneSet {
        LaneSet(self.0 | other.0)
    }

    /// Returns the lanes that are not in the other set.
    #[inline(always)]
    pub fn minus(self, other: LaneSet) -> LaneSet {
        LaneSet(self.0 & !other.0)
    }

    /// Returns the lanes that are also in the other set.
    #[inline(always)]
    pub fn also_in(self, other: LaneSet) -> LaneSet {
        LaneSet(self.0 & other.0)
    }

    /// Returns whether a lane is in the set.
    #[inline(always)]
    pub fn contains(self, lane: usize) -> bool {
        self.0 >> (lane % LOOKUP_MAX) & 1 != 0
    }

    /// Returns whether the set is empty.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the lowest lane.
    #[inline(always)]
    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// Returns the lowest `count` lanes, or all if there are fewer.
    #[inline(always)]
    pub fn front(self, count: usize) -> LaneSet {
        let rest = (0..count).fold(self.0, |rest, _| rest & rest.wrapping_sub(1));
        LaneSet(self.0 & !rest)
    }

    /// Iterates over the lanes, ascending, each below [`LOOKUP_MAX`].
    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        let mut rest = self;
        std::iter::from_fn(move || {
            let lane = rest.first()?;
            rest.0 &= rest.0 - 1;
            Some(lane)
        })
    }

    /// Returns the only lane of a set of one.
    #[inline(always)]
    pub fn only(self) -> Option<One> {
        // With a single bit set, subtracting one flips it and all bits below; with more, or none,
        // the comparison fails.
        let below = self.0.wrapping_sub(1);
        (self.0 ^ below > below).then(|| One(self.0.trailing_zeros() as usize))
    }

    /// Returns the lanes as a range if they are contiguous.
    #[inline(always)]
    fn as_run(self) -> Option<std::ops::Range<usize>> {
        let lowest = self.0 & self.0.wrapping_neg();
        let (first, end) = (self.0.trailing_zeros(), u64::BITS - self.0.leading_zeros());
        // Adding the lowest bit to a contiguous run carries out of it and leaves none of its bits.
        let run = self.0 & self.0.wrapping_add(lowest) == 0;
        run.then_some(first as usize..end as usize)
    }

    /// Folds the elements of the set's lanes; fastest where these are contiguous, as in most sets.
    #[inline(always)]
    pub fn fold<T, A>(self, all: &[T; LOOKUP_MAX], from: A, mut with: impl FnMut(A, &T) -> A) -> A {
        match self.as_run() {
            Some(run) => all.get(run).unwrap_or_default().iter().fold(from, with),
            None => (self.iter()).fold(from, |folded, lane| with(folded, &all[lane % LOOKUP_MAX])),
        }
    }

    /// Returns the lanes whose element equals `wanted`. Compares all 64 elements, by whole vectors.
    #[inline(always)]
    pub fn those_with(self, all: &[u32; LOOKUP_MAX], wanted: u32) -> LaneSet {
        #[cfg(target_arch = "x86_64")]
        if Variant::used() == Variant::Avx512 {
            // SAFETY: `Variant::used` only returns variants that the processor has.
            return LaneSet(self.0 & unsafe { places_with(all, wanted) });
        }
        let equal: [u8; LOOKUP_MAX] = std::array::from_fn(|lane| u8::from(all[lane] == wanted));
        let (eights, _) = equal.as_chunks();
        let bits = eights.iter().rev().fold(0, |bits, eight| {
            bits << 8 | u64::from_le_bytes(*eight).wrapping_mul(TO_BITS) >> 56
        });
        LaneSet(self.0 & bits)
    }

    /// Returns the lanes whose element has these bits, `value` in those of `mask`. Compares all 64
    /// elements, by whole vectors.
    #[inline(always)]
    pub fn those_having(self, all: &[u64; LOOKUP_MAX], mask: u64, value: u64) -> LaneSet {
        #[cfg(target_arch = "x86_64")]
        if Variant::used() == Variant::Avx512 {
            // SAFETY: `Variant::used` only returns variants that the processor has.
            return LaneSet(self.0 & unsafe { places_having(all, mask, value) });
        }
        self.those(|lane| all[lane % LOOKUP_MAX] & mask == value)
    }

    /// Returns the lanes for which `holds` is true.
    #[inline(always)]
    pub fn those(self, mut holds: impl FnMut(usize) -> bool) -> LaneSet {
        self.iter().fold(LaneSet::EMPTY, |those, lane| {
            LaneSet(those.0 | u64::from(holds(lane)) << lane)
        })
    }
}

/// Returns a bit for each element that equals `wanted`.
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

/// Returns a bit for each element that has `value` in the bits of `mask`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn places_having(all: &[u64; LOOKUP_MAX], mask: u64, value: u64) -> u64 {
    let (mask, value) = (
        _mm512_set1_epi64(mask as i64),
        _mm512_set1_epi64(value as i64),
    );
    let (eights, _) = all.as_chunks::<8>();
    eights.iter().rev().fold(0, |bits, eight| {
        // SAFETY: 64 readable bytes.
        let eight = unsafe { _mm512_loadu_si512(eight.as_ptr().cast()) };
        let equal = _mm512_cmpeq_epi64_mask(_mm512_and_si512(eight, mask), value);
        bits << 8 | u64::from(equal)
    })
}

/// Multiplying eight bytes, each 0 or 1, by this gathers their bits in the highest byte.
const TO_BITS: u64 = 0x0102_0408_1020_4080;

/// Packets of a burst: a set of lanes, or a single one, for which the code is simpler.
pub(crate) trait Members: Copy {
    /// Calls `with` for each lane, ascending, each below [`LOOKUP_MAX`].
    fn each(self, with: impl FnMut(usize));

    /// Calls `with` for the element of each lane.
    fn over<T>(self, all: &mut [T; LOOKUP_MAX], with: impl FnMut(&mut T));

    /// Iterates over the lanes; for large loop bodies, which `each` would inline twice.
    fn places(self) -> impl Iterator<Item = usize>;

    /// Returns the number of lanes.
    fn len(self) -> usize;

    /// Returns the lanes as a set.
    fn whole(self) -> LaneSet;
}

impl Members for LaneSet {
    /// Like [`LaneSet::iter`]; faster where lanes are contiguous, as in most sets.
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

/// A single lane of a burst, below [`LOOKUP_MAX`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct One(usize);

impl One {
    /// Returns the lane's index.
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
/// The words of a key that lookups read: a whole key, or only the part they need.
pub(crate) trait Words {
    /// Words with a lower index are read without a branch.
    const AT_HAND: u8;

    /// Returns word `index` of the key.
    fn word(&self, index: u8) -> u64;

    /// Returns word `index`, which is below [`Words::AT_HAND`].
    #[inline(always)]
    fn at_hand(&self, index: usize) -> u64 {
        self.word(index as u8)
    }

    /// Returns whether the key matches these words.
    #[inline(always)]
    fn has(&self, words: &[MatchWord]) -> bool {
        words
            .iter()
            .all(|word| self.word(word.word) & word.mask == word.value)
    }

    /// Returns the whole key, if this is one.
    #[inline(always)]
    fn whole(&self) -> Option<&FlowKey> {
        None
    }

    /// Returns these keys as contiguous mini keys, if they are.
    #[inline(always)]
    fn hot(_: &[Self]) -> Option<&[MiniKey]>
    where
        Self: Sized,
    {
        None
    }

    /// Returns the bits of word `index` in which any lane of a set differs from `wanted`.
    #[inline(always)]
    fn differing(packets: &[Self; LOOKUP_MAX], set: LaneSet, index: u8, wanted: u64) -> u64
    where
        Self: Sized,
    {
        set.fold(packets, 0, |differ, packet| {
            differ | packet.word(index) ^ wanted
        })
    }

    /// Returns the lanes of a set that have all of these masked words (index, mask, value).
    #[inline(always)]
    fn having(
        packets: &[Self; LOOKUP_MAX],
        set: LaneSet,
        words: impl Iterator<Item = (u8, u64, u64)> + Clone,
    ) -> LaneSet
    where
        Self: Sized,
    {
        set.those(|lane| {
            let packet = &packets[lane % LOOKUP_MAX];
            let differ = words.clone().fold(0, |differ, (word, mask, value)| {
                differ | packet.word(word) & mask ^ value
            });
            differ == 0
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
        // Called only by classifiers that read nothing but mini keys.
        self.words[usize::from(index)]
    }

    #[inline(always)]
    fn hot(keys: &[MiniKey]) -> Option<&[MiniKey]> {
        Some(keys)
    }
}

/// Returns a word that is neither in the mini key nor in `MoreWords` of common packets, as
/// `begin_key` initializes it.
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
