//! Tunnel header options (Geneve): `tun_metadata0` to `tun_metadata63`.
//!
//! Each bridge's map says which option (class, type) of what length a field stands for; a field
//! here is only a place in the key. The key has [`SPACE`] bytes for the bodies of all options
//! together, and a bit per option that says whether the packet has it. Field n ends at a fixed
//! place, 4 bytes below where field n - 1 ends, and extends downwards over the length in its map,
//! across the places of the fields after it if necessary. So as many 4-byte options as fit lie side
//! by side, and a longer one takes the place of neighbours that are not mapped; whoever keeps the
//! map ensures that no two overlap ([`Place`]). After the last place, numbering starts again at the
//! first.
//!
//! A match on an option includes its bit: a packet without the option never matches (as in Open
//! vSwitch).

use crate::fields::{FIELDS, Field};
use crate::key::{WORDS, at};
use crate::matching::Match;
use crate::value::Value;

/// Number of fields.
pub const OPTIONS: usize = 64;
/// Bytes for all options together.
pub const SPACE: usize = WORDS * 8 - at::TUN_METADATA;
/// Largest body of one option, in bytes (RFC 8926 section 3.5).
pub const LONGEST: usize = 124;

/// Bytes between the ends of neighbouring options.
const STEP: usize = 4;

/// Returns the offset in the key of the byte after an option.
pub const fn end(option: usize) -> usize {
    WORDS * 8 - option % (SPACE / STEP) * STEP
}

/// Returns how many bytes an option can have at its place.
pub const fn capacity(option: usize) -> usize {
    let room = end(option) - at::TUN_METADATA;
    if room < LONGEST { room } else { LONGEST }
}

/// The bytes of the key for an option of a given length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The first byte of the key.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Place {
    /// Returns the place; None if the option does not fit.
    pub fn new(option: usize, length: usize) -> Option<Place> {
        (option < OPTIONS && length <= capacity(option)).then(|| Place {
            start: end(option) - length,
            end: end(option),
        })
    }

    /// Returns whether two places share a byte, or would if they were not empty.
    pub fn overlaps(self, other: Place) -> bool {
        self.end == other.end || self.start < other.end && other.start < self.end
    }
}

impl Field {
    /// Returns the number of a tunnel option's field; None for other fields.
    #[inline]
    pub fn tunnel_option(self) -> Option<usize> {
        (self >= Field::TunMetadata0 && self <= Field::TunMetadata63)
            .then(|| self as usize - Field::TunMetadata0 as usize)
    }

    /// Returns the field of an option; `option` must be below [`OPTIONS`].
    pub fn of_tunnel_option(option: usize) -> Field {
        assert!(option < OPTIONS);
        FIELDS[Field::TunMetadata0 as usize + option].field
    }
}

impl Match {
    /// Returns the options that the match names, as a bit set.
    pub fn options(&self) -> u64 {
        let word = self
            .words()
            .iter()
            .find(|entry| usize::from(entry.word) == at::TUN_METADATA_PRESENT / 8);
        word.map_or(0, |entry| u64::from_be(entry.mask))
    }

    /// Returns how many bytes an option can have next to the other options that the match names.
    fn room(&self, option: usize) -> usize {
        let own = end(option);
        let named = self.options();
        let others = (0..OPTIONS).filter(|other| *other != option && named >> other & 1 == 1);
        let below = others.map(end).filter(|end| *end <= own).max();
        capacity(option).min(own - below.unwrap_or(0).min(own))
    }

    /// Shortens the named option above a new one if it reaches down into the new one's place.
    /// Returns false, and changes nothing, if it has values there; zeros of an option that is
    /// matched as a whole do not count.
    fn make_room(&mut self, option: usize) -> bool {
        let own = end(option);
        let named = self.options();
        let above = (0..OPTIONS)
            .filter(|other| *other != option && named >> other & 1 == 1 && end(*other) >= own)
            .min_by_key(|other| end(*other));
        let Some(above) = above else { return true };
        let from = end(above) - self.room(above);
        let Some(reach) = own.checked_sub(from) else {
            return true;
        };
        let (_, whole) = self.bytes(from, end(above) - from);
        let (value, mask) = self.bytes(from, reach);
        if !(mask.is_zero() || value.is_zero() && whole.iter().all(|byte| *byte == 0xff)) {
            return false;
        }
        self.clear_bytes(from, reach);
        true
    }

    /// Matches an option: it must be present and have these right-aligned bits. Without a mask, all
    /// of its bytes are compared, and those in front of `value` must be zero. Returns false if it
    /// does not fit or the match names it already.
    pub fn set_option(&mut self, option: usize, value: &[u8], mask: Option<&[u8]>) -> bool {
        let bit = 1_u64 << option;
        let fits =
            value.len() <= capacity(option) && mask.is_none_or(|mask| mask.len() == value.len());
        if !fits || self.options() & bit != 0 {
            return false;
        }
        let room = self.room(option);
        let (mut values, mut masks) = (Value::zero(room), Value::zero(room));
        let mask = mask.map_or_else(|| vec![0xff; value.len()], <[u8]>::to_vec);
        let kept = room.min(value.len());
        values[room - kept..].copy_from_slice(&value[value.len() - kept..]);
        masks[room - kept..].copy_from_slice(&mask[value.len() - kept..]);
        // Bytes that were cut off matter only if they were compared.
        if mask[..value.len() - kept].iter().any(|byte| *byte != 0) || !self.make_room(option) {
            return false;
        }
        self.clear_bytes(end(option) - room, room);
        self.set_bytes(end(option) - room, &values, &masks);
        let bit = bit.to_be_bytes();
        self.set_bytes(at::TUN_METADATA_PRESENT, &bit, &bit);
        true
    }

    /// Like [`Match::set_option`], comparing all bytes that the option has.
    pub fn set_whole_option(&mut self, option: usize, value: &[u8]) -> bool {
        let room = self.room(option);
        let mut whole = Value::zero(room.max(value.len()));
        let from = whole.len() - value.len();
        whole[from..].copy_from_slice(value);
        self.set_option(option, &whole, None)
    }

    /// Returns value and mask of an option, right-aligned, up to where the next option begins; None
    /// if the match does not name it.
    pub fn option(&self, option: usize) -> Option<(Value, Value)> {
        if self.options() >> option & 1 == 0 {
            return None;
        }
        let room = self.room(option);
        Some(self.bytes(end(option) - room, room))
    }

    /// Removes an option from the match.
    pub fn clear_option(&mut self, option: usize) {
        if self.options() >> option & 1 == 1 {
            let room = self.room(option);
            self.clear_bytes(end(option) - room, room);
            self.clear_bits(at::TUN_METADATA_PRESENT, &(1_u64 << option).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_four_bytes_are_side_by_side() {
        assert_eq!(SPACE % STEP, 0);
        let places: Vec<Place> = (0..SPACE / STEP)
            .map(|option| Place::new(option, 4).unwrap())
            .collect();
        for (index, one) in places.iter().enumerate() {
            assert!(one.start >= at::TUN_METADATA && one.end <= WORDS * 8);
            assert!(
                places[index + 1..]
                    .iter()
                    .all(|other| !one.overlaps(*other))
            );
        }
        for option in 0..OPTIONS {
            let def = Field::of_tunnel_option(option).def();
            assert_eq!(def.field.tunnel_option(), Some(option));
            assert_eq!(
                (def.offset + def.bytes, def.bytes),
                (end(option), capacity(option))
            );
        }
        assert_eq!(
            Place::new(0, LONGEST).map(|place| place.end),
            Some(WORDS * 8)
        );
        assert_eq!(Place::new(35, 8), None);
    }

    #[test]
    fn what_is_said_of_options_is_told_in_any_order() {
        for order in [[0, 1, 3], [3, 1, 0], [1, 0, 3], [0, 3, 1]] {
            let mut matching = Match::any();
            for option in order {
                assert!(match option {
                    0 => matching.set_whole_option(0, &[5]),
                    1 => matching.set_option(1, &[0x12, 0x30], Some(&[0xff, 0xf0])),
                    _ => matching.set_option(3, &[], None),
                });
            }
            let (value, mask) = matching.option(0).unwrap();
            assert_eq!((&*value, &*mask), (&[0, 0, 0, 5][..], &[0xff; 4][..]));
            let (value, mask) = matching.option(1).unwrap();
            assert_eq!(value.to_u64(), 0x1230);
            assert_eq!((mask.to_u64(), mask.len()), (0xfff0, 8));
            let (_, mask) = matching.option(3).unwrap();
            assert!(mask.is_zero());
            assert_eq!(matching.option(2), None);
            assert!(!matching.set_option(3, &[1], None), "named twice");
            order
                .iter()
                .for_each(|option| matching.clear_option(*option));
            assert_eq!(matching, Match::any());
        }
    }

    /// Options that end at the same place, or one within another.
    #[test]
    fn what_has_been_said_is_not_lost_to_a_new_name() {
        let round = SPACE / STEP;
        let whole = |value: &[u8], option: usize| {
            let mut matching = Match::any();
            assert!(matching.set_whole_option(option, value));
            matching
        };
        // 4 bytes of one option, and then the presence of another that has the same place.
        let mut matching = whole(&[4], 20);
        let before = matching.clone();
        assert!(!matching.set_option(20 + round, &[], None));
        assert_eq!(matching, before, "a refused name leaves a match as it was");
        // An option that is zero throughout gives way.
        let mut matching = whole(&[], 20);
        assert!(matching.set_option(20 + round, &[], None));
        assert!(matching.option(20).unwrap().1.is_empty());
        matching.clear_option(20);
        matching.clear_option(20 + round);
        assert_eq!(matching, Match::any());
        // Eight bytes that are compared, and then an option in place of the first four of them.
        let mut matching = Match::any();
        assert!(matching.set_option(0, &[1, 0, 0, 0, 0, 0, 0, 2], Some(&[0xff; 8])));
        let before = matching.clone();
        assert!(!matching.set_option(1, &[], None));
        assert_eq!(matching, before);
        assert!(
            matching.set_option(2, &[7], None),
            "below them there is room"
        );
    }
}
