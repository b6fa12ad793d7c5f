//! Reports of a datapath's ports, queues and workers.

use crate::counters::WorkerStats;
use crate::port::{BridgeId, PortId};
use crate::turns::TurnStats;
use program::actions::PortNo;

/// A receive queue, as `dpif-netdev/pmd-rxq-show` prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueInfo {
    /// Its port.
    pub port: PortId,
    /// The port's name.
    pub name: String,
    /// Its index in the port.
    pub index: usize,
    /// Frames received.
    pub packets: u64,
    /// Receive bursts that were not empty.
    pub batches: u64,
    /// Cycles spent on its frames, since the port was added.
    pub cycles: u64,
    /// Cycles that the worker serving it spent on its frames in the last minute.
    pub recent_cycles: u64,
    /// Cycles that other workers spent on its frames in the last minute.
    pub recent_taken_cycles: u64,
}

/// A worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerInfo {
    /// Its thread's name.
    pub name: String,
    /// Its number among threads, as in its name.
    pub id: u32,
    /// The processor it is pinned to.
    pub cpu: Option<usize>,
    /// Whether it serves only queues that are pinned to it.
    pub isolated: bool,
    /// How it has spent its time since it started or its counts were cleared.
    pub stats: WorkerStats,
    /// Durations of its turns since it started or [`crate::Datapath::clear_turns`] was called.
    pub turns: TurnStats,
    /// Cycles that passed in the last minute: busy, idle and asleep.
    pub recent_cycles: u64,
    /// Cycles of these that it spent on frames which other workers had received.
    pub recent_taken_cycles: u64,
    /// Its queues.
    pub queues: Vec<QueueInfo>,
}

/// A port, as `dpif/show` prints it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// Its identifier.
    pub id: PortId,
    /// Name.
    pub name: String,
    /// Its bridge.
    pub bridge: BridgeId,
    /// OpenFlow number.
    pub number: PortNo,
    /// For a patch port: the peer's name, and whether it exists and names this one.
    pub peer: Option<(String, bool)>,
    /// Number of receive queues.
    pub queues: usize,
}

/// What a worker's cycles have gone to.
#[derive(Clone, Debug)]
pub struct WorkerStages {
    /// The worker's name.
    pub name: String,
    /// Its processor, if it has one of its own.
    pub cpu: Option<usize>,
    /// What it has counted; None where it has counted nothing since the account was put on or
    /// cleared.
    pub report: Option<stages::Report>,
}
