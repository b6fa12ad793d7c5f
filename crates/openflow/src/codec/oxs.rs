//! OXS: statistics as a list of fields and values, OpenFlow 1.5 section 7.2.4.2.
//!
//! Headers are as in OXM, with class 0x8002 and without masks. In front of the list are two
//! reserved bytes and its length.

use crate::codec::wire::{Put, Reader};
use crate::model::action::StatTrigger;
use crate::model::error::Error;
use crate::model::flow::FlowStats;
use crate::model::stats::Aggregate;

const CLASS: u32 = 0x8002;
const DURATION: u32 = 0;
const IDLE_TIME: u32 = 1;
const FLOW_COUNT: u32 = 3;
const PACKET_COUNT: u32 = 4;
const BYTE_COUNT: u32 = 5;

/// The values that a list may contain.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) duration_ns: u64,
    pub(crate) idle_ns: u64,
    pub(crate) flows: u32,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

/// Decodes a list and its padding. Unknown fields are skipped.
pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Counters, Error> {
    reader.skip(2)?;
    let length = usize::from(reader.u16()?);
    if length < 4 {
        return Err(Error::BadLength);
    }
    let mut list = reader.part(length - 4, Error::BadLength)?;
    reader.skip(length.next_multiple_of(8) - length)?;
    let mut counters = Counters::default();
    while !list.is_empty() {
        let header = list.u32()?;
        let mut value = list.part((header & 0xff) as usize, Error::BadLength)?;
        if header >> 16 != CLASS {
            continue;
        }
        match header >> 9 & 0x7f {
            DURATION => counters.duration_ns = value.duration()?,
            IDLE_TIME => counters.idle_ns = value.duration()?,
            FLOW_COUNT => counters.flows = value.u32()?,
            PACKET_COUNT => counters.packets = value.u64()?,
            BYTE_COUNT => counters.bytes = value.u64()?,
            _ => {}
        }
    }
    Ok(counters)
}

fn put_list(out: &mut Vec<u8>, items: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.pad(4);
    items(out);
    out.set_length(start + 2, start);
    out.align(start);
}

fn put_header(out: &mut Vec<u8>, field: u32, length: u32) {
    out.put_u32(CLASS << 16 | field << 9 | length);
}

fn put_u64(out: &mut Vec<u8>, field: u32, value: u64) {
    put_header(out, field, 8);
    out.put_u64(value);
}

fn put_duration(out: &mut Vec<u8>, field: u32, nanoseconds: u64) {
    put_header(out, field, 8);
    out.put_duration(nanoseconds);
}

/// Encodes a rule's statistics.
pub(crate) fn put_rule(out: &mut Vec<u8>, stats: &FlowStats) {
    put_list(out, |out| {
        put_duration(out, DURATION, stats.duration_ns);
        put_duration(out, IDLE_TIME, u64::from(stats.idle_age) * 1_000_000_000);
        put_u64(out, PACKET_COUNT, stats.packets);
        put_u64(out, BYTE_COUNT, stats.bytes);
    });
}

/// Encodes the final statistics of a removed rule.
pub(crate) fn put_removed(out: &mut Vec<u8>, stats: &FlowStats) {
    put_list(out, |out| {
        put_duration(out, DURATION, stats.duration_ns);
        put_u64(out, PACKET_COUNT, stats.packets);
        put_u64(out, BYTE_COUNT, stats.bytes);
    });
}

/// Decodes the thresholds of a statistics trigger. An unknown field could never trigger, so it is
/// refused.
pub(crate) fn take_thresholds(reader: &mut Reader<'_>) -> Result<StatTrigger, Error> {
    reader.skip(2)?;
    let length = usize::from(reader.u16()?);
    let bad = Error::BadInstructionLength;
    let mut list = reader.part(length.checked_sub(4).ok_or(bad)?, bad)?;
    reader.skip(length.next_multiple_of(8) - length)?;
    let mut thresholds = StatTrigger::default();
    while !list.is_empty() {
        let header = list.u32()?;
        let mut value = list.part((header & 0xff) as usize, bad)?;
        match (header >> 16, header >> 9 & 0x7f) {
            (CLASS, DURATION) => thresholds.duration_ns = Some(value.duration()?),
            (CLASS, IDLE_TIME) => thresholds.idle_ns = Some(value.duration()?),
            (CLASS, PACKET_COUNT) => thresholds.packets = Some(value.u64()?),
            (CLASS, BYTE_COUNT) => thresholds.bytes = Some(value.u64()?),
            _ => return Err(Error::UnsupportedInstruction),
        }
        if !value.is_empty() {
            return Err(bad);
        }
    }
    Ok(thresholds)
}

/// Encodes the thresholds of a statistics trigger.
pub(crate) fn put_thresholds(out: &mut Vec<u8>, trigger: &StatTrigger) {
    put_list(out, |out| {
        if let Some(duration) = trigger.duration_ns {
            put_duration(out, DURATION, duration);
        }
        if let Some(idle) = trigger.idle_ns {
            put_duration(out, IDLE_TIME, idle);
        }
        if let Some(packets) = trigger.packets {
            put_u64(out, PACKET_COUNT, packets);
        }
        if let Some(bytes) = trigger.bytes {
            put_u64(out, BYTE_COUNT, bytes);
        }
    });
}

/// Encodes sums over rules.
pub(crate) fn put_aggregate(out: &mut Vec<u8>, sums: &Aggregate) {
    put_list(out, |out| {
        put_u64(out, PACKET_COUNT, sums.packets);
        put_u64(out, BYTE_COUNT, sums.bytes);
        put_header(out, FLOW_COUNT, 4);
        out.put_u32(sums.flows);
    });
}
