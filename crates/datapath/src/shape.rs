//! Shaped ports: what is sent to one waits in its shaper until its rates let it go.
//!
//! A shaped port belongs to one worker. Every worker puts frames for it into a bounded ring; the owner takes them out once a turn, gives them to the shaper
//! ([`qos::shaper`]) and sends what may leave. Before it sleeps it asks the shaper when something will. Control prepares another shape and leaves it beside the ring, and the owner
//! moves what waits into it. The lock is for the moment at which the owner changes: its owner alone takes it, and does not wait for it.

use crate::clock::monotonic_ns;
use crate::counters::{Cell, DropReason};
use crate::forward::Egress;
use crate::worker::Mailbox;
use crossbeam_queue::ArrayQueue;
use packet::Frame;
use packet::frame::Gso;
use packet::io::BURST;
use packet::segment::{SegmentError, segment};
use qos::shaper::{PortSpec, QueueCounters, Shaper};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// Frames that may wait in a port's ring.
const RING: usize = 4096;
/// Bursts sent in a turn at most, so that a port cannot keep a worker from receiving.
const BURSTS: usize = 8;
/// The shortest sleep for a departure: what falls due meanwhile leaves together. Well within the slack of shapers.
pub(crate) const NAP_NS: u64 = 20_000;

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

/// What a shaper counts, queue by queue, and the queues' numbers.
type Counters = (Vec<u32>, Arc<[QueueCounters]>);

/// A shaped port.
pub(crate) struct Shaped<F: Frame> {
    ring: ArrayQueue<Arrival<F>>,
    /// Another shape, prepared by control.
    next: ArrayQueue<(Shaper<F>, PortSpec)>,
    core: Mutex<(Shaper<F>, PortSpec)>,
    counters: Mutex<Counters>,
    late_sent: AtomicU64,
}

fn counters_of<F>(shaper: &Shaper<F>) -> Counters {
    (shaper.queues().to_vec(), Arc::clone(shaper.counters()))
}

impl<F: Frame> Shaped<F> {
    /// An empty one.
    pub fn new(spec: &PortSpec) -> Result<Shaped<F>, qos::shaper::SpecError> {
        let shaper = Shaper::new(spec, monotonic_ns())?;
        Ok(Shaped {
            ring: ArrayQueue::new(RING),
            next: ArrayQueue::new(1),
            counters: Mutex::new(counters_of(&shaper)),
            core: Mutex::new((shaper, spec.clone())),
            late_sent: AtomicU64::new(0),
        })
    }

    /// Prepares another shape, which the owner puts into place at its next turn.
    pub fn change(&self, spec: &PortSpec) -> Result<(), qos::shaper::SpecError> {
        let shaper = Shaper::new(spec, monotonic_ns())?;
        drop(self.next.force_push((shaper, spec.clone())));
        Ok(())
    }

    /// What each queue has done: its number and counts.
    pub fn totals(&self) -> Vec<(u32, qos::shaper::QueueTotals)> {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let totals = counters.1.iter().map(QueueCounters::totals);
        counters.0.iter().copied().zip(totals).collect()
    }

    /// Frames that were handed to the device later than their queue's bound promises: the bound, the timer's slack and [`BATCH_NS`]. Only a worker that was stopped meanwhile sends so.
    pub fn late_sent(&self) -> u64 {
        self.late_sent.load(Ordering::Relaxed)
    }

    /// Packets that all its queues have dropped.
    pub fn dropped(&self) -> u64 {
        let counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = counters.1.iter();
        queues.map(|queue| queue.totals().dropped_packets()).sum()
    }

    fn install(&self, core: &mut (Shaper<F>, PortSpec), next: (Shaper<F>, PortSpec)) {
        let old = std::mem::replace(core, next);
        core.0.adopt(old.0, monotonic_ns());
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner) = counters_of(&core.0);
    }

    /// The shaper, for its owner; none while the former owner is still at it. A shaper in which a worker failed is replaced by an empty one.
    fn core(&self) -> Option<MutexGuard<'_, (Shaper<F>, PortSpec)>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => {
                let mut core = poisoned.into_inner();
                let spec = core.1.clone();
                if let Ok(shaper) = Shaper::new(&spec, monotonic_ns()) {
                    *core = (shaper, spec);
                    *self.counters.lock().unwrap_or_else(PoisonError::into_inner) =
                        counters_of(&core.0);
                }
                self.core.clear_poison();
                Some(core)
            }
        }
    }
}

/// A worker's way to a shaped port.
pub(crate) struct Way<F: Frame> {
    pub shaped: Arc<Shaped<F>>,
    /// Whom the port belongs to.
    pub owner: Arc<Mailbox<F>>,
    /// Whether that is the worker itself.
    pub mine: bool,
    /// When the next frame may leave, as the owner knows.
    due_ns: Option<u64>,
}

impl<F: Frame> Way<F> {
    pub fn new(shaped: Arc<Shaped<F>>, owner: Arc<Mailbox<F>>, mine: bool) -> Way<F> {
        Way {
            shaped,
            owner,
            mine,
            due_ns: Some(0),
        }
    }

    /// Puts a frame on its way.
    pub fn push(&self, frame: F, queue: Option<u32>, at_ns: u64, cell: &Cell) {
        let flow = flow_of(frame.head());
        let arrival = Arrival {
            frame,
            at_ns,
            queue,
            flow,
        };
        if self.shaped.ring.push(arrival).is_err() {
            return cell.drop(DropReason::ShaperRingFull, 1);
        }
        if !self.mine {
            self.owner.nudge();
        }
    }

    /// Frames that are waiting anywhere, for when the port goes.
    pub fn waiting(&self) -> usize {
        self.shaped.ring.len() + self.shaped.core().map_or(0, |core| core.0.waiting())
    }

    /// When the owner has something to do, in nanoseconds of its clock; 0 where it has something already.
    pub fn due_ns(&self) -> Option<u64> {
        if self.shaped.ring.is_empty() && self.shaped.next.is_empty() {
            self.due_ns
        } else {
            Some(0)
        }
    }
}

/// Gives a frame to the shaper, which counts what it refuses. A large TCP frame that would be in the way of others for long goes in segment by segment: then a queue that is full
/// loses a packet and not a window, and nobody waits for 64 KiB.
fn take_in<F: Frame>(shaper: &mut Shaper<F>, arrival: Arrival<F>, cell: &Cell) {
    let Arrival {
        frame,
        at_ns,
        queue,
        flow,
    } = arrival;
    let place = shaper.place_of(queue);
    let len = len_on_the_wire(&frame);
    let offload = frame.offload();
    if !matches!(offload.gso, Gso::Tcp4 | Gso::Tcp6) || !is_long(shaper, place, len) {
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

/// Whether a frame takes so long that its segments had better go one by one.
fn is_long<F>(shaper: &Shaper<F>, place: usize, len: u32) -> bool {
    let limit_ns = shaper.promise_ns(place).map_or(LONGEST_NS, |promise| {
        (promise / PART_OF_BOUND).min(LONGEST_NS)
    });
    shaper.time_ns(place, len) > limit_ns
}

/// Bytes of a frame once it has been cut: each segment of a TCP frame has headers of its own.
fn len_on_the_wire<F: Frame>(frame: &F) -> u32 {
    let (len, offload) = (frame.len(), frame.offload());
    let segment = usize::from(offload.gso_size);
    let start = usize::from(offload.csum_start);
    let header = match offload.gso {
        Gso::None => return len as u32,
        Gso::Tcp4 | Gso::Tcp6 => {
            let mut offset = [0];
            if !frame.read_at(start + 12, &mut offset) {
                return len as u32;
            }
            start + usize::from(offset[0] >> 4) * 4
        }
        Gso::UdpL4 => start + 8,
    };
    let segments = len.saturating_sub(header).div_ceil(segment.max(1)).max(1);
    (len + (segments - 1) * header) as u32
}

impl<F: Frame> Egress<F> {
    /// The owner's part of a turn: takes frames in and lets frames go, for each port that is its own.
    #[cold]
    pub fn serve(&mut self, cell: &Cell) {
        for at in 0..self.mine.len() {
            self.serve_port(self.mine[at], cell);
        }
    }

    fn serve_port(&mut self, slot: u32, cell: &Cell) {
        let Some(shaped) = self.way(slot).map(|way| Arc::clone(&way.shaped)) else {
            return;
        };
        let Some(mut core) = shaped.core() else {
            return;
        };
        if let Some(next) = shaped.next.pop() {
            shaped.install(&mut core, next);
        }
        let shaper = &mut core.0;
        let before = shaper.dropped();
        for arrival in std::iter::from_fn(|| shaped.ring.pop()).take(RING) {
            take_in(shaper, arrival, cell);
        }
        for _ in 0..BURSTS {
            if self.depart(slot, shaper, &shaped.late_sent, cell) < BURST {
                break;
            }
        }
        cell.drop(DropReason::Shaped, shaper.dropped() - before);
        let due = shaper.next_departure_ns();
        drop(core);
        if let Some(way) = self.way(slot) {
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
            self.push(slot, gone.handle, cell);
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
            && let Some(mut core) = way.shaped.core()
        {
            for frame in core.0.empty() {
                self.push(slot, frame, cell);
            }
            while let Some(arrival) = way.shaped.ring.pop() {
                self.push(slot, arrival.frame, cell);
            }
            drop(core);
            self.flush_port(slot, cell);
        }
    }

    /// Nanoseconds until a port of this worker's own has something to do, at least [`NAP_NS`]; none when none will.
    pub fn shaped_in_ns(&self) -> Option<u64> {
        let ways = self.mine.iter().filter_map(|slot| self.way_of(*slot));
        let due = ways.filter_map(Way::due_ns).min()?;
        Some(due.saturating_sub(monotonic_ns()).max(NAP_NS))
    }

    /// Whether another worker has left something.
    pub fn shaped_waits(&self) -> bool {
        let mut ways = self.mine.iter().filter_map(|slot| self.way_of(*slot));
        ways.any(|way| way.due_ns() == Some(0) && way.due_ns != Some(0))
    }
}

/// A hash that the frames of one flow share: addresses, protocol and ports of IPv4 and IPv6, behind up to two VLAN tags; the Ethernet header of others.
fn flow_of(bytes: &[u8]) -> u32 {
    let mut at = 12;
    let mut kind = be16(bytes, at);
    while at < 20 && matches!(kind, 0x8100 | 0x88a8) {
        at += 4;
        kind = be16(bytes, at);
    }
    let ip = at + 2;
    let part = match kind {
        0x0800 => {
            let fragment = be16(bytes, ip + 6) & 0x3fff != 0;
            let header = usize::from(bytes.get(ip).map_or(0, |first| first & 15)) * 4;
            // Fragments have no ports but the first, and stay together without.
            let ports = if fragment { 0 } else { 4 };
            return mix(
                mix(0, bytes.get(ip + 12..ip + 20)),
                bytes.get(ip + header..ip + header + ports),
            );
        }
        0x86dd => ip + 8..ip + 44,
        _ => 0..14,
    };
    mix(0, bytes.get(part))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |two| u16::from_be_bytes([two[0], two[1]]))
}

fn mix(start: u32, bytes: Option<&[u8]>) -> u32 {
    let words = bytes.unwrap_or_default().chunks_exact(4);
    words.fold(start, |hash, word| {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        (hash.rotate_left(5) ^ word).wrapping_mul(0x27d4_eb2d)
    })
}

/// Says to a sender that takes part (RFC 3168) that its packet met a queue.
fn mark<F: Frame>(frame: &mut F) {
    let bytes = frame.head_mut();
    let mut at = 12;
    while at < 20 && matches!(be16(bytes, at), 0x8100 | 0x88a8) {
        at += 4;
    }
    let (kind, ip) = (be16(bytes, at), at + 2);
    let Some(header) = bytes.get_mut(ip..ip + 20) else {
        return;
    };
    match kind {
        0x0800 if matches!(header[1] & 3, 1 | 2) => {
            // RFC 1624: HC' = ~(~HC + ~m + m').
            let old = u32::from(be16(header, 0));
            header[1] |= 3;
            let new = u32::from(be16(header, 0));
            let mut sum = u32::from(!be16(header, 10)) + (!old & 0xffff) + new;
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        }
        0x86dd if matches!(header[1] >> 4 & 3, 1 | 2) => header[1] |= 0x30,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packet::build::Builder;

    fn ip(ports: u16) -> Vec<u8> {
        Builder::ethernet([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1])
            .ipv4(0x0a00_0001, 0x0a00_0002)
            .udp(ports, 9)
            .payload(&[0; 18])
            .bytes()
    }

    #[test]
    fn flows_are_told_apart_by_their_addresses_and_ports() {
        assert_eq!(flow_of(&ip(5)), flow_of(&ip(5)));
        assert_ne!(flow_of(&ip(5)), flow_of(&ip(6)));
        let mut other = ip(5);
        other[29] ^= 1;
        assert_ne!(flow_of(&ip(5)), flow_of(&other));
        for len in 0..60 {
            flow_of(&ip(5)[..len]);
        }
    }
}
