//! Packets to the controllers: copied on the worker, fetched by the control thread.
//!
//! Each worker has a ring, bounded in packets and in bytes; what does not fit is dropped and
//! counted. A descriptor wakes the control thread, once for any number of packets, and for each
//! worker once in [`TOGETHER`] at most while it has other things to do.

use crate::clock::{cycles, cycles_per_second};
use crate::wake::Wake;
use crossbeam_queue::ArrayQueue;
use packet::{FlowKey, WordSet};
use program::actions::{PacketInReason, PortNo};
use program::exec::Frozen;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Packets that wait at most, for each worker.
pub const PACKET_IN_QUEUE: usize = 1024;
/// Bytes that wait at most, for each worker.
pub const PACKET_IN_BYTES: usize = 8 << 20;

/// A packet for the controllers.
#[derive(Clone, Debug)]
pub struct PacketIn {
    /// The bridge.
    pub bridge: crate::port::BridgeId,
    /// The port that the packet came in by, or a reserved number for a packet-out.
    pub in_port: PortNo,
    /// Table of the rule that sent it.
    pub table: u8,
    /// Cookie of that rule, `u64::MAX` for none.
    pub cookie: u64,
    /// Why it is sent.
    pub reason: PacketInReason,
    /// To controllers with this id.
    pub controller_id: u16,
    /// Handed back as it is.
    pub userdata: Vec<u8>,
    /// Length of the packet.
    pub total_len: usize,
    /// Its first bytes, as many as the rule asked for; checksums are finished.
    pub data: Vec<u8>,
    /// The packet's key as it was.
    pub key: Box<FlowKey>,
    /// The words of `key` that mean something; others count as zero.
    pub valid: WordSet,
    /// What is still to be done with the packet, if it has stopped for the controllers.
    pub rest: Option<Box<Frozen>>,
}

impl PacketIn {
    /// What it counts for in a ring that is bounded in bytes: all of it whose length a packet or a
    /// rule decides.
    fn weight(&self) -> usize {
        self.data.len() + self.userdata.len() + self.rest.as_ref().map_or(0, |rest| weight(rest))
    }
}

/// What a frozen walk counts for.
pub(crate) fn weight(rest: &Frozen) -> usize {
    size_of::<Frozen>() + rest.steps() * size_of::<program::actions::Op>()
}

/// One worker's ring.
pub(crate) struct PacketInRing {
    ring: ArrayQueue<PacketIn>,
    bytes: AtomicUsize,
    teller: Arc<Teller>,
}

/// Least time between two calls of a busy worker for the control thread. Each takes the worker some
/// microseconds, which are its other ports': one that asks for a rule with each packet would cost
/// them a tenth of their rate.
const TOGETHER: Duration = Duration::from_micros(200);

/// How a worker tells the control thread that there is something for it. Written by the worker's
/// thread only.
pub(crate) struct Teller {
    wake: Arc<PacketInWake>,
    /// When it told last, in cycles.
    told: AtomicU64,
    /// There is something that it has not told of.
    has_untold: AtomicBool,
}

impl Teller {
    pub fn new(wake: Arc<PacketInWake>) -> Teller {
        Teller {
            wake,
            told: AtomicU64::new(0),
            has_untold: AtomicBool::new(false),
        }
    }

    /// Tells, or leaves it to [`Teller::settle`] where it has told just before. `now` in cycles.
    pub fn tell(&self, now: u64) {
        if self.is_rested(now) {
            self.tell_now(now);
        } else {
            self.has_untold.store(true, Ordering::Relaxed);
        }
    }

    /// Tells of what has been left, when it is time to; at once where the worker has nothing else
    /// to do.
    #[inline(always)]
    pub fn settle(&self, now: u64, is_idle: bool) {
        if self.has_untold.load(Ordering::Relaxed) && (is_idle || self.is_rested(now)) {
            self.tell_now(now);
        }
    }

    fn is_rested(&self, now: u64) -> bool {
        let together = TOGETHER.as_micros() as u64 * (cycles_per_second() / 1_000_000);
        now.wrapping_sub(self.told.load(Ordering::Relaxed)) >= together
    }

    fn tell_now(&self, now: u64) {
        self.has_untold.store(false, Ordering::Relaxed);
        self.told.store(now, Ordering::Relaxed);
        self.wake.raise();
    }
}

/// Wakes the control thread.
pub(crate) struct PacketInWake {
    pub wake: Wake,
    pending: AtomicBool,
}

impl PacketInWake {
    pub fn new(wake: Wake) -> PacketInWake {
        PacketInWake {
            wake,
            pending: AtomicBool::new(false),
        }
    }

    pub fn raise(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            self.wake.raise();
        }
    }

    /// Call it before fetching: a packet queued after this raises again.
    pub fn clear(&self) {
        self.wake.clear();
        // A swap, so that whoever found it set has queued its packet before what follows.
        self.pending.swap(false, Ordering::AcqRel);
    }
}

impl PacketInRing {
    pub fn new(teller: Arc<Teller>) -> PacketInRing {
        PacketInRing {
            ring: ArrayQueue::new(PACKET_IN_QUEUE),
            bytes: AtomicUsize::new(0),
            teller,
        }
    }

    /// What tells the control thread.
    pub fn teller(&self) -> &Arc<Teller> {
        &self.teller
    }

    /// Whether a packet-in of `len` bytes (packet and user data) may be queued; asked before it is
    /// copied.
    pub fn has_room(&self, len: usize) -> bool {
        !self.ring.is_full() && self.bytes.load(Ordering::Relaxed) + len <= PACKET_IN_BYTES
    }

    /// False when the ring is full.
    pub fn push(&self, packet: PacketIn) -> bool {
        let len = packet.weight();
        self.bytes.fetch_add(len, Ordering::Relaxed);
        let done = self.ring.push(packet).is_ok();
        if done {
            self.teller.tell(cycles());
        } else {
            self.bytes.fetch_sub(len, Ordering::Relaxed);
        }
        done
    }

    pub fn pop(&self) -> Option<PacketIn> {
        let packet = self.ring.pop()?;
        self.bytes.fetch_sub(packet.weight(), Ordering::Relaxed);
        Some(packet)
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::BridgeId;

    #[test]
    fn a_busy_worker_calls_once_in_a_while_and_tells_all_at_the_end() {
        let wake = Arc::new(PacketInWake::new(Wake::new().unwrap()));
        let teller = Teller::new(Arc::clone(&wake));
        let called = || {
            let called = wake.pending.load(Ordering::Relaxed);
            wake.clear();
            called
        };
        let second = cycles_per_second();
        let (begin, soon) = (second, second / 50_000);
        teller.settle(begin, true);
        assert!(!called(), "there was nothing");
        teller.tell(begin);
        assert!(called());
        for later in 1..9 {
            teller.tell(begin + later * soon);
            teller.settle(begin + later * soon, false);
            assert!(!called(), "{} us later", later * 20);
        }
        teller.settle(begin + 11 * soon, false);
        assert!(called());
        teller.settle(begin + 30 * soon, true);
        assert!(!called(), "it has been told");
        teller.tell(begin + 31 * soon);
        assert!(called());
        teller.tell(begin + 32 * soon);
        teller.settle(begin + 33 * soon, true);
        assert!(called(), "nothing else to do");
    }

    #[test]
    fn user_data_counts_too() {
        let wake = Arc::new(PacketInWake::new(Wake::new().unwrap()));
        let ring = PacketInRing::new(Arc::new(Teller::new(wake)));
        let packet = PacketIn {
            bridge: BridgeId(0),
            in_port: 1,
            table: 0,
            cookie: 0,
            reason: PacketInReason::Action,
            controller_id: 0,
            userdata: vec![0; 60_000],
            total_len: 60,
            data: vec![0; 60],
            key: Box::new(FlowKey::ZERO),
            valid: WordSet::EMPTY,
            rest: None,
        };
        let mut queued = 0;
        while ring.has_room(packet.weight()) && ring.push(packet.clone()) {
            queued += 1;
        }
        assert_eq!(queued, PACKET_IN_BYTES / packet.weight());
        while ring.pop().is_some() {}
        assert_eq!(ring.bytes(), 0);
    }
}
