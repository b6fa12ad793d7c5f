//! Carries out the actions that [`mod@crate::config::plan`] lists.
//!
//! Each action either succeeds and is recorded as applied, or fails with a text for
//! `Interface.error` or the log and changes nothing.

use super::bridge::{Bridge, Port, settings_of};
use super::device::{self, Device, close_all};
use super::{NotRunning, Switch, aside, processors};
use crate::config::controller::Controller;
use crate::config::desired::Settings;
use crate::config::mirror::{Mirror, Output};
use crate::config::port::Port as Config;
use crate::config::{Action, Desired, Mac, ofport, plan};
use crate::openflow::{ControllerSettings, OpenFlow};
use datapath::mirror::{MirrorOutput, MirrorSpec};
use datapath::{BridgeSettings, PortKind, PortSettings, PortSpec};
use openflow::port::{PortConfig, PortReason, PortStatus};
use ovsdb::Uuid;
use pipeline::{Options, Pipeline};
use ports::{Mbuf, PortControl, PortInfo};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most rounds of planning. Plans are repeated because a port that was added may free what another
/// one waits for; more rounds never help.
const ROUNDS: usize = 4;

/// How long the control thread changes ports before other tasks run.
const SLICE: Duration = Duration::from_millis(5);

/// Error texts by interface.
pub type Failures = BTreeMap<Uuid, String>;

impl Switch {
    /// Brings the switch to the desired state, as far as possible; returns failures by interface.
    /// Works in slices of [`SLICE`], between which messages are answered and packets delivered.
    /// Must not run twice at the same time.
    pub async fn apply(self: &Rc<Self>, desired: &Desired) -> anyhow::Result<Failures> {
        let mut slice = Instant::now();
        self.restoring.set(desired.global.flow_restore_wait);
        let mut failures = Failures::new();
        let mut failed: BTreeSet<String> = BTreeSet::new();
        for _ in 0..ROUNDS {
            let actions = plan(desired, &self.applied.borrow());
            let mut progress = false;
            for action in actions {
                // What has failed would fail again; other actions may still succeed.
                let name = format!("{action:?}");
                if failed.contains(&name) {
                    continue;
                }
                if self.execute(&action, &mut failures).await? {
                    progress = true;
                } else {
                    failed.insert(name);
                }
                if slice.elapsed() >= SLICE {
                    tokio::task::yield_now().await;
                    slice = Instant::now();
                }
            }
            if !progress {
                break;
            }
        }
        for (name, bridge) in self.bridges.borrow().iter() {
            let wanted = desired.bridges.get(name);
            bridge.vanished.borrow_mut().retain(|interface, _| {
                wanted.is_some_and(|wanted| wanted.ports.contains_key(interface))
            });
        }
        self.settle().await;
        Ok(failures)
    }

    /// Updates what depends on the set of ports.
    async fn settle(&self) {
        let bridges: Vec<Rc<Bridge>> = self.bridges.borrow().values().cloned().collect();
        for bridge in bridges {
            if let Err(text) = self.refresh_mirrors(&bridge) {
                tracing::warn!(target: "bridge", "{text}");
            }
            let changed = bridge.choose_identity();
            bridge.set_local_mac().await;
            if changed {
                bridge.tell_port(ofport::LOCAL, PortReason::Modify);
            }
            if let Some(set) = bridge.choose_mtu() {
                set.await;
            }
            self.announce_identity(&bridge);
            bridge.apply_controllers().await;
        }
        self.refresh_devices();
        self.tell_vms();
    }

    /// Logs a bridge's datapath id. If it has changed, reconnects controllers: otherwise they would
    /// not notice.
    fn announce_identity(&self, bridge: &Bridge) {
        let now = bridge.datapath_id.get();
        let before = bridge.announced_id.replace(Some(now));
        if before == Some(now) {
            return;
        }
        tracing::info!(target: "bridge", "bridge {}: using datapath ID {now:016x}", bridge.name);
        if let (Some(_), Some(openflow)) = (before, bridge.openflow.get()) {
            openflow.reconnect();
        }
    }

    /// Sets mirrors for the ports that exist now: a port that was added again is another one to the
    /// datapath, which ignores unchanged settings.
    fn refresh_mirrors(&self, bridge: &Bridge) -> Result<(), String> {
        let mirrors = bridge.mirrors.borrow();
        let specs: Vec<MirrorSpec> = mirrors
            .iter()
            .filter_map(|mirror| bridge.mirror_spec(mirror))
            .collect();
        self.with_datapath(|datapath| datapath.set_mirrors(bridge.id, specs))
            .map_err(|NotRunning| NotRunning.to_string())?
            .map_err(|error| format!("bridge {}: {error}", bridge.name))
    }

    /// Carries out one action; returns whether it was done. Devices are opened, closed and changed
    /// aside, so others read the switch's state at any `await`.
    async fn execute(
        self: &Rc<Self>,
        action: &Action,
        failures: &mut Failures,
    ) -> anyhow::Result<bool> {
        let mut number = None;
        let result = match action {
            Action::SetGlobal(global) => {
                self.start(global)?;
                let limit = global.rules_max(crate::memory::of_machine());
                self.program.rules.set_limit(limit);
                self.bundle_idle_s.set(global.bundle_idle_s);
                packet::parse::set_vlan_limit(global.vlan_limit);
                let workers = match &global.worker_cpus {
                    Some(cpus) => cpus.iter().map(|cpu| Some(*cpu)).collect(),
                    None => vec![None],
                };
                self.set_restoring();
                // A worker that is not pinned starts with this thread's affinity.
                processors::leave_to_workers(&[]);
                let done = self.with_datapath(|datapath| {
                    datapath.set_steering(self.steering.mode(global.steering));
                    datapath.set_auto_balance(global.auto_balance);
                    let assigned = datapath.set_assignment(global.assignment, global.isolate);
                    datapath.set_workers(&workers).and(assigned)
                })?;
                processors::leave_to_workers(global.worker_cpus.as_deref().unwrap_or(&[]));
                done.map_err(|error| error.to_string())
            }
            Action::SetSsl(ssl) => {
                self.set_ssl(ssl.as_ref());
                Ok(())
            }
            Action::SetSteered(steered) => {
                let rundir = &self.shell.options.directories.run;
                self.steered.set(steered, rundir)
            }
            Action::SetTimeouts(timeouts) => self.set_timeouts(timeouts),
            Action::RemovePort { bridge, interface } => {
                close_all(self.remove_port(bridge, interface)).await;
                Ok(())
            }
            Action::RemoveBridge(name) => {
                close_all(self.remove_bridge(name)).await;
                Ok(())
            }
            Action::AddBridge { name, settings } => self.add_bridge(name, settings),
            Action::ModifyBridge { name, settings } => self.modify_bridge(name, settings),
            Action::AddPort {
                bridge,
                port,
                number: wanted,
            } => {
                let added = self.add_port(bridge, port, *wanted).await;
                if let Some(uuid) = port.interface {
                    match &added {
                        Ok(_) => failures.remove(&uuid),
                        Err(text) => failures.insert(uuid, text.clone()),
                    };
                }
                added.map(|got| number = Some(got))
            }
            Action::ModifyPort { bridge, port } => self.modify_port(bridge, port).await,
            Action::SetMirrors { bridge, mirrors } => self.set_mirrors(bridge, mirrors),
            Action::SetControllers {
                bridge,
                controllers,
            } => {
                if let Some(bridge) = self.bridge(bridge) {
                    bridge.set_controllers(controllers);
                }
                Ok(())
            }
        };
        match result {
            Ok(()) => {
                self.applied.borrow_mut().record(action, number);
                Ok(true)
            }
            Err(text) => {
                tracing::warn!(target: "bridge", "{text}");
                Ok(false)
            }
        }
    }

    /// Tells every port whether packets must wait until rules are restored.
    fn set_restoring(&self) {
        for bridge in self.bridges.borrow().values() {
            for port in bridge.ports.borrow().values() {
                let settings = port.settings(self.restoring.get());
                let _ = self.with_datapath(|datapath| datapath.modify_port(port.id, settings));
            }
        }
    }

    fn add_bridge(self: &Rc<Self>, name: &str, settings: &Settings) -> Result<(), String> {
        let tables = program::table::Bridge::new(Arc::clone(&self.program));
        tables.match_fragment_ports(false);
        let id = self
            .with_datapath(|datapath| datapath.add_bridge(name, Arc::clone(&tables)))
            .map_err(|NotRunning| NotRunning.to_string())?
            .map_err(|error| error.to_string())?;
        let pipeline = Pipeline::new(Arc::clone(&self.program), tables, Options::default());
        let bridge = Rc::new_cyclic(|me| Bridge {
            me: me.clone(),
            changing: Default::default(),
            name: name.to_owned(),
            id,
            switch: Rc::clone(self),
            pipeline: RefCell::new(pipeline),
            settings: RefCell::new(settings.clone()),
            ports: RefCell::default(),
            numbers: RefCell::default(),
            mirrors: RefCell::default(),
            announced_id: Cell::new(None),
            vanished: RefCell::default(),
            mac: Cell::new(settings.default_mac),
            datapath_id: Cell::new(0),
            openflow: Default::default(),
            table_configs: RefCell::default(),
            table_names: RefCell::default(),
            fragments: Cell::default(),
            fail: Default::default(),
            in_band: Default::default(),
            prediction: RefCell::default(),
        });
        self.bridges
            .borrow_mut()
            .insert(name.to_owned(), Rc::clone(&bridge));
        if let Err(text) = self.set_bridge(&bridge, settings) {
            // It has no ports yet.
            drop(self.remove_bridge(name));
            return Err(text);
        }
        let openflow = OpenFlow::new(
            name,
            Rc::clone(&bridge) as Rc<dyn crate::openflow::Switch>,
            Rc::clone(&self.shell.tls),
            settings.protocols,
        );
        for error in openflow.open_sockets(&self.shell.options.directories.run) {
            tracing::error!(target: "connmgr", "{error}");
        }
        bridge.openflow.set(openflow);
        bridge.set_controllers(&[]);
        Ok(())
    }

    fn modify_bridge(&self, name: &str, settings: &Settings) -> Result<(), String> {
        let Some(bridge) = self.bridge(name) else {
            return Ok(());
        };
        bridge.settings.replace(settings.clone());
        self.set_bridge(&bridge, settings)
    }

    fn set_ssl(&self, ssl: Option<&ovsdb::vswitch::Ssl>) {
        let mut files = self.shell.options.tls.clone();
        if let Some(ssl) = ssl {
            // As in Open vSwitch, the database's row supplies what the command line leaves out.
            files.private_key = files
                .private_key
                .or_else(|| Some(ssl.private_key.clone().into()));
            files.certificate = files
                .certificate
                .or_else(|| Some(ssl.certificate.clone().into()));
            files.ca_cert = files.ca_cert.or_else(|| Some(ssl.ca_cert.clone().into()));
            files.bootstrap |= ssl.bootstrap_ca_cert;
            // Connections may be long in coming, and those that come in tell nobody but the log.
            let named = [
                ("private key", &files.private_key),
                ("certificate", &files.certificate),
                ("CA certificate", &files.ca_cert),
            ];
            for (what, file) in named {
                let Some(file) = file else { continue };
                match std::fs::metadata(file) {
                    // It comes with the first connection.
                    Err(_) if what == "CA certificate" && files.bootstrap => {}
                    Err(error) => {
                        let file = file.display();
                        tracing::error!(target: "stream_ssl", "ssl: {what} {file}: {error}");
                    }
                    Ok(_) => {}
                }
            }
        }
        self.shell.tls.set_files(files);
    }

    fn set_bridge(&self, bridge: &Bridge, settings: &Settings) -> Result<(), String> {
        if let Some(openflow) = bridge.openflow.get() {
            openflow.set_versions(settings.protocols);
        }
        bridge.fail.changed.set(true);
        bridge.apply_table_settings();
        let datapath_settings = BridgeSettings {
            forward_bpdu: settings.forward_bpdu,
            flood_vlans: settings.flood_vlans.iter().collect(),
            mac_aging: u32::from(settings.mac_ageing),
            mac_table_size: settings.mac_table_size as usize,
            fcf: settings.fcf.map(super::steering::layout_of),
        };
        self.with_datapath(|datapath| datapath.set_bridge(bridge.id, datapath_settings))
            .map_err(|NotRunning| NotRunning.to_string())?
            .map_err(|error| format!("bridge {}: {error}", bridge.name))?;
        // Rules must not set a field that the datapath does not write.
        bridge.pipeline.borrow_mut().set_fcf_layout(settings.fcf);
        Ok(())
    }

    /// Removes a bridge with its ports; returns their devices, which are to be closed.
    fn remove_bridge(&self, name: &str) -> Vec<Device> {
        let Some(bridge) = self.bridges.borrow_mut().remove(name) else {
            return Vec::new();
        };
        let devices = bridge.close();
        bridge.bury();
        devices
    }

    /// Opens a device, or makes a port that needs none, and adds it to its bridge; returns its
    /// number.
    async fn add_port(
        &self,
        bridge: &str,
        config: &Config,
        wanted: Option<u16>,
    ) -> Result<u16, String> {
        let bridge = self.bridge(bridge).ok_or("its bridge could not be made")?;
        let (kind, mut control) = match (config.device.as_str(), &config.tunnel) {
            (_, Some(tunnel)) => (PortKind::Tunnel(tunnel.clone()), None),
            ("patch", _) => (
                PortKind::Patch {
                    peer: patch_peer(config)?,
                },
                None,
            ),
            _ => {
                let (kind, control) = self.open_device(config).await?;
                if config.device.starts_with("dpdk") {
                    // Opening it may have started threads of DPDK.
                    processors::leave_to_workers_again();
                }
                (kind, Some(control))
            }
        };
        let now = self.clock.now_ms();
        let before = bridge.vanished.borrow_mut().remove(&config.interface_name);
        let number = match config.ofport_request.or(before).or(wanted) {
            _ if config.local => Some(ofport::LOCAL),
            wanted => bridge.numbers.borrow_mut().allocate(wanted, now),
        };
        let Some(number) = number else {
            close_all(control).await;
            return Err("no free OpenFlow port number".into());
        };
        let info = control
            .as_mut()
            .map_or_else(|| deviceless_info(config), |control| control.info());
        let restoring = self.restoring.get();
        let spec = PortSpec {
            name: config.interface_name.clone(),
            bridge: bridge.id,
            number: openflow::port::from_u16(number),
            settings: PortSettings {
                no_carrier: !(info.link_up && info.admin_up),
                ..settings_of(config, PortConfig::default(), restoring)
            },
            kind,
        };
        let added = self
            .with_datapath(|datapath| datapath.add_port(spec))
            .map_err(|NotRunning| NotRunning.to_string());
        let id = match added.and_then(|added| added.map_err(|error| error.to_string())) {
            Ok(id) => id,
            Err(text) => {
                bridge.numbers.borrow_mut().release(number, now);
                close_all(control).await;
                return Err(text);
            }
        };
        if let Some(table) = control.as_ref().and_then(|control| control.indirection()) {
            // The port has just been added.
            let _ = self.with_datapath(|datapath| datapath.set_indirection(id, table));
        }
        let port = Port {
            config: config.clone(),
            number,
            id,
            control,
            closed: None,
            info,
            flags: PortConfig::default(),
            since_ms: now,
            order: self.ports_come.replace(self.ports_come.get() + 1),
            counters_told: false,
            mtu_given: None,
            mtu_coming: None,
            admin_coming: 0,
            latencies: Default::default(),
            monitor: None,
            vm: Default::default(),
        };
        let mut port = port;
        self.monitor_port(&bridge, &mut port);
        bridge.ports.borrow_mut().insert(number, port);
        tracing::info!(target: "bridge", "bridge {}: added interface {} on port {number}", bridge.name, config.interface_name);
        bridge.tell_port(number, PortReason::Add);
        Ok(number)
    }

    async fn open_device(&self, config: &Config) -> Result<(PortKind<Mbuf>, Device), String> {
        let eal = self.eal().ok_or_else(|| NotRunning.to_string())?;
        let name = &config.interface_name;
        let rundir = self.sockets_directory();
        let is_kernel = matches!(config.device.as_str(), "system" | "internal" | "tap");
        let kind = match config.device.as_str() {
            "dummy-internal" | "dummy-pmd" => "dummy",
            _ if is_kernel && self.all_dummy() => "dummy",
            kind => kind,
        };
        let mut spec = ports::PortSpec::from_row(name, kind, &config.options, &rundir)
            .map_err(|error| error.to_string())?;
        spec.mtu = config.mtu_request;
        spec.mac = config.mac.map(|mac: Mac| mac.0);
        spec.tx_queues = self.worker_count();
        spec.records = Some(self.device_records());
        let opened = aside::call(move || {
            let open = ports::open(&eal, &spec)?;
            Ok((Device::new(open.control), open.rx))
        });
        let opened: Result<_, ports::Error> = opened.await.ok_or("the daemon is ending")?;
        let (device, rx) = opened.map_err(|error| error.to_string())?;
        let mut for_workers = device.clone();
        let tx = Box::new(move |worker| {
            let queue = for_workers.tx_queue(worker);
            queue.map_err(datapath::BoxError::from)
        });
        Ok((PortKind::Device { rx, tx }, device))
    }

    /// Returns the directory that records which devices outlive the daemon.
    pub(super) fn device_records(&self) -> std::path::PathBuf {
        self.shell.options.directories.run.join("internal-ports")
    }

    fn worker_count(&self) -> u16 {
        self.with_datapath(|datapath| datapath.workers().len())
            .map_or(1, |count| u16::try_from(count.max(1)).unwrap_or(u16::MAX))
    }

    /// Returns the directory of vhost-user sockets: the run directory, or one below it.
    fn sockets_directory(&self) -> std::path::PathBuf {
        let run = self.shell.options.directories.run.clone();
        let applied = self.applied.borrow();
        match applied
            .global
            .as_ref()
            .and_then(|global| global.dpdk.vhost_sock_dir.as_deref())
        {
            Some(below) => run.join(below),
            None => run,
        }
    }

    /// Removes a port; returns its device, which is to be closed.
    fn remove_port(&self, bridge: &str, interface: &str) -> Option<Device> {
        let bridge = self.bridge(bridge)?;
        let number = bridge.number_of(interface)?;
        let description = bridge.describe_port(number);
        let port = bridge.ports.borrow_mut().remove(&number)?;
        if let Ok(Err(error)) = self.with_datapath(|datapath| datapath.remove_port(port.id)) {
            tracing::warn!(target: "bridge", "bridge {}: {error}", bridge.name);
        }
        bridge
            .numbers
            .borrow_mut()
            .release(number, self.clock.now_ms());
        tracing::info!(target: "bridge", "bridge {}: deleted interface {interface} on port {number}", bridge.name);
        if let (Some(openflow), Some(description)) = (bridge.openflow.get(), description) {
            openflow.port_status(&PortStatus {
                reason: PortReason::Delete,
                port: description,
            });
        }
        bridge.tell_vm_gone(port.vm.told);
        port.control
    }

    /// Removes a port whose device has gone, so that it is opened again, with the same number, when
    /// the device comes back; returns what is to be closed.
    fn forget_port(&self, bridge: &str, interface: &str) -> Option<Device> {
        if let Some(bridge) = self.bridge(bridge)
            && let Some(number) = bridge.number_of(interface)
        {
            bridge
                .vanished
                .borrow_mut()
                .insert(interface.to_owned(), number);
        }
        let device = self.remove_port(bridge, interface);
        let action = Action::RemovePort {
            bridge: bridge.to_owned(),
            interface: interface.to_owned(),
        };
        self.applied.borrow_mut().record(&action, None);
        device
    }

    /// Removes ports whose devices have gone; returns whether there were any. Must not run while a
    /// configuration is applied.
    pub async fn drop_vanished(&self) -> bool {
        let mut gone = Vec::new();
        for bridge in self.bridges.borrow().values() {
            for port in bridge.ports.borrow().values() {
                if port.control.is_some() && !port.info.present {
                    gone.push((bridge.name.clone(), port.config.interface_name.clone()));
                }
            }
        }
        let devices = (gone.iter())
            .filter_map(|(bridge, interface)| self.forget_port(bridge, interface))
            .collect::<Vec<_>>();
        close_all(devices).await;
        !gone.is_empty()
    }

    async fn modify_port(&self, bridge: &str, config: &Config) -> Result<(), String> {
        let Some(bridge) = self.bridge(bridge) else {
            return Ok(());
        };
        let interface = &config.interface_name;
        let Some(number) = bridge.number_of(interface) else {
            return Ok(());
        };
        let usable = || (bridge.ports.borrow().get(&number)).is_some_and(Port::is_usable);
        let before = usable();
        let change = self.modify_datapath_port(&bridge, number, config);
        if usable() != before {
            // Its monitor has come, or gone.
            bridge.tell_port(number, PortReason::Modify);
        }
        let Some(change) = change? else {
            return Ok(());
        };
        let done = change.make().await;
        let mut ports = bridge.ports.borrow_mut();
        if let Some((port, (closed, info))) = ports.get_mut(&number).zip(done) {
            port.closed = closed;
            if !port.info.present {
                // The kernel has reported meanwhile that it is gone.
                return Ok(());
            }
            // Link changes are reported to the datapath and to controllers by `poll_ports`.
            let link_up = port.info.link_up;
            port.info = PortInfo { link_up, ..info };
        }
        Ok(())
    }

    /// Changes a port as far as that needs no device; returns what is to be done to its device.
    fn modify_datapath_port(
        &self,
        bridge: &Bridge,
        number: u16,
        config: &Config,
    ) -> Result<Option<device::Change>, String> {
        let mut ports = bridge.ports.borrow_mut();
        let Some(port) = ports.get_mut(&number) else {
            return Ok(None);
        };
        let settings = PortSettings {
            no_carrier: !(port.info.link_up && port.info.admin_up),
            ..settings_of(config, port.flags, self.restoring.get())
        };
        let id = port.id;
        let text = |error: datapath::Error| format!("{}: {error}", config.interface_name);
        self.with_datapath(|datapath| datapath.modify_port(id, settings))
            .map_err(|NotRunning| NotRunning.to_string())?
            .map_err(text)?;
        if config.device == "patch" && config.options != port.config.options {
            let peer = patch_peer(config)?;
            self.with_datapath(|datapath| datapath.set_peer(id, &peer))
                .map_err(|NotRunning| NotRunning.to_string())?
                .map_err(text)?;
        }
        if let Some(tunnel) = &config.tunnel
            && config.tunnel != port.config.tunnel
        {
            self.with_datapath(|datapath| datapath.set_tunnel(id, tunnel.clone()))
                .map_err(|NotRunning| NotRunning.to_string())?
                .map_err(text)?;
        }
        let before = std::mem::replace(&mut port.config, config.clone());
        self.monitor_port(bridge, port);
        let Some(device) = port.control.clone() else {
            return Ok(None);
        };
        Ok(Some(device::Change {
            device,
            name: config.interface_name.clone(),
            mtu: (config.mtu_request).filter(|_| config.mtu_request != before.mtu_request),
            otherwise: None,
            mac: config.mac.filter(|_| config.mac != before.mac),
            closed: port.closed.clone(),
        }))
    }

    /// Has a port monitored as its configuration wants.
    fn monitor_port(&self, bridge: &Bridge, port: &mut Port) {
        let place = super::monitors::MonitoredPort {
            name: &port.config.interface_name,
            bridge: bridge.id,
            number: openflow::port::from_u16(port.number),
            id: port.id,
            mac: port.info.mac,
        };
        let done = self.monitor(&mut port.monitor, &place, port.config.bfd.as_ref());
        if let Err(error) = done {
            tracing::warn!(target: "bfd", "{}: {error}", port.config.interface_name);
        }
    }

    fn set_mirrors(&self, bridge: &str, mirrors: &[Mirror]) -> Result<(), String> {
        let Some(bridge) = self.bridge(bridge) else {
            return Ok(());
        };
        let before = bridge.mirrors.replace(mirrors.to_vec());
        if let Err(text) = self.refresh_mirrors(&bridge) {
            bridge.mirrors.replace(before);
            return Err(text);
        }
        Ok(())
    }
}

fn patch_peer(config: &Config) -> Result<String, String> {
    let name = &config.interface_name;
    match config.options.get("peer") {
        None => Err(format!("{name}: patch type requires valid 'peer' argument")),
        Some(peer) if peer == name => Err(format!("{name}: patch peer must not be self")),
        Some(peer) => Ok(peer.clone()),
    }
}

/// Returns the state of a patch port or a tunnel: up, with a link, and with an address made from
/// its row, since Open vSwitch shows one, too.
fn deviceless_info(config: &Config) -> PortInfo {
    let mac = config.interface.map_or(Mac::default(), Mac::from_uuid);
    PortInfo {
        present: true,
        mac: mac.0,
        admin_up: true,
        link_up: true,
        ..PortInfo::default()
    }
}

impl Bridge {
    /// Returns a mirror's settings for the datapath; None while its output port does not exist.
    fn mirror_spec(&self, mirror: &Mirror) -> Option<MirrorSpec> {
        let ports = self.ports.borrow();
        let find = |interface: &String| {
            ports
                .values()
                .find(|port| port.config.interface_name == *interface)
                .map(|port| port.id)
        };
        Some(MirrorSpec {
            name: mirror.uuid.to_string(),
            select_all: mirror.all,
            select_src: mirror.sources.iter().filter_map(find).collect(),
            select_dst: mirror.destinations.iter().filter_map(find).collect(),
            select_vlans: mirror
                .vlans
                .as_ref()
                .map_or_else(Vec::new, |vlans| vlans.iter().collect()),
            output: match &mirror.output {
                Output::Port(interface) => MirrorOutput::Port(find(interface)?),
                Output::Vlan(vlan) => MirrorOutput::Vlan(*vlan),
            },
            snaplen: (mirror.length > 0).then_some(u32::from(mirror.length)),
        })
    }

    fn set_controllers(&self, controllers: &[Controller]) {
        *self.fail.controllers.borrow_mut() = controllers.to_vec();
        self.fail.changed.set(true);
    }

    /// Connects to the configured controllers, unless rules are being restored.
    async fn apply_controllers(&self) {
        if self.switch().restoring.get() {
            // The default rule of a bridge without controllers must exist before other rules are
            // restored, because these may not include it.
            let controllers = self.fail.controllers.borrow();
            let alone = controllers.iter().all(|controller| controller.service);
            drop(controllers);
            if alone && !self.fail.is_configured() {
                self.configure_fail(0, 0);
            }
            return;
        }
        if !self.fail.changed.replace(false) {
            return;
        }
        let controllers = self.fail.controllers.borrow().clone();
        self.set_local_addresses(&controllers).await;
        self.configure_in_band(&controllers);
        if let Some(openflow) = self.openflow.get() {
            let settings: Vec<ControllerSettings> =
                controllers.iter().map(ControllerSettings::from).collect();
            for error in openflow.set_controllers(&settings) {
                tracing::error!(target: "connmgr", "{}: {error}", self.name);
            }
        }
        let primaries = controllers.iter().filter(|controller| !controller.service);
        let probe_ms = primaries
            .clone()
            .map(|controller| u64::from(controller.inactivity_probe))
            .max()
            .unwrap_or(0);
        self.configure_fail(primaries.count(), probe_ms);
    }
}
