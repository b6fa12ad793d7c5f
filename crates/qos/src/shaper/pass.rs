//! The fast path: packets that need not be queued.
//!
//! On most ports, most packets find an empty queue that has tokens. Such a packet is not stored,
//! only paid for and counted, for a run of packets of the same queue at once.

use super::credit::Mode;
use super::{NONE, Shaper};

/// Most queues whose packets are summed up.
const SUMS: usize = 16;

/// What arrives at one queue at once.
#[derive(Clone, Copy)]
struct Sum {
    place: usize,
    packets: u32,
    /// Cost of the largest packet, in bytes.
    largest: u32,
    bytes: u64,
    bits: u64,
}

impl Sum {
    const NONE: Sum = Sum {
        place: 0,
        packets: 0,
        largest: 0,
        bytes: 0,
        bits: 0,
    };
}

/// Returns the sum of this queue's packets; None if there is no room for another queue.
#[inline(always)]
fn sum_of(sums: &mut [Sum; SUMS], place: usize) -> Option<&mut Sum> {
    let mut at = place % SUMS;
    if sums[at].packets != 0 && sums[at].place != place {
        at = (0..SUMS).find(|at| sums[*at].packets == 0 || sums[*at].place == place)?;
    }
    sums[at].place = place;
    Some(&mut sums[at])
}

impl<H> Shaper<H> {
    /// Lets packets of a queue, of these lengths, leave at once, as if each of them came and left
    /// before the next came; returns how many of them, from the first on, have left. That is
    /// possible if the queue is empty and no waiting packet would leave first: by the queue's own
    /// rate, or if nobody else borrows from the port. Give the others to [`Shaper::enqueue`].
    #[inline]
    pub fn pass(&mut self, queue: usize, lens: impl Iterator<Item = u32>, now_ns: u64) -> usize {
        let catch_up_ns = self.catch_up_ns;
        let leaf = &self.leaves[queue];
        let kind = &self.kinds[leaf.kind as usize];
        if leaf.backlog.packets != 0
            || kind.mark_ns == 0
            || self.is_full(queue, 0)
            || self.watch.of(queue).is_some()
        {
            return 0;
        }
        if self.waiting == 0 {
            self.root.wake(&self.root_rates, catch_up_ns, now_ns);
        } else {
            self.root.fill(&self.root_rates, now_ns);
        }
        if self.root.mode() == Mode::Wait
            || self.waiting != 0 && self.ring_alarms(now_ns)
            || self.own.filled != 0
        {
            return 0;
        }
        let leaf = &mut self.leaves[queue];
        let kind = &self.kinds[leaf.kind as usize];
        leaf.credit.wake(&kind.rates, catch_up_ns, now_ns);
        let room = self.limit_bytes.saturating_sub(self.waiting_bytes);
        let largest = if self.waiting == 0 { u64::MAX } else { room }.min(kind.limit_bytes.into());
        let borrows = kind.rates.borrows();
        let others = self.tenants_own.filled | self.feeds.filled;
        let may_borrow = borrows && kind.tenant == NONE && others == 0;
        let (mut root, mut credit, mut deficit) = (self.root, leaf.credit, leaf.backlog.deficit);
        let (mut count, mut bytes, mut bits) = (0_u64, 0_u64, 0_u64);
        for len in lens {
            let cost = self.nodes.cost(len);
            let own = match credit.mode() {
                Mode::Own => true,
                Mode::Borrow if may_borrow => false,
                _ => break,
            };
            if root.mode() == Mode::Wait || u64::from(cost) > largest {
                break;
            }
            if !own {
                // As the only borrower, it has its turn again and again.
                deficit = if deficit > 0 {
                    deficit
                } else {
                    kind.quantum as i32
                };
                deficit -= cost as i32;
            }
            root.spend(&self.root_rates, u64::from(cost) * 8, true);
            credit.spend(&kind.rates, u64::from(cost) * 8, own);
            count += 1;
            bytes += u64::from(len);
            bits += u64::from(cost) * 8;
        }
        if count == 0 {
            return 0;
        }
        self.root = root;
        (leaf.credit, leaf.backlog.deficit) = (credit, deficit);
        leaf.sample_ns = leaf.sample_ns.checked_shr(count as u32).unwrap_or(0);
        self.counters.send(queue, count, bytes);
        if kind.tenant != NONE {
            let tenant = kind.tenant as usize;
            self.pass_tenant(tenant, bits, borrows, now_ns);
        }
        count as usize
    }

    /// Lets packets, each with the place of its queue and its length, leave at once, if nothing
    /// waits in the port and all of them may leave by the own rates of their queues, none of which
    /// has a tenant. Returns whether all have left; otherwise none has. Equals calls of
    /// [`Shaper::pass`] one after the other, but costs less.
    #[inline]
    pub fn pass_all(&mut self, packets: impl Iterator<Item = (usize, u32)>, now_ns: u64) -> bool {
        if self.waiting != 0 || self.own.filled != 0 {
            return false;
        }
        let mut sums = [Sum::NONE; SUMS];
        let mut all_bits = 0;
        for (place, len) in packets {
            let Some(sum) = sum_of(&mut sums, place) else {
                return false;
            };
            let cost = self.nodes.cost(len);
            sum.packets += 1;
            sum.bytes += u64::from(len);
            sum.bits += u64::from(cost) * 8;
            sum.largest = sum.largest.max(cost);
            all_bits += u64::from(cost) * 8;
        }
        let catch_up_ns = self.catch_up_ns;
        // Changes nothing before it is certain that all may leave: if the packets are queued
        // instead, they may be refused, and then no tokens may be spent.
        let mut root = self.root;
        root.wake(&self.root_rates, catch_up_ns, now_ns);
        if !root.holds(all_bits) {
            return false;
        }
        let used = |sum: &&Sum| sum.packets != 0;
        for sum in sums.iter().filter(used) {
            if self.is_full(sum.place, 0) || self.watch.of(sum.place).is_some() {
                return false;
            }
            let leaf = &self.leaves[sum.place];
            let kind = &self.kinds[leaf.kind as usize];
            let mut credit = leaf.credit;
            credit.wake(&kind.rates, catch_up_ns, now_ns);
            if kind.mark_ns == 0
                || sum.largest > kind.limit_bytes
                || kind.tenant != NONE
                || !credit.holds_own(sum.bits)
            {
                return false;
            }
        }
        root.spend(&self.root_rates, all_bits, true);
        self.root = root;
        for sum in sums.iter().filter(used) {
            let leaf = &mut self.leaves[sum.place];
            let kind = &self.kinds[leaf.kind as usize];
            leaf.credit.wake(&kind.rates, catch_up_ns, now_ns);
            leaf.credit.spend(&kind.rates, sum.bits, true);
            leaf.sample_ns = leaf.sample_ns.checked_shr(sum.packets).unwrap_or(0);
            self.counters.send(sum.place, sum.packets.into(), sum.bytes);
        }
        true
    }

    /// Charges a tenant for what one of its queues, which may borrow or not, has sent by its own
    /// rate.
    fn pass_tenant(&mut self, at: usize, bits: u64, borrows: bool, now_ns: u64) {
        let catch_up_ns = self.catch_up_ns;
        let tenant = &mut self.tenants[at];
        if borrows && tenant.feeds.filled == 0 {
            tenant.credit.wake(&tenant.rates, catch_up_ns, now_ns);
        }
        tenant.credit.fill(&tenant.rates, now_ns);
        tenant.credit.spend(&tenant.rates, bits, true);
        self.place_tenant(at);
    }
}
