//! Lookups for sets of packets: the answer is a list of rules, each with those that have met it.

#[cfg(test)]
mod tests;

use super::{
    Bridge, LOOKUP_MAX, LinearEntry, Shape, TupleEntry, linear, lookup_ordinary, take_better,
};
use crate::epoch::{Epoch, Guard};
use crate::rule::Rule;
use crate::tuple::{View, Words};
#[cfg(target_arch = "x86_64")]
use packet::hot::Variant;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Packets that are compared with the first of a set, to see whether a tuple tells them apart at all.
const SAMPLE: usize = 8;

/// A set of packets of a burst, by their places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SetOfLanes(u64);

const _: () = assert!(LOOKUP_MAX == u64::BITS as usize);

impl SetOfLanes {
    /// None.
    pub const EMPTY: SetOfLanes = SetOfLanes(0);

    /// `count` of them, at least one, from `first` on.
    #[inline(always)]
    pub fn run(first: usize, count: usize) -> SetOfLanes {
        debug_assert!(count > 0 && first + count <= LOOKUP_MAX);
        SetOfLanes((u64::MAX >> (LOOKUP_MAX - count)) << first)
    }

    /// One of them.
    #[inline(always)]
    pub fn one(lane: usize) -> SetOfLanes {
        SetOfLanes(1 << lane)
    }

    /// Those in one of both.
    #[inline(always)]
    pub fn union(self, other: SetOfLanes) -> SetOfLanes {
        SetOfLanes(self.0 | other.0)
    }

    /// Those that are not in the other.
    #[inline(always)]
    pub fn minus(self, other: SetOfLanes) -> SetOfLanes {
        SetOfLanes(self.0 & !other.0)
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
    pub fn front(self, count: usize) -> SetOfLanes {
        let rest = (0..count).fold(self.0, |rest, _| rest & rest.wrapping_sub(1));
        SetOfLanes(self.0 & !rest)
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

    /// Those at whose places this stands. All places are compared: whole vectors at once, and none by itself.
    #[inline(always)]
    pub fn those_with(self, all: &[u32; LOOKUP_MAX], wanted: u32) -> SetOfLanes {
        #[cfg(target_arch = "x86_64")]
        if Variant::used() == Variant::Avx512 {
            // SAFETY: only a variant that the processor has is ever used.
            return SetOfLanes(self.0 & unsafe { places_with(all, wanted) });
        }
        let equal: [u8; LOOKUP_MAX] = std::array::from_fn(|lane| u8::from(all[lane] == wanted));
        let (eights, _) = equal.as_chunks();
        let bits = eights.iter().rev().fold(0, |bits, eight| {
            bits << 8 | u64::from_le_bytes(*eight).wrapping_mul(TO_BITS) >> 56
        });
        SetOfLanes(self.0 & bits)
    }

    /// Those of which it is true.
    #[inline(always)]
    pub fn those(self, mut holds: impl FnMut(usize) -> bool) -> SetOfLanes {
        self.iter().fold(SetOfLanes::EMPTY, |those, lane| {
            SetOfLanes(those.0 | u64::from(holds(lane)) << lane)
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

/// A lane's bit, for each of eight bytes that are one or zero, when these are multiplied by it: the highest byte of the product.
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
    fn whole(self) -> SetOfLanes;
}

impl Members for SetOfLanes {
    /// As [`SetOfLanes::iter`]; faster where they are neighbours, as in most sets.
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
    fn whole(self) -> SetOfLanes {
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
    fn whole(self) -> SetOfLanes {
        SetOfLanes::one(self.0)
    }
}

/// A rule, or none, and who has met it.
pub(crate) type Meeting<'g> = (Option<&'g Rule>, SetOfLanes);

/// What lookups have found: each packet's once.
pub(crate) struct Found<'g> {
    list: [Meeting<'g>; LOOKUP_MAX],
    count: usize,
}

impl<'g> Found<'g> {
    /// Nothing.
    #[inline(always)]
    pub fn new() -> Found<'g> {
        Found {
            list: [(None, SetOfLanes::EMPTY); LOOKUP_MAX],
            count: 0,
        }
    }

    /// All.
    #[inline(always)]
    pub fn list(&self) -> &[Meeting<'g>] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Adds packets, of which none is there yet; so there is room. Asks for what carrying their rule out reads.
    #[inline(always)]
    fn push(&mut self, rule: Option<&'g Rule>, set: SetOfLanes) {
        debug_assert!(!set.is_empty());
        if let Some(rule) = rule {
            rule.prefetch_steps();
        }
        if let Some(next) = self.list.get_mut(self.count) {
            *next = (rule, set);
            self.count += 1;
        }
    }

    /// Adds rules that one packet after the other has met, of which none is there yet: a packet beside the one before it where that has met the same. Asks for what
    /// carrying them out reads. Returns packets that have met none.
    #[inline(always)]
    fn push_each(&mut self, met: impl Iterator<Item = (usize, Option<&'g Rule>)>) -> SetOfLanes {
        let mut missed = SetOfLanes::EMPTY;
        let before = self.list().last().and_then(|(rule, _)| *rule);
        let (mut count, mut last) = (
            self.count,
            before.map_or(std::ptr::null(), std::ptr::from_ref),
        );
        for (lane, rule) in met {
            let set = SetOfLanes::one(lane % LOOKUP_MAX);
            let Some(rule) = rule else {
                missed = missed.union(set);
                continue;
            };
            if std::ptr::eq(last, rule) {
                if let Some((_, alike)) = self.list.get_mut(count.wrapping_sub(1)) {
                    *alike = alike.union(set);
                }
            } else if let Some(next) = self.list.get_mut(count) {
                rule.prefetch_steps();
                *next = (Some(rule), set);
                count += 1;
                last = rule;
            }
        }
        self.count = count;
        missed
    }
}

impl Bridge {
    /// Looks a set of packets up in `table`; the answer replaces what is in `found`. Neighbours that have met the same rule stand together; sets of one rule may be
    /// several. Counts lookups and matches. False, with nothing counted, where whole keys are needed.
    #[inline(always)]
    pub(crate) fn lookup_lanes<'g, K: Words>(
        &self,
        table: u8,
        set: SetOfLanes,
        lanes: &[K; LOOKUP_MAX],
        guard: &'g Guard<'_>,
        found: &mut Found<'g>,
    ) -> bool {
        let epoch = guard.epoch();
        found.count = 0;
        let missed = match self.shape(table, guard) {
            None => set,
            Some(Shape::Conjunctive { .. }) => return false,
            Some(Shape::Linear(entries)) => compare(entries, set, lanes, epoch, found),
            Some(shape @ Shape::Tuples(tuples)) => {
                by_tuples(shape, tuples, set, lanes, epoch, found)
            }
            Some(shape) => look_up(shape, set, lanes, epoch, found),
        };
        if !missed.is_empty() {
            found.push(None, missed);
        }
        self.count_lookups(table, set.len(), set.minus(missed).len(), guard);
        true
    }
}

/// Rule by rule; those that meet none are returned.
#[inline(always)]
fn compare<'g, K: Words>(
    entries: &'g [LinearEntry],
    set: SetOfLanes,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> SetOfLanes {
    // For one packet the order of rules and packets does not matter.
    if set.len() == 1
        && let Some(lane) = set.first()
    {
        return match linear(entries, &lanes[lane], epoch) {
            Some(rule) => {
                found.push(Some(rule), set);
                SetOfLanes::EMPTY
            }
            None => set,
        };
    }
    let mut rest = set;
    for entry in entries {
        let met = match &entry.words[..] {
            [] => rest,
            words => rest.those(|lane| {
                let differ = words.iter().fold(0, |differ, word| {
                    differ | lanes[lane].word(word.word) & word.mask ^ word.value
                });
                differ == 0
            }),
        };
        if met.is_empty() {
            continue;
        }
        // SAFETY: the entry belongs to a shape that is alive for 'g, and a rule outlives every shape that names it.
        let rule: &'g Rule = unsafe { entry.rule.as_ref() };
        if !rule.holds_in(epoch) {
            continue;
        }
        found.push(Some(rule), met);
        rest = rest.minus(met);
        if rest.is_empty() {
            break;
        }
    }
    rest
}

/// In tuples: packets that these cannot tell apart are looked up once. As soon as there seem to be few such, the rest are looked up packet by packet.
#[inline(always)]
fn by_tuples<'g, K: Words>(
    shape: &'g Shape,
    tuples: &'g [TupleEntry],
    set: SetOfLanes,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> SetOfLanes {
    let mut missed = SetOfLanes::EMPTY;
    let mut rest = set;
    while let Some(first) = rest.first() {
        let Some((rule, alike)) = look_up_alike(tuples, rest, first, lanes, epoch) else {
            let others = match tuples {
                [only] if !only.single => look_up_in(only, shape, rest, lanes, epoch, found),
                _ => look_up(shape, rest, lanes, epoch, found),
            };
            return missed.union(others);
        };
        match rule {
            Some(rule) => found.push(Some(rule), alike),
            None => missed = missed.union(alike),
        }
        rest = rest.minus(alike);
    }
    missed
}

/// The rule of the first packet of a set, and those that have the same bits as it, of all that were looked at to find it. None, where there are others but none
/// is seen soon.
#[inline(always)]
fn look_up_alike<'g, K: Words>(
    tuples: &'g [TupleEntry],
    set: SetOfLanes,
    first: usize,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
) -> Option<(Option<&'g Rule>, SetOfLanes)> {
    let key = &lanes[first % LOOKUP_MAX];
    let mut alike = set;
    let mut best: Option<&Rule> = None;
    for entry in tuples {
        if best.is_some_and(|best| best.spec.priority >= entry.max_priority) {
            break;
        }
        let words = entry.tuple.words();
        if alike.len() > 1 {
            let mut others = alike.front(SAMPLE).minus(SetOfLanes::one(first)).iter();
            let same = |lane: usize| {
                let other = &lanes[lane % LOOKUP_MAX];
                let mut words = words.iter();
                words.all(|(word, mask)| (other.word(*word) ^ key.word(*word)) & mask == 0)
            };
            if !others.any(same) {
                return None;
            }
            alike = same_bits(words, alike, key, lanes);
        }
        if entry.single {
            if key.has(&entry.agreed) {
                take_better(&mut best, entry.only(epoch));
            }
        } else if entry.admits(key) {
            let tuple = entry.tuple.view();
            take_better(&mut best, tuple.find(tuple.hash(key), key, epoch));
        }
    }
    Some((best, alike))
}

/// Those of a set that have the same bits as `key` in these words.
#[inline(always)]
fn same_bits<K: Words>(
    words: &[(u8, u64)],
    set: SetOfLanes,
    key: &K,
    lanes: &[K; LOOKUP_MAX],
) -> SetOfLanes {
    words.iter().fold(set, |same, (word, mask)| {
        let wanted = key.word(*word);
        // Most of the time all or few are the same.
        if K::differing(lanes, same, *word, wanted) & mask == 0 {
            return same;
        }
        same.those(|lane| (lanes[lane % LOOKUP_MAX].word(*word) ^ wanted) & mask == 0)
    })
}

/// Packet by packet, in the only tuple of a table.
#[inline(always)]
fn look_up_in<'g, K: Words>(
    only: &'g TupleEntry,
    shape: &'g Shape,
    set: SetOfLanes,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> SetOfLanes {
    let tuple = only.tuple.view();
    let words = only.tuple.words();
    // A large one is first asked whether it can have a packet's rule at all.
    let other = tuple.is_large() || words.iter().any(|(word, _)| *word >= K::AT_HAND);
    match words {
        _ if other => look_up(shape, set, lanes, epoch, found),
        [a] => look_up_by(&tuple, [*a], set, lanes, epoch, found),
        [a, b] => look_up_by(&tuple, [*a, *b], set, lanes, epoch, found),
        [a, b, c] => look_up_by(&tuple, [*a, *b, *c], set, lanes, epoch, found),
        _ => look_up(shape, set, lanes, epoch, found),
    }
}

/// Packet by packet, in a tuple of N words.
#[inline(never)] // so that what its loops need stays in registers
fn look_up_by<'g, K: Words, const N: usize>(
    tuple: &View<'g>,
    words: [(u8, u64); N],
    set: SetOfLanes,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> SetOfLanes {
    // What the loops need, by itself.
    let places: [usize; N] = std::array::from_fn(|at| words[at].0.into());
    let masks: [u64; N] = std::array::from_fn(|at| words[at].1);
    let bits = |lane: usize| -> [u64; N] {
        let lane = &lanes[lane % LOOKUP_MAX];
        std::array::from_fn(|at| lane.at_hand(places[at]) & masks[at])
    };
    // Known to be so where this is called, and said once more for the loops' sake.
    assert!(places.iter().all(|place| *place < usize::from(K::AT_HAND)));
    // Slots are few enough to lie in a cache, so that nobody waits long for them.
    let mut likely = [None; LOOKUP_MAX];
    for lane in set.iter() {
        likely[lane % LOOKUP_MAX] = tuple.likely(tuple.hash_bits(bits(lane)));
    }
    found.push_each(set.iter().map(|lane| {
        let likely = likely[lane % LOOKUP_MAX];
        let key = &lanes[lane % LOOKUP_MAX];
        (lane, tuple.find_likely(likely, bits(lane), key, epoch))
    }))
}

/// Packet by packet, in the other kinds of tables.
#[inline(always)]
fn look_up<'g, K: Words>(
    shape: &'g Shape,
    set: SetOfLanes,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> SetOfLanes {
    let mut places = [0_u8; LOOKUP_MAX];
    let mut out = [None; LOOKUP_MAX];
    let mut count = 0;
    for lane in set.iter() {
        places[count] = lane as u8;
        count += 1;
    }
    let key = |index: usize| &lanes[usize::from(places[index]) % LOOKUP_MAX];
    lookup_ordinary(Some(shape), &key, epoch, &mut out[..count]);
    let places = places.iter().map(|place| usize::from(*place));
    found.push_each(places.zip(out[..count].iter().copied()))
}
