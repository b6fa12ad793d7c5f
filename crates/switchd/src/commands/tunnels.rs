//! `ofproto/list-tunnels` and `tnl/ports/show`: tunnel ports, and the datapath ports behind them.
//!
//! In Open vSwitch's userspace datapath all tunnels of a type and port share one numbered port,
//! such as `vxlan_sys_4789`. The datapath here has a port for each tunnel, but commands show the
//! same names and numbers as Open vSwitch.

use super::datapaths::Numbers;
use super::{Answer, Commands, bridges};
use crate::config::port::Port as Config;
use crate::config::tunnel::{Incoming, Key, packet_type};
use crate::switch::{Port, Switch};
use datapath::tunnel::{LocalAddress, TunnelKey, TunnelSpec};
use std::collections::BTreeMap;
use std::fmt::Write;
use underlay::text::{self, Listener};

pub(super) fn register(commands: &Commands) {
    let numbers = std::rc::Rc::clone(&commands.numbers);
    commands.answer("ofproto/list-tunnels", "", (0, 0), move |switch, _| {
        Ok(list(switch, &numbers))
    });
    let numbers = std::rc::Rc::clone(&commands.numbers);
    commands.answer("tnl/ports/show", "-v", (0, 1), move |switch, words| {
        show(switch, &numbers, words)
    });
}

/// Returns the name of the datapath port that Open vSwitch would have behind a tunnel; none for
/// other ports.
pub(super) fn shared_name(config: &Config) -> Option<String> {
    let spec = config.tunnel.as_ref()?;
    let prefix = match config.kind.as_str() {
        "geneve" => "genev",
        other => other,
    };
    Some(match spec.dst_port {
        0 => format!("{prefix}_sys"),
        port => format!("{prefix}_sys_{port}"),
    })
}

/// Returns a tunnel's options that differ from the defaults, as Open vSwitch's `dpif/show` shows
/// them.
pub(super) fn configuration(spec: &TunnelSpec) -> BTreeMap<&'static str, String> {
    let usual = TunnelSpec::new(spec.kind, spec.remote);
    let mut shown = BTreeMap::new();
    let flow = || "flow".to_owned();
    shown.insert(
        "remote_ip",
        spec.remote.map_or_else(flow, |remote| remote.to_string()),
    );
    match spec.local {
        LocalAddress::Any => {}
        LocalAddress::Flow => {
            shown.insert("local_ip", flow());
        }
        LocalAddress::Address(address) => {
            shown.insert("local_ip", address.to_string());
        }
    }
    let keys = if spec.in_key == spec.out_key {
        vec![("key", spec.in_key)]
    } else {
        vec![("in_key", spec.in_key), ("out_key", spec.out_key)]
    };
    for (name, key) in keys {
        match key {
            TunnelKey::None => None,
            TunnelKey::Flow => shown.insert(name, flow()),
            TunnelKey::Fixed(key) => shown.insert(name, key.to_string()),
        };
    }
    let inherit = || "inherit".to_owned();
    if spec.ttl != usual.ttl {
        let ttl = spec.ttl.map_or_else(inherit, |ttl| ttl.to_string());
        shown.insert("ttl", ttl);
    }
    if spec.tos != usual.tos {
        let tos = spec.tos.map_or_else(inherit, |tos| format!("{tos:#x}"));
        shown.insert("tos", tos);
    }
    if spec.dst_port != usual.dst_port {
        shown.insert("dst_port", spec.dst_port.to_string());
    }
    if spec.mark != usual.mark {
        shown.insert("egress_pkt_mark", spec.mark.to_string());
    }
    if spec.carries != usual.carries {
        shown.insert("packet_type", packet_type(spec.carries).to_owned());
    }
    for (name, value, usual) in [
        ("csum", spec.csum, usual.csum),
        ("seq", spec.sequence, usual.sequence),
        ("df_default", spec.df, usual.df),
    ] {
        if value != usual {
            shown.insert(name, value.to_string());
        }
    }
    shown
}

/// Returns the options of the port that tunnels share, which accepts all their packets.
pub(super) fn shared_configuration(spec: &TunnelSpec) -> BTreeMap<&'static str, String> {
    let mut shown = configuration(&TunnelSpec {
        dst_port: spec.dst_port,
        ..TunnelSpec::new(spec.kind, None)
    });
    shown.remove("remote_ip");
    shown.insert("packet_type", "ptap".into());
    shown
}

/// Returns the tunnel ports of all bridges with their numbers; those that share a number are
/// adjacent.
fn tunnels<R>(
    switch: &Switch,
    numbers: &Numbers,
    mut of: impl FnMut(u32, &Port, &TunnelSpec) -> R,
) -> Vec<R> {
    numbers.refresh(switch);
    let mut found = Vec::new();
    for bridge in bridges(switch) {
        for port in bridge.ports.borrow().values() {
            if let (Some(number), Some(spec)) = (numbers.of(port), &port.config.tunnel) {
                found.push(of(number, port, spec));
            }
        }
    }
    found
}

/// Returns which of Open vSwitch's twelve tables holds a tunnel: packets are looked up in one after
/// another.
fn table(spec: &TunnelSpec) -> u8 {
    let local = match spec.local {
        LocalAddress::Address(_) => 0,
        LocalAddress::Any => 1,
        LocalAddress::Flow => 2,
    };
    let key = u8::from(spec.in_key == TunnelKey::Flow);
    6 * key + 3 * u8::from(spec.remote.is_none()) + local
}

fn list(switch: &Switch, numbers: &Numbers) -> String {
    let mut lines = tunnels(switch, numbers, |number, port, spec| {
        let name = &port.config.interface_name;
        let line = describe(number, name, &port.config.kind, spec);
        (table(spec), name.clone(), line)
    });
    lines.sort();
    lines.into_iter().map(|(_, _, line)| line).collect()
}

/// Returns a tunnel's line in `ofproto/list-tunnels`.
fn describe(number: u32, name: &str, kind: &str, spec: &TunnelSpec) -> String {
    let mut line = format!(
        "port {number}: {name} ({kind}: {}, dp port={number}",
        Incoming(spec)
    );
    if spec.out_key != spec.in_key {
        let _ = match spec.out_key {
            TunnelKey::None => write!(line, ", out_key=none"),
            key => write!(line, ", out_key={}", Key(key)),
        };
    }
    let _ = match spec.ttl {
        None => write!(line, ", ttl=inherit"),
        Some(ttl) => write!(line, ", ttl={ttl}"),
    };
    let _ = match spec.tos {
        None => write!(line, ", tos=inherit"),
        Some(0) => Ok(()),
        Some(tos) => write!(line, ", tos={tos:#x}"),
    };
    if !spec.df {
        line.push_str(", df=false");
    }
    if spec.csum {
        line.push_str(", csum=true");
    }
    line.push_str(")\n");
    line
}

/// A port that tunnels share, and how many share it.
struct Shared {
    /// Position of its first tunnel among all ports, by age.
    first: u64,
    number: u32,
    name: String,
    protocol: u8,
    dst_port: u16,
    tunnels: usize,
}

fn shared(switch: &Switch, numbers: &Numbers) -> Vec<Shared> {
    let all = tunnels(switch, numbers, |number, port, spec| Shared {
        first: port.order,
        number,
        name: shared_name(&port.config).unwrap_or_default(),
        protocol: spec.kind.ip_protocol(),
        dst_port: spec.dst_port,
        tunnels: 1,
    });
    // Each datapath type has its own numbers.
    let mut shared: BTreeMap<(u32, String), Shared> = BTreeMap::new();
    for one in all {
        match shared.get_mut(&(one.number, one.name.clone())) {
            Some(shared) => {
                shared.tunnels += 1;
                shared.first = shared.first.min(one.first);
            }
            None => {
                shared.insert((one.number, one.name.clone()), one);
            }
        }
    }
    let mut shared: Vec<Shared> = shared.into_values().collect();
    shared.sort_by_key(|shared| shared.first);
    shared
}

fn show(switch: &Switch, numbers: &Numbers, words: &[String]) -> Answer {
    let verbose = words.iter().any(|word| word.eq_ignore_ascii_case("-v"));
    let listeners: Vec<Listener> = shared(switch, numbers)
        .into_iter()
        .map(|shared| Listener {
            name: shared.name,
            number: shared.number,
            users: shared.tunnels,
            protocol: shared.protocol,
            port: shared.dst_port,
        })
        .collect();
    let devices = switch.underlay.devices_with_routes();
    Ok(text::listeners(&listeners, &devices, verbose))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Problems, tunnel};
    use ovsdb::vswitch;

    fn config(kind: &str, options: &[(&str, &str)]) -> Config {
        let options = options.iter();
        let row = vswitch::Interface {
            name: "t".into(),
            kind: kind.into(),
            options: options
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            ..Default::default()
        };
        let tunnel_kind = tunnel::kind_of(kind).unwrap();
        let spec = tunnel::read(&row, tunnel_kind, &mut Problems::default());
        Config {
            kind: kind.into(),
            tunnel: Some(spec.unwrap()),
            ..Config::default()
        }
    }

    /// Returns the shared port's name, and what `dpif/show` and `ofproto/list-tunnels` print.
    fn shown(kind: &str, options: &[(&str, &str)]) -> (String, String, String) {
        let config = config(kind, options);
        let spec = config.tunnel.as_ref().unwrap();
        let pairs: Vec<String> = configuration(spec)
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let line = describe(2, "t", kind, spec);
        (shared_name(&config).unwrap(), pairs.join(", "), line)
    }

    #[test]
    fn tunnels_are_shown_as_open_vswitch_shows_them() {
        // Expected values are ovs-vswitchd 3.1's for the same options.
        for (kind, options, shared, configuration, line) in [
            (
                "vxlan",
                &[("remote_ip", "10.0.0.2"), ("key", "flow")][..],
                "vxlan_sys_4789",
                "key=flow, remote_ip=10.0.0.2",
                "vxlan: ::->10.0.0.2, key=flow, legacy_l2, dp port=2, ttl=64",
            ),
            (
                "geneve",
                &[
                    ("remote_ip", "flow"),
                    ("key", "5"),
                    ("dst_port", "6082"),
                    ("csum", "true"),
                ],
                "genev_sys_6082",
                "csum=true, dst_port=6082, key=5, remote_ip=flow",
                "geneve: ::->flow, key=0x5, legacy_l2, dp port=2, ttl=64, csum=true",
            ),
            (
                "gre",
                &[
                    ("remote_ip", "10.0.0.2"),
                    ("key", "77"),
                    ("tos", "inherit"),
                    ("ttl", "inherit"),
                ],
                "gre_sys",
                "key=77, remote_ip=10.0.0.2, tos=inherit, ttl=inherit",
                "gre: ::->10.0.0.2, key=0x4d, legacy_l2, dp port=2, ttl=inherit, tos=inherit",
            ),
            (
                "ip6gre",
                &[("remote_ip", "fd00::2"), ("seq", "true")],
                "ip6gre_sys",
                "remote_ip=fd00::2, seq=true",
                "ip6gre: ::->fd00::2, key=0, legacy_l2, dp port=2, ttl=64",
            ),
            (
                "gtpu",
                &[("remote_ip", "flow"), ("local_ip", "flow"), ("ttl", "44")],
                "gtpu_sys_2152",
                "local_ip=flow, remote_ip=flow, ttl=44",
                "gtpu: flow->flow, key=0, legacy_l3, dp port=2, ttl=44",
            ),
            (
                "gre",
                &[("remote_ip", "flow"), ("packet_type", "legacy_l3")],
                "gre_sys",
                "packet_type=legacy_l3, remote_ip=flow",
                "gre: ::->flow, key=0, legacy_l3, dp port=2, ttl=64",
            ),
            (
                "vxlan",
                &[
                    ("remote_ip", "flow"),
                    ("in_key", "5"),
                    ("tos", "12"),
                    ("df_default", "false"),
                ],
                "vxlan_sys_4789",
                "df_default=false, in_key=5, remote_ip=flow, tos=0xc",
                "vxlan: ::->flow, key=0x5, legacy_l2, dp port=2, out_key=none, ttl=64, tos=0xc, \
                 df=false",
            ),
            (
                "vxlan",
                &[
                    ("remote_ip", "flow"),
                    ("local_ip", "10.0.0.1"),
                    ("in_key", "flow"),
                    ("out_key", "7"),
                ],
                "vxlan_sys_4789",
                "in_key=flow, local_ip=10.0.0.1, out_key=7, remote_ip=flow",
                "vxlan: 10.0.0.1->flow, key=flow, legacy_l2, dp port=2, out_key=0x7, ttl=64",
            ),
        ] {
            let wanted = (
                shared.to_owned(),
                configuration.to_owned(),
                format!("port 2: t ({line})\n"),
            );
            assert_eq!(shown(kind, options), wanted);
        }
    }

    #[test]
    fn the_port_that_tunnels_share_takes_all_that_they_carry() {
        let shown = |kind, options: &[(&str, &str)]| {
            let config = config(kind, options);
            let shown = shared_configuration(&config.tunnel.unwrap());
            let pairs = shown.iter().map(|(key, value)| format!("{key}={value}"));
            pairs.collect::<Vec<_>>().join(", ")
        };
        let flow = ("remote_ip", "flow");
        assert_eq!(shown("vxlan", &[flow, ("key", "flow")]), "packet_type=ptap");
        assert_eq!(
            shown("geneve", &[flow, ("dst_port", "6082")]),
            "dst_port=6082, packet_type=ptap"
        );
    }

    #[test]
    fn tables_are_in_the_order_in_which_packets_are_looked_up() {
        let table = |options: &[(&str, &str)]| table(&config("vxlan", options).tunnel.unwrap());
        let (remote, local) = (("remote_ip", "10.0.0.2"), ("local_ip", "10.0.0.1"));
        let flow = ("remote_ip", "flow");
        let key = ("key", "flow");
        assert_eq!(table(&[remote, local]), 0);
        assert_eq!(table(&[remote]), 1);
        assert_eq!(table(&[flow]), 4);
        assert_eq!(table(&[flow, ("local_ip", "flow"), key]), 11);
    }
}
