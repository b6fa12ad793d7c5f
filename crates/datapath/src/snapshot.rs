//! What workers know of bridges and ports: an immutable snapshot, replaced as a whole.
//!
//! The control thread draws a new snapshot for every change and publishes it by one store; a worker
//! reads it once a turn under its guard. The epoch domain frees the old one when no worker can hold
//! it. Parts that did not change are shared between snapshots.

use crate::counters::PortCounters;
use crate::mac_table::MacTable;
use crate::mirror::Mirror;
use crate::monitor::Monitor;
use crate::police::Policing;
use crate::port::{LOCAL, PortFlags, PortId};
use crate::queues::Queues;
use crate::tunnel::{Carries, OptionsOf, TunnelPort, Tunnels};
use crate::vlan::{VlanConfig, VlanSet};
use crossbeam_utils::CachePadded;
use packet::tunnel::TunnelWords;
use program::actions::PortNo;
use program::epoch::{Domain, Epoch, Guard};
use program::table::Bridge;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use underlay::Device;

/// Port numbers below this are found by index, others by hash; of a bridge with few ports those
/// below [`DENSE_EACH`] for each port and [`DENSE_LEAST`], because each number takes a pointer.
const DENSE: u32 = 1 << 14;
const DENSE_EACH: usize = 8;
const DENSE_LEAST: usize = 1024;

/// With more tunnels than these, workers prefetch what they need of a burst's ports, and send
/// packets that leave by several tunnels together.
const MANY_TUNNELS: usize = 16;

/// What a port is, as a worker sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behind {
    Device,
    /// The peer's slot.
    Patch(Option<u32>),
    Tunnel,
}

/// In this order, so that what is read for each frame that a tunnel's port sends or receives is in
/// the first cache line: with many tunnels that is mostly not in a cache.
#[repr(C, align(64))]
pub(crate) struct PortState {
    pub id: PortId,
    /// The bridge's slot.
    pub bridge: u32,
    pub number: PortNo,
    /// Whether it is a device, and nothing has to be checked before sending.
    pub plain: bool,
    /// Whether it is a tunnel, and nothing else has to be checked before sending.
    pub only_tunnel: bool,
    /// Whether it is such a tunnel, and carries frames as they are.
    pub takes_frames: bool,
    /// Whether it is a tunnel that reads packets' metadata.
    pub reads_metadata: bool,
    /// Whether it is a device, and only its queues have to be checked before sending.
    pub only_shaped: bool,
    /// Whether nothing that comes in here is mirrored, refused or policed.
    pub plain_ingress: bool,
    /// [`TunnelPort::version`] of the tunnel, if the port is one, else 0.
    pub tunnel_version: u64,
    pub counters: Arc<PortCounters>,
    /// The tunnel, if the port is one.
    pub tunnel: Option<Arc<TunnelPort>>,
    /// For an underlay's local port: the device with its addresses, because tunnels' packets may be
    /// sent there.
    pub terminates: Option<Arc<Device>>,
    pub vlan: VlanConfig,
    pub flags: PortFlags,
    /// Whether what is sent there may arrive, as far as the device tells ([`PortState::is_live`]).
    pub live: bool,
    pub behind: Behind,
    /// Its monitor, whose packets are taken before the rules.
    pub monitor: Option<Arc<Monitor>>,
    /// Mirrors that select what comes in here, and what goes out, one bit each.
    pub mirror_in: u32,
    pub mirror_out: u32,
    /// Whether the port is on the underlay, so that flow control fields are written and believed
    /// there.
    pub underlay: bool,
    /// Layout of that field, where the port's bridge has one.
    pub fcf: Option<crate::fcf::Layout>,
    /// Which of the frames that it receives have priority.
    pub urgency: crate::fcf::Urgency,
    /// Whether a mirror sends here, so that nothing else does.
    pub reserved: bool,
    /// Whether what is sent here waits in queues.
    pub shaped: bool,
    pub queues: Queues,
    /// DSCPs written into packets that name a queue, by queue number, ascending.
    pub marks: Vec<(u32, u8)>,
    /// Policers of what is sent there, and of what comes in.
    pub policing: Policing,
    /// By receive queue, what other workers than the one that serves it spent on its frames.
    pub taken: TakenCycles,
}

const _: () = assert!(std::mem::offset_of!(PortState, vlan) <= 64);

/// Cycles by receive queue, counted by several workers.
pub(crate) type TakenCycles = Arc<[CachePadded<AtomicU64>]>;

impl PortState {
    /// Returns whether what is sent there may arrive: also as its monitor finds.
    #[inline]
    pub fn is_live(&self) -> bool {
        self.live
            && self
                .monitor
                .as_ref()
                .is_none_or(|monitor| monitor.is_live())
    }

    /// Returns whether frames for tunnels that are sent there are only decapsulated: nothing else
    /// has to be checked before.
    pub fn only_terminates(&self) -> bool {
        let flags = &self.flags;
        !flags.down
            && !flags.no_fwd
            && self.marks.is_empty()
            && self.mirror_out == 0
            && (self.fcf.is_none() || self.behind != Behind::Device)
    }

    /// Returns whether it is a tunnel that carries packets without an Ethernet header.
    pub fn carries_packets(&self) -> bool {
        let tunnel = self.tunnel.as_ref();
        tunnel.is_some_and(|tunnel| tunnel.spec.carries == Carries::Packets)
    }
}

pub(crate) struct BridgeState {
    pub id: crate::port::BridgeId,
    pub program: Arc<Bridge>,
    pub macs: Arc<MacTable>,
    pub forward_bpdu: bool,
    /// VLANs in which nothing is learned and everything is flooded.
    pub flood_vlans: Option<VlanSet>,
    pub mirrors: Vec<Mirror>,
    /// Its map of Geneve options.
    pub options: Option<OptionsOf>,
    /// Whether it has so many tunnels that a burst's packets mostly go by different ones.
    pub many_tunnels: bool,
    /// Whether packets' tunnel metadata need no whole keys ([`TunnelWords::fit`]).
    pub options_fit: bool,
    /// Whether it has tunnels that send by packets' metadata, so that what rules write to it and
    /// what packets came with must be known at output.
    pub keeps_tunnel: bool,
    /// Whether the flow control field that rules set, and packets' sources, must be known at
    /// output.
    pub keeps_fcf: bool,
    /// Ports, by number.
    pub ports: Vec<Arc<PortState>>,
    dense: Box<[Option<Arc<PortState>>]>,
    sparse: HashMap<PortNo, Arc<PortState>>,
    local: Option<Arc<PortState>>,
}

/// The parts of a bridge other than its ports.
pub(crate) struct BridgeParts {
    pub id: crate::port::BridgeId,
    pub program: Arc<Bridge>,
    pub macs: Arc<MacTable>,
    pub forward_bpdu: bool,
    pub flood_vlans: Option<VlanSet>,
    pub mirrors: Vec<Mirror>,
    pub options: Option<OptionsOf>,
}

impl BridgeState {
    pub fn new(parts: BridgeParts, mut ports: Vec<Arc<PortState>>) -> BridgeState {
        ports.sort_by_key(|port| port.number);
        let limit = (DENSE as usize).min(DENSE_EACH * ports.len() + DENSE_LEAST) as u32;
        let numbers = ports.iter().map(|port| port.number);
        let highest = numbers.filter(|number| *number < limit).max();
        let mut dense: Box<[Option<Arc<PortState>>]> =
            vec![None; highest.map_or(0, |number| number as usize + 1)].into();
        let (mut sparse, mut local) = (HashMap::new(), None);
        for port in &ports {
            match port.number {
                LOCAL => local = Some(Arc::clone(port)),
                number if number < limit => dense[number as usize] = Some(Arc::clone(port)),
                number => {
                    sparse.insert(number, Arc::clone(port));
                }
            }
        }
        let BridgeParts {
            id,
            program,
            macs,
            forward_bpdu,
            flood_vlans,
            mirrors,
            options,
        } = parts;
        let reads = |port: &Arc<PortState>| {
            let tunnel = port.tunnel.as_ref();
            tunnel.is_some_and(|tunnel| tunnel.reads_packets)
        };
        let keeps_tunnel = ports.iter().any(reads);
        let tunnels = ports.iter().filter(|port| port.tunnel.is_some());
        let many_tunnels = tunnels.count() > MANY_TUNNELS;
        if keeps_tunnel {
            program.need(crate::tunnel::WORDS);
        }
        let keeps_fcf = ports.iter().any(|port| port.fcf.is_some());
        if keeps_fcf {
            program.need(crate::fcf::WORD);
        }
        BridgeState {
            id,
            program,
            macs,
            forward_bpdu,
            flood_vlans,
            mirrors,
            many_tunnels,
            options_fit: options.as_deref().is_none_or(TunnelWords::fit),
            options,
            keeps_tunnel,
            keeps_fcf,
            ports,
            dense,
            sparse,
            local,
        }
    }

    /// Returns whether rules, controllers or ports (also as a mirror's) may look at packets' tunnel
    /// metadata.
    pub fn looks_at_tunnels(&self) -> bool {
        let program = &self.program;
        let needed = program.needed().intersect(crate::tunnel::WORDS);
        self.keeps_tunnel || program.tells() || !needed.is_empty()
    }

    /// Returns the port with this number.
    #[inline(always)]
    pub fn port(&self, number: PortNo) -> Option<&PortState> {
        match self.dense.get(number as usize) {
            Some(port) => port.as_deref(),
            None if number == LOCAL => self.local.as_deref(),
            None => self.sparse.get(&number).map(|port| &**port),
        }
    }
}

/// The snapshot.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    /// By slot.
    pub bridges: Vec<Option<Arc<BridgeState>>>,
    /// By slot.
    pub ports: Vec<Option<Arc<PortState>>>,
    /// Whether some port has a monitor.
    pub monitored: bool,
    /// Tunnels' shared state, where there are tunnels.
    pub tunnels: Option<Arc<Tunnels>>,
}

impl Snapshot {
    /// Returns a number that changes whenever routes or neighbours of tunnels have changed.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        let tunnels = self.tunnels.as_ref();
        tunnels.map_or(0, |tunnels| tunnels.view.generation)
    }

    #[inline(always)]
    pub fn port(&self, slot: u32) -> Option<&PortState> {
        self.ports.get(slot as usize)?.as_deref()
    }

    #[inline(always)]
    pub fn bridge(&self, slot: u32) -> Option<&BridgeState> {
        self.bridges.get(slot as usize)?.as_deref()
    }
}

/// The current snapshot.
pub(crate) struct Published {
    current: AtomicPtr<Snapshot>,
    domain: Arc<Domain>,
}

impl Published {
    pub fn new(domain: Arc<Domain>) -> Published {
        Published {
            current: AtomicPtr::new(Box::into_raw(Box::default())),
            domain,
        }
    }

    /// Returns the snapshot for this turn.
    #[inline(always)]
    pub fn load<'g>(&self, guard: &'g Guard<'_>) -> &'g Snapshot {
        assert!(
            std::ptr::eq(guard.domain(), &*self.domain),
            "a guard of another domain"
        );
        // SAFETY: the pointer was made by `Box::into_raw` and is never null; a snapshot that is
        // replaced is retired to this domain, which keeps it while a guard from before lives, and
        // the guard lives for 'g.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Replaces the snapshot and publishes an epoch: once every worker has passed it, none sees the
    /// old one.
    pub fn replace(&self, snapshot: Snapshot) -> Epoch {
        let old = self
            .current
            .swap(Box::into_raw(Box::new(snapshot)), Ordering::AcqRel);
        // SAFETY: made by `Box::into_raw` in `new` or here, and unlinked by the swap, so it is
        // taken once; `retire` waits for readers.
        self.domain.retire(unsafe { Box::from_raw(old) });
        self.domain.publish()
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`; workers hold an `Arc` of what holds this, so none of
        // them is left.
        drop(unsafe { Box::from_raw(*self.current.get_mut()) });
    }
}
