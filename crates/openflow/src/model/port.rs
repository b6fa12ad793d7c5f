//! Port numbers and descriptions.

/// A port number in OpenFlow 1.1+ numbering (32 bits). OpenFlow 1.0's 16-bit reserved numbers
/// (0xff00 and up) are translated by the codec: 0xfffe <-> [`LOCAL`] and so on, as in Open vSwitch.
pub type PortNo = u32;

/// Highest number of a physical or logical port that Sluice gives, as Open vSwitch (`OFPP_MAX` of
/// OpenFlow 1.0).
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

/// The 32-bit number for a 16-bit one: numbers from 0xff00 are reserved ones and move to the top
/// (OpenFlow 1.1 section A.2.1).
pub fn from_u16(number: u16) -> PortNo {
    if u32::from(number) < MAX {
        u32::from(number)
    } else {
        0xffff_0000 | u32::from(number)
    }
}

/// The 16-bit number for a 32-bit one; None for numbers that do not fit (0xff00 to 0xfffffeff).
pub fn to_u16(number: PortNo) -> Option<u16> {
    (!(MAX..0xffff_ff00).contains(&number)).then_some(number as u16)
}

/// Whether an `output` action may name the port whatever ports the switch has: a number below
/// [`MAX`] or a reserved one other than [`ANY`].
pub fn is_valid_output(number: PortNo) -> bool {
    number < MAX || (IN_PORT..=LOCAL).contains(&number)
}

bitflags::bitflags! {
    /// `OFPPC_*`, what an administrator set. Bits as in OpenFlow 1.0, of which later versions keep
    /// a part.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PortConfig: u32 {
        /// Administratively down.
        const DOWN = 1 << 0;
        /// No spanning tree (1.0).
        const NO_STP = 1 << 1;
        /// Drop what is received.
        const NO_RECV = 1 << 2;
        /// Drop received spanning tree packets (1.0).
        const NO_RECV_STP = 1 << 3;
        /// Leave the port out when flooding (1.0).
        const NO_FLOOD = 1 << 4;
        /// Drop what is sent.
        const NO_FWD = 1 << 5;
        /// Send no packet-ins for the port.
        const NO_PACKET_IN = 1 << 6;
    }

    /// `OFPPS_*`, what is so. Bits as in OpenFlow 1.1 and later.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PortState: u32 {
        /// No physical link.
        const LINK_DOWN = 1 << 0;
        /// Blocked, for instance by a spanning tree.
        const BLOCKED = 1 << 1;
        /// Live for fast failover groups.
        const LIVE = 1 << 2;
    }

    /// `OFPPF_*`: speeds and media. Bits as in OpenFlow 1.1 and later.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PortFeatures: u32 {
        /// 10 Mb/s half duplex.
        const HALF_10M = 1 << 0;
        /// 10 Mb/s.
        const FULL_10M = 1 << 1;
        /// 100 Mb/s half duplex.
        const HALF_100M = 1 << 2;
        /// 100 Mb/s.
        const FULL_100M = 1 << 3;
        /// 1 Gb/s half duplex.
        const HALF_1G = 1 << 4;
        /// 1 Gb/s.
        const FULL_1G = 1 << 5;
        /// 10 Gb/s.
        const FULL_10G = 1 << 6;
        /// 40 Gb/s.
        const FULL_40G = 1 << 7;
        /// 100 Gb/s.
        const FULL_100G = 1 << 8;
        /// 1 Tb/s.
        const FULL_1T = 1 << 9;
        /// A rate not in the list.
        const OTHER = 1 << 10;
        /// Copper.
        const COPPER = 1 << 11;
        /// Fibre.
        const FIBER = 1 << 12;
        /// Auto-negotiation.
        const AUTONEG = 1 << 13;
        /// Pause.
        const PAUSE = 1 << 14;
        /// Asymmetric pause.
        const PAUSE_ASYM = 1 << 15;
    }
}

impl PortFeatures {
    /// The bits in OpenFlow 1.0's numbering, which has the media right behind 10 Gb/s and no faster
    /// rates.
    pub fn to_v1_0(self) -> u32 {
        let bits = self.bits();
        bits & 0x7f | bits >> 4 & 0xf80
    }

    /// From OpenFlow 1.0's numbering.
    pub fn from_v1_0(bits: u32) -> PortFeatures {
        PortFeatures::from_bits_truncate(bits & 0x7f | (bits & 0xf80) << 4)
    }

    /// The fastest rate in the set, in kb/s; 0 when it names none.
    pub fn max_rate_kbps(self) -> u32 {
        const RATES: [(u32, u32); 6] = [
            (1 << 9, 1_000_000_000),
            (1 << 8, 100_000_000),
            (1 << 7, 40_000_000),
            (1 << 6, 10_000_000),
            (0b11 << 4, 1_000_000),
            (0b11 << 2, 100_000),
        ];
        RATES
            .iter()
            .find(|(bits, _)| self.bits() & bits != 0)
            .map_or(
                if self.bits() & 0b11 != 0 { 10_000 } else { 0 },
                |(_, rate)| *rate,
            )
    }
}

/// `ofp_port`: what is known of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortDescription {
    /// Its number.
    pub number: PortNo,
    /// Its Ethernet address.
    pub hw_addr: [u8; 6],
    /// Its name; at most 15 bytes go on the wire.
    pub name: String,
    /// What an administrator set.
    pub config: PortConfig,
    /// What is so.
    pub state: PortState,
    /// Features in use.
    pub current: PortFeatures,
    /// Features offered to the peer.
    pub advertised: PortFeatures,
    /// Features that the port has.
    pub supported: PortFeatures,
    /// Features that the peer offers.
    pub peer: PortFeatures,
    /// Rate in use, kb/s; 0 when unknown.
    pub current_speed: u32,
    /// Highest rate, kb/s; 0 when unknown.
    pub max_speed: u32,
}

/// Why a port status message is sent (`OFPPR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortReason {
    /// It is new.
    Add = 0,
    /// It went.
    Delete = 1,
    /// Something about it changed.
    Modify = 2,
}

/// A port came, went or changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortStatus {
    /// What happened.
    pub reason: PortReason,
    /// The port now, or as it was last.
    pub port: PortDescription,
}

/// A change of a port's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortMod {
    /// Which port.
    pub port: PortNo,
    /// Its Ethernet address, which must be right.
    pub hw_addr: [u8; 6],
    /// New values of the bits in `mask`.
    pub config: PortConfig,
    /// Which bits to change.
    pub mask: PortConfig,
    /// Features to offer; empty for no change.
    pub advertise: PortFeatures,
}

/// A counter that is not known (OpenFlow 1.3.5 section 7.3.5.6).
pub const UNKNOWN: u64 = u64::MAX;

/// A port's counters; [`UNKNOWN`] for those the port does not keep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Which port.
    pub port: PortNo,
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Received packets dropped.
    pub rx_dropped: u64,
    /// Packets dropped instead of sent.
    pub tx_dropped: u64,
    /// Errors in receiving, the next three among them.
    pub rx_errors: u64,
    /// Errors in sending.
    pub tx_errors: u64,
    /// Alignment errors.
    pub rx_frame_errors: u64,
    /// Overruns.
    pub rx_over_errors: u64,
    /// Checksum errors.
    pub rx_crc_errors: u64,
    /// Collisions.
    pub collisions: u64,
    /// How long the port has been there, nanoseconds; [`UNKNOWN`] when not known.
    pub duration_ns: u64,
}
