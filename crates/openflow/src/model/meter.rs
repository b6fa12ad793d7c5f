//! Meters.

/// Every meter (`OFPM_ALL`).
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
    /// A new meter.
    Add = 0,
    /// Replace a meter.
    Modify = 1,
    /// Remove a meter, or [`ALL`].
    Delete = 2,
}

bitflags::bitflags! {
    /// `OFPMF_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MeterFlags: u16 {
        /// Rates in kb/s.
        const KBPS = 1;
        /// Rates in packets/s.
        const PKTPS = 2;
        /// Bands give burst sizes.
        const BURST = 4;
        /// Statistics are wanted.
        const STATS = 8;
    }
}

/// What a band does to packets above its rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BandKind {
    /// Drops them.
    Drop,
    /// Raises their drop precedence by so many steps.
    DscpRemark(u8),
}

/// One band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Band {
    /// What it does.
    pub kind: BandKind,
    /// Rate above which it acts, kb/s or packets/s.
    pub rate: u32,
    /// Burst, kb or packets.
    pub burst: u32,
}

/// What a meter is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterConfig {
    /// Its number.
    pub meter: u32,
    /// Units.
    pub flags: MeterFlags,
    /// Its bands.
    pub bands: Vec<Band>,
}

/// A change of the meters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterMod {
    /// What to do.
    pub command: MeterCommand,
    /// The meter.
    pub config: MeterConfig,
}

/// A meter's counters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeterStats {
    /// Which meter.
    pub meter: u32,
    /// Rules that use it.
    pub flows: u32,
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Age in nanoseconds.
    pub duration_ns: u64,
    /// Packets and bytes that each band acted on.
    pub bands: Vec<(u64, u64)>,
}
