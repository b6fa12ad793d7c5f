//! Messages, version-neutral.
//!
//! [`Message`] has the meaning of a message, whatever version and extension carried it. Where the
//! form matters for the answer (a Nicira request wants a Nicira reply), the message has the form in
//! which it came; everything else about the form is left to the codec.

use crate::model::action::Action;
use crate::model::ct_flush::CtFlush;
use crate::model::error::{Error, WireError};
use crate::model::flow::{FlowMod, FlowRemoved, FlowStats, FlowStatsRequest};
use crate::model::group::{GroupDescription, GroupMod, GroupStats};
use crate::model::meter::{MeterConfig, MeterMod, MeterStats};
use crate::model::monitor::{FlowUpdate, MonitorRequest};
use crate::model::port::{PortDescription, PortMod, PortNo, PortStats, PortStatus};
use crate::model::stats::{
    Aggregate, Description, GroupFeatures, MeterFeatures, QueueDescription, QueueStats,
    TableConfig, TableFeatures, TableStats, TableStatus,
};
use crate::model::steering::Steering;
use crate::model::tlv::{TlvTable, TlvTableMod};
use packet::Match;

/// No buffered packet (`OFP_NO_BUFFER`).
pub const NO_BUFFER: u32 = 0xffff_ffff;

/// The form of a match in OpenFlow 1.0: `ofp_match`, or Nicira's extensible match in a Nicira
/// message. From 1.1 on there is only [`FlowFormat::Standard`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FlowFormat {
    /// The version's own message.
    #[default]
    Standard,
    /// The Nicira message.
    Nicira,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
// Large variants are frequent; a box would cost an allocation for each.
#[allow(clippy::large_enum_variant)]
pub enum Message {
    /// The first message of a connection.
    Hello(Hello),
    /// A request failed.
    Error(ErrorMessage),
    /// Checks that the peer is alive.
    EchoRequest(Vec<u8>),
    /// The answer, with the request's bytes.
    EchoReply(Vec<u8>),
    /// Asks for the switch's identity and features.
    FeaturesRequest,
    /// The switch's identity and features.
    FeaturesReply(Features),
    /// Asks for the switch's configuration.
    GetConfigRequest,
    /// The switch's configuration.
    GetConfigReply(SwitchConfig),
    /// Sets the switch's configuration.
    SetConfig(SwitchConfig),
    /// A packet for the controller.
    PacketIn(PacketIn),
    /// Continues a packet that is paused for the controller (`NXT_RESUME`): its packet-in, as
    /// modified by the controller.
    Resume(PacketIn),
    /// A rule was removed.
    FlowRemoved {
        /// The rule and the reason.
        removed: FlowRemoved,
        /// The message's format.
        format: FlowFormat,
    },
    /// A port was added, removed or changed.
    PortStatus(PortStatus),
    /// Sends a packet.
    PacketOut(PacketOut),
    /// Changes the flow tables.
    FlowMod {
        /// The change.
        change: FlowMod,
        /// The message's form.
        form: FlowModForm,
    },
    /// Configures a port.
    PortMod(PortMod),
    /// Changes a group.
    GroupMod(GroupMod),
    /// Changes a meter.
    MeterMod(MeterMod),
    /// Configures a table.
    TableMod(TableConfig),
    /// Asks for a reply when all earlier messages are done.
    BarrierRequest,
    /// All messages before the request are done.
    BarrierReply,
    /// Requests a role for the controller.
    RoleRequest(RoleMessage),
    /// The controller's role.
    RoleReply(RoleMessage),
    /// The switch has changed the controller's role (1.4, and ONF's extension of 1.3).
    RoleStatus(RoleStatus),
    /// Asks which asynchronous messages the controller gets.
    GetAsyncRequest,
    /// The asynchronous messages that the controller gets.
    GetAsyncReply(AsyncConfig),
    /// Sets which asynchronous messages the controller gets.
    SetAsync(Vec<AsyncChange>),
    /// Asks for the queues of a port (1.0 to 1.3).
    QueueGetConfigRequest(PortNo),
    /// The queues of a port.
    QueueGetConfigReply {
        /// The port.
        port: PortNo,
        /// Its queues.
        queues: Vec<QueueDescription>,
    },
    /// A request that may have several replies.
    MultipartRequest {
        /// The request.
        request: MultipartRequest,
        /// Whether more parts of the request follow.
        more: bool,
    },
    /// A reply, or a part of it.
    MultipartReply {
        /// The contents.
        reply: MultipartReply,
        /// Whether more parts follow.
        more: bool,
    },
    /// Nicira: sets the flow format that the controller wants (1.0).
    SetFlowFormat(FlowFormat),
    /// Nicira: sets whether flow mods of 1.0 carry a table number in their command.
    FlowModTableId(bool),
    /// Nicira: sets the packet-in format that the controller wants.
    SetPacketInFormat(PacketInFormat),
    /// Nicira: sets the controller's id, for `controller(id=...)`.
    SetControllerId(u16),
    /// Nicira: requests ages in flow statistics.
    FlowAge,
    /// Nicira: changes the map of tunnel options.
    TlvTableMod(TlvTableMod),
    /// Nicira: asks for the map of tunnel options.
    TlvTableRequest,
    /// Nicira: the map of tunnel options.
    TlvTableReply(TlvTable),
    /// Nicira: flushes tracked connections.
    CtFlush(CtFlush),
    /// Opens, closes, commits or discards a bundle (1.4, and ONF's extension of 1.3).
    BundleControl(BundleControl),
    /// Adds a message to a bundle.
    BundleAdd(BundleAdd),
    /// Sluice: capabilities, mode and tables of steering, and virtual machines.
    Steering(Steering),
    /// Cancels a flow monitor (before 1.4; later a multipart request does).
    FlowMonitorCancel(u32),
    /// Flow monitors have paused (before 1.4); see [`crate::monitor::pause`].
    FlowMonitorPaused,
    /// Flow monitors have resumed (before 1.4).
    FlowMonitorResumed,
    /// A table's vacancy has crossed a threshold (1.4).
    TableStatus(TableStatus),
    /// Another controller has changed a group or a meter; has its message (1.4, ONF's extension of
    /// 1.3 and Nicira's of earlier versions).
    RequestForward {
        /// The transaction id of the inner message.
        xid: u32,
        /// A group mod or a meter mod.
        message: Box<Message>,
    },
}

/// The contents of a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Bit n: version number n is supported. A hello without a bitmap means every version up to
    /// that of its header.
    pub versions: u32,
}

/// An error message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorMessage {
    /// The error.
    pub kind: ErrorKind,
    /// The beginning of the message that failed, at least its first 64 bytes; for a failed hello, a
    /// text.
    pub data: Vec<u8>,
}

/// An error as it was sent or received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// A known error.
    Known(Error),
    /// An unknown error, only received.
    Other(WireError),
}

/// Identity and features of the switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Datapath id.
    pub datapath_id: u64,
    /// Number of packets that can be buffered.
    pub buffers: u32,
    /// Number of tables.
    pub tables: u8,
    /// Auxiliary connection id, 0 for the main one (1.3).
    pub auxiliary: u8,
    /// Capabilities.
    pub capabilities: Capabilities,
    /// Supported actions, bit n for `OFPAT` number n of 1.0 (1.0 only; unused in 1.1 and 1.2).
    pub actions: u32,
    /// The ports (1.0 to 1.2); in later versions there is a multipart request for them.
    pub ports: Vec<PortDescription>,
}

bitflags::bitflags! {
    /// `OFPC_*`, each meaning with a bit of its own (on the wire, bit 3 is `STP` in 1.0 and
    /// `GROUP_STATS` later).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Capabilities: u32 {
        /// Flow statistics.
        const FLOW_STATS = 1 << 0;
        /// Table statistics.
        const TABLE_STATS = 1 << 1;
        /// Port statistics.
        const PORT_STATS = 1 << 2;
        /// Group statistics (1.1 and later).
        const GROUP_STATS = 1 << 3;
        /// IP fragments are reassembled.
        const IP_REASM = 1 << 5;
        /// Queue statistics.
        const QUEUE_STATS = 1 << 6;
        /// Addresses in ARP packets are matched (1.0, 1.1).
        const ARP_MATCH_IP = 1 << 7;
        /// Ports that would form a loop are blocked (1.2 and later).
        const PORT_BLOCKED = 1 << 8;
        /// Bundles (1.4).
        const BUNDLES = 1 << 9;
        /// Flow monitors (1.4).
        const FLOW_MONITORING = 1 << 10;
        /// Spanning tree (1.0).
        const STP = 1 << 31;
    }
}

/// How IP fragments are handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Fragments {
    /// No special handling: their ports match as zero.
    #[default]
    Normal = 0,
    /// They are dropped.
    Drop = 1,
    /// They are reassembled.
    Reassemble = 2,
    /// Nicira: they match by `ip_frag`, and first fragments have their ports.
    NxMatch = 3,
}

/// The switch's configuration, for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchConfig {
    /// How IP fragments are handled.
    pub fragments: Fragments,
    /// Whether packets with an expired TTL are sent to the controller (1.1, 1.2).
    pub invalid_ttl_to_controller: bool,
    /// Maximum bytes of a packet without a matching rule that are sent to the controller.
    pub miss_send_len: u16,
}

/// The format of packet-ins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum PacketInFormat {
    /// The version's own message.
    #[default]
    Standard = 0,
    /// `NXT_PACKET_IN`.
    Nxt = 1,
    /// `NXT_PACKET_IN2`.
    Nxt2 = 2,
}

/// Why a packet is sent to the controller (`OFPR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PacketInReason {
    /// It met no rule, or the table-miss rule.
    NoMatch = 0,
    /// An action of a rule sent it.
    Action = 1,
    /// Its TTL expired.
    InvalidTtl = 2,
    /// An action of the action set sent it (1.4).
    ActionSet = 3,
    /// An action of a group bucket sent it (1.4).
    Group = 4,
    /// An action of a packet-out sent it (1.4).
    PacketOut = 5,
}

/// A packet for the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketIn {
    /// The message's format.
    pub format: PacketInFormat,
    /// The id of the buffered packet, or [`NO_BUFFER`].
    pub buffer_id: u32,
    /// The packet's length when it was received.
    pub total_len: u32,
    /// The reason.
    pub reason: PacketInReason,
    /// The table that sent it.
    pub table: u8,
    /// The cookie of the rule that sent it; all ones for none.
    pub cookie: u64,
    /// Its ingress port as `in_port`, and its pipeline fields that are not zero (metadata,
    /// registers, tunnel).
    pub matching: Match,
    /// The packet, or its beginning.
    pub data: Vec<u8>,
    /// The data of `controller(userdata=...)` (`NXT_PACKET_IN2`).
    pub userdata: Vec<u8>,
    /// The state that the switch needs to continue with the packet, for [`Message::Resume`]
    /// (`NXT_PACKET_IN2`): properties of the switch's own; empty if the packet is not paused.
    pub continuation: Vec<u8>,
}

/// A packet to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOut {
    /// The id of the buffered packet, or [`NO_BUFFER`] when `data` holds the packet.
    pub buffer_id: u32,
    /// The packet's ingress port: a port number, [`crate::port::CONTROLLER`],
    /// [`crate::port::LOCAL`], or [`crate::port::ANY`] (1.0's `NONE`).
    pub in_port: PortNo,
    /// Pipeline fields of the packet (1.5); in other versions at most `in_port`.
    pub matching: Match,
    /// The actions.
    pub actions: Vec<Action>,
    /// The packet.
    pub data: Vec<u8>,
}

/// The form of a flow mod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowModForm {
    /// The message's format (1.0).
    pub format: FlowFormat,
    /// Whether the high byte of the command is the table (1.0 with [`Message::FlowModTableId`]).
    pub table_in_command: bool,
}

/// A controller's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Role {
    /// Only ask for the role (1.2 and later).
    NoChange = 0,
    /// Full access, shared with others.
    #[default]
    Equal = 1,
    /// The only controller with write access (`master`).
    Primary = 2,
    /// Read access only (`slave`).
    Secondary = 3,
}

/// A role request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleMessage {
    /// The role.
    pub role: Role,
    /// The generation of the election, if the form has one (1.2 and later). A request has it unless
    /// the role does not change; in a reply None is sent as all ones.
    pub generation: Option<u64>,
    /// Whether it is Nicira's form of the message.
    pub nicira: bool,
}

/// Why the switch changed a controller's role (`OFPCRR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RoleReason {
    /// Another controller asked to be primary.
    PrimaryRequest = 0,
    /// The switch's configuration changed.
    Config = 1,
    /// An experimenter's message asked for it.
    Experimenter = 2,
}

/// The switch has changed the controller's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleStatus {
    /// The new role.
    pub role: Role,
    /// The reason.
    pub reason: RoleReason,
    /// The generation of the election; None if there was none.
    pub generation: Option<u64>,
}

/// Kinds of asynchronous messages, paired like `OFPACPT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AsyncKind {
    /// Packet-ins; bits are `OFPR_*`.
    PacketIn = 0,
    /// Port status; bits are `OFPPR_*`.
    PortStatus = 1,
    /// Flow removed; bits are `OFPRR_*`.
    FlowRemoved = 2,
    /// Role status; bits are `OFPCRR_*` (1.3).
    RoleStatus = 3,
    /// Table status; bits are `OFPTR_*` (1.4).
    TableStatus = 4,
    /// Request forward; bits are `OFPRFR_*`.
    RequestForward = 5,
}

impl AsyncKind {
    /// Every kind, in wire order.
    pub const ALL: [AsyncKind; 6] = [
        AsyncKind::PacketIn,
        AsyncKind::PortStatus,
        AsyncKind::FlowRemoved,
        AsyncKind::RoleStatus,
        AsyncKind::TableStatus,
        AsyncKind::RequestForward,
    ];
}

/// The asynchronous messages that a controller gets: for each kind, one mask for the roles equal
/// and primary (0) and one for secondary (1), with a bit for each reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AsyncConfig {
    /// `masks[kind][secondary]`.
    pub masks: [[u32; 2]; 6],
}

impl AsyncConfig {
    /// Returns whether a controller of this role gets messages of this kind and reason.
    pub fn wants(&self, kind: AsyncKind, reason: u8, role: Role) -> bool {
        let mask = self.masks[kind as usize][usize::from(role == Role::Secondary)];
        reason < 32 && mask >> reason & 1 == 1
    }

    /// Applies a change.
    pub fn change(&mut self, change: &AsyncChange) {
        self.masks[change.kind as usize][usize::from(change.secondary)] = change.mask;
    }
}

/// A change of one mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncChange {
    /// The kind of messages.
    pub kind: AsyncKind,
    /// Whether it is for role secondary, or else for the others.
    pub secondary: bool,
    /// The new mask, a bit for each reason.
    pub mask: u32,
}

/// Selects queues in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueRequest {
    /// The port, or [`crate::port::ANY`] (1.0's `OFPP_ALL` too).
    pub port: PortNo,
    /// The queue, or 0xffff_ffff for all.
    pub queue: u32,
}

/// Multipart requests.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant)] // one at a time
pub enum MultipartRequest {
    /// Asks for the description of the switch.
    Description,
    /// Asks for rules.
    Flow {
        /// Selects the rules.
        request: FlowStatsRequest,
        /// The format of request and reply.
        format: FlowFormat,
    },
    /// Asks for sums over rules.
    Aggregate {
        /// Selects the rules.
        request: FlowStatsRequest,
        /// The format of request and reply.
        format: FlowFormat,
    },
    /// Asks for the counters of tables.
    Table,
    /// Asks for the counters of a port, or of all ([`crate::port::ANY`]).
    Port(PortNo),
    /// Asks for the counters of queues.
    Queue(QueueRequest),
    /// Asks for the counters of a group, or of all (0xffff_fffc).
    Group(u32),
    /// Asks for the description of a group, or of all (0xffff_fffc).
    GroupDescription(u32),
    /// Asks for the features of groups.
    GroupFeatures,
    /// Asks for the counters of a meter, or of all (0xffff_ffff).
    Meter(u32),
    /// Asks for the configuration of a meter, or of all (0xffff_ffff).
    MeterConfig(u32),
    /// Asks for the features of meters.
    MeterFeatures,
    /// Asks for the features of tables; with a body, changes them.
    TableFeatures(Vec<TableFeatures>),
    /// Asks for the description of a port, or of all ([`crate::port::ANY`]).
    PortDescription(PortNo),
    /// Asks for the configuration of tables (1.4).
    TableDescription,
    /// Asks for the configuration of queues (1.4).
    QueueDescription(QueueRequest),
    /// Adds, changes or cancels flow monitors.
    FlowMonitor(Vec<MonitorRequest>),
    /// Nicira: asks for IPFIX counters, of the bridge or of flows.
    Ipfix {
        /// Whether the counters of flows are wanted.
        flows: bool,
    },
}

/// Multipart replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MultipartReply {
    /// The description of the switch.
    Description(Description),
    /// Rules.
    Flow {
        /// The rules.
        flows: Vec<FlowStats>,
        /// The format of the reply.
        format: FlowFormat,
    },
    /// Sums over rules.
    Aggregate {
        /// The sums.
        sums: Aggregate,
        /// The format of the reply.
        format: FlowFormat,
    },
    /// Counters of tables.
    Table(Vec<TableStats>),
    /// Counters of ports.
    Port(Vec<PortStats>),
    /// Counters of queues.
    Queue(Vec<QueueStats>),
    /// Counters of groups.
    Group(Vec<GroupStats>),
    /// Descriptions of groups.
    GroupDescription(Vec<GroupDescription>),
    /// Features of groups.
    GroupFeatures(GroupFeatures),
    /// Counters of meters.
    Meter(Vec<MeterStats>),
    /// Configurations of meters.
    MeterConfig(Vec<MeterConfig>),
    /// Features of meters.
    MeterFeatures(MeterFeatures),
    /// Features of tables.
    TableFeatures(Vec<TableFeatures>),
    /// Descriptions of ports.
    PortDescription(Vec<PortDescription>),
    /// Configurations of tables (1.4).
    TableDescription(Vec<TableConfig>),
    /// Configurations of queues (1.4).
    QueueDescription(Vec<QueueDescription>),
    /// Updates of flow monitors: the reply to their request, and later unsolicited ones.
    FlowMonitor(Vec<FlowUpdate>),
}

/// Commands for bundles, and their replies (`OFPBCT_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[allow(missing_docs)] // the names are the specification's
pub enum BundleCommand {
    OpenRequest = 0,
    OpenReply = 1,
    CloseRequest = 2,
    CloseReply = 3,
    CommitRequest = 4,
    CommitReply = 5,
    DiscardRequest = 6,
    DiscardReply = 7,
}

/// Opens, closes, commits or discards a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleControl {
    /// The bundle's id.
    pub bundle: u32,
    /// The command, or in a reply what was done.
    pub command: BundleCommand,
    /// `OFPBF_*`: 1 atomic, 2 ordered.
    pub flags: u16,
}

/// Adds a message to a bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleAdd {
    /// The bundle's id.
    pub bundle: u32,
    /// `OFPBF_*`.
    pub flags: u16,
    /// The transaction id of the inner message, the same as the outer one.
    pub xid: u32,
    /// The message.
    pub message: Box<Message>,
}
