//! `dpif/...` and `dpctl/...`: the datapaths, one per datapath type, as in Open vSwitch.
//!
//! All bridges share one datapath and one set of workers here. Tools expect datapaths by type, with
//! numbered ports; so each type that some bridge has is shown as a datapath, and its ports are
//! numbered as Open vSwitch's userspace datapath numbers them.

use super::{Answer, Commands, bridge, bridges, device_type, tunnels};
use crate::switch::{Bridge, Port, Switch};
use datapath::PortId;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::rc::Rc;

/// Numbers of ports within a datapath, assigned when a command first sees the port. Tunnels that
/// share a port in Open vSwitch's datapath share a number.
#[derive(Default)]
pub(super) struct Numbers {
    given: RefCell<BTreeMap<PortId, Given>>,
}

/// A port's number, and the name it was assigned for: a tunnel's shared port can change.
struct Given {
    name: String,
    number: u32,
}

/// Chooses the number that Open vSwitch's userspace datapath gives to a new port, where `taken` are
/// in use: in a dummy datapath the number in its name (counted from 100 for names that begin with
/// `br`), if that is free; else the lowest free one.
fn choose_number(is_dummy: bool, name: &str, taken: &BTreeSet<u32>) -> u32 {
    let digits: String = name
        .chars()
        .skip_while(|letter| !letter.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    let base = if name.starts_with("br") { 100 } else { 0 };
    let named = digits
        .parse::<u32>()
        .ok()
        .and_then(|number| number.checked_add(base));
    match named {
        Some(number) if is_dummy && number > 0 && !taken.contains(&number) => number,
        _ => (1..)
            .find(|number| !taken.contains(number))
            .unwrap_or(u32::MAX),
    }
}

impl Numbers {
    /// Assigns numbers to new ports and forgets ports that are gone.
    pub(super) fn refresh(&self, switch: &Switch) {
        let bridges = bridges(switch);
        let mut given = self.given.borrow_mut();
        let mut present = BTreeMap::new();
        for bridge in &bridges {
            let datapath_type = bridge.settings.borrow().datapath_type.clone();
            for port in bridge.ports.borrow().values() {
                let name = match tunnels::shared_name(&port.config) {
                    Some(name) => name,
                    None if port.control.is_some() => port.config.interface_name.clone(),
                    None => continue,
                };
                present.insert(port.id, (port.order, datapath_type.clone(), name));
            }
        }
        given.retain(|id, given| (present.get(id)).is_some_and(|(_, _, name)| *name == given.name));
        let mut taken: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        let mut named: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let mut new = Vec::new();
        for (id, (order, datapath_type, name)) in &present {
            match given.get(id) {
                Some(given) => {
                    taken.entry(datapath_type).or_default().insert(given.number);
                    named.insert((datapath_type, name), given.number);
                }
                None => new.push((order, id, datapath_type, name)),
            }
        }
        new.sort();
        for (_, id, datapath_type, name) in new {
            let number = *named.entry((datapath_type, name)).or_insert_with(|| {
                let taken = taken.entry(datapath_type).or_default();
                let number = choose_number(switch.is_dummy_datapath(datapath_type), name, taken);
                taken.insert(number);
                number
            });
            let name = name.clone();
            given.insert(*id, Given { name, number });
        }
    }

    pub(super) fn of(&self, port: &Port) -> Option<u32> {
        self.given.borrow().get(&port.id).map(|given| given.number)
    }
}

/// Returns the datapath types in use.
pub(super) fn types(switch: &Switch) -> BTreeSet<String> {
    bridges(switch)
        .iter()
        .map(|bridge| bridge.settings.borrow().datapath_type.clone())
        .collect()
}

pub(super) fn bridges_of(switch: &Switch, datapath_type: &str) -> Vec<Rc<Bridge>> {
    bridges(switch)
        .into_iter()
        .filter(|bridge| bridge.settings.borrow().datapath_type == datapath_type)
        .collect()
}

pub(super) fn register(commands: &Commands) {
    let numbers = Rc::clone(&commands.numbers);
    commands.answer("dpif/show", "", (0, 0), move |switch, _| {
        Ok(show(switch, &numbers))
    });
    commands.answer("dpif/dump-dps", "", (0, 0), |switch, _| {
        let name = |datapath_type: String| {
            let bridges = bridges_of(switch, &datapath_type);
            bridges
                .iter()
                .map(|bridge| format!("{datapath_type}@{}\n", bridge.name))
                .collect::<String>()
        };
        Ok(types(switch).into_iter().map(name).collect())
    });
    commands.answer(
        "dpif/dump-flows",
        "[-m] [--names | --no-names] bridge",
        (1, 3),
        |switch, arguments| {
            bridge(switch, arguments.last().map_or("", |name| name)).map(|_| String::new())
        },
    );
    let numbers = Rc::clone(&commands.numbers);
    commands.answer(
        "dpctl/show",
        "[-s] [dp...]",
        (0, usize::MAX),
        move |switch, arguments| dpctl_show(switch, &numbers, arguments),
    );
    commands.answer("dpctl/dump-dps", "", (0, 0), |switch, _| {
        Ok(types(switch)
            .iter()
            .map(|datapath_type| format!("{datapath_type}@ovs-{datapath_type}\n"))
            .collect())
    });
    let numbers = Rc::clone(&commands.numbers);
    commands.answer(
        "dpctl/dump-flows",
        "[-m] [--names] [dp] [filter=..] [type=..] [pmd=..]",
        (0, 6),
        move |switch, arguments| dpctl_dump_flows(switch, &numbers, arguments),
    );
    commands.answer("upcall/show", "", (0, 0), |switch, _| {
        Ok(upcall_show(switch))
    });
}

/// Returns how many packets the devices of a datapath type have received. Each packet is looked up
/// by the worker that receives it, so none counts as missed.
fn received(switch: &Switch, datapath_type: &str) -> u64 {
    let mut packets = 0;
    for bridge in bridges_of(switch, datapath_type) {
        for port in bridge
            .ports
            .borrow()
            .values()
            .filter(|port| port.control.is_some())
        {
            if let Ok(Ok(stats)) = switch.with_datapath(|datapath| datapath.port_stats(port.id)) {
                packets += stats.rx_packets;
            }
        }
    }
    packets
}

/// Returns a port's device options, as commands show them behind its type.
fn configuration(switch: &Switch, port: &Port) -> BTreeMap<&'static str, String> {
    if let Some(spec) = &port.config.tunnel {
        return tunnels::configuration(spec);
    }
    let mut shown = BTreeMap::new();
    match port.config.device.as_str() {
        "patch" => {
            shown.insert(
                "peer",
                port.config.options.get("peer").cloned().unwrap_or_default(),
            );
        }
        "dpdk" | "dpdkvhostuser" | "dpdkvhostuserclient" | "dummy-pmd" | "afxdp" => {
            let ports = switch
                .with_datapath(|datapath| datapath.ports())
                .unwrap_or_default();
            let queues = ports
                .iter()
                .find(|info| info.id == port.id)
                .map_or(0, |info| info.queues);
            let queues = port.guest_queues().map_or(queues, usize::from);
            if port.config.device == "afxdp" {
                let mode = port.config.options.get("xdp-mode");
                let mode = mode.map_or("best-effort", String::as_str);
                shown.insert("n_rxq", queues.to_string());
                // DPDK's driver always asks for it.
                shown.insert("use-need-wakeup", "true".into());
                shown.insert("xdp-mode", mode.into());
                return shown;
            }
            let workers = switch
                .with_datapath(|datapath| datapath.workers().len())
                .unwrap_or(0);
            let wanted = port
                .config
                .options
                .get("n_rxq")
                .cloned()
                .unwrap_or_else(|| queues.to_string());
            shown.insert("configured_rx_queues", queues.to_string());
            shown.insert("requested_rx_queues", wanted);
            shown.insert("configured_tx_queues", workers.to_string());
            shown.insert("requested_tx_queues", workers.to_string());
            if port.config.device.starts_with("dpdk") {
                shown.insert("mtu", port.info.mtu.to_string());
            }
        }
        _ => {}
    }
    shown
}

/// Returns the device as `(TYPE)` or `(TYPE: key=value, ...)`.
fn kind(switch: &Switch, bridge: &Bridge, port: &Port) -> String {
    let shown = configuration(switch, port);
    in_brackets(device_type(switch, bridge, port), &shown)
}

fn in_brackets(kind: &str, shown: &BTreeMap<&'static str, String>) -> String {
    let pairs: Vec<String> = shown
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let colon = if pairs.is_empty() { "" } else { ": " };
    format!("({kind}{colon}{})", pairs.join(", "))
}

fn show(switch: &Switch, numbers: &Numbers) -> String {
    numbers.refresh(switch);
    let mut text = String::new();
    for datapath_type in types(switch) {
        let _ = writeln!(
            text,
            "{datapath_type}@ovs-{datapath_type}: hit:{} missed:0",
            received(switch, &datapath_type)
        );
        for bridge in bridges_of(switch, &datapath_type) {
            let _ = writeln!(text, "  {}:", bridge.name);
            let ports = bridge.ports.borrow();
            let mut sorted: Vec<&Port> = ports.values().collect();
            sorted.sort_by_key(|port| &port.config.interface_name);
            for port in sorted {
                let number = numbers
                    .of(port)
                    .map_or("none".into(), |number| number.to_string());
                let _ = writeln!(
                    text,
                    "    {} {}/{number}: {}",
                    port.config.interface_name,
                    port.number,
                    kind(switch, &bridge, port)
                );
            }
        }
    }
    text
}

/// Returns the datapath type that a name stands for: `netdev@ovs-netdev`, or `ovs-netdev` alone.
fn find(switch: &Switch, name: &str) -> Option<String> {
    types(switch).into_iter().find(|datapath_type| {
        name == format!("ovs-{datapath_type}")
            || name == format!("{datapath_type}@ovs-{datapath_type}")
    })
}

/// Returns the datapath type that `ofproto/trace` names, as `ovs-netdev` or `netdev`; without a
/// name, the only one there is.
pub(super) fn named(switch: &Switch, name: Option<&str>) -> Option<String> {
    let types = types(switch);
    match name {
        Some(name) => {
            let name = name.strip_prefix("ovs-").unwrap_or(name);
            types
                .into_iter()
                .find(|datapath_type| datapath_type == name)
        }
        None if types.len() == 1 => types.into_iter().next(),
        None => None,
    }
}

fn dpctl_show(switch: &Switch, numbers: &Numbers, arguments: &[String]) -> Answer {
    numbers.refresh(switch);
    let Arguments {
        statistics,
        words: names,
        ..
    } = Arguments::read(arguments)?;
    let mut chosen = Vec::new();
    for name in names {
        let program = &switch.shell.options.program;
        chosen.push(find(switch, name).ok_or_else(|| {
            format!("{program}: opening datapath {name} failed (No such device)")
        })?);
    }
    if names.is_empty() {
        chosen.extend(types(switch));
    }
    Ok(chosen
        .iter()
        .map(|datapath_type| dpctl_show_one(switch, numbers, datapath_type, statistics))
        .collect())
}

fn dpctl_show_one(
    switch: &Switch,
    numbers: &Numbers,
    datapath_type: &str,
    statistics: bool,
) -> String {
    let mut text = format!(
        "{datapath_type}@ovs-{datapath_type}:\n  lookups: hit:{} missed:0 lost:0\n  flows: 0\n",
        received(switch, datapath_type)
    );
    let mut lines = BTreeMap::new();
    // Sums over all tunnels that share a port.
    let mut shared: BTreeMap<u32, HashMap<String, u64>> = BTreeMap::new();
    for bridge in bridges_of(switch, datapath_type) {
        for port in bridge.ports.borrow_mut().values_mut() {
            let Some(number) = numbers.of(port) else {
                continue;
            };
            if let (Some(name), Some(spec)) =
                (tunnels::shared_name(&port.config), &port.config.tunnel)
            {
                let shown = tunnels::shared_configuration(spec);
                let kind = in_brackets(&port.config.kind, &shown);
                let mut line = format!("  port {number}: {name} {kind}\n");
                if statistics {
                    let sums = shared.entry(number).or_default();
                    for (name, value) in bridge.port_counters(port) {
                        *sums.entry(name).or_default() += value;
                    }
                    line += &port_statistics(sums);
                }
                lines.insert(number, line);
                continue;
            }
            let kind = kind(switch, &bridge, port);
            // Open vSwitch leaves the default type out here.
            let kind = if kind == "(system)" {
                String::new()
            } else {
                format!(" {kind}")
            };
            let mut line = format!("  port {number}: {}{kind}\n", port.config.interface_name);
            if statistics {
                line += &port_statistics(&bridge.port_counters(port));
            }
            lines.insert(number, line);
        }
    }
    text.extend(lines.into_values());
    text
}

fn port_statistics(counters: &HashMap<String, u64>) -> String {
    let of = |name: &str| counters.get(name).map_or("?".into(), u64::to_string);
    format!(
        "    RX packets:{} errors:{} dropped:{} overruns:{} frame:{}\n    \
             TX packets:{} errors:{} dropped:{} aborted:{} carrier:{}\n    collisions:{}\n    RX bytes:{}{}  TX bytes:{}{}\n",
        of("rx_packets"),
        of("rx_errors"),
        of("rx_dropped"),
        of("rx_over_err"),
        of("rx_frame_err"),
        of("tx_packets"),
        of("tx_errors"),
        of("tx_dropped"),
        of("tx_aborted_errors"),
        of("tx_carrier_errors"),
        of("collisions"),
        of("rx_bytes"),
        scaled(counters.get("rx_bytes")),
        of("tx_bytes"),
        scaled(counters.get("tx_bytes"))
    )
}

/// Formats a number of bytes of 1 KiB or more as ` (1.5 KiB)`; empty for fewer.
fn scaled(bytes: Option<&u64>) -> String {
    const UNITS: [(u64, &str); 4] = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    let Some(bytes) = bytes else {
        return String::new();
    };
    match UNITS.iter().find(|(unit, _)| bytes >= unit) {
        Some((unit, name)) => format!(" ({:.1} {name})", *bytes as f64 / *unit as f64),
        None => String::new(),
    }
}

/// Lists no flows, because none is cached; wrong arguments are errors all the same. As in Open
/// vSwitch, what chooses flows is read from the end, each kind once.
fn dpctl_dump_flows(switch: &Switch, numbers: &Numbers, arguments: &[String]) -> Answer {
    let program = &switch.shell.options.program;
    let mut words = Arguments::read(arguments)?.words;
    let (mut filter, mut kinds) = (None, None);
    while let Some((last, rest)) = words.split_last() {
        if let (None, Some(text)) = (filter, last.strip_prefix("filter=")) {
            filter = Some(text);
        } else if let (None, Some(text)) = (kinds, last.strip_prefix("type=")) {
            kinds = Some(text);
        } else if let Some(text) = last.strip_prefix("pmd=") {
            // It refuses what is no number without a word.
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            if !digits.starts_with(|letter: char| letter.is_ascii_digit()) {
                return Err(String::new());
            }
        } else {
            break;
        }
        words = rest;
    }
    let datapath_type = opened(switch, words, 1)?;
    if let Some(text) = filter {
        numbers.refresh(switch);
        let port = |name: &str| {
            let bridges = bridges_of(switch, &datapath_type);
            bridges.iter().find_map(|bridge| {
                let ports = bridge.ports.borrow();
                let named = |port: &&Port| port.config.interface_name == name;
                numbers.of(ports.values().find(named)?)
            })
        };
        openflow::parse::packet(text, &port)
            .map_err(|error| format!("{program}: Failed to parse filter ({error})"))?;
    }
    const KINDS: [&str; 7] = [
        "ovs",
        "tc",
        "dpdk",
        "offloaded",
        "non-offloaded",
        "partially-offloaded",
        "all",
    ];
    let mut kinds = kinds
        .into_iter()
        .flat_map(|list| list.split_terminator(','));
    match kinds.find(|kind| !KINDS.contains(kind)) {
        Some(kind) => Err(format!(
            "{program}: Failed to parse type ({kind}) (Invalid argument)"
        )),
        None => Ok(String::new()),
    }
}

/// What a `dpctl` command is given: options, and the words behind them.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'w> {
    /// `-m`.
    pub more: bool,
    /// `-s`.
    pub statistics: bool,
    pub words: &'w [String],
}

impl Arguments<'_> {
    /// Reads options as Open vSwitch does: those of any `dpctl` command, in front of its words.
    pub fn read(words: &[String]) -> Result<Arguments<'_>, String> {
        const WITHOUT_EFFECT: [&str; 5] = [
            "--clear",
            "--may-create",
            "--read-only",
            "--names",
            "--no-names",
        ];
        let mut given = Arguments {
            more: false,
            statistics: false,
            words,
        };
        while let Some((word, rest)) = given.words.split_first() {
            match word.as_str() {
                "--more" => given.more = true,
                "--statistics" => given.statistics = true,
                long if WITHOUT_EFFECT.contains(&long) => {}
                long if long.starts_with("--") => {
                    return Err(format!("Unrecognized option {long}"));
                }
                short if short.len() > 1 && short.starts_with('-') => {
                    for letter in short[1..].chars() {
                        match letter {
                            'm' => given.more = true,
                            's' => given.statistics = true,
                            _ => return Err(format!("Unrecognized option -{letter}")),
                        }
                    }
                }
                _ => break,
            }
            given.words = rest;
        }
        Ok(given)
    }
}

/// Returns whether the first of a command's words names a datapath.
pub(super) fn begins_with_name(switch: &Switch, words: &[String]) -> bool {
    words
        .first()
        .is_some_and(|name| find(switch, name).is_some())
}

/// Returns the type of the datapath that a command is about: the one that its first word names, or
/// the only one there is. With as many words as the command takes at `most`, the first one must
/// name it.
pub(super) fn opened(switch: &Switch, words: &[String], most: usize) -> Result<String, String> {
    let program = &switch.shell.options.program;
    if let Some(named) = words.first().and_then(|name| find(switch, name)) {
        return Ok(named);
    }
    let why = match types(switch) {
        _ if words.len() == most => String::new(),
        types if types.len() > 1 => format!("{program}: multiple datapaths, specify one\n"),
        types => match types.into_iter().next() {
            Some(only) => return Ok(only),
            None => format!("{program}: no datapaths exist\n"),
        },
    };
    Err(format!(
        "{why}{program}: datapath not found (Invalid argument)"
    ))
}

fn upcall_show(switch: &Switch) -> String {
    let limit = switch
        .applied
        .borrow()
        .global
        .as_ref()
        .map_or(0, |global| global.flow_limit);
    let mut text = String::new();
    for datapath_type in types(switch) {
        let _ = writeln!(
            text,
            "{datapath_type}@ovs-{datapath_type}:\n  flows         : (current 0) (avg 0) (max 0) (limit {limit})\n  \
             dump duration : 0ms\n  ufid enabled : false\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbered_as_open_vswitch_numbers_them() {
        let taken = BTreeSet::from([1, 2]);
        assert_eq!(choose_number(true, "br0", &taken), 100);
        assert_eq!(choose_number(true, "p7", &taken), 7);
        assert_eq!(choose_number(true, "p2", &taken), 3);
        assert_eq!(choose_number(true, "p", &taken), 3);
        assert_eq!(choose_number(true, "p0", &BTreeSet::new()), 1);
        assert_eq!(choose_number(false, "p7", &taken), 3);
        assert_eq!(choose_number(true, "p99999999999", &taken), 3);
    }

    #[test]
    fn bytes_are_scaled_from_a_kibibyte_on() {
        assert_eq!(scaled(Some(&1023)), "");
        assert_eq!(scaled(Some(&1536)), " (1.5 KiB)");
        assert_eq!(scaled(Some(&(3 << 20))), " (3.0 MiB)");
        assert_eq!(scaled(None), "");
    }
}
