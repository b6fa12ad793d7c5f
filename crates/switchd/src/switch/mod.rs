//! The switch proper: bridges, their ports and their OpenFlow state, on the control thread.
//!
//! * [`Switch`] owns what all bridges share: DPDK's environment, the datapath with its workers, the
//!   program's epoch.
//! * [`execute`] carries out the actions of [`mod@crate::config::plan`]; [`database`] is the loop
//!   around it.
//! * [`report`] collects the present state, for the database and for people; [`fail`] is what a
//!   bridge does without a controller.
//!
//! State is kept in `RefCell`s; none is borrowed across an `await`.

pub mod aside;
pub mod bridge;
mod bundle;
pub mod connections;
mod continuation;
pub mod database;
pub mod device;
pub mod execute;
mod fail;
mod in_band;
pub mod latency;
mod learn;
pub mod monitors;
mod openflow_switch;
pub mod predict;
pub(crate) mod processors;
mod queues;
pub mod report;
mod slices;
pub mod steered;
pub mod steering;
mod tables;
pub mod underlay;
pub mod waits;

pub use bridge::{Bridge, Port};

use crate::Shell;
use crate::config::Applied;
use crate::config::global::{DpdkInit, Global};
use datapath::clock::Clock;
use datapath::{Datapath, Options};
use ports::{Eal, EalOptions, Mbuf, Memory, PortControl};
use program::Program;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Most rules unlinked, and most objects freed, in one slice.
const RECLAIMED: usize = 4096;

/// Longest wait at the daemon's end for ports' sockets to be closed. The kernel closes the rest,
/// one after the other.
const LETTING_GO: Duration = Duration::from_secs(5);

/// What all bridges share.
pub struct Switch {
    /// The process around it.
    pub shell: Rc<Shell>,
    /// Epochs and counters.
    pub program: Arc<Program>,
    /// The datapath's clock.
    pub clock: Arc<Clock>,
    /// The part of the configuration that has been applied.
    pub applied: RefCell<Applied>,
    /// The bridges by name.
    pub bridges: RefCell<BTreeMap<String, Rc<Bridge>>>,
    running: RefCell<Option<Running>>,
    /// Forecasts of how long packets wait in queues.
    pub waits: waits::Book,
    /// Packets that are paused for controllers.
    continuations: RefCell<continuation::Continuations>,
    /// Whether packets and controllers wait until rules are restored (`flow-restore-wait`).
    pub restoring: Cell<bool>,
    /// Seconds after which an idle bundle is discarded.
    pub bundle_idle_s: Cell<u32>,
    /// Number of ports created so far.
    ports_come: Cell<u64>,
    /// Held by a task that changes rules under the reserved epoch.
    reservation: Arc<tokio::sync::Mutex<()>>,
    /// Notified when rules have changed, so that tables get new classifiers.
    pub rules_changed: tokio::sync::Notify,
    /// The network that tunnels run over.
    pub underlay: underlay::Underlay,
    /// State of steering: virtual machines and controllers' choices.
    pub steering: steering::State,
    /// Kernel interfaces that the daemon steers itself.
    pub steered: steered::Steered,
    /// Monitors of ports' connectivity, and what is notified when the first one begins.
    pub monitors: monitors::Monitors,
    pub(super) monitors_begun: tokio::sync::Notify,
    /// Ports that are not as the database wants them, as last reported.
    pub port_errors: RefCell<Vec<report::PortError>>,
}

/// What exists once DPDK's environment has started. Fields are dropped in order: workers end before
/// the environment does.
struct Running {
    datapath: Datapath<Mbuf>,
    eal: Eal,
}

/// Error of everything that needs the datapath before the first configuration has been read.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
#[error("the datapath is not running yet")]
pub struct NotRunning;

impl Switch {
    /// Creates a switch without bridges; nothing runs yet.
    pub fn new(shell: Rc<Shell>) -> Rc<Switch> {
        Rc::new(Switch {
            shell,
            program: Arc::new(Program::new()),
            clock: Arc::new(Clock::default()),
            applied: RefCell::default(),
            bridges: RefCell::default(),
            running: RefCell::new(None),
            waits: waits::Book::default(),
            continuations: RefCell::default(),
            restoring: Cell::new(false),
            bundle_idle_s: Cell::new(Global::default().bundle_idle_s),
            ports_come: Cell::new(0),
            reservation: Arc::default(),
            rules_changed: tokio::sync::Notify::new(),
            underlay: Default::default(),
            steering: Default::default(),
            steered: Default::default(),
            monitors: Default::default(),
            monitors_begun: Default::default(),
            port_errors: RefCell::default(),
        })
    }

    /// Starts DPDK's environment and the workers, once.
    fn start(&self, global: &Global) -> anyhow::Result<()> {
        if self.running.borrow().is_some() {
            return Ok(());
        }
        let dpdk = &global.dpdk;
        let options = EalOptions {
            memory: Memory::Auto,
            lcore_mask: dpdk.lcore_mask.clone(),
            socket_mem: dpdk.socket_mem.clone(),
            socket_limit: dpdk.socket_limit.clone(),
            hugepage_dir: dpdk.hugepage_dir.clone(),
            alloc_mem: dpdk.alloc_mem,
            extra: dpdk.extra.clone().unwrap_or_default(),
            file_prefix: None,
            asked: dpdk.init != DpdkInit::No,
        };
        let eal = ports::eal::init(&options)?;
        let pool = eal.pool()?;
        let thread_init = |_: &str| {
            let registration = ports::eal::register_thread()?;
            Ok(Box::new(registration) as Box<dyn Any>)
        };
        let datapath = Datapath::new(Options {
            program: Arc::clone(&self.program),
            allocate: Box::new(move |bytes| pool.frame(bytes)),
            thread_init: Some(Arc::new(thread_init)),
            clock: Arc::clone(&self.clock),
        })?;
        // The rest is for what ports receive.
        datapath.bound_waiting(u64::from(pool.count()) / 4 * 3);
        datapath.bound_fragments(u64::from(pool.count()) / 8);
        *self.running.borrow_mut() = Some(Running { datapath, eal });
        Ok(())
    }

    /// Runs `act` with the datapath borrowed.
    pub fn with_datapath<R>(
        &self,
        act: impl FnOnce(&mut Datapath<Mbuf>) -> R,
    ) -> Result<R, NotRunning> {
        match &mut *self.running.borrow_mut() {
            Some(running) => Ok(act(&mut running.datapath)),
            None => Err(NotRunning),
        }
    }

    /// Returns DPDK's environment, once it has started.
    pub fn eal(&self) -> Option<Eal> {
        self.running
            .borrow()
            .as_ref()
            .map(|running| running.eal.clone())
    }

    /// Returns a bridge by name.
    pub fn bridge(&self, name: &str) -> Option<Rc<Bridge>> {
        self.bridges.borrow().get(name).cloned()
    }

    /// Returns the bridge with the datapath's `id`.
    pub fn bridge_by_id(&self, id: datapath::BridgeId) -> Option<Rc<Bridge>> {
        self.bridges
            .borrow()
            .values()
            .find(|bridge| bridge.id == id)
            .cloned()
    }

    /// Returns the time for rules' timeouts.
    pub fn now(&self) -> pipeline::Clock {
        pipeline::Clock::from_ms(self.clock.now_ms())
    }

    /// Does the work of about once a second: ages addresses, frees what was replaced. Rules time
    /// out by [`Switch::expire`].
    pub fn housekeep(&self) {
        let bridges: Vec<Rc<Bridge>> = self.bridges.borrow().values().cloned().collect();
        let mut changed = false;
        for bridge in bridges {
            changed |= bridge.housekeep(RECLAIMED);
        }
        self.program.domain.collect_some(RECLAIMED);
        self.refresh_devices();
        self.age_neighbours();
        if changed || self.has_garbage() {
            // Unlinked objects can be freed only after another epoch.
            self.program.domain.publish();
            self.rules_changed.notify_one();
        }
        let _ = self.with_datapath(Datapath::run);
    }

    /// Unlinks and frees one slice of deleted rules that no worker can still use; returns whether
    /// more can be freed at once.
    pub fn reclaim(&self) -> bool {
        let mut unlinked = 0;
        let mut waiting = 0;
        for bridge in self.bridges.borrow().values() {
            let mut pipeline = bridge.pipeline.borrow_mut();
            unlinked += pipeline.housekeep(RECLAIMED);
            waiting += pipeline.waiting();
        }
        if unlinked > 0 {
            self.program.domain.publish();
        }
        let before = self.program.domain.garbage();
        let left = self.program.domain.collect_some(RECLAIMED);
        unlinked > 0 && waiting > 0 || left > 0 && left < before
    }

    /// Returns whether deleted rules are still to be unlinked or freed.
    pub fn has_garbage(&self) -> bool {
        let bridges = self.bridges.borrow();
        let waits = |bridge: &Rc<Bridge>| bridge.pipeline.borrow().waiting() > 0;
        self.program.domain.garbage() > 0 || bridges.values().any(waits)
    }

    /// Installs classifiers that fit tables' rules, as the background thread builds them; returns
    /// whether more will follow.
    pub fn shape_tables(&self) -> bool {
        let bridges = self.bridges.borrow();
        bridges.values().fold(false, |busy, bridge| {
            bridge.pipeline.borrow_mut().shape_tables() | busy
        })
    }

    /// Passes a packet-in to the controllers that want it.
    pub fn deliver(&self, packet: datapath::packet_in::PacketIn) {
        use crate::openflow::Origin;
        use openflow::message::{NO_BUFFER, PacketIn, PacketInFormat, PacketInReason};
        use program::actions::PacketInReason as Reason;
        let Some(bridge) = self.bridge_by_id(packet.bridge) else {
            return;
        };
        let Some(openflow) = bridge.openflow.get() else {
            return;
        };
        let mut matching = pipeline_fields(&packet);
        let options = packet::key::at::TUN_METADATA_PRESENT / 8;
        if packet.valid.contains(options) {
            let pipeline = bridge.pipeline.borrow();
            pipeline.name_options(&packet.key, &mut matching);
        }
        let continuation = match packet.rest {
            Some(rest) => {
                let now = self.clock.now_ms();
                let mut kept = self.continuations.borrow_mut();
                kept.keep(packet.bridge, *rest, now)
            }
            None => Vec::new(),
        };
        let origin = match packet.reason {
            Reason::TableMiss => Origin::TableMiss,
            Reason::NoRule => Origin::NoRule,
            _ => Origin::Rule,
        };
        let message = PacketIn {
            format: PacketInFormat::default(),
            buffer_id: NO_BUFFER,
            total_len: packet.total_len as u32,
            reason: match packet.reason {
                Reason::NoMatch => PacketInReason::NoMatch,
                Reason::Action => PacketInReason::Action,
                Reason::InvalidTtl => PacketInReason::InvalidTtl,
                Reason::ActionSet => PacketInReason::ActionSet,
                Reason::Group => PacketInReason::Group,
                Reason::PacketOut => PacketInReason::PacketOut,
                Reason::TableMiss | Reason::NoRule => PacketInReason::NoMatch,
            },
            table: packet.table,
            // A packet that matched no rule has cookie 0, as in Open vSwitch.
            cookie: if origin == Origin::NoRule {
                0
            } else {
                packet.cookie
            },
            matching,
            data: packet.data,
            userdata: packet.userdata,
            continuation,
        };
        openflow.packet_in(&message, origin, packet.controller_id);
    }

    /// Stops everything: ports first, then workers, then DPDK. Devices that can outlive the daemon
    /// are kept, unless `cleanup` is set.
    pub fn shut_down(&self, cleanup: bool) {
        self.steered.release_all();
        self.end_monitors();
        let bridges = std::mem::take(&mut *self.bridges.borrow_mut());
        let devices: Vec<device::Device> =
            (bridges.values().flat_map(|bridge| bridge.close())).collect();
        drop(bridges);
        aside::post(move || {
            for device in devices {
                match cleanup {
                    true => Box::new(device).close(),
                    false => Box::new(device).leave(),
                }
            }
        });
        let finished = aside::finish(LETTING_GO);
        self.steered.finish(LETTING_GO);
        if !finished {
            tracing::warn!(target: "bridge", "a device takes long to be opened or closed");
        }
        if let Some(running) = self.running.borrow_mut().take() {
            drop(running.datapath);
            if !ports::finish(LETTING_GO) {
                tracing::warn!(target: "bridge", "the kernel takes long to close the ports' sockets");
            }
            if finished {
                running.eal.cleanup();
            }
        }
    }
}

/// Returns the command line's TLS files, for the connection to the database.
fn tls_of(shell: &Shell) -> Option<ovsdb::stream::TlsFiles> {
    let files = shell.tls.files();
    Some(ovsdb::stream::TlsFiles {
        private_key: files.private_key?,
        certificate: files.certificate?,
        ca_cert: files.ca_cert?,
        bootstrap: files.bootstrap,
    })
}

/// Returns the packet's ingress port, and its non-zero pipeline fields: metadata, registers,
/// tunnel.
fn pipeline_fields(packet: &datapath::packet_in::PacketIn) -> packet::Match {
    use packet::Field;
    let mut matching = packet::Match::any();
    matching.set_exact(Field::InPortOxm, u128::from(packet.in_port));
    for def in packet::fields::FIELDS {
        let is_apart = matches!(
            def.field,
            Field::InPort
                | Field::InPortOxm
                | Field::InPhyPort
                | Field::ActsetOutput
                | Field::PacketType
                | Field::Fcf
        );
        let overlay = def.name.starts_with("xreg") || def.name.starts_with("xxreg");
        let filled = def.words().minus(packet.valid).is_empty();
        let option = def.field.tunnel_option().is_some();
        if is_apart || overlay || option || !filled || !packet::edit::is_metadata(def.field) {
            continue;
        }
        let bytes = &packet.key.bytes()[def.offset..def.offset + def.bytes];
        if bytes.iter().any(|byte| *byte != 0) {
            matching.set(def.field, bytes, &def.place());
        }
    }
    matching
}
