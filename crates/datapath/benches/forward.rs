//! Cycles per packet from receive burst to transmit batch, on one worker, over in-memory ports that
//! cost next to nothing; and how fast a sleeping worker wakes.
//!
//! `cargo bench -p sluice-datapath --bench forward`
#![allow(missing_docs)]

use datapath::clock::{Clock, cycles_per_second};
use datapath::{BridgeId, Datapath, Options, PortKind, PortSettings, PortSpec};
use packet::io::{BURST, RxQueue, TxOutcome, TxQueue};
use packet::{Field, Frame, Match, Offload};
use program::Program;
use program::actions::{Op, OpList, PortNo};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A small frame without memory management, so that the benchmark measures the switch and not the
/// allocator.
struct Small {
    bytes: [u8; 128],
    start: usize,
}

const ROOM: usize = 64;

impl Small {
    fn udp(flow: u16) -> Small {
        let bytes = packet::build::Builder::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
            .ipv4(0x0a00_0001, 0x0a00_0002)
            .udp(flow, 9)
            .payload(&[0; 18])
            .bytes();
        let mut small = Small {
            bytes: [0; 128],
            start: ROOM,
        };
        small.bytes[ROOM..ROOM + 60].copy_from_slice(&bytes[..60]);
        small
    }
}

impl Frame for Small {
    fn len(&self) -> usize {
        124 - self.start
    }
    fn head(&self) -> &[u8] {
        &self.bytes[self.start..124]
    }
    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..124]
    }
    fn headroom(&self) -> usize {
        self.start
    }
    fn push_front(&mut self, n: usize) -> bool {
        let room = n <= self.start;
        if room {
            self.start -= n;
        }
        room
    }
    fn pull_front(&mut self, n: usize) -> bool {
        let long = n <= self.len();
        if long {
            self.start += n;
        }
        long
    }
    fn truncate(&mut self, _: usize) {}
    fn linearize(&mut self, _: usize) -> bool {
        true
    }
    fn segment_count(&self) -> usize {
        1
    }
    fn segment(&self, index: usize) -> Option<&[u8]> {
        (index == 0).then(|| self.head())
    }
    fn segment_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        (index == 0).then(|| self.head_mut())
    }
    fn duplicate(&self) -> Option<Self> {
        Some(Small {
            bytes: self.bytes,
            start: self.start,
        })
    }
    fn sibling(&self, _: &[u8]) -> Option<Self> {
        None
    }
    fn offload(&self) -> Offload {
        Offload::default()
    }
    fn set_offload(&mut self, _: Offload) {}
}

struct Endless {
    flow: u16,
}

impl RxQueue<Small> for Endless {
    fn receive(&mut self, out: &mut Vec<Small>) -> usize {
        for _ in 0..BURST {
            self.flow = self.flow.wrapping_add(1);
            out.push(Small::udp_quick(self.flow));
        }
        BURST
    }
}

impl Small {
    /// Returns a copy of one template with another source port.
    #[inline]
    fn udp_quick(flow: u16) -> Small {
        static TEMPLATE: std::sync::LazyLock<[u8; 128]> =
            std::sync::LazyLock::new(|| Small::udp(1).bytes);
        let mut small = Small {
            bytes: *TEMPLATE,
            start: ROOM,
        };
        small.bytes[ROOM + 34..ROOM + 36].copy_from_slice(&flow.to_be_bytes());
        small
    }
}

struct Null;

impl TxQueue<Small> for Null {
    fn send(&mut self, frames: &mut Vec<Small>) -> TxOutcome {
        let packets = frames.len() as u64;
        frames.clear();
        TxOutcome {
            packets,
            bytes: packets * 60,
            ..Default::default()
        }
    }
}

fn port(
    datapath: &mut Datapath<Small>,
    bridge: BridgeId,
    number: PortNo,
    rx: Vec<Box<dyn RxQueue<Small>>>,
) {
    let kind = PortKind::Device {
        rx,
        tx: Box::new(|_| Ok(Box::new(Null))),
    };
    let spec = PortSpec {
        name: format!("p{number}"),
        bridge,
        number,
        settings: PortSettings::default(),
        kind,
    };
    datapath.add_port(spec).expect("a port");
}

fn in_port(number: u128) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::InPort, number);
    matching
}

fn switch(
    program: &Arc<Program>,
    rules: &[(Match, Vec<Op>)],
) -> (Datapath<Small>, BridgeId, BridgeWriter) {
    let mut datapath = Datapath::new(Options {
        program: Arc::clone(program),
        allocate: Box::new(|_| None),
        thread_init: None,
        clock: Arc::new(Clock::default()),
    })
    .expect("a datapath");
    let tables = Bridge::new(Arc::clone(program));
    let bridge = datapath
        .add_bridge("br0", Arc::clone(&tables))
        .expect("a bridge");
    let mut writer = BridgeWriter::new(tables);
    for (matching, ops) in rules {
        let counter = program.counters.allocate().expect("a counter");
        let ops = Arc::new(OpList::new(ops.clone()));
        writer.insert(
            0,
            RuleSpec {
                matching: matching.clone(),
                priority: 1,
                ops,
                counter,
                cookie: 0,
            },
        );
    }
    writer.commit();
    program.domain.publish();
    datapath.set_workers(&[None]).expect("a worker");
    (datapath, bridge, writer)
}

fn measure(name: &str, rules: &[(Match, Vec<Op>)]) {
    let program = Arc::new(Program::new());
    let (mut datapath, bridge, _writer) = switch(&program, rules);
    port(&mut datapath, bridge, 2, Vec::new());
    port(
        &mut datapath,
        bridge,
        1,
        vec![Box::new(Endless { flow: 0 })],
    );
    std::thread::sleep(Duration::from_millis(200));
    datapath.clear_worker_stats();
    std::thread::sleep(Duration::from_secs(1));
    let stats = datapath.workers()[0].stats;
    let cycles = stats.busy_cycles as f64 / stats.packets as f64;
    let rate = cycles_per_second() as f64 / cycles / 1e6;
    println!("{name:<24} {cycles:8.1} cycles/packet {rate:8.2} Mpps, frames made among them");
}

/// A queue with a descriptor to wait on: one frame for each eight bytes of its event counter.
struct Bell(Arc<OwnedFd>);

impl RxQueue<Small> for Bell {
    fn receive(&mut self, out: &mut Vec<Small>) -> usize {
        let mut count = [0_u8; 8];
        // SAFETY: eight writable bytes.
        let read = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        if read == 8 {
            out.push(Small::udp_quick(1));
        }
        usize::from(read == 8)
    }
    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.0.as_raw_fd())
    }
}

struct Count(Arc<AtomicU64>);

impl TxQueue<Small> for Count {
    fn send(&mut self, frames: &mut Vec<Small>) -> TxOutcome {
        let packets = frames.len() as u64;
        frames.clear();
        self.0.fetch_add(packets, Ordering::SeqCst);
        TxOutcome {
            packets,
            bytes: packets * 60,
            ..Default::default()
        }
    }
}

/// Measures the latency of the first frame after a pause, and the processor time that a worker uses
/// meanwhile.
fn waking() {
    let program = Arc::new(Program::new());
    let (mut datapath, bridge, _writer) = switch(&program, &[(in_port(1), vec![Op::Output(2)])]);
    // SAFETY: takes no pointers; the descriptor is new, and nobody else has it.
    let bell = Arc::new(unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) });
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let kind = PortKind::Device {
        rx: Vec::new(),
        tx: Box::new(move |_| Ok(Box::new(Count(Arc::clone(&counted))))),
    };
    let spec = PortSpec {
        name: "p2".to_owned(),
        bridge,
        number: 2,
        settings: PortSettings::default(),
        kind,
    };
    datapath.add_port(spec).expect("a port");
    port(
        &mut datapath,
        bridge,
        1,
        vec![Box::new(Bell(Arc::clone(&bell)))],
    );
    let mut times = Vec::new();
    let mut used = 0.0;
    for number in 1..=300 {
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight readable bytes.
        unsafe { libc::write(bell.as_raw_fd(), one.as_ptr().cast(), 8) };
        while sent.load(Ordering::SeqCst) < number {
            assert!(
                start.elapsed() < Duration::from_secs(5),
                "no frame came through"
            );
            std::hint::spin_loop();
        }
        times.push(start.elapsed());
        let stats = datapath.workers()[0].stats;
        let awake = (stats.busy_cycles + stats.idle_cycles) as f64;
        used = awake / (awake + stats.sleep_cycles as f64) * 100.0;
    }
    times.sort();
    println!(
        "first frame after a pause: median {:?}, 99 of 100 within {:?}; {used:.1} % of a processor at 200 frames/s",
        times[150], times[297]
    );
    datapath.clear_worker_stats();
    std::thread::sleep(Duration::from_secs(3));
    let stats = datapath.workers()[0].stats;
    let awake = (stats.busy_cycles + stats.idle_cycles) as f64;
    println!(
        "without traffic: {:.3} % of a processor",
        awake / (awake + stats.sleep_cycles as f64) * 100.0
    );
}

fn main() {
    waking();
    measure("drop", &[(Match::any(), vec![])]);
    measure("in_port -> output", &[(in_port(1), vec![Op::Output(2)])]);
    measure("normal (flood to one)", &[(Match::any(), vec![Op::Normal])]);
    measure("controller-less miss", &[]);
}
