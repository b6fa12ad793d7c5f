//! Reads and writes runs of bits of a key's fields.

use crate::actions::reserved;
use crate::actions::{Bits, PortNo};
use packet::fields::FieldDef;
use packet::{Field, FlowKey, Value};

fn ones(bits: u16) -> u128 {
    if bits >= 128 {
        u128::MAX
    } else {
        (1 << bits) - 1
    }
}

/// Returns the port that a number of at most 16 bits names, in the 32-bit numbering: numbers from
/// 0xff00 up are the reserved ports. Larger numbers name none (ovs-actions(7), `output:FIELD`).
pub fn port_number(number: u128) -> PortNo {
    match u16::try_from(number) {
        Ok(number @ 0xff00..) => u32::from(number) | 0xffff_0000,
        Ok(number) => number.into(),
        Err(_) => reserved::NONE,
    }
}

/// Locates a field that lies within one word of the key, as most do: the word's index, and how many
/// of its bits come after the field in wire order.
#[inline(always)]
fn within(def: &FieldDef) -> Option<(usize, u32)> {
    let end = def.offset % 8 + def.bytes;
    (end <= 8).then(|| (def.offset / 8, (64 - 8 * end) as u32))
}

/// Returns the bits, right-aligned: 128 at most.
#[inline]
pub fn read(key: &FlowKey, from: Bits) -> u128 {
    let def = from.field.def();
    if let Some((word, behind)) = within(def) {
        let whole =
            u128::from(u64::from_be(key.words[word]) >> behind) & ones(8 * def.bytes as u16);
        return (whole >> def.shift << def.wire_shift >> from.start) & ones(from.bits);
    }
    let bytes = &key.bytes()[def.offset..def.offset + def.bytes];
    if def.bytes > 16 {
        // A tunnel option, all of whose bits count.
        return Value::u128_at(bytes, from.start.into()) & ones(from.bits);
    }
    let whole = Value::from_bytes(bytes).to_u128();
    (whole >> def.shift << def.wire_shift >> from.start) & ones(from.bits)
}

/// Returns the word of the key that holds the field, and the value and mask, as they lie in it,
/// that write the low bits of `value` to `to`: the same as [`write()`], for fields within one word.
/// None for others, and for any part of the ingress port, whose numbers [`write()`] translates.
#[inline]
pub fn write_in_word(to: Bits, value: u128) -> Option<(usize, u64, u64)> {
    let def = to.field.def();
    if to.field == Field::InPort {
        return None;
    }
    let (word, behind) = within(def)?;
    let place = |number: u128| {
        let placed =
            (number << to.start >> def.wire_shift << def.shift) & ones(8 * def.bytes as u16);
        ((placed as u64) << behind).to_be()
    };
    Some((word, place(value & ones(to.bits)), place(ones(to.bits))))
}

/// Returns the value and mask, as the field lies in the key, that write the low bits of `value` to
/// `to`.
pub fn write(to: Bits, value: u128) -> (Value, Value) {
    let def = to.field.def();
    if to.field == Field::InPort && usize::from(to.bits) == def.action_bits {
        let number = port_number(value & ones(to.bits));
        return (Value::from_u128(number.into(), def.bytes), def.place());
    }
    let place = |number: u128| match def.bytes {
        0..=16 => Value::from_u128(number << to.start >> def.wire_shift << def.shift, def.bytes),
        _ => Value::from_u128_at(number, to.start.into(), def.bytes),
    };
    (place(value & ones(to.bits)), place(ones(to.bits)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::key::at;

    #[test]
    fn bits_are_counted_from_the_field_and_not_from_its_bytes() {
        let mut key = FlowKey::ZERO;
        key.set_u16(at::VLAN_TCI, 0b101 << 13 | 0x1000 | 0x234);
        assert_eq!(
            read(
                &key,
                Bits {
                    field: Field::VlanPcp,
                    start: 0,
                    bits: 3
                }
            ),
            5
        );
        assert_eq!(
            read(
                &key,
                Bits {
                    field: Field::VlanVid,
                    start: 4,
                    bits: 8
                }
            ),
            0x23
        );
        let (value, mask) = write(
            Bits {
                field: Field::VlanPcp,
                start: 1,
                bits: 2,
            },
            0b11,
        );
        assert_eq!(
            (&*value, &*mask),
            (&[0b1100_0000, 0][..], &[0b1100_0000, 0][..])
        );
    }

    /// Writing by word equals writing by field, and reading returns what was written whatever
    /// surrounds it, for parts of every field: from each bit, widths of one, half and all of the
    /// remaining bits.
    #[test]
    fn words_and_bytes_agree() {
        let mut in_words = 0;
        for field in packet::fields::FIELDS.iter().map(|def| def.field) {
            let def = field.def();
            for (start, bits) in (0..def.action_bits).flat_map(|start| {
                let longest = (def.action_bits - start).min(128);
                [1, longest.div_ceil(2), longest].map(|bits| (start as u16, bits as u16))
            }) {
                let to = Bits { field, start, bits };
                let number = 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210_u128;
                let Some((word, value, mask)) = write_in_word(to, number) else {
                    continue;
                };
                let (wanted, wanted_mask) = write(to, number);
                let bytes = |value: &Value| {
                    let mut key = FlowKey::ZERO;
                    key.bytes_mut()[def.offset..def.offset + value.len()].copy_from_slice(value);
                    key
                };
                assert_eq!(
                    bytes(&wanted).words[word],
                    value,
                    "{field:?} {start} {bits}"
                );
                assert_eq!(
                    bytes(&wanted_mask).words[word],
                    mask,
                    "{field:?} {start} {bits}"
                );
                let all = bytes(&wanted).bytes()[def.offset..def.offset + def.bytes].to_vec();
                let whole = Value::from_bytes(&all).to_u128();
                let shown = (whole >> def.shift << def.wire_shift >> start) & ones(bits);
                assert_eq!(read(&bytes(&wanted), to), shown, "{field:?} {start} {bits}");
                // The same with all other bits set.
                let mut among_ones = bytes(&wanted);
                let others = bytes(&wanted_mask);
                for (word, mask) in among_ones.words.iter_mut().zip(others.words) {
                    *word |= !mask;
                }
                assert_eq!(read(&among_ones, to), shown, "{field:?} {start} {bits}");
                in_words += 1;
            }
        }
        assert!(in_words > 1000, "{in_words}");
    }

    /// Bits of a tunnel option, wherever they begin, against a reading bit by bit.
    #[test]
    fn bits_of_long_fields_are_read_and_written_from_any_bit_on() {
        let number = 0xf123_4567_89ab_cdef_fedc_ba98_7654_3211_u128;
        let field = Field::TunMetadata0;
        let def = field.def();
        let width = 8 * def.bytes as u16;
        for start in (0..width).step_by(3) {
            for bits in [1, 7, 8, 33, 64, 127, 128] {
                if start + bits > width {
                    continue;
                }
                let to = Bits { field, start, bits };
                let (value, mask) = write(to, number);
                let mut key = FlowKey::ZERO;
                key.bytes_mut()[def.offset..].copy_from_slice(&value);
                assert_eq!(read(&key, to), number & ones(bits), "{start} {bits}");
                for bit in 0..width {
                    let at = |value: &Value| {
                        value[def.bytes - 1 - usize::from(bit / 8)] >> (bit % 8) & 1 == 1
                    };
                    let inside = (start..start + bits).contains(&bit);
                    assert_eq!(at(&mask), inside, "{start} {bits}");
                    let wanted = inside && number >> (bit - start) & 1 == 1;
                    assert_eq!(at(&value), wanted, "{start} {bits}");
                }
            }
        }
    }

    #[test]
    fn the_tos_byte_has_two_bits_below_the_field() {
        let mut key = FlowKey::ZERO;
        key.set_u8(at::IP_TOS, 0b1011_0111);
        let tos = Bits {
            field: Field::IpDscp,
            start: 0,
            bits: 8,
        };
        assert_eq!(read(&key, tos), 0b1011_0100);
        let (value, mask) = write(tos, 0b0101_0111);
        assert_eq!((value[0] & mask[0], mask[0]), (0b0101_0100, 0b1111_1100));
    }

    #[test]
    fn registers_overlay_each_other() {
        let mut key = FlowKey::ZERO;
        key.set_u32(at::REG0 + 4, 0x1234_5678);
        assert_eq!(
            read(
                &key,
                Bits {
                    field: Field::Xreg0,
                    start: 0,
                    bits: 64
                }
            ),
            0x1234_5678
        );
        assert_eq!(
            read(
                &key,
                Bits {
                    field: Field::Xxreg0,
                    start: 64,
                    bits: 64
                }
            ),
            0x1234_5678
        );
    }
}
