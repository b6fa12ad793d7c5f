//! When rules expire.
//!
//! A heap holds, for each rule with a timeout, the earliest moment at which it could go. When that
//! comes the rule is looked at: its counter may say that packets came meanwhile, then it is put
//! back with a later moment. So a rule costs nothing between its deadlines, however many
//! rules there are and however busy it is. An entry of a rule that changed or went is recognised by
//! its ticket and thrown away when it comes up; the heap is cleaned when most of its entries are
//! such.

use crate::state::store::RuleId;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Entries below which cleaning is not worth it.
const SMALL: usize = 1024;

#[derive(Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(u64, RuleId, u32)>>,
    ticket: u32,
    /// Rules whose entry is in force.
    armed: usize,
}

impl Timers {
    /// Puts a rule in; the ticket goes into the rule.
    pub fn arm(&mut self, deadline_ms: u64, id: RuleId) -> u32 {
        self.ticket = self.ticket.wrapping_add(1).max(1);
        self.heap.push(Reverse((deadline_ms, id, self.ticket)));
        self.armed += 1;
        self.ticket
    }

    /// Says that a rule's entry is no longer in force.
    pub fn disarm(&mut self) {
        self.armed -= 1;
    }

    /// Takes the next entry that is due; its rule's entry is in force if the rule still holds the
    /// ticket.
    pub fn due(&mut self, now_ms: u64) -> Option<(RuleId, u32)> {
        let Reverse((deadline, id, ticket)) = *self.heap.peek()?;
        if deadline > now_ms {
            return None;
        }
        self.heap.pop();
        Some((id, ticket))
    }

    /// The earliest moment at which an entry is due. It may be that of a rule that went, so early
    /// but never late.
    pub fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((deadline, ..))| *deadline)
    }

    /// Whether most entries are of rules that changed or went.
    pub fn wants_cleaning(&self) -> bool {
        self.heap.len() > SMALL && self.heap.len() > 2 * self.armed
    }

    /// Throws away the entries that are not in force.
    pub fn clean(&mut self, in_force: impl Fn(RuleId, u32) -> bool) {
        self.heap
            .retain(|Reverse((_, id, ticket))| in_force(*id, *ticket));
    }
}
