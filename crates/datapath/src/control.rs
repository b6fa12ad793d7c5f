//! The control thread's side: bridges, ports, settings, and the snapshot published to workers.
//!
//! A change is made in the records here, drawn into a new snapshot, and published; when a method
//! returns, every worker works by it. Workers get a port's transmit queues before the snapshot has
//! the port, and its receive queues afterwards. To remove a port, control first takes it out of the
//! snapshot, then asks every worker for its queues; its slot is free again only when all have
//! answered.

mod balancing;
mod bridges;
pub(crate) mod cards;
pub(crate) mod explain;
mod fragments;
mod reports;
pub(crate) mod shaping;
pub(crate) mod stages;
pub(crate) mod steering;
mod tunnels;
mod workers;

use crate::assign::Assignment;
use crate::clock::Clock;
use crate::counters::{Cells, PortCounters, PortStats, QueueCounters};
use crate::error::{BoxError, Error};
use crate::fcf::Urgency;
use crate::history::History;
use crate::mac_table::{self, MacTable};
use crate::mirror::{self, MirrorCounters, MirrorOutput, MirrorSpec};
use crate::monitor::{Monitor, Probes};
use crate::packet_in::{PacketInRing, PacketInWake};
use crate::police::Policing;
use crate::port::{BridgeId, LOCAL, MAX_PORTS, MakeTx, PortId, PortKind, PortSettings, PortSpec};
use crate::queues::Queues;
use crate::report::PortInfo;
use crate::shape::Shaped;
use crate::shape::room::Room;
use crate::snapshot::{
    Behind, BridgeParts, BridgeState, PortState, Published, Snapshot, TakenCycles,
};
use crate::tunnel::{Carries, OptionsOf, TunnelPort, TunnelSpec};
use crate::vlan::VlanSet;
use crate::wake::Wake;
use crate::worker::{Command, Returns, RxPort, Shared};
use conntrack::Tracker;
use packet::Frame;
use packet::flow_hash::Secret;
use packet::io::{Indirection, QueueDrops};
use program::Program;
use program::actions::PortNo;
use program::epoch::Epoch;
use program::table::Bridge;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use workers::{Handle, Leaving};

/// How long to wait for workers' answers.
const PATIENCE: Duration = Duration::from_secs(5);
/// First reserved port number (OpenFlow 1.3.5 section 7.2.1, `OFPP_MAX`); ports' numbers are below.
const NUMBER_END: PortNo = 0xffff_ff00;

/// Called on each new worker's thread with the worker's name, before it touches a queue. The
/// returned value is dropped when the thread ends.
pub type ThreadInit = Arc<dyn Fn(&str) -> Result<Box<dyn Any>, BoxError> + Send + Sync>;

/// Makes a frame with the given bytes; returns None when out of memory. Called on workers.
pub type Allocate<F> = Box<dyn Fn(&[u8]) -> Option<F> + Send + Sync>;

/// What a datapath needs from its owner.
pub struct Options<F: Frame> {
    /// The program that bridges belong to.
    pub program: Arc<Program>,
    /// Makes frames for packet-outs.
    pub allocate: Allocate<F>,
    /// Called on each new worker's thread.
    pub thread_init: Option<ThreadInit>,
    /// The clock.
    pub clock: Arc<Clock>,
}

/// A bridge's settings for switching.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgeSettings {
    /// Whether NORMAL forwards frames to reserved addresses (`other_config:forward-bpdu`).
    pub forward_bpdu: bool,
    /// VLANs in which nothing is learned and everything is flooded.
    pub flood_vlans: Vec<u16>,
    /// Seconds after which an address that has not been seen is forgotten, at least 1.
    pub mac_aging: u32,
    /// Size of the MAC table, within [`mac_table::SIZE_MIN`] and [`mac_table::SIZE_MAX`].
    pub mac_table_size: usize,
    /// Position of the flow control field in frames of the underlay; None for no field.
    pub fcf: Option<crate::fcf::Layout>,
}

impl Default for BridgeSettings {
    fn default() -> Self {
        BridgeSettings {
            forward_bpdu: false,
            flood_vlans: Vec::new(),
            mac_aging: 300,
            mac_table_size: mac_table::SIZE_DEFAULT,
            fcf: None,
        }
    }
}

/// A point in time that all workers must pass; see [`Datapath::barrier`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Barrier {
    epoch: Epoch,
    packet_outs: u64,
}

struct BridgeRecord {
    id: BridgeId,
    name: String,
    program: Arc<Bridge>,
    macs: Arc<MacTable>,
    settings: BridgeSettings,
    mirrors: Vec<MirrorSpec>,
    mirror_counters: HashMap<String, Arc<MirrorCounters>>,
    options: Option<OptionsOf>,
}

enum PortBackend<F: Frame> {
    Device {
        tx: MakeTx<F>,
        queues: Vec<Arc<QueueCounters>>,
    },
    Patch {
        peer: String,
    },
    Tunnel(Arc<TunnelPort>),
}

struct PortRecord<F: Frame> {
    id: PortId,
    name: String,
    bridge: BridgeId,
    number: PortNo,
    settings: PortSettings,
    kind: PortBackend<F>,
    counters: Arc<PortCounters>,
    queues: Queues,
    shaped: Option<Arc<Shaped<F>>>,
    monitor: Option<Arc<Monitor>>,
    policing: Policing,
    /// By receive queue, recent cycles of the worker that serves it, and of those that took from
    /// it.
    histories: Vec<(History, History)>,
    taken: TakenCycles,
    /// The device's indirection table, if it has one.
    indirection: Option<Arc<dyn Indirection>>,
}

impl<F: Frame> PortRecord<F> {
    fn queue_drops(&self) -> QueueDrops {
        let PortBackend::Device { queues, .. } = &self.kind else {
            return QueueDrops::default();
        };
        queues
            .iter()
            .map(|queue| queue.drops())
            .fold(QueueDrops::default(), |sum, drops| QueueDrops {
                missed: sum.missed + drops.missed,
                malformed: sum.malformed + drops.malformed,
                no_buffer: sum.no_buffer + drops.no_buffer,
            })
    }
}

/// Bridges, ports and workers around a program; see the crate's documentation. Belongs to one
/// thread.
pub struct Datapath<F: Frame> {
    shared: Arc<Shared<F>>,
    thread_init: Option<ThreadInit>,
    workers: Vec<Handle<F>>,
    bridges: Vec<Option<BridgeRecord>>,
    ports: Vec<Option<PortRecord<F>>>,
    names: HashMap<String, u32>,
    /// How often each slot has been used.
    generations: Vec<u32>,
    bridge_generations: Vec<u32>,
    free: std::collections::VecDeque<u32>,
    picture: Snapshot,
    /// Receive queues that are not served because there is no worker.
    parked: Vec<RxPort<F>>,
    leaving: Vec<Leaving>,
    tickets: u64,
    thread_ids: u32,
    packet_ins: Vec<Arc<PacketInRing>>,
    packet_in_wake: Arc<PacketInWake>,
    packet_outs: u64,
    packet_outs_refused: u64,
    interval_began: u64,
    underlay: tunnels::Underlay,
    steering: steering::Steering,
    /// Whether workers with pinned queues ([`PortSettings::affinity`]) serve no others.
    isolates: bool,
    assignment: Assignment,
    balancing: balancing::Balancing,
    /// Room for frames that wait at shaped ports.
    waiting: Arc<Room>,
}

impl<F: Frame + 'static> Datapath<F> {
    /// Returns the connection tracker, which all bridges share; zones keep their connections apart.
    pub fn tracker(&self) -> &Arc<Tracker> {
        &self.shared.tracker
    }

    /// Creates a datapath without bridges, ports and workers.
    pub fn new(options: Options<F>) -> Result<Datapath<F>, Error> {
        let system = |error: std::io::Error| Error::System {
            what: "eventfd",
            reason: error.to_string(),
        };
        let interval_began = options.clock.now_ms();
        Ok(Datapath {
            shared: Arc::new(Shared {
                published: Published::new(Arc::clone(&options.program.domain)),
                program: options.program,
                cells: Cells::default(),
                clock: options.clock,
                returns: Returns::new(),
                allocate: options.allocate,
                packet_outs_done: AtomicU64::new(0),
                asked: Default::default(),
                waiting_probes: Default::default(),
                tracker: Arc::new(Tracker::new(Secret::random().0)),
                fragments: crate::fragments::Table::new(),
                stages: ::stages::Switch::default(),
            }),
            thread_init: options.thread_init,
            workers: Vec::new(),
            bridges: Vec::new(),
            ports: Vec::new(),
            names: HashMap::new(),
            generations: Vec::new(),
            bridge_generations: Vec::new(),
            free: std::collections::VecDeque::new(),
            picture: Snapshot::default(),
            parked: Vec::new(),
            leaving: Vec::new(),
            tickets: 0,
            thread_ids: 0,
            packet_ins: Vec::new(),
            packet_in_wake: Arc::new(PacketInWake::new(Wake::new().map_err(system)?)),
            packet_outs: 0,
            packet_outs_refused: 0,
            interval_began,
            underlay: tunnels::Underlay::default(),
            steering: steering::Steering::default(),
            isolates: true,
            assignment: Assignment::default(),
            balancing: balancing::Balancing::default(),
            waiting: Arc::new(Room::new()),
        })
    }

    /// Has at most so many frames wait at all shaped ports together, in buffers of one frame each;
    /// one port may have two thirds of them waiting. Without a limit at first.
    pub fn bound_waiting(&self, frames: u64) {
        self.waiting.limit(frames);
    }

    fn port(&self, id: PortId) -> Result<&PortRecord<F>, Error> {
        let found = self.ports.get(id.slot() as usize).and_then(Option::as_ref);
        found.filter(|port| port.id == id).ok_or(Error::NoSuchPort)
    }

    fn port_mut(&mut self, id: PortId) -> Result<&mut PortRecord<F>, Error> {
        let found = self
            .ports
            .get_mut(id.slot() as usize)
            .and_then(Option::as_mut);
        found.filter(|port| port.id == id).ok_or(Error::NoSuchPort)
    }

    fn check_number(&self, bridge: BridgeId, number: PortNo, name: &str) -> Result<(), Error> {
        if number == 0 || number >= NUMBER_END && number != LOCAL {
            return Err(Error::BadNumber {
                name: name.to_owned(),
                number,
            });
        }
        let same = |port: &&PortRecord<F>| {
            port.bridge == bridge && port.number == number && port.name != name
        };
        match self.ports.iter().flatten().find(same) {
            Some(other) => Err(Error::NumberInUse {
                name: name.to_owned(),
                number,
                other: other.name.clone(),
            }),
            None => Ok(()),
        }
    }

    fn free_slot(&mut self, name: &str) -> Result<u32, Error> {
        // A slot is reused only after a while, so that stale identifiers are recognised for long.
        if self.free.len() > 64 || self.generations.len() >= MAX_PORTS {
            return self
                .free
                .pop_front()
                .ok_or_else(|| Error::TooManyPorts(name.to_owned()));
        }
        self.generations.push(0);
        self.ports.push(None);
        self.picture.ports.push(None);
        Ok(self.generations.len() as u32 - 1)
    }

    /// Adds a port. When it returns, every worker can send to it, and its receive queues are
    /// served.
    pub fn add_port(&mut self, spec: PortSpec<F>) -> Result<PortId, Error> {
        self.bridge(spec.bridge)?;
        if self.names.contains_key(&spec.name) {
            return Err(Error::NameInUse(spec.name));
        }
        self.check_number(spec.bridge, spec.number, &spec.name)?;
        let slot = self.free_slot(&spec.name)?;
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1) & 0xffff;
        let id = PortId::new(slot, *generation);
        let counters: Arc<PortCounters> = Arc::default();
        let (kind, rx) = match spec.kind {
            PortKind::Patch { peer } => (PortBackend::Patch { peer }, Vec::new()),
            PortKind::Tunnel(spec) => (
                PortBackend::Tunnel(Arc::new(TunnelPort::new(spec))),
                Vec::new(),
            ),
            PortKind::Device { rx, mut tx } => {
                if let Err(error) = self.hand_out_tx(slot, &spec.name, &mut tx, &counters) {
                    let taken = self.take_back(&[slot], &format!("adding port {}", spec.name));
                    self.free_when(slot, taken.is_ok());
                    return Err(error);
                }
                let queues: Vec<Arc<QueueCounters>> = rx.iter().map(|_| Arc::default()).collect();
                let rx: Vec<RxPort<F>> = rx
                    .into_iter()
                    .zip(&queues)
                    .enumerate()
                    .map(|(index, (queue, counters))| {
                        RxPort::new(id, index, queue, Arc::clone(counters))
                    })
                    .collect();
                (PortBackend::Device { tx, queues }, rx)
            }
        };
        self.names.insert(spec.name.clone(), slot);
        let sent_by = Queues::default().changed(&spec.settings.queues, self.shared.clock.now_ms());
        self.ports[slot as usize] = Some(PortRecord {
            id,
            name: spec.name,
            bridge: spec.bridge,
            number: spec.number,
            settings: spec.settings,
            kind,
            counters,
            queues: sent_by,
            shaped: None,
            monitor: None,
            policing: Policing::default(),
            histories: rx.iter().map(|_| Default::default()).collect(),
            taken: rx.iter().map(|_| Default::default()).collect(),
            indirection: None,
        });
        self.police(id)?;
        self.reshape(id)?;
        self.redraw_with_peers(id);
        if matches!(self.port(id)?.kind, PortBackend::Tunnel(_)) {
            self.redraw_tunnels();
        }
        self.apply_or_warn("adding a port");
        rx.into_iter().try_for_each(|port| self.serve(port))?;
        if !self.port(id)?.settings.affinity.is_empty() {
            // Other queues leave the workers to which this port's are now pinned.
            self.rebalance()?;
        }
        Ok(id)
    }

    /// Removes a port. When it returns, no worker holds its queues any more, and addresses learned
    /// on it are forgotten. Other ports lose nothing. After [`Error::Timeout`] the port no longer
    /// receives or sends; its queues are dropped when the worker gives them back (see
    /// [`Datapath::run`]).
    pub fn remove_port(&mut self, id: PortId) -> Result<(), Error> {
        self.remove_ports(&[id])
    }

    /// Removes ports, as [`Datapath::remove_port`] does one, with one wait for all. Unknown
    /// identifiers are skipped, and reported as an error in the end.
    pub fn remove_ports(&mut self, ids: &[PortId]) -> Result<(), Error> {
        let mut outcome = Ok(());
        let (mut bridges, mut slots, mut records) = (Vec::new(), Vec::new(), Vec::new());
        let mut what = "removing ports".to_owned();
        for id in ids {
            let port = match self.port(*id) {
                Ok(port) => port,
                Err(error) => {
                    outcome = Err(error);
                    continue;
                }
            };
            let (name, slot) = (port.name.clone(), id.slot());
            bridges.push(port.bridge);
            bridges.extend(self.peers_of(&name));
            self.names.remove(&name);
            // Keep the record until the end: it owns the maker of transmit queues, and so perhaps
            // the device.
            records.extend(self.ports[slot as usize].take());
            self.picture.ports[slot as usize] = None;
            slots.push(slot);
            what = format!("removing port {name}");
        }
        if slots.is_empty() {
            return outcome;
        }
        bridges.sort();
        bridges.dedup();
        for bridge in &bridges {
            self.redraw(*bridge);
        }
        if records
            .iter()
            .any(|record| matches!(record.kind, PortBackend::Tunnel(_)))
        {
            self.redraw_tunnels();
        }
        let epoch = self.publish();
        self.parked.retain(|port| !ids.contains(&port.id));
        let taken = self.take_back(&slots, &what);
        for record in &records {
            self.let_go(record.shaped.as_deref());
        }
        let passed = self.wait_passed(epoch, &what);
        for record in &records {
            if let Ok(bridge) = self.bridge(record.bridge) {
                bridge.macs.flush(Some(record.id.slot()), true);
            }
        }
        // What waits may lie in a device's memory.
        self.shared.fragments.purge(None);
        drop(records);
        for slot in slots {
            self.free_when(slot, taken.is_ok() && passed.is_ok());
        }
        outcome.and(taken).and(passed)
    }

    /// Changes a port's VLANs and flags.
    pub fn modify_port(&mut self, id: PortId, settings: PortSettings) -> Result<(), Error> {
        let now_ms = self.shared.clock.now_ms();
        let port = self.port_mut(id)?;
        if port.settings == settings {
            return Ok(());
        }
        let flush = port.settings.vlan != settings.vlan;
        port.queues = port.queues.changed(&settings.queues, now_ms);
        let other_shape = port.settings.shape != settings.shape;
        let other_workers = port.settings.affinity != settings.affinity;
        port.settings = settings;
        let bridge = port.bridge;
        self.police(id)?;
        let reshaped = match other_shape {
            true => self.reshape(id),
            false => Ok(()),
        };
        // Redraw even after a failure, because some settings may have changed.
        self.redraw_port(id);
        let applied = reshaped.and(self.apply("changing a port"));
        if flush {
            self.bridge(bridge)?.macs.flush(Some(id.slot()), false);
        }
        if other_workers {
            return applied.and(self.rebalance());
        }
        applied
    }

    /// Changes a port's OpenFlow number.
    pub fn renumber_port(&mut self, id: PortId, number: PortNo) -> Result<(), Error> {
        let port = self.port(id)?;
        let bridge = port.bridge;
        self.check_number(bridge, number, &port.name)?;
        self.port_mut(id)?.number = number;
        self.redraw(bridge);
        self.apply("changing a port number")
    }

    /// Changes a tunnel port's options.
    pub fn set_tunnel(&mut self, id: PortId, spec: TunnelSpec) -> Result<(), Error> {
        let port = self.port_mut(id)?;
        let PortBackend::Tunnel(old) = &mut port.kind else {
            return Err(Error::NotATunnel(port.name.clone()));
        };
        if old.spec == spec {
            return Ok(());
        }
        *old = Arc::new(TunnelPort::new(spec));
        self.redraw_port(id);
        self.redraw_tunnels();
        self.apply("changing a tunnel")
    }

    /// Gives a port a monitor, or takes it away. It stands even if a worker takes long to see it,
    /// which is only warned of: a port with a monitor and no session would never be live.
    pub fn set_monitor(&mut self, id: PortId, monitor: Option<Arc<Monitor>>) -> Result<(), Error> {
        let port = self.port_mut(id)?;
        if let Some(monitor) = &monitor {
            monitor.watch(&port.counters);
        }
        port.monitor = monitor;
        self.picture.monitored = self
            .ports
            .iter()
            .flatten()
            .any(|port| port.monitor.is_some());
        self.redraw_port(id);
        self.apply_or_warn("changing a port's monitor");
        Ok(())
    }

    /// Returns what sends monitors' packets.
    pub fn probes(&self) -> Probes<F> {
        Probes(Arc::clone(&self.shared))
    }

    /// Changes a patch port's peer.
    pub fn set_peer(&mut self, id: PortId, peer: &str) -> Result<(), Error> {
        let port = self.port_mut(id)?;
        let name = port.name.clone();
        let PortBackend::Patch { peer: old } = &mut port.kind else {
            return Err(Error::NotAPatch(name));
        };
        *old = peer.to_owned();
        for bridge in self.peers_of(&name) {
            self.redraw(bridge);
        }
        self.redraw_with_peers(id);
        self.apply("changing a patch port")
    }

    /// Returns the port with this name.
    pub fn find_port(&self, name: &str) -> Option<PortId> {
        let slot = self.names.get(name)?;
        Some(self.ports[*slot as usize].as_ref()?.id)
    }

    /// Describes all ports.
    pub fn ports(&self) -> Vec<PortInfo> {
        let info = |port: &PortRecord<F>| PortInfo {
            id: port.id,
            name: port.name.clone(),
            bridge: port.bridge,
            number: port.number,
            peer: match &port.kind {
                PortBackend::Patch { peer } => Some((peer.clone(), self.peer_slot(port).is_some())),
                PortBackend::Device { .. } | PortBackend::Tunnel(_) => None,
            },
            queues: port.histories.len(),
        };
        self.ports.iter().flatten().map(info).collect()
    }

    /// Returns a port's counters.
    pub fn port_stats(&self, id: PortId) -> Result<PortStats, Error> {
        let port = self.port(id)?;
        let drops = port.queue_drops();
        let counted = port.counters.sum();
        Ok(PortStats {
            rx_dropped: drops.missed + drops.no_buffer,
            rx_errors: drops.malformed,
            ..counted
        })
    }

    /// Returns the bridges of patch ports whose peer is `name`.
    fn peers_of(&self, name: &str) -> Vec<BridgeId> {
        let names_it = |port: &&PortRecord<F>| matches!(&port.kind, PortBackend::Patch { peer } if peer == name);
        self.ports
            .iter()
            .flatten()
            .filter(names_it)
            .map(|port| port.bridge)
            .collect()
    }

    /// Returns the slot of a patch port's peer, when each names the other.
    fn peer_slot(&self, port: &PortRecord<F>) -> Option<u32> {
        let PortBackend::Patch { peer } = &port.kind else {
            return None;
        };
        let slot = *self.names.get(peer)?;
        let other = self.ports[slot as usize].as_ref()?;
        matches!(&other.kind, PortBackend::Patch { peer } if *peer == port.name).then_some(slot)
    }

    /// Redraws a bridge and its ports.
    fn redraw(&mut self, id: BridgeId) {
        let Ok(bridge) = self.bridge(id) else { return };
        let draw = |port: &PortRecord<F>| Arc::new(self.draw_port(port, &bridge.mirrors));
        let ports: Vec<Arc<PortState>> = self
            .ports
            .iter()
            .flatten()
            .filter(|port| port.bridge == id)
            .map(draw)
            .collect();
        for port in &ports {
            self.picture.ports[port.id.slot() as usize] = Some(Arc::clone(port));
        }
        self.redraw_with(id, ports);
    }

    /// Redraws one port of a bridge, where nothing else has changed, or the port is new.
    fn redraw_port(&mut self, id: PortId) {
        let Ok(port) = self.port(id) else { return };
        let Ok(bridge) = self.bridge(port.bridge) else {
            return;
        };
        let (slot, bridge_id) = (id.slot(), bridge.id);
        let drawn = Arc::new(self.draw_port(port, &bridge.mirrors));
        let before = self.picture.bridge(bridge_id.slot());
        let others = before.map_or(&[][..], |bridge| &bridge.ports);
        let mut ports: Vec<Arc<PortState>> = Vec::with_capacity(others.len() + 1);
        ports.extend(others.iter().filter(|other| other.id != id).cloned());
        ports.push(Arc::clone(&drawn));
        self.picture.ports[slot as usize] = Some(drawn);
        self.redraw_with(bridge_id, ports);
    }

    /// Redraws a bridge with these ports.
    fn redraw_with(&mut self, id: BridgeId, ports: Vec<Arc<PortState>>) {
        let Ok(bridge) = self.bridge(id) else { return };
        let counters = |name: &str| {
            bridge
                .mirror_counters
                .get(name)
                .cloned()
                .unwrap_or_default()
        };
        let parts = BridgeParts {
            id,
            program: Arc::clone(&bridge.program),
            macs: Arc::clone(&bridge.macs),
            forward_bpdu: bridge.settings.forward_bpdu,
            flood_vlans: (!bridge.settings.flood_vlans.is_empty()).then(|| {
                bridge
                    .settings
                    .flood_vlans
                    .iter()
                    .copied()
                    .collect::<VlanSet>()
            }),
            mirrors: mirror::build(&bridge.mirrors, counters),
            options: bridge.options.clone(),
        };
        let slot = id.slot() as usize;
        if self.picture.bridges.len() <= slot {
            self.picture.bridges.resize(slot + 1, None);
        }
        self.picture.bridges[slot] = Some(Arc::new(BridgeState::new(parts, ports)));
    }

    fn draw_port(&self, port: &PortRecord<F>, mirrors: &[MirrorSpec]) -> PortState {
        let (mirror_in, mirror_out) = mirror::selections(mirrors, port.id);
        let reserved = mirrors
            .iter()
            .any(|mirror| mirror.output == MirrorOutput::Port(port.id));
        let mirror_in = if reserved { 0 } else { mirror_in };
        let behind = match port.kind {
            PortBackend::Device { .. } => Behind::Device,
            PortBackend::Patch { .. } => Behind::Patch(self.peer_slot(port)),
            PortBackend::Tunnel(_) => Behind::Tunnel,
        };
        let mut flags = port.settings.flags;
        // What a mirror's output port receives is dropped before any rule.
        flags.no_recv |= reserved;
        flags.no_recv_stp |= reserved;
        let shaped = port.shaped.is_some();
        let terminates = match port.number {
            LOCAL => self.underlay_device(port.bridge).map(Arc::new),
            _ => None,
        };
        let fcf = self
            .bridge(port.bridge)
            .ok()
            .and_then(|bridge| bridge.settings.fcf);
        let direct = terminates.is_none()
            && fcf.is_none()
            && !flags.down
            && !flags.no_fwd
            && mirror_out == 0
            && port.settings.marks.is_empty()
            && port.policing.egress.is_none();
        let tunnel = match &port.kind {
            PortBackend::Tunnel(tunnel) => Some(Arc::clone(tunnel)),
            PortBackend::Device { .. } | PortBackend::Patch { .. } => None,
        };
        let only_tunnel = direct && behind == Behind::Tunnel && port.queues.is_empty() && !shaped;
        let carries_frames = |tunnel: &Arc<TunnelPort>| tunnel.spec.carries == Carries::Frames;
        PortState {
            id: port.id,
            bridge: port.bridge.slot(),
            number: port.number,
            vlan: port.settings.vlan.clone(),
            flags,
            live: !flags.down && !port.settings.no_carrier,
            behind,
            takes_frames: only_tunnel && tunnel.as_ref().is_some_and(carries_frames),
            reads_metadata: tunnel.as_ref().is_some_and(|tunnel| tunnel.reads_packets),
            tunnel_version: tunnel.as_ref().map_or(0, |tunnel| tunnel.version),
            tunnel,
            terminates,
            underlay: port.settings.underlay,
            fcf,
            urgency: Urgency::of(port.settings.underlay, fcf),
            mirror_in,
            plain_ingress: mirror_in == 0 && !flags.refuses() && port.policing.ingress.is_none(),
            mirror_out,
            reserved,
            plain: direct && behind == Behind::Device && port.queues.is_empty() && !shaped,
            only_tunnel,
            policing: port.policing.clone(),
            shaped,
            monitor: port.monitor.clone(),
            only_shaped: direct && behind == Behind::Device && shaped,
            queues: port.queues.clone(),
            marks: port.settings.marks.clone(),
            counters: Arc::clone(&port.counters),
            taken: Arc::clone(&port.taken),
        }
    }

    /// Redraws a port, and the bridges of its patch peers.
    fn redraw_with_peers(&mut self, id: PortId) {
        let Ok(port) = self.port(id) else { return };
        let own = port.bridge;
        let mut bridges = self.peers_of(&port.name);
        bridges.sort();
        bridges.dedup();
        if !bridges.contains(&own) {
            self.redraw_port(id);
        }
        bridges.into_iter().for_each(|bridge| self.redraw(bridge));
    }

    fn publish(&mut self) -> Epoch {
        self.shared.published.replace(self.picture.clone())
    }

    /// Publishes the snapshot and waits until every worker works by it, so that frames that arrive
    /// later meet the change.
    fn apply(&mut self, what: &str) -> Result<(), Error> {
        let epoch = self.publish();
        self.wait_passed(epoch, what)
    }

    /// [`Datapath::apply`] for additions, which only warns: the addition stands even if a worker
    /// takes long to see it and meanwhile drops frames for it.
    fn apply_or_warn(&mut self, what: &str) {
        if let Err(error) = self.apply(what) {
            tracing::warn!(target: "dpif_netdev", "{error}");
        }
    }

    fn wait_passed(&self, epoch: Epoch, what: &str) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        while !self.shared.program.domain.passed(epoch) {
            if Instant::now() > deadline {
                return Err(Error::Timeout {
                    what: what.to_owned(),
                    worker: "a worker".to_owned(),
                    seconds: PATIENCE.as_secs(),
                });
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }
}

impl<F: Frame> Drop for Datapath<F> {
    fn drop(&mut self) {
        for worker in &self.workers {
            // If the command queue is full, the worker keeps running: it holds all it needs, and
            // ends with the process.
            let _ = worker.mailbox.commands.push(Command::Stop { ticket: 0 });
            worker.mailbox.nudge();
        }
        let deadline = Instant::now() + PATIENCE;
        for worker in &mut self.workers {
            worker.join(deadline);
        }
        // Devices' queues are closed here, on the thread that opened them.
        drop(self.shared.returns.take(Instant::now()));
    }
}
