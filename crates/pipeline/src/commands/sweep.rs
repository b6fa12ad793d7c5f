//! Changes of many rules, a slice at a time.
//!
//! A non-strict modify or delete may mean a million rules. It goes on in four stages, each of which
//! takes a budget of rules:
//!
//! 1. [`Pipeline::seek`] looks for the rules that are meant. Nothing changes, and a command that
//!    fails does so here.
//! 2. [`Pipeline::apply`] prepares the change. Nobody sees it yet: rules carry the reserved epoch
//!    ([`Pipeline::change_in`]).
//! 3. The caller publishes: packets meet all of the change from one moment on.
//! 4. [`Pipeline::settle`] takes deleted rules out of the tables and says what is to be told of
//!    them, with what they had counted in the end.
//!
//! From the beginning of the first stage to the end of the last nobody else may change rules of
//! this pipeline, or look at them. In a batch there is no epoch for a sweep alone: all is done in
//! the second stage.

use crate::commands::flow_mod::{criteria, goes_back};
use crate::state::criteria::{ANY_GROUP, Criteria, NO_COOKIE};
use crate::state::store::RuleId;
use crate::{Clock, Dump, FlowModOutcome, Pipeline};
use openflow::error::Error;
use openflow::flow::{FlowMod, FlowModCommand, FlowRemovedReason, FlowStatsRequest, TABLE_ALL};
use openflow::port;
use packet::Match;
use program::counters::CounterId;
use program::epoch::Epoch;
use std::borrow::Cow;

/// How many rules ahead memory is asked for.
const AHEAD: usize = 8;

/// A modify or delete that has begun.
#[derive(Debug)]
pub struct Sweep<'c> {
    /// None for a flush.
    change: Option<Cow<'c, FlowMod>>,
    /// What is left to be looked at.
    left: Option<Dump>,
    /// Rules that are meant, in their order.
    found: Vec<RuleId>,
    /// New counters for them, where theirs restart.
    counters: Vec<CounterId>,
    /// Whether rules only end in the second stage and go in the fourth.
    ends_first: bool,
    /// How many of them have been checked, and how many the stage at hand has done.
    checked: usize,
    done: usize,
}

impl Sweep<'_> {
    /// The same, for as long as it takes.
    pub(crate) fn into_owned(self) -> Sweep<'static> {
        Sweep {
            change: self.change.map(|change| Cow::Owned(change.into_owned())),
            left: self.left,
            found: self.found,
            counters: self.counters,
            ends_first: self.ends_first,
            checked: self.checked,
            done: self.done,
        }
    }

    /// The rule to add when there is none to modify: where the version says so (1.0 section 4.6),
    /// unless a cookie was asked for.
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

    /// How many rules are meant, as far as they have been found.
    pub fn found(&self) -> usize {
        self.found.len()
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
    /// Says that changes from now on carry this epoch, which is reserved
    /// ([`program::epoch::Domain::reserve`]): until the call with None, after which
    /// [`Pipeline::commit`] and [`program::epoch::Domain::publish_reserved`] must follow at once.
    /// In between [`Pipeline::commit`] does nothing.
    pub fn change_in(&mut self, reserved: Option<Epoch>) {
        self.reserved = reserved;
        self.writer.change_in(reserved);
        self.group_writer.change_in(reserved);
    }

    /// Begins a modify or delete that [`Pipeline::begin_flow_mod`] has found right.
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
            left,
            found,
            counters: Vec::new(),
            ends_first: false,
            checked: 0,
            done: 0,
        }
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
        Sweep {
            change: None,
            left: Some(self.begin_dump(&request(&everything))),
            found: Vec::new(),
            counters: Vec::new(),
            ends_first: false,
            checked: 0,
            done: 0,
        }
    }

    /// Looks at up to `budget` more rules; true when all that are meant have been found. After an
    /// error nothing has changed, and the sweep has ended.
    pub fn seek(&mut self, sweep: &mut Sweep<'_>, budget: usize) -> Result<bool, Error> {
        let ended = match &mut sweep.left {
            None => true,
            Some(dump) => {
                let found = &mut sweep.found;
                self.scan(dump, budget, |_, id, _| found.push(id))
            }
        };
        if ended {
            sweep.left = None;
        }
        if let Err(error) = self.check_found(sweep) {
            for counter in sweep.counters.drain(..) {
                self.program.counters.free(counter);
            }
            return Err(error);
        }
        Ok(ended)
    }

    /// Whether what has been found may be changed so; takes the counters that it needs.
    fn check_found(&self, sweep: &mut Sweep<'_>) -> Result<(), Error> {
        if sweep.is_delete() {
            return Ok(());
        }
        let Some(change) = &sweep.change else {
            return Ok(());
        };
        let found = &sweep.found[sweep.checked..];
        // A command for all tables was checked as if it came from the first; a goto must lead
        // onwards from every rule's own.
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

    /// Lets a delete end its rules first and take them out when that has been published, where it
    /// may: not in a batch, and not where other rules go with them. Call it before the first
    /// [`Pipeline::apply`].
    pub fn end_first(&self, sweep: &mut Sweep<'_>) {
        sweep.ends_first =
            sweep.is_delete() && self.undo.is_none() && !self.learned.deletes_learned();
    }

    /// Changes up to `budget` more rules; true when all are. Workers see it after
    /// [`Pipeline::commit`] and the publication. An error is that of the rule that a modify adds
    /// when it finds none; nothing has changed then.
    pub fn apply(
        &mut self,
        sweep: &mut Sweep<'_>,
        budget: usize,
        outcome: &mut FlowModOutcome,
        now: Clock,
    ) -> Result<bool, Error> {
        if let Some(add) = sweep.to_add() {
            outcome.extend(self.add(&add, now)?);
            self.delete_orphans(outcome, now);
            return Ok(true);
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
                    let told = self.take_out(id, FlowRemovedReason::Delete, now);
                    outcome.removed.extend(told);
                }
            }
        }
        sweep.done = end;
        if end < sweep.found.len() {
            return Ok(false);
        }
        sweep.done = 0;
        if !sweep.ends_first {
            self.delete_orphans(outcome, now);
        }
        Ok(true)
    }

    /// Takes up to `budget` more rules out of the tables that [`Pipeline::apply`] has only ended;
    /// true when none is left. Call it when their end has been published.
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

    /// Asks for what the rules behind this one will need, so that it comes from memory meanwhile.
    fn fetch(&self, found: &[RuleId], index: usize) {
        if let Some(id) = found.get(index + 2 * AHEAD) {
            self.store.fetch(*id);
        }
        if let Some(rule) = found.get(index + AHEAD).and_then(|id| self.store.get(*id)) {
            program::prefetch(std::ptr::from_ref(rule.handle.matching()));
        }
    }
}
