//! Parses connection tracking: `ct(...)` and `nat(...)`.

use super::actions::{nested, subfield};
use super::values::bounded;
use super::{Error, Pair, PortNames, Result, pairs};
use crate::model::action::Action;
use crate::model::conntrack::{Ct, CtZone, Nat, NatDirection, NatRange};
use std::net::IpAddr;

/// Parses `ct(commit,zone=5,nat(src=10.0.0.1),exec(set_field:1->ct_mark),table=2)`.
pub(super) fn ct(text: &str, names: PortNames<'_>, depth: usize) -> Result<Action> {
    let mut ct = Ct {
        commit: false,
        force: false,
        zone: CtZone::Number(0),
        table: None,
        alg: 0,
        actions: Vec::new(),
    };
    let mut translation = None;
    for Pair { key, value, .. } in pairs(text) {
        match key {
            "commit" => ct.commit = true,
            "force" => ct.force = true,
            "table" => {
                ct.table = match bounded(value, 8, key)? as u8 {
                    255 => return Err(Error::new(format!("invalid table {value}"))),
                    table => Some(table),
                };
            }
            "zone" => {
                ct.zone = match value.parse::<u16>() {
                    Ok(zone) => CtZone::Number(zone),
                    Err(_) => CtZone::Field(subfield(value)?),
                };
            }
            "alg" => {
                ct.alg = match value {
                    "ftp" => 21,
                    "tftp" => 69,
                    number => bounded(number, 16, key)? as u16,
                };
            }
            "nat" => translation = Some(Action::Nat(Box::new(nat(value)?))),
            "exec" => ct.actions = nested(value, names, depth)?,
            other => {
                return Err(Error::new(format!(
                    "invalid argument to \"ct\" action: `{other}'"
                )));
            }
        }
    }
    if ct.force && !ct.commit {
        return Err(Error::new(
            "\"force\" flag requires \"commit\" flag in \"ct\" action",
        ));
    }
    // As on the wire and in dumps, it stands in front.
    ct.actions.splice(0..0, translation);
    Ok(Action::Ct(Box::new(ct)))
}

/// Parses the inside of `nat(src=10.0.0.1-10.0.0.9:1000-2000,random)`.
fn nat(text: &str) -> Result<Nat> {
    let mut nat = Nat::default();
    for Pair { key, value, .. } in pairs(text) {
        match key {
            "src" | "dst" => {
                let direction = match key {
                    "src" => NatDirection::Source,
                    _ => NatDirection::Destination,
                };
                if nat.direction.is_some_and(|other| other != direction) {
                    return Err(Error::new("May only specify one of \"src\" or \"dst\"."));
                }
                nat.direction = Some(direction);
                if !value.is_empty() {
                    nat.range = Some(range(value)?);
                }
            }
            "persistent" => nat.persistent = true,
            "hash" => nat.hash = true,
            "random" => nat.random = true,
            other => {
                return Err(Error::new(format!(
                    "invalid key \"{other}\" in \"nat\" argument"
                )));
            }
        }
    }
    if nat.hash && nat.random {
        return Err(Error::new("Both \"hash\" and \"random\" are not allowed."));
    }
    if nat.direction.is_none() && (nat.persistent || nat.hash || nat.random) {
        return Err(Error::new("Flags allowed only with \"src\" or \"dst\"."));
    }
    Ok(nat)
}

/// Parses `10.0.0.1`, `10.0.0.1-10.0.0.9:80`, `[fe80::1]-[fe80::9]:1000-2000`.
fn range(text: &str) -> Result<NatRange> {
    let bad = || Error::new(format!("invalid NAT range `{text}'"));
    let (addresses, ports) = match text.rfind([']', ':']) {
        // The colons are those of a bare IPv6 address.
        Some(_) if !text.contains('[') && text.matches(':').count() > 1 => (text, None),
        Some(at) if text.as_bytes()[at] == b':' => (&text[..at], Some(&text[at + 1..])),
        _ => (text, None),
    };
    let address = |text: &str| {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().map_err(|_| bad())
    };
    let (min, max) = match addresses.split_once('-') {
        Some((min, max)) => (address(min)?, Some(address(max)?)),
        None => (address(addresses)?, None),
    };
    let port = |text: &str| {
        text.parse::<u16>()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(bad)
    };
    let (min_port, max_port) = match ports.map(|ports| ports.split_once('-').unwrap_or((ports, "")))
    {
        None => (0, 0),
        Some((min, "")) => (port(min)?, 0),
        Some((min, max)) => (port(min)?, port(max)?),
    };
    let backwards = max.is_some_and(|max| max.is_ipv4() != min.is_ipv4() || max < min);
    if backwards || min.is_unspecified() && max.is_some() || max_port > 0 && max_port < min_port {
        return Err(bad());
    }
    Ok(NatRange {
        min,
        max,
        min_port,
        max_port,
    })
}

#[cfg(test)]
mod tests {
    use crate::text::{format, parse};

    /// What is parsed is printed as `ovs-ofctl` prints it.
    #[test]
    fn texts_are_parsed_and_printed() {
        for text in [
            "ct()",
            "ct(commit)",
            "ct(commit,force,table=5,zone=7)",
            "ct(table=1,zone=NXM_NX_REG0[0..15])",
            "ct(commit,nat(src))",
            "ct(nat,table=3)",
            "ct(commit,table=3,nat(src=10.0.0.1-10.0.0.9:1000-2000,random))",
            "ct(commit,nat(dst=[fe80::1]:80,hash))",
            "ct(commit,nat(src=fe80::1-fe80::9))",
            "ct(commit,exec(load:0x1->NXM_NX_CT_MARK[],move:NXM_NX_REG1[]->NXM_NX_CT_LABEL[0..31]))",
            "ct(commit,alg=ftp)",
            "ct_clear",
        ] {
            let actions = parse::actions(text, &parse::no_names).expect(text);
            let mut printed = String::new();
            format::actions(&mut printed, &actions);
            let again = parse::actions(&printed, &parse::no_names).expect(&printed);
            assert_eq!(actions, again, "{text} is printed as {printed}");
        }
    }

    #[test]
    fn invalid_ct_actions_are_refused() {
        for text in [
            "ct(force)",
            "ct(table=255)",
            "ct(nonsense)",
            "ct(zone=70000)",
            "ct(commit,nat(src=10.0.0.1,dst=10.0.0.2))",
            "ct(commit,nat(src=10.0.0.9-10.0.0.1))",
            "ct(commit,nat(src=10.0.0.1:80-70))",
            "ct(commit,nat(src=10.0.0.1:0))",
            "ct(commit,nat(src=10.0.0.1-fe80::1))",
            "ct(commit,nat(random))",
            "ct(commit,nat(src=10.0.0.1,hash,random))",
            "nat(src=10.0.0.1)",
        ] {
            assert!(parse::actions(text, &parse::no_names).is_err(), "{text}");
        }
    }
}
