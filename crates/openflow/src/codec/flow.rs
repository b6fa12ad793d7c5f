//! Flow mods, flow statistics and flow-removed messages: decoding and encoding.

use crate::codec::action_encode::Context;
use crate::codec::instruction::{put_instructions, take_instructions};
use crate::codec::match10;
use crate::codec::match11;
use crate::codec::oxm;
use crate::codec::oxm::Strictness;
use crate::codec::oxs;
use crate::codec::repeats::Repeats;
use crate::codec::wire::{Put, Reader};
use crate::model::check::check_instructions;
use crate::model::error::Error;
use crate::model::flow::{
    FlowFlags, FlowMod, FlowModCommand, FlowRemoved, FlowRemovedReason, FlowStats,
    FlowStatsRequest, Instructions, TABLE_ALL,
};
use crate::model::group;
use crate::model::message::{FlowFormat, FlowModForm};
use crate::model::port;
use packet::Match;

const SEND_FLOW_REM: u16 = 1 << 0;
const CHECK_OVERLAP: u16 = 1 << 1;
/// `OFPFF_EMERG` of 1.0; `OFPFF_RESET_COUNTS` from 1.2 on.
const EMERGENCY_OR_RESET: u16 = 1 << 2;
const NO_PACKET_COUNTS: u16 = 1 << 3;
const NO_BYTE_COUNTS: u16 = 1 << 4;

fn command(number: u16) -> Result<FlowModCommand, Error> {
    Ok(match number {
        0 => FlowModCommand::Add,
        1 => FlowModCommand::Modify,
        2 => FlowModCommand::ModifyStrict,
        3 => FlowModCommand::Delete,
        4 => FlowModCommand::DeleteStrict,
        _ => return Err(Error::BadCommand),
    })
}

fn is_delete(command: FlowModCommand) -> bool {
    matches!(
        command,
        FlowModCommand::Delete | FlowModCommand::DeleteStrict
    )
}

/// Decodes the flags of a flow mod or a rule, without 1.0's rule that an add restarts counters.
fn flags(raw: u16, version: u8) -> Result<FlowFlags, Error> {
    let known = match version {
        1 | 2 => SEND_FLOW_REM | CHECK_OVERLAP,
        3 => SEND_FLOW_REM | CHECK_OVERLAP | EMERGENCY_OR_RESET,
        _ => 0x1f,
    };
    if raw & !known != 0 {
        return Err(Error::BadFlags);
    }
    Ok(FlowFlags {
        send_flow_rem: raw & SEND_FLOW_REM != 0,
        check_overlap: raw & CHECK_OVERLAP != 0,
        reset_counts: raw & EMERGENCY_OR_RESET != 0,
        no_packet_counts: raw & NO_PACKET_COUNTS != 0,
        no_byte_counts: raw & NO_BYTE_COUNTS != 0,
    })
}

fn raw_flags(flags: FlowFlags, version: u8) -> u16 {
    let bit = |set: bool, since, bit| if set && version >= since { bit } else { 0 };
    bit(flags.send_flow_rem, 1, SEND_FLOW_REM)
        | bit(flags.check_overlap, 1, CHECK_OVERLAP)
        | bit(flags.reset_counts, 3, EMERGENCY_OR_RESET)
        | bit(flags.no_packet_counts, 4, NO_PACKET_COUNTS)
        | bit(flags.no_byte_counts, 4, NO_BYTE_COUNTS)
}

/// Decodes a flow mod of 1.1 and later.
pub(crate) fn take_flow_mod(
    r: &mut Reader<'_>,
    version: u8,
    repeats: Option<&mut Repeats>,
) -> Result<FlowMod, Error> {
    let (cookie, cookie_mask) = (r.u64()?, r.u64()?);
    let (table, command_byte) = (r.u8()?, r.u8()?);
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let (buffer_id, out_port, out_group) = (r.u32()?, r.u32()?, r.u32()?);
    let (flag_bits, importance) = (r.u16()?, r.u16()?);
    let mut repeats = repeats;
    let matching = match &mut repeats {
        Some(repeats) => repeats.take_match(r)?,
        None => oxm::take_match(r, Strictness::Rule)?,
    };
    let command = command(command_byte.into())?;
    let (adds, deletes) = (command == FlowModCommand::Add, is_delete(command));
    // In 1.1, a modify without a cookie filter that finds no rule adds one, with its cookie.
    let modify_adds = version == 2 && !adds && !deletes && cookie_mask == 0;
    let sets_cookie = adds || modify_adds;
    if table == TABLE_ALL && (version == 2 || !deletes) {
        return Err(Error::BadTableId);
    }
    port::to_u16(out_port).ok_or(Error::BadOutPort)?;
    let bytes = r.take_rest();
    let repeated = repeats
        .as_deref()
        .and_then(|repeats| repeats.instructions(bytes, version));
    let settled =
        repeated.is_some() && repeats.as_deref().is_some_and(|repeats| repeats.fit(table));
    let instructions = match repeated {
        Some(same) => same,
        None => take_instructions(Reader::new(bytes, Error::BadInstructionLength), version)?.into(),
    };
    let mut flags = flags(flag_bits, version)?;
    flags.reset_counts |= version == 2 && adds;
    if !settled {
        check_instructions(&instructions, &matching, table, version)?;
        if let Some(repeats) = repeats {
            repeats.note(bytes, version, table, &instructions);
        }
    }
    Ok(FlowMod {
        command,
        table,
        matching,
        priority,
        cookie: if sets_cookie { cookie } else { 0 },
        cookie_filter: if sets_cookie { 0 } else { cookie },
        cookie_mask: if sets_cookie { 0 } else { cookie_mask },
        modify_cookie: false,
        modify_adds,
        idle_timeout,
        hard_timeout,
        importance: if version >= 5 && adds { importance } else { 0 },
        flags,
        out_port: if deletes { out_port } else { port::ANY },
        out_group: if deletes { out_group } else { group::ANY },
        buffer_id,
        instructions,
    })
}

/// Decodes a flow mod of 1.0, in the standard form or Nicira's.
pub(crate) fn take_flow_mod10(r: &mut Reader<'_>, form: FlowModForm) -> Result<FlowMod, Error> {
    let standard = match form.format {
        FlowFormat::Standard => Some(match10::take_match(r)?),
        FlowFormat::Nicira => None,
    };
    let (cookie, command_word) = (r.u64()?, r.u16()?);
    let (idle_timeout, hard_timeout, mut priority) = (r.u16()?, r.u16()?, r.u16()?);
    let (buffer_id, out_port, flag_bits) = (r.u32()?, r.u16()?, r.u16()?);
    let (matching, (cookie_filter, cookie_mask)) = match standard {
        Some(standard) => {
            if standard.exact {
                priority = u16::MAX;
            }
            (standard.matching, (0, 0))
        }
        None => {
            let length = r.u16()?;
            r.skip(6)?;
            let fields = oxm::take_nxm(r, length, Strictness::Rule, true)?;
            (fields.matching, fields.cookie)
        }
    };
    let (table, command_number) = if form.table_in_command {
        ((command_word >> 8) as u8, command_word & 0xff)
    } else {
        (TABLE_ALL, command_word)
    };
    let command = command(command_number)?;
    let adds = command == FlowModCommand::Add;
    if adds && cookie_mask != 0 {
        return Err(Error::NxmInvalid);
    }
    let table = if adds && table == TABLE_ALL { 0 } else { table };
    let instructions: Instructions =
        take_instructions(Reader::new(r.take_rest(), Error::BadLength), 1)?.into();
    let flags = flags10(flag_bits, adds, idle_timeout != 0 || hard_timeout != 0)?;
    check_instructions(&instructions, &matching, table, 1)?;
    let modify_cookie = cookie != u64::MAX;
    let modifies = !adds && !is_delete(command);
    Ok(FlowMod {
        command,
        table,
        matching,
        priority,
        cookie,
        cookie_filter,
        cookie_mask,
        modify_cookie,
        modify_adds: modifies && modify_cookie && cookie_mask == 0,
        idle_timeout,
        hard_timeout,
        importance: 0,
        flags,
        out_port: if is_delete(command) {
            port::from_u16(out_port)
        } else {
            port::ANY
        },
        out_group: group::ANY,
        buffer_id,
        instructions,
    })
}

/// Decodes the flags of 1.0. As in Open vSwitch there are no emergency rules; the errors are those
/// that section 5.4.4 leaves for this.
fn flags10(raw: u16, adds: bool, times_out: bool) -> Result<FlowFlags, Error> {
    let mut flags = flags(raw & !EMERGENCY_OR_RESET, 1)?;
    if raw & EMERGENCY_OR_RESET != 0 {
        return Err(if times_out {
            Error::BadEmergencyTimeout
        } else {
            Error::TableFull
        });
    }
    flags.reset_counts = adds;
    Ok(flags)
}

/// Encodes the body of a flow mod.
pub(crate) fn put_flow_mod(out: &mut Vec<u8>, change: &FlowMod, form: FlowModForm, version: u8) {
    if version == 1 {
        put_flow_mod10(out, change, form);
        return;
    }
    let sets_cookie = change.command == FlowModCommand::Add || change.modify_adds;
    out.put_u64(if sets_cookie {
        change.cookie
    } else {
        change.cookie_filter
    });
    out.put_u64(change.cookie_mask);
    out.put_u8(change.table);
    out.put_u8(change.command as u8);
    out.put_u16(change.idle_timeout);
    out.put_u16(change.hard_timeout);
    out.put_u16(change.priority);
    out.put_u32(change.buffer_id);
    out.put_u32(change.out_port);
    out.put_u32(change.out_group);
    out.put_u16(raw_flags(change.flags, version));
    out.put_u16(if version >= 5 { change.importance } else { 0 });
    put_match(out, &change.matching, version);
    let context = Context::of(&change.matching);
    put_instructions(out, &change.instructions, version, context);
}

fn put_flow_mod10(out: &mut Vec<u8>, change: &FlowMod, form: FlowModForm) {
    if form.format == FlowFormat::Standard {
        match10::put_match(out, &change.matching);
    }
    out.put_u64(change.cookie);
    let table = if form.table_in_command {
        u16::from(change.table) << 8
    } else {
        0
    };
    out.put_u16(table | change.command as u16);
    out.put_u16(change.idle_timeout);
    out.put_u16(change.hard_timeout);
    out.put_u16(change.priority);
    out.put_u32(change.buffer_id);
    out.put_u16(change.out_port as u16);
    out.put_u16(raw_flags(change.flags, 1));
    if form.format == FlowFormat::Nicira {
        let at = out.len();
        out.put_u16(0);
        out.pad(6);
        let cookie = (change.cookie_filter, change.cookie_mask);
        let length = oxm::put_nxm(out, &change.matching, cookie);
        out[at..at + 2].copy_from_slice(&length.to_be_bytes());
    }
    let context = Context::of(&change.matching);
    put_instructions(out, &change.instructions, 1, context);
}

/// Encodes a match in the form of 1.1 and later.
pub(crate) fn put_match(out: &mut Vec<u8>, matching: &Match, version: u8) {
    if version == 2 {
        match11::put_match(out, matching);
    } else {
        oxm::put_match(out, matching, version);
    }
}

/// Decodes a flow or aggregate statistics request.
pub(crate) fn take_stats_request(
    r: &mut Reader<'_>,
    version: u8,
    format: FlowFormat,
) -> Result<FlowStatsRequest, Error> {
    if version > 1 {
        let table = r.u8()?;
        r.skip(3)?;
        let (out_port, out_group) = (r.u32()?, r.u32()?);
        r.skip(4)?;
        let (cookie, cookie_mask) = (r.u64()?, r.u64()?);
        port::to_u16(out_port).ok_or(Error::BadOutPort)?;
        return Ok(FlowStatsRequest {
            table,
            matching: oxm::take_match(r, Strictness::Rule)?,
            cookie,
            cookie_mask,
            out_port,
            out_group,
        });
    }
    let (matching, cookie, table, out_port) = match format {
        FlowFormat::Standard => {
            let matching = match10::take_match(r)?.matching;
            let table = r.u8()?;
            r.skip(1)?;
            (matching, (0, 0), table, r.u16()?)
        }
        FlowFormat::Nicira => {
            let (out_port, length, table) = (r.u16()?, r.u16()?, r.u8()?);
            r.skip(3)?;
            let fields = oxm::take_nxm(r, length, Strictness::Rule, true)?;
            (fields.matching, fields.cookie, table, out_port)
        }
    };
    Ok(FlowStatsRequest {
        table,
        matching,
        cookie: cookie.0,
        cookie_mask: cookie.1,
        out_port: port::from_u16(out_port),
        out_group: group::ANY,
    })
}

/// Encodes a flow or aggregate statistics request.
pub(crate) fn put_stats_request(
    out: &mut Vec<u8>,
    request: &FlowStatsRequest,
    version: u8,
    format: FlowFormat,
) {
    match (version, format) {
        (1, FlowFormat::Standard) => {
            match10::put_match(out, &request.matching);
            out.put_u8(request.table);
            out.pad(1);
            out.put_u16(request.out_port as u16);
        }
        (1, FlowFormat::Nicira) => {
            out.put_u16(request.out_port as u16);
            let at = out.len();
            out.put_u16(0);
            out.put_u8(request.table);
            out.pad(3);
            let cookie = (request.cookie, request.cookie_mask);
            let length = oxm::put_nxm(out, &request.matching, cookie);
            out[at..at + 2].copy_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.put_u8(request.table);
            out.pad(3);
            out.put_u32(request.out_port);
            out.put_u32(request.out_group);
            out.pad(4);
            out.put_u64(request.cookie);
            out.put_u64(request.cookie_mask);
            put_match(out, &request.matching, version);
        }
    }
}

/// Returns empty statistics.
fn empty_stats() -> FlowStats {
    FlowStats {
        table: 0,
        matching: Match::any(),
        priority: 0,
        cookie: 0,
        duration_ns: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        idle_age: 0,
        hard_age: 0,
        flags: FlowFlags::default(),
        importance: 0,
        packets: 0,
        bytes: 0,
        instructions: [].into(),
    }
}

/// Decodes one rule of a statistics reply.
pub(crate) fn take_stats(
    reader: &mut Reader<'_>,
    version: u8,
    format: FlowFormat,
) -> Result<FlowStats, Error> {
    let length = usize::from(reader.u16()?);
    if length < 2 {
        return Err(Error::BadLength);
    }
    let mut part = reader.part(length - 2, Error::BadLength)?;
    let r = &mut part;
    let mut stats = empty_stats();
    match (version, format) {
        (1, FlowFormat::Standard) => take_stats10(r, &mut stats)?,
        (1, FlowFormat::Nicira) => take_stats_nicira(r, &mut stats)?,
        (6, _) => take_stats15(r, &mut stats)?,
        _ => take_stats11(r, &mut stats, version)?,
    }
    let rest = Reader::new(r.take_rest(), Error::BadInstructionLength);
    stats.instructions = take_instructions(rest, version)?.into();
    Ok(stats)
}

fn take_stats10(r: &mut Reader<'_>, stats: &mut FlowStats) -> Result<(), Error> {
    stats.table = r.u8()?;
    r.skip(1)?;
    stats.matching = match10::take_match(r)?.matching;
    stats.duration_ns = r.duration()?;
    stats.priority = r.u16()?;
    stats.idle_timeout = r.u16()?;
    stats.hard_timeout = r.u16()?;
    r.skip(6)?;
    take_counters(r, stats)
}

fn take_counters(r: &mut Reader<'_>, stats: &mut FlowStats) -> Result<(), Error> {
    stats.cookie = r.u64()?;
    stats.packets = r.u64()?;
    stats.bytes = r.u64()?;
    Ok(())
}

fn take_stats_nicira(r: &mut Reader<'_>, stats: &mut FlowStats) -> Result<(), Error> {
    stats.table = r.u8()?;
    r.skip(1)?;
    stats.duration_ns = r.duration()?;
    stats.priority = r.u16()?;
    stats.idle_timeout = r.u16()?;
    stats.hard_timeout = r.u16()?;
    let length = r.u16()?;
    stats.idle_age = u32::from(r.u16()?).saturating_sub(1);
    stats.hard_age = u32::from(r.u16()?).saturating_sub(1);
    take_counters(r, stats)?;
    stats.matching = oxm::take_nxm(r, length, Strictness::Rule, false)?.matching;
    Ok(())
}

fn take_stats11(r: &mut Reader<'_>, stats: &mut FlowStats, version: u8) -> Result<(), Error> {
    stats.table = r.u8()?;
    r.skip(1)?;
    stats.duration_ns = r.duration()?;
    stats.priority = r.u16()?;
    stats.idle_timeout = r.u16()?;
    stats.hard_timeout = r.u16()?;
    let (flag_bits, importance) = (r.u16()?, r.u16()?);
    r.skip(2)?;
    if version >= 4 {
        stats.flags = flags(flag_bits, version)?;
    }
    if version >= 5 {
        stats.importance = importance;
    }
    take_counters(r, stats)?;
    stats.matching = oxm::take_match(r, Strictness::Rule)?;
    Ok(())
}

fn take_stats15(r: &mut Reader<'_>, stats: &mut FlowStats) -> Result<(), Error> {
    r.skip(2)?;
    stats.table = r.u8()?;
    r.skip(1)?;
    stats.priority = r.u16()?;
    stats.idle_timeout = r.u16()?;
    stats.hard_timeout = r.u16()?;
    stats.flags = flags(r.u16()?, 6)?;
    stats.importance = r.u16()?;
    stats.cookie = r.u64()?;
    stats.matching = oxm::take_match(r, Strictness::Rule)?;
    let counters = oxs::take(r)?;
    stats.duration_ns = counters.duration_ns;
    stats.idle_age = (counters.idle_ns / 1_000_000_000) as u32;
    stats.packets = counters.packets;
    stats.bytes = counters.bytes;
    Ok(())
}

/// Encodes one rule of a statistics reply.
pub(crate) fn put_stats(out: &mut Vec<u8>, stats: &FlowStats, version: u8, format: FlowFormat) {
    let start = out.len();
    out.put_u16(0);
    match (version, format) {
        (1, FlowFormat::Standard) => {
            out.put_u8(stats.table);
            out.pad(1);
            match10::put_match(out, &stats.matching);
            put_times(out, stats);
            out.pad(6);
            put_counters(out, stats);
        }
        (1, FlowFormat::Nicira) => {
            out.put_u8(stats.table);
            out.pad(1);
            put_times(out, stats);
            let at = out.len();
            out.put_u16(0);
            // Ages are sent plus one; zero means unknown.
            let age = |seconds: u32| seconds.saturating_add(1).min(0xffff) as u16;
            out.put_u16(age(stats.idle_age));
            out.put_u16(age(stats.hard_age));
            put_counters(out, stats);
            let length = oxm::put_nxm(out, &stats.matching, (0, 0));
            out[at..at + 2].copy_from_slice(&length.to_be_bytes());
        }
        (6, _) => put_stats15(out, stats),
        _ => {
            out.put_u8(stats.table);
            out.pad(1);
            put_times(out, stats);
            out.put_u16(if version >= 4 {
                raw_flags(stats.flags, version)
            } else {
                0
            });
            out.put_u16(if version >= 5 { stats.importance } else { 0 });
            out.pad(2);
            put_counters(out, stats);
            put_match(out, &stats.matching, version);
        }
    }
    let context = Context::of(&stats.matching);
    put_instructions(out, &stats.instructions, version, context);
    out.set_length(start, start);
}

fn put_times(out: &mut Vec<u8>, stats: &FlowStats) {
    out.put_duration(stats.duration_ns);
    out.put_u16(stats.priority);
    out.put_u16(stats.idle_timeout);
    out.put_u16(stats.hard_timeout);
}

fn put_counters(out: &mut Vec<u8>, stats: &FlowStats) {
    out.put_u64(stats.cookie);
    out.put_u64(stats.packets);
    out.put_u64(stats.bytes);
}

fn put_stats15(out: &mut Vec<u8>, stats: &FlowStats) {
    out.pad(2);
    out.put_u8(stats.table);
    out.pad(1);
    out.put_u16(stats.priority);
    out.put_u16(stats.idle_timeout);
    out.put_u16(stats.hard_timeout);
    out.put_u16(raw_flags(stats.flags, 6));
    out.put_u16(stats.importance);
    out.put_u64(stats.cookie);
    put_match(out, &stats.matching, 6);
    oxs::put_rule(out, stats);
}

pub(crate) fn removed_reason(number: u8) -> Result<FlowRemovedReason, Error> {
    Ok(match number {
        0 => FlowRemovedReason::IdleTimeout,
        1 => FlowRemovedReason::HardTimeout,
        2 => FlowRemovedReason::Delete,
        3 => FlowRemovedReason::GroupDelete,
        4 => FlowRemovedReason::MeterDelete,
        5 => FlowRemovedReason::Eviction,
        _ => return Err(Error::BadReason),
    })
}

/// Returns the number of the reason in a version: 1.0 to 1.2 have no number for a group, and before
/// 1.4 meters and evictions are sent as deletes.
fn removed_number(reason: FlowRemovedReason, version: u8) -> u8 {
    let since = match reason {
        FlowRemovedReason::GroupDelete => 2,
        FlowRemovedReason::MeterDelete | FlowRemovedReason::Eviction => 5,
        _ => 1,
    };
    if version < since {
        FlowRemovedReason::Delete as u8
    } else {
        reason as u8
    }
}

/// Decodes a flow-removed message.
pub(crate) fn take_removed(
    r: &mut Reader<'_>,
    version: u8,
    format: FlowFormat,
) -> Result<FlowRemoved, Error> {
    let mut stats = empty_stats();
    let reason = match (version, format) {
        (_, FlowFormat::Nicira) => take_removed_nicira(r, &mut stats)?,
        (1, _) => {
            stats.matching = match10::take_match(r)?.matching;
            stats.cookie = r.u64()?;
            stats.priority = r.u16()?;
            let reason = r.u8()?;
            r.skip(1)?;
            stats.duration_ns = r.duration()?;
            stats.idle_timeout = r.u16()?;
            r.skip(2)?;
            (stats.packets, stats.bytes) = (r.u64()?, r.u64()?);
            reason
        }
        (6, _) => {
            stats.table = r.u8()?;
            let reason = r.u8()?;
            stats.priority = r.u16()?;
            stats.idle_timeout = r.u16()?;
            stats.hard_timeout = r.u16()?;
            stats.cookie = r.u64()?;
            stats.matching = oxm::take_match(r, Strictness::Rule)?;
            let counters = oxs::take(r)?;
            stats.duration_ns = counters.duration_ns;
            (stats.packets, stats.bytes) = (counters.packets, counters.bytes);
            reason
        }
        _ => {
            stats.cookie = r.u64()?;
            stats.priority = r.u16()?;
            let reason = r.u8()?;
            stats.table = r.u8()?;
            stats.duration_ns = r.duration()?;
            stats.idle_timeout = r.u16()?;
            stats.hard_timeout = r.u16()?;
            (stats.packets, stats.bytes) = (r.u64()?, r.u64()?);
            stats.matching = oxm::take_match(r, Strictness::Rule)?;
            reason
        }
    };
    let reason = removed_reason(reason)?;
    Ok(FlowRemoved { reason, stats })
}

fn take_removed_nicira(r: &mut Reader<'_>, stats: &mut FlowStats) -> Result<u8, Error> {
    stats.cookie = r.u64()?;
    stats.priority = r.u16()?;
    let reason = r.u8()?;
    stats.table = r.u8()?.saturating_sub(1);
    stats.duration_ns = r.duration()?;
    stats.idle_timeout = r.u16()?;
    let length = r.u16()?;
    (stats.packets, stats.bytes) = (r.u64()?, r.u64()?);
    stats.matching = oxm::take_nxm(r, length, Strictness::Rule, false)?.matching;
    Ok(reason)
}

/// Encodes the body of a flow-removed message.
pub(crate) fn put_removed(
    out: &mut Vec<u8>,
    removed: &FlowRemoved,
    version: u8,
    format: FlowFormat,
) {
    let (stats, reason) = (&removed.stats, removed_number(removed.reason, version));
    match (version, format) {
        (1, FlowFormat::Standard) => {
            match10::put_match(out, &stats.matching);
            out.put_u64(stats.cookie);
            out.put_u16(stats.priority);
            out.put_u8(reason);
            out.pad(1);
            out.put_duration(stats.duration_ns);
            out.put_u16(stats.idle_timeout);
            out.pad(2);
            out.put_u64(stats.packets);
            out.put_u64(stats.bytes);
        }
        (_, FlowFormat::Nicira) => {
            out.put_u64(stats.cookie);
            out.put_u16(stats.priority);
            out.put_u8(reason);
            // The table is sent plus one; zero means unknown.
            out.put_u8(stats.table.saturating_add(1));
            out.put_duration(stats.duration_ns);
            out.put_u16(stats.idle_timeout);
            let at = out.len();
            out.put_u16(0);
            out.put_u64(stats.packets);
            out.put_u64(stats.bytes);
            let length = oxm::put_nxm(out, &stats.matching, (0, 0));
            out[at..at + 2].copy_from_slice(&length.to_be_bytes());
        }
        (6, _) => {
            out.put_u8(stats.table);
            out.put_u8(reason);
            out.put_u16(stats.priority);
            out.put_u16(stats.idle_timeout);
            out.put_u16(stats.hard_timeout);
            out.put_u64(stats.cookie);
            put_match(out, &stats.matching, 6);
            oxs::put_removed(out, stats);
        }
        _ => {
            out.put_u64(stats.cookie);
            out.put_u16(stats.priority);
            out.put_u8(reason);
            out.put_u8(stats.table);
            out.put_duration(stats.duration_ns);
            out.put_u16(stats.idle_timeout);
            out.put_u16(if version >= 3 { stats.hard_timeout } else { 0 });
            out.put_u64(stats.packets);
            out.put_u64(stats.bytes);
            put_match(out, &stats.matching, version);
        }
    }
}
