//! The devices behind the ports that packets arrive and leave by, and the share of packets of each.

use crate::ports::{Device, Shares};
use crate::trace::Trace;
use crate::traffic::Traffic;
use packet::tunnel::TunnelKind;
use std::collections::BTreeMap;

/// What is behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortModel {
    /// A device whose cost is measured.
    Measured(Device),
    /// Memory, which costs nothing.
    Memory,
}

impl PortModel {
    /// Returns the kind of this name; the database's names of vhost-user ports are accepted, too.
    /// None for other words.
    pub fn named(name: &str) -> Option<PortModel> {
        match name {
            "memory" => Some(PortModel::Memory),
            "vhost-user" | "dpdkvhostuser" | "dpdkvhostuserclient" => {
                Some(PortModel::Measured(Device::Vhost))
            }
            name => Device::by_name(name).map(PortModel::Measured),
        }
    }

    /// Returns the kind that a port of this type (the database's `Interface.type`) is measured as,
    /// and whether that is exact: kernel interfaces are measured as veth, other types as DPDK's
    /// devices, and types without a device cost nothing. Headers of tunnels are not measured.
    pub fn of_type(device: &str) -> (PortModel, bool) {
        match device {
            "" | "system" => (PortModel::Measured(Device::Veth), true),
            "internal" | "tap" => (PortModel::Measured(Device::Tap), true),
            "afxdp" | "afxdp-nonpmd" => (PortModel::Measured(Device::AfXdp), true),
            "patch" | "dummy" | "dummy-internal" => (PortModel::Memory, true),
            name if TunnelKind::ALL.iter().any(|kind| kind.name() == name) => {
                (PortModel::Memory, false)
            }
            name => match PortModel::named(name) {
                Some(kind) => (kind, true),
                None => (PortModel::Measured(Device::Dpdk), false),
            },
        }
    }
}

/// Returns the shares of packets that arrive and leave by the ports that `meant` selects.
pub fn shares(traffic: &Traffic, trace: &Trace, meant: &dyn Fn(u32) -> bool) -> Shares {
    let arrivals = traffic.arrivals.iter();
    let received = arrivals.filter(|arrival| meant(arrival.in_port)).count();
    let received = received as f64 / traffic.arrivals.len().max(1) as f64;
    let sum = |ports: &mut dyn Iterator<Item = u64>| ports.sum::<u64>() as f64;
    let sent = trace.out_ports.iter();
    let all = sum(&mut sent.clone().map(|(_, packets)| *packets));
    let through = sent.filter(|(port, _)| meant(**port));
    let through = sum(&mut through.map(|(_, packets)| *packets));
    // If all packets are dropped, no other port sends anything.
    let sent = if all == 0.0 { received } else { through / all };
    Shares { received, sent }
}

/// Shares of the packets that arrive and leave by each kind of device that is used.
#[derive(Clone, PartialEq, Debug)]
pub struct Kinds(BTreeMap<Device, Shares>);

impl Kinds {
    /// Computes the shares for this traffic; `kind` says what is behind a port.
    pub fn of(traffic: &Traffic, trace: &Trace, kind: &dyn Fn(u32) -> PortModel) -> Kinds {
        let shares = |device: Device| {
            shares(traffic, trace, &|port| {
                kind(port) == PortModel::Measured(device)
            })
        };
        let met = Device::ALL.map(|device| (device, shares(device)));
        let meets = |(_, shares): &(Device, Shares)| *shares != Shares::NONE;
        Kinds(met.into_iter().filter(meets).collect())
    }

    /// Returns the kinds to measure.
    pub fn devices(&self) -> Vec<Device> {
        self.0.keys().copied().collect()
    }

    /// Returns the share of the traffic that uses a kind.
    pub fn shares(&self, device: Device) -> Shares {
        self.0.get(&device).copied().unwrap_or(Shares::NONE)
    }

    /// Returns a description.
    pub fn describe(&self) -> String {
        let sum = |of: fn(&Shares) -> f64| self.0.values().map(of).sum::<f64>();
        let all = sum(|shares| shares.received).min(sum(|shares| shares.sent));
        let mut names: Vec<&str> = self.0.keys().map(|device| device.name()).collect();
        if all < 1.0 - 1e-9 {
            names.push("memory");
        }
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_the_database_are_measured_as_what_is_like_them() {
        let veth = PortModel::Measured(Device::Veth);
        assert_eq!(PortModel::of_type(""), (veth, true));
        assert_eq!(PortModel::of_type("system"), (veth, true));
        let (tap, xdp) = (
            PortModel::Measured(Device::Tap),
            PortModel::Measured(Device::AfXdp),
        );
        assert_eq!(PortModel::of_type("internal"), (tap, true));
        assert_eq!(PortModel::of_type("tap"), (tap, true));
        assert_eq!(PortModel::of_type("afxdp"), (xdp, true));
        assert_eq!(PortModel::of_type("patch"), (PortModel::Memory, true));
        for kind in TunnelKind::ALL {
            assert_eq!(PortModel::of_type(kind.name()), (PortModel::Memory, false));
        }
        let guest = PortModel::Measured(Device::Vhost);
        assert_eq!(PortModel::of_type("dpdkvhostuserclient"), (guest, true));
        let dpdk = PortModel::Measured(Device::Dpdk);
        assert_eq!(PortModel::of_type("dpdk"), (dpdk, true));
        assert_eq!(PortModel::of_type("unheard-of"), (dpdk, false));
    }
}
