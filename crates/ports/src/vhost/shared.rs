//! State of a guest, shared by the hub, workers and the control thread.

use super::MAX_PAIRS;
use super::device::Table;
use super::sizes::Sizes;
use super::{device, feature};
use crate::egress::Abilities;
use crate::gate::Gate;
use libc::c_int;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Cost of a change, taken from [`PATIENCE`]: enabling or disabling a ring, or removing a device,
/// may interrupt the processors of all workers (`crate::gate`), and the guest decides how often.
pub(super) const CHANGE_COSTS: Duration = Duration::from_millis(125);
/// A guest's budget for changes, which is refilled as time passes: 512 changes at once, four times
/// as many as there can be rings, and 8 a second. When it is used up, the gates are entered by a
/// lock, until the guest, or another one, has been quiet for so long that the budget is full again.
pub(super) const PATIENCE: Duration = Duration::from_secs(64);

/// A ring, as workers see it.
pub(super) struct Ring {
    pub(super) gate: Gate,
    /// Gate in front of memory and ring. See the module.
    pub(super) quick: Gate,
    /// [`super::ring::RingPosition::known`], for the next user inside both gates.
    pub(super) known: AtomicU16,
    /// [`super::ring::RingPosition::told`], for the next user; [`NEVER`] if there is none.
    pub(super) told: AtomicU32,
    pub(super) enabled: AtomicBool,
}

/// Value of [`Ring::told`]: the guest has not been checked yet.
pub(super) const NEVER: u32 = u32::MAX;

/// The state of a guest's port.
pub(super) struct Shared {
    /// The number of the device, -1 if there is none.
    pub(super) vid: AtomicI32,
    /// The device that the rings below belong to, ready or not; -1 if there is none.
    pub(super) owner: AtomicI32,
    /// Incremented with every change that workers must handle.
    pub(super) generation: AtomicU32,
    /// Incremented before and after every message that changes something: copies of rings and
    /// memory made before are then invalid.
    pub(super) messages: AtomicU32,
    /// What queues read of the device.
    pub(super) table: Mutex<Option<Arc<Table>>>,
    pub(super) features: AtomicU64,
    /// Even numbers: rings that the guest receives from; odd: rings that it sends to.
    pub(super) rings: Box<[Ring]>,
    /// Gate in front of the control thread's reads of the device; closed when the device goes.
    pub(super) asked: Gate,
    /// One event for each receive queue.
    pub(super) wake: Box<[OwnedFd]>,
    pub(super) resets: AtomicU64,
    /// Packets by size: those received, by receive queue, and those sent, by worker.
    pub(super) received: Box<[Sizes]>,
    pub(super) sent: Mutex<BTreeMap<usize, Arc<Sizes>>>,
    pub(super) longest: AtomicU32,
    /// The address of a guest to be announced, with [`ANNOUNCE`]; else 0.
    pub(super) announced: AtomicU64,
    pub(super) patience: Mutex<Patience>,
}

/// Bit of [`Shared::announced`]: there is an address.
pub(super) const ANNOUNCE: u64 = 1 << 63;

/// A guest's budget for changes.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// When the budget will be full again.
    pub(super) until: Option<Instant>,
    /// Whether it was used up and has not been full since.
    pub(super) spent: bool,
}

impl Patience {
    /// Notes a change; true for the first one that exceeds the budget.
    pub(super) fn tried(&mut self, now: Instant) -> bool {
        let until = self.until.map_or(now, |until| until.max(now)) + CHANGE_COSTS;
        let too_much = until - now > PATIENCE;
        // Nobody is interrupted while the budget is used up, so the debt is limited to all of it: a
        // new guest need not wait longer.
        self.until = Some(until.min(now + PATIENCE));
        too_much && !std::mem::replace(&mut self.spent, true)
    }

    /// Returns true once, when the budget is full again after it was used up. Changes made while it
    /// is used up are noted, too, so in any period no more is spent than the full budget and what
    /// was refilled meanwhile.
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
            received: wake.iter().map(|_| Sizes::default()).collect(),
            sent: Mutex::default(),
            wake,
            resets: AtomicU64::new(0),
            longest: AtomicU32::new(longest),
            announced: AtomicU64::new(0),
            patience: Mutex::default(),
        }
    }

    /// Notes that a ring was enabled or disabled, or the device removed. While one call changes the
    /// gates, others wait for as long as a system call takes.
    pub(super) fn disturbed(&self, now: Instant) {
        let mut patience = self.patience();
        if patience.tried(now) {
            Gate::lock_all(self.gates());
            let (vid, quiet) = (self.owner.load(Ordering::Relaxed), PATIENCE.as_secs());
            tracing::warn!(target: "dpdk", "the guest of vhost device {vid} keeps switching its rings on and off: until it has left that for {quiet} s, workers take a lock for each burst");
        }
    }

    /// Lets workers enter without a lock again, if that is due. Waits for as long as a system call
    /// takes.
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

    /// Wakes workers that sleep on a queue.
    pub(super) fn wake_all(&self) {
        self.wake.iter().for_each(device::tell);
    }

    /// Returns the counts of what a worker sends.
    pub(super) fn sent_by(&self, worker: usize) -> Arc<Sizes> {
        let mut sent = self
            .sent
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        Arc::clone(sent.entry(worker).or_default())
    }

    pub(super) fn connected(&self) -> bool {
        self.vid.load(Ordering::Relaxed) >= 0
    }

    /// Returns all gates in front of the device.
    pub(super) fn gates(&self) -> impl Iterator<Item = &Gate> + Clone {
        let rings = self.rings.iter().map(|ring| &ring.gate);
        rings.chain([&self.asked])
    }

    /// Returns all gates in front of memory and rings.
    pub(super) fn quick_gates(&self) -> impl Iterator<Item = &Gate> + Clone {
        self.rings.iter().map(|ring| &ring.quick)
    }

    /// Returns the guest's settings. They are only stable inside the gate of one of its rings.
    #[inline(always)]
    pub(super) fn takes(&self) -> Takes {
        Takes {
            features: self.features.load(Ordering::Relaxed),
            longest: self.longest.load(Ordering::Relaxed),
        }
    }
}

/// Settings of a guest that matter to senders.
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

/// Reports from devices. A socket accepts several connections, each with its device; the port
/// serves the one that spoke last, and reports of others change nothing. Before another device is
/// served, no worker is left inside the previous one.
impl Shared {
    /// Makes `vid` the device that the port serves, if another was.
    pub(super) fn turn_to(&self, vid: c_int) {
        let before = self.owner.swap(vid, Ordering::SeqCst);
        if before != vid {
            self.let_go();
            self.disable_rings();
        }
    }

    /// Reports that device `vid` is ready.
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

    /// Returns whether device `vid` is the one that is served.
    pub(super) fn serves(&self, vid: c_int) -> bool {
        self.owner.load(Ordering::SeqCst) == vid
    }

    /// Replaces what queues read of the device.
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

    /// Reports that device `vid`, which is ready, has negotiated other features.
    pub(super) fn agreed(&self, vid: c_int, features: u64) {
        if self.serves(vid) {
            self.features.store(features, Ordering::Relaxed);
        }
    }

    /// Reports that a ring of device `vid` was enabled or disabled.
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

    /// Releases device `vid`, if it is the one served; no worker uses it after this.
    pub(super) fn leave(&self, vid: c_int) {
        if self.owner.load(Ordering::SeqCst) == vid {
            self.let_go();
        }
    }

    /// Releases the connection of device `vid`, if it is the one served.
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

    /// Waits until no worker uses the device, whichever it is; none will until the next one is
    /// ready.
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

    /// Must be called before a message is handled that changes rings or memory.
    pub(super) fn message_begins(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        Gate::close_all(self.quick_gates());
    }

    /// Must be called after such a message.
    pub(super) fn message_done(&self) {
        self.messages.fetch_add(1, Ordering::SeqCst);
        for gate in self.quick_gates() {
            gate.reopen();
        }
        // Workers that sleep because a ring could not be used check again.
        self.wake_all();
    }

    /// Requests the announcement of the guest with this address, in the six lowest bytes; its first
    /// queue receives the frame next.
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
