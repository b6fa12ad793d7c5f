//! What leaves, as Open vSwitch's datapath actions:
//! `set(ipv4(dst=1.2.3.4)),push_vlan(vid=5,pcp=0),2`.
//!
//! Changes are written when the packet leaves, as the difference from what was written before, just
//! as Open vSwitch combines them.

use packet::key::at;
use packet::{FlowKey, WordSet, parse};
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A packet's headers and marks at one moment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Headers {
    /// Tags, the outermost first: TPID and TCI.
    tags: Vec<(u16, u16)>,
    /// All other headers and the marks.
    key: FlowKey,
}

fn is_tag(eth_type: u16) -> bool {
    matches!(eth_type, 0x8100 | 0x88a8)
}

impl Headers {
    /// Takes the headers of a frame, and the marks of a key.
    pub fn of(frame: &[u8], marks: &FlowKey) -> Headers {
        let mut bytes = frame.to_vec();
        let mut tags = Vec::new();
        let word =
            |bytes: &[u8], place: usize| u16::from_be_bytes([bytes[place], bytes[place + 1]]);
        while bytes.len() >= 18 && is_tag(word(&bytes, 12)) {
            tags.push((word(&bytes, 12), word(&bytes, 14)));
            bytes.drain(12..16);
        }
        let mut key = FlowKey::ZERO;
        parse::parse(&bytes, bytes.len(), 0, WordSet(u64::MAX), &mut key);
        for mark in [at::PKT_MARK, at::SKB_PRIORITY] {
            key.set_u32(mark, marks.u32(mark));
        }
        Headers { tags, key }
    }
}

/// The list of actions written so far.
pub(super) struct Actions {
    written: Headers,
    /// The halves of the ToS byte that have been changed.
    tos: u8,
    pub list: Vec<String>,
}

fn ethernet(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(":")
}

/// Returns the lowest 128 bits of the big-endian number in `bytes`.
fn number(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn ipv4(bytes: &[u8]) -> String {
    Ipv4Addr::from(number(bytes) as u32).to_string()
}

fn ipv6(bytes: &[u8]) -> String {
    Ipv6Addr::from(number(bytes)).to_string()
}

fn decimal(bytes: &[u8]) -> String {
    number(bytes).to_string()
}

fn hexadecimal(bytes: &[u8]) -> String {
    match number(bytes) {
        0 => "0".into(),
        number => format!("{number:#x}"),
    }
}

/// Name, offset in the key, length in bytes, and format of a part.
type Part = (&'static str, usize, usize, fn(&[u8]) -> String);

const ETHERNET: &[Part] = &[
    ("src", at::ETH_SRC, 6, ethernet),
    ("dst", at::ETH_DST, 6, ethernet),
];
const IPV4: &[Part] = &[
    ("src", at::IPV4_SRC, 4, ipv4),
    ("dst", at::IPV4_DST, 4, ipv4),
    ("tos", at::IP_TOS, 1, hexadecimal),
    ("ttl", at::IP_TTL, 1, decimal),
];
const IPV6: &[Part] = &[
    ("src", at::IPV6_SRC, 16, ipv6),
    ("dst", at::IPV6_DST, 16, ipv6),
    ("label", at::IPV6_LABEL, 4, hexadecimal),
    ("tclass", at::IP_TOS, 1, hexadecimal),
    ("hlimit", at::IP_TTL, 1, decimal),
];
const ARP: &[Part] = &[
    ("sip", at::IPV4_SRC, 4, ipv4),
    ("tip", at::IPV4_DST, 4, ipv4),
    ("op", at::IP_PROTO, 1, decimal),
    ("sha", at::ARP_SHA, 6, ethernet),
    ("tha", at::ARP_THA, 6, ethernet),
];
const PORTS: &[Part] = &[
    ("src", at::TP_SRC, 2, decimal),
    ("dst", at::TP_DST, 2, decimal),
];
const ICMP: &[Part] = &[
    ("type", at::TP_SRC, 2, decimal),
    ("code", at::TP_DST, 2, decimal),
];
const ND: &[Part] = &[
    ("target", at::ND_TARGET, 16, ipv6),
    ("sll", at::ARP_SHA, 6, ethernet),
    ("tll", at::ARP_THA, 6, ethernet),
];

impl Actions {
    /// Starts an empty list for a packet received with these headers.
    pub fn new(received: Headers) -> Actions {
        Actions {
            written: received,
            tos: 0,
            list: Vec::new(),
        }
    }

    /// Returns the headers as the actions so far leave them.
    pub fn written(&self) -> &Headers {
        &self.written
    }

    /// Returns the present state, for [`Actions::enclose`].
    pub fn checkpoint(&self) -> (Headers, usize) {
        (self.written.clone(), self.list.len())
    }

    /// Has all actions since then work on a copy.
    pub fn enclose(&mut self, (written, length): (Headers, usize)) {
        let inside = self.list.split_off(length);
        if !inside.is_empty() {
            self.list.push(format!("clone({})", inside.join(",")));
        }
        self.written = written;
    }

    /// Goes back to headers that the packet had before.
    pub fn start_from(&mut self, before: Headers) {
        self.written = before;
    }

    /// Writes the actions that turn the packet into `now`.
    pub fn commit(&mut self, now: &Headers) {
        if self.written == *now {
            return;
        }
        self.set("eth", ETHERNET, now);
        let stripped = !is_mpls(&now.key) && is_mpls(&self.written.key);
        if stripped {
            self.mpls(now);
        }
        if now.key.u16(at::ETH_TYPE) == self.written.key.u16(at::ETH_TYPE) {
            self.network(now);
        }
        if !stripped {
            self.mpls(now);
        }
        self.tags(now);
        for (offset, name) in [
            (at::SKB_PRIORITY, "skb_priority"),
            (at::PKT_MARK, "skb_mark"),
        ] {
            let mark = now.key.u32(offset);
            if mark != self.written.key.u32(offset) {
                self.list
                    .push(format!("set({name}({}))", hexadecimal(&mark.to_be_bytes())));
            }
        }
        self.written = now.clone();
    }

    fn network(&mut self, now: &Headers) {
        let (eth_type, protocol) = (now.key.u16(at::ETH_TYPE), now.key.u8(at::IP_PROTO));
        match eth_type {
            0x0800 => self.set("ipv4", IPV4, now),
            0x86dd => self.set("ipv6", IPV6, now),
            0x0806 | 0x8035 => return self.set("arp", ARP, now),
            _ => return,
        }
        match (eth_type, protocol) {
            (_, 6) => self.set("tcp", PORTS, now),
            (_, 17) => self.set("udp", PORTS, now),
            (_, 132) => self.set("sctp", PORTS, now),
            (0x0800, 1) => self.set("icmp", ICMP, now),
            (0x86dd, 58) => {
                self.set("icmpv6", ICMP, now);
                self.set("nd", ND, now);
            }
            _ => {}
        }
    }

    fn set(&mut self, name: &str, parts: &[Part], now: &Headers) {
        let mut inside = Vec::new();
        for (part, offset, bytes, write) in parts {
            let range = *offset..offset + bytes;
            let (old, new) = (
                &self.written.key.bytes()[range.clone()],
                &now.key.bytes()[range.clone()],
            );
            if old == new {
                continue;
            }
            let mut text = format!("{part}={}", write(new));
            // DSCP and ECN share a byte, but are changed separately.
            if *offset == at::IP_TOS {
                let differ = old[0] ^ new[0];
                for half in [0xfc, 0x03] {
                    self.tos |= if differ & half != 0 { half } else { 0 };
                }
                if self.tos != 0xff {
                    let _ = write!(text, "/{:#x}", self.tos);
                }
            }
            inside.push(text);
        }
        if !inside.is_empty() {
            self.list.push(format!("set({name}({}))", inside.join(",")));
        }
    }

    /// Writes changes of MPLS labels: removed ones, a changed outermost one, new ones.
    fn mpls(&mut self, now: &Headers) {
        let (old, new) = (labels(&self.written.key), labels(&now.key));
        let kept = old
            .iter()
            .rev()
            .zip(new.iter().rev())
            .take_while(|(old, new)| old == new)
            .count();
        let eth_type = now.key.u16(at::ETH_TYPE);
        if old.len() == new.len() {
            if let (true, Some(entry)) = (kept < old.len(), new.first()) {
                self.list.push(format!("set(mpls({}))", label(*entry)));
            }
            return;
        }
        let outer = self.written.key.u16(at::ETH_TYPE);
        for left in (new.len()..old.len()).rev() {
            // Below every removed label but the last is another label.
            let eth_type = if left > new.len() { outer } else { eth_type };
            self.list.push(format!("pop_mpls(eth_type=0x{eth_type:x})"));
        }
        for entry in new[..new.len().saturating_sub(old.len())].iter().rev() {
            self.list.push(format!(
                "push_mpls({},eth_type=0x{eth_type:x})",
                label(*entry)
            ));
        }
    }

    fn tags(&mut self, now: &Headers) {
        let (old, new) = (&self.written.tags, &now.tags);
        let kept = old
            .iter()
            .rev()
            .zip(new.iter().rev())
            .take_while(|(old, new)| old == new)
            .count();
        for _ in kept..old.len() {
            self.list.push("pop_vlan".into());
        }
        for (tpid, tci) in new[..new.len() - kept].iter().rev() {
            let tpid = match tpid {
                0x8100 => String::new(),
                tpid => format!("tpid=0x{tpid:04x},"),
            };
            self.list.push(format!(
                "push_vlan({tpid}vid={},pcp={})",
                tci & 0xfff,
                tci >> 13
            ));
        }
    }
}

fn is_mpls(key: &FlowKey) -> bool {
    matches!(key.u16(at::ETH_TYPE), 0x8847 | 0x8848)
}

fn labels(key: &FlowKey) -> Vec<u32> {
    let depth = if is_mpls(key) {
        usize::from(key.u8(at::MPLS_DEPTH)).min(3)
    } else {
        0
    };
    [at::MPLS_LSE, at::MPLS_LSE1, at::MPLS_LSE2][..depth]
        .iter()
        .map(|offset| key.u32(*offset))
        .collect()
}

fn label(entry: u32) -> String {
    format!(
        "label={},tc={},ttl={},bos={}",
        entry >> 12,
        entry >> 9 & 7,
        entry & 0xff,
        entry >> 8 & 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(tags: &[u16], tos: u8, ttl: u8, port: u16) -> Headers {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        for tci in tags {
            frame.extend([0x81, 0]);
            frame.extend(tci.to_be_bytes());
        }
        frame.extend([8, 0, 0x45, tos, 0, 28, 0, 0, 0, 0, ttl, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 1]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
        Headers::of(&frame, &FlowKey::ZERO)
    }

    fn written(states: &[Headers]) -> String {
        let mut actions = Actions::new(states[0].clone());
        for (number, state) in states.iter().enumerate().skip(1) {
            actions.commit(state);
            actions.list.push(number.to_string());
        }
        actions.list.join(",")
    }

    #[test]
    fn changes_are_written_once_and_taken_back() {
        let plain = udp(&[], 0, 64, 7);
        assert_eq!(written(&[plain.clone(), plain.clone()]), "1");
        assert_eq!(
            written(&[plain.clone(), udp(&[0x6005], 0, 64, 7), plain.clone()]),
            "push_vlan(vid=5,pcp=3),1,pop_vlan,2"
        );
        assert_eq!(
            written(&[plain.clone(), udp(&[], 0x20, 7, 7), udp(&[], 0x21, 7, 7)]),
            "set(ipv4(tos=0x20/0xfc,ttl=7)),1,set(ipv4(tos=0x21)),2"
        );
        assert_eq!(
            written(&[udp(&[5], 0, 64, 7), udp(&[6], 0, 64, 9)]),
            "set(udp(dst=9)),pop_vlan,push_vlan(vid=6,pcp=0),1"
        );
        assert_eq!(
            written(&[udp(&[9, 5], 0, 64, 7), udp(&[5], 0, 64, 7)]),
            "pop_vlan,1"
        );
    }
}
