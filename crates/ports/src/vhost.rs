//! Guests: virtio-net over vhost-user.
//!
//! A thread of its own ([`hub`]) talks to front ends and maintains a device for each connection
//! ([`device`]). Workers meanwhile take frames from the rings and put frames into them ([`ring`]).
//! The two sides share [`Shared`]: two gates and an enabled flag for each ring, the part of the
//! device that queues read ([`device::Table`]), and a generation number that grows with every
//! change.
//!
//! The gate of a ring is closed when the device goes, so that no memory is unmapped that a worker
//! is using. The quick gate is also closed while a message is handled that changes what queues
//! read. The front end decides how often that happens, so this gate is always entered by a lock:
//! closing it interrupts nobody.
//!
//! A worker that wants to sleep waits on an epoll descriptor that stays the same for the queue's
//! life. It contains the guest's kick descriptor, while there is one, and an event that the hub
//! raises. The kick descriptor is watched for edges and never read: whatever a peer does to it, it
//! cannot block the worker.

mod access;
mod call;
mod control;
mod device;
mod hub;
mod memory;
mod message;
mod receive;
mod ring;
mod send;
mod shared;
mod sizes;

use crate::error::Error;
use crate::ethdev::{MAX_MTU, OVERHEAD};
use crate::mbuf::Mbuf;
use crate::spec::PortSpec;
use crate::{Eal, OpenPort, fault};
use control::VhostControl;
use hub::{Hub, Watched};
use packet::io::RxQueue;
use receive::VhostRx;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use shared::Shared;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

/// Feature bits (virtio 1.1 sections 5.1.3 and 6; vhost-user's own).
mod feature {
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// Pages that are written to are marked in a log.
    pub const LOG_ALL: u64 = 1 << 26;
    /// There are protocol features, and rings are enabled by a message.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Offloads for frames from the guest: checksums, any segmentation, TCP over IPv4 and IPv6.
    const HOST: u64 = 1 | 1 << 6 | 1 << 11 | 1 << 12;
    /// Multiple queues, their control by the front end, the MTU, and the guest's announcement of
    /// itself.
    const DEVICE: u64 = 1 << 3 | 1 << 15 | 1 << 17 | 1 << 18 | 1 << 21 | 1 << 22;
    /// Any layout, indirect descriptors, event indexes, virtio 1, use in order.
    const RING: u64 = 1 << 27 | 1 << 28 | 1 << 29 | 1 << 32 | 1 << 35;
    /// The offered features. Not UDP fragmentation, not segmentation with ECN, no packed rings.
    pub const OFFERED: u64 =
        GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | LOG_ALL | PROTOCOL_FEATURES | HOST | DEVICE | RING;
}

/// Longest path of a Unix socket.
const MAX_PATH: usize = 107;

/// Most queue pairs of a guest that are used for sending.
const MAX_PAIRS: usize = 64;

pub(crate) fn open(
    eal: &Eal,
    spec: &PortSpec,
    path: &Path,
    rx_queues: u16,
    client: bool,
) -> Result<OpenPort, Error> {
    let failed = |errno| Error::Open {
        name: spec.name.clone(),
        errno,
    };
    let path = path.to_str().ok_or_else(|| failed(libc::EINVAL))?;
    if path.len() > MAX_PATH {
        return Err(Error::Option(format!(
            "{}: the socket's path is longer than {MAX_PATH} bytes: {path}",
            spec.name
        )));
    }
    let mtu = spec.mtu.unwrap_or(1500);
    check_mtu(&spec.name, mtu)?;
    fault::install();
    let pool = eal.pool()?;
    let wake = (0..rx_queues.max(1))
        .map(|_| event())
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    let shared = Arc::new(Shared::new(wake, u32::from(mtu) + OVERHEAD));
    let rx = (0..rx_queues.max(1))
        .map(|pair| {
            Ok(Box::new(VhostRx::new(shared.clone(), pair, pool)?) as Box<dyn RxQueue<Mbuf>>)
        })
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    let watched = watch_socket(&spec.name, path, client, &shared)?;
    Ok(OpenPort {
        control: Box::new(VhostControl {
            name: spec.name.clone(),
            client,
            key: shared.asked.key(),
            shared,
            watched,
            mac: spec.mac.unwrap_or_default(),
            mtu,
            admin_up: true,
            rx_queues: rx_queues.max(1),
            pool,
            replaced: fault::replaced(),
        }),
        rx,
    })
}

fn check_mtu(name: &str, mtu: u16) -> Result<(), Error> {
    if (68..=MAX_MTU).contains(&mtu) {
        return Ok(());
    }
    Err(Error::Option(format!(
        "{name}: unsupported MTU {mtu}: 68 to {MAX_MTU} are"
    )))
}

fn event() -> Result<OwnedFd, i32> {
    let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
    eventfd(0, flags).map_err(Errno::raw_os_error)
}

/// Registers a port's socket with the hub.
fn watch_socket(
    name: &str,
    path: &str,
    client: bool,
    shared: &Arc<Shared>,
) -> Result<Watched, Error> {
    let watched = Hub::get().and_then(|hub| hub.watch(path, client, Arc::clone(shared)));
    watched.map_err(|error| match error.raw_os_error() {
        None => Error::Option(format!("{name}: socket {path} is in use by another port")),
        Some(errno) => Error::Device {
            name: name.to_string(),
            what: format!("vhost-user socket {path}"),
            errno,
        },
    })
}

/// Removes a socket file on which nobody listens, such as one that a killed process left.
fn remove_stale(path: &str) {
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests;
