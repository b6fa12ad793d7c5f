//! Dummy ports.

use crate::support::{bytes, frames_in, open, send, udp};
use ports::{Dummy, PortSpec, PortType};

#[test]
fn frames_put_in_are_received_and_sent_ones_recorded() {
    let dir = std::env::temp_dir();
    let file = |name: &str| dir.join(format!("sluice-{}-{name}.pcap", std::process::id()));
    let (tx_pcap, rx_pcap) = (file("dummy-tx"), file("dummy-rx"));
    let mut port = open(&PortSpec::new(
        "d1",
        PortType::Dummy(Dummy {
            tx_pcap: Some(tx_pcap.clone()),
            rx_pcap: Some(rx_pcap.clone()),
            ..Dummy::default()
        }),
    ));
    let frames: Vec<Vec<u8>> = vec![udp(1), udp(1400), vec![], vec![7], udp(9000)];
    for frame in &frames {
        port.control.inject(frame).unwrap();
    }
    let mut got = Vec::new();
    assert_eq!(port.rx[0].receive(&mut got), frames.len());
    assert_eq!(bytes(&got), frames);
    assert_eq!(port.rx[0].receive(&mut got), 0);
    let mut tx = port.control.tx_queue(0).unwrap();
    let outcome = send(&mut *tx, &[&frames[0], &frames[1], &frames[4]]);
    assert_eq!((outcome.packets, outcome.too_long), (2, 1));
    assert_eq!(frames_in(&std::fs::read(&tx_pcap).unwrap()), frames[..2]);
    assert_eq!(frames_in(&std::fs::read(&rx_pcap).unwrap()), frames);
    std::fs::remove_file(tx_pcap).unwrap();
    std::fs::remove_file(rx_pcap).unwrap();
}

#[test]
fn the_queue_of_frames_put_in_is_bounded() {
    let mut port = open(&PortSpec::new("d2", PortType::Dummy(Dummy::default())));
    for _ in 0..2000 {
        port.control.inject(&udp(1)).unwrap();
    }
    let mut got = Vec::new();
    while port.rx[0].receive(&mut got) > 0 {}
    assert_eq!(got.len(), 1024);
    assert_eq!(port.rx[0].drops().missed, 976);
    assert!(port.control.inject(&vec![0; 70_000]).is_err());
}
