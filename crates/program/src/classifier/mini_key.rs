//! Lookups in the part of a key that is read first.
//!
//! A whole key has 512 bytes, and a burst's keys more than a first-level cache holds beside
//! everything else. Most tables look at Ethernet, IPv4 and ports only, which fit one cache line a
//! packet ([`MiniKey`]); some look at nothing but the ingress port, and one answer holds for the
//! whole burst. What a table reads is summaries when its shape is made ([`Reads`]), and the burst's
//! way in (`walk::front`) goes by it.

#[cfg(test)]
mod tests;

use packet::WordSet;
use packet::key::at;

/// What a table's lookup looks at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reads {
    /// The ingress port, or nothing.
    Port,
    /// Words of [`WordSet::MINI_KEY`].
    MiniKey,
    /// Others too.
    Deep,
    /// Whole keys, and nothing else will do.
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
        words.fold(Reads::Port, |reads, (word, mask)| match (reads, word) {
            (Reads::Deep | Reads::Whole, _) => reads,
            (_, word) if !WordSet::MINI_KEY.contains(usize::from(word)) => Reads::Deep,
            (Reads::Port, 0) if mask & !PORT_MASK == 0 => Reads::Port,
            _ => Reads::MiniKey,
        })
    }
}
