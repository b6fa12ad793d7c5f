//! Statistics and features.

use crate::queries::dump::criteria;
use crate::state::criteria::INTERNAL;
use crate::state::store::Rule;
use crate::{Clock, Pipeline, check};
use openflow::error::Error;
use openflow::flow::{FlowStats, FlowStatsRequest};
use openflow::stats::{
    ActionKinds, Aggregate, InstructionKinds, RuleKinds, TableFeatures, TableStats,
};
use packet::Field;
use packet::fields::{FIELDS, Maskable};
use std::sync::Arc;

/// Table size that is reported when no limit is set, as in Open vSwitch. More rules fit.
const USUAL_LIMIT: u32 = 1_000_000;

/// A rule as `bridge/dump-flows` shows it; hidden rules are included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleView {
    /// Priority; above 65535 for hidden rules.
    pub priority: u32,
    /// Everything else. `priority` in here is cut to 16 bits.
    pub stats: FlowStats,
}

impl Pipeline {
    /// Returns a request with the lengths of tunnel options filled in, for the queries below.
    /// Refused when it names an option that is not in the map (`NXFMFC_INVALID_TLV_FIELD`), or
    /// bytes beyond its length (`OFPBMC_BAD_LEN`).
    pub fn resolve_request(&self, request: &FlowStatsRequest) -> Result<FlowStatsRequest, Error> {
        let matching = self.options.matching(&request.matching)?.into_owned();
        Ok(FlowStatsRequest {
            matching,
            ..request.clone()
        })
    }

    /// Returns the rules that a request selects, by ascending table and oldest position.
    pub fn flow_stats(&self, request: &FlowStatsRequest, now: Clock) -> Vec<FlowStats> {
        let criteria = criteria(request);
        self.store
            .within(&criteria)
            .map(|(_, rule)| self.stats_of(rule, now))
            .collect()
    }

    /// Passes the rules that a request selects to `take`, one by one: for dumps too large to be
    /// held in memory twice.
    pub fn each_flow(
        &self,
        request: &FlowStatsRequest,
        now: Clock,
        mut take: impl FnMut(FlowStats),
    ) {
        let criteria = criteria(request);
        self.store
            .within(&criteria)
            .for_each(|(_, rule)| take(self.stats_of(rule, now)));
    }

    /// Returns the sums over the rules that a request selects.
    pub fn aggregate(&self, request: &FlowStatsRequest) -> Aggregate {
        let criteria = criteria(request);
        let mut sums = Aggregate::default();
        self.store
            .within(&criteria)
            .for_each(|(_, rule)| self.add_counters(rule, &mut sums));
        sums
    }

    /// Adds a rule's counters.
    pub(crate) fn add_counters(&self, rule: &Rule, sums: &mut Aggregate) {
        let totals = self.program.counters.read(rule.counter);
        sums.packets = sums.packets.wrapping_add(totals.packets);
        sums.bytes = sums.bytes.wrapping_add(totals.bytes);
        sums.flows = sums.flows.saturating_add(1);
    }

    /// Returns all rules, hidden ones included.
    pub fn dump_all(&self, now: Clock) -> impl Iterator<Item = RuleView> + '_ {
        self.store
            .tables()
            .flat_map(|table| self.store.table(table))
            .map(move |(_, rule)| RuleView {
                priority: rule.priority,
                stats: self.stats_of(rule, now),
            })
    }

    /// Returns the number of visible rules.
    pub fn rule_count(&self) -> usize {
        (0..=INTERNAL)
            .map(|table| self.store.table_len(table).0 as usize)
            .sum()
    }

    /// Returns the number of hidden rules.
    pub fn hidden_count(&self) -> usize {
        self.store.len() - self.rule_count()
    }

    /// Describes how a table looks its rules up, and what that costs.
    pub fn describe(&self, table: u8) -> program::table::Description {
        self.writer.describe(table)
    }

    /// Returns the number of different instruction lists.
    pub fn behaviour_count(&self) -> usize {
        self.behaviours.len()
    }

    /// Returns the counters of tables 0 to 253, which have no names of their own.
    pub fn table_stats(&self) -> Vec<TableStats> {
        (0..INTERNAL)
            .map(|table| {
                let (lookups, matched) = self.writer.bridge().table_counters(table);
                TableStats {
                    table,
                    name: String::new(),
                    max_entries: self.max_entries(table),
                    instructions: instructions(table) & !InstructionKinds::METER,
                    config: 0,
                    active: self.store.table_len(table).0,
                    lookups,
                    matched,
                }
            })
            .collect()
    }

    /// Returns the features of tables 0 to 253, which have no names of their own.
    pub fn table_features(&self) -> Vec<TableFeatures> {
        (0..INTERNAL)
            .map(|table| table_features(table, self.max_entries(table)))
            .collect()
    }

    fn max_entries(&self, table: u8) -> u32 {
        match self.limits.get(usize::from(table)) {
            Some(limit) if *limit != u32::MAX => *limit,
            _ => USUAL_LIMIT,
        }
    }

    /// Returns a rule's statistics at `now`.
    pub(crate) fn stats_of(&self, rule: &Rule, now: Clock) -> FlowStats {
        let totals = self.program.counters.read(rule.counter);
        let since = |ms: u64| now.ms().saturating_sub(ms);
        let seconds = |ms: u64| u32::try_from(since(ms) / 1000).unwrap_or(u32::MAX);
        FlowStats {
            table: rule.table,
            matching: self.options.named(rule.matching()),
            priority: rule.priority.min(u16::MAX.into()) as u16,
            cookie: rule.cookie,
            duration_ns: since(rule.created_ms).saturating_mul(1_000_000),
            idle_timeout: rule.idle_timeout,
            hard_timeout: rule.hard_timeout,
            idle_age: seconds(totals.used_ms.max(rule.idle_base_ms)),
            hard_age: seconds(rule.refreshed_ms()),
            flags: rule.flags,
            importance: rule.importance,
            packets: totals.packets,
            bytes: totals.bytes,
            instructions: Arc::clone(&rule.behaviour.instructions),
        }
    }
}

/// `OFPAT_*` numbers of the actions that [`crate::compile`] supports: output, copy TTL out and in,
/// set and decrement MPLS TTL, push and pop VLAN and MPLS, set queue, group, set and decrement IP
/// TTL, set field, push and pop PBB.
const ACTIONS: [u32; 16] = [
    0, 11, 12, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27,
];

/// Returns the instructions that a table's rules may have in a version that has all of them.
fn instructions(table: u8) -> InstructionKinds {
    let mut kinds = InstructionKinds::all();
    kinds.set(InstructionKinds::GOTO_TABLE, table < INTERNAL - 1);
    kinds
}

/// Returns the features of a table, for ordinary rules and the table-miss rule alike.
pub fn table_features(table: u8, max_entries: u32) -> TableFeatures {
    let next_tables: Vec<u8> = (table.saturating_add(1)..INTERNAL).collect();
    let kinds = ActionKinds {
        actions: ACTIONS.iter().fold(0, |bits, number| bits | 1 << number),
        set_fields: known().filter(|field| check::settable(*field)).collect(),
    };
    let rules = RuleKinds {
        instructions: instructions(table),
        next_tables,
        write: kinds.clone(),
        apply: kinds,
    };
    TableFeatures {
        table,
        command: 0,
        name: String::new(),
        metadata_match: u64::MAX,
        metadata_write: u64::MAX,
        config: 0,
        max_entries,
        matchable: known()
            .map(|field| (field, field.def().maskable == Maskable::Bitwise))
            .collect(),
        wildcards: known().collect(),
        rules: rules.clone(),
        miss: rules,
    }
}

/// Returns the fields that have a number on the wire, except those that only repeat another under a
/// second name.
fn known() -> impl Iterator<Item = Field> {
    FIELDS
        .iter()
        .filter(|def| def.header(4).is_some() && def.field != Field::InPhyPort)
        .map(|def| def.field)
}
