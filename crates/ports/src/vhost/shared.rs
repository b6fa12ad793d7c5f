//! What the hub, workers and the control thread share of a guest.

use super::MAX_PAIRS;
use super::device::Table;
use super::{device, feature};
use crate::egress::Abilities;
use crate::gate::Gate;
use libc::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A ring that comes or goes, and a device that goes, may interrupt the processors of all workers
/// (`crate::gate`), and how often that happens is for the guest to say. Each costs it so much
/// of its patience ...
pub(super) const CHANGE_COSTS: Duration = Duration::from_millis(125);
/// ... of which it has this, and gets back as time passes: 512 changes at once, four times all
/// rings that there can be, and 8 a second. When it has none left, its gates are entered by a lock,
/// until it, or another guest, has been so quiet that all of it is there again.
pub(super) const PATIENCE: Duration = Duration::from_secs(64);

/// A ring as the workers see it.
pub(super) struct Ring {
    pub(super) gate: Gate,
    /// In front of memory and ring. See the module.
    pub(super) quick: Gate,
    /// [`Place::known`], for whoever comes inside both gates next.
    pub(super) known: AtomicU16,
    /// [`Place::told`], for the same; [`NEVER`] where there is none.
    pub(super) told: AtomicU32,
    pub(super) enabled: AtomicBool,
}

/// Of [`Ring::told`]: the guest has not been asked yet.
pub(super) const NEVER: u32 = u32::MAX;

/// What the hub, workers and the control thread share.
pub(super) struct Shared {
    /// The number of the device, -1 when there is none.
    pub(super) vid: AtomicI32,
    /// The device whose rings are meant below, there or not; -1 when there is none.
    pub(super) owner: AtomicI32,
    /// Grows with every change that the workers should look into.
    pub(super) generation: AtomicU32,
    /// Grows before and after every message that changes something: what was read of rings and
    /// memory before is worth nothing after.
    pub(super) messages: AtomicU32,
    /// What queues read of the device.
    pub(super) table: Mutex<Option<Arc<Table>>>,
    pub(super) features: AtomicU64,
    /// Even numbers: what the guest receives from; odd: what it sends to.
    pub(super) rings: Box<[Ring]>,
    /// In front of what the control thread asks of the device, and closed when that goes.
    pub(super) asked: Gate,
    /// One event for each receive queue.
    pub(super) wake: Box<[OwnedFd]>,
    pub(super) resets: AtomicU64,
    pub(super) longest: AtomicU32,
    /// The address of a guest that is to be announced, with [`ANNOUNCE`]; else 0.
    pub(super) announced: AtomicU64,
    pub(super) patience: Mutex<Patience>,
}

/// Of [`Shared::announced`]: there is one.
pub(super) const ANNOUNCE: u64 = 1 << 63;

/// How much a guest has changed lately.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When all that it has changed will be forgotten.
    pub(super) until: Option<Instant>,
    /// There was none left, and not all of it has come back since.
    pub(super) spent: bool,
}

impl Patience {
    /// Notes a change; true for the first one that is too much.
    pub(super) fn tried(&mut self, now: Instant) -> bool {
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
    pub(super) fn restored(&mut self, now: Instant) -> bool {
        let restored = self.until.is_none_or(|until| until <= now);
        restored && std::mem::take(&mut self.spent)
    }
}

impl Shared {
    pub(super) fn new(wake: Box<[OwnedFd]>, longest: u32) -> Shared {
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
    pub(super) fn disturbed(&self, now: Instant) {
        let mut patience = self.patience();
        if patience.tried(now) {
            Gate::lock_all(self.gates());
            let (vid, quiet) = (self.owner.load(Ordering::Relaxed), PATIENCE.as_secs());
            tracing::warn!(target: "dpdk", "the guest of vhost device {vid} keeps switching its rings on and off: until it has left that for {quiet} s, workers take a lock for each burst");
        }
    }

    /// Gives workers their way without a lock back, where that is due. Waits for as long as a
    /// system call takes.
    pub(super) fn relent(&self, now: Instant) {
        let mut patience = self.patience();
        if patience.restored(now) {
            Gate::unlock_all(self.gates());
            let vid = self.owner.load(Ordering::Relaxed);
            tracing::info!(target: "dpdk", "the guest of vhost device {vid} has left its rings alone: workers take no lock any more");
        }
    }

    pub(super) fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    pub(super) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.wake_all();
    }

    /// Wakes whoever sleeps over a queue.
    pub(super) fn wake_all(&self) {
        self.wake.iter().for_each(device::tell);
    }

    pub(super) fn connected(&self) -> bool {
        self.vid.load(Ordering::Relaxed) >= 0
    }

    /// All gates in front of the device.
    pub(super) fn gates(&self) -> impl Iterator<Item = &Gate> + Clone {
        let rings = self.rings.iter().map(|ring| &ring.gate);
        rings.chain([&self.asked])
    }

    /// All gates in front of memory and rings.
    pub(super) fn quick_gates(&self) -> impl Iterator<Item = &Gate> + Clone {
        self.rings.iter().map(|ring| &ring.quick)
    }

    /// What the guest takes. Only inside the gate of one of its rings does it stay so.
    #[inline(always)]
    pub(super) fn takes(&self) -> Takes {
        Takes {
            features: self.features.load(Ordering::Relaxed),
            longest: self.longest.load(Ordering::Relaxed),
        }
    }
}

/// What a guest takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Takes {
    pub(super) features: u64,
    /// The longest frame, in bytes.
    pub(super) longest: u32,
}

impl Takes {
    pub(super) fn abilities(self) -> Abilities {
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
    pub(super) fn turn_to(&self, vid: c_int) {
        let before = self.owner.swap(vid, Ordering::SeqCst);
        if before != vid {
            self.let_go();
            self.disable_rings();
        }
    }

    /// Device `vid` is ready.
    pub(super) fn arrive(&self, vid: c_int, features: u64) {
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
    pub(super) fn serves(&self, vid: c_int) -> bool {
        self.owner.load(Ordering::SeqCst) == vid
    }

    /// Puts what queues read of the device in the place of what they read before.
    pub(super) fn show(&self, table: Arc<Table>) {
        let mut shown = self
            .table
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        *shown = Some(table);
    }

    pub(super) fn table(&self) -> Option<Arc<Table>> {
        let shown = self
            .table
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        shown.clone()
    }

    /// Device `vid`, which is there, has agreed on other features.
    pub(super) fn agreed(&self, vid: c_int, features: u64) {
        if self.serves(vid) {
            self.features.store(features, Ordering::Relaxed);
        }
    }

    /// A ring of device `vid` comes or goes.
    pub(super) fn ring_changed(&self, vid: c_int, queue: u16, enabled: bool) {
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
    pub(super) fn leave(&self, vid: c_int) {
        if self.owner.load(Ordering::SeqCst) == vid {
            self.let_go();
        }
    }

    /// Lets go of the connection behind device `vid`, if it is the one.
    pub(super) fn disconnect(&self, vid: c_int) {
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
    pub(super) fn let_go(&self) {
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
    pub(super) fn message_begins(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        Gate::close_all(self.quick_gates());
    }

    /// It has handled it.
    pub(super) fn message_done(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        for gate in self.quick_gates() {
            gate.reopen();
        }
        // Who sleeps because a ring could not be used looks again.
        self.wake_all();
    }

    /// Has the guest with this address announced, in the six lowest bytes, by a frame that its
    /// first queue receives next.
    pub(super) fn announce(&self, address: u64) {
        let address = address & ((1 << 48) - 1);
        self.announced.store(address | ANNOUNCE, Ordering::SeqCst);
        self.changed();
    }

    pub(super) fn disable_rings(&self) {
        for ring in &self.rings {
            ring.enabled.store(false, Ordering::SeqCst);
        }
    }
}
