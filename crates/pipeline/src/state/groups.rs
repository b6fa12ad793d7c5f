//! Groups of a bridge (OpenFlow 1.3.5 sections 5.6, 6.5 and 7.3.4.2; 1.5.1 section 7.3.4.3).
//!
//! A group that a rule is to use must be there when the rule comes; with the group go the rules
//! that use it. A bucket may name a group that is not there yet, as in Open vSwitch, so that groups
//! may come in any order; until it is there the bucket does nothing. Loops are refused.
//!
//! Every number that is mentioned has a slot in the program ([`GroupRef`]), which steps hold. It is
//! given back when neither a group nor a bucket mentions the number any more.

use openflow::action::{Action, Instruction};
use openflow::group::{self, Bucket, GroupDescription, Selection, SelectionMethod};
use program::counters::CounterId;
use program::group::{GroupHash, GroupRef, Selector};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// What it is, in OpenFlow's words.
    pub description: GroupDescription,
    pub(crate) to: GroupRef,
    pub(crate) created_ms: u64,
    pub(crate) counter: CounterId,
    /// In the order of the buckets.
    pub(crate) bucket_counters: Vec<CounterId>,
}

impl Entry {
    /// The groups that its buckets name, each as often as it is named.
    pub(crate) fn mentioned(&self) -> impl Iterator<Item = u32> + '_ {
        self.description.buckets.iter().flat_map(mentioned)
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = CounterId> + '_ {
        self.bucket_counters.iter().copied().chain([self.counter])
    }
}

pub(crate) fn mentioned(bucket: &Bucket) -> impl Iterator<Item = u32> + '_ {
    let watched = (bucket.watch_group != group::ANY).then_some(bucket.watch_group);
    used_by(&bucket.actions).into_iter().chain(watched)
}

/// The groups that actions send packets to, those in clones too.
pub(crate) fn used_by(actions: &[Action]) -> Vec<u32> {
    let of = |action: &Action| match action {
        Action::Group(number) => vec![*number],
        Action::Clone(actions) => used_by(actions),
        _ => Vec::new(),
    };
    actions.iter().flat_map(of).collect()
}

/// The groups that a rule's instructions send packets to.
pub(crate) fn used(instructions: &[Instruction]) -> impl Iterator<Item = u32> + '_ {
    instructions
        .iter()
        .flat_map(|instruction| match instruction {
            Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => {
                used_by(actions)
            }
            _ => Vec::new(),
        })
}

pub(crate) struct Slot {
    pub(crate) to: GroupRef,
    pub(crate) mentions: usize,
}

/// The groups of a bridge.
#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) known: BTreeMap<u32, Entry>,
    pub(crate) slots: HashMap<u32, Slot>,
    /// Numbers that were mentioned no more at some time since the last commit.
    pub(crate) idle: Vec<u32>,
}

impl Groups {
    /// A group.
    pub fn get(&self, number: u32) -> Option<&Entry> {
        self.known.get(&number)
    }

    /// The slot of a number, as a step names it.
    pub fn find(&self, number: u32) -> GroupRef {
        self.slots
            .get(&number)
            .map_or(GroupRef::unbound(number), |slot| slot.to)
    }

    pub(crate) fn unmention(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.mentions -= 1;
            if slot.mentions == 0 {
                self.idle.push(number);
            }
        }
    }

    /// Whether buckets would lead a packet back to the group that they are for.
    pub(crate) fn loops(&self, number: u32, buckets: &[Bucket]) -> bool {
        let of = |buckets: &[Bucket]| -> Vec<u32> {
            buckets
                .iter()
                .flat_map(|bucket| used_by(&bucket.actions))
                .collect()
        };
        let mut next = of(buckets);
        let mut seen = HashSet::new();
        while let Some(other) = next.pop() {
            if other == number {
                return true;
            }
            if seen.insert(other)
                && let Some(entry) = self.known.get(&other)
            {
                next.extend(of(&entry.description.buckets));
            }
        }
        false
    }
}

/// What a select group hashes.
pub(crate) fn hash_of(selection: Option<&Selection>) -> GroupHash {
    match selection {
        None => GroupHash::Usual,
        Some(selection) => match selection.method {
            SelectionMethod::DpHash => GroupHash::FiveTuple {
                // The high half names the hash: 0 the five-tuple's, 1 the symmetric one (`enum
                // ovs_hash_alg`); others are taken for the first.
                symmetric: selection.parameter >> 32 == 1,
                basis: selection.parameter as u32,
            },
            SelectionMethod::Hash if selection.fields.is_empty() => GroupHash::Usual,
            SelectionMethod::Hash => GroupHash::fields(&selection.fields, selection.parameter),
        },
    }
}

/// How a select group chooses.
pub(crate) fn selector_of(description: &GroupDescription) -> Selector {
    let shares: Vec<(u32, u16)> = description
        .buckets
        .iter()
        .map(|bucket| (bucket.id, bucket.weight))
        .collect();
    Selector::new(hash_of(description.selection.as_ref()), &shares)
}
