//! Mirrors: copies of chosen packets to a port or a VLAN.
//!
//! A packet goes to each mirror at most once, and to mirrors with the same destination at most once
//! altogether; a bit for each mirror that has had it travels with the walk. A mirror's number is
//! its index in the bridge's list.

use crate::port::PortId;
use crate::vlan::VlanSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most mirrors of a bridge.
pub const MAX_MIRRORS: usize = 32;

/// Destination of a mirror's copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirrorOutput {
    /// A port, which sends nothing else then.
    Port(PortId),
    /// A VLAN (RSPAN): every port that carries it.
    Vlan(u16),
}

/// A mirror to set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MirrorSpec {
    /// Name, unique in the bridge; the mirror's counts are kept by name across changes.
    pub name: String,
    /// Selects every packet that comes in or goes out by any port.
    pub select_all: bool,
    /// Selects packets that come in by these ports.
    pub select_src: Vec<PortId>,
    /// Selects packets that go out by these ports.
    pub select_dst: Vec<PortId>,
    /// Restricts the selection to packets of these VLANs; empty for all.
    pub select_vlans: Vec<u16>,
    /// Destination of the copies.
    pub output: MirrorOutput,
    /// Bytes of the packet that are copied; None for all.
    pub snaplen: Option<u32>,
}

/// What a mirror has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MirrorStats {
    /// Packets.
    pub tx_packets: u64,
    /// Their bytes, before truncation.
    pub tx_bytes: u64,
}

#[derive(Default)]
pub(crate) struct MirrorCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl MirrorCounters {
    pub fn add(&self, bytes: u64) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn read(&self) -> MirrorStats {
        MirrorStats {
            tx_packets: self.packets.load(Ordering::Relaxed),
            tx_bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// A mirror as workers see it.
#[derive(Clone)]
pub(crate) struct Mirror {
    pub vlans: Option<VlanSet>,
    /// A port's slot, or a VLAN.
    pub output: MirrorOutput,
    /// The bits of itself and all mirrors with the same destination.
    pub same_output: u32,
    pub snaplen: Option<u32>,
    pub counters: Arc<MirrorCounters>,
}

/// Converts specifications to the mirrors that workers see; `counters` returns those of a name.
pub(crate) fn build(
    specs: &[MirrorSpec],
    counters: impl Fn(&str) -> Arc<MirrorCounters>,
) -> Vec<Mirror> {
    let same_output = |output: MirrorOutput| {
        specs
            .iter()
            .enumerate()
            .filter(|(_, other)| other.output == output)
            .fold(0, |bits, (index, _)| bits | 1 << index)
    };
    specs
        .iter()
        .map(|spec| Mirror {
            vlans: (!spec.select_vlans.is_empty())
                .then(|| spec.select_vlans.iter().copied().collect()),
            output: spec.output,
            same_output: same_output(spec.output),
            snaplen: spec.snaplen,
            counters: counters(&spec.name),
        })
        .collect()
}

/// Returns the mirrors that select what comes in by `port`, and what goes out by it.
pub(crate) fn selections(specs: &[MirrorSpec], port: PortId) -> (u32, u32) {
    let mut selected = (0, 0);
    for (index, spec) in specs.iter().enumerate() {
        if spec.select_all || spec.select_src.contains(&port) {
            selected.0 |= 1 << index;
        }
        if spec.select_all || spec.select_dst.contains(&port) {
            selected.1 |= 1 << index;
        }
    }
    selected
}
