//! Flow monitors: controllers are told of every change of the flow tables.
//!
//! A controller adds monitors, each with a filter. It first gets the existing rules that the filter
//! accepts, then the changes that it accepts, in the order in which they are made. Nicira has
//! monitors since 1.0 (`NXST_FLOW_MONITOR`), ONF as an extension of 1.3 in the same form, and
//! OpenFlow since 1.4 as `OFPMP_FLOW_MONITOR` (section 7.3.5.17). A controller that does not read
//! fast enough is told that its monitors have paused; when it has caught up it gets what it missed
//! and is told that they have resumed.

use crate::model::action::Instruction;
use crate::model::flow::FlowRemovedReason;
use crate::model::message::Message;
use crate::model::port::PortNo;
use crate::model::version::Version;
use packet::Match;
use std::sync::Arc;

bitflags::bitflags! {
    /// What a monitor reports: `OFPFMF_*`, of which `NXFMF_*` are the first six.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MonitorFlags: u16 {
        /// The rules that exist when it is added.
        const INITIAL = 1 << 0;
        /// Rules that are added.
        const ADD = 1 << 1;
        /// Rules that are removed.
        const REMOVED = 1 << 2;
        /// Rules that are changed.
        const MODIFY = 1 << 3;
        /// Include the rules' instructions.
        const INSTRUCTIONS = 1 << 4;
        /// Report the controller's own changes in full, not abbreviated (`NXFMF_OWN`).
        const NO_ABBREV = 1 << 5;
        /// Report the controller's own changes in full, as in Open vSwitch and its tools; according
        /// to the specification, report only own changes (1.4).
        const ONLY_OWN = 1 << 6;
    }
}

impl MonitorFlags {
    /// Returns whether the controller's own changes are reported in full.
    pub fn own_in_full(self) -> bool {
        self.intersects(MonitorFlags::NO_ABBREV | MonitorFlags::ONLY_OWN)
    }
}

/// Commands for a monitor (`OFPFMC_*`, 1.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum MonitorCommand {
    /// Add it.
    #[default]
    Add = 0,
    /// Modify it.
    Modify = 1,
    /// Delete it.
    Delete = 2,
}

/// Adds, modifies or deletes a monitor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MonitorRequest {
    /// The controller's id for it.
    pub id: u32,
    /// The command.
    pub command: MonitorCommand,
    /// What it reports.
    pub flags: MonitorFlags,
    /// Only rules that output to this port, or did before a change; [`crate::port::ANY`] for all.
    pub out_port: PortNo,
    /// Only rules that, after a change, use this group; [`crate::group::ANY`] for all.
    pub out_group: u32,
    /// Only rules of this table; [`crate::flow::TABLE_ALL`] for all.
    pub table: u8,
    /// Only rules within this match.
    pub matching: Match,
}

/// The event of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateEvent {
    /// It exists already (before 1.4 reported as added).
    Initial,
    /// It was added.
    Added,
    /// It was removed.
    Removed(FlowRemovedReason),
    /// It changed.
    Modified,
}

/// One entry of a monitor's report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FlowUpdate {
    /// The event of a rule.
    Rule(RuleUpdate),
    /// The controller's own message with this transaction id was carried out.
    Abbreviated(u32),
    /// Changes after this are not reported (1.4; earlier a message of its own, see [`pause`]).
    Paused,
    /// All changes have been reported, and new ones are again (1.4; see [`pause`]).
    Resumed,
}

/// A rule as reported to a monitor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleUpdate {
    /// The event.
    pub event: UpdateEvent,
    /// Its table.
    pub table: u8,
    /// Its priority.
    pub priority: u16,
    /// Its cookie.
    pub cookie: u64,
    /// Its idle timeout in seconds.
    pub idle_timeout: u16,
    /// Its hard timeout in seconds.
    pub hard_timeout: u16,
    /// Its match.
    pub matching: Match,
    /// Its instructions; empty when the monitor does not want them.
    pub instructions: Arc<[Instruction]>,
}

/// Returns the message, in a version, that monitors have paused or resumed.
pub fn pause(version: Version, resumed: bool) -> Message {
    use crate::model::message::MultipartReply;
    match (version >= Version::V1_4, resumed) {
        (true, _) => Message::MultipartReply {
            reply: MultipartReply::FlowMonitor(vec![if resumed {
                FlowUpdate::Resumed
            } else {
                FlowUpdate::Paused
            }]),
            more: false,
        },
        (false, false) => Message::FlowMonitorPaused,
        (false, true) => Message::FlowMonitorResumed,
    }
}
