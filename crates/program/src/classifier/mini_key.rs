//! How much of a packet's key a table's lookup reads.
//!
//! A whole key has 512 bytes, and a burst's keys do not fit a first-level cache beside everything
//! else. Most tables look at Ethernet, IPv4 and ports only, which fit one cache line a packet
//! ([`MiniKey`]); some look at nothing but the ingress port, and one answer holds for the whole
//! burst. [`Reads`] is determined when a table's classifier is made, and `exec::first_table`
//! chooses a burst's way by it.

#[cfg(test)]
mod tests;

use packet::WordSet;
use packet::key::at;

/// How much of a packet a table's lookup reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reads {
    /// The ingress port at most.
    Port,
    /// Words of [`WordSet::MINI_KEY`].
    MiniKey,
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
        words.fold(Reads::Port, |reads, (word, mask)| match (reads, word) {
            (Reads::Deep | Reads::Whole, _) => reads,
            (_, word) if !WordSet::MINI_KEY.contains(usize::from(word)) => Reads::Deep,
            (Reads::Port, 0) if mask & !PORT_MASK == 0 => Reads::Port,
            _ => Reads::MiniKey,
        })
    }
}
