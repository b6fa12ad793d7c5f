//! Devices that tunnels send by.

use crate::Mac;
use std::net::IpAddr;

/// A device that tunnels send by: an underlay bridge's LOCAL port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name, by which routes and neighbours refer to it; also its bridge's name.
    pub name: String,
    /// The caller's number for it, such as the bridge's.
    pub id: u32,
    /// Its MAC address, the source address of tunnels' frames.
    pub mac: Mac,
    /// Its addresses, each with its prefix length in bits (IPv4: 0 to 32, IPv6: 0 to 128).
    pub addresses: Vec<(IpAddr, u8)>,
    /// The longest IP packet that it accepts (MTU), in bytes; 0 if unknown.
    pub mtu: u16,
}

/// No address of a device shares its network with a route's destination or gateway; Open vSwitch
/// rejects such a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no source address for the route")]
pub struct NoSource;

impl Device {
    /// Returns whether `address` is one of the device's own.
    pub fn owns(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// Returns the device's source address for packets to `destination`: the address with the
    /// longest prefix that contains `destination`, or else `gateway`; of equal ones, the first
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
        // The first of equal ones: `max_by_key` would return the last.
        holding.rev().max_by_key(|(_, len)| *len)
    };
    let gateway = gateway.filter(|gateway| !gateway.is_unspecified());
    nearest(destination)
        .or_else(|| nearest(gateway?))
        .map(|(own, _)| *own)
        .ok_or(NoSource)
}

/// A set of addresses that begin with the same bits. An IPv4-mapped IPv6 address (`::ffff:a.b.c.d`)
/// is an IPv4 address, as everywhere in Open vSwitch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) struct Prefix {
    pub v4: bool,
    /// Number of significant bits, out of 128 also for IPv4 (96 to 128).
    pub len: u8,
    /// The address bits; those beyond `len` are zero.
    pub bits: u128,
}

impl Prefix {
    /// Takes the first `len` bits of an address, at most all that it has.
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

    /// Returns the first address, and the number of significant bits, out of 32 or 128.
    pub(crate) fn parts(self) -> (IpAddr, u8) {
        let address = IpAddr::from(self.bits.to_be_bytes());
        if self.v4 {
            (address.to_canonical(), self.len - 96)
        } else {
            (address, self.len)
        }
    }
}

/// Returns a mask of the first `len` bits of 128.
pub(crate) fn mask(len: u8) -> u128 {
    u128::MAX
        .checked_shl(128 - u32::from(len.min(128)))
        .unwrap_or(0)
}
