//! TAP devices: kernel interfaces made for the switch, such as a bridge's own end in the host.
//!
//! Like [`crate::kernel`]'s sockets they carry virtio-net headers, so that offloads of the host's
//! stack need not be done on the way to another kernel interface.
//!
//! The descriptor always refers to the same device: this may be renamed, and moved to another
//! network namespace, where somebody else gives it addresses and an MTU. So the descriptor is used
//! to identify the device.
//!
//! The device is deleted when the port is closed. With [`PortSpec::records`] it stays when the port
//! is only left ([`PortControl::leave`]), with its addresses and routes, and the next process that
//! opens the port finds it again.

use crate::descriptor::Descriptor;
use crate::egress;
use crate::error::{Error, describe, last_errno};
use crate::interface::{Finder, Found, Interface, Trouble};
use crate::link::{self, Links, SharedLinks};
use crate::mbuf::{self, Mbuf};
use crate::namespace::{self, Namespace};
use crate::record::{DeviceLocation, Record};
use crate::spec::PortSpec;
use crate::turn::Turn;
use crate::vector::{self, Buffers, KERNEL, Refused, Slot};
use crate::{Eal, Mac, OpenPort, PortControl, PortInfo};
use libc::iovec;
use packet::frame::Frame;
use packet::io::{BURST, QueueDrops, RxQueue, TxOutcome, TxQueue};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

// linux/if_tun.h: fail if a device of that name exists.
const IFF_TUN_EXCL: i32 = 0x8000;

pub(crate) fn open(eal: &Eal, spec: &PortSpec) -> Result<OpenPort, Error> {
    let failed = |errno| Error::Open {
        name: spec.name.clone(),
        errno,
    };
    if !link::is_name(&spec.name) {
        return Err(failed(libc::EINVAL));
    }
    let links = SharedLinks::new().map_err(failed)?;
    let buffers = eal.buffers()?;
    let Device { fd, left, record } = create(&links, spec).map_err(failed)?;
    let tap = Arc::new(Descriptor::new(fd));
    let mut finder = ByDescriptor {
        tap: tap.clone(),
        links: links.clone(),
    };
    let found = match finder.find() {
        Ok(found) => found,
        Err(Trouble::Gone) => return Err(failed(libc::ENODEV)),
        Err(Trouble::Unknown(errno)) => return Err(failed(errno)),
    };
    let mut control = Box::new(TapControl {
        interface: Interface::found(&spec.name, links.clone(), Box::new(finder), found),
        tap: tap.clone(),
        home: links.home(),
        record: None,
        // A device that existed before is kept if this fails.
        leave: left,
    });
    if let Some(record) = record {
        control.keep(record);
    }
    let mac = spec.mac.map_or(Ok(()), |mac| control.set_mac(mac));
    let mtu = spec.mtu.map_or(Ok(()), |mtu| control.set_mtu(mtu));
    for result in [mac, mtu] {
        match result {
            // It carries frames all the same, for whoever manages it there.
            Err(error) if control.is_elsewhere() => {
                tracing::warn!(target: "netdev_linux", "{error}");
            }
            result => result?,
        }
    }
    control.leave = false;
    let rx = TapRx {
        tap,
        buffers,
        slot: Box::new(Slot::new()),
        drops: QueueDrops::default(),
        most: BURST,
    };
    Ok(OpenPort {
        control,
        rx: vec![Box::new(rx)],
    })
}

/// The device of a port.
struct Device {
    fd: OwnedFd,
    /// Whether an earlier process has left it.
    left: bool,
    /// Its record, if it is to outlive the process; None if it belongs to somebody else, or will be
    /// deleted.
    record: Option<Record>,
}

/// Creates a device, or opens the one that an earlier process has left.
fn create(links: &SharedLinks, spec: &PortSpec) -> Result<Device, i32> {
    let name = &spec.name;
    let home = links.home();
    let record = (spec.records.as_ref()).map(|directory| Record::new(directory, name, home));
    let device = |fd, left, record| Ok(Device { fd, left, record });
    if let Some(place) = record.as_ref().and_then(Record::read) {
        match reattach(links, place) {
            Ok(fd) => return device(fd, true, record),
            // The device or its namespace no longer exists.
            Err(libc::ENODEV | libc::ENOENT) => {}
            // Another process has it open.
            Err(libc::EBUSY) => return Err(libc::EBUSY),
            Err(errno) => {
                tracing::warn!(target: "netdev_linux", "{name}: the device that was left cannot be taken up again ({})", describe(errno));
            }
        }
    }
    match attach(name, IFF_TUN_EXCL) {
        Ok(fd) => device(fd, false, record),
        // As in Open vSwitch. But it was not created here, so it is not deleted either.
        Err(libc::EBUSY) => {
            let fd = attach(name, 0)?;
            tracing::info!(target: "netdev_linux", "{name}: uses a TAP device that somebody else has made");
            if let Some(record) = record {
                record.remove();
            }
            device(fd, false, None)
        }
        Err(errno) => Err(errno),
    }
}

/// Opens a device that no process has open.
fn reattach(links: &SharedLinks, place: DeviceLocation) -> Result<OwnedFd, i32> {
    let DeviceLocation { namespace, index } = place;
    let mut links = links.lock();
    if namespace == links.home() {
        return attach_to(&mut links, index);
    }
    drop(links);
    let namespace = namespace.find()?;
    namespace::within(namespace.as_fd(), || attach_to(&mut Links::new()?, index))
}

/// Opens the device of this index. `ENODEV` if there is none, `EINVAL` if it is not a TAP, `EBUSY`
/// if another process has it open.
fn attach_to(links: &mut Links, index: u32) -> Result<OwnedFd, i32> {
    let name = links.by_index(index)?.name;
    let fd = attach(&name, 0)?;
    // If the old one was deleted in between, this is a new one, which is deleted again.
    if links.by_name(&name)?.ifindex == index {
        Ok(fd)
    } else {
        Err(libc::ENODEV)
    }
}

/// Deletes the device that an earlier process has left for a port that no longer exists, and its
/// record; returns whether there was one. `directory` is that of [`PortSpec::records`]; the port
/// must not be open. If the device cannot be reached, fails and keeps the record.
pub fn remove_leftover(directory: &Path, port: &str) -> Result<bool, Error> {
    let failed = |errno| Error::Device {
        name: port.to_string(),
        what: "deleting the device that was left".into(),
        errno,
    };
    let links = SharedLinks::new().map_err(failed)?;
    let record = Record::new(directory, port, links.home());
    let found = match record.read() {
        None => None,
        Some(place) => match reattach(&links, place) {
            Ok(fd) => Some(fd),
            // The device or its namespace no longer exists, another process uses it by now, or it
            // is something else.
            Err(libc::ENODEV | libc::ENOENT | libc::EBUSY | libc::EINVAL) => None,
            Err(errno) => return Err(failed(errno)),
        },
    };
    if let Some(fd) = &found {
        persist(fd.as_raw_fd(), false).map_err(failed)?;
    }
    record.remove();
    Ok(found.is_some())
}

/// Creates a device of that name, or opens a persistent one.
fn attach(name: &str, flags: i32) -> Result<OwnedFd, i32> {
    let access = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd =
        rustix::fs::open("/dev/net/tun", access, Mode::empty()).map_err(Errno::raw_os_error)?;
    let mut request = link::request(name)?;
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags) as libc::c_short;
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
    // Kernels before 6.2 do not support UDP segmentation; then the host's stack segments UDP
    // itself.
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
    // Use the device without offloads.
    Ok(fd)
}

/// Sets whether the device persists when no process has it open.
fn persist(tap: RawFd, stays: bool) -> Result<(), i32> {
    // SAFETY: this request takes a plain number.
    let code = unsafe {
        libc::ioctl(
            tap,
            libc::TUNSETPERSIST as libc::c_ulong,
            libc::c_ulong::from(stays),
        )
    };
    if code < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Returns a device's present name. `EBADFD` if it has been deleted.
fn name_of(tap: RawFd) -> Result<String, i32> {
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the request is a whole ifreq.
    let code = unsafe {
        libc::ioctl(
            tap,
            libc::TUNGETIFF as libc::c_ulong,
            std::ptr::from_mut(&mut request),
        )
    };
    if code < 0 {
        return Err(last_errno());
    }
    let bytes = request.ifr_name.map(|byte| byte as u8);
    let name = CStr::from_bytes_until_nul(&bytes).map_err(|_| libc::EPROTO)?;
    let name = name.to_str().map_err(|_| libc::EILSEQ)?;
    Ok(name.to_owned())
}

/// Finds the device of a descriptor, in whatever namespace and under whatever name it is.
struct ByDescriptor {
    tap: Arc<Descriptor>,
    links: SharedLinks,
}

impl ByDescriptor {
    /// Returns the device's network namespace, if that is not the port's own.
    fn elsewhere(&self) -> Result<Option<OwnedFd>, i32> {
        // SAFETY: this request takes no argument.
        let code = unsafe { libc::ioctl(self.tap.number(), libc::TUNGETDEVNETNS as libc::c_ulong) };
        let namespace = match namespace::owned(code) {
            Ok(namespace) => namespace,
            // Kernels before 5.2 cannot tell.
            Err(libc::EINVAL) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let is_home = Namespace::of(namespace.as_fd())? == self.links.home();
        Ok((!is_home).then_some(namespace))
    }

    fn find_now(&self) -> Result<Found, i32> {
        let name = name_of(self.tap.number())?;
        let elsewhere = self.elsewhere()?;
        let mut links = self.links.lock();
        let link = match &elsewhere {
            None => links.by_name(&name)?,
            Some(namespace) => links.by_name_in(namespace.as_fd(), &name)?,
        };
        Ok(Found { link, elsewhere })
    }
}

impl Finder for ByDescriptor {
    fn find(&mut self) -> Result<Found, Trouble> {
        self.find_now().map_err(|errno| match errno {
            // The descriptor's own error. A missing name, on the other hand, only means that the
            // device has just been renamed or moved.
            libc::EBADFD => Trouble::Gone,
            errno => Trouble::Unknown(errno),
        })
    }

    fn set_mac(&mut self, mac: Mac) -> Option<Result<(), i32>> {
        // SAFETY: all zeroes is a valid ifreq. The descriptor says which device is meant.
        let request: libc::ifreq = unsafe { std::mem::zeroed() };
        Some(link::set_mac(self.tap.number(), request, mac))
    }
}

struct TapRx {
    tap: Arc<Descriptor>,
    buffers: Buffers,
    slot: Box<Slot>,
    drops: QueueDrops,
    most: usize,
}

impl TapRx {
    /// Receives one frame, or None if there is none.
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
        for _ in 0..self.most {
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

    fn limit(&mut self, most: usize) {
        self.most = most;
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.tap.number())
    }

    fn is_steady(&self) -> bool {
        true
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
    /// Sends frames that the kernel can handle, and empties the vector.
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
    /// The network namespace of the process.
    home: Namespace,
    /// The record that the device outlives this process; None if it does not.
    record: Option<Record>,
    /// Whether the device is kept when this is dropped.
    leave: bool,
}

impl TapControl {
    /// Makes the device outlive this process, however it ends. If that fails, the device is deleted
    /// with it.
    fn keep(&mut self, record: Record) {
        self.record = Some(record);
        self.follow();
        if self.record.is_some()
            && let Err(errno) = persist(self.tap.number(), true)
        {
            self.give_up(&describe(errno));
        }
    }

    /// Records where the device is now.
    fn follow(&mut self) {
        let place = DeviceLocation {
            namespace: self.interface.elsewhere().unwrap_or(self.home),
            index: self.interface.index(),
        };
        if let Some(record) = &mut self.record
            && let Err(error) = record.write(place)
        {
            self.give_up(&error.to_string());
        }
    }

    /// Makes the device not persist, because without a record nobody would find it again.
    fn give_up(&mut self, why: &str) {
        tracing::warn!(target: "netdev_linux", "{}: its device goes when this process ends ({why})", self.interface.name());
        let _ = persist(self.tap.number(), false);
        if let Some(record) = self.record.take() {
            record.remove();
        }
    }
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
        let info = self.interface.info();
        if info.present {
            self.follow();
        }
        info
    }

    fn is_announced(&self) -> bool {
        !self.interface.is_late()
    }

    fn is_elsewhere(&self) -> bool {
        self.interface.elsewhere().is_some()
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

    fn set_ipv4(
        &mut self,
        address: Ipv4Addr,
        netmask: Ipv4Addr,
        gateway: Option<Ipv4Addr>,
    ) -> Result<(), Error> {
        self.interface.set_ipv4(address, netmask, gateway)
    }

    fn close(self: Box<Self>) {}

    fn leave(mut self: Box<Self>) {
        self.leave = true;
    }
}

impl Drop for TapControl {
    fn drop(&mut self) {
        if let Some(record) = self.record.take_if(|_| !self.leave) {
            // This only fails if the device has been deleted.
            let _ = persist(self.tap.number(), false);
            record.remove();
        }
        self.tap.shut();
    }
}
