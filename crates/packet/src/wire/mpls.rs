//! An MPLS label stack entry (RFC 3032 section 2.1).

use super::{accessors, view};

mod field {
    use std::ops::Range;
    pub const ENTRY: Range<usize> = 0..4;
}

view!(
    /// One label stack entry.
    Mpls, 4
);

accessors!(Mpls {
    /// Label (20 bits), traffic class (3), bottom of stack (1), TTL (8).
    entry / set_entry: u32, field::ENTRY;
});

impl<B: AsRef<[u8]>> Mpls<B> {
    /// Returns whether this is the last entry of its stack.
    pub fn bottom(&self) -> bool {
        self.entry() & 0x100 != 0
    }

    /// Returns what follows the entry.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[Self::LEN..]
    }
}
