//! Contents of multipart messages (called statistics in OpenFlow 1.0), except flows and ports.

use crate::model::port::PortNo;
use packet::Field;

/// The description of the switch (`OFPMP_DESC`). On the wire each text is cut to 255 bytes, the
/// serial number to 31.
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
    /// Description of the datapath, for people.
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
    /// The table.
    pub table: u8,
    /// Its name (1.0 to 1.2).
    pub name: String,
    /// Maximum number of rules (1.0 to 1.2).
    pub max_entries: u32,
    /// Supported instructions (1.1 and 1.2).
    pub instructions: InstructionKinds,
    /// What happens to packets without a rule, `OFPTC_*` (1.1 and 1.2).
    pub config: u32,
    /// Number of rules.
    pub active: u32,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that matched a rule.
    pub matched: u64,
}

bitflags::bitflags! {
    /// Instructions that a table supports; bit n is `OFPIT` number n.
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

/// Actions that a table supports in apply-actions or in write-actions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ActionKinds {
    /// Bit n for `OFPAT` number n of OpenFlow 1.3.
    pub actions: u64,
    /// Fields that set-field may write.
    pub set_fields: Vec<Field>,
}

/// What rules of a table may contain: ordinary rules, or the table-miss rule.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleKinds {
    /// Supported instructions.
    pub instructions: InstructionKinds,
    /// Tables to which goto-table may lead.
    pub next_tables: Vec<u8>,
    /// Actions in write-actions.
    pub write: ActionKinds,
    /// Actions in apply-actions.
    pub apply: ActionKinds,
}

/// The features of a table (`OFPMP_TABLE_FEATURES`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableFeatures {
    /// The table.
    pub table: u8,
    /// The command of a request, `OFPTFC_*` (1.5; 0 in other versions): 0 replaces all tables, 1
    /// changes this one, 2 enables and 3 disables it.
    pub command: u8,
    /// Its name, at most 31 bytes.
    pub name: String,
    /// Metadata bits that can be matched.
    pub metadata_match: u64,
    /// Metadata bits that can be written.
    pub metadata_write: u64,
    /// `OFPTC_*`.
    pub config: u32,
    /// Maximum number of rules.
    pub max_entries: u32,
    /// Fields that can be matched, and whether with a mask.
    pub matchable: Vec<(Field, bool)>,
    /// Fields that may be left out of a match.
    pub wildcards: Vec<Field>,
    /// Features of ordinary rules.
    pub rules: RuleKinds,
    /// Features of the table-miss rule.
    pub miss: RuleKinds,
}

/// `OFPTC_EVICTION`: a full table evicts rules (1.4).
pub const EVICTION: u32 = 1 << 2;
/// `OFPTC_VACANCY_EVENTS`: vacancy events are sent to controllers (1.4).
pub const VACANCY_EVENTS: u32 = 1 << 3;

/// A table's configuration (`OFPT_TABLE_MOD`, `OFPMP_TABLE_DESC`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableConfig {
    /// The table, or 0xff for all.
    pub table: u8,
    /// `OFPTC_*` bits: in 1.1 and 1.2 what happens to packets without a rule, from 1.4 on
    /// [`EVICTION`] and [`VACANCY_EVENTS`].
    pub config: u32,
    /// Criteria for eviction, `OFPTMPEF_*` (1.4): 1 other, 2 importance, 4 lifetime.
    pub eviction: Option<u32>,
    /// Thresholds of vacancy events (1.4).
    pub vacancy: Option<Vacancy>,
}

/// Thresholds of vacancy events, in percent of the table's capacity that is free
/// (`OFPTMPT_VACANCY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vacancy {
    /// An event is sent when less than this is free.
    pub down: u8,
    /// An event is sent when more than this is free again.
    pub up: u8,
    /// The free share now; ignored in a table mod.
    pub current: u8,
}

/// Why a table status message is sent (`OFPTR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TableReason {
    /// Less is free than the lower threshold.
    VacancyDown = 3,
    /// More is free than the upper threshold.
    VacancyUp = 4,
}

/// A table's free share has crossed a threshold (1.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableStatus {
    /// The reason.
    pub reason: TableReason,
    /// The table.
    pub table: TableConfig,
}

/// A queue's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueStats {
    /// Its port.
    pub port: PortNo,
    /// The queue.
    pub queue: u32,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Packets dropped because the queue was full.
    pub tx_errors: u64,
    /// Time since the queue was added, in nanoseconds; [`crate::port::UNKNOWN`] if not known.
    pub duration_ns: u64,
}

/// A queue's configuration. Rates are in units of 0.1 percent of the port's rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueDescription {
    /// Its port.
    pub port: PortNo,
    /// The queue.
    pub queue: u32,
    /// Guaranteed rate.
    pub min_rate: Option<u16>,
    /// Maximum rate.
    pub max_rate: Option<u16>,
}

/// Supported features of groups, by type in the order all, select, indirect, fast failover.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupFeatures {
    /// Bit n: type n is supported.
    pub types: u32,
    /// `OFPGFC_*`.
    pub capabilities: u32,
    /// Maximum number of groups of each type.
    pub max_groups: [u32; 4],
    /// Actions supported by each type, bit n for `OFPAT` number n of OpenFlow 1.3. In 1.0 and 1.1
    /// they are translated to those versions' actions.
    pub actions: [u32; 4],
}

/// Supported features of meters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MeterFeatures {
    /// Maximum number of meters.
    pub max_meters: u32,
    /// Bit n: band type n is supported.
    pub band_types: u32,
    /// `OFPMF_*`.
    pub capabilities: u32,
    /// Maximum bands of a meter.
    pub max_bands: u8,
    /// Maximum color value.
    pub max_color: u8,
}
