//! Port numbers and descriptions.

/// A port number in OpenFlow 1.1+ numbering (32 bits). OpenFlow 1.0's 16-bit reserved numbers (0xff00 and up) are translated
/// by the codec: 0xfffe <-> [`LOCAL`] and so on, as in Open vSwitch.
pub type PortNo = u32;

/// Highest number of a physical or logical port that Sluice gives, as Open vSwitch (`OFPP_MAX` of OpenFlow 1.0).
pub const MAX: PortNo = 0xff00;
/// The port a packet came in by.
pub const IN_PORT: PortNo = 0xffff_fff8;
/// Submit to the first flow table (packet-out only).
pub const TABLE: PortNo = 0xffff_fff9;
/// Process with normal L2 switching.
pub const NORMAL: PortNo = 0xffff_fffa;
/// All ports that are not blocked, except the ingress port.
pub const FLOOD: PortNo = 0xffff_fffb;
/// All ports except the ingress port.
pub const ALL: PortNo = 0xffff_fffc;
/// Send to the controllers.
pub const CONTROLLER: PortNo = 0xffff_fffd;
/// The bridge's own port.
pub const LOCAL: PortNo = 0xffff_fffe;
/// Any port, or no port (`OFPP_ANY`, `OFPP_NONE`).
pub const ANY: PortNo = 0xffff_ffff;
