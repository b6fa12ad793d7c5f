//! What changes are told to those who monitor rules.
//!
//! While somebody watches, each change of a visible rule leaves a note, in order. Whoever owns the pipeline takes the notes after each message
//! and knows which connections they concern. A batch that is rolled back takes its notes with it.
//!
//! A connection that does not read fast enough is told nothing for a while, and later what it missed. Therefore a rule knows how many such
//! pauses had begun when it was added and when it was changed: what happened since a pause is what has its number or a higher one.

use crate::Pipeline;
use crate::flow_mod::Criteria;
use crate::store::Rule;
use openflow::action::Instruction;
use openflow::monitor::{MonitorRequest, RuleUpdate, UpdateEvent};
use std::sync::Arc;

/// A change of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleChange {
    /// What happened, and the rule afterwards, or as it was when it went.
    pub update: RuleUpdate,
    /// What the rule did before, where that changed.
    pub before: Option<Arc<[Instruction]>>,
    /// How many pauses had begun when the rule was added; see [`Pipeline::begin_pause`].
    pub added_pause: u32,
}

impl RuleChange {
    /// Whether a monitor's filters let the change through; its flags are not looked at.
    pub fn concerns(&self, monitor: &MonitorRequest) -> bool {
        let update = &self.update;
        let criteria = criteria(monitor);
        (criteria.table == update.table || criteria.table == openflow::flow::TABLE_ALL)
            && update.matching.is_within(criteria.matching)
            && (criteria.admits_use(&update.instructions)
                || self
                    .before
                    .as_ref()
                    .is_some_and(|before| criteria.admits_use(before)))
    }
}

fn criteria(monitor: &MonitorRequest) -> Criteria<'_> {
    Criteria {
        table: monitor.table,
        matching: &monitor.matching,
        strict: None,
        cookie: 0,
        cookie_mask: 0,
        out_port: monitor.out_port,
        out_group: monitor.out_group,
    }
}

/// A rule as a monitor is told of it.
fn update_of(rule: &Rule, event: UpdateEvent) -> RuleUpdate {
    RuleUpdate {
        event,
        table: rule.table,
        priority: rule.priority.min(u16::MAX.into()) as u16,
        cookie: rule.cookie,
        idle_timeout: rule.idle_timeout,
        hard_timeout: rule.hard_timeout,
        matching: rule.matching().clone(),
        instructions: Arc::clone(&rule.behaviour.instructions),
    }
}

impl Pipeline {
    /// Says whether anybody watches: only then changes are noted. What was noted and not taken is lost when nobody does.
    pub fn watch(&mut self, watched: bool) {
        if watched != self.changes.is_some() {
            self.changes = watched.then(Vec::new);
        }
    }

    /// The changes since the last call, in order; none while a batch is open.
    pub fn take_changes(&mut self) -> Vec<RuleChange> {
        match &mut self.changes {
            Some(changes) if self.undo.is_none() => std::mem::take(changes),
            _ => Vec::new(),
        }
    }

    /// Begins a pause for one watcher; its number, which tells the rules that change from now on.
    pub fn begin_pause(&mut self) -> u32 {
        self.pauses = self.pauses.saturating_add(1);
        self.pauses
    }

    /// The rules that a monitor's filters let through, as its initial updates tell them.
    pub fn monitored(&self, monitor: &MonitorRequest) -> Vec<RuleUpdate> {
        let criteria = criteria(monitor);
        self.within(&criteria)
            .map(|(_, rule)| update_of(rule, UpdateEvent::Initial))
            .collect()
    }

    /// What has happened since a pause began to the rules that a monitor's filters let through and that are still there: what was added, and
    /// what was changed.
    pub fn missed(&self, monitor: &MonitorRequest, pause: u32) -> Vec<RuleUpdate> {
        let criteria = criteria(monitor);
        self.within(&criteria)
            .filter(|(_, rule)| rule.changed_pause >= pause)
            .map(|(_, rule)| {
                let event = if rule.added_pause >= pause {
                    UpdateEvent::Added
                } else {
                    UpdateEvent::Modified
                };
                update_of(rule, event)
            })
            .collect()
    }

    /// Notes what happened to a rule.
    pub(crate) fn note_change(
        &mut self,
        id: crate::store::RuleId,
        event: UpdateEvent,
        before: Option<Arc<[Instruction]>>,
    ) {
        let Some(changes) = &mut self.changes else {
            return;
        };
        if let Some(rule) = self.store.get(id).filter(|rule| !rule.is_hidden()) {
            changes.push(RuleChange {
                update: update_of(rule, event),
                before,
                added_pause: rule.added_pause,
            });
        }
    }
}
