//! The map of tunnel options, and rules with such options.

use crate::common::{Switch, add, apply, everything, output, with};
use openflow::action::{Action, Subfield};
use openflow::error::Error;
use openflow::flow::FlowModCommand;
use openflow::tlv::{TlvCommand, TlvMapping, TlvTableMod};
use packet::{Field, FlowKey, Match, Value};
use pipeline::twin::story::What;
use pipeline::twin::{self, Surroundings};

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
        // The second half of field 1 overlaps field 2, and field 36 has the place of field 0.
        (mapping(2, 4, 2), Error::TlvTableFull),
        (mapping(2, 4, 36), Error::TlvTableFull),
        (mapping(2, 124, 20), Error::TlvTableFull),
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
    let long = change(TlvCommand::Add, &[mapping(1, 124, 0)]);
    assert_eq!(switch.pipeline.tlv_table_mod(&long), Ok(()));
}

#[test]
fn what_rules_name_stays_mapped() {
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
    let end = packet::options::end(0);
    assert_eq!(end, 512);
    assert_eq!(found(|_| ()), 1);
    assert_eq!(
        found(|key| key.set_u64(packet::key::at::TUN_METADATA_PRESENT, 1)),
        5
    );
    // The bytes of the next option are not compared.
    assert_eq!(found(|key| key.set_u32(504, 7)), 5);
    assert_eq!(found(|key| key.set_u8(508, 1)), 4);
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
        let outcome =
            twin::evaluate_actions(&switch.pipeline, &FlowKey::ZERO, &frame, &actions, &|_| {
                true
            });
        let [twin::Effect::Controller { key, .. }] = &outcome.effects[..] else {
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
        let (traced, story) = twin::trace(
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
