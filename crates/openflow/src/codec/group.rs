//! Groups and meters: decoding and encoding (OpenFlow 1.3.5 sections 7.3.4.2, 7.3.4.5; 1.5.1
//! section 7.3.4.3).

use crate::codec;
use crate::codec::action_decode::take_actions;
use crate::codec::action_encode::{Context, put_actions};
use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::group::{
    self, Bucket, GroupCommand, GroupDescription, GroupKind, GroupMod, GroupStats,
};
use crate::model::meter::{
    Band, BandKind, MeterCommand, MeterConfig, MeterFlags, MeterMod, MeterStats,
};
use crate::model::port;
use std::collections::HashSet;

fn kind(number: u8) -> Result<GroupKind, Error> {
    Ok(match number {
        0 => GroupKind::All,
        1 => GroupKind::Select,
        2 => GroupKind::Indirect,
        3 => GroupKind::FastFailover,
        _ => return Err(Error::BadGroupType),
    })
}

/// Returns the version whose layout a version's group messages have: 1.0 has only Nicira's, which
/// are those of 1.5 with 1.0's actions.
pub(crate) fn layout(version: u8) -> u8 {
    if version == 1 { 6 } else { version }
}

/// Decodes a change of a group.
pub(crate) fn take_group_mod(r: &mut Reader<'_>, version: u8) -> Result<GroupMod, Error> {
    let command = match r.u16()? {
        0 => GroupCommand::Add,
        1 => GroupCommand::Modify,
        2 => GroupCommand::Delete,
        3 if layout(version) >= 6 => GroupCommand::InsertBucket,
        5 if layout(version) >= 6 => GroupCommand::RemoveBucket,
        0x8000 => GroupCommand::AddOrModify,
        _ => return Err(Error::BadGroupCommand),
    };
    let kind = kind(r.u8()?)?;
    r.skip(1)?;
    let group = r.u32()?;
    let (length, command_bucket) = if layout(version) >= 6 {
        let length = usize::from(r.u16()?);
        r.skip(2)?;
        (length, r.u32()?)
    } else {
        (r.len(), group::BUCKET_ALL)
    };
    check_command_bucket(command, command_bucket)?;
    if length > r.len() {
        return Err(Error::BadLength);
    }
    let mut list = r.part(length, Error::BadBucket)?;
    let buckets = take_buckets(&mut list, version, default_weight(command, kind))?;
    let selection = codec::selection::take_properties(r, command, kind)?;
    let deletes_all = command == GroupCommand::Delete && group == group::ALL;
    if group > group::MAX && !deletes_all {
        return Err(Error::InvalidGroup);
    }
    let change = GroupMod {
        command,
        kind,
        group,
        command_bucket,
        buckets,
        selection,
    };
    check_buckets(&change, version)?;
    Ok(change)
}

/// Checks the bucket that a command names (1.5.1 section 7.3.4.3).
fn check_command_bucket(command: GroupCommand, bucket: u32) -> Result<(), Error> {
    let one =
        bucket <= group::BUCKET_MAX || [group::BUCKET_FIRST, group::BUCKET_LAST].contains(&bucket);
    let fits = match command {
        GroupCommand::InsertBucket => one,
        GroupCommand::RemoveBucket => one || bucket == group::BUCKET_ALL,
        _ => bucket == group::BUCKET_ALL,
    };
    if fits { Ok(()) } else { Err(Error::BadBucket) }
}

/// Returns the weight of a bucket without one: 1 in select groups. A message that inserts buckets
/// may have the wrong type of group.
fn default_weight(command: GroupCommand, kind: GroupKind) -> u16 {
    u16::from(kind == GroupKind::Select || command == GroupCommand::InsertBucket)
}

/// Checks that a group of this type may have these buckets (1.3.5 sections 5.6.1, 6.5 and 7.3.4.2).
/// When buckets are inserted only the switch knows the type.
fn check_buckets(change: &GroupMod, version: u8) -> Result<(), Error> {
    let empty = change.buckets.is_empty();
    match change.command {
        // From 1.3.5 on; earlier versions ignored them.
        GroupCommand::Delete if (4..6).contains(&version) && !empty => {
            return Err(Error::InvalidGroup);
        }
        GroupCommand::Delete | GroupCommand::InsertBucket => return Ok(()),
        GroupCommand::RemoveBucket if !empty => return Err(Error::BadBucket),
        GroupCommand::RemoveBucket => return Ok(()),
        _ => {}
    }
    if change.kind == GroupKind::Indirect && change.buckets.len() != 1 {
        return Err(Error::InvalidGroup);
    }
    change
        .buckets
        .iter()
        .try_for_each(|bucket| bucket.fits(change.kind))
}

/// Encodes a change of a group.
pub(crate) fn put_group_mod(out: &mut Vec<u8>, change: &GroupMod, version: u8) {
    out.put_u16(change.command as u16);
    out.put_u8(change.kind as u8);
    out.pad(1);
    out.put_u32(change.group);
    let at = out.len();
    if layout(version) >= 6 {
        out.pad(4);
        out.put_u32(change.command_bucket);
    }
    let start = out.len();
    let weight = default_weight(change.command, change.kind);
    put_buckets(out, &change.buckets, change.kind, weight, version);
    if layout(version) >= 6 {
        out.set_length(at, start);
        if let Some(selection) = &change.selection {
            codec::selection::put_selection(out, selection, version);
        }
    }
}

fn take_buckets(
    list: &mut Reader<'_>,
    version: u8,
    default_weight: u16,
) -> Result<Vec<Bucket>, Error> {
    let mut buckets: Vec<Bucket> = Vec::new();
    let mut ids = HashSet::new();
    while !list.is_empty() {
        let length = usize::from(list.u16()?);
        let rest = length.checked_sub(2).ok_or(Error::BadBucket)?;
        let mut r = list.part(rest, Error::BadBucket)?;
        let place = buckets.len() as u32;
        buckets.push(if layout(version) >= 6 {
            let bucket = take_bucket15(&mut r, version, default_weight)?;
            if !ids.insert(bucket.id) {
                return Err(Error::BadBucket);
            }
            bucket
        } else {
            take_bucket11(&mut r, version, place)?
        });
    }
    Ok(buckets)
}

fn take_bucket11(r: &mut Reader<'_>, version: u8, place: u32) -> Result<Bucket, Error> {
    let (weight, watch_port, watch_group) = (r.u16()?, r.u32()?, r.u32()?);
    r.skip(4)?;
    port::to_u16(watch_port).ok_or(Error::BadWatch)?;
    let list = Reader::new(r.take_rest(), Error::BadActionLength);
    Ok(Bucket {
        id: place,
        weight,
        watch_port,
        watch_group,
        actions: take_actions(list, version)?.actions,
    })
}

fn take_bucket15(r: &mut Reader<'_>, version: u8, default_weight: u16) -> Result<Bucket, Error> {
    let actions_length = usize::from(r.u16()?);
    let id = r.u32()?;
    if actions_length > r.len() {
        return Err(Error::BadBucket);
    }
    let list = r.part(actions_length, Error::BadActionLength)?;
    let mut bucket = Bucket {
        id,
        weight: default_weight,
        watch_port: port::ANY,
        watch_group: group::ANY,
        actions: take_actions(list, version)?.actions,
    };
    while !r.is_empty() {
        let (kind, mut content) = r.property(Error::BadPropertyLength)?;
        match kind {
            0 => {
                bucket.weight = content.u16()?;
                content.skip(content.len().min(2))?;
            }
            1 => bucket.watch_port = content.u32()?,
            2 => bucket.watch_group = content.u32()?,
            codec::selection::EXPERIMENTER => {
                return Err(codec::selection::unknown_experimenter(&mut content)?);
            }
            _ => return Err(Error::BadPropertyType),
        }
        if !content.is_empty() {
            return Err(Error::BadPropertyLength);
        }
    }
    port::to_u16(bucket.watch_port).ok_or(Error::BadWatch)?;
    if bucket.id > group::BUCKET_MAX {
        return Err(Error::BadBucket);
    }
    Ok(bucket)
}

fn put_buckets(
    out: &mut Vec<u8>,
    buckets: &[Bucket],
    kind: GroupKind,
    default_weight: u16,
    version: u8,
) {
    for bucket in buckets {
        let start = out.len();
        out.put_u16(0);
        if layout(version) >= 6 {
            out.put_u16(0);
            out.put_u32(bucket.id);
            let actions = out.len();
            put_actions(out, &bucket.actions, version, Context::default());
            out.set_length(start + 2, actions);
            // Only select groups use weights, but a message that inserts buckets may have another
            // type than the group.
            if kind == GroupKind::Select || bucket.weight != default_weight {
                out.put_u16(0);
                out.put_u16(6);
                out.put_u16(bucket.weight);
                out.pad(2);
            }
            if bucket.watch_port != port::ANY {
                put_bucket_property(out, 1, bucket.watch_port);
            }
            if bucket.watch_group != group::ANY {
                put_bucket_property(out, 2, bucket.watch_group);
            }
        } else {
            out.put_u16(bucket.weight);
            out.put_u32(bucket.watch_port);
            out.put_u32(bucket.watch_group);
            out.pad(4);
            put_actions(out, &bucket.actions, version, Context::default());
        }
        out.set_length(start, start);
    }
}

fn put_bucket_property(out: &mut Vec<u8>, kind: u16, value: u32) {
    out.put_u16(kind);
    out.put_u16(8);
    out.put_u32(value);
}

/// Decodes a group's description.
pub(crate) fn take_description(
    reader: &mut Reader<'_>,
    version: u8,
) -> Result<GroupDescription, Error> {
    let length = usize::from(reader.u16()?);
    let rest = length.checked_sub(2).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    let kind = kind(r.u8()?)?;
    r.skip(1)?;
    let group = r.u32()?;
    let length = if layout(version) >= 6 {
        let length = usize::from(r.u16()?);
        r.skip(6)?;
        length
    } else {
        r.len()
    };
    let mut list = r.part(length, Error::BadBucket)?;
    Ok(GroupDescription {
        kind,
        group,
        buckets: take_buckets(&mut list, version, default_weight(GroupCommand::Add, kind))?,
        selection: codec::selection::take_properties(&mut r, GroupCommand::Add, kind)?,
    })
}

impl GroupDescription {
    /// Returns whether a message of a multipart reply can hold it, and its counters, in every
    /// version.
    pub fn fits_in_message(&self) -> bool {
        // Headers of the message and of the part; counters of a group and of a bucket.
        const HEADERS: usize = 16;
        const COUNTERS: usize = 40;
        const BUCKET_COUNTERS: usize = 16;
        let most = usize::from(u16::MAX) - HEADERS;
        let described = [1, 4, 6].iter().all(|version| {
            let mut out = Vec::new();
            put_description(&mut out, self, *version);
            out.len() <= most
        });
        described && COUNTERS + self.buckets.len() * BUCKET_COUNTERS <= most
    }
}

/// Encodes a group's description.
pub(crate) fn put_description(out: &mut Vec<u8>, description: &GroupDescription, version: u8) {
    let start = out.len();
    out.put_u16(0);
    out.put_u8(description.kind as u8);
    out.pad(1);
    out.put_u32(description.group);
    let at = out.len();
    if layout(version) >= 6 {
        out.pad(8);
    }
    let buckets = out.len();
    let weight = default_weight(GroupCommand::Add, description.kind);
    put_buckets(out, &description.buckets, description.kind, weight, version);
    if layout(version) >= 6 {
        out.set_length(at, buckets);
        if let Some(selection) = &description.selection {
            codec::selection::put_selection(out, selection, version);
        }
    }
    out.set_length(start, start);
}

/// Decodes a group's counters.
pub(crate) fn take_stats(reader: &mut Reader<'_>, version: u8) -> Result<GroupStats, Error> {
    let length = usize::from(reader.u16()?);
    let rest = length.checked_sub(2).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    r.skip(2)?;
    let (group, references) = (r.u32()?, r.u32()?);
    r.skip(4)?;
    let (packets, bytes) = (r.u64()?, r.u64()?);
    let duration_ns = if layout(version) >= 4 {
        r.duration()?
    } else {
        port::UNKNOWN
    };
    let mut buckets = Vec::new();
    while !r.is_empty() {
        buckets.push((r.u64()?, r.u64()?));
    }
    Ok(GroupStats {
        group,
        references,
        packets,
        bytes,
        duration_ns,
        buckets,
    })
}

/// Encodes a group's counters.
pub(crate) fn put_stats(out: &mut Vec<u8>, stats: &GroupStats, version: u8) {
    let start = out.len();
    out.pad(4);
    out.put_u32(stats.group);
    out.put_u32(stats.references);
    out.pad(4);
    out.put_u64(stats.packets);
    out.put_u64(stats.bytes);
    if layout(version) >= 4 {
        out.put_duration(stats.duration_ns);
    }
    for (packets, bytes) in &stats.buckets {
        out.put_u64(*packets);
        out.put_u64(*bytes);
    }
    out.set_length(start, start);
}

/// Decodes a change of a meter.
pub(crate) fn take_meter_mod(r: &mut Reader<'_>) -> Result<MeterMod, Error> {
    let command = match r.u16()? {
        0 => MeterCommand::Add,
        1 => MeterCommand::Modify,
        2 => MeterCommand::Delete,
        _ => return Err(Error::BadMeterCommand),
    };
    let flags = MeterFlags::from_bits(r.u16()?).ok_or(Error::BadMeterFlags)?;
    if flags.contains(MeterFlags::KBPS | MeterFlags::PKTPS) && command != MeterCommand::Delete {
        return Err(Error::BadMeterFlags);
    }
    let meter = r.u32()?;
    let bands = if command == MeterCommand::Delete {
        r.take_rest();
        Vec::new()
    } else {
        take_bands(r)?
    };
    Ok(MeterMod {
        command,
        config: MeterConfig {
            meter,
            flags,
            bands,
        },
    })
}

/// Encodes a change of a meter.
pub(crate) fn put_meter_mod(out: &mut Vec<u8>, change: &MeterMod) {
    out.put_u16(change.command as u16);
    out.put_u16(change.config.flags.bits());
    out.put_u32(change.config.meter);
    put_bands(out, &change.config.bands);
}

fn take_bands(r: &mut Reader<'_>) -> Result<Vec<Band>, Error> {
    let mut bands = Vec::new();
    while !r.is_empty() {
        let (kind, length) = (r.u16()?, r.u16()?);
        if length != 16 {
            return Err(Error::BadLength);
        }
        let (rate, burst) = (r.u32()?, r.u32()?);
        let steps = r.u8()?;
        r.skip(3)?;
        let kind = match kind {
            1 => BandKind::Drop,
            2 => BandKind::DscpRemark(steps),
            _ => return Err(Error::BadBand),
        };
        bands.push(Band { kind, rate, burst });
    }
    Ok(bands)
}

fn put_bands(out: &mut Vec<u8>, bands: &[Band]) {
    for band in bands {
        let (kind, steps) = match band.kind {
            BandKind::Drop => (1, 0),
            BandKind::DscpRemark(steps) => (2, steps),
        };
        out.put_u16(kind);
        out.put_u16(16);
        out.put_u32(band.rate);
        out.put_u32(band.burst);
        out.put_u8(steps);
        out.pad(3);
    }
}

/// Decodes a meter's configuration.
pub(crate) fn take_meter_config(reader: &mut Reader<'_>) -> Result<MeterConfig, Error> {
    let length = usize::from(reader.u16()?);
    let rest = length.checked_sub(2).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    let flags = MeterFlags::from_bits_truncate(r.u16()?);
    let meter = r.u32()?;
    Ok(MeterConfig {
        meter,
        flags,
        bands: take_bands(&mut r)?,
    })
}

/// Encodes a meter's configuration.
pub(crate) fn put_meter_config(out: &mut Vec<u8>, config: &MeterConfig) {
    let start = out.len();
    out.put_u16(0);
    out.put_u16(config.flags.bits());
    out.put_u32(config.meter);
    put_bands(out, &config.bands);
    out.set_length(start, start);
}

/// Decodes a meter's counters.
pub(crate) fn take_meter_stats(reader: &mut Reader<'_>) -> Result<MeterStats, Error> {
    let (meter, length) = (reader.u32()?, usize::from(reader.u16()?));
    let rest = length.checked_sub(6).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    r.skip(6)?;
    let mut stats = MeterStats {
        meter,
        flows: r.u32()?,
        packets: r.u64()?,
        bytes: r.u64()?,
        duration_ns: r.duration()?,
        bands: Vec::new(),
    };
    while !r.is_empty() {
        stats.bands.push((r.u64()?, r.u64()?));
    }
    Ok(stats)
}

/// Encodes a meter's counters.
pub(crate) fn put_meter_stats(out: &mut Vec<u8>, stats: &MeterStats) {
    let start = out.len();
    out.put_u32(stats.meter);
    out.pad(8);
    out.put_u32(stats.flows);
    out.put_u64(stats.packets);
    out.put_u64(stats.bytes);
    out.put_duration(stats.duration_ns);
    for (packets, bytes) in &stats.bands {
        out.put_u64(*packets);
        out.put_u64(*bytes);
    }
    out.set_length(start + 4, start);
}
