//! Tables and cookies that the `learn` actions of rules watch (`delete_learned`, `limit`).

use openflow::action::{Action, Instruction};
use program::actions::learn::NO_COOKIE;
use std::collections::HashMap;

/// A table and a cookie that a rule's `learn` action names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) pair: (u8, u64),
    pub(crate) deletes: bool,
}

/// Counts for a table and cookie that rules name.
#[derive(Default, Debug)]
pub(crate) struct Watched {
    /// `learn` actions that name the pair.
    pub(crate) names: usize,
    /// Those of them that have `delete_learned`.
    pub(crate) deletes: usize,
    /// Rules in the table with the cookie.
    pub(crate) rules: usize,
}

/// The tables and cookies that rules name.
#[derive(Default)]
pub(crate) struct Learned {
    pub(crate) watched: HashMap<(u8, u64), Watched>,
    /// Pairs whose last `delete_learned` action has gone.
    pub(crate) orphans: Vec<(u8, u64)>,
}

impl Learned {
    /// Returns whether removing a rule may also remove the rules that it has learned.
    pub fn deletes_learned(&self) -> bool {
        self.watched.values().any(|watched| watched.deletes > 0)
    }
}

/// Returns the cookie of a new rule.
pub(crate) fn cookie_of(cookie: u64) -> u64 {
    if cookie == NO_COOKIE { 0 } else { cookie }
}

/// Returns the tables and cookies that the `learn` actions of these instructions watch.
pub(crate) fn named(instructions: &[Instruction]) -> Box<[Named]> {
    let mut all = Vec::new();
    for instruction in instructions {
        if let Instruction::ApplyActions(actions) = instruction {
            collect(actions, &mut all);
        }
    }
    all.into()
}

/// Returns whether rules that instructions teach go with the last rule that has such instructions
/// (`delete_learned`).
pub fn deletes_learned(instructions: &[Instruction]) -> bool {
    named(instructions).iter().any(|named| named.deletes)
}

pub(crate) fn collect(actions: &[Action], all: &mut Vec<Named>) {
    for action in actions {
        match action {
            Action::Learn(learn) if learn.delete_learned || learn.limit != 0 => all.push(Named {
                pair: (learn.table, cookie_of(learn.cookie)),
                deletes: learn.delete_learned,
            }),
            Action::Clone(inner) => collect(inner, all),
            _ => {}
        }
    }
}
