//! Single behaviours, packet by packet.

use conntrack::{
    Counter, Cursor, Direction, Nat, Policy, Range, Request, Timeout, Tracked, Tracker,
    Translation, state, text,
};
use packet::build::Builder;
use packet::checksum::{Sum, frame_sum, ipv4_header};
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, Frame, HeapFrame, WordSet};
use std::net::{IpAddr, Ipv4Addr};

fn parsed(mut frame: HeapFrame) -> (HeapFrame, Layers) {
    let mut key = FlowKey::ZERO;
    let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
    (frame, layers)
}

fn ethernet() -> Builder {
    Builder::ethernet([2; 6], [4; 6])
}

fn udp(source: (u32, u16), destination: (u32, u16)) -> Builder {
    ethernet()
        .ipv4(source.0, destination.0)
        .udp(source.1, destination.1)
        .payload(b"payload")
}

fn syn(port: u16) -> Builder {
    ethernet().ipv4(1, 2).tcp(port, 80, 2)
}

fn track(tracker: &Tracker, builder: Builder, request: &Request<'_>) -> Tracked {
    let (frame, layers) = parsed(builder.frame());
    tracker.track(&frame, &layers, request, 1000)
}

const COMMIT: Request<'static> = Request {
    zone: 0,
    commit: true,
    force: false,
    mark: conntrack::Masked { value: 0, mask: 0 },
    label: conntrack::Masked { value: 0, mask: 0 },
    nat: None,
    helper: None,
};

fn source_nat(address: u32, ports: Option<(u16, u16)>) -> Nat {
    let address = IpAddr::V4(Ipv4Addr::from_bits(address));
    Nat {
        direction: Some(Direction::Source),
        range: Some(Range {
            min: address,
            max: address,
            ports,
        }),
        ..Nat::default()
    }
}

#[test]
fn udp_becomes_established_by_its_reply() {
    let tracker = Tracker::new([1, 2]);
    let state = |source, destination, commit| {
        let request = Request { commit, ..COMMIT };
        track(&tracker, udp(source, destination), &request).state & !state::TRACKED
    };
    assert_eq!(state((1, 10), (2, 20), false), state::NEW);
    assert_eq!(tracker.count(), 0);
    assert_eq!(state((1, 10), (2, 20), true), state::NEW);
    assert_eq!(tracker.count(), 1);
    assert_eq!(state((1, 10), (2, 20), false), state::NEW);
    assert_eq!(
        state((2, 20), (1, 10), false),
        state::ESTABLISHED | state::REPLY
    );
    assert_eq!(state((1, 10), (2, 20), false), state::ESTABLISHED);
}

#[test]
fn a_packet_is_not_counted_twice_in_a_zone() {
    let tracker = Tracker::new([1, 2]);
    let nat = source_nat(9, None);
    let begin = Request {
        nat: Some(&nat),
        ..COMMIT
    };
    let first = track(&tracker, udp((1, 10), (2, 20)), &begin);
    assert_eq!(first.state, state::NEW | state::TRACKED | state::SOURCE_NAT);
    // The same packet, translated, in the same zone: found by its new addresses.
    let (frame, layers) = parsed(udp((9, 10), (2, 20)).frame());
    let again = tracker.track_again(&frame, &layers, first.earlier(true), &COMMIT, 1000);
    assert_eq!(again.state & state::INVALID, 0);
    assert_eq!(again.original, first.original);
    assert_eq!(
        (tracker.count(), again.translation),
        (1, Translation::default())
    );
    // In another zone, it begins a connection of its own.
    let request = Request { zone: 5, ..COMMIT };
    let other = tracker.track_again(&frame, &layers, first.earlier(true), &request, 1000);
    assert_eq!(other.state, state::NEW | state::TRACKED);
    assert_ne!(other.original, first.original);
}

#[test]
fn errors_about_translated_packets_are_translated_inside() {
    let tracker = Tracker::new([1, 2]);
    let nat = source_nat(0x0909_0909, Some((7000, 7000)));
    let request = Request {
        nat: Some(&nat),
        ..COMMIT
    };
    track(&tracker, udp((1, 10), (2, 20)), &request);
    let (quoted, _) = parsed(udp((0x0909_0909, 7000), (2, 20)).frame());
    let error = ethernet()
        .ipv4(77, 0x0909_0909)
        .icmp(3, 3, 0)
        .payload(&quoted.head()[14..]);
    let (mut frame, layers) = parsed(error.frame());
    let tracked = tracker.track(&frame, &layers, &request, 1000);
    let expected = state::RELATED | state::REPLY | state::TRACKED | state::DESTINATION_NAT;
    assert_eq!(tracked.state, expected);
    assert_eq!(tracked.translation.source, None);
    let one = IpAddr::V4(Ipv4Addr::from_bits(1));
    assert_eq!(tracked.translation.destination, Some((one, 0)));
    assert!(Tracker::translate_inner(
        &mut frame,
        &layers,
        &tracked.translation
    ));
    let (l4, end) = (usize::from(layers.l4), layers.end as usize);
    assert_eq!(frame_sum(&frame, l4, end), 0xffff, "the ICMP checksum");
    let (original, _) = parsed(udp((1, 10), (2, 20)).frame());
    let inner = &frame.head()[l4 + 8..end];
    assert_eq!(inner, &original.head()[14..], "what the sender sent");
    assert_eq!(ipv4_header(&inner[..20]), 0);
}

#[test]
fn packets_that_lie_are_invalid() {
    let tracker = Tracker::new([1, 2]);
    let good = udp((1, 10), (2, 20)).bytes();
    let refused = |change: &dyn Fn(&mut Vec<u8>), counter: Counter| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let (frame, layers) = parsed(HeapFrame::new(&bytes));
        let before = tracker.counters().get(counter);
        let tracked = tracker.track(&frame, &layers, &COMMIT, 1000);
        assert_eq!(
            tracked.state,
            state::INVALID | state::TRACKED,
            "{}",
            counter.name()
        );
        assert_eq!(
            tracker.counters().get(counter),
            before + 1,
            "{}",
            counter.name()
        );
    };
    let header = |bytes: &mut Vec<u8>| {
        bytes[24..26].fill(0);
        let mut sum = Sum::new();
        sum.add_bytes(&bytes[14..34]);
        let sum = sum.finish();
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    };
    refused(&|bytes| bytes[24] ^= 1, Counter::InvalidIpChecksum);
    refused(&|bytes| bytes[45] ^= 1, Counter::InvalidTransportChecksum);
    refused(&|bytes| bytes[39] = 200, Counter::InvalidTransport);
    refused(&|bytes| bytes.truncate(20), Counter::InvalidHeaders);
    let fragment = |bytes: &mut Vec<u8>| {
        bytes[20] = 0x20;
        header(bytes);
    };
    refused(&fragment, Counter::InvalidFragment);
    let no_port = |bytes: &mut Vec<u8>| {
        bytes[34..36].fill(0);
        bytes[40..42].fill(0);
    };
    refused(&no_port, Counter::InvalidTransport);
    refused(&|bytes| bytes[13] = 6, Counter::InvalidHeaders);
    assert_eq!(tracker.count(), 0);
    // A checksum that the device is to compute is not wrong.
    let (frame, layers) = parsed(udp((1, 10), (2, 20)).partial_checksum().frame());
    assert_eq!(
        tracker.track(&frame, &layers, &COMMIT, 1000).state & state::INVALID,
        0
    );
}

#[test]
fn half_open_connections_give_way_to_new_ones() {
    let tracker = Tracker::new([1, 2]);
    tracker.set_limit(2);
    let evicted = |expected: u64| {
        assert_eq!(
            (tracker.count(), tracker.counters().get(Counter::Evicted)),
            (2, expected)
        );
    };
    let answered = || {
        let answer = track(&tracker, udp((2, 20), (1, 10)), &COMMIT);
        assert_eq!(
            answer.state,
            state::ESTABLISHED | state::REPLY | state::TRACKED
        );
    };
    track(&tracker, udp((1, 10), (2, 20)), &COMMIT);
    answered();
    let echo = || ethernet().ipv4(1, 2).icmp(8, 0, 7 << 16);
    let other = || ethernet().ipv4(1, 2).payload(b"some");
    let new: [&dyn Fn() -> Builder; 6] = [
        &|| syn(1),
        &|| udp((1, 11), (2, 20)),
        &echo,
        &other,
        &|| udp((1, 12), (2, 20)),
        &|| syn(2),
    ];
    for (before, packet) in new.iter().enumerate() {
        let tracked = track(&tracker, packet(), &COMMIT);
        assert_eq!(tracked.state, state::NEW | state::TRACKED);
        assert!(tracked.has_connection, "{before}");
        evicted(before as u64);
    }
    // Packets that are not answered change nothing, an answer does.
    track(&tracker, udp((1, 13), (2, 20)), &COMMIT);
    track(&tracker, udp((1, 13), (2, 20)), &COMMIT);
    evicted(6);
    track(&tracker, echo(), &COMMIT);
    evicted(7);
    track(&tracker, ethernet().ipv4(2, 1).icmp(0, 0, 7 << 16), &COMMIT);
    for packet in [udp((1, 14), (2, 20)), syn(3)] {
        let refused = track(&tracker, packet, &COMMIT);
        assert_eq!(refused.state, state::NEW | state::TRACKED);
        assert!(!refused.has_connection);
    }
    evicted(7);
    assert_eq!(tracker.counters().get(Counter::RefusedFull), 2);
    answered();
}

/// Ending some of those beyond a lowered limit would make no room.
#[test]
fn a_lowered_limit_ends_no_connection() {
    let tracker = Tracker::new([1, 2]);
    for port in 1..=200 {
        assert!(track(&tracker, syn(port), &COMMIT).has_connection);
    }
    for limit in [100, 0] {
        tracker.set_limit(limit);
        assert!(!track(&tracker, syn(300), &COMMIT).has_connection);
    }
    let evicted = tracker.counters().get(Counter::Evicted);
    assert_eq!((tracker.count(), evicted), (200, 0));
}

#[test]
fn zones_have_limits_of_their_own() {
    let tracker = Tracker::new([1, 2]);
    tracker.set_zone_limit(None, 1);
    tracker.set_zone_limit(Some(7), 2);
    for zone in [6, 7] {
        for port in 1..4 {
            track(&tracker, syn(port), &Request { zone, ..COMMIT });
        }
    }
    // Those that nobody has answered give way to others of their zone.
    assert_eq!((tracker.zone_count(6), tracker.zone_count(7)), (1, 2));
    let counts = || {
        let counters = tracker.counters();
        [Counter::Evicted, Counter::RefusedZoneLimit].map(|counter| counters.get(counter))
    };
    assert_eq!(counts(), [3, 0]);
    // Not to those of another zone, nor does an established one.
    let other = Request { zone: 8, ..COMMIT };
    track(&tracker, udp((1, 10), (2, 20)), &other);
    track(&tracker, udp((2, 20), (1, 10)), &other);
    for packet in [syn(1), udp((1, 11), (2, 20))] {
        assert!(!track(&tracker, packet, &other).has_connection);
    }
    assert_eq!(counts(), [3, 2]);
    assert_eq!((tracker.zone_count(6), tracker.zone_count(7)), (1, 2));
    // Nor where the limit has been lowered, which would not help.
    tracker.set_zone_limit(Some(7), 0);
    track(&tracker, syn(9), &Request { zone: 7, ..COMMIT });
    tracker.set_zone_limit(Some(7), 1);
    track(&tracker, syn(9), &Request { zone: 7, ..COMMIT });
    assert_eq!((counts(), tracker.zone_count(7)), ([3, 4], 2));
    tracker.set_zone_limit(Some(7), 2);
    assert_eq!(tracker.zone_limits(), [(7, 2)]);
    assert!(tracker.delete_zone_limit(7) && !tracker.delete_zone_limit(7));
}

#[test]
fn exhausted_ranges_make_packets_invalid() {
    let tracker = Tracker::new([1, 2]);
    let nat = source_nat(9, Some((100, 101)));
    let request = Request {
        nat: Some(&nat),
        ..COMMIT
    };
    let states: Vec<u32> = (1..4)
        .map(|port| track(&tracker, udp((1, port), (2, 20)), &request).state & state::INVALID)
        .collect();
    assert_eq!(states, [0, 0, state::INVALID]);
    assert_eq!(tracker.counters().get(Counter::NatExhausted), 1);
    assert_eq!(tracker.count(), 2);
}

#[test]
fn lines_are_those_of_open_vswitch() {
    let tracker = Tracker::new([1, 2]);
    let request = Request {
        zone: 3,
        mark: conntrack::Masked { value: 5, mask: 7 },
        label: conntrack::Masked {
            value: 0x12,
            mask: u128::MAX,
        },
        ..COMMIT
    };
    track(&tracker, syn(1000), &request);
    let mut lines = Vec::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 10, |connection| {
            lines.push(text::line(connection, 1000, false, false));
            lines.push(text::line(connection, 1000, true, true));
        });
    }
    let tuples = "tcp,orig=(src=0.0.0.1,dst=0.0.0.2,sport=1000,dport=80),\
                  reply=(src=0.0.0.2,dst=0.0.0.1,sport=80,dport=1000)";
    let long = "id=0,zone=3,status=0,timeout=30,mark=5,labels=0x12,\
                protoinfo=(state_orig=SYN_SENT,state_reply=CLOSED,flags_orig=0,flags_reply=0)";
    assert_eq!(
        lines,
        [
            format!("{tuples},zone=3,mark=5,labels=0x12,protoinfo=(state=SYN_SENT)"),
            format!("{tuples},{long}"),
        ]
    );
}

/// Workers that begin translated connections at once lose none, and give none the same tuple.
#[test]
fn workers_share_the_table() {
    const THREADS: u32 = 4;
    const EACH: u16 = 1000;
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    let nat = source_nat(9, None);
    let request = Request {
        nat: Some(&nat),
        ..COMMIT
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (tracker, request) = (&tracker, &request);
            scope.spawn(move || {
                for port in 2000..2000 + EACH {
                    // All threads have some connections in common.
                    let host = if port % 4 == 0 { 100 } else { thread };
                    let sent = track(tracker, udp((host, port), (2, 20)), request);
                    assert_eq!(sent.state & state::INVALID, 0);
                    let as_sent = (IpAddr::V4(Ipv4Addr::from_bits(9)), port);
                    let (_, port) = sent.translation.source.unwrap_or(as_sent);
                    let back = track(tracker, udp((2, 20), (9, port)), request);
                    let expected = state::ESTABLISHED | state::REPLY | state::DESTINATION_NAT;
                    assert_eq!(back.state, expected | state::TRACKED);
                    assert_eq!(back.original, sent.original);
                    tracker.expire(1000, 100);
                }
            });
        }
    });
    let expected = usize::from(EACH) * 3 / 4 * THREADS as usize + usize::from(EACH) / 4;
    assert_eq!(tracker.count(), expected);
    let mut tuples = std::collections::HashSet::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 1000, |connection| {
            assert!(tuples.insert(connection.original) && tuples.insert(connection.reply));
        });
    }
    assert_eq!(tuples.len(), 2 * expected);
}

/// Returns the milliseconds until the zone's only connection ends.
fn left(tracker: &Tracker, zone: u16) -> u64 {
    let mut all = Vec::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 10, |connection| {
            if connection.zone == zone {
                all.push(connection.expires_ms - 1000);
            }
        });
    }
    assert_eq!(all.len(), 1);
    all[0]
}

#[test]
fn zones_have_timeouts_of_their_own() {
    let icmp = |source, destination, kind| {
        ethernet()
            .ipv4(source, destination)
            .icmp(kind, 0, 0x0001_0002)
    };
    let sctp = |source: (u32, u16), destination: (u32, u16)| {
        ethernet()
            .ipv4(source.0, destination.0)
            .sctp(source.1, destination.1)
    };
    // Packets, and the timeout that each sets.
    let runs = [
        vec![
            (udp((1, 10), (2, 20)), Timeout::UdpFirst),
            (udp((1, 10), (2, 20)), Timeout::UdpSingle),
            (udp((2, 20), (1, 10)), Timeout::UdpMultiple),
            (udp((1, 10), (2, 20)), Timeout::UdpMultiple),
        ],
        vec![
            (sctp((1, 10), (2, 20)), Timeout::UdpFirst),
            (sctp((2, 20), (1, 10)), Timeout::UdpMultiple),
        ],
        vec![
            (icmp(1, 2, 8), Timeout::IcmpFirst),
            (icmp(2, 1, 0), Timeout::IcmpReply),
        ],
        vec![(syn(1000), Timeout::TcpSynSent)],
    ];
    for run in runs {
        let tracker = Tracker::new([1, 2]);
        let mut own = Policy::default();
        for (number, timeout) in Timeout::ALL.into_iter().enumerate() {
            own.set(timeout, 100 + number as u32);
        }
        let mut usual = Policy::default();
        usual.set(Timeout::UdpFirst, 3);
        tracker.set_policy(7, Some(own));
        tracker.set_default_policy(usual);
        for (packet, timeout) in run {
            for (zone, policy) in [(7, own), (8, usual)] {
                track(&tracker, packet.clone(), &Request { zone, ..COMMIT });
                let expected = u64::from(policy.get(timeout)) * 1000;
                assert_eq!(left(&tracker, zone), expected, "{}", timeout.name());
            }
        }
        assert_eq!((tracker.policy(7), tracker.policy(8)), (own, usual));
        // The next packet is the first for which the change holds.
        let before = left(&tracker, 7);
        tracker.set_policy(7, None);
        assert_eq!(left(&tracker, 7), before);
        assert_eq!(tracker.policy(7), usual);
    }
}

#[test]
fn sequence_checking_can_be_switched_off() {
    // The builder gives every segment the same sequence number and no acknowledgement.
    let numbered = |sequence: u32| {
        let segment = ethernet().ipv4(1, 2).tcp(1000, 80, 16).payload(b"data");
        let mut bytes = segment.bytes();
        bytes[38..42].copy_from_slice(&sequence.to_be_bytes());
        bytes[50..52].fill(0);
        let mut sum = Sum::new();
        sum.add_bytes(&bytes[34..]);
        sum.add_pseudo_header(&[0, 0, 0, 1], &[0, 0, 0, 2], 6, 24);
        let sum = sum.finish();
        bytes[50..52].copy_from_slice(&sum.to_be_bytes());
        HeapFrame::new(&bytes)
    };
    for check in [true, false] {
        let tracker = Tracker::new([1, 2]);
        assert!(tracker.sequence_checking());
        tracker.set_sequence_checking(check);
        assert_eq!(tracker.sequence_checking(), check);
        track(&tracker, syn(1000), &COMMIT);
        track(&tracker, ethernet().ipv4(2, 1).tcp(80, 1000, 0x12), &COMMIT);
        // Half the space of sequence numbers away from what is open.
        let (frame, layers) = parsed(numbered(0x7fff_fff0));
        let tracked = tracker.track(&frame, &layers, &COMMIT, 1000);
        assert_eq!(tracked.state & state::INVALID != 0, check);
        let refused = tracker.counters().get(Counter::InvalidTcpWindow);
        assert_eq!(refused, u64::from(check));
        // Flags are checked all the same.
        let flags = ethernet().ipv4(1, 2).tcp(1000, 80, 3);
        let tracked = track(&tracker, flags, &COMMIT);
        assert_eq!(tracked.state & state::INVALID, state::INVALID);
    }
}

/// Frames of any two or three segments are read like whole ones, and frames that end before their
/// layers do are answered.
#[test]
fn segments_and_short_frames_are_read() {
    let quoted = udp((1, 10), (2, 20)).bytes().split_off(14);
    let v6 = || ethernet().ipv6([1; 16], [2; 16]);
    let quoted_v6 = v6().udp(10, 20).payload(b"data").bytes().split_off(14);
    let packets = [
        udp((1, 10), (2, 20)),
        ethernet()
            .ipv4(1, 2)
            .ipv4_options(&[1; 8])
            .tcp_with_options(10, 20, 2, &[3, 3, 7, 0])
            .payload(b"12345"),
        ethernet().ipv4(1, 2).sctp(10, 20).payload(b"1234"),
        ethernet().ipv4(1, 2).icmp(8, 0, 7).payload(b"123"),
        ethernet().ipv4(9, 1).icmp(3, 1, 0).payload(&quoted),
        v6().udp(10, 20).payload(b"data"),
        v6().extension(60, &[0, 1, 4, 0, 0, 0, 0]).tcp(10, 20, 2),
        v6().icmpv6(128, 0, 7).payload(b"123"),
        ethernet()
            .ipv6([9; 16], [1; 16])
            .icmpv6(3, 0, 0)
            .payload(&quoted_v6),
    ];
    for packet in packets {
        let bytes = packet.bytes();
        let (whole, layers) = parsed(HeapFrame::new(&bytes));
        let answer = |frame: &HeapFrame| {
            let tracker = Tracker::new([1, 2]);
            track(
                &tracker,
                udp((1, 10), (2, 20)),
                &Request { zone: 1, ..COMMIT },
            );
            let begun = v6().udp(10, 20);
            track(&tracker, begun, &Request { zone: 1, ..COMMIT });
            let tracked = tracker.track(frame, &layers, &Request { zone: 1, ..COMMIT }, 1000);
            (tracked, tracker.counters().get(Counter::Created))
        };
        let expected = answer(&whole);
        assert_eq!(expected.0.state & state::INVALID, 0);
        for cut in 0..=bytes.len() {
            let (head, tail) = bytes.split_at(cut);
            let frame = HeapFrame::with_segments(&[head, tail]);
            assert_eq!(answer(&frame), expected, "cut at {cut}");
            let (middle, tail) = tail.split_at(tail.len().min(3));
            let frame = HeapFrame::with_segments(&[head, middle, tail]);
            assert_eq!(answer(&frame), expected, "cut at {cut} and 3 bytes later");
            if head.len() < bytes.len() {
                let short = HeapFrame::with_segments(&[&head[..cut / 2], &head[cut / 2..]]);
                let (tracked, _) = answer(&short);
                assert_eq!(
                    tracked.state,
                    state::INVALID | state::TRACKED,
                    "{cut} bytes"
                );
            }
        }
    }
}
