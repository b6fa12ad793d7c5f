//! Decoding of actions.
//!
//! An action has a type, a length and a body (OpenFlow 1.3.5 section 7.2.5); Nicira's and ONF's
//! have type 0xffff, an experimenter id and a subtype. Versions number standard actions
//! differently: 1.0 has a list of its own, later versions extend that of 1.1. Nicira's numbers
//! (`NXAST_*`) are the same everywhere. Each decoder reads its whole body, padding included; bytes
//! left over are a length error.

use crate::codec::conntrack;
use crate::codec::nicira_decode;
use crate::codec::oxm;
use crate::codec::steering;
use crate::codec::wire::Reader;
use crate::model::action::{Action, Subfield};
use crate::model::error::{Error, NICIRA, ONF};
use crate::model::group;
use crate::model::port;
use crate::model::steering::{EXPERIMENTER, from_note};
use packet::Field;
use std::ops::RangeInclusive;

/// Maximum nesting of `clone`, so that a message cannot exhaust the stack.
const MAX_DEPTH: u8 = 16;

/// Actions, and what 1.0 encodes as an action but later versions as an instruction.
#[derive(Default)]
pub(crate) struct ActionList {
    pub(crate) actions: Vec<Action>,
    /// Value and mask of Nicira's `write_metadata`.
    pub(crate) write_metadata: Option<(u64, u64)>,
}

/// The result of decoding one action.
enum Taken {
    Action(Action),
    WriteMetadata(u64, u64),
}

/// Reads the actions that fill `reader`.
pub(crate) fn take_actions(reader: Reader<'_>, version: u8) -> Result<ActionList, Error> {
    take_nested(reader, version, Nest::default())
}

/// The lists in which a list of actions is nested.
#[derive(Clone, Copy, Default)]
struct Nest {
    depth: u8,
    in_connection: bool,
}

impl Nest {
    fn within(self) -> Nest {
        Nest {
            depth: self.depth + 1,
            in_connection: false,
        }
    }

    fn connection(self) -> Nest {
        Nest {
            depth: self.depth + 1,
            in_connection: true,
        }
    }
}

fn take_nested(mut reader: Reader<'_>, version: u8, nest: Nest) -> Result<ActionList, Error> {
    if nest.depth > MAX_DEPTH {
        return Err(Error::BadActionArgument);
    }
    let mut list = ActionList::default();
    // Most lists have one action, of 8 or 16 bytes.
    if (8..=16).contains(&reader.len()) {
        list.actions.reserve_exact(1);
    }
    while !reader.is_empty() {
        let (kind, mut body) = take_header(&mut reader)?;
        if kind != 0xffff && !standard_length(kind, version).contains(&(body.len() + 4)) {
            return Err(Error::BadActionLength);
        }
        let taken = match kind {
            0xffff => experimenter(&mut body, version, nest)?,
            _ if version == 1 => Taken::Action(standard10(kind, &mut body)?),
            _ => Taken::Action(standard11(kind, &mut body, version)?),
        };
        if !body.is_empty() {
            return Err(Error::BadActionLength);
        }
        match taken {
            Taken::WriteMetadata(..) if nest.depth > 0 || list.write_metadata.is_some() => {
                return Err(Error::BadActionArgument);
            }
            Taken::WriteMetadata(value, mask) => list.write_metadata = Some((value, mask)),
            Taken::Action(_) if list.write_metadata.is_some() => {
                return Err(Error::UnsupportedOrder);
            }
            Taken::Action(action) => list.actions.push(action),
        }
    }
    Ok(list)
}

/// Returns the lengths that a standard action may have; a wrong length is reported before wrong
/// contents.
fn standard_length(kind: u16, version: u8) -> RangeInclusive<usize> {
    match (version, kind) {
        (1, 4 | 5 | 11) | (2.., 0 | 3 | 4) => 16..=16,
        (1, ..=11) | (2.., ..=24 | 26 | 27 | 29) => 8..=8,
        _ => 8..=usize::MAX,
    }
}

/// Returns the lengths that one of Nicira's actions may have.
fn nicira_length(subtype: u16) -> RangeInclusive<usize> {
    match subtype {
        1 | 2 | 4 | 5 | 9 | 14 | 17..=20 | 23..=26 | 30 | 31 | 34 | 39 | 40 | 43 | 44 | 48 => {
            let long = if subtype == 9 { 24 } else { 16 };
            long..=long
        }
        7 | 15 | 27..=29 | 32 | 49 | 50 => 24..=24,
        10 | 22 | 38 | 41 => 32..=32,
        12 | 13 | 16 => 32..=usize::MAX,
        45 => 40..=usize::MAX,
        6 | 35 => 24..=usize::MAX,
        _ => 16..=usize::MAX,
    }
}

fn take_header<'a>(reader: &mut Reader<'a>) -> Result<(u16, Reader<'a>), Error> {
    let bad = |_| Error::BadActionLength;
    let kind = reader.u16().map_err(bad)?;
    let length = usize::from(reader.u16().map_err(bad)?);
    if length < 8 || length % 8 != 0 || length - 4 > reader.len() {
        return Err(Error::BadActionLength);
    }
    Ok((kind, reader.part(length - 4, Error::BadActionLength)?))
}

/// Reads a value and the padding behind it.
fn padded<'a, T>(
    body: &mut Reader<'a>,
    padding: usize,
    take: impl Fn(&mut Reader<'a>) -> Result<T, Error>,
) -> Result<T, Error> {
    let value = take(body)?;
    body.skip(padding)?;
    Ok(value)
}

/// Returns an argument, which may only have bits in `allowed`.
fn within(value: u32, allowed: u32) -> Result<u32, Error> {
    if value & !allowed != 0 {
        return Err(Error::BadActionArgument);
    }
    Ok(value)
}

/// Decodes actions of OpenFlow 1.0 (section 5.2.4).
fn standard10(kind: u16, body: &mut Reader<'_>) -> Result<Action, Error> {
    Ok(match kind {
        0 => Action::Output {
            port: port::from_u16(body.u16()?),
            max_len: body.u16()?,
        },
        1 => set_vlan_vid(body, true)?,
        2 => set_vlan_pcp(body, true)?,
        3 => padded(body, 4, |_| Ok(Action::PopVlan))?,
        4..=8 => legacy_set(kind - 1, body)?,
        9 => Action::SetL4Src(padded(body, 2, Reader::u16)?),
        10 => Action::SetL4Dst(padded(body, 2, Reader::u16)?),
        11 => Action::Enqueue {
            port: port::from_u16(padded(body, 6, Reader::u16)?),
            queue: body.u32()?,
        },
        _ => return Err(Error::BadActionType),
    })
}

/// Decodes actions of OpenFlow 1.1 and later (1.1 section A.2.5, 1.5.1 section 7.2.6). Those that
/// set-field replaced are still understood.
fn standard11(kind: u16, body: &mut Reader<'_>, version: u8) -> Result<Action, Error> {
    Ok(match kind {
        0 => output11(body)?,
        1 => set_vlan_vid(body, false)?,
        2 => set_vlan_pcp(body, false)?,
        3..=7 => legacy_set(kind, body)?,
        8 => Action::SetIpEcn(within(padded(body, 3, Reader::u8)?.into(), 3)? as u8),
        9 => Action::SetL4Src(padded(body, 2, Reader::u16)?),
        10 => Action::SetL4Dst(padded(body, 2, Reader::u16)?),
        11 => padded(body, 4, |_| Ok(Action::CopyTtlOut))?,
        12 => padded(body, 4, |_| Ok(Action::CopyTtlIn))?,
        13 => Action::SetMplsLabel(within(body.u32()?, 0xf_ffff)?),
        14 => Action::SetMplsTc(within(padded(body, 3, Reader::u8)?.into(), 7)? as u8),
        15 => Action::SetMplsTtl(padded(body, 3, Reader::u8)?),
        16 => padded(body, 4, |_| Ok(Action::DecMplsTtl))?,
        17 => match padded(body, 2, Reader::u16)? {
            tpid @ (0x8100 | 0x88a8) => Action::PushVlan(tpid),
            _ => return Err(Error::BadActionArgument),
        },
        18 => padded(body, 4, |_| Ok(Action::PopVlan))?,
        19 => push_mpls(padded(body, 2, Reader::u16)?)?,
        20 => Action::PopMpls(padded(body, 2, Reader::u16)?),
        21 => Action::SetQueue(body.u32()?),
        22 => group_action(body.u32()?)?,
        23 => Action::SetIpTtl(padded(body, 3, Reader::u8)?),
        24 => padded(body, 4, |_| Ok(Action::DecTtl(vec![0])))?,
        25 if version >= 3 => set_field(body, version >= 6)?,
        26 if version >= 4 => match padded(body, 2, Reader::u16)? {
            0x88e7 => Action::PushPbb(0x88e7),
            _ => return Err(Error::BadActionArgument),
        },
        27 if version >= 4 => padded(body, 4, |_| Ok(Action::PopPbb))?,
        28 if version >= 6 => copy_field(body)?,
        29 if version >= 6 => match body.u32()? {
            meter @ 1..=crate::model::meter::MAX => Action::Meter(meter),
            _ => return Err(Error::InvalidMeter),
        },
        _ => return Err(Error::BadActionType),
    })
}

fn output11(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (port, max_len) = (body.u32()?, body.u16()?);
    body.skip(6)?;
    port::to_u16(port).ok_or(Error::BadOutPort)?;
    Ok(Action::Output { port, max_len })
}

/// Decodes the set actions common to 1.0 and 1.1, by their number in 1.1.
fn legacy_set(kind: u16, body: &mut Reader<'_>) -> Result<Action, Error> {
    Ok(match kind {
        3 => Action::SetEthSrc(padded(body, 6, Reader::mac)?),
        4 => Action::SetEthDst(padded(body, 6, Reader::mac)?),
        5 => Action::SetIpv4Src(body.u32()?),
        6 => Action::SetIpv4Dst(body.u32()?),
        _ => Action::SetIpTos(within(padded(body, 3, Reader::u8)?.into(), 0xfc)? as u8),
    })
}

fn set_vlan_vid(body: &mut Reader<'_>, push: bool) -> Result<Action, Error> {
    let vid = within(padded(body, 2, Reader::u16)?.into(), 0xfff)? as u16;
    Ok(Action::SetVlanVid { vid, push })
}

fn set_vlan_pcp(body: &mut Reader<'_>, push: bool) -> Result<Action, Error> {
    let pcp = within(padded(body, 3, Reader::u8)?.into(), 7)? as u8;
    Ok(Action::SetVlanPcp { pcp, push })
}

fn push_mpls(ethertype: u16) -> Result<Action, Error> {
    match ethertype {
        0x8847 | 0x8848 => Ok(Action::PushMpls(ethertype)),
        _ => Err(Error::BadActionArgument),
    }
}

fn group_action(number: u32) -> Result<Action, Error> {
    if number > group::MAX {
        return Err(Error::BadOutGroup);
    }
    Ok(Action::Group(number))
}

fn set_field(body: &mut Reader<'_>, mask_allowed: bool) -> Result<Action, Error> {
    let (field, value, mask) = oxm::take_set_field(body, mask_allowed)?;
    if body.take_rest().iter().any(|byte| *byte != 0) {
        return Err(Error::BadSetArgument);
    }
    Ok(Action::SetField { field, value, mask })
}

/// Checks and returns a subfield that is read or, if `write`, written.
pub(crate) fn subfield(
    field: Field,
    start: u16,
    bits: u16,
    write: bool,
) -> Result<Subfield, Error> {
    if bits == 0 || usize::from(start) + usize::from(bits) > field.def().action_bits {
        return Err(Error::BadSetLength);
    }
    if write && !field.def().writable {
        return Err(Error::BadSetArgument);
    }
    Ok(Subfield { field, start, bits })
}

/// Decodes `ofs_nbits`: the start in the high ten bits, the width minus 1 in the low six.
pub(crate) fn packed_subfield(field: Field, packed: u16, write: bool) -> Result<Subfield, Error> {
    subfield(field, packed >> 6, (packed & 0x3f) + 1, write)
}

/// Decodes `OFPAT_COPY_FIELD` (1.5.1 section 7.2.6.9) and ONF's extension 320, from the bit count
/// on.
fn copy_field(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (bits, src_start, dst_start) = (body.u16()?, body.u16()?, body.u16()?);
    body.skip(2)?;
    let (src, dst) = (oxm::take_field(body)?, oxm::take_field(body)?);
    rest_is_zero(body, Error::MustBeZero)?;
    Ok(Action::Move {
        src: subfield(src, src_start, bits, false)?,
        dst: subfield(dst, dst_start, bits, true)?,
    })
}

fn experimenter(body: &mut Reader<'_>, version: u8, nest: Nest) -> Result<Taken, Error> {
    match body.u32()? {
        NICIRA => nicira(body, version, nest),
        ONF => match body.u16()? {
            3200 if (4..=5).contains(&version) => {
                body.skip(2)?;
                Ok(Taken::Action(copy_field(body)?))
            }
            _ => Err(Error::BadActionExperimenterType),
        },
        EXPERIMENTER => Ok(Taken::Action(steering::take_action(body)?)),
        _ => Err(Error::BadActionExperimenter),
    }
}

/// Decodes Nicira's actions, by `NXAST_*` number.
fn nicira(body: &mut Reader<'_>, version: u8, nest: Nest) -> Result<Taken, Error> {
    let whole = body.len() + 8;
    let subtype = body.u16()?;
    if !nicira_length(subtype).contains(&whole) {
        return Err(Error::BadActionLength);
    }
    Ok(Taken::Action(match subtype {
        1 => Action::Resubmit {
            in_port: explicit_port(padded(body, 4, Reader::u16)?),
            table: None,
            with_ct_orig: false,
        },
        2 => {
            body.skip(2)?;
            let id = body.u32()?.into();
            Action::SetTunnel { id, wide: false }
        }
        5 => padded(body, 6, |_| Ok(Action::PopQueue))?,
        // 1.5 has copy-field and set-field instead.
        6 if version <= 5 => reg_move(body)?,
        7 if version <= 5 => reg_load(body)?,
        8 => note(body.take_rest())?,
        9 => {
            body.skip(6)?;
            let id = body.u64()?;
            Action::SetTunnel { id, wide: true }
        }
        14 | 44 => resubmit_table(body, subtype == 44)?,
        15 | 32 => output_reg(body, subtype == 32)?,
        17 => padded(body, 6, |_| Ok(Action::Exit))?,
        20 => controller(body)?,
        21 => dec_ttl_ids(body)?,
        22 => return write_metadata(body),
        27 => Action::StackPush(stack(body, false)?),
        28 => Action::StackPop(stack(body, true)?),
        33 if version <= 5 => set_field(body, true)?,
        10 => nicira_decode::multipath(body)?,
        12 | 13 => nicira_decode::bundle(body, subtype == 13)?,
        16 | 45 => nicira_decode::learn(body, subtype == 45)?,
        19 => nicira_decode::fin_timeout(body)?,
        29 => nicira_decode::sample(body, 1)?,
        38 => nicira_decode::sample(body, 2)?,
        41 => nicira_decode::sample(body, 3)?,
        49 => nicira_decode::check_pkt_larger(body)?,
        50 => nicira_decode::delete_field(body)?,
        34 => conjunction(body)?,
        35 => conntrack::take_ct(body, |nested| {
            Ok(take_nested(nested, version, Nest::connection(nest))?.actions)
        })?,
        36 if nest.in_connection => conntrack::take_nat(body)?,
        36 => return Err(Error::BadSetArgument),
        43 => padded(body, 6, |_| Ok(Action::CtClear))?,
        46 if version >= 4 => conntrack::take_encap(body)?,
        47 if version >= 4 => conntrack::take_decap(body)?,
        48 if version >= 4 => padded(body, 6, |_| Ok(Action::DecNshTtl))?,
        37 => controller2(body)?,
        39 => output_trunc(body)?,
        42 => {
            body.skip(6)?;
            let nested = Reader::new(body.take_rest(), Error::BadActionLength);
            Action::Clone(take_nested(nested, version, Nest::within(nest))?.actions)
        }
        _ if version == 1 => nicira_for_standard(subtype, body)?,
        _ => return Err(Error::BadActionExperimenterType),
    }))
}

/// Decodes Nicira's actions that 1.0 uses where later versions have standard ones.
fn nicira_for_standard(subtype: u16, body: &mut Reader<'_>) -> Result<Action, Error> {
    Ok(match subtype {
        4 => {
            body.skip(2)?;
            Action::SetQueue(body.u32()?)
        }
        18 => padded(body, 6, |_| Ok(Action::DecTtl(vec![0])))?,
        23 => push_mpls(padded(body, 4, Reader::u16)?)?,
        24 => Action::PopMpls(padded(body, 4, Reader::u16)?),
        25 => Action::SetMplsTtl(padded(body, 5, Reader::u8)?),
        26 => padded(body, 6, |_| Ok(Action::DecMplsTtl))?,
        30 => {
            body.skip(2)?;
            Action::SetMplsLabel(within(body.u32()?, 0xf_ffff)?)
        }
        31 => Action::SetMplsTc(within(padded(body, 5, Reader::u8)?.into(), 7)? as u8),
        40 => {
            body.skip(2)?;
            group_action(body.u32()?)?
        }
        _ => return Err(Error::BadActionExperimenterType),
    })
}

/// Decodes a note, or the action that it represents.
fn note(bytes: &[u8]) -> Result<Action, Error> {
    match from_note(bytes) {
        Some(fcf) => steering::set_fcf(fcf).ok_or(Error::BadActionArgument),
        None => Ok(Action::Note(bytes.to_vec())),
    }
}

/// Returns the port of a resubmit; None for `IN_PORT`, the packet's own.
fn explicit_port(number: u16) -> Option<u32> {
    Some(port::from_u16(number)).filter(|port| *port != port::IN_PORT)
}

pub(crate) fn zeroes(body: &mut Reader<'_>, n: usize, error: Error) -> Result<(), Error> {
    if body.take(n)?.iter().any(|byte| *byte != 0) {
        return Err(error);
    }
    Ok(())
}

pub(crate) fn rest_is_zero(body: &mut Reader<'_>, error: Error) -> Result<(), Error> {
    zeroes(body, body.len(), error)
}

fn resubmit_table(body: &mut Reader<'_>, with_ct_orig: bool) -> Result<Action, Error> {
    let in_port = explicit_port(body.u16()?);
    let table = Some(body.u8()?).filter(|table| *table != 0xff);
    zeroes(body, 3, Error::BadActionArgument)?;
    Ok(Action::Resubmit {
        in_port,
        table,
        with_ct_orig,
    })
}

fn reg_move(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (bits, src_start, dst_start) = (body.u16()?, body.u16()?, body.u16()?);
    let (src, dst) = (oxm::take_field(body)?, oxm::take_field(body)?);
    // Padding follows if an experimenter's header made the action longer.
    rest_is_zero(body, Error::MustBeZero)?;
    Ok(Action::Move {
        src: subfield(src, src_start, bits, false)?,
        dst: subfield(dst, dst_start, bits, true)?,
    })
}

fn reg_load(body: &mut Reader<'_>) -> Result<Action, Error> {
    let packed = body.u16()?;
    let field = oxm::take_field(body)?;
    let value = body.u64()?;
    let dst = packed_subfield(field, packed, true)?;
    if dst.bits < 64 && value >> dst.bits != 0 {
        return Err(Error::BadActionArgument);
    }
    Ok(Action::Load { dst, value })
}

fn output_reg(body: &mut Reader<'_>, second: bool) -> Result<Action, Error> {
    let packed = body.u16()?;
    let (field, max_len) = if second {
        let max_len = body.u16()?;
        (oxm::take_field(body)?, max_len)
    } else {
        (oxm::take_field(body)?, body.u16()?)
    };
    rest_is_zero(body, Error::BadActionArgument)?;
    Ok(Action::OutputReg {
        source: packed_subfield(field, packed, false)?,
        max_len,
    })
}

fn controller(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (max_len, controller_id, reason) = (body.u16()?, body.u16()?, body.u8()?);
    body.skip(1)?;
    Ok(Action::Controller {
        max_len,
        controller_id,
        reason,
        userdata: Vec::new(),
        pause: false,
        meter_id: None,
    })
}

/// Decodes `NXAST_CONTROLLER2`, the form with properties.
fn controller2(body: &mut Reader<'_>) -> Result<Action, Error> {
    zeroes(body, 6, Error::MustBeZero)?;
    let (mut max_len, mut controller_id, mut reason) = (u16::MAX, 0, 1);
    let (mut userdata, mut pause, mut meter_id) = (Vec::new(), false, None);
    while !body.is_empty() {
        let (kind, mut content) = body.property(Error::BadPropertyLength)?;
        match kind {
            0 => max_len = content.u16()?,
            1 => controller_id = content.u16()?,
            2 => reason = content.u8()?,
            3 => userdata = content.take_rest().to_vec(),
            4 => pause = true,
            5 => meter_id = Some(content.u32()?),
            _ => return Err(Error::BadPropertyType),
        }
    }
    Ok(Action::Controller {
        max_len,
        controller_id,
        reason,
        userdata,
        pause,
        meter_id,
    })
}

fn dec_ttl_ids(body: &mut Reader<'_>) -> Result<Action, Error> {
    let count = body.u16()?;
    zeroes(body, 4, Error::MustBeZero)?;
    if usize::from(count) * 2 > body.len() {
        return Err(Error::BadActionLength);
    }
    let ids = (0..count).map(|_| body.u16()).collect::<Result<_, _>>()?;
    body.take_rest();
    Ok(Action::DecTtl(ids))
}

fn write_metadata(body: &mut Reader<'_>) -> Result<Taken, Error> {
    zeroes(body, 6, Error::MustBeZero)?;
    Ok(Taken::WriteMetadata(body.u64()?, body.u64()?))
}

fn stack(body: &mut Reader<'_>, write: bool) -> Result<Subfield, Error> {
    let start = body.u16()?;
    let field = oxm::take_field(body)?;
    let bits = body.u16()?;
    rest_is_zero(body, Error::MustBeZero)?;
    subfield(field, start, bits, write)
}

fn conjunction(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (clause, clauses, id) = (body.u8()?, body.u8()?, body.u32()?);
    if !(2..=64).contains(&clauses) || clause >= clauses {
        return Err(Error::BadConjunction);
    }
    Ok(Action::Conjunction {
        id,
        clause,
        clauses,
    })
}

fn output_trunc(body: &mut Reader<'_>) -> Result<Action, Error> {
    let port = port::from_u16(body.u16()?);
    let max_len = body.u32()?;
    if max_len < 14 {
        return Err(Error::BadActionArgument);
    }
    Ok(Action::OutputTrunc { port, max_len })
}
