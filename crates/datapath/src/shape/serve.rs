//! How frames leave a shaped port: its owner sends what may leave once a turn, and wakes when the
//! next frame falls due.

use super::inspect::mark;
use super::sender::ShapedSender;
use super::{BATCH_NS, FLOW_BITS};
use crate::clock::monotonic_ns;
use crate::counters::{Cell, DropReason};
use crate::forward::Egress;
use packet::Frame;
use packet::io::BURST;
use qos::shaper::Shaper;
use stages::Stage;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most bursts sent in a turn, so that a port cannot keep a worker from receiving.
const BURSTS: usize = 8;
/// A port that has been sending for this long in a turn, in nanoseconds, continues in the next.
const TURN_NS: u64 = 50_000;
/// The shortest sleep before a departure: frames that fall due meanwhile leave together. Well
/// within the slack of shapers.
const NAP_NS: u64 = 20_000;

impl<F: Frame> Egress<F> {
    /// Does the owner's part of a turn for each port that it owns: queues frames and sends what may
    /// leave.
    #[cold]
    pub fn serve(&mut self, cell: &Cell) {
        let _stage = stages::enter(Stage::Queue, 0);
        let mut now_ns = 0;
        for at in 0..self.shaping.mine.len() {
            let slot = self.shaping.mine[at];
            let Some(due_ns) = self.sender_of(slot).and_then(ShapedSender::due_ns) else {
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
        let Some(sender) = self.sender(slot) else {
            return;
        };
        if sender.ending {
            return self.unshape(slot, cell);
        }
        let shaped = Arc::clone(&sender.shaped);
        let Some(mut core) = shaped.core(cell) else {
            return;
        };
        if let Some(next) = shaped.next.pop() {
            shaped.install(&mut core, next);
        }
        let shaper = &mut core.shaper;
        let before = shaper.dropped();
        self.admit_ring(&shaped.ring, shaper, cell);
        let begin_ns = monotonic_ns();
        for _ in 0..BURSTS {
            let count = self.depart(slot, shaper, &shaped.late_sent, cell);
            if count < BURST || monotonic_ns() - begin_ns > TURN_NS {
                break;
            }
        }
        let dropped = shaper.dropped() - before;
        let worker = self.worker();
        if let Some(sender) = self.sender(slot) {
            sender.count(DropReason::Shaped, dropped, worker, cell);
        }
    }

    /// Sends a batch of what may leave; returns the number of frames.
    fn depart(
        &mut self,
        slot: u32,
        shaper: &mut Shaper<F>,
        late_sent: &AtomicU64,
        cell: &Cell,
    ) -> usize {
        let now_ns = monotonic_ns();
        let mut count = 0;
        // Time left of each frame's bound, for frames that have one.
        let mut left_ns = [u64::MAX; BURST];
        let mut least_ns = u64::MAX;
        while count < BURST
            && let Some(mut gone) = shaper.dequeue(now_ns)
        {
            self.shaping.note_wait(gone.waited_ns);
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

    /// Ends a port's shaping: what waits leaves at once, or as soon as no former owner holds the
    /// shaper.
    ///
    /// The owner is told last, so that what others have sent is in the ring before. A worker that
    /// is told even later, because its turn was long, sends itself what it has put there.
    pub fn unshape(&mut self, slot: u32, cell: &Cell) {
        let Some(sender) = self.sender(slot) else {
            return;
        };
        let shaped = Arc::clone(&sender.shaped);
        if sender.mine || shaped.due.has_ended() {
            let Some(mut core) = shaped.core(cell) else {
                sender.ending = true;
                return self.shaping.own(slot, true);
            };
            shaped.due.end();
            for (frame, flow) in core.shaper.empty() {
                self.leave(slot, frame, flow & !FLOW_BITS, cell);
            }
            while let Some(arrival) = shaped.ring.pop() {
                self.leave(slot, arrival.frame, arrival.flow & !FLOW_BITS, cell);
            }
            drop(core);
            self.flush_port(slot, cell);
        }
        self.take_sender(slot);
    }

    /// Iterates over the senders to shaped ports that this worker owns.
    fn own_senders(&self) -> impl Iterator<Item = &ShapedSender<F>> {
        let slots = self.shaping.mine.iter();
        slots.filter_map(|slot| self.sender_of(*slot))
    }

    /// Returns the nanoseconds until a port that this worker owns has something to do: 0 for now,
    /// else at least [`NAP_NS`]; None for never.
    pub fn shaped_in_ns(&self) -> Option<u64> {
        let due = self.own_senders().filter_map(ShapedSender::due_ns).min()?;
        match due.saturating_sub(monotonic_ns()) {
            0 => Some(0),
            left_ns => Some(left_ns.max(NAP_NS)),
        }
    }

    /// Returns whether a queue of a port that this worker owns has a bound.
    pub fn shapes_with_bounds(&self) -> bool {
        self.own_senders()
            .any(|sender| sender.shaped.bounded.load(Ordering::Relaxed))
    }
}
