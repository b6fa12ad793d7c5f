//! The story of a walk: a tree in which each step contains the steps that it led to.
//!
//! The machine itself reports rules, actions, instructions and everything that leaves the tables.
//! Other steps are reported where they happen:
//!
//! * `self.say(|| What::Detail("...".into()))`, `What::Warning`, `What::Error`: one line below the
//!   action that is being executed;
//! * `self.open(|| What::...)`, the work, `self.close()`: a step with steps of its own, such as a
//!   bucket;
//! * `self.look_at(Field::...)`: the outcome depends on a field of the packet other than through a
//!   match or a subfield that an action reads.
//!
//! None of them does anything unless a story is recorded. Effects need not be reported: the next
//! `open` or `close` takes up whatever has been pushed to `outcome.effects`.

use super::{Effect, Machine};
use openflow::action::{Action, Instruction, Subfield};
use openflow::conntrack::Nat;
use packet::key::at;
use packet::{Field, FlowKey, Match, Value};
use std::rc::Rc;

/// Maximum number of steps recorded; a walk can execute millions of actions.
pub const MAX_STEPS: usize = 20_000;
/// Number of steps after which the walk ends, recorded or not, so that the caller does not wait
/// long.
const MAX_WORK: usize = 10 * MAX_STEPS;

/// The key's Ethertype of frames that have none: 802.2.
pub(crate) const NO_ETHERTYPE: u16 = 0x05ff;

/// One step of a story.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A table was searched and this rule found.
    Rule {
        /// The table.
        table: u8,
        /// The rule's priority.
        priority: u32,
        /// Its cookie.
        cookie: u64,
        /// Its match.
        matching: Match,
    },
    /// A table was searched and no rule found.
    Missed {
        /// The table.
        table: u8,
        /// Whether the packet goes to the controllers because of that.
        to_controller: bool,
    },
    /// An action.
    Action(Action),
    /// An instruction other than `apply_actions`, whose actions are reported one by one.
    Instruction(Instruction),
    /// The action set runs, at the end.
    ActionSet,
    /// Actions run on a copy of the packet, whose state is given; no changes come back. Appears
    /// below the [`What::Action`] of a clone.
    Copy(Box<(Vec<u8>, FlowKey)>),
    /// The packet, which is given as it is before, gets its first MPLS label.
    FirstLabel(Box<(Vec<u8>, FlowKey)>),
    /// A bucket of a group, with the text that describes the choice (`bucket 2: using bucket`).
    Bucket(String),
    /// Something left the tables; with the key at that time.
    Effect(Box<(Effect, FlowKey)>),
    /// The packet goes through the connection tracker. Appears below the [`What::Action`].
    Tracked(Box<TrackedCopy>),
    /// `ct_clear` made the packet untracked.
    Untracked,
    /// Where actions would stand, there are none.
    Nothing,
    /// A line that explains.
    Detail(String),
    /// A line about something unusual.
    Warning(String),
    /// A line about what ended the walk.
    Error(String),
}

/// What a `ct` asks for, with the packet as it is then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrackedCopy {
    /// The packet.
    pub bytes: Vec<u8>,
    /// Its key.
    pub key: FlowKey,
    /// Whether the connection is committed.
    pub commit: bool,
    /// Whether this packet begins it anew.
    pub force: bool,
    /// The zone.
    pub zone: u16,
    /// What is written to the mark, and its mask.
    pub mark: (u32, u32),
    /// What is written to the label, and its mask.
    pub label: (u128, u128),
    /// The port of the application's protocol, 0 for none.
    pub alg: u16,
    /// The translation.
    pub nat: Option<Nat>,
    /// What goes on in a table.
    pub fork: Option<Rc<Fork>>,
}

/// A tracked packet that goes on in a table, in a story of its own ([`super::resume`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fork {
    /// The table.
    pub table: u8,
    /// The packet's key; its `ct_state` is not known yet.
    pub key: FlowKey,
    /// The packet.
    pub bytes: Vec<u8>,
    /// The translation that it undergoes.
    pub nat: Option<Nat>,
    pub(super) set: Vec<Action>,
    pub(super) stack: Vec<u128>,
    pub(super) queue: Option<u32>,
}

impl Fork {
    /// Returns whether the rest of the pipeline cannot tell the packets apart, so that Open
    /// vSwitch gives both the same number: the headers are not looked at.
    pub fn goes_on_as(&self, other: &Fork) -> bool {
        const KEPT: [Field; 10] = [
            Field::InPort,
            Field::Metadata,
            Field::Xxreg0,
            Field::Xxreg1,
            Field::Xxreg2,
            Field::Xxreg3,
            Field::TunId,
            Field::TunSrc,
            Field::TunDst,
            Field::TunFlags,
        ];
        let kept = |fork: &Fork, field: Field| {
            let def = field.def();
            fork.key.bytes()[def.offset..def.offset + def.bytes].to_vec()
        };
        self.table == other.table
            && (&self.set, &self.stack) == (&other.set, &other.stack)
            && KEPT
                .iter()
                .all(|field| kept(self, *field) == kept(other, *field))
    }
}

/// A step and the steps it led to, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What was done.
    pub what: What,
    /// The steps it led to.
    pub steps: Vec<Step>,
}

/// The story of a packet.
#[derive(Clone, Debug)]
pub struct Story {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The key's bits on which the outcome depended: those of the rules compared with the packet,
    /// as far as needed to decide, and those that actions read or wrote.
    pub looked_at: Box<FlowKey>,
    /// The key at the beginning.
    pub before: Box<FlowKey>,
    /// The key at the end.
    pub after: Box<FlowKey>,
    /// The packet's bytes at the beginning.
    pub frame: Vec<u8>,
    /// The packet's bytes at the end.
    pub bytes: Vec<u8>,
}

impl Story {
    /// Returns the tracked packets that go on in stories of their own, in order.
    pub fn forks(&self) -> Vec<Rc<Fork>> {
        let mut forks = Vec::new();
        let mut waiting: Vec<&Step> = self.steps.iter().rev().collect();
        while let Some(step) = waiting.pop() {
            if let What::Tracked(copy) = &step.what {
                forks.extend(copy.fork.clone());
            }
            waiting.extend(step.steps.iter().rev());
        }
        forks
    }
}

/// Returns the layer of a byte of the key: 0 metadata, then link, network and transport.
fn layer(byte: usize) -> u8 {
    match byte {
        at::IN_PORT..at::ETH_TYPE => 0,
        at::ETH_TYPE..at::IPV4_SRC => 1,
        at::TP_SRC..at::IP_PROTO => 3,
        at::IPV4_SRC..at::ETH_DST => 2,
        at::TCP_FLAGS..at::ETH_SRC => 3,
        at::ETH_DST..at::METADATA => 1,
        at::IPV6_SRC..at::ND_TARGET => 2,
        at::MPLS_DEPTH => 1,
        at::ND_TARGET..at::IPV6_EXT => 3,
        at::IPV6_EXT..at::MPLS_LSE => 2,
        at::MPLS_LSE..at::PKT_MARK => 1,
        _ => 0,
    }
}

/// Records a story while it happens.
pub(super) struct Teller {
    /// The open steps, the outermost first; the first one is the root.
    path: Vec<Step>,
    looked_at: Box<FlowKey>,
    steps: usize,
    /// Number of effects recorded.
    effects: usize,
}

impl Teller {
    pub fn new() -> Teller {
        Teller {
            path: vec![Step {
                what: What::ActionSet,
                steps: Vec::new(),
            }],
            looked_at: Box::new(FlowKey::ZERO),
            steps: 0,
            effects: 0,
        }
    }

    /// Returns whether so many steps have happened that the walk must end.
    pub fn is_exhausted(&self) -> bool {
        self.steps >= MAX_WORK
    }

    fn put(&mut self, step: Step) {
        if let Some(parent) = self.path.last_mut() {
            parent.steps.push(step);
        }
    }

    fn say(&mut self, what: What) {
        self.steps += 1;
        if self.steps == MAX_STEPS {
            self.put(Step {
                what: What::Error("the story is too long to be told in full".into()),
                steps: Vec::new(),
            });
        }
        if self.steps < MAX_STEPS {
            self.put(Step {
                what,
                steps: Vec::new(),
            });
        }
    }

    fn tell_effects(&mut self, effects: &[Effect], key: &FlowKey) {
        for effect in effects.get(self.effects..).unwrap_or_default() {
            self.say(What::Effect(Box::new((effect.clone(), *key))));
        }
        self.effects = effects.len();
    }

    fn looked_at(&mut self, word: usize, mask: u64) {
        self.looked_at.words[word] |= mask;
    }

    fn has_looked_at(&self, word: usize, mask: u64) -> bool {
        mask & !self.looked_at.words[word] == 0
    }
}

impl Machine<'_> {
    /// Begins a step.
    pub(super) fn open(&mut self, what: impl FnOnce() -> What) {
        let Some(teller) = &mut self.teller else {
            return;
        };
        teller.tell_effects(&self.outcome.effects, &self.key);
        teller.steps += 1;
        teller.path.push(Step {
            what: what(),
            steps: Vec::new(),
        });
    }

    /// Ends the step that was begun last.
    pub(super) fn close(&mut self) {
        let Some(teller) = &mut self.teller else {
            return;
        };
        teller.tell_effects(&self.outcome.effects, &self.key);
        if let Some(step) = teller.path.pop()
            && (teller.steps < MAX_STEPS || !step.steps.is_empty())
        {
            teller.put(step);
        }
    }

    /// Records a step that contains no others.
    pub(super) fn say(&mut self, what: impl FnOnce() -> What) {
        if let Some(teller) = &mut self.teller {
            teller.tell_effects(&self.outcome.effects, &self.key);
            teller.say(what());
        }
    }

    /// Records what has left so far, before the key changes.
    pub(super) fn tell_effects(&mut self) {
        if let Some(teller) = &mut self.teller {
            teller.tell_effects(&self.outcome.effects, &self.key);
        }
    }

    /// Records that the outcome depends on a field.
    pub(super) fn look_at(&mut self, field: Field) {
        if let Some(teller) = &mut self.teller {
            let mut bits = Match::any();
            match field.tunnel_option() {
                None => bits.set(field, &field.def().place(), &field.def().place()),
                Some(option) => {
                    if let Some(place) = self.pipeline.options.place(option) {
                        let ones = Value::ones(8 * place.length(), place.length());
                        bits.place_option(option, place, &ones, &ones);
                    }
                }
            }
            for word in bits.words() {
                teller.looked_at(word.word.into(), word.mask);
            }
        }
    }

    /// Records the headers that an action without a [`Field`] writes.
    pub(super) fn look_at_headers(&mut self, action: &Action) {
        use Action::*;
        let fields: &[Field] = match action {
            PushVlan(_) | PopVlan | SetVlanVid { .. } | SetVlanPcp { .. } => &[Field::VlanTci],
            SetEthSrc(_) => &[Field::EthSrc],
            SetEthDst(_) => &[Field::EthDst],
            SetIpv4Src(_) => &[Field::Ipv4Src],
            SetIpv4Dst(_) => &[Field::Ipv4Dst],
            SetIpTos(_) => &[Field::IpDscp],
            SetIpEcn(_) => &[Field::IpEcn],
            SetIpTtl(_) => &[Field::IpTtl],
            SetL4Src(_) => &[Field::TcpSrc],
            SetL4Dst(_) => &[Field::TcpDst],
            _ => &[],
        };
        fields.iter().for_each(|field| self.look_at(*field));
    }

    /// Records the bits that decide whether a rule matches: its bits, layer by layer, up to the
    /// layer in which the packet differs.
    pub(super) fn look_at_rule(&mut self, matching: &Match) {
        let Some(teller) = &mut self.teller else {
            return;
        };
        // Often thousands of rules look at the same bits.
        let mut words = matching.words().iter();
        if words.all(|word| teller.has_looked_at(word.word.into(), word.mask)) {
            return;
        }
        for wanted in 0..4 {
            let mut differs = false;
            for word in matching.words() {
                let index = usize::from(word.word);
                let mut mask = word.mask.to_ne_bytes();
                for (byte, bits) in mask.iter_mut().enumerate() {
                    *bits *= u8::from(layer(index * 8 + byte) == wanted);
                }
                let mask = u64::from_ne_bytes(mask);
                teller.looked_at(index, mask);
                differs |= (self.key.words[index] ^ word.value) & mask != 0;
            }
            if differs {
                return;
            }
        }
    }

    /// Records what a reader wants to know before an action is executed.
    pub(super) fn explain_before(&mut self, action: &Action) {
        if self.teller.is_none() {
            return;
        }
        if let Action::OutputReg { source, .. } = action {
            let number = self.read(source);
            self.say(|| What::Detail(format!("output port is {number}")));
        }
    }

    /// Records what a reader wants to know after an action; `expired`: the packet's TTL has
    /// expired.
    pub(super) fn explain(&mut self, action: &Action, expired: bool) {
        if self.teller.is_none() {
            return;
        }
        let written = match action {
            Action::Move { dst, .. } | Action::CheckPktLarger { dst, .. } => Some(*dst),
            Action::Multipath(multipath) => Some(multipath.dst),
            Action::Bundle(bundle) => bundle.dst,
            _ => None,
        };
        if let Some(part) = written {
            self.explain_written(&part);
        }
        match action {
            Action::PopQueue => self.say(|| What::Detail("queue = 0".into())),
            Action::DecTtl(_) if expired => {
                let family = match self.key.u16(at::ETH_TYPE) {
                    0x86dd => "IPv6",
                    _ => "IPv4",
                };
                self.say(|| What::Warning(format!("{family} decrement TTL exception")));
            }
            Action::DecMplsTtl if expired => {
                self.say(|| What::Warning("MPLS decrement TTL exception".into()));
            }
            _ => {}
        }
    }

    /// Records the new value of a subfield.
    pub(super) fn explain_written(&mut self, part: &Subfield) {
        if self.teller.is_none() {
            return;
        }
        let number = self.read(part);
        let mut text = String::new();
        openflow::format::subfield(&mut text, part);
        text.push_str(" is now ");
        openflow::format::subfield_value(&mut text, part, number);
        self.say(|| What::Detail(text));
    }

    /// Records the contents of the action set.
    pub(super) fn explain_set(&mut self, verb: &str) {
        if self.teller.is_none() {
            return;
        }
        let (ordered, _) = super::in_order(&self.set);
        let text = match &ordered[..] {
            [] => format!("action set {verb} empty"),
            ordered => {
                let mut text = format!("action set {verb}: ");
                openflow::format::actions(&mut text, ordered);
                text
            }
        };
        self.say(|| What::Detail(text));
    }

    /// Returns the story, at the end.
    pub(super) fn story(&mut self, before: FlowKey, frame: Vec<u8>) -> Story {
        let mut steps = Vec::new();
        let mut looked_at = Box::new(FlowKey::ZERO);
        if let Some(mut teller) = self.teller.take() {
            teller.tell_effects(&self.outcome.effects, &self.key);
            looked_at = teller.looked_at;
            steps = teller.path.swap_remove(0).steps;
        }
        Story {
            steps,
            looked_at,
            before: Box::new(before),
            after: Box::new(self.key),
            frame,
            bytes: self.packet.bytes().to_vec(),
        }
    }
}
