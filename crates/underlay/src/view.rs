//! Immutable snapshots of routes and neighbours, for workers.

use crate::device::Device;
use crate::neighbours::Neighbours;
use crate::routes::{Routes, Table};
use crate::{Mac, discovery};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A snapshot of the network that tunnels run over, shared among workers in an `Arc`. The routes
/// are shared with [`Routes`], so the cost of a new view depends only on the number of neighbours.
#[derive(Clone, Debug)]
pub struct View {
    /// The caller's number for it, by which results of an older view can be recognised.
    pub generation: u64,
    routes: Arc<Table>,
    devices: Vec<Known>,
    by_name: HashMap<String, usize>,
    by_id: HashMap<u32, usize>,
}

/// A device with its neighbours.
#[derive(Clone, Debug)]
struct Known {
    device: Device,
    neighbours: HashMap<IpAddr, Arc<Seen>>,
}

/// A neighbour in a view.
#[derive(Debug)]
pub struct Seen {
    mac: Mac,
    used: AtomicBool,
}

impl Seen {
    /// Records that packets are sent there: neighbours in use do not age. Since workers share the
    /// flag, it is written only if that changes it.
    #[inline]
    pub fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// How packets to an address leave: device, addresses and next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The device that they leave by ([`Device::id`]).
    pub device: u32,
    /// Their source address.
    pub source: IpAddr,
    /// The next hop's address: the gateway, or else the destination itself.
    pub via: IpAddr,
    /// Their source MAC address: the device's.
    pub eth_src: Mac,
    /// Their destination MAC address: the next hop's.
    pub eth_dst: Mac,
    /// The longest IP packet that the device accepts (MTU), in bytes; 0 if unknown.
    pub mtu: u16,
}

/// Why packets to an address cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No route leads there by a device that tunnels can use, or the requested source address is
    /// not the machine's own.
    NoRoute,
    /// A neighbour's MAC address is unknown and must be requested.
    Neighbour {
        /// The device on whose link it is ([`Device::id`]).
        device: u32,
        /// Its address.
        address: IpAddr,
        /// The source address of the request.
        source: IpAddr,
    },
}

// Not derived: thiserror would take `source` for the error's cause.
impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unresolved::NoRoute => f.write_str("native tunnel routing failed"),
            Unresolved::Neighbour { address, .. } => {
                write!(f, "neighbor cache miss for {address}")
            }
        }
    }
}

impl std::error::Error for Unresolved {}

impl View {
    /// Makes a snapshot. Expired neighbours are included until [`Neighbours::age`] has removed
    /// them. Of devices with the same name or number, the first is used.
    pub fn new(
        generation: u64,
        routes: &Routes,
        neighbours: &Neighbours,
        devices: &[Device],
    ) -> View {
        let (mut by_name, mut by_id) = (HashMap::new(), HashMap::new());
        for (at, device) in devices.iter().enumerate() {
            by_name.entry(device.name.clone()).or_insert(at);
            by_id.entry(device.id).or_insert(at);
        }
        let known = |device: &Device| Known {
            device: device.clone(),
            neighbours: (neighbours.of(&device.name).into_iter())
                .map(|(address, mac)| {
                    let used = AtomicBool::new(false);
                    (address, Arc::new(Seen { mac, used }))
                })
                .collect(),
        };
        View {
            generation,
            routes: routes.table(),
            devices: devices.iter().map(known).collect(),
            by_name,
            by_id,
        }
    }

    /// Resolves how packets to `dst` with `pkt_mark` `mark` leave. A given source address must be
    /// one of the machine's: it needs a local route of the same mark, by any device, as in Open
    /// vSwitch. Packets to a multicast address go to its MAC address, not to a gateway.
    pub fn resolve(&self, dst: IpAddr, src: Option<IpAddr>, mark: u32) -> Result<Hop, Unresolved> {
        let dst = dst.to_canonical();
        let src = src
            .map(|src| src.to_canonical())
            .filter(|src| !src.is_unspecified());
        if let Some(src) = src {
            let own = self.routes.lookup(src, mark).is_some_and(|to| to.local);
            if !own || src.is_ipv4() != dst.is_ipv4() {
                return Err(Unresolved::NoRoute);
            }
        }
        let route = self.routes.lookup(dst, mark).ok_or(Unresolved::NoRoute)?;
        if route.local {
            // A tunnel to this host itself.
            return Err(Unresolved::NoRoute);
        }
        let at = self.by_name.get(&route.device).ok_or(Unresolved::NoRoute)?;
        let Known { device, neighbours } = &self.devices[*at];
        let gateway = route.gateway.filter(|gateway| !gateway.is_unspecified());
        let multicast = discovery::multicast_mac(dst);
        let via = match multicast {
            Some(_) => dst,
            None => gateway.unwrap_or(dst),
        };
        let source = src.unwrap_or(route.source);
        let known = multicast.is_none().then(|| neighbours.get(&via)).flatten();
        if let Some(known) = known {
            known.touch();
        }
        let eth_dst = multicast.or(known.map(|known| known.mac));
        Ok(Hop {
            device: device.id,
            source,
            via,
            eth_src: device.mac,
            mtu: device.mtu,
            eth_dst: eth_dst.ok_or(Unresolved::Neighbour {
                device: device.id,
                address: via,
                source,
            })?,
        })
    }

    /// Returns a neighbour of the device with this number.
    pub fn neighbour(&self, device: u32, address: IpAddr) -> Option<&Arc<Seen>> {
        let at = self.by_id.get(&device)?;
        self.devices[*at].neighbours.get(&address)
    }

    /// Returns the neighbours that have been used since the last call, with their devices' names.
    pub fn take_used(&self) -> Vec<(&str, IpAddr)> {
        let mut used = Vec::new();
        for Known { device, neighbours } in &self.devices {
            let these = neighbours.iter();
            let these = these.filter(|(_, seen)| seen.used.swap(false, Ordering::Relaxed));
            used.extend(these.map(|(address, _)| (device.name.as_str(), *address)));
        }
        used
    }

    /// Returns a device by its number.
    pub fn device(&self, id: u32) -> Option<&Device> {
        self.by_id.get(&id).map(|at| &self.devices[*at].device)
    }

    /// Iterates over all devices, in the order in which they were given.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().map(|known| &known.device)
    }
}
