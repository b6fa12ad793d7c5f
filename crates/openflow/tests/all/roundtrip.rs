//! Generated messages survive encoding and decoding; and no bytes make the decoder panic or
//! allocate without bound.

use openflow::action::{Action, Instruction, Subfield};
use openflow::error::{Error, WireError};
use openflow::flow::{
    FlowFlags, FlowMod, FlowModCommand, FlowRemoved, FlowRemovedReason, FlowStats,
    FlowStatsRequest, TABLE_ALL,
};
use openflow::message::*;
use openflow::port::{
    self, PortConfig, PortDescription, PortFeatures, PortMod, PortReason, PortState, PortStats,
    PortStatus,
};
use openflow::stats::*;
use openflow::{Added, DecodeOptions, Repeats, Version, decode, decode_added, encode};
use packet::fields::Maskable;
use packet::key::at;
use packet::{Field, Match, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the bytes that the current thread allocates.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches only a thread-local
// cell that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|count| count.set(count.get() + layout.size()));
        // SAFETY: the caller keeps `alloc`'s contract, which is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` above, that is from the system's allocator, with this
        // layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The forms of matches on the wire, each with its own limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Old,
    Nxm,
    Oxm(Version),
}

impl Form {
    fn version(self) -> Version {
        match self {
            Form::Old | Form::Nxm => Version::V1_0,
            Form::Oxm(version) => version,
        }
    }
    fn format(self) -> FlowFormat {
        if self == Form::Nxm {
            FlowFormat::Nicira
        } else {
            FlowFormat::Standard
        }
    }
}

fn form() -> impl Strategy<Value = Form> {
    select(vec![
        Form::Old,
        Form::Nxm,
        Form::Oxm(Version::V1_2),
        Form::Oxm(Version::V1_3),
        Form::Oxm(Version::V1_4),
        Form::Oxm(Version::V1_5),
    ])
}

/// Sets a field to a value, with a mask if the field can have one.
fn set_random(matching: &mut Match, field: Field, value: u128, mask: Option<u128>) {
    let def = field.def();
    let place = def.place();
    let mut mask_bytes = place.clone();
    if let Some(mask) = mask
        && def.maskable == Maskable::Bitwise
    {
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
    matching.set(field, &bytes, &mask_bytes);
}

/// Fields that a match may have in addition to an Ethertype and an IP protocol.
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
];
const IPV4: &[Field] = &[
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::IpDscpShifted,
    Field::IpEcn,
    Field::IpTtl,
    Field::IpFrag,
];
const IPV6: &[Field] = &[
    Field::Ipv6Src,
    Field::Ipv6Dst,
    Field::Ipv6Label,
    Field::IpDscpShifted,
    Field::IpEcn,
];
const ARP: &[Field] = &[
    Field::ArpOp,
    Field::ArpSpa,
    Field::ArpTpa,
    Field::ArpSha,
    Field::ArpTha,
];
const MPLS: &[Field] = &[
    Field::MplsLabel,
    Field::MplsTc,
    Field::MplsBos,
    Field::MplsTtl,
];

fn transport(protocol: u8, ethertype: u16) -> &'static [Field] {
    match protocol {
        6 => &[Field::TcpSrc, Field::TcpDst, Field::TcpFlags],
        17 => &[Field::UdpSrc, Field::UdpDst],
        132 => &[Field::SctpSrc, Field::SctpDst],
        1 if ethertype == 0x0800 => &[Field::Icmpv4Type, Field::Icmpv4Code],
        58 if ethertype == 0x86dd => &[Field::Icmpv6Type, Field::Icmpv6Code],
        _ => &[],
    }
}

/// Fields of 1.0's match.
const OLD: &[Field] = &[
    Field::EthSrc,
    Field::EthDst,
    Field::Ipv4Src,
    Field::Ipv4Dst,
    Field::IpDscpShifted,
    Field::ArpOp,
    Field::ArpSpa,
    Field::ArpTpa,
    Field::TcpSrc,
    Field::TcpDst,
    Field::UdpSrc,
    Field::UdpDst,
    Field::SctpSrc,
    Field::SctpDst,
    Field::Icmpv4Type,
    Field::Icmpv4Code,
    Field::Icmpv6Type,
    Field::Icmpv6Code,
];

fn prefix(bits: u32) -> u32 {
    u32::MAX.checked_shl(32 - bits).unwrap_or(0)
}

/// Generates matches that meet their prerequisites and that the form can express.
fn matching(form: Form) -> impl Strategy<Value = Match> {
    let random = vec((any::<u128>(), any::<Option<u128>>(), any::<bool>()), 32);
    let ethertypes = select(vec![0_u16, 0x0800, 0x86dd, 0x0806, 0x8847, 0x88cc]);
    (
        ethertypes,
        select(vec![0_u8, 1, 6, 17, 58, 89, 132]),
        0_u8..5,
        any::<Option<u16>>(),
        random,
    )
        .prop_map(move |(ethertype, protocol, vlan, in_port, random)| {
            let mut matching = Match::any();
            let mut random = random.into_iter();
            let mut add = |matching: &mut Match, fields: &[Field]| {
                for field in fields {
                    let Some((value, mask, wanted)) = random.next() else {
                        return;
                    };
                    if !wanted || form == Form::Old && !OLD.contains(field) {
                        continue;
                    }
                    let mask = match (form, field) {
                        (
                            Form::Old,
                            Field::Ipv4Src | Field::Ipv4Dst | Field::ArpSpa | Field::ArpTpa,
                        ) => mask.map(|mask| prefix(mask as u32 % 33).into()),
                        (Form::Old, _) => None,
                        _ => mask,
                    };
                    set_random(matching, *field, value, mask);
                }
            };
            if let Some(in_port) = in_port {
                matching.set_exact(Field::InPortOxm, port::from_u16(in_port).into());
            }
            add(&mut matching, ANYWHERE);
            match vlan {
                1 => matching.set_bytes(
                    at::VLAN_TCI,
                    &[0, 0],
                    &if form == Form::Old || form == Form::Nxm {
                        [0xff, 0xff]
                    } else {
                        [0x1f, 0xff]
                    },
                ),
                2 => matching.set_bytes(at::VLAN_TCI, &[0x10, 9], &[0x1f, 0xff]),
                3 => matching.set_bytes(at::VLAN_TCI, &[0xb0, 0], &[0xf0, 0]),
                4 => matching.set_bytes(at::VLAN_TCI, &[0x30, 7], &[0xff, 0xff]),
                _ => {}
            }
            if ethertype != 0 {
                matching.set_exact(Field::EthType, ethertype.into());
            }
            match ethertype {
                0x0800 | 0x86dd => {
                    add(&mut matching, if ethertype == 0x0800 { IPV4 } else { IPV6 });
                    // A later fragment has no transport header to match.
                    let later = matching
                        .get(Field::IpFrag)
                        .0
                        .iter()
                        .any(|byte| byte & 2 != 0);
                    if protocol != 0 {
                        matching.set_exact(Field::IpProto, protocol.into());
                        if !later {
                            add(&mut matching, transport(protocol, ethertype));
                        }
                    }
                }
                0x0806 => add(&mut matching, ARP),
                0x8847 => add(&mut matching, MPLS),
                _ => {}
            }
            matching
        })
}

fn subfield() -> impl Strategy<Value = Subfield> + Clone {
    (
        select(vec![
            Field::Reg0,
            Field::Reg7,
            Field::Metadata,
            Field::TunId,
            Field::EthSrc,
        ]),
        any::<u16>(),
        any::<u16>(),
    )
        .prop_map(|(field, start, bits)| {
            let width = field.def().action_bits as u16;
            let start = start % width;
            Subfield {
                field,
                start,
                bits: 1 + bits % (width - start).min(64),
            }
        })
}

fn output() -> impl Strategy<Value = u32> {
    prop_oneof![
        1_u32..0xff00,
        select(vec![
            port::IN_PORT,
            port::NORMAL,
            port::FLOOD,
            port::ALL,
            port::CONTROLLER,
            port::LOCAL
        ])
    ]
}

/// Generates actions that are valid for every packet.
fn action(version: Version) -> impl Strategy<Value = Action> {
    let common = prop_oneof![
        (output(), any::<u16>()).prop_map(|(port, max_len)| Action::Output { port, max_len }),
        (subfield(), any::<u16>())
            .prop_map(|(source, max_len)| Action::OutputReg { source, max_len }),
        (output(), 14_u32..).prop_map(|(port, max_len)| Action::OutputTrunc { port, max_len }),
        (any::<u16>(), any::<u16>(), 0_u8..6).prop_map(|(max_len, controller_id, reason)| {
            Action::Controller {
                max_len,
                controller_id,
                reason,
                userdata: vec![],
                pause: false,
                meter_id: None,
            }
        }),
        (
            any::<u16>(),
            vec(any::<u8>(), 1..20),
            any::<bool>(),
            any::<Option<u32>>()
        )
            .prop_map(|(max_len, userdata, pause, meter_id)| {
                Action::Controller {
                    max_len,
                    controller_id: 0,
                    reason: 1,
                    userdata,
                    pause,
                    meter_id,
                }
            }),
        any::<u32>().prop_map(Action::SetQueue),
        Just(Action::PopQueue),
        Just(Action::PopVlan),
        vec(any::<u16>(), 1..5).prop_map(Action::DecTtl),
        select(vec![0x8847, 0x8848]).prop_map(Action::PushMpls),
        any::<u16>().prop_map(Action::PopMpls),
        any::<u8>().prop_map(Action::SetMplsTtl),
        Just(Action::DecMplsTtl),
        (0_u32..0xffff_ff00).prop_map(Action::Group),
        (1_u16..0xff00, any::<bool>(), 0_u8..255).prop_map(|(in_port, with_ct_orig, table)| {
            Action::Resubmit {
                in_port: Some(in_port.into()),
                table: Some(table),
                with_ct_orig,
            }
        }),
        (1_u16..0xff00).prop_map(|in_port| Action::Resubmit {
            in_port: Some(in_port.into()),
            table: None,
            with_ct_orig: false
        }),
        Just(Action::Resubmit {
            in_port: None,
            table: None,
            with_ct_orig: false
        }),
        (0_usize..4, any::<u8>())
            .prop_map(|(eights, byte)| Action::Note(vec![byte; 6 + eights * 8])),
        Just(Action::Exit),
        subfield().prop_map(Action::StackPush),
        subfield().prop_map(Action::StackPop),
        (subfield(), subfield()).prop_map(|(src, dst)| {
            let bits = src.bits.min(dst.bits);
            Action::Move {
                src: Subfield { bits, ..src },
                dst: Subfield { bits, ..dst },
            }
        }),
    ];
    // 1.0 and 1.1 have other forms (tests/all/other_versions.rs).
    let set_field = (
        select(vec![Field::Reg1, Field::Metadata, Field::EthDst]),
        any::<u64>(),
        any::<u64>(),
    )
        .prop_map(move |(field, value, mask)| {
            let def = field.def();
            let cut = |number: u64| Value::from_u128(number.into(), def.bytes);
            // Versions before 1.5 use a load for some bits of a field.
            let mask = if mask % 2 == 0 || version < Version::V1_5 {
                def.place()
            } else {
                cut(mask)
            };
            let mut value = cut(value);
            value
                .iter_mut()
                .zip(mask.iter())
                .for_each(|(byte, mask)| *byte &= mask);
            Action::SetField { field, value, mask }
        });
    let load = (subfield(), any::<u64>()).prop_map(|(dst, value)| Action::Load {
        dst,
        value: if dst.bits == 64 {
            value
        } else {
            value & ((1 << dst.bits) - 1)
        },
    });
    let only_old = prop_oneof![
        load.clone(),
        (1_u32..0xff00, any::<u32>()).prop_map(|(port, queue)| Action::Enqueue { port, queue }),
        (0_u16..4096).prop_map(|vid| Action::SetVlanVid { vid, push: true }),
        (0_u8..8).prop_map(|pcp| Action::SetVlanPcp { pcp, push: true }),
        any::<[u8; 6]>().prop_map(Action::SetEthSrc),
        any::<[u8; 6]>().prop_map(Action::SetEthDst),
        any::<u32>().prop_map(Action::SetIpv4Src),
        any::<u32>().prop_map(Action::SetIpv4Dst),
        (0_u8..64).prop_map(|dscp| Action::SetIpTos(dscp << 2)),
        any::<u16>().prop_map(Action::SetL4Src),
        any::<u16>().prop_map(Action::SetL4Dst),
        (0_u32..1 << 20).prop_map(Action::SetMplsLabel),
        (0_u8..8).prop_map(Action::SetMplsTc),
        any::<u32>().prop_map(|id| Action::SetTunnel {
            id: id.into(),
            wide: false
        }),
        any::<u64>().prop_map(|id| Action::SetTunnel { id, wide: true }),
    ];
    let only_new = prop_oneof![
        if version < Version::V1_5 {
            load.boxed()
        } else {
            Just(Action::Meter(7)).boxed()
        },
        select(vec![0x8100, 0x88a8]).prop_map(Action::PushVlan),
        if version >= Version::V1_2 {
            set_field.boxed()
        } else {
            Just(Action::PopVlan).boxed()
        },
        any::<u8>().prop_map(Action::SetIpTtl),
        Just(Action::CopyTtlIn),
        Just(Action::CopyTtlOut),
        if version >= Version::V1_3 {
            Just(Action::PushPbb(0x88e7)).boxed()
        } else {
            Just(Action::PopVlan).boxed()
        },
        if version >= Version::V1_3 {
            Just(Action::PopPbb).boxed()
        } else {
            Just(Action::PopVlan).boxed()
        },
    ];
    let by_version = if version == Version::V1_0 {
        only_old.boxed()
    } else {
        only_new.boxed()
    };
    prop_oneof![2 => common, 1 => by_version]
}

fn actions(version: Version) -> impl Strategy<Value = Vec<Action>> {
    let nested = vec(action(version), 0..3).prop_map(Action::Clone);
    vec(prop_oneof![9 => action(version), 1 => nested], 1..6)
}

fn instructions(version: Version) -> BoxedStrategy<Vec<Instruction>> {
    let apply = actions(version).prop_map(Instruction::ApplyActions);
    if version == Version::V1_0 {
        let metadata = (any::<u64>(), any::<u64>())
            .prop_map(|(value, mask)| Instruction::WriteMetadata { value, mask });
        return (proptest::option::of(apply), proptest::option::of(metadata))
            .prop_map(|(apply, metadata)| apply.into_iter().chain(metadata).collect())
            .boxed();
    }
    let in_set = prop_oneof![Just(Action::PopVlan), (1_u32..100).prop_map(Action::Group)];
    let meter = if (Version::V1_3..=Version::V1_4).contains(&version) {
        1..2_usize
    } else {
        0..1
    };
    (
        vec((1_u32..1000).prop_map(Instruction::Meter), meter),
        proptest::option::of(apply),
        proptest::option::of(Just(Instruction::ClearActions)),
        proptest::option::of(vec(in_set, 1..4).prop_map(Instruction::WriteActions)),
        proptest::option::of(
            (any::<u64>(), any::<u64>())
                .prop_map(|(value, mask)| Instruction::WriteMetadata { value, mask }),
        ),
        proptest::option::of((100_u8..254).prop_map(Instruction::GotoTable)),
    )
        .prop_map(|(meter, apply, clear, write, metadata, goto)| {
            meter
                .into_iter()
                .chain(apply)
                .chain(clear)
                .chain(write)
                .chain(metadata)
                .chain(goto)
                .collect()
        })
        .boxed()
}

fn flags(version: Version) -> impl Strategy<Value = FlowFlags> {
    any::<[bool; 5]>().prop_map(move |bits| FlowFlags {
        send_flow_rem: bits[0],
        check_overlap: bits[1],
        reset_counts: bits[2] && version >= Version::V1_2,
        no_packet_counts: bits[3] && version >= Version::V1_3,
        no_byte_counts: bits[4] && version >= Version::V1_3,
    })
}

fn stats(form: Form) -> impl Strategy<Value = FlowStats> {
    let version = form.version();
    (
        matching(form),
        instructions(version),
        flags(version),
        any::<[u64; 4]>(),
        any::<[u16; 5]>(),
        0_u8..254,
    )
        .prop_map(
            move |(matching, instructions, flags, numbers, halves, table)| {
                let since = |first, value| {
                    if version >= first {
                        value
                    } else {
                        Default::default()
                    }
                };
                let priority = halves[0];
                FlowStats {
                    table,
                    matching,
                    priority,
                    cookie: numbers[0],
                    duration_ns: numbers[1] % (1 << 60),
                    idle_timeout: halves[1],
                    hard_timeout: halves[2],
                    idle_age: match form {
                        Form::Nxm => (halves[3] % 0xfffe).into(),
                        Form::Oxm(Version::V1_5) => numbers[2] as u32,
                        _ => 0,
                    },
                    hard_age: if form == Form::Nxm {
                        (halves[4] % 0xfffe).into()
                    } else {
                        0
                    },
                    flags: if version >= Version::V1_3 {
                        flags
                    } else {
                        FlowFlags::default()
                    },
                    importance: since(Version::V1_4, halves[4]),
                    packets: numbers[2],
                    bytes: numbers[3],
                    instructions: instructions.into(),
                }
            },
        )
}

/// Returns instructions without prerequisites, as the decoder checks those of a flow mod.
fn free(instructions: &[Instruction]) -> Vec<Instruction> {
    let is_free = |action: &Action| {
        matches!(
            action,
            Action::Output { .. }
                | Action::OutputReg { .. }
                | Action::Controller { .. }
                | Action::SetQueue(_)
                | Action::Resubmit { .. }
                | Action::Load { .. }
                | Action::Move { .. }
                | Action::SetField { .. }
                | Action::Note(_)
                | Action::Exit
                | Action::Group(_)
        )
    };
    instructions
        .iter()
        .filter_map(|instruction| match instruction {
            Instruction::ApplyActions(actions) => {
                let kept: Vec<_> = actions
                    .iter()
                    .filter(|action| is_free(action))
                    .cloned()
                    .collect();
                (!kept.is_empty()).then_some(Instruction::ApplyActions(kept))
            }
            other => Some(other.clone()),
        })
        .collect()
}

fn flow_mod(form: Form) -> impl Strategy<Value = Message> {
    let command = select(vec![
        FlowModCommand::Add,
        FlowModCommand::Modify,
        FlowModCommand::ModifyStrict,
        FlowModCommand::Delete,
        FlowModCommand::DeleteStrict,
    ]);
    (
        stats(form),
        flags(form.version()),
        command,
        any::<[u64; 2]>(),
        any::<u32>(),
        output(),
        any::<bool>(),
    )
        .prop_map(
            move |(stats, flags, command, cookies, buffer_id, out_port, table_in_command)| {
                let (adds, deletes) = (
                    command == FlowModCommand::Add,
                    matches!(
                        command,
                        FlowModCommand::Delete | FlowModCommand::DeleteStrict
                    ),
                );
                let old = form.version() == Version::V1_0;
                let table_in_command = old && table_in_command;
                let filters = if old {
                    form == Form::Nxm && !adds
                } else {
                    !adds
                };
                let cookie_mask = if filters { cookies[1] } else { 0 };
                let modify_cookie = old && stats.cookie != u64::MAX;
                Message::FlowMod {
                    change: FlowMod {
                        command,
                        table: match (old, table_in_command) {
                            (true, false) if adds => 0,
                            (true, false) => TABLE_ALL,
                            _ => stats.table % 100,
                        },
                        matching: stats.matching,
                        priority: stats.priority,
                        cookie: if old || adds { stats.cookie } else { 0 },
                        cookie_filter: if filters {
                            cookies[0] & if old { cookie_mask } else { u64::MAX }
                        } else {
                            0
                        },
                        cookie_mask,
                        modify_cookie,
                        modify_adds: modify_cookie && !adds && !deletes && cookie_mask == 0,
                        idle_timeout: stats.idle_timeout,
                        hard_timeout: stats.hard_timeout,
                        importance: if adds { stats.importance } else { 0 },
                        flags: FlowFlags {
                            reset_counts: if old { adds } else { flags.reset_counts },
                            ..flags
                        },
                        out_port: if deletes { out_port } else { port::ANY },
                        out_group: if deletes && !old {
                            cookies[0] as u32
                        } else {
                            u32::MAX
                        },
                        buffer_id,
                        instructions: free(&stats.instructions).into(),
                    },
                    form: FlowModForm {
                        format: form.format(),
                        table_in_command,
                    },
                }
            },
        )
}

fn stats_request(form: Form) -> impl Strategy<Value = FlowStatsRequest> {
    (
        matching(form),
        any::<[u64; 2]>(),
        any::<u8>(),
        output(),
        any::<u32>(),
    )
        .prop_map(move |(matching, cookie, table, out_port, out_group)| {
            let mask = if form == Form::Old { 0 } else { cookie[1] };
            let old = form.version() == Version::V1_0;
            FlowStatsRequest {
                table,
                matching,
                cookie: cookie[0] & if old { mask } else { u64::MAX },
                cookie_mask: mask,
                out_port,
                out_group: if old { u32::MAX } else { out_group },
            }
        })
}

fn text(limit: usize) -> impl Strategy<Value = String> {
    vec(
        select((b'a'..=b'z').map(char::from).collect::<Vec<_>>()),
        0..limit,
    )
    .prop_map(String::from_iter)
}

fn description(version: Version) -> impl Strategy<Value = PortDescription> {
    (1_u32..0xff00, any::<[u8; 6]>(), text(16), any::<[u32; 8]>()).prop_map(
        move |(number, hw_addr, name, bits)| {
            let old = version == Version::V1_0;
            let known = if old { 0xf87f } else { 0xffff };
            let features = |bits: u32| PortFeatures::from_bits_truncate(bits & known);
            let (current, supported) = (features(bits[2]), features(bits[4]));
            PortDescription {
                number,
                hw_addr,
                name,
                config: PortConfig::from_bits_truncate(bits[0] & if old { 0x7f } else { 0x65 }),
                state: PortState::from_bits_truncate(bits[1] & if old { 1 } else { 7 }),
                current,
                advertised: features(bits[3]),
                supported,
                peer: features(bits[5]),
                current_speed: if old {
                    current.max_rate_kbps()
                } else {
                    bits[6]
                },
                max_speed: if old {
                    supported.max_rate_kbps()
                } else {
                    bits[7]
                },
            }
        },
    )
}

fn port_stats(version: Version) -> impl Strategy<Value = PortStats> {
    let custom = prop::collection::vec(("[a-z0-9_]{0,40}", any::<u64>()), 0..20);
    let by_size = prop::option::of(prop::collection::vec(any::<u64>(), port::BY_SIZE.len()));
    let late = version >= Version::V1_4;
    (1_u32..0xff00, any::<[u64; 13]>(), by_size, custom).prop_map(
        move |(port, n, by_size, custom)| PortStats {
            port,
            rx_packets: n[0],
            tx_packets: n[1],
            rx_bytes: n[2],
            tx_bytes: n[3],
            rx_dropped: n[4],
            tx_dropped: n[5],
            rx_errors: n[6],
            tx_errors: n[7],
            rx_frame_errors: n[8],
            rx_over_errors: n[9],
            rx_crc_errors: n[10],
            collisions: n[11],
            duration_ns: if version >= Version::V1_3 {
                n[12] % (1 << 60)
            } else {
                port::UNKNOWN
            },
            by_size: by_size
                .filter(|_| late)
                .and_then(|counts| Some(Box::new(counts.try_into().ok()?))),
            custom: if late { custom } else { Vec::new() },
        },
    )
}

fn packet_in(version: Version) -> impl Strategy<Value = Message> {
    let form = Form::Oxm(version);
    (
        select(vec![
            PacketInFormat::Standard,
            PacketInFormat::Nxt,
            PacketInFormat::Nxt2,
        ]),
        matching(form),
        vec(any::<u8>(), 0..100),
        any::<[u32; 2]>(),
        any::<u64>(),
        any::<u8>(),
        1_u32..0xff00,
    )
        .prop_map(move |(format, wide, data, words, cookie, table, in_port)| {
            let mut matching = Match::any();
            matching.set_exact(Field::InPortOxm, in_port.into());
            let pipeline = !matches!(
                (format, version),
                (PacketInFormat::Standard, Version::V1_0 | Version::V1_1)
            );
            if pipeline && !(format == PacketInFormat::Nxt2 && version == Version::V1_5) {
                for field in [Field::Reg3, Field::Metadata, Field::TunId] {
                    set_random(&mut matching, field, wide.get(field).0.to_u128(), None);
                }
            }
            let standard = format == PacketInFormat::Standard;
            let has_cookie = !standard || version >= Version::V1_3;
            PacketIn {
                format,
                buffer_id: words[0],
                total_len: if format == PacketInFormat::Nxt2 {
                    words[1].max(1)
                } else {
                    words[1] % 0x1_0000
                },
                reason: PacketInReason::InvalidTtl,
                table: if standard && version == Version::V1_0 {
                    0
                } else {
                    table
                },
                cookie: if has_cookie { cookie } else { u64::MAX },
                matching,
                data,
                userdata: if format == PacketInFormat::Nxt2 {
                    words[0].to_be_bytes().to_vec()
                } else {
                    vec![]
                },
                continuation: if format == PacketInFormat::Nxt2 {
                    cookie.to_be_bytes().to_vec()
                } else {
                    vec![]
                },
            }
        })
        .prop_map(|packet| {
            if packet.format == PacketInFormat::Nxt2 && packet.table % 2 == 1 {
                Message::Resume(packet)
            } else {
                Message::PacketIn(packet)
            }
        })
}

fn table_features(version: Version) -> impl Strategy<Value = TableFeatures> {
    (
        any::<u8>(),
        text(31),
        any::<[u64; 2]>(),
        any::<[u32; 2]>(),
        vec(any::<u8>(), 0..20),
    )
        .prop_map(move |(table, name, metadata, words, next_tables)| {
            let kinds = |bits: u32, set_fields: &[Field]| ActionKinds {
                actions: (bits & 0x0fff_ffff).into(),
                set_fields: set_fields.to_vec(),
            };
            let rules = RuleKinds {
                // A meter is an action in 1.5.
                instructions: InstructionKinds::from_bits_truncate(words[0]).difference(
                    if version >= Version::V1_5 {
                        InstructionKinds::METER
                    } else {
                        InstructionKinds::empty()
                    },
                ),
                next_tables,
                write: kinds(words[0], &[Field::EthDst]),
                apply: kinds(words[1], &[Field::EthDst, Field::VlanVid, Field::Reg2]),
            };
            TableFeatures {
                table,
                command: 0,
                name,
                metadata_match: metadata[0],
                metadata_write: metadata[1],
                config: words[0],
                max_entries: words[1],
                matchable: vec![
                    (Field::InPortOxm, false),
                    (Field::EthSrc, true),
                    (Field::TcpFlags, true),
                ],
                wildcards: vec![Field::InPortOxm, Field::EthSrc],
                miss: if words[0] % 2 == 0 {
                    rules.clone()
                } else {
                    RuleKinds {
                        next_tables: vec![7],
                        ..rules.clone()
                    }
                },
                rules,
            }
        })
}

/// Generates messages of flow monitors, in the versions that have them in some form.
fn monitors(form: Form) -> impl Strategy<Value = Message> {
    use openflow::monitor::*;
    let version = form.version();
    let request = (matching(form), any::<[u32; 2]>(), any::<[u8; 2]>()).prop_map(
        move |(matching, words, bytes)| {
            let modern = version >= Version::V1_4;
            let known = if modern { 0x7f } else { 0x3f };
            let ports = [1, port::LOCAL, port::ANY];
            MonitorRequest {
                id: words[0],
                command: match bytes[0] % 3 {
                    1 if modern => MonitorCommand::Modify,
                    2 if modern => MonitorCommand::Delete,
                    _ => MonitorCommand::Add,
                },
                flags: MonitorFlags::from_bits_truncate((words[1] as u16 | 2) & known),
                out_port: ports[words[1] as usize % 3],
                out_group: if modern {
                    words[1]
                } else {
                    openflow::group::ANY
                },
                table: bytes[1],
                matching,
            }
        },
    );
    let update = (stats(form), any::<u8>(), any::<u32>()).prop_map(move |(stats, kind, xid)| {
        let modern = version >= Version::V1_4;
        let rule = |event| {
            FlowUpdate::Rule(RuleUpdate {
                event,
                table: stats.table,
                priority: stats.priority,
                cookie: stats.cookie,
                idle_timeout: stats.idle_timeout,
                hard_timeout: stats.hard_timeout,
                matching: stats.matching.clone(),
                // 1.1 and 1.2 have only actions.
                instructions: match version {
                    Version::V1_1 | Version::V1_2 => [].into(),
                    _ => stats.instructions.clone(),
                },
            })
        };
        match kind % 7 {
            0 if modern => rule(UpdateEvent::Initial),
            1 => rule(UpdateEvent::Added),
            2 => rule(UpdateEvent::Removed(FlowRemovedReason::Eviction)),
            3 => rule(UpdateEvent::Modified),
            4 if modern => FlowUpdate::Paused,
            5 if modern => FlowUpdate::Resumed,
            _ => FlowUpdate::Abbreviated(xid),
        }
    });
    let others = [
        Message::FlowMonitorCancel(7),
        openflow::monitor::pause(version, false),
        openflow::monitor::pause(version, true),
    ];
    prop_oneof![
        vec(request, 0..3).prop_map(|requests| Message::MultipartRequest {
            request: MultipartRequest::FlowMonitor(requests),
            more: false
        }),
        vec(update, 0..3).prop_map(|updates| Message::MultipartReply {
            reply: MultipartReply::FlowMonitor(updates),
            more: false
        }),
        // From 1.4 on a multipart request cancels.
        select(others[usize::from(version >= Version::V1_4)..].to_vec()),
    ]
}

/// Generates configuration and status of tables, and forwarded requests, of 1.4.
fn table_state() -> impl Strategy<Value = Message> {
    let config = (any::<[u8; 4]>(), any::<u32>()).prop_map(|(bytes, config)| TableConfig {
        table: bytes[0],
        config,
        eviction: (bytes[3] % 2 == 0).then_some(config),
        vacancy: (bytes[3] % 3 == 0).then_some(Vacancy {
            down: bytes[0],
            up: bytes[1],
            current: bytes[2],
        }),
    });
    (config, any::<u32>()).prop_flat_map(|(config, xid)| {
        let reason = if xid % 2 == 0 {
            TableReason::VacancyDown
        } else {
            TableReason::VacancyUp
        };
        select(vec![
            Message::TableMod(config),
            Message::TableStatus(TableStatus {
                reason,
                table: config,
            }),
            Message::MultipartReply {
                reply: MultipartReply::TableDescription(vec![config, config]),
                more: false,
            },
            Message::RequestForward {
                xid,
                message: Box::new(Message::GroupMod(openflow::group::GroupMod {
                    command: openflow::group::GroupCommand::Delete,
                    kind: openflow::group::GroupKind::All,
                    group: xid,
                    command_bucket: openflow::group::BUCKET_ALL,
                    buckets: vec![],
                    selection: None,
                })),
            },
        ])
    })
}

/// Generates requests and replies that are not about rules.
fn plain(version: Version) -> BoxedStrategy<Message> {
    let reply = |reply| Message::MultipartReply { reply, more: false };
    let request = |request| Message::MultipartRequest {
        request,
        more: false,
    };
    let old = version == Version::V1_0;
    let modern = version >= Version::V1_3;
    let tables = vec(
        (
            any::<u8>(),
            any::<u32>(),
            any::<u64>(),
            any::<u64>(),
            text(31),
        ),
        0..4,
    )
    .prop_map(move |tables| {
        let item =
            |(table, active, lookups, matched, name): (u8, u32, u64, u64, String)| TableStats {
                table,
                name: if version <= Version::V1_2 {
                    name
                } else {
                    String::new()
                },
                max_entries: if version <= Version::V1_2 {
                    active ^ 1
                } else {
                    0
                },
                instructions: if matches!(version, Version::V1_1 | Version::V1_2) {
                    InstructionKinds::from_bits_truncate(active)
                } else {
                    InstructionKinds::empty()
                },
                config: if matches!(version, Version::V1_1 | Version::V1_2) {
                    active >> 7
                } else {
                    0
                },
                active,
                lookups,
                matched,
            };
        reply(MultipartReply::Table(
            tables.into_iter().map(item).collect(),
        ))
    });
    let queue_stats =
        vec((1_u32..0xff00, any::<u32>(), any::<[u64; 4]>()), 0..4).prop_map(move |queues| {
            let item = |(port, queue, n): (u32, u32, [u64; 4])| QueueStats {
                port,
                queue,
                tx_bytes: n[0],
                tx_packets: n[1],
                tx_errors: n[2],
                duration_ns: if modern {
                    n[3] % (1 << 60)
                } else {
                    port::UNKNOWN
                },
            };
            reply(MultipartReply::Queue(
                queues.into_iter().map(item).collect(),
            ))
        });
    let features = (
        any::<u64>(),
        any::<[u32; 3]>(),
        any::<[u8; 2]>(),
        vec(description(version), 0..4),
    )
        .prop_map(move |(datapath_id, words, bytes, ports)| {
            let known = match version {
                Version::V1_0 => 0x8000_00e7,
                Version::V1_1 => 0xef,
                Version::V1_2 | Version::V1_3 => 0x16f,
                _ => 0x76f,
            };
            Message::FeaturesReply(Features {
                datapath_id,
                buffers: words[0],
                tables: bytes[0],
                auxiliary: if modern { bytes[1] } else { 0 },
                capabilities: Capabilities::from_bits_truncate(words[1] & known),
                actions: if old { words[2] } else { 0 },
                ports: if version <= Version::V1_2 {
                    ports
                } else {
                    vec![]
                },
            })
        });
    let config = (
        select(vec![
            Fragments::Normal,
            Fragments::Drop,
            Fragments::Reassemble,
            Fragments::NxMatch,
        ]),
        any::<bool>(),
        any::<u16>(),
    )
        .prop_map(move |(fragments, ttl, miss_send_len)| {
            let invalid_ttl_to_controller =
                ttl && (Version::V1_1..=Version::V1_2).contains(&version);
            Message::SetConfig(SwitchConfig {
                fragments,
                invalid_ttl_to_controller,
                miss_send_len,
            })
        });
    let port_mod = (description(version), any::<u32>()).prop_map(move |(port, bits)| {
        let known = if old { 0x7f } else { 0x65 };
        Message::PortMod(PortMod {
            port: port.number,
            hw_addr: port.hw_addr,
            config: port.config,
            mask: PortConfig::from_bits_truncate(bits & known),
            advertise: port.advertised,
        })
    });
    let port_status = (
        description(version),
        select(vec![
            PortReason::Add,
            PortReason::Delete,
            PortReason::Modify,
        ]),
    )
        .prop_map(|(port, reason)| Message::PortStatus(PortStatus { reason, port }));
    let packet_out = (
        output(),
        any::<u32>(),
        actions(version),
        vec(any::<u8>(), 0..80),
    )
        .prop_map(move |(number, buffer_id, actions, data)| {
            let in_port = if number < port::MAX || number == port::LOCAL {
                number
            } else {
                port::CONTROLLER
            };
            let mut matching = Match::any();
            matching.set_exact(Field::InPortOxm, in_port.into());
            Message::PacketOut(PacketOut {
                buffer_id,
                in_port,
                matching,
                actions,
                data,
            })
        });
    let role = (
        select(vec![Role::Equal, Role::Primary, Role::Secondary]),
        any::<u64>(),
        any::<bool>(),
    )
        .prop_map(move |(role, generation, nicira)| {
            let nicira = nicira || version <= Version::V1_1;
            Message::RoleRequest(RoleMessage {
                role,
                generation: (!nicira).then_some(generation),
                nicira,
            })
        });
    let asynchronous = any::<[u32; 6]>().prop_map(move |masks| {
        let known = [0x3f, 0x3f, 7, 7, 0x3f, 0x3f];
        Message::SetAsync(
            (0..6)
                .map(|index| AsyncChange {
                    kind: AsyncKind::ALL[index / 2],
                    secondary: index % 2 == 1,
                    mask: masks[index] & known[index],
                })
                .collect(),
        )
    });
    let error =
        (select(Error::ALL.to_vec()), vec(any::<u8>(), 0..64)).prop_map(move |(error, data)| {
            // Errors that share a number in this version are decoded as the first of them; unknown
            // numbers are kept.
            let kind = match Error::from_wire(version, error.wire(version)) {
                Some(error) => ErrorKind::Known(error),
                None => ErrorKind::Other(WireError::Standard { kind: 77, code: 7 }),
            };
            Message::Error(ErrorMessage { kind, data })
        });
    let queues = vec(
        (any::<u32>(), any::<Option<u16>>(), any::<Option<u16>>()),
        0..3,
    )
    .prop_map(move |queues| {
        let item =
            |(queue, min_rate, max_rate): (u32, Option<u16>, Option<u16>)| QueueDescription {
                port: 3,
                queue,
                min_rate,
                max_rate: max_rate.filter(|_| version >= Version::V1_2),
            };
        let queues: Vec<_> = queues.into_iter().map(item).collect();
        if version >= Version::V1_4 {
            reply(MultipartReply::QueueDescription(queues))
        } else {
            Message::QueueGetConfigReply { port: 3, queues }
        }
    });
    let fixed = select(vec![
        Message::FeaturesRequest,
        Message::GetConfigRequest,
        Message::BarrierRequest,
        Message::BarrierReply,
        Message::FlowModTableId(true),
        Message::SetPacketInFormat(PacketInFormat::Nxt2),
        Message::SetControllerId(9),
        Message::FlowAge,
        request(MultipartRequest::Description),
        request(MultipartRequest::Table),
        request(MultipartRequest::Port(5)),
        request(MultipartRequest::Group(openflow::group::ALL)),
        request(MultipartRequest::GroupDescription(openflow::group::ALL)),
        request(MultipartRequest::GroupFeatures),
        reply(MultipartReply::GroupFeatures(Default::default())),
        request(MultipartRequest::Port(port::ANY)),
        request(MultipartRequest::Queue(QueueRequest {
            port: port::ANY,
            queue: u32::MAX,
        })),
        request(MultipartRequest::PortDescription(port::ANY)),
        Message::Hello(Hello { versions: 0b1_0010 }),
        Message::Hello(Hello {
            versions: 0b111_1110,
        }),
        if old {
            Message::SetFlowFormat(FlowFormat::Nicira)
        } else {
            Message::BarrierReply
        },
    ]);
    let new = if modern {
        let fixed = select(vec![
            request(MultipartRequest::Group(openflow::group::ALL)),
            request(MultipartRequest::GroupDescription(openflow::group::ALL)),
            request(MultipartRequest::GroupFeatures),
            request(MultipartRequest::Meter(3)),
            request(MultipartRequest::MeterConfig(u32::MAX)),
            request(MultipartRequest::MeterFeatures),
            request(MultipartRequest::TableFeatures(vec![])),
            reply(MultipartReply::Group(vec![])),
            reply(MultipartReply::GroupDescription(vec![])),
            reply(MultipartReply::GroupFeatures(Default::default())),
            reply(MultipartReply::Meter(vec![])),
            reply(MultipartReply::MeterConfig(vec![])),
            reply(MultipartReply::MeterFeatures(Default::default())),
            Message::TableMod(TableConfig {
                table: 4,
                config: 3,
                ..TableConfig::default()
            }),
            Message::GetAsyncRequest,
            Message::BundleControl(BundleControl {
                bundle: 4,
                command: BundleCommand::CommitRequest,
                flags: 3,
            }),
            Message::BundleAdd(BundleAdd {
                bundle: 4,
                flags: 1,
                xid: 8,
                message: Box::new(Message::PortMod(PortMod {
                    port: 3,
                    hw_addr: [2; 6],
                    config: PortConfig::DOWN,
                    mask: PortConfig::DOWN,
                    advertise: PortFeatures::empty(),
                })),
            }),
        ]);
        prop_oneof![1 => fixed, 1 => vec(table_features(version), 0..3).prop_map(move |tables| reply(MultipartReply::TableFeatures(tables)))].boxed()
    } else {
        Just(Message::BarrierRequest).boxed()
    };
    prop_oneof![
        tables,
        queue_stats,
        features,
        config,
        port_mod,
        port_status,
        packet_out,
        role,
        asynchronous,
        error,
        queues,
        fixed,
        new,
        packet_in(version),
        vec(any::<u8>(), 0..50).prop_map(Message::EchoRequest),
        vec(port_stats(version), 0..4).prop_map(move |ports| reply(MultipartReply::Port(ports))),
        vec(description(version), 0..4)
            .prop_map(move |ports| reply(MultipartReply::PortDescription(ports))),
        any::<[u64; 2]>().prop_map(move |n| reply(MultipartReply::Aggregate {
            sums: Aggregate {
                packets: n[0],
                bytes: n[1],
                flows: 9
            },
            format: FlowFormat::Standard
        })),
        (text(40), text(31)).prop_map(move |(datapath, serial)| reply(
            MultipartReply::Description(Description {
                datapath,
                serial,
                ..Description::default()
            })
        )),
    ]
    .boxed()
}

/// Checks that [`openflow::decode_added`] gives what [`openflow::decode`] gives for a bundle-add,
/// and None for others.
fn added_agrees(bytes: &[u8], options: &DecodeOptions) -> Result<(), TestCaseError> {
    let boxed = match decode(bytes, options) {
        Ok((header, Message::BundleAdd(add))) => Some(Added {
            outer_xid: header.xid,
            bundle: add.bundle,
            flags: add.flags,
            xid: add.xid,
            message: *add.message,
        }),
        _ => None,
    };
    // Also behind other messages, and behind itself.
    thread_local!(static REPEATS: std::cell::RefCell<Repeats> = std::cell::RefCell::default());
    REPEATS.with_borrow_mut(|repeats| {
        for _ in 0..2 {
            prop_assert_eq!(decode_added(bytes, options, repeats), boxed.clone());
        }
        Ok(())
    })
}

fn same(version: Version, message: &Message) -> Result<(), TestCaseError> {
    let bytes = encode(version, 77, message);
    prop_assert!(
        !bytes.is_empty(),
        "{:?} has no form for {:?}",
        version,
        message
    );
    let table_in_command =
        matches!(message, Message::FlowMod { form, .. } if form.table_in_command);
    let (header, decoded) = decode(
        &bytes,
        &DecodeOptions {
            version: Some(version),
            table_in_command,
        },
    )
    .map_err(|error| TestCaseError::fail(format!("{error} for {message:?}\n{bytes:02x?}")))?;
    prop_assert_eq!(header.xid, 77);
    let mut wanted = message.clone();
    if let Message::FlowMod { change, form } = &mut wanted {
        // In 1.0, the priority of a match without wildcards is ignored (1.0, section 3.4).
        let wildcards = &bytes[8..12];
        if version == Version::V1_0 && form.format == FlowFormat::Standard && wildcards == [0; 4] {
            change.priority = u16::MAX;
        }
    }
    prop_assert_eq!(&decoded, &wanted);
    added_agrees(&bytes, &DecodeOptions::default())?;
    let add = Message::BundleAdd(BundleAdd {
        bundle: 4,
        flags: 1,
        xid: 9,
        message: Box::new(message.clone()),
    });
    added_agrees(&encode(version, 77, &add), &DecodeOptions::default())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn flow_mods((form, message) in form().prop_flat_map(|form| (Just(form), flow_mod(form)))) {
        same(form.version(), &message)?;
    }

    #[test]
    fn flow_statistics((form, flows) in form().prop_flat_map(|form| (Just(form), vec(stats(form), 0..4)))) {
        let reply = MultipartReply::Flow { flows, format: form.format() };
        same(form.version(), &Message::MultipartReply { reply, more: false })?;
    }

    #[test]
    fn statistics_requests((form, request, more) in form().prop_flat_map(|form| (Just(form), stats_request(form), any::<bool>()))) {
        let request = MultipartRequest::Flow { request, format: form.format() };
        same(form.version(), &Message::MultipartRequest { request, more })?;
    }

    #[test]
    fn flows_removed((form, stats) in form().prop_flat_map(|form| (Just(form), stats(form)))) {
        let version = form.version();
        let old = form == Form::Old;
        let removed = FlowRemoved {
            reason: FlowRemovedReason::HardTimeout,
            stats: FlowStats {
                table: if old { 0 } else { stats.table },
                hard_timeout: if version == Version::V1_0 { 0 } else { stats.hard_timeout },
                idle_age: 0,
                hard_age: 0,
                flags: FlowFlags::default(),
                importance: 0,
                instructions: [].into(),
                ..stats
            },
        };
        same(version, &Message::FlowRemoved { removed, format: form.format() })?;
    }

    #[test]
    fn flow_monitors((version, message) in form().prop_flat_map(|form| (Just(form.version()), monitors(form)))) {
        same(version, &message)?;
    }

    #[test]
    fn tables((version, message) in (select(vec![Version::V1_4, Version::V1_5]), table_state())) {
        same(version, &message)?;
    }

    #[test]
    fn other_messages((version, message) in select(vec![Version::V1_0, Version::V1_2, Version::V1_3, Version::V1_4, Version::V1_5])
        .prop_flat_map(|version| (Just(version), plain(version))))
    {
        same(version, &message)?;
    }

    /// A reply longer than a message is split, and its parts together are the whole.
    #[test]
    fn long_replies(count in 1000_usize..4000, version in select(vec![Version::V1_0, Version::V1_3])) {
        let ports: Vec<_> = (0..count).map(|n| PortStats { port: 1 + n as u32, rx_bytes: n as u64, duration_ns: if version == Version::V1_0 { port::UNKNOWN } else { 5 }, ..PortStats::default() }).collect();
        let bytes = encode(version, 1, &Message::MultipartReply { reply: MultipartReply::Port(ports.clone()), more: false });
        let (mut rest, mut found, mut last) = (&bytes[..], Vec::new(), true);
        while !rest.is_empty() {
            let (part, tail) = rest.split_at(openflow::frame_length(rest).unwrap());
            match decode(part, &DecodeOptions::default()).unwrap().1 {
                Message::MultipartReply { reply: MultipartReply::Port(ports), more } => {
                    prop_assert!(last);
                    last = more;
                    found.extend(ports);
                }
                other => prop_assert!(false, "{:?}", other),
            }
            rest = tail;
        }
        prop_assert!(!last);
        prop_assert_eq!(found, ports);
    }

    /// Bytes similar to messages: a valid header with an arbitrary body, or a real message with
    /// some bytes changed.
    #[test]
    fn no_bytes_do_harm(
        version in 0_u8..8,
        kind in 0_u8..40,
        mut body in vec(prop_oneof![3 => Just(0_u8), 1 => select(vec![1, 2, 4, 8, 16, 24, 0x23, 0x20, 0xff]), 1 => any::<u8>()], 0..300),
        real in (form().prop_flat_map(flow_mod), 0..2_u8),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        table_in_command: bool,
    ) {
        if real.1 == 1 && (1..=6).contains(&version) {
            body = encode(Version::from_wire(version).unwrap(), 0, &real.0).split_off(8);
        }
        for (index, byte) in changes {
            if !body.is_empty() {
                let at = index.index(body.len());
                body[at] = byte;
            }
        }
        let kind = if real.1 == 1 { 14 } else { kind };
        let length = (body.len() + 8) as u16;
        let mut bytes = vec![version, kind, (length >> 8) as u8, length as u8, 0, 0, 0, 1];
        bytes.extend(body);
        added_agrees(&bytes, &DecodeOptions { version: None, table_in_command })?;
        let before = ALLOCATED.with(Cell::get);
        let decoded = decode(&bytes, &DecodeOptions { version: None, table_in_command });
        let allocated = ALLOCATED.with(Cell::get) - before;
        // The largest object per byte of input is an action: 8 bytes on the wire, some 80 in the
        // model, and a vector that grew.
        prop_assert!(allocated < 64 * bytes.len() + 4096, "{} bytes for {}", allocated, bytes.len());
        if let (Ok((_, message)), Some(version)) = (decoded, Version::from_wire(version)) {
            // What was decoded can be encoded.
            let _ = encode(version, 1, &message);
        }
    }
}
