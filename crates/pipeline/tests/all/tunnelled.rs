//! Packets with tunnel metadata, in bursts, compared with the reference and with walks of one
//! packet each: rules match metadata, copy and write them, and send by them. Also packets that came
//! by many tunnels whose metadata no rule looks at. `SLUICE_CASES` sets the number of cases,
//! `SLUICE_SEED` the first seed.

use crate::common::generate::Random;
use crate::common::outside::{Outside, To};
use crate::common::*;
use conntrack::Earlier;
use openflow::action::{Action, Subfield};
use openflow::tlv::{TlvCommand, TlvMapping, TlvTableMod};
use packet::build::Builder;
use packet::key::at;
use packet::tunnel::{Addresses, OPTION_WORDS, TunnelInfo, TunnelWords};
use packet::{Field, FlowKey, Frame, HeapFrame, Match, Value, WordSet};
use pipeline::reference::{self, Effect};
use program::actions::{PortNo, ToController};
use program::exec::{CacheMode, Engine};
use program::host::Context;
use program::table::Miss;
use std::collections::HashMap;

const TABLES: u64 = 4;
const BURST: usize = 40;
const WORDS: WordSet = TunnelInfo::WORDS.union(OPTION_WORDS);
/// Options of the map: two that lanes have, and one that they do not.
const OPTIONS: [(usize, u8); 3] = [(0, 4), (1, 12), (2, 60)];

/// What leaves: the port, the port by which the packet came, its tunnel metadata and its bytes. A
/// packet-in has no port.
type Left = (Option<PortNo>, PortNo, TunnelWords, Vec<u8>);

#[derive(Default)]
struct Notes(Vec<Left>);

fn words(context: &Context<'_>) -> TunnelWords {
    match WORDS.minus(context.valid).is_empty() {
        true => TunnelWords::of_key(context.key),
        false => TunnelWords::ZERO,
    }
}

impl Outside for Notes {
    fn output(&mut self, context: Context<'_>, port: u32, frame: HeapFrame, _: bool) {
        *context.sent = true;
        let left = (Some(port), context.in_port, words(&context), frame.to_vec());
        self.0.push(left);
    }
    fn controller(&mut self, context: Context<'_>, _: &ToController, frame: &HeapFrame) {
        let left = (None, context.in_port, words(&context), frame.to_vec());
        self.0.push(left);
    }
    /// Only these ports send by tunnels.
    fn reads_tunnel(&self, port: u32) -> bool {
        port.is_multiple_of(2)
    }
}

fn part(field: Field, start: u16, bits: u16) -> Subfield {
    Subfield { field, start, bits }
}

fn set(field: Field, number: u128) -> Action {
    let def = field.def();
    Action::SetField {
        field,
        value: Value::from_u128(number << def.shift, def.bytes),
        mask: def.place(),
    }
}

/// A field of metadata, and how many bits of it rules use.
fn metadata(random: &mut Random) -> (Field, u16) {
    random.pick(&[
        (Field::Reg0, 32),
        (Field::Reg1, 32),
        (Field::Metadata, 64),
        (Field::TunId, 64),
        (Field::TunId, 64),
        (Field::TunSrc, 32),
        (Field::TunDst, 32),
        (Field::TunTos, 8),
        (Field::TunIpv6Dst, 128),
        (Field::TunMetadata0, 32),
        (Field::TunMetadata0, 32),
        (Field::TunMetadata1, 96),
        (Field::TunMetadata2, 480),
    ])
}

fn some_bits(random: &mut Random, (field, width): (Field, u16), bits: u16) -> Subfield {
    let start = random.pick(&[0, 0, (width - bits).min(16), width - bits]);
    part(field, start, bits)
}

fn action(random: &mut Random) -> Action {
    let value = random.below(3);
    match random.below(12) {
        0..3 => {
            let to = metadata(random);
            let dst = some_bits(random, to, 8.min(to.1));
            Action::Load { dst, value }
        }
        3..7 => {
            let from = match random.below(4) {
                0 => (Field::Ipv4Dst, 32),
                1 => (Field::EthSrc, 48),
                _ => metadata(random),
            };
            let to = metadata(random);
            let bits = random.pick(&[1, 8, 16, 24, 32, 64]).min(from.1).min(to.1);
            let (src, dst) = (some_bits(random, from, bits), some_bits(random, to, bits));
            Action::Move { src, dst }
        }
        7 => set(
            random.pick(&[Field::TunId, Field::TunSrc, Field::TunDst]),
            value.into(),
        ),
        8 => set(Field::EthDst, 0x0200_0000_0000 + u128::from(value)),
        9 => Action::DecTtl(vec![0]),
        10 => set(Field::Ipv4Dst, 0x0b00_0000 + u128::from(value)),
        _ => set(Field::Reg0, value.into()),
    }
}

fn matching(random: &mut Random) -> Match {
    let mut matching = Match::any();
    for _ in 0..random.pick(&[0, 1, 1, 2]) {
        let value = u128::from(random.below(3));
        match random.below(7) {
            0 => matching.set_exact(Field::TunId, value),
            1 => matching.set_exact(Field::TunSrc, value),
            2 => matching.set_exact(Field::Reg0, value),
            3 => matching.set_exact(Field::InPortOxm, 1 + value),
            4 if matching.options() == 0 => {
                matching.set_option(0, &[0, 0, 0, value as u8], Some(&[0, 0, 0, 3]));
            }
            5 => {
                matching.set_exact(Field::EthType, 0x0800);
                matching.set_exact(Field::Ipv4Dst, 0x0b00_0000 + value);
            }
            _ => matching.set_exact(Field::Metadata, value),
        }
    }
    matching
}

fn rule(random: &mut Random, table: u64, priority: u16) -> openflow::flow::FlowMod {
    let mut actions: Vec<Action> = (0..random.below(4)).map(|_| action(random)).collect();
    if random.one_in(16) {
        actions.push(Action::Output {
            port: openflow::port::CONTROLLER,
            max_len: 0xffff,
        });
    }
    let out = output(1 + random.below(6) as u32);
    if random.one_in(12) {
        actions.push(Action::Clone(vec![set(Field::TunId, 9), out.clone()]));
    }
    let goes_on = table + 1 < TABLES && !random.one_in(3);
    if goes_on {
        let next = table + 1 + random.below(TABLES - 1 - table);
        actions.push(Action::Resubmit {
            in_port: None,
            table: Some(next as u8),
            with_ct_orig: false,
        });
        if random.one_in(5) {
            actions.push(action(random));
        }
    }
    if !goes_on || random.one_in(8) {
        actions.push(out);
    }
    let mut rule = add(matching(random), priority);
    rule.table = table as u8;
    rule.instructions = apply(&actions).into();
    rule
}

/// Generates a packet; its last bytes distinguish it from others.
fn packet(random: &mut Random, tail: u8) -> Vec<u8> {
    let last = random.below(3) as u8;
    let mut builder = Builder::ethernet([2, 0, 0, 0, 0, last], [4; 6]);
    if random.one_in(4) {
        builder = builder.vlan(5);
    }
    let to = 0x0b00_0000 + random.below(3) as u32;
    let builder = match random.below(10) {
        0 => {
            return builder
                .arp(1, [4; 6], to, [0; 6], to)
                .payload(&[tail])
                .bytes();
        }
        1 => builder.ipv6([1; 16], [2; 16]).udp(1, 2),
        2 => builder.mpls(0x5109).ipv4(0x0a00_0001, to).udp(1, 2),
        _ => {
            let ttl = random.pick(&[1, 64, 64, 64]);
            let builder = builder.ipv4(0x0a00_0001, to);
            builder.with_ipv4(|ip| ip.set_ttl(ttl)).udp(1, 2)
        }
    };
    builder.payload(&[&[0; 17][..], &[tail]].concat()).bytes()
}

fn came(random: &mut Random) -> (PortNo, TunnelWords) {
    let mut words = TunnelWords::ZERO;
    let number = |random: &mut Random| random.below(3) as u32;
    let addresses = match random.below(4) {
        0 => None,
        1 => Some(Addresses::V6 {
            src: [1; 16],
            dst: [2; 16],
        }),
        _ => {
            let (src, dst) = (number(random), 1 + number(random));
            Some(Addresses::V4 { src, dst })
        }
    };
    words.set(&TunnelInfo {
        id: number(random).into(),
        addresses,
        tos: number(random) as u8,
        ..TunnelInfo::default()
    });
    if random.one_in(2) {
        let last = packet::key::WORDS - 1;
        words.write(last as u8, u64::from(number(random)).to_be(), u64::MAX);
        words.write(
            (at::TUN_METADATA_PRESENT / 8) as u8,
            1_u64.to_be(),
            u64::MAX,
        );
    }
    (1 + number(random), words)
}

type Counts = HashMap<(u8, u32, Match), (u64, u64)>;

fn counters(switch: &Switch) -> Counts {
    let rules = switch.pipeline.dump_all(switch.clock());
    let one = |rule: pipeline::RuleView| {
        let stats = rule.stats;
        let name = (stats.table, rule.priority, stats.matching);
        (name, (stats.packets, stats.bytes))
    };
    rules.map(one).collect()
}

/// Returns the numbers of packets that left by ports, by tunnels with metadata, and to controllers,
/// and of rules.
fn run(seed: u64) -> [usize; 4] {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..4).for_each(|_| _ = random.next());
    let mut switch = Switch::new();
    switch.program.walk_caches.set_mode(CacheMode::Never);
    let mapping = |(field, length): (usize, u8)| TlvMapping {
        class: 0x0102,
        kind: field as u8,
        length,
        field: field as u16,
    };
    let map = TlvTableMod {
        command: TlvCommand::Add,
        mappings: OPTIONS.map(mapping).to_vec(),
    };
    switch.pipeline.tlv_table_mod(&map).unwrap();
    switch.bridge.need(WORDS);
    for table in 0..TABLES as u8 {
        let miss = random.pick(&[Miss::Drop, Miss::Next, Miss::Controller]);
        switch.pipeline.set_miss(table, miss);
    }
    let (mut total, mut accepted) = ([0; 3], 0);
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let (mut engine, mut alone) = (Engine::new(), Engine::new());
    for round in 0..6 {
        for _ in 0..random.pick(&[1, 8, 30]) {
            let (table, priority) = (random.below(TABLES), random.below(60_000) as u16);
            let change = rule(&mut random, table, priority);
            accepted += usize::from(switch.mod10(change).is_ok());
        }
        switch.publish();
        if random.one_in(2) {
            switch.pipeline.shape_now();
        }
        let mut expected = counters(&switch);
        let packets: Vec<_> = (0..BURST as u8)
            .map(|tail| (packet(&mut random, tail), came(&mut random)))
            .collect();
        let mut wanted: HashMap<u8, Vec<Left>> = HashMap::new();
        let guard = reader.begin();
        for (bytes, (port, words)) in &packets {
            let mut key = FlowKey::ZERO;
            words.fill(&mut key, WORDS);
            key.set_u32(at::IN_PORT, *port);
            let to_table = [output(openflow::port::TABLE)];
            let told =
                reference::evaluate_actions(&switch.pipeline, &key, bytes, &to_table, &|_| true);
            for hit in &told.hits {
                let matching = switch.pipeline.with_names(&hit.matching);
                let name = (hit.table, hit.priority, matching);
                let count = expected.get_mut(&name).unwrap();
                // Met once here and once in the burst.
                *count = (count.0 + 2, count.1 + 2 * hit.bytes as u64);
            }
            let mut notes = Notes::default();
            let begin = |_: usize, key: &mut FlowKey, _: &mut Earlier| {
                key.clear(WORDS);
                words.fill(key, WORDS);
            };
            alone.burst_from(
                &switch.bridge,
                &guard,
                *port,
                &mut vec![HeapFrame::new(bytes)],
                WORDS,
                begin,
                0,
                switch.now,
                &mut To(&mut notes),
            );
            let told = told.effects.into_iter().map(|effect| match effect {
                Effect::Output { port, sent, .. } => (Some(port), sent.bytes),
                Effect::Controller { bytes, .. } => (None, bytes),
                other => unreachable!("{other:?}"),
            });
            let walked = notes.0.iter().map(|left| (left.0, left.3.clone()));
            assert!(told.eq(walked), "seed {seed} round {round}");
            wanted.insert(*bytes.last().unwrap(), notes.0);
        }
        let mut frames = packets.iter().map(|one| HeapFrame::new(&one.0)).collect();
        let ports: Vec<PortNo> = packets.iter().map(|one| one.1.0).collect();
        let say = |index: usize, words: &mut TunnelWords| *words = packets[index].1.1;
        let mut notes = Notes::default();
        let host = &mut To(&mut notes);
        let (bridge, now) = (&switch.bridge, switch.now);
        engine.burst_by_tunnels(bridge, &guard, &ports, &mut frames, Some(say), now, host);
        assert!(frames.is_empty());
        for (tail, mut wanted) in wanted {
            let mut got: Vec<Left> = (notes.0.iter())
                .filter(|left| left.3.last() == Some(&tail))
                .cloned()
                .collect();
            let (_, (came, _)) = packets[usize::from(tail)];
            for left in wanted.iter_mut().chain(&mut got) {
                // Frames that are sent together may have come by several ports.
                if left.1 == PortNo::MAX {
                    assert_ne!(left.0, Some(came), "what goes back is told apart");
                    left.1 = came;
                }
                match left.0 {
                    Some(port) if port.is_multiple_of(2) => {
                        total[1] += usize::from(left.2 != TunnelWords::ZERO);
                    }
                    // Nobody looks at these.
                    Some(_) => left.2 = TunnelWords::ZERO,
                    None => total[2] += 1,
                }
                total[0] += 1;
            }
            assert!(
                got == wanted,
                "seed {seed} round {round} packet {tail}:\n{got:02x?}\n{wanted:02x?}"
            );
        }
        let wrong = counters(&switch).into_iter();
        let wrong: Vec<_> = wrong
            .filter(|(name, count)| expected[name] != *count)
            .collect();
        assert!(wrong.is_empty(), "seed {seed} round {round}: {wrong:?}");
        let _ = guard;
    }
    [total[0], total[1], total[2], accepted]
}

/// Returns the first seed, and the number of cases.
fn cases() -> (u64, u64) {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    (number("SLUICE_SEED", 1), number("SLUICE_CASES", 300))
}

/// Ports by which packets of [`run_by_ports`] come, more than an exact table needs rules.
const PORTS: u64 = 100;
/// The longest burst there: more than are looked up together.
const LONGEST: u64 = 150;

fn some_port(random: &mut Random) -> PortNo {
    1 + random.below(PORTS) as u32
}

/// Generates rules of which most packets meet another one each, by port or address.
fn rules_by_ports(random: &mut Random) -> Vec<openflow::flow::FlowMod> {
    let by_port = random.one_in(2);
    let mut rules = Vec::new();
    for number in 0..PORTS as u32 {
        let mut matching = Match::any();
        if by_port {
            matching.set_exact(Field::InPortOxm, (1 + number).into());
        } else {
            matching.set_exact(Field::EthType, 0x0800);
            matching.set_exact(Field::Ipv4Dst, (0x0b00_0000 + number).into());
        }
        let to = match random.below(4) {
            // Where it came from, for some.
            0 => 1 + number,
            1 => 1 + random.below(6) as u32,
            _ => some_port(random),
        };
        let mut actions = match random.below(6) {
            0 => vec![set(Field::EthSrc, 7)],
            1 => vec![Action::DecTtl(vec![0])],
            _ => Vec::new(),
        };
        actions.push(match random.below(12) {
            0 => Action::Resubmit {
                in_port: None,
                table: Some(1),
                with_ct_orig: false,
            },
            _ => output(to),
        });
        if random.one_in(12) {
            continue; // a miss
        }
        let mut rule = add(matching, 100);
        rule.instructions = apply(&actions).into();
        rules.push(rule);
    }
    for priority in [10, 200] {
        let mut rule = add(
            fields(&[(Field::EthSrc, 9), (Field::EthType, 0x0800)]),
            priority,
        );
        rule.table = random.below(2) as u8;
        rule.instructions = apply(&[output(some_port(random))]).into();
        rules.push(rule);
    }
    rules
}

/// Returns the numbers of packets that left, and of those that would have gone back.
fn run_by_ports(seed: u64) -> [usize; 2] {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..4).for_each(|_| _ = random.next());
    let mut switch = Switch::new();
    switch.program.walk_caches.set_mode(CacheMode::Never);
    for rule in rules_by_ports(&mut random) {
        switch.mod10(rule).unwrap();
    }
    switch.publish();
    if !random.one_in(4) {
        switch.pipeline.shape_now();
    }
    if random.one_in(3) {
        // Some packets then have no verdict.
        for rule in rules_by_ports(&mut random).into_iter().take(5) {
            switch.mod10(rule).unwrap();
        }
        switch.publish();
    }
    let mut total = [0; 2];
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let (mut engine, mut alone) = (Engine::new(), Engine::new());
    for _ in 0..4 {
        let count = 1 + random.below(LONGEST) as u8;
        let packets: Vec<(Vec<u8>, PortNo)> = (0..count)
            .map(|tail| {
                let to = 0x0b00_0000 + random.below(PORTS + 5) as u32;
                let from = random.pick(&[4, 4, 4, 9]);
                let builder = Builder::ethernet([2; 6], [0, 0, 0, 0, 0, from]);
                let ttl = random.pick(&[1, 64, 64, 64, 64, 64]);
                let builder = match random.below(12) {
                    0 => builder.ipv6([1; 16], [2; 16]).udp(1, 2),
                    1 if random.one_in(4) => builder.mpls(0x5109).ipv4(1, to).udp(1, 2),
                    _ => {
                        let builder = builder.ipv4(0x0a00_0001, to);
                        builder.with_ipv4(|ip| ip.set_ttl(ttl)).udp(1, 2)
                    }
                };
                let bytes = builder.payload(&[&[0; 17][..], &[tail]].concat()).bytes();
                (bytes, some_port(&mut random))
            })
            .collect();
        let guard = reader.begin();
        let before = counters(&switch);
        let mut wanted = HashMap::new();
        for (bytes, port) in &packets {
            let mut notes = Notes::default();
            let frame = HeapFrame::new(bytes);
            let (bridge, now, host) = (&switch.bridge, switch.now, &mut To(&mut notes));
            alone.burst(bridge, &guard, *port, &mut vec![frame], 0, now, host);
            wanted.insert(*bytes.last().unwrap(), notes.0);
        }
        let between = counters(&switch);
        let mut frames = packets.iter().map(|one| HeapFrame::new(&one.0)).collect();
        let ports: Vec<PortNo> = packets.iter().map(|one| one.1).collect();
        let mut notes = Notes::default();
        let (bridge, now, host) = (&switch.bridge, switch.now, &mut To(&mut notes));
        let say = None::<fn(usize, &mut TunnelWords)>;
        engine.burst_by_tunnels(bridge, &guard, &ports, &mut frames, say, now, host);
        assert!(frames.is_empty());
        for (tail, wanted) in wanted {
            let came = ports[usize::from(tail)];
            let mut got: Vec<Left> = (notes.0.iter())
                .filter(|left| left.3.last() == Some(&tail))
                .cloned()
                .collect();
            for left in &mut got {
                if left.1 == PortNo::MAX {
                    assert_ne!(left.0, Some(came), "what goes back is told apart");
                    left.1 = came;
                }
                total[0] += 1;
                total[1] += usize::from(left.0 == Some(came));
            }
            assert!(
                got == wanted,
                "seed {seed} {tail}:\n{got:02x?}\n{wanted:02x?}"
            );
        }
        // Packets that nothing tells apart leave in their order.
        let mut last = HashMap::new();
        for (_, _, _, bytes) in &notes.0 {
            let tail = *bytes.last().unwrap();
            let (sent, port) = &packets[usize::from(tail)];
            let flow = (sent[..sent.len() - 1].to_vec(), *port);
            assert!(last.insert(flow, tail) < Some(tail), "seed {seed}: order");
        }
        for (name, count) in counters(&switch) {
            let (before, between) = (before[&name], between[&name]);
            let once = (between.0 - before.0, between.1 - before.1);
            let again = (count.0 - between.0, count.1 - between.1);
            assert_eq!(once, again, "seed {seed} {name:?}");
        }
        let _ = guard;
    }
    total
}

/// Packets that came by many ports are done as if each came alone.
#[test]
fn packets_of_many_ports_do_what_they_do_alone() {
    let (first, cases) = cases();
    let mut total = [0; 2];
    for seed in first..first + cases {
        for (sum, some) in total.iter_mut().zip(run_by_ports(seed)) {
            *sum += some;
        }
    }
    println!("{total:?} left, of which the host drops");
    assert!(
        cases < 100 || total.iter().all(|some| *some as u64 > cases),
        "{total:?}"
    );
}

#[test]
fn packets_with_tunnel_metadata_do_what_the_rules_say() {
    let (first, cases) = cases();
    let mut total = [0; 4];
    for seed in first..first + cases {
        for (sum, some) in total.iter_mut().zip(run(seed)) {
            *sum += some;
        }
    }
    println!("{total:?} left by ports, with tunnel metadata, to controllers; rules");
    assert!(
        cases < 100 || total.iter().all(|some| *some as u64 > 10 * cases),
        "{total:?}"
    );
}
