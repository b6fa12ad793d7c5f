//! Compares pushes and pops with reparsing, and with the original packet.

use super::*;
use crate::build::Builder;
use crate::checksum::finish_partial;
use crate::edit::set_field;
use crate::edit::tests::{make_partial, parsed, read_again, sound};
use crate::fields::Field;
use crate::parse::tests::{broken_packets, packets};
use crate::value::Value;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(crate::cases(3000)))]

    #[test]
    fn headers_come_and_go(
        bytes in packets(),
        steps in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..5),
        partial: bool,
    ) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        prop_assume!(sound(&frame, &key, &layers));
        if partial {
            make_partial(&mut frame, &key, &layers);
        }
        let before = (frame.to_vec(), frame.offload(), key, layers);
        let mut pushed = Vec::new();
        for (pbb, multicast) in steps {
            let eth_type = key.u16(at::ETH_TYPE);
            let entry = key.u32(at::MPLS_LSE);
            pushed.push((pbb, eth_type));
            if pbb {
                prop_assert!(push_pbb(&mut frame, &mut layers, &mut key));
                prop_assert_eq!(key.u16(at::ETH_TYPE), PBB);
            } else {
                let new = if multicast { 0x8848 } else { 0x8847 };
                let labelled = label_place(frame.head(), &layers, &key).is_some();
                prop_assert!(push_mpls(&mut frame, &mut layers, &mut key, new));
                prop_assert_eq!(key.u16(at::ETH_TYPE), new);
                let expected = if labelled { entry & !0x100 } else { entry };
                if labelled {
                    prop_assert_eq!(key.u32(at::MPLS_LSE), expected);
                } else {
                    prop_assert_eq!(key.u8(at::MPLS_LSE + 2) & 1, 1);
                    prop_assert_ne!(key.u8(at::MPLS_LSE + 3), 0);
                }
            }
            let (again, layers_again) = read_again(&frame, &key, &layers);
            prop_assert_eq!(again, key);
            prop_assert_eq!(layers_again, layers);
            // The inner packet is unchanged, and a device would still find its checksum.
            let mut finished = frame.clone();
            prop_assert!(finish_partial(&mut finished));
            prop_assert_eq!(frame.offload().csum_start != 0, partial && frame.offload().partial_checksum);
        }
        for (pbb, eth_type) in pushed.into_iter().rev() {
            if pbb {
                pop_pbb(&mut frame, &mut layers, &mut key);
            } else {
                pop_mpls(&mut frame, &mut layers, &mut key, eth_type);
            }
            let (again, layers_again) = read_again(&frame, &key, &layers);
            prop_assert_eq!(again, key);
            prop_assert_eq!(layers_again, layers);
        }
        // 802.2 without SNAP has no Ethertype to restore.
        if before.2.u16(at::ETH_TYPE) != 0x05ff {
            prop_assert_eq!((frame.to_vec(), frame.offload(), key, layers), before);
        }
    }

    #[test]
    fn broken_packets_bear_it(
        bytes in broken_packets(),
        steps in proptest::collection::vec((0..8u8, any::<u16>()), 1..6),
    ) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        for (step, number) in steps {
            let (frame, layers, key) = (&mut frame, &mut layers, &mut key);
            match step {
                0 => drop(push_mpls(frame, layers, key, 0x8847)),
                1 => pop_mpls(frame, layers, key, number),
                2 => pop_mpls(frame, layers, key, [0x0800, 0x86dd, 0x8847, 0x8100][usize::from(number & 3)]),
                3 => drop(push_pbb(frame, layers, key)),
                4 => pop_pbb(frame, layers, key),
                5 => copy_ttl_in(frame, layers, key),
                6 => copy_ttl_out(frame, layers, key),
                _ => drop(dec_mpls_ttl(frame, layers, key)),
            }
            let (again, layers_again) = read_again(frame, key, layers);
            prop_assert_eq!(again.words[..5].to_vec(), key.words[..5].to_vec());
            prop_assert_eq!(again.words[21..25].to_vec(), key.words[21..25].to_vec());
            prop_assert_eq!(&layers_again, &*layers);
        }
    }

    #[test]
    fn another_protocol_and_back(bytes in packets(), protocol: u8, partial: bool) {
        let (mut frame, mut key, mut layers) = parsed(&bytes);
        prop_assume!(sound(&frame, &key, &layers));
        if partial {
            make_partial(&mut frame, &key, &layers);
        }
        let before = frame.clone();
        let old = key.u8(at::IP_PROTO);
        let has_protocol = protocol_is_known(&key, &layers);
        // Numbers of IPv6 extension headers: the payload would be parsed as one.
        prop_assume!(!matches!(protocol, 0 | 43 | 44 | 51 | 60));
        let whole = Value::ones(8, 1);
        let set = |frame: &mut _, layers: &mut _, key: &mut _, number: u8| {
            set_field(frame, layers, key, Field::IpProto, &Value::from_bytes(&[number]), &whole)
        };
        prop_assert!(set(&mut frame, &mut layers, &mut key, protocol));
        if has_protocol {
            prop_assert_eq!(key.u8(at::IP_PROTO), protocol);
        } else {
            prop_assert_eq!(&frame, &before);
        }
        let (again, layers_again) = read_again(&frame, &key, &layers);
        prop_assert_eq!(again, key);
        prop_assert_eq!(layers_again, layers);
        // The checksum is updated only for known transports, and a UDP checksum that becomes zero
        // would mean "none", so setting the old protocol may not restore the bytes.
        let follows = |number: u8| [6, 17, 58].contains(&number);
        if has_protocol && !follows(old) && !follows(protocol) {
            prop_assert!(set(&mut frame, &mut layers, &mut key, old));
            prop_assert_eq!(frame, before);
        }
    }
}

fn protocol_is_known(key: &FlowKey, layers: &Layers) -> bool {
    let later_ipv6 = key.u16(at::ETH_TYPE) == IPV6 && key.u8(at::IP_FRAG) & 2 != 0;
    matches!(key.u16(at::ETH_TYPE), IPV4 | IPV6) && layers.l4 != 0 && !later_ipv6
}

fn tcp(src: u32) -> Builder {
    Builder::ethernet([1; 6], [2; 6])
        .vlan(7)
        .ipv4(src, 2)
        .tcp(3, 4, 0x10)
        .payload(b"abcd")
}

#[test]
fn the_first_label_says_what_it_carries() {
    let ipv4 = Builder::ethernet([1; 6], [2; 6])
        .ipv4(1, 2)
        .with_ipv4(|ip| {
            ip.set_ttl(7);
            ip.set_tos(0xff);
        });
    let ipv6 = Builder::ethernet([1; 6], [2; 6]).ipv6([1; 16], [2; 16]);
    let expired = Builder::ethernet([1; 6], [2; 6])
        .ipv4(1, 2)
        .with_ipv4(|ip| ip.set_ttl(0));
    let arp = Builder::ethernet([1; 6], [2; 6]).arp(1, [1; 6], 1, [2; 6], 2);
    for (builder, entry) in [
        (ipv4, 0x0000_0f07),
        (ipv6, 0x0000_2140),
        (expired, 0x0000_0140),
        (arp, 0x0000_0140),
    ] {
        let (mut frame, mut key, mut layers) = parsed(&builder.bytes());
        assert!(push_mpls(&mut frame, &mut layers, &mut key, 0x8847));
        assert_eq!(key.u32(at::MPLS_LSE), entry);
        assert_eq!(key.u8(at::MPLS_DEPTH), 1);
        assert_eq!(key.u8(at::IP_TTL), 0, "what a label carries is not seen");
    }
}

#[test]
fn packets_with_a_popped_mpls_label_can_be_edited() {
    let icmp =
        |builder: Builder, kind| builder.ipv4(1, 2).icmp(kind, 0, 0).payload(&[1; 8]).bytes();
    let plain = || Builder::ethernet([1; 6], [2; 6]);
    let (mut frame, mut key, mut layers) = parsed(&icmp(plain().mpls(0x140), 8));
    pop_mpls(&mut frame, &mut layers, &mut key, 0x0800);
    let (value, mask) = (Value::from_bytes(&[0]), Value::ones(8, 1));
    assert!(set_field(
        &mut frame,
        &mut layers,
        &mut key,
        Field::Icmpv4Type,
        &value,
        &mask
    ));
    assert_eq!(frame.to_vec(), icmp(plain(), 0));
}

#[test]
fn labels_stand_behind_tags_and_service_tags_in_front() {
    let (mut frame, mut key, mut layers) = parsed(&tcp(1).bytes());
    assert!(push_mpls(&mut frame, &mut layers, &mut key, 0x8848));
    assert_eq!(frame.head()[12..18], [0x81, 0, 0, 7, 0x88, 0x48]);
    assert_eq!(key.u16(at::VLAN_TCI), 0x1007);
    assert!(push_pbb(&mut frame, &mut layers, &mut key));
    assert_eq!(
        frame.head()[..18],
        [&[1; 6][..], &[2; 6], &[0x88, 0xe7, 0, 0, 0, 0]].concat()
    );
    assert_eq!(
        frame.head()[18..32],
        [&[1; 6][..], &[2; 6], &[0x81, 0]].concat()
    );
    assert_eq!((key.u16(at::VLAN_TCI), layers.vlans), (0, 0));
}

#[test]
fn a_backbone_tag_stays_when_the_service_tag_goes() {
    let customer = |builder: Builder| builder.ipv4(1, 2).udp(3, 4).payload(b"x").bytes();
    let outer = Builder::ethernet([1; 6], [2; 6]).tag(0x88a8, 0xa00a);
    let bytes = customer(outer.pbb(0xe800_0064, [3; 6], [4; 6]));
    let (mut frame, mut key, mut layers) = parsed(&bytes);
    assert_eq!((key.u32(at::PBB_ISID), key.u8(at::PBB_UCA)), (100, 1));
    pop_pbb(&mut frame, &mut layers, &mut key);
    let inner = Builder::ethernet([3; 6], [4; 6]).tag(0x88a8, 0xa00a);
    assert_eq!(frame.to_vec(), customer(inner));
    assert_eq!((key.u16(at::VLAN_TCI), key.u16(at::TP_DST)), (0xb00a, 4));
}

#[test]
fn a_service_tag_takes_priority_and_service_over() {
    let bytes = Builder::ethernet([1; 6], [2; 6])
        .tag(0x8100, 0x6005)
        .pbb(0x0012_3456, [3; 6], [4; 6])
        .ipv4(1, 2)
        .bytes();
    let (mut frame, mut key, mut layers) = parsed(&bytes);
    assert!(push_pbb(&mut frame, &mut layers, &mut key));
    assert_eq!(frame.head()[14..18], [0x60, 0x12, 0x34, 0x56]);
    assert_eq!(key.u32(at::PBB_ISID), 0x0012_3456);
    let (value, mask) = (Value::from_bytes(&[1]), Value::ones(1, 1));
    assert!(set_field(
        &mut frame,
        &mut layers,
        &mut key,
        Field::PbbUca,
        &value,
        &mask
    ));
    assert_eq!((frame.head()[14], key.u8(at::PBB_UCA)), (0x68, 1));
}

#[test]
fn ttls_are_copied_between_labels_and_ip() {
    let stack = |first: u32, second: Option<u32>, v6: bool, ttl: u8| {
        let mut builder = Builder::ethernet([1; 6], [2; 6]).mpls(first);
        if let Some(second) = second {
            builder = builder.mpls(second);
        }
        match v6 {
            true => builder
                .ipv6([1; 16], [2; 16])
                .with_ipv6(|ip| ip.set_hop_limit(ttl)),
            false => builder.ipv4(1, 2).with_ipv4(|ip| ip.set_ttl(ttl)),
        }
        .udp(3, 4)
        .bytes()
    };
    let cases = [
        // before, copied out, copied in
        (
            stack(0x140, None, false, 9),
            stack(0x109, None, false, 9),
            stack(0x140, None, false, 0x40),
        ),
        (
            stack(0x140, None, true, 9),
            stack(0x109, None, true, 9),
            stack(0x140, None, true, 0x40),
        ),
        (
            stack(0x1040, Some(0x2107), false, 9),
            stack(0x1007, Some(0x2107), false, 9),
            stack(0x1040, Some(0x2140), false, 9),
        ),
    ];
    for (before, out, inwards) in cases {
        for (wanted, change) in [
            (out, copy_ttl_out as fn(&mut _, &_, &mut _)),
            (inwards, copy_ttl_in),
        ] {
            let (mut frame, mut key, layers) = parsed(&before);
            change(&mut frame, &layers, &mut key);
            assert_eq!(frame.to_vec(), wanted);
            let (again, _) = read_again(&frame, &key, &layers);
            assert_eq!(again, key);
        }
    }
    // Nothing to copy from or to.
    let bytes = tcp(1).bytes();
    let (mut frame, mut key, layers) = parsed(&bytes);
    copy_ttl_out(&mut frame, &layers, &mut key);
    copy_ttl_in(&mut frame, &layers, &mut key);
    assert_eq!(frame.to_vec(), bytes);
}

#[test]
fn a_label_lives_until_its_ttl_is_one() {
    let bytes = Builder::ethernet([1; 6], [2; 6])
        .mpls(0x0001_0102)
        .ipv4(1, 2)
        .bytes();
    let (mut frame, mut key, layers) = parsed(&bytes);
    assert_eq!(
        dec_mpls_ttl(&mut frame, &layers, &mut key),
        MplsTtl::Decremented
    );
    assert_eq!((frame.head()[17], key.u8(at::MPLS_LSE + 3)), (1, 1));
    let expired = MplsTtl::Expired(TtlExpired);
    assert_eq!(dec_mpls_ttl(&mut frame, &layers, &mut key), expired);
    assert_eq!(frame.head()[17], 1);
    let (mut frame, mut key, layers) = parsed(&tcp(1).bytes());
    assert_eq!(dec_mpls_ttl(&mut frame, &layers, &mut key), MplsTtl::Absent);
}

#[test]
fn large_frames_are_cut_behind_labels_and_service_tags() {
    use crate::frame::{Gso, Offload};
    use crate::segment::segment;
    let plain = tcp(1).payload(&[7; 3000]).partial_checksum();
    let offload = Offload {
        gso: Gso::Tcp4,
        gso_size: 1000,
        ..plain.frame().offload()
    };
    let cut = |frame| {
        let mut all = Vec::new();
        segment(frame, &mut |part: crate::HeapFrame| all.push(part.to_vec())).unwrap();
        all
    };
    let mut frame = plain.frame();
    frame.set_offload(offload);
    let expected = cut(frame.clone());
    assert_eq!(expected.len(), 3);
    let (mut key, mut layers) = (FlowKey::ZERO, Layers::default());
    reread(&mut frame, &mut layers, &mut key);
    assert!(push_mpls(&mut frame, &mut layers, &mut key, 0x8847));
    assert!(push_pbb(&mut frame, &mut layers, &mut key));
    let parts = cut(frame);
    assert_eq!(parts.len(), 3);
    for (part, expected) in parts.iter().zip(expected) {
        // Addresses, tag and type, then the original packet.
        assert_eq!(part[18 + 12 + 4 + 2 + 4..], expected[12 + 4 + 2..]);
    }
}
