//! Moves a flow from one worker to another without reordering or loss.
//!
//! The worker that receives a flow's packets (the sender) puts them into the ring of the worker
//! that processes them. To move the flow:
//!
//! 1. The sender puts a *marker* into the old worker's ring, behind the flow's last packet, and
//!    from then on parks the flow's packets.
//! 2. The old worker tells the sender when it has reached the marker and has finished everything
//!    before it.
//! 3. The sender puts the parked packets, and all that follow, into the new worker's ring.
//!
//! Parking is bounded in packets and in time. At either bound the sender gives up rather than drop
//! packets: the parked ones go into the *old* worker's ring, behind the marker, and the flow stays
//! there. So a flow's packets are always in a single ring, or parked behind it.
//!
//! Moves matter most when the old ring is full, so two things are provided for that. Rings reserve
//! some slots for markers, so a marker need not wait for room among packets. And parking holds as
//! many packets as a ring: while a full ring drains, no more than that arrive of a flow that one
//! core can process at all. Parked packets wait no longer for the marker than they would have
//! waited in the old ring.
//!
//! A packet that finds both its ring and the parking space full is refused; that is the overflow of
//! a full ring, which moving did not cause. `tests/all/handover.rs` tries every order of the steps
//! up to a bound, and shows that packets are reordered without the marker.

use crate::cores::CoreId;
use std::collections::VecDeque;

/// Bounds on parking.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// Most packets that are parked. Default 1,280: what a ring of 1,024 holds, and some bursts.
    /// Callers that move many flows at once must bound their sum as well.
    pub parked: usize,
    /// Time after which a move is given up, ns. Default 100 ms: a ring of 1,024 packets at 66 us
    /// each drains in 68 ms; if it takes longer, the old worker is stuck.
    pub wait_ns: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            parked: 1_280,
            wait_ns: 100_000_000,
        }
    }
}

/// Why a move cannot begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// The previous move is not over.
    #[error("the flow is being moved")]
    Busy,
    /// The flow is on that core already.
    #[error("the flow is on that core")]
    SameCore,
    /// The old worker's ring has no slot for a marker.
    #[error("there is no room for a marker")]
    NoRoom,
}

/// What happened to a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepted {
    /// It is in a ring.
    Sent,
    /// It is parked.
    Parked,
}

/// Counts of how moves ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counters {
    /// The flow reached its new core.
    pub done: u32,
    /// Given up because parking was full.
    pub gave_up_full: u32,
    /// Given up because it took too long.
    pub gave_up_late: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// Packets go to `core`.
    Settled,
    /// Packets are parked until the marker comes back.
    Draining {
        to: CoreId,
        marker: u32,
        since_ns: u64,
    },
    /// Parked packets wait for room in the ring of `core`, and later ones behind them.
    Flushing,
}

/// The handover state of one flow at its sender. `P` is a packet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Handover<P> {
    core: CoreId,
    phase: Phase,
    parked: VecDeque<P>,
    limits: Limits,
    next_marker: u32,
    counters: Counters,
}

impl<P> Handover<P> {
    /// Makes the state of a flow that is on a core.
    pub fn new(core: CoreId, limits: Limits) -> Handover<P> {
        Handover {
            core,
            phase: Phase::Settled,
            parked: VecDeque::new(),
            limits,
            next_marker: 0,
            counters: Counters::default(),
        }
    }

    /// Returns the core that processes the flow. It changes when the old one has finished.
    pub fn core(&self) -> CoreId {
        self.core
    }

    /// Returns the core that the flow is moving to, or else the one that it is on.
    pub fn goes_to(&self) -> CoreId {
        match self.phase {
            Phase::Draining { to, .. } => to,
            Phase::Settled | Phase::Flushing => self.core,
        }
    }

    /// Returns whether no move is going on and nothing is parked.
    pub fn is_settled(&self) -> bool {
        self.phase == Phase::Settled
    }

    /// Returns the number of packets parked.
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Returns how moves ended.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Begins to move the flow. `put_marker` puts a marker with this number into a core's ring, and
    /// returns false if there is no room. When the old worker reaches the marker, its number comes
    /// back through [`Handover::marker_done`].
    ///
    /// # Errors
    ///
    /// Fails if the move cannot begin; nothing is changed.
    pub fn begin(
        &mut self,
        to: CoreId,
        now_ns: u64,
        put_marker: impl FnOnce(CoreId, u32) -> bool,
    ) -> Result<(), BeginError> {
        if self.phase != Phase::Settled {
            return Err(BeginError::Busy);
        }
        if to == self.core {
            return Err(BeginError::SameCore);
        }
        let marker = self.next_marker;
        if !put_marker(self.core, marker) {
            return Err(BeginError::NoRoom);
        }
        self.next_marker = marker.wrapping_add(1);
        self.phase = Phase::Draining {
            to,
            marker,
            since_ns: now_ns,
        };
        Ok(())
    }

    /// Takes a packet of the flow. `put` puts a packet into a core's ring, or returns it if the
    /// ring is full.
    ///
    /// # Errors
    ///
    /// Returns the packet if the ring is full and it cannot be parked.
    pub fn packet(
        &mut self,
        packet: P,
        mut put: impl FnMut(CoreId, P) -> Result<(), P>,
    ) -> Result<Accepted, P> {
        if matches!(self.phase, Phase::Draining { .. }) && self.parked.len() >= self.limits.parked {
            self.counters.gave_up_full += 1;
            self.phase = Phase::Flushing;
        }
        self.flush(&mut put);
        match self.phase {
            Phase::Settled => put(self.core, packet).map(|()| Accepted::Sent),
            _ if self.parked.len() < self.limits.parked => {
                self.parked.push_back(packet);
                Ok(Accepted::Parked)
            }
            _ => Err(packet),
        }
    }

    /// Reports that the old worker has reached a marker, and finished everything before it. Ignores
    /// markers of moves that were given up.
    pub fn marker_done(&mut self, number: u32, put: impl FnMut(CoreId, P) -> Result<(), P>) {
        if let Phase::Draining { to, marker, .. } = self.phase
            && marker == number
        {
            self.core = to;
            self.counters.done += 1;
            self.phase = Phase::Flushing;
            self.flush(put);
        }
    }

    /// Puts parked packets into the ring as far as there is room, and gives up a move that takes
    /// too long. Call it once per turn while the flow is not settled.
    pub fn turn(&mut self, now_ns: u64, put: impl FnMut(CoreId, P) -> Result<(), P>) {
        if let Phase::Draining { since_ns, .. } = self.phase
            && now_ns.saturating_sub(since_ns) >= self.limits.wait_ns
        {
            self.counters.gave_up_late += 1;
            self.phase = Phase::Flushing;
        }
        self.flush(put);
    }

    /// Gives the move up as if parking were full: for callers that move many flows at once and
    /// bound the packets parked in all. Does nothing once the marker has come back.
    pub fn give_up(&mut self, put: impl FnMut(CoreId, P) -> Result<(), P>) {
        if let Phase::Draining { .. } = self.phase {
            self.counters.gave_up_full += 1;
            self.phase = Phase::Flushing;
        }
        self.flush(put);
    }

    /// Returns all parked packets, in order, if there is no core left to send them to. The flow is
    /// settled.
    pub fn abandon(&mut self) -> impl Iterator<Item = P> + use<'_, P> {
        self.phase = Phase::Settled;
        self.parked.drain(..)
    }

    fn flush(&mut self, mut put: impl FnMut(CoreId, P) -> Result<(), P>) {
        if self.phase != Phase::Flushing {
            return;
        }
        while let Some(packet) = self.parked.pop_front() {
            if let Err(packet) = put(self.core, packet) {
                self.parked.push_front(packet);
                return;
            }
        }
        self.phase = Phase::Settled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: CoreId = CoreId(0);
    const NEW: CoreId = CoreId(1);

    fn limits(parked: usize) -> Limits {
        Limits {
            parked,
            ..Limits::default()
        }
    }

    /// Sends a packet to rings that never fill, and returns where it went.
    fn send(flow: &mut Handover<u32>, packet: u32, rings: &mut Vec<(CoreId, u32)>) -> Accepted {
        let put = |core, packet| {
            rings.push((core, packet));
            Ok(())
        };
        flow.packet(packet, put).unwrap()
    }

    #[test]
    fn packets_wait_for_the_marker() {
        let (mut flow, mut rings) = (Handover::new(OLD, limits(4)), Vec::new());
        send(&mut flow, 1, &mut rings);
        flow.begin(NEW, 0, |core, _| core == OLD).unwrap();
        assert_eq!(send(&mut flow, 2, &mut rings), Accepted::Parked);
        assert_eq!(flow.begin(NEW, 0, |_, _| true), Err(BeginError::Busy));
        // Another move's marker.
        flow.marker_done(7, |_, _| unreachable!());
        flow.marker_done(0, |core, packet| {
            rings.push((core, packet));
            Ok(())
        });
        send(&mut flow, 3, &mut rings);
        assert_eq!(rings, [(OLD, 1), (NEW, 2), (NEW, 3)]);
        assert_eq!(flow.counters().done, 1);
        assert_eq!(flow.begin(NEW, 0, |_, _| true), Err(BeginError::SameCore));
        assert_eq!(flow.begin(OLD, 0, |_, _| false), Err(BeginError::NoRoom));
        assert!(flow.is_settled());
    }

    #[test]
    fn full_parking_gives_up_and_drops_nothing() {
        let (mut flow, mut rings) = (Handover::new(OLD, limits(2)), Vec::new());
        flow.begin(NEW, 0, |_, _| true).unwrap();
        for packet in 1..=3 {
            send(&mut flow, packet, &mut rings);
        }
        assert_eq!(rings, [(OLD, 1), (OLD, 2), (OLD, 3)]);
        assert_eq!(flow.core(), OLD);
        assert_eq!(flow.counters().gave_up_full, 1);
        // The marker comes too late.
        flow.marker_done(0, |_, _| unreachable!());
        assert_eq!(flow.core(), OLD);
    }

    #[test]
    fn a_move_that_takes_too_long_is_given_up() {
        let (mut flow, mut rings) = (Handover::new(OLD, limits(9)), Vec::new());
        flow.begin(NEW, 5, |_, _| true).unwrap();
        send(&mut flow, 1, &mut rings);
        let wait_ns = flow.limits.wait_ns;
        flow.turn(wait_ns + 4, |_, _| unreachable!());
        flow.turn(wait_ns + 5, |core, _| {
            assert_eq!(core, OLD);
            Ok(())
        });
        assert!(flow.is_settled());
        assert_eq!(flow.counters().gave_up_late, 1);
    }

    #[test]
    fn a_full_ring_keeps_parked_packets_in_order() {
        let (mut flow, mut rings) = (Handover::new(OLD, limits(1)), Vec::new());
        flow.begin(NEW, 0, |_, _| true).unwrap();
        send(&mut flow, 1, &mut rings);
        // Parking is full, so the move is given up, but the old ring is full, too.
        assert_eq!(flow.packet(2, |_, packet| Err(packet)), Err(2));
        assert_eq!(flow.parked(), 1);
        send(&mut flow, 3, &mut rings);
        assert_eq!(rings, [(OLD, 1), (OLD, 3)]);
    }
}
