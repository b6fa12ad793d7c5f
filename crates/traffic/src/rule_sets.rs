//! Makes sets of rules, and writes such sets as ClassBench or Open vSwitch has them.
//!
//! Three kinds are made, in the manner of ClassBench's: access control lists, firewalls, and IP
//! chains, which are between the two. Each rule is drawn by these shares, in per cent:
//!
//! | | acl | fw | ipc |
//! | --- | --- | --- | --- |
//! | bits of the source: 0, 8-15, 16-23, 24-31, 32 | 5 3 12 50 30 | 45 3 12 20 20 | 10 5 20 30 35 |
//! | bits of the destination, likewise | 2 2 11 35 50 | 15 3 17 25 40 | 8 4 23 30 35 |
//! | TCP, UDP, ICMP, ESP, any protocol | 75 15 4 1 5 | 50 25 8 4 13 | 60 25 6 2 7 |
//! | source ports: all, 1024 and above, a range, one | 98 1 0 1 | 60 20 5 15 | 75 10 5 10 |
//! | destination ports, likewise | 20 10 20 50 | 35 15 10 40 | 35 10 15 40 |
//!
//! Only TCP and UDP have ports other than all. Prefixes lie in 64 networks of 16 bits, the k-th of
//! which is 1/k as likely as the first, so that rules overlap; ports of one rule are those of
//! well-known services, the k-th 1/k as likely, or in one of four any. No two rules of a set match
//! the same packets; where no new one is found in 16 attempts, its source is one address.

use crate::random::{Alias, Sequence, number};
use crate::rules::{Bits, ICMP, ICMP6, Ports, Rule, TCP, UDP, Vlan};
use std::collections::HashSet;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Highest priority of a rule of Open vSwitch's.
const PRIORITY_MAX: usize = 65_535;
/// Attempts to find a rule that is not there yet.
const ATTEMPTS: u64 = 16;
/// Networks that prefixes lie in.
const NETWORKS: usize = 64;
/// ESP's number.
const ESP: u8 = 50;

/// Ports of well-known services.
const SERVICES: [u16; 24] = [
    80, 443, 53, 25, 22, 21, 23, 110, 143, 161, 123, 389, 445, 139, 135, 3306, 1521, 1433, 8080,
    5060, 993, 995, 514, 3389,
];

/// A kind of set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    /// An access control list.
    Acl,
    /// A firewall's rules.
    Fw,
    /// IP chains.
    Ipc,
}

/// The shares of a kind.
struct Shares {
    src: [f64; 5],
    dst: [f64; 5],
    protocol: [f64; 5],
    port_src: [f64; 4],
    port_dst: [f64; 4],
}

impl SetKind {
    fn shares(self) -> Shares {
        match self {
            SetKind::Acl => Shares {
                src: [5.0, 3.0, 12.0, 50.0, 30.0],
                dst: [2.0, 2.0, 11.0, 35.0, 50.0],
                protocol: [75.0, 15.0, 4.0, 1.0, 5.0],
                port_src: [98.0, 1.0, 0.0, 1.0],
                port_dst: [20.0, 10.0, 20.0, 50.0],
            },
            SetKind::Fw => Shares {
                src: [45.0, 3.0, 12.0, 20.0, 20.0],
                dst: [15.0, 3.0, 17.0, 25.0, 40.0],
                protocol: [50.0, 25.0, 8.0, 4.0, 13.0],
                port_src: [60.0, 20.0, 5.0, 15.0],
                port_dst: [35.0, 15.0, 10.0, 40.0],
            },
            SetKind::Ipc => Shares {
                src: [10.0, 5.0, 20.0, 30.0, 35.0],
                dst: [8.0, 4.0, 23.0, 30.0, 35.0],
                protocol: [60.0, 25.0, 6.0, 2.0, 7.0],
                port_src: [75.0, 10.0, 5.0, 10.0],
                port_dst: [35.0, 10.0, 15.0, 40.0],
            },
        }
    }
}

/// Makes rules of a kind.
struct Maker {
    src: Alias,
    dst: Alias,
    protocol: Alias,
    port_src: Alias,
    port_dst: Alias,
    network: Alias,
    service: Alias,
    seed: u64,
    numbers: Sequence,
}

/// Returns weights of which the k-th is 1/k.
fn harmonic(count: usize) -> Vec<f64> {
    (1..=count).map(|k| 1.0 / k as f64).collect()
}

impl Maker {
    fn next(&mut self) -> u64 {
        self.numbers.draw()
    }

    /// Returns a number from `low` to `high`.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    fn prefix(&mut self, share: usize) -> Bits {
        let length = match share {
            0 => 0,
            1 => self.within(8, 15),
            2 => self.within(16, 23),
            3 => self.within(24, 31),
            _ => 32,
        };
        let random = self.next();
        let network = self.network.choose(random) as u64;
        // Public addresses below those of groups.
        let network = (1 + number(self.seed ^ 0xa5, network) % 222) << 24
            | number(self.seed ^ 0x5a, network) & 0xff_0000;
        let address = network | self.next() & 0xffff;
        let all = u64::from(u32::MAX);
        Bits::new(address.into(), (all & !(all >> length)).into())
    }

    fn ports(&mut self, share: usize) -> Ports {
        match share {
            0 => Ports::ANY,
            1 => Ports::Range(1024, u16::MAX),
            2 => {
                let low = self.within(1, 60_000);
                let high = low + self.within(1, 5_000);
                Ports::Range(low as u16, high.min(65_535) as u16)
            }
            _ => {
                let random = self.next();
                let port = match self.within(0, 3) {
                    0 => self.within(1, 65_535) as u16,
                    _ => SERVICES[self.service.choose(random)],
                };
                Ports::Range(port, port)
            }
        }
    }

    fn rule(&mut self, line: usize) -> Rule {
        let mut rule = Rule::any(line);
        rule.six = Some(false);
        let [src, dst, protocol, port_src, port_dst] = std::array::from_fn(|_| self.next());
        rule.src = self.prefix(self.src.choose(src));
        rule.dst = self.prefix(self.dst.choose(dst));
        let protocol = match self.protocol.choose(protocol) {
            0 => Some(TCP),
            1 => Some(UDP),
            2 => Some(ICMP),
            3 => Some(ESP),
            _ => None,
        };
        if let Some(protocol) = protocol {
            rule.protocol = Bits::new(protocol.into(), 0xff);
        }
        if let Some(TCP | UDP) = protocol {
            rule.port_src = self.ports(self.port_src.choose(port_src));
            rule.port_dst = self.ports(self.port_dst.choose(port_dst));
        }
        rule
    }
}

/// Makes a set of so many rules. The same seed makes the same set.
pub fn make(kind: SetKind, count: usize, seed: u64) -> Vec<Rule> {
    let shares = kind.shares();
    let mut maker = Maker {
        src: Alias::new(&shares.src),
        dst: Alias::new(&shares.dst),
        protocol: Alias::new(&shares.protocol),
        port_src: Alias::new(&shares.port_src),
        port_dst: Alias::new(&shares.port_dst),
        network: Alias::new(&harmonic(NETWORKS)),
        service: Alias::new(&harmonic(SERVICES.len())),
        seed,
        numbers: Sequence::new(seed),
    };
    let mut known = HashSet::new();
    let mut rules = Vec::with_capacity(count);
    for line in 1..=count {
        let mut attempt = 0;
        let rule = loop {
            let mut rule = maker.rule(line);
            attempt += 1;
            if attempt > ATTEMPTS {
                rule.src = Bits::new(maker.next().into(), u32::MAX.into());
            }
            if known.insert(class_bench(&rule)) {
                break rule;
            }
        };
        rules.push(rule);
    }
    rules
}

/// Writes bits of an address as a prefix, or with their mask.
fn prefix(bits: Bits, six: bool) -> String {
    let (width, address) = match six {
        true => (128, Ipv6Addr::from_bits(bits.value).to_string()),
        false => (32, Ipv4Addr::from_bits(bits.value as u32).to_string()),
    };
    let all = u128::MAX >> (128 - width);
    let length = bits.mask.count_ones();
    let is_prefix = bits.mask == all & !all.checked_shr(length).unwrap_or(0);
    match (is_prefix, six) {
        (true, _) => format!("{address}/{length}"),
        (false, true) => format!("{address}/{}", Ipv6Addr::from_bits(bits.mask)),
        (false, false) => format!("{address}/{}", Ipv4Addr::from_bits(bits.mask as u32)),
    }
}

/// Returns a line of a filter set of ClassBench, without its end. The rule must be one that such a
/// line can say: of addresses, ranges of ports, protocol and flags.
pub fn class_bench(rule: &Rule) -> String {
    let six = rule.six.unwrap_or(false);
    let range = |ports: Ports| match ports {
        Ports::Range(low, high) => (low, high),
        Ports::Bits(bits) => (bits.value as u16, bits.value as u16 | !bits.mask as u16),
    };
    let (src, dst) = (range(rule.port_src), range(rule.port_dst));
    let flags = |bits: u128| (bits as u16).swap_bytes();
    format!(
        "@{}\t{}\t{} : {}\t{} : {}\t0x{:02X}/0x{:02X}\t0x{:04X}/0x{:04X}",
        prefix(rule.src, six),
        prefix(rule.dst, six),
        src.0,
        src.1,
        dst.0,
        dst.1,
        rule.protocol.value,
        rule.protocol.mask,
        flags(rule.flags.value),
        flags(rule.flags.mask),
    )
}

/// A set of rules that cannot be written in a notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// ClassBench's lines have no words for a rule.
    #[error("line {line}: {beyond}: a filter set of ClassBench has no words for it")]
    ClassBench {
        /// The rule's line.
        line: usize,
        /// What they have no words for.
        beyond: Beyond,
    },
    /// Open vSwitch's lines have no words for a rule.
    #[error("line {line}: {beyond}: rules of Open vSwitch's cannot be made of it")]
    OpenFlow {
        /// The rule's line.
        line: usize,
        /// What they have no words for.
        beyond: Beyond,
    },
    /// There are so many rules that two of Open vSwitch's would have one priority.
    #[error("{0} rules have no priorities of their own: there are {PRIORITY_MAX}")]
    Priorities(usize),
}

/// What of a rule a notation has no words for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Beyond {
    /// The port that packets come in by.
    #[error("in_port")]
    InPort,
    /// An Ethernet address.
    #[error("an Ethernet address")]
    EthernetAddress,
    /// A VLAN.
    #[error("a VLAN")]
    Vlan,
    /// DSCP.
    #[error("DSCP")]
    Dscp,
    /// Ports with some bits, which do not follow each other.
    #[error("bits of a port that are no range")]
    PortBits,
    /// Addresses with some bits, of which higher ones may differ.
    #[error("bits of an address that are no prefix")]
    AddressBits,
    /// Several protocols; their common bits.
    #[error("a protocol's mask 0x{0:02x}")]
    ProtocolMask(u128),
    /// TCP's flags.
    #[error("TCP's flags")]
    Flags,
}

/// Returns a set as lines of a filter set of ClassBench.
pub fn class_bench_set(rules: &[Rule]) -> Result<String, SetError> {
    let mut text = String::new();
    for rule in rules {
        if let Some(beyond) = beyond_class_bench(rule) {
            let line = rule.line;
            return Err(SetError::ClassBench { line, beyond });
        }
        text += &class_bench(rule);
        text.push('\n');
    }
    Ok(text)
}

/// Returns what of a rule a line of ClassBench's cannot say.
fn beyond_class_bench(rule: &Rule) -> Option<Beyond> {
    let is_range = |ports: Ports| match ports {
        Ports::Range(..) => true,
        // The bits that do not count are the lowest.
        Ports::Bits(bits) => (!bits.mask as u16)
            .checked_add(1)
            .is_none_or(|n| n.is_power_of_two()),
    };
    let all = if rule.six == Some(true) {
        u128::MAX
    } else {
        u32::MAX.into()
    };
    let is_prefix = |bits: Bits| {
        let open = all & !bits.mask;
        open.checked_add(1).is_none_or(u128::is_power_of_two)
    };
    if rule.in_port.is_some() {
        return Some(Beyond::InPort);
    }
    if !rule.eth_src.is_any() || !rule.eth_dst.is_any() {
        return Some(Beyond::EthernetAddress);
    }
    if rule.vlan != Vlan::Any {
        return Some(Beyond::Vlan);
    }
    if !rule.tos.is_any() {
        return Some(Beyond::Dscp);
    }
    if !is_range(rule.port_src) || !is_range(rule.port_dst) {
        return Some(Beyond::PortBits);
    }
    if !is_prefix(rule.src) || !is_prefix(rule.dst) {
        return Some(Beyond::AddressBits);
    }
    None
}

/// Returns the masked values that together are a range of ports.
fn masks(ports: Ports) -> Vec<Bits> {
    let (low, high) = match ports {
        _ if ports.is_any() => return vec![Bits::default()],
        Ports::Bits(bits) => return vec![bits],
        Ports::Range(low, high) => (u32::from(low), u32::from(high)),
    };
    let (mut masks, mut at) = (Vec::new(), low);
    while at <= high {
        // The largest aligned block that begins here and does not go beyond the end.
        let mut size = 1 << at.trailing_zeros().min(16);
        while at + size - 1 > high {
            size /= 2;
        }
        masks.push(Bits::new(at.into(), u128::from(0x1_0000 - size)));
        at += size;
    }
    masks
}

/// Returns the types or codes of ICMP, one by one, that meet a condition.
fn values(ports: Ports) -> Vec<Bits> {
    let met = (0..=0xff_u16).filter(|&value| ports.meets(value));
    met.map(|value| Bits::new(value.into(), 0xffff)).collect()
}

/// Returns a rule as lines that `ovs-ofctl add-flows` reads, all of the priority given: ranges of
/// ports need several.
pub fn open_flow(rule: &Rule, priority: usize, actions: &str) -> Result<String, Beyond> {
    let six = rule.six.unwrap_or(false);
    let has = |bits: Bits| !bits.is_any();
    let mut parts = vec![format!("priority={priority}")];
    if let Some(port) = &rule.in_port {
        parts.push(format!("in_port={port}"));
    }
    let station = |bits: u128| {
        let bytes = (bits as u64).to_be_bytes();
        let parts: Vec<String> = bytes[2..]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        parts.join(":")
    };
    for (name, bits) in [("dl_src", rule.eth_src), ("dl_dst", rule.eth_dst)] {
        if has(bits) {
            parts.push(format!(
                "{name}={}/{}",
                station(bits.value),
                station(bits.mask)
            ));
        }
    }
    match rule.vlan {
        Vlan::Any => {}
        Vlan::Untagged => parts.push("dl_vlan=0xffff".into()),
        Vlan::Id(id) => parts.push(format!("dl_vlan={id}")),
    }
    let ported = !rule.port_src.is_any() || !rule.port_dst.is_any();
    let protocols: Vec<Option<u8>> = match (rule.protocol.mask, ported) {
        (0xff, _) => vec![Some(rule.protocol.value as u8)],
        (0, false) => vec![None],
        // Ports are matched of packets of one protocol.
        (0, true) => vec![Some(TCP), Some(UDP)],
        (mask, _) => return Err(Beyond::ProtocolMask(mask)),
    };
    if has(rule.flags) {
        return Err(Beyond::Flags);
    }
    let mut lines = String::new();
    for protocol in protocols {
        let mut parts = parts.clone();
        parts.push(match (protocol, six) {
            (None, false) => "ip".into(),
            (None, true) => "ipv6".into(),
            (Some(TCP), false) => "tcp".into(),
            (Some(TCP), true) => "tcp6".into(),
            (Some(UDP), false) => "udp".into(),
            (Some(UDP), true) => "udp6".into(),
            (Some(ICMP), false) => "icmp".into(),
            (Some(ICMP6), true) => "icmp6".into(),
            (Some(other), false) => format!("ip,nw_proto={other}"),
            (Some(other), true) => format!("ipv6,nw_proto={other}"),
        });
        let names = if six {
            ["ipv6_src", "ipv6_dst"]
        } else {
            ["nw_src", "nw_dst"]
        };
        for (name, bits) in names.into_iter().zip([rule.src, rule.dst]) {
            if has(bits) {
                parts.push(format!("{name}={}", prefix(bits, six)));
            }
        }
        if has(rule.tos) {
            parts.push(format!("nw_tos={}", rule.tos.value));
        }
        let is_icmp = matches!(protocol, Some(ICMP | ICMP6));
        // Types and codes of ICMP have no masks.
        let bits = |ports: Ports| match is_icmp && !ports.is_any() {
            true => values(ports),
            false => masks(ports),
        };
        for src in bits(rule.port_src) {
            for dst in bits(rule.port_dst) {
                let mut parts = parts.clone();
                for (side, bits) in [src, dst].into_iter().enumerate() {
                    match is_icmp {
                        _ if bits.is_any() => {}
                        true => {
                            let name = ["icmp_type", "icmp_code"][side];
                            parts.push(format!("{name}={}", bits.value));
                        }
                        false => {
                            let name = ["tp_src", "tp_dst"][side];
                            let (value, mask) = (bits.value, bits.mask);
                            parts.push(match mask {
                                0xffff => format!("{name}={value}"),
                                _ => format!("{name}=0x{value:x}/0x{mask:x}"),
                            });
                        }
                    }
                }
                // Writing to a string does not fail.
                let _ = writeln!(lines, "{},actions={actions}", parts.join(","));
            }
        }
    }
    Ok(lines)
}

/// Returns a set as lines of Open vSwitch's rules, of which earlier ones go before.
pub fn open_flow_set(rules: &[Rule], actions: &str) -> Result<String, SetError> {
    if rules.len() > PRIORITY_MAX {
        return Err(SetError::Priorities(rules.len()));
    }
    let mut text = String::new();
    for (at, rule) in rules.iter().enumerate() {
        let lines = open_flow(rule, PRIORITY_MAX - at, actions);
        text += &lines.map_err(|beyond| SetError::OpenFlow {
            line: rule.line,
            beyond,
        })?;
    }
    Ok(text)
}
