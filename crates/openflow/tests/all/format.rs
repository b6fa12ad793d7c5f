//! Compares the text of matches and actions with `ovs-ofctl ofp-print`: both print the same rules,
//! we from the model, it from our encoding. Skipped with a message if `ovs-ofctl` is not installed.

use crate::common;
use openflow::action::{Action, Instruction, Subfield};
use openflow::flow::{FlowFlags, FlowStats};
use openflow::message::{FlowFormat, Message, MultipartReply};
use openflow::{Version, encode, port};
use packet::fields::{FIELDS, Maskable};
use packet::key::at;
use packet::{Field, Match, Value};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Rules printed by one call, in one message.
const AT_A_TIME: usize = 50;

fn rule(matching: Match, priority: u16, instructions: Vec<Instruction>) -> FlowStats {
    FlowStats {
        table: 0,
        matching,
        priority,
        cookie: 0,
        duration_ns: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        idle_age: 0,
        hard_age: 0,
        flags: FlowFlags::default(),
        importance: 0,
        packets: 0,
        bytes: 0,
        instructions: instructions.into(),
    }
}

/// Returns the text that we print for a rule.
fn ours(rule: &FlowStats) -> String {
    common::rule_text(&rule.matching, rule.priority, &rule.instructions)
}

/// Returns the text that `ovs-ofctl` prints for rules; None if it is not installed.
fn theirs(version: Version, rules: &[FlowStats]) -> Option<Vec<String>> {
    let format = if version == Version::V1_0 {
        FlowFormat::Nicira
    } else {
        FlowFormat::Standard
    };
    let reply = MultipartReply::Flow {
        flows: rules.to_vec(),
        format,
    };
    let bytes = encode(version, 1, &Message::MultipartReply { reply, more: false });
    let output = common::ofp_print(&bytes)?;
    let text = String::from_utf8(output.stdout).unwrap();
    if !output.status.success() || text.contains("decode error") {
        assert!(rules.len() > 1, "{rules:?}\n{text}");
        // Prints them one by one, to find out which is wrong.
        return rules
            .iter()
            .map(|rule| Some(theirs(version, std::slice::from_ref(rule))?.remove(0)))
            .collect();
    }
    // The text behind the counters, whose commas are followed by spaces.
    let lines = text.lines().filter(|line| line.contains("actions="));
    Some(
        lines
            .map(|line| line.rsplit(", ").next().unwrap().to_owned())
            .collect(),
    )
}

fn same(version: Version, rules: &[FlowStats]) {
    for rules in rules.chunks(AT_A_TIME) {
        let Some(theirs) = theirs(version, rules) else {
            return;
        };
        assert_eq!(rules.iter().map(ours).collect::<Vec<_>>(), theirs);
        rules.iter().for_each(is_read_back);
    }
}

/// Checks that the printed text can be parsed into the same rule: the same match, and actions that
/// print the same.
fn is_read_back(rule: &FlowStats) {
    let text = ours(rule);
    if text.contains("<error>") {
        return; // an invalid kind of fragment
    }
    let read = openflow::parse::flow(&text, &openflow::parse::no_names);
    let read = read.unwrap_or_else(|error| panic!("{text}: {error}"));
    // Connection states without a name are matched but not printed, and one word is printed for two
    // different matches of later fragments.
    let fragment = rule.matching.get(Field::IpFrag);
    let said = fragment.0.to_u64() != 2 || fragment.1.to_u64() != 2;
    if said && rule.matching.get(Field::CtState).1.to_u64() <= 0xff {
        assert_eq!(read.matching, rule.matching, "{text}");
    }
    let again = self::rule(read.matching, read.priority, read.instructions.to_vec());
    assert_eq!(ours(&again), text);
}

/// Returns a field's value, with a mask if wanted, from random bits.
fn random_field(field: Field, value: u128, mask: Option<u128>) -> (Value, Value) {
    let def = field.def();
    let mut mask_bytes = def.place();
    if let Some(mask) = mask.filter(|_| def.maskable == Maskable::Bitwise) {
        let random = Value::from_u128(mask, def.bytes);
        mask_bytes
            .iter_mut()
            .zip(random.iter())
            .for_each(|(byte, random)| *byte &= random);
    }
    let mut bytes = Value::from_u128(value, def.bytes);
    bytes
        .iter_mut()
        .zip(mask_bytes.iter())
        .for_each(|(byte, mask)| *byte &= mask);
    (bytes, mask_bytes)
}

/// Fields of any packet. Below are fields by Ethertype and IP protocol.
const ANYWHERE: &[Field] = &[
    Field::EthSrc,
    Field::EthDst,
    Field::Metadata,
    Field::TunId,
    Field::TunSrc,
    Field::TunDst,
    Field::PktMark,
    Field::Reg0,
    Field::Reg3,
    Field::Reg15,
    Field::CtState,
    Field::CtMark,
    Field::CtLabel,
    Field::CtZone,
    Field::ConjId,
    Field::TunIpv6Src,
    Field::TunGbpId,
];
const IPV4: &[Field] = &[
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::IpDscpShifted,
    Field::IpEcn,
    Field::IpTtl,
];
const IPV6: &[Field] = &[
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::Ipv6Label,
    Field::IpDscpShifted,
    Field::IpEcn,
];
const KINDS: &[(u16, u8, &[Field], &[Field])] = &[
    (0, 0, &[], &[]),
    (0x88cc, 0, &[], &[]),
    (0x0800, 0, IPV4, &[Field::IpFrag]),
    (0x0800, 1, IPV4, &[Field::Icmpv4Type, Field::Icmpv4Code]),
    (
        0x0800,
        6,
        IPV4,
        &[Field::TcpSrc, Field::TcpDst, Field::TcpFlags],
    ),
    (0x0800, 17, IPV4, &[Field::UdpSrc, Field::UdpDst]),
    (0x0800, 132, IPV4, &[Field::SctpSrc, Field::SctpDst]),
    (0x0800, 89, IPV4, &[]),
    (0x86dd, 0, IPV6, &[Field::IpTtl]),
    (0x86dd, 6, IPV6, &[Field::TcpSrc, Field::TcpFlags]),
    (0x86dd, 17, IPV6, &[Field::UdpDst]),
    (0x86dd, 58, IPV6, &[Field::Icmpv6Type, Field::Icmpv6Code]),
    (0x86dd, 132, IPV6, &[Field::SctpDst]),
    (0x86dd, 51, IPV6, &[]),
    (
        0x0806,
        0,
        &[Field::ArpOp, Field::ArpSpa, Field::ArpTpa],
        &[Field::ArpSha, Field::ArpTha],
    ),
    (0x8035, 0, &[Field::ArpOp, Field::ArpSpa], &[Field::ArpTha]),
    (
        0x8847,
        0,
        &[Field::MplsLabel, Field::MplsTc],
        &[Field::MplsBos, Field::MplsTtl],
    ),
    (0x8848, 0, &[Field::MplsLabel], &[]),
];

/// VLAN TCI and mask.
const VLANS: &[(u16, u16)] = &[
    (0, 0),
    (0, 0xffff),
    (0x1009, 0x1fff),
    (0xb000, 0xf000),
    (0x3007, 0xffff),
    (0x1003, 0x1003),
    (0x7009, 0xefff),
];

fn matching() -> impl Strategy<Value = Match> {
    let some = |fields: &'static [Field]| subsequence(fields, 0..=fields.len());
    let number = (any::<u128>(), any::<Option<u128>>());
    let numbers = proptest::collection::vec(number, 32);
    let kind = select(KINDS).prop_flat_map(move |kind| (Just(kind), some(kind.2), some(kind.3)));
    let in_ports = [
        1,
        0xfe00,
        port::LOCAL,
        port::CONTROLLER,
        port::ANY,
        port::IN_PORT,
        port::NORMAL,
    ];
    (
        kind,
        some(ANYWHERE),
        select(VLANS),
        proptest::option::of(select(in_ports.to_vec())),
        numbers,
    )
        .prop_map(
            |((kind, network, transport), anywhere, (tci, tci_mask), in_port, numbers)| {
                let mut matching = Match::any();
                if let Some(number) = in_port {
                    matching.set_exact(Field::InPortOxm, number.into());
                }
                matching.set_bytes(at::VLAN_TCI, &tci.to_be_bytes(), &tci_mask.to_be_bytes());
                if kind.0 != 0 {
                    matching.set_exact(Field::EthType, kind.0.into());
                }
                if kind.1 != 0 {
                    matching.set_exact(Field::IpProto, kind.1.into());
                }
                for (field, (value, mask)) in anywhere
                    .into_iter()
                    .chain(network)
                    .chain(transport)
                    .zip(numbers)
                {
                    // Only eight connection states are known; others are refused.
                    let value = if field == Field::CtState {
                        value & 0xff
                    } else {
                        value
                    };
                    let (value, mask) = random_field(field, value, mask);
                    matching.set(field, &value, &mask);
                }
                matching
            },
        )
}

/// Generates values, the same in each run.
fn generated<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    let mut runner = TestRunner::deterministic();
    (0..count)
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .collect()
}

#[test]
fn matches() {
    let rules: Vec<FlowStats> = generated((matching(), any::<u16>()), 500)
        .into_iter()
        .map(|(matching, priority)| rule(matching, priority, Vec::new()))
        .collect();
    same(Version::V1_0, &rules);
    // OpenFlow 1.3 cannot match the contents of a tag that is absent, nor part of a tag that may be
    // absent.
    let sayable = |rule: &FlowStats| {
        let (tci, mask) = rule.matching.get(Field::VlanTci);
        tci[0] & mask[0] & 0x10 != 0 || matches!(mask.to_u64(), 0 | 0x1fff)
    };
    let rules: Vec<FlowStats> = rules.into_iter().filter(sayable).collect();
    assert!(rules.len() > 200);
    same(Version::V1_3, &rules);
}

fn apply(actions: Vec<Action>) -> FlowStats {
    rule(
        Match::any(),
        32768,
        vec![Instruction::ApplyActions(actions)],
    )
}

fn whole(field: Field) -> Subfield {
    Subfield {
        field,
        start: 0,
        bits: field.def().action_bits as u16,
    }
}

/// Returns the fields that `ovs-ofctl` knows and that have a number of their own.
fn fields() -> impl Iterator<Item = Field> {
    let unknown = [
        Field::InPhyPort,
        Field::PbbIsid,
        Field::PbbUca,
        Field::Ipv6Ext,
    ];
    FIELDS
        .iter()
        .filter(|def| def.header(4).is_some())
        .map(|def| def.field)
        .filter(move |field| !unknown.contains(field))
}

#[test]
fn names_of_fields() {
    let rules: Vec<FlowStats> = fields()
        .map(|field| {
            let part = whole(field);
            let bit = Subfield {
                start: part.bits - 1,
                bits: 1,
                ..part
            };
            let few = Subfield {
                start: 0,
                bits: part.bits.div_ceil(2),
                ..part
            };
            apply([part, bit, few].map(Action::StackPush).to_vec())
        })
        .collect();
    same(Version::V1_3, &rules);
}

#[test]
fn values_of_fields() {
    // The ingress port can be loaded, but not set. `ovs-ofctl` refuses to set an Ethertype, an IP
    // protocol or a bottom of stack, as the specification allows it to.
    let refused = [
        Field::InPortOxm,
        Field::EthType,
        Field::IpProto,
        Field::MplsBos,
    ];
    let settable =
        |field: &Field| field.def().writable && field.def().oxm != 0 && !refused.contains(field);
    let numbers = generated(any::<u128>(), fields().count());
    let rules: Vec<FlowStats> = fields()
        .filter(settable)
        .zip(&numbers)
        .flat_map(|(field, number)| {
            let set = |value| {
                let (value, mask) = random_field(field, value, None);
                // A VLAN id is written with the bit that says there is a tag.
                let value = if field == Field::VlanVid {
                    Value::from_u128(0x1000 | value.to_u128(), 2)
                } else {
                    value
                };
                apply(vec![Action::SetField { field, value, mask }])
            };
            [set(*number), set(0)]
        })
        .collect();
    same(Version::V1_3, &rules);
}

#[test]
fn actions() {
    let reg = |start, bits| Subfield {
        field: Field::Reg1,
        start,
        bits,
    };
    let controller =
        |reason, userdata: &[u8], pause, meter_id, max_len, controller_id| Action::Controller {
            max_len,
            controller_id,
            reason,
            userdata: userdata.to_vec(),
            pause,
            meter_id,
        };
    let all = [
        port::IN_PORT,
        port::NORMAL,
        port::FLOOD,
        port::ALL,
        port::CONTROLLER,
        port::LOCAL,
        1,
        65000,
    ];
    let mut list: Vec<Action> = all
        .into_iter()
        .map(|port| Action::Output { port, max_len: 77 })
        .collect();
    list.extend([
        Action::OutputReg {
            source: reg(0, 16),
            max_len: 0xffff,
        },
        Action::OutputTrunc {
            port: port::LOCAL,
            max_len: 64,
        },
        controller(1, &[], false, None, 0xffff, 0),
        controller(0, &[1, 2], true, None, 0xffff, 3),
        controller(2, &[], false, Some(5), 128, 0),
        Action::SetQueue(3),
        Action::PopQueue,
        Action::Load {
            dst: reg(4, 4),
            value: 9,
        },
        Action::Load {
            dst: reg(0, 1),
            value: 0,
        },
        Action::Move {
            src: reg(0, 8),
            dst: Subfield {
                field: Field::Metadata,
                start: 8,
                bits: 8,
            },
        },
        Action::PopVlan,
        Action::PushVlan(0x8100),
        Action::DecTtl(vec![0]),
        Action::DecTtl(vec![1, 2]),
        Action::PushMpls(0x8847),
        Action::PopMpls(0x0800),
        Action::SetMplsTtl(4),
        Action::DecMplsTtl,
        Action::Group(7),
        Action::Resubmit {
            in_port: None,
            table: Some(4),
            with_ct_orig: false,
        },
        Action::Resubmit {
            in_port: Some(3),
            table: None,
            with_ct_orig: false,
        },
        Action::Resubmit {
            in_port: Some(3),
            table: Some(2),
            with_ct_orig: false,
        },
        Action::Resubmit {
            in_port: None,
            table: Some(2),
            with_ct_orig: true,
        },
        Action::Note(vec![1, 2, 3, 4, 5, 6]),
        Action::StackPush(reg(0, 32)),
        Action::StackPop(reg(3, 1)),
        Action::Clone(vec![
            Action::Output {
                port: 2,
                max_len: 0,
            },
            Action::Exit,
        ]),
        Action::Conjunction {
            id: 4,
            clause: 1,
            clauses: 3,
        },
        Action::SetTunnel {
            id: 0x1_0000_0000,
            wide: true,
        },
        Action::SetIpTtl(5),
        Action::SetIpTos(0x20),
        Action::Exit,
    ]);
    let old = [
        Action::Enqueue { port: 3, queue: 9 },
        Action::SetVlanVid { vid: 5, push: true },
        Action::SetVlanPcp { pcp: 5, push: true },
        Action::SetEthSrc([1, 2, 3, 4, 5, 0xab]),
        Action::SetEthDst([0; 6]),
        Action::SetIpv4Src(0x0a00_0001),
        Action::SetIpv4Dst(0),
        Action::SetIpTos(0x20),
        Action::SetL4Src(80),
        Action::SetL4Dst(65535),
        Action::SetTunnel { id: 5, wide: false },
        Action::SetTunnel { id: 5, wide: true },
        Action::PopVlan,
    ];
    same(Version::V1_0, &old.map(|action| apply(vec![action])));
    // OpenFlow 1.3 prints pop_vlan, and has set-field instead of some; the others print the same in
    // both.
    let changed = |action: &Action| {
        matches!(
            action,
            Action::PopVlan | Action::SetTunnel { .. } | Action::SetIpTos(_)
        )
    };
    let rules: Vec<FlowStats> = list
        .iter()
        .filter(|action| !changed(action))
        .map(|action| apply(vec![action.clone()]))
        .collect();
    same(Version::V1_3, &rules);
    same(
        Version::V1_3,
        &[apply(
            list[..20]
                .iter()
                .filter(|action| !changed(action))
                .cloned()
                .collect(),
        )],
    );
}

#[test]
fn instructions() {
    let write = Instruction::WriteActions(vec![
        Action::Output {
            port: 1,
            max_len: 0,
        },
        Action::Group(2),
    ]);
    let rules = [
        vec![],
        vec![Instruction::GotoTable(4)],
        vec![Instruction::ClearActions],
        vec![write.clone()],
        vec![Instruction::WriteMetadata {
            value: 5,
            mask: u64::MAX,
        }],
        vec![
            Instruction::Meter(3),
            Instruction::ApplyActions(vec![Action::Output {
                port: 9,
                max_len: 0,
            }]),
            Instruction::ClearActions,
            write,
            Instruction::WriteMetadata {
                value: 0,
                mask: 0xff00,
            },
            Instruction::GotoTable(9),
        ],
    ];
    same(
        Version::V1_3,
        &rules.map(|instructions| rule(Match::any(), 32768, instructions)),
    );
}
