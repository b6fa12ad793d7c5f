//! Decoding of messages.

use crate::codec;
use crate::codec::ct_flush;
use crate::codec::header::{HEADER, Header};
use crate::codec::multipart;
use crate::codec::repeats::Repeats;
use crate::codec::steering;
use crate::codec::wire::Reader;
use crate::model::error::{EXPERIMENTER_TYPE, Error, NICIRA, NICIRA_ERROR_TYPE, ONF, WireError};
use crate::model::message::{
    AsyncChange, AsyncKind, BundleAdd, BundleCommand, BundleControl, Capabilities, ErrorKind,
    ErrorMessage, Features, FlowFormat, FlowModForm, Fragments, Hello, Message, PacketInFormat,
    Role, RoleMessage, RoleReason, RoleStatus, SwitchConfig,
};
use crate::model::port::PortStatus;
use crate::model::steering::EXPERIMENTER;
use crate::model::version::{ALL_VERSIONS, Version};

/// The connection state on which the meaning of messages depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DecodeOptions {
    /// The negotiated version, which all messages except hellos, errors and echoes must have. None
    /// before negotiation: messages may have any version.
    pub version: Option<Version>,
    /// Whether the controller asked (`NXT_FLOW_MOD_TABLE_ID`) for table numbers in the commands of
    /// 1.0's flow mods.
    pub table_in_command: bool,
}

/// A message that could not be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{error} in message type {} of version {:#04x}, xid {:#x}", header.kind, header.version, header.xid)]
pub struct DecodeError {
    /// The message's header.
    pub header: Header,
    /// The error to send to the peer.
    pub error: Error,
}

/// The type of ONF's extension 230, which adds a message to a bundle in 1.3.
const BUNDLE_ADD_1_3: u32 = 2301;

/// The subtype of Nicira's group mod for 1.0 (`NXT_GROUP_MOD`).
const GROUP_MOD_1_0: u32 = 31;

/// Numbers of message types (`OFPT_*`) from 1.1 on, to which those of 1.0 are mapped.
pub(crate) mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const EXPERIMENTER: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const GET_CONFIG_REQUEST: u8 = 7;
    pub const GET_CONFIG_REPLY: u8 = 8;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const FLOW_REMOVED: u8 = 11;
    pub const PORT_STATUS: u8 = 12;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const GROUP_MOD: u8 = 15;
    pub const PORT_MOD: u8 = 16;
    pub const TABLE_MOD: u8 = 17;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
    pub const QUEUE_GET_CONFIG_REQUEST: u8 = 22;
    pub const QUEUE_GET_CONFIG_REPLY: u8 = 23;
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
    pub const GET_ASYNC_REQUEST: u8 = 26;
    pub const GET_ASYNC_REPLY: u8 = 27;
    pub const SET_ASYNC: u8 = 28;
    pub const METER_MOD: u8 = 29;
    pub const ROLE_STATUS: u8 = 30;
    pub const TABLE_STATUS: u8 = 31;
    pub const REQUEST_FORWARD: u8 = 32;
    pub const BUNDLE_CONTROL: u8 = 33;
    pub const BUNDLE_ADD: u8 = 34;

    /// Returns a version's number of a type of 1.1; None if the version lacks the type.
    pub fn to_wire(kind: u8, version: u8) -> Option<u8> {
        let (since, until) = match kind {
            ..=FLOW_MOD | PORT_MOD | MULTIPART_REQUEST..=BARRIER_REPLY => (1, 6),
            GROUP_MOD | TABLE_MOD => (2, 6),
            QUEUE_GET_CONFIG_REQUEST | QUEUE_GET_CONFIG_REPLY => (1, 4),
            ROLE_REQUEST | ROLE_REPLY => (3, 6),
            GET_ASYNC_REQUEST..=METER_MOD => (4, 6),
            _ => (5, 6),
        };
        if !(since..=until).contains(&version) {
            return None;
        }
        Some(match kind {
            PORT_MOD if version == 1 => 15,
            MULTIPART_REQUEST..=QUEUE_GET_CONFIG_REPLY if version == 1 => kind - 2,
            _ => kind,
        })
    }

    /// Returns the type of 1.1 for a version's number.
    pub fn from_wire(number: u8, version: u8) -> Option<u8> {
        if version == 1 {
            return match number {
                ..=FLOW_MOD => Some(number),
                15 => Some(PORT_MOD),
                16..=21 => Some(number + 2),
                _ => None,
            };
        }
        Some(number).filter(|number| *number <= BUNDLE_ADD && to_wire(*number, version).is_some())
    }
}

/// Decodes one whole message; [`crate::codec::header::frame_length`] returns its length.
pub fn decode(bytes: &[u8], options: &DecodeOptions) -> Result<(Header, Message), DecodeError> {
    let header = Header::of(bytes).unwrap_or(Header {
        version: 0,
        kind: 0,
        length: 0,
        xid: 0,
    });
    decode_body(bytes, header, options, None)
        .map(|message| (header, message))
        .map_err(|error| DecodeError { header, error })
}

/// Returns the bytes behind the header of a message of the right length.
fn body_of(bytes: &[u8], header: Header) -> Result<Reader<'_>, Error> {
    if bytes.len() < HEADER || usize::from(header.length) != bytes.len() {
        return Err(Error::BadLength);
    }
    Ok(Reader::new(&bytes[HEADER..], Error::BadLength))
}

/// Returns the type of a message of an allowed version, as a number of [`kind`].
fn kind_of(header: Header, options: &DecodeOptions) -> Result<u8, Error> {
    let known = Version::from_wire(header.version).ok_or(Error::BadVersion)?;
    if options.version.is_some_and(|version| version != known) {
        return Err(Error::BadVersion);
    }
    kind::from_wire(header.kind, header.version).ok_or(Error::BadType)
}

fn decode_body(
    bytes: &[u8],
    header: Header,
    options: &DecodeOptions,
    repeats: Option<&mut Repeats>,
) -> Result<Message, Error> {
    let mut reader = body_of(bytes, header)?;
    let r = &mut reader;
    // These types are the same in every version, future ones included.
    match header.kind {
        kind::HELLO => return Ok(Message::Hello(take_hello(r, header.version)?)),
        kind::ERROR => return Ok(Message::Error(take_error(r, header.version)?)),
        _ => {}
    }
    let version = header.version;
    if matches!(header.kind, kind::ECHO_REQUEST | kind::ECHO_REPLY) && version != 0 {
        return take_standard(header.kind, r, version);
    }
    let kind = kind_of(header, options)?;
    let message = match kind {
        kind::EXPERIMENTER => take_experimenter(r, version, options)?,
        kind::FLOW_MOD => take_flow_mod(r, version, FlowFormat::Standard, options, repeats)?,
        kind::BUNDLE_ADD => take_bundle_add(r, version, options)?,
        _ => take_standard(kind, r, version)?,
    };
    if !r.is_empty() {
        return Err(Error::BadLength);
    }
    Ok(message)
}

fn take_standard(number: u8, r: &mut Reader<'_>, version: u8) -> Result<Message, Error> {
    Ok(match number {
        kind::ECHO_REQUEST => Message::EchoRequest(r.take_rest().to_vec()),
        kind::ECHO_REPLY => Message::EchoReply(r.take_rest().to_vec()),
        kind::FEATURES_REQUEST => Message::FeaturesRequest,
        kind::FEATURES_REPLY => Message::FeaturesReply(take_features(r, version)?),
        kind::GET_CONFIG_REQUEST => Message::GetConfigRequest,
        kind::GET_CONFIG_REPLY => Message::GetConfigReply(take_config(r, version)?),
        kind::SET_CONFIG => Message::SetConfig(take_config(r, version)?),
        kind::PACKET_IN => Message::PacketIn(codec::packet::take_packet_in(r, version)?),
        kind::FLOW_REMOVED => Message::FlowRemoved {
            removed: codec::flow::take_removed(r, version, FlowFormat::Standard)?,
            format: FlowFormat::Standard,
        },
        kind::PORT_STATUS => {
            let reason = codec::port::reason(r.u8()?)?;
            r.skip(7)?;
            let port = codec::port::take_description(r, version)?;
            Message::PortStatus(PortStatus { reason, port })
        }
        kind::PACKET_OUT => Message::PacketOut(codec::packet::take_packet_out(r, version)?),
        kind::GROUP_MOD => Message::GroupMod(codec::group::take_group_mod(r, version)?),
        kind::PORT_MOD => Message::PortMod(codec::port::take_mod(r, version)?),
        kind::TABLE_MOD => Message::TableMod(codec::table::take_config(r, version)?),
        kind::MULTIPART_REQUEST => {
            let (request, more) = multipart::take_request(r, version)?;
            Message::MultipartRequest { request, more }
        }
        kind::MULTIPART_REPLY => {
            let (reply, more) = multipart::take_reply(r, version)?;
            Message::MultipartReply { reply, more }
        }
        kind::BARRIER_REQUEST => Message::BarrierRequest,
        kind::BARRIER_REPLY => Message::BarrierReply,
        kind::QUEUE_GET_CONFIG_REQUEST => {
            let port = codec::port::take_number(r, version)?;
            r.skip(if version == 1 { 2 } else { 4 })?;
            Message::QueueGetConfigRequest(port)
        }
        kind::QUEUE_GET_CONFIG_REPLY => {
            let port = codec::port::take_number(r, version)?;
            r.skip(if version == 1 { 6 } else { 4 })?;
            let mut queues = Vec::new();
            while !r.is_empty() {
                queues.push(codec::port::take_queue(r, version, port)?);
            }
            Message::QueueGetConfigReply { port, queues }
        }
        kind::ROLE_REQUEST => Message::RoleRequest(take_role_request(r)?),
        kind::ROLE_REPLY => Message::RoleReply(take_role_reply(r)?),
        kind::GET_ASYNC_REQUEST => Message::GetAsyncRequest,
        kind::GET_ASYNC_REPLY => {
            let mut config = crate::model::message::AsyncConfig::default();
            take_async(r, version)?
                .iter()
                .for_each(|change| config.change(change));
            Message::GetAsyncReply(config)
        }
        kind::SET_ASYNC => Message::SetAsync(take_async(r, version)?),
        kind::METER_MOD => Message::MeterMod(codec::group::take_meter_mod(r)?),
        kind::TABLE_STATUS => Message::TableStatus(codec::table::take_status(r)?),
        kind::REQUEST_FORWARD => take_request_forward(r, version)?,
        kind::ROLE_STATUS => Message::RoleStatus(take_role_status(r)?),
        kind::BUNDLE_CONTROL => Message::BundleControl(take_bundle_control(r)?),
        _ => return Err(Error::BadType),
    })
}

fn take_flow_mod(
    r: &mut Reader<'_>,
    version: u8,
    format: FlowFormat,
    options: &DecodeOptions,
    repeats: Option<&mut Repeats>,
) -> Result<Message, Error> {
    if version > 1 && format == FlowFormat::Standard {
        if !r.len().is_multiple_of(8) {
            return Err(Error::BadLength);
        }
        return Ok(Message::FlowMod {
            change: codec::flow::take_flow_mod(r, version, repeats)?,
            form: FlowModForm::default(),
        });
    }
    if !r.len().is_multiple_of(8) {
        return Err(Error::BadLength);
    }
    let form = FlowModForm {
        format,
        table_in_command: options.table_in_command,
    };
    let change = codec::flow::take_flow_mod10(r, form)?;
    Ok(Message::FlowMod { change, form })
}

/// Decodes a hello: elements of which only the version bitmap is known (OpenFlow 1.3.5 section
/// 7.5.1). Without a bitmap, or with an empty one, every version up to the header's is supported.
fn take_hello(r: &mut Reader<'_>, version: u8) -> Result<Hello, Error> {
    let mut versions = 0;
    // Old peers may put anything behind the header: the list ends at the first malformed element.
    while let Ok((kind, mut content)) = r.property(Error::BadLength) {
        if kind == 1 && versions == 0 {
            versions = content.u32().unwrap_or(0);
        }
    }
    r.take_rest();
    if versions == 0 {
        let highest = u32::from(version).min(30);
        versions = (2 << highest) - 2;
    }
    Ok(Hello { versions })
}

fn take_error(r: &mut Reader<'_>, version: u8) -> Result<ErrorMessage, Error> {
    let (kind, code) = (r.u16()?, r.u16()?);
    let wire = match kind {
        NICIRA_ERROR_TYPE if version <= 2 => match r.u32()? {
            NICIRA => WireError::Nicira {
                kind: r.u16()?,
                code: r.u16()?,
            },
            _ => WireError::Standard { kind, code },
        },
        EXPERIMENTER_TYPE => WireError::Experimenter {
            experimenter: r.u32()?,
            code,
        },
        _ => WireError::Standard { kind, code },
    };
    // An error in an unsupported version can only be about the hello, whose errors are the same in
    // all versions.
    let table = Version::from_wire(version).unwrap_or(Version::V1_5);
    Ok(ErrorMessage {
        kind: Error::from_wire(table, wire).map_or(ErrorKind::Other(wire), ErrorKind::Known),
        data: r.take_rest().to_vec(),
    })
}

fn take_features(r: &mut Reader<'_>, version: u8) -> Result<Features, Error> {
    let (datapath_id, buffers) = (r.u64()?, r.u32()?);
    let (tables, auxiliary) = (r.u8()?, r.u8()?);
    r.skip(2)?;
    let mut bits = r.u32()?;
    // Bit 3 is spanning tree in 1.0 and group statistics later.
    if version == 1 {
        bits = bits & !(1 << 3) | (bits >> 3 & 1) << 31;
    }
    let actions = r.u32()?;
    let mut ports = Vec::new();
    if version <= 3 {
        while !r.is_empty() {
            ports.push(codec::port::take_description(r, version)?);
        }
    }
    Ok(Features {
        datapath_id,
        buffers,
        tables,
        auxiliary: if version >= 4 { auxiliary } else { 0 },
        capabilities: Capabilities::from_bits_truncate(bits),
        actions: if version == 1 { actions } else { 0 },
        ports,
    })
}

fn take_config(r: &mut Reader<'_>, version: u8) -> Result<SwitchConfig, Error> {
    let (flags, miss_send_len) = (r.u16()?, r.u16()?);
    // 1.1 and 1.2 have a flag beside the two bits of fragment handling; in 1.0 it is an extension
    // of Open vSwitch.
    let ttl_flag = if version <= 3 { 4 } else { 0 };
    if flags & !(3 | ttl_flag) != 0 {
        return Err(Error::SwitchConfigBadFlags);
    }
    Ok(SwitchConfig {
        fragments: match flags & 3 {
            0 => Fragments::Normal,
            1 => Fragments::Drop,
            2 => Fragments::Reassemble,
            _ => Fragments::NxMatch,
        },
        invalid_ttl_to_controller: flags & ttl_flag != 0,
        miss_send_len,
    })
}

fn role(number: u32) -> Result<Role, Error> {
    Ok(match number {
        0 => Role::NoChange,
        1 => Role::Equal,
        2 => Role::Primary,
        3 => Role::Secondary,
        _ => return Err(Error::RoleBad),
    })
}

fn take_role(r: &mut Reader<'_>) -> Result<(Role, u64), Error> {
    let role = role(r.u32()?)?;
    r.skip(4)?;
    Ok((role, r.u64()?))
}

/// Decodes a role request. If it changes the role it has a generation, and any number is valid.
fn take_role_request(r: &mut Reader<'_>) -> Result<RoleMessage, Error> {
    let (role, generation) = take_role(r)?;
    Ok(RoleMessage {
        role,
        generation: (role != Role::NoChange).then_some(generation),
        nicira: false,
    })
}

/// Decodes a role reply, in which a generation of all ones means that there was no election.
fn take_role_reply(r: &mut Reader<'_>) -> Result<RoleMessage, Error> {
    let (role, generation) = take_role(r)?;
    Ok(RoleMessage {
        role,
        generation: Some(generation).filter(|generation| *generation != u64::MAX),
        nicira: false,
    })
}

/// Decodes Nicira's role, whose numbers are one less because it lacks "no change".
fn take_nicira_role(r: &mut Reader<'_>) -> Result<RoleMessage, Error> {
    let number = r.u32()?;
    Ok(RoleMessage {
        role: role(number.saturating_add(1))?,
        generation: None,
        nicira: true,
    })
}

fn take_role_status(r: &mut Reader<'_>) -> Result<RoleStatus, Error> {
    let role = role(r.u32()?)?;
    let reason = match r.u8()? {
        0 => RoleReason::PrimaryRequest,
        1 => RoleReason::Config,
        2 => RoleReason::Experimenter,
        _ => return Err(Error::BadReason),
    };
    r.skip(3)?;
    let generation = Some(r.u64()?).filter(|generation| *generation != u64::MAX);
    r.take_rest();
    Ok(RoleStatus {
        role,
        reason,
        generation,
    })
}

fn take_async(r: &mut Reader<'_>, version: u8) -> Result<Vec<AsyncChange>, Error> {
    if version >= 5 {
        take_async_properties(r)
    } else {
        take_async_table(r)
    }
}

/// Decodes the six masks of 1.3 and of Nicira's first form.
fn take_async_table(r: &mut Reader<'_>) -> Result<Vec<AsyncChange>, Error> {
    let mut changes = Vec::with_capacity(6);
    for kind in &AsyncKind::ALL[..3] {
        for secondary in [false, true] {
            changes.push(AsyncChange {
                kind: *kind,
                secondary,
                mask: r.u32()?,
            });
        }
    }
    Ok(changes)
}

/// Decodes the properties of 1.4 and of Nicira's second form.
fn take_async_properties(r: &mut Reader<'_>) -> Result<Vec<AsyncChange>, Error> {
    let mut changes = Vec::new();
    while !r.is_empty() {
        let (number, mut content) = r.property(Error::BadPropertyLength)?;
        let kind = *AsyncKind::ALL
            .get(usize::from(number / 2))
            .ok_or(Error::AsyncUnsupported)?;
        let mask = content.u32()?;
        if !content.is_empty() {
            return Err(Error::BadPropertyLength);
        }
        let known = match kind {
            AsyncKind::PacketIn | AsyncKind::FlowRemoved => 0x3f,
            AsyncKind::PortStatus | AsyncKind::RoleStatus => 0x07,
            AsyncKind::TableStatus => 0x18,
            AsyncKind::RequestForward => 0x03,
        };
        if mask & !known != 0 {
            return Err(Error::AsyncInvalid);
        }
        changes.push(AsyncChange {
            kind,
            secondary: number % 2 == 0,
            mask,
        });
    }
    Ok(changes)
}

fn take_bundle_control(r: &mut Reader<'_>) -> Result<BundleControl, Error> {
    use BundleCommand::*;
    const COMMANDS: [BundleCommand; 8] = [
        OpenRequest,
        OpenReply,
        CloseRequest,
        CloseReply,
        CommitRequest,
        CommitReply,
        DiscardRequest,
        DiscardReply,
    ];
    let bundle = r.u32()?;
    let command = COMMANDS
        .get(usize::from(r.u16()?))
        .ok_or(Error::BundleBadType)?;
    let flags = r.u16()?;
    if flags & !3 != 0 {
        return Err(Error::BundleBadFlags);
    }
    r.take_rest();
    Ok(BundleControl {
        bundle,
        command: *command,
        flags,
    })
}

/// The encoded message inside a bundle-add.
struct Envelope<'a> {
    bundle: u32,
    flags: u16,
    header: Header,
    bytes: &'a [u8],
}

fn take_envelope<'a>(r: &mut Reader<'a>, version: u8) -> Result<Envelope<'a>, Error> {
    let bundle = r.u32()?;
    r.skip(2)?;
    let flags = r.u16()?;
    if flags & !3 != 0 {
        return Err(Error::BundleBadFlags);
    }
    let rest = r.take_rest();
    let header = Header::of(rest).ok_or(Error::BundleMessageBadLength)?;
    let length = usize::from(header.length);
    if length < HEADER || length > rest.len() {
        return Err(Error::BundleMessageBadLength);
    }
    if header.version != version {
        return Err(Error::BundleBadVersion);
    }
    // Bundle messages inside a bundle are refused before they are decoded, so decoding does not
    // nest.
    let allowed = matches!(
        kind::from_wire(header.kind, version),
        Some(kind::FLOW_MOD | kind::PORT_MOD | kind::GROUP_MOD | kind::PACKET_OUT)
    );
    if !allowed {
        return Err(Error::BundleMessageUnsupported);
    }
    Ok(Envelope {
        bundle,
        flags,
        header,
        bytes: &rest[..length],
    })
}

fn take_bundle_add(
    r: &mut Reader<'_>,
    version: u8,
    options: &DecodeOptions,
) -> Result<Message, Error> {
    let envelope = take_envelope(r, version)?;
    let message = decode_body(envelope.bytes, envelope.header, options, None)?;
    Ok(Message::BundleAdd(BundleAdd {
        bundle: envelope.bundle,
        flags: envelope.flags,
        xid: envelope.header.xid,
        message: Box::new(message),
    }))
}

/// [`Message::BundleAdd`] with an unboxed message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Added {
    /// The transaction id of the outer message.
    pub outer_xid: u32,
    /// The bundle's id.
    pub bundle: u32,
    /// `OFPBF_*`.
    pub flags: u16,
    /// The transaction id of the inner message, the same as the outer one.
    pub xid: u32,
    /// The message.
    pub message: Message,
}

/// Decodes a bundle-add like [`decode`], with less work, since such messages come in large numbers.
/// None for any other message, and for a wrong one, whose error [`decode`] gives. `repeats` is the
/// state of one connection.
pub fn decode_added(bytes: &[u8], options: &DecodeOptions, repeats: &mut Repeats) -> Option<Added> {
    let header = Header::of(bytes)?;
    let mut reader = body_of(bytes, header).ok()?;
    match kind_of(header, options).ok()? {
        kind::BUNDLE_ADD => {}
        kind::EXPERIMENTER if header.version == 4 => {
            if (reader.u32().ok()?, reader.u32().ok()?) != (ONF, BUNDLE_ADD_1_3) {
                return None;
            }
        }
        _ => return None,
    }
    let envelope = take_envelope(&mut reader, header.version).ok()?;
    Some(Added {
        outer_xid: header.xid,
        bundle: envelope.bundle,
        flags: envelope.flags,
        xid: envelope.header.xid,
        message: decode_body(envelope.bytes, envelope.header, options, Some(repeats)).ok()?,
    })
}

/// Decodes a forwarded request of another controller, a group mod or a meter mod (1.4 section
/// 7.4.6, and Nicira's and ONF's extensions of earlier versions).
fn take_request_forward(r: &mut Reader<'_>, version: u8) -> Result<Message, Error> {
    let rest = r.take_rest();
    let inner = Header::of(rest).ok_or(Error::BadLength)?;
    let length = usize::from(inner.length);
    if length < HEADER || length > rest.len() || inner.version != version {
        return Err(Error::BadLength);
    }
    let allowed = match kind::from_wire(inner.kind, version) {
        Some(kind::GROUP_MOD | kind::METER_MOD) => true,
        // In 1.0 group mods are Nicira's messages. Nothing else is decoded, so decoding does not
        // nest.
        Some(kind::EXPERIMENTER) if version == 1 => {
            let mut head = Reader::new(&rest[HEADER..length], Error::BadLength);
            (head.u32()?, head.u32()?) == (NICIRA, GROUP_MOD_1_0)
        }
        _ => false,
    };
    if !allowed {
        return Err(Error::BadType);
    }
    let message = decode_body(&rest[..length], inner, &DecodeOptions::default(), None)?;
    Ok(Message::RequestForward {
        xid: inner.xid,
        message: Box::new(message),
    })
}

/// Decodes Nicira's messages (`NXT_*`), and ONF's 1.3 extensions from later versions.
fn take_experimenter(
    r: &mut Reader<'_>,
    version: u8,
    options: &DecodeOptions,
) -> Result<Message, Error> {
    match r.u32()? {
        NICIRA => take_nicira(r, version, options),
        ONF => match (r.u32()?, version) {
            (1870, 4) => Ok(Message::FlowMonitorCancel(r.u32()?)),
            (1871, 4) => Ok(Message::FlowMonitorPaused),
            (1872, 4) => Ok(Message::FlowMonitorResumed),
            (1911, 4) => Ok(Message::RoleStatus(take_role_status(r)?)),
            (2300, 4) => Ok(Message::BundleControl(take_bundle_control(r)?)),
            (BUNDLE_ADD_1_3, 4) => take_bundle_add(r, version, options),
            (2350, 4) => take_request_forward(r, version),
            _ => Err(Error::BadExperimenterType),
        },
        EXPERIMENTER => Ok(Message::Steering(steering::take(r)?)),
        _ => Err(Error::BadExperimenter),
    }
}

fn take_nicira(r: &mut Reader<'_>, version: u8, options: &DecodeOptions) -> Result<Message, Error> {
    Ok(match r.u32()? {
        10 => Message::RoleRequest(take_nicira_role(r)?),
        11 => Message::RoleReply(take_nicira_role(r)?),
        12 if version == 1 => Message::SetFlowFormat(match r.u32()? {
            0 => FlowFormat::Standard,
            2 => FlowFormat::Nicira,
            // 1 was NXFF_TUN_ID_FROM_COOKIE, which Open vSwitch has dropped.
            _ => return Err(Error::Permission),
        }),
        13 if version == 1 => take_flow_mod(r, version, FlowFormat::Nicira, options, None)?,
        14 => Message::FlowRemoved {
            removed: codec::flow::take_removed(r, version, FlowFormat::Nicira)?,
            format: FlowFormat::Nicira,
        },
        15 => {
            let set = r.u8()?;
            r.skip(7)?;
            Message::FlowModTableId(set != 0)
        }
        16 => Message::SetPacketInFormat(match r.u32()? {
            0 => PacketInFormat::Standard,
            1 => PacketInFormat::Nxt,
            2 => PacketInFormat::Nxt2,
            _ => return Err(Error::Permission),
        }),
        17 => Message::PacketIn(codec::packet::take_nxt(r)?),
        18 => Message::FlowAge,
        24 => Message::TlvTableMod(codec::tlv::take_mod(r)?),
        25 => Message::TlvTableRequest,
        26 => Message::TlvTableReply(codec::tlv::take_table(r)?),
        19 => Message::SetAsync(take_async_table(r)?),
        20 => {
            if r.take(6)?.iter().any(|byte| *byte != 0) {
                return Err(Error::MustBeZero);
            }
            Message::SetControllerId(r.u16()?)
        }
        21 if version <= 3 => Message::FlowMonitorCancel(r.u32()?),
        22 if version <= 3 => Message::FlowMonitorPaused,
        23 if version <= 3 => Message::FlowMonitorResumed,
        29 => Message::CtFlush(ct_flush::take_flush_zone(r)?),
        32 => Message::CtFlush(ct_flush::take_flush(r)?),
        27 if version <= 4 => Message::SetAsync(take_async_properties(r)?),
        28 => Message::Resume(codec::packet::take_nxt2(r)?),
        30 => Message::PacketIn(codec::packet::take_nxt2(r)?),
        GROUP_MOD_1_0 if version == 1 => {
            Message::GroupMod(codec::group::take_group_mod(r, version)?)
        }
        132 if version <= 3 => take_request_forward(r, version)?,
        _ => return Err(Error::BadExperimenterType),
    })
}

/// Returns the versions to offer in a hello: those of `allowed` that Sluice supports.
pub fn spoken(allowed: u32) -> u32 {
    allowed & ALL_VERSIONS
}

/// Returns the version on which two hellos agree: the highest in both (OpenFlow 1.3.5 section
/// 6.3.1). None if there is none.
pub fn negotiate(ours: u32, theirs: u32) -> Option<Version> {
    let common = spoken(ours) & theirs;
    Version::ALL
        .into_iter()
        .rev()
        .find(|version| common & version.bit() != 0)
}
