//! ARP and RARP for Ethernet and IPv4 (RFC 826, RFC 903).

use super::{accessors, addresses, view};

mod field {
    use std::ops::Range;
    pub const KIND: Range<usize> = 0..6;
    pub const OPERATION: Range<usize> = 6..8;
    pub const SHA: Range<usize> = 8..14;
    pub const SPA: Range<usize> = 14..18;
    pub const THA: Range<usize> = 18..24;
    pub const TPA: Range<usize> = 24..28;
}

view!(
    /// An ARP packet.
    Arp, 28
);

accessors!(Arp {
    /// 1 request, 2 reply, 3 RARP request, 4 RARP reply.
    operation / set_operation: u16, field::OPERATION;
    /// Sender's IPv4 address.
    spa / set_spa: u32, field::SPA;
    /// Target's IPv4 address.
    tpa / set_tpa: u32, field::TPA;
});

addresses!(Arp {
    /// Sender's Ethernet address.
    sha / set_sha: 6, field::SHA;
    /// Target's Ethernet address.
    tha / set_tha: 6, field::THA;
});

/// Hardware type 1, protocol 0x0800, lengths 6 and 4.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

impl<B: AsRef<[u8]>> Arp<B> {
    /// Returns whether the addresses are of Ethernet and IPv4.
    pub fn is_ethernet_ipv4(&self) -> bool {
        self.bytes()[field::KIND] == ETHERNET_IPV4
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Arp<B> {
    /// Sets types and lengths to Ethernet and IPv4.
    pub fn set_ethernet_ipv4(&mut self) {
        self.0.as_mut()[field::KIND].copy_from_slice(&ETHERNET_IPV4);
    }
}
