//! Reading and writing runs of bits of a key's fields.

use crate::ops::{Bits, PortNo};
use crate::walk::reserved;
use packet::{Field, FlowKey, Value};

fn ones(bits: u16) -> u128 {
    if bits >= 128 {
        u128::MAX
    } else {
        (1 << bits) - 1
    }
}

/// The port that a number of at most 16 bits names, in the 32-bit numbering: the reserved ports have those from 0xff00 up. Larger numbers name none
/// (ovs-actions(7), `output:FIELD`).
pub fn port_number(number: u128) -> PortNo {
    match u16::try_from(number) {
        Ok(number @ 0xff00..) => u32::from(number) | 0xffff_0000,
        Ok(number) => number.into(),
        Err(_) => reserved::NONE,
    }
}

/// The bits, right-aligned. Fields wider than 16 bytes give their low 128 bits.
pub fn read(key: &FlowKey, from: Bits) -> u128 {
    let def = from.field.def();
    let whole = Value::from_bytes(&key.bytes()[def.offset..def.offset + def.bytes]).to_u128();
    (whole >> def.shift << def.wire_shift >> from.start) & ones(from.bits)
}

/// The value and mask, as the field lies in the key, that write the low bits of `value` to `to`.
pub fn write(to: Bits, value: u128) -> (Value, Value) {
    let def = to.field.def();
    if to.field == Field::InPort && usize::from(to.bits) == def.action_bits {
        let number = port_number(value & ones(to.bits));
        return (Value::from_u128(number.into(), def.bytes), def.place());
    }
    let place = |number: u128| {
        Value::from_u128(number << to.start >> def.wire_shift << def.shift, def.bytes)
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
