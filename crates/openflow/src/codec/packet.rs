//! Packet-ins and packet-outs: decoding and encoding.

use crate::codec::action_decode::take_actions;
use crate::codec::action_encode::{Context, property, put_actions};
use crate::codec::oxm::{self, Strictness};
use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::message::{NO_BUFFER, PacketIn, PacketInFormat, PacketInReason, PacketOut};
use crate::model::port;
use packet::fields::FIELDS;
use packet::key::{WORDS, at};
use packet::{Field, FlowKey, Match};
use std::sync::LazyLock;

fn reason(number: u8) -> Result<PacketInReason, Error> {
    Ok(match number {
        0 => PacketInReason::NoMatch,
        1 => PacketInReason::Action,
        2 => PacketInReason::InvalidTtl,
        3 => PacketInReason::ActionSet,
        4 => PacketInReason::Group,
        5 => PacketInReason::PacketOut,
        _ => return Err(Error::BadReason),
    })
}

/// Returns the reason's number in a version. Before 1.4, packets sent by an action set, a group or
/// a packet-out have the reason "action".
fn reason_number(reason: PacketInReason, version: u8) -> u8 {
    if version < 5 && reason as u8 > PacketInReason::InvalidTtl as u8 {
        PacketInReason::Action as u8
    } else {
        reason as u8
    }
}

fn in_port(matching: &Match) -> u32 {
    matching.get(Field::InPortOxm).0.to_u64() as u32
}

/// Decodes a standard packet-in.
pub(crate) fn take_packet_in(r: &mut Reader<'_>, version: u8) -> Result<PacketIn, Error> {
    let mut packet = PacketIn {
        format: PacketInFormat::Standard,
        buffer_id: r.u32()?,
        total_len: 0,
        reason: PacketInReason::NoMatch,
        table: 0,
        cookie: u64::MAX,
        matching: Match::any(),
        data: Vec::new(),
        userdata: Vec::new(),
        continuation: Vec::new(),
    };
    match version {
        1 => {
            packet.total_len = r.u16()?.into();
            let number = port::from_u16(r.u16()?);
            packet.matching.set_exact(Field::InPortOxm, number.into());
            packet.reason = reason(r.u8()?)?;
            r.skip(1)?;
        }
        2 => {
            let number = r.u32()?;
            packet.matching.set_exact(Field::InPortOxm, number.into());
            r.skip(4)?;
            packet.total_len = r.u16()?.into();
            packet.reason = reason(r.u8()?)?;
            packet.table = r.u8()?;
        }
        _ => {
            packet.total_len = r.u16()?.into();
            packet.reason = reason(r.u8()?)?;
            packet.table = r.u8()?;
            if version >= 4 {
                packet.cookie = r.u64()?;
            }
            packet.matching = oxm::take_match(r, Strictness::Packet)?;
            r.skip(2)?;
        }
    }
    packet.data = r.take_rest().to_vec();
    Ok(packet)
}

/// Encodes a standard packet-in.
pub(crate) fn put_packet_in(out: &mut Vec<u8>, packet: &PacketIn, version: u8) {
    let (total_len, reason) = (
        packet.total_len.min(0xffff) as u16,
        reason_number(packet.reason, version),
    );
    out.put_u32(packet.buffer_id);
    match version {
        1 => {
            out.put_u16(total_len);
            out.put_u16(in_port(&packet.matching) as u16);
            out.put_u8(reason);
            out.pad(1);
        }
        2 => {
            out.put_u32(in_port(&packet.matching));
            out.put_u32(in_port(&packet.matching));
            out.put_u16(total_len);
            out.put_u8(reason);
            out.put_u8(packet.table);
        }
        _ => {
            out.put_u16(total_len);
            out.put_u8(reason);
            out.put_u8(packet.table);
            if version >= 4 {
                out.put_u64(packet.cookie);
            }
            oxm::put_match(out, &packet.matching, version);
            out.pad(2);
        }
    }
    out.put(&packet.data);
}

/// Decodes `NXT_PACKET_IN`.
pub(crate) fn take_nxt(r: &mut Reader<'_>) -> Result<PacketIn, Error> {
    let (buffer_id, total_len) = (r.u32()?, r.u16()?.into());
    let reason = reason(r.u8()?)?;
    let (table, cookie, length) = (r.u8()?, r.u64()?, r.u16()?);
    r.skip(6)?;
    let matching = oxm::take_nxm(r, length, Strictness::Packet, false)?.matching;
    r.skip(2)?;
    Ok(PacketIn {
        format: PacketInFormat::Nxt,
        buffer_id,
        total_len,
        reason,
        table,
        cookie,
        matching,
        data: r.take_rest().to_vec(),
        userdata: Vec::new(),
        continuation: Vec::new(),
    })
}

/// Encodes `NXT_PACKET_IN`.
pub(crate) fn put_nxt(out: &mut Vec<u8>, packet: &PacketIn, version: u8) {
    out.put_u32(packet.buffer_id);
    out.put_u16(packet.total_len.min(0xffff) as u16);
    out.put_u8(reason_number(packet.reason, version));
    out.put_u8(packet.table);
    out.put_u64(packet.cookie);
    let at = out.len();
    out.pad(8);
    let length = oxm::put_nxm(out, &packet.matching, (0, 0));
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
    out.pad(2);
    out.put(&packet.data);
}

/// Properties of `NXT_PACKET_IN2` (`NXPINT_*`).
mod nxt2 {
    pub const PACKET: u16 = 0;
    pub const FULL_LEN: u16 = 1;
    pub const BUFFER_ID: u16 = 2;
    pub const TABLE_ID: u16 = 3;
    pub const COOKIE: u16 = 4;
    pub const REASON: u16 = 5;
    pub const METADATA: u16 = 6;
    pub const USERDATA: u16 = 7;
    pub const CONTINUATION: u16 = 8;
}

/// Decodes `NXT_PACKET_IN2`.
pub(crate) fn take_nxt2(r: &mut Reader<'_>) -> Result<PacketIn, Error> {
    let mut packet = PacketIn {
        format: PacketInFormat::Nxt2,
        buffer_id: NO_BUFFER,
        total_len: 0,
        reason: PacketInReason::NoMatch,
        table: 0,
        cookie: u64::MAX,
        matching: Match::any(),
        data: Vec::new(),
        userdata: Vec::new(),
        continuation: Vec::new(),
    };
    while !r.is_empty() {
        let (kind, mut content) = r.property(Error::BadPropertyLength)?;
        match kind {
            nxt2::PACKET => packet.data = content.take_rest().to_vec(),
            nxt2::FULL_LEN => packet.total_len = content.u32()?,
            nxt2::BUFFER_ID => packet.buffer_id = content.u32()?,
            nxt2::TABLE_ID => packet.table = content.u8()?,
            nxt2::COOKIE => {
                content.skip(4)?;
                packet.cookie = content.u64()?;
            }
            nxt2::REASON => packet.reason = reason(content.u8()?)?,
            nxt2::METADATA => {
                let fields = content.take_rest();
                packet.matching = oxm::read_fields(fields, Strictness::Packet, false)?.matching;
            }
            nxt2::USERDATA => packet.userdata = content.take_rest().to_vec(),
            nxt2::CONTINUATION => {
                content.skip(4)?;
                packet.continuation = content.take_rest().to_vec();
            }
            _ => {}
        }
    }
    if packet.total_len == 0 {
        packet.total_len = packet.data.len() as u32;
    }
    Ok(packet)
}

/// Encodes `NXT_PACKET_IN2`.
pub(crate) fn put_nxt2(out: &mut Vec<u8>, packet: &PacketIn, version: u8) {
    property(out, nxt2::PACKET, |out| out.put(&packet.data));
    if packet.total_len as usize != packet.data.len() {
        property(out, nxt2::FULL_LEN, |out| out.put_u32(packet.total_len));
    }
    if packet.buffer_id != NO_BUFFER {
        property(out, nxt2::BUFFER_ID, |out| out.put_u32(packet.buffer_id));
    }
    property(out, nxt2::TABLE_ID, |out| out.put_u8(packet.table));
    if packet.cookie != u64::MAX {
        property(out, nxt2::COOKIE, |out| {
            out.pad(4);
            out.put_u64(packet.cookie);
        });
    }
    property(out, nxt2::REASON, |out| {
        out.put_u8(reason_number(packet.reason, version));
    });
    property(out, nxt2::METADATA, |out| {
        oxm::put_fields(out, &packet.matching, version);
    });
    if !packet.userdata.is_empty() {
        property(out, nxt2::USERDATA, |out| out.put(&packet.userdata));
    }
    if !packet.continuation.is_empty() {
        // Nested properties begin at a multiple of eight bytes.
        property(out, nxt2::CONTINUATION, |out| {
            out.pad(4);
            out.put(&packet.continuation);
        });
    }
}

/// Decodes a packet-out.
pub(crate) fn take_packet_out(r: &mut Reader<'_>, version: u8) -> Result<PacketOut, Error> {
    let buffer_id = r.u32()?;
    let (in_port, actions_length, matching) = match version {
        1 => {
            let number = port::from_u16(r.u16()?);
            (number, r.u16()?, in_port_only(number))
        }
        2..=5 => {
            let number = r.u32()?;
            let length = r.u16()?;
            r.skip(6)?;
            (number, length, in_port_only(number))
        }
        _ => {
            let length = r.u16()?;
            r.skip(2)?;
            let matching = oxm::take_match(r, Strictness::Rule)?;
            if !says_pipeline_fields_only(&matching) {
                return Err(Error::PipelineFieldsOnly);
            }
            if matching.get(Field::InPortOxm).1.is_zero() {
                return Err(Error::BadRequestPort);
            }
            (in_port(&matching), length, matching)
        }
    };
    // OpenFlow 1.3.5 section 7.3.7: the port is a standard one, the controller or local; as in 1.0,
    // ANY means none.
    let usable =
        in_port < port::MAX || [port::LOCAL, port::CONTROLLER, port::ANY].contains(&in_port);
    if !usable {
        return Err(Error::BadRequestPort);
    }
    let list = r.part(actions_length.into(), Error::BadActionLength)?;
    let list = take_actions(list, version)?;
    if list.write_metadata.is_some() {
        return Err(Error::BadActionType);
    }
    Ok(PacketOut {
        buffer_id,
        in_port,
        matching,
        actions: list.actions,
        data: r.take_rest().to_vec(),
    })
}

/// Bits of the key that a packet-out may set for its packet in addition to the packet's own
/// headers: ingress port, packet type, metadata, registers, and tunnel except for the tunnel's ToS
/// and TTL (the fields that Open vSwitch accepts).
static PIPELINE_BITS: LazyLock<[u64; WORDS]> = LazyLock::new(|| {
    let mut bits = FlowKey::ZERO;
    for def in FIELDS {
        let is_taken = match def.field {
            Field::InPort | Field::InPortOxm | Field::PacketType | Field::Metadata => true,
            Field::TunTos | Field::TunTtl => false,
            _ => ["reg", "xreg", "xxreg", "tun_"]
                .iter()
                .any(|start| def.name.starts_with(start)),
        };
        if is_taken && def.field.tunnel_option().is_none() {
            let place = def.place();
            let bytes = &mut bits.bytes_mut()[def.offset..def.offset + def.bytes];
            bytes
                .iter_mut()
                .zip(place.iter())
                .for_each(|(byte, place)| *byte |= place);
        }
    }
    // Tunnel options, wherever a bridge's map places them.
    bits.words[at::TUN_METADATA_PRESENT / 8..].fill(u64::MAX);
    bits.words
});

/// Returns whether a match has only bits of [`PIPELINE_BITS`].
fn says_pipeline_fields_only(matching: &Match) -> bool {
    let mut words = matching.words().iter();
    words.all(|word| word.mask & !PIPELINE_BITS[usize::from(word.word)] == 0)
}

fn in_port_only(number: u32) -> Match {
    let mut matching = Match::any();
    matching.set_exact(Field::InPortOxm, number.into());
    matching
}

/// Encodes a packet-out.
pub(crate) fn put_packet_out(out: &mut Vec<u8>, packet: &PacketOut, version: u8) {
    out.put_u32(packet.buffer_id);
    if version == 1 {
        out.put_u16(packet.in_port as u16);
    } else if version < 6 {
        out.put_u32(packet.in_port);
    }
    let at = out.len();
    out.put_u16(0);
    match version {
        1 => {}
        2..=5 => out.pad(6),
        _ => {
            out.pad(2);
            oxm::put_match(out, &packet.matching, version);
        }
    }
    let start = out.len();
    put_actions(out, &packet.actions, version, Context::default());
    out.set_length(at, start);
    out.put(&packet.data);
}
