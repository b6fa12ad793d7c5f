//! Shaped ports: what is sent to one waits in its shaper until its rates let it go.
//!
//! A shaped port belongs to one worker. What its owner sends there during a burst is staged, and goes into the shaper ([`qos::shaper`]) when the burst ends; a run of frames that
//! need not wait is only paid for and leaves with the burst. Other workers put frames into a bounded ring, which the owner empties before its own. Once a turn the owner sends
//! what may leave, and before it sleeps it asks the shaper when something will. Control prepares another shape and leaves it beside the ring, and the owner moves what waits into
//! it. The lock is for the moment at which the owner changes: its owner alone takes it, does not wait for it, and sends before it gives it back, so no frame is overtaken.
//!
//! A patch port may be shaped too: what leaves then comes in at the peer.

pub(crate) mod inspect;

use crate::clock::monotonic_ns;
use crate::counters::{Cell, DropReason, PortCounters};
use crate::forward::Egress;
use crate::worker::Mailbox;
use crossbeam_queue::ArrayQueue;
use inspect::{flow_of, len_on_the_wire, mark};
use packet::Frame;
use packet::frame::Gso;
use packet::io::{BURST, TxOutcome, TxQueue};
use packet::segment::{SegmentError, segment};
use qos::shaper::watch::Watch;
use qos::shaper::{Counters, PortSpec, Shaper};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Frames that may wait in a port's ring.
const RING: usize = 4096;
/// Queues that have a count of their own in the ring; others share one with them.
const SHARES: usize = 256;
/// Bursts sent in a turn at most, so that a port cannot keep a worker from receiving.
const BURSTS: usize = 8;
/// The shortest sleep for a departure: what falls due meanwhile leaves together. Well within the slack of shapers.
pub(crate) const NAP_NS: u64 = 20_000;
/// What is left of a flow's hash; the other bits say how many patch ports the frame has passed ([`crate::forward::MAX_PATCHES`] at most).
const FLOW_BITS: u32 = !0x7f;

/// How long it may take to hand a batch of [`BURST`] frames to a device, in nanoseconds: part of what a bound promises.
pub const BATCH_NS: u64 = 200_000;
/// A large TCP frame is cut into its segments before it waits, where sending it as one would take longer at its queue's maximum rate than this part of the queue's bound,
const PART_OF_BOUND: u64 = 8;
/// or longer than so many nanoseconds.
const LONGEST_NS: u64 = 500_000;

/// A frame on its way to the owner.
struct Arrival<F> {
    frame: F,
    /// When it came.
    at_ns: u64,
    queue: Option<u32>,
    flow: u32,
}

/// Frames that other workers have sent.
///
/// A queue may use no more of the ring than it leaves free, so that a flood to one queue does not keep others' frames out, as in the shaper itself.
struct Ring<F> {
    frames: ArrayQueue<Arrival<F>>,
    /// Frames in it, by queue.
    shares: [AtomicU32; SHARES],
}

impl<F> Ring<F> {
    fn new() -> Ring<F> {
        Ring {
            frames: ArrayQueue::new(RING),
            shares: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }

    fn share(&self, queue: Option<u32>) -> &AtomicU32 {
        &self.shares[queue.unwrap_or(0) as usize % SHARES]
    }

    /// False where the frame's queue has no room, and the frame is gone.
    fn push(&self, arrival: Arrival<F>) -> bool {
        let share = self.share(arrival.queue);
        let free = RING - self.frames.len();
        if share.fetch_add(1, Ordering::Relaxed) as usize >= free {
            share.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let pushed = self.frames.push(arrival);
        pushed.map_err(|arrival| self.count_out(&arrival)).is_ok()
    }

    fn count_out(&self, arrival: &Arrival<F>) {
        let share = self.share(arrival.queue);
        share.fetch_sub(1, Ordering::Relaxed);
    }

    fn pop(&self) -> Option<Arrival<F>> {
        let arrival = self.frames.pop()?;
        self.count_out(&arrival);
        Some(arrival)
    }
}

/// The queues' numbers, what a shaper counts queue by queue, and whom it watches.
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
    counters: Mutex<Counted>,
    late_sent: AtomicU64,
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
    pub fn new(spec: &PortSpec) -> Result<Shaped<F>, qos::shaper::SpecError> {
        let core = Core::new(spec)?;
        Ok(Shaped {
            ring: Ring::new(),
            next: ArrayQueue::new(1),
            counters: Mutex::new(counters_of(&core.shaper)),
            core: Mutex::new(core),
            late_sent: AtomicU64::new(0),
        })
    }

    /// Prepares another shape, which the owner puts into place at its next turn.
    pub fn change(&self, spec: &PortSpec) -> Result<(), qos::shaper::SpecError> {
        drop(self.next.force_push(Core::new(spec)?));
        Ok(())
    }

    /// What each queue has done: its number and counts.
    pub fn totals(&self) -> Vec<(u32, qos::shaper::QueueTotals)> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.0.iter().copied().zip(counters.1.all()).collect()
    }

    /// The queues' numbers by their places, and whom the shaper watches.
    pub fn watch(&self) -> (Vec<u32>, Arc<Watch>) {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        (counters.0.clone(), Arc::clone(&counters.2))
    }

    /// Frames that were handed to the device later than their queue's bound promises: the bound, the timer's slack and [`BATCH_NS`]. Only a worker that was stopped meanwhile sends so.
    pub fn late_sent(&self) -> u64 {
        self.late_sent.load(Ordering::Relaxed)
    }

    fn install(&self, core: &mut Core<F>, next: Core<F>) {
        let old = std::mem::replace(core, next);
        core.shaper.adopt(old.shaper, monotonic_ns());
        self.show_counters(core);
    }

    fn show_counters(&self, core: &Core<F>) {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters_of(&core.shaper);
    }

    /// The shaper, for its owner; none while the former owner is still at it. A shaper in which a worker failed is replaced by an empty one.
    fn core(&self, cell: &Cell) -> Option<MutexGuard<'_, Core<F>>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut core = poisoned.into_inner();
                if let Ok(fresh) = Core::new(&core.spec) {
                    cell.drop(DropReason::WorkerFailed, core.shaper.waiting() as u64);
                    *core = fresh;
                    self.show_counters(&core);
                }
                self.core.clear_poison();
                Some(core)
            }
        }
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

/// Frames sent to a shaped port in this burst, in order.
struct Staged<F> {
    frames: Vec<F>,
    /// The queue that each names, and how many patch ports it has passed.
    wants: Vec<(Option<u32>, u32)>,
}

/// A worker's way to a shaped port.
pub(crate) struct Way<F: Frame> {
    shaped: Arc<Shaped<F>>,
    /// The port's.
    pub counters: Arc<PortCounters>,
    /// Whom the port belongs to.
    owner: Arc<Mailbox<F>>,
    /// Whether that is the worker itself.
    pub mine: bool,
    /// Whether the port is a patch port.
    patch: bool,
    staged: Staged<F>,
    /// When the next frame may leave, as the owner knows.
    due_ns: Option<u64>,
}

impl<F: Frame> Way<F> {
    pub fn new(
        shaped: Arc<Shaped<F>>,
        counters: Arc<PortCounters>,
        owner: Arc<Mailbox<F>>,
        mine: bool,
        patch: bool,
    ) -> Way<F> {
        Way {
            shaped,
            counters,
            owner,
            mine,
            patch,
            staged: Staged {
                frames: Vec::with_capacity(BURST),
                wants: Vec::with_capacity(BURST),
            },
            due_ns: Some(0),
        }
    }

    /// Hands what is staged to the port's owner.
    #[cold]
    fn hand_over(&mut self, at_ns: u64, worker: usize, cell: &Cell) {
        let wants = self.staged.wants.drain(..);
        let mut refused = 0;
        for (frame, (queue, depth)) in self.staged.frames.drain(..).zip(wants) {
            let flow = flow_of(frame.head()) & FLOW_BITS | depth;
            let arrival = Arrival {
                frame,
                at_ns,
                queue,
                flow,
            };
            refused += u64::from(!self.shaped.ring.push(arrival));
        }
        self.count(DropReason::ShaperRingFull, refused, worker, cell);
        self.owner.nudge();
    }

    /// Counts frames that this worker has dropped for the shaper's sake.
    fn count(&self, reason: DropReason, frames: u64, worker: usize, cell: &Cell) {
        if frames != 0 {
            cell.drop(reason, frames);
            self.counters.of(worker).tx_policed.add(frames);
        }
    }

    /// Throws away what waits, for when the port goes, and says how many frames that were. Every worker empties the ring, since others may have sent after the owner let go.
    pub fn close(&mut self, cell: &Cell) -> u64 {
        let ring = std::iter::from_fn(|| self.shaped.ring.pop()).count();
        let core = if self.mine {
            self.shaped.core(cell)
        } else {
            None
        };
        let waiting = core.map_or(0, |mut core| core.shaper.empty().len());
        (ring + waiting + self.discard()) as u64
    }

    /// Throws away what is staged.
    pub fn discard(&mut self) -> usize {
        self.staged.wants.clear();
        self.staged.frames.drain(..).count()
    }

    /// When the owner has something to do, in nanoseconds of its clock; 0 where it has something already.
    pub fn due_ns(&self) -> Option<u64> {
        if self.shaped.ring.frames.is_empty() && self.shaped.next.is_empty() {
            self.due_ns
        } else {
            Some(0)
        }
    }
}

/// Gives a frame to the shaper, which counts what it refuses. A large TCP frame that would be in the way of others for long goes in segment by segment: then a queue that is full
/// loses a packet and not a window, and nobody waits for 64 KiB.
fn take_in<F: Frame>(shaper: &mut Shaper<F>, place: usize, arrival: Arrival<F>, cell: &Cell) {
    let Arrival {
        frame, at_ns, flow, ..
    } = arrival;
    let len = len_on_the_wire(&frame);
    if !is_long(shaper, place, &frame, len) {
        return drop(shaper.enqueue(place, frame, len, flow, at_ns));
    }
    let mut emit = |segment: F| {
        let len = segment.len() as u32;
        drop(shaper.enqueue(place, segment, len, flow, at_ns));
    };
    match segment(frame, &mut emit) {
        Ok(_) => {}
        Err(SegmentError::NoMemory { .. }) => cell.drop(DropReason::NoBuffer, 1),
        // What is too strange to be cut is nothing that a device could send.
        Err(_) => cell.drop(DropReason::TransmitFailed, 1),
    }
}

/// Whether a frame is a large one of TCP and takes so long that its segments had better go one by one.
#[inline]
fn is_long<F: Frame>(shaper: &Shaper<F>, place: usize, frame: &F, len: u32) -> bool {
    if !matches!(frame.offload().gso, Gso::Tcp4 | Gso::Tcp6) {
        return false;
    }
    let limit_ns = shaper.promise_ns(place).map_or(LONGEST_NS, |promise| {
        (promise / PART_OF_BOUND).min(LONGEST_NS)
    });
    shaper.time_ns(place, len) > limit_ns
}

/// What is behind a shaped patch port for the part of a worker that sends to devices: it never does.
pub(crate) struct NoDevice;

impl<F: Frame> TxQueue<F> for NoDevice {
    fn send(&mut self, frames: &mut Vec<F>) -> TxOutcome {
        TxOutcome {
            failed: frames.drain(..).count() as u64,
            ..TxOutcome::default()
        }
    }
}

/// A frame that a shaped patch port has let go.
pub(crate) struct Released<F> {
    pub slot: u32,
    /// How many patch ports it has passed before this one.
    pub depth: u32,
    pub frame: F,
}

/// What a worker has in hand of frames for shaped ports.
pub(crate) struct Shaping<F> {
    /// Slots of shaped ports that belong to this worker.
    mine: Vec<u32>,
    /// Slots of ports that frames are staged for.
    staging: Vec<u32>,
    /// When the first of them came in this burst; 0 before.
    burst_ns: u64,
    /// Frames just taken from a ring.
    arrivals: Vec<Arrival<F>>,
    /// What patch ports have let go.
    released: Vec<Released<F>>,
}

impl<F: Frame> Shaping<F> {
    pub fn new() -> Shaping<F> {
        Shaping {
            mine: Vec::new(),
            staging: Vec::new(),
            burst_ns: 0,
            arrivals: Vec::with_capacity(BURST),
            released: Vec::new(),
        }
    }

    /// Whether no frame is in hand.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.staging.is_empty()
    }

    /// Whether the owner has to look after ports.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !self.mine.is_empty() || self.has_released()
    }

    #[inline(always)]
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Takes what patch ports have let go.
    pub fn take_released(&mut self) -> Vec<Released<F>> {
        std::mem::take(&mut self.released)
    }

    /// A port belongs to this worker, or no longer.
    pub fn own(&mut self, slot: u32, mine: bool) {
        self.mine.retain(|other| *other != slot);
        if mine {
            self.mine.push(slot);
        }
    }

    /// Frames are staged for a port from now on.
    #[inline]
    fn begin(&mut self, slot: u32) {
        if self.burst_ns == 0 {
            self.burst_ns = monotonic_ns();
        }
        self.staging.push(slot);
    }

    /// Throws away what is in hand, and says how many frames that were.
    pub fn discard(&mut self) -> usize {
        self.staging.clear();
        self.arrivals.drain(..).count() + self.released.drain(..).count()
    }
}

impl<F: Frame> Egress<F> {
    /// Puts a frame, which may name a queue and has passed so many patch ports, on its way to a shaped port.
    #[inline]
    pub fn stage(&mut self, slot: u32, frame: F, queue: Option<u32>, depth: u32, cell: &Cell) {
        let Some(way) = self.way(slot) else {
            // Its shaping has just ended.
            return self.leave(slot, frame, depth, cell);
        };
        way.staged.frames.push(frame);
        way.staged.wants.push((queue, depth));
        match way.staged.frames.len() {
            1 => self.shaping.begin(slot),
            BURST.. => self.admit_staged(slot, cell),
            _ => {}
        }
    }

    /// The same for all of `frames`, which name no queue and go to a device.
    #[inline]
    pub fn stage_burst(&mut self, slot: u32, frames: &mut Vec<F>, cell: &Cell) {
        match self.way(slot) {
            Some(way) if way.staged.frames.is_empty() && !frames.is_empty() => {
                std::mem::swap(&mut way.staged.frames, frames);
                let count = way.staged.frames.len();
                way.staged.wants.resize(count, (None, 0));
                self.shaping.begin(slot);
            }
            _ => {
                let frames = frames.drain(..);
                frames.for_each(|frame| self.stage(slot, frame, None, 0, cell));
            }
        }
    }

    /// A frame leaves a port that is shaped, or was.
    #[inline]
    fn leave(&mut self, slot: u32, frame: F, depth: u32, cell: &Cell) {
        if self.has_device(slot) {
            self.push(slot, frame, cell);
        } else {
            let released = Released { slot, depth, frame };
            self.shaping.released.push(released);
        }
    }

    /// Brings what this burst has sent to shaped ports on its way.
    #[cold]
    pub fn admit(&mut self, cell: &Cell) {
        while let Some(slot) = self.shaping.staging.pop() {
            self.admit_staged(slot, cell);
        }
        self.shaping.burst_ns = 0;
    }

    fn admit_staged(&mut self, slot: u32, cell: &Cell) {
        let (now_ns, worker) = (self.shaping.burst_ns, self.worker());
        let Some(way) = self.way(slot) else {
            return;
        };
        if way.staged.frames.is_empty() {
            return;
        }
        if !way.mine {
            return way.hand_over(now_ns, worker, cell);
        }
        let shaped = Arc::clone(&way.shaped);
        let Some(mut core) = shaped.core(cell) else {
            // The former owner is still at it.
            return way.hand_over(now_ns, worker, cell);
        };
        let before = core.shaper.dropped();
        self.admit_ring(&shaped.ring, &mut core.shaper, cell);
        self.admit_own(slot, &mut core.shaper, now_ns, cell);
        let dropped = core.shaper.dropped() - before;
        if let Some(way) = self.way(slot) {
            way.count(DropReason::Shaped, dropped, worker, cell);
            way.due_ns = core.shaper.next_departure_ns();
        }
        self.flush_port(slot, cell);
    }

    /// Takes in what others have sent.
    fn admit_ring(&mut self, ring: &Ring<F>, shaper: &mut Shaper<F>, cell: &Cell) {
        let arrivals = &mut self.shaping.arrivals;
        for _ in 0..RING / BURST {
            if ring.frames.is_empty() {
                break;
            }
            arrivals.extend(std::iter::from_fn(|| ring.pop()).take(BURST));
            let mut places = [0; BURST];
            for (place, arrival) in places.iter_mut().zip(&*arrivals) {
                *place = shaper.place_of(arrival.queue);
                shaper.prefetch(*place);
            }
            for (place, arrival) in places.iter().zip(&*arrivals) {
                shaper.prefetch_flow(*place, arrival.flow);
            }
            for (place, arrival) in places.iter().zip(arrivals.drain(..)) {
                take_in(shaper, *place, arrival, cell);
            }
        }
    }

    /// Takes in what this worker has staged; frames that need not wait leave at once.
    fn admit_own(&mut self, slot: u32, shaper: &mut Shaper<F>, now_ns: u64, cell: &Cell) {
        let Some(way) = self.way(slot) else {
            return;
        };
        let mut frames = std::mem::take(&mut way.staged.frames);
        let mut wants = std::mem::take(&mut way.staged.wants);
        let patch = way.patch;
        let mut moving = frames.drain(..);
        let mut wanted = wants.drain(..);
        while !moving.as_slice().is_empty() {
            let chunk = Chunk::new(shaper, moving.as_slice(), wanted.as_slice());
            let mut at = 0;
            while at < chunk.count {
                let place = chunk.places[at];
                let end = at + chunk.run(at);
                let lens = chunk.lens[at..end].iter().copied();
                let mut passed = match chunk.long >> at & 1 {
                    0 => shaper.pass(place, lens, now_ns),
                    _ => 0,
                };
                for index in at..end {
                    let (Some(frame), Some((_, depth))) = (moving.next(), wanted.next()) else {
                        break;
                    };
                    if passed > 0 {
                        passed -= 1;
                        match patch {
                            false => self.push(slot, frame, cell),
                            true => self.leave(slot, frame, depth, cell),
                        }
                        continue;
                    }
                    let flow = match chunk.flows {
                        Some(flows) => flows[index],
                        None => flow_of(frame.head()),
                    };
                    let arrival = Arrival {
                        frame,
                        at_ns: now_ns,
                        queue: None,
                        flow: flow & FLOW_BITS | depth,
                    };
                    take_in(shaper, place, arrival, cell);
                }
                at = end;
            }
        }
        drop((moving, wanted));
        if let Some(way) = self.way(slot) {
            (way.staged.frames, way.staged.wants) = (frames, wants);
        }
    }

    /// The owner's part of a turn: takes frames in and lets frames go, for each port that is its own.
    #[cold]
    pub fn serve(&mut self, cell: &Cell) {
        let mut now_ns = 0;
        for at in 0..self.shaping.mine.len() {
            let slot = self.shaping.mine[at];
            let Some(due_ns) = self.way_of(slot).and_then(Way::due_ns) else {
                continue;
            };
            if now_ns == 0 {
                now_ns = monotonic_ns();
            }
            if due_ns <= now_ns {
                self.serve_port(slot, cell);
            }
        }
    }

    fn serve_port(&mut self, slot: u32, cell: &Cell) {
        let Some(shaped) = self.way(slot).map(|way| Arc::clone(&way.shaped)) else {
            return;
        };
        let Some(mut core) = shaped.core(cell) else {
            return;
        };
        if let Some(next) = shaped.next.pop() {
            shaped.install(&mut core, next);
        }
        let shaper = &mut core.shaper;
        let before = shaper.dropped();
        self.admit_ring(&shaped.ring, shaper, cell);
        for _ in 0..BURSTS {
            if self.depart(slot, shaper, &shaped.late_sent, cell) < BURST {
                break;
            }
        }
        let (dropped, due) = (shaper.dropped() - before, shaper.next_departure_ns());
        let worker = self.worker();
        if let Some(way) = self.way(slot) {
            way.count(DropReason::Shaped, dropped, worker, cell);
            way.due_ns = due;
        }
    }

    /// Sends a batch of what may leave; how many frames that were.
    fn depart(
        &mut self,
        slot: u32,
        shaper: &mut Shaper<F>,
        late_sent: &AtomicU64,
        cell: &Cell,
    ) -> usize {
        let now_ns = monotonic_ns();
        let mut count = 0;
        // How much longer frames may take, of those with a bound.
        let mut left_ns = [u64::MAX; BURST];
        let mut least_ns = u64::MAX;
        while count < BURST
            && let Some(mut gone) = shaper.dequeue(now_ns)
        {
            if let Some(promise_ns) = shaper.promise_ns(gone.queue) {
                left_ns[count] = (promise_ns + BATCH_NS).saturating_sub(gone.waited_ns);
                least_ns = least_ns.min(left_ns[count]);
            }
            if gone.mark {
                mark(&mut gone.handle);
            }
            self.leave(slot, gone.handle, gone.flow & !FLOW_BITS, cell);
            count += 1;
        }
        self.flush_port(slot, cell);
        if least_ns != u64::MAX {
            let took_ns = monotonic_ns().saturating_sub(now_ns);
            if took_ns > least_ns {
                let late = left_ns.iter().filter(|left| took_ns > **left).count();
                late_sent.fetch_add(late as u64, Ordering::Relaxed);
            }
        }
        count
    }

    /// A port is no longer shaped: what waits leaves at once.
    pub fn unshape(&mut self, slot: u32, cell: &Cell) {
        let Some(way) = self.take_way(slot) else {
            return;
        };
        if way.mine
            && let Some(mut core) = way.shaped.core(cell)
        {
            for (frame, flow) in core.shaper.empty() {
                self.leave(slot, frame, flow & !FLOW_BITS, cell);
            }
            while let Some(arrival) = way.shaped.ring.pop() {
                self.leave(slot, arrival.frame, arrival.flow & !FLOW_BITS, cell);
            }
            drop(core);
            self.flush_port(slot, cell);
        }
    }

    /// Nanoseconds until a port of this worker's own has something to do, at least [`NAP_NS`]; none when none will.
    pub fn shaped_in_ns(&self) -> Option<u64> {
        let ways = self.shaping.mine.iter();
        let ways = ways.filter_map(|slot| self.way_of(*slot));
        let due = ways.filter_map(Way::due_ns).min()?;
        Some(due.saturating_sub(monotonic_ns()).max(NAP_NS))
    }

    /// Whether another worker has left something.
    pub fn shaped_waits(&self) -> bool {
        let ways = self.shaping.mine.iter();
        let mut ways = ways.filter_map(|slot| self.way_of(*slot));
        ways.any(|way| way.due_ns() == Some(0) && way.due_ns != Some(0))
    }
}

/// What is to be known of staged frames before they are taken in, a burst of them at most.
struct Chunk {
    count: usize,
    places: [usize; BURST],
    lens: [u32; BURST],
    /// Those that are to be cut, a bit each.
    long: u64,
    /// Their flows, where something waits in the port already, so that they will be asked for.
    flows: Option<[u32; BURST]>,
}

impl Chunk {
    fn new<F: Frame>(shaper: &Shaper<F>, frames: &[F], wants: &[(Option<u32>, u32)]) -> Chunk {
        let mut chunk = Chunk {
            count: frames.len().min(BURST),
            places: [0; BURST],
            lens: [0; BURST],
            long: 0,
            flows: None,
        };
        let mut last = (None, usize::MAX);
        for (at, (frame, (queue, _))) in frames.iter().zip(wants).take(BURST).enumerate() {
            let len = len_on_the_wire(frame);
            if last.1 == usize::MAX || last.0 != *queue {
                last = (*queue, shaper.place_of(*queue));
                shaper.prefetch(last.1);
            }
            (chunk.places[at], chunk.lens[at]) = (last.1, len);
            chunk.long |= u64::from(is_long(shaper, last.1, frame, len)) << at;
        }
        if shaper.waiting() != 0 {
            let mut flows = [0; BURST];
            for (at, frame) in frames.iter().take(BURST).enumerate() {
                flows[at] = flow_of(frame.head());
                shaper.prefetch_flow(chunk.places[at], flows[at] & FLOW_BITS);
            }
            chunk.flows = Some(flows);
        }
        chunk
    }

    /// How many frames from this one on are for the same queue, and to be cut or not as this one.
    #[inline]
    fn run(&self, from: usize) -> usize {
        let same = |at: &usize| {
            self.places[*at] == self.places[from] && (self.long >> at ^ self.long >> from) & 1 == 0
        };
        (from..self.count).take_while(same).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_room_in_the_ring() {
        let ring = Ring::new();
        let arrival = |queue| Arrival {
            frame: (),
            at_ns: 0,
            queue: Some(queue),
            flow: 0,
        };
        for flooded in 1..=5 {
            let taken = (0..RING).filter(|_| ring.push(arrival(flooded))).count();
            assert!(taken >= RING / 64, "{taken} of queue {flooded}");
            let quiet = 100 + flooded;
            assert!(ring.push(arrival(quiet)), "with {flooded} floods");
        }
        let left = std::iter::from_fn(|| ring.pop()).count();
        assert!(left > RING / 2 && left <= RING, "{left}");
        let shares = ring.shares.iter();
        assert!(
            shares
                .into_iter()
                .all(|share| share.load(Ordering::Relaxed) == 0)
        );
    }
}
