//! IPv4 (RFC 791 section 3.1).

use super::{Truncated, accessors, view};

mod field {
    use std::ops::Range;
    pub const VERSION_LENGTH: Range<usize> = 0..1;
    pub const TOS: Range<usize> = 1..2;
    pub const TOTAL_LENGTH: Range<usize> = 2..4;
    pub const ID: Range<usize> = 4..6;
    pub const FRAGMENT: Range<usize> = 6..8;
    pub const TTL: Range<usize> = 8..9;
    pub const PROTOCOL: Range<usize> = 9..10;
    pub const CHECKSUM: Range<usize> = 10..12;
    pub const SRC: Range<usize> = 12..16;
    pub const DST: Range<usize> = 16..20;
}

view!(
    /// An IPv4 header.
    Ipv4, 20
);

accessors!(Ipv4 {
    /// Version (4 bits) and header length in 32-bit words (4 bits).
    version_length / set_version_length: u8, field::VERSION_LENGTH;
    /// DSCP (6 bits) and ECN (2 bits).
    tos / set_tos: u8, field::TOS;
    /// Bytes of header and payload.
    total_length / set_total_length: u16, field::TOTAL_LENGTH;
    /// Identification.
    id / set_id: u16, field::ID;
    /// Flags (3 bits: reserved, do not fragment, more fragments) and offset in 8-byte units (13
    /// bits).
    fragment / set_fragment: u16, field::FRAGMENT;
    /// Time to live.
    ttl / set_ttl: u8, field::TTL;
    /// Protocol of the payload.
    protocol / set_protocol: u8, field::PROTOCOL;
    /// Header checksum.
    checksum / set_checksum: u16, field::CHECKSUM;
    /// Source address.
    src / set_src: u32, field::SRC;
    /// Destination address.
    dst / set_dst: u32, field::DST;
});

impl<B: AsRef<[u8]>> Ipv4<B> {
    /// Returns the length of the header with options, according to its length field.
    pub fn header_len(&self) -> usize {
        usize::from(self.version_length() & 0x0f) * 4
    }

    /// Returns whether this is a fragment other than the first.
    pub fn is_later_fragment(&self) -> bool {
        self.fragment() & 0x1fff != 0
    }

    /// Returns whether this is a fragment.
    pub fn is_fragment(&self) -> bool {
        self.fragment() & 0x3fff != 0
    }

    /// Returns what follows the header, up to the total length; an error if the lengths contradict
    /// each other or exceed the bytes.
    pub fn payload(&self) -> Result<&[u8], Truncated> {
        let (header, total) = (self.header_len(), usize::from(self.total_length()));
        if header < Self::LEN {
            return Err(Truncated("Ipv4"));
        }
        let payload = self.bytes().get(header..total);
        payload.ok_or(Truncated("Ipv4"))
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Ipv4<B> {
    /// Computes and writes the header checksum. The header length must be valid.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let length = self.header_len().clamp(Self::LEN, self.bytes().len());
        let checksum = crate::checksum::ipv4_header(&self.bytes()[..length]);
        self.set_checksum(checksum);
    }
}
