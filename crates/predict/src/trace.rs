//! Records the path of each packet of the traffic, by walking it through the compiled rules.
//!
//! The walk reports every lookup to its host ([`Host::looked_up`]). Counters, meters and groups
//! work as in the switch; learn requests and packet-ins are ignored. Packets that visit the same
//! tables and leave by the same ports have the same path.
//!
//! Connections are tracked. A measured worker has the same packets again and again, and its figures
//! count only once the first of them have made their connections; so if packets are tracked, all
//! are walked once before the walk that is recorded, which finds those connections. Fragments do
//! not wait for their datagram here.

use crate::Error;
use crate::memory::Buffer;
use crate::rules::Rules;
use crate::traffic::{Arrival, Traffic};
use conntrack::{Earlier, Request, Tracked, Tracker};
use packet::parse::{self, Layers, Malformed};
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
/// Secret of the tracker: always the same, so that translations are, too. What an attacker could do
/// with it is to slow a prediction down.
const SECRET: [u64; 2] = [0x736c_7569_6365, 0x7472_6163_6b65_6421];
/// Time of the walk.
const FIRST_NS: u64 = 1_000_000;
/// Time of a second walk: meters are full again, and no connection has expired.
const SECOND_NS: u64 = FIRST_NS + 1_000_000_000;

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
    let tracker = Tracker::new(SECRET);
    let walker = {
        let guard = reader.begin();
        let mut engine = Engine::new();
        let mut walked = |now_ns| {
            let mut walker = Walker::default();
            let moment = Moment {
                tracker: &tracker,
                now_ns,
            };
            for arrival in &traffic.arrivals {
                walker.walk(&bridge, &guard, &mut engine, arrival, moment);
            }
            walker
        };
        let first = walked(FIRST_NS);
        match first.tracks {
            true => walked(SECOND_NS),
            false => first,
        }
    };
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

/// When packets are walked, and the connections that they have made.
#[derive(Clone, Copy)]
struct Moment<'t> {
    tracker: &'t Tracker,
    now_ns: u64,
}

/// What the host sees of one packet.
struct Steps<'t> {
    moment: Moment<'t>,
    lookups: Vec<(u8, Option<FlowKey>, bool)>,
    end: End,
    /// Whether the packet has been given to the tracker.
    tracked: bool,
}

impl<F: Frame> Host<F> for Steps<'_> {
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
        self.moment.now_ns
    }
    fn track(
        &mut self,
        frame: &F,
        layers: &Layers,
        earlier: Earlier,
        request: &Request<'_>,
    ) -> Tracked {
        self.tracked = true;
        let Moment { tracker, now_ns } = self.moment;
        tracker.track_again(frame, layers, earlier, request, now_ns / 1_000_000)
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
    /// Whether any packet has been given to the tracker.
    tracks: bool,
}

impl Walker {
    fn walk(
        &mut self,
        bridge: &Bridge,
        guard: &Guard<'_>,
        engine: &mut Engine<Buffer>,
        arrival: &Arrival,
        moment: Moment<'_>,
    ) {
        let Some(frame) = crate::memory::frame(&arrival.bytes) else {
            return;
        };
        let mut first = FlowKey::ZERO;
        let mut steps = Steps {
            moment,
            lookups: Vec::new(),
            end: End::default(),
            tracked: false,
        };
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
        self.tracks |= steps.tracked;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets connections from port 1 out, and their answers in.
    const FIREWALL: &str = "ip,actions=ct(table=1)\n\
         table=1,in_port=1,ip,ct_state=+trk+new,actions=ct(commit),output:2\n\
         table=1,in_port=1,ip,ct_state=+trk+est,actions=output:2\n\
         table=1,in_port=2,ip,ct_state=+trk+est,actions=output:1\n";

    fn rules(text: &str) -> Rules {
        Rules::read("rules", text, &openflow::parse::no_names).unwrap()
    }

    /// Returns one packet of each description, with the port that it arrives by.
    fn arrivals(descriptions: &[(u32, &str)]) -> Traffic {
        let arrivals = descriptions.iter().map(|(in_port, text)| {
            let one = Traffic::described(text, &openflow::parse::no_names, *in_port).unwrap();
            one.arrivals[0].clone()
        });
        Traffic {
            arrivals: arrivals.collect(),
        }
    }

    #[test]
    fn tracked_packets_find_their_connections() {
        let answer = "udp,nw_src=10.0.0.2,nw_dst=10.0.0.1,tp_src=53,tp_dst=4000";
        let asked = "udp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=4000,tp_dst=53";
        let stranger = "udp,nw_src=10.0.0.3,nw_dst=10.0.0.1,tp_src=53,tp_dst=4000";
        // The answer comes before the question: it is let in by the connection of a round before.
        let traffic = arrivals(&[(2, answer), (1, asked), (2, stranger)]);
        let traced = trace(&rules(FIREWALL), &traffic).unwrap();
        assert_eq!(traced.out_ports, BTreeMap::from([(1, 1), (2, 1)]));
        assert_eq!(traced.packets, 3, "the first walk is not recorded");
        let lookups = |table: &Table| (table.table, table.lookups, table.matches);
        let tables: Vec<_> = traced.tables.iter().map(lookups).collect();
        assert_eq!(tables, [(0, 3, 3), (1, 3, 2)]);
    }

    #[test]
    fn connections_of_all_kinds_begin() {
        let rules = rules(FIREWALL);
        for kind in ["udp", "tcp", "icmp,icmp_type=8,icmp_code=0", "sctp"] {
            let traffic = arrivals(&[(1, kind)]);
            let traced = trace(&rules, &traffic).unwrap();
            assert_eq!(traced.out_ports, BTreeMap::from([(2, 1)]), "{kind}");
        }
    }

    #[test]
    fn rules_are_followed_behind_the_tracker() {
        let rules = rules(
            "ip,actions=ct(table=1)\n\
             table=1,udp,tp_dst=53,ct_state=+trk+new,actions=ct(commit),output:2\n",
        );
        let traffic = Traffic::of_rules(&rules, 1).unwrap();
        let traced = trace(&rules, &traffic).unwrap();
        assert_eq!(traced.out_ports.get(&2), Some(&traced.packets));
    }
}
