//! What multipart messages (statistics, in OpenFlow 1.0's word) carry, besides flows and ports.

use crate::model::port::PortNo;
use packet::Field;

/// Who made the switch (`OFPMP_DESC`). Each text is cut to 255 bytes on the wire, the serial number
/// to 31.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Description {
    /// Manufacturer.
    pub manufacturer: String,
    /// Hardware.
    pub hardware: String,
    /// Software.
    pub software: String,
    /// Serial number.
    pub serial: String,
    /// This datapath, for people.
    pub datapath: String,
}

/// Sums over rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Aggregate {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Rules.
    pub flows: u32,
}

/// A flow table's counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableStats {
    /// Which table.
    pub table: u8,
    /// Its name (1.0 to 1.2).
    pub name: String,
    /// How many rules fit (1.0 to 1.2).
    pub max_entries: u32,
    /// Instructions that it takes (1.1 and 1.2).
    pub instructions: InstructionKinds,
    /// What becomes of packets without a rule, `OFPTC_*` (1.1 and 1.2).
    pub config: u32,
    /// How many it has.
    pub active: u32,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that met a rule.
    pub matched: u64,
}

bitflags::bitflags! {
    /// Instructions that a table takes; bit n is `OFPIT` number n.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct InstructionKinds: u32 {
        /// Go to a later table.
        const GOTO_TABLE = 1 << 1;
        /// Write metadata.
        const WRITE_METADATA = 1 << 2;
        /// Write actions.
        const WRITE_ACTIONS = 1 << 3;
        /// Apply actions.
        const APPLY_ACTIONS = 1 << 4;
        /// Clear actions.
        const CLEAR_ACTIONS = 1 << 5;
        /// Meter (1.3, 1.4).
        const METER = 1 << 6;
    }
}

/// Actions that a table takes in one place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ActionKinds {
    /// Bit n for `OFPAT` number n of OpenFlow 1.3.
    pub actions: u64,
    /// Fields that set-field may write.
    pub set_fields: Vec<Field>,
}

/// What rules of a table can do: for ordinary rules, or for the table-miss rule.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleKinds {
    /// Instructions.
    pub instructions: InstructionKinds,
    /// Tables that goto-table may name.
    pub next_tables: Vec<u8>,
    /// Write-actions.
    pub write: ActionKinds,
    /// Apply-actions.
    pub apply: ActionKinds,
}

/// What a table can do (`OFPMP_TABLE_FEATURES`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableFeatures {
    /// Which table.
    pub table: u8,
    /// What a request wants, `OFPTFC_*` (1.5; others want 0): 0 that the tables are these, 1 that
    /// this one is so, 2 and 3 that it is there or not.
    pub command: u8,
    /// Its name, at most 31 bytes.
    pub name: String,
    /// Metadata bits that can be matched.
    pub metadata_match: u64,
    /// Metadata bits that can be written.
    pub metadata_write: u64,
    /// `OFPTC_*`.
    pub config: u32,
    /// How many rules fit.
    pub max_entries: u32,
    /// Fields that can be matched, and whether under a mask.
    pub matchable: Vec<(Field, bool)>,
    /// Fields that can be left out of a match.
    pub wildcards: Vec<Field>,
    /// Ordinary rules.
    pub rules: RuleKinds,
    /// The table-miss rule.
    pub miss: RuleKinds,
}

/// `OFPTC_EVICTION`: a full table makes room by itself (1.4).
pub const EVICTION: u32 = 1 << 2;
/// `OFPTC_VACANCY_EVENTS`: controllers are told how full it is (1.4).
pub const VACANCY_EVENTS: u32 = 1 << 3;

/// A table's configuration (`OFPT_TABLE_MOD`, `OFPMP_TABLE_DESC`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableConfig {
    /// Which table, or 0xff for all.
    pub table: u8,
    /// `OFPTC_*` bits: in 1.1 and 1.2 what becomes of packets without a rule, from 1.4 on
    /// [`EVICTION`] and [`VACANCY_EVENTS`].
    pub config: u32,
    /// By what rules are chosen for eviction, `OFPTMPEF_*` (1.4): 1 other, 2 importance, 4
    /// lifetime.
    pub eviction: Option<u32>,
    /// When to tell how full it is (1.4).
    pub vacancy: Option<Vacancy>,
}

/// How full a table may be before controllers are told, in percent of its room that is left
/// (`OFPTMPT_VACANCY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vacancy {
    /// Less than this: it fills up.
    pub down: u8,
    /// More than this: it has room again.
    pub up: u8,
    /// How it is now; ignored in a table mod.
    pub current: u8,
}

/// Why a table's status is told (`OFPTR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TableReason {
    /// Less room is left than the lower threshold.
    VacancyDown = 3,
    /// More room is left than the upper threshold.
    VacancyUp = 4,
}

/// How full a table is has crossed a threshold (1.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableStatus {
    /// Why it is told.
    pub reason: TableReason,
    /// The table.
    pub table: TableConfig,
}

/// A queue's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueStats {
    /// Its port.
    pub port: PortNo,
    /// Which queue.
    pub queue: u32,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets dropped because the queue was full.
    pub tx_errors: u64,
    /// How long it has been there, nanoseconds, [`crate::port::UNKNOWN`] when not known.
    pub duration_ns: u64,
}

/// A queue's configuration. Rates are in 1/10 percent of the port's rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueDescription {
    /// Its port.
    pub port: PortNo,
    /// Which queue.
    pub queue: u32,
    /// Rate guaranteed.
    pub min_rate: Option<u16>,
    /// Rate allowed.
    pub max_rate: Option<u16>,
}

/// What groups the switch can have, by type in the order all, select, indirect, fast failover.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupFeatures {
    /// Bit n: type n is there.
    pub types: u32,
    /// `OFPGFC_*`.
    pub capabilities: u32,
    /// How many groups of each type.
    pub max_groups: [u32; 4],
    /// Actions by type, bit n for `OFPAT` number n of OpenFlow 1.3. 1.0 and 1.1 are told their own
    /// actions for these.
    pub actions: [u32; 4],
}

/// What meters the switch can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MeterFeatures {
    /// How many meters.
    pub max_meters: u32,
    /// Bit n: band type n.
    pub band_types: u32,
    /// `OFPMF_*`.
    pub capabilities: u32,
    /// Bands in a meter.
    pub max_bands: u8,
    /// Colours.
    pub max_color: u8,
}
