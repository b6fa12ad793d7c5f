//! Changes of many rules, in slices.
//!
//! A non-strict modify or delete may affect a million rules. It has four stages, each of which is
//! called with a budget of rules:
//!
//! 1. [`Pipeline::seek`] finds the rules. Nothing changes, and a command that fails does so here.
//! 2. [`Pipeline::apply`] prepares the change. Nobody sees it yet: rules carry the reserved epoch
//!    ([`Pipeline::change_in`]).
//! 3. The caller publishes: packets meet all of the change from one moment on.
//! 4. [`Pipeline::settle`] removes deleted rules from the tables and returns their flow removed
//!    messages, with their final counters.
//!
//! Deleting a group or a meter deletes the rules that use it, in the same way.
//!
//! A rule that is replaced or expires may take the rules that it has learned with it
//! (`delete_learned`). They are deleted in the same way, after the change itself, which is to be
//! published first ([`Sweep::has_changed`]).
//!
//! From the beginning of the first stage to the end of the last, nobody else may change or read
//! rules of this pipeline. In a batch, a sweep has no epoch of its own: stage 2 does everything.

use crate::commands::flow_mod::{Begun, criteria, goes_back};
use crate::commands::meter_mod::uses_meter;
use crate::state::criteria::{ANY_GROUP, Criteria, NO_COOKIE};
use crate::state::store::{Rule, RuleId};
use crate::{Clock, Dump, FlowModOutcome, Pipeline};
use openflow::error::Error;
use openflow::flow::{FlowMod, FlowModCommand, FlowRemovedReason, FlowStatsRequest, TABLE_ALL};
use openflow::{group, meter, port};
use packet::Match;
use program::counters::CounterId;
use program::epoch::Epoch;
use std::borrow::Cow;

/// How many rules ahead memory is prefetched.
const AHEAD: usize = 8;

/// A modify or delete in progress, or the deletion of learned rules.
#[derive(Debug)]
pub struct Sweep<'c> {
    /// None for a flush, and for learned rules only.
    change: Option<Cow<'c, FlowMod>>,
    /// The effects of the change that came before, for learned rules only.
    after: Option<FlowModOutcome>,
    /// What is deleted with the rules that use it, and how far the search for these, or the
    /// deletion after it, has come.
    used: Option<Used>,
    at: At,
    /// The rest of the search.
    left: Option<Dump>,
    /// The selected rules, in order.
    found: Vec<RuleId>,
    /// New counters for them, if theirs restart.
    counters: Vec<CounterId>,
    /// Whether stage 2 only ends rules and stage 4 removes them.
    ends_first: bool,
    /// How many of `found` have been checked, and how many the current stage has done.
    checked: usize,
    done: usize,
    orphans: Orphans,
}

/// Groups or meters: one by its number, or all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Used {
    Groups(u32),
    Meters(u32),
}

/// A place in a walk through groups or meters: the next number, and of a group the next rule that
/// uses it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct At {
    pub number: u32,
    pub rule: RuleId,
}

/// Learned rules that go with the rules that have learned them (`delete_learned`), of one table and
/// cookie at a time.
#[derive(Default, Debug)]
pub(crate) struct Orphans {
    /// The rest of the search for them.
    left: Option<Dump>,
    found: Vec<RuleId>,
    done: usize,
}

impl Sweep<'_> {
    /// Converts to a sweep that owns its flow mod.
    pub(crate) fn into_owned(self) -> Sweep<'static> {
        Sweep {
            change: self.change.map(|change| Cow::Owned(change.into_owned())),
            after: self.after,
            used: self.used,
            at: self.at,
            left: self.left,
            found: self.found,
            counters: self.counters,
            ends_first: self.ends_first,
            checked: self.checked,
            done: self.done,
            orphans: self.orphans,
        }
    }

    /// Returns the rule to add when there is none to modify, where the version requires it (1.0
    /// section 4.6), unless a cookie was given.
    fn to_add(&self) -> Option<FlowMod> {
        let change = self.change.as_deref().filter(|_| self.found.is_empty())?;
        let adds = !self.is_delete()
            && change.modify_adds
            && change.cookie_mask == 0
            && change.cookie != NO_COOKIE;
        adds.then(|| change.clone())
    }

    fn is_delete(&self) -> bool {
        self.change.as_ref().is_none_or(|change| {
            matches!(
                change.command,
                FlowModCommand::Delete | FlowModCommand::DeleteStrict
            )
        })
    }

    /// Returns why its rules are deleted.
    fn reason(&self) -> FlowRemovedReason {
        match self.used {
            None => FlowRemovedReason::Delete,
            Some(Used::Groups(_)) => FlowRemovedReason::GroupDelete,
            Some(Used::Meters(_)) => FlowRemovedReason::MeterDelete,
        }
    }

    /// Returns how many rules have been selected so far.
    pub fn found(&self) -> usize {
        self.found.len()
    }

    /// Returns whether there are changes already, which are to be published before the sweep goes
    /// on.
    pub fn has_changed(&self) -> bool {
        self.after.is_some()
    }

    fn new(left: Option<Dump>) -> Sweep<'static> {
        Sweep {
            change: None,
            after: None,
            used: None,
            at: At::default(),
            left,
            found: Vec::new(),
            counters: Vec::new(),
            ends_first: false,
            checked: 0,
            done: 0,
            orphans: Orphans::default(),
        }
    }
}

impl Used {
    /// Returns whether a rule uses it. Of groups the store knows that.
    fn is_by(self, rule: &Rule) -> bool {
        match self {
            Used::Groups(_) => true,
            Used::Meters(number) => uses_meter(&rule.behaviour.instructions, number),
        }
    }
}

fn request(criteria: &Criteria<'_>) -> FlowStatsRequest {
    FlowStatsRequest {
        table: criteria.table,
        matching: criteria.matching.clone(),
        out_port: criteria.out_port,
        out_group: criteria.out_group,
        cookie: criteria.cookie,
        cookie_mask: criteria.cookie_mask,
    }
}

impl Pipeline {
    /// Sets the reserved epoch ([`program::epoch::Domain::reserve`]) that changes carry from now
    /// on. The call with None ends this; [`Pipeline::commit`] and
    /// [`program::epoch::Domain::publish_reserved`] must follow it at once. In between,
    /// [`Pipeline::commit`] does nothing.
    pub fn change_in(&mut self, reserved: Option<Epoch>) {
        self.reserved = reserved;
        self.writer.change_in(reserved);
        self.group_writer.change_in(reserved);
    }

    /// Begins a modify or delete that [`Pipeline::begin_flow_mod`] has checked.
    pub(crate) fn begin_sweep<'c>(&mut self, change: Cow<'c, FlowMod>) -> Sweep<'c> {
        let delete = matches!(
            change.command,
            FlowModCommand::Delete | FlowModCommand::DeleteStrict
        );
        let criteria = criteria(&change, delete);
        let (left, found) = match criteria.strict {
            Some(_) => (None, self.store.select(&criteria)),
            None => (Some(self.begin_dump(&request(&criteria))), Vec::new()),
        };
        Sweep {
            change: Some(change),
            found,
            ..Sweep::new(left)
        }
    }

    /// Begins to delete the learned rules whose last `learn` action with `delete_learned` has gone
    /// by a change with this outcome; gives the outcome back if there are none.
    pub(crate) fn begin_orphans(
        &self,
        outcome: FlowModOutcome,
    ) -> Result<Sweep<'static>, FlowModOutcome> {
        if self.learned.orphans.is_empty() {
            return Err(outcome);
        }
        Ok(Sweep {
            after: Some(outcome),
            ..Sweep::new(None)
        })
    }

    /// Begins to delete groups or meters with the rules that use them.
    pub(crate) fn begin_deletion(&mut self, used: Used) -> Sweep<'static> {
        let sweep = match used {
            Used::Meters(number) if self.behaviours.uses_meter(number) => self.begin_flush(),
            Used::Groups(_) | Used::Meters(_) => Sweep::new(None),
        };
        Sweep {
            used: Some(used),
            ..sweep
        }
    }

    /// Carries a sweep out at once if it has found all rules within the budget, and no more than
    /// that.
    pub(crate) fn sweep_or_begin(
        &mut self,
        mut sweep: Sweep<'_>,
        budget: usize,
        now: Clock,
    ) -> Result<Begun<'static>, Error> {
        if !self.seek(&mut sweep, budget)? || !self.is_short(&sweep, budget) {
            return Ok(Begun::Long(Box::new(sweep.into_owned())));
        }
        let mut outcome = FlowModOutcome::default();
        self.apply(&mut sweep, usize::MAX, &mut outcome, now)?;
        Ok(Begun::Done(outcome))
    }

    /// Carries a sweep out at once.
    pub(crate) fn sweep_at_once(
        &mut self,
        mut sweep: Sweep<'_>,
        now: Clock,
    ) -> Result<FlowModOutcome, Error> {
        let mut outcome = FlowModOutcome::default();
        self.seek(&mut sweep, usize::MAX)?;
        self.apply(&mut sweep, usize::MAX, &mut outcome, now)?;
        Ok(outcome)
    }

    /// Begins to remove every visible rule, as when a bridge's controllers change.
    pub fn begin_flush(&mut self) -> Sweep<'static> {
        let any = Match::any();
        let everything = Criteria {
            table: TABLE_ALL,
            matching: &any,
            strict: None,
            cookie: 0,
            cookie_mask: 0,
            out_port: port::ANY,
            out_group: ANY_GROUP,
        };
        Sweep::new(Some(self.begin_dump(&request(&everything))))
    }

    /// Searches up to `budget` more rules; returns true when all selected rules have been found.
    /// After an error nothing has changed, and the sweep has ended.
    pub fn seek(&mut self, sweep: &mut Sweep<'_>, budget: usize) -> Result<bool, Error> {
        let ended = match (&mut sweep.left, sweep.used) {
            (None, Some(Used::Groups(number))) => {
                self.seek_users(number, &mut sweep.at, budget, &mut sweep.found)
            }
            (None, _) => true,
            (Some(dump), _) => {
                let (found, used) = (&mut sweep.found, sweep.used);
                self.scan(dump, budget, |_, id, rule| {
                    if used.is_none_or(|used| used.is_by(rule)) {
                        found.push(id);
                    }
                })
            }
        };
        if ended {
            sweep.left = None;
            sweep.at = At::default();
        }
        if let Err(error) = self.check_found(sweep) {
            for counter in sweep.counters.drain(..) {
                self.program.counters.free(counter);
            }
            return Err(error);
        }
        Ok(ended)
    }

    /// Checks that the change is valid for the rules found, and allocates the counters it needs.
    fn check_found(&self, sweep: &mut Sweep<'_>) -> Result<(), Error> {
        if sweep.is_delete() {
            return Ok(());
        }
        let Some(change) = &sweep.change else {
            return Ok(());
        };
        let found = &sweep.found[sweep.checked..];
        // A command for all tables was checked as one for the first table; a goto must lead forward
        // from the table of every rule.
        if change.table == TABLE_ALL {
            for rule in found.iter().filter_map(|id| self.store.get(*id)) {
                if goes_back(&change.instructions, rule.table) {
                    return Err(Error::BadInstructionTableId);
                }
            }
        }
        if change.flags.reset_counts {
            while sweep.counters.len() < sweep.found.len() {
                let counter = self.program.counters.allocate().ok_or(Error::TableFull)?;
                sweep.counters.push(counter);
            }
        }
        sweep.checked = sweep.found.len();
        Ok(())
    }

    /// Makes a delete end its rules first and remove them after that has been published, where
    /// possible: not in a batch, and not if other rules are deleted with them. Call it before the
    /// first [`Pipeline::apply`].
    pub fn end_first(&self, sweep: &mut Sweep<'_>) {
        sweep.ends_first = sweep.is_delete()
            && !sweep.has_changed()
            && sweep.used.is_none()
            && self.undo.is_none()
            && !self.deletes_learned();
    }

    /// Changes up to `budget` more rules, or deletes as many groups or meters when it has deleted
    /// all rules that use them; returns true when all is changed. Workers see it after
    /// [`Pipeline::commit`] and the publication. Fails only for the rule that a modify adds when it
    /// finds none; nothing has changed then.
    pub fn apply(
        &mut self,
        sweep: &mut Sweep<'_>,
        budget: usize,
        outcome: &mut FlowModOutcome,
        now: Clock,
    ) -> Result<bool, Error> {
        if let Some(add) = sweep.to_add() {
            // No rule goes by it that may have learned others, but for one that is evicted.
            outcome.extend(self.add(&add, now)?);
            self.delete_orphans(outcome, now);
            return Ok(true);
        }
        if let Some(before) = &mut sweep.after {
            outcome.extend(std::mem::take(before));
        }
        let end = sweep.found.len().min(sweep.done.saturating_add(budget));
        for index in sweep.done..end {
            self.fetch(&sweep.found, index);
            let id = sweep.found[index];
            outcome.changed += 1;
            match &sweep.change {
                _ if sweep.ends_first => {
                    let place = self.store.get(id).map(|rule| (rule.table, rule.handle));
                    if let Some((table, handle)) = place {
                        self.writer.end(table, handle);
                    }
                }
                Some(change) if !sweep.is_delete() => {
                    let counter = sweep.counters.get(index).copied();
                    self.modify_one(id, change, counter, now);
                }
                _ => {
                    let told = self.take_out(id, sweep.reason(), now);
                    outcome.removed.extend(told);
                }
            }
        }
        // The largest means at once.
        let budget = match budget {
            usize::MAX => budget,
            _ => budget - (end - sweep.done),
        };
        sweep.done = end;
        if end < sweep.found.len()
            || !sweep.ends_first
                && !self.delete_some_orphans(&mut sweep.orphans, budget, outcome, now)
        {
            return Ok(false);
        }
        let next = &mut sweep.at.number;
        let ended = match sweep.used {
            None => true,
            Some(Used::Groups(number)) => self.delete_groups(number, next, budget, outcome),
            Some(Used::Meters(number)) => self.delete_meters(number, next, budget, outcome),
        };
        if !ended {
            return Ok(false);
        }
        sweep.done = 0;
        Ok(true)
    }

    /// Returns whether a sweep that has found its rules changes at most `budget` of these, and not
    /// much else.
    pub fn is_short(&self, sweep: &Sweep<'_>, budget: usize) -> bool {
        let deleted = match sweep.used {
            Some(Used::Groups(group::ALL)) => self.groups.known.len(),
            Some(Used::Meters(meter::ALL)) => self.meters.known.len(),
            _ => 0,
        };
        sweep.found() <= budget && deleted <= budget && !self.may_leave_orphans(sweep)
    }

    /// Returns whether other rules are deleted with those found so far, as they have learned them:
    /// any number of them.
    fn may_leave_orphans(&self, sweep: &Sweep<'_>) -> bool {
        let mut found = (sweep.found.iter()).filter_map(|id| self.store.get(*id));
        let deletes = |rule: &Rule| rule.behaviour.learns.iter().any(|named| named.deletes);
        sweep.has_changed() || self.deletes_learned() && found.any(deletes)
    }

    /// Looks at, or deletes, up to `budget` more of the learned rules whose last `learn` action
    /// with `delete_learned` has gone; returns true when none is left.
    pub(crate) fn delete_some_orphans(
        &mut self,
        orphans: &mut Orphans,
        budget: usize,
        outcome: &mut FlowModOutcome,
        now: Clock,
    ) -> bool {
        loop {
            let Orphans { left, found, done } = orphans;
            if let Some(dump) = left {
                let take = |_: &Pipeline, id, rule: &Rule| {
                    if !rule.is_hidden() {
                        found.push(id);
                    }
                };
                if !self.scan(dump, budget, take) {
                    return false;
                }
                *left = None;
            }
            let end = found.len().min(done.saturating_add(budget));
            for id in &found[*done..end] {
                let told = self.take_out(*id, FlowRemovedReason::Delete, now);
                outcome.removed.extend(told);
            }
            outcome.changed += end - *done;
            *done = end;
            if end < found.len() {
                return false;
            }
            found.clear();
            *done = 0;
            let Some((table, cookie)) = self.next_orphan() else {
                return true;
            };
            let any = Match::any();
            let learned = Criteria {
                table,
                matching: &any,
                strict: None,
                cookie,
                cookie_mask: u64::MAX,
                out_port: port::ANY,
                out_group: ANY_GROUP,
            };
            *left = Some(self.begin_dump(&request(&learned)));
            // The search for a pair may take the whole budget.
            if budget != usize::MAX {
                return false;
            }
        }
    }

    /// Removes from the tables up to `budget` more of the rules that [`Pipeline::apply`] has only
    /// ended; returns true when none is left. Call it when their end has been published.
    pub fn settle(
        &mut self,
        sweep: &mut Sweep<'_>,
        budget: usize,
        outcome: &mut FlowModOutcome,
        now: Clock,
    ) -> bool {
        if !sweep.ends_first {
            return true;
        }
        let end = sweep.found.len().min(sweep.done.saturating_add(budget));
        for index in sweep.done..end {
            self.fetch(&sweep.found, index);
            let told = self.take_out_ended(sweep.found[index], FlowRemovedReason::Delete, now);
            outcome.removed.extend(told);
        }
        sweep.done = end;
        end == sweep.found.len()
    }

    /// Prefetches the memory of the rules behind this one.
    fn fetch(&self, found: &[RuleId], index: usize) {
        if let Some(id) = found.get(index + 2 * AHEAD) {
            self.store.fetch(*id);
        }
        if let Some(rule) = found.get(index + AHEAD).and_then(|id| self.store.get(*id)) {
            program::prefetch(std::ptr::from_ref(rule.handle.matching()));
        }
    }
}
