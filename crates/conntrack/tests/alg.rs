//! Helpers: what FTP and TFTP announce is expected, and translated control connections stay
//! consistent for both sides.

use conntrack::{
    Counter, Cursor, Direction, Earlier, Filter, Helper, Masked, Nat, Range, Request, Tracked,
    Tracker, Tuple, state,
};
use packet::checksum::{Sum, frame_sum};
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, Frame, HeapFrame, WordSet};
use proptest::prelude::*;
use std::net::IpAddr;

const SYN: u8 = 2;
const ACK: u8 = 16;
const PSH: u8 = 8;
const L3: usize = 14;

type End = (IpAddr, u16);

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// A frame with a transport header whose checksum is at `checksum`; with only the pseudo header's
/// sum there, if `partial`.
fn frame(from: End, to: End, protocol: u8, mut transport: Vec<u8>, checksum: usize) -> HeapFrame {
    let (source, destination) = (octets(from.0), octets(to.0));
    let length = transport.len() as u16;
    let mut bytes = vec![2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4];
    if from.0.is_ipv6() {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend(length.to_be_bytes());
        bytes.extend([protocol, 64]);
        bytes.extend(&source);
        bytes.extend(&destination);
    } else {
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend((length + 20).to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
        bytes.extend(&source);
        bytes.extend(&destination);
        let mut sum = Sum::new();
        sum.add_bytes(&bytes[L3..]);
        bytes[L3 + 10..L3 + 12].copy_from_slice(&sum.finish().to_be_bytes());
    }
    let mut sum = Sum::new();
    sum.add_bytes(&transport);
    sum.add_pseudo_header(&source, &destination, protocol, length.into());
    transport[checksum..checksum + 2].copy_from_slice(&sum.finish().to_be_bytes());
    bytes.extend(transport);
    HeapFrame::new(&bytes)
}

#[derive(Clone, Copy, Debug)]
struct Numbers {
    flags: u8,
    seq: u32,
    ack: u32,
}

fn tcp(from: End, to: End, numbers: Numbers, payload: &[u8]) -> HeapFrame {
    let mut segment = Vec::new();
    segment.extend(from.1.to_be_bytes());
    segment.extend(to.1.to_be_bytes());
    segment.extend(numbers.seq.to_be_bytes());
    segment.extend(numbers.ack.to_be_bytes());
    segment.extend([0x50, numbers.flags, 0xf0, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    frame(from, to, 6, segment, 16)
}

fn udp(from: End, to: End, payload: &[u8]) -> HeapFrame {
    let mut datagram = Vec::new();
    datagram.extend(from.1.to_be_bytes());
    datagram.extend(to.1.to_be_bytes());
    datagram.extend((payload.len() as u16 + 8).to_be_bytes());
    datagram.extend([0; 2]);
    datagram.extend(payload);
    frame(from, to, 17, datagram, 6)
}

fn layers(frame: &mut HeapFrame) -> Layers {
    let mut key = FlowKey::ZERO;
    parse_frame(frame, 1, WordSet::MINI_KEY, &mut key)
}

fn end(address: &str, port: u16) -> End {
    (address.parse().unwrap(), port)
}

fn client() -> End {
    end("10.1.1.1", 40_000)
}

fn server() -> End {
    end("10.1.1.2", 21)
}

fn source_nat(to: &str) -> Nat {
    nat(Direction::Source, to)
}

fn nat(direction: Direction, to: &str) -> Nat {
    let address = to.parse().unwrap();
    Nat {
        direction: Some(direction),
        range: Some(Range {
            min: address,
            max: address,
            ports: None,
        }),
        ..Nat::default()
    }
}

fn ftp(nat: Option<&Nat>) -> Request<'_> {
    Request {
        commit: true,
        helper: Some(Helper::Ftp),
        nat,
        ..Request::default()
    }
}

fn track(tracker: &Tracker, mut frame: HeapFrame, request: &Request<'_>, now: u64) -> Tracked {
    let layers = layers(&mut frame);
    tracker.track(&frame, &layers, request, now)
}

/// A control connection, of which both sides have sent `sent` bytes.
struct Session<'a> {
    tracker: &'a Tracker,
    client: End,
    server: End,
    request: Request<'a>,
    sent: [u32; 2],
    now: u64,
}

impl<'a> Session<'a> {
    /// `server` is what the server has as its own address and port, `client` what the client has.
    fn begin(tracker: &'a Tracker, client: End, server: End, request: Request<'a>) -> Session<'a> {
        let mut session = Session {
            tracker,
            client,
            server,
            request,
            sent: [0; 2],
            now: 1000,
        };
        session.segment(false, SYN, b"");
        session.segment(true, SYN | ACK, b"");
        session.segment(false, ACK, b"");
        session
    }

    /// The ends of packets as they come in.
    fn ends(&self, reply: bool) -> (End, End) {
        let nat = self
            .request
            .nat
            .and_then(|nat| Some((nat.direction?, nat.range?.min)));
        let (mut client, mut server) = (self.client, self.server);
        match nat {
            Some((Direction::Source, address)) if reply => client.0 = address,
            Some((Direction::Destination, address)) if reply => server.0 = address,
            _ => {}
        }
        if reply {
            (server, client)
        } else {
            (client, server)
        }
    }

    fn segment(&mut self, reply: bool, flags: u8, payload: &[u8]) -> Tracked {
        let (from, to) = self.ends(reply);
        let own = usize::from(reply);
        let numbers = Numbers {
            flags,
            seq: self.sent[own],
            ack: if flags & ACK != 0 {
                self.sent[1 - own]
            } else {
                0
            },
        };
        self.sent[own] += payload.len() as u32 + u32::from(flags & SYN != 0);
        track(
            self.tracker,
            tcp(from, to, numbers, payload),
            &self.request,
            self.now,
        )
    }

    fn says(&mut self, line: &str) -> Tracked {
        let reply = line.starts_with('2');
        self.segment(reply, ACK | PSH, line.as_bytes())
    }
}

const LOOK: Request<'static> = Request {
    zone: 0,
    commit: false,
    force: false,
    mark: Masked { value: 0, mask: 0 },
    label: Masked { value: 0, mask: 0 },
    nat: None,
    helper: None,
};

fn syn(from: End, to: End) -> HeapFrame {
    let numbers = Numbers {
        flags: SYN,
        seq: 7,
        ack: 0,
    };
    tcp(from, to, numbers, b"")
}

fn tuple(from: End, to: End) -> Tuple {
    Tuple {
        source: from.0,
        destination: to.0,
        protocol: 6,
        source_port: from.1,
        destination_port: to.1,
    }
}

const NEW: u32 = state::TRACKED | state::NEW;
const NEW_RELATED: u32 = NEW | state::RELATED;

#[test]
fn an_announced_connection_is_related_with_its_parents_mark_and_label() {
    let tracker = Tracker::new([1, 2]);
    let request = Request {
        mark: Masked { value: 5, mask: 7 },
        label: Masked { value: 9, mask: !0 },
        ..ftp(None)
    };
    let mut session = Session::begin(&tracker, client(), server(), request);
    let data = syn(end("10.1.1.2", 20), end("10.1.1.1", 1027));
    assert_eq!(track(&tracker, data.clone(), &LOOK, 1000).state, NEW);
    let said = session.says("PORT 10,1,1,1,4,3\r\n");
    assert_eq!(said.state & state::INVALID, 0);
    assert_eq!(said.rewrite, None);
    // Not committed, then committed with other writes, which it does not take.
    for commit in [false, true] {
        let request = Request {
            commit,
            mark: Masked { value: 0, mask: !0 },
            ..LOOK
        };
        let tracked = track(&tracker, data.clone(), &request, 1000);
        assert_eq!(tracked.state, NEW_RELATED);
        assert_eq!((tracked.mark, tracked.label), (5, 9));
        assert_eq!(tracked.original, Some(tuple(client(), server())));
    }
    let back = tcp(
        end("10.1.1.1", 1027),
        end("10.1.1.2", 20),
        Numbers {
            flags: SYN | ACK,
            seq: 1,
            ack: 8,
        },
        b"",
    );
    let tracked = track(&tracker, back, &LOOK, 1000);
    let expected = state::TRACKED | state::ESTABLISHED | state::REPLY | state::RELATED;
    assert_eq!(tracked.state, expected);
    assert_eq!(tracked.original, Some(tuple(client(), server())));
    assert_eq!(tracker.counters().get(Counter::Expected), 1);
    // Another port, another host, the other direction and UDP are not expected.
    for other in [
        syn(end("10.1.1.2", 20), end("10.1.1.1", 1028)),
        syn(end("10.1.1.3", 20), end("10.1.1.1", 1027)),
        syn(end("10.1.1.1", 20), end("10.1.1.2", 1027)),
        udp(end("10.1.1.2", 20), end("10.1.1.1", 1027), b""),
    ] {
        assert_eq!(track(&tracker, other, &LOOK, 1000).state, NEW);
    }
}

#[test]
fn all_commands_announce() {
    for (line, data, v6) in [
        ("PORT 10,1,1,1,200,2\r\n", false, false),
        ("EPRT |1|10.1.1.1|51202|\r\n", false, false),
        (
            "227 Entering Passive Mode (10,1,1,2,200,2).\r\n",
            true,
            false,
        ),
        (
            "229 Entering Extended Passive Mode (|||51202|)\r\n",
            true,
            false,
        ),
        ("EPRT |2|fd00::1|51202|\r\n", false, true),
        (
            "229 Entering Extended Passive Mode (|||51202|)\r\n",
            true,
            true,
        ),
    ] {
        let tracker = Tracker::new([1, 2]);
        let (client, server) = if v6 {
            (end("fd00::1", 4000), end("fd00::2", 21))
        } else {
            (client(), server())
        };
        let mut session = Session::begin(&tracker, client, server, ftp(None));
        assert_eq!(session.says(line).state & state::INVALID, 0, "{line}");
        let (from, to) = if data {
            (client, server)
        } else {
            (server, client)
        };
        let tracked = track(&tracker, syn((from.0, 5000), (to.0, 51202)), &LOOK, 1000);
        assert_eq!(tracked.state, NEW_RELATED, "{line}");
    }
}

#[test]
fn lies_announce_nothing_and_are_counted() {
    let lies = [
        "PORT 10,1,1,3,200,2\r\n",
        "PORT 10,1,1,1,0,0\r\n",
        "PORT 10,1,1,1,200\r\n",
        "PORT 10,1,1,1,200,2",
        "PORT 10,1,1,1,256,2\r\n",
        "PORT\r\n",
        "EPRT |2|fd00::1|51202|\r\n",
        "EPRT |1|10.1.1.3|51202|\r\n",
        "227 (10,1,1,1,200,2)\r\n",
        "229 (|||0|)\r\n",
        "229 (|||51202",
    ];
    for line in lies {
        let tracker = Tracker::new([1, 2]);
        let mut session = Session::begin(&tracker, client(), server(), ftp(None));
        let tracked = session.says(line);
        let invalid = state::INVALID | state::ESTABLISHED;
        assert_eq!(tracked.state & invalid, invalid, "{line}");
        assert_eq!(tracker.expected(), 0, "{line}");
        assert_eq!(
            tracker.counters().get(Counter::InvalidAnnouncement),
            1,
            "{line}"
        );
    }
    // From the wrong side.
    let tracker = Tracker::new([1, 2]);
    let mut session = Session::begin(&tracker, client(), server(), ftp(None));
    session.segment(true, ACK, b"PORT 10,1,1,2,200,2\r\n");
    session.segment(false, ACK, b"227 (10,1,1,1,200,2)\r\n");
    // Without a helper, nothing is read.
    let other = Session::begin(&tracker, end("10.1.1.7", 4), server(), LOOK);
    let mut other = Session {
        request: Request {
            commit: true,
            ..LOOK
        },
        ..other
    };
    assert_eq!(
        other.says("PORT 10,1,1,3,200,2\r\n").state & state::INVALID,
        0
    );
    assert_eq!(
        other.says("PORT 10,1,1,7,200,2\r\n").state & state::INVALID,
        0
    );
    assert_eq!(tracker.expected(), 0);
    assert_eq!(tracker.counters().get(Counter::InvalidAnnouncement), 2);
}

#[test]
fn expectations_end_with_their_connection_and_with_time() {
    let tracker = Tracker::new([1, 2]);
    let announce = |client: End| {
        let mut session = Session::begin(&tracker, client, server(), ftp(None));
        session.says("PORT 10,1,1,1,200,2\r\n");
        session.says("PORT 10,1,1,1,200,3\r\n");
    };
    announce(client());
    assert_eq!(tracker.expected(), 2);
    let filter = Filter {
        zone: Some(1),
        ..Filter::default()
    };
    let flush = |filter: &Filter| tracker.flush(filter, Cursor::default(), 1 << 20);
    assert_eq!((flush(&filter).removed, flush(&filter).next), (0, None));
    assert_eq!(tracker.expected(), 2);
    assert_eq!(flush(&Filter::default()).removed, 1);
    assert_eq!(tracker.expected(), 0);
    // Two control connections of one pair of hosts: the last one has it.
    announce(client());
    announce(end("10.1.1.1", 40_001));
    assert_eq!(tracker.expected(), 2);
    let data = syn(end("10.1.1.2", 20), end("10.1.1.1", 51_202));
    let tracked = track(&tracker, data.clone(), &LOOK, 1000);
    assert_eq!(
        tracked.original,
        Some(tuple(end("10.1.1.1", 40_001), server()))
    );
    assert_eq!(
        track(&tracker, data.clone(), &LOOK, 300_999).state,
        NEW_RELATED
    );
    assert_eq!(track(&tracker, data.clone(), &LOOK, 301_000).state, NEW);
    // One that a connection uses is expected longer.
    let commit = Request {
        commit: true,
        ..LOOK
    };
    assert_eq!(track(&tracker, data, &commit, 200_000).state, NEW_RELATED);
    tracker.expire(302_000, 1000);
    assert_eq!(tracker.expected(), 1);
    tracker.expire(600_000, 1000);
    assert_eq!(tracker.expected(), 0);
}

#[test]
fn expectations_are_bounded() {
    let tracker = Tracker::new([1, 2]);
    let mut session = Session::begin(&tracker, client(), server(), ftp(None));
    for port in 0..20 {
        session.says(&format!("PORT 10,1,1,1,200,{port}\r\n"));
    }
    assert_eq!(tracker.expected(), 8);
    let data = |port: u16| syn(end("10.1.1.2", 20), end("10.1.1.1", 51_200 + port));
    assert_eq!(track(&tracker, data(11), &LOOK, 1000).state, NEW);
    assert_eq!(track(&tracker, data(12), &LOOK, 1000).state, NEW_RELATED);
    // A zone has an eighth of all.
    let fill = |zone: u16| {
        for number in 0..8192 / 8_u16 {
            let client = end("10.1.2.1", 5000 + number);
            let server = (IpAddr::from([10, 2, (number >> 8) as u8, number as u8]), 21);
            let request = Request { zone, ..ftp(None) };
            let mut session = Session::begin(&tracker, client, server, request);
            for port in 1..9 {
                session.says(&format!("PORT 10,1,2,1,200,{port}\r\n"));
            }
        }
    };
    let refused = || tracker.counters().get(Counter::RefusedExpectation);
    fill(0);
    assert_eq!((tracker.expected(), refused()), (8192, 8));
    for zone in 1..8 {
        fill(zone);
    }
    assert_eq!((tracker.expected(), refused()), (65_536, 8));
    let say = |zone: u16, now: u64| {
        let client = end("10.1.9.1", 5000 + zone);
        let request = Request { zone, ..ftp(None) };
        let mut session = Session::begin(&tracker, client, server(), request);
        session.now = now;
        session.says("PORT 10,1,9,1,200,1\r\n");
    };
    say(8, 1000);
    assert_eq!((tracker.expected(), refused()), (65_536, 9));
    // What has expired makes room, in all and in its zone.
    say(9, 400_000);
    say(0, 400_000);
    assert_eq!(refused(), 9);
    assert!(tracker.expected() < 65_536);
}

#[test]
fn nothing_is_announced_before_both_sides_have_been_heard() {
    let port = b"PORT 10,1,1,1,200,2\r\n";
    let passive = b"227 (10,1,1,2,200,2)\r\n";
    let nat = source_nat("10.9.9.9");
    for nat in [None, Some(&nat)] {
        let tracker = Tracker::new([1, 2]);
        let mut session = Session {
            tracker: &tracker,
            client: client(),
            server: server(),
            request: ftp(nat),
            sent: [0; 2],
            now: 1000,
        };
        for (reply, flags, payload) in [
            (false, SYN, &port[..]),
            (false, ACK, &port[..]),
            (true, SYN | ACK, &passive[..]),
        ] {
            let tracked = session.segment(reply, flags, payload);
            assert_eq!((tracker.expected(), tracked.rewrite), (0, None));
        }
        // This one completes the handshake.
        session.segment(false, ACK, port);
        assert_eq!(tracker.expected(), 1);
        session.segment(true, ACK, passive);
        assert_eq!(tracker.expected(), 2);
    }
    // Nor is a connection open that begins in the middle.
    let tracker = Tracker::new([1, 2]);
    let numbers = Numbers {
        flags: ACK | PSH,
        seq: 1,
        ack: 1,
    };
    for _ in 0..3 {
        let frame = tcp(client(), server(), numbers, port);
        track(&tracker, frame, &ftp(None), 1000);
        assert_eq!(tracker.expected(), 0);
    }
}

#[test]
fn part_of_a_translated_text_is_no_packet_of_its_connection() {
    let tracker = Tracker::new([1, 2]);
    let nat = source_nat("10.99.99.99");
    let mut session = Session::begin(&tracker, client(), server(), ftp(Some(&nat)));
    let line = "PORT 10,1,1,1,200,2\r\n";
    let begin = session.sent[0];
    assert!(session.says(line).rewrite.unwrap().replaces_text());
    session.sent[0] = begin + 8;
    let tracked = session.segment(false, ACK | PSH, &line.as_bytes()[8..]);
    // It is translated like one outside the window.
    let expected = state::TRACKED | state::INVALID | state::SOURCE_NAT;
    assert_eq!((tracked.state, tracked.rewrite), (expected, None));
}

#[test]
fn an_announced_connection_without_a_free_port_is_invalid_and_not_related() {
    let tracker = Tracker::new([1, 2]);
    let nat = source_nat("10.9.9.9");
    let mut session = Session::begin(&tracker, client(), server(), ftp(Some(&nat)));
    session.says("PORT 10,1,1,1,200,2\r\n");
    // Others have all tuples that replies could have: the sender's port may be replaced by a like.
    let commit = Request {
        commit: true,
        ..LOOK
    };
    let (data, inside) = (end("10.1.1.2", 20), end("10.1.1.1", 51_202));
    for port in 1..1024 {
        let frame = syn(inside, (data.0, port));
        assert_eq!(track(&tracker, frame, &commit, 1000).state, NEW);
    }
    let commit = Request {
        nat: Some(&Nat::default()),
        ..commit
    };
    let frame = syn(data, end("10.9.9.9", 51_202));
    let tracked = track(&tracker, frame, &commit, 1000);
    assert_eq!(tracked.state, state::TRACKED | state::INVALID);
    assert!(tracked.translation.is_empty());
    assert_eq!(tracker.counters().get(Counter::NatExhausted), 1);
}

#[test]
fn tftp_answers_from_another_port() {
    for (nat, answered) in [
        (None, end("10.1.1.1", 3000)),
        (Some(source_nat("10.9.9.9")), end("10.9.9.9", 3000)),
        (
            Some(nat(Direction::Destination, "10.7.7.7")),
            end("10.1.1.1", 3000),
        ),
    ] {
        let tracker = Tracker::new([1, 2]);
        let request = Request {
            commit: true,
            helper: Some(Helper::Tftp),
            nat: nat.as_ref(),
            ..LOOK
        };
        let (client, server) = (end("10.1.1.1", 3000), end("10.1.1.2", 69));
        // No request.
        track(
            &tracker,
            udp(client, server, b"\0\x04\0\x01"),
            &request,
            1000,
        );
        assert_eq!(tracker.counters().get(Counter::InvalidAnnouncement), 1);
        assert_eq!(tracker.expected(), 0);
        let asked = track(
            &tracker,
            udp(client, server, b"\0\x01name\0octet\0"),
            &request,
            1000,
        );
        assert_eq!(asked.state & (state::NEW | state::INVALID), state::NEW);
        let from = match &nat {
            Some(nat) if nat.direction == Some(Direction::Destination) => end("10.7.7.7", 2000),
            _ => end("10.1.1.2", 2000),
        };
        let request = Request {
            commit: true,
            nat: nat.as_ref().map(|_| {
                const {
                    &Nat {
                        direction: None,
                        range: None,
                        persistent: false,
                        hash: false,
                        random: false,
                    }
                }
            }),
            ..LOOK
        };
        let data = track(&tracker, udp(from, answered, b"\0\x03data"), &request, 1000);
        let translation = data.translation;
        match nat.and_then(|nat| nat.direction) {
            None => {
                assert_eq!(data.state, NEW_RELATED);
                assert!(translation.is_empty());
            }
            Some(Direction::Source) => {
                assert_eq!(data.state, NEW_RELATED | state::DESTINATION_NAT);
                assert_eq!(translation.destination, Some(client));
                assert_eq!(translation.source, None);
            }
            Some(Direction::Destination) => {
                assert_eq!(data.state, NEW_RELATED | state::SOURCE_NAT);
                assert_eq!(translation.source, Some(end("10.1.1.2", 2000)));
                assert_eq!(translation.destination, None);
            }
        }
    }
}

#[test]
fn two_clients_behind_one_address_may_announce_the_same_port() {
    let tracker = Tracker::new([1, 2]);
    let nat = source_nat("10.9.9.9");
    let mut ports = Vec::new();
    for number in [1, 2] {
        let own = (IpAddr::from([10, 1, 1, number]), 40_000 + u16::from(number));
        let mut session = Session::begin(&tracker, own, end("10.2.2.2", 21), ftp(Some(&nat)));
        let line = format!("PORT 10,1,1,{number},200,2\r\n");
        let (from, to) = session.ends(false);
        let numbers = Numbers {
            flags: ACK,
            seq: session.sent[0],
            ack: session.sent[1],
        };
        let mut frame = tcp(from, to, numbers, line.as_bytes());
        let mut layers = layers(&mut frame);
        let tracked = session.says(&line);
        assert!(Tracker::rewrite(
            &mut frame,
            &mut layers,
            &tracked.rewrite.unwrap()
        ));
        let text = String::from_utf8(frame.to_vec().split_off(L3 + 40)).unwrap();
        let numbers = text.strip_prefix("PORT 10,9,9,9,").unwrap().trim_end();
        let (high, low) = numbers.split_once(',').unwrap();
        let port = high.parse::<u16>().unwrap() << 8 | low.parse::<u16>().unwrap();
        ports.push(port);
        let commit = Request {
            commit: true,
            nat: Some(&Nat {
                direction: None,
                range: None,
                persistent: false,
                hash: false,
                random: false,
            }),
            ..LOOK
        };
        let data = syn(end("10.2.2.2", 20), end("10.9.9.9", port));
        let tracked = track(&tracker, data, &commit, 1000);
        assert_eq!(tracked.state, NEW_RELATED | state::DESTINATION_NAT);
        assert_eq!(tracked.translation.destination, Some((own.0, 51_202)));
    }
    assert_eq!(ports[0], 51_202);
    assert_ne!(ports[1], 51_202);
}

/// What one side sends and has got. Offsets count from the first byte behind the SYN.
struct Side {
    number: u32,
    out: Vec<u8>,
    lines: Vec<Line>,
    /// Bytes that were received, by offset as received.
    got: Vec<Option<u8>>,
    /// How many of its bytes were acknowledged.
    acknowledged: usize,
}

#[derive(Clone, Debug)]
struct Line {
    begin: usize,
    raw: Vec<u8>,
    /// As it has to be received, if it was first sent in one piece.
    edited: Vec<u8>,
    in_one_piece: bool,
}

impl Side {
    fn received(&self) -> usize {
        self.got.iter().take_while(|byte| byte.is_some()).count()
    }

    /// The lines as they were received, and how many of the sender's bytes that is.
    fn check(&self, sender: &Side) -> usize {
        let text: Vec<u8> = self.got.iter().map_while(|byte| *byte).collect();
        let (mut at, mut raw) = (0, 0);
        for line in &sender.lines {
            let left = &text[at..];
            let is = |expected: &[u8]| {
                let length = expected.len().min(left.len());
                expected[..length] == left[..length]
            };
            let edited = is(&line.edited);
            assert!(
                edited || !line.in_one_piece && is(&line.raw),
                "{:?} of {line:?}",
                String::from_utf8_lossy(left)
            );
            let length = if edited {
                line.edited.len()
            } else {
                line.raw.len()
            };
            if left.len() < length {
                break;
            }
            at += length;
            raw = line.begin + line.raw.len();
        }
        raw
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A new line from one side, in one piece or two.
    Line {
        reply: bool,
        port: u16,
        kind: u8,
        cut: Option<u8>,
        lost: bool,
    },
    /// A part of what was sent, once more.
    Again {
        reply: bool,
        from: u16,
        length: u8,
        whole: bool,
        lost: bool,
    },
    /// An acknowledgement of what was received.
    Acknowledge { reply: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let line = (
        any::<bool>(),
        1_u16..,
        0_u8..4,
        proptest::option::weighted(0.1, 1_u8..20),
        any::<bool>(),
    )
        .prop_map(|(reply, port, kind, cut, lost)| Step::Line {
            reply,
            port,
            kind,
            cut,
            lost,
        });
    let again = (
        any::<bool>(),
        any::<u16>(),
        1_u8..120,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(reply, from, length, whole, lost)| Step::Again {
            reply,
            from,
            length,
            whole,
            lost,
        });
    let acknowledge = any::<bool>().prop_map(|reply| Step::Acknowledge { reply });
    proptest::collection::vec(prop_oneof![3 => line, 3 => again, 2 => acknowledge], 1..60)
}

/// A client and a server with a translating tracker between them.
struct World<'a> {
    tracker: &'a Tracker,
    request: Request<'a>,
    look: Request<'a>,
    ends: [End; 2],
    /// As the other side sees each.
    seen: [End; 2],
    sides: [Side; 2],
    /// In two actions, of which the second translates.
    twice: bool,
    partial: bool,
    cut: usize,
}

impl World<'_> {
    /// Sends bytes of a side's stream; returns whether they were received.
    fn send(&mut self, reply: bool, flags: u8, at: i64, length: usize, lost: bool) -> bool {
        let own = usize::from(reply);
        let (from, to) = (self.ends[own], self.seen[1 - own]);
        let side = &self.sides[own];
        let payload = side.out[at.max(0) as usize..][..length].to_vec();
        let other = &self.sides[1 - own];
        let received = side.received();
        let numbers = Numbers {
            flags,
            seq: side.number.wrapping_add(1).wrapping_add(at as u32),
            ack: if flags & ACK != 0 {
                other.number.wrapping_add(1).wrapping_add(received as u32)
            } else {
                0
            },
        };
        let plain = tcp(from, to, numbers, &payload).to_vec();
        let (head, tail) = plain.split_at(self.cut.min(plain.len()));
        let mut frame = HeapFrame::with_segments(&[head, tail]);
        let mut layers = layers(&mut frame);
        let l4 = usize::from(layers.l4);
        let pseudo = |frame: &HeapFrame, layers: &Layers| {
            let mut sum = Sum::new();
            let all = frame.to_vec();
            let size = octets(from.0).len();
            let (source, destination) = all[l4 - 2 * size..l4].split_at(size);
            sum.add_pseudo_header(source, destination, 6, layers.end - l4 as u32);
            sum.fold()
        };
        if self.partial {
            let sum = pseudo(&frame, &layers).to_be_bytes();
            assert!(packet::checksum::write_at(&mut frame, l4 + 16, &sum));
            let mut offload = frame.offload();
            offload.partial_checksum = true;
            (offload.csum_start, offload.csum_offset) = (l4 as u16, 16);
            frame.set_offload(offload);
        }
        let mut earlier = Earlier::default();
        let mut tracked = None;
        if self.twice {
            let found = (self.tracker).track_again(&frame, &layers, earlier, &self.look, 1000);
            assert_eq!(found.rewrite, None);
            earlier = found.earlier(self.look.nat.is_some());
            if found.state & state::INVALID != 0 {
                return false;
            }
        }
        let tracked = *tracked.get_or_insert_with(|| {
            (self.tracker).track_again(&frame, &layers, earlier, &self.request, 1000)
        });
        if tracked.state & state::INVALID != 0 {
            return false;
        }
        if let Some(rewrite) = &tracked.rewrite {
            assert!(Tracker::rewrite(&mut frame, &mut layers, rewrite));
        }
        // It is what its headers say.
        let again = self::layers(&mut frame);
        assert_eq!(
            (again.l4, again.end, again.transport),
            (layers.l4, layers.end, true)
        );
        assert_eq!(layers.end as usize, frame.len());
        if !from.0.is_ipv6() {
            assert_eq!(frame_sum(&frame, L3, L3 + 20), 0xffff);
        }
        if self.partial {
            let mut field = [0; 2];
            assert!(frame.read_at(l4 + 16, &mut field));
            assert_eq!(u16::from_be_bytes(field), pseudo(&frame, &layers));
        } else {
            let mut sum = Sum::new();
            sum.add_u16(frame_sum(&frame, l4, layers.end as usize));
            sum.add_u16(pseudo(&frame, &layers));
            assert_eq!(sum.fold(), 0xffff);
        }
        if lost {
            return false;
        }
        let bytes = frame.to_vec();
        let number = |at: usize| u32::from_be_bytes(*bytes[l4 + at..].first_chunk().unwrap());
        // What arrives is in the numbers that the receiver knows.
        let offset = number(4).wrapping_sub(self.sides[own].number.wrapping_add(1)) as i32;
        if flags & ACK != 0 {
            let raw = number(8).wrapping_sub(self.sides[1 - own].number.wrapping_add(1)) as usize;
            let sender = &self.sides[1 - own];
            assert!(raw <= sender.out.len(), "{raw} of {}", sender.out.len());
            // A whole line that was received is acknowledged as a whole line.
            let whole = self.sides[own].check(sender);
            let next = sender.lines.iter().find(|line| line.begin == whole);
            let most = next.map_or(whole, |line| whole + line.raw.len());
            assert!((whole..=most).contains(&raw), "{raw} of {whole}..={most}");
            let sender = &mut self.sides[1 - own];
            sender.acknowledged = sender.acknowledged.max(raw);
        }
        let payload = &bytes[l4 + 20..];
        // Old bytes are ignored, as by any host. The tracker forgets the first of more than four
        // texts, once it is acknowledged.
        let forgets = self.sides[own].lines.len() > 4;
        let receiver = &mut self.sides[1 - own];
        let old = if forgets { receiver.received() } else { 0 };
        for (index, byte) in payload.iter().enumerate() {
            let at = i64::from(offset) + index as i64;
            if at < old as i64 {
                continue;
            }
            let at = usize::try_from(at).unwrap();
            if receiver.got.len() <= at {
                receiver.got.resize(at + 1, None);
            }
            assert!(
                receiver.got[at].is_none_or(|before| before == *byte),
                "two versions"
            );
            receiver.got[at] = Some(*byte);
        }
        true
    }

    fn line(&mut self, reply: bool, port: u16, kind: u8) -> (Vec<u8>, Vec<u8>) {
        let own = usize::from(reply);
        let write = |address: IpAddr| {
            let [high, low] = port.to_be_bytes();
            let commas = match address {
                IpAddr::V4(address) => {
                    let [a, b, c, d] = address.octets();
                    format!("{a},{b},{c},{d},{high},{low}")
                }
                IpAddr::V6(_) => String::new(),
            };
            let family = if address.is_ipv6() { 2 } else { 1 };
            match (kind, reply) {
                (0, false) if family == 1 => format!("PORT {commas}\r\n"),
                (0, true) if family == 1 => format!("227 Passive ({commas})\r\n"),
                (1, false) => format!("EPRT |{family}|{address}|{port}|\r\n"),
                (1, true) => format!("229 Passive (|||{port}|)\r\n"),
                (_, false) => format!("RETR {}\r\n", "x".repeat(usize::from(port % 50))),
                (_, true) => format!("150 {}\r\n", "y".repeat(usize::from(port % 50))),
            }
            .into_bytes()
        };
        (write(self.ends[own].0), write(self.seen[own].0))
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Line {
                reply,
                port,
                kind,
                cut,
                lost,
            } => {
                // So many texts are remembered until they are acknowledged.
                let side = &self.sides[usize::from(reply)];
                let unread = |line: &&Line| line.begin + line.raw.len() > side.acknowledged;
                let may_announce = side.lines.iter().filter(unread).count() < 4;
                let (raw, edited) = self.line(reply, port, if may_announce { kind } else { 9 });
                let side = &mut self.sides[usize::from(reply)];
                let begin = side.out.len();
                let cut = cut.map(usize::from).filter(|cut| *cut < raw.len());
                side.out.extend(&raw);
                side.lines.push(Line {
                    begin,
                    raw: raw.clone(),
                    edited,
                    in_one_piece: cut.is_none(),
                });
                match cut {
                    None => {
                        self.send(reply, ACK | PSH, begin as i64, raw.len(), lost);
                    }
                    Some(cut) => {
                        self.send(reply, ACK | PSH, begin as i64, cut, lost);
                        let rest = raw.len() - cut;
                        self.send(reply, ACK | PSH, (begin + cut) as i64, rest, false);
                    }
                }
            }
            Step::Again {
                reply,
                from,
                length,
                whole,
                lost,
            } => {
                let side = &self.sides[usize::from(reply)];
                if side.out.is_empty() {
                    return;
                }
                let (at, length) = if whole {
                    let line = &side.lines[usize::from(from) % side.lines.len()];
                    (line.begin, line.raw.len())
                } else {
                    let at = usize::from(from) % side.out.len();
                    (at, usize::from(length).min(side.out.len() - at))
                };
                self.send(reply, ACK, at as i64, length, lost);
            }
            Step::Acknowledge { reply } => {
                let at = self.sides[usize::from(reply)].out.len();
                self.send(reply, ACK, at as i64, 0, false);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn both_sides_of_a_translated_session_see_one_stream(
        steps in steps(), numbers: [u32; 2], v6: bool, destination: bool, twice: bool,
        partial: bool, cut in 0_usize..140, long: bool,
    ) {
        let address = |last: u8| match (v6, long) {
            (false, false) => IpAddr::from([1, 1, 1, last]),
            (false, true) => IpAddr::from([201, 101, 111, 200 + last]),
            (true, false) => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
            (true, true) => IpAddr::from([0xfd, 17, 34, 51, 68, 85, 102, 119, 136, 153, 170, 187, 204, 221, 238, last]),
        };
        let other = match (v6, long) {
            (false, false) => IpAddr::from([200, 200, 200, 200]),
            (false, true) => IpAddr::from([9, 9, 9, 9]),
            (true, false) => IpAddr::from([0xfd, 17, 34, 51, 68, 85, 102, 119, 136, 153, 170, 187, 204, 221, 238, 0xff]),
            (true, true) => IpAddr::from([0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]),
        };
        let (client, server) = ((address(1), 4000), (address(2), 21));
        let direction = if destination { Direction::Destination } else { Direction::Source };
        let nat = Nat {
            direction: Some(direction),
            range: Some(Range { min: if destination { address(2) } else { other }, max: if destination { address(2) } else { other }, ports: None }),
            ..Nat::default()
        };
        let tracker = Tracker::new([1, 2]);
        let side = |number| Side {
            number,
            out: Vec::new(),
            lines: Vec::new(),
            got: Vec::new(),
            acknowledged: 0,
        };
        let mut world = World {
            tracker: &tracker,
            request: ftp(Some(&nat)),
            look: LOOK,
            ends: [client, server],
            seen: if destination {
                [client, (other, 21)]
            } else {
                [(other, 4000), server]
            },
            sides: [side(numbers[0]), side(numbers[1])],
            twice,
            partial,
            cut,
        };
        world.send(false, SYN, -1, 0, false);
        world.send(true, SYN | ACK, -1, 0, false);
        world.send(false, ACK, 0, 0, false);
        for step in &steps {
            world.step(step);
        }
        // What was lost is sent again until all is received.
        for _ in 0..3 {
            for reply in [false, true] {
                let lines = world.sides[usize::from(reply)].lines.clone();
                for line in lines {
                    world.send(reply, ACK, line.begin as i64, line.raw.len(), false);
                }
            }
        }
        for (sender, receiver) in [(0, 1), (1, 0)] {
            let (sender, receiver) = (&world.sides[sender], &world.sides[receiver]);
            let raw = receiver.check(sender);
            if sender.lines.iter().all(|line| line.in_one_piece) {
                prop_assert_eq!(raw, sender.out.len());
            }
        }
    }
}
