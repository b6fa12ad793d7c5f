//! OpenFlow state, flow-mod semantics, and its compilation to a program.
//!
//! A [`Pipeline`] is one bridge's flow tables as OpenFlow knows them: it checks each change, makes
//! it or refuses it as a whole, and writes what workers need into the bridge's [`program`]. It has
//! no threads, sockets or ports; whoever owns it hands it messages and the time, and publishes.
//!
//! * [`flow_mod`](Pipeline::flow_mod): the five commands, with the semantics of OpenFlow 1.0 to 1.5
//!   and of Open vSwitch where these leave room.
//! * [`begin_flow_mod`](Pipeline::begin_flow_mod): likewise, in slices where they mean many rules;
//!   see [`Sweep`].
//! * [`group_mod`](Pipeline::group_mod): groups, which share the rules' epochs and batches.
//! * [`expire`](Pipeline::expire): timeouts.
//! * [`flow_stats`](Pipeline::flow_stats) and its neighbours: what is there.
//! * [`take_changes`](Pipeline::take_changes): what flow monitors tell.
//! * [`twin`]: the slow, obvious evaluator that tests hold the program against.
//!
//! After changes: [`commit`](Pipeline::commit) for each pipeline, then one
//! `program.domain.publish()` for all. A change that must not stay half done across messages is a
//! [batch](Pipeline::begin_batch).

mod check;
mod commands;
mod compile;
mod pipeline;
mod queries;
mod state;
pub mod twin;

pub use commands::expire::EXPIRE_MAX;
pub use commands::flow_mod::{Begun, FlowModOutcome};
pub use commands::group_mod::group_features;
pub use commands::meter_mod::meter_features;
pub use commands::packet_out::{PacketOutProgram, check_bundled};
pub use commands::sweep::Sweep;
pub use pipeline::{Clock, Options, Pipeline};
pub use queries::changes::{RuleChange, SeenRule};
pub use queries::dump::{Dump, RuleCount};
pub use queries::statistics::{RuleView, table_features};
