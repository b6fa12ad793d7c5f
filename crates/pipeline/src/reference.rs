//! The reference evaluator: what OpenFlow says happens to one packet, rule by rule, in slow and
//! obvious code.
//!
//! It shares nothing with the compiled form: it searches the pipeline's own rules one after the
//! other, executes OpenFlow's actions as they are, edits a vector of bytes and parses it again
//! after each change. Tests compare the program's walk with it; tracing takes a story from it.
//! Where the specification leaves room it does what Open vSwitch 3.1 does.
//!
//! [`trace`] also reports the steps on the way. Code added to the machine reports what a reader of
//! the story wants to know with `say`, `open` and `close`: see the head of [`story`].

mod connection;
mod groups;
mod headers;
mod learn;
mod meters;
pub mod story;
mod ways;

pub use meters::Levels;

use crate::Pipeline;
use crate::state::store::Rule;
pub use connection::TrackBy;
use conntrack::Earlier;
pub use groups::GroupHit;
use headers::Packet;
pub use learn::Ended;
use openflow::action::{Action, Instruction, Subfield};
use openflow::flow::FlowMod;
use openflow::port::{self, PortNo};
use packet::key::at;
use packet::{Field, FlowKey, Match, Value, WordSet, parse};
use program::actions::PacketInReason;
use program::exec::{MAX_DEPTH, MAX_RESUBMITS, MAX_STACK, NO_COOKIE};
use program::table::Miss;
use std::borrow::Cow;
use story::{Story, Teller, What};

/// The highest table that may have rules.
const LAST_TABLE: u8 = 253;
/// Maximum depth of nested lookups in a story: enough for every table once plus the deepest
/// resubmits. Each takes stack space.
const MAX_NESTED: u32 = 400;
/// Maximum bytes of packets that leave in a story, and of action sets and stacks that go on with
/// tracked ones.
const MAX_TOLD_BYTES: usize = 64 << 20;

/// Something that leaves the tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// A packet for one port.
    Output {
        /// The port's number.
        port: PortNo,
        /// Whether the port may be the ingress port.
        to_in_port: bool,
        /// The packet as it leaves.
        sent: Sent,
    },
    /// A packet for all ports but the ingress port.
    All {
        /// Whether ports marked no-flood are left out.
        flood: bool,
        /// The packet as it leaves.
        sent: Sent,
    },
    /// A packet for NORMAL, the learning switch.
    Normal(Sent),
    /// A packet for the controllers.
    Controller {
        /// The reason of the packet-in.
        reason: PacketInReason,
        /// Table of the rule that sent it.
        table: u8,
        /// Cookie of the rule that sent it, all ones for none.
        cookie: u64,
        /// Maximum bytes to send.
        max_len: u16,
        /// The id of the controllers that get it.
        controller_id: u16,
        /// Opaque data to return to the controller.
        userdata: Vec<u8>,
        /// The packet's key.
        key: Box<FlowKey>,
        /// The packet's bytes.
        bytes: Vec<u8>,
    },
}

/// A packet as it leaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The port that counts as its ingress port.
    pub in_port: PortNo,
    /// The queue chosen, if any.
    pub queue: Option<u32>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A rule that a packet met.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u32,
    /// Its match.
    pub matching: Match,
    /// The packet's length as the rule counted it.
    pub bytes: usize,
}

/// The outcome of one packet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outcome {
    /// What left the tables, in order.
    pub effects: Vec<Effect>,
    /// Rules met, in order.
    pub hits: Vec<Hit>,
    /// Rules that the packet learns, in order: flow mods to carry out when the packet is done.
    pub learned: Vec<FlowMod>,
    /// Rules whose timeouts the packet shortens.
    pub ended: Vec<Ended>,
    /// Groups and buckets met, in order.
    pub groups: Vec<GroupHit>,
    /// Whether a limit on resubmits, depth or stack ended the evaluation; then, as in Open vSwitch,
    /// nothing is sent at all.
    pub cut_short: bool,
    /// How many tracked copies of the packet such a limit ended; of those, nothing is sent.
    pub failed_copies: u32,
}

/// Evaluates a packet received by a port, where all ports are live.
pub fn evaluate(pipeline: &Pipeline, in_port: PortNo, frame: &[u8]) -> Outcome {
    evaluate_where(pipeline, in_port, frame, &|_| true)
}

/// Evaluates a packet received by a port, where `live` says which ports are live.
pub fn evaluate_where(
    pipeline: &Pipeline,
    in_port: PortNo,
    frame: &[u8],
    live: &dyn Fn(PortNo) -> bool,
) -> Outcome {
    let mut machine = Machine::new(pipeline, &key_of(in_port), frame);
    machine.live = live;
    machine.look_up(0, in_port, true, 0);
    machine.finish()
}

/// Evaluates a packet received by a port, where `live` says which ports are live and meters limit
/// rates: `levels` holds the meters' buckets between packets, and the time.
pub fn evaluate_metered(
    pipeline: &Pipeline,
    in_port: PortNo,
    frame: &[u8],
    live: &dyn Fn(PortNo) -> bool,
    levels: &mut Levels,
) -> Outcome {
    let mut machine = Machine::new(pipeline, &key_of(in_port), frame);
    machine.live = live;
    machine.levels = Some(levels);
    machine.look_up(0, in_port, true, 0);
    machine.finish()
}

/// Evaluates a packet received by a port, where all ports are live and `track` is the connection
/// tracker.
pub fn evaluate_tracked(
    pipeline: &Pipeline,
    in_port: PortNo,
    frame: &[u8],
    track: TrackBy<'_>,
) -> Outcome {
    let mut machine = Machine::new(pipeline, &key_of(in_port), frame);
    machine.tracker = Some(track);
    machine.look_up(0, in_port, true, 0);
    machine.finish()
}

/// Evaluates a packet-out that begins with the metadata of `key` (ingress port, registers, tunnel
/// and so on), where `live` says which ports are live.
pub fn evaluate_actions(
    pipeline: &Pipeline,
    key: &FlowKey,
    frame: &[u8],
    actions: &[Action],
    live: &dyn Fn(PortNo) -> bool,
) -> Outcome {
    evaluate_actions_metered(pipeline, key, frame, actions, live, None)
}

/// Evaluates a packet-out like [`evaluate_actions`], where meters limit rates.
pub fn evaluate_actions_metered(
    pipeline: &Pipeline,
    key: &FlowKey,
    frame: &[u8],
    actions: &[Action],
    live: &dyn Fn(PortNo) -> bool,
    levels: Option<&mut Levels>,
) -> Outcome {
    let mut machine = Machine::new(pipeline, key, frame);
    machine.live = live;
    machine.levels = levels;
    machine.packet_out = true;
    machine.begin_list(actions);
    machine.finish()
}

/// The conditions under which a packet is traced.
#[derive(Clone, Copy)]
pub struct Surroundings<'s> {
    /// Returns whether a port is live.
    pub live: &'s dyn Fn(PortNo) -> bool,
    /// Whether ports of fragments match as zero (`set-frags normal`).
    pub hides_fragment_ports: bool,
    /// Whether the caller carries out what the packet learns; if not, the story says that it is
    /// ignored.
    pub learns: bool,
}

impl Default for Surroundings<'_> {
    /// All ports are live, ports of fragments match as they are, nothing is learned.
    fn default() -> Self {
        Surroundings {
            live: &|_| true,
            hides_fragment_ports: false,
            learns: false,
        }
    }
}

/// Evaluates a packet received by a port, or a packet-out if there are `actions`, and reports the
/// steps. The packet comes with the metadata of `key` (ingress port, registers, tunnel and so on).
/// If the key has an Ethertype of zero, or a TCI without its present bit, which no frame can have,
/// the packet is treated as having it. Connections are not looked up: the story tells with which
/// state a tracked packet is to go on ([`story::Fork`]), in a story of its own ([`resume`]).
pub fn trace(
    pipeline: &Pipeline,
    key: &FlowKey,
    frame: &[u8],
    actions: Option<&[Action]>,
    surroundings: Surroundings<'_>,
) -> (Outcome, Story) {
    let mut machine = Machine::new(pipeline, key, frame);
    machine.live = surroundings.live;
    machine.hides_fragment_ports = surroundings.hides_fragment_ports;
    machine.learns = surroundings.learns;
    machine.no_type = key.u16(at::ETH_TYPE) == 0;
    machine.bare_tci = match key.u16(at::VLAN_TCI) {
        tci if tci & TAG_PRESENT == 0 => tci,
        _ => 0,
    };
    machine.parse_again();
    let before = machine.key;
    let received = machine.packet.bytes().to_vec();
    machine.teller = Some(Teller::new());
    match actions {
        Some(actions) => machine.begin_list(actions),
        None => machine.look_up(0, key.u32(at::IN_PORT), true, 0),
    }
    let cut_short = machine.outcome.cut_short;
    if !machine.stopped && !cut_short {
        machine.run_own_set();
    }
    let story = machine.story(before, received);
    machine.stopped = true; // the action set has run
    (machine.finish(), story)
}

/// Goes on with a packet that a traced `ct` has forked, in the same bridge. `state` is the
/// `ct_state` that it finds, `recirculation` the number of its pass.
pub fn resume(
    pipeline: &Pipeline,
    fork: &story::Fork,
    state: u32,
    recirculation: u32,
    surroundings: Surroundings<'_>,
) -> (Outcome, Story) {
    let mut machine = Machine::new(pipeline, &fork.key, &fork.bytes);
    machine.live = surroundings.live;
    machine.hides_fragment_ports = surroundings.hides_fragment_ports;
    machine.learns = surroundings.learns;
    (machine.set, machine.stack) = (fork.set.clone(), fork.stack.clone());
    machine.queue = fork.queue;
    machine.key.set_u32(at::CT_STATE, state);
    machine.key.set_u32(at::RECIRC_ID, recirculation);
    machine.translate_as_told(fork.nat.as_ref());
    let before = machine.key;
    let frame = machine.packet.bytes().to_vec();
    machine.teller = Some(Teller::new());
    machine.look_up(fork.table, fork.key.u32(at::IN_PORT), true, 0);
    if !machine.is_over() {
        machine.run_own_set();
    }
    let story = machine.story(before, frame);
    machine.stopped = true; // the action set has run
    (machine.finish(), story)
}

/// Bit of a key's TCI that says there is a tag.
const TAG_PRESENT: u16 = 0x1000;

/// `OFPP_UNSET`: the action set has no output.
const ACTSET_UNSET: PortNo = 0xffff_fff7;

/// Returns a key in which only the ingress port is known.
pub(crate) fn key_of(in_port: PortNo) -> FlowKey {
    let mut key = FlowKey::ZERO;
    key.set_u32(at::IN_PORT, in_port);
    key
}

/// The position of a packet-out's actions.
const PACKET_OUT: At = At {
    table: 0,
    cookie: NO_COOKIE,
    depth: 0,
    apply: PacketInReason::Action,
    table_is_lookup: true,
};

/// The position of an action.
#[derive(Clone, Copy)]
struct At {
    table: u8,
    cookie: u64,
    depth: u32,
    /// The reason that packet-ins report.
    apply: PacketInReason,
    /// Whether `OFPP_TABLE` as the last action is a lookup with a table miss.
    table_is_lookup: bool,
}

/// Whether a list of actions continues.
#[derive(PartialEq)]
enum Flow {
    On,
    EndOfList,
}

struct Machine<'p> {
    pipeline: &'p Pipeline,
    packet: Packet,
    key: FlowKey,
    set: Vec<Action>,
    stack: Vec<u128>,
    queue: Option<u32>,
    resubmits: u32,
    /// Number of select groups that have chosen on the way here.
    level: u32,
    /// Depth of nested lookups.
    nested: u32,
    /// An exit: nothing more is executed.
    stopped: bool,
    /// A meter has dropped the packet, or the copy that a clone works on.
    dead: bool,
    /// The meters' buckets; if None, no rate is limited.
    levels: Option<&'p mut Levels>,
    /// The position of the first rule, or of the packet-out's list. The action set has it too: as
    /// in Open vSwitch, it runs when all nested lookups have returned.
    first: Option<At>,
    /// Rules being carried out, the innermost last, as indices into the hits.
    within: Vec<usize>,
    outcome: Outcome,
    /// Records the story, if one is wanted.
    teller: Option<Teller>,
    /// The key's Ethertype is zero as long as the frame is 802.2.
    no_type: bool,
    /// TCI bits of a packet without a present tag. A traced key can have them, no frame can.
    bare_tci: u16,
    /// Which ports are live.
    live: &'p dyn Fn(PortNo) -> bool,
    /// Ports of fragments match as zero.
    hides_fragment_ports: bool,
    /// The caller carries out what is learned.
    learns: bool,
    /// Total bytes of the copies that clones have made.
    copied: usize,
    /// The packet's length as rules and groups count it: its length on arrival. After popping the
    /// last label, or a select group that uses the datapath's hash, it is the length at that point,
    /// because Open vSwitch recirculates the packet there.
    counted: usize,
    /// The connection tracker, where packets are really tracked.
    tracker: Option<TrackBy<'p>>,
    /// Whether the next lookup is by the connection's first packet.
    by_first_packet: bool,
    /// How often the packet has continued behind the tracker.
    recirculated: u8,
    /// What its last lookup in the tracker said.
    tracked: Earlier,
    /// Whether outputs to CONTROLLER say that a packet-out sends them: not after a select group
    /// that uses the datapath's hash, because Open vSwitch recirculates the packet there.
    packet_out: bool,
}

impl<'p> Machine<'p> {
    fn new(pipeline: &'p Pipeline, key: &FlowKey, frame: &[u8]) -> Machine<'p> {
        let mut machine = Machine {
            pipeline,
            packet: Packet::new(frame),
            key: *key,
            set: Vec::new(),
            stack: Vec::new(),
            queue: None,
            resubmits: 0,
            level: 0,
            nested: 0,
            stopped: false,
            dead: false,
            levels: None,
            first: None,
            within: Vec::new(),
            outcome: Outcome::default(),
            teller: None,
            no_type: false,
            bare_tci: 0,
            live: &|_| true,
            hides_fragment_ports: false,
            learns: false,
            copied: 0,
            counted: frame.len(),
            packet_out: false,
            tracker: None,
            by_first_packet: false,
            recirculated: 0,
            tracked: Earlier::default(),
        };
        machine.key.set_u32(at::ACTSET_OUTPUT, ACTSET_UNSET);
        machine.parse_again();
        machine
    }

    /// Fills the packet's words of the key from its bytes; other words stay.
    fn parse_again(&mut self) {
        let bytes = self.packet.as_received();
        let mut fresh = FlowKey::ZERO;
        parse::parse(
            &bytes,
            bytes.len(),
            self.key.u32(at::IN_PORT),
            WordSet(u64::MAX),
            &mut fresh,
        );
        let [outer, inner] = self.packet.tcis();
        if outer != 0 {
            self.bare_tci = 0;
        }
        fresh.set_u16(at::VLAN_TCI, outer | self.bare_tci);
        fresh.set_u16(at::VLAN_TCI2, inner);
        if self.no_type && fresh.u16(at::ETH_TYPE) == story::NO_ETHERTYPE {
            fresh.set_u16(at::ETH_TYPE, 0);
        }
        for word in parse::PACKET_WORDS.iter() {
            self.key.words[word] = fresh.words[word];
        }
    }

    fn finish(mut self) -> Outcome {
        if !self.is_over() {
            self.run_own_set();
        }
        if self.outcome.cut_short {
            self.outcome.effects.clear();
        }
        self.outcome
    }

    fn best(&mut self, table: u8) -> Option<&'p Rule> {
        let rules = || self.pipeline.store.table(table).map(|(_, rule)| rule);
        // Most rules of a large table differ from the packet, whatever conjunction is satisfied.
        let few: Vec<&Rule> = rules()
            .filter(|rule| ways::may_count(rule, &self.key))
            .collect();
        let best = ways::best(&few, &self.key);
        if self.teller.is_some() {
            let least = best.map_or(0, |rule| rule.priority);
            let compared = rules().filter(|rule| rule.priority > least || best.is_none());
            compared
                .chain(best)
                .for_each(|rule| self.look_at_rule(rule.matching()));
        }
        best
    }

    /// Ends the evaluation of a story that would take too much memory or stack. A walk in the
    /// datapath needs little of either.
    fn ends_story(&mut self) -> bool {
        let Some(teller) = &self.teller else {
            return false;
        };
        let effects = &self.outcome.effects;
        let too_long = self.nested >= MAX_NESTED
            || teller.is_exhausted()
            || self.set.len() > story::MAX_STEPS
            || self.copied > MAX_TOLD_BYTES
            || effects.len() * (self.packet.bytes().len() + 64) > MAX_TOLD_BYTES;
        if too_long && !self.outcome.cut_short {
            self.outcome.cut_short = true;
            self.say(|| What::Error("the story is too long to be told to its end".into()));
        }
        too_long
    }

    /// Looks up in a table, with `in_port` as the ingress port, and carries out the rule found.
    fn look_up(&mut self, table: u8, in_port: PortNo, honour_miss: bool, depth: u32) {
        if self.ends_story() {
            return;
        }
        self.nested += 1;
        self.search(table, in_port, honour_miss, depth);
        self.nested -= 1;
    }

    fn search(&mut self, table: u8, in_port: PortNo, honour_miss: bool, depth: u32) {
        let own = self.key.u32(at::IN_PORT);
        let ports = [at::TP_SRC, at::TP_DST].map(|place| self.key.u16(place));
        self.key.set_u32(at::IN_PORT, in_port);
        if self.hides_fragment_ports && self.key.u8(at::IP_FRAG) != 0 {
            self.key.set_u16(at::TP_SRC, 0);
            self.key.set_u16(at::TP_DST, 0);
        }
        let found = if std::mem::take(&mut self.by_first_packet) {
            let packet = self.key;
            self.show_first_packet();
            let found = self.best(table);
            self.key = packet;
            found
        } else {
            self.best(table)
        };
        self.key.set_u32(at::IN_PORT, own);
        self.key.set_u16(at::TP_SRC, ports[0]);
        self.key.set_u16(at::TP_DST, ports[1]);
        let Some(rule) = found else {
            let miss = self.pipeline.miss(table);
            let goes_on = miss == Miss::Next && table < LAST_TABLE;
            if !honour_miss || !goes_on {
                let to_controller = honour_miss && miss != Miss::Drop;
                self.say(|| What::Missed {
                    table,
                    to_controller,
                });
            }
            if honour_miss {
                self.missed(table, in_port, depth);
            }
            return;
        };
        self.outcome.hits.push(Hit {
            table,
            priority: rule.priority,
            matching: rule.matching().clone(),
            bytes: self.counted,
        });
        let miss = rule.priority == 0 && *rule.matching() == Match::any();
        let apply = if miss {
            PacketInReason::TableMiss
        } else {
            PacketInReason::Action
        };
        let at = At {
            table,
            cookie: rule.cookie,
            depth,
            apply,
            table_is_lookup: false,
        };
        self.first.get_or_insert(at);
        self.open(|| What::Rule {
            table,
            priority: rule.priority,
            cookie: rule.cookie,
            matching: self.pipeline.options.named(rule.matching()),
        });
        self.within.push(self.outcome.hits.len() - 1);
        self.rule(&rule.behaviour.instructions, at);
        self.within.pop();
        self.close();
    }

    fn missed(&mut self, table: u8, in_port: PortNo, depth: u32) {
        match self.pipeline.miss(table) {
            Miss::Drop => {}
            Miss::Next if table < LAST_TABLE => self.look_up(table + 1, in_port, true, depth),
            // As in Open vSwitch, "continue" in the last table sends the packet to the controllers.
            Miss::Controller | Miss::Next => {
                let at = At {
                    table,
                    cookie: NO_COOKIE,
                    depth,
                    apply: PacketInReason::NoRule,
                    table_is_lookup: false,
                };
                self.send_to_controller(at, PacketInReason::NoRule, u16::MAX, 0, &[]);
            }
        }
    }

    /// Executes instructions in the order of OpenFlow 1.3.5 section 5.9: meter, apply, clear,
    /// write, metadata, goto.
    fn rule(&mut self, instructions: &[Instruction], at: At) {
        for instruction in instructions {
            if let Instruction::Meter(number) = instruction {
                self.say(|| What::Instruction(instruction.clone()));
                self.meter(*number);
            }
        }
        for instruction in instructions {
            if let Instruction::ApplyActions(actions) = instruction
                && self.list(actions, at) == Flow::EndOfList
            {
                return; // an expired TTL ends the whole rule
            }
        }
        if self.is_over() {
            return;
        }
        if instructions.contains(&Instruction::ClearActions) {
            self.say(|| What::Instruction(Instruction::ClearActions));
            self.explain_set("was");
            self.set.clear();
            self.key.set_u32(at::ACTSET_OUTPUT, ACTSET_UNSET);
        }
        for instruction in instructions {
            use Instruction::*;
            if matches!(instruction, WriteActions(_) | WriteMetadata { .. }) {
                self.say(|| What::Instruction(instruction.clone()));
            }
            match instruction {
                Instruction::WriteActions(actions) => {
                    self.set.extend(actions.iter().cloned());
                    let output = self.set.iter().rev().find_map(|action| match action {
                        Action::Output { port, .. } => Some(*port),
                        _ => None,
                    });
                    // A group would run instead of the output.
                    let group = |action: &Action| matches!(action, Action::Group(_));
                    let output = output.filter(|_| !self.set.iter().any(group));
                    self.key
                        .set_u32(at::ACTSET_OUTPUT, output.unwrap_or(ACTSET_UNSET));
                    self.explain_set("is");
                }
                Instruction::WriteMetadata { value, mask } => {
                    let old = self.key.u64(at::METADATA);
                    self.key.set_u64(at::METADATA, old & !mask | value & mask);
                }
                _ => {}
            }
        }
        for instruction in instructions {
            if let Instruction::GotoTable(table) = instruction {
                self.open(|| What::Instruction(instruction.clone()));
                self.look_up(*table, self.key.u32(at::IN_PORT), true, at.depth);
                self.close();
            }
        }
    }

    fn is_over(&self) -> bool {
        self.stopped || self.dead || self.outcome.cut_short
    }

    fn list(&mut self, actions: &[Action], at: At) -> Flow {
        for (index, action) in actions.iter().enumerate() {
            if self.is_over() || self.ends_story() {
                return Flow::On;
            }
            let last = index + 1 == actions.len();
            self.open(|| What::Action(action.clone()));
            self.explain_before(action);
            let flow = self.action(action, last, at);
            self.explain(action, flow == Flow::EndOfList);
            self.close();
            if flow == Flow::EndOfList {
                return Flow::EndOfList;
            }
        }
        Flow::On
    }

    fn action(&mut self, action: &Action, last: bool, at: At) -> Flow {
        match action {
            Action::Output {
                port: port::TABLE, ..
            } => {
                let own = self.key.u32(at::IN_PORT);
                if at.table_is_lookup && last {
                    self.look_up(0, own, true, at.depth);
                } else {
                    self.resubmit(own, 0, at);
                }
            }
            Action::Output { port, max_len } => self.output(*port, *max_len, at),
            Action::OutputReg { source, max_len } => {
                // 16-bit values include the reserved ports; larger values are no ports.
                if let Ok(number) = u16::try_from(self.read(source)) {
                    let number = port::from_u16(number);
                    self.output(number, *max_len, at);
                }
            }
            Action::OutputTrunc { port, max_len } => {
                let whole = self.packet.clone();
                self.packet.truncate(*max_len as usize);
                self.output(*port, 0, at);
                self.packet = whole;
            }
            Action::Controller {
                max_len,
                controller_id,
                reason,
                userdata,
                meter_id,
                pause,
                ..
            } => {
                let reason = match reason {
                    0 => PacketInReason::NoMatch,
                    2 => PacketInReason::InvalidTtl,
                    3 => PacketInReason::ActionSet,
                    4 => PacketInReason::Group,
                    5 => PacketInReason::PacketOut,
                    _ => at.apply,
                };
                // A traced packet that is paused stops here: only a controller could resume it.
                let told = self.teller.is_some() && *pause;
                if (!told || self.learns) && self.may_tell_controller(*meter_id) {
                    self.tell_controller(at, reason, *max_len, *controller_id, userdata);
                }
                self.stopped |= told;
                if *pause && !told {
                    // It comes back as any packet comes, and its headers are read again: behind a
                    // tag that has been pushed, others may not be seen any more.
                    self.packet = Packet::new(self.packet.bytes());
                    self.parse_again();
                }
            }
            Action::Meter(number) => self.meter(*number),
            Action::Group(number) => self.group(*number, at),
            Action::Enqueue { port, queue } => {
                let before = self.queue;
                self.choose_queue(Some(*queue));
                self.output(*port, 0, at);
                self.tell_effects(); // while the key still has this queue
                self.choose_queue(before);
            }
            Action::SetQueue(queue) => self.choose_queue(Some(*queue)),
            Action::PopQueue => self.choose_queue(None),
            Action::Load { dst, value } => self.write(dst, (*value).into()),
            Action::Move { src, dst } => {
                // In parts that a number holds, all of which are read first.
                let part = |of: &Subfield, from: u16| Subfield {
                    start: of.start + from,
                    bits: (of.bits - from).min(128),
                    ..*of
                };
                let parts = || (0..src.bits).step_by(128);
                let values: Vec<u128> = parts().map(|from| self.read(&part(src, from))).collect();
                for (from, value) in parts().zip(values) {
                    self.write(&part(dst, from), value);
                }
            }
            Action::SetField { field, value, mask } => self.set_field(*field, value, mask),
            Action::SetTunnel { id, .. } => self.whole(Field::TunId, (*id).into()),
            Action::DecTtl(controllers) => return self.dec_ttl(controllers, at),
            // Without a connection there is no first packet to look up by.
            Action::Resubmit {
                with_ct_orig: true, ..
            } if !self.has_first_packet() => {}
            Action::DecMplsTtl => return self.dec_mpls_ttl(at),
            Action::Resubmit {
                in_port,
                table,
                with_ct_orig,
            } => {
                self.by_first_packet = *with_ct_orig;
                let in_port = in_port.unwrap_or(self.key.u32(at::IN_PORT));
                self.resubmit(in_port, table.unwrap_or(at.table), at);
            }
            Action::Exit => self.stopped = true,
            Action::StackPush(source) => {
                let value = self.read(source);
                self.stack.push(value);
                if self.stack.len() > MAX_STACK {
                    self.outcome.cut_short = true;
                    self.say(|| What::Error(format!("over {MAX_STACK} values on the stack")));
                }
            }
            Action::StackPop(to) => match self.stack.pop() {
                Some(value) => {
                    self.write(to, value);
                    self.explain_written(to);
                }
                None => self.say(|| What::Error("stack underflow".into())),
            },
            Action::Clone(actions) => self.clone_of_packet(actions, at),
            Action::Multipath(multipath) => self.multipath(multipath),
            Action::Bundle(bundle) => self.bundle(bundle, at),
            Action::CheckPktLarger { max_len, dst } => {
                let longer = self.packet.bytes().len() > usize::from(*max_len);
                self.write(dst, longer.into());
            }
            // There is no exporter, as in Open vSwitch without collectors.
            Action::Sample(_) => {}
            Action::DeleteField(field) => {
                if let Some(option) = field.tunnel_option() {
                    self.note_option(option, false);
                }
            }
            Action::Learn(learn) => self.learn(learn),
            Action::FinTimeout { idle, hard } => self.fin_timeout(*idle, *hard),
            Action::SetFcf(fcf) => self.key.set_u16(at::FCF, fcf.word()),
            Action::Ct(ct) => self.track(ct, at),
            Action::CtClear => self.forget_connection(),
            Action::Note(_) | Action::Conjunction { .. } | Action::Steer(_) => {}
            edit => self.edit(edit),
        }
        Flow::On
    }

    /// Runs a list, and the action set it leaves, on a copy. Nothing comes back, nor does the
    /// action set.
    fn clone_of_packet(&mut self, actions: &[Action], at: At) {
        let before = (self.packet.clone(), self.key, self.queue);
        let (counted, packet_out) = (self.counted, self.packet_out);
        let (set, stack) = (self.set.clone(), self.stack.clone());
        let tracked = self.tracked;
        self.copied += self.packet.bytes().len();
        let copy = (self.packet.bytes().to_vec(), self.key);
        self.open(|| What::Copy(Box::new(copy)));
        self.list(actions, at);
        if !self.is_over() {
            self.run_set(at);
        }
        self.close();
        (self.packet, self.key, self.queue) = before;
        (self.counted, self.packet_out) = (counted, packet_out);
        (self.set, self.stack) = (set, stack);
        self.tracked = tracked;
        self.dead = false;
    }

    /// Carries out an action that changes one header.
    fn edit(&mut self, action: &Action) {
        match action {
            Action::PushVlan(ethertype) => self.packet.push_vlan(*ethertype),
            Action::PopVlan => self.packet.pop_vlan(),
            Action::PushMpls(ethertype) => {
                if self.key.u8(at::MPLS_DEPTH) == 0 {
                    let now =
                        (self.teller.is_some()).then(|| (self.packet.bytes().to_vec(), self.key));
                    self.say(|| What::FirstLabel(Box::new(now.unwrap_or_default())));
                }
                self.packet.push_mpls(*ethertype, &self.key)
            }
            Action::PopMpls(ethertype) => {
                let before = self.packet.bytes().len();
                self.packet.pop_mpls(*ethertype);
                let popped = self.packet.bytes().len() != before;
                if popped && ![0x8847, 0x8848].contains(ethertype) {
                    self.counted = self.packet.bytes().len();
                }
            }
            Action::CopyTtlOut => self.packet.copy_ttl(true),
            Action::CopyTtlIn => self.packet.copy_ttl(false),
            Action::PushPbb(_) => self.packet.push_pbb(),
            Action::PopPbb => self.packet.pop_pbb(),
            Action::SetVlanVid { vid, push } => self.packet.set_tag(*push, 0x0fff, *vid),
            Action::SetVlanPcp { pcp, push } => {
                self.packet.set_tag(*push, 0xe000, u16::from(*pcp) << 13)
            }
            Action::SetEthSrc(address) => self.packet.write(Field::EthSrc, number(address)),
            Action::SetEthDst(address) => self.packet.write(Field::EthDst, number(address)),
            Action::SetIpv4Src(address) => self.packet.write(Field::Ipv4Src, (*address).into()),
            Action::SetIpv4Dst(address) => self.packet.write(Field::Ipv4Dst, (*address).into()),
            Action::SetIpTos(tos) => self.packet.write(Field::IpDscp, (tos >> 2).into()),
            Action::SetIpEcn(ecn) => self.packet.write(Field::IpEcn, (*ecn).into()),
            Action::SetIpTtl(ttl) => self.packet.write(Field::IpTtl, (*ttl).into()),
            Action::SetMplsLabel(label) => self.packet.write(Field::MplsLabel, (*label).into()),
            Action::SetMplsTc(tc) => self.packet.write(Field::MplsTc, (*tc).into()),
            Action::SetMplsTtl(ttl) => self.packet.write(Field::MplsTtl, (*ttl).into()),
            Action::SetL4Src(port) => {
                for field in [Field::TcpSrc, Field::UdpSrc, Field::SctpSrc] {
                    self.packet.write(field, (*port).into());
                }
            }
            Action::SetL4Dst(port) => {
                for field in [Field::TcpDst, Field::UdpDst, Field::SctpDst] {
                    self.packet.write(field, (*port).into());
                }
            }
            _ => return, // a note, or an action that no flow mod may contain
        }
        self.look_at_headers(action);
        self.parse_again();
    }

    /// Runs the packet's own action set, at the end.
    fn run_own_set(&mut self) {
        let at = self.first.unwrap_or(PACKET_OUT);
        self.run_set(at);
    }

    /// Carries out a packet-out's list, which names the bridge's tunnel options without their
    /// lengths.
    fn begin_list(&mut self, actions: &[Action]) {
        self.first = Some(PACKET_OUT);
        let resolved = self.pipeline.options.actions(actions);
        let actions = resolved.unwrap_or(Cow::Borrowed(actions));
        self.list(&actions, PACKET_OUT);
    }

    /// Runs the action set: OpenFlow 1.3.5 section 5.10, completed as in Open vSwitch. Of each kind
    /// of tag and TTL action, and of queues, only the last counts; sets and moves run in order;
    /// without a group, an output or a resubmit nothing runs.
    fn run_set(&mut self, at: At) {
        let set = std::mem::take(&mut self.set);
        let (ordered, ends) = in_order(&set);
        if !ends {
            return;
        }
        let at = At {
            apply: PacketInReason::ActionSet,
            table_is_lookup: false,
            ..at
        };
        self.open(|| What::ActionSet);
        self.list(&ordered, at);
        self.close();
    }

    fn resubmit(&mut self, in_port: PortNo, table: u8, at: At) {
        self.resubmits += 1;
        if self.resubmits > MAX_RESUBMITS || at.depth >= MAX_DEPTH {
            self.outcome.cut_short = true;
            let depth = at.depth >= MAX_DEPTH;
            self.say(|| {
                What::Error(if depth {
                    format!("over max translation depth {MAX_DEPTH}")
                } else {
                    format!("over {MAX_RESUBMITS} resubmit actions")
                })
            });
            return;
        }
        self.look_up(
            table,
            in_port,
            false,
            at.depth + u32::from(table <= at.table),
        );
    }

    fn choose_queue(&mut self, queue: Option<u32>) {
        self.queue = queue;
        self.key.set_u32(at::SKB_PRIORITY, queue.unwrap_or(0));
    }

    fn sent(&self) -> Sent {
        Sent {
            in_port: self.key.u32(at::IN_PORT),
            queue: self.queue,
            bytes: self.packet.bytes().to_vec(),
        }
    }

    fn output(&mut self, port: PortNo, max_len: u16, at: At) {
        let sent = self.sent();
        let effect = match port {
            port::ANY => return,
            port::CONTROLLER => {
                let reason = if self.packet_out {
                    PacketInReason::PacketOut
                } else {
                    at.apply
                };
                return self.send_to_controller(at, reason, max_len, 0, &[]);
            }
            port::IN_PORT => Effect::Output {
                port: sent.in_port,
                to_in_port: true,
                sent,
            },
            port::NORMAL => Effect::Normal(sent),
            port::FLOOD => Effect::All { flood: true, sent },
            port::ALL => Effect::All { flood: false, sent },
            port => Effect::Output {
                port,
                to_in_port: false,
                sent,
            },
        };
        self.outcome.effects.push(effect);
    }

    fn send_to_controller(
        &mut self,
        at: At,
        reason: PacketInReason,
        max_len: u16,
        controller_id: u16,
        userdata: &[u8],
    ) {
        if self.may_tell_controller(None) {
            self.tell_controller(at, reason, max_len, controller_id, userdata);
        }
    }

    fn tell_controller(
        &mut self,
        at: At,
        reason: PacketInReason,
        max_len: u16,
        controller_id: u16,
        userdata: &[u8],
    ) {
        self.outcome.effects.push(Effect::Controller {
            reason,
            table: at.table,
            cookie: at.cookie,
            max_len,
            controller_id,
            userdata: userdata.to_vec(),
            key: Box::new(self.key),
            bytes: self.packet.bytes().to_vec(),
        });
    }

    fn dec_ttl(&mut self, controllers: &[u16], at: At) -> Flow {
        self.look_at(Field::IpTtl);
        let ip =
            [0x0800, 0x86dd].contains(&self.key.u16(at::ETH_TYPE)) && self.packet.ttl().is_some();
        match self.packet.ttl() {
            Some(ttl) if ip && ttl > 1 => {
                self.packet.write(Field::IpTtl, u128::from(ttl) - 1);
                self.parse_again();
                Flow::On
            }
            Some(_) if ip => {
                for id in controllers {
                    self.send_to_controller(at, PacketInReason::InvalidTtl, u16::MAX, *id, &[]);
                }
                Flow::EndOfList
            }
            _ => Flow::On,
        }
    }

    fn dec_mpls_ttl(&mut self, at: At) -> Flow {
        self.look_at(Field::MplsTtl);
        match self.packet.label() {
            Some(entry) if entry & 0xff > 1 => {
                self.packet
                    .write(Field::MplsTtl, u128::from(entry & 0xff) - 1);
                self.parse_again();
                Flow::On
            }
            Some(_) => {
                self.send_to_controller(at, PacketInReason::InvalidTtl, u16::MAX, 0, &[]);
                Flow::EndOfList
            }
            None => Flow::EndOfList,
        }
    }

    /// Returns a field's value as a number, low bit first, as actions count its bits.
    fn field(&self, field: Field) -> u128 {
        let def = field.def();
        let bytes = Value::from_bytes(&self.key.bytes()[def.offset..def.offset + def.bytes]);
        let width = if def.bits >= 128 {
            u128::MAX
        } else {
            (1 << def.bits) - 1
        };
        (bytes.to_u128() >> def.shift & width) << def.wire_shift
    }

    /// Returns where a tunnel option's bytes are in the key; None for other fields, and for options
    /// that are not mapped.
    fn place(&self, field: Field) -> Option<packet::options::KeyRange> {
        self.pipeline.options.place(field.tunnel_option()?)
    }

    /// Returns the low 128 bits of a subfield, as a number.
    fn read(&mut self, part: &Subfield) -> u128 {
        self.look_at(part.field);
        if let Some(place) = self.place(part.field) {
            let bytes = &self.key.bytes()[place.start..place.end];
            return Value::u128_at(bytes, part.start.into()) & ones(part.bits);
        }
        self.field(part.field) >> part.start & ones(part.bits)
    }

    fn write(&mut self, part: &Subfield, value: u128) {
        if let Some(place) = self.place(part.field) {
            let (start, length) = (part.start.into(), place.length());
            let value = Value::from_u128_at(value & ones(part.bits), start, length);
            let mask = Value::ones_at(start, part.bits.into(), length);
            return self.set_field(part.field, &value, &mask);
        }
        let mask = ones(part.bits) << part.start;
        let mut new = self.field(part.field) & !mask | value << part.start & mask;
        if part.field == Field::InPort && usize::from(part.bits) == part.field.def().action_bits {
            new = port::from_u16(new as u16).into();
        }
        self.whole(part.field, new >> part.field.def().wire_shift);
    }

    /// Records whether the packet has a tunnel option.
    fn note_option(&mut self, option: usize, present: bool) {
        let bit = 1_u64 << option;
        let others = self.key.u64(at::TUN_METADATA_PRESENT) & !bit;
        let bit = if present { bit } else { 0 };
        self.key.set_u64(at::TUN_METADATA_PRESENT, others | bit);
    }

    fn set_field(&mut self, field: Field, value: &Value, mask: &Value) {
        if let Some(option) = field.tunnel_option() {
            self.look_at(field);
            // The value may be longer than the option; both end at its last byte.
            if let Some(place) = self.place(field) {
                let bytes = &mut self.key.bytes_mut()[place.start..place.end];
                let both = value.iter().zip(mask.iter()).rev();
                for (byte, (value, mask)) in bytes.iter_mut().rev().zip(both) {
                    *byte = *byte & !mask | value & mask;
                }
            }
            return self.note_option(option, true);
        }
        let def = field.def();
        let (value, mask) = (value.to_u128() >> def.shift, mask.to_u128() >> def.shift);
        let old = self.field(field) >> def.wire_shift;
        self.whole(field, old & !mask | value & mask);
    }

    /// Writes a whole field, into the packet if it is a header field.
    fn whole(&mut self, field: Field, number: u128) {
        self.look_at(field);
        let def = field.def();
        let in_packet = !matches!(field, Field::InPort | Field::InPortOxm)
            && def.words().intersect(parse::PACKET_WORDS) != WordSet::EMPTY;
        if in_packet {
            self.packet.write(field, number);
            return self.parse_again();
        }
        let place = def.place();
        let value = Value::from_u128(number << def.shift, def.bytes);
        let bytes = &mut self.key.bytes_mut()[def.offset..def.offset + def.bytes];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = *byte & !place[index] | value[index] & place[index];
        }
    }
}

/// Returns the actions of a set in the order in which they run, and whether one of them outputs the
/// packet; without one, none runs.
fn in_order(set: &[Action]) -> (Vec<Action>, bool) {
    let last = |kind: fn(&Action) -> bool| set.iter().rev().find(|action| kind(action)).cloned();
    let finals = last(|action| matches!(action, Action::Group(_)))
        .or_else(|| last(|action| matches!(action, Action::Output { .. })))
        .or_else(|| last(|action| matches!(action, Action::Resubmit { .. })));
    let mut ordered = Vec::new();
    let slots: [fn(&Action) -> bool; 10] = [
        |action| matches!(action, Action::CopyTtlIn),
        |action| matches!(action, Action::PopVlan),
        |action| matches!(action, Action::PopPbb),
        |action| matches!(action, Action::PopMpls(_)),
        |action| matches!(action, Action::PushMpls(_)),
        |action| matches!(action, Action::PushPbb(_)),
        |action| matches!(action, Action::PushVlan(_)),
        |action| matches!(action, Action::CopyTtlOut),
        |action| matches!(action, Action::DecTtl(_)),
        |action| matches!(action, Action::DecMplsTtl),
    ];
    ordered.extend(slots.iter().filter_map(|slot| last(*slot)));
    let slotted = |action: &&Action| {
        !slots.iter().any(|slot| slot(action))
            && !matches!(
                action,
                Action::SetQueue(_)
                    | Action::Group(_)
                    | Action::Output { .. }
                    | Action::Resubmit { .. }
            )
    };
    ordered.extend(set.iter().filter(slotted).cloned());
    ordered.extend(last(|action| matches!(action, Action::SetQueue(_))));
    let ends = finals.is_some();
    ordered.extend(finals);
    (ordered, ends)
}

fn ones(bits: u16) -> u128 {
    if bits >= 128 {
        u128::MAX
    } else {
        (1 << bits) - 1
    }
}

fn number(address: &[u8; 6]) -> u128 {
    address
        .iter()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}
