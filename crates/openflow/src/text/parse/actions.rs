//! Parses the right side of a rule.

use super::connection;
use super::values::{bounded, ethernet, of_field, of_option};
use super::{DEPTH, Error, Pair, PortNames, Result, field, nicira, number, pairs, port, reserved};
use crate::model::action::{Action, Instruction, Subfield};
use crate::model::port as numbers;
use crate::model::steering::{Fcf, VM_ID_MAX};
use packet::{Field, Value};
use std::net::Ipv4Addr;

/// An item of a rule's right side.
enum Item {
    Action(Action),
    Instruction(Instruction),
    /// `drop`, which must be the only item.
    Drop,
}

/// Parses actions, such as `output:2,resubmit(,1)`; `drop` means none.
pub fn actions(text: &str, names: PortNames<'_>) -> Result<Vec<Action>> {
    nested(text, names, DEPTH)
}

/// Parses a rule's right side, a meter, actions and the other instructions, into the order in which
/// OpenFlow executes them.
pub fn instructions(text: &str, names: PortNames<'_>) -> Result<Vec<Instruction>> {
    let mut all: Vec<Instruction> = Vec::new();
    let (mut last, mut count, mut dropped) = (0, 0, false);
    for pair in pairs(text) {
        count += 1;
        let (rank, item) = match item(pair, names, DEPTH)? {
            Item::Drop => {
                dropped = true;
                continue;
            }
            Item::Action(action) => (1, Err(action)),
            Item::Instruction(instruction) => (rank(&instruction), Ok(instruction)),
        };
        let again = rank == last && rank != 1 && !all.is_empty();
        if rank < last || again {
            return Err(Error::new(format!(
                "{}: out of order; instructions stand once each in the order meter, actions, clear_actions, write_actions, write_metadata, goto_table",
                pair.key
            )));
        }
        last = rank;
        match (item, all.last_mut()) {
            (Err(action), Some(Instruction::ApplyActions(actions))) => actions.push(action),
            (Err(action), _) => all.push(Instruction::ApplyActions(vec![action])),
            (Ok(instruction), _) => all.push(instruction),
        }
    }
    match dropped && count > 1 {
        true => Err(not_alone()),
        false => Ok(all),
    }
}

fn not_alone() -> Error {
    Error::new("\"drop\" must not be accompanied by any other action or instruction")
}

fn rank(instruction: &Instruction) -> u8 {
    match instruction {
        Instruction::Meter(_) => 0,
        Instruction::ApplyActions(_) => 1,
        Instruction::ClearActions => 2,
        Instruction::WriteActions(_) => 3,
        Instruction::WriteMetadata { .. } => 4,
        Instruction::StatTrigger(_) => 4, // has no text form
        Instruction::GotoTable(_) => 5,
    }
}

/// Parses a list of actions inside an action.
pub(super) fn nested(text: &str, names: PortNames<'_>, depth: usize) -> Result<Vec<Action>> {
    let mut actions = Vec::new();
    let (mut count, mut dropped) = (0, false);
    for pair in pairs(text) {
        count += 1;
        match item(pair, names, depth)? {
            Item::Action(action) => actions.push(action),
            Item::Instruction(Instruction::Meter(meter)) => actions.push(Action::Meter(meter)),
            Item::Instruction(_) => {
                return Err(Error::new(format!(
                    "{}: an instruction is not an action",
                    pair.key
                )));
            }
            Item::Drop => dropped = true,
        }
    }
    match dropped && count > 1 {
        true => Err(not_alone()),
        false => Ok(actions),
    }
}

fn item(pair: Pair<'_>, names: PortNames<'_>, depth: usize) -> Result<Item> {
    let Pair { key, value, .. } = pair;
    let Some(deeper) = depth.checked_sub(1) else {
        return Err(Error::new(format!("{key}: actions are nested too deeply")));
    };
    let instruction = match key {
        "drop" if value.is_empty() => return Ok(Item::Drop),
        "meter" => Instruction::Meter(bounded(value, 32, key)? as u32),
        "clear_actions" => Instruction::ClearActions,
        "write_actions" => Instruction::WriteActions(nested(value, names, deeper)?),
        "goto_table" => Instruction::GotoTable(bounded(value, 8, key)? as u8),
        "write_metadata" => {
            let (value, mask) = match value.split_once('/') {
                Some((value, mask)) => (value, bounded(mask, 64, key)? as u64),
                None => (value, u64::MAX),
            };
            Instruction::WriteMetadata {
                value: bounded(value, 64, key)? as u64,
                mask,
            }
        }
        "clone" => return Ok(Item::Action(Action::Clone(nested(value, names, deeper)?))),
        "ct" => return connection::ct(value, names, deeper).map(Item::Action),
        "ct_clear" => return Ok(Item::Action(Action::CtClear)),
        _ => return action(pair, names).map(Item::Action),
    };
    Ok(Item::Instruction(instruction))
}

/// Parses a subfield: `NXM_NX_REG0[]`, `reg0[0..7]`, `reg0[3]`, or `reg0` for a whole field.
pub(super) fn subfield(text: &str) -> Result<Subfield> {
    let bad = |why: &str| Error::new(format!("{text}: {why}"));
    let (name, bits) = match text.split_once('[') {
        Some((name, rest)) => (
            name,
            rest.strip_suffix(']')
                .ok_or_else(|| bad("missing ] at the end"))?,
        ),
        None => (text, ""),
    };
    let found = field(name).ok_or_else(|| bad(&format!("unknown field `{name}'")))?;
    let width = found.def().action_bits as u16;
    let bit = |text: &str| {
        text.trim().parse::<u16>().map_err(|_| {
            bad(&format!(
                "syntax error expecting [] or [<bit>] or [<start>..<end>], not \"{text}\""
            ))
        })
    };
    let (start, end) = match bits.split_once("..") {
        _ if bits.is_empty() => (0, width.saturating_sub(1)),
        Some((start, end)) => (bit(start)?, bit(end)?),
        None => (bit(bits)?, bit(bits)?),
    };
    if start > end {
        return Err(bad(&format!(
            "starting bit {start} is after ending bit {end}"
        )));
    }
    if end >= width {
        return Err(bad(&format!(
            "starting bit {start} and ending bit {end} are out of range for field, which has only {width} bits"
        )));
    }
    Ok(Subfield {
        field: found,
        start,
        bits: end - start + 1,
    })
}

/// Splits `value->dst`.
pub(super) fn arrow<'t>(key: &str, text: &'t str) -> Result<(&'t str, &'t str)> {
    text.split_once("->")
        .map(|(value, dst)| (value.trim(), dst.trim()))
        .ok_or_else(|| Error::new(format!("{text}: missing `->' in {key} action")))
}

pub(super) fn to_port(text: &str, names: PortNames<'_>, key: &str) -> Result<numbers::PortNo> {
    port(text, names).ok_or_else(|| Error::new(format!("{text}: {key} to unknown port")))
}

/// Parses a number that must fit into `bits` bits.
fn small<T: TryFrom<u128>>(text: &str, bits: u32, what: &str) -> Result<T> {
    let number = bounded(text, bits, what)?;
    T::try_from(number).map_err(|_| Error::new(format!("{text}: too large for {what}")))
}

fn action(pair: Pair<'_>, names: PortNames<'_>) -> Result<Action> {
    let Pair { key, value, .. } = pair;
    Ok(match key {
        "output" => return output(value, names),
        "enqueue" => {
            let (to, queue) = value.rsplit_once([':', ',']).ok_or_else(|| {
                Error::new(
                    "\"enqueue\" syntax is \"enqueue:PORT:QUEUE\" or \"enqueue(PORT,QUEUE)\"",
                )
            })?;
            Action::Enqueue {
                port: to_port(to.trim(), names, key)?,
                queue: small(queue.trim(), 32, "queue")?,
            }
        }
        "set_queue" => Action::SetQueue(small(value, 32, key)?),
        "pop_queue" => Action::PopQueue,
        "set_field" => return set_field(value, names),
        "load" => return load(value, names),
        "move" => {
            let (src, dst) = arrow(key, value)?;
            let (src, dst) = (subfield(src)?, subfield(dst)?);
            if src.bits != dst.bits {
                return Err(Error::new(format!(
                    "{value}: source field is {} bits wide but destination is {} bits wide",
                    src.bits, dst.bits
                )));
            }
            Action::Move { src, dst }
        }
        "group" => Action::Group(small(value, 32, key)?),
        "resubmit" => return resubmit(value, names),
        "dec_ttl" => Action::DecTtl(match value {
            "" => vec![0],
            ids => ids
                .split(',')
                .map(|id| small(id.trim(), 16, "controller id"))
                .collect::<Result<_>>()?,
        }),
        "exit" => Action::Exit,
        "push" => Action::StackPush(subfield(value)?),
        "pop" => Action::StackPop(subfield(value)?),
        "set_tunnel" | "set_tunnel64" => {
            let id = small(value, 64, key)?;
            Action::SetTunnel {
                id,
                wide: key == "set_tunnel64" || id > u32::MAX.into(),
            }
        }
        "controller" | "CONTROLLER" => return nicira::controller(value),
        "note" => Action::Note(nicira::bytes(value)?),
        "set_fcf" => set_fcf(value)?,
        "learn" => Action::Learn(Box::new(nicira::learn(value, names)?)),
        "multipath" => nicira::multipath(value)?,
        "bundle" | "bundle_load" => nicira::bundle(key, value, names)?,
        "sample" => nicira::sample(value, names)?,
        "conjunction" => nicira::conjunction(value)?,
        "fin_timeout" => nicira::fin_timeout(value)?,
        "check_pkt_larger" => Action::CheckPktLarger {
            max_len: small(value, 16, key)?,
            dst: subfield(pair.tail.strip_prefix("->").ok_or_else(|| {
                Error::new("check_pkt_larger: missing `->' in check_pkt_larger action")
            })?)?,
        },
        "delete_field" => Action::DeleteField(
            field(value).ok_or_else(|| Error::new(format!("{value}: unknown field")))?,
        ),
        _ => return header(pair, names),
    })
}

/// Parses `set_fcf(vm=5,priority)`.
fn set_fcf(text: &str) -> Result<Action> {
    let (mut vm, mut priority) = (None, false);
    for Pair { key, value, .. } in pairs(text) {
        match (key, value) {
            ("vm", value) => vm = Some(small::<u16>(value, 16, key)?),
            ("priority", "") => priority = true,
            _ => {
                return Err(Error::new(format!(
                    "{key}: set_fcf takes vm=ID and the word priority"
                )));
            }
        }
    }
    match vm {
        Some(vm @ 1..=VM_ID_MAX) => Ok(Action::SetFcf(Fcf { vm, priority })),
        Some(vm) => Err(Error::new(format!("vm={vm}: VM ids are 1 to {VM_ID_MAX}"))),
        None => Err(Error::new("set_fcf: vm=ID is missing")),
    }
}

/// Parses an action that changes one header, or a port, which may be a name alone.
fn header(pair: Pair<'_>, names: PortNames<'_>) -> Result<Action> {
    let Pair { key, value, .. } = pair;
    let mac =
        || ethernet(value).ok_or_else(|| Error::new(format!("{value}: invalid Ethernet address")));
    let ip = || {
        value
            .parse::<Ipv4Addr>()
            .map(u32::from)
            .map_err(|_| Error::new(format!("{value}: invalid IP address")))
    };
    Ok(match key {
        "mod_vlan_vid" | "set_vlan_vid" => Action::SetVlanVid {
            vid: small(value, 12, key)?,
            push: key == "mod_vlan_vid",
        },
        "mod_vlan_pcp" | "set_vlan_pcp" => Action::SetVlanPcp {
            pcp: small(value, 3, key)?,
            push: key == "mod_vlan_pcp",
        },
        "strip_vlan" | "pop_vlan" => Action::PopVlan,
        "push_vlan" => Action::PushVlan(small(value, 16, key)?),
        "mod_dl_src" => Action::SetEthSrc(mac()?),
        "mod_dl_dst" => Action::SetEthDst(mac()?),
        "mod_nw_src" => Action::SetIpv4Src(ip()?),
        "mod_nw_dst" => Action::SetIpv4Dst(ip()?),
        "mod_nw_tos" => match small::<u8>(value, 8, key)? {
            tos if tos & 3 == 0 => Action::SetIpTos(tos),
            tos => return Err(Error::new(format!("{tos}: not a valid TOS"))),
        },
        "mod_nw_ecn" => Action::SetIpEcn(small(value, 2, key)?),
        "mod_nw_ttl" => Action::SetIpTtl(small(value, 8, key)?),
        "mod_tp_src" => Action::SetL4Src(small(value, 16, key)?),
        "mod_tp_dst" => Action::SetL4Dst(small(value, 16, key)?),
        "copy_ttl_in" => Action::CopyTtlIn,
        "copy_ttl_out" => Action::CopyTtlOut,
        "push_mpls" => Action::PushMpls(small(value, 16, key)?),
        "pop_mpls" => Action::PopMpls(small(value, 16, key)?),
        "set_mpls_ttl" => Action::SetMplsTtl(small(value, 8, key)?),
        "dec_mpls_ttl" => Action::DecMplsTtl,
        "set_mpls_label" => Action::SetMplsLabel(small(value, 20, key)?),
        "set_mpls_tc" => Action::SetMplsTc(small(value, 3, key)?),
        "push_pbb" => Action::PushPbb(small(value, 16, key)?),
        "pop_pbb" => Action::PopPbb,
        _ if value.is_empty() => match port(key, names) {
            Some(port) => Action::Output { port, max_len: 0 },
            None => return Err(Error::new(format!("unknown action {key}"))),
        },
        _ => return Err(Error::new(format!("unknown action {key}"))),
    })
}

fn output(value: &str, names: PortNames<'_>) -> Result<Action> {
    if value.contains('=') {
        let (mut to, mut max_len) = (None, None);
        for Pair { key, value, .. } in pairs(value) {
            match key {
                "port" => to = Some(to_port(value, names, "output")?),
                "max_len" => max_len = Some(small(value, 32, key)?),
                _ => {
                    return Err(Error::new(format!(
                        "invalid key '{key}' in output_trunc argument"
                    )));
                }
            }
        }
        return match (to, max_len) {
            (Some(port), Some(max_len)) => Ok(Action::OutputTrunc { port, max_len }),
            _ => Err(Error::new(
                "output: both \"port\" and \"max_len\" must be given",
            )),
        };
    }
    if let Some(port) = port(value, names) {
        return Ok(Action::Output { port, max_len: 0 });
    }
    match subfield(value) {
        Ok(source) => Ok(Action::OutputReg {
            source,
            max_len: u16::MAX,
        }),
        Err(error) if value.contains('[') => Err(error),
        Err(_) => Err(Error::new(format!("{value}: output to unknown port"))),
    }
}

fn resubmit(value: &str, names: PortNames<'_>) -> Result<Action> {
    let mut parts = value.split(',').map(str::trim);
    let in_port = match parts.next() {
        None | Some("") => None,
        Some(name) => Some(
            port(name, names)
                .ok_or_else(|| Error::new(format!("{name}: resubmit to unknown port")))?,
        ),
    };
    let table = match parts.next() {
        None | Some("") => None,
        Some(table) => Some(
            number(table)
                .and_then(|table| u8::try_from(table).ok())
                .ok_or_else(|| Error::new(format!("{table}: resubmit to unknown table")))?,
        ),
    };
    let with_ct_orig = match parts.next() {
        None => false,
        Some("ct") => true,
        Some(other) => return Err(Error::new(format!("{other}: unknown parameter"))),
    };
    if in_port.is_none() && table.is_none() {
        return Err(Error::new(
            "at least one \"in_port\" or \"table\" must be specified on resubmit",
        ));
    }
    Ok(Action::Resubmit {
        in_port,
        table,
        with_ct_orig,
    })
}

fn set_field(text: &str, names: PortNames<'_>) -> Result<Action> {
    let (value, dst) = arrow("set_field", text)?;
    let found =
        field(dst).ok_or_else(|| Error::new(format!("{dst} is not a valid OXM field name")))?;
    let def = found.def();
    if !def.writable {
        return Err(Error::new(format!("{dst} is read-only")));
    }
    if found.tunnel_option().is_some() {
        let (value, mask) = of_option(found, value)?;
        let wide = |bytes: &[u8]| {
            let mut wide = Value::zero(def.bytes);
            wide[def.bytes - bytes.len()..].copy_from_slice(bytes);
            wide
        };
        return Ok(Action::SetField {
            field: found,
            value: wide(&value),
            mask: mask.map_or_else(|| def.place(), |mask| wide(&mask)),
        });
    }
    let read = of_field(found, value, names)?;
    let shift = |number: u128| number >> def.wire_shift << def.shift;
    if read.value & !read.mask != 0 {
        return Err(Error::new(format!(
            "{value}: the value has bits that the mask has not"
        )));
    }
    Ok(Action::SetField {
        field: found,
        value: Value::from_u128(shift(read.value), def.bytes),
        mask: Value::from_u128(shift(read.mask), def.bytes),
    })
}

fn load(text: &str, names: PortNames<'_>) -> Result<Action> {
    let (value, dst) = arrow("load", text)?;
    let dst = subfield(dst)?;
    let named = matches!(dst.field, Field::InPort | Field::InPortOxm)
        .then(|| reserved(value).or_else(|| names(value)))
        .flatten()
        .and_then(numbers::to_u16);
    let value = match named {
        Some(number) => number.into(),
        None => bounded(value, u32::from(dst.bits).min(64), "load")? as u64,
    };
    Ok(Action::Load { dst, value })
}
