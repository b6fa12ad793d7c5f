//! A host with many cores that receives flows, simulated event by event.
//!
//! A datagram arrives in one or more fragments. Each fragment goes to a core (by the [`Mode`]),
//! waits in that core's bounded queue and is processed there. The core that completes a datagram
//! decrypts it and hands it to the flow's virtual machine, whose core spends time on it, too, when
//! it has nothing else to process. Steering runs the code of this crate: the table, the policy, the
//! balancer and the handover.
//!
//! **Exact**: flows of [`Scenario::flows`], packet by packet: arrivals, queues, losses, order,
//! moves.
//!
//! **Approximated**:
//! - Flows of [`Scenario::background`] are fluid. Each takes a constant part of its core, and its
//!   core's time for packets is stretched accordingly. A core that has more than it can do loses
//!   the same part of all it has. So their bursts and queues are not seen, only their load; their
//!   placement and moves are exact.
//! - All fragments of a datagram arrive at once, and a marker's return takes no time.
//! - Processing takes a fixed time for each fragment, datagram and delivery. Caches, memory and
//!   frequency are not modelled, nor what a move costs.
//! - A core finishes one packet before it looks for the next. Packets go before virtual machines,
//!   which get [`Scenario::task_share`] of a core that is never idle.
//!
//! Work is bounded: three events for a fragment at most, one for each sample and slice of a
//! millisecond; [`Scenario::check`] refuses more than [`EVENTS_MAX`] events.

mod background;
mod machine;
mod outcome;
pub mod paper;
mod run;
mod scenario;

pub use outcome::{BackgroundOutcome, CoreOutcome, FlowOutcome, Outcome};
pub use run::simulate;
pub use scenario::{
    Background, Change, EVENTS_MAX, FlowSpec, Mode, Moving, Scenario, ScenarioError, VmSpec,
};
