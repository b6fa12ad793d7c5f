//! Adaptive core assignment: decides which core processes the packets of which flow.
//!
//! After "VSE: Virtual Switch Extension for Adaptive CPU Core Assignment in softirq" (Muramatsu,
//! Kawashima, Saito, Matsuo), which is "the paper" throughout. `docs/steering.md` explains the
//! policy and shows what the simulator says about it.
//!
//! * [`cores`]: the core table: load, virtual machines and priority flows of each core.
//! * [`settings`]: the constants, with their units and reasons.
//! * [`policy`]: chooses a core for a flow, by the core table. [`ranking`] is the same choice as a
//!   short list that is published at every sample, for an XDP program that cannot run the policy.
//! * [`table`]: the steering flow table: entries with masks and timeouts, and the core chosen for
//!   each entry or flow.
//! * [`balance`]: which live flows move to another core, and when.
//! * [`worth`]: whether help from other workers pays off.
//! * [`handover`]: moves a flow between two workers without reordering or loss. [`drain`]: the same
//!   for a sender that cannot park packets (XDP).
//! * [`simulator`]: a discrete-event simulation of hosts that steer by the code above, by RSS, or
//!   not at all.
//!
//! Nothing here does I/O, starts threads or reads a clock: time is an argument, in nanoseconds of
//! any clock that does not go back.

#![forbid(unsafe_code)]

pub mod balance;
pub mod cores;
pub mod drain;
pub mod handover;
pub mod policy;
mod random;
pub mod ranking;
pub mod settings;
pub mod simulator;
pub mod table;
pub mod worth;
