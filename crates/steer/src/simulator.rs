//! Discrete-event simulation of a host with many cores that receives flows.
//!
//! A datagram arrives in one or more fragments. Each fragment goes to a core (chosen by the
//! [`Mode`]), waits in that core's bounded queue and is processed there. The core that completes a
//! datagram decrypts it and passes it to the flow's virtual machine, whose core spends time on it,
//! too, when it has nothing else to process. Steering runs the code of this crate: the table, the
//! policy, the balancer and the handover.
//!
//! **Exact**: flows of [`Scenario::flows`], packet by packet: arrivals, queues, losses, order,
//! moves.
//!
//! **Approximated**:
//! - Flows of [`Scenario::background`] are fluid. Each takes a constant share of its core, which
//!   slows down packet processing there accordingly. An overloaded core loses the same share of
//!   everything. So their bursts and queues are not modelled, only their load; their placement and
//!   moves are exact.
//! - All fragments of a datagram arrive at once, and a marker's return takes no time.
//! - Processing takes a fixed time for each fragment, datagram and delivery. Caches, memory and
//!   frequency are not modelled, nor what a move costs.
//! - A core finishes one packet before it takes the next. Packets take precedence over virtual
//!   machines, which get [`Scenario::task_share`] of a core that is never idle.
//!
//! Work is bounded: at most three events per fragment, one per sample and one per slice of a
//! millisecond; [`Scenario::check`] rejects more than [`EVENTS_MAX`] events.

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
