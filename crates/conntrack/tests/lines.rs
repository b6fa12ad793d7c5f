//! Packets that go by a line, without a shard's lock, are answered as others are.

use conntrack::{
    Answers, Coming, Cursor, Direction, Earlier, Filter, Masked, Nat, Policy, Range, Request,
    Settled, Timeout, Tracked, Tracker,
};
use packet::build::Builder;
use packet::frame::Offload;
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, Frame, HeapFrame, WordSet};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The answers for a burst, whose packets are numbered from 0 on.
#[derive(Default)]
struct Given {
    all: Vec<Tracked>,
    /// How many were read from lines.
    by_line: usize,
}

impl Answers for Given {
    fn settled(&mut self, number: usize, settled: &Settled) {
        self.by_line += 1;
        self.other(number, &settled.tracked());
    }

    fn other(&mut self, number: usize, tracked: &Tracked) {
        assert_eq!(number, self.all.len());
        self.all.push(*tracked);
    }
}

/// What is done in a step.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Packets of a connection.
    Packet {
        connection: u8,
        reply: bool,
        /// An ICMP error that quotes a packet of the other direction.
        error: bool,
        flags: u16,
        /// How far its numbers are off.
        off: (i32, i32),
        window: u16,
        length: u8,
        commit: bool,
        mark: Option<u32>,
        zone: bool,
        nat: bool,
    },
    /// Time passes, in milliseconds.
    Wait(u32),
    /// What is due is removed.
    Expire,
    /// Connections with this source address go.
    Flush(u8),
    /// Timeouts of a zone, in seconds.
    Policy(u16, u32),
    /// Sequence numbers are checked, or not.
    Check(bool),
}

const FIN: u16 = 1;
const SYN: u16 = 2;
const RST: u16 = 4;
const PSH: u16 = 8;
const ACK: u16 = 16;

/// What a connection is of.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Protocol {
    Tcp,
    Udp,
    Icmp,
    Sctp,
}

use Protocol::{Icmp, Sctp, Tcp, Udp};

/// Number of connections.
const CONNECTIONS: u8 = 20;

/// Protocols of the connections, by number modulo ten. Those from ten on are of IPv6.
const PROTOCOLS: [Protocol; 10] = [Tcp, Tcp, Udp, Tcp, Tcp, Udp, Icmp, Icmp, Icmp, Sctp];

/// The connections that are translated, modulo ten: both TCP and UDP, and two of ICMP.
const TRANSLATED: [bool; 10] = [
    false, false, false, true, true, true, false, true, true, false,
];

fn protocol(connection: u8) -> Protocol {
    PROTOCOLS[usize::from(connection) % 10]
}

fn is_wide(connection: u8) -> bool {
    connection >= 10
}

/// The address of a connection's first host (0), of the second (1), or the one that replaces one of
/// these where it is translated (2).
fn address(connection: u8, host: u8) -> IpAddr {
    match is_wide(connection) {
        false => Ipv4Addr::new(10, host, 0, connection).into(),
        true => {
            let mut address = [0xfd; 16];
            (address[7], address[15]) = (host, connection);
            Ipv6Addr::from(address).into()
        }
    }
}

/// What is asked for when a connection is committed. Of translated ones every second has another
/// source, the others another destination.
fn translation(connection: u8) -> Nat {
    if !TRANSLATED[usize::from(connection) % 10] {
        return Nat::default();
    }
    let address = address(connection, 2);
    Nat {
        direction: Some(match connection % 2 {
            0 => Direction::Destination,
            _ => Direction::Source,
        }),
        range: Some(Range {
            min: address,
            max: address,
            ports: None,
        }),
        ..Nat::default()
    }
}

/// Source and destination of packets of a direction, as they come in.
fn ends(connection: u8, reply: bool) -> [IpAddr; 2] {
    let [client, server] = [0, 1].map(|host| address(connection, host));
    let other = address(connection, 2);
    match (reply, translation(connection).direction) {
        (false, _) => [client, server],
        (true, None) => [server, client],
        (true, Some(Direction::Source)) => [server, other],
        (true, Some(Direction::Destination)) => [other, client],
    }
}

fn network([source, destination]: [IpAddr; 2]) -> Builder {
    let ethernet = Builder::ethernet([2; 6], [4; 6]);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            ethernet.ipv4(source.to_bits(), destination.to_bits())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            ethernet.ipv6(source.octets(), destination.octets())
        }
        _ => unreachable!("one family"),
    }
}

/// A packet of a connection.
struct Packet {
    connection: u8,
    reply: bool,
    error: bool,
    flags: u16,
    numbers: [u32; 2],
    window: u16,
    length: usize,
}

impl Packet {
    /// The packet's bytes, or those of the one that an error quotes.
    fn bytes(&self) -> Vec<u8> {
        let (mut ends, mut ports) = (ends(self.connection, self.reply), [1025, 80]);
        // The direction of replies is that of an echo, too.
        let mut is_answer = self.reply;
        if self.reply {
            ports.reverse();
        }
        if self.error {
            ends.reverse();
            ports.reverse();
            is_answer = !is_answer;
        }
        let wide = is_wide(self.connection);
        let ip = network(ends);
        let payload = vec![7; self.length];
        // Four bytes on is the sequence number.
        let at = if wide { 54 } else { 34 };
        let answer = u8::from(is_answer);
        match protocol(self.connection) {
            Udp => ip.udp(ports[0], ports[1]).payload(&payload).bytes(),
            Icmp if wide => ip
                .icmpv6(128 + answer, 0, 7 << 16)
                .payload(&payload)
                .bytes(),
            Icmp => ip
                .icmp(8 - 8 * answer, 0, 7 << 16)
                .payload(&payload)
                .bytes(),
            Sctp => ip.sctp(ports[0], ports[1]).payload(&payload).bytes(),
            Tcp => {
                let tcp = ip.tcp(ports[0], ports[1], self.flags);
                let mut bytes = tcp.payload(&payload).bytes();
                for (at, number) in [at + 4, at + 8].into_iter().zip(self.numbers) {
                    bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
                }
                bytes[at + 14..at + 16].copy_from_slice(&self.window.to_be_bytes());
                bytes
            }
        }
    }

    fn frame(&self) -> (HeapFrame, Layers) {
        let mut bytes = self.bytes();
        if self.error {
            let quoted = &bytes[14..];
            let to = ends(self.connection, self.reply)[1];
            let router = address(self.connection, 9);
            let ip = network([router, to]);
            let error = match is_wide(self.connection) {
                false => ip.icmp(3, 1, 0),
                true => ip.icmpv6(1, 4, 0),
            };
            bytes = error.payload(quoted).bytes();
        }
        bytes.resize(bytes.len().max(60), 0);
        let mut frame = HeapFrame::new(&bytes);
        // The numbers were written after the checksum.
        frame.set_offload(Offload {
            checksum_valid: true,
            ..Offload::default()
        });
        let mut key = FlowKey::ZERO;
        let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
        (frame, layers)
    }
}

fn packet() -> impl Strategy<Value = Step> {
    let flags = prop_oneof![
        20 => Just(ACK),
        8 => Just(ACK | PSH),
        4 => Just(SYN),
        4 => Just(SYN | ACK),
        1 => Just(ACK | FIN),
        1 => Just(RST),
        1 => Just(0),
    ];
    let off = prop_oneof![
        12 => Just((0, 0)),
        1 => (-100_000..100_000, Just(0)),
        1 => (Just(0), -100_000..100_000),
        1 => (any::<i32>(), any::<i32>()),
    ];
    let mark = prop::option::weighted(0.1, 0..3_u32);
    (
        (0..CONNECTIONS, any::<bool>(), prop::bool::weighted(0.05)),
        flags,
        off,
        any::<u16>(),
        0..9_u8,
        prop::bool::weighted(0.3),
        mark,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.9),
    )
        .prop_map(
            |((connection, reply, error), flags, off, window, length, commit, mark, zone, nat)| {
                Step::Packet {
                    connection,
                    reply,
                    error,
                    flags,
                    off,
                    window,
                    length,
                    commit,
                    mark,
                    zone,
                    nat,
                }
            },
        )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        60 => packet(),
        4 => (0..40_000_u32).prop_map(Step::Wait),
        2 => Just(Step::Expire),
        1 => (0..CONNECTIONS).prop_map(Step::Flush),
        1 => (0..2_u16, 0..60_u32).prop_map(|(zone, seconds)| Step::Policy(zone, seconds)),
        1 => any::<bool>().prop_map(Step::Check),
    ]
}

fn shown(tracker: &Tracker, now: u64) -> Vec<String> {
    let mut all = Vec::new();
    let mut cursor = Some(Cursor::default());
    while let Some(at) = cursor {
        cursor = tracker.dump(at, 10, |connection| {
            if connection.expires_ms > now {
                all.push(format!("{connection:?}"));
            }
        });
    }
    all.sort();
    all
}

/// Both have the same packets, of these connections only, so that each has many. Before each one,
/// the second is told that timeouts have changed, though they have not, so that its packet goes by
/// the shard.
fn check(connections: &[u8], steps: &[Step]) {
    let chosen = |connection: u8| connections[usize::from(connection) % connections.len()];
    let trackers = [Tracker::new([5, 6]), Tracker::new([5, 6])];
    let mut policies = [Policy::default(), Policy::default()];
    let mut next = [[1000_u32, 5_000_000]; CONNECTIONS as usize];
    let mut now = 1_000_000;
    let mut before = None;
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Packet {
                connection,
                reply,
                error,
                flags,
                off,
                window,
                length,
                commit,
                mark,
                zone,
                nat,
            } => {
                let connection = chosen(connection);
                let [mine, others] = {
                    let [first, second] = next[usize::from(connection)];
                    if reply {
                        [second, first]
                    } else {
                        [first, second]
                    }
                };
                let numbers = [
                    mine.wrapping_add_signed(off.0),
                    others.wrapping_add_signed(off.1),
                ];
                let (frame, layers) = Packet {
                    connection,
                    reply,
                    error,
                    flags,
                    numbers,
                    window,
                    length: length.into(),
                }
                .frame();
                let translation = match commit {
                    true => translation(connection),
                    false => Nat::default(),
                };
                let request = Request {
                    zone: u16::from(zone),
                    commit,
                    nat: nat.then_some(&translation),
                    mark: Masked {
                        value: mark.unwrap_or(0),
                        mask: if mark.is_some() { 3 } else { 0 },
                    },
                    ..Request::default()
                };
                // Bursts of the packet alone, several times, and in turns with the one before.
                let own = &(frame, layers);
                let other = before.as_ref().unwrap_or(own);
                let burst: &[_] = match length % 6 {
                    0 | 1 => &[own],
                    2 => &[own, own, own],
                    3 => &[other, own],
                    4 => &[own, other, own, other],
                    _ => &[other, other, own, own, other, own],
                };
                let mut answers = Given::default();
                let packets = burst.iter().enumerate();
                let packets = packets.map(|(number, (frame, layers))| Coming {
                    number,
                    frame,
                    layers: *layers,
                    earlier: Earlier::default(),
                    zone: request.zone,
                });
                trackers[0].track_burst(packets, &request, now, &mut answers);
                let others = burst.iter().map(|(frame, layers)| {
                    trackers[1].set_policy(0, Some(policies[0]));
                    trackers[1].track(frame, layers, &request, now)
                });
                assert_eq!(
                    answers.all,
                    others.collect::<Vec<_>>(),
                    "step {number}: {step:?}"
                );
                before = Some(own.clone());
                if off == (0, 0) && !error {
                    let more = u32::from(length) + u32::from(flags & (SYN | FIN) != 0);
                    let side = &mut next[usize::from(connection)][usize::from(reply)];
                    *side = side.wrapping_add(more);
                }
            }
            Step::Wait(ms) => now += u64::from(ms),
            Step::Expire => trackers
                .iter()
                .for_each(|tracker| while !tracker.expire(now, 5) {}),
            Step::Flush(host) => {
                let mut filter = Filter::default();
                filter.original.source = Some(address(chosen(host), 0));
                for tracker in &trackers {
                    let mut cursor = Some(Cursor::default());
                    while let Some(at) = cursor {
                        cursor = tracker.flush(&filter, at, 5).next;
                    }
                }
            }
            Step::Policy(zone, seconds) => {
                let policy = &mut policies[usize::from(zone)];
                // Each has another one.
                let timeouts = [
                    Timeout::TcpEstablished,
                    Timeout::UdpMultiple,
                    Timeout::IcmpReply,
                ];
                for (timeout, seconds) in timeouts.into_iter().zip(seconds..) {
                    policy.set(timeout, seconds);
                }
                for tracker in &trackers {
                    tracker.set_policy(zone, Some(*policy));
                }
            }
            Step::Check(check) => trackers
                .iter()
                .for_each(|tracker| tracker.set_sequence_checking(check)),
        }
        let [mine, others] = [0, 1].map(|one: usize| shown(&trackers[one], now));
        assert_eq!(mine, others, "step {number}: {step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn lines_say_what_shards_say(
        connections in prop::sample::subsequence((0..CONNECTIONS).collect::<Vec<_>>(), 1..7),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        check(&connections, &steps);
    }
}

/// Once a connection over IPv4 is established, its packets go by its line: of UDP and TCP,
/// translated or not, in both directions. (Of others: `tracker::tests`.)
#[test]
fn established_packets_take_no_lock() {
    for connection in 0..6_u8 {
        let tracker = Tracker::new([7, 8]);
        let commit = translation(connection);
        let send = |reply: bool, flags: u16, numbers: [u32; 2], nat: &Nat| {
            let (frame, layers) = Packet {
                connection,
                reply,
                error: false,
                flags,
                numbers,
                window: 1000,
                length: 0,
            }
            .frame();
            let request = Request {
                commit: nat.direction.is_some() || flags == SYN,
                nat: Some(nat),
                ..Request::default()
            };
            let coming = (0..1).map(|number| Coming {
                number,
                frame: &frame,
                layers,
                earlier: Earlier::default(),
                zone: 0,
            });
            let mut answers = Given::default();
            tracker.track_burst(coming, &request, 5, &mut answers);
            answers.by_line == 1
        };
        let any = Nat::default();
        assert!(!send(false, SYN, [100, 0], &commit));
        assert!(!send(true, SYN | ACK, [500, 101], &any));
        send(false, ACK, [101, 501], &any);
        for _ in 0..3 {
            assert!(send(false, ACK, [101, 501], &any), "{connection}");
            assert!(send(true, ACK, [501, 101], &any), "{connection}, reply");
        }
        send(false, ACK | FIN, [101, 501], &any);
        if protocol(connection) == Tcp {
            assert!(!send(true, ACK, [501, 102], &any), "{connection}, closing");
        }
    }
}
