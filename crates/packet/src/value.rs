//! A field's value as bytes in network order.

use smallvec::SmallVec;

/// The bytes of a field's value in network order, as many as the field has in the key. Up to 16
/// bytes are stored inline.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Value(SmallVec<[u8; 16]>);

impl Value {
    /// Returns a value of `len` zero bytes.
    pub fn zero(len: usize) -> Value {
        Value(SmallVec::from_elem(0, len))
    }

    /// Copies `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Value {
        Value(SmallVec::from_slice(bytes))
    }

    /// Returns the low `len` bytes of `value`; beyond 16, zeros are put in front.
    pub fn from_u128(value: u128, len: usize) -> Value {
        let mut out = Value::zero(len);
        let bytes = value.to_be_bytes();
        let n = len.min(16);
        out.0[len - n..].copy_from_slice(&bytes[16 - n..]);
        out
    }

    /// Returns a value of `len` bytes with a number `shift` bits from its end. Bits that do not fit
    /// are dropped.
    pub fn from_u128_at(value: u128, shift: usize, len: usize) -> Value {
        let mut out = Value::zero(len);
        let bytes = out.iter_mut().rev().skip(shift / 8);
        for (index, byte) in bytes.take(17).enumerate() {
            *byte = match (8 * index as u32).checked_sub(shift as u32 % 8) {
                Some(from) => value.checked_shr(from).unwrap_or(0) as u8,
                None => (value << (shift % 8)) as u8,
            };
        }
        out
    }

    /// Returns the 128 bits from `shift` bits before the end of `bytes` on, as a number.
    pub fn u128_at(bytes: &[u8], shift: usize) -> u128 {
        let bytes = bytes.iter().rev().skip(shift / 8).take(17);
        bytes.enumerate().fold(0, |number, (index, byte)| {
            let byte = u128::from(*byte);
            number
                | match (8 * index as u32).checked_sub(shift as u32 % 8) {
                    Some(to) => byte.checked_shl(to).unwrap_or(0),
                    None => byte >> (shift % 8),
                }
        })
    }

    /// Returns a value of `len` bytes whose low `bits` bits are one.
    pub fn ones(bits: usize, len: usize) -> Value {
        Value::ones_at(0, bits, len)
    }

    /// Returns a value of `len` bytes with `bits` consecutive one bits, the lowest of them bit
    /// `shift`.
    pub fn ones_at(shift: usize, bits: usize, len: usize) -> Value {
        let mut out = Value::zero(len);
        for bit in shift..(shift + bits).min(len * 8) {
            out.0[len - 1 - bit / 8] |= 1 << (bit % 8);
        }
        out
    }

    /// Returns the low 128 bits as a number.
    pub fn to_u128(&self) -> u128 {
        self.0
            .iter()
            .fold(0, |value, byte| value << 8 | u128::from(*byte))
    }

    /// Returns the low 64 bits as a number.
    pub fn to_u64(&self) -> u64 {
        self.to_u128() as u64
    }

    /// Returns whether every bit is zero.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

impl std::ops::Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for Value {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
