//! All kinds of ports: DPDK devices, guests and kernel interfaces.
//!
//! [`eal::init`] sets DPDK up once. [`open`] turns a [`PortSpec`] into an [`OpenPort`]: receive
//! queues, each for one worker, and a [`PortControl`] for the control thread, which gives each
//! worker a transmit queue and changes, watches and closes the device. Queues may outlive the port:
//! they then receive nothing and drop frames to be sent, so a port can be closed while workers
//! still hold its queues.
//!
//! | type | how | module |
//! | --- | --- | --- |
//! | `system` | AF_PACKET socket with virtio-net headers | `kernel` |
//! | `tap`, `internal` | TAP device with virtio-net headers | `tap` |
//! | `dpdk`, `afxdp` | DPDK Ethernet device | `ethdev` |
//! | `dpdkvhostuser`, `dpdkvhostuserclient` | guests' rings, messages by Unix sockets | `vhost` |
//! | `dummy` | memory | `dummy` |

mod afxdp;
mod asker;
mod background;
mod descriptor;
mod dummy;
pub mod eal;
mod egress;
mod error;
mod ethdev;
mod fault;
mod gate;
mod hold;
mod indirection;
mod interface;
mod kernel;
mod link;
mod mbuf;
mod membarrier;
mod namespace;
mod pool;
mod raw;
mod record;
mod routes;
mod spec;
mod sync;
mod tap;
mod turn;
mod vector;
mod vhost;
mod vnet;

pub use background::finish;
pub use dummy::Target as StreamTarget;
pub use eal::{Dump, Eal, EalOptions, Memory};
pub use error::{DetachError, Error, describe};
pub use hold::is_free;
pub use link::{LinkChanges, LinkEvents, NextHop, make_veth, next_hop};
pub use mbuf::Mbuf;
pub use pool::Pool;
pub use record::leftovers;
pub use routes::{KernelAddress, KernelRoute, RouteEvents, addresses, kernel_routes};
pub use spec::{Dpdk, Dummy, PortSpec, PortType, Xdp, options_of};
pub use tap::remove_leftover;

use packet::io::{Indirection, RxQueue, TxQueue};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// A MAC address.
pub type Mac = [u8; 6];

/// An open port.
pub struct OpenPort {
    /// The control side.
    pub control: Box<dyn PortControl>,
    /// One for each receive queue; each goes to one worker.
    pub rx: Vec<Box<dyn RxQueue<Mbuf>>>,
}

/// Present state of a device.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PortInfo {
    /// Whether the device exists. If a kernel interface is deleted its port must be opened again.
    pub present: bool,
    /// Its MAC address.
    pub mac: Mac,
    /// Its MTU in bytes.
    pub mtu: u16,
    /// Its index in the kernel, 0 when it has none.
    pub ifindex: u32,
    /// Whether it is administratively up.
    pub admin_up: bool,
    /// Whether it has a link (a carrier, a connected guest).
    pub link_up: bool,
    /// Bits per second, 0 when unknown.
    pub link_speed: u64,
    /// None when unknown.
    pub full_duplex: Option<bool>,
    /// How many times the link has changed since the port was opened.
    pub link_resets: u64,
}

/// The control thread's side of a port. Dropping it closes the port, as [`PortControl::close`]
/// does.
pub trait PortControl: Send {
    /// Returns a transmit queue for worker number `worker`. Devices with fewer queues share them
    /// behind a lock.
    fn tx_queue(&mut self, worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error>;

    /// Returns the present state or, if the device cannot be asked, the last known one. Cheap (a
    /// few system calls at most), so it may be polled for link changes.
    fn info(&mut self) -> PortInfo;

    /// Returns whether [`LinkEvents`] reports its changes, by `PortInfo::ifindex`, so that polling
    /// is not needed.
    fn is_announced(&self) -> bool {
        false
    }

    /// Returns whether somebody has moved the device to another network namespace, and manages it
    /// there.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Returns key-value pairs for `Interface.status`, as Open vSwitch sets them for this type.
    fn status(&mut self) -> Vec<(String, String)>;

    /// Returns the device's own counters, by the names of `Interface.statistics`. They take
    /// precedence over workers' counters of the same names.
    fn device_stats(&mut self) -> Vec<(String, u64)>;

    /// Returns whether a device that connects to a peer is connected; None for all others.
    fn is_connected(&mut self) -> Option<bool> {
        None
    }

    /// Returns how many of its receive queues a guest has: those that commands show. None for all
    /// other devices, which have all of theirs.
    fn guest_queues(&self) -> Option<u16> {
        None
    }

    /// Returns the indirection table of a DPDK device with several receive queues that has one.
    fn indirection(&self) -> Option<Arc<dyn Indirection>> {
        None
    }

    /// Returns the pool of a DPDK device's or a guest's buffers; None for all other devices.
    fn pool(&self) -> Option<Pool> {
        None
    }

    /// Returns the process at the other end of a guest's socket (QEMU). None for all other devices,
    /// without a connection, and if it is not visible in this process's PID namespace.
    fn peer_process(&mut self) -> Option<u32> {
        None
    }

    /// Changes the MTU, in bytes.
    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error>;

    /// Changes the MAC address.
    fn set_mac(&mut self, mac: Mac) -> Result<(), Error>;

    /// Sets the device up or down.
    fn set_admin(&mut self, up: bool) -> Result<(), Error>;

    /// Sets the device up with an IPv4 address and netmask, in place of its present address, and
    /// adds a default route through a gateway.
    fn set_ipv4(
        &mut self,
        _address: Ipv4Addr,
        _netmask: Ipv4Addr,
        _gateway: Option<Ipv4Addr>,
    ) -> Result<(), Error> {
        Err(Error::Option("its device has no IP addresses".into()))
    }

    /// Makes a `dummy` port receive `frame`; other types fail.
    fn inject(&mut self, _frame: &[u8]) -> Result<(), Error> {
        Err(Error::Option("not a dummy netdev".into()))
    }

    /// Closes the port now. Queues that workers still hold do nothing from then on. A device that
    /// was created for the port is deleted.
    fn close(self: Box<Self>);

    /// Closes the port like [`PortControl::close`], but keeps a device that can outlive the
    /// process, for the next process to open.
    fn leave(self: Box<Self>) {
        self.close();
    }
}

/// Opens a port. The error's text is for `Interface.error`.
pub fn open(eal: &Eal, spec: &PortSpec) -> Result<OpenPort, Error> {
    match &spec.kind {
        PortType::System => kernel::open(eal, spec),
        PortType::Tap | PortType::Internal => tap::open(eal, spec),
        PortType::VhostClient { path, rx_queues } => vhost::open(eal, spec, path, *rx_queues, true),
        PortType::VhostServer { path, rx_queues } => {
            vhost::open(eal, spec, path, *rx_queues, false)
        }
        PortType::Dpdk(options) => ethdev::open(eal, spec, options),
        PortType::Dummy(options) => dummy::open(eal, spec, options),
        PortType::AfXdp { mode, rx_queues } => afxdp::open(eal, spec, *mode, *rx_queues),
    }
}
