//! Cycles per packet of a learning bridge with many stations, from receive burst to transmit batch,
//! on one worker, over in-memory ports.
//!
//! `cargo bench -p sluice-datapath --bench normal [-- STATIONS...]`
//!
//! Half of the stations are behind the ingress port and send to the others, which are behind two
//! egress ports; all have been learned before. The figures include the cost of making and counting
//! frames, which the first line shows.
#![allow(missing_docs)]

use datapath::clock::{Clock, cycles_per_second};
use datapath::{BridgeId, BridgeSettings, Datapath, Options, PortKind, PortSettings, PortSpec};
use packet::io::{BURST, RxQueue, TxOutcome, TxQueue};
use packet::{Frame, Match, Offload};
use program::Program;
use program::actions::{Op, OpList, PortNo};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 60;
/// Frames that are used in turn: more than are in flight at a time.
const POOL: usize = 1024;
/// Measurements of each case, of which the lowest is reported.
const ROUNDS: usize = 400;
/// Fewest packets of a measurement that counts, because a turn's packets may be in one measurement
/// and its cycles in the next.
const ENOUGH: u64 = 100 * BURST as u64;

/// Longest time until all stations are learned.
const LIMIT: Duration = Duration::from_secs(60);
/// Time before the first measurement: caches fill, and the flow cache is judged.
const WARM_UP: Duration = Duration::from_secs(2);

/// A frame in memory that is reused, as a driver's is.
struct Lent(&'static mut [u8; 128]);

impl Frame for Lent {
    fn len(&self) -> usize {
        LEN
    }
    fn head(&self) -> &[u8] {
        &self.0[..LEN]
    }
    fn head_mut(&mut self) -> &mut [u8] {
        &mut self.0[..LEN]
    }
    fn headroom(&self) -> usize {
        0
    }
    fn push_front(&mut self, _: usize) -> bool {
        false
    }
    fn pull_front(&mut self, _: usize) -> bool {
        false
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
        None
    }
    fn sibling(&self, _: &[u8]) -> Option<Self> {
        None
    }
    fn offload(&self) -> Offload {
        Offload::default()
    }
    fn set_offload(&mut self, _: Offload) {}
}

type Mac = [u8; 6];

fn station(number: u32, side: u8) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    [2, side, a, b, c, d]
}

/// Frames between stations, one after the other, repeated or once.
struct Stations {
    /// Destination and source of each frame.
    frames: Arc<Vec<(Mac, Mac)>>,
    next: usize,
    endless: bool,
    may_begin: Arc<AtomicBool>,
    #[allow(clippy::vec_box)] // each frame has memory of its own
    pool: Vec<Box<[u8; 128]>>,
    at: usize,
}

impl Stations {
    fn new(frames: Vec<(Mac, Mac)>, endless: bool, may_begin: &Arc<AtomicBool>) -> Stations {
        let bytes = packet::build::Builder::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
            .ipv4(0x0a00_0001, 0x0a00_0002)
            .udp(1, 9)
            .payload(&[0; 18])
            .bytes();
        let mut whole = [0; 128];
        whole[..LEN].copy_from_slice(&bytes[..LEN]);
        Stations {
            frames: Arc::new(frames),
            next: 0,
            endless,
            may_begin: Arc::clone(may_begin),
            pool: (0..POOL).map(|_| Box::new(whole)).collect(),
            at: 0,
        }
    }
}

impl RxQueue<Lent> for Stations {
    fn receive(&mut self, out: &mut Vec<Lent>) -> usize {
        if !self.may_begin.load(Ordering::Relaxed) {
            return 0;
        }
        for count in 0..BURST {
            let Some((dst, src)) = self.frames.get(self.next) else {
                return count;
            };
            self.next += 1;
            if self.endless && self.next == self.frames.len() {
                self.next = 0;
            }
            self.at = (self.at + 1) % POOL;
            let bytes = std::ptr::from_mut(&mut *self.pool[self.at]);
            // SAFETY: a frame is sent, and gone, long before its memory is used again, and before
            // the queue is dropped.
            let bytes = unsafe { &mut *bytes };
            bytes[..6].copy_from_slice(dst);
            bytes[6..12].copy_from_slice(src);
            out.push(Lent(bytes));
        }
        BURST
    }
}

struct Null;

impl TxQueue<Lent> for Null {
    fn send(&mut self, frames: &mut Vec<Lent>) -> TxOutcome {
        let packets = frames.len() as u64;
        frames.clear();
        TxOutcome {
            packets,
            bytes: packets * LEN as u64,
            ..Default::default()
        }
    }
}

fn port(datapath: &mut Datapath<Lent>, bridge: BridgeId, number: PortNo, rx: Stations) {
    let kind = PortKind::Device {
        rx: vec![Box::new(rx)],
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

fn switch(
    program: &Arc<Program>,
    op: Op,
    stations: u32,
) -> (Datapath<Lent>, BridgeId, BridgeWriter) {
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
    let settings = BridgeSettings {
        mac_table_size: 2 * stations as usize,
        ..Default::default()
    };
    datapath.set_bridge(bridge, settings).expect("settings");
    let mut writer = BridgeWriter::new(tables);
    writer.insert(
        0,
        RuleSpec {
            matching: Match::any(),
            priority: 1,
            ops: Arc::new(OpList::new(vec![op])),
            counter: program.counters.allocate().expect("a counter"),
            cookie: 0,
        },
    );
    writer.commit();
    program.domain.publish();
    datapath.set_workers(&[None]).expect("a worker");
    (datapath, bridge, writer)
}

/// Returns the numbers below `count` in an order that no prefetcher can predict.
fn shuffled(count: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (0..count).collect();
    let mut state = 88_172_645_463_325_252_u64;
    for at in (1..all.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.swap(at, (state % (at as u64 + 1)) as usize);
    }
    all
}

fn measure(name: &str, stations: u32, op: Op) {
    let program = Arc::new(Program::new());
    let learns = matches!(op, Op::Normal);
    let (mut datapath, bridge, _writer) = switch(&program, op, stations);
    let (learn, forward) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicBool::new(false)),
    );
    let half = stations / 2;
    for side in 0..2 {
        let behind = (0..half).filter(|number| number % 2 == side);
        let frames = behind.map(|number| (station(0, 9), station(number, 1)));
        let rx = Stations::new(frames.collect(), false, &learn);
        port(&mut datapath, bridge, 2 + side, rx);
    }
    let flows = shuffled(half).into_iter();
    let flows = flows.map(|number| (station(number, 1), station(number, 0)));
    let rx = Stations::new(flows.collect(), true, &forward);
    port(&mut datapath, bridge, 1, rx);
    let limit = Instant::now() + LIMIT;
    while learns && datapath.mac_stats(bridge).expect("a bridge").current < half as usize {
        assert!(Instant::now() < limit, "not all stations are learned");
        std::thread::sleep(Duration::from_millis(1));
    }
    forward.store(true, Ordering::Relaxed);
    std::thread::sleep(WARM_UP);
    let mut lowest = f64::MAX;
    for _ in 0..ROUNDS {
        datapath.clear_worker_stats();
        std::thread::sleep(Duration::from_millis(5));
        let stats = datapath.workers()[0].stats;
        if stats.packets < ENOUGH {
            continue; // interrupted by other threads
        }
        lowest = lowest.min(stats.busy_cycles as f64 / stats.packets as f64);
    }
    let rate = cycles_per_second() as f64 / lowest / 1e6;
    println!("{name:<24} {lowest:8.1} cycles/packet {rate:8.2} Mpps, frames made among them");
    datapath.set_workers(&[]).expect("no worker");
}

fn main() {
    let asked: Vec<u32> = std::env::args()
        .filter_map(|word| word.parse().ok())
        .collect();
    let asked = if asked.is_empty() {
        vec![10_000, 100_000, 1_000_000]
    } else {
        asked
    };
    measure("output, to compare", 10_000, Op::Output(2));
    for stations in asked {
        measure(
            &format!("normal, {stations} stations"),
            stations,
            Op::Normal,
        );
    }
}
