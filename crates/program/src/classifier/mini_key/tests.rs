//! Lookups behind patterns, compared with a list of rules with their epochs, while rules come and
//! go.

use super::*;
use crate::Program;
use crate::actions::{Clause, Op, OpList};
use crate::burst::LOOKUP_MAX;
use crate::burst::{LaneSet, Members};
use crate::classifier::Classifier;
use crate::classifier::exact::Exact;
use crate::classifier::lanes::Found;
use crate::classifier::prefilter::Behind;
use crate::classifier::tuple_space::exact_of;
use crate::epoch::Epoch;
use crate::epoch::Guard;
use crate::epoch::Reader;
use crate::rule::Rule;
use crate::rule::RuleRef;
use crate::rule::RuleSpec;
use crate::rule::summary::Summaries;
use crate::table::Bridge;
use crate::table::BridgeWriter;
use packet::FlowKey;
use packet::build::Builder;
use packet::mini_key::{MiniKey, NO_PATTERN};
use packet::{Field, HeapFrame, Layers, Match};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

#[derive(Clone, Debug)]
enum Step {
    Insert(RuleMatch, u32),
    Remove(usize),
    Publish,
    Housekeep,
    /// A burst: source, destination port, whether it is TCP.
    Look(Vec<(u32, u16, bool)>),
}

/// What a rule matches.
#[derive(Clone, Copy, Debug)]
enum RuleMatch {
    Anything,
    /// A single match, so that its tuple has one value.
    Udp,
    UdpPort(u16),
    TcpFrom(u32),
    From(u32),
    InPort(u32),
}

impl RuleMatch {
    fn matching(self) -> Match {
        let mut matching = Match::any();
        if !matches!(self, RuleMatch::Anything | RuleMatch::InPort(_)) {
            matching.set_exact(Field::EthType, 0x0800);
        }
        match self {
            RuleMatch::Udp | RuleMatch::UdpPort(_) => matching.set_exact(Field::IpProto, 17),
            RuleMatch::TcpFrom(_) => matching.set_exact(Field::IpProto, 6),
            _ => {}
        }
        match self {
            RuleMatch::Anything | RuleMatch::Udp => {}
            RuleMatch::UdpPort(port) => matching.set_exact(Field::UdpDst, port.into()),
            RuleMatch::TcpFrom(address) | RuleMatch::From(address) => {
                matching.set_exact(Field::Ipv4Src, address.into());
            }
            RuleMatch::InPort(port) => matching.set_exact(Field::InPort, port.into()),
        }
        matching
    }
}

fn kinds() -> impl Strategy<Value = RuleMatch> {
    prop_oneof![
        1 => Just(RuleMatch::Anything),
        1 => Just(RuleMatch::Udp),
        2 => Just(RuleMatch::UdpPort(1)),
        1 => (0..4_u16).prop_map(RuleMatch::UdpPort),
        4 => (0..40_u32).prop_map(RuleMatch::TcpFrom),
        1 => (0..6_u32).prop_map(RuleMatch::From),
        1 => (1..3_u32).prop_map(RuleMatch::InPort),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (kinds(), 0_u32..6).prop_map(|(kind, priority)| Step::Insert(kind, priority)),
        3 => (0_usize..200).prop_map(Step::Remove),
        2 => Just(Step::Publish),
        1 => Just(Step::Housekeep),
        5 => prop::collection::vec((0_u32..6, 0_u16..3, any::<bool>()), 1..20).prop_map(Step::Look),
        2 => (0_u32..6, 0_u16..3, any::<bool>()).prop_map(|one| Step::Look(vec![one; 9])),
    ];
    prop::collection::vec(step, 1..120)
}

struct Entry {
    rule: RuleRef,
    matching: Match,
    priority: u32,
    added: Epoch,
    removed: Epoch,
}

fn frame((source, port, tcp): (u32, u16, bool)) -> HeapFrame {
    let builder = Builder::ethernet([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let builder = builder.ipv4(source, 9).payload(&[0; 32]);
    match tcp {
        true => builder.tcp(5, port, 0x10).frame(),
        false => builder.udp(5, port).frame(),
    }
}

/// Looks a burst up as `exec::first_table` does.
fn look_up<'g>(
    bridge: &Bridge,
    frames: &[HeapFrame],
    guard: &'g Guard<'_>,
) -> Vec<Option<&'g Rule>> {
    let mut found = vec![None; frames.len()];
    let (mut hot, mut first) = ([MiniKey::ZERO; LOOKUP_MAX], [NO_PATTERN; LOOKUP_MAX]);
    let patterned = bridge.patterned(0, guard);
    let patterns = patterned.map_or(&[][..], |patterned| patterned.patterns);
    let read = packet::mini_key::read_burst(frames, 1, patterns, &mut hot, &mut first);
    assert_eq!(read.count, frames.len(), "all are of the common kind");
    let first = &first[..read.count];
    match patterned {
        None => {
            assert!(bridge.lookup_mini_keys(
                0,
                &hot[..read.count],
                Reads::MiniKey,
                guard,
                &mut found,
                None
            ))
        }
        Some(patterned) if patterned.is_list() => {
            (found.iter_mut().zip(first)).for_each(|(found, at)| *found = patterned.rule(*at));
        }
        Some(patterned) => {
            let mut summaries = Summaries::NOTHING;
            patterned.look_up(&hot[..read.count], first, &mut found, Some(&mut summaries));
            for (at, rule) in first.iter().zip(&found) {
                let address = |rule: &Rule| std::ptr::from_ref(rule);
                if let Some(decided) = patterned.decided(*at) {
                    assert_eq!(decided.map(address), rule.map(address));
                }
            }
        }
    }
    found
}

/// Looks packets up as sets, and checks that each is answered once, as in `wanted`.
fn look_up_sets(
    bridge: &Bridge,
    frames: &[HeapFrame],
    wanted: &[Option<&Rule>],
    guard: &Guard<'_>,
) {
    let (mut hot, mut first) = ([MiniKey::ZERO; LOOKUP_MAX], [NO_PATTERN; LOOKUP_MAX]);
    packet::mini_key::read_burst(frames, 1, &[], &mut hot, &mut first);
    let all = LaneSet::run(0, frames.len());
    for set in [
        all,
        all.those(|lane| !(lane + frames.len()).is_multiple_of(4)),
    ] {
        let mut found = Found::new();
        assert!(bridge.lookup_lanes(0, set, &hot, guard, &mut found));
        let mut rest = set;
        for (rule, met) in found.list().iter().copied() {
            assert!(!met.is_empty() && rest.minus(met).union(met) == rest);
            rest = rest.minus(met);
            met.each(|lane| {
                let address = |rule: &Rule| std::ptr::from_ref(rule);
                assert_eq!(rule.map(address), wanted[lane].map(address));
            });
        }
        assert!(rest.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn lookups_behind_patterns_find_what_a_list_finds(many in any::<bool>(), steps in steps()) {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        let mut writer = BridgeWriter::new(Arc::clone(&bridge));
        let mut reader = program.domain.reader().unwrap();
        let mut reference: Vec<Entry> = Vec::new();
        // Enough rules for tuples; otherwise a list.
        let first = (0..if many { 20 } else { 0 }).map(|number| Step::Insert(RuleMatch::TcpFrom(100 + number), 3));
        for step in first.chain(steps) {
            match step {
                Step::Insert(kind, priority) => {
                    let matching = kind.matching();
                    for entry in reference.iter_mut().filter(|entry| entry.removed == Epoch::MAX && entry.matching == matching && entry.priority == priority) {
                        entry.removed = program.domain.next();
                        writer.remove(0, entry.rule);
                    }
                    let spec = RuleSpec {
                        matching: matching.clone(),
                        priority,
                        ops: Arc::new(OpList::new(vec![Op::Output(2)])),
                        counter: program.counters.allocate().unwrap(),
                        cookie: 0,
                    };
                    let rule = writer.insert(0, spec);
                    reference.push(Entry { rule, matching, priority, added: program.domain.next(), removed: Epoch::MAX });
                }
                Step::Remove(index) => {
                    let alive: Vec<_> = reference.iter_mut().filter(|entry| entry.removed == Epoch::MAX).collect();
                    let count = alive.len();
                    if let Some(entry) = alive.into_iter().nth(index % count.max(1)) {
                        entry.removed = program.domain.next();
                        writer.remove(0, entry.rule);
                    }
                }
                Step::Publish => {
                    writer.commit();
                    program.domain.publish();
                }
                Step::Housekeep => {
                    writer.housekeep(usize::MAX);
                    program.domain.collect();
                }
                Step::Look(packets) => {
                    let mut frames: Vec<HeapFrame> = packets.into_iter().map(frame).collect();
                    let guard = reader.begin();
                    let epoch = guard.epoch();
                    let found = look_up(&bridge, &frames, &guard);
                    if !frames.is_empty() {
                        look_up_sets(&bridge, &frames, &found, &guard);
                    }
                    for (frame, found) in frames.iter_mut().zip(found) {
                        let (mut key, mut layers) = (FlowKey::ZERO, Layers::default());
                        packet::parse::parse_frame_into(frame, 1, bridge.needed(), &mut key, &mut layers);
                        let best = reference.iter()
                            .filter(|entry| entry.added <= epoch && epoch < entry.removed && entry.matching.matches(&key))
                            .map(|entry| entry.priority).max();
                        prop_assert_eq!(found.map(|rule| rule.spec.priority), best);
                        if let Some(rule) = found {
                            prop_assert!(rule.spec.matching.matches(&key) && rule.holds_in(epoch));
                        }
                    }
                }
            }
        }
    }
}

/// While rules of a list are replaced, with others of the same priority between them, bursts are
/// always compared with patterns, and meet the version of their epoch.
#[test]
fn a_list_whose_rules_are_replaced_keeps_its_patterns() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let mut reader = program.domain.reader().unwrap();
    let kinds = [
        RuleMatch::UdpPort(1),
        RuleMatch::UdpPort(2),
        RuleMatch::TcpFrom(3),
    ];
    let insert = |writer: &mut BridgeWriter, kind: RuleMatch, cookie| {
        let spec = RuleSpec {
            matching: kind.matching(),
            priority: 1,
            ops: Arc::new(OpList::new(vec![Op::Output(2)])),
            counter: program.counters.allocate().unwrap(),
            cookie,
        };
        writer.insert(0, spec)
    };
    let mut rules = kinds.map(|kind| insert(&mut writer, kind, 0));
    writer.commit();
    program.domain.publish();
    let frames = [(0, 1, false), (0, 2, false), (3, 9, true), (0, 9, false)].map(frame);
    for version in 1..50 {
        let cookies = |reader: &mut Reader| {
            let guard = reader.begin();
            let patterned = bridge.patterned(0, &guard).expect("a list with patterns");
            assert!(patterned.is_list() && patterned.prefilter.is_some());
            let found = look_up(&bridge, &frames, &guard);
            let cookie = |rule: Option<&Rule>| rule.map(|rule| rule.spec.cookie);
            found.into_iter().map(cookie).collect::<Vec<_>>()
        };
        for (number, kind) in kinds.into_iter().enumerate() {
            let before = [0, 1, 2].map(|other| Some(version - u64::from(other >= number)));
            writer.remove(0, rules[number]);
            rules[number] = insert(&mut writer, kind, version);
            writer.commit();
            assert_eq!(cookies(&mut reader)[..3], before, "not published yet");
            program.domain.publish();
            let after = [0, 1, 2].map(|other| Some(version - u64::from(other > number)));
            assert_eq!(cookies(&mut reader)[..3], after);
            assert_eq!(cookies(&mut reader)[3], None);
            program.domain.collect();
        }
    }
}

/// Trees read words that no rule looks at any more, until they are rebuilt.
#[test]
fn trees_read_what_rules_that_have_gone_looked_at() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut writer = BridgeWriter::new(Arc::clone(&bridge));
    let mut insert = |matching: Match, priority| {
        let spec = RuleSpec {
            matching,
            priority,
            ops: Arc::new(OpList::new(vec![Op::Output(2)])),
            counter: program.counters.allocate().unwrap(),
            cookie: 0,
        };
        writer.insert(0, spec)
    };
    for number in 0..600_u32 {
        let mut matching = Match::any();
        let length = 20 + number % 12;
        let mask = (u32::MAX << (32 - length)).to_be_bytes();
        let address = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        matching.set_bytes(at::IPV4_DST, &address, &mask);
        // Two fields, so that a trie does not fit.
        matching.set_bytes(at::IPV4_SRC, &address[1..3], &[u8::MAX; 2]);
        insert(matching, length);
    }
    let mut matching = Match::any();
    matching.set_exact(Field::Reg0, 1);
    let deep = insert(matching, 1);
    let mut reader = program.domain.reader().unwrap();
    writer.commit();
    program.domain.publish();
    writer.shape_now();
    assert_eq!(
        writer.describe(0).template,
        crate::classifier::describe::Template::Trees
    );
    writer.remove(0, deep);
    program.domain.publish();
    assert_eq!(writer.housekeep(usize::MAX), 1);
    program.domain.publish();
    assert_eq!(bridge.reads(0, &reader.begin()), Reads::Lane);
    writer.shape_now();
    program.domain.publish();
    assert_eq!(bridge.reads(0, &reader.begin()), Reads::MiniKey);
}

/// A table of rules for ingress ports, which has an exact table if there are many.
struct Ports {
    program: Arc<Program>,
    writer: BridgeWriter,
}

impl Ports {
    /// Creates published rules of precedence 10 for ports from 0 on.
    fn new(count: u32) -> Ports {
        let program = Arc::new(Program::new());
        let writer = BridgeWriter::new(Bridge::new(Arc::clone(&program)));
        let mut ports = Ports { program, writer };
        for port in 0..count {
            ports.add(RuleMatch::InPort(port).matching(), 10);
        }
        ports
    }

    fn add(&mut self, matching: Match, priority: u32) -> RuleRef {
        self.add_op(matching, priority, Op::Output(2))
    }

    fn add_op(&mut self, matching: Match, priority: u32, op: Op) -> RuleRef {
        let spec = RuleSpec {
            matching,
            priority,
            ops: Arc::new(OpList::new(vec![op])),
            counter: self.program.counters.allocate().unwrap(),
            cookie: 0,
        };
        self.writer.insert(0, spec)
    }

    /// Publishes changes.
    fn publish(&mut self) {
        self.writer.commit();
        self.program.domain.publish();
    }

    /// Publishes changes, unlinks rules that have gone, and gives the table the lookup that fits
    /// it.
    fn settle(&mut self) {
        self.publish();
        self.writer.housekeep(usize::MAX);
        self.program.domain.collect();
        self.writer.shape_now();
    }

    /// Returns whether the writer has an exact table.
    fn are_told(&self) -> bool {
        self.writer.describe(0).why.contains("told by value")
    }

    /// Returns the precedence of the rule that packets of this port and Ethernet type meet now, and
    /// whether the exact table was used.
    fn look_up(&self, port: u32, kind: u16) -> (Option<u32>, bool) {
        let mut reader = self.program.domain.reader().unwrap();
        look_up_told(self.writer.bridge(), &[packet(port, kind)], &reader.begin())
    }
}

fn packet(port: u32, kind: u16) -> FlowKey {
    let mut key = FlowKey::ZERO;
    key.set_u32(at::IN_PORT, port);
    key.set_u16(at::ETH_TYPE, kind);
    key
}

fn of_kind(kind: u16) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::EthType, kind.into());
    matching
}

/// Looks packets up with summaries, and checks that tuples alone give the same. Returns the first
/// one's precedence, and whether the exact table was used.
fn look_up_told(bridge: &Bridge, keys: &[FlowKey], guard: &Guard<'_>) -> (Option<u32>, bool) {
    let (mut found, mut wanted) = (vec![None; keys.len()], vec![None; keys.len()]);
    let mut summaries = Summaries::NOTHING;
    if bridge.lookup_mini_keys(
        0,
        keys,
        Reads::Deep,
        guard,
        &mut found,
        Some(&mut summaries),
    ) {
        bridge.lookup_burst(0, keys.len(), |index| &keys[index], guard, &mut wanted);
        for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            let address = |rule: &Rule| std::ptr::from_ref(rule);
            assert_eq!(found.map(address), wanted.map(address));
            if let Some(rule) = found {
                assert!(rule.holds_in(guard.epoch()) && rule.spec.matching.matches(&keys[index]));
                let matched_rule = summaries.of(index, rule);
                assert_eq!(matched_rule.counter(), rule.spec.counter);
                assert_eq!(matched_rule.only_output(), rule.only_output());
            }
        }
    }
    let tuples = match bridge.classifier(0, guard) {
        Some(Classifier::Tuples(tuples)) => &tuples.0[..],
        _ => &[],
    };
    let asked = exact_of(tuples, guard.epoch()).is_some();
    (found[0].map(|rule| rule.spec.priority), asked)
}

/// A rule that another tuple's rule may beat is left to the tuples; the others are in the exact
/// table.
#[test]
fn rules_below_the_next_tuple_are_not_told_by_value() {
    let mut ports = Ports::new(100);
    ports.add(RuleMatch::InPort(200).matching(), 1);
    ports.add(of_kind(7), 5);
    ports.add(of_kind(8), 5);
    ports.settle();
    assert_eq!(ports.look_up(200, 7), (Some(5), true));
    assert_eq!(ports.look_up(200, 9), (Some(1), true));
    assert_eq!(ports.look_up(50, 7), (Some(10), true));
    assert_eq!(ports.look_up(300, 9), (None, true));
    // Another rule comes that beats those in the exact table.
    let above = ports.add(of_kind(9), 20);
    ports.publish();
    assert_eq!(ports.look_up(50, 9), (Some(20), false));
    ports.settle();
    assert!(!ports.are_told());
    assert_eq!(ports.look_up(50, 9), (Some(20), false));
    ports.writer.remove(0, above);
    ports.settle();
    assert_eq!(ports.look_up(50, 9), (Some(10), true));
    // Most are below the next tuple.
    ports.add(of_kind(9), 10);
    for port in 1000..1200 {
        ports.add(RuleMatch::InPort(port).matching(), 7);
    }
    ports.settle();
    assert!(!ports.are_told());
    assert_eq!(ports.look_up(1000, 9), (Some(10), false));
}

/// Of two tuples of the same precedence the large one comes first, whichever was there first.
#[test]
fn rules_beside_a_tuple_of_the_same_precedence_are_told_by_value() {
    let mut ports = Ports::new(0);
    ports.add(of_kind(7), 10);
    ports.add(of_kind(8), 10);
    for port in 0..100 {
        ports.add(RuleMatch::InPort(port).matching(), 10);
    }
    ports.settle();
    assert!(ports.are_told());
    assert!(ports.look_up(50, 9).1);
    assert_eq!(ports.look_up(200, 7), (Some(10), true));
}

/// Where patterns tell which packets meet a rule above, the others begin with the exact table.
#[test]
fn rules_below_one_match_are_told_by_value() {
    let mut ports = Ports::new(100);
    ports.add(of_kind(7), 20);
    ports.settle();
    assert!(ports.are_told());
    assert_eq!(ports.look_up(50, 7).0, Some(20));
    assert_eq!(ports.look_up(50, 8).0, Some(10));
    let mut reader = ports.program.domain.reader().unwrap();
    let guard = reader.begin();
    let patterned = ports.writer.bridge().patterned(0, &guard).unwrap();
    let Behind::Tuples(tuples, epoch) = patterned.behind else {
        panic!("not a list");
    };
    assert!(patterned.decided(0).is_some() && exact_of(&tuples[1..], epoch).is_some());
}

#[test]
fn rules_are_not_told_by_value_any_more_where_they_are_few_or_of_many_masks() {
    let mut ports = Ports::new(60);
    let more: Vec<_> = (60..70)
        .map(|port| ports.add(RuleMatch::InPort(port).matching(), 10))
        .collect();
    ports.settle();
    assert!(ports.are_told());
    for rule in more {
        ports.writer.remove(0, rule);
    }
    ports.settle();
    assert!(!ports.are_told());
    assert_eq!(ports.look_up(5, 7), (Some(10), false));

    let mut ports = Ports::new(100);
    ports.settle();
    assert!(ports.are_told());
    ports.add(of_kind(7), 3);
    ports.settle();
    assert!(ports.are_told());
    ports.add(Match::any(), 1);
    ports.settle();
    assert!(!ports.are_told());
    assert_eq!(ports.look_up(200, 7), (Some(3), false));
}

/// Lookups with soft rules do not use the exact table.
#[test]
fn rules_are_not_told_by_value_beside_conditions() {
    let mut ports = Ports::new(100);
    ports.settle();
    assert!(ports.are_told());
    let (id, of) = (1, 2);
    let clause = Op::Conjunction(vec![Clause { id, index: 0, of }].into());
    let part = ports.add_op(of_kind(7), 30, clause);
    ports.settle();
    assert!(!ports.are_told());
    ports.writer.remove(0, part);
    ports.settle();
    ports.settle();
    assert!(ports.are_told());
}

/// An exact table holds from the epoch on in which it was built.
#[test]
fn a_reader_of_an_older_epoch_asks_the_tuple() {
    let mut ports = Ports::new(100);
    ports.publish();
    let mut reader = ports.program.domain.reader().unwrap();
    let old = reader.begin();
    ports.add(RuleMatch::InPort(5).matching(), 20);
    ports.settle();
    assert_eq!(ports.look_up(5, 7), (Some(20), true));
    let bridge = ports.writer.bridge();
    assert_eq!(
        look_up_told(bridge, &[packet(5, 7)], &old),
        (Some(10), false)
    );
}

/// Rules come, go and are replaced while another thread looks packets up: in each epoch it gets the
/// same as from tuples alone.
#[test]
fn rules_told_by_value_change_beside_a_reader() {
    const PORTS: u32 = 100;
    let mut ports = Ports::new(PORTS);
    ports.settle();
    let (program, bridge) = (
        Arc::clone(&ports.program),
        Arc::clone(ports.writer.bridge()),
    );
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut reader = program.domain.reader().unwrap();
            let mut last = false;
            while !last {
                last = done.load(Ordering::Acquire);
                let guard = reader.begin();
                for first in [0, 50] {
                    let keys: Vec<_> = (first..first + 50).map(|port| packet(port, 7)).collect();
                    let (best, summaries) = look_up_told(&bridge, &keys, &guard);
                    assert!(best.is_some());
                    assert!(summaries || begun.load(Ordering::Relaxed));
                }
                begun.store(true, Ordering::Relaxed);
            }
        });
        while !begun.load(Ordering::Relaxed) && !reading.is_finished() {
            std::thread::yield_now();
        }
        let mut above = Vec::new();
        for round in 0..600_u32 {
            let matching = RuleMatch::InPort(round * 7 % PORTS).matching();
            above.push(ports.add(matching, 11 + round % 3));
            if above.len() > 20 {
                let gone = above.swap_remove(round as usize % above.len());
                ports.writer.remove(0, gone);
            }
            match round % 8 {
                7 => ports.settle(),
                _ => ports.publish(),
            }
        }
        done.store(true, Ordering::Release);
        reading.join().unwrap();
    });
}

impl Ports {
    /// Returns the exact table that readers use now.
    fn summaries(&self) -> Option<Arc<Exact>> {
        let mut reader = self.program.domain.reader().unwrap();
        let guard = reader.begin();
        match self.writer.bridge().classifier(0, &guard) {
            Some(Classifier::Tuples(tuples)) => tuples.0[0].exact.clone(),
            _ => None,
        }
    }
}

/// An exact table still names rules that have gone and been freed, until it is rebuilt.
#[test]
fn rules_that_have_been_freed_are_not_told_by_value() {
    // It is rebuilt after a pause, which this test's steps may exceed on a busy machine.
    let held = (0..100).any(|_| freed_rules_are_not_told_by_value());
    assert!(held, "made anew each time");
}

/// Returns false if it was rebuilt meanwhile.
fn freed_rules_are_not_told_by_value() -> bool {
    let mut ports = Ports::new(0);
    let rules: Vec<RuleRef> = (0..200)
        .map(|port| ports.add(RuleMatch::InPort(port).matching(), 10))
        .collect();
    ports.publish();
    ports.writer.housekeep(usize::MAX);
    let summaries = ports.summaries().expect("told by value");
    for port in [7, 50, 199] {
        ports.writer.remove(0, rules[port]);
    }
    ports.publish();
    assert_eq!(ports.writer.housekeep(usize::MAX), 3);
    ports.publish();
    assert_eq!(ports.program.domain.collect(), 0, "they are freed");
    // Others reuse their memory, and one of them a value.
    for port in 1000..1008 {
        ports.add(RuleMatch::InPort(port).matching(), 10);
    }
    ports.add(RuleMatch::InPort(50).matching(), 12);
    ports.publish();
    for (port, priority) in [
        (7, None),
        (50, Some(12)),
        (199, None),
        (8, Some(10)),
        (1003, Some(10)),
    ] {
        assert_eq!(ports.look_up(port, 9), (priority, true), "port {port}");
    }
    let now = ports.summaries();
    now.is_some_and(|now| Arc::ptr_eq(&summaries, &now))
}
