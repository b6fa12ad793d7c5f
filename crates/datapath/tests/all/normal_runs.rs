//! Compares the learning switch by bursts with the learning switch frame by frame: the same frames
//! in the same order by each port, the same table, the same counts.
//!
//! A rule whose only step is NORMAL gives runs of frames to it; one with a step before that changes
//! nothing walks each frame by itself.

use crate::support::*;
use datapath::clock::Clock;
use datapath::mirror::{MirrorOutput, MirrorSpec};
use datapath::vlan::{PriorityTags, VlanConfig, VlanMode};
use datapath::{BridgeId, BridgeSettings, PortFlags, PortId, PortSettings};
use packet::build::Builder;
use packet::{HeapFrame, Match};
use program::actions::Op;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const PORTS: usize = 4;

#[derive(Clone, Debug)]
struct Port {
    mode: VlanMode,
    trunks: Option<Vec<u16>>,
    priority_tags: PriorityTags,
    flags: PortFlags,
}

#[derive(Clone, Debug)]
struct Setting {
    ports: Vec<Port>,
    forward_bpdu: bool,
    flood_vlans: Vec<u16>,
    mac_table_size: usize,
    /// The port that the mirror selects, whether it selects what comes in, and whether copies go
    /// into a VLAN.
    mirror: Option<(usize, bool, bool)>,
    /// A static entry: address, VLAN, port.
    fixed: Option<(u8, u16, usize)>,
}

/// What follows the Ethernet header.
#[derive(Clone, Copy, Debug)]
enum Payload {
    Udp,
    Tcp,
    Ipv6,
    Arp,
    /// IPv4 with a wrong length.
    Lying,
    /// An unknown Ethertype.
    Other,
    /// Shorter than an Ethernet header.
    Runt,
}

#[derive(Clone, Debug)]
struct Sent {
    src: u8,
    dst: u8,
    tag: Option<(u16, u16)>,
    kind: Payload,
}

#[derive(Clone, Debug)]
enum Step {
    Burst { port: usize, frames: Vec<Sent> },
    Wait { seconds: u64 },
}

fn vid() -> impl Strategy<Value = u16> {
    prop_oneof![2 => 1..4_u16, 2 => Just(0)]
}

fn port() -> impl Strategy<Value = Port> {
    let mode = prop_oneof![
        3 => Just(VlanMode::Trunk),
        1 => (1..4_u16).prop_map(VlanMode::Access),
        1 => (1..4_u16).prop_map(VlanMode::NativeTagged),
        1 => (1..4_u16).prop_map(VlanMode::NativeUntagged),
    ];
    let trunks = prop::option::weighted(0.2, prop::collection::vec(vid(), 1..4));
    let tags = prop_oneof![
        4 => Just(PriorityTags::Never),
        1 => Just(PriorityTags::IfNonzero),
        1 => Just(PriorityTags::Always)
    ];
    let flags = (0..30_u8).prop_map(|number| PortFlags {
        no_flood: number == 0,
        down: number == 1,
        no_fwd: number == 2,
        ..Default::default()
    });
    (mode, trunks, tags, flags).prop_map(|(mode, trunks, priority_tags, flags)| Port {
        mode,
        trunks,
        priority_tags,
        flags,
    })
}

fn setting() -> impl Strategy<Value = Setting> {
    (
        prop::collection::vec(port(), PORTS),
        prop::bool::weighted(0.2),
        prop::collection::vec(1..4_u16, 0..2),
        prop_oneof![Just(10_usize), Just(100)],
        prop::option::weighted(0.2, (0..PORTS, any::<bool>(), any::<bool>())),
        prop::option::weighted(0.2, (1..16_u8, vid(), 0..PORTS)),
    )
        .prop_map(
            |(ports, forward_bpdu, flood_vlans, mac_table_size, mirror, fixed)| Setting {
                ports,
                forward_bpdu,
                flood_vlans,
                mac_table_size,
                mirror,
                fixed,
            },
        )
}

fn sent() -> impl Strategy<Value = Sent> {
    let kind = prop_oneof![
        12 => Just(Payload::Udp),
        3 => Just(Payload::Tcp),
        2 => Just(Payload::Ipv6),
        2 => Just(Payload::Arp),
        1 => Just(Payload::Lying),
        1 => Just(Payload::Other),
        1 => Just(Payload::Runt),
    ];
    let tag = prop::option::weighted(
        0.3,
        (
            prop_oneof![4 => Just(0x8100_u16), 1 => Just(0x88a8)],
            vid(),
            0..16_u16,
        )
            .prop_map(|(tpid, vid, priority)| (tpid, priority << 12 | vid)),
    );
    (0..16_u8, 0..18_u8, tag, kind).prop_map(|(src, dst, tag, kind)| Sent {
        src,
        dst,
        tag,
        kind,
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..PORTS, prop::collection::vec(sent(), 1..100)).prop_map(|(port, frames)| Step::Burst { port, frames }),
        1 => (1..3_u64).prop_map(|seconds| Step::Wait { seconds }),
    ];
    prop::collection::vec(step, 1..12)
}

/// Returns one of a few stations, so that they meet and move, or an address that is not a
/// station's.
fn address(number: u8) -> [u8; 6] {
    match number {
        0 => [0x01, 0x00, 0x5e, 0, 0, 1],
        16 => [0x01, 0x80, 0xc2, 0, 0, 2],
        17 => [0x00, 0xe0, 0x2b, 0, 0, 4],
        number => mac(number),
    }
}

fn build(sent: &Sent, number: usize) -> HeapFrame {
    let mut builder = Builder::ethernet(address(sent.dst), address(sent.src));
    if let Some((tpid, tci)) = sent.tag {
        builder = builder.tag(tpid, tci);
    }
    let (id, payload) = (number as u16, &[0_u8; 20]);
    let ipv4 = |builder: Builder| builder.ipv4(0x0a00_0001, 0x0a00_0002);
    let builder = match sent.kind {
        Payload::Udp | Payload::Lying | Payload::Runt => ipv4(builder).udp(id, 9).payload(payload),
        Payload::Tcp => ipv4(builder).tcp(id, 9, 2).payload(payload),
        Payload::Ipv6 => builder.ipv6([1; 16], [2; 16]).udp(id, 9).payload(payload),
        Payload::Arp => {
            let who = u32::from(id);
            builder
                .arp(1, address(sent.src), who, [0; 6], 2)
                .padding(18)
        }
        Payload::Other => builder
            .eth_type(0x88b5)
            .payload(&id.to_be_bytes())
            .padding(40),
    };
    let mut bytes = builder.bytes();
    match sent.kind {
        Payload::Lying => {
            let at = 14 + 4 * usize::from(sent.tag.is_some()) + 2;
            bytes[at] = 0x7f;
        }
        Payload::Runt => bytes.truncate(13),
        _ => {}
    }
    HeapFrame::new(&bytes)
}

struct Side {
    switch: Switch,
    clock: Arc<Clock>,
    bridge: BridgeId,
    ports: Vec<(PortId, Arc<Wire>)>,
}

impl Side {
    fn new(setting: &Setting, ops: Vec<Op>) -> Side {
        let clock = Arc::new(Clock::default());
        clock.stop();
        let mut switch = Switch::with_clock(1, Arc::clone(&clock));
        let bridge = switch.bridge("br0");
        let settings = BridgeSettings {
            forward_bpdu: setting.forward_bpdu,
            flood_vlans: setting.flood_vlans.clone(),
            mac_table_size: setting.mac_table_size,
            ..Default::default()
        };
        switch.datapath.set_bridge(bridge, settings).unwrap();
        let mut ports = Vec::new();
        for (index, port) in setting.ports.iter().enumerate() {
            let trunks = port.trunks.as_ref();
            let trunks = trunks.map(|trunks| trunks.iter().copied().collect());
            let vlan = VlanConfig::new(port.mode, trunks).with_priority_tags(port.priority_tags);
            let wire = Wire::new(true);
            // Frames leave in another order where a burst is received in parts.
            wire.whole.store(true, Ordering::SeqCst);
            let settings = PortSettings {
                vlan,
                flags: port.flags,
                ..Default::default()
            };
            let id = switch.port_with(bridge, index as u32 + 1, &wire, settings);
            ports.push((id, wire));
        }
        if let Some((selected, on_the_way_in, vlan)) = setting.mirror {
            let selected = vec![ports[selected].0];
            let (select_src, select_dst) = match on_the_way_in {
                true => (selected, Vec::new()),
                false => (Vec::new(), selected),
            };
            let output = match vlan {
                true => MirrorOutput::Vlan(3),
                false => MirrorOutput::Port(ports[PORTS - 1].0),
            };
            let mirror = MirrorSpec {
                name: "m".to_owned(),
                select_all: false,
                select_src,
                select_dst,
                select_vlans: Vec::new(),
                output,
                snaplen: None,
            };
            switch.datapath.set_mirrors(bridge, vec![mirror]).unwrap();
        }
        if let Some((number, vlan, port)) = setting.fixed {
            let (id, mac) = (ports[port].0, address(number));
            (switch.datapath.add_static_mac(bridge, id, vlan, mac)).unwrap();
        }
        switch.rule(bridge, 0, 0, Match::any(), ops);
        Side {
            switch,
            clock,
            bridge,
            ports,
        }
    }

    /// Waits until the worker has finished what it has.
    fn settle(&mut self) {
        wait_until("the burst", || {
            self.ports.iter().all(|(_, wire)| wire.waiting() == 0)
        });
        self.switch.program.domain.publish();
        let barrier = self.switch.datapath.barrier();
        wait_until("its end", || self.switch.datapath.barrier_passed(barrier));
    }

    fn step(&mut self, step: &Step, number: usize) {
        match step {
            Step::Burst { port, frames } => {
                let frames = frames.iter().enumerate();
                let frames = frames.map(|(index, sent)| build(sent, number * 100 + index));
                self.ports[*port].1.put_all(frames);
                self.settle();
            }
            Step::Wait { seconds } => {
                self.clock.warp(seconds * 1000);
                // Longer than a worker uses a time that it has read.
                std::thread::sleep(std::time::Duration::from_micros(300));
                self.settle();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn bursts_do_as_their_frames_one_by_one(setting in setting(), steps in steps()) {
        let mut bursts = Side::new(&setting, vec![Op::Normal]);
        let mut frames = Side::new(&setting, vec![Op::SetQueue(None), Op::Normal]);
        for (number, step) in steps.iter().enumerate() {
            bursts.step(step, number);
            frames.step(step, number);
            for (port, ((_, one), (_, other))) in bursts.ports.iter().zip(&frames.ports).enumerate() {
                prop_assert_eq!(one.take(), other.take(), "step {}, port {}", number, port);
            }
            let macs = |side: &Side| {
                let all = side.switch.datapath.macs(side.bridge).unwrap();
                all.into_iter().map(|(_, entry)| entry).collect::<Vec<_>>()
            };
            prop_assert_eq!(macs(&bursts), macs(&frames), "step {}", number);
            let stats = |side: &Side| side.switch.datapath.mac_stats(side.bridge).unwrap();
            prop_assert_eq!(stats(&bursts), stats(&frames));
            prop_assert_eq!(bursts.switch.datapath.drops(), frames.switch.datapath.drops());
            for ((one, _), (other, _)) in bursts.ports.iter().zip(&frames.ports) {
                let stats = |side: &Side, id| side.switch.datapath.port_stats(id).unwrap();
                prop_assert_eq!(stats(&bursts, *one), stats(&frames, *other));
            }
        }
    }
}
