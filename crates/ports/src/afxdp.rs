//! Kernel interfaces through AF_XDP, by DPDK's `net_af_xdp`.
//!
//! Frames bypass the host's stack: what arrives goes to the switch only. This version of AF_XDP has
//! no offloads, so frames of a local sender with checksum offload arrive with wrong checksums; on a
//! veth, turn it off at the other end (`ethtool -K NAME tx off`). The device's link, counters and
//! addresses are the kernel's.

use crate::error::Error;
use crate::interface::Interface;
use crate::link::SharedLinks;
use crate::mbuf::Mbuf;
use crate::pool::Pool;
use crate::spec::{Dpdk, PortSpec, PortType, Xdp};
use crate::{Eal, Mac, OpenPort, PortControl, PortInfo, ethdev};
use packet::io::TxQueue;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// When a device was closed last. The kernel frees an interface's queue some time after the socket
/// that had it was closed, and refuses another one until then.
static CLOSED: Mutex<Option<Instant>> = Mutex::new(None);
/// The times after that at which an open is tried, in milliseconds. They are few: DPDK's driver
/// loses the buffers of its fill ring, 2,048 of the pool's, with each that fails. Where
/// `shim/xsk.c` is in the way it waits for the queue, and none fails for that.
const TRIES_MS: [u64; 4] = [50, 100, 200, 400];

/// Waits until an open may be tried, if a device was closed a short while ago; returns false, at
/// once, if none was, and when all tries are over.
fn wait_for_try() -> bool {
    let closed = CLOSED.lock().map_or(None, |closed| *closed);
    let Some(since) = closed.map(|closed| closed.elapsed()) else {
        return false;
    };
    let next = TRIES_MS.map(Duration::from_millis);
    let Some(next) = next.into_iter().find(|time| *time > since) else {
        return false;
    };
    std::thread::sleep(next - since);
    true
}

pub(crate) fn open(
    eal: &Eal,
    spec: &PortSpec,
    mode: Xdp,
    rx_queues: u16,
) -> Result<OpenPort, Error> {
    let failed = |errno| Error::Open {
        name: spec.name.clone(),
        errno,
    };
    let links = SharedLinks::new().map_err(failed)?;
    let link = links.lock().by_name(&spec.name).map_err(failed)?;
    let mut interface = Interface::new(&spec.name, links, &link);
    if let Some(mac) = spec.mac {
        interface.set_mac(mac)?;
    }
    let forced = match mode {
        Xdp::BestEffort => "",
        Xdp::Native => ",force_copy=1",
        Xdp::NativeZeroCopy | Xdp::Generic => {
            return Err(Error::Unsupported {
                name: spec.name.clone(),
                what: format!(
                    "xdp-mode {} with this DPDK",
                    if mode == Xdp::Generic {
                        "generic"
                    } else {
                        "native-with-zerocopy"
                    }
                ),
            });
        }
    };
    // The virtual device's name contains the interface's index, because its name may have
    // characters that are not allowed there.
    let devargs = format!(
        "net_af_xdp_{},iface={},start_queue=0,queue_count={rx_queues}{forced}",
        link.ifindex, spec.name
    );
    let options = Dpdk {
        rx_queues,
        ..Dpdk::new(devargs)
    };
    let device = PortSpec {
        kind: PortType::Dpdk(options.clone()),
        mac: None,
        mtu: spec.mtu.or(Some(link.mtu.min(u32::from(u16::MAX)) as u16)),
        ..spec.clone()
    };
    wait_for_try();
    let OpenPort { control, rx } = loop {
        match ethdev::open(eal, &device, &options) {
            Err(Error::Device { .. }) if wait_for_try() => {}
            result => break result?,
        }
    };
    Ok(OpenPort {
        control: Box::new(XdpControl {
            interface,
            device: control,
            was_promiscuous: link.is_promiscuous(),
        }),
        rx,
    })
}

/// The control thread's side: DPDK's device for the queues, the kernel's interface for the rest.
struct XdpControl {
    interface: Interface,
    device: Box<dyn PortControl>,
    /// Whether the interface was promiscuous before DPDK made it so.
    was_promiscuous: bool,
}

impl Drop for XdpControl {
    fn drop(&mut self) {
        if let Ok(mut closed) = CLOSED.lock() {
            *closed = Some(Instant::now());
        }
        // It may have gone, and then there is nothing to restore.
        if !self.was_promiscuous {
            let _ = self.interface.set_promiscuous(false);
        }
    }
}

impl PortControl for XdpControl {
    fn tx_queue(&mut self, worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        self.device.tx_queue(worker)
    }

    fn pool(&self) -> Option<Pool> {
        self.device.pool()
    }

    fn info(&mut self) -> PortInfo {
        self.interface.info()
    }

    fn is_announced(&self) -> bool {
        !self.interface.is_late()
    }

    fn status(&mut self) -> Vec<(String, String)> {
        self.interface.status()
    }

    fn device_stats(&mut self) -> Vec<(String, u64)> {
        self.device.device_stats()
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        self.device.set_mtu(mtu)
    }

    fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        self.interface.set_mac(mac)
    }

    fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        self.interface.set_admin(up)
    }

    fn close(self: Box<Self>) {}
}
