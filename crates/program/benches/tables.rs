//! Cycles of a lookup by kind of table: rules as operators write them, packets that meet them, with
//! tuples and the chosen template side by side.
//!
//! `cargo bench -p sluice-program --bench tables [NAME...]` prints for each case the lowest of
//! several rounds, in TSC cycles for each packet. A name that is a file's stands for the IPv4 rules
//! in it, as `sluice gen rules --openflow drop` prints them.

use packet::key::at;
use packet::{Field, FlowKey, Match};
use program::Program;
use program::actions::{Op, OpList};
use program::epoch::Reader;
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter};
use stages::cycles;
use std::sync::Arc;
use std::time::Instant;

const BURST: usize = 32;
const PACKETS: usize = 1 << 15;

/// A reproducible pseudorandom generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// A rule over IPv4 addresses and ports: value and mask of each.
#[derive(Clone, Copy)]
struct Flow {
    source: (u32, u32),
    destination: (u32, u32),
    ports: (u32, u32),
    protocol: u8,
}

impl Flow {
    fn matching(&self) -> Match {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        let mut word = |offset: usize, (value, mask): (u32, u32)| {
            matching.set_bytes(offset, &value.to_be_bytes(), &mask.to_be_bytes());
        };
        word(at::IPV4_SRC, self.source);
        word(at::IPV4_DST, self.destination);
        word(at::TP_SRC, self.ports);
        if self.protocol != 0 {
            matching.set_exact(Field::IpProto, self.protocol.into());
        }
        matching
    }

    /// Returns a packet that meets the rule, or one before it.
    fn key(&self, random: &mut Random) -> FlowKey {
        let mut key = FlowKey::ZERO;
        let mut fill = |(value, mask): (u32, u32)| value | random.next() as u32 & !mask;
        key.set_u32(at::IPV4_SRC, fill(self.source));
        key.set_u32(at::IPV4_DST, fill(self.destination));
        key.set_u32(at::TP_SRC, fill(self.ports));
        key.set_u32(at::IN_PORT, 1);
        key.set_u16(at::ETH_TYPE, 0x0800);
        key.set_u8(
            at::IP_PROTO,
            if self.protocol == 0 {
                17
            } else {
                self.protocol
            },
        );
        key
    }
}

fn prefix(bits: u32) -> u32 {
    if bits == 0 {
        0
    } else {
        u32::MAX << (32 - bits)
    }
}

/// Returns rules over this many shapes of prefixes and ports, as in the side-by-side benchmark.
fn access_list(rules: usize, masks: usize) -> Vec<(Flow, u32)> {
    let mut random = Random(11);
    let shapes: Vec<_> = (0..masks)
        .map(|_| {
            (
                prefix(random.one_of(&[8, 12, 16, 20, 24, 28, 32])),
                prefix(random.one_of(&[8, 16, 20, 24, 28, 32])),
                random.one_of(&[0, 0xf000, 0xff00, 0xffff]) << 16
                    | random.one_of(&[0, 0xff00, 0xffff]),
                random.one_of(&[6, 17]),
            )
        })
        .collect();
    (0..rules)
        .map(|index| {
            let (source, destination, ports, protocol) = shapes[index % masks];
            let mut masked = |mask| (random.next() as u32 & mask, mask);
            let flow = Flow {
                source: masked(source),
                destination: masked(destination),
                ports: masked(ports),
                protocol,
            };
            (flow, 10 + index as u32)
        })
        .collect()
}

/// Returns rules over 50 shapes of long prefixes and ports, one precedence for each shape, as in
/// the side-by-side benchmark's curve.
fn mixed(rules: usize) -> Vec<(Flow, u32)> {
    let mut random = Random(29);
    let shapes: Vec<_> = (0..50)
        .map(|_| {
            let mut length = |least: u64| prefix((least + random.below(33 - least)) as u32);
            let (source, destination) = (length(18), length(12));
            let ports = random.one_of(&[0, 0xffff]) << 16 | random.one_of(&[0, 0xff00, 0xffff]);
            (source, destination, ports)
        })
        .collect();
    (0..rules)
        .map(|index| {
            let (source, destination, ports) = shapes[index % 50];
            let mut masked = |mask| (random.next() as u32 & mask, mask);
            let flow = Flow {
                source: masked(source),
                destination: masked(destination),
                ports: masked(ports),
                protocol: 17,
            };
            (flow, 10 + index as u32 % 50)
        })
        .collect()
}

/// Returns a firewall's rules: some by source, some by destination and port, some by port only.
fn firewall(rules: usize) -> Vec<(Flow, u32)> {
    let mut random = Random(5);
    (0..rules)
        .map(|index| {
            let mut flow = Flow {
                source: (0, 0),
                destination: (0, 0),
                ports: (0, 0),
                protocol: 6,
            };
            let mut some = |lengths: &[u32]| {
                let mask = prefix(random.one_of(lengths));
                (random.next() as u32 & mask, mask)
            };
            match index % 8 {
                0..3 => flow.source = some(&[16, 24, 32]),
                3..6 => {
                    flow.destination = some(&[24, 32]);
                    flow.ports = (random.one_of(&[22, 80, 443, 8080]), 0xffff);
                }
                6 => {
                    flow.source = some(&[8, 16]);
                    flow.destination = some(&[16, 24]);
                }
                _ => flow.ports = (random.below(65536) as u32, 0xffff),
            }
            (flow, 10 + random.below(60_000) as u32)
        })
        .collect()
}

/// Returns a routing table: prefixes of the lengths that the Internet's has, most of them /24.
fn routes(count: usize) -> Vec<(Flow, u32)> {
    let mut random = Random(7);
    (0..count)
        .map(|_| {
            let bits = random.one_of(&[
                24, 24, 24, 24, 24, 24, 23, 22, 22, 21, 20, 19, 18, 16, 32, 14, 12,
            ]);
            let flow = Flow {
                source: (0, 0),
                destination: (random.next() as u32 & prefix(bits), prefix(bits)),
                ports: (0, 0),
                protocol: 0,
            };
            (flow, bits)
        })
        .collect()
}

fn exact(count: usize) -> Vec<(Flow, u32)> {
    (0..count)
        .map(|index| {
            let flow = Flow {
                source: (0x0a00_0000 + index as u32, u32::MAX),
                destination: (0x0b00_0000 + index as u32 % 65536, u32::MAX),
                ports: (1024 << 16 | 80, u32::MAX),
                protocol: 17,
            };
            (flow, 10)
        })
        .collect()
}

/// Reads rules of addresses, protocols and ports as `sluice gen rules --openflow` prints them.
fn listed(text: &str) -> Vec<(Flow, u32)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    };
    let address = |text: &str| {
        let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
        let address: std::net::Ipv4Addr = address.parse().unwrap();
        (u32::from(address), prefix(bits.parse().unwrap()))
    };
    let port = |text: &str| {
        let (value, mask) = text.split_once('/').unwrap_or((text, "0xffff"));
        (number(value), number(mask))
    };
    let one = |line: &str| {
        let mut priority = 0;
        let mut flow = Flow {
            source: (0, 0),
            destination: (0, 0),
            ports: (0, 0),
            protocol: 0,
        };
        for part in line.split(',') {
            match part.split_once('=').unwrap_or((part, "")) {
                ("priority", text) => priority = number(text),
                ("tcp", _) => flow.protocol = 6,
                ("udp", _) => flow.protocol = 17,
                ("icmp", _) => flow.protocol = 1,
                ("nw_proto", text) => flow.protocol = number(text) as u8,
                ("nw_src", text) => flow.source = address(text),
                ("nw_dst", text) => flow.destination = address(text),
                (name @ ("tp_src" | "tp_dst"), text) => {
                    let shift = if name == "tp_src" { 16 } else { 0 };
                    let (value, mask) = port(text);
                    flow.ports.0 |= value << shift;
                    flow.ports.1 |= mask << shift;
                }
                ("ip" | "actions", _) => {}
                (other, _) => panic!("{other}"),
            }
        }
        (flow, priority)
    };
    text.lines().map(one).collect()
}

fn measure(bridge: &Bridge, reader: &mut Reader, packets: &[FlowKey]) -> f64 {
    let mut lowest = f64::MAX;
    for _ in 0..7 {
        let mut found = 0;
        let begun = cycles();
        for burst in packets.chunks_exact(BURST) {
            let guard = reader.begin();
            let mut out = [None; BURST];
            bridge.lookup_burst(0, BURST, |index| &burst[index], &guard, &mut out);
            found += out
                .iter()
                .filter(|rule| rule.is_some_and(|rule| rule.spec.priority > 0))
                .count();
        }
        let spent = cycles() - begun;
        assert_eq!(
            found,
            packets.len() / BURST * BURST,
            "every packet meets a rule"
        );
        lowest = lowest.min(spent as f64 / found as f64);
    }
    lowest
}

fn run(name: &str, rules: &[(Flow, u32)]) {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let ops = Arc::new(OpList::new(vec![Op::Output(2)]));
    let mut reader = program.domain.reader().unwrap();
    program.counters.add_worker(reader.index());
    let counter = program.counters.allocate().unwrap();
    let last = (Match::any(), 1);
    let all = rules
        .iter()
        .map(|(flow, priority)| (flow.matching(), *priority));
    let mut linked = Vec::new();
    let begun = Instant::now();
    for (matching, priority) in all.chain([last]) {
        let spec = RuleSpec {
            matching,
            priority,
            ops: Arc::clone(&ops),
            counter,
            cookie: 0,
        };
        linked.push(writer.insert(0, spec));
        // Some at a time, as flow mods come.
        if linked.len() % 64 == 0 {
            writer.commit();
            program.domain.publish();
        }
    }
    writer.commit();
    program.domain.publish();
    let added = begun.elapsed() / linked.len() as u32;
    let mut random = Random(3);
    let packets: Vec<FlowKey> = (0..PACKETS)
        .map(|_| {
            let rule = random.below(rules.len() as u64) as usize;
            rules[rule].0.key(&mut random)
        })
        .collect();
    let tuples = writer.describe(0);
    let before = measure(&bridge, &mut reader, &packets);
    reader.offline();
    let begun = Instant::now();
    writer.shape_now();
    let took = begun.elapsed();
    program.domain.publish();
    let chosen = writer.describe(0);
    let after = measure(&bridge, &mut reader, &packets);
    reader.offline();
    // Removes one rule in ten.
    let gone: Vec<_> = linked.into_iter().step_by(10).collect();
    let begun = Instant::now();
    for some in gone.chunks(64) {
        some.iter().for_each(|rule| writer.remove(0, *rule));
        writer.commit();
        program.domain.publish();
        writer.housekeep(usize::MAX);
    }
    let removed = begun.elapsed() / gone.len() as u32;
    println!(
        "{name:20} {} {before:7.1} (said {:.0}), {} {after:7.1} (said {:.0} to {:.0}) cycles/packet, made in {took:.1?}, {} KB; a rule is added in {added:.0?}, removed in {removed:.0?}\n    accesses {:.1} to {}, compares {:.1} to {}; {}",
        tuples.template.name(),
        tuples.typical_cycles(),
        chosen.template.name(),
        chosen.typical_cycles(),
        chosen.worst_cycles(),
        chosen.bytes / 1024,
        chosen.typical.accesses,
        chosen.worst.accesses,
        chosen.typical.compares,
        chosen.worst.compares,
        chosen.why,
    );
}

/// Makes a case's rules, each with its precedence.
type Rules = fn() -> Vec<(Flow, u32)>;

fn main() {
    // Fixed hash keys, so that two builds differ in their code alone.
    program::secret::fix();
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|name| !name.starts_with('-'))
        .collect();
    let cases: [(&str, Rules); 16] = [
        ("acl-1k-10masks", || access_list(1000, 10)),
        ("acl-1k-50masks", || access_list(1000, 50)),
        ("acl-100-50masks", || access_list(100, 50)),
        ("acl-10k-200masks", || access_list(10_000, 200)),
        ("acl-100k-200masks", || access_list(100_000, 200)),
        ("acl-1m-200masks", || access_list(1_000_000, 200)),
        ("mixed-100k", || mixed(100_000)),
        ("mixed-1m", || mixed(1_000_000)),
        ("firewall-100", || firewall(100)),
        ("firewall-1k", || firewall(1000)),
        ("firewall-10k", || firewall(10_000)),
        ("routes-1k", || routes(1000)),
        ("routes-10k", || routes(10_000)),
        ("routes-100k", || routes(100_000)),
        ("routes-1m", || routes(1_000_000)),
        ("exact-100k", || exact(100_000)),
    ];
    for (name, rules) in cases {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            run(name, &rules());
        }
    }
    for name in wanted {
        if let Ok(text) = std::fs::read_to_string(&name) {
            run(&name, &listed(&text));
        }
    }
}
