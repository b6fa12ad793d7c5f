//! Packet-ins above a controller's rate limit wait in a queue for each ingress port, so that a port
//! that floods takes nothing from the others.
//!
//! Within the rate nothing waits. Above it the queues are served round robin, one packet-in each,
//! as the rate allows. The queues together hold as many as the burst; when one more comes the
//! longest queue loses its oldest. Packets that matched no rule and those sent by an action are
//! limited separately, each by the whole rate (all as in Open vSwitch's `pinsched`).

use super::session::Live;
use crate::clock;
use crate::coverage::Counter;
use openflow::port::PortNo;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::Notify;

static RATE_LIMITED: Counter = Counter::new("openflow_packet_in_rate_limited");
/// Most packet-ins released before other tasks run.
const RELEASED: usize = 50;

/// A token bucket for packet-ins, in thousandths of a packet.
#[derive(Debug)]
struct TokenBucket {
    level: Cell<u64>,
    filled_at: Cell<i64>,
}

impl TokenBucket {
    /// Returns a full bucket: the burst is available from the beginning.
    fn new() -> TokenBucket {
        TokenBucket {
            level: Cell::new(u64::MAX),
            filled_at: Cell::new(clock::now()),
        }
    }

    fn fill(&self, limits: Limits, now: i64) -> u64 {
        let depth = limits.burst as u64 * 1000;
        let passed = u64::try_from(now.saturating_sub(self.filled_at.replace(now))).unwrap_or(0);
        let level = self
            .level
            .get()
            .saturating_add(passed.saturating_mul(limits.rate.into()))
            .min(depth);
        self.level.set(level);
        level
    }

    /// Takes one packet's tokens; false when there are not enough. `now` in milliseconds.
    fn take(&self, limits: Limits, now: i64) -> bool {
        let level = self.fill(limits, now);
        let enough = level >= 1000;
        self.level.set(level - if enough { 1000 } else { 0 });
        enough
    }

    /// Returns the milliseconds until there are tokens for a packet.
    fn wait(&self, limits: Limits, now: i64) -> i64 {
        let missing = 1000_u64.saturating_sub(self.fill(limits, now));
        missing.div_ceil(u64::from(limits.rate).max(1)) as i64
    }
}

/// A limit in force.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Packets per second.
    rate: u32,
    /// Packets that may come at once above the rate, and that may wait; at least 1.
    burst: usize,
}

impl Limits {
    /// Returns the limit, if there is one. The default burst is a quarter of a second's.
    fn of(live: &Live) -> Option<Limits> {
        let (rate, burst) = (live.rate.get(), live.burst.get());
        let burst = if burst == 0 { rate / 4 } else { burst };
        (rate > 0).then(|| Limits {
            rate,
            burst: burst.max(1) as usize,
        })
    }
}

/// Counters of packet-ins under a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// Waiting now.
    pub(super) backlog: u64,
    /// Sent without waiting.
    pub(super) bypassed: u64,
    /// Queued.
    pub(super) queued: u64,
    /// Dropped from a queue that was full.
    pub(super) dropped: u64,
}

/// Packet-ins of one kind (table misses, or others).
#[derive(Debug)]
struct Schedule {
    bucket: TokenBucket,
    queues: BTreeMap<PortNo, VecDeque<Vec<u8>>>,
    counts: Counts,
    /// The port served last.
    last: PortNo,
}

impl Schedule {
    fn new() -> Schedule {
        Schedule {
            bucket: TokenBucket::new(),
            queues: BTreeMap::new(),
            counts: Counts::default(),
            last: PortNo::MAX,
        }
    }

    /// Queues a packet-in, or returns it when it may be sent at once.
    fn offer(&mut self, port: PortNo, bytes: Vec<u8>, limits: Limits, now: i64) -> Option<Vec<u8>> {
        if self.counts.backlog == 0 && self.bucket.take(limits, now) {
            self.counts.bypassed += 1;
            return Some(bytes);
        }
        while self.counts.backlog >= limits.burst as u64 {
            self.drop_one();
        }
        self.queues.entry(port).or_default().push_back(bytes);
        self.counts.backlog += 1;
        self.counts.queued += 1;
        None
    }

    /// Drops the oldest packet-in of the longest queue; among queues of the same length, of that of
    /// the port whose turn comes last.
    fn drop_one(&mut self) {
        let turn = |port: PortNo| port.wrapping_sub(self.last).wrapping_sub(1);
        let longest = self
            .queues
            .iter()
            .max_by_key(|(port, queue)| (queue.len(), turn(**port)))
            .map(|(port, _)| *port);
        if let Some(port) = longest
            && self.pop(port).is_some()
        {
            self.counts.dropped += 1;
            RATE_LIMITED.increment();
        }
    }

    fn pop(&mut self, port: PortNo) -> Option<Vec<u8>> {
        let queue = self.queues.get_mut(&port)?;
        let bytes = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&port);
        }
        self.counts.backlog -= 1;
        Some(bytes)
    }

    /// Returns the next packet-in in turn, if it may be sent.
    fn release(&mut self, limits: Option<Limits>, now: i64) -> Option<Vec<u8>> {
        let after = self.last.checked_add(1);
        let next = after.and_then(|after| self.queues.range(after..).next());
        let port = *next.or_else(|| self.queues.iter().next())?.0;
        if limits.is_some_and(|limits| !self.bucket.take(limits, now)) {
            return None;
        }
        self.last = port;
        self.pop(port)
    }
}

/// The packet-ins of one connection that exceed its limit.
#[derive(Debug)]
pub(super) struct Scheduler {
    /// For packets that matched no rule, and for others.
    schedules: RefCell<[Schedule; 2]>,
    waiting: Notify,
}

impl Scheduler {
    pub(super) fn new() -> Scheduler {
        Scheduler {
            schedules: RefCell::new([Schedule::new(), Schedule::new()]),
            waiting: Notify::new(),
        }
    }

    /// Returns a packet-in when it may be sent at once; else queues it for [`Scheduler::released`].
    pub(super) fn offer(
        &self,
        live: &Live,
        miss: bool,
        port: PortNo,
        bytes: Vec<u8>,
    ) -> Option<Vec<u8>> {
        let Some(limits) = Limits::of(live) else {
            return Some(bytes);
        };
        let mut schedules = self.schedules.borrow_mut();
        let now = schedules[usize::from(!miss)].offer(port, bytes, limits, clock::now());
        if now.is_none() {
            self.waiting.notify_one();
        }
        now
    }

    /// Waits until queued packet-ins may be sent, and returns them.
    pub(super) async fn released(&self, live: &Live) -> Vec<Vec<u8>> {
        loop {
            let now = clock::now();
            let limits = Limits::of(live);
            let wait = {
                let mut schedules = self.schedules.borrow_mut();
                let mut released = Vec::new();
                for schedule in schedules.iter_mut() {
                    while released.len() < RELEASED
                        && let Some(bytes) = schedule.release(limits, now)
                    {
                        released.push(bytes);
                    }
                }
                if !released.is_empty() {
                    return released;
                }
                let held = schedules
                    .iter()
                    .filter(|schedule| schedule.counts.backlog > 0);
                held.map(|schedule| {
                    limits.map_or(0, |limits| schedule.bucket.wait(limits, now).max(1))
                })
                .min()
            };
            match wait {
                Some(wait) => tokio::select! {
                    () = clock::sleep_until(now.saturating_add(wait)) => {}
                    () = live.changed.notified() => {}
                },
                None => self.waiting.notified().await,
            }
        }
    }

    /// Returns the counters: of packets that matched no rule, and of others; None without a limit.
    pub(super) fn counts(&self, live: &Live) -> Option<[Counts; 2]> {
        Limits::of(live)?;
        let schedules = self.schedules.borrow();
        Some([schedules[0].counts, schedules[1].counts])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn limits(rate: u32, burst: usize) -> Limits {
        Limits { rate, burst }
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let bucket = TokenBucket {
            level: Cell::new(u64::MAX),
            filled_at: Cell::new(0),
        };
        let taken = |count: usize, now| {
            (0..count)
                .filter(|_| bucket.take(limits(100, 10), now))
                .count()
        };
        assert_eq!(taken(50, 0), 10);
        assert_eq!(taken(50, 50), 5);
        assert_eq!(taken(50, 51), 0);
        assert_eq!(bucket.wait(limits(100, 10), 51), 9);
        // Fractions of a packet are kept, and a clock that stands still or goes back gives nothing.
        assert_eq!(taken(50, 60), 1);
        assert_eq!(taken(50, 60), 0);
        assert_eq!(taken(50, 10_000), 10);
    }

    #[test]
    fn limits_are_chosen_where_the_row_is_silent() {
        let live = Live::new(Duration::ZERO, 1);
        assert!(Limits::of(&live).is_none());
        live.rate.set(100);
        assert_eq!(Limits::of(&live).unwrap().burst, 25);
        live.rate.set(1);
        assert_eq!(Limits::of(&live).unwrap().burst, 1);
        live.burst.set(7);
        assert_eq!(Limits::of(&live).unwrap().burst, 7);
    }

    #[test]
    fn a_port_that_floods_loses_its_own() {
        let mut schedule = Schedule::new();
        schedule.bucket.filled_at.set(0);
        let limits = limits(1000, 4);
        let packet = |port: u8, number: u8| vec![port, number];
        // The burst is sent at once, the rest waits.
        for number in 0..4 {
            assert!(schedule.offer(1, packet(1, number), limits, 0).is_some());
        }
        for number in 4..104 {
            assert!(schedule.offer(1, packet(1, number), limits, 0).is_none());
        }
        for port in [2, 3] {
            assert!(
                schedule
                    .offer(port.into(), packet(port, 0), limits, 0)
                    .is_none()
            );
        }
        assert_eq!(
            schedule.counts,
            Counts {
                backlog: 4,
                bypassed: 4,
                queued: 102,
                dropped: 98
            }
        );
        // In turn; only the newest of the flood are left.
        let released: Vec<_> =
            std::iter::from_fn(|| schedule.release(Some(limits), 1_000_000)).collect();
        assert_eq!(
            released,
            [packet(1, 102), packet(2, 0), packet(3, 0), packet(1, 103)]
        );
        assert_eq!(schedule.counts.backlog, 0);
        assert!(schedule.queues.is_empty());
    }

    #[tokio::test]
    async fn waiting_packet_ins_are_sent_when_the_limit_is_removed() {
        let live = Live::new(Duration::ZERO, 1);
        live.rate.set(20);
        live.burst.set(2);
        let scheduler = Scheduler::new();
        let offered = (0..4).filter_map(|number| scheduler.offer(&live, true, 1, vec![number]));
        assert_eq!(offered.count(), 2);
        // No waiting here, because other tests of this program stop its clock.
        live.rate.set(0);
        assert_eq!(scheduler.released(&live).await, [[2], [3]]);
        assert!(scheduler.counts(&live).is_none());
    }
}
