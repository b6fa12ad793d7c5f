//! The bounded store of chosen cores.
//!
//! A choice belongs to an entry, or to one flow of an entry. It ages independently of its entry.
//! When an entry is removed, its choices are not searched for: a sweep, which looks at some slots
//! per call, frees them and those that have aged, and releases the cores that they held.

use super::entry::EntryId;
use crate::cores::{CoreId, CoreTable, Load, VmId};
use crate::policy::Basis;
use std::collections::HashMap;

/// What a choice is for: an entry, or one flow of it by its hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChoiceKey {
    /// The entry.
    pub entry: EntryId,
    /// The flow's hash; None if the choice is for all that matches the entry.
    pub flow: Option<u64>,
}

/// Identifies a choice. Once that is gone, the id is invalid (until its slot has been reused 2^32
/// times).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChoiceId {
    slot: u32,
    generation: u32,
}

/// A core that was chosen, kept for later packets so that they are not reordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// What it applies to.
    pub key: ChoiceKey,
    /// The core.
    pub core: CoreId,
    /// Why the core was chosen.
    pub basis: Basis,
    /// The virtual machine, from the entry.
    pub vm: Option<VmId>,
    /// The priority bit, from the entry.
    pub priority: bool,
    /// When it was last used, ns.
    pub used_ns: u64,
    /// When it was made or last moved, ns.
    pub moved_ns: u64,
    /// Load of its packets as last measured.
    pub load: Load,
}

/// Slots per sweep. A million choices take 64 sweeps, which is 1.3 s at one sweep every 20 ms.
const SWEEP_SLOTS: usize = 16_384;

#[derive(Clone, Debug)]
struct Slot {
    choice: Option<Choice>,
    /// Incremented whenever a choice is removed.
    generation: u32,
    /// A linked list of the same entry's other choices, so that changing an entry costs time only
    /// for its own choices.
    next: Option<u32>,
    previous: Option<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Choices {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    index: HashMap<ChoiceKey, u32>,
    /// Head of each entry's list.
    first: HashMap<EntryId, u32>,
    limit: usize,
    cursor: usize,
}

impl Choices {
    pub(super) fn new(limit: usize) -> Choices {
        Choices {
            slots: Vec::new(),
            vacant: Vec::new(),
            index: HashMap::new(),
            first: HashMap::new(),
            // Slot numbers have 32 bits.
            limit: limit.min(u32::MAX as usize),
            cursor: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    fn id(&self, slot: u32) -> ChoiceId {
        let generation = self.slots[slot as usize].generation;
        ChoiceId { slot, generation }
    }

    pub(super) fn find(&self, key: ChoiceKey) -> Option<ChoiceId> {
        self.index.get(&key).map(|slot| self.id(*slot))
    }

    pub(super) fn get(&self, id: ChoiceId) -> Option<&Choice> {
        let slot = self.slots.get(id.slot as usize)?;
        let current = slot.generation == id.generation;
        slot.choice.as_ref().filter(|_| current)
    }

    pub(super) fn get_mut(&mut self, id: ChoiceId) -> Option<&mut Choice> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        let current = slot.generation == id.generation;
        slot.choice.as_mut().filter(|_| current)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ChoiceId, &Choice)> {
        let slots = (0..).zip(&self.slots);
        slots.filter_map(|(at, slot)| Some((self.id(at), slot.choice.as_ref()?)))
    }

    /// Returns the choices of an entry.
    pub(super) fn of_entry(&self, entry: EntryId) -> Vec<ChoiceId> {
        let mut found = Vec::new();
        let mut at = self.first.get(&entry).copied();
        while let Some(slot) = at {
            found.push(self.id(slot));
            at = self.slots[slot as usize].next;
        }
        found
    }

    pub(super) fn is_full(&self) -> bool {
        self.index.len() >= self.limit
    }

    /// Stores a choice; None if the store is full. There must be none for its key.
    pub(super) fn insert(&mut self, choice: Choice) -> Option<ChoiceId> {
        if self.is_full() {
            return None;
        }
        let at = match self.vacant.pop() {
            Some(at) => at,
            None => {
                self.slots.push(Slot {
                    choice: None,
                    generation: 0,
                    next: None,
                    previous: None,
                });
                (self.slots.len() - 1) as u32
            }
        };
        let next = self.first.insert(choice.key.entry, at);
        if let Some(next) = next {
            self.slots[next as usize].previous = Some(at);
        }
        let slot = &mut self.slots[at as usize];
        slot.choice = Some(choice);
        (slot.next, slot.previous) = (next, None);
        self.index.insert(choice.key, at);
        Some(self.id(at))
    }

    /// Removes a choice, and releases the core that it held.
    pub(super) fn remove(&mut self, id: ChoiceId, cores: &mut CoreTable) -> Option<Choice> {
        let choice = *self.get(id)?;
        let slot = &mut self.slots[id.slot as usize];
        slot.choice = None;
        slot.generation = slot.generation.wrapping_add(1);
        let (next, previous) = (slot.next.take(), slot.previous.take());
        if let Some(next) = next {
            self.slots[next as usize].previous = previous;
        }
        match (previous, next) {
            (Some(previous), _) => self.slots[previous as usize].next = next,
            (None, Some(next)) => drop(self.first.insert(choice.key.entry, next)),
            (None, None) => drop(self.first.remove(&choice.key.entry)),
        }
        self.vacant.push(id.slot);
        self.index.remove(&choice.key);
        if choice.priority {
            cores.release(choice.core);
        }
        Some(choice)
    }

    /// Removes those choices in the next slots for which `is_over` returns true.
    pub(super) fn sweep(
        &mut self,
        cores: &mut CoreTable,
        mut is_over: impl FnMut(&Choice) -> bool,
        mut gone: impl FnMut(&Choice),
    ) {
        for _ in 0..self.slots.len().min(SWEEP_SLOTS) {
            self.cursor = (self.cursor + 1) % self.slots.len();
            let choice = self.slots[self.cursor].choice.as_ref();
            if choice.is_some_and(&mut is_over)
                && let Some(choice) = self.remove(self.id(self.cursor as u32), cores)
            {
                gone(&choice);
            }
        }
    }
}
