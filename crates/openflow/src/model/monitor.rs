//! Flow monitors: controllers that want to know of every change of the flow tables.
//!
//! A controller sets monitors up, each with a filter; from then on it is told of the changes that
//! its filters let through, in the order in which they are made, and at the beginning of the rules
//! that are there. Nicira has them since 1.0 (`NXST_FLOW_MONITOR`), ONF as an extension of 1.3
//! in the same form, 1.4 as `OFPMP_FLOW_MONITOR` (section 7.3.5.17). A controller that does not
//! read fast enough is told that its monitors pause, and when it has caught up gets what it missed
//! and is told that they go on.

use crate::model::action::Instruction;
use crate::model::flow::FlowRemovedReason;
use crate::model::message::Message;
use crate::model::port::PortNo;
use crate::model::version::Version;
use packet::Match;
use std::sync::Arc;

bitflags::bitflags! {
    /// What a monitor wants: `OFPFMF_*`, of which `NXFMF_*` are the first six.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MonitorFlags: u16 {
        /// The rules that are there when it is set up.
        const INITIAL = 1 << 0;
        /// Rules that are added.
        const ADD = 1 << 1;
        /// Rules that go.
        const REMOVED = 1 << 2;
        /// Rules that change.
        const MODIFY = 1 << 3;
        /// With what the rules do.
        const INSTRUCTIONS = 1 << 4;
        /// The controller's own changes in full too, not in short (`NXFMF_OWN`).
        const NO_ABBREV = 1 << 5;
        /// Likewise: the specification means by it that only own changes are told, but Open vSwitch
        /// and its tools mean that own changes are told in full, and so does Sluice (1.4).
        const ONLY_OWN = 1 << 6;
    }
}

impl MonitorFlags {
    /// Whether the controller's own changes are told in full.
    pub fn own_in_full(self) -> bool {
        self.intersects(MonitorFlags::NO_ABBREV | MonitorFlags::ONLY_OWN)
    }
}

/// What to do with a monitor (`OFPFMC_*`, 1.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum MonitorCommand {
    /// Set it up.
    #[default]
    Add = 0,
    /// Change it.
    Modify = 1,
    /// End it.
    Delete = 2,
}

/// Sets up, changes or ends a monitor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MonitorRequest {
    /// The controller's number for it.
    pub id: u32,
    /// What to do.
    pub command: MonitorCommand,
    /// What it wants.
    pub flags: MonitorFlags,
    /// Only rules that output, or did before a change, to this port; [`crate::port::ANY`]
    /// for all.
    pub out_port: PortNo,
    /// Only rules that use this group, after a change; [`crate::group::ANY`] for all.
    pub out_group: u32,
    /// Only rules of this table; [`crate::flow::TABLE_ALL`] for all.
    pub table: u8,
    /// Only rules within this match.
    pub matching: Match,
}

/// What happened to a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateEvent {
    /// It is there already (before 1.4 told as added).
    Initial,
    /// It was added.
    Added,
    /// It went.
    Removed(FlowRemovedReason),
    /// It changed.
    Modified,
}

/// One thing that a monitoring controller is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FlowUpdate {
    /// A rule.
    Rule(RuleUpdate),
    /// The controller's own message with this transaction id was carried out.
    Abbreviated(u32),
    /// From here on changes are not told (1.4; earlier a message of its own, see [`pause`]).
    Paused,
    /// All changes have been told, and are told again (1.4; see [`pause`]).
    Resumed,
}

/// A rule that a monitoring controller is told of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleUpdate {
    /// What happened to it.
    pub event: UpdateEvent,
    /// Its table.
    pub table: u8,
    /// Precedence.
    pub priority: u16,
    /// Cookie.
    pub cookie: u64,
    /// Seconds without a packet after which it goes.
    pub idle_timeout: u16,
    /// Seconds after which it goes.
    pub hard_timeout: u16,
    /// What it matches.
    pub matching: Match,
    /// What it does; empty when the monitor does not want it.
    pub instructions: Arc<[Instruction]>,
}

/// The message that says that monitors pause, or that they go on, in a version.
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
