//! Tests of the steering flow table.

use super::*;
use crate::cores::{Sample, VmId};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn spec(value: u8, target: Target) -> EntrySpec<1> {
    EntrySpec {
        matching: Match::new([0xff], [value]),
        precedence: 1,
        target,
        vm: Some(VmId(u16::from(value))),
        priority: false,
        cookie: u64::from(value),
        idle_timeout_ns: None,
        hard_timeout_ns: None,
        notify: false,
    }
}

const ENTRY: Target = Target::Choose(Scope::Entry);
const FLOW: Target = Target::Choose(Scope::Flow);

struct Host {
    table: FlowTable<1>,
    cores: CoreTable,
    settings: Settings,
}

impl Host {
    fn new(limits: Limits) -> Host {
        let mut cores = CoreTable::new(4, 0).unwrap();
        cores.vm_started(VmId(1), CoreId(0)).unwrap();
        cores.vm_started(VmId(2), CoreId(1)).unwrap();
        Host {
            table: FlowTable::new(limits),
            cores,
            settings: Settings::default(),
        }
    }

    fn add(&mut self, spec: EntrySpec<1>) -> Result<EntryId, TableError> {
        self.table.add(spec, &mut self.cores, 0)
    }

    fn steer(&mut self, key: u8, flow: u64, now_ns: u64) -> Steered {
        let packet = Packet {
            key: &[key],
            flow,
            current: CoreId(0),
            length: 100,
        };
        let cores = &mut self.cores;
        self.table.steer(packet, cores, &self.settings, now_ns)
    }

    fn core(&mut self, key: u8, flow: u64, now_ns: u64) -> Option<u16> {
        self.steer(key, flow, now_ns).core().map(|core| core.0)
    }

    fn expire(&mut self, now_ns: u64) -> Vec<Removed<1>> {
        self.table.expire(&mut self.cores, &self.settings, now_ns)
    }
}

#[test]
fn an_entry_has_one_core_and_flows_have_their_own() {
    let mut host = Host::new(Limits::default());
    host.add(spec(1, ENTRY)).unwrap();
    host.add(spec(2, FLOW)).unwrap();
    host.add(spec(3, Target::Core(CoreId(1)))).unwrap();
    assert_eq!(host.core(1, 10, 0), Some(2));
    assert_eq!(host.core(1, 11, 0), Some(2));
    // Core 2 has the expected load of the first flow; flows of the second entry alternate.
    assert_eq!(host.core(2, 10, 0), Some(3));
    assert_eq!(host.core(2, 11, 0), Some(2));
    assert_eq!(host.core(2, 10, 0), Some(3));
    assert_eq!(host.core(3, 10, 0), Some(1));
    assert_eq!(host.steer(4, 10, 0), Steered::Miss);
    let counters = host.table.counters();
    assert_eq!((counters.lookups, counters.matches), (7, 6));
    assert_eq!(counters.chosen, 3);
}

#[test]
fn a_choice_ages_apart_from_its_entry() {
    let mut host = Host::new(Limits::default());
    host.add(EntrySpec {
        idle_timeout_ns: Some(10 * SECOND),
        priority: true,
        ..spec(1, FLOW)
    })
    .unwrap();
    assert_eq!(host.core(1, 7, 0), Some(2));
    assert!(host.cores.is_held(CoreId(2)));
    // Core 2 becomes busy; the flow stays while it keeps coming.
    let busy = Sample {
        load: Load::percent(60),
        yielding: Load::ZERO,
    };
    let idle = Sample::default();
    host.cores
        .sample(&[idle, idle, busy, idle], SECOND / 2)
        .unwrap();
    assert_eq!(host.core(1, 7, SECOND - 1), Some(2));
    // After a second of silence it is placed anew, though the entry still exists.
    assert_eq!(host.core(1, 7, 2 * SECOND - 1), Some(3));
    assert!(!host.cores.is_held(CoreId(2)));
    // A sweep forgets it, too, and releases its core.
    assert!(host.expire(3 * SECOND).is_empty());
    assert_eq!(host.table.choices_len(), 0);
    assert_eq!(host.cores.held_cores(), 0);
    assert_eq!(host.table.len(), 1);
}

#[test]
fn entries_end_with_a_reason() {
    let mut host = Host::new(Limits::default());
    let timed = |value, idle: Option<u64>, hard: Option<u64>| EntrySpec {
        idle_timeout_ns: idle.map(|seconds| seconds * SECOND),
        hard_timeout_ns: hard.map(|seconds| seconds * SECOND),
        notify: true,
        ..spec(value, ENTRY)
    };
    host.add(timed(1, Some(2), None)).unwrap();
    host.add(timed(2, Some(4), Some(3))).unwrap();
    host.add(timed(3, Some(1), Some(9))).unwrap();
    host.steer(1, 0, SECOND);
    host.steer(2, 0, 2 * SECOND);
    assert_eq!(host.expire(SECOND - 1), []);
    let removed = host.expire(3 * SECOND);
    let told: Vec<_> = removed.iter().map(|r| (r.spec.cookie, r.reason)).collect();
    let idle = Reason::IdleTimeout;
    assert_eq!(told, [(1, idle), (2, Reason::HardTimeout), (3, idle)]);
    assert_eq!((removed[1].packets, removed[1].bytes), (1, 100));
    assert_eq!(removed[1].lived_ns, 3 * SECOND);
    assert!(host.table.is_empty());
    // Choices of removed entries are not listed, and the sweep frees them.
    host.expire(3 * SECOND);
    assert_eq!(host.table.choices().count(), 0);
    assert_eq!(host.table.choices_len(), 0);
}

#[test]
fn deletes_are_strict_or_by_what_lies_within() {
    let mut host = Host::new(Limits::default());
    for value in [0x10, 0x11, 0x20] {
        host.add(spec(value, ENTRY)).unwrap();
    }
    let exact = Match::new([0xff], [0x20]);
    assert!(host.table.delete_strict(&exact, 2, 5).is_none());
    let removed = host.table.delete_strict(&exact, 1, 5).unwrap();
    assert_eq!((removed.reason, removed.lived_ns), (Reason::Delete, 5));
    let removed = host.table.delete(&Match::new([0xf0], [0x10]), 5);
    assert_eq!(removed.len(), 2);
    assert!(host.table.is_empty());
}

#[test]
fn full_is_an_error_and_changes_nothing() {
    let mut host = Host::new(Limits {
        entries: 40,
        choices: 1,
    });
    let masks: Vec<EntrySpec<1>> = (0..=MASKS_MAX as u8)
        .map(|mask| EntrySpec {
            matching: Match::new([mask], [0]),
            ..spec(0, FLOW)
        })
        .collect();
    for entry in &masks[..MASKS_MAX] {
        host.add(*entry).unwrap();
    }
    assert_eq!(host.add(masks[MASKS_MAX]), Err(TableError::MasksFull));
    // A replacement and an entry of an existing mask still fit.
    host.add(masks[0]).unwrap();
    for precedence in 2..10 {
        let entry = EntrySpec {
            precedence,
            ..masks[0]
        };
        host.add(entry).unwrap();
    }
    let entry = EntrySpec {
        precedence: 99,
        ..masks[0]
    };
    assert_eq!(host.add(entry), Err(TableError::EntriesFull(40)));
    assert_eq!(host.table.len(), 40);
    // One choice fits; the second flow stays, and is counted.
    assert!(host.core(0, 1, 0).is_some());
    assert_eq!(host.steer(0, 2, 0), Steered::NoRoom);
    assert_eq!(host.table.counters().no_room, 1);
    let nowhere = spec(0, Target::Core(CoreId(4)));
    let message = host.add(nowhere).unwrap_err().to_string();
    assert_eq!(message, "core 4 is not one of the 4 cores");
}

#[test]
fn replacing_and_modifying_keep_flows_on_their_cores() {
    let mut host = Host::new(Limits::default());
    let id = host.add(spec(1, FLOW)).unwrap();
    assert_eq!(host.core(1, 1, 0), Some(2));
    assert_eq!(host.core(1, 2, 0), Some(3));
    assert_eq!(host.add(spec(1, FLOW)), Ok(id));
    let cores = &mut host.cores;
    host.table.modify(id, |s| s.priority = true, cores).unwrap();
    assert_eq!(host.cores.held_cores(), 2);
    assert_eq!(host.core(1, 2, 1), Some(3));
    let cores = &mut host.cores;
    let modify = |spec: &mut EntrySpec<1>| {
        spec.priority = false;
        spec.target = Target::Core(CoreId(0));
    };
    host.table.modify(id, modify, cores).unwrap();
    assert_eq!(host.cores.held_cores(), 0);
    assert_eq!(host.table.choices_len(), 0);
    assert_eq!(host.core(1, 2, 1), Some(0));
}

#[test]
fn a_heavy_flow_is_set_apart_and_comes_back() {
    let mut host = Host::new(Limits::default());
    let id = host.add(spec(1, ENTRY)).unwrap();
    let apart = |host: &mut Host, now_ns| {
        let load = Load::percent(50);
        host.table.set_apart(id, 5, load, &mut host.cores, now_ns)
    };
    assert_eq!(apart(&mut host, 0), Err(TableError::NoEntry));
    assert_eq!(host.core(1, 5, 0), Some(2));
    let heavy = apart(&mut host, 0).unwrap();
    assert_eq!(apart(&mut host, 0), Ok(heavy));
    let cores = &mut host.cores;
    let moved = |table: &mut FlowTable<1>, cores: &mut CoreTable| {
        table.move_choice(heavy, CoreId(3), Basis::LeastLoad, cores, 1)
    };
    assert!(moved(&mut host.table, cores));
    assert!(!moved(&mut host.table, cores));
    assert_eq!(host.core(1, 5, 2), Some(3));
    assert_eq!(host.core(1, 6, 2), Some(2));
    // The neighbours keep coming, the heavy flow pauses.
    assert_eq!(host.core(1, 6, SECOND + 1), Some(2));
    assert_eq!(host.core(1, 5, SECOND + 2), Some(2));
    assert_eq!(host.table.choices_len(), 1);
    host.add(spec(2, FLOW)).unwrap();
    let other = host.table.lookup(&[2]).unwrap();
    let refused = host
        .table
        .set_apart(other, 5, Load::ZERO, &mut host.cores, 0);
    assert_eq!(refused, Err(TableError::NotPerEntry));
}

#[test]
fn expected_load_follows_what_flows_of_the_entry_cost() {
    let mut host = Host::new(Limits::default());
    host.add(spec(1, FLOW)).unwrap();
    let Steered::Chosen { choice, .. } = host.steer(1, 0, 0) else {
        panic!("no choice");
    };
    host.table.measured(choice, Load::percent(30), 1);
    host.steer(1, 1, 2);
    assert_eq!(host.cores.load(CoreId(3)), Load::percent(30));
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8, u8, u16),
    Delete(u8, u8),
    Look(u8),
}

fn step() -> impl Strategy<Value = Step> {
    // Few bits, so that masks, values and precedences collide.
    let mask = prop::sample::select(vec![0, 1, 2, 3, 6, 7]);
    prop_oneof![
        (mask.clone(), 0..8_u8, 0..3_u16).prop_map(|(m, v, p)| Step::Add(m, v, p)),
        (mask, 0..8_u8).prop_map(|(m, v)| Step::Delete(m, v)),
        (0..8_u8).prop_map(Step::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_lookup_finds_what_a_list_finds(steps in prop::collection::vec(step(), 1..60)) {
        let mut host = Host::new(Limits::default());
        let mut list: Vec<(EntryId, EntrySpec<1>)> = Vec::new();
        for step in steps {
            match step {
                Step::Add(mask, value, precedence) => {
                    let matching = Match::new([mask], [value]);
                    let entry = EntrySpec { matching, precedence, ..spec(0, FLOW) };
                    let id = host.add(entry).unwrap();
                    list.retain(|(other, _)| *other != id);
                    let same = |(_, other): &(EntryId, EntrySpec<1>)| {
                        other.matching == matching && other.precedence == precedence
                    };
                    prop_assert!(!list.iter().any(same));
                    list.push((id, entry));
                    list.sort_by_key(|(id, _)| *id);
                }
                Step::Delete(mask, value) => {
                    let outer = Match::new([mask], [value]);
                    // By definition: each key that matches the one matches the other.
                    let within = |entry: &EntrySpec<1>| {
                        let mut keys = (0..=255).filter(|key| entry.matching.matches(&[*key]));
                        keys.all(|key| outer.matches(&[key]))
                    };
                    let before = list.len();
                    list.retain(|(_, entry)| !within(entry));
                    prop_assert_eq!(host.table.delete(&outer, 0).len(), before - list.len());
                }
                Step::Look(key) => {
                    let mut best: Option<&(EntryId, EntrySpec<1>)> = None;
                    for candidate in list.iter().filter(|(_, e)| e.matching.matches(&[key])) {
                        if best.is_none_or(|best| candidate.1.precedence > best.1.precedence) {
                            best = Some(candidate);
                        }
                    }
                    prop_assert_eq!(host.table.lookup(&[key]), best.map(|(id, _)| *id));
                }
            }
            prop_assert_eq!(host.table.len(), list.len());
        }
    }

    #[test]
    fn choices_are_listed_by_entry_and_hold_cores(
        steps in prop::collection::vec((0..4_u8, 0..6_u64, any::<bool>(), 0..900_u64), 1..80),
    ) {
        let mut host = Host::new(Limits { entries: 8, choices: 5 });
        let mut now_ns = 0;
        for (key, flow, priority, pause_ms) in steps {
            now_ns += pause_ms * 1_000_000;
            if flow == 0 {
                let target = if priority { FLOW } else { ENTRY };
                let entry = EntrySpec { priority, ..spec(key, target) };
                host.table.add(entry, &mut host.cores, now_ns).unwrap();
            } else if flow == 1 {
                host.expire(now_ns);
            } else {
                host.steer(key, flow, now_ns);
            }
            // Each entry's list contains exactly its choices.
            let choices = &host.table.choices;
            for entry in host.table.entries.keys() {
                let mut listed = choices.of_entry(*entry);
                listed.sort_unstable();
                let its = choices.iter().filter(|(_, choice)| choice.key.entry == *entry);
                prop_assert_eq!(listed, its.map(|(id, _)| id).collect::<Vec<_>>());
            }
            for core in host.cores.ids() {
                let holds = |(_, c): &(ChoiceId, &Choice)| c.priority && c.core == core;
                let held = host.table.choices().any(|c| holds(&c));
                prop_assert_eq!(host.cores.is_held(core), held && !host.cores.runs_vm(core));
            }
        }
    }
}
