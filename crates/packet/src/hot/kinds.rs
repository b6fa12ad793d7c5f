//! What vector code for different processors shares: what makes a packet of a kind, and the lists that a burst is read into.

use super::{HotWords, Pattern, Read};
use crate::frame::Frame;
use crate::key::at;
use crate::parse::{COMMON_LEN, ETHERNET_LEN, IPV4_LEN, IPV6_LEN, Network, TAG_LEN};
use std::arch::x86_64::*;

/// From here on 16 bytes tell a packet's kind: Ethertypes, and the IP header up to its protocol.
pub const JUDGED: usize = 12;

/// Where the IP header begins.
pub const fn l3(tagged: bool) -> usize {
    ETHERNET_LEN + if tagged { TAG_LEN } else { 0 }
}

/// How many bytes of a kind's packets must be at hand: those up to the last that vector code loads, and the transport header.
pub const fn least(tagged: bool, tcp: bool, six: bool) -> usize {
    l3(tagged)
        + match (six, tcp) {
            (false, _) => COMMON_LEN,
            (true, false) => IPV6_LEN + 8,
            (true, true) => IPV6_LEN + 20,
        }
}

/// The number of a kind of packet.
pub const fn index(tagged: bool, tcp: bool, six: bool) -> usize {
    six as usize * 4 + tagged as usize * 2 + tcp as usize
}

/// Where the header behind the IP header begins.
pub const fn l4(tagged: bool, six: bool) -> usize {
    l3(tagged) + if six { IPV6_LEN } else { IPV4_LEN }
}

/// Bits of a packet's bytes from [`JUDGED`] on that make it of a kind, and what they must be.
pub struct Judged {
    care: [u8; 16],
    expect: [u8; 16],
}

impl Judged {
    pub const fn new(tagged: bool, tcp: bool, six: bool) -> Judged {
        let l3 = l3(tagged);
        let protocol = if tcp { 6 } else { 17 };
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
            // The next header. Nobody asks for the version.
            judged.and(l3 + 6, 0xff, protocol)
        } else {
            // Version and header length; neither "more fragments" nor an offset; protocol.
            judged
                .and(l3, 0xff, 0x45)
                .and(l3 + 6, 0x3f, 0)
                .and(l3 + 7, 0xff, 0)
                .and(l3 + 9, 0xff, protocol)
        };
        judged
    }

    const fn and(mut self, byte: usize, mask: u8, value: u8) -> Judged {
        (self.care[byte - JUDGED], self.expect[byte - JUDGED]) = (mask, value);
        self
    }

    /// Both.
    #[target_feature(enable = "sse2")]
    #[inline]
    pub fn load(&self) -> (__m128i, __m128i) {
        // SAFETY: both are 16 bytes long.
        unsafe { (load16(self.care.as_ptr()), load16(self.expect.as_ptr())) }
    }
}

/// The 16 bytes from `bytes` on.
///
/// # Safety
/// They are there.
#[target_feature(enable = "sse2")]
#[inline]
pub unsafe fn load16(bytes: *const u8) -> __m128i {
    // SAFETY: the caller's promise; the load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.cast()) }
}

/// Whether the lengths that an IPv4 packet states, and its data offset, are sound; `len` is the frame's.
///
/// # Safety
/// `head` has at least 40 bytes from `l3` on.
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

/// What an IPv6 packet tells by parts of bytes, or where vector code does not reach.
pub struct Six {
    /// Of the IP packet, its header included.
    pub length: u16,
    pub class: u8,
    /// As they lie in the key; zero in UDP.
    pub tcp_flags: u16,
}

/// [`sound`] for IPv6, and what else is told there; None for a packet that is not.
///
/// # Safety
/// `head` has at least [`least`] bytes of its kind.
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
    // As in `sound`; a longer packet than an `Extent` can tell of is none of a common kind.
    let sound = payload >= least && length <= 0xffff && len.wrapping_sub(l3 + length) <= 0xffff;
    sound.then_some(Six {
        length: length as u16,
        class: (first >> 4) as u8,
        tcp_flags,
    })
}

/// Whether a packet of a kind is sound, and what one of IPv6 tells besides; None for one that is not.
///
/// # Safety
/// `head` has at least [`least`] bytes of its kind.
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

/// The lists that a burst is read into, all of one length, and how far it has come.
pub struct Lists<'a, F> {
    frames: &'a [F],
    hot: &'a mut [HotWords],
    found: &'a mut [u8],
    pub in_port: u32,
    patterns: &'a [Pattern],
    pub read: Read,
}

impl<'a, F: Frame> Lists<'a, F> {
    pub fn new(
        frames: &'a [F],
        in_port: u32,
        patterns: &'a [Pattern],
        hot: &'a mut [HotWords],
        found: &'a mut [u8],
    ) -> Lists<'a, F> {
        let all = frames.len().min(hot.len()).min(found.len());
        Lists {
            frames: &frames[..all],
            hot: &mut hot[..all],
            found: &mut found[..all],
            in_port,
            patterns,
            read: Read::default(),
        }
    }

    /// The first pattern, which is kept in registers, and the others.
    #[inline(always)]
    pub fn patterns(&self) -> (Pattern, &'a [Pattern]) {
        match self.patterns {
            [] => (Pattern::NEVER, &[]),
            [only, more @ ..] => (*only, more),
        }
    }

    /// What has not been read.
    #[inline(always)]
    pub fn rest(&mut self) -> impl Iterator<Item = ((&F, &mut HotWords), &mut u8)> {
        let start = self.read.count;
        (self.frames[start..].iter())
            .zip(&mut self.hot[start..])
            .zip(&mut self.found[start..])
    }

    /// Whether the next packet is one of IPv6.
    #[inline(always)]
    pub fn next_is_six(&self) -> bool {
        let next = self.frames.get(self.read.count).map(Frame::head);
        next.is_some_and(|head| {
            let eth_type = |at: usize| head.get(at..at + 2);
            let tagged = eth_type(12) == Some(&[0x81, 0x00]);
            eth_type(l3(tagged) - 2) == Some(&[0x86, 0xdd])
        })
    }

    /// Whether no more can be read, when vector code has read nothing since so many packets were: all has been, or the next packet is of no common kind. Packets of
    /// common kinds that vector code does not know are read here.
    #[inline(always)]
    pub fn is_at_end(&mut self, before: usize) -> bool {
        self.read.count == self.frames.len() || self.read.count == before && !self.read_others()
    }

    /// Reads packets of other kinds than IPv4 up to the first that is none, or for which vector code is better; whether there were any.
    #[inline(never)]
    fn read_others(&mut self) -> bool {
        let (in_port, patterns) = (self.in_port, self.patterns);
        let mut read = self.read;
        for ((frame, hot), found) in self.rest() {
            let len = frame.len();
            if !super::read_other(frame.head(), len, in_port, hot) {
                break;
            }
            hot.len = len as u32;
            *found = super::first_of(patterns, hot);
            read.count += 1;
            read.bytes += len as u64;
            let protocol = hot.words[at::IP_PROTO / 8].to_ne_bytes()[at::IP_PROTO % 8];
            if hot.extent.network() == Network::Ipv6 && matches!(protocol, 6 | 17) {
                break;
            }
        }
        let any = read.count > self.read.count;
        self.read = read;
        any
    }
}

impl Pattern {
    /// Matches nothing: no key has all bits in the words behind the hot ones.
    const NEVER: Pattern = Pattern {
        mask: [0, 0, 0, 0, 0, 0, 0, 1],
        value: [0, 0, 0, 0, 0, 0, 0, 1],
    };
}
