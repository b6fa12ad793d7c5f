//! Lookups for sets of packets: the answer is a list of rules, each with those that have met it.

use super::{Bridge, LOOKUP_MAX, LinearEntry, Shape, linear, lookup_ordinary};
use crate::epoch::{Epoch, Guard};
use crate::rule::Rule;
use crate::tuple::Words;
use smallvec::SmallVec;

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

    #[inline(always)]
    fn one(lane: usize) -> SetOfLanes {
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

    /// How many.
    #[inline(always)]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The first.
    #[inline(always)]
    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
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

    /// Those of which it is true.
    #[inline(always)]
    pub fn those(self, mut holds: impl FnMut(usize) -> bool) -> SetOfLanes {
        self.iter().fold(SetOfLanes::EMPTY, |those, lane| {
            SetOfLanes(those.0 | u64::from(holds(lane)) << lane)
        })
    }
}

/// Rules, or none, and who has met them.
pub(crate) type Found<'g> = SmallVec<[(Option<&'g Rule>, SetOfLanes); LOOKUP_MAX]>;

impl Bridge {
    /// Looks a set of packets up in `table`. Neighbours that have met the same rule stand together; sets of one rule may be several. Counts lookups and matches.
    /// None, with nothing counted, where whole keys are needed.
    #[inline(always)]
    pub(crate) fn lookup_lanes<'g, K: Words>(
        &self,
        table: u8,
        set: SetOfLanes,
        lanes: &[K],
        guard: &'g Guard<'_>,
    ) -> Option<Found<'g>> {
        let lanes: &[K; LOOKUP_MAX] = lanes.try_into().ok()?;
        let epoch = guard.epoch();
        let mut found = Found::new();
        let missed = match self.shape(table, guard) {
            None => set,
            Some(Shape::Conjunctive { .. }) => return None,
            Some(Shape::Linear(entries)) => compare(entries, set, lanes, epoch, &mut found),
            Some(shape) => look_up(shape, set, lanes, epoch, &mut found),
        };
        if !missed.is_empty() {
            found.push((None, missed));
        }
        self.count_lookups(table, set.len(), set.minus(missed).len(), guard);
        Some(found)
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
