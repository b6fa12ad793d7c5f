//! Cycles for each packet of `Tracker::track_burst`, of established connections.
//!
//! `cargo bench -p sluice-conntrack` prints one line a case: the median of all bursts and that of
//! the quickest tenth, in TSC cycles a packet, and the share of packets whose answer was not of the
//! common kind: of UDP and TCP over IPv4, of those that took a lock. Frames lie in a few buffers,
//! into which they are copied before what is measured, as they come from a port.

use conntrack::{
    Answers, Coming, Direction, Earlier, Nat, Range, Request, Settled, Tracked, Tracker,
};
use packet::build::Builder;
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, Frame, HeapFrame, WordSet};
use stages::cycles;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Packets of a burst.
const BURST: usize = 64;
/// Bursts that are measured.
const BURSTS: usize = 20_000;

/// Reads answers, and counts those that are not of the common kind.
struct Reads {
    others: u32,
}

impl Answers for Reads {
    #[inline(always)]
    fn settled(&mut self, _: usize, settled: &Settled) {
        black_box((settled.state(), settled.mark(), settled.original()));
    }

    fn other(&mut self, _: usize, tracked: &Tracked) {
        self.others += 1;
        black_box(tracked);
    }
}

/// What connections of a case are of.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Udp,
    Tcp,
    Icmp,
    Udp6,
    Tcp6,
    Icmp6,
    /// These have another source for those who receive them.
    Nat(Transport),
    Nat6(Transport),
}

/// The protocol of translated connections.
#[derive(Clone, Copy, PartialEq)]
enum Transport {
    Udp,
    Tcp,
    Icmp,
}

impl Kind {
    /// Returns the same without translation.
    fn plain(self) -> Kind {
        match self {
            Kind::Nat(Transport::Udp) => Kind::Udp,
            Kind::Nat(Transport::Tcp) => Kind::Tcp,
            Kind::Nat(Transport::Icmp) => Kind::Icmp,
            Kind::Nat6(Transport::Udp) => Kind::Udp6,
            Kind::Nat6(Transport::Tcp) => Kind::Tcp6,
            Kind::Nat6(Transport::Icmp) => Kind::Icmp6,
            _ => self,
        }
    }

    fn is_translated(self) -> bool {
        self != self.plain()
    }

    /// Returns the address of a host.
    fn address(self, host: u32) -> IpAddr {
        match self.plain() {
            Kind::Udp | Kind::Tcp | Kind::Icmp => Ipv4Addr::from_bits(host).into(),
            _ => {
                let mut address = [0xfd; 16];
                address[12..].copy_from_slice(&host.to_be_bytes());
                Ipv6Addr::from(address).into()
            }
        }
    }

    /// Returns what is asked for when connections are committed.
    fn nat(self) -> Nat {
        let range = Range {
            min: self.address(0x0c00_0000),
            max: self.address(0x0cff_ffff),
            ports: None,
        };
        match self.is_translated() {
            false => Nat::default(),
            true => Nat {
                direction: Some(Direction::Source),
                range: Some(range),
                ..Nat::default()
            },
        }
    }
}

/// A packet of a connection. Replies go to the client that the other end sees, which is `outside`
/// if it is translated.
fn frame(
    kind: Kind,
    number: u32,
    reply: bool,
    flags: u16,
    outside: Option<(IpAddr, u16)>,
) -> HeapFrame {
    let client = kind.address(0x0a00_0000 + number);
    let server = kind.address(0x0b00_0000 + number * 7919 % 65536);
    let port = 1024 + (number % 50_000) as u16;
    let ends = match (reply, outside) {
        (false, _) => [(client, port), (server, 80)],
        (true, None) => [(server, 80), (client, port)],
        (true, Some((client, 0))) => [(server, 80), (client, port)],
        (true, Some(client)) => [(server, 80), client],
    };
    let ethernet = Builder::ethernet([2; 6], [4; 6]);
    let ip = match (ends[0].0, ends[1].0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.to_bits(), to.to_bits()),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets()),
        _ => unreachable!("one family"),
    };
    let ports = (ends[0].1, ends[1].1);
    let (identifier, answer) = (u32::from(port) << 16, u8::from(reply));
    let packet = match kind.plain() {
        Kind::Tcp | Kind::Tcp6 => ip.tcp(ports.0, ports.1, flags),
        Kind::Icmp => ip.icmp(8 - 8 * answer, 0, identifier),
        Kind::Icmp6 => ip.icmpv6(128 + answer, 0, identifier),
        _ => ip.udp(ports.0, ports.1),
    };
    let payload = match kind.plain() {
        Kind::Tcp | Kind::Tcp6 => 6,
        _ => 18,
    };
    packet.payload(&[0; 18][..payload]).frame()
}

fn layers(frame: &mut HeapFrame) -> Layers {
    parse_frame(frame, 1, WordSet::MINI_KEY, &mut FlowKey::ZERO.clone())
}

fn run(name: &str, kind: Kind, connections: u32) {
    const SYN: u16 = 2;
    const ACK: u16 = 16;
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    let nat = kind.nat();
    let commit = Request {
        commit: true,
        nat: kind.is_translated().then_some(&nat),
        ..Request::default()
    };
    let mut outside = vec![None; connections as usize];
    let mut all: Vec<Vec<u8>> = Vec::new();
    let steps = [(false, SYN), (true, SYN | ACK), (false, ACK), (true, ACK)];
    for (at, (reply, flags)) in steps.into_iter().enumerate() {
        for number in 0..connections {
            let client = &mut outside[number as usize];
            let mut frame = frame(kind, number, reply, flags, *client);
            let layers = layers(&mut frame);
            let tracked = tracker.track(&frame, &layers, &commit, 1000);
            if at == 0 {
                *client = tracked.translation.source;
            }
            assert_ne!(tracked.state & (1 | 2), 0, "{:#x}", tracked.state);
            if at >= 2 {
                all.push(frame.to_vec());
            }
        }
    }
    let mut buffers: Vec<HeapFrame> = (0..BURST)
        .map(|at| HeapFrame::new(&all[at % all.len()]))
        .collect();
    let places: Vec<Layers> = buffers.iter_mut().map(layers).collect();
    let translates = Nat::default();
    let asks = Request {
        nat: kind.is_translated().then_some(&translates),
        ..Request::default()
    };
    let (mut taken, mut next) = (Vec::with_capacity(BURSTS), 0);
    let mut answers = Reads { others: 0 };
    for _ in 0..BURSTS {
        for buffer in &mut buffers {
            buffer.head_mut().copy_from_slice(&all[next]);
            next = (next + 1) % all.len();
        }
        let coming = buffers
            .iter()
            .zip(&places)
            .enumerate()
            .map(|(number, (frame, layers))| Coming {
                number,
                frame,
                layers: *layers,
                earlier: Earlier::default(),
                zone: 0,
            });
        let begin = cycles();
        tracker.track_burst(coming, &asks, 1001, &mut answers);
        taken.push((cycles() - begin) as f64 / BURST as f64);
    }
    taken.sort_by(f64::total_cmp);
    println!(
        "{name:12} {:7.1} {:7.1} cycles, {:.4} otherwise",
        taken[BURSTS / 2],
        taken[BURSTS / 20],
        f64::from(answers.others) / (BURSTS * BURST) as f64
    );
}

fn main() {
    let cases = [
        ("udp-1", Kind::Udp, 1),
        ("udp-1k", Kind::Udp, 1000),
        ("udp-10k", Kind::Udp, 10_000),
        ("udp-50k", Kind::Udp, 50_000),
        ("udp-1m", Kind::Udp, 1_000_000),
        ("tcp-1k", Kind::Tcp, 1000),
        ("tcp-10k", Kind::Tcp, 10_000),
        ("icmp-1k", Kind::Icmp, 1000),
        ("nat-udp-1k", Kind::Nat(Transport::Udp), 1000),
        ("nat-tcp-1k", Kind::Nat(Transport::Tcp), 1000),
        ("nat-icmp-1k", Kind::Nat(Transport::Icmp), 1000),
        ("udp6-1k", Kind::Udp6, 1000),
        ("tcp6-1k", Kind::Tcp6, 1000),
        ("icmp6-1k", Kind::Icmp6, 1000),
        ("nat-udp6-1k", Kind::Nat6(Transport::Udp), 1000),
        ("nat-tcp6-1k", Kind::Nat6(Transport::Tcp), 1000),
        ("nat-icmp6-1k", Kind::Nat6(Transport::Icmp), 1000),
    ];
    // Cargo adds options of its own.
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let asked = asked.iter().filter(|name| !name.starts_with('-'));
    for (name, kind, connections) in cases {
        if asked.clone().count() == 0 || asked.clone().any(|asked| asked == name) {
            run(name, kind, connections);
        }
    }
}
