//! Learned rules in the reference: computed from the action itself, bit by bit, into the flow mod
//! that a controller would send. The caller carries the flow mods out when the packet is done,
//! because a packet does not meet the rules that it learns.

use super::story::What;
use super::{Machine, ones};
use crate::state::options::Options;
use openflow::action::{Action, Instruction, Learn, LearnSource, LearnTarget, Subfield};
use openflow::flow::{FlowFlags, FlowMod, FlowModCommand};
use openflow::port;
use packet::key::at;
use packet::{Field, Match, Value};

/// The TCP flags FIN and RST.
const ENDS: u16 = 0x05;

/// A rule whose timeouts a packet shortens (`fin_timeout`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Index of the rule among the packet's hits.
    pub hit: usize,
    /// Seconds, 0 for no change.
    pub idle: u16,
    /// Seconds, 0 for no change.
    pub hard: u16,
}

impl Machine<'_> {
    /// Executes `learn`: notes the rule, unless `limit` leaves no room for it.
    pub(super) fn learn(&mut self, learn: &Learn) {
        if self.teller.is_some() && !self.learns {
            return self
                .say(|| What::Warning("suppressing side effects, so learn action ignored".into()));
        }
        let change = self.learned_rule(learn);
        let known = self.has_rule(&change);
        let room = known || learn.limit == 0 || self.rules_like(&change) < learn.limit as usize;
        self.tell_learned(&change);
        if room && !known {
            self.outcome.learned.push(change);
        }
        if let Some(result) = &learn.result {
            self.write(result, u128::from(room));
            self.explain_written(result);
        }
        if !room {
            self.say(|| What::Detail("Limit exceeded, learn failed".into()));
        }
    }

    /// Reports the learned rule in the story, in Open vSwitch's words.
    fn tell_learned(&mut self, change: &FlowMod) {
        self.say(|| {
            let mut text = format!("table={} ", change.table);
            openflow::format::matching(
                &mut text,
                &change.matching,
                openflow::format::DEFAULT_PRIORITY,
            );
            text.truncate(text.trim_end().len());
            text += &format!(" priority={}", change.priority);
            if change.cookie != 0 {
                text += &format!(" cookie={:#x}", change.cookie);
            }
            for (name, seconds) in [("idle", change.idle_timeout), ("hard", change.hard_timeout)] {
                if seconds != 0 {
                    text += &format!(" {name}={seconds}");
                }
            }
            if change.flags.send_flow_rem {
                text += " send_flow_rem";
            }
            text += " actions=";
            openflow::format::instructions(&mut text, &change.instructions);
            What::Detail(text)
        });
    }

    /// Executes `fin_timeout` of the rule that is being carried out.
    pub(super) fn fin_timeout(&mut self, idle: u16, hard: u16) {
        self.look_at(Field::TcpFlags);
        let ends = self.key.u16(at::TCP_FLAGS) & ENDS != 0;
        if let (true, Some(hit)) = (ends, self.within.last().copied()) {
            self.outcome.ended.push(Ended { hit, idle, hard });
        }
    }

    /// Returns the flow mod of the learned rule, like that of `ovs-ofctl --strict mod-flows`, which
    /// adds (ovs-actions(7)).
    fn learned_rule(&mut self, learn: &Learn) -> FlowMod {
        let mut matching = Match::any();
        let mut actions = Vec::new();
        if learn.fin_idle_timeout > 0 || learn.fin_hard_timeout > 0 {
            actions.push(Action::FinTimeout {
                idle: learn.fin_idle_timeout,
                hard: learn.fin_hard_timeout,
            });
        }
        for spec in &learn.specs {
            let (value, bits) = match &spec.source {
                LearnSource::Field(from) => (self.read(from), from.bits),
                LearnSource::Immediate { value, bits } => (*value, *bits),
            };
            match &spec.target {
                LearnTarget::Match(to) => {
                    add_bits(&mut matching, to, value, &self.pipeline.options);
                }
                LearnTarget::Load(to) => {
                    let mut done = 0;
                    while done < to.bits {
                        let bits = (to.bits - done).min(64);
                        actions.push(Action::Load {
                            dst: Subfield {
                                field: to.field,
                                start: to.start + done,
                                bits,
                            },
                            value: (value >> done & ones(bits)) as u64,
                        });
                        done += bits;
                    }
                }
                LearnTarget::Output => actions.extend(output(value, bits)),
            }
        }
        FlowMod {
            command: FlowModCommand::ModifyStrict,
            table: learn.table,
            matching,
            priority: learn.priority,
            cookie: if learn.cookie == u64::MAX {
                0
            } else {
                learn.cookie
            },
            cookie_filter: 0,
            cookie_mask: 0,
            modify_cookie: learn.cookie != u64::MAX,
            modify_adds: true,
            idle_timeout: learn.idle_timeout,
            hard_timeout: learn.hard_timeout,
            importance: 0,
            flags: FlowFlags {
                send_flow_rem: learn.send_flow_rem,
                ..FlowFlags::default()
            },
            out_port: port::ANY,
            out_group: u32::MAX,
            buffer_id: u32::MAX,
            instructions: vec![Instruction::ApplyActions(actions)].into(),
        }
    }

    /// Returns whether a rule that does the same exists or has been learned by this packet.
    fn has_rule(&self, change: &FlowMod) -> bool {
        self.rules_after(change.table).iter().any(|rule| {
            rule.is_of(change)
                && (!change.modify_cookie || rule.cookie == change.cookie)
                && *rule.instructions == *change.instructions
        })
    }

    /// Returns the number of rules with the table and cookie when what this packet has learned so
    /// far has been carried out.
    fn rules_like(&self, change: &FlowMod) -> usize {
        let rules = self.rules_after(change.table);
        rules
            .iter()
            .filter(|rule| rule.cookie == change.cookie)
            .count()
    }

    /// Returns a table's rules as they are when what this packet has learned so far has been
    /// carried out.
    fn rules_after(&self, table: u8) -> Vec<After<'_>> {
        let there = self.pipeline.store.table(table).map(|(_, rule)| rule);
        let mut rules: Vec<After<'_>> = there
            .filter(|rule| !rule.is_hidden())
            .map(|rule| After {
                priority: rule.priority,
                matching: rule.matching(),
                cookie: rule.cookie,
                instructions: &rule.behaviour.instructions,
            })
            .collect();
        for learned in self.outcome.learned.iter().filter(|it| it.table == table) {
            match rules.iter_mut().find(|rule| rule.is_of(learned)) {
                Some(rule) => {
                    rule.instructions = &learned.instructions;
                    if learned.modify_cookie {
                        rule.cookie = learned.cookie;
                    }
                }
                None => rules.push(After {
                    priority: learned.priority.into(),
                    matching: &learned.matching,
                    cookie: learned.cookie,
                    instructions: &learned.instructions,
                }),
            }
        }
        rules
    }
}

/// What counts of a rule for those that would be learned after it.
struct After<'a> {
    priority: u32,
    matching: &'a Match,
    cookie: u64,
    instructions: &'a [Instruction],
}

impl After<'_> {
    /// Returns whether a strict change is of this rule.
    fn is_of(&self, change: &FlowMod) -> bool {
        self.priority == u32::from(change.priority) && *self.matching == change.matching
    }
}

/// Adds bits to a match, one by one.
fn add_bits(matching: &mut Match, to: &Subfield, number: u128, options: &Options) {
    let def = to.field.def();
    if let Some(option) = to.field.tunnel_option() {
        if let Some(place) = options.place(option) {
            let (start, length) = (to.start.into(), place.length());
            let value = Value::from_u128_at(number, start, length);
            let mask = Value::ones_at(start, to.bits.into(), length);
            matching.set_bytes(place.start, &value, &mask);
            matching.set_option_present(option);
        }
        return;
    }
    let number = if to.field == Field::InPort && usize::from(to.bits) == def.action_bits {
        return matching.set_exact(Field::InPort, port::from_u16(number as u16).into());
    } else {
        number
    };
    let (mut value, mut mask) = (Value::zero(def.bytes), Value::zero(def.bytes));
    for bit in 0..to.bits {
        let Some(place) = usize::from(to.start + bit).checked_sub(def.wire_shift) else {
            continue; // bits below the field, which read as zero
        };
        let place = place + def.shift;
        let (byte, one) = (def.bytes - 1 - place / 8, 1 << (place % 8));
        mask[byte] |= one;
        if number >> bit & 1 == 1 {
            value[byte] |= one;
        }
    }
    matching.set_bytes(def.offset, &value, &mask);
}

/// Returns an output to an ordinary port, or to one of the four reserved ones that a learned rule
/// may name.
fn output(number: u128, bits: u16) -> Option<Action> {
    let number = match number {
        0..=0xffff => port::from_u16(number as u16),
        _ if bits > 16 => u32::try_from(number).ok()?,
        _ => return None,
    };
    let usable = number < port::MAX
        || [port::IN_PORT, port::FLOOD, port::LOCAL, port::ALL].contains(&number);
    usable.then_some(Action::Output {
        port: number,
        max_len: 0,
    })
}
