//! The effects of each flow mod. Section numbers are those of OpenFlow 1.3.5 unless 1.0.0 is named;
//! where they leave room, the expected result is that observed of Open vSwitch 3.1.

use crate::common::*;
use openflow::action::{Action, Instruction};
use openflow::error::Error;
use openflow::flow::{FlowModCommand, FlowRemovedReason, TABLE_ALL};
use openflow::port;
use packet::{Field, Match};
use pipeline::Clock;
use std::sync::Arc;

const IP: (Field, u128) = (Field::EthType, 0x0800);
const ARP: (Field, u128) = (Field::EthType, 0x0806);

fn ip_src(address: u32) -> Match {
    fields(&[IP, (Field::Ipv4Src, address.into())])
}

fn outputs(switch: &Switch) -> Vec<(u16, u32)> {
    let port = |instructions: &[Instruction]| match instructions {
        [Instruction::ApplyActions(actions)] => match &actions[..] {
            [Action::Output { port, .. }] => *port,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    switch
        .flows()
        .iter()
        .map(|flow| (flow.priority, port(&flow.instructions)))
        .collect()
}

/// Section 6.4: "all counters start from zero", duration too; no flow removed message is sent for
/// the replaced rule.
#[test]
fn add_replaces_a_rule_of_the_same_match_and_priority() {
    let mut switch = Switch::new();
    let first = with(add(ip_src(1), 5), |change| {
        change.cookie = 5;
        change.idle_timeout = 100;
        change.flags.send_flow_rem = true;
    });
    switch.mod13(first).unwrap();
    switch.publish();
    switch.count(0, &ip_src(1), 3, 180);
    switch.now += 1500;
    let outcome = switch
        .mod13(with(add(ip_src(1), 5), |change| {
            change.instructions = apply(&[output(3)]).into()
        }))
        .unwrap();
    assert!(
        outcome.removed.is_empty(),
        "a replaced rule sends no flow removed"
    );
    assert_eq!(outputs(&switch), [(5, 3)]);
    let flow = &switch.flows()[0];
    // 1.2 and later keep the counters without OFPFF_RESET_COUNTS.
    assert_eq!(
        (
            flow.packets,
            flow.bytes,
            flow.duration_ns,
            flow.idle_timeout
        ),
        (3, 180, 0, 0)
    );
    assert!(!flow.flags.send_flow_rem);
    let reset = with(add(ip_src(1), 5), |change| change.flags.reset_counts = true);
    switch.mod13(reset).unwrap();
    assert_eq!(switch.flows()[0].packets, 0);
    // With another priority, match or table it is another rule.
    switch.mod13(add(ip_src(1), 6)).unwrap();
    switch.mod13(add(ip_src(2), 5)).unwrap();
    switch
        .mod13(with(add(ip_src(1), 5), |change| change.table = 1))
        .unwrap();
    assert_eq!(switch.pipeline.rule_count(), 4);
}

/// A cookie of all ones keeps the existing one (Open vSwitch), and means 0 in a new rule.
#[test]
fn a_cookie_of_all_ones_is_none() {
    let mut switch = Switch::new();
    let cookie = |cookie| with(add(ip_src(1), 5), |change| change.cookie = cookie);
    switch.mod13(cookie(u64::MAX)).unwrap();
    assert_eq!(switch.flows()[0].cookie, 0);
    switch.mod13(cookie(7)).unwrap();
    switch.mod13(cookie(u64::MAX)).unwrap();
    assert_eq!(switch.flows()[0].cookie, 7);
}

/// Section 6.4: rules overlap if they have the same priority and different matches, and a packet
/// can match both.
#[test]
fn check_overlap_refuses_what_could_match_the_same_packet() {
    let mut switch = Switch::new();
    let checked = |matching, priority| {
        with(add(matching, priority), |change| {
            change.flags.check_overlap = true
        })
    };
    switch.mod13(add(fields(&[IP]), 500)).unwrap();
    assert_eq!(
        switch.mod13(checked(Match::any(), 500)),
        Err(Error::Overlap)
    );
    assert_eq!(
        switch.mod13(checked(fields(&[(Field::InPort, 1)]), 500)),
        Err(Error::Overlap)
    );
    assert_eq!(switch.mod13(checked(ip_src(1), 500)), Err(Error::Overlap));
    switch.mod13(checked(fields(&[IP]), 500)).unwrap();
    switch.mod13(checked(fields(&[ARP]), 500)).unwrap();
    switch.mod13(checked(Match::any(), 501)).unwrap();
    switch
        .mod13(with(checked(Match::any(), 500), |change| change.table = 1))
        .unwrap();
    assert_eq!(switch.pipeline.rule_count(), 4);
}

/// Section 6.4: instructions change; cookie, timeouts, flags, counters and duration stay.
#[test]
fn modify_changes_instructions_only() {
    let mut switch = Switch::new();
    let rule = with(add(ip_src(1), 5), |change| {
        change.cookie = 7;
        change.hard_timeout = 50;
        change.flags.send_flow_rem = true;
    });
    switch.mod13(rule).unwrap();
    switch.publish();
    switch.count(0, &ip_src(1), 2, 120);
    switch.now += 3000;
    let change = with(flow(FlowModCommand::Modify, fields(&[IP]), 9), |change| {
        change.cookie = 9;
        change.hard_timeout = 1;
        change.instructions = apply(&[output(4)]).into();
    });
    assert_eq!(switch.mod13(change.clone()).unwrap().changed, 1);
    let flow = switch.flows()[0].clone();
    assert_eq!(
        (flow.cookie, flow.hard_timeout, flow.packets, flow.priority),
        (7, 50, 2, 5)
    );
    assert_eq!((flow.duration_ns, flow.hard_age), (3_000_000_000, 0));
    assert!(flow.flags.send_flow_rem);
    assert_eq!(outputs(&switch), [(5, 4)]);
    switch
        .mod13(with(change, |change| change.flags.reset_counts = true))
        .unwrap();
    assert_eq!(switch.flows()[0].packets, 0);
    assert!(
        !switch.flows()[0].flags.reset_counts,
        "the rule's flags are those it was added with"
    );
}

/// Section 6.4: a modify that finds nothing changes nothing. 1.0.0 section 4.6: it adds, and a
/// modify changes the cookie.
#[test]
fn only_the_first_version_adds_by_modify() {
    for command in [FlowModCommand::Modify, FlowModCommand::ModifyStrict] {
        let mut switch = Switch::new();
        let change = with(flow(command, ip_src(1), 5), |change| change.cookie = 3);
        assert_eq!(switch.mod13(change.clone()).unwrap().changed, 0);
        assert_eq!(switch.pipeline.rule_count(), 0);
        switch.mod10(change.clone()).unwrap();
        assert_eq!(switch.flows()[0].cookie, 3);
        switch
            .mod10(with(change.clone(), |change| change.cookie = 4))
            .unwrap();
        assert_eq!(switch.flows()[0].cookie, 4);
        // With a cookie mask, nothing is added (Open vSwitch).
        let by_cookie = with(change, |change| {
            change.matching = ip_src(2);
            change.cookie_mask = u64::MAX;
        });
        assert_eq!(switch.mod10(by_cookie).unwrap().changed, 0);
        assert_eq!(switch.pipeline.rule_count(), 1);
    }
}

/// Section 6.4: strict commands compare the whole match and the priority, others select what is
/// within the match.
#[test]
fn strict_and_not() {
    let fill = || {
        let mut switch = Switch::new();
        switch.mod13(add(fields(&[IP]), 5)).unwrap();
        switch.mod13(add(ip_src(1), 5)).unwrap();
        switch.mod13(add(ip_src(1), 6)).unwrap();
        switch.mod13(add(fields(&[ARP]), 5)).unwrap();
        switch.mod13(add(Match::any(), 5)).unwrap();
        switch
    };
    let cases = [
        (FlowModCommand::Delete, fields(&[IP]), 3),
        (FlowModCommand::Delete, ip_src(1), 2),
        (FlowModCommand::Delete, Match::any(), 5),
        (
            FlowModCommand::Delete,
            fields(&[IP, (Field::IpProto, 6)]),
            0,
        ),
        (FlowModCommand::DeleteStrict, fields(&[IP]), 1),
        (FlowModCommand::DeleteStrict, Match::any(), 1),
        (FlowModCommand::DeleteStrict, ip_src(2), 0),
        (FlowModCommand::Modify, fields(&[IP]), 3),
        (FlowModCommand::ModifyStrict, ip_src(1), 1),
    ];
    for (command, matching, expected) in cases {
        let mut switch = fill();
        let outcome = switch.mod13(flow(command, matching.clone(), 5)).unwrap();
        assert_eq!(outcome.changed, expected, "{command:?} {matching:?}");
        let deleted = if matches!(
            command,
            FlowModCommand::Modify | FlowModCommand::ModifyStrict
        ) {
            0
        } else {
            expected
        };
        assert_eq!(switch.pipeline.rule_count(), 5 - deleted);
    }
    let mut switch = fill();
    assert_eq!(
        switch
            .mod13(flow(FlowModCommand::DeleteStrict, ip_src(1), 7))
            .unwrap()
            .changed,
        0,
        "another priority"
    );
}

/// Section 6.4: a masked field is within another if its mask covers the other's and the values
/// agree.
#[test]
fn within_takes_masks_into_account() {
    let masked = |address: u32, mask: u32| {
        let mut matching = fields(&[IP]);
        matching.set(Field::Ipv4Src, &address.to_be_bytes(), &mask.to_be_bytes());
        matching
    };
    let rule = masked(0x0a01_0200, 0xffff_ff00);
    let cases = [
        (masked(0x0a00_0000, 0xff00_0000), 1),
        (masked(0x0a01_0200, 0xffff_ff00), 1),
        (masked(0x0000_0200, 0x0000_ff00), 1),
        (masked(0x0a01_0200, 0xffff_fff0), 0),
        (masked(0x0b00_0000, 0xff00_0000), 0),
        (masked(0x0a01_0200, 0xffff_ffff), 0),
    ];
    for (by, expected) in cases {
        let mut switch = Switch::new();
        switch.mod13(add(rule.clone(), 1)).unwrap();
        assert_eq!(
            switch
                .mod13(flow(FlowModCommand::Delete, by.clone(), 1))
                .unwrap()
                .changed,
            expected,
            "{by:?}"
        );
    }
}

/// Section 6.4: cookie and mask restrict modify and delete.
#[test]
fn cookies_restrict() {
    let mut switch = Switch::new();
    for cookie in 0..8 {
        switch
            .mod13(with(add(ip_src(cookie), 1), |change| {
                change.cookie = cookie.into()
            }))
            .unwrap();
    }
    let by = |command, cookie, mask| {
        with(flow(command, Match::any(), 1), |change| {
            change.cookie_filter = cookie;
            change.cookie_mask = mask;
        })
    };
    assert_eq!(
        switch
            .mod13(by(FlowModCommand::Modify, 0b101, 0b101))
            .unwrap()
            .changed,
        2
    );
    assert_eq!(
        switch
            .mod13(by(FlowModCommand::Delete, 0xff, 0))
            .unwrap()
            .changed,
        8
    );
}

/// Section 6.4: deletes may be restricted to rules that output to a port or a group; other commands
/// ignore it.
#[test]
fn deletes_by_output() {
    let fill = || {
        let mut switch = Switch::new();
        let lists: [Vec<Instruction>; 6] = [
            apply(&[output(1), output(2)]),
            apply(&[Action::Enqueue { port: 2, queue: 1 }]),
            vec![Instruction::WriteActions(vec![output(2)])],
            apply(&[Action::Clone(vec![output(2)])]),
            apply(&[output(port::CONTROLLER)]),
            apply(&[output(3)]),
        ];
        for (index, instructions) in (0..).zip(lists) {
            switch
                .mod13(with(add(ip_src(index), 1), |change| {
                    change.instructions = instructions.into()
                }))
                .unwrap();
        }
        switch
    };
    for (to, expected) in [
        (2, 4),
        (1, 1),
        (3, 1),
        (port::CONTROLLER, 1),
        (9, 0),
        (port::ANY, 6),
    ] {
        let by = |command| {
            with(flow(command, Match::any(), 1), |change| {
                change.out_port = to
            })
        };
        assert_eq!(
            fill().mod13(by(FlowModCommand::Delete)).unwrap().changed,
            expected,
            "port {to}"
        );
        assert_eq!(
            fill().mod13(by(FlowModCommand::Modify)).unwrap().changed,
            6,
            "modify does not look at it"
        );
        let request = with_port(to);
        assert_eq!(
            fill()
                .pipeline
                .flow_stats(&request, Clock::from_ms(1))
                .len(),
            expected
        );
    }
    let by_group = with(flow(FlowModCommand::Delete, Match::any(), 1), |change| {
        change.out_group = 1
    });
    assert_eq!(fill().mod13(by_group).unwrap().changed, 0);
}

fn with_port(to: u32) -> openflow::flow::FlowStatsRequest {
    openflow::flow::FlowStatsRequest {
        out_port: to,
        ..everything()
    }
}

/// Sections 6.4 and 7.4.2: OFPFF_SEND_FLOW_REM.
#[test]
fn deleted_rules_tell_if_they_were_asked_to() {
    let mut switch = Switch::new();
    let told = with(add(ip_src(1), 5), |change| {
        change.flags.send_flow_rem = true;
        change.cookie = 9;
        change.idle_timeout = 60;
    });
    switch.mod13(told).unwrap();
    switch.mod13(add(ip_src(2), 5)).unwrap();
    switch.publish();
    switch.count(0, &ip_src(1), 4, 400);
    switch.now += 2500;
    let outcome = switch
        .mod13(flow(FlowModCommand::Delete, Match::any(), 0))
        .unwrap();
    assert_eq!((outcome.changed, outcome.removed.len()), (2, 1));
    let removed = &outcome.removed[0];
    assert_eq!(removed.reason, FlowRemovedReason::Delete);
    assert_eq!(
        (
            removed.stats.packets,
            removed.stats.bytes,
            removed.stats.cookie
        ),
        (4, 400, 9)
    );
    assert_eq!(
        (removed.stats.duration_ns, removed.stats.idle_timeout),
        (2_500_000_000, 60)
    );
    assert_eq!(removed.stats.matching, ip_src(1));
}

/// Sections 6.4 and 7.5.4.5, with the results observed of Open vSwitch 3.1. Table 254 is the
/// switch's own.
#[test]
fn tables_that_are_not_there() {
    let to = |command, table| {
        with(flow(command, Match::any(), 1), |change| {
            change.table = table
        })
    };
    use FlowModCommand::*;
    let cases = [
        (Add, 253, Ok(1)),
        (Add, 254, Err(Error::Permission)),
        (Add, TABLE_ALL, Err(Error::BadTableId)),
        (Modify, 254, Err(Error::Permission)),
        (ModifyStrict, 254, Err(Error::Permission)),
        (Modify, TABLE_ALL, Err(Error::BadTableId)),
        (Delete, 254, Err(Error::Permission)),
        (DeleteStrict, 254, Ok(0)),
        (Delete, TABLE_ALL, Ok(0)),
        (DeleteStrict, TABLE_ALL, Ok(0)),
    ];
    for (command, table, expected) in cases {
        let mut switch = Switch::new();
        let got = switch
            .mod13(to(command, table))
            .map(|outcome| outcome.changed);
        assert_eq!(got, expected, "{command:?} in table {table}");
    }
    // 1.0 names no table: adds use the first, other commands all.
    let mut switch = Switch::new();
    switch.mod10(to(Add, TABLE_ALL)).unwrap();
    assert_eq!(switch.flows()[0].table, 0);
    switch
        .mod13(with(add(Match::any(), 1), |change| change.table = 7))
        .unwrap();
    assert_eq!(switch.mod10(to(Modify, TABLE_ALL)).unwrap().changed, 2);
    assert_eq!(
        switch.mod10(to(DeleteStrict, TABLE_ALL)).unwrap().changed,
        2
    );
}

/// Section 7.5.4.4: a goto leads to a later table, also from the rules that a modify for all tables
/// finds.
#[test]
fn gotos_lead_onwards() {
    let goto = |table, next| {
        with(add(Match::any(), 1), |change| {
            change.table = table;
            change.instructions = vec![Instruction::GotoTable(next)].into();
        })
    };
    let mut switch = Switch::new();
    for (table, next) in [(5, 5), (5, 4), (0, 0), (5, 254), (5, 255), (253, 253)] {
        assert_eq!(
            switch.mod13(goto(table, next)),
            Err(Error::BadInstructionTableId),
            "{table} to {next}"
        );
    }
    switch.mod13(goto(252, 253)).unwrap();
    let back = with(goto(TABLE_ALL, 9), |change| {
        change.command = FlowModCommand::Modify
    });
    assert_eq!(switch.mod10(back), Err(Error::BadInstructionTableId));
    assert_eq!(
        &*switch.flows()[0].instructions,
        &[Instruction::GotoTable(253)],
        "and nothing changed"
    );
}

/// The switch's limit counts the rules of all tables. At the limit, rules can still be replaced and
/// deleted; a deleted rule makes room once no worker can see it.
#[test]
fn a_full_switch_takes_no_more() {
    let mut switch = Switch::new();
    let program = Arc::clone(&switch.program);
    program.rules.set_limit(program.rules.linked() + 2);
    switch.mod13(add(ip_src(1), 1)).unwrap();
    let elsewhere = |number| with(add(ip_src(number), 1), |change| change.table = 1);
    switch.mod13(elsewhere(2)).unwrap();
    assert_eq!(switch.mod13(add(ip_src(3), 1)), Err(Error::TableFull));
    assert_eq!(switch.mod13(elsewhere(3)), Err(Error::TableFull));
    for _ in 0..5 {
        switch.mod13(add(ip_src(1), 1)).unwrap();
    }
    let deletion = flow(FlowModCommand::DeleteStrict, ip_src(1), 1);
    switch.mod13(with(deletion, |_| ())).unwrap();
    switch.pipeline.commit();
    program.domain.publish();
    switch.pipeline.housekeep(usize::MAX);
    assert_eq!(switch.pipeline.waiting(), 0);
    switch.mod13(elsewhere(3)).unwrap();
    assert_eq!(switch.mod13(add(ip_src(1), 1)), Err(Error::TableFull));
    program.rules.set_limit(usize::MAX);
    switch.mod13(add(ip_src(1), 1)).unwrap();
}

/// Section 7.5.4.5 OFPFMFC_TABLE_FULL.
#[test]
fn a_full_table_takes_no_more() {
    let mut switch = Switch::new();
    switch.pipeline.set_table_limit(0, 2);
    switch.mod13(add(ip_src(1), 1)).unwrap();
    switch.mod13(add(ip_src(2), 1)).unwrap();
    assert_eq!(switch.mod13(add(ip_src(3), 1)), Err(Error::TableFull));
    switch.mod13(add(ip_src(2), 1)).unwrap();
    switch
        .mod13(with(add(ip_src(3), 1), |change| change.table = 1))
        .unwrap();
    let hidden = switch.pipeline.add_hidden(
        0,
        70_000,
        &Match::any(),
        &apply(&[output(1)]),
        Clock::from_ms(1),
    );
    assert_eq!(hidden, Ok(()), "hidden rules do not count");
    switch
        .mod13(with(
            flow(FlowModCommand::DeleteStrict, ip_src(1), 1),
            |_| (),
        ))
        .unwrap();
    switch.mod13(add(ip_src(3), 1)).unwrap();
}

/// Hidden rules are the switch's own: above all visible ones, and not reachable by flow mods.
#[test]
fn hidden_rules_are_out_of_reach() {
    let mut switch = Switch::new();
    let now = switch.clock();
    let normal = apply(&[output(port::NORMAL)]);
    assert_eq!(
        switch
            .pipeline
            .add_hidden(0, 65535, &Match::any(), &normal, now),
        Err(Error::FlowModPermission)
    );
    switch
        .pipeline
        .add_hidden(0, 70_000, &Match::any(), &normal, now)
        .unwrap();
    switch.mod13(add(Match::any(), 65535)).unwrap();
    assert_eq!(switch.flows().len(), 1);
    assert_eq!(switch.pipeline.aggregate(&everything()).flows, 1);
    let priorities: Vec<u32> = switch
        .pipeline
        .dump_all(now)
        .map(|rule| rule.priority)
        .collect();
    assert_eq!(priorities, [70_000, 65535]);
    assert_eq!(
        switch
            .mod13(flow(FlowModCommand::Delete, Match::any(), 0))
            .unwrap()
            .changed,
        1
    );
    assert_eq!(
        (switch.pipeline.rule_count(), switch.pipeline.hidden_count()),
        (0, 1)
    );
    assert!(!switch.pipeline.remove_hidden(0, 65535, &Match::any()));
    assert!(switch.pipeline.remove_hidden(0, 70_000, &Match::any()));
    assert!(!switch.pipeline.remove_hidden(0, 70_000, &Match::any()));
    assert_eq!(switch.pipeline.hidden_count(), 0);
}

/// Rules with the same instructions share one list, which is removed with the last of them.
#[test]
fn lists_of_actions_are_shared() {
    let mut switch = Switch::new();
    for address in 0..100 {
        let port = 1 + address % 3;
        let change = with(add(ip_src(address), 1), |change| {
            change.instructions = apply(&[output(port)]).into()
        });
        switch.mod13(change).unwrap();
    }
    assert_eq!(switch.pipeline.behaviour_count(), 3);
    let all = with(flow(FlowModCommand::Modify, Match::any(), 1), |change| {
        change.instructions = apply(&[output(9)]).into()
    });
    switch.mod13(all).unwrap();
    assert_eq!(switch.pipeline.behaviour_count(), 1);
    switch
        .mod13(flow(FlowModCommand::Delete, Match::any(), 1))
        .unwrap();
    assert_eq!(switch.pipeline.behaviour_count(), 0);
    let counters = switch.program.counters.in_use();
    switch.publish();
    switch.program.domain.collect();
    assert!(
        switch.program.counters.in_use() < counters,
        "counters come back once no worker can use them"
    );
}

/// A batch is undone completely: rules, order, counters, timeouts.
#[test]
fn a_batch_goes_as_a_whole() {
    let mut switch = Switch::new();
    for address in 0..6 {
        let change = with(add(ip_src(address), 1), |change| {
            change.cookie = address.into();
            change.hard_timeout = if address == 3 { 10 } else { 0 };
        });
        switch.mod13(change).unwrap();
    }
    switch.publish();
    switch.count(0, &ip_src(2), 5, 500);
    let before = switch.flows();
    let deadline = switch.pipeline.next_deadline();
    switch.pipeline.begin_batch();
    switch.mod13(add(ip_src(9), 1)).unwrap();
    switch
        .mod13(with(add(ip_src(2), 1), |change| {
            change.flags.reset_counts = true
        }))
        .unwrap();
    switch
        .mod13(flow(FlowModCommand::DeleteStrict, ip_src(3), 1))
        .unwrap();
    switch
        .mod13(flow(FlowModCommand::DeleteStrict, ip_src(0), 1))
        .unwrap();
    switch.mod13(add(ip_src(0), 1)).unwrap();
    switch
        .mod13(flow(FlowModCommand::Delete, Match::any(), 1))
        .unwrap();
    assert_eq!(switch.flows().len(), 0);
    switch.pipeline.roll_back();
    assert_eq!(switch.flows(), before);
    assert_eq!(switch.pipeline.next_deadline(), deadline);
    switch.publish();
    switch.program.domain.collect();
    switch.count(0, &ip_src(2), 1, 1);
    assert_eq!(
        switch.flows()[2].packets,
        6,
        "the old counter is still the rule's"
    );
    switch.pipeline.begin_batch();
    switch
        .mod13(flow(FlowModCommand::Delete, Match::any(), 1))
        .unwrap();
    switch.pipeline.end_batch();
    switch.publish();
    assert_eq!(switch.flows().len(), 0);
    assert_eq!(switch.pipeline.behaviour_count(), 0);
}

/// A flush removes all rules except hidden ones.
#[test]
fn flush_removes_what_is_visible() {
    let mut switch = Switch::new();
    let now = switch.clock();
    switch
        .mod13(with(add(ip_src(1), 1), |change| {
            change.flags.send_flow_rem = true
        }))
        .unwrap();
    switch
        .mod13(with(add(ip_src(1), 1), |change| change.table = 9))
        .unwrap();
    switch
        .pipeline
        .add_hidden(0, 70_000, &Match::any(), &apply(&[output(1)]), now)
        .unwrap();
    let outcome = switch.pipeline.flush(now);
    assert_eq!((outcome.changed, outcome.removed.len()), (2, 1));
    assert_eq!(
        (switch.pipeline.rule_count(), switch.pipeline.hidden_count()),
        (0, 1)
    );
}
