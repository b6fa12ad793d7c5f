//! The contents of `sluice top` from two readings: totals, then tables with the busiest rows first.

use super::lay_out::{
    Look, Room, Section, Shown, figures, harmless, spare_figures, words, wrapped,
};
use crate::stats::{
    Connections, Port, Queue, Reading, Stage, StagesTotal, Stats, Steering, Worker, per_second,
    worker_rates,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Returns all lines of the page.
pub(super) fn all(before: &Reading, after: &Reading, width: usize) -> Vec<Shown> {
    let (old, new) = (&before.stats, &after.stats);
    let interval_us = new.time_us.saturating_sub(old.time_us);
    let head = totals(old, new, interval_us);
    let sections = [
        Some(ports(old, new, interval_us)),
        queues(before, after, interval_us),
        Some(drops(before, after, interval_us)).filter(|section| !section.rows.is_empty()),
        rules(after),
        Some(workers(old, new, interval_us)),
        steering(old, new, interval_us),
        turns(new),
        stages(old, new, interval_us),
        connections(old, new, interval_us),
        monitors(new),
        Some(tables(old, new, interval_us)),
    ];
    let head = (head.iter()).flat_map(|text| shown(text, width, Look::Row));
    let sections = sections.into_iter().flatten().map(|mut section| {
        let cells = section.rows.iter_mut().flatten();
        cells.for_each(|cell| *cell = harmless(cell));
        section
    });
    head.chain(errors(new, width))
        .chain(sections.flat_map(|section| section.lines(width)))
        .collect()
}

/// Breaks a text into lines that fit the page.
fn shown(text: &str, width: usize, look: Look) -> impl Iterator<Item = Shown> {
    let lines = wrapped(text, width).into_iter();
    lines.map(move |text| Shown { text, look })
}

/// Maximum number of errors shown; the database has all.
const ERRORS: usize = 20;

/// Returns the ports that could not be opened, or differ from the database, with the full reason.
fn errors(after: &Stats, width: usize) -> Vec<Shown> {
    let all = &after.port_errors;
    if all.is_empty() {
        return Vec::new();
    }
    let title = match all.len().saturating_sub(ERRORS) {
        0 => "Ports with errors".to_owned(),
        more => format!("Ports with errors (and {more} more)"),
    };
    let mut lines = vec![Shown {
        text: String::new(),
        look: Look::Row,
    }];
    lines.extend(shown(&title, width, Look::Title));
    // Ports that carry nothing come first.
    let (open, closed): (Vec<_>, Vec<_>) = all.iter().partition(|port| port.open);
    for port in closed.into_iter().chain(open).take(ERRORS) {
        let what = match (port.open, port.error.is_empty()) {
            (false, true) => "not opened".to_owned(),
            (false, false) => format!("not opened: {}", port.error),
            (true, _) => format!("open, but {}", port.error),
        };
        let kind = kind_of(&port.kind);
        let text = format!("{} ({}, {kind}) {what}", port.name, port.bridge);
        let text = harmless(&text.replace('\n', " "));
        lines.extend(shown(&text, width, Look::Row));
    }
    lines
}

/// Returns a type's name; empty means a kernel interface.
fn kind_of(kind: &str) -> &str {
    match kind {
        "" => "system",
        kind => kind,
    }
}

/// Formats a rate with three digits and a unit: 27.5M.
fn short(value: f64) -> String {
    for (limit, unit) in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")] {
        // What would round to 1000 of the smaller unit is 1 of this one.
        if value >= limit * 0.9995 {
            return match value / limit {
                scaled if scaled < 9.995 => format!("{scaled:.2}{unit}"),
                scaled if scaled < 99.95 => format!("{scaled:.1}{unit}"),
                scaled => format!("{scaled:.0}{unit}"),
            };
        }
    }
    format!("{value:.0}")
}

/// Formats seconds with three digits and a unit.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1}us", s * 1e6),
        s if s < 1.0 => format!("{:.2}ms", s * 1e3),
        s => format!("{s:.2}s"),
    }
}

fn optional(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"))
}

/// Formats the time since the switch was started.
fn uptime(us: u64) -> String {
    let seconds = us / 1_000_000;
    let clock = format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    );
    match seconds / 86_400 {
        0 => clock,
        days => format!("{days} d {clock}"),
    }
}

/// Rows with the value by which they are sorted, the largest first; rows with equal values stay in
/// their order.
struct Sorted(Vec<(f64, Vec<String>)>);

impl Sorted {
    fn rows(mut self) -> Vec<Vec<String>> {
        self.0.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.0.into_iter().map(|(_, row)| row).collect()
    }
}

fn totals(before: &Stats, after: &Stats, interval_us: u64) -> [String; 2] {
    let old = ports_by_name(before);
    let rate = |of: fn(&Port) -> u64| -> f64 {
        let ports = after.ports.iter().map(|port| {
            let old = old
                .get(&(port.bridge.as_str(), port.name.as_str()))
                .unwrap_or(&port);
            per_second(of(old), of(port), interval_us)
        });
        // The sum of nothing is -0.
        ports.sum::<f64>() + 0.0
    };
    // The switch also counts packets that ports drop on egress; those dropped before the switch
    // receives them only the port counts.
    let lost = |stats: &Stats| {
        let ports = stats
            .ports
            .iter()
            .filter_map(|port| port.drops.get("rx_dropped"));
        stats.drops.values().chain(ports).sum::<u64>()
    };
    let down = after.ports.iter().filter(|port| !is_up(port)).count();
    let down = match down {
        0 => String::new(),
        down => format!(" ({down} not up)"),
    };
    let closed = after.port_errors.iter().filter(|port| !port.open).count();
    let closed = match closed {
        0 => String::new(),
        closed => format!(", {closed} not opened"),
    };
    let rules: u64 = after.tables.iter().map(|table| table.rules).sum();
    [
        format!(
            "up {}, {} ports{down}{closed}, {} workers, {rules} rules",
            uptime(after.time_us),
            after.ports.len(),
            after.workers.len()
        ),
        format!(
            "in {}/s {}bit/s, out {}/s {}bit/s, dropped {}/s ({} so far)",
            short(rate(|port| port.rx_packets)),
            short(rate(|port| port.rx_bytes) * 8.0),
            short(rate(|port| port.tx_packets)),
            short(rate(|port| port.tx_bytes) * 8.0),
            short(per_second(lost(before), lost(after), interval_us)),
            lost(after)
        ),
    ]
}

fn is_up(port: &Port) -> bool {
    matches!(port.link_state.as_str(), "up" | "")
}

fn ports_by_name(stats: &Stats) -> BTreeMap<(&str, &str), &Port> {
    let ports = stats.ports.iter();
    ports
        .map(|port| ((port.bridge.as_str(), port.name.as_str()), port))
        .collect()
}

fn ports(before: &Stats, after: &Stats, interval_us: u64) -> Section {
    let old_ports = ports_by_name(before);
    let rows = after.ports.iter().map(|port| {
        let old = old_ports
            .get(&(port.bridge.as_str(), port.name.as_str()))
            .copied()
            .unwrap_or(port);
        let rate = |of: fn(&Port) -> u64| per_second(of(old), of(port), interval_us);
        let packets = [rate(|port| port.rx_packets), rate(|port| port.tx_packets)];
        let row = vec![
            port.name.clone(),
            port.bridge.clone(),
            port.ofport.to_string(),
            kind_of(&port.kind).to_owned(),
            match port.link_state.as_str() {
                "" => "?".to_owned(),
                state => state.to_owned(),
            },
            short(packets[0]),
            short(rate(|port| port.rx_bytes) * 8.0),
            short(packets[1]),
            short(rate(|port| port.tx_bytes) * 8.0),
            short(rate(|port| port.rx_dropped + port.tx_dropped)),
            short((port.rx_dropped + port.tx_dropped) as f64),
        ];
        (packets[0] + packets[1], row)
    });
    Section {
        title: "Ports".into(),
        columns: vec![
            words("port", Room::Cut(15)),
            words("bridge", Room::Cut(8)),
            figures("no"),
            words("type", Room::Spare),
            words("link", Room::Needed),
            figures("in/s"),
            figures("bit/s"),
            figures("out/s"),
            figures("bit/s"),
            figures("drop/s"),
            figures("drops"),
        ],
        rows: Sorted(rows.collect()).rows(),
    }
}

fn queues(before: &Reading, after: &Reading, interval_us: u64) -> Option<Section> {
    let old: BTreeMap<(&str, u32), &Queue> = before
        .queues
        .queues
        .iter()
        .map(|queue| ((queue.port.as_str(), queue.queue), queue))
        .collect();
    let rows = after.queues.queues.iter().map(|queue| {
        let old = old
            .get(&(queue.port.as_str(), queue.queue))
            .copied()
            .unwrap_or(queue);
        let rate = |of: fn(&Queue) -> u64| per_second(of(old), of(queue), interval_us);
        let packets = rate(|queue| queue.sent_packets);
        let row = vec![
            queue.port.clone(),
            queue.queue.to_string(),
            short(queue.min_rate as f64),
            short(packets),
            short(rate(|queue| queue.sent_bytes) * 8.0),
            queue.waiting.to_string(),
            measured(old, queue).map_or_else(|| "-".to_owned(), time),
            foretold(queue),
            queue.waited_p99.map_or_else(|| "-".to_owned(), time),
            short(rate(|queue| queue.dropped.values().sum())),
            short(queue.dropped.values().sum::<u64>() as f64),
        ];
        (packets, row)
    });
    let rows = Sorted(rows.collect()).rows();
    let title = match after.queues.left_out {
        0 => "Queues".to_owned(),
        more => format!("Queues (and {more} more)"),
    };
    (!rows.is_empty()).then_some(Section {
        title,
        columns: vec![
            words("port", Room::Cut(10)),
            figures("queue"),
            spare_figures("guaranteed"),
            figures("out/s"),
            figures("bit/s"),
            figures("wait"),
            figures("waited"),
            words("predicted", Room::Cut(11)),
            spare_figures("p99"),
            figures("drop/s"),
            spare_figures("drops"),
        ],
        rows,
    })
}

/// Returns the mean wait of the packets of the interval, in seconds; of all recorded packets if
/// there were none.
fn measured(before: &Queue, after: &Queue) -> Option<f64> {
    let noted = |queue: &Queue| Some((queue.packets?, queue.waited_ns?));
    let (packets, waited) = noted(after)?;
    let (old_packets, old_waited) = noted(before).unwrap_or((0, 0.0));
    let mean = |packets: u64, waited: f64| (packets > 0).then(|| waited / packets as f64);
    let lately = mean(
        packets.saturating_sub(old_packets),
        (waited - old_waited).max(0.0),
    );
    lately.or_else(|| mean(packets, waited)).map(|ns| ns * 1e-9)
}

fn foretold(queue: &Queue) -> String {
    if queue.refused.is_some() {
        return "not watched".into();
    }
    let Some(told) = &queue.told else {
        return "not yet".into();
    };
    let wait = &told.forecast.wait;
    match (&told.forecast.cannot_tell, wait.value) {
        (None, Some(value)) => {
            let end = |end: Option<f64>| end.map_or_else(|| "?".to_owned(), time);
            format!("{} ({} to {})", time(value), end(wait.low), end(wait.high))
        }
        _ => "cannot tell".into(),
    }
}

fn drops(before: &Reading, after: &Reading, interval_us: u64) -> Section {
    let (old, new) = (lost(before), lost(after));
    let mut rows: Vec<_> = new
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(key, count)| {
            // A port's reason is reported only once there has been one, so it was 0 before.
            let before = old.get(key).copied().unwrap_or(0);
            (per_second(before, *count, interval_us), *count, key)
        })
        .collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0).then(Reverse(a.1).cmp(&Reverse(b.1))));
    Section {
        title: "Drops".into(),
        columns: vec![
            words("where", Room::Cut(20)),
            words("reason", Room::Cut(30)),
            figures("per s"),
            figures("packets"),
        ],
        rows: rows
            .into_iter()
            .map(|(rate, count, (place, reason))| {
                vec![
                    place.clone(),
                    reason.clone(),
                    short(rate),
                    count.to_string(),
                ]
            })
            .collect(),
    }
}

/// Returns the packets dropped, by place and reason.
fn lost(reading: &Reading) -> BTreeMap<(String, String), u64> {
    let switch = reading.stats.drops.iter().map(|(reason, count)| {
        let place = "switch".to_owned();
        ((place, reason.clone()), *count)
    });
    let ports = reading.stats.ports.iter().flat_map(|port| {
        let drops = port.drops.iter();
        drops.map(|(reason, count)| ((port.name.clone(), reason.clone()), *count))
    });
    let queues = reading.queues.queues.iter().flat_map(|queue| {
        let place = format!("{} queue {}", queue.port, queue.queue);
        let dropped = queue.dropped.iter();
        dropped.map(move |(reason, count)| ((place.clone(), reason.clone()), *count))
    });
    switch.chain(ports).chain(queues).collect()
}

fn rules(after: &Reading) -> Option<Section> {
    let busiest = &after.busiest;
    let rows: Vec<Vec<String>> = busiest
        .rules
        .iter()
        .map(|rule| {
            let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), short);
            vec![
                rate(rule.packets_per_s),
                rate(rule.bits_per_s),
                short(rule.packets as f64),
                rule.bridge.clone(),
                rule.table.to_string(),
                rule.matching.clone(),
                rule.actions.clone(),
            ]
        })
        .collect();
    let title = match busiest.left_out {
        0 => "Busiest rules".to_owned(),
        rules => format!("Busiest rules: not looked for among {rules}"),
    };
    (busiest.left_out > 0 || !rows.is_empty()).then_some(Section {
        title,
        columns: vec![
            figures("per s"),
            figures("bit/s"),
            figures("packets"),
            words("bridge", Room::Cut(8)),
            figures("table"),
            words("rule", Room::Cut(12)),
            words("actions", Room::Cut(10)),
        ],
        rows,
    })
}

fn workers(before: &Stats, after: &Stats, interval_us: u64) -> Section {
    let rows = after.workers.iter().map(|worker| {
        let old = before.workers.iter().find(|old| old.name == worker.name);
        let old = old.unwrap_or(worker);
        let rates = worker_rates(old, worker, interval_us, after.tsc_hz);
        let row = vec![
            worker.name.clone(),
            worker
                .cpu
                .map_or_else(|| "any".to_owned(), |cpu| cpu.to_string()),
            format!("{:.1}", rates.busy_percent),
            short(rates.packets_per_s),
            optional(rates.cycles_per_packet),
            optional(rates.batch),
            short(per_second(old.sleeps, worker.sleeps, interval_us)),
        ];
        (rates.busy_percent, row)
    });
    Section {
        title: "Workers".into(),
        columns: vec![
            words("worker", Room::Cut(12)),
            figures("cpu"),
            figures("busy %"),
            figures("packets/s"),
            figures("cycles/packet"),
            figures("batch"),
            spare_figures("sleeps/s"),
        ],
        rows: Sorted(rows.collect()).rows(),
    }
}

/// Returns what workers do for each other; nothing while all keep their flows because steering is
/// off.
fn steering(before: &Stats, after: &Stats, interval_us: u64) -> Option<Section> {
    let is_off = |keeps: &Option<String>| keeps.as_deref() == Some("off");
    let mut steered = after.workers.iter().map(|worker| &worker.steering);
    // A daemon without figures of steering says nothing at all.
    let says = |figures: &Steering| !is_off(&figures.keeps) && *figures != Steering::default();
    if !steered.any(says) {
        return None;
    }
    let rows = after.workers.iter().map(|worker| {
        let old = before.workers.iter().find(|old| old.name == worker.name);
        let old = old.unwrap_or(worker);
        let rate = |of: fn(&Worker) -> u64| per_second(of(old), of(worker), interval_us);
        let own = rate(|worker| worker.packets.saturating_sub(worker.steering.handed));
        let handed = rate(|worker| worker.steering.handed);
        let taken = rate(|worker| worker.steering.taken);
        let figures = &worker.steering;
        let row = vec![
            worker.name.clone(),
            short(own),
            short(handed),
            short(taken),
            short(rate(|worker| worker.steering.refused)),
            figures.parked.to_string(),
            figures.away.to_string(),
            figures.moves.to_string(),
            figures.moves_given_up.to_string(),
            format!("{:.0}", figures.load * 100.0),
            figures.keeps.as_deref().unwrap_or("-").replace('_', " "),
        ];
        (handed + taken, row)
    });
    Some(Section {
        title: "Steering between workers".into(),
        columns: vec![
            words("worker", Room::Cut(12)),
            figures("own/s"),
            figures("handed/s"),
            figures("taken/s"),
            figures("lost/s"),
            spare_figures("parked"),
            figures("buckets away"),
            figures("moves"),
            spare_figures("given up"),
            spare_figures("load %"),
            words("keeps the rest because", Room::Cut(10)),
        ],
        rows: Sorted(rows.collect()).rows(),
    })
}

/// Returns the longest turn of each thread, the longest first; nothing of a daemon that does not
/// say any.
fn turns(after: &Stats) -> Option<Section> {
    let control = std::iter::once(("control", &after.control));
    let workers = (after.workers.iter()).map(|worker| (worker.name.as_str(), &worker.turns));
    let rows = control.chain(workers).map(|(thread, turns)| {
        let row = vec![
            thread.to_owned(),
            time(turns.longest_turn_us as f64 * 1e-6),
            time(turns.longest_turn_away_us as f64 * 1e-6),
            turns.long_turns.to_string(),
            turns.longest_turn_doing.clone(),
        ];
        (turns.longest_turn_us as f64, row)
    });
    let rows = Sorted(rows.collect());
    let some = rows.0.iter().any(|(longest, _)| *longest > 0.0);
    some.then(|| Section {
        title: "Longest turns".into(),
        columns: vec![
            words("thread", Room::Cut(12)),
            figures("longest"),
            figures("no processor"),
            figures("long turns"),
            words("mostly spent on", Room::Cut(10)),
        ],
        rows: rows.rows(),
    })
}

/// Returns what workers' cycles went to in the interval, in the order of a packet's path; nothing
/// while that is not accounted.
fn stages(before: &Stats, after: &Stats, interval_us: u64) -> Option<Section> {
    let after = after.stages.as_ref().filter(|stages| stages.on)?;
    let (new, nothing) = (&after.total, StagesTotal::default());
    // Where it has begun anew since the last reading, all of it is of the interval.
    let old = before.stages.as_ref().map(|stages| &stages.total);
    let old = old.filter(|old| old.elapsed_cycles <= new.elapsed_cycles);
    let old = old.unwrap_or(&nothing);
    let packets = new.packets.saturating_sub(old.packets) as f64;
    let elapsed = new.elapsed_cycles.saturating_sub(old.elapsed_cycles) as f64;
    let each = |cycles: f64, by: f64| optional((by > 0.0).then(|| cycles / by));
    let rows = new
        .stages
        .iter()
        .filter(|stage| stage.calls > 0 || stage.cycles > 0);
    let rows = rows.map(|stage| {
        let same = |old: &&Stage| old.name == stage.name;
        let old = old.stages.iter().find(same).cloned().unwrap_or_default();
        let cycles = stage.cycles.saturating_sub(old.cycles) as f64;
        vec![
            stage.name.replace('_', " "),
            each(cycles, packets),
            format!("{:.1}", cycles / elapsed.max(1.0) * 100.0),
            short(per_second(old.packets, stage.packets, interval_us)),
            each(cycles, stage.packets.saturating_sub(old.packets) as f64),
            short(per_second(old.calls, stage.calls, interval_us)),
        ]
    });
    Some(Section {
        title: "Stages".into(),
        columns: vec![
            words("stage", Room::Cut(11)),
            figures("cycles/packet"),
            figures("share %"),
            figures("packets/s"),
            figures("cycles/its"),
            spare_figures("calls/s"),
        ],
        rows: rows.collect(),
    })
}

/// Returns the number of tracked connections, and the largest zones; nothing if there were none
/// ever.
fn connections(before: &Stats, after: &Stats, interval_us: u64) -> Option<Section> {
    let new = after.connections.as_ref()?;
    if new.count == 0 && new.created == 0 && new.refused == 0 {
        return None;
    }
    let old = before.connections.as_ref().unwrap_or(new);
    let rate = |of: fn(&Connections) -> u64| short(per_second(of(old), of(new), interval_us));
    let all = vec![
        "all".to_owned(),
        new.count.to_string(),
        new.limit.to_string(),
        rate(|all| all.created),
        rate(|all| all.expired),
        rate(|all| all.refused),
        rate(|all| all.evicted),
    ];
    let nothing = || "-".to_owned();
    let zones = new.zones.iter().map(|zone| {
        vec![
            zone.zone.to_string(),
            zone.count.to_string(),
            zone.limit.map_or_else(nothing, |limit| limit.to_string()),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
        ]
    });
    Some(Section {
        title: "Connections".into(),
        columns: vec![
            words("zone", Room::Cut(5)),
            figures("connections"),
            figures("limit"),
            figures("new/s"),
            figures("expired/s"),
            figures("refused/s"),
            figures("evicted/s"),
        ],
        rows: std::iter::once(all).chain(zones).collect(),
    })
}

/// Returns how many BFD sessions are up, and which are not; nothing without any.
fn monitors(after: &Stats) -> Option<Section> {
    let all = after.monitors.as_ref().filter(|all| all.count > 0)?;
    let up = all.states.get("up").copied().unwrap_or(0);
    let sum = vec![
        "all".to_owned(),
        format!("{up} of {} up", all.count),
        format!("{} forward", all.forwarding),
        "-".to_owned(),
        all.flaps.to_string(),
    ];
    let others = all.not_up.iter().map(|one| {
        vec![
            one.interface.clone(),
            one.state.replace('_', " "),
            one.diagnostic.clone(),
            one.remote_state.replace('_', " "),
            "-".to_owned(),
        ]
    });
    Some(Section {
        title: "BFD sessions".into(),
        columns: vec![
            words("interface", Room::Cut(9)),
            words("state", Room::Needed),
            words("because", Room::Cut(10)),
            words("other end", Room::Needed),
            figures("flaps"),
        ],
        rows: std::iter::once(sum).chain(others).collect(),
    })
}

fn tables(before: &Stats, after: &Stats, interval_us: u64) -> Section {
    let old_tables: BTreeMap<(&str, u8), _> = before
        .tables
        .iter()
        .map(|table| ((table.bridge.as_str(), table.id), table))
        .collect();
    let rows = after.tables.iter().map(|table| {
        let old = old_tables.get(&(table.bridge.as_str(), table.id));
        let old = old.copied().unwrap_or(table);
        let lookups = per_second(old.lookups, table.lookups, interval_us);
        let row = vec![
            table.bridge.clone(),
            table.id.to_string(),
            table.rules.to_string(),
            table.template.clone(),
            short(lookups),
            short(per_second(old.matches, table.matches, interval_us)),
        ];
        (lookups, row)
    });
    Section {
        title: "Tables".into(),
        columns: vec![
            words("bridge", Room::Cut(8)),
            figures("table"),
            figures("rules"),
            words("template", Room::Cut(8)),
            figures("lookups/s"),
            figures("matches/s"),
        ],
        rows: Sorted(rows.collect()).rows(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Monitor, Monitors, PortError, Rule, Stages};

    #[test]
    fn three_digits_and_a_unit() {
        assert_eq!(short(0.4), "0");
        assert_eq!(short(999.0), "999");
        assert_eq!(short(27_512_345.0), "27.5M");
        assert_eq!(short(1_000.0), "1.00k");
        assert_eq!(short(123.4e9), "123G");
        assert_eq!(
            [999.6, 9_999.0, 999_950.0].map(short),
            ["1.00k", "10.0k", "1.00M"]
        );
        assert_eq!(short(2.5e12), "2.50T");
        assert_eq!(uptime(93_784_000_000), "1 d 02:03:04");
    }

    fn port(name: &str, packets: u64) -> Port {
        Port {
            bridge: "br0".into(),
            name: name.into(),
            rx_packets: packets,
            link_state: "up".into(),
            ..Port::default()
        }
    }

    fn reading(time_us: u64, ports: Vec<Port>) -> Reading {
        let stats = Stats {
            time_us,
            ports,
            ..Stats::default()
        };
        Reading {
            stats,
            ..Reading::default()
        }
    }

    #[test]
    fn the_busiest_port_is_first_and_one_that_has_just_come_has_no_rate() {
        let before = reading(0, vec![port("a", 5), port("b", 0)]);
        let after = reading(
            1_000_000,
            vec![port("a", 5), port("new", 1_000_000), port("b", 70)],
        );
        let rows = ports(&before.stats, &after.stats, 1_000_000).rows;
        let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(names, ["b", "a", "new"]);
        assert_eq!((rows[0][5].as_str(), rows[2][5].as_str()), ("70", "0"));
    }

    fn error(name: &str, open: bool) -> PortError {
        PortError {
            bridge: "br0".into(),
            name: name.into(),
            kind: "vxlan".into(),
            open,
            error: format!("could not open network device {name} (No such device)"),
        }
    }

    #[test]
    fn a_port_that_could_not_be_opened_is_shown_with_its_error() {
        let mut after = reading(1, vec![port("a", 0)]);
        after.stats.port_errors = vec![error("qos", true), error("gone", false)];
        let lines = |width: usize| -> Vec<String> {
            let shown = all(&reading(0, Vec::new()), &after, width);
            shown.into_iter().map(|line| line.text).collect()
        };
        let text = lines(usize::MAX);
        assert!(text[0].contains("1 ports, 1 not opened"), "{}", text[0]);
        let wanted = [
            "",
            "Ports with errors",
            "gone (br0, vxlan) not opened: could not open network device gone (No such device)",
            "qos (br0, vxlan) open, but could not open network device qos (No such device)",
            "",
            "Ports",
        ];
        assert_eq!(text[2..8], wanted);
        // On a narrow page the reason is not cut, and no line is too long.
        let narrow = lines(20);
        assert!(
            narrow.iter().all(|line| line.chars().count() <= 20),
            "{narrow:?}"
        );
        let words = narrow.join(" ");
        let words: Vec<&str> = words.split_whitespace().collect();
        assert!(
            words.join(" ").contains("device gone (No such device)"),
            "{words:?}"
        );
        // Ten thousand errors leave room for the rest.
        after.stats.port_errors = (0..10_000)
            .map(|n| error(&format!("p{n}"), false))
            .collect();
        let shown = all(&reading(0, Vec::new()), &after, 80);
        assert!(
            shown
                .iter()
                .any(|line| line.text == "Ports with errors (and 9980 more)")
        );
        assert!(shown.len() < 100, "{}", shown.len());
    }

    #[test]
    fn names_do_nothing_to_the_terminal() {
        let mut after = reading(1, vec![port("\u{1b}]0;x\u{7}\u{202e}p", 0)]);
        after.stats.port_errors = vec![error("\u{1b}[2J\nx", false)];
        after.stats.drops.insert("a\rb".into(), 1);
        for line in all(&reading(0, Vec::new()), &after, 80) {
            assert!(
                !line
                    .text
                    .contains(|c: char| c.is_control() || c == '\u{202e}')
            );
        }
    }

    #[test]
    fn stages_are_those_of_the_interval_and_only_while_they_are_accounted() {
        let reading = |on: bool, packets: u64, elapsed_cycles: u64, cycles: u64| {
            let stage = |name: &str, cycles: u64| Stage {
                name: name.into(),
                cycles,
                calls: cycles / 10,
                packets,
            };
            let total = StagesTotal {
                packets,
                elapsed_cycles,
                stages: vec![
                    stage("receive", cycles),
                    stage("tunnel", 0),
                    stage("empty_polls", elapsed_cycles - cycles),
                ],
            };
            let stages = Some(Stages { on, total });
            Stats {
                stages,
                ..Stats::default()
            }
        };
        let before = reading(true, 10, 1000, 400);
        let rows = |after: &Stats| Some(stages(&before, after, 2_000_000)?.rows);
        let wanted = [
            ["receive", "20.0", "40.0", "5", "20.0", "10"],
            ["empty polls", "30.0", "60.0", "5", "30.0", "15"],
        ];
        let after = reading(true, 20, 1500, 600);
        assert_eq!(rows(&after).unwrap(), wanted, "from here");
        // Begun anew.
        let rows_anew = rows(&reading(true, 5, 500, 100)).unwrap();
        assert_eq!(rows_anew[0][..3], ["receive", "20.0", "20.0"]);
        assert_eq!(rows(&reading(false, 20, 1500, 600)), None);
        assert_eq!(rows(&Stats::default()), None);
        let quiet = rows(&before).unwrap();
        assert_eq!(quiet[0][..3], ["receive", "-", "0.0"]);
    }

    #[test]
    fn sessions_that_are_not_up_are_named() {
        let monitor = Monitor {
            interface: "vx0".into(),
            state: "admin_down".into(),
            diagnostic: "Control Detection Time Expired".into(),
            remote_state: "down".into(),
        };
        let all = Monitors {
            count: 3,
            states: [("up".into(), 2), ("admin_down".into(), 1)].into(),
            forwarding: 2,
            flaps: 5,
            not_up: vec![monitor],
        };
        let stats = |monitors| Stats {
            monitors,
            ..Stats::default()
        };
        let wanted = [
            ["all", "2 of 3 up", "2 forward", "-", "5"],
            [
                "vx0",
                "admin down",
                "Control Detection Time Expired",
                "down",
                "-",
            ],
        ];
        assert_eq!(monitors(&stats(Some(all))).unwrap().rows, wanted);
        assert!(monitors(&stats(None)).is_none());
        assert!(monitors(&stats(Some(Monitors::default()))).is_none());
    }

    #[test]
    fn counters_at_their_ends_are_no_error() {
        let mut busy = port("p", u64::MAX);
        (busy.rx_bytes, busy.tx_bytes) = (u64::MAX, u64::MAX);
        let after = reading(1_000_000, vec![busy]);
        let before = reading(0, vec![port("p", 0)]);
        assert!(!all(&before, &after, 80).is_empty());
    }

    #[test]
    fn drops_are_told_by_place_and_reason_and_only_where_there_are_some() {
        let reading = |table_miss: u64, policed: u64| {
            let mut port = port("p", 0);
            port.drops.insert("ovs_rx_qos_drops".into(), policed);
            let mut reading = reading(0, vec![port]);
            reading.stats.drops.insert("table_miss".into(), table_miss);
            reading.stats.drops.insert("stack_full".into(), 0);
            reading
        };
        let rows = drops(&reading(4, 1), &reading(10, 31), 2_000_000).rows;
        let wanted = [
            ["p", "ovs_rx_qos_drops", "15", "31"],
            ["switch", "table_miss", "3", "10"],
        ];
        assert_eq!(rows, wanted);
    }

    #[test]
    fn the_longest_turns_are_told_by_thread() {
        let mut after = Stats::default();
        assert!(turns(&after).is_none(), "a daemon that does not say any");
        after.control.longest_turn_us = 1_500;
        after.workers.push(Worker {
            name: "pmd-c01/id:3".into(),
            turns: crate::stats::Turns {
                longest_turn_us: 12_000,
                longest_turn_away_us: 11_000,
                longest_turn_doing: "port p1".into(),
                long_turns: 2,
            },
            ..Worker::default()
        });
        let wanted = [
            ["pmd-c01/id:3", "12.00ms", "11.00ms", "2", "port p1"],
            ["control", "1.50ms", "0.0us", "0", ""],
        ];
        assert_eq!(turns(&after).unwrap().rows, wanted);
    }

    #[test]
    fn waits_are_those_of_the_interval() {
        let queue = |packets: u64, waited_ns: f64| Queue {
            packets: Some(packets),
            waited_ns: Some(waited_ns),
            ..Queue::default()
        };
        assert_eq!(
            measured(&queue(10, 1_000.0), &queue(20, 61_000.0)),
            Some(6e-6)
        );
        // Without packets in the interval, the earlier ones count.
        let all = measured(&queue(10, 1_000.0), &queue(10, 1_000.0)).unwrap();
        assert!((all - 1e-7).abs() < 1e-12, "{all}");
        assert_eq!(measured(&Queue::default(), &Queue::default()), None);
        assert_eq!(foretold(&Queue::default()), "not yet");
    }

    #[test]
    fn a_page_fits_80_columns() {
        let mut after = reading(
            1_000_000,
            vec![port("a-port-with-a-long-name", 123_456_789)],
        );
        after.stats.ports[0].kind = "dpdkvhostuserclient".into();
        after.stats.ports[0].bridge = "bridge-of-many".into();
        after.queues.queues.push(Queue {
            port: "a-port-with-a-long-name".into(),
            queue: 65_535,
            ..Queue::default()
        });
        after.busiest.rules.push(Rule {
            bridge: "bridge-of-many".into(),
            matching: "priority=100,ip,in_port=1,nw_dst=10.0.0.1".repeat(3),
            actions: "set_field:1->reg0,".repeat(9),
            ..Rule::default()
        });
        let shown = all(&reading(0, Vec::new()), &after, 80);
        for line in &shown {
            assert!(line.text.chars().count() <= 80, "{}", line.text);
        }
        let link = shown
            .iter()
            .find(|line| line.text.contains("a-port"))
            .unwrap();
        // Nothing that matters about a port was cut.
        assert!(
            link.text.contains(" up ") && !link.text.ends_with('~'),
            "{}",
            link.text
        );
        assert!(shown.iter().any(|line| line.text.contains("not yet")));
    }
}
