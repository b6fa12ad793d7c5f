//! The story that the reference reports of a walk.

use crate::common::generate::{Random, TABLES, change, frame};
use crate::common::{Switch, add, apply, fields, output, with};
use openflow::action::{Action, Instruction};
use packet::key::at;
use packet::{Field, FlowKey};
use pipeline::reference;
use pipeline::reference::Surroundings;
use pipeline::reference::story::{Step, What};
use program::table::Miss;
use std::collections::HashMap;

fn key(in_port: u32) -> FlowKey {
    let mut key = FlowKey::ZERO;
    key.set_u32(at::IN_PORT, in_port);
    key.set_u16(at::ETH_TYPE, 0x0800);
    key
}

/// Returns a story in one line: each step, with its nested steps.
fn sketch(steps: &[Step]) -> String {
    let one = |step: &Step| {
        let what = match &step.what {
            What::Rule {
                table, priority, ..
            } => format!("rule {table}/{priority}"),
            What::Missed { table, .. } => format!("miss {table}"),
            What::Action(action) => {
                let mut text = String::new();
                openflow::format::actions(&mut text, std::slice::from_ref(action));
                text
            }
            What::Instruction(instruction) => {
                let mut text = String::new();
                openflow::format::instructions(&mut text, std::slice::from_ref(instruction));
                text
            }
            What::ActionSet => "set".into(),
            What::Copy(_) => "copy".into(),
            What::Effect(_) => "effect".into(),
            What::Tracked(_) => "tracked".into(),
            What::Untracked => "untracked".into(),
            What::Nothing => "nothing".into(),
            What::FirstLabel(_) => "first label".into(),
            What::Bucket(text) | What::Detail(text) | What::Warning(text) | What::Error(text) => {
                text.clone()
            }
        };
        match &step.steps[..] {
            [] => what,
            steps => format!("{what} [{}]", sketch(steps)),
        }
    };
    steps.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn resubmit(table: u8) -> Action {
    Action::Resubmit {
        in_port: None,
        table: Some(table),
        with_ct_orig: false,
    }
}

#[test]
fn steps_lie_under_what_led_to_them() {
    let mut switch = Switch::new();
    let ip = fields(&[(Field::EthType, 0x0800)]);
    let tables = [
        (0, apply(&[resubmit(1), resubmit(7), output(2)])),
        (
            1,
            vec![
                Instruction::ApplyActions(vec![Action::Clone(vec![output(4)])]),
                Instruction::WriteActions(vec![output(3)]),
                Instruction::GotoTable(2),
            ],
        ),
    ];
    for (table, instructions) in tables {
        let rule = with(add(ip.clone(), 5), |rule| {
            rule.table = table;
            rule.instructions = instructions.into();
        });
        switch.mod13(rule).unwrap();
    }
    let frame = frame(&mut Random(5), [0x08, 0x00]);
    let mut packet = frame.clone();
    packet[12..14].copy_from_slice(&[0x08, 0x00]);
    let (outcome, story) = reference::trace(
        &switch.pipeline,
        &key(1),
        &packet,
        None,
        Surroundings::default(),
    );
    assert_eq!(
        sketch(&story.steps),
        "rule 0/5 [resubmit(,1) [rule 1/5 [clone(output:4) [copy [output:4 [effect]]]; \
         write_actions(output:3); action set is: output:3; goto_table:2 [miss 2]]]; resubmit(,7) [miss 7]; output:2 [effect]]; \
         set [output:3 [effect]]"
    );
    assert_eq!(outcome, reference::evaluate(&switch.pipeline, 1, &packet));
}

/// Surroundings whose caller carries out what the packet learns.
fn carries_out() -> Surroundings<'static> {
    Surroundings {
        learns: true,
        ..Surroundings::default()
    }
}

/// Bits that were not looked at may have any value: the same rules are met. And recording a story
/// changes nothing.
#[test]
fn wildcarded_bits_of_a_story_do_not_change_the_path() {
    for seed in 0..150_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = random.next());
        let mut switch = Switch::new();
        for table in 0..=TABLES as u8 {
            let miss = random.pick(&[Miss::Drop, Miss::Controller, Miss::Next]);
            switch.pipeline.set_miss(table, miss);
        }
        let mut known = HashMap::new();
        for _ in 0..40 {
            let change = change(&mut random, &mut known);
            let _ = switch.mod10(change);
        }
        for _ in 0..10 {
            let tail = [random.next() as u8, random.next() as u8];
            let packet = frame(&mut random, tail);
            let in_port = 1 + random.below(4) as u32;
            let mut first = FlowKey::ZERO;
            first.set_u32(at::IN_PORT, in_port);
            first.set_u16(at::ETH_TYPE, 1);
            let (outcome, story) =
                reference::trace(&switch.pipeline, &first, &packet, None, carries_out());
            assert_eq!(
                outcome,
                reference::evaluate(&switch.pipeline, in_port, &packet),
                "seed {seed}"
            );
            // Registers and metadata, on which no header depends.
            let mut other = first;
            for word in at::METADATA / 8..at::TUN_ID / 8 {
                other.words[word] |= random.next() & !story.looked_at.words[word];
            }
            let (again, _) =
                reference::trace(&switch.pipeline, &other, &packet, None, carries_out());
            assert_eq!(outcome.hits, again.hits, "seed {seed}");
        }
    }
}

fn actions(text: &str) -> Vec<Action> {
    openflow::parse::actions(text, &openflow::parse::no_names).unwrap()
}

/// Returns all effects of a story, with the packet's key when each left.
fn effects(steps: &[Step]) -> Vec<(reference::Effect, FlowKey)> {
    let one = |step: &Step| match &step.what {
        What::Effect(effect) => vec![(**effect).clone()],
        _ => effects(&step.steps),
    };
    steps.iter().flat_map(one).collect()
}

/// Returns a UDP packet from 1.1.1.1, port 1, to 2.2.2.3, port 5; `place` is the flags and offset
/// of a fragment.
fn fragment(place: u16) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 36, 0, 0]);
    frame.extend(place.to_be_bytes());
    frame.extend([64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 0, 1, 0, 5]);
    frame.extend([0; 12]);
    frame
}

#[test]
fn enqueue_shows_the_queue() {
    let mut switch = Switch::new();
    let rule = with(add(fields(&[]), 5), |rule| {
        rule.instructions = apply(&actions("enqueue:2:7,output:3")).into();
    });
    switch.mod10(rule).unwrap();
    let surroundings = Surroundings::default();
    let (_, story) = reference::trace(&switch.pipeline, &key(1), &fragment(0), None, surroundings);
    let queues = effects(&story.steps);
    let queues: Vec<u32> = queues
        .iter()
        .map(|(_, key)| key.u32(at::SKB_PRIORITY))
        .collect();
    assert_eq!(queues, [7, 0]);
}

#[test]
fn first_fragments_match_with_ports_of_zero_where_they_are_hidden() {
    let mut switch = Switch::new();
    for (port, out) in [(5, 3), (0, 2)] {
        let matching = fields(&[
            (Field::EthType, 0x0800),
            (Field::IpProto, 17),
            (Field::UdpDst, port),
        ]);
        let rule = with(add(matching, 5), |rule| {
            rule.instructions = apply(&[output(out)]).into();
        });
        switch.mod10(rule).unwrap();
    }
    for (place, hides, out) in [
        (0x2000, true, 2),
        (0x2000, false, 3),
        (0, true, 3),
        (100, true, 2),
        (100, false, 2),
    ] {
        let surroundings = Surroundings {
            hides_fragment_ports: hides,
            ..Surroundings::default()
        };
        let frame = fragment(place);
        let (outcome, story) =
            reference::trace(&switch.pipeline, &key(1), &frame, None, surroundings);
        let sent =
            matches!(outcome.effects[..], [reference::Effect::Output { port, .. }] if port == out);
        assert!(sent, "{place:#x} {hides}: {:?}", outcome.effects);
        assert_eq!(story.before, story.after, "what is hidden is not changed");
    }
}

#[test]
fn learned_rules_are_told_where_somebody_makes_them() {
    let mut switch = Switch::new();
    let learn = "learn(table=1,limit=1,cookie=5,idle_timeout=4,send_flow_rem,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])";
    let rule = with(add(fields(&[]), 5), |rule| {
        rule.instructions = apply(&actions(learn)).into();
    });
    switch.mod10(rule).unwrap();
    let mut frame = fragment(0);
    for (source, learns, wanted) in [
        (
            1,
            false,
            "suppressing side effects, so learn action ignored",
        ),
        (
            1,
            true,
            "table=1 dl_dst=02:02:02:02:02:01 priority=32768 cookie=0x5 idle=4 send_flow_rem actions=output:1",
        ),
        (
            2,
            true,
            "table=1 dl_dst=02:02:02:02:02:02 priority=32768 cookie=0x5 idle=4 send_flow_rem actions=output:1; \
             Limit exceeded, learn failed",
        ),
    ] {
        frame[11] = source;
        let surroundings = Surroundings {
            learns,
            ..Surroundings::default()
        };
        let (outcome, story) =
            reference::trace(&switch.pipeline, &key(1), &frame, None, surroundings);
        let told = sketch(&story.steps);
        assert!(told.ends_with(&format!(" [{wanted}]]")), "{told}");
        for change in outcome.learned.iter().filter(|_| learns) {
            switch.mod10(change.clone()).unwrap();
        }
    }
}

/// A trace that only reports does not go beyond a pause, which a controller would have to end, and
/// learns no rules.
#[test]
fn a_trace_without_side_effects_stops_at_a_pause_and_learns_nothing() {
    let mut switch = Switch::new();
    let list = "learn(table=1,limit=9,result_dst=NXM_NX_REG0[1],NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]),\
                pop:NXM_NX_REG1[],controller(pause),output:2";
    let rule = with(add(fields(&[]), 5), |rule| {
        rule.instructions = apply(&actions(list)).into();
    });
    switch.mod10(rule).unwrap();
    for (surroundings, result, effects) in [(Surroundings::default(), 0, 0), (carries_out(), 2, 1)]
    {
        let (outcome, story) =
            reference::trace(&switch.pipeline, &key(1), &fragment(0), None, surroundings);
        let told = sketch(&story.steps);
        assert!(
            told.contains("pop:NXM_NX_REG1[] [stack underflow]"),
            "{told}"
        );
        let is_told = told.contains("NXM_NX_REG0[1] is now 0x1");
        assert_eq!(is_told, result != 0, "{told}");
        assert!(!told.contains("output:2"), "{told}");
        assert_eq!(story.after.u32(at::REG0), result);
        assert_eq!(outcome.learned.len(), effects);
        assert_eq!(outcome.effects.len(), effects);
    }
}

/// A key may have a tag's bits without a tag; rules see them until the packet gets one.
#[test]
fn a_tag_that_is_not_there_has_bits_in_flows_only() {
    let mut switch = Switch::new();
    let rules = [
        (0, fields(&[]), "resubmit(,1),mod_vlan_vid:7,resubmit(,2)"),
        (1, fields(&[(Field::VlanTci, 5)]), "output:2"),
        (2, fields(&[(Field::VlanTci, 0x1007)]), "output:3"),
    ];
    for (table, matching, list) in rules {
        let rule = with(add(matching, 5), |rule| {
            rule.table = table;
            rule.instructions = apply(&actions(list)).into();
        });
        switch.mod10(rule).unwrap();
    }
    let mut bare = key(1);
    bare.set_u16(at::VLAN_TCI, 5);
    let surroundings = Surroundings::default();
    let (outcome, story) =
        reference::trace(&switch.pipeline, &bare, &fragment(0), None, surroundings);
    assert_eq!(outcome.effects.len(), 2);
    assert_eq!(story.before.u16(at::VLAN_TCI), 5);
    assert_eq!(story.after.u16(at::VLAN_TCI), 0x1007);
}

#[test]
fn a_full_stack_is_told_by_its_name() {
    let mut switch = Switch::new();
    let pushes = vec![actions("push:NXM_NX_REG0[]")[0].clone(); program::exec::MAX_STACK + 1];
    let rule = with(add(fields(&[]), 5), |rule| {
        rule.instructions = apply(&pushes).into();
    });
    switch.mod10(rule).unwrap();
    let surroundings = Surroundings::default();
    let (outcome, story) =
        reference::trace(&switch.pipeline, &key(1), &fragment(0), None, surroundings);
    assert!(outcome.cut_short);
    let told = sketch(&story.steps);
    assert!(
        told.ends_with("[over 1024 values on the stack]]"),
        "{}",
        &told[told.len() - 100..]
    );
}
