//! Encoding of Nicira's actions with structured arguments; see `nicira_decode`.

use crate::codec::action_encode::nicira;
use crate::codec::oxm;
use crate::codec::wire::Put;
use crate::model::action::{Bundle, Learn, LearnSource, LearnTarget, Multipath, Sample, Subfield};
use crate::model::port;
use packet::Field;

/// In every version, fields have their NXM headers if there is one.
const NXM: u8 = 1;

fn packed(subfield: Subfield) -> u16 {
    subfield.start << 6 | (subfield.bits - 1)
}

pub(crate) fn learn(out: &mut Vec<u8>, learn: &Learn) {
    let second = learn.limit != 0 || learn.result.is_some();
    nicira(out, if second { 45 } else { 16 }, |out| {
        out.put_u16(learn.idle_timeout);
        out.put_u16(learn.hard_timeout);
        out.put_u16(learn.priority);
        out.put_u64(learn.cookie);
        let flags = u16::from(learn.send_flow_rem)
            | u16::from(learn.delete_learned) << 1
            | u16::from(learn.result.is_some()) << 2;
        out.put_u16(flags);
        out.put_u8(learn.table);
        out.put_u8(0);
        out.put_u16(learn.fin_idle_timeout);
        out.put_u16(learn.fin_hard_timeout);
        if second {
            out.put_u32(learn.limit);
            out.put_u16(learn.result.map_or(0, |result| result.start));
            out.pad(2);
        }
        if let Some(result) = learn.result {
            oxm::put_header(out, result.field, NXM);
        }
        for spec in &learn.specs {
            learn_spec(out, &spec.source, &spec.target);
        }
    });
}

fn learn_spec(out: &mut Vec<u8>, source: &LearnSource, target: &LearnTarget) {
    let (immediate, bits) = match source {
        LearnSource::Field(from) => (0, from.bits),
        LearnSource::Immediate { bits, .. } => (0x2000, *bits),
    };
    let kind = match target {
        LearnTarget::Match(_) => 0,
        LearnTarget::Load(_) => 0x0800,
        LearnTarget::Output => 0x1000,
    };
    out.put_u16(immediate | kind | bits);
    match source {
        LearnSource::Field(from) => field(out, from),
        LearnSource::Immediate { value, bits } => {
            let bytes = 2 * usize::from(*bits).div_ceil(16);
            out.put(&value.to_be_bytes()[16 - bytes..]);
        }
    }
    if let LearnTarget::Match(to) | LearnTarget::Load(to) = target {
        field(out, to);
    }
}

fn field(out: &mut Vec<u8>, part: &Subfield) {
    oxm::put_header(out, part.field, NXM);
    out.put_u16(part.start);
}

pub(crate) fn multipath(out: &mut Vec<u8>, multipath: &Multipath) {
    nicira(out, 10, |out| {
        out.put_u16(multipath.fields as u16);
        out.put_u16(multipath.basis);
        out.pad(2);
        out.put_u16(multipath.algorithm as u16);
        out.put_u16(multipath.max_link);
        out.put_u32(multipath.arg);
        out.pad(2);
        out.put_u16(packed(multipath.dst));
        oxm::put_header(out, multipath.dst.field, NXM);
    });
}

pub(crate) fn bundle(out: &mut Vec<u8>, bundle: &Bundle) {
    nicira(out, if bundle.dst.is_some() { 13 } else { 12 }, |out| {
        out.put_u16(u16::from(!bundle.active_backup));
        out.put_u16(bundle.fields as u16);
        out.put_u16(bundle.basis);
        out.put_u32(2); // NXM_OF_IN_PORT
        out.put_u16(bundle.members.len() as u16);
        match bundle.dst {
            Some(dst) => {
                out.put_u16(packed(dst));
                oxm::put_header(out, dst.field, NXM);
                out.pad(4);
            }
            None => out.pad(10),
        }
        for member in &bundle.members {
            out.put_u16(*member as u16);
        }
    });
}

pub(crate) fn sample(out: &mut Vec<u8>, sample: &Sample) {
    let subtype = match (sample.direction, sample.port) {
        (0, port::ANY) => 29,
        (0, _) => 38,
        _ => 41,
    };
    nicira(out, subtype, |out| {
        out.put_u16(sample.probability);
        out.put_u32(sample.collector_set);
        out.put_u32(sample.domain);
        out.put_u32(sample.point);
        if subtype != 29 {
            out.put_u16(sample.port as u16);
            out.put_u8(sample.direction);
        }
    });
}

pub(crate) fn fin_timeout(out: &mut Vec<u8>, idle: u16, hard: u16) {
    nicira(out, 19, |out| {
        out.put_u16(idle);
        out.put_u16(hard);
    });
}

pub(crate) fn check_pkt_larger(out: &mut Vec<u8>, max_len: u16, dst: Subfield) {
    nicira(out, 49, |out| {
        out.put_u16(max_len);
        out.put_u16(dst.start);
        header_in(out, dst.field, 10);
    });
}

pub(crate) fn delete_field(out: &mut Vec<u8>, field: Field) {
    nicira(out, 50, |out| header_in(out, field, 14));
}

/// Writes a field's header and zeroes, `n` bytes together.
fn header_in(out: &mut Vec<u8>, field: Field, n: usize) {
    let start = out.len();
    oxm::put_header(out, field, NXM);
    out.resize(start + n, 0);
}
