//! IPv6 and its extension headers (RFC 8200 sections 3 and 4, RFC 4302).

use super::{Truncated, accessors, addresses, view};

mod field {
    use std::ops::Range;
    pub const FLOW: Range<usize> = 0..4;
    pub const PAYLOAD_LENGTH: Range<usize> = 4..6;
    pub const NEXT_HEADER: Range<usize> = 6..7;
    pub const HOP_LIMIT: Range<usize> = 7..8;
    pub const SRC: Range<usize> = 8..24;
    pub const DST: Range<usize> = 24..40;
    pub const EXTENSION_NEXT: Range<usize> = 0..1;
    pub const EXTENSION_LENGTH: Range<usize> = 1..2;
    pub const FRAGMENT_OFFSET: Range<usize> = 2..4;
}

view!(
    /// An IPv6 header.
    Ipv6, 40
);

accessors!(Ipv6 {
    /// Version (4 bits), traffic class (8) and flow label (20).
    flow / set_flow: u32, field::FLOW;
    /// Bytes behind this header.
    payload_length / set_payload_length: u16, field::PAYLOAD_LENGTH;
    /// Protocol number of what follows.
    next_header / set_next_header: u8, field::NEXT_HEADER;
    /// Hop limit.
    hop_limit / set_hop_limit: u8, field::HOP_LIMIT;
});

addresses!(Ipv6 {
    /// Source address.
    src / set_src: 16, field::SRC;
    /// Destination address.
    dst / set_dst: 16, field::DST;
});

impl<B: AsRef<[u8]>> Ipv6<B> {
    /// Returns the traffic class.
    pub fn traffic_class(&self) -> u8 {
        (self.flow() >> 20) as u8
    }

    /// Returns the flow label.
    pub fn label(&self) -> u32 {
        self.flow() & 0xf_ffff
    }

    /// Returns what follows the header, up to the payload length.
    pub fn payload(&self) -> Result<&[u8], Truncated> {
        let end = Self::LEN + usize::from(self.payload_length());
        self.bytes().get(Self::LEN..end).ok_or(Truncated("Ipv6"))
    }
}

view!(
    /// The first 8 bytes of an extension header, common to all kinds.
    Ipv6Extension, 8
);

accessors!(Ipv6Extension {
    /// Protocol number of what follows it.
    next_header / set_next_header: u8, field::EXTENSION_NEXT;
    /// Its length: 8-byte units beyond the first 8 bytes; for an authentication header, 4-byte
    /// units beyond the first 8 bytes.
    length / set_length: u8, field::EXTENSION_LENGTH;
});

impl<B: AsRef<[u8]>> Ipv6Extension<B> {
    /// Returns the length of this header in bytes, given its protocol number `kind`.
    pub fn len_of(&self, kind: u8) -> usize {
        match kind {
            44 => 8,
            51 => (usize::from(self.length()) + 2) * 4,
            _ => (usize::from(self.length()) + 1) * 8,
        }
    }
}

view!(
    /// A fragment header.
    Ipv6Fragment, 8
);

accessors!(Ipv6Fragment {
    /// Protocol number of what follows it.
    next_header / set_next_header: u8, field::EXTENSION_NEXT;
    /// Offset in 8-byte units (13 bits), reserved (2), more fragments (1).
    offset_flags / set_offset_flags: u16, field::FRAGMENT_OFFSET;
});
