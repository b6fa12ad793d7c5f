//! Packet-ins: copied on the worker, fetched by the control thread.
//!
//! Each worker has a ring, bounded in packets and in bytes; what does not fit is dropped and
//! counted. A descriptor wakes the control thread, once for any number of packets; while a worker
//! is busy, it does so at most once in [`TOGETHER`].

use crate::clock::{cycles, cycles_per_second};
use crate::wake::Wake;
use crossbeam_queue::ArrayQueue;
use packet::{FlowKey, WordSet};
use program::actions::{PacketInReason, PortNo};
use program::exec::Frozen;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Most waiting packets of each worker.
pub const PACKET_IN_QUEUE: usize = 1024;
/// Most waiting bytes of each worker.
pub const PACKET_IN_BYTES: usize = 8 << 20;

/// A packet-in.
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
    /// Id of the controllers that get it.
    pub controller_id: u16,
    /// Bytes returned unchanged.
    pub userdata: Vec<u8>,
    /// Length of the packet.
    pub total_len: usize,
    /// The packet with its checksums finished; all of its bytes are kept.
    pub data: Vec<u8>,
    /// The packet's key as it was.
    pub key: Box<FlowKey>,
    /// The words of `key` that are filled; others count as zero.
    pub valid: WordSet,
    /// The rest of the packet's walk, if it has stopped for the controllers.
    pub rest: Option<Box<Frozen>>,
}

impl PacketIn {
    /// Returns its share of a ring's bytes: everything whose length a packet or a rule decides.
    fn weight(&self) -> usize {
        self.data.len() + self.userdata.len() + self.rest.as_ref().map_or(0, |rest| weight(rest))
    }
}

/// Returns a frozen walk's share of a ring's bytes.
pub(crate) fn weight(rest: &Frozen) -> usize {
    size_of::<Frozen>() + rest.steps() * size_of::<program::actions::Op>()
}

/// One worker's ring of packet-ins.
pub(crate) struct PacketInRing {
    ring: ArrayQueue<PacketIn>,
    bytes: AtomicUsize,
    teller: Arc<Teller>,
}

/// Shortest time between two wakeups of the control thread by a busy worker. Each costs the worker
/// some microseconds: if it woke control for each packet that asks for a rule, its other ports
/// would lose a tenth of their rate.
const TOGETHER: Duration = Duration::from_micros(200);

/// Decides when a worker wakes the control thread. Written by the worker's thread only.
pub(crate) struct Teller {
    wake: Arc<PacketInWake>,
    /// Time of the last wakeup, in cycles.
    told: AtomicU64,
    /// Whether there is something for control without a wakeup so far.
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

    /// Wakes control, or leaves it to [`Teller::settle`] if the last wakeup was too recent. `now`
    /// in cycles.
    pub fn tell(&self, now: u64) {
        if self.is_rested(now) {
            self.tell_now(now);
        } else {
            self.has_untold.store(true, Ordering::Relaxed);
        }
    }

    /// Makes a postponed wakeup, when it is time to; at once where the worker has nothing else to
    /// do.
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

    /// Clears the wakeup. To be called before fetching: a packet queued after this wakes again.
    pub fn clear(&self) {
        self.wake.clear();
        // A swap, so that whoever found the flag set has queued its packet before the fetch that
        // follows.
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

    /// Returns what wakes the control thread.
    pub fn teller(&self) -> &Arc<Teller> {
        &self.teller
    }

    /// Returns whether a packet-in of `len` bytes (packet and user data) may be queued; asked
    /// before it is copied.
    pub fn has_room(&self, len: usize) -> bool {
        !self.ring.is_full() && self.bytes.load(Ordering::Relaxed) + len <= PACKET_IN_BYTES
    }

    /// Queues a packet-in; returns false when the ring is full.
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
