//! Timeouts (OpenFlow 1.3.5 section 5.5) and statistics.

use crate::common::*;
use openflow::flow::{FlowModCommand, FlowRemovedReason, FlowStatsRequest, TABLE_ALL};
use packet::{Field, Match};
use program::table::Miss;

fn numbered(number: u32) -> Match {
    fields(&[(Field::Reg0, number.into())])
}

fn add_timed(switch: &mut Switch, number: u32, idle: u16, hard: u16) {
    let mut change = add(numbered(number), 1);
    (change.idle_timeout, change.hard_timeout) = (idle, hard);
    change.flags.send_flow_rem = true;
    switch.mod13(change).unwrap();
}

/// Returns the rules that expire now, as (number, reason).
fn expire(switch: &mut Switch) -> Vec<(u64, FlowRemovedReason)> {
    let now = switch.clock();
    let outcome = switch.pipeline.expire(now);
    assert_eq!(outcome.changed, outcome.removed.len());
    let number = |matching: &Match| matching.get(Field::Reg0).0.to_u64();
    outcome
        .removed
        .iter()
        .map(|removed| (number(&removed.stats.matching), removed.reason))
        .collect()
}

#[test]
fn rules_go_when_their_time_has_come() {
    let mut switch = Switch::new();
    add_timed(&mut switch, 1, 0, 10);
    add_timed(&mut switch, 2, 5, 0);
    add_timed(&mut switch, 3, 5, 5);
    add_timed(&mut switch, 4, 0, 0);
    let start = switch.now;
    assert_eq!(
        switch.pipeline.next_deadline().map(|at| at.ms()),
        Some(start + 5000)
    );
    switch.now = start + 4999;
    assert_eq!(expire(&mut switch), []);
    switch.now = start + 5000;
    let mut gone = expire(&mut switch);
    gone.sort_by_key(|(number, _)| *number);
    assert_eq!(
        gone,
        [
            (2, FlowRemovedReason::IdleTimeout),
            (3, FlowRemovedReason::HardTimeout)
        ]
    );
    switch.now = start + 10_000;
    assert_eq!(expire(&mut switch), [(1, FlowRemovedReason::HardTimeout)]);
    assert_eq!(switch.pipeline.next_deadline(), None);
    assert_eq!(switch.flows().len(), 1);
}

#[test]
fn packets_put_the_idle_timeout_off() {
    let mut switch = Switch::new();
    add_timed(&mut switch, 1, 5, 0);
    switch.publish();
    let start = switch.now;
    for step in 1..=4 {
        switch.now = start + step * 4000;
        switch.count(0, &numbered(1), 1, 60);
        assert_eq!(expire(&mut switch), []);
    }
    assert_eq!(switch.flows()[0].idle_age, 0);
    switch.now = start + 16_000 + 4999;
    assert_eq!(expire(&mut switch), []);
    assert_eq!(switch.flows()[0].idle_age, 4);
    switch.now += 1;
    assert_eq!(expire(&mut switch), [(1, FlowRemovedReason::IdleTimeout)]);
}

/// A modify restarts the hard timeout (Open vSwitch), but not the idle timeout.
#[test]
fn modifying_restarts_the_hard_timeout() {
    let mut switch = Switch::new();
    add_timed(&mut switch, 1, 0, 10);
    add_timed(&mut switch, 2, 10, 0);
    let start = switch.now;
    switch.now = start + 6000;
    for counts in [false, true] {
        let mut change = flow(FlowModCommand::Modify, Match::any(), 1);
        change.flags.reset_counts = counts;
        switch.mod13(change).unwrap();
    }
    switch.now = start + 10_000;
    assert_eq!(expire(&mut switch), [(2, FlowRemovedReason::IdleTimeout)]);
    switch.now = start + 15_999;
    assert_eq!(expire(&mut switch), []);
    assert_eq!(switch.flows()[0].duration_ns, 15_999_000_000);
    switch.now = start + 16_000;
    assert_eq!(expire(&mut switch), [(1, FlowRemovedReason::HardTimeout)]);
}

/// An add that replaces a rule does not change the time since its last packet, whether or not
/// counters are kept (Open vSwitch).
#[test]
fn adding_again_does_not_put_the_idle_timeout_off() {
    for counts in [false, true] {
        let mut switch = Switch::new();
        let start = switch.now;
        add_timed(&mut switch, 1, 10, 0);
        switch.now = start + 6000;
        let mut change = flow(FlowModCommand::Add, numbered(1), 1);
        change.idle_timeout = 10;
        (change.flags.send_flow_rem, change.flags.reset_counts) = (true, counts);
        switch.mod13(change).unwrap();
        assert_eq!(switch.flows()[0].idle_age, 6);
        assert_eq!(switch.flows()[0].duration_ns, 0);
        switch.now = start + 9_999;
        assert_eq!(expire(&mut switch), []);
        switch.now = start + 10_000;
        assert_eq!(expire(&mut switch), [(1, FlowRemovedReason::IdleTimeout)]);
    }
}

/// A rule that is added again has new deadlines; the old ones have no effect.
#[test]
fn old_deadlines_do_not_count() {
    let mut switch = Switch::new();
    let start = switch.now;
    for _ in 0..5000 {
        add_timed(&mut switch, 1, 0, 10);
        switch.now += 1;
    }
    switch.now = start + 10_000;
    assert_eq!(expire(&mut switch), []);
    let mut change = flow(FlowModCommand::DeleteStrict, numbered(1), 1);
    switch.mod13(change.clone()).unwrap();
    change.command = FlowModCommand::Add;
    switch.mod13(change).unwrap();
    switch.now = start + 1_000_000;
    assert_eq!(
        expire(&mut switch),
        [],
        "the slot's new rule has no timeout"
    );
    assert_eq!(switch.flows().len(), 1);
}

#[test]
fn many_rules_go_in_the_order_of_their_deadlines() {
    let mut switch = Switch::new();
    let start = switch.now;
    for number in 0..2000_u32 {
        add_timed(&mut switch, number, 0, 1 + (number * 7919 % 100) as u16);
    }
    let mut gone = 0;
    for second in 1..=100 {
        switch.now = start + second * 1000;
        let now = expire(&mut switch);
        assert_eq!(now.len(), 20, "second {second}");
        gone += now.len();
    }
    assert_eq!((gone, switch.pipeline.rule_count()), (2000, 0));
}

#[test]
fn an_avalanche_is_taken_in_parts() {
    let mut switch = Switch::new();
    let count = pipeline::EXPIRE_MAX as u32 + 10;
    (0..count).for_each(|number| add_timed(&mut switch, number, 0, 1));
    switch.now += 5000;
    assert_eq!(expire(&mut switch).len(), pipeline::EXPIRE_MAX);
    assert!(
        switch
            .pipeline
            .next_deadline()
            .is_some_and(|at| at <= switch.clock())
    );
    assert_eq!(expire(&mut switch).len(), 10);
    assert_eq!(switch.pipeline.next_deadline(), None);
}

#[test]
fn statistics_are_of_the_rules_asked_for() {
    let mut switch = Switch::new();
    for number in 0..10 {
        let mut change = add(numbered(number), 1);
        change.table = (number % 3) as u8;
        change.cookie = number.into();
        switch.mod13(change).unwrap();
    }
    switch.publish();
    for number in 0..10 {
        switch.count(
            (number % 3) as u8,
            &numbered(number),
            2,
            100 + u64::from(number),
        );
    }
    let order: Vec<_> = switch
        .flows()
        .iter()
        .map(|flow| (flow.table, flow.cookie))
        .collect();
    assert_eq!(
        order,
        [
            (0, 0),
            (0, 3),
            (0, 6),
            (0, 9),
            (1, 1),
            (1, 4),
            (1, 7),
            (2, 2),
            (2, 5),
            (2, 8)
        ]
    );
    let ask = |table, matching, cookie, cookie_mask| FlowStatsRequest {
        table,
        matching,
        cookie,
        cookie_mask,
        ..everything()
    };
    let sums = |request: FlowStatsRequest| {
        let sums = switch.pipeline.aggregate(&request);
        (sums.flows, sums.packets, sums.bytes)
    };
    assert_eq!(sums(everything()), (10, 20, 1045));
    assert_eq!(sums(ask(1, Match::any(), 0, 0)), (3, 6, 312));
    assert_eq!(sums(ask(TABLE_ALL, numbered(4), 0, 0)), (1, 2, 104));
    assert_eq!(sums(ask(TABLE_ALL, Match::any(), 1, 1)), (5, 10, 525));
    assert_eq!(sums(ask(200, Match::any(), 0, 0)), (0, 0, 0));
    let mut handed = Vec::new();
    switch
        .pipeline
        .each_flow(&everything(), switch.clock(), |flow| handed.push(flow));
    assert_eq!(handed, switch.flows());
}

#[test]
fn tables_tell_what_they_hold() {
    let mut switch = Switch::new();
    switch.mod13(add(numbered(1), 1)).unwrap();
    switch.publish();
    switch.count(0, &numbered(1), 1, 1);
    let stats = switch.pipeline.table_stats();
    assert_eq!(stats.len(), 254);
    assert_eq!(
        (stats[0].active, stats[0].lookups, stats[0].matched),
        (1, 1, 1)
    );
    assert_eq!(
        (stats[7].active, stats[7].lookups, stats[7].max_entries),
        (0, 0, 1_000_000)
    );
    switch.pipeline.set_table_limit(7, 5);
    assert_eq!(switch.pipeline.table_stats()[7].max_entries, 5);
    let features = switch.pipeline.table_features();
    assert_eq!(features.len(), 254);
    assert_eq!(
        features[0].rules.next_tables,
        (1..=253).collect::<Vec<u8>>()
    );
    assert!(features[253].rules.next_tables.is_empty());
    assert!(features[0].matchable.contains(&(Field::Ipv4Src, true)));
    assert!(features[0].rules.apply.set_fields.contains(&Field::PbbIsid));
    assert!(!features[0].rules.apply.set_fields.contains(&Field::IpFrag));
    switch.pipeline.set_miss(3, Miss::Controller);
    assert_eq!(
        (switch.pipeline.miss(3), switch.pipeline.miss(4)),
        (Miss::Controller, Miss::Drop)
    );
    switch.pipeline.set_miss(255, Miss::Controller);
}
