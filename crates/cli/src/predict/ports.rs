//! `--ports`: names, numbers and kinds of ports.

use ::predict::kinds::PortModel;
use ::predict::ports::Device;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// The ports named by the option.
#[derive(Default, Debug)]
pub(super) struct Ports {
    numbers: BTreeMap<String, u32>,
    kinds: BTreeMap<u32, PortModel>,
}

impl Ports {
    /// Parses `NAME=NUMBER:KIND` and its shorter forms, separated by commas.
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
                let kind = PortModel::named(kind).with_context(|| {
                    format!("{kind}: dpdk, veth, tap, afxdp, vhost and memory can be predicted")
                })?;
                (port, kind)
            }
            None => (item, PortModel::Measured(Device::Dpdk)),
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

    /// Returns a port's number by its name.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the kind of a port by its number: a DPDK device by default.
    pub(super) fn kind(&self, number: u32) -> PortModel {
        let kind = self.kinds.get(&number).copied();
        kind.unwrap_or(PortModel::Measured(Device::Dpdk))
    }
}

/// The ports with policers: those named, or all.
#[derive(Debug)]
pub(super) enum Policed {
    All,
    These(BTreeSet<u32>),
}

impl Policed {
    /// Parses names and numbers, separated by commas, or `all`.
    pub(super) fn parse(text: &str, names: &dyn Fn(&str) -> Option<u32>) -> Result<Policed> {
        if text.trim() == "all" {
            return Ok(Policed::All);
        }
        let words = text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty());
        let number = |word: &str| {
            openflow::parse::port(word, names)
                .filter(|port| (1..0xffff_ff00).contains(port))
                .with_context(|| format!("{word}: no such port"))
        };
        let ports: BTreeSet<u32> = words.map(number).collect::<Result<_>>()?;
        ensure!(
            !ports.is_empty(),
            "must be names or numbers of ports, or all"
        );
        Ok(Policed::These(ports))
    }

    pub(super) fn contains(&self, port: u32) -> bool {
        match self {
            Policed::All => true,
            Policed::These(ports) => ports.contains(&port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::predict::kinds::{Kinds, shares};
    use ::predict::ports::Shares;
    use ::predict::rules::Rules;
    use ::predict::traffic::Traffic;

    fn error(text: &str) -> String {
        format!("{:#}", Ports::parse(text).unwrap_err())
    }

    #[test]
    fn names_numbers_and_kinds() {
        let ports =
            Ports::parse("uplink=1, 7:memory,tap0=3:veth,vm=4:dpdkvhostuserclient").unwrap();
        assert_eq!(ports.number("uplink"), Some(1));
        assert_eq!(ports.number("tap1"), None);
        assert_eq!(
            [1, 3, 4, 7, 9].map(|number| ports.kind(number)),
            [
                PortModel::Measured(Device::Dpdk),
                PortModel::Measured(Device::Veth),
                PortModel::Measured(Device::Vhost),
                PortModel::Memory,
                PortModel::Measured(Device::Dpdk)
            ]
        );
        let none = Ports::parse("").unwrap();
        assert_eq!(none.kind(1), PortModel::Measured(Device::Dpdk));
    }

    #[test]
    fn parts_of_the_traffic_meet_what_they_come_and_leave_by() {
        let text = "in_port=1,actions=output:2\nin_port=3,actions=output:4\n";
        let rules = Rules::read("rules", text, &openflow::parse::no_names).unwrap();
        let traffic = Traffic::of_rules(&rules, 1).unwrap();
        let trace = ::predict::trace::trace(&rules, &traffic).unwrap();
        let kinds = |text: &str| {
            let ports = Ports::parse(text).unwrap();
            Kinds::of(&traffic, &trace, &|port| ports.kind(port))
        };
        let mixed = kinds("1:veth,2:vhost,3:memory,4:memory");
        assert_eq!(mixed.devices(), [Device::Veth, Device::Vhost]);
        let (veth, vhost) = (mixed.shares(Device::Veth), mixed.shares(Device::Vhost));
        assert_eq!((veth.received, veth.sent), (0.5, 0.0));
        assert_eq!((vhost.received, vhost.sent), (0.0, 0.5));
        assert_eq!(mixed.describe(), "veth, vhost, memory");
        assert_eq!(kinds("").describe(), "dpdk");
        assert_eq!(kinds("").shares(Device::Dpdk), Shares::ALL);
        assert_eq!(kinds("1:veth,3:veth").describe(), "dpdk, veth");
        let memory = kinds("1:memory,2:memory,3:memory,4:memory");
        assert!(memory.devices().is_empty() && memory.describe() == "memory");
        let names = |name: &str| (name == "up").then_some(3);
        let policed = Policed::parse("up, 7", &names).unwrap();
        let met = shares(&traffic, &trace, &|port| policed.contains(port));
        assert_eq!((met.received, met.sent), (0.5, 0.0));
        let all = Policed::parse("all", &names).unwrap();
        assert_eq!(
            shares(&traffic, &trace, &|port| all.contains(port)),
            Shares::ALL
        );
        for wrong in ["", "x", "0", "up,,y"] {
            assert!(Policed::parse(wrong, &names).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_of_ports_name_option_and_word() {
        assert_eq!(
            error("1:x"),
            "--ports 1:x: x: dpdk, veth, tap, afxdp, vhost and memory can be predicted"
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
