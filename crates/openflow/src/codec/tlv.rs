//! Decoding and encoding of `NXT_TLV_TABLE_MOD`, `NXT_TLV_TABLE_REQUEST` and `NXT_TLV_TABLE_REPLY`
//! (Open vSwitch's `nicira-ext.h`).

use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::tlv::{TlvCommand, TlvMapping, TlvTable, TlvTableMod};
use packet::options::{LONGEST, OPTIONS};

fn take_mappings(r: &mut Reader<'_>) -> Result<Vec<TlvMapping>, Error> {
    let mut mappings = Vec::new();
    while !r.is_empty() {
        let mapping = TlvMapping {
            class: r.u16()?,
            kind: r.u8()?,
            length: r.u8()?,
            field: r.u16()?,
        };
        r.skip(2)?;
        if !mapping.length.is_multiple_of(4) || usize::from(mapping.length) > LONGEST {
            return Err(Error::TlvBadLength);
        }
        if usize::from(mapping.field) >= OPTIONS {
            return Err(Error::TlvBadField);
        }
        mappings.push(mapping);
    }
    Ok(mappings)
}

fn put_mappings(out: &mut Vec<u8>, mappings: &[TlvMapping]) {
    for mapping in mappings {
        out.put_u16(mapping.class);
        out.put(&[mapping.kind, mapping.length]);
        out.put_u16(mapping.field);
        out.pad(2);
    }
}

/// Decodes the body of a change, from the command on.
pub(crate) fn take_mod(r: &mut Reader<'_>) -> Result<TlvTableMod, Error> {
    let command = match r.u16()? {
        0 => TlvCommand::Add,
        1 => TlvCommand::Delete,
        2 => TlvCommand::Clear,
        _ => return Err(Error::TlvBadCommand),
    };
    r.skip(6)?;
    Ok(TlvTableMod {
        command,
        mappings: take_mappings(r)?,
    })
}

pub(crate) fn put_mod(out: &mut Vec<u8>, change: &TlvTableMod) {
    out.put_u16(change.command as u16);
    out.pad(6);
    put_mappings(out, &change.mappings);
}

/// Decodes the body of a reply.
pub(crate) fn take_table(r: &mut Reader<'_>) -> Result<TlvTable, Error> {
    let (max_space, max_fields) = (r.u32()?, r.u16()?);
    r.skip(10)?;
    Ok(TlvTable {
        max_space,
        max_fields,
        mappings: take_mappings(r)?,
    })
}

pub(crate) fn put_table(out: &mut Vec<u8>, table: &TlvTable) {
    out.put_u32(table.max_space);
    out.put_u16(table.max_fields);
    out.pad(10);
    put_mappings(out, &table.mappings);
}
