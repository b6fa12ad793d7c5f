//! The story that the twin tells of a walk.

mod common;

use common::generate::{Random, TABLES, change, frame};
use common::{Switch, add, apply, fields, output, with};
use openflow::action::{Action, Instruction};
use packet::key::at;
use packet::{Field, FlowKey};
use pipeline::twin;
use pipeline::twin::story::{Step, What};
use program::table::Miss;
use std::collections::HashMap;

fn key(in_port: u32) -> FlowKey {
    let mut key = FlowKey::ZERO;
    key.set_u32(at::IN_PORT, in_port);
    key.set_u16(at::ETH_TYPE, 0x0800);
    key
}

/// A story in one line: what each step is, and what lies under it.
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
            What::Copy => "copy".into(),
            What::Effect(_) => "effect".into(),
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
    let (outcome, story) = twin::trace(&switch.pipeline, &key(1), &packet, None, &|_| true);
    assert_eq!(
        sketch(&story.steps),
        "rule 0/5 [resubmit(,1) [rule 1/5 [clone(output:4) [copy [output:4 [effect]]]; \
         write_actions(output:3); action set is: output:3; goto_table:2 [miss 2]]]; resubmit(,7) [miss 7]; output:2 [effect]]; \
         set [output:3 [effect]]"
    );
    assert_eq!(outcome, twin::evaluate(&switch.pipeline, 1, &packet));
}

/// Bits that were not looked at may have any value: the same rules are met. And who listens changes nothing.
#[test]
fn what_was_not_looked_at_does_not_matter() {
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
            let (outcome, story) = twin::trace(&switch.pipeline, &first, &packet, None, &|_| true);
            assert_eq!(
                outcome,
                twin::evaluate(&switch.pipeline, in_port, &packet),
                "seed {seed}"
            );
            // Registers and metadata, which no header depends on.
            let mut other = first;
            for word in at::METADATA / 8..at::TUN_ID / 8 {
                other.words[word] |= random.next() & !story.looked_at.words[word];
            }
            let (again, _) = twin::trace(&switch.pipeline, &other, &packet, None, &|_| true);
            assert_eq!(outcome.hits, again.hits, "seed {seed}");
        }
    }
}
