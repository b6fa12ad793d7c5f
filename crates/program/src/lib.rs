//! The compiled form of OpenFlow tables, and the engine that runs bursts of packets through them.
//!
//! * [`epoch`]: makes changes visible to all workers at once, and says when the memory they
//!   replaced may be freed.
//! * [`clock`]: counts cycles.
//! * [`counters`]: packet and byte counts in slots that never move, one set for each worker.
//! * [`meters`]: where workers find meters.
//! * [`actions`]: the steps that a rule's actions are compiled to; learn requests.
//! * [`rule`]: a rule and what is kept with it.
//! * [`group`]: groups, and how a select group chooses a bucket.
//! * [`table`]: a bridge's tables; one writer, any number of readers that are never blocked.
//! * [`exec`]: runs bursts of packets through the tables; a packet's state is data, so it can stop.
//!
//! Nothing here knows where rules came from, or what a port is: the engine asks its [`host::Host`].

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

/// State shared by all bridges of a datapath: one epoch, so that a change to several bridges
/// appears at once, and one set of counters.
#[derive(Default)]
pub struct Program {
    /// Epochs and reclamation.
    pub domain: std::sync::Arc<Domain>,
    /// Counters of rules and tables.
    pub counters: Counters,
    /// Background thread for slow builds of lookups.
    pub(crate) background: background::Background,
    /// What workers' flow caches and control tell each other.
    pub walk_caches: exec::CacheBoard,
    /// Number of rules, and its limit.
    pub rules: RuleCount,
}

/// How many rules the tables of all bridges hold, counting those that have ended but are not yet
/// unlinked, and the most they may hold.
#[derive(Debug)]
pub struct RuleCount {
    linked: AtomicUsize,
    limit: AtomicUsize,
}

impl Default for RuleCount {
    /// No limit.
    fn default() -> Self {
        RuleCount {
            linked: AtomicUsize::new(0),
            limit: AtomicUsize::new(usize::MAX),
        }
    }
}

impl RuleCount {
    /// Returns how many rules are linked in tables now.
    pub fn linked(&self) -> usize {
        self.linked.load(Ordering::Relaxed)
    }

    /// Returns the most rules that may be linked. Rules that already exceed it stay.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets [`RuleCount::limit`].
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns whether adding `more` rules would exceed the limit. Tables do not check this; the
    /// caller who adds rules for others must ask first.
    pub fn is_full(&self, more: usize) -> bool {
        self.linked().saturating_add(more) > self.limit()
    }
}

impl Program {
    /// Creates an empty program.
    pub fn new() -> Program {
        Program::default()
    }
}
