//! Which classes may send, and whose turn it is: rings, alarms and turns.

use super::backlog::NONE;
use super::counters::DropReason;
use super::credit::Mode;
use super::ring::{FEED, Knots, OWN};
use super::spec::PRIORITIES;
use super::{
    ALARMED, ALARMS_PER_PACKET, Departure, FETCHED, Feeds, IN_FEED, IN_OWN, QueueConfig, Shaper,
    prefetch, wheel,
};

/// Whose tokens a packet leaves by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lender {
    /// Its queue's.
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

/// A class in a ring.
#[derive(Clone, Copy)]
enum Member {
    Queue(usize),
    Tenant(usize),
}

/// Returns the knot of a tenant in rings of this priority; its alarm has another knot.
pub(super) fn tenant_knot(queues: usize, tenants: usize, tenant: usize, priority: u8) -> usize {
    queues + tenants + tenant * PRIORITIES + usize::from(priority)
}

fn join(feeds: &mut Feeds, knots: &mut Knots, priority: u8, link: u32) {
    knots.join(&mut feeds.turns[usize::from(priority)], link);
    feeds.filled |= 1 << priority;
}

fn leave(feeds: &mut Feeds, knots: &mut Knots, priority: u8, link: u32) {
    let turn = &mut feeds.turns[usize::from(priority)];
    knots.leave(turn, link);
    if *turn == NONE {
        feeds.filled &= !(1 << priority);
    }
}

impl<H> Shaper<H> {
    /// Returns the link of a tenant in a ring of this priority.
    #[inline]
    fn tenant_link(&self, tenant: usize, priority: u8, ring: u32) -> u32 {
        let knot = tenant_knot(self.leaves.len(), self.tenants.len(), tenant, priority);
        2 * knot as u32 + ring
    }

    /// Returns the class that a link belongs to.
    #[inline]
    fn member(&self, link: u32) -> Member {
        let knot = link as usize / 2;
        match knot.checked_sub(self.leaves.len()) {
            None => Member::Queue(knot),
            Some(beyond) => Member::Tenant((beyond - self.tenants.len()) / PRIORITIES),
        }
    }

    /// Puts a queue into the rings or sets the alarm that its backlog, its tokens and the time call
    /// for.
    #[inline]
    pub(super) fn place(&mut self, at: usize, now_ns: u64) {
        let leaf = &mut self.leaves[at];
        let kind = &self.kinds[leaf.kind as usize];
        let credit = &leaf.credit;
        let mode = credit.mode();
        let waits = leaf.backlog.packets != 0;
        let borrows = kind.rates.borrows();
        let mut wanted = 0;
        if waits && mode == Mode::Own {
            wanted |= IN_OWN;
        }
        if waits && mode != Mode::Wait && borrows {
            wanted |= IN_FEED;
        }
        let better = if waits {
            credit.better_at(&kind.rates)
        } else {
            None
        };
        let changed = leaf.backlog.placed ^ wanted;
        let priority = kind.priority;
        if let Some(ns) = better {
            let tick = wheel::tick_from(ns);
            if borrows {
                self.wheel.set(&mut self.knots, at as u32, tick);
            } else if changed & ALARMED == 0 {
                // It can do nothing before its alarm rings, so this alarm is never moved.
                self.wheel.set_firm(at as u32, tick);
            }
            wanted |= ALARMED;
        } else if borrows && changed & ALARMED != 0 {
            self.wheel.cancel(&mut self.knots, at as u32);
        } else {
            wanted |= changed & ALARMED;
        }
        leaf.backlog.placed = wanted;
        if changed & IN_OWN != 0 {
            if wanted & IN_OWN != 0 {
                self.own.join(priority, at as u32);
            } else {
                debug_assert_eq!(self.own.after(priority, 0), at as u32);
                self.own.leave(priority);
            }
        }
        if changed & IN_FEED != 0 {
            self.place_in_feed(at, wanted & IN_FEED != 0, now_ns);
        }
    }

    /// Like [`Shaper::place`], for a queue that is in no ring and has no alarm. One that does not
    /// borrow either sends by its own rate or gets an alarm.
    #[inline(always)]
    pub(super) fn place_anew(&mut self, at: usize, now_ns: u64) {
        let leaf = &mut self.leaves[at];
        let kind = &self.kinds[leaf.kind as usize];
        if leaf.backlog.placed != 0 || kind.rates.borrows() {
            return self.place(at, now_ns);
        }
        if leaf.backlog.packets == 0 {
            return;
        }
        if leaf.credit.mode() == Mode::Own {
            leaf.backlog.placed = IN_OWN;
            self.own.join(kind.priority, at as u32);
        } else if let Some(ns) = leaf.credit.better_at(&kind.rates) {
            // It can do nothing before its alarm rings, so this alarm is never moved.
            leaf.backlog.placed = ALARMED;
            self.wheel.set_firm(at as u32, wheel::tick_from(ns));
        }
    }

    #[inline]
    fn place_in_feed(&mut self, at: usize, wanted: bool, now_ns: u64) {
        let QueueConfig {
            tenant, priority, ..
        } = self.kinds[self.leaves[at].kind as usize];
        let link = 2 * at as u32 + FEED;
        let act = if wanted { join } else { leave };
        if tenant == NONE {
            return act(&mut self.feeds, &mut self.knots, priority, link);
        }
        let catch_up_ns = self.catch_up_ns;
        let state = &mut self.tenants[tenant as usize];
        let before = state.feeds.filled;
        act(&mut state.feeds, &mut self.knots, priority, link);
        if before != state.feeds.filled {
            if before == 0 {
                state.credit.wake(&state.rates, catch_up_ns, now_ns);
            }
            self.place_tenant(tenant as usize);
        }
    }

    /// Puts a tenant into the rings or sets the alarm that its queues and its tokens call for.
    pub(super) fn place_tenant(&mut self, at: usize) {
        let tenant = &mut self.tenants[at];
        let credit = &tenant.credit;
        let mode = credit.mode();
        let wants = tenant.feeds.filled;
        let own = if mode == Mode::Own { wants } else { 0 };
        let borrows = mode != Mode::Wait && tenant.rates.borrows();
        let feed = if borrows { wants } else { 0 };
        let better = if wants == 0 {
            None
        } else {
            credit.better_at(&tenant.rates)
        };
        let changed_own = tenant.in_own ^ own;
        let changed_feed = tenant.in_feed ^ feed;
        (tenant.in_own, tenant.in_feed) = (own, feed);
        let class = (self.leaves.len() + at) as u32;
        match better {
            Some(ns) => self.wheel.set(&mut self.knots, class, wheel::tick_from(ns)),
            None => self.wheel.cancel(&mut self.knots, class),
        }
        for priority in (0..PRIORITIES as u8)
            .filter(|priority| (changed_own | changed_feed) >> priority & 1 == 1)
        {
            if changed_own >> priority & 1 == 1 {
                let link = self.tenant_link(at, priority, OWN);
                let act = if own >> priority & 1 == 1 {
                    join
                } else {
                    leave
                };
                act(&mut self.tenants_own, &mut self.knots, priority, link);
            }
            if changed_feed >> priority & 1 == 1 {
                let link = self.tenant_link(at, priority, FEED);
                let act = if feed >> priority & 1 == 1 {
                    join
                } else {
                    leave
                };
                act(&mut self.feeds, &mut self.knots, priority, link);
            }
        }
    }

    /// Places the classes whose alarms are due; returns whether more may be.
    #[inline]
    pub(super) fn ring_alarms(&mut self, now_ns: u64) -> bool {
        if !self.wheel.is_due(now_ns) {
            return false;
        }
        for _ in 0..ALARMS_PER_PACKET {
            let Some(class) = self.wheel.ring(&mut self.knots, now_ns) else {
                return false;
            };
            self.fetch_ahead_of_alarms();
            let at = class as usize;
            if at < self.leaves.len() {
                let leaf = &mut self.leaves[at];
                let rates = &self.kinds[leaf.kind as usize].rates;
                leaf.credit.fill(rates, now_ns);
                leaf.backlog.placed &= !ALARMED;
                self.place_anew(at, now_ns);
            } else {
                let at = at - self.leaves.len();
                let tenant = &mut self.tenants[at];
                tenant.credit.fill(&tenant.rates, now_ns);
                self.place_tenant(at);
            }
        }
        true
    }

    /// Prefetches classes whose alarms ring soon: first the classes, and later, when they are in
    /// the cache, their packets.
    #[inline(always)]
    fn fetch_ahead_of_alarms(&mut self) {
        if let Some((far, firm)) = self.wheel.after(2 * FETCHED)
            && let Some(leaf) = self.leaves.get(far)
        {
            prefetch::fetch(leaf);
            self.fetch_kind(far);
            if !firm {
                self.knots.fetch(far as u32);
            }
        }
        if let Some((near, _)) = self.wheel.after(FETCHED)
            && let Some(leaf) = self.leaves.get(near)
        {
            self.counters.fetch(near);
            self.nodes
                .fetch(leaf.backlog.likely_head(self.flows_of(near)));
        }
    }

    /// Prefetches the packet that a queue is likely to send next.
    #[inline]
    fn fetch_packet(&self, at: usize) {
        if let Some(leaf) = self.leaves.get(at)
            && leaf.backlog.packets != 0
        {
            self.nodes
                .fetch(leaf.backlog.likely_head(self.flows_of(at)));
        }
    }

    /// Returns whose turn it is among borrowers: the first that has not used up its share.
    #[inline]
    fn whose_turn(&mut self, mut link: u32) -> u32 {
        loop {
            let next = self.knots.next(link);
            if let Member::Queue(at) = self.member(next) {
                self.fetch_all(at);
            }
            let (deficit, quantum) = match self.member(link) {
                Member::Queue(at) => {
                    let leaf = &mut self.leaves[at];
                    let quantum = self.kinds[leaf.kind as usize].quantum;
                    (&mut leaf.backlog.deficit, quantum)
                }
                Member::Tenant(at) => {
                    let tenant = &mut self.tenants[at];
                    (&mut tenant.deficit, tenant.quantum)
                }
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

    /// Returns the queue of a tenant whose turn it is at this priority.
    #[inline]
    fn choose_in_tenant(&mut self, tenant: usize, priority: usize) -> usize {
        let turn = self.whose_turn(self.tenants[tenant].feeds.turns[priority]);
        self.tenants[tenant].feeds.turns[priority] = turn;
        turn as usize / 2
    }

    /// Returns the queue whose turn it is: by its own rate, else by its tenant's tokens, else by
    /// the port's.
    #[inline]
    pub(super) fn choose(&mut self) -> Option<Choice> {
        if let Some(turn) = self.own.turn() {
            let (leaf, lender) = (turn as usize, Lender::Queue);
            return Some(Choice { leaf, lender });
        }
        if self.tenants_own.filled != 0 {
            let priority = self.tenants_own.filled.trailing_zeros() as usize;
            let link = self.tenants_own.turns[priority];
            let leaf = match self.member(link) {
                Member::Tenant(at) => self.choose_in_tenant(at, priority),
                Member::Queue(at) => at,
            };
            let lender = Lender::Tenant;
            return Some(Choice { leaf, lender });
        }
        if self.feeds.filled == 0 {
            return None;
        }
        let priority = self.feeds.filled.trailing_zeros() as usize;
        let turn = self.whose_turn(self.feeds.turns[priority]);
        self.feeds.turns[priority] = turn;
        let leaf = match self.member(turn) {
            Member::Queue(at) => at,
            Member::Tenant(at) => self.choose_in_tenant(at, priority),
        };
        let lender = Lender::Port;
        Some(Choice { leaf, lender })
    }

    /// Sends the next packet of the chosen queue; None if all its packets were late.
    #[inline]
    pub(super) fn send(&mut self, choice: Choice, now_ns: u64) -> Option<Departure<H>> {
        let at = choice.leaf;
        let slack_ns = self.slack_ns;
        let leaf = &mut self.leaves[at];
        let kind = &self.kinds[leaf.kind as usize];
        let flows = &mut self.flows[at << self.flow_bits..][..1 << self.flow_bits];
        let counters = &self.counters;
        let taken = loop {
            let Some((bucket, first)) = leaf.backlog.first(flows) else {
                counters.wait(at, 0);
                if let Some(cell) = self.watch.of(at) {
                    cell.rest();
                }
                self.place(at, now_ns);
                return None;
            };
            let waited_ns = now_ns.saturating_sub(self.nodes.get(first).arrival_ns);
            let late = waited_ns > kind.bound_ns.saturating_add(slack_ns);
            let taken = leaf.backlog.pop(flows, &mut self.nodes, bucket, !late);
            self.waiting -= 1;
            self.waiting_bytes -= u64::from(self.nodes.cost(taken.len));
            if !late {
                break taken;
            }
            counters.refuse(at, DropReason::Late);
            self.dropped += 1;
        };
        let waited_ns = now_ns.saturating_sub(taken.arrival_ns);
        let len = taken.len;
        if let Some(cell) = self.watch.of(at) {
            let behind = leaf.backlog.packets != 0;
            cell.leave(self.nodes.cost(len), waited_ns, behind, now_ns);
        }
        let mark = kind.mark_ns != u32::MAX && waited_ns >= u64::from(kind.mark_ns);
        counters.wait(at, leaf.backlog.packets);
        counters.send(at, 1, len.into());
        if mark {
            counters.mark(at);
        }
        if taken.ahead != 0 {
            leaf.sample_ns = waited_ns.min(u32::MAX.into()) as u32;
            leaf.sample_bytes = taken.ahead;
        } else {
            // A slow sample must age: otherwise it could keep out all packets that would replace
            // it.
            leaf.sample_ns /= 2;
        }
        self.account(choice, self.nodes.cost(len), now_ns);
        Some(Departure {
            handle: taken.handle,
            queue: at,
            len,
            waited_ns,
            mark,
            flow: taken.flow,
        })
    }

    /// Prefetches a queue some turns ahead in the line of those that send by their own rate, and
    /// the packet of a nearer one. Done only if the line is so long that what was prefetched for
    /// their alarms has been evicted.
    #[inline]
    fn fetch_ahead(&self, priority: u8) {
        if self.own.after(priority, ALARMS_PER_PACKET as u32) == NONE {
            return;
        }
        self.fetch_all(self.own.after(priority, 3) as usize);
        self.fetch_packet(self.own.after(priority, 1) as usize);
    }

    /// Passes the turn on and takes the tokens.
    #[inline]
    fn account(&mut self, choice: Choice, cost: u32, now_ns: u64) {
        let at = choice.leaf;
        let bits = u64::from(cost) * 8;
        let leaf = &mut self.leaves[at];
        let kind = &self.kinds[leaf.kind as usize];
        let (tenant, priority) = (kind.tenant, kind.priority);
        let owner = tenant as usize;
        let turn = usize::from(priority);
        match choice.lender {
            Lender::Queue => {
                // If it may send again, it rejoins at the end.
                self.own.leave(priority);
                leaf.backlog.placed &= !IN_OWN;
                self.fetch_ahead(priority);
            }
            Lender::Tenant => {
                leaf.backlog.deficit -= cost as i32;
                let link = self.tenants_own.turns[turn];
                self.tenants_own.turns[turn] = self.knots.next(link);
            }
            Lender::Port => {
                leaf.backlog.deficit -= cost as i32;
                if tenant != NONE {
                    self.tenants[owner].deficit -= cost as i32;
                }
            }
        }
        self.root.spend(&self.root_rates, bits, true);
        let leaf = &mut self.leaves[at];
        let rates = &self.kinds[leaf.kind as usize].rates;
        leaf.credit.fill(rates, now_ns);
        leaf.credit
            .spend(rates, bits, choice.lender == Lender::Queue);
        self.place_anew(at, now_ns);
        if tenant != NONE {
            let tenant = &mut self.tenants[owner];
            tenant.credit.fill(&tenant.rates, now_ns);
            tenant
                .credit
                .spend(&tenant.rates, bits, choice.lender != Lender::Port);
            self.place_tenant(owner);
        }
    }
}
