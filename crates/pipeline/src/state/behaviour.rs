//! What rules do, shared by all that do the same.
//!
//! A hundred thousand rules have perhaps a hundred lists of actions between them. Each list is
//! kept, and compiled, once.

use crate::compile::{self, Context};
use crate::state::learned::{self, Named};
use crate::state::meters::Users;
use openflow::action::Instruction;
use packet::keyed::Keyed;
use program::actions::OpList;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

/// Instructions in their own words and compiled.
#[derive(Debug)]
pub(crate) struct Behaviour {
    /// As they came, for statistics.
    pub instructions: Arc<[Instruction]>,
    /// As workers run them.
    pub ops: Arc<OpList>,
    /// The groups that they name, each once.
    pub groups: Box<[u32]>,
    /// Whether they belong to a table-miss rule, whose packet-ins say so.
    miss: bool,
    /// Tables and cookies that its `learn` actions watch.
    pub learns: Box<[Named]>,
}

/// The lists in use.
#[derive(Default)]
pub(crate) struct Behaviours {
    /// For ordinary rules, and for table-miss rules.
    known: [HashMap<Arc<[Instruction]>, Arc<Behaviour>, Keyed>; 2],
    /// The one of each kind that was asked for last, which the next rule most likely has too.
    last: [Weak<Behaviour>; 2],
    pub meter_users: Users,
}

impl Behaviours {
    /// The behaviour of these instructions, which have been checked.
    pub fn intern(
        &mut self,
        instructions: &Arc<[Instruction]>,
        miss: bool,
        context: Context<'_>,
    ) -> Arc<Behaviour> {
        let known = &mut self.known[usize::from(miss)];
        let last = &mut self.last[usize::from(miss)];
        if let Some(behaviour) = last.upgrade()
            && (Arc::ptr_eq(&behaviour.instructions, instructions)
                || *behaviour.instructions == **instructions)
        {
            return behaviour;
        }
        if let Some(behaviour) = known.get(instructions) {
            *last = Arc::downgrade(behaviour);
            return Arc::clone(behaviour);
        }
        let ops = Arc::new(compile::instructions(instructions, miss, context));
        let learns = learned::named(instructions);
        let behaviour = Arc::new(Behaviour {
            groups: crate::state::groups::used(instructions)
                .collect::<BTreeSet<u32>>()
                .into_iter()
                .collect(),
            instructions: Arc::clone(instructions),
            ops,
            miss,
            learns,
        });
        known.insert(Arc::clone(instructions), Arc::clone(&behaviour));
        self.meter_users.add(&behaviour);
        behaviour
    }

    /// Gives back a rule's share; the last one out forgets the list.
    pub fn release(&mut self, behaviour: Arc<Behaviour>) {
        if Arc::strong_count(&behaviour) == 2 {
            self.meter_users.remove(&behaviour);
            self.known[usize::from(behaviour.miss)].remove(&behaviour.instructions);
        }
    }

    /// Number of different lists.
    pub fn len(&self) -> usize {
        self.known.iter().map(HashMap::len).sum()
    }
}
