//! A bridge's flow tables: one writer, readers that are never blocked.
//!
//! Each table has the lookup that fits its rules ([`crate::classifier`]); [`policy`] decides which,
//! and when.
//!
//! The writer changes hash tables in place by single stores, which readers may or may not see;
//! either is right, because a rule is visible only in the epochs it carries ([`Rule::holds_in`]). A
//! rule that goes is first only marked; once no worker can be in an epoch in which it held, it is
//! unlinked ([`BridgeWriter::housekeep`]), and once no worker can be looking at it, it is freed
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
use crate::exec::Order;
use crate::group::{Group, GroupRef, GroupTable};
use crate::meters::MeterRef;
use crate::optimizer::unwildcarded::Unwildcarded;
use crate::rule::Rule;
pub(crate) use learning::GroupEdges;
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
    /// It is looked up in the next table (`OFPTC11_TABLE_MISS_CONTINUE`).
    Next = 2,
}

struct Slot {
    shape: AtomicPtr<Published>,
    miss: AtomicU8,
    /// Counter of lookups (as packets) and matches (as bytes).
    counter: AtomicU32,
}

/// A bridge's tables, as workers see them.
pub struct Bridge {
    program: Arc<Program>,
    slots: Box<[Slot]>,
    needed: AtomicU64,
    groups: GroupTable,
    /// Whether any rule has ever written to an action set.
    writes_sets: AtomicBool,
    /// Whether any rule has ever done more than send or drop its packets.
    goes_on: AtomicBool,
    /// Whether lookups see the ports of first fragments.
    fragment_ports: AtomicBool,
    /// Whether fragments are dropped before the first lookup.
    fragments_dropped: AtomicBool,
    /// Whether DHCP replies must also reach the local port.
    replies_to_local: AtomicBool,
    controller_meter: MeterRef,
    /// Ports whose packets may come to rules that ask for rules.
    learning: Learning,
    /// Whether table misses have ever continued in the next table.
    misses_go_on: AtomicBool,
    /// Words of the key that any rule has ever written.
    written: AtomicU64,
    /// Whether packet-ins have ever been possible.
    tells: AtomicBool,
    /// The bits that a walk may depend on.
    pub(crate) unwildcarded: Unwildcarded,
}

impl Bridge {
    /// Creates a bridge whose tables are empty and drop packets without a match.
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
            replies_to_local: AtomicBool::new(false),
            controller_meter: MeterRef::new(CONTROLLER_METER),
            learning: Learning::default(),
            misses_go_on: AtomicBool::new(false),
            written: AtomicU64::new(0),
            tells: AtomicBool::new(false),
            unwildcarded: Unwildcarded::default(),
        })
    }

    /// Returns the program it belongs to.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns the slot of the meter for packet-ins (`OFPM_CONTROLLER`), which applies to each
    /// packet-in without a meter of its own.
    #[inline]
    pub fn controller_meter(&self) -> &MeterRef {
        &self.controller_meter
    }

    /// Sets whether lookups see the transport ports of first fragments (`OFPC_FRAG_NX_MATCH`, the
    /// default) or zero, as for later fragments (`OFPC_FRAG_NORMAL`: all fragments of a packet meet
    /// the same rules). Takes effect with the next burst.
    pub fn match_fragment_ports(&self, visible: bool) {
        self.fragment_ports.store(visible, Ordering::Relaxed);
    }

    /// Returns the setting of [`Bridge::match_fragment_ports`].
    #[inline(always)]
    pub(crate) fn matches_fragment_ports(&self) -> bool {
        self.fragment_ports.load(Ordering::Relaxed)
    }

    /// Sets whether IP fragments that come in are dropped (`OFPC_FRAG_DROP`). Takes effect with the
    /// next burst.
    pub fn drop_fragments(&self, dropped: bool) {
        self.fragments_dropped.store(dropped, Ordering::Relaxed);
    }

    /// Returns the setting of [`Bridge::drop_fragments`].
    #[inline(always)]
    pub(crate) fn drops_fragments(&self) -> bool {
        self.fragments_dropped.load(Ordering::Relaxed)
    }

    /// Sets whether DHCP replies are also sent to the local port where rules have not sent them
    /// there, as in-band control needs to get an address. Takes effect with the next burst.
    pub fn deliver_replies(&self, wanted: bool) {
        self.replies_to_local.store(wanted, Ordering::Release);
    }

    /// Returns the setting of [`Bridge::deliver_replies`].
    #[inline(always)]
    pub fn delivers_replies(&self) -> bool {
        self.replies_to_local.load(Ordering::Acquire)
    }

    /// Returns whether any rule asks for others.
    pub fn has_learning_rules(&self) -> bool {
        self.learning.is_there()
    }

    /// Returns whether packets that came in by this port may come to rules that ask for rules, so
    /// that they must be walked one after the other.
    #[inline(always)]
    pub fn learns_from(&self, in_port: PortNo) -> bool {
        self.learning.concerns(in_port)
    }

    /// Returns whether packets that may come to such a step can do so as lanes, if they cannot meet
    /// the rules that are asked for.
    #[inline(always)]
    pub(crate) fn learns_by_lanes(&self) -> bool {
        self.learning.is_by_lanes()
    }

    /// Returns the order in which packets go that may come to such a step and may meet what others
    /// of their burst ask for.
    #[inline(always)]
    pub(crate) fn order_of_steps(&self) -> Order {
        self.learning.order()
    }

    /// Returns whether packets that look up in this table may come to a step that asks for a rule.
    pub(crate) fn leads_to_learn(&self, table: u8) -> bool {
        self.learning.leads(table)
    }

    /// Records that a packet has asked for a rule of this table.
    pub(crate) fn rule_requested(&self, table: u8) {
        self.learning.requested(table);
    }

    /// Returns whether packets that came in by this port may meet a rule that a packet has asked
    /// for.
    pub(crate) fn meets_requested(&self, in_port: PortNo) -> bool {
        self.learning.may_meet(in_port)
    }

    /// Words of the key that no rule writes: what a packet came with is what all its lookups see.
    pub(crate) fn kept(&self) -> WordSet {
        WordSet(!self.written.load(Ordering::Acquire))
    }

    /// Returns the rule that `learn` would make of these values: of its table, match and precedence
    /// and in force in the guard's epoch, whatever it does.
    pub fn find<'g>(
        &self,
        learn: &Learn,
        values: &[u128],
        guard: &'g Guard<'_>,
    ) -> Option<&'g Rule> {
        self.find_by(learn, &learn.example(values), guard)
    }

    /// [`Bridge::find`] by a key that the rule matches. Reads only the words of
    /// [`Learn::shape`].
    pub(crate) fn find_by<'g>(
        &self,
        learn: &Learn,
        key: &FlowKey,
        guard: &'g Guard<'_>,
    ) -> Option<&'g Rule> {
        (self.classifier(learn.table, guard)?).find_exact(learn, key, guard.epoch())
    }

    /// Returns the words of the key that rules match or actions read.
    #[inline(always)]
    pub fn needed(&self) -> WordSet {
        WordSet(self.needed.load(Ordering::Acquire))
    }

    /// Adds words of the key that rules or the host read. Publication comes later, so every burst
    /// that sees such a rule fills them. Workers read this line for every burst, so here and below
    /// it is written only if it changes.
    pub fn need(&self, words: WordSet) {
        if !words.minus(self.needed()).is_empty() {
            self.needed.fetch_or(words.0, Ordering::Release);
        }
    }

    /// Returns whether any rule has ever written to an action set; if not, nothing follows a rule's
    /// last step.
    #[inline]
    pub(crate) fn writes_sets(&self) -> bool {
        self.writes_sets.load(Ordering::Relaxed)
    }

    /// Returns whether packet-ins are possible, for which controllers want the fields of the
    /// tunnel's header.
    #[inline]
    pub fn tells(&self) -> bool {
        self.tells.load(Ordering::Relaxed)
    }

    /// Records that packet-ins are possible from now on. Publication comes later, as for
    /// [`Bridge::need`].
    pub(crate) fn begin_to_tell(&self) {
        if !self.tells() {
            self.tells.store(true, Ordering::Release);
        }
    }

    /// Returns whether walks are too short for a flow cache to help: one lookup, which costs no
    /// more than one in the cache.
    pub(crate) fn is_quick(&self, guard: &Guard<'_>) -> bool {
        !self.goes_on.load(Ordering::Relaxed)
            && self.miss(0) != Miss::Next
            && self.published(0, guard).is_none_or(|table| table.quick)
    }

    /// Returns the groups.
    #[inline(always)]
    pub(crate) fn groups(&self) -> &GroupTable {
        &self.groups
    }

    /// Returns a group as it is in the guard's epoch; None when there is none.
    #[inline]
    pub fn group<'g>(&self, to: GroupRef, guard: &'g Guard<'_>) -> Option<&'g Group> {
        assert!(
            std::ptr::eq(guard.domain(), &*self.program.domain),
            "a guard of another program"
        );
        self.groups.get(to, guard)
    }

    /// Returns what becomes of a packet that matches no rule of `table`.
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
        // SAFETY: published classifiers are made by `Box::into_raw` and, when replaced, retired to
        // this domain, whose guard lives for 'g.
        unsafe { shape.as_ref() }
    }

    /// Returns the rule of `table` with the highest precedence that matches and holds in the
    /// guard's epoch.
    pub fn lookup<'g>(&self, table: u8, key: &FlowKey, guard: &'g Guard<'_>) -> Option<&'g Rule> {
        let mut out = [None];
        self.lookup_burst(table, 1, |_| key, guard, &mut out);
        out[0]
    }

    /// Looks up `count` keys, up to [`LOOKUP_MAX`], writes the rules found to `out`, and counts
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

    /// Returns the work of looking `key` up in `table`, in the guard's epoch. Slow: for prediction,
    /// not for packets.
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

    /// Returns the number of packets looked up in `table`, and of those that matched a rule.
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

    /// Returns the counter of `table`'s lookups and matches.
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
                // reach it any more.
                drop(unsafe { Box::from_raw(shape) });
            }
            let counter = slot.counter.load(Ordering::Relaxed);
            if counter != NO_COUNTER {
                self.program.counters.free(CounterId(counter));
            }
        }
    }
}
