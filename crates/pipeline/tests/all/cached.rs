//! Cached walks and fused paths compared with the reference: long pipelines of steps that can be
//! cached or fused, few flows whose packets repeat in large bursts, and rules that change in
//! between. `SLUICE_CASES` sets the number of cases, `SLUICE_SEED` the first seed.

use crate::common::generate::Random;
use crate::common::outside::{Outside, To};
use crate::common::*;
use openflow::action::{Action, HashFields, Instruction, Multipath, MultipathAlgorithm, Subfield};
use openflow::flow::FlowModCommand;
use packet::build::Builder;
use packet::{Field, Frame, HeapFrame, Match, Value};
use pipeline::reference::{self, Effect};
use program::exec::{CacheMode, Engine};
use program::host::{Context, DropReason};
use std::collections::HashMap;

const TABLES: u64 = 8;
const BURST: usize = 24;

/// Packets sent, by port, and dropped, by reason.
#[derive(Default)]
struct Notes {
    sent: Vec<(u32, Vec<u8>)>,
    lost: usize,
}

impl Outside for Notes {
    fn output(&mut self, context: Context<'_>, port: u32, frame: HeapFrame, to_in_port: bool) {
        *context.sent = true;
        if to_in_port || port != context.in_port {
            self.sent.push((port, frame.to_vec()));
        }
    }
    fn dropped(&mut self, _: DropReason) {
        self.lost += 1;
    }
}

fn part(field: Field, start: u16, bits: u16) -> Subfield {
    Subfield { field, start, bits }
}

fn register(random: &mut Random) -> Field {
    random.pick(&[Field::Reg0, Field::Reg1, Field::Reg2])
}

fn number(field: Field, number: u128) -> Action {
    let def = field.def();
    Action::SetField {
        field,
        value: Value::from_u128(number << def.shift, def.bytes),
        mask: def.place(),
    }
}

/// Generates an action that a cached walk may contain, or rarely one that it may not.
fn action(random: &mut Random) -> Action {
    let value = random.below(4);
    match random.below(14) {
        0..4 => Action::Load {
            dst: part(register(random), 0, 8),
            value,
        },
        4 => Action::Move {
            src: part(Field::Ipv4Dst, 0, 4),
            dst: part(register(random), 0, 4),
        },
        5 => Action::Move {
            src: part(register(random), 0, 8),
            dst: part(Field::EthSrc, 8, 8),
        },
        6 => Action::Move {
            src: part(Field::IpTtl, 0, 8),
            dst: part(register(random), 4, 8),
        },
        7 => number(Field::EthDst, 0x0200_0000_0000 + u128::from(value)),
        8 => number(Field::Ipv4Dst, 0x0b00_0000 + u128::from(value)),
        9 => Action::DecTtl(vec![0]),
        10 => Action::StackPush(part(Field::UdpSrc, 0, 16)),
        11 => Action::StackPop(part(register(random), 0, 16)),
        12 => Action::PopVlan,
        _ if random.one_in(8) => Action::Controller {
            max_len: 64,
            controller_id: 0,
            reason: 1,
            userdata: Vec::new(),
            meter_id: None,
            pause: false,
        },
        _ => number(Field::UdpDst, u128::from(80 + value)),
    }
}

/// Generates an action that a fused path may contain.
fn straight_action(random: &mut Random) -> Action {
    let value = random.below(4);
    match random.below(9) {
        0..5 => Action::Load {
            dst: part(register(random), 0, random.pick(&[8, 32])),
            value,
        },
        8 => Action::Multipath(Box::new(Multipath {
            fields: random.pick(&[
                HashFields::EthSrc,
                HashFields::SymmetricL4,
                HashFields::SymmetricL3L4Udp,
                HashFields::NwDst,
            ]),
            basis: random.below(2) as u16,
            algorithm: random.pick(&[
                MultipathAlgorithm::ModuloN,
                MultipathAlgorithm::HashThreshold,
                MultipathAlgorithm::Hrw,
            ]),
            max_link: 1 + random.below(3) as u16,
            arg: 0,
            dst: part(register(random), random.pick(&[0, 4]), random.pick(&[2, 8])),
        })),
        5 => number(Field::EthDst, 0x0200_0000_0000 + u128::from(value)),
        6 => number(Field::Ipv4Dst, 0x0b00_0000 + u128::from(value)),
        _ => Action::DecTtl(vec![0]),
    }
}

/// Generates instructions of a rule that a fused path may contain.
fn straight_instructions(random: &mut Random, table: u64) -> Vec<Instruction> {
    let resubmit = |table: u64| Action::Resubmit {
        in_port: None,
        table: Some(table as u8),
        with_ct_orig: false,
    };
    let some = |random: &mut Random| (0..random.below(3)).map(|_| 0).collect::<Vec<u8>>();
    let mut actions: Vec<Action> = Vec::new();
    for _ in some(random) {
        actions.push(straight_action(random));
    }
    // A resubmit, which returns.
    if table + 2 < TABLES && random.one_in(4) {
        actions.push(resubmit(table + 2 + random.below(TABLES - table - 2)));
        for _ in some(random) {
            actions.push(straight_action(random));
        }
    }
    match random.below(12) {
        0 => {}
        1 => actions.push(output(2 + random.below(3) as u32)),
        _ if table + 1 == TABLES => actions.push(output(2 + random.below(3) as u32)),
        2 => {
            let next = (table + 1) as u8;
            return vec![
                Instruction::ApplyActions(actions),
                Instruction::GotoTable(next),
            ];
        }
        _ => actions.push(resubmit(table + 1)),
    }
    apply(&actions)
}

/// Generates a match. `deep`: some matches look at IPv6 and ARP fields outside the mini key.
fn matching(random: &mut Random, deep: bool) -> Match {
    let mut matching = Match::any();
    if deep && random.one_in(4) {
        if random.one_in(2) {
            matching.set_exact(Field::EthType, 0x86dd);
            let last = random.below(4).into();
            matching.set_exact(random.pick(&[Field::Ipv6Dst, Field::Ipv6Label]), last);
        } else {
            matching.set_exact(Field::EthType, 0x0806);
            matching.set_exact(Field::ArpTha, random.below(4).into());
        }
        return matching;
    }
    if random.one_in(3) {
        matching.set_exact(Field::InPort, 1 + u128::from(random.below(2)));
    }
    if random.one_in(3) {
        matching.set_exact(register(random), random.below(4).into());
    }
    if random.one_in(4) {
        let last = random.below(4) as u8;
        matching.set_exact(Field::EthDst, 0x0200_0000_0000 + u128::from(last));
    }
    if random.one_in(3) {
        matching.set_exact(Field::EthType, 0x0800);
        matching.set(
            Field::Ipv4Dst,
            &[11, 0, 0, random.below(4) as u8],
            &[255, 255, 255, random.pick(&[255, 2])],
        );
        if random.one_in(2) {
            matching.set_exact(Field::IpProto, 17);
            matching.set_exact(Field::UdpDst, 80 + u128::from(random.below(4)));
        }
    }
    matching
}

fn instructions(random: &mut Random, table: u64) -> Vec<Instruction> {
    let mut actions: Vec<Action> = (0..random.below(4)).map(|_| action(random)).collect();
    let resubmit = |table: u64| Action::Resubmit {
        in_port: None,
        table: Some(table as u8),
        with_ct_orig: false,
    };
    if table + 2 < TABLES && random.one_in(4) {
        actions.push(resubmit(table + 2));
    }
    if random.one_in(6) {
        actions.push(output(2 + random.below(3) as u32));
    }
    match random.below(8) {
        _ if table + 1 == TABLES => actions.push(if random.one_in(3) {
            Action::OutputReg {
                source: part(register(random), 0, 8),
                max_len: 0xffff,
            }
        } else {
            output(2 + random.below(3) as u32)
        }),
        0 => {}
        1 => {
            let next = (table + 1) as u8;
            let set = Instruction::WriteActions(vec![output(5)]);
            return vec![
                Instruction::ApplyActions(actions),
                set,
                Instruction::GotoTable(next),
            ];
        }
        _ => actions.push(resubmit(table + 1)),
    }
    apply(&actions)
}

/// The rules added, each with a precedence of its own in its table.
type Known = Vec<(u8, Match, u16)>;

/// The kind of rules in a run.
#[derive(Clone, Copy)]
struct RuleMix {
    /// Most can be part of a fused path.
    straight: bool,
    /// Some look at IPv6 and ARP fields outside the mini key.
    deep: bool,
}

fn change(random: &mut Random, switch: &mut Switch, known: &mut Known, kind: RuleMix) {
    if !known.is_empty() && random.one_in(4) {
        let (table, matching, priority) =
            known.swap_remove(random.below(known.len() as u64) as usize);
        let mut change = flow(FlowModCommand::DeleteStrict, matching, priority);
        change.table = table;
        switch.mod10(change).unwrap();
        return;
    }
    let table = random.below(TABLES);
    let (matching, priority) = if random.one_in(if kind.straight { 2 } else { 3 }) {
        (Match::any(), 0)
    } else {
        (
            matching(random, kind.deep),
            switch.now as u16 ^ random.below(1 << 15) as u16 | 1,
        )
    };
    if known
        .iter()
        .any(|rule| (u64::from(rule.0), rule.2) == (table, priority))
    {
        return;
    }
    let mut change = add(matching, priority);
    change.table = table as u8;
    change.instructions = if kind.straight && !random.one_in(16) {
        straight_instructions(random, table).into()
    } else {
        instructions(random, table).into()
    };
    let name = (change.table, change.matching.clone(), priority);
    if switch.mod10(change).is_ok() {
        known.push(name);
    }
}

/// Generates a packet; its last bytes distinguish it from others of its flow.
fn packet(random: &mut Random, tail: u8) -> Vec<u8> {
    let last = random.below(4) as u8;
    let mut builder = Builder::ethernet([2, 0, 0, 0, 0, last], [4; 6]);
    if random.one_in(4) {
        builder = builder.vlan(5);
    }
    let to = 0x0b00_0000 + random.below(4) as u32;
    let (from, port) = (random.below(3) as u16, 80 + random.below(4) as u16);
    let six = |last: u32| u128::from(last & 3).to_be_bytes();
    let builder = match random.below(8) {
        0 => {
            let tha = [0, 0, 0, 0, 0, last];
            return builder.arp(1, [4; 6], to, tha, to).payload(&[tail]).bytes();
        }
        1 | 2 => builder
            .ipv6(six(last.into()), six(to))
            .with_ipv6(|ip| ip.set_flow(6 << 28 | u32::from(from)))
            .udp(1000 + from, port),
        _ => builder.ipv4(0x0a00_0001, to).udp(1000 + from, port),
    };
    builder.payload(&[&[0; 17][..], &[tail]].concat()).bytes()
}

type Counts = HashMap<(u8, u32, Match), (u64, u64)>;

fn counters(switch: &Switch) -> Counts {
    let rules = switch.pipeline.dump_all(switch.clock());
    rules
        .map(|rule| {
            let stats = rule.stats;
            let name = (stats.table, rule.priority, stats.matching);
            (name, (stats.packets, stats.bytes))
        })
        .collect()
}

fn lookups(switch: &Switch) -> Vec<(u64, u64)> {
    let tables = 0..TABLES as u8;
    tables
        .map(|table| switch.bridge.table_counters(table))
        .collect()
}

/// Checks that a flow's packets leave each port in the order in which they came: their first
/// copies, their second ones and so on.
fn in_order(sent: &[(u32, Vec<u8>)], flows: &[u64], case: &str) {
    let mut copies: HashMap<(u32, u8), usize> = HashMap::new();
    let mut last: HashMap<(u32, u64, usize), u8> = HashMap::new();
    for (port, bytes) in sent {
        let tail = *bytes.last().unwrap();
        let copy = copies.entry((*port, tail)).or_default();
        *copy += 1;
        let before = last.insert((*port, flows[usize::from(tail)], *copy), tail);
        assert!(
            before < Some(tail),
            "{case}: packet {tail} behind {before:?} on port {port}"
        );
    }
}

/// The optimization under test.
#[derive(Clone, Copy, PartialEq)]
enum Help {
    Nothing,
    /// The flow cache.
    Cache,
    /// Fused paths.
    Fused,
}

/// Returns the lookups and matches of tables for each round, and the number of packets whose walk
/// was cached, or that took fused paths.
fn run(seed: u64, help: Help, straight: bool) -> (Vec<Vec<(u64, u64)>>, u64) {
    let mut choices = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    let mut taken = 0;
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..4).for_each(|_| _ = random.next());
    let mut switch = Switch::new();
    let caches = &switch.program.walk_caches;
    caches.set_entries(512);
    caches.set_mode(if help == Help::Cache {
        CacheMode::Always
    } else {
        CacheMode::Never
    });
    let flows: [u64; 32] = std::array::from_fn(|_| random.next() | 1);
    let mut known = Known::new();
    let kind = RuleMix {
        straight,
        deep: seed % 4 == 1,
    };
    // Few enough that tables are lists, or so many that they are tuples.
    let rules = if seed.is_multiple_of(3) { 240 } else { 60 };
    (0..rules).for_each(|_| change(&mut random, &mut switch, &mut known, kind));
    switch.publish();
    if help == Help::Fused {
        switch.pipeline.shape_now();
    }
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let mut engine = Engine::new();
    let mut tables = Vec::new();
    for round in 0..12 {
        let mut expected = counters(&switch);
        let in_port = 1 + random.below(2) as u32;
        // Few flows at a time, so that each has several packets interleaved with those of others.
        let few: [u64; 6] = std::array::from_fn(|_| random.pick(&flows));
        let flows: [u64; BURST] = std::array::from_fn(|_| random.pick(&few));
        let packets: Vec<_> = (0..)
            .zip(flows)
            .map(|(index, flow)| packet(&mut Random(flow), index))
            .collect();
        let mut wanted = Vec::new();
        for bytes in &packets {
            let outcome = reference::evaluate(&switch.pipeline, in_port, bytes);
            for hit in &outcome.hits {
                let name = (hit.table, hit.priority, hit.matching.clone());
                let count = expected.get_mut(&name).unwrap();
                *count = (count.0 + 1, count.1 + hit.bytes as u64);
            }
            wanted.extend(outcome.effects.into_iter().filter_map(|effect| {
                let Effect::Output {
                    port,
                    to_in_port,
                    sent,
                } = effect
                else {
                    return None;
                };
                (to_in_port || port != in_port).then_some((port, sent.bytes))
            }));
        }
        let guard = reader.begin();
        let mut notes = Notes::default();
        let mut frames = packets.iter().map(|bytes| HeapFrame::new(bytes)).collect();
        engine.burst(
            &switch.bridge,
            &guard,
            in_port,
            &mut frames,
            0,
            switch.now,
            &mut To(&mut notes),
        );
        in_order(&notes.sent, &flows, &format!("seed {seed}, round {round}"));
        // Packets of one burst may overtake each other if their paths differ.
        let tail = |(_, bytes): &(u32, Vec<u8>)| bytes.last().copied();
        notes.sent.sort_by_key(tail);
        wanted.sort_by_key(tail);
        assert_eq!(notes.sent, wanted, "seed {seed}, round {round}");
        while engine.has_deferred() {
            engine.flush_deferred(&switch.program, &guard);
        }
        let counted = counters(&switch);
        for (rule, count) in &expected {
            assert_eq!(counted[rule], *count, "seed {seed}, {round}: {rule:?}");
        }
        tables.push(lookups(&switch));
        let _ = guard;
        let before = switch.pipeline.fused_report().packets;
        switch.now += 10;
        // Sometimes nothing changes, sometimes one table, and rarely what happens to packets that
        // miss.
        match random.below(4) {
            0 => {
                change(&mut random, &mut switch, &mut known, kind);
                switch.publish();
                switch.pipeline.housekeep(usize::MAX);
                switch.program.domain.collect();
            }
            1 => _ = switch.program.domain.publish(),
            _ => {}
        }
        // Earlier fused paths no longer hold, are removed, or are made again.
        match choices.below(6) {
            _ if help != Help::Fused => {}
            0..2 => switch.pipeline.shape_now(),
            2 => _ = switch.pipeline.shape_tables(),
            _ => {}
        }
        let after = switch.pipeline.fused_report().packets;
        taken += before.saturating_sub(after);
        switch.program.domain.collect();
    }
    taken += switch.pipeline.fused_report().packets;
    let reports = switch.program.walk_caches.reports();
    let hits: u64 = reports.iter().map(|report| report.hits).sum();
    (tables, hits + taken)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn remembered_walks_do_what_the_rules_say() {
    let first = setting("SLUICE_SEED", 1);
    let cases = setting("SLUICE_CASES", 300);
    let mut hits = 0;
    for seed in first..first + cases {
        let straight = seed.is_multiple_of(5);
        let (with, found) = run(seed, Help::Cache, straight);
        let (without, _) = run(seed, Help::Nothing, straight);
        assert_eq!(with, without, "seed {seed}: lookups and matches of tables");
        hits += found;
    }
    println!("{hits} hits of {} packets", cases * 12 * BURST as u64);
    assert!(hits > cases * 12 * BURST as u64 / 5, "{hits} hits");
}

#[test]
fn stages_that_are_made_one_do_what_the_rules_say() {
    let first = setting("SLUICE_SEED", 1);
    let cases = setting("SLUICE_CASES", 400);
    let mut taken = 0;
    for seed in first..first + cases {
        let straight = !seed.is_multiple_of(4);
        let (with, ways) = run(seed, Help::Fused, straight);
        let (without, _) = run(seed, Help::Nothing, straight);
        assert_eq!(with, without, "seed {seed}: lookups and matches of tables");
        taken += ways;
    }
    println!(
        "{taken} ways taken by {} packets",
        cases * 12 * BURST as u64
    );
    assert!(taken > cases * 12 * BURST as u64 / 10, "{taken} ways");
}

/// A rule does not idle out while packets meet it, also if their walk is cached.
#[test]
fn a_remembered_walk_keeps_its_rules_from_idling() {
    let mut switch = Switch::new();
    switch.program.walk_caches.set_mode(CacheMode::Always);
    let mut rule = add(Match::any(), 1);
    rule.idle_timeout = 5;
    rule.flags.send_flow_rem = true;
    switch.mod13(rule).unwrap();
    switch.publish();
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let mut engine = Engine::new();
    let bytes = packet(&mut Random(7), 0);
    for _ in 0..4 {
        switch.now += 4000;
        let guard = reader.begin();
        let mut frames = vec![HeapFrame::new(&bytes)];
        let mut notes = Notes::default();
        engine.burst(
            &switch.bridge,
            &guard,
            2,
            &mut frames,
            0,
            switch.now,
            &mut To(&mut notes),
        );
        assert_eq!(notes.sent.len(), 1);
        assert!(!engine.has_deferred(), "a small burst is counted at once");
        let now = switch.clock();
        assert_eq!(switch.pipeline.expire(now).changed, 0);
    }
    assert_eq!(switch.program.walk_caches.reports()[0].hits, 3);
    switch.now += 5000;
    let now = switch.clock();
    let gone = switch.pipeline.expire(now).removed;
    assert_eq!((gone.len(), gone[0].stats.packets), (1, 4));
}

/// Deferred updates of a rule's counter are not counted for a rule that gets the counter later.
#[test]
fn a_counter_is_not_given_away_while_something_is_owed_to_it() {
    let mut switch = Switch::new();
    switch.program.walk_caches.set_mode(CacheMode::Always);
    switch.mod13(add(Match::any(), 1)).unwrap();
    switch.publish();
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let mut engine = Engine::new();
    let mut random = Random(7);
    let send = |engine: &mut Engine<HeapFrame>, switch: &Switch, guard: &_, packets: &[Vec<u8>]| {
        let mut frames = packets.iter().map(|bytes| HeapFrame::new(bytes)).collect();
        let mut notes = Notes::default();
        engine.burst(
            &switch.bridge,
            guard,
            2,
            &mut frames,
            0,
            switch.now,
            &mut To(&mut notes),
        );
    };
    // Rules for which the flows take more different paths than are flushed after a large burst.
    for last in 0..4 {
        let mut rule = add(fields(&[(Field::EthDst, 0x0200_0000_0000 + last)]), 2);
        rule.instructions = apply(&[output(2 + last as u32)]).into();
        switch.mod13(rule).unwrap();
    }
    switch.publish();
    let packets: Vec<_> = (0..64).map(|tail| packet(&mut random, tail)).collect();
    let guard = reader.begin();
    send(&mut engine, &switch, &guard, &packets);
    send(&mut engine, &switch, &guard, &packets);
    assert!(engine.has_deferred());
    let in_use = switch.program.counters.in_use();
    switch
        .mod13(flow(FlowModCommand::Delete, Match::any(), 0))
        .unwrap();
    switch.publish();
    let _ = guard;
    let guard = reader.begin();
    switch.pipeline.housekeep(usize::MAX);
    switch.program.domain.publish();
    let _ = guard;
    let guard = reader.begin();
    switch.program.domain.collect();
    assert_eq!(switch.program.counters.in_use(), in_use);
    while engine.has_deferred() {
        engine.flush_deferred(&switch.program, &guard);
    }
    switch.program.domain.collect();
    assert!(switch.program.counters.in_use() < in_use);
}
