//! What a port is told to be.

use crate::tunnel::TunnelSpec;
use crate::vlan::VlanConfig;
use packet::Frame;
use packet::io::{RxQueue, TxQueue};
use qos::policer::IngressSpec;

/// Number of the port that is the host's own end of a bridge (OpenFlow's `OFPP_LOCAL`).
pub const LOCAL: program::actions::PortNo = 0xffff_fffe;

/// A port of the datapath. Numbers are not used again soon, so a stale one is recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct PortId(pub(crate) u32);

/// Most ports at a time.
pub const MAX_PORTS: usize = 1 << 16;

impl PortId {
    pub(crate) fn new(slot: u32, generation: u32) -> PortId {
        PortId(generation << 16 | slot)
    }

    /// The port's place in tables; another port may have had it before.
    #[inline(always)]
    pub(crate) fn slot(self) -> u32 {
        self.0 & 0xffff
    }
}

/// A bridge of the datapath.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct BridgeId(pub(crate) u32);

impl BridgeId {
    /// Its number among devices that tunnels go out by: its local port ([`underlay::Device::id`]).
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
    /// Nothing goes in or out (`OFPPC_PORT_DOWN`).
    pub down: bool,
    /// What comes in is dropped (`OFPPC_NO_RECV`).
    pub no_recv: bool,
    /// The same for frames to 01:80:c2:00:00:00 (`OFPPC_NO_RECV_STP`).
    pub no_recv_stp: bool,
    /// Nothing is flooded to it (`OFPPC_NO_FLOOD`).
    pub no_flood: bool,
    /// Nothing is sent to it (`OFPPC_NO_FWD`).
    pub no_fwd: bool,
    /// Table misses of its packets cause no packet-in (`OFPPC_NO_PACKET_IN`).
    pub no_packet_in: bool,
}

impl PortFlags {
    /// Whether frames that come in by the port may be thrown out.
    #[inline(always)]
    pub(crate) fn refuses(self) -> bool {
        self.down || self.no_recv || self.no_recv_stp
    }
}

/// What may change about a port while it lives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortSettings {
    /// VLANs.
    pub vlan: VlanConfig,
    /// OpenFlow's bits.
    pub flags: PortFlags,
    /// The queues that it has, by number; 0 is where everything goes that names no other.
    pub queues: Vec<u32>,
    /// The DSCP that packets get which name a queue, by the queue's number, ascending.
    pub marks: Vec<(u32, u8)>,
    /// How its queues are shaped.
    pub shape: Shape,
    /// How fast it may receive.
    pub ingress: IngressSpec,
    /// Receive queues that only the worker of a processor serves, where there is one: queue and
    /// processor.
    pub affinity: Vec<(u32, u32)>,
    /// What is sent there is lost: the device is down or has no carrier.
    pub no_carrier: bool,
    /// It is on the underlay: what it receives may carry a flow control field that is believed.
    pub underlay: bool,
}

/// How a port's queues are shaped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// Not at all.
    #[default]
    None,
    /// So.
    Queues(std::sync::Arc<qos::shaper::PortSpec>),
    /// Nothing waits: what exceeds these rates is dropped.
    Policer(std::sync::Arc<qos::policer::PolicerSpec>),
}

/// Makes a port's transmit queue for a worker, by the worker's number. An error's text is for the
/// user.
pub type MakeTx<F> = Box<dyn FnMut(usize) -> Result<Box<dyn TxQueue<F>>, String> + Send>;

/// What is behind a port.
pub enum PortKind<F: Frame> {
    /// A device.
    Device {
        /// Its receive queues.
        rx: Vec<Box<dyn RxQueue<F>>>,
        /// How workers get at it.
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
    /// Its OpenFlow number there: 1 to 0xfffffeff, or [`LOCAL`].
    pub number: program::actions::PortNo,
    /// VLANs and flags.
    pub settings: PortSettings,
    /// What is behind it.
    pub kind: PortKind<F>,
}
