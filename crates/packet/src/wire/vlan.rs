//! A VLAN tag after its TPID (IEEE 802.1Q clause 9.6): TCI, and the Ethertype of what follows.

use super::{accessors, view};

mod field {
    use std::ops::Range;
    pub const TCI: Range<usize> = 0..2;
    pub const ETH_TYPE: Range<usize> = 2..4;
}

view!(
    /// A VLAN tag without its TPID.
    Vlan, 4
);

accessors!(Vlan {
    /// Priority (3 bits), DEI (1 bit) and VLAN id (12 bits).
    tci / set_tci: u16, field::TCI;
    /// Ethertype of what follows.
    eth_type / set_eth_type: u16, field::ETH_TYPE;
});

impl<B: AsRef<[u8]>> Vlan<B> {
    /// Returns what follows the tag.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[Self::LEN..]
    }
}
