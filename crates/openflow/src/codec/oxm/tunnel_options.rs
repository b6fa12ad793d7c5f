//! Tunnel options (`NXM_NX_TUN_METADATA0` to `63`) in matches and actions.
//!
//! Their length depends on the bridge's map, so the header may have any, and a short value is
//! extended by zeros in front. Without a mask all bytes count, however many the map gives the
//! field; resolving this needs the map ([`packet::options`]).

use crate::codec::wire::Put;
use crate::model::error::Error;
use packet::options::{LONGEST, OPTIONS};
use packet::{Field, Match, Value};

/// `NXM_NX_TUN_METADATA0`, without a length.
const FIRST: u32 = 0x0001_5000;
const MASK_BIT: u32 = 1 << 8;
/// Options are a multiple of this many bytes.
const WORD: usize = 4;

/// Returns the field of a header, whatever its length.
pub(super) fn field_of(header: u32) -> Option<Field> {
    let option = ((header >> 9).checked_sub(FIRST >> 9)?) as usize;
    let length = (header & 0xff) as usize;
    (option < OPTIONS && length <= LONGEST).then(|| Field::of_tunnel_option(option))
}

/// Returns the header for actions that name a part of the field.
pub(super) fn header_alone(header: u32) -> u32 {
    header & !0xff | WORD as u32
}

/// Adds an option to a match. A mask of zeros only requires that the option is present.
pub(super) fn add(
    matching: &mut Match,
    option: usize,
    value: &[u8],
    mask: Option<&[u8]>,
) -> Result<(), Error> {
    if matching.options() >> option & 1 == 1 {
        return Err(Error::DuplicateField);
    }
    let added = match mask {
        None => matching.set_whole_option(option, value),
        Some(mask) => {
            let (value, mask) = (padded(value), padded(mask));
            matching.set_option(option, &value, Some(&mask))
        }
    };
    if added {
        Ok(())
    } else {
        Err(Error::BadMatchLength)
    }
}

/// Returns the bytes with zeros in front, as many as make whole words: at least one.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len().next_multiple_of(WORD).max(WORD);
    let mut padded = vec![0; length];
    padded[length - bytes.len()..].copy_from_slice(bytes);
    padded
}

/// Returns the number of bytes from the first nonzero one on.
fn significant(bytes: &[u8]) -> usize {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.len() - zeros
}

/// Returns whether a mask covers an option as a whole: ones over whole words at its end and nothing
/// before.
fn is_whole(mask: &[u8]) -> bool {
    let ones = significant(mask);
    ones > 0
        && ones.is_multiple_of(WORD)
        && mask[mask.len() - ones..].iter().all(|byte| *byte == 0xff)
}

fn put_entry(out: &mut Vec<u8>, option: usize, value: &[u8], mask: Option<&[u8]>) {
    let length = value.len() as u32;
    let header = FIRST + ((option as u32) << 9);
    match mask {
        None => {
            out.put_u32(header | length);
            out.put(value);
        }
        Some(mask) => {
            out.put_u32(header | MASK_BIT | (2 * length));
            out.put(value);
            out.put(mask);
        }
    }
}

/// Encodes the options of a match.
pub(super) fn put_all(out: &mut Vec<u8>, matching: &Match) {
    for option in 0..OPTIONS {
        let Some((value, mask)) = matching.option(option) else {
            continue;
        };
        if !mask.is_empty() && mask.iter().all(|byte| *byte == 0xff) {
            put_entry(out, option, &value, None);
            continue;
        }
        put_entry(out, option, &padded(&value), Some(&padded(&mask)));
    }
}

/// Encodes an option for a set-field action, as short as its value allows.
pub(super) fn put(out: &mut Vec<u8>, option: usize, value: &Value, mask: Option<&Value>) {
    let mask = mask.filter(|mask| !is_whole(mask));
    let length = mask
        .map_or(significant(value), |mask| significant(mask))
        .max(1);
    let from = value.len().saturating_sub(length);
    put_entry(out, option, &value[from..], mask.map(|mask| &mask[from..]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::oxm::{Strictness, put_fields, read_fields};

    /// The bytes are those that Open vSwitch 3.1 sends for a map of 4 bytes.
    #[test]
    fn matches_look_as_in_open_vswitch() {
        let exact = [0, 1, 0x50, 4, 0, 0, 0, 5];
        let masked = [0, 1, 0x51, 8, 0, 0, 1, 0, 0, 1, 1, 0];
        let present = [0, 1, 0x51, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        for (bytes, is_exact) in [(&exact[..], true), (&masked, false), (&present, false)] {
            let mut matching = read_fields(bytes, Strictness::Rule, false)
                .ok()
                .unwrap()
                .matching;
            if is_exact {
                // As the bridge's map does: four bytes of the value are used.
                matching.clear_option(0);
                assert!(matching.set_option(0, &bytes[4..], Some(&[0xff; 4])));
            }
            let mut out = Vec::new();
            put_fields(&mut out, &matching, 4);
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn options_that_are_too_long_or_repeated_are_refused() {
        let error = |bytes: &[u8]| read_fields(bytes, Strictness::Rule, false).err();
        let one = [0, 1, 0x50, 1, 5];
        assert_eq!(error(&[one, one].concat()), Some(Error::DuplicateField));
        let mut long = vec![0, 1, 0x50, 125];
        long.resize(4 + 125, 0);
        assert_eq!(error(&long), Some(Error::BadMatchLength));
        long[3] = 124;
        assert_eq!(error(&long[..4 + 124]), None);
    }
}
