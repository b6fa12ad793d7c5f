//! Batches: several changes that are all kept or all undone.
//!
//! While a batch is open, each change notes how to undo it. Rolling back undoes the changes newest
//! first, so every rule finds its slot and its neighbours as it left them. Nothing of a batch is
//! published before it ends.

use crate::Pipeline;
use crate::state::groups::Entry as GroupEntry;
use crate::state::store::{Rule, RuleId};
use program::counters::CounterId;
use program::rule::RuleSpec;
use std::collections::VecDeque;
use std::sync::Arc;

/// How to undo one change.
pub(crate) enum Step {
    /// A rule was added.
    Inserted(RuleId),
    /// A rule was removed; with the rule that followed it.
    Removed(Box<Rule>, Option<RuleId>),
    /// This rule was replaced.
    Replaced(RuleId, Box<Rule>),
    /// A group was added, or replaced this one.
    GroupPut(u32, Option<Box<GroupEntry>>),
    /// A group was removed.
    GroupRemoved(Box<GroupEntry>),
}

/// How to undo a batch.
#[derive(Default)]
pub(crate) struct Undo {
    steps: Vec<Step>,
    /// Counters that had died before the batch.
    dead_before: Vec<CounterId>,
    /// Number of changes noted before the batch.
    changes_before: usize,
    /// Positions of the dumps before the batch.
    cursors_before: Vec<(std::sync::Weak<std::sync::atomic::AtomicU32>, RuleId)>,
}

impl Pipeline {
    /// Begins a batch; an open batch continues. Do not commit before [`Pipeline::end_batch`] or
    /// [`Pipeline::roll_back`].
    pub fn begin_batch(&mut self) {
        if self.undo.is_none() {
            self.undo = Some(Undo {
                steps: Vec::new(),
                dead_before: std::mem::take(&mut self.dead_counters),
                cursors_before: self.store.save_cursors(),
                changes_before: self.changes.as_ref().map_or(0, VecDeque::len),
            });
        }
    }

    /// Ends the batch and keeps its changes.
    pub fn end_batch(&mut self) {
        self.keep_batch();
        self.tidy(usize::MAX);
    }

    /// Ends the batch and keeps its changes; replaced rules are freed later, by [`Pipeline::tidy`].
    pub fn keep_batch(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        self.dead_counters.extend(undo.dead_before);
        if self.waste.is_empty() {
            self.waste = undo.steps;
        } else {
            self.waste.extend(undo.steps);
        }
    }

    /// Frees up to `budget` of the rules that batches have replaced; returns true when none is
    /// left.
    pub fn tidy(&mut self, budget: usize) -> bool {
        for _ in 0..budget {
            match self.waste.pop() {
                Some(Step::Removed(rule, _) | Step::Replaced(_, rule)) => {
                    self.behaviours.release(rule.behaviour);
                }
                Some(Step::Inserted(_) | Step::GroupPut(..) | Step::GroupRemoved(_)) => {}
                None => {
                    self.waste = Vec::new();
                    return true;
                }
            }
        }
        self.waste.is_empty()
    }

    /// Ends the batch and undoes its changes: rules, counters, ages and order are as they were.
    pub fn roll_back(&mut self) {
        self.roll_back_some(usize::MAX);
    }

    /// Ends the batch and undoes up to `budget` of its changes; returns true when all are undone.
    /// Until then call it again; nothing else may change.
    pub fn roll_back_some(&mut self, budget: usize) -> bool {
        if let Some(mut undo) = self.undo.take() {
            if let Some(changes) = &mut self.changes {
                changes.truncate(undo.changes_before);
            }
            // Counters that died in the batch live again; new ones of its rules die.
            self.dead_counters = std::mem::take(&mut undo.dead_before);
            self.undoing = Some(undo);
        }
        let Some(mut undo) = self.undoing.take() else {
            return true;
        };
        for _ in 0..budget {
            let Some(step) = undo.steps.pop() else {
                break;
            };
            match step {
                Step::GroupPut(number, old) => self.undo_put_group(number, old),
                Step::GroupRemoved(entry) => self.undo_remove_group(*entry),
                Step::Inserted(id) => {
                    self.disarm(id);
                    if let Some((rule, _)) = self.store.remove(id) {
                        self.rule_went(&rule);
                        self.writer.remove(rule.table, rule.handle);
                        self.dead_counters.push(rule.counter);
                        self.behaviours.release(rule.behaviour);
                    }
                }
                Step::Removed(mut rule, next) => {
                    self.compile_again(&mut rule);
                    let id = self.store.insert_before(*rule, next);
                    self.rule_came(id, None);
                    self.arm(id);
                }
                Step::Replaced(id, mut rule) => {
                    self.disarm(id);
                    if let Some((table, handle)) =
                        self.store.get(id).map(|rule| (rule.table, rule.handle))
                    {
                        self.writer.remove(table, handle);
                    }
                    self.compile_again(&mut rule);
                    let counter = rule.counter;
                    if let Some(new) = self.store.replace(id, *rule) {
                        self.rule_came(id, Some(&new));
                        self.rule_went(&new);
                        if new.counter != counter {
                            self.dead_counters.push(new.counter);
                        }
                        self.behaviours.release(new.behaviour);
                    }
                    self.arm(id);
                }
            }
        }
        if !undo.steps.is_empty() {
            self.undoing = Some(undo);
            return false;
        }
        self.store.restore_cursors(undo.cursors_before);
        self.forget_orphans();
        true
    }

    /// Compiles a removed rule again; the removal must not have been published.
    fn compile_again(&mut self, rule: &mut Rule) {
        let spec = RuleSpec {
            matching: rule.matching().clone(),
            priority: rule.priority,
            ops: Arc::clone(&rule.behaviour.ops),
            counter: rule.counter,
            cookie: rule.cookie,
        };
        rule.handle = self.writer.insert(rule.table, spec);
        rule.timer = 0;
    }

    /// Notes how to undo a change of groups.
    pub(crate) fn note(&mut self, step: Step) {
        if let Some(undo) = &mut self.undo {
            undo.steps.push(step);
        }
    }

    pub(crate) fn note_inserted(&mut self, id: RuleId) {
        self.rule_came(id, None);
        if let Some(undo) = &mut self.undo {
            undo.steps.push(Step::Inserted(id));
        }
    }

    pub(crate) fn note_removed(&mut self, rule: Rule, next: Option<RuleId>) {
        self.rule_went(&rule);
        match &mut self.undo {
            Some(undo) => undo.steps.push(Step::Removed(Box::new(rule), next)),
            None => self.behaviours.release(rule.behaviour),
        }
    }

    pub(crate) fn note_replaced(&mut self, id: RuleId, old: Rule) {
        self.rule_came(id, Some(&old));
        self.rule_went(&old);
        match &mut self.undo {
            Some(undo) => undo.steps.push(Step::Replaced(id, Box::new(old))),
            None => self.behaviours.release(old.behaviour),
        }
    }
}
