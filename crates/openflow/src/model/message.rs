//! Messages, version-neutral.
//!
//! [`Message`] says what a message means, whatever version and extension carried it. Where the form
//! matters for the answer (a Nicira request wants a Nicira reply) the message says which form it
//! came in; everything else about the form is the codec's.

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

/// How a match travels in OpenFlow 1.0: as `ofp_match`, or in Nicira's extensible form in a Nicira
/// message. From 1.1 on there is one form only, and [`FlowFormat::Standard`] names it.
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
#[allow(clippy::large_enum_variant)] // the large ones are the frequent ones; a box would cost an allocation for each
pub enum Message {
    /// The first message of a connection.
    Hello(Hello),
    /// A request failed.
    Error(ErrorMessage),
    /// Are you there?
    EchoRequest(Vec<u8>),
    /// Yes; with the request's bytes.
    EchoReply(Vec<u8>),
    /// What are you?
    FeaturesRequest,
    /// What the switch is.
    FeaturesReply(Features),
    /// How are you configured?
    GetConfigRequest,
    /// How the switch is configured.
    GetConfigReply(SwitchConfig),
    /// Configure the switch.
    SetConfig(SwitchConfig),
    /// A packet for the controller.
    PacketIn(PacketIn),
    /// Go on with a packet that has stopped for the controller (`NXT_RESUME`): the packet-in,
    /// changed as the controller likes.
    Resume(PacketIn),
    /// A rule went.
    FlowRemoved {
        /// Which and why.
        removed: FlowRemoved,
        /// Which message carries it.
        format: FlowFormat,
    },
    /// A port came, went or changed.
    PortStatus(PortStatus),
    /// Send a packet.
    PacketOut(PacketOut),
    /// Change the flow tables.
    FlowMod {
        /// The change.
        change: FlowMod,
        /// Which message carries it.
        form: FlowModForm,
    },
    /// Configure a port.
    PortMod(PortMod),
    /// Change the groups.
    GroupMod(GroupMod),
    /// Change the meters.
    MeterMod(MeterMod),
    /// Configure a table.
    TableMod(TableConfig),
    /// Tell when all before is done.
    BarrierRequest,
    /// All before is done.
    BarrierReply,
    /// Change the controller's role.
    RoleRequest(RoleMessage),
    /// The controller's role.
    RoleReply(RoleMessage),
    /// The switch changed the controller's role (1.4, and ONF's extension of 1.3).
    RoleStatus(RoleStatus),
    /// Which asynchronous messages are wanted?
    GetAsyncRequest,
    /// Those that are wanted.
    GetAsyncReply(AsyncConfig),
    /// Say which are wanted.
    SetAsync(Vec<AsyncChange>),
    /// Which queues has this port (1.0 to 1.3)?
    QueueGetConfigRequest(PortNo),
    /// The queues of a port.
    QueueGetConfigReply {
        /// The port.
        port: PortNo,
        /// Its queues.
        queues: Vec<QueueDescription>,
    },
    /// A request that may have many answers.
    MultipartRequest {
        /// What is asked.
        request: MultipartRequest,
        /// Whether more parts of the request follow.
        more: bool,
    },
    /// Answers, or a part of them.
    MultipartReply {
        /// The answers.
        reply: MultipartReply,
        /// Whether more parts follow.
        more: bool,
    },
    /// Nicira: which flow format the controller wants (1.0).
    SetFlowFormat(FlowFormat),
    /// Nicira: whether flow mods of 1.0 carry a table number in their command.
    FlowModTableId(bool),
    /// Nicira: which packet-ins the controller wants.
    SetPacketInFormat(PacketInFormat),
    /// Nicira: the controller's id, for `controller(id=...)`.
    SetControllerId(u16),
    /// Nicira: the controller wants ages in flow statistics.
    FlowAge,
    /// Nicira: change the map of tunnel options.
    TlvTableMod(TlvTableMod),
    /// Nicira: what is the map of tunnel options?
    TlvTableRequest,
    /// Nicira: the map of tunnel options.
    TlvTableReply(TlvTable),
    /// Nicira: forget tracked connections.
    CtFlush(CtFlush),
    /// Open, close, commit or discard a bundle (1.4, and ONF's extension of 1.3).
    BundleControl(BundleControl),
    /// Put a message into a bundle.
    BundleAdd(BundleAdd),
    /// Sluice: capabilities, mode and tables of steering, and virtual machines.
    Steering(Steering),
    /// End a flow monitor (before 1.4, where a multipart request does it).
    FlowMonitorCancel(u32),
    /// Flow monitors pause (before 1.4); see [`crate::monitor::pause`].
    FlowMonitorPaused,
    /// Flow monitors go on (before 1.4).
    FlowMonitorResumed,
    /// A table fills up, or has room again (1.4).
    TableStatus(TableStatus),
    /// Another controller has changed a group or a meter: its message (1.4, ONF's extension of 1.3
    /// and Nicira's of earlier versions).
    RequestForward {
        /// The transaction id of the message inside.
        xid: u32,
        /// A group mod or a meter mod.
        message: Box<Message>,
    },
}

/// What a hello says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Bit n: version number n is spoken. A hello without a bitmap says every version up to its
    /// header's.
    pub versions: u32,
}

/// An error as it travels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorMessage {
    /// What is wrong.
    pub kind: ErrorKind,
    /// The first bytes of the message that failed, at least 64 of them if it was as long; for a
    /// failed hello, a text.
    pub data: Vec<u8>,
}

/// What an error says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// One that is known.
    Known(Error),
    /// One that is not, only received.
    Other(WireError),
}

/// Identity and abilities of the switch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// Datapath id.
    pub datapath_id: u64,
    /// Packets that can be buffered.
    pub buffers: u32,
    /// Number of tables.
    pub tables: u8,
    /// Auxiliary connection id, 0 for the main one (1.3).
    pub auxiliary: u8,
    /// Abilities.
    pub capabilities: Capabilities,
    /// Actions, bit n for `OFPAT` number n of 1.0 (1.0 only; 1.1 and 1.2 have no use for it).
    pub actions: u32,
    /// The ports (1.0 to 1.2); later versions ask by a multipart message.
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
        /// Group statistics (1.1).
        const GROUP_STATS = 1 << 3;
        /// IP fragments are reassembled.
        const IP_REASM = 1 << 5;
        /// Queue statistics.
        const QUEUE_STATS = 1 << 6;
        /// Addresses in ARP packets are matched (1.0, 1.1).
        const ARP_MATCH_IP = 1 << 7;
        /// Looping ports are blocked (1.2).
        const PORT_BLOCKED = 1 << 8;
        /// Bundles (1.4).
        const BUNDLES = 1 << 9;
        /// Flow monitors (1.4).
        const FLOW_MONITORING = 1 << 10;
        /// Spanning tree (1.0).
        const STP = 1 << 31;
    }
}

/// What is done with IP fragments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Fragments {
    /// Nothing special: ports of fragments are zero.
    #[default]
    Normal = 0,
    /// They are dropped.
    Drop = 1,
    /// They are reassembled.
    Reassemble = 2,
    /// Nicira: they are matched by `ip_frag`, with the ports of first fragments.
    NxMatch = 3,
}

/// The switch's configuration, for one connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchConfig {
    /// What is done with IP fragments.
    pub fragments: Fragments,
    /// Whether packets with an expired TTL are sent to the controller (1.1, 1.2).
    pub invalid_ttl_to_controller: bool,
    /// Bytes of a packet that met no rule to send to the controller.
    pub miss_send_len: u16,
}

/// How packet-ins travel.
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
    /// An action says so.
    Action = 1,
    /// Its TTL expired.
    InvalidTtl = 2,
    /// The action set says so (1.4).
    ActionSet = 3,
    /// A group bucket says so (1.4).
    Group = 4,
    /// A packet-out says so (1.4).
    PacketOut = 5,
}

/// A packet for the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketIn {
    /// Which message carries it.
    pub format: PacketInFormat,
    /// Where the packet is buffered, or [`NO_BUFFER`].
    pub buffer_id: u32,
    /// The packet's length when it was received.
    pub total_len: u32,
    /// Why.
    pub reason: PacketInReason,
    /// The table that sent it.
    pub table: u8,
    /// The cookie of the rule that sent it; all ones for none.
    pub cookie: u64,
    /// Where it came in, as `in_port`, and its pipeline fields that are not zero (metadata,
    /// registers, tunnel).
    pub matching: Match,
    /// The packet, or its beginning.
    pub data: Vec<u8>,
    /// What `controller(userdata=...)` gave (`NXT_PACKET_IN2`).
    pub userdata: Vec<u8>,
    /// What the switch needs to go on with the packet, for [`Message::Resume`] (`NXT_PACKET_IN2`):
    /// properties of its own; empty where the packet does not wait.
    pub continuation: Vec<u8>,
}

/// Send a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketOut {
    /// The buffered packet, or [`NO_BUFFER`] when `data` holds it.
    pub buffer_id: u32,
    /// Where the packet is to have come in: a port number, [`crate::port::CONTROLLER`],
    /// [`crate::port::LOCAL`], or [`crate::port::ANY`] (1.0's `NONE`).
    pub in_port: PortNo,
    /// Pipeline fields to start with (1.5); elsewhere only `in_port`, if that.
    pub matching: Match,
    /// What to do with it.
    pub actions: Vec<Action>,
    /// The packet.
    pub data: Vec<u8>,
}

/// The form of a flow mod.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowModForm {
    /// Which message carries it (1.0).
    pub format: FlowFormat,
    /// Whether the table is in the command's high byte (1.0 with [`Message::FlowModTableId`]).
    pub table_in_command: bool,
}

/// A controller's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Role {
    /// Tell the role, change nothing (1.2).
    NoChange = 0,
    /// As every other.
    #[default]
    Equal = 1,
    /// The only one that may change things (`master`).
    Primary = 2,
    /// One that may only read (`slave`).
    Secondary = 3,
}

/// A role request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleMessage {
    /// The role.
    pub role: Role,
    /// The generation of the election, where the form has one (1.2): a request has it unless the
    /// role does not change, and in a reply None is sent as all ones.
    pub generation: Option<u64>,
    /// Whether it is Nicira's message.
    pub nicira: bool,
}

/// Why the switch changed a controller's role (`OFPCRR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RoleReason {
    /// Another controller asked to be primary.
    PrimaryRequest = 0,
    /// The switch was configured so.
    Config = 1,
    /// An experimenter's message.
    Experimenter = 2,
}

/// The switch changed the controller's role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleStatus {
    /// The role now.
    pub role: Role,
    /// Why.
    pub reason: RoleReason,
    /// The generation of the election, None when there was none.
    pub generation: Option<u64>,
}

/// Kinds of asynchronous messages, as `OFPACPT_*` pairs them.
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

/// Which asynchronous messages a controller wants: by kind, for roles equal and primary (0) and
/// secondary (1), a bit for each reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AsyncConfig {
    /// `masks[kind][secondary]`.
    pub masks: [[u32; 2]; 6],
}

impl AsyncConfig {
    /// Whether a message of this kind and reason is wanted in a role.
    pub fn wants(&self, kind: AsyncKind, reason: u8, role: Role) -> bool {
        let mask = self.masks[kind as usize][usize::from(role == Role::Secondary)];
        reason < 32 && mask >> reason & 1 == 1
    }

    /// Applies a change.
    pub fn change(&mut self, change: &AsyncChange) {
        self.masks[change.kind as usize][usize::from(change.secondary)] = change.mask;
    }
}

/// One new mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncChange {
    /// For which messages.
    pub kind: AsyncKind,
    /// For role secondary, or for the others.
    pub secondary: bool,
    /// A bit for each reason.
    pub mask: u32,
}

/// Which queues a request asks about.
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
    /// Who made you?
    Description,
    /// Rules.
    Flow {
        /// Which.
        request: FlowStatsRequest,
        /// Which message asks, and answers.
        format: FlowFormat,
    },
    /// Sums over rules.
    Aggregate {
        /// Which.
        request: FlowStatsRequest,
        /// Which message asks, and answers.
        format: FlowFormat,
    },
    /// Tables' counters.
    Table,
    /// A port's counters, or all ports' ([`crate::port::ANY`]).
    Port(PortNo),
    /// Queues' counters.
    Queue(QueueRequest),
    /// A group's counters, or all groups' (0xffff_fffc).
    Group(u32),
    /// A group's buckets, or all groups' (0xffff_fffc).
    GroupDescription(u32),
    /// What groups are possible?
    GroupFeatures,
    /// A meter's counters, or all meters' (0xffff_ffff).
    Meter(u32),
    /// A meter's bands, or all meters' (0xffff_ffff).
    MeterConfig(u32),
    /// What meters are possible?
    MeterFeatures,
    /// What can tables do? With a body: change what they can do.
    TableFeatures(Vec<TableFeatures>),
    /// A port, or all ports ([`crate::port::ANY`]).
    PortDescription(PortNo),
    /// Tables' configuration (1.4).
    TableDescription,
    /// Queues' configuration (1.4).
    QueueDescription(QueueRequest),
    /// Set flow monitors up, change or end them.
    FlowMonitor(Vec<MonitorRequest>),
    /// Nicira: IPFIX counters, of the bridge or of flows.
    Ipfix {
        /// Of flows.
        flows: bool,
    },
}

/// Multipart replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MultipartReply {
    /// Who made the switch.
    Description(Description),
    /// Rules.
    Flow {
        /// The rules.
        flows: Vec<FlowStats>,
        /// Which message answers.
        format: FlowFormat,
    },
    /// Sums over rules.
    Aggregate {
        /// The sums.
        sums: Aggregate,
        /// Which message answers.
        format: FlowFormat,
    },
    /// Tables' counters.
    Table(Vec<TableStats>),
    /// Ports' counters.
    Port(Vec<PortStats>),
    /// Queues' counters.
    Queue(Vec<QueueStats>),
    /// Groups' counters.
    Group(Vec<GroupStats>),
    /// Groups' buckets.
    GroupDescription(Vec<GroupDescription>),
    /// What groups are possible.
    GroupFeatures(GroupFeatures),
    /// Meters' counters.
    Meter(Vec<MeterStats>),
    /// Meters' bands.
    MeterConfig(Vec<MeterConfig>),
    /// What meters are possible.
    MeterFeatures(MeterFeatures),
    /// What tables can do.
    TableFeatures(Vec<TableFeatures>),
    /// Ports.
    PortDescription(Vec<PortDescription>),
    /// Tables' configuration (1.4).
    TableDescription(Vec<TableConfig>),
    /// Queues' configuration (1.4).
    QueueDescription(Vec<QueueDescription>),
    /// What flow monitors tell: the answer to their request, and unasked later.
    FlowMonitor(Vec<FlowUpdate>),
}

/// What to do with a bundle (`OFPBCT_*`).
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

/// Open, close, commit or discard a bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BundleControl {
    /// Which bundle.
    pub bundle: u32,
    /// What to do, or what was done.
    pub command: BundleCommand,
    /// `OFPBF_*`: 1 atomic, 2 ordered.
    pub flags: u16,
}

/// Put a message into a bundle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleAdd {
    /// Which bundle.
    pub bundle: u32,
    /// `OFPBF_*`.
    pub flags: u16,
    /// The transaction id inside, the same as the outer one.
    pub xid: u32,
    /// The message.
    pub message: Box<Message>,
}
