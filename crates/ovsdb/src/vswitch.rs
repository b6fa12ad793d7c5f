//! The rows of the `Open_vSwitch` database that a switch reads, typed and with references resolved.
//!
//! [`Snapshot::of`] turns a replica into a tree: the root row with its bridges, their ports and
//! their interfaces. The tree owns its data, so it does not change when the replica does. Only the
//! schema's types are checked: the daemon decides what a value means and whether it makes sense.
//!
//! [`monitor`] returns the matching request. It leaves out the columns that the daemon only writes
//! (statistics, status), because every write would come back as a change.

use std::collections::BTreeMap;

use crate::client::MonitorTable;
use crate::replica::{Replica, Row};
use crate::value::Uuid;

/// The database's name.
pub const DATABASE: &str = "Open_vSwitch";

/// The lock whose holder configures the switch.
pub const LOCK: &str = "ovs_vswitchd";

/// A map column with string keys and values.
pub type Strings = BTreeMap<String, String>;

/// For each table: its name, the columns read, and the columns read whose changes are ignored.
const COLUMNS: &[(&str, &[&str], &[&str])] = &[
    (
        "Open_vSwitch",
        &[
            "bridges",
            "manager_options",
            "ssl",
            "other_config",
            "datapaths",
            "next_cfg",
        ],
        &[],
    ),
    (
        "Bridge",
        &[
            "name",
            "datapath_type",
            "stp_enable",
            "rstp_enable",
            "mcast_snooping_enable",
            "ports",
            "mirrors",
            "controller",
            "protocols",
            "fail_mode",
            "other_config",
            "flood_vlans",
            "flow_tables",
            "auto_attach",
            "netflow",
            "sflow",
            "ipfix",
        ],
        &[],
    ),
    (
        "Port",
        &[
            "name",
            "interfaces",
            "trunks",
            "cvlans",
            "tag",
            "vlan_mode",
            "qos",
            "mac",
            "bond_mode",
            "lacp",
            "fake_bridge",
            "protected",
            "other_config",
        ],
        &[],
    ),
    (
        "Interface",
        &[
            "name",
            "type",
            "options",
            "ingress_policing_rate",
            "ingress_policing_burst",
            "ingress_policing_kpkts_rate",
            "ingress_policing_kpkts_burst",
            "mac",
            "ofport_request",
            "mtu_request",
            "other_config",
            "external_ids",
            "bfd",
            "cfm_mpid",
            "lldp",
        ],
        // Read once, at the start, so that a port keeps its number after a restart; afterwards only
        // written.
        &["ofport"],
    ),
    (
        "Controller",
        &[
            "type",
            "target",
            "max_backoff",
            "inactivity_probe",
            "connection_mode",
            "local_ip",
            "local_netmask",
            "local_gateway",
            "enable_async_messages",
            "controller_queue_size",
            "controller_rate_limit",
            "controller_burst_limit",
            "other_config",
        ],
        &[],
    ),
    (
        "Mirror",
        &[
            "name",
            "select_all",
            "select_src_port",
            "select_dst_port",
            "select_vlan",
            "output_port",
            "output_vlan",
            "snaplen",
        ],
        &[],
    ),
    (
        "SSL",
        &["private_key", "certificate", "ca_cert", "bootstrap_ca_cert"],
        &[],
    ),
    (
        "Manager",
        &["target", "connection_mode", "other_config"],
        &[],
    ),
    ("QoS", &["type", "queues", "other_config"], &[]),
    ("Queue", &["dscp", "other_config"], &[]),
    ("Datapath", &["ct_zones"], &[]),
    ("CT_Zone", &["timeout_policy"], &[]),
    ("CT_Timeout_Policy", &["timeouts"], &[]),
    (
        "Flow_Table",
        &[
            "name",
            "flow_limit",
            "overflow_policy",
            "groups",
            "prefixes",
        ],
        &[],
    ),
];

/// Returns the columns to monitor for a [`Snapshot`].
pub fn monitor() -> Vec<MonitorTable> {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    COLUMNS
        .iter()
        .map(|(table, columns, quiet)| MonitorTable {
            table: (*table).to_owned(),
            columns: owned(columns),
            quiet: owned(quiet),
        })
        .collect()
}

/// The whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The root row. None in a database that has not been initialised (`ovs-vsctl init`).
    pub open_vswitch: Option<OpenVSwitch>,
}

/// The root row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenVSwitch {
    /// The row's UUID.
    pub uuid: Uuid,
    /// Incremented with every change whose completion a tool waits for.
    pub next_cfg: i64,
    /// Global options.
    pub other_config: Strings,
    /// The TLS files.
    pub ssl: Option<Ssl>,
    /// The bridges, sorted by name.
    pub bridges: Vec<Bridge>,
    /// The database's own remotes.
    pub managers: Vec<Manager>,
    /// The rows of `Datapath`, by the type of the datapath.
    pub datapaths: BTreeMap<String, Uuid>,
    /// Timeouts of tracked connections, in seconds by name, by the type of the datapath and zone.
    pub timeouts: BTreeMap<String, BTreeMap<i64, BTreeMap<String, i64>>>,
}

/// A bridge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// The row's UUID.
    pub uuid: Uuid,
    /// Unique; also the name of its local port.
    pub name: String,
    /// `netdev`, `system`, or empty, which means `system`.
    pub datapath_type: String,
    /// Whether spanning tree is enabled.
    pub stp_enable: bool,
    /// Whether rapid spanning tree is enabled.
    pub rstp_enable: bool,
    /// Whether multicast snooping is enabled.
    pub mcast_snooping_enable: bool,
    /// The ports, sorted by name.
    pub ports: Vec<Port>,
    /// The mirrors, sorted by name.
    pub mirrors: Vec<Mirror>,
    /// The controllers, sorted by target.
    pub controllers: Vec<Controller>,
    /// OpenFlow versions such as `OpenFlow13`; empty means the default ones.
    pub protocols: Vec<String>,
    /// `standalone` or `secure`; None means standalone.
    pub fail_mode: Option<String>,
    /// Further options.
    pub other_config: Strings,
    /// VLANs without MAC learning.
    pub flood_vlans: Vec<i64>,
    /// Settings of OpenFlow tables, by their number.
    pub flow_tables: BTreeMap<i64, FlowTable>,
    /// The columns among `netflow`, `sflow` and `ipfix` that have a value.
    pub exporters: Vec<&'static str>,
}

/// A port of a bridge: an interface, or several as a bond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The row's UUID.
    pub uuid: Uuid,
    /// Unique among all ports.
    pub name: String,
    /// The interfaces, sorted by name.
    pub interfaces: Vec<Interface>,
    /// VLANs that the port trunks; empty means all.
    pub trunks: Vec<i64>,
    /// Customer VLANs of a dot1q tunnel; empty means all.
    pub cvlans: Vec<i64>,
    /// The access or native VLAN.
    pub tag: Option<i64>,
    /// The meaning of `tag` and `trunks`.
    pub vlan_mode: Option<String>,
    /// The port's queues on egress.
    pub qos: Option<QoS>,
    /// The port's MAC address when the bridge's is chosen.
    pub mac: Option<String>,
    /// How a bond distributes flows.
    pub bond_mode: Option<String>,
    /// The LACP mode of a bond.
    pub lacp: Option<String>,
    /// Whether `ovs-vsctl` shows the port as a bridge.
    pub fake_bridge: bool,
    /// Whether the port is protected: protected ports do not reach each other.
    pub protected: bool,
    /// Further options.
    pub other_config: Strings,
}

/// A network device of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// The row's UUID.
    pub uuid: Uuid,
    /// Unique among all interfaces.
    pub name: String,
    /// The type of device; empty means `system`.
    pub kind: String,
    /// The device's options.
    pub options: Strings,
    /// Ingress rate limit in kbit/s; 0 for none.
    pub ingress_policing_rate: i64,
    /// Ingress burst size in kbit; 0 for the default.
    pub ingress_policing_burst: i64,
    /// Ingress rate limit in 1000 packets/s; 0 for none.
    pub ingress_policing_kpkts_rate: i64,
    /// Ingress burst size in 1000 packets; 0 for the default.
    pub ingress_policing_kpkts_burst: i64,
    /// The MAC address to set on the device.
    pub mac: Option<String>,
    /// The last OpenFlow port number; -1 if the device could not be opened.
    pub ofport: Option<i64>,
    /// The requested OpenFlow port number.
    pub ofport_request: Option<i64>,
    /// The requested MTU.
    pub mtu_request: Option<i64>,
    /// Further options.
    pub other_config: Strings,
    /// Annotations of other programs; `vm-id` and the keys that belong to it are read.
    pub external_ids: Strings,
    /// How connectivity is monitored (BFD).
    pub bfd: Strings,
    /// The columns among `cfm_mpid` and `lldp` that enable something.
    pub link_protocols: Vec<&'static str>,
}

/// An OpenFlow controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controller {
    /// The row's UUID.
    pub uuid: Uuid,
    /// `primary` or `service`; None leaves it to the target.
    pub kind: Option<String>,
    /// The address to connect to or to listen on, such as `tcp:127.0.0.1:6653`.
    pub target: String,
    /// Longest pause between attempts, in ms.
    pub max_backoff: Option<i64>,
    /// Silence in ms after which the controller is probed; 0 for never.
    pub inactivity_probe: Option<i64>,
    /// `in-band` or `out-of-band`.
    pub connection_mode: Option<String>,
    /// IP address of the local port.
    pub local_ip: Option<String>,
    /// Netmask of the local port.
    pub local_netmask: Option<String>,
    /// Gateway of the local port.
    pub local_gateway: Option<String>,
    /// Whether asynchronous messages are sent before the controller asks for them.
    pub enable_async_messages: Option<bool>,
    /// Maximum packets queued for a controller that reads slowly.
    pub controller_queue_size: Option<i64>,
    /// Maximum packets/s sent to the controller.
    pub controller_rate_limit: Option<i64>,
    /// Maximum packets sent to the controller in a burst.
    pub controller_burst_limit: Option<i64>,
    /// Further options.
    pub other_config: Strings,
}

/// The TLS files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ssl {
    /// The row's UUID.
    pub uuid: Uuid,
    /// File of the private key.
    pub private_key: String,
    /// File of the certificate.
    pub certificate: String,
    /// File of the authority's certificate.
    pub ca_cert: String,
    /// Whether to take the authority's certificate from the first peer.
    pub bootstrap_ca_cert: bool,
}

/// The packets to mirror, and where to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// The row's UUID.
    pub uuid: Uuid,
    /// A name for people.
    pub name: String,
    /// Whether every packet is selected.
    pub select_all: bool,
    /// Names of ports whose received packets are selected, sorted.
    pub select_src_port: Vec<String>,
    /// Names of ports whose sent packets are selected, sorted.
    pub select_dst_port: Vec<String>,
    /// VLANs to which the mirror is restricted; empty means all.
    pub select_vlan: Vec<i64>,
    /// Name of the port that gets the copies.
    pub output_port: Option<String>,
    /// VLAN that gets the copies.
    pub output_vlan: Option<i64>,
    /// Maximum bytes to copy of each packet.
    pub snaplen: Option<i64>,
}

/// A remote of the database server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manager {
    /// The row's UUID.
    pub uuid: Uuid,
    /// The remote, such as `ptcp:6640`.
    pub target: String,
    /// `in-band` or `out-of-band`.
    pub connection_mode: Option<String>,
    /// Further options.
    pub other_config: Strings,
}

/// The configuration of a port's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QoS {
    /// The row's UUID.
    pub uuid: Uuid,
    /// The queueing discipline, such as `linux-htb`.
    pub kind: String,
    /// The queues by their number.
    pub queues: BTreeMap<i64, Queue>,
    /// The discipline's options.
    pub other_config: Strings,
}

/// A queue of a [`QoS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// The row's UUID.
    pub uuid: Uuid,
    /// The DSCP that packets of the queue get.
    pub dscp: Option<i64>,
    /// The queue's options.
    pub other_config: Strings,
}

/// Settings of an OpenFlow table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTable {
    /// The row's UUID.
    pub uuid: Uuid,
    /// A name for people.
    pub name: Option<String>,
    /// Maximum number of rules in the table.
    pub flow_limit: Option<i64>,
    /// `refuse` or `evict`.
    pub overflow_policy: Option<String>,
    /// Fields by which rules to evict are grouped.
    pub groups: Vec<String>,
    /// Fields for which prefixes are tracked.
    pub prefixes: Vec<String>,
}

impl Snapshot {
    /// Reads a replica that has the columns of [`monitor`].
    pub fn of(replica: &Replica) -> Snapshot {
        let root = replica.rows("Open_vSwitch").next();
        Snapshot {
            open_vswitch: root.map(|(uuid, row)| open_vswitch(replica, uuid, row)),
        }
    }
}

/// Reads the rows to which `column` refers. References to missing rows are skipped.
fn linked<T>(
    replica: &Replica,
    row: &Row,
    column: &str,
    table: &str,
    read: impl Fn(&Replica, Uuid, &Row) -> T,
) -> Vec<T> {
    row.set_uuid(column)
        .filter_map(|uuid| replica.row(table, uuid).map(|row| read(replica, uuid, row)))
        .collect()
}

fn linked_names(replica: &Replica, row: &Row, column: &str) -> Vec<String> {
    let mut names = linked(replica, row, column, "Port", |_, _, port| {
        port.string("name").to_owned()
    });
    names.sort_unstable();
    names
}

fn linked_map<T>(
    replica: &Replica,
    row: &Row,
    column: &str,
    table: &str,
    read: impl Fn(Uuid, &Row) -> T,
) -> BTreeMap<i64, T> {
    let entries = row.map_int_uuid(column).into_iter();
    entries
        .filter_map(|(key, uuid)| Some((key, read(uuid, replica.row(table, uuid)?))))
        .collect()
}

fn text(row: &Row, column: &str) -> String {
    row.string(column).to_owned()
}

fn optional_text(row: &Row, column: &str) -> Option<String> {
    row.optional_string(column).map(str::to_owned)
}

fn open_vswitch(replica: &Replica, uuid: Uuid, row: &Row) -> OpenVSwitch {
    let mut bridges = linked(replica, row, "bridges", "Bridge", bridge);
    bridges.sort_by(|a, b| a.name.cmp(&b.name));
    OpenVSwitch {
        uuid,
        next_cfg: row.int("next_cfg"),
        other_config: row.map("other_config"),
        ssl: linked(replica, row, "ssl", "SSL", ssl).pop(),
        bridges,
        managers: linked(replica, row, "manager_options", "Manager", manager),
        datapaths: datapaths(replica, row),
        timeouts: timeouts(replica, row),
    }
}

/// Reads which rows of `Datapath` exist.
fn datapaths(replica: &Replica, row: &Row) -> BTreeMap<String, Uuid> {
    let datapaths = row.map_uuid("datapaths").into_iter();
    datapaths
        .filter(|(_, uuid)| replica.row("Datapath", *uuid).is_some())
        .collect()
}

/// Reads the timeout policies of zones, by datapath. Zones without one are left out.
fn timeouts(
    replica: &Replica,
    row: &Row,
) -> BTreeMap<String, BTreeMap<i64, BTreeMap<String, i64>>> {
    let policy = |zone: &Row| {
        let policy = zone.optional_uuid("timeout_policy")?;
        Some(
            replica
                .row("CT_Timeout_Policy", policy)?
                .map_int("timeouts"),
        )
    };
    let zones = |datapath: Uuid| {
        let zones = replica.row("Datapath", datapath)?.map_int_uuid("ct_zones");
        let zones = zones.into_iter();
        let known =
            zones.filter_map(|(zone, uuid)| Some((zone, policy(replica.row("CT_Zone", uuid)?)?)));
        Some(known.collect())
    };
    let datapaths = row.map_uuid("datapaths").into_iter();
    datapaths
        .filter_map(|(kind, uuid)| Some((kind, zones(uuid)?)))
        .collect()
}

fn bridge(replica: &Replica, uuid: Uuid, row: &Row) -> Bridge {
    let mut ports = linked(replica, row, "ports", "Port", port);
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    let mut mirrors = linked(replica, row, "mirrors", "Mirror", mirror);
    mirrors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut controllers = linked(replica, row, "controller", "Controller", controller);
    controllers.sort_by(|a, b| a.target.cmp(&b.target));
    Bridge {
        uuid,
        name: text(row, "name"),
        datapath_type: text(row, "datapath_type"),
        stp_enable: row.bool("stp_enable"),
        rstp_enable: row.bool("rstp_enable"),
        mcast_snooping_enable: row.bool("mcast_snooping_enable"),
        ports,
        mirrors,
        controllers,
        protocols: row.set_string("protocols").map(str::to_owned).collect(),
        fail_mode: optional_text(row, "fail_mode"),
        other_config: row.map("other_config"),
        flood_vlans: row.set_int("flood_vlans").collect(),
        flow_tables: linked_map(replica, row, "flow_tables", "Flow_Table", flow_table),
        exporters: ["netflow", "sflow", "ipfix", "auto_attach"]
            .into_iter()
            .filter(|column| row.optional_uuid(column).is_some())
            .collect(),
    }
}

fn port(replica: &Replica, uuid: Uuid, row: &Row) -> Port {
    let mut interfaces = linked(replica, row, "interfaces", "Interface", interface);
    interfaces.sort_by(|a, b| a.name.cmp(&b.name));
    Port {
        uuid,
        name: text(row, "name"),
        interfaces,
        trunks: row.set_int("trunks").collect(),
        cvlans: row.set_int("cvlans").collect(),
        tag: row.optional_int("tag"),
        vlan_mode: optional_text(row, "vlan_mode"),
        qos: linked(replica, row, "qos", "QoS", qos).pop(),
        mac: optional_text(row, "mac"),
        bond_mode: optional_text(row, "bond_mode"),
        lacp: optional_text(row, "lacp"),
        fake_bridge: row.bool("fake_bridge"),
        protected: row.bool("protected"),
        other_config: row.map("other_config"),
    }
}

fn interface(_: &Replica, uuid: Uuid, row: &Row) -> Interface {
    Interface {
        uuid,
        name: text(row, "name"),
        kind: text(row, "type"),
        options: row.map("options"),
        ingress_policing_rate: row.int("ingress_policing_rate"),
        ingress_policing_burst: row.int("ingress_policing_burst"),
        ingress_policing_kpkts_rate: row.int("ingress_policing_kpkts_rate"),
        ingress_policing_kpkts_burst: row.int("ingress_policing_kpkts_burst"),
        mac: optional_text(row, "mac"),
        ofport: row.optional_int("ofport"),
        ofport_request: row.optional_int("ofport_request"),
        mtu_request: row.optional_int("mtu_request"),
        other_config: row.map("other_config"),
        external_ids: row.map("external_ids"),
        bfd: row.map("bfd"),
        link_protocols: link_protocols(row),
    }
}

fn link_protocols(row: &Row) -> Vec<&'static str> {
    let enabled = |column: &str| {
        row.map(column)
            .get("enable")
            .is_some_and(|value| value == "true")
    };
    let mut columns: Vec<&'static str> = ["lldp"]
        .into_iter()
        .filter(|column| enabled(column))
        .collect();
    columns.extend(row.optional_int("cfm_mpid").map(|_| "cfm_mpid"));
    columns
}

fn controller(_: &Replica, uuid: Uuid, row: &Row) -> Controller {
    Controller {
        uuid,
        kind: optional_text(row, "type"),
        target: text(row, "target"),
        max_backoff: row.optional_int("max_backoff"),
        inactivity_probe: row.optional_int("inactivity_probe"),
        connection_mode: optional_text(row, "connection_mode"),
        local_ip: optional_text(row, "local_ip"),
        local_netmask: optional_text(row, "local_netmask"),
        local_gateway: optional_text(row, "local_gateway"),
        enable_async_messages: row.optional_bool("enable_async_messages"),
        controller_queue_size: row.optional_int("controller_queue_size"),
        controller_rate_limit: row.optional_int("controller_rate_limit"),
        controller_burst_limit: row.optional_int("controller_burst_limit"),
        other_config: row.map("other_config"),
    }
}

fn mirror(replica: &Replica, uuid: Uuid, row: &Row) -> Mirror {
    Mirror {
        uuid,
        name: text(row, "name"),
        select_all: row.bool("select_all"),
        select_src_port: linked_names(replica, row, "select_src_port"),
        select_dst_port: linked_names(replica, row, "select_dst_port"),
        select_vlan: row.set_int("select_vlan").collect(),
        output_port: linked_names(replica, row, "output_port").pop(),
        output_vlan: row.optional_int("output_vlan"),
        snaplen: row.optional_int("snaplen"),
    }
}

fn ssl(_: &Replica, uuid: Uuid, row: &Row) -> Ssl {
    Ssl {
        uuid,
        private_key: text(row, "private_key"),
        certificate: text(row, "certificate"),
        ca_cert: text(row, "ca_cert"),
        bootstrap_ca_cert: row.bool("bootstrap_ca_cert"),
    }
}

fn manager(_: &Replica, uuid: Uuid, row: &Row) -> Manager {
    Manager {
        uuid,
        target: text(row, "target"),
        connection_mode: optional_text(row, "connection_mode"),
        other_config: row.map("other_config"),
    }
}

fn qos(replica: &Replica, uuid: Uuid, row: &Row) -> QoS {
    QoS {
        uuid,
        kind: text(row, "type"),
        queues: linked_map(replica, row, "queues", "Queue", queue),
        other_config: row.map("other_config"),
    }
}

fn queue(uuid: Uuid, row: &Row) -> Queue {
    Queue {
        uuid,
        dscp: row.optional_int("dscp"),
        other_config: row.map("other_config"),
    }
}

fn flow_table(uuid: Uuid, row: &Row) -> FlowTable {
    FlowTable {
        uuid,
        name: optional_text(row, "name"),
        flow_limit: row.optional_int("flow_limit"),
        overflow_policy: optional_text(row, "overflow_policy"),
        groups: row.set_string("groups").map(str::to_owned).collect(),
        prefixes: row.set_string("prefixes").map(str::to_owned).collect(),
    }
}
