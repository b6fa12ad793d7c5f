//! What is behind the ports that packets come and leave by, and how many of them meet it.

use crate::ports::{Device, Shares};
use crate::trace::Trace;
use crate::traffic::Traffic;
use std::collections::BTreeMap;

/// What is behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A device whose cost is measured.
    Measured(Device),
    /// Nothing that costs anything.
    Memory,
}

impl Kind {
    /// The kind of this name; the database's names of guests' ports are as good as ours. None for
    /// other words.
    pub fn named(name: &str) -> Option<Kind> {
        match name {
            "memory" => Some(Kind::Memory),
            "vhost-user" | "dpdkvhostuser" | "dpdkvhostuserclient" => {
                Some(Kind::Measured(Device::Vhost))
            }
            name => Device::by_name(name).map(Kind::Measured),
        }
    }

    /// What a port of this type (the database's `Interface.type`) is measured as, and whether that
    /// is the very type: kernel interfaces of other types are measured as veth, and what has no
    /// device costs nothing.
    pub fn of_type(device: &str) -> (Kind, bool) {
        match device {
            "" | "system" => (Kind::Measured(Device::Veth), true),
            "internal" | "tap" | "afxdp" | "afxdp-nonpmd" => (Kind::Measured(Device::Veth), false),
            "patch" | "dummy" | "dummy-internal" => (Kind::Memory, true),
            name => match Kind::named(name) {
                Some(kind) => (kind, true),
                None => (Kind::Measured(Device::Dpdk), false),
            },
        }
    }
}

/// The parts of the packets that come in by, and leave by, ports that are meant.
pub fn shares(traffic: &Traffic, trace: &Trace, meant: &dyn Fn(u32) -> bool) -> Shares {
    let arrivals = traffic.arrivals.iter();
    let received = arrivals.filter(|arrival| meant(arrival.in_port)).count();
    let received = received as f64 / traffic.arrivals.len().max(1) as f64;
    let sum = |ports: &mut dyn Iterator<Item = u64>| ports.sum::<u64>() as f64;
    let sent = trace.out_ports.iter();
    let all = sum(&mut sent.clone().map(|(_, packets)| *packets));
    let through = sent.filter(|(port, _)| meant(**port));
    let through = sum(&mut through.map(|(_, packets)| *packets));
    // Where all is dropped, there is nothing that other ports would send.
    let sent = if all == 0.0 { received } else { through / all };
    Shares { received, sent }
}

/// Parts of the packets that come in by, and leave by, devices of each kind that any meet.
#[derive(Clone, PartialEq, Debug)]
pub struct Kinds(BTreeMap<Device, Shares>);

impl Kinds {
    /// Of this traffic, where `kind` says what is behind a port.
    pub fn of(traffic: &Traffic, trace: &Trace, kind: &dyn Fn(u32) -> Kind) -> Kinds {
        let shares =
            |device: Device| shares(traffic, trace, &|port| kind(port) == Kind::Measured(device));
        let met = Device::ALL.map(|device| (device, shares(device)));
        let meets = |(_, shares): &(Device, Shares)| *shares != Shares::NONE;
        Kinds(met.into_iter().filter(meets).collect())
    }

    /// The kinds that are to be measured.
    pub fn devices(&self) -> Vec<Device> {
        self.0.keys().copied().collect()
    }

    /// How much of the traffic meets a kind.
    pub fn shares(&self, device: Device) -> Shares {
        self.0.get(&device).copied().unwrap_or(Shares::NONE)
    }

    /// In words.
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
        let veth = Kind::Measured(Device::Veth);
        assert_eq!(Kind::of_type(""), (veth, true));
        assert_eq!(Kind::of_type("system"), (veth, true));
        assert_eq!(Kind::of_type("internal"), (veth, false));
        assert_eq!(Kind::of_type("patch"), (Kind::Memory, true));
        let guest = Kind::Measured(Device::Vhost);
        assert_eq!(Kind::of_type("dpdkvhostuserclient"), (guest, true));
        let dpdk = Kind::Measured(Device::Dpdk);
        assert_eq!(Kind::of_type("dpdk"), (dpdk, true));
        assert_eq!(Kind::of_type("unheard-of"), (dpdk, false));
    }
}
