//! [`super::read_burst`] with AVX-512: a packet's first 64 bytes in one register.

use super::kinds::{JUDGED, Judged, Six, index, judge, l3, least, load16, moves, sound_either};
use super::lists::Lists;
use super::{FRAME_LEN, LENGTH, MiniKey, NO_PATTERN, Pattern, Read};
use crate::frame::Frame;
use crate::key::at;
use crate::parse::{Extent, Network};
use std::arch::x86_64::*;
use std::mem::offset_of;

/// Returns whether the processor has what [`read_burst`] is compiled for.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("bmi2")
        // The prefilter uses it (`raw`).
        && is_x86_feature_detected!("avx2")
}

/// A register's bytes in memory.
#[repr(align(64))]
struct Bytes([u8; 64]);

impl Bytes {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load(&self) -> __m512i {
        // SAFETY: 64 readable bytes, aligned.
        unsafe { _mm512_load_si512(self.0.as_ptr().cast()) }
    }
}

/// How to read one kind of common packet.
struct ReadPlan {
    judged: Judged,
    /// For each byte of a [`MiniKey`]: the byte of the packet that it comes from; whether it comes
    /// from the packet at all; and which of its bits do, none if not.
    from: Bytes,
    present: u64,
    keep: Bytes,
    /// Bytes that are the same for all packets of the kind.
    fixed: Bytes,
}

/// Indexed by [`index`].
static KINDS: [ReadPlan; 8] = [
    kind(false, false, false),
    kind(false, true, false),
    kind(true, false, false),
    kind(true, true, false),
    kind(false, false, true),
    kind(false, true, true),
    kind(true, false, true),
    kind(true, true, true),
];

const fn kind(tagged: bool, tcp: bool, six: bool) -> ReadPlan {
    let l3 = l3(tagged);
    let network = if six { Network::Ipv6 } else { Network::Ipv4 };
    let (mut from, mut keep, mut present) = ([0; 64], [0; 64], 0_u64);
    let mut fixed = [0; 64];
    let moves = moves(tagged, tcp, six);
    let mut at = 0;
    while at < moves.len() {
        let (to, source, len) = moves[at];
        let mut byte = 0;
        while byte < len {
            from[to + byte] = (source + byte) as u8;
            present |= 1 << (to + byte);
            let flags = to == at::TCP_FLAGS && byte == 0;
            keep[to + byte] = if flags { 0x0f } else { 0xff };
            byte += 1;
        }
        at += 1;
    }
    let extent = Extent::bytes(l3, network, 0);
    let place = offset_of!(MiniKey, extent);
    (fixed[place], fixed[place + 1]) = (extent[0], extent[1]);
    if tagged {
        fixed[at::VLAN_TCI] = 0x10; // a tag is present
    }
    ReadPlan {
        judged: Judged::new(tagged, tcp, six),
        from: Bytes(from),
        present,
        keep: Bytes(keep),
        fixed: Bytes(fixed),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2,sse4.1")]
pub(super) fn read_burst<F: Frame>(
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    if patterns.is_empty() {
        let read = read::<_, false>(frames, in_port, patterns, hot, found);
        found[..read.count].fill(NO_PATTERN);
        return read;
    }
    read::<_, true>(frames, in_port, patterns, hot, found)
}

/// [`read_burst`], compiled with patterns and without; without, `found` is not written.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2,sse4.1")]
#[inline(never)]
fn read<F: Frame, const PATTERNED: bool>(
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    let mut burst: Burst<'_, F, PATTERNED> =
        Burst(Lists::new(frames, in_port, patterns, hot, found));
    // A burst is mostly of one kind: read each kind for as long as it lasts. If a kind ends within
    // the burst, TCP and UDP may alternate.
    loop {
        let before = burst.0.read.count;
        burst.kind::<false, false, false>();
        burst.kind::<false, true, false>();
        if burst.0.is_mixed(before) {
            burst.either::<false>();
        }
        let before_tagged = burst.0.read.count;
        burst.kind::<true, false, false>();
        burst.kind::<true, true, false>();
        if burst.0.is_mixed(before_tagged) {
            burst.either::<true>();
        }
        if burst.0.next_is_six() {
            burst.six();
        }
        if burst.0.is_at_end(before) {
            return burst.0.read;
        }
    }
}

struct Burst<'a, F, const PATTERNED: bool>(Lists<'a, F>);

impl<'a, F: Frame, const PATTERNED: bool> Burst<'a, F, PATTERNED> {
    /// Reads packets of IPv6, one kind after the other.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2,sse4.1")]
    #[inline(never)] // so that registers stay free for the kinds of IPv4
    fn six(&mut self) {
        self.kind::<false, false, true>();
        self.kind::<false, true, true>();
        self.kind::<true, false, true>();
        self.kind::<true, true, true>();
    }

    /// Reads packets of one kind, up to the first of another.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2,sse4.1")]
    #[inline]
    fn kind<const TAGGED: bool, const TCP: bool, const SIX: bool>(&mut self) {
        let l3 = const { l3(TAGGED) };
        let kind = &KINDS[const { index(TAGGED, TCP, SIX) }];
        let (care, expect) = kind.judged.load();
        let moves = kind.moves(self.0.in_port);
        let patterns = self.patterns();
        let mut read = self.0.read;
        for ((frame, hot), found) in self.0.rest() {
            let (head, len) = (frame.head(), frame.len());
            if head.len() < const { least(TAGGED, TCP, SIX) } {
                break;
            }
            // SAFETY: `head` has at least the bytes that packets of the kind need.
            let judged = unsafe { load16(head.as_ptr().add(JUDGED)) };
            if _mm_testz_si128(_mm_xor_si128(judged, expect), care) == 0 {
                break;
            }
            // SAFETY: as above.
            let Some(six) = (unsafe { judge::<TCP, SIX>(head, l3, len) }) else {
                break;
            };
            let words = moves.words(head, len, None);
            let words = match &six {
                Some(six) => with_six(words, six),
                None => words,
            };
            store(words, hot);
            if PATTERNED {
                *found = patterns.first(words);
            }
            read.count += 1;
            read.bytes += len as u64;
        }
        self.0.read = read;
    }

    /// Reads packets of TCP and UDP over IPv4 in any order, without a branch on which comes next.
    /// Takes a little more work per packet than a loop for one kind.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2,sse4.1")]
    #[inline(never)] // as for `six`
    fn either<const TAGGED: bool>(&mut self) {
        let l3 = const { l3(TAGGED) };
        let kind = &KINDS[const { index(TAGGED, true, false) }];
        // UDP reads a subset of TCP's bytes, from the same places.
        let udp = KINDS[const { index(TAGGED, false, false) }].present;
        let (care, expect) = const { &Judged::of_either(TAGGED) }.load();
        let moves = kind.moves(self.0.in_port);
        let patterns = self.patterns();
        let mut read = self.0.read;
        for ((frame, hot), found) in self.0.rest() {
            let (head, len) = (frame.head(), frame.len());
            if head.len() < const { least(TAGGED, true, false) } {
                break;
            }
            // SAFETY: `head` has at least the bytes that packets of the kind need.
            let judged = unsafe { load16(head.as_ptr().add(JUDGED)) };
            if _mm_testz_si128(_mm_xor_si128(judged, expect), care) == 0 {
                break;
            }
            // SAFETY: as above.
            let Some(tcp) = (unsafe { sound_either(head, l3, len) }) else {
                break;
            };
            let words = moves.words(head, len, Some(kind.present & tcp | udp));
            store(words, hot);
            if PATTERNED {
                *found = patterns.first(words);
            }
            read.count += 1;
            read.bytes += len as u64;
        }
        self.0.read = read;
    }

    /// Returns the patterns to compare packets with.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn patterns(&self) -> Patterns<'a> {
        let (only, more) = self.0.patterns();
        let (value, mask) = (only.value(), only.mask());
        Patterns { value, mask, more }
    }
}

/// A [`ReadPlan`]'s permutation and fixed bytes in registers.
struct Moves {
    from: __m512i,
    keep: __m512i,
    /// Includes the ingress port.
    fixed: __m512i,
}

impl ReadPlan {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn moves(&self, in_port: u32) -> Moves {
        let port = _mm512_zextsi128_si512(_mm_cvtsi32_si128(in_port.to_be() as i32));
        Moves {
            from: self.from.load(),
            keep: self.keep.load(),
            fixed: _mm512_or_si512(self.fixed.load(), port),
        }
    }
}

impl Moves {
    /// Returns the mini key of a packet of `len` bytes. With `present`, takes only those bytes of
    /// the mini key from the packet; else all that the kind keeps.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2")]
    #[inline]
    fn words(&self, head: &[u8], len: usize, present: Option<u64>) -> __m512i {
        let there = _bzhi_u64(u64::MAX, head.len().min(64) as u32);
        // SAFETY: only bytes of `head` are loaded.
        let bytes = unsafe { _mm512_maskz_loadu_epi8(there, head.as_ptr().cast()) };
        let moved = match present {
            Some(present) => _mm512_maskz_permutexvar_epi8(present, self.from, bytes),
            None => _mm512_permutexvar_epi8(self.from, bytes),
        };
        // moved & keep | fixed
        let words = _mm512_ternarylogic_epi64::<0b1111_1000>(self.fixed, moved, self.keep);
        _mm512_mask_set1_epi32(words, const { 1 << (FRAME_LEN / 4) }, len as i32)
    }
}

/// The patterns to compare with; the first one is kept in registers.
struct Patterns<'a> {
    value: __m512i,
    mask: __m512i,
    more: &'a [Pattern],
}

impl Patterns<'_> {
    /// Returns the number of the first pattern that a packet's words match.
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn first(&self, words: __m512i) -> u8 {
        let differ = _mm512_test_epi64_mask(_mm512_xor_si512(words, self.value), self.mask);
        if differ == 0 {
            return 0;
        }
        if self.more.is_empty() {
            return NO_PATTERN;
        }
        first_of(self.more, words)
    }
}

/// Stores a packet's words.
#[target_feature(enable = "avx512f")]
#[inline]
fn store(words: __m512i, hot: &mut MiniKey) {
    // SAFETY: 64 writable bytes, aligned; every bit pattern is a valid value. The fields after the
    // length become zero.
    unsafe { _mm512_store_si512(std::ptr::from_mut(hot).cast(), words) };
}

/// Inserts the fields of an IPv6 packet that the permutation does not move.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn with_six(words: __m512i, six: &Six) -> __m512i {
    let words = _mm512_mask_set1_epi8(words, 1 << at::IP_TOS, six.class as i8);
    let words = _mm512_mask_set1_epi16(words, const { 1 << (LENGTH / 2) }, six.length as i16);
    _mm512_mask_set1_epi16(words, 1 << (at::TCP_FLAGS / 2), six.tcp_flags as i16)
}

/// Returns the number of the first pattern that matches, of those in `more`; the first of them is
/// number 1.
#[target_feature(enable = "avx512f")]
#[inline]
fn first_of(more: &[Pattern], words: __m512i) -> u8 {
    for (index, pattern) in more.iter().enumerate() {
        let differ = _mm512_xor_si512(words, pattern.value());
        if _mm512_test_epi64_mask(differ, pattern.mask()) == 0 {
            return index as u8 + 1;
        }
    }
    NO_PATTERN
}

impl Pattern {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn mask(&self) -> __m512i {
        // SAFETY: 64 readable bytes, aligned as the type is.
        unsafe { _mm512_load_si512(self.mask.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn value(&self) -> __m512i {
        // SAFETY: 64 readable bytes, aligned as the type is: the mask in front is 64 bytes long.
        unsafe { _mm512_load_si512(self.value.as_ptr().cast()) }
    }
}
