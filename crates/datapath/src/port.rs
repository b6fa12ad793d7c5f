//! Ports, bridges and their settings.

use crate::error::BoxError;
use crate::tunnel::TunnelSpec;
use crate::vlan::VlanConfig;
use packet::Frame;
use packet::io::{RxQueue, TxQueue};
use qos::policer::IngressSpec;

/// Number of a bridge's local port, the host's end of it (OpenFlow's `OFPP_LOCAL`).
pub const LOCAL: program::actions::PortNo = 0xffff_fffe;

/// Identifies a port of the datapath. Not reused soon, so a stale one is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PortId(pub(crate) u32);

/// Most ports at a time.
pub const MAX_PORTS: usize = 1 << 16;

impl PortId {
    pub(crate) fn new(slot: u32, generation: u32) -> PortId {
        PortId(generation << 16 | slot)
    }

    /// Returns the port's index in tables; another port may have had it before.
    #[inline(always)]
    pub(crate) fn slot(self) -> u32 {
        self.0 & 0xffff
    }
}

/// Identifies a bridge of the datapath. The default is number 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct BridgeId(pub(crate) u32);

impl BridgeId {
    /// Returns the number of its local port among devices of the underlay
    /// ([`underlay::Device::id`]).
    pub fn underlay_id(self) -> u32 {
        self.0
    }

    pub(crate) fn slot(self) -> u32 {
        self.0 & 0xffff
    }
}

/// OpenFlow's port configuration bits (OpenFlow 1.0 section 5.2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortFlags {
    /// Nothing is received or sent (`OFPPC_PORT_DOWN`).
    pub down: bool,
    /// What comes in is dropped (`OFPPC_NO_RECV`).
    pub no_recv: bool,
    /// Frames to 01:80:c2:00:00:00 that come in are dropped (`OFPPC_NO_RECV_STP`).
    pub no_recv_stp: bool,
    /// Nothing is flooded to it (`OFPPC_NO_FLOOD`).
    pub no_flood: bool,
    /// Nothing is sent to it (`OFPPC_NO_FWD`).
    pub no_fwd: bool,
    /// Table misses of its packets cause no packet-in (`OFPPC_NO_PACKET_IN`).
    pub no_packet_in: bool,
}

impl PortFlags {
    /// Returns whether frames that come in by the port may be dropped.
    #[inline(always)]
    pub(crate) fn refuses(self) -> bool {
        self.down || self.no_recv || self.no_recv_stp
    }
}

/// Settings that may change while a port lives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSettings {
    /// VLAN configuration.
    pub vlan: VlanConfig,
    /// OpenFlow's configuration bits.
    pub flags: PortFlags,
    /// Numbers of its queues; frames that name none of them go by queue 0.
    pub queues: Vec<u32>,
    /// DSCPs written into packets that name a queue, by queue number, ascending.
    pub marks: Vec<(u32, u8)>,
    /// How its queues are shaped.
    pub shape: Shape,
    /// How fast it may receive.
    pub ingress: IngressSpec,
    /// Pinned receive queues, served only by the worker of a processor where there is one: queue
    /// and processor.
    pub affinity: Vec<(u32, u32)>,
    /// Whether the device is down or has no carrier, so that what is sent is lost.
    pub no_carrier: bool,
    /// Whether it is on the underlay, so that a flow control field in what it receives is believed.
    pub underlay: bool,
}

/// How a port's queues are shaped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// Not shaped.
    #[default]
    None,
    /// By a shaper with these queues.
    Queues(std::sync::Arc<qos::shaper::PortSpec>),
    /// By a policer: nothing waits, and what exceeds these rates is dropped.
    Policer(std::sync::Arc<qos::policer::PolicerSpec>),
}

/// Makes a port's transmit queue for the worker with this number. The error is the device's.
pub type MakeTx<F> = Box<dyn FnMut(usize) -> Result<Box<dyn TxQueue<F>>, BoxError> + Send>;

/// What a port is.
pub enum PortKind<F: Frame> {
    /// A device.
    Device {
        /// Its receive queues.
        rx: Vec<Box<dyn RxQueue<F>>>,
        /// Makes its transmit queues.
        tx: MakeTx<F>,
    },
    /// One end of a patch: what is sent here comes in at the peer. Works once both ends exist and
    /// each names the other.
    Patch {
        /// The peer's name.
        peer: String,
    },
    /// One end of a tunnel.
    Tunnel(TunnelSpec),
}

/// A port to add.
pub struct PortSpec<F: Frame> {
    /// Name, unique in the datapath.
    pub name: String,
    /// The bridge it belongs to.
    pub bridge: BridgeId,
    /// OpenFlow number in the bridge: 1 to 0xfffffeff, or [`LOCAL`].
    pub number: program::actions::PortNo,
    /// VLANs and flags.
    pub settings: PortSettings,
    /// What is behind it.
    pub kind: PortKind<F>,
}
