//! A case as a list of steps. One that fails is made shorter before it is shown, so that a reader
//! gets the few rules and packets that matter, in the words of `ovs-ofctl`.

use openflow::action::{Action, Instruction, LearnTarget};
use openflow::flow::{FlowMod, FlowModCommand};
use openflow::format;
use openflow::group::GroupMod;
use pipeline::reference::Effect;

/// Something that both switches get.
#[derive(Clone)]
pub enum Step {
    /// A change of the rules. It is in force when the next packet comes.
    Change(FlowMod),
    /// A change of the groups.
    Group(GroupMod),
    /// Packets in a row, each with its port; those of one port are a burst.
    Packets(Vec<(u32, Vec<u8>)>),
    /// Some milliseconds pass.
    Wait,
}

/// Returns the steps without any that are not needed for them to fail.
pub fn shortened(steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut steps = steps;
    loop {
        let before = steps.clone();
        let mut size = steps.len();
        while size > 0 {
            let mut from = 0;
            while from < steps.len() {
                let to = (from + size).min(steps.len());
                let fewer = [&steps[..from], &steps[to..]].concat();
                match fails(&fewer) {
                    true => steps = fewer,
                    false => from = to,
                }
            }
            size /= 2;
        }
        for at in 0..steps.len() {
            // Each simpler step may be made simpler again.
            while let Some(step) = (simpler(&steps[at]).into_iter()).find(|step| {
                let mut changed = steps.clone();
                changed[at] = step.clone();
                fails(&changed)
            }) {
                steps[at] = step;
            }
        }
        if describe(&before) == describe(&steps) {
            return steps;
        }
    }
}

/// Returns steps that do less. What rules match stays, because it is undefined which of two rules
/// of one priority a packet meets.
fn simpler(step: &Step) -> Vec<Step> {
    match step {
        Step::Wait | Step::Group(_) => Vec::new(),
        Step::Packets(packets) => (without_one(packets).into_iter())
            .map(Step::Packets)
            .collect(),
        Step::Change(change) => {
            let mut all = without_one(&change.instructions);
            for (at, instruction) in change.instructions.iter().enumerate() {
                let lists = match instruction {
                    Instruction::ApplyActions(actions) => lists(actions)
                        .into_iter()
                        .map(Instruction::ApplyActions)
                        .collect(),
                    Instruction::WriteActions(actions) => lists(actions)
                        .into_iter()
                        .map(Instruction::WriteActions)
                        .collect(),
                    _ => Vec::new(),
                };
                all.extend(lists.into_iter().map(|list| {
                    let mut changed = change.instructions.to_vec();
                    changed[at] = list;
                    changed
                }));
            }
            let all = all.into_iter().map(|list| {
                Step::Change(FlowMod {
                    instructions: list.into(),
                    ..change.clone()
                })
            });
            all.collect()
        }
    }
}

/// Returns lists of which each lacks one element.
fn without_one<T: Clone>(list: &[T]) -> Vec<Vec<T>> {
    (0..list.len())
        .map(|at| [&list[..at], &list[at + 1..]].concat())
        .collect()
}

/// Returns lists of actions that do less.
fn lists(actions: &[Action]) -> Vec<Vec<Action>> {
    let mut all = without_one(actions);
    for (at, action) in actions.iter().enumerate() {
        let fewer: Vec<Action> = match action {
            Action::Clone(inner) => lists(inner).into_iter().map(Action::Clone).collect(),
            Action::Learn(learn) => {
                let mut simple = vec![(**learn).clone(); 6];
                simple[0].limit = 0;
                simple[1].result = None;
                (simple[2].fin_idle_timeout, simple[2].fin_hard_timeout) = (0, 0);
                (simple[3].idle_timeout, simple[3].hard_timeout) = (0, 0);
                (simple[4].send_flow_rem, simple[4].delete_learned) = (false, false);
                simple[5].cookie = 0;
                for (at, spec) in learn.specs.iter().enumerate() {
                    if !matches!(spec.target, LearnTarget::Match(_)) {
                        let mut fewer = (**learn).clone();
                        fewer.specs.remove(at);
                        simple.push(fewer);
                    }
                }
                simple.retain(|simple| *simple != **learn);
                let simple = simple.into_iter().map(Box::new);
                simple.map(Action::Learn).collect()
            }
            _ => Vec::new(),
        };
        all.extend(fewer.into_iter().map(|action| {
            let mut changed = actions.to_vec();
            changed[at] = action;
            changed
        }));
    }
    all
}

/// Returns the steps in words, a line each.
pub fn describe(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Change(change) => {
                let command = match change.command {
                    FlowModCommand::Add => "add-flow",
                    FlowModCommand::Modify => "mod-flows",
                    FlowModCommand::ModifyStrict => "--strict mod-flows",
                    FlowModCommand::Delete => "del-flows",
                    FlowModCommand::DeleteStrict => "--strict del-flows",
                };
                text += &format!(
                    "{command} table={} cookie={}/{} ",
                    change.table, change.cookie, change.cookie_mask
                );
                format::matching(&mut text, &change.matching, change.priority.into());
                text += " actions=";
                format::instructions(&mut text, &change.instructions);
                text += match change.flags.reset_counts {
                    true => " (resets counters)\n",
                    false => "\n",
                };
            }
            Step::Group(change) => {
                text += &format!("{:?} group {}", change.command, change.group);
                for bucket in &change.buckets {
                    text += " bucket=";
                    format::actions(&mut text, &bucket.actions);
                }
                text += "\n";
            }
            Step::Packets(packets) => {
                for (port, bytes) in packets {
                    text += &format!("packet in_port={port} {}\n", hex(bytes));
                }
                text += "end of packets\n";
            }
            Step::Wait => text += "wait\n",
        }
    }
    text
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns what left, in words, one for each.
pub fn left(effects: &[Effect]) -> Vec<String> {
    let effects = effects.iter().map(|effect| {
        let (to, sent) = match effect {
            Effect::Output {
                port,
                to_in_port,
                sent,
            } => (format!("{port} {to_in_port}"), sent),
            Effect::All { flood, sent } => (format!("all {flood}"), sent),
            Effect::Normal(sent) => ("normal".into(), sent),
            Effect::Controller { bytes, .. } => {
                let mut told = effect.clone();
                if let Effect::Controller { bytes, .. } = &mut told {
                    bytes.clear();
                }
                return format!("{told:?} {}", hex(bytes));
            }
        };
        let (in_port, queue) = (sent.in_port, sent.queue);
        format!(
            "to {to} in_port={in_port} queue={queue:?} {}",
            hex(&sent.bytes)
        )
    });
    effects.collect()
}
