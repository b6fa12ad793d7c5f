//! Shaped ports: frames sent to one wait in its shaper until its rates let them go.
//!
//! A shaped port belongs to one worker. Frames that its owner sends there during a burst are
//! staged, and go into the shaper ([`qos::shaper`]) when the burst ends; a run of frames that need
//! not wait is only charged for and leaves with the burst. Other workers put frames into a bounded
//! ring, which the owner empties before its own. Once a turn the owner sends what may leave, and
//! before it sleeps it asks the shaper when something will.
//!
//! Control prepares another shape and leaves it beside the ring, and the owner moves what waits
//! into it. The lock is needed only when the owner changes: the owner alone takes it, without
//! waiting for it, and sends before it releases it, so no frame is overtaken. Frames put in later
//! by a former owner that has not been told yet are sent by the new owner: when the next one falls
//! due is noted beside the shaper ([`due`]). When the port is removed, each worker that lets go of
//! it takes the lock once more, and drops what waits: the last one finds what a former or later
//! owner has put there meanwhile.
//!
//! A patch port may be shaped too: what leaves then comes in at the peer.

mod admit;
mod due;
pub(crate) mod inspect;
mod ring;
pub(crate) mod room;
mod sender;
mod serve;

pub(crate) use sender::{NoDevice, Released, ShapedSender, Shaping};

use crate::clock::monotonic_ns;
use crate::counters::{Cell, DropReason};
use crossbeam_queue::ArrayQueue;
use due::Due;
use packet::Frame;
use qos::shaper::watch::Watch;
use qos::shaper::{Counters, PortSpec, Shaper};
use ring::Ring;
use room::Room;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Bits kept of a flow's hash; the other bits count the patch ports that the frame has passed
/// ([`crate::forward::MAX_PATCHES`] at most).
const FLOW_BITS: u32 = !0x7f;
/// Longest time to hand a batch of [`packet::io::BURST`] frames to a device, in nanoseconds. A
/// queue's promised bound includes it.
pub const BATCH_NS: u64 = 200_000;
/// A large TCP frame is segmented before it waits, if sending it whole at its queue's maximum rate
/// would take longer than the queue's bound divided by this.
const PART_OF_BOUND: u64 = 8;
/// Same, if it would take longer than this many nanoseconds.
const LONGEST_NS: u64 = 500_000;

/// The queues' numbers, the shaper's counters by queue, and its watch.
type Counted = (Vec<u32>, Arc<Counters>, Arc<Watch>);

/// A shaper at work.
struct Core<F> {
    shaper: Shaper<F>,
    spec: PortSpec,
}

/// A shaped port.
pub(crate) struct Shaped<F: Frame> {
    ring: Ring<F>,
    /// Another shape, prepared by control.
    next: ArrayQueue<Core<F>>,
    core: Mutex<Core<F>>,
    due: Due,
    counters: Mutex<Counted>,
    late_sent: AtomicU64,
    /// Whether any queue has a bound.
    bounded: AtomicBool,
    /// What all shaped ports share, and how much of it this one has said that it uses.
    room: Arc<Room>,
    used: AtomicU64,
}

fn has_bounds(spec: &PortSpec) -> bool {
    spec.queues
        .iter()
        .any(|queue| queue.max_latency_ns.is_some())
}

fn counters_of<F>(shaper: &Shaper<F>) -> Counted {
    (
        shaper.queues().to_vec(),
        Arc::clone(shaper.counters()),
        Arc::clone(shaper.watch()),
    )
}

impl<F: Frame> Shaped<F> {
    /// An empty one.
    pub fn new(spec: &PortSpec, room: &Arc<Room>) -> Result<Shaped<F>, qos::shaper::SpecError> {
        let core = Core::new(spec)?;
        Ok(Shaped {
            ring: Ring::new(),
            next: ArrayQueue::new(1),
            counters: Mutex::new(counters_of(&core.shaper)),
            core: Mutex::new(core),
            due: Due::new(),
            late_sent: AtomicU64::new(0),
            bounded: AtomicBool::new(has_bounds(spec)),
            room: Arc::clone(room),
            used: AtomicU64::new(0),
        })
    }

    /// Prepares another shape, which the owner puts into place in its next turn.
    pub fn change(&self, spec: &PortSpec) -> Result<(), qos::shaper::SpecError> {
        drop(self.next.force_push(Core::new(spec)?));
        Ok(())
    }

    /// Returns each queue's number and counts.
    pub fn totals(&self) -> Vec<(u32, qos::shaper::QueueTotals)> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.0.iter().copied().zip(counters.1.all()).collect()
    }

    /// Returns the queues' numbers by index, and the shaper's watch.
    pub fn watch(&self) -> (Vec<u32>, Arc<Watch>) {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        (counters.0.clone(), Arc::clone(&counters.2))
    }

    /// Returns the number of frames that were handed to the device later than their queue's bound
    /// promises: the bound, the timer's slack and [`BATCH_NS`]. It happens only when a worker was
    /// stopped meanwhile.
    pub fn late_sent(&self) -> u64 {
        self.late_sent.load(Ordering::Relaxed)
    }

    fn bound(&self, core: &mut Core<F>) {
        let frames = self.room.of_one(self.used.load(Ordering::Relaxed));
        core.shaper.bound(frames, room::bytes(frames));
    }

    fn in_hand<'a>(&'a self, mut core: MutexGuard<'a, Core<F>>) -> InHand<'a, F> {
        self.bound(&mut core);
        InHand { core, port: self }
    }

    /// Says how much of the shared room this port uses. For who has the lock.
    #[inline]
    fn note_used(&self, now: u64) {
        let before = self.used.load(Ordering::Relaxed);
        if before != now {
            self.used.store(now, Ordering::Relaxed);
            self.room.note(before, now);
        }
    }

    fn install(&self, core: &mut Core<F>, next: Core<F>) {
        let old = std::mem::replace(core, next);
        self.bounded
            .store(has_bounds(&core.spec), Ordering::Relaxed);
        core.shaper.adopt(old.shaper, monotonic_ns());
        self.bound(core);
        self.show_counters(core);
    }

    fn show_counters(&self, core: &Core<F>) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters_of(&core.shaper);
    }

    /// Drops what waits, and returns the number of frames. Leaves a shaper alone that another
    /// worker has locked; that worker must call this, too, when it lets go of the port.
    pub fn close(&self, cell: &Cell) -> u64 {
        let mut gone = 0;
        if let Some(mut core) = self.core(cell)
            && core.shaper.waiting() > 0
        {
            gone += core.shaper.empty().len();
        }
        gone += std::iter::from_fn(|| self.ring.pop()).count();
        gone as u64
    }

    /// Locks the shaper, for its owner; None while the former owner still holds it. A shaper in
    /// which a worker failed is replaced by an empty one.
    fn core(&self, cell: &Cell) -> Option<InHand<'_, F>> {
        match self.core.try_lock() {
            Ok(core) => Some(self.in_hand(core)),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut core = poisoned.into_inner();
                if let Ok(fresh) = Core::new(&core.spec) {
                    cell.drop(DropReason::WorkerFailed, core.shaper.waiting() as u64);
                    *core = fresh;
                    self.show_counters(&core);
                }
                self.core.clear_poison();
                Some(self.in_hand(core))
            }
        }
    }
}

impl<F: Frame> Drop for Shaped<F> {
    fn drop(&mut self) {
        self.note_used(0);
    }
}

/// The shaper in a worker's hands. When it goes it says when the next frame may leave.
struct InHand<'a, F: Frame> {
    core: MutexGuard<'a, Core<F>>,
    port: &'a Shaped<F>,
}

impl<F: Frame> Deref for InHand<'_, F> {
    type Target = Core<F>;

    #[inline]
    fn deref(&self) -> &Core<F> {
        &self.core
    }
}

impl<F: Frame> DerefMut for InHand<'_, F> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core<F> {
        &mut self.core
    }
}

impl<F: Frame> Drop for InHand<'_, F> {
    #[inline]
    fn drop(&mut self) {
        let shaper = &self.core.shaper;
        let used = room::frames(shaper.waiting(), shaper.waiting_bytes());
        self.port.note_used(used);
        // Who fails leaves it to be looked after at once.
        self.port.due.set(match std::thread::panicking() {
            true => Some(0),
            false => self.core.shaper.next_departure_ns(),
        });
    }
}

impl<F> Core<F> {
    fn new(spec: &PortSpec) -> Result<Core<F>, qos::shaper::SpecError> {
        Ok(Core {
            shaper: Shaper::new(spec, monotonic_ns())?,
            spec: spec.clone(),
        })
    }
}
