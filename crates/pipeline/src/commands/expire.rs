//! Removal of rules whose timeouts have passed.

use crate::commands::flow_mod::{Begun, FlowModOutcome};
use crate::state::store::{Rule, RuleId};
use crate::{Clock, Pipeline};
use openflow::flow::{FlowRemoved, FlowRemovedReason};
use openflow::monitor::UpdateEvent;

/// Maximum number of rules that one call of [`Pipeline::expire`] looks at: some milliseconds of
/// work.
pub const EXPIRE_MAX: usize = 2048;

impl Pipeline {
    /// Returns the earliest time at which [`Pipeline::expire`] may have something to do; None when
    /// no rule has a timeout.
    pub fn next_deadline(&self) -> Option<Clock> {
        self.timers.next().map(Clock::from_ms)
    }

    /// Removes expired rules, looking at up to [`EXPIRE_MAX`] rules. Returns the flow removed
    /// messages of those that want one (`OFPFF_SEND_FLOW_REM`) and the number of all removed. What
    /// is left over keeps [`Pipeline::next_deadline`] in the past: publish, let others have their
    /// turn, and call it again.
    pub fn expire(&mut self, now: Clock) -> FlowModOutcome {
        let mut outcome = self.expire_some(now);
        self.delete_orphans(&mut outcome, now);
        outcome
    }

    /// Removes expired rules like [`Pipeline::expire`], but only begins to delete the rules that
    /// these have learned: see [`crate::commands::sweep`].
    pub fn begin_expire(&mut self, now: Clock) -> Begun<'static> {
        let outcome = self.expire_some(now);
        match self.begin_orphans(outcome) {
            Ok(sweep) => Begun::Long(Box::new(sweep)),
            Err(outcome) => Begun::Done(outcome),
        }
    }

    fn expire_some(&mut self, now: Clock) -> FlowModOutcome {
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
        outcome
    }

    /// Returns the time, in milliseconds, at which each of a rule's timeouts has passed in full.
    /// The hard timeout comes first, because it wins a tie.
    pub(crate) fn deadlines(
        &self,
        rule: &Rule,
    ) -> smallvec::SmallVec<[(u64, FlowRemovedReason); 2]> {
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

    /// Returns the time in milliseconds of a rule's last packet, or from which its idle timeout
    /// counts.
    pub(crate) fn idle_since_ms(&self, rule: &Rule) -> u64 {
        let used = self.program.counters.read(rule.counter).used_ms;
        used.max(rule.idle_base_ms)
    }

    /// Puts a rule's timeouts in force. Its counter is not read: an entry that is too early
    /// corrects itself when it is due.
    pub(crate) fn arm(&mut self, id: RuleId) {
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
    pub(crate) fn disarm(&mut self, id: RuleId) {
        self.spare_from_eviction(id);
        if let Some(rule) = self.store.get_mut(id).filter(|rule| rule.timer != 0) {
            rule.timer = 0;
            self.timers.disarm();
        }
    }

    /// Removes a rule; returns its flow removed message, if it wants one.
    pub(crate) fn take_out(
        &mut self,
        id: RuleId,
        reason: FlowRemovedReason,
        now: Clock,
    ) -> Option<FlowRemoved> {
        let rule = self.store.get(id)?;
        self.writer.end(rule.table, rule.handle);
        self.take_out_ended(id, reason, now)
    }

    /// Removes a rule that the writer has already ended; returns its flow removed message, if it
    /// wants one.
    pub(crate) fn take_out_ended(
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
