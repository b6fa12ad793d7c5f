//! Lookups for sets of packets: the result is a list of rules, each with the lanes that met it.

#[cfg(test)]
mod tests;

use super::{Classify, KeysBy};
use crate::burst::Words;
use crate::burst::{LOOKUP_MAX, LaneSet};
use crate::epoch::Epoch;
use crate::rule::Rule;

/// A rule, or None, and the lanes that met it.
pub(crate) type Meeting<'g> = (Option<&'g Rule>, LaneSet);

/// The results of lookups; each lane occurs once.
pub(crate) struct Found<'g> {
    pub(crate) list: [Meeting<'g>; LOOKUP_MAX],
    pub(crate) count: usize,
}

impl<'g> Found<'g> {
    /// Creates an empty list.
    #[inline(always)]
    pub fn new() -> Found<'g> {
        Found {
            list: [(None, LaneSet::EMPTY); LOOKUP_MAX],
            count: 0,
        }
    }

    /// Empties the list.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Returns all results.
    #[inline(always)]
    pub fn list(&self) -> &[Meeting<'g>] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Adds lanes that are not in the list yet, so there is room. Prefetches what executing their
    /// rule reads.
    #[inline(always)]
    pub(crate) fn push(&mut self, rule: Option<&'g Rule>, set: LaneSet) {
        debug_assert!(!set.is_empty());
        if let Some(rule) = rule {
            rule.prefetch_steps();
        }
        if let Some(next) = self.list.get_mut(self.count) {
            *next = (rule, set);
            self.count += 1;
        }
    }

    /// Adds the rules that single packets have met, none of which is in the list yet; a packet that
    /// met the same rule as the one before it joins its set. Prefetches what executing the rules
    /// reads. Returns the packets that met none.
    #[inline(always)]
    pub(crate) fn push_each(
        &mut self,
        met: impl Iterator<Item = (usize, Option<&'g Rule>)>,
    ) -> LaneSet {
        let mut missed = LaneSet::EMPTY;
        let before = self.list().last().and_then(|(rule, _)| *rule);
        let (mut count, mut last) = (
            self.count,
            before.map_or(std::ptr::null(), std::ptr::from_ref),
        );
        for (lane, rule) in met {
            let set = LaneSet::one(lane % LOOKUP_MAX);
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

/// Implements [`Classify::look_up_lanes`] for any kind of classifier, packet by packet.
#[inline(always)]
pub(crate) fn look_up_each<'g, K: Words>(
    classifier: &'g (impl Classify + ?Sized),
    set: LaneSet,
    lanes: &[K; LOOKUP_MAX],
    epoch: Epoch,
    found: &mut Found<'g>,
) -> LaneSet {
    let mut places = [0_u8; LOOKUP_MAX];
    let mut out = [None; LOOKUP_MAX];
    let mut count = 0;
    for lane in set.iter() {
        places[count] = lane as u8;
        count += 1;
    }
    let key = |index: usize| &lanes[usize::from(places[index]) % LOOKUP_MAX];
    classifier.look_up(KeysBy(key), epoch, &mut out[..count], None);
    let places = places.iter().map(|place| usize::from(*place));
    found.push_each(places.zip(out[..count].iter().copied()))
}
