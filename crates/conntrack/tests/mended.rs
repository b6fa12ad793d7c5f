//! Behaviours that were wrong once, packet by packet.

use conntrack::{
    Counter, Cursor, Direction, Earlier, Masked, Nat, Range, Request, Tracked, Tracker, state,
};
use packet::build::Builder;
use packet::parse::parse_frame;
use packet::{FlowKey, WordSet};

fn udp(source: (u32, u16), destination: (u32, u16)) -> Builder {
    Builder::ethernet([2; 6], [4; 6])
        .ipv4(source.0, destination.0)
        .udp(source.1, destination.1)
        .payload(b"payload")
}

const COMMIT: Request<'static> = Request {
    zone: 0,
    commit: true,
    force: false,
    mark: Masked { value: 0, mask: 0 },
    label: Masked { value: 0, mask: 0 },
    nat: None,
    helper: None,
};

fn track(
    tracker: &Tracker,
    builder: Builder,
    earlier: Earlier,
    request: &Request<'_>,
    now_ms: u64,
) -> Tracked {
    let mut frame = builder.frame();
    let mut key = FlowKey::ZERO;
    let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
    tracker.track_again(&frame, &layers, earlier, request, now_ms)
}

fn expiries(tracker: &Tracker) -> Vec<u64> {
    let mut all = Vec::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 100, |connection| all.push(connection.expires_ms));
    }
    all
}

#[test]
fn a_connection_that_only_the_second_action_finds_sees_the_packet() {
    let tracker = Tracker::new([1, 2]);
    let none = Earlier::default();
    let packet = || udp((1, 10), (2, 20));
    let look = Request {
        commit: false,
        ..COMMIT
    };
    // Another packet has the connection committed between two actions for this one.
    let first = track(&tracker, packet(), none, &look, 1000);
    assert!(!first.has_connection);
    assert!(track(&tracker, packet(), none, &COMMIT, 1000).has_connection);
    let second = track(&tracker, packet(), first.earlier(false), &look, 21_000);
    assert_eq!(second.state, state::NEW | state::TRACKED);
    assert!(second.has_connection);
    assert_eq!(expiries(&tracker), [81_000], "it was refreshed");
    // Once it has seen the packet, it is not refreshed again, except from another zone's action.
    let third = track(&tracker, packet(), second.earlier(false), &look, 31_000);
    assert!(third.has_connection);
    assert_eq!(expiries(&tracker), [81_000]);
    let elsewhere = Earlier {
        zone: 9,
        ..third.earlier(false)
    };
    track(&tracker, packet(), elsewhere, &look, 31_000);
    assert_eq!(expiries(&tracker), [91_000]);
}

/// As in Open vSwitch, whose packets do not remember a connection behind a `nat`, and whose `force`
/// asks the table again.
#[test]
fn a_packet_counts_again_behind_nat_and_by_force() {
    let nat = Nat::default();
    let look = Request {
        commit: false,
        ..COMMIT
    };
    let (with_nat, force) = (
        Request {
            nat: Some(&nat),
            ..look
        },
        Request {
            force: true,
            ..COMMIT
        },
    );
    for (second, third, refreshed) in [
        (&look, &look, false),
        (&look, &with_nat, false),
        (&with_nat, &look, true),
        (&look, &force, true),
        (&force, &look, false),
    ] {
        let tracker = Tracker::new([1, 2]);
        let packet = || udp((1, 10), (2, 20));
        track(&tracker, packet(), Earlier::default(), &COMMIT, 1000);
        let before = track(&tracker, packet(), Earlier::default(), second, 2000);
        track(
            &tracker,
            packet(),
            before.earlier(second.nat.is_some()),
            third,
            3000,
        );
        let time = if refreshed { 3000 } else { 2000 };
        assert_eq!(expiries(&tracker), [time + 60_000], "{second:?}, {third:?}");
    }
}

#[test]
fn one_call_expires_more_than_one_slice_of_a_shard() {
    let tracker = Tracker::new([1, 2]);
    let none = Earlier::default();
    let ports = 1000..21_000;
    for port in ports.clone() {
        track(&tracker, udp((1, port), (2, 20)), none, &COMMIT, 1000);
    }
    assert!(tracker.bucket_counts().iter().any(|count| *count > 64));
    // Refreshed connections are examined when they would have ended, and stay.
    for port in ports.clone().step_by(2) {
        track(&tracker, udp((1, port), (2, 20)), none, &COMMIT, 30_000);
    }
    assert!(!tracker.expire(70_000, 1000));
    assert!(tracker.count() >= ports.len() - 1000);
    assert!(tracker.expire(70_000, usize::MAX));
    assert_eq!(tracker.count(), ports.len() / 2);
    assert!(tracker.expire(100_000, usize::MAX));
    assert_eq!(tracker.count(), 0);
}

/// As Open vSwitch 3.1 does it.
#[test]
fn a_limit_of_zero_refuses_all() {
    let tracker = Tracker::new([1, 2]);
    let commit = |zone, port| {
        let request = Request { zone, ..COMMIT };
        let none = Earlier::default();
        track(&tracker, udp((1, port), (2, 20)), none, &request, 1000).has_connection
    };
    assert_eq!(tracker.zone_limit(None), None);
    tracker.set_zone_limit(Some(5), 0);
    assert_eq!(tracker.zone_limit(Some(5)), Some(0));
    assert!(!commit(5, 10) && commit(6, 10));
    tracker.set_zone_limit(None, 0);
    assert!(tracker.delete_zone_limit(5));
    assert!(!commit(5, 11) && !commit(6, 11));
    assert_eq!(tracker.counters().get(Counter::RefusedZoneLimit), 3);
    tracker.set_zone_limit(Some(5), 1);
    assert!(commit(5, 12) && commit(5, 13));
    assert_eq!(tracker.zone_count(5), 1);
}

#[test]
fn the_largest_limit_is_a_limit() {
    let tracker = Tracker::new([1, 2]);
    tracker.set_zone_limit(None, 0);
    tracker.set_zone_limit(Some(5), u32::MAX);
    assert_eq!(tracker.zone_limits(), [(5, u32::MAX)]);
    let request = Request { zone: 5, ..COMMIT };
    assert!(
        track(
            &tracker,
            udp((1, 1), (2, 2)),
            Earlier::default(),
            &request,
            1000
        )
        .has_connection
    );
    tracker.set_zone_limit(None, u32::MAX);
    assert_eq!(tracker.zone_limit(None), Some(u32::MAX));
    assert!(tracker.delete_zone_limit(5) && tracker.zone_limits().is_empty());
}

#[test]
fn only_a_connection_that_is_added_evicts() {
    // A secret with which the connections are in different shards.
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    let none = Earlier::default();
    let segment = |port, flags| {
        Builder::ethernet([2; 6], [4; 6])
            .ipv4(1, 2)
            .tcp(port, 80, flags)
    };
    let evicted = || tracker.counters().get(Counter::Evicted);
    tracker.set_limit(2);
    let other = Request { zone: 7, ..COMMIT };
    track(&tracker, segment(1, 2), none, &other, 1000);
    let range = Range {
        min: [0, 0, 0, 9].into(),
        max: [0, 0, 0, 9].into(),
        ports: Some((7, 7)),
    };
    let nat = Nat {
        direction: Some(Direction::Source),
        range: Some(range),
        ..Nat::default()
    };
    let nat = Request {
        nat: Some(&nat),
        ..COMMIT
    };
    track(&tracker, segment(2, 2), none, &nat, 1000);
    // Not a SYN that finds no free port.
    assert!(!track(&tracker, segment(4, 2), none, &nat, 1000).has_connection);
    assert_eq!((evicted(), tracker.count()), (0, 2));
    // The one of the same zone gives way first.
    assert!(track(&tracker, segment(5, 2), none, &COMMIT, 1000).has_connection);
    assert_eq!((evicted(), tracker.count()), (1, 2));
    assert_eq!((tracker.zone_count(0), tracker.zone_count(7)), (1, 1));
}
