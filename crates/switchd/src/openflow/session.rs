//! One OpenFlow connection's state and request handling.
//!
//! Requests are carried out in the order in which they came. Replies are sent at once, except that
//! to a barrier, which is sent when the switch reports it done; meanwhile no later message of the
//! connection is handled.

use super::bundles::{Bundles, Committing};
use super::hub::Hub;
use super::monitors::Monitors;
use super::outbox::Outbox;
use super::removals::Removals;
use super::scheduler::Scheduler;
use super::steering::Steered;
use super::switch::LocalFuture;
use crate::clock;
use openflow::action::Action;
use openflow::decode::DecodeOptions;
use openflow::flow::FlowStatsRequest;
use openflow::message::{
    AsyncConfig, AsyncKind, BundleCommand, FlowFormat, Message, MultipartReply, MultipartRequest,
    PacketIn, PacketInFormat, PacketInReason, QueueRequest, Role, RoleMessage, SwitchConfig,
};
use openflow::monitor::MonitorRequest;
use openflow::port::PortNo;
use openflow::stats::TableFeatures;
use openflow::steering::notes_in_actions;
use openflow::{Added, Error, Header, Version, encode, encode_error, encode_multipart, port};
use packet::Field;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What caused a packet-in, as far as it decides on the receivers and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A rule, or another request of a controller.
    Rule,
    /// A table-miss rule: any packet at priority 0 (1.3.5 section 5.4).
    TableMiss,
    /// No rule: the packet matched none.
    NoRule,
}

/// Default of `miss_send_len` (`OFP_DEFAULT_MISS_SEND_LEN`) where no primary controller has set it.
/// Only zero or not zero matters, and only for tools' connections.
const DEFAULT_MISS_SEND_LEN: u16 = 128;
/// The bit of packet-ins with an expired TTL in the asynchronous configuration.
const INVALID_TTL: u32 = 1 << PacketInReason::InvalidTtl as u32;
/// Bytes left of a packet that is too long for a packet-in with its metadata, such as a frame that
/// has yet to be segmented.
const MOST_DATA: usize = 60_000;
/// Most parts of a request that changes table features, and most tables in them.
const MAX_PARTS: usize = 512;
const MAX_TABLES: usize = 512;

/// Kind of the controller on the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionType {
    /// One that the bridge depends on: its absence triggers the fail mode, and it gets asynchronous
    /// messages without asking.
    Primary,
    /// A tool, such as `ovs-ofctl`: it gets asynchronous messages once it has set a miss send
    /// length.
    Service,
}

/// What the reader does after a message.
pub(super) enum Next {
    /// Continues.
    Continue,
    /// Continues; the message was added to a bundle, and its sender expects no reply.
    Gathered,
    /// Continues; the message may have changed rules.
    Changed,
    /// Waits for the switch, then answers the barrier with this transaction id.
    Barrier(u32),
    /// Replies to a request about many rules, slice by slice.
    Answer {
        /// The request's transaction id.
        xid: u32,
        /// The request.
        question: Question,
    },
    /// Waits for a message that is carried out in slices.
    Slow(Slow),
    /// Retries the message later, because rules are being changed in slices.
    Busy,
}

/// A message that is being carried out in slices.
pub(super) enum Slow {
    /// A flow, group, meter or port mod.
    Change(LocalFuture<Result<(), Error>>),
    /// A bundle's commit.
    Commit(Box<Committing>),
    /// A request about steering.
    Steering(Box<Steered>),
}

/// A request about many rules.
pub(super) enum Question {
    /// Statistics of rules, and the format of the reply.
    Flows(Box<FlowStatsRequest>, FlowFormat),
    /// Sums over rules.
    Sums(Box<FlowStatsRequest>, FlowFormat),
    /// New, changed or ended monitors.
    Monitors(Vec<MonitorRequest>),
}

/// Settings from the controller's row that may change while a connection is up.
#[derive(Debug)]
pub(super) struct Live {
    /// Silence before a probe, and again before the connection is closed; zero for never.
    pub(super) probe: Cell<Duration>,
    /// Longest pause between attempts to connect, seconds.
    pub(super) max_backoff: Cell<u32>,
    /// Most packet-ins that wait.
    pub(super) packet_in_limit: Cell<usize>,
    /// Packet-ins per second; 0 for no limit.
    pub(super) rate: Cell<u32>,
    /// Packet-ins in a burst above the rate; 0 for a quarter of a second's.
    pub(super) burst: Cell<u32>,
    /// Notified when something has changed.
    pub(super) changed: tokio::sync::Notify,
}

impl Live {
    pub(super) fn new(probe: Duration, packet_in_limit: usize) -> Live {
        Live {
            probe: Cell::new(probe),
            max_backoff: Cell::new(8),
            packet_in_limit: Cell::new(packet_in_limit),
            rate: Cell::new(0),
            burst: Cell::new(0),
            changed: tokio::sync::Notify::new(),
        }
    }
}

/// A connection with a negotiated version.
pub(super) struct Session {
    pub(super) kind: ConnectionType,
    pub(super) version: Version,
    /// The peer's name, for messages.
    pub(super) peer: String,
    pub(super) outbox: Outbox,
    /// Flow-removed messages for which the outbox has no room.
    pub(super) removals: Removals,
    /// Whether the peer's messages wait for the switch, so that the peer must not be considered
    /// silent.
    pub(super) held: Cell<bool>,
    /// When the messages in hand, or else the last ones, were received.
    pub(super) last_heard: Cell<i64>,
    pub(super) role: Cell<Role>,
    pub(super) asynchronous: RefCell<AsyncConfig>,
    /// Whether the peer has chosen role status messages; until then it gets all, as from Open
    /// vSwitch.
    pub(super) role_status_asked: Cell<bool>,
    pub(super) miss_send_len: Cell<u16>,
    pub(super) controller_id: Cell<u16>,
    pub(super) live: Rc<Live>,
    pub(super) scheduler: Scheduler,
    packet_in_format: Cell<PacketInFormat>,
    flow_format: Cell<FlowFormat>,
    table_in_command: Cell<bool>,
    pub(super) bundles: Bundles,
    /// Number of rules left out of the last dump.
    pub(super) rules_left_out: Cell<usize>,
    /// Notified when a bundle is opened.
    pub(super) bundles_changed: tokio::sync::Notify,
    pub(super) monitors: Monitors,
    /// The parts so far of a change of table features: their transaction id, number and tables.
    parts: RefCell<(u32, usize, Vec<TableFeatures>)>,
    /// Whether the peer has asked for steering capabilities, and so understands steering messages.
    pub(super) knows_steering: Cell<bool>,
    /// Notified when the switch wants the connection to end.
    pub(super) closing: tokio::sync::Notify,
}

/// Returns the masks in force until a controller sets others: everything but expired TTLs; only
/// port status in role secondary.
fn default_masks(version: Version) -> AsyncConfig {
    let bit = |reason: PacketInReason| 1 << reason as u32;
    let mut packet_in = bit(PacketInReason::NoMatch) | bit(PacketInReason::Action);
    if version >= Version::V1_4 {
        packet_in |= bit(PacketInReason::ActionSet)
            | bit(PacketInReason::Group)
            | bit(PacketInReason::PacketOut);
    }
    let mut masks = [[0; 2]; 6];
    masks[AsyncKind::PacketIn as usize][0] = packet_in;
    masks[AsyncKind::PortStatus as usize] = [0x07; 2];
    masks[AsyncKind::FlowRemoved as usize][0] = if version >= Version::V1_4 { 0x3f } else { 0x0f };
    AsyncConfig { masks }
}

impl Session {
    pub(super) fn new(
        kind: ConnectionType,
        version: Version,
        peer: &str,
        asynchronous: bool,
        live: Rc<Live>,
    ) -> Session {
        Session {
            kind,
            version,
            peer: peer.to_owned(),
            outbox: Outbox::default(),
            removals: Removals::default(),
            held: Cell::new(false),
            last_heard: Cell::new(clock::now()),
            role: Cell::new(Role::Equal),
            asynchronous: RefCell::new(if asynchronous {
                default_masks(version)
            } else {
                AsyncConfig::default()
            }),
            role_status_asked: Cell::new(false),
            miss_send_len: Cell::new(match kind {
                ConnectionType::Primary => DEFAULT_MISS_SEND_LEN,
                ConnectionType::Service => 0,
            }),
            controller_id: Cell::new(0),
            live,
            scheduler: Scheduler::new(),
            packet_in_format: Cell::new(PacketInFormat::Standard),
            flow_format: Cell::new(FlowFormat::Standard),
            table_in_command: Cell::new(false),
            bundles: Bundles::default(),
            rules_left_out: Cell::new(0),
            bundles_changed: tokio::sync::Notify::new(),
            monitors: Monitors::default(),
            parts: RefCell::default(),
            knows_steering: Cell::new(false),
            closing: tokio::sync::Notify::new(),
        }
    }

    /// Returns what decoding depends on.
    pub(super) fn decode_options(&self) -> DecodeOptions {
        DecodeOptions {
            version: Some(self.version),
            table_in_command: self.table_in_command.get(),
        }
    }

    /// Returns whether an asynchronous message is wanted.
    pub(super) fn wants(&self, kind: AsyncKind, reason: u8) -> bool {
        if self.kind == ConnectionType::Service && self.miss_send_len.get() == 0 {
            return false;
        }
        self.asynchronous
            .borrow()
            .wants(kind, reason, self.role.get())
    }

    /// Returns whether packets with an expired TTL are wanted in roles equal and primary.
    fn takes_invalid_ttl(&self) -> bool {
        let masks = &self.asynchronous.borrow().masks;
        masks[AsyncKind::PacketIn as usize][0] & INVALID_TTL != 0
    }

    /// Sets whether packets with an expired TTL are wanted. Stored in the asynchronous
    /// configuration, so that the last message that sets it counts, whichever kind of message it
    /// is.
    fn take_invalid_ttl(&self, wanted: bool) {
        let mask = &mut self.asynchronous.borrow_mut().masks[AsyncKind::PacketIn as usize][0];
        *mask = *mask & !INVALID_TTL | if wanted { INVALID_TTL } else { 0 };
    }

    /// Sends a packet-in if it is wanted, with the whole packet: packets are not buffered here
    /// (1.3.5 section 6.1.2), so neither `miss_send_len` nor an action's `max_len` truncates it.
    pub(super) fn send_packet_in(&self, packet: &PacketIn, origin: Origin) {
        let mut reason = packet.reason;
        match origin {
            // Since 1.3 a packet that matches no rule is dropped, unless a table-miss rule sends it
            // (1.3.5 section 5.4).
            Origin::NoRule if self.version >= Version::V1_3 => return,
            // Earlier versions have no table-miss rules.
            Origin::TableMiss if self.version < Version::V1_3 => reason = PacketInReason::Action,
            _ => {}
        }
        if self.version < Version::V1_4 && reason as u8 > PacketInReason::InvalidTtl as u8 {
            reason = PacketInReason::Action;
        }
        if !self.wants(AsyncKind::PacketIn, reason as u8) {
            return;
        }
        let length = packet.data.len();
        let with_data = |length: usize| {
            let packet = PacketIn {
                reason,
                format: self.packet_in_format.get(),
                data: packet.data[..length].to_vec(),
                matching: packet.matching.clone(),
                userdata: packet.userdata.clone(),
                continuation: packet.continuation.clone(),
                ..*packet
            };
            encode(self.version, 0, &Message::PacketIn(packet))
        };
        let miss = packet.reason == PacketInReason::NoMatch;
        let in_port = packet.matching.get(Field::InPortOxm).0.to_u64() as PortNo;
        let mut bytes = with_data(length);
        // A packet too long for any message is truncated, unless it is paused: that one comes back
        // and goes on as it is.
        if bytes.is_empty() && packet.continuation.is_empty() && length > MOST_DATA {
            bytes = with_data(MOST_DATA);
        }
        if let Some(bytes) = self.scheduler.offer(&self.live, miss, in_port, bytes) {
            self.outbox
                .send_packet_in(bytes, self.live.packet_in_limit.get());
        }
    }

    /// Sends packet-ins that waited for the rate limit, while the connection lives.
    pub(super) async fn release_packet_ins(&self) -> std::convert::Infallible {
        loop {
            for bytes in self.scheduler.released(&self.live).await {
                self.outbox
                    .send_packet_in(bytes, self.live.packet_in_limit.get());
            }
            tokio::task::yield_now().await;
        }
    }

    /// Returns the format of flow-removed messages for this peer.
    pub(super) fn flow_format(&self) -> FlowFormat {
        if self.version == Version::V1_0 {
            self.flow_format.get()
        } else {
            FlowFormat::Standard
        }
    }

    pub(super) fn reply(&self, xid: u32, message: &Message) {
        self.outbox.send(encode(self.version, xid, message));
    }

    /// Answers an echo request in its own version, which may differ from the negotiated one.
    pub(super) fn answer_echo(&self, header: Header, data: Vec<u8>) {
        let mut reply = encode(self.version, header.xid, &Message::EchoReply(data));
        if let Some(version) = reply.first_mut() {
            *version = header.version;
        }
        self.outbox.send(reply);
    }

    /// Carries out a message. `bytes` are the whole message, for errors to quote.
    pub(super) fn handle(
        self: &Rc<Session>,
        hub: &Hub,
        bytes: &[u8],
        header: Header,
        message: Message,
    ) -> Next {
        if changes_or_asks(&message) && hub.switch().busy().is_some() {
            return Next::Busy;
        }
        let done = match message {
            Message::EchoRequest(data) => {
                self.answer_echo(header, data);
                return Next::Continue;
            }
            Message::BundleAdd(add) => {
                let added = Added {
                    outer_xid: header.xid,
                    bundle: add.bundle,
                    flags: add.flags,
                    xid: add.xid,
                    message: *add.message,
                };
                return self.gather(hub, bytes, added);
            }
            message => hub.caused_by(self, header.xid, || {
                self.try_handle(hub, bytes, header.xid, message)
            }),
        };
        match done {
            Ok(next) => next,
            Err(error) => {
                self.send_error(bytes, error);
                Next::Continue
            }
        }
    }

    /// Adds a message to a bundle, which changes nothing that others must be told of. `bytes` are
    /// the whole message.
    pub(super) fn gather(&self, hub: &Hub, bytes: &[u8], added: Added) -> Next {
        match self.bundle_add(hub, bytes, added) {
            Ok(()) => Next::Gathered,
            Err(error) => {
                self.send_error(bytes, error);
                Next::Continue
            }
        }
    }

    /// Answers a message of another version than the negotiated one. Its log line has its own rate
    /// limit, so that many such messages hide no other errors.
    pub(super) fn refuse_version(&self, bytes: &[u8]) {
        let theirs = bytes.first().copied().unwrap_or_default();
        let ours = self.version as u8;
        tracing::error!(target: "vconn", "{}: received OpenFlow version {theirs:#04x} != expected {ours:02x}", self.peer);
        self.outbox
            .send(encode_error(Version::V1_0, bytes, Error::BadVersion));
    }

    /// Answers a message with an error, in the message's version, or in 1.0 if that version is
    /// unknown.
    pub(super) fn send_error(&self, bytes: &[u8], error: Error) {
        tracing::info!(target: "connmgr", "{}: sending {error} error reply", self.peer);
        self.outbox.send(encode_error(Version::V1_0, bytes, error));
    }

    fn try_handle(
        self: &Rc<Session>,
        hub: &Hub,
        bytes: &[u8],
        xid: u32,
        message: Message,
    ) -> Result<Next, Error> {
        let switch = hub.switch();
        match message {
            Message::FlowMod { change, .. } => {
                self.may_write()?;
                let done = switch.flow_mod(&change, self.version)?;
                return Ok(self.changed(hub, xid, done));
            }
            Message::Steering(message) => return self.steering(hub, xid, message),
            Message::PacketOut(packet) => {
                self.may_write()?;
                if let [Action::Steer(target)] = &packet.actions[..] {
                    return self.steer(hub, xid, target, &packet);
                }
                switch.packet_out(&packet, self.version)?;
                return Ok(Next::Changed);
            }
            Message::GroupMod(change) => {
                self.may_write()?;
                let done = switch.group_mod(&change, self.version)?;
                hub.forward_request(self, xid, &Message::GroupMod(change));
                return Ok(self.changed(hub, xid, done));
            }
            Message::MeterMod(change) => {
                self.may_write()?;
                let done = switch.meter_mod(&change)?;
                hub.forward_request(self, xid, &Message::MeterMod(change));
                return Ok(self.changed(hub, xid, done));
            }
            Message::PortMod(change) => {
                self.may_write()?;
                return Ok(match switch.port_mod(&change)? {
                    None => Next::Changed,
                    // It changes no rules, which flow monitors would be told of.
                    Some(done) => Next::Slow(Slow::Change(done)),
                });
            }
            Message::CtFlush(request) => {
                let done = switch.flush_connections(&request);
                return Ok(Next::Slow(Slow::Change(done)));
            }
            Message::TableMod(change) => {
                self.may_write()?;
                switch.table_mod(&change, self.version)?;
                return Ok(Next::Changed);
            }
            Message::BarrierRequest => return Ok(Next::Barrier(xid)),
            Message::BundleControl(control) => {
                return self.bundle_control(hub, bytes, xid, control);
            }
            Message::MultipartRequest {
                request: MultipartRequest::TableFeatures(tables),
                more,
            } => self.change_tables(hub, xid, tables, more)?,
            Message::FlowMonitorCancel(id) => self.cancel_monitor(hub, id)?,
            Message::MultipartRequest { request, more } => {
                if more {
                    return Err(Error::MultipartOverflow);
                }
                let question = match request {
                    MultipartRequest::Flow { request, format } => {
                        Question::Flows(Box::new(request), format)
                    }
                    MultipartRequest::Aggregate { request, format } => {
                        Question::Sums(Box::new(request), format)
                    }
                    MultipartRequest::FlowMonitor(requests) => Question::Monitors(requests),
                    other => {
                        self.multipart(hub, xid, other)?;
                        return Ok(Next::Continue);
                    }
                };
                return Ok(Next::Answer { xid, question });
            }
            other => self.control(hub, xid, other)?,
        }
        Ok(Next::Continue)
    }

    /// Carries out messages about the connection and the switch as a whole.
    fn control(self: &Rc<Session>, hub: &Hub, xid: u32, message: Message) -> Result<(), Error> {
        let switch = hub.switch();
        match message {
            Message::Hello(_) | Message::EchoReply(_) | Message::FlowAge => {}
            Message::Error(error) => {
                tracing::debug!(target: "connmgr", "{}: peer reports {:?}", self.peer, error.kind);
            }
            Message::FeaturesRequest => {
                let features = switch.features(self.version < Version::V1_3);
                self.reply(xid, &Message::FeaturesReply(features));
            }
            Message::GetConfigRequest => {
                let config = SwitchConfig {
                    fragments: switch.fragments(),
                    invalid_ttl_to_controller: self.takes_invalid_ttl(),
                    miss_send_len: self.miss_send_len.get(),
                };
                self.reply(xid, &Message::GetConfigReply(config));
            }
            Message::SetConfig(config) => {
                if self.role.get() != Role::Secondary && config.fragments != switch.fragments() {
                    switch.set_fragments(config.fragments)?;
                }
                // Later versions have no such flag in this message.
                if self.version < Version::V1_3 {
                    self.take_invalid_ttl(config.invalid_ttl_to_controller);
                }
                self.miss_send_len.set(config.miss_send_len);
                hub.tell_connected();
            }
            Message::RoleRequest(request) => {
                let reply = self.change_role(hub, request)?;
                self.reply(xid, &Message::RoleReply(reply));
            }
            Message::GetAsyncRequest => {
                let config = *self.asynchronous.borrow();
                self.reply(xid, &Message::GetAsyncReply(config));
            }
            Message::SetAsync(changes) => {
                let mut config = self.asynchronous.borrow_mut();
                for change in &changes {
                    config.change(change);
                    if change.kind == AsyncKind::RoleStatus {
                        self.role_status_asked.set(true);
                    }
                }
                if self.kind == ConnectionType::Service && self.miss_send_len.get() == 0 {
                    self.miss_send_len.set(DEFAULT_MISS_SEND_LEN);
                }
                drop(config);
                hub.tell_connected();
            }
            Message::QueueGetConfigRequest(number) => {
                // A physical port or, after 1.0, ANY (1.3.5 section 7.3.6.1), as in Open vSwitch.
                let any = number == port::ANY && self.version > Version::V1_0;
                let usable = number < port::MAX || any;
                if !usable {
                    return Err(Error::QueueBadPort);
                }
                let queues = switch.queues(QueueRequest {
                    port: number,
                    queue: u32::MAX,
                })?;
                let reply = Message::QueueGetConfigReply {
                    port: number,
                    queues,
                };
                self.reply(xid, &reply);
            }
            Message::Resume(packet) => switch.resume(&packet)?,
            Message::SetFlowFormat(format) => self.flow_format.set(format),
            Message::FlowModTableId(set) => self.table_in_command.set(set),
            Message::SetPacketInFormat(format) => self.packet_in_format.set(format),
            Message::SetControllerId(id) => {
                self.controller_id.set(id);
                hub.tell_connected();
            }
            Message::TlvTableMod(change) => {
                self.may_write()?;
                switch.tlv_table_mod(&change)?;
            }
            Message::TlvTableRequest => {
                self.reply(xid, &Message::TlvTableReply(switch.tlv_table()));
            }
            // Messages that only a switch sends.
            _ => return Err(Error::BadType),
        }
        Ok(())
    }

    /// Returns what to do after a change of rules, which may go on in slices.
    fn changed(
        self: &Rc<Session>,
        hub: &Hub,
        xid: u32,
        goes_on: Option<LocalFuture<Result<(), Error>>>,
    ) -> Next {
        let Some(done) = goes_on else {
            return Next::Changed;
        };
        hub.goes_on_slowly(self, xid);
        Next::Slow(Slow::Change(done))
    }

    /// Waits for a message that is carried out in slices, and replies.
    pub(super) async fn finish(&self, hub: &Hub, slow: Slow) -> Result<(), Error> {
        match slow {
            Slow::Change(done) => done.await,
            Slow::Commit(committing) => self.finish_commit(hub, *committing).await,
            Slow::Steering(steered) => {
                self.finish_steering(hub, *steered).await;
                Ok(())
            }
        }
    }

    /// Replies to a request about many rules.
    pub(super) async fn answer(
        &self,
        hub: &Hub,
        xid: u32,
        question: &Question,
    ) -> Result<(), Error> {
        match question {
            Question::Flows(request, format) => self.dump(hub, xid, request, *format).await,
            Question::Sums(request, format) => self.sum(hub, xid, request, *format).await,
            Question::Monitors(requests) => self.monitor(hub, xid, requests).await,
        }
    }

    pub(super) fn may_write(&self) -> Result<(), Error> {
        if self.role.get() == Role::Secondary {
            return Err(Error::IsSlave);
        }
        Ok(())
    }

    fn change_role(
        self: &Rc<Session>,
        hub: &Hub,
        request: RoleMessage,
    ) -> Result<RoleMessage, Error> {
        if request.role != Role::NoChange {
            // Only elections have a generation id (OpenFlow 1.3.5 section 6.3.6).
            let elects = matches!(request.role, Role::Primary | Role::Secondary);
            if elects && let Some(generation) = request.generation {
                hub.accept_generation(generation)?;
            }
            hub.set_role(self, request.role);
        }
        Ok(RoleMessage {
            role: self.role.get(),
            generation: hub.generation(),
            nicira: request.nicira,
        })
    }

    /// Collects the parts of a change of table features, carries it out once it is complete, and
    /// replies with the tables' features.
    fn change_tables(
        &self,
        hub: &Hub,
        xid: u32,
        tables: Vec<TableFeatures>,
        more: bool,
    ) -> Result<(), Error> {
        let wanted = {
            let mut parts = self.parts.borrow_mut();
            if parts.0 != xid {
                // Discards the parts of an earlier request of which one was refused.
                *parts = (xid, 0, Vec::new());
            }
            parts.1 += 1;
            parts.2.extend(tables);
            if parts.1 > MAX_PARTS || parts.2.len() > MAX_TABLES {
                *parts = Default::default();
                return Err(Error::MultipartOverflow);
            }
            if more {
                return Ok(());
            }
            std::mem::take(&mut *parts).2
        };
        if !wanted.is_empty() {
            self.may_write()?;
            hub.switch().change_table_features(&wanted)?;
        }
        self.multipart(hub, xid, MultipartRequest::TableFeatures(Vec::new()))
    }

    fn multipart(&self, hub: &Hub, xid: u32, request: MultipartRequest) -> Result<(), Error> {
        let switch = hub.switch();
        let reply = match request {
            // Handled before.
            MultipartRequest::Flow { .. }
            | MultipartRequest::Aggregate { .. }
            | MultipartRequest::FlowMonitor(_) => return Ok(()),
            MultipartRequest::Description => MultipartReply::Description(switch.description()),
            MultipartRequest::Table => MultipartReply::Table(switch.table_stats()),
            MultipartRequest::Port(number) => MultipartReply::Port(switch.port_stats(number)?),
            MultipartRequest::Queue(request) => MultipartReply::Queue(switch.queue_stats(request)?),
            MultipartRequest::Group(number) => MultipartReply::Group(switch.group_stats(number)?),
            MultipartRequest::GroupDescription(number) => {
                let mut groups = switch.groups(number)?;
                if !self.knows_steering.get() {
                    let buckets = groups.iter_mut().flat_map(|group| &mut group.buckets);
                    buckets.for_each(|bucket| notes_in_actions(&mut bucket.actions));
                }
                MultipartReply::GroupDescription(groups)
            }
            MultipartRequest::GroupFeatures => {
                MultipartReply::GroupFeatures(switch.group_features())
            }
            MultipartRequest::Meter(number) => MultipartReply::Meter(switch.meter_stats(number)?),
            MultipartRequest::MeterConfig(number) => {
                MultipartReply::MeterConfig(switch.meters(number)?)
            }
            MultipartRequest::MeterFeatures => {
                MultipartReply::MeterFeatures(switch.meter_features())
            }
            MultipartRequest::TableFeatures(_) => {
                MultipartReply::TableFeatures(switch.table_features())
            }
            MultipartRequest::PortDescription(number) => {
                let mut ports = switch.ports();
                if number != port::ANY {
                    ports.retain(|port| port.number == number);
                }
                MultipartReply::PortDescription(ports)
            }
            MultipartRequest::TableDescription => {
                MultipartReply::TableDescription(switch.table_configs())
            }
            MultipartRequest::Ipfix { .. } => return Err(Error::NotConfigured),
            MultipartRequest::QueueDescription(request) => {
                MultipartReply::QueueDescription(switch.queues(request)?)
            }
        };
        encode_multipart(self.version, xid, &reply, false)
            .into_iter()
            .for_each(|part| self.outbox.send(part));
        Ok(())
    }
}

/// Returns whether a message changes rules or what they use, or asks for rules.
fn changes_or_asks(message: &Message) -> bool {
    match message {
        Message::FlowMod { .. }
        | Message::GroupMod(_)
        | Message::MeterMod(_)
        | Message::TableMod(_)
        | Message::TlvTableMod(_) => true,
        Message::BundleControl(control) => control.command == BundleCommand::CommitRequest,
        Message::MultipartRequest { request, .. } => matches!(
            request,
            MultipartRequest::Flow { .. }
                | MultipartRequest::Aggregate { .. }
                | MultipartRequest::FlowMonitor(_)
                | MultipartRequest::Table
                | MultipartRequest::TableFeatures(_)
                | MultipartRequest::Group(_)
                | MultipartRequest::GroupDescription(_)
                | MultipartRequest::Meter(_)
        ),
        _ => false,
    }
}
