//! Parses Nicira's actions with structured arguments.

use super::actions::{arrow, subfield, to_port};
use super::values::{bounded, of_field};
use super::{Error, Pair, PortNames, Result, field, number, pairs};
use crate::model::action::{
    Action, Bundle, HashFields, Learn, LearnSource, LearnSpec, LearnTarget, Multipath,
    MultipathAlgorithm, Sample,
};
use crate::model::port;

fn u16_of(text: &str, what: &str) -> Result<u16> {
    Ok(bounded(text, 16, what)? as u16)
}

fn u32_of(text: &str, what: &str) -> Result<u32> {
    Ok(bounded(text, 32, what)? as u32)
}

/// Parses bytes such as `01.02.03`.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>> {
    text.split('.')
        .filter(|_| !text.is_empty())
        .map(|byte| {
            u8::from_str_radix(byte, 16)
                .ok()
                .filter(|_| byte.len() == 2)
        })
        .collect::<Option<_>>()
        .ok_or_else(|| Error::new("bad hex digit in `note' or `userdata'"))
}

/// Parses `CONTROLLER:MAX_LEN` or `controller(...)`.
pub(super) fn controller(text: &str) -> Result<Action> {
    let (mut max_len, mut controller_id, mut reason) = (u16::MAX, 0, 1);
    let (mut userdata, mut pause, mut meter_id) = (Vec::new(), false, None);
    if !text.is_empty() && number(text).is_some() {
        max_len = u16_of(text, "max_len")?;
    } else {
        for Pair { key, value, .. } in pairs(text) {
            match key {
                "reason" => reason = packet_in_reason(value)?,
                "max_len" => max_len = u16_of(value, key)?,
                "id" => controller_id = u16_of(value, key)?,
                "userdata" => userdata = bytes(value)?,
                "pause" => pause = true,
                "meter_id" => meter_id = Some(u32_of(value, key)?),
                _ => {
                    return Err(Error::new(format!(
                        "unknown key \"{key}\" parsing controller action"
                    )));
                }
            }
        }
    }
    let plain =
        reason == 1 && controller_id == 0 && userdata.is_empty() && !pause && meter_id.is_none();
    if plain {
        return Ok(Action::Output {
            port: port::CONTROLLER,
            max_len,
        });
    }
    Ok(Action::Controller {
        max_len,
        controller_id,
        reason,
        userdata,
        pause,
        meter_id,
    })
}

fn packet_in_reason(text: &str) -> Result<u8> {
    const NAMES: [&str; 6] = [
        "no_match",
        "action",
        "invalid_ttl",
        "action_set",
        "group",
        "packet_out",
    ];
    let named = NAMES.iter().position(|name| *name == text);
    named
        .map(|reason| reason as u8)
        .or_else(|| number(text).and_then(|reason| u8::try_from(reason).ok()))
        .ok_or_else(|| Error::new(format!("unknown reason \"{text}\"")))
}

/// Parses `conjunction(ID,K/N)`.
pub(super) fn conjunction(text: &str) -> Result<Action> {
    let bad = || Error::new("conjunction syntax is `conjunction(id,i/n)'");
    let (id, rest) = text.split_once(',').ok_or_else(bad)?;
    let (clause, clauses) = rest.trim().split_once('/').ok_or_else(bad)?;
    let (clause, clauses) = (
        bounded(clause, 8, "clause")? as u8,
        bounded(clauses, 8, "clauses")? as u8,
    );
    if !(2..=64).contains(&clauses) {
        return Err(Error::new(
            "conjunction must have at least 2 and at most 64 clauses",
        ));
    }
    if clause < 1 || clause > clauses {
        return Err(Error::new(
            "clause index must be at least 1 and at most the number of clauses",
        ));
    }
    Ok(Action::Conjunction {
        id: u32_of(id.trim(), "id")?,
        clause: clause - 1,
        clauses,
    })
}

/// Parses `fin_timeout(idle_timeout=5,hard_timeout=10)`.
pub(super) fn fin_timeout(text: &str) -> Result<Action> {
    let (mut idle, mut hard) = (0, 0);
    for Pair { key, value, .. } in pairs(text) {
        match key {
            "idle_timeout" => idle = u16_of(value, key)?,
            "hard_timeout" => hard = u16_of(value, key)?,
            _ => {
                return Err(Error::new(format!(
                    "invalid key '{key}' in 'fin_timeout' argument"
                )));
            }
        }
    }
    Ok(Action::FinTimeout { idle, hard })
}

/// Parses `sample(probability=N,collector_set_id=...)`.
pub(super) fn sample(text: &str, names: PortNames<'_>) -> Result<Action> {
    let mut sample = Sample {
        probability: 0,
        collector_set: 0,
        domain: 0,
        point: 0,
        port: port::ANY,
        direction: 0,
    };
    for Pair { key, value, .. } in pairs(text) {
        match key {
            "probability" => sample.probability = u16_of(value, key)?,
            "collector_set_id" => sample.collector_set = u32_of(value, key)?,
            "obs_domain_id" => sample.domain = u32_of(value, key)?,
            "obs_point_id" => sample.point = u32_of(value, key)?,
            "sampling_port" => sample.port = to_port(value, names, "sample")?,
            "ingress" => sample.direction = 1,
            "egress" => sample.direction = 2,
            _ => {
                return Err(Error::new(format!(
                    "invalid key \"{key}\" in \"sample\" argument"
                )));
            }
        }
    }
    match sample.probability {
        0 => Err(Error::new(
            "non-zero \"probability\" must be specified on sample",
        )),
        _ => Ok(Action::Sample(sample)),
    }
}

fn hash_fields(text: &str) -> Result<HashFields> {
    Ok(match text {
        "eth_src" => HashFields::EthSrc,
        "symmetric_l4" => HashFields::SymmetricL4,
        "symmetric_l3l4" => HashFields::SymmetricL3L4,
        "symmetric_l3l4+udp" => HashFields::SymmetricL3L4Udp,
        "nw_src" => HashFields::NwSrc,
        "nw_dst" => HashFields::NwDst,
        "symmetric_l3" => HashFields::SymmetricL3,
        _ => return Err(Error::new(format!("{text}: unknown fields `{text}'"))),
    })
}

/// Parses `multipath(FIELDS,BASIS,ALGORITHM,N_LINKS,ARG,DST)`.
pub(super) fn multipath(text: &str) -> Result<Action> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let [fields, basis, algorithm, links, arg, dst] = parts[..] else {
        return Err(Error::new(format!(
            "{text}: not enough arguments to multipath action"
        )));
    };
    let links = number(links)
        .filter(|links| (1..=65536).contains(links))
        .ok_or_else(|| {
            Error::new(format!(
                "{text}: n_links {links} is not in valid range 1 to 65536"
            ))
        })?;
    let dst = subfield(dst)?;
    if dst.bits < 16 && links > 1 << dst.bits {
        return Err(Error::new(format!(
            "{text}: {}-bit destination field has {} possible values, less than specified n_links {links}",
            dst.bits,
            1_u32 << dst.bits
        )));
    }
    Ok(Action::Multipath(Box::new(Multipath {
        fields: hash_fields(fields)?,
        basis: u16_of(basis, "basis")?,
        algorithm: match algorithm {
            "modulo_n" => MultipathAlgorithm::ModuloN,
            "hash_threshold" => MultipathAlgorithm::HashThreshold,
            "hrw" => MultipathAlgorithm::Hrw,
            "iter_hash" => MultipathAlgorithm::IterHash,
            _ => {
                return Err(Error::new(format!(
                    "{text}: unknown algorithm `{algorithm}'"
                )));
            }
        },
        max_link: (links - 1) as u16,
        arg: u32_of(arg, "arg")?,
        dst,
    })))
}

/// Parses `bundle(FIELDS,BASIS,ALGORITHM,ofport,members:1,2)`; `bundle_load` has a destination in
/// front of `members`.
pub(super) fn bundle(key: &str, text: &str, names: PortNames<'_>) -> Result<Action> {
    let bad = || Error::new(format!("{text}: not enough arguments to {key} action"));
    let (head, members) = text
        .split_once("members:")
        .or_else(|| text.split_once("members="))
        .or_else(|| text.split_once("slaves:"))
        .ok_or_else(bad)?;
    let head: Vec<&str> = head
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect();
    let (fields, basis, algorithm, kind, dst) = match head[..] {
        [fields, basis, algorithm, kind] if key == "bundle" => {
            (fields, basis, algorithm, kind, None)
        }
        [fields, basis, algorithm, kind, dst] if key == "bundle_load" => {
            (fields, basis, algorithm, kind, Some(subfield(dst)?))
        }
        _ => return Err(bad()),
    };
    if kind != "ofport" {
        return Err(Error::new(format!("{text}: unknown member_type `{kind}'")));
    }
    Ok(Action::Bundle(Box::new(Bundle {
        fields: hash_fields(fields)?,
        basis: u16_of(basis, "basis")?,
        active_backup: match algorithm {
            "active_backup" => true,
            "hrw" => false,
            _ => {
                return Err(Error::new(format!(
                    "{text}: unknown algorithm `{algorithm}'"
                )));
            }
        },
        members: members
            .split(',')
            .map(str::trim)
            .filter(|member| !member.is_empty())
            .map(|member| to_port(member, names, "bundle"))
            .collect::<Result<_>>()?,
        dst,
    })))
}

/// Parses `learn(table=1,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])`.
pub(super) fn learn(text: &str, names: PortNames<'_>) -> Result<Learn> {
    let mut learn = Learn {
        idle_timeout: 0,
        hard_timeout: 0,
        priority: crate::text::format::DEFAULT_PRIORITY as u16,
        cookie: 0,
        send_flow_rem: false,
        delete_learned: false,
        table: 1,
        fin_idle_timeout: 0,
        fin_hard_timeout: 0,
        limit: 0,
        result: None,
        specs: Vec::new(),
    };
    for Pair { key, value, .. } in pairs(text) {
        match key {
            "table" => {
                learn.table = bounded(value, 8, key)? as u8;
                if learn.table == 255 {
                    return Err(Error::new(format!(
                        "{text}: table id 255 not valid for `learn' action"
                    )));
                }
            }
            "priority" => learn.priority = u16_of(value, key)?,
            "idle_timeout" => learn.idle_timeout = u16_of(value, key)?,
            "hard_timeout" => learn.hard_timeout = u16_of(value, key)?,
            "fin_idle_timeout" => learn.fin_idle_timeout = u16_of(value, key)?,
            "fin_hard_timeout" => learn.fin_hard_timeout = u16_of(value, key)?,
            "cookie" => learn.cookie = bounded(value, 64, key)? as u64,
            "send_flow_rem" => learn.send_flow_rem = true,
            "delete_learned" => learn.delete_learned = true,
            "limit" => learn.limit = u32_of(value, key)?,
            "result_dst" => learn.result = Some(subfield(value)?),
            _ => learn.specs.push(learn_spec(key, value, names)?),
        }
    }
    Ok(learn)
}

fn learn_spec(key: &str, value: &str, names: PortNames<'_>) -> Result<LearnSpec> {
    match key {
        "load" => {
            let (source, dst) = arrow(key, value)?;
            let dst = subfield(dst)?;
            let source = match number(source) {
                Some(value) => immediate(value, dst.bits, source)?,
                None => LearnSource::Field(same_width(source, dst.bits)?),
            };
            Ok(LearnSpec {
                source,
                target: LearnTarget::Load(dst),
            })
        }
        "output" => Ok(LearnSpec {
            source: LearnSource::Field(subfield(value)?),
            target: LearnTarget::Output,
        }),
        _ => {
            let dst = subfield(key)?;
            let source = if value.is_empty() {
                LearnSource::Field(dst)
            } else if let Ok(source) = same_width(value, dst.bits) {
                LearnSource::Field(source)
            } else if let Some(value) = number(value) {
                immediate(value, dst.bits, key)?
            } else if let (Some(whole), true) = (field(key), !key.contains('[')) {
                let read = of_field(whole, value, names)?;
                immediate(read.value, dst.bits, value)?
            } else {
                return Err(Error::new(format!(
                    "{key}={value}: not a field, not a value"
                )));
            };
            Ok(LearnSpec {
                source,
                target: LearnTarget::Match(dst),
            })
        }
    }
}

fn same_width(text: &str, bits: u16) -> Result<crate::model::action::Subfield> {
    let source = subfield(text)?;
    if source.bits != bits {
        return Err(Error::new(format!(
            "{text}: bit widths differ ({} and {bits})",
            source.bits
        )));
    }
    Ok(source)
}

fn immediate(value: u128, bits: u16, text: &str) -> Result<LearnSource> {
    if bits < 128 && value >> bits != 0 {
        return Err(Error::new(format!(
            "{text}: value does not fit into {bits} bits"
        )));
    }
    Ok(LearnSource::Immediate { value, bits })
}
