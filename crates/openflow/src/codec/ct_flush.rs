//! Decoding and encoding of `NXT_CT_FLUSH` and `NXT_CT_FLUSH_ZONE` (Open vSwitch's `nicira-ext.h`).

use crate::codec::action_encode::property;
use crate::codec::wire::{Put, Reader};
use crate::model::ct_flush::{CtFlush, CtTuple};
use crate::model::error::Error;

pub(crate) fn take_flush_zone(r: &mut Reader<'_>) -> Result<CtFlush, Error> {
    if r.take(6)?.iter().any(|byte| *byte != 0) {
        return Err(Error::MustBeZero);
    }
    Ok(CtFlush {
        zone: Some(r.u16()?),
        ..CtFlush::default()
    })
}

pub(crate) fn take_flush(r: &mut Reader<'_>) -> Result<CtFlush, Error> {
    let mut flush = CtFlush {
        protocol: r.u8()?,
        ..CtFlush::default()
    };
    if r.take(7)?.iter().any(|byte| *byte != 0) {
        return Err(Error::MustBeZero);
    }
    while !r.is_empty() {
        let (kind, mut content) = r.property(Error::BadPropertyLength)?;
        match kind {
            0 => flush.original = Some(take_tuple(&mut content)?),
            1 => flush.reply = Some(take_tuple(&mut content)?),
            2 => flush.zone = Some(padded(&mut content)?),
            _ => return Err(Error::BadPropertyType),
        }
        if !content.is_empty() {
            return Err(Error::BadPropertyLength);
        }
    }
    Ok(flush)
}

/// Reads a 16-bit number. Two bytes of padding count in its property's length.
fn padded(content: &mut Reader<'_>) -> Result<u16, Error> {
    let number = content.u16()?;
    content.skip(2)?;
    Ok(number)
}

fn take_tuple(r: &mut Reader<'_>) -> Result<CtTuple, Error> {
    // Nested properties begin at a multiple of 8.
    r.skip(4)?;
    let mut tuple = CtTuple::default();
    while !r.is_empty() {
        let (kind, mut value) = r.property(Error::BadPropertyLength)?;
        let address = |value: &mut Reader<'_>| {
            Ok::<_, Error>(u128::from(value.u64()?) << 64 | u128::from(value.u64()?))
        };
        match kind {
            0 => tuple.source = Some(address(&mut value)?),
            1 => tuple.destination = Some(address(&mut value)?),
            2 => tuple.source_port = Some(padded(&mut value)?),
            3 => tuple.destination_port = Some(padded(&mut value)?),
            4 => tuple.icmp_id = Some(padded(&mut value)?),
            5 => tuple.icmp_type = Some(value.u8()?),
            6 => tuple.icmp_code = Some(value.u8()?),
            _ => return Err(Error::BadPropertyType),
        }
        if !value.is_empty() {
            return Err(Error::BadPropertyLength);
        }
    }
    Ok(tuple)
}

/// Writes the part of `NXT_CT_FLUSH` behind the subtype.
pub(crate) fn put_flush(out: &mut Vec<u8>, flush: &CtFlush) {
    out.put_u8(flush.protocol);
    out.pad(7);
    for (kind, tuple) in [(0, flush.original), (1, flush.reply)] {
        if let Some(tuple) = tuple {
            property(out, kind, |out| put_tuple(out, &tuple));
        }
    }
    if let Some(zone) = flush.zone {
        property(out, 2, |out| put_padded(out, zone));
    }
}

fn put_padded(out: &mut Vec<u8>, number: u16) {
    out.put_u16(number);
    out.pad(2);
}

fn put_tuple(out: &mut Vec<u8>, tuple: &CtTuple) {
    out.pad(4);
    for (kind, address) in [(0, tuple.source), (1, tuple.destination)] {
        if let Some(address) = address {
            property(out, kind, |out| out.put(&address.to_be_bytes()));
        }
    }
    let words = [tuple.source_port, tuple.destination_port, tuple.icmp_id];
    for (kind, word) in (2..).zip(words) {
        if let Some(word) = word {
            property(out, kind, |out| put_padded(out, word));
        }
    }
    for (kind, byte) in (5..).zip([tuple.icmp_type, tuple.icmp_code]) {
        if let Some(byte) = byte {
            property(out, kind, |out| out.put_u8(byte));
        }
    }
}
