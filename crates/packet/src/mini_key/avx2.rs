//! [`super::read_burst`] with AVX2: moves a packet's headers to their places by two to four
//! shuffles.
//!
//! The first four words of a [`MiniKey`] are one register of two 16-byte halves: ingress port,
//! Ethertype, tag and addresses; ports, protocol, ToS, TTL and the Ethernet destination. The fifth
//! word, the extent and the length are half of another register. A shuffle moves bytes only within
//! a half, so bytes that both halves need are loaded into both.

use super::kinds::{JUDGED, Judged, Six, index, judge, l3, least, load16, sound_either};
use super::lists::Lists;
use super::{FRAME_LEN, LENGTH, MiniKey, NO_PATTERN, Pattern, Read};
use crate::frame::Frame;
use crate::key::at;
use crate::parse::{COMMON_LEN, ETHERNET_LEN, Extent, IPV4_LEN, IPV6_LEN, Network};
use std::arch::x86_64::*;
use std::mem::offset_of;

/// Returns whether the processor has what [`read_burst`] is compiled for.
pub(super) fn is_there() -> bool {
    is_x86_feature_detected!("avx2")
}

/// Shuffle index that yields zero.
const NOTHING: u8 = 0x80;
/// Bytes of the first register, and of the second that are used.
const LOW: usize = 32;
const HIGH: usize = 16;
const _: () = assert!(at::ETH_SRC == LOW && FRAME_LEN + 4 == LOW + HIGH);

/// Offset, behind the IP header's first byte, of the load that holds the ports; in IPv4 it holds
/// TTL, protocol and addresses, too.
const PORTS: usize = 8;
const PORTS6: usize = PORTS + IPV6_LEN - IPV4_LEN;
/// Offset of the load that holds the TCP flags in IPv4; it ends with the bytes a packet has at
/// least.
const FLAGS: usize = COMMON_LEN - 16;
/// Offset of the load that holds the Ethernet source and the IP packet's length.
const SOURCE: usize = 6;

/// 32 bytes in memory.
#[repr(align(32))]
struct Bytes([u8; LOW]);

impl Bytes {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn load(&self) -> __m256i {
        // SAFETY: 32 readable bytes, aligned.
        unsafe { _mm256_load_si256(self.0.as_ptr().cast()) }
    }
}

/// How to read one kind of common packet. Each shuffle gives, for each byte of a register, the byte
/// of a load that it comes from.
struct ReadPlan {
    judged: Judged,
    /// Shuffle of the load at [`PORTS`] or [`PORTS6`], which is in both halves.
    network: Bytes,
    /// Shuffle of the frame's bytes 8 to 16 (first half), and 0 to 8 and eight from [`behind`] on
    /// (second half).
    ethernet: Bytes,
    /// Shuffle of the load at [`FLAGS`], and the bits to keep.
    flags: Bytes,
    keep: Bytes,
    /// Bytes that are the same for all packets of the kind.
    fixed: Bytes,
    /// Shuffle of the load at [`SOURCE`], and the bytes that are the same for all packets of the
    /// kind.
    source: [u8; HIGH],
    fixed_source: [u8; HIGH],
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

/// Returns the offset of eight bytes of the frame that contain the ToS or, for IPv6, the hop limit.
const fn behind(tagged: bool, six: bool) -> usize {
    8 * (1 + tagged as usize + six as usize)
}

/// Writes `len` consecutive numbers, `first` first, from index `from` on.
const fn count<const N: usize>(
    mut bytes: [u8; N],
    from: usize,
    len: usize,
    first: usize,
) -> [u8; N] {
    let mut byte = 0;
    while byte < len {
        bytes[from + byte] = (first + byte) as u8;
        byte += 1;
    }
    bytes
}

const fn kind(tagged: bool, tcp: bool, six: bool) -> ReadPlan {
    let l3 = l3(tagged);
    let nothing = [NOTHING; LOW];
    let mut network = count(nothing, at::TP_SRC, 4, 20 - PORTS);
    if !six {
        network = count(network, at::IPV4_SRC, 8, 12 - PORTS);
        network = count(network, at::IP_TTL, 1, 8 - PORTS);
    }
    // Only the first eight bytes of the first half's load are used.
    let tci = if tagged { 2 } else { 0 };
    let ethernet = count(nothing, at::VLAN_TCI, tci, ETHERNET_LEN - 8);
    let ethernet = count(ethernet, at::ETH_DST, 6, 0);
    let (place, from) = if six {
        (at::IP_TTL, l3 + 7)
    } else {
        (at::IP_TOS, l3 + 1)
    };
    let ethernet = count(ethernet, place, 1, from - behind(tagged, six) + 8);
    let flags = count(nothing, at::TCP_FLAGS, 2, 32 - FLAGS);
    let mut keep = [0; LOW];
    (keep[at::TCP_FLAGS], keep[at::TCP_FLAGS + 1]) = (0x0f, 0xff);
    let mut fixed = [0; LOW];
    let eth_type = if six { [0x86, 0xdd] } else { [0x08, 0x00] };
    (fixed[at::ETH_TYPE], fixed[at::ETH_TYPE + 1]) = (eth_type[0], eth_type[1]);
    fixed[at::IP_PROTO] = if tcp { 6 } else { 17 };
    if tagged {
        fixed[at::VLAN_TCI] = 0x10; // a tag is present
    }
    let source = count([NOTHING; HIGH], at::ETH_SRC - LOW, 6, 0);
    // IPv6: see `Six`.
    let four = if six { 0 } else { 1 };
    let source = count(source, LENGTH - LOW, four, l3 + 3 - SOURCE);
    let source = count(source, LENGTH + 1 - LOW, four, l3 + 2 - SOURCE);
    let mut fixed_source = [0; HIGH];
    let of = if six { Network::Ipv6 } else { Network::Ipv4 };
    let extent = Extent::bytes(l3, of, 0);
    let place = offset_of!(MiniKey, extent) - LOW;
    (fixed_source[place], fixed_source[place + 1]) = (extent[0], extent[1]);
    ReadPlan {
        judged: Judged::new(tagged, tcp, six),
        network: Bytes(network),
        ethernet: Bytes(ethernet),
        flags: Bytes(flags),
        keep: Bytes(keep),
        fixed: Bytes(fixed),
        source,
        fixed_source,
    }
}

#[target_feature(enable = "avx2")]
pub(super) fn read_burst<F: Frame>(
    frames: &[F],
    in_port: u32,
    patterns: &[Pattern],
    hot: &mut [MiniKey],
    found: &mut [u8],
) -> Read {
    let mut burst = Burst(Lists::new(frames, in_port, patterns, hot, found));
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

struct Burst<'a, F>(Lists<'a, F>);

impl<'a, F: Frame> Burst<'a, F> {
    /// Reads packets of IPv6, one kind after the other.
    #[target_feature(enable = "avx2")]
    #[inline(never)] // so that registers stay free for the kinds of IPv4
    fn six(&mut self) {
        self.kind::<false, false, true>();
        self.kind::<false, true, true>();
        self.kind::<true, false, true>();
        self.kind::<true, true, true>();
    }

    /// Reads packets of one kind, up to the first of another.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn kind<const TAGGED: bool, const TCP: bool, const SIX: bool>(&mut self) {
        let l3 = const { l3(TAGGED) };
        let kind = &KINDS[const { index(TAGGED, TCP, SIX) }];
        let (care, expect) = kind.judged.load();
        let moves = kind.moves(self.0.in_port);
        let flags = kind.flags();
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
            // SAFETY: as above.
            let (mut low, high) = unsafe { moves.words::<TAGGED, SIX>(head, len) };
            if TCP && !SIX {
                // SAFETY: `head` has `l3 + COMMON_LEN` bytes.
                low = _mm256_or_si256(low, unsafe { flags.of(head, l3) });
            }
            let (low, high) = match &six {
                Some(six) => with_six(low, high, six),
                None => (low, high),
            };
            *found = patterns.keep(low, high, hot);
            read.count += 1;
            read.bytes += len as u64;
        }
        self.0.read = read;
    }

    /// Reads packets of TCP and UDP over IPv4 in any order, without a branch on which comes next.
    /// Takes a little more work per packet than a loop for one kind.
    #[target_feature(enable = "avx2")]
    #[inline(never)] // as for `six`
    fn either<const TAGGED: bool>(&mut self) {
        let l3 = const { l3(TAGGED) };
        let kind = &KINDS[const { index(TAGGED, false, false) }];
        let tcp = &KINDS[const { index(TAGGED, true, false) }];
        let (care, expect) = const { &Judged::of_either(TAGGED) }.load();
        let moves = kind.moves(self.0.in_port);
        let flags = tcp.flags();
        // The bits by which the protocol numbers differ.
        let other = _mm256_xor_si256(kind.fixed.load(), tcp.fixed.load());
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
            let Some(is_tcp) = (unsafe { sound_either(head, l3, len) }) else {
                break;
            };
            let is_tcp = _mm256_set1_epi64x(is_tcp as i64);
            // SAFETY: as above; the flags lie in the `l3 + COMMON_LEN` bytes that it has.
            let ((low, high), flags) =
                unsafe { (moves.words::<TAGGED, false>(head, len), flags.of(head, l3)) };
            // No byte of `low` has both flags and the protocol.
            let low =
                _mm256_xor_si256(low, _mm256_and_si256(_mm256_or_si256(other, flags), is_tcp));
            *found = patterns.keep(low, high, hot);
            read.count += 1;
            read.bytes += len as u64;
        }
        self.0.read = read;
    }

    /// Returns the patterns to compare packets with.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn patterns(&self) -> Patterns<'a> {
        let (only, more) = self.0.patterns();
        let only = only.halves();
        Patterns { only, more }
    }
}

/// A [`ReadPlan`]'s shuffles and fixed bytes in registers.
struct Moves {
    network: __m256i,
    ethernet: __m256i,
    /// Includes the ingress port.
    fixed: __m256i,
    source: __m128i,
    fixed_source: __m128i,
}

/// The shuffle and the mask of the TCP flags.
struct Flags {
    from: __m256i,
    keep: __m256i,
}

impl ReadPlan {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn moves(&self, in_port: u32) -> Moves {
        let port = _mm256_zextsi128_si256(_mm_cvtsi32_si128(in_port.to_be() as i32));
        // SAFETY: both are 16 bytes long.
        let (source, fixed_source) = unsafe {
            (
                load16(self.source.as_ptr()),
                load16(self.fixed_source.as_ptr()),
            )
        };
        Moves {
            network: self.network.load(),
            ethernet: self.ethernet.load(),
            fixed: _mm256_or_si256(self.fixed.load(), port),
            source,
            fixed_source,
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn flags(&self) -> Flags {
        Flags {
            from: self.flags.load(),
            keep: self.keep.load(),
        }
    }
}

impl Moves {
    /// Returns the mini key of a packet of `len` bytes, without TCP flags and what only IPv6 has.
    ///
    /// # Safety
    /// `head` must have the [`least`] bytes of its kind.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn words<const TAGGED: bool, const SIX: bool>(
        &self,
        head: &[u8],
        len: usize,
    ) -> (__m256i, __m128i) {
        let bytes = head.as_ptr();
        // SAFETY: both loads end within the least bytes of the kind: at 32, and at `l3 + 24` (`l3 +
        // 44` in IPv6).
        let (first, second) = unsafe {
            let begin = _mm256_loadu_si256(bytes.cast());
            let ports = if SIX { PORTS6 } else { PORTS };
            (begin, load16(bytes.add(l3(TAGGED) + ports)))
        };
        // Bytes 8 to 16 twice, 0 to 8, and the eight from `behind` on.
        let first = match const { behind(TAGGED, SIX) } {
            8 => _mm256_permute4x64_epi64::<0b01_00_01_01>(first),
            16 => _mm256_permute4x64_epi64::<0b10_00_01_01>(first),
            _ => _mm256_permute4x64_epi64::<0b11_00_01_01>(first),
        };
        let second = _mm256_broadcastsi128_si256(second);
        let low = _mm256_or_si256(
            _mm256_or_si256(self.fixed, _mm256_shuffle_epi8(first, self.ethernet)),
            _mm256_shuffle_epi8(second, self.network),
        );
        // SAFETY: ends at byte 22; `head` has at least 40.
        let high = unsafe { load16(bytes.add(SOURCE)) };
        let high = _mm_or_si128(self.fixed_source, _mm_shuffle_epi8(high, self.source));
        let high = _mm_insert_epi32::<{ (FRAME_LEN - LOW) as i32 / 4 }>(high, len as i32);
        (low, high)
    }
}

impl Flags {
    /// Returns the TCP flags of an IPv4 packet, at their place in the mini key.
    ///
    /// # Safety
    /// `head` must have `l3 + COMMON_LEN` bytes.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn of(&self, head: &[u8], l3: usize) -> __m256i {
        // SAFETY: the load ends at `l3 + COMMON_LEN`.
        let bytes = unsafe { load16(head.as_ptr().add(l3 + FLAGS)) };
        let moved = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), self.from);
        _mm256_and_si256(moved, self.keep)
    }
}

/// The patterns to compare with; the first one is kept in registers.
struct Patterns<'a> {
    only: Halves,
    more: &'a [Pattern],
}

impl Patterns<'_> {
    /// Stores a packet's words, and returns the number of the first pattern that matches.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn keep(&self, low: __m256i, high: __m128i, hot: &mut MiniKey) -> u8 {
        let high = _mm256_zextsi128_si256(high);
        let to = std::ptr::from_mut(hot).cast::<__m256i>();
        // SAFETY: 64 writable bytes, aligned; every bit pattern is a valid value. The fields after
        // the length become zero.
        unsafe {
            _mm256_store_si256(to, low);
            _mm256_store_si256(to.add(1), high);
        }
        if self.only.matches(low, high) {
            return 0;
        }
        if self.more.is_empty() {
            return NO_PATTERN;
        }
        first_of(self.more, low, high)
    }
}

/// Inserts the fields of an IPv6 packet that shuffles do not move.
#[target_feature(enable = "avx2")]
#[inline]
fn with_six(low: __m256i, high: __m128i, six: &Six) -> (__m256i, __m128i) {
    const CLASS_AT: u32 = 8 * (at::IP_TOS % 8) as u32;
    const FLAGS_AT: u32 = 8 * (at::TCP_FLAGS % 8) as u32;
    const _: () = assert!(at::IP_TOS / 8 == 2 && at::TCP_FLAGS / 8 == 3);
    let (class, flags) = (i64::from(six.class), i64::from(six.tcp_flags));
    let told = _mm256_set_epi64x(flags << FLAGS_AT, class << CLASS_AT, 0, 0);
    let high = _mm_insert_epi16::<{ (LENGTH - LOW) as i32 / 2 }>(high, six.length.into());
    (_mm256_or_si256(low, told), high)
}

/// Returns the number of the first pattern that matches, of those in `more`; the first of them is
/// number 1.
#[target_feature(enable = "avx2")]
#[inline]
fn first_of(more: &[Pattern], low: __m256i, high: __m256i) -> u8 {
    for (index, pattern) in more.iter().enumerate() {
        if pattern.halves().matches(low, high) {
            return index as u8 + 1;
        }
    }
    NO_PATTERN
}

/// A pattern's words in registers.
struct Halves {
    mask: [__m256i; 2],
    value: [__m256i; 2],
}

impl Halves {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn matches(&self, low: __m256i, high: __m256i) -> bool {
        let low = _mm256_and_si256(_mm256_xor_si256(low, self.value[0]), self.mask[0]);
        let high = _mm256_and_si256(_mm256_xor_si256(high, self.value[1]), self.mask[1]);
        let differ = _mm256_or_si256(low, high);
        _mm256_testz_si256(differ, differ) == 1
    }
}

impl Pattern {
    #[target_feature(enable = "avx2")]
    #[inline]
    fn halves(&self) -> Halves {
        let halves = |words: &[u64; 8]| {
            let words = words.as_ptr().cast::<__m256i>();
            // SAFETY: 64 readable bytes, aligned as the type is: both fields are 64 bytes long.
            unsafe { [_mm256_load_si256(words), _mm256_load_si256(words.add(1))] }
        };
        Halves {
            mask: halves(&self.mask),
            value: halves(&self.value),
        }
    }
}
