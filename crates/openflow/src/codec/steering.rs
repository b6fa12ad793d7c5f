//! Sluice's own messages and actions: decoding and encoding; docs/protocol-extensions.md has the
//! layouts.

use crate::codec::wire::{Put, Reader};
use crate::model::action::Action;
use crate::model::error::Error;
use crate::model::steering::{
    Abilities, Command, Device, EXPERIMENTER, Fcf, HostCapabilities, IrqCore, Layout, MATCH_MAX,
    Mode, ModeReply, ModeSource, NAME_LEN, NO_CORE, Steering, SteeringMod, SteeringStats, Target,
    VM_ID_MAX, VmReason, VmStatus, XdpMode,
};

/// Numbers of messages.
mod kind {
    pub const CAPABILITIES_REQUEST: u32 = 1;
    pub const CAPABILITIES_REPLY: u32 = 2;
    pub const MODE_REQUEST: u32 = 3;
    pub const MODE_REPLY: u32 = 4;
    pub const VM_STATUS: u32 = 5;
    pub const STEERING_MOD: u32 = 6;
    pub const STATS_REQUEST: u32 = 7;
    pub const STATS_REPLY: u32 = 8;
}

/// Numbers of actions.
const SET_FCF: u16 = 1;
const STEER: u16 = 2;

/// No mode: the mode is only requested, or no controller has chosen one.
const NO_MODE: u8 = 0xff;
/// No virtual machine.
const NO_VM: u16 = 0xffff;
/// The priority bit of flags.
const PRIORITY: u16 = 1;
/// The flag that more parts follow.
const MORE: u16 = 1;
/// A device's flag that the field is trusted.
const TRUSTED: u8 = 1;

/// Returns the value found, or [`Error::BadPropertyValue`] for an unknown number.
fn known<T>(found: Option<T>) -> Result<T, Error> {
    found.ok_or(Error::BadPropertyValue)
}

fn zeroes(r: &mut Reader<'_>, n: usize) -> Result<(), Error> {
    match r.take(n)?.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(Error::MustBeZero),
    }
}

/// Decodes a device's name in a field of [`NAME_LEN`] bytes. It must be a valid name of a kernel
/// interface, so that it can be part of a path.
fn take_name(r: &mut Reader<'_>) -> Result<String, Error> {
    let bytes = r.take(NAME_LEN)?;
    let end = bytes.iter().position(|byte| *byte == 0);
    let (name, rest) = bytes.split_at(known(end)?);
    let name = known(std::str::from_utf8(name).ok())?;
    let strange = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    if name.contains(strange) || matches!(name, "." | "..") || rest.iter().any(|byte| *byte != 0) {
        return Err(Error::BadPropertyValue);
    }
    Ok(name.to_owned())
}

fn take_vm(number: u16) -> Result<u16, Error> {
    match number {
        1..=VM_ID_MAX => Ok(number),
        _ => Err(Error::BadPropertyValue),
    }
}

fn take_optional_vm(number: u16) -> Result<Option<u16>, Error> {
    match number {
        NO_VM => Ok(None),
        _ => take_vm(number).map(Some),
    }
}

/// Returns the table of a kind and a name.
fn target(kind: u8, name: String) -> Result<Target, Error> {
    match (kind, name.is_empty()) {
        (0, true) => Ok(Target::Datapath),
        (1, false) => Ok(Target::Device(name)),
        _ => Err(Error::BadPropertyValue),
    }
}

fn put_target(out: &mut Vec<u8>, target: &Target, padding: usize) {
    let (kind, name) = match target {
        Target::Datapath => (0, ""),
        Target::Device(name) => (1, name.as_str()),
    };
    out.put_u8(kind);
    out.pad(padding);
    out.put_text(name, NAME_LEN);
}

/// Decodes the text of a match: its length, its bytes, and padding to 8 bytes; `before` is the
/// number of bytes in front of it.
fn take_match(r: &mut Reader<'_>, before: usize) -> Result<String, Error> {
    let length = usize::from(r.u16()?);
    if length > MATCH_MAX {
        return Err(Error::BadPropertyLength);
    }
    let text = std::str::from_utf8(r.take(length)?).map_err(|_| Error::BadMatchValue)?;
    let whole = before + 2 + length;
    zeroes(r, whole.next_multiple_of(8) - whole)?;
    Ok(text.to_owned())
}

fn put_match(out: &mut Vec<u8>, text: &str, start: usize) {
    let mut end = text.len().min(MATCH_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.put_u16(end as u16);
    out.put(&text.as_bytes()[..end]);
    out.align(start);
}

fn take_core(how: u8, core: u32) -> Result<IrqCore, Error> {
    match (how, core) {
        (0, NO_CORE) => Ok(IrqCore::Choose),
        (1, NO_CORE) => Ok(IrqCore::PerEntry),
        (2, NO_CORE) => Ok(IrqCore::PerFlow),
        (3, core) if core != NO_CORE => Ok(IrqCore::Core(core)),
        _ => Err(Error::BadPropertyValue),
    }
}

fn core_number(core: IrqCore) -> (u8, u32) {
    match core {
        IrqCore::Choose => (0, NO_CORE),
        IrqCore::PerEntry => (1, NO_CORE),
        IrqCore::PerFlow => (2, NO_CORE),
        IrqCore::Core(core) => (3, core),
    }
}

/// Decodes a message from its number on.
pub(crate) fn take(r: &mut Reader<'_>) -> Result<Steering, Error> {
    Ok(match r.u32()? {
        kind::CAPABILITIES_REQUEST => Steering::CapabilitiesRequest,
        kind::CAPABILITIES_REPLY => Steering::CapabilitiesReply(take_capabilities(r)?),
        kind::MODE_REQUEST => {
            let mode = take_mode(r.u8()?)?;
            zeroes(r, 7)?;
            Steering::ModeRequest(mode)
        }
        kind::MODE_REPLY => {
            let mode = known(Mode::from_wire(r.u8()?))?;
            let source = known(ModeSource::from_wire(r.u8()?))?;
            let chosen = take_mode(r.u8()?)?;
            zeroes(r, 5)?;
            Steering::ModeReply(ModeReply {
                mode,
                source,
                chosen,
            })
        }
        kind::VM_STATUS => Steering::VmStatus(take_vm_status(r)?),
        kind::STEERING_MOD => Steering::Mod(take_mod(r)?),
        kind::STATS_REQUEST => {
            let kind = r.u8()?;
            zeroes(r, 7)?;
            Steering::StatsRequest(target(kind, take_name(r)?)?)
        }
        kind::STATS_REPLY => {
            let flags = r.u16()?;
            zeroes(r, 6)?;
            if flags & !MORE != 0 {
                return Err(Error::BadPropertyValue);
            }
            let mut entries = Vec::new();
            while !r.is_empty() {
                entries.push(take_stats(r)?);
            }
            let more = flags & MORE != 0;
            Steering::StatsReply { entries, more }
        }
        _ => return Err(Error::BadExperimenterType),
    })
}

fn take_mode(number: u8) -> Result<Option<Mode>, Error> {
    match number {
        NO_MODE => Ok(None),
        _ => known(Mode::from_wire(number)).map(Some),
    }
}

fn take_layout(number: u8) -> Result<Option<Layout>, Error> {
    match number {
        0 => Ok(None),
        _ => known(Layout::from_wire(number)).map(Some),
    }
}

fn take_capabilities(r: &mut Reader<'_>) -> Result<HostCapabilities, Error> {
    let (cores, workers) = (r.u16()?, r.u16()?);
    let mode = known(Mode::from_wire(r.u8()?))?;
    let source = known(ModeSource::from_wire(r.u8()?))?;
    let layouts = r.u8()?;
    let layout = take_layout(r.u8()?)?;
    let abilities = known(Abilities::from_bits(r.u32()?))?;
    zeroes(r, 4)?;
    // Bit n is the layout with number n + 1.
    if layouts & !7 != 0 {
        return Err(Error::BadPropertyValue);
    }
    let all = Layout::ALL.into_iter().map(|(_, layout)| layout);
    let layouts = all.filter(|layout| layouts >> (*layout as u8 - 1) & 1 == 1);
    let layouts = layouts.collect();
    let mut devices = Vec::new();
    while !r.is_empty() {
        let name = take_name(r)?;
        let mode = known(XdpMode::from_wire(r.u8()?))?;
        let layout = take_layout(r.u8()?)?;
        let flags = r.u8()?;
        zeroes(r, 5)?;
        if flags & !TRUSTED != 0 || name.is_empty() {
            return Err(Error::BadPropertyValue);
        }
        devices.push(Device {
            name,
            mode,
            layout,
            trusted: flags & TRUSTED != 0,
        });
    }
    Ok(HostCapabilities {
        cores,
        workers,
        mode,
        source,
        layouts,
        layout,
        abilities,
        devices,
    })
}

fn take_vm_status(r: &mut Reader<'_>) -> Result<VmStatus, Error> {
    let reason = known(VmReason::from_wire(r.u8()?))?;
    let flags = r.u8()?;
    if flags & !1 != 0 {
        return Err(Error::BadPropertyValue);
    }
    Ok(VmStatus {
        reason,
        priority: flags & 1 != 0,
        vm: take_vm(r.u16()?)?,
        port: r.u32()?,
        tenant: r.u32()?,
        core: r.u32()?,
    })
}

fn take_mod(r: &mut Reader<'_>) -> Result<SteeringMod, Error> {
    let cookie = r.u64()?;
    let command = Command::from_wire(r.u8()?).ok_or(Error::BadCommand)?;
    let (how, precedence, core) = (r.u8()?, r.u16()?, r.u32()?);
    let core = take_core(how, core)?;
    let (idle_timeout, hard_timeout) = (r.u16()?, r.u16()?);
    let vm = take_optional_vm(r.u16()?)?;
    let flags = r.u16()?;
    if flags & !PRIORITY != 0 {
        return Err(Error::BadFlags);
    }
    Ok(SteeringMod {
        command,
        cookie,
        precedence,
        core,
        idle_timeout,
        hard_timeout,
        vm,
        priority: flags & PRIORITY != 0,
        matching: take_match(r, 24)?,
    })
}

fn take_stats(r: &mut Reader<'_>) -> Result<SteeringStats, Error> {
    let (cookie, packets, bytes) = (r.u64()?, r.u64()?, r.u64()?);
    let (precedence, vm) = (r.u16()?, take_optional_vm(r.u16()?)?);
    let (flags, how) = (r.u8()?, r.u8()?);
    zeroes(r, 2)?;
    if u16::from(flags) & !PRIORITY != 0 {
        return Err(Error::BadPropertyValue);
    }
    let core = r.u32()?;
    Ok(SteeringStats {
        cookie,
        packets,
        bytes,
        precedence,
        vm,
        priority: flags != 0,
        core: take_core(how, core)?,
        chosen: r.u32()?,
        matching: take_match(r, 40)?,
    })
}

/// Encodes a message from the experimenter id on.
pub(crate) fn put(out: &mut Vec<u8>, message: &Steering) {
    out.put_u32(EXPERIMENTER);
    match message {
        Steering::CapabilitiesRequest => out.put_u32(kind::CAPABILITIES_REQUEST),
        Steering::CapabilitiesReply(capabilities) => {
            out.put_u32(kind::CAPABILITIES_REPLY);
            put_capabilities(out, capabilities);
        }
        Steering::ModeRequest(mode) => {
            out.put_u32(kind::MODE_REQUEST);
            out.put_u8(mode.map_or(NO_MODE, |mode| mode as u8));
            out.pad(7);
        }
        Steering::ModeReply(reply) => {
            out.put_u32(kind::MODE_REPLY);
            out.put_u8(reply.mode as u8);
            out.put_u8(reply.source as u8);
            out.put_u8(reply.chosen.map_or(NO_MODE, |mode| mode as u8));
            out.pad(5);
        }
        Steering::VmStatus(status) => {
            out.put_u32(kind::VM_STATUS);
            out.put_u8(status.reason as u8);
            out.put_u8(status.priority.into());
            out.put_u16(status.vm);
            out.put_u32(status.port);
            out.put_u32(status.tenant);
            out.put_u32(status.core);
        }
        Steering::Mod(change) => {
            out.put_u32(kind::STEERING_MOD);
            put_mod(out, change);
        }
        Steering::StatsRequest(target) => {
            out.put_u32(kind::STATS_REQUEST);
            put_target(out, target, 7);
        }
        Steering::StatsReply { entries, more } => {
            out.put_u32(kind::STATS_REPLY);
            out.put_u16(if *more { MORE } else { 0 });
            out.pad(6);
            for entry in entries {
                put_stats(out, entry);
            }
        }
    }
}

fn put_capabilities(out: &mut Vec<u8>, capabilities: &HostCapabilities) {
    out.put_u16(capabilities.cores);
    out.put_u16(capabilities.workers);
    out.put_u8(capabilities.mode as u8);
    out.put_u8(capabilities.source as u8);
    let layouts = capabilities.layouts.iter();
    out.put_u8(layouts.fold(0, |bits, layout| bits | 1 << (*layout as u8 - 1)));
    out.put_u8(capabilities.layout.map_or(0, |layout| layout as u8));
    out.put_u32(capabilities.abilities.bits());
    out.pad(4);
    for device in &capabilities.devices {
        out.put_text(&device.name, NAME_LEN);
        out.put_u8(device.mode as u8);
        out.put_u8(device.layout.map_or(0, |layout| layout as u8));
        out.put_u8(if device.trusted { TRUSTED } else { 0 });
        out.pad(5);
    }
}

fn put_mod(out: &mut Vec<u8>, change: &SteeringMod) {
    let start = out.len();
    let (how, core) = core_number(change.core);
    out.put_u64(change.cookie);
    out.put_u8(change.command as u8);
    out.put_u8(how);
    out.put_u16(change.precedence);
    out.put_u32(core);
    out.put_u16(change.idle_timeout);
    out.put_u16(change.hard_timeout);
    out.put_u16(change.vm.unwrap_or(NO_VM));
    out.put_u16(if change.priority { PRIORITY } else { 0 });
    put_match(out, &change.matching, start);
}

fn put_stats(out: &mut Vec<u8>, entry: &SteeringStats) {
    let start = out.len();
    let (how, core) = core_number(entry.core);
    out.put_u64(entry.cookie);
    out.put_u64(entry.packets);
    out.put_u64(entry.bytes);
    out.put_u16(entry.precedence);
    out.put_u16(entry.vm.unwrap_or(NO_VM));
    out.put_u8(entry.priority.into());
    out.put_u8(how);
    out.pad(2);
    out.put_u32(core);
    out.put_u32(entry.chosen);
    put_match(out, &entry.matching, start);
}

/// Decodes an action from its number on.
pub(crate) fn take_action(body: &mut Reader<'_>) -> Result<Action, Error> {
    let whole = body.len() + 8;
    let number = body.u16()?;
    match (number, whole) {
        (SET_FCF, 16) => {
            let (vm, flags) = (body.u16()?, body.u8()?);
            zeroes(body, 3).map_err(|_| Error::BadActionArgument)?;
            set_fcf(Fcf {
                vm,
                priority: flags & 1 != 0,
            })
            .filter(|_| flags & !1 == 0)
            .ok_or(Error::BadActionArgument)
        }
        (STEER, 32) => {
            let bad = |_| Error::BadActionArgument;
            let kind = body.u8()?;
            zeroes(body, 1).map_err(bad)?;
            let name = take_name(body).map_err(bad)?;
            zeroes(body, 4).map_err(bad)?;
            Ok(Action::Steer(target(kind, name).map_err(bad)?))
        }
        (SET_FCF | STEER, _) => Err(Error::BadActionLength),
        _ => Err(Error::BadActionExperimenterType),
    }
}

/// Returns the action if the VM id is valid in some layout.
pub(crate) fn set_fcf(fcf: Fcf) -> Option<Action> {
    (1..=VM_ID_MAX)
        .contains(&fcf.vm)
        .then_some(Action::SetFcf(fcf))
}

/// Encodes an action's body, from the experimenter id on; nothing for other actions.
pub(crate) fn put_action(out: &mut Vec<u8>, action: &Action) {
    match action {
        Action::SetFcf(fcf) => {
            out.put_u32(EXPERIMENTER);
            out.put_u16(SET_FCF);
            out.put_u16(fcf.vm);
            out.put_u8(fcf.priority.into());
            out.pad(3);
        }
        Action::Steer(target) => {
            out.put_u32(EXPERIMENTER);
            out.put_u16(STEER);
            put_target(out, target, 1);
            out.pad(4);
        }
        _ => {}
    }
}
