//! Table statistics, features and configuration: decoding and encoding.

use crate::codec::action_encode::property;
use crate::codec::oxm;
use crate::codec::wire::{Put, Reader};
use crate::model::error::Error;
use crate::model::stats::{
    ActionKinds, InstructionKinds, RuleKinds, TableConfig, TableFeatures, TableReason, TableStats,
    TableStatus, Vacancy,
};
use packet::Field;
use packet::fields::{FIELDS, FieldDef, Maskable};

/// Every field of 1.0's match (`OFPFW_ALL`).
const WILDCARDS_10: u32 = (1 << 22) - 1;

/// Decodes a table's counters.
pub(crate) fn take_stats(r: &mut Reader<'_>, version: u8) -> Result<TableStats, Error> {
    let mut stats = TableStats {
        table: r.u8()?,
        ..TableStats::default()
    };
    match version {
        1 => {
            r.skip(3)?;
            stats.name = r.text(32)?;
            r.skip(4)?;
            stats.max_entries = r.u32()?;
        }
        2 => {
            r.skip(7)?;
            stats.name = r.text(32)?;
            r.skip(8)?;
            stats.instructions = InstructionKinds::from_bits_truncate(r.u32()?);
            r.skip(8)?;
            stats.config = r.u32()?;
            stats.max_entries = r.u32()?;
        }
        3 => {
            r.skip(7)?;
            stats.name = r.text(32)?;
            r.skip(56)?;
            stats.instructions = InstructionKinds::from_bits_truncate(r.u32()?);
            stats.config = r.u32()?;
            stats.max_entries = r.u32()?;
        }
        _ => r.skip(3)?,
    }
    stats.active = r.u32()?;
    stats.lookups = r.u64()?;
    stats.matched = r.u64()?;
    Ok(stats)
}

/// Encodes a table's counters. The fields and actions of 1.1 and 1.2 are the same for every table:
/// all.
pub(crate) fn put_stats(out: &mut Vec<u8>, stats: &TableStats, version: u8) {
    out.put_u8(stats.table);
    match version {
        1 => {
            out.pad(3);
            out.put_text(&stats.name, 32);
            out.put_u32(WILDCARDS_10);
            out.put_u32(stats.max_entries);
        }
        2 => {
            out.pad(7);
            out.put_text(&stats.name, 32);
            // Wildcards and match: every field of OFPFMF11_* except the type; actions 0 to 24 in
            // both places.
            let (fields, actions) = (0xfbff, 0x1ff_ffff);
            let instructions = stats.instructions.bits();
            for word in [fields, fields, instructions, actions, actions, stats.config] {
                out.put_u32(word);
            }
            out.put_u32(stats.max_entries);
        }
        3 => {
            out.pad(7);
            out.put_text(&stats.name, 32);
            out.put_u64(fields_12(|_| true));
            out.put_u64(fields_12(|_| true));
            out.put_u32(0x3ff_ffff);
            out.put_u32(0x3ff_ffff);
            out.put_u64(fields_12(|def| def.writable));
            out.put_u64(fields_12(|def| def.writable));
            out.put_u64(u64::MAX);
            out.put_u64(u64::MAX);
            out.put_u32(stats.instructions.bits());
            out.put_u32(stats.config);
            out.put_u32(stats.max_entries);
        }
        _ => out.pad(3),
    }
    out.put_u32(stats.active);
    out.put_u64(stats.lookups);
    out.put_u64(stats.matched);
}

/// Returns the fields of OXM's basic class in 1.2 for which `which` holds, bit n for field n.
fn fields_12(which: fn(&FieldDef) -> bool) -> u64 {
    FIELDS
        .iter()
        .filter(|def| def.oxm >> 16 == 0x8000 && def.since <= 3 && which(def))
        .fold(0, |bits, def| bits | 1 << (def.oxm >> 9 & 0x7f))
}

/// `OFPTMPT_*`.
const EVICTION_PROPERTY: u16 = 2;
const VACANCY_PROPERTY: u16 = 3;

/// Decodes a table mod.
pub(crate) fn take_config(r: &mut Reader<'_>, version: u8) -> Result<TableConfig, Error> {
    let table = r.u8()?;
    r.skip(3)?;
    let config = TableConfig {
        table,
        config: r.u32()?,
        ..TableConfig::default()
    };
    if version < 5 {
        return Ok(config);
    }
    take_config_properties(r, config)
}

/// Decodes the properties of a table's configuration, to the end (1.4 section 7.3.4.4).
fn take_config_properties(
    r: &mut Reader<'_>,
    mut config: TableConfig,
) -> Result<TableConfig, Error> {
    while !r.is_empty() {
        let (kind, mut content) = r.property(Error::BadPropertyLength)?;
        match kind {
            EVICTION_PROPERTY => config.eviction = Some(content.u32()?),
            VACANCY_PROPERTY => {
                let (down, up, current) = (content.u8()?, content.u8()?, content.u8()?);
                content.skip(1)?;
                config.vacancy = Some(Vacancy { down, up, current });
            }
            0xffff => return Err(Error::BadPropertyExperimenter),
            _ => return Err(Error::BadPropertyType),
        }
        if !content.is_empty() {
            return Err(Error::BadPropertyLength);
        }
    }
    Ok(config)
}

/// Encodes a table mod.
pub(crate) fn put_config(out: &mut Vec<u8>, config: &TableConfig, version: u8) {
    out.put_u8(config.table);
    out.pad(3);
    out.put_u32(config.config);
    if version >= 5 {
        put_config_properties(out, config);
    }
}

fn put_config_properties(out: &mut Vec<u8>, config: &TableConfig) {
    if let Some(flags) = config.eviction {
        property(out, EVICTION_PROPERTY, |out| out.put_u32(flags));
    }
    if let Some(vacancy) = config.vacancy {
        property(out, VACANCY_PROPERTY, |out| {
            out.put(&[vacancy.down, vacancy.up, vacancy.current, 0]);
        });
    }
}

/// Decodes a table's description (1.4).
pub(crate) fn take_description(reader: &mut Reader<'_>) -> Result<TableConfig, Error> {
    let length = usize::from(reader.u16()?);
    let rest = length.checked_sub(2).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    let table = r.u8()?;
    r.skip(1)?;
    let config = TableConfig {
        table,
        config: r.u32()?,
        ..TableConfig::default()
    };
    take_config_properties(&mut r, config)
}

/// Encodes a table's description (1.4).
pub(crate) fn put_description(out: &mut Vec<u8>, config: &TableConfig) {
    let start = out.len();
    out.put_u16(0);
    out.put_u8(config.table);
    out.pad(1);
    out.put_u32(config.config);
    put_config_properties(out, config);
    out.set_length(start, start);
}

/// Decodes a table's status (1.4 section 7.4.5).
pub(crate) fn take_status(r: &mut Reader<'_>) -> Result<TableStatus, Error> {
    let reason = match r.u8()? {
        3 => TableReason::VacancyDown,
        4 => TableReason::VacancyUp,
        _ => return Err(Error::BadReason),
    };
    r.skip(7)?;
    Ok(TableStatus {
        reason,
        table: take_description(r)?,
    })
}

/// Encodes a table's status.
pub(crate) fn put_status(out: &mut Vec<u8>, status: &TableStatus) {
    out.put_u8(status.reason as u8);
    out.pad(7);
    put_description(out, &status.table);
}

/// `OFPTFPT_*`; the number of each miss form is one more.
mod property_kind {
    pub const INSTRUCTIONS: u16 = 0;
    pub const NEXT_TABLES: u16 = 2;
    pub const WRITE_ACTIONS: u16 = 4;
    pub const APPLY_ACTIONS: u16 = 6;
    pub const MATCH: u16 = 8;
    pub const WILDCARDS: u16 = 10;
    pub const WRITE_SET_FIELD: u16 = 12;
    pub const APPLY_SET_FIELD: u16 = 14;
}

/// Decodes a table's features.
pub(crate) fn take_features(reader: &mut Reader<'_>, version: u8) -> Result<TableFeatures, Error> {
    let length = usize::from(reader.u16()?);
    let rest = length.checked_sub(2).ok_or(Error::BadLength)?;
    let mut r = reader.part(rest, Error::BadLength)?;
    let (table, command) = (r.u8()?, r.u8()?);
    r.skip(4)?;
    let mut features = TableFeatures {
        table,
        command: if version >= 6 { command } else { 0 },
        name: r.text(32)?,
        metadata_match: r.u64()?,
        metadata_write: r.u64()?,
        config: r.u32()?,
        max_entries: r.u32()?,
        ..TableFeatures::default()
    };
    // If a miss property is absent, the ordinary one applies to the table-miss rule too.
    let mut miss_given = 0_u16;
    while !r.is_empty() {
        let (kind, mut content) = r.property(Error::BadPropertyLength)?;
        if kind < 16 {
            miss_given |= 1 << kind;
        }
        take_property(&mut features, kind, &mut content)?;
    }
    let absent = |kind: u16| miss_given >> (kind + 1) & 1 == 0;
    let (rules, miss) = (&features.rules, &mut features.miss);
    if absent(property_kind::INSTRUCTIONS) {
        miss.instructions = rules.instructions;
    }
    if absent(property_kind::NEXT_TABLES) {
        miss.next_tables.clone_from(&rules.next_tables);
    }
    if absent(property_kind::WRITE_ACTIONS) {
        miss.write.actions = rules.write.actions;
    }
    if absent(property_kind::APPLY_ACTIONS) {
        miss.apply.actions = rules.apply.actions;
    }
    if absent(property_kind::WRITE_SET_FIELD) {
        miss.write.set_fields.clone_from(&rules.write.set_fields);
    }
    if absent(property_kind::APPLY_SET_FIELD) {
        miss.apply.set_fields.clone_from(&rules.apply.set_fields);
    }
    Ok(features)
}

fn take_property(
    features: &mut TableFeatures,
    kind: u16,
    content: &mut Reader<'_>,
) -> Result<(), Error> {
    use property_kind::*;
    match kind {
        MATCH => {
            features.matchable = take_fields(content)?;
            return Ok(());
        }
        WILDCARDS => {
            features.wildcards = only_fields(take_fields(content)?);
            return Ok(());
        }
        _ => {}
    }
    let rules = if kind.is_multiple_of(2) {
        &mut features.rules
    } else {
        &mut features.miss
    };
    match kind & !1 {
        INSTRUCTIONS => {
            let bits = take_ids(content)? as u32;
            rules.instructions = InstructionKinds::from_bits_truncate(bits);
        }
        NEXT_TABLES => rules.next_tables = content.take_rest().to_vec(),
        WRITE_ACTIONS => rules.write.actions = take_ids(content)?,
        APPLY_ACTIONS => rules.apply.actions = take_ids(content)?,
        WRITE_SET_FIELD => rules.write.set_fields = only_fields(take_fields(content)?),
        APPLY_SET_FIELD => rules.apply.set_fields = only_fields(take_fields(content)?),
        _ if kind >= 0xfffe => return Err(Error::BadPropertyExperimenter),
        _ => return Err(Error::BadPropertyType),
    }
    Ok(())
}

/// Decodes ids of instructions or actions as a bit set. Ids of experimenters and those above 63 are
/// skipped.
fn take_ids(content: &mut Reader<'_>) -> Result<u64, Error> {
    let mut bits = 0;
    while !content.is_empty() {
        let (kind, length) = (content.u16()?, usize::from(content.u16()?));
        content.skip(length.checked_sub(4).ok_or(Error::BadPropertyLength)?)?;
        if kind < 64 {
            bits |= 1 << kind;
        }
    }
    Ok(bits)
}

/// Decodes headers of fields, and whether each has the mask bit. Unknown fields are skipped.
fn take_fields(content: &mut Reader<'_>) -> Result<Vec<(Field, bool)>, Error> {
    let mut fields = Vec::new();
    while !content.is_empty() {
        if let Some(entry) = oxm::take_id(content)? {
            fields.push(entry);
        }
    }
    Ok(fields)
}

fn only_fields(entries: Vec<(Field, bool)>) -> Vec<Field> {
    entries.into_iter().map(|(field, _)| field).collect()
}

/// Encodes a table's features.
pub(crate) fn put_features(out: &mut Vec<u8>, features: &TableFeatures, version: u8) {
    let start = out.len();
    out.put_u16(0);
    out.put_u8(features.table);
    out.put_u8(if version >= 6 { features.command } else { 0 });
    out.pad(4);
    out.put_text(&features.name, 32);
    out.put_u64(features.metadata_match);
    out.put_u64(features.metadata_write);
    out.put_u32(features.config);
    out.put_u32(features.max_entries);
    put_rules(out, &features.rules, None, version);
    put_rules(out, &features.miss, Some(&features.rules), version);
    property(out, property_kind::MATCH, |out| {
        for (field, masked) in &features.matchable {
            let masked = *masked && field.def().maskable == Maskable::Bitwise;
            oxm::put_id(out, *field, masked, version);
        }
    });
    put_field_list(out, property_kind::WILDCARDS, &features.wildcards, version);
    out.set_length(start, start);
}

/// Encodes the properties of ordinary rules, or those of the miss rule that differ from `same_as`.
fn put_rules(out: &mut Vec<u8>, rules: &RuleKinds, same_as: Option<&RuleKinds>, version: u8) {
    use property_kind::*;
    let miss = u16::from(same_as.is_some());
    let differs = |part: fn(&RuleKinds, &RuleKinds) -> bool| {
        same_as.is_none_or(|ordinary| part(rules, ordinary))
    };
    if differs(|a, b| a.instructions != b.instructions) {
        let mut instructions = rules.instructions;
        // In 1.5 it is an action.
        instructions.set(
            InstructionKinds::METER,
            version < 6 && instructions.contains(InstructionKinds::METER),
        );
        put_ids(out, INSTRUCTIONS + miss, instructions.bits().into());
    }
    if differs(|a, b| a.next_tables != b.next_tables) {
        property(out, NEXT_TABLES + miss, |out| out.put(&rules.next_tables));
    }
    if differs(|a, b| a.write.actions != b.write.actions) {
        put_ids(out, WRITE_ACTIONS + miss, spoken(&rules.write, version));
    }
    if differs(|a, b| a.write.set_fields != b.write.set_fields) {
        put_field_list(
            out,
            WRITE_SET_FIELD + miss,
            &settable(&rules.write, version),
            version,
        );
    }
    if differs(|a, b| a.apply.actions != b.apply.actions) {
        put_ids(out, APPLY_ACTIONS + miss, spoken(&rules.apply, version));
    }
    if differs(|a, b| a.apply.set_fields != b.apply.set_fields) {
        put_field_list(
            out,
            APPLY_SET_FIELD + miss,
            &settable(&rules.apply, version),
            version,
        );
    }
}

/// Returns the fields that set-field may write in a version.
fn settable(kinds: &ActionKinds, version: u8) -> Vec<Field> {
    let mut fields = kinds.set_fields.clone();
    fields.retain(|field| version < 6 || !crate::model::action::READ_ONLY_IN_TOOLS.contains(field));
    fields
}

/// Returns the actions that have a number in a version.
fn spoken(kinds: &ActionKinds, version: u8) -> u64 {
    let highest = if version >= 6 { 29 } else { 27 };
    kinds.actions & ((2 << highest) - 1)
}

fn put_ids(out: &mut Vec<u8>, kind: u16, bits: u64) {
    property(out, kind, |out| {
        for number in (0..64).filter(|number| bits >> number & 1 == 1) {
            out.put_u16(number);
            out.put_u16(4);
        }
    });
}

fn put_field_list(out: &mut Vec<u8>, kind: u16, fields: &[Field], version: u8) {
    property(out, kind, |out| {
        for field in fields {
            oxm::put_id(out, *field, false, version);
        }
    });
}
