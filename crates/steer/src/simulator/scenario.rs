//! Scenarios: what is simulated.

use crate::cores::{CORES_MAX, CoreError, CoreId, CoreTable, VmId};
use crate::handover;
use crate::settings::{Settings, SettingsError};

/// Most events of a simulation, which take some minutes.
pub const EVENTS_MAX: u64 = 1_000_000_000;

/// How packets are assigned to cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// All to one core.
    Default(CoreId),
    /// By a hash of the flow; fragments after the first by a hash of the hosts only.
    Rss,
    /// By this crate. Packets that match no entry, or that stay, are assigned as by `Rss`.
    Adaptive,
}

/// How a live flow is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moving {
    /// Between workers ([`crate::handover`]).
    Handover(handover::Limits),
    /// Without parking, when its packets have finished ([`crate::drain`]).
    Drain,
    /// At once, whatever waits in the old core's queue. Packets are reordered.
    AtOnce,
}

/// A virtual machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct VmSpec {
    /// Its number.
    pub id: VmId,
    /// The core it runs on.
    pub core: CoreId,
    /// What it computes besides receiving packets, as a share of a core. It yields to everything
    /// else.
    pub compute: f64,
}

/// A flow that is simulated packet by packet.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowSpec {
    /// Datagrams per second, with exponential intervals.
    pub rate: f64,
    /// Bytes of a datagram.
    pub bytes: u32,
    /// Fragments of a datagram.
    pub fragments: u8,
    /// Time per fragment, ns.
    pub fragment_ns: f64,
    /// Time per datagram on the core that completes it, ns.
    pub datagram_ns: f64,
    /// Time per datagram in the virtual machine, ns.
    pub guest_ns: f64,
    /// Its virtual machine; None if its datagrams are delivered as soon as they are complete.
    pub vm: Option<VmId>,
    /// Whether it has the priority bit.
    pub priority: bool,
    /// Its hash.
    pub hash: u64,
}

/// Many flows that are not simulated packet by packet.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Background {
    /// Number of flows.
    pub flows: u32,
    /// Their total load, in cores. Loads of single flows are heavy-tailed (Pareto, 1.2).
    pub load: f64,
    /// Time over which they start at a constant rate, ns; they never end.
    pub ramp_ns: u64,
}

/// A change of the scenario.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Change {
    /// A virtual machine starts, or moves to another core.
    StartVm(VmSpec),
    /// A virtual machine stops.
    StopVm(VmId),
    /// A flow's priority bit.
    Priority(usize, bool),
    /// A flow's datagrams per second.
    Rate(usize, f64),
}

/// A host, the traffic that it receives, and how it is steered.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Number of cores.
    pub cores: u16,
    /// How packets are assigned to cores.
    pub mode: Mode,
    /// How flows are moved.
    pub moving: Moving,
    /// Virtual machines that run from the beginning.
    pub vms: Vec<VmSpec>,
    /// Flows simulated packet by packet.
    pub flows: Vec<FlowSpec>,
    /// All other flows.
    pub background: Background,
    /// Changes and their times, ns.
    pub changes: Vec<(u64, Change)>,
    /// Moves of random flows to random cores per second, in addition to the balancer's.
    pub forced_moves: f64,
    /// Packets that a core's queue holds.
    pub queue: usize,
    /// Datagrams that a virtual machine's queue holds.
    pub guest_queue: usize,
    /// Share of a core that a virtual machine gets while packets keep the core busy. Linux then
    /// leaves softirqs to a thread (ksoftirqd), but interrupts still take precedence.
    pub task_share: f64,
    /// Hash of the hosts, by which `Rss` spreads fragments after the first.
    pub fragment_hash: u64,
    /// The policy's constants.
    pub settings: Settings,
    /// Length of the warm-up, during which nothing is counted, ns.
    pub warm_up_ns: u64,
    /// Length of the simulation, ns.
    pub end_ns: u64,
    /// Deliveries are also counted for each interval of this length, ns.
    pub interval_ns: u64,
    /// Seed of everything random.
    pub seed: u64,
}

impl Default for Scenario {
    /// Four idle cores that steer, for one second.
    fn default() -> Scenario {
        Scenario {
            cores: 4,
            mode: Mode::Adaptive,
            moving: Moving::Handover(handover::Limits::default()),
            vms: Vec::new(),
            flows: Vec::new(),
            background: Background::default(),
            changes: Vec::new(),
            forced_moves: 0.0,
            queue: 1024,
            guest_queue: 256,
            task_share: 0.02,
            fragment_hash: 0,
            settings: Settings::default(),
            warm_up_ns: 0,
            end_ns: 1_000_000_000,
            interval_ns: 100_000_000,
            seed: 1,
        }
    }
}

/// Why a scenario is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// The policy's constants are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The number of cores is invalid, or a core does not exist.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// A number is out of its range.
    #[error("{field}: {value} is not in {range}")]
    Range {
        /// Which number.
        field: &'static str,
        /// Its value.
        value: f64,
        /// Its range.
        range: &'static str,
    },
    /// A change names a flow that does not exist.
    #[error("a change of flow {flow}: there are {flows} flows")]
    NoFlow {
        /// The flow that was named.
        flow: usize,
        /// Number of flows.
        flows: usize,
    },
    /// The simulation would take too long.
    #[error("about {0} events: at most {EVENTS_MAX} are simulated")]
    TooLong(u64),
}

impl Scenario {
    /// Returns about how many events the simulation has.
    ///
    /// # Errors
    ///
    /// Fails if something is out of range, or there would be more than [`EVENTS_MAX`] events.
    pub fn check(&self) -> Result<u64, ScenarioError> {
        let settings = self.settings.validate()?;
        if self.cores > CORES_MAX {
            return Err(CoreError::Count(self.cores).into());
        }
        let cores = CoreTable::new(self.cores, 0)?;
        if let Mode::Default(core) = self.mode {
            cores.check(core)?;
        }
        let starts = self.changes.iter().filter_map(|(_, change)| match change {
            Change::StartVm(vm) => Some(vm),
            _ => None,
        });
        for vm in self.vms.iter().chain(starts) {
            cores.check(vm.core)?;
            in_range("compute", vm.compute, 0.0, 1.0, "0 to 1")?;
        }
        let rate = |rate| in_range("rate", rate, 1e-3, 1e9, "0.001 to 1e9");
        let mut fastest: Vec<f64> = Vec::with_capacity(self.flows.len());
        for flow in &self.flows {
            rate(flow.rate)?;
            fastest.push(flow.rate);
            in_range("fragments", f64::from(flow.fragments), 1.0, 64.0, "1 to 64")?;
            for (field, time) in [
                ("fragment_ns", flow.fragment_ns),
                ("datagram_ns", flow.datagram_ns),
                ("guest_ns", flow.guest_ns),
            ] {
                in_range(field, time, 0.0, 1e9, "0 to 1e9")?;
            }
        }
        for (_, change) in &self.changes {
            let (Change::Priority(flow, _) | Change::Rate(flow, _)) = *change else {
                continue;
            };
            let flows = self.flows.len();
            let fastest = fastest
                .get_mut(flow)
                .ok_or(ScenarioError::NoFlow { flow, flows })?;
            if let Change::Rate(_, new) = *change {
                rate(new)?;
                *fastest = fastest.max(new);
            }
        }
        let flows = f64::from(self.background.flows);
        in_range("background flows", flows, 0.0, 1e7, "0 to 10000000")?;
        let background = self.background.load;
        in_range("background load", background, 0.0, 1e4, "0 to 10000")?;
        in_range("forced_moves", self.forced_moves, 0.0, 1e6, "0 to 1e6")?;
        in_range("task_share", self.task_share, 0.0, 0.5, "0 to 0.5")?;
        in_range("queue", self.queue as f64, 1.0, 1e6, "1 to 1000000")?;
        in_range(
            "guest_queue",
            self.guest_queue as f64,
            1.0,
            1e6,
            "1 to 1000000",
        )?;
        in_range(
            "interval_ns",
            self.interval_ns as f64,
            1e6,
            1e18,
            "1e6 to 1e18",
        )?;
        let intervals = (self.end_ns / self.interval_ns) as f64;
        in_range("end_ns / interval_ns", intervals, 0.0, 1e6, "0 to 1000000")?;
        let length = self.end_ns.saturating_sub(self.warm_up_ns) as f64;
        in_range("end_ns - warm_up_ns", length, 1.0, 1e15, "1 to 1e15")?;

        let seconds = self.end_ns as f64 / 1e9;
        let packets = self.flows.iter().zip(&fastest);
        let rate: f64 = packets
            .map(|(flow, rate)| rate * f64::from(flow.fragments))
            .sum();
        let samples = 1e9 / settings.sample_period_ns as f64 + 1e9 / super::run::SLICE_NS as f64;
        let events = (seconds * (3.0 * rate + samples + self.forced_moves)) as u64;
        let events = events + u64::from(self.background.flows);
        if events > EVENTS_MAX {
            return Err(ScenarioError::TooLong(events));
        }
        Ok(events)
    }
}

fn in_range(
    field: &'static str,
    value: f64,
    least: f64,
    most: f64,
    range: &'static str,
) -> Result<(), ScenarioError> {
    // NaN is not in the range either.
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(ScenarioError::Range {
            field,
            value,
            range,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_what_is_wrong() {
        let bad = |change: &dyn Fn(&mut Scenario)| {
            let mut scenario = paper_like();
            change(&mut scenario);
            scenario.check().unwrap_err().to_string()
        };
        assert!(paper_like().check().is_ok());
        assert_eq!(
            bad(&|s| s.flows[0].rate = f64::NAN),
            "rate: NaN is not in 0.001 to 1e9"
        );
        assert_eq!(
            bad(&|s| s.mode = Mode::Default(CoreId(4))),
            "core 4 is not one of the 4 cores"
        );
        assert_eq!(
            bad(&|s| s.changes.push((0, Change::Priority(1, true)))),
            "a change of flow 1: there are 1 flows"
        );
        // Three events per packet, 50 samples and 1,000 slices per second.
        assert_eq!(
            bad(&|s| s.flows[0].rate = 1e9),
            "about 3000001050 events: at most 1000000000 are simulated"
        );
        assert!(bad(&|s| s.end_ns = 1 << 60).starts_with("end_ns"));
        assert!(bad(&|s| s.settings.hold_ns = 0).starts_with("hold:"));
        assert!(bad(&|s| s.warm_up_ns = s.end_ns).starts_with("end_ns"));
    }

    fn paper_like() -> Scenario {
        Scenario {
            flows: vec![FlowSpec {
                rate: 1_000.0,
                bytes: 64,
                fragments: 1,
                fragment_ns: 1_000.0,
                datagram_ns: 0.0,
                guest_ns: 0.0,
                vm: None,
                priority: false,
                hash: 0,
            }],
            ..Scenario::default()
        }
    }
}
