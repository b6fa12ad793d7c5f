//! Fused paths: stages of a pipeline merged with the rule that leads to them (partial evaluation).
//!
//! The packets that a rule leads to another table are partly known: by what it matched exactly and
//! what it wrote. Often that leaves one rule of the next table, or a few that one comparison tells
//! apart, and so on through many tables. The combined effect of those rules is computed when rules
//! have stopped changing (`optimizer::compile`) and attached to the first of them as a list of
//! paths ([`FusedPaths`]). A packet takes the first path whose bits it has, and its lane does at
//! once what the path's rules would have done one after the other, up to the next lookup that must
//! be made or to the end.
//!
//! *Rules change.* A path holds in the epochs in which the tables that it passes have the rules
//! that it was made from (`optimizer::unwildcarded`); in others, packets are looked up table by
//! table. So nothing needs to be done when a rule comes or goes, and rules of other tables do not
//! matter.
//!
//! *Counting.* A path has a counter of its own, which stands for those of all its rules and tables
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
    /// Index of the next block.
    pub(crate) next: u16,
    pub(crate) table: u8,
}

/// A rule that was met in this burst, or is part of a fused path that holds in it.
#[derive(Clone, Copy)]
pub(crate) struct Met(pub(crate) NonNull<Rule>);

impl Met {
    #[inline(always)]
    pub(crate) fn get(&self) -> &Rule {
        // SAFETY: places are dropped at the end of the burst in which they were met (see
        // `drive_lanes`), and its guard keeps rules from being freed. Those of a fused path that
        // was made before are used only where the path holds in the burst's epoch
        // (`FusedPaths::holds`): then its rules are in force, and kept likewise.
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: a rule is only read here, and only while its burst lasts.
unsafe impl Send for Met {}
// SAFETY: as above.
unsafe impl Sync for Met {}

impl Here {
    /// Returns a place in a rule that has blocks.
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

/// The fused paths attached to a rule.
pub(crate) struct FusedPaths {
    pub(crate) from: Epoch,
    /// The tables whose rules they were made from.
    pub(crate) tables: TableSet,
    /// Tables before which paths end, because they had too many rules or unsuitable ones.
    pub(crate) stops: TableSet,
    /// Number of stages behind the rule, over all paths.
    pub(crate) stages: usize,
    /// Whether some path ends at a port, so that only packets without a place to return to may take
    /// it.
    pub(crate) sends: bool,
    /// Whether packets' TTLs may be too low for it.
    pub(crate) may_expire: bool,
    /// The paths, in order; the last one takes every packet.
    pub(crate) ways: Box<[FusedPath]>,
    pub(crate) program: Weak<Program>,
}

/// What packets with certain bits do.
#[repr(C)] // what is read of every path comes first
pub(crate) struct FusedPath {
    /// Bits that a packet must have to take it.
    pub words: Box<[MaskedWord]>,
    pub counter: CounterId,
    /// Number of lookups saved, plus the one that remains.
    pub hops: u32,
    /// Edits after those of `block`.
    pub rewrites: Box<[Rewrite]>,
    /// Places to return to from the remaining lookup, the last to be reached first.
    pub backs: Box<[Here]>,
    /// Its writes to metadata, its rule's own edits, and its end.
    pub block: ActionBlock,
}

impl FusedPath {
    /// Returns whether a packet that has taken no earlier path takes this one.
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
    /// Returns whether a burst's packets may take it.
    #[inline(always)]
    pub(crate) fn holds(&self, unwildcarded: &Unwildcarded, guard: &Guard<'_>) -> bool {
        let now = guard.epoch();
        self.from <= now && unwildcarded.unchanged(&self.tables, self.from, now)
    }

    /// Returns whether it will hold in an epoch, as far as changes have been prepared.
    pub(crate) fn is_made_from(
        &self,
        unwildcarded: &crate::optimizer::unwildcarded::Unwildcarded,
        now: Epoch,
    ) -> bool {
        unwildcarded.unchanged(&self.tables, self.from, now.max(self.from))
    }

    /// Returns whether longer paths may be possible now, because tables before which they end have
    /// changed.
    pub(crate) fn may_grow(
        &self,
        unwildcarded: &crate::optimizer::unwildcarded::Unwildcarded,
        now: Epoch,
    ) -> bool {
        !unwildcarded.unchanged(&self.stops, self.from, now.max(self.from))
    }

    /// Returns whether another one, of the same rule, seems to have the same paths, judged by
    /// counts.
    pub(crate) fn is_like(&self, other: &FusedPaths) -> bool {
        let like = |fused: &FusedPaths| (fused.ways.len(), fused.stages, fused.tables, fused.stops);
        like(self) == like(other)
    }

    /// Returns the path that a packet takes.
    #[inline(always)]
    pub(crate) fn way(&self, packet: &impl Words) -> Option<&FusedPath> {
        self.ways.iter().find(|way| way.takes(packet))
    }

    /// Prefetches its paths.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let first = self.ways.as_ptr().cast::<u8>();
        prefetch(first);
        prefetch(first.wrapping_add(64));
    }

    /// Returns the number of its paths.
    pub(crate) fn len(&self) -> usize {
        self.ways.len()
    }

    /// Returns the number of packets that have taken them.
    pub(crate) fn packets(&self, counters: &Counters) -> u64 {
        let packets = |way: &FusedPath| counters.read(way.counter).packets;
        self.ways.iter().map(packets).sum()
    }

    /// Returns its memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let ways = self.ways.iter().map(FusedPath::bytes).sum::<usize>();
        size_of::<FusedPaths>() + size_of_val(&*self.ways) + ways
    }
}

impl Drop for FusedPaths {
    fn drop(&mut self) {
        // Credits the counts to the rules. No worker counts here any more, because fused paths are
        // retired before they are dropped.
        if let Some(program) = self.program.upgrade() {
            for way in &self.ways {
                program.counters.settle(way.counter);
            }
        }
    }
}
