//! Parses matches, actions and rules in the notation of `ovs-ofctl`: what [`crate::format`] writes,
//! and what people type.
//!
//! `matching` parses the left side of a rule, `packet` the fields of one packet (exact, with
//! prerequisites in front of the fields that need them), `actions` and [`instructions`] the right
//! side, [`flow`] a whole rule, `group` and `meter` what rules refer to. An error describes, in
//! Open vSwitch's words, what is wrong, and quotes it.

mod actions;
mod connection;
mod group;
mod matching;
mod meter;
mod nicira;
mod rule;
mod values;

use crate::model::port::{self, PortNo};
use packet::Field;

pub use self::actions::{actions, instructions};
pub use self::group::group;
pub use self::matching::{matching, packet};
pub use self::meter::meter;
pub use self::rule::flow;
pub use self::values::{ct_state, ethernet, number};

/// The description of an error in a text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

impl Error {
    fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }
}

type Result<T> = std::result::Result<T, Error>;

/// Maximum nesting of actions.
const DEPTH: usize = 16;

/// Finds a port by its name.
pub type PortNames<'a> = &'a dyn Fn(&str) -> Option<PortNo>;

/// Finds no port by any name.
pub fn no_names(_: &str) -> Option<PortNo> {
    None
}

/// Returns a reserved port by its name, in any case.
fn reserved(name: &str) -> Option<PortNo> {
    let known = [
        ("IN_PORT", port::IN_PORT),
        ("TABLE", port::TABLE),
        ("NORMAL", port::NORMAL),
        ("FLOOD", port::FLOOD),
        ("ALL", port::ALL),
        ("CONTROLLER", port::CONTROLLER),
        ("LOCAL", port::LOCAL),
        ("ANY", port::ANY),
        ("NONE", port::ANY),
    ];
    known
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, number)| *number)
}

/// Parses a port: a number of 16 or 32 bits, a reserved name, or a port's own name, which may be in
/// quotes.
pub fn port(text: &str, names: PortNames<'_>) -> Option<PortNo> {
    let name = text
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    if let Some(name) = name {
        return names(name);
    }
    if let Some(number) = number(text) {
        let number = u32::try_from(number).ok()?;
        return Some(u16::try_from(number).map_or(number, port::from_u16))
            .filter(|number| port::to_u16(*number).is_some());
    }
    reserved(text).or_else(|| names(text))
}

/// One `key`, `key=value`, `key:value` or `key(value)` of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair<'t> {
    key: &'t str,
    /// Empty if there is none.
    value: &'t str,
    /// What follows directly behind the closing bracket, such as the `->reg0[0]` of
    /// `check_pkt_larger(9)->reg0[0]`.
    tail: &'t str,
}

/// Splits a list at commas and white space outside brackets and quotes.
fn pairs(text: &str) -> Pairs<'_> {
    Pairs { rest: text }
}

struct Pairs<'t> {
    rest: &'t str,
}

impl<'t> Iterator for Pairs<'t> {
    type Item = Pair<'t>;

    fn next(&mut self) -> Option<Pair<'t>> {
        let text = self
            .rest
            .trim_start_matches(|letter: char| letter == ',' || letter.is_ascii_whitespace());
        if text.is_empty() {
            self.rest = "";
            return None;
        }
        let end = word_end(text);
        let (word, rest) = text.split_at(end);
        self.rest = rest;
        let quoted = word.starts_with('"');
        let Some(at) = word.find([':', '=', '(']).filter(|_| !quoted) else {
            return Some(Pair {
                key: word,
                value: "",
                tail: "",
            });
        };
        let key = &word[..at];
        if word.as_bytes()[at] != b'(' {
            return Some(Pair {
                key,
                value: &word[at + 1..],
                tail: "",
            });
        }
        let close = closing(&word[at..]).map_or(word.len(), |close| at + close);
        Some(Pair {
            key,
            value: &word[at + 1..close],
            tail: word.get(close + 1..).unwrap_or(""),
        })
    }
}

/// Returns the end of the first item of a list.
fn word_end(text: &str) -> usize {
    let (mut depth, mut quoted) = (0_usize, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return at,
            byte if depth == 0 && byte.is_ascii_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}

/// Returns the position of the bracket that closes the one at the beginning.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' if depth <= 1 => return Some(at),
            b')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns a field by its name in matches (`reg0`, `tp_src`) or in Nicira's notation
/// (`NXM_NX_REG0`, `OXM_OF_...`).
pub fn field(name: &str) -> Option<Field> {
    let found = Field::by_name(name).filter(|field| *field != Field::Fcf);
    found.or_else(|| {
        let known = |def: &&packet::fields::FieldDef| {
            let nxm = crate::text::format::nxm_name(def.field);
            !nxm.is_empty() && nxm == name
        };
        packet::fields::FIELDS
            .iter()
            .find(known)
            .map(|def| def.field)
            .or_else(|| other_notation(name))
    })
}

/// Returns a field by its name in the other class, for fields that are in both (`OXM_OF_ETH_SRC`
/// besides `NXM_OF_ETH_SRC`).
fn other_notation(name: &str) -> Option<Field> {
    let lower = name.to_ascii_lowercase();
    let tail = lower
        .strip_prefix("oxm_of_")
        .or_else(|| lower.strip_prefix("nxm_of_"))
        .or_else(|| lower.strip_prefix("nxm_nx_"))?;
    let tail = match tail {
        "ipv4_src" => "ip_src",
        "ipv4_dst" => "ip_dst",
        "icmpv4_type" => "icmp_type",
        "icmpv4_code" => "icmp_code",
        "tunnel_id" => "tun_id",
        "ipv6_flabel" => "ipv6_label",
        "ipv6_nd_target" => "nd_target",
        "ipv6_nd_sll" => "nd_sll",
        "ipv6_nd_tll" => "nd_tll",
        "in_port" if lower.starts_with("oxm") => "in_port_oxm",
        other => other,
    };
    Field::by_name(tail)
}
