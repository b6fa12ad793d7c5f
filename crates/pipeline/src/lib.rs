//! OpenFlow state, flow-mod semantics, and its compilation to a program.
//!
//! A [`Pipeline`] is one bridge's flow tables as OpenFlow knows them: it checks each change, makes
//! it or refuses it as a whole, and writes what workers need into the bridge's [`program`]. It has
//! no threads, sockets or ports; whoever owns it hands it messages and the time, and publishes.
//!
//! * [`flow_mod`](Pipeline::flow_mod): the five commands, with the semantics of OpenFlow 1.0 to 1.5
//!   and of Open vSwitch where these leave room.
//! * [`begin_flow_mod`](Pipeline::begin_flow_mod): likewise, in slices where they mean many rules;
//!   see [`Sweep`].
//! * [`group_mod`](Pipeline::group_mod): groups, which share the rules' epochs and batches.
//! * [`expire`](Pipeline::expire): timeouts.
//! * [`flow_stats`](Pipeline::flow_stats) and its neighbours: what is there.
//! * [`take_changes`](Pipeline::take_changes): what flow monitors tell.
//! * [`twin`]: the slow, obvious evaluator that tests hold the program against.
//!
//! After changes: [`commit`](Pipeline::commit) for each pipeline, then one
//! `program.domain.publish()` for all. A change that must not stay half done across messages is a
//! [batch](Pipeline::begin_batch).

mod batch;
mod behaviour;
mod changes;
mod check;
mod compile;
mod dump;
mod eviction;
mod flow_mod;
mod groups;
mod index;
mod learn;
mod meters;
mod options;
mod overlap;
mod packet_out;
mod query;
mod store;
mod sweep;
mod timers;
pub mod twin;
mod vacancy;

pub use changes::{RuleChange, SeenRule};
pub use dump::{Dump, RuleCount};
pub use flow_mod::{Begun, FlowModOutcome};
pub use groups::group_features;
pub use meters::meter_features;
pub use packet_out::{PacketOutProgram, check_bundled};
pub use query::{RuleView, table_features};
pub use sweep::Sweep;

use behaviour::Behaviours;
use groups::Groups;
use meters::Meters;
use openflow::Version;
use openflow::flow::{FlowRemoved, FlowRemovedReason, Instructions};
use openflow::monitor::UpdateEvent;
use program::Program;
use program::counters::CounterId;
use program::table::GroupWriter;
use program::table::{Bridge, BridgeWriter, FusedReport, Miss};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use store::{Rule, RuleId, Store};
use timers::Timers;

/// Most rules that one call of [`Pipeline::expire`] looks at: some milliseconds of work.
pub const EXPIRE_MAX: usize = 2048;
/// Counters that are given back together.
const RELEASED: usize = 256;

/// A moment, in milliseconds of the datapath's clock: the one that workers stamp counters with.
/// Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Clock(u64);

impl Clock {
    /// From milliseconds.
    pub fn from_ms(ms: u64) -> Clock {
        Clock(ms)
    }

    /// In milliseconds.
    pub fn ms(self) -> u64 {
        self.0
    }
}

/// How a pipeline is set up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most visible rules in one table; [`Pipeline::set_table_limit`] changes it for one.
    pub table_limit: u32,
}

impl Default for Options {
    /// No limit but that of the program's counters, 16 million rules.
    fn default() -> Self {
        Options {
            table_limit: u32::MAX,
        }
    }
}

/// One bridge's flow tables.
pub struct Pipeline {
    program: Arc<Program>,
    writer: BridgeWriter,
    store: Store,
    behaviours: Behaviours,
    meters: Meters,
    groups: Groups,
    group_writer: GroupWriter,
    timers: Timers,
    /// The map of tunnel options.
    options: options::Options,
    learned: learn::Learned,
    limits: Box<[u32]>,
    misses: Box<[Miss]>,
    /// Counters of rules that went since the last commit.
    dead_counters: Vec<CounterId>,
    /// What to do to undo the batch that is open.
    undo: Option<batch::Undo>,
    /// What is left of a batch that is being undone.
    undoing: Option<batch::Undo>,
    /// What batches that have ended have left to be freed.
    waste: Vec<batch::Step>,
    /// The reserved epoch that changes carry.
    reserved: Option<program::epoch::Epoch>,
    /// Changes that nobody has been told of yet, while somebody watches.
    changes: Option<VecDeque<RuleChange>>,
    /// The page on which changes are noted, and how many have been.
    page: u32,
    noted: u32,
    /// By table: the rules that may go when it is full.
    evictions: Box<[Option<Box<eviction::Eviction>>]>,
    /// By table: when to tell how full it is.
    vacancies: Box<[Option<vacancy::Thresholds>]>,
    has_thresholds: bool,
    /// Instructions that were found right last, for this table and version, and would be whatever
    /// a rule matches and whatever else there is.
    checked: Option<(Instructions, u8, Version)>,
}

impl Pipeline {
    /// Empty tables over a new bridge, whose only writer this becomes.
    pub fn new(program: Arc<Program>, bridge: Arc<Bridge>, options: Options) -> Pipeline {
        Pipeline {
            meters: Meters::new(bridge.controller_meter()),
            program,
            groups: Groups::default(),
            group_writer: GroupWriter::new(Arc::clone(&bridge)),
            writer: BridgeWriter::new(bridge),
            store: Store::default(),
            behaviours: Behaviours::default(),
            timers: Timers::default(),
            options: options::Options::default(),
            learned: learn::Learned::default(),
            limits: vec![options.table_limit; store::TABLES].into(),
            misses: vec![Miss::Drop; store::TABLES].into(),
            dead_counters: Vec::new(),
            undo: None,
            undoing: None,
            waste: Vec::new(),
            reserved: None,
            changes: None,
            page: 0,
            noted: 0,
            evictions: (0..store::TABLES).map(|_| None).collect(),
            vacancies: vec![None; store::TABLES].into(),
            has_thresholds: false,
            checked: None,
        }
    }

    /// Makes what changed ready for `program.domain.publish()`, after which workers see all of it
    /// at once. While changes carry a reserved epoch it does nothing: what workers still need must
    /// not be given back before.
    pub fn commit(&mut self) {
        if self.reserved.is_some() {
            return;
        }
        self.writer.commit();
        self.commit_groups();
        self.release_counters();
        self.meters.commit(&self.program.domain);
    }

    /// Gives back the counters of rules that went, once no worker can count on them.
    fn release_counters(&mut self) {
        // Weak: what is retired lies inside the program.
        struct Release(Weak<Program>, Vec<CounterId>);
        impl Drop for Release {
            fn drop(&mut self) {
                if let Some(program) = self.0.upgrade() {
                    self.1
                        .iter()
                        .for_each(|counter| program.counters.free(*counter));
                }
            }
        }
        // A worker counts only for rules that hold in its epoch, and these end with the one to be
        // published.
        if !self.dead_counters.is_empty() && self.undo.is_none() {
            let dead = std::mem::take(&mut self.dead_counters);
            for some in dead.chunks(RELEASED) {
                let release = Release(Arc::downgrade(&self.program), some.to_vec());
                self.program.domain.retire(Box::new(release));
            }
        }
    }

    /// Frees what replaced and removed rules have left, as far as no worker can see it any more, up
    /// to `limit` rules; returns how many. Call it now and then, more often while it returns
    /// `limit`.
    pub fn housekeep(&mut self, limit: usize) -> usize {
        self.writer.housekeep(limit)
    }

    /// Rules that went and have not been unlinked yet, because readers may need them or because
    /// that is done in slices.
    pub fn waiting(&self) -> usize {
        self.writer.waiting()
    }

    /// Gives tables lookups that fit their rules, made in the background; true while some are being
    /// made or wanted. Call it ten times a second or so, while that is so and after rules have
    /// changed.
    pub fn shape_tables(&mut self) -> bool {
        self.writer.shape_tables()
    }

    /// Gives every table the lookup that fits its rules best, at once and however long it takes.
    pub fn shape_now(&mut self) {
        self.writer.shape_now();
    }

    /// Stages of the pipeline that have been made one.
    pub fn fused_report(&self) -> FusedReport {
        self.writer.fused_report()
    }

    /// The readers' side of its tables.
    pub fn tables(&self) -> &Arc<Bridge> {
        self.writer.bridge()
    }

    /// Says what becomes of packets that a table has no rule for. Tables drop them at first. Tables
    /// are numbered 0 to 253; others are ignored.
    pub fn set_miss(&mut self, table: u8, miss: Miss) {
        if let Some(place) = self.misses.get_mut(usize::from(table)) {
            *place = miss;
            self.writer.set_miss(table, miss);
        }
    }

    /// What becomes of packets that a table has no rule for.
    pub fn miss(&self, table: u8) -> Miss {
        self.misses
            .get(usize::from(table))
            .copied()
            .unwrap_or(Miss::Drop)
    }

    /// Bounds a table's visible rules. Rules beyond it stay; adding fails with
    /// `OFPFMFC_TABLE_FULL`.
    pub fn set_table_limit(&mut self, table: u8, limit: u32) {
        if let Some(place) = self.limits.get_mut(usize::from(table)) {
            *place = limit;
        }
    }

    /// The earliest moment at which [`Pipeline::expire`] may have something to do; None when no
    /// rule has a timeout.
    pub fn next_deadline(&self) -> Option<Clock> {
        self.timers.next().map(Clock)
    }

    /// Removes rules whose time has come, of up to [`EXPIRE_MAX`] that it looks at, and returns
    /// those that want it told (`OFPFF_SEND_FLOW_REM`), and the number of all that went. What is
    /// left over keeps [`Pipeline::next_deadline`] in the past: publish, let others have their
    /// turn, and call it again.
    pub fn expire(&mut self, now: Clock) -> FlowModOutcome {
        let mut outcome = FlowModOutcome::default();
        for _ in 0..EXPIRE_MAX {
            let Some((id, ticket)) = self.timers.due(now.ms()) else {
                break;
            };
            let Some(rule) = self.store.get(id).filter(|rule| rule.timer == ticket) else {
                continue;
            };
            let deadlines = self.deadlines(rule);
            self.timers.disarm();
            match deadlines.iter().min_by_key(|(at, _)| *at) {
                Some((at, reason)) if *at <= now.ms() => {
                    let reason = *reason;
                    if let Some(rule) = self.store.get_mut(id) {
                        rule.timer = 0;
                    }
                    outcome.changed += 1;
                    outcome.removed.extend(self.take_out(id, reason, now));
                }
                Some((at, _)) => {
                    let ticket = self.timers.arm(*at, id);
                    if let Some(rule) = self.store.get_mut(id) {
                        rule.timer = ticket;
                    }
                }
                None => {}
            }
        }
        self.delete_orphans(&mut outcome, now);
        outcome
    }

    /// When a rule goes, by each of its timeouts: the first millisecond after the whole time has
    /// passed. The hard one first, which wins a tie.
    fn deadlines(&self, rule: &Rule) -> smallvec::SmallVec<[(u64, FlowRemovedReason); 2]> {
        let mut all = smallvec::SmallVec::new();
        if rule.hard_timeout != 0 {
            all.push((
                rule.refreshed_ms() + u64::from(rule.hard_timeout) * 1000,
                FlowRemovedReason::HardTimeout,
            ));
        }
        if rule.idle_timeout != 0 {
            all.push((
                self.idle_since_ms(rule) + u64::from(rule.idle_timeout) * 1000,
                FlowRemovedReason::IdleTimeout,
            ));
        }
        all
    }

    /// When a rule's last packet came, or where its idle timeout counts from, in milliseconds.
    pub(crate) fn idle_since_ms(&self, rule: &Rule) -> u64 {
        let used = self.program.counters.read(rule.counter).used_ms;
        used.max(rule.idle_base_ms)
    }

    /// Puts a rule's timeouts in force. Its counter is not read: an early entry corrects itself
    /// when it comes up.
    fn arm(&mut self, id: RuleId) {
        self.offer_for_eviction(id);
        let Some(rule) = self.store.get(id) else {
            return;
        };
        let hard = (rule.hard_timeout != 0)
            .then(|| rule.modified_ms + u64::from(rule.hard_timeout) * 1000);
        let idle = (rule.idle_timeout != 0)
            .then(|| rule.idle_base_ms + u64::from(rule.idle_timeout) * 1000);
        let Some(first) = hard.into_iter().chain(idle).min() else {
            return;
        };
        let ticket = self.timers.arm(first, id);
        if let Some(rule) = self.store.get_mut(id) {
            rule.timer = ticket;
        }
        if self.timers.wants_cleaning() {
            let store = &self.store;
            self.timers
                .clean(|id, ticket| store.get(id).is_some_and(|rule| rule.timer == ticket));
        }
    }

    /// Takes a rule's timeouts out of force.
    fn disarm(&mut self, id: RuleId) {
        self.spare_from_eviction(id);
        if let Some(rule) = self.store.get_mut(id).filter(|rule| rule.timer != 0) {
            rule.timer = 0;
            self.timers.disarm();
        }
    }

    /// Removes a rule; returns what is to be told, if the rule wants it told.
    fn take_out(
        &mut self,
        id: RuleId,
        reason: FlowRemovedReason,
        now: Clock,
    ) -> Option<FlowRemoved> {
        let rule = self.store.get(id)?;
        self.writer.end(rule.table, rule.handle);
        self.take_out_ended(id, reason, now)
    }

    /// Likewise, one that has ended.
    fn take_out_ended(
        &mut self,
        id: RuleId,
        reason: FlowRemovedReason,
        now: Clock,
    ) -> Option<FlowRemoved> {
        let rule = self.store.get(id)?;
        let told = (rule.flags.send_flow_rem && !rule.is_hidden()).then(|| FlowRemoved {
            reason,
            stats: self.stats_of(rule, now),
        });
        self.note_change(id, UpdateEvent::Removed(reason), None);
        self.unlink_ended(id);
        told
    }
}
