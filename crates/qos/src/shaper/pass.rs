//! The way past the queues: packets that need not wait.
//!
//! Most packets of most ports meet an empty queue that has tokens. Such a packet is not put anywhere, only paid for and counted, a run of packets of the same queue at once.

use super::credit::Mode;
use super::{Leaf, NONE, Shaper};

impl<H> Shaper<H> {
    /// Lets packets of a queue, of these lengths, leave at once: how many of them, from the first on. It is as if each of them came and left before the next came. That can be where
    /// the queue is empty and sends by its own rate and none waits that would go before it; the others are to be given to [`Shaper::enqueue`].
    #[inline]
    pub fn pass(
        &mut self,
        queue: usize,
        lens: impl Iterator<Item = u32> + Clone,
        now_ns: u64,
    ) -> usize {
        let catch_up_ns = self.catch_up_ns;
        let leaf = &self.leaves[queue];
        if leaf.backlog.packets != 0
            || leaf.mark_ns == 0
            || self.is_full(queue, 0)
            || self.watch.of(queue).is_some()
        {
            return 0;
        }
        if self.waiting == 0 {
            self.root.wake(catch_up_ns, now_ns);
        } else {
            self.root.fill(now_ns);
        }
        if self.root.mode() == Mode::Wait
            || self.waiting != 0 && self.ring_alarms(now_ns)
            || self.own.filled != 0
        {
            return 0;
        }
        let leaf = &mut self.leaves[queue];
        leaf.credit.wake(catch_up_ns, now_ns);
        let room = self.limit_bytes.saturating_sub(self.waiting_bytes);
        let largest = if self.waiting == 0 { u64::MAX } else { room }.min(leaf.limit_bytes.into());
        let (mut count, mut bytes, mut bits) = (0_u64, 0_u64, 0_u64);
        let nodes = &self.nodes;
        for len in lens {
            let cost = nodes.cost(len);
            if self.root.after(bits) == Mode::Wait
                || leaf.credit.after(bits) != Mode::Own
                || u64::from(cost) > largest
            {
                break;
            }
            count += 1;
            bytes += u64::from(len);
            bits += u64::from(cost) * 8;
        }
        if count == 0 {
            return 0;
        }
        self.root.spend(bits, true);
        leaf.credit.spend(bits, true);
        let counters = self.counters.of(queue);
        counters.sent_packets.add(count);
        counters.sent_bytes.add(bytes);
        let Leaf { tenant, credit, .. } = *leaf;
        if tenant != NONE {
            self.pass_tenant(tenant as usize, bits, credit.max_rate > credit.rate, now_ns);
        }
        count as usize
    }

    /// A tenant pays for what one of its queues, which may borrow or not, has sent by its own rate.
    fn pass_tenant(&mut self, at: usize, bits: u64, borrows: bool, now_ns: u64) {
        let catch_up_ns = self.catch_up_ns;
        let tenant = &mut self.tenants[at];
        if borrows && tenant.feeds.filled == 0 {
            tenant.credit.wake(catch_up_ns, now_ns);
        }
        tenant.credit.fill(now_ns);
        tenant.credit.spend(bits, true);
        self.place_tenant(at);
    }
}
