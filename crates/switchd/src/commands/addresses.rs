//! `fdb/...`: learned addresses; `mdb/...`: multicast groups, of which none are learned.

use super::{Answer, Commands, bridge, one_or_all};
use crate::config::ofport;
use crate::switch::{Bridge, Switch};
use std::fmt::Write;

/// Highest VLAN number.
const LAST_VLAN: u16 = 4095;

pub(super) fn register(commands: &Commands) {
    commands.answer("fdb/show", "bridge", (1, 1), show);
    commands.answer("fdb/flush", "[bridge]", (0, 1), flush);
    commands.answer("fdb/stats-show", "bridge", (1, 1), stats_show);
    commands.answer("fdb/stats-clear", "[bridge]", (0, 1), stats_clear);
    commands.answer("fdb/add", "bridge port vlan mac", (4, 4), add);
    commands.answer("fdb/del", "bridge vlan mac", (3, 3), delete);
    commands.answer("mdb/show", "bridge", (1, 1), |switch, arguments| {
        bridge(switch, &arguments[0]).and_then(|_| Err("multicast snooping is disabled".into()))
    });
    commands.answer(
        "mdb/flush",
        "[bridge]",
        (0, 1),
        |switch, arguments| match arguments.first() {
            Some(name) => {
                bridge(switch, name).and_then(|_| Err("multicast snooping is disabled".into()))
            }
            None => Ok("table successfully flushed".into()),
        },
    );
}

fn number(bridge: &Bridge, id: datapath::PortId) -> Option<String> {
    let ports = bridge.ports.borrow();
    let port = ports.values().find(|port| port.id == id)?;
    Some(if port.number == ofport::LOCAL {
        "LOCAL".into()
    } else {
        port.number.to_string()
    })
}

fn show(switch: &Switch, arguments: &[String]) -> Answer {
    let bridge = bridge(switch, &arguments[0])?;
    let entries = switch
        .with_datapath(|datapath| datapath.macs(bridge.id))
        .map_err(|error| error.to_string())?;
    let mut text = String::from(" port  VLAN  MAC                Age\n");
    for (id, entry) in entries.map_err(|error| error.to_string())? {
        let Some(port) = number(&bridge, id) else {
            continue;
        };
        let [a, b, c, d, e, f] = entry.mac;
        let age = entry.age.map_or("static".into(), |age| format!("{age:3}"));
        let _ = writeln!(
            text,
            "{port:>5}  {:4}  {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}  {age}",
            entry.vlan
        );
    }
    Ok(text)
}

fn flush(switch: &Switch, arguments: &[String]) -> Answer {
    for bridge in one_or_all(switch, arguments)? {
        let flushed = switch
            .with_datapath(|datapath| datapath.flush_macs(bridge.id, None))
            .map_err(|error| error.to_string())?;
        flushed.map_err(|error| error.to_string())?;
    }
    Ok("table successfully flushed".into())
}

fn stats_show(switch: &Switch, arguments: &[String]) -> Answer {
    let bridge = bridge(switch, &arguments[0])?;
    let stats = switch
        .with_datapath(|datapath| datapath.mac_stats(bridge.id))
        .map_err(|error| error.to_string())?;
    let stats = stats.map_err(|error| error.to_string())?;
    Ok(format!(
        "Statistics for bridge \"{}\":\n  \
           Current/maximum MAC entries in the table: {}/{}\n  \
           Current static MAC entries in the table : {}\n  \
           Total number of learned MAC entries     : {}\n  \
           Total number of expired MAC entries     : {}\n  \
           Total number of evicted MAC entries     : {}\n  \
           Total number of port moved MAC entries  : {}\n",
        bridge.name,
        stats.current,
        stats.maximum,
        stats.fixed,
        stats.learned,
        stats.expired,
        stats.evicted,
        stats.moved
    ))
}

fn stats_clear(switch: &Switch, arguments: &[String]) -> Answer {
    for bridge in one_or_all(switch, arguments)? {
        let cleared = switch
            .with_datapath(|datapath| datapath.clear_mac_stats(bridge.id))
            .map_err(|error| error.to_string())?;
        cleared.map_err(|error| error.to_string())?;
    }
    Ok("statistics successfully cleared".into())
}

/// Reads a VLAN as Open vSwitch reads numbers (0x for hexadecimal), but refuses numbers above 4095,
/// which Open vSwitch accepts.
fn vlan(text: &str) -> Result<u16, String> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number
        .ok()
        .filter(|vlan| *vlan <= LAST_VLAN)
        .ok_or_else(|| format!("bad VLAN {text}: 0 to {LAST_VLAN} are VLANs"))
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    super::odp::mac(text).ok_or_else(|| "bad MAC address".to_owned())
}

fn add(switch: &Switch, arguments: &[String]) -> Answer {
    let bridge = bridge(switch, &arguments[0])?;
    let place = bridge
        .number_of(&arguments[1])
        .and_then(|number| bridge.ports.borrow().get(&number).map(|port| port.id));
    let port = place.ok_or("software error, odp port is present but no ofp port")?;
    let (vlan, mac) = (vlan(&arguments[2])?, mac(&arguments[3])?);
    let before = entry(switch, &bridge, vlan, mac)?;
    let added = switch
        .with_datapath(|datapath| datapath.add_static_mac(bridge.id, port, vlan, mac))
        .map_err(|error| error.to_string())?;
    added.map_err(|error| error.to_string())?;
    Ok(match before {
        Some((other, true)) if other != port => {
            format!(
                "Overriding already existing static entry on {}",
                number(&bridge, other).unwrap_or_default()
            )
        }
        _ => String::new(),
    })
}

/// Describes an address: its port, and whether it is static.
fn entry(
    switch: &Switch,
    bridge: &Bridge,
    vlan: u16,
    mac: [u8; 6],
) -> Result<Option<(datapath::PortId, bool)>, String> {
    let entries = switch
        .with_datapath(|datapath| datapath.macs(bridge.id))
        .map_err(|error| error.to_string())?;
    let mut entries = entries.map_err(|error| error.to_string())?.into_iter();
    Ok(entries
        .find(|(_, entry)| (entry.vlan, entry.mac) == (vlan, mac))
        .map(|(port, entry)| (port, entry.age.is_none())))
}

fn delete(switch: &Switch, arguments: &[String]) -> Answer {
    let bridge = bridge(switch, &arguments[0])?;
    let (vlan, mac) = (vlan(&arguments[1])?, mac(&arguments[2])?);
    match entry(switch, &bridge, vlan, mac)? {
        Some((_, true)) => {
            let removed = switch
                .with_datapath(|datapath| datapath.remove_mac(bridge.id, vlan, mac))
                .map_err(|error| error.to_string())?;
            removed
                .map(|_| String::new())
                .map_err(|error| error.to_string())
        }
        _ => Err("could not find static mac entry".into()),
    }
}
