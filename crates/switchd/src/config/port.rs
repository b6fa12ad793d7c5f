//! A port of a bridge and the device behind it.

use ovsdb::vswitch::Strings;
use ovsdb::{Uuid, vswitch};

use super::address::Mac;
use super::ofport;
use super::policing;
use super::problem::{Options, Problems, Severity};
use super::qos::{self, IngressError, Qos, QosError};
use super::refusal::InterfaceError;
use super::tunnel;
use super::vlan::{PriorityTags, Vlan, VlanMode, VlanSet};
use super::vm::Vm;
use ::qos::policer::IngressSpec;
use datapath::tunnel::TunnelSpec;

/// A port; it has exactly one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The UUID of its Port row; none for a local port that the database does not mention.
    pub uuid: Option<Uuid>,
    /// The UUID of its Interface row; none for a local port that the database does not mention.
    pub interface: Option<Uuid>,
    /// The port's name; usually, but not always, the same as the interface's.
    pub name: String,
    /// The interface's name, unique in the switch; usually the device's.
    pub interface_name: String,
    /// The interface's type as users see it: `system`, `internal`, `dpdk`, ...
    pub kind: String,
    /// The kind of device to open: the type, but `dummy-internal` for `internal` on a dummy
    /// bridge.
    pub device: String,
    /// The device's options.
    pub options: Strings,
    /// A tunnel's options; none for other types.
    pub tunnel: Option<TunnelSpec>,
    /// `pmd-rxq-affinity`: which processors' workers serve which receive queues.
    pub affinity: Vec<(u32, u32)>,
    /// Further options of the interface.
    pub other_config: Strings,
    /// `sluice-fcf-underlay`: whether flow control fields are trusted and written here.
    pub underlay: bool,
    /// The virtual machine behind the port.
    pub vm: Option<Vm>,
    /// Whether it is the bridge's own port.
    pub local: bool,
    /// How VLAN tags are treated.
    pub vlan: Vlan,
    /// The requested OpenFlow port number.
    pub ofport_request: Option<u16>,
    /// The requested MTU.
    pub mtu_request: Option<u16>,
    /// Whether an MTU is requested, even one that cannot be given: then the device keeps its own.
    pub mtu_is_its_own: bool,
    /// The address to give to the device.
    pub mac: Option<Mac>,
    /// The Port row's address, for the choice of the bridge's address.
    pub port_mac: Option<Mac>,
    /// Whether the interface is shown as a bridge, and takes an address from the ports of its VLAN.
    pub fake_bridge: bool,
    /// Whether the port is protected: protected ports cannot reach each other.
    pub protected: bool,
    /// Its queues and their rates.
    pub qos: Qos,
    /// How its connectivity is monitored (`bfd`); None for not.
    pub bfd: Option<::bfd::Settings>,
    /// Limits on what it receives (`ingress_policing_*`).
    pub ingress: IngressSpec,
    /// Why `ingress` is the previous policing and not what the row says.
    pub ingress_error: Option<IngressError>,
}

impl Port {
    /// Keeps the previous settings where the rows' new ones are unusable.
    pub fn keep(&mut self, before: Option<&Port>) {
        let before = before.filter(|_| self.tunnel.is_none());
        self.qos.keep(before.map(|before| &before.qos));
        if self.ingress_error.is_some() {
            self.ingress = before.map_or_else(IngressSpec::default, |before| before.ingress);
        }
    }

    /// Removes QoS and policing from a tunnel, which supports neither here nor in Open vSwitch.
    fn let_all_pass(&mut self, problems: &mut Problems) {
        if !self.qos.kind.is_empty() || self.qos.error.is_some() {
            let error = QosError::Tunnel;
            problems.add("Port", &self.name, "qos", error.to_string());
            self.qos = Qos {
                error: Some(error),
                ..Qos::default()
            };
        }
        if !self.ingress.is_none() || self.ingress_error.is_some() {
            let column = "ingress_policing_rate";
            let missing = "a tunnel has none";
            problems.add("Interface", &self.interface_name, column, missing);
            self.ingress = IngressSpec::default();
            self.ingress_error = Some(IngressError::Tunnel);
        }
    }

    /// Returns the problems of a port that works all the same.
    pub fn error(&self) -> Option<String> {
        let qos = self.qos.error.as_ref().map(ToString::to_string);
        let ingress = self.ingress_error.as_ref().map(ToString::to_string);
        let texts: Vec<String> = qos.into_iter().chain(ingress).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Returns whether the change from `self` to `new` needs another device, or the device
    /// reopened.
    pub fn needs_reopening(&self, new: &Port) -> bool {
        // Only options that the type reads are compared.
        let known = ports::options_of(&self.device).unwrap_or(&[]);
        let differs = |key: &&str| self.options.get(*key) != new.options.get(*key);
        self.device != new.device || self.kind != new.kind || known.iter().any(differs)
    }
}

/// What reading a port needs to know of its bridge.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The bridge's name.
    pub bridge: &'a str,
    /// The bridge's datapath type.
    pub datapath_type: &'a str,
}

/// Returns a bridge's local port that the database does not mention.
pub fn synthetic(surroundings: Surroundings<'_>) -> Port {
    Port {
        name: surroundings.bridge.to_owned(),
        interface_name: surroundings.bridge.to_owned(),
        kind: "internal".to_owned(),
        device: device("internal", surroundings),
        local: true,
        ..Port::default()
    }
}

fn device(kind: &str, surroundings: Surroundings<'_>) -> String {
    match (kind, surroundings.datapath_type) {
        ("internal", "dummy") => "dummy-internal".to_owned(),
        (kind, _) => kind.to_owned(),
    }
}

/// Returns an interface's type: a bridge's local port is always `internal`; no type means `system`.
pub fn kind<'r>(row: &'r vswitch::Interface, bridge: &str) -> &'r str {
    match row.kind.as_str() {
        _ if row.name == bridge => "internal",
        "" => "system",
        kind => kind,
    }
}

/// Reads a port with one interface. An error means that the port cannot exist; it goes into the
/// interface's `error` column.
pub fn read(
    port: &vswitch::Port,
    interface: &vswitch::Interface,
    surroundings: Surroundings<'_>,
    problems: &mut Problems,
) -> Result<Port, InterfaceError> {
    let kind = kind(interface, surroundings.bridge);
    let vlan = vlan(port, problems)?;
    let tunnel = match tunnel::kind_of(kind) {
        Some(kind) => Some(tunnel::read(interface, kind, problems)?),
        None => None,
    };
    let (ingress, ingress_error) = match policing::ingress(interface, problems) {
        Ok(ingress) => (ingress, None),
        Err(error) => (IngressSpec::default(), Some(error)),
    };
    for column in &interface.link_protocols {
        problems.add(
            "Interface",
            &interface.name,
            column,
            "not supported yet, ignoring it",
        );
    }
    tell_what_does_nothing(interface, kind, problems);
    let mut port = Port {
        uuid: Some(port.uuid),
        interface: Some(interface.uuid),
        name: port.name.clone(),
        interface_name: interface.name.clone(),
        kind: kind.to_owned(),
        device: device(kind, surroundings),
        options: interface.options.clone(),
        tunnel,
        affinity: affinity(interface, problems),
        other_config: interface.other_config.clone(),
        underlay: Options::new(
            "Interface",
            &interface.name,
            "other_config",
            &interface.other_config,
            problems,
        )
        .boolean("sluice-fcf-underlay", false),
        vm: Vm::read(interface, problems),
        local: interface.name == surroundings.bridge,
        vlan,
        ofport_request: interface.ofport_request.and_then(usable_number),
        mtu_request: mtu(interface, kind, problems),
        mtu_is_its_own: interface.mtu_request.is_some(),
        mac: mac(interface, kind, surroundings, problems),
        port_mac: port_mac(port, problems),
        fake_bridge: port.fake_bridge,
        protected: port.protected,
        qos: qos::read(&port.name, port.qos.as_ref(), problems),
        bfd: super::bfd::read(interface, problems),
        ingress,
        ingress_error,
    };
    if port.tunnel.is_some() {
        port.let_all_pass(problems);
    }
    Ok(port)
}

/// Returns an interface's earlier port number, if it is a valid one.
pub fn usable_number(number: i64) -> Option<u16> {
    u16::try_from(number)
        .ok()
        .filter(|number| (1..ofport::END).contains(number))
}

/// Other keys of ports: those of Open vSwitch, most of them for bonds, of which none is there.
const KEYS: [&str; 15] = [
    "all-members-active",
    "bond-detect-mode",
    "bond-hash-basis",
    "bond-miimon-interval",
    "bond-primary",
    "bond-rebalance-interval",
    "lacp-fallback-ab",
    "lacp-system-id",
    "lacp-system-priority",
    "lacp-time",
    "lb-output-action",
    "mcast-snooping-flood",
    "mcast-snooping-flood-reports",
    "priority-tags",
    "qinq-ethtype",
];

/// Port keys of missing features (spanning trees).
const SPANNING_TREE_KEYS: [&str; 12] = [
    "stp-enable",
    "stp-port-num",
    "stp-port-priority",
    "stp-path-cost",
    "rstp-enable",
    "rstp-port-num",
    "rstp-port-priority",
    "rstp-port-path-cost",
    "rstp-path-cost",
    "rstp-port-admin-edge",
    "rstp-port-auto-edge",
    "rstp-port-mcheck",
];

fn vlan(port: &vswitch::Port, problems: &mut Problems) -> Result<Vlan, InterfaceError> {
    let mode = match port.vlan_mode.as_deref() {
        None => None,
        Some("access") => Some(VlanMode::Access),
        Some("trunk") => Some(VlanMode::Trunk),
        Some("native-tagged") => Some(VlanMode::NativeTagged),
        Some("native-untagged") => Some(VlanMode::NativeUntagged),
        Some("dot1q-tunnel") => {
            // Any other mode would carry customers' VLANs where they do not belong.
            return Err(InterfaceError::VlanMode(port.name.clone()));
        }
        Some(other) => {
            problems.add(
                "Port",
                &port.name,
                "vlan_mode",
                format!("unknown VLAN mode {other}, falling back to trunk mode"),
            );
            Some(VlanMode::Trunk)
        }
    };
    let tag = port
        .tag
        .and_then(|tag| u16::try_from(tag).ok())
        .filter(|tag| *tag < 4096);
    let trunks = (!port.trunks.is_empty()).then(|| VlanSet::from_column(&port.trunks));
    if mode.is_none() && tag.is_some() && trunks.is_some() {
        problems.add(
            "Port",
            &port.name,
            "trunks",
            "ignoring trunks in favor of implicit vlan",
        );
    }
    let mut options = Options::new(
        "Port",
        &port.name,
        "other_config",
        &port.other_config,
        problems,
    );
    let words = [
        ("never", PriorityTags::Never),
        ("false", PriorityTags::Never),
        ("if-nonzero", PriorityTags::IfNonzero),
        ("true", PriorityTags::IfNonzero),
        ("always", PriorityTags::Always),
    ];
    let priority_tags = options.choice("priority-tags", &words, PriorityTags::Never);
    let families = ["stp-", "rstp-"];
    options.not_supported(&families, &SPANNING_TREE_KEYS);
    options.misspelt(&families, &[&KEYS, &SPANNING_TREE_KEYS]);
    if port.lacp.as_deref().is_some_and(|mode| mode != "off") {
        problems.add("Port", &port.name, "lacp", "not supported yet, ignoring it");
    }
    Ok(Vlan::new(mode, tag, trunks, priority_tags))
}

/// Reports which of ovs-vswitchd.conf.db(5)'s keys have no effect here. Open vSwitch reads those in
/// `unused_options` for DPDK's ports only and ignores them elsewhere.
fn tell_what_does_nothing(interface: &vswitch::Interface, kind: &str, problems: &mut Problems) {
    let name = &interface.name;
    tell_what_is_unknown(interface, kind, problems);
    let keys = unused_options(kind);
    Options::new("Interface", name, "options", &interface.options, problems).do_nothing(keys);
    let map = &interface.other_config;
    let mut other = Options::new("Interface", name, "other_config", map, problems);
    other.do_nothing(&["emc-enable"]);
    let known = ["emc-enable", "pmd-rxq-affinity", "sluice-fcf-underlay"];
    other.misspelt(&[], &[&known]);
}

/// Reads `pmd-rxq-affinity`: QUEUE:CORE pairs separated by commas; the last one counts for a queue
/// that is named twice.
fn affinity(interface: &vswitch::Interface, problems: &mut Problems) -> Vec<(u32, u32)> {
    const KEY: &str = "pmd-rxq-affinity";
    let (name, map) = (&interface.name, &interface.other_config);
    let mut options = Options::new("Interface", name, "other_config", map, problems);
    let Some(text) = options.text(KEY) else {
        return Vec::new();
    };
    let pair = |word: &str| {
        let (queue, core) = word.split_once(':')?;
        Some((queue.trim().parse().ok()?, core.trim().parse().ok()?))
    };
    let pairs: Option<std::collections::BTreeMap<u32, u32>> = text.split(',').map(pair).collect();
    match pairs {
        Some(pairs) => pairs.into_iter().collect(),
        None => {
            let wanted = "is not a list of QUEUE:CORE, ignoring it";
            options.complain(KEY, format!("\"{text}\" {wanted}"));
            Vec::new()
        }
    }
}

/// Reports options that the type does not have; Open vSwitch does so for types without any options.
fn tell_what_is_unknown(interface: &vswitch::Interface, kind: &str, problems: &mut Problems) {
    let Some(known) = ports::options_of(kind) else {
        return;
    };
    let unused = unused_options(kind);
    for key in interface.options.keys().map(String::as_str) {
        if known.contains(&key) || unused.contains(&key) {
            continue;
        }
        let what = if known.is_empty() {
            format!(
                "arguments provided to device that is not configurable (type {kind}), ignoring it"
            )
        } else {
            let known = known.join(", ");
            format!("type {kind} has no such option, ignoring it; there are {known}")
        };
        let column = format!("options:{key}");
        problems.add("Interface", &interface.name, &column, what);
    }
}

/// Returns options of Open vSwitch's for a type that are accepted but have no effect.
fn unused_options(kind: &str) -> &'static [&'static str] {
    match kind {
        "dpdk" => &[
            "dpdk-lsc-interrupt",
            "dpdk-vf-mac",
            "flow-ctrl-autoneg",
            "rx-flow-ctrl",
            "tx-flow-ctrl",
            "tx-steering",
        ],
        "dpdkvhostuser" | "dpdkvhostuserclient" => &["tx-retries-max"],
        "afxdp" => &["use-need-wakeup"],
        // Options of Open vSwitch's dummy devices, which accept any.
        "dummy" | "dummy-internal" | "dummy-pmd" => &["n_rxq", "n_txq", "numa_id", "ifindex"],
        _ => &[],
    }
}

/// Returns the requested MTU, if the device supports it. The kernel's devices take 68 to 65535;
/// DPDK's frames have at most 9728 bytes with Ethernet header, two VLAN tags and checksum.
fn mtu(interface: &vswitch::Interface, kind: &str, problems: &mut Problems) -> Option<u16> {
    let wanted = interface.mtu_request?;
    if tunnel::kind_of(kind).is_some() {
        let message = "a tunnel has no MTU of its own, ignoring it";
        problems.add("Interface", &interface.name, "mtu_request", message);
        return None;
    }
    let highest = if kind.starts_with("dpdk") || kind == "afxdp" {
        9702
    } else {
        65535
    };
    match u16::try_from(wanted) {
        Ok(mtu) if (68..=highest).contains(&mtu) => Some(mtu),
        _ => {
            let message = format!("MTU {wanted} is not in range 68 to {highest}, ignoring it");
            problems.add("Interface", &interface.name, "mtu_request", message);
            None
        }
    }
}

fn mac(
    interface: &vswitch::Interface,
    kind: &str,
    surroundings: Surroundings<'_>,
    problems: &mut Problems,
) -> Option<Mac> {
    let text = interface.mac.as_deref()?;
    let mut ignore = |message: &str| {
        problems.add_with(
            Severity::Error,
            "Interface",
            &interface.name,
            "mac",
            message,
        );
    };
    match text.parse::<Mac>() {
        _ if kind != "internal" => ignore("only internal interfaces take an address, ignoring it"),
        _ if interface.name == surroundings.bridge => {
            ignore("ignoring mac in Interface record (use Bridge record to set local port's mac)");
        }
        Err(_) => ignore(&format!(
            "\"{text}\" is not an Ethernet address, ignoring it"
        )),
        Ok(mac) if mac.is_multicast() => ignore("cannot set MAC to multicast address"),
        Ok(mac) if mac.is_zero() => ignore("cannot set MAC to all zero address"),
        Ok(mac) => return Some(mac),
    }
    None
}

fn port_mac(port: &vswitch::Port, problems: &mut Problems) -> Option<Mac> {
    let text = port.mac.as_deref()?;
    let mac = text.parse().ok();
    if mac.is_none() {
        problems.add(
            "Port",
            &port.name,
            "mac",
            format!("\"{text}\" is not an Ethernet address, ignoring it"),
        );
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIDGE: Surroundings<'_> = Surroundings {
        bridge: "br0",
        datapath_type: "netdev",
    };

    fn interface(name: &str) -> vswitch::Interface {
        vswitch::Interface {
            name: name.into(),
            ..Default::default()
        }
    }

    fn read_one(interface: vswitch::Interface) -> (Port, usize) {
        let mut problems = Problems::default();
        let port = vswitch::Port {
            name: interface.name.clone(),
            ..Default::default()
        };
        let port = read(&port, &interface, BRIDGE, &mut problems).unwrap();
        (port, problems.0.len())
    }

    #[test]
    fn kinds() {
        assert_eq!(read_one(interface("eth0")).0.device, "system");
        assert_eq!(
            read_one(vswitch::Interface {
                kind: "tap".into(),
                ..interface("br0")
            })
            .0
            .device,
            "internal"
        );
        let dummy = Surroundings {
            datapath_type: "dummy",
            ..BRIDGE
        };
        let port = synthetic(dummy);
        assert_eq!(
            (port.kind.as_str(), port.device.as_str(), port.local),
            ("internal", "dummy-internal", true)
        );
    }

    #[test]
    fn impossible_mtus_are_problems() {
        let with = |kind: &str, mtu| {
            let row = vswitch::Interface {
                kind: kind.into(),
                mtu_request: Some(mtu),
                ..interface("p")
            };
            let (port, problems) = read_one(row);
            (port.mtu_request, problems)
        };
        assert_eq!(with("", 9000), (Some(9000), 0));
        assert_eq!(with("", 65535), (Some(65535), 0));
        assert_eq!(with("", 67), (None, 1));
        assert_eq!(with("", 65536), (None, 1));
        assert_eq!(with("dpdk", 9702), (Some(9702), 0));
        assert_eq!(with("dpdkvhostuserclient", 9703), (None, 1));
    }

    #[test]
    fn only_internal_ports_that_are_not_local_take_an_address() {
        let with = |name: &str, kind: &str, mac: &str| {
            let row = vswitch::Interface {
                kind: kind.into(),
                mac: Some(mac.into()),
                ..interface(name)
            };
            let (port, problems) = read_one(row);
            (port.mac.is_some(), problems)
        };
        assert_eq!(with("i", "internal", "00:00:00:00:00:09"), (true, 0));
        for (name, kind, mac) in [
            ("br0", "internal", "00:00:00:00:00:09"),
            ("i", "dummy", "00:00:00:00:00:09"),
            ("i", "internal", "01:00:00:00:00:09"),
            ("i", "internal", "00:00:00:00:00:00"),
            ("i", "internal", "zz"),
        ] {
            assert_eq!(with(name, kind, mac), (false, 1), "{name} {kind} {mac}");
        }
    }

    #[test]
    fn vlan_settings() {
        let read_port = |port: vswitch::Port| {
            let mut problems = Problems::default();
            let result = read(&port, &interface("p"), BRIDGE, &mut problems);
            (result.map(|port| port.vlan), problems.0.len())
        };
        let both = vswitch::Port {
            tag: Some(3),
            trunks: vec![4],
            ..Default::default()
        };
        let (vlan, problems) = read_port(both.clone());
        assert_eq!((vlan.unwrap().mode, problems), (VlanMode::Access, 1));
        let (vlan, problems) = read_port(vswitch::Port {
            vlan_mode: Some("native-untagged".into()),
            ..both.clone()
        });
        let vlan = vlan.unwrap();
        assert_eq!(
            (vlan.mode, vlan.tag, problems),
            (VlanMode::NativeUntagged, 3, 0)
        );
        assert!(
            read_port(vswitch::Port {
                vlan_mode: Some("dot1q-tunnel".into()),
                ..both
            })
            .0
            .is_err()
        );
    }

    #[test]
    fn options_that_do_nothing_are_told_where_open_vswitch_would_read_them() {
        let told = |kind: &str, key: &str| {
            let mut row = interface("p");
            row.kind = kind.into();
            row.options = Strings::from([(key.to_owned(), "true".to_owned())]);
            let port = vswitch::Port::default();
            let mut problems = Problems::default();
            read(&port, &row, BRIDGE, &mut problems).unwrap();
            assert!(problems.0.len() < 2);
            problems.0.first().map(|problem| problem.severity)
        };
        assert_eq!(told("dpdk", "rx-flow-ctrl"), Some(Severity::Note));
        assert_eq!(told("dpdk", "n_rxq"), None);
        // An option that the type lacks is reported in another way.
        for kind in ["afxdp", "", "tap", "patch"] {
            assert_eq!(told(kind, "rx-flow-ctrl"), Some(Severity::Warning));
        }
        // An unknown type is reported elsewhere.
        assert_eq!(told("lisp", "remote_ip"), None);
    }

    #[test]
    fn queues_are_pinned_to_cores() {
        let pinned = |text: &str| {
            let mut row = interface("p");
            row.other_config = Strings::from([("pmd-rxq-affinity".into(), text.into())]);
            let (port, problems) = read_one(row);
            (port.affinity, problems)
        };
        assert_eq!(pinned("0:3"), (vec![(0, 3)], 0));
        assert_eq!(pinned("3:8, 0:3,1:7"), (vec![(0, 3), (1, 7), (3, 8)], 0));
        assert_eq!(pinned("0:3,0:4"), (vec![(0, 4)], 0));
        for wrong in [
            "",
            "0",
            "0:",
            ":1",
            "0:1,",
            "0:-1",
            "a:b",
            "0:1:2",
            "0:4294967296",
        ] {
            assert_eq!(pinned(wrong), (Vec::new(), 1), "{wrong}");
        }
    }

    #[test]
    fn tunnels_have_neither_qos_nor_policing_nor_an_mtu() {
        let mut row = interface("t");
        row.kind = "vxlan".into();
        row.options = Strings::from([("remote_ip".into(), "10.0.0.2".into())]);
        row.ingress_policing_rate = 1000;
        row.mtu_request = Some(1400);
        let port = vswitch::Port {
            name: "t".into(),
            qos: Some(vswitch::QoS {
                kind: "linux-htb".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut problems = Problems::default();
        let mut read = read(&port, &row, BRIDGE, &mut problems).unwrap();
        assert_eq!((problems.0.len(), read.mtu_request), (3, None));
        let error = "QoS: a tunnel has none; its packets are shaped where they leave; \
                     ingress_policing_rate: a tunnel has none";
        assert_eq!(read.error().as_deref(), Some(error));
        // Nor does it keep what it had as another type.
        let before = Port {
            qos: Qos {
                kind: "linux-noop".into(),
                ..Qos::default()
            },
            ..read_one(interface("t")).0
        };
        read.keep(Some(&before));
        assert!(read.qos.kind.is_empty() && read.ingress.is_none());
        assert_eq!(read.error().as_deref(), Some(error));
    }

    #[test]
    fn options_need_another_device_and_vlans_do_not() {
        let (old, _) = read_one(interface("p"));
        let mut new = old.clone();
        new.vlan.tag = 3;
        new.mtu_request = Some(1400);
        assert!(!old.needs_reopening(&new));
        // An option that no type reads.
        new.options.insert("a".into(), "b".into());
        assert!(!old.needs_reopening(&new));
        let dpdk = Port {
            device: "dpdk".into(),
            ..new
        };
        let mut other = dpdk.clone();
        other.options.insert("a".into(), "c".into());
        assert!(!dpdk.needs_reopening(&other));
        other.options.insert("n_rxq".into(), "2".into());
        assert!(dpdk.needs_reopening(&other));
        other.options.remove("n_rxq");
        assert!(!dpdk.needs_reopening(&other));
        assert!(old.needs_reopening(&Port {
            device: "tap".into(),
            ..old.clone()
        }));
    }
}
