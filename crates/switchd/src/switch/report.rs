//! The switch's state, for the database.

use super::Switch;
use super::bridge::Bridge;
use super::execute::Failures;
use crate::config::desired::Refused;
use crate::config::port::Port;
use crate::config::tunnel;
use crate::config::writeback::{Batch, Capabilities, ControllerState, InterfaceState, Role};
use crate::config::{Desired, Mac, ofport};
use crate::features;
use crate::options::DummyLevel;
use ovsdb::vswitch::Strings;
use ports::PortControl;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::rc::Rc;

/// What Open vSwitch writes for a datapath that is part of the daemon.
const DATAPATH_VERSION: &str = "<built-in>";

/// Most new ports whose counters are written at once, as Open vSwitch does; those of others follow
/// with all statistics. Each may take a question to the kernel.
const FIRST_COUNTERS: usize = 16;

/// A port that is not as the database wants it, as reported in its row's `error` column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortError {
    /// The bridge that wants it.
    pub bridge: String,
    /// The interface's name.
    pub name: String,
    /// The interface's type.
    pub kind: String,
    /// Whether it has a port number and may carry packets despite the error.
    pub is_open: bool,
    /// What is wrong, as the column has it.
    pub error: String,
}

impl From<&Refused> for PortError {
    fn from(refused: &Refused) -> PortError {
        PortError {
            bridge: refused.bridge.clone(),
            name: refused.name.clone(),
            kind: refused.kind.clone(),
            is_open: false,
            error: refused.error.to_string(),
        }
    }
}

impl Switch {
    /// Returns the interface types that can be opened.
    pub fn interface_types(&self) -> BTreeSet<String> {
        let mut types = vec![
            "system",
            "internal",
            "tap",
            "patch",
            "dpdk",
            "dpdkvhostuser",
            "dpdkvhostuserclient",
            "afxdp",
        ];
        if self.shell.options.dummy.is_some() {
            types.extend(["dummy", "dummy-internal", "dummy-pmd"]);
        }
        types.extend(tunnel::types());
        types.into_iter().map(str::to_owned).collect()
    }

    /// Returns the datapath types that bridges can have.
    pub fn datapath_types(&self) -> BTreeSet<String> {
        let mut types = vec!["netdev"];
        if !self.shell.options.disable_system {
            types.push("system");
        }
        if self.shell.options.dummy.is_some() {
            types.push("dummy");
        }
        types.into_iter().map(str::to_owned).collect()
    }

    /// Returns whether kernel devices are replaced by dummies (`--enable-dummy=system` or
    /// `override`).
    pub fn all_dummy(&self) -> bool {
        matches!(
            self.shell.options.dummy,
            Some(DummyLevel::Override | DummyLevel::System)
        )
    }

    /// Returns whether datapaths of a type are dummies: `dummy`, and those that options replace.
    pub fn is_dummy_datapath(&self, kind: &str) -> bool {
        match self.shell.options.dummy {
            Some(DummyLevel::Override) => true,
            Some(DummyLevel::System) if kind == "system" => true,
            _ => kind == "dummy",
        }
    }

    /// Reports the outcome of a configuration; the same batch carries `cur_cfg`.
    pub fn report(&self, desired: &Desired, failures: &Failures, batch: &mut Batch<'_>) {
        for (name, wanted) in &desired.bridges {
            match self.bridge(name) {
                Some(bridge) => {
                    let uuid = wanted.settings.uuid;
                    batch.bridge(uuid, bridge.datapath_id.get(), DATAPATH_VERSION);
                    let known = bridge.prediction.borrow();
                    let figure = known.as_ref().and_then(|known| known.figure);
                    batch.bridge_status(uuid, figure, desired.wrong.bridge(name));
                }
                None => batch.failed_bridge(wanted.settings.uuid),
            }
        }
        for (uuid, refused) in &desired.refused {
            batch.interface(*uuid, &InterfaceState::failed(refused.error.to_string()));
        }
        let mut errors: Vec<PortError> = desired.refused.values().map(PortError::from).collect();
        self.report_interfaces(desired, failures, batch, &mut errors);
        self.port_errors.replace(errors);
        self.report_controllers(desired, batch);
        if let Some(root) = desired.root {
            let initialized = desired.global.dpdk.init != crate::config::global::DpdkInit::No
                && self.eal().is_some();
            let capabilities = Capabilities {
                interface_types: self.interface_types(),
                datapath_types: self.datapath_types(),
                dpdk_initialized: initialized,
                dpdk_version: Some(ports::eal::version()),
            };
            batch.capabilities(root, &capabilities);
            let served = &capabilities.datapath_types;
            for (kind, row) in &desired.datapaths {
                if served.contains(kind) {
                    batch.datapath(*row, &features::capabilities());
                }
            }
        }
    }

    /// Reports interfaces: numbers, errors, and their devices' state.
    fn report_interfaces(
        &self,
        desired: &Desired,
        failures: &Failures,
        batch: &mut Batch<'_>,
        errors: &mut Vec<PortError>,
    ) {
        // Look interfaces up by name, in one map per bridge, because there may be a thousand.
        let bridges: BTreeMap<String, (Rc<Bridge>, HashMap<String, u16>)> = self
            .bridges
            .borrow()
            .iter()
            .map(|(name, bridge)| (name.clone(), (Rc::clone(bridge), bridge.numbers_by_name())))
            .collect();
        let mut first_counters = 0;
        for (name, port) in desired.ports() {
            let Some(uuid) = port.interface else { continue };
            let mut state = bridges
                .get(name)
                .and_then(|(bridge, numbers)| {
                    bridge.interface_state(*numbers.get(&port.interface_name)?)
                })
                .unwrap_or_else(|| {
                    InterfaceState::failed(failures.get(&uuid).cloned().unwrap_or_default())
                });
            if let Some(tunnel) = &port.tunnel
                && let Some(remote) = tunnel.remote
                && state.ofport.is_some()
            {
                state.status.extend(self.way_to(remote, tunnel.mark));
            }
            let patch = || self.patch_problem(name, port);
            state.error = state.error.or_else(patch).or_else(|| port.error());
            if let Some((key, text)) = desired.wrong.interface(&port.interface_name) {
                state.status.insert(key.to_owned(), text);
            }
            if let Some(error) = &state.error {
                errors.push(PortError {
                    bridge: name.to_owned(),
                    name: port.interface_name.clone(),
                    kind: port.kind.clone(),
                    is_open: state.ofport.is_some(),
                    error: error.clone(),
                });
            }
            batch.interface(uuid, &state);
            let place = bridges
                .get(name)
                .and_then(|(bridge, numbers)| Some((bridge, *numbers.get(&port.interface_name)?)));
            if first_counters < FIRST_COUNTERS
                && let Some((bridge, number)) = place
                && let Some(counters) = bridge.first_counters(number)
            {
                first_counters += 1;
                let counters = counters.iter().map(|(name, value)| (name.as_str(), *value));
                batch.interface_statistics(uuid, counters);
            }
            let Some(row) = port.uuid else { continue };
            let status = bridges.get(name).and_then(|(bridge, numbers)| {
                let ports = bridge.ports.borrow();
                let port = ports.get(numbers.get(&port.interface_name)?)?;
                Some(port_status(desired, port))
            });
            batch.port_status(row, &status.unwrap_or_default());
        }
    }

    /// Returns the device by which a tunnel's packets leave, as Open vSwitch's status keys. If it
    /// does not belong to a bridge, tunnels cannot use it, and its carrier is unknown.
    fn way_to(&self, remote: IpAddr, mark: u32) -> Strings {
        let find = |routes: &underlay::Routes| {
            let route = routes.lookup(remote, mark);
            route.map(|route| route.device.clone())
        };
        let Some(device) = self.underlay.with_routes(find) else {
            return Strings::new();
        };
        let carrier = self.bridge(&device).and_then(|bridge| {
            let ports = bridge.ports.borrow();
            let local = ports.get(&ofport::LOCAL)?;
            Some(if local.info.link_up { "up" } else { "down" })
        });
        let carrier = carrier.map(|carrier| ("tunnel_egress_iface_carrier", carrier.to_owned()));
        [("tunnel_egress_iface", device)]
            .into_iter()
            .chain(carrier)
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    /// Returns why a patch port carries nothing, in Open vSwitch's words: its peer does not exist,
    /// or has another peer.
    fn patch_problem(&self, bridge: &str, port: &Port) -> Option<String> {
        let peer = port
            .options
            .get("peer")
            .filter(|_| port.device == "patch")?;
        let is_peer = |other: &Port| {
            other.device == "patch"
                && other.interface_name == *peer
                && other.options.get("peer") == Some(&port.interface_name)
        };
        let found = self.bridges.borrow().values().any(|bridge| {
            bridge
                .ports
                .borrow()
                .values()
                .any(|other| is_peer(&other.config))
        });
        let datapath = self
            .bridge(bridge)
            .map(|bridge| bridge.settings.borrow().datapath_type.clone())
            .unwrap_or_default();
        let datapath = if datapath.is_empty() {
            "system"
        } else {
            &datapath
        };
        (!found).then(|| format!("No usable peer '{peer}' exists in '{datapath}' datapath."))
    }

    /// Reports the state of controllers.
    pub fn report_controllers(&self, desired: &Desired, batch: &mut Batch<'_>) {
        for (name, wanted) in &desired.bridges {
            let Some(bridge) = self.bridge(name) else {
                continue;
            };
            let Some(openflow) = bridge.openflow.get() else {
                continue;
            };
            let states = openflow.controller_status();
            for controller in &wanted.controllers {
                let Some(status) = states
                    .iter()
                    .find(|status| status.target == controller.target)
                else {
                    continue;
                };
                let state = ControllerState {
                    connected: status.is_connected,
                    role: status.role.map(|role| match role {
                        "master" => Role::Master,
                        "slave" => Role::Slave,
                        _ => Role::Other,
                    }),
                    status: status
                        .status
                        .iter()
                        .map(|(key, value)| ((*key).to_owned(), value.clone()))
                        .collect(),
                };
                batch.controller(controller.uuid, &state);
            }
        }
    }

    /// Reports counters of interfaces and mirrors.
    pub fn report_statistics(&self, desired: &Desired, batch: &mut Batch<'_>) {
        for (name, wanted) in &desired.bridges {
            let Some(bridge) = self.bridge(name) else {
                continue;
            };
            for port in bridge.ports.borrow_mut().values_mut() {
                let Some(uuid) = port.config.interface else {
                    continue;
                };
                if let Some(row) = port.config.uuid {
                    port.latencies.look(self, port.id, &port.config.qos);
                    batch.port_status(row, &port_status(desired, port));
                }
                let counters: BTreeMap<String, u64> =
                    bridge.port_counters(port).into_iter().collect();
                batch.interface_statistics(
                    uuid,
                    counters.iter().map(|(name, value)| (name.as_str(), *value)),
                );
            }
            for mirror in &wanted.mirrors {
                let stats = self.with_datapath(|datapath| {
                    datapath.mirror_stats(bridge.id, &mirror.uuid.to_string())
                });
                if let Ok(Some(stats)) = stats {
                    batch.mirror_statistics(
                        mirror.uuid,
                        [
                            ("tx_packets", stats.tx_packets),
                            ("tx_bytes", stats.tx_bytes),
                        ],
                    );
                }
            }
        }
    }
}

/// Returns a port's status: waiting times at the last reading, and problems of its row.
fn port_status(desired: &Desired, port: &super::Port) -> Strings {
    let mut status = port.latencies.status();
    if let Some((key, text)) = desired.wrong.port(&port.config.name) {
        status.insert(key.to_owned(), text);
    }
    status
}

impl Bridge {
    /// Returns the ports' numbers by their interfaces' names.
    fn numbers_by_name(&self) -> HashMap<String, u16> {
        let ports = self.ports.borrow();
        let numbers = ports.values();
        numbers
            .map(|port| (port.config.interface_name.clone(), port.number))
            .collect()
    }

    /// Returns a port's counters if this has not been called for it before.
    fn first_counters(&self, number: u16) -> Option<BTreeMap<String, u64>> {
        let mut ports = self.ports.borrow_mut();
        let port = ports.get_mut(&number)?;
        let told = std::mem::replace(&mut port.counters_told, true);
        (!told).then(|| self.port_counters(port).into_iter().collect())
    }

    fn interface_state(&self, number: u16) -> Option<InterfaceState> {
        let mut ports = self.ports.borrow_mut();
        let port = ports.get_mut(&number)?;
        let monitor = port.monitor.as_ref();
        let bfd_status = monitor.map(|monitor| monitor.status()).unwrap_or_default();
        let Some(control) = &mut port.control else {
            return Some(InterfaceState {
                ofport: Some(port.number),
                mac_in_use: Some(Mac(port.info.mac)),
                ifindex: Some(0),
                admin_up: Some(port.info.admin_up),
                link_up: Some(true),
                link_resets: Some(0),
                bfd_status,
                ..InterfaceState::default()
            });
        };
        let info = &port.info;
        Some(InterfaceState {
            ofport: Some(port.number),
            error: port.closed.as_ref().map(|closed| closed.why.clone()),
            mac_in_use: Some(Mac(info.mac)),
            ifindex: Some(info.ifindex),
            mtu: (info.mtu > 0).then_some(info.mtu),
            admin_up: Some(info.admin_up),
            link_up: Some(info.link_up),
            link_resets: Some(info.link_resets),
            link_speed: (info.link_speed > 0).then_some(info.link_speed),
            full_duplex: info.full_duplex,
            status: control.status().into_iter().collect(),
            bfd_status,
        })
    }
}
