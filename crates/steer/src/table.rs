//! The steering flow table (paper, III-B and table II): which entry a packet matches, and the core
//! chosen for it.
//!
//! Both back ends use it: workers call [`FlowTable::steer`] for each packet or burst; an XDP
//! program does the same on maps, and the table is kept up to date with it. Keys are bytes under
//! masks; the table does not know their meaning.
//!
//! Everything is bounded: entries, masks ([`MASKS_MAX`]) and choices. Exceeding a bound is an
//! error; for a choice that a packet needs, the packet stays on its core and is counted.

mod books;
mod choices;
mod entry;

pub use books::{EntryView, Made};
pub use choices::{Choice, ChoiceId, ChoiceKey};
pub use entry::{EntryId, EntrySpec, Match, Reason, Removed, Scope, Target};

use crate::cores::{CoreError, CoreId, CoreTable, Load};
use crate::policy::{Basis, Decision, Request, choose};
use crate::settings::Settings;
use choices::Choices;
use entry::{Entry, masked};
use std::collections::HashMap;

/// Most distinct masks in a table: a lookup tries each of them.
pub const MASKS_MAX: usize = 32;

/// Capacity of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Entries. Default 4,096.
    pub entries: usize,
    /// Cores chosen for entries and flows. Default 1,048,576.
    pub choices: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            entries: 4_096,
            choices: 1 << 20,
        }
    }
}

/// Why the table rejects a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// OpenFlow's ALL_TABLES_FULL.
    #[error("the steering table is full: it holds {0} entries")]
    EntriesFull(usize),
    /// OpenFlow's ALL_TABLES_FULL.
    #[error("the steering table is full: it holds entries of {MASKS_MAX} different masks")]
    MasksFull,
    /// There is no room for another choice.
    #[error("the steering table is full: it holds the cores of {0} flows")]
    ChoicesFull(usize),
    /// The action names a core that does not exist.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// There is no such entry.
    #[error("no such entry")]
    NoEntry,
    /// Only flows of entries whose flows share a choice can be set apart.
    #[error("the entry does not choose one core for all its flows")]
    NotPerEntry,
}

/// Where a packet is processed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steered {
    /// No entry matches: the packet stays on its core.
    Miss,
    /// The entry names the core.
    Fixed(CoreId),
    /// A core was chosen, by this packet (`new`) or by an earlier one.
    Chosen {
        /// The core.
        core: CoreId,
        /// The choice.
        choice: ChoiceId,
        /// Whether this packet made it.
        new: bool,
    },
    /// A core would have been chosen, but there is no room for the choice: the packet stays on its
    /// core.
    NoRoom,
}

impl Steered {
    /// Returns the core that processes the packet, if not the current one.
    pub fn core(self) -> Option<CoreId> {
        match self {
            Steered::Fixed(core) | Steered::Chosen { core, .. } => Some(core),
            Steered::Miss | Steered::NoRoom => None,
        }
    }
}

/// Counters of packets and choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets that were looked up.
    pub lookups: u64,
    /// Packets that matched an entry.
    pub matches: u64,
    /// Choices that were made.
    pub chosen: u64,
    /// Packets that stayed because there was no room for a choice.
    pub no_room: u64,
    /// Moves of choices to other cores.
    pub moves: u64,
}

/// What the table needs to know of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a, const N: usize> {
    /// Its key.
    pub key: &'a [u8; N],
    /// A hash that distinguishes its flow from others.
    pub flow: u64,
    /// Its current core.
    pub current: CoreId,
    /// Its length, bytes.
    pub length: u32,
}

/// The entries with one mask.
#[derive(Clone, Debug)]
struct MaskTable<const N: usize> {
    mask: [u8; N],
    /// Entries by masked value, highest precedence first.
    values: HashMap<[u8; N], Vec<(u16, EntryId)>>,
}

/// The steering flow table, for keys of `N` bytes.
#[derive(Clone, Debug)]
pub struct FlowTable<const N: usize> {
    limits: Limits,
    masks: Vec<MaskTable<N>>,
    entries: HashMap<EntryId, Entry<N>>,
    choices: Choices,
    next_entry: u64,
    counters: Counters,
}

impl<const N: usize> FlowTable<N> {
    /// Makes an empty table.
    pub fn new(limits: Limits) -> FlowTable<N> {
        FlowTable {
            limits,
            masks: Vec::new(),
            entries: HashMap::new(),
            choices: Choices::new(limits.choices),
            next_entry: 0,
            counters: Counters::default(),
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of choices that are not forgotten.
    pub fn choices_len(&self) -> usize {
        self.choices.len()
    }

    /// Returns the counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Adds an entry. An entry of the same match and precedence is replaced: its counters and
    /// timeouts restart, and its flows keep their cores if the target is the same, so that they are
    /// not reordered.
    ///
    /// # Errors
    ///
    /// Fails if the table is full, or the target names a core that does not exist. Nothing is
    /// changed.
    pub fn add(
        &mut self,
        spec: EntrySpec<N>,
        cores: &mut CoreTable,
        now_ns: u64,
    ) -> Result<EntryId, TableError> {
        if let Target::Core(core) = spec.target {
            cores.check(core)?;
        }
        if let Some(id) = self.find(&spec.matching, spec.precedence) {
            let fresh = Entry::new(spec, now_ns);
            let old = self.entries.insert(id, fresh).ok_or(TableError::NoEntry)?;
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.mean = old.mean;
                entry.overrides = old.overrides;
            }
            self.update_choices(id, &old.spec, cores);
            return Ok(id);
        }
        if self.entries.len() >= self.limits.entries {
            return Err(TableError::EntriesFull(self.limits.entries));
        }
        let mask = *spec.matching.mask();
        let at = match self.masks.iter().position(|table| table.mask == mask) {
            Some(at) => at,
            None if self.masks.len() >= MASKS_MAX => return Err(TableError::MasksFull),
            None => {
                self.masks.push(MaskTable {
                    mask,
                    values: HashMap::new(),
                });
                self.masks.len() - 1
            }
        };
        let id = EntryId(self.next_entry);
        self.next_entry += 1;
        let values = &mut self.masks[at].values;
        let list = values.entry(*spec.matching.value()).or_default();
        let place = list.partition_point(|(precedence, _)| *precedence > spec.precedence);
        list.insert(place, (spec.precedence, id));
        self.entries.insert(id, Entry::new(spec, now_ns));
        Ok(id)
    }

    /// Changes target, virtual machine, priority bit and cookie of an entry. Counters and timeouts
    /// remain, and the cores of its flows if the scope is unchanged.
    ///
    /// # Errors
    ///
    /// Fails if there is no such entry, or no such core. Nothing is changed.
    pub fn modify(
        &mut self,
        id: EntryId,
        change: impl FnOnce(&mut EntrySpec<N>),
        cores: &mut CoreTable,
    ) -> Result<(), TableError> {
        let entry = self.entries.get_mut(&id).ok_or(TableError::NoEntry)?;
        let mut spec = entry.spec;
        change(&mut spec);
        if let Target::Core(core) = spec.target {
            cores.check(core)?;
        }
        let before = entry.spec;
        entry.spec = EntrySpec {
            target: spec.target,
            vm: spec.vm,
            priority: spec.priority,
            cookie: spec.cookie,
            ..before
        };
        self.update_choices(id, &before, cores);
        Ok(())
    }

    /// Updates virtual machine and priority of an entry's choices, and forgets choices that its
    /// target no longer uses.
    fn update_choices(&mut self, id: EntryId, before: &EntrySpec<N>, cores: &mut CoreTable) {
        let Some(spec) = self.entries.get(&id).map(|entry| entry.spec) else {
            return;
        };
        let what = |spec: &EntrySpec<N>| (spec.target, spec.vm, spec.priority);
        if what(&spec) == what(before) {
            return;
        }
        for choice_id in self.choices.of_entry(id) {
            let Some(choice) = self.choices.get_mut(choice_id) else {
                continue;
            };
            let is_used = match spec.target {
                Target::Core(_) => false,
                Target::Choose(Scope::Entry) => true,
                Target::Choose(Scope::Flow) => choice.key.flow.is_some(),
            };
            if !is_used {
                self.forget(choice_id, cores);
                continue;
            }
            choice.vm = spec.vm;
            match (choice.priority, spec.priority) {
                (false, true) => {
                    cores.hold(choice.core);
                    // If it had to use its virtual machine's core, the balancer lets it choose
                    // first at the next sample.
                    choice.basis = Basis::Stayed;
                }
                (true, false) => cores.release(choice.core),
                _ => {}
            }
            choice.priority = spec.priority;
        }
    }

    fn forget(&mut self, id: ChoiceId, cores: &mut CoreTable) {
        if let Some(choice) = self.choices.remove(id, cores) {
            Self::count_removed(&mut self.entries, &choice);
        }
    }

    fn count_removed(entries: &mut HashMap<EntryId, Entry<N>>, choice: &Choice) {
        if choice.key.flow.is_some()
            && let Some(entry) = entries.get_mut(&choice.key.entry)
        {
            entry.overrides = entry.overrides.saturating_sub(1);
        }
    }

    /// Returns the entry with exactly this match and precedence.
    pub fn find(&self, matching: &Match<N>, precedence: u16) -> Option<EntryId> {
        let mut masks = self.masks.iter();
        let table = masks.find(|table| table.mask == *matching.mask())?;
        let list = table.values.get(matching.value())?;
        let same = list.iter().find(|(other, _)| *other == precedence);
        same.map(|(_, id)| *id)
    }

    /// Deletes the entry with exactly this match and precedence.
    pub fn delete_strict(
        &mut self,
        matching: &Match<N>,
        precedence: u16,
        now_ns: u64,
    ) -> Option<Removed<N>> {
        let id = self.find(matching, precedence)?;
        self.remove(id, Reason::Delete, now_ns)
    }

    /// Deletes all entries whose match is within this one.
    pub fn delete(&mut self, matching: &Match<N>, now_ns: u64) -> Vec<Removed<N>> {
        let within = |entry: &Entry<N>| entry.spec.matching.is_within(matching);
        self.remove_where(now_ns, |entry| within(entry).then_some(Reason::Delete))
    }

    /// Removes entries whose timeouts have passed, and some of the choices that have aged or whose
    /// entry is gone. Call it at every sample.
    pub fn expire(
        &mut self,
        cores: &mut CoreTable,
        settings: &Settings,
        now_ns: u64,
    ) -> Vec<Removed<N>> {
        let removed = self.remove_where(now_ns, |entry| entry.expired(now_ns));
        let mut gone = Vec::new();
        self.choices.sweep(
            cores,
            |choice| {
                is_aged(choice, settings, now_ns) || !self.entries.contains_key(&choice.key.entry)
            },
            |choice| gone.push(*choice),
        );
        for choice in gone {
            Self::count_removed(&mut self.entries, &choice);
        }
        removed
    }

    fn remove_where(
        &mut self,
        now_ns: u64,
        why: impl Fn(&Entry<N>) -> Option<Reason>,
    ) -> Vec<Removed<N>> {
        let entries = self.entries.iter();
        let mut over: Vec<(EntryId, Reason)> = entries
            .filter_map(|(id, entry)| Some((*id, why(entry)?)))
            .collect();
        over.sort_unstable_by_key(|(id, _)| *id);
        let over = over.into_iter();
        over.filter_map(|(id, reason)| self.remove(id, reason, now_ns))
            .collect()
    }

    fn remove(&mut self, id: EntryId, reason: Reason, now_ns: u64) -> Option<Removed<N>> {
        let entry = self.entries.remove(&id)?;
        let matching = entry.spec.matching;
        let table = self.masks.iter().position(|t| t.mask == *matching.mask())?;
        let values = &mut self.masks[table].values;
        if let Some(list) = values.get_mut(matching.value()) {
            list.retain(|(_, other)| *other != id);
            if list.is_empty() {
                values.remove(matching.value());
            }
        }
        if values.is_empty() {
            self.masks.swap_remove(table);
        }
        Some(entry.removed(reason, now_ns))
    }

    /// Returns the entry that a key matches: the one of the highest precedence, and of equals the
    /// one added first.
    pub fn lookup(&self, key: &[u8; N]) -> Option<EntryId> {
        let of_mask = |table: &MaskTable<N>| {
            let list = table.values.get(&masked(key, &table.mask))?;
            list.first().copied()
        };
        let found = self.masks.iter().filter_map(of_mask);
        let best = found.max_by_key(|(precedence, id)| (*precedence, std::cmp::Reverse(*id)));
        best.map(|(_, id)| id)
    }

    /// Looks a packet up, counts it, and returns where it is processed. The first packet of an
    /// entry or flow chooses the core ([`choose`]); if the policy says "stay", its current core is
    /// remembered, so that the flow stays together.
    ///
    /// If the core differs from the one of the flow's last packet, the flow moves, whatever the
    /// reason: the caller carries that out by [`crate::handover`] or [`crate::drain`], unless the
    /// choice is new because the last one aged.
    pub fn steer(
        &mut self,
        packet: Packet<'_, N>,
        cores: &mut CoreTable,
        settings: &Settings,
        now_ns: u64,
    ) -> Steered {
        self.counters.lookups += 1;
        let Some(id) = self.lookup(packet.key) else {
            return Steered::Miss;
        };
        let Some(entry) = self.entries.get_mut(&id) else {
            return Steered::Miss;
        };
        self.counters.matches += 1;
        entry.packets += 1;
        entry.bytes += u64::from(packet.length);
        entry.used_ns = now_ns;
        let scope = match entry.spec.target {
            Target::Core(core) => return Steered::Fixed(core),
            Target::Choose(scope) => scope,
        };
        let of_flow = ChoiceKey {
            entry: id,
            flow: Some(packet.flow),
        };
        let of_entry = ChoiceKey {
            entry: id,
            flow: None,
        };
        // A flow that was set apart and has aged shares its entry's core again.
        let keys = match scope {
            Scope::Flow => [None, Some(of_flow)],
            Scope::Entry if entry.overrides > 0 => [Some(of_flow), Some(of_entry)],
            Scope::Entry => [None, Some(of_entry)],
        };
        for key in keys.into_iter().flatten() {
            let Some(choice_id) = self.choices.find(key) else {
                continue;
            };
            if let Some(choice) = self.choices.get_mut(choice_id)
                && !is_aged(choice, settings, now_ns)
            {
                choice.used_ns = now_ns;
                return Steered::Chosen {
                    core: choice.core,
                    choice: choice_id,
                    new: false,
                };
            }
            self.forget(choice_id, cores);
        }
        let key = match scope {
            Scope::Flow => of_flow,
            Scope::Entry => of_entry,
        };
        self.choose_new(key, packet.current, cores, settings, now_ns)
    }

    fn choose_new(
        &mut self,
        key: ChoiceKey,
        current: CoreId,
        cores: &mut CoreTable,
        settings: &Settings,
        now_ns: u64,
    ) -> Steered {
        let Some(entry) = self.entries.get_mut(&key.entry) else {
            return Steered::Miss;
        };
        if self.choices.is_full() {
            self.counters.no_room += 1;
            return Steered::NoRoom;
        }
        let request = Request {
            vm: entry.spec.vm,
            priority: entry.spec.priority,
        };
        let (core, basis) = match choose(cores, request, settings) {
            Decision::Use(core, basis) => (core, basis),
            Decision::Stay(_) => (current, Basis::Stayed),
        };
        let load = entry.expected(settings.expected);
        let choice = Choice {
            key,
            core,
            basis,
            vm: request.vm,
            priority: request.priority,
            used_ns: now_ns,
            moved_ns: now_ns,
            load,
        };
        let Some(choice) = self.choices.insert(choice) else {
            self.counters.no_room += 1;
            return Steered::NoRoom;
        };
        if key.flow.is_some() {
            entry.overrides += 1;
        }
        cores.place(core, load, request.priority, now_ns);
        self.counters.chosen += 1;
        Steered::Chosen {
            core,
            choice,
            new: true,
        }
    }

    /// Sets one heavy flow of a per-entry entry apart: it gets a choice of its own, on its current
    /// core, so that it can be moved independently of the entry's other flows. When the choice
    /// ages, the flow shares the entry's core again.
    ///
    /// # Errors
    ///
    /// Fails if there is no such entry, if it does not choose one core for all flows, if it has not
    /// chosen yet (`NoEntry`), or if there is no room.
    pub fn set_apart(
        &mut self,
        entry_id: EntryId,
        flow: u64,
        load: Load,
        cores: &mut CoreTable,
        now_ns: u64,
    ) -> Result<ChoiceId, TableError> {
        let entry = self.entries.get_mut(&entry_id);
        let entry = entry.ok_or(TableError::NoEntry)?;
        if entry.spec.target != Target::Choose(Scope::Entry) {
            return Err(TableError::NotPerEntry);
        }
        let key = |flow| ChoiceKey {
            entry: entry_id,
            flow,
        };
        if let Some(there) = self.choices.find(key(Some(flow))) {
            return Ok(there);
        }
        let shared = self.choices.find(key(None)).ok_or(TableError::NoEntry)?;
        let shared = self.choices.get_mut(shared).ok_or(TableError::NoEntry)?;
        let choice = Choice {
            key: key(Some(flow)),
            load,
            used_ns: now_ns,
            ..*shared
        };
        let rest = shared.load.minus(load);
        let full = TableError::ChoicesFull(self.limits.choices);
        let id = self.choices.insert(choice).ok_or(full)?;
        if let Some(shared) = self.choices.find(key(None))
            && let Some(shared) = self.choices.get_mut(shared)
        {
            shared.load = rest;
        }
        entry.overrides += 1;
        if choice.priority {
            cores.hold(choice.core);
        }
        Ok(id)
    }

    /// Returns a choice.
    pub fn choice(&self, id: ChoiceId) -> Option<&Choice> {
        self.choices.get(id)
    }

    /// Iterates over all choices of entries that exist.
    pub fn choices(&self) -> impl Iterator<Item = (ChoiceId, &Choice)> {
        let live = |(_, choice): &(ChoiceId, &Choice)| self.entries.contains_key(&choice.key.entry);
        self.choices.iter().filter(live)
    }

    /// Records the load of a choice's packets over the last sample period. That also means that
    /// packets came, so the choice does not age.
    pub fn measured(&mut self, id: ChoiceId, load: Load, now_ns: u64) {
        let Some(choice) = self.choices.get_mut(id) else {
            return;
        };
        choice.load = load;
        if load == Load::ZERO {
            return;
        }
        choice.used_ns = now_ns;
        if let Some(entry) = self.entries.get_mut(&choice.key.entry) {
            entry.used_ns = now_ns;
            entry.learn(load);
        }
    }

    /// Records that a choice moved to another core, as [`crate::balance`] decided. Returns false,
    /// and does nothing, if the choice is gone or is on that core already.
    pub fn move_choice(
        &mut self,
        id: ChoiceId,
        to: CoreId,
        basis: Basis,
        cores: &mut CoreTable,
        now_ns: u64,
    ) -> bool {
        let Some(choice) = self.choices.get_mut(id) else {
            return false;
        };
        if choice.core == to || cores.check(to).is_err() {
            return false;
        }
        cores.moved(choice.core, to, choice.load, choice.priority, now_ns);
        choice.core = to;
        choice.basis = basis;
        choice.moved_ns = now_ns;
        self.counters.moves += 1;
        true
    }
}

fn is_aged(choice: &Choice, settings: &Settings, now_ns: u64) -> bool {
    now_ns.saturating_sub(choice.used_ns) >= settings.choice_age_ns
}

#[cfg(test)]
mod tests;
