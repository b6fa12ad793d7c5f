//! The other ends of ports that are measured: a thread that keeps frames coming, and takes away
//! what is sent, so that neither side waits while the port is timed.

use packet::io::BURST;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Frames that are on their way to the port at most; fewer than any of them holds.
const AHEAD: u64 = 2 * BURST as u64;
/// Frames that the port has sent and nobody has taken away at most, before it sends another burst;
/// with that one no more than a guest's ring holds.
const BEHIND: u64 = 2 * BURST as u64;
/// After how long a frame that has not come, or has not been taken, is taken for lost.
const LOST: Duration = Duration::from_millis(50);

/// The other end of a port.
pub(super) trait Peer: Send {
    /// Sends up to `count` frames to the port, as many as there is room for; returns how many.
    fn send(&mut self, count: usize) -> usize;

    /// Takes away what the port has sent, `sent` frames so far; returns how many of all it has
    /// taken.
    fn take(&mut self, sent: u64) -> u64;
}

/// Frames so far, by who counts them.
#[derive(Default)]
struct Counts {
    /// Sent by the peer.
    put: AtomicU64,
    /// Received by the port.
    received: AtomicU64,
    /// Sent by the port.
    sent: AtomicU64,
    /// Taken away by the peer.
    taken: AtomicU64,
    end: AtomicBool,
}

/// The port's side: says when a burst waits and there is room for it on the way out.
pub(super) struct Gauge<'a> {
    counts: &'a Counts,
    until: Instant,
    /// Since when the port has received nothing.
    empty: Option<Instant>,
}

impl Gauge<'_> {
    /// Notes that `handed` frames were received and sent, and waits until the next burst is there;
    /// false where that takes too long.
    pub(super) fn ready(&mut self, handed: usize) -> bool {
        let Counts {
            put,
            received,
            sent,
            taken,
            ..
        } = self.counts;
        for count in [received, sent] {
            count.fetch_add(handed as u64, Ordering::AcqRel);
        }
        let mut since = Instant::now();
        match handed {
            0 => {
                let empty = *self.empty.get_or_insert(since);
                if since.saturating_duration_since(empty) > LOST {
                    received.store(put.load(Ordering::Acquire), Ordering::Release);
                    self.empty = None;
                }
            }
            _ => self.empty = None,
        }
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        loop {
            let waiting = load(put).saturating_sub(load(received));
            let unread = load(sent).saturating_sub(load(taken));
            if waiting >= BURST as u64 && unread <= BEHIND {
                return true;
            }
            let now = Instant::now();
            if now > self.until {
                return false;
            }
            if now.saturating_duration_since(since) > LOST {
                received.store(load(put), Ordering::Release);
                sent.store(load(taken), Ordering::Release);
                since = now;
            }
            // The peer may have no processor but this one.
            std::thread::yield_now();
        }
    }
}

/// Lets `measure` work while a thread on the processor `cpu`, if one is named, plays the peer. It
/// ends by `until` at the latest.
pub(super) fn with_peer<T>(
    peer: &mut dyn Peer,
    cpu: Option<usize>,
    until: Instant,
    measure: impl FnOnce(&mut Gauge<'_>) -> T,
) -> T {
    /// Ends the thread, which the scope waits for, whatever happens.
    struct End<'a>(&'a Counts);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.end.store(true, Ordering::Release);
        }
    }
    let counts = Counts::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Where it cannot be had, it is slower, and right all the same.
            let _ = cpu.map(datapath::pin);
            play(peer, &counts);
        });
        let end = End(&counts);
        let done = measure(&mut Gauge {
            counts: &counts,
            until,
            empty: None,
        });
        drop(end);
        done
    })
}

fn play(peer: &mut dyn Peer, counts: &Counts) {
    let load = |count: &AtomicU64| count.load(Ordering::Acquire);
    while !counts.end.load(Ordering::Acquire) {
        let waiting = load(&counts.put).saturating_sub(load(&counts.received));
        let room = AHEAD.saturating_sub(waiting).min(BURST as u64);
        let put = match room {
            0 => 0,
            room => peer.send(room as usize) as u64,
        };
        counts.put.fetch_add(put, Ordering::AcqRel);
        let taken = peer.take(load(&counts.sent));
        counts.taken.store(taken, Ordering::Release);
        if put == 0 {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that loses the first frames, and whose other end takes them one by one.
    struct Line<'a> {
        waiting: &'a AtomicU64,
        lose: u64,
        taken: u64,
    }

    impl Peer for Line<'_> {
        fn send(&mut self, count: usize) -> usize {
            let lost = self.lose.min(count as u64);
            self.lose -= lost;
            self.waiting
                .fetch_add(count as u64 - lost, Ordering::AcqRel);
            count
        }

        fn take(&mut self, sent: u64) -> u64 {
            // The first five never come.
            self.taken = sent.saturating_sub(5).min(self.taken + 1);
            self.taken
        }
    }

    #[test]
    fn bursts_wait_however_slow_the_other_side_is_and_what_is_lost_does_not_stop_it() {
        let waiting = AtomicU64::new(0);
        let mut line = Line {
            waiting: &waiting,
            lose: AHEAD + 10,
            taken: 0,
        };
        let until = Instant::now() + Duration::from_secs(60);
        let (frames, bursts) = with_peer(&mut line, None, until, |gauge| {
            let (mut frames, mut bursts, mut handed) = (0, 0, 0);
            while frames < 50 * BURST as u64 && gauge.ready(handed as usize) {
                handed = waiting.load(Ordering::Acquire).min(BURST as u64);
                waiting.fetch_sub(handed, Ordering::AcqRel);
                frames += handed;
                bursts += u64::from(handed > 0);
            }
            (frames, bursts)
        });
        assert!(frames >= 50 * BURST as u64 && line.lose == 0);
        // All but those about the loss were whole.
        assert!(bursts <= 60, "{bursts} bursts");
        assert!(line.taken > 0);
    }

    #[test]
    fn a_peer_that_does_nothing_ends_it() {
        struct Dead;
        impl Peer for Dead {
            fn send(&mut self, _: usize) -> usize {
                0
            }
            fn take(&mut self, _: u64) -> u64 {
                0
            }
        }
        let until = Instant::now() + Duration::from_millis(20);
        assert!(!with_peer(&mut Dead, None, until, |gauge| gauge.ready(0)));
    }
}
