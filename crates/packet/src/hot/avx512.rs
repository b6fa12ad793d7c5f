//! [`super::read_burst`] with AVX-512: a packet's first 64 bytes in one register.

use super::{HotWords, NO_PATTERN, Pattern, Read};
use crate::frame::Frame;
use crate::key::at;
use crate::parse::{COMMON_LEN, ETHERNET_LEN, Extent, TAG_LEN};
use std::arch::x86_64::*;
use std::mem::offset_of;

/// Whether the processor has what [`read_burst`] is compiled for.
#[inline(always)]
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("bmi2")
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

/// How one kind of common packet is read.
struct Kind {
    /// Bits of the packet's bytes from [`JUDGED`] on that make it of this kind, and what they must be.
    care: [u8; 16],
    expect: [u8; 16],
    /// From where in the packet each byte of a [`HotWords`] comes; which bytes do, and which of their bits.
    from: Bytes,
    present: u64,
    keep: Bytes,
    /// Bytes that are the same for all.
    fixed: Bytes,
}

/// By [`Kind::index`].
static KINDS: [Kind; 4] = [
    kind(false, false),
    kind(false, true),
    kind(true, false),
    kind(true, true),
];

/// From here on 16 bytes tell a packet's kind: Ethertypes, and the IP header up to its protocol.
const JUDGED: usize = 12;

/// The 16 bytes from `bytes` on.
///
/// # Safety
/// They are there.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn load16(bytes: *const u8) -> __m128i {
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.cast()) }
}

/// Where the IP header begins.
const fn l3(tagged: bool) -> usize {
    ETHERNET_LEN + if tagged { TAG_LEN } else { 0 }
}

/// The number of a kind of packet.
const fn index(tagged: bool, tcp: bool) -> usize {
    tagged as usize * 2 + tcp as usize
}

const fn kind(tagged: bool, tcp: bool) -> Kind {
    let l3 = l3(tagged);
    let (mut care, mut expect) = ([0; 16], [0; 16]);
    let (mut from, mut keep, mut present) = ([0; 64], [0; 64], 0_u64);
    let mut fixed = [0; 64];
    // Ethertypes; version and header length; neither "more fragments" nor an offset; protocol.
    let wanted = [
        (12, 0xff, if tagged { 0x81 } else { 0x08 }),
        (13, 0xff, 0x00),
        (l3 - 2, 0xff, 0x08),
        (l3 - 1, 0xff, 0x00),
        (l3, 0xff, 0x45),
        (l3 + 6, 0x3f, 0),
        (l3 + 7, 0xff, 0),
        (l3 + 9, 0xff, if tcp { 6 } else { 17 }),
    ];
    let mut at = 0;
    while at < wanted.len() {
        let (byte, mask, value) = wanted[at];
        (care[byte - JUDGED], expect[byte - JUDGED]) = (mask, value);
        at += 1;
    }
    // Place in the hot words, place in the packet, length.
    let moves = [
        (at::ETH_TYPE, l3 - 2, 2),
        (at::VLAN_TCI, ETHERNET_LEN, if tagged { 2 } else { 0 }),
        (at::IPV4_SRC, l3 + 12, 8),
        (at::TP_SRC, l3 + 20, 4),
        (at::IP_PROTO, l3 + 9, 1),
        (at::IP_TOS, l3 + 1, 1),
        (at::IP_TTL, l3 + 8, 1),
        (at::ETH_DST, 0, 6),
        (at::TCP_FLAGS, l3 + 32, if tcp { 2 } else { 0 }),
        (at::ETH_SRC, 6, 6),
        (LENGTH, l3 + 3, 1),
        (LENGTH + 1, l3 + 2, 1),
    ];
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
    fixed[offset_of!(HotWords, extent) + offset_of!(Extent, l3)] = l3 as u8;
    if tagged {
        fixed[at::VLAN_TCI] = 0x10; // a tag is present
    }
    Kind {
        care,
        expect,
        from: Bytes(from),
        present,
        keep: Bytes(keep),
        fixed: Bytes(fixed),
    }
}

/// Places in a [`HotWords`] behind the words.
const LENGTH: usize = offset_of!(HotWords, extent) + offset_of!(Extent, length);
const FRAME_LEN: usize = offset_of!(HotWords, len);
const _: () = assert!(FRAME_LEN.is_multiple_of(4) && size_of::<HotWords>() == 64);

/// The lists that a burst is read into, and how far it has come.
struct Burst<'a, F> {
    frames: &'a [F],
    hot: &'a mut [HotWords],
    found: &'a mut [u8],
    in_port: u32,
    patterns: &'a [Pattern],
    read: Read,
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2,sse4.1")]
pub(super) fn read_burst<F: Frame>(
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [HotWords],
    found: &mut [u8],
) -> Read {
    let all = frames.len().min(hot.len()).min(found.len());
    let mut burst = Burst {
        frames: &frames[..all],
        hot: &mut hot[..all],
        found: &mut found[..all],
        in_port,
        patterns,
        read: Read::default(),
    };
    // A burst is mostly of one kind: each is read as long as it lasts.
    loop {
        let before = burst.read.count;
        burst.kind::<false, false>();
        burst.kind::<false, true>();
        burst.kind::<true, false>();
        burst.kind::<true, true>();
        if burst.read.count == before || burst.read.count == all {
            return burst.read;
        }
    }
}

impl<F: Frame> Burst<'_, F> {
    /// Reads packets of one kind, up to the first of another.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi,bmi2,sse4.1")]
    #[inline]
    fn kind<const TAGGED: bool, const TCP: bool>(&mut self) {
        let l3 = const { l3(TAGGED) };
        let kind = &KINDS[const { index(TAGGED, TCP) }];
        // SAFETY: both are 16 bytes long.
        let (care, expect) = unsafe { (load16(kind.care.as_ptr()), load16(kind.expect.as_ptr())) };
        let (from, keep, present) = (kind.from.load(), kind.keep.load(), kind.present);
        let port = _mm512_zextsi128_si512(_mm_cvtsi32_si128(self.in_port.to_be() as i32));
        let fixed = _mm512_or_si512(kind.fixed.load(), port);
        let (only, more) = match self.patterns {
            [] => (Pattern::NEVER, &[][..]),
            [only, more @ ..] => (*only, more),
        };
        let (value, mask) = (only.value(), only.mask());
        let start = self.read.count;
        let rest = (self.frames[start..].iter())
            .zip(&mut self.hot[start..])
            .zip(&mut self.found[start..]);
        let mut read = self.read;
        for ((frame, hot), found) in rest {
            let (head, len) = (frame.head(), frame.len());
            if head.len() < l3 + COMMON_LEN {
                break;
            }
            // SAFETY: `head` is longer.
            let judged = unsafe { load16(head.as_ptr().add(JUDGED)) };
            if _mm_testz_si128(_mm_xor_si128(judged, expect), care) == 0 {
                break;
            }
            // SAFETY: `head` is longer.
            let (length, data) = unsafe {
                let length = head.as_ptr().add(l3 + 2).cast::<u16>().read_unaligned();
                (
                    usize::from(u16::from_be(length)),
                    *head.get_unchecked(l3 + 32),
                )
            };
            let mut least = 28;
            if TCP {
                let data = usize::from(data >> 4) * 4;
                if data < 20 {
                    break;
                }
                least = 20 + data;
            }
            // A negative difference wraps to a large one.
            if length < least || len.wrapping_sub(l3 + length) > 0xffff {
                break;
            }
            let there = _bzhi_u64(u64::MAX, head.len().min(64) as u32);
            // SAFETY: only bytes of `head` are loaded.
            let bytes = unsafe { _mm512_maskz_loadu_epi8(there, head.as_ptr().cast()) };
            let moved = _mm512_maskz_permutexvar_epi8(present, from, bytes);
            // moved & keep | fixed
            let words = _mm512_ternarylogic_epi64::<0b1111_1000>(fixed, moved, keep);
            let words = _mm512_mask_set1_epi32(words, const { 1 << (FRAME_LEN / 4) }, len as i32);
            // SAFETY: 64 bytes, aligned; every pattern of bits is a valid value, and the unnamed rest is zero.
            unsafe { _mm512_store_si512(std::ptr::from_mut(hot).cast(), words) };
            let differ = _mm512_test_epi64_mask(_mm512_xor_si512(words, value), mask);
            let mut first = if differ == 0 { 0 } else { NO_PATTERN };
            if differ != 0 && !more.is_empty() {
                first = first_of(more, words);
            }
            *found = first;
            read.count += 1;
            read.bytes += len as u64;
        }
        self.read = read;
    }
}

/// The number of the first of all patterns but the first one that matches.
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
    /// Matches nothing: no key has all bits in the words behind the hot ones.
    const NEVER: Pattern = Pattern {
        mask: [0, 0, 0, 0, 0, 0, 0, 1],
        value: [0, 0, 0, 0, 0, 0, 0, 1],
    };

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn mask(&self) -> __m512i {
        // SAFETY: 64 readable bytes, aligned as the type is.
        unsafe { _mm512_load_si512(self.mask.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    #[inline]
    fn value(&self) -> __m512i {
        // SAFETY: 64 readable bytes, aligned as the type is, for the mask before is 64 bytes long.
        unsafe { _mm512_load_si512(self.value.as_ptr().cast()) }
    }
}
