//! Conjunctions as flow mods make them, and the errors of `multipath`, `bundle` and similar
//! actions.

use crate::common::outside::{Outside, To};
use crate::common::{Switch, add, apply, fields, output, with};
use openflow::action::{
    Action, Bundle, HashFields, Instruction, Multipath, MultipathAlgorithm, Sample, Subfield,
};
use openflow::error::Error;
use openflow::flow::{FlowMod, FlowModCommand};
use openflow::port;
use packet::{Field, FlowKey, Match};
use program::table::Miss;

fn part(id: u32, clause: u8, clauses: u8) -> Vec<Instruction> {
    apply(&[Action::Conjunction {
        id,
        clause,
        clauses,
    }])
}

fn doing(matching: Match, priority: u16, instructions: Vec<Instruction>) -> FlowMod {
    with(add(matching, priority), |change| {
        change.instructions = instructions.into()
    })
}

/// Returns the priority and the packet count of each rule.
fn counted(switch: &Switch) -> Vec<(u16, u64)> {
    let mut all: Vec<_> = switch
        .flows()
        .iter()
        .map(|flow| (flow.priority, flow.packets))
        .collect();
    all.sort_unstable();
    all
}

struct Discard;

impl Outside for Discard {
    fn output(
        &mut self,
        context: program::host::Context<'_>,
        _: u32,
        _: packet::HeapFrame,
        _: bool,
    ) {
        *context.sent = true;
    }
    fn output_all(&mut self, _: program::host::Context<'_>, _: packet::HeapFrame, _: bool) {}
    fn normal(&mut self, _: program::host::Context<'_>, _: packet::HeapFrame) {}
    fn controller(
        &mut self,
        _: program::host::Context<'_>,
        _: &program::actions::ToController,
        _: &packet::HeapFrame,
    ) {
    }
}

/// Sends a frame from one Ethernet address to another.
fn send(switch: &Switch, from: u8, to: u8) {
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let bytes = packet::build::Builder::ethernet([2, 0, 0, 0, 0, to], [2, 0, 0, 0, 0, from])
        .eth_type(0x88b5)
        .payload(&[0; 50])
        .bytes();
    let guard = reader.begin();
    program::exec::Engine::new().burst(
        &switch.bridge,
        &guard,
        1,
        &mut vec![packet::HeapFrame::new(&bytes)],
        0,
        switch.now,
        &mut To(&mut Discard),
    );
}

fn address(last: u8) -> u128 {
    0x0200_0000_0000 | u128::from(last)
}

/// ovs-fields(7): packet counts of soft rules are never updated, only those of the rule with the
/// conjunction's id.
#[test]
fn the_rule_of_the_number_counts_and_the_parts_do_not() {
    let mut switch = Switch::new();
    switch.pipeline.set_miss(0, Miss::Drop);
    for (clause, field) in [(0, Field::EthSrc), (1, Field::EthDst)] {
        for last in [1, 2] {
            let priority = 10 * u16::from(clause) + u16::from(last);
            let matching = fields(&[(field, address(last))]);
            let mut change = doing(matching, 30, part(7, clause, 2));
            change.cookie = priority.into();
            switch.mod13(change).unwrap();
        }
    }
    let answer = doing(fields(&[(Field::ConjId, 7)]), 5, apply(&[output(2)]));
    switch.mod13(answer).unwrap();
    let other = doing(Match::any(), 1, apply(&[output(3)]));
    switch.mod13(other).unwrap();
    switch.publish();
    for (from, to) in [(1, 1), (1, 2), (2, 2), (1, 3), (3, 2), (3, 3)] {
        send(&switch, from, to);
    }
    assert_eq!(
        counted(&switch),
        [(1, 3), (5, 3), (30, 0), (30, 0), (30, 0), (30, 0)]
    );
}

/// A modify changes a rule from a part to an ordinary one and back, in place.
#[test]
fn a_modify_makes_a_part_of_a_rule_and_a_rule_of_a_part() {
    let mut switch = Switch::new();
    let source = fields(&[(Field::EthSrc, address(1))]);
    let target = fields(&[(Field::EthDst, address(1))]);
    switch
        .mod13(doing(source.clone(), 9, part(7, 0, 2)))
        .unwrap();
    switch.mod13(doing(target, 9, part(7, 1, 2))).unwrap();
    switch
        .mod13(doing(fields(&[(Field::ConjId, 7)]), 1, apply(&[output(2)])))
        .unwrap();
    switch.publish();
    let found = |switch: &Switch| {
        let mut key = FlowKey::ZERO;
        for field in [Field::EthSrc, Field::EthDst] {
            let def = field.def();
            let value = packet::Value::from_u128(address(1), 6);
            key.bytes_mut()[def.offset..def.offset + 6].copy_from_slice(&value);
        }
        let mut reader = switch.program.domain.reader().unwrap();
        let guard = reader.begin();
        let rule = switch.bridge.lookup(0, &key, &guard);
        rule.map(|rule| rule.spec.priority)
    };
    assert_eq!(found(&switch), Some(1));
    let mut change = doing(source.clone(), 9, apply(&[output(1)]));
    change.command = FlowModCommand::ModifyStrict;
    switch.mod13(change).unwrap();
    assert_eq!(found(&switch), Some(1), "not published yet");
    switch.publish();
    assert_eq!(found(&switch), Some(9));
    let mut change = doing(source, 9, part(7, 0, 2));
    change.command = FlowModCommand::ModifyStrict;
    switch.mod13(change).unwrap();
    switch.publish();
    switch.pipeline.housekeep(usize::MAX);
    assert_eq!(found(&switch), Some(1));
    // Rolling back a batch leaves the parts as they were.
    switch.pipeline.begin_batch();
    let all = with(add(Match::any(), 0), |change| {
        change.command = FlowModCommand::Delete
    });
    switch.mod13(all).unwrap();
    switch.pipeline.roll_back();
    switch.publish();
    switch.pipeline.housekeep(usize::MAX);
    assert_eq!(found(&switch), Some(1));
}

#[test]
fn invalid_multipath_and_bundle_actions_are_refused() {
    let to = |field, bits| Subfield {
        field,
        start: 0,
        bits,
    };
    let multipath = |max_link, dst| {
        Action::Multipath(Box::new(Multipath {
            fields: HashFields::NwSrc,
            basis: 0,
            algorithm: MultipathAlgorithm::Hrw,
            max_link,
            arg: 0,
            dst,
        }))
    };
    let bundle = |members: &[u32], dst| {
        Action::Bundle(Box::new(Bundle {
            fields: HashFields::NwSrc,
            basis: 0,
            active_backup: true,
            members: members.to_vec(),
            dst,
        }))
    };
    let sample = |probability| {
        Action::Sample(Sample {
            probability,
            collector_set: 0,
            domain: 0,
            point: 0,
            port: port::ANY,
            direction: 0,
        })
    };
    let check = |dst| Action::CheckPktLarger { max_len: 100, dst };
    let cases = [
        (multipath(3, to(Field::Reg0, 2)), Ok(())),
        (
            multipath(4, to(Field::Reg0, 2)),
            Err(Error::BadActionArgument),
        ),
        (multipath(65535, to(Field::Reg0, 16)), Ok(())),
        (
            multipath(1, to(Field::ConjId, 16)),
            Err(Error::BadSetArgument),
        ),
        (
            multipath(1, to(Field::Ipv4Dst, 16)),
            Err(Error::ActionMatchInconsistent),
        ),
        (bundle(&[], None), Ok(())),
        (bundle(&[1, port::LOCAL, port::ANY], None), Ok(())),
        (bundle(&[port::CONTROLLER], None), Err(Error::BadOutPort)),
        (bundle(&[1], Some(to(Field::Reg1, 16))), Ok(())),
        (
            bundle(&[1], Some(to(Field::Reg1, 15))),
            Err(Error::BadActionArgument),
        ),
        (
            bundle(&[1], Some(to(Field::EthType, 16))),
            Err(Error::BadSetArgument),
        ),
        (sample(1), Ok(())),
        (sample(0), Err(Error::BadActionArgument)),
        (check(to(Field::Reg0, 1)), Ok(())),
        (check(to(Field::EthType, 1)), Err(Error::BadSetArgument)),
    ];
    for (action, expected) in cases {
        let mut switch = Switch::new();
        let change = doing(Match::any(), 1, apply(std::slice::from_ref(&action)));
        assert_eq!(switch.mod13(change).map(|_| ()), expected, "{action:?}");
        // None of them may be in the action set.
        let set = vec![Instruction::WriteActions(vec![action.clone()])];
        let refused = switch.mod13(doing(Match::any(), 2, set));
        assert_eq!(refused.map(|_| ()), Err(Error::BadActionType), "{action:?}");
    }
}
