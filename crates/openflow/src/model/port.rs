//! Port numbers and descriptions.

/// A port number in the 32-bit numbering of OpenFlow 1.1 and later. The codec translates OpenFlow
/// 1.0's 16-bit reserved numbers (0xff00 and up) as Open vSwitch does: 0xfffe <-> [`LOCAL`] and so
/// on.
pub type PortNo = u32;

/// Upper limit of the numbers of physical and logical ports, as in Open vSwitch (`OFPP_MAX` of
/// OpenFlow 1.0).
pub const MAX: PortNo = 0xff00;
/// The packet's ingress port.
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

/// Returns the 32-bit number of a 16-bit one: numbers from 0xff00 on are reserved and move to the
/// top (OpenFlow 1.1 section A.2.1).
pub fn from_u16(number: u16) -> PortNo {
    if u32::from(number) < MAX {
        u32::from(number)
    } else {
        0xffff_0000 | u32::from(number)
    }
}

/// Returns the 16-bit number of a 32-bit one; None for numbers that do not fit (0xff00 to
/// 0xfffffeff).
pub fn to_u16(number: PortNo) -> Option<u16> {
    (!(MAX..0xffff_ff00).contains(&number)).then_some(number as u16)
}

/// Returns whether an `output` action may name the port, whatever ports the switch has: a number
/// below [`MAX`] or a reserved one other than [`ANY`].
pub fn is_valid_output(number: PortNo) -> bool {
    number < MAX || (IN_PORT..=LOCAL).contains(&number)
}

bitflags::bitflags! {
    /// `OFPPC_*`: the administrator's settings. Bits as in OpenFlow 1.0; later versions keep some
    /// of them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct PortConfig: u32 {
        /// Administratively down.
        const DOWN = 1 << 0;
        /// No spanning tree (1.0).
        const NO_STP = 1 << 1;
        /// Drop received packets.
        const NO_RECV = 1 << 2;
        /// Drop received spanning tree packets (1.0).
        const NO_RECV_STP = 1 << 3;
        /// Leave the port out of floods (1.0).
        const NO_FLOOD = 1 << 4;
        /// Drop packets to be sent.
        const NO_FWD = 1 << 5;
        /// Send no packet-ins for received packets.
        const NO_PACKET_IN = 1 << 6;
    }

    /// `OFPPS_*`: the current state. Bits as in OpenFlow 1.1 and later.
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
    /// Returns the bits in OpenFlow 1.0's numbering, which has the media right behind 10 Gb/s and
    /// no faster rates.
    pub fn to_v1_0(self) -> u32 {
        let bits = self.bits();
        bits & 0x7f | bits >> 4 & 0xf80
    }

    /// Converts from OpenFlow 1.0's numbering.
    pub fn from_v1_0(bits: u32) -> PortFeatures {
        PortFeatures::from_bits_truncate(bits & 0x7f | (bits & 0xf80) << 4)
    }

    /// Returns the fastest rate in the set, in kb/s; 0 if it has none.
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

/// `ofp_port`: the description of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortDescription {
    /// Its number.
    pub number: PortNo,
    /// Its Ethernet address.
    pub hw_addr: [u8; 6],
    /// Its name; at most 15 bytes go on the wire.
    pub name: String,
    /// The administrator's settings.
    pub config: PortConfig,
    /// The current state.
    pub state: PortState,
    /// Features in use.
    pub current: PortFeatures,
    /// Features advertised to the link partner.
    pub advertised: PortFeatures,
    /// Features that the port supports.
    pub supported: PortFeatures,
    /// Features advertised by the link partner.
    pub peer: PortFeatures,
    /// Current rate in kb/s; 0 if unknown.
    pub current_speed: u32,
    /// Highest rate in kb/s; 0 if unknown.
    pub max_speed: u32,
}

/// Why a port status message is sent (`OFPPR_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PortReason {
    /// It was added.
    Add = 0,
    /// It was removed.
    Delete = 1,
    /// Its configuration, state or features changed.
    Modify = 2,
}

/// A port was added, removed or changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortStatus {
    /// The reason.
    pub reason: PortReason,
    /// The port as it is now, or as it was before removal.
    pub port: PortDescription,
}

/// A change of a port's configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortMod {
    /// The port.
    pub port: PortNo,
    /// Its Ethernet address, which must match.
    pub hw_addr: [u8; 6],
    /// New values of the bits in `mask`.
    pub config: PortConfig,
    /// The bits to change.
    pub mask: PortConfig,
    /// Features to advertise; empty for no change.
    pub advertise: PortFeatures,
}

/// The value of a counter that is not kept (OpenFlow 1.3.5 section 7.3.5.6).
pub const UNKNOWN: u64 = u64::MAX;

/// Names, in `Interface.statistics`, of the counters of [`PortStats::by_size`], in the order in
/// which Intel's extension of 1.4 sends them (`intel_port_stats_rfc2819` of Open vSwitch).
pub const BY_SIZE: [&str; 21] = [
    "rx_1_to_64_packets",
    "rx_65_to_127_packets",
    "rx_128_to_255_packets",
    "rx_256_to_511_packets",
    "rx_512_to_1023_packets",
    "rx_1024_to_1522_packets",
    "rx_1523_to_max_packets",
    "tx_1_to_64_packets",
    "tx_65_to_127_packets",
    "tx_128_to_255_packets",
    "tx_256_to_511_packets",
    "tx_512_to_1023_packets",
    "tx_1024_to_1522_packets",
    "tx_1523_to_max_packets",
    "tx_multicast_packets",
    "rx_broadcast_packets",
    "tx_broadcast_packets",
    "rx_undersized_errors",
    "rx_oversize_errors",
    "rx_fragmented_errors",
    "rx_jabber_errors",
];

/// A port's counters; [`UNKNOWN`] for those the port does not keep.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// The port.
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
    /// Packets dropped instead of being sent.
    pub tx_dropped: u64,
    /// Receive errors, including frame, overrun and CRC errors.
    pub rx_errors: u64,
    /// Transmit errors.
    pub tx_errors: u64,
    /// Alignment errors.
    pub rx_frame_errors: u64,
    /// Overruns.
    pub rx_over_errors: u64,
    /// CRC errors.
    pub rx_crc_errors: u64,
    /// Collisions.
    pub collisions: u64,
    /// Time since the port was added, in nanoseconds; [`UNKNOWN`] if not known.
    pub duration_ns: u64,
    /// Packets by size and kind (RFC 2819), in the order of [`BY_SIZE`]; None if the port keeps
    /// none of them. Sent in 1.4 and later.
    pub by_size: Option<Box<[u64; BY_SIZE.len()]>>,
    /// Other counters by name (at most 255 bytes), in the order in which tools show them. Sent in
    /// 1.4 and later, as many as fit in 32 KiB.
    pub custom: Vec<(String, u64)>,
}
