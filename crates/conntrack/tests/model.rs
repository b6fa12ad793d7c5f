//! The tracker answers as the model in `reference` does.

mod reference;

use conntrack::{
    Counter, Cursor, Direction, Filter, Flushed, Masked, Nat, Part, Range, Request, Tracked,
    Tracker, state,
};
use packet::build::Builder;
use packet::checksum::{Sum, frame_sum};
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, Frame, HeapFrame, WordSet};
use proptest::prelude::*;
use reference::{ACK, Ends, FIN, Model, Places, RST, SYN, Sent, Tcp};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Both families have the same addresses, but for a prefix.
fn ip(v6: bool, bits: u32) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::from_bits(0xfd00_u128 << 112 | u128::from(bits)))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(bits))
    }
}

fn network(builder: Builder, source: IpAddr, destination: IpAddr) -> Builder {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            builder.ipv4(source.to_bits(), destination.to_bits())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            builder.ipv6(source.octets(), destination.octets())
        }
        _ => panic!("one family"),
    }
}

fn build(builder: Builder, sent: &Sent) -> Builder {
    let ends = &sent.ends;
    let builder = network(builder, ends.src.0, ends.dst.0);
    let identifier = u32::from(ends.src.1) << 16 | 9;
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
        1 => builder.icmp(ends.kinds.0, 0, identifier),
        58 => builder.icmpv6(ends.kinds.0, 0, identifier),
        17 => builder.udp(ends.src.1, ends.dst.1).payload(b"data"),
        132 => builder.sctp(ends.src.1, ends.dst.1).payload(b"data"),
        _ => builder.payload(b"data"),
    }
}

const L3: usize = 14;

/// Length of the IP header, which has no options or extension headers.
fn header_length(v6: bool) -> usize {
    if v6 { 40 } else { 20 }
}

/// Overwrites the numbers that the builder does not let choose, and corrects the checksum.
fn number(frame: &mut [u8], v6: bool, tcp: &Tcp) {
    let l4 = L3 + header_length(v6);
    frame[l4 + 4..l4 + 8].copy_from_slice(&tcp.seq.to_be_bytes());
    frame[l4 + 8..l4 + 12].copy_from_slice(&tcp.ack.to_be_bytes());
    frame[l4 + 14..l4 + 16].copy_from_slice(&tcp.window.to_be_bytes());
    frame[l4 + 16..l4 + 18].fill(0);
    let mut sum = Sum::new();
    sum.add_bytes(&frame[l4..]);
    let size = (frame.len() - l4) as u32;
    // Both addresses are the end of the header.
    let length = if v6 { 16 } else { 4 };
    let (source, destination) = frame[l4 - 2 * length..l4].split_at(length);
    sum.add_pseudo_header(source, destination, 6, size);
    let checksum = sum.finish();
    frame[l4 + 16..l4 + 18].copy_from_slice(&checksum.to_be_bytes());
}

const ROUTER: u32 = 0x0909_0909;

fn ethernet() -> Builder {
    Builder::ethernet([2; 6], [4; 6])
}

/// The packet from its IP header on.
fn packet_bytes(sent: &Sent) -> Vec<u8> {
    let mut bytes = build(ethernet(), sent).bytes();
    if sent.ends.protocol == 6 {
        number(&mut bytes, sent.ends.src.0.is_ipv6(), &sent.tcp);
    }
    bytes.split_off(L3)
}

/// Returns the frame, cut into two segments at `cut`, if it is that long. Errors quote `quoted`
/// bytes behind the IP header.
fn frame(sent: &Sent, quoted: usize, cut: usize) -> (HeapFrame, Layers) {
    let v6 = sent.ends.src.0.is_ipv6();
    let mut bytes = packet_bytes(sent);
    if sent.error {
        bytes.truncate(header_length(v6) + quoted);
        let outer = network(ethernet(), ip(v6, ROUTER), sent.ends.src.0);
        let outer = if v6 {
            outer.icmpv6(1, 4, 0)
        } else {
            outer.icmp(3, 1, 0)
        };
        bytes = outer.payload(&bytes).bytes().split_off(L3);
    }
    bytes.splice(0..0, build(ethernet(), sent).bytes()[..L3].to_vec());
    let mut key = FlowKey::ZERO;
    let layers = parse_frame(&mut HeapFrame::new(&bytes), 1, WordSet::MINI_KEY, &mut key);
    let (head, tail) = bytes.split_at(cut.min(bytes.len()));
    (HeapFrame::with_segments(&[head, tail]), layers)
}

/// Has the packet that an error quotes translated, and compares it with one that is built as its
/// sender has sent it, to the ends `out`.
fn check_quote(frame: &mut HeapFrame, layers: &Layers, sent: &Sent, out: Ends, tracked: &Tracked) {
    let before = frame.to_vec();
    assert!(Tracker::translate_inner(
        frame,
        layers,
        &tracked.translation
    ));
    let (l4, end) = (usize::from(layers.l4), layers.end as usize);
    let ends = out.reversed();
    let as_sent = packet_bytes(&Sent { ends, ..*sent });
    let (mut got, mut expected) = (frame.to_vec(), before.clone());
    let begin = l4 + 8;
    expected[begin..end].copy_from_slice(&as_sent[..end - begin]);
    let transport = begin + header_length(ends.src.0.is_ipv6());
    if ends.protocol == 132 {
        // The CRC, which covers more than is quoted, stays as it is.
        let crc = end.min(transport + 8)..end.min(transport + 12);
        expected[crc.clone()].copy_from_slice(&before[crc]);
    }
    // Zero has two forms in the other checksums.
    let transport_checksum = match ends.protocol {
        6 => 16,
        17 => 6,
        _ => 2,
    };
    let at = transport + transport_checksum;
    if at + 1 == end && ends.protocol != 132 {
        // Half a checksum stays as it is, too.
        expected[at] = before[at];
    }
    for at in [begin + 10, at] {
        let is_zero = |bytes: &[u8]| matches!(bytes.get(at..at + 2), Some([0, 0] | [0xff, 0xff]));
        if at + 2 <= end && is_zero(&got) && is_zero(&expected) {
            expected[at..at + 2].copy_from_slice(&got[at..at + 2]);
        }
    }
    got[l4 + 2..l4 + 4].fill(0);
    expected[l4 + 2..l4 + 4].fill(0);
    assert_eq!(got, expected, "{ends:?}");
    let mut sum = Sum::new();
    sum.add_u16(frame_sum(frame, l4, end));
    if ends.src.0.is_ipv6() {
        let addresses = &before[l4 - 32..l4];
        sum.add_pseudo_header(&addresses[..16], &addresses[16..], 58, (end - l4) as u32);
    }
    assert_eq!(sum.fold(), 0xffff, "checksum of the error");
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
    let set = |end: &mut (IpAddr, u16), new: Option<(IpAddr, u16)>| {
        if let Some((address, port)) = new {
            end.0 = address;
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
    /// Bytes behind the IP header that an error quotes.
    quoted: usize,
    /// Where the frame's second segment begins.
    cut: usize,
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
        0usize..NATS,
        (off(), off()),
        prop::bool::weighted(0.08),
        (prop_oneof![Just(8), 8usize..40], 0usize..120),
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
        quoted: rest.4.0,
        cut: rest.4.1,
        gap: rest.5,
    })
}

/// What a run of steps knows of one flow.
struct Flow {
    ends: Ends,
    /// As it arrives at the receiver, by zone.
    seen: [Ends; 2],
    next: [u32; 2],
}

/// Protocols of the flows, and whether they are of IPv6.
type Flows = [(u8, bool); 10];

const IPV4: Flows = {
    let [tcp, udp, icmp, other] = [(6, false), (17, false), (1, false), (59, false)];
    [tcp, tcp, tcp, tcp, tcp, udp, udp, icmp, icmp, other]
};
const IPV6: Flows = {
    let [tcp, udp, icmp, other] = [(6, true), (17, true), (58, true), (59, true)];
    [tcp, tcp, tcp, tcp, tcp, udp, udp, icmp, icmp, other]
};
/// SCTP, and both families in one table.
const MIXED: Flows = [
    (132, false),
    (132, true),
    (132, false),
    (132, true),
    (58, true),
    (1, false),
    (58, true),
    (17, true),
    (132, true),
    (17, false),
];

fn flow(flows: &Flows, index: usize) -> Flow {
    let (protocol, v6) = flows[index];
    let port = |port: u16| if protocol == 59 { 0 } else { port };
    let mut ends = Ends {
        protocol,
        src: (
            ip(v6, 0x0a00_0001 + index as u32 % 2),
            port(2000 + index as u16 / 4),
        ),
        dst: (ip(v6, 0x0a00_0100), port(80)),
        kinds: (0, 0),
    };
    if ends.is_icmp() {
        ends.dst.1 = ends.src.1;
        ends.kinds = if v6 { (128, 129) } else { (8, 0) };
    }
    let next = [[0xffff_ff80, 5], [0x3000_0000, 0xd000_0000]][index % 2];
    Flow {
        ends,
        seen: [ends; 2],
        next,
    }
}

const NATS: usize = 7;

fn nats(v6: bool) -> [Option<Nat>; NATS] {
    let range = |direction, min: u32, max: u32, ports| {
        Some(Nat {
            direction: Some(direction),
            range: Some(Range {
                min: ip(v6, min),
                max: ip(v6, max),
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
        Some(Nat {
            direction: Some(Direction::Source),
            ..Nat::default()
        }),
        // Of the other family: nothing can be translated to it.
        Some(Nat {
            direction: Some(Direction::Destination),
            range: Some(Range {
                min: ip(!v6, 0x0c00_0001),
                max: ip(!v6, 0x0c00_0001),
                ports: None,
            }),
            ..Nat::default()
        }),
    ]
}

/// How many connections there may be. With a limit, steps must not take so long that connections
/// expire: they count until they are removed, of which the model knows nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    all: Option<usize>,
    zones: [Option<usize>; 2],
}

impl Limits {
    fn are_set(self) -> bool {
        self.all.is_some() || self.zones.iter().any(Option::is_some)
    }
}

fn check(kinds: &Flows, steps: &[Step], limits: Limits) {
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    if let Some(limit) = limits.all {
        tracker.set_limit(limit);
    }
    for (zone, limit) in limits.zones.iter().enumerate() {
        if let Some(limit) = limit {
            tracker.set_zone_limit(Some(zone as u16), *limit as u32);
        }
    }
    let mut model = Model {
        limit: limits.all,
        zone_limits: limits.zones,
        ..Model::default()
    };
    let mut flows: Vec<Flow> = (0..10).map(|index| flow(kinds, index)).collect();
    let nats = [nats(false), nats(true)];
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
        let (mut frame, layers) = frame(&sent, step.quoted, step.cut);
        let nat = nats[usize::from(kinds[step.flow].1)][step.nat].as_ref();
        let request = Request {
            zone: step.zone,
            commit: step.commit,
            force: step.force && step.commit,
            mark: Masked {
                value: step.mark,
                mask: if step.mark == 0 { 0 } else { u32::MAX },
            },
            nat,
            ..Request::default()
        };
        if limits.are_set() {
            model.before = places(&tracker);
        }
        let tracked = tracker.track(&frame, &layers, &request, now);
        if limits.are_set() {
            model.after = places(&tracker);
        }
        let ends = if sent.error {
            sent.ends.reversed()
        } else {
            sent.ends
        };
        let out = apply(ends, &tracked, sent.error);
        let flags = (request.commit, request.force);
        let expected = model.track(&sent, step.zone, flags, step.mark, request.nat, now, out);
        let original = tracked.original.expect("the packet can be read");
        let told = if expected.original.is_icmp() {
            (expected.original.kinds.0.into(), 0)
        } else {
            (expected.original.src.1, expected.original.dst.1)
        };
        assert_eq!(
            (
                tracked.state,
                tracked.mark,
                (original.source, original.destination),
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
        if sent.error && tracked.translation.inner.is_some() {
            check_quote(&mut frame, &layers, &sent, out, &tracked);
        }
        if !sent.error && !step.reply && tracked.state & state::INVALID == 0 {
            flow.seen[zone] = out;
        }
        if step.off.0 == 0 && !step.error {
            let more = step.length + u32::from(step.flags & (SYN | FIN) != 0);
            flow.next[from] = flow.next[from].wrapping_add(more);
        }
        if number % 16 == 15 || limits.are_set() {
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

/// Returns where the tracker has which connections.
fn places(tracker: &Tracker) -> Places {
    let mut places = Places::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 1000, |connection| {
            places.insert((connection.zone, connection.original), connection.bucket);
        });
    }
    places
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
                tuple.source,
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
    fn answers_are_those_of_the_model(
        kinds in prop::sample::select(vec![IPV4, IPV6, MIXED]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        check(&kinds, &steps, Limits::default());
    }

    #[test]
    fn limits_are_those_of_the_model(
        kinds in prop::sample::select(vec![IPV4, IPV6, MIXED]),
        mut steps in prop::collection::vec(step(), 1..120),
        limits in limits(),
    ) {
        for step in &mut steps {
            step.gap %= 200;
        }
        check(&kinds, &steps, limits);
    }
}

fn limits() -> impl Strategy<Value = Limits> {
    let limit = |most: usize| prop::option::of(0..most);
    (limit(6), limit(4), limit(4)).prop_map(|(all, first, second)| Limits {
        all,
        zones: [first, second],
    })
}

/// A SYN of a flow, or another protocol's first packet.
fn first_of(flows: &Flows, index: usize) -> Sent {
    Sent {
        ends: flow(flows, index).ends,
        tcp: Tcp {
            flags: SYN,
            window: 10,
            ..Tcp::default()
        },
        error: false,
    }
}

#[test]
fn flushing_removes_what_the_filter_admits() {
    let tracker = Tracker::new([3, 4]);
    for index in 0..10 {
        for zone in 0..2 {
            let sent = first_of(&IPV4, index);
            let (frame, layers) = frame(&sent, 8, 0);
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
        let (mut cursor, mut removed) = (Some(Cursor::default()), 0);
        while let Some(at) = cursor {
            let flushed = tracker.flush(filter, at, 7);
            (cursor, removed) = (flushed.next, removed + flushed.removed);
        }
        removed
    };
    let mut filter = Filter {
        zone: Some(1),
        ..Filter::default()
    };
    filter.original.protocol = Some(17);
    assert_eq!(flush(&filter), 2);
    assert_eq!(tracker.count(), 14);
    filter.original.protocol = None;
    filter.reply.destination = Some(ip(false, 0x0a00_0001));
    assert_eq!(flush(&filter), 3);
    assert_eq!((tracker.count(), tracker.zone_count(1)), (11, 3));
    assert_eq!(flush(&Filter::default()), 11);
    assert_eq!((tracker.count(), tracker.zone_count(0)), (0, 0));
    assert_eq!(tracker.counters().get(Counter::Flushed), 16);
}

/// A zone and a whole tuple are about one connection: the first slice finds it, wherever it is, and
/// other conditions still hold.
#[test]
fn a_whole_tuple_is_looked_up() {
    let tracker = Tracker::new([3, 4]);
    for kinds in [IPV4, IPV6, MIXED] {
        for index in 0..10 {
            let sent = first_of(&kinds, index);
            let (frame, layers) = frame(&sent, 8, 0);
            for zone in 0..2 {
                let request = Request {
                    zone,
                    commit: true,
                    ..Request::default()
                };
                tracker.track(&frame, &layers, &request, 5);
            }
        }
    }
    let mut connections = Vec::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 1000, |connection| connections.push(*connection));
    }
    assert!(connections.len() > 30);
    let flush = |filter: &Filter| tracker.flush(filter, Cursor::default(), 1);
    let [none, one] = [0, 1].map(|removed| Flushed {
        removed,
        next: None,
    });
    let mut left = connections.len();
    for connection in &connections {
        let conntrack::Flow { tuple, icmp_id } = connection.original;
        let has_ports = matches!(tuple.protocol, 6 | 17 | 132);
        let part = Part {
            source: Some(tuple.source),
            destination: Some(tuple.destination),
            protocol: Some(tuple.protocol),
            source_port: has_ports.then_some(tuple.source_port),
            destination_port: has_ports.then_some(tuple.destination_port),
            icmp_id,
            icmp_type: icmp_id.map(|_| tuple.source_port as u8),
            icmp_code: None,
        };
        let filter = Filter {
            zone: Some(connection.zone),
            original: part,
            reply: Part::default(),
        };
        let mut other = filter;
        other.zone = Some(2);
        assert_eq!(flush(&other), none);
        let mut other = filter;
        other.reply.destination = Some(tuple.destination);
        assert_eq!(flush(&other), none);
        let mut other = filter;
        other.original.icmp_code = Some(1);
        assert_eq!(flush(&other), none);
        // Its answers' tuple is not that of its first packet.
        let mut other = filter;
        (other.original.source, other.original.destination) = (part.destination, part.source);
        (other.original.source_port, other.original.destination_port) =
            (part.destination_port, part.source_port);
        other.original.icmp_type = part.icmp_type.map(|kind| match kind {
            8 => 0,
            kind => kind + 1,
        });
        assert_eq!(flush(&other), none);
        assert_eq!(tracker.count(), left);
        assert_eq!(flush(&filter), one, "{connection:?}");
        left -= 1;
        assert_eq!(tracker.count(), left);
        assert_eq!(flush(&filter), none);
    }
    assert_eq!(left, 0);
    assert_eq!(tracker.zone_count(0), 0);
}
