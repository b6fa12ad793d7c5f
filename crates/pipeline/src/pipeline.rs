//! One bridge's flow tables, whole: what commands change and questions look at.

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

/// Counters that are given back together.
const RELEASED: usize = 256;

/// A moment, in milliseconds of the datapath's clock: the one that workers stamp counters with.
/// Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Clock(pub(crate) u64);

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
    /// Counters of rules that went since the last commit.
    pub(crate) dead_counters: Vec<CounterId>,
    /// What to do to undo the batch that is open.
    pub(crate) undo: Option<commands::batch::Undo>,
    /// What is left of a batch that is being undone.
    pub(crate) undoing: Option<commands::batch::Undo>,
    /// What batches that have ended have left to be freed.
    pub(crate) waste: Vec<commands::batch::Step>,
    /// The reserved epoch that changes carry.
    pub(crate) reserved: Option<program::epoch::Epoch>,
    /// Changes that nobody has been told of yet, while somebody watches.
    pub(crate) changes: Option<VecDeque<RuleChange>>,
    /// The page on which changes are noted, and how many have been.
    pub(crate) page: u32,
    pub(crate) noted: u32,
    /// By table: the rules that may go when it is full.
    pub(crate) evictions: Box<[Option<Box<commands::eviction::Eviction>>]>,
    /// By table: when to tell how full it is.
    pub(crate) vacancies: Box<[Option<commands::vacancy::Thresholds>]>,
    pub(crate) has_thresholds: bool,
    /// Instructions that were found right last, for this table and version, and would be whatever
    /// a rule matches and whatever else there is.
    pub(crate) checked: Option<(Instructions, u8, Version)>,
    /// Where the bridge's ports write the flow control field; None where they do not.
    pub(crate) fcf: Option<Layout>,
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

    /// Says where the bridge's ports write the flow control field. Rules that set one stay,
    /// whatever the layout; what has no room in it is not written.
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

    /// The same of a rule.
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
    pub(crate) fn release_counters(&mut self) {
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
}
