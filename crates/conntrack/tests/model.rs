//! The tracker answers as the model in `reference` does.

mod reference;

use conntrack::{
    Counter, Cursor, Direction, Filter, Masked, Nat, Range, Request, Tracked, Tracker, state,
};
use packet::build::Builder;
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, HeapFrame, WordSet};
use proptest::prelude::*;
use reference::{ACK, Ends, FIN, Model, RST, SYN, Sent, Tcp};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

fn ip(bits: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(bits))
}

fn bits(ip: IpAddr) -> u32 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits(),
        IpAddr::V6(_) => panic!("IPv6"),
    }
}

fn build(builder: Builder, sent: &Sent) -> Builder {
    let ends = &sent.ends;
    let builder = builder.ipv4(ends.src.0, ends.dst.0);
    match ends.protocol {
        6 => {
            let options: &[u8] = match sent.tcp.scale {
                Some(scale) => &[1, 3, 3, scale],
                None => &[],
            };
            builder
                .tcp_with_options(ends.src.1, ends.dst.1, sent.tcp.flags, options)
                .payload(&vec![7; sent.tcp.length as usize])
        }
        1 => builder.icmp(ends.kinds.0, 0, u32::from(ends.src.1) << 16 | 9),
        17 => builder.udp(ends.src.1, ends.dst.1).payload(b"data"),
        _ => builder.payload(b"data"),
    }
}

/// Overwrites the numbers that the builder does not let choose, and corrects the checksum.
fn number(frame: &mut [u8], l3: usize, tcp: &Tcp) {
    let l4 = l3 + 20;
    frame[l4 + 4..l4 + 8].copy_from_slice(&tcp.seq.to_be_bytes());
    frame[l4 + 8..l4 + 12].copy_from_slice(&tcp.ack.to_be_bytes());
    frame[l4 + 14..l4 + 16].copy_from_slice(&tcp.window.to_be_bytes());
    frame[l4 + 16..l4 + 18].fill(0);
    let mut sum = packet::checksum::Sum::new();
    sum.add_bytes(&frame[l4..]);
    let size = (frame.len() - l4) as u32;
    sum.add_pseudo_header(&frame[l3 + 12..l3 + 16], &frame[l3 + 16..l3 + 20], 6, size);
    let checksum = sum.finish();
    frame[l4 + 16..l4 + 18].copy_from_slice(&checksum.to_be_bytes());
}

const ROUTER: u32 = 0x0909_0909;

fn frame(sent: &Sent) -> (HeapFrame, Layers) {
    let ethernet = || Builder::ethernet([2; 6], [4; 6]);
    let mut bytes = build(ethernet(), sent).bytes();
    if sent.ends.protocol == 6 {
        number(&mut bytes, 14, &sent.tcp);
    }
    if sent.error {
        let quote = bytes[14..].to_vec();
        bytes = ethernet()
            .ipv4(ROUTER, sent.ends.src.0)
            .icmp(3, 1, 0)
            .payload(&quote[..quote.len().min(48)])
            .bytes();
    }
    let mut frame = HeapFrame::new(&bytes);
    let mut key = FlowKey::ZERO;
    let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
    (frame, layers)
}

/// The ends as the answer says that they go out. Of errors, those of the quoted packet, turned
/// round.
fn apply(ends: Ends, tracked: &Tracked, error: bool) -> Ends {
    let mut out = ends;
    let (source, destination) = match (error, tracked.translation.inner) {
        (true, Some(inner)) => (inner.destination, inner.source),
        (true, None) => (None, None),
        (false, _) => (tracked.translation.source, tracked.translation.destination),
    };
    let set = |end: &mut (u32, u16), new: Option<(IpAddr, u16)>| {
        if let Some((address, port)) = new {
            end.0 = bits(address);
            if port != 0 {
                end.1 = port;
            }
        }
    };
    set(&mut out.src, source);
    set(&mut out.dst, destination);
    out
}

/// One packet, relative to what its flow has sent before.
#[derive(Clone, Debug)]
struct Step {
    flow: usize,
    reply: bool,
    zone: u16,
    commit: bool,
    force: bool,
    mark: u32,
    nat: usize,
    flags: u16,
    length: u32,
    window: u16,
    scale: Option<u8>,
    /// Error of the sequence number and of the acknowledgement.
    off: (i32, i32),
    error: bool,
    gap: u64,
}

fn flags() -> impl Strategy<Value = u16> {
    prop_oneof![
        3 => Just(SYN),
        3 => Just(SYN | ACK),
        8 => Just(ACK),
        2 => Just(ACK | 8),
        3 => Just(FIN | ACK),
        1 => Just(RST),
        1 => Just(RST | ACK),
        1 => 0u16..64,
    ]
}

fn off() -> impl Strategy<Value = i32> {
    prop_oneof![12 => Just(0), 2 => -3..3, 1 => -70_000..70_000, 1 => -1_000_000..1_000_000]
}

fn step() -> impl Strategy<Value = Step> {
    let who = (
        0usize..10,
        any::<bool>(),
        0u16..2,
        any::<bool>(),
        prop::bool::weighted(0.03),
    );
    let what = (
        flags(),
        0u32..200,
        prop_oneof![Just(0), Just(1), Just(1000), Just(65535)],
    );
    let scale = prop::option::of(0u8..16);
    let gap = prop_oneof![8 => 0u64..500, 2 => 0u64..70_000, 1 => 0u64..100_000_000];
    let rest = (
        0u32..3,
        0usize..6,
        (off(), off()),
        prop::bool::weighted(0.08),
        gap,
    );
    (who, what, scale, rest).prop_map(|(who, what, scale, rest)| Step {
        flow: who.0,
        reply: who.1,
        zone: who.2,
        commit: who.3,
        force: who.4,
        flags: what.0,
        length: if what.0 & SYN != 0 { 0 } else { what.1 },
        window: what.2,
        scale: scale.filter(|_| what.0 & SYN != 0),
        mark: rest.0,
        nat: rest.1,
        off: rest.2,
        error: rest.3,
        gap: rest.4,
    })
}

/// What a run of steps knows of one flow.
struct Flow {
    ends: Ends,
    /// As it arrives at the receiver, by zone.
    seen: [Ends; 2],
    next: [u32; 2],
}

fn flow(index: usize) -> Flow {
    let protocol = [6, 6, 6, 6, 6, 17, 17, 1, 1, 59][index];
    let port = |port: u16| if protocol == 59 { 0 } else { port };
    let mut ends = Ends {
        protocol,
        src: (
            0x0a00_0001 + index as u32 % 2,
            port(2000 + index as u16 / 4),
        ),
        dst: (0x0a00_0100, port(80)),
        kinds: (0, 0),
    };
    if protocol == 1 {
        ends.dst.1 = ends.src.1;
        ends.kinds = (8, 0);
    }
    let next = [[0xffff_ff80, 5], [0x3000_0000, 0xd000_0000]][index % 2];
    Flow {
        ends,
        seen: [ends; 2],
        next,
    }
}

fn nats() -> [Option<Nat>; 6] {
    let range = |direction, min: u32, max: u32, ports| {
        Some(Nat {
            direction: Some(direction),
            range: Some(Range {
                min: ip(min),
                max: ip(max),
                ports,
            }),
            ..Nat::default()
        })
    };
    [
        None,
        Some(Nat::default()),
        range(
            Direction::Source,
            0x0b00_0001,
            0x0b00_0001,
            Some((5000, 5001)),
        ),
        range(Direction::Source, 0x0b00_0001, 0x0b00_0002, None),
        range(
            Direction::Destination,
            0x0c00_0001,
            0x0c00_0001,
            Some((8080, 8081)),
        ),
        range(Direction::Source, 0, 0, None),
    ]
}

fn check(steps: &[Step]) {
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    let mut model = Model::default();
    let mut flows: Vec<Flow> = (0..10).map(flow).collect();
    let nats = nats();
    let mut now = 1_000_000;
    for (number, step) in steps.iter().enumerate() {
        now += step.gap;
        let flow = &mut flows[step.flow];
        let zone = usize::from(step.zone);
        let (from, to) = (usize::from(step.reply), usize::from(!step.reply));
        let sent = Sent {
            ends: if step.reply {
                flow.seen[zone].reversed()
            } else {
                flow.ends
            },
            tcp: Tcp {
                flags: step.flags,
                seq: flow.next[from].wrapping_add_signed(step.off.0),
                ack: flow.next[to].wrapping_add_signed(step.off.1),
                window: step.window,
                length: step.length,
                scale: step.scale,
            },
            error: step.error,
        };
        let (frame, layers) = frame(&sent);
        let request = Request {
            zone: step.zone,
            commit: step.commit,
            force: step.force && step.commit,
            mark: Masked {
                value: step.mark,
                mask: if step.mark == 0 { 0 } else { u32::MAX },
            },
            nat: nats[step.nat].as_ref(),
            ..Request::default()
        };
        let tracked = tracker.track(&frame, &layers, &request, now);
        let ends = if sent.error {
            sent.ends.reversed()
        } else {
            sent.ends
        };
        let out = apply(ends, &tracked, sent.error);
        let flags = (request.commit, request.force);
        let expected = model.track(&sent, step.zone, flags, step.mark, request.nat, now, out);
        let original = tracked.original.expect("the packet can be read");
        let told = if expected.original.protocol == 1 {
            (expected.original.kinds.0.into(), 0)
        } else {
            (expected.original.src.1, expected.original.dst.1)
        };
        assert_eq!(
            (
                tracked.state,
                tracked.mark,
                (bits(original.source), bits(original.destination)),
                (original.source_port, original.destination_port),
                out,
            ),
            (
                expected.state,
                expected.mark,
                (expected.original.src.0, expected.original.dst.0),
                told,
                expected.out,
            ),
            "step {number}: {step:?}"
        );
        if !sent.error && !step.reply && tracked.state & state::INVALID == 0 {
            flow.seen[zone] = out;
        }
        if step.off.0 == 0 && !step.error {
            let more = step.length + u32::from(step.flags & (SYN | FIN) != 0);
            flow.next[from] = flow.next[from].wrapping_add(more);
        }
        if number % 16 == 15 {
            compare_tables(&tracker, &model, now);
        }
    }
    now += 2_000;
    while !tracker.expire(now, 10) {}
    model.conns.retain(|conn| conn.expires > now - 2_000);
    compare_tables(&tracker, &model, now);
    now += 90_000_000;
    while !tracker.expire(now, 1000) {}
    assert_eq!(tracker.count(), 0);
    assert_eq!(tracker.bucket_counts().iter().sum::<usize>(), 0);
}

/// Live connections are the same, and no tuple belongs to two of them.
fn compare_tables(tracker: &Tracker, model: &Model, now: u64) {
    let mut lived = Vec::new();
    let mut all = 0;
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 50, |connection| {
            all += 1;
            if connection.expires_ms > now {
                lived.push(*connection);
            }
        });
    }
    assert_eq!(all, tracker.count());
    let mut tuples = HashSet::new();
    for connection in &lived {
        assert!(tuples.insert((connection.zone, connection.original)));
        assert!(tuples.insert((connection.zone, connection.reply)));
    }
    let mut told: Vec<_> = lived
        .iter()
        .map(|connection| {
            let tuple = connection.original.tuple;
            (
                connection.zone,
                tuple.protocol,
                bits(tuple.source),
                connection.expires_ms,
            )
        })
        .collect();
    let mut expected: Vec<_> = model
        .conns
        .iter()
        .filter(|conn| conn.expires > now)
        .map(|conn| {
            (
                conn.zone,
                conn.original.protocol,
                conn.original.src.0,
                conn.expires,
            )
        })
        .collect();
    told.sort_unstable();
    expected.sort_unstable();
    assert_eq!(told, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn answers_are_those_of_the_model(steps in prop::collection::vec(step(), 1..120)) {
        check(&steps);
    }
}

#[test]
fn flushing_removes_what_the_filter_admits() {
    let tracker = Tracker::new([3, 4]);
    for index in 0..10 {
        for zone in 0..2 {
            let sent = Sent {
                ends: flow(index).ends,
                tcp: Tcp {
                    flags: SYN,
                    window: 10,
                    ..Tcp::default()
                },
                error: false,
            };
            let (frame, layers) = frame(&sent);
            let request = Request {
                zone,
                commit: true,
                ..Request::default()
            };
            tracker.track(&frame, &layers, &request, 5);
        }
    }
    // Two pairs of flows have the same tuple.
    assert_eq!(tracker.count(), 16);
    let flush = |filter: &Filter| {
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            cursor = tracker.flush(filter, at, 7);
        }
    };
    let mut filter = Filter {
        zone: Some(1),
        ..Filter::default()
    };
    filter.original.protocol = Some(17);
    flush(&filter);
    assert_eq!(tracker.count(), 14);
    filter.original.protocol = None;
    filter.reply.destination = Some(ip(0x0a00_0001));
    flush(&filter);
    assert_eq!((tracker.count(), tracker.zone_count(1)), (11, 3));
    flush(&Filter::default());
    assert_eq!((tracker.count(), tracker.zone_count(0)), (0, 0));
    assert_eq!(tracker.counters().get(Counter::Flushed), 16);
}
