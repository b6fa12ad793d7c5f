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
    /// Send a message when the rule is removed.
    pub send_flow_rem: bool,
    /// Refuse if it overlaps a rule of the same priority.
    pub check_overlap: bool,
    /// Restart the counters.
    pub reset_counts: bool,
    /// Packets need not be counted.
    pub no_packet_counts: bool,
    /// Bytes need not be counted.
    pub no_byte_counts: bool,
}

/// Table number meaning every table (`OFPTT_ALL`).
pub const TABLE_ALL: u8 = 0xff;

/// A rule's instructions, in the order of execution. Equal messages, and the rules that come from
/// them, may share one list.
#[derive(Clone, Eq, Debug)]
pub struct Instructions(Arc<[Instruction]>);

impl Instructions {
    /// Returns the list, shared.
    pub fn shared(&self) -> &Arc<[Instruction]> {
        &self.0
    }

    /// Returns whether their validity depends only on the rule's table, not on its match or on
    /// other state: they look at no field and name neither group nor meter.
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
    /// The command.
    pub command: FlowModCommand,
    /// The table, or [`TABLE_ALL`] for deletes. In OpenFlow 1.0 without Nicira's table id: 0 for
    /// adds, all for deletes and modifies.
    pub table: u8,
    /// The match.
    pub matching: Match,
    /// The priority.
    pub priority: u16,
    /// The new rule's cookie.
    pub cookie: u64,
    /// For modify and delete: only rules with `rule.cookie & cookie_mask == cookie_filter &
    /// cookie_mask`. On the wire the cookie field is the filter of modify and delete, from 1.1 on,
    /// and in NXM and 1.0 if there is a mask.
    pub cookie_filter: u64,
    /// The cookie bits to compare, 0 for none.
    pub cookie_mask: u64,
    /// Whether a modify changes the cookie: in 1.0 it does, from 1.1 on it does not.
    pub modify_cookie: bool,
    /// Whether a modify that finds no rule adds one (1.0, and NXM).
    pub modify_adds: bool,
    /// Idle timeout in seconds, 0 for none.
    pub idle_timeout: u16,
    /// Hard timeout in seconds, 0 for none.
    pub hard_timeout: u16,
    /// Importance (1.4).
    pub importance: u16,
    /// Flags.
    pub flags: FlowFlags,
    /// For deletes: only rules with an output to this port; [`crate::port::ANY`] for no
    /// restriction.
    pub out_port: PortNo,
    /// For deletes: only rules that use this group; 0xffff_ffff for no restriction.
    pub out_group: u32,
    /// Buffered packet to process; 0xffff_ffff for none.
    pub buffer_id: u32,
    /// The rule's instructions, in the order of execution.
    pub instructions: Instructions,
}

impl FlowMod {
    /// Creates an add to table 0, without cookie, timeouts, flags or a buffered packet.
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

/// Selects rules for a flow or aggregate statistics request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStatsRequest {
    /// The table, or [`TABLE_ALL`].
    pub table: u8,
    /// Selects the rules within this match.
    pub matching: Match,
    /// Value of the cookie bits in `cookie_mask`.
    pub cookie: u64,
    /// The cookie bits to compare.
    pub cookie_mask: u64,
    /// Selects rules that output to this port; ANY for no restriction.
    pub out_port: PortNo,
    /// Selects rules that use this group; 0xffff_ffff for no restriction.
    pub out_group: u32,
}

impl FlowStatsRequest {
    /// Selects every rule.
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
    /// Its match.
    pub matching: Match,
    /// Its priority.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Age in nanoseconds.
    pub duration_ns: u64,
    /// Its idle timeout in seconds.
    pub idle_timeout: u16,
    /// Its hard timeout in seconds.
    pub hard_timeout: u16,
    /// Seconds since its last packet.
    pub idle_age: u32,
    /// Seconds since it was last changed.
    pub hard_age: u32,
    /// Flags.
    pub flags: FlowFlags,
    /// Importance (1.4).
    pub importance: u16,
    /// Packets counted.
    pub packets: u64,
    /// Bytes counted.
    pub bytes: u64,
    /// Its instructions, shared with the rule.
    pub instructions: std::sync::Arc<[Instruction]>,
}

/// Why a rule was removed (`OFPRR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FlowRemovedReason {
    /// Its idle timeout passed without a packet.
    IdleTimeout = 0,
    /// Its hard timeout passed.
    HardTimeout = 1,
    /// A delete message.
    Delete = 2,
    /// Its group was deleted.
    GroupDelete = 3,
    /// Its meter was deleted.
    MeterDelete = 4,
    /// Evicted.
    Eviction = 5,
}

/// A removed rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowRemoved {
    /// The reason.
    pub reason: FlowRemovedReason,
    /// The rule, with its last counters.
    pub stats: FlowStats,
}
