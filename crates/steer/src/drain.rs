//! Decides when a sender that cannot park packets may move a flow: an XDP program that redirects
//! packets through a `cpumap`.
//!
//! It may when all packets of the flow that were sent to the old core have finished there. The
//! sender counts what it sends on a *lane*, the way from one receiving processor to one core, and
//! remembers for each flow the count after its last packet (its ticket). The core counts, for each
//! lane, what it has finished. Packets of a lane stay in order, so when the finished count has
//! reached the ticket, nothing of the flow is left. Counts of different lanes must not be added:
//! packets of another receiving processor may finish earlier although they were counted later.
//!
//! The core takes packets in batches, and the program there runs when a batch *begins*. So the
//! finished count may include only the batches before the one that begins. A core that becomes idle
//! does not count its last batch. Therefore a second rule: a flow may also move after a gap longer
//! than the longest wait that was measured on its core ([`LongestWait`]).
//!
//! Packets that are lost on the way because the core's queue is full must be counted as finished;
//! else only the second rule applies. `tests/all/drain.rs` tries every order of the steps up to a
//! bound, and shows that counting a batch as finished when it begins reorders packets.

use crate::cores::CoreId;

/// Counts of packets sent and finished on a lane. They wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Lane {
    /// Packets sent.
    pub sent: u32,
    /// Packets that have left the core, or were lost on the way to it.
    pub finished: u32,
}

/// A flow's last packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// The core it was sent to.
    pub core: CoreId,
    /// The lane's count of sent packets, this one included.
    pub number: u32,
    /// When it was sent, ns.
    pub sent_ns: u64,
}

impl Lane {
    /// Counts a packet that is sent on this lane, and returns its flow's new ticket.
    pub fn send(&mut self, core: CoreId, now_ns: u64) -> Ticket {
        self.sent = self.sent.wrapping_add(1);
        Ticket {
            core,
            number: self.sent,
            sent_ns: now_ns,
        }
    }

    /// Returns whether the packet of a ticket of this lane has finished.
    pub fn has_finished(&self, ticket: &Ticket) -> bool {
        // The difference is right as long as fewer than 2^31 packets are in flight.
        self.finished.wrapping_sub(ticket.number) as i32 >= 0
    }

    /// Returns whether the flow may move to another core.
    pub fn may_move(&self, ticket: &Ticket, longest_wait_ns: u64, now_ns: u64) -> bool {
        self.has_finished(ticket) || now_ns.saturating_sub(ticket.sent_ns) > longest_wait_ns
    }
}

/// The longest time that a packet took to get to a core and be processed there, over the last one
/// to two windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongestWait {
    window_ns: u64,
    least_ns: u64,
    begun_ns: u64,
    now: u64,
    before: u64,
}

impl LongestWait {
    /// Remembers waits for `window_ns`, and never returns less than `least_ns`.
    pub fn new(window_ns: u64, least_ns: u64, now_ns: u64) -> LongestWait {
        LongestWait {
            window_ns,
            least_ns,
            begun_ns: now_ns,
            now: 0,
            before: 0,
        }
    }

    /// Records a measured wait.
    pub fn note(&mut self, wait_ns: u64, now_ns: u64) {
        self.turn(now_ns);
        self.now = self.now.max(wait_ns);
    }

    /// Returns the longest wait, ns.
    pub fn longest_ns(&mut self, now_ns: u64) -> u64 {
        self.turn(now_ns);
        self.now.max(self.before).max(self.least_ns)
    }

    fn turn(&mut self, now_ns: u64) {
        let since = now_ns.saturating_sub(self.begun_ns);
        if since >= self.window_ns {
            let one_window = since < self.window_ns.saturating_mul(2);
            self.before = if one_window { self.now } else { 0 };
            self.now = 0;
            self.begun_ns = now_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_moves_when_its_packets_have_finished_or_after_a_gap() {
        let mut lane = Lane {
            sent: u32::MAX - 1,
            finished: u32::MAX - 1,
        };
        let first = lane.send(CoreId(0), 100);
        let second = lane.send(CoreId(0), 100);
        assert_eq!((first.number, second.number), (u32::MAX, 0));
        lane.finished = u32::MAX;
        assert!(lane.may_move(&first, 50, 101));
        assert!(!lane.may_move(&second, 50, 150));
        assert!(lane.may_move(&second, 50, 151));
        lane.finished = 0;
        assert!(lane.may_move(&second, 50, 101));
    }

    #[test]
    fn waits_are_forgotten_after_two_windows() {
        let mut wait = LongestWait::new(100, 5, 0);
        wait.note(40, 10);
        wait.note(20, 90);
        assert_eq!(wait.longest_ns(99), 40);
        wait.note(10, 150);
        assert_eq!(wait.longest_ns(200), 40);
        assert_eq!(wait.longest_ns(251), 10);
        assert_eq!(wait.longest_ns(1_000), 5);
    }
}
