//! Formats Nicira's actions with structured arguments: learning, hashing to a link or port,
//! sampling, connection tracking, encapsulation.

use super::actions::{actions, subfield};
use super::{add, hexadecimal, ipv4, ipv6, port, value};
use crate::model::action::{
    Action, Bundle, HashFields, Learn, LearnSource, LearnSpec, LearnTarget, Multipath,
    MultipathAlgorithm, Sample,
};
use crate::model::conntrack::{
    Ct, CtZone, Encap, EncapProperty, Nat, NatDirection, NatRange, PACKET_TYPE_ETHERNET,
    PACKET_TYPE_NEXT, PACKET_TYPE_NSH,
};
use crate::model::port as number;
use crate::model::steering::Target;
use packet::Value;
use std::net::IpAddr;

/// The default priority, which is not printed.
const DEFAULT_PRIORITY: u16 = 32768;

/// Writes one of these actions; nothing for other actions.
pub(super) fn one(out: &mut String, action: &Action) {
    match action {
        Action::Learn(action) => learn(out, action),
        Action::Multipath(action) => multipath(out, action),
        Action::Bundle(action) => bundle(out, action),
        Action::CheckPktLarger { max_len, dst } => {
            add(out, format_args!("check_pkt_larger({max_len})->"));
            subfield(out, dst);
        }
        Action::Sample(action) => sample(out, action),
        Action::FinTimeout { idle, hard } => fin_timeout(out, *idle, *hard),
        Action::DeleteField(field) => {
            add(out, format_args!("delete_field:{}", field.def().name));
        }
        Action::Ct(action) => ct(out, action),
        Action::CtClear => out.push_str("ct_clear"),
        Action::Nat(action) => nat(out, action),
        Action::Encap(action) => encap(out, action),
        Action::Decap(packet_type) => decap(out, *packet_type),
        Action::DecNshTtl => out.push_str("dec_nsh_ttl"),
        Action::SetFcf(fcf) => {
            let priority = if fcf.priority { ",priority" } else { "" };
            add(out, format_args!("set_fcf(vm={}{priority})", fcf.vm));
        }
        // Occurs only in packet-outs, which have no text form.
        Action::Steer(Target::Datapath) => out.push_str("steer(datapath)"),
        Action::Steer(Target::Device(name)) => add(out, format_args!("steer({name})")),
        _ => {}
    }
}

/// Ends a list of items that each end with a comma.
fn close(out: &mut String) {
    if out.ends_with(',') {
        out.pop();
    }
    out.push(')');
}

fn learn(out: &mut String, learn: &Learn) {
    add(out, format_args!("learn(table={}", learn.table));
    let mut timeout = |name: &str, seconds: u16| {
        if seconds != 0 {
            add(out, format_args!(",{name}={seconds}"));
        }
    };
    timeout("idle_timeout", learn.idle_timeout);
    timeout("hard_timeout", learn.hard_timeout);
    timeout("fin_idle_timeout", learn.fin_idle_timeout);
    timeout("fin_hard_timeout", learn.fin_hard_timeout);
    if learn.priority != DEFAULT_PRIORITY {
        add(out, format_args!(",priority={}", learn.priority));
    }
    if learn.send_flow_rem {
        out.push_str(",send_flow_rem");
    }
    if learn.delete_learned {
        out.push_str(",delete_learned");
    }
    if learn.cookie != 0 {
        add(out, format_args!(",cookie={:#x}", learn.cookie));
    }
    if learn.limit != 0 {
        add(out, format_args!(",limit={}", learn.limit));
    }
    if let Some(result) = &learn.result {
        out.push_str(",result_dst=");
        subfield(out, result);
    }
    for spec in &learn.specs {
        out.push(',');
        learn_spec(out, spec);
    }
    out.push(')');
}

fn learn_spec(out: &mut String, spec: &LearnSpec) {
    match (&spec.source, &spec.target) {
        (LearnSource::Immediate { value: bits, .. }, LearnTarget::Match(dst)) => {
            let def = dst.field.def();
            if dst.start == 0 && usize::from(dst.bits) == def.action_bits {
                add(out, format_args!("{}=", def.name));
                let place = bits >> def.wire_shift << def.shift;
                value(
                    out,
                    dst.field,
                    &Value::from_u128(place, def.bytes),
                    &def.place(),
                );
            } else {
                subfield(out, dst);
                out.push('=');
                hexadecimal(out, *bits);
            }
        }
        (LearnSource::Field(src), LearnTarget::Match(dst)) => {
            subfield(out, dst);
            if (src.field, src.start) != (dst.field, dst.start) {
                out.push('=');
                subfield(out, src);
            }
        }
        (LearnSource::Immediate { value: bits, .. }, LearnTarget::Load(dst)) => {
            out.push_str("load:");
            hexadecimal(out, *bits);
            out.push_str("->");
            subfield(out, dst);
        }
        (LearnSource::Field(src), LearnTarget::Load(dst)) => {
            out.push_str("load:");
            subfield(out, src);
            out.push_str("->");
            subfield(out, dst);
        }
        (LearnSource::Field(src), LearnTarget::Output) => {
            out.push_str("output:");
            subfield(out, src);
        }
        // The decoder refuses an output to an immediate value.
        (LearnSource::Immediate { value: bits, .. }, LearnTarget::Output) => {
            out.push_str("output:");
            hexadecimal(out, *bits);
        }
    }
}

/// Returns the name of the hashed fields in `multipath`, `bundle` and select groups.
pub fn hash_fields(fields: HashFields) -> &'static str {
    match fields {
        HashFields::EthSrc => "eth_src",
        HashFields::SymmetricL4 => "symmetric_l4",
        HashFields::SymmetricL3L4 => "symmetric_l3l4",
        HashFields::SymmetricL3L4Udp => "symmetric_l3l4+udp",
        HashFields::NwSrc => "nw_src",
        HashFields::NwDst => "nw_dst",
        HashFields::SymmetricL3 => "symmetric_l3",
    }
}

fn multipath(out: &mut String, multipath: &Multipath) {
    let algorithm = match multipath.algorithm {
        MultipathAlgorithm::ModuloN => "modulo_n",
        MultipathAlgorithm::HashThreshold => "hash_threshold",
        MultipathAlgorithm::Hrw => "hrw",
        MultipathAlgorithm::IterHash => "iter_hash",
    };
    add(
        out,
        format_args!(
            "multipath({},{},{algorithm},{},{},",
            hash_fields(multipath.fields),
            multipath.basis,
            u32::from(multipath.max_link) + 1,
            multipath.arg
        ),
    );
    subfield(out, &multipath.dst);
    out.push(')');
}

fn bundle(out: &mut String, bundle: &Bundle) {
    let algorithm = if bundle.active_backup {
        "active_backup"
    } else {
        "hrw"
    };
    let name = if bundle.dst.is_some() {
        "bundle_load"
    } else {
        "bundle"
    };
    add(
        out,
        format_args!(
            "{name}({},{},{algorithm},ofport,",
            hash_fields(bundle.fields),
            bundle.basis
        ),
    );
    if let Some(dst) = &bundle.dst {
        subfield(out, dst);
        out.push(',');
    }
    out.push_str("members:");
    for (index, member) in bundle.members.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        port(out, *member);
    }
    out.push(')');
}

fn sample(out: &mut String, sample: &Sample) {
    add(
        out,
        format_args!(
            "sample(probability={},collector_set_id={},obs_domain_id={},obs_point_id={}",
            sample.probability, sample.collector_set, sample.domain, sample.point
        ),
    );
    if sample.port != number::ANY {
        out.push_str(",sampling_port=");
        port(out, sample.port);
    }
    match sample.direction {
        1 => out.push_str(",ingress"),
        2 => out.push_str(",egress"),
        _ => {}
    }
    out.push(')');
}

fn fin_timeout(out: &mut String, idle: u16, hard: u16) {
    out.push_str("fin_timeout(");
    if idle != 0 {
        add(out, format_args!("idle_timeout={idle},"));
    }
    if hard != 0 {
        add(out, format_args!("hard_timeout={hard},"));
    }
    close(out);
}

fn ct(out: &mut String, ct: &Ct) {
    out.push_str("ct(");
    if ct.commit {
        out.push_str("commit,");
    }
    if ct.force {
        out.push_str("force,");
    }
    if let Some(table) = ct.table {
        add(out, format_args!("table={table},"));
    }
    match &ct.zone {
        CtZone::Number(0) => {}
        CtZone::Number(zone) => add(out, format_args!("zone={zone},")),
        CtZone::Field(part) => {
            out.push_str("zone=");
            subfield(out, part);
            out.push(',');
        }
    }
    // A leading `nat` is written in front of `exec`.
    let mut rest = &ct.actions[..];
    if let Some((Action::Nat(first), others)) = rest.split_first() {
        nat(out, first);
        out.push(',');
        rest = others;
    }
    if !rest.is_empty() {
        out.push_str("exec(");
        actions(out, rest);
        out.push_str("),");
    }
    match ct.alg {
        0 => {}
        21 => out.push_str("alg=ftp,"),
        69 => out.push_str("alg=tftp,"),
        alg => add(out, format_args!("alg={alg},")),
    }
    close(out);
}

fn nat(out: &mut String, nat: &Nat) {
    out.push_str("nat");
    let Some(direction) = nat.direction else {
        return;
    };
    out.push_str(match direction {
        NatDirection::Source => "(src",
        NatDirection::Destination => "(dst",
    });
    if let Some(range) = &nat.range {
        nat_range(out, range);
        for (on, name) in [
            (nat.persistent, "persistent,"),
            (nat.hash, "hash,"),
            (nat.random, "random,"),
        ] {
            out.push_str(if on { name } else { "" });
        }
    }
    close(out);
}

fn nat_range(out: &mut String, range: &NatRange) {
    let bracketed = range.min_port != 0;
    let address = |out: &mut String, address: IpAddr| match address {
        IpAddr::V4(address) => ipv4(out, u32::from(address).into()),
        IpAddr::V6(address) => {
            out.push_str(if bracketed { "[" } else { "" });
            ipv6(out, address.into());
            out.push_str(if bracketed { "]" } else { "" });
        }
    };
    out.push('=');
    address(out, range.min);
    if let Some(max) = range.max.filter(|max| *max != range.min) {
        out.push('-');
        address(out, max);
    }
    if range.min_port != 0 {
        add(out, format_args!(":{}", range.min_port));
        if range.max_port != 0 && range.max_port != range.min_port {
            add(out, format_args!("-{}", range.max_port));
        }
    }
    out.push(',');
}

fn encap(out: &mut String, encap: &Encap) {
    out.push_str(match encap.packet_type {
        PACKET_TYPE_ETHERNET => "encap(ethernet",
        PACKET_TYPE_NSH => "encap(nsh",
        _ => "encap(UNKNOWN",
    });
    if !encap.properties.is_empty() {
        out.push('(');
        for property in &encap.properties {
            match property {
                EncapProperty::NshMdType(kind) => add(out, format_args!("md_type={kind},")),
                EncapProperty::NshTlv { class, kind, value } => {
                    add(out, format_args!("tlv(0x{class:04x},{kind},"));
                    bytes_as_number(out, value);
                    out.push_str("),");
                }
            }
        }
        close(out);
    }
    out.push(')');
}

/// Writes bytes as one hexadecimal number without leading zeroes.
fn bytes_as_number(out: &mut String, bytes: &[u8]) {
    let Some(first) = bytes.iter().position(|byte| *byte != 0) else {
        return out.push('0');
    };
    add(out, format_args!("{:#x}", bytes[first]));
    for byte in &bytes[first + 1..] {
        add(out, format_args!("{byte:02x}"));
    }
}

fn decap(out: &mut String, packet_type: u32) {
    out.push_str("decap(");
    if packet_type != PACKET_TYPE_NEXT {
        add(
            out,
            format_args!("packet_type(ns={},type=", packet_type >> 16),
        );
        hexadecimal(out, (packet_type & 0xffff).into());
        out.push(')');
    }
    out.push(')');
}
