//! Formats matches and actions as text, in the notation of `ovs-ofctl`.
//!
//! This is what `bridge/dump-flows` prints, byte for byte as Open vSwitch 3.1 does: [`matching()`]
//! for the left side of a rule, [`instructions`] for the right. Names of fields come from
//! [`packet::fields::FIELDS`]; one table here has how a field's value is written, and its name in
//! Nicira's notation. Tests compare the text with `ovs-ofctl ofp-print` of encoded messages.

mod actions;
mod extensions;
mod matching;

use crate::model::port::{self, PortNo};
use packet::{Field, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

pub use actions::{actions, instructions, subfield};
pub use extensions::hash_fields;
pub use matching::{DEFAULT_PRIORITY, matching};

/// The notation of a field's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Style {
    Decimal,
    Hexadecimal,
    Ethernet,
    Ipv4,
    Ipv6,
    Port,
}

fn style(field: Field) -> Style {
    use Field::*;
    match field {
        InPort | InPortOxm | InPhyPort | ActsetOutput => Style::Port,
        EthSrc | EthDst | ArpSha | ArpTha | NdSll | NdTll => Style::Ethernet,
        TunSrc | TunDst | CtNwSrc | CtNwDst | Ipv4Src | Ipv4Dst | ArpSpa | ArpTpa => Style::Ipv4,
        TunIpv6Src | TunIpv6Dst | CtIpv6Src | CtIpv6Dst | Ipv6Src | Ipv6Dst | NdTarget => {
            Style::Ipv6
        }
        DlVlan | DlVlanPcp | VlanVid | VlanPcp | MplsLabel | MplsTc | MplsBos | MplsTtl
        | IpProto | IpDscp | IpDscpShifted | IpEcn | IpTtl | ArpOp | TcpSrc | TcpDst | UdpSrc
        | UdpDst | SctpSrc | SctpDst | Icmpv4Type | Icmpv4Code | Icmpv6Type | Icmpv6Code
        | CtNwProto | CtTpSrc | CtTpDst | NdOptionsType | TunGbpId | TunTos | TunTtl | RecircId
        | ConjId => Style::Decimal,
        _ => Style::Hexadecimal,
    }
}

/// Returns a field's name in Nicira's notation (`NXM_OF_ETH_SRC`), which `load`, `move` and the
/// like use; empty if it has none.
pub fn nxm_name(field: Field) -> &'static str {
    const NAMES: [&str; packet::fields::FIELDS.len()] = names();
    NAMES[field as usize]
}

/// Names in the order of [`Field`].
const fn names() -> [&'static str; packet::fields::FIELDS.len()] {
    [
        "NXM_OF_IN_PORT",
        "OXM_OF_IN_PORT",
        "OXM_OF_IN_PHY_PORT",
        "OXM_OF_METADATA",
        "NXM_NX_TUN_ID",
        "NXM_NX_TUN_IPV4_SRC",
        "NXM_NX_TUN_IPV4_DST",
        "NXM_NX_TUN_IPV6_SRC",
        "NXM_NX_TUN_IPV6_DST",
        "NXM_NX_TUN_FLAGS",
        "NXM_NX_TUN_GBP_ID",
        "NXM_NX_TUN_GBP_FLAGS",
        "",
        "",
        "NXM_NX_PKT_MARK",
        "NXM_NX_CT_STATE",
        "NXM_NX_CT_ZONE",
        "NXM_NX_CT_MARK",
        "NXM_NX_CT_LABEL",
        "NXM_NX_CT_NW_PROTO",
        "NXM_NX_CT_NW_SRC",
        "NXM_NX_CT_NW_DST",
        "NXM_NX_CT_IPV6_SRC",
        "NXM_NX_CT_IPV6_DST",
        "NXM_NX_CT_TP_SRC",
        "NXM_NX_CT_TP_DST",
        "NXM_NX_DP_HASH",
        "NXM_NX_RECIRC_ID",
        "NXM_NX_CONJ_ID",
        "OXM_OF_PACKET_TYPE",
        "ONFOXM_ET_ACTSET_OUTPUT",
        "",
        "",
        "NXM_NX_REG0",
        "NXM_NX_REG1",
        "NXM_NX_REG2",
        "NXM_NX_REG3",
        "NXM_NX_REG4",
        "NXM_NX_REG5",
        "NXM_NX_REG6",
        "NXM_NX_REG7",
        "NXM_NX_REG8",
        "NXM_NX_REG9",
        "NXM_NX_REG10",
        "NXM_NX_REG11",
        "NXM_NX_REG12",
        "NXM_NX_REG13",
        "NXM_NX_REG14",
        "NXM_NX_REG15",
        "OXM_OF_PKT_REG0",
        "OXM_OF_PKT_REG1",
        "OXM_OF_PKT_REG2",
        "OXM_OF_PKT_REG3",
        "OXM_OF_PKT_REG4",
        "OXM_OF_PKT_REG5",
        "OXM_OF_PKT_REG6",
        "OXM_OF_PKT_REG7",
        "NXM_NX_XXREG0",
        "NXM_NX_XXREG1",
        "NXM_NX_XXREG2",
        "NXM_NX_XXREG3",
        "NXM_OF_ETH_SRC",
        "NXM_OF_ETH_DST",
        "NXM_OF_ETH_TYPE",
        "NXM_OF_VLAN_TCI",
        "",
        "",
        "OXM_OF_VLAN_VID",
        "OXM_OF_VLAN_PCP",
        "OXM_OF_MPLS_LABEL",
        "OXM_OF_MPLS_TC",
        "OXM_OF_MPLS_BOS",
        "NXM_NX_MPLS_TTL",
        "OXM_OF_PBB_ISID",
        "OXM_OF_PBB_UCA",
        "NXM_OF_IP_SRC",
        "NXM_OF_IP_DST",
        "NXM_NX_IPV6_SRC",
        "NXM_NX_IPV6_DST",
        "NXM_NX_IPV6_LABEL",
        "OXM_OF_IPV6_EXTHDR",
        "NXM_OF_IP_PROTO",
        "NXM_OF_IP_TOS",
        "OXM_OF_IP_DSCP",
        "NXM_NX_IP_ECN",
        "NXM_NX_IP_TTL",
        "NXM_NX_IP_FRAG",
        "NXM_OF_ARP_OP",
        "NXM_OF_ARP_SPA",
        "NXM_OF_ARP_TPA",
        "NXM_NX_ARP_SHA",
        "NXM_NX_ARP_THA",
        "NXM_OF_TCP_SRC",
        "NXM_OF_TCP_DST",
        "NXM_NX_TCP_FLAGS",
        "NXM_OF_UDP_SRC",
        "NXM_OF_UDP_DST",
        "OXM_OF_SCTP_SRC",
        "OXM_OF_SCTP_DST",
        "NXM_OF_ICMP_TYPE",
        "NXM_OF_ICMP_CODE",
        "NXM_NX_ICMPV6_TYPE",
        "NXM_NX_ICMPV6_CODE",
        "NXM_NX_ND_TARGET",
        "NXM_NX_ND_SLL",
        "NXM_NX_ND_TLL",
        "ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE",
        "NXM_NX_TUN_METADATA0",
        "NXM_NX_TUN_METADATA1",
        "NXM_NX_TUN_METADATA2",
        "NXM_NX_TUN_METADATA3",
        "NXM_NX_TUN_METADATA4",
        "NXM_NX_TUN_METADATA5",
        "NXM_NX_TUN_METADATA6",
        "NXM_NX_TUN_METADATA7",
        "NXM_NX_TUN_METADATA8",
        "NXM_NX_TUN_METADATA9",
        "NXM_NX_TUN_METADATA10",
        "NXM_NX_TUN_METADATA11",
        "NXM_NX_TUN_METADATA12",
        "NXM_NX_TUN_METADATA13",
        "NXM_NX_TUN_METADATA14",
        "NXM_NX_TUN_METADATA15",
        "NXM_NX_TUN_METADATA16",
        "NXM_NX_TUN_METADATA17",
        "NXM_NX_TUN_METADATA18",
        "NXM_NX_TUN_METADATA19",
        "NXM_NX_TUN_METADATA20",
        "NXM_NX_TUN_METADATA21",
        "NXM_NX_TUN_METADATA22",
        "NXM_NX_TUN_METADATA23",
        "NXM_NX_TUN_METADATA24",
        "NXM_NX_TUN_METADATA25",
        "NXM_NX_TUN_METADATA26",
        "NXM_NX_TUN_METADATA27",
        "NXM_NX_TUN_METADATA28",
        "NXM_NX_TUN_METADATA29",
        "NXM_NX_TUN_METADATA30",
        "NXM_NX_TUN_METADATA31",
        "NXM_NX_TUN_METADATA32",
        "NXM_NX_TUN_METADATA33",
        "NXM_NX_TUN_METADATA34",
        "NXM_NX_TUN_METADATA35",
        "NXM_NX_TUN_METADATA36",
        "NXM_NX_TUN_METADATA37",
        "NXM_NX_TUN_METADATA38",
        "NXM_NX_TUN_METADATA39",
        "NXM_NX_TUN_METADATA40",
        "NXM_NX_TUN_METADATA41",
        "NXM_NX_TUN_METADATA42",
        "NXM_NX_TUN_METADATA43",
        "NXM_NX_TUN_METADATA44",
        "NXM_NX_TUN_METADATA45",
        "NXM_NX_TUN_METADATA46",
        "NXM_NX_TUN_METADATA47",
        "NXM_NX_TUN_METADATA48",
        "NXM_NX_TUN_METADATA49",
        "NXM_NX_TUN_METADATA50",
        "NXM_NX_TUN_METADATA51",
        "NXM_NX_TUN_METADATA52",
        "NXM_NX_TUN_METADATA53",
        "NXM_NX_TUN_METADATA54",
        "NXM_NX_TUN_METADATA55",
        "NXM_NX_TUN_METADATA56",
        "NXM_NX_TUN_METADATA57",
        "NXM_NX_TUN_METADATA58",
        "NXM_NX_TUN_METADATA59",
        "NXM_NX_TUN_METADATA60",
        "NXM_NX_TUN_METADATA61",
        "NXM_NX_TUN_METADATA62",
        "NXM_NX_TUN_METADATA63",
    ]
}

thread_local! {
    /// The port names that [`port`] writes.
    static NAMES: RefCell<BTreeMap<PortNo, String>> = const { RefCell::new(BTreeMap::new()) };
}

/// Calls `act` with these names for ports (`ovs-ofctl --names`).
pub fn with_names(names: &BTreeMap<PortNo, String>, act: impl FnOnce()) {
    /// Restores the previous names, also when `act` panics.
    struct Restore(BTreeMap<PortNo, String>);
    impl Drop for Restore {
        fn drop(&mut self) {
            NAMES.with_borrow_mut(|current| *current = std::mem::take(&mut self.0));
        }
    }
    let _restore = Restore(NAMES.replace(names.clone()));
    act();
}

/// Returns a port's name, in quotes if it would not read as one word.
fn port_name(number: PortNo) -> Option<String> {
    let name = NAMES.with_borrow(|names| names.get(&number).cloned())?;
    let plain = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    Some(if plain { name } else { format!("\"{name}\"") })
}

/// Writes a port as `ovs-ofctl` does: reserved ones by name.
pub fn port(out: &mut String, number: PortNo) {
    let name = match number {
        port::IN_PORT => "IN_PORT",
        port::TABLE => "TABLE",
        port::NORMAL => "NORMAL",
        port::FLOOD => "FLOOD",
        port::ALL => "ALL",
        port::CONTROLLER => "CONTROLLER",
        port::LOCAL => "LOCAL",
        port::ANY => "ANY",
        // Reserved numbers without a name are written as 16-bit numbers.
        number => {
            return match port_name(number) {
                Some(name) => out.push_str(&name),
                None => add(
                    out,
                    format_args!("{}", port::to_u16(number).map_or(number, u32::from)),
                ),
            };
        }
    };
    out.push_str(name);
}

/// Appends formatted text, which cannot fail for a string.
fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// Writes a tunnel option, with its mask unless that is ones over whole words at the end, which
/// means the whole option.
fn tunnel_option(out: &mut String, value: &[u8], mask: &[u8]) {
    let ones = mask.iter().skip_while(|byte| **byte == 0);
    long_hexadecimal(out, value);
    if !(ones.clone().count().is_multiple_of(4) && ones.clone().all(|byte| *byte == 0xff)) {
        out.push('/');
        long_hexadecimal(out, mask);
    }
}

/// Writes a number of any length.
fn long_hexadecimal(out: &mut String, bytes: &[u8]) {
    let from = bytes.iter().take_while(|byte| **byte == 0).count();
    match &bytes[from..] {
        [] => out.push('0'),
        [first, rest @ ..] => {
            add(out, format_args!("{first:#x}"));
            rest.iter()
                .for_each(|byte| add(out, format_args!("{byte:02x}")));
        }
    }
}

/// Writes a number like `%#x`: no prefix for zero.
fn hexadecimal(out: &mut String, number: u128) {
    match number {
        0 => out.push('0'),
        number => add(out, format_args!("{number:#x}")),
    }
}

fn ethernet(out: &mut String, number: u128) {
    let [.., a, b, c, d, e, f] = number.to_be_bytes();
    add(
        out,
        format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
    );
}

/// Writes an address like `inet_ntop`, which uses the dotted form for addresses below 2^32 (Rust's
/// formatting no longer does).
fn ipv6(out: &mut String, number: u128) {
    match number {
        0x1_0000..=0xffff_ffff => add(out, format_args!("::{}", Ipv4Addr::from(number as u32))),
        number => add(out, format_args!("{}", Ipv6Addr::from(number))),
    }
}

fn ones(bits: usize) -> u128 {
    if bits >= 128 {
        u128::MAX
    } else {
        (1 << bits) - 1
    }
}

/// Returns a mask's prefix length; None if it is not a prefix.
fn prefix(mask: u128, bits: usize) -> Option<u32> {
    let length = mask.count_ones();
    (mask == ones(bits) ^ ones(bits - length as usize)).then_some(length)
}

/// Writes an address with its mask, as a prefix length if possible.
fn masked_address(
    out: &mut String,
    value: u128,
    mask: u128,
    bits: usize,
    write: fn(&mut String, u128),
) {
    write(out, value);
    if mask != ones(bits) {
        out.push('/');
        match prefix(mask, bits) {
            Some(length) => add(out, format_args!("{length}")),
            None => write(out, mask),
        }
    }
}

fn ipv4(out: &mut String, number: u128) {
    add(out, format_args!("{}", Ipv4Addr::from(number as u32)));
}

/// Returns the number that actions write for a field's bytes in the key.
fn number(field: Field, value: &Value) -> u128 {
    let def = field.def();
    value.to_u128() >> def.shift << def.wire_shift
}

/// Writes a field's value as `set_field` takes it, with `/mask` unless the mask covers the whole
/// field.
fn value(out: &mut String, field: Field, value: &Value, mask: &Value) {
    let def = field.def();
    if field.tunnel_option().is_some() {
        return tunnel_option(out, value, mask);
    }
    let whole = ones(def.bits) << def.wire_shift;
    let (value, mask) = (number(field, value), number(field, mask) & whole);
    if mask == 0 {
        return out.push_str("ANY");
    }
    match style(field) {
        Style::Ipv4 => masked_address(out, value, mask, 32, ipv4),
        Style::Ipv6 => masked_address(out, value, mask, 128, ipv6),
        style => {
            match style {
                Style::Port => port(out, value as PortNo),
                Style::Ethernet => ethernet(out, value),
                Style::Hexadecimal => hexadecimal(out, value),
                _ => add(out, format_args!("{value}")),
            }
            if mask != whole {
                out.push('/');
                match style {
                    Style::Ethernet => ethernet(out, mask),
                    _ => hexadecimal(out, mask),
                }
            }
        }
    }
}

/// Writes the number in a part of a field: in the field's notation if it is the whole field,
/// otherwise in hexadecimal.
pub fn subfield_value(out: &mut String, part: &crate::model::action::Subfield, number: u128) {
    let def = part.field.def();
    if part.start != 0 || usize::from(part.bits) != def.action_bits {
        return hexadecimal(out, number);
    }
    let bits = Value::from_u128(number >> def.wire_shift << def.shift, def.bytes);
    value(out, part.field, &bits, &def.place());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_that_travels_has_a_name() {
        for def in packet::fields::FIELDS {
            let name = nxm_name(def.field);
            assert_eq!(name.is_empty(), def.header(1).is_none(), "{}", def.name);
            let class = if def.nxm != 0 && !name.starts_with("ERIC") {
                "NXM_"
            } else {
                "OXM_"
            };
            assert!(
                name.is_empty() || name.contains(class),
                "{} is called {name}",
                def.name
            );
        }
    }

    #[test]
    fn addresses_read_as_from_inet_ntop() {
        let text = |number| {
            let mut out = String::new();
            ipv6(&mut out, number);
            out
        };
        assert_eq!(text(0), "::");
        assert_eq!(text(1), "::1");
        assert_eq!(text(0x0102_0304), "::1.2.3.4");
        assert_eq!(text(0xffff_0102_0304), "::ffff:1.2.3.4");
        assert_eq!(text(0xfe80 << 112 | 3), "fe80::3");
    }

    #[test]
    fn masks_are_prefixes_where_they_can_be() {
        let text = |mask| {
            let mut out = String::new();
            masked_address(&mut out, 0x0a00_0000, mask, 32, ipv4);
            out
        };
        assert_eq!(text(0xffff_ffff), "10.0.0.0");
        assert_eq!(text(0xff00_0000), "10.0.0.0/8");
        assert_eq!(text(0xff00_00ff), "10.0.0.0/255.0.0.255");
    }
}
