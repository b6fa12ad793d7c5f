//! Meters: their errors, the rules deleted with them, and which packets pass at which rate,
//! compared packet by packet with the reference.

use crate::common::generate::{Random, frame};
use crate::common::outside::{Outside, To};
use crate::common::{Switch, add, apply, effects, end_in_slices, fields, output, with};
use openflow::Version;
use openflow::action::{Action, Instruction};
use openflow::error::Error;
use openflow::flow::FlowRemovedReason;
use openflow::meter::{
    ALL, Band, BandKind, CONTROLLER, MAX, MeterCommand, MeterConfig, MeterFlags, MeterMod, SLOWPATH,
};
use openflow::port;
use packet::{Field, HeapFrame, Match};
use pipeline::reference::{self, Effect, Levels};
use pipeline::{Clock, FlowModOutcome};
use program::actions::ToController;
use program::exec::Engine;
use program::host::{Context, DropReason};

fn drop_above(rate: u32) -> Band {
    Band {
        kind: BandKind::Drop,
        rate,
        burst: 0,
    }
}

fn meter(command: MeterCommand, number: u32, flags: MeterFlags, bands: &[Band]) -> MeterMod {
    MeterMod {
        command,
        config: MeterConfig {
            meter: number,
            flags,
            bands: bands.to_vec(),
        },
    }
}

fn send(switch: &mut Switch, change: &MeterMod) -> Result<FlowModOutcome, Error> {
    let now = switch.clock();
    switch.pipeline.meter_mod(change, now)
}

fn give(switch: &mut Switch, number: u32, flags: MeterFlags, bands: &[Band]) {
    send(switch, &meter(MeterCommand::Add, number, flags, bands)).unwrap();
}

fn metered(in_port: u64, number: u32) -> openflow::flow::FlowMod {
    with(
        add(fields(&[(Field::InPort, in_port.into())]), 5),
        |change| {
            change.instructions = vec![
                Instruction::Meter(number),
                Instruction::ApplyActions(vec![output(2)]),
            ]
            .into();
            change.flags.send_flow_rem = true;
        },
    )
}

/// OpenFlow 1.3.5 section 6.5 and the errors of section 7.5.4.13, as Open vSwitch gives them.
#[test]
fn bad_meters_are_refused() {
    use MeterCommand::*;
    let pktps = MeterFlags::PKTPS;
    let mut switch = Switch::new();
    give(&mut switch, 1, pktps, &[drop_above(5)]);
    let nine = [drop_above(1); 9];
    let cases = [
        (meter(Add, 1, pktps, &[drop_above(5)]), Error::MeterExists),
        (
            meter(Modify, 2, pktps, &[drop_above(5)]),
            Error::UnknownMeter,
        ),
        (meter(Add, 0, pktps, &[drop_above(5)]), Error::InvalidMeter),
        (
            meter(Add, ALL, pktps, &[drop_above(5)]),
            Error::InvalidMeter,
        ),
        (meter(Modify, ALL, pktps, &[]), Error::InvalidMeter),
        (meter(Add, MAX + 1, pktps, &[]), Error::InvalidMeter),
        (
            meter(Add, 3, pktps | MeterFlags::KBPS, &[]),
            Error::BadMeterFlags,
        ),
        (meter(Add, 3, pktps, &nine), Error::OutOfBands),
        (meter(Add, 3, pktps, &[drop_above(0)]), Error::BadRate),
    ];
    for (change, error) in cases {
        assert_eq!(send(&mut switch, &change), Err(error), "{change:?}");
    }
    let now = switch.clock();
    assert_eq!(switch.pipeline.meter_configs(ALL).unwrap().len(), 1);
    assert_eq!(
        switch.pipeline.meter_stats(9, now),
        Err(Error::UnknownMeter)
    );
    assert_eq!(switch.pipeline.meter_configs(9), Err(Error::UnknownMeter));
    for number in [MAX, SLOWPATH, CONTROLLER, 7] {
        give(&mut switch, number, MeterFlags::empty(), &nine[..8]);
    }
    for number in [99, 0, MAX + 1] {
        let outcome = send(&mut switch, &meter(Delete, number, pktps, &[]));
        assert_eq!(outcome, Ok(FlowModOutcome::default()), "nothing to delete");
    }
}

#[test]
fn there_are_no_more_meters_than_said() {
    let mut switch = Switch::new();
    let most = pipeline::meter_features().max_meters;
    for number in 1..=most {
        give(&mut switch, number, MeterFlags::PKTPS, &[]);
    }
    let one_more = meter(MeterCommand::Add, most + 1, MeterFlags::PKTPS, &[]);
    assert_eq!(send(&mut switch, &one_more), Err(Error::OutOfMeters));
    send(
        &mut switch,
        &meter(MeterCommand::Delete, ALL, MeterFlags::empty(), &[]),
    )
    .unwrap();
    assert_eq!(send(&mut switch, &one_more).unwrap().changed, 1);
}

#[test]
fn a_burst_that_is_not_given_is_a_seconds() {
    let mut switch = Switch::new();
    let flags = MeterFlags::PKTPS;
    give(&mut switch, 1, flags, &[drop_above(7)]);
    give(&mut switch, 2, flags | MeterFlags::BURST, &[drop_above(7)]);
    let bursts: Vec<u32> = switch
        .pipeline
        .meter_configs(ALL)
        .unwrap()
        .iter()
        .map(|config| config.bands[0].burst)
        .collect();
    assert_eq!(
        bursts,
        [0, 7],
        "told as given, but chosen where a burst is asked for"
    );
}

#[test]
fn rules_go_with_their_meter_and_say_so() {
    let mut switch = Switch::new();
    assert_eq!(switch.mod13(metered(1, 5)), Err(Error::InvalidMeter));
    assert!(switch.flows().is_empty());
    for number in [5, 6] {
        give(&mut switch, number, MeterFlags::PKTPS, &[drop_above(5)]);
    }
    for (port, number) in [(1, 5), (2, 5), (3, 6)] {
        switch.mod13(metered(port, number)).unwrap();
    }
    let nested = Action::Clone(vec![Action::Meter(5), Action::Meter(6), output(1)]);
    switch
        .mod13(with(add(fields(&[(Field::InPort, 4)]), 5), |change| {
            change.instructions = apply(&[nested]).into();
        }))
        .unwrap();
    let told = Action::Controller {
        max_len: 10,
        controller_id: 0,
        reason: 1,
        userdata: Vec::new(),
        pause: false,
        meter_id: Some(5),
    };
    switch
        .mod13(with(add(Match::any(), 1), |change| {
            change.instructions = apply(&[told]).into();
        }))
        .unwrap();
    let flows = |switch: &Switch, number| {
        let now = switch.clock();
        switch.pipeline.meter_stats(number, now).unwrap()[0].flows
    };
    assert_eq!((flows(&switch, 5), flows(&switch, 6)), (3, 2));
    // Replaced and deleted rules no longer count.
    switch.mod13(metered(3, 5)).unwrap();
    assert_eq!((flows(&switch, 5), flows(&switch, 6)), (4, 1));
    let outcome = send(
        &mut switch,
        &meter(MeterCommand::Delete, 5, MeterFlags::empty(), &[]),
    );
    let removed = outcome.unwrap().removed;
    let reasons: Vec<_> = removed.iter().map(|rule| rule.reason).collect();
    assert_eq!(reasons, [FlowRemovedReason::MeterDelete; 3]);
    // A rule that only uses it in a `controller` action stays.
    assert_eq!(switch.flows().len(), 1);
    assert_eq!(flows(&switch, 6), 0);
}

/// Counts the packets that leave.
#[derive(Default)]
struct Sink {
    now_ns: u64,
    effects: Vec<Effect>,
    drops: Vec<DropReason>,
}

impl Outside for Sink {
    fn output(&mut self, context: Context<'_>, port: u32, frame: HeapFrame, to_in_port: bool) {
        let effect = effects::output(context, port, &frame, to_in_port);
        self.effects.push(effect);
    }
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame) {
        self.effects.push(effects::controller(&context, to, frame));
    }
    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }
    fn dropped(&mut self, reason: DropReason) {
        self.drops.push(reason);
    }
}

fn without_keys(mut effects: Vec<Effect>) -> Vec<Effect> {
    for effect in &mut effects {
        if let Effect::Controller { key, .. } = effect {
            **key = packet::FlowKey::ZERO;
        }
    }
    effects
}

fn some_meter(random: &mut Random, number: u32) -> MeterConfig {
    let bands = (0..random.below(4)).map(|_| Band {
        kind: if random.one_in(2) {
            BandKind::Drop
        } else {
            BandKind::DscpRemark(1 + random.below(3) as u8)
        },
        rate: 1 + random.pick(&[0, 1, 4, 5, 100, 999]),
        burst: random.pick(&[0, 0, 1, 2, 10]),
    });
    let bands = bands.collect();
    MeterConfig {
        meter: number,
        flags: random.pick(&[MeterFlags::PKTPS, MeterFlags::KBPS]),
        bands,
    }
}

fn some_actions(random: &mut Random, depth: u32) -> Vec<Action> {
    let action = |random: &mut Random| match random.below(6) {
        0..=1 => output(1 + random.below(3) as u32),
        2 => Action::Meter(1 + random.below(3) as u32),
        3 => Action::Controller {
            max_len: 50,
            controller_id: 0,
            reason: 1,
            userdata: Vec::new(),
            pause: false,
            meter_id: random.one_in(2).then_some(1 + random.below(4) as u32),
        },
        4 if depth < 2 => Action::Clone(some_actions(random, depth + 1)),
        _ => Action::Resubmit {
            in_port: None,
            table: Some(1 + random.below(2) as u8),
            with_ct_orig: false,
        },
    };
    (0..random.below(5)).map(|_| action(random)).collect()
}

/// Packet by packet as time passes: the same effects as in the reference, exact counts, and a named
/// drop for each packet that a meter drops.
#[test]
fn metered_packets_have_the_effects_of_the_reference() {
    let (mut passed, mut dropped, mut changed) = (0, 0, 0);
    for seed in 1..=150 {
        let mut random = Random((seed * 0x9e37_79b9) | 1);
        let mut switch = Switch::new();
        for number in [1, 2, 3, CONTROLLER] {
            let config = some_meter(&mut random, number);
            if number != CONTROLLER || random.one_in(2) {
                let change = MeterMod {
                    command: MeterCommand::Add,
                    config,
                };
                send(&mut switch, &change).unwrap();
            }
        }
        for table in 0..3 {
            let mut instructions = apply(&some_actions(&mut random, if table > 1 { 3 } else { 0 }));
            if let Instruction::ApplyActions(actions) = &mut instructions[0] {
                // Only resubmits to later tables.
                actions.retain(|action| !format!("{action:?}").contains("Resubmit") || table == 0);
            }
            if random.one_in(2) {
                instructions.push(Instruction::Meter(1 + random.below(3) as u32));
            }
            if random.one_in(3) {
                instructions.push(Instruction::WriteActions(vec![output(4)]));
            }
            let change = with(add(Match::any(), 1), |change| {
                change.table = table;
                change.instructions = instructions.into();
            });
            switch.send(&change, Version::V1_5).unwrap();
        }
        switch.publish();
        let mut reader = switch.program.domain.reader().unwrap();
        switch.program.counters.add_worker(reader.index());
        let mut engine = Engine::new();
        let mut levels = Levels::default();
        let start = switch.now * 1_000_000;
        levels.set_time(start);
        for number in [1, 2, 3, CONTROLLER] {
            levels.know(&switch.pipeline, number);
        }
        let mut now_ns = start;
        for index in 0..60 {
            now_ns += random.pick(&[0, 0, 100_000, 3_000_001, 40_000_000, 900_000_000]);
            if random.one_in(30) {
                let change = MeterMod {
                    command: MeterCommand::Modify,
                    config: some_meter(&mut random, 2),
                };
                // Added and changed at a whole millisecond, the resolution of the clock of changes.
                now_ns = now_ns.next_multiple_of(1_000_000);
                let at = Clock::from_ms(now_ns / 1_000_000);
                switch.pipeline.meter_mod(&change, at).unwrap();
                changed += 1;
            }
            levels.set_time(now_ns);
            let bytes = frame(&mut random, [1, index]);
            let wanted =
                reference::evaluate_metered(&switch.pipeline, 7, &bytes, &|_| true, &mut levels);
            let mut sink = Sink {
                now_ns,
                ..Sink::default()
            };
            let guard = reader.begin();
            let mut frames = vec![HeapFrame::new(&bytes)];
            engine.burst(
                &switch.bridge,
                &guard,
                7,
                &mut frames,
                0,
                1,
                &mut To(&mut sink),
            );
            assert_eq!(
                without_keys(wanted.effects),
                without_keys(sink.effects),
                "seed {seed}, packet {index}: {:?} {:?}",
                switch.pipeline.meter_configs(ALL),
                switch.flows()
            );
            let metered = sink.drops.contains(&DropReason::Meter);
            passed += usize::from(!metered);
            dropped += usize::from(metered);
        }
    }
    assert!(
        passed > 1000 && dropped > 1000 && changed > 50,
        "{passed} {dropped} {changed}"
    );
}

/// A packet-in that a meter drops has a drop reason of its own, and the packet continues.
#[test]
fn packet_ins_have_meters_of_their_own() {
    let mut switch = Switch::new();
    let once = Band {
        kind: BandKind::Drop,
        rate: 1,
        burst: 1,
    };
    give(&mut switch, CONTROLLER, MeterFlags::PKTPS, &[once]);
    give(&mut switch, 3, MeterFlags::PKTPS, &[once]);
    let to = |meter_id| Action::Controller {
        max_len: 10,
        controller_id: 0,
        reason: 1,
        userdata: Vec::new(),
        pause: false,
        meter_id,
    };
    // The action's own meter; an unknown one and none, with which the bridge's applies.
    let actions = [
        to(Some(3)),
        to(Some(3)),
        to(Some(99)),
        to(None),
        output(port::CONTROLLER),
        output(2),
    ];
    switch
        .mod13(with(add(Match::any(), 1), |change| {
            change.instructions = apply(&actions).into();
        }))
        .unwrap();
    switch.publish();
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let mut sink = Sink {
        now_ns: switch.now * 1_000_000,
        ..Sink::default()
    };
    let guard = reader.begin();
    Engine::new().burst(
        &switch.bridge,
        &guard,
        1,
        &mut vec![HeapFrame::new(&[0; 60])],
        0,
        1,
        &mut To(&mut sink),
    );
    let told = |effect: &&Effect| matches!(effect, Effect::Controller { .. });
    assert_eq!(sink.effects.iter().filter(told).count(), 2);
    assert_eq!(sink.effects.len(), 3, "and the output");
    assert_eq!(sink.drops, [DropReason::MeterController; 3]);
    let stats = switch
        .pipeline
        .meter_stats(CONTROLLER, switch.clock())
        .unwrap();
    assert_eq!((stats[0].packets, stats[0].bands[0]), (3, (2, 120)));
}

/// A meter goes with the many rules that use it in slices, found in slices among others.
#[test]
fn many_users_of_a_meter_go_in_slices() {
    const BUDGET: usize = 64;
    for (deleted, gone) in [(1, 150), (ALL, 300)] {
        let mut switch = Switch::new();
        for number in [1, 2] {
            give(&mut switch, number, MeterFlags::PKTPS, &[drop_above(5)]);
        }
        for number in 0..400 {
            let rule = match number % 4 {
                0 => add(fields(&[(Field::InPort, number.into())]), 5),
                1 => metered(number, 1),
                2 => metered(number, 2),
                _ => metered(number, 1 + number as u32 / 4 % 2),
            };
            switch.mod13(rule).unwrap();
        }
        switch.publish();
        let delete = meter(MeterCommand::Delete, deleted, MeterFlags::empty(), &[]);
        let now = switch.clock();
        let begun = switch.pipeline.begin_meter_mod(&delete, now, BUDGET);
        let (outcome, longest) = end_in_slices(&mut switch, begun.unwrap(), BUDGET);
        let meters = if deleted == ALL { 2 } else { 1 };
        assert_eq!(outcome.changed, gone + meters);
        assert!(longest <= BUDGET + 2, "{longest}");
        let reasons = outcome.removed.iter().map(|told| told.reason);
        assert!(
            reasons
                .into_iter()
                .all(|it| it == FlowRemovedReason::MeterDelete)
        );
        assert_eq!(switch.flows().len(), 400 - gone);
        let left = switch.pipeline.meter_configs(ALL).unwrap();
        assert_eq!(left.len(), 2 - meters);
    }
}

/// Many meters that no rule uses go in slices as well.
#[test]
fn many_meters_go_in_slices() {
    const METERS: u32 = 500;
    const BUDGET: usize = 64;
    let mut switch = Switch::new();
    for number in 1..=METERS {
        give(&mut switch, number, MeterFlags::PKTPS, &[drop_above(5)]);
    }
    let delete = meter(MeterCommand::Delete, ALL, MeterFlags::empty(), &[]);
    let now = switch.clock();
    let begun = switch.pipeline.begin_meter_mod(&delete, now, BUDGET);
    let (outcome, longest) = end_in_slices(&mut switch, begun.unwrap(), BUDGET);
    assert_eq!(outcome.changed, METERS as usize);
    assert!(longest <= BUDGET, "{longest}");
    assert!(switch.pipeline.meter_configs(ALL).unwrap().is_empty());
}
