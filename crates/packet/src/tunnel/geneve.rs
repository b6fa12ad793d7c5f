//! Geneve options (RFC 8926 section 3.5), and their conversion to and from the `tun_metadata`
//! fields.
//!
//! An option on the wire has a class (16 bits), a type (8 bits, of which the highest means
//! "critical") and a body of up to 124 bytes. Each bridge's map ([`OptionMap`]) says which
//! `tun_metadata` field holds it; [`crate::options`] says where the fields are in a key.

use super::Reason;
use crate::key::{FlowKey, WORDS, WordSet, at};
use crate::options::{KeyRange, LONGEST, OPTIONS};

/// Bytes in front of an option's body.
const HEADER_LEN: usize = 4;
/// Bit of an option's type: receivers that do not know the option must drop the packet.
const CRITICAL: u8 = 0x80;

/// The options of a header: whole TLVs, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GeneveOptions<'a>(&'a [u8]);

/// One option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GeneveOption<'a> {
    /// Class: the namespace of the type.
    pub class: u16,
    /// Type; the highest bit marks a critical option.
    pub kind: u8,
    /// Body: a multiple of 4 bytes, up to 124.
    pub body: &'a [u8],
}

impl<'a> GeneveOptions<'a> {
    /// Most bytes of all options: the header counts them in 6 bits, in units of 4 bytes.
    pub const MAX: usize = 252;

    /// No option.
    pub const NONE: GeneveOptions<'static> = GeneveOptions(&[]);

    /// Makes options of `bytes`; None if there are more than [`GeneveOptions::MAX`], or an option
    /// exceeds them.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Option<GeneveOptions<'a>> {
        if bytes.len() > Self::MAX {
            return None;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            (_, rest) = split(rest)?;
        }
        Some(GeneveOptions(bytes))
    }

    /// Returns their bytes.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Iterates over the options, in order.
    pub fn iter(self) -> impl Iterator<Item = GeneveOption<'a>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let option;
            (option, rest) = split(rest)?;
            Some(option)
        })
    }

    /// Returns whether one of them is critical.
    #[inline]
    pub fn has_critical(self) -> bool {
        self.iter().any(|option| option.kind & CRITICAL != 0)
    }

    /// Returns the error that [`GeneveOptions::to_key`] would return.
    #[inline]
    pub fn check(self, map: &(impl OptionMap + ?Sized)) -> Result<(), Reason> {
        for option in self.iter() {
            placed(&option, map)?;
        }
        Ok(())
    }

    /// Writes the `tun_metadata` words of a key: the options that `map` has, and no others. If an
    /// option comes twice, the last one counts.
    ///
    /// As in Open vSwitch, returns [`Reason::Options`] if an option's length is not that of the
    /// map, and [`Reason::CriticalOption`] if the map lacks a critical one. Then the words are
    /// undefined, and the packet must be dropped.
    pub fn to_key(self, map: &(impl OptionMap + ?Sized), key: &mut FlowKey) -> Result<(), Reason> {
        key.clear(OPTION_WORDS);
        let mut present = 0;
        for option in self.iter() {
            let Some((mapping, place)) = placed(&option, map)? else {
                continue;
            };
            key.bytes_mut()[place.start..place.end].copy_from_slice(option.body);
            present |= 1 << mapping.field;
        }
        key.set_u64(at::TUN_METADATA_PRESENT, present);
        Ok(())
    }
}

/// Returns an option's entry of the map and its place in a key; None if the map lacks it. A missing
/// critical option is an error, and so is a length other than the map's.
#[inline]
pub(super) fn placed(
    option: &GeneveOption<'_>,
    map: &(impl OptionMap + ?Sized),
) -> Result<Option<(Mapping, KeyRange)>, Reason> {
    match map.of_option(option.class, option.kind) {
        None if option.kind & CRITICAL != 0 => Err(Reason::CriticalOption),
        None => Ok(None),
        Some(mapping) if mapping.place.length() != option.body.len() => Err(Reason::Options),
        Some(mapping) => Ok(Some((mapping, mapping.place))),
    }
}

/// Splits off the first option; None if it is incomplete.
#[inline]
fn split(bytes: &[u8]) -> Option<(GeneveOption<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let (body, rest) = rest.split_at_checked(usize::from(header[3] & 0x1f) * 4)?;
    let option = GeneveOption {
        class: u16::from_be_bytes([header[0], header[1]]),
        kind: header[2],
        body,
    };
    Some((option, rest))
}

/// An entry of a bridge's map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The option's class.
    pub class: u16,
    /// The option's type.
    pub kind: u8,
    /// The number of its `tun_metadata` field, below [`OPTIONS`].
    pub field: u8,
    /// Where its body is in a key.
    pub place: KeyRange,
}

/// A bridge's map between options and `tun_metadata` fields. No two entries share a class and type,
/// a field, or a byte of the key.
pub trait OptionMap {
    /// Returns the entry of an option.
    fn of_option(&self, class: u16, kind: u8) -> Option<Mapping>;

    /// Returns the entry of a field.
    fn of_field(&self, field: usize) -> Option<Mapping>;
}

/// Searches linearly: for small maps.
impl OptionMap for [Mapping] {
    fn of_option(&self, class: u16, kind: u8) -> Option<Mapping> {
        let mut entries = self.iter();
        let found = entries.find(|entry| (entry.class, entry.kind) == (class, kind));
        found.copied()
    }

    fn of_field(&self, field: usize) -> Option<Mapping> {
        let mut entries = self.iter();
        let found = entries.find(|entry| usize::from(entry.field) == field);
        found.copied()
    }
}

/// Words of a key that hold options.
pub const OPTION_WORDS: WordSet = WordSet::of_bytes(
    at::TUN_METADATA_PRESENT,
    WORDS * 8 - at::TUN_METADATA_PRESENT,
);

/// A buffer in which the options of one header are written.
#[derive(Clone)]
pub struct OptionBuffer {
    bytes: [u8; GeneveOptions::MAX],
    len: usize,
}

impl std::fmt::Debug for OptionBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.options().fmt(f)
    }
}

impl Default for OptionBuffer {
    fn default() -> Self {
        OptionBuffer::new()
    }
}

impl OptionBuffer {
    /// Makes an empty buffer.
    pub const fn new() -> OptionBuffer {
        OptionBuffer {
            bytes: [0; GeneveOptions::MAX],
            len: 0,
        }
    }

    /// Removes all options.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends an option. Returns false, and changes nothing, if its body is longer than 124 bytes
    /// or not a multiple of 4, or there is no room.
    pub fn push(&mut self, class: u16, kind: u8, body: &[u8]) -> bool {
        if body.len() > LONGEST || !body.len().is_multiple_of(4) {
            return false;
        }
        let to = self.len + HEADER_LEN + body.len();
        let Some(room) = self.bytes.get_mut(self.len..to) else {
            return false;
        };
        room[..2].copy_from_slice(&class.to_be_bytes());
        room[2] = kind;
        room[3] = (body.len() / 4) as u8;
        room[HEADER_LEN..].copy_from_slice(body);
        self.len = to;
        true
    }

    /// Returns the options of a packet with this key, by its bridge's map and in the order of the
    /// fields. None if there are more than a header holds, or the map lacks a field that the packet
    /// has.
    pub fn from_key(map: &(impl OptionMap + ?Sized), key: &FlowKey) -> Option<OptionBuffer> {
        let mut buffer = OptionBuffer::new();
        let present = key.u64(at::TUN_METADATA_PRESENT);
        for field in (0..OPTIONS).filter(|field| present >> field & 1 == 1) {
            let mapping = map.of_field(field)?;
            let body = &key.bytes()[mapping.place.start..mapping.place.end];
            if !buffer.push(mapping.class, mapping.kind, body) {
                return None;
            }
        }
        Some(buffer)
    }

    /// Returns the options that were added.
    pub fn options(&self) -> GeneveOptions<'_> {
        GeneveOptions(&self.bytes[..self.len])
    }
}
