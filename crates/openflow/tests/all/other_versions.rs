//! How features of later versions are sent in earlier ones: set-fields in 1.0 and 1.1, masks, role
//! status and forwarded requests before 1.4; and messages of another version than the negotiated
//! one.

use openflow::action::{Action, Instruction, Subfield};
use openflow::flow::FlowMod;
use openflow::group::{GroupCommand, GroupKind, GroupMod};
use openflow::message::{
    FlowModForm, Message, NO_BUFFER, PacketOut, Role, RoleMessage, RoleReason, RoleStatus,
};
use openflow::meter::{MeterCommand, MeterConfig, MeterFlags, MeterMod};
use openflow::{DecodeOptions, Error, Version, decode, encode, encode_error};
use packet::fields::FIELDS;
use packet::{Field, Match, Value};
use proptest::prelude::*;

fn agreed(version: Version) -> DecodeOptions {
    DecodeOptions {
        version: Some(version),
        ..DecodeOptions::default()
    }
}

/// Returns the message that a peer of the version decodes.
fn read_back(version: Version, message: &Message) -> Result<Message, Error> {
    let bytes = encode(version, 7, message);
    assert!(!bytes.is_empty(), "{version:?} has no form for {message:?}");
    decode(&bytes, &agreed(version))
        .map(|(_, message)| message)
        .map_err(|failure| failure.error)
}

/// Returns the actions that a peer of the version decodes: of a packet-out, whose actions need no
/// prerequisites, or of a rule if a match is given.
fn told(version: Version, matching: Option<Match>, action: Action) -> Vec<Action> {
    let Some(matching) = matching else {
        return match read_back(version, &packet_out(vec![action])) {
            Ok(Message::PacketOut(packet)) => packet.actions,
            other => panic!("{other:?}"),
        };
    };
    let apply = vec![Instruction::ApplyActions(vec![action])];
    let message = Message::FlowMod {
        change: FlowMod::add(matching, 1, apply),
        form: FlowModForm::default(),
    };
    match read_back(version, &message) {
        Ok(Message::FlowMod { change, .. }) => match &change.instructions[..] {
            [Instruction::ApplyActions(actions)] => actions.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn packet_out(actions: Vec<Action>) -> Message {
    let mut matching = Match::any();
    matching.set_exact(Field::InPortOxm, openflow::port::CONTROLLER.into());
    Message::PacketOut(PacketOut {
        buffer_id: NO_BUFFER,
        in_port: openflow::port::CONTROLLER,
        matching,
        actions,
        data: vec![],
    })
}

fn whole(field: Field, number: u128) -> Action {
    let def = field.def();
    Action::SetField {
        field,
        value: Value::from_u128(number << def.shift, def.bytes),
        mask: def.place(),
    }
}

#[test]
fn old_versions_set_fields_by_their_own_actions() {
    use Field::*;
    let cases = [
        (
            EthSrc,
            0x0102_0304_0506,
            Action::SetEthSrc([1, 2, 3, 4, 5, 6]),
        ),
        (EthDst, 9, Action::SetEthDst([0, 0, 0, 0, 0, 9])),
        (Ipv4Src, 0x0a00_0001, Action::SetIpv4Src(0x0a00_0001)),
        (Ipv4Dst, 0x0a00_0002, Action::SetIpv4Dst(0x0a00_0002)),
        (IpDscp, 10, Action::SetIpTos(40)),
        (IpDscpShifted, 10, Action::SetIpTos(40)),
        (TcpSrc, 80, Action::SetL4Src(80)),
        (UdpSrc, 80, Action::SetL4Src(80)),
        (TcpDst, 81, Action::SetL4Dst(81)),
        (UdpDst, 81, Action::SetL4Dst(81)),
    ];
    for (field, number, wanted) in cases {
        for version in [Version::V1_0, Version::V1_1] {
            let got = told(version, None, whole(field, number));
            assert_eq!(
                got,
                std::slice::from_ref(&wanted),
                "{field:?} in {version:?}"
            );
        }
    }
    let ecn = |version| told(version, None, whole(IpEcn, 2));
    assert_eq!(ecn(Version::V1_1), [Action::SetIpEcn(2)]);
    assert!(matches!(
        ecn(Version::V1_0)[..],
        [Action::Load { value: 2, .. }]
    ));
}

/// Setting the whole `vlan_tci` adds or removes a tag; for 1.1 a push is sent unless there is one
/// already.
#[test]
fn old_versions_set_tags() {
    let tci = |number| whole(Field::VlanTci, number);
    let in_10 = |action| told(Version::V1_0, None, action);
    let numbers = |actions: &[Action]| -> Vec<u16> {
        let number = |action: &Action| match action {
            Action::SetVlanVid { vid, .. } => *vid,
            Action::SetVlanPcp { pcp, .. } => (*pcp).into(),
            Action::PushVlan(tpid) => *tpid,
            other => panic!("{other:?}"),
        };
        actions.iter().map(number).collect()
    };
    assert_eq!(in_10(tci(0)), [Action::PopVlan]);
    assert_eq!(numbers(&in_10(tci(0x6000 | 0x1000 | 5))), [5, 3]);
    let mut tagged = Match::any();
    tagged.set(Field::VlanTci, &[0x10, 0], &[0x10, 0]);
    let in_11 = |matching, action| told(Version::V1_1, matching, action);
    assert_eq!(in_11(Some(tagged.clone()), tci(0)), [Action::PopVlan]);
    assert_eq!(numbers(&in_11(None, tci(0x1005))), [0x8100, 5, 0]);
    assert_eq!(numbers(&in_11(Some(tagged.clone()), tci(0x1005))), [5, 0]);
    assert_eq!(
        numbers(&in_11(Some(tagged), whole(Field::VlanVid, 0x1007))),
        [7]
    );
}

/// Writing a part of `vlan_tci` changes whether there is a tag only if the part has the bit that
/// says so: a later action is sent to 1.1 with a push only if there is no tag.
#[test]
fn a_part_of_vlan_tci_leaves_the_tag() {
    let pushes = |tagged: u8, first: &Action| {
        let mut matching = Match::any();
        matching.set(Field::VlanTci, &[tagged << 4, 0], &[0x10, 0]);
        let vid = Action::SetVlanVid { vid: 7, push: true };
        let apply = vec![Instruction::ApplyActions(vec![first.clone(), vid])];
        let message = Message::FlowMod {
            change: FlowMod::add(matching, 1, apply),
            form: FlowModForm::default(),
        };
        let bytes = encode(Version::V1_1, 7, &message);
        let push = [0, 17, 0, 8, 0x81, 0, 0, 0];
        bytes.windows(8).any(|action| action == push)
    };
    let set = |value: u16, mask: u16| Action::SetField {
        field: Field::VlanTci,
        value: Value::from_u128(value.into(), 2),
        mask: Value::from_u128(mask.into(), 2),
    };
    let load = |start, bits, value| Action::Load {
        dst: Subfield {
            field: Field::VlanTci,
            start,
            bits,
        },
        value,
    };
    for (action, from_none, from_one) in [
        (set(3, 0x0fff), true, false),
        (set(0xe000, 0xe000), true, false),
        (set(3, 0x1fff), true, true),
        (set(0x1003, 0x1fff), false, false),
        (load(0, 12, 3), true, false),
        (load(13, 3, 7), true, false),
        (load(12, 1, 0), true, true),
        (load(12, 1, 1), false, false),
        (load(0, 16, 0x1003), false, false),
        (load(0, 16, 0xe003), true, true),
    ] {
        assert_eq!(pushes(0, &action), from_none, "no tag, then {action:?}");
        assert_eq!(pushes(1, &action), from_one, "a tag, then {action:?}");
    }
}

/// In 1.5 Nicira's load becomes a set-field of the same bits, also for the DSCP, which begins at
/// bit 2 of its byte. Bits outside the field are left out. (The actions decoded here have no masks
/// of DSCPs.)
#[test]
fn loads_are_set_fields_of_the_same_bits_in_1_5() {
    let load = |field, start, bits, value| {
        let dst = Subfield { field, start, bits };
        told(Version::V1_5, None, Action::Load { dst, value })
    };
    let parts = |actions: &[Action]| match actions {
        [Action::SetField { field, value, mask }] => {
            let def = field.def();
            let wire = |bits: &Value| bits.to_u128() >> def.shift << def.wire_shift;
            Some((wire(value), wire(mask)))
        }
        [] => None,
        other => panic!("{other:?}"),
    };
    for (start, bits, value, wanted) in [
        (2, 6, 10, Some((0x28, 0xfc))),
        (0, 8, 0x2b, Some((0x28, 0xfc))),
        (0, 2, 3, None),
    ] {
        let got = load(Field::IpDscp, start, bits, value);
        assert_eq!(parts(&got), wanted, "{value:#x} to bits {start}+{bits}");
    }
    let got = load(Field::EthDst, 3, 7, 3);
    assert_eq!(parts(&got), Some((0x18, 0x3f8)));
}

/// Returns the bits of a field that actions write, in the key's layout: mask and value.
fn written(field: Field, actions: &[Action]) -> (u128, u128) {
    let def = field.def();
    let mut sum = (0, 0);
    for action in actions {
        let Action::Load { dst, value } = action else {
            panic!("{action:?} is no load");
        };
        assert_eq!(dst.field, field);
        let start = u32::from(dst.start) + def.shift as u32 - def.wire_shift as u32;
        let ones = u128::MAX >> (128 - u32::from(dst.bits));
        assert_eq!(sum.0 & ones << start, 0, "bits are written twice");
        sum.0 |= ones << start;
        sum.1 |= u128::from(*value) << start;
    }
    sum
}

proptest! {
    /// Before 1.5, the first version whose set-field has a mask, a masked set-field without an
    /// action of its own is sent as loads of the same bits with the same values, whatever the mask.
    #[test]
    fn versions_before_1_5_load_the_bits_of_a_mask(
        field in prop::sample::select(vec![
            Field::Reg3, Field::Metadata, Field::Xxreg1, Field::Ipv6Src, Field::EthDst,
            Field::Ipv4Dst, Field::TunId, Field::ArpSha, Field::IpDscp, Field::VlanTci,
        ]),
        value: u128,
        mask: u128,
        sparse: u128,
        version in prop::sample::select(vec![
            Version::V1_0, Version::V1_1, Version::V1_2, Version::V1_3, Version::V1_4,
        ]),
    ) {
        let def = field.def();
        let place = def.place().to_u128();
        let mask = if sparse % 3 == 0 { mask & sparse & place } else { mask & place };
        prop_assume!(mask != 0 && mask != place);
        let action = Action::SetField {
            field,
            value: Value::from_u128(value & mask, def.bytes),
            mask: Value::from_u128(mask, def.bytes),
        };
        let got = told(version, None, action);
        prop_assert_eq!(written(field, &got), (mask, value & mask));
    }
}

/// In 1.2 and later `VLAN_PCP` has no mask, and a peer refuses a whole dump with a masked one: some
/// bits of a priority are sent as the tag's own field, and none is lost.
#[test]
fn some_bits_of_a_priority_are_told_by_the_tag() {
    for version in [Version::V1_2, Version::V1_3, Version::V1_4, Version::V1_5] {
        for (tci, mask) in [
            (0x3000_u16, 0x3000_u16),
            (0x5005, 0xdfff),
            (0x1000, 0x9000),
            (0xf009, 0xffff),
        ] {
            let mut matching = Match::any();
            matching.set(Field::VlanTci, &tci.to_be_bytes(), &mask.to_be_bytes());
            let message = Message::FlowMod {
                change: FlowMod::add(matching.clone(), 1, Vec::new()),
                form: FlowModForm::default(),
            };
            let bytes = encode(version, 7, &message);
            let masked_priority = [0x80, 0x00, 0x0f, 0x02];
            assert!(!bytes.windows(4).any(|four| four == masked_priority));
            let Ok(Message::FlowMod { change, .. }) = read_back(version, &message) else {
                panic!("{tci:#x}/{mask:#x} cannot be read in {version:?}");
            };
            assert_eq!(change.matching, matching, "{tci:#x}/{mask:#x}");
        }
    }
}

/// No set-field of a field that a controller may write is lost for an old version.
#[test]
fn old_versions_are_told_of_every_field() {
    for def in FIELDS.iter().filter(|def| def.writable) {
        for version in [Version::V1_0, Version::V1_1] {
            if def.header(1).is_none() && def.field.tunnel_option().is_none() {
                continue;
            }
            let action = whole(def.field, 1);
            let with = encode(version, 1, &packet_out(vec![action]));
            let without = encode(version, 1, &packet_out(vec![]));
            assert!(with.len() > without.len(), "{} in {version:?}", def.name);
            // And a peer can decode it: one unknown action makes it refuse the whole message.
            told(version, None, whole(def.field, 1));
        }
    }
}

/// Loads cover only the bits that actions can write: half of the ingress port, and not a tag's
/// presence.
#[test]
fn loads_do_not_reach_beyond_what_actions_reach() {
    for version in [Version::V1_0, Version::V1_1] {
        let got = told(version, None, whole(Field::InPort, 5));
        assert_eq!(written(Field::InPort, &got), (0xffff, 5));
        let vid = Field::VlanVid.def();
        let action = Action::SetField {
            field: Field::VlanVid,
            value: Value::from_u128(0x1005, vid.bytes),
            mask: Value::from_u128(0x10ff, vid.bytes),
        };
        let got = told(version, None, action);
        assert_eq!(written(Field::VlanVid, &got), (0xff, 5));
    }
}

#[test]
fn role_status_is_there_since_1_3() {
    for generation in [None, Some(0), Some(77)] {
        let status = Message::RoleStatus(RoleStatus {
            role: Role::Secondary,
            reason: RoleReason::PrimaryRequest,
            generation,
        });
        for version in Version::ALL {
            if version < Version::V1_3 {
                assert!(encode(version, 7, &status).is_empty());
            } else {
                assert_eq!(read_back(version, &status).as_ref(), Ok(&status));
            }
        }
    }
    // ONF's number: experimenter, type, role, reason, generation.
    let bytes = encode(
        Version::V1_3,
        7,
        &Message::RoleStatus(RoleStatus {
            role: Role::Secondary,
            reason: RoleReason::PrimaryRequest,
            generation: Some(5),
        }),
    );
    let wanted = "0404002000000007 4f4e460000000777 0000000300000000 0000000000000005";
    assert_eq!(hex(&bytes), wanted.replace(' ', ""));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn forwarded(message: Message) -> Message {
    Message::RequestForward {
        xid: 0x1234,
        message: Box::new(message),
    }
}

fn group_mod() -> Message {
    Message::GroupMod(GroupMod {
        command: GroupCommand::Delete,
        kind: GroupKind::All,
        group: 9,
        command_bucket: openflow::group::BUCKET_ALL,
        buckets: vec![],
        selection: None,
    })
}

#[test]
fn requests_are_forwarded_in_every_version() {
    for version in Version::ALL {
        let message = forwarded(group_mod());
        assert_eq!(read_back(version, &message).as_ref(), Ok(&message));
        let message = forwarded(Message::MeterMod(MeterMod {
            command: MeterCommand::Delete,
            config: MeterConfig {
                meter: 3,
                flags: MeterFlags::empty(),
                bands: vec![],
            },
        }));
        if version < Version::V1_3 {
            assert!(encode(version, 7, &message).is_empty(), "{version:?}");
        } else {
            assert_eq!(read_back(version, &message).as_ref(), Ok(&message));
        }
    }
    let head = |version| hex(&encode(version, 0, &forwarded(group_mod()))[8..16]);
    assert_eq!(head(Version::V1_0), "0000232000000084");
    assert_eq!(head(Version::V1_3), "4f4e46000000092e");
}

/// A forwarded request inside a forwarded request is refused without being decoded.
#[test]
fn forwarded_requests_do_not_nest() {
    let inner = encode(Version::V1_0, 1, &forwarded(group_mod()));
    let mut bytes = vec![1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0x23, 0x20, 0, 0, 0, 132];
    bytes.extend_from_slice(&inner);
    let length = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    let failure = decode(&bytes, &agreed(Version::V1_0)).unwrap_err();
    assert_eq!(failure.error, Error::BadType);
}

/// Echoes are the same in every known version, and are decoded whatever was negotiated.
#[test]
fn only_hellos_errors_and_echoes_may_have_another_version() {
    for version in Version::ALL {
        for other in Version::ALL {
            let echo = Message::EchoRequest(b"there?".to_vec());
            let read = decode(&encode(other, 7, &echo), &agreed(version)).unwrap();
            assert_eq!((read.0.version, read.1), (other as u8, echo));
            let read = decode(
                &encode(other, 7, &Message::FeaturesRequest),
                &agreed(version),
            );
            let wanted = if other == version {
                Ok(Message::FeaturesRequest)
            } else {
                Err(Error::BadVersion)
            };
            let read = read.map(|(_, message)| message);
            assert_eq!(read.map_err(|failure| failure.error), wanted);
        }
        // Also in future versions; but there is no version 0.
        let read = decode(&[9, 2, 0, 8, 0, 0, 0, 7], &agreed(version)).unwrap();
        assert_eq!((read.0.version, read.1), (9, Message::EchoRequest(vec![])));
        for (number, kind) in [(9, 5), (0, 2), (0, 3), (0, 5)] {
            let bytes = [number, kind, 0, 8, 0, 0, 0, 7];
            let failure = decode(&bytes, &agreed(version)).unwrap_err();
            assert_eq!(failure.error, Error::BadVersion);
            let answer = encode_error(Version::V1_0, &bytes, failure.error);
            assert_eq!(answer[..12], [1, 1, 0, 20, 0, 0, 0, 7, 0, 1, 0, 0]);
        }
    }
}

/// A generation of all ones is valid in a request that changes the role, and absent in one that
/// does not; in a reply it means that there is none.
#[test]
fn a_generation_of_all_ones() {
    let body = |number: u32, generation: u64| {
        let mut bytes = vec![4, 24, 0, 24, 0, 0, 0, 7];
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&generation.to_be_bytes());
        bytes
    };
    let read = |bytes: &[u8]| match decode(bytes, &agreed(Version::V1_3)) {
        Ok((_, Message::RoleRequest(role) | Message::RoleReply(role))) => role.generation,
        other => panic!("{other:?}"),
    };
    for role in 1..4 {
        assert_eq!(read(&body(role, u64::MAX)), Some(u64::MAX));
        assert_eq!(read(&body(role, 5)), Some(5));
    }
    assert_eq!(read(&body(0, u64::MAX)), None);
    assert_eq!(read(&body(0, 5)), None);
    let reply = Message::RoleReply(RoleMessage {
        role: Role::Equal,
        generation: None,
        nicira: false,
    });
    let bytes = encode(Version::V1_3, 7, &reply);
    assert_eq!(bytes[16..], [0xff; 8]);
    assert_eq!(read(&bytes), None);
}
