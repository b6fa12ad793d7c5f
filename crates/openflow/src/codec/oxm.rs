//! NXM and OXM: matches as lists of fields, values and masks.
//!
//! Both have one layout (OpenFlow 1.3.5 section 7.2.3.2): a 32-bit header of class, field number,
//! mask bit and length, then the value and, with the mask bit, a mask of the same length. Class
//! 0xffff puts an experimenter id between header and value. Everything about fields comes from
//! `packet::fields`.

mod tunnel_options;

use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::port;
use crate::model::word_field;
use packet::fields::{FIELDS, FieldDef, Maskable};
use packet::{Field, Match, Value};

/// `OFPXMC_OPENFLOW_BASIC`.
const BASIC_CLASS: u32 = 0x8000;
const EXPERIMENTER_CLASS: u32 = 0xffff;
const MASK_BIT: u32 = 1 << 8;
/// `NXM_NX_COOKIE`, not a field of packets: it filters rules by cookie (in Nicira's flow mods and
/// statistics requests).
const COOKIE_HEADER: u32 = 0x0001_3c08;

/// One entry, not yet decoded.
pub(crate) struct Entry<'a> {
    /// The header without the mask bit, with the length of the value alone (and the experimenter
    /// id).
    header: u32,
    experimenter: u32,
    value: &'a [u8],
    mask: Option<&'a [u8]>,
}

/// Why an entry is of no known field.
enum Unknown {
    /// The number is unknown.
    Number,
    /// The field has a different length.
    Length,
}

impl<'a> Entry<'a> {
    /// Reads an entry; fails with `bad_length` if it is cut short or its lengths contradict each
    /// other.
    pub(crate) fn take(reader: &mut Reader<'a>, bad_length: Error) -> Result<Entry<'a>, Error> {
        let (header, experimenter) = take_header(reader)?;
        let length = (header & 0xff) as usize;
        let prefix = prefix_length(header);
        let masked = header & MASK_BIT != 0;
        let payload = length.checked_sub(prefix).ok_or(bad_length)?;
        if masked && payload % 2 != 0 {
            return Err(bad_length);
        }
        let size = if masked { payload / 2 } else { payload };
        let value = reader.take(size)?;
        let mask = if masked {
            Some(reader.take(size)?)
        } else {
            None
        };
        Ok(Entry {
            header: header & !(MASK_BIT | 0xff) | (size + prefix) as u32,
            experimenter,
            value,
            mask,
        })
    }

    fn field(&self) -> Result<Field, Unknown> {
        field_of(self.header, self.experimenter)
    }
}

fn prefix_length(header: u32) -> usize {
    if header >> 16 == EXPERIMENTER_CLASS {
        4
    } else {
        0
    }
}

fn take_header(reader: &mut Reader<'_>) -> Result<(u32, u32), Error> {
    let header = reader.u32()?;
    let experimenter = if header >> 16 == EXPERIMENTER_CLASS {
        reader.u32()?
    } else {
        0
    };
    Ok((header, experimenter))
}

fn field_of(header: u32, experimenter: u32) -> Result<Field, Unknown> {
    if header >> 16 == BASIC_CLASS
        && let Some(field) = Field::from_oxm(header)
    {
        return Ok(field);
    }
    if let Some(field) = tunnel_options::field_of(header) {
        return Ok(field);
    }
    let found = match header >> 16 {
        EXPERIMENTER_CLASS => Field::from_experimenter(header, experimenter),
        0 | 1 => Field::from_nxm(header),
        _ => Field::from_oxm(header).or_else(|| Field::from_nxm(header)),
    };
    found.ok_or_else(|| {
        let same_number = |other: u32| other != 0 && other >> 9 == header >> 9;
        let known = FIELDS.iter().any(|def| {
            if header >> 16 == EXPERIMENTER_CLASS {
                def.oxm_experimenter == experimenter && same_number(def.oxm_experimenter_header)
            } else {
                same_number(def.nxm) || same_number(def.oxm)
            }
        });
        if known {
            Unknown::Length
        } else {
            Unknown::Number
        }
    })
}

/// Reads a field's header alone, by which Nicira's actions name subfields. The mask bit is not
/// allowed.
pub(crate) fn take_field(reader: &mut Reader<'_>) -> Result<Field, Error> {
    let (header, experimenter) = take_header(reader)?;
    if header & MASK_BIT != 0 {
        return Err(Error::BadSetType);
    }
    field_of(header, experimenter).map_err(|unknown| match unknown {
        Unknown::Number => Error::BadSetType,
        Unknown::Length => Error::BadSetLength,
    })
}

/// How strictly fields are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// A rule's match: all requirements of the specification are checked.
    Rule,
    /// Pipeline fields of a packet: unknown fields are skipped, prerequisites are not checked.
    Packet,
}

/// A decoded list of fields.
pub(crate) struct Fields {
    pub(crate) matching: Match,
    /// Cookie and mask, from the pseudo field that Nicira messages may have; the mask is 0 if it is
    /// absent.
    pub(crate) cookie: (u64, u64),
}

/// Decodes a list of fields. `cookie`: the cookie's pseudo field is allowed.
pub(crate) fn read_fields(
    bytes: &[u8],
    strictness: Strictness,
    cookie: bool,
) -> Result<Fields, Error> {
    let mut reader = Reader::new(bytes, Error::BadMatchLength);
    let mut fields = Fields {
        matching: Match::any(),
        cookie: (0, 0),
    };
    while !reader.is_empty() {
        let entry = Entry::take(&mut reader, Error::BadMatchLength)?;
        if let Some(mask) = entry.mask
            && entry.value.iter().zip(mask).any(|(v, m)| v & !m != 0)
        {
            return Err(Error::BadWildcards);
        }
        match entry.field() {
            Ok(field) => add_field(&mut fields.matching, field.def(), &entry, strictness)?,
            Err(_) if cookie && entry.header == COOKIE_HEADER => {
                if fields.cookie.1 != 0 {
                    return Err(Error::DuplicateField);
                }
                fields.cookie = (number(entry.value), entry.mask.map_or(u64::MAX, number));
            }
            Err(Unknown::Number) if strictness == Strictness::Packet => {}
            Err(Unknown::Number) => return Err(Error::BadMatchField),
            Err(Unknown::Length) => return Err(Error::BadMatchLength),
        }
    }
    Ok(fields)
}

/// Converts bytes in network order to a number; of more than eight bytes, the last eight.
#[inline]
pub(crate) fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [byte] => byte.into(),
        [a, b] => u16::from_be_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_be_bytes([a, b, c, d]).into(),
        _ => bytes
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)),
    }
}

fn add_field(
    matching: &mut Match,
    def: &FieldDef,
    entry: &Entry<'_>,
    strictness: Strictness,
) -> Result<(), Error> {
    if let Some(option) = def.field.tunnel_option() {
        return tunnel_options::add(matching, option, entry.value, entry.mask);
    }
    let mask = match entry.mask {
        None => None,
        Some(mask) if mask.iter().all(|byte| *byte == 0xff) => None,
        Some(mask) => {
            let nothing = mask.iter().all(|byte| *byte == 0);
            if def.maskable == Maskable::No && !nothing {
                return Err(Error::BadMatchMask);
            }
            Some(mask)
        }
    };
    let Some(place) = word_field::of(def.field) else {
        return add_wide_field(matching, def, entry.value, mask, strictness);
    };
    let wire = number(entry.value);
    let value = wire >> def.wire_shift;
    if value & !place.ones != 0 || value << def.wire_shift != wire {
        return Err(Error::BadMatchValue);
    }
    let is_port = matches!(def.field, Field::InPortOxm | Field::InPhyPort);
    if is_port && port::to_u16(value as u32).is_none() {
        return Err(Error::BadMatchValue);
    }
    let mask = mask.map_or(place.ones, |mask| {
        number(mask) >> def.wire_shift & place.ones
    });
    if strictness == Strictness::Rule && !word_field::met(def.prerequisite, matching) {
        return Err(Error::BadPrerequisite);
    }
    if place.get(matching).1 != 0 {
        return Err(Error::DuplicateField);
    }
    place.set(matching, value, mask);
    Ok(())
}

/// Adds to a match the value and mask of a field wider than a word, or of `in_port`.
fn add_wide_field(
    matching: &mut Match,
    def: &FieldDef,
    value: &[u8],
    mask: Option<&[u8]>,
    strictness: Strictness,
) -> Result<(), Error> {
    let value = def.from_wire(value).ok_or(Error::BadMatchValue)?;
    let mask = match mask {
        Some(mask) => def
            .mask_from_wire(mask)
            .expect("the header gave the field's length"),
        None => def.place(),
    };
    if strictness == Strictness::Rule && !word_field::met(def.prerequisite, matching) {
        return Err(Error::BadPrerequisite);
    }
    if !matching.get(def.field).1.is_zero() {
        return Err(Error::DuplicateField);
    }
    matching.set(def.field, &value, &mask);
    Ok(())
}

/// Decodes a match of OpenFlow 1.2 and later (`ofp_match` with `OFPMT_OXM`) and its padding.
pub(crate) fn take_match(reader: &mut Reader<'_>, strictness: Strictness) -> Result<Match, Error> {
    let bad = |_| Error::BadMatchLength;
    let mut head = *reader;
    let (kind, length) = (head.u16().map_err(bad)?, head.u16().map_err(bad)?);
    if kind == 0 {
        return crate::codec::match11::take_match(reader);
    }
    if kind != 1 {
        return Err(Error::BadMatchType);
    }
    let length = usize::from(length);
    if length < 4 {
        return Err(Error::BadMatchLength);
    }
    let bytes = reader.take(length.next_multiple_of(8)).map_err(bad)?;
    Ok(read_fields(&bytes[4..length], strictness, false)?.matching)
}

/// Returns the fields without a mask of a match that has been decoded, with the range of bytes of
/// each value.
pub(crate) fn exact_fields(bytes: &[u8]) -> impl Iterator<Item = (Field, usize, usize)> {
    let head = bytes.get(..4).unwrap_or_default();
    let is_oxm = head.starts_with(&[0, 1]);
    let length = head.get(2..4).map_or(0, number) as usize;
    let list = bytes.get(4..length).filter(|_| is_oxm).unwrap_or_default();
    let mut reader = Reader::new(list, Error::BadMatchLength);
    std::iter::from_fn(move || {
        loop {
            let entry = Entry::take(&mut reader, Error::BadMatchLength).ok()?;
            let end = length - reader.len();
            if let (Ok(field), None) = (entry.field(), entry.mask) {
                return Some((field, end - entry.value.len(), end));
            }
        }
    })
}

/// Decodes a Nicira match of `length` bytes and its padding.
pub(crate) fn take_nxm(
    reader: &mut Reader<'_>,
    length: u16,
    strictness: Strictness,
    cookie: bool,
) -> Result<Fields, Error> {
    let length = usize::from(length);
    let bytes = reader
        .take(length.next_multiple_of(8))
        .map_err(|_| Error::BadMatchLength)?;
    read_fields(&bytes[..length], strictness, cookie)
}

/// The order in which fields are written: Open vSwitch's (`nx_put_raw`), so that dumps can be
/// compared byte by byte.
const ORDER: &[Field] = {
    use Field::*;
    &[
        PacketType,
        DpHash,
        RecircId,
        ConjId,
        InPort,
        InPortOxm,
        ActsetOutput,
        EthSrc,
        EthDst,
        EthType,
        VlanTci,
        VlanVid,
        VlanPcp,
        MplsTc,
        MplsBos,
        MplsTtl,
        MplsLabel,
        PbbIsid,
        PbbUca,
        Ipv4Src,
        Ipv4Dst,
        Ipv6Src,
        Ipv6Dst,
        IpFrag,
        IpDscp,
        IpDscpShifted,
        IpEcn,
        IpTtl,
        Ipv6Label,
        Ipv6Ext,
        IpProto,
        TcpSrc,
        TcpDst,
        TcpFlags,
        UdpSrc,
        UdpDst,
        SctpSrc,
        SctpDst,
        Icmpv4Type,
        Icmpv4Code,
        Icmpv6Type,
        Icmpv6Code,
        NdTarget,
        NdSll,
        NdTll,
        NdOptionsType,
        ArpOp,
        ArpSpa,
        ArpTpa,
        ArpSha,
        ArpTha,
        TunId,
        TunFlags,
        TunSrc,
        TunDst,
        TunIpv6Src,
        TunIpv6Dst,
        TunGbpId,
        TunGbpFlags,
        TunMetadata0, // represents all of them
        Reg0,
        Reg1,
        Reg2,
        Reg3,
        Reg4,
        Reg5,
        Reg6,
        Reg7,
        Reg8,
        Reg9,
        Reg10,
        Reg11,
        Reg12,
        Reg13,
        Reg14,
        Reg15,
        Xreg0,
        Xreg1,
        Xreg2,
        Xreg3,
        Xreg4,
        Xreg5,
        Xreg6,
        Xreg7,
        PktMark,
        CtState,
        CtZone,
        CtMark,
        CtLabel,
        CtNwSrc,
        CtIpv6Src,
        CtNwDst,
        CtIpv6Dst,
        CtNwProto,
        CtTpSrc,
        CtTpDst,
        Metadata,
    ]
};

/// Returns whether these bits are sent to a peer of this version (1 means NXM) as this field; other
/// fields cover the same bits.
fn is_spoken(field: Field, version: u8) -> bool {
    use Field::*;
    match field {
        InPort | VlanTci | IpDscp => version == 1,
        InPortOxm | VlanVid | VlanPcp | IpDscpShifted => version != 1,
        _ if (Reg0..=Reg15).contains(&field) => version < 6,
        _ if (Xreg0..=Xreg7).contains(&field) => version >= 6,
        _ => true,
    }
}

/// Returns whether a match has only some of a tag's priority bits. `VLAN_PCP` cannot be masked, and
/// peers refuse a masked one, so Nicira's field is sent then.
fn masks_priority(matching: &Match) -> bool {
    let place = word_field::of(Field::VlanTci).map(|place| place.get(matching));
    place
        .is_some_and(|(tci, mask)| tci & mask & 0x1000 != 0 && !matches!(mask & 0xe000, 0 | 0xe000))
}

/// Encodes the fields of a match with the numbers of a version (1 for NXM).
pub(crate) fn put_fields(out: &mut Vec<u8>, matching: &Match, version: u8) {
    let words = matching.word_set();
    let whole_tag = version != 1 && masks_priority(matching);
    for field in ORDER {
        if *field == Field::TunMetadata0 {
            tunnel_options::put_all(out, matching);
            continue;
        }
        let def = field.def();
        let spoken = match field {
            Field::VlanTci if whole_tag => true,
            Field::VlanVid | Field::VlanPcp if whole_tag => false,
            field => is_spoken(*field, version),
        };
        if words.intersect(def.words()).is_empty() || !spoken {
            continue;
        }
        let Some(place) = word_field::of(*field) else {
            put_wide_field(out, def, matching, version);
            continue;
        };
        let (value, mask) = place.get(matching);
        if mask == 0 || !word_field::met(def.prerequisite, matching) {
            continue;
        }
        let masked = mask != place.ones;
        if !put_entry_header(out, def, masked, version) {
            continue;
        }
        let skipped = 8 - def.wire_bytes;
        out.put(&(value << def.wire_shift).to_be_bytes()[skipped..]);
        if masked {
            out.put(&(mask << def.wire_shift).to_be_bytes()[skipped..]);
        }
    }
}

fn put_wide_field(out: &mut Vec<u8>, def: &FieldDef, matching: &Match, version: u8) {
    let (value, mask) = matching.get(def.field);
    if !mask.is_zero() && word_field::met(def.prerequisite, matching) {
        let mask = (mask != def.place()).then_some(&mask);
        put_entry(out, def, &value, mask, version);
    }
}

/// Writes a field's header; false when it has no number.
fn put_entry_header(out: &mut Vec<u8>, def: &FieldDef, masked: bool, version: u8) -> bool {
    let Some((header, experimenter)) = def.header(version) else {
        return false;
    };
    out.put_u32(header + u32::from(masked) * (MASK_BIT + def.wire_bytes as u32));
    if experimenter != 0 {
        out.put_u32(experimenter);
    }
    true
}

/// Encodes one field, with value and mask in the key's layout. Writes nothing for a field without a
/// number.
pub(crate) fn put_entry(
    out: &mut Vec<u8>,
    def: &FieldDef,
    value: &Value,
    mask: Option<&Value>,
    version: u8,
) {
    if let Some(option) = def.field.tunnel_option() {
        return tunnel_options::put(out, option, value, mask);
    }
    if !put_entry_header(out, def, mask.is_some(), version) {
        return;
    }
    out.put(&def.to_wire(value));
    if let Some(mask) = mask {
        out.put(&def.to_wire(mask));
    }
}

/// Writes a field's header alone.
pub(crate) fn put_header(out: &mut Vec<u8>, field: Field, version: u8) {
    let (mut header, experimenter) = field.def().header(version).unwrap_or_default();
    if field.tunnel_option().is_some() {
        header = tunnel_options::header_alone(header);
    }
    out.put_u32(header);
    if experimenter != 0 {
        out.put_u32(experimenter);
    }
}

/// Encodes a match of OpenFlow 1.2 and later, padded.
pub(crate) fn put_match(out: &mut Vec<u8>, matching: &Match, version: u8) {
    let start = out.len();
    out.put_u16(1);
    out.put_u16(0);
    put_fields(out, matching, version);
    out.set_length(start + 2, start);
    out.align(start);
}

/// Encodes a Nicira match with its padding; returns its length without padding.
pub(crate) fn put_nxm(out: &mut Vec<u8>, matching: &Match, cookie: (u64, u64)) -> u16 {
    let start = out.len();
    put_fields(out, matching, 1);
    let (cookie, mask) = cookie;
    if mask == u64::MAX {
        out.put_u32(COOKIE_HEADER);
        out.put_u64(cookie);
    } else if mask != 0 {
        out.put_u32(COOKIE_HEADER + MASK_BIT + 8);
        out.put_u64(cookie & mask);
        out.put_u64(mask);
    }
    let length = (out.len() - start) as u16;
    out.align(start);
    length
}

/// Decodes the entry of a set-field action: a field, its value and, where allowed, a mask, in the
/// key's layout.
pub(crate) fn take_set_field(
    reader: &mut Reader<'_>,
    mask_allowed: bool,
) -> Result<(Field, Value, Value), Error> {
    let entry = Entry::take(reader, Error::BadSetLength).map_err(|_| Error::BadSetLength)?;
    let field = entry.field().map_err(|unknown| match unknown {
        Unknown::Number => Error::BadSetType,
        Unknown::Length => Error::BadSetLength,
    })?;
    let def = field.def();
    let mask = match entry.mask {
        None => def.place(),
        Some(_) if !mask_allowed => return Err(Error::BadSetMask),
        Some(mask) => {
            if entry.value.iter().zip(mask).any(|(v, m)| v & !m != 0) {
                return Err(Error::BadWildcards);
            }
            def.mask_from_wire(mask).ok_or(Error::BadSetLength)?
        }
    };
    if def.maskable == Maskable::No && mask != def.place() {
        return Err(Error::BadSetMask);
    }
    let value = def.from_wire(entry.value).ok_or(Error::BadSetArgument)?;
    // In a set-field, OFPVID_PRESENT must be set (OpenFlow 1.3.5 section 7.2.3.7).
    let present = 0x10;
    // The ingress port must not be set (section 7.2.5).
    if !def.writable
        || field == Field::InPortOxm
        || field == Field::VlanVid && (value[0] & present == 0 || mask[0] & present == 0)
    {
        return Err(Error::BadSetArgument);
    }
    Ok((field, value, mask))
}

/// Decodes a field that has, instead of its value, the mask of the selected bits, in the key's
/// layout (Netronome's selection method).
pub(crate) fn take_masked_field(reader: &mut Reader<'_>) -> Result<(Field, Value), Error> {
    let entry = Entry::take(reader, Error::BadPropertyLength)?;
    let field = entry.field().map_err(|unknown| match unknown {
        Unknown::Number => Error::BadMatchField,
        Unknown::Length => Error::BadMatchLength,
    })?;
    let def = field.def();
    if entry.mask.is_some() {
        return Err(Error::BadMatchMask);
    }
    let mask = def
        .mask_from_wire(entry.value)
        .ok_or(Error::BadMatchLength)?;
    if mask.is_zero() || def.maskable == Maskable::No && mask != def.place() {
        return Err(Error::BadMatchMask);
    }
    Ok((field, mask))
}

/// Reads a field's header in a list of ids (table features): the field, and whether the mask bit is
/// set. None for an unknown field.
pub(crate) fn take_id(reader: &mut Reader<'_>) -> Result<Option<(Field, bool)>, Error> {
    let (header, experimenter) = take_header(reader)?;
    let prefix = prefix_length(header) as u32;
    let masked = header & MASK_BIT != 0;
    let mut length = header & 0xff;
    if masked {
        length = length.saturating_sub(prefix) / 2 + prefix;
    }
    let header = header & !(MASK_BIT | 0xff) | length;
    Ok(field_of(header, experimenter)
        .ok()
        .map(|field| (field, masked)))
}

/// Writes a field's header for a list of ids.
pub(crate) fn put_id(out: &mut Vec<u8>, field: Field, masked: bool, version: u8) {
    put_entry_header(out, field.def(), masked, version);
}
