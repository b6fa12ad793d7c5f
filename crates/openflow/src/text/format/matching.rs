//! Formats the left side of a rule.

use super::{add, ethernet, hexadecimal, ipv4, ipv6, long_hexadecimal, masked_address, ones, port};
use crate::model::port::PortNo;
use packet::{Field, Match};

/// The default priority, which is not printed.
pub const DEFAULT_PRIORITY: u32 = 32768;

/// Bit of a match's TCI that says there is a tag.
const PRESENT: u128 = 0x1000;

const ETHERTYPE_IPV4: u128 = 0x0800;
const ETHERTYPE_IPV6: u128 = 0x86dd;
const ETHERTYPE_ARP: u128 = 0x0806;
const ETHERTYPE_RARP: u128 = 0x8035;
const TCP: u128 = 6;

/// Writes a priority and a match as `priority=5,tcp,nw_dst=10.0.0.0/8,tp_dst=80`; nothing for the
/// default priority or a match of everything.
pub fn matching(out: &mut String, matching: &Match, priority: u32) {
    let start = out.len();
    if priority != DEFAULT_PRIORITY {
        add(out, format_args!("priority={priority},"));
    }
    let mut writer = Writer { out, matching };
    writer.metadata();
    let kind = writer.protocol();
    writer.registers();
    writer.place();
    writer.layers(&kind);
    writer.transport(&kind);
    if out.len() > start && out.ends_with(',') {
        out.pop();
    }
}

struct Writer<'a> {
    out: &'a mut String,
    matching: &'a Match,
}

/// The protocols that a match names, and which of them have been written as one word (`tcp`).
struct Protocols {
    eth_type: u128,
    protocol: u128,
    type_said: bool,
    protocol_said: bool,
}

impl Protocols {
    fn is_arp(&self) -> bool {
        matches!(self.eth_type, ETHERTYPE_ARP | ETHERTYPE_RARP)
    }
}

impl Writer<'_> {
    /// Returns a field's value and mask as numbers.
    fn get(&self, field: Field) -> (u128, u128) {
        let def = field.def();
        if def.words().0 & self.matching.word_set().0 == 0 {
            return (0, 0);
        }
        let (value, mask) = self.matching.get(field);
        (value.to_u128() >> def.shift, mask.to_u128() >> def.shift)
    }

    fn has(&self, field: Field) -> bool {
        self.get(field).1 != 0
    }

    fn named(&mut self, name: &str) {
        add(self.out, format_args!("{name}="));
    }

    fn hexadecimal(&mut self, name: &str, field: Field) {
        let (value, mask) = self.get(field);
        if mask == 0 {
            return;
        }
        self.named(name);
        hexadecimal(self.out, value);
        if mask != ones(field.def().bits) {
            self.out.push('/');
            hexadecimal(self.out, mask);
        }
        self.out.push(',');
    }

    /// Writes a port: decimal if it is exact, hexadecimal with a mask.
    fn decimal(&mut self, name: &str, field: Field) {
        let (value, mask) = self.get(field);
        if mask == ones(field.def().bits) {
            add(self.out, format_args!("{name}={value},"));
        } else if mask != 0 {
            add(self.out, format_args!("{name}=0x{value:x}/0x{mask:x},"));
        }
    }

    fn port(&mut self, name: &str, field: Field) {
        let (value, mask) = self.get(field);
        if mask != 0 {
            self.named(name);
            port(self.out, value as PortNo);
            self.out.push(',');
        }
    }

    fn ethernet(&mut self, name: &str, field: Field) {
        let (value, mask) = self.get(field);
        if mask == 0 {
            return;
        }
        self.named(name);
        ethernet(self.out, value);
        if mask != ones(48) {
            self.out.push('/');
            ethernet(self.out, mask);
        }
        self.out.push(',');
    }

    fn address(&mut self, name: &str, field: Field) {
        let (value, mask) = self.get(field);
        if mask == 0 {
            return;
        }
        self.named(name);
        match field.def().bits {
            32 => masked_address(self.out, value, mask, 32, ipv4),
            _ => masked_address(self.out, value, mask, 128, ipv6),
        }
        self.out.push(',');
    }

    /// Writes flags by name: those that are set (`a|b`) if all of the field's `width` bits are
    /// matched, otherwise which must be set and which must not (`+a-b`). Bits without a name are
    /// left out.
    fn flags(&mut self, name: &str, field: Field, names: &[&str], width: usize) {
        let (value, mask) = self.get(field);
        let mask = mask & ones(names.len());
        if mask == 0 {
            return;
        }
        self.named(name);
        let all = names.iter().enumerate();
        if mask == ones(width) {
            let set: Vec<&str> = all
                .filter(|(bit, _)| value >> bit & 1 == 1)
                .map(|(_, name)| *name)
                .collect();
            self.out.push_str(if set.is_empty() { "0" } else { "" });
            self.out.push_str(&set.join("|"));
        } else {
            for (bit, name) in all.filter(|(bit, _)| mask >> bit & 1 == 1) {
                self.out.push(if value >> bit & 1 == 1 { '+' } else { '-' });
                self.out.push_str(name);
            }
        }
        self.out.push(',');
    }

    /// Writes metadata, which is not part of the packet.
    fn metadata(&mut self) {
        const STATES: [&str; 8] = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];
        self.hexadecimal("pkt_mark", Field::PktMark);
        self.hexadecimal("recirc_id", Field::RecircId);
        self.hexadecimal("dp_hash", Field::DpHash);
        self.decimal("conj_id", Field::ConjId);
        self.hexadecimal("skb_priority", Field::SkbPriority);
        self.port("actset_output", Field::ActsetOutput);
        self.flags("ct_state", Field::CtState, &STATES, STATES.len());
        self.decimal("ct_zone", Field::CtZone);
        self.hexadecimal("ct_mark", Field::CtMark);
        self.hexadecimal("ct_label", Field::CtLabel);
        self.address("ct_nw_src", Field::CtNwSrc);
        self.address("ct_ipv6_src", Field::CtIpv6Src);
        self.address("ct_nw_dst", Field::CtNwDst);
        self.address("ct_ipv6_dst", Field::CtIpv6Dst);
        self.decimal("ct_nw_proto", Field::CtNwProto);
        self.decimal("ct_tp_src", Field::CtTpSrc);
        self.decimal("ct_tp_dst", Field::CtTpDst);
    }

    /// Writes the protocol as one word, if there is one.
    fn protocol(&mut self) -> Protocols {
        let (eth_type, type_mask) = self.get(Field::EthType);
        let (protocol, protocol_mask) = self.get(Field::IpProto);
        let given = protocol_mask != 0;
        let word = match (eth_type, type_mask != 0) {
            (_, false) => None,
            (ETHERTYPE_IPV4, _) => Some(match protocol {
                1 if given => ("icmp", true),
                2 if given => ("igmp", true),
                6 if given => ("tcp", true),
                17 if given => ("udp", true),
                132 if given => ("sctp", true),
                _ => ("ip", false),
            }),
            (ETHERTYPE_IPV6, _) => Some(match protocol {
                6 if given => ("tcp6", true),
                17 if given => ("udp6", true),
                58 if given => ("icmp6", true),
                132 if given => ("sctp6", true),
                _ => ("ipv6", false),
            }),
            (ETHERTYPE_ARP, _) => Some(("arp", false)),
            (ETHERTYPE_RARP, _) => Some(("rarp", false)),
            (0x8847, _) => Some(("mpls", false)),
            (0x8848, _) => Some(("mplsm", false)),
            _ => None,
        };
        if let Some((word, _)) = word {
            add(self.out, format_args!("{word},"));
        }
        Protocols {
            eth_type,
            protocol,
            type_said: word.is_some() || type_mask == 0,
            protocol_said: word.is_some_and(|(_, protocol_said)| protocol_said) || !given,
        }
    }

    fn registers(&mut self) {
        const REGISTERS: [Field; 16] = {
            use Field::*;
            [
                Reg0, Reg1, Reg2, Reg3, Reg4, Reg5, Reg6, Reg7, Reg8, Reg9, Reg10, Reg11, Reg12,
                Reg13, Reg14, Reg15,
            ]
        };
        for field in REGISTERS {
            self.hexadecimal(field.def().name, field);
        }
        self.hexadecimal("tun_id", Field::TunId);
        self.address("tun_src", Field::TunSrc);
        self.address("tun_dst", Field::TunDst);
        self.address("tun_ipv6_src", Field::TunIpv6Src);
        self.address("tun_ipv6_dst", Field::TunIpv6Dst);
        self.decimal("tun_gbp_id", Field::TunGbpId);
        if self.has(Field::TunGbpFlags) {
            self.named("tun_gbp_flags");
            let (flags, _) = self.get(Field::TunGbpFlags);
            hexadecimal(self.out, flags);
            self.out.push(',');
        }
        let (tos, ttl) = (self.get(Field::TunTos), self.get(Field::TunTtl));
        if tos.1 != 0 {
            add(self.out, format_args!("tun_tos={:x},", tos.0));
        }
        if ttl.1 != 0 {
            add(self.out, format_args!("tun_ttl={},", ttl.0));
        }
        // Open vSwitch has more flags than it prints.
        self.flags("tun_flags", Field::TunFlags, &["oam"], 4);
        self.tunnel_options();
        self.hexadecimal("metadata", Field::Metadata);
    }

    /// Writes tunnel options: `tun_metadata0` if it must only be present, otherwise with value and
    /// mask.
    fn tunnel_options(&mut self) {
        for option in 0..packet::options::OPTIONS {
            let Some((value, mask)) = self.matching.option(option) else {
                continue;
            };
            self.out
                .push_str(Field::of_tunnel_option(option).def().name);
            if !mask.is_zero() {
                self.out.push('=');
                long_hexadecimal(self.out, &value);
                if mask.iter().any(|byte| *byte != 0xff) {
                    self.out.push('/');
                    long_hexadecimal(self.out, &mask);
                }
            }
            self.out.push(',');
        }
    }

    /// Writes the ingress port and the VLAN.
    fn place(&mut self) {
        self.port("in_port", Field::InPort);
        let (tci, mask) = self.get(Field::VlanTci);
        let (vid, priority) = (mask & 0xfff, mask >> 13 & 7);
        let whole_parts = (vid == 0 || vid == 0xfff) && (priority == 0 || priority == 7);
        if mask == 0 {
        } else if mask & tci & PRESENT != 0 && whole_parts && (vid != 0 || priority != 0) {
            if vid != 0 {
                add(self.out, format_args!("dl_vlan={},", tci & 0xfff));
            }
            if priority != 0 {
                add(self.out, format_args!("dl_vlan_pcp={},", tci >> 13));
            }
        } else if mask == 0xffff {
            add(self.out, format_args!("vlan_tci=0x{tci:04x},"));
        } else {
            add(self.out, format_args!("vlan_tci=0x{tci:04x}/0x{mask:04x},"));
        }
    }

    /// Writes Ethernet, ARP, IP and MPLS fields.
    fn layers(&mut self, kind: &Protocols) {
        self.ethernet("dl_src", Field::EthSrc);
        self.ethernet("dl_dst", Field::EthDst);
        if !kind.type_said {
            add(self.out, format_args!("dl_type=0x{:04x},", kind.eth_type));
        }
        if kind.eth_type == ETHERTYPE_IPV6 {
            self.address("ipv6_src", Field::Ipv6Src);
            self.address("ipv6_dst", Field::Ipv6Dst);
            match self.get(Field::Ipv6Label) {
                (_, 0) => {}
                (label, 0xfffff) => add(self.out, format_args!("ipv6_label=0x{label:05x},")),
                (label, mask) => add(
                    self.out,
                    format_args!("ipv6_label=0x{label:05x}/0x{mask:05x},"),
                ),
            }
        } else {
            let (source, destination) = if kind.is_arp() {
                ("arp_spa", "arp_tpa")
            } else {
                ("nw_src", "nw_dst")
            };
            self.address(source, Field::Ipv4Src);
            self.address(destination, Field::Ipv4Dst);
        }
        if !kind.protocol_said {
            let name = if kind.is_arp() { "arp_op" } else { "nw_proto" };
            add(self.out, format_args!("{name}={},", kind.protocol));
        }
        if kind.is_arp() {
            self.ethernet("arp_sha", Field::ArpSha);
            self.ethernet("arp_tha", Field::ArpTha);
        }
        let (dscp, mask) = self.get(Field::IpDscp);
        if mask != 0 {
            add(self.out, format_args!("nw_tos={},", dscp << 2));
        }
        let numbers = [
            ("nw_ecn", Field::IpEcn),
            ("nw_ttl", Field::IpTtl),
            ("mpls_label", Field::MplsLabel),
            ("mpls_tc", Field::MplsTc),
            ("mpls_ttl", Field::MplsTtl),
            ("mpls_bos", Field::MplsBos),
            ("pbb_isid", Field::PbbIsid),
            ("pbb_uca", Field::PbbUca),
        ];
        for (name, field) in numbers {
            self.decimal(name, field);
        }
        if kind.eth_type == ETHERTYPE_IPV6 {
            self.hexadecimal("ipv6_exthdr", Field::Ipv6Ext);
        }
        self.fragment();
    }

    fn fragment(&mut self) {
        let (value, mask) = self.get(Field::IpFrag);
        let (any, later) = (value & 1 != 0, value & 2 != 0);
        let word = match (mask, any, later) {
            (3, true, true) | (2, _, true) => "later",
            (3, true, false) => "first",
            (3, false, true) => "<error>",
            (3, false, false) | (1, false, _) => "no",
            (1, true, _) => "yes",
            (2, _, false) => "not_later",
            _ => return,
        };
        add(self.out, format_args!("nw_frag={word},"));
    }

    fn transport(&mut self, kind: &Protocols) {
        const FLAGS: [&str; 12] = [
            "fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]",
        ];
        match (kind.eth_type, kind.protocol) {
            (ETHERTYPE_IPV4, 1) => {
                self.decimal("icmp_type", Field::Icmpv4Type);
                self.decimal("icmp_code", Field::Icmpv4Code);
            }
            (ETHERTYPE_IPV6, 58) => {
                self.decimal("icmp_type", Field::Icmpv6Type);
                self.decimal("icmp_code", Field::Icmpv6Code);
                self.address("nd_target", Field::NdTarget);
                self.ethernet("nd_sll", Field::NdSll);
                self.ethernet("nd_tll", Field::NdTll);
                self.decimal("nd_options_type", Field::NdOptionsType);
            }
            _ => {
                self.decimal("tp_src", Field::TcpSrc);
                self.decimal("tp_dst", Field::TcpDst);
            }
        }
        if matches!(kind.eth_type, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) && kind.protocol == TCP {
            self.flags("tcp_flags", Field::TcpFlags, &FLAGS, FLAGS.len());
        }
    }
}
