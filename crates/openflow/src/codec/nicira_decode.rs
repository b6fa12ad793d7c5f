//! Decoding of Nicira's actions with structured arguments (`learn`, `multipath`, `bundle`,
//! `sample`, ...).
//!
//! Layouts and checks are those of Open vSwitch's `lib/ofp-actions.c`. A body begins behind the
//! subtype, ten bytes into the action.

use crate::codec::action_decode::{packed_subfield, rest_is_zero, subfield, zeroes};
use crate::codec::oxm;
use crate::codec::wire::Reader;
use crate::model::action::{
    Action, Bundle, HashFields, Learn, LearnSource, LearnSpec, LearnTarget, Multipath,
    MultipathAlgorithm, Sample, Subfield,
};
use crate::model::error::Error;
use crate::model::port;
use packet::Field;

/// `NX_LEARN_F_*`.
const SEND_FLOW_REM: u16 = 1;
const DELETE_LEARNED: u16 = 2;
const WRITE_RESULT: u16 = 4;
/// `BUNDLE_MAX_MEMBERS`.
const MOST_MEMBERS: u16 = 2048;
/// `NXM_OF_IN_PORT`, the only type of bundle members.
const MEMBER_TYPE: u32 = 0x0000_0002;

/// Decodes `NXAST_LEARN`, or `NXAST_LEARN2` if `second`.
pub(crate) fn learn(body: &mut Reader<'_>, second: bool) -> Result<Action, Error> {
    let (idle_timeout, hard_timeout, priority) = (body.u16()?, body.u16()?, body.u16()?);
    let (cookie, flags, table) = (body.u64()?, body.u16()?, body.u8()?);
    let padding = body.u8()?;
    let (fin_idle_timeout, fin_hard_timeout) = (body.u16()?, body.u16()?);
    let mut limit = 0;
    let mut result_start = 0;
    if second {
        limit = body.u32()?;
        result_start = body.u16()?;
        zeroes(body, 2, Error::ActionMustBeZero)?;
    }
    let known = SEND_FLOW_REM | DELETE_LEARNED | if second { WRITE_RESULT } else { 0 };
    if padding != 0 || table == 0xff || flags & !known != 0 {
        return Err(Error::BadActionArgument);
    }
    let result = if flags & WRITE_RESULT != 0 {
        Some(subfield(oxm::take_field(body)?, result_start, 1, true)?)
    } else if result_start != 0 {
        return Err(Error::BadActionArgument);
    } else {
        None
    };
    Ok(Action::Learn(Box::new(Learn {
        idle_timeout,
        hard_timeout,
        priority,
        cookie,
        send_flow_rem: flags & SEND_FLOW_REM != 0,
        delete_learned: flags & DELETE_LEARNED != 0,
        table,
        fin_idle_timeout,
        fin_hard_timeout,
        limit,
        result,
        specs: learn_specs(body)?,
    })))
}

/// Decodes elements up to a zero or the end; behind the zero is padding.
fn learn_specs(body: &mut Reader<'_>) -> Result<Vec<LearnSpec>, Error> {
    let mut specs = Vec::new();
    while !body.is_empty() {
        let header = body.u16()?;
        if header == 0 {
            break;
        }
        specs.push(learn_spec(body, header)?);
    }
    rest_is_zero(body, Error::BadActionArgument)?;
    Ok(specs)
}

/// Decodes one element. In its header, bit 13 means that the source is an immediate value, bits 11
/// and 12 are the target, and the low 11 bits are the width.
fn learn_spec(body: &mut Reader<'_>, header: u16) -> Result<LearnSpec, Error> {
    let bits = header & 0x7ff;
    let immediate = header & 0x2000 != 0;
    let target = header >> 11 & 3;
    if header & 0xc000 != 0 || target == 3 || target == 2 && immediate {
        return Err(Error::BadActionArgument);
    }
    // Missing bytes are reported before wrong contents.
    let source_length = if immediate {
        2 * usize::from(bits).div_ceil(16)
    } else {
        6
    };
    if body.len() < source_length + if target == 2 { 0 } else { 6 } {
        return Err(Error::BadActionLength);
    }
    let source = if immediate {
        learn_number(body, bits)?
    } else {
        LearnSource::Field(learn_field(body, bits, false)?)
    };
    let target = match target {
        0 => LearnTarget::Match(learn_field(body, bits, false)?),
        1 => LearnTarget::Load(learn_field(body, bits, true)?),
        _ => LearnTarget::Output,
    };
    Ok(LearnSpec { source, target })
}

fn learn_field(body: &mut Reader<'_>, bits: u16, write: bool) -> Result<Subfield, Error> {
    let field = oxm::take_field(body)?;
    subfield(field, body.u16()?, bits, write)
}

/// Decodes an immediate value, in as many 16-bit words as its bits need.
fn learn_number(body: &mut Reader<'_>, bits: u16) -> Result<LearnSource, Error> {
    if bits == 0 || bits > 128 {
        return Err(Error::BadSetLength);
    }
    let bytes = body.take(2 * usize::from(bits).div_ceil(16))?;
    let value = bytes
        .iter()
        .fold(0, |value: u128, byte| value << 8 | u128::from(*byte));
    if bits < 128 && value >> bits != 0 {
        return Err(Error::BadActionArgument);
    }
    Ok(LearnSource::Immediate { value, bits })
}

fn hash_fields(number: u16) -> Result<HashFields, Error> {
    Ok(match number {
        0 => HashFields::EthSrc,
        1 => HashFields::SymmetricL4,
        2 => HashFields::SymmetricL3L4,
        3 => HashFields::SymmetricL3L4Udp,
        4 => HashFields::NwSrc,
        5 => HashFields::NwDst,
        6 => HashFields::SymmetricL3,
        _ => return Err(Error::BadActionArgument),
    })
}

/// Decodes `NXAST_MULTIPATH`.
pub(crate) fn multipath(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (fields, basis) = (body.u16()?, body.u16()?);
    body.skip(2)?;
    let (algorithm, max_link, arg) = (body.u16()?, body.u16()?, body.u32()?);
    body.skip(2)?;
    let packed = body.u16()?;
    let field = oxm::take_field(body)?;
    let algorithm = match algorithm {
        0 => MultipathAlgorithm::ModuloN,
        1 => MultipathAlgorithm::HashThreshold,
        2 => MultipathAlgorithm::Hrw,
        3 => MultipathAlgorithm::IterHash,
        _ => return Err(Error::BadActionArgument),
    };
    let fields = hash_fields(fields)?;
    let bits = (packed & 0x3f) + 1;
    if bits < 16 && max_link >> bits != 0 {
        return Err(Error::BadActionArgument);
    }
    Ok(Action::Multipath(Box::new(Multipath {
        fields,
        basis,
        algorithm,
        max_link,
        arg,
        dst: packed_subfield(field, packed, true)?,
    })))
}

/// Decodes `NXAST_BUNDLE`, or `NXAST_BUNDLE_LOAD` if `load`.
pub(crate) fn bundle(body: &mut Reader<'_>, load: bool) -> Result<Action, Error> {
    let (algorithm, fields, basis) = (body.u16()?, body.u16()?, body.u16()?);
    let (member_type, count, packed) = (body.u32()?, body.u16()?, body.u16()?);
    let mut place = body.part(8, Error::BadActionLength)?;
    let dst = if load {
        let field = oxm::take_field(&mut place)?;
        if (packed & 0x3f) + 1 < 16 {
            return Err(Error::BadActionArgument);
        }
        Some(packed_subfield(field, packed, true)?)
    } else {
        if packed != 0 {
            return Err(Error::BadActionArgument);
        }
        None
    };
    rest_is_zero(&mut place, Error::BadActionArgument)?;
    let fields = hash_fields(fields)?;
    if algorithm > 1 || member_type != MEMBER_TYPE || count > MOST_MEMBERS {
        return Err(Error::BadActionArgument);
    }
    if usize::from(count) * 2 > body.len() {
        return Err(Error::BadActionLength);
    }
    let members = (0..count).map(|_| member(body)).collect::<Result<_, _>>()?;
    body.take_rest();
    Ok(Action::Bundle(Box::new(Bundle {
        fields,
        basis,
        active_backup: algorithm == 0,
        members,
        dst,
    })))
}

/// Decodes a member port, or none. Controllers cannot be members, because there is no `max_len`.
fn member(body: &mut Reader<'_>) -> Result<u32, Error> {
    let port = port::from_u16(body.u16()?);
    if port != port::ANY && (port == port::CONTROLLER || !port::is_valid_output(port)) {
        return Err(Error::BadOutPort);
    }
    Ok(port)
}

/// Decodes `NXAST_SAMPLE`, `NXAST_SAMPLE2` and `NXAST_SAMPLE3`.
pub(crate) fn sample(body: &mut Reader<'_>, form: u8) -> Result<Action, Error> {
    let mut sample = Sample {
        probability: body.u16()?,
        collector_set: body.u32()?,
        domain: body.u32()?,
        point: body.u32()?,
        port: port::ANY,
        direction: 0,
    };
    if form >= 2 {
        sample.port = port::from_u16(body.u16()?);
        let direction = body.u8()?;
        if form == 3 {
            zeroes(body, 5, Error::MustBeZero)?;
            sample.direction = direction;
        } else {
            body.skip(5)?;
        }
    }
    if sample.direction > 2 || sample.probability == 0 {
        return Err(Error::BadActionArgument);
    }
    Ok(Action::Sample(sample))
}

/// Decodes `NXAST_FIN_TIMEOUT`.
pub(crate) fn fin_timeout(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (idle, hard) = (body.u16()?, body.u16()?);
    body.skip(2)?;
    Ok(Action::FinTimeout { idle, hard })
}

/// Decodes `NXAST_CHECK_PKT_LARGER`: 24 bytes, whatever the length of the field's header.
pub(crate) fn check_pkt_larger(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (max_len, start) = (body.u16()?, body.u16()?);
    let mut rest = body.part(10, Error::BadActionLength)?;
    let field = oxm::take_field(&mut rest)?;
    rest_is_zero(&mut rest, Error::MustBeZero)?;
    Ok(Action::CheckPktLarger {
        max_len,
        dst: subfield(field, start, 1, true)?,
    })
}

/// Decodes `NXAST_DELETE_FIELD`: 24 bytes, whatever the length of the field's header.
pub(crate) fn delete_field(body: &mut Reader<'_>) -> Result<Action, Error> {
    let mut rest = body.part(14, Error::BadActionLength)?;
    let field: Field = oxm::take_field(&mut rest)?;
    Ok(Action::DeleteField(field))
}
