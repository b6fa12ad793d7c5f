//! Groups of a bridge (OpenFlow 1.3.5 sections 5.6, 6.5 and 7.3.4.2; 1.5.1 section 7.3.4.3).
//!
//! A group that a rule uses must exist when the rule is added; deleting the group deletes the rules
//! that use it. As in Open vSwitch, a bucket may name a group that does not exist yet, so groups
//! may arrive in any order; until then the bucket does nothing. Loops are refused.
//!
//! Every number that is mentioned has a slot in the program ([`GroupRef`]), to which ops refer. The
//! slot is released when no group or bucket mentions the number any more.

use crate::state::options::Options;
use openflow::action::{Action, Instruction};
use openflow::group::{self, Bucket, GroupDescription, Selection, SelectionMethod};
use packet::{Field, Value};
use program::counters::CounterId;
use program::group::{GroupHash, GroupRef, Selector};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A group.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The description from the group mod.
    pub description: GroupDescription,
    pub(crate) to: GroupRef,
    pub(crate) created_ms: u64,
    pub(crate) counter: CounterId,
    /// In the order of the buckets.
    pub(crate) bucket_counters: Vec<CounterId>,
}

impl Entry {
    /// Returns the groups that its buckets name, as often as they are named.
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

/// Returns the groups to which actions send packets, those inside clones included.
pub(crate) fn used_by(actions: &[Action]) -> Vec<u32> {
    let of = |action: &Action| match action {
        Action::Group(number) => vec![*number],
        Action::Clone(actions) => used_by(actions),
        _ => Vec::new(),
    };
    actions.iter().flat_map(of).collect()
}

/// Returns the groups to which a rule's instructions send packets.
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
    /// Numbers whose last mention went at some time since the last commit.
    pub(crate) idle: Vec<u32>,
}

impl Groups {
    /// Returns a group.
    pub fn get(&self, number: u32) -> Option<&Entry> {
        self.known.get(&number)
    }

    /// Returns a number's slot, as ops refer to it.
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

    /// Returns whether these buckets of group `number` would lead a packet back to that group.
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

/// Returns what a select group hashes.
pub(crate) fn hash_of(selection: Option<&Selection>, options: &Options) -> GroupHash {
    match selection {
        None => GroupHash::Usual { by_datapath: true },
        Some(selection) => match selection.method {
            SelectionMethod::DpHash => GroupHash::FiveTuple {
                // The high 32 bits of the parameter choose the hash: 0 five-tuple, 1 symmetric
                // (`enum ovs_hash_alg`); other values are treated as 0.
                symmetric: selection.parameter >> 32 == 1,
                basis: selection.parameter as u32,
            },
            SelectionMethod::Hash if selection.fields.is_empty() => {
                GroupHash::Usual { by_datapath: false }
            }
            SelectionMethod::Hash => {
                let placed = selection.fields.iter().filter_map(|(field, bits)| {
                    match field.tunnel_option() {
                        None => Some((*field, bits.clone())),
                        Some(option) => {
                            let place = options.place(option)?;
                            let mut own = Value::zero(bits.len());
                            let from = bits.len().saturating_sub(place.length());
                            own[from..].copy_from_slice(&bits[from..]);
                            Some((place.field(), own))
                        }
                    }
                });
                let fields: Vec<(Field, Value)> = placed.collect();
                GroupHash::fields(&fields, selection.parameter)
            }
        },
    }
}

/// Returns how a select group chooses a bucket.
pub(crate) fn selector_of(description: &GroupDescription, options: &Options) -> Selector {
    let shares: Vec<(u32, u16)> = description
        .buckets
        .iter()
        .map(|bucket| (bucket.id, bucket.weight))
        .collect();
    Selector::new(hash_of(description.selection.as_ref(), options), &shares)
}
