//! What a pipeline keeps about its rules: changes for monitors, rules that may be evicted, how full
//! tables are, dumps in slices, and indexes for commands that affect many rules. Each is compared
//! with a plain reference.

use crate::common::{Switch, add, apply, everything, fields, flow, output, with};
use openflow::action::Subfield;
use openflow::error::Error;
use openflow::flow::{FlowModCommand, FlowRemovedReason, FlowStats, TABLE_ALL};
use openflow::monitor::{MonitorCommand, MonitorFlags, MonitorRequest, UpdateEvent};
use openflow::port;
use openflow::stats::{TableReason, Vacancy};
use packet::{Field, Match};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn in_port(number: u128) -> Match {
    fields(&[(Field::InPort, number)])
}

fn events(switch: &mut Switch) -> Vec<(UpdateEvent, u16)> {
    let changes = switch.pipeline.take_changes();
    let event = |change: &pipeline::RuleChange| (change.update.event, change.update.priority);
    changes.iter().map(event).collect()
}

fn monitor(matching: Match) -> MonitorRequest {
    MonitorRequest {
        id: 1,
        command: MonitorCommand::Add,
        flags: MonitorFlags::all(),
        out_port: port::ANY,
        out_group: openflow::group::ANY,
        table: TABLE_ALL,
        matching,
    }
}

#[test]
fn changes_are_noted_in_order_while_somebody_watches() {
    let mut switch = Switch::new();
    switch.mod13(add(in_port(9), 9)).unwrap();
    assert_eq!(events(&mut switch), []);
    switch.pipeline.watch(true);
    switch.mod13(add(in_port(1), 1)).unwrap();
    switch.mod13(add(in_port(2), 2)).unwrap();
    // A modification that changes nothing leaves no note; adding the same rule again is an
    // addition.
    switch
        .mod13(flow(FlowModCommand::Modify, in_port(1), 0))
        .unwrap();
    switch.mod13(add(in_port(1), 1)).unwrap();
    let other = with(flow(FlowModCommand::Modify, in_port(2), 0), |change| {
        change.instructions = apply(&[output(7)]).into();
    });
    switch.mod13(other).unwrap();
    switch
        .mod13(flow(FlowModCommand::Delete, in_port(2), 0))
        .unwrap();
    use UpdateEvent::*;
    let removed = Removed(FlowRemovedReason::Delete);
    assert_eq!(
        events(&mut switch),
        [
            (Added, 1),
            (Added, 2),
            (Added, 1),
            (Modified, 2),
            (removed, 2)
        ]
    );
    // Changes that are refused or rolled back leave no notes.
    assert!(
        switch
            .mod13(with(add(in_port(3), 3), |change| change.table = 254))
            .is_err()
    );
    switch.pipeline.begin_batch();
    switch.mod13(add(in_port(4), 4)).unwrap();
    assert_eq!(events(&mut switch), []);
    switch.pipeline.roll_back();
    assert_eq!(events(&mut switch), []);
    switch.pipeline.watch(false);
    switch.mod13(add(in_port(5), 5)).unwrap();
    assert_eq!(events(&mut switch), []);
}

#[test]
fn a_monitor_filters_by_what_a_rule_does_and_did() {
    let mut switch = Switch::new();
    switch.pipeline.watch(true);
    switch.mod13(add(in_port(1), 1)).unwrap();
    let to_7 = with(flow(FlowModCommand::Modify, in_port(1), 0), |change| {
        change.instructions = apply(&[output(7)]).into();
    });
    switch.mod13(to_7).unwrap();
    let changes = switch.pipeline.take_changes();
    let seen = |request: &MonitorRequest| -> Vec<bool> {
        changes
            .iter()
            .map(|change| change.concerns(request))
            .collect()
    };
    let to = |number| MonitorRequest {
        out_port: number,
        ..monitor(Match::any())
    };
    assert_eq!(seen(&monitor(Match::any())), [true, true]);
    assert_eq!(seen(&to(1)), [true, true]);
    assert_eq!(seen(&to(7)), [false, true]);
    assert_eq!(seen(&to(8)), [false, false]);
    assert_eq!(seen(&monitor(in_port(2))), [false, false]);
    let table = MonitorRequest {
        table: 3,
        ..monitor(Match::any())
    };
    assert_eq!(seen(&table), [false, false]);
}

#[test]
fn monitor_updates_missed_during_a_pause_are_sent_after_it() {
    let mut switch = Switch::new();
    for number in 1..5 {
        switch.mod13(add(in_port(number), number as u16)).unwrap();
    }
    let page = switch.pipeline.begin_page();
    let change = |number| {
        with(flow(FlowModCommand::Modify, in_port(number), 0), |change| {
            change.instructions = apply(&[output(7)]).into();
        })
    };
    switch.mod13(change(2)).unwrap();
    // Modified and then added again: new since the pause.
    switch.mod13(change(3)).unwrap();
    switch.mod13(add(in_port(3), 3)).unwrap();
    switch.mod13(add(in_port(6), 6)).unwrap();
    switch
        .mod13(flow(FlowModCommand::Delete, in_port(4), 0))
        .unwrap();
    let mut rules = switch.pipeline.begin_watch(&monitor(Match::any()));
    let mut missed = Vec::new();
    while !switch.pipeline.continue_watch(&mut rules, 1, |seen| {
        if seen.changed_page >= page {
            let event = if seen.added_page >= page {
                UpdateEvent::Added
            } else {
                UpdateEvent::Modified
            };
            missed.push((event, seen.update.priority));
        }
    }) {}
    use UpdateEvent::*;
    assert_eq!(missed, [(Modified, 2), (Added, 3), (Added, 6)]);
}

#[test]
fn pages_hold_few_changes_and_follow_each_other() {
    let mut switch = Switch::new();
    switch.pipeline.watch(true);
    for number in 1..=600 {
        switch.mod13(add(in_port(number), 1)).unwrap();
    }
    let page = switch.pipeline.begin_page();
    switch
        .mod13(flow(FlowModCommand::Delete, Match::any(), 0))
        .unwrap();
    let changes = switch.pipeline.take_changes();
    assert_eq!(changes.len(), 1200);
    assert!(changes.is_sorted_by_key(|change| change.page));
    let longest = changes
        .chunk_by(|one, next| one.page == next.page)
        .map(<[_]>::len)
        .max();
    assert!(longest <= Some(256), "{longest:?}");
    let (added, removed) = changes.split_at(600);
    assert!(added.iter().all(|change| change.page < page));
    for change in removed {
        let before = added
            .iter()
            .find(|added| added.rule == change.rule)
            .unwrap();
        assert_eq!(change.added_page, before.page);
        assert!(change.page >= page);
    }
}

/// Returns a switch whose table evicts rules beyond `limit`, grouped by `groups`.
fn evicting(limit: u32, groups: &[Field]) -> Switch {
    let mut switch = Switch::new();
    switch.pipeline.set_table_limit(0, limit);
    let parts: Vec<Subfield> = groups
        .iter()
        .map(|field| Subfield {
            field: *field,
            start: 0,
            bits: field.def().bits as u16,
        })
        .collect();
    let now = switch.clock();
    switch.pipeline.set_eviction(0, Some(&parts), now);
    switch
}

fn priorities(switch: &Switch) -> Vec<u16> {
    switch.flows().iter().map(|rule| rule.priority).collect()
}

#[test]
fn a_full_table_lets_the_least_important_go_then_the_one_that_expires_first() {
    let mut switch = evicting(3, &[]);
    let timed = |priority: u16, importance, hard_timeout| {
        with(add(in_port(priority.into()), priority), |change| {
            change.importance = importance;
            change.hard_timeout = hard_timeout;
            change.flags.send_flow_rem = true;
        })
    };
    switch.mod13(timed(1, 5, 10)).unwrap();
    switch.mod13(timed(2, 1, 90)).unwrap();
    switch.mod13(timed(3, 1, 80)).unwrap();
    let outcome = switch.mod13(timed(4, 9, 1)).unwrap();
    let removed: Vec<_> = outcome
        .removed
        .iter()
        .map(|removed| (removed.reason, removed.stats.priority))
        .collect();
    assert_eq!(removed, [(FlowRemovedReason::Eviction, 3)]);
    // Replacing a rule needs no room.
    switch.mod13(timed(4, 9, 1)).unwrap();
    assert_eq!(priorities(&switch), [1, 2, 4]);
    switch.mod13(timed(5, 0, 0)).unwrap();
    assert_eq!(priorities(&switch), [1, 4, 5]);
    switch.mod13(timed(6, 0, 0)).unwrap();
    switch.mod13(timed(7, 0, 0)).unwrap();
    // Rules without a timeout stay; an add that would have to evict one is refused.
    assert_eq!(priorities(&switch), [5, 6, 7]);
    assert_eq!(switch.mod13(timed(8, 0, 5)), Err(Error::TableFull));
    // Rolling back a batch restores what was evicted.
    switch
        .mod13(flow(FlowModCommand::Delete, in_port(7), 0))
        .unwrap();
    switch.mod13(timed(9, 0, 5)).unwrap();
    switch.pipeline.begin_batch();
    switch.mod13(timed(10, 0, 5)).unwrap();
    assert_eq!(priorities(&switch), [5, 6, 10]);
    switch.pipeline.roll_back();
    assert_eq!(priorities(&switch), [5, 6, 9]);
    switch.mod13(timed(11, 0, 5)).unwrap();
    assert_eq!(priorities(&switch), [5, 6, 11]);
}

#[test]
fn a_packet_saves_an_idle_rule_and_a_lower_limit_takes_the_surplus() {
    let mut switch = evicting(3, &[]);
    let idle = |number: u16| {
        with(add(in_port(number.into()), number), |change| {
            change.idle_timeout = 60 + number;
        })
    };
    (1..=3).for_each(|number| {
        switch.mod13(idle(number)).unwrap();
    });
    switch.publish();
    switch.now += 10_000;
    switch.count(0, &in_port(1), 1, 60);
    switch.mod13(idle(4)).unwrap();
    assert_eq!(priorities(&switch), [1, 3, 4]);
    switch.pipeline.set_table_limit(0, 1);
    let now = switch.clock();
    switch.pipeline.set_eviction(0, Some(&[]), now);
    assert_eq!(priorities(&switch), [4]);
    switch.pipeline.set_eviction(0, None, now);
    assert_eq!(switch.mod13(idle(5)), Err(Error::TableFull));
}

#[test]
fn vacancy_is_told_at_each_threshold_once() {
    let mut switch = Switch::new();
    switch.pipeline.set_table_limit(0, 10);
    switch.pipeline.set_vacancy(
        0,
        Some(Vacancy {
            down: 30,
            up: 60,
            current: 0,
        }),
    );
    let mut told = Vec::new();
    let step = |switch: &mut Switch, change| {
        switch.mod13(change).unwrap();
        switch.pipeline.take_vacancy_events()
    };
    for round in 0..2 {
        for number in 1..=9 {
            told.extend(step(&mut switch, add(in_port(number), 1)));
        }
        for number in 1..=9 {
            let gone = flow(FlowModCommand::Delete, in_port(number), 1);
            told.extend(step(&mut switch, gone));
        }
        assert_eq!(told.len(), 2 * (round + 1));
    }
    use TableReason::{VacancyDown, VacancyUp};
    assert_eq!(
        told,
        [VacancyDown, VacancyUp, VacancyDown, VacancyUp].map(|reason| (0, reason))
    );
    let now = switch.pipeline.vacancy_thresholds(0).unwrap();
    assert_eq!((now.down, now.up, now.current), (30, 60, 100));
    switch.pipeline.set_vacancy(0, None);
    assert_eq!(switch.pipeline.vacancy_thresholds(0), None);
}

/// A match as words, which can be ordered.
type Words = Vec<(u8, u64, u64)>;

/// Returns one of a few hundred matches of several shapes.
fn some_match(number: u16) -> Match {
    let port = u128::from(number % 7);
    let address = 0x0a00_0000 + u128::from(number / 7 % 50);
    match number % 6 {
        0 => in_port(port),
        1 => fields(&[(Field::EthType, 0x0800), (Field::Ipv4Dst, address)]),
        2 => fields(&[
            (Field::InPort, port),
            (Field::EthType, 0x0800),
            (Field::Ipv4Dst, address),
        ]),
        3 => fields(&[(Field::EthType, 0x0806)]),
        // These share bits with the others, but neither includes all of the other's.
        4 => {
            let mut matching = fields(&[(Field::EthType, 0x0800), (Field::Ipv4Src, port)]);
            let bytes = (address as u32).to_be_bytes();
            matching.set(Field::Ipv4Dst, &bytes, &[0xff, 0xff, 0xff, 0xf8]);
            matching
        }
        _ => {
            let mut matching = in_port(port);
            let bytes = (address as u32).to_be_bytes();
            matching.set_exact(Field::EthType, 0x0800);
            matching.set(Field::Ipv4Dst, &bytes, &[0, 0, 0, 0x1f]);
            matching
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// With groups, the evicted rule is of a largest group, and no group falls below an equal
    /// share.
    #[test]
    fn eviction_is_fair(limit in 4_u32..20, ports in prop::collection::vec(0_u16..4, 30..120)) {
        let mut switch = evicting(limit, &[Field::InPort]);
        for (number, port) in ports.iter().enumerate() {
            let before = sizes(&switch);
            let full = switch.flows().len() == limit as usize;
            let matching = fields(&[(Field::InPort, (*port).into()), (Field::EthType, 0x0800), (Field::Ipv4Src, number as u128)]);
            switch.mod13(with(add(matching, 1), |change| change.idle_timeout = 9)).unwrap();
            let mut after = sizes(&switch);
            *after.get_mut(&u64::from(*port)).unwrap() -= 1;
            if full {
                let most = *before.values().max().unwrap();
                let shrunk: Vec<_> = before.iter().filter(|(group, size)| after.get(group).copied().unwrap_or(0) < **size).collect();
                prop_assert_eq!(shrunk.len(), 1);
                prop_assert_eq!(*shrunk[0].1, most);
            }
            prop_assert!(switch.flows().len() <= limit as usize);
        }
    }

    /// Non-strict commands and overlap checks on a large table, whose indexes come and go, have the
    /// same results as on a list of rules.
    #[test]
    fn indexes_find_what_a_list_finds(
        steps in prop::collection::vec((0_u8..10, 0_u16..1400, 0_u16..6, 0_u64..3), 200..500),
    ) {
        let mut switch = Switch::new();
        let words = |matching: &Match| -> Words {
            matching.words().iter().map(|word| (word.word, word.mask, word.value)).collect()
        };
        let mut cookies: BTreeMap<(u16, Words), (Match, u64)> = BTreeMap::new();
        // Enough rules that indexes are made.
        for number in 0..1200_u16 {
            let matching = fields(&[(Field::InPort, u128::from(number % 7)), (Field::EthType, 0x0800), (Field::Ipv4Dst, 0x0b00_0000 + u128::from(number))]);
            switch.mod13(with(add(matching.clone(), 9), |change| change.cookie = u64::from(number % 3))).unwrap();
            cookies.insert((9, words(&matching)), (matching, u64::from(number % 3)));
        }
        for (kind, number, priority, cookie) in steps {
            let matching = some_match(number);
            let id = (priority, words(&matching));
            match kind {
                0..=4 => {
                    let checked = kind < 3;
                    let overlaps = checked && !cookies.contains_key(&id)
                        && cookies.iter().any(|((other, _), (rule, _))| *other == priority && rule.overlaps(&matching));
                    let done = switch.mod13(with(add(matching.clone(), priority), |change| {
                        change.cookie = cookie;
                        change.flags.check_overlap = checked;
                    }));
                    prop_assert_eq!(done.is_err(), overlaps, "{:?}", done);
                    if !overlaps {
                        cookies.insert(id, (matching, cookie));
                    }
                }
                5..=7 => {
                    let by_cookie = kind == 7;
                    let mask = if by_cookie { u64::MAX } else { 0 };
                    let request = with(flow(FlowModCommand::Delete, matching.clone(), 0), |change| {
                        change.cookie_filter = cookie;
                        change.cookie_mask = mask;
                    });
                    let gone = switch.mod13(request).unwrap().changed;
                    let before = cookies.len();
                    cookies.retain(|_, (rule, own)| !rule.is_within(&matching) || (*own ^ cookie) & mask != 0);
                    prop_assert_eq!(gone, before - cookies.len());
                }
                _ => {
                    let request = openflow::flow::FlowStatsRequest {
                        matching: matching.clone(),
                        ..everything()
                    };
                    let mut got: Vec<_> = dump(&mut switch, &request, 64, |_| {}).iter().map(|rule| (rule.priority, words(&rule.matching), rule.cookie)).collect();
                    got.sort();
                    let mut wanted: Vec<_> = cookies.iter().filter(|(_, (rule, _))| rule.is_within(&matching)).map(|((priority, words), (_, cookie))| (*priority, words.clone(), *cookie)).collect();
                    wanted.sort();
                    prop_assert_eq!(got, wanted);
                }
            }
        }
        prop_assert_eq!(switch.flows().len(), cookies.len());
    }

    /// Whatever changes between its slices, a dump gives each rule that exists throughout once, and
    /// no rule twice unless it was removed meanwhile.
    #[test]
    fn dumps_are_whole(
        budget in 1_usize..9,
        changes in prop::collection::vec((0_u8..4, 0_u8..3, 0_u16..60), 0..200),
    ) {
        let mut switch = Switch::new();
        let place = |change: &mut openflow::flow::FlowMod, table| change.table = table;
        for number in 0..60_u16 {
            switch.mod13(with(add(in_port(number.into()), number), |change| place(change, (number % 3) as u8))).unwrap();
        }
        let mut throughout: BTreeSet<_> = switch.flows().iter().map(|rule| (rule.table, rule.priority)).collect();
        let mut touched = BTreeSet::new();
        let mut changes = changes.into_iter();
        let got = dump(&mut switch, &everything(), budget, |switch| {
            for (kind, table, number) in changes.by_ref().take(3) {
                let delete = with(flow(FlowModCommand::DeleteStrict, in_port(number.into()), number), |change| place(change, table));
                let insert = with(add(in_port(number.into()), number), |change| place(change, table));
                match kind {
                    0 => {
                        switch.mod13(delete).unwrap();
                        throughout.remove(&(table, number));
                        touched.insert((table, number));
                    }
                    1 | 2 => {
                        switch.mod13(insert).unwrap();
                    }
                    _ => {
                        switch.pipeline.begin_batch();
                        switch.mod13(delete).unwrap();
                        switch.mod13(insert).unwrap();
                        switch.pipeline.roll_back();
                    }
                }
            }
        });
        let mut seen = BTreeSet::new();
        for rule in &got {
            let rule = (rule.table, rule.priority);
            prop_assert!(seen.insert(rule) || touched.contains(&rule), "{:?} came twice", rule);
        }
        prop_assert!(throughout.is_subset(&seen), "{:?} is missing", throughout.difference(&seen));
    }
}

/// Returns the number of rules for each port that they match.
fn sizes(switch: &Switch) -> BTreeMap<u64, usize> {
    let mut sizes = BTreeMap::new();
    for rule in switch.flows() {
        let (port, _) = rule.matching.get(Field::InPortOxm);
        *sizes.entry(port.to_u64()).or_default() += 1;
    }
    sizes
}

/// Dumps in slices of `budget`, calling a function between them.
fn dump(
    switch: &mut Switch,
    request: &openflow::flow::FlowStatsRequest,
    budget: usize,
    mut between: impl FnMut(&mut Switch),
) -> Vec<FlowStats> {
    let mut dump = switch.pipeline.begin_dump(request);
    let mut rules = Vec::new();
    loop {
        let now = switch.clock();
        let done = switch
            .pipeline
            .continue_dump(&mut dump, now, budget, |rule| rules.push(rule));
        if done {
            return rules;
        }
        between(switch);
    }
}
