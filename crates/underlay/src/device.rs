//! Devices that tunnels leave by.

use crate::Mac;
use std::net::IpAddr;

/// A device that tunnels leave by: an underlay bridge's LOCAL port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, which routes and neighbours refer to; also its bridge's.
    pub name: String,
    /// The caller's number of it, such as the bridge's.
    pub id: u32,
    /// Its MAC address, from which tunnels' frames are sent.
    pub mac: Mac,
    /// Its addresses, each with the length of its prefix in bits (IPv4: 0 to 32, IPv6: 0 to 128).
    pub addresses: Vec<(IpAddr, u8)>,
    /// The longest IP packet that it takes, in bytes; 0 where that is not known.
    pub mtu: u16,
}

/// No address of a device is in the network of a route's destination or of its gateway, so that
/// Open vSwitch takes no such route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no source address for the route")]
pub struct NoSource;

impl Device {
    /// Whether `address` is one of the device's own.
    pub fn owns(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// The device's address that packets to `destination` have as their source: that of the
    /// longest prefix which holds `destination` or else `gateway`, and the first one of equals
    /// (`ovs_router_get_netdev_source_address`).
    pub fn source_for(
        &self,
        destination: IpAddr,
        gateway: Option<IpAddr>,
    ) -> Result<IpAddr, NoSource> {
        source_among(&self.addresses, destination, gateway)
    }
}

/// [`Device::source_for`] for the addresses of any device, such as one of the kernel's.
pub fn source_among(
    addresses: &[(IpAddr, u8)],
    destination: IpAddr,
    gateway: Option<IpAddr>,
) -> Result<IpAddr, NoSource> {
    let nearest = |to: IpAddr| {
        let to = to.to_canonical();
        let holding = addresses
            .iter()
            .filter(|(own, len)| Prefix::new(*own, *len) == Prefix::new(to, *len));
        // The first of equals: `max_by_key` would give the last.
        holding.rev().max_by_key(|(_, len)| *len)
    };
    let gateway = gateway.filter(|gateway| !gateway.is_unspecified());
    nearest(destination)
        .or_else(|| nearest(gateway?))
        .map(|(own, _)| *own)
        .ok_or(NoSource)
}

/// Addresses that begin with the same bits. An IPv4 address that is written as an IPv6 one
/// (`::ffff:a.b.c.d`) is an IPv4 address, as everywhere in Open vSwitch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct Prefix {
    pub v4: bool,
    /// Significant bits, of 128 also for IPv4 (96 to 128).
    pub len: u8,
    /// The bits; those beyond `len` are zero.
    pub bits: u128,
}

impl Prefix {
    /// The first `len` bits of an address; more than it has are all of them.
    pub(crate) fn new(address: IpAddr, len: u8) -> Prefix {
        let (v4, bits, len) = match address {
            IpAddr::V4(address) => {
                let bits = u128::from(address.to_ipv6_mapped());
                (true, bits, len.min(32) + 96)
            }
            IpAddr::V6(address) => {
                let len = len.min(128);
                let mapped = address.to_ipv4_mapped().is_some() && len >= 96;
                (mapped, u128::from(address), len)
            }
        };
        Prefix {
            v4,
            len,
            bits: bits & mask(len),
        }
    }

    /// The first address, and how many bits are significant, of 32 or 128.
    pub(crate) fn parts(self) -> (IpAddr, u8) {
        let address = IpAddr::from(self.bits.to_be_bytes());
        if self.v4 {
            (address.to_canonical(), self.len - 96)
        } else {
            (address, self.len)
        }
    }
}

/// The first `len` bits of 128.
pub(crate) fn mask(len: u8) -> u128 {
    u128::MAX
        .checked_shl(128 - u32::from(len.min(128)))
        .unwrap_or(0)
}
