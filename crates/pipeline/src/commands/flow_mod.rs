//! The five flow-mod commands.
//!
//! A command's effects are worked out before anything changes, so a command that fails leaves
//! everything as it was. Section numbers are those of OpenFlow 1.3.5 unless another version is
//! named.

use crate::commands::sweep::Sweep;
use crate::compile::Context;
use crate::state::behaviour::Behaviour;
use crate::state::criteria::{ANY_GROUP, Criteria, INTERNAL, NO_COOKIE};
use crate::state::store::{Rule, RuleId};
use crate::{Clock, Pipeline, check};
use openflow::Version;
use openflow::action::Instruction;
use openflow::error::Error;
use openflow::flow::{FlowMod, FlowModCommand, FlowRemoved, TABLE_ALL};
use openflow::monitor::UpdateEvent;
use openflow::port::{self};
use packet::key::at;
use packet::{Field, Match};
use program::counters::CounterId;
use program::rule::RuleSpec;
use program::table::RuleRef;
use std::borrow::Cow;
use std::sync::Arc;

/// The effects of a change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowModOutcome {
    /// Flow removed messages of the rules that want one (`OFPFF_SEND_FLOW_REM`), in the order of
    /// removal.
    pub removed: Vec<FlowRemoved>,
    /// Number of rules added, changed or removed; when 0 there is nothing to publish.
    pub changed: usize,
}

/// While the switch has as many rules as it may have, replacing rules is refused when more than
/// this many ended rules of the bridge wait to be unlinked.
const REPLACED_MAX: usize = 65_536;
impl FlowModOutcome {
    /// Appends the outcome of a later change.
    pub fn extend(&mut self, other: FlowModOutcome) {
        self.removed.extend(other.removed);
        self.changed += other.changed;
    }
}

/// The state of a flow mod that has begun.
#[derive(Debug)]
pub enum Begun<'c> {
    /// It is complete.
    Done(FlowModOutcome),
    /// It continues in slices.
    Long(Box<Sweep<'c>>),
}

impl Pipeline {
    /// Carries out a flow mod that came in this version of OpenFlow, or refuses it and changes
    /// nothing.
    ///
    /// Workers see the change after [`Pipeline::commit`] and the domain's next publication.
    /// `buffer_id` is left to the caller. Errors are those of section 7.5.4 that this version has;
    /// of several, the first found is returned: those of actions before those of tables.
    pub fn flow_mod(
        &mut self,
        change: &FlowMod,
        version: Version,
        now: Clock,
    ) -> Result<FlowModOutcome, Error> {
        match self.begin(change, version, now)? {
            Begun::Done(outcome) => Ok(outcome),
            Begun::Long(sweep) => self.sweep_at_once(*sweep, now),
        }
    }

    /// Carries out a flow mod like [`Pipeline::flow_mod`], but only begins a modify or delete that
    /// affects more than `budget` rules, or must search more, and a change by which learned rules
    /// go: see [`crate::commands::sweep`].
    pub fn begin_flow_mod(
        &mut self,
        change: &FlowMod,
        version: Version,
        now: Clock,
        budget: usize,
    ) -> Result<Begun<'static>, Error> {
        match self.begin(change, version, now)? {
            Begun::Done(outcome) => Ok(Begun::Done(outcome)),
            Begun::Long(sweep) => self.sweep_or_begin(*sweep, budget, now),
        }
    }

    /// Checks a flow mod and carries it out, unless it is of a kind that can affect many rules.
    fn begin<'c>(
        &mut self,
        change: &'c FlowMod,
        version: Version,
        now: Clock,
    ) -> Result<Begun<'c>, Error> {
        let delete = matches!(
            change.command,
            FlowModCommand::Delete | FlowModCommand::DeleteStrict
        );
        // From 1.1 on only deletes may name all tables (section 7.3.4.1). In 1.0 only Nicira's
        // extension names a table; without it, Open vSwitch adds to the first.
        if change.table == TABLE_ALL && !delete && version != Version::V1_0 {
            return Err(Error::BadTableId);
        }
        let settled = self.has_checked(change, version);
        let change = self.resolved(change, settled)?;
        if !delete && names_datapath_fields(&change.matching) {
            return Err(Error::Permission);
        }
        if !settled {
            check::instructions(
                &change.instructions,
                &change.matching,
                version,
                goto_from(change.table),
            )?;
            if !delete {
                self.check_fcf_of(&change.instructions)?;
                self.check_groups(&change.instructions)?;
                self.check_meters(&change.instructions)?;
            }
            if change.instructions.fit_all() {
                self.checked = Some((change.instructions.clone(), change.table, version));
            }
        }
        let command = change.command;
        match command {
            FlowModCommand::Add => {
                let outcome = self.add(&change, now)?;
                Ok(match self.begin_orphans(outcome) {
                    Ok(sweep) => Begun::Long(Box::new(sweep)),
                    Err(outcome) => Begun::Done(outcome),
                })
            }
            // The internal table has rules that nobody may delete. As in Open vSwitch, a delete is
            // refused only if it selects them, as one that matches everything does.
            FlowModCommand::Modify | FlowModCommand::ModifyStrict if change.table == INTERNAL => {
                Err(Error::Permission)
            }
            FlowModCommand::Delete
                if change.table == INTERNAL && change.matching.words().is_empty() =>
            {
                Err(Error::Permission)
            }
            _ => Ok(Begun::Long(Box::new(self.begin_sweep(change)))),
        }
    }

    /// Prefetches the memory that a flow mod will look at when `before` others have been carried
    /// out.
    pub fn expect(&self, change: &FlowMod, before: usize) {
        let table = if change.table == TABLE_ALL {
            0
        } else {
            change.table
        };
        let matching = &change.matching;
        self.store
            .expect(table, change.priority.into(), matching, before);
        if change.command == FlowModCommand::Add {
            self.writer.expect(table, matching);
        }
    }

    /// Adds a rule (section 6.4). A rule of the same match and priority is replaced without a flow
    /// removed message. Its counters continue unless `reset_counts` is set (the codec sets it for
    /// 1.0 and 1.1, where they always restart); its age restarts, but not the time since its last
    /// packet (Open vSwitch, in every version).
    pub(crate) fn add(&mut self, change: &FlowMod, now: Clock) -> Result<FlowModOutcome, Error> {
        let table = if change.table == TABLE_ALL {
            0
        } else {
            change.table
        };
        if table == INTERNAL {
            return Err(Error::Permission);
        }
        let priority = u32::from(change.priority);
        let old = self.store.find(table, priority, &change.matching);
        let full = self.store.table_len(table).0 >= self.limits[usize::from(table)];
        if old.is_none() {
            if change.flags.check_overlap && self.store.overlaps(table, priority, &change.matching)
            {
                return Err(Error::Overlap);
            }
            if full && !self.can_evict(table) || self.program.rules.is_full(1) {
                return Err(Error::TableFull);
            }
        } else if self.program.rules.is_full(1) && self.waiting() > REPLACED_MAX {
            // The replaced rule takes room until no worker needs it.
            return Err(Error::TableFull);
        }
        let kept = old
            .and_then(|id| self.store.get(id))
            .map(|rule| (rule.counter, rule.cookie, self.idle_since_ms(rule)));
        let counter = match kept {
            Some((counter, ..)) if !change.flags.reset_counts => counter,
            _ => self.program.counters.allocate().ok_or(Error::TableFull)?,
        };
        let cookie = match (change.cookie, kept) {
            (NO_COOKIE, Some((_, cookie, _))) => cookie,
            (NO_COOKIE, None) => 0,
            (cookie, _) => cookie,
        };
        let miss = priority == 0 && change.matching.words().is_empty();
        let rule = NewRule {
            table,
            matching: change.matching.clone(),
            priority,
            behaviour: self.behaviours.intern(
                change.instructions.shared(),
                miss,
                Context {
                    meters: &self.meters,
                    groups: &self.groups,
                    options: &self.options,
                },
            ),
            cookie,
            counter,
            created_ms: now.ms(),
            modified_ms: now.ms(),
            idle_base_ms: kept.map_or(now.ms(), |(.., idle_since_ms)| idle_since_ms),
            idle_timeout: change.idle_timeout,
            hard_timeout: change.hard_timeout,
            importance: change.importance,
            flags: change.flags,
        };
        let mut outcome = FlowModOutcome {
            removed: Vec::new(),
            changed: 1,
        };
        match old {
            Some(id) => self.put_in_place(id, rule, UpdateEvent::Added),
            None => {
                if full && let Some(told) = self.evict(table, now) {
                    outcome.removed.extend(told);
                    outcome.changed += 1;
                }
                self.put(rule);
            }
        }
        Ok(outcome)
    }

    /// Returns whether the last successful check was of these very instructions, this table and
    /// this version, with a result that does not depend on the match.
    fn has_checked(&self, change: &FlowMod, version: Version) -> bool {
        self.checked.as_ref().is_some_and(|(list, table, spoken)| {
            Arc::ptr_eq(list.shared(), change.instructions.shared())
                && (*table, *spoken) == (change.table, version)
        })
    }

    /// Returns the change with the lengths of tunnel options filled in. `plain`: its instructions
    /// name none.
    fn resolved<'c>(&self, change: &'c FlowMod, plain: bool) -> Result<Cow<'c, FlowMod>, Error> {
        let matching = self.options.matching(&change.matching)?;
        let instructions = if plain {
            Cow::Borrowed(&*change.instructions)
        } else {
            self.options.instructions(&change.instructions)?
        };
        if let (Cow::Borrowed(_), Cow::Borrowed(_)) = (&matching, &instructions) {
            return Ok(Cow::Borrowed(change));
        }
        Ok(Cow::Owned(FlowMod {
            matching: matching.into_owned(),
            instructions: instructions.into_owned().into(),
            ..change.clone()
        }))
    }

    /// Modifies a rule (section 6.4): instructions change; timeouts, flags, age and, unless
    /// `reset_counts` is set, counters stay.
    pub(crate) fn modify_one(
        &mut self,
        id: RuleId,
        change: &FlowMod,
        counter: Option<CounterId>,
        now: Clock,
    ) {
        let Some(old) = self.store.get(id) else {
            return;
        };
        let miss = old.priority == 0 && old.matching().words().is_empty();
        let new_cookie = change.modify_cookie && change.cookie != NO_COOKIE;
        let rule = NewRule {
            table: old.table,
            matching: old.matching().clone(),
            priority: old.priority,
            behaviour: self.behaviours.intern(
                change.instructions.shared(),
                miss,
                Context {
                    meters: &self.meters,
                    groups: &self.groups,
                    options: &self.options,
                },
            ),
            cookie: if new_cookie {
                change.cookie
            } else {
                old.cookie
            },
            counter: counter.unwrap_or(old.counter),
            created_ms: old.created_ms,
            modified_ms: now.ms(),
            // A new counter does not know the time of the last packet.
            idle_base_ms: match counter {
                Some(_) => self.idle_since_ms(old),
                None => old.idle_base_ms,
            },
            idle_timeout: old.idle_timeout,
            hard_timeout: old.hard_timeout,
            importance: old.importance,
            flags: old.flags,
        };
        self.put_in_place(id, rule, UpdateEvent::Modified);
    }

    /// Removes every visible rule, as when a bridge's controllers change. The caller decides
    /// whether to send the flow removed messages.
    pub fn flush(&mut self, now: Clock) -> FlowModOutcome {
        let mut outcome = FlowModOutcome::default();
        let mut sweep = self.begin_flush();
        let found = self.seek(&mut sweep, usize::MAX);
        let done = found.and_then(|_| self.apply(&mut sweep, usize::MAX, &mut outcome, now));
        debug_assert!(done.is_ok(), "{done:?}");
        outcome
    }

    /// Adds or replaces a rule that OpenFlow neither sees nor can change: its `priority` is above
    /// 65535, so that it beats all others. Errors are those of a flow mod; `OFPFMFC_EPERM` for a
    /// priority that is not hidden.
    pub fn add_hidden(
        &mut self,
        table: u8,
        priority: u32,
        matching: &Match,
        instructions: &[Instruction],
        now: Clock,
    ) -> Result<(), Error> {
        if priority <= u32::from(u16::MAX) || table == TABLE_ALL {
            return Err(Error::FlowModPermission);
        }
        check::instructions(instructions, matching, Version::V1_0, table)?;
        self.check_groups(instructions)?;
        self.check_meters(instructions)?;
        let old = self.store.find(table, priority, matching);
        let counter = match old.and_then(|id| self.store.get(id)) {
            Some(rule) => rule.counter,
            None => self.program.counters.allocate().ok_or(Error::TableFull)?,
        };
        let rule = NewRule {
            table,
            matching: matching.clone(),
            priority,
            behaviour: self.behaviours.intern(
                &instructions.into(),
                false,
                Context {
                    meters: &self.meters,
                    groups: &self.groups,
                    options: &self.options,
                },
            ),
            cookie: 0,
            counter,
            created_ms: now.ms(),
            modified_ms: now.ms(),
            idle_base_ms: now.ms(),
            idle_timeout: 0,
            hard_timeout: 0,
            importance: 0,
            flags: Default::default(),
        };
        match old {
            Some(id) => self.put_in_place(id, rule, UpdateEvent::Modified),
            None => self.put(rule),
        }
        Ok(())
    }

    /// Removes a hidden rule; returns whether there was one.
    pub fn remove_hidden(&mut self, table: u8, priority: u32, matching: &Match) -> bool {
        if priority <= u32::from(u16::MAX) {
            return false;
        }
        match self.store.find(table, priority, matching) {
            Some(id) => {
                self.unlink(id);
                true
            }
            None => false,
        }
    }

    /// Compiles a rule, which holds from the next publication.
    fn install(&mut self, mut rule: NewRule) -> Rule {
        let spec = RuleSpec {
            matching: std::mem::take(&mut rule.matching),
            priority: rule.priority,
            ops: Arc::clone(&rule.behaviour.ops),
            counter: rule.counter,
            cookie: rule.cookie,
        };
        let handle = self.writer.insert(rule.table, spec);
        rule.with(handle, self.page)
    }

    fn put(&mut self, rule: NewRule) {
        let rule = self.install(rule);
        let id = self.store.insert(rule);
        self.note_inserted(id);
        self.note_change(id, UpdateEvent::Added, None);
        self.arm(id);
    }

    /// Replaces a rule by one of the same table, match and priority. `event` is reported to
    /// monitors, except for a modification that changes neither instructions nor cookie.
    fn put_in_place(&mut self, id: RuleId, rule: NewRule, event: UpdateEvent) {
        self.disarm(id);
        let Some((table, old_handle)) = self.store.get(id).map(|old| (old.table, old.handle))
        else {
            return;
        };
        self.writer.remove(table, old_handle);
        let mut rule = self.install(rule);
        let counter = rule.counter;
        let mut told = true;
        let mut before = None;
        if let Some(old) = self.store.get(id) {
            let same = Arc::ptr_eq(&old.behaviour, &rule.behaviour);
            if event == UpdateEvent::Modified {
                rule.added_page = old.added_page;
                told = !same || old.cookie != rule.cookie;
                if !told {
                    rule.changed_page = old.changed_page;
                }
            }
            before = (!same).then(|| Arc::clone(&old.behaviour.instructions));
        }
        if let Some(old) = self.store.replace(id, rule) {
            if old.counter != counter {
                self.dead_counters.push(old.counter);
            }
            self.note_replaced(id, old);
        }
        if told {
            self.note_change(id, event, before);
        }
        self.arm(id);
    }

    /// Removes a rule; it holds until the next publication.
    pub(crate) fn unlink(&mut self, id: RuleId) {
        if let Some((table, handle)) = self.store.get(id).map(|rule| (rule.table, rule.handle)) {
            self.writer.end(table, handle);
            self.unlink_ended(id);
        }
    }

    /// Removes a rule that has been ended ([`program::table::BridgeWriter::end`]).
    pub(crate) fn unlink_ended(&mut self, id: RuleId) {
        self.disarm(id);
        if let Some((rule, next)) = self.store.remove(id) {
            self.writer.let_go(rule.table, rule.handle);
            self.dead_counters.push(rule.counter);
            self.note_removed(rule, next);
        }
    }
}

/// A rule before it is compiled.
struct NewRule {
    table: u8,
    matching: Match,
    priority: u32,
    behaviour: Arc<Behaviour>,
    cookie: u64,
    counter: CounterId,
    created_ms: u64,
    modified_ms: u64,
    idle_base_ms: u64,
    idle_timeout: u16,
    hard_timeout: u16,
    importance: u16,
    flags: openflow::flow::FlowFlags,
}

impl NewRule {
    fn with(self, handle: RuleRef, page: u32) -> Rule {
        Rule {
            behaviour: self.behaviour,
            cookie: self.cookie,
            created_ms: self.created_ms,
            modified_ms: self.modified_ms,
            idle_base_ms: self.idle_base_ms,
            handle,
            counter: self.counter,
            priority: self.priority,
            timer: 0,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            importance: self.importance,
            flags: self.flags,
            table: self.table,
            serial: 0,
            added_page: page,
            changed_page: page,
        }
    }
}

/// Returns whether a match names fields that only Open vSwitch's own rules may match: a datapath
/// hash or a recirculation id.
fn names_datapath_fields(matching: &Match) -> bool {
    matching.word_set().contains(at::DP_HASH / 8)
        && (!matching.get(Field::DpHash).1.is_zero() || !matching.get(Field::RecircId).0.is_zero())
}

pub(crate) fn criteria(change: &FlowMod, delete: bool) -> Criteria<'_> {
    let strict = matches!(
        change.command,
        FlowModCommand::ModifyStrict | FlowModCommand::DeleteStrict
    );
    Criteria {
        table: change.table,
        matching: &change.matching,
        strict: strict.then_some(change.priority),
        cookie: change.cookie_filter,
        cookie_mask: change.cookie_mask,
        // Only deletes are restricted by these (section 6.4).
        out_port: if delete { change.out_port } else { port::ANY },
        out_group: if delete { change.out_group } else { ANY_GROUP },
    }
}

/// Returns the table against which a `goto_table` in a flow mod for `table` is checked.
fn goto_from(table: u8) -> u8 {
    if table == TABLE_ALL { 0 } else { table }
}

pub(crate) fn goes_back(instructions: &[Instruction], table: u8) -> bool {
    instructions
        .iter()
        .any(|instruction| matches!(instruction, Instruction::GotoTable(next) if *next <= table))
}
