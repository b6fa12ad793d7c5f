//! Entries of the steering flow table, and what is said of those that go.

use crate::cores::{CoreId, Load, VmId};

/// What a key must look like: the bits of `mask` must have the values of `value`. What the bytes
/// mean is the caller's business.
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

    /// The bits that are looked at.
    pub fn mask(&self) -> &[u8; N] {
        &self.mask
    }

    /// Their values.
    pub fn value(&self) -> &[u8; N] {
        &self.value
    }

    /// Whether a key matches.
    pub fn matches(&self, key: &[u8; N]) -> bool {
        masked(key, &self.mask) == self.value
    }

    /// Whether every key that matches this also matches `outer`.
    pub fn is_within(&self, outer: &Match<N>) -> bool {
        masked(&outer.mask, &self.mask) == outer.mask && outer.matches(&self.value)
    }
}

/// The bits of a key that a mask looks at.
pub(super) fn masked<const N: usize>(key: &[u8; N], mask: &[u8; N]) -> [u8; N] {
    std::array::from_fn(|i| key[i] & mask[i])
}

/// What shares one choice of a core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// Everything that matches the entry, as in the paper, so that fragments and encrypted packets
    /// of one virtual machine stay together.
    Entry,
    /// Each flow, as told apart by the caller's hash.
    Flow,
}

/// Where an entry sends packets (the action OFPAT_SET_IRQ_CORE; paper, table I and table II).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// To this core.
    Core(CoreId),
    /// To the core that the policy chooses.
    Choose(Scope),
}

/// An entry as it is added. Of several that match, the one of the highest precedence is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntrySpec<const N: usize> {
    /// What it matches.
    pub matching: Match<N>,
    /// Its precedence; higher wins. OpenFlow calls it priority, which here is a flow's bit.
    pub precedence: u16,
    /// Where packets go.
    pub target: Target,
    /// The virtual machine that the packets are for, if known.
    pub vm: Option<VmId>,
    /// Whether its flows have the priority bit.
    pub priority: bool,
    /// A number for whoever added it.
    pub cookie: u64,
    /// It goes after so long without a packet, ns.
    pub idle_timeout_ns: Option<u64>,
    /// It goes after so long, ns.
    pub hard_timeout_ns: Option<u64>,
    /// Whether its end is to be told (FLOW_REMOVED).
    pub notify: bool,
}

/// A name for an entry, never used again for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntryId(pub(super) u64);

impl EntryId {
    /// The name as a number; entries added later have higher ones.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Why an entry went. The numbers are OpenFlow's (OFPRR_*).
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

/// An entry that has gone. The caller sends FLOW_REMOVED where `spec.notify` asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removed<const N: usize> {
    /// The entry as it was.
    pub spec: EntrySpec<N>,
    /// Why it went.
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
    /// Flows that have a choice of their own although the entry has one for all.
    pub(super) overrides: u32,
}

/// Weight of a new measurement in an entry's mean, as a divisor. Loads of flows are heavy-tailed:
/// with a larger weight, one elephant would make the next flows look like elephants, too.
const MEAN_WEIGHT: i64 = 64;

/// Least load expected of a flow. With nothing expected, flows that start together would all get
/// the same core.
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

    /// Load to expect of a new flow.
    pub(super) fn expected(&self, unknown: Load) -> Load {
        self.mean.unwrap_or(unknown).max(LEAST_EXPECTED)
    }

    /// Takes the measured load of one of its flows into the mean.
    pub(super) fn learn(&mut self, load: Load) {
        self.mean = Some(match self.mean {
            None => load,
            Some(mean) => {
                let step = (i64::from(load.0) - i64::from(mean.0)) / MEAN_WEIGHT;
                Load((i64::from(mean.0) + step) as u32)
            }
        });
    }

    /// Why it goes now, if it does. Where both timeouts have passed, the one that passed first is
    /// the reason.
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
