//! Queues that a worker with many of them does not look at until they have frames.
//!
//! Looking at 500 queues takes longer than forwarding a packet: each is memory outside all caches,
//! or a system call. So a worker with more than [`MANY`] queues parks those that are steady
//! ([`RxQueue::is_steady`]) and have been quiet: their descriptors are in one set (epoll(7)), and
//! checking the set costs the same however many they are. A parked queue that has frames is
//! reported once (`EPOLLONESHOT`) and is then polled like any other, until it has been quiet again.
//! Before a worker sleeps it parks all that it can, so it waits for the set and learns on waking
//! which have frames.
//!
//! [`RxQueue::is_steady`]: packet::io::RxQueue::is_steady

use super::{RxPort, to_cycles};
use crate::wake::Watched;
use packet::Frame;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Most queues of a worker that looks at all of them.
pub(super) const MANY: usize = 32;
/// How long a queue must have been quiet before a worker that is not about to sleep parks it.
const QUIET: Duration = Duration::from_millis(10);
/// How often a worker whose frames come by other queues checks the set.
const ASK: Duration = Duration::from_micros(10);

/// A queue's state of being parked.
#[derive(Default)]
pub(super) struct Parking {
    /// The queue's name in the set; 0 while it is not parked.
    name: u64,
    parked: bool,
    /// When frames last came, in cycles.
    pub came: u64,
}

/// The parked queues of a worker; times in cycles.
pub(super) struct Parked {
    /// None where none is parked, or the kernel cannot provide one.
    set: Option<Watched>,
    /// Indices of queues by their names; valid where `placed`.
    places: HashMap<u64, usize>,
    placed: bool,
    names: u64,
    count: usize,
    asked: u64,
    ask: u64,
    quiet: u64,
}

impl Parked {
    pub fn new() -> Parked {
        Parked {
            set: None,
            places: HashMap::new(),
            placed: true,
            names: 0,
            count: 0,
            asked: 0,
            ask: to_cycles(ASK),
            quiet: to_cycles(QUIET),
        }
    }

    /// Returns whether a queue is parked.
    #[inline(always)]
    pub fn holds<F: Frame>(port: &RxPort<F>) -> bool {
        port.parking.parked
    }

    /// Returns a descriptor that is readable while a parked queue has frames; None where none is
    /// parked.
    pub fn fd(&self) -> Option<RawFd> {
        let set = self.set.as_ref().filter(|_| self.count > 0)?;
        Some(set.as_raw_fd())
    }

    /// Recomputes indices after queues have come or gone, and collects those of open ones.
    pub fn place<F: Frame>(&mut self, rx: &[RxPort<F>], open: &mut Vec<usize>) {
        self.placed = false;
        open.clear();
        let places = rx.iter().enumerate();
        open.extend(places.filter_map(|(index, port)| (!port.parking.parked).then_some(index)));
    }

    /// Unparks a queue that is removed.
    pub fn release<F: Frame>(&mut self, port: &mut RxPort<F>) {
        if port.parking.name == 0 {
            return;
        }
        if let (Some(set), Some(fd)) = (&self.set, port.queue.wait_fd()) {
            set.remove(fd);
        }
        self.count -= usize::from(port.parking.parked);
        if port.parking.parked {
            port.queue.disarm();
        }
        port.parking = Parking::default();
    }

    /// Parks a queue; returns false where it has frames, or cannot be parked.
    fn park<F: Frame>(&mut self, port: &mut RxPort<F>) -> bool {
        let Some(fd) = port.queue.wait_fd() else {
            return false;
        };
        if port.queue.arm() {
            return false;
        }
        if self.set.is_none() {
            self.set = Watched::new().ok();
        }
        if port.parking.name == 0 {
            self.names += 1;
            port.parking.name = self.names;
            self.placed = false;
        }
        let name = port.parking.name;
        let watched = (self.set.as_ref()).is_some_and(|set| set.watch_once(fd, name as usize));
        if !watched {
            port.queue.disarm();
            return false;
        }
        port.parking.parked = true;
        self.count += 1;
        // It is not asked again before it has frames, and until then it loses nothing.
        port.counters.set_drops(port.queue.drops());
        true
    }

    /// Parks quiet queues, of a worker with many. `open` are the indices of those that are not
    /// parked.
    #[cold]
    pub fn park_quiet<F: Frame>(&mut self, rx: &mut [RxPort<F>], open: &mut Vec<usize>, now: u64) {
        let quiet = self.quiet;
        open.retain(|index| {
            let port = &mut rx[*index];
            // The clocks of processors differ a little.
            let long = now.saturating_sub(port.parking.came) > quiet;
            let busy = !long || port.is_muted(now) || port.habit.is_watched();
            busy || !port.queue.is_steady() || !self.park(port)
        });
    }

    /// Parks all queues that can be, of a worker with many that is about to sleep. Those with
    /// frames stay open.
    pub fn park_all<F: Frame>(&mut self, rx: &mut [RxPort<F>], open: &mut Vec<usize>, now: u64) {
        open.retain(|index| {
            let port = &mut rx[*index];
            port.is_muted(now) || !port.queue.is_steady() || !self.park(port)
        });
    }

    /// Returns whether to check the set now, for a worker that has frames (`busy`) or not.
    #[inline(always)]
    pub fn is_due(&self, busy: bool, now: u64) -> bool {
        self.count > 0 && (!busy || now.wrapping_sub(self.asked) > self.ask)
    }

    /// Unparks queues that have frames: adds their indices to `open` and `awake`.
    #[cold]
    pub fn ask<F: Frame>(
        &mut self,
        rx: &mut [RxPort<F>],
        open: &mut Vec<usize>,
        awake: &mut Vec<usize>,
        now: u64,
    ) {
        self.asked = now;
        let Some(set) = &self.set else { return };
        // Limited in number: the remaining ones come first the next time.
        let found = set.found();
        if found.is_empty() {
            return;
        }
        if !self.placed {
            self.places.clear();
            let named = rx
                .iter()
                .enumerate()
                .filter(|(_, port)| port.parking.name != 0);
            self.places
                .extend(named.map(|(index, port)| (port.parking.name, index)));
            self.placed = true;
        }
        for name in found {
            let Some(&index) = self.places.get(&(name as u64)) else {
                continue;
            };
            let port = &mut rx[index];
            if !port.parking.parked {
                continue;
            }
            port.parking.parked = false;
            self.count -= 1;
            port.queue.disarm();
            (port.signalled, port.next_look, port.empty_looks) = (true, 0, 0);
            port.parking.came = now;
            open.push(index);
            awake.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::PortId;
    use crate::wake::Wake;
    use packet::HeapFrame;
    use packet::io::RxQueue;
    use std::sync::Arc;

    struct Queue(Arc<Wake>, bool);

    impl RxQueue<HeapFrame> for Queue {
        fn receive(&mut self, _out: &mut Vec<HeapFrame>) -> usize {
            self.0.clear();
            0
        }
        fn wait_fd(&self) -> Option<RawFd> {
            Some(self.0.as_raw_fd())
        }
        fn is_steady(&self) -> bool {
            self.1
        }
    }

    struct Bench {
        parked: Parked,
        rx: Vec<RxPort<HeapFrame>>,
        wakes: Vec<Arc<Wake>>,
        open: Vec<usize>,
        now: u64,
    }

    impl Bench {
        fn new(count: u32) -> Bench {
            let wakes: Vec<_> = (0..count).map(|_| Arc::new(Wake::new().unwrap())).collect();
            let port = |(slot, wake): (u32, &Arc<Wake>)| {
                let queue = Box::new(Queue(Arc::clone(wake), slot != 1));
                RxPort::new(PortId::new(slot, 1), 0, queue, Arc::default())
            };
            Bench {
                rx: (0..).zip(&wakes).map(port).collect(),
                wakes,
                parked: Parked::new(),
                open: (0..count as usize).collect(),
                now: to_cycles(Duration::from_secs(10)),
            }
        }

        fn ask(&mut self) -> Vec<usize> {
            let mut awake = Vec::new();
            self.parked
                .ask(&mut self.rx, &mut self.open, &mut awake, self.now);
            awake
        }
    }

    #[test]
    fn a_parked_queue_is_told_once_and_parked_again_when_it_is_quiet() {
        let mut bench = Bench::new(4);
        let now = bench.now;
        bench.parked.park_all(&mut bench.rx, &mut bench.open, now);
        assert_eq!(bench.open, [1], "all but the one that is not steady");
        assert!(bench.ask().is_empty());
        bench.wakes[2].raise();
        assert_eq!(bench.ask(), [2]);
        assert_eq!(bench.open, [1, 2]);
        assert!(bench.ask().is_empty(), "once");
        // It has just had frames; then it has been quiet.
        bench.parked.park_quiet(&mut bench.rx, &mut bench.open, now);
        assert_eq!(bench.open, [1, 2]);
        let later = now + to_cycles(2 * QUIET);
        bench
            .parked
            .park_quiet(&mut bench.rx, &mut bench.open, later);
        assert_eq!(bench.open, [1]);
        // A queue that still has frames is reported again.
        assert_eq!(bench.ask(), [2]);
    }

    #[test]
    fn queues_are_found_by_name_when_others_have_gone() {
        let mut bench = Bench::new(6);
        let now = bench.now;
        bench.parked.park_all(&mut bench.rx, &mut bench.open, now);
        bench.wakes[5].raise();
        assert_eq!(bench.ask(), [5]);
        bench.parked.park_all(&mut bench.rx, &mut bench.open, now);
        let mut gone = bench.rx.remove(3);
        bench.parked.release(&mut gone);
        bench.parked.place(&bench.rx, &mut bench.open);
        assert_eq!(bench.open, [1]);
        bench.wakes[3].raise();
        assert_eq!(bench.ask(), [4], "whose place was 5");
        bench.wakes[0].raise();
        let mut found = bench.ask();
        found.sort_unstable();
        assert_eq!(found, [0], "and nobody of the one that has gone");
        // A queue that comes back gets a new name.
        bench.rx.push(gone);
        bench.parked.place(&bench.rx, &mut bench.open);
        assert_eq!(bench.open, [0, 1, 4, 5]);
        bench.parked.park_all(&mut bench.rx, &mut bench.open, now);
        let mut found = bench.ask();
        found.sort_unstable();
        assert_eq!(found, [0, 4, 5]);
    }

    #[test]
    fn a_muted_queue_is_not_parked() {
        let mut bench = Bench::new(3);
        let now = bench.now;
        bench.rx[0].muted_until = now + to_cycles(Duration::from_millis(1));
        bench.rx[2].left_until = now + to_cycles(Duration::from_millis(1));
        bench.parked.park_all(&mut bench.rx, &mut bench.open, now);
        assert_eq!(bench.open, [0, 1, 2]);
        assert!(bench.parked.fd().is_none());
    }
}
