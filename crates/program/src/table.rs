//! A bridge's flow tables: one writer, readers that are never blocked.
//!
//! Each table has the lookup that fits its rules ([`crate::classifier`]); which, and when,
//! [`policy`] decides.
//!
//! The writer changes hash tables in place by single stores that readers see or do not see; either
//! is right, because a rule is visible only in the epochs it carries ([`Rule::holds_in`]). A rule
//! that goes is first only marked; once no worker can be in an epoch in which it held, it
//! is unlinked ([`BridgeWriter::housekeep`]), and once no worker can be looking at it, it is freed
//! (`Domain::retire`).

mod describe;
mod groups;
mod learning;
mod lookups;
mod optimize;
mod policy;
mod writer;

pub use crate::burst::LOOKUP_MAX;
pub use crate::classifier::describe::{Description, Template, Work};
pub use crate::classifier::effort::Effort;
pub use crate::classifier::linear::LINEAR_MAX;
pub use crate::classifier::mini_key::Reads;
pub use crate::rule::{RuleRef, TABLES};
pub use groups::GroupWriter;
pub use optimize::FusedReport;
pub use writer::{BridgeWriter, LINEAR_AGAIN};

use crate::Program;
use crate::actions::PortNo;
use crate::actions::learn::Learn;
use crate::classifier::{Classifier, Classify, KeysBy, Published};
use crate::counters::{CounterId, Totals};
use crate::epoch::Guard;
use crate::group::{Group, GroupRef, GroupTable};
use crate::meters::MeterRef;
use crate::optimizer::unwildcarded::Unwildcarded;
use crate::rule::Rule;
use learning::Learning;
use packet::{FlowKey, WordSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

pub(crate) const NO_COUNTER: u32 = u32::MAX;
/// Number of the meter for packet-ins (`OFPM_CONTROLLER`, OpenFlow 1.3.5 section 7.3.4.4).
const CONTROLLER_METER: u32 = 0xffff_fffe;

/// What becomes of a packet that matches no rule of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Miss {
    /// It is dropped (OpenFlow 1.3).
    Drop = 0,
    /// It goes to the controllers (OpenFlow 1.0 to 1.2).
    Controller = 1,
    /// It goes on in the next table (`OFPTC11_TABLE_MISS_CONTINUE`).
    Next = 2,
}

struct Slot {
    shape: AtomicPtr<Published>,
    miss: AtomicU8,
    /// Lookups (as packets) and matches (as bytes).
    counter: AtomicU32,
}

/// A bridge's tables, as workers see them.
pub struct Bridge {
    program: Arc<Program>,
    slots: Box<[Slot]>,
    needed: AtomicU64,
    groups: GroupTable,
    /// Whether some rule has written to an action set.
    writes_sets: AtomicBool,
    /// Whether some rule has done more with a packet than end its way.
    goes_on: AtomicBool,
    /// Whether a first fragment's ports are matched as they are.
    fragment_ports: AtomicBool,
    /// Whether fragments are dropped before the first lookup.
    fragments_dropped: AtomicBool,
    controller_meter: MeterRef,
    /// Whose packets may come to rules that ask for rules.
    learning: Learning,
    /// Whether packets that a table has no rule for have ever gone on in the next one.
    misses_go_on: AtomicBool,
    /// Words of the key that some rule has written.
    written: AtomicU64,
    /// Whether packets may ever have been told to controllers.
    tells: AtomicBool,
    /// What a walk may depend on.
    pub(crate) unwildcarded: Unwildcarded,
}

impl Bridge {
    /// A bridge whose tables are empty and drop what they have no rule for.
    pub fn new(program: Arc<Program>) -> Arc<Bridge> {
        let slots = (0..TABLES)
            .map(|_| Slot {
                shape: AtomicPtr::default(),
                miss: AtomicU8::new(Miss::Drop as u8),
                counter: AtomicU32::new(NO_COUNTER),
            })
            .collect();
        Arc::new(Bridge {
            program,
            slots,
            needed: AtomicU64::new(WordSet::MINI_KEY.0),
            groups: GroupTable::default(),
            writes_sets: AtomicBool::new(false),
            goes_on: AtomicBool::new(false),
            fragment_ports: AtomicBool::new(true),
            fragments_dropped: AtomicBool::new(false),
            controller_meter: MeterRef::new(CONTROLLER_METER),
            learning: Learning::default(),
            misses_go_on: AtomicBool::new(false),
            written: AtomicU64::new(0),
            tells: AtomicBool::new(false),
            unwildcarded: Unwildcarded::default(),
        })
    }

    /// The program it belongs to.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The place of the meter for packet-ins (`OFPM_CONTROLLER`), which stands before each that no
    /// meter of its own limits.
    #[inline]
    pub fn controller_meter(&self) -> &MeterRef {
        &self.controller_meter
    }

    /// Whether lookups see the transport ports of first fragments (`OFPC_FRAG_NX_MATCH`), as they
    /// do at first, or zero, as for later ones (`OFPC_FRAG_NORMAL`: all fragments of a packet
    /// meet the same rules). Holds from the next burst on.
    pub fn match_fragment_ports(&self, visible: bool) {
        self.fragment_ports.store(visible, Ordering::Relaxed);
    }

    /// What [`Bridge::match_fragment_ports`] has set.
    #[inline(always)]
    pub(crate) fn matches_fragment_ports(&self) -> bool {
        self.fragment_ports.load(Ordering::Relaxed)
    }

    /// Whether IP fragments that come in are dropped (`OFPC_FRAG_DROP`). Holds from the next burst
    /// on.
    pub fn drop_fragments(&self, dropped: bool) {
        self.fragments_dropped.store(dropped, Ordering::Relaxed);
    }

    /// What [`Bridge::drop_fragments`] has set.
    #[inline(always)]
    pub(crate) fn drops_fragments(&self) -> bool {
        self.fragments_dropped.load(Ordering::Relaxed)
    }

    /// Whether any rule asks for others.
    pub fn has_learning_rules(&self) -> bool {
        self.learning.is_there()
    }

    /// Whether packets that came in by this port may come to rules that ask for rules, so that they
    /// must be walked one after the other.
    #[inline(always)]
    pub fn learns_from(&self, in_port: PortNo) -> bool {
        self.learning.concerns(in_port)
    }

    /// Whether packets that came in by this port may meet a rule that a packet has asked for.
    pub(crate) fn meets_requested(&self, in_port: PortNo) -> bool {
        self.learning.may_meet(in_port)
    }

    /// Words of the key that no rule writes: what a packet came with is what all its lookups see.
    pub(crate) fn kept(&self) -> WordSet {
        WordSet(!self.written.load(Ordering::Acquire))
    }

    /// The rule that `learn` and these values mean, if one of its table, match and precedence holds
    /// in the guard's epoch, whatever it does.
    pub fn find<'g>(
        &self,
        learn: &Learn,
        values: &[u128],
        guard: &'g Guard<'_>,
    ) -> Option<&'g Rule> {
        let key = learn.example(values);
        self.classifier(learn.table, guard)?
            .find_exact(learn, &key, guard.epoch())
    }

    /// The words of the key that rules match or actions read.
    #[inline(always)]
    pub fn needed(&self) -> WordSet {
        WordSet(self.needed.load(Ordering::Acquire))
    }

    /// Adds words of the key that are read, by rules or by the host. Publication comes later, so
    /// every burst that sees the reader fills them. Workers read this line for every burst, so it
    /// is written only where that changes something; likewise below.
    pub fn need(&self, words: WordSet) {
        if !words.minus(self.needed()).is_empty() {
            self.needed.fetch_or(words.0, Ordering::Release);
        }
    }

    /// Whether a rule has ever written to an action set: else what follows a rule's last step is
    /// known.
    #[inline]
    pub(crate) fn writes_sets(&self) -> bool {
        self.writes_sets.load(Ordering::Relaxed)
    }

    /// Whether packets may be told to controllers, who want to know what their tunnel's header
    /// said.
    #[inline]
    pub fn tells(&self) -> bool {
        self.tells.load(Ordering::Relaxed)
    }

    /// From now on they may be. Publication comes later, as for [`Bridge::need`].
    pub(crate) fn begin_to_tell(&self) {
        if !self.tells() {
            self.tells.store(true, Ordering::Release);
        }
    }

    /// Whether walks are so short that no cache could make them shorter: one lookup, which costs no
    /// more than one there.
    pub(crate) fn is_quick(&self, guard: &Guard<'_>) -> bool {
        !self.goes_on.load(Ordering::Relaxed)
            && self.miss(0) != Miss::Next
            && self.published(0, guard).is_none_or(|table| table.quick)
    }

    /// The groups.
    #[inline(always)]
    pub(crate) fn groups(&self) -> &GroupTable {
        &self.groups
    }

    /// A group as it is in the guard's epoch; None when there is none.
    #[inline]
    pub fn group<'g>(&self, to: GroupRef, guard: &'g Guard<'_>) -> Option<&'g Group> {
        assert!(
            std::ptr::eq(guard.domain(), &*self.program.domain),
            "a guard of another program"
        );
        self.groups.get(to, guard)
    }

    /// What becomes of a packet that `table` has no rule for.
    #[inline]
    pub fn miss(&self, table: u8) -> Miss {
        match self
            .slots
            .get(usize::from(table))
            .map(|slot| slot.miss.load(Ordering::Relaxed))
        {
            Some(1) => Miss::Controller,
            Some(2) => Miss::Next,
            _ => Miss::Drop,
        }
    }

    #[inline(always)]
    pub(crate) fn classifier<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<&'g Classifier> {
        Some(&self.published(table, guard)?.classifier)
    }

    #[inline(always)]
    fn published<'g>(&self, table: u8, guard: &'g Guard<'_>) -> Option<&'g Published> {
        assert!(
            std::ptr::eq(guard.domain(), &*self.program.domain),
            "a guard of another program"
        );
        let shape = self
            .slots
            .get(usize::from(table))?
            .shape
            .load(Ordering::Acquire);
        // SAFETY: shapes are made by `Box::into_raw` and, when replaced, retired to this domain,
        // whose guard lives for 'g.
        unsafe { shape.as_ref() }
    }

    /// The rule of `table` with the highest precedence that matches and holds in the guard's epoch.
    pub fn lookup<'g>(&self, table: u8, key: &FlowKey, guard: &'g Guard<'_>) -> Option<&'g Rule> {
        let mut out = [None];
        self.lookup_burst(table, 1, |_| key, guard, &mut out);
        out[0]
    }

    /// Looks up `count` keys, up to [`LOOKUP_MAX`], and puts what was found into `out`. Counts
    /// lookups and matches.
    #[inline]
    pub fn lookup_burst<'k, 'g>(
        &self,
        table: u8,
        count: usize,
        key: impl Fn(usize) -> &'k FlowKey + Copy,
        guard: &'g Guard<'_>,
        out: &mut [Option<&'g Rule>],
    ) {
        let out = &mut out[..count];
        out.fill(None);
        let epoch = guard.epoch();
        let Some(classifier) = self.classifier(table, guard) else {
            return self.count_lookups(table, count, 0, guard);
        };
        classifier.look_up(KeysBy(key), epoch, out, None);
        let matched = out.iter().filter(|found| found.is_some()).count();
        self.count_lookups(table, count, matched, guard);
    }

    /// What looking `key` up in `table` takes, in the guard's epoch. Slow: for prediction, not for
    /// packets.
    pub fn effort(&self, table: u8, key: &FlowKey, guard: &Guard<'_>) -> Effort {
        Effort::of(self.classifier(table, guard), key, guard.epoch())
    }

    #[inline(always)]
    fn count_lookups(&self, table: u8, lookups: usize, matched: usize, guard: &Guard<'_>) {
        if let Some(slot) = self.slots.get(usize::from(table)) {
            let counter = slot.counter.load(Ordering::Relaxed);
            if counter != NO_COUNTER {
                self.program.counters.add(
                    guard.index(),
                    CounterId(counter),
                    lookups as u64,
                    matched as u64,
                    0,
                );
            }
        }
    }

    /// Packets looked up in `table`, and those that found a rule.
    pub fn table_counters(&self, table: u8) -> (u64, u64) {
        let counter = self
            .slots
            .get(usize::from(table))
            .map_or(NO_COUNTER, |slot| slot.counter.load(Ordering::Relaxed));
        if counter == NO_COUNTER {
            return (0, 0);
        }
        let Totals { packets, bytes, .. } = self.program.counters.read(CounterId(counter));
        (packets, bytes)
    }

    /// Where `table` counts lookups and matches.
    pub(crate) fn lookup_counter(&self, table: u8) -> Option<CounterId> {
        let slot = self.slots.get(usize::from(table))?;
        let counter = slot.counter.load(Ordering::Relaxed);
        (counter != NO_COUNTER).then_some(CounterId(counter))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        for slot in &self.slots {
            let shape = slot.shape.load(Ordering::Acquire);
            if !shape.is_null() {
                // SAFETY: made by `Box::into_raw`; the last `Arc<Bridge>` is gone, so no reader can
                // come to it any more.
                drop(unsafe { Box::from_raw(shape) });
            }
            let counter = slot.counter.load(Ordering::Relaxed);
            if counter != NO_COUNTER {
                self.program.counters.free(CounterId(counter));
            }
        }
    }
}
