//! Compares requests byte by byte with those of Open vSwitch 3.1, and tests what frames say.

use packet::build::Builder;
use proptest::prelude::*;
use std::net::IpAddr;
use underlay::{Device, arp_request, discovery, learned_from, neighbour_solicitation, told_by};

const OURS: [u8; 6] = [0xaa, 0x55, 0xaa, 0x55, 0, 0];
const PEER: [u8; 6] = [0xf8, 0xbc, 0x12, 0x44, 0x34, 0xb6];
const ZERO: [u8; 6] = [0; 6];
const ALL: [u8; 6] = [0xff; 6];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const TARGET_MAC: u8 = 2;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v4(text: &str) -> u32 {
    text.parse::<std::net::Ipv4Addr>().unwrap().into()
}

fn v6(text: &str) -> [u8; 16] {
    text.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect()
}

#[test]
fn questions_are_open_vswitchs() {
    let arp = "ffff ffff ffff aa55 aa55 0000 0806 0001 0800 0604 0001 aa55 aa55 0000 0a01 0101
        0000 0000 0000 0a01 0109";
    let (src, dst) = ("10.1.1.1".parse().unwrap(), "10.1.1.9".parse().unwrap());
    assert_eq!(arp_request(OURS, src, dst), bytes(arp));
    let solicitation = "3333 ff00 0009 aa55 aa55 0000 86dd 6000 0000 0020 3aff fc00 0000 0000 0000
        0000 0000 0000 0001 ff02 0000 0000 0000 0000 0001 ff00 0009 8700 2cdf 0000 0000 fc00 0000
        0000 0000 0000 0000 0000 0009 0101 aa55 aa55 0000";
    let (src, dst) = ("fc00::1".parse().unwrap(), "fc00::9".parse().unwrap());
    assert_eq!(neighbour_solicitation(OURS, src, dst), bytes(solicitation));
    assert_eq!(
        discovery::request(OURS, src.into(), dst.into()),
        Some(bytes(solicitation))
    );
    assert_eq!(discovery::request(OURS, src.into(), ip("10.1.1.9")), None);
    // A request is not an answer.
    assert_eq!(learned_from(&bytes(arp)), None);
    assert_eq!(learned_from(&bytes(solicitation)), None);
}

fn arp(operation: u16, mac: [u8; 6], sender: &str, target: &str) -> Vec<u8> {
    Builder::ethernet(OURS, PEER)
        .arp(operation, mac, v4(sender), OURS, v4(target))
        .bytes()
}

fn advertisement(hop_limit: u8, kind: u8, options: &[(u8, [u8; 6])]) -> Vec<u8> {
    Builder::ethernet(OURS, PEER)
        .ipv6(v6("fc00::92"), v6("fc00::1"))
        .with_ipv6(|ipv6| ipv6.set_hop_limit(hop_limit))
        .neighbour(kind, v6("fc00::92"), options)
        .bytes()
}

#[test]
fn answers_are_learned_as_by_open_vswitch() {
    let learned = Some((ip("10.1.1.92"), PEER));
    assert_eq!(
        learned_from(&arp(REPLY, PEER, "10.1.1.92", "10.1.1.1")),
        learned
    );
    assert_eq!(
        learned_from(&arp(REQUEST, PEER, "10.1.1.92", "10.1.1.92")),
        learned
    );
    assert_eq!(
        learned_from(&arp(REQUEST, PEER, "10.1.1.92", "10.1.1.1")),
        None
    );
    assert_eq!(
        learned_from(&arp(REPLY, ZERO, "10.1.1.92", "10.1.1.1")),
        None
    );
    for operation in [0, 3, 4, 7, 258] {
        assert_eq!(
            learned_from(&arp(operation, PEER, "10.1.1.92", "10.1.1.92")),
            None
        );
    }
    let mut other_hardware = arp(REPLY, PEER, "10.1.1.92", "10.1.1.1");
    other_hardware[15] = 6;
    assert_eq!(learned_from(&other_hardware), None);
    let tagged = Builder::ethernet(OURS, PEER).vlan(5).arp(
        REPLY,
        PEER,
        v4("10.1.1.92"),
        OURS,
        v4("10.1.1.1"),
    );
    assert_eq!(learned_from(&tagged.bytes()), learned);

    let mac = [(TARGET_MAC, PEER)];
    let learned = Some((ip("fc00::92"), PEER));
    assert_eq!(
        learned_from(&advertisement(255, ADVERTISEMENT, &mac)),
        learned
    );
    assert_eq!(learned_from(&advertisement(255, ADVERTISEMENT, &[])), None);
    assert_eq!(learned_from(&advertisement(255, SOLICITATION, &mac)), None);
    // A duplicate option is an error.
    assert_eq!(
        learned_from(&advertisement(255, ADVERTISEMENT, &[mac[0], mac[0]])),
        None
    );
    // From another link.
    assert_eq!(learned_from(&advertisement(64, ADVERTISEMENT, &mac)), None);
}

#[test]
fn devices_hear_what_concerns_them() {
    let device = Device {
        name: "br0".into(),
        id: 1,
        mac: OURS,
        addresses: vec![(ip("10.1.1.1"), 24), (ip("fc00::1"), 64)],
        mtu: 1500,
    };
    let concerns = |frame: &[u8]| told_by(frame).unwrap().concerns(&device);
    assert!(concerns(&arp(REPLY, PEER, "10.1.1.92", "10.1.1.1")));
    assert!(!concerns(&arp(REPLY, PEER, "10.1.1.92", "10.1.1.7")));
    assert!(concerns(&arp(REPLY, PEER, "10.1.1.92", "10.1.1.92")));
    assert!(concerns(&advertisement(
        255,
        ADVERTISEMENT,
        &[(TARGET_MAC, PEER)]
    )));
    let to_all = Builder::ethernet(ALL, PEER)
        .ipv6(v6("fc00::92"), v6("ff02::1"))
        .with_ipv6(|ipv6| ipv6.set_hop_limit(255))
        .neighbour(ADVERTISEMENT, v6("fc00::92"), &[(TARGET_MAC, PEER)]);
    assert!(!concerns(&to_all.bytes()));
}

proptest! {
    #[test]
    fn anything_is_borne(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = told_by(&frame);
    }

    #[test]
    fn broken_answers_are_borne(
        v6 in any::<bool>(),
        keep in 0usize..100,
        changes in proptest::collection::vec((0usize..100, any::<u8>()), 0..4),
    ) {
        let mut frame = if v6 {
            advertisement(255, ADVERTISEMENT, &[(1, PEER), (TARGET_MAC, PEER)])
        } else {
            arp(REPLY, PEER, "10.1.1.92", "10.1.1.1")
        };
        let whole = frame.len();
        frame.truncate(keep);
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        let told = told_by(&frame);
        prop_assert!(told.is_none_or(|told| told.mac != ZERO));
        if frame.len() < whole.min(42) {
            prop_assert_eq!(told, None);
        }
    }
}
