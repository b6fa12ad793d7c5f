//! What a simulation found.

/// One core, over the time that was counted.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CoreOutcome {
    /// Part of the time that it was busy, virtual machines included.
    pub load: f64,
    /// Part of the time that it processed packets.
    pub packet_load: f64,
    /// Fragments of exact flows that it processed.
    pub packets: u64,
}

/// One exact flow, over the time that was counted.
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
    /// Bits delivered in a second.
    pub bits_per_second: f64,
    /// Datagrams delivered in each interval, from the beginning of the simulation.
    pub intervals: Vec<u64>,
}

impl FlowOutcome {
    /// Part of its datagrams that were lost.
    pub fn loss(&self) -> f64 {
        let lost = self.lost_in_queue + self.lost_at_guest;
        lost as f64 / self.offered.max(1) as f64
    }
}

/// All background flows together, over the whole simulation.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct BackgroundOutcome {
    /// Number of flows.
    pub flows: u32,
    /// Part of their packets that were lost.
    pub loss: f64,
    /// The same of the flow that lost most.
    pub worst_loss: f64,
    /// Moves to another core.
    pub moves: u64,
}

/// What a simulation found.
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
    /// Packets that went to their flow's old core, because earlier ones had not finished there
    /// ([`crate::drain`]).
    pub packets_kept: u64,
    /// When flows moved last, ns; 0 if none did.
    pub last_move_ns: u64,
    /// Events that were simulated.
    pub events: u64,
}

impl Outcome {
    /// Bits delivered in a second by all exact flows.
    pub fn bits_per_second(&self) -> f64 {
        self.flows.iter().map(|flow| flow.bits_per_second).sum()
    }
}
