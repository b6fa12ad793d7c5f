//! Messages and actions of Sluice's own extension, one of each.

use crate::Corpus;
use openflow::action::Action;
use openflow::steering::{
    Abilities, Command, Device, Fcf, HostCapabilities, IrqCore, Layout, Mode, ModeReply,
    ModeSource, Steering, SteeringMod, SteeringStats, Target, VmReason, VmStatus, XdpMode,
};
use openflow::{Message, Version, encode};
use std::io;

fn messages() -> Vec<(&'static str, Steering)> {
    let matching = "udp,tp_dst=4789,vni=5,fcf_vm=3".to_owned();
    vec![
        ("capabilities", Steering::CapabilitiesRequest),
        (
            "capabilities-reply",
            Steering::CapabilitiesReply(HostCapabilities {
                cores: 8,
                workers: 2,
                mode: Mode::Adaptive,
                source: ModeSource::Database,
                layouts: vec![Layout::Dscp6, Layout::Tos8, Layout::Vlan],
                layout: Some(Layout::Dscp6),
                abilities: Abilities::all(),
                devices: vec![Device {
                    name: "eth0".to_owned(),
                    mode: XdpMode::Generic,
                    layout: Some(Layout::Tos8),
                    trusted: true,
                }],
            }),
        ),
        ("mode", Steering::ModeRequest(Some(Mode::Rss))),
        (
            "mode-reply",
            Steering::ModeReply(ModeReply {
                mode: Mode::Off,
                source: ModeSource::Controller,
                chosen: None,
            }),
        ),
        (
            "vm",
            Steering::VmStatus(VmStatus {
                reason: VmReason::Moved,
                vm: 31,
                priority: true,
                port: 3,
                tenant: 7,
                core: 2,
            }),
        ),
        (
            "mod",
            Steering::Mod(SteeringMod {
                command: Command::Add,
                cookie: 1,
                precedence: 100,
                core: IrqCore::Core(3),
                idle_timeout: 10,
                hard_timeout: 20,
                vm: Some(3),
                priority: true,
                matching: matching.clone(),
            }),
        ),
        (
            "stats",
            Steering::StatsRequest(Target::Device("eth0".to_owned())),
        ),
        (
            "stats-reply",
            Steering::StatsReply {
                entries: vec![SteeringStats {
                    cookie: 1,
                    packets: 2,
                    bytes: 3,
                    precedence: 4,
                    core: IrqCore::PerEntry,
                    chosen: 5,
                    vm: None,
                    priority: false,
                    matching,
                }],
                more: true,
            },
        ),
    ]
}

pub fn write(corpus: &Corpus) -> io::Result<()> {
    for (name, message) in messages() {
        let bytes = encode(Version::V1_3, 7, &Message::Steering(message));
        // Everything after the header and experimenter id; the first byte selects 1.3.
        corpus.add(name, &[&[3], &bytes[12..]])?;
    }
    let fcf = Action::SetFcf(Fcf {
        vm: 5,
        priority: true,
    });
    let steer = Action::Steer(Target::Device("eth0".to_owned()));
    for (name, action) in [("set-fcf", fcf), ("steer", steer)] {
        let mut change = openflow::flow::FlowMod::add(packet::Match::any(), 1, Vec::new());
        change.instructions =
            vec![openflow::action::Instruction::ApplyActions(vec![action])].into();
        let form = Default::default();
        let bytes = encode(Version::V1_0, 7, &Message::FlowMod { change, form });
        // The action is the last one of a 72-byte rule; its type and id take 8 bytes.
        corpus.add(name, &[&[0x80], &bytes[72 + 8..]])?;
    }
    Ok(())
}
