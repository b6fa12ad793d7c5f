//! Fields as numbers inside a match's words: what `packet::fields` says of a field, prepared for
//! the codecs' inner loops.
//!
//! Most fields are within one 64-bit word of the key. Reading or adding such a field takes a shift
//! and a mask; access by bytes, which wide fields need (IPv6 addresses, labels), costs ten times as
//! much.

use packet::fields::{FIELDS, Prerequisite};
use packet::{Field, Match};
use std::sync::LazyLock;

/// The position of a field that is within one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordField {
    word: u8,
    /// Distance in bits between the lowest bits of the word and of the field, in network byte
    /// order.
    lift: u32,
    /// The field's bits, right-aligned.
    pub(crate) ones: u64,
}

static PLACES: LazyLock<Vec<Option<WordField>>> = LazyLock::new(|| {
    let place = |def: &packet::fields::FieldDef| {
        let last = def.offset % 8 + def.bytes;
        // `in_port` has two widths; the conversions of `packet` handle it.
        (last <= 8 && def.field != Field::InPort).then(|| WordField {
            word: (def.offset / 8) as u8,
            lift: (8 * (8 - last) + def.shift) as u32,
            ones: u64::MAX >> (64 - def.bits),
        })
    };
    FIELDS.iter().map(place).collect()
});

/// Returns the position of a field within one word; None for others.
#[inline]
pub(crate) fn of(field: Field) -> Option<WordField> {
    PLACES[field as usize]
}

impl WordField {
    /// Returns the field's value and mask in a match, right-aligned.
    #[inline]
    pub(crate) fn get(self, matching: &Match) -> (u64, u64) {
        match matching
            .words()
            .iter()
            .find(|entry| entry.word == self.word)
        {
            None => (0, 0),
            Some(entry) => (
                u64::from_be(entry.value) >> self.lift & self.ones,
                u64::from_be(entry.mask) >> self.lift & self.ones,
            ),
        }
    }

    /// Adds bits to a match; both numbers must fit the field.
    #[inline]
    pub(crate) fn set(self, matching: &mut Match, value: u64, mask: u64) {
        let lifted = |number: u64| (number << self.lift).to_be();
        matching.set_word(self.word.into(), lifted(value), lifted(mask));
    }
}

/// Returns the field's value in a match, with bits that it leaves open as zero.
#[inline]
fn number(matching: &Match, field: Field) -> u64 {
    of(field).map_or(0, |place| place.get(matching).0)
}

/// Returns whether a match meets a prerequisite: like [`Prerequisite::met_by`], but faster for the
/// usual ones.
#[inline]
pub(crate) fn met(prerequisite: Prerequisite, matching: &Match) -> bool {
    use Prerequisite as P;
    let eth_type = || number(matching, Field::EthType);
    match prerequisite {
        P::None => true,
        P::Ipv4 => eth_type() == 0x0800,
        P::Ipv6 => eth_type() == 0x86dd,
        P::IpAny => matches!(eth_type(), 0x0800 | 0x86dd),
        P::Arp => matches!(eth_type(), 0x0806 | 0x8035),
        P::Mpls => matches!(eth_type(), 0x8847 | 0x8848),
        P::VlanPresent => number(matching, Field::VlanTci) & 0x1000 != 0,
        P::Tcp | P::Udp | P::Sctp => {
            let protocol = match prerequisite {
                P::Tcp => 6,
                P::Udp => 17,
                _ => 132,
            };
            matches!(eth_type(), 0x0800 | 0x86dd)
                && number(matching, Field::IpProto) == protocol
                && number(matching, Field::IpFrag) & 2 == 0
        }
        other => other.met_by(matching),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Access as numbers gives the same as access by bytes, for every field.
        #[test]
        fn as_by_bytes(index in 0..FIELDS.len(), value: u64, mask: u64, other in 0..FIELDS.len(), eth_type: u16, protocol: u8) {
            let def = &FIELDS[index];
            let Some(place) = of(def.field) else { return Ok(()) };
            let (value, mask) = (value & mask & place.ones, mask & place.ones);
            let mut matching = Match::any();
            place.set(&mut matching, value, mask);
            let (bytes, mask_bytes) = matching.get(def.field);
            prop_assert_eq!(bytes.to_u64() >> def.shift, value);
            prop_assert_eq!(mask_bytes.to_u64() >> def.shift, mask);
            prop_assert_eq!(place.get(&matching), (value, mask));
            for (eth_type, protocol) in [(eth_type, protocol), (0x0800, 6), (0x86dd, 17), (0x0800, 132), (0x0806, 1)] {
                let mut matching = matching.clone();
                matching.set_exact(Field::EthType, eth_type.into());
                matching.set_exact(Field::IpProto, protocol.into());
                let prerequisite = FIELDS[other].prerequisite;
                prop_assert_eq!(met(prerequisite, &matching), prerequisite.met_by(&matching));
            }
        }
    }
}
