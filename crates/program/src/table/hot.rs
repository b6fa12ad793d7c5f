//! Lookups in the part of a key that is read first.
//!
//! A whole key has 512 bytes, and a burst's keys more than a first-level cache holds beside everything else. Most tables look at Ethernet, IPv4 and ports
//! only, which fit one cache line a packet ([`HotWords`]); some look at nothing but the ingress port, and one answer holds for the whole burst. What a
//! table reads is told when its shape is made ([`Reads`]), and the burst's way in (`walk::front`) goes by it.

use super::{
    Bridge, LINEAR_MAX, LOOKUP_MAX, LinearEntry, NO_COUNTER, Published, Shape, linear,
    lookup_trees, lookup_tuples,
};
use crate::counters::{CounterId, WorkerCounters};
use crate::epoch::Guard;
use crate::rule::Rule;
use crate::tuple::Words;
pub(crate) use packet::hot::HotWords;
use packet::hot::{NO_PATTERN, Pattern};
use packet::key::at;
use packet::{FlowKey, WordSet};
use std::sync::atomic::Ordering;

/// What a table's lookup looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// The ingress port, or nothing.
    Port,
    /// Words of [`WordSet::HOT`].
    Hot,
    /// Others too.
    Deep,
}

/// The bits of word 0 that hold the ingress port.
const PORT_MASK: u64 = {
    let mut bytes = [0_u8; 8];
    let mut index = 0;
    while index < 4 {
        bytes[at::IN_PORT % 8 + index] = 0xff;
        index += 1;
    }
    u64::from_ne_bytes(bytes)
};

impl Reads {
    fn of(words: impl Iterator<Item = (u8, u64)>) -> Reads {
        words.fold(Reads::Port, |reads, (word, mask)| match (reads, word) {
            (Reads::Deep, _) => Reads::Deep,
            (_, word) if !WordSet::HOT.contains(usize::from(word)) => Reads::Deep,
            (Reads::Port, 0) if mask & !PORT_MASK == 0 => Reads::Port,
            _ => Reads::Hot,
        })
    }
}

impl Published {
    pub fn new(shape: Shape) -> Published {
        let reads = match &shape {
            Shape::Linear(entries) => Reads::of(
                entries
                    .iter()
                    .flat_map(|entry| entry.words.iter().map(|word| (word.word, word.mask))),
            ),
            Shape::Tuples(tuples) => Reads::of(
                tuples
                    .iter()
                    .flat_map(|entry| entry.tuple.words().iter().copied()),
            ),
            Shape::Trees(shape) => Reads::of(
                shape
                    .all
                    .iter()
                    .flat_map(|entry| entry.tuple.words().iter().copied()),
            ),
            // Gathers conditions from whole keys.
            Shape::Conjunctive { .. } => Reads::Deep,
        };
        let patterns = match &shape {
            Shape::Linear(entries) if reads != Reads::Deep => patterns(entries),
            _ => None,
        };
        Published {
            shape,
            reads,
            patterns,
        }
    }
}

/// A short list's matches as patterns over the hot words.
fn patterns(entries: &[LinearEntry]) -> Option<Box<[Pattern]>> {
    if entries.len() > LINEAR_MAX {
        return None;
    }
    let pattern = |entry: &LinearEntry| {
        let words = entry.words.iter();
        Pattern::of(words.map(|word| (word.word, word.mask, word.value)))
    };
    entries.iter().map(pattern).collect()
}

/// A short list of rules over the hot words, all in force.
#[derive(Clone, Copy)]
pub(crate) struct Patterned<'g> {
    /// Their matches, in order of precedence.
    pub patterns: &'g [Pattern],
    entries: &'g [LinearEntry],
}

impl<'g> Patterned<'g> {
    /// The rule of pattern `index`; None for [`NO_PATTERN`].
    #[inline(always)]
    pub fn rule(&self, index: u8) -> Option<&'g Rule> {
        if index == NO_PATTERN {
            return None;
        }
        let entry = self.entries.get(usize::from(index))?;
        // SAFETY: the entry belongs to a shape that is alive for 'g, and a rule outlives every shape that names it.
        Some(unsafe { entry.rule.as_ref() })
    }
}

impl Words for HotWords {
    #[inline(always)]
    fn word(&self, index: u8) -> u64 {
        // Only asked by shapes that read nothing else.
        self.words[usize::from(index)]
    }
}

impl Bridge {
    /// What `table` looks at. Ask before [`Bridge::lookup_hot`], which answers only what may be asked of it.
    #[inline(always)]
    pub fn reads(&self, table: u8, guard: &Guard<'_>) -> Reads {
        self.published(table, guard)
            .map_or(Reads::Port, |published| published.reads)
    }

    /// The rules of `table` as patterns, where they are few, look at hot words only, and all hold in the guard's epoch.
    #[inline(always)]
    pub(crate) fn patterned<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<Patterned<'g>> {
        let published = self.published(table, guard)?;
        let (Some(patterns), Shape::Linear(entries)) = (&published.patterns, &published.shape)
        else {
            return None;
        };
        let epoch = guard.epoch();
        let held = entries.iter().all(|entry| {
            // SAFETY: as in `Patterned::rule`.
            unsafe { entry.rule.as_ref() }.holds_in(epoch)
        });
        held.then_some(Patterned { patterns, entries })
    }

    /// As [`Bridge::lookup_burst`], by hot words alone; `out` is empty before. False, with `out` undefined, where the table looks at more by now.
    #[inline(always)]
    pub(crate) fn lookup_hot<'g>(
        &self,
        table: u8,
        keys: &[HotWords],
        guard: &'g Guard<'_>,
        out: &mut [Option<&'g Rule>],
    ) -> bool {
        debug_assert!(keys.len() <= LOOKUP_MAX && out.iter().all(Option::is_none));
        let out = &mut out[..keys.len()];
        let epoch = guard.epoch();
        match self.published(table, guard) {
            None => {}
            Some(Published {
                reads: Reads::Deep, ..
            }) => return false,
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
            }) => lookup_tuples(tuples, &|index| &keys[index], epoch, out),
            Some(Published {
                shape: Shape::Trees(shape),
                ..
            }) => lookup_trees(shape, &|index| &keys[index], epoch, out),
            Some(Published {
                shape: Shape::Conjunctive { .. },
                ..
            }) => return false,
        }
        true
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
