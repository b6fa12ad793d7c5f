//! Tunnel metadata of a packet as words of the key, without the rest of the key.

use super::geneve::placed;
use super::{Addresses, GeneveOptions, Mapping, OptionBuffer, OptionMap, Reason};
use super::{TunnelFlags, TunnelInfo};
use crate::key::{FlowKey, WORDS, WordSet, at};
use crate::options::OPTIONS;

/// Number of words held.
const COUNT: usize = 16;
/// Places of words: the key, IPv4 addresses, flags, and which options there are.
const ID: usize = 0;
const V4: usize = 1;
const FLAGS: usize = 2;
const PRESENT: usize = 3;
/// Place of the first of the four words with IPv6 addresses.
const V6: usize = 8;

/// Indices in the key of the words held. What most packets have comes first: a cache line with the
/// last words of options, which are given out first ([`crate::options::KeyRange::free`]).
const HELD: [usize; COUNT] = [
    at::TUN_ID / 8,
    at::TUN_SRC / 8,
    at::TUN_FLAGS / 8,
    at::TUN_METADATA_PRESENT / 8,
    WORDS - 1,
    WORDS - 2,
    WORDS - 3,
    WORDS - 4,
    at::TUN_IPV6_SRC / 8,
    at::TUN_IPV6_SRC / 8 + 1,
    at::TUN_IPV6_DST / 8,
    at::TUN_IPV6_DST / 8 + 1,
    WORDS - 5,
    WORDS - 6,
    WORDS - 7,
    WORDS - 8,
];

/// Stands for "not held".
const NOWHERE: u8 = u8::MAX;

/// By index in the key, the place of a word.
static PLACES: [u8; 128] = {
    assert!(WORDS <= 128);
    let mut places = [NOWHERE; 128];
    let mut place = 0;
    while place < COUNT {
        places[HELD[place]] = place as u8;
        place += 1;
    }
    places
};

/// Where [`TunnelWords`] holds a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u8);

/// The `tun_*` words of a packet's key: all of [`TunnelInfo::WORDS`], which of the options it has,
/// and the last eight words of their bodies. A bridge whose map has bodies elsewhere
/// ([`TunnelWords::fit`]) needs whole keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct TunnelWords {
    words: [u64; COUNT],
}

impl TunnelWords {
    /// Of a packet without tunnel metadata.
    pub const ZERO: TunnelWords = TunnelWords { words: [0; COUNT] };

    /// Returns whether a word of the key is among those held.
    #[inline]
    pub fn holds(word: usize) -> bool {
        TunnelWords::place(word).is_some()
    }

    /// Returns where a word of the key is held.
    #[inline]
    pub fn place(word: usize) -> Option<Place> {
        let place = PLACES.get(word).filter(|place| **place != NOWHERE);
        place.map(|place| Place(*place))
    }

    /// Returns the word held at a place.
    #[inline(always)]
    pub fn at(&self, place: Place) -> u64 {
        self.words[usize::from(place.0) % COUNT]
    }

    /// Writes bits of the word at a place: `word = word & !mask | value`.
    #[inline(always)]
    pub fn write_at(&mut self, place: Place, value: u64, mask: u64) {
        let word = &mut self.words[usize::from(place.0) % COUNT];
        *word = *word & !mask | value;
    }

    /// Returns whether the words held have room for all options of a map.
    pub fn fit(map: &[Mapping]) -> bool {
        map.iter()
            .all(|mapping| mapping.place.length() == 0 || mapping.place.start / 8 >= WORDS - 8)
    }

    /// Returns a word of the key; 0 if it is not held.
    #[inline(always)]
    pub fn word(&self, index: u8) -> u64 {
        let place = PLACES[usize::from(index % 128)];
        match self.words.get(usize::from(place)) {
            Some(word) => *word,
            None => 0,
        }
    }

    /// Writes bits of a word of the key: `word = word & !mask | value`. Does nothing if it is not
    /// held.
    #[inline(always)]
    pub fn write(&mut self, index: u8, value: u64, mask: u64) {
        if let Some(place) = TunnelWords::place(index.into()) {
            self.write_at(place, value, mask);
        }
    }

    /// Sets all words to what [`TunnelInfo::to_key`] writes; there are no options then.
    #[inline(always)]
    pub fn set(&mut self, info: &TunnelInfo) {
        self.words = [0; COUNT];
        self.words[ID] = info.id.to_be();
        match &info.addresses {
            None => {}
            Some(Addresses::V4 { src, dst }) => {
                self.words[V4] = (u64::from(*src) << 32 | u64::from(*dst)).to_be();
            }
            Some(Addresses::V6 { src, dst }) => {
                let both = src.as_chunks::<8>().0.iter().chain(dst.as_chunks::<8>().0);
                for (word, bytes) in self.words[V6..V6 + 4].iter_mut().zip(both) {
                    *word = u64::from_ne_bytes(*bytes);
                }
            }
        }
        let ([a, b], [c, d]) = (info.flags.bits().to_be_bytes(), info.gbp_id.to_be_bytes());
        let bytes = [a, b, c, d, info.gbp_flags, info.tos, info.ttl, 0];
        self.words[FLAGS] = u64::from_ne_bytes(bytes);
    }

    /// Returns what [`TunnelInfo::from_key`] returns for a key with these words.
    #[inline(always)]
    pub fn info(&self) -> TunnelInfo {
        let v4 = u64::from_be(self.words[V4]);
        let addresses = match v4 as u32 {
            0 => self.ipv6(),
            dst => Some(Addresses::V4 {
                src: (v4 >> 32) as u32,
                dst,
            }),
        };
        let [a, b, c, d, gbp_flags, tos, ttl, _] = self.words[FLAGS].to_ne_bytes();
        TunnelInfo {
            id: u64::from_be(self.words[ID]),
            addresses,
            flags: TunnelFlags::from_bits_truncate(u16::from_be_bytes([a, b])),
            tos,
            ttl,
            gbp_id: u16::from_be_bytes([c, d]),
            gbp_flags,
            gtpu_flags: 0,
            gtpu_message: 0,
        }
    }

    #[inline(always)]
    fn ipv6(&self) -> Option<Addresses> {
        let words: &[u64; 4] = self.words[V6..].first_chunk()?;
        if words[2] | words[3] == 0 {
            return None;
        }
        let address = |high: u64, low: u64| {
            let mut address = [0; 16];
            address[..8].copy_from_slice(&high.to_ne_bytes());
            address[8..].copy_from_slice(&low.to_ne_bytes());
            address
        };
        Some(Addresses::V6 {
            src: address(words[0], words[1]),
            dst: address(words[2], words[3]),
        })
    }

    /// Writes the words of a key that are `valid`; others stay.
    pub fn fill(&self, key: &mut FlowKey, valid: WordSet) {
        for (word, index) in self.words.iter().zip(HELD) {
            if valid.contains(index) {
                key.words[index] = *word;
            }
        }
    }

    /// Returns the words of a key.
    pub fn of_key(key: &FlowKey) -> TunnelWords {
        let words = HELD.map(|index| key.words[index]);
        TunnelWords { words }
    }

    /// Returns whether there are options.
    #[inline(always)]
    pub fn has_options(&self) -> bool {
        self.words[PRESENT] != 0
    }

    /// As [`GeneveOptions::to_key`], for a map whose options [fit](TunnelWords::fit).
    #[inline]
    pub fn set_options(
        &mut self,
        options: GeneveOptions<'_>,
        map: &[Mapping],
    ) -> Result<(), Reason> {
        self.clear_options();
        let mut present = 0;
        for option in options.iter() {
            let Some((mapping, _)) = placed(&option, map)? else {
                continue;
            };
            let places = (mapping.place.start..mapping.place.end).step_by(4);
            for (from, bytes) in places.zip(option.body.as_chunks::<4>().0) {
                // The upper half of a word in wire order comes first.
                let below = if from % 8 == 0 { 32 } else { 0 };
                let half = |number: u32| (u64::from(number) << below).to_be();
                let value = half(u32::from_be_bytes(*bytes));
                self.write((from / 8) as u8, value, half(u32::MAX));
            }
            present |= 1_u64 << mapping.field;
        }
        self.words[PRESENT] = present.to_be();
        Ok(())
    }

    /// Removes all options.
    pub fn clear_options(&mut self) {
        for (word, index) in self.words.iter_mut().zip(HELD) {
            if index >= at::TUN_METADATA_PRESENT / 8 {
                *word = 0;
            }
        }
    }

    /// As [`OptionBuffer::from_key`], into a buffer. Returns false, with the buffer undefined, for
    /// what that returns None for.
    #[inline]
    pub fn options_into(&self, map: &[Mapping], buffer: &mut OptionBuffer) -> bool {
        buffer.clear();
        let mut present = u64::from_be(self.words[PRESENT]);
        while present != 0 {
            let field = present.trailing_zeros() as usize % OPTIONS;
            present &= present - 1;
            let Some(mapping) = map.of_field(field) else {
                return false;
            };
            let mut body = [[0; 4]; 16];
            let length = mapping.place.length();
            let Some(room) = body.get_mut(..length / 4) else {
                return false;
            };
            for (bytes, from) in room.iter_mut().zip((mapping.place.start..).step_by(4)) {
                let word = self.word((from / 8) as u8).to_ne_bytes();
                *bytes = word.as_chunks().0[from / 4 % 2];
            }
            if !buffer.push(mapping.class, mapping.kind, &body.as_flattened()[..length]) {
                return false;
            }
        }
        true
    }
}
