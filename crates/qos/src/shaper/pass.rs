//! The way past the queues: packets that need not wait.
//!
//! Most packets of most ports meet an empty queue that has tokens. Such a packet is not put
//! anywhere, only paid for and counted, a run of packets of the same queue at once.

use super::credit::Mode;
use super::{NONE, Shaper};

/// Queues whose packets are summed up at most.
const SUMS: usize = 16;

/// What comes to a queue at once.
#[derive(Clone, Copy)]
struct Sum {
    place: usize,
    packets: u32,
    /// What the largest packet counts.
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

/// The sum of this queue's packets, where there is room for another queue.
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
    /// Lets packets of a queue, of these lengths, leave at once: how many of them, from the first
    /// on. It is as if each of them came and left before the next came. That can be where
    /// the queue is empty and none waits that would go before it: by its own rate, or where nobody
    /// else borrows from the port. The others are to be given to [`Shaper::enqueue`].
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
        let room = self.now_bytes.saturating_sub(self.waiting_bytes);
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
                // Alone among those that borrow, it has its turn again and again.
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

    /// Lets packets, each with the place of its queue and its length, leave at once, where nothing
    /// waits in the port and all of them may by the own rates of their queues, of which none has a
    /// tenant: all or none, and which it was. It is as if [`Shaper::pass`] had been called for
    /// them one after the other, but costs less.
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
        // Nothing is changed before it is known that all may: who takes the packets in otherwise
        // may refuse them, and then tokens stay as they are.
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

    /// A tenant pays for what one of its queues, which may borrow or not, has sent by its own rate.
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
