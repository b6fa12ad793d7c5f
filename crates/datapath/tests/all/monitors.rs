//! Monitored ports: what workers take for the monitor, what they send for it, and who goes by what
//! it finds.

use crate::support::*;
use bfd::wire::{Addresses, ETHERNET, Message, State, frame as message_frame};
use datapath::counters::DropReason;
use datapath::monitor::{INBOX, Inbox, Keys, Monitor, Probe};
use packet::{Frame, HeapFrame};
use std::sync::Arc;

/// A message's frame, to this Ethernet address.
pub fn message(eth_dst: [u8; 6]) -> HeapFrame {
    let message = Message {
        state: State::Down,
        multiplier: 3,
        my_discriminator: 7,
        ..Message::default()
    };
    let addresses = Addresses {
        eth_src: [2, 0, 0, 0, 0, 9],
        eth_dst,
        ip_src: [169, 254, 1, 1],
        ip_dst: [169, 254, 1, 0],
        udp_src: 49152,
    };
    HeapFrame::new(&message_frame(&message, &addresses))
}

#[test]
fn messages_of_a_monitored_port_reach_no_rule() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let ports = switch.ports(bridge, 2);
    let (id, wire) = &ports[0];
    let other = &ports[1].1;
    wire.put(message(ETHERNET));
    wait_until("without a monitor it is flooded", || other.sent() == 1);
    let inbox = Arc::new(Inbox::default());
    let monitor = Arc::new(Monitor::new(
        5,
        Some(ETHERNET),
        Keys::Any,
        Arc::clone(&inbox),
    ));
    let watched = Some(Arc::clone(&monitor));
    switch.datapath.set_monitor(*id, watched).unwrap();
    wire.put_all([
        message(ETHERNET),
        frame(mac(2), mac(1), 1),
        message([2, 0, 0, 0, 0, 8]),
    ]);
    wait_until("the others pass", || other.sent() == 3);
    let received = inbox.take().expect("the monitor's message");
    assert_eq!(received.monitor, 5);
    let read = Message::decode(received.payload()).unwrap();
    assert_eq!(read.my_discriminator, 7);
    assert!(inbox.take().is_none());
    // It is counted as received, with its bytes.
    let stats = switch.datapath.port_stats(*id).unwrap();
    assert_eq!(stats.rx_packets, 4);
    assert_eq!(monitor.rx_packets(), 4);
    let bytes = (3 * 66 + frame(mac(2), mac(1), 1).to_vec().len()) as u64;
    assert_eq!(stats.rx_bytes, bytes);
    // What has passed a router is counted, and neither taken nor let by.
    let mut routed = message(ETHERNET);
    routed.head_mut()[22] = 254;
    wire.put(routed);
    wait_until("dropped", || switch.dropped("monitor_ttl") == 1);
    assert!(inbox.take().is_none());
    assert_eq!(other.sent(), 3);
    switch.datapath.set_monitor(*id, None).unwrap();
    wire.put(message(ETHERNET));
    wait_until("without a monitor it is flooded", || other.sent() == 4);
}

/// One port's flood leaves the others room, and so do many ports' floods as far as there is room.
#[test]
fn a_flood_takes_its_own_ports_room_only() {
    let inbox = Arc::new(Inbox::default());
    let new = |key| Monitor::new(key, None, Keys::Any, Arc::clone(&inbox));
    let (flooded, other) = (new(1), new(2));
    let drops = |monitor: &Monitor| {
        let outcome = monitor.take(&message(ETHERNET)).expect("a message");
        outcome.err()
    };
    for index in 0..2000 {
        let wanted = (index >= 8).then_some(DropReason::MonitorPortFull);
        assert_eq!(drops(&flooded), wanted);
    }
    assert_eq!(drops(&other), None);
    // What is taken out makes room again.
    let mut keys: Vec<u64> = Vec::new();
    while let Some(received) = inbox.take() {
        keys.push(received.monitor);
    }
    assert_eq!(keys, [1, 1, 1, 1, 1, 1, 1, 1, 2]);
    assert_eq!(drops(&flooded), None);
    // More than there is room for in all is counted likewise, and takes none of the port's room.
    let others: Vec<Monitor> = (3..3 + INBOX as u64).map(new).collect();
    let lost: Vec<Option<DropReason>> = others.iter().map(drops).collect();
    let last = INBOX - 1;
    assert!(lost[..last].iter().all(Option::is_none));
    assert_eq!(lost[last], Some(DropReason::MonitorQueueFull));
    while inbox.take().is_some() {}
    for _ in 0..8 {
        assert_eq!(drops(&others[last]), None);
    }
}

#[test]
fn probes_leave_by_the_monitored_port_only() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let ports = switch.ports(bridge, 3);
    let probes = switch.datapath.probes();
    let data = message(ETHERNET).to_vec();
    let probe = |port| Probe {
        bridge,
        port,
        oam: true,
        data: data.clone(),
    };
    // From another thread than control's.
    let sender = std::thread::spawn({
        let probe = probe(2);
        move || probes.send(probe).map(|()| probes)
    });
    let probes = sender.join().unwrap().unwrap();
    wait_until("sent", || ports[1].1.sent() == 1);
    assert_eq!(ports[1].1.take(), std::slice::from_ref(&data));
    assert_eq!((ports[0].1.sent(), ports[2].1.sent()), (0, 0));
    // To a port that is not there: dropped, for a named reason.
    let before = switch.dropped("unknown_port");
    probes.send(probe(9)).unwrap();
    wait_until("dropped", || switch.dropped("unknown_port") == before + 1);
    // Without workers there is nobody to send.
    switch.datapath.set_workers(&[]).unwrap();
    assert!(probes.send(probe(2)).is_err());
}

#[test]
fn a_port_is_as_live_as_its_monitor_says() {
    let mut switch = Switch::new(1);
    let bridge = switch.learning_bridge("br0");
    let ports = switch.ports(bridge, 1);
    let id = ports[0].0;
    assert!(switch.datapath.is_live(bridge, 1));
    let monitor = Arc::new(Monitor::new(0, None, Keys::Any, Arc::default()));
    let watched = Some(Arc::clone(&monitor));
    switch.datapath.set_monitor(id, watched).unwrap();
    assert!(!switch.datapath.is_live(bridge, 1));
    monitor.set_live(true);
    assert!(switch.datapath.is_live(bridge, 1));
    monitor.set_live(false);
    assert!(!switch.datapath.is_live(bridge, 1));
    switch.datapath.set_monitor(id, None).unwrap();
    assert!(switch.datapath.is_live(bridge, 1));
}
