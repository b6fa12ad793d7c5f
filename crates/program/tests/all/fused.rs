//! Fused paths: which are made, how they count, and what becomes of them when rules change. That
//! packets are treated the same is checked against the rules themselves in the pipeline's
//! `tests/all/cached.rs`.

use crate::support::Met;
use packet::build::Builder;
use packet::{Field, HeapFrame, Match};
use program::Program;
use program::actions::{Op, OpList};
use program::counters::{CounterId, Totals};
use program::epoch::Reader;
use program::exec::{CacheMode, Engine};
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, RuleRef};
use std::sync::Arc;
use std::time::{Duration, Instant};

struct Switch {
    program: Arc<Program>,
    writer: BridgeWriter,
    reader: Reader,
    engine: Engine<HeapFrame>,
    now_ms: u64,
}

impl Switch {
    fn new() -> Switch {
        let program = Arc::new(Program::new());
        program.walk_caches.set_mode(CacheMode::Never);
        let reader = program.domain.reader().unwrap();
        program.counters.add_worker(reader.index());
        Switch {
            writer: BridgeWriter::new(Bridge::new(Arc::clone(&program))),
            program,
            reader,
            engine: Engine::new(),
            now_ms: 1,
        }
    }

    fn add(&mut self, table: u8, fields: &[(Field, u128)], priority: u32, ops: Vec<Op>) -> Added {
        let mut matching = Match::any();
        for (field, value) in fields {
            matching.set_exact(*field, *value);
        }
        let counter = self.program.counters.allocate().unwrap();
        let spec = RuleSpec {
            priority,
            counter,
            ops: Arc::new(OpList::new(ops)),
            cookie: 0,
            matching,
        };
        Added {
            table,
            counter,
            rule: self.writer.insert(table, spec),
        }
    }

    fn publish(&mut self) {
        self.writer.commit();
        self.program.domain.publish();
    }

    /// Sends packets to these UDP ports in one burst.
    fn send(&mut self, ports: &[u16]) -> Met {
        self.now_ms += 1;
        let mut frames = ports.iter().map(|port| {
            let builder = Builder::ethernet([2; 6], [4; 6]).ipv4(1, 2).udp(1, *port);
            builder.payload(&[0; 18]).frame()
        });
        let mut frames: Vec<_> = frames.by_ref().collect();
        let mut sink = Met::default();
        let guard = self.reader.begin();
        let bridge = Arc::clone(self.writer.bridge());
        self.engine
            .burst(&bridge, &guard, 1, &mut frames, 0, self.now_ms, &mut sink);
        sink
    }

    /// Sends packets to these UDP ports in one burst; returns the ports that they left by.
    fn ports(&mut self, ports: &[u16]) -> Vec<u32> {
        let sent = self.send(ports).sent;
        sent.into_iter().map(|(port, _)| port).collect()
    }

    fn count(&self, added: &Added) -> Totals {
        self.program.counters.read(added.counter)
    }
}

struct Added {
    table: u8,
    counter: CounterId,
    rule: RuleRef,
}

const LAST: u8 = 12;
const BYTES: u64 = 60;

fn set(field: Field, value: u128) -> Op {
    let def = field.def();
    Op::SetField {
        field,
        value: packet::Value::from_u128(value << def.shift, def.bytes),
        mask: def.place(),
    }
}

fn resubmit(table: u8) -> Op {
    Op::Resubmit {
        in_port: None,
        table: Some(table),
    }
}

/// Adds tables that pass packets on, one that matches a register that the first has written, and
/// one that matches a port.
fn pipeline(switch: &mut Switch) -> Vec<Added> {
    let mut rules = vec![switch.add(
        0,
        &[(Field::InPort, 1)],
        10,
        vec![set(Field::Reg0, 7), resubmit(1)],
    )];
    for table in 1..LAST {
        let conditions = match table {
            5 => &[(Field::Reg0, 7)][..],
            _ => &[],
        };
        rules.push(switch.add(table, conditions, 10, vec![resubmit(table + 1)]));
    }
    // Never met, because the register has another value.
    switch.add(5, &[(Field::Reg0, 8)], 20, vec![]);
    switch.add(
        8,
        &[
            (Field::EthType, 0x0800),
            (Field::IpProto, 17),
            (Field::UdpDst, 68),
        ],
        20,
        vec![],
    );
    rules.push(switch.add(LAST, &[], 10, vec![Op::Output(2)]));
    rules
}

fn totals(packets: u64, used_ms: u64) -> Totals {
    Totals {
        packets,
        bytes: packets * BYTES,
        used_ms,
    }
}

#[test]
fn stages_are_made_one_and_counted_as_many() {
    let mut switch = Switch::new();
    let rules = pipeline(&mut switch);
    switch.publish();
    switch.writer.shape_now();
    let report = switch.writer.fused_report();
    // Each rule but the last one leads somewhere: those before table 8 by two paths, and those
    // before table 5 that do not know the register by two more, for packets that are dropped there
    // and for those that meet no rule.
    assert_eq!((report.rules, report.left_out), (usize::from(LAST), 0));
    assert_eq!(report.ways, 2 + 4 * 4 + 3 * 2 + 4);
    assert!(report.ways < report.ways_max && report.bytes > 0);
    let ports: Vec<u16> = (0..32).map(|number| 53 + number % 16).collect();
    let sink = switch.send(&ports);
    assert_eq!((sink.sent.len(), sink.dropped.len()), (30, 2));
    assert_eq!(switch.writer.fused_report().packets, 32);
    for added in &rules {
        let met = if added.table <= 7 { 32 } else { 30 };
        assert_eq!(switch.count(added), totals(met, 2), "table {}", added.table);
        let looked_up = switch.writer.bridge().table_counters(added.table);
        let met_all = if added.table <= 8 { 32 } else { 30 };
        assert_eq!(looked_up, (met_all, met_all), "table {}", added.table);
    }
}

/// A path holds until one of its tables changes, and not a burst longer; tables that it does not
/// pass do not matter.
#[test]
fn a_change_is_obeyed_at_once_and_touches_only_ways_through_its_table() {
    let mut switch = Switch::new();
    let mut rules = pipeline(&mut switch);
    switch.publish();
    switch.writer.shape_now();
    switch.send(&[80; 32]);
    switch.add(LAST + 5, &[], 1, vec![]);
    switch.publish();
    switch.writer.housekeep(usize::MAX);
    assert_eq!(switch.writer.fused_report().rules, usize::from(LAST));
    let gone = rules.remove(9);
    switch.writer.remove(gone.table, gone.rule);
    // Not published yet.
    assert_eq!(switch.send(&[80; 32]).sent.len(), 32);
    assert_eq!(switch.count(&gone).packets, 64);
    switch.publish();
    assert_eq!(switch.send(&[80; 32]).dropped.len(), 32);
    switch.writer.housekeep(usize::MAX);
    // Rules behind it keep their paths.
    let behind = usize::from(LAST - 1 - gone.table);
    assert_eq!(switch.writer.fused_report().rules, behind);
    switch.program.domain.publish();
    assert_eq!(switch.send(&[80; 32]).dropped.len(), 32);
    switch.program.domain.collect();
    // Counts of removed paths are not lost.
    assert_eq!(switch.count(&gone).packets, 64);
    assert_eq!(switch.count(&rules[0]).packets, 128);
    assert_eq!(switch.count(&rules[10]), totals(64, 3));
}

/// How many rules have paths if those through table 5 hold but for packets whose register is not
/// known: any rule of that table might be theirs. And if no path through it holds.
const KNOWN: usize = LAST as usize - 4;
const BEHIND: usize = LAST as usize - 5;

/// Removes paths that do not hold; returns how many rules still have some.
fn left(switch: &mut Switch) -> usize {
    switch.publish();
    switch.writer.housekeep(usize::MAX);
    switch.writer.fused_report().rules
}

/// Rules of other packets may come and go in the tables of a path, as addresses do that are
/// learned; it ends with a rule that its packets might meet.
#[test]
fn paths_outlast_rules_of_other_packets_in_their_tables() {
    let mut switch = Switch::new();
    pipeline(&mut switch);
    switch.publish();
    switch.writer.shape_now();
    for number in 0..100 {
        // Of other packets, and of a lower precedence.
        let other = switch.add(5, &[(Field::Reg0, 100 + number)], 30, vec![]);
        let lower = switch.add(5, &[(Field::UdpSrc, number)], 9, vec![]);
        assert_eq!(left(&mut switch), KNOWN);
        for gone in [other, lower] {
            switch.writer.remove(gone.table, gone.rule);
        }
        assert_eq!(left(&mut switch), KNOWN);
        let before = switch.writer.fused_report().packets;
        assert_eq!(switch.send(&[80; 32]).sent.len(), 32);
        assert_eq!(switch.writer.fused_report().packets, before + 32);
    }
    // Of a higher precedence.
    let udp = [(Field::EthType, 0x0800), (Field::IpProto, 17)];
    let higher = [udp[0], udp[1], (Field::UdpDst, 99)];
    let higher = switch.add(5, &higher, 11, vec![]);
    // Not published yet.
    assert_eq!(switch.ports(&[99, 80]), [2, 2]);
    assert_eq!(left(&mut switch), BEHIND);
    assert_eq!(switch.ports(&[99, 80, 99]), [2]);
    switch.writer.shape_now();
    assert_eq!(switch.writer.fused_report().rules, usize::from(LAST));
    assert_eq!(switch.ports(&[99, 80, 99]), [2]);
    // One that goes counts like one that comes.
    switch.writer.remove(higher.table, higher.rule);
    assert_eq!(switch.ports(&[99, 80]), [2]);
    assert_eq!(left(&mut switch), BEHIND);
    assert_eq!(switch.ports(&[99, 80]), [2, 2]);
    switch.writer.shape_now();
    // Of the same precedence: which of two such rules a packet meets is not defined.
    switch.add(5, &udp, 10, vec![]);
    assert_eq!(left(&mut switch), BEHIND);
}

/// Paths that were made while rules of other packets came and went are attached; those that such a
/// rule would have changed are not.
#[test]
fn changes_during_a_compilation_are_compared_with_what_it_makes() {
    let udp = [
        (Field::EthType, 0x0800),
        (Field::IpProto, 17),
        (Field::UdpDst, 99),
    ];
    for (register, conditions, rules, sent) in [(100, &[][..], KNOWN, 2), (7, &udp[..], BEHIND, 1)]
    {
        let mut switch = Switch::new();
        pipeline(&mut switch);
        switch.publish();
        assert!(switch.writer.shape_tables(), "begins in the background");
        let fields = [&[(Field::Reg0, register)], conditions].concat();
        switch.add(5, &fields, 30, vec![]);
        switch.publish();
        let begun = Instant::now();
        // The next compilation comes after this one; the first paths are of the first.
        while switch.writer.fused_report().rules == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            switch.writer.shape_tables();
            std::thread::yield_now();
        }
        let report = switch.writer.fused_report();
        assert_eq!(report.rules, rules, "register {register}");
        assert_eq!(switch.ports(&[99, 80]).len(), sent);
    }
}

/// More changes than can be compared with paths end all paths through their tables, for as long as
/// it takes to make them again.
#[test]
fn a_flood_of_changes_is_obeyed_too() {
    let mut switch = Switch::new();
    pipeline(&mut switch);
    switch.publish();
    switch.writer.shape_now();
    for round in 0..20_u128 {
        for number in 0..500 {
            let field = (Field::Reg0, 100 + round * 500 + number);
            switch.add(5, &[field], 30, vec![]);
        }
        let wanted = switch.add(5, &[(Field::Reg0, 7)], 40, vec![]);
        switch.publish();
        assert!(switch.send(&[80; 32]).sent.is_empty(), "round {round}");
        switch.writer.remove(wanted.table, wanted.rule);
        switch.publish();
        assert_eq!(switch.send(&[80; 32]).sent.len(), 32, "round {round}");
    }
    switch.writer.shape_now();
    assert!(switch.writer.fused_report().rules >= KNOWN);
}

#[test]
fn ways_come_back_in_the_background_when_rules_stop_changing() {
    let mut switch = Switch::new();
    let rules = pipeline(&mut switch);
    switch.publish();
    let begun = Instant::now();
    while switch.writer.shape_tables() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert_eq!(switch.send(&[80; 4]).sent.len(), 4);
        std::thread::yield_now();
    }
    assert_eq!(switch.writer.fused_report().rules, usize::from(LAST));
    let before = switch.count(&rules[3]).packets;
    let taken = switch.writer.fused_report().packets;
    assert_eq!(switch.send(&[80; 32]).sent.len(), 32);
    assert_eq!(switch.writer.fused_report().packets, taken + 32);
    assert_eq!(switch.count(&rules[3]).packets, before + 32);
    assert!(!switch.writer.shape_tables(), "nothing has changed");
}

/// Paths end before a table in which a packet must be looked up; when that has become simple they
/// go through it.
#[test]
fn ways_grow_when_tables_that_they_ended_before_have_changed() {
    let mut switch = Switch::new();
    switch.add(
        0,
        &[(Field::InPort, 1)],
        10,
        vec![set(Field::Reg0, 7), resubmit(1)],
    );
    switch.add(1, &[(Field::Reg0, 7)], 10, vec![resubmit(2)]);
    switch.add(2, &[], 1, vec![Op::Output(2)]);
    // Ports without common bits would take too many comparisons.
    let ports: Vec<Added> = (0..16_u32)
        .map(|bit| {
            switch.add(
                2,
                &[(Field::UdpDst, 1 << (bit % 16))],
                10 + bit,
                vec![Op::Output(3)],
            )
        })
        .collect();
    switch.publish();
    switch.writer.shape_now();
    switch.publish();
    assert_eq!(switch.ports(&[80, 64]), [2, 3]);
    let before = switch.writer.fused_report();
    assert!(before.packets > 0, "the way leads up to table 2");
    assert_eq!(switch.program.counters.read(ports[6].counter).packets, 1);
    for added in &ports {
        switch.writer.remove(added.table, added.rule);
    }
    switch.publish();
    switch.writer.housekeep(usize::MAX);
    switch.publish();
    // The paths still hold, because what they pass is unchanged.
    assert_eq!(switch.ports(&[80, 64]), [2, 2]);
    let looked_up = |switch: &Switch| switch.writer.fused_report().packets;
    assert!(looked_up(&switch) > before.packets);
    switch.writer.shape_now();
    switch.publish();
    switch.program.domain.collect();
    assert_eq!(looked_up(&switch), 0, "new ways have come in their place");
    assert_eq!(switch.ports(&[80, 64]), [2, 2]);
    // The rule of the first table, and that of the second.
    let longer = switch.writer.fused_report();
    assert_eq!((longer.rules, longer.packets), (2, 2));
    // Paths for which nothing has changed are not made again.
    switch.writer.shape_now();
    assert_eq!(looked_up(&switch), 2);
}
