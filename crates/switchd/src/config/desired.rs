//! The desired state of the switch, according to the database.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use openflow::steering::Layout;
use ovsdb::{Uuid, vswitch};

use super::address::{Mac, parse_datapath_id};
use super::controller::{self, BridgeDefaults, Controller};
use super::global::{self, Global};
use super::mirror::{self, Mirror};
use super::plan::Applied;
use super::port::{self, Port, Surroundings};
use super::problem::{Options, Problems};
use super::refusal::{BridgeError, InterfaceError, Lack};
use super::steered::{self, Steered};
use super::timeouts::{self, Timeouts};
use super::tunnel::{Together, Turn};
use super::vlan::VlanSet;
use super::vm;

/// What this daemon can do; what it cannot do is refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// The interface types that can be opened.
    pub interface_types: BTreeSet<String>,
    /// The datapath types that bridges can have; an empty type means `system`.
    pub datapath_types: BTreeSet<String>,
    /// The CPUs that workers can run on; empty if unknown.
    pub cpus: Vec<usize>,
    /// The CPUs of the machine, on which virtual machines can run; empty if unknown.
    pub machine_cpus: Vec<usize>,
    /// The run directory, where sockets may be.
    pub rundir: PathBuf,
}

/// What a bridge does while no controller is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailMode {
    /// It becomes a learning switch.
    #[default]
    Standalone,
    /// It keeps forwarding by the rules that it has.
    Secure,
}

/// Settings of an OpenFlow table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSettings {
    /// A name for people.
    pub name: Option<String>,
    /// Most rules in the table.
    pub flow_limit: Option<u32>,
    /// Whether a rule is evicted to make room for a new one; otherwise the new one is refused.
    pub evict: bool,
    /// Fields whose values group rules for eviction.
    pub groups: Vec<String>,
}

/// A bridge's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The UUID of its row.
    pub uuid: Uuid,
    /// `netdev`, `system`, `dummy`; never empty.
    pub datapath_type: String,
    /// The OpenFlow datapath id given by the user.
    pub datapath_id: Option<u64>,
    /// The MAC address given by the user.
    pub hwaddr: Option<Mac>,
    /// The MAC address that it has when it can take none from a port.
    pub default_mac: Mac,
    /// What it does without a controller.
    pub fail_mode: FailMode,
    /// The OpenFlow versions allowed: bit N stands for the version that the wire calls N (1 is
    /// 1.0, 6 is 1.5).
    pub protocols: u32,
    /// How long an idle MAC address stays learned, s.
    pub mac_ageing: u16,
    /// Most MAC addresses that it learns.
    pub mac_table_size: u32,
    /// VLANs in which nothing is learned and packets are flooded.
    pub flood_vlans: VlanSet,
    /// Whether frames to the reserved group addresses are forwarded.
    pub forward_bpdu: bool,
    /// `sluice-fcf-layout`: where the flow control field is in frames of the underlay.
    pub fcf: Option<Layout>,
    /// Whether in-band control is off.
    pub disable_in_band: bool,
    /// The queue by which in-band control's packets are sent.
    pub in_band_queue: Option<u32>,
    /// Targets of the database's managers that in-band control is for.
    pub managers: Vec<String>,
    /// Most packets queued for a management connection.
    pub controller_queue_size: u16,
    /// `dp-desc`: a description for OpenFlow controllers, at most 255 bytes.
    pub description: Option<String>,
    /// `dp-sn`: a serial number for OpenFlow controllers, at most 31 bytes.
    pub serial_number: Option<String>,
    /// Settings of tables by number.
    pub tables: BTreeMap<u8, TableSettings>,
}

/// A bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Its own settings.
    pub settings: Settings,
    /// Its ports by their interfaces' names. The local port is always there.
    pub ports: BTreeMap<String, Port>,
    /// Its mirrors.
    pub mirrors: Vec<Mirror>,
    /// Its controllers.
    pub controllers: Vec<Controller>,
}

/// The desired state of the switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// The UUID of the root row; none in a database that is not initialised.
    pub root: Option<Uuid>,
    /// The value for `cur_cfg` once all of this is applied.
    pub next_cfg: i64,
    /// Options of the switch as a whole.
    pub global: Global,
    /// The paths of the TLS files.
    pub ssl: Option<vswitch::Ssl>,
    /// Kernel interfaces to steer.
    pub steered: Steered,
    /// The rows of `Datapath` that get the datapaths' capabilities, by the datapaths' type.
    pub datapaths: BTreeMap<String, Uuid>,
    /// Timeouts of tracked connections, by zone.
    pub timeouts: Timeouts,
    /// The bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// The OpenFlow port numbers that interfaces had before, by the interfaces' names.
    pub earlier_numbers: BTreeMap<String, u16>,
    /// Interfaces that cannot exist; their `ofport` is -1.
    pub refused: BTreeMap<Uuid, Refused>,
    /// Problems of rows that are in use all the same, for their `status` columns.
    pub wrong: Wrong,
}

/// An interface that cannot exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The bridge that wants it.
    pub bridge: String,
    /// The interface's name.
    pub name: String,
    /// The interface's type.
    pub kind: String,
    /// What is wrong.
    pub error: InterfaceError,
}

/// Problems of rows, by the rows' names, for the database's `status` columns, where people look
/// first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    bridges: BTreeMap<String, String>,
    ports: BTreeMap<String, String>,
    interfaces: BTreeMap<String, String>,
}

impl Wrong {
    fn new(problems: &Problems) -> Wrong {
        let of = |table| {
            let texts = problems.by_row(table).into_iter();
            texts.map(|(row, text)| (row.to_owned(), text)).collect()
        };
        Wrong {
            bridges: of("Bridge"),
            ports: of("Port"),
            interfaces: of("Interface"),
        }
    }

    /// Returns the entry for a bridge's `status`; none without a problem.
    pub fn bridge(&self, name: &str) -> Option<(&'static str, String)> {
        said(&self.bridges, name)
    }

    /// Returns the entry for a port's `status`; none without a problem.
    pub fn port(&self, name: &str) -> Option<(&'static str, String)> {
        said(&self.ports, name)
    }

    /// Returns the entry for an interface's `status`; none without a problem.
    pub fn interface(&self, name: &str) -> Option<(&'static str, String)> {
        said(&self.interfaces, name)
    }
}

/// Returns the `status` key for problems, with a row's text.
fn said(texts: &BTreeMap<String, String>, name: &str) -> Option<(&'static str, String)> {
    texts
        .get(name)
        .map(|text| ("sluice_problems", text.clone()))
}

/// Every OpenFlow version from 1.0 to 1.5.
pub const ALL_PROTOCOLS: u32 = 0b111_1110;

impl Desired {
    /// Reads a snapshot. Equal snapshots and abilities give equal results.
    pub fn from_snapshot(
        snapshot: &vswitch::Snapshot,
        abilities: &Abilities,
    ) -> (Desired, Problems) {
        let mut problems = Problems::default();
        let Some(root) = &snapshot.open_vswitch else {
            return (Desired::default(), problems);
        };
        let mut desired = Desired {
            root: Some(root.uuid),
            next_cfg: root.next_cfg,
            global: global::read(&root.other_config, &abilities.cpus, &mut problems),
            ssl: root.ssl.clone(),
            datapaths: root.datapaths.clone(),
            timeouts: timeouts::read(root, &mut problems),
            steered: steered::read(&root.other_config, &abilities.machine_cpus, &mut problems),
            ..Desired::default()
        };
        let mut reader = Reader {
            abilities,
            desired: &mut desired,
            problems: &mut problems,
            owners: BTreeMap::new(),
            managers: in_band_managers(&root.managers),
        };
        reader.bridges(&root.bridges);
        let bridges = desired.bridges.values_mut();
        let ports = bridges.flat_map(|bridge| bridge.ports.values_mut());
        vm::check_cores(ports, &abilities.machine_cpus, &mut problems);
        desired.wrong = Wrong::new(&problems);
        (desired, problems)
    }

    /// Refuses tunnels that cannot coexist, and all but one of several virtual machines with one
    /// number. Ports that are already in use take precedence, then the first ones. `problems` are
    /// those found so far; new ones are added.
    pub fn refuse_alike(&mut self, applied: &Applied, problems: &mut Problems) {
        self.refuse_alike_tunnels(applied, problems);
        let mut ports = Vec::new();
        for (name, bridge) in &mut self.bridges {
            let before = applied.bridges.get(name);
            for (interface, port) in &mut bridge.ports {
                let before = before.and_then(|before| before.ports.get(interface));
                let id = |vm: Option<vm::Vm>| vm.map(|vm| vm.id);
                let had = before.is_some_and(|before| id(before.port.vm) == id(port.vm));
                ports.push((had, port));
            }
        }
        if vm::settle(ports, problems) {
            self.wrong = Wrong::new(problems);
        }
    }

    fn refuse_alike_tunnels(&mut self, applied: &Applied, problems: &mut Problems) {
        let mut tunnels: Vec<_> = self
            .ports()
            .filter_map(|(bridge, port)| {
                let spec = port.tunnel.as_ref()?;
                let before = (applied.bridges.get(bridge))
                    .and_then(|before| before.ports.get(&port.interface_name))
                    .and_then(|before| before.port.tunnel.as_ref());
                let turn = before.map_or(Turn::New, |before| Turn::of(before, spec));
                Some((turn, bridge, port.interface_name.as_str(), spec))
            })
            .collect();
        tunnels.sort_by_key(|(turn, ..)| *turn);
        let mut together = Together::default();
        let mut refused = Vec::new();
        for (_, bridge, name, spec) in tunnels {
            if let Err(error) = together.add(name, spec) {
                refused.push((bridge.to_owned(), name.to_owned(), error));
            }
        }
        for (bridge, name, error) in refused {
            problems.add("Interface", &name, "error", error.to_string());
            let ports = self
                .bridges
                .get_mut(&bridge)
                .map(|bridge| &mut bridge.ports);
            let port = ports.and_then(|ports| ports.remove(&name));
            if let Some((uuid, kind)) = port.and_then(|port| Some((port.interface?, port.kind))) {
                let refused = Refused {
                    bridge,
                    name,
                    kind,
                    error: error.into(),
                };
                self.refused.insert(uuid, refused);
            }
        }
    }

    /// Lets ports whose new QoS or policing is unusable keep what they have.
    pub fn keep(&mut self, applied: &Applied) {
        for (name, bridge) in &mut self.bridges {
            let before = applied.bridges.get(name);
            for (interface, port) in &mut bridge.ports {
                let before = before.and_then(|before| before.ports.get(interface));
                port.keep(before.map(|before| &before.port));
            }
        }
    }

    /// Returns all ports of all bridges, with their bridges' names.
    pub fn ports(&self) -> impl Iterator<Item = (&str, &Port)> {
        self.bridges
            .iter()
            .flat_map(|(name, bridge)| bridge.ports.values().map(move |port| (name.as_str(), port)))
    }
}

struct Reader<'a> {
    abilities: &'a Abilities,
    desired: &'a mut Desired,
    problems: &'a mut Problems,
    /// The bridge that owns each interface name.
    owners: BTreeMap<String, String>,
    /// Targets of managers that are reached in-band.
    managers: Vec<String>,
}

impl Reader<'_> {
    fn bridges(&mut self, rows: &[vswitch::Bridge]) {
        let mut accepted = Vec::new();
        for row in rows {
            match self.check_bridge(row) {
                // A bridge's name belongs to its local port, even if another port claims it.
                Ok(()) => {
                    self.owners.insert(row.name.clone(), row.name.clone());
                    accepted.push(row);
                }
                Err(error) => {
                    let text = error.to_string();
                    self.problems.add("Bridge", &row.name, error.column(), text);
                    for interface in row.ports.iter().flat_map(|port| &port.interfaces) {
                        self.refuse(&row.name, interface, error.clone().into());
                    }
                }
            }
        }
        for row in accepted {
            let bridge = self.bridge(row);
            self.desired.bridges.insert(row.name.clone(), bridge);
        }
        // Two bridges may refer to one row: if one of them has the port, it has not failed.
        let placed: BTreeSet<Uuid> = self
            .desired
            .ports()
            .filter_map(|(_, port)| port.interface)
            .collect();
        self.desired
            .refused
            .retain(|uuid, _| !placed.contains(uuid));
    }

    fn check_bridge(&self, row: &vswitch::Bridge) -> Result<(), BridgeError> {
        let name = row.name.clone();
        if name.is_empty() || name.contains(['/', '\\']) {
            return Err(BridgeError::Name(name));
        }
        if self.owners.contains_key(&name) {
            return Err(BridgeError::Twice(name));
        }
        let kind = datapath_type(row);
        if !self.abilities.datapath_types.contains(kind) {
            let kind = kind.to_owned();
            return Err(BridgeError::DatapathType { name, kind });
        }
        Ok(())
    }

    fn bridge(&mut self, row: &vswitch::Bridge) -> Bridge {
        let settings = self.settings(row);
        let surroundings = Surroundings {
            bridge: &row.name,
            datapath_type: &settings.datapath_type,
        };
        let mut ports = BTreeMap::new();
        let mut interface_names = BTreeMap::new();
        for port_row in &row.ports {
            if let Some(port) = self.port(port_row, surroundings) {
                interface_names.insert(port.name.clone(), port.interface_name.clone());
                ports.insert(port.interface_name.clone(), port);
            }
        }
        let defaults = BridgeDefaults {
            bridge: &row.name,
            disable_in_band: settings.disable_in_band,
            queue_size: settings.controller_queue_size,
            rundir: &self.abilities.rundir,
        };
        let known = self.problems.0.len();
        let controllers = controller::read(&row.controllers, defaults, self.problems);
        self.problems.tell_bridge(known, &row.name);
        if !ports.contains_key(&row.name) {
            if !controllers.is_empty() {
                let message = format!("no port named {}, synthesizing one", row.name);
                self.problems.add("Bridge", &row.name, "ports", message);
            }
            interface_names
                .entry(row.name.clone())
                .or_insert_with(|| row.name.clone());
            ports.insert(row.name.clone(), port::synthetic(surroundings));
        }
        let known = self.problems.0.len();
        let mirrors = mirror::read(&row.mirrors, &row.name, &interface_names, self.problems);
        self.problems.tell_bridge(known, &row.name);
        Bridge {
            settings,
            ports,
            mirrors,
            controllers,
        }
    }

    fn settings(&mut self, row: &vswitch::Bridge) -> Settings {
        for (column, on) in [
            ("stp_enable", row.stp_enable),
            ("rstp_enable", row.rstp_enable),
            ("mcast_snooping_enable", row.mcast_snooping_enable),
        ] {
            if on {
                self.problems.add(
                    "Bridge",
                    &row.name,
                    column,
                    "not supported yet, ignoring it",
                );
            }
        }
        for column in &row.exporters {
            self.problems.add(
                "Bridge",
                &row.name,
                column,
                "not supported yet, ignoring it",
            );
        }
        let tables = self.tables(row);
        let mut options = Options::new(
            "Bridge",
            &row.name,
            "other_config",
            &row.other_config,
            self.problems,
        );
        let families = ["stp-", "rstp-", "mcast-snooping-"];
        options.not_supported(&families, &SPANNING_TREE_KEYS);
        options.misspelt(&families, &[&KEYS, &SPANNING_TREE_KEYS]);
        let disable_in_band = options.boolean("disable-in-band", false);
        Settings {
            uuid: row.uuid,
            datapath_type: datapath_type(row).to_owned(),
            datapath_id: given_datapath_id(&mut options),
            hwaddr: hwaddr(&mut options),
            default_mac: Mac::from_uuid(row.uuid),
            fail_mode: match row.fail_mode.as_deref() {
                Some("secure") => FailMode::Secure,
                _ => FailMode::Standalone,
            },
            protocols: protocols(&row.protocols),
            mac_ageing: mac_ageing(&mut options),
            mac_table_size: mac_table_size(&mut options),
            flood_vlans: VlanSet::from_column(&row.flood_vlans),
            forward_bpdu: options.boolean("forward-bpdu", false),
            fcf: options.choice(
                "sluice-fcf-layout",
                &Layout::ALL.map(|(name, layout)| (name, Some(layout))),
                None,
            ),
            disable_in_band,
            in_band_queue: (options.integer("in-band-queue", -1, -1..=i64::from(i32::MAX)))
                .try_into()
                .ok(),
            managers: if disable_in_band {
                Vec::new()
            } else {
                self.managers.clone()
            },
            controller_queue_size: options.integer("controller-queue-size", 100, 1..=512) as u16,
            description: limited_text(&mut options, "dp-desc", 255),
            serial_number: limited_text(&mut options, "dp-sn", 31),
            tables,
        }
    }

    fn tables(&mut self, row: &vswitch::Bridge) -> BTreeMap<u8, TableSettings> {
        let mut tables = BTreeMap::new();
        for (number, table) in &row.flow_tables {
            // Table 254 is reserved for the switch.
            let Some(number) = u8::try_from(*number).ok().filter(|number| *number < 254) else {
                let message = format!(
                    "ignoring configuration for flow table {number} not supported by this datapath"
                );
                self.problems
                    .add("Bridge", &row.name, "flow_tables", message);
                continue;
            };
            let settings = TableSettings {
                name: table.name.clone(),
                flow_limit: table
                    .flow_limit
                    .map(|limit| limit.clamp(0, i64::from(u32::MAX)) as u32),
                evict: table.overflow_policy.as_deref() == Some("evict"),
                groups: table.groups.clone(),
            };
            tables.insert(number, settings);
        }
        tables
    }

    fn port(&mut self, row: &vswitch::Port, surroundings: Surroundings<'_>) -> Option<Port> {
        let [interface] = row.interfaces.as_slice() else {
            let error = InterfaceError::Bond(row.name.clone());
            let message = match row.interfaces.len() {
                0 => format!("port {} has no interfaces", row.name),
                _ => error.to_string(),
            };
            self.problems.add("Port", &row.name, "interfaces", message);
            row.interfaces
                .iter()
                .for_each(|interface| self.refuse(surroundings.bridge, interface, error.clone()));
            return None;
        };
        let port = self
            .check_interface(interface, surroundings)
            .and_then(|()| port::read(row, interface, surroundings, self.problems));
        match port {
            Ok(port) => {
                self.owners
                    .insert(interface.name.clone(), surroundings.bridge.to_owned());
                if let Some(number) = interface.ofport.and_then(port::usable_number) {
                    self.desired
                        .earlier_numbers
                        .insert(interface.name.clone(), number);
                }
                Some(port)
            }
            Err(error) => {
                self.problems
                    .add("Interface", &interface.name, "error", error.to_string());
                self.refuse(surroundings.bridge, interface, error);
                None
            }
        }
    }

    fn check_interface(
        &self,
        row: &vswitch::Interface,
        surroundings: Surroundings<'_>,
    ) -> Result<(), InterfaceError> {
        let (name, bridge) = (row.name.as_str(), surroundings.bridge);
        if is_reserved(name) {
            return Err(InterfaceError::Reserved(name.to_owned()));
        }
        let owner = self
            .owners
            .get(name)
            .filter(|owner| *owner != bridge || name != bridge);
        if let Some(owner) = owner {
            return Err(InterfaceError::Taken {
                name: name.to_owned(),
                bridge: bridge.to_owned(),
                owner: owner.clone(),
            });
        }
        let kind = port::kind(row, bridge);
        let known = &self.abilities.interface_types;
        if !known.contains(kind) {
            return Err(InterfaceError::Type {
                name: name.to_owned(),
                kind: kind.to_owned(),
                lack: lack(kind),
                known: known.clone(),
            });
        }
        Ok(())
    }

    fn refuse(&mut self, bridge: &str, interface: &vswitch::Interface, error: InterfaceError) {
        let refused = Refused {
            bridge: bridge.to_owned(),
            name: interface.name.clone(),
            kind: interface.kind.clone(),
            error,
        };
        self.desired.refused.insert(interface.uuid, refused);
    }
}

/// Returns the targets of managers that are not declared `out-of-band`, each once.
fn in_band_managers(rows: &[vswitch::Manager]) -> Vec<String> {
    let in_band = |row: &&vswitch::Manager| row.connection_mode.as_deref() != Some("out-of-band");
    let targets: BTreeSet<&str> = (rows.iter())
        .filter(in_band)
        .map(|row| row.target.as_str())
        .collect();
    targets.into_iter().map(str::to_owned).collect()
}

fn datapath_type(row: &vswitch::Bridge) -> &str {
    match row.datapath_type.as_str() {
        "" => "system",
        kind => kind,
    }
}

/// Other keys of bridges.
const KEYS: [&str; 11] = [
    "controller-queue-size",
    "datapath-id",
    "disable-in-band",
    "dp-desc",
    "dp-sn",
    "forward-bpdu",
    "hwaddr",
    "in-band-queue",
    "mac-aging-time",
    "mac-table-size",
    "sluice-fcf-layout",
];

/// Bridge keys of missing features (spanning trees): whoever sets them relies on the feature.
const SPANNING_TREE_KEYS: [&str; 15] = [
    "stp-system-id",
    "stp-priority",
    "stp-hello-time",
    "stp-max-age",
    "stp-forward-delay",
    "rstp-address",
    "rstp-priority",
    "rstp-ageing-time",
    "rstp-force-protocol-version",
    "rstp-max-age",
    "rstp-forward-delay",
    "rstp-transmit-hold-count",
    "mcast-snooping-aging-time",
    "mcast-snooping-table-size",
    "mcast-snooping-disable-flood-unregistered",
];

/// Interface types of Open vSwitch that this switch lacks.
const OTHERS_TYPES: [&str; 10] = [
    "afxdp-nonpmd",
    "bareudp",
    "dpdkr",
    "dummy",
    "dummy-internal",
    "dummy-pmd",
    "erspan",
    "ip6erspan",
    "lisp",
    "srv6",
];

/// Returns why an interface type is missing.
fn lack(kind: &str) -> Lack {
    match OTHERS_TYPES.contains(&kind) {
        true if kind.starts_with("dummy") => Lack::Dummy,
        true => Lack::NotYet,
        false => Lack::Unknown,
    }
}

/// Returns whether a name belongs to a device that Open vSwitch itself creates.
fn is_reserved(name: &str) -> bool {
    const TUNNELS: [&str; 10] = [
        "vxlan_sys",
        "genev_sys",
        "gre_sys",
        "ip6gre_sys",
        "erspan_sys",
        "ip6erspan_sys",
        "lisp_sys",
        "stt_sys",
        "gtpu_sys",
        "bareudp_sys",
    ];
    TUNNELS.iter().any(|prefix| name.starts_with(prefix))
        || matches!(name, "ovs-system" | "ovs-netdev" | "ovs-dummy")
}

fn given_datapath_id(options: &mut Options<'_>) -> Option<u64> {
    let text = options.text("datapath-id")?;
    let id = parse_datapath_id(text);
    if id.is_none() {
        let wanted = "16 hexadecimal digits or 0x and up to 16, not all zero";
        options.complain(
            "datapath-id",
            format!("\"{text}\" is not {wanted}; using the bridge's MAC address"),
        );
    }
    id
}

/// Reads how long addresses are kept, s. As in Open vSwitch, what is not above 0 is the default.
fn mac_ageing(options: &mut Options<'_>) -> u16 {
    or_default(options, "mac-aging-time", 300, 15..=3600) as u16
}

/// Reads how many addresses are learned at most. As in Open vSwitch, 0 is the default.
fn mac_table_size(options: &mut Options<'_>) -> u32 {
    or_default(options, "mac-table-size", 8192, 10..=1_000_000) as u32
}

/// Reads an integer, forced into `range`; `default` where it is not above 0 or exceeds 32 bits.
fn or_default(
    options: &mut Options<'_>,
    key: &str,
    default: i64,
    range: RangeInclusive<i64>,
) -> i64 {
    let given = options.integer(key, default, i64::MIN..=i64::MAX);
    let used = match given {
        1..=0x7fff_ffff => given.clamp(*range.start(), *range.end()),
        _ => default,
    };
    if given != used && given != 0 {
        let (low, high) = (range.start(), range.end());
        let message = format!("{given} is not in range {low} to {high}, using {used}");
        options.complain(key, message);
    }
    used
}

fn hwaddr(options: &mut Options<'_>) -> Option<Mac> {
    let text = options.text("hwaddr")?;
    match text.parse::<Mac>() {
        Err(_) => options.complain(
            "hwaddr",
            format!("\"{text}\" is not an Ethernet address, ignoring it"),
        ),
        Ok(mac) if mac.is_multicast() => {
            options.refuse(
                "hwaddr",
                format!("cannot set MAC address to multicast address {mac}"),
            );
        }
        Ok(mac) if mac.is_zero() => options.refuse("hwaddr", "cannot set MAC address to zero"),
        Ok(mac) => return Some(mac),
    }
    None
}

fn limited_text(options: &mut Options<'_>, key: &str, most: usize) -> Option<String> {
    let text = options.text(key)?;
    if text.len() <= most {
        return Some(text.to_owned());
    }
    options.complain(
        key,
        format!("longer than {most} bytes, using the beginning"),
    );
    let end = (0..=most)
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    Some(text[..end].to_owned())
}

fn protocols(names: &[String]) -> u32 {
    const NAMES: [&str; 6] = [
        "OpenFlow10",
        "OpenFlow11",
        "OpenFlow12",
        "OpenFlow13",
        "OpenFlow14",
        "OpenFlow15",
    ];
    let known = NAMES
        .iter()
        .enumerate()
        .filter(|(_, name)| names.iter().any(|n| n == *name));
    match known.fold(0, |bits, (at, _)| bits | 2 << at) {
        0 => ALL_PROTOCOLS,
        bits => bits,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn abilities() -> Abilities {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Abilities {
            interface_types: owned(&[
                "system", "internal", "tap", "patch", "dpdk", "dummy", "geneve", "gre", "vxlan",
            ]),
            datapath_types: owned(&["system", "netdev", "dummy"]),
            cpus: vec![0, 1],
            machine_cpus: vec![0, 1],
            rundir: "/run/ovs".into(),
        }
    }

    fn uuid(name: &str) -> Uuid {
        Uuid(name.bytes().fold(7, |hash: u128, byte| {
            hash.wrapping_mul(0x1000_0000_01b3) ^ u128::from(byte)
        }))
    }

    pub(in super::super) fn interface(name: &str) -> vswitch::Interface {
        vswitch::Interface {
            uuid: uuid(name),
            name: name.into(),
            ..Default::default()
        }
    }

    pub(in super::super) fn port(interface: vswitch::Interface) -> vswitch::Port {
        let name = interface.name.clone();
        vswitch::Port {
            uuid: uuid(&format!("port {name}")),
            name,
            interfaces: vec![interface],
            ..Default::default()
        }
    }

    pub(in super::super) fn bridge(name: &str, ports: Vec<vswitch::Port>) -> vswitch::Bridge {
        let uuid = uuid(&format!("bridge {name}"));
        vswitch::Bridge {
            uuid,
            name: name.into(),
            datapath_type: "netdev".into(),
            ports,
            ..Default::default()
        }
    }

    pub(in super::super) fn snapshot(bridges: Vec<vswitch::Bridge>) -> vswitch::Snapshot {
        let root = vswitch::OpenVSwitch {
            uuid: Uuid(1),
            next_cfg: 5,
            bridges,
            ..Default::default()
        };
        vswitch::Snapshot {
            open_vswitch: Some(root),
        }
    }

    fn read(bridges: Vec<vswitch::Bridge>) -> (Desired, Problems) {
        Desired::from_snapshot(&snapshot(bridges), &abilities())
    }

    fn with_option(key: &str, value: &str) -> (Settings, usize) {
        let mut row = bridge("br0", vec![]);
        row.other_config.insert(key.into(), value.into());
        let (desired, problems) = read(vec![row]);
        (desired.bridges["br0"].settings.clone(), problems.0.len())
    }

    #[test]
    fn an_empty_database_wants_nothing() {
        let (desired, problems) =
            Desired::from_snapshot(&vswitch::Snapshot::default(), &abilities());
        assert_eq!(
            (desired, problems),
            (Desired::default(), Problems::default())
        );
    }

    #[test]
    fn every_bridge_has_a_local_port() {
        let (desired, problems) = read(vec![bridge("br0", vec![port(interface("p"))])]);
        let bridge = &desired.bridges["br0"];
        assert_eq!(bridge.ports.keys().collect::<Vec<_>>(), ["br0", "p"]);
        assert!(
            bridge.ports["br0"].local
                && bridge.ports["br0"].interface.is_none()
                && !bridge.ports["p"].local
        );
        assert_eq!((desired.next_cfg, problems), (5, Problems::default()));
        assert_eq!(bridge.settings.protocols, ALL_PROTOCOLS);
    }

    #[test]
    fn bad_options_are_problems_and_the_default_is_used() {
        assert_eq!(with_option("datapath-id", "0x1f").0.datapath_id, Some(0x1f));
        for bad in ["1", "zz", "0000000000000000", "0x0", "00000000000000001"] {
            let (settings, problems) = with_option("datapath-id", bad);
            assert_eq!((settings.datapath_id, problems), (None, 1), "{bad}");
        }
        assert_eq!(
            with_option("hwaddr", "00:00:00:00:00:01").0.hwaddr,
            Some(Mac([0, 0, 0, 0, 0, 1]))
        );
        for bad in ["01:00:00:00:00:01", "00:00:00:00:00:00", "zz"] {
            let (settings, problems) = with_option("hwaddr", bad);
            assert_eq!((settings.hwaddr, problems), (None, 1), "{bad}");
        }
        assert_eq!(with_option("mac-aging-time", "4").0.mac_ageing, 15);
        assert_eq!(with_option("mac-aging-time", "0").0.mac_ageing, 300);
        for (text, size, problems) in [
            ("0", 8192, 0),
            ("3", 10, 1),
            ("1000001", 1_000_000, 1),
            ("2147483648", 8192, 1),
            ("-5", 8192, 1),
        ] {
            let (settings, found) = with_option("mac-table-size", text);
            assert_eq!((settings.mac_table_size, found), (size, problems), "{text}");
        }
        assert_eq!(
            with_option("mac-table-size", "x"),
            (with_option("other", "").0, 1)
        );
        let (settings, problems) = with_option("dp-sn", &"ä".repeat(31));
        assert_eq!((settings.serial_number.unwrap().len(), problems), (30, 1));
    }

    #[test]
    fn in_band_control_has_a_queue_and_managers() {
        assert_eq!(with_option("other", "").0.in_band_queue, None);
        assert_eq!(with_option("in-band-queue", "3").0.in_band_queue, Some(3));
        assert_eq!(with_option("in-band-queue", "-7"), {
            let (settings, _) = with_option("other", "");
            (settings, 1)
        });
        let manager = |target: &str, mode: Option<&str>| vswitch::Manager {
            target: target.into(),
            connection_mode: mode.map(str::to_owned),
            ..Default::default()
        };
        let mut snapshot = snapshot(vec![bridge("br0", vec![]), {
            let mut row = bridge("br1", vec![]);
            row.other_config = [("disable-in-band".to_owned(), "true".to_owned())].into();
            row
        }]);
        snapshot.open_vswitch.as_mut().unwrap().managers = vec![
            manager("tcp:10.0.0.1", None),
            manager("tcp:10.0.0.2", Some("out-of-band")),
            manager("tcp:10.0.0.3", Some("in-band")),
        ];
        let (desired, _) = Desired::from_snapshot(&snapshot, &abilities());
        let managers = |name: &str| &desired.bridges[name].settings.managers;
        assert_eq!(*managers("br0"), ["tcp:10.0.0.1", "tcp:10.0.0.3"]);
        assert!(managers("br1").is_empty());
    }

    #[test]
    fn bonds_are_refused_on_each_interface() {
        let mut bond = port(interface("a"));
        bond.name = "bond0".into();
        bond.interfaces.push(interface("b"));
        let (desired, problems) = read(vec![bridge("br0", vec![bond])]);
        assert_eq!(desired.bridges["br0"].ports.len(), 1);
        assert_eq!(
            desired.refused.keys().copied().collect::<BTreeSet<_>>(),
            BTreeSet::from([uuid("a"), uuid("b")])
        );
        let refused = &desired.refused[&uuid("a")];
        assert_eq!(refused.error, InterfaceError::Bond("bond0".into()));
        let named = (refused.bridge.as_str(), refused.name.as_str());
        assert_eq!(named, ("br0", "a"));
        assert_eq!(problems.0.len(), 1);
    }

    #[test]
    fn unknown_types_and_reserved_names_are_refused() {
        let of_type = |name: &str, kind: &str| {
            port(vswitch::Interface {
                kind: kind.into(),
                ..interface(name)
            })
        };
        let (desired, _) = read(vec![bridge(
            "br0",
            vec![
                of_type("odd", "vxlam"),
                of_type("tunnel", "lisp"),
                of_type("test", "dummy-pmd"),
                port(interface("vxlan_sys_4789")),
            ],
        )]);
        let types = "there are dpdk, dummy, geneve, gre, internal, patch, system, tap, vxlan";
        for (name, what) in [
            ("odd", "type \"vxlam\" does not exist"),
            ("tunnel", "type \"lisp\" is not supported yet"),
            (
                "test",
                "type \"dummy-pmd\" needs a daemon with --enable-dummy",
            ),
        ] {
            let begin = format!("could not open network device {name}");
            let message =
                format!("{begin} (Address family not supported by protocol): {what}; {types}");
            assert_eq!(desired.refused[&uuid(name)].error.to_string(), message);
        }
        assert_eq!(desired.refused.len(), 4);
        assert_eq!(desired.bridges["br0"].ports.len(), 1);
    }

    #[test]
    fn an_interface_belongs_to_one_bridge() {
        let shared = port(interface("p"));
        let (desired, problems) = read(vec![
            bridge("br0", vec![shared.clone()]),
            bridge("br1", vec![shared]),
        ]);
        assert!(
            desired.bridges["br0"].ports.contains_key("p")
                && !desired.bridges["br1"].ports.contains_key("p")
        );
        assert_eq!(
            (desired.refused.len(), problems.0.len()),
            (0, 1),
            "the row itself works, in br0"
        );

        let (desired, _) = read(vec![
            bridge("br0", vec![port(interface("br1"))]),
            bridge("br1", vec![]),
        ]);
        assert!(
            !desired.bridges["br0"].ports.contains_key("br1")
                && desired.bridges["br1"].ports["br1"].local
        );
        assert_eq!(desired.refused.len(), 1);
    }

    #[test]
    fn bridges_that_cannot_be_made_say_so_on_their_interfaces() {
        let weird = vswitch::Bridge {
            datapath_type: "weird".into(),
            ..bridge("br2", vec![port(interface("br2"))])
        };
        let (desired, problems) = read(vec![
            weird,
            bridge("../etc", vec![]),
            bridge("br0", vec![]),
            bridge("br0", vec![]),
        ]);
        assert_eq!(desired.bridges.keys().collect::<Vec<_>>(), ["br0"]);
        assert_eq!((desired.refused.len(), problems.0.len()), (1, 3));
    }

    #[test]
    fn problems_are_reported_by_row() {
        let mut row = bridge("br0", vec![port(interface("p"))]);
        row.stp_enable = true;
        row.exporters = vec!["netflow"];
        row.other_config.insert("stp-pryority".into(), "1".into());
        row.other_config.insert("dp-desc".into(), "fine".into());
        row.ports[0].other_config = [("rstp-mchek".to_owned(), "1".to_owned())].into();
        row.ports[0].interfaces[0].mtu_request = Some(1);
        let (desired, problems) = read(vec![row]);
        let (key, text) = desired.wrong.bridge("br0").unwrap();
        assert_eq!(key, "sluice_problems");
        assert_eq!(
            text,
            "stp_enable: not supported yet, ignoring it; netflow: not supported yet, ignoring it; \
             other_config:stp-pryority: there is no such key, ignoring it"
        );
        let said = |text: Option<(&'static str, String)>| text.unwrap().1;
        assert!(said(desired.wrong.port("p")).starts_with("other_config:rstp-mchek: "));
        assert!(said(desired.wrong.interface("p")).starts_with("mtu_request: MTU 1 "));
        assert_eq!(desired.wrong.interface("br0"), None);
        assert_eq!(problems.0.len(), 5);
    }

    #[test]
    fn protocols_are_bits() {
        let mut row = bridge("br0", vec![]);
        row.protocols = vec!["OpenFlow10".into(), "OpenFlow13".into()];
        assert_eq!(
            read(vec![row]).0.bridges["br0"].settings.protocols,
            1 << 1 | 1 << 4
        );
    }
}
