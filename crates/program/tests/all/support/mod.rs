//! What tests of walks share.

use conntrack::{Earlier, Request, Tracked};
use packet::parse::{Layers, Malformed};
use packet::{Frame, HeapFrame, Match};
use program::Program;
use program::actions::{Op, OpList, PortNo, ToController};
use program::epoch::Reader;
use program::exec::Engine;
use program::host::{Context, DropReason, Host};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter};
use std::sync::Arc;

/// Stands for the ingress port where a rule sends packets back.
pub const BACK: PortNo = 99;

/// What became of packets. The only host of these tests: each other one would have the whole engine
/// compiled again.
#[derive(Default)]
pub struct Met {
    /// The ports that packets left by, and the packets, in order.
    pub sent: Vec<(PortNo, Vec<u8>)>,
    pub dropped: Vec<DropReason>,
    /// Number of packet-ins.
    pub told: u64,
    pub malformed: Vec<Malformed>,
    /// What the tracker says of each packet.
    pub answer: Tracked,
}

impl Met {
    /// Returns what was sent, where nothing else became of any packet.
    pub fn only_sent(self) -> Vec<(PortNo, Vec<u8>)> {
        assert_eq!(self.dropped, []);
        assert_eq!(self.malformed, []);
        assert_eq!(self.told, 0, "packet-ins");
        self.sent
    }

    /// Returns the number of packets dropped for a reason.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        let same = self.dropped.iter().filter(|dropped| **dropped == reason);
        same.count() as u64
    }
}

impl Host<HeapFrame> for Met {
    fn track(&mut self, _: &HeapFrame, _: &Layers, _: Earlier, _: &Request<'_>) -> Tracked {
        self.answer
    }
    fn port_is_live(&self, _: PortNo) -> bool {
        true
    }
    fn now_ns(&mut self) -> u64 {
        0
    }
    fn output(&mut self, context: Context<'_>, port: PortNo, frame: HeapFrame, to_in_port: bool) {
        *context.sent = true;
        assert!(!to_in_port || port == context.in_port);
        let port = if to_in_port { BACK } else { port };
        self.sent.push((port, frame.to_vec()));
    }
    fn output_all(&mut self, _: Context<'_>, _: HeapFrame, _: bool) {
        unreachable!("no rule floods");
    }
    fn normal(&mut self, _: Context<'_>, _: HeapFrame) {
        unreachable!("no rule switches");
    }
    fn controller(&mut self, _: Context<'_>, _: &ToController, _: &HeapFrame) {
        self.told += 1;
    }
    fn malformed(&mut self, what: Malformed) {
        self.malformed.push(what);
    }
    fn dropped(&mut self, reason: DropReason) {
        self.dropped.push(reason);
    }
}

/// A bridge, and a worker that walks its packets.
pub struct Switch {
    pub program: Arc<Program>,
    pub writer: BridgeWriter,
    reader: Reader,
    engine: Engine<HeapFrame>,
}

impl Switch {
    /// Creates one without rules.
    pub fn new() -> Switch {
        let program = Arc::new(Program::new());
        let reader = program.domain.reader().unwrap();
        program.counters.add_worker(reader.index());
        Switch {
            writer: BridgeWriter::new(Bridge::new(Arc::clone(&program))),
            program,
            reader,
            engine: Engine::new(),
        }
    }

    /// Adds a rule, to be published by [`Switch::shape`].
    pub fn add(&mut self, table: u8, matching: Match, priority: u32, ops: Vec<Op>) {
        let counter = self.program.counters.allocate().unwrap();
        let spec = RuleSpec {
            matching,
            priority,
            ops: Arc::new(OpList::new(ops)),
            counter,
            cookie: 0,
        };
        self.writer.insert(table, spec);
    }

    /// Publishes the rules, and what is made of them.
    pub fn shape(&mut self) {
        self.writer.commit();
        self.program.domain.publish();
        self.writer.shape_now();
        self.program.domain.publish();
    }

    /// Walks a burst.
    pub fn walk(&mut self, in_port: PortNo, mut frames: Vec<HeapFrame>) -> Met {
        let mut met = Met::default();
        let guard = self.reader.begin();
        let bridge = Arc::clone(self.writer.bridge());
        (self.engine).burst(&bridge, &guard, in_port, &mut frames, 0, 1, &mut met);
        met
    }
}
