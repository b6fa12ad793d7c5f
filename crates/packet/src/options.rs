//! Tunnel header options (Geneve): `tun_metadata0` to `tun_metadata63`.
//!
//! Each bridge's map says which option (class, type) of what length a field stands for. The key has
//! [`SPACE`] bytes for the bodies of all options together, and a bit per field that says whether
//! the packet has the option. When an option is mapped it gets a free place among these bytes
//! ([`KeyRange::free`]), wherever there is one that is long enough. Places can end every 4 bytes,
//! and are numbered by their ends. What workers run knows places only: the [`Field`] of option n
//! then stands for place n ([`KeyRange::field`]).
//!
//! Messages name a field without knowing its place, or even its length. So a [`Match`] can *name*
//! options: [`Match::option`] returns what was said of one. Whoever keeps the map converts names to
//! bytes of the key, and back.
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

/// Bytes between the ends of neighbouring places.
const STEP: usize = 4;
/// Bytes that a match has for an option that it names: a length, and the body at the end.
const NAMED: usize = 128;
const _: () = assert!(SPACE == OPTIONS * STEP && LONGEST + STEP == NAMED);

/// Returns the offset in the key of the byte after a place.
pub const fn end(number: usize) -> usize {
    WORDS * 8 - number % OPTIONS * STEP
}

/// The bytes of the key for an option of a given length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange {
    /// The first byte of the key.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl KeyRange {
    /// Returns the place of that number; None if so many bytes do not fit there.
    pub fn new(number: usize, length: usize) -> Option<KeyRange> {
        let fits = number < OPTIONS && at::TUN_METADATA + length <= end(number);
        (fits && length <= LONGEST).then(|| KeyRange {
            start: end(number) - length,
            end: end(number),
        })
    }

    /// Returns a place for so many bytes beside those that are taken: in the shortest gap that is
    /// long enough. None if there is no such gap.
    pub fn free(taken: impl Iterator<Item = KeyRange>, length: usize) -> Option<KeyRange> {
        if length == 0 {
            return KeyRange::new(0, 0); // an option without a body takes nobody's place
        }
        let mut taken: Vec<KeyRange> = taken.filter(|place| place.length() != 0).collect();
        taken.sort_by_key(|place| std::cmp::Reverse(place.end));
        let starts = taken.iter().map(|place| place.start);
        let ends = taken.iter().map(|place| place.end);
        let gaps = [end(0)].into_iter().chain(starts);
        let gaps = gaps.zip(ends.chain([at::TUN_METADATA]));
        let fit = gaps.filter(|(to, from)| *to >= from + length);
        let (to, _) = fit.min_by_key(|(to, from)| to - from)?;
        KeyRange::new((end(0) - to) / STEP, length)
    }

    /// Returns the field that stands for the place in what workers run. It ends where the place
    /// does, and has [`LONGEST`] bytes.
    pub fn field(self) -> Field {
        Field::of_tunnel_option((end(0) - self.end) / STEP)
    }

    /// Returns the number of bytes.
    pub fn length(self) -> usize {
        self.end - self.start
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
    /// Returns the options that packets must have, as a bit set.
    pub fn options(&self) -> u64 {
        let word = self
            .words()
            .iter()
            .find(|entry| usize::from(entry.word) == at::TUN_METADATA_PRESENT / 8);
        word.map_or(0, |entry| u64::from_be(entry.mask))
    }

    /// Asks for packets that have the option.
    pub fn set_option_present(&mut self, option: usize) {
        let bit = (1_u64 << option).to_be_bytes();
        self.set_bytes(at::TUN_METADATA_PRESENT, &bit, &bit);
    }

    /// Names an option: it must be present and have these right-aligned bits. Without a mask, all
    /// bytes of `value` are compared. Returns false if it is too long or the match names it
    /// already.
    pub fn set_option(&mut self, option: usize, value: &[u8], mask: Option<&[u8]>) -> bool {
        let length = value.len();
        let fits = option < OPTIONS
            && length <= LONGEST
            && mask.is_none_or(|mask| mask.len() == value.len());
        if !fits || self.options() >> option & 1 == 1 {
            return false;
        }
        let bank = option as u8 + 1;
        let ones = [0xff; LONGEST];
        let mask = mask.unwrap_or(&ones[..length]);
        self.set_bytes_of(bank, 0, &[length as u8], &[0xff]);
        self.set_bytes_of(bank, NAMED - length, value, mask);
        self.set_option_present(option);
        true
    }

    /// Like [`Match::set_option`], comparing all bytes that the option has; those in front of
    /// `value` must be zero.
    pub fn set_whole_option(&mut self, option: usize, value: &[u8]) -> bool {
        let Some(from) = LONGEST.checked_sub(value.len()) else {
            return false;
        };
        let mut whole = [0; LONGEST];
        whole[from..].copy_from_slice(value);
        self.set_option(option, &whole, None)
    }

    /// Returns value and mask of an option, right-aligned and with the length that they were named
    /// with ([`LONGEST`] for a whole option); None if the match does not name it.
    pub fn option(&self, option: usize) -> Option<(Value, Value)> {
        let bank = u8::try_from(option + 1).ok()?;
        let (length, named) = self.bytes_of(bank, 0, 1);
        let length = usize::from(length[0]).min(LONGEST);
        (named[0] != 0).then(|| self.bytes_of(bank, NAMED - length, length))
    }

    /// Compares the bytes of an option's place, instead of what the match names. `value` and `mask`
    /// have the place's length.
    pub fn place_option(&mut self, option: usize, place: KeyRange, value: &[u8], mask: &[u8]) {
        self.clear_option(option);
        self.set_bytes(place.start, value, mask);
        self.set_option_present(option);
    }

    /// Names an option, instead of comparing the bytes of its place; does nothing if the match does
    /// not ask for it.
    pub fn name_option(&mut self, option: usize, place: KeyRange) {
        if self.options() >> option & 1 == 1 && self.option(option).is_none() {
            let (value, mask) = self.bytes(place.start, place.length());
            self.clear_bits(place.start, &vec![0xff; place.length()]);
            self.clear_option(option);
            self.set_option(option, &value, Some(&mask));
        }
    }

    /// Returns whether what the match says of options that `wider` names is at least what `wider`
    /// says of them.
    pub(crate) fn names_within(&self, wider: &Match) -> bool {
        let mut named = (0..OPTIONS).filter_map(|option| Some((option, wider.option(option)?)));
        named.all(|(option, (wanted, wanted_mask))| {
            let Some((value, mask)) = self.option(option) else {
                return false;
            };
            let own = value.iter().zip(mask.iter()).rev();
            let own = own.map(Some).chain(std::iter::repeat(None));
            let wanted = wanted.iter().zip(wanted_mask.iter()).rev();
            wanted.zip(own).all(|((wanted, bits), own)| match own {
                Some((value, mask)) => mask & bits == *bits && value & bits == *wanted,
                // In front of the option there are zeros.
                None => *wanted == 0,
            })
        })
    }

    /// Removes an option's name from the match, and that packets must have it.
    pub fn clear_option(&mut self, option: usize) {
        let bank = option as u8 + 1;
        self.entries.retain(|entry| entry.bank != bank);
        self.clear_bits(at::TUN_METADATA_PRESENT, &(1_u64 << option).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_of_four_bytes_fill_the_space() {
        let mut taken = Vec::new();
        while let Some(place) = KeyRange::free(taken.iter().copied(), 4) {
            assert!(place.start >= at::TUN_METADATA && place.end <= WORDS * 8);
            assert_eq!(place.length(), 4);
            taken.push(place);
        }
        assert_eq!(taken.len(), OPTIONS);
        for number in 0..OPTIONS {
            let def = Field::of_tunnel_option(number).def();
            assert_eq!(def.field.tunnel_option(), Some(number));
            assert_eq!((def.offset + def.bytes, def.bytes), (end(number), LONGEST));
            let place = KeyRange::new(number, 4).unwrap();
            assert_eq!(place.field(), def.field);
        }
        assert_eq!(KeyRange::new(63, 8), None);
        assert_eq!(KeyRange::new(0, 125), None);
    }

    proptest! {
        /// Whatever comes and goes: places never share a byte, and the space is refused only where
        /// no gap is long enough.
        #[test]
        fn places_do_not_overlap(steps in prop::collection::vec((0_usize..=31, any::<bool>(), any::<prop::sample::Index>()), 1..60)) {
            let mut taken: Vec<KeyRange> = Vec::new();
            for (words, leaves, which) in steps {
                if leaves && !taken.is_empty() {
                    taken.swap_remove(which.index(taken.len()));
                    continue;
                }
                let mut used = [false; SPACE];
                for place in &taken {
                    for at in place.start..place.end {
                        prop_assert!(!std::mem::replace(&mut used[at - at::TUN_METADATA], true));
                    }
                }
                let length = 4 * words;
                let mut gaps = used.windows(length.max(1));
                let has_gap = length == 0 || gaps.any(|gap| gap.iter().all(|used| !used));
                let place = KeyRange::free(taken.iter().copied(), length);
                prop_assert_eq!(place.is_some(), has_gap);
                taken.extend(place);
            }
        }
    }

    #[test]
    fn options_of_a_match_are_kept_whatever_their_order() {
        for order in [[0, 1, 3], [3, 1, 0], [1, 0, 3], [0, 3, 1]] {
            let mut matching = Match::any();
            for option in order {
                assert!(match option {
                    0 => matching.set_whole_option(0, &[5]),
                    1 => matching.set_option(1, &[0x12, 0x30], Some(&[0xff, 0xf0])),
                    _ => matching.set_option(3, &[], None),
                });
            }
            assert_eq!(matching.options(), 0b1011);
            assert_eq!(matching.words().len(), 1, "names are no words of the key");
            let (value, mask) = matching.option(0).unwrap();
            assert_eq!((value.to_u128(), value.len()), (5, LONGEST));
            assert_eq!(&*mask, &[0xff; LONGEST][..]);
            let (value, mask) = matching.option(1).unwrap();
            assert_eq!((value.to_u64(), mask.to_u64()), (0x1230, 0xfff0));
            assert_eq!((value.len(), mask.len()), (2, 2));
            assert_eq!(matching.option(3).unwrap().1.len(), 0);
            assert_eq!(matching.option(2), None);
            assert!(!matching.set_option(3, &[1], None), "named twice");
            assert!(matching.is_within(&matching));
            let mut other = Match::any();
            for (value, within) in [
                (&[5][..], true),
                (&[0, 0, 5], true),
                (&[4], false),
                (&[5, 5], false),
            ] {
                other.clear_option(0);
                assert!(other.set_whole_option(0, value));
                let mut short = matching.clone();
                short.clear_option(0);
                assert!(short.set_option(0, &[0, 5], None));
                assert_eq!(short.is_within(&other), within, "{value:?}");
            }
            assert!(other.set_option(4, &[], None));
            assert!(!matching.is_within(&other));
            order
                .iter()
                .for_each(|option| matching.clear_option(*option));
            assert_eq!(matching, Match::any());
        }
    }
}
