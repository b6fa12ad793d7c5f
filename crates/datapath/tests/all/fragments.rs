//! Fragments that wait at `ct`: they go where their datagram goes, translated like it, and none is
//! lost.

use crate::support::*;
use conntrack::{Direction, Nat, Range, Request, Tracker, state};
use datapath::clock::Clock;
use packet::build::Builder;
use packet::fragment::{Fragment, Fragments, Limits, Outcome, Reassembly};
use packet::parse::parse_frame;
use packet::{Field, FlowKey, Frame, HeapFrame, Match, WordSet};
use program::actions::connection::{Track, Zone};
use program::actions::{Op, OpList};
use program::group::Bucket;
use std::collections::HashMap;
use std::sync::Arc;

fn track(zone: u16, table: Option<u8>, nat: Option<Nat>) -> Op {
    Op::Track(Box::new(Track {
        commit: true,
        force: false,
        zone: Zone::Number(zone),
        table,
        writes: [].into(),
        nat,
        helper: None,
    }))
}

/// A match on these bits of `ct_state`.
fn ct_state(bits: u32, mask: u32) -> Match {
    let mut matching = Match::any();
    matching.set(Field::CtState, &bits.to_be_bytes(), &mask.to_be_bytes());
    matching
}

fn datagram(v6: bool, port: u16, size: usize) -> HeapFrame {
    let ethernet = Builder::ethernet(mac(2), mac(1));
    let ip = match v6 {
        // Behind a VLAN tag.
        true => ethernet.vlan(5).ipv6([0xfd; 16], [0xfe; 16]),
        false => ethernet.ipv4(0x0a00_0001, 0x0a00_0002),
    };
    let payload: Vec<u8> = (0..size).map(|at| (at * 7 % 251) as u8).collect();
    ip.udp(port, 53).payload(&payload).frame()
}

fn cut(datagram: &HeapFrame, id: u32) -> Vec<HeapFrame> {
    let mut bytes = datagram.to_vec();
    if bytes[12] == 8 {
        // The builder's packets must not be fragmented.
        bytes[18..22].copy_from_slice(&[(id >> 8) as u8, id as u8, 0, 0]);
        bytes[24..26].fill(0);
        let checksum = packet::checksum::ipv4_header(&bytes[14..34]);
        bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
    let cut = Fragments::new(HeapFrame::new(&bytes), 1400, id).unwrap();
    cut.map(|fragment| fragment.expect("memory")).collect()
}

/// Shuffles, with a seed.
fn shuffle<T>(items: &mut [T], mut seed: u64) {
    for at in (1..items.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        items.swap(at, (seed >> 33) as usize % (at + 1));
    }
}

/// Puts fragments together and returns the datagrams.
fn join(frames: Vec<Vec<u8>>) -> Vec<HeapFrame> {
    let limits = Limits {
        packets_of_one: 256,
        ..Limits::default()
    };
    let mut waiting = Reassembly::new(limits);
    let mut whole = Vec::new();
    for bytes in frames {
        let mut frame = HeapFrame::new(&bytes);
        let fragment = Fragment::read(&mut frame).unwrap().expect("a fragment");
        let (outcome, lost) = waiting.add(fragment, frame, Some(true), 0);
        assert_eq!(lost, 0);
        match outcome {
            Outcome::Waits => {}
            Outcome::Whole(datagram) => whole.push(datagram),
            other => panic!("{other:?}"),
        }
    }
    assert!(waiting.is_empty());
    whole
}

/// Returns source and source port as a tracker sees them, which checks all checksums.
fn seen(frame: &mut HeapFrame) -> (std::net::IpAddr, u16) {
    let mut key = FlowKey::ZERO;
    let layers = parse_frame(frame, 1, WordSet::MINI_KEY, &mut key);
    let tracker = Tracker::new([1, 2]);
    let tracked = tracker.track(frame, &layers, &Request::default(), 1);
    assert_eq!(tracked.state, state::NEW | state::TRACKED);
    let tuple = tracked.original.unwrap();
    (tuple.source, tuple.source_port)
}

#[test]
fn all_fragments_are_translated_and_their_datagram_is_right() {
    for v6 in [false, true] {
        let mut switch = Switch::new(2);
        let bridge = switch.bridge("br0");
        let ports = switch.ports(bridge, 3);
        let address: std::net::IpAddr = match v6 {
            true => std::net::Ipv6Addr::from([0xfc; 16]).into(),
            false => std::net::Ipv4Addr::new(10, 0, 0, 100).into(),
        };
        let nat = Nat {
            direction: Some(Direction::Source),
            range: Some(Range {
                min: address,
                max: address,
                ports: Some((7000, 7999)),
            }),
            ..Nat::default()
        };
        switch.rule(
            bridge,
            0,
            0,
            Match::any(),
            vec![track(3, Some(1), Some(nat))],
        );
        let new = ct_state(state::NEW | state::TRACKED, state::NEW | state::TRACKED);
        switch.rule(bridge, 1, 1, new, vec![Op::Output(3)]);
        let mut frames = Vec::new();
        for number in 0..40_u16 {
            let whole = datagram(v6, 5000 + number, 1500 + usize::from(number) * 97);
            frames.extend(cut(&whole, number.into()));
        }
        shuffle(&mut frames, 5);
        let count = frames.len() as u64;
        // By two ports, which different workers serve.
        for (number, frame) in frames.into_iter().enumerate() {
            ports[number % 2].1.put(frame);
        }
        let out = &ports[2].1;
        wait_until("all leave", || out.sent() == count);
        let sent = out.take();
        // Those of a datagram leave in order.
        let mut offsets = HashMap::new();
        for bytes in &sent {
            let fragment = Fragment::read(&mut HeapFrame::new(bytes)).unwrap().unwrap();
            let before = offsets.insert(fragment.datagram, fragment.offset);
            assert!(before.map_or(fragment.is_first(), |before| before < fragment.offset));
        }
        let mut whole = join(sent);
        assert_eq!(whole.len(), 40);
        for frame in &mut whole {
            let (source, port) = seen(frame);
            assert_eq!(source, address);
            assert!((7000..8000).contains(&port));
        }
        let status = switch.datapath.fragments();
        let counts = if v6 { status.v6 } else { status.v4 }.counts;
        assert_eq!((counts.accepted, counts.completed), (count, count));
        assert_eq!(switch.dropped_in_all(), 0);
    }
}

#[test]
fn fragments_go_where_their_datagram_goes() {
    let set = |ops: &[Op]| Op::WriteActions(ops.to_vec().into());
    let list = |ops: &[Op]| Arc::new(OpList::new(ops.to_vec()));
    let mut switch = Switch::new(1);
    let bucket = |ops: &[Op]| {
        let counter = switch.program.counters.allocate().unwrap();
        Op::Bucket(Arc::new(Bucket::new(ops.into(), counter, None)))
    };
    let (two, three) = (Op::Output(2), Op::Output(3));
    let (ends, goes_on) = (track(1, None, None), track(2, Some(1), None));
    let again = track(3, Some(2), None);
    let address = std::net::IpAddr::from([10, 9, 9, 9]);
    let translates = track(
        4,
        Some(2),
        Some(Nat {
            direction: Some(Direction::Source),
            range: Some(Range {
                min: address,
                max: address,
                ports: None,
            }),
            ..Nat::default()
        }),
    );
    let ways: Vec<Vec<Op>> = vec![
        vec![goes_on.clone()],
        vec![set(std::slice::from_ref(&goes_on))],
        vec![set(std::slice::from_ref(&translates)), two.clone()],
        vec![
            Op::Clone(list(&[set(std::slice::from_ref(&translates))])),
            three.clone(),
        ],
        vec![goes_on.clone(), two.clone()],
        vec![ends.clone(), two.clone()],
        vec![goes_on.clone(), again.clone(), two.clone()],
        vec![Op::Clone(list(&[ends.clone(), three.clone()])), two.clone()],
        vec![
            Op::Clone(list(&[goes_on.clone(), three.clone()])),
            ends.clone(),
            two.clone(),
        ],
        vec![set(std::slice::from_ref(&two)), ends.clone(), three.clone()],
        vec![set(std::slice::from_ref(&two)), goes_on.clone()],
        vec![
            set(std::slice::from_ref(&two)),
            goes_on.clone(),
            three.clone(),
        ],
        vec![
            set(std::slice::from_ref(&two)),
            Op::Clone(list(std::slice::from_ref(&goes_on))),
            three.clone(),
        ],
        vec![
            set(std::slice::from_ref(&two)),
            bucket(&[ends.clone(), three.clone()]),
        ],
        vec![
            set(std::slice::from_ref(&two)),
            bucket(std::slice::from_ref(&goes_on)),
            bucket(&[ends.clone(), three.clone()]),
        ],
        vec![bucket(&[goes_on.clone(), two.clone()]), three.clone()],
        vec![
            Op::Resubmit {
                in_port: None,
                table: Some(3),
            },
            ends.clone(),
            three.clone(),
        ],
        vec![Op::Clone(list(&[
            Op::Clone(list(&[goes_on.clone(), two.clone()])),
            two.clone(),
        ]))],
    ];
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 3);
    switch.rule(
        bridge,
        1,
        1,
        ct_state(state::INVALID, state::INVALID),
        vec![],
    );
    switch.rule(bridge, 1, 0, Match::any(), vec![again, Op::Output(3)]);
    switch.rule(
        bridge,
        2,
        1,
        ct_state(state::INVALID, state::INVALID),
        vec![],
    );
    switch.rule(
        bridge,
        2,
        0,
        Match::any(),
        vec![Op::Output(2), Op::Output(3)],
    );
    switch.rule(bridge, 3, 0, Match::any(), vec![ends, two]);
    for (number, ops) in (0_u16..).zip(ways) {
        let what = format!("{number}: {ops:?}");
        let rule = switch.rule(bridge, 0, 1, in_port(1), ops);
        let sent = || [ports[1].1.sent(), ports[2].1.sent()];
        let mut last = sent();
        // Waits until nothing more comes, as counted by a rule's barrier after all was received.
        let mut run = |frames: Vec<HeapFrame>, switch: &mut Switch| {
            for frame in frames {
                ports[0].1.put(frame);
            }
            wait_until("all are received", || ports[0].1.waiting() == 0);
            for _ in 0..3 {
                let barrier = switch.datapath.barrier();
                wait_until("turns pass", || switch.datapath.barrier_passed(barrier));
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            let now = sent();
            let grown = [now[0] - last[0], now[1] - last[1]];
            last = now;
            grown
        };
        let whole = datagram(false, 6000 + number, 4000);
        let copies = run(vec![whole.clone()], &mut switch);
        assert!(copies != [0, 0], "{what}");
        let mut fragments = cut(&whole, number.into());
        let count = fragments.len() as u64;
        shuffle(&mut fragments, number.into());
        assert_eq!(
            run(fragments, &mut switch),
            copies.map(|copies| copies * count),
            "{what}"
        );
        assert_eq!(switch.datapath.fragments().held, 0, "{what}");
        switch.remove_rule(bridge, 0, rule);
    }
}

#[test]
fn incomplete_datagrams_expire_as_invalid_or_are_dropped_with_their_bridge() {
    let clock = Arc::new(Clock::default());
    clock.stop();
    let mut switch = Switch::with_clock(1, Arc::clone(&clock));
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 2);
    let untracked = ct_state(state::INVALID, state::INVALID | state::TRACKED);
    switch.rule(bridge, 0, 0, Match::any(), vec![track(1, Some(1), None)]);
    switch.rule(bridge, 1, 1, untracked, vec![Op::Output(2)]);
    let held = |switch: &Switch| switch.datapath.fragments().held;
    for id in 0..50 {
        ports[0]
            .1
            .put(cut(&datagram(false, 1, 3000), id).swap_remove(1));
    }
    wait_until("all wait", || held(&switch) == 50);
    clock.warp(14_000);
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(ports[1].1.sent(), 0);
    clock.warp(1_100);
    wait_until("all go on", || ports[1].1.sent() == 50);
    assert_eq!(held(&switch), 0);
    for id in 0..3 {
        ports[0]
            .1
            .put(cut(&datagram(true, 1, 3000), id).swap_remove(0));
    }
    wait_until("all wait", || held(&switch) == 3);
    switch.datapath.remove_port(ports[1].0).unwrap();
    assert_eq!((held(&switch), switch.dropped("fragments_purged")), (0, 3));
    ports[0]
        .1
        .put(cut(&datagram(true, 1, 3000), 4).swap_remove(0));
    wait_until("it waits", || held(&switch) == 1);
    // Overdue only where no worker looks.
    switch.datapath.set_workers(&[]).unwrap();
    clock.warp(20_000);
    switch.datapath.purge_overdue_fragments();
    assert_eq!(held(&switch), 1);
    clock.warp(10_000);
    switch.datapath.purge_overdue_fragments();
    assert_eq!((held(&switch), switch.dropped("fragments_purged")), (0, 4));
}

/// Fragments that are flooded around a loop, and wait at each turn until their datagram is whole
/// again, end as whole packets do.
#[test]
fn fragments_in_a_loop_of_patch_ports_end() {
    let mut switch = Switch::new(1);
    let (one, two) = (switch.bridge("br1"), switch.bridge("br2"));
    for link in 0..4_u32 {
        switch.patch(one, 10 + link, &format!("a{link}"), &format!("b{link}"));
        switch.patch(two, 10 + link, &format!("b{link}"), &format!("a{link}"));
    }
    let wire = Wire::new(true);
    switch.port(one, 1, &wire);
    for bridge in [one, two] {
        let tracks = track(1, Some(1), None);
        switch.rule(bridge, 0, 0, Match::any(), vec![tracks]);
        let floods = Op::All { flood: true };
        switch.rule(bridge, 1, 0, Match::any(), vec![floods]);
    }
    for fragment in cut(&datagram(false, 1, 2000), 7) {
        wire.put(fragment);
    }
    wait_until("the storm ends", || {
        switch.dropped("too_many_patches") > 0 && wire.waiting() == 0
    });
    switch.program.domain.publish();
    let barrier = switch.datapath.barrier();
    wait_until("a turn later", || switch.datapath.barrier_passed(barrier));
    assert!(wire.sent() < 100_000);
}

/// A sender that floods displaces its own fragments; where rules have those wait once more, they
/// find no room, and displace no others.
#[test]
fn displaced_fragments_displace_no_others() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 2);
    switch.datapath.set_most_fragments(10).unwrap();
    let untracked = ct_state(state::INVALID, state::INVALID | state::TRACKED);
    let invalid = ct_state(state::INVALID | state::TRACKED, u32::MAX);
    switch.rule(bridge, 0, 0, Match::any(), vec![track(1, Some(1), None)]);
    switch.rule(bridge, 1, 1, untracked, vec![track(1, Some(2), None)]);
    switch.rule(bridge, 2, 1, invalid, vec![Op::Output(2)]);
    for id in 0..25 {
        ports[0]
            .1
            .put(cut(&datagram(false, 1, 3000), id).swap_remove(0));
    }
    let out = &ports[1].1;
    wait_until("those for which there is no room leave", || {
        out.sent() == 15
    });
    let status = switch.datapath.fragments();
    let counts = status.v4.counts;
    assert_eq!((status.held, counts.displaced, counts.full), (10, 15, 15));
    // The oldest first.
    let mut ids = Vec::new();
    for bytes in out.take() {
        let fragment = Fragment::read(&mut HeapFrame::new(&bytes)).unwrap();
        ids.push(fragment.unwrap().datagram.id);
    }
    assert_eq!(ids, Vec::from_iter(0..15));
}

/// A list that is longer than what is looked at at once has a line for each datagram, in order.
#[test]
fn all_that_wait_are_listed() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 1);
    switch.rule(bridge, 0, 0, Match::any(), vec![track(1, Some(1), None)]);
    assert_eq!(switch.datapath.waiting_fragments(), "");
    for count in [1, 63, 64, 65, 128, 200_u32] {
        for id in switch.datapath.fragments().held..count {
            let first = cut(&datagram(false, 1, 3000), id).swap_remove(0);
            ports[0].1.put(first);
        }
        wait_until("all wait", || switch.datapath.fragments().held == count);
        let listed = switch.datapath.waiting_fragments();
        let id = |line: &str| line.split_once("ip_id=")?.1.split(',').next()?.parse().ok();
        let ids: Option<Vec<u32>> = listed.lines().map(id).collect();
        assert_eq!(ids, Some(Vec::from_iter(0..count)));
    }
}
