//! Packet-ins: copied on the worker, fetched by the control thread.
//!
//! Each worker has a ring, bounded in packets and in bytes; what does not fit is dropped and
//! counted. A descriptor wakes the control thread, once for any number of packets; while a worker
//! is busy, it does so at most once in [`TOGETHER`], and for requests that keep coming less often
//! ([`Teller::request`]): control then looks for them by itself ([`PacketInWake::keep_coming`]).

use crate::clock::{cycles, cycles_per_second};
use crate::wake::Wake;
use crossbeam_queue::ArrayQueue;
use packet::{FlowKey, WordSet};
use program::actions::{PacketInReason, PortNo};
use program::exec::Frozen;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
/// How often that time may double while requests keep coming: to 800 us. A wakeup each 200 us takes
/// a worker 4% of its time on a virtual machine, and takes control more than the requests do.
const DOUBLINGS: u32 = 2;
/// How often it doubles once more while control looks for requests by itself: to 6.4 ms.
const POLLED_DOUBLINGS: u32 = 3;
/// Nothing is to be told.
const NEVER: u64 = u64::MAX;

/// Decides when a worker wakes the control thread. Written by the worker's thread only.
pub(crate) struct Teller {
    wake: Arc<PacketInWake>,
    /// Time of the last wakeup, in cycles.
    told: AtomicU64,
    /// When control is to be woken for what it does not know of, in cycles; [`NEVER`] for nothing.
    due: AtomicU64,
    /// How often [`TOGETHER`] has been doubled for requests.
    doublings: AtomicU32,
}

impl Teller {
    pub fn new(wake: Arc<PacketInWake>) -> Teller {
        Teller {
            wake,
            told: AtomicU64::new(0),
            due: AtomicU64::new(NEVER),
            doublings: AtomicU32::new(0),
        }
    }

    /// Wakes control for a packet-in, or leaves it to [`Teller::settle`] if the last wakeup was too
    /// recent. `now` in cycles.
    pub fn tell(&self, now: u64) {
        self.tell_after(now, together());
    }

    /// Wakes control for a request, as [`Teller::tell`] does for packet-ins; but where requests
    /// keep coming while control is not to be woken, that time doubles each time, [`DOUBLINGS`]
    /// times, and [`POLLED_DOUBLINGS`] more while control looks for them by itself.
    pub fn request(&self, now: u64) {
        let polled = match self.wake.polled.load(Ordering::Relaxed) {
            true => POLLED_DOUBLINGS,
            false => 0,
        };
        let pause = together() << (self.doublings.load(Ordering::Relaxed) + polled);
        if now.wrapping_sub(self.told.load(Ordering::Relaxed)) >= 2 * pause {
            self.doublings.store(0, Ordering::Relaxed);
        }
        self.tell_after(now, pause);
    }

    fn tell_after(&self, now: u64, pause: u64) {
        let told = self.told.load(Ordering::Relaxed);
        let due = self.due.load(Ordering::Relaxed);
        match now.wrapping_sub(told) >= pause {
            false => self.due.store(due.min(told + pause), Ordering::Relaxed),
            true if due == NEVER => self.tell_now(now),
            true => self.tell_late(now, false),
        }
    }

    /// Makes a postponed wakeup, when it is time to; at once where the worker has nothing else to
    /// do.
    #[inline(always)]
    pub fn settle(&self, now: u64, is_idle: bool) {
        let due = self.due.load(Ordering::Relaxed);
        if due != NEVER && (is_idle || now >= due) {
            self.tell_late(now, is_idle);
        }
    }

    #[cold]
    fn tell_late(&self, now: u64, is_idle: bool) {
        let doublings = match is_idle {
            true => 0,
            false => (self.doublings.load(Ordering::Relaxed) + 1).min(DOUBLINGS),
        };
        self.doublings.store(doublings, Ordering::Relaxed);
        if doublings == DOUBLINGS {
            self.wake.keep_coming.store(true, Ordering::Relaxed);
        }
        self.tell_now(now);
    }

    fn tell_now(&self, now: u64) {
        self.due.store(NEVER, Ordering::Relaxed);
        self.told.store(now, Ordering::Relaxed);
        self.wake.raise();
    }
}

/// Returns [`TOGETHER`] in cycles.
fn together() -> u64 {
    TOGETHER.as_micros() as u64 * (cycles_per_second() / 1_000_000)
}

/// Wakes the control thread.
pub(crate) struct PacketInWake {
    pub wake: Wake,
    pending: AtomicBool,
    /// Whether requests have been coming to a busy worker for longer than the longest pause.
    keep_coming: AtomicBool,
    /// Whether control looks for requests by itself, so that workers need not wake it: on a virtual
    /// machine a wakeup takes a worker ten times as long as a timer takes control.
    polled: AtomicBool,
}

impl PacketInWake {
    pub fn new(wake: Wake) -> PacketInWake {
        PacketInWake {
            wake,
            pending: AtomicBool::new(false),
            keep_coming: AtomicBool::new(false),
            polled: AtomicBool::new(false),
        }
    }

    /// Returns whether requests have kept coming since it was last asked, so that control had
    /// better look for them by itself.
    pub fn keep_coming(&self) -> bool {
        self.keep_coming.load(Ordering::Relaxed) && self.keep_coming.swap(false, Ordering::Relaxed)
    }

    /// Says whether control looks for requests by itself from now on. A busy worker that has seen
    /// this late wakes it 6.4 ms after its last wakeup, an idle one at once.
    pub fn set_polled(&self, polled: bool) {
        self.polled.store(polled, Ordering::Relaxed);
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

    /// While requests keep coming, a busy worker calls less and less often, to a bound, and never
    /// keeps one for longer than the bound; packet-ins wait no longer than before.
    #[test]
    fn requests_that_keep_coming_call_less_often() {
        let wake = Arc::new(PacketInWake::new(Wake::new().unwrap()));
        let teller = Teller::new(Arc::clone(&wake));
        let called = || {
            let called = wake.pending.load(Ordering::Relaxed);
            wake.clear();
            called
        };
        let (begin, step) = (cycles_per_second(), together() / 10);
        let calls = |from: u64, steps: u64, ask: &dyn Fn(u64)| -> Vec<u64> {
            (from..from + steps)
                .filter(|at| {
                    ask(begin + at * step);
                    teller.settle(begin + at * step, false);
                    called()
                })
                .collect()
        };
        let request = |now| teller.request(now);
        // After 200, 400, 800 and 800 us.
        assert_eq!(calls(0, 240, &request), [0, 10, 30, 70, 110, 150, 190, 230]);
        // A packet-in waits for 200 us, whoever else waits.
        teller.request(begin + 241 * step);
        assert_eq!(calls(241, 9, &|now| teller.tell(now)), [241]);
        teller.settle(begin + 260 * step, false);
        assert!(called());
        // After a rest the first call is at once, and the next is soon again.
        assert!(wake.keep_coming());
        assert_eq!(calls(1000, 25, &request), [1000, 1010]);
        assert!(!wake.keep_coming());
        // So is it when there is nothing else to do.
        calls(1025, 200, &request);
        teller.settle(begin + 1226 * step, true);
        called();
        assert_eq!(calls(1227, 11, &request), [1236]);
        // Whoever looks for them by itself is called less often, and for packet-ins as before.
        wake.set_polled(true);
        calls(1237, 1000, &request);
        assert!(wake.keep_coming());
        assert_eq!(calls(2237, 700, &request).len(), 2);
        assert_eq!(calls(2937, 20, &|now| teller.tell(now)).len(), 2);
        teller.request(begin + 2957 * step);
        teller.settle(begin + 2958 * step, true);
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
