//! Ethernet II (IEEE 802.3 clause 3.1.1), and 802.2 LLC with SNAP (RFC 1042).

use super::{accessors, addresses, view};

mod field {
    use std::ops::Range;
    pub const DST: Range<usize> = 0..6;
    pub const SRC: Range<usize> = 6..12;
    pub const ETH_TYPE: Range<usize> = 12..14;
    pub const SNAP_HEADER: Range<usize> = 0..6;
    pub const SNAP_TYPE: Range<usize> = 6..8;
}

view!(
    /// An Ethernet header.
    Ethernet, 14
);

addresses!(Ethernet {
    /// Destination address.
    dst / set_dst: 6, field::DST;
    /// Source address.
    src / set_src: 6, field::SRC;
});

accessors!(Ethernet {
    /// Ethertype, or a length if below 0x600.
    eth_type / set_eth_type: u16, field::ETH_TYPE;
});

impl<B: AsRef<[u8]>> Ethernet<B> {
    /// Returns what follows the header.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[Self::LEN..]
    }
}

view!(
    /// The LLC and SNAP headers of a frame whose Ethertype is a length.
    Snap, 8
);

accessors!(Snap {
    /// The Ethertype behind them.
    eth_type / set_eth_type: u16, field::SNAP_TYPE;
});

impl<B: AsRef<[u8]>> Snap<B> {
    /// Returns whether this is SNAP with the organisation code of Ethernet.
    pub fn is_ethernet(&self) -> bool {
        self.bytes()[field::SNAP_HEADER] == [0xaa, 0xaa, 0x03, 0, 0, 0]
    }

    /// Returns what follows the headers.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[Self::LEN..]
    }
}
