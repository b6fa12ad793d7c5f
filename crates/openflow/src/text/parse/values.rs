//! Parses values of fields.

use super::{Error, PortNames, Result, port};
use packet::Field;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Parses a number as in C: decimal, or hexadecimal with `0x`.
pub fn number(text: &str) -> Option<u128> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if !digits.starts_with('+') => u128::from_str_radix(digits, 16).ok(),
        None if !text.starts_with('+') => text.parse().ok(),
        _ => None,
    }
}

/// Parses a number of at most `bits` bits; the error describes what is wrong.
pub(super) fn bounded(text: &str, bits: u32, what: &str) -> Result<u128> {
    let number =
        number(text).ok_or_else(|| Error::new(format!("invalid {what} value \"{text}\"")))?;
    if bits < 128 && number >> bits != 0 {
        return Err(Error::new(format!(
            "value {text} is too large for {what}, which has {bits} bits"
        )));
    }
    Ok(number)
}

/// Parses an Ethernet address, `00:11:22:33:44:55`.
pub fn ethernet(text: &str) -> Option<[u8; 6]> {
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

fn ones(bits: usize) -> u128 {
    if bits >= 128 {
        u128::MAX
    } else {
        (1 << bits) - 1
    }
}

/// A field's value and mask as numbers (low bit first).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Masked {
    pub value: u128,
    pub mask: u128,
}

const TCP_FLAGS: [&str; 12] = [
    "fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]",
];
const CT_STATES: [&str; 8] = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];

/// Parses a field's value, with an optional `/mask`. The number is that of actions and matches: the
/// whole ToS byte for `nw_tos`. The error describes what is wrong with the value, but does not name
/// the field.
pub(super) fn of_field(field: Field, text: &str, names: PortNames<'_>) -> Result<Masked> {
    use Field::*;
    let def = field.def();
    let whole = ones(def.bits) << def.wire_shift;
    let exact = |value| Ok(Masked { value, mask: whole });
    match field {
        InPort | InPortOxm | InPhyPort | ActsetOutput => match port(text, names) {
            Some(number) => exact(number.into()),
            None => Err(Error::new(format!(
                "{text}: invalid or unknown port for {}",
                def.name
            ))),
        },
        EthSrc | EthDst | ArpSha | ArpTha | NdSll | NdTll => masked(
            text,
            whole,
            |text| ethernet(text).map(bytes),
            || format!("{text}: invalid Ethernet address"),
        ),
        TunSrc | TunDst | CtNwSrc | CtNwDst | Ipv4Src | Ipv4Dst | ArpSpa | ArpTpa => address(
            text,
            32,
            |text| {
                text.parse::<Ipv4Addr>()
                    .ok()
                    .map(|address| u32::from(address).into())
            },
            || format!("{text}: invalid IP address"),
        ),
        TunIpv6Src | TunIpv6Dst | CtIpv6Src | CtIpv6Dst | Ipv6Src | Ipv6Dst | NdTarget => address(
            text,
            128,
            |text| text.parse::<Ipv6Addr>().ok().map(u128::from),
            || format!("{text}: invalid IPv6 address"),
        ),
        IpFrag => fragment(text),
        TcpFlags => flags(text, &TCP_FLAGS, whole)
            .ok_or_else(|| Error::new(format!("{text}: unknown TCP flag(s)"))),
        CtState => flags(text, &CT_STATES, whole)
            .ok_or_else(|| Error::new(format!("{text}: unknown connection tracking state flag"))),
        TunFlags => flags(text, &["oam"], whole)
            .ok_or_else(|| Error::new(format!("{text}: unknown tunnel flag(s)"))),
        PacketType => packet_type(text),
        _ => integer(field, text, whole),
    }
}

fn bytes(address: [u8; 6]) -> u128 {
    address
        .iter()
        .fold(0, |number, byte| number << 8 | u128::from(*byte))
}

fn masked(
    text: &str,
    whole: u128,
    read: impl Fn(&str) -> Option<u128>,
    error: impl Fn() -> String,
) -> Result<Masked> {
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (read(value), read(mask)),
        None => (read(text), Some(whole)),
    };
    match (value, mask) {
        (Some(value), Some(mask)) => Ok(Masked { value, mask }),
        _ => Err(Error(error())),
    }
}

/// Parses an address with a mask or a prefix length.
fn address(
    text: &str,
    bits: usize,
    read: impl Fn(&str) -> Option<u128>,
    error: impl Fn() -> String,
) -> Result<Masked> {
    let prefix = |text: &str| {
        let length: usize = text.parse().ok().filter(|length| *length <= bits)?;
        Some(ones(bits) ^ ones(bits - length))
    };
    match text.split_once('/') {
        Some((value, mask)) => {
            let mask = prefix(mask).or_else(|| read(mask));
            match (read(value), mask) {
                (Some(value), Some(mask)) => Ok(Masked { value, mask }),
                _ => Err(Error(error())),
            }
        }
        None => masked(text, ones(bits), read, error),
    }
}

/// The bytes of a number in hexadecimal with at most so many bytes, without leading zeros; None if
/// it is none.
fn long_number(text: &str, most: usize) -> Option<Vec<u8>> {
    let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) else {
        let bytes = number(text)?.to_be_bytes();
        return Some(bytes.into_iter().skip_while(|byte| *byte == 0).collect());
    };
    let digits = digits.trim_start_matches('0');
    let padded = format!("{}{digits}", &"0"[..digits.len() % 2]);
    let known = !text[2..].is_empty() && padded.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !known || padded.len() / 2 > most {
        return None;
    }
    let pairs = (0..padded.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&padded[at..at + 2], 16).ok())
        .collect()
}

/// Parses the value of a tunnel option, of any length that it can have, and its mask if it has one.
/// They have the same length.
pub(super) fn of_option(field: Field, text: &str) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
    let def = field.def();
    let bad = || Error::new(format!("{text}: bad syntax for {} value", def.name));
    let read = |part: &str| long_number(part, def.bytes).ok_or_else(bad);
    let Some((value, mask)) = text.split_once('/') else {
        return Ok((read(text)?, None));
    };
    let (value, mask) = (read(value)?, read(mask)?);
    let length = value.len().max(mask.len());
    let widen = |bytes: Vec<u8>| [vec![0; length - bytes.len()], bytes].concat();
    let (mut value, mask) = (widen(value), widen(mask));
    value
        .iter_mut()
        .zip(&mask)
        .for_each(|(value, mask)| *value &= mask);
    Ok((value, Some(mask)))
}

fn integer(field: Field, text: &str, whole: u128) -> Result<Masked> {
    let def = field.def();
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (value, Some(mask)),
        None => (text, None),
    };
    let read = |part: &str| {
        let number = number(part)
            .ok_or_else(|| Error::new(format!("{text}: bad syntax for {} value", def.name)))?;
        if def.wire_bytes < 16 && number >> (8 * def.wire_bytes) != 0 {
            return Err(Error::new(format!(
                "{text}: value too large for {}-byte field {}",
                def.wire_bytes, def.name
            )));
        }
        Ok(number)
    };
    let mask = match mask {
        Some(mask) => read(mask)?,
        None => whole,
    };
    let value = read(value)?;
    if value & !whole != 0 {
        return Err(Error::new(format!(
            "{text}: not a valid value for {}",
            def.name
        )));
    }
    Ok(Masked {
        value,
        mask: mask & whole,
    })
}

fn fragment(text: &str) -> Result<Masked> {
    let (value, mask) = match text {
        "no" => (0, 3),
        "first" => (1, 3),
        "later" => (3, 3),
        "yes" => (1, 1),
        "not_later" => (0, 2),
        _ => {
            return Err(Error::new(format!(
                "{text}: unknown fragment type (valid types are \"no\", \"yes\", \"first\", \"later\", \"not_later\")"
            )));
        }
    };
    Ok(Masked { value, mask })
}

/// Parses `(NS,TYPE)` or a number.
fn packet_type(text: &str) -> Result<Masked> {
    let inside = text
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'));
    let value = match inside.and_then(|inside| inside.split_once(',')) {
        Some((space, kind)) => match (number(space.trim()), number(kind.trim())) {
            (Some(space @ 0..=0xffff), Some(kind @ 0..=0xffff)) => Some(space << 16 | kind),
            _ => None,
        },
        None => number(text).filter(|number| *number <= u32::MAX.into()),
    };
    match value {
        Some(value) => Ok(Masked {
            value,
            mask: ones(32),
        }),
        None => Err(Error::new(format!(
            "{text}: bad syntax for packet_type value"
        ))),
    }
}

/// Parses flags: a number with an optional mask, names that are all matched (`syn|ack`), or names
/// with signs (`+syn-ack`).
fn flags(text: &str, names: &[&str], whole: u128) -> Option<Masked> {
    let bit = |name: &str| {
        let place = names.iter().position(|known| *known == name)?;
        Some(1_u128 << place)
    };
    if text.starts_with(['+', '-']) {
        let (mut value, mut mask) = (0, 0);
        let mut rest = text;
        while let Some(sign) = rest.chars().next() {
            let end = rest[1..].find(['+', '-']).map_or(rest.len(), |at| at + 1);
            let bit = bit(&rest[1..end])?;
            mask |= bit;
            if sign == '+' {
                value |= bit;
            }
            rest = &rest[end..];
        }
        return Some(Masked { value, mask });
    }
    if text.starts_with(|letter: char| letter.is_ascii_digit()) {
        let (value, mask) = match text.split_once('/') {
            Some((value, mask)) => (number(value)?, number(mask)?),
            None => (number(text)?, whole),
        };
        return (value & !whole == 0).then_some(Masked {
            value,
            mask: mask & whole,
        });
    }
    let mut value = 0;
    for name in text.split('|') {
        value |= bit(name)?;
    }
    Some(Masked { value, mask: whole })
}

/// Parses connection tracking state flags, `trk|new`; flags not named are not set.
pub fn ct_state(text: &str) -> Result<u32> {
    let mut state = 0;
    for name in text.split(['|', ',']).map(str::trim) {
        match CT_STATES.iter().position(|known| *known == name) {
            Some(bit) => state |= 1 << bit,
            None => {
                return Err(Error::new(format!(
                    "{name}: unknown connection tracking state flag"
                )));
            }
        }
    }
    Ok(state)
}
