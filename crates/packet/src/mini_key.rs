//! A burst's first reading: common packets into one cache line each, compared with patterns on the
//! way.
//!
//! A whole key has 512 bytes, and a burst's keys more than a first-level cache holds beside
//! everything else. Most tables look at Ethernet, IPv4 and ports only, which fit one cache line a
//! packet ([`MiniKey`]). A short list of rules over them becomes a list of [`Pattern`]s, and a
//! packet is compared with these while its words are still in a register. Who asks for no more than
//! the pattern has it compared as it lies ([`prefilter_burst`]).
//!
//! With AVX-512 a packet's first 64 bytes are one register: headers are judged by one masked
//! compare, fields come to their places by one permutation, and a pattern costs an exclusive or and
//! a test (`avx512`); some 40 instructions a packet in all. With AVX2 a few shuffles of 16 and 32
//! bytes do it (`avx2`). Elsewhere [`parse::common_words`] reads header by header. All say the same
//! of every packet; [`Variant`] is which of them is used.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kinds;
#[cfg(target_arch = "x86_64")]
mod lists;
mod raw;
#[cfg(test)]
mod tests;
mod variant;

use crate::frame::Frame;
use crate::key::at;
use crate::parse::{self, Extent, MINI_KEY_WORDS, Network};
use std::mem::offset_of;

pub use raw::{RawPrefilter, Run, prefilter_burst, sort_burst_by};
pub use variant::{ASKED_BY, Variant};

/// The mini keys of a packet's key, in a cache line of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct MiniKey {
    /// Words 0 to 4 of the key.
    pub words: [u64; MINI_KEY_WORDS],
    /// Where the packet's layers lie.
    pub extent: Extent,
    /// The frame's length.
    pub len: u32,
    rest: [u64; 2],
}

/// Places in a [`MiniKey`] behind the words.
const LENGTH: usize = offset_of!(MiniKey, extent) + offset_of!(Extent, length);
const FRAME_LEN: usize = offset_of!(MiniKey, len);
const _: () = assert!(FRAME_LEN.is_multiple_of(4) && size_of::<MiniKey>() == 64);

impl MiniKey {
    /// Those of a packet of which nothing is known.
    pub const ZERO: MiniKey = MiniKey {
        words: [0; MINI_KEY_WORDS],
        extent: Extent::ZERO,
        len: 0,
        rest: [0; 2],
    };

    /// Whether these are of a packet of TCP or UDP over IPv6: one of the kinds that have loops of
    /// their own.
    fn is_transport_of_ipv6(&self) -> bool {
        let protocol = self.words[at::IP_PROTO / 8].to_ne_bytes()[at::IP_PROTO % 8];
        self.extent.network() == Network::Ipv6 && matches!(protocol, 6 | 17)
    }

    /// Those of a packet of which only the ingress port is known.
    pub fn of_port(port: u32) -> MiniKey {
        let mut hot = MiniKey::ZERO;
        let mut bytes = [0; 8];
        bytes[at::IN_PORT % 8..at::IN_PORT % 8 + 4].copy_from_slice(&port.to_be_bytes());
        hot.words[at::IN_PORT / 8] = u64::from_ne_bytes(bytes);
        hot
    }
}

/// Bits of the mini keys and what they are to be.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Pattern {
    mask: [u64; 8],
    value: [u64; 8],
}

impl Pattern {
    /// The most patterns of a list.
    pub const MOST: usize = 64;

    /// The pattern of words (number, mask, value); None when one of them is not a word of the mini
    /// key.
    pub fn of(words: impl IntoIterator<Item = (u8, u64, u64)>) -> Option<Pattern> {
        let mut pattern = Pattern::default();
        for (word, mask, value) in words {
            let at = usize::from(word);
            if at >= MINI_KEY_WORDS {
                return None;
            }
            pattern.mask[at] |= mask;
            pattern.value[at] |= value & mask;
        }
        Some(pattern)
    }

    #[inline(always)]
    fn matches(&self, hot: &MiniKey) -> bool {
        let differ = (hot.words.iter().zip(&self.value).zip(&self.mask))
            .fold(0, |differ, ((word, value), mask)| {
                differ | (word ^ value) & mask
            });
        differ == 0
    }
}

/// Where no pattern matches.
pub const NO_PATTERN: u8 = u8::MAX;

/// What [`read_burst`] has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Packets from the front on.
    pub count: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads packets of the common kinds ([`parse::mini_key`]) that came in through one port, up to the
/// first that is another or to the shortest list. For each the number of the first of `patterns`,
/// at most [`Pattern::MOST`], that matches goes to `found`, [`NO_PATTERN`] for none.
#[inline]
pub fn read_burst<F: Frame>(
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    // SAFETY: only a variant that the processor has is ever used.
    unsafe { read_by(Variant::used(), frames, in_port, patterns, hot, found) }
}

/// [`read_burst`] by a variant of one's own choice; where the processor does not have it, by the
/// portable one.
pub fn read_burst_by<F: Frame>(
    variant: Variant,
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    // SAFETY: the processor has it.
    unsafe { read_by(variant.or_portable(), frames, in_port, patterns, hot, found) }
}

/// [`read_burst`] by a variant.
///
/// # Safety
/// The processor has it.
#[inline(always)]
unsafe fn read_by<F: Frame>(
    variant: Variant,
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    debug_assert!(patterns.len() <= Pattern::MOST);
    match variant {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise: the processor has what the function is compiled for.
        Variant::Avx512 => unsafe { avx512::read_burst(frames, in_port, patterns, hot, found) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Variant::Avx2 => unsafe { avx2::read_burst(frames, in_port, patterns, hot, found) },
        _ => portable(frames, in_port, patterns, hot, found),
    }
}

/// Whether all are the same.
#[inline(always)]
pub fn all_same(found: &[u8]) -> bool {
    // A memory compare of the list with itself, one further.
    found.len() < 2 || found[1..] == found[..found.len() - 1]
}

/// The number of the first pattern that matches.
#[inline(always)]
fn first_of(patterns: &[Pattern], hot: &MiniKey) -> u8 {
    let first = patterns.iter().position(|pattern| pattern.matches(hot));
    first.map_or(NO_PATTERN, |index| index as u8)
}

/// Reads a packet of another kind than IPv4; false where it is of no common kind.
#[inline(never)]
fn read_other(head: &[u8], len: usize, in_port: u32, hot: &mut MiniKey) -> bool {
    let extent = parse::other_words(head, len, in_port, &mut hot.words);
    hot.extent = extent.unwrap_or(hot.extent);
    extent.is_some()
}

/// Reads packets of other kinds than IPv4, and shows each with the number of its first pattern: up
/// to the first that is none of these, or behind one that vector code is better for, since more
/// such may follow.
#[inline(always)]
fn read_others<F: Frame>(
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    mut keep: impl FnMut(&MiniKey, u8),
) {
    let mut hot = MiniKey::ZERO;
    for frame in frames {
        let len = frame.len();
        if !read_other(frame.head(), len, in_port, &mut hot) {
            break;
        }
        hot.len = len as u32;
        keep(&hot, first_of(patterns, &hot));
        if hot.is_transport_of_ipv6() {
            break;
        }
    }
}

fn portable<F: Frame>(
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    let mut read = Read::default();
    for ((frame, hot), found) in frames.iter().zip(hot).zip(found) {
        let len = frame.len();
        match parse::common_words(frame.head(), len, in_port, &mut hot.words) {
            Some(extent) => hot.extent = extent,
            None if read_other(frame.head(), len, in_port, hot) => {}
            None => break,
        }
        hot.len = len as u32;
        *found = first_of(patterns, hot);
        read.count += 1;
        read.bytes += len as u64;
    }
    read
}
