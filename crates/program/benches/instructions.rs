//! Instructions per packet of parsing, classifying, acting, and of whole walks, as counted by
//! callgrind.
//!
//! `bench/instructions` runs this under valgrind, which counts what [`counted`] executes, and
//! compares the counts with `bench/instructions.txt`. They are the same on every machine, because
//! nothing in here depends on time, addresses or chance (hash keys are fixed here,
//! `program::secret`); so they show what times on a shared machine cannot. Run by itself, it only
//! prints how many packets each benchmark handles.

mod support;

use packet::build::Builder;
use packet::edit::{self, CompiledSet};
use packet::parse::{self, PACKET_WORDS};
use packet::{Field, FlowKey, Frame, HeapFrame, Layers, Value, WordSet};
use program::exec::Engine;
use std::hint::black_box;
use support::{BURST, Buffer, Rules, Sink, Switch};

/// Bursts of a lookup or a walk that are counted; several, to meet more rules than one burst does.
const BURSTS: usize = 32;
/// Packets in these bursts.
const PACKETS: usize = BURST * BURSTS;

/// The code that is counted: valgrind begins at this function and ends with it.
#[inline(never)]
fn counted(work: &mut dyn FnMut()) {
    work();
    // Keeps the call to `work` from being a tail call.
    black_box(());
}

/// Counts `work`, which handles this many packets, after running it once: one-time costs are not
/// packets' costs.
fn count(name: &str, packets: usize, mut work: impl FnMut()) {
    work();
    counted(&mut work);
    println!("{packets} {name}");
}

fn udp() -> Builder {
    Builder::ethernet([2; 6], [4; 6])
        .ipv4(0x0a00_0001, 0x0a00_0002)
        .udp(1, 80)
        .payload(&[0; 18])
}

fn burst(builder: &Builder) -> Vec<HeapFrame> {
    (0..BURST).map(|_| builder.frame()).collect()
}

fn parsing() {
    let ethernet = Builder::ethernet([2; 6], [4; 6]);
    let ipv4 = |outer: Builder| outer.ipv4(1, 2);
    let kinds = [
        ("udp", udp(), WordSet::EMPTY),
        ("udp, all words", udp(), PACKET_WORDS),
        (
            "tcp",
            ipv4(ethernet.clone()).tcp(1, 2, 0x10),
            WordSet::EMPTY,
        ),
        (
            "vlan udp",
            ipv4(ethernet.clone().vlan(5)).udp(1, 2).payload(&[0; 18]),
            WordSet::EMPTY,
        ),
        (
            "ipv6 udp",
            ethernet.clone().ipv6([1; 16], [2; 16]).udp(1, 2),
            PACKET_WORDS,
        ),
        (
            "arp",
            ethernet.arp(1, [4; 6], 1, [0; 6], 2).padding(18),
            PACKET_WORDS,
        ),
    ];
    for (name, builder, needed) in kinds {
        let mut frames = burst(&builder);
        let mut keys = vec![FlowKey::ZERO; BURST];
        let mut layers = vec![Layers::default(); BURST];
        count(&format!("parse {name}"), BURST, || {
            parse::parse_burst(black_box(&mut frames), 1, needed, &mut keys, &mut layers);
            black_box(&keys);
        });
    }
}

fn acting(name: &str, mut act: impl FnMut(&mut HeapFrame, &mut Layers, &mut FlowKey)) {
    let mut frames = burst(&udp());
    let mut keys = vec![FlowKey::ZERO; BURST];
    let mut layers = vec![Layers::default(); BURST];
    parse::parse_burst(&mut frames, 1, PACKET_WORDS, &mut keys, &mut layers);
    count(&format!("act {name}"), BURST, || {
        for ((frame, layers), key) in frames.iter_mut().zip(&mut layers).zip(&mut keys) {
            act(black_box(frame), layers, key);
        }
        black_box(&keys);
    });
}

fn actions() {
    for (name, field) in [
        ("set eth_dst", Field::EthDst),
        ("set ip_dst", Field::Ipv4Dst),
        ("set udp_dst", Field::UdpDst),
        ("set nw_ttl", Field::IpTtl),
        ("set reg0", Field::Reg0),
        ("set vlan_vid", Field::VlanVid),
    ] {
        let def = field.def();
        let mut number = 0;
        // Different values, because setting the present value is a short cut.
        let sets: Vec<CompiledSet> = (1..=8)
            .map(|value| {
                let value = Value::from_u128(value << def.shift, def.bytes);
                CompiledSet::new(field, &value, &def.place())
            })
            .collect();
        acting(name, |frame, layers, key| {
            number += 1;
            black_box(sets[number % 8].run(frame, layers, key));
        });
    }
    acting("dec_ttl", |frame, layers, key| {
        // So that the TTL never expires.
        frame.head_mut()[22] = 64;
        black_box(edit::dec_ttl(frame, layers, key)).ok();
    });
    acting("push_vlan, pop_vlan", |frame, layers, key| {
        black_box(edit::push_vlan(frame, layers, key, 0x8100));
        edit::pop_vlan(frame, layers, key);
    });
}

/// Returns rule sets by name, with the number of flows that meet them.
fn tables() -> Vec<(&'static str, u32, Rules)> {
    vec![
        ("port", 1, support::one_port()),
        ("one service", 1000, support::one_service()),
        ("list of 8", 8, support::exact(8)),
        ("1000 exact", 1000, support::exact(1000)),
        ("1000 over 10 masks", 10_000, support::masks()),
    ]
}

fn classifying(name: &str, flows: u32, mut switch: Switch) {
    let mut frames = support::frames(PACKETS, flows);
    let mut keys = vec![FlowKey::ZERO; frames.len()];
    let mut layers = vec![Layers::default(); frames.len()];
    parse::parse_burst(&mut frames, 1, PACKET_WORDS, &mut keys, &mut layers);
    count(&format!("classify {name}"), keys.len(), || {
        for keys in keys.chunks(BURST) {
            let guard = switch.reader.begin();
            let mut found = [None; BURST];
            let bridge = &switch.bridge;
            bridge.lookup_burst(0, keys.len(), |index| &keys[index], &guard, &mut found);
            assert!(found.iter().all(Option::is_some));
        }
    });
}

fn walking(name: &str, mut frames: Vec<Buffer>, mut switch: Switch) {
    let packets = frames.len();
    let (mut engine, mut sink) = (Engine::new(), Sink::default());
    sink.out.reserve(packets);
    let mut burst = Vec::with_capacity(BURST);
    count(&format!("walk {name}"), packets, || {
        for _ in 0..BURSTS {
            burst.extend(frames.drain(frames.len() - BURST..));
            let guard = switch.reader.begin();
            engine.burst(&switch.bridge, &guard, 1, &mut burst, 0, 1, &mut sink);
        }
        // The same packets again, in the same order.
        frames.extend(sink.out.drain(..).rev());
    });
    assert_eq!((frames.len(), sink.lost), (packets, 0));
}

fn main() {
    program::secret::fix();
    parsing();
    actions();
    for (name, flows, rules) in tables() {
        classifying(name, flows, Switch::new(&rules));
    }
    let pipelines = [
        (
            "rewrite",
            1,
            vec![(0, support::udp(), 1, support::rewrite())],
        ),
        ("l2l3", 10_000, support::l2l3()),
    ];
    for (name, flows, rules) in tables().into_iter().chain(pipelines) {
        walking(name, support::frames(PACKETS, flows), Switch::new(&rules));
    }
    let frames = support::frames_l2l3(PACKETS, 10_000);
    walking("l2l3-10k", frames, Switch::new(&support::l2l3_10k()));
    let masks = || Switch::shaped(&support::masks());
    classifying("1000 over 10 masks, in trees", 10_000, masks());
    let frames = support::frames(PACKETS, 10_000);
    walking("1000 over 10 masks, in trees", frames, masks());
    let of_ipv6 = [
        ("one service of IPv6", 1000, support::one_service6()),
        ("1000 exact of IPv6", 1000, support::exact6(1000)),
        ("l2l3 of IPv6", 10_000, support::l2l3_6()),
    ];
    for (name, flows, rules) in of_ipv6 {
        walking(name, support::frames6(PACKETS, flows), Switch::new(&rules));
    }
    let requests = (0..PACKETS as u32).map(|number| support::arp_frame(number, 1));
    walking("ARP", requests.collect(), Switch::new(&support::arp()));
}
