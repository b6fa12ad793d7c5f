//! The common kinds of packets, for code that handles each kind separately: what makes a packet one
//! of a kind, where in it the key's bytes are, and whether its lengths are valid.

use super::LENGTH;
use crate::key::at;
use crate::parse::{COMMON_LEN, ETHERNET_LEN, IPV4_LEN, IPV6_LEN, TAG_LEN};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// The 16 bytes from this offset on decide a packet's kind: Ethertypes, and the IP header up to its
/// protocol.
pub const JUDGED: usize = 12;

/// Protocol numbers in IP headers.
const TCP: u32 = 6;
const UDP: u32 = 17;
/// Offset of the protocol in the IPv4 header.
const PROTOCOL: usize = 9;

/// Returns the offset of the IP header.
pub const fn l3(tagged: bool) -> usize {
    ETHERNET_LEN + if tagged { TAG_LEN } else { 0 }
}

/// Returns how many bytes a packet of this kind must have in its first segment: up to the last byte
/// that vector code loads, and the transport header.
pub const fn least(tagged: bool, tcp: bool, six: bool) -> usize {
    l3(tagged)
        + match (six, tcp) {
            (false, _) => COMMON_LEN,
            (true, false) => IPV6_LEN + 8,
            (true, true) => IPV6_LEN + 20,
        }
}

/// Returns the number of a kind of packet, 0 to 7.
pub const fn index(tagged: bool, tcp: bool, six: bool) -> usize {
    six as usize * 4 + tagged as usize * 2 + tcp as usize
}

/// Returns the offset of the transport header.
pub const fn l4(tagged: bool, six: bool) -> usize {
    l3(tagged) + if six { IPV6_LEN } else { IPV4_LEN }
}

/// Lists the byte ranges to copy from a packet of this kind: (offset in the mini key, offset in the
/// packet, length). IPv6 fields that are not whole bytes are in [`Six`].
pub const fn moves(tagged: bool, tcp: bool, six: bool) -> [(usize, usize, usize); 12] {
    let (l3, l4) = (l3(tagged), l4(tagged, six));
    let four = if six { 0 } else { 1 };
    [
        (at::ETH_TYPE, l3 - 2, 2),
        (at::VLAN_TCI, ETHERNET_LEN, if tagged { 2 } else { 0 }),
        (at::IPV4_SRC, l3 + 12, 8 * four),
        (at::TP_SRC, l4, 4),
        (at::IP_PROTO, if six { l3 + 6 } else { l3 + PROTOCOL }, 1),
        (at::IP_TOS, l3 + 1, four),
        (at::IP_TTL, if six { l3 + 7 } else { l3 + 8 }, 1),
        (at::ETH_DST, 0, 6),
        (at::TCP_FLAGS, l3 + 32, if tcp { 2 * four } else { 0 }),
        (at::ETH_SRC, 6, 6),
        (LENGTH, l3 + 3, four),
        (LENGTH + 1, l3 + 2, four),
    ]
}

/// Mask and value for the 16 bytes from [`JUDGED`] on: a packet is of the kind if they match.
pub struct Judged {
    care: [u8; 16],
    expect: [u8; 16],
}

impl Judged {
    pub const fn new(tagged: bool, tcp: bool, six: bool) -> Judged {
        let l3 = l3(tagged);
        let protocol = if tcp { TCP } else { UDP } as u8;
        let [high, low] = if six { [0x86, 0xdd] } else { [0x08, 0x00] };
        let mut judged = Judged {
            care: [0; 16],
            expect: [0; 16],
        }
        .and(12, 0xff, if tagged { 0x81 } else { high })
        .and(13, 0xff, if tagged { 0x00 } else { low })
        .and(l3 - 2, 0xff, high)
        .and(l3 - 1, 0xff, low);
        judged = if six {
            // The next header. The version is not checked.
            judged.and(l3 + 6, 0xff, protocol)
        } else {
            // Version 4 and header length 20; not a fragment; the protocol.
            judged
                .and(l3, 0xff, 0x45)
                .and(l3 + 6, 0x3f, 0)
                .and(l3 + 7, 0xff, 0)
                .and(l3 + PROTOCOL, 0xff, protocol)
        };
        judged
    }

    /// Returns the mask and value for IPv4 packets of any protocol; callers check the protocol
    /// separately.
    pub const fn of_either(tagged: bool) -> Judged {
        Judged::new(tagged, false, false).and(l3(tagged) + PROTOCOL, 0, 0)
    }

    const fn and(mut self, byte: usize, mask: u8, value: u8) -> Judged {
        (self.care[byte - JUDGED], self.expect[byte - JUDGED]) = (mask, value);
        self
    }

    /// Returns mask and value as bytes.
    pub fn bits(&self) -> ([u8; 16], [u8; 16]) {
        (self.care, self.expect)
    }

    /// Returns mask and value in registers.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "sse2")]
    #[inline]
    pub fn load(&self) -> (__m128i, __m128i) {
        // SAFETY: both are 16 bytes long.
        unsafe { (load16(self.care.as_ptr()), load16(self.expect.as_ptr())) }
    }
}

/// Loads the 16 bytes from `bytes` on.
///
/// # Safety
/// All 16 bytes must be readable.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
#[inline]
pub unsafe fn load16(bytes: *const u8) -> __m128i {
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.cast()) }
}

/// Returns whether an IPv4 packet's total length and TCP data offset are valid; `len` is the
/// frame's length.
///
/// # Safety
/// `head` must have at least 40 bytes from `l3` on.
#[inline(always)]
unsafe fn sound<const TCP: bool>(head: &[u8], l3: usize, len: usize) -> bool {
    debug_assert!(head.len() >= l3 + COMMON_LEN);
    // SAFETY: the caller's promise.
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
            return false;
        }
        least = 20 + data;
    }
    // A negative difference wraps to a large one.
    length >= least && len.wrapping_sub(l3 + length) <= 0xffff
}

/// Like [`sound`], for either TCP or UDP, without a branch on the protocol. Returns all ones for
/// TCP, zero for UDP, None if the packet is invalid or of another protocol.
///
/// # Safety
/// `head` must have at least 40 bytes from `l3` on.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // only vector code calls it
#[inline(always)]
pub unsafe fn sound_either(head: &[u8], l3: usize, len: usize) -> Option<u64> {
    debug_assert!(head.len() >= l3 + COMMON_LEN);
    // SAFETY: the caller's promise.
    let (length, protocol, data) = unsafe {
        let length = head.as_ptr().add(l3 + 2).cast::<u16>().read_unaligned();
        (
            usize::from(u16::from_be(length)),
            u32::from(*head.get_unchecked(l3 + PROTOCOL)),
            usize::from(*head.get_unchecked(l3 + 32)),
        )
    };
    const KNOWN: u32 = 1 << TCP | 1 << UDP;
    // Of these two only TCP has this bit.
    const BIT: u32 = 1;
    const { assert!(TCP >> BIT & 1 == 1 && UDP >> BIT & 1 == 0) }
    let tcp = 0_usize.wrapping_sub((protocol >> BIT & 1) as usize);
    // A UDP header has a fixed length of eight bytes.
    let least = 8 + (12 & tcp);
    let stated = (data >> 4) * 4;
    let data = (stated & tcp) | (8 & !tcp);
    let known = protocol < u32::BITS && KNOWN >> protocol & 1 != 0;
    // As in `sound`.
    let sound = data >= least && length >= 20 + data && len.wrapping_sub(l3 + length) <= 0xffff;
    (known && sound).then_some(tcp as u64)
}

/// Fields of an IPv6 packet that are not whole bytes, or that vector code does not reach.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // only vector code reads it
pub struct Six {
    /// Bytes of the IP packet, header included.
    pub length: u16,
    pub class: u8,
    /// As stored in the key; zero for UDP.
    pub tcp_flags: u16,
}

/// Like [`sound`], for IPv6; returns the fields that vector code does not read, None if invalid.
///
/// # Safety
/// `head` must have at least [`least`] bytes of its kind.
#[inline(always)]
unsafe fn sound6<const TCP: bool>(head: &[u8], l3: usize, len: usize) -> Option<Six> {
    debug_assert!(head.len() >= l3 + IPV6_LEN + if TCP { 20 } else { 8 });
    let at = head.as_ptr();
    // SAFETY: the caller's promise: the IP header.
    let (first, payload) = unsafe {
        let word = |from: usize| u16::from_be(at.add(l3 + from).cast::<u16>().read_unaligned());
        (word(0), usize::from(word(4)))
    };
    let (mut least, mut tcp_flags) = (8, 0);
    if TCP {
        // SAFETY: the caller's promise: the first 14 bytes of a TCP header.
        let word = unsafe { at.add(l3 + IPV6_LEN + 12).cast::<u16>().read_unaligned() };
        let [data, _] = word.to_ne_bytes();
        least = usize::from(data >> 4) * 4;
        if least < 20 {
            return None;
        }
        tcp_flags = word & u16::from_ne_bytes([0x0f, 0xff]);
    }
    let length = IPV6_LEN + payload;
    // As in `sound`. A packet longer than an `Extent` can express is of no common kind.
    let sound = payload >= least && length <= 0xffff && len.wrapping_sub(l3 + length) <= 0xffff;
    sound.then_some(Six {
        length: length as u16,
        class: (first >> 4) as u8,
        tcp_flags,
    })
}

/// Checks that a packet's lengths are valid. Returns None if not, else `Some` with the additional
/// fields of an IPv6 packet.
///
/// # Safety
/// `head` must have at least [`least`] bytes of its kind.
#[inline(always)]
pub unsafe fn judge<const TCP: bool, const SIX: bool>(
    head: &[u8],
    l3: usize,
    len: usize,
) -> Option<Option<Six>> {
    // SAFETY: the caller's promise.
    unsafe {
        if SIX {
            sound6::<TCP>(head, l3, len).map(Some)
        } else {
            sound::<TCP>(head, l3, len).then_some(None)
        }
    }
}
