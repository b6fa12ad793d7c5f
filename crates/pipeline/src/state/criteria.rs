//! Which rules a command or a question means.

use crate::state::store::{Rule, RuleId, Store};
use openflow::action::{Action, Instruction};
use openflow::flow::TABLE_ALL;
use openflow::port::{self, PortNo};
use packet::Match;

/// The table that is the switch's own. Peers may not change it.
pub(crate) const INTERNAL: u8 = 254;
/// No restriction to a group.
pub(crate) const ANY_GROUP: u32 = 0xffff_ffff;
/// A cookie that means none: 0 for a new rule, the old one for a changed rule.
pub(crate) const NO_COOKIE: u64 = u64::MAX;

/// Which rules a non-strict command or a statistics request means.
pub(crate) struct Criteria<'a> {
    /// A table, or [`TABLE_ALL`].
    pub table: u8,
    pub matching: &'a Match,
    /// The priority of a strict command.
    pub strict: Option<u16>,
    pub cookie: u64,
    pub cookie_mask: u64,
    pub out_port: PortNo,
    pub out_group: u32,
}

impl Criteria<'_> {
    /// Whether a visible rule is meant, its table and, for a strict command, its match and priority
    /// aside.
    pub(crate) fn admits(&self, rule: &Rule) -> bool {
        !rule.is_hidden()
            && (rule.cookie ^ self.cookie) & self.cookie_mask == 0
            && self.admits_use(&rule.behaviour.instructions)
    }

    /// Whether `out_port` and `out_group` let these instructions through.
    pub(crate) fn admits_use(&self, instructions: &[Instruction]) -> bool {
        self.admits_port(instructions) && self.admits_group(instructions)
    }

    /// Whether `out_port` does.
    pub(crate) fn admits_port(&self, instructions: &[Instruction]) -> bool {
        self.out_port == port::ANY || uses(instructions, &Use::Port(self.out_port))
    }

    /// Whether `out_group` does.
    pub(crate) fn admits_group(&self, instructions: &[Instruction]) -> bool {
        self.out_group == ANY_GROUP || uses(instructions, &Use::Group(self.out_group))
    }
}

/// What a rule may be asked for by `out_port` and `out_group`.
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
    /// The rules that are meant, tables ascending and in each in the order in which they were
    /// added.
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

    /// The rules within a non-strict command's match.
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
