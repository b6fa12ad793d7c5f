//! Compares the learning switch with a reference that follows the documentation step by step, on
//! random ports and frames.

use crate::support::*;
use datapath::vlan::{PriorityTags, VlanConfig, VlanMode};
use datapath::{PortFlags, PortSettings};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
struct Port {
    mode: VlanMode,
    trunks: Option<Vec<u16>>,
    priority_tags: PriorityTags,
    no_flood: bool,
}

#[derive(Clone, Debug)]
struct Sent {
    port: usize,
    src: u8,
    /// 0: broadcast.
    dst: u8,
    tci: Option<u16>,
}

fn vid() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 1..4_u16, 1 => Just(0)]
}

fn port() -> impl Strategy<Value = Port> {
    let mode = prop_oneof![
        (1..4_u16).prop_map(VlanMode::Access),
        Just(VlanMode::Trunk),
        (1..4_u16).prop_map(VlanMode::NativeTagged),
        (1..4_u16).prop_map(VlanMode::NativeUntagged),
    ];
    let trunks = prop::option::of(prop::collection::vec(vid(), 1..4));
    let tags = prop_oneof![
        Just(PriorityTags::Never),
        Just(PriorityTags::IfNonzero),
        Just(PriorityTags::Always)
    ];
    (mode, trunks, tags, prop::bool::weighted(0.1)).prop_map(
        |(mode, trunks, priority_tags, no_flood)| Port {
            mode,
            trunks,
            priority_tags,
            no_flood,
        },
    )
}

fn frames() -> impl Strategy<Value = Vec<Sent>> {
    let tci = prop::option::of((vid(), 0..8_u16).prop_map(|(vid, pcp)| pcp << 13 | vid));
    let sent = (0..5_usize, 1..6_u8, 0..6_u8, tci).prop_map(|(port, src, dst, tci)| Sent {
        port,
        src,
        dst,
        tci,
    });
    prop::collection::vec(sent, 1..40)
}

/// The reference: what each port gets, as tag control information.
struct Reference {
    ports: Vec<Port>,
    learned: HashMap<(u8, u16), usize>,
}

impl Reference {
    fn native(&self, port: usize) -> Option<u16> {
        match self.ports[port].mode {
            VlanMode::NativeTagged(vid) | VlanMode::NativeUntagged(vid) => Some(vid),
            VlanMode::Access(_) | VlanMode::Trunk => None,
        }
    }

    fn carries(&self, port: usize, vid: u16) -> bool {
        let listed = self.ports[port]
            .trunks
            .as_ref()
            .is_none_or(|trunks| trunks.contains(&vid));
        match (self.ports[port].mode, self.native(port)) {
            (VlanMode::Access(own), _) => own == vid,
            (_, Some(native)) => vid == native || vid != 0 && listed,
            _ => listed,
        }
    }

    fn leaves(&self, port: usize, vid: u16, carried_pcp: u16, frame_pcp: u16) -> Option<u16> {
        let untagged = match self.ports[port].mode {
            VlanMode::Access(_) => true,
            VlanMode::NativeUntagged(native) => native == vid,
            VlanMode::Trunk | VlanMode::NativeTagged(_) => false,
        };
        let vid = if untagged { 0 } else { vid };
        match self.ports[port].priority_tags {
            PriorityTags::Never if vid == 0 => None,
            PriorityTags::Never => Some(carried_pcp << 13 | vid),
            PriorityTags::IfNonzero if vid == 0 && frame_pcp == 0 => None,
            PriorityTags::IfNonzero | PriorityTags::Always => Some(frame_pcp << 13 | vid),
        }
    }

    fn forward(&mut self, sent: &Sent) -> Vec<(usize, Option<u16>)> {
        let tag_vid = sent.tci.map_or(0, |tci| tci & 0xfff);
        let pcp = sent.tci.map_or(0, |tci| tci >> 13);
        let vid = match self.ports[sent.port].mode {
            VlanMode::Access(own) if tag_vid == 0 => own,
            VlanMode::Access(_) => return Vec::new(),
            _ if tag_vid == 0 && self.native(sent.port).is_some() => {
                self.native(sent.port).unwrap()
            }
            _ if self.carries(sent.port, tag_vid) => tag_vid,
            _ => return Vec::new(),
        };
        self.learned.insert((sent.src, vid), sent.port);
        let to: Vec<usize> = match self.learned.get(&(sent.dst, vid)).filter(|_| sent.dst != 0) {
            Some(port) if *port == sent.port => Vec::new(),
            Some(port) => vec![*port],
            None => (0..self.ports.len())
                .filter(|port| {
                    *port != sent.port && !self.ports[*port].no_flood && self.carries(*port, vid)
                })
                .collect(),
        };
        to.into_iter()
            .map(|port| (port, self.leaves(port, vid, pcp, pcp)))
            .collect()
    }
}

fn address(number: u8) -> [u8; 6] {
    if number == 0 { BROADCAST } else { mac(number) }
}

/// Returns the control information of a frame's tag, and the frame without it.
fn untag(mut bytes: Vec<u8>) -> (Option<u16>, Vec<u8>) {
    if bytes[12..14] != [0x81, 0] {
        return (None, bytes);
    }
    let tci = u16::from_be_bytes([bytes[14], bytes[15]]);
    bytes.drain(12..16);
    (Some(tci), bytes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn the_learning_switch_does_as_its_reference(ports in prop::collection::vec(port(), 5), frames in frames()) {
        let mut switch = Switch::new(1);
        let bridge = switch.learning_bridge("br0");
        let mut wires = Vec::new();
        for (index, port) in ports.iter().enumerate() {
            let trunks = port.trunks.as_ref().map(|trunks| trunks.iter().copied().collect());
            let vlan = VlanConfig::new(port.mode, trunks).with_priority_tags(port.priority_tags);
            let flags = PortFlags { no_flood: port.no_flood, ..Default::default() };
            let wire = Wire::new(true);
            switch.port_with(bridge, index as u32 + 1, &wire, PortSettings { vlan, flags, ..Default::default() });
            wires.push(wire);
        }
        let mut reference = Reference { ports, learned: HashMap::new() };
        for (number, sent) in frames.iter().enumerate() {
            let plain = bytes(address(sent.dst), address(sent.src), None, number as u64);
            let mut whole = plain.clone();
            if let Some(tci) = sent.tci {
                whole.splice(12..12, [0x81, 0].into_iter().chain(tci.to_be_bytes()));
            }
            let before = switch.dropped_in_all();
            let counts: u64 = wires.iter().map(|wire| wire.sent()).sum();
            wires[sent.port].put(packet::HeapFrame::new(&whole));
            let wanted = reference.forward(sent);
            // The frame is finished when its copies have left, or it has been dropped for a reason.
            wait_until("the frame's end", || {
                let copies = wires.iter().map(|wire| wire.sent()).sum::<u64>() - counts;
                copies + switch.dropped_in_all() - before >= (wanted.len() as u64).max(1)
            });
            let mut seen = Vec::new();
            for (port, wire) in wires.iter().enumerate() {
                for frame in wire.take() {
                    let (tci, rest) = untag(frame);
                    prop_assert_eq!(&rest, &plain);
                    seen.push((port, tci));
                }
            }
            prop_assert_eq!(seen, wanted, "frame {}: {:?}", number, sent);
        }
    }
}
