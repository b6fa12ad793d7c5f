//! Port numbers, as rules name them.

/// A port number of the bridge (OpenFlow 1.1+ numbering); outputs to reserved ports are ops of
/// their own.
pub type PortNo = u32;

/// Reserved port numbers that a register may name.
pub(crate) mod reserved {
    /// The lowest number that no port may have (`OFPP_MAX`).
    pub const FIRST: u32 = 0xffff_ff00;
    /// Value of `actset_output` for a set that sends to no port (`OFPP_UNSET`, OpenFlow 1.5.1
    /// section 7.2.3.7).
    pub const UNSET: u32 = 0xffff_fff7;
    pub const IN_PORT: u32 = 0xffff_fff8;
    pub const NORMAL: u32 = 0xffff_fffa;
    pub const FLOOD: u32 = 0xffff_fffb;
    pub const ALL: u32 = 0xffff_fffc;
    pub const CONTROLLER: u32 = 0xffff_fffd;
    /// The bridge's local port, a port like others.
    pub const LOCAL: u32 = 0xffff_fffe;
    pub const NONE: u32 = 0xffff_ffff;
}
