//! Which actions and instructions are accepted. Section numbers are those of OpenFlow 1.3.5; where
//! it leaves room, the expected result is that observed of Open vSwitch 3.1.

use crate::common;
use crate::common::*;
use openflow::Version;
use openflow::action::{Action, Instruction, Subfield};
use openflow::error::Error;
use openflow::flow::FlowModCommand;
use openflow::port;
use packet::{Field, Match, Value};

const IP: (Field, u128) = (Field::EthType, 0x0800);

/// A match, actions, the versions in which they are sent, and the expected result.
type Case<'a> = (&'a Match, Vec<Action>, &'a [Version], Result<(), Error>);

fn subfield(field: Field, start: u16, bits: u16) -> Subfield {
    Subfield { field, start, bits }
}

fn set(field: Field, value: u128) -> Action {
    let def = field.def();
    Action::SetField {
        field,
        value: Value::from_u128(value << def.shift, def.bytes),
        mask: def.place(),
    }
}

/// Results of actions by match and version: sections 6.4, 7.2.5 and 7.5.4.3, as Open vSwitch 3.1
/// answered the same messages.
#[test]
fn actions_are_held_against_the_match() {
    let any = Match::any();
    let ip = fields(&[IP]);
    let tcp = fields(&[IP, (Field::IpProto, 6)]);
    let vlan = fields(&[(Field::VlanVid, 0x1005)]);
    let mut later = tcp.clone();
    later.set(Field::IpFrag, &[3], &[3]);
    let inconsistent = Err(Error::ActionMatchInconsistent);
    let ok = Ok(());
    let out = |port| vec![output(port)];
    let pop = Action::PopVlan;
    let push = |ethertype| Action::PushVlan(ethertype);
    let v13 = [Version::V1_3];
    let v10 = [Version::V1_0];
    let both = [Version::V1_0, Version::V1_3];
    let reg0 = subfield(Field::Reg0, 0, 32);
    let cases: Vec<Case<'_>> = vec![
        (&any, out(65279), &both, ok),
        (&any, out(0), &both, ok),
        (&any, out(0xff00), &both, Err(Error::BadOutPort)),
        (&any, out(0x10000), &both, Err(Error::BadOutPort)),
        (&any, out(port::ANY), &both, Err(Error::BadOutPort)),
        (&any, out(port::TABLE), &both, ok),
        (
            &any,
            [
                port::NORMAL,
                port::FLOOD,
                port::ALL,
                port::LOCAL,
                port::IN_PORT,
            ]
            .map(output)
            .to_vec(),
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::Enqueue {
                port: 0xff01,
                queue: 1,
            }],
            &both,
            Err(Error::BadOutPort),
        ),
        (
            &any,
            vec![Action::Enqueue {
                port: port::NORMAL,
                queue: 1,
            }],
            &both,
            Err(Error::BadOutPort),
        ),
        (
            &any,
            vec![Action::Enqueue {
                port: port::LOCAL,
                queue: 1,
            }],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::OutputTrunc {
                port: 2,
                max_len: 14,
            }],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::OutputTrunc {
                port: 2,
                max_len: 13,
            }],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![Action::OutputTrunc {
                port: port::FLOOD,
                max_len: 14,
            }],
            &both,
            Err(Error::BadOutPort),
        ),
        (
            &any,
            vec![Action::OutputTrunc {
                port: port::IN_PORT,
                max_len: 14,
            }],
            &both,
            ok,
        ),
        (&any, vec![Action::SetIpv4Src(1)], &v10, ok),
        (&any, vec![Action::SetIpv4Src(1)], &v13, inconsistent),
        (&ip, vec![Action::SetIpv4Src(1)], &both, ok),
        (&any, vec![Action::SetL4Src(1)], &v10, ok),
        (&ip, vec![Action::SetL4Src(1)], &v13, inconsistent),
        (&tcp, vec![Action::SetL4Src(1)], &v13, ok),
        (&later, vec![Action::SetL4Src(1)], &v13, inconsistent),
        (&later, vec![set(Field::TcpSrc, 5)], &both, inconsistent),
        (&tcp, vec![set(Field::TcpSrc, 5)], &both, ok),
        (&tcp, vec![set(Field::UdpSrc, 5)], &both, inconsistent),
        (&any, vec![set(Field::Ipv4Src, 5)], &both, inconsistent),
        (&any, vec![Action::DecTtl(vec![0])], &v10, ok),
        (&any, vec![Action::DecTtl(vec![0])], &v13, inconsistent),
        (&any, vec![Action::SetIpTtl(3)], &v13, inconsistent),
        (
            &ip,
            vec![Action::DecTtl(vec![0]), Action::SetIpTtl(3)],
            &v13,
            ok,
        ),
        (&any, vec![pop.clone()], &v10, ok),
        (&any, vec![pop.clone()], &v13, inconsistent),
        (&vlan, vec![pop.clone()], &v13, ok),
        (&vlan, vec![pop.clone(), pop.clone()], &v13, inconsistent),
        (&any, vec![push(0x8100), pop.clone()], &v13, ok),
        (&any, vec![push(0x8100), push(0x88a8)], &v13, ok),
        (&any, vec![push(0x8100); 3], &both, Err(Error::BadTag)),
        (
            &any,
            vec![push(0x1234)],
            &both,
            Err(Error::BadActionArgument),
        ),
        (&any, vec![set(Field::VlanVid, 0x1007)], &both, inconsistent),
        (&vlan, vec![set(Field::VlanVid, 0x1007)], &both, ok),
        (
            &vlan,
            vec![set(Field::VlanVid, 0x0007)],
            &both,
            Err(Error::BadSetArgument),
        ),
        (
            &any,
            vec![
                push(0x8100),
                set(Field::VlanVid, 0x1007),
                set(Field::VlanPcp, 3),
            ],
            &v13,
            ok,
        ),
        (&any, vec![set(Field::VlanPcp, 7)], &v13, inconsistent),
        (
            &any,
            vec![Action::SetVlanVid { vid: 5, push: true }, pop.clone()],
            &v13,
            ok,
        ),
        (
            &any,
            vec![Action::SetVlanVid {
                vid: 5,
                push: false,
            }],
            &v13,
            inconsistent,
        ),
        (
            &any,
            vec![Action::SetVlanVid {
                vid: 4096,
                push: true,
            }],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![set(Field::ActsetOutput, 0x800)],
            &both,
            Err(Error::BadSetArgument),
        ),
        (
            &ip,
            vec![set(Field::IpFrag, 1)],
            &both,
            Err(Error::BadSetArgument),
        ),
        (
            &any,
            vec![set(Field::InPortOxm, 5)],
            &both,
            Err(Error::BadSetArgument),
        ),
        (&any, vec![set(Field::InPort, 5)], &both, ok),
        (
            &any,
            vec![set(Field::CtMark, 5)],
            &both,
            Err(Error::BadSetArgument),
        ),
        (
            &any,
            vec![
                set(Field::Metadata, 5),
                set(Field::TunId, 5),
                set(Field::PktMark, 5),
            ],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::Load {
                dst: subfield(Field::ActsetOutput, 0, 16),
                value: 1,
            }],
            &both,
            Err(Error::BadSetArgument),
        ),
        (
            &any,
            vec![Action::Load {
                dst: subfield(Field::VlanTci, 0, 16),
                value: 1,
            }],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::Load {
                dst: subfield(Field::VlanVid, 0, 12),
                value: 1,
            }],
            &both,
            inconsistent,
        ),
        (
            &any,
            vec![Action::Load {
                dst: subfield(Field::Reg0, 4, 4),
                value: 15,
            }],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::Load {
                dst: subfield(Field::Reg0, 4, 4),
                value: 16,
            }],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![Action::Load {
                dst: subfield(Field::Reg0, 30, 4),
                value: 1,
            }],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![Action::Move {
                src: subfield(Field::Ipv4Src, 0, 32),
                dst: reg0,
            }],
            &both,
            inconsistent,
        ),
        (
            &ip,
            vec![Action::Move {
                src: subfield(Field::Ipv4Src, 0, 32),
                dst: reg0,
            }],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::Move {
                src: subfield(Field::Reg1, 0, 16),
                dst: reg0,
            }],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![Action::Move {
                src: reg0,
                dst: subfield(Field::ActsetOutput, 0, 16),
            }],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![Action::OutputReg {
                source: reg0,
                max_len: 0,
            }],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::OutputReg {
                source: subfield(Field::Ipv4Src, 0, 16),
                max_len: 0,
            }],
            &both,
            inconsistent,
        ),
        (
            &any,
            vec![
                Action::StackPush(reg0),
                Action::StackPop(subfield(Field::Metadata, 0, 64)),
            ],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::StackPop(subfield(Field::ActsetOutput, 0, 16))],
            &both,
            Err(Error::BadSetArgument),
        ),
        (
            &any,
            vec![Action::Clone(vec![push(0x8100), pop.clone()]), output(1)],
            &v13,
            ok,
        ),
        (
            &any,
            vec![Action::Clone(vec![push(0x8100)]), pop.clone()],
            &v13,
            inconsistent,
        ),
        (
            &any,
            vec![Action::Clone(out(port::ANY))],
            &both,
            Err(Error::BadOutPort),
        ),
        (
            &any,
            vec![Action::Resubmit {
                in_port: None,
                table: Some(254),
                with_ct_orig: false,
            }],
            &both,
            ok,
        ),
        (
            &any,
            vec![
                Action::Note(vec![1]),
                Action::Exit,
                Action::SetQueue(5),
                Action::PopQueue,
            ],
            &both,
            ok,
        ),
        (&any, vec![Action::Group(1)], &both, Err(Error::BadOutGroup)),
        (&any, vec![Action::CopyTtlIn], &v10, ok),
        (&any, vec![Action::CopyTtlIn], &v13, inconsistent),
        (&any, vec![Action::CopyTtlOut], &v13, inconsistent),
        (&any, vec![Action::DecMplsTtl], &v13, inconsistent),
        (&any, vec![Action::PopMpls(0x800)], &v13, inconsistent),
        (&any, vec![Action::PopPbb], &v13, inconsistent),
        (
            &any,
            vec![
                Action::PushMpls(0x8847),
                Action::CopyTtlIn,
                Action::CopyTtlOut,
                Action::DecMplsTtl,
                set(Field::MplsBos, 0),
                Action::PopMpls(0x0800),
                set(Field::Ipv4Src, 1),
            ],
            &both,
            ok,
        ),
        (
            &any,
            vec![Action::PushMpls(0x0800)],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![Action::PushPbb(0x88e8)],
            &both,
            Err(Error::BadActionArgument),
        ),
        (
            &any,
            vec![
                Action::PushPbb(0x88e7),
                set(Field::PbbIsid, 1),
                set(Field::PbbUca, 1),
                push(0x88a8),
                set(Field::VlanVid, 0x1005),
                pop.clone(),
                Action::PopPbb,
            ],
            &both,
            ok,
        ),
        // The contents of a PBB frame are unknown.
        (
            &any,
            vec![
                Action::PushPbb(0x88e7),
                Action::PopPbb,
                set(Field::Ipv4Src, 1),
            ],
            &both,
            inconsistent,
        ),
        // What follows a label is not parsed.
        (
            &tcp,
            vec![Action::PushMpls(0x8847), set(Field::TcpSrc, 1)],
            &both,
            inconsistent,
        ),
        (
            &tcp,
            vec![set(Field::IpProto, 17), set(Field::UdpSrc, 1)],
            &both,
            ok,
        ),
        (
            &tcp,
            vec![set(Field::IpProto, 17), set(Field::TcpSrc, 1)],
            &both,
            inconsistent,
        ),
        (
            &any,
            vec![set(Field::EthType, 0x0806), set(Field::ArpOp, 1)],
            &both,
            ok,
        ),
        (
            &any,
            vec![set(Field::EthType, 0x05ff)],
            &both,
            Err(Error::BadSetArgument),
        ),
        (
            &any,
            vec![
                Action::Conjunction {
                    id: 1,
                    clause: 0,
                    clauses: 2,
                },
                Action::Note(vec![0; 6]),
            ],
            &both,
            Ok(()),
        ),
        (
            &any,
            vec![
                Action::Conjunction {
                    id: 1,
                    clause: 0,
                    clauses: 2,
                },
                common::output(1),
            ],
            &both,
            Err(Error::BadConjunction),
        ),
        (
            &any,
            vec![Action::Conjunction {
                id: 1,
                clause: 2,
                clauses: 2,
            }],
            &both,
            Err(Error::BadConjunction),
        ),
        (
            &any,
            vec![Action::Resubmit {
                in_port: None,
                table: Some(1),
                with_ct_orig: true,
            }],
            &both,
            Err(Error::ActionMatchInconsistent),
        ),
    ];
    for (matching, actions, versions, expected) in cases {
        for version in versions {
            let mut switch = Switch::new();
            let change = with(add((*matching).clone(), 1), |change| {
                change.instructions = apply(&actions).into()
            });
            let got = switch.send(&change, *version).map(|_| ());
            assert_eq!(got, expected, "{actions:?} for {matching:?} in {version:?}");
            assert_eq!(
                switch.pipeline.rule_count(),
                usize::from(got.is_ok()),
                "all or nothing"
            );
        }
    }
}

/// Section 5.10 for the action set, section 7.5.4.4 for instructions.
#[test]
fn instructions_are_checked() {
    let send = |instructions: Vec<Instruction>| {
        let change = with(add(Match::any(), 1), |change| {
            change.instructions = instructions.into()
        });
        Switch::new().mod13(change).map(|_| ())
    };
    let write = |actions: &[Action]| send(vec![Instruction::WriteActions(actions.to_vec())]);
    assert_eq!(
        write(&[output(1), Action::SetQueue(1), Action::PushVlan(0x8100)]),
        Ok(())
    );
    assert_eq!(write(&[output(port::CONTROLLER)]), Ok(()));
    assert_eq!(
        write(&[Action::Resubmit {
            in_port: None,
            table: Some(3),
            with_ct_orig: false
        }]),
        Ok(())
    );
    let forbidden = [
        Action::Note(vec![1]),
        Action::Exit,
        Action::OutputReg {
            source: subfield(Field::Reg0, 0, 16),
            max_len: 0,
        },
        Action::Enqueue { port: 1, queue: 1 },
        Action::Clone(vec![]),
        Action::StackPush(subfield(Field::Reg0, 0, 16)),
    ];
    for action in forbidden {
        assert_eq!(
            write(std::slice::from_ref(&action)),
            Err(Error::BadActionType),
            "{action:?}"
        );
    }
    assert_eq!(send(vec![Instruction::Meter(1)]), Err(Error::InvalidMeter));
    let twice = vec![Instruction::GotoTable(5), Instruction::GotoTable(6)];
    assert_eq!(send(twice), Err(Error::DuplicateInstruction));
    // A tag that apply-actions push is there for the action set.
    let pushed = vec![
        Instruction::WriteActions(vec![set(Field::VlanPcp, 3), output(1)]),
        Instruction::ApplyActions(vec![Action::PushVlan(0x8100)]),
    ];
    assert_eq!(send(pushed), Ok(()));
}

/// Bad actions are refused also in deletes and if no rule would be changed; so are unknown groups
/// (Open vSwitch only checks these in adds).
#[test]
fn bad_actions_are_refused_before_anything_is_looked_for() {
    let mut switch = Switch::new();
    for command in [
        FlowModCommand::Modify,
        FlowModCommand::Delete,
        FlowModCommand::DeleteStrict,
    ] {
        let change = with(flow(command, Match::any(), 1), |change| {
            change.instructions = apply(&[output(port::ANY)]).into()
        });
        assert_eq!(switch.mod13(change), Err(Error::BadOutPort), "{command:?}");
    }
}

/// A value with the wrong length or bits outside its field never reaches a worker.
#[test]
fn values_that_do_not_fit_are_refused() {
    let send = |field: Field, value: &[u8], mask: &[u8]| {
        let action = Action::SetField {
            field,
            value: Value::from_bytes(value),
            mask: Value::from_bytes(mask),
        };
        let matching = fields(&[(Field::VlanVid, 0x1005)]);
        let change = with(add(matching, 1), |change| {
            change.instructions = apply(&[action]).into();
        });
        Switch::new().mod13(change).map(|_| ())
    };
    let refused = Err(Error::BadSetArgument);
    assert_eq!(send(Field::VlanVid, &[], &[0x1f, 0xff]), refused);
    assert_eq!(send(Field::VlanVid, &[0x10, 7], &[0x1f]), refused);
    assert_eq!(send(Field::VlanVid, &[0x30, 7], &[0x1f, 0xff]), refused);
    assert_eq!(send(Field::VlanVid, &[0x10, 7], &[0x3f, 0xff]), refused);
    assert_eq!(send(Field::Reg0, &[0; 8], &[0xff; 8]), refused);
    assert_eq!(send(Field::Reg0, &[0; 4], &[0xff; 4]), Ok(()));
}
