//! Connection tracking (`NXAST_CT`, `NXAST_NAT`) and generic encapsulation (`NXAST_ENCAP`,
//! `NXAST_DECAP`): decoding and encoding. Layouts and checks are those of Open vSwitch's
//! `lib/ofp-actions.c` and `lib/ofp-ed-props.c`.

use crate::codec::action_decode::packed_subfield;
use crate::codec::action_encode::nicira;
use crate::codec::oxm;
use crate::codec::wire::{Put, Reader};
use crate::model::action::Action;
use crate::model::conntrack::*;
use crate::model::error::Error;
use packet::Field;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const COMMIT: u16 = 1;
const FORCE: u16 = 2;
/// `NX_CT_RECIRC_NONE`.
const NO_TABLE: u8 = 0xff;

/// Decodes a `ct` from behind its subtype; `nested` decodes the actions inside.
pub(crate) fn take_ct<'a>(
    body: &mut Reader<'a>,
    nested: impl FnOnce(Reader<'a>) -> Result<Vec<Action>, Error>,
) -> Result<Action, Error> {
    let flags = body.u16()?;
    let mut zone_field = body.part(4, Error::BadActionLength)?;
    let packed = body.u16()?;
    let table = Some(body.u8()?).filter(|table| *table != NO_TABLE);
    body.skip(3)?;
    let alg = body.u16()?;
    let (commit, force) = (flags & COMMIT != 0, flags & FORCE != 0);
    if flags & !(COMMIT | FORCE) != 0 || force && !commit {
        return Err(Error::BadActionArgument);
    }
    let mut header = zone_field;
    let zone = match header.u32()? {
        0 => CtZone::Number(packed),
        _ => {
            let field = oxm::take_field(&mut zone_field)?;
            let part = packed_subfield(field, packed, false)?;
            if part.bits != 16 {
                return Err(Error::BadSetLength);
            }
            CtZone::Field(part)
        }
    };
    let actions = nested(Reader::new(body.take_rest(), Error::BadActionLength))?;
    if !actions.iter().all(is_for_connection) {
        return Err(Error::BadActionArgument);
    }
    let plain = |action: &Action| matches!(action, Action::Nat(nat) if **nat == Nat::default());
    if !commit && !actions.iter().all(plain) {
        return Err(Error::BadActionArgument);
    }
    Ok(Action::Ct(Box::new(Ct {
        commit,
        force,
        zone,
        table,
        alg,
        actions,
    })))
}

/// Returns whether an action may stand inside a `ct`.
fn is_for_connection(action: &Action) -> bool {
    let field = match action {
        Action::Nat(_) => return true,
        Action::SetField { field, .. } => *field,
        Action::Load { dst, .. } | Action::Move { dst, .. } => dst.field,
        _ => return false,
    };
    matches!(field, Field::CtMark | Field::CtLabel)
}

/// Encodes a `ct`; `nested` encodes the actions inside.
pub(crate) fn put_ct(out: &mut Vec<u8>, ct: &Ct, nested: impl FnOnce(&mut Vec<u8>)) {
    nicira(out, 35, |out| {
        out.put_u16(u16::from(ct.commit) | u16::from(ct.force) << 1);
        match ct.zone {
            CtZone::Number(number) => {
                out.put_u32(0);
                out.put_u16(number);
            }
            CtZone::Field(part) => {
                oxm::put_header(out, part.field, 1);
                out.put_u16(part.start << 6 | (part.bits - 1));
            }
        }
        out.put_u8(ct.table.unwrap_or(NO_TABLE));
        out.pad(3);
        out.put_u16(ct.alg);
        nested(out);
    });
}

/// `NX_NAT_F_*`.
mod nat_flags {
    pub const SOURCE: u16 = 1;
    pub const DESTINATION: u16 = 2;
    pub const PERSISTENT: u16 = 4;
    pub const HASH: u16 = 8;
    pub const RANDOM: u16 = 16;
    pub const ALL: u16 = 31;
}

/// `NX_NAT_RANGE_*`: which parts of the range follow.
mod nat_parts {
    pub const IPV4_MIN: u16 = 1;
    pub const IPV4_MAX: u16 = 2;
    pub const IPV6_MIN: u16 = 4;
    pub const IPV6_MAX: u16 = 8;
    pub const PORT_MIN: u16 = 16;
    pub const PORT_MAX: u16 = 32;
}

/// Decodes a `nat` from behind its subtype.
pub(crate) fn take_nat(body: &mut Reader<'_>) -> Result<Action, Error> {
    use nat_flags as flag;
    body.skip(2)?;
    let (flags, parts) = (body.u16()?, body.u16()?);
    let both = |a: u16, b: u16| flags & a != 0 && flags & b != 0;
    if flags & !flag::ALL != 0
        || both(flag::SOURCE, flag::DESTINATION)
        || both(flag::HASH, flag::RANDOM)
    {
        return Err(Error::BadActionArgument);
    }
    let direction = if flags & flag::SOURCE != 0 {
        Some(NatDirection::Source)
    } else {
        (flags & flag::DESTINATION != 0).then_some(NatDirection::Destination)
    };
    // As in Open vSwitch, missing bytes are a wrong argument here, not a wrong length.
    let mut rest = Reader::new(body.take_rest(), Error::BadActionArgument);
    Ok(Action::Nat(Box::new(Nat {
        direction,
        persistent: flags & flag::PERSISTENT != 0,
        hash: flags & flag::HASH != 0,
        random: flags & flag::RANDOM != 0,
        range: take_nat_range(&mut rest, parts)?,
    })))
}

fn take_nat_range(rest: &mut Reader<'_>, parts: u16) -> Result<Option<NatRange>, Error> {
    use nat_parts as part;
    let has = |bit: u16| parts & bit != 0;
    let ipv4 = |rest: &mut Reader<'_>| rest.u32().map(|number| IpAddr::V4(number.into()));
    let ipv6 = |rest: &mut Reader<'_>| {
        let number = u128::from(rest.u64()?) << 64 | u128::from(rest.u64()?);
        Ok::<_, Error>(IpAddr::V6(number.into()))
    };
    let bad = Err(Error::BadActionArgument);
    let (min, max) = match (has(part::IPV4_MIN), has(part::IPV6_MIN)) {
        (true, false) if !has(part::IPV6_MAX) => {
            let min = ipv4(rest)?;
            (min, has(part::IPV4_MAX).then(|| ipv4(rest)).transpose()?)
        }
        (false, true) if !has(part::IPV4_MAX) => {
            let min = ipv6(rest)?;
            (min, has(part::IPV6_MAX).then(|| ipv6(rest)).transpose()?)
        }
        (false, false) if parts == 0 => return Ok(None),
        _ => return bad,
    };
    if min.is_unspecified() || max.is_some_and(|max| max < min) {
        return bad;
    }
    let (mut min_port, mut max_port) = (0, 0);
    if has(part::PORT_MIN) {
        min_port = rest.u16()?;
        if has(part::PORT_MAX) {
            max_port = rest.u16()?;
        }
        if min_port == 0 || has(part::PORT_MAX) && max_port < min_port {
            return bad;
        }
    } else if has(part::PORT_MAX) {
        return bad;
    }
    Ok(Some(NatRange {
        min,
        max,
        min_port,
        max_port,
    }))
}

/// Encodes a `nat`.
pub(crate) fn put_nat(out: &mut Vec<u8>, nat: &Nat) {
    use {nat_flags as flag, nat_parts as part};
    let direction = match nat.direction {
        None => 0,
        Some(NatDirection::Source) => flag::SOURCE,
        Some(NatDirection::Destination) => flag::DESTINATION,
    };
    let set = |on: bool, bit: u16| if on { bit } else { 0 };
    let flags = direction
        | set(nat.persistent, flag::PERSISTENT)
        | set(nat.hash, flag::HASH)
        | set(nat.random, flag::RANDOM);
    nicira(out, 36, |out| {
        out.pad(2);
        out.put_u16(flags);
        let Some(range) = nat.range else {
            return out.put_u16(0);
        };
        let parts = match range.min {
            IpAddr::V4(_) => part::IPV4_MIN | set(range.max.is_some(), part::IPV4_MAX),
            IpAddr::V6(_) => part::IPV6_MIN | set(range.max.is_some(), part::IPV6_MAX),
        };
        let ports =
            set(range.min_port != 0, part::PORT_MIN) | set(range.max_port != 0, part::PORT_MAX);
        out.put_u16(parts | ports);
        for address in std::iter::once(range.min).chain(range.max) {
            match address {
                IpAddr::V4(address) => out.put(&Ipv4Addr::octets(&address)),
                IpAddr::V6(address) => out.put(&Ipv6Addr::octets(&address)),
            }
        }
        for port in [range.min_port, range.max_port] {
            if port != 0 {
                out.put_u16(port);
            }
        }
    });
}

/// `OFPPPC_NSH` and its properties.
const NSH_CLASS: u16 = 4;
const NSH_MD_TYPE: u8 = 1;
const NSH_TLV: u8 = 2;

/// Decodes an `encap` from behind its subtype.
pub(crate) fn take_encap(body: &mut Reader<'_>) -> Result<Action, Error> {
    let (header_size, packet_type) = (body.u16()?, body.u32()?);
    if ![PACKET_TYPE_ETHERNET, PACKET_TYPE_NSH].contains(&packet_type) {
        return Err(Error::BadHeaderType);
    }
    let mut properties = Vec::new();
    while !body.is_empty() {
        properties.push(take_encap_property(body)?);
    }
    Ok(Action::Encap(Box::new(Encap {
        header_size,
        packet_type,
        properties,
    })))
}

/// Decodes a property: class, type, and length including these four bytes; padded to 8 bytes.
fn take_encap_property(body: &mut Reader<'_>) -> Result<EncapProperty, Error> {
    let (class, kind, length) = (body.u16()?, body.u8()?, usize::from(body.u8()?));
    let payload = length.checked_sub(4).ok_or(Error::BadActionLength)?;
    let mut item = body.part(payload, Error::BadActionLength)?;
    body.skip(length.next_multiple_of(8) - length)?;
    let bad = |_| Error::BadEncapProperty;
    match (class, kind) {
        (NSH_CLASS, NSH_MD_TYPE) if payload <= 4 => {
            Ok(EncapProperty::NshMdType(item.u8().map_err(bad)?))
        }
        (NSH_CLASS, NSH_TLV) => {
            let class = item.u16().map_err(bad)?;
            let kind = item.u8().map_err(bad)?;
            let size = usize::from(item.u8().map_err(bad)?);
            if item.len() != size.next_multiple_of(8) {
                return Err(Error::BadEncapProperty);
            }
            let value = item.take(size).map_err(bad)?.to_vec();
            Ok(EncapProperty::NshTlv { class, kind, value })
        }
        (NSH_CLASS, NSH_MD_TYPE) => Err(Error::BadEncapProperty),
        _ => Err(Error::UnknownEncapProperty),
    }
}

/// Encodes an `encap`.
pub(crate) fn put_encap(out: &mut Vec<u8>, encap: &Encap) {
    nicira(out, 46, |out| {
        out.put_u16(encap.header_size);
        out.put_u32(encap.packet_type);
        for property in &encap.properties {
            out.put_u16(NSH_CLASS);
            match property {
                EncapProperty::NshMdType(number) => {
                    out.put(&[NSH_MD_TYPE, 5, *number]);
                    out.pad(3);
                }
                EncapProperty::NshTlv { class, kind, value } => {
                    let padded = value.len().next_multiple_of(8);
                    out.put(&[NSH_TLV, (8 + padded) as u8]);
                    out.put_u16(*class);
                    out.put(&[*kind, value.len() as u8]);
                    out.put(value);
                    out.pad(padded - value.len());
                }
            }
        }
    });
}

/// Decodes a `decap` from behind its subtype.
pub(crate) fn take_decap(body: &mut Reader<'_>) -> Result<Action, Error> {
    body.skip(2)?;
    let packet_type = body.u32()?;
    if !body.is_empty() {
        return Err(Error::UnknownEncapProperty);
    }
    Ok(Action::Decap(packet_type))
}

/// Encodes a `decap`.
pub(crate) fn put_decap(out: &mut Vec<u8>, packet_type: u32) {
    nicira(out, 47, |out| {
        out.pad(2);
        out.put_u32(packet_type);
    });
}
