//! Reads datapath flows as text (`eth(src=...),eth_type(0x0800),ipv4(...)`), as far as they
//! describe a packet.
//!
//! Open vSwitch's tests and scripts describe the packets that they inject into dummy ports in this
//! form. Metadata (`in_port`, `recirc_id`, marks) is skipped: a received packet has none.

use std::net::{Ipv4Addr, Ipv6Addr};

/// TPID of a VLAN tag for which the flow gives no Ethertype.
const VLAN: u16 = 0x8100;
/// Deepest nesting of `encap(...)` that is read; a frame has two tags at most.
const DEPTH: usize = 3;
/// Metadata, which a received packet does not have.
const METADATA: [&str; 11] = [
    "in_port",
    "recirc_id",
    "skb_priority",
    "skb_mark",
    "ct_state",
    "ct_zone",
    "ct_mark",
    "ct_label",
    "dp_hash",
    "packet_type",
    "tunnel",
];

/// Description of a packet to be made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Flow {
    /// Ethernet addresses.
    pub src: [u8; 6],
    pub dst: [u8; 6],
    /// VLAN tags, the outer first: TPID and TCI.
    pub tags: Vec<(u16, u16)>,
    /// None for an 802.2 frame, which has a length in place of an Ethertype.
    pub eth_type: Option<u16>,
    pub network: Network,
    pub transport: Transport,
    pub tcp_flags: u16,
    pub neighbour: Option<Neighbour>,
}

/// The network header.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Network {
    #[default]
    None,
    Ipv4 {
        src: Ipv4Addr,
        dst: Ipv4Addr,
        protocol: u8,
        tos: u8,
        ttl: u8,
        fragment: Fragment,
    },
    Ipv6 {
        src: Ipv6Addr,
        dst: Ipv6Addr,
        label: u32,
        protocol: u8,
        class: u8,
        hop_limit: u8,
        fragment: Fragment,
    },
    Arp {
        spa: Ipv4Addr,
        tpa: Ipv4Addr,
        operation: u16,
        sha: [u8; 6],
        tha: [u8; 6],
    },
    /// An MPLS label stack entry.
    Mpls(u32),
}

/// Which fragment of an IP packet it is, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Fragment {
    #[default]
    No,
    First,
    Later,
}

/// Transport ports, or ICMP type and code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Transport {
    pub src: u16,
    pub dst: u16,
}

/// Fields of a neighbour discovery message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Neighbour {
    pub target: Ipv6Addr,
    pub sll: [u8; 6],
    pub tll: [u8; 6],
    /// Whether addresses that are zero get an option, too.
    pub with_options: bool,
}

/// Reads an Ethernet address, `00:11:22:33:44:55`.
pub(super) fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts
            .next()
            .filter(|part| (1..=2).contains(&part.len()) && !part.starts_with('+'))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

/// Reads a number as C does: decimal, 0x for hexadecimal.
pub(super) fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

impl Flow {
    /// Reads a flow. The error is Open vSwitch's, with the attribute that was not understood.
    pub fn parse(text: &str) -> Result<Flow, String> {
        let mut flow = Flow::default();
        flow.read(text, 0)
            .map_err(|rest| format!("syntax error at {rest}"))?;
        Ok(flow)
    }

    fn read<'t>(&mut self, text: &'t str, depth: usize) -> Result<(), &'t str> {
        let mut rest = text;
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t', '\n']);
            if rest.is_empty() {
                return Ok(());
            }
            let (name, inside, after) = attribute(rest).ok_or(rest)?;
            if name == "encap" && depth < DEPTH {
                self.read(inside, depth + 1)?;
            } else {
                self.set(name, inside).ok_or(rest)?;
            }
            rest = after;
        }
    }

    fn set(&mut self, name: &str, inside: &str) -> Option<()> {
        match name {
            "eth" => {
                let pairs = Pairs::of(inside, &["src", "dst"])?;
                self.src = pairs.mac("src")?;
                self.dst = pairs.mac("dst")?;
            }
            "eth_type" => {
                let eth_type = narrow(number(unmasked(inside))?)?;
                // In front of a tag this is the tag's TPID.
                self.eth_type = Some(eth_type);
            }
            "vlan" => {
                let pairs = Pairs::of(inside, &["vid", "pcp", "cfi", "tci"])?;
                let (vid, pcp) = (pairs.number("vid")? & 0xfff, pairs.number("pcp")? & 7);
                self.tags.push((
                    self.eth_type.take().unwrap_or(VLAN),
                    (pcp << 13 | vid) as u16,
                ));
            }
            "ipv4" | "ipv6" | "arp" | "mpls" => self.network = network(name, inside)?,
            "tcp" | "udp" | "sctp" => {
                let pairs = Pairs::of(inside, &["src", "dst"])?;
                self.transport = Transport {
                    src: narrow(pairs.number("src")?)?,
                    dst: narrow(pairs.number("dst")?)?,
                };
            }
            "icmp" | "icmpv6" => {
                let pairs = Pairs::of(inside, &["type", "code"])?;
                let byte = |name| u8::try_from(pairs.number(name)?).ok().map(u16::from);
                self.transport = Transport {
                    src: byte("type")?,
                    dst: byte("code")?,
                };
            }
            "tcp_flags" => self.tcp_flags = tcp_flags(inside)?,
            "nd" => {
                let pairs = Pairs::of(inside, &["target", "sll", "tll"])?;
                self.neighbour = Some(Neighbour {
                    target: pairs.ipv6("target")?,
                    sll: pairs.mac("sll")?,
                    tll: pairs.mac("tll")?,
                    with_options: false,
                });
            }
            name if METADATA.contains(&name) => {}
            _ => return None,
        }
        Some(())
    }
}

/// Splits `name(inside)` off the beginning of a text; the third part is the rest.
fn attribute(text: &str) -> Option<(&str, &str, &str)> {
    let open = text.find('(')?;
    let name = &text[..open];
    if name.is_empty()
        || !name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    {
        return None;
    }
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return Some((name, &text[open + 1..at], &text[at + 1..])),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn unmasked(value: &str) -> &str {
    value.split('/').next().unwrap_or(value)
}

fn narrow(number: u64) -> Option<u16> {
    u16::try_from(number).ok()
}

/// `name=value` pairs; values that are not given are zero.
struct Pairs<'t>(Vec<(&'t str, &'t str)>);

impl<'t> Pairs<'t> {
    /// Returns none when a name is unknown or given twice.
    fn of(text: &'t str, known: &[&str]) -> Option<Pairs<'t>> {
        let mut pairs = Pairs(Vec::new());
        for word in text.split(',').filter(|word| !word.trim().is_empty()) {
            let (name, value) = word.trim().split_once('=')?;
            if !known.contains(&name) || pairs.0.iter().any(|(given, _)| *given == name) {
                return None;
            }
            pairs.0.push((name, unmasked(value)));
        }
        Some(pairs)
    }

    /// Returns the value of a name, read by `read`; `absent` when it is not given.
    fn read<T>(&self, name: &str, absent: T, read: impl Fn(&str) -> Option<T>) -> Option<T> {
        match self.0.iter().find(|(given, _)| *given == name) {
            Some((_, value)) => read(value),
            None => Some(absent),
        }
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.read(name, 0, number)
    }

    fn byte(&self, name: &str) -> Option<u8> {
        u8::try_from(self.number(name)?).ok()
    }

    fn mac(&self, name: &str) -> Option<[u8; 6]> {
        self.read(name, [0; 6], mac)
    }

    fn ipv4(&self, name: &str) -> Option<Ipv4Addr> {
        self.read(name, Ipv4Addr::UNSPECIFIED, |text| text.parse().ok())
    }

    fn ipv6(&self, name: &str) -> Option<Ipv6Addr> {
        self.read(name, Ipv6Addr::UNSPECIFIED, |text| text.parse().ok())
    }

    fn fragment(&self) -> Option<Fragment> {
        self.read("frag", Fragment::No, |text| match text {
            "no" => Some(Fragment::No),
            "first" => Some(Fragment::First),
            "later" => Some(Fragment::Later),
            _ => None,
        })
    }
}

fn network(name: &str, inside: &str) -> Option<Network> {
    Some(match name {
        "ipv4" => {
            let pairs = Pairs::of(inside, &["src", "dst", "proto", "tos", "ttl", "frag"])?;
            Network::Ipv4 {
                src: pairs.ipv4("src")?,
                dst: pairs.ipv4("dst")?,
                protocol: pairs.byte("proto")?,
                tos: pairs.byte("tos")?,
                ttl: pairs.byte("ttl")?,
                fragment: pairs.fragment()?,
            }
        }
        "ipv6" => {
            let pairs = Pairs::of(
                inside,
                &["src", "dst", "label", "proto", "tclass", "hlimit", "frag"],
            )?;
            Network::Ipv6 {
                src: pairs.ipv6("src")?,
                dst: pairs.ipv6("dst")?,
                label: u32::try_from(pairs.number("label")?)
                    .ok()
                    .filter(|label| *label < 1 << 20)?,
                protocol: pairs.byte("proto")?,
                class: pairs.byte("tclass")?,
                hop_limit: pairs.byte("hlimit")?,
                fragment: pairs.fragment()?,
            }
        }
        "arp" => {
            let pairs = Pairs::of(inside, &["sip", "tip", "op", "sha", "tha"])?;
            Network::Arp {
                spa: pairs.ipv4("sip")?,
                tpa: pairs.ipv4("tip")?,
                operation: narrow(pairs.number("op")?)?,
                sha: pairs.mac("sha")?,
                tha: pairs.mac("tha")?,
            }
        }
        _ => {
            let pairs = Pairs::of(inside, &["label", "tc", "ttl", "bos"])?;
            let label = pairs.number("label")?;
            let (class, bottom) = (pairs.number("tc")?, pairs.number("bos")?);
            let fits = label < 1 << 20 && class < 8 && bottom < 2;
            let entry = (label as u32) << 12
                | (class as u32) << 9
                | (bottom as u32) << 8
                | u32::from(pairs.byte("ttl")?);
            return fits.then_some(Network::Mpls(entry));
        }
    })
}

/// Reads TCP flags, by name (`syn|ack`, `+syn-ack`) or as a number.
fn tcp_flags(text: &str) -> Option<u16> {
    const NAMES: [&str; 9] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns"];
    let text = unmasked(text.trim());
    if let Some(flags) = number(text) {
        return narrow(flags).filter(|flags| *flags < 0x1000);
    }
    let mut flags = 0;
    for (at, word) in text.split_inclusive(['|', '+', '-']).enumerate() {
        let name = word.trim_end_matches(['|', '+', '-']);
        if name.is_empty() && at == 0 {
            continue;
        }
        // The sign in front of this name is the last character of the word before.
        let start = word.as_ptr() as usize - text.as_ptr() as usize;
        let cleared = start > 0 && text.as_bytes()[start - 1] == b'-';
        let bit = NAMES.iter().position(|known| *known == name)?;
        if !cleared {
            flags |= 1 << bit;
        }
    }
    Some(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_take_the_type_in_front_of_them() {
        let flow = Flow::parse(
            "eth(src=0:1:2:3:4:5,dst=6:7:8:9:a:b),eth_type(0x88a8),vlan(vid=10,pcp=3),encap(eth_type(0x8100),vlan(vid=11,pcp=0),encap(eth_type(0x88cc)))",
        );
        let flow = flow.unwrap();
        assert_eq!(flow.tags, [(0x88a8, 0x600a), (0x8100, 11)]);
        assert_eq!(flow.eth_type, Some(0x88cc));
        assert_eq!(
            (flow.src, flow.dst),
            ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11])
        );
    }

    #[test]
    fn syntax_errors_show_the_rest_of_the_text() {
        let error = |text| Flow::parse(text).unwrap_err();
        assert_eq!(error("zz"), "syntax error at zz");
        assert_eq!(
            error("in_port(1),udp(src=1,dst=x)"),
            "syntax error at udp(src=1,dst=x)"
        );
        assert_eq!(error("eth(),foo(3)"), "syntax error at foo(3)");
        assert_eq!(error("eth_type(0x0800"), "syntax error at eth_type(0x0800");
        assert_eq!(error("ipv4(src=1.2.3)"), "syntax error at ipv4(src=1.2.3)");
        assert_eq!(
            error("mpls(label=1048576)"),
            "syntax error at mpls(label=1048576)"
        );
        assert_eq!(
            error("mpls(label=1,label=2)"),
            "syntax error at mpls(label=1,label=2)"
        );
        let deep = "encap(".repeat(10_000) + &")".repeat(10_000);
        assert!(Flow::parse(&deep).is_err());
    }

    #[test]
    fn flags_have_names_or_numbers() {
        assert_eq!(tcp_flags("syn|ack"), Some(0x12));
        assert_eq!(tcp_flags("+syn-ack"), Some(0x02));
        assert_eq!(tcp_flags("-syn+ack"), Some(0x10));
        assert_eq!(tcp_flags("0x014"), Some(0x14));
        assert_eq!(tcp_flags("nonsense"), None);
        assert_eq!(tcp_flags("0x1000"), None);
    }
}
