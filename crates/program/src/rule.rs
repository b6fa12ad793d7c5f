//! A compiled rule.

pub(crate) mod fused;
pub(crate) mod slab;
pub(crate) mod summary;

use crate::actions::block::{ActionBlocks, ActionSummary};
use crate::actions::{OpList, PortNo};
use crate::counters::CounterId;
use crate::epoch::{Epoch, NEVER};
use crate::prefetch::prefetch;
use crate::rule::fused::FusedPaths;
use packet::Match;
pub(crate) use slab::RuleSlab;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Number of tables of a bridge. 254 is for internal use, 255 does not exist on the wire.
pub const TABLES: usize = 255;

/// The contents of a rule, which never change. To change a rule, remove it and insert another in
/// the same epoch with the same counter.
#[derive(Clone, Debug)]
#[repr(C)] // what every packet needs first
pub struct RuleSpec {
    /// Precedence; above 65535 for hidden rules.
    pub priority: u32,
    /// Counter of its packets.
    pub counter: CounterId,
    /// Its steps.
    pub ops: Arc<OpList>,
    /// OpenFlow cookie, for packet-ins.
    pub cookie: u64,
    /// Its match.
    pub matching: Match,
}

/// A rule in a table. The first cache line has what every lookup reads.
#[derive(Debug)]
#[repr(C, align(64))] // what every packet needs in the first 64 bytes
pub struct Rule {
    /// First epoch in which it holds.
    pub added: Epoch,
    /// First epoch in which it no longer holds.
    removed: AtomicU64,
    /// The value of the first word that it matches, 0 where it matches all.
    pub(crate) first: u64,
    /// Its action blocks and port, for lanes.
    summary: ActionSummary,
    /// Fused paths of it and the rules behind it; null where there are none.
    fused: AtomicPtr<FusedPaths>,
    /// Its contents.
    pub spec: RuleSpec,
    /// The next rule of its chain in a tuple ([`crate::classifier::tuple`]): for the newest version
    /// of a rule, the newest rule of the next lower precedence; for an older version, the version
    /// after it.
    pub(crate) next: AtomicPtr<Rule>,
    /// The previous version, of the same match and precedence, while that is linked.
    pub(crate) older: AtomicPtr<Rule>,
    /// Hash of what it was learned to do (`Learn::fingerprint`), 0 for a
    /// rule that was not learned.
    pub(crate) fingerprint: AtomicU64,
    /// When a packet last learned it, in milliseconds of the datapath's clock.
    pub(crate) learned_ms: AtomicU64,
    /// Its ranks in a table's trees, or its places in a trie: one in those in use, one in those
    /// being built. Valid where the rank's rule is this one.
    pub(crate) places: [AtomicU32; 2],
}

impl Rule {
    /// Returns whether it does what a packet that came at this time teaches, by the fingerprint of
    /// that; if so, notes the time.
    #[inline(always)]
    pub(crate) fn is_taught_again(&self, fingerprint: u64, now_ms: u64) -> bool {
        let same = self.fingerprint.load(Ordering::Relaxed) == fingerprint;
        // Not more often than the time tells: other workers read the rule.
        if same && self.learned_ms.load(Ordering::Relaxed) < now_ms {
            self.learned_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
        same
    }

    /// Creates a rule that holds from `added` on.
    pub fn new(spec: RuleSpec, added: Epoch) -> Rule {
        let summary = ActionSummary::of(&spec.ops);
        let first = spec.matching.words().first().map_or(0, |word| word.value);
        Rule {
            spec,
            first,
            added,
            removed: AtomicU64::new(NEVER),
            summary,
            fused: AtomicPtr::default(),
            fingerprint: AtomicU64::new(0),
            learned_ms: AtomicU64::new(0),
            next: AtomicPtr::default(),
            older: AtomicPtr::default(),
            places: [const { AtomicU32::new(u32::MAX) }; 2],
        }
    }

    /// Returns its action blocks, if all its steps are in such.
    #[inline(always)]
    pub(crate) fn blocks(&self) -> Option<ActionBlocks> {
        self.summary.blocks()
    }

    /// Returns the port, when its only step is an output to one: most rules of most switches, so
    /// the engine has a short cut for them.
    #[inline(always)]
    pub(crate) fn only_output(&self) -> Option<PortNo> {
        self.summary.only_output()
    }

    /// Returns whether it only sends its packets to a port or drops them.
    pub(crate) fn only_ends(&self) -> bool {
        self.only_output().is_some() || self.spec.ops.ops.is_empty()
    }

    /// Returns whether its only step is NORMAL: the one rule of most switches without a controller.
    #[inline(always)]
    pub(crate) fn only_normal(&self) -> bool {
        self.summary.only_normal()
    }

    /// Returns whether a FIN or RST among its packets shortens its timeouts.
    #[inline(always)]
    pub(crate) fn shortens_timeouts(&self) -> bool {
        self.summary.shortens_timeouts()
    }

    /// Returns the flag that says whether control has been told of a FIN or RST.
    pub(crate) fn fin_told(&self) -> &AtomicBool {
        &self.summary.fin_told
    }

    /// Returns its version that holds in `epoch`, if one does; `self` is the newest version that
    /// the caller has reached. Skips versions that came in later epochs; where the first that is
    /// not later has ended, so have all before it.
    #[inline(always)]
    pub(crate) fn version_in(&self, epoch: Epoch) -> Option<&Rule> {
        if self.holds_in(epoch) {
            return Some(self);
        }
        self.older_version_in(epoch)
    }

    /// [`Rule::version_in`] where `self` is not the one.
    #[cold]
    fn older_version_in(&self, epoch: Epoch) -> Option<&Rule> {
        let mut version = self;
        while version.added > epoch {
            // SAFETY: versions are followed under a guard and by the writer; one is unlinked before
            // it is retired, and outlives every guard that was alive then.
            version = unsafe { version.older.load(Ordering::Acquire).as_ref() }?;
        }
        version.holds_in(epoch).then_some(version)
    }

    /// Returns whether it holds in `epoch`.
    #[inline(always)]
    pub fn holds_in(&self, epoch: Epoch) -> bool {
        self.added <= epoch && epoch < self.removed.load(Ordering::Relaxed)
    }

    /// Returns the fused paths of it and the rules behind it.
    #[inline(always)]
    pub(crate) fn fused(&self) -> Option<&FusedPaths> {
        // SAFETY: null or made by `Box::into_raw` in `hang`. What is replaced is retired, so it
        // outlives every guard under which it may have been read, and the rule itself,
        // which frees it, does so too.
        unsafe { self.fused.load(Ordering::Acquire).as_ref() }
    }

    /// Prefetches what executing it reads beyond what its lookup has read.
    #[inline(always)]
    pub(crate) fn prefetch_steps(&self) {
        match self.fused() {
            Some(fused) => fused.prefetch(),
            None => self.summary.prefetch(),
        }
    }

    /// Attaches fused paths, or none, and returns the previous ones, which readers may still follow
    /// and which must be retired. Only the table's writer calls this.
    pub(crate) fn hang(&self, fused: Option<Box<FusedPaths>>) -> Option<Box<FusedPaths>> {
        let fused = fused.map_or(std::ptr::null_mut(), Box::into_raw);
        let before = self.fused.swap(fused, Ordering::AcqRel);
        // SAFETY: made by `Box::into_raw` here, and nobody comes to it any more.
        (!before.is_null()).then(|| unsafe { Box::from_raw(before) })
    }

    /// Ends it with `epoch`; published, like all changes, by the domain's next publication.
    pub fn remove_in(&self, epoch: Epoch) {
        self.removed.store(epoch, Ordering::Relaxed);
    }

    /// Returns the first epoch in which it no longer holds, [`NEVER`] for a rule in force.
    pub fn removed(&self) -> Epoch {
        self.removed.load(Ordering::Relaxed)
    }
}

// Precedence and counter are in the first line.
const _: () = assert!(std::mem::offset_of!(Rule, spec) + 8 <= 64);

impl Drop for Rule {
    fn drop(&mut self) {
        drop(self.hang(None));
    }
}

/// A rule in a table, as its writer refers to it. Invalid after `BridgeWriter::remove`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleRef(pub(crate) NonNull<Rule>);

// SAFETY: a `RuleRef` is only a name; it is dereferenced by the one writer, before it hands the
// rule to `Domain::retire`.
unsafe impl Send for RuleRef {}

impl RuleRef {
    /// Returns whether it is part of a conjunctive match.
    pub(crate) fn is_soft(&self) -> bool {
        self.rule().spec.ops.clauses().is_some()
    }

    pub(crate) fn rule(&self) -> &Rule {
        // SAFETY: the writer unlinks and retires a rule only in `unlink`, which consumes the last
        // `RuleRef` that it keeps.
        unsafe { self.0.as_ref() }
    }

    /// Returns the rule's match.
    pub fn matching(&self) -> &Match {
        &self.rule().spec.matching
    }

    /// Notes what the rule was learned to do (`Learn::fingerprint`), by which workers recognise
    /// it, and that a packet asked for that at `seen_ms`.
    pub fn set_learned(&self, fingerprint: u64, seen_ms: u64) {
        let rule = self.rule();
        rule.fingerprint.store(fingerprint, Ordering::Relaxed);
        rule.learned_ms.fetch_max(seen_ms, Ordering::Relaxed);
    }

    /// Returns whether a packet asked for what the rule does.
    pub fn is_learned(&self) -> bool {
        self.rule().fingerprint.load(Ordering::Relaxed) != 0
    }

    /// Returns when a packet last learned the rule, in milliseconds of the datapath's clock; 0 for
    /// never.
    pub fn learned_ms(&self) -> u64 {
        self.rule().learned_ms.load(Ordering::Relaxed)
    }
}

/// Prefetches what every packet needs of a rule.
#[inline(always)]
pub(crate) fn prefetch_rule(rule: *const Rule) {
    prefetch(rule);
}
