//! Status of a session.

use super::{Progress, Session, SessionError, by_slot};
use crate::clock::now_ns;
use crate::device::ChosenMode;
use crate::key::format_match;
use crate::layout::{self, NONE};
use crate::parse::Layout;
use crate::sampler::{Shares, Source};
use crate::vms::VmLocation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use steer::table::{Scope, Target};

/// Status of a core.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoreStatus {
    /// Its number.
    pub core: u32,
    /// How it spends its time.
    pub shares: Shares,
    /// Its load with what was placed since the sample; 1.0 is a whole core.
    pub load: f64,
    /// Whether it is highly loaded.
    pub high: bool,
    /// Virtual machines that run there.
    pub vms: Vec<u16>,
    /// Whether priority flows hold it.
    pub held: bool,
    /// Whether it is offline.
    pub offline: bool,
    /// Packets redirected to it.
    pub redirected: u64,
    /// Packets that were received there and stayed.
    pub direct: u64,
    /// Packets dropped at its full queue.
    pub dropped_queue_full: u64,
    /// Packets dropped there for lack of memory.
    pub dropped_no_memory: u64,
    /// Cost of a packet there, ns.
    pub packet_ns: f64,
    /// The longest time of a packet from the redirect until the core had finished with it, over the
    /// last one to two seconds, ns.
    pub longest_wait_ns: u64,
}

/// Status of a virtual machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmStatus {
    /// Its number.
    pub vm: u16,
    /// How its cores are known.
    pub place: VmLocation,
    /// Its cores.
    pub cores: Vec<u32>,
}

/// Counters, by name.
pub type CounterStatus = BTreeMap<String, u64>;

/// Status of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The interface.
    pub device: String,
    /// The process id of the resident.
    pub pid: u32,
    /// The XDP mode, and the reason for it.
    pub mode: ChosenMode,
    /// Source of loads.
    pub source: Source,
    /// Position of the flow control field.
    pub layout: Layout,
    /// Whether it is trusted.
    pub trusted: bool,
    /// Whether it is removed.
    pub strip: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// The core table.
    pub cores: Vec<CoreStatus>,
    /// Virtual machines.
    pub vms: Vec<VmStatus>,
    /// Constants, by name; loads in percent, times in ms.
    pub constants: BTreeMap<String, f64>,
    /// Number of entries, and the most possible.
    pub entries: (u64, u64),
    /// Number of flows with their own choices.
    pub choices: u64,
    /// Counters of moves.
    pub moves: Progress,
    /// Counters, by name.
    pub counters: CounterStatus,
}

/// Status of an entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EntryStatus {
    /// Its number.
    pub entry: u64,
    /// Its match.
    #[serde(rename = "match")]
    pub matching: String,
    /// The higher one wins.
    pub precedence: u16,
    /// `core N`, `choose per entry` or `choose per flow`.
    pub target: String,
    /// Virtual machine.
    pub vm: Option<u16>,
    /// Priority bit.
    pub priority: bool,
    /// A number for the use of whoever added it.
    pub cookie: u64,
    /// Age, ms.
    pub age_ms: u64,
    /// Packets that have matched.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Status of a choice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChoiceStatus {
    /// The entry's number.
    pub entry: u64,
    /// The flow's hash, hexadecimal; none for the whole entry.
    pub flow: Option<String>,
    /// The core.
    pub core: u32,
    /// The reason for this core.
    pub basis: String,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Load; 1.0 is a whole core.
    pub load: f64,
    /// Time since its last packet, ms.
    pub idle_ms: u64,
    /// Where it is to move, and why.
    pub wanted: Option<(u32, super::Cause)>,
    /// Moves so far.
    pub moves: u64,
    /// Packets that went to the old core while the move was pending.
    pub kept: u64,
}

/// Entries and choices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowsStatus {
    /// Entries.
    pub entries: Vec<EntryStatus>,
    /// Choices.
    pub choices: Vec<ChoiceStatus>,
    /// Number of choices that are not listed.
    pub left_out: u64,
}

impl Session {
    /// Returns the core table, counters and constants.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn status(&self) -> Result<Status, SessionError> {
        let mut counters: CounterStatus = self
            .program
            .counters()?
            .into_iter()
            .map(|(name, n)| (name.to_owned(), n))
            .collect();
        for (name, value) in [
            ("samples", self.counters.samples),
            ("late_samples", self.counters.late_samples),
            ("expired_idle", self.counters.expired_idle),
            ("expired_hard", self.counters.expired_hard),
            ("deleted", self.counters.deleted),
        ] {
            counters.insert(name.to_owned(), value);
        }
        let settings = &self.settings;
        let ms = |ns: u64| ns as f64 / 1e6;
        let constants = [
            ("high", settings.high.part() * 100.0),
            ("margin", settings.margin.part() * 100.0),
            ("expected", settings.expected.part() * 100.0),
            ("sample_period", ms(settings.sample_period_ns)),
            ("hold", ms(settings.hold_ns)),
            ("choice_age", ms(settings.choice_age_ns)),
            ("ranking_samples", f64::from(settings.ranking_samples)),
            ("held_cores", f64::from(settings.held_cores)),
        ];
        let cores = self.cores.ids().map(|core| {
            let cpu = self.cpu_of(core);
            let counters = self.program.core_counters(cpu);
            CoreStatus {
                core: cpu,
                shares: self.shares[core.index()],
                load: self.cores.load(core).part(),
                high: self.cores.measured(core) >= settings.high,
                vms: self.cores.vms(core).iter().map(|vm| vm.0).collect(),
                held: self.cores.is_held(core),
                offline: self.offline.contains(&cpu),
                redirected: counters.frames,
                direct: counters.direct,
                dropped_queue_full: counters.dropped,
                dropped_no_memory: counters.lost,
                packet_ns: self.choices.cost_ns(core),
                longest_wait_ns: counters.wait_ns.max(counters.wait_before_ns),
            }
        });
        Ok(Status {
            device: self.device.name.clone(),
            pid: std::process::id(),
            mode: self.mode.clone(),
            source: self.sampler.source(),
            layout: self.constants.layout,
            trusted: self.constants.trusted,
            strip: self.constants.strip,
            warnings: self.warnings.clone(),
            cores: cores.collect(),
            vms: self
                .vms
                .iter()
                .map(|(id, vm)| VmStatus {
                    vm: *id,
                    place: vm.place.clone(),
                    cores: vm.cores.iter().copied().collect(),
                })
                .collect(),
            constants: constants
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            entries: (
                self.table.len() as u64,
                u64::from(self.program.limits().entries),
            ),
            choices: self.table.choices_len() as u64,
            moves: self.choices.progress(),
            counters,
        })
    }

    /// Returns entries and their choices, at most `limit` of the latter.
    pub fn flows(&self, limit: usize) -> FlowsStatus {
        let now = now_ns();
        let entries = self.table.entries(&self.settings).into_iter().map(|view| {
            let slot = self
                .entry_slots
                .get(&view.id)
                .map(|at| self.program.slot(*at));
            let (packets, bytes) = slot.map_or((0, 0), |slot| (slot.all_packets, slot.all_bytes));
            EntryStatus {
                entry: view.id.number(),
                matching: format_match(&view.spec.matching),
                precedence: view.spec.precedence,
                target: match view.spec.target {
                    Target::Core(core) => format!("core {}", self.cpu_of(core)),
                    Target::Choose(Scope::Entry) => "choose per entry".to_owned(),
                    Target::Choose(Scope::Flow) => "choose per flow".to_owned(),
                },
                vm: view.spec.vm.map(|vm| vm.0),
                priority: view.spec.priority,
                cookie: view.spec.cookie,
                age_ms: now.saturating_sub(view.added_ns) / 1_000_000,
                packets,
                bytes,
            }
        });
        let entries: Vec<EntryStatus> = entries.collect();
        let of_entries = by_slot(&self.entry_slots);
        let mut choices = Vec::new();
        let mut left_out = 0;
        for at in self.choices.slots() {
            let slot = self.program.slot(at);
            if slot.core == NONE || slot.state == layout::SLOT_FREE {
                continue;
            }
            let flow = !of_entries.contains_key(&at);
            if !flow && slot.packets == 0 {
                continue;
            }
            if choices.len() >= limit {
                left_out += 1;
                continue;
            }
            choices.push(ChoiceStatus {
                entry: slot.entry,
                flow: flow.then(|| format!("{:016x}", slot.flow)),
                core: slot.core,
                basis: match slot.basis {
                    layout::BASIS_LEAST => "least load",
                    layout::BASIS_DISPLACING => "displacing",
                    layout::BASIS_OWN => "own core",
                    layout::BASIS_FIXED => "entry",
                    _ => "stayed",
                }
                .to_owned(),
                packets: slot.packets,
                bytes: slot.bytes,
                load: self.choice_load(at),
                idle_ms: now.saturating_sub(slot.used_ns) / 1_000_000,
                wanted: self.choices.wanted(at),
                moves: slot.moves,
                kept: slot.kept,
            });
        }
        FlowsStatus {
            entries,
            choices,
            left_out,
        }
    }
}
