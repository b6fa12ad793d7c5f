//! Lookups behind patterns against a list of rules with their epochs, while rules come and go.

use super::*;
use crate::Program;
use crate::ops::{Op, OpList};
use crate::rule::RuleSpec;
use crate::table::{BridgeWriter, Found, Members, RuleRef, SetOfLanes};
use packet::build::Builder;
use packet::{Field, HeapFrame, Layers, Match};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Insert(Kind, u32),
    Remove(usize),
    Publish,
    Housekeep,
    /// A burst: source, destination port, whether it is TCP.
    Look(Vec<(u32, u16, bool)>),
}

/// What a rule looks at.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Anything,
    /// A tuple of one match.
    Udp,
    UdpPort(u16),
    TcpFrom(u32),
    From(u32),
    InPort(u32),
}

impl Kind {
    fn matching(self) -> Match {
        let mut matching = Match::any();
        if !matches!(self, Kind::Anything | Kind::InPort(_)) {
            matching.set_exact(Field::EthType, 0x0800);
        }
        match self {
            Kind::Udp | Kind::UdpPort(_) => matching.set_exact(Field::IpProto, 17),
            Kind::TcpFrom(_) => matching.set_exact(Field::IpProto, 6),
            _ => {}
        }
        match self {
            Kind::Anything | Kind::Udp => {}
            Kind::UdpPort(port) => matching.set_exact(Field::UdpDst, port.into()),
            Kind::TcpFrom(address) | Kind::From(address) => {
                matching.set_exact(Field::Ipv4Src, address.into());
            }
            Kind::InPort(port) => matching.set_exact(Field::InPort, port.into()),
        }
        matching
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        1 => Just(Kind::Anything),
        1 => Just(Kind::Udp),
        2 => Just(Kind::UdpPort(1)),
        1 => (0..4_u16).prop_map(Kind::UdpPort),
        4 => (0..40_u32).prop_map(Kind::TcpFrom),
        1 => (0..6_u32).prop_map(Kind::From),
        1 => (1..3_u32).prop_map(Kind::InPort),
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

struct Twin {
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

/// Looks a burst up as a worker's way in does.
fn look_up<'g>(
    bridge: &Bridge,
    frames: &[HeapFrame],
    guard: &'g Guard<'_>,
) -> Vec<Option<&'g Rule>> {
    let mut found = vec![None; frames.len()];
    let (mut hot, mut first) = ([HotWords::ZERO; LOOKUP_MAX], [NO_PATTERN; LOOKUP_MAX]);
    let patterned = bridge.patterned(0, guard);
    let patterns = patterned.map_or(&[][..], |patterned| patterned.patterns);
    let read = packet::hot::read_burst(frames, 1, patterns, &mut hot, &mut first);
    assert_eq!(read.count, frames.len(), "all are of the common kind");
    let first = &first[..read.count];
    match patterned {
        None => {
            assert!(bridge.lookup_hot(0, &hot[..read.count], Reads::Hot, guard, &mut found, None))
        }
        Some(patterned) if patterned.is_list() => {
            (found.iter_mut().zip(first)).for_each(|(found, at)| *found = patterned.rule(*at));
        }
        Some(patterned) => {
            let mut told = Told::NOTHING;
            patterned.look_up(&hot[..read.count], first, &mut found, Some(&mut told));
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

/// Looks some packets up as sets, and holds that each is answered as `wanted` says, once.
fn look_up_sets(
    bridge: &Bridge,
    frames: &[HeapFrame],
    wanted: &[Option<&Rule>],
    guard: &Guard<'_>,
) {
    let (mut hot, mut first) = ([HotWords::ZERO; LOOKUP_MAX], [NO_PATTERN; LOOKUP_MAX]);
    packet::hot::read_burst(frames, 1, &[], &mut hot, &mut first);
    let all = SetOfLanes::run(0, frames.len());
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
        let mut twins: Vec<Twin> = Vec::new();
        // Enough for tuples, or a list.
        let first = (0..if many { 20 } else { 0 }).map(|number| Step::Insert(Kind::TcpFrom(100 + number), 3));
        for step in first.chain(steps) {
            match step {
                Step::Insert(kind, priority) => {
                    let matching = kind.matching();
                    for twin in twins.iter_mut().filter(|twin| twin.removed == Epoch::MAX && twin.matching == matching && twin.priority == priority) {
                        twin.removed = program.domain.next();
                        writer.remove(0, twin.rule);
                    }
                    let spec = RuleSpec {
                        matching: matching.clone(),
                        priority,
                        ops: Arc::new(OpList::new(vec![Op::Output(2)])),
                        counter: program.counters.allocate().unwrap(),
                        cookie: 0,
                    };
                    let rule = writer.insert(0, spec);
                    twins.push(Twin { rule, matching, priority, added: program.domain.next(), removed: Epoch::MAX });
                }
                Step::Remove(index) => {
                    let alive: Vec<_> = twins.iter_mut().filter(|twin| twin.removed == Epoch::MAX).collect();
                    let count = alive.len();
                    if let Some(twin) = alive.into_iter().nth(index % count.max(1)) {
                        twin.removed = program.domain.next();
                        writer.remove(0, twin.rule);
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
                        let best = twins.iter()
                            .filter(|twin| twin.added <= epoch && epoch < twin.removed && twin.matching.matches(&key))
                            .map(|twin| twin.priority).max();
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

/// Trees look at words that no rule looks at any more, until they are made anew.
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
        // Two fields, so that a trie is not for it.
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
    assert_eq!(writer.describe(0).template, crate::table::Template::Trees);
    writer.remove(0, deep);
    program.domain.publish();
    assert_eq!(writer.housekeep(usize::MAX), 1);
    program.domain.publish();
    assert_eq!(bridge.reads(0, &reader.begin()), Reads::Deep);
    writer.shape_now();
    program.domain.publish();
    assert_eq!(bridge.reads(0, &reader.begin()), Reads::Hot);
}
