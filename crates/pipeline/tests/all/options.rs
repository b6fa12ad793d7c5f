//! The map of tunnel options, and rules with such options.

use crate::common::{Switch, add, apply, everything, output, with};
use openflow::action::{Action, Subfield};
use openflow::error::Error;
use openflow::flow::FlowModCommand;
use openflow::tlv::{TlvCommand, TlvMapping, TlvTableMod};
use packet::{Field, FlowKey, Match, Value};
use pipeline::reference::story::What;
use pipeline::reference::{self, Surroundings};

fn mapping(kind: u8, length: u8, field: u16) -> TlvMapping {
    TlvMapping {
        class: 0xffff,
        kind,
        length,
        field,
    }
}

fn change(command: TlvCommand, mappings: &[TlvMapping]) -> TlvTableMod {
    TlvTableMod {
        command,
        mappings: mappings.to_vec(),
    }
}

fn mapped(mappings: &[TlvMapping]) -> Switch {
    let mut switch = Switch::new();
    let add = change(TlvCommand::Add, mappings);
    switch.pipeline.tlv_table_mod(&add).unwrap();
    switch
}

fn whole(option: usize, value: &[u8]) -> Match {
    let mut matching = Match::any();
    assert!(matching.set_whole_option(option, value));
    matching
}

#[test]
fn a_map_changes_as_in_open_vswitch() {
    let mut switch = mapped(&[mapping(0, 4, 0), mapping(1, 8, 1)]);
    let refused = [
        (mapping(2, 4, 0), Error::TlvAlreadyMapped),
        (mapping(0, 4, 9), Error::TlvDuplicate),
        (mapping(2, 4, 64), Error::TlvBadField),
    ];
    let before = switch.pipeline.tlv_table();
    for (mapping, error) in refused {
        // A message is carried out as a whole: its first entry is not added.
        let both = change(TlvCommand::Add, &[self::mapping(77, 4, 30), mapping]);
        assert_eq!(switch.pipeline.tlv_table_mod(&both), Err(error));
        assert_eq!(switch.pipeline.tlv_table(), before);
    }
    let gone = change(TlvCommand::Delete, &[mapping(1, 8, 1), mapping(5, 4, 50)]);
    assert_eq!(switch.pipeline.tlv_table_mod(&gone), Ok(()));
    assert_eq!(switch.pipeline.tlv_table().mappings, [mapping(0, 4, 0)]);
    let clear = change(TlvCommand::Clear, &[]);
    assert_eq!(switch.pipeline.tlv_table_mod(&clear), Ok(()));
    assert_eq!(switch.pipeline.tlv_table().mappings, []);
    // 256 bytes, whatever the fields' numbers are.
    let long = [mapping(1, 124, 63), mapping(2, 124, 0), mapping(3, 8, 1)];
    let add = |entries: &[TlvMapping]| change(TlvCommand::Add, entries);
    assert_eq!(switch.pipeline.tlv_table_mod(&add(&long)), Ok(()));
    let full = switch.pipeline.tlv_table_mod(&add(&[mapping(4, 4, 2)]));
    assert_eq!(full, Err(Error::TlvTableFull));
    let table = switch.pipeline.tlv_table();
    assert_eq!((table.max_space, table.max_fields), (256, 64));
    assert_eq!(table.mappings, [long[1], long[2], long[0]]);
}

/// Rules and packets with options that fill the space: each of the bits that a rule compares,
/// writes or moves is that of its own field.
#[test]
fn long_options_lie_side_by_side() {
    let lengths = [(0, 124), (1, 4), (7, 40), (36, 84), (63, 4)];
    let mappings: Vec<TlvMapping> = lengths
        .iter()
        .map(|(field, length)| mapping(*field as u8, *length, *field))
        .collect();
    let mut switch = mapped(&mappings);
    let body = |field: u16, length: u8| -> Vec<u8> {
        (0..length)
            .map(|index| index.wrapping_mul(3) ^ field as u8)
            .collect()
    };
    let field = |option: u16| Field::of_tunnel_option(option.into());
    let part = |option: u16, start: u16, bits: u16| Subfield {
        field: field(option),
        start,
        bits,
    };
    let set = |(option, length): &(u16, u8)| {
        let mut value = Value::zero(packet::options::LONGEST);
        let from = value.len() - usize::from(*length);
        value[from..].copy_from_slice(&body(*option, *length));
        Action::SetField {
            field: field(*option),
            value,
            mask: field(*option).def().place(),
        }
    };
    let mut actions: Vec<Action> = lengths.iter().map(set).collect();
    let frame = [0; 60];
    let told = |switch: &Switch, actions: &[Action]| {
        let actions = [actions, &[output(openflow::port::CONTROLLER)]].concat();
        let live = |_| true;
        let told =
            reference::evaluate_actions(&switch.pipeline, &FlowKey::ZERO, &frame, &actions, &live);
        let [reference::Effect::Controller { key, .. }] = &told.effects[..] else {
            panic!("{told:?}");
        };
        **key
    };
    let key = told(&switch, &actions);
    let mut named = Match::any();
    switch.pipeline.name_options(&key, &mut named);
    for (option, length) in lengths {
        let (value, mask) = named.option(option.into()).unwrap();
        assert_eq!(
            (&*value, mask.len()),
            (&*body(option, length), length.into())
        );
        // A rule for this option alone; the others' bytes do not matter.
        switch
            .mod13(add(
                whole(option.into(), &body(option, length)),
                100 + option,
            ))
            .unwrap();
        switch.publish();
        let mut reader = switch.program.domain.reader().unwrap();
        let guard = reader.begin();
        let found = |key: &FlowKey| switch.bridge.lookup(0, key, &guard);
        let rule = found(&key).unwrap();
        assert_eq!(rule.spec.priority, u32::from(100 + option));
        let rules = switch.pipeline.dump_all(switch.clock());
        let shown: Vec<Match> = rules.map(|rule| rule.stats.matching).collect();
        let exact = shown
            .iter()
            .filter_map(|matching| matching.option(option.into()));
        assert_eq!(exact.collect::<Vec<_>>(), [(value, mask)]);
    }
    // Moves of any length, also onto the same field, and loads of any bits.
    actions.extend([
        Action::Move {
            src: part(0, 5, 600),
            dst: part(36, 20, 600),
        },
        Action::Move {
            src: part(0, 0, 900),
            dst: part(0, 77, 900),
        },
        Action::Move {
            src: part(36, 300, 301),
            dst: part(36, 1, 301),
        },
        Action::Load {
            dst: part(0, 980, 12),
            value: 0xabc,
        },
    ]);
    let bits = |bytes: &[u8]| -> Vec<bool> {
        let bits = bytes
            .iter()
            .rev()
            .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
        bits.collect()
    };
    let (mut zero, mut other) = (bits(&body(0, 124)), bits(&body(36, 84)));
    other[20..620].copy_from_slice(&zero[5..605]);
    zero.copy_within(0..900, 77);
    other.copy_within(300..601, 1);
    for bit in 0..12 {
        zero[980 + bit] = 0xabc >> bit & 1 == 1;
    }
    let key = told(&switch, &actions);
    let mut named = Match::any();
    switch.pipeline.name_options(&key, &mut named);
    for (option, wanted) in [(0, zero), (36, other), (63, bits(&body(63, 4)))] {
        assert_eq!(bits(&named.option(option).unwrap().0), wanted, "{option}");
    }
}

#[test]
fn options_named_by_rules_stay_mapped() {
    let field = Field::of_tunnel_option(0);
    let part = Subfield {
        field,
        start: 0,
        bits: 8,
    };
    let by_match = add(whole(0, &[1]), 1);
    let by_action = with(add(Match::any(), 1), |change| {
        change.instructions = apply(&[Action::Clone(vec![Action::StackPush(part)])]).into();
    });
    for rule in [by_match, by_action] {
        let mut switch = mapped(&[mapping(0, 4, 0), mapping(1, 4, 1)]);
        switch.mod13(rule.clone()).unwrap();
        for command in [TlvCommand::Delete, TlvCommand::Clear] {
            let gone = change(command, &[mapping(0, 4, 0)]);
            let refused = switch.pipeline.tlv_table_mod(&gone);
            assert_eq!(refused, Err(Error::TlvInUse));
        }
        let other = change(TlvCommand::Delete, &[mapping(1, 4, 1)]);
        assert_eq!(switch.pipeline.tlv_table_mod(&other), Ok(()));
        let mut all = rule;
        all.command = FlowModCommand::Delete;
        switch.mod13(all).unwrap();
        let gone = change(TlvCommand::Clear, &[]);
        assert_eq!(switch.pipeline.tlv_table_mod(&gone), Ok(()));
    }
}

#[test]
fn fields_that_are_not_mapped_or_shorter_are_refused() {
    let mut switch = mapped(&[mapping(0, 4, 0)]);
    let (known, unknown) = (Field::of_tunnel_option(0), Field::of_tunnel_option(1));
    let set = |field: Field, value: u128| Action::SetField {
        field,
        value: Value::from_u128(value, field.def().bytes),
        mask: field.def().place(),
    };
    let load = |field, start, bits| Action::Load {
        dst: Subfield { field, start, bits },
        value: 1,
    };
    let actions = [
        (set(known, 5), Ok(())),
        (set(known, 1 << 32), Err(Error::BadSetLength)),
        (set(unknown, 5), Err(Error::InvalidTlvField)),
        (load(known, 24, 8), Ok(())),
        (load(known, 25, 8), Err(Error::BadSetLength)),
        (load(unknown, 0, 8), Err(Error::InvalidTlvField)),
        (Action::DeleteField(known), Ok(())),
        (Action::DeleteField(unknown), Err(Error::InvalidTlvField)),
        (
            Action::DeleteField(Field::Reg0),
            Err(Error::BadActionArgument),
        ),
    ];
    for (action, expected) in actions {
        let rule = with(add(Match::any(), 1), |change| {
            change.instructions = apply(&[Action::Clone(vec![action.clone()]), output(1)]).into();
        });
        assert_eq!(switch.mod13(rule).map(|_| ()), expected, "{action:?}");
    }
    let matches = [
        (whole(0, &[1, 2, 3, 4]), Ok(())),
        (whole(0, &[1, 2, 3, 4, 5]), Err(Error::BadMatchLength)),
        (whole(1, &[1]), Err(Error::InvalidTlvField)),
    ];
    for (matching, expected) in matches {
        let got = switch.mod13(add(matching.clone(), 2)).map(|_| ());
        assert_eq!(got, expected, "{matching:?}");
        let mut request = everything();
        request.matching = matching;
        let asked = switch.pipeline.resolve_request(&request);
        assert_eq!(asked.map(|_| ()), expected);
    }
}

/// As in Open vSwitch, a rule that names an option matches no packet without it, not even for zero.
#[test]
fn a_match_asks_for_the_option_and_all_of_its_bytes() {
    let mut switch = mapped(&[mapping(0, 4, 0), mapping(1, 4, 1)]);
    switch.mod13(add(whole(0, &[0]), 5)).unwrap();
    let mut present = Match::any();
    present.set_option(0, &[], None);
    switch.mod13(add(present, 4)).unwrap();
    switch.mod13(add(Match::any(), 1)).unwrap();
    switch.publish();
    let mut reader = switch.program.domain.reader().unwrap();
    let guard = reader.begin();
    let mut key = FlowKey::ZERO;
    let mut found = |change: fn(&mut FlowKey)| {
        change(&mut key);
        switch.bridge.lookup(0, &key, &guard).unwrap().spec.priority
    };
    let places = switch.pipeline.option_places();
    let first = |option: usize| places[option].place.start;
    assert_eq!((first(0), first(1)), (620, 616));
    assert_eq!(found(|_| ()), 1);
    assert_eq!(
        found(|key| key.set_u64(packet::key::at::TUN_METADATA_PRESENT, 1)),
        5
    );
    // The bytes of the next option are not compared.
    assert_eq!(found(|key| key.set_u32(616, 7)), 5);
    assert_eq!(found(|key| key.set_u8(620, 1)), 4);
    let mut told = Match::any();
    key.set_u64(packet::key::at::TUN_METADATA_PRESENT, 3);
    switch.pipeline.name_options(&key, &mut told);
    let (value, _) = told.option(1).unwrap();
    assert_eq!(value.to_u64(), 7);
    let (value, _) = told.option(0).unwrap();
    assert_eq!(value.to_u64(), 1 << 24);
}

/// A packet-out has a field with the length that its sender used: as many bytes as the value needs
/// on the wire, or the maximum. The map decides which bytes it writes.
#[test]
fn packet_outs_write_as_much_of_an_option_as_the_map_says() {
    let switch = mapped(&[mapping(0, 4, 0), mapping(1, 4, 1)]);
    let set = |option: usize, value: u128, bytes: usize| Action::SetField {
        field: Field::of_tunnel_option(option),
        value: Value::from_u128(value, bytes),
        mask: Value::ones(8 * bytes, bytes),
    };
    let longest = Field::of_tunnel_option(0).def().bytes;
    for (bytes, wanted) in [(1, "0x5/0xff"), (4, "0x5"), (longest, "0x5")] {
        let actions = [
            set(1, 0x0102_0304, 4),
            set(0, 5, bytes),
            output(openflow::port::CONTROLLER),
        ];
        let frame = [0; 60];
        let outcome = reference::evaluate_actions(
            &switch.pipeline,
            &FlowKey::ZERO,
            &frame,
            &actions,
            &|_| true,
        );
        let [reference::Effect::Controller { key, .. }] = &outcome.effects[..] else {
            panic!("{outcome:?}");
        };
        let mut named = Match::any();
        switch.pipeline.name_options(key, &mut named);
        let value = |option| named.option(option).map(|(value, _)| value.to_u128());
        assert_eq!(
            [value(0), value(1)],
            [Some(5), Some(0x0102_0304)],
            "{bytes} bytes"
        );
        // A trace shows what a rule would: a whole option without a mask.
        let (traced, story) = reference::trace(
            &switch.pipeline,
            &FlowKey::ZERO,
            &frame,
            Some(&actions),
            Surroundings::default(),
        );
        assert_eq!(traced.effects.len(), 1);
        let What::Action(shown) = &story.steps[1].what else {
            panic!("{story:?}");
        };
        let mut text = String::new();
        openflow::format::actions(&mut text, std::slice::from_ref(shown));
        assert_eq!(text, format!("set_field:{wanted}->tun_metadata0"));
    }
}
