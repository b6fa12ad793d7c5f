//! Decides which queues cut a nap short.
//!
//! A queue that has brought nothing lately is watched during naps: its frames are handled at once.
//! One whose frames come continuously is not, because each would wake the worker. If all of these
//! go to shaped ports and have to wait there, they lose nothing by that. If some need not wait,
//! naps are shorter ([`super::nap::MOST`]); likewise where a queue has no descriptor to wait on,
//! and where other workers send to this one's ports.
//!
//! A watched queue stays armed until it has frames, so that a nap costs the same however many are
//! watched. It is still looked at in every turn, except that a costly look is skipped just after a
//! nap in which it had nothing.

use super::nap::{MOST, MOST_PATIENT};
use super::parked::Parked;
use super::{IDLE_LOOKS, RxPort, to_cycles};
use crate::clock::cycles;
use crate::wake::{Watched, readable, wait};
use packet::Frame;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// A queue without frames for this long is watched.
const QUIET: Duration = Duration::from_millis(2);
/// How long a queue is remembered for having brought a frame that need not wait.
const MEMORY: Duration = Duration::from_millis(100);
/// How often queues are judged.
const WINDOW: Duration = Duration::from_millis(1);
/// Most naps cut short in a window: many queues that each bring something now and then are like one
/// busy queue.
const CUTS: u32 = 10;

/// What a worker knows of a receive queue's frames; times in cycles.
#[derive(Default)]
pub(super) struct Habit {
    /// When frames last came.
    came: u64,
    /// When a frame last came that did not have to wait.
    passed: u64,
    /// The descriptor of the queue in the set, while it is armed.
    watched: Option<RawFd>,
}

impl Habit {
    /// Returns whether the queue cuts naps short.
    pub fn is_watched(&self) -> bool {
        self.watched.is_some()
    }
}

/// The queues that cut a worker's naps short; times in cycles.
pub(super) struct Watch {
    /// None where the kernel cannot provide one, or where it is not needed.
    set: Option<Watched>,
    /// Number of queues in it.
    count: usize,
    /// When queues were last judged; 0 to do it again.
    judged: u64,
    most: Duration,
    /// Naps cut short since then.
    cuts: u32,
    cuts_from: u64,
    /// Frames of other workers until then, and when the last came.
    handed: u64,
    handed_at: u64,
    /// Until then watched queues need not be looked at: a nap has just ended in which none had
    /// anything.
    known_empty: u64,
    looks: u64,
    window: u64,
    quiet: u64,
    memory: u64,
}

impl Watch {
    pub fn new() -> Watch {
        Watch {
            set: None,
            count: 0,
            judged: 0,
            most: MOST,
            cuts: 0,
            cuts_from: 0,
            handed: 0,
            handed_at: 0,
            known_empty: 0,
            looks: to_cycles(IDLE_LOOKS),
            window: to_cycles(WINDOW),
            quiet: to_cycles(QUIET),
            memory: to_cycles(MEMORY),
        }
    }

    /// Records that a queue has brought frames, of which some did not have to wait (`passed`).
    #[inline]
    pub fn came<F: Frame>(&mut self, port: &mut RxPort<F>, passed: bool, now: u64) {
        port.habit.came = now;
        if passed {
            port.habit.passed = now;
            if self.most > MOST {
                self.judged = 0;
            }
        }
        if port.habit.watched.is_some() {
            self.unwatch(port);
            self.judged = 0;
        }
    }

    /// Prepares a nap: watches queues as needed, and returns the nap's longest duration; None where
    /// a queue has frames already. `handed`: number of frames that other workers have sent by this
    /// one so far.
    pub fn prepare<F: Frame>(
        &mut self,
        rx: &mut [RxPort<F>],
        handed: u64,
        now: u64,
    ) -> Option<Duration> {
        let judged = self.judged != 0 && now.wrapping_sub(self.judged) < self.window;
        if judged && handed == self.handed {
            return Some(self.most);
        }
        if handed != self.handed {
            (self.handed, self.handed_at) = (handed, now);
        }
        let mut most = match self.lately(self.handed_at, now) {
            true => MOST,
            false => MOST_PATIENT,
        };
        for (index, port) in rx.iter_mut().enumerate() {
            // Parked queues cut naps short together.
            if Parked::holds(port) {
                continue;
            }
            // Looked at every millisecond; a wakeup by it may take as long.
            if port.queue.is_dormant() {
                self.unwatch(port);
                continue;
            }
            let muted = port.muted_until.max(port.left_until) > now;
            let quiet = now.wrapping_sub(port.habit.came) > self.quiet;
            if !quiet || muted {
                self.unwatch(port);
                if muted || self.lately(port.habit.passed, now) {
                    most = MOST;
                }
            } else if port.habit.watched.is_none() && !self.watch(index, port)? {
                most = MOST;
            }
        }
        (self.most, self.judged) = (most, now);
        Some(most)
    }

    /// Returns whether a queue had nothing just now, so that a costly look at it would be in vain.
    #[inline(always)]
    pub fn is_empty(&self, habit: &Habit, now: u64) -> bool {
        habit.watched.is_some() && self.known_empty > now
    }

    fn lately(&self, then: u64, now: u64) -> bool {
        then != 0 && now.wrapping_sub(then) < self.memory
    }

    /// Watches a queue; returns false where that is not possible, None where it has frames.
    fn watch<F: Frame>(&mut self, index: usize, port: &mut RxPort<F>) -> Option<bool> {
        let Some(fd) = port.queue.wait_fd() else {
            return Some(false);
        };
        if port.queue.arm() {
            return None;
        }
        if self.set.is_none() {
            self.set = Watched::new().ok();
        }
        let added = self.set.as_ref().is_some_and(|set| set.add(fd, index));
        if !added {
            port.queue.disarm();
            return Some(false);
        }
        port.habit.watched = Some(fd);
        self.count += 1;
        Some(true)
    }

    fn unwatch<F: Frame>(&mut self, port: &mut RxPort<F>) {
        let Some(fd) = port.habit.watched.take() else {
            return;
        };
        self.count -= 1;
        if let Some(set) = &self.set {
            set.remove(fd);
        }
        port.queue.disarm();
    }

    /// Sleeps for at most `time`, until one of the watched queues has something, or `parked` (a
    /// descriptor) is readable; returns whether one has.
    pub fn nap<F: Frame>(
        &mut self,
        rx: &mut [RxPort<F>],
        parked: Option<RawFd>,
        time: Duration,
        now: u64,
    ) -> bool {
        if now.wrapping_sub(self.cuts_from) > self.window {
            (self.cuts, self.cuts_from) = (0, now);
        }
        self.known_empty = 0;
        let set = self.set.as_ref().filter(|_| self.count > 0);
        let set_fd = set.map(AsRawFd::as_raw_fd);
        if set_fd.is_none() && parked.is_none() {
            wait(&mut [], time);
            return false;
        }
        if self.cuts >= CUTS {
            wait(&mut [], time.min(MOST));
            return false;
        }
        // A negative descriptor is ignored.
        let mut fds = [set_fd, parked].map(|fd| readable(fd.unwrap_or(-1)));
        wait(&mut fds, time);
        if fds[0].revents == 0 {
            self.known_empty = cycles() + self.looks;
        }
        if fds.iter().all(|fd| fd.revents == 0) {
            return false;
        }
        let found = set.filter(|_| fds[0].revents != 0).map(Watched::found);
        for index in found.into_iter().flatten() {
            if let Some(port) = rx.get_mut(index) {
                (port.signalled, port.next_look) = (true, 0);
                self.unwatch(port);
            }
        }
        (self.judged, self.cuts) = (0, self.cuts + 1);
        true
    }

    /// Watches no queue: queues come and go, or the worker is about to sleep on all of them.
    pub fn forget<F: Frame>(&mut self, rx: &mut [RxPort<F>]) {
        if self.set.is_none() {
            return;
        }
        // Dropping the set removes its descriptors.
        (self.set, self.count, self.judged) = (None, 0, 0);
        for port in rx {
            if port.habit.watched.take().is_some() {
                port.queue.disarm();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::QueueCounters;
    use crate::port::PortId;
    use crate::wake::Wake;
    use packet::HeapFrame;
    use packet::io::RxQueue;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// A queue, and the state of it that the test controls.
    struct Peer {
        event: Option<Wake>,
        /// Whether arming finds frames.
        full: AtomicBool,
        armed: AtomicU64,
    }

    struct Queue(Arc<Peer>);

    impl RxQueue<HeapFrame> for Queue {
        fn receive(&mut self, _out: &mut Vec<HeapFrame>) -> usize {
            0
        }
        fn wait_fd(&self) -> Option<RawFd> {
            self.0.event.as_ref().map(|event| event.as_raw_fd())
        }
        fn arm(&mut self) -> bool {
            self.0.event.as_ref().unwrap().clear();
            let full = self.0.full.load(Ordering::Relaxed);
            self.0.armed.fetch_add(u64::from(!full), Ordering::Relaxed);
            full
        }
        fn disarm(&mut self) {
            self.0.armed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    struct Bench {
        watch: Watch,
        rx: Vec<RxPort<HeapFrame>>,
        peers: Vec<Arc<Peer>>,
        now: u64,
    }

    impl Bench {
        /// Creates this many queues, and one without a descriptor if `polled`.
        fn new(count: u32, polled: bool) -> Bench {
            let peers: Vec<_> = (0..count + u32::from(polled))
                .map(|number| {
                    Arc::new(Peer {
                        event: (number < count).then(|| Wake::new().unwrap()),
                        full: AtomicBool::new(false),
                        armed: AtomicU64::new(0),
                    })
                })
                .collect();
            let port = |(slot, peer): (u32, &Arc<Peer>)| {
                let queue = Box::new(Queue(Arc::clone(peer)));
                RxPort::new(
                    PortId::new(slot, 1),
                    0,
                    queue,
                    Arc::new(QueueCounters::default()),
                )
            };
            Bench {
                rx: (0..).zip(&peers).map(port).collect(),
                peers,
                watch: Watch::new(),
                now: to_cycles(Duration::from_secs(10)),
            }
        }

        fn pass(&mut self, time: Duration) {
            self.now += to_cycles(time);
        }

        fn prepare(&mut self, handed: u64) -> Option<Duration> {
            self.watch.prepare(&mut self.rx, handed, self.now)
        }

        fn came(&mut self, queue: usize, passed: bool) {
            self.watch.came(&mut self.rx[queue], passed, self.now);
        }

        fn armed(&self) -> Vec<u64> {
            let armed = |peer: &Arc<Peer>| peer.armed.load(Ordering::Relaxed);
            self.peers.iter().map(armed).collect()
        }
    }

    const A_BIT: Duration = Duration::from_micros(1100);

    #[test]
    fn quiet_queues_are_armed_until_they_bring_something() {
        let mut bench = Bench::new(3, false);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        assert_eq!(bench.armed(), [1, 1, 1]);
        bench.came(1, false);
        assert_eq!(bench.armed(), [1, 0, 1]);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        assert_eq!(bench.armed(), [1, 0, 1]);
        bench.pass(2 * A_BIT);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        assert_eq!(bench.armed(), [1, 1, 1]);
        bench.watch.forget(&mut bench.rx);
        assert_eq!(bench.armed(), [0, 0, 0]);
    }

    #[test]
    fn a_queue_whose_frames_need_not_wait_makes_naps_shorter_for_a_while() {
        let mut bench = Bench::new(2, false);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        bench.came(0, true);
        assert_eq!(bench.prepare(0), Some(MOST));
        // Still so if all frames have had to wait since then.
        for _ in 0..20 {
            bench.pass(A_BIT);
            bench.came(0, false);
            assert_eq!(bench.prepare(0), Some(MOST));
        }
        bench.pass(MEMORY);
        bench.came(0, false);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        // A queue that has fallen quiet cuts naps short instead.
        bench.came(0, true);
        bench.pass(2 * A_BIT);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        assert_eq!(bench.armed(), [1, 1]);
    }

    #[test]
    fn naps_are_shorter_if_frames_may_come_without_a_signal() {
        let mut bench = Bench::new(1, true);
        assert_eq!(bench.prepare(0), Some(MOST), "it can only be polled");
        let mut bench = Bench::new(1, false);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        bench.pass(A_BIT);
        assert_eq!(bench.prepare(7), Some(MOST), "others have sent something");
        bench.pass(MEMORY);
        assert_eq!(bench.prepare(7), Some(MOST_PATIENT));
    }

    #[test]
    fn frames_found_while_arming_keep_the_worker_awake() {
        let mut bench = Bench::new(2, false);
        bench.peers[1].full.store(true, Ordering::Relaxed);
        assert_eq!(bench.prepare(0), None);
        bench.peers[1].full.store(false, Ordering::Relaxed);
        assert_eq!(bench.prepare(0), Some(MOST_PATIENT));
        assert_eq!(bench.armed(), [1, 1]);
    }

    #[test]
    fn a_watched_queue_cuts_a_nap_short_and_is_not_watched_until_it_is_quiet_again() {
        let mut bench = Bench::new(2, false);
        bench.prepare(0).unwrap();
        let nap = |bench: &mut Bench, time| bench.watch.nap(&mut bench.rx, None, time, bench.now);
        assert!(!nap(&mut bench, Duration::from_micros(1)));
        let now = cycles();
        assert!(bench.watch.is_empty(&bench.rx[0].habit, now));
        bench.peers[1].event.as_ref().unwrap().raise();
        let long = Duration::from_secs(5);
        let begun = std::time::Instant::now();
        assert!(nap(&mut bench, long));
        assert!(begun.elapsed() < long);
        let signalled: Vec<bool> = bench.rx.iter().map(|port| port.signalled).collect();
        assert_eq!(signalled, [false, true]);
        assert_eq!(bench.armed(), [1, 0]);
        assert!(!bench.watch.is_empty(&bench.rx[0].habit, now));
        // The event is still pending, and wakes nobody.
        assert!(!nap(&mut bench, Duration::from_micros(1)));
        // Arming again clears it.
        bench.prepare(0).unwrap();
        assert_eq!(bench.armed(), [1, 1]);
        assert!(!nap(&mut bench, Duration::from_micros(1)));
    }

    #[test]
    fn naps_are_cut_so_often_at_most() {
        let mut bench = Bench::new(1, false);
        let mut cuts = 0;
        for _ in 0..2 * CUTS {
            bench.prepare(0).unwrap();
            bench.peers[0].event.as_ref().unwrap().raise();
            cuts += u32::from(
                bench
                    .watch
                    .nap(&mut bench.rx, None, MOST_PATIENT, bench.now),
            );
        }
        assert_eq!(cuts, CUTS);
        bench.pass(A_BIT);
        assert!(
            bench
                .watch
                .nap(&mut bench.rx, None, MOST_PATIENT, bench.now)
        );
    }

    #[test]
    fn a_queue_that_signals_for_nothing_is_not_watched_while_it_is_muted() {
        let mut bench = Bench::new(2, false);
        bench.prepare(0).unwrap();
        bench.rx[0].muted_until = bench.now + 2 * to_cycles(A_BIT);
        bench.pass(A_BIT);
        bench.prepare(0).unwrap();
        assert_eq!(bench.armed(), [0, 1]);
        bench.pass(2 * A_BIT);
        bench.prepare(0).unwrap();
        assert_eq!(bench.armed(), [1, 1]);
    }
}
