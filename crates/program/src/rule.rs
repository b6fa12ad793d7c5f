//! A compiled rule.

use crate::counters::CounterId;
use crate::epoch::{Epoch, NEVER};
use crate::ops::{Op, OpList, PortNo};
use crate::walk::Stretches;
use packet::Match;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What a rule says; fixed for its life. To change a rule, remove it and insert another in the same epoch with the same counter.
#[derive(Clone, Debug)]
#[repr(C)] // what every packet needs first
pub struct RuleSpec {
    /// Precedence; above 65535 for hidden rules.
    pub priority: u32,
    /// Where its packets are counted.
    pub counter: CounterId,
    /// What it does.
    pub ops: Arc<OpList>,
    /// OpenFlow cookie, for packet-ins.
    pub cookie: u64,
    /// What it matches.
    pub matching: Match,
}

/// A rule in a table. What every lookup reads comes first.
#[derive(Debug)]
#[repr(C)] // what every packet needs in the first 64 bytes
pub struct Rule {
    /// First epoch in which it holds.
    pub added: Epoch,
    /// First epoch in which it no longer holds.
    removed: AtomicU64,
    /// Next rule of its chain in a tuple.
    pub(crate) next: AtomicPtr<Rule>,
    /// What it does, when that is only to change packets and send them, or send them on.
    pub(crate) straight: Option<Stretches>,
    /// The port, when its only step is an output to one: most rules of most switches, so the walk has a short cut for them.
    pub(crate) only_output: Option<PortNo>,
    /// What it says.
    pub spec: RuleSpec,
    /// The timeouts that a FIN or RST brings, when one of its steps says so: idle and hard seconds, 0 for no change.
    pub(crate) fin: Option<(u16, u16)>,
    /// Whether control has been told of a FIN or RST.
    pub(crate) fin_told: AtomicBool,
    /// What it was learned to do ([`crate::learn::Learn::fingerprint`]), 0 for a rule that was not learned.
    pub(crate) fingerprint: AtomicU64,
    /// When a packet last learned it again, in milliseconds of the datapath's clock.
    pub(crate) learned_ms: AtomicU64,
    /// Its ranks in a table's trees: one in those in use, one in those that are being made. Valid where the rank's rule is this one.
    pub(crate) places: [AtomicU32; 2],
}

impl Rule {
    /// A rule that holds from `added` on.
    pub fn new(spec: RuleSpec, added: Epoch) -> Rule {
        let only_output = match &*spec.ops.ops {
            [Op::Output(port)] => Some(*port),
            _ => None,
        };
        let straight = spec.ops.straight();
        let spec_fin = crate::ops::fin_timeouts(&spec.ops.ops);
        Rule {
            spec,
            added,
            removed: AtomicU64::new(NEVER),
            only_output,
            straight,
            fin: spec_fin,
            fin_told: AtomicBool::new(false),
            fingerprint: AtomicU64::new(0),
            learned_ms: AtomicU64::new(0),
            next: AtomicPtr::default(),
            places: [const { AtomicU32::new(u32::MAX) }; 2],
        }
    }

    /// Whether it holds in `epoch`.
    #[inline(always)]
    pub fn holds_in(&self, epoch: Epoch) -> bool {
        self.added <= epoch && epoch < self.removed.load(Ordering::Relaxed)
    }

    /// Makes it end with `epoch`. Published, like all changes, by the domain's next publication.
    pub fn remove_in(&self, epoch: Epoch) {
        self.removed.store(epoch, Ordering::Relaxed);
    }

    /// First epoch in which it no longer holds, [`NEVER`] for a rule in force.
    pub fn removed(&self) -> Epoch {
        self.removed.load(Ordering::Relaxed)
    }
}
