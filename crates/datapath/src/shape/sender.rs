//! A worker's senders to shaped ports: what it has staged for them, and which of them it owns.

use super::inspect::flow_of;
use super::ring::{Arrival, long_bytes};
use super::{FLOW_BITS, Shaped};
use crate::clock::monotonic_ns;
use crate::counters::{Cell, DropReason, PortCounters};
use crate::worker::Mailbox;
use packet::Frame;
use packet::io::{BURST, TxOutcome, TxQueue};
use std::sync::Arc;

/// Frames sent to a shaped port in this burst, in order.
pub(super) struct Staged<F> {
    pub frames: Vec<F>,
    /// For each frame the queue that it names, and the number of patch ports it has passed.
    pub wants: Vec<(Option<u32>, u32)>,
}

/// A worker's sender to a shaped port.
pub(crate) struct ShapedSender<F: Frame> {
    pub(super) shaped: Arc<Shaped<F>>,
    /// The port's counters.
    pub counters: Arc<PortCounters>,
    /// The mailbox of the port's owner.
    owner: Arc<Mailbox<F>>,
    /// Whether the owner is this worker.
    pub mine: bool,
    /// Whether the port is a patch port.
    pub(super) patch: bool,
    pub(super) staged: Staged<F>,
    /// Whether shaping has ended, but a former owner still holds the shaper.
    pub(super) ending: bool,
}

impl<F: Frame> ShapedSender<F> {
    pub fn new(
        shaped: Arc<Shaped<F>>,
        counters: Arc<PortCounters>,
        owner: Arc<Mailbox<F>>,
        mine: bool,
        patch: bool,
    ) -> ShapedSender<F> {
        ShapedSender {
            shaped,
            counters,
            owner,
            mine,
            patch,
            staged: Staged {
                frames: Vec::with_capacity(BURST),
                wants: Vec::with_capacity(BURST),
            },
            ending: false,
        }
    }

    /// Hands what is staged to the port's owner.
    #[cold]
    pub(super) fn hand_over(&mut self, at_ns: u64, worker: usize, cell: &Cell) {
        let wants = self.staged.wants.drain(..);
        let mut refused = 0;
        for (frame, (queue, depth)) in self.staged.frames.drain(..).zip(wants) {
            let flow = flow_of(frame.head()) & FLOW_BITS | depth;
            let arrival = Arrival {
                long: long_bytes(frame.len()),
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

    /// Counts frames that this worker has dropped on behalf of the shaper.
    pub(super) fn count(&self, reason: DropReason, frames: u64, worker: usize, cell: &Cell) {
        if frames != 0 {
            cell.drop(reason, frames);
            self.counters.of(worker).tx_policed.add(frames);
        }
    }

    /// Drops what waits, for when the port is removed, and returns the number of frames. Every
    /// worker calls it, whether owner or not: others may have sent after the owner let go, and a
    /// former owner that has not been told yet may hold the shaper until it lets go itself.
    pub fn close(&mut self, cell: &Cell) -> u64 {
        self.shaped.close(cell) + self.discard() as u64
    }

    /// Drops what is staged; returns the number of frames.
    pub fn discard(&mut self) -> usize {
        self.staged.wants.clear();
        self.staged.frames.drain(..).count()
    }

    /// Returns when the owner has something to do, in nanoseconds of its clock; 0 for now.
    pub fn due_ns(&self) -> Option<u64> {
        let shaped = &self.shaped;
        if shaped.ring.is_empty() && shaped.next.is_empty() && !self.ending {
            shaped.due.get()
        } else {
            Some(0)
        }
    }

    /// Wakes the port's new owner, if that has changed, to serve what this worker has left there
    /// while it took itself or another for the owner.
    pub fn hand_on(&self, from: &ShapedSender<F>) {
        if !Arc::ptr_eq(&self.owner, &from.owner) {
            self.owner.nudge();
        }
    }
}

/// Transmit queue of a shaped patch port, for the code that sends to devices; it is never used to
/// send.
pub(crate) struct NoDevice;

impl<F: Frame> TxQueue<F> for NoDevice {
    fn send(&mut self, frames: &mut Vec<F>) -> TxOutcome {
        TxOutcome {
            failed: frames.drain(..).count() as u64,
            ..TxOutcome::default()
        }
    }
}

/// A frame that has left the shaper of a patch port.
pub(crate) struct Released<F> {
    pub slot: u32,
    /// Number of patch ports it has passed before this one.
    pub depth: u32,
    pub frame: F,
}

/// A worker's frames for shaped ports.
pub(crate) struct Shaping<F> {
    /// Slots of shaped ports that this worker owns.
    pub(super) mine: Vec<u32>,
    /// Slots of ports with staged frames.
    pub(super) staging: Vec<u32>,
    /// When the first of them came in this burst; 0 before.
    pub(super) burst_ns: u64,
    /// How long frames of this burst have waited in the queue by which they came.
    pub waited_ns: u64,
    /// Frames that other workers have sent to shaped ports of this one, and this one to those of
    /// others.
    pub handed: u64,
    pub handed_over: u64,
    /// Whether any port has ever been shaped.
    used: bool,
    /// Scratch memory for frames just taken from a ring.
    pub(super) arrivals: Vec<Arrival<F>>,
    /// Frames that have left shaped patch ports.
    pub(super) released: Vec<Released<F>>,
    /// Shortest wait of frames that have left, in nanoseconds, since it was last taken; `u64::MAX`
    /// where none have.
    shortest_ns: u64,
}

impl<F: Frame> Shaping<F> {
    pub fn new() -> Shaping<F> {
        Shaping {
            mine: Vec::new(),
            staging: Vec::new(),
            burst_ns: 0,
            waited_ns: 0,
            handed: 0,
            handed_over: 0,
            used: false,
            arrivals: Vec::with_capacity(BURST),
            released: Vec::new(),
            shortest_ns: u64::MAX,
        }
    }

    /// Records the wait of a frame that leaves.
    #[inline(always)]
    pub(super) fn note_wait(&mut self, waited_ns: u64) {
        self.shortest_ns = self.shortest_ns.min(waited_ns);
    }

    /// Returns the shortest wait of frames that have left since the last call, in nanoseconds.
    pub fn take_shortest_ns(&mut self) -> Option<u64> {
        let shortest_ns = std::mem::replace(&mut self.shortest_ns, u64::MAX);
        (shortest_ns != u64::MAX).then_some(shortest_ns)
    }

    /// Returns whether no frames are staged or released.
    #[inline(always)]
    pub fn is_done(&self) -> bool {
        self.staging.is_empty()
    }

    /// Returns whether this worker owns shaped ports.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !self.mine.is_empty() || self.has_released()
    }

    #[inline(always)]
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// Returns the number of frames that have left shaped patch ports.
    pub fn released(&self) -> usize {
        self.released.len()
    }

    /// Takes the frames that have left shaped patch ports.
    pub fn take_released(&mut self) -> Vec<Released<F>> {
        std::mem::take(&mut self.released)
    }

    /// Returns whether there may be shaped ports.
    #[inline(always)]
    pub fn is_used(&self) -> bool {
        self.used
    }

    /// Records that a port is shaped, by this worker or another.
    pub fn begin_use(&mut self) {
        self.used = true;
    }

    /// Records whether this worker owns a port.
    pub fn own(&mut self, slot: u32, mine: bool) {
        self.mine.retain(|other| *other != slot);
        if mine {
            self.mine.push(slot);
        }
    }

    /// Marks a port as having staged frames.
    #[inline]
    pub(super) fn begin(&mut self, slot: u32) {
        if self.burst_ns == 0 {
            self.burst_ns = monotonic_ns().saturating_sub(self.waited_ns).max(1);
        }
        self.staging.push(slot);
    }

    /// Drops what is staged or released, and returns the number of frames.
    pub fn discard(&mut self) -> usize {
        self.staging.clear();
        (self.burst_ns, self.waited_ns) = (0, 0);
        self.arrivals.drain(..).count() + self.released.drain(..).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::WorkerCounters;
    use crate::forward::Egress;
    use crate::packet_in::{PacketInRing, PacketInWake, Teller};
    use crate::shape::room::Room;
    use crate::wake::Wake;
    use packet::HeapFrame;
    use qos::shaper::{PortSpec, QueueSpec};

    const SLOT: u32 = 3;

    /// A worker's output to one port.
    struct Hand {
        egress: Egress<HeapFrame>,
        cell: Cell,
    }

    impl Hand {
        fn new(number: usize) -> Hand {
            let counters: Arc<WorkerCounters> = Arc::default();
            let mut egress = Egress::new(number, counters);
            egress.set(SLOT, Box::new(NoDevice), Arc::default());
            Hand {
                egress,
                cell: Cell::default(),
            }
        }

        /// Tells it whether it owns the port.
        fn learn(&mut self, shaped: &Arc<Shaped<HeapFrame>>, mine: bool) {
            let wake = || Wake::new().expect("a descriptor");
            let teller = Teller::new(Arc::new(PacketInWake::new(wake())));
            let packet_ins = Arc::new(PacketInRing::new(Arc::new(teller)));
            let owner = Arc::new(Mailbox::new("owner".to_owned(), wake(), packet_ins));
            let sender = ShapedSender::new(Arc::clone(shaped), Arc::default(), owner, mine, false);
            self.egress.shape(SLOT, Box::new(sender));
        }

        fn send(&mut self, frames: u64) {
            for number in 0..frames {
                let mut bytes = [0; 60];
                bytes[20..28].copy_from_slice(&number.to_be_bytes());
                let frame = HeapFrame::new(&bytes);
                self.egress.stage(SLOT, frame, None, 0, &self.cell);
            }
            self.egress.flush(&self.cell);
        }

        fn let_go(&mut self) {
            self.egress.take(SLOT, &self.cell);
        }
    }

    /// Creates a port at which nearly all frames wait.
    fn slow() -> Arc<Shaped<HeapFrame>> {
        let mut spec = PortSpec::new(100_000);
        spec.queues = vec![QueueSpec::new(0, 50_000, 100_000)];
        Arc::new(Shaped::new(&spec, &Arc::new(Room::new())).expect("a shape"))
    }

    fn counted(hands: &[Hand; 2]) -> u64 {
        hands.iter().map(|hand| hand.cell.all_drops()).sum()
    }

    /// A worker that has not been told yet that the port has another owner sends to it after that
    /// owner has let go.
    #[test]
    fn frames_sent_to_a_former_owner_are_counted() {
        for told in [false, true] {
            let shaped = slow();
            let mut hands = [Hand::new(0), Hand::new(1)];
            let [former, owner] = &mut hands;
            former.learn(&shaped, true);
            former.send(40);
            owner.learn(&shaped, true);
            owner.let_go();
            former.send(40);
            if told {
                former.learn(&shaped, false);
            }
            former.let_go();
            assert_eq!(counted(&hands), 80);
        }
    }

    /// A worker lets go of the port while its former owner holds the shaper.
    #[test]
    fn frames_waiting_while_a_former_owner_holds_the_shaper_are_counted() {
        let shaped = slow();
        let mut hands = [Hand::new(0), Hand::new(1)];
        let [former, owner] = &mut hands;
        former.learn(&shaped, true);
        former.send(60);
        owner.learn(&shaped, true);
        let at_it = shaped.core(&former.cell).expect("nobody else");
        owner.send(30); // by the ring
        owner.let_go();
        drop(at_it);
        former.learn(&shaped, false);
        former.let_go();
        assert_eq!(counted(&hands), 90);
    }

    /// A former owner that has not been told yet puts frames in after the owner has looked.
    #[test]
    fn the_owner_lets_go_what_a_former_one_has_put_in() {
        let shaped = slow();
        let mut hands = [Hand::new(0), Hand::new(1)];
        let [former, owner] = &mut hands;
        former.learn(&shaped, true);
        owner.learn(&shaped, true);
        owner.egress.serve(&owner.cell);
        assert_eq!(owner.egress.shaped_in_ns(), None, "nothing waits");
        former.send(60);
        former.learn(&shaped, false);
        assert!(owner.egress.shaped_in_ns().is_some(), "some wait");
    }

    /// Shaping ends while a former owner holds the shaper.
    #[test]
    fn waiting_frames_leave_after_shaping_ends_and_the_former_owner_is_done() {
        let shaped = slow();
        let mut hands = [Hand::new(0), Hand::new(1)];
        let [former, owner] = &mut hands;
        former.learn(&shaped, true);
        former.send(60);
        owner.learn(&shaped, true);
        let at_it = shaped.core(&former.cell).expect("nobody else");
        owner.egress.unshape(SLOT, &owner.cell);
        assert_eq!(owner.egress.shaped_in_ns(), Some(0), "it is not done");
        drop(at_it);
        owner.egress.serve(&owner.cell);
        assert_eq!(owner.egress.shaped_in_ns(), None);
        // The device loses all that leaves.
        assert_eq!(counted(&hands), 60);
    }

    /// A worker is told late that shaping has ended.
    #[test]
    fn frames_sent_after_shaping_has_ended_leave_too() {
        let shaped = slow();
        let mut hands = [Hand::new(0), Hand::new(1)];
        let [other, owner] = &mut hands;
        other.learn(&shaped, false);
        owner.learn(&shaped, true);
        owner.send(60);
        other.send(10);
        owner.egress.unshape(SLOT, &owner.cell);
        other.send(20); // by the ring
        other.egress.unshape(SLOT, &other.cell);
        assert_eq!(counted(&hands), 90);
    }

    /// Ports that are flooded leave room for one that is not, and give back what they had.
    #[test]
    fn ports_share_the_room_for_what_waits() {
        let room = Arc::new(Room::new());
        room.limit(300);
        let mut spec = PortSpec::new(100_000);
        spec.queues = vec![QueueSpec::new(0, 50_000, 100_000)];
        let ports: Vec<_> = (0..4)
            .map(|_| Arc::new(Shaped::new(&spec, &room).expect("a shape")))
            .collect();
        let mut hands: Vec<_> = ports.iter().map(|_| Hand::new(0)).collect();
        let mut waiting = Vec::new();
        for (hand, port) in hands.iter_mut().zip(&ports) {
            hand.learn(port, true);
            for _ in 0..20 {
                hand.send(32);
            }
            waiting.push(port.core(&hand.cell).expect("nobody else").shaper.waiting());
        }
        assert!(waiting.iter().all(|frames| *frames >= 6), "{waiting:?}");
        assert!((120..=200).contains(&waiting[0]), "{waiting:?}");
        assert_eq!(waiting.iter().sum::<usize>() as u64, room.used());
        assert!(room.used() < 300);
        for hand in &mut hands {
            hand.let_go();
        }
        assert_eq!(room.used(), 0);
        // What did not wait the device has lost.
        let counted: u64 = hands.iter().map(|hand| hand.cell.all_drops()).sum();
        assert_eq!(counted, 4 * 20 * 32);
    }
}
