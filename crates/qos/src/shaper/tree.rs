//! Who may send, and who does: rings, alarms and turns.

use super::backlog::NONE;
use super::counters::DropReason;
use super::credit::Mode;
use super::ring::Links;
use super::spec::PRIORITIES;
use super::{ALARMS_PER_PACKET, Departure, Feeds, IN_FEED, IN_OWN, Leaf, Shaper, wheel};

/// By whose tokens a packet leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lender {
    /// Its queue's own.
    Queue,
    /// Its tenant's.
    Tenant,
    /// The port's.
    Port,
}

/// A queue whose turn it is.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    leaf: usize,
    lender: Lender,
}

fn join(feeds: &mut Feeds, links: &mut Links, priority: u8, link: u32) {
    links.join(&mut feeds.turns[usize::from(priority)], link);
    feeds.filled |= 1 << priority;
}

fn leave(feeds: &mut Feeds, links: &mut Links, priority: u8, link: u32) {
    let turn = &mut feeds.turns[usize::from(priority)];
    links.leave(turn, link);
    if *turn == NONE {
        feeds.filled &= !(1 << priority);
    }
}

impl<H> Shaper<H> {
    /// The link by which a queue stands in its parent's ring of borrowers.
    #[inline]
    fn feed_link(&self, leaf: usize) -> u32 {
        (self.leaves.len() + leaf) as u32
    }

    #[inline]
    fn tenant_link(&self, tenant: usize, priority: u8, feed: bool) -> u32 {
        let at = (2 * tenant + usize::from(feed)) * PRIORITIES + usize::from(priority);
        (2 * self.leaves.len() + at) as u32
    }

    /// Puts a queue where its packets, its tokens and the time say.
    #[inline]
    pub(super) fn place(&mut self, at: usize, now_ns: u64) {
        let leaf = &mut self.leaves[at];
        let credit = &leaf.credit;
        let mode = credit.mode();
        let waits = leaf.backlog.packets != 0;
        let borrows = credit.max_rate > credit.rate;
        let mut wanted = 0;
        if waits && mode == Mode::Own {
            wanted |= IN_OWN;
        }
        if waits && mode != Mode::Wait && borrows {
            wanted |= IN_FEED;
        }
        let better = if waits { credit.better_at() } else { None };
        let changed = leaf.placed ^ wanted;
        leaf.placed = wanted;
        let priority = leaf.priority;
        match better {
            Some(ns) => self.wheel.set(at as u32, wheel::tick_from(ns)),
            None => self.wheel.cancel(at as u32),
        }
        if changed & IN_OWN != 0 {
            let act = if wanted & IN_OWN != 0 { join } else { leave };
            act(&mut self.own, &mut self.links, priority, at as u32);
        }
        if changed & IN_FEED != 0 {
            self.place_in_feed(at, wanted & IN_FEED != 0, now_ns);
        }
    }

    #[inline]
    fn place_in_feed(&mut self, at: usize, wanted: bool, now_ns: u64) {
        let Leaf {
            tenant, priority, ..
        } = self.leaves[at];
        let link = self.feed_link(at);
        let act = if wanted { join } else { leave };
        if tenant == NONE {
            return act(&mut self.feeds, &mut self.links, priority, link);
        }
        let catch_up_ns = self.catch_up_ns;
        let state = &mut self.tenants[tenant as usize];
        let before = state.feeds.filled;
        act(&mut state.feeds, &mut self.links, priority, link);
        if before != state.feeds.filled {
            if before == 0 {
                state.credit.wake(catch_up_ns, now_ns);
            }
            self.place_tenant(tenant as usize);
        }
    }

    /// Puts a tenant where its queues' wants and its tokens say.
    fn place_tenant(&mut self, at: usize) {
        let tenant = &mut self.tenants[at];
        let credit = &tenant.credit;
        let mode = credit.mode();
        let wants = tenant.feeds.filled;
        let own = if mode == Mode::Own { wants } else { 0 };
        let borrows = mode != Mode::Wait && credit.max_rate > credit.rate;
        let feed = if borrows { wants } else { 0 };
        let better = if wants == 0 { None } else { credit.better_at() };
        let changed_own = tenant.in_own ^ own;
        let changed_feed = tenant.in_feed ^ feed;
        (tenant.in_own, tenant.in_feed) = (own, feed);
        let class = (self.leaves.len() + at) as u32;
        match better {
            Some(ns) => self.wheel.set(class, wheel::tick_from(ns)),
            None => self.wheel.cancel(class),
        }
        for priority in (0..PRIORITIES as u8)
            .filter(|priority| (changed_own | changed_feed) >> priority & 1 == 1)
        {
            if changed_own >> priority & 1 == 1 {
                let link = self.tenant_link(at, priority, false);
                let act = if own >> priority & 1 == 1 {
                    join
                } else {
                    leave
                };
                act(&mut self.tenants_own, &mut self.links, priority, link);
            }
            if changed_feed >> priority & 1 == 1 {
                let link = self.tenant_link(at, priority, true);
                let act = if feed >> priority & 1 == 1 {
                    join
                } else {
                    leave
                };
                act(&mut self.feeds, &mut self.links, priority, link);
            }
        }
    }

    /// Looks at the classes whose time has come; whether there may be more.
    #[inline]
    pub(super) fn ring_alarms(&mut self, now_ns: u64) -> bool {
        for _ in 0..ALARMS_PER_PACKET {
            let Some(class) = self.wheel.ring(now_ns) else {
                return false;
            };
            if let Some(next) = self.wheel.upcoming() {
                self.prefetch(next as usize);
            }
            let at = class as usize;
            if at < self.leaves.len() {
                self.leaves[at].credit.fill(now_ns);
                self.place(at, now_ns);
            } else {
                let tenant = at - self.leaves.len();
                self.tenants[tenant].credit.fill(now_ns);
                self.place_tenant(tenant);
            }
        }
        true
    }

    /// Whose turn it is among borrowers: the first that has not used its share up.
    #[inline]
    fn whose_turn(&mut self, mut link: u32) -> u32 {
        let queues = self.leaves.len();
        loop {
            let next = self.links.next(link);
            let (deficit, quantum) = if (link as usize) < 2 * queues {
                let leaf = &mut self.leaves[link as usize - queues];
                (&mut leaf.deficit, leaf.quantum)
            } else {
                let tenant = &mut self.tenants[(link as usize - 2 * queues) / (2 * PRIORITIES)];
                (&mut tenant.deficit, tenant.quantum)
            };
            if *deficit > 0 {
                return link;
            }
            if next == link {
                *deficit = quantum as i32;
                return link;
            }
            *deficit += quantum as i32;
            link = next;
        }
    }

    /// The queue of a tenant whose turn it is at this priority.
    #[inline]
    fn choose_in_tenant(&mut self, link: u32, priority: usize) -> usize {
        let tenant = (link as usize - 2 * self.leaves.len()) / (2 * PRIORITIES);
        let turn = self.whose_turn(self.tenants[tenant].feeds.turns[priority]);
        self.tenants[tenant].feeds.turns[priority] = turn;
        turn as usize - self.leaves.len()
    }

    /// The queue whose turn it is: by its own rate, else by what its tenant has, else by what the port lends.
    #[inline]
    pub(super) fn choose(&mut self) -> Option<Choice> {
        if self.own.filled != 0 {
            let leaf = self.own.turns[self.own.filled.trailing_zeros() as usize] as usize;
            let lender = Lender::Queue;
            return Some(Choice { leaf, lender });
        }
        if self.tenants_own.filled != 0 {
            let priority = self.tenants_own.filled.trailing_zeros() as usize;
            let leaf = self.choose_in_tenant(self.tenants_own.turns[priority], priority);
            let lender = Lender::Tenant;
            return Some(Choice { leaf, lender });
        }
        if self.feeds.filled == 0 {
            return None;
        }
        let priority = self.feeds.filled.trailing_zeros() as usize;
        let turn = self.whose_turn(self.feeds.turns[priority]);
        self.feeds.turns[priority] = turn;
        let queues = self.leaves.len();
        let leaf = if (turn as usize) < 2 * queues {
            turn as usize - queues
        } else {
            self.choose_in_tenant(turn, priority)
        };
        let lender = Lender::Port;
        Some(Choice { leaf, lender })
    }

    /// Sends the next packet of the chosen queue; none when all that it had came too late.
    #[inline]
    pub(super) fn send(&mut self, choice: Choice, now_ns: u64) -> Option<Departure<H>> {
        let at = choice.leaf;
        let slack_ns = self.slack_ns;
        let leaf = &mut self.leaves[at];
        let flows = &mut self.flows[at << self.flow_bits..][..1 << self.flow_bits];
        let counters = &self.counters[at];
        let taken = loop {
            let Some((bucket, first)) = leaf.backlog.first(flows) else {
                counters.waiting.set(0);
                self.place(at, now_ns);
                return None;
            };
            let waited_ns = now_ns.saturating_sub(self.nodes.get(first).arrival_ns);
            let late = waited_ns > leaf.bound_ns.saturating_add(slack_ns);
            let taken = leaf.backlog.pop(flows, &mut self.nodes, bucket, !late);
            self.waiting -= 1;
            if !late {
                break taken;
            }
            counters.drop(DropReason::Late);
            self.dropped += 1;
        };
        let waited_ns = now_ns.saturating_sub(taken.arrival_ns);
        let len = taken.len;
        if let Some(cell) = self.watch.of(at) {
            let behind = leaf.backlog.packets != 0;
            cell.leave(self.nodes.cost(len), waited_ns, behind, now_ns);
        }
        let mark = leaf.mark_ns != u32::MAX && waited_ns >= u64::from(leaf.mark_ns);
        counters.sent_packets.add(1);
        counters.sent_bytes.add(len.into());
        counters.marked.add(mark.into());
        counters.waiting.set(leaf.backlog.packets.into());
        if taken.ahead != 0 {
            leaf.sample_ns = waited_ns.min(u32::MAX.into()) as u32;
            leaf.sample_bytes = taken.ahead;
        }
        self.account(choice, self.nodes.cost(len), now_ns);
        Some(Departure {
            handle: taken.handle,
            queue: at,
            len,
            waited_ns,
            mark,
        })
    }

    /// Passes the turn on and takes the tokens.
    #[inline]
    fn account(&mut self, choice: Choice, cost: u32, now_ns: u64) {
        let at = choice.leaf;
        let bits = u64::from(cost) * 8;
        let leaf = &mut self.leaves[at];
        let (tenant, priority) = (leaf.tenant, leaf.priority);
        let owner = tenant as usize;
        let turn = usize::from(priority);
        match choice.lender {
            Lender::Queue => {
                let next = self.links.next(at as u32);
                self.own.turns[turn] = next;
                self.prefetch(next as usize);
            }
            Lender::Tenant => {
                leaf.deficit -= cost as i32;
                let link = self.tenants_own.turns[turn];
                self.tenants_own.turns[turn] = self.links.next(link);
            }
            Lender::Port => {
                leaf.deficit -= cost as i32;
                if tenant != NONE {
                    self.tenants[owner].deficit -= cost as i32;
                }
            }
        }
        self.root.spend(bits, true);
        let credit = &mut self.leaves[at].credit;
        credit.fill(now_ns);
        credit.spend(bits, choice.lender == Lender::Queue);
        self.place(at, now_ns);
        if tenant != NONE {
            let tenant = &mut self.tenants[owner];
            tenant.credit.fill(now_ns);
            tenant.credit.spend(bits, choice.lender != Lender::Port);
            self.place_tenant(owner);
        }
    }
}
