//! ICMP (RFC 792), ICMPv6 (RFC 4443) and IGMP (RFC 2236), which share a layout; and neighbour
//! discovery (RFC 4861) over ICMPv6.

use super::{Truncated, accessors, view};

mod field {
    use std::ops::Range;
    pub const KIND: Range<usize> = 0..1;
    pub const CODE: Range<usize> = 1..2;
    pub const CHECKSUM: Range<usize> = 2..4;
    pub const REST: Range<usize> = 4..8;
    pub const TARGET: Range<usize> = 8..24;
    pub const OPTIONS: usize = 24;
}

view!(
    /// A message of ICMP, ICMPv6 or IGMP.
    Icmp, 8
);

accessors!(Icmp {
    /// Type.
    kind / set_kind: u8, field::KIND;
    /// Code.
    code / set_code: u8, field::CODE;
    /// Checksum.
    checksum / set_checksum: u16, field::CHECKSUM;
    /// Second word, whose meaning depends on the type: identifier and sequence number of an echo,
    /// flags of an advertisement.
    rest / set_rest: u32, field::REST;
});

/// Neighbour solicitation.
const SOLICITATION: u8 = 135;
/// Neighbour advertisement.
const ADVERTISEMENT: u8 = 136;

impl<B: AsRef<[u8]>> Icmp<B> {
    /// Returns whether this, read as ICMPv6, is a neighbour solicitation or advertisement.
    pub fn is_neighbour(&self) -> bool {
        matches!(self.kind(), SOLICITATION | ADVERTISEMENT) && self.code() == 0
    }

    /// Returns the target address of neighbour discovery.
    pub fn target(&self) -> Result<[u8; 16], Truncated> {
        let target = self.bytes().get(field::TARGET);
        let target = target.and_then(|target| target.try_into().ok());
        target.ok_or(Truncated("neighbour discovery"))
    }

    /// Returns the options of neighbour discovery.
    pub fn options(&self) -> NeighbourOptions<'_> {
        NeighbourOptions(self.bytes().get(field::OPTIONS..).unwrap_or_default())
    }
}

/// One option of neighbour discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourOption<'a> {
    /// 1: source link-layer address, 2: target link-layer address.
    pub kind: u8,
    /// The whole option, a multiple of 8 bytes.
    pub bytes: &'a [u8],
}

/// Iterates over the options, up to the first that does not fit.
pub struct NeighbourOptions<'a>(&'a [u8]);

impl<'a> Iterator for NeighbourOptions<'a> {
    type Item = NeighbourOption<'a>;

    fn next(&mut self) -> Option<NeighbourOption<'a>> {
        let length = usize::from(*self.0.get(1)?) * 8;
        if length == 0 || length > self.0.len() {
            return None;
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(NeighbourOption {
            kind: bytes[0],
            bytes,
        })
    }
}
