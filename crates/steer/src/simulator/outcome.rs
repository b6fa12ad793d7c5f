//! Results of a simulation.

/// Results of one core, over the counted time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CoreOutcome {
    /// Share of the time that it was busy, virtual machines included.
    pub load: f64,
    /// Share of the time that it processed packets.
    pub packet_load: f64,
    /// Fragments of exact flows processed.
    pub packets: u64,
}

/// Results of one exact flow, over the counted time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FlowOutcome {
    /// Datagrams that arrived.
    pub offered: u64,
    /// Datagrams that were delivered.
    pub delivered: u64,
    /// Datagrams of which a fragment found its core's queue full.
    pub lost_in_queue: u64,
    /// Datagrams that found their virtual machine's queue full, or no virtual machine.
    pub lost_at_guest: u64,
    /// Datagrams that were completed after a later one.
    pub reordered: u64,
    /// Moves to another core.
    pub moves: u64,
    /// Bits delivered per second.
    pub bits_per_second: f64,
    /// Datagrams delivered in each interval, from the beginning of the simulation.
    pub intervals: Vec<u64>,
}

impl FlowOutcome {
    /// Returns the share of its datagrams that were lost.
    pub fn loss(&self) -> f64 {
        let lost = self.lost_in_queue + self.lost_at_guest;
        lost as f64 / self.offered.max(1) as f64
    }
}

/// Results of all background flows, over the whole simulation.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct BackgroundOutcome {
    /// Number of flows.
    pub flows: u32,
    /// Share of their packets that were lost.
    pub loss: f64,
    /// The same for the flow that lost most.
    pub worst_loss: f64,
    /// Moves to another core.
    pub moves: u64,
}

/// Results of a simulation.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Cores.
    pub cores: Vec<CoreOutcome>,
    /// Exact flows.
    pub flows: Vec<FlowOutcome>,
    /// Other flows.
    pub background: BackgroundOutcome,
    /// Moves by handover that were given up, or could not begin.
    pub moves_given_up: u64,
    /// Packets that were sent to their flow's old core because earlier ones had not finished there
    /// ([`crate::drain`]).
    pub packets_kept: u64,
    /// When a flow moved last, ns; 0 if none did.
    pub last_move_ns: u64,
    /// Number of simulated events.
    pub events: u64,
}

impl Outcome {
    /// Returns the bits per second delivered by all exact flows.
    pub fn bits_per_second(&self) -> f64 {
        self.flows.iter().map(|flow| flow.bits_per_second).sum()
    }
}
