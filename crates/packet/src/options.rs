//! Options of tunnel headers (Geneve's): `tun_metadata0` to `tun_metadata63`.
//!
//! What an option is called in a packet (class, type) and how long it is, each bridge's map says; a
//! field here is only a place. The key keeps [`SPACE`] bytes for the bodies of all options together
//! and a bit for each that says whether the packet has it. Field n ends at a fixed place, 4 bytes
//! below where field n - 1 ends, and reaches down as far as its map makes it long, over the places
//! of the fields after it if need be. So as many options of 4 bytes as fit are side by side, and a
//! longer one stands where its neighbours are not mapped; whoever keeps the map sees to it that no
//! two overlap ([`Place`]). After the last place the count begins again at the first.
//!
//! A match on an option names its bit too: a packet without the option matches nothing that names
//! it (as Open vSwitch has it).

use crate::fields::{FIELDS, Field};
use crate::key::{WORDS, at};
use crate::matching::Match;
use crate::value::Value;

/// Number of fields.
pub const OPTIONS: usize = 64;
/// Bytes of all options together.
pub const SPACE: usize = WORDS * 8 - at::TUN_METADATA;
/// Most bytes of one option's body (RFC 8926 section 3.5).
pub const LONGEST: usize = 124;

/// Bytes between the ends of neighbours.
const STEP: usize = 4;

/// Byte of the key behind the last of an option.
pub const fn end(option: usize) -> usize {
    WORDS * 8 - option % (SPACE / STEP) * STEP
}

/// Most bytes that an option can have where it lies.
pub const fn capacity(option: usize) -> usize {
    let room = end(option) - at::TUN_METADATA;
    if room < LONGEST { room } else { LONGEST }
}

/// Where an option of some length lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The first byte of the key.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl Place {
    /// None when it does not fit.
    pub fn new(option: usize, length: usize) -> Option<Place> {
        (option < OPTIONS && length <= capacity(option)).then(|| Place {
            start: end(option) - length,
            end: end(option),
        })
    }

    /// Whether two share a byte, or would if they were not empty.
    pub fn overlaps(self, other: Place) -> bool {
        self.end == other.end || self.start < other.end && other.start < self.end
    }
}

impl Field {
    /// The number of an option's field; None for other fields.
    #[inline]
    pub fn tunnel_option(self) -> Option<usize> {
        (self >= Field::TunMetadata0 && self <= Field::TunMetadata63)
            .then(|| self as usize - Field::TunMetadata0 as usize)
    }

    /// The field of an option; `option` is below [`OPTIONS`].
    pub fn of_tunnel_option(option: usize) -> Field {
        assert!(option < OPTIONS);
        FIELDS[Field::TunMetadata0 as usize + option].field
    }
}

impl Match {
    /// The options that are named, a bit each.
    pub fn options(&self) -> u64 {
        let word = self
            .words()
            .iter()
            .find(|entry| usize::from(entry.word) == at::TUN_METADATA_PRESENT / 8);
        word.map_or(0, |entry| u64::from_be(entry.mask))
    }

    /// Bytes that an option may have beside the others that are named.
    fn room(&self, option: usize) -> usize {
        let own = end(option);
        let named = self.options();
        let others = (0..OPTIONS).filter(|other| *other != option && named >> other & 1 == 1);
        let below = others.map(end).filter(|end| *end <= own).max();
        capacity(option).min(own - below.unwrap_or(0).min(own))
    }

    /// Takes from the named option that lies above a new one what reached down into the new one's
    /// place. False, and nothing is taken, if it said something there: zeros of an option all
    /// of whose bytes count say nothing.
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

    /// Names an option: it must be there, and have these bits, which are right-aligned. Without a
    /// mask all of its bytes count, as many as there are, and those in front of `value` are
    /// zero. False when it does not fit, or has been named before.
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
        // What was cut off counts only if it said something.
        if mask[..value.len() - kept].iter().any(|byte| *byte != 0) || !self.make_room(option) {
            return false;
        }
        self.clear_bytes(end(option) - room, room);
        self.set_bytes(end(option) - room, &values, &masks);
        let bit = bit.to_be_bytes();
        self.set_bytes(at::TUN_METADATA_PRESENT, &bit, &bit);
        true
    }

    /// Likewise, where all bytes that there are count.
    pub fn set_whole_option(&mut self, option: usize, value: &[u8]) -> bool {
        let room = self.room(option);
        let mut whole = Value::zero(room.max(value.len()));
        let from = whole.len() - value.len();
        whole[from..].copy_from_slice(value);
        self.set_option(option, &whole, None)
    }

    /// What is said about an option: value and mask, right-aligned, up to where the next one
    /// begins; None when it is not named.
    pub fn option(&self, option: usize) -> Option<(Value, Value)> {
        if self.options() >> option & 1 == 0 {
            return None;
        }
        let room = self.room(option);
        Some(self.bytes(end(option) - room, room))
    }

    /// Forgets an option.
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

    /// Options that end at one place, or one in the middle of another.
    #[test]
    fn what_has_been_said_is_not_lost_to_a_new_name() {
        let round = SPACE / STEP;
        let whole = |value: &[u8], option: usize| {
            let mut matching = Match::any();
            assert!(matching.set_whole_option(option, value));
            matching
        };
        // 4 of one option, and that another be there which has the same place.
        let mut matching = whole(&[4], 20);
        let before = matching.clone();
        assert!(!matching.set_option(20 + round, &[], None));
        assert_eq!(matching, before, "a refused name leaves a match as it was");
        // Zeros all the way give way.
        let mut matching = whole(&[], 20);
        assert!(matching.set_option(20 + round, &[], None));
        assert!(matching.option(20).unwrap().1.is_empty());
        matching.clear_option(20);
        matching.clear_option(20 + round);
        assert_eq!(matching, Match::any());
        // Eight bytes that count, and a name where the first four of them are.
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
