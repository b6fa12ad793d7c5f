//! What becomes of frames: learning, VLANs, flags, mirrors, patch ports, controllers.

use crate::support::*;
use datapath::mirror::{MirrorOutput, MirrorSpec};
use datapath::vlan::{VlanConfig, VlanMode};
use datapath::{BridgeSettings, Error, LOCAL, Moment, PortFlags, PortSettings};
use packet::build::Builder;
use packet::{Field, Frame, HeapFrame, Match, Offload};
use program::actions::{Op, OpList, PacketInReason, ToController};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

#[test]
fn a_learning_switch_floods_then_learns_then_forwards() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let ports = switch.ports(bridge, 3);
    ports[0].1.put(frame(mac(2), mac(1), 1));
    wait_until("flooded", || {
        ports[1].1.sent() == 1 && ports[2].1.sent() == 1
    });
    ports[1].1.put(frame(mac(1), mac(2), 2));
    wait_until("forwarded", || ports[0].1.sent() == 1);
    assert_eq!(
        ports[2].1.sent(),
        1,
        "the third port has seen only the flood"
    );
    let macs = switch.datapath.macs(bridge).unwrap();
    let mut learned: Vec<_> = macs
        .iter()
        .map(|(port, entry)| (*port, entry.mac, entry.vlan))
        .collect();
    learned.sort();
    assert_eq!(learned, [(ports[0].0, mac(1), 0), (ports[1].0, mac(2), 0)]);
    // To its own port: dropped, for a named reason.
    ports[0].1.put(frame(mac(1), mac(9), 3));
    wait_until("dropped", || switch.dropped("learned_on_ingress") == 1);
    // A move.
    ports[2].1.put(frame(mac(2), mac(1), 4));
    wait_until("moved", || {
        switch.datapath.mac_stats(bridge).unwrap().moved == 1
    });
    ports[1].1.put(frame(mac(1), mac(2), 5));
    wait_until("forwarded to the new place", || ports[2].1.sent() == 2);
}

#[test]
fn ageing_flushing_and_static_entries() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let ports = switch.ports(bridge, 2);
    switch
        .datapath
        .set_bridge(
            bridge,
            BridgeSettings {
                mac_aging: 10,
                ..Default::default()
            },
        )
        .unwrap();
    switch
        .datapath
        .add_static_mac(bridge, ports[1].0, 0, mac(7))
        .unwrap();
    ports[0].1.put(frame(mac(7), mac(1), 1));
    wait_until("sent", || ports[1].1.sent() == 1);
    let count = |switch: &Switch| switch.datapath.mac_stats(bridge).unwrap();
    assert_eq!((count(&switch).current, count(&switch).fixed), (2, 1));
    switch.datapath.clock().warp(8_000);
    switch.datapath.run();
    assert_eq!(count(&switch).current, 2);
    switch.datapath.clock().warp(3_000);
    switch.datapath.run();
    assert_eq!((count(&switch).current, count(&switch).expired), (1, 1));
    ports[0].1.put(frame(mac(7), mac(1), 2));
    wait_until("learned again", || count(&switch).current == 2);
    switch.datapath.flush_macs(bridge, None).unwrap();
    assert_eq!(count(&switch).current, 1, "static entries stay");
    assert!(switch.datapath.remove_mac(bridge, 0, mac(7)).unwrap());
    assert!(!switch.datapath.remove_mac(bridge, 0, mac(7)).unwrap());
}

#[test]
fn vlans_keep_ports_apart_and_tags_are_as_each_port_wants() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let wires: Vec<_> = (0..5).map(|_| Wire::new(true)).collect();
    let vlan = |mode| PortSettings {
        vlan: VlanConfig::new(mode, None),
        ..Default::default()
    };
    switch.port_with(bridge, 1, &wires[0], access(10));
    switch.port_with(bridge, 2, &wires[1], access(10));
    switch.port_with(bridge, 3, &wires[2], access(20));
    switch.port_with(bridge, 4, &wires[3], vlan(VlanMode::Trunk));
    switch.port_with(bridge, 5, &wires[4], vlan(VlanMode::NativeUntagged(10)));
    wires[0].put(frame(BROADCAST, mac(1), 1));
    wait_until("flooded", || {
        [1, 3, 4]
            .iter()
            .all(|port: &usize| wires[*port].sent() == 1)
    });
    assert_eq!(wires[1].take(), [bytes(BROADCAST, mac(1), None, 1)]);
    let mut with_tag = bytes(BROADCAST, mac(1), None, 1);
    with_tag.splice(12..12, [0x81, 0, 0, 10]);
    assert_eq!(wires[3].take(), [with_tag]);
    assert_eq!(wires[4].take(), [bytes(BROADCAST, mac(1), None, 1)]);
    assert_eq!(wires[2].sent(), 0);
    // From the trunk into VLAN 20: the tag is removed.
    wires[3].put(tagged(BROADCAST, mac(4), 20, 2));
    wait_until("out of the other access port", || wires[2].sent() == 1);
    assert_eq!(wires[2].take()[0][12..14], [0x88, 0xb5]);
    // A tag on an access port is rejected.
    wires[0].put(tagged(BROADCAST, mac(1), 10, 3));
    wait_until("refused", || switch.dropped("vlan_not_carried") == 1);
    // A frame that ends in its tag, and one that is too short.
    let mut broken = vec![0_u8; 17];
    broken[12] = 0x81;
    wires[3].put(HeapFrame::new(&broken));
    wires[3].put(HeapFrame::new(&[1, 2, 3]));
    wires[3].put(HeapFrame::new(&[]));
    wait_until("counted", || {
        switch.dropped("truncated_tag") == 1 && switch.dropped("runt") == 2
    });
}

#[test]
fn flags_and_reserved_addresses() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let ports = switch.ports(bridge, 3);
    let set = |switch: &mut Switch, port: usize, flags| {
        switch
            .datapath
            .modify_port(
                ports[port].0,
                PortSettings {
                    flags,
                    ..Default::default()
                },
            )
            .unwrap();
    };
    set(
        &mut switch,
        1,
        PortFlags {
            no_flood: true,
            ..Default::default()
        },
    );
    ports[0].1.put(frame(BROADCAST, mac(1), 1));
    wait_until("flooded", || ports[2].1.sent() == 1);
    assert_eq!(ports[1].1.sent(), 0);
    set(
        &mut switch,
        0,
        PortFlags {
            no_recv: true,
            ..Default::default()
        },
    );
    ports[0].1.put(frame(BROADCAST, mac(1), 2));
    wait_until("not received", || switch.dropped("no_receive") == 1);
    set(
        &mut switch,
        0,
        PortFlags {
            down: true,
            ..Default::default()
        },
    );
    ports[0].1.put(frame(BROADCAST, mac(1), 3));
    ports[1].1.put(frame(mac(1), mac(2), 4));
    wait_until("down", || switch.dropped("port_down") == 2);
    set(
        &mut switch,
        0,
        PortFlags {
            no_fwd: true,
            ..Default::default()
        },
    );
    ports[1].1.put(frame(mac(1), mac(2), 5));
    wait_until("not forwarded", || switch.dropped("no_forward") == 1);
    assert_eq!(
        switch.datapath.port_stats(ports[0].0).unwrap().rx_refused,
        2
    );
    let stp = [0x01, 0x80, 0xc2, 0, 0, 0];
    ports[1].1.put(frame(stp, mac(2), 6));
    wait_until("reserved", || switch.dropped("reserved_address") == 1);
    switch
        .datapath
        .set_bridge(
            bridge,
            BridgeSettings {
                forward_bpdu: true,
                ..Default::default()
            },
        )
        .unwrap();
    ports[1].1.put(frame(stp, mac(2), 7));
    wait_until("forwarded", || ports[2].1.sent() == 2);
}

#[test]
fn outputs_of_rules() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 3);
    let local = Wire::new(true);
    switch.port(bridge, LOCAL, &local);
    let far = Wire::new(true);
    switch.port(bridge, 60_000, &far);
    switch.rule(
        bridge,
        0,
        1,
        in_port(1),
        vec![Op::Output(2), Op::Output(LOCAL), Op::Output(60_000)],
    );
    switch.rule(
        bridge,
        0,
        1,
        in_port(2),
        vec![Op::All { flood: false }, Op::InPort],
    );
    switch.rule(
        bridge,
        0,
        1,
        in_port(3),
        vec![Op::Output(3), Op::Output(44)],
    );
    ports[0].1.put(frame(mac(9), mac(1), 1));
    wait_until("three copies", || {
        ports[1].1.sent() == 1 && local.sent() == 1 && far.sent() == 1
    });
    ports[1].1.put(frame(mac(9), mac(1), 2));
    wait_until("to all", || {
        ports[0].1.sent() == 1 && ports[2].1.sent() == 1 && local.sent() == 2 && far.sent() == 2
    });
    wait_until("and back", || ports[1].1.sent() == 2);
    ports[2].1.put(frame(mac(9), mac(1), 3));
    wait_until("nowhere", || {
        switch.dropped("ingress_port") == 1 && switch.dropped("unknown_port") == 1
    });
    far.put(frame(mac(9), mac(1), 4));
    wait_until("no rule", || switch.dropped("table_miss") == 1);
}

/// Finished frames that meet a single rule that only sends: their egress port is given their
/// lengths, whether they have one segment or several, and gets all of them unchanged; the queue in
/// [`Wire`] compares. Frames from a port that may leave them unfinished come without lengths.
/// Finished frames with others between them leave unchanged, too.
#[test]
fn ports_are_told_the_lengths_of_finished_bursts_that_meet_one_rule() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let wires: Vec<_> = (0..3).map(|_| Wire::new(true)).collect();
    wires[0].never_offloads.store(true, Ordering::SeqCst);
    for (number, wire) in (1..).zip(&wires) {
        switch.port(bridge, number, wire);
    }
    let [finished, out, open] = &wires[..] else {
        unreachable!("three");
    };
    let mut udp = Match::any();
    udp.set_exact(Field::EthType, 0x0800);
    udp.set_exact(Field::IpProto, 17);
    switch.rule(bridge, 0, 2, udp, vec![Op::Output(2)]);
    let one = |number: usize, unfinished: bool| {
        let bytes = Builder::ethernet([2; 6], [4; 6])
            .ipv4(1, 2)
            .udp(number as u16, 80)
            .payload(&vec![0; 18 + number * 37 % 1900])
            .bytes();
        let at = if number.is_multiple_of(3) {
            60.min(bytes.len())
        } else {
            bytes.len()
        };
        let mut frame = HeapFrame::with_segments(&[&bytes[..at], &bytes[at..]]);
        frame.set_offload(Offload {
            partial_checksum: unfinished,
            csum_start: if unfinished { 34 } else { 0 },
            csum_offset: if unfinished { 6 } else { 0 },
            ..Offload::default()
        });
        frame
    };
    let told = || out.finished.load(Ordering::SeqCst);
    let all = |unfinished| -> Vec<HeapFrame> { (0..1000).map(|at| one(at, unfinished)).collect() };
    let bytes: Vec<Vec<u8>> = all(false).iter().map(Frame::to_vec).collect();
    finished.put_all(all(false));
    wait_until("all sent", || out.sent() == 1000);
    assert_eq!(told(), 1000);
    assert_eq!(out.take(), bytes);
    open.put_all(all(true));
    wait_until("those of the other port sent", || out.sent() == 2000);
    assert_eq!(told(), 1000, "its frames may be unfinished");
    assert_eq!(out.take(), bytes);
    // Every other one meets no rule; and some that are not Ethernet at all.
    let odd = (0..1000).flat_map(|number| {
        let other = match number % 5 {
            0 => HeapFrame::new(&[0; 9]),
            _ => frame(mac(9), mac(1), 1),
        };
        [one(number, false), other]
    });
    finished.put_all(odd);
    wait_until("the others sent", || out.sent() == 3000);
    assert_eq!(out.take(), bytes);
    wait_until("the rest dropped", || {
        switch.dropped("table_miss") == 800 && switch.dropped("runt") == 200
    });
}

fn mirror(name: &str, output: MirrorOutput) -> MirrorSpec {
    MirrorSpec {
        name: name.to_owned(),
        select_all: false,
        select_src: Vec::new(),
        select_dst: Vec::new(),
        select_vlans: Vec::new(),
        output,
        snaplen: None,
    }
}

#[test]
fn a_mirror_gets_each_packet_once() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let ports = switch.ports(bridge, 4);
    let all = MirrorSpec {
        select_all: true,
        snaplen: Some(20),
        ..mirror("m", MirrorOutput::Port(ports[3].0))
    };
    switch.datapath.set_mirrors(bridge, vec![all]).unwrap();
    ports[0].1.put(frame(BROADCAST, mac(1), 1));
    wait_until("flooded and mirrored", || {
        ports[1].1.sent() == 1 && ports[2].1.sent() == 1 && ports[3].1.sent() == 1
    });
    assert_eq!(ports[3].1.take()[0].len(), 20);
    assert_eq!(ports[1].1.take()[0].len(), 60);
    let stats = switch.datapath.mirror_stats(bridge, "m").unwrap();
    assert_eq!((stats.tx_packets, stats.tx_bytes), (1, 60));
    // Nothing else goes there, and nothing comes from there.
    ports[3].1.put(frame(BROADCAST, mac(4), 2));
    wait_until("refused", || switch.dropped("mirror_port") == 1);
    assert_eq!(ports[0].1.sent(), 0);
    switch.datapath.set_mirrors(bridge, Vec::new()).unwrap();
    ports[0].1.put(frame(BROADCAST, mac(1), 3));
    wait_until("an ordinary port again", || ports[3].1.sent() == 2);
    assert!(switch.datapath.mirror_stats(bridge, "m").is_none());
}

#[test]
fn a_mirror_of_several_ports_gets_a_packet_to_all_of_them_once() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 4);
    switch.rule(bridge, 0, 1, in_port(1), vec![Op::Output(2), Op::Output(3)]);
    let packets = || {
        (0..20).map(|number| {
            let packet = Builder::ethernet(mac(2), mac(1)).ipv4(1, 2);
            packet.udp(number, 2).payload(&[0; 18]).frame()
        })
    };
    ports[0].1.put_all(packets());
    wait_until("copied", || {
        ports[1].1.sent() == 20 && ports[2].1.sent() == 20
    });
    let both = MirrorSpec {
        select_dst: vec![ports[1].0, ports[2].0],
        ..mirror("m", MirrorOutput::Port(ports[3].0))
    };
    switch.datapath.set_mirrors(bridge, vec![both]).unwrap();
    ports[0].1.put_all(packets());
    wait_until("copied and mirrored", || {
        ports[1].1.sent() == 40 && ports[2].1.sent() == 40 && ports[3].1.sent() >= 20
    });
    let stats = switch.datapath.mirror_stats(bridge, "m").unwrap();
    assert_eq!((ports[3].1.sent(), stats.tx_packets), (20, 20));
}

#[test]
fn mirrors_select_by_direction_and_vlan_and_send_into_a_vlan() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let wires: Vec<_> = (0..6).map(|_| Wire::new(true)).collect();
    let mut ids = Vec::new();
    for (index, wire) in wires.iter().enumerate().take(4) {
        ids.push(switch.port_with(
            bridge,
            index as u32 + 1,
            wire,
            access(if index < 2 { 10 } else { 20 }),
        ));
    }
    ids.push(switch.port_with(bridge, 5, &wires[4], access(99)));
    ids.push(switch.port_with(bridge, 6, &wires[5], Default::default()));
    let source = MirrorSpec {
        select_src: vec![ids[0]],
        ..mirror("in", MirrorOutput::Vlan(99))
    };
    let target = MirrorSpec {
        select_dst: vec![ids[3]],
        select_vlans: vec![10],
        ..mirror("out", MirrorOutput::Port(ids[5]))
    };
    switch
        .datapath
        .set_mirrors(bridge, vec![source, target])
        .unwrap();
    wires[0].put(frame(BROADCAST, mac(1), 1));
    wait_until("mirrored into VLAN 99", || {
        wires[4].sent() == 1 && wires[1].sent() == 1
    });
    wires[2].put(frame(BROADCAST, mac(3), 2));
    wait_until("flooded in VLAN 20", || wires[3].sent() == 1);
    assert_eq!(wires[5].sent(), 0, "selected by port, but not by VLAN");
    assert_eq!(
        switch
            .datapath
            .mirror_stats(bridge, "in")
            .unwrap()
            .tx_packets,
        1
    );
    assert_eq!(
        switch
            .datapath
            .mirror_stats(bridge, "out")
            .unwrap()
            .tx_packets,
        0
    );
    let wrong = mirror("x", MirrorOutput::Vlan(5000));
    assert!(matches!(
        switch.datapath.set_mirrors(bridge, vec![wrong]),
        Err(Error::Mirror { .. })
    ));
}

#[test]
fn patch_ports_join_bridges() {
    let mut switch = Switch::new(1);
    let (one, two) = (switch.learning_bridge("br1"), switch.learning_bridge("br2"));
    let (a, b) = (Wire::new(true), Wire::new(true));
    switch.port(one, 1, &a);
    let patch = switch.patch(one, 2, "to2", "to1");
    a.put(frame(mac(2), mac(1), 1));
    wait_until("no peer yet", || switch.dropped("no_patch_peer") == 1);
    switch.port(two, 1, &b);
    let other = switch.patch(two, 9, "to1", "to2");
    a.put(frame(mac(2), mac(1), 2));
    wait_until("through", || b.sent() == 1);
    b.put(frame(mac(1), mac(2), 3));
    wait_until("and back", || a.sent() == 1);
    let stats = switch.datapath.port_stats(other).unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (1, 1));
    assert_eq!(switch.datapath.port_stats(patch).unwrap().tx_packets, 1);
    switch.datapath.remove_port(other).unwrap();
    a.put(frame(mac(2), mac(1), 4));
    wait_until("no peer any more", || switch.dropped("no_patch_peer") == 2);
    assert_eq!(switch.datapath.remove_port(other), Err(Error::NoSuchPort));
    assert!(matches!(
        switch.datapath.remove_bridge(two),
        Err(Error::BridgeInUse(_))
    ));
}

#[test]
fn a_loop_of_patch_ports_ends() {
    let mut switch = Switch::new(1);
    let (one, two) = (switch.learning_bridge("br1"), switch.learning_bridge("br2"));
    for link in 0..3_u32 {
        switch.patch(one, 10 + link, &format!("a{link}"), &format!("b{link}"));
        switch.patch(two, 10 + link, &format!("b{link}"), &format!("a{link}"));
    }
    let wire = Wire::new(true);
    switch.port(one, 1, &wire);
    wire.put(frame(BROADCAST, mac(1), 1));
    wait_until("the storm ends", || {
        switch.dropped("too_many_patches") > 0 && wire.waiting() == 0
    });
    // The turn that it was in has ended when the next has begun.
    switch.program.domain.publish();
    let barrier = switch.datapath.barrier();
    wait_until("a turn later", || switch.datapath.barrier_passed(barrier));
    let after = wire.sent();
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(wire.sent(), after, "nothing goes round any more");
}

#[test]
fn packets_to_controllers_and_back() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 2);
    let to = ToController {
        max_len: 20,
        reason: PacketInReason::Action,
        controller_id: 3,
        userdata: vec![1, 2],
        by_output: false,
    };
    switch.rule(bridge, 0, 5, in_port(1), vec![Op::Controller(Box::new(to))]);
    ports[0].1.put(frame(mac(2), mac(1), 1));
    let mut packets = Vec::new();
    wait_until("a packet-in", || {
        packets.extend(switch.datapath.take_packet_ins(10));
        !packets.is_empty()
    });
    let packet = &packets[0];
    assert_eq!(
        (
            packet.in_port,
            packet.table,
            packet.cookie,
            packet.controller_id
        ),
        (1, 0, 7, 3)
    );
    assert_eq!(
        (
            packet.total_len,
            packet.data.len(),
            packet.userdata.as_slice()
        ),
        (60, 60, &[1_u8, 2][..])
    );
    assert_eq!(packet.data[..6], mac(2));
    assert_eq!(packet.bridge, bridge);
    // Packet-outs, in order; one of them resubmits, and so comes back.
    let out = |ops| Arc::new(OpList::new(ops));
    let data = |number| frame(mac(2), mac(1), number).to_vec();
    for number in 0..100 {
        switch
            .datapath
            .packet_out(bridge, 0xffff_fffd, data(number), out(vec![Op::Output(2)]))
            .unwrap();
    }
    let resubmit = Op::Resubmit {
        in_port: Some(1),
        table: Some(0),
    };
    switch
        .datapath
        .packet_out(bridge, 1, data(100), out(vec![resubmit]))
        .unwrap();
    let barrier = switch.datapath.barrier();
    wait_until("carried out", || switch.datapath.barrier_passed(barrier));
    wait_until("sent", || ports[1].1.sent() == 100);
    let numbers: Vec<u8> = ports[1].1.take().iter().map(|bytes| bytes[21]).collect();
    assert_eq!(numbers, (0..100).collect::<Vec<u8>>());
    wait_until("came back", || {
        !switch.datapath.take_packet_ins(10).is_empty()
    });
}

/// Each packet-out meets the rule of its own epoch, however many others have come and gone since,
/// and none is executed by rules older than those it was sent after.
#[test]
fn packet_outs_go_by_the_rules_of_their_moment() {
    const COUNT: u64 = 3000;
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 2);
    let resubmit = Op::Resubmit {
        in_port: None,
        table: Some(0),
    };
    let ops = Arc::new(OpList::new(vec![resubmit]));
    let domain = Arc::clone(&switch.program.domain);
    let mut last = None;
    let mut got: [Vec<u64>; 2] = Default::default();
    for number in 0..COUNT {
        let pinned = Arc::new(domain.pin(domain.next()));
        let writer = switch.writers.get_mut(&bridge).unwrap();
        if let Some(rule) = last {
            writer.remove(0, rule);
        }
        let to = vec![Op::Output(1 + (number % 2) as u32)];
        last = Some(switch.publish_rule(bridge, 0, 1, Match::any(), to));
        let moment = Moment {
            epoch: domain.current(),
            pinned,
            taught: false,
        };
        wait_until("room", || switch.datapath.packet_out_room() > 0);
        let data = frame(mac(2), mac(1), number).to_vec();
        let sent = switch.datapath.packet_out_with(
            bridge,
            0xffff_fffd,
            None,
            Some(moment),
            data,
            Arc::clone(&ops),
        );
        sent.unwrap();
        switch.writers.get_mut(&bridge).unwrap().housekeep(64);
        domain.collect_some(64);
        for (got, (_, wire)) in got.iter_mut().zip(&ports) {
            let number = |bytes: &Vec<u8>| u64::from_be_bytes(bytes[14..22].try_into().unwrap());
            got.extend(wire.take().iter().map(number));
        }
    }
    let barrier = switch.datapath.barrier();
    wait_until("carried out", || switch.datapath.barrier_passed(barrier));
    for (index, (got, (_, wire))) in got.iter_mut().zip(&ports).enumerate() {
        let number = |bytes: &Vec<u8>| u64::from_be_bytes(bytes[14..22].try_into().unwrap());
        wait_until("sent", || wire.sent() == COUNT / 2);
        got.extend(wire.take().iter().map(number));
        let own = (0..COUNT).filter(|number| number % 2 == index as u64);
        assert_eq!(*got, own.collect::<Vec<_>>(), "by port {}", index + 1);
    }
    // Nothing is kept for them any more.
    domain.publish();
    wait_until("unlinked", || {
        switch.writers.get_mut(&bridge).unwrap().housekeep(64);
        switch.writers[&bridge].waiting() == 0
    });
}

/// However often rules are published, packet-outs are executed in the turn after they were sent.
#[test]
fn packet_outs_do_not_wait_for_the_last_rules() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 2);
    let [first, second] = [&ports[0].1, &ports[1].1];
    *first.always.lock().unwrap() = Some(bytes(mac(2), mac(1), None, 1));
    let looks = |wire: &Wire| wire.looks.load(Ordering::SeqCst);
    let looked = |wire: &Wire, before: u64| {
        wait_until("a look", || looks(wire) > before);
    };
    looked(second, 0);
    // The worker is stopped at the beginning of a turn, and let go until its first look at a queue,
    // which follows the packet-outs.
    let (stopped, stop) = channel();
    let (go_on, gone_on) = channel();
    let act = Box::new(move || {
        stopped.send(()).unwrap();
        gone_on.recv().unwrap();
    });
    assert!(switch.datapath.run_on_worker(0, act));
    stop.recv().unwrap();
    let before = looks(first);
    let mut at_first = first.held.lock().unwrap();
    go_on.send(()).unwrap();
    looked(first, before);
    let ops = Arc::new(OpList::new(vec![Op::Output(2)]));
    for number in 0..100 {
        let before = looks(second);
        let at_second = second.held.lock().unwrap();
        drop(at_first);
        looked(second, before);
        // In its next turn a publication comes between the beginning and the packet-out.
        let before = looks(first);
        at_first = first.held.lock().unwrap();
        let data = frame(mac(2), mac(1), number).to_vec();
        let sent = switch
            .datapath
            .packet_out(bridge, 0xffff_fffd, data, Arc::clone(&ops));
        sent.unwrap();
        let domain = Arc::clone(&switch.program.domain);
        let publish = Box::new(move || _ = domain.publish());
        assert!(switch.datapath.run_on_worker(0, publish));
        drop(at_second);
        looked(first, before);
        assert_eq!(second.sent(), number + 1);
    }
}

#[test]
fn the_packet_in_queue_is_bounded_and_says_what_it_loses() {
    let mut switch = Switch::new(1);
    let bridge = switch.bridge("br0");
    let ports = switch.ports(bridge, 1);
    let to = ToController::whole(PacketInReason::NoMatch);
    switch.rule(
        bridge,
        0,
        0,
        Match::any(),
        vec![Op::Controller(Box::new(to))],
    );
    for number in 0..3000 {
        wait_until("room on the wire", || {
            ports[0].1.try_put(frame(mac(2), mac(1), number))
        });
    }
    wait_until("all handled", || {
        switch.datapath.port_stats(ports[0].0).unwrap().rx_packets == 3000
    });
    wait_until("the rest is counted", || {
        switch.dropped("packet_in_queue_full") == 3000 - 1024
    });
    let mut fetched = 0;
    while fetched < 1024 {
        let packets = switch.datapath.take_packet_ins(100);
        assert!(!packets.is_empty());
        fetched += packets.len();
    }
    assert!(switch.datapath.take_packet_ins(100).is_empty());
    let flags = PortFlags {
        no_packet_in: true,
        ..Default::default()
    };
    switch
        .datapath
        .modify_port(
            ports[0].0,
            PortSettings {
                flags,
                ..Default::default()
            },
        )
        .unwrap();
    ports[0].1.put(frame(mac(2), mac(1), 1));
    wait_until("suppressed", || switch.dropped("no_packet_in") == 1);
}
