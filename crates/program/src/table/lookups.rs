//! Lookups of a burst's packets in a bridge's tables, by the forms of their keys.

use super::{Bridge, NO_COUNTER};
use crate::burst::{LOOKUP_MAX, LaneSet, Members, Words};
use crate::classifier::Classify;
use crate::classifier::lanes::Found;
use crate::classifier::mini_key::Reads;
use crate::classifier::prefilter::Patterned;
use crate::classifier::verdicts::VerdictsBy;
use crate::counters::{CounterId, WorkerCounters};
use crate::epoch::Guard;
use crate::rule::Rule;
use crate::rule::summary::Summaries;
use packet::FlowKey;
use std::sync::atomic::Ordering;

impl Bridge {
    /// Returns how much of a packet `table` reads. Call it before [`Bridge::lookup_mini_keys`],
    /// which only looks up in tables that read no more than the keys have.
    #[inline(always)]
    pub fn reads(&self, table: u8, guard: &Guard<'_>) -> Reads {
        self.published(table, guard)
            .map_or(Reads::Port, |published| published.reads)
    }

    /// Returns `table` as patterns: its rules, where they are few, read mini keys only, and each
    /// has a version in the guard's epoch; or its tuples, where these are few and read mini keys
    /// only.
    #[inline(always)]
    pub(crate) fn patterned<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<Patterned<'g>> {
        let published = self.published(table, guard)?;
        let patterns = published.patterns.as_deref()?;
        let behind = published.classifier.behind_patterns(guard.epoch())?;
        Some(Patterned {
            patterns,
            prefilter: published.prefilter.as_deref(),
            behind,
        })
    }

    /// Does [`Bridge::lookup_burst`] by keys that have only what tables that read `most` look at;
    /// `out` must be None for all. Returns false, with `out` undefined, where the table by now
    /// reads more.
    #[inline(always)]
    pub(crate) fn lookup_mini_keys<'g, K: Words>(
        &self,
        table: u8,
        keys: &[K],
        most: Reads,
        guard: &'g Guard<'_>,
        out: &mut [Option<&'g Rule>],
        summaries: Option<&mut Summaries<'g>>,
    ) -> bool {
        debug_assert!(keys.len() <= LOOKUP_MAX && out.iter().all(Option::is_none));
        let out = &mut out[..keys.len()];
        let epoch = guard.epoch();
        match self.published(table, guard) {
            None => {}
            Some(published) if published.reads > most || published.reads == Reads::Whole => {
                return false;
            }
            Some(published) => published.classifier.look_up(keys, epoch, out, summaries),
        }
        true
    }

    /// Returns the verdicts of packets, where the table has a trie or exact table that reads at
    /// most `most`, which keys have, and that takes precedence over its other rules. Positions by
    /// which verdicts are found are written to `numbers` and stay there, so that they need not be
    /// copied.
    #[inline(always)]
    pub(crate) fn verdicts<'g, 'n, K: Words>(
        &self,
        table: u8,
        keys: &[K],
        most: Reads,
        guard: &'g Guard<'_>,
        numbers: &'n mut [u32; LOOKUP_MAX],
    ) -> Option<VerdictsBy<'g, 'n>> {
        let published = self.published(table, guard)?;
        if published.reads > most {
            return None;
        }
        (published.classifier).verdicts(keys, guard.epoch(), numbers)
    }

    /// Returns the rule of `table` for one packet, if it is a table whose rules are compared one
    /// after the other, and counts the lookup. None for other tables, and where no rule matches.
    #[inline(always)]
    pub(crate) fn lookup_at_once<'g>(
        &self,
        table: u8,
        key: &FlowKey,
        guard: &'g Guard<'_>,
        counters: WorkerCounters<'_>,
    ) -> Option<&'g Rule> {
        let classifier = self.classifier(table, guard)?;
        let rule = classifier.look_up_at_once(key, guard.epoch())?;
        let counter = self.slots[usize::from(table)]
            .counter
            .load(Ordering::Relaxed);
        if counter != NO_COUNTER {
            counters.add(CounterId(counter), 1, 1, 0);
        }
        Some(rule)
    }

    /// Counts lookups that were made by [`Bridge::lookup_mini_keys`] for this many packets.
    #[inline(always)]
    pub(crate) fn count_looked_up(
        &self,
        table: u8,
        lookups: usize,
        matched: usize,
        guard: &Guard<'_>,
    ) {
        self.count_lookups(table, lookups, matched, guard);
    }
}

impl Bridge {
    /// Looks a set of packets up in `table`; the result replaces `found`. Neighbouring packets that
    /// have met the same rule share an entry; a rule may have several entries. Counts lookups and
    /// matches. Returns false, with nothing counted, where whole keys are needed.
    #[inline(always)]
    pub(crate) fn lookup_lanes<'g, K: Words>(
        &self,
        table: u8,
        set: LaneSet,
        lanes: &[K; LOOKUP_MAX],
        guard: &'g Guard<'_>,
        found: &mut Found<'g>,
    ) -> bool {
        let epoch = guard.epoch();
        found.clear();
        let missed = match self.published(table, guard) {
            None => set,
            Some(published) if published.reads == Reads::Whole => return false,
            Some(published) => (published.classifier).look_up_lanes(set, lanes, epoch, found),
        };
        if !missed.is_empty() {
            found.push(None, missed);
        }
        self.count_lookups(table, set.len(), set.minus(missed).len(), guard);
        true
    }
}
