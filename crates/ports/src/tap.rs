//! TAP devices: kernel interfaces made for the switch, such as a bridge's own end in the host.
//!
//! Like [`crate::kernel`]'s sockets they carry virtio-net headers, so what the host's stack leaves undone stays undone on the way to another
//! kernel interface. The device goes when the port is closed.

use crate::descriptor::Descriptor;
use crate::egress;
use crate::error::{Error, last_errno};
use crate::interface::Interface;
use crate::link::{self, Links};
use crate::mbuf::{self, Mbuf};
use crate::spec::PortSpec;
use crate::turn::Turn;
use crate::vector::{self, Buffers, KERNEL, Refused, Slot};
use crate::{Eal, Mac, OpenPort, PortControl, PortInfo};
use libc::iovec;
use packet::frame::Frame;
use packet::io::{BURST, QueueDrops, RxQueue, TxOutcome, TxQueue};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

pub(crate) fn open(eal: &Eal, spec: &PortSpec) -> Result<OpenPort, Error> {
    let failed = |errno| Error::Open {
        name: spec.name.clone(),
        errno,
    };
    if !link::is_name(&spec.name) {
        return Err(failed(libc::EINVAL));
    }
    let mut links = Links::new().map_err(failed)?;
    let tap = Arc::new(Descriptor::new(create(&spec.name).map_err(failed)?));
    let link = links.by_name(&spec.name).map_err(failed)?;
    let rx = TapRx {
        tap: tap.clone(),
        buffers: eal.buffers()?,
        slot: Box::new(Slot::new()),
        drops: QueueDrops::default(),
    };
    let mut control = Box::new(TapControl {
        interface: Interface::new(&spec.name, links, &link),
        tap,
    });
    if let Some(mac) = spec.mac {
        control.set_mac(mac)?;
    }
    if let Some(mtu) = spec.mtu {
        control.set_mtu(mtu)?;
    }
    Ok(OpenPort {
        control,
        rx: vec![Box::new(rx)],
    })
}

/// Makes the device, or takes over a persistent one of that name.
fn create(name: &str) -> Result<OwnedFd, i32> {
    // SAFETY: the path is a string that ends in a zero.
    let fd = unsafe {
        libc::open(
            c"/dev/net/tun".as_ptr(),
            libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = link::request(name)?;
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the request is a whole ifreq.
    if unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::TUNSETIFF as libc::c_ulong,
            std::ptr::from_mut(&mut request),
        )
    } < 0
    {
        return Err(last_errno());
    }
    let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
    // Kernels before 6.2 do not know UDP segmentation; then the host's stack cuts UDP itself.
    for offloads in [tcp | udp, tcp, libc::TUN_F_CSUM] {
        // SAFETY: this request takes a plain number.
        let code = unsafe {
            libc::ioctl(
                fd.as_raw_fd(),
                libc::TUNSETOFFLOAD as libc::c_ulong,
                libc::c_ulong::from(offloads),
            )
        };
        if code == 0 {
            return Ok(fd);
        }
    }
    // The device does without offloads.
    Ok(fd)
}

struct TapRx {
    tap: Arc<Descriptor>,
    buffers: Buffers,
    slot: Box<Slot>,
    drops: QueueDrops,
}

impl TapRx {
    /// One frame, or None when there is none.
    fn receive_one(&mut self) -> Option<Result<Mbuf, Refused>> {
        let mut parts = self.slot.parts(&self.buffers)?;
        let parts = parts.as_mut_slice();
        // SAFETY: the parts are writable and live in the slot.
        let got = unsafe { libc::readv(self.tap.number(), parts.as_ptr(), parts.len() as i32) };
        let length = usize::try_from(got).ok()?;
        // SAFETY: the kernel wrote `length` bytes to these parts.
        Some(unsafe { self.slot.take(length) })
    }
}

impl RxQueue<Mbuf> for TapRx {
    fn receive(&mut self, out: &mut Vec<Mbuf>) -> usize {
        if self.tap.is_shut() {
            return 0;
        }
        let before = out.len();
        let mut turn = Turn::default();
        for _ in 0..BURST {
            if turn.is_over() {
                break;
            }
            match self.receive_one() {
                None => break,
                Some(Ok(frame)) => {
                    turn.spend(&frame);
                    out.push(frame);
                }
                Some(Err(Refused::Malformed)) => self.drops.malformed += 1,
                Some(Err(Refused::NoBuffer)) => self.drops.no_buffer += 1,
            }
        }
        self.slot.rest();
        out.len() - before
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.tap.number())
    }

    fn drops(&self) -> QueueDrops {
        self.drops
    }
}

struct TapTx {
    tap: Arc<Descriptor>,
    scratch: Vec<Mbuf>,
    parts: Vec<iovec>,
}

// SAFETY: the raw pointers in `parts` are made and used within one call of `send`.
unsafe impl Send for TapTx {}

impl TapTx {
    fn send_one(&mut self, frame: &mut Mbuf, outcome: &mut TxOutcome) {
        let header = vector::header(frame);
        self.parts.clear();
        if vector::push_parts(&header, frame, &mut self.parts).is_none() {
            outcome.failed += 1;
            return;
        }
        // SAFETY: the parts point into the header and the frame, which live until the call returns.
        let sent = unsafe {
            libc::writev(
                self.tap.number(),
                self.parts.as_ptr(),
                self.parts.len() as i32,
            )
        };
        if sent >= 0 {
            outcome.packets += 1;
            outcome.bytes += frame.len() as u64;
            return;
        }
        match last_errno() {
            libc::EAGAIN | libc::ENOBUFS => outcome.full += 1,
            // EIO: the device is down.
            _ => outcome.failed += 1,
        }
    }
}

impl TapTx {
    /// Sends frames that the kernel can, and leaves the vector empty.
    fn send_ready(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        let mut outcome = TxOutcome::default();
        for frame in frames.iter_mut() {
            self.send_one(frame, &mut outcome);
        }
        mbuf::free_all(frames);
        outcome
    }
}

impl TxQueue<Mbuf> for TapTx {
    fn send(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        if self.tap.is_shut() {
            let outcome = TxOutcome {
                failed: frames.len() as u64,
                ..TxOutcome::default()
            };
            mbuf::free_all(frames);
            return outcome;
        }
        if !egress::scan(frames, KERNEL.longest).special {
            return self.send_ready(frames);
        }
        let mut slice = std::mem::take(&mut self.scratch);
        let send = |slice: &mut Vec<Mbuf>| self.send_ready(slice);
        let outcome = egress::send_in_slices(frames, &mut slice, &KERNEL, send);
        self.scratch = slice;
        outcome
    }
}

/// The control thread's side.
struct TapControl {
    interface: Interface,
    tap: Arc<Descriptor>,
}

impl PortControl for TapControl {
    fn tx_queue(&mut self, _worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        Ok(Box::new(TapTx {
            tap: self.tap.clone(),
            scratch: Vec::new(),
            parts: Vec::new(),
        }))
    }

    fn info(&mut self) -> PortInfo {
        self.interface.info()
    }

    fn status(&mut self) -> Vec<(String, String)> {
        self.interface.status()
    }

    fn device_stats(&mut self) -> Vec<(String, u64)> {
        self.interface.statistics(true)
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        self.interface.set_mtu(mtu)
    }

    fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        self.interface.set_mac(mac)
    }

    fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        self.interface.set_admin(up)
    }

    fn close(self: Box<Self>) {}
}

impl Drop for TapControl {
    fn drop(&mut self) {
        self.tap.shut();
    }
}
