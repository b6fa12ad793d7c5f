//! Multipart messages (called statistics in 1.0): decoding and encoding.
//!
//! A reply may be longer than one message; [`MultipartWriter`] splits it into as many as needed,
//! each shorter than 64 KiB, all but the last with the flag that more follow (OpenFlow 1.3.5
//! section 7.3.5).

use crate::codec;
use crate::codec::oxs;
use crate::codec::wire::{Put, Reader};
use crate::model::error::{self, Error};
use crate::model::flow::FlowStats;
use crate::model::group;
use crate::model::message::{FlowFormat, MultipartReply, MultipartRequest};
use crate::model::port;
use crate::model::stats::{Aggregate, Description, GroupFeatures, MeterFeatures};
use crate::model::version::Version;

/// `OFPMP_*`.
mod kind {
    pub const DESCRIPTION: u16 = 0;
    pub const FLOW: u16 = 1;
    pub const AGGREGATE: u16 = 2;
    pub const TABLE: u16 = 3;
    pub const PORT: u16 = 4;
    pub const QUEUE: u16 = 5;
    pub const GROUP: u16 = 6;
    pub const GROUP_DESCRIPTION: u16 = 7;
    pub const GROUP_FEATURES: u16 = 8;
    pub const METER: u16 = 9;
    pub const METER_CONFIG: u16 = 10;
    pub const METER_FEATURES: u16 = 11;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESCRIPTION: u16 = 13;
    pub const TABLE_DESCRIPTION: u16 = 14;
    pub const QUEUE_DESCRIPTION: u16 = 15;
    pub const FLOW_MONITOR: u16 = 16;
    pub const EXPERIMENTER: u16 = 0xffff;
    // Only Nicira has these; the numbers are used by no version.
    pub const IPFIX_BRIDGE: u16 = 0xf003;
    pub const IPFIX_FLOW: u16 = 0xf004;
}

/// `NXST_*`: Nicira's numbers, and the kinds they stand for. Groups in 1.0 are Open vSwitch's.
const NICIRA: [(u32, u16); 8] = [
    (0, kind::FLOW),
    (1, kind::AGGREGATE),
    (2, kind::FLOW_MONITOR),
    (3, kind::IPFIX_BRIDGE),
    (4, kind::IPFIX_FLOW),
    (7, kind::GROUP),
    (8, kind::GROUP_DESCRIPTION),
    (9, kind::GROUP_FEATURES),
];

/// ONF's number for flow monitors in 1.3.
const ONF_FLOW_MONITOR: u32 = 1870;

/// Returns whether a kind has only Nicira's number in a version.
fn is_nicira_only(kind: u16, version: u8) -> bool {
    let since = match kind {
        kind::GROUP | kind::GROUP_DESCRIPTION => 2,
        kind::GROUP_FEATURES => 3,
        kind::FLOW_MONITOR => 5,
        kind::IPFIX_BRIDGE | kind::IPFIX_FLOW => u8::MAX,
        _ => 1,
    };
    version < since
}

/// `OFPMPF_*_MORE`.
const MORE: u16 = 1;

/// Returns the first version that has a kind of message. Open vSwitch answers port description
/// requests in every version.
fn since(kind: u16) -> u8 {
    match kind {
        kind::METER..=kind::TABLE_FEATURES => 4,
        kind::TABLE_DESCRIPTION | kind::QUEUE_DESCRIPTION => 5,
        _ => 1,
    }
}

/// The header: the kind, the format of the message, and whether more parts follow.
struct Head {
    kind: u16,
    format: FlowFormat,
    more: bool,
}

fn take_head(r: &mut Reader<'_>, version: u8) -> Result<Head, Error> {
    let (kind, flags) = (r.u16()?, r.u16()?);
    if version > 1 {
        r.skip(4)?;
    }
    let more = flags & MORE != 0;
    if kind != kind::EXPERIMENTER {
        let known = kind <= kind::FLOW_MONITOR && version >= since(kind);
        if !known || is_nicira_only(kind, version) {
            return Err(Error::BadMultipart);
        }
        return Ok(Head {
            kind,
            format: FlowFormat::Standard,
            more,
        });
    }
    let experimenter = r.u32()?;
    if experimenter == error::ONF && version == 4 && r.u32()? == ONF_FLOW_MONITOR {
        return Ok(Head {
            kind: kind::FLOW_MONITOR,
            format: FlowFormat::Nicira,
            more,
        });
    }
    if experimenter != error::NICIRA {
        return Err(Error::BadExperimenter);
    }
    let subtype = r.u32()?;
    let (_, kind) = *NICIRA
        .iter()
        .find(|(number, _)| *number == subtype)
        .ok_or(Error::BadExperimenterType)?;
    // As in Open vSwitch, flow statistics have Nicira's form in 1.0 only.
    let monitor13 = version == 4 && kind == kind::FLOW_MONITOR;
    if version > 1 && !is_nicira_only(kind, version) || monitor13 {
        return Err(Error::BadExperimenterType);
    }
    if version == 1 {
        r.skip(4)?;
    }
    Ok(Head {
        kind,
        format: FlowFormat::Nicira,
        more,
    })
}

fn put_head(out: &mut Vec<u8>, version: u8, kind: u16, format: FlowFormat, more: bool) {
    let nicira = version == 1 && format == FlowFormat::Nicira || is_nicira_only(kind, version);
    out.put_u16(if nicira { kind::EXPERIMENTER } else { kind });
    out.put_u16(if more { MORE } else { 0 });
    if version > 1 {
        out.pad(4);
    }
    if version == 4 && kind == kind::FLOW_MONITOR {
        out.put_u32(error::ONF);
        out.put_u32(ONF_FLOW_MONITOR);
    } else if nicira && let Some((subtype, _)) = NICIRA.iter().find(|(_, other)| *other == kind) {
        out.put_u32(error::NICIRA);
        out.put_u32(*subtype);
        if version == 1 {
            out.pad(4);
        }
    }
}

/// Decodes a request's body.
pub(crate) fn take_request(
    r: &mut Reader<'_>,
    version: u8,
) -> Result<(MultipartRequest, bool), Error> {
    let head = take_head(r, version)?;
    let format = head.format;
    let request = match head.kind {
        kind::DESCRIPTION => MultipartRequest::Description,
        kind::FLOW => MultipartRequest::Flow {
            request: codec::flow::take_stats_request(r, version, format)?,
            format,
        },
        kind::AGGREGATE => MultipartRequest::Aggregate {
            request: codec::flow::take_stats_request(r, version, format)?,
            format,
        },
        kind::TABLE => MultipartRequest::Table,
        kind::PORT => MultipartRequest::Port(codec::port::take_request(r, version)?),
        kind::QUEUE => MultipartRequest::Queue(codec::port::take_queue_request(r, version)?),
        kind::GROUP => MultipartRequest::Group(padded_u32(r)?),
        // In 1.5 and Nicira's form the request names a group; in other versions it is for all.
        kind::GROUP_DESCRIPTION if codec::group::layout(version) >= 6 => {
            MultipartRequest::GroupDescription(padded_u32(r)?)
        }
        kind::GROUP_DESCRIPTION => MultipartRequest::GroupDescription(group::ALL),
        kind::GROUP_FEATURES => MultipartRequest::GroupFeatures,
        kind::METER => MultipartRequest::Meter(padded_u32(r)?),
        kind::METER_CONFIG => MultipartRequest::MeterConfig(padded_u32(r)?),
        kind::METER_FEATURES => MultipartRequest::MeterFeatures,
        kind::TABLE_FEATURES => MultipartRequest::TableFeatures(take_all(r, |r| {
            codec::table::take_features(r, version)
        })?),
        // In 1.5 the request names a port; in older versions it is for all.
        kind::PORT_DESCRIPTION if version >= 6 => {
            MultipartRequest::PortDescription(codec::port::take_request(r, version)?)
        }
        kind::PORT_DESCRIPTION => MultipartRequest::PortDescription(port::ANY),
        kind::TABLE_DESCRIPTION => MultipartRequest::TableDescription,
        kind::FLOW_MONITOR => MultipartRequest::FlowMonitor(take_all(r, |r| {
            codec::monitor::take_request(r, version)
        })?),
        kind::IPFIX_BRIDGE => MultipartRequest::Ipfix { flows: false },
        kind::IPFIX_FLOW => MultipartRequest::Ipfix { flows: true },
        _ => MultipartRequest::QueueDescription(codec::port::take_queue_request(r, version)?),
    };
    Ok((request, head.more))
}

fn padded_u32(r: &mut Reader<'_>) -> Result<u32, Error> {
    let value = r.u32()?;
    r.skip(4)?;
    Ok(value)
}

/// Decodes items until nothing is left. Every item takes at least a byte, so there are no more
/// items than bytes.
fn take_all<'a, T>(
    r: &mut Reader<'a>,
    take: impl Fn(&mut Reader<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut items = Vec::new();
    while !r.is_empty() {
        items.push(take(r)?);
    }
    Ok(items)
}

/// Encodes a request's body. False if the version has no such request.
pub(crate) fn put_request(
    out: &mut Vec<u8>,
    request: &MultipartRequest,
    more: bool,
    version: u8,
) -> bool {
    use MultipartRequest::*;
    let (number, format) = match request {
        Description => (kind::DESCRIPTION, FlowFormat::Standard),
        Flow { format, .. } => (kind::FLOW, *format),
        Aggregate { format, .. } => (kind::AGGREGATE, *format),
        Table => (kind::TABLE, FlowFormat::Standard),
        Port(_) => (kind::PORT, FlowFormat::Standard),
        Queue(_) => (kind::QUEUE, FlowFormat::Standard),
        Group(_) => (kind::GROUP, FlowFormat::Standard),
        GroupDescription(_) => (kind::GROUP_DESCRIPTION, FlowFormat::Standard),
        GroupFeatures => (kind::GROUP_FEATURES, FlowFormat::Standard),
        Meter(_) => (kind::METER, FlowFormat::Standard),
        MeterConfig(_) => (kind::METER_CONFIG, FlowFormat::Standard),
        MeterFeatures => (kind::METER_FEATURES, FlowFormat::Standard),
        TableFeatures(_) => (kind::TABLE_FEATURES, FlowFormat::Standard),
        PortDescription(_) => (kind::PORT_DESCRIPTION, FlowFormat::Standard),
        TableDescription => (kind::TABLE_DESCRIPTION, FlowFormat::Standard),
        QueueDescription(_) => (kind::QUEUE_DESCRIPTION, FlowFormat::Standard),
        FlowMonitor(_) => (kind::FLOW_MONITOR, FlowFormat::Standard),
        Ipfix { flows: false } => (kind::IPFIX_BRIDGE, FlowFormat::Nicira),
        Ipfix { flows: true } => (kind::IPFIX_FLOW, FlowFormat::Nicira),
    };
    if version < since(number) {
        return false;
    }
    put_head(out, version, number, format, more);
    match request {
        Flow { request, format } | Aggregate { request, format } => {
            codec::flow::put_stats_request(out, request, version, *format);
        }
        Port(number) => codec::port::put_request(out, *number, version),
        PortDescription(number) if version >= 6 => codec::port::put_request(out, *number, version),
        Queue(request) | QueueDescription(request) => {
            codec::port::put_queue_request(out, *request, version);
        }
        GroupDescription(_) if codec::group::layout(version) < 6 => {}
        Group(number) | GroupDescription(number) | Meter(number) | MeterConfig(number) => {
            out.put_u32(*number);
            out.pad(4);
        }
        FlowMonitor(monitors) => monitors
            .iter()
            .for_each(|monitor| codec::monitor::put_request(out, monitor, version)),
        TableFeatures(tables) => tables
            .iter()
            .for_each(|table| codec::table::put_features(out, table, version)),
        _ => {}
    }
    true
}

/// Decodes a reply's body.
pub(crate) fn take_reply(r: &mut Reader<'_>, version: u8) -> Result<(MultipartReply, bool), Error> {
    let head = take_head(r, version)?;
    let format = head.format;
    let reply = match head.kind {
        kind::DESCRIPTION => MultipartReply::Description(Description {
            manufacturer: r.text(256)?,
            hardware: r.text(256)?,
            software: r.text(256)?,
            serial: r.text(32)?,
            datapath: r.text(256)?,
        }),
        kind::FLOW => MultipartReply::Flow {
            flows: take_all(r, |r| codec::flow::take_stats(r, version, format))?,
            format,
        },
        kind::AGGREGATE => MultipartReply::Aggregate {
            sums: take_aggregate(r, version)?,
            format,
        },
        kind::TABLE => {
            MultipartReply::Table(take_all(r, |r| codec::table::take_stats(r, version))?)
        }
        kind::PORT => MultipartReply::Port(take_all(r, |r| codec::port::take_stats(r, version))?),
        kind::QUEUE => {
            MultipartReply::Queue(take_all(r, |r| codec::port::take_queue_stats(r, version))?)
        }
        kind::GROUP => {
            MultipartReply::Group(take_all(r, |r| codec::group::take_stats(r, version))?)
        }
        kind::GROUP_DESCRIPTION => MultipartReply::GroupDescription(take_all(r, |r| {
            codec::group::take_description(r, version)
        })?),
        kind::GROUP_FEATURES => MultipartReply::GroupFeatures(take_group_features(r, version)?),
        kind::METER => MultipartReply::Meter(take_all(r, codec::group::take_meter_stats)?),
        kind::METER_CONFIG => {
            MultipartReply::MeterConfig(take_all(r, codec::group::take_meter_config)?)
        }
        kind::METER_FEATURES => MultipartReply::MeterFeatures(take_meter_features(r, version)?),
        kind::TABLE_FEATURES => {
            MultipartReply::TableFeatures(take_all(r, |r| codec::table::take_features(r, version))?)
        }
        kind::PORT_DESCRIPTION => MultipartReply::PortDescription(take_all(r, |r| {
            codec::port::take_description(r, version)
        })?),
        kind::TABLE_DESCRIPTION => {
            MultipartReply::TableDescription(take_all(r, codec::table::take_description)?)
        }
        kind::FLOW_MONITOR => {
            MultipartReply::FlowMonitor(take_all(r, |r| codec::monitor::take_update(r, version))?)
        }
        kind::IPFIX_BRIDGE | kind::IPFIX_FLOW => return Err(Error::BadExperimenterType),
        _ => MultipartReply::QueueDescription(take_all(r, |r| {
            codec::port::take_queue(r, version, port::ANY)
        })?),
    };
    Ok((reply, head.more))
}

fn take_aggregate(r: &mut Reader<'_>, version: u8) -> Result<Aggregate, Error> {
    if version >= 6 {
        let counters = oxs::take(r)?;
        return Ok(Aggregate {
            packets: counters.packets,
            bytes: counters.bytes,
            flows: counters.flows,
        });
    }
    let sums = Aggregate {
        packets: r.u64()?,
        bytes: r.u64()?,
        flows: r.u32()?,
    };
    r.skip(4)?;
    Ok(sums)
}

fn put_aggregate(out: &mut Vec<u8>, sums: &Aggregate, version: u8) {
    if version >= 6 {
        oxs::put_aggregate(out, sums);
        return;
    }
    out.put_u64(sums.packets);
    out.put_u64(sums.bytes);
    out.put_u32(sums.flows);
    out.pad(4);
}

fn take_group_features(r: &mut Reader<'_>, version: u8) -> Result<GroupFeatures, Error> {
    let mut features = GroupFeatures {
        types: r.u32()?,
        capabilities: r.u32()?,
        ..GroupFeatures::default()
    };
    for number in &mut features.max_groups {
        *number = r.u32()?;
    }
    for actions in &mut features.actions {
        *actions = neutral_actions(r.u32()?, version);
    }
    Ok(features)
}

/// Action bits of 1.0 and 1.1 that are others in 1.3: those that each set one field, and in 1.0
/// `strip_vlan` and `enqueue`. They are all that 1.0 has.
const SETS_1_0: u32 = 0b0111_1111_0110;
const SETS_1_1: u32 = 0b0110_0111_1111_1110;
const SET_FIELD: u32 = 1 << 25;
const POP_VLAN: u32 = 1 << 18;
const SET_QUEUE: u32 = 1 << 21;

/// Translates the actions of groups to the numbers of a version.
fn actions_of(actions: u32, version: u8) -> u32 {
    let when = |bit: u32, bits: u32| if actions & bit != 0 { bits } else { 0 };
    match version {
        1 => {
            when(1, 1)
                | when(SET_FIELD, SETS_1_0)
                | when(POP_VLAN, 1 << 3)
                | when(SET_QUEUE, 1 << 11)
        }
        2 => actions & !SET_FIELD | when(SET_FIELD, SETS_1_1),
        _ => actions,
    }
}

fn neutral_actions(actions: u32, version: u8) -> u32 {
    let when = |bits: u32, bit: u32| if actions & bits != 0 { bit } else { 0 };
    match version {
        1 => {
            when(1, 1)
                | when(SETS_1_0, SET_FIELD)
                | when(1 << 3, POP_VLAN)
                | when(1 << 11, SET_QUEUE)
        }
        2 => actions & !SETS_1_1 | when(SETS_1_1, SET_FIELD),
        _ => actions,
    }
}

fn put_group_features(out: &mut Vec<u8>, features: &GroupFeatures, version: u8) {
    out.put_u32(features.types);
    out.put_u32(features.capabilities);
    features
        .max_groups
        .iter()
        .for_each(|number| out.put_u32(*number));
    features
        .actions
        .iter()
        .for_each(|actions| out.put_u32(actions_of(*actions, version)));
}

fn take_meter_features(r: &mut Reader<'_>, version: u8) -> Result<MeterFeatures, Error> {
    let features = MeterFeatures {
        max_meters: r.u32()?,
        band_types: r.u32()?,
        capabilities: r.u32()?,
        max_bands: r.u8()?,
        max_color: r.u8()?,
    };
    r.skip(2)?;
    if version >= 6 {
        r.skip(r.len().min(8))?;
    }
    Ok(features)
}

fn put_meter_features(out: &mut Vec<u8>, features: &MeterFeatures) {
    out.put_u32(features.max_meters);
    out.put_u32(features.band_types);
    out.put_u32(features.capabilities);
    out.put_u8(features.max_bands);
    out.put_u8(features.max_color);
    out.pad(2);
}

fn put_description(out: &mut Vec<u8>, description: &Description) {
    out.put_text(&description.manufacturer, 256);
    out.put_text(&description.hardware, 256);
    out.put_text(&description.software, 256);
    out.put_text(&description.serial, 32);
    out.put_text(&description.datapath, 256);
}

/// Encodes the messages of one multipart reply, item by item, so that a long one (every rule of a
/// table) is never in memory as a model.
pub struct MultipartWriter {
    version: Version,
    xid: u32,
    kind: u16,
    format: FlowFormat,
    done: Vec<Vec<u8>>,
    current: Vec<u8>,
    lost: usize,
    written: usize,
}

impl MultipartWriter {
    /// Begins a reply with rules' statistics.
    pub fn flows(version: Version, xid: u32, format: FlowFormat) -> MultipartWriter {
        MultipartWriter::new(version, xid, kind::FLOW, format)
    }

    fn new(version: Version, xid: u32, kind: u16, format: FlowFormat) -> MultipartWriter {
        let mut writer = MultipartWriter {
            version,
            xid,
            kind,
            format,
            done: Vec::new(),
            current: Vec::new(),
            lost: 0,
            written: 0,
        };
        writer.current = writer.begin();
        writer
    }

    fn begin(&self) -> Vec<u8> {
        let version = self.version as u8;
        let mut message = Vec::with_capacity(256);
        let reply_kind = if version == 1 { 17 } else { 19 };
        crate::codec::header::put(&mut message, version, reply_kind, self.xid);
        put_head(&mut message, version, self.kind, self.format, false);
        message
    }

    /// Adds a rule's statistics; for a writer made by [`MultipartWriter::flows`].
    pub fn push_flow(&mut self, stats: &FlowStats) {
        let (version, format) = (self.version as u8, self.format);
        self.push(|out| codec::flow::put_stats(out, stats, version, format));
    }

    /// Returns the bytes of the finished messages, without the current one.
    pub fn finished_bytes(&self) -> usize {
        self.done.iter().map(Vec::len).sum()
    }

    /// Returns the number of items left out because no message can hold them.
    pub fn lost(&self) -> usize {
        self.lost
    }

    /// Returns the bytes of the items written so far, including those left out.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Removes and returns the finished messages, all with the flag that more follow, so that they
    /// can be sent before the last is written.
    pub fn take_finished(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.done)
    }

    fn push(&mut self, item: impl FnOnce(&mut Vec<u8>)) {
        let start = self.current.len();
        item(&mut self.current);
        self.written += self.current.len() - start;
        if self.current.len() <= usize::from(u16::MAX) {
            return;
        }
        let item = self.current.split_off(start);
        let next = self.begin();
        if next.len() + item.len() > usize::from(u16::MAX) {
            // No message can hold it. This only happens to a rule with 64 KiB of actions that came
            // in a more compact version.
            self.lost += 1;
            return;
        }
        let full = std::mem::replace(&mut self.current, next);
        self.current.extend_from_slice(&item);
        self.done.push(finish(full, true));
    }

    /// Returns the messages, in order, each complete.
    pub fn finish(mut self) -> Vec<Vec<u8>> {
        self.done.push(finish(self.current, false));
        self.done
    }
}

fn finish(mut message: Vec<u8>, more: bool) -> Vec<u8> {
    crate::codec::header::finish(&mut message);
    if more {
        message[11] |= MORE as u8;
    }
    message
}

/// Encodes a reply, split into as many messages as needed; none if the version has no such reply.
/// `more`: further replies to the request follow, so the last message has the flag too.
pub fn encode_multipart(
    version: Version,
    xid: u32,
    reply: &MultipartReply,
    more: bool,
) -> Vec<Vec<u8>> {
    use MultipartReply::*;
    let (number, format) = match reply {
        Description(_) => (kind::DESCRIPTION, FlowFormat::Standard),
        Flow { format, .. } => (kind::FLOW, *format),
        Aggregate { format, .. } => (kind::AGGREGATE, *format),
        Table(_) => (kind::TABLE, FlowFormat::Standard),
        Port(_) => (kind::PORT, FlowFormat::Standard),
        Queue(_) => (kind::QUEUE, FlowFormat::Standard),
        Group(_) => (kind::GROUP, FlowFormat::Standard),
        GroupDescription(_) => (kind::GROUP_DESCRIPTION, FlowFormat::Standard),
        GroupFeatures(_) => (kind::GROUP_FEATURES, FlowFormat::Standard),
        Meter(_) => (kind::METER, FlowFormat::Standard),
        MeterConfig(_) => (kind::METER_CONFIG, FlowFormat::Standard),
        MeterFeatures(_) => (kind::METER_FEATURES, FlowFormat::Standard),
        TableFeatures(_) => (kind::TABLE_FEATURES, FlowFormat::Standard),
        PortDescription(_) => (kind::PORT_DESCRIPTION, FlowFormat::Standard),
        TableDescription(_) => (kind::TABLE_DESCRIPTION, FlowFormat::Standard),
        QueueDescription(_) => (kind::QUEUE_DESCRIPTION, FlowFormat::Standard),
        FlowMonitor(_) => (kind::FLOW_MONITOR, FlowFormat::Standard),
    };
    let wire = version as u8;
    if wire < since(number) {
        return Vec::new();
    }
    let mut writer = MultipartWriter::new(version, xid, number, format);
    put_items(&mut writer, reply, wire);
    let mut messages = writer.finish();
    if more && let Some(last) = messages.last_mut() {
        last[11] |= MORE as u8;
    }
    messages
}

fn put_items(w: &mut MultipartWriter, reply: &MultipartReply, version: u8) {
    fn each<T>(w: &mut MultipartWriter, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
        items.iter().for_each(|item| w.push(|out| put(out, item)));
    }
    use MultipartReply::*;
    match reply {
        Description(description) => w.push(|out| put_description(out, description)),
        Flow { flows, .. } => flows.iter().for_each(|flow| w.push_flow(flow)),
        Aggregate { sums, .. } => w.push(|out| put_aggregate(out, sums, version)),
        Table(items) => each(w, items, |o, i| codec::table::put_stats(o, i, version)),
        Port(items) => each(w, items, |o, i| codec::port::put_stats(o, i, version)),
        Queue(items) => each(w, items, |o, i| codec::port::put_queue_stats(o, i, version)),
        Group(items) => each(w, items, |o, i| codec::group::put_stats(o, i, version)),
        GroupDescription(items) => {
            each(w, items, |o, i| {
                codec::group::put_description(o, i, version)
            });
        }
        GroupFeatures(features) => w.push(|out| put_group_features(out, features, version)),
        Meter(items) => each(w, items, codec::group::put_meter_stats),
        MeterConfig(items) => each(w, items, codec::group::put_meter_config),
        // 1.5.1 appended eight bytes, which os-ken requires and Open vSwitch's client refuses;
        // Sluice sends what Open vSwitch sends.
        MeterFeatures(features) => w.push(|out| put_meter_features(out, features)),
        TableFeatures(items) => each(w, items, |o, i| codec::table::put_features(o, i, version)),
        PortDescription(items) => {
            each(w, items, |o, i| codec::port::put_description(o, i, version));
        }
        TableDescription(items) => each(w, items, codec::table::put_description),
        QueueDescription(items) => each(w, items, |o, i| codec::port::put_queue(o, i, version)),
        FlowMonitor(items) => each(w, items, |o, i| codec::monitor::put_update(o, i, version)),
    }
}
