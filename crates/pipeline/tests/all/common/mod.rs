//! Helpers shared by tests: a bridge with its program, and short forms of flow mods.

pub mod effects;
pub mod generate;
pub mod learning;
pub mod outside;

use openflow::Version;
use openflow::action::{Action, Instruction};
use openflow::error::Error;
use openflow::flow::{FlowMod, FlowModCommand, FlowStats, FlowStatsRequest, TABLE_ALL};
use openflow::port;
use packet::{Field, Match};
use pipeline::{Clock, FlowModOutcome, Options, Pipeline};
use program::Program;
use program::table::Bridge;
use std::sync::Arc;

/// A pipeline with a program of its own.
pub struct Switch {
    pub program: Arc<Program>,
    pub bridge: Arc<Bridge>,
    pub pipeline: Pipeline,
    pub now: u64,
}

impl Switch {
    pub fn new() -> Switch {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let pipeline = Pipeline::new(
            Arc::clone(&program),
            Arc::clone(&bridge),
            Options::default(),
        );
        Switch {
            program,
            bridge,
            pipeline,
            now: 1_000_000,
        }
    }

    pub fn clock(&self) -> Clock {
        Clock::from_ms(self.now)
    }

    /// Publishes the changes.
    pub fn publish(&mut self) {
        self.pipeline.commit();
        self.program.domain.publish();
    }

    pub fn send(&mut self, change: &FlowMod, version: Version) -> Result<FlowModOutcome, Error> {
        let now = self.clock();
        self.pipeline.flow_mod(change, version, now)
    }

    /// Carries out a flow mod of OpenFlow 1.3.
    pub fn mod13(&mut self, change: FlowMod) -> Result<FlowModOutcome, Error> {
        self.send(&change, Version::V1_3)
    }

    /// Carries out a flow mod of OpenFlow 1.0: modifies add and change cookies, adds restart
    /// counters.
    pub fn mod10(&mut self, change: FlowMod) -> Result<FlowModOutcome, Error> {
        self.send(&as_v1_0(change), Version::V1_0)
    }

    pub fn flows(&self) -> Vec<FlowStats> {
        self.pipeline.flow_stats(&everything(), self.clock())
    }

    /// Counts packets on a rule like a worker.
    pub fn count(&self, table: u8, matching: &Match, packets: u64, bytes: u64) {
        let mut reader = self.program.domain.reader().unwrap();
        self.program.counters.add_worker(reader.index());
        let key = key_of(matching);
        let guard = reader.begin();
        let rule = self
            .bridge
            .lookup(table, &key, &guard)
            .expect("a rule to count on");
        assert_eq!(rule.spec.matching, *matching, "another rule is in the way");
        self.program
            .counters
            .add(guard.index(), rule.spec.counter, packets, bytes, self.now);
    }
}

fn key_of(matching: &Match) -> packet::FlowKey {
    let mut key = packet::FlowKey::ZERO;
    for word in matching.words() {
        key.words[usize::from(word.word)] = word.value;
    }
    key
}

pub fn as_v1_0(mut change: FlowMod) -> FlowMod {
    change.modify_cookie = true;
    change.modify_adds = true;
    change.flags.reset_counts |= change.command == FlowModCommand::Add;
    change
}

pub fn everything() -> FlowStatsRequest {
    FlowStatsRequest {
        table: TABLE_ALL,
        matching: Match::any(),
        cookie: 0,
        cookie_mask: 0,
        out_port: port::ANY,
        out_group: 0xffff_ffff,
    }
}

pub fn output(port: u32) -> Action {
    Action::Output {
        port,
        max_len: 0xffff,
    }
}

pub fn apply(actions: &[Action]) -> Vec<Instruction> {
    vec![Instruction::ApplyActions(actions.to_vec())]
}

pub fn fields(all: &[(Field, u128)]) -> Match {
    let mut matching = Match::any();
    for (field, value) in all {
        matching.set_exact(*field, *value);
    }
    matching
}

/// Returns a flow mod for table 0 that outputs to port 1.
pub fn flow(command: FlowModCommand, matching: Match, priority: u16) -> FlowMod {
    FlowMod {
        command,
        ..FlowMod::add(matching, priority, apply(&[output(1)]))
    }
}

pub fn add(matching: Match, priority: u16) -> FlowMod {
    flow(FlowModCommand::Add, matching, priority)
}

/// Returns a flow mod adjusted by `adjust`.
pub fn with(mut change: FlowMod, adjust: impl FnOnce(&mut FlowMod)) -> FlowMod {
    adjust(&mut change);
    change
}

/// Ends a deletion of many rules in slices of `budget`; returns its outcome, and what it deleted in
/// the longest slice.
pub fn end_in_slices(
    switch: &mut Switch,
    begun: pipeline::Begun<'static>,
    budget: usize,
) -> (pipeline::FlowModOutcome, usize) {
    let now = switch.clock();
    let pipeline::Begun::Long(mut sweep) = begun else {
        panic!("{begun:?}");
    };
    while !switch.pipeline.seek(&mut sweep, budget).unwrap() {}
    switch.pipeline.end_first(&mut sweep);
    let mut outcome = pipeline::FlowModOutcome::default();
    let mut longest = 0;
    let mut ended = false;
    while !ended {
        let before = outcome.changed;
        ended = (switch.pipeline)
            .apply(&mut sweep, budget, &mut outcome, now)
            .unwrap();
        longest = longest.max(outcome.changed - before);
    }
    switch.publish();
    while !(switch.pipeline).settle(&mut sweep, budget, &mut outcome, now) {}
    (outcome, longest)
}
