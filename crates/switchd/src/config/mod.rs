//! From database rows to what the switch is to be, and back.
//!
//! Everything here but [`statistics`] is a pure function of its arguments: no device is opened, no
//! clock is read. The daemon's loop is
//!
//! 1. [`Desired::from_snapshot`](desired::Desired::from_snapshot) reads the rows. Bad values become
//!    [`Problem`]s and the defaults of Open vSwitch 3.1 take their place.
//! 2. [`plan`](plan::plan) compares with [`Applied`](plan::Applied), what has been done so far, and
//!    lists the actions that lead from one to the other in the order in which they can be done.
//! 3. The daemon does them and records each success in `Applied`. What fails is missing from
//!    `Applied`, so the next plan has it again.
//! 4. [`writeback`] says in the database what came of it.
//!
//! [`statistics`] reads what the root row says of the machine, [`ofport`] gives OpenFlow port
//! numbers, and [`address`] chooses a bridge's MAC address and datapath id.

pub mod address;
pub mod controller;
pub mod desired;
pub mod global;
pub mod mirror;
pub mod ofport;
pub mod plan;
pub mod policing;
pub mod port;
pub mod problem;
pub mod qos;
pub mod shaping;
pub mod statistics;
pub mod tunnel;
pub mod vlan;
pub mod vm;
pub mod writeback;

pub use address::Mac;
pub use desired::{Abilities, Desired};
pub use plan::{Action, Applied, plan};
pub use problem::{Problem, Problems, Severity};
