//! Lookups for sets of packets: the answer is a list of rules, each with those that have met it.

use super::{
    Bridge, LOOKUP_MAX, LinearEntry, Shape, TupleEntry, linear, lookup_ordinary, take_better,
};
use crate::epoch::{Epoch, Guard};
use crate::rule::Rule;
use crate::tuple::Words;
use smallvec::SmallVec;

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
        let one = self.0 & self.0.wrapping_sub(1) == 0;
        self.first().filter(|_| one).map(One)
    }

    /// Those of which it is true.
    #[inline(always)]
    pub fn those(self, mut holds: impl FnMut(usize) -> bool) -> SetOfLanes {
        self.iter().fold(SetOfLanes::EMPTY, |those, lane| {
            SetOfLanes(those.0 | u64::from(holds(lane)) << lane)
        })
    }
}

/// Packets of a burst: a set of them, or one, for which all is simpler.
pub(crate) trait Members: Copy {
    /// Shows each of their places, ascending, each below [`LOOKUP_MAX`].
    fn each(self, with: impl FnMut(usize));

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
        let first = self.0.trailing_zeros();
        let run = self.0.checked_shr(first).unwrap_or(0);
        if run & run.wrapping_add(1) != 0 {
            return self.iter().for_each(with);
        }
        let first = first as usize;
        (first..first + run.count_ones() as usize).for_each(|lane| with(lane % LOOKUP_MAX));
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

/// Rules, or none, and who has met them.
pub(crate) type Found<'g> = SmallVec<[(Option<&'g Rule>, SetOfLanes); LOOKUP_MAX]>;

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
        found.clear();
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
            found.push((None, missed));
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
                found.push((Some(rule), set));
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
        found.push((Some(rule), met));
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
            return missed.union(look_up(shape, rest, lanes, epoch, found));
        };
        match rule {
            Some(rule) => found.push((Some(rule), alike)),
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
            let sample = alike.front(SAMPLE);
            if same_bits(words, sample, key, lanes).len() == 1 {
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
        let differ = |lane: usize| (lanes[lane % LOOKUP_MAX].word(*word) ^ wanted) & mask;
        // Most of the time all or few are the same.
        let mut any = 0;
        same.each(|lane| any |= differ(lane));
        if any == 0 {
            return same;
        }
        same.those(|lane| differ(lane) == 0)
    })
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
    let mut missed = SetOfLanes::EMPTY;
    let mut last: *const Rule = std::ptr::null();
    for (place, rule) in places.iter().zip(&out[..count]) {
        let lane = SetOfLanes::one(usize::from(*place));
        match rule {
            None => missed = missed.union(lane),
            Some(rule) => {
                if std::ptr::eq(last, *rule)
                    && let Some((_, set)) = found.last_mut()
                {
                    *set = set.union(lane);
                } else {
                    found.push((Some(rule), lane));
                    last = *rule;
                }
            }
        }
    }
    missed
}
