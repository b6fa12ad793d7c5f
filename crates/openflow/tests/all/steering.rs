//! Sluice's own messages and actions: round trips in every version, the errors of invalid ones, and
//! how `ovs-ofctl` prints a rule that sets the flow control field.

use crate::common;
use openflow::action::{Action, Instruction};
use openflow::flow::FlowMod;
use openflow::message::{FlowModForm, Message, NO_BUFFER, PacketOut};
use openflow::steering::{
    Abilities, Command, Device, EXPERIMENTER, Fcf, HostCapabilities, IrqCore, Layout, MATCH_MAX,
    Mode, ModeReply, ModeSource, NO_CORE, Steering, SteeringMod, SteeringStats, Target, VM_ID_MAX,
    VmReason, VmStatus, XdpMode, to_note, with_notes,
};
use openflow::{DecodeOptions, Error, Version, decode, encode, format, parse};
use packet::Match;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

const LAYOUTS: [Layout; 3] = [Layout::Dscp6, Layout::Tos8, Layout::Vlan];
const MODES: [Mode; 4] = [Mode::Off, Mode::Rss, Mode::Adaptive, Mode::Auto];
const SOURCES: [ModeSource; 3] = [
    ModeSource::Default,
    ModeSource::Controller,
    ModeSource::Database,
];

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_.-]{0,14}"
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![Just(Target::Datapath), name().prop_map(Target::Device)]
}

fn vm() -> impl Strategy<Value = u16> {
    1..=VM_ID_MAX
}

fn device() -> impl Strategy<Value = Device> {
    let mode = select(vec![XdpMode::Unknown, XdpMode::Driver, XdpMode::Generic]);
    (
        name(),
        mode,
        option::of(select(&LAYOUTS[..])),
        any::<bool>(),
    )
        .prop_map(|(name, mode, layout, trusted)| Device {
            name,
            mode,
            layout,
            trusted,
        })
}

fn capabilities() -> impl Strategy<Value = HostCapabilities> {
    let counts = (any::<u16>(), any::<u16>());
    let modes = (select(&MODES[..]), select(&SOURCES[..]));
    let layouts = subsequence(LAYOUTS.to_vec(), 0..=3);
    let layout = option::of(select(&LAYOUTS[..]));
    let abilities = any::<u32>().prop_map(Abilities::from_bits_truncate);
    (
        counts,
        modes,
        layouts,
        layout,
        abilities,
        vec(device(), 0..5),
    )
        .prop_map(
            |((cores, workers), (mode, source), layouts, layout, abilities, devices)| {
                HostCapabilities {
                    cores,
                    workers,
                    mode,
                    source,
                    layouts,
                    layout,
                    abilities,
                    devices,
                }
            },
        )
}

fn core() -> impl Strategy<Value = IrqCore> {
    prop_oneof![
        Just(IrqCore::Choose),
        Just(IrqCore::PerEntry),
        Just(IrqCore::PerFlow),
        (0..NO_CORE).prop_map(IrqCore::Core),
    ]
}

fn matching() -> impl Strategy<Value = String> {
    "[a-z_]{0,9}(=[0-9a-fx./:]{0,30})?(,vni=[0-9]{1,8})?"
}

fn change() -> impl Strategy<Value = SteeringMod> {
    let command = select(vec![
        Command::Add,
        Command::Modify,
        Command::Delete,
        Command::DeleteStrict,
    ]);
    let numbers = (any::<u64>(), any::<u16>(), any::<u16>(), any::<u16>());
    (
        command,
        numbers,
        core(),
        option::of(vm()),
        any::<bool>(),
        matching(),
    )
        .prop_map(
            |(command, (cookie, precedence, idle, hard), core, vm, priority, matching)| {
                SteeringMod {
                    command,
                    cookie,
                    precedence,
                    core,
                    idle_timeout: idle,
                    hard_timeout: hard,
                    vm,
                    priority,
                    matching,
                }
            },
        )
}

fn stats() -> impl Strategy<Value = SteeringStats> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u16>());
    let cores = (core(), any::<u32>());
    (numbers, cores, option::of(vm()), any::<bool>(), matching()).prop_map(
        |((cookie, packets, bytes, precedence), (core, chosen), vm, priority, matching)| {
            SteeringStats {
                cookie,
                packets,
                bytes,
                precedence,
                core,
                chosen,
                vm,
                priority,
                matching,
            }
        },
    )
}

fn message() -> impl Strategy<Value = Steering> {
    let reasons = vec![VmReason::Started, VmReason::Moved, VmReason::Stopped];
    let status = (select(reasons), vm(), any::<bool>(), any::<[u32; 3]>());
    let modes = (select(&MODES[..]), select(&SOURCES[..]));
    let chosen = option::of(select(&MODES[..]));
    prop_oneof![
        Just(Steering::CapabilitiesRequest),
        capabilities().prop_map(Steering::CapabilitiesReply),
        option::of(select(&MODES[..])).prop_map(Steering::ModeRequest),
        (modes, chosen).prop_map(|((mode, source), chosen)| {
            Steering::ModeReply(ModeReply {
                mode,
                source,
                chosen,
            })
        }),
        status.prop_map(|(reason, vm, priority, [port, tenant, core])| {
            Steering::VmStatus(VmStatus {
                reason,
                vm,
                priority,
                port,
                tenant,
                core,
            })
        }),
        change().prop_map(Steering::Mod),
        target().prop_map(Steering::StatsRequest),
        (vec(stats(), 0..5), any::<bool>())
            .prop_map(|(entries, more)| Steering::StatsReply { entries, more }),
    ]
}

fn decoded(bytes: &[u8]) -> Result<Message, Error> {
    decode(bytes, &DecodeOptions::default())
        .map(|(_, message)| message)
        .map_err(|failure| failure.error)
}

proptest! {
    #[test]
    fn messages_survive_in_every_version(
        message in message(),
        xid in any::<u32>(),
        version in select(&Version::ALL[..]),
    ) {
        let message = Message::Steering(message);
        let bytes = encode(version, xid, &message);
        prop_assert_eq!(bytes.len() % 8, 0);
        // A message that is cut off is refused, however much is left.
        let mut short = bytes[..bytes.len() - 1].to_vec();
        let length = (short.len() as u16).to_be_bytes();
        short[2..4].copy_from_slice(&length);
        prop_assert!(decoded(&short).is_err());
        let (header, again) = decode(&bytes, &DecodeOptions::default()).unwrap();
        prop_assert_eq!((header.xid, again), (xid, message));
    }

    #[test]
    fn actions_survive_in_every_version(
        vm in vm(),
        priority in any::<bool>(),
        target in target(),
        version in select(&Version::ALL[..]),
    ) {
        let actions = vec![
            Action::SetFcf(Fcf { vm, priority }),
            Action::Steer(target),
            Action::Clone(vec![Action::SetFcf(Fcf { vm, priority: !priority })]),
        ];
        let message = packet_out(actions.clone());
        prop_assert_eq!(sent(&encode(version, 1, &message)), Ok(actions));
    }

    #[test]
    fn text_survives(vm in vm(), priority in any::<bool>()) {
        let actions = vec![Action::SetFcf(Fcf { vm, priority })];
        let mut text = String::new();
        format::actions(&mut text, &actions);
        prop_assert_eq!(parse::actions(&text, &|_| None).unwrap(), actions);
    }
}

fn packet_out(actions: Vec<Action>) -> Message {
    Message::PacketOut(PacketOut {
        buffer_id: NO_BUFFER,
        in_port: 1,
        matching: {
            let mut matching = Match::any();
            matching.set_exact(packet::Field::InPortOxm, 1);
            matching
        },
        actions,
        data: Vec::new(),
    })
}

/// Returns the actions of a packet-out.
fn sent(bytes: &[u8]) -> Result<Vec<Action>, Error> {
    match decoded(bytes)? {
        Message::PacketOut(packet) => Ok(packet.actions),
        other => panic!("{other:?}"),
    }
}

fn rule(action: Action) -> Message {
    let output = Action::Output {
        port: 2,
        max_len: 0,
    };
    let apply = Instruction::ApplyActions(vec![action, output]);
    Message::FlowMod {
        change: FlowMod::add(Match::any(), 1, vec![apply]),
        form: FlowModForm::default(),
    }
}

/// Returns a message of 1.3 with these bytes behind the experimenter id.
fn raw(body: &[u8]) -> Vec<u8> {
    let length = 12 + body.len() as u16;
    let mut bytes = vec![4, 4];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 1]);
    bytes.extend_from_slice(&EXPERIMENTER.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// Decodes a message with one byte of its body, behind type and id, changed.
fn spoilt(message: Steering, at: usize, byte: u8) -> Result<Message, Error> {
    let mut bytes = encode(Version::V1_3, 1, &Message::Steering(message));
    bytes[16 + at] = byte;
    decoded(&bytes)
}

fn a_change() -> SteeringMod {
    SteeringMod {
        command: Command::Add,
        cookie: 1,
        precedence: 2,
        core: IrqCore::PerFlow,
        idle_timeout: 0,
        hard_timeout: 0,
        vm: Some(5),
        priority: false,
        matching: "vni=5".to_owned(),
    }
}

#[test]
fn wrong_messages_are_refused_by_type_and_code() {
    for number in [0, 9, u32::MAX] {
        let answer = decoded(&raw(&number.to_be_bytes()));
        assert_eq!(answer, Err(Error::BadExperimenterType), "{number}");
    }
    assert_eq!(decoded(&raw(&[0, 0])), Err(Error::BadLength));
    // Trailing bytes.
    assert_eq!(
        decoded(&raw(&[0, 0, 0, 1, 0, 0, 0, 0])),
        Err(Error::BadLength)
    );
    let value = Err(Error::BadPropertyValue);
    assert_eq!(spoilt(Steering::ModeRequest(None), 0, 4), value);
    assert_eq!(
        spoilt(Steering::ModeRequest(None), 3, 1),
        Err(Error::MustBeZero)
    );
    let mod_with = |at, byte| spoilt(Steering::Mod(a_change()), at, byte);
    assert_eq!(mod_with(8, 4), Err(Error::BadCommand));
    assert_eq!(mod_with(9, 4), value, "a choice that there is not");
    assert_eq!(mod_with(9, 3), value, "a core is named, and is none");
    assert_eq!(mod_with(15, 0), value, "none is named, and there is one");
    assert_eq!(mod_with(20, 0xf0), value, "a VM id above 4094");
    assert_eq!(mod_with(22, 1), Err(Error::BadFlags));
    assert_eq!(mod_with(24, 0xff), Err(Error::BadPropertyLength));
    assert_eq!(mod_with(26, 0xff), Err(Error::BadMatchValue));
    let device = Steering::StatsRequest(Target::Device("eth0".to_owned()));
    let stats_with = |at, byte| spoilt(device.clone(), at, byte);
    assert_eq!(stats_with(0, 0), value, "the datapath has no name");
    assert_eq!(stats_with(0, 2), value);
    assert_eq!(stats_with(9, b'/'), value, "no path");
    assert_eq!(stats_with(8, 0), value, "a name behind its end");
    let dots = Steering::StatsRequest(Target::Device("..".to_owned()));
    let bytes = encode(Version::V1_0, 1, &Message::Steering(dots));
    assert_eq!(decoded(&bytes), value);
    let status = Steering::VmStatus(VmStatus {
        reason: VmReason::Started,
        vm: 1,
        priority: true,
        port: 1,
        tenant: 0,
        core: NO_CORE,
    });
    assert_eq!(spoilt(status.clone(), 0, 3), value);
    assert_eq!(spoilt(status.clone(), 1, 2), value);
    assert_eq!(spoilt(status, 3, 0), value, "no VM has id 0");
}

#[test]
fn wrong_actions_are_refused_by_type_and_code() {
    let fcf = Action::SetFcf(Fcf {
        vm: 5,
        priority: true,
    });
    for version in Version::ALL {
        let bytes = encode(version, 1, &packet_out(vec![fcf.clone()]));
        assert_eq!(sent(&bytes), Ok(vec![fcf.clone()]));
        // The action is the last 16 bytes.
        let start = bytes.len() - 16;
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[start + at] = byte;
            sent(&bytes)
        };
        assert_eq!(with(7, 0), Err(Error::BadActionExperimenter));
        assert_eq!(with(9, 9), Err(Error::BadActionExperimenterType));
        assert_eq!(with(9, 2), Err(Error::BadActionLength));
        assert_eq!(with(11, 0), Err(Error::BadActionArgument), "VM 0");
        assert_eq!(with(10, 0x10), Err(Error::BadActionArgument), "VM 4101");
        assert_eq!(with(12, 2), Err(Error::BadActionArgument));
        assert_eq!(with(15, 1), Err(Error::BadActionArgument));
    }
}

#[test]
fn a_long_match_is_cut() {
    let mut change = a_change();
    change.matching = "x".repeat(MATCH_MAX + 9);
    let bytes = encode(Version::V1_3, 1, &Message::Steering(Steering::Mod(change)));
    match decoded(&bytes) {
        Ok(Message::Steering(Steering::Mod(change))) => {
            assert_eq!(change.matching.len(), MATCH_MAX);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn text_that_is_wrong_is_refused_in_words() {
    let error = |text| parse::actions(text, &|_| None).unwrap_err().to_string();
    assert_eq!(error("set_fcf(priority)"), "set_fcf: vm=ID is missing");
    assert_eq!(error("set_fcf(vm=0)"), "vm=0: VM ids are 1 to 4094");
    assert!(error("set_fcf(vm=4095)").contains("VM ids are 1 to 4094"));
    assert!(error("set_fcf(vm=1,core=2)").contains("core: set_fcf takes"));
    assert!(
        error("set_field:1->fcf").contains("fcf"),
        "no field of rules"
    );
}

#[test]
fn a_note_stands_for_the_action_where_that_is_not_understood() {
    let fcf = Fcf {
        vm: 5,
        priority: true,
    };
    let rule = [
        Instruction::WriteActions(vec![Action::Clone(vec![Action::SetFcf(fcf)])]),
        Instruction::GotoTable(1),
    ];
    let plain = with_notes(&rule).expect("it sets a field");
    let note = Instruction::WriteActions(vec![Action::Clone(vec![to_note(fcf)])]);
    assert_eq!(plain, [note, Instruction::GotoTable(1)]);
    assert_eq!(with_notes(&plain), None);
    for version in Version::ALL {
        // It is decoded as `set_fcf` again.
        let bytes = encode(version, 1, &packet_out(vec![to_note(fcf)]));
        assert_eq!(sent(&bytes), Ok(vec![Action::SetFcf(fcf)]));
        let wrong = Fcf { vm: 0, ..fcf };
        let bytes = encode(version, 1, &packet_out(vec![to_note(wrong)]));
        assert_eq!(sent(&bytes), Err(Error::BadActionArgument));
    }
}

/// The reason for notes: Open vSwitch's tools do not print a rule with such an action at all.
#[test]
fn open_vswitchs_tools_print_notes_and_no_experimenter_actions() {
    let fcf = Fcf {
        vm: 5,
        priority: true,
    };
    for version in [Version::V1_0, Version::V1_3, Version::V1_5] {
        let print = |action| {
            let output = common::ofp_print(&encode(version, 1, &rule(action)))?;
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let Some(text) = print(to_note(fcf)) else {
            return;
        };
        assert!(text.contains("note:02.53.4c.01.80.05"), "{text}");
        let text = print(Action::SetFcf(fcf)).unwrap_or_default();
        assert!(text.contains("OFPBAC_BAD_VENDOR"), "{text}");
    }
}
