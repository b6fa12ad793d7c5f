//! The steps that a rule's actions are compiled to.
//!
//! An [`OpList`] is the rule's instructions in order of execution, flattened: apply-actions first,
//! then changes of the action set and metadata, then an optional jump to a later table. Rules with
//! the same actions share a list.

pub(crate) mod batch;
pub(crate) mod bits;
pub(crate) mod block;
pub mod connection;
pub(crate) mod lane_learn;
pub mod learn;
pub mod multipath;
pub(crate) mod set;
pub(crate) mod transfer;

use crate::actions::block::{ActionBlock, ActionBlocks, blocks};
use crate::actions::connection::{CONNECTION, TRANSLATED, Track};
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
    /// Lowest bit.
    pub start: u16,
    /// Number of bits, 1 to 128.
    pub bits: u16,
}

/// Why a packet goes to the controllers (`OFPR_*` of OpenFlow 1.3 and later).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum PacketInReason {
    /// An action says that a table had no rule for the packet.
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
    /// A table-miss rule sent it: sent as `NoMatch` to controllers of 1.3 and later, as `Action` to
    /// older ones, which do not know table-miss rules.
    TableMiss = 6,
    /// No rule matched, and the table is configured to send misses to controllers: sent as
    /// `NoMatch` to controllers before 1.3, not sent to others.
    NoRule = 7,
}

/// A packet-in's contents, and the controllers it goes to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ToController {
    /// Bytes of the packet that suffice, 0xffff for all. All bytes are always sent, because the
    /// switch buffers no packets for controllers to refer to (1.3.5 section 6.1.2).
    pub max_len: u16,
    /// Reason given in the packet-in.
    pub reason: PacketInReason,
    /// Id of the controllers that get it.
    pub controller_id: u16,
    /// Bytes returned unchanged in the packet-in.
    pub userdata: Vec<u8>,
    /// Whether an output to the port CONTROLLER sends it, and not an action of its own: while a
    /// packet-out is walked its reason is then [`PacketInReason::PacketOut`], as in Open vSwitch.
    pub by_output: bool,
}

impl ToController {
    /// Creates the packet-in of all of a packet for controllers with id 0, without data, that no
    /// output action asks for.
    pub fn whole(reason: PacketInReason) -> ToController {
        ToController {
            max_len: u16::MAX,
            reason,
            controller_id: 0,
            userdata: Vec::new(),
            by_output: false,
        }
    }

    /// Returns the reason to give in a packet-in that is sent while a packet-out is walked.
    pub fn reason_in_packet_out(&self) -> PacketInReason {
        if self.by_output {
            PacketInReason::PacketOut
        } else {
            self.reason
        }
    }
}

/// The `multipath` action: chooses one of several ways by a hash.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Multipath {
    /// Fields that are hashed.
    pub fields: HashFields,
    /// A parameter of the hash.
    pub basis: u16,
    /// How the hash chooses.
    pub choice: Choice,
    /// Number of ways, at least one.
    pub ways: u32,
    /// Destination of the chosen way's number, counted from 0.
    pub dst: Bits,
}

/// The `bundle` action: chooses one of several ports among those that are live.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bundle {
    /// Fields that are hashed.
    pub fields: HashFields,
    /// A parameter of the hash that chooses by highest weight; None takes the first live port.
    pub basis: Option<u16>,
    /// The ports, in order of preference.
    pub members: Box<[PortNo]>,
    /// Destination of the port's number; None to send there.
    pub dst: Option<Bits>,
}

/// A rule's part in a conjunctive match ([`Op::Conjunction`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clause {
    /// Id of the conjunctive match.
    pub id: u32,
    /// Index of the clause, from 0.
    pub index: u8,
    /// Number of clauses in the match, 2 to 64.
    pub of: u8,
}

/// One step of an [`OpList`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Sends out of a port, but not back out of the ingress port ([`Op::InPort`] does that).
    Output(PortNo),
    /// Sends out of the ingress port.
    InPort,
    /// Sends out of every port but the ingress one; with `flood`, also not out of ports marked
    /// no-flood.
    All {
        /// Leave out no-flood ports.
        flood: bool,
    },
    /// Hands the packet to the learning switch.
    Normal,
    /// Sends to the port whose number the bits hold; reserved numbers act as in an output action.
    OutputReg {
        /// Where the number is.
        source: Bits,
        /// Reason given in the packet-in, if it is CONTROLLER.
        reason: PacketInReason,
    },
    /// Sends the first `max_len` bytes to a port.
    OutputTruncated {
        /// Destination.
        port: PortNo,
        /// Bytes to keep.
        max_len: u32,
    },
    /// Sends to a port through a queue. Later outputs use the queue that was chosen before.
    Enqueue {
        /// Destination.
        port: PortNo,
        /// The queue.
        queue: u32,
    },
    /// Sends a packet-in.
    Controller(Box<ToController>),
    /// Writes `value` where `mask` has ones; both as the field lies in the key. Header fields are
    /// written in the packet too. A compiled list has [`Op::Set`] instead.
    SetField {
        /// Field to write.
        field: Field,
        /// Value.
        value: Value,
        /// Bits of the field to write.
        mask: Value,
    },
    /// One or several sets compiled by [`OpList::new`] from [`Op::SetField`].
    Set(CompiledSet),
    /// Copies bits.
    Move {
        /// Source.
        src: Bits,
        /// Destination, of the same width.
        dst: Bits,
    },
    /// Pushes a VLAN tag with this Ethertype.
    PushVlan(u16),
    /// Removes the outermost VLAN tag, if there is one.
    PopVlan,
    /// Writes the VLAN id. Without a tag, pushes an 802.1Q tag first if `push`.
    SetVlanVid {
        /// VLAN id, 0-4095.
        vid: u16,
        /// Push a tag where there is none.
        push: bool,
    },
    /// Writes the VLAN priority. Without a tag, pushes an 802.1Q tag first if `push`.
    SetVlanPcp {
        /// Priority, 0-7.
        pcp: u8,
        /// Push a tag where there is none.
        push: bool,
    },
    /// Decrements the IP TTL. Where it would expire, the packet goes to the controllers with these
    /// ids and the list ends.
    DecTtl(Box<[u16]>),
    /// Pushes an MPLS label with this Ethertype (0x8847, 0x8848).
    PushMpls(u16),
    /// Removes the outermost MPLS label, if there is one; the argument is the Ethertype of what
    /// follows.
    PopMpls(u16),
    /// Decrements the outermost label's TTL. Where it would expire, the packet goes to the
    /// controllers and the list ends; without a label, the list ends too.
    DecMplsTtl,
    /// Copies the TTL behind the outermost label into it.
    CopyTtlOut,
    /// Copies the outermost label's TTL to the next header.
    CopyTtlIn,
    /// Pushes a PBB header.
    PushPbb,
    /// Removes the PBB header, if there is one.
    PopPbb,
    /// Sets the queue for later outputs; None for the port's default.
    SetQueue(Option<u32>),
    /// Looks up in a table (None: the current one), then continues with this list. `in_port`:
    /// ingress port for the lookup.
    Resubmit {
        /// Port number to match as ingress port.
        in_port: Option<PortNo>,
        /// Table to look up in.
        table: Option<u8>,
    },
    /// Continues in another table and never returns to this list.
    Goto(u8),
    /// Merges these steps into the action set.
    WriteActions(Arc<[Op]>),
    /// Empties the action set.
    ClearActions,
    /// Pushes bits on the walk's stack.
    StackPush(Bits),
    /// Pops bits off the walk's stack; an empty stack leaves the destination unchanged.
    StackPop(Bits),
    /// Runs a list on a copy of the packet, then the action set as the list left it. The copy's
    /// changes to packet, metadata, stack and action set do not come back.
    Clone(Arc<OpList>),
    /// Chooses a way and writes its number.
    Multipath(Box<Multipath>),
    /// Chooses a port, and sends there or writes its number.
    Bundle(Box<Bundle>),
    /// Writes 1 where the packet is longer than `max_len`, else 0.
    CheckLength {
        /// Bytes from the Ethernet header on.
        max_len: u16,
        /// Destination, one bit.
        dst: Bits,
    },
    /// Says that the rule is part of conjunctive matches. It is the only step of its list and never
    /// runs: see `classifier::conjunction`.
    Conjunction(Box<[Clause]>),
    /// Applies a meter, which may drop the packet or change its DSCP.
    Meter(MeterRef),
    /// Applies a meter; above its rate the [`Op::Controller`] that follows is skipped.
    MeterController(MeterRef),
    /// Asks for a rule; the packet waits until it is in force.
    Learn(Arc<Learn>),
    /// Shortens the rule's timeouts when the packet ends a TCP connection (FIN or RST). Executed
    /// when the rule is met.
    FinTimeout {
        /// Idle timeout in seconds, 0 for no change.
        idle: u16,
        /// Hard timeout in seconds since the rule was added, 0 for no change.
        hard: u16,
    },
    /// Sends the packet to the controllers and stops until one of them resumes it.
    Pause(Box<ToController>),
    /// Runs a group's buckets, each as on a copy.
    Group(GroupRef),
    /// Runs a bucket as on a copy; occurs only in groups.
    Bucket(Arc<Bucket>),
    /// Sends the packet through the connection tracker; then, with a table, continues there, and
    /// with this list as on a copy.
    Track(Box<Track>),
    /// Forgets what the connection tracker said of the packet.
    Untrack,
    /// [`Op::Resubmit`] where the lookup sees addresses, protocol and ports of the connection's
    /// first packet; skipped for a packet without a connection.
    ResubmitTracked {
        /// Port number to match as ingress port.
        in_port: Option<PortNo>,
        /// Table to look up in.
        table: Option<u8>,
    },
    /// Ends the whole walk, except that the action set still runs (ovs-actions(7), "exit").
    Exit,
}

/// A compiled list of steps. The steps have an allocation of their own, so that they do not share a
/// cache line with the reference count of a shared list, which changes with every rule added while
/// workers read the steps.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub struct OpList {
    /// The steps, in order of execution.
    pub ops: Box<[Op]>,
    /// The same as action blocks, compiled when the first rule needs them.
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
    /// Returns whether one of the steps asks for a rule.
    pub fn learns(&self) -> bool {
        learns(&self.ops)
    }

    /// Calls `tell` with the template of each rule that the steps ask for.
    pub fn for_lessons(&self, tell: &mut impl FnMut(&Arc<Learn>)) {
        for op in &*self.ops {
            match op {
                Op::Learn(learn) => tell(learn),
                Op::Clone(list) => list.for_lessons(tell),
                _ => {}
            }
        }
    }

    /// Creates a list of the given steps, with sets compiled and neighbouring sets merged where
    /// possible.
    pub fn new(ops: Vec<Op>) -> OpList {
        OpList {
            ops: compiled(ops),
            blocks: OnceLock::new(),
        }
    }

    /// Returns the steps as action blocks, if they can be compiled to such. Groups must have been
    /// bound ([`OpList::bind`]) before.
    pub(crate) fn blocks(&self) -> Option<ActionBlocks> {
        let made = self.blocks.get_or_init(|| blocks(&self.ops));
        made.as_deref().map(ActionBlocks::of)
    }

    /// Returns the clauses of a rule that is part of conjunctive matches; None for any other rule.
    #[inline]
    pub fn clauses(&self) -> Option<&[Clause]> {
        match &*self.ops {
            [Op::Conjunction(clauses)] => Some(clauses),
            _ => None,
        }
    }

    /// Binds groups that the steps name to their slots.
    pub fn bind(&mut self, find: &impl Fn(u32) -> GroupRef) {
        self.ops.iter_mut().for_each(|op| op.bind(find));
    }

    /// Returns whether a step writes to the action set.
    pub(crate) fn writes_set(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::WriteActions(_)))
    }

    /// Returns false only where the steps certainly end in outputs to ports named in them, to
    /// controllers or to the learning switch.
    pub(crate) fn goes_on(&self) -> bool {
        let ends = |op: &Op| op.only_sends() || matches!(op, Op::Set(_) | Op::DecTtl(_));
        !self.ops.iter().all(ends)
    }

    /// Returns whether a step changes words of the key that lookups read.
    pub(crate) fn changes(&self) -> bool {
        !self.ops.iter().all(Op::only_sends)
    }

    /// Returns the words of the key that the steps may change, as later lookups see them.
    pub(crate) fn written(&self) -> WordSet {
        written(&self.ops)
    }

    /// Returns whether a step may send a packet-in, itself or indirectly (groups).
    pub(crate) fn may_tell(&self) -> bool {
        may_tell(&self.ops)
    }

    /// Returns the words of the key that the steps read or change, which the parser must therefore
    /// fill before the list runs.
    pub fn words(&self) -> WordSet {
        self.ops
            .iter()
            .fold(WordSet::EMPTY, |set, op| set.union(op.words()))
    }
}

/// Compiles and merges the sets among the steps.
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

/// Returns the shortest timeouts of the `fin_timeout` steps among these, 0 for no change; None when
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

/// Returns whether one of these steps may send a packet-in. Steps for which this is not known count
/// as if they did.
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
        | Op::Track(_)
        | Op::Untrack
        | Op::FinTimeout { .. } => false,
        Op::WriteActions(ops) => may_tell(ops),
        Op::Clone(list) => list.may_tell(),
        _ => true,
    })
}

/// Returns whether one of these steps asks for a rule.
pub(crate) fn learns(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Learn(_) => true,
        Op::Clone(list) => learns(&list.ops),
        _ => false,
    })
}

/// Returns the words of the key that these steps may change, as later lookups see them.
fn written(ops: &[Op]) -> WordSet {
    let field = |field: Field| field.def().words();
    let to = |bits: Option<Bits>| bits.map_or(WordSet::EMPTY, |bits| field(bits.field));
    let first = WordSet::of_bytes(packet::key::at::IN_PORT, 8);
    let all = ops.iter().map(|op| match op {
        Op::Output(_)
        | Op::InPort
        | Op::All { .. }
        | Op::Normal
        | Op::OutputReg { .. }
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
        // The VLAN tag, and with it the Ethertype; for a resubmit, the ingress port that it
        // replaces.
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
        Op::Untrack => CONNECTION,
        // Other steps may expose a different header (pops) or are decided elsewhere (groups).
        _ => WordSet(u64::MAX),
    });
    all.fold(WordSet::EMPTY, WordSet::union)
}

/// Returns steps in the order in which an action set runs them, without those that it does not run:
/// none at all when nothing would leave. None when there are too many for a set.
pub fn in_set_order(ops: &[Op]) -> Option<Vec<Op>> {
    let mut set = ActionSet::default();
    set.write(ops)
        .then(|| set.take().map(Vec::from).unwrap_or_default())
}

impl Op {
    /// Returns whether the step does nothing but send the packet, unchanged, to ports
    /// named in it, the controllers or the learning switch.
    pub(crate) fn only_sends(&self) -> bool {
        matches!(
            self,
            Op::Output(_) | Op::InPort | Op::All { .. } | Op::Normal | Op::Controller(_)
        )
    }

    /// Returns whether the step looks up in a table.
    pub(crate) fn runs_rules(&self) -> bool {
        match self {
            Op::Resubmit { .. } | Op::ResubmitTracked { .. } | Op::Goto(_) => true,
            Op::Track(track) => track.table.is_some(),
            _ => false,
        }
    }

    /// Binds groups that the step names to their slots.
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
            Op::OutputReg { source: bits, .. } | Op::StackPush(bits) | Op::StackPop(bits) => {
                field(bits.field)
            }
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
            Op::Track(track) => track.words(),
            Op::Untrack => CONNECTION,
            Op::ResubmitTracked { .. } => CONNECTION.union(TRANSLATED),
            _ => WordSet::EMPTY,
        }
    }
}
