//! Nanoseconds per flow mod, and memory per rule: `cargo bench -p sluice-pipeline [-- RULES]`.

use openflow::Version;
use openflow::action::{Action, Instruction};
use openflow::flow::{FlowMod, FlowModCommand, FlowStatsRequest, TABLE_ALL};
use openflow::port;
use packet::{Field, Match};
use pipeline::{Clock, Options, Pipeline};
use program::Program;
use program::table::Bridge;
use std::sync::Arc;
use std::time::Instant;

fn change(command: FlowModCommand, number: u32, ports: u32) -> FlowMod {
    let mut matching = Match::any();
    matching.set_exact(Field::InPort, 1);
    matching.set_exact(Field::EthType, 0x0800);
    matching.set_exact(Field::IpProto, 17);
    matching.set_exact(Field::Ipv4Dst, (0x0a00_0000 + number).into());
    matching.set_exact(Field::UdpDst, (number & 0xffff).into());
    FlowMod {
        command,
        ..FlowMod::add(
            matching,
            100,
            vec![Instruction::ApplyActions(vec![Action::Output {
                port: 1 + number % ports,
                max_len: 0,
            }])],
        )
    }
}

/// Returns the resident memory in bytes, 0 if unknown.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok())
        .unwrap_or(0)
        * 4096
}

/// Returns a flow mod that adds a rule with one of eight masks and checks for overlaps, of which
/// there are none.
fn checked(number: u32) -> FlowMod {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, 0x0800);
    matching.set_exact(Field::IpProto, 17);
    matching.set_exact(Field::Ipv4Dst, (0x0a00_0000 + number).into());
    let optional = [
        (Field::InPort, 1),
        (Field::Ipv4Src, 0x0b00_0001),
        (Field::UdpDst, 53),
    ];
    for (bit, (field, value)) in optional.into_iter().enumerate() {
        if number >> bit & 1 == 1 {
            matching.set_exact(field, value);
        }
    }
    let mut change = change(FlowModCommand::Add, number, 64);
    change.matching = matching;
    change.flags.check_overlap = true;
    change
}

fn main() {
    let rules: u32 = std::env::args()
        .skip(1)
        .find_map(|word| word.parse().ok())
        .unwrap_or(1_000_000);
    let program = Arc::new(Program::new());
    program.counters.add_worker(0);
    let bridge = Bridge::new(Arc::clone(&program));
    let mut pipeline = Pipeline::new(Arc::clone(&program), bridge, Options::default());
    let now = Clock::from_ms(1);
    let before = resident();
    let phase = |pipeline: &mut Pipeline, name: &str, command: FlowModCommand, timeout: u16| {
        let start = Instant::now();
        for number in 0..rules {
            let mut change = change(command, number, 64);
            change.hard_timeout = timeout;
            pipeline
                .flow_mod(&change, Version::V1_3, now)
                .expect("a flow mod that is right");
            if number % 128 == 127 {
                pipeline.commit();
                program.domain.publish();
                pipeline.housekeep(1024);
                program.domain.collect();
            }
        }
        pipeline.commit();
        program.domain.publish();
        let each = start.elapsed().as_nanos() / u128::from(rules);
        println!(
            "{name:<28}{each:>8} ns each, {:>6} MB resident",
            (resident() - before) >> 20
        );
    };
    phase(&mut pipeline, "add", FlowModCommand::Add, 0);
    phase(
        &mut pipeline,
        "add again with a timeout",
        FlowModCommand::Add,
        60,
    );
    phase(
        &mut pipeline,
        "modify strict",
        FlowModCommand::ModifyStrict,
        0,
    );
    let everything = FlowStatsRequest {
        table: TABLE_ALL,
        matching: Match::any(),
        cookie: 0,
        cookie_mask: 0,
        out_port: port::ANY,
        out_group: 0xffff_ffff,
    };
    let start = Instant::now();
    let mut seen = 0_u32;
    pipeline.each_flow(&everything, now, |_| seen += 1);
    println!(
        "{:<28}{:>8} ns each",
        "dump",
        start.elapsed().as_nanos() / u128::from(seen)
    );
    let start = Instant::now();
    assert_eq!(pipeline.expire(now).changed, 0);
    println!(
        "{:<28}{:>8} ns in all",
        "expire, nothing due",
        start.elapsed().as_nanos()
    );
    let start = Instant::now();
    let mut gone = 0;
    while pipeline.next_deadline().is_some() {
        gone += pipeline.expire(Clock::from_ms(70_000)).changed;
    }
    println!(
        "{:<28}{:>8} ns each of {gone}",
        "expire",
        start.elapsed().as_nanos() / gone.max(1) as u128
    );
    phase(&mut pipeline, "add", FlowModCommand::Add, 0);
    phase(
        &mut pipeline,
        "delete strict",
        FlowModCommand::DeleteStrict,
        0,
    );
    let start = Instant::now();
    for number in 0..rules {
        pipeline
            .flow_mod(&checked(number), Version::V1_3, now)
            .expect("a rule that overlaps no other");
    }
    println!(
        "{:<28}{:>8} ns each, {:>6} MB resident",
        "add checked, 8 masks",
        start.elapsed().as_nanos() / u128::from(rules),
        (resident() - before) >> 20
    );
    let mut every = change(FlowModCommand::Delete, 0, 1);
    every.matching = Match::any();
    let start = Instant::now();
    pipeline
        .flow_mod(&every, Version::V1_3, now)
        .expect("a flow mod that is right");
    println!(
        "{:<28}{:>8} ns each",
        "delete all at once",
        start.elapsed().as_nanos() / u128::from(rules)
    );
}
