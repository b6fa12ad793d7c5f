//! Sets of rules that flows are made from: ClassBench's filter sets and Open vSwitch's rules, as
//! far as their matches are about Ethernet addresses, a VLAN, IP addresses, the protocol and its
//! ports. What a file has beyond that is an error that names the line.
//!
//! * ClassBench (Taylor, Turner: ClassBench: A Packet Classification Benchmark, 2005), a line for
//!   each rule: `@SOURCE/BITS DESTINATION/BITS LOW : HIGH LOW : HIGH PROTOCOL/MASK [FLAGS/MASK]`.
//!   The flags are TCP's with their bytes exchanged, as its filter sets have them (0x1000 is ACK,
//!   0x0200 SYN). They are passed over in rules that TCP does not meet.
//! * Open vSwitch, as `ovs-ofctl dump-flows` prints rules and `add-flows` reads them: `in_port`;
//!   `dl_src` and `dl_dst` with masks, `dl_vlan`, `dl_type` of IPv4 and IPv6; `ip`, `icmp`, `tcp`,
//!   `udp` and the same for IPv6; `nw_src`, `nw_dst`, `ipv6_src`, `ipv6_dst` with prefixes or
//!   masks, `nw_proto`, `nw_tos`; `tp_src`, `tp_dst` with masks, `icmp_type`, `icmp_code`; all by
//!   their newer names, too. Rules of other tables than 0 are passed over, and so is all that is no
//!   match.

// By its path, since the fuzz target has this module by its own path.
#[path = "rules/error.rs"]
mod error;

pub use self::error::{BadRule, Defect};

use std::net::IpAddr;

/// Longest file that is read, bytes.
pub const FILE_MAX: u64 = 64 << 20;
/// Most rules.
pub const RULES_MAX: usize = 1 << 20;

/// Numbers of protocols.
pub const ICMP: u8 = 1;
/// See [`ICMP`].
pub const TCP: u8 = 6;
/// See [`ICMP`].
pub const UDP: u8 = 17;
/// See [`ICMP`].
pub const ICMP6: u8 = 58;

/// What rules look at in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// Source Ethernet address.
    pub eth_src: u64,
    /// Destination Ethernet address.
    pub eth_dst: u64,
    /// ID of the VLAN tag, if there is one.
    pub vlan: Option<u16>,
    /// Whether it is IPv6, and not IPv4.
    pub six: bool,
    /// Source address; an IPv4 one in the low 32 bits.
    pub src: u128,
    /// Destination address.
    pub dst: u128,
    /// DSCP and ECN bits.
    pub tos: u8,
    /// The protocol above IP.
    pub protocol: u8,
    /// Source port; the type of an ICMP message; 0 where there is neither.
    pub port_src: u16,
    /// Destination port; the code of an ICMP message.
    pub port_dst: u16,
    /// TCP's flags.
    pub flags: u8,
}

impl Header {
    /// Returns whether there are ports, or a type and a code.
    pub fn has_ports(&self) -> bool {
        [TCP, UDP, icmp_of(self.six)].contains(&self.protocol)
    }
}

/// Returns ICMP's number above IPv6, or above IPv4.
pub fn icmp_of(six: bool) -> u8 {
    if six { ICMP6 } else { ICMP }
}

/// Bits that must have these values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bits {
    /// The values; 0 outside of the mask.
    pub value: u128,
    /// Which bits count.
    pub mask: u128,
}

impl Bits {
    /// Makes a condition; bits of the value outside of the mask do not count.
    pub fn new(value: u128, mask: u128) -> Bits {
        Bits {
            value: value & mask,
            mask,
        }
    }

    /// Returns whether a number meets it.
    pub fn meets(self, number: u128) -> bool {
        number & self.mask == self.value
    }

    /// Returns a number that meets it, whose other bits are those of `other`.
    pub fn fill(self, other: u128) -> u128 {
        self.value | other & !self.mask
    }

    /// Returns whether every number meets it.
    pub fn is_any(self) -> bool {
        self.mask == 0
    }
}

/// A condition on a VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// None.
    #[default]
    Any,
    /// There must be no tag.
    Untagged,
    /// There must be a tag of this ID.
    Id(u16),
}

/// A condition on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Within these, both included.
    Range(u16, u16),
    /// Some bits of it.
    Bits(Bits),
}

impl Ports {
    /// All ports.
    pub const ANY: Ports = Ports::Range(0, u16::MAX);

    /// Returns whether a port meets it.
    pub fn meets(self, port: u16) -> bool {
        match self {
            Ports::Range(low, high) => (low..=high).contains(&port),
            Ports::Bits(bits) => bits.meets(port.into()),
        }
    }

    /// Returns whether every port meets it.
    pub fn is_any(self) -> bool {
        match self {
            Ports::Range(low, high) => (low, high) == (0, u16::MAX),
            Ports::Bits(bits) => bits.is_any(),
        }
    }
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its line in the file, from 1 on.
    pub line: usize,
    /// The port that packets must come in by, as the file names it.
    pub in_port: Option<String>,
    /// Source Ethernet address.
    pub eth_src: Bits,
    /// Destination Ethernet address.
    pub eth_dst: Bits,
    /// The VLAN.
    pub vlan: Vlan,
    /// Whether packets must be IPv6, or IPv4.
    pub six: Option<bool>,
    /// Source address; an IPv4 one in the low 32 bits.
    pub src: Bits,
    /// Destination address.
    pub dst: Bits,
    /// DSCP and ECN bits.
    pub tos: Bits,
    /// The protocol.
    pub protocol: Bits,
    /// Source port, or an ICMP message's type.
    pub port_src: Ports,
    /// Destination port, or an ICMP message's code.
    pub port_dst: Ports,
    /// TCP's flags.
    pub flags: Bits,
}

impl Rule {
    /// Makes a rule that all packets meet.
    pub fn any(line: usize) -> Rule {
        Rule {
            line,
            in_port: None,
            eth_src: Bits::default(),
            eth_dst: Bits::default(),
            vlan: Vlan::Any,
            six: None,
            src: Bits::default(),
            dst: Bits::default(),
            tos: Bits::default(),
            protocol: Bits::default(),
            port_src: Ports::ANY,
            port_dst: Ports::ANY,
            flags: Bits::default(),
        }
    }

    /// Returns whether a packet meets it, whichever port it comes in by.
    pub fn meets(&self, header: &Header) -> bool {
        let vlan = match self.vlan {
            Vlan::Any => true,
            Vlan::Untagged => header.vlan.is_none(),
            Vlan::Id(id) => header.vlan == Some(id),
        };
        let ported = self.port_src.is_any() && self.port_dst.is_any()
            || header.has_ports()
                && self.port_src.meets(header.port_src)
                && self.port_dst.meets(header.port_dst);
        let flagged =
            self.flags.is_any() || header.protocol == TCP && self.flags.meets(header.flags.into());
        // The addresses tell most packets apart.
        self.src.meets(header.src)
            && self.dst.meets(header.dst)
            && ported
            && self.protocol.meets(header.protocol.into())
            && self.six.is_none_or(|six| six == header.six)
            && self.tos.meets(header.tos.into())
            && self.eth_src.meets(header.eth_src.into())
            && self.eth_dst.meets(header.eth_dst.into())
            && vlan
            && flagged
    }

    /// Returns whether it says nothing of packets but that they are IPv4 or IPv6.
    pub fn is_any(&self) -> bool {
        let no_bits = [
            self.eth_src,
            self.eth_dst,
            self.src,
            self.dst,
            self.tos,
            self.protocol,
            self.flags,
        ];
        no_bits.into_iter().all(Bits::is_any)
            && self.vlan == Vlan::Any
            && self.port_src.is_any()
            && self.port_dst.is_any()
    }

    /// Returns whether its packets may be of a protocol.
    pub fn may_be(&self, protocol: u8) -> bool {
        self.protocol.meets(protocol.into())
    }

    /// Notes that packets must be IPv6, or IPv4.
    fn set_six(&mut self, six: bool) -> Result<(), Defect> {
        if self.six.is_some_and(|before| before != six) {
            return Err(Defect::BothFamilies);
        }
        self.six = Some(six);
        Ok(())
    }

    /// Notes that packets must be of a protocol.
    fn set_protocol(&mut self, protocol: u8) -> Result<(), Defect> {
        let bits = Bits::new(protocol.into(), 0xff);
        if !self.protocol.is_any() && self.protocol != bits {
            return Err(Defect::TwoProtocols(self.protocol.value, protocol));
        }
        self.protocol = bits;
        Ok(())
    }

    /// Checks that packets can meet it.
    fn check(&mut self) -> Result<(), Defect> {
        if !self.may_be(TCP) {
            self.flags = Bits::default();
        }
        let ported = !self.port_src.is_any() || !self.port_dst.is_any();
        if !ported || self.may_be(TCP) || self.may_be(UDP) {
            return Ok(());
        }
        match self.six {
            Some(six) if self.may_be(icmp_of(six)) => {}
            _ => return Err(Defect::NoPorts(self.protocol.value)),
        }
        if !self.port_src.meets_byte() || !self.port_dst.meets_byte() {
            return Err(Defect::IcmpRange);
        }
        Ok(())
    }
}

impl Ports {
    /// Returns whether a number from 0 to 255 meets it.
    fn meets_byte(self) -> bool {
        match self {
            Ports::Range(low, _) => low <= 0xff,
            Ports::Bits(bits) => bits.value <= 0xff,
        }
    }
}

/// How a file has its rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A filter set of ClassBench.
    ClassBench,
    /// Rules of Open vSwitch.
    OpenFlow,
}

/// Returns a file's format: ClassBench's rules begin with `@`.
pub fn format_of(text: &str) -> Format {
    let mut lines = text.lines().map(str::trim_start);
    match lines.find(|line| !line.is_empty() && !line.starts_with('#')) {
        Some(line) if line.starts_with('@') => Format::ClassBench,
        _ => Format::OpenFlow,
    }
}

/// Reads the rules of a file, in its order. Empty lines, and those that begin with `#`, are none.
pub fn read(text: &str, format: Format) -> Result<Vec<Rule>, BadRule> {
    let mut rules = Vec::new();
    for (at, text) in text.lines().enumerate() {
        let line = at + 1;
        let bad = |defect| BadRule { line, defect };
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let rule = match format {
            Format::ClassBench => Some(class_bench(line, text).map_err(bad)?),
            Format::OpenFlow => open_flow(line, text).map_err(bad)?,
        };
        if let Some(mut rule) = rule {
            rule.check().map_err(bad)?;
            if rules.len() == RULES_MAX {
                return Err(bad(Defect::TooMany));
            }
            rules.push(rule);
        }
    }
    Ok(rules)
}

/// Reads a number: decimal, or hexadecimal behind `0x`.
fn number(text: &str, most: u64) -> Result<u64, Defect> {
    let read = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // A sign would be taken for part of the number.
        Some(digits) if digits.starts_with(['+', '-']) => None,
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.starts_with('+') => None,
        None => text.parse().ok(),
    };
    match read {
        Some(number) if number <= most => Ok(number),
        _ => {
            let text = text.into();
            Err(Defect::Number { text, most })
        }
    }
}

/// Reads a number, and a mask behind `/`.
fn masked(text: &str, most: u64) -> Result<Bits, Defect> {
    let (value, mask) = text.split_once('/').unwrap_or((text, ""));
    let mask = match mask {
        "" => most,
        mask => number(mask, most)?,
    };
    Ok(Bits::new(number(value, most)?.into(), mask.into()))
}

/// Reads an IP address, and a prefix length or a mask behind `/`; returns whether it is IPv6.
fn address(text: &str) -> Result<(bool, Bits), Defect> {
    let (address, mask) = text.split_once('/').unwrap_or((text, ""));
    let bits = |text: &str| -> Option<(bool, u128)> {
        match text.parse::<IpAddr>().ok()? {
            IpAddr::V4(address) => Some((false, address.to_bits().into())),
            IpAddr::V6(address) => Some((true, address.to_bits())),
        }
    };
    let wrong = || Defect::Address(text.into());
    let (six, value) = bits(address).ok_or_else(wrong)?;
    let (width, all) = match six {
        true => (128_u32, u128::MAX),
        false => (32, u32::MAX.into()),
    };
    let mask = match (mask, bits(mask)) {
        ("", _) => all,
        (_, Some((kind, mask))) if kind == six => mask,
        (digits, _) => {
            let length = number(digits, width.into()).map_err(|_| wrong())? as u32;
            // A shift by all bits is none.
            all & !all.checked_shr(length).unwrap_or(0)
        }
    };
    Ok((six, Bits::new(value, mask)))
}

/// Reads an Ethernet address, and a mask behind `/`.
fn station(text: &str) -> Result<Bits, Defect> {
    let read = |text: &str| -> Option<u128> {
        let mut parts = text.split(':');
        let mut address = 0;
        for _ in 0..6 {
            let part = parts.next().filter(|part| matches!(part.len(), 1 | 2))?;
            let is_hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
            address = address << 8 | u128::from_str_radix(part, 16).ok().filter(|_| is_hex)?;
        }
        parts.next().is_none().then_some(address)
    };
    let (address, mask) = text.split_once('/').unwrap_or((text, "ff:ff:ff:ff:ff:ff"));
    match (read(address), read(mask)) {
        (Some(address), Some(mask)) => Ok(Bits::new(address, mask)),
        _ => Err(Defect::EthernetAddress(text.into())),
    }
}

/// Reads a rule of ClassBench's.
fn class_bench(line: usize, text: &str) -> Result<Rule, Defect> {
    let Some(text) = text.strip_prefix('@') else {
        return Err(Defect::NoAtSign(text.into()));
    };
    let mut rule = Rule::any(line);
    let mut words = text.split_whitespace();
    let mut prefix = |name| address(words.next().ok_or(Defect::AddressMissing(name))?);
    let (src, dst) = (prefix("source")?, prefix("destination")?);
    (rule.src, rule.dst) = (src.1, dst.1);
    rule.set_six(src.0)?;
    rule.set_six(dst.0)?;
    // Ranges may have spaces around their colons.
    let rest = words.collect::<Vec<_>>().join(" ").replace(':', " ");
    let mut words = rest.split_whitespace();
    let mut range = |name| -> Result<Ports, Defect> {
        let mut port = || {
            let word = words.next().ok_or(Defect::RangeMissing(name))?;
            number(word, u16::MAX.into()).map_err(|defect| defect.of(name))
        };
        match (port()?, port()?) {
            (low, high) if low <= high => Ok(Ports::Range(low as u16, high as u16)),
            (low, high) => Err(Defect::EmptyRange { name, low, high }),
        }
    };
    (rule.port_src, rule.port_dst) = (range("source ports")?, range("destination ports")?);
    let protocol = words.next().ok_or(Defect::ProtocolMissing)?;
    rule.protocol = masked(protocol, 0xff).map_err(|defect| defect.of("protocol"))?;
    if let Some(flags) = words.next() {
        let flags = masked(flags, 0xffff).map_err(|defect| defect.of("flags"))?;
        let swapped = |bits: u128| u128::from((bits as u16).swap_bytes());
        if rule.may_be(TCP) {
            if swapped(flags.mask) > 0xff {
                return Err(Defect::Flags(flags.mask));
            }
            rule.flags = Bits::new(swapped(flags.value), swapped(flags.mask));
        }
    }
    match words.next() {
        None => Ok(rule),
        Some(word) => Err(Defect::BehindFlags(word.into())),
    }
}

/// What rules' lines have that is no match.
const NO_MATCH: [&str; 16] = [
    "cookie",
    "duration",
    "n_packets",
    "n_bytes",
    "idle_timeout",
    "hard_timeout",
    "idle_age",
    "hard_age",
    "priority",
    "importance",
    "send_flow_rem",
    "check_overlap",
    "reset_counts",
    "no_packet_counts",
    "no_byte_counts",
    "add",
];

/// Reads a rule of Open vSwitch's; None if the line is the head of a dump, or a rule of another
/// table.
fn open_flow(line: usize, text: &str) -> Result<Option<Rule>, Defect> {
    if text.starts_with("NXST_FLOW reply") || text.starts_with("OFPST_FLOW reply") {
        return Ok(None);
    }
    let mut rule = Rule::any(line);
    let mut has_actions = false;
    let mut rest = text;
    // Words are apart by commas and spaces, and what follows `actions=` is no match.
    while !rest.is_empty() {
        let end = rest.find([',', ' ', '\t']).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        if word.starts_with("actions=") || word.starts_with("action=") || word == "drop" {
            has_actions = true;
            break;
        }
        rest = behind.trim_start_matches([',', ' ', '\t']);
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        if name.is_empty() && value.is_none() || NO_MATCH.contains(&name) {
            continue;
        }
        if name == "table" {
            let table = number(value.unwrap_or(""), 255);
            if table.map_err(|defect| defect.of("table"))? != 0 {
                return Ok(None);
            }
            continue;
        }
        let known = match value {
            None => keyword(&mut rule, name),
            Some(value) => condition(&mut rule, name, value),
        };
        if !known.map_err(|defect| defect.of(name))? {
            return Err(Defect::Match(word.into()));
        }
    }
    match has_actions {
        true => Ok(Some(rule)),
        false => Err(Defect::NoActions(text.into())),
    }
}

/// Notes a match that is a word. Returns false if there is no such word.
fn keyword(rule: &mut Rule, name: &str) -> Result<bool, Defect> {
    let (six, protocol) = match name {
        "ip" => (false, None),
        "icmp" => (false, Some(ICMP)),
        "tcp" => (false, Some(TCP)),
        "udp" => (false, Some(UDP)),
        "ipv6" => (true, None),
        "icmp6" | "icmpv6" => (true, Some(ICMP6)),
        "tcp6" => (true, Some(TCP)),
        "udp6" => (true, Some(UDP)),
        _ => return Ok(false),
    };
    rule.set_six(six)?;
    if let Some(protocol) = protocol {
        rule.set_protocol(protocol)?;
    }
    Ok(true)
}

/// Notes a match that has a value. Returns false if there is no such match.
fn condition(rule: &mut Rule, name: &str, value: &str) -> Result<bool, Defect> {
    let port = |value: &str| masked(value, 0xffff).map(Ports::Bits);
    let of_protocol = |rule: &mut Rule, protocol: u8| match rule.protocol.is_any() {
        true => rule.set_protocol(protocol),
        false if rule.may_be(protocol) => Ok(()),
        false => Err(Defect::OtherProtocol(rule.protocol.value)),
    };
    match name {
        "in_port" => rule.in_port = Some(value.trim_matches('"').to_owned()),
        "dl_src" | "eth_src" => rule.eth_src = station(value)?,
        "dl_dst" | "eth_dst" => rule.eth_dst = station(value)?,
        "dl_vlan" => {
            rule.vlan = match number(value, 0xffff)? {
                0xffff => Vlan::Untagged,
                id @ 0..4096 => Vlan::Id(id as u16),
                id => return Err(Defect::VlanId(id)),
            }
        }
        "dl_type" | "eth_type" => match number(value, 0xffff)? {
            0x0800 => rule.set_six(false)?,
            0x86dd => rule.set_six(true)?,
            _ => return Ok(false),
        },
        "nw_src" | "ip_src" | "nw_dst" | "ip_dst" | "ipv6_src" | "ipv6_dst" => {
            let (six, bits) = address(value)?;
            if six != name.starts_with("ipv6") {
                return Err(Defect::OtherFamily(value.into()));
            }
            rule.set_six(six)?;
            match name.ends_with("src") {
                true => rule.src = bits,
                false => rule.dst = bits,
            }
        }
        "nw_proto" | "ip_proto" => rule.set_protocol(number(value, 0xff)? as u8)?,
        "nw_tos" => match number(value, 0xff)? {
            tos if tos & 3 == 0 => rule.tos = Bits::new(tos.into(), 0xfc),
            tos => return Err(Defect::EcnBits(tos)),
        },
        "ip_dscp" => rule.tos = Bits::new(u128::from(number(value, 63)?) << 2, 0xfc),
        "tp_src" => rule.port_src = port(value)?,
        "tp_dst" => rule.port_dst = port(value)?,
        "udp_src" | "udp_dst" | "tcp_src" | "tcp_dst" => {
            of_protocol(rule, if name.starts_with("udp") { UDP } else { TCP })?;
            match name.ends_with("src") {
                true => rule.port_src = port(value)?,
                false => rule.port_dst = port(value)?,
            }
        }
        "icmp_type" | "icmp_code" | "icmpv6_type" | "icmpv6_code" => {
            let six = name.starts_with("icmpv6") || rule.six == Some(true);
            rule.set_six(six)?;
            of_protocol(rule, if six { ICMP6 } else { ICMP })?;
            let bits = Bits::new(number(value, 0xff)?.into(), 0xffff);
            match name.ends_with("type") {
                true => rule.port_src = Ports::Bits(bits),
                false => rule.port_dst = Ports::Bits(bits),
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}
