//! Lookups in the part of a key that is read first.
//!
//! A whole key has 512 bytes, and a burst's keys more than a first-level cache holds beside everything else. Most tables look at Ethernet, IPv4 and ports
//! only, which fit one cache line a packet ([`HotWords`]); some look at nothing but the ingress port, and one answer holds for the whole burst. What a
//! table reads is told when its shape is made ([`Reads`]), and the burst's way in (`walk::front`) goes by it.

use super::{Bridge, LOOKUP_MAX, Published, Shape, linear, lookup_tuples};
use crate::epoch::Guard;
use crate::rule::Rule;
use crate::tuple::Words;
use packet::WordSet;
use packet::key::at;
use packet::parse::{Extent, HOT_WORDS};

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
            // Gathers conditions from whole keys.
            Shape::Conjunctive { .. } => Reads::Deep,
        };
        Published { shape, reads }
    }
}

/// The hot words of a packet's key, in a cache line of their own.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct HotWords {
    pub words: [u64; HOT_WORDS],
    pub extent: Extent,
    /// The frame's length.
    pub len: u32,
}

impl HotWords {
    pub const ZERO: HotWords = HotWords {
        words: [0; HOT_WORDS],
        extent: Extent { l3: 0, length: 0 },
        len: 0,
    };

    /// Those of a packet of which only the ingress port is known.
    pub fn of_port(port: u32) -> HotWords {
        let mut hot = HotWords::ZERO;
        let mut bytes = [0; 8];
        bytes[at::IN_PORT % 8..at::IN_PORT % 8 + 4].copy_from_slice(&port.to_be_bytes());
        hot.words[at::IN_PORT / 8] = u64::from_ne_bytes(bytes);
        hot
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

    /// As [`Bridge::lookup_burst`], by hot words alone. False, with `out` undefined, where the table looks at more by now.
    #[inline(always)]
    pub(crate) fn lookup_hot<'g>(
        &self,
        table: u8,
        keys: &[HotWords],
        guard: &'g Guard<'_>,
        out: &mut [Option<&'g Rule>; LOOKUP_MAX],
    ) -> bool {
        let out = &mut out[..keys.len()];
        out.fill(None);
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
                shape: Shape::Conjunctive { .. },
                ..
            }) => return false,
        }
        true
    }

    /// Counts lookups that were made by [`Bridge::lookup_hot`] for this many packets.
    #[inline(always)]
    pub(crate) fn count_hot(&self, table: u8, lookups: usize, matched: usize, guard: &Guard<'_>) {
        self.count_lookups(table, lookups, matched, guard);
    }
}
