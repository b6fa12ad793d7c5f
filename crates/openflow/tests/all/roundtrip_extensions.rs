//! Round trips of Nicira's extensions in every version: its structured actions in rules,
//! packet-outs and buckets; its messages about tunnel options and connections; also the statistics
//! trigger of 1.5, groups and meters.

use openflow::action::{
    Action, Bundle, HashFields, Instruction, Learn, LearnSource, LearnSpec, LearnTarget, Multipath,
    MultipathAlgorithm, Sample, StatTrigger, Subfield,
};
use openflow::conntrack::{
    Ct, CtZone, Encap, EncapProperty, Nat, NatDirection, NatRange, PACKET_TYPE_ETHERNET,
    PACKET_TYPE_NEXT, PACKET_TYPE_NSH,
};
use openflow::ct_flush::{CtFlush, CtTuple};
use openflow::flow::{FlowFlags, FlowMod};
use openflow::message::{FlowFormat, FlowModForm, Message, MultipartRequest, NO_BUFFER, PacketOut};
use openflow::tlv::{TlvCommand, TlvMapping, TlvTable, TlvTableMod};
use openflow::{DecodeOptions, Version, decode, encode, port};
use packet::{Field, Match};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::net::IpAddr;

/// Writable fields of every size that have no prerequisites.
const FIELDS: &[Field] = &[
    Field::Reg0,
    Field::Reg15,
    Field::Xreg3,
    Field::Xxreg2,
    Field::Metadata,
    Field::TunId,
    Field::TunIpv6Dst,
    Field::PktMark,
    Field::EthSrc,
    Field::EthDst,
    Field::VlanTci,
    Field::InPort,
];

/// Generates a subfield of up to `most` bits.
fn subfield(most: u16) -> impl Strategy<Value = Subfield> + Clone {
    (select(FIELDS), any::<u16>(), any::<u16>()).prop_map(move |(field, start, bits)| {
        let width = field.def().action_bits as u16;
        let start = start % width;
        let bits = 1 + bits % (width - start).min(most);
        Subfield { field, start, bits }
    })
}

fn of_bits(part: Subfield, bits: u16) -> Subfield {
    Subfield {
        start: part.start.min(part.field.def().action_bits as u16 - bits),
        bits,
        ..part
    }
}

/// Generates a part of a register with exactly this many bits.
fn register(bits: u16) -> impl Strategy<Value = Subfield> + Clone {
    (0..=32 - bits).prop_map(move |start| Subfield {
        field: Field::Reg5,
        start,
        bits,
    })
}

fn spec() -> impl Strategy<Value = LearnSpec> {
    let number = |bits: u16, value: u128| LearnSource::Immediate {
        value: if bits == 128 {
            value
        } else {
            value & ((1 << bits) - 1)
        },
        bits,
    };
    prop_oneof![
        (subfield(128), any::<u128>()).prop_map(move |(to, value)| LearnSpec {
            source: number(to.bits, value),
            target: LearnTarget::Match(to),
        }),
        (subfield(128), any::<u128>()).prop_map(move |(to, value)| LearnSpec {
            source: number(to.bits, value),
            target: LearnTarget::Load(to),
        }),
        (subfield(128), subfield(128), any::<bool>()).prop_map(|(from, to, load)| {
            let bits = from.bits.min(to.bits);
            let (from, to) = (of_bits(from, bits), of_bits(to, bits));
            LearnSpec {
                source: LearnSource::Field(from),
                target: if load {
                    LearnTarget::Load(to)
                } else {
                    LearnTarget::Match(to)
                },
            }
        }),
        subfield(32).prop_map(|from| LearnSpec {
            source: LearnSource::Field(from),
            target: LearnTarget::Output,
        }),
    ]
}

fn learn() -> impl Strategy<Value = Action> {
    (
        any::<[u16; 5]>(),
        any::<u64>(),
        any::<[bool; 2]>(),
        0_u8..255,
        any::<u32>(),
        option::of(register(1)),
        vec(spec(), 0..8),
    )
        .prop_map(|(words, cookie, flags, table, limit, result, specs)| {
            Action::Learn(Box::new(Learn {
                idle_timeout: words[0],
                hard_timeout: words[1],
                priority: words[2],
                fin_idle_timeout: words[3],
                fin_hard_timeout: words[4],
                cookie,
                send_flow_rem: flags[0],
                delete_learned: flags[1],
                table,
                limit: if limit % 2 == 0 { 0 } else { limit },
                result,
                specs,
            }))
        })
}

fn hash_fields() -> impl Strategy<Value = HashFields> {
    select(vec![
        HashFields::EthSrc,
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::NwSrc,
        HashFields::NwDst,
        HashFields::SymmetricL3,
    ])
}

fn multipath() -> impl Strategy<Value = Action> {
    let algorithm = select(vec![
        MultipathAlgorithm::ModuloN,
        MultipathAlgorithm::HashThreshold,
        MultipathAlgorithm::Hrw,
        MultipathAlgorithm::IterHash,
    ]);
    (
        hash_fields(),
        any::<u16>(),
        algorithm,
        any::<u16>(),
        any::<u32>(),
        subfield(64),
    )
        .prop_map(|(fields, basis, algorithm, max_link, arg, dst)| {
            let fits = if dst.bits < 16 {
                max_link & ((1 << dst.bits) - 1)
            } else {
                max_link
            };
            Action::Multipath(Box::new(Multipath {
                fields,
                basis,
                algorithm,
                max_link: fits,
                arg,
                dst,
            }))
        })
}

fn bundle() -> impl Strategy<Value = Action> {
    let member = prop_oneof![
        3 => 1_u32..0xff00,
        1 => select(vec![port::LOCAL, port::IN_PORT, port::ANY, port::FLOOD]),
    ];
    (
        hash_fields(),
        any::<u16>(),
        any::<bool>(),
        vec(member, 0..12),
        option::of(register(16)),
    )
        .prop_map(|(fields, basis, active_backup, members, dst)| {
            Action::Bundle(Box::new(Bundle {
                fields,
                basis,
                active_backup,
                members,
                dst,
            }))
        })
}

fn sample() -> impl Strategy<Value = Action> {
    let port = select(vec![port::ANY, 7, port::LOCAL]);
    (1_u16.., any::<[u32; 3]>(), port, 0_u8..3).prop_map(|(probability, ids, port, direction)| {
        Action::Sample(Sample {
            probability,
            collector_set: ids[0],
            domain: ids[1],
            point: ids[2],
            port,
            direction,
        })
    })
}

fn nat(version: Version) -> impl Strategy<Value = Action> {
    let direction = select(vec![
        None,
        Some(NatDirection::Source),
        Some(NatDirection::Destination),
    ]);
    let old = any::<[u32; 2]>().prop_map(|pair| pair.map(|n| IpAddr::V4(n.max(1).into())));
    let new = any::<[u128; 2]>().prop_map(|pair| pair.map(|n| IpAddr::V6(n.max(1).into())));
    // A match of 1.1 has no IPv6.
    let addresses = if version == Version::V1_1 {
        old.boxed()
    } else {
        new.boxed()
    };
    let range =
        (addresses, any::<bool>(), any::<[u16; 2]>()).prop_map(|(addresses, ranged, ports)| {
            let min_port = ports[0].min(ports[1]);
            NatRange {
                min: addresses[0].min(addresses[1]),
                max: ranged.then_some(addresses[0].max(addresses[1])),
                min_port,
                max_port: if min_port == 0 || !ranged {
                    0
                } else {
                    ports[0].max(ports[1])
                },
            }
        });
    (direction, any::<[bool; 3]>(), option::of(range)).prop_map(|(direction, flags, range)| {
        Action::Nat(Box::new(Nat {
            direction,
            persistent: flags[0],
            hash: flags[1] && !flags[2],
            random: flags[2],
            range,
        }))
    })
}

fn ct(version: Version) -> impl Strategy<Value = Action> {
    let mark = Subfield {
        field: Field::CtMark,
        start: 4,
        bits: 8,
    };
    let inside = prop_oneof![
        nat(version),
        Just(if version < Version::V1_5 {
            Action::Load {
                dst: mark,
                value: 5,
            }
        } else {
            Action::Move {
                src: of_bits(mark, 8),
                dst: mark,
            }
        }),
    ];
    let zone = prop_oneof![
        any::<u16>().prop_map(CtZone::Number),
        register(16).prop_map(CtZone::Field)
    ];
    (
        any::<[bool; 2]>(),
        zone,
        option::of(0_u8..255),
        select(vec![0_u16, 21, 5060]),
        vec(inside, 0..4),
    )
        .prop_map(|(flags, zone, table, alg, actions)| {
            let commit = flags[0] || !actions.is_empty();
            Action::Ct(Box::new(Ct {
                commit,
                force: commit && flags[1],
                zone,
                table,
                alg,
                actions,
            }))
        })
}

fn encap() -> impl Strategy<Value = Action> {
    let property = prop_oneof![
        any::<u8>().prop_map(EncapProperty::NshMdType),
        (any::<u16>(), any::<u8>(), vec(any::<u8>(), 0..40))
            .prop_map(|(class, kind, value)| EncapProperty::NshTlv { class, kind, value }),
    ];
    (
        any::<u16>(),
        select(vec![PACKET_TYPE_ETHERNET, PACKET_TYPE_NSH]),
        vec(property, 0..4),
    )
        .prop_map(|(header_size, packet_type, properties)| {
            Action::Encap(Box::new(Encap {
                header_size,
                packet_type,
                properties,
            }))
        })
}

/// Generates those of Nicira's structured actions that every version has.
fn action(version: Version) -> impl Strategy<Value = Action> {
    prop_oneof![
        learn(),
        multipath(),
        bundle(),
        sample(),
        ct(version),
        Just(Action::CtClear),
        any::<[u16; 2]>().prop_map(|[idle, hard]| Action::FinTimeout { idle, hard }),
        (any::<u16>(), register(1))
            .prop_map(|(max_len, dst)| Action::CheckPktLarger { max_len, dst }),
        subfield(128).prop_map(Action::StackPush),
        subfield(128).prop_map(Action::StackPop),
    ]
}

/// Generates an action that changes the packet's type, from 1.3 on: nothing is known of the packet
/// behind it.
fn last(version: Version) -> BoxedStrategy<Vec<Action>> {
    if version < Version::V1_3 {
        return Just(Vec::new()).boxed();
    }
    let one = prop_oneof![
        encap(),
        select(vec![0, PACKET_TYPE_NEXT, PACKET_TYPE_NSH]).prop_map(Action::Decap),
        Just(Action::DecNshTtl),
    ];
    vec(one, 0..3).boxed()
}

fn actions(version: Version) -> impl Strategy<Value = Vec<Action>> {
    let nested = vec(action(version), 0..3).prop_map(Action::Clone);
    let known = vec(prop_oneof![9 => action(version), 1 => nested], 1..6);
    (known, last(version)).prop_map(|(known, last)| [known, last].concat())
}

fn version() -> impl Strategy<Value = Version> {
    select(Version::ALL.to_vec())
}

fn same(version: Version, message: &Message) -> Result<(), TestCaseError> {
    let bytes = encode(version, 77, message);
    prop_assert!(!bytes.is_empty(), "{version:?} has no form for {message:?}");
    let options = DecodeOptions {
        version: Some(version),
        table_in_command: false,
    };
    let (_, decoded) = decode(&bytes, &options)
        .map_err(|error| TestCaseError::fail(format!("{error} for {message:?}\n{bytes:02x?}")))?;
    prop_assert_eq!(&decoded, message);
    prop_assert_eq!(encode(version, 77, &decoded), bytes);
    Ok(())
}

fn rule(version: Version, instructions: Vec<Instruction>) -> Message {
    // TCP, for actions on connections and their ends; in 1.0 only Nicira's form can match it over
    // IPv6.
    let ipv4 = version == Version::V1_1;
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, if ipv4 { 0x0800 } else { 0x86dd });
    matching.set_exact(Field::IpProto, 6);
    Message::FlowMod {
        change: FlowMod {
            cookie: 9,
            modify_cookie: version == Version::V1_0,
            flags: FlowFlags {
                reset_counts: version <= Version::V1_1,
                ..FlowFlags::default()
            },
            ..FlowMod::add(matching, 5, instructions)
        },
        form: FlowModForm {
            format: if version == Version::V1_0 {
                FlowFormat::Nicira
            } else {
                FlowFormat::Standard
            },
            table_in_command: false,
        },
    }
}

fn mapping() -> impl Strategy<Value = TlvMapping> {
    (any::<u16>(), any::<u8>(), 0_u8..=31, 0_u16..64).prop_map(|(class, kind, words, field)| {
        TlvMapping {
            class,
            kind,
            length: words * 4,
            field,
        }
    })
}

fn tuple() -> impl Strategy<Value = CtTuple> {
    (
        any::<[Option<u128>; 2]>(),
        any::<[Option<u16>; 3]>(),
        any::<[Option<u8>; 2]>(),
    )
        .prop_map(|(addresses, words, bytes)| CtTuple {
            source: addresses[0],
            destination: addresses[1],
            source_port: words[0],
            destination_port: words[1],
            icmp_id: words[2],
            icmp_type: bytes[0],
            icmp_code: bytes[1],
        })
}

fn message() -> impl Strategy<Value = Message> {
    let command = select(vec![TlvCommand::Add, TlvCommand::Delete, TlvCommand::Clear]);
    prop_oneof![
        (command, vec(mapping(), 0..6)).prop_map(|(command, mappings)| Message::TlvTableMod(
            TlvTableMod { command, mappings }
        )),
        Just(Message::TlvTableRequest),
        (any::<u32>(), any::<u16>(), vec(mapping(), 0..6)).prop_map(
            |(max_space, max_fields, mappings)| Message::TlvTableReply(TlvTable {
                max_space,
                max_fields,
                mappings
            })
        ),
        (
            any::<Option<u16>>(),
            any::<u8>(),
            option::of(tuple()),
            option::of(tuple())
        )
            .prop_map(
                |(zone, protocol, original, reply)| Message::CtFlush(CtFlush {
                    zone,
                    protocol,
                    original,
                    reply
                })
            ),
        any::<bool>().prop_map(|flows| Message::MultipartRequest {
            request: MultipartRequest::Ipfix { flows },
            more: false
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn rules((version, actions) in version().prop_flat_map(|version| (Just(version), actions(version)))) {
        same(version, &rule(version, vec![Instruction::ApplyActions(actions)]))?;
    }

    #[test]
    fn conjunctions(version in version(), id: u32, (clause, clauses) in (2_u8..=64).prop_flat_map(|clauses| (0..clauses, Just(clauses)))) {
        let conjunction = Action::Conjunction { id, clause, clauses };
        let actions = vec![conjunction.clone(), Action::Note(vec![1; 6]), conjunction];
        same(version, &rule(version, vec![Instruction::ApplyActions(actions)]))?;
    }

    #[test]
    fn packet_outs((version, actions) in version().prop_flat_map(|version| (Just(version), actions(version))), data in vec(any::<u8>(), 0..50)) {
        let mut matching = Match::any();
        matching.set_exact(Field::InPortOxm, 3);
        same(version, &Message::PacketOut(PacketOut { buffer_id: NO_BUFFER, in_port: 3, matching, actions, data }))?;
    }

    #[test]
    fn packet_outs_with_pipeline_fields(metadata: u64, tunnel: u64, register: u32, mask: u32, source: u32) {
        let mut matching = Match::any();
        matching.set_exact(Field::InPortOxm, 3);
        matching.set_exact(Field::Metadata, metadata.into());
        matching.set_exact(Field::TunId, tunnel.into());
        matching.set_exact(Field::TunSrc, source.into());
        matching.set(Field::Reg15, &(register & mask).to_be_bytes(), &mask.to_be_bytes());
        let message = PacketOut { buffer_id: NO_BUFFER, in_port: 3, matching, actions: Vec::new(), data: vec![7; 14] };
        same(Version::V1_5, &Message::PacketOut(message))?;
    }

    #[test]
    fn messages(version in version(), message in message()) {
        same(version, &message)?;
    }

    #[test]
    fn statistics_triggers(flags: [bool; 2], numbers: [Option<u32>; 4]) {
        let trigger = StatTrigger {
            periodic: flags[0],
            only_first: flags[1],
            duration_ns: numbers[0].map(u64::from),
            idle_ns: numbers[1].map(u64::from),
            packets: numbers[2].map(u64::from),
            bytes: numbers[3].map(u64::from),
        };
        let instructions = vec![Instruction::ClearActions, Instruction::StatTrigger(Box::new(trigger))];
        same(Version::V1_5, &rule(Version::V1_5, instructions))?;
    }
}

/// A packet-out of 1.5 may set pipeline fields of its packet, except those that only the datapath
/// knows.
#[test]
fn packet_outs_name_pipeline_fields_only() {
    let decoded = |field: Field| {
        let mut matching = Match::any();
        matching.set_exact(Field::InPortOxm, 3);
        matching.set(field, &vec![0; field.def().bytes], &field.def().place());
        let message = Message::PacketOut(PacketOut {
            buffer_id: NO_BUFFER,
            in_port: 3,
            matching,
            actions: Vec::new(),
            data: vec![7; 14],
        });
        let options = DecodeOptions {
            version: Some(Version::V1_5),
            table_in_command: false,
        };
        decode(&encode(Version::V1_5, 1, &message), &options).map_err(|error| error.error)
    };
    use Field::*;
    for field in [
        PacketType,
        Metadata,
        Reg0,
        Xreg7,
        Xxreg3,
        TunId,
        TunSrc,
        TunDst,
        TunIpv6Src,
        TunIpv6Dst,
        TunFlags,
        TunGbpId,
        TunGbpFlags,
    ] {
        assert!(decoded(field).is_ok(), "{field:?}");
    }
    for field in [
        EthSrc,
        EthDst,
        EthType,
        VlanTci,
        PktMark,
        ConjId,
        DpHash,
        RecircId,
        CtMark,
        ActsetOutput,
    ] {
        let refused = Some(openflow::error::Error::PipelineFieldsOnly);
        assert_eq!(decoded(field).err(), refused, "{field:?}");
    }
}
