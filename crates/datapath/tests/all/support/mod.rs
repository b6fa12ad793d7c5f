//! In-memory ports, and a datapath to attach them to.

use crossbeam_queue::ArrayQueue;
use datapath::clock::Clock;
use datapath::vlan::{VlanConfig, VlanMode};
use datapath::{BridgeId, Datapath, Options, PortId, PortKind, PortSettings, PortSpec};
use packet::io::{BURST, Lengths, QueueDrops, RxQueue, TxOutcome, TxQueue};
use packet::{Field, Frame, HeapFrame, Match, Offload};
use program::Program;
use program::actions::{Op, OpList, PortNo};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, RuleRef};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Waits for a condition, for at most a minute, because others may want the processors, too.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// An in-memory wire: what is put in is received by the switch, what the switch sends is kept.
pub struct Wire {
    arriving: ArrayQueue<HeapFrame>,
    event: Option<OwnedFd>,
    pub sent: Mutex<Vec<HeapFrame>>,
    pub sent_count: AtomicU64,
    /// Number of frames that are kept; further ones are only counted.
    keep: usize,
    /// Makes the next receive panic.
    pub fail_receive: AtomicBool,
    /// Makes sends panic while set.
    pub fail_send: AtomicBool,
    pub queues_alive: AtomicU64,
    pub armed: AtomicU64,
    /// Whether it reports that nothing can come, and how often it has been looked at.
    pub dormant: AtomicBool,
    /// Whether its descriptor is readable while it has frames.
    pub steady: AtomicBool,
    pub looks: AtomicU64,
    /// A frame that every look finds, as long as nothing else is there.
    pub always: Mutex<Option<Vec<u8>>>,
    /// Frames that come repeatedly, in whole bursts, and where the next burst begins.
    pub endless: Mutex<(Vec<Vec<u8>>, usize)>,
    /// Whoever holds this blocks the worker that looks.
    pub held: Mutex<()>,
    /// How long frames are reported to have waited before they are received, in nanoseconds.
    pub waited_ns: AtomicU64,
    /// Whether it reports, when it becomes a port, that its frames come finished (nothing left to
    /// do).
    pub never_offloads: AtomicBool,
    /// Number of frames sent as finished.
    pub finished: AtomicU64,
    /// Most frames that it is asked for at a time, and whether it gives whole bursts nonetheless.
    pub most: AtomicUsize,
    pub whole: AtomicBool,
}

pub fn eventfd() -> OwnedFd {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

impl Wire {
    pub fn new(waitable: bool) -> Arc<Wire> {
        Arc::new(Wire {
            arriving: ArrayQueue::new(1 << 14),
            event: waitable.then(eventfd),
            sent: Mutex::default(),
            sent_count: AtomicU64::new(0),
            keep: 100_000,
            fail_receive: AtomicBool::new(false),
            fail_send: AtomicBool::new(false),
            queues_alive: AtomicU64::new(0),
            armed: AtomicU64::new(0),
            dormant: AtomicBool::new(false),
            steady: AtomicBool::new(false),
            looks: AtomicU64::new(0),
            always: Mutex::default(),
            endless: Mutex::default(),
            held: Mutex::default(),
            waited_ns: AtomicU64::new(0),
            never_offloads: AtomicBool::new(false),
            finished: AtomicU64::new(0),
            most: AtomicUsize::new(BURST),
            whole: AtomicBool::new(false),
        })
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        if let Some(event) = &self.event {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: eight readable bytes.
            unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), 8) };
        }
    }

    /// Puts a frame in; returns false when the wire is full.
    pub fn try_put(&self, frame: HeapFrame) -> bool {
        let done = self.arriving.push(frame).is_ok();
        self.signal();
        done
    }

    pub fn put(&self, frame: HeapFrame) {
        assert!(self.try_put(frame));
    }

    /// Puts all in at once, so that they are received as bursts.
    pub fn put_all(&self, frames: impl IntoIterator<Item = HeapFrame>) {
        let held = self.held.lock().unwrap();
        for frame in frames {
            assert!(self.arriving.push(frame).is_ok());
        }
        drop(held);
        self.signal();
    }

    pub fn waiting(&self) -> usize {
        self.arriving.len()
    }

    pub fn sent(&self) -> u64 {
        self.sent_count.load(Ordering::SeqCst)
    }

    /// Takes the frames that were sent.
    pub fn take(&self) -> Vec<Vec<u8>> {
        self.sent
            .lock()
            .unwrap()
            .drain(..)
            .map(|frame| frame.to_vec())
            .collect()
    }

    pub fn rx(self: &Arc<Self>) -> Box<dyn RxQueue<HeapFrame>> {
        self.queues_alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Queue(Arc::clone(self)))
    }

    pub fn tx(self: &Arc<Self>) -> Box<dyn TxQueue<HeapFrame>> {
        self.queues_alive.fetch_add(1, Ordering::SeqCst);
        Box::new(Queue(Arc::clone(self)))
    }
}

struct Queue(Arc<Wire>);

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.queues_alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RxQueue<HeapFrame> for Queue {
    fn never_offloads(&self) -> bool {
        self.0.never_offloads.load(Ordering::SeqCst)
    }

    fn receive(&mut self, out: &mut Vec<HeapFrame>) -> usize {
        assert!(
            !self.0.fail_receive.swap(false, Ordering::SeqCst),
            "told to fail while receiving"
        );
        self.0.looks.fetch_add(1, Ordering::SeqCst);
        let _held = self.0.held.lock();
        let before = out.len();
        let most = match self.0.whole.load(Ordering::SeqCst) {
            true => BURST,
            false => self.0.most.load(Ordering::SeqCst),
        };
        while out.len() - before < most {
            let Some(frame) = self.0.arriving.pop() else {
                break;
            };
            out.push(frame);
        }
        if out.len() == before
            && let Some(bytes) = &*self.0.always.lock().unwrap()
        {
            out.push(HeapFrame::new(bytes));
        }
        if out.len() == before {
            let (frames, next) = &mut *self.0.endless.lock().unwrap();
            for _ in 0..most.min(frames.len()) {
                out.push(HeapFrame::new(&frames[*next]));
                *next = (*next + 1) % frames.len();
            }
        }
        out.len() - before
    }
    fn limit(&mut self, most: usize) {
        self.0.most.store(most, Ordering::SeqCst);
    }
    fn wait_fd(&self) -> Option<RawFd> {
        self.0.event.as_ref().map(|event| event.as_raw_fd())
    }
    fn is_steady(&self) -> bool {
        self.0.steady.load(Ordering::SeqCst)
    }
    fn is_dormant(&self) -> bool {
        self.0.dormant.load(Ordering::SeqCst)
    }
    fn waited_ns(&self) -> u64 {
        self.0.waited_ns.load(Ordering::SeqCst)
    }
    fn arm(&mut self) -> bool {
        self.0.armed.fetch_add(1, Ordering::SeqCst);
        if let Some(event) = &self.0.event {
            let mut count = [0_u8; 8];
            // SAFETY: eight writable bytes.
            unsafe { libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        }
        !self.0.arriving.is_empty()
    }
    fn drops(&self) -> QueueDrops {
        QueueDrops::default()
    }
}

impl TxQueue<HeapFrame> for Queue {
    fn send_finished(&mut self, frames: &mut Vec<HeapFrame>, lengths: Lengths) -> TxOutcome {
        let mut these = Lengths::default();
        for frame in &*frames {
            these.add(frame.len());
            assert_eq!(frame.offload(), Offload::default());
        }
        assert_eq!(lengths, these, "what is told is what is sent");
        let count = frames.len() as u64;
        self.0.finished.fetch_add(count, Ordering::SeqCst);
        self.send(frames)
    }

    fn send(&mut self, frames: &mut Vec<HeapFrame>) -> TxOutcome {
        assert!(
            !self.0.fail_send.load(Ordering::SeqCst),
            "told to fail while sending"
        );
        let mut outcome = TxOutcome::default();
        let mut sent = self.0.sent.lock().unwrap();
        for frame in frames.drain(..) {
            outcome.packets += 1;
            outcome.bytes += frame.len() as u64;
            if sent.len() < self.0.keep {
                sent.push(frame);
            }
        }
        drop(sent);
        self.0
            .sent_count
            .fetch_add(outcome.packets, Ordering::SeqCst);
        outcome
    }
}

pub struct Switch {
    pub datapath: Datapath<HeapFrame>,
    pub program: Arc<Program>,
    pub writers: HashMap<BridgeId, BridgeWriter>,
}

impl Switch {
    pub fn new(workers: usize) -> Switch {
        Switch::with_clock(workers, Arc::new(Clock::default()))
    }

    pub fn with_clock(workers: usize, clock: Arc<Clock>) -> Switch {
        let program = Arc::new(Program::new());
        let mut datapath = Datapath::new(Options {
            program: Arc::clone(&program),
            allocate: Box::new(|bytes| Some(HeapFrame::new(bytes))),
            thread_init: None,
            clock,
        })
        .unwrap();
        datapath.set_workers(&vec![None; workers]).unwrap();
        Switch {
            datapath,
            program,
            writers: HashMap::new(),
        }
    }

    pub fn bridge(&mut self, name: &str) -> BridgeId {
        let bridge = Bridge::new(Arc::clone(&self.program));
        let id = self.datapath.add_bridge(name, Arc::clone(&bridge)).unwrap();
        self.writers.insert(id, BridgeWriter::new(bridge));
        id
    }

    /// Adds a bridge that is a learning switch.
    pub fn learning_bridge(&mut self, name: &str) -> BridgeId {
        let id = self.bridge(name);
        self.rule(id, 0, 0, Match::any(), vec![Op::Normal]);
        id
    }

    /// Adds a rule, publishes it, and waits until workers work by it.
    pub fn rule(
        &mut self,
        bridge: BridgeId,
        table: u8,
        priority: u32,
        matching: Match,
        ops: Vec<Op>,
    ) -> RuleRef {
        let rule = self.publish_rule(bridge, table, priority, matching, ops);
        let barrier = self.datapath.barrier();
        wait_until("rule obeyed", || self.datapath.barrier_passed(barrier));
        rule
    }

    /// Adds a rule and publishes it.
    pub fn publish_rule(
        &mut self,
        bridge: BridgeId,
        table: u8,
        priority: u32,
        matching: Match,
        ops: Vec<Op>,
    ) -> RuleRef {
        let writer = self.writers.get_mut(&bridge).unwrap();
        let counter = self.program.counters.allocate().unwrap();
        let spec = RuleSpec {
            matching,
            priority,
            ops: Arc::new(OpList::new(ops)),
            counter,
            cookie: 7,
        };
        let rule = writer.insert(table, spec);
        writer.commit();
        self.program.domain.publish();
        rule
    }

    pub fn remove_rule(&mut self, bridge: BridgeId, table: u8, rule: RuleRef) {
        let writer = self.writers.get_mut(&bridge).unwrap();
        writer.remove(table, rule);
        writer.commit();
        self.program.domain.publish();
    }

    pub fn port(&mut self, bridge: BridgeId, number: PortNo, wire: &Arc<Wire>) -> PortId {
        self.port_with(bridge, number, wire, PortSettings::default())
    }

    pub fn port_with(
        &mut self,
        bridge: BridgeId,
        number: PortNo,
        wire: &Arc<Wire>,
        settings: PortSettings,
    ) -> PortId {
        let sending = Arc::clone(wire);
        self.datapath
            .add_port(PortSpec {
                name: format!("p{}-{number}", bridge_number(bridge)),
                bridge,
                number,
                settings,
                kind: PortKind::Device {
                    rx: vec![wire.rx()],
                    tx: Box::new(move |_| Ok(sending.tx())),
                },
            })
            .unwrap()
    }

    pub fn patch(&mut self, bridge: BridgeId, number: PortNo, name: &str, peer: &str) -> PortId {
        self.datapath
            .add_port(PortSpec {
                name: name.to_owned(),
                bridge,
                number,
                settings: PortSettings::default(),
                kind: PortKind::Patch {
                    peer: peer.to_owned(),
                },
            })
            .unwrap()
    }

    /// Adds `count` learning-bridge ports with wires.
    pub fn ports(&mut self, bridge: BridgeId, count: u32) -> Vec<(PortId, Arc<Wire>)> {
        (1..=count)
            .map(|number| {
                let wire = Wire::new(true);
                (self.port(bridge, number, &wire), wire)
            })
            .collect()
    }

    pub fn dropped(&self, reason: &str) -> u64 {
        let drops = self.datapath.drops();
        drops
            .iter()
            .find(|(name, _)| *name == reason)
            .unwrap_or_else(|| panic!("no reason {reason}"))
            .1
    }

    pub fn dropped_in_all(&self) -> u64 {
        self.datapath.drops().iter().map(|(_, count)| count).sum()
    }
}

fn bridge_number(bridge: BridgeId) -> String {
    format!("{bridge:?}")
        .chars()
        .filter(char::is_ascii_digit)
        .collect()
}

pub fn access(vlan: u16) -> PortSettings {
    PortSettings {
        vlan: VlanConfig::new(VlanMode::Access(vlan), None),
        ..Default::default()
    }
}

/// Waits until counts have grown by as much as this, and returns by how much they have.
pub fn grow_by(least: [u64; 2], counts: impl Fn() -> [u64; 2]) -> [u64; 2] {
    let before = counts();
    let grown = || std::array::from_fn(|index| counts()[index] - before[index]);
    wait_until("counts grow", || {
        let grown: [u64; 2] = grown();
        grown[0] >= least[0] && grown[1] >= least[1]
    });
    grown()
}

pub fn in_port(number: PortNo) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::InPort, u128::from(number));
    matching
}

pub fn mac(number: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, number]
}

pub const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns a frame with a payload that carries `number`.
pub fn frame(dst: [u8; 6], src: [u8; 6], number: u64) -> HeapFrame {
    HeapFrame::new(&bytes(dst, src, None, number))
}

pub fn tagged(dst: [u8; 6], src: [u8; 6], tci: u16, number: u64) -> HeapFrame {
    HeapFrame::new(&bytes(dst, src, Some(tci), number))
}

pub fn bytes(dst: [u8; 6], src: [u8; 6], tci: Option<u16>, number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(dst);
    bytes.extend(src);
    if let Some(tci) = tci {
        bytes.extend([0x81, 0]);
        bytes.extend(tci.to_be_bytes());
    }
    bytes.extend([0x88, 0xb5]); // IEEE 802 local experimental Ethertype
    bytes.extend(number.to_be_bytes());
    bytes.resize(bytes.len().max(60), 0);
    bytes
}
