//! Cycles for each packet of `Tracker::track_burst`, of established connections.
//!
//! `cargo bench -p sluice-conntrack` prints one line a case: the median of all bursts and that of
//! the quickest tenth, in TSC cycles a packet, and the share of packets whose answer was not of the
//! common kind: over IPv4, of those that took a lock. Frames lie in a few buffers, into which they
//! are copied before what is measured, as they come from a port.

use conntrack::{Answers, Coming, Earlier, Request, Settled, Tracked, Tracker};
use packet::build::Builder;
use packet::parse::{Layers, parse_frame};
use packet::{FlowKey, Frame, HeapFrame, WordSet};
use stages::cycles;
use std::hint::black_box;

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
    Udp6,
}

/// A packet of a connection.
fn frame(kind: Kind, number: u32, reply: bool, flags: u16) -> HeapFrame {
    let (client, server) = (0x0a00_0000 + number, 0x0b00_0000 + number * 7919 % 65536);
    let ports = (1024 + (number % 50_000) as u16, 80);
    let (ends, ports) = match reply {
        false => ((client, server), ports),
        true => ((server, client), (ports.1, ports.0)),
    };
    let wide = |low: u32| {
        let mut address = [0xfd; 16];
        address[12..].copy_from_slice(&low.to_be_bytes());
        address
    };
    let ethernet = Builder::ethernet([2; 6], [4; 6]);
    let packet = match kind {
        Kind::Udp6 => ethernet
            .ipv6(wide(ends.0), wide(ends.1))
            .udp(ports.0, ports.1),
        Kind::Udp => ethernet.ipv4(ends.0, ends.1).udp(ports.0, ports.1),
        Kind::Tcp => ethernet.ipv4(ends.0, ends.1).tcp(ports.0, ports.1, flags),
    };
    let payload = if kind == Kind::Tcp { 6 } else { 18 };
    packet.payload(&[0; 18][..payload]).frame()
}

fn layers(frame: &mut HeapFrame) -> Layers {
    parse_frame(frame, 1, WordSet::MINI_KEY, &mut FlowKey::ZERO.clone())
}

fn run(name: &str, kind: Kind, connections: u32) {
    const SYN: u16 = 2;
    const ACK: u16 = 16;
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    let commit = Request {
        commit: true,
        ..Request::default()
    };
    let mut all: Vec<Vec<u8>> = Vec::new();
    let steps = [(false, SYN), (true, SYN | ACK), (false, ACK), (true, ACK)];
    for (at, (reply, flags)) in steps.into_iter().enumerate() {
        for number in 0..connections {
            let mut frame = frame(kind, number, reply, flags);
            let layers = layers(&mut frame);
            tracker.track(&frame, &layers, &commit, 1000);
            if at >= 2 {
                all.push(frame.to_vec());
            }
        }
    }
    let mut buffers: Vec<HeapFrame> = (0..BURST)
        .map(|at| HeapFrame::new(&all[at % all.len()]))
        .collect();
    let places: Vec<Layers> = buffers.iter_mut().map(layers).collect();
    let asks = Request::default();
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
        ("udp6-1k", Kind::Udp6, 1000),
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
