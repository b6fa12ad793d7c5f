//! AF_XDP on a veth pair.

use crate::kernel::{ip, own_namespace, system, veth};
use crate::support::{bytes, eal, info_of, open, receive, send, udp};
use ports::{PortSpec, PortType, Xdp};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lets one test at a time open a device: interfaces of tests' namespaces have the same number, by
/// which DPDK's device is called.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn frames_go_both_ways_past_the_stack() {
    let _alone = alone();
    own_namespace();
    veth("va", "vb", 1500);
    let mut xdp = open(&PortSpec::new(
        "va",
        PortType::AfXdp {
            mode: Xdp::BestEffort,
            rx_queues: 1,
        },
    ));
    let info = info_of(&mut xdp);
    assert!(info.present && info.link_up && info.ifindex > 0);
    let mut peer = system("vb");
    let (mut to_peer, mut to_xdp) = (
        xdp.control.tx_queue(0).unwrap(),
        peer.control.tx_queue(0).unwrap(),
    );
    let frames = [udp(5), udp(700), udp(1472)];
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(send(&mut *to_xdp, &slices).packets, 3);
    assert_eq!(bytes(&receive(&mut *xdp.rx[0], 3)), frames);
    assert_eq!(send(&mut *to_peer, &slices).packets, 3);
    assert_eq!(bytes(&receive(&mut *peer.rx[0], 3)), frames);
    xdp.control.close();
}

#[test]
fn unsupported_af_xdp_modes_are_refused() {
    own_namespace();
    veth("va", "vb", 1500);
    let error = |name: &str, mode| {
        let spec = PortSpec::new(name, PortType::AfXdp { mode, rx_queues: 1 });
        ports::open(eal(), &spec).err().unwrap().to_string()
    };
    assert_eq!(
        error("vx", Xdp::BestEffort),
        "could not open network device vx (No such device)"
    );
    assert!(error("va", Xdp::Generic).contains("generic"));
}

#[test]
fn an_interface_can_be_a_port_again_and_keeps_its_flags() {
    let _alone = alone();
    own_namespace();
    veth("va", "vb", 1500);
    let mode = Xdp::BestEffort;
    let spec = PortSpec::new("va", PortType::AfXdp { mode, rx_queues: 1 });
    for promiscuous in [false, false, true] {
        ip(match promiscuous {
            true => "link set va promisc on",
            false => "link set va promisc off",
        });
        let port = open(&spec);
        port.control.close();
        drop(port.rx);
        assert_eq!(is_promiscuous("va"), promiscuous);
    }
    // The host's stack gets its frames again.
    let (mut one, mut other) = (system("va"), system("vb"));
    let mut tx = other.control.tx_queue(0).unwrap();
    assert_eq!(send(&mut *tx, &[&udp(100)]).packets, 1);
    assert_eq!(bytes(&receive(&mut *one.rx[0], 1)), [udp(100)]);
}

/// Returns whether an interface of this thread's namespace is promiscuous.
fn is_promiscuous(name: &str) -> bool {
    let shown = std::process::Command::new("ip")
        .args(["-o", "link", "show", name])
        .output()
        .expect("ip runs");
    String::from_utf8_lossy(&shown.stdout).contains("PROMISC")
}
