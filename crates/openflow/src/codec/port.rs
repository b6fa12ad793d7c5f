//! Ports and queues: decoding and encoding.

use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::message::QueueRequest;
use crate::model::port::{
    self, BY_SIZE, PortConfig, PortDescription, PortFeatures, PortMod, PortNo, PortReason,
    PortState, PortStats, UNKNOWN,
};
use crate::model::stats::{QueueDescription, QueueStats};

/// Intel's experimenter id, under which Open vSwitch sends counters that OpenFlow has no names for.
const INTEL: u32 = 0x0000_aa01;
/// Packets by size and kind (`INTEL_PORT_STATS_RFC2819`).
const INTEL_BY_SIZE: u32 = 1;
/// Counters with their names (`INTEL_PORT_STATS_CUSTOM`).
const INTEL_CUSTOM: u32 = 2;
/// Most bytes of counters with their names, so that a port's record stays within a message.
const CUSTOM_MAX: usize = 32 << 10;

/// Bits of a port's configuration that later versions have kept.
const CONFIG_11: u32 = 0b110_0101;

/// Reads a port number in a version's width; converts reserved numbers to 32 bits.
pub(crate) fn take_number(r: &mut Reader<'_>, version: u8) -> Result<PortNo, Error> {
    if version == 1 {
        Ok(port::from_u16(r.u16()?))
    } else {
        r.u32()
    }
}

/// Writes a port number in a version's width.
pub(crate) fn put_number(out: &mut Vec<u8>, number: PortNo, version: u8) {
    if version == 1 {
        out.put_u16(number as u16);
    } else {
        out.put_u32(number);
    }
}

fn take_features(r: &mut Reader<'_>, version: u8) -> Result<PortFeatures, Error> {
    let bits = r.u32()?;
    Ok(if version == 1 {
        PortFeatures::from_v1_0(bits)
    } else {
        PortFeatures::from_bits_truncate(bits)
    })
}

fn put_features(out: &mut Vec<u8>, features: PortFeatures, version: u8) {
    out.put_u32(if version == 1 {
        features.to_v1_0()
    } else {
        features.bits()
    });
}

/// Decodes a description.
pub(crate) fn take_description(
    reader: &mut Reader<'_>,
    version: u8,
) -> Result<PortDescription, Error> {
    if version >= 5 {
        return take_description14(reader);
    }
    let r = reader;
    let number = take_number(r, version)?;
    if version > 1 {
        r.skip(4)?;
    }
    let hw_addr = r.mac()?;
    if version > 1 {
        r.skip(2)?;
    }
    let mut description = PortDescription {
        number,
        hw_addr,
        name: r.text(16)?,
        config: PortConfig::from_bits_truncate(r.u32()?),
        state: PortState::from_bits_truncate(r.u32()?),
        current: take_features(r, version)?,
        advertised: take_features(r, version)?,
        supported: take_features(r, version)?,
        peer: take_features(r, version)?,
        current_speed: 0,
        max_speed: 0,
    };
    if version == 1 {
        // The bits above this one are a spanning tree state, which is a number and not a set of
        // bits.
        description.state &= PortState::LINK_DOWN;
        description.current_speed = description.current.max_rate_kbps();
        description.max_speed = description.supported.max_rate_kbps();
    } else {
        description.current_speed = r.u32()?;
        description.max_speed = r.u32()?;
    }
    Ok(description)
}

fn take_description14(reader: &mut Reader<'_>) -> Result<PortDescription, Error> {
    let number = reader.u32()?;
    let length = usize::from(reader.u16()?);
    let rest = length.checked_sub(6).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    r.skip(2)?;
    let hw_addr = r.mac()?;
    r.skip(2)?;
    let mut description = PortDescription {
        number,
        hw_addr,
        name: r.text(16)?,
        config: PortConfig::from_bits_truncate(r.u32()?),
        state: PortState::from_bits_truncate(r.u32()?),
        ..PortDescription::default()
    };
    while !r.is_empty() {
        let (kind, mut p) = r.property(Error::BadPropertyLength)?;
        if kind == 0 {
            p.skip(4)?;
            description.current = take_features(&mut p, 5)?;
            description.advertised = take_features(&mut p, 5)?;
            description.supported = take_features(&mut p, 5)?;
            description.peer = take_features(&mut p, 5)?;
            description.current_speed = p.u32()?;
            description.max_speed = p.u32()?;
        }
    }
    Ok(description)
}

/// Encodes a description.
pub(crate) fn put_description(out: &mut Vec<u8>, description: &PortDescription, version: u8) {
    let start = out.len();
    put_number(out, description.number, version);
    match version {
        1 => {}
        2..=4 => out.pad(4),
        _ => {
            // Length, and two bytes of padding.
            out.put_u16(72);
            out.pad(2);
        }
    }
    out.put(&description.hw_addr);
    if version > 1 {
        out.pad(2);
    }
    out.put_text(&description.name, 16);
    let config = description.config.bits();
    out.put_u32(if version == 1 {
        config
    } else {
        config & CONFIG_11
    });
    let state = if version == 1 {
        description.state & PortState::LINK_DOWN
    } else {
        description.state
    };
    out.put_u32(state.bits());
    if version >= 5 {
        out.put_u16(0);
        out.put_u16(32);
        out.pad(4);
    }
    put_features(out, description.current, version);
    put_features(out, description.advertised, version);
    put_features(out, description.supported, version);
    put_features(out, description.peer, version);
    if version > 1 {
        out.put_u32(description.current_speed);
        out.put_u32(description.max_speed);
    }
    debug_assert!(version < 5 || out.len() - start == 72);
}

/// Decodes the reason of a port status message.
pub(crate) fn reason(number: u8) -> Result<PortReason, Error> {
    Ok(match number {
        0 => PortReason::Add,
        1 => PortReason::Delete,
        2 => PortReason::Modify,
        _ => return Err(Error::BadReason),
    })
}

/// Decodes a change of a port's configuration.
pub(crate) fn take_mod(r: &mut Reader<'_>, version: u8) -> Result<PortMod, Error> {
    let number = take_number(r, version)?;
    let known = if version == 1 { 0x7f } else { CONFIG_11 };
    if version > 1 {
        r.skip(4)?;
        port::to_u16(number).ok_or(Error::PortModBadPort)?;
    }
    let hw_addr = r.mac()?;
    if version > 1 {
        r.skip(2)?;
    }
    let (config, mask) = (r.u32()?, r.u32()?);
    // 1.0 has no number for this error, and ignores unknown bits.
    if version > 1 && mask & !known != 0 {
        return Err(Error::PortModBadConfig);
    }
    let advertise = if version >= 5 {
        let mut advertise = PortFeatures::empty();
        while !r.is_empty() {
            let (kind, mut content) = r.property(Error::BadPropertyLength)?;
            if kind != 0 {
                return Err(Error::BadPropertyType);
            }
            advertise = take_features(&mut content, version)?;
        }
        advertise
    } else {
        let advertise = take_features(r, version)?;
        r.skip(4)?;
        advertise
    };
    Ok(PortMod {
        port: number,
        hw_addr,
        config: PortConfig::from_bits_truncate(config & known),
        mask: PortConfig::from_bits_truncate(mask & known),
        advertise,
    })
}

/// Encodes a change of a port's configuration.
pub(crate) fn put_mod(out: &mut Vec<u8>, change: &PortMod, version: u8) {
    put_number(out, change.port, version);
    if version > 1 {
        out.pad(4);
    }
    out.put(&change.hw_addr);
    if version > 1 {
        out.pad(2);
    }
    out.put_u32(change.config.bits());
    out.put_u32(change.mask.bits());
    if version >= 5 {
        if !change.advertise.is_empty() {
            out.put_u16(0);
            out.put_u16(8);
            put_features(out, change.advertise, version);
        }
    } else {
        put_features(out, change.advertise, version);
        out.pad(4);
    }
}

/// Decodes a port's counters.
pub(crate) fn take_stats(reader: &mut Reader<'_>, version: u8) -> Result<PortStats, Error> {
    if version >= 5 {
        return take_stats14(reader);
    }
    let r = reader;
    let port = take_number(r, version)?;
    r.skip(if version == 1 { 6 } else { 4 })?;
    Ok(PortStats {
        port,
        rx_packets: r.u64()?,
        tx_packets: r.u64()?,
        rx_bytes: r.u64()?,
        tx_bytes: r.u64()?,
        rx_dropped: r.u64()?,
        tx_dropped: r.u64()?,
        rx_errors: r.u64()?,
        tx_errors: r.u64()?,
        rx_frame_errors: r.u64()?,
        rx_over_errors: r.u64()?,
        rx_crc_errors: r.u64()?,
        collisions: r.u64()?,
        duration_ns: if version >= 4 { r.duration()? } else { UNKNOWN },
        by_size: None,
        custom: Vec::new(),
    })
}

fn take_stats14(reader: &mut Reader<'_>) -> Result<PortStats, Error> {
    let length = usize::from(reader.u16()?);
    let rest = length.checked_sub(2).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    r.skip(2)?;
    let mut stats = PortStats {
        port: r.u32()?,
        duration_ns: r.duration()?,
        rx_packets: r.u64()?,
        tx_packets: r.u64()?,
        rx_bytes: r.u64()?,
        tx_bytes: r.u64()?,
        rx_dropped: r.u64()?,
        tx_dropped: r.u64()?,
        rx_errors: r.u64()?,
        tx_errors: r.u64()?,
        rx_frame_errors: UNKNOWN,
        rx_over_errors: UNKNOWN,
        rx_crc_errors: UNKNOWN,
        collisions: UNKNOWN,
        by_size: None,
        custom: Vec::new(),
    };
    while !r.is_empty() {
        let (kind, mut p) = r.property(Error::BadPropertyLength)?;
        match kind {
            0 => {
                p.skip(4)?;
                stats.rx_frame_errors = p.u64()?;
                stats.rx_over_errors = p.u64()?;
                stats.rx_crc_errors = p.u64()?;
                stats.collisions = p.u64()?;
            }
            0xffff => match (p.u32()?, p.u32()?) {
                (INTEL, INTEL_BY_SIZE) => {
                    p.skip(4)?;
                    let mut counts = Box::new([UNKNOWN; BY_SIZE.len()]);
                    for count in counts.iter_mut() {
                        *count = p.u64()?;
                    }
                    stats.by_size = Some(counts);
                }
                (INTEL, INTEL_CUSTOM) => stats.custom = take_custom(&mut p)?,
                _ => {}
            },
            _ => {}
        }
    }
    Ok(stats)
}

fn take_custom(p: &mut Reader<'_>) -> Result<Vec<(String, u64)>, Error> {
    p.skip(2)?;
    let count = p.u16()?;
    let mut custom = Vec::new();
    for _ in 0..count {
        let length = usize::from(p.u8()?);
        let name = String::from_utf8_lossy(p.take(length)?).into_owned();
        custom.push((name, p.u64()?));
    }
    Ok(custom)
}

/// Appends counters with their names. The property's length leaves out the padding behind it.
fn put_custom(out: &mut Vec<u8>, custom: &[(String, u64)]) {
    let start = out.len();
    out.put_u16(0xffff);
    out.put_u16(0);
    out.put_u32(INTEL);
    out.put_u32(INTEL_CUSTOM);
    out.pad(2);
    let count_at = out.len();
    out.put_u16(0);
    let mut count = 0_u16;
    for (name, value) in custom {
        let Ok(length) = u8::try_from(name.len()) else {
            continue;
        };
        if out.len() - start + 9 + name.len() > CUSTOM_MAX {
            break;
        }
        out.put_u8(length);
        out.put(name.as_bytes());
        out.put_u64(*value);
        count += 1;
    }
    out[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
    out.set_length(start + 2, start);
    out.align(start);
}

/// Encodes a port's counters. 1.0 does not say that unknown ones are all ones, but Open vSwitch
/// sends them that way in every version.
pub(crate) fn put_stats(out: &mut Vec<u8>, stats: &PortStats, version: u8) {
    let totals = [
        stats.rx_packets,
        stats.tx_packets,
        stats.rx_bytes,
        stats.tx_bytes,
        stats.rx_dropped,
        stats.tx_dropped,
        stats.rx_errors,
        stats.tx_errors,
    ];
    let ethernet = [
        stats.rx_frame_errors,
        stats.rx_over_errors,
        stats.rx_crc_errors,
        stats.collisions,
    ];
    if version >= 5 {
        let start = out.len();
        out.put_u16(0);
        out.pad(2);
        out.put_u32(stats.port);
        out.put_duration(stats.duration_ns);
        totals.iter().for_each(|count| out.put_u64(*count));
        out.put_u16(0);
        out.put_u16(40);
        out.pad(4);
        ethernet.iter().for_each(|count| out.put_u64(*count));
        if let Some(counts) = &stats.by_size {
            out.put_u16(0xffff);
            out.put_u16(16 + 8 * BY_SIZE.len() as u16);
            out.put_u32(INTEL);
            out.put_u32(INTEL_BY_SIZE);
            out.pad(4);
            counts.iter().for_each(|count| out.put_u64(*count));
        }
        if !stats.custom.is_empty() {
            put_custom(out, &stats.custom);
        }
        out.set_length(start, start);
        return;
    }
    put_number(out, stats.port, version);
    out.pad(if version == 1 { 6 } else { 4 });
    totals
        .iter()
        .chain(&ethernet)
        .for_each(|count| out.put_u64(*count));
    if version >= 4 {
        out.put_duration(stats.duration_ns);
    }
}

/// Decodes the port of a port statistics or description request; [`port::ANY`] means all ports.
pub(crate) fn take_request(r: &mut Reader<'_>, version: u8) -> Result<PortNo, Error> {
    let number = take_number(r, version)?;
    r.skip(if version == 1 { 6 } else { 4 })?;
    if version > 1 {
        port::to_u16(number).ok_or(Error::BadRequestPort)?;
    }
    Ok(number)
}

/// Encodes the port of a request.
pub(crate) fn put_request(out: &mut Vec<u8>, number: PortNo, version: u8) {
    put_number(out, number, version);
    out.pad(if version == 1 { 6 } else { 4 });
}

/// Decodes the queues selected by a request. In 1.0 every port is `OFPP_ALL`.
pub(crate) fn take_queue_request(r: &mut Reader<'_>, version: u8) -> Result<QueueRequest, Error> {
    let mut number = take_number(r, version)?;
    if version == 1 {
        r.skip(2)?;
        if number == port::ALL {
            number = port::ANY;
        }
    }
    Ok(QueueRequest {
        port: number,
        queue: r.u32()?,
    })
}

/// Encodes the queues selected by a request.
pub(crate) fn put_queue_request(out: &mut Vec<u8>, request: QueueRequest, version: u8) {
    if version == 1 {
        let all = request.port == port::ANY;
        out.put_u16(if all { port::ALL } else { request.port } as u16);
        out.pad(2);
    } else {
        out.put_u32(request.port);
    }
    out.put_u32(request.queue);
}

/// Decodes a queue's counters.
pub(crate) fn take_queue_stats(reader: &mut Reader<'_>, version: u8) -> Result<QueueStats, Error> {
    let mut part;
    let r = if version >= 5 {
        let length = usize::from(reader.u16()?);
        part = reader.part(
            length.checked_sub(2).ok_or(Error::BadLength)?,
            Error::BadLength,
        )?;
        part.skip(6)?;
        &mut part
    } else {
        reader
    };
    let port = take_number(r, version)?;
    if version == 1 {
        r.skip(2)?;
    }
    Ok(QueueStats {
        port,
        queue: r.u32()?,
        tx_bytes: r.u64()?,
        tx_packets: r.u64()?,
        tx_errors: r.u64()?,
        duration_ns: if version >= 4 { r.duration()? } else { UNKNOWN },
    })
}

/// Encodes a queue's counters.
pub(crate) fn put_queue_stats(out: &mut Vec<u8>, stats: &QueueStats, version: u8) {
    if version >= 5 {
        out.put_u16(48);
        out.pad(6);
    }
    put_number(out, stats.port, version);
    if version == 1 {
        out.pad(2);
    }
    out.put_u32(stats.queue);
    out.put_u64(stats.tx_bytes);
    out.put_u64(stats.tx_packets);
    out.put_u64(stats.tx_errors);
    if version >= 4 {
        out.put_duration(stats.duration_ns);
    }
}

/// Decodes a queue's configuration; `port` is that of the reply, used in versions whose queues have
/// no port.
pub(crate) fn take_queue(
    reader: &mut Reader<'_>,
    version: u8,
    port: PortNo,
) -> Result<QueueDescription, Error> {
    let mut queue = QueueDescription {
        port,
        queue: 0,
        min_rate: None,
        max_rate: None,
    };
    let header = match version {
        1 | 2 => 8,
        _ => 16,
    };
    if version >= 5 {
        queue.port = reader.u32()?;
        queue.queue = reader.u32()?;
    } else {
        queue.queue = reader.u32()?;
        if version >= 3 {
            queue.port = reader.u32()?;
        }
    }
    let length = usize::from(reader.u16()?);
    reader.skip(if version <= 2 { 2 } else { 6 })?;
    let mut r = reader.part(
        length.checked_sub(header).ok_or(Error::BadLength)?,
        Error::BadLength,
    )?;
    while !r.is_empty() {
        let (kind, mut content) = r.property(Error::BadLength)?;
        if version < 5 {
            content.skip(4)?;
        }
        match kind {
            1 => queue.min_rate = Some(content.u16()?),
            2 => queue.max_rate = Some(content.u16()?),
            _ => {}
        }
    }
    Ok(queue)
}

/// Encodes a queue's configuration.
pub(crate) fn put_queue(out: &mut Vec<u8>, queue: &QueueDescription, version: u8) {
    let start = out.len();
    if version >= 5 {
        out.put_u32(queue.port);
        out.put_u32(queue.queue);
    } else {
        out.put_u32(queue.queue);
        if version >= 3 {
            out.put_u32(queue.port);
        }
    }
    let at = out.len();
    out.put_u16(0);
    out.pad(if version <= 2 { 2 } else { 6 });
    // 1.0 and 1.1 only have the guaranteed rate.
    let max_rate = queue.max_rate.filter(|_| version >= 3);
    for (kind, rate) in [(1, queue.min_rate), (2, max_rate)] {
        let Some(rate) = rate else { continue };
        out.put_u16(kind);
        if version >= 5 {
            out.put_u16(8);
            out.put_u16(rate);
            out.pad(2);
        } else {
            out.put_u16(16);
            out.pad(4);
            out.put_u16(rate);
            out.pad(6);
        }
    }
    out.set_length(at, start);
}
