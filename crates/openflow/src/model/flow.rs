//! Flow table messages.

use crate::model::action::{Action, Instruction};
use crate::model::port::PortNo;
use packet::Match;
use std::ops::Deref;
use std::sync::Arc;

/// `OFPFC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowModCommand {
    /// Add, replacing a rule with the same match and priority.
    Add,
    /// Change the instructions of all rules within the match.
    Modify,
    /// Change the instructions of the rule with this match and priority.
    ModifyStrict,
    /// Delete all rules within the match.
    Delete,
    /// Delete the rule with this match and priority.
    DeleteStrict,
}

/// `OFPFF_*`, by their OpenFlow 1.3 names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct FlowFlags {
    /// Tell when the rule goes.
    pub send_flow_rem: bool,
    /// Refuse when it overlaps a rule of the same priority.
    pub check_overlap: bool,
    /// Counters restart.
    pub reset_counts: bool,
    /// Packets need not be counted.
    pub no_packet_counts: bool,
    /// Bytes need not be counted.
    pub no_byte_counts: bool,
}

/// Table number meaning every table (`OFPTT_ALL`).
pub const TABLE_ALL: u8 = 0xff;

/// What a rule does, in the order of execution. Messages that say the same, and the rules that they
/// make, may share one list.
#[derive(Clone, Eq, Debug)]
pub struct Instructions(Arc<[Instruction]>);

impl Instructions {
    /// The list, to be kept.
    pub fn shared(&self) -> &Arc<[Instruction]> {
        &self.0
    }

    /// Whether they are right or wrong in a rule by its table alone, whatever it matches and
    /// whatever else the switch has: they look at no field and name neither group nor meter.
    pub fn fit_all(&self) -> bool {
        self.iter().all(|instruction| match instruction {
            Instruction::ApplyActions(actions) => actions
                .iter()
                .all(|action| matches!(action, Action::Output { .. })),
            Instruction::GotoTable(_)
            | Instruction::ClearActions
            | Instruction::WriteMetadata { .. } => true,
            _ => false,
        })
    }
}

impl Default for Instructions {
    fn default() -> Instructions {
        Instructions(Arc::new([]))
    }
}

impl Deref for Instructions {
    type Target = [Instruction];

    fn deref(&self) -> &[Instruction] {
        &self.0
    }
}

impl PartialEq for Instructions {
    fn eq(&self, other: &Instructions) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || *self.0 == *other.0
    }
}

impl From<Vec<Instruction>> for Instructions {
    fn from(list: Vec<Instruction>) -> Instructions {
        Instructions(list.into())
    }
}

impl<'a> IntoIterator for &'a Instructions {
    type Item = &'a Instruction;
    type IntoIter = std::slice::Iter<'a, Instruction>;

    fn into_iter(self) -> std::slice::Iter<'a, Instruction> {
        self.0.iter()
    }
}

/// A change of the flow tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowMod {
    /// What to do.
    pub command: FlowModCommand,
    /// Which table, or [`TABLE_ALL`] for deletes. OpenFlow 1.0 without Nicira's table id: 0 for
    /// adds, all for deletes and modifies.
    pub table: u8,
    /// What it matches.
    pub matching: Match,
    /// Precedence.
    pub priority: u16,
    /// The new rule's cookie.
    pub cookie: u64,
    /// For modify and delete: only rules with `rule.cookie & cookie_mask == cookie_filter &
    /// cookie_mask`. On the wire 1.1+ the cookie field is the filter of modify and delete, in
    /// NXM and 1.0 too where a mask is given.
    pub cookie_filter: u64,
    /// Which cookie bits to look at, 0 for none.
    pub cookie_mask: u64,
    /// Whether a modify changes the cookie (1.0 does, and adds a rule when none is found; 1.1+
    /// does not).
    pub modify_cookie: bool,
    /// Whether a modify that found no rule adds one (1.0, and NXM).
    pub modify_adds: bool,
    /// Seconds without a packet, 0 for never.
    pub idle_timeout: u16,
    /// Seconds, 0 for never.
    pub hard_timeout: u16,
    /// 1.4 importance.
    pub importance: u16,
    /// Flags.
    pub flags: FlowFlags,
    /// For deletes: only rules with an output to this port; [`crate::port::ANY`] for no
    /// restriction.
    pub out_port: PortNo,
    /// For deletes: only rules with this group; 0xffff_ffff for no restriction.
    pub out_group: u32,
    /// Buffered packet to send through the tables; 0xffff_ffff for none.
    pub buffer_id: u32,
    /// What the rule does, in the order of execution.
    pub instructions: Instructions,
}

impl FlowMod {
    /// Adds a rule to table 0: without cookie, timeouts, flags or a buffered packet.
    pub fn add(matching: Match, priority: u16, instructions: Vec<Instruction>) -> FlowMod {
        FlowMod {
            command: FlowModCommand::Add,
            table: 0,
            matching,
            priority,
            cookie: 0,
            cookie_filter: 0,
            cookie_mask: 0,
            modify_cookie: false,
            modify_adds: false,
            idle_timeout: 0,
            hard_timeout: 0,
            importance: 0,
            flags: FlowFlags::default(),
            out_port: crate::model::port::ANY,
            out_group: crate::model::group::ANY,
            buffer_id: crate::model::message::NO_BUFFER,
            instructions: instructions.into(),
        }
    }
}

/// Which rules a flow or aggregate statistics request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStatsRequest {
    /// Which table, or [`TABLE_ALL`].
    pub table: u8,
    /// Rules within this match.
    pub matching: Match,
    /// Cookie filter.
    pub cookie: u64,
    /// Cookie bits looked at.
    pub cookie_mask: u64,
    /// Rules that output to this port, or ANY.
    pub out_port: PortNo,
    /// Rules that use this group, or 0xffff_ffff.
    pub out_group: u32,
}

impl FlowStatsRequest {
    /// Asks for every rule.
    pub fn all() -> FlowStatsRequest {
        FlowStatsRequest {
            table: TABLE_ALL,
            matching: Match::any(),
            cookie: 0,
            cookie_mask: 0,
            out_port: crate::model::port::ANY,
            out_group: crate::model::group::ANY,
        }
    }
}

/// One rule's statistics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStats {
    /// Its table.
    pub table: u8,
    /// What it matches.
    pub matching: Match,
    /// Precedence.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Age in nanoseconds.
    pub duration_ns: u64,
    /// Seconds without a packet after which it goes.
    pub idle_timeout: u16,
    /// Seconds after which it goes.
    pub hard_timeout: u16,
    /// Seconds since its last packet.
    pub idle_age: u32,
    /// Seconds since it was changed.
    pub hard_age: u32,
    /// Flags.
    pub flags: FlowFlags,
    /// 1.4 importance.
    pub importance: u16,
    /// Packets counted.
    pub packets: u64,
    /// Bytes counted.
    pub bytes: u64,
    /// What it does; shared, since a rule keeps it.
    pub instructions: std::sync::Arc<[Instruction]>,
}

/// Why a rule went (`OFPRR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FlowRemovedReason {
    /// No packet for its idle timeout.
    IdleTimeout = 0,
    /// Its hard timeout passed.
    HardTimeout = 1,
    /// A delete message.
    Delete = 2,
    /// Its group went.
    GroupDelete = 3,
    /// Its meter went.
    MeterDelete = 4,
    /// Evicted.
    Eviction = 5,
}

/// A rule that went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowRemoved {
    /// Why.
    pub reason: FlowRemovedReason,
    /// What it was, with its last counters.
    pub stats: FlowStats,
}
