//! The compiled form of OpenFlow tables, and the walk over it.
//!
//! * [`epoch`]: how changes become visible to workers all at once, and when what they replaced may be freed.
//! * [`clock`] counts cycles.
//! * [`counters`]: packet and byte counts in slots that never move, one set for each worker.
//! * [`meters`]: where workers find meters.
//! * [`rule`] and [`ops`]: a rule, and the steps that its actions are compiled to.
//! * [`learn`]: rules that packets ask for.
//! * [`group`]: groups, and how a select group chooses.
//! * [`table`]: lookups by template; one writer, any number of readers that are never blocked.
//! * [`walk`]: a packet's way through the tables, as data, a burst at a time.
//!
//! Nothing here knows where rules came from, or what a port is: the walk asks its [`host::Host`].

mod action_set;
mod background;
mod bits;
pub mod clock;
mod conjunction;
pub mod counters;
pub mod epoch;
pub mod group;
mod growing;
pub mod host;
pub mod learn;
pub mod meters;
pub mod ops;
pub mod rule;
#[doc(hidden)]
pub mod secret;
pub mod spread;
mod sync;
pub mod table;
mod tuple;
#[cfg(target_arch = "x86_64")]
mod vector;
pub mod walk;

pub use tuple::prefetch;

use counters::Counters;
use epoch::Domain;

/// What all bridges of a datapath share: one epoch, so that a change across bridges appears at once, and one set of counters.
#[derive(Default)]
pub struct Program {
    /// Epochs and reclamation.
    pub domain: std::sync::Arc<Domain>,
    /// Counters of rules and tables.
    pub counters: Counters,
    /// Where what takes long is made.
    pub(crate) background: background::Background,
    /// What workers' caches of walks are told, and tell.
    pub walk_caches: walk::CacheBoard,
}

impl Program {
    /// An empty program.
    pub fn new() -> Program {
        Program::default()
    }
}
