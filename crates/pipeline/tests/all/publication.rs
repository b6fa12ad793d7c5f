//! Changes while workers walk: a publication is seen as a whole or not at all, in all tables, and
//! once published by every packet.

use crate::common::outside::{Outside, To};
use crate::common::*;
use openflow::action::Instruction;
use openflow::flow::FlowModCommand;
use packet::{Field, Frame, HeapFrame, Value};
use program::exec::Engine;
use program::host::{Context, DropReason};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The ports to which packets were sent.
#[derive(Default)]
struct Ports(Vec<u32>, usize);

impl Outside for Ports {
    fn output(&mut self, _: Context<'_>, port: u32, _: HeapFrame, _: bool) {
        self.0.push(port);
    }
    fn output_all(&mut self, _: Context<'_>, _: HeapFrame, _: bool) {}
    fn normal(&mut self, _: Context<'_>, _: HeapFrame) {}
    fn dropped(&mut self, _: DropReason) {
        self.1 += 1;
    }
}

/// Replaces the rules by those of one generation: the first table writes the generation's number
/// into packets, and the second matches only that number.
fn move_to(switch: &mut Switch, generation: u32, filler: u32) {
    let mut stamp = add(packet::Match::any(), 1);
    let value = Value::from_u128(generation.into(), 4);
    let mask = Field::Reg0.def().place();
    let set = openflow::action::Action::SetField {
        field: Field::Reg0,
        value,
        mask,
    };
    stamp.instructions = vec![
        Instruction::ApplyActions(vec![set]),
        Instruction::GotoTable(1),
    ]
    .into();
    switch.mod13(stamp).unwrap();
    let known = |command, generation: u32| {
        let mut change = flow(command, fields(&[(Field::Reg0, generation.into())]), 1);
        change.table = 1;
        change.instructions = apply(&[output(generation)]).into();
        change
    };
    if generation > 1 {
        switch
            .mod13(known(FlowModCommand::DeleteStrict, generation - 1))
            .unwrap();
    }
    switch
        .mod13(known(FlowModCommand::Add, generation))
        .unwrap();
    // Other rules come and go, so that tables change their classifier meanwhile.
    for number in 0..filler {
        let at = 50_000 + (generation + number) % 40;
        let command = if generation.is_multiple_of(3) {
            FlowModCommand::DeleteStrict
        } else {
            FlowModCommand::Add
        };
        let mut change = known(command, at);
        change
            .matching
            .set_exact(Field::EthType, 0x0800 + u128::from(at % 4));
        switch.mod13(change).unwrap();
    }
}

#[test]
fn a_publication_is_seen_whole() {
    let mut switch = Switch::new();
    move_to(&mut switch, 1, 0);
    switch.publish();
    let stop = Arc::new(AtomicBool::new(false));
    let passed = Arc::new(AtomicU64::new(1));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (bridge, stop, passed) = (
                Arc::clone(&switch.bridge),
                Arc::clone(&stop),
                Arc::clone(&passed),
            );
            let mut reader = switch.program.domain.reader().unwrap();
            switch.program.counters.add_worker(reader.index());
            std::thread::spawn(move || {
                let mut engine = Engine::new();
                let mut packets = 0;
                while !stop.load(Ordering::Relaxed) {
                    let floor = passed.load(Ordering::SeqCst);
                    let guard = reader.begin();
                    let mut ports = Ports::default();
                    let mut frames: Vec<_> = (0..16).map(|_| HeapFrame::new(&[0x11; 60])).collect();
                    engine.burst(&bridge, &guard, 1, &mut frames, 0, 1, &mut To(&mut ports));
                    assert_eq!(
                        ports.1, 0,
                        "dropped between two tables of different generations"
                    );
                    assert_eq!(ports.0.len(), 16);
                    assert!(
                        ports.0.iter().all(|port| *port == ports.0[0]),
                        "one burst, one generation"
                    );
                    assert!(
                        u64::from(ports.0[0]) >= floor,
                        "a rule that had been replaced before the barrier"
                    );
                    assert!(frames.iter().all(|frame| !frame.is_empty()));
                    packets += 16;
                }
                reader.offline();
                packets
            })
        })
        .collect();
    for generation in 2..400 {
        move_to(&mut switch, generation, generation % 5);
        switch.pipeline.commit();
        let epoch = switch.program.domain.publish();
        while generation.is_multiple_of(2) && !switch.program.domain.passed(epoch) {
            std::thread::yield_now();
        }
        if generation.is_multiple_of(2) {
            passed.store(generation.into(), Ordering::SeqCst);
        }
        switch.pipeline.housekeep(64);
        switch.program.domain.collect();
    }
    stop.store(true, Ordering::Relaxed);
    let packets: u64 = workers
        .into_iter()
        .map(|worker| worker.join().unwrap())
        .sum();
    let counted: u64 = switch
        .flows()
        .iter()
        .filter(|flow| flow.table == 0)
        .map(|flow| flow.packets)
        .sum();
    assert_eq!(
        counted, packets,
        "the stamping rule kept its counter through all its replacements"
    );
}
