//! The other ends of ports that are measured: a thread that keeps frames coming and takes away what
//! is sent, so that the port never waits while it is timed.

use packet::io::BURST;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most frames on their way to the port; every kind of port holds more than this.
const AHEAD: u64 = 2 * BURST as u64;
/// Most frames that the port has sent and the peer has not taken before the port sends another
/// burst; together with that burst they fit into a guest's ring.
const BEHIND: u64 = 2 * BURST as u64;
/// How long a frame may be outstanding (not received, or not taken) before it counts as lost.
const LOST: Duration = Duration::from_millis(50);

/// The other end of a port.
pub(super) trait Peer: Send {
    /// Sends up to `count` frames to the port, as many as there is room for; returns how many.
    fn send(&mut self, count: usize) -> usize;

    /// Takes away what the port has sent: `sent` frames in all so far. Returns how many the peer
    /// has taken in all.
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

/// The port's side: tells it when a burst is waiting and there is room to send it on.
pub(super) struct Gauge<'a> {
    counts: &'a Counts,
    until: Instant,
    /// Begin of the time in which the port has received nothing.
    empty: Option<Instant>,
}

impl Gauge<'_> {
    /// Notes that `handed` frames were received and sent, and waits until the next burst is there.
    /// Returns false if time is up first.
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
            // The peer may share this processor.
            std::thread::yield_now();
        }
    }
}

/// Runs `measure` while a thread, pinned to the processor `cpu` if one is given, plays the peer.
/// Ends by `until` at the latest.
pub(super) fn with_peer<T>(
    peer: &mut dyn Peer,
    cpu: Option<usize>,
    until: Instant,
    measure: impl FnOnce(&mut Gauge<'_>) -> T,
) -> T {
    /// Tells the thread to end, even on a panic; the scope waits for it.
    struct End<'a>(&'a Counts);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.end.store(true, Ordering::Release);
        }
    }
    let counts = Counts::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Without the pin it is slower, but still right.
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

    /// A line that loses the first frames, and whose other end takes frames one by one.
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
        // All bursts were full, except a few around the loss.
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
