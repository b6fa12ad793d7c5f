//! Keys of the steering table, and matches as text: OpenFlow 1.0's twelve fields by `ovs-ofctl`'s
//! names, the flow control field, and VXLAN's VNI and inner headers.
//!
//! The position of each field in the key is defined in `FIELDS`; `bpf/layout.h` has the same as a
//! structure, and `parse` is tested against it.

use crate::layout::KEY_BYTES;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use steer::table::Match;

/// A packet's key.
pub type Key = [u8; KEY_BYTES];

/// Value of `dl_vlan` for a frame without a tag.
pub const VLAN_NONE: u16 = 0xffff;

/// Offset of the outer headers in a key; the inner ones follow.
pub const OUTER: usize = 16;
/// Offset of the inner headers.
pub const INNER: usize = OUTER + 56;

/// Offsets within headers, as in `struct headers`.
pub mod at {
    #![allow(missing_docs)]
    pub const DL_DST: usize = 0;
    pub const DL_SRC: usize = 6;
    pub const DL_TYPE: usize = 12;
    pub const DL_VLAN: usize = 14;
    pub const DL_VLAN_PCP: usize = 16;
    pub const NW_TOS: usize = 17;
    pub const NW_PROTO: usize = 18;
    pub const FRAG: usize = 19;
    pub const TP_SRC: usize = 20;
    pub const TP_DST: usize = 22;
    pub const NW_SRC: usize = 24;
    pub const NW_DST: usize = 40;
}

/// Format of a field's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ValueFormat {
    /// A number, this at most.
    Number(u32),
    /// A MAC address.
    Mac,
    /// An IPv4 or IPv6 address.
    Ip,
}

/// A field: name, offset, bytes, format.
struct Field {
    name: &'static str,
    at: usize,
    bytes: usize,
    kind: ValueFormat,
}

const fn field(name: &'static str, at: usize, bytes: usize, kind: ValueFormat) -> Field {
    Field {
        name,
        at,
        bytes,
        kind,
    }
}

/// Fields of the whole packet; those of headers, which a key has twice, are separate.
const FIELDS: [Field; 5] = [
    field("in_port", 0, 4, ValueFormat::Number(u32::MAX)),
    field("vni", 5, 3, ValueFormat::Number(0xff_ffff)),
    field("fcf_vm", 8, 2, ValueFormat::Number(4094)),
    field("fcf_priority", 10, 1, ValueFormat::Number(1)),
    field("fcf", 11, 1, ValueFormat::Number(1)),
];
const HEADERS: [Field; 12] = [
    field("dl_dst", at::DL_DST, 6, ValueFormat::Mac),
    field("dl_src", at::DL_SRC, 6, ValueFormat::Mac),
    field("dl_type", at::DL_TYPE, 2, ValueFormat::Number(0xffff)),
    field("dl_vlan", at::DL_VLAN, 2, ValueFormat::Number(0xffff)),
    field("dl_vlan_pcp", at::DL_VLAN_PCP, 1, ValueFormat::Number(7)),
    field("nw_tos", at::NW_TOS, 1, ValueFormat::Number(0xfc)),
    field("nw_proto", at::NW_PROTO, 1, ValueFormat::Number(0xff)),
    field("frag", at::FRAG, 1, ValueFormat::Number(3)),
    field("tp_src", at::TP_SRC, 2, ValueFormat::Number(0xffff)),
    field("tp_dst", at::TP_DST, 2, ValueFormat::Number(0xffff)),
    field("nw_src", at::NW_SRC, 16, ValueFormat::Ip),
    field("nw_dst", at::NW_DST, 16, ValueFormat::Ip),
];

/// Words that stand for several fields.
const SHORT: [(&str, &[(&str, &str)]); 12] = [
    ("ip", &[("dl_type", "0x800")]),
    ("ipv6", &[("dl_type", "0x86dd")]),
    ("arp", &[("dl_type", "0x806")]),
    ("icmp", &[("dl_type", "0x800"), ("nw_proto", "1")]),
    ("tcp", &[("dl_type", "0x800"), ("nw_proto", "6")]),
    ("udp", &[("dl_type", "0x800"), ("nw_proto", "17")]),
    ("sctp", &[("dl_type", "0x800"), ("nw_proto", "132")]),
    ("esp", &[("dl_type", "0x800"), ("nw_proto", "50")]),
    ("icmp6", &[("dl_type", "0x86dd"), ("nw_proto", "58")]),
    ("tcp6", &[("dl_type", "0x86dd"), ("nw_proto", "6")]),
    ("udp6", &[("dl_type", "0x86dd"), ("nw_proto", "17")]),
    ("esp6", &[("dl_type", "0x86dd"), ("nw_proto", "50")]),
];

/// Error in the text of a match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatchError {
    /// No field has this name.
    #[error(
        "{0}: no such field; there are in_port, dl_src, dl_dst, dl_vlan, dl_vlan_pcp, dl_type, \
         nw_tos, nw_proto, nw_src, nw_dst, tp_src, tp_dst, frag, each also with inner_ in front, \
         vni, fcf, fcf_vm and fcf_priority"
    )]
    Field(String),
    /// A value that cannot be read, or is too large.
    #[error("{field}={value}: {wanted}")]
    Value {
        /// The field.
        field: String,
        /// The value.
        value: String,
        /// Description of valid values.
        wanted: String,
    },
    /// A field is named twice with different values.
    #[error("{0} is given twice")]
    Twice(String),
}

/// Parses a match: fields and values separated by commas, as for `ovs-ofctl`. Masks follow a slash.
/// An empty text matches everything.
///
/// # Errors
///
/// The field and what is wrong with it.
pub fn parse_match(text: &str) -> Result<Match<KEY_BYTES>, MatchError> {
    let (mut mask, mut value) = ([0; KEY_BYTES], [0; KEY_BYTES]);
    let mut given: Vec<(String, String)> = Vec::new();
    for word in text
        .split([',', ' '])
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        let (name, text) = word
            .split_once('=')
            .map_or((word, None), |(n, v)| (n, Some(v)));
        let (prefix, bare) = match name.strip_prefix("inner_") {
            Some(bare) => ("inner_", bare),
            None => ("", name),
        };
        match (SHORT.iter().find(|(short, _)| *short == bare), text) {
            (Some((_, fields)), None) => {
                let fields = fields.iter();
                given.extend(fields.map(|(f, v)| (format!("{prefix}{f}"), (*v).to_owned())));
            }
            (_, Some(text)) => given.push((name.to_owned(), text.to_owned())),
            (None, None) => return Err(MatchError::Field(word.to_owned())),
        }
    }
    for (name, text) in given {
        let (field, start) = find(&name).ok_or_else(|| MatchError::Field(name.clone()))?;
        let (bits, wanted) = read(field, &name, &text)?;
        let place = start + field.at..start + field.at + field.bytes;
        let same = mask[place.clone()] == bits[..field.bytes]
            && value[place.clone()] == wanted[..field.bytes];
        if mask[place.clone()].iter().any(|byte| *byte != 0) && !same {
            return Err(MatchError::Twice(name));
        }
        mask[place.clone()].copy_from_slice(&bits[..field.bytes]);
        value[place].copy_from_slice(&wanted[..field.bytes]);
        // Without a tunnel there is neither a VNI nor an inner frame.
        if name == "vni" || name.starts_with("inner_") {
            (mask[4], value[4]) = (0xff, 1);
        }
        if name == "fcf_vm" || name == "fcf_priority" {
            (mask[11], value[11]) = (0xff, 1);
        }
    }
    Ok(Match::new(mask, value))
}

/// Returns whether a match includes the flow control field.
pub fn looks_at_fcf(matching: &Match<KEY_BYTES>) -> bool {
    matching.mask()[8..12].iter().any(|byte| *byte != 0)
}

fn find(name: &str) -> Option<(&'static Field, usize)> {
    if let Some(field) = FIELDS.iter().find(|field| field.name == name) {
        return Some((field, 0));
    }
    let (start, bare) = match name.strip_prefix("inner_") {
        Some(bare) => (INNER, bare),
        None => (OUTER, name),
    };
    let field = HEADERS.iter().find(|field| field.name == bare)?;
    Some((field, start))
}

type Bytes = [u8; 16];

/// Returns mask and value of a field's text.
fn read(field: &Field, name: &str, text: &str) -> Result<(Bytes, Bytes), MatchError> {
    let wrong = |wanted: String| MatchError::Value {
        field: name.to_owned(),
        value: text.to_owned(),
        wanted,
    };
    let (value, mask) = text
        .split_once('/')
        .map_or((text, None), |(v, m)| (v, Some(m)));
    let mut bits: Bytes = [0; 16];
    match field.kind {
        ValueFormat::Number(most) => {
            let wanted = || {
                wrong(format!(
                    "must be a number from 0 to {most}, perhaps with /MASK"
                ))
            };
            let number = |text: &str| number(text).filter(|number| *number <= most);
            let put = |number: u32| {
                let mut bytes: Bytes = [0; 16];
                bytes[..field.bytes].copy_from_slice(&number.to_be_bytes()[4 - field.bytes..]);
                bytes
            };
            let value = put(number(value).ok_or_else(wanted)?);
            match mask {
                None => bits[..field.bytes].fill(0xff),
                Some(mask) => {
                    let all = u32::MAX >> (32 - 8 * field.bytes);
                    let mask = self::number(mask)
                        .filter(|mask| *mask <= all)
                        .ok_or_else(wanted)?;
                    bits = put(mask);
                }
            }
            // The ECN bits are never in the key.
            if field.name == "nw_tos" && mask.is_none() {
                bits[0] = 0xfc;
            }
            Ok((bits, value))
        }
        ValueFormat::Mac => {
            let wanted = || wrong("must be a MAC address, perhaps with /MASK".to_owned());
            let value = mac(value).ok_or_else(wanted)?;
            match mask {
                None => bits[..6].fill(0xff),
                Some(mask) => bits = mac(mask).ok_or_else(wanted)?,
            }
            Ok((bits, value))
        }
        ValueFormat::Ip => {
            let wanted = || {
                wrong("must be an IPv4 or IPv6 address, perhaps with /PREFIX or /MASK".to_owned())
            };
            let (value, length) = ip(value).ok_or_else(wanted)?;
            let Some(mask) = mask else {
                bits[..length].fill(0xff);
                return Ok((bits, value));
            };
            if let Ok(prefix) = mask.parse::<usize>() {
                if prefix > length * 8 {
                    return Err(wanted());
                }
                for (at, byte) in bits.iter_mut().enumerate().take(length) {
                    let ones = prefix.saturating_sub(at * 8).min(8);
                    *byte = !(0xff_u16 >> ones) as u8;
                }
                return Ok((bits, value));
            }
            match ip(mask) {
                Some((mask, of_mask)) if of_mask == length => Ok((mask, value)),
                _ => Err(wanted()),
            }
        }
    }
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn mac(text: &str) -> Option<Bytes> {
    let mut bytes: Bytes = [0; 16];
    let mut parts = text.split(':');
    for byte in &mut bytes[..6] {
        let part = parts.next().filter(|part| part.len() <= 2)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(bytes)
}

/// Parses an address; returns its bytes and their number.
fn ip(text: &str) -> Option<(Bytes, usize)> {
    if let Ok(address) = text.parse::<Ipv4Addr>() {
        let mut bytes: Bytes = [0; 16];
        bytes[..4].copy_from_slice(&address.octets());
        return Some((bytes, 4));
    }
    let address = text.parse::<Ipv6Addr>().ok()?;
    Some((address.octets(), 16))
}

/// Formats a match; [`parse_match`] can read the result.
pub fn format_match(matching: &Match<KEY_BYTES>) -> String {
    let (mask, value) = (matching.mask(), matching.value());
    let mut text = String::new();
    let mut write = |name: &str, field: &Field, start: usize, is_v6: bool| {
        let place = start + field.at..start + field.at + field.bytes;
        let (bits, value) = (&mask[place.clone()], &value[place]);
        if bits.iter().all(|bit| *bit == 0) {
            return;
        }
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{name}=");
        let _ = match field.kind {
            ValueFormat::Number(_) => {
                let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |n, b| n << 8 | u32::from(*b));
                let hex = matches!(field.name, "dl_type" | "nw_tos");
                let _ = match hex {
                    true => write!(text, "{:#x}", number(value)),
                    false => write!(text, "{}", number(value)),
                };
                let whole = bits.iter().all(|bit| *bit == 0xff)
                    || (field.name == "nw_tos" && bits == [0xfc]);
                match whole {
                    true => Ok(()),
                    false => write!(text, "/{:#x}", number(bits)),
                }
            }
            ValueFormat::Mac => {
                let mac = |bytes: &[u8]| {
                    let bytes: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
                    bytes.join(":")
                };
                let _ = write!(text, "{}", mac(value));
                match bits.iter().all(|bit| *bit == 0xff) {
                    true => Ok(()),
                    false => write!(text, "/{}", mac(bits)),
                }
            }
            ValueFormat::Ip => {
                let length = if is_v6 { 16 } else { 4 };
                let ip = |bytes: &[u8]| match <[u8; 16]>::try_from(bytes) {
                    Ok(all) if is_v6 => Ipv6Addr::from(all).to_string(),
                    _ => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).to_string(),
                };
                let _ = write!(text, "{}", ip(value));
                let ones = bits[..length].iter().map(|b| b.leading_ones() as usize);
                let prefix = ones
                    .scan(true, |on, n| {
                        on.then(|| {
                            *on = n == 8;
                            n
                        })
                    })
                    .sum::<usize>();
                let all: usize = bits.iter().map(|b| b.count_ones() as usize).sum();
                match (prefix == length * 8, prefix == all) {
                    (true, _) => Ok(()),
                    (_, true) => write!(text, "/{prefix}"),
                    _ => write!(text, "/{}", ip(bits)),
                }
            }
        };
    };
    for field in &FIELDS {
        // Implied by the fields that need it.
        let implied = field.name == "fcf" && mask[8..11].iter().any(|byte| *byte != 0);
        if !implied {
            write(field.name, field, 0, false);
        }
    }
    for (prefix, start) in [("", OUTER), ("inner_", INNER)] {
        let kind = &value[start + at::DL_TYPE..start + at::DL_TYPE + 2];
        let long = |at: usize| {
            mask[start + at + 4..start + at + 16]
                .iter()
                .any(|b| *b != 0)
        };
        for field in &HEADERS {
            let is_v6 = kind == [0x86, 0xdd] || long(field.at.min(at::NW_DST));
            write(&format!("{prefix}{}", field.name), field, start, is_v6);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_read_and_written() {
        for text in [
            "",
            "dl_type=0x800,nw_proto=17,tp_dst=4789,nw_src=10.0.0.0/8",
            "vni=5,inner_dl_type=0x800,inner_nw_dst=192.168.1.2",
            "fcf_vm=3,fcf_priority=1",
            "fcf=1",
            "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00",
            "dl_vlan=7,dl_vlan_pcp=3",
            "dl_type=0x86dd,nw_src=2001:db8::/32,nw_dst=2001:db8::1",
            "dl_type=0x800,nw_src=10.0.0.1/255.0.0.255",
            "in_port=4,dl_type=0x800,nw_tos=0xb8",
            "tp_dst=256/0xff00",
        ] {
            let matching = parse_match(text).unwrap();
            let written = format_match(&matching);
            assert_eq!(
                parse_match(&written).unwrap(),
                matching,
                "{text} -> {written}"
            );
        }
        assert_eq!(
            parse_match("udp,tp_dst=4789").unwrap(),
            parse_match("dl_type=0x800,nw_proto=17,tp_dst=0x12b5").unwrap()
        );
        assert_eq!(
            format_match(&parse_match("tcp,nw_dst=10.1.0.0/16").unwrap()),
            "dl_type=0x800,nw_proto=6,nw_dst=10.1.0.0/16"
        );
        assert!(looks_at_fcf(&parse_match("fcf_vm=3").unwrap()));
        assert!(!looks_at_fcf(&parse_match("vni=3").unwrap()));
    }

    #[test]
    fn errors_name_field_and_value() {
        let error = |text| parse_match(text).unwrap_err().to_string();
        assert!(error("colour=3").starts_with("colour: no such field"));
        assert!(error("tcpp").starts_with("tcpp: no such field"));
        assert_eq!(
            error("tp_dst=70000"),
            "tp_dst=70000: must be a number from 0 to 65535, perhaps with /MASK"
        );
        assert!(error("nw_src=10.0.0.0/33").contains("IPv4 or IPv6"));
        assert!(error("dl_src=1:2:3").contains("MAC"));
        assert_eq!(error("tcp,nw_proto=17"), "nw_proto is given twice");
    }
}
