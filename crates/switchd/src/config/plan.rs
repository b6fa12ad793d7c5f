//! The actions that lead from the current to the desired state, in an order in which they can be
//! done.
//!
//! [`Applied`] is the daemon's memory of what it has done. [`plan`] compares it with [`Desired`]
//! and lists what is missing; the daemon does each action and, when it succeeds, calls
//! [`Applied::record`]. An action that failed is not recorded, so the next plan has it again.
//!
//! In all bridges ports are removed before others are added: a device can be in one bridge only,
//! and one port only can have a number. Among added ports, those that ask for a number come first,
//! then those that had one before.

use std::collections::{BTreeMap, HashSet};

use ovsdb::vswitch::Ssl;

use super::controller::Controller;
use super::desired::{Bridge, Desired, Settings};
use super::global::Global;
use super::mirror::Mirror;
use super::ofport;
use super::port::Port;
use super::steered::Steered;
use super::timeouts::Timeouts;

/// A step towards the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Apply options of the switch as a whole. Always the first.
    SetGlobal(Global),
    /// Use these TLS files from now on.
    SetSsl(Option<Ssl>),
    /// Steer these kernel interfaces, and no others.
    SetSteered(Steered),
    /// Give tracked connections these timeouts, by zone; other zones have the usual ones.
    SetTimeouts(Timeouts),
    /// Take a port out of a bridge and close its device.
    RemovePort {
        /// The bridge's name.
        bridge: String,
        /// The interface's name.
        interface: String,
    },
    /// Remove a bridge; its ports have been removed before.
    RemoveBridge(String),
    /// Create a bridge without ports.
    AddBridge {
        /// Its name.
        name: String,
        /// Its settings.
        settings: Box<Settings>,
    },
    /// Apply new settings to a bridge; its datapath type stays the same.
    ModifyBridge {
        /// Its name.
        name: String,
        /// Its settings.
        settings: Box<Settings>,
    },
    /// Open a device and put it into a bridge.
    AddPort {
        /// The bridge's name.
        bridge: String,
        /// The port.
        port: Box<Port>,
        /// The OpenFlow port number to take if it is free: the one asked for, or an earlier one.
        /// [`ofport::LOCAL`] for a local port, which takes no other.
        number: Option<u16>,
    },
    /// Apply new settings to a port; its device and number stay the same.
    ModifyPort {
        /// The bridge's name.
        bridge: String,
        /// The port.
        port: Box<Port>,
    },
    /// Replace a bridge's mirrors.
    SetMirrors {
        /// The bridge's name.
        bridge: String,
        /// All its mirrors.
        mirrors: Vec<Mirror>,
    },
    /// Replace a bridge's controllers. Connections to unchanged targets are kept.
    SetControllers {
        /// The bridge's name.
        bridge: String,
        /// All its controllers.
        controllers: Vec<Controller>,
    },
}

/// A port that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedPort {
    /// Its settings.
    pub port: Port,
    /// Its OpenFlow port number.
    pub number: u16,
}

/// A bridge that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedBridge {
    /// Its settings.
    pub settings: Settings,
    /// Its ports by their interfaces' names.
    pub ports: BTreeMap<String, AppliedPort>,
    /// Its mirrors.
    pub mirrors: Vec<Mirror>,
    /// Its controllers.
    pub controllers: Vec<Controller>,
}

/// The state that has been applied so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Options of the switch as a whole; none before the first were applied.
    pub global: Option<Global>,
    /// The TLS files in use.
    pub ssl: Option<Ssl>,
    /// Kernel interfaces that are steered, or will be once they exist.
    pub steered: Steered,
    /// Timeouts of tracked connections, by zone.
    pub timeouts: Timeouts,
    /// The bridges by name.
    pub bridges: BTreeMap<String, AppliedBridge>,
}

impl Applied {
    /// Records that an action was done. `number` is the OpenFlow port number of an added port; it
    /// matters for [`Action::AddPort`] only, where none means the number in the action. Actions on
    /// bridges that do not exist are ignored.
    pub fn record(&mut self, action: &Action, number: Option<u16>) {
        match action {
            Action::SetGlobal(global) => self.global = Some(global.clone()),
            Action::SetSsl(ssl) => self.ssl.clone_from(ssl),
            Action::SetSteered(steered) => self.steered = steered.clone(),
            Action::SetTimeouts(timeouts) => self.timeouts.clone_from(timeouts),
            Action::RemoveBridge(name) => {
                self.bridges.remove(name);
            }
            Action::AddBridge { name, settings } => {
                let settings = (**settings).clone();
                let bridge = AppliedBridge {
                    settings,
                    ports: BTreeMap::new(),
                    mirrors: Vec::new(),
                    controllers: Vec::new(),
                };
                self.bridges.insert(name.clone(), bridge);
            }
            Action::ModifyBridge { name: bridge, .. }
            | Action::RemovePort { bridge, .. }
            | Action::AddPort { bridge, .. }
            | Action::ModifyPort { bridge, .. }
            | Action::SetMirrors { bridge, .. }
            | Action::SetControllers { bridge, .. } => {
                if let Some(bridge) = self.bridges.get_mut(bridge) {
                    bridge.record(action, number);
                }
            }
        }
    }
}

impl AppliedBridge {
    fn record(&mut self, action: &Action, number: Option<u16>) {
        match action {
            Action::ModifyBridge { settings, .. } => self.settings = (**settings).clone(),
            Action::SetMirrors { mirrors, .. } => self.mirrors.clone_from(mirrors),
            Action::SetControllers { controllers, .. } => self.controllers.clone_from(controllers),
            Action::RemovePort { interface, .. } => {
                self.ports.remove(interface);
            }
            Action::AddPort {
                port,
                number: wanted,
                ..
            } => {
                if let Some(number) = number.or(*wanted) {
                    let port = AppliedPort {
                        port: (**port).clone(),
                        number,
                    };
                    self.ports.insert(port.port.interface_name.clone(), port);
                }
            }
            Action::ModifyPort { port, .. } => {
                if let Some(applied) = self.ports.get_mut(&port.interface_name) {
                    applied.port = (**port).clone();
                }
            }
            Action::SetGlobal(_)
            | Action::SetSsl(_)
            | Action::SetSteered(_)
            | Action::SetTimeouts(_)
            | Action::RemoveBridge(_)
            | Action::AddBridge { .. } => {}
        }
    }
}

/// Lists the actions that lead from `applied` to `desired`.
///
/// An added port does not displace a port that has the number it asks for, because opening it may
/// fail. Once it exists with another number, the next plan swaps them; so a daemon plans again
/// until only actions are left that it has just tried.
pub fn plan(desired: &Desired, applied: &Applied) -> Vec<Action> {
    let mut actions = Vec::new();
    if applied.global.as_ref() != Some(&desired.global) {
        actions.push(Action::SetGlobal(desired.global.clone()));
    }
    if applied.ssl != desired.ssl {
        actions.push(Action::SetSsl(desired.ssl.clone()));
    }
    if applied.steered != desired.steered {
        actions.push(Action::SetSteered(desired.steered.clone()));
    }
    if applied.timeouts != desired.timeouts {
        actions.push(Action::SetTimeouts(desired.timeouts.clone()));
    }
    let staying: BTreeMap<&str, Staying<'_>> = applied
        .bridges
        .iter()
        .filter_map(|(name, bridge)| {
            Some((
                name.as_str(),
                Staying::new(bridge, same_bridge(name, bridge, desired)?),
            ))
        })
        .collect();
    for (name, bridge) in &applied.bridges {
        remove_ports(name, bridge, staying.get(name.as_str()), &mut actions);
    }
    let gone = applied
        .bridges
        .keys()
        .filter(|name| !staying.contains_key(name.as_str()));
    actions.extend(gone.map(|name| Action::RemoveBridge(name.clone())));
    let pairs = || {
        desired
            .bridges
            .iter()
            .map(|(name, wanted)| (name, wanted, staying.get(name.as_str())))
    };
    for (name, wanted, existing) in pairs() {
        let settings = Box::new(wanted.settings.clone());
        match existing {
            None => actions.push(Action::AddBridge {
                name: name.clone(),
                settings,
            }),
            Some(staying) if staying.bridge.settings != wanted.settings => {
                actions.push(Action::ModifyBridge {
                    name: name.clone(),
                    settings,
                });
            }
            Some(_) => {}
        }
    }
    for (name, wanted, existing) in pairs() {
        add_ports(
            name,
            wanted,
            existing,
            &desired.earlier_numbers,
            &mut actions,
        );
    }
    for (name, wanted, existing) in pairs() {
        modify_ports(name, wanted, existing, &mut actions);
    }
    for (name, wanted, existing) in pairs() {
        let bridge = existing.map(|staying| staying.bridge);
        if bridge.map_or(&[][..], |bridge| &bridge.mirrors) != wanted.mirrors {
            actions.push(Action::SetMirrors {
                bridge: name.clone(),
                mirrors: wanted.mirrors.clone(),
            });
        }
        if bridge.map_or(&[][..], |bridge| &bridge.controllers) != wanted.controllers {
            actions.push(Action::SetControllers {
                bridge: name.clone(),
                controllers: wanted.controllers.clone(),
            });
        }
    }
    actions
}

/// Returns the desired state of an existing bridge; none when it must be removed, even if only to
/// be created again with another datapath type.
fn same_bridge<'d>(name: &str, bridge: &AppliedBridge, desired: &'d Desired) -> Option<&'d Bridge> {
    let same = |wanted: &&Bridge| wanted.settings.datapath_type == bridge.settings.datapath_type;
    desired.bridges.get(name).filter(same)
}

/// A bridge that is kept, and those of its ports that keep their devices and numbers.
struct Staying<'a> {
    bridge: &'a AppliedBridge,
    interfaces: HashSet<&'a str>,
}

impl<'a> Staying<'a> {
    fn new(bridge: &'a AppliedBridge, wanted: &'a Bridge) -> Staying<'a> {
        let with_device: Vec<(u16, &Port)> = bridge
            .ports
            .values()
            .filter_map(|port| {
                Some((
                    port.number,
                    wanted.ports.get(&port.port.interface_name)?,
                    port,
                ))
            })
            .filter(|(_, new, port)| !port.port.needs_reopening(new))
            .map(|(number, new, _)| (number, new))
            .collect();
        let requests =
            |(number, port): &(u16, &Port)| (*number, port.ofport_request.filter(|_| !port.local));
        // Numbers whose holders ask for them, and numbers requested by other ports.
        let mut kept = HashSet::new();
        let mut wished = HashSet::new();
        for (number, request) in with_device.iter().map(requests) {
            match request {
                Some(request) if request == number => kept.insert(number),
                Some(request) => wished.insert(request),
                None => false,
            };
        }
        // A port that asks for another number is removed and added again with it, unless that
        // number's holder asks for it, too. A port that holds a number another port asks for is
        // removed and added again with a free one, unless it asks for that number itself.
        let stays = |&(number, port): &(u16, &Port)| {
            let content = requests(&(number, port))
                .1
                .is_none_or(|request| kept.contains(&request));
            port.local || (content && (kept.contains(&number) || !wished.contains(&number)))
        };
        let interfaces = with_device
            .iter()
            .filter(|port| stays(port))
            .map(|(_, port)| port.interface_name.as_str());
        Staying {
            bridge,
            interfaces: interfaces.collect(),
        }
    }
}

fn remove_ports(
    name: &str,
    bridge: &AppliedBridge,
    staying: Option<&Staying<'_>>,
    actions: &mut Vec<Action>,
) {
    for interface in bridge.ports.keys() {
        if staying.is_none_or(|staying| !staying.interfaces.contains(interface.as_str())) {
            actions.push(Action::RemovePort {
                bridge: name.to_owned(),
                interface: interface.clone(),
            });
        }
    }
}

fn add_ports(
    name: &str,
    wanted: &Bridge,
    existing: Option<&Staying<'_>>,
    earlier: &BTreeMap<String, u16>,
    actions: &mut Vec<Action>,
) {
    let mut missing: Vec<(u8, Option<u16>, &Port)> = Vec::new();
    for (interface, port) in &wanted.ports {
        if existing.is_some_and(|staying| staying.interfaces.contains(interface.as_str())) {
            continue;
        }
        let before = existing
            .and_then(|staying| staying.bridge.ports.get(interface))
            .map(|port| port.number);
        let before = before.or_else(|| earlier.get(interface).copied());
        // As in Open vSwitch, those that ask for a number come first, and so do their numbers in
        // the datapath.
        missing.push(match (port.local, port.ofport_request, before) {
            (false, Some(request), _) => (0, Some(request), port),
            (true, _, _) => (1, Some(ofport::LOCAL), port),
            (false, None, Some(before)) => (2, Some(before), port),
            (false, None, None) => (3, None, port),
        });
    }
    missing.sort_by_key(|(order, _, _)| *order);
    actions.extend(
        missing
            .into_iter()
            .map(|(_, number, port)| Action::AddPort {
                bridge: name.to_owned(),
                port: Box::new(port.clone()),
                number,
            }),
    );
}

fn modify_ports(
    name: &str,
    wanted: &Bridge,
    existing: Option<&Staying<'_>>,
    actions: &mut Vec<Action>,
) {
    let Some(staying) = existing else { return };
    for (interface, port) in wanted
        .ports
        .iter()
        .filter(|(name, _)| staying.interfaces.contains(name.as_str()))
    {
        if staying
            .bridge
            .ports
            .get(interface)
            .is_some_and(|applied| applied.port != *port)
        {
            actions.push(Action::ModifyPort {
                bridge: name.to_owned(),
                port: Box::new(port.clone()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::desired::tests::{abilities, bridge, interface, port, snapshot};
    use super::super::ofport::Allocator;
    use super::super::problem::Problems;
    use super::*;
    use ovsdb::vswitch;
    use proptest::prelude::*;

    /// A minimal daemon: it does every action, checks that the action is possible, and fails to
    /// open the devices it is told to.
    #[derive(Default)]
    struct Daemon {
        applied: Applied,
        allocators: BTreeMap<String, Allocator>,
        broken: Option<String>,
    }

    impl Daemon {
        fn run(&mut self, desired: &Desired) -> Vec<Action> {
            let actions = plan(desired, &self.applied);
            for action in &actions {
                self.act(action);
            }
            actions
        }

        fn act(&mut self, action: &Action) {
            let mut got = None;
            match action {
                Action::AddBridge { name, .. } => assert!(!self.applied.bridges.contains_key(name)),
                Action::RemoveBridge(name) => {
                    assert!(
                        self.applied.bridges[name].ports.is_empty(),
                        "ports must go first"
                    );
                    self.allocators.remove(name);
                }
                Action::RemovePort { bridge, interface } => {
                    let number = self.applied.bridges[bridge].ports[interface].number;
                    self.allocators
                        .entry(bridge.clone())
                        .or_default()
                        .release(number, 0);
                }
                Action::AddPort {
                    bridge,
                    port,
                    number,
                } => {
                    let name = &port.interface_name;
                    let taken = self
                        .applied
                        .bridges
                        .values()
                        .any(|b| b.ports.contains_key(name));
                    assert!(!taken, "{name} is open already");
                    if self.broken.as_ref() == Some(name) {
                        return;
                    }
                    got = match port.local {
                        true => *number,
                        false => self
                            .allocators
                            .entry(bridge.clone())
                            .or_default()
                            .allocate(*number, 0),
                    };
                }
                Action::ModifyPort { bridge, port } => {
                    assert!(
                        self.applied.bridges[bridge]
                            .ports
                            .contains_key(&port.interface_name)
                    );
                }
                _ => {}
            }
            self.applied.record(action, got);
        }
    }

    fn desired(bridges: Vec<vswitch::Bridge>) -> Desired {
        Desired::from_snapshot(&snapshot(bridges), &abilities()).0
    }

    type Parts = (
        Settings,
        BTreeMap<String, Port>,
        Vec<Mirror>,
        Vec<Controller>,
    );

    fn without_numbers(applied: &Applied) -> BTreeMap<String, Parts> {
        let bridges = applied.bridges.iter();
        bridges
            .map(|(name, b)| {
                let ports = b
                    .ports
                    .iter()
                    .map(|(name, port)| (name.clone(), port.port.clone()))
                    .collect();
                (
                    name.clone(),
                    (
                        b.settings.clone(),
                        ports,
                        b.mirrors.clone(),
                        b.controllers.clone(),
                    ),
                )
            })
            .collect()
    }

    fn wanted_parts(desired: &Desired) -> BTreeMap<String, Parts> {
        let parts = |b: &Bridge| {
            (
                b.settings.clone(),
                b.ports.clone(),
                b.mirrors.clone(),
                b.controllers.clone(),
            )
        };
        desired
            .bridges
            .iter()
            .map(|(name, bridge)| (name.clone(), parts(bridge)))
            .collect()
    }

    fn assert_is(applied: &Applied, desired: &Desired) {
        assert_eq!(without_numbers(applied), wanted_parts(desired));
        assert_eq!(applied.global.as_ref(), Some(&desired.global));
        assert_eq!(applied.ssl, desired.ssl);
        assert_eq!(applied.steered, desired.steered);
        for bridge in applied.bridges.values() {
            let mut numbers: Vec<u16> = bridge.ports.values().map(|port| port.number).collect();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(
                numbers.len(),
                bridge.ports.len(),
                "two ports have one number"
            );
            for port in bridge.ports.values() {
                assert_eq!(port.port.local, port.number == ofport::LOCAL);
                // A requested number is held by a port that requests it.
                if let Some(request) = port.port.ofport_request.filter(|_| !port.port.local) {
                    let holder = bridge.ports.values().find(|port| port.number == request);
                    let holder = holder.expect("a number that is asked for is given");
                    assert_eq!(holder.port.ofport_request, Some(request));
                }
            }
        }
    }

    fn requesting(name: &str, request: i64) -> vswitch::Port {
        port(vswitch::Interface {
            ofport_request: Some(request),
            ..interface(name)
        })
    }

    fn numbers(daemon: &Daemon) -> Vec<(&str, u16)> {
        let ports = daemon.applied.bridges["br0"].ports.iter();
        ports
            .filter(|(_, p)| !p.port.local)
            .map(|(name, p)| (name.as_str(), p.number))
            .collect()
    }

    #[test]
    fn interfaces_are_steered_and_released_without_touching_anything_else() {
        let mut daemon = Daemon::default();
        daemon.run(&desired(vec![]));
        for devices in ["eth0", "eth0,eth1", "eth1"] {
            let mut rows = snapshot(vec![]);
            if let Some(root) = &mut rows.open_vswitch {
                let (key, value) = ("sluice-steer".to_owned(), devices.to_owned());
                root.other_config.insert(key, value);
            }
            let desired = Desired::from_snapshot(&rows, &abilities()).0;
            let actions = daemon.run(&desired);
            let names: Vec<String> = devices.split(',').map(str::to_owned).collect();
            let [Action::SetSteered(steered)] = actions.as_slice() else {
                panic!("{actions:?}");
            };
            assert!(steered.devices.iter().eq(&names));
            assert_is(&daemon.applied, &desired);
            assert_eq!(daemon.run(&desired), []);
        }
        let actions = daemon.run(&desired(vec![]));
        assert_eq!(actions, [Action::SetSteered(Steered::default())]);
    }

    #[test]
    fn a_bridge_comes_with_its_local_port_and_goes_after_its_ports() {
        let mut daemon = Daemon::default();
        let actions = daemon.run(&desired(vec![bridge("br0", vec![port(interface("p"))])]));
        let kinds: Vec<String> = actions.iter().map(kind).collect();
        assert_eq!(
            kinds,
            [
                "SetGlobal",
                "AddBridge",
                "AddPort br0 Some(65534)",
                "AddPort p None"
            ]
        );
        let kinds: Vec<String> = daemon.run(&desired(vec![])).iter().map(kind).collect();
        assert_eq!(kinds, ["RemovePort br0", "RemovePort p", "RemoveBridge"]);
    }

    fn kind(action: &Action) -> String {
        match action {
            Action::AddPort { port, number, .. } => {
                format!("AddPort {} {number:?}", port.interface_name)
            }
            Action::RemovePort { interface, .. } => format!("RemovePort {interface}"),
            Action::ModifyPort { port, .. } => format!("ModifyPort {}", port.interface_name),
            other => {
                let text = format!("{other:?}");
                text.split(|c: char| !c.is_alphanumeric())
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            }
        }
    }

    #[test]
    fn a_request_drives_out_who_did_not_ask_for_the_number() {
        // ovs-vswitchd 3.1 gives the same numbers in the same steps.
        let mut daemon = Daemon::default();
        daemon.run(&desired(vec![bridge("br0", vec![requesting("d1", 7)])]));
        daemon.run(&desired(vec![bridge(
            "br0",
            vec![requesting("d1", 7), requesting("d2", 7)],
        )]));
        let ports = vec![
            requesting("d1", 7),
            requesting("d2", 7),
            port(interface("d3")),
        ];
        daemon.run(&desired(vec![bridge("br0", ports)]));
        assert_eq!(numbers(&daemon), [("d1", 7), ("d2", 1), ("d3", 2)]);
        let ports = vec![
            requesting("d1", 7),
            requesting("d2", 7),
            requesting("d3", 1),
        ];
        daemon.run(&desired(vec![bridge("br0", ports)]));
        assert_eq!(numbers(&daemon), [("d1", 7), ("d2", 3), ("d3", 1)]);
    }

    #[test]
    fn numbers_survive_a_restart_and_a_new_device() {
        let mut daemon = Daemon::default();
        let again = vswitch::Interface {
            ofport: Some(9),
            ..interface("p")
        };
        daemon.run(&desired(vec![bridge(
            "br0",
            vec![port(again), port(interface("a"))],
        )]));
        assert_eq!(numbers(&daemon), [("a", 1), ("p", 9)]);
        let tap = vswitch::Interface {
            kind: "tap".into(),
            ..interface("p")
        };
        let actions = daemon.run(&desired(vec![bridge(
            "br0",
            vec![port(tap), port(interface("a"))],
        )]));
        let kinds: Vec<String> = actions.iter().map(kind).collect();
        assert_eq!(kinds, ["RemovePort p", "AddPort p Some(9)"]);
    }

    #[test]
    fn a_failed_step_is_planned_again() {
        let mut daemon = Daemon {
            broken: Some("p".into()),
            ..Daemon::default()
        };
        let wanted = desired(vec![bridge(
            "br0",
            vec![port(interface("p")), port(interface("q"))],
        )]);
        daemon.run(&wanted);
        assert_eq!(numbers(&daemon), [("q", 1)]);
        let kinds: Vec<String> = daemon.run(&wanted).iter().map(kind).collect();
        assert_eq!(kinds, ["AddPort p None"]);
    }

    #[test]
    fn a_port_moves_between_bridges_and_a_vlan_is_changed_in_place() {
        let mut daemon = Daemon::default();
        let p = || port(interface("p"));
        daemon.run(&desired(vec![
            bridge("br0", vec![]),
            bridge("br1", vec![p()]),
        ]));
        let wanted = desired(vec![bridge("br0", vec![p()]), bridge("br1", vec![])]);
        daemon.run(&wanted);
        assert_is(&daemon.applied, &wanted);
        let tagged = vswitch::Port {
            tag: Some(4),
            ..p()
        };
        let actions = daemon.run(&desired(vec![
            bridge("br0", vec![tagged]),
            bridge("br1", vec![]),
        ]));
        assert_eq!(
            actions.iter().map(kind).collect::<Vec<_>>(),
            ["ModifyPort p"]
        );
    }

    fn tunnel(name: &str, kind: &str, options: &[(&str, &str)]) -> vswitch::Port {
        let options = options.iter();
        port(vswitch::Interface {
            kind: kind.into(),
            options: options
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..interface(name)
        })
    }

    #[test]
    fn a_tunnel_is_changed_in_place() {
        let mut daemon = Daemon::default();
        let remote = ("remote_ip", "10.0.0.2");
        let mut run = |port| {
            let wanted = desired(vec![bridge("br0", vec![port])]);
            let actions = daemon.run(&wanted);
            assert_is(&daemon.applied, &wanted);
            actions.iter().map(kind).collect::<Vec<_>>()
        };
        run(tunnel("t", "vxlan", &[remote]));
        for options in [
            &[remote, ("key", "7")][..],
            &[("remote_ip", "flow")],
            &[remote, ("dst_port", "8472"), ("exts", "gbp")],
        ] {
            assert_eq!(run(tunnel("t", "vxlan", options)), ["ModifyPort t"]);
        }
        let actions = run(tunnel("t", "gre", &[remote]));
        assert_eq!(actions, ["RemovePort t", "AddPort t Some(1)"]);
    }

    #[test]
    fn of_tunnels_that_are_alike_the_one_that_is_there_stays() {
        let mut daemon = Daemon::default();
        let options = |remote| [("remote_ip", remote)];
        let a = |remote| tunnel("a", "vxlan", &options(remote));
        let b = |remote| tunnel("b", "vxlan", &options(remote));
        let mut run = |ports| {
            let mut wanted = desired(vec![bridge("br0", ports)]);
            let mut problems = Problems::default();
            wanted.refuse_alike(&daemon.applied, &mut problems);
            daemon.run(&wanted);
            assert_is(&daemon.applied, &wanted);
            let refused = wanted.refused.values();
            let refused: Vec<_> = refused.map(|refused| refused.name.clone()).collect();
            assert_eq!(problems.0.len(), refused.len());
            refused
        };
        assert!(run(vec![b("10.0.0.2")]).is_empty());
        assert_eq!(run(vec![a("10.0.0.2"), b("10.0.0.2")]), ["a"]);
        assert!(run(vec![a("10.0.0.2"), b("10.0.0.3")]).is_empty());
        assert!(
            run(vec![a("10.0.0.3"), b("10.0.0.2")]).is_empty(),
            "changed over"
        );
        assert_eq!(run(vec![a("10.0.0.2"), b("10.0.0.2")]), ["a"]);
        // Options for sent packets (`out_key`) do not tell tunnels apart.
        let sending = [("remote_ip", "10.0.0.2"), ("out_key", "7")];
        let changed = tunnel("b", "vxlan", &sending);
        assert_eq!(run(vec![a("10.0.0.2"), changed]), ["a"]);
        // Nor can a tunnel of another kind take the UDP port while the first one is changed.
        let port = [("remote_ip", "10.0.0.9"), ("dst_port", "4789")];
        let other = tunnel("a", "geneve", &port);
        assert_eq!(run(vec![other, b("10.0.0.3")]), ["a"]);
        // If neither exists yet, the first one is accepted.
        assert!(run(vec![]).is_empty());
        assert_eq!(run(vec![a("10.0.0.4"), b("10.0.0.4")]), ["b"]);
        assert!(run(vec![b("10.0.0.4")]).is_empty());
    }

    #[test]
    fn a_thousand_tunnels_are_told_apart_at_once() {
        let ports = |count: u32| {
            (0..count).map(|number| {
                let key = number.to_string();
                tunnel(
                    &format!("t{number}"),
                    "vxlan",
                    &[("remote_ip", "10.0.0.2"), ("key", &key)],
                )
            })
        };
        let mut wanted = desired(vec![bridge("br0", ports(1000).collect())]);
        wanted.refuse_alike(&Applied::default(), &mut Problems::default());
        assert_eq!(
            (wanted.refused.len(), wanted.bridges["br0"].ports.len()),
            (0, 1001)
        );
    }

    fn any_port() -> impl Strategy<Value = vswitch::Port> {
        let name = prop::sample::select(vec!["a", "b", "c", "d", "br0", "br1"]);
        let kind = prop::sample::select(vec!["", "internal", "tap", "nonsense"]);
        let request = prop::option::of(1i64..6);
        (
            name,
            kind,
            request,
            prop::option::of(1i64..6),
            prop::option::of(0i64..3),
            any::<bool>(),
        )
            .prop_map(|(name, kind, ofport_request, ofport, tag, option)| {
                let mut row = vswitch::Interface {
                    kind: kind.into(),
                    ofport_request,
                    ofport,
                    ..interface(name)
                };
                if option {
                    row.options.insert("k".into(), "v".into());
                }
                vswitch::Port { tag, ..port(row) }
            })
    }

    fn any_bridge() -> impl Strategy<Value = vswitch::Bridge> {
        let name = prop::sample::select(vec!["br0", "br1", "br2"]);
        let kind = prop::sample::select(vec!["netdev", "dummy"]);
        let mirrored = prop::option::of(prop::sample::select(vec!["a", "b"]));
        let target = prop::option::of(prop::sample::select(vec!["tcp:1.2.3.4", "ptcp:"]));
        (
            name,
            kind,
            prop::collection::vec(any_port(), 0..5),
            mirrored,
            target,
        )
            .prop_map(|(name, kind, ports, mirrored, target)| {
                let mut row = bridge(name, ports);
                row.datapath_type = kind.into();
                row.mirrors.extend(mirrored.map(|port| vswitch::Mirror {
                    output_port: Some(port.into()),
                    ..Default::default()
                }));
                row.controllers
                    .extend(target.map(|target| vswitch::Controller {
                        target: target.into(),
                        ..Default::default()
                    }));
                row
            })
    }

    proptest! {
        #[test]
        fn doing_the_plan_leads_there_and_then_there_is_nothing_to_do(
            states in prop::collection::vec(prop::collection::vec(any_bridge(), 0..4), 1..5),
        ) {
            let mut daemon = Daemon::default();
            for bridges in states {
                let wanted = desired(bridges);
                daemon.run(&wanted);
                prop_assert_eq!(without_numbers(&daemon.applied), wanted_parts(&wanted));
                daemon.run(&wanted);
                assert_is(&daemon.applied, &wanted);
                prop_assert_eq!(plan(&wanted, &daemon.applied), vec![]);
            }
        }

        #[test]
        fn ports_that_do_not_change_are_left_alone(before in any_bridge(), after in any_bridge()) {
            let mut daemon = Daemon::default();
            let (old, new) = (desired(vec![before]), desired(vec![after]));
            daemon.run(&old);
            let numbers_before = daemon.applied.clone();
            let actions = daemon.run(&new);
            for (name, bridge) in &numbers_before.bridges {
                for (interface, port) in &bridge.ports {
                    let same_bridge = new.bridges.get(name).filter(|b| b.settings.datapath_type == bridge.settings.datapath_type);
                    let unchanged = same_bridge.and_then(|b| b.ports.get(interface)) == Some(&port.port);
                    let nobody_asks = same_bridge.is_some_and(|b| b.ports.values().all(|p| p.ofport_request.is_none()));
                    if unchanged && nobody_asks {
                        let touched = actions.iter().any(|action| matches!(action,
                            Action::RemovePort { interface: i, .. } if i == interface));
                        prop_assert!(!touched, "{} was removed", interface);
                    }
                }
            }
        }
    }
}
