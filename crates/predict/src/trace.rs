//! Records the path of each packet of the traffic, by walking it through the compiled rules.
//!
//! The walk reports every lookup to its host ([`Host::looked_up`]). Counters, meters and groups
//! work as in the switch; learn requests and packet-ins are ignored. Packets that visit the same
//! tables and leave by the same ports have the same path.

use crate::Error;
use crate::memory::Buffer;
use crate::rules::Rules;
use crate::traffic::{Arrival, Traffic};
use packet::parse::{self, Malformed};
use packet::{FlowKey, Frame};
use program::actions::{PortNo, ToController};
use program::epoch::Guard;
use program::exec::Engine;
use program::host::{Context, DropReason, Host};
use program::rule::Rule;
use program::table::{self, Bridge};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Most keys kept for each table, for timing its lookups.
const KEYS_MAX: usize = 32_768;
/// Most tables whose keys are kept.
const TABLES_MAX: usize = 40;

/// The paths of a traffic.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trace {
    /// Packets that were walked.
    pub packets: u64,
    /// The paths, the most frequent first.
    pub paths: Vec<Path>,
    /// The tables that were used.
    pub tables: Vec<Table>,
    /// Packets by the port that they leave by.
    pub out_ports: BTreeMap<PortNo, u64>,
    /// Lookups per packet.
    pub lookups: f64,
    /// Cache lines read by lookups, per packet.
    pub lines: f64,
    /// Number of rules with fused paths: a worker makes fewer lookups than recorded here.
    pub fused: usize,
    /// Keys that were looked up, by table, in the order of the packets.
    #[serde(skip)]
    pub(crate) keys: BTreeMap<u8, Vec<FlowKey>>,
}

/// Packets that visit the same tables and end the same way.
#[derive(Clone, Debug, Serialize)]
pub struct Path {
    /// Tables in the order of lookups.
    pub tables: Vec<u8>,
    /// How they end, as text.
    pub end: String,
    /// Number of packets.
    pub packets: u64,
    /// Rules compared one by one, per packet.
    pub compares: f64,
    /// Hash tables tried, per packet.
    pub probes: f64,
    /// Cache lines read by lookups, per packet.
    pub lines: f64,
    /// The same for the packet that reads most.
    pub lines_max: u32,
}

/// Lookups of one table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// Its number.
    pub table: u8,
    /// The classifier that fits its rules.
    pub template: String,
    /// Number of rules.
    pub rules: u32,
    /// Number of lookups.
    pub lookups: u64,
    /// Lookups that found a rule.
    pub matches: u64,
    /// Cache lines read per lookup.
    pub lines: f64,
    /// The same for the lookup that reads most.
    pub lines_max: u32,
}

/// Walks every packet.
pub fn trace(rules: &Rules, traffic: &Traffic) -> Result<Trace, Error> {
    let bridge = std::sync::Arc::clone(rules.bridge());
    let mut reader = rules
        .program
        .domain
        .reader()
        .ok_or_else(|| Error::new("too many readers of the rules"))?;
    rules.program.counters.add_worker(reader.index());
    let mut walker = Walker::default();
    {
        let guard = reader.begin();
        let mut engine = Engine::new();
        for arrival in &traffic.arrivals {
            walker.walk(&bridge, &guard, &mut engine, arrival);
        }
    }
    reader.offline();
    Ok(walker.finish(rules))
}

/// How a packet ends.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct End {
    ports: Vec<PortNo>,
    others: BTreeSet<&'static str>,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ports = self.ports.iter().map(|port| format!("port {port}"));
        let all: Vec<String> = ports
            .chain(self.others.iter().map(|end| (*end).to_owned()))
            .collect();
        f.write_str(if all.is_empty() { "nothing" } else { "" })?;
        f.write_str(&all.join(", "))
    }
}

/// What the host sees of one packet.
#[derive(Default)]
struct Steps {
    lookups: Vec<(u8, Option<FlowKey>, bool)>,
    end: End,
}

impl<F: Frame> Host<F> for Steps {
    const WATCHES: bool = true;

    fn output(&mut self, context: Context<'_>, port: PortNo, _: F, _: bool) {
        *context.sent = true;
        self.end.ports.push(port);
    }
    fn output_all(&mut self, context: Context<'_>, _: F, _: bool) {
        *context.sent = true;
        self.end.others.insert("all ports");
    }
    fn port_is_live(&self, _: PortNo) -> bool {
        true
    }
    fn normal(&mut self, context: Context<'_>, _: F) {
        *context.sent = true;
        self.end.others.insert("normal");
    }
    fn controller(&mut self, _: Context<'_>, _: &ToController, _: &F) {
        self.end.others.insert("controller");
    }
    fn looked_up(&mut self, table: u8, key: Option<&FlowKey>, rule: Option<&Rule>) {
        self.lookups.push((table, key.copied(), rule.is_some()));
    }
    fn malformed(&mut self, _: Malformed) {}
    fn now_ns(&mut self) -> u64 {
        1_000_000
    }
    fn dropped(&mut self, _: DropReason) {
        self.end.others.insert("drop");
    }
}

#[derive(Default)]
struct Sums {
    packets: u64,
    compares: u64,
    probes: u64,
    lines: u64,
    lines_max: u32,
}

impl Sums {
    fn add(&mut self, effort: table::Effort) {
        self.packets += 1;
        self.compares += u64::from(effort.compares);
        self.probes += u64::from(effort.probes);
        self.lines += u64::from(effort.lines);
        self.lines_max = self.lines_max.max(effort.lines);
    }

    fn mean(&self, sum: u64) -> f64 {
        sum as f64 / self.packets.max(1) as f64
    }
}

#[derive(Default)]
struct Walker {
    paths: BTreeMap<(Vec<u8>, End), Sums>,
    tables: BTreeMap<u8, (Sums, u64)>,
    keys: BTreeMap<u8, Vec<FlowKey>>,
    out_ports: BTreeMap<PortNo, u64>,
    packets: u64,
}

impl Walker {
    fn walk(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        engine: &mut Engine<Buffer>,
        arrival: &Arrival,
    ) {
        let Some(frame) = crate::memory::frame(&arrival.bytes) else {
            return;
        };
        let mut first = FlowKey::ZERO;
        let mut steps = Steps::default();
        let mut frames = vec![frame];
        parse::parse_frame(&mut frames[0], arrival.in_port, bridge.needed(), &mut first);
        engine.burst(
            bridge,
            guard,
            arrival.in_port,
            &mut frames,
            0,
            1,
            &mut steps,
        );
        let mut whole = table::Effort::default();
        let mut tables = Vec::with_capacity(steps.lookups.len());
        for (number, key, found) in steps.lookups {
            let key = key.unwrap_or(first);
            let effort = bridge.effort(number, &key, guard);
            whole.compares += effort.compares;
            whole.probes += effort.probes;
            whole.lines += effort.lines;
            tables.push(number);
            let (sums, matches) = self.tables.entry(number).or_default();
            sums.add(effort);
            *matches += u64::from(found);
            if self.keys.len() < TABLES_MAX || self.keys.contains_key(&number) {
                let keys = self.keys.entry(number).or_default();
                if keys.len() < KEYS_MAX {
                    keys.push(key);
                }
            }
        }
        for port in &steps.end.ports {
            *self.out_ports.entry(*port).or_default() += 1;
        }
        self.packets += 1;
        self.paths
            .entry((tables, steps.end))
            .or_default()
            .add(whole);
    }

    fn finish(self, rules: &Rules) -> Trace {
        let mut paths: Vec<Path> = self
            .paths
            .into_iter()
            .map(|((tables, end), sums)| Path {
                tables,
                end: end.to_string(),
                packets: sums.packets,
                compares: sums.mean(sums.compares),
                probes: sums.mean(sums.probes),
                lines: sums.mean(sums.lines),
                lines_max: sums.lines_max,
            })
            .collect();
        paths.sort_by_key(|path| std::cmp::Reverse(path.packets));
        let sizes: BTreeMap<u8, u32> = rules
            .pipeline
            .table_stats()
            .into_iter()
            .map(|stats| (stats.table, stats.active))
            .collect();
        let tables: Vec<Table> = self
            .tables
            .into_iter()
            .map(|(table, (sums, matches))| Table {
                table,
                template: rules.pipeline.describe(table).template.name().to_owned(),
                rules: sizes.get(&table).copied().unwrap_or(0),
                lookups: sums.packets,
                matches,
                lines: sums.mean(sums.lines),
                lines_max: sums.lines_max,
            })
            .collect();
        let packets = self.packets.max(1) as f64;
        Trace {
            packets: self.packets,
            lookups: tables.iter().map(|table| table.lookups as f64).sum::<f64>() / packets,
            lines: tables
                .iter()
                .map(|table| table.lines * table.lookups as f64)
                .sum::<f64>()
                / packets,
            paths,
            tables,
            out_ports: self.out_ports,
            fused: rules.pipeline.fused_report().rules,
            keys: self.keys,
        }
    }
}
