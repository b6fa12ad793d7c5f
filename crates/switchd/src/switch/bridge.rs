//! A bridge: its ports, its rules and its identity.

use super::Switch;
use super::device::{Change, Device};
use super::latency::Latencies;
use crate::config::Mac;
use crate::config::address::{self, Candidate};
use crate::config::controller::Controller;
use crate::config::desired::Settings;
use crate::config::mirror::{Mirror, Output};
use crate::config::ofport::{self, Allocator};
use crate::config::port::Port as Config;
use crate::config::qos::Shape;
use crate::config::vlan::{self, Vlan};
use crate::openflow::{LocalFuture, OpenFlow};
use datapath::vlan::{PriorityTags, VlanConfig, VlanMode, VlanSet};
use datapath::{BridgeId, PortFlags, PortId, PortSettings};
use openflow::port as number;
use pipeline::Pipeline;
use ports::{PortControl, PortInfo};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A port of a bridge.
pub struct Port {
    /// Its configuration in the database.
    pub config: Config,
    /// Its OpenFlow number, 16 bits; the local port's is [`ofport::LOCAL`].
    pub number: u16,
    /// Its id in the datapath.
    pub id: PortId,
    /// Its device's control side; none for patch ports and tunnels.
    pub control: Option<Device>,
    /// Why its device has been stopped since the last change.
    pub closed: Option<Closed>,
    /// The device's state when it was last checked.
    pub info: PortInfo,
    /// OpenFlow's configuration bits.
    pub flags: openflow::port::PortConfig,
    /// When it was created, ms of the datapath's clock.
    pub since_ms: u64,
    /// How many ports of the switch were created before it.
    pub order: u64,
    /// Whether its counters have been written to the database right after it came.
    pub counters_told: bool,
    /// The MTU last set by its bridge, if any.
    pub mtu_given: Option<u16>,
    /// The MTU that is being set.
    pub mtu_coming: Option<u16>,
    /// How often its device is still to be set up or down, as OpenFlow has asked.
    pub admin_coming: u32,
    /// Waiting times in its queues at the last check.
    pub latencies: Latencies,
    /// The monitor of its connectivity.
    pub monitor: Option<super::monitors::Handle>,
    /// What is known about the virtual machine behind it.
    pub vm: super::steering::KnownVm,
}

impl Port {
    /// Returns its number in the 32-bit numbering.
    pub fn openflow_number(&self) -> number::PortNo {
        number::from_u16(self.number)
    }

    /// Returns whether the kernel reports changes of its device.
    pub fn is_announced(&self) -> bool {
        (self.control.as_ref()).is_some_and(|control| control.is_announced())
    }

    /// Returns whether its device is an interface of the kernel's.
    pub fn is_kernel_interface(&self) -> bool {
        matches!(
            self.config.device.as_str(),
            "system" | "internal" | "tap" | "afxdp"
        )
    }

    /// Returns whether its monitor, if it has one, finds that it may be used.
    pub fn is_usable(&self) -> bool {
        self.monitor
            .as_ref()
            .is_none_or(|monitor| monitor.is_live())
    }

    /// Returns how many receive queues its guest has; None for ports of no guest.
    pub fn guest_queues(&self) -> Option<u16> {
        (self.control.as_ref()).and_then(|control| control.guest_queues())
    }

    /// Returns its settings for the datapath.
    pub fn settings(&self, restoring: bool) -> PortSettings {
        let mut settings = settings_of(&self.config, self.flags, restoring);
        settings.no_carrier = !(self.info.link_up && self.info.admin_up);
        settings
    }
}

/// A device that was stopped for a change and did not start again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The text for `Interface.error`.
    pub why: String,
    /// When to try again, and how long after the previous attempt that is.
    again: Instant,
    wait: Duration,
}

/// Pause before the first attempt to start a device again; doubled after each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest pause between attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(64);

/// Sets the MTU and the address of a port's device, if they are given. `closed` is
/// [`Port::closed`]; other failures leave the device unchanged and are only logged.
pub fn change_device(
    control: &mut dyn PortControl,
    name: &str,
    mtu: Option<u16>,
    mac: Option<Mac>,
    closed: &mut Option<Closed>,
) {
    if let Some(mtu) = mtu {
        match control.set_mtu(mtu) {
            Ok(()) => *closed = None,
            Err(error) => {
                let why = error.to_string();
                let before = closed.as_ref();
                if before.is_none_or(|before| before.why != why) {
                    tracing::warn!(target: "bridge", "{name}: {why}");
                }
                if let ports::Error::Closed { .. } = error {
                    let wait =
                        before.map_or(FIRST_WAIT, |before| (before.wait * 2).min(LONGEST_WAIT));
                    let again = Instant::now() + wait;
                    *closed = Some(Closed { why, again, wait });
                }
            }
        }
    }
    if let Some(mac) = mac
        && let Err(error) = control.set_mac(mac.0)
    {
        tracing::warn!(target: "bridge", "{name}: {error}");
    }
}

/// Returns whether to set a device's MTU: if the wanted MTU differs from the one last set, or the
/// device's is larger than wanted.
fn gives_mtu(given: Option<u16>, wanted: u16, has: u16) -> bool {
    has != wanted && (given != Some(wanted) || has > wanted)
}

/// Returns a port's settings for the datapath. While rules are restored nothing is received.
pub fn settings_of(
    config: &Config,
    flags: openflow::port::PortConfig,
    restoring: bool,
) -> PortSettings {
    use openflow::port::PortConfig as Bits;
    PortSettings {
        vlan: vlan_of(&config.vlan),
        flags: PortFlags {
            down: flags.contains(Bits::DOWN),
            no_recv: restoring || flags.contains(Bits::NO_RECV),
            no_recv_stp: flags.contains(Bits::NO_RECV_STP),
            no_flood: flags.contains(Bits::NO_FLOOD),
            no_fwd: flags.contains(Bits::NO_FWD),
            no_packet_in: flags.contains(Bits::NO_PACKET_IN),
        },
        queues: config.qos.queues.clone(),
        marks: config.qos.marks.clone(),
        shape: match &config.qos.shape {
            Shape::None => datapath::Shape::None,
            Shape::Queues(spec) => datapath::Shape::Queues(Arc::clone(spec)),
            Shape::Policer(spec) => datapath::Shape::Policer(Arc::clone(spec)),
        },
        ingress: config.ingress,
        affinity: config.affinity.clone(),
        no_carrier: false,
        underlay: config.underlay,
    }
}

fn vlan_of(vlan: &Vlan) -> VlanConfig {
    let mode = match vlan.mode {
        vlan::VlanMode::Access => VlanMode::Access(vlan.tag),
        vlan::VlanMode::Trunk => VlanMode::Trunk,
        vlan::VlanMode::NativeTagged => VlanMode::NativeTagged(vlan.tag),
        vlan::VlanMode::NativeUntagged => VlanMode::NativeUntagged(vlan.tag),
    };
    let trunks = vlan
        .trunks
        .as_ref()
        .map(|set| set.iter().collect::<VlanSet>());
    VlanConfig::new(mode, trunks).with_priority_tags(match vlan.priority_tags {
        vlan::PriorityTags::Never => PriorityTags::Never,
        vlan::PriorityTags::IfNonzero => PriorityTags::IfNonzero,
        vlan::PriorityTags::Always => PriorityTags::Always,
    })
}

/// A bridge's OpenFlow connections. They and the bridge refer to each other until the bridge is
/// closed.
#[derive(Default)]
pub struct Connections(RefCell<Option<Rc<OpenFlow>>>);

impl Connections {
    /// Returns the connections; None before they are set up and after the bridge has been closed.
    pub fn get(&self) -> Option<Rc<OpenFlow>> {
        self.0.borrow().clone()
    }

    /// Sets them up.
    pub(super) fn set(&self, openflow: OpenFlow) {
        *self.0.borrow_mut() = Some(Rc::new(openflow));
    }

    fn take(&self) -> Option<Rc<OpenFlow>> {
        self.0.borrow_mut().take()
    }
}

/// A bridge.
pub struct Bridge {
    /// Its name.
    pub name: String,
    /// Its id in the datapath.
    pub id: BridgeId,
    /// The switch it belongs to; [`Bridge::close`] and the end of the switch break the cycle.
    pub switch: Rc<Switch>,
    /// A reference to itself, for tasks.
    pub(super) me: Weak<Bridge>,
    /// Whether its rules are being changed in slices.
    pub(super) changing: super::slices::Changing,
    /// Its rules.
    pub pipeline: RefCell<Pipeline>,
    /// Its configuration in the database.
    pub settings: RefCell<Settings>,
    /// Its ports by their numbers.
    pub ports: RefCell<BTreeMap<u16, Port>>,
    /// The allocation of port numbers.
    pub numbers: RefCell<Allocator>,
    /// Its mirrors.
    pub mirrors: RefCell<Vec<Mirror>>,
    /// The local port's address.
    pub mac: Cell<Mac>,
    /// The OpenFlow datapath id.
    pub datapath_id: Cell<u64>,
    /// The datapath id that controllers have seen; None before the first configuration has been
    /// applied.
    pub(super) announced_id: Cell<Option<u64>>,
    /// Its controllers and management sockets.
    pub openflow: Connections,
    /// Controllers' settings of tables, by number.
    pub table_configs: RefCell<BTreeMap<u8, u32>>,
    /// Controllers' names for tables, by number.
    pub(super) table_names: RefCell<BTreeMap<u8, String>>,
    /// How IP fragments are handled.
    pub fragments: Cell<openflow::message::Fragments>,
    /// The numbers of configured ports whose devices have disappeared, by interface, for their
    /// return.
    pub(super) vanished: RefCell<BTreeMap<String, u16>>,
    pub(super) fail: super::fail::Fail,
    pub(super) in_band: super::in_band::InBand,
    /// The last prediction for its rules.
    pub(super) prediction: RefCell<Option<super::predict::Known>>,
}

impl Bridge {
    /// The switch.
    pub fn switch(&self) -> Rc<Switch> {
        Rc::clone(&self.switch)
    }

    /// Returns whether a port of the datapath is live.
    pub fn is_live(&self, port: number::PortNo) -> bool {
        let switch = &self.switch;
        let live = switch.with_datapath(|datapath| datapath.is_live(self.id, port));
        live.unwrap_or(false)
    }

    /// Returns the number of the port with an interface's name.
    pub fn number_of(&self, interface: &str) -> Option<u16> {
        self.ports
            .borrow()
            .values()
            .find(|port| port.config.interface_name == interface)
            .map(|port| port.number)
    }

    /// Chooses the address and the datapath id again after ports or settings have changed. Returns
    /// whether one of them changed.
    pub fn choose_identity(&self) -> bool {
        let settings = self.settings.borrow();
        let mirrors = self.mirrors.borrow();
        let is_output = |name: &str| {
            mirrors
                .iter()
                .any(|mirror| matches!(&mirror.output, Output::Port(output) if output == name))
        };
        let ports = self.ports.borrow();
        let candidates: Vec<Candidate> = ports
            .values()
            .filter(|port| port.control.is_some())
            .map(|port| Candidate {
                device: Mac(port.info.mac),
                given: port.config.port_mac,
                local: port.config.local,
                mirror_output: is_output(&port.config.interface_name),
                tag: (port.config.vlan.tag != 0).then_some(port.config.vlan.tag),
            })
            .collect();
        let mac = address::bridge_address(settings.hwaddr, settings.default_mac, candidates);
        let datapath_id = address::datapath_id(settings.datapath_id, mac);
        let changed = mac != self.mac.get() || datapath_id != self.datapath_id.get();
        self.mac.set(mac);
        self.datapath_id.set(datapath_id);
        changed
    }

    /// Returns the local port's device, unless it has none.
    fn local_device(&self) -> Option<Device> {
        self.ports.borrow().get(&ofport::LOCAL)?.control.clone()
    }

    /// Sets the local port's address to the bridge's. Failures are logged.
    pub async fn set_local_mac(&self) {
        let mac = self.mac.get();
        let has = (self.ports.borrow().get(&ofport::LOCAL)).map(|local| local.info.mac);
        let Some(device) = self.local_device().filter(|_| has != Some(mac.0)) else {
            return;
        };
        let set = device.aside(move |control| control.set_mac(mac.0).map(|()| control.info()));
        match set.await {
            Some(Ok(info)) => {
                if let Some(local) = self.ports.borrow_mut().get_mut(&ofport::LOCAL) {
                    local.info = info;
                }
            }
            Some(Err(error)) => {
                tracing::error!(target: "bridge", "{}: cannot set address: {error}", self.name);
            }
            None => {}
        }
    }

    /// Sets the MTU of internal ports and TAPs (the same thing to Open vSwitch): the requested one,
    /// else the lowest of the bridge's other ports, among which those with a requested MTU count,
    /// too. An MTU that somebody else has set since is kept until the lowest changes, unless it is
    /// larger. A port that was moved to another network namespace keeps the MTU that is set there.
    /// The devices are changed aside; returns a future for the end of that, or None if no device
    /// is to be changed.
    pub fn choose_mtu(&self) -> Option<LocalFuture<()>> {
        let mut coming = Vec::new();
        let mut ports = self.ports.borrow_mut();
        let is_internal = |port: &Port| {
            matches!(
                port.config.device.as_str(),
                "internal" | "tap" | "dummy-internal"
            )
        };
        let counts = |port: &&Port| {
            port.control.is_some() && (!is_internal(port) || port.config.mtu_is_its_own)
        };
        let mtu = address::internal_mtu(
            ports
                .values()
                .filter(counts)
                .map(|port| port.info.mtu)
                .filter(|mtu| *mtu > 0),
        );
        for port in ports.values_mut().filter(|port| is_internal(port)) {
            let wanted = match port.config.mtu_request {
                Some(wanted) => wanted,
                None if port.config.mtu_is_its_own => continue,
                None => mtu,
            };
            if port.info.mtu == wanted {
                // It has this MTU already; if it is lower later, somebody else has set that.
                port.mtu_given = Some(wanted);
            }
            if port.mtu_coming == Some(wanted) || !gives_mtu(port.mtu_given, wanted, port.info.mtu)
            {
                continue;
            }
            if let Some(device) = &port.control {
                port.mtu_coming = Some(wanted);
                let set = device.aside(move |control| {
                    let here = !control.is_elsewhere();
                    (here && control.set_mtu(wanted).is_ok()).then(|| control.info().mtu)
                });
                coming.push((port.id, wanted, set));
            }
        }
        if coming.is_empty() {
            return None;
        }
        let me = self.me.clone();
        Some(Box::pin(async move {
            for (port, wanted, set) in coming {
                let mtu = set.await.flatten();
                if let Some(me) = me.upgrade() {
                    me.note_mtu(port, wanted, mtu);
                }
            }
        }))
    }

    /// Notes that the device of a port was to get an MTU, and which one it has then; None if that
    /// has failed.
    fn note_mtu(&self, port: PortId, wanted: u16, has: Option<u16>) {
        let mut ports = self.ports.borrow_mut();
        let Some(port) = ports.values_mut().find(|other| other.id == port) else {
            return;
        };
        if port.mtu_coming == Some(wanted) {
            port.mtu_coming = None;
        }
        if let Some(mtu) = has {
            port.mtu_given = Some(wanted);
            // Other changes are reported when the kernel's news of this port arrive.
            port.info.mtu = mtu;
        }
    }

    /// Tries to start devices again that did not start after a change, when that is due: with the
    /// requested MTU, else with the previous one. Must not run while a configuration is applied.
    pub async fn start_closed(&self) {
        let now = Instant::now();
        let mut changes = Vec::new();
        for port in self.ports.borrow().values() {
            let due = (port.closed.as_ref()).is_some_and(|closed| closed.again <= now);
            let Some(device) = port.control.clone().filter(|_| due) else {
                continue;
            };
            let mtu = port.config.mtu_request;
            let change = Change {
                device,
                name: port.config.interface_name.clone(),
                mtu,
                otherwise: Some(port.info.mtu),
                mac: port.config.mac.filter(|_| mtu.is_some()),
                closed: port.closed.clone(),
            };
            changes.push((port.number, change));
        }
        for (number, change) in changes {
            let done = change.make().await;
            let mut ports = self.ports.borrow_mut();
            if let Some((port, (closed, _))) = ports.get_mut(&number).zip(done) {
                port.closed = closed;
            }
        }
    }

    /// Lets packets pass again through ports that OpenFlow had set down and somebody else has set
    /// up (`ip link set up`): the device's state is the one that counts, and the one that
    /// controllers see.
    pub fn follow_admin_states(&self) {
        let switch = self.switch();
        for port in self.ports.borrow_mut().values_mut() {
            let kernel = matches!(
                port.config.device.as_str(),
                "system" | "internal" | "tap" | "afxdp"
            );
            if kernel
                && port.control.is_some()
                && port.admin_coming == 0
                && port.info.admin_up
                && port.flags.contains(openflow::port::PortConfig::DOWN)
            {
                port.flags.set(openflow::port::PortConfig::DOWN, false);
                let settings = port.settings(switch.restoring.get());
                let _ = switch.with_datapath(|datapath| datapath.modify_port(port.id, settings));
            }
        }
    }

    /// Publishes changes of the rules to workers.
    pub fn publish(&self) {
        self.pipeline.borrow_mut().commit();
        let switch = self.switch();
        switch.program.domain.publish();
        switch.rules_changed.notify_one();
    }

    /// Frees what is no longer used; returns whether there was something.
    pub fn housekeep(&self, limit: usize) -> bool {
        self.pipeline.borrow_mut().commit();
        self.fail_step();
        self.in_band_step();
        let unlinked = self.pipeline.borrow_mut().housekeep(limit);
        unlinked > 0
    }

    /// Sends flow-removed messages, and all rule changes to flow monitors; call it after each
    /// change.
    pub fn tell_removed(&self, removed: Vec<openflow::flow::FlowRemoved>) {
        if let Some(openflow) = self.openflow.get() {
            openflow.flows_removed(&removed);
            openflow.report_changes();
        }
    }

    /// Sets the local port's addresses from its controllers' rows. Failures are logged.
    pub(super) async fn set_local_addresses(&self, controllers: &[Controller]) {
        let Some(device) = self.local_device() else {
            return;
        };
        for local in controllers
            .iter()
            .filter_map(|controller| controller.local_address)
        {
            let (name, address, netmask) = (&self.name, local.address, local.netmask);
            let gateway = local.gateway;
            let set = device.aside(move |control| {
                let here = !control.is_elsewhere();
                here.then(|| control.set_ipv4(address, netmask, gateway))
            });
            match set.await {
                // It is closed.
                None => return,
                Some(None) => {
                    tracing::warn!(target: "bridge", "bridge {name}: its local port has been moved away and is not given IP address {address}");
                }
                Some(Some(Ok(()))) => {
                    tracing::info!(target: "bridge", "bridge {name}: configured IP address {address}, netmask {netmask}");
                    if let Some(gateway) = gateway {
                        tracing::info!(target: "bridge", "bridge {name}: configured gateway {gateway}");
                    }
                }
                Some(Some(Err(error))) => {
                    tracing::warn!(target: "bridge", "bridge {name}: {error}");
                }
            }
        }
    }

    /// Ends connections and removes all ports; returns their devices, which are to be closed or
    /// left.
    pub fn close(&self) -> Vec<Device> {
        if let Some(openflow) = self.openflow.take() {
            openflow.close();
        }
        let switch = self.switch();
        let ports = std::mem::take(&mut *self.ports.borrow_mut());
        let ids: Vec<datapath::PortId> = ports.values().map(|port| port.id).collect();
        if let Ok(Err(error)) = switch.with_datapath(|datapath| datapath.remove_ports(&ids)) {
            tracing::warn!(target: "bridge", "bridge {}: {error}", self.name);
        }
        let _ = switch.with_datapath(|datapath| datapath.remove_bridge(self.id));
        (ports.into_values().filter_map(|port| port.control)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::io::TxQueue;
    use ports::{Error, Mbuf};

    /// A device that does not start with some MTUs.
    struct Device {
        bad: u16,
        mtu: u16,
        stopped: bool,
    }

    impl PortControl for Device {
        fn tx_queue(&mut self, _: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
            Err(Error::Option("none".into()))
        }
        fn info(&mut self) -> PortInfo {
            PortInfo::default()
        }
        fn status(&mut self) -> Vec<(String, String)> {
            Vec::new()
        }
        fn device_stats(&mut self) -> Vec<(String, u64)> {
            Vec::new()
        }
        fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
            if mtu > 9000 {
                return Err(Error::Option("too long".into()));
            }
            self.mtu = mtu;
            self.stopped = mtu == self.bad;
            let why = format!("no start with {mtu}");
            if self.stopped {
                Err(Error::Closed { why })
            } else {
                Ok(())
            }
        }
        fn set_mac(&mut self, _: ports::Mac) -> Result<(), Error> {
            Err(Error::Option("no".into()))
        }
        fn set_admin(&mut self, _: bool) -> Result<(), Error> {
            Ok(())
        }
        fn close(self: Box<Self>) {}
    }

    #[test]
    fn an_mtu_is_given_when_the_lowest_changes_and_when_one_is_above() {
        assert!(gives_mtu(None, 1400, 1500), "a port that has come");
        assert!(gives_mtu(None, 9000, 1500));
        assert!(!gives_mtu(None, 1500, 1500));
        assert!(gives_mtu(Some(1500), 1400, 1500), "the lowest has changed");
        assert!(gives_mtu(Some(1400), 1600, 1400));
        // Somebody else has set this MTU.
        assert!(!gives_mtu(Some(1500), 1500, 1300));
        assert!(gives_mtu(Some(1500), 1500, 1700));
    }

    #[test]
    fn a_port_says_why_it_is_closed_until_its_device_starts() {
        let (mut device, mut closed) = (
            Device {
                bad: 2000,
                mtu: 1500,
                stopped: false,
            },
            None,
        );
        let mut change = |device: &mut Device, mtu, mac| {
            change_device(device, "p", mtu, mac, &mut closed);
            closed.as_ref().map(|closed| closed.why.clone())
        };
        let why = Some("no start with 2000; the port is closed".to_owned());
        assert_eq!(change(&mut device, Some(9001), None), None, "as it was");
        assert_eq!(change(&mut device, Some(2000), None), why);
        // Neither another change nor a refused one opens it.
        assert_eq!(change(&mut device, None, Some(Mac([2; 6]))), why);
        assert_eq!(change(&mut device, Some(9001), None), why);
        // Retried without a change: fails, and then succeeds.
        let mtu = device.mtu;
        assert_eq!(change(&mut device, Some(mtu), None), why);
        device.bad = 0;
        assert_eq!(change(&mut device, Some(mtu), None), None);
        assert!(!device.stopped);
    }
}
