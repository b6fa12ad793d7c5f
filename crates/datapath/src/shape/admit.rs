//! How frames enter a shaped port: staged during a burst, sent past the shaper where they need not
//! wait, queued in it otherwise.

use super::inspect::{flow_of, len_on_the_wire};
use super::ring::{Arrival, RING, Ring};
use super::sender::Released;
use super::{FLOW_BITS, LONGEST_NS, PART_OF_BOUND};
use crate::counters::{Cell, DropReason};
use crate::forward::Egress;
use packet::Frame;
use packet::frame::Gso;
use packet::io::BURST;
use packet::segment::{SegmentError, segment};
use qos::shaper::Shaper;
use stages::Stage;
use std::sync::Arc;

impl<F: Frame> Egress<F> {
    /// Stages a frame for a shaped port. It may name a queue, and has passed `depth` patch ports.
    #[inline]
    pub fn stage(&mut self, slot: u32, frame: F, queue: Option<u32>, depth: u32, cell: &Cell) {
        let Some(sender) = self.sender(slot) else {
            // Shaping of the port has just ended.
            return self.leave(slot, frame, depth, cell);
        };
        sender.staged.frames.push(frame);
        sender.staged.wants.push((queue, depth));
        match sender.staged.frames.len() {
            1 => self.shaping.begin(slot),
            BURST.. => self.admit_staged(slot, cell),
            _ => {}
        }
    }

    /// Stages all of `frames`, which name no queue and go to a device.
    #[inline]
    pub fn stage_burst(&mut self, slot: u32, frames: &mut Vec<F>, cell: &Cell) {
        match self.sender(slot) {
            Some(sender) if sender.staged.frames.is_empty() && !frames.is_empty() => {
                std::mem::swap(&mut sender.staged.frames, frames);
                let count = sender.staged.frames.len();
                sender.staged.wants.resize(count, (None, 0));
                self.shaping.begin(slot);
            }
            _ => {
                let frames = frames.drain(..);
                frames.for_each(|frame| self.stage(slot, frame, None, 0, cell));
            }
        }
    }

    /// Sends a frame out of a port that is shaped, or was.
    #[inline]
    pub(super) fn leave(&mut self, slot: u32, frame: F, depth: u32, cell: &Cell) {
        if self.has_device(slot) {
            self.push(slot, frame, cell);
        } else {
            let released = Released { slot, depth, frame };
            self.shaping.released.push(released);
        }
    }

    /// Moves what this burst has staged for shaped ports to their shapers or rings.
    #[cold]
    pub fn admit(&mut self, cell: &Cell) {
        let _stage = stages::enter(Stage::Queue, 0);
        while let Some(slot) = self.shaping.staging.pop() {
            self.admit_staged(slot, cell);
        }
        self.shaping.burst_ns = 0;
    }

    fn admit_staged(&mut self, slot: u32, cell: &Cell) {
        let (now_ns, worker) = (self.shaping.burst_ns, self.worker());
        let Some(sender) = self.sender(slot) else {
            return;
        };
        if sender.staged.frames.is_empty() {
            return;
        }
        stages::add_packets(Stage::Queue, sender.staged.frames.len());
        if !sender.mine {
            let frames = sender.staged.frames.len() as u64;
            sender.hand_over(now_ns, worker, cell);
            self.shaping.handed_over += frames;
            return;
        }
        let shaped = Arc::clone(&sender.shaped);
        let Some(mut core) = shaped.core(cell) else {
            // The former owner still holds the shaper.
            return sender.hand_over(now_ns, worker, cell);
        };
        let before = core.shaper.dropped();
        self.admit_ring(&shaped.ring, &mut core.shaper, cell);
        self.admit_own(slot, &mut core.shaper, now_ns, cell);
        let dropped = core.shaper.dropped() - before;
        if let Some(sender) = self.sender(slot) {
            sender.count(DropReason::Shaped, dropped, worker, cell);
        }
        self.flush_port(slot, cell);
    }

    /// Queues in the shaper what other workers have put into the ring.
    pub(super) fn admit_ring(&mut self, ring: &Ring<F>, shaper: &mut Shaper<F>, cell: &Cell) {
        let arrivals = &mut self.shaping.arrivals;
        for _ in 0..RING / BURST {
            if ring.is_empty() {
                break;
            }
            arrivals.extend(std::iter::from_fn(|| ring.pop()).take(BURST));
            self.shaping.handed += arrivals.len() as u64;
            let mut places = [0; BURST];
            let mut flows = [0; BURST];
            for (at, arrival) in arrivals.iter().enumerate() {
                places[at] = shaper.place_of(arrival.queue);
                flows[at] = arrival.flow;
            }
            let mut moving = arrivals.drain(..);
            let packet = |at| (places[at], flows[at]);
            shaper.take_in_burst(moving.len(), packet, |shaper, at| {
                if let Some(arrival) = moving.next() {
                    take_in(shaper, places[at], arrival, cell);
                }
            });
        }
    }

    /// Queues what this worker has staged; frames that need not wait leave at once.
    fn admit_own(&mut self, slot: u32, shaper: &mut Shaper<F>, now_ns: u64, cell: &Cell) {
        let Some(sender) = self.sender(slot) else {
            return;
        };
        let mut frames = std::mem::take(&mut sender.staged.frames);
        let mut wants = std::mem::take(&mut sender.staged.wants);
        let patch = sender.patch;
        let mut first = None;
        if !patch && shaper.waiting() == 0 {
            let chunk = Chunk::new(shaper, &frames, &wants);
            if chunk.count == frames.len() && chunk.passes(shaper, now_ns) {
                wants.clear();
                self.push_burst(slot, &mut frames, None, cell);
            } else {
                first = Some(chunk);
            }
        }
        let mut moving = frames.drain(..);
        let mut wanted = wants.drain(..);
        while !moving.as_slice().is_empty() {
            let chunk = first
                .take()
                .unwrap_or_else(|| Chunk::new(shaper, moving.as_slice(), wanted.as_slice()));
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
                        long: 0,
                    };
                    take_in(shaper, place, arrival, cell);
                }
                at = end;
            }
        }
        drop((moving, wanted));
        if let Some(sender) = self.sender(slot) {
            (sender.staged.frames, sender.staged.wants) = (frames, wants);
        }
    }
}

/// Queues a frame in the shaper, which counts what it drops. A large TCP frame that would delay
/// others for long is segmented first: then a full queue drops a segment and not a whole window,
/// and nobody waits for 64 KiB.
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
        Err(SegmentError::Size) => cell.drop(DropReason::TransmitTinySegments, 1),
        // A frame too malformed to be segmented cannot be sent by a device either.
        Err(_) => cell.drop(DropReason::TransmitFailed, 1),
    }
}

/// Returns whether a frame is a large TCP frame that takes so long to send that it should be
/// segmented.
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

/// Facts about staged frames, at most a burst, collected before they are queued.
struct Chunk {
    count: usize,
    places: [usize; BURST],
    lens: [u32; BURST],
    /// Frames to be segmented, one bit each.
    long: u64,
    /// Their flows, collected only where frames wait in the port already, because only then they
    /// matter.
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

    /// Returns whether all of them may leave at once; they are then charged for.
    #[inline]
    fn passes<F>(&self, shaper: &mut Shaper<F>, now_ns: u64) -> bool {
        let places = self.places[..self.count].iter().copied();
        self.long == 0 && shaper.pass_all(places.zip(self.lens), now_ns)
    }

    /// Returns how many frames from this one on are for the same queue, and alike in whether they
    /// are to be segmented.
    #[inline]
    fn run(&self, from: usize) -> usize {
        let same = |at: &usize| {
            self.places[*at] == self.places[from] && (self.long >> at ^ self.long >> from) & 1 == 0
        };
        (from..self.count).take_while(same).count()
    }
}
