//! Dumps of many rules, a slice at a time.
//!
//! A dump walks the tables' lists with a cursor that the store knows: when the rule at the cursor
//! is removed, the cursor moves on. So every rule that exists from the beginning of the dump to its
//! end is reported once, whatever changes between the slices. A rule that is added meanwhile may be
//! reported or not.

use crate::state::criteria::{Criteria, INTERNAL};
use crate::state::store::{Cursor, Rule, RuleId};
use crate::{Clock, Pipeline, RuleView};
use openflow::flow::{FlowStats, FlowStatsRequest, TABLE_ALL};
use openflow::stats::Aggregate;

/// A dump in progress. Dropping it ends it.
#[derive(Debug)]
pub struct Dump {
    request: FlowStatsRequest,
    /// The current table, and the last one.
    table: u8,
    last: u8,
    /// Position in the table; None before its beginning.
    cursor: Option<Cursor>,
    /// Remaining rules of those that an index has given instead. Numbers may have been reused
    /// meanwhile: rules with reused numbers are treated like newly added ones.
    few: Option<std::vec::IntoIter<RuleId>>,
    /// How many more rules of the table to look at. It begins with the table's size, so that rules
    /// which are added all the time do not keep the dump from ending.
    left: u32,
}

/// A rule's counters at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// The rule's number; another rule may have it later.
    pub id: u32,
    /// With the table, distinguishes the rule from earlier ones of the same number.
    pub serial: u64,
    /// Its table.
    pub table: u8,
    /// Its packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

pub(crate) fn criteria(request: &FlowStatsRequest) -> Criteria<'_> {
    Criteria {
        table: request.table,
        matching: &request.matching,
        strict: None,
        cookie: request.cookie,
        cookie_mask: request.cookie_mask,
        out_port: request.out_port,
        out_group: request.out_group,
    }
}

impl Pipeline {
    /// Begins a dump of the rules that a request asks for.
    pub fn begin_dump(&mut self, request: &FlowStatsRequest) -> Dump {
        self.store.prepare_for(&criteria(request));
        let (table, last) = match request.table {
            TABLE_ALL => (0, INTERNAL - 1),
            table => (table, table),
        };
        Dump {
            request: request.clone(),
            table,
            last,
            cursor: None,
            few: None,
            left: 0,
        }
    }

    /// Continues a dump, by ascending table and oldest position: looks at up to `budget` rules and
    /// passes the selected ones to `take`. Returns true at the end.
    pub fn continue_dump(
        &mut self,
        dump: &mut Dump,
        now: Clock,
        budget: usize,
        mut take: impl FnMut(FlowStats),
    ) -> bool {
        self.scan(dump, budget, |pipeline, _, rule| {
            take(pipeline.stats_of(rule, now));
        })
    }

    /// Continues a dump like [`Pipeline::continue_dump`], adding up the counters of the selected
    /// rules.
    pub fn continue_aggregate(
        &mut self,
        dump: &mut Dump,
        budget: usize,
        sums: &mut Aggregate,
    ) -> bool {
        self.scan(dump, budget, |pipeline, _, rule| {
            pipeline.add_counters(rule, sums);
        })
    }

    /// Continues a dump like [`Pipeline::continue_dump`], passing only the counters of each rule:
    /// for callers that look for a few among many.
    pub fn continue_counts(
        &mut self,
        dump: &mut Dump,
        budget: usize,
        mut take: impl FnMut(RuleCount),
    ) -> bool {
        self.scan(dump, budget, |pipeline, id, rule| {
            let totals = pipeline.program.counters.read(rule.counter);
            take(RuleCount {
                id,
                serial: rule.serial,
                table: rule.table,
                packets: totals.packets,
                bytes: totals.bytes,
            });
        })
    }

    /// Returns all of a counted rule, if it still exists.
    pub fn counted(&self, count: &RuleCount, now: Clock) -> Option<RuleView> {
        let rule = self.store.get(count.id)?;
        let same = rule.serial == count.serial && rule.table == count.table;
        same.then(|| RuleView {
            priority: rule.priority,
            stats: self.stats_of(rule, now),
        })
    }

    pub(crate) fn scan(
        &mut self,
        dump: &mut Dump,
        budget: usize,
        mut take: impl FnMut(&Pipeline, RuleId, &Rule),
    ) -> bool {
        let criteria = criteria(&dump.request);
        let meant =
            |rule: &Rule| rule.matching().is_within(criteria.matching) && criteria.admits(rule);
        let mut budget = budget;
        loop {
            self.store
                .index_more(dump.table, &criteria, budget.saturating_mul(2));
            if dump.cursor.is_none() && dump.few.is_none() {
                if let Some(few) = self.store.indexed(dump.table, &criteria) {
                    dump.few = Some(few.into_iter());
                } else if let (rules, hidden) = self.store.table_len(dump.table)
                    && rules + hidden > 0
                {
                    dump.left = rules + hidden;
                    dump.cursor = Some(self.store.cursor(dump.table));
                }
            }
            if let Some(few) = &mut dump.few {
                while few.len() > 0 {
                    if budget == 0 {
                        return false;
                    }
                    budget -= 1;
                    if let Some((id, rule)) =
                        few.next().and_then(|id| Some((id, self.store.get(id)?)))
                        && meant(rule)
                    {
                        take(self, id, rule);
                    }
                }
            }
            if let Some(cursor) = &dump.cursor {
                while dump.left > 0 {
                    if budget == 0 {
                        return false;
                    }
                    let Some((id, rule)) = self.store.advance(cursor) else {
                        break;
                    };
                    budget -= 1;
                    dump.left -= 1;
                    if meant(rule) {
                        take(self, id, rule);
                    }
                }
            }
            (dump.cursor, dump.few) = (None, None);
            if dump.table == dump.last {
                return true;
            }
            dump.table += 1;
            if budget == 0 {
                return false;
            }
        }
    }
}
