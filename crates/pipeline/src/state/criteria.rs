//! Criteria that select the rules of a command or a query.

use crate::state::store::{Rule, RuleId, Store};
use openflow::action::{Action, Instruction};
use openflow::flow::TABLE_ALL;
use openflow::port::{self, PortNo};
use packet::Match;

/// The switch's own table, which peers may not change.
pub(crate) const INTERNAL: u8 = 254;
/// Any group: `out_group` does not restrict the selection.
pub(crate) const ANY_GROUP: u32 = 0xffff_ffff;
/// The cookie that means "none": a new rule gets 0, a changed rule keeps its own.
pub(crate) const NO_COOKIE: u64 = u64::MAX;

/// Selects the rules of a non-strict command or a statistics request.
pub(crate) struct Criteria<'a> {
    /// A table number, or [`TABLE_ALL`].
    pub table: u8,
    pub matching: &'a Match,
    /// The priority of a strict command; None otherwise.
    pub strict: Option<u16>,
    pub cookie: u64,
    pub cookie_mask: u64,
    pub out_port: PortNo,
    pub out_group: u32,
}

impl Criteria<'_> {
    /// Returns whether a visible rule is selected by everything except its table and, for a strict
    /// command, its match and priority.
    pub(crate) fn admits(&self, rule: &Rule) -> bool {
        !rule.is_hidden()
            && (rule.cookie ^ self.cookie) & self.cookie_mask == 0
            && self.admits_use(&rule.behaviour.instructions)
    }

    /// Returns whether both `out_port` and `out_group` select a rule with these instructions.
    pub(crate) fn admits_use(&self, instructions: &[Instruction]) -> bool {
        self.admits_port(instructions) && self.admits_group(instructions)
    }

    /// Returns whether `out_port` selects a rule with these instructions.
    pub(crate) fn admits_port(&self, instructions: &[Instruction]) -> bool {
        self.out_port == port::ANY || uses(instructions, &Use::Port(self.out_port))
    }

    /// Returns whether `out_group` selects a rule with these instructions.
    pub(crate) fn admits_group(&self, instructions: &[Instruction]) -> bool {
        self.out_group == ANY_GROUP || uses(instructions, &Use::Group(self.out_group))
    }
}

/// The output by which `out_port` and `out_group` select rules.
enum Use {
    Port(PortNo),
    Group(u32),
}

fn uses(instructions: &[Instruction], wanted: &Use) -> bool {
    instructions.iter().any(|instruction| match instruction {
        Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
            list_uses(actions, wanted)
        }
        _ => false,
    })
}

fn list_uses(actions: &[Action], wanted: &Use) -> bool {
    actions.iter().any(|action| match (action, wanted) {
        (Action::Clone(inner), _) => list_uses(inner, wanted),
        (Action::Group(group), Use::Group(wanted)) => group == wanted,
        (
            Action::Output { port, .. }
            | Action::OutputTrunc { port, .. }
            | Action::Enqueue { port, .. },
            Use::Port(wanted),
        ) => port == wanted,
        (Action::Controller { .. }, Use::Port(wanted)) => *wanted == port::CONTROLLER,
        _ => false,
    })
}

impl Store {
    /// Returns the selected rules by ascending table, and within a table in the order in which they
    /// were added.
    pub(crate) fn select(&self, criteria: &Criteria<'_>) -> Vec<RuleId> {
        let wanted = |id: &RuleId| self.get(*id).is_some_and(|rule| criteria.admits(rule));
        match criteria.strict {
            Some(priority) if criteria.table != TABLE_ALL => {
                let found = self.find(criteria.table, priority.into(), criteria.matching);
                found.filter(wanted).into_iter().collect()
            }
            Some(priority) => self
                .tables()
                .filter_map(|table| self.find(table, priority.into(), criteria.matching))
                .filter(wanted)
                .collect(),
            None => self.within(criteria).map(|(id, _)| id).collect(),
        }
    }

    /// Returns the rules within a non-strict command's match.
    pub(crate) fn within<'s>(
        &'s self,
        criteria: &'s Criteria<'_>,
    ) -> impl Iterator<Item = (RuleId, &'s Rule)> {
        self.tables()
            .filter(move |table| match criteria.table {
                TABLE_ALL => *table != INTERNAL,
                wanted => *table == wanted,
            })
            .flat_map(move |table| {
                let few = self.indexed(table, criteria);
                let all = few.is_none().then(|| self.table(table));
                let few = few.into_iter().flatten();
                few.filter_map(|id| Some((id, self.get(id)?)))
                    .chain(all.into_iter().flatten())
            })
            .filter(|(_, rule)| {
                rule.matching().is_within(criteria.matching) && criteria.admits(rule)
            })
    }
}
