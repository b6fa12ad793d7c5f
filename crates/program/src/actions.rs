//! The steps that a rule's actions are compiled to.
//!
//! An [`OpList`] is the rule's instructions in order of execution, flattened: apply-actions first,
//! then changes of the action set and metadata, then an optional jump to a later table. Lists are
//! shared by rules that do the same.

pub(crate) mod batch;
pub(crate) mod bits;
pub(crate) mod block;
pub mod learn;
pub mod multipath;
pub(crate) mod set;

use crate::actions::block::{ActionBlock, ActionBlocks, blocks};
use crate::actions::learn::Learn;
use crate::actions::multipath::{Choice, HashFields};
use crate::actions::set::ActionSet;
use crate::group::{Bucket, GroupRef};
use crate::meters::MeterRef;
use packet::edit::CompiledSet;
use packet::{Field, Value, WordSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

pub use crate::port::PortNo;
pub(crate) use crate::port::reserved;

/// Part of a field: bits `start..start + bits`, counted from its lowest bit as actions see it
/// (`nw_tos` has two bits below the field that read as zero and are not written).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bits {
    /// Which field.
    pub field: Field,
    /// The lowest bit.
    pub start: u16,
    /// How many, 1 to 128.
    pub bits: u16,
}

/// Why a packet goes to the controllers (`OFPR_*` of OpenFlow 1.3 and later).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PacketInReason {
    /// An action says that a table had no rule for it.
    NoMatch = 0,
    /// An action sent it.
    Action = 1,
    /// Its TTL ran out.
    InvalidTtl = 2,
    /// The action set sent it (1.4).
    ActionSet = 3,
    /// A group sent it (1.4).
    Group = 4,
    /// A packet-out sent it (1.4).
    PacketOut = 5,
    /// A table-miss rule sent it: `NoMatch` for controllers of 1.3 and later, `Action` for older
    /// ones, to whom such a rule is one like others.
    TableMiss = 6,
    /// It met no rule at all, and the table says that controllers get it: `NoMatch` for those
    /// before 1.3, nothing for others.
    NoRule = 7,
}

/// What is sent to the controllers, and to which.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ToController {
    /// Bytes of the packet that would do, 0xffff for all. No packets are kept here for controllers
    /// to refer to, so all of it is sent whatever this says (1.3.5 section 6.1.2).
    pub max_len: u16,
    /// Why.
    pub reason: PacketInReason,
    /// Controllers with this id.
    pub controller_id: u16,
    /// Handed back in the packet-in.
    pub userdata: Vec<u8>,
}

/// Chooses one of several ways by a hash.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Multipath {
    /// What is hashed.
    pub fields: HashFields,
    /// A parameter of the hash.
    pub basis: u16,
    /// How the hash chooses.
    pub choice: Choice,
    /// How many ways there are, at least one.
    pub ways: u32,
    /// Where the way's number goes, counted from 0.
    pub dst: Bits,
}

/// Chooses one of several ports, of those that are live.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bundle {
    /// What is hashed.
    pub fields: HashFields,
    /// A parameter of the hash that chooses by highest weight; None takes the first live port.
    pub basis: Option<u16>,
    /// The ports, in order of preference.
    pub members: Box<[PortNo]>,
    /// Where the port's number goes; None to send there.
    pub dst: Option<Bits>,
}

/// Part of a condition that a rule fulfils ([`Op::Conjunction`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clause {
    /// The condition's number.
    pub id: u32,
    /// Which of its clauses, from 0.
    pub index: u8,
    /// How many clauses it has, 2 to 64.
    pub of: u8,
}

/// One step.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Send out of a port, never back out of the ingress port (that takes [`Op::InPort`]).
    Output(PortNo),
    /// Send out of the ingress port.
    InPort,
    /// Send out of every port but the ingress one; with `flood`, leave out ports that are marked
    /// no-flood.
    All {
        /// Whether no-flood ports are left out.
        flood: bool,
    },
    /// Hand to the learning switch.
    Normal,
    /// Send to the port whose number the bits hold; reserved numbers act as in an output action.
    OutputReg(Bits),
    /// Send the first `max_len` bytes to a port.
    OutputTruncated {
        /// Where.
        port: PortNo,
        /// Bytes to keep.
        max_len: u32,
    },
    /// Send to a port through a queue; outputs that follow go through the one chosen before.
    Enqueue {
        /// Where.
        port: PortNo,
        /// The queue.
        queue: u32,
    },
    /// Send to the controllers.
    Controller(Box<ToController>),
    /// Write `value` where `mask` has ones; both as the field lies in the key. Header fields are
    /// written in the packet too. A list holds it as [`Op::Set`].
    SetField {
        /// Which.
        field: Field,
        /// The bits.
        value: Value,
        /// Which bits.
        mask: Value,
    },
    /// One or several sets made ready to run; [`OpList::new`] puts it in the place of
    /// [`Op::SetField`].
    Set(CompiledSet),
    /// Copy bits.
    Move {
        /// From.
        src: Bits,
        /// To; as many.
        dst: Bits,
    },
    /// Push a VLAN tag with this Ethertype.
    PushVlan(u16),
    /// Remove the outermost VLAN tag, if there is one.
    PopVlan,
    /// Write the VLAN id; with `push`, push an 802.1Q tag first where there is none.
    SetVlanVid {
        /// 0-4095.
        vid: u16,
        /// Push where there is none.
        push: bool,
    },
    /// Write the VLAN priority; with `push`, push an 802.1Q tag first where there is none.
    SetVlanPcp {
        /// 0-7.
        pcp: u8,
        /// Push where there is none.
        push: bool,
    },
    /// Decrement the IP TTL; where it runs out, the packet goes to the controllers with these ids
    /// and this list ends.
    DecTtl(Box<[u16]>),
    /// Push an MPLS label with this Ethertype (0x8847, 0x8848).
    PushMpls(u16),
    /// Remove the outermost MPLS label, if there is one; the Ethertype of what follows.
    PopMpls(u16),
    /// Decrement the outermost label's TTL; where it runs out, the packet goes to the controllers
    /// and this list ends, and it ends where there is no label.
    DecMplsTtl,
    /// Copy the TTL behind the outermost label into it.
    CopyTtlOut,
    /// Copy the outermost label's TTL to the next one behind it.
    CopyTtlIn,
    /// Push a PBB header.
    PushPbb,
    /// Remove the PBB header, if there is one.
    PopPbb,
    /// Queue for outputs that follow; None for the port's default.
    SetQueue(Option<u32>),
    /// Look up in a table (None: the current one), then go on with this list. `in_port`: what the
    /// lookup matches as ingress port.
    Resubmit {
        /// Port number to match with.
        in_port: Option<PortNo>,
        /// Table.
        table: Option<u8>,
    },
    /// Go on in another table and never come back to this list.
    Goto(u8),
    /// Merge these into the action set.
    WriteActions(Arc<[Op]>),
    /// Empty the action set.
    ClearActions,
    /// Push bits on the walk's stack.
    StackPush(Bits),
    /// Pop bits off the walk's stack; an empty stack leaves the destination as it is.
    StackPop(Bits),
    /// Run a list on a copy, and then what the action set holds by then; no change to packet,
    /// metadata, stack or action set comes back.
    Clone(Arc<OpList>),
    /// Choose a way and write its number.
    Multipath(Box<Multipath>),
    /// Choose a port, and send there or write its number.
    Bundle(Box<Bundle>),
    /// Write 1 where the packet has more bytes than this, else 0.
    CheckLength {
        /// Bytes from the Ethernet header on.
        max_len: u16,
        /// Where to.
        dst: Bits,
    },
    /// The rule is part of conditions; the only step of its list, and never run: see the lookup of
    /// conjunctive matches in `program::table`.
    Conjunction(Box<[Clause]>),
    /// Hold the packet against a meter, which may drop it or change its DSCP.
    Meter(MeterRef),
    /// Hold the packet against a meter; above the rate the [`Op::Controller`] that follows is left
    /// out.
    MeterController(MeterRef),
    /// Ask for a rule; the packet waits until it is in force.
    Learn(Arc<Learn>),
    /// Shorten the rule's timeouts when the packet ends a TCP connection. It is carried out when
    /// the rule is met.
    FinTimeout {
        /// Seconds without a packet, 0 for no change.
        idle: u16,
        /// Seconds since the rule was added, 0 for no change.
        hard: u16,
    },
    /// Send to the controllers and stop there, until one of them says how it goes on.
    Pause(Box<ToController>),
    /// Run a group's buckets, each as on a copy.
    Group(GroupRef),
    /// Run a bucket as on a copy; stands in groups only.
    Bucket(Arc<Bucket>),
    /// End the whole walk, except that the action set is still run (ovs-actions(7), "exit").
    Exit,
}

/// A compiled list of steps. In a shared one the steps do not lie on one line with the number of
/// those who share it, which changes with every rule that does the same, while workers run the
/// steps.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub struct OpList {
    /// The steps, in order.
    pub ops: Box<[Op]>,
    /// The same for packets on a straight way, made when the first rule wants it.
    blocks: OnceLock<Option<Box<[ActionBlock]>>>,
}

impl PartialEq for OpList {
    fn eq(&self, other: &OpList) -> bool {
        self.ops == other.ops
    }
}

impl Eq for OpList {}

impl Hash for OpList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.ops.hash(state);
    }
}

impl OpList {
    /// Whether a step among them asks for a rule.
    pub fn learns(&self) -> bool {
        learns(&self.ops)
    }

    /// A list of the given steps, in which sets are made ready to run and neighbours made one where
    /// they can be.
    pub fn new(ops: Vec<Op>) -> OpList {
        OpList {
            ops: compiled(ops),
            blocks: OnceLock::new(),
        }
    }

    /// What its steps do on a straight way, if that is all they do. Nothing may be bound
    /// afterwards.
    pub(crate) fn blocks(&self) -> Option<ActionBlocks> {
        let made = self.blocks.get_or_init(|| blocks(&self.ops));
        made.as_deref().map(ActionBlocks::of)
    }

    /// The clauses of a rule that is part of conditions; None for one that does something.
    #[inline]
    pub fn clauses(&self) -> Option<&[Clause]> {
        match &*self.ops {
            [Op::Conjunction(clauses)] => Some(clauses),
            _ => None,
        }
    }

    /// Gives the groups that its steps name their slots.
    pub fn bind(&mut self, find: &impl Fn(u32) -> GroupRef) {
        self.ops.iter_mut().for_each(|op| op.bind(find));
    }

    /// Whether it writes to the action set.
    pub(crate) fn writes_set(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::WriteActions(_)))
    }

    /// False only where its steps surely end at ports named in them, controllers and the learning
    /// switch.
    pub(crate) fn goes_on(&self) -> bool {
        let ends = |op: &Op| op.only_sends() || matches!(op, Op::Set(_) | Op::DecTtl(_));
        !self.ops.iter().all(ends)
    }

    /// Whether some step changes something of the packet that lookups see.
    pub(crate) fn changes(&self) -> bool {
        !self.ops.iter().all(Op::only_sends)
    }

    /// The words of the key that its steps may change, as later lookups see them.
    pub(crate) fn written(&self) -> WordSet {
        written(&self.ops)
    }

    /// Whether some step may tell the controllers of the packet, by itself or elsewhere (groups).
    pub(crate) fn may_tell(&self) -> bool {
        may_tell(&self.ops)
    }

    /// The words of the key that its steps read or change, so must be filled by the parser when the
    /// list may run.
    pub fn words(&self) -> WordSet {
        self.ops
            .iter()
            .fold(WordSet::EMPTY, |set, op| set.union(op.words()))
    }
}

/// The steps with their sets made ready.
fn compiled(ops: Vec<Op>) -> Box<[Op]> {
    let mut ready: Vec<Op> = Vec::with_capacity(ops.len());
    for op in ops {
        let op = match op {
            Op::SetField { field, value, mask } => Op::Set(CompiledSet::new(field, &value, &mask)),
            Op::WriteActions(ops) => Op::WriteActions(compiled(ops.to_vec()).into()),
            other => other,
        };
        if let (Some(Op::Set(last)), Op::Set(set)) = (ready.last_mut(), &op)
            && let Some(both) = last.and_then(set)
        {
            *last = both;
        } else {
            ready.push(op);
        }
    }
    ready.into()
}

/// The shortest timeouts that `fin_timeout` among these steps brings, 0 for no change; None when
/// there is none.
pub(crate) fn fin_timeouts(ops: &[Op]) -> Option<(u16, u16)> {
    let shorter = |a: u16, b: u16| if a == 0 || b == 0 { a.max(b) } else { a.min(b) };
    ops.iter()
        .filter_map(|op| match op {
            Op::FinTimeout { idle, hard } => Some((*idle, *hard)),
            Op::Clone(list) => fin_timeouts(&list.ops),
            _ => None,
        })
        .reduce(|a, b| (shorter(a.0, b.0), shorter(a.1, b.1)))
}

/// Whether a step among these may tell the controllers of the packet. Those of which that is not
/// known do.
fn may_tell(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Output(_)
        | Op::InPort
        | Op::All { .. }
        | Op::Normal
        | Op::Enqueue { .. }
        | Op::SetField { .. }
        | Op::Set(_)
        | Op::Move { .. }
        | Op::PushVlan(_)
        | Op::PopVlan
        | Op::SetVlanVid { .. }
        | Op::SetVlanPcp { .. }
        | Op::SetQueue(_)
        | Op::Resubmit { .. }
        | Op::Goto(_)
        | Op::ClearActions
        | Op::StackPush(_)
        | Op::StackPop(_)
        | Op::Multipath(_)
        | Op::CheckLength { .. }
        | Op::Learn(_)
        | Op::Meter(_)
        | Op::Conjunction(_)
        | Op::Exit
        | Op::FinTimeout { .. } => false,
        Op::WriteActions(ops) => may_tell(ops),
        Op::Clone(list) => list.may_tell(),
        _ => true,
    })
}

/// Whether a step among these asks for a rule.
pub(crate) fn learns(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Learn(_) => true,
        Op::Clone(list) => learns(&list.ops),
        _ => false,
    })
}

/// The words of the key that steps may change, as later lookups see them.
fn written(ops: &[Op]) -> WordSet {
    let field = |field: Field| field.def().words();
    let to = |bits: Option<Bits>| bits.map_or(WordSet::EMPTY, |bits| field(bits.field));
    let first = WordSet::of_bytes(packet::key::at::IN_PORT, 8);
    let all = ops.iter().map(|op| match op {
        Op::Output(_)
        | Op::InPort
        | Op::All { .. }
        | Op::Normal
        | Op::OutputReg(_)
        | Op::OutputTruncated { .. }
        | Op::Controller(_)
        | Op::Goto(_)
        | Op::ClearActions
        | Op::StackPush(_)
        | Op::FinTimeout { .. } => WordSet::EMPTY,
        Op::SetField { field: which, .. } => field(*which),
        Op::Set(set) => set.words(),
        Op::Move { dst, .. } | Op::StackPop(dst) => to(Some(*dst)),
        Op::Learn(learn) => to(learn.result),
        // The tag, and with it the Ethertype; with `in_port`, what is matched as ingress port.
        Op::SetVlanVid { .. } | Op::SetVlanPcp { .. } => first,
        Op::Resubmit { in_port, .. } => match in_port {
            Some(_) => first,
            None => WordSet::EMPTY,
        },
        Op::DecTtl(_) => WordSet::of_bytes(packet::key::at::IP_TTL, 1),
        Op::SetQueue(_) | Op::Enqueue { .. } => WordSet::of_bytes(packet::key::at::SKB_PRIORITY, 4),
        Op::WriteActions(ops) => written(ops),
        Op::Clone(list) => list.written(),
        Op::CheckLength { dst, .. } => to(Some(*dst)),
        // What is in front of what may be another after these, or is chosen elsewhere.
        _ => WordSet(u64::MAX),
    });
    all.fold(WordSet::EMPTY, WordSet::union)
}

/// Steps in the order in which an action set runs them, without those that it does not run: none at
/// all when nothing would leave. None when there are too many for a set.
pub fn in_set_order(ops: &[Op]) -> Option<Vec<Op>> {
    let mut set = ActionSet::default();
    set.write(ops)
        .then(|| set.take().map(Vec::from).unwrap_or_default())
}

impl Op {
    /// Whether it sends the packet as it is, or a copy, to ports named in it, the controllers or
    /// the learning switch, and does nothing else.
    pub(crate) fn only_sends(&self) -> bool {
        matches!(
            self,
            Op::Output(_) | Op::InPort | Op::All { .. } | Op::Normal | Op::Controller(_)
        )
    }

    /// Gives the groups that it names their slots.
    pub fn bind(&mut self, find: &impl Fn(u32) -> GroupRef) {
        match self {
            Op::Group(group) => *group = find(group.number),
            Op::WriteActions(ops) if ops.iter().any(|op| matches!(op, Op::Group(_))) => {
                let mut bound = ops.to_vec();
                bound.iter_mut().for_each(|op| op.bind(find));
                *ops = bound.into();
            }
            Op::Clone(list) => Arc::make_mut(list).bind(find),
            _ => {}
        }
    }

    pub(crate) fn words(&self) -> WordSet {
        let field = |field: Field| field.def().words();
        match self {
            Op::OutputReg(bits) | Op::StackPush(bits) | Op::StackPop(bits) => field(bits.field),
            Op::SetField { field: which, .. } => field(*which),
            Op::Set(set) => set.words(),
            Op::Move { src, dst } => field(src.field).union(field(dst.field)),
            Op::WriteActions(ops) => ops
                .iter()
                .fold(WordSet::EMPTY, |set, op| set.union(op.words())),
            Op::Clone(list) => list.words(),
            Op::Bucket(bucket) => bucket.words(),
            Op::Multipath(multipath) => multipath.fields.words().union(field(multipath.dst.field)),
            Op::Bundle(bundle) => bundle
                .dst
                .map_or(WordSet::EMPTY, |dst| field(dst.field))
                .union(bundle.fields.words()),
            Op::CheckLength { dst, .. } => field(dst.field),
            Op::Meter(_) => field(Field::IpDscpShifted).union(field(Field::EthType)),
            Op::Learn(learn) => learn.words(),
            Op::SetQueue(_) => WordSet::of_bytes(packet::key::at::SKB_PRIORITY, 4),
            _ => WordSet::EMPTY,
        }
    }
}
