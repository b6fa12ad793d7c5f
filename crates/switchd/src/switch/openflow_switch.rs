//! A bridge as controllers see it: [`crate::openflow::Switch`] over pipeline and datapath.

use super::bridge::{Bridge, Port};
use super::connections;
use super::tables::{BridgeDump, TABLES};
use crate::openflow::{BundleFailure, FlowDump, LocalFuture, Switch, WatchedRules};
use crate::turns;
use datapath::PortId;
use openflow::ct_flush::CtFlush;
use openflow::flow::{FlowMod, FlowStatsRequest};
use openflow::group::{GroupDescription, GroupMod, GroupStats};
use openflow::message::{Capabilities, Features, Fragments, PacketIn, PacketOut, QueueRequest};
use openflow::meter::{MeterConfig, MeterMod, MeterStats};
use openflow::monitor::MonitorRequest;
use openflow::port::{
    self, PortConfig, PortDescription, PortFeatures, PortMod, PortNo, PortReason, PortState,
    PortStats, PortStatus,
};
use openflow::stats::{
    Description, GroupFeatures, MeterFeatures, QueueDescription, QueueStats, TableConfig,
    TableFeatures, TableStats, TableStatus,
};
use openflow::steering::{
    HostCapabilities, Mode, ModeReply, SteeringMod, SteeringStats, Target, VmStatus,
};
use openflow::tlv::{TlvTable, TlvTableMod};
use openflow::{Error, Message, Version};
use pipeline::RuleChange;
use ports::{PortControl, PortInfo};
use program::table::Miss;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Bits of OpenFlow 1.0's actions: output, enqueue and the ten that change VLAN, addresses, ToS and
/// ports.
const ACTIONS_1_0: u32 = 0xfff;
/// How long a barrier polls before it sleeps between checks.
const BARRIER_EAGER: Duration = Duration::from_millis(2);
/// How long a barrier waits for workers to see a change. Then it is answered all the same, and that
/// is logged: a dead worker must not block the controllers.
const BARRIER_LIMIT: Duration = Duration::from_secs(10);
/// Table configuration bits of OpenFlow 1.1 and 1.2: how to handle packets that match no rule.
const MISS_CONTINUE: u32 = 1;
const MISS_DROP: u32 = 2;
/// Counters of DPDK's devices that port statistics have fields for. Errors are in both, as in Open
/// vSwitch.
const HAVE_FIELDS: [&str; 6] = [
    "rx_packets",
    "rx_bytes",
    "rx_dropped",
    "tx_packets",
    "tx_bytes",
    "rx_multicast_packets",
];

impl Bridge {
    /// Returns a port's description for controllers.
    pub fn describe_port(&self, number: u16) -> Option<PortDescription> {
        self.ports.borrow().get(&number).map(describe)
    }

    /// Reports a port to controllers.
    pub fn tell_port(&self, number: u16, reason: PortReason) {
        if let (Some(openflow), Some(port)) = (self.openflow.get(), self.describe_port(number)) {
            openflow.port_status(&PortStatus { reason, port });
        }
    }

    /// Sets how packets that match no rule are handled: they go to controllers if one before
    /// OpenFlow 1.3 is connected.
    pub fn choose_miss(&self) {
        let to_controller = self
            .openflow
            .get()
            .is_some_and(|openflow| openflow.wants_misses());
        let wanted = if to_controller {
            Miss::Controller
        } else {
            Miss::Drop
        };
        let given = self.table_configs.borrow();
        let mut pipeline = self.pipeline.borrow_mut();
        for table in 0..TABLES {
            let miss = match given.get(&table).copied().unwrap_or(0) & 3 {
                MISS_CONTINUE => Miss::Next,
                MISS_DROP => Miss::Drop,
                _ => wanted,
            };
            if pipeline.miss(table) != miss {
                pipeline.set_miss(table, miss);
            }
        }
    }

    /// Checks every device and reports changes to controllers; returns whether there were any.
    pub fn poll_ports(&self) -> bool {
        self.look_at_ports(|_| true)
    }

    /// Checks the devices of chosen ports as [`Bridge::poll_ports`] does.
    pub fn look_at_ports(&self, mut chosen: impl FnMut(&Port) -> bool) -> bool {
        let mut changed = Vec::new();
        for port in self.ports.borrow_mut().values_mut() {
            if !chosen(port) {
                continue;
            }
            let usable = port.is_usable();
            let Some(control) = &mut port.control else {
                continue;
            };
            let before = describe(port_view(
                port.number,
                &port.config.interface_name,
                &port.info,
                port.flags,
                &port.config.device,
                usable,
            ));
            let info = control.info();
            if info != port.info {
                port.info = info;
                self.settings_changed(port);
                let after = describe(port_view(
                    port.number,
                    &port.config.interface_name,
                    &port.info,
                    port.flags,
                    &port.config.device,
                    usable,
                ));
                changed.push((port.number, before != after));
            }
        }
        for (number, _) in changed.iter().filter(|(_, visible)| *visible) {
            self.tell_port(*number, PortReason::Modify);
        }
        if !changed.is_empty()
            && let Some(set) = self.choose_mtu()
        {
            turns::spawn("changing MTUs", set);
        }
        !changed.is_empty()
    }

    /// Tells the datapath a port's settings.
    fn settings_changed(&self, port: &Port) {
        let switch = self.switch();
        let settings = port.settings(switch.restoring.get());
        let _ = switch.with_datapath(|datapath| datapath.modify_port(port.id, settings));
    }

    /// Notes that a port's device was set up or down as OpenFlow asked, or could not be; `done` is
    /// None if it is closed.
    fn admin_is_set(
        &self,
        number: u16,
        id: PortId,
        done: Option<(Result<(), ports::Error>, PortInfo)>,
    ) {
        {
            let mut ports = self.ports.borrow_mut();
            // Another port may have the number by now.
            let Some(port) = ports.get_mut(&number).filter(|port| port.id == id) else {
                return;
            };
            port.admin_coming -= 1;
            let Some((set, info)) = done else { return };
            if let Err(error) = set {
                let name = &port.config.interface_name;
                tracing::warn!(target: "ofproto", "{name}: {error}");
            }
            port.info = info;
            self.settings_changed(port);
        }
        self.tell_port(number, PortReason::Modify);
    }

    /// Returns a port's counters by the names of `Interface.statistics`; the device's own if it has
    /// them. As in Open vSwitch, patch ports and tunnels count only packets that pass through them.
    pub fn port_counters(&self, port: &mut Port) -> HashMap<String, u64> {
        self.counted(port).0
    }

    /// Returns all counters of a port, and of DPDK's ports the names of those that OpenFlow has no
    /// fields for, in Open vSwitch's order.
    fn counted(&self, port: &mut Port) -> (HashMap<String, u64>, Vec<String>) {
        let mut counters: HashMap<String, u64> = HashMap::new();
        let mut custom: Vec<String> = Vec::new();
        let mut policed = None;
        let dpdk = crate::commands::is_dpdk(port);
        if let Ok(Ok(stats)) = self
            .switch()
            .with_datapath(|datapath| datapath.port_stats(port.id))
        {
            let own = [
                ("rx_packets", stats.rx_packets),
                ("rx_bytes", stats.rx_bytes),
                ("tx_packets", stats.tx_packets),
                ("tx_bytes", stats.tx_bytes),
                ("rx_dropped", stats.rx_dropped),
                ("rx_errors", stats.rx_errors),
                ("tx_dropped", stats.tx_full + stats.tx_too_long),
                ("tx_errors", stats.tx_failed),
            ];
            // Ports without QoS do not show these names.
            let has = !port.config.qos.kind.is_empty() || !port.config.ingress.is_none();
            // Open vSwitch's dummies do not count losses.
            let dummy = crate::commands::is_dummy(&self.switch(), self, port);
            let kept = if port.control.is_some() && (has || !dummy) {
                &own[..]
            } else {
                &own[..4]
            };
            if dummy {
                // All packets used its only queue.
                let (received, sent) = own[..4].split_at(2);
                for (kind, counts) in [("rx", received), ("tx", sent)] {
                    for ((_, count), unit) in counts.iter().zip(["packets", "bytes"]) {
                        counters.insert(format!("{kind}_q0_{unit}"), *count);
                    }
                }
            }
            if dpdk {
                let guest = port.config.device.starts_with("dpdkvhost");
                // A full ring is not tried again.
                let retries = guest.then_some(("ovs_tx_retries", 0));
                let losses = [
                    ("ovs_tx_failure_drops", stats.tx_full),
                    ("ovs_tx_mtu_exceeded_drops", stats.tx_too_long),
                    ("ovs_tx_qos_drops", 0), // added below, as in all ports with QoS
                    ("ovs_rx_qos_drops", 0),
                    ("ovs_tx_invalid_hwol_drops", stats.tx_tiny),
                ];
                for (name, value) in retries.into_iter().chain(losses) {
                    counters.insert(name.to_owned(), value);
                    custom.push(name.to_owned());
                }
            }
            policed = (has || stats.rx_policed + stats.tx_policed > 0)
                .then_some((stats.rx_policed, stats.tx_policed));
            counters.extend(
                kept.iter()
                    .map(|(name, value)| ((*name).to_owned(), *value)),
            );
        }
        if let Some(control) = &mut port.control {
            // The device does not count losses between itself and the worker (a full ring of a
            // kernel interface).
            let lost = counters.get("rx_dropped").copied().unwrap_or(0);
            for (name, value) in control.device_stats() {
                let more = if name == "rx_dropped" { lost } else { 0 };
                if dpdk && !HAVE_FIELDS.contains(&name.as_str()) && !port::BY_SIZE.contains(&&*name)
                {
                    custom.push(name.clone());
                }
                counters.insert(name, value + more);
            }
        }
        if let Some((received, sent)) = policed {
            // Open vSwitch uses these names for DPDK's ports.
            let more = [
                ("ovs_rx_qos_drops", received),
                ("ovs_tx_qos_drops", sent),
                ("rx_dropped", received),
                ("tx_dropped", sent),
            ];
            for (name, value) in more {
                *counters.entry(name.to_owned()).or_default() += value;
            }
        }
        (counters, custom)
    }

    fn stats_of(&self, port: &mut Port) -> PortStats {
        let (counters, custom) = self.counted(port);
        let of = |name: &str| counters.get(name).copied().unwrap_or(port::UNKNOWN);
        let by_size = port::BY_SIZE.map(of);
        PortStats {
            port: port.openflow_number(),
            rx_packets: of("rx_packets"),
            tx_packets: of("tx_packets"),
            rx_bytes: of("rx_bytes"),
            tx_bytes: of("tx_bytes"),
            rx_dropped: of("rx_dropped"),
            tx_dropped: of("tx_dropped"),
            rx_errors: of("rx_errors"),
            tx_errors: of("tx_errors"),
            rx_frame_errors: of("rx_frame_err"),
            rx_over_errors: of("rx_over_err"),
            rx_crc_errors: of("rx_crc_err"),
            collisions: of("collisions"),
            duration_ns: self.switch().clock.now_ms().saturating_sub(port.since_ms) * 1_000_000,
            by_size: (by_size.iter().any(|count| *count != port::UNKNOWN))
                .then(|| Box::new(by_size)),
            custom: (custom.into_iter())
                .map(|name| {
                    let value = of(&name);
                    (name, value)
                })
                .collect(),
        }
    }

    /// Checks whether a port mod can be carried out; returns its port.
    pub(super) fn check_port_mod(&self, change: &PortMod) -> Result<u16, Error> {
        let number = port::to_u16(change.port).ok_or(Error::PortModBadPort)?;
        let ports = self.ports.borrow();
        let port = ports.get(&number).ok_or(Error::PortModBadPort)?;
        if port.info.mac != change.hw_addr {
            return Err(Error::PortModBadHwAddr);
        }
        Ok(number)
    }

    /// Returns the bridge's mapping between Geneve options and fields.
    pub(crate) fn option_map(&self) -> Vec<packet::tunnel::Mapping> {
        self.pipeline.borrow().option_places()
    }

    pub(super) fn check_packet_out(
        &self,
        packet: &PacketOut,
        version: Version,
    ) -> Result<pipeline::PacketOutProgram, Error> {
        self.pipeline.borrow().packet_out(packet, version)
    }

    /// Sends a packet, by the current rules, or by those of the given moment.
    pub(super) fn send_packet_out(
        &self,
        program: pipeline::PacketOutProgram,
        data: Vec<u8>,
        moment: Option<datapath::Moment>,
    ) {
        let pipeline::PacketOutProgram {
            in_port,
            metadata,
            ops,
        } = program;
        let sent = self.switch().with_datapath(|datapath| {
            datapath.packet_out_with(self.id, in_port, metadata, moment, data, ops)
        });
        if let Ok(Err(error)) = sent {
            tracing::warn!(target: "ofproto", "{}: packet-out: {error}", self.name);
        }
    }
}

/// The properties of a port that controllers see.
struct PortView<'a> {
    number: u16,
    name: &'a str,
    info: &'a ports::PortInfo,
    flags: PortConfig,
    device: &'a str,
    /// Whether its monitor, if any, finds that it may be used.
    usable: bool,
}

fn port_view<'a>(
    number: u16,
    name: &'a str,
    info: &'a ports::PortInfo,
    flags: PortConfig,
    device: &'a str,
    usable: bool,
) -> PortView<'a> {
    PortView {
        number,
        name,
        info,
        flags,
        device,
        usable,
    }
}

impl<'a> From<&'a Port> for PortView<'a> {
    fn from(port: &'a Port) -> PortView<'a> {
        port_view(
            port.number,
            &port.config.interface_name,
            &port.info,
            port.flags,
            &port.config.device,
            port.is_usable(),
        )
    }
}

fn features_of(info: &ports::PortInfo, device: &str) -> PortFeatures {
    let half = info.full_duplex == Some(false);
    let rate = match info.link_speed / 1_000_000 {
        0 => return PortFeatures::empty(),
        1..=10 if half => PortFeatures::HALF_10M,
        1..=10 => PortFeatures::FULL_10M,
        11..=100 if half => PortFeatures::HALF_100M,
        11..=100 => PortFeatures::FULL_100M,
        101..=1000 if half => PortFeatures::HALF_1G,
        101..=1000 => PortFeatures::FULL_1G,
        10_000 => PortFeatures::FULL_10G,
        40_000 => PortFeatures::FULL_40G,
        100_000 => PortFeatures::FULL_100G,
        1_000_000 => PortFeatures::FULL_1T,
        _ => PortFeatures::OTHER,
    };
    // The kernel's virtual devices claim twisted pair, which Open vSwitch reports.
    let medium = if matches!(device, "system" | "internal" | "tap") {
        PortFeatures::COPPER
    } else {
        PortFeatures::empty()
    };
    rate | medium
}

fn describe<'a>(port: impl Into<PortView<'a>>) -> PortDescription {
    let port = port.into();
    let current = features_of(port.info, port.device);
    let mut config = port.flags;
    config.set(PortConfig::DOWN, !port.info.admin_up);
    let mut state = PortState::empty();
    state.set(PortState::LINK_DOWN, !port.info.link_up);
    let live = port.info.link_up && port.info.admin_up && port.usable;
    state.set(PortState::LIVE, live);
    PortDescription {
        number: port::from_u16(port.number),
        hw_addr: port.info.mac,
        name: port.name.to_owned(),
        config,
        state,
        current,
        current_speed: current.max_rate_kbps(),
        ..PortDescription::default()
    }
}

impl Switch for Bridge {
    fn bundle_idle_ms(&self) -> i64 {
        i64::from(self.switch.bundle_idle_s.get()) * 1000
    }

    fn features(&self, with_ports: bool) -> Features {
        Features {
            datapath_id: self.datapath_id.get(),
            buffers: 0,
            tables: TABLES,
            auxiliary: 0,
            capabilities: Capabilities::FLOW_STATS
                | Capabilities::TABLE_STATS
                | Capabilities::PORT_STATS
                | Capabilities::GROUP_STATS
                | Capabilities::QUEUE_STATS
                | Capabilities::ARP_MATCH_IP
                | Capabilities::BUNDLES,
            actions: ACTIONS_1_0,
            ports: if with_ports { self.ports() } else { Vec::new() },
        }
    }

    fn description(&self) -> Description {
        let settings = self.settings.borrow();
        Description {
            manufacturer: "Sluice".into(),
            hardware: "Open vSwitch".into(),
            software: crate::options::COMPATIBLE_VERSION.to_string(),
            serial: settings
                .serial_number
                .clone()
                .unwrap_or_else(|| "None".into()),
            datapath: settings
                .description
                .clone()
                .unwrap_or_else(|| "None".into()),
        }
    }

    fn fragments(&self) -> Fragments {
        self.fragments.get()
    }

    fn set_fragments(&self, fragments: Fragments) -> Result<(), Error> {
        // Reassembly would need state that this switch does not keep.
        if fragments == Fragments::Reassemble {
            return Err(Error::SwitchConfigBadFlags);
        }
        let pipeline = self.pipeline.borrow();
        pipeline
            .tables()
            .match_fragment_ports(fragments == Fragments::NxMatch);
        pipeline
            .tables()
            .drop_fragments(fragments == Fragments::Drop);
        self.fragments.set(fragments);
        Ok(())
    }

    fn flow_mod(
        &self,
        change: &FlowMod,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        self.change_flows(change, version)
    }

    fn busy(&self) -> Option<LocalFuture<()>> {
        self.idle()
    }

    fn make_up(&self) -> Option<LocalFuture<()>> {
        Bridge::make_up(self)
    }

    fn packet_out(&self, packet: &PacketOut, version: Version) -> Result<(), Error> {
        let program = self.check_packet_out(packet, version)?;
        self.publish();
        self.send_packet_out(program, packet.data.clone(), None);
        Ok(())
    }

    fn resume(&self, packet: &PacketIn) -> Result<(), Error> {
        self.resume_packet(packet)
    }

    fn capabilities(&self) -> Result<LocalFuture<HostCapabilities>, Error> {
        Ok(self.host_capabilities())
    }

    fn steering_mode(&self, wanted: Option<Mode>) -> Result<ModeReply, Error> {
        Ok(self.switch.choose_steering(wanted))
    }

    fn change_steering(
        &self,
        target: &Target,
        change: &SteeringMod,
    ) -> Result<LocalFuture<Result<(), Error>>, Error> {
        Ok(Bridge::change_steering(self, target, change))
    }

    fn steering_entries(
        &self,
        target: &Target,
    ) -> Result<LocalFuture<Result<Vec<SteeringStats>, Error>>, Error> {
        Ok(Bridge::steering_entries(self, target))
    }

    fn vms(&self) -> Vec<VmStatus> {
        self.told_vms()
    }

    fn port_mod(&self, change: &PortMod) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        let number = self.check_port_mod(change)?;
        let mut ports = self.ports.borrow_mut();
        let port = ports.get_mut(&number).ok_or(Error::PortModBadPort)?;
        port.flags = port
            .flags
            .difference(change.mask)
            .union(change.config.intersection(change.mask));
        let mut setting = None;
        if change.mask.contains(PortConfig::DOWN) {
            let up = !change.config.contains(PortConfig::DOWN);
            match &port.control {
                Some(device) => {
                    port.admin_coming += 1;
                    let set = device.aside(move |control| (control.set_admin(up), control.info()));
                    setting = Some((port.id, set));
                }
                // Without a device the port itself is down.
                None => port.info.admin_up = up,
            }
        }
        self.settings_changed(port);
        drop(ports);
        let Some((id, set)) = setting else {
            self.tell_port(number, PortReason::Modify);
            return Ok(None);
        };
        let me = self.me.clone();
        let task = turns::spawn("setting a port up or down", async move {
            let done = set.await;
            if let Some(me) = me.upgrade() {
                me.admin_is_set(number, id, done);
            }
        });
        Ok(Some(Box::pin(async move {
            // It fails only when the daemon ends.
            let _ = task.await;
            Ok(())
        })))
    }

    fn table_mod(&self, change: &TableConfig, version: Version) -> Result<(), Error> {
        self.configure_table(change, version)
    }

    fn change_table_features(&self, wanted: &[TableFeatures]) -> Result<(), Error> {
        self.rename_tables(wanted)
    }

    fn flush_connections(&self, request: &CtFlush) -> LocalFuture<Result<(), Error>> {
        let filter = connections::filter(request);
        let tracker = self.switch().tracker();
        Box::pin(async move {
            if let Some(tracker) = tracker {
                connections::flush(tracker, filter).await;
            }
            Ok(())
        })
    }

    fn tlv_table_mod(&self, change: &TlvTableMod) -> Result<(), Error> {
        self.pipeline.borrow_mut().tlv_table_mod(change)?;
        self.publish();
        let options = self.option_map();
        let told = self
            .switch()
            .with_datapath(|datapath| datapath.set_tunnel_options(self.id, &options));
        if let Ok(Err(error)) = told {
            tracing::warn!(target: "ofproto", "{}: {error}", self.name);
        }
        Ok(())
    }

    fn tlv_table(&self) -> TlvTable {
        self.pipeline.borrow().tlv_table()
    }

    fn group_mod(
        &self,
        change: &GroupMod,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        self.change_groups(change, version)
    }

    fn meter_mod(
        &self,
        change: &MeterMod,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        self.change_meters(change)
    }

    fn check_bundled(&self, message: &Message, version: Version) -> Result<(), Error> {
        pipeline::check_bundled(message, version)
    }

    fn bundle(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), BundleFailure>>>, BundleFailure> {
        self.carry_out(pieces, version)
    }

    fn publish(&self) {
        Bridge::publish(self);
    }

    fn barrier(&self) -> LocalFuture<()> {
        let switch = self.switch();
        let name = self.name.clone();
        let wanted = switch.with_datapath(|datapath| datapath.barrier());
        Box::pin(async move {
            let Ok(wanted) = wanted else { return };
            let began = Instant::now();
            while !switch
                .with_datapath(|datapath| datapath.barrier_passed(wanted))
                .unwrap_or(true)
            {
                if began.elapsed() < BARRIER_EAGER {
                    // A worker on the same processor may have been interrupted in the middle of its
                    // turn: let it run.
                    std::thread::yield_now();
                    tokio::task::yield_now().await;
                } else if began.elapsed() < BARRIER_LIMIT {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                } else {
                    tracing::error!(target: "ofproto", "{name}: a worker has not seen a change for {} s", BARRIER_LIMIT.as_secs());
                    return;
                }
            }
        })
    }

    fn flows(&self, request: &FlowStatsRequest) -> Result<Box<dyn FlowDump + '_>, Error> {
        let request = self.pipeline.borrow().resolve_request(request)?;
        let dump = self.pipeline.borrow_mut().begin_dump(&request);
        Ok(Box::new(BridgeDump { bridge: self, dump }))
    }

    fn watch(&self, watched: bool) {
        self.pipeline.borrow_mut().watch(watched);
    }

    fn take_changes(&self, limit: usize) -> Vec<RuleChange> {
        self.pipeline.borrow_mut().take_some_changes(limit)
    }

    fn watched(&self, monitor: &MonitorRequest) -> Box<dyn WatchedRules + '_> {
        let dump = self.pipeline.borrow_mut().begin_watch(monitor);
        Box::new(BridgeDump { bridge: self, dump })
    }

    fn begin_page(&self) -> u32 {
        self.pipeline.borrow_mut().begin_page()
    }

    fn take_table_status(&self) -> Vec<TableStatus> {
        self.changed_vacancies()
    }

    fn table_stats(&self) -> Vec<TableStats> {
        let mut tables = self.pipeline.borrow().table_stats();
        for table in &mut tables {
            table.name = self.table_name(table.table).unwrap_or_default();
            table.config = self.miss_config(table.table);
        }
        tables
    }

    fn table_features(&self) -> Vec<TableFeatures> {
        self.describe_tables()
    }

    fn table_configs(&self) -> Vec<TableConfig> {
        (0..TABLES).map(|table| self.table_config(table)).collect()
    }

    fn ports(&self) -> Vec<PortDescription> {
        // Ordered by number with the local port last, as in Open vSwitch.
        self.ports.borrow().values().map(describe).collect()
    }

    fn port_stats(&self, wanted: PortNo) -> Result<Vec<PortStats>, Error> {
        let mut ports = self.ports.borrow_mut();
        if wanted == port::ANY {
            return Ok(ports.values_mut().map(|port| self.stats_of(port)).collect());
        }
        // As in Open vSwitch, the reply for a missing port is empty and not an error.
        let port = port::to_u16(wanted).and_then(|number| ports.get_mut(&number));
        Ok(port.map(|port| self.stats_of(port)).into_iter().collect())
    }

    fn queue_stats(&self, request: QueueRequest) -> Result<Vec<QueueStats>, Error> {
        self.stats_of_queues(request)
    }

    fn queues(&self, request: QueueRequest) -> Result<Vec<QueueDescription>, Error> {
        self.describe_queues(request)
    }

    fn group_stats(&self, group: u32) -> Result<Vec<GroupStats>, Error> {
        let now = self.switch().now();
        Ok(self.pipeline.borrow().group_stats(group, now))
    }

    fn groups(&self, group: u32) -> Result<Vec<GroupDescription>, Error> {
        Ok(self.pipeline.borrow().group_descriptions(group))
    }

    fn group_features(&self) -> GroupFeatures {
        pipeline::group_features()
    }

    fn meter_stats(&self, meter: u32) -> Result<Vec<MeterStats>, Error> {
        self.pipeline
            .borrow()
            .meter_stats(meter, self.switch().now())
    }

    fn meters(&self, meter: u32) -> Result<Vec<MeterConfig>, Error> {
        self.pipeline.borrow().meter_configs(meter)
    }

    fn meter_features(&self) -> MeterFeatures {
        pipeline::meter_features()
    }

    fn controllers_connected(&self, connected: bool) {
        self.note_controllers(connected);
        self.choose_miss();
    }
}
