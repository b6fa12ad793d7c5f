//! One bridge's flow tables: the state that commands change and queries read.

use crate::commands;
use crate::queries::changes::RuleChange;
use crate::state::behaviour::Behaviours;
use crate::state::groups::Groups;
use crate::state::learned::Learned;
use crate::state::meters::Meters;
use crate::state::store::{self, Store};
use crate::state::timers::Timers;
use openflow::action::{Action, Instruction};
use openflow::flow::Instructions;
use openflow::steering::Layout;
use openflow::{Error, Version};
use program::Program;
use program::counters::CounterId;
use program::table::GroupWriter;
use program::table::{Bridge, BridgeWriter, FusedReport, Miss};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Counters that are released together.
const RELEASED: usize = 256;

/// A time in milliseconds of the datapath's clock, with which workers stamp counters. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Clock(pub(crate) u64);

impl Clock {
    /// Creates a time from milliseconds.
    pub fn from_ms(ms: u64) -> Clock {
        Clock(ms)
    }

    /// Returns the time in milliseconds.
    pub fn ms(self) -> u64 {
        self.0
    }
}

/// Limits of a pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum number of visible rules in one table; [`Pipeline::set_table_limit`] changes it for
    /// one.
    pub table_limit: u32,
}

impl Default for Options {
    /// No limit except the program's counters: 16 million rules.
    fn default() -> Self {
        Options {
            table_limit: u32::MAX,
        }
    }
}

/// One bridge's flow tables.
pub struct Pipeline {
    pub(crate) program: Arc<Program>,
    pub(crate) writer: BridgeWriter,
    pub(crate) store: Store,
    pub(crate) behaviours: Behaviours,
    pub(crate) meters: Meters,
    pub(crate) groups: Groups,
    pub(crate) group_writer: GroupWriter,
    pub(crate) timers: Timers,
    /// The map of tunnel options.
    pub(crate) options: crate::state::options::Options,
    pub(crate) learned: Learned,
    pub(crate) limits: Box<[u32]>,
    pub(crate) misses: Box<[Miss]>,
    /// Counters of rules removed since the last commit.
    pub(crate) dead_counters: Vec<CounterId>,
    /// Steps that undo the open batch.
    pub(crate) undo: Option<commands::batch::Undo>,
    /// Steps still to do in a batch that is being rolled back.
    pub(crate) undoing: Option<commands::batch::Undo>,
    /// Steps of ended batches, whose rules are still to be freed.
    pub(crate) waste: Vec<commands::batch::Step>,
    /// The reserved epoch that changes carry, if any.
    pub(crate) reserved: Option<program::epoch::Epoch>,
    /// Changes not yet taken by [`Pipeline::take_changes`]; None when nobody watches.
    pub(crate) changes: Option<VecDeque<RuleChange>>,
    /// The page on which changes are noted; `noted` counts the changes noted so far.
    pub(crate) page: u32,
    pub(crate) noted: u32,
    /// By table: the rules that may be evicted when it is full.
    pub(crate) evictions: Box<[Option<Box<commands::eviction::Eviction>>]>,
    /// By table: the thresholds at which vacancy events are sent.
    pub(crate) vacancies: Box<[Option<commands::vacancy::Thresholds>]>,
    pub(crate) has_thresholds: bool,
    /// The instructions that last passed the checks, with their table and version, if the result
    /// depends neither on a rule's match nor on other state.
    pub(crate) checked: Option<(Instructions, u8, Version)>,
    /// Where the bridge's ports write the flow control field; None where they do not.
    pub(crate) fcf: Option<Layout>,
}

impl Pipeline {
    /// Creates empty tables over a new bridge and becomes its only writer.
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
            options: crate::state::options::Options::default(),
            learned: Learned::default(),
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
            fcf: None,
        }
    }

    /// Sets where the bridge's ports write the flow control field. Rules that set it stay, whatever
    /// the layout; values that do not fit the layout are not written.
    pub fn set_fcf_layout(&mut self, layout: Option<Layout>) {
        self.fcf = layout;
    }

    /// Refuses `set_fcf` where the bridge has no layout (`OFPBAC_EPERM`), and VM ids that the
    /// layout has no room for (`OFPBAC_BAD_ARGUMENT`).
    pub(crate) fn check_fcf(&self, actions: &[Action]) -> Result<(), Error> {
        actions.iter().try_for_each(|action| match action {
            Action::SetFcf(fcf) => match self.fcf {
                None => Err(Error::ActionPermission),
                Some(layout) if fcf.vm > layout.highest_vm() => Err(Error::BadActionArgument),
                Some(_) => Ok(()),
            },
            Action::Clone(inner) => self.check_fcf(inner),
            _ => Ok(()),
        })
    }

    /// Applies [`Pipeline::check_fcf`] to all actions in these instructions.
    pub(crate) fn check_fcf_of(&self, instructions: &[Instruction]) -> Result<(), Error> {
        instructions
            .iter()
            .try_for_each(|instruction| match instruction {
                Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                    self.check_fcf(actions)
                }
                _ => Ok(()),
            })
    }

    /// Makes changes ready for `program.domain.publish()`, after which workers see all of them at
    /// once. Does nothing while changes carry a reserved epoch, because workers may still need what
    /// would be released.
    pub fn commit(&mut self) {
        if self.reserved.is_some() {
            return;
        }
        self.writer.commit();
        self.commit_groups();
        self.release_counters();
        self.meters.commit(&self.program.domain);
    }

    /// Releases the counters of removed rules once no worker can count on them.
    pub(crate) fn release_counters(&mut self) {
        // Weak, because retired values are owned by the program itself.
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
        // Workers count only for rules that hold in their epoch. These rules no longer hold from
        // the epoch that is published next.
        if !self.dead_counters.is_empty() && self.undo.is_none() {
            let dead = std::mem::take(&mut self.dead_counters);
            for some in dead.chunks(RELEASED) {
                let release = Release(Arc::downgrade(&self.program), some.to_vec());
                self.program.domain.retire(Box::new(release));
            }
        }
    }

    /// Frees up to `limit` replaced and removed rules that no worker can see any more; returns how
    /// many. Call it regularly, and more often while it returns `limit`.
    pub fn housekeep(&mut self, limit: usize) -> usize {
        self.writer.housekeep(limit)
    }

    /// Returns how many removed rules have not been unlinked yet, because readers may need them or
    /// because unlinking is done in slices.
    pub fn waiting(&self) -> usize {
        self.writer.waiting()
    }

    /// Builds, in the background, the lookups that fit the tables' rules. Returns true while any
    /// are being built or wanted; then, and after rules have changed, call it about ten times a
    /// second.
    pub fn shape_tables(&mut self) -> bool {
        self.writer.shape_tables()
    }

    /// Gives every table the lookup that fits its rules best, at once, however long it takes.
    pub fn shape_now(&mut self) {
        self.writer.shape_now();
    }

    /// Reports the fused paths: stages of the pipeline that have been made one.
    pub fn fused_report(&self) -> FusedReport {
        self.writer.fused_report()
    }

    /// Returns the readers' side of the tables.
    pub fn tables(&self) -> &Arc<Bridge> {
        self.writer.bridge()
    }

    /// Sets what happens to packets for which a table has no rule. Tables drop them by default.
    /// Tables are numbered 0 to 253; other numbers are ignored.
    pub fn set_miss(&mut self, table: u8, miss: Miss) {
        if let Some(place) = self.misses.get_mut(usize::from(table)) {
            *place = miss;
            self.writer.set_miss(table, miss);
        }
    }

    /// Returns what happens to packets for which a table has no rule.
    pub fn miss(&self, table: u8) -> Miss {
        self.misses
            .get(usize::from(table))
            .copied()
            .unwrap_or(Miss::Drop)
    }

    /// Limits a table's visible rules. Rules above the limit stay; adding fails with
    /// `OFPFMFC_TABLE_FULL`.
    pub fn set_table_limit(&mut self, table: u8, limit: u32) {
        if let Some(place) = self.limits.get_mut(usize::from(table)) {
            *place = limit;
        }
    }
}
