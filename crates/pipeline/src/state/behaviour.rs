//! Instructions and their compiled form, shared by all rules that have the same instructions.
//!
//! A hundred thousand rules may have only a hundred different instruction lists. Each list is
//! stored and compiled once.

use crate::compile::{self, Context};
use crate::state::learned::{self, Named};
use crate::state::meters::Users;
use openflow::action::Instruction;
use packet::keyed::Keyed;
use program::actions::OpList;
use program::actions::learn::Learn;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

/// Instructions, as received and compiled.
#[derive(Debug)]
pub(crate) struct Behaviour {
    /// As received, for statistics.
    pub instructions: Arc<[Instruction]>,
    /// Compiled for workers.
    pub ops: Arc<OpList>,
    /// The groups that the instructions name, each once.
    pub groups: Box<[u32]>,
    /// Whether this belongs to a table-miss rule, whose packet-ins report that as their reason.
    miss: bool,
    /// Tables and cookies that the `learn` actions watch.
    pub learns: Box<[Named]>,
}

/// The instruction lists in use.
#[derive(Default)]
pub(crate) struct Behaviours {
    /// Index 0: ordinary rules; 1: table-miss rules.
    known: [HashMap<Arc<[Instruction]>, Arc<Behaviour>, Keyed>; 2],
    /// The last one asked for of each kind, which the next rule most likely has too.
    last: [Weak<Behaviour>; 2],
    pub meter_users: Users,
    /// What they teach, with the number of steps that do.
    lessons: HashMap<Arc<Learn>, usize>,
}

impl Behaviours {
    /// Returns the behaviour of these instructions, which must have been checked.
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
        behaviour.ops.for_lessons(&mut |learn| {
            *self.lessons.entry(Arc::clone(learn)).or_default() += 1;
        });
        self.meter_users.add(&behaviour);
        behaviour
    }

    /// Releases a rule's reference. With the last one, the list is removed.
    pub fn release(&mut self, behaviour: Arc<Behaviour>) {
        if Arc::strong_count(&behaviour) == 2 {
            self.meter_users.remove(&behaviour);
            behaviour.ops.for_lessons(&mut |learn| {
                if let Some(steps) = self.lessons.get_mut(learn) {
                    *steps -= 1;
                    if *steps == 0 {
                        self.lessons.remove(learn);
                    }
                }
            });
            self.known[usize::from(behaviour.miss)].remove(&behaviour.instructions);
        }
    }

    /// Returns whether some rule teaches this.
    pub fn teach(&self, learn: &Learn) -> bool {
        self.lessons.contains_key(learn)
    }

    /// Returns the number of different lists.
    pub fn len(&self) -> usize {
        self.known.iter().map(HashMap::len).sum()
    }
}
