//! Exchanges messages with a real client: `ovs-ofctl ofp-print` prints messages that we encode, and
//! we decode what `ovs-ofctl` encodes. Skipped with a message if `ovs-ofctl` is not installed.

use crate::common;
use openflow::action::{Action, Instruction, Subfield};
use openflow::error::Error;
use openflow::flow::{FlowFlags, FlowMod, FlowRemoved, FlowRemovedReason, FlowStats};
use openflow::message::{
    FlowFormat, FlowModForm, Message, MultipartReply, NO_BUFFER, PacketIn, PacketInFormat,
    PacketInReason,
};
use openflow::port::{PortDescription, PortFeatures, PortStats};
use openflow::stats::{Description, TableStats};
use openflow::{Version, encode, encode_error, port};
use packet::{Field, Match, Value};

/// Returns what `ovs-ofctl ofp-print` prints for messages; None if it is not installed.
fn print(bytes: &[u8]) -> Option<String> {
    let output = common::ofp_print(bytes)?;
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("decode error"), "{text}");
    Some(text)
}

/// Asserts that the client's text contains `expected`.
fn prints(version: Version, message: &Message, expected: &str) {
    let bytes = encode(version, 1, message);
    assert!(!bytes.is_empty(), "{version:?} has no form for {message:?}");
    if let Some(text) = print(&bytes) {
        assert!(
            text.contains(expected),
            "{version:?}: expected {expected:?} in\n{text}"
        );
    }
}

fn tcp_match() -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::InPortOxm, 3);
    matching.set_exact(Field::EthType, 0x0800);
    matching.set_exact(Field::IpProto, 6);
    matching.set(Field::Ipv4Src, &[10, 1, 0, 0], &[0xff, 0xff, 0, 0]);
    matching.set_exact(Field::TcpDst, 80);
    matching.set_bytes(packet::key::at::VLAN_TCI, &[0x10, 7], &[0x1f, 0xff]);
    matching
}

fn actions() -> Vec<Action> {
    vec![
        Action::Load {
            dst: Subfield {
                field: Field::Reg1,
                start: 0,
                bits: 32,
            },
            value: 5,
        },
        Action::Output {
            port: 2,
            max_len: 0,
        },
        Action::Resubmit {
            in_port: None,
            table: Some(4),
            with_ct_orig: false,
        },
        Action::Output {
            port: port::NORMAL,
            max_len: 0,
        },
        Action::Output {
            port: port::CONTROLLER,
            max_len: 128,
        },
    ]
}

fn stats() -> FlowStats {
    FlowStats {
        table: 2,
        matching: tcp_match(),
        priority: 77,
        cookie: 0xabc,
        duration_ns: 5_250_000_000,
        idle_timeout: 60,
        hard_timeout: 600,
        idle_age: 3,
        hard_age: 5,
        flags: FlowFlags {
            send_flow_rem: true,
            ..FlowFlags::default()
        },
        importance: 0,
        packets: 12,
        bytes: 1234,
        instructions: vec![Instruction::ApplyActions(actions())].into(),
    }
}

const ACTIONS: &str = "load:0x5->NXM_NX_REG1[],output:2,resubmit(,4),NORMAL,CONTROLLER:128";

#[test]
fn flow_statistics() {
    let reply = |format| Message::MultipartReply {
        reply: MultipartReply::Flow {
            flows: vec![stats()],
            format,
        },
        more: false,
    };
    let rule = "priority=77,tcp,in_port=3,dl_vlan=7,nw_src=10.1.0.0/16,tp_dst=80";
    let counters = "cookie=0xabc, duration=5.250s, table=2, n_packets=12, n_bytes=1234, idle_timeout=60, hard_timeout=600, ";
    prints(
        Version::V1_0,
        &reply(FlowFormat::Nicira),
        &format!("{counters}idle_age=3, {rule} actions={ACTIONS}"),
    );
    prints(
        Version::V1_0,
        &reply(FlowFormat::Standard),
        &format!("{counters}{rule} actions={ACTIONS}"),
    );
    for version in [Version::V1_1, Version::V1_2] {
        prints(
            version,
            &reply(FlowFormat::Standard),
            &format!("{counters}{rule} actions={ACTIONS}"),
        );
    }
    for version in [Version::V1_3, Version::V1_4] {
        prints(
            version,
            &reply(FlowFormat::Standard),
            &format!("{counters}send_flow_rem {rule} actions={ACTIONS}"),
        );
    }
    let set = ACTIONS.replace("load:0x5->NXM_NX_REG1[]", "set_field:0x5->reg1");
    prints(
        Version::V1_5,
        &reply(FlowFormat::Standard),
        &format!("send_flow_rem idle_age=3, {rule} actions={set}"),
    );
}

#[test]
fn all_instructions() {
    let mut rule = stats();
    rule.instructions = vec![
        Instruction::Meter(9),
        Instruction::ApplyActions(vec![Action::PopVlan]),
        Instruction::ClearActions,
        Instruction::WriteActions(vec![Action::Group(3)]),
        Instruction::WriteMetadata {
            value: 0x12,
            mask: 0xff,
        },
        Instruction::GotoTable(5),
    ]
    .into();
    let message = Message::MultipartReply {
        reply: MultipartReply::Flow {
            flows: vec![rule],
            format: FlowFormat::Standard,
        },
        more: false,
    };
    prints(
        Version::V1_3,
        &message,
        "actions=meter:9,pop_vlan,clear_actions,write_actions(group:3),write_metadata:0x12/0xff,goto_table:5",
    );
}

/// Every action in every version that prints it.
#[test]
fn every_action() {
    let whole = |field: Field| Subfield {
        field,
        start: 0,
        bits: field.def().action_bits as u16,
    };
    let half = |field: Field| Subfield {
        field,
        start: 0,
        bits: 16,
    };
    let eth_src = Field::EthSrc.def();
    let cases: Vec<(Action, &str, &str)> = vec![
        // Action, its text in 1.0, its text in 1.3.
        (
            Action::OutputReg {
                source: whole(Field::Reg2),
                max_len: 99,
            },
            "output:NXM_NX_REG2[]",
            "output:NXM_NX_REG2[]",
        ),
        (
            Action::OutputTrunc {
                port: 2,
                max_len: 64,
            },
            "output(port=2,max_len=64)",
            "output(port=2,max_len=64)",
        ),
        (
            Action::Controller {
                max_len: 50,
                controller_id: 7,
                reason: 1,
                userdata: vec![],
                pause: false,
                meter_id: None,
            },
            "controller(max_len=50,id=7)",
            "controller(max_len=50,id=7)",
        ),
        (
            Action::Controller {
                max_len: 0xffff,
                controller_id: 0,
                reason: 2,
                userdata: vec![1, 2, 3],
                pause: true,
                meter_id: Some(4),
            },
            "controller(reason=invalid_ttl,userdata=01.02.03,pause,meter_id=4)",
            "controller(reason=invalid_ttl,userdata=01.02.03,pause,meter_id=4)",
        ),
        (
            Action::Enqueue { port: 1, queue: 5 },
            "enqueue:1:5",
            "set_queue:5,output:1,pop_queue",
        ),
        (Action::SetQueue(6), "set_queue:6", "set_queue:6"),
        (Action::PopQueue, "pop_queue", "pop_queue"),
        (
            Action::SetField {
                field: Field::EthSrc,
                value: Value::from_bytes(&[2, 0, 0, 0, 0, 1]),
                mask: eth_src.place(),
            },
            "mod_dl_src:02:00:00:00:00:01",
            "set_field:02:00:00:00:00:01->eth_src",
        ),
        (
            Action::SetField {
                field: Field::Metadata,
                value: Value::from_u128(0x10, 8),
                mask: Value::from_u128(0xf0, 8),
            },
            "load:0x1->OXM_OF_METADATA[4..7]",
            "load:0x1->OXM_OF_METADATA[4..7]",
        ),
        (
            Action::Load {
                dst: half(Field::Reg3),
                value: 0x77,
            },
            "load:0x77->NXM_NX_REG3[0..15]",
            "load:0x77->NXM_NX_REG3[0..15]",
        ),
        (
            Action::Move {
                src: whole(Field::Reg0),
                dst: whole(Field::Reg4),
            },
            "move:NXM_NX_REG0[]->NXM_NX_REG4[]",
            "move:NXM_NX_REG0[]->NXM_NX_REG4[]",
        ),
        (
            Action::SetVlanVid { vid: 9, push: true },
            "mod_vlan_vid:9",
            "set_field:4105->vlan_vid",
        ),
        (
            Action::SetVlanPcp { pcp: 3, push: true },
            "mod_vlan_pcp:3",
            "set_field:3->vlan_pcp",
        ),
        (Action::PopVlan, "strip_vlan", "pop_vlan"),
        (Action::PushVlan(0x8100), "", "push_vlan:0x8100"),
        (
            Action::SetEthDst([2, 0, 0, 0, 0, 2]),
            "mod_dl_dst:02:00:00:00:00:02",
            "set_field:02:00:00:00:00:02->eth_dst",
        ),
        (
            Action::SetIpv4Src(0x0a00_0001),
            "mod_nw_src:10.0.0.1",
            "set_field:10.0.0.1->ip_src",
        ),
        (
            Action::SetIpTos(0x20),
            "mod_nw_tos:32",
            "set_field:8->ip_dscp",
        ),
        (
            Action::SetIpEcn(2),
            "load:0x2->NXM_NX_IP_ECN[]",
            "set_field:2->nw_ecn",
        ),
        (
            Action::SetIpTtl(9),
            "load:0x9->NXM_NX_IP_TTL[]",
            "mod_nw_ttl:9",
        ),
        (
            Action::SetL4Src(80),
            "mod_tp_src:80",
            "set_field:80->tcp_src",
        ),
        (Action::DecTtl(vec![0]), "dec_ttl", "dec_ttl"),
        (Action::DecTtl(vec![1, 2]), "dec_ttl(1,2)", "dec_ttl(1,2)"),
        (
            Action::PushMpls(0x8847),
            "push_mpls:0x8847",
            "push_mpls:0x8847",
        ),
        (
            Action::PopMpls(0x0800),
            "pop_mpls:0x0800",
            "pop_mpls:0x0800",
        ),
        (Action::SetMplsTtl(3), "set_mpls_ttl(3)", "set_mpls_ttl(3)"),
        (Action::DecMplsTtl, "dec_mpls_ttl", "dec_mpls_ttl"),
        (
            Action::SetMplsLabel(77),
            "set_mpls_label(77)",
            "set_field:77->mpls_label",
        ),
        (
            Action::SetMplsTc(5),
            "set_mpls_tc(5)",
            "set_field:5->mpls_tc",
        ),
        (Action::Group(8), "group:8", "group:8"),
        (
            Action::Resubmit {
                in_port: Some(6),
                table: None,
                with_ct_orig: false,
            },
            "resubmit:6",
            "resubmit:6",
        ),
        (
            Action::Resubmit {
                in_port: Some(6),
                table: Some(3),
                with_ct_orig: true,
            },
            "resubmit(6,3,ct)",
            "resubmit(6,3,ct)",
        ),
        (
            Action::SetTunnel {
                id: 0x55,
                wide: false,
            },
            "set_tunnel:0x55",
            "set_field:0x55->tun_id",
        ),
        (
            Action::SetTunnel {
                id: 0x1_0000_0000,
                wide: true,
            },
            "set_tunnel64:0x100000000",
            "set_field:0x100000000->tun_id",
        ),
        (
            Action::Note(vec![1, 2, 0, 0, 0, 0]),
            "note:01.02.00.00.00.00",
            "note:01.02.00.00.00.00",
        ),
        (Action::Exit, "exit", "exit"),
        (
            Action::StackPush(half(Field::Reg5)),
            "push:NXM_NX_REG5[0..15]",
            "push:NXM_NX_REG5[0..15]",
        ),
        (
            Action::StackPop(half(Field::Reg5)),
            "pop:NXM_NX_REG5[0..15]",
            "pop:NXM_NX_REG5[0..15]",
        ),
        (
            Action::Clone(vec![
                Action::PopVlan,
                Action::Output {
                    port: 1,
                    max_len: 0,
                },
            ]),
            "clone(strip_vlan,output:1)",
            "clone(pop_vlan,output:1)",
        ),
        (
            Action::Conjunction {
                id: 5,
                clause: 0,
                clauses: 2,
            },
            "conjunction(5,1/2)",
            "conjunction(5,1/2)",
        ),
    ];
    for (action, in_10, in_13) in cases {
        let mut rule = stats();
        rule.instructions = vec![Instruction::ApplyActions(vec![action.clone()])].into();
        let message = |format| Message::MultipartReply {
            reply: MultipartReply::Flow {
                flows: vec![rule.clone()],
                format,
            },
            more: false,
        };
        if !in_10.is_empty() {
            prints(
                Version::V1_0,
                &message(FlowFormat::Nicira),
                &format!("actions={in_10}\n"),
            );
        }
        prints(
            Version::V1_3,
            &message(FlowFormat::Standard),
            &format!("actions={in_13}\n"),
        );
    }
}

#[test]
fn flow_mods() {
    let change = FlowMod {
        table: 2,
        cookie: 0xabc,
        modify_cookie: true,
        idle_timeout: 60,
        flags: FlowFlags {
            check_overlap: true,
            ..FlowFlags::default()
        },
        ..FlowMod::add(tcp_match(), 77, vec![Instruction::ApplyActions(actions())])
    };
    let rule = "priority=77,tcp,in_port=3,dl_vlan=7,nw_src=10.1.0.0/16,tp_dst=80 cookie:0xabc idle:60 check_overlap";
    for version in [Version::V1_3, Version::V1_4, Version::V1_1, Version::V1_2] {
        let message = Message::FlowMod {
            change: change.clone(),
            form: FlowModForm::default(),
        };
        prints(
            version,
            &message,
            &format!("ADD table:2 {rule} actions={ACTIONS}"),
        );
    }
    let message = Message::FlowMod {
        change,
        form: FlowModForm {
            format: FlowFormat::Nicira,
            table_in_command: true,
        },
    };
    prints(
        Version::V1_0,
        &message,
        &format!("{rule} actions={ACTIONS}"),
    );
}

#[test]
fn packet_ins() {
    let mut matching = Match::any();
    matching.set_exact(Field::InPortOxm, 3);
    matching.set_exact(Field::Reg2, 0x99);
    let mut data = vec![0; 60];
    data[12..14].copy_from_slice(&[0x88, 0xb5]);
    let packet = |format| {
        Message::PacketIn(PacketIn {
            format,
            buffer_id: NO_BUFFER,
            total_len: 60,
            reason: PacketInReason::Action,
            table: 4,
            cookie: 0x77,
            matching: matching.clone(),
            data: data.clone(),
            userdata: if format == PacketInFormat::Nxt2 {
                vec![1, 2]
            } else {
                vec![]
            },
            continuation: Vec::new(),
        })
    };
    prints(
        Version::V1_0,
        &packet(PacketInFormat::Standard),
        "PACKET_IN (xid=0x1): total_len=60 in_port=3 (via action) data_len=60 (unbuffered)",
    );
    prints(
        Version::V1_1,
        &packet(PacketInFormat::Standard),
        "table_id=4 total_len=60 in_port=3 (via action)",
    );
    for version in [Version::V1_3, Version::V1_4, Version::V1_5] {
        prints(
            version,
            &packet(PacketInFormat::Standard),
            "table_id=4 cookie=0x77 total_len=60 reg2=0x99,in_port=3 (via action) data_len=60 (unbuffered)",
        );
    }
    for version in [Version::V1_0, Version::V1_3] {
        prints(
            version,
            &packet(PacketInFormat::Nxt),
            "table_id=4 cookie=0x77 total_len=60 reg2=0x99,in_port=3 (via action) data_len=60 (unbuffered)",
        );
        prints(
            version,
            &packet(PacketInFormat::Nxt2),
            "table_id=4 cookie=0x77 total_len=60 reg2=0x99,in_port=3 (via action) data_len=60 (unbuffered)",
        );
        prints(version, &packet(PacketInFormat::Nxt2), "userdata=01.02");
    }
}

#[test]
fn flow_removed() {
    let message = |format| Message::FlowRemoved {
        removed: FlowRemoved {
            reason: FlowRemovedReason::IdleTimeout,
            stats: stats(),
        },
        format,
    };
    let rule = "priority=77,tcp,in_port=3,dl_vlan=7,nw_src=10.1.0.0/16,tp_dst=80 reason=idle";
    let counters = "duration5.250s idle60";
    prints(
        Version::V1_0,
        &message(FlowFormat::Standard),
        &format!("{rule} cookie:0xabc {counters} pkts12 bytes1234"),
    );
    prints(
        Version::V1_0,
        &message(FlowFormat::Nicira),
        &format!("{rule} table_id=2 cookie:0xabc {counters} pkts12 bytes1234"),
    );
    for version in [Version::V1_2, Version::V1_3, Version::V1_4] {
        prints(
            version,
            &message(FlowFormat::Standard),
            &format!("{rule} table_id=2 cookie:0xabc {counters} hard600 pkts12 bytes1234"),
        );
    }
}

#[test]
fn ports_tables_and_description() {
    let description = PortDescription {
        number: 5,
        hw_addr: [2, 0, 0, 0, 0, 5],
        name: "veth5".into(),
        current: PortFeatures::FULL_10G | PortFeatures::COPPER,
        current_speed: 10_000_000,
        ..PortDescription::default()
    };
    let counters = PortStats {
        port: 5,
        rx_packets: 1,
        tx_packets: 2,
        rx_bytes: 3,
        tx_bytes: 4,
        collisions: port::UNKNOWN,
        duration_ns: 7_000_000_000,
        by_size: Some(Box::new(std::array::from_fn(|place| 100 + place as u64))),
        custom: vec![("ovs_tx_qos_drops".into(), 5), ("rx_q0_packets".into(), 6)],
        ..PortStats::default()
    };
    let reply = |reply| Message::MultipartReply { reply, more: false };
    for version in Version::ALL {
        prints(
            version,
            &reply(MultipartReply::PortDescription(vec![description.clone()])),
            " 5(veth5): addr:02:00:00:00:00:05\n     config:     0\n     state:      0\n     current:    10GB-FD COPPER\n     speed: 10000 Mbps now, 0 Mbps max",
        );
        prints(
            version,
            &reply(MultipartReply::Port(vec![counters.clone()])),
            "port  5: rx pkts=1, bytes=3, drop=0, errs=0, frame=0, over=0, crc=0\n           tx pkts=2, bytes=4, drop=0, errs=0, coll=?",
        );
        if version >= Version::V1_4 {
            prints(
                version,
                &reply(MultipartReply::Port(vec![counters.clone()])),
                "rx rfc2819 1_to_64_packets=100, 65_to_127_packets=101, 128_to_255_packets=102, 256_to_511_packets=103, 512_to_1023_packets=104, 1024_to_1522_packets=105, 1523_to_max_packets=106, broadcast_packets=115, undersized_errors=117, oversize_errors=118, rx_fragmented_errors=119, rx_jabber_errors=120, \n           tx rfc2819 1_to_64_packets=107, 65_to_127_packets=108, 128_to_255_packets=109, 256_to_511_packets=110, 512_to_1023_packets=111, 1024_to_1522_packets=112, 1523_to_max_packets=113, multicast_packets=114, broadcast_packets=116, \n           CUSTOM Statistics\n                      ovs_tx_qos_drops=5, rx_q0_packets=6,",
            );
        }
        prints(
            version,
            &reply(MultipartReply::Table(vec![TableStats {
                table: 1,
                name: "classifier".into(),
                max_entries: 1_000_000,
                active: 11,
                lookups: 12,
                matched: 13,
                ..TableStats::default()
            }])),
            "active=11, lookup=12, matched=13",
        );
        prints(
            version,
            &reply(MultipartReply::Description(Description {
                manufacturer: "Sluice".into(),
                serial: "None".into(),
                ..Description::default()
            })),
            "Manufacturer: Sluice",
        );
    }
}

#[test]
fn errors() {
    for version in Version::ALL {
        let request = encode(version, 9, &Message::BarrierRequest);
        for error in Error::ALL {
            let name = if error.number(version).is_some() {
                error.name()
            } else {
                Error::Unencodable.name()
            };
            // Errors that share a number in a version are decoded as the first of them.
            let name = Error::from_wire(version, error.wire(version)).map_or(name, Error::name);
            if let Some(text) = print(&encode_error(version, &request, *error)) {
                assert!(text.contains(name), "{version:?} {name}: {text}");
            }
        }
    }
}

/// Groups, in the layouts of 1.0 (Nicira's), 1.1 to 1.4 and 1.5.
#[test]
fn groups() {
    use openflow::group::{
        Bucket, GroupCommand, GroupDescription, GroupKind, GroupMod, GroupStats,
    };
    let bucket = |id, weight, port| Bucket {
        id,
        weight,
        watch_port: port::ANY,
        watch_group: openflow::group::ANY,
        actions: vec![Action::Output { port, max_len: 0 }],
    };
    let buckets = vec![bucket(0, 5, 1), bucket(1, 6, 2)];
    let reply = |reply| Message::MultipartReply { reply, more: false };
    for version in Version::ALL {
        let description = GroupDescription {
            kind: GroupKind::Select,
            group: 9,
            buckets: buckets.clone(),
            selection: None,
        };
        let ids = matches!(version, Version::V1_0 | Version::V1_5);
        let text = if ids {
            "group_id=9,type=select,bucket=bucket_id:0,weight:5,actions=output:1,bucket=bucket_id:1,weight:6,actions=output:2"
        } else {
            "group_id=9,type=select,bucket=weight:5,actions=output:1,bucket=weight:6,actions=output:2"
        };
        prints(
            version,
            &reply(MultipartReply::GroupDescription(vec![description])),
            text,
        );
        let change = GroupMod {
            command: GroupCommand::Add,
            kind: GroupKind::Select,
            group: 9,
            command_bucket: u32::MAX,
            buckets: buckets.clone(),
            selection: None,
        };
        prints(version, &Message::GroupMod(change), &format!("ADD {text}"));
        let counters = GroupStats {
            group: 9,
            references: 2,
            packets: 30,
            bytes: 400,
            duration_ns: 5_000_000_000,
            buckets: vec![(10, 100), (20, 300)],
        };
        prints(
            version,
            &reply(MultipartReply::Group(vec![counters])),
            "ref_count=2,packet_count=30,byte_count=400,bucket0:packet_count=10,byte_count=100,bucket1:packet_count=20,byte_count=300",
        );
    }
}

#[test]
fn meters() {
    use openflow::meter::{
        Band, BandKind, MeterCommand, MeterConfig, MeterFlags, MeterMod, MeterStats,
    };
    let config = MeterConfig {
        meter: 3,
        flags: MeterFlags::KBPS | MeterFlags::BURST | MeterFlags::STATS,
        bands: vec![
            Band {
                kind: BandKind::Drop,
                rate: 1000,
                burst: 50,
            },
            Band {
                kind: BandKind::DscpRemark(2),
                rate: 500,
                burst: 20,
            },
        ],
    };
    let reply = |reply| Message::MultipartReply { reply, more: false };
    for version in [Version::V1_3, Version::V1_4, Version::V1_5] {
        let change = MeterMod {
            command: MeterCommand::Add,
            config: config.clone(),
        };
        prints(
            version,
            &Message::MeterMod(change),
            "ADD meter=3 kbps burst stats bands=\ntype=drop rate=1000 burst_size=50\ntype=dscp_remark rate=500 burst_size=20 prec_level=2",
        );
        prints(
            version,
            &reply(MultipartReply::MeterConfig(vec![config.clone()])),
            "meter=3 kbps burst stats bands=\ntype=drop rate=1000 burst_size=50",
        );
        let counters = MeterStats {
            meter: 3,
            flows: 1,
            packets: 20,
            bytes: 300,
            duration_ns: 5_000_000_000,
            bands: vec![(4, 50)],
        };
        prints(
            version,
            &reply(MultipartReply::Meter(vec![counters])),
            "meter:3 flow_count:1 packet_in_count:20 byte_in_count:300 duration:5s bands:\n0: packet_count:4 byte_count:50",
        );
    }
}
