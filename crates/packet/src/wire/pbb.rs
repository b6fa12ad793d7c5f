//! The service tag of provider backbone bridges after its Ethertype (IEEE 802.1Q clause 9.7), with
//! the customer's addresses.

use super::{accessors, addresses, view};

mod field {
    use std::ops::Range;
    pub const TCI: Range<usize> = 0..4;
    pub const DST: Range<usize> = 4..10;
    pub const SRC: Range<usize> = 10..16;
}

view!(
    /// An I-TAG without its Ethertype; the customer's Ethertype follows.
    Pbb, 16
);

accessors!(Pbb {
    /// Priority (3 bits), drop eligible (1), use customer addresses (1), reserved (3), service
    /// (24).
    tci / set_tci: u32, field::TCI;
});

addresses!(Pbb {
    /// The customer's destination.
    dst / set_dst: 6, field::DST;
    /// The customer's source.
    src / set_src: 6, field::SRC;
});

impl<B: AsRef<[u8]>> Pbb<B> {
    /// Returns the service (I-SID, 24 bits).
    pub fn service(&self) -> u32 {
        self.tci() & 0x00ff_ffff
    }

    /// Returns the use-customer-address bit.
    pub fn uses_customer_addresses(&self) -> bool {
        self.tci() & 0x0800_0000 != 0
    }

    /// Returns what follows the customer's addresses: the Ethertype and the rest of the customer's
    /// frame.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[Self::LEN..]
    }
}
