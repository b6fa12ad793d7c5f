//! Compares combined edits with the same edits one after the other.

use super::*;
use crate::build::Builder;
use crate::edit::{self, tests::make_partial};
use crate::frame::HeapFrame;
use crate::key::FlowKey;
use crate::parse::{self, mini_key};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Set(CompiledSet),
    DecTtl,
}

fn step() -> impl Strategy<Value = Step> {
    let port = prop_oneof![Just(0_u16), Just(0xffff), any::<u16>()];
    let address = prop_oneof![Just(0_u32), Just(u32::MAX), any::<u32>()];
    let protocol = || prop_oneof![Just(UDP), Just(TCP)];
    prop_oneof![
        any::<[u8; 6]>().prop_map(|to| Step::Set(CompiledSet::EthDst(to))),
        any::<[u8; 6]>().prop_map(|to| Step::Set(CompiledSet::EthSrc(to))),
        any::<([u8; 6], [u8; 6])>().prop_map(|(dst, src)| {
            let both = [dst, src].concat();
            Step::Set(CompiledSet::EthAddresses(both.try_into().unwrap()))
        }),
        address
            .clone()
            .prop_map(|to| Step::Set(CompiledSet::Ipv4Src(to))),
        address
            .clone()
            .prop_map(|to| Step::Set(CompiledSet::Ipv4Dst(to))),
        (address.clone(), address)
            .prop_map(|(src, dst)| Step::Set(CompiledSet::Ipv4Addresses(src, dst))),
        (protocol(), port.clone()).prop_map(|(p, to)| Step::Set(CompiledSet::SourcePort(p, to))),
        (protocol(), port).prop_map(|(p, to)| Step::Set(CompiledSet::DestinationPort(p, to))),
        any::<u8>().prop_map(|to| Step::Set(CompiledSet::IpTtl(to))),
        any::<(u8, u8)>().prop_map(|(value, mask)| {
            let mask = mask | 1;
            Step::Set(CompiledSet::IpTos {
                value: value & mask,
                mask,
            })
        }),
        Just(Step::DecTtl),
        Just(Step::DecTtl),
        Just(Step::Set(CompiledSet::Nothing)),
    ]
}

/// A router's edits, sometimes followed by others.
fn routed() -> impl Strategy<Value = Vec<Step>> {
    let ttl = prop_oneof![
        Just(Step::DecTtl),
        any::<u8>().prop_map(|to| Step::Set(CompiledSet::IpTtl(to)))
    ];
    let more = prop_oneof![3 => Just(None), 1 => step().prop_map(Some)];
    (any::<([u8; 6], [u8; 6])>(), ttl, more).prop_map(|((src, dst), ttl, more)| {
        let src = Step::Set(CompiledSet::EthSrc(src));
        let dst = Step::Set(CompiledSet::EthDst(dst));
        [ttl, src, dst].into_iter().chain(more).collect()
    })
}

/// A packet's network protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    Icmpv6,
    Arp,
}

/// The state of a packet's transport checksum.
#[derive(Clone, Copy, Debug)]
enum Transport {
    Sound,
    Absent,
    Ones,
    Partial,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: crate::cases(2000), ..ProptestConfig::default() })]

    #[test]
    fn edits_made_one_do_what_they_do_one_after_the_other(
        (a, b, c, d, tos, ttl) in any::<(u32, u32, u16, u16, u8, u8)>(),
        (tagged, tcp) in any::<(bool, bool)>(),
        network in prop_oneof![4 => Just(Network::Ipv4), 4 => Just(Network::Ipv6), 1 => Just(Network::Icmpv6), 1 => Just(Network::Arp)],
        transport in prop_oneof![Just(Transport::Sound), Just(Transport::Absent), Just(Transport::Ones), Just(Transport::Partial)],
        header_ones in prop::bool::weighted(0.1),
        low_ttl in prop::bool::weighted(0.3),
        steps in prop_oneof![2 => proptest::collection::vec(step(), 0..8), 1 => routed()],
    ) {
        let mut builder = Builder::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        if tagged {
            builder = builder.tag(0x8100, 7);
        }
        let ttl = if low_ttl { ttl % 4 } else { ttl };
        builder = match network {
            Network::Ipv4 => builder.ipv4(a, b).with_ipv4(|ip| {
                ip.set_tos(tos);
                ip.set_ttl(ttl);
            }),
            Network::Ipv6 | Network::Icmpv6 => builder.ipv6([c as u8; 16], [d as u8; 16]).with_ipv6(|ip| {
                ip.set_flow(6 << 28 | u32::from(tos) << 20 | a >> 12);
                ip.set_hop_limit(ttl);
            }),
            Network::Arp => builder.arp(c % 3, [1; 6], a, [2; 6], b),
        };
        builder = match network {
            Network::Icmpv6 => builder.icmpv6(128, 0, a),
            Network::Arp => builder,
            _ if tcp => builder.tcp(c, d, 0x10),
            _ => builder.udp(c, d),
        };
        let with_ports = matches!(network, Network::Ipv4 | Network::Ipv6);
        let payload = if with_ports { 20 } else { 0 };
        let mut frame = HeapFrame::new(&builder.payload(&vec![1; payload]).bytes());
        let mut key = FlowKey::ZERO;
        let mut layers = parse::parse_frame(&mut frame, 3, parse::PACKET_WORDS, &mut key);
        let field = usize::from(layers.l4) + if tcp { 16 } else { 6 };
        match transport {
            _ if !with_ports => {}
            Transport::Sound => {}
            Transport::Absent => frame.head_mut()[field..field + 2].fill(0),
            Transport::Ones => frame.head_mut()[field..field + 2].fill(0xff),
            Transport::Partial => make_partial(&mut frame, &key, &layers),
        }
        if header_ones && network == Network::Ipv4 {
            let l3 = usize::from(layers.l3);
            frame.head_mut()[l3 + 10..l3 + 12].fill(0xff);
        }

        let mut rewrite = Rewrite::default();
        let mut added = Vec::new();
        for step in steps {
            let fits = match &step {
                Step::Set(set) => rewrite.then(set),
                Step::DecTtl => rewrite.then_dec_ttl(),
            };
            if fits {
                added.push(step);
            }
        }
        let mut other = frame.clone();
        let mut words = [0; MINI_KEY_WORDS];
        let extent = mini_key(other.head(), other.len(), 3, &mut words).unwrap();
        let mut expired = false;
        for step in &added {
            match step {
                Step::Set(set) => prop_assert!(set.run(&mut frame, &mut layers, &mut key)),
                Step::DecTtl => expired |= edit::dec_ttl(&mut frame, &layers, &mut key).is_err(),
            }
        }
        if network == Network::Arp {
            // ARP has no TTL to decrement; only the single edits know that.
            prop_assert!(!expired);
            expired = rewrite.may_expire();
        }
        prop_assert_eq!(rewrite.expires(&words), expired);
        if !expired {
            let (before, mut last) = (words, other.clone());
            rewrite.run_last(&mut last, extent, &mut before.clone());
            prop_assert_eq!(last.to_vec(), frame.to_vec());
            rewrite.run(&mut other, extent, &mut words);
            for ((before, after), touched) in before.iter().zip(&words).zip(rewrite.touches()) {
                prop_assert_eq!((before ^ after) & !touched, 0, "changed, and not said so");
            }
            prop_assert_eq!(other.to_vec(), frame.to_vec());
            prop_assert_eq!(&words[..], &key.words[..MINI_KEY_WORDS]);
        }
    }
}

/// Counts decrements up to what a TTL allows with one left; packets with a lower TTL expire.
#[test]
fn decrements_are_counted_up_to_what_a_ttl_has() {
    let mut rewrite = Rewrite::default();
    let with_ttl = |ttl: u8| {
        let mut words = [0; MINI_KEY_WORDS];
        set_byte(&mut words, at::IP_TTL, ttl);
        words
    };
    assert!(!rewrite.may_expire() && !rewrite.expires(&with_ttl(0)));
    for down in 1..=254 {
        assert!(rewrite.then_dec_ttl());
        assert!(rewrite.may_expire());
        assert!(rewrite.expires(&with_ttl(0)) && rewrite.expires(&with_ttl(down)));
        assert!(!rewrite.expires(&with_ttl(down + 1)));
    }
    assert!(!rewrite.then_dec_ttl(), "no TTL is left one");
}

/// Combined decrements give the same TTL and checksum as single ones: from the highest TTL down to
/// one, on every code path.
#[test]
fn as_many_decrements_as_a_ttl_has_leave_one_and_a_right_checksum() {
    for case in 0..8 {
        let [tagged, routed, more] = [1, 2, 4].map(|bit| case & bit != 0);
        let mut rewrite = Rewrite::default();
        if routed {
            assert!(rewrite.then(&CompiledSet::EthAddresses([6; 12])));
        }
        if more {
            assert!(rewrite.then(&CompiledSet::Ipv4Dst(0x0a00_0002)));
        }
        for down in 1..=254_u8 {
            assert!(rewrite.then_dec_ttl());
            if cfg!(miri) && !(down % 64 == 1 || down == 254) {
                continue;
            }
            let ethernet = || {
                let builder = if routed {
                    Builder::ethernet([6; 6], [6; 6])
                } else {
                    Builder::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
                };
                match tagged {
                    true => builder.tag(0x8100, 7),
                    false => builder,
                }
            };
            let with_ttl = |builder: Builder, ttl: u8| {
                let ipv4 = builder.ipv4(0x0a00_0001, 0x0a00_0002);
                let ipv4 = ipv4.with_ipv4(|ip| ip.set_ttl(ttl));
                HeapFrame::new(&ipv4.udp(1, 2).payload(&[1; 20]).bytes())
            };
            let wanted = with_ttl(ethernet(), 255 - down);
            let l3 = if tagged { 18 } else { 14 };
            let header = &wanted.head()[l3..l3 + 20];
            assert_eq!(header[8], 255 - down);
            let words = header.chunks_exact(2);
            let sum: u32 = words
                .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
                .sum();
            assert_eq!(
                (sum & 0xffff) + (sum >> 16),
                0xffff,
                "the builder's checksum"
            );

            let mut frame = with_ttl(ethernet(), 255);
            if routed {
                frame.head_mut()[..12].fill(2);
            }
            let mut words = [0; MINI_KEY_WORDS];
            let extent = mini_key(frame.head(), frame.len(), 3, &mut words).unwrap();
            assert!(!rewrite.expires(&words));
            let mut last = frame.clone();
            rewrite.run_last(&mut last, extent, &mut words.clone());
            assert_eq!(last.to_vec(), wanted.to_vec());
            rewrite.run(&mut frame, extent, &mut words);
            assert_eq!(frame.to_vec(), wanted.to_vec());
            let mut again = [0; MINI_KEY_WORDS];
            mini_key(frame.head(), frame.len(), 3, &mut again).unwrap();
            assert_eq!(words, again, "the words say the same as the packet");
        }
    }
}
