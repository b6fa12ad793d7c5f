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
use std::net::Ipv4Addr;

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

/// The address of a connection's first host, or of the second.
fn address(connection: u8, second: bool) -> Ipv4Addr {
    Ipv4Addr::new(10, u8::from(second), 0, connection)
}

/// The same of connections over IPv6, which are the last three.
fn wide_address(connection: u8, second: bool) -> [u8; 16] {
    let mut address = [0xfd; 16];
    (address[7], address[15]) = (u8::from(second), connection);
    address
}

/// Number of connections.
const CONNECTIONS: u8 = 9;

/// Whether a connection is over IPv6.
fn is_wide(connection: u8) -> bool {
    connection >= 6
}

/// Where the packets of translated connections, which are half of those over IPv4, are sent
/// instead.
fn server(connection: u8) -> Option<Ipv4Addr> {
    (3..6)
        .contains(&connection)
        .then(|| Ipv4Addr::new(10, 2, 0, connection))
}

/// A packet of a connection; two of three are TCP.
struct Packet {
    connection: u8,
    reply: bool,
    flags: u16,
    numbers: [u32; 2],
    window: u16,
    length: usize,
}

impl Packet {
    fn frame(&self) -> (HeapFrame, Layers) {
        let mut ends = [self.reply, !self.reply].map(|second| address(self.connection, second));
        if self.reply
            && let Some(server) = server(self.connection)
        {
            ends[0] = server;
        }
        let [source, destination] = ends.map(Ipv4Addr::to_bits);
        let (source_port, port) = if self.reply { (80, 1025) } else { (1025, 80) };
        let ethernet = Builder::ethernet([2; 6], [4; 6]);
        let wide = is_wide(self.connection);
        let ip = match wide {
            false => ethernet.ipv4(source, destination),
            true => {
                let [source, destination] =
                    [self.reply, !self.reply].map(|second| wide_address(self.connection, second));
                ethernet.ipv6(source, destination)
            }
        };
        // Of the sequence number.
        let at = if wide { 58 } else { 38 };
        let payload = vec![7; self.length];
        let mut bytes = match self.connection % 3 {
            2 => ip.udp(source_port, port).payload(&payload).bytes(),
            _ => {
                let tcp = ip.tcp(source_port, port, self.flags);
                let mut bytes = tcp.payload(&payload).bytes();
                for (at, number) in [at, at + 4].into_iter().zip(self.numbers) {
                    bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
                }
                bytes[at + 10..at + 12].copy_from_slice(&self.window.to_be_bytes());
                bytes
            }
        };
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
        0..CONNECTIONS,
        any::<bool>(),
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
            |(connection, reply, flags, off, window, length, commit, mark, zone, nat)| {
                Step::Packet {
                    connection,
                    reply,
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

/// Both have the same packets. Before each one, the second is told that timeouts have changed,
/// though they have not, so that its packet goes by the shard.
fn check(steps: &[Step]) {
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
                flags,
                off,
                window,
                length,
                commit,
                mark,
                zone,
                nat,
            } => {
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
                    flags,
                    numbers,
                    window,
                    length: length.into(),
                }
                .frame();
                let range = server(connection).map(|server| Range {
                    min: server.into(),
                    max: server.into(),
                    ports: None,
                });
                let translation = Nat {
                    direction: (commit && range.is_some()).then_some(Direction::Destination),
                    range,
                    ..Nat::default()
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
                if off == (0, 0) {
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
                filter.original.source = Some(match is_wide(host) {
                    false => address(host, false).into(),
                    true => wide_address(host, false).into(),
                });
                for tracker in &trackers {
                    let mut cursor = Some(Cursor::default());
                    while let Some(at) = cursor {
                        cursor = tracker.flush(&filter, at, 5);
                    }
                }
            }
            Step::Policy(zone, seconds) => {
                let policy = &mut policies[usize::from(zone)];
                for timeout in [Timeout::TcpEstablished, Timeout::UdpMultiple] {
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
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn lines_say_what_shards_say(steps in prop::collection::vec(step(), 1..150)) {
        check(&steps);
    }
}

/// Once a connection over IPv4 is established, its packets go by its line: of UDP and TCP,
/// translated or not, in both directions. (Of IPv6: `tracker::tests`.)
#[test]
fn established_packets_take_no_lock() {
    for connection in 0..6_u8 {
        let tracker = Tracker::new([7, 8]);
        let range = server(connection).map(|server| Range {
            min: server.into(),
            max: server.into(),
            ports: None,
        });
        let commit = Nat {
            direction: range.is_some().then_some(Direction::Destination),
            range,
            ..Nat::default()
        };
        let send = |reply: bool, flags: u16, numbers: [u32; 2], nat: &Nat| {
            let (frame, layers) = Packet {
                connection,
                reply,
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
        if connection % 3 != 2 {
            assert!(!send(true, ACK, [501, 102], &any), "{connection}, closing");
        }
    }
}
