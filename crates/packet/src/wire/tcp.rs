//! TCP (RFC 9293 section 3.1).

use super::{accessors, view};

mod field {
    use std::ops::Range;
    pub const SRC: Range<usize> = 0..2;
    pub const DST: Range<usize> = 2..4;
    pub const SEQUENCE: Range<usize> = 4..8;
    pub const ACKNOWLEDGMENT: Range<usize> = 8..12;
    pub const OFFSET_FLAGS: Range<usize> = 12..14;
    pub const WINDOW: Range<usize> = 14..16;
    pub const CHECKSUM: Range<usize> = 16..18;
}

view!(
    /// A TCP header.
    Tcp, 20
);

accessors!(Tcp {
    /// Source port.
    src / set_src: u16, field::SRC;
    /// Destination port.
    dst / set_dst: u16, field::DST;
    /// Sequence number.
    sequence / set_sequence: u32, field::SEQUENCE;
    /// Acknowledgment number.
    acknowledgment / set_acknowledgment: u32, field::ACKNOWLEDGMENT;
    /// Header length in 32-bit words (4 bits) and flags (12 bits).
    offset_flags / set_offset_flags: u16, field::OFFSET_FLAGS;
    /// Window.
    window / set_window: u16, field::WINDOW;
    /// Checksum.
    checksum / set_checksum: u16, field::CHECKSUM;
});

impl<B: AsRef<[u8]>> Tcp<B> {
    /// Returns the length of the header with options, according to its data offset.
    pub fn header_len(&self) -> usize {
        usize::from(self.offset_flags() >> 12) * 4
    }

    /// Returns the flags: 12 bits, reserved ones included.
    pub fn flags(&self) -> u16 {
        self.offset_flags() & 0x0fff
    }
}
