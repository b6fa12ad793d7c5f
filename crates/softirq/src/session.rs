//! Steers one interface: keeps the flow table, the core table and the balancer of crate `steer` in
//! step with the program in the kernel.
//!
//! The program chooses cores and moves flows on its own; at every sample its choices are read from
//! its slots and added to the table. In the other direction, entries, rankings, and the wanted
//! cores of flows are published to the program.

mod begin;
mod choices;
mod kept;
mod status;

pub use choices::{Cause, Progress};
pub use kept::Kept;
pub use status::{
    ChoiceStatus, CoreStatus, CounterStatus, EntryStatus, FlowsStatus, Status, VmStatus,
};

use crate::clock::now_ns;
use crate::cpus;
use crate::device::{ChosenMode, Device, DeviceError};
use crate::key::{format_match, looks_at_fcf};
use crate::layout::{self, CPUS_MAX, KEY_BYTES, NONE, OWN_MAX};
use crate::object::BpfError;
use crate::parse::Layout;
use crate::program::{Constants, Mode, Program, Published, rankings};
use crate::sampler::{Sampler, Shares, visit};
use crate::vms::{Vm, VmLocation};
use choices::Choices;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use steer::balance::Balancer;
use steer::cores::{CoreId, CoreTable, Load, Sample, VmId};
use steer::ranking::Rankings;
pub use steer::settings::Settings;
use steer::settings::SettingsError;
use steer::table::{EntryId, EntrySpec, FlowTable, Match, Removed, Scope, TableError, Target};

/// Most entries that a session can be given room for.
pub const ENTRIES_MAX: u32 = 65_536;
/// Most flows with their own choices that a session can be given room for.
pub const FLOWS_MAX: u32 = 1 << 20;

/// Samples between two checks of things that change rarely: processors, the interface, processes.
const SELDOM: u64 = 25;
/// Samples between two checks where virtual machines' threads run.
const VM_LOOK: u64 = 2;

/// Options of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The interface.
    pub device: String,
    /// The XDP mode; none to choose one for the interface.
    pub mode: Option<Mode>,
    /// Cores that packets are sent to; none for all that are online.
    pub cores: Option<BTreeSet<u32>>,
    /// Position of the flow control field.
    pub layout: Layout,
    /// Whether it is trusted on this interface.
    pub trusted: bool,
    /// Whether it is removed before the stack sees the packet.
    pub strip: bool,
    /// VXLAN's UDP port.
    pub vxlan_port: u16,
    /// Most entries.
    pub entries: u32,
    /// Most flows with their own choices.
    pub flows: u32,
    /// The policy's constants.
    pub settings: Settings,
    /// Whether /proc/stat is used although there are tracepoints.
    pub proc_stat: bool,
}

/// Errors of a session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// An error about the interface.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An error of the kernel.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// An error of the table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Invalid constants.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A core does not exist.
    #[error("core {core}: this machine has cores {present}")]
    NoCore {
        /// The core.
        core: u32,
        /// The cores that exist.
        present: String,
    },
    /// A core is offline.
    #[error("core {0}: it is offline")]
    Offline(u32),
    /// Packets are not steered to a core.
    #[error("core {core}: packets are steered to cores {steered} only")]
    NotSteered {
        /// The core.
        core: u32,
        /// The cores of the session.
        steered: String,
    },
    /// A core's number beyond what the program supports.
    #[error("core {0}: only cores below {CPUS_MAX} can be steered to")]
    Beyond(u32),
    /// There is no core to steer to.
    #[error("there is no core to steer to")]
    NoCores,
    /// The driver does not support XDP in driver mode.
    #[error("{device}: its driver has no driver-mode XDP ({error}); --mode generic works anywhere")]
    NoDriverMode {
        /// The interface.
        device: String,
        /// The kernel's text.
        error: String,
    },
    /// The virtual machine is unknown.
    #[error("virtual machine {0}: it is not known here; those that are: {1}")]
    UnknownVm(u16, String),
    /// A process does not exist.
    #[error("process {0}: there is none of this number")]
    NoProcess(u32),
    /// Virtual machines have too many cores.
    #[error("virtual machines may have {OWN_MAX} cores together")]
    TooManyVms,
    /// There is no such entry.
    #[error("{0}: no entry is so")]
    NoEntry(String),
    /// There is no such choice.
    #[error("entry {0} has no such choice")]
    NoChoice(u64),
    /// An option outside of its range.
    #[error("{name}: {value} is not between {least} and {most}")]
    Limit {
        /// The option.
        name: &'static str,
        /// The value.
        value: u64,
        /// The smallest valid value.
        least: u64,
        /// The largest valid value.
        most: u64,
    },
}

/// Formats a list of cores.
fn listed<'a>(cores: impl IntoIterator<Item = &'a u32>) -> String {
    let all: Vec<String> = cores.into_iter().map(u32::to_string).collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(",")
    }
}

/// A request for an entry.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct EntryRequest {
    /// Its match, as text.
    pub matching: String,
    /// The higher one wins.
    pub precedence: u16,
    /// Its core; none if it is chosen.
    pub core: Option<u32>,
    /// Whether each flow has its own choice; none to decide by the match.
    pub per_flow: Option<bool>,
    /// The virtual machine that packets are for.
    pub vm: Option<u16>,
    /// The priority bit.
    pub priority: bool,
    /// A number for the use of whoever adds it.
    pub cookie: u64,
    /// Time without a packet after which it is deleted, ms.
    pub idle_timeout_ms: Option<u64>,
    /// Time after which it is deleted, ms.
    pub hard_timeout_ms: Option<u64>,
}

/// Counters of entries and moves, in addition to the program's.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    samples: u64,
    late_samples: u64,
    expired_idle: u64,
    expired_hard: u64,
    deleted: u64,
}

/// A steered interface. Dropping it detaches the programs.
pub struct Session {
    device: Device,
    mode: ChosenMode,
    program: Program,
    constants: Constants,
    settings: Settings,
    sampler: Sampler,
    /// Processors of the core table, in ascending order.
    cpus: Vec<u32>,
    offline: BTreeSet<u32>,
    cores: CoreTable,
    table: FlowTable<KEY_BYTES>,
    balancer: Balancer,
    /// Slots of entries, and free ones.
    entry_slots: BTreeMap<EntryId, u32>,
    free_slots: Vec<u32>,
    choices: Choices,
    vms: BTreeMap<u16, Vm>,
    shares: Vec<Shares>,
    sampled_ns: u64,
    counters: Counters,
    warnings: Vec<String>,
}

impl Session {
    /// Returns the interface.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the XDP mode.
    pub fn mode(&self) -> &ChosenMode {
        &self.mode
    }

    /// Returns warnings for the user.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the loaded programs, for tests.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the interval between samples, ns.
    pub fn sample_period_ns(&self) -> u64 {
        self.settings.sample_period_ns
    }

    /// Returns whether the interface still exists and has the program.
    pub fn is_attached(&self) -> bool {
        self.program.is_attached(self.device.index)
    }

    fn core_of(&self, cpu: u32) -> Option<CoreId> {
        let at = self.cpus.binary_search(&cpu).ok()?;
        Some(CoreId(at as u16))
    }

    fn cpu_of(&self, core: CoreId) -> u32 {
        self.cpus.get(core.index()).copied().unwrap_or(NONE)
    }

    /// Checks that packets can be sent to a core; returns its id.
    fn check_core(&self, cpu: u32) -> Result<CoreId, SessionError> {
        let present = cpus::present();
        if !present.contains(&cpu) {
            let present = listed(&present);
            return Err(SessionError::NoCore { core: cpu, present });
        }
        if !cpus::online().contains(&cpu) {
            return Err(SessionError::Offline(cpu));
        }
        self.core_of(cpu).ok_or_else(|| SessionError::NotSteered {
            core: cpu,
            steered: listed(&self.cpus),
        })
    }

    /// Measures, reads what the program has done, decides on moves and publishes a ranking.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn sample(&mut self) -> Result<(), SessionError> {
        let now = now_ns();
        let period = now.saturating_sub(self.sampled_ns).max(1);
        self.counters.samples += 1;
        let late = u64::from(self.settings.ranking_samples) * self.settings.sample_period_ns;
        self.counters.late_samples += u64::from(period > late);
        if self.counters.samples.is_multiple_of(SELDOM) {
            self.look_at_processors();
        }
        if self.counters.samples.is_multiple_of(VM_LOOK) {
            self.look_at_vms();
        }
        for (at, cpu) in self.cpus.iter().enumerate() {
            if let Some(shares) = self.sampler.shares(&self.program, *cpu) {
                self.shares[at] = shares;
            }
        }
        self.follow(now, period);
        let samples = self.measured();
        self.cores.sample(&samples, now).map_err(TableError::from)?;
        self.sampled_ns = now;
        self.balancer.observe(&self.cores);
        self.decide(now);
        let removed = self.table.expire(&mut self.cores, &self.settings, now);
        if !removed.is_empty() {
            self.forget_entries(&removed)?;
        } else if self.counters.samples.is_multiple_of(SELDOM) {
            self.publish_entries()?;
        }
        self.publish_rankings()
    }

    /// Returns each core's load. An offline core counts as fully loaded.
    fn measured(&self) -> Vec<Sample> {
        let mut samples: Vec<Sample> = self
            .cpus
            .iter()
            .zip(&self.shares)
            .map(|(cpu, shares)| Sample {
                load: match self.offline.contains(cpu) {
                    true => Load::FULL,
                    false => shares.as_load(),
                },
                yielding: Load::ZERO,
            })
            .collect();
        for (_, choice) in self.table.choices().filter(|(_, choice)| !choice.priority) {
            if let Some(sample) = samples.get_mut(choice.core.index()) {
                sample.yielding = sample.yielding.plus(choice.load).min(sample.load);
            }
        }
        samples
    }

    /// Stops sending packets to cores that have gone offline, and sends them to those that are
    /// back.
    fn look_at_processors(&mut self) {
        let online = cpus::online();
        for cpu in self.cpus.clone() {
            let was_offline = self.offline.contains(&cpu);
            if online.contains(&cpu) == was_offline {
                if was_offline {
                    if self.program.open_core(cpu).is_ok() {
                        self.offline.remove(&cpu);
                        visit(&[cpu]);
                    }
                } else {
                    self.program.close_core(cpu);
                    self.offline.insert(cpu);
                }
            }
        }
    }

    /// Updates the cores of virtual machines.
    fn look_at_vms(&mut self) {
        let ids: Vec<u16> = self.vms.keys().copied().collect();
        for id in ids {
            let Some(vm) = self.vms.get_mut(&id) else {
                continue;
            };
            let before = vm.cores.clone();
            if !vm.look() {
                self.vms.remove(&id);
                self.cores.vm_stopped(VmId(id));
            } else if vm.cores != before {
                self.place_vm(id);
            }
        }
    }

    fn place_vm(&mut self, id: u16) {
        self.cores.vm_stopped(VmId(id));
        let Some(vm) = self.vms.get(&id) else {
            return;
        };
        let cores: Vec<CoreId> = vm
            .cores
            .iter()
            .filter_map(|cpu| self.core_of(*cpu))
            .collect();
        for core in cores {
            // The core is in the table, so this succeeds.
            let _ = self.cores.vm_started(VmId(id), core);
        }
    }

    fn publish_rankings(&mut self) -> Result<(), SessionError> {
        // What is placed from now on may also be in the core table. Counting it twice does no harm
        // until the next sample; not counting it would.
        let placed = self.program.placements();
        let now = now_ns();
        let ranking = Rankings::publish(&self.cores, &self.settings, now);
        let ranking = rankings(&ranking, &self.cores, &self.cpus, &placed);
        Ok(self.program.publish_rankings(&ranking)?)
    }

    /// Publishes the table's entries.
    fn publish_entries(&mut self) -> Result<(), SessionError> {
        let mut all = Vec::with_capacity(self.table.len());
        for view in self.table.entries(&self.settings) {
            let spec = view.spec;
            let (target, core) = match spec.target {
                Target::Core(core) => (layout::TARGET_CORE, self.cpu_of(core)),
                Target::Choose(Scope::Entry) => (layout::TARGET_ENTRY, NONE),
                Target::Choose(Scope::Flow) => (layout::TARGET_FLOW, NONE),
            };
            let Some(slot) = self.entry_slots.get(&view.id) else {
                continue;
            };
            let entry = layout::Entry {
                id: view.id.number(),
                slot: *slot,
                expected: view.expected.0,
                core,
                precedence: spec.precedence,
                vm: spec.vm.map_or(0, |vm| vm.0),
                has_vm: u8::from(spec.vm.is_some()),
                priority: u8::from(spec.priority),
                target,
                overrides: 0,
                zero: 0,
            };
            let matching = spec.matching;
            all.push(Published { matching, entry });
        }
        Ok(self.program.publish_entries(&all)?)
    }

    fn spec(
        &self,
        request: &EntryRequest,
        matching: Match<KEY_BYTES>,
    ) -> Result<EntrySpec<KEY_BYTES>, SessionError> {
        let target = match request.core {
            Some(cpu) => Target::Core(self.check_core(cpu)?),
            None => {
                // In the paper everything that matches an entry shares a core. With the flow
                // control field this keeps fragments and encrypted packets of a virtual machine
                // together.
                let per_flow = request.per_flow.unwrap_or(!looks_at_fcf(&matching));
                Target::Choose(if per_flow { Scope::Flow } else { Scope::Entry })
            }
        };
        Ok(EntrySpec {
            matching,
            precedence: request.precedence,
            target,
            vm: request.vm.map(VmId),
            priority: request.priority,
            cookie: request.cookie,
            idle_timeout_ns: request
                .idle_timeout_ms
                .map(|ms| ms.saturating_mul(1_000_000)),
            hard_timeout_ns: request
                .hard_timeout_ms
                .map(|ms| ms.saturating_mul(1_000_000)),
            notify: false,
        })
    }

    /// Adds an entry, or replaces the one of this match and precedence.
    ///
    /// # Errors
    ///
    /// The table is full, or there is no such core. Nothing is changed.
    pub fn add(
        &mut self,
        request: &EntryRequest,
        matching: Match<KEY_BYTES>,
    ) -> Result<u64, SessionError> {
        let spec = self.spec(request, matching)?;
        let now = now_ns();
        let id = self.table.add(spec, &mut self.cores, now)?;
        if !self.entry_slots.contains_key(&id) {
            let Some(slot) = self.free_slots.pop() else {
                self.table.delete_strict(&matching, spec.precedence, now);
                let full = TableError::EntriesFull(self.program.limits().entries as usize);
                return Err(full.into());
            };
            self.program.open_slot(slot, id.number(), NONE);
            self.entry_slots.insert(id, slot);
            self.choices.open(slot, id);
        }
        self.retarget(id, spec.target);
        self.publish_entries()?;
        Ok(id.number())
    }

    /// Changes target, virtual machine, priority and cookie of the entry of this match and
    /// precedence.
    ///
    /// # Errors
    ///
    /// There is no such entry or core. Nothing is changed.
    pub fn modify(
        &mut self,
        request: &EntryRequest,
        matching: Match<KEY_BYTES>,
    ) -> Result<u64, SessionError> {
        let wanted = self.spec(request, matching)?;
        let id = self.find(&matching, request.precedence)?;
        let change = |spec: &mut EntrySpec<KEY_BYTES>| {
            (spec.target, spec.vm) = (wanted.target, wanted.vm);
            (spec.priority, spec.cookie) = (wanted.priority, wanted.cookie);
        };
        self.table.modify(id, change, &mut self.cores)?;
        self.retarget(id, wanted.target);
        self.publish_entries()?;
        Ok(id.number())
    }

    fn find(&self, matching: &Match<KEY_BYTES>, precedence: u16) -> Result<EntryId, SessionError> {
        let none = || {
            let text = format_match(matching);
            SessionError::NoEntry(format!("precedence={precedence},{text}"))
        };
        self.table.find(matching, precedence).ok_or_else(none)
    }

    /// Deletes the entry of this match and precedence, or all entries within the match.
    ///
    /// # Errors
    ///
    /// There is no entry of this precedence.
    pub fn delete(
        &mut self,
        matching: &Match<KEY_BYTES>,
        precedence: Option<u16>,
    ) -> Result<usize, SessionError> {
        let now = now_ns();
        let removed = match precedence {
            Some(precedence) => {
                self.find(matching, precedence)?;
                let removed = self.table.delete_strict(matching, precedence, now);
                removed.into_iter().collect()
            }
            None => self.table.delete(matching, now),
        };
        self.forget_entries(&removed)?;
        Ok(removed.len())
    }

    fn forget_entries(&mut self, removed: &[Removed<KEY_BYTES>]) -> Result<(), SessionError> {
        for entry in removed {
            match entry.reason {
                steer::table::Reason::IdleTimeout => self.counters.expired_idle += 1,
                steer::table::Reason::HardTimeout => self.counters.expired_hard += 1,
                steer::table::Reason::Delete => self.counters.deleted += 1,
            }
        }
        self.publish_entries()?;
        let live: BTreeSet<EntryId> = self
            .table
            .entries(&self.settings)
            .iter()
            .map(|e| e.id)
            .collect();
        let gone: Vec<(EntryId, u32)> = self
            .entry_slots
            .iter()
            .filter(|(id, _)| !live.contains(id))
            .map(|(id, slot)| (*id, *slot))
            .collect();
        for (id, slot) in gone {
            self.entry_slots.remove(&id);
            self.program.close_slot(slot);
            if let Some(choice) = self.choices.close(slot) {
                self.table.forgotten(choice, &mut self.cores);
            }
            // Reused last, since a packet may still use it.
            self.free_slots.insert(0, slot);
        }
        Ok(())
    }

    /// Notes that a virtual machine has started, moved (`place`), or stopped.
    ///
    /// # Errors
    ///
    /// It stops but is unknown; or there is no such core or process. Nothing is changed.
    pub fn set_vm(&mut self, id: u16, place: Option<VmLocation>) -> Result<(), SessionError> {
        match place {
            None => {
                if self.vms.remove(&id).is_none() {
                    return Err(SessionError::UnknownVm(id, self.known_vms()));
                }
                self.cores.vm_stopped(VmId(id));
            }
            Some(place) => {
                if let VmLocation::Core(cpu) = place {
                    self.check_core(cpu)?;
                }
                let mut vm = Vm::new(place.clone());
                if let (false, VmLocation::Process(pid)) = (vm.look(), &place) {
                    return Err(SessionError::NoProcess(*pid));
                }
                let others = self.vms.iter().filter(|(other, _)| **other != id);
                let cores: usize = others.map(|(_, vm)| vm.cores.len()).sum();
                if cores + vm.cores.len() > OWN_MAX {
                    return Err(SessionError::TooManyVms);
                }
                self.vms.insert(id, vm);
                self.place_vm(id);
            }
        }
        self.decide(now_ns());
        self.publish_rankings()
    }

    fn known_vms(&self) -> String {
        let ids: Vec<u32> = self.vms.keys().map(|id| u32::from(*id)).collect();
        listed(&ids)
    }

    /// Sets the priority bit of all entries of a virtual machine; returns how many there are.
    ///
    /// # Errors
    ///
    /// No entry and no core has this virtual machine.
    pub fn set_priority(&mut self, vm: u16, priority: bool) -> Result<usize, SessionError> {
        let entries = self.table.entries(&self.settings);
        let of_vm = entries
            .iter()
            .filter(|entry| entry.spec.vm == Some(VmId(vm)));
        let ids: Vec<EntryId> = of_vm.map(|entry| entry.id).collect();
        if ids.is_empty() && !self.vms.contains_key(&vm) {
            return Err(SessionError::UnknownVm(vm, self.known_vms()));
        }
        for id in &ids {
            let change = |spec: &mut EntrySpec<KEY_BYTES>| spec.priority = priority;
            self.table.modify(*id, change, &mut self.cores)?;
        }
        self.publish_entries()?;
        self.decide(now_ns());
        self.publish_rankings()?;
        Ok(ids.len())
    }

    /// Returns the policy's constants.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the policy's constants.
    ///
    /// # Errors
    ///
    /// They are not valid. Nothing is changed.
    pub fn set_settings(&mut self, settings: Settings) -> Result<(), SessionError> {
        self.settings = settings.validate()?;
        self.constants.choice_age_ns = settings.choice_age_ns;
        self.program.set_choice_age(settings.choice_age_ns);
        self.balancer = Balancer::new(self.cores.count(), &self.settings);
        Ok(())
    }
}

/// Returns entries by their slots.
fn by_slot(slots: &BTreeMap<EntryId, u32>) -> HashMap<u32, EntryId> {
    slots.iter().map(|(id, slot)| (*slot, *id)).collect()
}
