//! SCTP's common header (RFC 9260 section 3.1).

use super::{accessors, view};

mod field {
    use std::ops::Range;
    pub const SRC: Range<usize> = 0..2;
    pub const DST: Range<usize> = 2..4;
    pub const TAG: Range<usize> = 4..8;
    pub const CHECKSUM: Range<usize> = 8..12;
}

view!(
    /// An SCTP common header.
    Sctp, 12
);

accessors!(Sctp {
    /// Source port.
    src / set_src: u16, field::SRC;
    /// Destination port.
    dst / set_dst: u16, field::DST;
    /// Verification tag.
    tag / set_tag: u32, field::TAG;
});

impl<B: AsRef<[u8]>> Sctp<B> {
    /// Returns the CRC-32C, which is stored with its low byte first.
    pub fn checksum(&self) -> u32 {
        u32::from_le_bytes(super::array(self.bytes(), field::CHECKSUM))
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Sctp<B> {
    /// Writes the checksum.
    pub fn set_checksum(&mut self, checksum: u32) {
        self.0.as_mut()[field::CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }
}
