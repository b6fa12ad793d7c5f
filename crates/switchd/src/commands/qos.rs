//! `qos/show` and `qos/show-types`, in Open vSwitch's layout. Queues with a latency bound also show
//! the latency they promise, and all queues show why they have dropped.

use super::{Answer, Commands, bridges, has_interface};
use crate::config::qos::{Shape, TYPES};
use crate::switch::{Port, Switch};

use ::qos::policer::{PolicerSpec, Profile, Rates};
use ::qos::shaper::{DROP_REASONS, Line, PortSpec, QueueSpec, QueueTotals};
use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Write};

/// Rate assumed for a link whose rate is unknown, in bit/s; the same as in Open vSwitch.
const DEFAULT_LINE: u64 = 10_000_000_000;
/// Bytes of a frame beyond its MTU: an Ethernet header and a VLAN tag.
const HEADER: u32 = 18;

pub(super) fn register(commands: &Commands) {
    commands.answer("qos/show", "interface", (1, 1), |switch, arguments| {
        show(switch, &arguments[0])
    });
    commands.answer(
        "qos/show-types",
        "interface",
        (1, 1),
        |switch, arguments| {
            if !has_interface(switch, &arguments[0]) {
                return Err("no such interface".into());
            }
            let lines = TYPES.iter().map(|kind| format!("QoS type: {kind}\n"));
            Ok(lines.collect())
        },
    );
}

/// Output lines of a class: names with their values.
struct Lines {
    text: String,
    indent: &'static str,
}

impl Lines {
    fn add(&mut self, name: impl Display, value: impl Display) {
        let _ = writeln!(self.text, "{}{name}: {value}", self.indent);
    }

    fn add_some(&mut self, name: impl Display, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }

    fn profile(&mut self, names: (&str, &str), profile: Profile) {
        self.add(names.0, profile.rate);
        self.add(names.1, profile.burst);
    }

    fn rates(&mut self, rates: &Rates) {
        self.add("cir", rates.committed.rate);
        self.add("eir", rates.excess.rate);
        self.add("ebs", rates.excess.burst);
        self.add("cbs", rates.committed.burst);
    }

    fn queue(&mut self, number: u32) {
        let _ = match number {
            0 => writeln!(self.text, "\nDefault:"),
            number => writeln!(self.text, "\nQueue {number}:"),
        };
        self.indent = "  ";
    }

    fn sent(&mut self, packets: u64, bytes: u64, errors: u64) {
        self.add("tx_packets", packets);
        self.add("tx_bytes", bytes);
        self.add("tx_errors", errors);
    }
}

fn show(switch: &Switch, name: &str) -> Answer {
    for bridge in bridges(switch) {
        let ports = bridge.ports.borrow();
        let mut ports = ports.values();
        if let Some(port) = ports.find(|port| port.config.interface_name == name) {
            return Ok(describe(switch, port));
        }
    }
    Err("no such interface".into())
}

fn describe(switch: &Switch, port: &Port) -> String {
    let (name, qos) = (&port.config.interface_name, &port.config.qos);
    if qos.kind.is_empty() {
        return format!("QoS not configured on {name}\n");
    }
    let mut lines = Lines {
        text: format!("QoS: {name} {}\n", qos.kind),
        indent: "",
    };
    match &qos.shape {
        Shape::None => {}
        Shape::Policer(spec) => policer(switch, port, spec, &mut lines),
        Shape::Queues(spec) => shaper(switch, port, spec, &mut lines),
    }
    lines.text
}

fn policer(switch: &Switch, port: &Port, spec: &PolicerSpec, lines: &mut Lines) {
    let (rates, queues) = match spec {
        PolicerSpec::One(profile) => return lines.profile(("cir", "cbs"), *profile),
        PolicerSpec::Queues { port, queues } => (port, queues),
    };
    lines.rates(rates);
    let stats = switch.with_datapath(|datapath| datapath.queue_stats(port.id));
    let totals: HashMap<u32, datapath::QueueTotals> = match stats {
        Ok(Ok(totals)) => totals
            .into_iter()
            .map(|queue| (queue.queue, queue))
            .collect(),
        _ => HashMap::new(),
    };
    let queues: BTreeMap<u32, &Rates> = queues
        .iter()
        .map(|(number, rates)| (*number, rates))
        .collect();
    for (number, rates) in queues {
        lines.queue(number);
        lines.rates(rates);
        if let Some(queue) = totals.get(&number) {
            lines.sent(queue.packets, queue.bytes, queue.errors);
        }
    }
}

fn shaper(switch: &Switch, port: &Port, spec: &PortSpec, lines: &mut Lines) {
    lines.add("max-rate", spec.max_rate);
    let names: HashMap<u32, &str> = port
        .config
        .qos
        .tenants
        .iter()
        .map(|(name, number)| (*number, name.as_str()))
        .collect();
    for tenant in &spec.tenants {
        let name = names.get(&tenant.number).copied().unwrap_or_default();
        lines.add(format!("tenant-{name}-min-rate"), tenant.min_rate);
        lines.add(format!("tenant-{name}-max-rate"), tenant.max_rate);
    }
    let totals: HashMap<u32, QueueTotals> =
        match switch.with_datapath(|datapath| datapath.shaping(port.id)) {
            Ok(Ok(totals)) => totals.into_iter().collect(),
            _ => HashMap::new(),
        };
    if spec
        .queues
        .iter()
        .any(|queue| queue.max_latency_ns.is_some())
    {
        let late = switch.with_datapath(|datapath| datapath.late_sent(port.id));
        let late = late.ok().and_then(Result::ok);
        lines.add("late_sent", late.unwrap_or(0));
    }
    let line = line_of(port, spec);
    let queues: BTreeMap<u32, &QueueSpec> = spec
        .queues
        .iter()
        .map(|queue| (queue.number, queue))
        .collect();
    for (number, queue) in queues {
        lines.queue(number);
        lines.add("burst", queue.burst);
        lines.add_some("priority", (queue.priority > 0).then_some(queue.priority));
        lines.add("min-rate", queue.min_rate);
        // The guaranteed rates of other queues are lowered by the default queue's; this is the
        // configured one.
        lines.add_some("configured-min-rate", port.config.qos.lowered.get(&number));
        lines.add("max-rate", queue.max_rate);
        lines.add_some("tenant", queue.tenant.and_then(|tenant| names.get(&tenant)));
        lines.add_some("ecn", queue.mark_ns.map(|_| true));
        lines.add_some("max-latency-us", queue.max_latency_ns.map(|ns| ns / 1000));
        let promise = spec.promise_ns(queue, line);
        lines.add_some("promised-latency-us", promise.map(|ns| ns.div_ceil(1000)));
        if let Some(done) = totals.get(&number) {
            lines.sent(done.packets, done.bytes, done.dropped_packets());
            waiting(queue, done, lines);
        }
        if let Some(waits) = port.latencies.of(number) {
            lines.add("latency-us", waits);
        }
    }
}

/// Adds lines for counters that Open vSwitch does not have. For queues without a latency bound only
/// those that are not zero.
fn waiting(queue: &QueueSpec, done: &QueueTotals, lines: &mut Lines) {
    let bounded = queue.max_latency_ns.is_some();
    for ((_, name), dropped) in DROP_REASONS.iter().zip(done.dropped) {
        lines.add_some(
            format!("dropped_{name}"),
            (bounded || dropped > 0).then_some(dropped),
        );
    }
    lines.add_some("marked", queue.mark_ns.map(|_| done.marked));
    lines.add_some(
        "waiting",
        (bounded || done.waiting > 0).then_some(done.waiting),
    );
}

/// Returns the rate and frame size of a port's link. Where the link's rate is unknown it is the
/// configured rate, or what Open vSwitch assumes.
fn line_of(port: &Port, spec: &PortSpec) -> Line {
    let mtu = match port.info.mtu {
        0 => 1500,
        mtu => u32::from(mtu),
    };
    Line {
        rate: match port.info.link_speed {
            0 => DEFAULT_LINE.max(spec.max_rate),
            rate => rate,
        },
        largest: mtu + HEADER,
        batch_ns: datapath::BATCH_NS,
    }
}
