//! Fair shares of a worker's time between its receive queues, and the rings by which other workers
//! hand over frames, which count as queues here.
//!
//! Each queue has a burst in every turn, and each ring a few. That is fair where bursts cost about
//! the same; but frames that are flooded to a thousand ports, or cut into segments, take a thousand
//! times as long as others, and their sender would get that much more of the worker. So from a long
//! burst on the time of each queue is counted, and queues that have had more than the one with the
//! least are left alone until that has caught up: start-time fair queueing (P. Goyal, H. M. Vin, H.
//! Cheng, 1996) with a queue's cycles as its virtual time. Only queues that have more frames than
//! they are asked for count: one that was emptied begins anew at the least of the others, so
//! nothing is saved up, and where no other queue has a backlog nobody waits.
//!
//! A queue whose burst took long is also asked for fewer frames at a time ([`Shares::fitting`]), so
//! that others need not wait for long.

use packet::io::BURST;
use std::time::Duration;

/// Bursts that take less are not worth the trouble: 64 frames at 0.8 us each. Also by how much a
/// queue may be ahead of others.
const LONG: Duration = Duration::from_micros(50);
/// Time that a burst may take where fewer frames help: what one queue adds to the waits of others.
const BURST_TIME: Duration = Duration::from_micros(200);
/// Most time counted for a burst: one that takes longer was most likely interrupted by other
/// threads, unless the one before did, too.
const MOST_COUNTED: Duration = Duration::from_millis(1);

/// What is known of a queue.
#[derive(Clone, Copy, Default)]
struct Queue {
    time: u64,
    /// The last turn in which it had a backlog.
    seen: u64,
    /// Whether its last burst took longer than [`MOST_COUNTED`].
    was_longest: bool,
}

/// The time that queues have had since a long burst, in cycles.
pub(super) struct Shares {
    long: u64,
    burst: u64,
    most_counted: u64,
    /// Whether it is counted.
    counts: bool,
    /// Number of the turn.
    turn: u64,
    /// By place of the queue; rings come after all receive queues.
    queues: Vec<Queue>,
    /// The least time among queues with a backlog.
    least: u64,
    /// In this turn: whether a queue with a backlog was served, whether a burst was long, and
    /// whether a queue was left alone.
    served: bool,
    was_long: bool,
    left: bool,
}

impl Shares {
    pub fn new() -> Shares {
        Shares {
            long: super::to_cycles(LONG),
            burst: super::to_cycles(BURST_TIME),
            most_counted: super::to_cycles(MOST_COUNTED),
            counts: false,
            turn: 1,
            queues: Vec::new(),
            least: 0,
            served: false,
            was_long: false,
            left: false,
        }
    }

    /// Forgets everything: queues have changed places, or none has a backlog.
    pub fn forget(&mut self) {
        self.counts = false;
        self.queues.clear();
        self.least = 0;
    }

    /// Returns whether a queue is to be left alone in this turn.
    #[inline]
    pub fn leaves(&mut self, queue: usize) -> bool {
        self.counts && self.is_ahead(queue)
    }

    fn is_ahead(&mut self, queue: usize) -> bool {
        let Some(queue) = self.queues.get_mut(queue) else {
            return false;
        };
        let ahead = queue.time > self.least + self.long;
        if ahead {
            queue.seen = self.turn;
            self.left = true;
        }
        ahead
    }

    /// Returns whether a burst takes long.
    #[inline]
    pub fn is_long(&self, time: u64) -> bool {
        time >= self.long
    }

    /// Returns how many frames to ask a queue for that was asked for `most`, and whose burst of
    /// `count` frames took so long: as many as [`BURST_TIME`] is enough for, but at most twice as
    /// many as before.
    #[cold]
    pub fn fitting(&self, took: u64, count: usize, most: usize) -> usize {
        let each = (took / count.max(1) as u64).max(1);
        let fit = usize::try_from(self.burst / each).unwrap_or(BURST);
        fit.min(2 * most).clamp(1, BURST)
    }

    /// Returns whether to call [`Shares::count`] for a burst that took so long.
    #[inline]
    pub fn counts(&self, time: u64) -> bool {
        self.counts || self.is_long(time)
    }

    /// Notes that a queue's burst took so long, and whether the queue may have more frames.
    #[cold]
    pub fn count(&mut self, queue: usize, time: u64, backlog: bool) {
        self.counts = true;
        self.served |= backlog;
        self.was_long |= self.is_long(time);
        if self.queues.len() <= queue {
            self.queues.resize(queue + 1, Queue::default());
        }
        let queue = &mut self.queues[queue];
        if queue.seen + 1 < self.turn {
            queue.time = queue.time.max(self.least);
        }
        let longest = time > self.most_counted;
        queue.time += match longest && !queue.was_longest {
            true => self.most_counted,
            false => time,
        };
        queue.was_longest = longest;
        queue.seen = if backlog { self.turn } else { 0 };
    }

    /// Ends a turn. Returns whether queues that were left alone in it are to be looked at next, as
    /// no other has a backlog.
    #[inline]
    pub fn end_turn(&mut self) -> bool {
        self.counts && self.settle()
    }

    #[cold]
    fn settle(&mut self) -> bool {
        let (served, left) = (self.served, self.left);
        let seen = self.queues.iter().filter(|queue| queue.seen == self.turn);
        let (least, most) = seen.fold((u64::MAX, 0), |(least, most), queue| {
            (least.min(queue.time), most.max(queue.time))
        });
        let even = most <= least.saturating_add(self.long);
        if !served || most == 0 || !left && !self.was_long && even {
            self.forget();
        } else {
            self.least = self.least.max(least);
        }
        self.turn += 1;
        (self.served, self.was_long, self.left) = (false, false, false);
        left && !served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(shares: &mut Shares, queue: usize, time: u64, backlog: bool) {
        if shares.counts(time) {
            shares.count(queue, time, backlog);
        }
    }

    /// Runs turns until the worker has spent `total` cycles on queues whose bursts take this long,
    /// and that have frames every so many turns. Returns the share of each queue.
    fn shares(queues: &[(u64, u64)], total: u64) -> Vec<f64> {
        let mut shares = Shares::new();
        let mut spent = vec![0; queues.len()];
        for turn in 0_u64.. {
            for (queue, (time, every)) in queues.iter().enumerate() {
                if turn.is_multiple_of(*every) && !shares.leaves(queue) {
                    spent[queue] += time;
                    took(&mut shares, queue, *time, *every == 1);
                }
            }
            shares.end_turn();
            if spent.iter().sum::<u64>() >= total {
                break;
            }
        }
        let all = spent.iter().sum::<u64>() as f64;
        spent.iter().map(|time| *time as f64 / all).collect()
    }

    #[test]
    fn a_queue_with_long_bursts_gets_its_share_and_no_more() {
        let long = Shares::new().long;
        let check = |bursts: &[u64]| {
            let queues: Vec<(u64, u64)> = bursts.iter().map(|time| (*time, 1)).collect();
            let shares = shares(&queues, 10_000 * long);
            let fair = 1.0 / bursts.len() as f64;
            for (queue, share) in shares.iter().enumerate() {
                let is_fair = (share / fair - 1.0).abs() < 0.1;
                assert!(is_fair, "{bursts:?}: {queue} has {share}");
            }
        };
        check(&[long / 20, 15 * long]);
        check(&[long / 20, long / 20, long / 20, 15 * long]);
        check(&[long, 2 * long, 3 * long]);
        check(&[long / 20, 15 * long, 15 * long]);
        check(&[5 * long, 20 * long]);
        check(&[20 * long, 20 * long]);
        // So long that a single one might be an interruption.
        check(&[long / 20, 200 * long]);
        // Short bursts take turns, whatever they cost.
        assert_eq!(shares(&[(1, 1), (3, 1)], 40 * long), [0.25, 0.75]);
    }

    #[test]
    fn a_queue_that_is_mostly_empty_keeps_nobody_waiting() {
        let long = Shares::new().long;
        let busy = long / 10;
        let found = shares(&[(busy, 1), (15 * long, 1), (1, 7)], 10_000 * long);
        assert!(
            (found[0] - 0.5).abs() < 0.05 && (found[1] - 0.5).abs() < 0.05,
            "{found:?}"
        );
        // With that one alone: the flood has all the rest.
        let found = shares(&[(1, 7), (15 * long, 1)], 10_000 * long);
        assert!(found[1] > 0.99, "{found:?}");
    }

    #[test]
    fn a_busy_queue_is_not_left_alone_if_no_other_has_a_backlog() {
        let mut shares = Shares::new();
        let long = 10 * shares.long;
        for _ in 0..10 {
            assert!(!shares.leaves(3));
            took(&mut shares, 3, long, true);
            assert!(!shares.end_turn());
        }
        // One that is emptied each time is none that others wait for.
        for _ in 0..10 {
            assert!(!shares.leaves(3));
            took(&mut shares, 1, 10, false);
            took(&mut shares, 3, long, true);
            assert!(!shares.end_turn());
        }
        took(&mut shares, 1, 10, true);
        took(&mut shares, 3, long, true);
        assert!(!shares.end_turn());
        assert!(shares.leaves(3) && !shares.leaves(1));
        // The other has frames no more.
        assert!(shares.end_turn(), "this one may have");
        assert!(!shares.leaves(3));
        assert!(!shares.end_turn());
        // The first long burst only begins the count.
        for leaves in [false, true] {
            took(&mut shares, 1, 10, true);
            took(&mut shares, 3, long, true);
            assert!(!shares.end_turn());
            assert_eq!(shares.leaves(3), leaves);
        }
        shares.forget();
        assert!(!shares.leaves(3));
    }

    #[test]
    fn as_many_frames_are_asked_for_as_fit() {
        let shares = Shares::new();
        let (most, all) = (shares.burst, BURST as u64);
        assert_eq!(shares.fitting(most * all / 2, BURST, BURST), 2);
        assert_eq!(shares.fitting(most * all * 9, BURST, BURST), 1);
        assert_eq!(shares.fitting(most, 2, 2), 2);
        // They have become cheap.
        assert_eq!(shares.fitting(most / 10, 2, 2), 4);
        assert_eq!(shares.fitting(0, 0, 4), 8);
        assert_eq!(shares.fitting(most, BURST, BURST), BURST);
    }
}
