//! Choices that the program has made: reads them from its slots into the table, measures and moves
//! them.

use super::Session;
use crate::clock::now_ns;
use crate::layout::{self, NONE, SLOT_DEAD, SLOT_LIVE, SLOT_RETIRING, Slot};
use std::collections::HashMap;
use steer::balance::{self, Flow};
use steer::cores::{CoreId, Load};
use steer::policy::{Basis, Decision, Request, choose};
use steer::table::{ChoiceId, ChoiceKey, EntryId, Made, Target};

/// Fewest packets in a sample for a measurement of the cost of a packet on a core.
const COST_PACKETS: u64 = 16;
/// Divisor of a new measurement of packets' cost: it has a weight of 1 in this many.
const COST_WEIGHT: f64 = 8.0;

/// Why a choice is to move.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A virtual machine runs on its core.
    VirtualMachine,
    /// It is a priority flow.
    Priority,
    /// It had to use its virtual machine's core, and can now leave it.
    Return,
    /// Its core is highly loaded.
    Load,
    /// Its core cannot be used any more, or never could.
    CoreGone,
    /// The entry names another core.
    Entry,
    /// A command asked for it.
    Asked,
}

impl From<balance::Cause> for Cause {
    fn from(cause: balance::Cause) -> Cause {
        match cause {
            balance::Cause::VirtualMachine => Cause::VirtualMachine,
            balance::Cause::Priority => Cause::Priority,
            balance::Cause::Return => Cause::Return,
            balance::Cause::Load => Cause::Load,
        }
    }
}

/// Counters of moves.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// Moves that were decided on or asked for.
    pub wanted: u64,
    /// Made, once drained.
    pub made: u64,
    /// Given up after a hold time, because the flow did not drain.
    pub given_up: u64,
    /// No longer wanted before they were made.
    pub withdrawn: u64,
    /// The longest time from decision to move, ns.
    pub longest_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    core: u32,
    basis: Basis,
    cause: Cause,
    since_ns: u64,
}

/// State of a slot.
#[derive(Clone, Copy, Debug)]
struct Tracked {
    entry: EntryId,
    flow: Option<u64>,
    choice: Option<ChoiceId>,
    chosen: u32,
    packets: u64,
    wanted: Option<Wanted>,
}

/// State of all slots.
pub(super) struct Choices {
    tracked: HashMap<u32, Tracked>,
    by_choice: HashMap<ChoiceId, u32>,
    /// The first slot for flows; lower ones are entries'.
    first: u32,
    /// Slots that were removed from the map of flows, and may be reused at the next sample.
    unlinked: Vec<u32>,
    /// Cost of a packet on each core, ns.
    cost_ns: Vec<f64>,
    taken: Vec<u64>,
    progress: Progress,
}

impl Choices {
    pub(super) fn new(entries: u32, cores: usize) -> Choices {
        Choices {
            tracked: HashMap::new(),
            by_choice: HashMap::new(),
            first: entries,
            unlinked: Vec::new(),
            cost_ns: vec![0.0; cores],
            taken: vec![0; cores],
            progress: Progress::default(),
        }
    }

    /// Starts to track an entry's slot.
    pub(super) fn open(&mut self, slot: u32, entry: EntryId) {
        self.tracked.insert(slot, tracked(entry, None));
    }

    /// Stops tracking a slot; returns its choice.
    pub(super) fn close(&mut self, slot: u32) -> Option<ChoiceId> {
        let choice = self.tracked.remove(&slot)?.choice?;
        self.by_choice.remove(&choice);
        Some(choice)
    }

    /// Returns the counters of moves.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the cost of a packet on a core, ns.
    pub(super) fn cost_ns(&self, core: CoreId) -> f64 {
        self.cost_ns.get(core.index()).copied().unwrap_or(0.0)
    }

    /// Returns where the flow of a slot is to move, and why.
    pub(super) fn wanted(&self, slot: u32) -> Option<(u32, Cause)> {
        let wanted = self.tracked.get(&slot)?.wanted?;
        Some((wanted.core, wanted.cause))
    }

    /// Returns the slots in use, in ascending order.
    pub(super) fn slots(&self) -> Vec<u32> {
        let mut slots: Vec<u32> = self.tracked.keys().copied().collect();
        slots.sort_unstable();
        slots
    }
}

fn tracked(entry: EntryId, flow: Option<u64>) -> Tracked {
    Tracked {
        entry,
        flow,
        choice: None,
        chosen: 0,
        packets: 0,
        wanted: None,
    }
}

fn basis(of: u32) -> Basis {
    match of {
        layout::BASIS_LEAST => Basis::LeastLoad,
        layout::BASIS_DISPLACING => Basis::Displacing,
        layout::BASIS_OWN => Basis::OwnCore,
        _ => Basis::Stayed,
    }
}

impl Session {
    /// Reads what the program has done in the last `period` ns.
    pub(super) fn follow(&mut self, now: u64, period: u64) {
        self.measure_costs();
        for at in std::mem::take(&mut self.choices.unlinked) {
            self.program.vacate_slot(at);
        }
        for (id, at) in self.entry_slots.clone() {
            let slot = self.program.slot(at);
            let used = slot.all_used_ns.max(slot.used_ns);
            self.table
                .counted(id, slot.all_packets, slot.all_bytes, used);
            self.follow_slot(at, &slot, now, period);
        }
        let entries: HashMap<u64, EntryId> = self
            .entry_slots
            .keys()
            .map(|id| (id.number(), *id))
            .collect();
        let limits = self.program.limits();
        for at in self.choices.first..limits.entries + limits.flows {
            let slot = self.program.slot(at);
            // Slots are used from the lowest on: this one and all that follow have never been used.
            if slot.used_ns == 0 {
                break;
            }
            match (slot.state, entries.get(&slot.entry)) {
                (SLOT_LIVE | SLOT_RETIRING, None) => self.retire(at, &slot, None),
                (SLOT_RETIRING, Some(entry)) => self.retire(at, &slot, Some(*entry)),
                (SLOT_LIVE, Some(entry)) => {
                    let age = now.saturating_sub(slot.used_ns);
                    if age >= self.settings.choice_age_ns {
                        self.program.change_state(at, SLOT_LIVE, SLOT_RETIRING);
                        continue;
                    }
                    let flow = Some(slot.flow);
                    let known = self.choices.tracked.get(&at);
                    if known.is_none_or(|known| known.entry != *entry || known.flow != flow) {
                        self.choices.tracked.insert(at, tracked(*entry, flow));
                    }
                    self.follow_slot(at, &slot, now, period);
                }
                _ => {}
            }
        }
    }

    /// Forgets a flow's choice, unless a packet has made it live again meanwhile.
    fn retire(&mut self, at: u32, slot: &Slot, entry: Option<EntryId>) {
        if !self.program.change_state(at, slot.state, SLOT_DEAD) {
            return;
        }
        self.program.unlink_flow(slot.entry, slot.flow);
        if let Some(of_entry) = entry.and_then(|entry| self.entry_slots.get(&entry)) {
            self.program.flow_gone(*of_entry);
        }
        if let Some(choice) = self.choices.close(at) {
            self.table.forgotten(choice, &mut self.cores);
        }
        self.choices.unlinked.push(at);
    }

    fn measure_costs(&mut self) {
        for core in self.cores.ids() {
            let counters = self.program.core_counters(self.cpu_of(core));
            let taken = counters.frames + counters.direct;
            let packets = taken.saturating_sub(self.choices.taken[core.index()]);
            self.choices.taken[core.index()] = taken;
            if packets < COST_PACKETS {
                continue;
            }
            let period = now_ns().saturating_sub(self.sampled_ns) as f64;
            let cost = self.shares[core.index()].packets() * period / packets as f64;
            let known = &mut self.choices.cost_ns[core.index()];
            *known = match *known {
                0.0 => cost,
                known => known + (cost - known) / COST_WEIGHT,
            };
        }
    }

    fn follow_slot(&mut self, at: u32, slot: &Slot, now: u64, period: u64) {
        let Some(mut known) = self.choices.tracked.get(&at).copied() else {
            return;
        };
        let packets = slot.packets.saturating_sub(known.packets);
        known.packets = slot.packets;
        if slot.core != NONE {
            self.follow_choice(at, slot, &mut known, now);
        }
        if let (Some(choice), Some(core)) = (known.choice, self.core_of(slot.core)) {
            let spent = packets as f64 * self.choices.cost_ns(core);
            self.table.used(choice, slot.used_ns);
            self.table
                .measured(choice, Load::of(spent / period as f64), slot.used_ns);
        }
        self.choices.tracked.insert(at, known);
    }

    fn follow_choice(&mut self, at: u32, slot: &Slot, known: &mut Tracked, now: u64) {
        let made_again = slot.chosen != known.chosen;
        known.chosen = slot.chosen;
        if let Some(wanted) = known.wanted
            && wanted.core == slot.core
        {
            // It has arrived, by a move or by a new choice.
            self.program.want(at, NONE);
            known.wanted = None;
            self.choices.progress.made += 1;
            let took = slot.chosen_ns.saturating_sub(wanted.since_ns);
            let longest = &mut self.choices.progress.longest_ns;
            *longest = (*longest).max(took);
            if let (Some(choice), Some(core)) = (known.choice, self.core_of(slot.core)) {
                let basis = wanted.basis;
                self.table
                    .move_choice(choice, core, basis, &mut self.cores, now);
            }
        }
        let is_fixed = self.is_fixed(known.entry);
        let live = known.choice.and_then(|choice| self.table.choice(choice));
        let same = live.is_some_and(|choice| self.cpu_of(choice.core) == slot.core);
        if is_fixed || (same && !made_again) {
            return;
        }
        if let Some(before) = known.choice.take() {
            self.choices.by_choice.remove(&before);
            self.table.forgotten(before, &mut self.cores);
        }
        // A core outside of the table has no choices; `rehome` looks for another one.
        let Some(core) = self.core_of(slot.core) else {
            return;
        };
        if now.saturating_sub(slot.used_ns) >= self.settings.choice_age_ns {
            return;
        }
        let made = Made {
            key: ChoiceKey {
                entry: known.entry,
                flow: known.flow,
            },
            core,
            basis: basis(slot.basis),
            made_ns: slot.chosen_ns,
            used_ns: slot.used_ns,
            load: Load(slot.load),
        };
        // The table has as much room as the program's maps.
        if let Ok(choice) = self.table.adopt(made, &mut self.cores) {
            known.choice = Some(choice);
            self.choices.by_choice.insert(choice, at);
        }
    }

    fn is_fixed(&self, entry: EntryId) -> bool {
        let target = self.table.spec(entry).map(|spec| spec.target);
        matches!(target, Some(Target::Core(_)))
    }

    /// Handles a changed target of an entry: if it names a core, its packets are moved there.
    pub(super) fn retarget(&mut self, entry: EntryId, target: Target) {
        let Some(at) = self.entry_slots.get(&entry).copied() else {
            return;
        };
        match target {
            Target::Core(core) => {
                let cpu = self.cpu_of(core);
                if let Some(known) = self.choices.tracked.get_mut(&at)
                    && let Some(choice) = known.choice.take()
                {
                    self.choices.by_choice.remove(&choice);
                }
                let slot = self.program.slot(at);
                if slot.core != NONE && slot.core != cpu {
                    self.want(at, cpu, Basis::Stayed, Cause::Entry, now_ns());
                }
            }
            Target::Choose(_) => self.withdraw(at, |cause| cause == Cause::Entry),
        }
    }

    /// Asks for the move of a choice.
    pub(super) fn want(&mut self, at: u32, cpu: u32, basis: Basis, cause: Cause, now: u64) {
        let Some(known) = self.choices.tracked.get_mut(&at) else {
            return;
        };
        let since_ns = match known.wanted {
            Some(before) if before.core == cpu => before.since_ns,
            _ => {
                self.choices.progress.wanted += 1;
                now
            }
        };
        known.wanted = Some(Wanted {
            core: cpu,
            basis,
            cause,
            since_ns,
        });
        self.program.want(at, cpu);
    }

    fn withdraw(&mut self, at: u32, which: impl Fn(Cause) -> bool) {
        if let Some(known) = self.choices.tracked.get_mut(&at)
            && known.wanted.is_some_and(|wanted| which(wanted.cause))
        {
            known.wanted = None;
            self.choices.progress.withdrawn += 1;
            self.program.want(at, NONE);
        }
    }

    /// Decides on moves, and asks the program for them.
    pub(super) fn decide(&mut self, now: u64) {
        let sources = self.balancer.sources(&self.cores, &self.settings);
        let live = self.table.choices().filter(|(_, choice)| {
            sources.get(choice.core.index()) == Some(&true)
                && now.saturating_sub(choice.used_ns) < self.settings.choice_age_ns
        });
        let flows: Vec<Flow<ChoiceId>> = live
            .map(|(key, choice)| Flow {
                key,
                core: choice.core,
                load: choice.load,
                vm: choice.vm,
                priority: choice.priority,
                basis: choice.basis,
                moved_ns: choice.moved_ns,
            })
            .collect();
        let moves = self
            .balancer
            .decide(&self.cores, &flows, &self.settings, now);
        let mut decided = std::collections::HashSet::new();
        for step in moves {
            if let Some(at) = self.choices.by_choice.get(&step.key).copied() {
                decided.insert(at);
                let cpu = self.cpu_of(step.to);
                self.want(at, cpu, step.basis, step.cause.into(), now);
            }
        }
        self.rehome(now);
        let pending = self.choices.tracked.iter();
        let pending: Vec<(u32, Wanted)> = pending
            .filter_map(|(at, known)| Some((*at, known.wanted?)))
            .filter(|(at, _)| !decided.contains(at))
            .collect();
        for (at, wanted) in pending {
            let age = now.saturating_sub(wanted.since_ns);
            match wanted.cause {
                // These are decided again at every sample while there is a reason.
                Cause::VirtualMachine | Cause::Priority => {
                    self.withdraw(at, |cause| cause == wanted.cause);
                }
                Cause::Return | Cause::Load | Cause::Asked if age >= self.settings.hold_ns => {
                    if let Some(known) = self.choices.tracked.get_mut(&at) {
                        known.wanted = None;
                    }
                    self.choices.progress.given_up += 1;
                    self.program.want(at, NONE);
                }
                _ => {}
            }
        }
    }

    /// Looks for a core for choices on a core that is offline or not in the table.
    fn rehome(&mut self, now: u64) {
        if self.offline.is_empty() && self.cpus.len() == self.program.limits().cpus as usize {
            return;
        }
        let slots = self.choices.tracked.iter();
        let lost: Vec<(u32, Request)> = slots
            .filter_map(|(at, known)| {
                let spec = self.table.spec(known.entry)?;
                let cpu = self.program.slot(*at).core;
                let usable = self.core_of(cpu).is_some() && !self.offline.contains(&cpu);
                let chooses = matches!(spec.target, Target::Choose(_));
                (cpu != NONE && !usable && chooses).then_some((
                    *at,
                    Request {
                        vm: spec.vm,
                        priority: spec.priority,
                    },
                ))
            })
            .collect();
        for (at, request) in lost {
            if let Decision::Use(core, basis) = choose(&self.cores, request, &self.settings) {
                let cpu = self.cpu_of(core);
                self.want(at, cpu, basis, Cause::CoreGone, now);
            }
        }
    }

    /// Returns the load of the choice in a slot; 1.0 is a whole core.
    pub(super) fn choice_load(&self, at: u32) -> f64 {
        let choice = self.choices.tracked.get(&at).and_then(|known| known.choice);
        let choice = choice.and_then(|choice| self.table.choice(choice));
        choice.map_or(0.0, |choice| choice.load.part())
    }

    /// Moves an entry's choice, or that of one of its flows, whatever the policy says.
    ///
    /// # Errors
    ///
    /// There is no such choice or core.
    pub fn move_choice(
        &mut self,
        entry: u64,
        flow: Option<u64>,
        cpu: u32,
    ) -> Result<(), super::SessionError> {
        self.check_core(cpu)?;
        let mut slots = self.choices.tracked.iter();
        let found = slots.find(|(_, known)| known.entry.number() == entry && known.flow == flow);
        let at = found.map(|(at, _)| *at);
        let at = at.ok_or(super::SessionError::NoChoice(entry))?;
        if self.program.slot(at).core == NONE {
            return Err(super::SessionError::NoChoice(entry));
        }
        self.want(at, cpu, Basis::Stayed, Cause::Asked, now_ns());
        Ok(())
    }
}
