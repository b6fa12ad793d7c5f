//! Compares Open vSwitch itself with the reference: the same generated rules and packets are sent
//! to a real `ovs-vswitchd` with dummy ports.
//!
//! `cargo test -p sluice-pipeline --test all openvswitch -- --ignored` (root, Debian's openvswitch
//! packages; `SLUICE_CASES`, `SLUICE_SEED`). The daemon runs in a network namespace and a directory
//! of its own.

use crate::common;
use crate::common::generate::{Random, change, frame};
use crate::common::{Switch, add, apply, fields, output};
use openflow::Version;
use openflow::action::{Action, Instruction, Subfield};
use openflow::error::Error;
use openflow::flow::{FlowMod, FlowModCommand, TABLE_ALL};
use openflow::message::{ErrorKind, FlowModForm, Message};
use openflow::meter::{Band, BandKind, MeterCommand, MeterConfig, MeterFlags, MeterMod};
use openflow::port;
use packet::{Field, Match};
use pipeline::reference::{self, Effect};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Ports that rules name; another one receives markers.
const PORTS: u32 = 4;
const MARKER_PORT: u32 = 5;

/// A running Open vSwitch.
struct OpenVSwitch {
    directory: PathBuf,
    control: UnixStream,
    openflow: UnixStream,
    /// How much of each port's output has been read.
    read: HashMap<u32, usize>,
    markers: u32,
}

fn run(directory: &Path, program: &str, arguments: &[&str]) {
    let status = Command::new(program)
        .args(arguments)
        .envs(["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"].map(|name| (name, directory)))
        .status()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

impl OpenVSwitch {
    fn start() -> OpenVSwitch {
        let directory =
            std::env::temp_dir().join(format!("sluice-reference-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let at = |name: &str| directory.join(name).display().to_string();
        let (database, socket) = (at("conf.db"), at("db.sock"));
        run(
            &directory,
            "ovsdb-tool",
            &[
                "create",
                &database,
                "/usr/share/openvswitch/vswitch.ovsschema",
            ],
        );
        let pidfile = format!("--pidfile={}", at("ovsdb.pid"));
        run(
            &directory,
            "ovsdb-server",
            &[
                "--detach",
                &pidfile,
                &format!("--remote=punix:{socket}"),
                "--log-file=/dev/null",
                &database,
            ],
        );
        let server = format!("--db=unix:{socket}");
        run(&directory, "ovs-vsctl", &[&server, "--no-wait", "init"]);
        let (pidfile, control) = (format!("--pidfile={}", at("ovs.pid")), at("control"));
        let daemon = [
            "-n",
            "ovs-vswitchd",
            &format!("unix:{socket}"),
            "--enable-dummy=override",
            "--disable-system",
            "--detach",
        ];
        let rest = [
            &pidfile,
            "--log-file=/dev/null",
            "-vconsole:off",
            &format!("--unixctl={control}"),
        ];
        run(&directory, "unshare", &[&daemon[..], &rest[..]].concat());
        let mut setup: Vec<String> = [
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=dummy",
            "fail_mode=secure",
        ]
        .map(String::from)
        .to_vec();
        for number in 1..=MARKER_PORT {
            let words = format!(
                "-- add-port br0 p{number} -- set interface p{number} type=dummy ofport_request={number} options:tx_pcap={}",
                at(&format!("p{number}.pcap"))
            );
            setup.extend(words.split(' ').map(String::from));
        }
        let words: Vec<&str> = std::iter::once(server.as_str())
            .chain(setup.iter().map(String::as_str))
            .collect();
        run(&directory, "ovs-vsctl", &words);
        let mut openflow = UnixStream::connect(directory.join("br0.mgmt")).unwrap();
        openflow
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        openflow.write_all(&[4, 0, 0, 8, 0, 0, 0, 1]).unwrap();
        let control = UnixStream::connect(control).unwrap();
        control
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        OpenVSwitch {
            directory,
            control,
            openflow,
            read: HashMap::new(),
            markers: 0,
        }
    }

    /// Calls a unixctl command.
    fn command(&mut self, method: &str, parameters: &[&str]) -> String {
        let list: Vec<String> = parameters
            .iter()
            .map(|word| format!("\"{word}\""))
            .collect();
        let call = format!(
            "{{\"id\":0,\"method\":\"{method}\",\"params\":[{}]}}",
            list.join(",")
        );
        self.control.write_all(call.as_bytes()).unwrap();
        let mut reply = Vec::new();
        let mut byte = [0];
        while !reply.ends_with(b"}") {
            self.control.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        String::from_utf8(reply).unwrap()
    }

    fn message(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        self.openflow.read_exact(&mut bytes).unwrap();
        let length = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        bytes.resize(length, 0);
        self.openflow.read_exact(&mut bytes[8..]).unwrap();
        bytes
    }

    /// Sends flow mods; returns the error of each.
    fn send(&mut self, changes: &[FlowMod]) -> Vec<Option<Error>> {
        let mut all = Vec::new();
        for (index, change) in changes.iter().enumerate() {
            let message = Message::FlowMod {
                change: change.clone(),
                form: FlowModForm::default(),
            };
            all.extend(openflow::encode::encode(
                Version::V1_3,
                100 + index as u32,
                &message,
            ));
        }
        all.extend(openflow::encode::encode(
            Version::V1_3,
            7,
            &Message::BarrierRequest,
        ));
        self.openflow.write_all(&all).unwrap();
        let mut errors = vec![None; changes.len()];
        loop {
            let bytes = self.message();
            let options = openflow::decode::DecodeOptions::default();
            match openflow::decode::decode(&bytes, &options) {
                Ok((_, Message::BarrierReply)) => return errors,
                Ok((header, Message::Error(error))) => match error.kind {
                    ErrorKind::Known(error) => errors[header.xid as usize - 100] = Some(error),
                    other => panic!("{other:?} to {:?}", changes[header.xid as usize - 100]),
                },
                _ => {}
            }
        }
    }

    /// Sends a message that has no reply.
    fn tell(&mut self, message: &Message) {
        let bytes = openflow::encode::encode(Version::V1_3, 7, message);
        self.openflow.write_all(&bytes).unwrap();
    }

    /// Returns the frames that left by a port since the last call.
    fn sent(&mut self, number: u32) -> Vec<Vec<u8>> {
        let file =
            std::fs::read(self.directory.join(format!("p{number}.pcap"))).unwrap_or_default();
        let at = self.read.entry(number).or_insert(24);
        let mut frames = Vec::new();
        while let Some(header) = file.get(*at..*at + 16) {
            let length = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
            let Some(frame) = file.get(*at + 16..*at + 16 + length) else {
                break;
            };
            frames.push(frame.to_vec());
            *at += 16 + length;
        }
        frames
    }

    fn receive(&mut self, number: u32, frame: &[u8]) {
        let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        let reply = self.command("netdev-dummy/receive", &[&format!("p{number}"), &hex]);
        assert!(reply.contains("\"error\":null"), "{reply}");
    }

    /// Sends a frame in by a port and returns what leaves by each port. A marker sent behind it
    /// shows when everything has left, except what handler threads still have: they get up to a
    /// second while the result is not the wanted one.
    fn inject(
        &mut self,
        number: u32,
        bytes: &[u8],
        wanted: &HashMap<u32, Vec<Vec<u8>>>,
    ) -> HashMap<u32, Vec<Vec<u8>>> {
        self.receive(number, bytes);
        self.markers += 1;
        let mut marker = vec![2; 60];
        marker[12..14].copy_from_slice(&[0x99, 0x99]);
        marker[14..18].copy_from_slice(&self.markers.to_be_bytes());
        self.receive(MARKER_PORT, &marker);
        let mut all: HashMap<u32, Vec<Vec<u8>>> = HashMap::new();
        let mut waiting = PORTS;
        let start = Instant::now();
        let mut settled = None;
        loop {
            for number in 1..=PORTS {
                for frame in self.sent(number) {
                    if frame == marker {
                        waiting -= 1;
                    } else {
                        all.entry(number).or_default().push(without_dei(frame));
                    }
                }
                all.entry(number).or_default();
            }
            let (since, limit) = match waiting {
                0 => (*settled.get_or_insert_with(Instant::now), 1),
                _ => (start, 30),
            };
            let late = since.elapsed() > Duration::from_secs(limit);
            if waiting == 0 && all == *wanted || late {
                assert_eq!(waiting, 0, "a marker is missing");
                return all;
            }
        }
    }
}

impl Drop for OpenVSwitch {
    fn drop(&mut self) {
        for name in ["ovs.pid", "ovsdb.pid"] {
            if let Ok(pid) = std::fs::read_to_string(self.directory.join(name)) {
                let _ = Command::new("kill").arg(pid.trim()).status();
            }
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Fields that Open vSwitch lacks.
const UNKNOWN: [Field; 2] = [Field::PbbIsid, Field::PbbUca];
/// Fields that it does not write.
const UNWRITTEN: [Field; 4] = [
    Field::PbbIsid,
    Field::PbbUca,
    Field::EthType,
    Field::MplsBos,
];

/// Returns whether both switches have these actions, with effects that only show at ports.
fn comparable(instructions: &[Instruction]) -> bool {
    fn fit(actions: &[Action]) -> bool {
        actions.iter().all(|action| match action {
            Action::Output { port, .. } => *port != port::NORMAL && *port != port::LOCAL,
            // These do not show at a port in a comparable way, or 1.3 has no such action.
            Action::Enqueue { .. }
            | Action::SetVlanVid { .. }
            | Action::SetVlanPcp { .. }
            | Action::SetIpv4Src(_)
            | Action::SetIpv4Dst(_)
            | Action::SetEthSrc(_)
            | Action::SetEthDst(_)
            | Action::SetL4Src(_)
            | Action::SetL4Dst(_)
            | Action::Meter(_) => false,
            // Its hash differs.
            Action::Bundle(_) | Action::Multipath(_) => false,
            // Open vSwitch has none of these.
            Action::CopyTtlIn | Action::CopyTtlOut | Action::PushPbb(_) | Action::PopPbb => false,
            Action::SetField { field, .. }
            | Action::Load {
                dst: Subfield { field, .. },
                ..
            }
            | Action::StackPop(Subfield { field, .. })
            | Action::Move {
                dst: Subfield { field, .. },
                ..
            } if UNWRITTEN.contains(field) => false,
            Action::StackPush(Subfield { field, .. })
            | Action::Move {
                src: Subfield { field, .. },
                ..
            } if UNKNOWN.contains(field) => false,
            // Open vSwitch truncates before it pushes the tags of earlier actions, so its packets
            // are longer than requested.
            Action::OutputTrunc { .. } => false,
            // In Open vSwitch it ends the whole walk; here too, but not in the way that 3.1's
            // manual describes.
            Action::Clone(inner) => fit(inner) && !inner.contains(&Action::Exit),
            _ => true,
        })
    }
    instructions.iter().all(|instruction| match instruction {
        Instruction::ApplyActions(actions) | Instruction::WriteActions(actions) => fit(actions),
        _ => true,
    })
}

/// Makes parts of conjunctions agree in number of clauses and in priority, since no manual defines
/// the effect of others. Each rule is one part of one conjunction, and no two conjunctions, nor a
/// conjunction and another rule, have the same priority.
fn agree(change: &mut FlowMod) {
    const FIRST: u16 = 50_000;
    let mut list = change.instructions.to_vec();
    for instruction in &mut list {
        let Instruction::ApplyActions(actions) = instruction else {
            continue;
        };
        let mut is_part = false;
        actions.retain_mut(|action| {
            let Action::Conjunction {
                id,
                clause,
                clauses,
            } = action
            else {
                return true;
            };
            *clauses = 2;
            *clause %= 2;
            change.priority = FIRST + *id as u16;
            !std::mem::replace(&mut is_part, true)
        });
    }
    change.instructions = list.into();
}

/// Returns what leaves by each port according to the reference.
fn expected(effects: &[Effect]) -> HashMap<u32, Vec<Vec<u8>>> {
    let mut all: HashMap<u32, Vec<Vec<u8>>> =
        (1..=PORTS).map(|number| (number, Vec::new())).collect();
    let mut put = |number: u32, bytes: &Vec<u8>| {
        if let Some(frames) = all.get_mut(&number) {
            frames.push(without_dei(bytes.clone()));
        }
    };
    for effect in effects {
        match effect {
            Effect::Output {
                port,
                to_in_port,
                sent,
            } if *to_in_port || *port != sent.in_port => put(*port, &sent.bytes),
            Effect::All { sent, .. } => {
                (1..=PORTS)
                    .filter(|number| *number != sent.in_port)
                    .for_each(|number| put(number, &sent.bytes));
            }
            _ => {}
        }
    }
    all
}

/// Clears the DEI of a frame's tags, which Open vSwitch clears when it writes a tag.
fn without_dei(mut frame: Vec<u8>) -> Vec<u8> {
    for at in [12, 16] {
        if !matches!(frame.get(at..at + 3), Some([0x81, 0, _] | [0x88, 0xa8, _])) {
            break;
        }
        frame[at + 2] &= !0x10;
    }
    frame
}

/// Returns the number of MPLS labels behind the tags.
fn labels(frame: &[u8]) -> usize {
    let type_of = |at: usize| frame.get(at..at + 2).map(|kind| [kind[0], kind[1]]);
    let mut at = 12;
    while matches!(type_of(at), Some([0x81, 0] | [0x88, 0xa8])) {
        at += 4;
    }
    if !matches!(type_of(at), Some([0x88, 0x47 | 0x48])) {
        return 0;
    }
    let entries = frame[at + 2..].chunks_exact(4);
    1 + entries.take_while(|entry| entry[2] & 1 == 0).count()
}

fn has_three_tags(frame: &[u8]) -> bool {
    let tag = |at: usize| matches!(frame.get(at..at + 2), Some([0x81, 0] | [0x88, 0xa8]));
    tag(12) && tag(16) && tag(20)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn never_exceeded(number: u32) -> MeterMod {
    MeterMod {
        command: MeterCommand::Add,
        config: MeterConfig {
            meter: number,
            flags: MeterFlags::PKTPS,
            bands: vec![Band {
                kind: BandKind::Drop,
                rate: 4_000_000,
                burst: 0,
            }],
        },
    }
}

#[test]
#[ignore = "starts a real ovs-vswitchd; needs root and Debian's openvswitch packages"]
fn open_vswitch_does_the_same() {
    let mut ovs = OpenVSwitch::start();
    let first = number("SLUICE_SEED", 1);
    (1..=4).for_each(|number| ovs.tell(&Message::MeterMod(never_exceeded(number))));
    let (mut packets, mut left, mut refused) = (0, 0, 0);
    for seed in first..first + number("SLUICE_CASES", 100) {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = random.next());
        let mut switch = Switch::new();
        let mut known = HashMap::new();
        let mut clear = common::flow(FlowModCommand::Delete, Match::any(), 0);
        clear.table = TABLE_ALL;
        let mut marker = add(fields(&[(Field::EthType, 0x9999)]), 65535);
        marker.instructions = apply(&[1, 2, 3, 4].map(output)).into();
        let mut changes = vec![clear, marker];
        let (pushes, pops) = (random.one_in(2), random.one_in(2));
        let count = random.pick(&[20, 60, 300]);
        while changes.len() < count {
            let mut change = change(&mut random, &mut known);
            agree(&mut change);
            let text = format!("{:?}", change.instructions);
            // In 1.3 a meter is an instruction, which cannot be inside a clone.
            let metered_clone = text.contains("Clone") && text.contains("Meter(");
            // With two tags and a write that removes the outer one, Open vSwitch loses both.
            let odd = text.contains(if pushes { "VlanTci" } else { "PushVlan" })
                || text.contains(if pops { "PushMpls" } else { "PopMpls" });
            let unknown = !change.matching.get(Field::PbbIsid).1.is_zero();
            if change.command == FlowModCommand::Add
                && comparable(&change.instructions)
                && !odd
                && !metered_clone
                && !unknown
                // They take precedence over all others, and most are parts of conjunctions that
                // lead to no rule.
                && (!text.contains("Conjunction") || random.one_in(4))
            {
                changes.push(change);
            }
        }
        // Meters that nothing exceeds: otherwise results would depend on timing.
        for number in 1..=4 {
            let change = never_exceeded(number);
            switch
                .pipeline
                .meter_mod(&change, pipeline::Clock::from_ms(1))
                .unwrap();
        }
        let theirs = ovs.send(&changes);
        for (change, theirs) in changes.iter().zip(theirs) {
            let ours = switch.mod13(change.clone()).err();
            refused += usize::from(ours.is_some());
            assert_eq!(
                ours, theirs,
                "seed {seed}: sluice answers left, Open vSwitch right, to {change:?}"
            );
        }
        ovs.command("revalidator/purge", &[]);
        for index in 0..8 {
            let in_port = 1 + random.below(3) as u32;
            let bytes = frame(&mut random, [0xa5, index]);
            // Open vSwitch parses nothing behind a second tag, even when the first is popped.
            if matches!(bytes[16..18], [0x81, 0] | [0x88, 0xa8]) {
                continue;
            }
            // Of two labels, Open vSwitch removes both if the pop's Ethertype is not MPLS; of more
            // than three it removes none, and it does not push a fourth.
            if labels(&bytes) > if pops { 1 } else { 2 } {
                continue;
            }
            let outcome = reference::evaluate(&switch.pipeline, in_port, &bytes);
            let ours = expected(&outcome.effects);
            if ours.values().flatten().any(|frame| labels(frame) > 3) {
                continue;
            }
            let theirs = ovs.inject(in_port, &bytes, &ours);
            if ours.values().flatten().any(|frame| has_three_tags(frame)) {
                continue; // Open vSwitch keeps two and loses the innermost
            }
            packets += 1;
            left += theirs.values().map(Vec::len).sum::<usize>();
            assert!(
                ours == theirs,
                "seed {seed}, in_port {in_port}, packet {bytes:02x?}\nsluice {ours:02x?}\nOpen vSwitch {theirs:02x?}\n{:?}",
                switch
                    .flows()
                    .iter()
                    .filter(|flow| outcome
                        .hits
                        .iter()
                        .any(|hit| hit.table == flow.table && hit.matching == flow.matching))
                    .map(|flow| (
                        flow.table,
                        flow.priority,
                        flow.matching.clone(),
                        flow.instructions.clone()
                    ))
                    .collect::<Vec<_>>()
            );
        }
    }
    println!("{packets} packets, {left} left, {refused} flow mods refused alike");
    assert!(left > packets / 8, "{left} of {packets}");
}
