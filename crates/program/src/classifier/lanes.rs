//! Lookups for sets of packets: the answer is a list of rules, each with those that have met it.

#[cfg(test)]
mod tests;

use crate::burst::Words;
use crate::burst::{LOOKUP_MAX, Members, SetOfLanes};
use crate::classifier::linear::{LinearEntry, linear};
use crate::classifier::tuple::View;
use crate::classifier::tuple_space::{TupleEntry, take_better};
use crate::classifier::{Shape, lookup_ordinary};
use crate::epoch::Epoch;
use crate::rule::Rule;

/// Packets that are compared with the first of a set, to see whether a tuple tells them apart at all.
pub(crate) const SAMPLE: usize = 8;

/// A rule, or none, and who has met it.
pub(crate) type Meeting<'g> = (Option<&'g Rule>, SetOfLanes);

/// What lookups have found: each packet's once.
pub(crate) struct Found<'g> {
    pub(crate) list: [Meeting<'g>; LOOKUP_MAX],
    pub(crate) count: usize,
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
    pub(crate) fn push(&mut self, rule: Option<&'g Rule>, set: SetOfLanes) {
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
    pub(crate) fn push_each(
        &mut self,
        met: impl Iterator<Item = (usize, Option<&'g Rule>)>,
    ) -> SetOfLanes {
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

/// Rule by rule; those that meet none are returned.
#[inline(always)]
pub(crate) fn compare<'g, K: Words>(
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
pub(crate) fn by_tuples<'g, K: Words>(
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
pub(crate) fn look_up_alike<'g, K: Words>(
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
pub(crate) fn same_bits<K: Words>(
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
pub(crate) fn look_up_in<'g, K: Words>(
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
pub(crate) fn look_up_by<'g, K: Words, const N: usize>(
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
pub(crate) fn look_up<'g, K: Words>(
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
