//! Instructions: decoding and encoding (OpenFlow 1.1 section A.2.4, 1.3.5 section 7.2.4).
//!
//! A message may have instructions in any order, each kind at most once. The model has them in the
//! order of execution: meter, apply-actions, clear-actions, write-actions, write-metadata,
//! goto-table. 1.0 has no instructions: its actions become one apply-actions, and for the
//! instructions of later versions there are actions of Nicira's.

use crate::codec::action_decode::take_actions;
use crate::codec::action_encode::{Context, nicira, put_actions};
use crate::codec::oxs;
use crate::codec::wire::{Put, Reader};
use crate::model::action::{Action, Instruction, StatTrigger};
use crate::model::error::Error;

/// Decodes the instructions (in 1.0: actions) that fill `reader`.
pub(crate) fn take_instructions(
    reader: Reader<'_>,
    version: u8,
) -> Result<Vec<Instruction>, Error> {
    if version == 1 {
        let list = take_actions(reader, version)?;
        let mut instructions = Vec::with_capacity(1);
        if !list.actions.is_empty() {
            instructions.push(Instruction::ApplyActions(list.actions));
        }
        if let Some((value, mask)) = list.write_metadata {
            instructions.push(Instruction::WriteMetadata { value, mask });
        }
        return Ok(instructions);
    }
    // One place for each kind, in the order of execution. As in Open vSwitch, all instructions are
    // located before any is decoded.
    let mut found: [Option<(u16, Reader<'_>)>; 7] = Default::default();
    let mut reader = reader;
    while !reader.is_empty() {
        let (place, kind, body) = take_head(&mut reader, version)?;
        if found[place].replace((kind, body)).is_some() {
            return Err(Error::DuplicateInstruction);
        }
    }
    let mut instructions = Vec::with_capacity(found.iter().flatten().count());
    for (kind, body) in found.into_iter().flatten() {
        instructions.extend(take_instruction(kind, body, version)?);
    }
    Ok(instructions)
}

/// Decodes an instruction's head: its place in the order of execution, its type and its body.
fn take_head<'a>(reader: &mut Reader<'a>, version: u8) -> Result<(usize, u16, Reader<'a>), Error> {
    let bad = |_| Error::BadInstructionLength;
    let kind = reader.u16().map_err(bad)?;
    let length = usize::from(reader.u16().map_err(bad)?);
    if length < 8 || length % 8 != 0 || length - 4 > reader.len() {
        return Err(Error::BadInstructionLength);
    }
    let body = reader.part(length - 4, Error::BadInstructionLength)?;
    let (place, exact) = match kind {
        1 => (5, Some(8)),
        2 => (4, Some(24)),
        3 => (3, None),
        4 => (1, None),
        5 => (2, Some(8)),
        6 if (4..=5).contains(&version) => (0, Some(8)),
        7 if version >= 6 => (6, None),
        0xffff => return Err(Error::BadInstructionExperimenter),
        _ => return Err(Error::UnknownInstruction),
    };
    if exact.is_some_and(|exact| exact != length) {
        return Err(Error::BadInstructionLength);
    }
    Ok((place, kind, body))
}

/// Decodes an instruction's body; None for one that has no effect.
fn take_instruction(
    kind: u16,
    mut body: Reader<'_>,
    version: u8,
) -> Result<Option<Instruction>, Error> {
    let taken = match kind {
        1 => {
            let table = body.u8()?;
            body.skip(3)?;
            Some(Instruction::GotoTable(table))
        }
        2 => {
            body.skip(4)?;
            let (value, mask) = (body.u64()?, body.u64()?);
            Some(Instruction::WriteMetadata { value, mask })
        }
        3 => {
            let actions = take_list(&mut body, version)?;
            if !actions.iter().all(Action::is_allowed_in_set) {
                return Err(Error::BadActionType);
            }
            non_empty(actions).map(Instruction::WriteActions)
        }
        4 => {
            let actions = take_list(&mut body, version)?;
            non_empty(actions).map(Instruction::ApplyActions)
        }
        5 => {
            body.skip(4)?;
            Some(Instruction::ClearActions)
        }
        6 => match body.u32()? {
            meter @ 1..=crate::model::meter::MAX => Some(Instruction::Meter(meter)),
            _ => return Err(Error::InvalidMeter),
        },
        _ => Some(stat_trigger(&mut body)?),
    };
    if !body.is_empty() {
        return Err(Error::BadInstructionLength);
    }
    Ok(taken)
}

fn stat_trigger(body: &mut Reader<'_>) -> Result<Instruction, Error> {
    let flags = body.u32()?;
    if flags & !3 != 0 {
        return Err(Error::UnsupportedInstruction);
    }
    let thresholds = oxs::take_thresholds(body)?;
    Ok(Instruction::StatTrigger(Box::new(StatTrigger {
        periodic: flags & 1 != 0,
        only_first: flags & 2 != 0,
        ..thresholds
    })))
}

fn take_list(body: &mut Reader<'_>, version: u8) -> Result<Vec<Action>, Error> {
    body.skip(4)?;
    let list = take_actions(
        Reader::new(body.take_rest(), Error::BadActionLength),
        version,
    )?;
    if list.write_metadata.is_some() {
        return Err(Error::BadActionType);
    }
    Ok(list.actions)
}

fn non_empty(actions: Vec<Action>) -> Option<Vec<Action>> {
    (!actions.is_empty()).then_some(actions)
}

/// Encodes instructions (in 1.0: actions).
pub(crate) fn put_instructions(
    out: &mut Vec<u8>,
    instructions: &[Instruction],
    version: u8,
    context: Context,
) {
    if version == 1 {
        for instruction in instructions {
            put_as_actions(out, instruction, context);
        }
        return;
    }
    if let Some(metered) = metered(instructions, version) {
        for instruction in &metered {
            put_instruction(out, instruction, version, context);
        }
        return;
    }
    for instruction in instructions {
        put_instruction(out, instruction, version, context);
    }
}

/// Converts instructions with meters to a version's form; None if they have that form already. In
/// 1.5 a meter is an action at the head of apply-actions, in 1.3 and 1.4 an instruction, at most
/// one; older versions have none.
fn metered(instructions: &[Instruction], version: u8) -> Option<Vec<Instruction>> {
    let as_instruction = instructions
        .iter()
        .find_map(|instruction| match instruction {
            Instruction::Meter(number) => Some(*number),
            _ => None,
        });
    let as_action = instructions
        .iter()
        .find_map(|instruction| match instruction {
            Instruction::ApplyActions(actions) => actions.iter().find_map(|action| match action {
                Action::Meter(number) => Some(*number),
                _ => None,
            }),
            _ => None,
        });
    if version >= 6 {
        let head = Action::Meter(as_instruction?);
        let (mut list, mut rest) = (vec![head], Vec::new());
        for instruction in instructions {
            match instruction {
                Instruction::Meter(_) => {}
                Instruction::ApplyActions(actions) => list.extend_from_slice(actions),
                other => rest.push(other.clone()),
            }
        }
        rest.insert(0, Instruction::ApplyActions(list));
        return Some(rest);
    }
    let first = as_action?;
    let mut converted = Vec::new();
    if as_instruction.is_none() {
        converted.push(Instruction::Meter(first));
    }
    for instruction in instructions {
        match instruction {
            Instruction::ApplyActions(actions) => {
                let kept = actions
                    .iter()
                    .filter(|action| !matches!(action, Action::Meter(_)));
                converted.extend(non_empty(kept.cloned().collect()).map(Instruction::ApplyActions));
            }
            other => converted.push(other.clone()),
        }
    }
    Some(converted)
}

fn put_instruction(out: &mut Vec<u8>, instruction: &Instruction, version: u8, context: Context) {
    let start = out.len();
    let mut head = |kind: u16| {
        out.put_u16(kind);
        out.put_u16(0);
    };
    match instruction {
        Instruction::GotoTable(table) => {
            head(1);
            out.put_u8(*table);
            out.pad(3);
        }
        Instruction::WriteMetadata { value, mask } => {
            head(2);
            out.pad(4);
            out.put_u64(*value);
            out.put_u64(*mask);
        }
        Instruction::WriteActions(actions) => {
            head(3);
            out.pad(4);
            put_actions(out, actions, version, context);
        }
        Instruction::ApplyActions(actions) => {
            head(4);
            out.pad(4);
            put_actions(out, actions, version, context);
        }
        Instruction::ClearActions => {
            head(5);
            out.pad(4);
        }
        Instruction::Meter(meter) if (4..=5).contains(&version) => {
            head(6);
            out.put_u32(*meter);
        }
        Instruction::StatTrigger(trigger) if version >= 6 => {
            head(7);
            out.put_u32(u32::from(trigger.periodic) | u32::from(trigger.only_first) << 1);
            oxs::put_thresholds(out, trigger);
        }
        Instruction::Meter(_) | Instruction::StatTrigger(_) => return,
    }
    out.set_length(start + 2, start);
}

/// Encodes an instruction for 1.0, by Nicira's actions, if there is one.
fn put_as_actions(out: &mut Vec<u8>, instruction: &Instruction, context: Context) {
    match instruction {
        Instruction::ApplyActions(actions) => put_actions(out, actions, 1, context),
        Instruction::WriteMetadata { value, mask } => nicira(out, 22, |out| {
            out.pad(6);
            out.put_u64(*value);
            out.put_u64(*mask);
        }),
        Instruction::GotoTable(table) => {
            let resubmit = Action::Resubmit {
                in_port: None,
                table: Some(*table),
                with_ct_orig: false,
            };
            put_actions(out, &[resubmit], 1, context);
        }
        Instruction::Meter(_)
        | Instruction::ClearActions
        | Instruction::WriteActions(_)
        | Instruction::StatTrigger(_) => {}
    }
}
