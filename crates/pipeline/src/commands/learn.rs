//! Learn requests: rules that packets ask for (`NXAST_LEARN`), and the options of such actions.
//!
//! A worker reports which rule a packet wants ([`program::actions::learn::Request`]); it is
//! converted to a flow mod, a strict modify that adds, and carried out like one of a controller. If
//! the rule exists already and does the same, only its hard timeout restarts. `delete_learned` and
//! `limit` depend on the rules of one table and cookie: such pairs are watched from when the first
//! rule names them until the last such rule has gone, so that counting needs no search. The
//! deletion by `delete_learned` does search the table.

use crate::commands::sweep::Orphans;
use crate::state::learned::{Learned, Watched, cookie_of};
use crate::state::store::{Rule, RuleId};
use crate::{Clock, FlowModOutcome, Pipeline, check};
use openflow::Version;
use openflow::action::{Action, Instruction, Learn, LearnSource, LearnTarget, Subfield};
use openflow::error::Error;
use openflow::flow::{FlowFlags, FlowMod, FlowModCommand};
use openflow::port;
use packet::Match;
use program::actions::Bits;
use program::actions::learn::{self, Ended, LearnOutcome, NO_COOKIE, Target};

/// The highest table into which a rule may be learned.
const LAST_TABLE: u8 = 253;
/// Maximum bits of one element.
const WIDEST: u16 = 128;
/// Bits that one load writes.
const LOADED: u16 = 64;

impl check::Situation<'_> {
    /// Checks like Open vSwitch's `learn_check`: packets that reach the action must have the fields
    /// that are read, and packets that the new rule matches must have the fields that it names.
    pub(crate) fn learn(&mut self, learn: &Learn) -> Result<(), Error> {
        if learn.table > LAST_TABLE {
            return Err(Error::BadActionArgument);
        }
        let none = Match::any();
        let mut learned = check::Situation::new(&none, Version::V1_0);
        for spec in &learn.specs {
            let bits = match &spec.source {
                LearnSource::Field(from) => {
                    self.source(from)?;
                    from.bits
                }
                LearnSource::Immediate { bits, .. } => *bits,
            };
            match &spec.target {
                _ if bits > WIDEST => return Err(Error::BadActionArgument),
                LearnTarget::Match(to) | LearnTarget::Load(to) if to.bits != bits => {
                    return Err(Error::BadActionArgument);
                }
                LearnTarget::Match(to) => {
                    learned.source(to)?;
                    if let LearnSource::Immediate { value, .. } = &spec.source {
                        learned.will_match(to, *value);
                    }
                }
                LearnTarget::Load(to) => learned.loaded(to)?,
                LearnTarget::Output => {}
            }
        }
        match &learn.result {
            Some(result) if result.bits != 1 => Err(Error::BadActionArgument),
            Some(result) if !packet::edit::is_metadata(result.field) => {
                Err(Error::BadActionArgument)
            }
            Some(result) => self.destination(result),
            None => Ok(()),
        }
    }

    /// Records that packets of the new rule have this number in these bits.
    fn will_match(&mut self, to: &Subfield, value: u128) {
        let def = to.field.def();
        if to.field.tunnel_option().is_some() {
            return; // no field needs one
        }
        let place = |number: u128| {
            let number = number << to.start >> def.wire_shift << def.shift;
            packet::Value::from_u128(number, def.bytes)
        };
        let ones = if to.bits == WIDEST {
            u128::MAX
        } else {
            (1 << to.bits) - 1
        };
        self.matching
            .to_mut()
            .set_bytes(def.offset, &place(value & ones), &place(ones));
    }

    fn loaded(&mut self, to: &Subfield) -> Result<(), Error> {
        if !check::writable(to.field) {
            return Err(Error::BadSetArgument);
        }
        self.destination(to)
    }
}

/// Returns the flow mod that adds the rule: `ovs-ofctl --strict mod-flows`, as ovs-actions(7) says.
fn flow_mod(learn: &learn::Learn, values: &[u128]) -> FlowMod {
    let mut actions = Vec::new();
    if learn.fin_idle_timeout != 0 || learn.fin_hard_timeout != 0 {
        actions.push(Action::FinTimeout {
            idle: learn.fin_idle_timeout,
            hard: learn.fin_hard_timeout,
        });
    }
    for (part, value) in learn.parts.iter().zip(values) {
        match part.target {
            Target::Match(_) => {}
            Target::Load(to) => loads(&mut actions, to, *value),
            Target::Output(width) => actions.extend(output(width, *value)),
        }
    }
    FlowMod {
        command: FlowModCommand::ModifyStrict,
        table: learn.table,
        matching: learn.matching(values),
        priority: learn.priority,
        cookie: cookie_of(learn.cookie),
        cookie_filter: 0,
        cookie_mask: 0,
        modify_cookie: learn.cookie != NO_COOKIE,
        modify_adds: true,
        idle_timeout: learn.idle_timeout,
        hard_timeout: learn.hard_timeout,
        importance: 0,
        flags: FlowFlags {
            send_flow_rem: learn.send_flow_rem,
            ..FlowFlags::default()
        },
        out_port: port::ANY,
        out_group: 0xffff_ffff,
        buffer_id: 0xffff_ffff,
        instructions: vec![Instruction::ApplyActions(actions)].into(),
    }
}

/// Appends a load for each 64 bits, the lowest first, as Open vSwitch sends them.
fn loads(actions: &mut Vec<Action>, to: Bits, value: u128) {
    for start in (0..to.bits).step_by(LOADED.into()) {
        let bits = LOADED.min(to.bits - start);
        let part = (value >> start) as u64;
        actions.push(Action::Load {
            dst: Subfield {
                field: to.field,
                start: to.start + start,
                bits,
            },
            value: part & u64::MAX >> (LOADED - bits),
        });
    }
}

/// Returns an output to an ordinary port or to a reserved one that a learned rule may name; None
/// for others.
fn output(width: u16, value: u128) -> Option<Action> {
    let number = match u16::try_from(value) {
        Ok(number) => port::from_u16(number),
        Err(_) if width <= 16 => return None,
        Err(_) => u32::try_from(value).ok()?,
    };
    let reserved = [port::IN_PORT, port::FLOOD, port::LOCAL, port::ALL];
    (number < port::MAX || reserved.contains(&number)).then_some(Action::Output {
        port: number,
        max_len: 0,
    })
}

impl Pipeline {
    /// Adds a rule that a packet has asked for, unless it exists already, or has been changed since
    /// the packet came. Workers see it after [`Pipeline::commit`] and the domain's next
    /// publication. A late lesson is refused when no rule teaches it any more.
    pub fn learn(
        &mut self,
        request: &learn::Request,
        now: Clock,
    ) -> (LearnOutcome, FlowModOutcome) {
        let (learn, values) = (&*request.learn, &request.values[..]);
        if request.is_late && !self.behaviours.teach(learn) {
            return (LearnOutcome::Refused, FlowModOutcome::default());
        }
        let change = flow_mod(learn, values);
        let find = |pipeline: &Pipeline| {
            pipeline
                .store
                .find(change.table, change.priority.into(), &change.matching)
        };
        if let Some(id) = find(self)
            && let does_it = self.is_learned(id, &change)
            && let Some(rule) = self.store.get_mut(id)
        {
            if does_it {
                rule.modified_ms = now.ms();
                let fingerprint = learn.fingerprint(values);
                rule.handle.set_learned(fingerprint, request.seen_ms);
            }
            if does_it || rule.changed_after(request.seen_ms) {
                return (LearnOutcome::Known, FlowModOutcome::default());
            }
        }
        if learn.limit != 0 && self.rules_of(change.table, change.cookie) >= learn.limit as usize {
            return (LearnOutcome::LimitReached, FlowModOutcome::default());
        }
        match Pipeline::flow_mod(self, &change, Version::V1_0, now) {
            Err(_) => (LearnOutcome::Refused, FlowModOutcome::default()),
            Ok(outcome) => {
                if let Some(rule) = find(self).and_then(|id| self.store.get(id)) {
                    let fingerprint = learn.fingerprint(values);
                    rule.handle.set_learned(fingerprint, request.seen_ms);
                }
                (LearnOutcome::Learned, outcome)
            }
        }
    }

    /// Returns whether a rule already has what the change would set.
    fn is_learned(&self, id: RuleId, change: &FlowMod) -> bool {
        self.store.get(id).is_some_and(|rule| {
            (!change.modify_cookie || rule.cookie == change.cookie)
                && *rule.behaviour.instructions == *change.instructions
        })
    }

    /// Returns the number of rules in a table with a cookie.
    fn rules_of(&self, table: u8, cookie: u64) -> usize {
        match self.learned.watched.get(&(table, cookie)) {
            Some(watched) => watched.rules,
            // The request is of a packet-out, or of a rule that has gone meanwhile.
            None => self.count_rules(table, cookie),
        }
    }

    fn count_rules(&self, table: u8, cookie: u64) -> usize {
        self.store
            .table(table)
            .filter(|(_, rule)| rule.cookie == cookie && !rule.is_hidden())
            .count()
    }

    /// Shortens the timeouts of a rule that has seen the end of a connection. Returns true if it
    /// changed.
    pub fn connection_ended(&mut self, ended: &Ended) -> bool {
        let id = self
            .store
            .find(ended.table, ended.priority, &ended.matching);
        let shorter = |least: u16, now: u16| match (least, now) {
            (0, now) => now,
            (least, 0) => least,
            (least, now) => least.min(now),
        };
        let Some((id, rule)) = id.and_then(|id| Some((id, self.store.get_mut(id)?))) else {
            return false;
        };
        let before = (rule.idle_timeout, rule.hard_timeout);
        rule.idle_timeout = shorter(ended.idle, rule.idle_timeout);
        rule.hard_timeout = shorter(ended.hard, rule.hard_timeout);
        let changed = before != (rule.idle_timeout, rule.hard_timeout);
        if changed {
            self.disarm(id);
            self.arm(id);
        }
        changed
    }

    /// Records a new rule, which may replace another. Call it before [`Pipeline::rule_went`] for
    /// the replaced one, which still counts.
    pub(crate) fn rule_came(&mut self, id: RuleId, leaving: Option<&Rule>) {
        let Some(rule) = self.store.get(id) else {
            return;
        };
        if rule.behaviour.learns.is_empty() && self.learned.watched.is_empty() {
            return;
        }
        let (pair, behaviour) = ((rule.table, rule.cookie), rule.behaviour.clone());
        if !rule.is_hidden()
            && let Some(watched) = self.learned.watched.get_mut(&pair)
        {
            watched.rules += 1;
        }
        for named in &behaviour.learns {
            if !self.learned.watched.contains_key(&named.pair) {
                let leaves = leaving.is_some_and(|rule| {
                    (rule.table, rule.cookie) == named.pair && !rule.is_hidden()
                });
                let rules = self.count_rules(named.pair.0, named.pair.1) + usize::from(leaves);
                let watched = Watched {
                    rules,
                    ..Watched::default()
                };
                self.learned.watched.insert(named.pair, watched);
            }
            if let Some(watched) = self.learned.watched.get_mut(&named.pair) {
                watched.names += 1;
                watched.deletes += usize::from(named.deletes);
            }
        }
    }

    /// Records that a rule has been removed.
    pub(crate) fn rule_went(&mut self, rule: &Rule) {
        let Learned { watched, orphans } = &mut self.learned;
        if watched.is_empty() {
            return;
        }
        if !rule.is_hidden()
            && let Some(watched) = watched.get_mut(&(rule.table, rule.cookie))
        {
            watched.rules -= 1;
        }
        for named in &rule.behaviour.learns {
            let Some(entry) = watched.get_mut(&named.pair) else {
                continue;
            };
            entry.names -= 1;
            entry.deletes -= usize::from(named.deletes);
            if named.deletes && entry.deletes == 0 {
                orphans.push(named.pair);
            }
            if entry.names == 0 {
                watched.remove(&named.pair);
            }
        }
    }

    /// Forgets pairs to delete: undoing a batch brings back the rules that name them.
    pub(crate) fn forget_orphans(&mut self) {
        self.learned.orphans.clear();
    }

    /// Takes the next table and cookie whose learned rules are to be deleted.
    pub(crate) fn next_orphan(&mut self) -> Option<(u8, u64)> {
        let Learned { watched, orphans } = &mut self.learned;
        while let Some(pair) = orphans.pop() {
            let named_again = watched.get(&pair);
            if named_again.is_none_or(|watched| watched.deletes == 0) {
                return Some(pair);
            }
        }
        None
    }

    /// Returns whether removing a rule may also remove rules that it has learned.
    pub fn deletes_learned(&self) -> bool {
        self.learned.deletes_learned()
    }

    /// Deletes learned rules whose last `learn` action with `delete_learned` has gone. All at once:
    /// what controllers change, and timeouts, do this in slices ([`crate::commands::sweep`]).
    pub(crate) fn delete_orphans(&mut self, outcome: &mut FlowModOutcome, now: Clock) {
        self.delete_some_orphans(&mut Orphans::default(), usize::MAX, outcome, now);
    }
}
