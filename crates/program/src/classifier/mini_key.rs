//! How much of a packet's key a table's lookup reads.
//!
//! A whole key has 512 bytes, and a burst's keys do not fit a first-level cache beside everything
//! else. Most tables look at Ethernet, IPv4 and ports only, which fit one cache line a packet
//! (the mini key); some look at nothing but the ingress port, and one answer holds for the whole
//! burst. [`Reads`] is determined when a table's classifier is made, and `exec::first_table`
//! chooses a burst's way by it.

#[cfg(test)]
mod tests;

use crate::actions::block::LANE_WORDS;
use packet::key::at;
use packet::parse::MINI_KEY_WORDS;

/// How much of a packet a table's lookup reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reads {
    /// The ingress port at most.
    Port,
    /// Words of [`packet::WordSet::MINI_KEY`].
    MiniKey,
    /// Also metadata and registers, which all lanes have.
    Lane,
    /// Further words of common packets ([`packet::parse::MoreWords`]).
    Deep,
    /// Whole keys.
    Whole,
}

/// The bits of word 0 that hold the ingress port.
pub(crate) const PORT_MASK: u64 = {
    let mut bytes = [0_u8; 8];
    let mut index = 0;
    while index < 4 {
        bytes[at::IN_PORT % 8 + index] = 0xff;
        index += 1;
    }
    u64::from_ne_bytes(bytes)
};

impl Reads {
    pub(crate) fn of(words: impl Iterator<Item = (u8, u64)>) -> Reads {
        let one = |(word, mask)| match usize::from(word) {
            0 if mask & !PORT_MASK == 0 => Reads::Port,
            word if word < MINI_KEY_WORDS => Reads::MiniKey,
            word if word < LANE_WORDS => Reads::Lane,
            _ => Reads::Deep,
        };
        words.map(one).max().unwrap_or(Reads::Port)
    }
}
