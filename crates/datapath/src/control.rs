//! The control thread's side: bridges, ports, settings, and what is published to workers.
//!
//! A change is made in the records here, drawn into a new picture, and published; when a method returns, every worker goes by it. A port's transmit queues are
//! with the workers before the picture shows the port; its receive queues follow. A port that goes is first taken out of the picture, then asked back
//! from every worker; only when all have answered is its place free again.

mod workers;

use crate::clock::Clock;
use crate::counters::{Cells, PortCounters, PortStats, QueueCounters};
use crate::error::Error;
use crate::history::{History, INTERVAL_SECONDS};
use crate::mac_table::{self, Mac, MacEntry, MacStats, MacTable};
use crate::mirror::{self, MAX_MIRRORS, MirrorCounters, MirrorOutput, MirrorSpec, MirrorStats};
use crate::packet_in::{PacketIn, PacketInRing, PacketInWake};
use crate::port::{BridgeId, LOCAL, MAX_PORTS, MakeTx, PortId, PortKind, PortSettings, PortSpec};
use crate::report::{PortInfo, WorkerInfo};
use crate::snapshot::{Behind, BridgeParts, BridgeState, PortState, Published, Snapshot};
use crate::vlan::VlanSet;
use crate::wake::Wake;
use crate::worker::{Command, PacketOut, Returns, RxPort, Shared};
use packet::Frame;
use packet::io::QueueDrops;
use program::Program;
use program::epoch::Epoch;
use program::ops::{OpList, PortNo};
use program::table::Bridge;
use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use workers::{Handle, Leaving};

/// How long workers have to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Port numbers end here; above are reserved ones (OpenFlow 1.3.5 section 7.2.1, `OFPP_MAX`).
const NUMBER_END: PortNo = 0xffff_ff00;

/// Called on each new worker's thread with the worker's name, before it touches a queue; what it returns is dropped when the thread ends.
pub type ThreadInit = Arc<dyn Fn(&str) -> Result<Box<dyn Any>, String> + Send + Sync>;

/// Makes a frame that holds the given bytes; None when memory ran out. Called on workers.
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

/// A bridge's switching settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BridgeSettings {
    /// Whether NORMAL forwards frames to reserved addresses (`other_config:forward-bpdu`).
    pub forward_bpdu: bool,
    /// VLANs in which nothing is learned and everything is flooded.
    pub flood_vlans: Vec<u16>,
    /// Seconds after which an address that is not seen is forgotten, at least 1.
    pub mac_aging: u32,
    /// Entries of the learning table, within [`mac_table::SIZE_MIN`] and [`mac_table::SIZE_MAX`].
    pub mac_table_size: usize,
}

impl Default for BridgeSettings {
    fn default() -> Self {
        BridgeSettings {
            forward_bpdu: false,
            flood_vlans: Vec::new(),
            mac_aging: 300,
            mac_table_size: mac_table::SIZE_DEFAULT,
        }
    }
}

/// What a barrier waits for; see [`Datapath::barrier`].
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
}

enum Kind<F: Frame> {
    Device {
        tx: MakeTx<F>,
        queues: Vec<Arc<QueueCounters>>,
    },
    Patch {
        peer: String,
    },
}

struct PortRecord<F: Frame> {
    id: PortId,
    name: String,
    bridge: BridgeId,
    number: PortNo,
    settings: PortSettings,
    kind: Kind<F>,
    counters: Arc<PortCounters>,
    histories: Vec<History>,
}

impl<F: Frame> PortRecord<F> {
    fn queue_drops(&self) -> QueueDrops {
        let Kind::Device { queues, .. } = &self.kind else {
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

/// Bridges, ports and workers around a program; see the crate's head. Belongs to one thread.
pub struct Datapath<F: Frame> {
    shared: Arc<Shared<F>>,
    thread_init: Option<ThreadInit>,
    workers: Vec<Handle<F>>,
    bridges: Vec<Option<BridgeRecord>>,
    ports: Vec<Option<PortRecord<F>>>,
    names: HashMap<String, u32>,
    /// How often each slot has been given out.
    generations: Vec<u32>,
    bridge_generations: Vec<u32>,
    free: std::collections::VecDeque<u32>,
    picture: Snapshot,
    /// Receive queues that no worker serves, as there is none.
    parked: Vec<RxPort<F>>,
    leaving: Vec<Leaving>,
    tickets: u64,
    thread_ids: u32,
    packet_ins: Vec<Arc<PacketInRing>>,
    packet_in_wake: Arc<PacketInWake>,
    packet_outs: u64,
    packet_outs_refused: u64,
    interval_began: u64,
}

impl<F: Frame + 'static> Datapath<F> {
    /// A datapath without bridges, ports and workers.
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
        })
    }

    // ---- Bridges.

    /// Adds a bridge that runs `program`, the readers' side of its tables.
    pub fn add_bridge(&mut self, name: &str, program: Arc<Bridge>) -> Result<BridgeId, Error> {
        if self
            .bridges
            .iter()
            .flatten()
            .any(|bridge| bridge.name == name)
        {
            return Err(Error::NameInUse(name.to_owned()));
        }
        let slot = self
            .bridges
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.bridges.len());
        if slot >= MAX_PORTS {
            return Err(Error::TooManyBridges(name.to_owned()));
        }
        if slot == self.bridges.len() {
            self.bridges.push(None);
            self.bridge_generations.push(0);
        }
        self.bridge_generations[slot] = self.bridge_generations[slot].wrapping_add(1);
        let id = BridgeId((self.bridge_generations[slot] & 0xffff) << 16 | slot as u32);
        let settings = BridgeSettings::default();
        self.bridges[slot] = Some(BridgeRecord {
            id,
            name: name.to_owned(),
            program,
            macs: Arc::new(MacTable::new(settings.mac_table_size)),
            settings,
            mirrors: Vec::new(),
            mirror_counters: HashMap::new(),
        });
        self.redraw(id);
        self.apply_or_warn("adding a bridge");
        Ok(id)
    }

    /// Removes a bridge that has no ports any more; returns when no worker runs its program.
    pub fn remove_bridge(&mut self, id: BridgeId) -> Result<(), Error> {
        let bridge = self.bridge(id)?;
        if self.ports.iter().flatten().any(|port| port.bridge == id) {
            return Err(Error::BridgeInUse(bridge.name.clone()));
        }
        let what = format!("removing bridge {}", bridge.name);
        let slot = id.slot() as usize;
        self.bridges[slot] = None;
        self.picture.bridges[slot] = None;
        let epoch = self.publish();
        self.wait_passed(epoch, &what)
    }

    fn bridge(&self, id: BridgeId) -> Result<&BridgeRecord, Error> {
        let found = self
            .bridges
            .get(id.slot() as usize)
            .and_then(Option::as_ref);
        found
            .filter(|bridge| bridge.id == id)
            .ok_or(Error::NoSuchBridge)
    }

    fn bridge_mut(&mut self, id: BridgeId) -> Result<&mut BridgeRecord, Error> {
        let found = self
            .bridges
            .get_mut(id.slot() as usize)
            .and_then(Option::as_mut);
        found
            .filter(|bridge| bridge.id == id)
            .ok_or(Error::NoSuchBridge)
    }

    /// Changes a bridge's switching settings. A new table size keeps the entries that fit, the latest first.
    pub fn set_bridge(&mut self, id: BridgeId, settings: BridgeSettings) -> Result<(), Error> {
        let bridge = self.bridge_mut(id)?;
        if bridge.settings == settings {
            return Ok(());
        }
        let size = settings
            .mac_table_size
            .clamp(mac_table::SIZE_MIN, mac_table::SIZE_MAX);
        if size != bridge.macs.stats().maximum {
            bridge.macs = Arc::new(bridge.macs.resized(size));
        }
        bridge.settings = settings;
        self.redraw(id);
        self.apply("changing a bridge")
    }

    /// Sets a bridge's mirrors, in place of those it had. Mirrors of the same name keep their counts.
    pub fn set_mirrors(&mut self, id: BridgeId, mirrors: Vec<MirrorSpec>) -> Result<(), Error> {
        let bridge = self.bridge(id)?;
        if bridge.mirrors == mirrors {
            return Ok(());
        }
        let bad = |name: &str, reason: &str| {
            Err(Error::Mirror {
                name: name.to_owned(),
                reason: reason.to_owned(),
            })
        };
        for (index, mirror) in mirrors.iter().enumerate() {
            if index >= MAX_MIRRORS {
                return bad(&mirror.name, "a bridge can have 32 mirrors");
            }
            if mirrors[..index]
                .iter()
                .any(|other| other.name == mirror.name)
            {
                return bad(&mirror.name, "another mirror has the name");
            }
            match mirror.output {
                MirrorOutput::Vlan(vid) if vid > 4095 => {
                    return bad(&mirror.name, "output VLAN is not within 0 and 4095");
                }
                MirrorOutput::Port(port)
                    if !self.port(port).is_ok_and(|port| port.bridge == id) =>
                {
                    return bad(&mirror.name, "output port is not a port of the bridge");
                }
                MirrorOutput::Vlan(_) | MirrorOutput::Port(_) => {}
            }
        }
        let bridge = self.bridge_mut(id)?;
        bridge
            .mirror_counters
            .retain(|name, _| mirrors.iter().any(|mirror| mirror.name == *name));
        for mirror in &mirrors {
            bridge
                .mirror_counters
                .entry(mirror.name.clone())
                .or_default();
        }
        bridge.mirrors = mirrors;
        self.redraw(id);
        self.apply("changing mirrors")
    }

    /// What a mirror has sent; None when there is no such mirror.
    pub fn mirror_stats(&self, id: BridgeId, name: &str) -> Option<MirrorStats> {
        Some(self.bridge(id).ok()?.mirror_counters.get(name)?.read())
    }

    // ---- Learned addresses.

    /// A bridge's learned addresses, the longest silent first.
    pub fn macs(&self, id: BridgeId) -> Result<Vec<(PortId, MacEntry)>, Error> {
        let entries = self.bridge(id)?.macs.entries(self.second());
        let port = |entry: &MacEntry| Some(self.ports.get(entry.port as usize)?.as_ref()?.id);
        Ok(entries
            .into_iter()
            .filter_map(|entry| Some((port(&entry)?, entry)))
            .collect())
    }

    /// Counts of a bridge's learning table.
    pub fn mac_stats(&self, id: BridgeId) -> Result<MacStats, Error> {
        Ok(self.bridge(id)?.macs.stats())
    }

    /// Sets those counts to zero.
    pub fn clear_mac_stats(&mut self, id: BridgeId) -> Result<(), Error> {
        self.bridge(id)?.macs.clear_stats();
        Ok(())
    }

    /// Forgets learned addresses of a bridge, or of one of its ports.
    pub fn flush_macs(&mut self, id: BridgeId, port: Option<PortId>) -> Result<(), Error> {
        self.bridge(id)?.macs.flush(port.map(PortId::slot), false);
        Ok(())
    }

    /// Adds a static entry, which neither ages nor moves.
    pub fn add_static_mac(
        &mut self,
        id: BridgeId,
        port: PortId,
        vlan: u16,
        mac: Mac,
    ) -> Result<(), Error> {
        if self.port(port)?.bridge != id {
            return Err(Error::NoSuchPort);
        }
        let done = self.bridge(id)?.macs.add_static(mac, vlan, port.slot());
        done.then_some(()).ok_or(Error::TableFull)
    }

    /// Removes an entry, static or learned; false when there is none.
    pub fn remove_mac(&mut self, id: BridgeId, vlan: u16, mac: Mac) -> Result<bool, Error> {
        Ok(self.bridge(id)?.macs.delete(mac, vlan))
    }

    fn second(&self) -> u32 {
        (self.shared.clock.now_ms() / 1000) as u32
    }

    // ---- Ports.

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
        // A slot rests for a while before it is used again, so that stale names of it are recognised for long.
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

    /// Adds a port. When it returns, every worker can send to it, and its receive queues are being served.
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
            PortKind::Patch { peer } => (Kind::Patch { peer }, Vec::new()),
            PortKind::Device { rx, mut tx } => {
                if let Err(error) = self.hand_out_tx(slot, &spec.name, &mut tx, &counters) {
                    let taken = self.take_back(slot, &format!("adding port {}", spec.name));
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
                (Kind::Device { tx, queues }, rx)
            }
        };
        self.names.insert(spec.name.clone(), slot);
        self.ports[slot as usize] = Some(PortRecord {
            id,
            name: spec.name,
            bridge: spec.bridge,
            number: spec.number,
            settings: spec.settings,
            kind,
            counters,
            histories: rx.iter().map(|_| History::default()).collect(),
        });
        self.redraw_with_peers(id);
        self.apply_or_warn("adding a port");
        rx.into_iter().try_for_each(|port| self.serve(port))?;
        Ok(id)
    }

    /// Removes a port. When it returns, no worker holds its queues any more, and addresses learned on it are forgotten. Other ports lose nothing. After
    /// [`Error::Timeout`] the port is gone for traffic; its queues are dropped when the worker gives them back (see [`Datapath::run`]).
    pub fn remove_port(&mut self, id: PortId) -> Result<(), Error> {
        let port = self.port(id)?;
        let (name, bridge, slot) = (port.name.clone(), port.bridge, id.slot());
        let what = format!("removing port {name}");
        let peers = self.peers_of(&name);
        self.names.remove(&name);
        // The record goes at the end: it holds what makes transmit queues, and so perhaps the device.
        let record = self.ports[slot as usize].take();
        self.picture.ports[slot as usize] = None;
        self.redraw(bridge);
        for peer in peers {
            self.redraw(peer);
        }
        let epoch = self.publish();
        self.parked.retain(|port| port.id != id);
        let taken = self.take_back(slot, &what);
        let passed = self.wait_passed(epoch, &what);
        if let Ok(bridge) = self.bridge(bridge) {
            bridge.macs.flush(Some(slot), true);
        }
        drop(record);
        self.free_when(slot, taken.is_ok() && passed.is_ok());
        taken.and(passed)
    }

    /// Changes a port's VLANs and flags.
    pub fn modify_port(&mut self, id: PortId, settings: PortSettings) -> Result<(), Error> {
        let port = self.port_mut(id)?;
        if port.settings == settings {
            return Ok(());
        }
        let flush = port.settings.vlan != settings.vlan;
        port.settings = settings;
        let bridge = port.bridge;
        self.redraw(bridge);
        let applied = self.apply("changing a port");
        if flush {
            self.bridge(bridge)?.macs.flush(Some(id.slot()), false);
        }
        applied
    }

    /// Gives a port another OpenFlow number.
    pub fn renumber_port(&mut self, id: PortId, number: PortNo) -> Result<(), Error> {
        let port = self.port(id)?;
        let bridge = port.bridge;
        self.check_number(bridge, number, &port.name)?;
        self.port_mut(id)?.number = number;
        self.redraw(bridge);
        self.apply("changing a port number")
    }

    /// Gives a patch port another peer.
    pub fn set_peer(&mut self, id: PortId, peer: &str) -> Result<(), Error> {
        let port = self.port_mut(id)?;
        let name = port.name.clone();
        let Kind::Patch { peer: old } = &mut port.kind else {
            return Err(Error::NotAPatch(name));
        };
        *old = peer.to_owned();
        for bridge in self.peers_of(&name) {
            self.redraw(bridge);
        }
        self.redraw_with_peers(id);
        self.apply("changing a patch port")
    }

    /// The port of a name.
    pub fn find_port(&self, name: &str) -> Option<PortId> {
        let slot = self.names.get(name)?;
        Some(self.ports[*slot as usize].as_ref()?.id)
    }

    /// All ports.
    pub fn ports(&self) -> Vec<PortInfo> {
        let info = |port: &PortRecord<F>| PortInfo {
            id: port.id,
            name: port.name.clone(),
            bridge: port.bridge,
            number: port.number,
            peer: match &port.kind {
                Kind::Patch { peer } => Some((peer.clone(), self.peer_slot(port).is_some())),
                Kind::Device { .. } => None,
            },
            queues: port.histories.len(),
        };
        self.ports.iter().flatten().map(info).collect()
    }

    /// What a port has counted.
    pub fn port_stats(&self, id: PortId) -> Result<PortStats, Error> {
        let port = self.port(id)?;
        let drops = port.queue_drops();
        Ok(PortStats {
            rx_dropped: drops.missed + drops.no_buffer,
            rx_errors: drops.malformed,
            ..port.counters.sum()
        })
    }

    /// Bridges of patch ports whose peer is `name`.
    fn peers_of(&self, name: &str) -> Vec<BridgeId> {
        let names_it =
            |port: &&PortRecord<F>| matches!(&port.kind, Kind::Patch { peer } if peer == name);
        self.ports
            .iter()
            .flatten()
            .filter(names_it)
            .map(|port| port.bridge)
            .collect()
    }

    /// The slot of a patch port's peer, when each names the other.
    fn peer_slot(&self, port: &PortRecord<F>) -> Option<u32> {
        let Kind::Patch { peer } = &port.kind else {
            return None;
        };
        let slot = *self.names.get(peer)?;
        let other = self.ports[slot as usize].as_ref()?;
        matches!(&other.kind, Kind::Patch { peer } if *peer == port.name).then_some(slot)
    }

    // ---- The picture.

    /// Draws a bridge and its ports anew.
    fn redraw(&mut self, id: BridgeId) {
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
        };
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
        let behind = match port.kind {
            Kind::Device { .. } => Behind::Device,
            Kind::Patch { .. } => Behind::Patch(self.peer_slot(port)),
        };
        let flags = port.settings.flags;
        PortState {
            id: port.id,
            bridge: port.bridge.slot(),
            number: port.number,
            vlan: port.settings.vlan.clone(),
            flags,
            behind,
            // What comes in by a port that only mirrors is no traffic.
            mirror_in: if reserved { 0 } else { mirror_in },
            mirror_out,
            reserved,
            plain: behind == Behind::Device && !flags.down && !flags.no_fwd && mirror_out == 0,
            counters: Arc::clone(&port.counters),
        }
    }

    /// Draws the bridge of a port, and those of its patch peers.
    fn redraw_with_peers(&mut self, id: PortId) {
        let Ok(port) = self.port(id) else { return };
        let mut bridges = self.peers_of(&port.name);
        bridges.push(port.bridge);
        bridges.sort();
        bridges.dedup();
        bridges.into_iter().for_each(|bridge| self.redraw(bridge));
    }

    fn publish(&mut self) -> Epoch {
        self.shared.published.replace(self.picture.clone())
    }

    /// Publishes the picture and waits until every worker goes by it, so that a frame that arrives later meets the change.
    fn apply(&mut self, what: &str) -> Result<(), Error> {
        let epoch = self.publish();
        self.wait_passed(epoch, what)
    }

    /// The same for what is added: it is there, also when a worker takes its time to see it and drops what is for it meanwhile.
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

    // ---- Packets from and to control.

    /// Sends a packet by steps of its own, as if it had come in by `in_port` (a port of the bridge, or a reserved number). It is carried out on a worker, in the order of
    /// calls. Refused and counted when the queue is full or there is no worker.
    pub fn packet_out(
        &mut self,
        bridge: BridgeId,
        in_port: PortNo,
        data: Vec<u8>,
        ops: Arc<OpList>,
    ) -> Result<(), Error> {
        self.bridge(bridge)?;
        let refused = match self.workers.first() {
            None => Error::NoWorker,
            Some(worker) => match worker.mailbox.packet_outs.push(PacketOut {
                bridge,
                in_port,
                data,
                ops,
            }) {
                Ok(()) => {
                    self.packet_outs += 1;
                    worker.mailbox.nudge();
                    return Ok(());
                }
                Err(_) => Error::QueueFull("packet-out"),
            },
        };
        self.packet_outs_refused += 1;
        Err(refused)
    }

    /// A descriptor that is readable when packet-ins wait.
    pub fn packet_in_fd(&self) -> RawFd {
        self.packet_in_wake.wake.as_raw_fd()
    }

    /// Fetches up to `limit` packet-ins, taking turns between workers. Where more are left the descriptor stays readable.
    pub fn take_packet_ins(&mut self, limit: usize) -> Vec<PacketIn> {
        self.packet_in_wake.clear();
        let mut packets = Vec::new();
        let mut empty = 0;
        for ring in self.packet_ins.iter().cycle() {
            if packets.len() >= limit {
                self.packet_in_wake.raise();
                break;
            }
            match ring.pop() {
                Some(packet) => {
                    packets.push(packet);
                    empty = 0;
                }
                None => empty += 1,
            }
            if empty >= self.packet_ins.len() {
                break;
            }
        }
        packets
    }

    /// What has been published and sent so far, for [`Datapath::barrier_passed`].
    pub fn barrier(&self) -> Barrier {
        Barrier {
            epoch: self.shared.program.domain.current(),
            packet_outs: self.packet_outs,
        }
    }

    /// Whether every worker obeys what had been published when `barrier` was made, and earlier packet-outs have been carried out.
    pub fn barrier_passed(&self, barrier: Barrier) -> bool {
        self.shared.packet_outs_done.load(Ordering::Acquire) >= barrier.packet_outs
            && self.epoch_passed(barrier.epoch)
    }

    /// Whether every worker works in `epoch` or later, or is asleep.
    pub fn epoch_passed(&self, epoch: Epoch) -> bool {
        self.shared.program.domain.passed(epoch)
    }

    // ---- Housekeeping and reports.

    /// What must be done now and then, about once a second: forgets silent addresses, frees what was replaced, takes back what workers gave back late.
    pub fn run(&mut self) {
        let second = self.second();
        for bridge in self.bridges.iter().flatten() {
            bridge.macs.expire(second, bridge.settings.mac_aging.max(1));
        }
        self.take_late_returns();
        self.shared.program.domain.collect();
        let now = self.shared.clock.now_ms();
        if now.saturating_sub(self.interval_began) >= INTERVAL_SECONDS * 1000 {
            self.interval_began = now;
            self.note_interval();
        }
    }

    fn note_interval(&mut self) {
        for port in self.ports.iter_mut().flatten() {
            let Kind::Device { queues, .. } = &port.kind else {
                continue;
            };
            for (history, queue) in port.histories.iter_mut().zip(queues) {
                history.note(queue.cycles.get());
            }
        }
        for worker in &mut self.workers {
            let cycles = worker.all_cycles();
            worker.history.note(cycles);
        }
    }

    /// Workers, with their queues.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.workers
            .iter()
            .map(|worker| self.describe_worker(worker))
            .collect()
    }

    /// Sets what workers have done with their time to zero (`pmd-stats-clear`).
    pub fn clear_worker_stats(&mut self) {
        for worker in &mut self.workers {
            worker.cleared = worker.mailbox.counters.read();
        }
    }

    /// Frames dropped, by reason, over all workers.
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        self.shared.cells.drops()
    }

    /// Packets whose headers lied, by kind. Only `malformed_ethernet` and `malformed_split` ones were dropped (and are among [`Datapath::drops`] too).
    pub fn malformed(&self) -> Vec<(&'static str, u64)> {
        self.shared.cells.malformed()
    }

    /// Counters for `coverage/show`: drops as `drop_REASON`, lying packets, and what else is worth counting.
    pub fn coverage(&self) -> Vec<(String, u64)> {
        let cells = &self.shared.cells;
        let drops = self
            .drops()
            .into_iter()
            .map(|(name, count)| (format!("drop_{name}"), count));
        let malformed = self
            .malformed()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count));
        let others = [
            ("patch_frames", cells.sum(|cell| &cell.patched)),
            ("mirror_frames", cells.sum(|cell| &cell.mirrored)),
            ("packet_in_queued", cells.sum(|cell| &cell.packet_ins)),
            ("packet_out_done", cells.sum(|cell| &cell.packet_outs)),
            ("packet_out_refused", self.packet_outs_refused),
            (
                "worker_failures",
                self.workers
                    .iter()
                    .map(|worker| worker.mailbox.counters.failures.get())
                    .sum(),
            ),
        ];
        drops
            .chain(malformed)
            .chain(others.map(|(name, count)| (name.to_owned(), count)))
            .collect()
    }

    /// What is in memory, for `memory/show`.
    pub fn memory(&self) -> Vec<(&'static str, u64)> {
        let macs = self
            .bridges
            .iter()
            .flatten()
            .map(|bridge| bridge.macs.stats().current as u64)
            .sum();
        let sum = |of: fn(&PacketInRing) -> usize| {
            self.packet_ins.iter().map(|ring| of(ring) as u64).sum()
        };
        vec![
            ("macs", macs),
            ("packet-ins", sum(PacketInRing::len)),
            ("packet-in-bytes", sum(PacketInRing::bytes)),
            ("ports", self.names.len() as u64),
            ("workers", self.workers.len() as u64),
        ]
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<Clock> {
        &self.shared.clock
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.shared.program
    }
}

impl<F: Frame> Drop for Datapath<F> {
    fn drop(&mut self) {
        for worker in &self.workers {
            // A full command queue leaves the worker running: it holds all it needs, and ends with the process.
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
