//! Guests: virtio-net over vhost-user.
//!
//! A thread of its own ([`hub`]) talks to front ends and makes devices of what they say
//! ([`device`]). Workers meanwhile take frames from the rings and put frames into them ([`ring`]).
//! The two sides meet in [`Shared`]: two gates for each ring, a flag for each that can be used,
//! what queues read of the device ([`device::Table`]), and a generation that grows with every
//! change.
//!
//! The gate of a ring is closed when the device goes, so that no memory is unmapped that a worker
//! is using. The quick gate is closed, too, while a message is handled that changes what queues
//! read. How often that is done is for the front end to say, so it is entered by a lock always: to
//! close it interrupts nobody.
//!
//! A worker that wants to sleep waits on an epoll descriptor that stays the same for the queue's
//! life. In it are the guest's kick descriptor, while there is one, and an event that the hub
//! raises. The kick descriptor is watched for edges and never read: whatever a peer does to it, it
//! cannot block the worker.

mod device;
mod hub;
mod memory;
mod message;
mod ring;

use crate::egress::{self, Abilities};
use crate::error::{Error, last_errno};
use crate::ethdev::{MAX_MTU, OVERHEAD};
use crate::gate::{Gate, Key};
use crate::mbuf::{self, Mbuf};
use crate::pool::Pool;
use crate::raw;
use crate::spec::PortSpec;
use crate::turn::Turn;
use crate::{Eal, Mac, OpenPort, PortControl, PortInfo, fault};
use device::{Position, Table};
use hub::{Hub, Watched};
use libc::c_int;
use packet::frame::Frame;
use packet::io::{BURST, QueueDrops, RxQueue, TxOutcome, TxQueue};
use ring::{Place, Put, Taken, View};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Feature bits (virtio 1.1 sections 5.1.3 and 6; vhost-user's own).
mod feature {
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// Pages that are written to are noted in a log.
    pub const LOG_ALL: u64 = 1 << 26;
    /// There are protocol features, and rings are enabled by a message of their own.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// Checksums and segments of the guest's: checksums, any segments, TCP over IPv4 and IPv6.
    const HOST: u64 = 1 | 1 << 6 | 1 << 11 | 1 << 12;
    /// Queues, their control by the front end, the MTU, and the guest that announces itself.
    const DEVICE: u64 = 1 << 3 | 1 << 15 | 1 << 17 | 1 << 18 | 1 << 21 | 1 << 22;
    /// Any layout, tables of descriptors, event indexes, virtio 1, use in order.
    const RING: u64 = 1 << 27 | 1 << 28 | 1 << 29 | 1 << 32 | 1 << 35;
    /// What is offered. Not UDP fragmentation, not segments whose congestion marks need care, no
    /// packed rings.
    pub const OFFERED: u64 =
        GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | LOG_ALL | PROTOCOL_FEATURES | HOST | DEVICE | RING;
}

/// Longest path of a Unix socket.
const MAX_PATH: usize = 107;

/// Queue pairs of a guest that are looked at when sending.
const MAX_PAIRS: usize = 64;

/// A ring that comes or goes, and a device that goes, may interrupt the processors of all workers
/// (`crate::gate`), and how often that happens is for the guest to say. Each costs it so much
/// of its patience ...
const CHANGE_COSTS: Duration = Duration::from_millis(125);
/// ... of which it has this, and gets back as time passes: 512 changes at once, four times all
/// rings that there can be, and 8 a second. When it has none left, its gates are entered by a lock,
/// until it, or another guest, has been so quiet that all of it is there again.
const PATIENCE: Duration = Duration::from_secs(64);

/// Chains that make no sense which are given back in one turn.
const REFUSALS: usize = BURST;

/// A ring as the workers see it.
struct Ring {
    gate: Gate,
    /// In front of memory and ring. See the module.
    quick: Gate,
    /// [`Place::known`], for whoever comes inside both gates next.
    known: AtomicU16,
    /// [`Place::told`], for the same; [`NEVER`] where there is none.
    told: AtomicU32,
    enabled: AtomicBool,
}

/// Of [`Ring::told`]: the guest has not been asked yet.
const NEVER: u32 = u32::MAX;

/// What the hub, workers and the control thread share.
struct Shared {
    /// The number of the device, -1 when there is none.
    vid: AtomicI32,
    /// The device whose rings are meant below, there or not; -1 when there is none.
    owner: AtomicI32,
    /// Grows with every change that the workers should look into.
    generation: AtomicU32,
    /// Grows before and after every message that changes something: what was read of rings and
    /// memory before is worth nothing after.
    messages: AtomicU32,
    /// What queues read of the device.
    table: Mutex<Option<Arc<Table>>>,
    features: AtomicU64,
    /// Even numbers: what the guest receives from; odd: what it sends to.
    rings: Box<[Ring]>,
    /// In front of what the control thread asks of the device, and closed when that goes.
    asked: Gate,
    /// One event for each receive queue.
    wake: Box<[OwnedFd]>,
    resets: AtomicU64,
    longest: AtomicU32,
    /// The address of a guest that is to be announced, with [`ANNOUNCE`]; else 0.
    announced: AtomicU64,
    patience: Mutex<Patience>,
}

/// Of [`Shared::announced`]: there is one.
const ANNOUNCE: u64 = 1 << 63;

/// How much a guest has changed lately.
#[derive(Debug, Default)]
struct Patience {
    /// When all that it has changed will be forgotten.
    until: Option<Instant>,
    /// There was none left, and not all of it has come back since.
    spent: bool,
}

impl Patience {
    /// Notes a change; true for the first one that is too much.
    fn tried(&mut self, now: Instant) -> bool {
        let until = self.until.map_or(now, |until| until.max(now)) + CHANGE_COSTS;
        let too_much = until - now > PATIENCE;
        // Nobody is interrupted where there is none left, so no more than all of it is owed:
        // whoever comes next need not wait for longer.
        self.until = Some(until.min(now + PATIENCE));
        too_much && !std::mem::replace(&mut self.spent, true)
    }

    /// Whether all of it has come back, after there was none left; true once. Whatever comes and
    /// goes, no more is spent of it in a time than what was there at first and has come back
    /// meanwhile, since what is changed while there is none left is noted, too.
    fn restored(&mut self, now: Instant) -> bool {
        let restored = self.until.is_none_or(|until| until <= now);
        restored && std::mem::take(&mut self.spent)
    }
}

impl Shared {
    fn new(wake: Box<[OwnedFd]>, longest: u32) -> Shared {
        Shared {
            vid: AtomicI32::new(-1),
            owner: AtomicI32::new(-1),
            generation: AtomicU32::new(0),
            messages: AtomicU32::new(0),
            table: Mutex::default(),
            features: AtomicU64::new(0),
            rings: (0..MAX_PAIRS * 2)
                .map(|_| Ring {
                    gate: Gate::closed(),
                    quick: Gate::closed_by_lock(),
                    known: AtomicU16::new(0),
                    told: AtomicU32::new(NEVER),
                    enabled: AtomicBool::new(false),
                })
                .collect(),
            asked: Gate::closed(),
            wake,
            resets: AtomicU64::new(0),
            longest: AtomicU32::new(longest),
            announced: AtomicU64::new(0),
            patience: Mutex::default(),
        }
    }

    /// Notes that a ring has come or gone, or the device. While one call sees to the gates, others
    /// wait, for as long as a system call takes.
    fn disturbed(&self, now: Instant) {
        let mut patience = self.patience();
        if patience.tried(now) {
            Gate::lock_all(self.gates());
            let (vid, quiet) = (self.owner.load(Ordering::Relaxed), PATIENCE.as_secs());
            tracing::warn!(target: "dpdk", "the guest of vhost device {vid} keeps switching its rings on and off: until it has left that for {quiet} s, workers take a lock for each burst");
        }
    }

    /// Gives workers their way without a lock back, where that is due. Waits for as long as a
    /// system call takes.
    fn relent(&self, now: Instant) {
        let mut patience = self.patience();
        if patience.restored(now) {
            Gate::unlock_all(self.gates());
            let vid = self.owner.load(Ordering::Relaxed);
            tracing::info!(target: "dpdk", "the guest of vhost device {vid} has left its rings alone: workers take no lock any more");
        }
    }

    fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.wake_all();
    }

    /// Wakes whoever sleeps over a queue.
    fn wake_all(&self) {
        self.wake.iter().for_each(device::tell);
    }

    fn connected(&self) -> bool {
        self.vid.load(Ordering::Relaxed) >= 0
    }

    /// All gates in front of the device.
    fn gates(&self) -> impl Iterator<Item = &Gate> + Clone {
        let rings = self.rings.iter().map(|ring| &ring.gate);
        rings.chain([&self.asked])
    }

    /// All gates in front of memory and rings.
    fn quick_gates(&self) -> impl Iterator<Item = &Gate> + Clone {
        self.rings.iter().map(|ring| &ring.quick)
    }

    /// What the guest takes. Only inside the gate of one of its rings does it stay so.
    #[inline(always)]
    fn takes(&self) -> Takes {
        Takes {
            features: self.features.load(Ordering::Relaxed),
            longest: self.longest.load(Ordering::Relaxed),
        }
    }
}

/// What a guest takes.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Takes {
    features: u64,
    /// The longest frame, in bytes.
    longest: u32,
}

impl Takes {
    fn abilities(self) -> Abilities {
        let offers = |bits| self.features & bits == bits;
        Abilities {
            longest: self.longest,
            checksum: offers(feature::GUEST_CSUM),
            tcp_segmentation: offers(
                feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_TSO6,
            ),
            udp_segmentation: false,
            chains: true,
        }
    }
}

/// What devices tell. A socket takes several connections, and each has a device; the port serves
/// the one that spoke last, and what is told of others changes nothing. Before another is served,
/// no worker is inside the device that was.
impl Shared {
    /// Makes `vid` the device that the port serves, if another was.
    fn turn_to(&self, vid: c_int) {
        let before = self.owner.swap(vid, Ordering::SeqCst);
        if before != vid {
            self.let_go();
            self.disable_rings();
        }
    }

    /// Device `vid` is ready.
    fn arrive(&self, vid: c_int, features: u64) {
        self.turn_to(vid);
        self.features.store(features, Ordering::Relaxed);
        self.vid.store(vid, Ordering::SeqCst);
        for gate in self.gates() {
            gate.reopen();
        }
        self.message_done();
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.changed();
    }

    /// Whether device `vid` is the one that is served.
    fn serves(&self, vid: c_int) -> bool {
        self.owner.load(Ordering::SeqCst) == vid
    }

    /// Puts what queues read of the device in the place of what they read before.
    fn show(&self, table: Arc<Table>) {
        let mut shown = self
            .table
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        *shown = Some(table);
    }

    fn table(&self) -> Option<Arc<Table>> {
        let shown = self
            .table
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        shown.clone()
    }

    /// Device `vid`, which is there, has agreed on other features.
    fn agreed(&self, vid: c_int, features: u64) {
        if self.serves(vid) {
            self.features.store(features, Ordering::Relaxed);
        }
    }

    /// A ring of device `vid` comes or goes.
    fn ring_changed(&self, vid: c_int, queue: u16, enabled: bool) {
        if enabled {
            self.turn_to(vid);
        } else if self.owner.load(Ordering::SeqCst) != vid {
            return;
        }
        if let Some(ring) = self.rings.get(usize::from(queue)) {
            if ring.enabled.swap(enabled, Ordering::SeqCst) != enabled {
                self.disturbed(Instant::now());
            }
            self.changed();
        }
    }

    /// Lets go of device `vid`, if it is the one; no worker uses it after this.
    fn leave(&self, vid: c_int) {
        if self.owner.load(Ordering::SeqCst) == vid {
            self.let_go();
        }
    }

    /// Lets go of the connection behind device `vid`, if it is the one.
    fn disconnect(&self, vid: c_int) {
        if self.owner.load(Ordering::SeqCst) == vid {
            self.let_go();
            self.disable_rings();
            self.owner.store(-1, Ordering::SeqCst);
            *self
                .table
                .lock()
                .unwrap_or_else(|poison| poison.into_inner()) = None;
        }
    }

    /// Waits until no worker uses the device, whichever it is; none will before the next arrives.
    fn let_go(&self) {
        if self.vid.swap(-1, Ordering::SeqCst) < 0 {
            return;
        }
        self.announced.store(0, Ordering::SeqCst);
        self.disturbed(Instant::now());
        Gate::close_all(self.gates().chain(self.quick_gates()));
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.changed();
    }

    /// A message is about to be handled that changes rings or memory.
    fn message_begins(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        Gate::close_all(self.quick_gates());
    }

    /// It has handled it.
    fn message_done(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        for gate in self.quick_gates() {
            gate.reopen();
        }
        // Who sleeps because a ring could not be used looks again.
        self.wake_all();
    }

    /// Has the guest with this address announced, in the six lowest bytes, by a frame that its
    /// first queue receives next.
    fn announce(&self, address: u64) {
        let address = address & ((1 << 48) - 1);
        self.announced.store(address | ANNOUNCE, Ordering::SeqCst);
        self.changed();
    }

    fn disable_rings(&self) {
        for ring in &self.rings {
            ring.enabled.store(false, Ordering::SeqCst);
        }
    }
}

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
    // SAFETY: plain values.
    owned(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })
}

/// Takes over what a system call returned.
fn owned(fd: c_int) -> Result<OwnedFd, i32> {
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the caller passes a descriptor that was just made.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Has the hub watch a port's socket.
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

/// Bytes of a frame that announces a guest (reverse ARP, RFC 903).
const ANNOUNCEMENT: usize = 60;

/// A request for the protocol address that belongs to a MAC address, sent by that address itself:
/// switches on the way learn where it is now.
fn announcement(address: u64) -> [u8; ANNOUNCEMENT] {
    let mac = &address.to_le_bytes()[..6];
    let mut frame = [0; ANNOUNCEMENT];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(mac);
    // Reverse ARP for Ethernet and IPv4: operation 3.
    frame[12..22].copy_from_slice(&[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    frame[22..28].copy_from_slice(mac);
    frame[32..38].copy_from_slice(mac);
    frame
}

/// What the guest sends on one queue pair.
struct VhostRx {
    shared: Arc<Shared>,
    ring: u16,
    /// To the ring's gate; nobody else has one.
    key: Key,
    pair: u16,
    pool: Pool,
    epoll: OwnedFd,
    /// The descriptor that the guest kicks.
    kick: Option<Arc<OwnedFd>>,
    generation: u32,
    armed: bool,
    quick: Quick,
    /// Frames have been taken since it was last asked whether the guest wants to be told.
    untold: bool,
    drops: QueueDrops,
}

impl VhostRx {
    fn new(shared: Arc<Shared>, pair: u16, pool: Pool) -> Result<VhostRx, i32> {
        // SAFETY: plain value.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        watch(&epoll, shared.wake[usize::from(pair)].as_raw_fd())?;
        let ring = pair * 2 + 1;
        let doors = &shared.rings[usize::from(ring)];
        Ok(VhostRx {
            key: doors.gate.key(),
            quick: Quick::new(doors.quick.key(), true),
            shared,
            ring,
            pair,
            pool,
            epoll,
            kick: None,
            generation: u32::MAX,
            armed: false,
            untold: false,
            drops: QueueDrops::default(),
        })
    }

    /// Acts on what has changed since the last time.
    #[cold]
    fn catch_up(&mut self) {
        self.generation = self.shared.generation.load(Ordering::SeqCst);
        if let Some(kick) = self.kick.take() {
            // The kernel keeps watching as long as anyone has the description open, so it is told.
            // SAFETY: both descriptors are open.
            unsafe {
                libc::epoll_ctl(
                    self.epoll.as_raw_fd(),
                    libc::EPOLL_CTL_DEL,
                    kick.as_raw_fd(),
                    std::ptr::null_mut(),
                )
            };
        }
        let ring = &self.shared.rings[usize::from(self.ring)];
        let Some(_inside) = self.key.try_enter() else {
            return;
        };
        if !ring.enabled.load(Ordering::SeqCst) {
            return;
        }
        // What was taken just before a pause may not have been told, and the guest may wait for it.
        self.untold = true;
        let table = self.shared.table();
        let entry = table.as_ref().and_then(|table| table.ring(self.ring));
        self.kick = entry.and_then(|entry| entry.kick.clone());
        if let Some(kick) = &self.kick
            && watch(&self.epoll, kick.as_raw_fd()).is_err()
        {
            // Not something that can be waited on: the queue is polled.
            self.kick = None;
        }
    }

    /// Takes frames from the ring.
    #[inline]
    fn take(&mut self, out: &mut Vec<Mbuf>) -> usize {
        let shared = &*self.shared;
        let ring = &shared.rings[usize::from(self.ring)];
        if !ring.enabled.load(Ordering::Relaxed) {
            return 0;
        }
        out.reserve(BURST);
        let before = out.len();
        let pool = self.pool.as_raw();
        let (untold, drops) = (&mut self.untold, &mut self.drops);
        // SAFETY: the pool lives as long as the EAL, and the array has room for as many.
        let allocate = |room, count| unsafe { raw::sluice_pool_get(pool, room, count) == 0 };
        let take = |view: &View, at: &mut Place| {
            // SAFETY: inside the gate the view is valid, and only this queue takes from the ring.
            let tell = std::mem::take(untold) && unsafe { view.wants_call(at) };
            let mut turn = Turn::default();
            let (mut refused, mut common) = (0, true);
            while out.len() - before < BURST && refused < REFUSALS && !turn.is_over() {
                let (len, most) = (out.len(), BURST - (out.len() - before));
                if common {
                    // SAFETY: as above. There is room for BURST more pointers, as many of which are
                    // valid as is said.
                    let done = unsafe {
                        let room = out.as_mut_ptr().add(len).cast();
                        let done = view.take(at, most, room, allocate);
                        out.set_len(len + done.frames);
                        done
                    };
                    *untold |= done.frames > 0;
                    if done.exhausted || done.frames == most {
                        break;
                    }
                    // Most often others like this one follow.
                    common = done.frames > 0;
                }
                // SAFETY: as above.
                match unsafe { view.take_one(at, allocate) } {
                    Taken::Frame(frame) => {
                        turn.spend(&frame);
                        out.push(frame);
                    }
                    Taken::Refused => {
                        refused += 1;
                        drops.malformed += 1;
                    }
                    Taken::Nothing | Taken::NoBuffer => break,
                }
                *untold = true;
            }
            tell
        };
        if self.quick.with(shared, self.ring, take) == Look::Done(true) {
            self.quick.tell();
        }
        out.len() - before
    }

    /// Says to the guest whether it is to kick. True where it has put something into the ring, or
    /// that cannot be looked at just now.
    fn ask_for_kicks(&mut self, wanted: bool) -> bool {
        let untold = &mut self.untold;
        let ask = |view: &View, at: &mut Place| {
            // SAFETY: inside the gate the view is valid, and only this queue takes from the ring.
            unsafe {
                view.ask_for_kicks(at, wanted);
                let tell = wanted && std::mem::take(untold) && view.wants_call(at);
                // The guest must see the wish for a kick before the ring is looked at for the last
                // time.
                fence(Ordering::SeqCst);
                (tell, wanted && view.is_waiting(at))
            }
        };
        match self.quick.with(&self.shared, self.ring, ask) {
            Look::Done((tell, waiting)) => {
                if tell {
                    self.quick.tell();
                }
                waiting
            }
            Look::Busy => self.is_on(),
            Look::NoRing => false,
        }
    }

    /// Whether frames may come.
    fn is_on(&self) -> bool {
        let ring = &self.shared.rings[usize::from(self.ring)];
        self.shared.connected() && ring.enabled.load(Ordering::SeqCst)
    }

    /// Forgets what woke us, without reading what belongs to the guest.
    fn drain(&self) {
        let mut number = [0u8; 8];
        // SAFETY: eight writable bytes; the event does not block.
        unsafe {
            libc::read(
                self.shared.wake[usize::from(self.pair)].as_raw_fd(),
                number.as_mut_ptr().cast(),
                number.len(),
            );
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: room for four; a timeout of 0 does not wait.
        unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                events.len() as c_int,
                0,
            )
        };
    }
}

/// Watches `fd` for new events.
fn watch(epoll: &OwnedFd, fd: RawFd) -> Result<(), i32> {
    let mut event = libc::epoll_event {
        events: (libc::EPOLLIN | libc::EPOLLET) as u32,
        u64: 0,
    };
    // SAFETY: both descriptors are open and the event is readable.
    let code = unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
    if code == 0 { Ok(()) } else { Err(last_errno()) }
}

impl VhostRx {
    /// Whether a guest that has moved here is to be announced by this queue.
    fn announces(&self) -> bool {
        self.pair == 0 && self.shared.announced.load(Ordering::Relaxed) != 0
    }

    /// Receives what announces a guest that has moved here, where that is to be done.
    fn announce(&self, out: &mut Vec<Mbuf>) -> bool {
        if !self.announces() {
            return false;
        }
        let address = self.shared.announced.swap(0, Ordering::SeqCst);
        let frame = (address != 0).then(|| self.pool.frame(&announcement(address)));
        let frame = frame.flatten();
        let made = frame.is_some();
        out.extend(frame);
        made
    }
}

impl RxQueue<Mbuf> for VhostRx {
    fn receive(&mut self, out: &mut Vec<Mbuf>) -> usize {
        if self.generation != self.shared.generation.load(Ordering::Relaxed) {
            self.catch_up();
            if self.announce(out) {
                return 1;
            }
        }
        self.take(out)
    }

    fn is_costly(&self) -> bool {
        false // a look at shared memory
    }

    fn is_dormant(&self) -> bool {
        let ring = &self.shared.rings[usize::from(self.ring)];
        !ring.enabled.load(Ordering::Relaxed)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        let ring = &self.shared.rings[usize::from(self.ring)];
        let polled = self.shared.connected()
            && ring.enabled.load(Ordering::Relaxed)
            && (self.kick.is_none()
                || self.generation != self.shared.generation.load(Ordering::Relaxed));
        (!polled).then(|| self.epoll.as_raw_fd())
    }

    fn arm(&mut self) -> bool {
        self.drain();
        if self.generation != self.shared.generation.load(Ordering::SeqCst) {
            self.catch_up();
        }
        if self.announces() {
            // By `receive`, which looks where something has changed.
            self.generation = self.generation.wrapping_sub(1);
            return true;
        }
        self.armed = true;
        // Nothing is taken here: who goes to sleep may lose the queue before he looks again. A ring
        // that cannot be looked at is one whose hypervisor is being answered, which does
        // not take long.
        let waiting = self.is_on() && self.ask_for_kicks(true);
        let changed = self.generation != self.shared.generation.load(Ordering::SeqCst);
        if changed || waiting {
            self.disarm();
            return true;
        }
        false
    }

    fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.ask_for_kicks(false);
            self.drain();
        }
    }

    fn drops(&self) -> QueueDrops {
        self.drops
    }
}

/// What goes to the guest from one worker.
struct VhostTx {
    shared: Arc<Shared>,
    worker: usize,
    scratch: Vec<Mbuf>,
    /// Into the ring that was sent by last.
    way: Option<Way>,
}

/// A sender's way into a ring, which it may share with other workers' queues.
struct Way {
    ring: u16,
    /// To the ring's gate.
    key: Key,
    quick: Quick,
}

/// A queue's way to its ring.
struct Quick {
    /// To the ring's quick gate.
    key: Key,
    reading: Reading,
    /// Whether no other queue uses the ring.
    sole: bool,
}

/// What a queue knows of its ring.
#[derive(Default)]
struct Reading {
    /// The ring, where it is one that can be used.
    view: Option<View>,
    /// The ring and the messages that it is of.
    of: Option<(u16, u32)>,
    /// Where the ring stands, for the device to know.
    position: Option<Arc<Position>>,
    /// Where the ring stands, where nobody else can have gone on.
    at: Option<Place>,
    /// What tells the guest. A front end may make it one that blocks, so it is not written to
    /// inside a gate.
    call: Option<Arc<OwnedFd>>,
}

/// What became of a look at a ring.
#[derive(Debug, PartialEq, Eq)]
enum Look<T> {
    Done(T),
    /// The hypervisor is being answered, or the device is about to go.
    Busy,
    /// It is not one that can be used. The next message may change that.
    NoRing,
}

impl Quick {
    /// A way to a ring, with a key to its quick gate; `sole` where no other queue uses the ring.
    fn new(key: Key, sole: bool) -> Quick {
        Quick {
            key,
            reading: Reading::default(),
            sole,
        }
    }

    /// Does something with a ring, where that can be done now. The caller sees to it that nobody
    /// else uses the ring; the view that `act` is given is valid while it runs.
    #[inline(always)]
    fn with<T>(
        &mut self,
        shared: &Shared,
        index: u16,
        act: impl FnOnce(&View, &mut Place) -> T,
    ) -> Look<T> {
        let Some(_inside) = self.key.try_enter() else {
            return Look::Busy;
        };
        if !shared.connected() {
            // The device is about to be let go of.
            return Look::Busy;
        }
        let ring = &shared.rings[usize::from(index)];
        let of = Some((index, shared.messages.load(Ordering::SeqCst)));
        let fresh = self.reading.of != of;
        if fresh {
            self.reading = Reading::new(shared, index);
            self.reading.of = of;
            ring.known.store(0, Ordering::Relaxed);
            ring.told.store(NEVER, Ordering::Relaxed);
        }
        let (Some(view), Some(position)) = (&self.reading.view, &self.reading.position) else {
            return Look::NoRing;
        };
        let mut at = self.reading.at.unwrap_or_else(|| Place {
            known: ring.known.load(Ordering::Relaxed),
            told: u16::try_from(ring.told.load(Ordering::Relaxed)).ok(),
            next: position.next.load(Ordering::Relaxed),
            used: position.used.load(Ordering::Relaxed),
        });
        {
            if fresh {
                // Kicks cost the guest an exit each; whoever goes to sleep asks for them.
                // SAFETY: the memory that the view was read of stays mapped while the gate is open.
                unsafe { view.ask_for_kicks(&at, false) };
            }
            let next = at.next;
            let done = act(view, &mut at);
            if self.sole {
                self.reading.at = Some(at);
            } else {
                ring.known.store(at.known, Ordering::Relaxed);
                ring.told
                    .store(at.told.map_or(NEVER, u32::from), Ordering::Relaxed);
            }
            if at.next != next {
                position.next.store(at.next, Ordering::Relaxed);
                position.used.store(at.used, Ordering::Relaxed);
            }
            Look::Done(done)
        }
    }

    /// Tells the guest that the ring has changed.
    fn tell(&self) {
        if let Some(call) = &self.reading.call {
            device::tell(call);
        }
    }
}

impl Reading {
    /// Reads a ring of the device, inside its quick gate.
    #[cold]
    fn new(shared: &Shared, index: u16) -> Reading {
        let table = shared.table();
        let entry = table.as_ref().and_then(|table| table.ring(index));
        Reading {
            view: table.as_ref().and_then(|table| table.view(index)),
            position: entry.map(|entry| Arc::clone(&entry.position)),
            call: entry.and_then(|entry| entry.call.clone()),
            ..Reading::default()
        }
    }
}

impl Way {
    /// The way into the ring that this worker is to use, which is made where the last one led into
    /// another.
    #[inline]
    fn find<'a>(last: &'a mut Option<Way>, shared: &Shared, worker: usize) -> Option<&'a mut Way> {
        let ring = (0..MAX_PAIRS)
            .map(|step| (worker + step) % MAX_PAIRS * 2)
            .find(|ring| shared.rings[*ring].enabled.load(Ordering::Relaxed))?
            as u16;
        if last.as_ref().is_none_or(|way| way.ring != ring) {
            // The last keys are given back: whoever is left there may enter alone.
            *last = None;
            *last = Some(Way::new(shared, ring));
        }
        last.as_mut()
    }

    #[cold]
    fn new(shared: &Shared, ring: u16) -> Way {
        let doors = &shared.rings[usize::from(ring)];
        Way {
            ring,
            key: doors.gate.key(),
            quick: Quick::new(doors.quick.key(), false),
        }
    }
}

/// How often frames are made ready anew where another guest comes meanwhile, each of which takes a
/// new device.
const TRIES: usize = 3;

impl TxQueue<Mbuf> for VhostTx {
    fn send(&mut self, frames: &mut Vec<Mbuf>) -> TxOutcome {
        let seen = self.shared.takes();
        if egress::scan(frames, seen.longest).special {
            self.send_special(frames, seen, TRIES)
        } else {
            self.send_ready(frames, seen, TRIES)
        }
    }
}

/// What becomes of frames for a guest that is not there.
#[cold]
fn refused(frames: &mut Vec<Mbuf>) -> TxOutcome {
    let outcome = TxOutcome {
        failed: frames.len() as u64,
        ..TxOutcome::default()
    };
    mbuf::free_all(frames);
    outcome
}

impl VhostTx {
    /// Sends frames of which some are not as a guest that takes `takes` gets them. What takes long
    /// is done before the gate is entered, at which others may wait.
    #[cold]
    fn send_special(&mut self, frames: &mut Vec<Mbuf>, takes: Takes, tries: usize) -> TxOutcome {
        if tries == 0 || Way::find(&mut self.way, &self.shared, self.worker).is_none() {
            return refused(frames);
        }
        let mut slice = std::mem::take(&mut self.scratch);
        let send = |slice: &mut Vec<Mbuf>| self.send_ready(slice, takes, tries - 1);
        let outcome = egress::send_in_slices(frames, &mut slice, &takes.abilities(), send);
        self.scratch = slice;
        outcome
    }

    /// Sends frames as a guest that takes `seen` gets them.
    fn send_ready(&mut self, frames: &mut Vec<Mbuf>, seen: Takes, tries: usize) -> TxOutcome {
        let shared = &*self.shared;
        let takes = 'another: {
            let Some(way) = Way::find(&mut self.way, shared, self.worker) else {
                return refused(frames);
            };
            let Some(inside) = way.key.enter() else {
                return refused(frames);
            };
            let takes = shared.takes();
            if takes != seen {
                // Another guest has come meanwhile.
                break 'another takes;
            }
            let (outcome, tells) = put_all(&mut way.quick, shared, way.ring, frames);
            drop(inside);
            if tells {
                way.quick.tell();
            }
            mbuf::free_all(frames);
            return outcome;
        };
        self.send_special(frames, takes, tries)
    }
}

/// Puts frames into a ring, in order, as far as there is room. They stay the caller's. Says whether
/// the guest wants to be told.
#[inline(always)]
fn put_all(around: &mut Quick, shared: &Shared, ring: u16, frames: &[Mbuf]) -> (TxOutcome, bool) {
    let mut outcome = TxOutcome::default();
    let mut next = 0;
    let put = |view: &View, at: &mut Place| {
        let (mut refused, mut common) = (0, true);
        while next < frames.len() && refused < REFUSALS {
            if common {
                // SAFETY: inside the gates the view is valid, and nobody else uses the ring.
                let done = unsafe { view.put(at, &frames[next..]) };
                next += done.frames;
                outcome.packets += done.frames as u64;
                if done.exhausted {
                    break;
                }
                common = done.frames > 0;
                if done.frames == BURST {
                    continue;
                }
            }
            let Some(frame) = frames.get(next) else {
                break;
            };
            // SAFETY: as above.
            match unsafe { view.put_one(at, frame) } {
                Put::Done => outcome.packets += 1,
                Put::TooSmall => {
                    outcome.too_long += 1;
                    outcome.bytes = outcome.bytes.wrapping_sub(frame.len() as u64);
                }
                Put::Refused => {
                    refused += 1;
                    continue;
                }
                Put::Full => break,
            }
            next += 1;
        }
        // SAFETY: as above.
        (outcome.packets > 0 || refused > 0) && unsafe { view.wants_call(at) }
    };
    let tells = around.with(shared, ring, put) == Look::Done(true);
    let bytes = frames[..next]
        .iter()
        .map(|frame| u64::from(frame.raw().packet_len))
        .sum();
    // What was passed over has been taken off already.
    outcome.bytes = outcome.bytes.wrapping_add(bytes);
    outcome.full += (frames.len() - next) as u64;
    (outcome, tells)
}

/// The control thread's side.
struct VhostControl {
    name: String,
    client: bool,
    shared: Arc<Shared>,
    /// To [`Shared::asked`].
    key: Key,
    watched: Watched,
    mac: Mac,
    mtu: u16,
    admin_up: bool,
    rx_queues: u16,
    /// As many replaced mappings as have been told.
    replaced: u64,
}

impl PortControl for VhostControl {
    fn tx_queue(&mut self, worker: usize) -> Result<Box<dyn TxQueue<Mbuf>>, Error> {
        Ok(Box::new(VhostTx {
            shared: self.shared.clone(),
            worker,
            scratch: Vec::new(),
            way: None,
        }))
    }

    fn info(&mut self) -> PortInfo {
        // Asked for now and then, and by a thread that may wait.
        self.shared.relent(Instant::now());
        PortInfo {
            present: true,
            mac: self.mac,
            mtu: self.mtu,
            ifindex: 0,
            admin_up: self.admin_up,
            link_up: self.shared.connected(),
            link_speed: 0,
            full_duplex: None,
            link_resets: self.shared.resets.load(Ordering::Relaxed),
        }
    }

    fn status(&mut self) -> Vec<(String, String)> {
        let mode = if self.client { "client" } else { "server" };
        let socket = self.watched.path().to_owned();
        let mut status = vec![
            ("mode".to_string(), mode.to_string()),
            ("socket".to_string(), socket),
        ];
        let mut add = |key: String, value: String| status.push((key, value));
        // Read inside the gate, which keeps this very device from going. It is closed while there
        // is none.
        let inside = self.key.enter();
        let vid = self.shared.vid.load(Ordering::SeqCst);
        if inside.is_none() || vid < 0 {
            add("status".into(), "disconnected".into());
            return status;
        }
        add("status".into(), "connected".into());
        add(
            "features".into(),
            format!("0x{:016x}", self.shared.features.load(Ordering::Relaxed)),
        );
        add("n_rxq".into(), self.rx_queues.to_string());
        let Some(table) = self.shared.table() else {
            return status;
        };
        add("numa".into(), table.numa_node.to_string());
        add("num_of_vrings".into(), table.rings.len().to_string());
        for (number, size) in table.sizes() {
            add(format!("vring_{number}_size"), size.to_string());
        }
        status
    }

    fn device_stats(&mut self) -> Vec<(String, u64)> {
        let replaced = fault::replaced();
        if replaced > self.replaced {
            self.replaced = replaced;
            tracing::warn!(
                "a vhost-user peer took back memory in use; {replaced} mappings were replaced so far"
            );
        }
        Vec::new()
    }

    fn set_mtu(&mut self, mtu: u16) -> Result<(), Error> {
        check_mtu(&self.name, mtu)?;
        self.mtu = mtu;
        self.shared
            .longest
            .store(u32::from(mtu) + OVERHEAD, Ordering::Relaxed);
        Ok(())
    }

    fn set_mac(&mut self, mac: Mac) -> Result<(), Error> {
        self.mac = mac;
        Ok(())
    }

    fn set_admin(&mut self, up: bool) -> Result<(), Error> {
        self.admin_up = up;
        Ok(())
    }

    fn close(self: Box<Self>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mbuf::kept::{self, Kept};

    fn served(port: &Shared) -> Option<c_int> {
        let vid = port.vid.load(Ordering::SeqCst);
        let enabled = port.rings[1].enabled.load(Ordering::SeqCst);
        (enabled && port.rings[1].gate.key().enter().is_some()).then_some(vid)
    }

    fn guest(port: &Shared, vid: c_int) {
        port.ring_changed(vid, 1, true);
        port.arrive(vid, 0);
    }

    #[test]
    fn a_connection_that_says_nothing_disturbs_nobody() {
        let port = Shared::new(Box::new([]), 1518);
        guest(&port, 0);
        assert_eq!(served(&port), Some(0));
        port.disconnect(1); // comes
        port.ring_changed(1, 1, false);
        port.leave(1);
        port.disconnect(1); // goes
        assert_eq!(served(&port), Some(0));
        port.disconnect(0);
        assert_eq!(served(&port), None);
    }

    #[test]
    fn the_device_that_spoke_last_is_served_and_the_other_left_alone() {
        let port = Shared::new(Box::new([]), 1518);
        guest(&port, 0);
        std::thread::scope(|scope| {
            let mut key = port.rings[1].gate.key();
            let inside = key.try_enter().expect("open");
            let other = scope.spawn(|| guest(&port, 1));
            while port.vid.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            // A worker is inside device 0, so the port cannot have turned to device 1.
            assert_eq!(port.vid.load(Ordering::SeqCst), -1);
            drop(inside);
            assert!(other.join().is_ok());
        });
        assert_eq!(served(&port), Some(1));
        port.leave(0);
        port.disconnect(0);
        assert_eq!(served(&port), Some(1));
        port.leave(1);
        assert_eq!(served(&port), None);
    }

    fn sender(port: &Arc<Shared>) -> VhostTx {
        VhostTx {
            shared: Arc::clone(port),
            worker: 0,
            scratch: Vec::new(),
            way: None,
        }
    }

    /// There is no device behind the port, so its ring is none that can be used.
    #[test]
    fn a_ring_that_cannot_be_looked_at_is_not_slept_over() {
        let wake = Box::new([event().expect("a descriptor")]);
        let port = Arc::new(Shared::new(wake, 1518));
        let mut rx = VhostRx::new(Arc::clone(&port), 0, Pool::none()).expect("a queue");
        let mut none = Vec::new();
        let mut sleeps = |change: fn(&Shared)| {
            change(&port);
            let first = !rx.arm();
            rx.disarm();
            assert_eq!(rx.receive(&mut none), 0);
            let again = !rx.arm();
            rx.disarm();
            assert_eq!(first, again);
            again
        };
        assert!(sleeps(|_| {}), "there is no guest");
        assert!(sleeps(|port| guest(port, 0)));
        // While the hypervisor is answered the ring cannot be looked at.
        assert!(!sleeps(Shared::message_begins));
        // Nobody waits for a ring that is not used.
        assert!(sleeps(|port| port.ring_changed(0, 1, false)));
        assert!(!sleeps(|port| port.ring_changed(0, 1, true)));
        assert!(sleeps(Shared::message_done));
        // Nor for a guest that has gone.
        assert!(sleeps(|port| port.leave(0)));
    }

    #[test]
    fn an_announcement_is_a_reverse_arp_request_of_the_guest() {
        let frame = announcement(u64::from_le_bytes([2, 3, 4, 5, 6, 7, 0, 0x80]));
        let mac = [2, 3, 4, 5, 6, 7];
        assert_eq!(frame[..6], [0xff; 6]);
        for at in [6, 22, 32] {
            assert_eq!(frame[at..at + 6], mac);
        }
        assert_eq!(frame[12..22], [0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]);
    }

    /// A sender that waits at the gate while another guest comes, which fills in no checksums and
    /// takes shorter frames.
    #[test]
    fn what_a_guest_takes_is_asked_inside_the_gate() {
        let port = Arc::new(Shared::new(Box::new([]), 1518));
        port.ring_changed(0, 0, true);
        port.arrive(0, feature::GUEST_CSUM);
        let (mut holder, mut sender) = (port.rings[0].gate.key(), sender(&port));
        let (mut unfinished, mut long) = (Kept::new(), Kept::new());
        for _ in 0..10 {
            port.features.store(feature::GUEST_CSUM, Ordering::Relaxed);
            port.longest.store(1518, Ordering::Relaxed);
            let inside = holder.enter().expect("open");
            let waits = AtomicBool::new(false);
            let outcome = std::thread::scope(|scope| {
                let sent = scope.spawn(|| {
                    loop {
                        let mut frames =
                            vec![kept::unfinished(&mut unfinished), long.frame(&[0; 1000])];
                        waits.store(true, Ordering::SeqCst);
                        let outcome = sender.send(&mut frames);
                        // Nobody waits for ever.
                        if outcome.failed == 0 {
                            return outcome;
                        }
                    }
                });
                while !waits.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                (0..100).for_each(|_| std::thread::yield_now());
                port.features.store(0, Ordering::Relaxed);
                port.longest.store(999, Ordering::Relaxed);
                drop(inside);
                sent.join().expect("a sender")
            });
            // There is no device behind the port: what is left of the burst finds no room.
            let wanted = TxOutcome {
                full: 1,
                too_long: 1,
                ..TxOutcome::default()
            };
            assert_eq!(outcome, wanted);
            let left = unfinished.flags() & mbuf::WORK;
            assert_eq!(left, 0, "nothing is left to the guest");
            assert!(kept::is_finished(&mut unfinished));
        }
        // One that has not changed is left what it offers to do.
        port.features.store(feature::GUEST_CSUM, Ordering::Relaxed);
        drop(holder);
        let mut frames = vec![kept::unfinished(&mut unfinished)];
        assert_eq!(sender.send(&mut frames).full, 1);
        assert_eq!(unfinished.flags() & mbuf::WORK, mbuf::WORK);
        assert!(!kept::is_finished(&mut unfinished));
    }

    #[test]
    fn patience_comes_back() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        assert!((0..512).all(|_| !patience.tried(start)));
        // What comes back in a second is spent in it.
        let second = |seconds| start + Duration::from_secs(seconds);
        for seconds in 1..100 {
            assert!((0..8).all(|_| !patience.tried(second(seconds))));
        }
        assert!(patience.tried(second(99)));
        assert!(!patience.tried(second(99)), "known already");
        let mut patience = Patience::default();
        assert!((0..512).all(|_| !patience.tried(start)));
        assert!((0..512).all(|_| !patience.tried(second(64))));
        assert!(patience.tried(second(64)));
    }

    #[test]
    fn patience_is_restored_when_all_of_it_has_come_back() {
        let (mut patience, start) = (Patience::default(), Instant::now());
        let second = |seconds| start + Duration::from_secs(seconds);
        assert!(!patience.restored(start), "nothing was spent");
        assert!((0..512).all(|_| !patience.tried(start)));
        assert!(!patience.restored(second(64)), "it was not all spent");
        assert!((0..512).all(|_| !patience.tried(second(64))));
        assert!(patience.tried(second(64)));
        // However much more is tried.
        assert!((0..100_000).all(|_| !patience.tried(second(65))));
        assert!(!patience.restored(second(65)));
        assert!(!patience.restored(second(128)));
        assert!(patience.restored(second(129)));
        assert!(!patience.restored(second(129)), "known already");
        assert!((0..512).all(|_| !patience.tried(second(129))));
        assert!(patience.tried(second(129)));
    }

    /// Whatever a guest does, it is not let more often than its patience says: 512 times, and 8
    /// times a second.
    #[test]
    fn no_habit_gets_more_of_patience() {
        const TICKS: u32 = 100_000;
        // Changes in a tick of 50 ms, and after how many of them that did nothing it rests for how
        // many.
        for (changes, busy, rest) in [
            (1, 1, 0),
            (600, 1, 1279),
            (600, 1, 1280),
            (513, 1, 1400),
            (7, 5000, 3000),
            (2, 300, 300),
        ] {
            let (mut patience, start) = (Patience::default(), Instant::now());
            let (mut let_through, mut spent) = (0u32, 0u32);
            for tick in 0..TICKS {
                let now = start + Duration::from_millis(50) * tick;
                patience.restored(now);
                if tick % (busy + rest) < busy {
                    for _ in 0..changes {
                        spent += u32::from(patience.tried(now));
                        let_through += u32::from(!patience.spent);
                    }
                }
            }
            assert!(spent > 0, "{changes} {busy} {rest}");
            let most = 512 + TICKS / 20 * 8;
            assert!(let_through <= most, "{let_through} of {most}");
        }
    }

    /// However often a guest switches rings, or itself, workers are not interrupted more often than
    /// it has patience.
    #[test]
    fn a_guest_that_switches_all_the_time_interrupts_no_worker() {
        let port = Shared::new(Box::new([]), 1518);
        port.ring_changed(0, 0, true);
        guest(&port, 0);
        let (mut first, mut second) = (None, None);
        let before = crate::gate::interruptions();
        let inside = |worker, way: &mut Option<Way>| {
            let way = Way::find(way, &port, worker).expect("a ring");
            assert!(way.key.try_enter().is_some());
            way.ring
        };
        for round in 0..3000 {
            // Whether workers share a ring or have one each.
            port.ring_changed(0, 2, round % 2 == 0);
            assert_eq!(inside(0, &mut first), 0);
            assert_eq!(inside(1, &mut second), if round % 2 == 0 { 2 } else { 0 });
            if round % 100 == 0 {
                port.leave(0);
                assert_eq!(served(&port), None);
                port.arrive(0, 0);
                assert_eq!(served(&port), Some(0));
            }
        }
        let interruptions = crate::gate::interruptions() - before;
        assert!(interruptions < 1500, "{interruptions}");
        // However slow this machine is.
        while !port.patience.lock().expect("nobody panicked").spent {
            port.disturbed(Instant::now());
        }
        let before = crate::gate::interruptions();
        for _ in 0..100 {
            port.ring_changed(0, 2, true);
            inside(1, &mut second);
            port.ring_changed(0, 2, false);
            inside(1, &mut second);
            port.leave(0);
            port.arrive(0, 0);
        }
        assert_eq!(crate::gate::interruptions(), before);
        // Another guest is served so as well, at first.
        let alone = |port: &Shared| {
            let before = crate::gate::interruptions();
            Gate::close_all(port.gates());
            port.gates().for_each(Gate::reopen);
            crate::gate::interruptions() != before
        };
        port.disconnect(0);
        port.arrive(1, 0);
        port.relent(Instant::now());
        assert!(!alone(&port));
        // Where it behaves, it is served as guests of other ports are, on this kernel.
        port.relent(Instant::now() + PATIENCE);
        assert_eq!(alone(&port), alone(&Shared::new(Box::new([]), 1518)));
    }

    #[test]
    fn senders_share_a_ring_or_have_one_each() {
        let port = Shared::new(Box::new([]), 1518);
        port.ring_changed(0, 0, true);
        port.arrive(0, 0);
        let (mut first, mut second) = (None, None);
        let mut both_inside = || {
            let first = Way::find(&mut first, &port, 0).expect("a ring");
            let second = Way::find(&mut second, &port, 1).expect("a ring");
            let inside = first.key.try_enter();
            let both = inside.is_some() && second.key.try_enter().is_some();
            (first.ring, second.ring, both)
        };
        assert_eq!(both_inside(), (0, 0, false));
        port.ring_changed(0, 2, true);
        assert_eq!(both_inside(), (0, 2, true));
        port.ring_changed(0, 2, false);
        assert_eq!(both_inside(), (0, 0, false));
        port.ring_changed(0, 2, true);
        port.leave(0);
        assert_eq!(both_inside(), (0, 2, false));
        assert!(first.is_some_and(|mut way| way.key.enter().is_none()));
    }
}
