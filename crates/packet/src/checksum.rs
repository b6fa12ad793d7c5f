//! Internet checksums (RFC 1071), their incremental updates (RFC 1624) and pseudo headers (RFC 793,
//! 8200), and SCTP's CRC-32C (RFC 9260 appendix A).
//!
//! The sum is one's complement arithmetic on 16-bit words: the order of the words does not matter,
//! and when a word changes, the new checksum follows from the old one without the rest of the
//! packet.

use crate::frame::{Frame, Gso};

/// A running one's complement sum of 16-bit words in network order.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum(u64);

impl Sum {
    /// Returns an empty sum.
    pub const fn new() -> Sum {
        Sum(0)
    }

    /// Adds bytes that begin at an even offset of the area; an odd last byte is padded with zero.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.0 += u64::from(u16::from_be(fold(native_sum(bytes))));
    }

    /// Adds a 16-bit word.
    #[inline(always)]
    pub fn add_u16(&mut self, word: u16) {
        self.0 += u64::from(word);
    }

    /// Adds two 16-bit words.
    #[inline(always)]
    pub fn add_u32(&mut self, words: u32) {
        self.0 += u64::from(words >> 16) + u64::from(words & 0xffff);
    }

    /// Adds the pseudo header of TCP, UDP or ICMPv6 over IP; addresses are both 4 or both 16 bytes.
    #[inline]
    pub fn add_pseudo_header(&mut self, src: &[u8], dst: &[u8], protocol: u8, length: u32) {
        self.add_bytes(src);
        self.add_bytes(dst);
        self.add_u32(protocol.into());
        self.add_u32(length);
    }

    /// Returns the sum folded to 16 bits.
    #[inline(always)]
    pub fn fold(self) -> u16 {
        fold(self.0)
    }

    /// Returns the checksum: the complement of the sum.
    #[inline(always)]
    pub fn finish(self) -> u16 {
        !self.fold()
    }
}

/// Returns a sum of 16-bit words as they lie in memory, neither folded nor swapped (RFC 1071
/// section 2(B)): it may be added to others of its kind, and to words that were converted to
/// network order. An odd last byte is padded with zero.
#[inline]
pub fn native_sum(bytes: &[u8]) -> u64 {
    let mut total = 0u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        total += halves(u64::from_ne_bytes(chunk.try_into().unwrap()));
    }
    // Loads only existing bytes: copying them into a zeroed word first would stall on store
    // forwarding.
    let mut rest = chunks.remainder();
    if let Some((word, behind)) = rest.split_first_chunk() {
        total += u64::from(u32::from_ne_bytes(*word));
        rest = behind;
    }
    if let Some((word, behind)) = rest.split_first_chunk() {
        total += u64::from(u16::from_ne_bytes(*word));
        rest = behind;
    }
    if let [last] = rest {
        total += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    total
}

/// Bytes up to which [`native_sum_from`] adds word by word.
const SHORT: usize = 128;

/// Returns `native_sum(&bytes[from..])`, sooner where that is short: most packets are, and loops
/// over vectors take longer to begin and end than to add up such a packet. Panics if there are
/// fewer bytes.
#[inline(always)]
pub fn native_sum_from(bytes: &[u8], from: usize) -> u64 {
    let part = &bytes[from..];
    if part.len() > SHORT {
        return long_sum(part);
    }
    let (words, rest) = part.as_chunks::<8>();
    // So wide that carries are kept: one instruction a word adds it up, and one the carry.
    let mut total = 0_u128;
    for word in words {
        total += u128::from(u64::from_ne_bytes(*word));
    }
    if !rest.is_empty() {
        total += match bytes.last_chunk() {
            // The last word, without the bytes that are not of the rest.
            Some(last) => {
                let last = u64::from_le_bytes(*last) >> (64 - 8 * rest.len());
                u128::from(last.to_le())
            }
            None => u128::from(native_sum(rest)),
        };
    }
    halves(total as u64) + (total >> 64) as u64
}

#[inline(never)]
fn long_sum(bytes: &[u8]) -> u64 {
    native_sum(bytes)
}

/// Returns the sum of both halves of a word, which is one of [`native_sum`]'s.
#[inline(always)]
pub fn halves(word: u64) -> u64 {
    (word & 0xffff_ffff) + (word >> 32)
}

/// Whether a sum of [`native_sum`]'s over an area with its checksum is that of a sound one: all
/// ones, whatever the order of bytes.
#[inline(always)]
pub fn is_sound(native_sum: u64) -> bool {
    fold(native_sum) == 0xffff
}

/// Adds the carries until none is left.
#[inline(always)]
fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    // Add both halves to each other; the carry of the lower sum gets into the upper one.
    let sum = sum as u32;
    (sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16
}

/// The change of a sum when some bytes change (RFC 1624 equation 3).
#[derive(Clone, Copy, Default, Debug)]
pub struct Delta(u64);

impl Delta {
    /// Returns a difference of no change.
    pub const fn new() -> Delta {
        Delta(0)
    }

    /// Adds the change of a 16-bit word.
    #[inline(always)]
    pub fn word(&mut self, old: u16, new: u16) {
        self.0 += u64::from(!old) + u64::from(new);
    }

    /// Adds the change of two 16-bit words.
    #[inline(always)]
    pub fn words(&mut self, old: u32, new: u32) {
        self.word((old >> 16) as u16, (new >> 16) as u16);
        self.word(old as u16, new as u16);
    }

    /// Adds another difference.
    #[inline(always)]
    pub fn add(&mut self, other: Delta) {
        self.0 += other.0;
    }

    /// Adds the change of a byte at this offset from the start of the checksummed area.
    #[inline(always)]
    pub fn byte(&mut self, offset: usize, old: u8, new: u8) {
        let shift = if offset.is_multiple_of(2) { 8 } else { 0 };
        self.word(u16::from(old) << shift, u16::from(new) << shift);
    }

    /// Returns the sum (not complemented) after the change.
    #[inline(always)]
    pub fn applied_to_sum(self, sum: u16) -> u16 {
        fold(u64::from(sum) + self.0)
    }

    /// Returns the checksum after the change.
    #[inline(always)]
    pub fn applied_to(self, checksum: u16) -> u16 {
        !self.applied_to_sum(!checksum)
    }
}

/// Returns the checksum after one 16-bit word has changed: [`Delta::word`] and
/// [`Delta::applied_to`] in fewer instructions.
#[inline(always)]
pub fn update_word(checksum: u16, old: u16, new: u16) -> u16 {
    // Includes both complements.
    let sum = 2 * 0xffff + u32::from(new) - u32::from(old) - u32::from(checksum);
    !fold(sum.into())
}

/// Returns the checksum of an IPv4 header whose checksum field is zero; for a valid header with its
/// checksum, returns zero.
#[inline]
pub fn ipv4_header(header: &[u8]) -> u16 {
    let mut sum = Sum::new();
    sum.add_bytes(header);
    sum.finish()
}

/// Returns the sum over the frame's bytes `start..end`; bytes beyond the frame count as zero.
pub fn frame_sum(frame: &impl Frame, start: usize, end: usize) -> u16 {
    let mut total = Sum::new();
    for_each_part(frame, start, end, |offset, part| {
        let mut sum = Sum::new();
        sum.add_bytes(part);
        // A part that begins at an odd offset has its bytes in the other halves of the words.
        let sum = sum.fold();
        total.add_u16(if offset % 2 == 0 {
            sum
        } else {
            sum.swap_bytes()
        });
    });
    total.fold()
}

/// Calls `each` with the pieces of `start..end` and their offsets from `start`.
fn for_each_part(frame: &impl Frame, start: usize, end: usize, mut each: impl FnMut(usize, &[u8])) {
    let mut begins = 0;
    for index in 0..frame.segment_count() {
        let Some(segment) = frame.segment(index) else {
            return;
        };
        let (from, to) = (start.max(begins), end.min(begins + segment.len()));
        if from < to {
            each(from - start, &segment[from - begins..to - begins]);
        }
        begins += segment.len();
        if begins >= end {
            return;
        }
    }
}

/// Overwrites bytes anywhere in a frame; returns false, with some perhaps written, if it is
/// shorter.
pub fn write_at(frame: &mut impl Frame, mut offset: usize, mut bytes: &[u8]) -> bool {
    for index in 0..frame.segment_count() {
        let Some(segment) = frame.segment_mut(index) else {
            return false;
        };
        if offset >= segment.len() {
            offset -= segment.len();
            continue;
        }
        let n = bytes.len().min(segment.len() - offset);
        segment[offset..offset + n].copy_from_slice(&bytes[..n]);
        bytes = &bytes[n..];
        offset = 0;
        if bytes.is_empty() {
            return true;
        }
    }
    bytes.is_empty()
}

/// Computes the checksum that a frame's [`Offload`](crate::frame::Offload) leaves to be done, and
/// clears that flag.
///
/// Returns true if nothing is left to do. Returns false, and changes nothing, if the offsets lie
/// outside the frame, or if the frame is still to be segmented: then each segment has its own
/// checksum ([`crate::segment`]).
pub fn finish_partial(frame: &mut impl Frame) -> bool {
    let mut offload = frame.offload();
    if !offload.partial_checksum {
        return true;
    }
    if offload.gso != Gso::None {
        return false;
    }
    let start = usize::from(offload.csum_start);
    let place = start + usize::from(offload.csum_offset);
    let sctp_field = offload.csum_offset == SCTP_OFFSET;
    if place + if sctp_field { 4 } else { 2 } > frame.len() {
        return false;
    }
    if sctp_field {
        let crc = sctp(frame, start, frame.len());
        write_at(frame, place, &crc.to_le_bytes());
    } else {
        finish_internet(frame, start, place);
    }
    offload.partial_checksum = false;
    offload.checksum_valid = true;
    offload.csum_start = 0;
    offload.csum_offset = 0;
    frame.set_offload(offload);
    true
}

/// Offset of the checksum in an SCTP header. No protocol with an Internet checksum has it there,
/// and the kernel requests a CRC in no other way.
const SCTP_OFFSET: u16 = 8;

fn finish_internet(frame: &mut impl Frame, start: usize, place: usize) {
    // The field holds the pseudo header's sum, which the sum over it includes.
    let checksum = match !frame_sum(frame, start, frame.len()) {
        // In UDP, zero means "no checksum"; 0xffff is the same number in one's complement.
        0 => 0xffff,
        checksum => checksum,
    };
    write_at(frame, place, &checksum.to_be_bytes());
}

/// Result of verifying a packet's checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumStatus {
    /// All checksums that the packet has are right.
    Good,
    /// The IPv4 header's is wrong.
    BadIp,
    /// The transport's is wrong.
    BadTransport,
    /// There is no transport checksum that can be verified: another Ethertype, a fragment, a
    /// partial checksum.
    Unknown,
}

/// Verifies the IPv4 header checksum and the transport checksum of a frame parsed into `layers` and
/// `key`.
pub fn verify(
    frame: &impl Frame,
    layers: &crate::parse::Layers,
    key: &crate::key::FlowKey,
) -> ChecksumStatus {
    use crate::key::at;
    let (l3, l4, end) = (
        layers.l3.into(),
        usize::from(layers.l4),
        layers.end as usize,
    );
    let eth_type = key.u16(at::ETH_TYPE);
    if l4 == 0 {
        return ChecksumStatus::Unknown;
    }
    if eth_type == 0x0800 && frame_sum(frame, l3, l4) != 0xffff {
        return ChecksumStatus::BadIp;
    }
    let fragment = key.u8(at::IP_FRAG) != 0;
    if !layers.transport || fragment || frame.offload().partial_checksum {
        return ChecksumStatus::Unknown;
    }
    let protocol = key.u8(at::IP_PROTO);
    let sum = frame_sum(frame, l4, end);
    let mut total = Sum::new();
    total.add_u16(sum);
    match protocol {
        6 | 17 | 58 => {
            if protocol == 58 && eth_type == 0x0800 {
                return ChecksumStatus::Unknown;
            }
            let mut addresses = [0; 32];
            let (from, width) = if eth_type == 0x0800 {
                (l3 + 12, 4)
            } else {
                (l3 + 8, 16)
            };
            let mut field = [0; 2];
            if !frame.read_at(from, &mut addresses[..2 * width])
                || !frame.read_at(l4 + 6, &mut field)
            {
                return ChecksumStatus::Unknown;
            }
            if protocol == 17 && field == [0, 0] {
                // Allowed over IPv4; over IPv6 only for tunnels (RFC 6935).
                return if eth_type == 0x0800 {
                    ChecksumStatus::Good
                } else {
                    ChecksumStatus::Unknown
                };
            }
            let (src, dst) = addresses[..2 * width].split_at(width);
            total.add_pseudo_header(src, dst, protocol, (end - l4) as u32);
        }
        1 | 2 => {}
        132 => {
            let mut field = [0; 4];
            return if frame.read_at(l4 + 8, &mut field)
                && sctp(frame, l4, end) == u32::from_le_bytes(field)
            {
                ChecksumStatus::Good
            } else {
                ChecksumStatus::BadTransport
            };
        }
        _ => return ChecksumStatus::Unknown,
    }
    if total.fold() == 0xffff {
        ChecksumStatus::Good
    } else {
        ChecksumStatus::BadTransport
    }
}

/// Table for CRC-32C, one lookup per byte.
const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// Returns SCTP's checksum over the frame's bytes `start..end`, reading the checksum field (bytes 8
/// to 11) as zero. The packet holds it with the low byte first.
pub fn sctp(frame: &impl Frame, start: usize, end: usize) -> u32 {
    let mut crc = !0u32;
    for_each_part(frame, start, end, |offset, part| {
        for (index, byte) in part.iter().enumerate() {
            let byte = if (8..12).contains(&(offset + index)) {
                0
            } else {
                *byte
            };
            crc = crc >> 8 ^ CRC32C[usize::from(crc as u8 ^ byte)];
        }
    });
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::frame::{HeapFrame, Offload};
    use proptest::prelude::*;

    /// RFC 1071 taken literally: words in network order, carries added at the end.
    fn obvious(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    proptest! {
        #[test]
        fn sums_agree_with_the_obvious(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xff)], 0..200),
            cuts in proptest::collection::vec(0..200usize, 0..4),
            start in 0..50usize,
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let segments: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
            let frame = HeapFrame::with_segments(&segments);
            let start = start.min(bytes.len());
            prop_assert_eq!(frame_sum(&frame, start, bytes.len()), obvious(&bytes[start..]));
            let sum = u16::from_be(fold(native_sum_from(&bytes, start)));
            prop_assert_eq!(sum, obvious(&bytes[start..]));
        }

        #[test]
        fn updates_agree_with_recomputing(
            bytes in proptest::collection::vec(any::<u8>(), 2..40),
            at in 0..40usize,
            new in any::<u8>(),
        ) {
            let mut changed = bytes.clone();
            changed[0] |= 1; // all zeroes have two sums
            let before = changed.clone();
            let at = 1 + at % (bytes.len() - 1);
            changed[at] = new;
            let mut delta = Delta::new();
            delta.byte(at, before[at], new);
            prop_assert_eq!(delta.applied_to(!obvious(&before)), !obvious(&changed));
        }

        #[test]
        fn one_word_updates_as_a_delta_does(
            checksum in prop_oneof![Just(0), Just(0xffff), any::<u16>()],
            old in prop_oneof![Just(0), Just(0xffff), any::<u16>()],
            new in prop_oneof![Just(0), Just(0xffff), any::<u16>()],
        ) {
            let mut delta = Delta::new();
            delta.word(old, new);
            prop_assert_eq!(update_word(checksum, old, new), delta.applied_to(checksum));
        }
    }

    #[test]
    fn sctp_check_value() {
        // The check value of CRC-32C is that of "123456789"; bytes 8 to 11 are read as zero, so the
        // ninth is beyond the field here.
        let frame = HeapFrame::with_segments(&[b"12345", b"678"]);
        let mut crc = !0u32;
        for byte in b"12345678" {
            crc = crc >> 8 ^ CRC32C[usize::from(crc as u8 ^ byte)];
        }
        assert_eq!(sctp(&frame, 0, 8), !crc);
        crc = crc >> 8 ^ CRC32C[usize::from(crc as u8 ^ b'9')];
        assert_eq!(!crc, 0xe306_9283);
    }

    #[test]
    fn partial_checksums_that_lie_outside_are_refused() {
        let mut frame = HeapFrame::new(&[0; 20]);
        let mut offload = Offload {
            partial_checksum: true,
            csum_start: 10,
            csum_offset: 9,
            ..Offload::default()
        };
        frame.set_offload(offload);
        assert!(!finish_partial(&mut frame));
        assert_eq!(frame.to_vec(), [0; 20]);
        offload.csum_start = 12;
        offload.csum_offset = 6;
        frame.set_offload(offload);
        assert!(finish_partial(&mut frame));
        assert!(!frame.offload().partial_checksum);
        assert_eq!(frame.to_vec()[18..], [0xff, 0xff]);
    }

    #[test]
    fn an_sctp_sender_may_leave_its_checksum_too() {
        let builder = Builder::ethernet([1; 6], [2; 6]).ipv4(1, 2).sctp(3, 4);
        let whole = builder.payload(b"data").frame();
        let mut frame = whole.clone();
        frame.head_mut()[42..46].fill(0xaa);
        frame.set_offload(Offload {
            partial_checksum: true,
            csum_start: 34,
            csum_offset: 8,
            ..Offload::default()
        });
        assert!(finish_partial(&mut frame));
        assert_eq!(frame.to_vec(), whole.to_vec());
        frame.truncate(43);
        let offload = Offload {
            partial_checksum: true,
            csum_start: 34,
            csum_offset: 8,
            ..Offload::default()
        };
        frame.set_offload(offload);
        assert!(!finish_partial(&mut frame));
    }
}
