//! First parse of a burst: reads packets of the common kinds into one cache line each, and compares
//! them with patterns on the way.
//!
//! A full key has 512 bytes, so the keys of a burst would not fit a first-level cache together with
//! everything else. Most tables look only at Ethernet, IPv4 and ports, which fit one cache line per
//! packet ([`MiniKey`]). A short list of rules over these fields becomes a list of [`Pattern`]s,
//! and a packet is compared with them while its words are still in a register. Callers that need
//! only the number of the matching pattern use [`prefilter_burst`], which compares packet bytes in
//! place.
//!
//! With AVX-512, a packet's first 64 bytes are one register: one masked compare checks the headers,
//! one permutation moves fields to their places, and a pattern costs an exclusive or and a test
//! (`avx512`); some 40 instructions per packet in all. With AVX2, a few shuffles of 16 and 32 bytes
//! do it (`avx2`). Elsewhere [`parse::common_words`] reads header by header. All give the same
//! results; [`Variant`] says which one is used.

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

/// The words of a packet's key that most rules look at, in a cache line of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct MiniKey {
    /// Words 0 to 4 of the key.
    pub words: [u64; MINI_KEY_WORDS],
    /// Where the packet's layers begin and end.
    pub extent: Extent,
    /// The frame's length in bytes.
    pub len: u32,
    rest: [u64; 2],
}

/// Byte offsets in a [`MiniKey`], behind the words.
const LENGTH: usize = offset_of!(MiniKey, extent) + offset_of!(Extent, length);
const FRAME_LEN: usize = offset_of!(MiniKey, len);
const _: () = assert!(FRAME_LEN.is_multiple_of(4) && size_of::<MiniKey>() == 64);

impl MiniKey {
    /// The mini key of a packet of which nothing is known.
    pub const ZERO: MiniKey = MiniKey {
        words: [0; MINI_KEY_WORDS],
        extent: Extent::ZERO,
        len: 0,
        rest: [0; 2],
    };

    /// Returns whether the packet is TCP or UDP over IPv6, a kind that vector code has its own loop
    /// for.
    fn is_transport_of_ipv6(&self) -> bool {
        let protocol = self.words[at::IP_PROTO / 8].to_ne_bytes()[at::IP_PROTO % 8];
        self.extent.network() == Network::Ipv6 && matches!(protocol, 6 | 17)
    }

    /// Returns the mini key of a packet of which only the ingress port is known.
    pub fn of_port(port: u32) -> MiniKey {
        let mut hot = MiniKey::ZERO;
        let mut bytes = [0; 8];
        bytes[at::IN_PORT % 8..at::IN_PORT % 8 + 4].copy_from_slice(&port.to_be_bytes());
        hot.words[at::IN_PORT / 8] = u64::from_ne_bytes(bytes);
        hot
    }
}

/// Masked words that a mini key is compared with.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub struct Pattern {
    mask: [u64; 8],
    value: [u64; 8],
}

impl Pattern {
    /// The largest number of patterns in a list.
    pub const MOST: usize = 64;

    /// Makes a pattern of (word number, mask, value) items; None if one is not a word of the mini
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

/// The number reported when no pattern matches.
pub const NO_PATTERN: u8 = u8::MAX;

/// How much of a burst [`read_burst`] has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Packets read, counted from the first.
    pub count: usize,
    /// Their total length in bytes.
    pub bytes: u64,
}

/// Reads packets of the common kinds ([`parse::mini_key`]) that came in through one port. Stops at
/// the first packet of another kind, or at the end of the shortest list. Stores in `found` the
/// number of the first of `patterns` (at most [`Pattern::MOST`]) that each packet matches, or
/// [`NO_PATTERN`].
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

/// Like [`read_burst`], with a given variant; uses the portable one if the processor lacks it.
pub fn read_burst_by<F: Frame>(
    variant: Variant,
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    // SAFETY: `or_portable` returns a variant that the processor has.
    unsafe { read_by(variant.or_portable(), frames, in_port, patterns, hot, found) }
}

/// [`read_burst`] with a given variant.
///
/// # Safety
/// The processor must have the variant.
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
        // SAFETY: the caller promises that the processor has the instructions the function is
        // compiled for.
        Variant::Avx512 => unsafe { avx512::read_burst(frames, in_port, patterns, hot, found) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Variant::Avx2 => unsafe { avx2::read_burst(frames, in_port, patterns, hot, found) },
        _ => portable(frames, in_port, patterns, hot, found),
    }
}

/// Returns whether all elements are equal.
#[inline(always)]
pub fn all_same(found: &[u8]) -> bool {
    // One memory compare: the list against itself, shifted by one.
    found.len() < 2 || found[1..] == found[..found.len() - 1]
}

/// Returns the number of the first pattern that matches, or [`NO_PATTERN`].
#[inline(always)]
fn first_of(patterns: &[Pattern], hot: &MiniKey) -> u8 {
    let first = patterns.iter().position(|pattern| pattern.matches(hot));
    first.map_or(NO_PATTERN, |index| index as u8)
}

/// Reads a packet that is not IPv4; returns false if it is of no common kind.
#[inline(never)]
fn read_other(head: &[u8], len: usize, in_port: u32, hot: &mut MiniKey) -> bool {
    let extent = parse::other_words(head, len, in_port, &mut hot.words);
    hot.extent = extent.unwrap_or(hot.extent);
    extent.is_some()
}

/// Reads packets that are not IPv4 and passes each to `keep` with the number of its first pattern.
/// Stops before the first packet that is IPv4 or of no common kind, and after a TCP or UDP packet
/// over IPv6: more of them may follow, and vector code is faster for those.
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
