//! The compiled form of OpenFlow tables, and the walk over it.
//!
//! * [`epoch`]: how changes become visible to workers all at once, and when what they replaced may
//!   be freed.
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

pub mod actions;
mod background;
mod burst;
mod classifier;
pub mod clock;
pub mod counters;
pub mod epoch;
pub mod exec;
pub mod group;
mod growing;
pub mod host;
pub mod meters;
mod optimizer;
mod pace;
mod port;
mod prefetch;
pub mod rule;
#[doc(hidden)]
pub mod secret;
mod sync;
pub mod table;
#[cfg(target_arch = "x86_64")]
mod vector;

pub use prefetch::prefetch;

use counters::Counters;
use epoch::Domain;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all bridges of a datapath share: one epoch, so that a change across bridges appears at
/// once, and one set of counters.
#[derive(Default)]
pub struct Program {
    /// Epochs and reclamation.
    pub domain: std::sync::Arc<Domain>,
    /// Counters of rules and tables.
    pub counters: Counters,
    /// Where what takes long is made.
    pub(crate) background: background::Background,
    /// What workers' caches of walks are told, and tell.
    pub walk_caches: exec::CacheBoard,
    /// How many rules there are, and may be.
    pub rules: RuleCount,
}

/// How many rules the tables of all bridges hold, those that have ended and are not yet unlinked
/// among them, and how many they are to hold at most.
#[derive(Debug)]
pub struct RuleCount {
    linked: AtomicUsize,
    limit: AtomicUsize,
}

impl Default for RuleCount {
    /// Without a limit.
    fn default() -> Self {
        RuleCount {
            linked: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
        }
    }
}

impl RuleCount {
    /// Rules in tables now.
    pub fn linked(&self) -> usize {
        self.linked.load(Ordering::Relaxed)
    }

    /// Most rules that are to be there. Rules beyond it stay.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets [`RuleCount::limit`].
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns whether `more` rules would be too many. The tables do not look at this: whoever adds
    /// rules for others asks first.
    pub fn is_full(&self, more: usize) -> bool {
        self.linked().saturating_add(more) > self.limit()
    }
}

impl Program {
    /// An empty program.
    pub fn new() -> Program {
        Program::default()
    }
}
