//! Workers, bursts, MAC learning, mirrors and counters around a program.
//!
//! A [`Datapath`] belongs to the one control thread. It starts workers, hands them the queues of
//! ports, and publishes a snapshot of bridges and ports that they read once a turn without a lock.
//! A worker does everything that happens to a frame, from its receive burst to the transmit batches
//! of the ports that it leaves by.
//!
//! * `worker`: a worker's loop, its accounting, and how it rests when there is nothing to do.
//! * `forward`: outputs to devices, patch ports, mirrors and controllers: the engine's host.
//! * `shape`: ports whose frames wait for their queues' rates.
//! * `steering`: flows that are processed by another worker than the one that receives them.
//! * [`fcf`]: VM id and priority bit in frames of the underlay.
//! * `normal`, [`mac_table`], [`vlan`], [`mirror`]: the learning switch.
//! * `snapshot`: what workers know of ports and bridges. [`Datapath`]: how that changes.
//! * [`counters`], [`packet_in`], [`learn_requests`], [`clock`]: what workers report to control.

mod assign;
pub mod clock;
mod control;
pub mod counters;
mod error;
pub mod fcf;
mod forward;
mod fragments;
mod history;
pub mod learn_requests;
pub mod mac_table;
pub mod mirror;
pub mod monitor;
mod normal;
pub mod packet_in;
mod police;
mod port;
mod queues;
mod report;
mod shape;
mod snapshot;
mod steering;
mod sync;
pub mod tunnel;
pub mod turns;
pub mod vlan;
mod wake;
mod worker;

pub use assign::{Assignment, AutoBalance};
pub use control::cards::SteeringCard;
pub use control::explain::{Copy, MirrorCopy, Normal, NormalDecision, WayOut};
pub use control::shaping::Watched;
pub use control::stages::change_cycles;
pub use control::steering::{Keeps, SteeringInfo, SteeringMode, SteeringWorker};
pub use control::{Allocate, Barrier, BridgeSettings, Datapath, Options, ThreadInit};
pub use counters::{DropReason, PortStats, WorkerStats};
pub use error::{BoxError, Error};
pub use forward::MAX_PATCHES;
pub use port::{
    BridgeId, LOCAL, MAX_PORTS, MakeTx, PortFlags, PortId, PortKind, PortSettings, PortSpec, Shape,
};
pub use queues::QueueTotals;
pub use report::{PortInfo, QueueInfo, WorkerInfo, WorkerStages};
pub use shape::BATCH_NS;
pub use stages;
pub use steering::BUCKETS;
pub use worker::{IDLE_LOOKS, Moment, catches_panics, pin};
