//! OpenFlow: messages that `ovs-ofctl` sends to a switch, in every version, and that a switch
//! sends.

use crate::{Corpus, SocketDirectory};
use openflow::action::{Action, Instruction};
use openflow::flow::{FlowFlags, FlowRemoved, FlowRemovedReason, FlowStats};
use openflow::group::{Bucket, GroupDescription, GroupKind, GroupStats};
use openflow::message::{
    BundleCommand, ErrorKind, ErrorMessage, Features, FlowFormat, Hello, MultipartReply, NO_BUFFER,
    PacketIn, PacketInFormat, PacketInReason, Role, RoleMessage, SwitchConfig,
};
use openflow::port::{PortDescription, PortReason, PortStats, PortStatus};
use openflow::stats::{Aggregate, Description, QueueStats, TableStats};
use openflow::version::ALL_VERSIONS;
use openflow::{DecodeOptions, Error, Message, Version, decode, encode, frame_length};
use packet::{Field, Match};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Commands for every version; commands that a version does not support send less.
const COMMANDS: &[&[&str]] = &[
    &["show"],
    &["dump-desc"],
    &["dump-tables"],
    &["dump-table-features"],
    &["dump-ports"],
    &["dump-ports", "1"],
    &["dump-flows"],
    &[
        "dump-flows",
        "table=3,cookie=0x12/-1,tcp,nw_dst=10.0.0.0/8,out_port=2",
    ],
    &["dump-aggregate", "ip"],
    &["queue-stats"],
    &["queue-get-config", "1"],
    &["dump-groups"],
    &["dump-group-stats", "7"],
    &["dump-group-features"],
    &["dump-meters"],
    &["meter-stats", "meter=5"],
    &["meter-features"],
    &["get-frags"],
    &["set-frags", "drop"],
    &["mod-port", "1", "no-flood"],
    &["mod-table", "2", "controller"],
    &["probe"],
    &["monitor", "128", "invalid_ttl"],
    &["del-flows", "cookie=3/0xff,table=1,ip"],
    &["--strict", "del-flows", "priority=7,arp,arp_tpa=10.0.0.1"],
    &["mod-flows", "in_port=1,actions=output:2"],
    &[
        "--strict",
        "mod-flows",
        "priority=9,udp6,tp_dst=53,actions=drop",
    ],
    &["add-flow", "actions=normal"],
    &[
        "add-flow",
        "table=1,priority=100,idle_timeout=10,hard_timeout=20,send_flow_rem,check_overlap,in_port=1,actions=in_port,all,flood,local",
    ],
    &[
        "add-flow",
        "dl_vlan=7,dl_vlan_pcp=3,dl_src=02:00:00:00:00:01,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00,actions=strip_vlan,mod_vlan_vid:9,mod_vlan_pcp:2,2",
    ],
    &[
        "add-flow",
        "tcp,nw_src=10.0.0.1,nw_dst=10.0.0.0/8,nw_tos=32,tp_src=80,tp_dst=0x1000/0xf000,tcp_flags=+syn-ack,actions=mod_nw_src:1.2.3.4,mod_nw_dst:1.2.3.5,mod_tp_src:1,mod_tp_dst:2,mod_nw_tos:64,3",
    ],
    &[
        "add-flow",
        "icmp,icmp_type=8,icmp_code=0,actions=enqueue:1:2,set_queue:5,output:1,pop_queue",
    ],
    &[
        "add-flow",
        "sctp6,ipv6_src=fd00::/16,ipv6_label=0x12345,actions=dec_ttl,controller(max_len=64,reason=action,id=3)",
    ],
    &[
        "add-flow",
        "icmp6,icmp_type=135,nd_target=fe80::1,nd_sll=02:00:00:00:00:01,actions=set_field:fe80::2->nd_target,2",
    ],
    &[
        "add-flow",
        "arp,arp_op=1,arp_spa=10.0.0.1,arp_sha=02:00:00:00:00:01,actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],load:2->NXM_OF_ARP_OP[],in_port",
    ],
    &[
        "add-flow",
        "mpls,mpls_label=16,mpls_bos=1,actions=pop_mpls:0x0800,set_mpls_ttl(3),dec_mpls_ttl",
    ],
    &[
        "add-flow",
        "reg0=1,reg15=0xf/0xff,metadata=5/7,tun_id=9,actions=load:1->NXM_NX_REG1[0..15],push:NXM_NX_REG0[],pop:NXM_NX_REG2[],resubmit(,3),resubmit(4,5),exit",
    ],
    &[
        "add-flow",
        "ip,actions=push_vlan:0x8100,set_field:4100->vlan_vid,write_metadata:0x12/0xff,goto_table:2",
    ],
    &[
        "add-flow",
        "ip,actions=clear_actions,write_actions(set_field:1.2.3.4->ip_dst,group:3,output:2),goto_table:9",
    ],
    &[
        "add-flow",
        "ip,actions=meter:2,clone(set_field:5->reg3,output:2),note:01.02.03,output:NXM_NX_REG0[0..15],output(port=3,max_len=100)",
    ],
    &["add-flow", "conj_id=7,actions=conjunction(7,1/2)"],
    &[
        "add-flow",
        "ct_state=+trk+est,ct_zone=4,ct_mark=3,ip,actions=ct(commit,zone=5,nat(src=1.2.3.4)),learn(table=4,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])",
    ],
    &["--bundle", "add-flow", "ip,actions=output:1"],
    &[
        "add-group",
        "group_id=7,type=select,bucket=weight:3,watch_port:1,actions=output:1,bucket=weight:5,actions=set_field:1->reg0,output:2",
    ],
    &[
        "mod-group",
        "group_id=7,type=ff,bucket=watch_group:3,actions=output:1",
    ],
    &[
        "insert-buckets",
        "group_id=7,command_bucket_id=last,bucket=bucket_id:2,actions=output:1",
    ],
    &["del-groups", "group_id=7"],
    &[
        "add-meter",
        "meter=5,kbps,burst,stats,bands=type=drop rate=100 burst_size=10,type=dscp_remark rate=50 prec_level=1",
    ],
    &["mod-meter", "meter=5,pktps,bands=type=drop rate=7"],
    &["del-meters"],
    &[
        "packet-out",
        "in_port=controller packet=0200000000010200000000020800 actions=set_field:1->reg0,table",
    ],
    &[
        "packet-out",
        "in_port=3 packet=020000000001020000000002080600010800060400010000 actions=flood",
    ],
];

pub fn write(corpus: &Corpus, place: &SocketDirectory) -> io::Result<()> {
    // The other versions have the same formats as their neighbours.
    let versions = [Version::V1_0, Version::V1_3, Version::V1_5];
    for version in versions {
        for (name, message) in answers() {
            let bytes = encode(version, 7, &message);
            if !bytes.is_empty() {
                corpus.add(&format!("{}-{name}", version.name()), &[&[1], &bytes])?;
            }
        }
    }
    for version in versions {
        record(corpus, place, version)?;
    }
    Ok(())
}

/// Runs all commands against a simple switch, and stores each distinct message that they send.
fn record(corpus: &Corpus, place: &SocketDirectory, version: Version) -> io::Result<()> {
    let path = place.join(version.name());
    let listener = UnixListener::bind(&path)?;
    let mut seen = BTreeSet::new();
    for (number, command) in COMMANDS.iter().enumerate() {
        let (options, rest): (Vec<&str>, Vec<&str>) =
            command.iter().partition(|word| word.starts_with("--"));
        let target = format!("unix:{}", path.display());
        let mut child = Command::new("ovs-ofctl")
            .args(["-O", version.name(), "--timeout=1", "--no-names"])
            .args(options)
            .arg(rest[0])
            .arg(target)
            .args(&rest[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        for message in converse(&listener, &mut child)? {
            // Everything but the transaction id.
            let content = [&message[..4], &message[8..]].concat();
            let fresh = seen.insert(content);
            // A flow mod of 1.0 may have the table in its command.
            let flags = if number % 2 == 0 { 1 } else { 3 };
            if fresh {
                corpus.add(
                    &format!("{}-ofctl-{}-{}", version.name(), seen.len(), rest[0]),
                    &[&[flags], &message],
                )?;
            }
        }
        child.wait()?;
    }
    std::fs::remove_file(path)
}

/// Plays the switch until the client ends; returns all that it sent.
fn converse(listener: &UnixListener, child: &mut std::process::Child) -> io::Result<Vec<Vec<u8>>> {
    listener.set_nonblocking(true)?;
    let mut heard = Vec::new();
    loop {
        match listener.accept() {
            Ok((stream, _)) => heard.extend(serve(stream)?),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if child.try_wait()?.is_some() {
                    return Ok(heard);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error),
        }
    }
}

fn serve(mut stream: UnixStream) -> io::Result<Vec<Vec<u8>>> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut heard = Vec::new();
    // The client hangs up, or is ended by its own time limit.
    while let Ok(message) = receive(&mut stream) {
        for answer in answer(&message) {
            if stream.write_all(&answer).is_err() {
                break;
            }
        }
        heard.push(message);
    }
    Ok(heard)
}

fn receive(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 8];
    stream.read_exact(&mut message)?;
    let length = frame_length(&message).map_err(|error| io::Error::other(format!("{error:?}")))?;
    message.resize(length, 0);
    stream.read_exact(&mut message[8..])?;
    Ok(message)
}

/// Returns the answers of a switch with one port.
fn answer(request: &[u8]) -> Vec<Vec<u8>> {
    let Ok((header, message)) = decode(request, &DecodeOptions::default()) else {
        return Vec::new();
    };
    let reply = match message {
        Message::Hello(_) => {
            return vec![encode(
                Version::V1_5,
                1,
                &Message::Hello(Hello {
                    versions: ALL_VERSIONS,
                }),
            )];
        }
        Message::EchoRequest(data) => Message::EchoReply(data),
        Message::FeaturesRequest => Message::FeaturesReply(features()),
        Message::GetConfigRequest => Message::GetConfigReply(config()),
        Message::BarrierRequest => Message::BarrierReply,
        Message::BundleControl(mut control) => {
            control.command = match control.command {
                BundleCommand::OpenRequest => BundleCommand::OpenReply,
                BundleCommand::CommitRequest => BundleCommand::CommitReply,
                BundleCommand::CloseRequest => BundleCommand::CloseReply,
                _ => BundleCommand::DiscardReply,
            };
            Message::BundleControl(control)
        }
        Message::MultipartRequest { .. } => Message::MultipartReply {
            reply: MultipartReply::PortDescription(vec![port()]),
            more: false,
        },
        _ => return Vec::new(),
    };
    let version = Version::from_wire(header.version).unwrap_or(Version::V1_0);
    vec![encode(version, header.xid, &reply)]
}

fn port() -> PortDescription {
    PortDescription {
        number: 1,
        hw_addr: [2, 0, 0, 0, 0, 1],
        name: "p1".into(),
        ..PortDescription::default()
    }
}

fn features() -> Features {
    Features {
        datapath_id: 0x42,
        tables: 254,
        ports: vec![port()],
        ..Features::default()
    }
}

fn config() -> SwitchConfig {
    SwitchConfig {
        fragments: Default::default(),
        invalid_ttl_to_controller: false,
        miss_send_len: 128,
    }
}

fn matching() -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::InPortOxm, 1);
    matching.set_exact(Field::EthType, 0x0800);
    matching.set(Field::Ipv4Dst, &[10, 0, 0, 0], &[255, 0, 0, 0]);
    matching
}

fn flow() -> FlowStats {
    FlowStats {
        table: 1,
        matching: matching(),
        priority: 7,
        cookie: 0x12,
        duration_ns: 1_500_000_000,
        idle_timeout: 10,
        hard_timeout: 0,
        idle_age: 1,
        hard_age: 1,
        flags: FlowFlags {
            send_flow_rem: true,
            ..FlowFlags::default()
        },
        importance: 0,
        packets: 3,
        bytes: 180,
        instructions: [Instruction::ApplyActions(vec![
            Action::DecTtl(vec![0]),
            Action::Output {
                port: 2,
                max_len: 0,
            },
        ])]
        .into(),
    }
}

/// Returns messages of a switch, which the decoder reads for clients and tests.
fn answers() -> Vec<(&'static str, Message)> {
    let buckets = vec![Bucket {
        id: 1,
        weight: 3,
        watch_port: 1,
        watch_group: u32::MAX,
        actions: vec![Action::Output {
            port: 1,
            max_len: 0,
        }],
    }];
    let replies = [
        (
            "description",
            MultipartReply::Description(Description {
                datapath: "seed".into(),
                ..Description::default()
            }),
        ),
        (
            "flows",
            MultipartReply::Flow {
                flows: vec![flow(), flow()],
                format: FlowFormat::Standard,
            },
        ),
        (
            "nicira-flows",
            MultipartReply::Flow {
                flows: vec![flow()],
                format: FlowFormat::Nicira,
            },
        ),
        (
            "aggregate",
            MultipartReply::Aggregate {
                sums: Aggregate {
                    packets: 1,
                    bytes: 60,
                    flows: 1,
                },
                format: FlowFormat::Standard,
            },
        ),
        (
            "tables",
            MultipartReply::Table(vec![TableStats {
                name: "t".into(),
                max_entries: 1000,
                ..TableStats::default()
            }]),
        ),
        (
            "ports",
            MultipartReply::Port(vec![PortStats {
                port: 1,
                rx_packets: 5,
                ..PortStats::default()
            }]),
        ),
        (
            "queues",
            MultipartReply::Queue(vec![QueueStats {
                port: 1,
                queue: 2,
                tx_bytes: 9,
                tx_packets: 1,
                tx_errors: 0,
                duration_ns: 5,
            }]),
        ),
        (
            "groups",
            MultipartReply::Group(vec![GroupStats {
                group: 7,
                references: 1,
                packets: 1,
                bytes: 60,
                duration_ns: 5,
                buckets: vec![(1, 60)],
            }]),
        ),
        (
            "group-description",
            MultipartReply::GroupDescription(vec![GroupDescription {
                kind: GroupKind::Select,
                group: 7,
                buckets,
                selection: None,
            }]),
        ),
        (
            "port-description",
            MultipartReply::PortDescription(vec![port()]),
        ),
    ];
    let packet_in = |format| {
        Message::PacketIn(PacketIn {
            format,
            buffer_id: NO_BUFFER,
            total_len: 60,
            reason: PacketInReason::Action,
            table: 2,
            cookie: 9,
            matching: matching(),
            data: vec![0xab; 60],
            userdata: vec![1, 2],
            continuation: if format == PacketInFormat::Nxt2 {
                vec![
                    0x80, 0, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 0, 0, 0,
                    0,
                ]
            } else {
                Vec::new()
            },
        })
    };
    let mut all = vec![
        (
            "hello",
            Message::Hello(Hello {
                versions: ALL_VERSIONS,
            }),
        ),
        (
            "error",
            Message::Error(ErrorMessage {
                kind: ErrorKind::Known(Error::BadLength),
                data: vec![1; 16],
            }),
        ),
        ("features-reply", Message::FeaturesReply(features())),
        ("config-reply", Message::GetConfigReply(config())),
        ("packet-in", packet_in(PacketInFormat::Standard)),
        ("packet-in-nxt", packet_in(PacketInFormat::Nxt)),
        ("packet-in-nxt2", packet_in(PacketInFormat::Nxt2)),
        (
            "flow-removed",
            Message::FlowRemoved {
                removed: FlowRemoved {
                    reason: FlowRemovedReason::Delete,
                    stats: flow(),
                },
                format: FlowFormat::Standard,
            },
        ),
        (
            "port-status",
            Message::PortStatus(PortStatus {
                reason: PortReason::Modify,
                port: port(),
            }),
        ),
        (
            "role-request",
            Message::RoleRequest(RoleMessage {
                role: Role::Primary,
                generation: Some(3),
                nicira: false,
            }),
        ),
        (
            "nicira-role-request",
            Message::RoleRequest(RoleMessage {
                role: Role::Secondary,
                generation: None,
                nicira: true,
            }),
        ),
        ("echo", Message::EchoRequest(vec![1, 2, 3])),
        ("get-async", Message::GetAsyncRequest),
    ];
    all.extend(
        replies
            .into_iter()
            .map(|(name, reply)| (name, Message::MultipartReply { reply, more: false })),
    );
    all
}
