//! From database rows to the desired state of the switch, and back.
//!
//! Everything here but [`statistics`] is a pure function of its arguments: no device is opened, no
//! clock is read. The daemon's loop is
//!
//! 1. [`Desired::from_snapshot`](desired::Desired::from_snapshot) reads the rows. Bad values become
//!    [`Problem`]s and are replaced by the defaults of Open vSwitch 3.1.
//! 2. [`plan()`](plan::plan) compares the result with [`Applied`], what has been done
//!    so far, and lists the missing actions in an order in which they can be done.
//! 3. The daemon does them and records each success in `Applied`. What fails is missing from
//!    `Applied`, so the next plan has it again.
//! 4. [`writeback`] writes the outcome to the database.
//!
//! [`statistics`] reads the machine's statistics for the root row, [`ofport`] allocates OpenFlow
//! port numbers, and [`address`] chooses a bridge's MAC address and datapath id.

pub mod address;
pub mod bfd;
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
pub mod refusal;
pub mod shaping;
pub mod statistics;
pub mod steered;
pub mod timeouts;
pub mod tunnel;
pub mod vlan;
pub mod vm;
pub mod writeback;

pub use address::Mac;
pub use desired::{Abilities, Desired};
pub use plan::{Action, Applied, plan};
pub use problem::{Problem, Problems, Severity};
