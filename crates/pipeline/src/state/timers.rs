//! Timers of rules' timeouts.
//!
//! A heap holds, for each rule with a timeout, the earliest time at which it could expire. At that
//! time the rule's counter is read; if packets have come meanwhile, the rule is put back with a
//! later time. So a rule costs nothing between its deadlines, however many rules there are and
//! however much traffic they have. An entry of a rule that was changed or removed is recognised by
//! its ticket and discarded when it is due; the heap is cleaned when most of its entries are of
//! this kind.

use crate::state::store::RuleId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Smaller heaps are not cleaned.
const SMALL: usize = 1024;

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, RuleId, u32)>>,
    ticket: u32,
    /// Rules whose entry is in force.
    armed: usize,
}

impl Timers {
    /// Adds an entry; returns the ticket to store in the rule.
    pub fn arm(&mut self, deadline_ms: u64, id: RuleId) -> u32 {
        self.ticket = self.ticket.wrapping_add(1).max(1);
        self.heap.push(Reverse((deadline_ms, id, self.ticket)));
        self.armed += 1;
        self.ticket
    }

    /// Records that a rule's entry is no longer in force.
    pub fn disarm(&mut self) {
        self.armed -= 1;
    }

    /// Removes and returns the next entry that is due; it is in force if the rule still holds the
    /// ticket.
    pub fn due(&mut self, now_ms: u64) -> Option<(RuleId, u32)> {
        let Reverse((deadline, id, ticket)) = *self.heap.peek()?;
        if deadline > now_ms {
            return None;
        }
        self.heap.pop();
        Some((id, ticket))
    }

    /// Returns the earliest time at which an entry is due. It may be of a removed rule: the time
    /// can be too early, but never too late.
    pub fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((deadline, ..))| *deadline)
    }

    /// Returns whether most entries are of changed or removed rules.
    pub fn wants_cleaning(&self) -> bool {
        self.heap.len() > SMALL && self.heap.len() > 2 * self.armed
    }

    /// Discards the entries that are not in force.
    pub fn clean(&mut self, in_force: impl Fn(RuleId, u32) -> bool) {
        self.heap
            .retain(|Reverse((_, id, ticket))| in_force(*id, *ticket));
    }
}
