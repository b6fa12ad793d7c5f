//! Encoding of messages.

use crate::codec;
use crate::codec::ct_flush;
use crate::codec::decode::kind;
use crate::codec::header;
use crate::codec::multipart;
use crate::codec::wire::Put;
use crate::model::error::{EXPERIMENTER_TYPE, Error, NICIRA, NICIRA_ERROR_TYPE, ONF, WireError};
use crate::model::message::{
    AsyncChange, AsyncConfig, AsyncKind, BundleAdd, BundleControl, Capabilities, ErrorKind,
    ErrorMessage, Features, FlowFormat, Hello, Message, PacketInFormat, Role, RoleMessage,
    RoleStatus, SwitchConfig,
};
use crate::model::version::Version;

/// Encodes a message. Returns nothing if the version has no form for it, or if it would be longer
/// than a message can be. A long multipart reply becomes several messages, one after another in the
/// returned bytes.
pub fn encode(version: Version, xid: u32, message: &Message) -> Vec<u8> {
    if let Message::MultipartReply { reply, more } = message {
        return multipart::encode_multipart(version, xid, reply, *more).concat();
    }
    let mut out = Vec::with_capacity(128);
    let _ = encode_into(&mut out, version, xid, message);
    out
}

/// Appends a message other than a multipart reply to `out`. Appends nothing and returns None if the
/// version has no form for it, or if it is longer than the header's length field allows: a wrong
/// length would put the peer out of step for good.
fn encode_into(out: &mut Vec<u8>, version: Version, xid: u32, message: &Message) -> Option<()> {
    let start = out.len();
    let wire = version as u8;
    header::put(out, wire, 0, xid);
    let number =
        put_body(out, version, message).filter(|_| out.len() - start <= usize::from(u16::MAX));
    match number {
        Some(number) => {
            out[start + 1] = number;
            out.set_length(start + 2, start);
        }
        None => out.truncate(start),
    }
    number.map(|_| ())
}

/// Writes the body and returns the type's number; None if the version has none.
fn put_body(out: &mut Vec<u8>, version: Version, message: &Message) -> Option<u8> {
    let wire = version as u8;
    let standard = |number| kind::to_wire(number, wire);
    match message {
        Message::Hello(hello) => {
            put_hello(out, *hello, wire);
            standard(kind::HELLO)
        }
        Message::Error(error) => {
            put_error(out, error, version);
            standard(kind::ERROR)
        }
        Message::EchoRequest(data) => {
            out.put(data);
            standard(kind::ECHO_REQUEST)
        }
        Message::EchoReply(data) => {
            out.put(data);
            standard(kind::ECHO_REPLY)
        }
        Message::FeaturesRequest => standard(kind::FEATURES_REQUEST),
        Message::FeaturesReply(features) => {
            put_features(out, features, wire);
            standard(kind::FEATURES_REPLY)
        }
        Message::GetConfigRequest => standard(kind::GET_CONFIG_REQUEST),
        Message::GetConfigReply(config) => {
            put_config(out, config, wire);
            standard(kind::GET_CONFIG_REPLY)
        }
        Message::SetConfig(config) => {
            put_config(out, config, wire);
            standard(kind::SET_CONFIG)
        }
        Message::PortStatus(status) => {
            out.put_u8(status.reason as u8);
            out.pad(7);
            codec::port::put_description(out, &status.port, wire);
            standard(kind::PORT_STATUS)
        }
        Message::PacketOut(packet) => {
            codec::packet::put_packet_out(out, packet, wire);
            standard(kind::PACKET_OUT)
        }
        Message::PortMod(change) => {
            codec::port::put_mod(out, change, wire);
            standard(kind::PORT_MOD)
        }
        Message::GroupMod(change) => {
            if wire == 1 {
                nicira(out, 31);
            }
            codec::group::put_group_mod(out, change, wire);
            standard(kind::GROUP_MOD).or(Some(kind::EXPERIMENTER))
        }
        Message::MeterMod(change) => {
            codec::group::put_meter_mod(out, change);
            standard(kind::METER_MOD)
        }
        Message::TableMod(config) => {
            codec::table::put_config(out, config, wire);
            standard(kind::TABLE_MOD)
        }
        Message::MultipartRequest { request, more } => {
            multipart::put_request(out, request, *more, wire)
                .then(|| standard(kind::MULTIPART_REQUEST))?
        }
        Message::MultipartReply { .. } => None, // has its own writer, see `encode`
        Message::BarrierRequest => standard(kind::BARRIER_REQUEST),
        Message::BarrierReply => standard(kind::BARRIER_REPLY),
        Message::TableStatus(status) => {
            codec::table::put_status(out, status);
            standard(kind::TABLE_STATUS)
        }
        Message::GetAsyncRequest => standard(kind::GET_ASYNC_REQUEST),
        Message::GetAsyncReply(config) => {
            put_async_config(out, config, wire);
            standard(kind::GET_ASYNC_REPLY)
        }
        Message::QueueGetConfigRequest(port) => {
            codec::port::put_number(out, *port, wire);
            out.pad(if wire == 1 { 2 } else { 4 });
            standard(kind::QUEUE_GET_CONFIG_REQUEST)
        }
        Message::QueueGetConfigReply { port, queues } => {
            codec::port::put_number(out, *port, wire);
            out.pad(if wire == 1 { 6 } else { 4 });
            for queue in queues {
                codec::port::put_queue(out, queue, wire);
            }
            standard(kind::QUEUE_GET_CONFIG_REPLY)
        }
        _ => put_either(out, version, message),
    }
}

/// Writes messages that are standard or an experimenter's, depending on version or form.
fn put_either(out: &mut Vec<u8>, version: Version, message: &Message) -> Option<u8> {
    let wire = version as u8;
    let standard = |number| kind::to_wire(number, wire);
    match message {
        Message::PacketIn(packet) => {
            match packet.format {
                PacketInFormat::Standard => {
                    codec::packet::put_packet_in(out, packet, wire);
                    return standard(kind::PACKET_IN);
                }
                PacketInFormat::Nxt => {
                    nicira(out, 17);
                    codec::packet::put_nxt(out, packet, wire);
                }
                PacketInFormat::Nxt2 => {
                    nicira(out, 30);
                    codec::packet::put_nxt2(out, packet, wire);
                }
            }
            Some(kind::EXPERIMENTER)
        }
        Message::Resume(packet) => {
            nicira(out, 28);
            codec::packet::put_nxt2(out, packet, wire);
            Some(kind::EXPERIMENTER)
        }
        Message::FlowRemoved { removed, format } => {
            if *format == FlowFormat::Nicira {
                nicira(out, 14);
            }
            codec::flow::put_removed(out, removed, wire, *format);
            match format {
                FlowFormat::Nicira => Some(kind::EXPERIMENTER),
                FlowFormat::Standard => standard(kind::FLOW_REMOVED),
            }
        }
        Message::FlowMod { change, form } => {
            let is_nicira = wire == 1 && form.format == FlowFormat::Nicira;
            if is_nicira {
                nicira(out, 13);
            }
            codec::flow::put_flow_mod(out, change, *form, wire);
            if is_nicira {
                Some(kind::EXPERIMENTER)
            } else {
                standard(kind::FLOW_MOD)
            }
        }
        Message::RoleRequest(role) => put_role(out, role, wire, kind::ROLE_REQUEST, 10),
        Message::RoleReply(role) => put_role(out, role, wire, kind::ROLE_REPLY, 11),
        // ONF has it for 1.3; earlier versions lack it.
        Message::RoleStatus(status) => {
            let number = put_onf_head(out, wire, kind::ROLE_STATUS, 1911)?;
            put_role_status(out, status);
            Some(number)
        }
        Message::RequestForward { xid, message } => {
            let number = match wire {
                ..=3 => {
                    nicira(out, 132);
                    kind::EXPERIMENTER
                }
                _ => put_onf_head(out, wire, kind::REQUEST_FORWARD, 2350)?,
            };
            encode_into(out, version, *xid, message)?;
            Some(number)
        }
        Message::SetAsync(changes) => put_set_async(out, changes, wire),
        Message::SetFlowFormat(format) if wire == 1 => {
            nicira(out, 12);
            out.put_u32(match format {
                FlowFormat::Standard => 0,
                FlowFormat::Nicira => 2,
            });
            Some(kind::EXPERIMENTER)
        }
        Message::FlowModTableId(set) => {
            nicira(out, 15);
            out.put_u8((*set).into());
            out.pad(7);
            Some(kind::EXPERIMENTER)
        }
        Message::SetPacketInFormat(format) => {
            nicira(out, 16);
            out.put_u32(*format as u32);
            Some(kind::EXPERIMENTER)
        }
        Message::SetControllerId(id) => {
            nicira(out, 20);
            out.pad(6);
            out.put_u16(*id);
            Some(kind::EXPERIMENTER)
        }
        Message::TlvTableMod(change) => {
            nicira(out, 24);
            codec::tlv::put_mod(out, change);
            Some(kind::EXPERIMENTER)
        }
        Message::TlvTableRequest => {
            nicira(out, 25);
            Some(kind::EXPERIMENTER)
        }
        Message::TlvTableReply(table) => {
            nicira(out, 26);
            codec::tlv::put_table(out, table);
            Some(kind::EXPERIMENTER)
        }
        Message::FlowAge => {
            nicira(out, 18);
            Some(kind::EXPERIMENTER)
        }
        Message::FlowMonitorCancel(id) => {
            let number = monitor_message(out, wire, 0)?;
            out.put_u32(*id);
            Some(number)
        }
        Message::FlowMonitorPaused => monitor_message(out, wire, 1),
        Message::FlowMonitorResumed => monitor_message(out, wire, 2),
        Message::CtFlush(flush) => {
            nicira(out, 32);
            ct_flush::put_flush(out, flush);
            Some(kind::EXPERIMENTER)
        }
        Message::Steering(message) => {
            codec::steering::put(out, message);
            Some(kind::EXPERIMENTER)
        }
        Message::BundleControl(control) => put_bundle_control(out, control, wire),
        Message::BundleAdd(add) => put_bundle_add(out, add, version),
        _ => None,
    }
}

fn nicira(out: &mut Vec<u8>, subtype: u32) {
    out.put_u32(NICIRA);
    out.put_u32(subtype);
}

/// Writes the head of a message about flow monitors: Nicira's in 1.0 to 1.2, ONF's in 1.3; later
/// versions have none.
fn monitor_message(out: &mut Vec<u8>, version: u8, offset: u32) -> Option<u8> {
    match version {
        ..=3 => nicira(out, 21 + offset),
        4 => {
            out.put_u32(ONF);
            out.put_u32(1870 + offset);
        }
        _ => return None,
    }
    Some(kind::EXPERIMENTER)
}

/// Writes a hello. The bitmap is left out if the header alone says the same (every version up to
/// its own), which also peers without support for bitmaps understand.
fn put_hello(out: &mut Vec<u8>, hello: Hello, version: u8) {
    if hello.versions == (2 << version) - 2 {
        return;
    }
    out.put_u16(1);
    out.put_u16(8);
    out.put_u32(hello.versions);
}

fn put_error(out: &mut Vec<u8>, error: &ErrorMessage, version: Version) {
    let wire = match error.kind {
        ErrorKind::Known(error) => error.wire(version),
        ErrorKind::Other(wire) => wire,
    };
    match wire {
        WireError::Standard { kind, code } => {
            out.put_u16(kind);
            out.put_u16(code);
        }
        WireError::Nicira { kind, code } => {
            out.put_u16(NICIRA_ERROR_TYPE);
            out.put_u16(0);
            out.put_u32(NICIRA);
            out.put_u16(kind);
            out.put_u16(code);
        }
        WireError::Experimenter { experimenter, code } => {
            out.put_u16(EXPERIMENTER_TYPE);
            out.put_u16(code);
            out.put_u32(experimenter);
        }
    }
    out.put(&error.data);
}

/// Encodes the answer to a message that could not be decoded or carried out: an error in the
/// message's own version and transaction id, with its beginning quoted. If its version is not
/// supported, the answer's version is `fallback`.
pub fn encode_error(fallback: Version, request: &[u8], error: Error) -> Vec<u8> {
    let header = header::Header::of(request);
    let version = header
        .and_then(|header| Version::from_wire(header.version))
        .unwrap_or(fallback);
    let xid = header.map_or(0, |header| header.xid);
    encode(version, xid, &Message::Error(error.about(request)))
}

fn put_features(out: &mut Vec<u8>, features: &Features, version: u8) {
    out.put_u64(features.datapath_id);
    out.put_u32(features.buffers);
    out.put_u8(features.tables);
    out.put_u8(if version >= 4 { features.auxiliary } else { 0 });
    out.pad(2);
    out.put_u32(capabilities(features.capabilities, version));
    out.put_u32(if version == 1 { features.actions } else { 0 });
    if version <= 3 {
        // As in Open vSwitch, as many as one message holds; 1.1 and later have a request for all.
        for port in &features.ports {
            let before = out.len();
            codec::port::put_description(out, port, version);
            if out.len() > usize::from(u16::MAX) {
                out.truncate(before);
                break;
            }
        }
    }
}

/// Returns the capability bits that a version has.
fn capabilities(capabilities: Capabilities, version: u8) -> u32 {
    let known = match version {
        1 => 0x0e7 & !(1 << 3),
        2 => 0x0ef,
        3 | 4 => 0x16f,
        _ => 0x76f,
    };
    let tree = version == 1 && capabilities.contains(Capabilities::STP);
    capabilities.bits() & known | u32::from(tree) << 3
}

fn put_config(out: &mut Vec<u8>, config: &SwitchConfig, version: u8) {
    let mut flags = config.fragments as u16;
    if version <= 3 && config.invalid_ttl_to_controller {
        flags |= 4;
    }
    out.put_u16(flags);
    out.put_u16(config.miss_send_len);
}

fn put_role(
    out: &mut Vec<u8>,
    role: &RoleMessage,
    version: u8,
    number: u8,
    subtype: u32,
) -> Option<u8> {
    if role.nicira || version < 3 {
        // Nicira's roles are one less, because it lacks "no change".
        if role.role == Role::NoChange {
            return None;
        }
        nicira(out, subtype);
        out.put_u32(role.role as u32 - 1);
        return Some(kind::EXPERIMENTER);
    }
    out.put_u32(role.role as u32);
    out.pad(4);
    out.put_u64(role.generation.unwrap_or(u64::MAX));
    kind::to_wire(number, version)
}

fn put_role_status(out: &mut Vec<u8>, status: &RoleStatus) {
    out.put_u32(status.role as u32);
    out.put_u8(status.reason as u8);
    out.pad(3);
    out.put_u64(status.generation.unwrap_or(u64::MAX));
}

fn put_async_config(out: &mut Vec<u8>, config: &AsyncConfig, version: u8) {
    if version < 5 {
        for masks in &config.masks[..3] {
            masks.iter().for_each(|mask| out.put_u32(*mask));
        }
        return;
    }
    for kind in AsyncKind::ALL {
        for secondary in [true, false] {
            let mask = config.masks[kind as usize][usize::from(secondary)];
            put_async_property(
                out,
                &AsyncChange {
                    kind,
                    secondary,
                    mask,
                },
            );
        }
    }
}

fn put_async_property(out: &mut Vec<u8>, change: &AsyncChange) {
    out.put_u16(change.kind as u16 * 2 + u16::from(!change.secondary));
    out.put_u16(8);
    out.put_u32(change.mask);
}

/// Writes the masks: 1.3's message and Nicira's first form set all six at once; other sets of masks
/// are sent as properties.
fn put_set_async(out: &mut Vec<u8>, changes: &[AsyncChange], version: u8) -> Option<u8> {
    let complete = changes.len() == 6
        && changes.iter().enumerate().all(|(index, change)| {
            change.kind as usize == index / 2 && usize::from(change.secondary) == index % 2
        });
    if version >= 5 {
        changes
            .iter()
            .for_each(|change| put_async_property(out, change));
        return Some(kind::SET_ASYNC);
    }
    if !complete {
        nicira(out, 27);
        changes
            .iter()
            .for_each(|change| put_async_property(out, change));
        return Some(kind::EXPERIMENTER);
    }
    if version < 4 {
        nicira(out, 19);
    }
    changes.iter().for_each(|change| out.put_u32(change.mask));
    Some(if version < 4 {
        kind::EXPERIMENTER
    } else {
        kind::SET_ASYNC
    })
}

/// Writes the head of a message that came with 1.4 and that ONF has for 1.3; returns its type's
/// number.
fn put_onf_head(out: &mut Vec<u8>, version: u8, number: u8, onf: u32) -> Option<u8> {
    match version {
        4 => {
            out.put_u32(ONF);
            out.put_u32(onf);
            Some(kind::EXPERIMENTER)
        }
        _ => kind::to_wire(number, version),
    }
}

fn put_bundle_control(out: &mut Vec<u8>, control: &BundleControl, version: u8) -> Option<u8> {
    let number = put_onf_head(out, version, kind::BUNDLE_CONTROL, 2300)?;
    out.put_u32(control.bundle);
    out.put_u16(control.command as u16);
    out.put_u16(control.flags);
    Some(number)
}

fn put_bundle_add(out: &mut Vec<u8>, add: &BundleAdd, version: Version) -> Option<u8> {
    let number = put_onf_head(out, version as u8, kind::BUNDLE_ADD, 2301)?;
    out.put_u32(add.bundle);
    out.pad(2);
    out.put_u16(add.flags);
    encode_into(out, version, add.xid, &add.message)?;
    Some(number)
}
