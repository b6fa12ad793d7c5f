//! Changes of many rules in slices: they have the same result as at once, packets see them at one
//! moment, and reports have the counters up to that moment.

use crate::common::*;
use openflow::Version;
use openflow::action::Action;
use openflow::error::Error;
use openflow::flow::{FlowMod, FlowModCommand, FlowRemoved, FlowStats, TABLE_ALL};
use packet::{Field, FlowKey, Match};
use pipeline::{Begun, FlowModOutcome};
use proptest::prelude::*;

/// A rule described by few small numbers, so that a command often selects several.
#[derive(Clone, Debug)]
struct RuleValues {
    table: u8,
    source: u8,
    destination: Option<u8>,
    priority: u16,
    cookie: u64,
    port: u32,
    told: bool,
    /// The table and cookie of the rules that go with the last rule that learns such.
    learns: Option<(u8, u64)>,
}

fn kind() -> impl Strategy<Value = RuleValues> {
    (
        0..2_u8,
        0..4_u8,
        prop::option::of(0..4_u8),
        0..2_u16,
        0..3_u64,
        1..3_u32,
        any::<bool>(),
        prop::option::weighted(0.2, (0..2_u8, 0..3_u64)),
    )
        .prop_map(
            |(table, source, destination, priority, cookie, port, told, learns)| RuleValues {
                table,
                source,
                destination,
                priority,
                cookie,
                port,
                told,
                learns,
            },
        )
}

fn matching(source: Option<u8>, destination: Option<u8>) -> Match {
    let mut all = vec![(Field::EthType, 0x0800)];
    all.extend(source.map(|source| (Field::Ipv4Src, 0x0a00_0000 + u128::from(source))));
    all.extend(destination.map(|to| (Field::Ipv4Dst, 0x0b00_0000 + u128::from(to))));
    fields(&all)
}

/// Returns a priority of its own for each shape of rules: it is undefined which of several
/// overlapping rules with the same priority is met (OpenFlow 1.3.5 section 6.4).
fn rank(source: Option<u8>, destination: Option<u8>) -> u16 {
    u16::from(source.is_some()) + u16::from(destination.is_some())
}

impl RuleValues {
    fn add(&self) -> FlowMod {
        let matching = matching(Some(self.source), self.destination);
        let mut change = add(
            matching,
            3 * self.priority + rank(Some(self.source), self.destination),
        );
        change.table = self.table;
        change.cookie = self.cookie;
        let learn = self.learns.map(|(table, cookie)| {
            let mut learn = learning::learn_source(table, 0);
            (learn.delete_learned, learn.cookie) = (true, cookie);
            Action::Learn(Box::new(learn))
        });
        let actions: Vec<Action> = learn.into_iter().chain([output(self.port)]).collect();
        change.instructions = apply(&actions).into();
        change.flags.send_flow_rem = self.told;
        change
    }
}

/// A non-strict modify or delete.
#[derive(Clone, Debug)]
struct Wide {
    delete: bool,
    table: Option<u8>,
    source: Option<u8>,
    cookie: Option<u64>,
    out_port: Option<u32>,
    reset: bool,
    adds: bool,
    port: u32,
}

fn wide() -> impl Strategy<Value = Wide> {
    (
        any::<bool>(),
        prop::option::of(0..2_u8),
        prop::option::of(0..4_u8),
        prop::option::of(0..3_u64),
        prop::option::of(1..3_u32),
        any::<bool>(),
        any::<bool>(),
        1..5_u32,
    )
        .prop_map(
            |(delete, table, source, cookie, out_port, reset, adds, port)| Wide {
                delete,
                table,
                source,
                cookie,
                out_port,
                reset,
                adds,
                port,
            },
        )
}

impl Wide {
    fn change(&self) -> FlowMod {
        let command = if self.delete {
            FlowModCommand::Delete
        } else {
            FlowModCommand::Modify
        };
        let any = self.source.is_none() && self.delete;
        let matching = if any {
            Match::any()
        } else {
            matching(self.source, None)
        };
        let priority = if any { 0 } else { rank(self.source, None) };
        let mut change = flow(command, matching, priority);
        change.table = self
            .table
            .unwrap_or(if self.delete { TABLE_ALL } else { 0 });
        change.instructions = apply(&[output(self.port)]).into();
        change.flags.reset_counts = self.reset;
        change.modify_adds = self.adds;
        if let Some(cookie) = self.cookie {
            (change.cookie_filter, change.cookie_mask) = (cookie, u64::MAX);
        }
        if let Some(port) = self.out_port {
            change.out_port = port;
        }
        change
    }
}

/// Returns the rule that a worker now finds for packets of every kind: priority, cookie and
/// actions.
fn seen(switch: &Switch) -> Vec<Option<(u32, u64, String)>> {
    let mut reader = switch.program.domain.reader().unwrap();
    let guard = reader.begin();
    let mut all = Vec::new();
    for table in 0..2 {
        for source in 0..4 {
            for destination in 0..4 {
                let mut key = FlowKey::ZERO;
                for word in matching(Some(source), Some(destination)).words() {
                    key.words[usize::from(word.word)] |= word.value;
                }
                let found = switch.bridge.lookup(table, &key, &guard);
                all.push(found.map(|rule| {
                    let steps = format!("{:?}", rule.spec.ops.ops);
                    (rule.spec.priority, rule.spec.cookie, steps)
                }));
            }
        }
    }
    all
}

/// Carries out a change in slices of `budget` rules. Others publish between the slices, and see
/// nothing of the change.
fn in_slices(
    switch: &mut Switch,
    change: &FlowMod,
    budget: usize,
) -> Result<FlowModOutcome, Error> {
    let now = switch.clock();
    let mut sweep = match switch
        .pipeline
        .begin_flow_mod(change, Version::V1_3, now, budget)?
    {
        Begun::Done(outcome) => {
            switch.publish();
            return Ok(outcome);
        }
        Begun::Long(sweep) => sweep,
    };
    if sweep.has_changed() {
        switch.publish();
    }
    let before = seen(switch);
    while !switch.pipeline.seek(&mut sweep, budget)? {
        switch.program.domain.publish();
        assert_eq!(seen(switch), before);
    }
    let reserved = switch.program.domain.reserve();
    assert!(reserved.is_some());
    switch.pipeline.change_in(reserved);
    switch.pipeline.end_first(&mut sweep);
    let mut outcome = FlowModOutcome::default();
    loop {
        let applied = switch.pipeline.apply(&mut sweep, budget, &mut outcome, now);
        // Meanwhile other work goes on.
        switch.publish();
        switch.pipeline.housekeep(usize::MAX);
        switch.pipeline.shape_now();
        switch.program.domain.collect();
        assert_eq!(seen(switch), before);
        match applied {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => {
                switch.pipeline.change_in(None);
                switch.program.domain.publish_reserved();
                return Err(error);
            }
        }
    }
    switch.pipeline.change_in(None);
    switch.pipeline.commit();
    switch.program.domain.publish_reserved();
    let after = seen(switch);
    while !switch
        .pipeline
        .settle(&mut sweep, budget, &mut outcome, now)
    {
        switch.publish();
        switch.pipeline.housekeep(usize::MAX);
        switch.program.domain.collect();
        assert_eq!(seen(switch), after);
    }
    switch.publish();
    Ok(outcome)
}

fn told(mut outcome: FlowModOutcome) -> (Vec<FlowRemoved>, usize) {
    let removed = std::mem::take(&mut outcome.removed);
    (removed, outcome.changed)
}

/// Checks that both switches have the same rules, and that packets meet the same.
fn same(whole: &Switch, sliced: &Switch) {
    assert_eq!(whole.flows(), sliced.flows());
    assert_eq!(seen(whole), seen(sliced));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn slices_are_the_whole(
        rules in prop::collection::vec(kind(), 0..60),
        changes in prop::collection::vec((wide(), 1..7_usize, prop::collection::vec(kind(), 0..12)), 1..8),
    ) {
        let (mut whole, mut sliced) = (Switch::new(), Switch::new());
        for rule in &rules {
            for switch in [&mut whole, &mut sliced] {
                switch.mod13(rule.add()).unwrap();
            }
        }
        for (change, budget, more) in &changes {
            whole.publish();
            sliced.publish();
            let change = change.change();
            let at_once = whole.mod13(change.clone());
            whole.publish();
            let slowly = in_slices(&mut sliced, &change, *budget);
            prop_assert_eq!(at_once.map(told), slowly.map(told));
            same(&whole, &sliced);
            for rule in more {
                whole.mod13(rule.add()).unwrap();
                sliced.mod13(rule.add()).unwrap();
            }
        }
        whole.pipeline.flush(whole.clock());
        sliced.pipeline.flush(sliced.clock());
        for switch in [&mut whole, &mut sliced] {
            switch.publish();
            switch.pipeline.housekeep(usize::MAX);
            prop_assert!(switch.flows().is_empty() && seen(switch).iter().all(Option::is_none));
            prop_assert_eq!(switch.pipeline.waiting(), 0);
        }
    }

    #[test]
    fn a_batch_in_slices_is_kept_or_undone_as_a_whole(
        rules in prop::collection::vec(kind(), 0..60),
        messages in prop::collection::vec(prop_oneof![
            3 => kind().prop_map(|kind| kind.add()),
            1 => wide().prop_map(|wide| wide.change()),
        ], 1..30),
        budget in 1..7_usize,
        keeps in any::<bool>(),
    ) {
        let (mut whole, mut sliced) = (Switch::new(), Switch::new());
        for rule in &rules {
            for switch in [&mut whole, &mut sliced] {
                switch.mod13(rule.add()).unwrap();
            }
        }
        whole.publish();
        sliced.publish();
        let mut at_once = Vec::new();
        if keeps {
            for message in &messages {
                at_once.extend(told(whole.mod13(message.clone()).unwrap()).0);
            }
            whole.publish();
        }
        let before = seen(&sliced);
        let reserved = sliced.program.domain.reserve();
        sliced.pipeline.change_in(reserved);
        sliced.pipeline.begin_batch();
        let now = sliced.clock();
        let mut outcome = FlowModOutcome::default();
        for message in &messages {
            let begun = sliced.pipeline.begin_flow_mod(message, Version::V1_3, now, budget).unwrap();
            match begun {
                Begun::Done(done) => outcome.extend(done),
                Begun::Long(mut sweep) => {
                    while !sliced.pipeline.seek(&mut sweep, budget).unwrap() {}
                    while !sliced.pipeline.apply(&mut sweep, budget, &mut outcome, now).unwrap() {
                        sliced.publish();
                    }
                }
            }
            sliced.publish();
            sliced.pipeline.housekeep(usize::MAX);
            // What is still to be undone must not have been freed.
            sliced.program.domain.collect();
            prop_assert_eq!(&seen(&sliced), &before);
        }
        if keeps {
            sliced.pipeline.keep_batch();
        } else {
            while !sliced.pipeline.roll_back_some(budget) {
                sliced.publish();
                sliced.program.domain.collect();
                prop_assert_eq!(&seen(&sliced), &before);
            }
        }
        sliced.pipeline.change_in(None);
        sliced.pipeline.commit();
        sliced.program.domain.publish_reserved();
        while !sliced.pipeline.tidy(budget) {}
        if keeps {
            prop_assert_eq!(at_once, outcome.removed);
        }
        same(&whole, &sliced);
        sliced.pipeline.housekeep(usize::MAX);
        sliced.pipeline.shape_now();
        sliced.program.domain.collect();
        same(&whole, &sliced);
        prop_assert_eq!(sliced.pipeline.waiting(), 0);
    }
}

fn many(switch: &mut Switch, rules: u32, change: impl Fn(&mut FlowMod)) {
    for number in 0..rules {
        let mut rule = add(
            fields(&[
                (Field::EthType, 0x0800),
                (Field::Ipv4Src, 0x0a00_0000 + u128::from(number)),
            ]),
            1,
        );
        change(&mut rule);
        switch.mod13(rule).unwrap();
    }
    switch.publish();
}

/// A rule counts until the moment from which packets no longer meet it, and controllers are told
/// the final count.
#[test]
fn flow_removed_has_the_final_counters() {
    let mut switch = Switch::new();
    many(&mut switch, 1000, |rule| rule.flags.send_flow_rem = true);
    let now = switch.clock();
    let everything = flow(FlowModCommand::Delete, Match::any(), 0);
    let begun = switch
        .pipeline
        .begin_flow_mod(&everything, Version::V1_3, now, 100)
        .unwrap();
    let Begun::Long(mut sweep) = begun else {
        panic!("a thousand rules at once");
    };
    while !switch.pipeline.seek(&mut sweep, 100).unwrap() {}
    assert_eq!(sweep.found(), 1000);
    switch.pipeline.change_in(switch.program.domain.reserve());
    switch.pipeline.end_first(&mut sweep);
    let mut outcome = FlowModOutcome::default();
    while !switch
        .pipeline
        .apply(&mut sweep, 100, &mut outcome, now)
        .unwrap()
    {}
    let last = fields(&[
        (Field::EthType, 0x0800),
        (Field::Ipv4Src, 0x0a00_0000 + 999),
    ]);
    switch.count(0, &last, 7, 700);
    switch.pipeline.change_in(None);
    switch.pipeline.commit();
    switch.program.domain.publish_reserved();
    while !switch.pipeline.settle(&mut sweep, 100, &mut outcome, now) {}
    let counted: Vec<&FlowStats> = outcome
        .removed
        .iter()
        .map(|removed| &removed.stats)
        .collect();
    assert_eq!(counted.len(), 1000);
    assert_eq!((counted[999].packets, counted[999].bytes), (7, 700));
    assert!(counted[..999].iter().all(|stats| stats.packets == 0));
}

/// However many rules are due, each call removes a bounded number and reports that more are due,
/// until all are gone.
#[test]
fn expired_rules_are_removed_in_slices() {
    let mut switch = Switch::new();
    let rules = 3 * pipeline::EXPIRE_MAX as u32 + 7;
    many(&mut switch, rules, |rule| rule.idle_timeout = 1);
    switch.now += 10_000;
    let mut gone = 0;
    let mut calls = 0;
    while switch
        .pipeline
        .next_deadline()
        .is_some_and(|next| next <= switch.clock())
    {
        let now = switch.clock();
        let outcome = switch.pipeline.expire(now);
        assert!(outcome.changed <= pipeline::EXPIRE_MAX);
        gone += outcome.changed;
        calls += 1;
        switch.publish();
    }
    assert_eq!(gone, rules as usize);
    assert_eq!(calls, 4);
    assert!(switch.flows().is_empty());
}

/// Rules in use are examined when they might be due, and stay. However many there are, they count
/// against the bound of a call, too.
#[test]
fn rules_in_use_count_against_a_slice() {
    let mut switch = Switch::new();
    let rules = pipeline::EXPIRE_MAX as u32 + 1;
    many(&mut switch, rules, |rule| rule.idle_timeout = 1);
    switch.now += 900;
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    for number in 0..rules {
        let matching = fields(&[
            (Field::EthType, 0x0800),
            (Field::Ipv4Src, 0x0a00_0000 + u128::from(number)),
        ]);
        let mut key = FlowKey::ZERO;
        for word in matching.words() {
            key.words[usize::from(word.word)] = word.value;
        }
        let guard = reader.begin();
        let rule = switch.bridge.lookup(0, &key, &guard).unwrap();
        let counters = &switch.program.counters;
        counters.add(guard.index(), rule.spec.counter, 1, 64, switch.now);
    }
    reader.offline();
    switch.now += 200;
    let now = switch.clock();
    assert_eq!(switch.pipeline.expire(now).changed, 0);
    assert!(
        switch.pipeline.next_deadline().unwrap() <= now,
        "one is left to be looked at"
    );
    assert_eq!(switch.pipeline.expire(now).changed, 0);
    assert!(switch.pipeline.next_deadline().unwrap() > now);
    assert_eq!(switch.flows().len(), rules as usize);
}

/// Rules that were learned are deleted with the rule that learned them in slices, however few rules
/// the command itself selects.
#[test]
fn learned_rules_go_in_slices() {
    let strictly = |command| flow(command, fields(&[(Field::InPort, 1)]), 1);
    learned_rules_go(|pipeline, now| {
        let delete = strictly(FlowModCommand::DeleteStrict);
        (pipeline.begin_flow_mod(&delete, Version::V1_3, now, SLICE)).unwrap()
    });
    // The rule is replaced by one that learns nothing, and modified to one.
    for command in [FlowModCommand::Add, FlowModCommand::ModifyStrict] {
        learned_rules_go(|pipeline, now| {
            let mut change = strictly(command);
            change.instructions = apply(&[]).into();
            (pipeline.begin_flow_mod(&change, Version::V1_3, now, SLICE)).unwrap()
        });
    }
    learned_rules_go(|pipeline, now| {
        pipeline.begin_expire(pipeline::Clock::from_ms(now.ms() + 60_000))
    });
}

/// Budget of a slice.
const SLICE: usize = 64;

/// Carries out a change by which a rule goes that has learned 900 of 1,000.
fn learned_rules_go(
    begin: impl FnOnce(&mut pipeline::Pipeline, pipeline::Clock) -> Begun<'static>,
) {
    const LEARNED: u128 = 1000;
    const BUDGET: usize = SLICE;
    let mut switch = Switch::new();
    let mut learn = learning::learn_source(1, 0);
    (learn.delete_learned, learn.cookie) = (true, 7);
    let mut teacher = add(fields(&[(Field::InPort, 1)]), 1);
    teacher.instructions = apply(&[Action::Learn(Box::new(learn))]).into();
    teacher.hard_timeout = 10;
    switch.mod13(teacher).unwrap();
    for number in 0..LEARNED {
        let mut rule = add(fields(&[(Field::EthSrc, number)]), 1);
        (rule.table, rule.cookie) = (1, 7 + u64::from(number % 10 == 9));
        switch.mod13(rule).unwrap();
    }
    switch.publish();
    let before = switch.flows().len();
    let now = switch.clock();
    let begun = begin(&mut switch.pipeline, now);
    let Begun::Long(mut sweep) = begun else {
        panic!("{begun:?}");
    };
    assert!(
        before - switch.flows().len() <= 1,
        "nothing learned goes at once"
    );
    while !switch.pipeline.seek(&mut sweep, BUDGET).unwrap() {}
    let mut outcome = FlowModOutcome::default();
    let (mut slices, mut before) = (1, 0);
    while !(switch.pipeline)
        .apply(&mut sweep, BUDGET, &mut outcome, now)
        .unwrap()
    {
        assert!(outcome.changed - before <= BUDGET, "in slice {slices}");
        (slices, before) = (slices + 1, outcome.changed);
    }
    assert_eq!(outcome.changed, 901);
    assert!(slices > 900 / BUDGET, "{slices} slices");
    assert!(switch.flows().len() <= 101);
}
