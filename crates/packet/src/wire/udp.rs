//! UDP (RFC 768).

use super::{accessors, view};

mod field {
    use std::ops::Range;
    pub const SRC: Range<usize> = 0..2;
    pub const DST: Range<usize> = 2..4;
    pub const LENGTH: Range<usize> = 4..6;
    pub const CHECKSUM: Range<usize> = 6..8;
}

view!(
    /// A UDP header.
    Udp, 8
);

accessors!(Udp {
    /// Source port.
    src / set_src: u16, field::SRC;
    /// Destination port.
    dst / set_dst: u16, field::DST;
    /// Bytes of header and payload.
    length / set_length: u16, field::LENGTH;
    /// Checksum, 0 for none.
    checksum / set_checksum: u16, field::CHECKSUM;
});
