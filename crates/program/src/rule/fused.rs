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
//! *Rules change.* A path holds until a rule comes or goes that packets on it may meet instead of
//! what they meet now ([`Stage::outlasts`]); from that epoch on, packets are looked up table by
//! table. The writer ends paths ([`FusedPaths::end_in`]) before it publishes such a change. Where
//! it has no time to look at each of them, every change of a table ends all paths through it
//! (`optimizer::unwildcarded`, `paths`). Other rules of these tables, such as those of other
//! addresses that were learned, do not matter.
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
use crate::optimizer::unwildcarded::{TableSet, Unwildcarded, has_table};
use crate::prefetch::prefetch;
use packet::Match;
use packet::edit::Rewrite;
use std::ptr::NonNull;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// What packets on some path meet in a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stage {
    pub(crate) table: u8,
    /// The rule's precedence and match; None where they meet no rule.
    pub(crate) met: Option<(u32, Match)>,
}

/// A rule that comes or goes.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) table: u8,
    /// Its precedence and match; None where these do not tell what it does.
    pub(crate) rule: Option<(u32, &'a Match)>,
}

impl Stage {
    /// Returns whether packets that meet this still do so after the change: they do where the other
    /// rule is of lower precedence, or no packet matches both.
    pub(crate) fn outlasts(&self, change: Change<'_>) -> bool {
        if self.table != change.table {
            return true;
        }
        match (&self.met, change.rule) {
            (Some((priority, matching)), Some((other, others))) => {
                other < *priority || !matching.overlaps(others)
            }
            _ => false,
        }
    }
}

/// The fused paths attached to a rule.
pub(crate) struct FusedPaths {
    pub(crate) from: Epoch,
    /// The epoch from which on they do not hold.
    pub(crate) ends: AtomicU64,
    /// The tables that they pass.
    pub(crate) tables: TableSet,
    /// What packets meet there.
    pub(crate) met: Box<[Stage]>,
    /// Tables before which paths end, because they had too many rules or unsuitable ones.
    pub(crate) stops: TableSet,
    /// Number of stages behind the rule, over all paths.
    pub(crate) stages: usize,
    /// Whether some path ends at a port, so that only packets without a place to return to may take
    /// it.
    pub(crate) sends: bool,
    /// Whether packets' TTLs may be too low for it.
    pub(crate) may_expire: bool,
    /// Whether a rule of its tables looks at words that lanes do not have themselves.
    pub(crate) reads_beyond: bool,
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
        self.holds_in(unwildcarded, guard.epoch())
    }

    /// Returns whether it holds in an epoch, as far as changes have been prepared.
    #[inline(always)]
    pub(crate) fn holds_in(&self, unwildcarded: &Unwildcarded, epoch: Epoch) -> bool {
        self.from <= epoch
            && epoch < self.ends.load(Ordering::Acquire)
            && unwildcarded.paths.unchanged(&self.tables, self.from, epoch)
    }

    /// Ends it with an epoch that has not been published. A change for a reserved epoch may come
    /// before one for an earlier epoch.
    pub(crate) fn end_in(&self, epoch: Epoch) {
        self.ends.fetch_min(epoch, Ordering::Release);
    }

    /// Returns whether it holds as before after a change.
    pub(crate) fn outlasts(&self, change: Change<'_>) -> bool {
        !has_table(&self.tables, change.table)
            || self.met.iter().all(|stage| stage.outlasts(change))
    }

    /// Returns whether longer paths may be possible now, because tables before which they end have
    /// changed.
    pub(crate) fn may_grow(&self, unwildcarded: &Unwildcarded, now: Epoch) -> bool {
        let now = now.max(self.from);
        !unwildcarded.rules.unchanged(&self.stops, self.from, now)
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
        size_of::<FusedPaths>() + size_of_val(&*self.ways) + size_of_val(&*self.met) + ways
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
