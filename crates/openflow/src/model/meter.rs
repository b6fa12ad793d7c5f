//! Meters.

/// All meters (`OFPM_ALL`).
pub const ALL: u32 = 0xffff_ffff;
/// The meter for packets on the switch's slow path (`OFPM_SLOWPATH`).
pub const SLOWPATH: u32 = 0xffff_fffd;
/// The meter for packets to the controllers (`OFPM_CONTROLLER`).
pub const CONTROLLER: u32 = 0xffff_fffe;
/// Highest number of a meter (`OFPM_MAX`).
pub const MAX: u32 = 0xffff_0000;

/// `OFPMC_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum MeterCommand {
    /// Add a meter.
    Add = 0,
    /// Replace a meter.
    Modify = 1,
    /// Delete a meter, or [`ALL`].
    Delete = 2,
}

bitflags::bitflags! {
    /// `OFPMF_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MeterFlags: u16 {
        /// Rates in kb/s.
        const KBPS = 1;
        /// Rates in packets per second.
        const PKTPS = 2;
        /// Bands have burst sizes.
        const BURST = 4;
        /// Statistics are collected.
        const STATS = 8;
    }
}

/// What a band does to packets above its rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BandKind {
    /// Drops them.
    Drop,
    /// Raises their drop precedence by this many steps.
    DscpRemark(u8),
}

/// One band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Band {
    /// What it does to packets above its rate.
    pub kind: BandKind,
    /// Rate above which it applies, in kb/s or packets/s.
    pub rate: u32,
    /// Burst size, in kb or packets.
    pub burst: u32,
}

/// The configuration of a meter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterConfig {
    /// Its number.
    pub meter: u32,
    /// Units and options.
    pub flags: MeterFlags,
    /// Its bands.
    pub bands: Vec<Band>,
}

/// A change of a meter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterMod {
    /// The command.
    pub command: MeterCommand,
    /// The meter.
    pub config: MeterConfig,
}

/// A meter's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterStats {
    /// The meter.
    pub meter: u32,
    /// Number of rules that use it.
    pub flows: u32,
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Age in nanoseconds.
    pub duration_ns: u64,
    /// Packets and bytes to which each band applied.
    pub bands: Vec<(u64, u64)>,
}
