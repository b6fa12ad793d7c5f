//! `--ports`: names, numbers and kinds of ports.

use ::predict::ports::Shares;
use ::predict::trace::Trace;
use ::predict::traffic::Traffic;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;

/// What is behind a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A DPDK device: `net_pcap` where packets come in, `net_null` where they leave.
    Dpdk,
    /// Nothing that costs anything.
    Memory,
}

impl Kind {
    fn named(name: &str) -> Option<Kind> {
        match name {
            "dpdk" => Some(Kind::Dpdk),
            "memory" => Some(Kind::Memory),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Dpdk => "dpdk",
            Kind::Memory => "memory",
        }
    }
}

/// The ports that were named.
#[derive(Default, Debug)]
pub(super) struct Ports {
    numbers: BTreeMap<String, u32>,
    kinds: BTreeMap<u32, Kind>,
}

impl Ports {
    /// Reads `NAME=NUMBER:KIND` and its shorter forms, separated by commas.
    pub(super) fn parse(text: &str) -> Result<Ports> {
        let mut ports = Ports::default();
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            ports.add(item).with_context(|| format!("--ports {item}"))?;
        }
        Ok(ports)
    }

    fn add(&mut self, item: &str) -> Result<()> {
        let (port, kind) = match item.rsplit_once(':') {
            Some((port, kind)) => {
                let kind = Kind::named(kind)
                    .with_context(|| format!("{kind}: dpdk and memory can be predicted; kernel interfaces and vhost-user are not calibrated"))?;
                (port, kind)
            }
            None => (item, Kind::Dpdk),
        };
        let (name, number) = match port.split_once('=') {
            Some((name, number)) => (Some(name), number),
            None => (None, port),
        };
        let number: u32 = number
            .parse()
            .ok()
            .filter(|number| (1..0xffff_ff00).contains(number))
            .with_context(|| format!("{number} is not the number of a port"))?;
        if let Some(name) = name {
            ensure!(!name.is_empty(), "the port has no name");
            ensure!(
                self.numbers.insert(name.to_owned(), number).is_none(),
                "{name} is named twice"
            );
        }
        if self.kinds.insert(number, kind).is_some() {
            bail!("port {number} is named twice");
        }
        Ok(())
    }

    /// A port's number by its name.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    fn kind(&self, number: u32) -> Kind {
        self.kinds.get(&number).copied().unwrap_or(Kind::Dpdk)
    }

    /// How much of the traffic meets DPDK devices.
    pub(super) fn kinds(&self, traffic: &Traffic, trace: &Trace) -> Kinds {
        let received = traffic
            .arrivals
            .iter()
            .filter(|arrival| self.kind(arrival.in_port) == Kind::Dpdk)
            .count();
        let sent = trace.out_ports.iter();
        let through = sent
            .clone()
            .filter(|(port, _)| self.kind(**port) == Kind::Dpdk);
        let sum = |ports: &mut dyn Iterator<Item = u64>| ports.sum::<u64>() as f64;
        let all = sum(&mut sent.map(|(_, packets)| *packets));
        let through = sum(&mut through.map(|(_, packets)| *packets));
        let received = received as f64 / traffic.arrivals.len().max(1) as f64;
        // Where all is dropped, there is nothing that other ports would send.
        let sent = if all == 0.0 { received } else { through / all };
        Kinds { received, sent }
    }
}

/// Shares of the packets that come in by, and leave by, DPDK devices.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Kinds {
    received: f64,
    sent: f64,
}

impl Kinds {
    /// Whether anything does.
    pub(super) fn dpdk(&self) -> bool {
        self.received + self.sent > 0.0
    }

    /// For the prediction.
    pub(super) fn shares(&self) -> Shares {
        Shares {
            received: self.received,
            sent: self.sent,
        }
    }

    /// In words.
    pub(super) fn describe(&self) -> String {
        let (dpdk, memory) = (Kind::Dpdk.name(), Kind::Memory.name());
        match (self.received, self.sent) {
            (received, sent) if received == 0.0 && sent == 0.0 => memory.to_owned(),
            (1.0, 1.0) => dpdk.to_owned(),
            _ => format!("{dpdk}, {memory}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", Ports::parse(text).unwrap_err())
    }

    #[test]
    fn names_numbers_and_kinds() {
        let ports = Ports::parse("uplink=1, 7:memory,tap0=3:memory").unwrap();
        assert_eq!(ports.number("uplink"), Some(1));
        assert_eq!(ports.number("tap1"), None);
        assert_eq!(
            [1, 3, 7, 9].map(|number| ports.kind(number)),
            [Kind::Dpdk, Kind::Memory, Kind::Memory, Kind::Dpdk]
        );
        assert_eq!(Ports::parse("").unwrap().kind(1), Kind::Dpdk);
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(
            error("1:x"),
            "--ports 1:x: x: dpdk and memory can be predicted; kernel interfaces and vhost-user are not calibrated"
        );
        assert_eq!(
            error("p=zero"),
            "--ports p=zero: zero is not the number of a port"
        );
        assert_eq!(error("0"), "--ports 0: 0 is not the number of a port");
        assert_eq!(error("p=1,p=2"), "--ports p=2: p is named twice");
        assert_eq!(error("p=1,q=1"), "--ports q=1: port 1 is named twice");
        assert_eq!(error("=1"), "--ports =1: the port has no name");
    }
}
