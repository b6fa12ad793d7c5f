//! `sluice/stats` for `sluice top` and other programs, `sluice/tables` for people.

use super::{Answer, Commands, bridges, one_or_all};
use crate::switch::report::PortError;
use crate::switch::{Bridge, Switch};
use conntrack::Counter;
use program::table::Description;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::LazyLock;
use std::time::Instant;

/// The time from which `time_us` counts.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(super) fn register(commands: &Commands) {
    LazyLock::force(&START);
    commands.answer("sluice/stats", "", (0, 0), |switch, _| {
        Ok(stats(switch).to_string())
    });
    commands.answer("sluice/tables", "[bridge]", (0, 1), tables);
}

/// Reads every counter once, for `sluice top`.
fn stats(switch: &Switch) -> Value {
    let bridges = bridges(switch);
    json!({
        "time_us": START.elapsed().as_micros() as u64,
        "tsc_hz": datapath::clock::cycles_per_second(),
        "ports": bridges.iter().flat_map(|bridge| ports(bridge)).collect::<Vec<_>>(),
        "port_errors": port_errors(switch),
        "control": control(),
        "workers": workers(switch),
        "stages": stages(switch),
        "connections": connections(switch),
        "monitors": monitors(switch),
        "tables": bridges.iter().flat_map(|bridge| table_counters(bridge)).collect::<Vec<_>>(),
        "drops": super::counters::drops(switch),
    })
}

fn ports(bridge: &Bridge) -> Vec<Value> {
    let mut ports = bridge.ports.borrow_mut();
    let describe = |port: &mut crate::switch::Port| {
        let counters = bridge.port_counters(port);
        let of = |name: &str| counters.get(name).copied().unwrap_or(0);
        json!({
            "bridge": bridge.name,
            "name": port.config.interface_name,
            "ofport": port.number,
            "type": port.config.kind,
            "rx_packets": of("rx_packets"),
            "rx_bytes": of("rx_bytes"),
            "tx_packets": of("tx_packets"),
            "tx_bytes": of("tx_bytes"),
            "rx_dropped": of("rx_dropped"),
            "tx_dropped": of("tx_dropped"),
            "link_state": link_state(port),
            "drops": lost(&counters),
        })
    };
    ports.values_mut().map(describe).collect()
}

/// Lists ports that could not be opened, or are not as the database wants them.
fn port_errors(switch: &Switch) -> Vec<Value> {
    let describe = |port: &PortError| {
        json!({
            "bridge": port.bridge,
            "name": port.name,
            "type": port.kind,
            "open": port.is_open,
            "error": port.error,
        })
    };
    switch.port_errors.borrow().iter().map(describe).collect()
}

/// Returns in a word why a port carries no packets, or `up`.
fn link_state(port: &crate::switch::Port) -> &'static str {
    match () {
        () if port.closed.is_some() => "error",
        () if !port.info.present => "gone",
        () if !port.info.admin_up => "off",
        () if !port.info.link_up => "down",
        () => "up",
    }
}

/// Returns a port's losses by reason, without zeroes. Policed packets are also part of the sums
/// `rx_dropped` and `tx_dropped`; they are subtracted there, so that each counts once.
fn lost(counters: &HashMap<String, u64>) -> BTreeMap<&str, u64> {
    const SUMS: [(&str, &str); 2] = [
        ("rx_dropped", "ovs_rx_qos_drops"),
        ("tx_dropped", "ovs_tx_qos_drops"),
    ];
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    let reasons = counters.iter().filter_map(|(name, value)| {
        let kind = SUMS.iter().find(|(sum, _)| sum == name);
        let value = value - kind.map_or(0, |(_, part)| of(part)).min(*value);
        let is_loss = ["drop", "err", "tiny_segments"]
            .iter()
            .any(|word| name.contains(word));
        (is_loss && value > 0).then_some((name.as_str(), value))
    });
    reasons.collect()
}

/// Zones of tracked connections that are reported.
const ZONES: usize = 8;

/// What keeps connections from being committed: limits, others with the same replies, and the want
/// of a free address and port.
const REFUSALS: [Counter; 4] = [
    Counter::RefusedFull,
    Counter::RefusedZoneLimit,
    Counter::RefusedClash,
    Counter::NatExhausted,
];

/// Reports tracked connections; null before there is a datapath.
fn connections(switch: &Switch) -> Value {
    let Some(tracker) = switch.tracker() else {
        return Value::Null;
    };
    let count = |counter| tracker.counters().get(counter);
    let zone = |(zone, count): (u16, u32)| {
        json!({
            "zone": zone,
            "count": count,
            "limit": tracker.zone_limit(Some(zone)).or(tracker.zone_limit(None)),
        })
    };
    json!({
        "count": tracker.count(),
        "limit": tracker.limit(),
        "expected": tracker.expected(),
        "created": count(Counter::Created),
        "expired": count(Counter::Expired),
        "refused": REFUSALS.into_iter().map(count).sum::<u64>(),
        "evicted": count(Counter::Evicted),
        "zones": tracker.largest_zones(ZONES).into_iter().map(zone).collect::<Vec<_>>(),
    })
}

/// Reports what workers' cycles have gone to; null unless that is or was accounted.
fn stages(switch: &Switch) -> Value {
    let shown = super::stages::Shown::read(switch);
    match shown.is_something() {
        true => shown.json(),
        false => Value::Null,
    }
}

/// Reports BFD sessions; null without any.
fn monitors(switch: &Switch) -> Value {
    let Some(all) = switch.monitored() else {
        return Value::Null;
    };
    let not_up = all.not_up.iter().map(|(interface, state, remote)| {
        json!({
            "interface": interface,
            "state": state.0.name(),
            "diagnostic": state.1.name(),
            "remote_state": remote.name(),
        })
    });
    json!({
        "count": all.count(),
        "states": all.by_state().into_iter().collect::<BTreeMap<_, _>>(),
        "forwarding": all.forwarding,
        "flaps": all.flaps,
        "not_up": not_up.collect::<Vec<_>>(),
    })
}

/// Reports how long the control thread's turns have kept its other tasks waiting.
fn control() -> Value {
    let turns = crate::turns::turns();
    json!({
        "longest_turn_us": turns.longest.as_micros() as u64,
        "longest_turn_away_us": turns.away.as_micros() as u64,
        "longest_turn_doing": turns.doing,
        "long_turns": turns.long,
    })
}

fn workers(switch: &Switch) -> Vec<Value> {
    let workers = switch
        .with_datapath(|datapath| {
            datapath.take_turns(false);
            let steered = datapath.steering().workers;
            datapath
                .workers()
                .into_iter()
                .zip(steered)
                .collect::<Vec<_>>()
        })
        .unwrap_or_default();
    let describe = |(worker, steered): &(datapath::WorkerInfo, datapath::SteeringWorker)| {
        json!({
            "name": worker.name,
            "cpu": worker.cpu,
            "busy_cycles": worker.stats.busy_cycles,
            "idle_cycles": worker.stats.idle_cycles,
            "packets": worker.stats.packets,
            "batches": worker.stats.batches,
            "sleeps": worker.stats.sleeps,
            "naps": worker.stats.naps,
            "naps_cut": worker.stats.naps_cut,
            "longest_turn_us": worker.turns.longest.as_micros() as u64,
            "longest_turn_away_us": worker.turns.away.as_micros() as u64,
            "longest_turn_doing": worker.turns.doing,
            "most_work_us": worker.turns.most_work.as_micros() as u64,
            "most_work_doing": worker.turns.most_work_doing,
            "long_turns": worker.turns.long,
            "long_turns_of_work": worker.turns.long_work,
            "steering": {
                "load": steered.load,
                "handed": worker.stats.handed,
                "taken": worker.stats.taken,
                "refused": steered.refused,
                "parked": steered.parked,
                "away": steered.away,
                "moves": steered.moved,
                "moves_given_up": steered.gave_up_full + steered.gave_up_late,
                "keeps": steered.keeps.map(|keeps| keeps.name()),
            },
        })
    };
    workers.iter().map(describe).collect()
}

/// A table's counters, and how it looks rules up.
struct Table {
    stats: openflow::stats::TableStats,
    lookup: Description,
}

/// Returns the tables that hold rules or have been looked up.
fn tables_in_use(bridge: &Bridge) -> Vec<Table> {
    let pipeline = bridge.pipeline.borrow();
    let used = pipeline
        .table_stats()
        .into_iter()
        .filter(|table| table.active > 0 || table.lookups > 0);
    used.map(|stats| Table {
        lookup: pipeline.describe(stats.table),
        stats,
    })
    .collect()
}

fn table_counters(bridge: &Bridge) -> Vec<Value> {
    let describe = |table: Table| {
        json!({
            "bridge": bridge.name,
            "id": table.stats.table,
            "rules": table.stats.active,
            "lookups": table.stats.lookups,
            "matches": table.stats.matched,
            "template": table.lookup.template.name(),
        })
    };
    tables_in_use(bridge).into_iter().map(describe).collect()
}

fn tables(switch: &Switch, arguments: &[String]) -> Answer {
    let mut text = format!(
        "{:<16} {:>5} {:>9}  {:<11} {:>6} {:>12} {:>14} {:>14} {:>10}  {}\n",
        "bridge",
        "table",
        "rules",
        "template",
        "masks",
        "memory",
        "accesses",
        "cycles",
        "lookups",
        "matches"
    );
    for bridge in one_or_all(switch, arguments)? {
        for Table { stats, lookup } in tables_in_use(&bridge) {
            let _ = writeln!(
                text,
                "{:<16} {:>5} {:>9}  {:<11} {:>6} {:>12} {:>14} {:>14} {:>10}  {}",
                bridge.name,
                stats.table,
                stats.active,
                lookup.template.name(),
                lookup.masks,
                lookup.bytes,
                range(lookup.typical.accesses, lookup.worst.accesses),
                range(lookup.typical_cycles(), lookup.worst_cycles()),
                stats.lookups,
                stats.matched
            );
            let _ = writeln!(text, "    {}", lookup.why);
        }
        let fused = bridge.pipeline.borrow().fused_report();
        if fused.rules + fused.left_out > 0 {
            let _ = writeln!(
                text,
                "{}: behind {} rules stages are made one, in {} ways (of {} at most, {} bytes), which {} packets have taken; {} rules left out for want of room or time",
                bridge.name,
                fused.rules,
                fused.ways,
                fused.ways_max,
                fused.bytes,
                fused.packets,
                fused.left_out
            );
        }
    }
    Ok(text)
}

/// Formats the cost of a typical lookup, and of the worst.
fn range(typical: f64, worst: f64) -> String {
    format!("{typical:.1} to {worst:.0}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_once_and_by_reason() {
        let counters = [
            ("rx_packets", 9),
            ("rx_dropped", 7),
            ("ovs_rx_qos_drops", 5),
            ("tx_dropped", 3),
            ("ovs_tx_qos_drops", 3),
            ("tx_errors", 0),
        ];
        let counters = counters
            .map(|(name, value)| (name.to_owned(), value))
            .into();
        let told: Vec<(&str, u64)> = lost(&counters).into_iter().collect();
        let wanted = [
            ("ovs_rx_qos_drops", 5),
            ("ovs_tx_qos_drops", 3),
            ("rx_dropped", 2),
        ];
        assert_eq!(told, wanted);
    }
}
