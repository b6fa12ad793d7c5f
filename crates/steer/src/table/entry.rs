//! Entries of the steering flow table, and the report about removed ones.

use crate::cores::{CoreId, Load, VmId};

/// A match on a key: the bits of `mask` must have the values of `value`. The caller defines the
/// meaning of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Match<const N: usize> {
    mask: [u8; N],
    value: [u8; N],
}

impl<const N: usize> Match<N> {
    /// Makes a match; bits of `value` outside `mask` are cleared.
    pub fn new(mask: [u8; N], value: [u8; N]) -> Match<N> {
        Match {
            mask,
            value: masked(&value, &mask),
        }
    }

    /// Returns the bits that are compared.
    pub fn mask(&self) -> &[u8; N] {
        &self.mask
    }

    /// Returns their values.
    pub fn value(&self) -> &[u8; N] {
        &self.value
    }

    /// Returns whether a key matches.
    pub fn matches(&self, key: &[u8; N]) -> bool {
        masked(key, &self.mask) == self.value
    }

    /// Returns whether every key that matches this also matches `outer`.
    pub fn is_within(&self, outer: &Match<N>) -> bool {
        masked(&outer.mask, &self.mask) == outer.mask && outer.matches(&self.value)
    }
}

/// Returns the bits of a key that a mask selects.
pub(super) fn masked<const N: usize>(key: &[u8; N], mask: &[u8; N]) -> [u8; N] {
    std::array::from_fn(|i| key[i] & mask[i])
}

/// Which packets share one choice of a core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// Everything that matches the entry, as in the paper, so that fragments and encrypted packets
    /// of one virtual machine stay together.
    Entry,
    /// Each flow, by the caller's hash.
    Flow,
}

/// Where an entry's packets are processed (the action OFPAT_SET_IRQ_CORE; paper, table I and table
/// II).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// On this core.
    Core(CoreId),
    /// On the core that the policy chooses.
    Choose(Scope),
}

/// An entry's definition. Of several that match, the one of the highest precedence is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntrySpec<const N: usize> {
    /// What it matches.
    pub matching: Match<N>,
    /// Its precedence; higher wins. OpenFlow calls it priority, which here means a flow's priority
    /// bit.
    pub precedence: u16,
    /// Where its packets are processed.
    pub target: Target,
    /// The virtual machine that the packets are for, if known.
    pub vm: Option<VmId>,
    /// Whether its flows have the priority bit.
    pub priority: bool,
    /// A number for the controller that added it.
    pub cookie: u64,
    /// Time without a packet after which it is removed, ns.
    pub idle_timeout_ns: Option<u64>,
    /// Time after which it is removed, ns.
    pub hard_timeout_ns: Option<u64>,
    /// Whether its removal is reported (FLOW_REMOVED).
    pub notify: bool,
}

/// Identifies an entry; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId(pub(super) u64);

impl EntryId {
    /// Returns the id as a number; entries added later have higher ones.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Why an entry was removed. The numbers are OpenFlow's (OFPRR_*).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Reason {
    /// No packet came for its idle timeout.
    IdleTimeout = 0,
    /// Its hard timeout has passed.
    HardTimeout = 1,
    /// It was deleted.
    Delete = 2,
}

/// A removed entry. The caller sends FLOW_REMOVED if `spec.notify` is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed<const N: usize> {
    /// The entry as it was.
    pub spec: EntrySpec<N>,
    /// Why it was removed.
    pub reason: Reason,
    /// Packets that have matched it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long it existed, ns.
    pub lived_ns: u64,
}

/// An entry in the table.
#[derive(Clone, Debug)]
pub(super) struct Entry<const N: usize> {
    pub(super) spec: EntrySpec<N>,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) added_ns: u64,
    pub(super) used_ns: u64,
    /// Mean load of its flows, once any has been measured.
    pub(super) mean: Option<Load>,
    /// Flows with a choice of their own although the entry has one for all.
    pub(super) overrides: u32,
}

/// Divisor of a new measurement in an entry's mean. Loads of flows are heavy-tailed: with a larger
/// weight, one elephant flow would make the next flows look like elephants, too.
const MEAN_WEIGHT: i64 = 64;

/// Lowest load expected of a flow. With zero, flows that start together would all get the same
/// core.
const LEAST_EXPECTED: Load = Load(10);

impl<const N: usize> Entry<N> {
    pub(super) fn new(spec: EntrySpec<N>, now_ns: u64) -> Entry<N> {
        Entry {
            spec,
            packets: 0,
            bytes: 0,
            added_ns: now_ns,
            used_ns: now_ns,
            mean: None,
            overrides: 0,
        }
    }

    /// Returns the load to expect of a new flow.
    pub(super) fn expected(&self, unknown: Load) -> Load {
        self.mean.unwrap_or(unknown).max(LEAST_EXPECTED)
    }

    /// Includes the measured load of one of its flows in the mean.
    pub(super) fn learn(&mut self, load: Load) {
        self.mean = Some(match self.mean {
            None => load,
            Some(mean) => {
                let step = (i64::from(load.0) - i64::from(mean.0)) / MEAN_WEIGHT;
                Load((i64::from(mean.0) + step) as u32)
            }
        });
    }

    /// Returns why the entry expires now, if it does. If both timeouts have passed, the one that
    /// passed first is the reason.
    pub(super) fn expired(&self, now_ns: u64) -> Option<Reason> {
        let end = |since: u64, timeout: Option<u64>| {
            let end = since.saturating_add(timeout?);
            (now_ns >= end).then_some(end)
        };
        let idle = end(self.used_ns, self.spec.idle_timeout_ns);
        let hard = end(self.added_ns, self.spec.hard_timeout_ns);
        match (idle, hard) {
            (Some(idle), Some(hard)) if idle < hard => Some(Reason::IdleTimeout),
            (_, Some(_)) => Some(Reason::HardTimeout),
            (Some(_), None) => Some(Reason::IdleTimeout),
            (None, None) => None,
        }
    }

    pub(super) fn removed(self, reason: Reason, now_ns: u64) -> Removed<N> {
        Removed {
            spec: self.spec,
            reason,
            packets: self.packets,
            bytes: self.bytes,
            lived_ns: now_ns.saturating_sub(self.added_ns),
        }
    }
}
