//! Flow monitors: decoding and encoding. Nicira's form in 1.0 to 1.2, the same with OXM and
//! instructions in 1.3 (ONF's extension), the standard one from 1.4 on.

use crate::codec;
use crate::codec::action_decode::take_actions;
use crate::codec::action_encode::{Context, put_actions};
use crate::codec::flow::removed_reason;
use crate::codec::instruction::{put_instructions, take_instructions};
use crate::codec::oxm::{self, Strictness};
use crate::codec::wire::{Put, Reader};
use crate::model::action::Instruction;
use crate::model::error::Error;
use crate::model::group;
use crate::model::monitor::{
    FlowUpdate, MonitorCommand, MonitorFlags, MonitorRequest, RuleUpdate, UpdateEvent,
};
use crate::model::port;

/// Numbers of events, Nicira's and standard.
mod event {
    pub const ADDED: u16 = 0;
    pub const DELETED: u16 = 1;
    pub const MODIFIED: u16 = 2;
    pub const ABBREVIATED: u16 = 3;
    /// Offset of the numbers of 1.4, which begin with another event.
    pub const SHIFT: u16 = 1;
    pub const INITIAL_14: u16 = 0;
    pub const PAUSED_14: u16 = 5;
    pub const RESUMED_14: u16 = 6;
}

/// Decodes one monitor of a request.
pub(crate) fn take_request(r: &mut Reader<'_>, version: u8) -> Result<MonitorRequest, Error> {
    let id = r.u32()?;
    if version >= 5 {
        let (out_port, out_group, flags) = (r.u32()?, r.u32()?, r.u16()?);
        let (table, command) = (r.u8()?, r.u8()?);
        let command = match command {
            0 => MonitorCommand::Add,
            1 => MonitorCommand::Modify,
            2 => MonitorCommand::Delete,
            _ => return Err(Error::MonitorBadCommand),
        };
        port::to_u16(out_port).ok_or(Error::MonitorBadOut)?;
        return Ok(MonitorRequest {
            id,
            command,
            flags: flags_of(flags, version, command)?,
            out_port,
            out_group,
            table,
            matching: oxm::take_match(r, Strictness::Rule)?,
        });
    }
    let flags = flags_of(r.u16()?, version, MonitorCommand::Add)?;
    let nxm = version < 4;
    let (length, out_port);
    if nxm {
        out_port = port::from_u16(r.u16()?);
        length = r.u16()?;
    } else {
        length = r.u16()?;
        out_port = r.u32()?;
        port::to_u16(out_port).ok_or(Error::MonitorBadOut)?;
    }
    let table = r.u8()?;
    let zeros = r.take(if nxm { 5 } else { 3 })?;
    if zeros.iter().any(|byte| *byte != 0) {
        return Err(Error::MustBeZero);
    }
    Ok(MonitorRequest {
        id,
        command: MonitorCommand::Add,
        flags,
        out_port,
        out_group: group::ANY,
        table,
        matching: if nxm {
            oxm::take_nxm(r, length, Strictness::Rule, false)?.matching
        } else {
            oxm::take_match(r, Strictness::Rule)?
        },
    })
}

/// Decodes flags. None may be unknown, and unless the command deletes the monitor, it must report
/// additions, removals or modifications.
fn flags_of(raw: u16, version: u8, command: MonitorCommand) -> Result<MonitorFlags, Error> {
    let all = MonitorFlags::all();
    let known = if version >= 5 {
        all
    } else {
        all.difference(MonitorFlags::ONLY_OWN)
    };
    let flags = MonitorFlags::from_bits(raw).filter(|flags| known.contains(*flags));
    let changes = MonitorFlags::ADD | MonitorFlags::REMOVED | MonitorFlags::MODIFY;
    flags
        .filter(|flags| command == MonitorCommand::Delete || flags.intersects(changes))
        .ok_or(Error::MonitorBadFlags)
}

/// Encodes one monitor of a request.
pub(crate) fn put_request(out: &mut Vec<u8>, request: &MonitorRequest, version: u8) {
    out.put_u32(request.id);
    if version >= 5 {
        out.put_u32(request.out_port);
        out.put_u32(request.out_group);
        out.put_u16(request.flags.bits());
        out.put_u8(request.table);
        out.put_u8(request.command as u8);
        oxm::put_match(out, &request.matching, version);
        return;
    }
    out.put_u16(request.flags.difference(MonitorFlags::ONLY_OWN).bits());
    let at;
    if version < 4 {
        out.put_u16(request.out_port as u16);
        at = out.len();
        out.put_u16(0);
    } else {
        at = out.len();
        out.put_u16(0);
        out.put_u32(request.out_port);
    }
    out.put_u8(request.table);
    out.pad(if version < 4 { 5 } else { 3 });
    let length = put_any_match(out, &request.matching, version);
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

/// Encodes a match and returns its length without padding.
fn put_any_match(out: &mut Vec<u8>, matching: &packet::Match, version: u8) -> u16 {
    if version < 4 {
        return oxm::put_nxm(out, matching, (0, 0));
    }
    let start = out.len();
    oxm::put_match(out, matching, version);
    u16::from_be_bytes([out[start + 2], out[start + 3]])
}

/// Decodes one update of a reply.
pub(crate) fn take_update(reader: &mut Reader<'_>, version: u8) -> Result<FlowUpdate, Error> {
    let length = usize::from(reader.u16()?);
    if length < 8 || !length.is_multiple_of(8) {
        return Err(Error::BadLength);
    }
    let mut part = reader.part(length - 2, Error::BadLength)?;
    let r = &mut part;
    let number = r.u16()?;
    let standard = version >= 5;
    let short = match (standard, number) {
        (true, event::PAUSED_14) => Some(FlowUpdate::Paused),
        (true, event::RESUMED_14) => Some(FlowUpdate::Resumed),
        _ => None,
    };
    if let Some(update) = short {
        r.skip(4)?;
        return end(r, update);
    }
    let initial = standard && number == event::INITIAL_14;
    let number = match (standard, initial) {
        (true, false) => number - event::SHIFT,
        (true, true) => event::ADDED,
        _ => number,
    };
    if number == event::ABBREVIATED {
        let xid = r.u32()?;
        return end(r, FlowUpdate::Abbreviated(xid));
    }
    if number > event::ABBREVIATED {
        return Err(Error::BadLength);
    }
    let update = if standard {
        take_rule14(r, version, number)?
    } else {
        take_rule(r, version, number)?
    };
    let update = RuleUpdate {
        event: if initial {
            UpdateEvent::Initial
        } else {
            update.event
        },
        ..update
    };
    end(r, FlowUpdate::Rule(update))
}

fn end(r: &Reader<'_>, update: FlowUpdate) -> Result<FlowUpdate, Error> {
    if r.is_empty() {
        Ok(update)
    } else {
        Err(Error::BadLength)
    }
}

fn event_of(number: u16, reason: u8) -> Result<UpdateEvent, Error> {
    Ok(match number {
        event::ADDED => UpdateEvent::Added,
        event::DELETED => UpdateEvent::Removed(removed_reason(reason)?),
        _ => UpdateEvent::Modified,
    })
}

fn take_rule(r: &mut Reader<'_>, version: u8, number: u16) -> Result<RuleUpdate, Error> {
    let (reason, priority) = (r.u16()?, r.u16()?);
    let (idle_timeout, hard_timeout, length) = (r.u16()?, r.u16()?, r.u16()?);
    let table = r.u8()?;
    r.skip(1)?;
    let cookie = r.u64()?;
    let matching = if version < 4 {
        oxm::take_nxm(r, length, Strictness::Rule, false)?.matching
    } else {
        oxm::take_match(r, Strictness::Rule)?
    };
    let rest = Reader::new(r.take_rest(), Error::BadActionLength);
    let instructions: Vec<Instruction> = match version {
        2 | 3 => {
            let list = take_actions(rest, version)?;
            let applied =
                (!list.actions.is_empty()).then_some(Instruction::ApplyActions(list.actions));
            applied.into_iter().collect()
        }
        _ => take_instructions(rest, version)?,
    };
    Ok(RuleUpdate {
        event: event_of(number, u8::try_from(reason).unwrap_or(u8::MAX))?,
        table,
        priority,
        cookie,
        idle_timeout,
        hard_timeout,
        matching,
        instructions: instructions.into(),
    })
}

fn take_rule14(r: &mut Reader<'_>, version: u8, number: u16) -> Result<RuleUpdate, Error> {
    let (table, reason) = (r.u8()?, r.u8()?);
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    r.skip(4)?;
    let cookie = r.u64()?;
    let matching = oxm::take_match(r, Strictness::Rule)?;
    let rest = Reader::new(r.take_rest(), Error::BadInstructionLength);
    Ok(RuleUpdate {
        event: event_of(number, reason)?,
        table,
        priority,
        cookie,
        idle_timeout,
        hard_timeout,
        matching,
        instructions: take_instructions(rest, version)?.into(),
    })
}

/// Encodes one update of a reply.
pub(crate) fn put_update(out: &mut Vec<u8>, update: &FlowUpdate, version: u8) {
    let start = out.len();
    out.put_u16(0);
    let shift = if version >= 5 { event::SHIFT } else { 0 };
    match update {
        FlowUpdate::Rule(rule) => {
            let (number, reason) = match rule.event {
                UpdateEvent::Initial if version >= 5 => (event::INITIAL_14, None),
                UpdateEvent::Initial | UpdateEvent::Added => (event::ADDED + shift, None),
                UpdateEvent::Removed(reason) => (event::DELETED + shift, Some(reason)),
                UpdateEvent::Modified => (event::MODIFIED + shift, None),
            };
            out.put_u16(number);
            // The reason's number is not translated to the version.
            put_rule(out, rule, reason.map_or(0, |reason| reason as u8), version);
        }
        FlowUpdate::Abbreviated(xid) => {
            out.put_u16(event::ABBREVIATED + shift);
            out.put_u32(*xid);
        }
        FlowUpdate::Paused | FlowUpdate::Resumed => {
            out.put_u16(if *update == FlowUpdate::Paused {
                event::PAUSED_14
            } else {
                event::RESUMED_14
            });
            out.pad(4);
        }
    }
    out.set_length(start, start);
}

fn put_rule(out: &mut Vec<u8>, rule: &RuleUpdate, reason: u8, version: u8) {
    let context = Context::of(&rule.matching);
    if version >= 5 {
        out.put_u8(rule.table);
        out.put_u8(reason);
        out.put_u16(rule.idle_timeout);
        out.put_u16(rule.hard_timeout);
        out.put_u16(rule.priority);
        out.pad(4);
        out.put_u64(rule.cookie);
        codec::flow::put_match(out, &rule.matching, version);
        put_instructions(out, &rule.instructions, version, context);
        return;
    }
    out.put_u16(reason.into());
    out.put_u16(rule.priority);
    out.put_u16(rule.idle_timeout);
    out.put_u16(rule.hard_timeout);
    let at = out.len();
    out.put_u16(0);
    out.put_u8(rule.table);
    out.pad(1);
    out.put_u64(rule.cookie);
    let length = put_any_match(out, &rule.matching, version);
    out[at..at + 2].copy_from_slice(&length.to_be_bytes());
    if !matches!(version, 2 | 3) {
        put_instructions(out, &rule.instructions, version, context);
        return;
    }
    // These two versions have only actions.
    for instruction in rule.instructions.iter() {
        if let Instruction::ApplyActions(actions) = instruction {
            put_actions(out, actions, version, context);
        }
    }
}
