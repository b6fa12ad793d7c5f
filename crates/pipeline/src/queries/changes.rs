//! Changes of rules that flow monitors report.
//!
//! While anybody watches, each change of a visible rule is noted, in order. The pipeline's owner
//! takes the notes after each message and knows which connections they concern. Rolling back a
//! batch also removes its notes.
//!
//! A connection that does not read fast enough is told nothing for a while, and later what it
//! missed. So changes are noted on numbered pages, and a rule stores the pages on which it was
//! added and last changed: everything that has happened since a page began has its number or a
//! higher one.

use crate::state::criteria::Criteria;
use crate::state::options::Options;
use crate::state::store::Rule;
use crate::{Dump, Pipeline};
use openflow::action::Instruction;
use openflow::flow::FlowStatsRequest;
use openflow::monitor::{MonitorRequest, RuleUpdate, UpdateEvent};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

/// Maximum number of changes on a page.
const PAGE: u32 = 256;

/// A change of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleChange {
    /// The event, with the rule as it is after the change, or as it was when it was removed.
    pub update: RuleUpdate,
    /// The rule's previous instructions, if they changed.
    pub before: Option<Arc<[Instruction]>>,
    /// The rule's number, which identifies it while it exists.
    pub rule: u32,
    /// The page on which the change is noted; later changes have the same page or a higher one.
    pub page: u32,
    /// The page on which the rule's addition was noted.
    pub added_page: u32,
}

/// An existing rule, as a monitor is told of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SeenRule {
    /// The rule's number, which identifies it while it exists.
    pub rule: u32,
    /// The rule, as an initial update.
    pub update: RuleUpdate,
    /// The page on which the rule's addition was noted.
    pub added_page: u32,
    /// The page of its last change.
    pub changed_page: u32,
}

impl RuleChange {
    /// Returns whether a monitor's filters accept the change; its flags are not considered. As in
    /// Open vSwitch, a changed rule passes `out_port` by its old or its new instructions,
    /// `out_group` only by its new ones.
    pub fn concerns(&self, monitor: &MonitorRequest) -> bool {
        let update = &self.update;
        let criteria = criteria(monitor);
        (criteria.table == update.table || criteria.table == openflow::flow::TABLE_ALL)
            && update.matching.is_within(criteria.matching)
            && criteria.admits_group(&update.instructions)
            && (criteria.admits_port(&update.instructions)
                || self
                    .before
                    .as_ref()
                    .is_some_and(|before| criteria.admits_port(before)))
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

/// Converts a rule to the form in which monitors are told of it.
fn update_of(rule: &Rule, event: UpdateEvent, options: &Options) -> RuleUpdate {
    RuleUpdate {
        event,
        table: rule.table,
        priority: rule.priority.min(u16::MAX.into()) as u16,
        cookie: rule.cookie,
        idle_timeout: rule.idle_timeout,
        hard_timeout: rule.hard_timeout,
        matching: options.named(rule.matching()),
        instructions: Arc::clone(&rule.behaviour.instructions),
    }
}

impl Pipeline {
    /// Sets whether anybody watches: changes are noted only then. When watching stops, notes not
    /// yet taken are lost.
    pub fn watch(&mut self, watched: bool) {
        if watched != self.changes.is_some() {
            self.changes = watched.then(VecDeque::new);
        }
    }

    /// Removes and returns all noted changes, in order; none while a batch is open.
    pub fn take_changes(&mut self) -> Vec<RuleChange> {
        self.take_some_changes(usize::MAX)
    }

    /// Removes and returns up to `limit` noted changes, oldest first; none while a batch is open.
    pub fn take_some_changes(&mut self, limit: usize) -> Vec<RuleChange> {
        match &mut self.changes {
            Some(changes) if self.undo.is_none() => {
                changes.drain(..changes.len().min(limit)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Begins a page, on which no change is noted yet; returns its number.
    pub fn begin_page(&mut self) -> u32 {
        self.page = self.page.saturating_add(1);
        self.page
    }

    /// Begins a dump of the rules that a monitor's filters accept.
    pub fn begin_watch(&mut self, monitor: &MonitorRequest) -> Dump {
        // No rule matches an option that is not mapped.
        let matching = self.options.matching(&monitor.matching);
        let matching = matching.unwrap_or(Cow::Borrowed(&monitor.matching));
        self.begin_dump(&FlowStatsRequest {
            table: monitor.table,
            matching: matching.into_owned(),
            out_port: monitor.out_port,
            out_group: monitor.out_group,
            cookie: 0,
            cookie_mask: 0,
        })
    }

    /// Continues the dump, as [`Pipeline::continue_dump`] does.
    pub fn continue_watch(
        &mut self,
        rules: &mut Dump,
        budget: usize,
        mut take: impl FnMut(SeenRule),
    ) -> bool {
        self.scan(rules, budget, |pipeline, id, rule| {
            take(SeenRule {
                rule: id,
                update: update_of(rule, UpdateEvent::Initial, &pipeline.options),
                added_page: rule.added_page,
                changed_page: rule.changed_page,
            });
        })
    }

    /// Notes a change of a rule.
    pub(crate) fn note_change(
        &mut self,
        id: crate::state::store::RuleId,
        event: UpdateEvent,
        before: Option<Arc<[Instruction]>>,
    ) {
        let Some(changes) = &mut self.changes else {
            return;
        };
        let Some(rule) = self.store.get(id).filter(|rule| !rule.is_hidden()) else {
            return;
        };
        let removed = matches!(event, UpdateEvent::Removed(_));
        changes.push_back(RuleChange {
            update: update_of(rule, event, &self.options),
            before,
            rule: id,
            page: if removed {
                self.page
            } else {
                rule.changed_page
            },
            added_page: rule.added_page,
        });
        self.noted = self.noted.wrapping_add(1);
        if self.noted.is_multiple_of(PAGE) {
            self.page = self.page.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openflow::action::Action;
    use openflow::monitor::{MonitorCommand, MonitorFlags};
    use openflow::{flow, group, port};
    use packet::Match;

    fn list(port: u32, group: u32) -> Arc<[Instruction]> {
        let output = Action::Output { port, max_len: 0 };
        Arc::from([Instruction::ApplyActions(vec![
            output,
            Action::Group(group),
        ])])
    }

    fn change(before: Arc<[Instruction]>, after: Arc<[Instruction]>) -> RuleChange {
        RuleChange {
            update: RuleUpdate {
                event: UpdateEvent::Modified,
                table: 0,
                priority: 1,
                cookie: 0,
                idle_timeout: 0,
                hard_timeout: 0,
                matching: Match::any(),
                instructions: after,
            },
            before: Some(before),
            rule: 0,
            page: 0,
            added_page: 0,
        }
    }

    /// The filter by port accepts a rule before and after a change, that by group only after it.
    #[test]
    fn a_rule_leaves_a_monitors_filter() {
        let monitor = |out_port, out_group| MonitorRequest {
            id: 1,
            command: MonitorCommand::Add,
            flags: MonitorFlags::MODIFY,
            out_port,
            out_group,
            table: flow::TABLE_ALL,
            matching: Match::any(),
        };
        let leaves = change(list(2, 1), list(3, 9));
        let comes = change(list(3, 9), list(2, 1));
        let leaves_port = change(list(2, 1), list(3, 1));
        let cases = [
            (monitor(port::ANY, group::ANY), [true, true, true]),
            (monitor(2, group::ANY), [true, true, true]),
            (monitor(port::ANY, 1), [false, true, true]),
            (monitor(2, 1), [false, true, true]),
            (monitor(4, group::ANY), [false, false, false]),
            (monitor(port::ANY, 4), [false, false, false]),
        ];
        for (monitor, wanted) in cases {
            let got = [&leaves, &comes, &leaves_port].map(|change| change.concerns(&monitor));
            assert_eq!(got, wanted, "{monitor:?}");
        }
    }
}
