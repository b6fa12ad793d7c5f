//! Stages of a pipeline made one with the rule that leads to them: partial evaluation.
//!
//! Where a rule leads to, its packets are partly known: what it matched exactly and what it wrote.
//! Often that leaves one rule of the next table, or a few that one comparison tells apart, and so
//! on through many tables. What those rules do together is worked out when rules have stopped
//! changing ([`compile`]) and hangs at the first of them as a list of ways ([`FusedPaths`]): a
//! packet takes the first way whose bits it has, and its lane does at once what the way's rules
//! would have done one after the other, up to the next lookup that must be made or to the end.
//!
//! *Rules change.* A way holds in the epochs in which the tables that it passes have the rules that
//! it was made from ([`crate::table`]'s `unwildcarded`); in others, packets are looked up table by
//! table, as they are without it. So nothing needs to be done when a rule comes or goes, and rules
//! of other tables touch nothing.
//!
//! *Counting.* A way has a counter of its own, which stands for those of all its rules and tables
//! ([`crate::counters`], "shares").

use super::Rule;
use crate::Program;
use crate::actions::block::ActionBlock;
use crate::actions::block::ActionBlocks;
use crate::burst::Words;
use crate::classifier::tuple::MaskedWord;
use crate::counters::{CounterId, Counters};
use crate::epoch::Epoch;
use crate::epoch::Guard;
use crate::optimizer::unwildcarded::TableSet;
use crate::optimizer::unwildcarded::Unwildcarded;
use crate::prefetch::prefetch;
use packet::edit::Rewrite;
use std::ptr::NonNull;
use std::sync::Weak;

/// A place in a rule that was met.
#[derive(Clone, Copy)]
pub(crate) struct Here {
    pub(crate) blocks: ActionBlocks,
    pub(crate) rule: Met,
    /// The next block.
    pub(crate) next: u16,
    pub(crate) table: u8,
}

/// A rule that was met in this burst, or is part of a way that holds in it.
#[derive(Clone, Copy)]
pub(crate) struct Met(pub(crate) NonNull<Rule>);

impl Met {
    #[inline(always)]
    pub(crate) fn get(&self) -> &Rule {
        // SAFETY: places are dropped at the end of the burst in which they were met (see
        // `drive_lanes`), and its guard keeps rules from being freed. Those of a way
        // that was made before are used only where the way holds in the burst's epoch
        // (`FusedPaths::holds`): then its rules are in force, and kept likewise.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: a rule is only read here, and only while its burst lasts.
unsafe impl Send for Met {}
// SAFETY: as above.
unsafe impl Sync for Met {}

impl Here {
    /// A place in a rule on a straight way.
    pub(crate) fn of(rule: &Rule, next: u16, table: u8) -> Option<Here> {
        Some(Here {
            blocks: rule.blocks()?,
            rule: Met(NonNull::from(rule)),
            next,
            table,
        })
    }

    #[inline(always)]
    pub(crate) fn block(&self) -> Option<&ActionBlock> {
        self.blocks.get().get(usize::from(self.next))
    }
}

/// What hangs at a rule.
pub(crate) struct FusedPaths {
    pub(crate) from: Epoch,
    /// The tables whose rules it was made from.
    pub(crate) tables: TableSet,
    /// Those that its ways end before, since they had too many rules or others when it was made.
    pub(crate) stops: TableSet,
    /// Stages behind the rule, of all ways.
    pub(crate) stages: usize,
    /// Whether some way ends at a port, which only packets that have nothing to come back to may.
    pub(crate) sends: bool,
    /// Whether packets may have too low a TTL for it.
    pub(crate) may_expire: bool,
    /// In order; the last one takes every packet.
    pub(crate) ways: Box<[FusedPath]>,
    pub(crate) program: Weak<Program>,
}

/// What packets with certain bits do.
#[repr(C)] // what is read of every way comes first
pub(crate) struct FusedPath {
    /// Bits that a packet has that takes it.
    pub words: Box<[MaskedWord]>,
    pub counter: CounterId,
    /// Lookups that its packets are spared, and the one that they are to make.
    pub hops: u32,
    /// Edits after those of the block.
    pub rewrites: Box<[Rewrite]>,
    /// Where they are to come back to from that lookup, the place that is reached last first.
    pub backs: Box<[Here]>,
    /// What it writes, its rule's own edits, and how it ends.
    pub block: ActionBlock,
}

impl FusedPath {
    /// Whether a packet takes it that has taken none before it.
    #[inline(always)]
    pub fn takes(&self, packet: &impl Words) -> bool {
        let differ = self.words.iter().fold(0, |differ, word| {
            differ | packet.word(word.word) & word.mask ^ word.value
        });
        differ == 0
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.words) + size_of_val(&*self.rewrites) + size_of_val(&*self.backs)
    }
}

impl FusedPaths {
    /// Whether a burst's packets may go by it.
    #[inline(always)]
    pub(crate) fn holds(&self, unwildcarded: &Unwildcarded, guard: &Guard<'_>) -> bool {
        let now = guard.epoch();
        self.from <= now && unwildcarded.unchanged(&self.tables, self.from, now)
    }

    /// Whether it holds in an epoch, as far as changes have been prepared.
    pub(crate) fn is_made_from(
        &self,
        unwildcarded: &crate::optimizer::unwildcarded::Unwildcarded,
        now: Epoch,
    ) -> bool {
        unwildcarded.unchanged(&self.tables, self.from, now.max(self.from))
    }

    /// Whether longer ways could be made now: tables that its ways end before have changed.
    pub(crate) fn may_grow(
        &self,
        unwildcarded: &crate::optimizer::unwildcarded::Unwildcarded,
        now: Epoch,
    ) -> bool {
        !unwildcarded.unchanged(&self.stops, self.from, now.max(self.from))
    }

    /// Whether another, of the same rule, goes no other ways, as far as numbers tell.
    pub(crate) fn is_like(&self, other: &FusedPaths) -> bool {
        let like = |fused: &FusedPaths| (fused.ways.len(), fused.stages, fused.tables, fused.stops);
        like(self) == like(other)
    }

    /// The way that a packet takes.
    #[inline(always)]
    pub(crate) fn way(&self, packet: &impl Words) -> Option<&FusedPath> {
        self.ways.iter().find(|way| way.takes(packet))
    }

    /// Asks for its ways.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let first = self.ways.as_ptr().cast::<u8>();
        prefetch(first);
        prefetch(first.wrapping_add(64));
    }

    /// Number of its ways.
    pub(crate) fn len(&self) -> usize {
        self.ways.len()
    }

    /// Packets that have taken them.
    pub(crate) fn packets(&self, counters: &Counters) -> u64 {
        let packets = |way: &FusedPath| counters.read(way.counter).packets;
        self.ways.iter().map(packets).sum()
    }

    /// Its memory.
    pub(crate) fn bytes(&self) -> usize {
        let ways = self.ways.iter().map(FusedPath::bytes).sum::<usize>();
        size_of::<FusedPaths>() + size_of_val(&*self.ways) + ways
    }
}

impl Drop for FusedPaths {
    fn drop(&mut self) {
        // What the ways have counted goes over to the rules. No worker counts any more, since what
        // hangs at a rule is retired before it is dropped.
        if let Some(program) = self.program.upgrade() {
            for way in &self.ways {
                program.counters.settle(way.counter);
            }
        }
    }
}
