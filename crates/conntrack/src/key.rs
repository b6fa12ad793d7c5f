//! The key by which a connection is found: one direction's addresses, ports and zone.

use crate::request::Tuple;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const ICMP: u8 = 1;
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;

/// An address; IPv4 in the low bits of the second word.
pub(crate) type Address = [u64; 2];

/// One direction of a connection. Index 0 is the source, 1 the destination.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Key {
    pub addresses: [Address; 2],
    /// Ports; ICMP: the identifier, twice.
    pub ports: [u16; 2],
    /// ICMP: the type of this direction's messages, and that of the other's. Otherwise 0.
    pub kinds: [u8; 2],
    pub zone: u16,
    pub protocol: u8,
    pub v6: bool,
}

impl Key {
    /// Returns the key of the other direction, without translation.
    pub fn reversed(&self) -> Key {
        let mut key = *self;
        key.addresses.swap(0, 1);
        key.ports.swap(0, 1);
        key.kinds.swap(0, 1);
        key
    }

    pub fn has_ports(&self) -> bool {
        matches!(self.protocol, TCP | UDP | SCTP)
    }

    pub fn is_icmp(&self) -> bool {
        match self.v6 {
            false => self.protocol == ICMP,
            true => self.protocol == ICMPV6,
        }
    }

    /// Returns address and port of one end; port 0 for protocols without ports.
    pub fn end(&self, end: usize) -> (IpAddr, u16) {
        let port = if self.has_ports() { self.ports[end] } else { 0 };
        (to_ip(self.addresses[end], self.v6), port)
    }

    /// Returns what one end becomes where this key's packets are given those of another. None if it
    /// stays as it is.
    pub fn changed(&self, to: &Key, end: usize) -> Option<(IpAddr, u16)> {
        let same = self.addresses[end] == to.addresses[end] && self.ports[end] == to.ports[end];
        (!same).then(|| to.end(end))
    }

    pub fn tuple(&self) -> Tuple {
        let (source_port, destination_port) = if self.is_icmp() {
            // The code is zero in all messages that have a connection of their own.
            (self.kinds[0].into(), 0)
        } else {
            (self.ports[0], self.ports[1])
        };
        Tuple {
            source: to_ip(self.addresses[0], self.v6),
            destination: to_ip(self.addresses[1], self.v6),
            protocol: self.protocol,
            source_port,
            destination_port,
        }
    }
}

pub(crate) fn to_ip(address: Address, v6: bool) -> IpAddr {
    if v6 {
        let bits = u128::from(address[0]) << 64 | u128::from(address[1]);
        IpAddr::V6(Ipv6Addr::from_bits(bits))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(address[1] as u32))
    }
}

pub(crate) fn from_ip(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(ip) => [0, ip.to_bits().into()],
        IpAddr::V6(ip) => [(ip.to_bits() >> 64) as u64, ip.to_bits() as u64],
    }
}

/// A keyed hash that is the same for both directions of an untranslated connection. One
/// multiplication per word by secret numbers, so that peers cannot construct collisions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret(pub [u64; 2]);

impl Secret {
    pub fn hash(self, key: &Key) -> u64 {
        let end = |end: usize| {
            let [high, low] = key.addresses[end];
            let port = u64::from(key.ports[end]) << 8 | u64::from(key.kinds[end]);
            match key.v6 {
                false => self.end(low, port),
                true => self.long_end(high, low, port),
            }
        };
        let rest = u64::from(key.zone) << 16 | u64::from(key.protocol) << 8 | u64::from(key.v6);
        self.whole(end(0).wrapping_add(end(1)), rest)
    }

    /// Hashes an address of IPv4 and a port with a kind, which are one word together.
    #[inline(always)]
    pub fn end(self, address: u64, port: u64) -> u64 {
        let [a, b] = self.0;
        fold((port << 32 | address) ^ b, a | 1)
    }

    /// Hashes an address of IPv6 and a port with a kind.
    #[inline(always)]
    fn long_end(self, high: u64, low: u64, port: u64) -> u64 {
        let [a, b] = self.0;
        let address = fold(high ^ a, b | 1);
        fold(fold(address ^ low, b | 1) ^ port, a | 1)
    }

    /// Hashes the sum of both ends, and the rest.
    #[inline(always)]
    pub fn whole(self, ends: u64, rest: u64) -> u64 {
        fold(ends ^ rest, self.0[1] | 1)
    }
}

/// Multiplies and xors both halves of the product.
#[inline(always)]
pub(crate) fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    product as u64 ^ (product >> 64) as u64
}
