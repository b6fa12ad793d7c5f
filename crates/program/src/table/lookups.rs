//! Lookups of a burst's packets in a bridge's tables, by what has been read of them.

use super::{Bridge, NO_COUNTER};
use crate::burst::{LOOKUP_MAX, Members, SetOfLanes, Words};
use crate::classifier::exact::ByWords;
use crate::classifier::lanes::{Found, by_tuples, compare, look_up};
use crate::classifier::linear::linear;
use crate::classifier::mini_key::{
    Behind, ExactMatches, Patterned, Reads, Routes, VerdictsBy, has_versions,
};
use crate::classifier::tuple_space::{exact_of, lookup_exact};
use crate::classifier::{Published, Shape, lookup_prefixes, lookup_trees};
use crate::counters::{CounterId, WorkerCounters};
use crate::epoch::Guard;
use crate::rule::Rule;
use crate::rule::summary::Told;
use packet::FlowKey;
use std::sync::atomic::Ordering;

impl Bridge {
    /// What `table` looks at. Ask before [`Bridge::lookup_hot`], which answers only what may be asked of it.
    #[inline(always)]
    pub fn reads(&self, table: u8, guard: &Guard<'_>) -> Reads {
        self.published(table, guard)
            .map_or(Reads::Port, |published| published.reads)
    }

    /// `table` as patterns: its rules, where they are few, look at hot words only, and each has a version in the guard's epoch; or its tuples, where those are few and
    /// look at hot words only.
    #[inline(always)]
    pub(crate) fn patterned<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<Patterned<'g>> {
        let published = self.published(table, guard)?;
        let patterns = published.patterns.as_deref()?;
        let epoch = guard.epoch();
        let behind = match &published.shape {
            Shape::Linear(entries) => {
                if entries.iter().all(|entry| entry.rule().holds_in(epoch)) {
                    Behind::Rules(entries)
                } else {
                    has_versions(entries, epoch).then_some(Behind::Versions(entries, epoch))?
                }
            }
            Shape::Tuples(tuples) => Behind::Tuples(tuples, epoch),
            Shape::Trees(_) | Shape::Prefixes(_) | Shape::Conjunctive { .. } => return None,
        };
        Some(Patterned {
            patterns,
            sorting: published.sorting.as_deref(),
            behind,
        })
    }

    /// As [`Bridge::lookup_burst`], by keys that have no more than tables look at that read `most`; `out` is empty before. False, with `out` undefined, where the table looks at more
    /// by now.
    #[inline(always)]
    pub(crate) fn lookup_hot<'g, K: Words>(
        &self,
        table: u8,
        keys: &[K],
        most: Reads,
        guard: &'g Guard<'_>,
        out: &mut [Option<&'g Rule>],
        told: Option<&mut Told<'g>>,
    ) -> bool {
        debug_assert!(keys.len() <= LOOKUP_MAX && out.iter().all(Option::is_none));
        let out = &mut out[..keys.len()];
        let epoch = guard.epoch();
        match self.published(table, guard) {
            None => {}
            Some(Published { reads, .. }) if *reads > most => return false,
            Some(Published {
                shape: Shape::Linear(entries),
                ..
            }) => {
                for (found, key) in out.iter_mut().zip(keys) {
                    *found = linear(entries, key, epoch);
                }
            }
            Some(Published {
                shape: Shape::Tuples(tuples),
                ..
            }) => {
                let mut all = (0..out.len() as u8).collect();
                lookup_exact(tuples, &mut all, keys, epoch, out, told);
            }
            Some(Published {
                shape: Shape::Trees(shape),
                ..
            }) => lookup_trees(shape, &|index| &keys[index], epoch, out, told),
            Some(Published {
                shape: Shape::Prefixes(shape),
                ..
            }) => lookup_prefixes(shape, &|index| &keys[index], epoch, out, told),
            Some(Published {
                shape: Shape::Conjunctive { .. },
                ..
            }) => return false,
        }
        true
    }

    /// The verdicts of packets, where the table is one of prefixes or of exact matches that looks at no more than `most`, which keys have, and these come before what else it has.
    /// What they are found by goes to `numbers`, and stays there, so that it need not be copied.
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
        match &published.shape {
            Shape::Prefixes(shape) if shape.decides() => {
                let next_hops = shape.next_hops(keys, numbers);
                Some(VerdictsBy::Routes(Routes { shape, next_hops }))
            }
            Shape::Tuples(tuples) => {
                let exact = exact_of(tuples, guard.epoch())?;
                Some(match exact.search(keys, 0..keys.len(), numbers) {
                    ByWords::One(search) => VerdictsBy::OneWord(ExactMatches { tuples, search }),
                    ByWords::Two(search) => VerdictsBy::TwoWords(ExactMatches { tuples, search }),
                })
            }
            _ => None,
        }
    }

    /// The rule of `table` for one packet, if the table is one whose rules are compared one after the other; the lookup is counted then. None where it is another
    /// one, or has no rule for the packet.
    #[inline(always)]
    pub(crate) fn lookup_at_once<'g>(
        &self,
        table: u8,
        key: &FlowKey,
        guard: &'g Guard<'_>,
        counters: WorkerCounters<'_>,
    ) -> Option<&'g Rule> {
        let Shape::Linear(entries) = self.shape(table, guard)? else {
            return None;
        };
        let rule = linear(entries, key, guard.epoch())?;
        let counter = self.slots[usize::from(table)]
            .counter
            .load(Ordering::Relaxed);
        if counter != NO_COUNTER {
            counters.add(CounterId(counter), 1, 1, 0);
        }
        Some(rule)
    }

    /// Counts lookups that were made by [`Bridge::lookup_hot`] for this many packets.
    #[inline(always)]
    pub(crate) fn count_hot(&self, table: u8, lookups: usize, matched: usize, guard: &Guard<'_>) {
        self.count_lookups(table, lookups, matched, guard);
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
