//! OpenFlow state of one bridge, flow-mod semantics, and compilation of rules for workers.
//!
//! A [`Pipeline`] is one bridge's flow tables as OpenFlow sees them: it checks each change, makes
//! it or refuses it as a whole, and writes what workers need into the bridge's [`program`]. It has
//! no threads, sockets or ports: its owner passes in messages and the time, and publishes the
//! changes.
//!
//! * [`flow_mod`](Pipeline::flow_mod): the five commands, with the semantics of OpenFlow 1.0 to
//!   1.5, and those of Open vSwitch where the specification leaves room.
//! * [`begin_flow_mod`](Pipeline::begin_flow_mod): the same, in slices for commands that affect
//!   many rules; see [`Sweep`].
//! * [`group_mod`](Pipeline::group_mod): groups, which share the rules' epochs and batches.
//! * [`expire`](Pipeline::expire): timeouts.
//! * [`flow_stats`](Pipeline::flow_stats) and its neighbours: queries.
//! * [`take_changes`](Pipeline::take_changes): the events that flow monitors report.
//! * [`mod@reference`]: the slow, obvious evaluator with which tests compare the program.
//!
//! After changes, call [`commit`](Pipeline::commit) for each pipeline, then
//! `program.domain.publish()` once for all. Changes that must succeed or fail together across
//! messages form a [batch](Pipeline::begin_batch).

mod check;
mod commands;
mod compile;
mod pipeline;
mod queries;
pub mod reference;
mod state;

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
pub use state::learned::deletes_learned;
