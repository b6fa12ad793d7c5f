//! Reference shaper: lists instead of rings, a sorted map instead of a wheel, linear searches, and
//! tokens in unlimited integers.
//!
//! It defines what is sent next; [`crate::shaper`] says why.

use crate::shaper::backlog::bucket;
use crate::shaper::spec::quanta;
use crate::shaper::{ALARMS_PER_PACKET, DropReason, PortSpec, QueueSpec, QueueTotals, TICK_NS};
use std::collections::{BTreeMap, VecDeque};

const NANOBITS: i128 = 1_000_000_000;

/// A queue or a tenant, by its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Queue(usize),
    Tenant(usize),
}

#[derive(Clone, Debug)]
struct Tokens {
    rate: i128,
    max_rate: i128,
    burst: i128,
    catch_up: i128,
    own: i128,
    limit: i128,
    at: u64,
}

impl Tokens {
    fn new(rate: u64, max_rate: u64, burst: u64, catch_up_ns: u64, now: u64) -> Tokens {
        let burst = i128::from(burst) * NANOBITS;
        Tokens {
            rate: rate.into(),
            max_rate: max_rate.into(),
            burst,
            catch_up: catch_up_ns.into(),
            own: if rate == 0 { -1 } else { burst },
            limit: burst,
            at: now,
        }
    }

    fn fill(&mut self, now: u64) {
        let passed = i128::from(now.saturating_sub(self.at));
        self.at = self.at.max(now);
        if self.rate != 0 {
            self.own = (self.own + passed * self.rate).min(self.burst + self.catch_up * self.rate);
        }
        self.limit =
            (self.limit + passed * self.max_rate).min(self.burst + self.catch_up * self.max_rate);
    }

    fn wake(&mut self, now: u64) {
        self.fill(now);
        self.own = self.own.min(self.burst);
        self.limit = self.limit.min(self.burst);
    }

    fn waits(&self) -> bool {
        self.limit < 0
    }

    fn sends(&self) -> bool {
        !self.waits() && self.own >= 0
    }

    fn borrows(&self) -> bool {
        !self.waits() && self.max_rate > self.rate
    }

    /// Returns the tick at which it may do more.
    fn better(&self) -> Option<u64> {
        let (debt, rate) = if self.limit < 0 {
            (-self.limit, self.max_rate)
        } else if self.own < 0 && self.rate > 0 {
            (-self.own, self.rate)
        } else {
            return None;
        };
        let ns = i128::from(self.at) + (debt + rate - 1) / rate;
        Some(((ns + i128::from(TICK_NS) - 1) / i128::from(TICK_NS)) as u64)
    }

    fn spend(&mut self, bytes: u64, own: bool) {
        let tokens = i128::from(bytes) * 8 * NANOBITS;
        if own && self.rate != 0 {
            self.own -= tokens;
        }
        self.limit -= tokens;
    }

    fn inherit(&mut self, old: &Tokens, now: u64) {
        let mut old = old.clone();
        old.fill(now);
        self.at = self.at.max(old.at);
        if self.rate != 0 && old.rate != 0 {
            self.own = old.own.min(self.burst + self.catch_up * self.rate);
        }
        self.limit = old.limit.min(self.burst + self.catch_up * self.max_rate);
    }
}

#[derive(Clone, Debug)]
struct Packet {
    id: u64,
    arrival: u64,
    len: u32,
    ahead: u64,
    flow: u32,
}

/// What a class may still send in its turn, and how much it gets per turn.
#[derive(Clone, Debug, Default)]
struct Share {
    deficit: i64,
    quantum: i64,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    packets: VecDeque<Packet>,
    deficit: i64,
}

#[derive(Clone, Debug)]
struct Queue {
    spec: QueueSpec,
    tenant: Option<usize>,
    tokens: Tokens,
    flows: BTreeMap<usize, Flow>,
    turn: usize,
    sample: (u64, u64),
    share: Share,
    totals: QueueTotals,
}

#[derive(Clone, Debug)]
struct Tenant {
    number: u32,
    tokens: Tokens,
    share: Share,
    /// Queues that may borrow, by priority.
    feeds: BTreeMap<u8, VecDeque<usize>>,
}

/// A packet that has left: its number, its queue, how long it waited and whether it is to be
/// marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Its number.
    pub id: u64,
    /// Its queue's place.
    pub queue: usize,
    /// How long it has waited.
    pub waited_ns: u64,
    /// It is to be marked.
    pub mark: bool,
}

/// A port's reference shaper.
#[derive(Clone, Debug)]
pub struct Shaper {
    spec: PortSpec,
    root: Tokens,
    queues: Vec<Queue>,
    tenants: Vec<Tenant>,
    own: BTreeMap<u8, VecDeque<usize>>,
    tenants_own: BTreeMap<u8, VecDeque<usize>>,
    feeds: BTreeMap<u8, VecDeque<Class>>,
    /// Alarms by tick and order of setting.
    alarms: BTreeMap<(u64, u64), Class>,
    order: u64,
    /// The tick up to which alarms have rung; an alarm for an earlier tick counts as one for this.
    present: u64,
}

fn set_member<T: PartialEq>(
    lists: &mut BTreeMap<u8, VecDeque<T>>,
    priority: u8,
    who: T,
    wanted: bool,
) {
    let list = lists.entry(priority).or_default();
    let is_in = list.iter().position(|other| *other == who);
    match (is_in, wanted) {
        (None, true) => list.push_back(who),
        (Some(at), false) => {
            list.remove(at);
        }
        _ => {}
    }
    if list.is_empty() {
        lists.remove(&priority);
    }
}

impl Queue {
    fn packets(&self) -> usize {
        self.flows.values().map(|flow| flow.packets.len()).sum()
    }

    fn bytes(&self, overhead: i32) -> u64 {
        self.flows.values().map(|flow| flow.bytes(overhead)).sum()
    }

    fn ahead_of(&self, bucket: usize, overhead: i32) -> u64 {
        let own = self
            .flows
            .get(&bucket)
            .map_or(0, |flow| flow.bytes(overhead));
        let others = self.flows.keys().filter(|other| **other != bucket).count() as u64;
        if others == 0 {
            return self.bytes(overhead);
        }
        (own + others * (own + 1514)).min(self.bytes(overhead))
    }

    fn over_bound(&self, ahead: u64, slack: u64, arrival: u64) -> bool {
        let Some(bound) = self.spec.max_latency_ns.map(i128::from) else {
            return false;
        };
        let left = bound - i128::from(self.tokens.at - arrival.min(self.tokens.at));
        if ahead > 0 && left + i128::from(slack) < 0 {
            return true;
        }
        let bound = left.max(0);
        let bits = i128::from(ahead) * 8 * NANOBITS;
        if bits - self.tokens.limit > bound * self.tokens.max_rate {
            return true;
        }
        if bits - self.tokens.own <= bound * self.tokens.rate {
            return false;
        }
        i128::from(ahead) * i128::from(self.sample.0) > bound * i128::from(self.sample.1)
    }

    /// Returns the flow whose turn it is.
    fn next_flow(&mut self) -> Option<usize> {
        self.flows.first_key_value()?;
        if self.flows.len() == 1 {
            let (bucket, flow) = self.flows.iter_mut().next()?;
            if flow.deficit <= 0 {
                flow.deficit = 1514;
            }
            self.turn = *bucket;
            return Some(*bucket);
        }
        loop {
            if let Some(flow) = self.flows.get_mut(&self.turn) {
                if flow.deficit > 0 {
                    return Some(self.turn);
                }
                flow.deficit += 1514;
            }
            let later = self.flows.keys().find(|bucket| **bucket > self.turn);
            let first = self.flows.keys().next();
            self.turn = *later.or(first)?;
        }
    }

    fn push(&mut self, bits: u32, packet: Packet) {
        let fresh = Flow {
            packets: VecDeque::new(),
            deficit: 1514,
        };
        if self.flows.is_empty() {
            self.turn = bucket(packet.flow, bits);
        }
        let flow = self.flows.entry(bucket(packet.flow, bits)).or_insert(fresh);
        flow.packets.push_back(packet);
    }

    fn pop(&mut self, bucket: usize) -> Option<Packet> {
        let flow = self.flows.get_mut(&bucket)?;
        let packet = flow.packets.pop_front();
        if flow.packets.is_empty() {
            self.flows.remove(&bucket);
        }
        packet
    }
}

fn cost(len: u32, overhead: i32) -> u64 {
    (i64::from(len) + i64::from(overhead)).max(1) as u64
}

impl Flow {
    fn bytes(&self, overhead: i32) -> u64 {
        self.packets
            .iter()
            .map(|packet| cost(packet.len, overhead))
            .sum()
    }
}

impl Shaper {
    /// Makes an empty shaper of a valid configuration.
    pub fn new(spec: &PortSpec, now: u64) -> Shaper {
        let catch_up = spec.catch_up_ns;
        let tenants: Vec<Tenant> = spec
            .tenants
            .iter()
            .map(|tenant| Tenant {
                number: tenant.number,
                tokens: Tokens::new(
                    tenant.min_rate,
                    tenant.max_rate.min(spec.max_rate),
                    tenant.burst,
                    catch_up,
                    now,
                ),
                share: Share::default(),
                feeds: BTreeMap::new(),
            })
            .collect();
        let queues: Vec<Queue> = spec
            .queues
            .iter()
            .map(|queue| Queue {
                tenant: queue
                    .tenant
                    .and_then(|number| tenants.iter().position(|tenant| tenant.number == number)),
                tokens: Tokens::new(
                    queue.min_rate,
                    queue.max_rate.min(spec.max_rate),
                    queue.burst,
                    catch_up,
                    now,
                ),
                spec: queue.clone(),
                flows: BTreeMap::new(),
                turn: 0,
                sample: (0, 0),
                share: Share::default(),
                totals: QueueTotals::default(),
            })
            .collect();
        let mut shaper = Shaper {
            root: Tokens::new(spec.max_rate, spec.max_rate, spec.burst, catch_up, now),
            spec: spec.clone(),
            queues,
            tenants,
            own: BTreeMap::new(),
            tenants_own: BTreeMap::new(),
            feeds: BTreeMap::new(),
            alarms: BTreeMap::new(),
            order: 0,
            present: now / TICK_NS,
        };
        shaper.set_quanta();
        shaper
    }

    fn set_quanta(&mut self) {
        for parent in (0..self.tenants.len()).map(Some).chain([None]) {
            let mut siblings: Vec<Class> = (0..self.queues.len())
                .filter(|at| self.queues[*at].tenant == parent)
                .map(Class::Queue)
                .collect();
            if parent.is_none() {
                siblings.extend((0..self.tenants.len()).map(Class::Tenant));
            }
            let rates: Vec<u64> = siblings
                .iter()
                .map(|class| self.tokens(*class).rate as u64)
                .collect();
            for (class, quantum) in siblings.into_iter().zip(quanta(&rates)) {
                *self.share(class) = Share {
                    deficit: quantum.into(),
                    quantum: quantum.into(),
                };
            }
        }
    }

    fn tokens(&self, class: Class) -> &Tokens {
        match class {
            Class::Queue(at) => &self.queues[at].tokens,
            Class::Tenant(at) => &self.tenants[at].tokens,
        }
    }

    fn share(&mut self, class: Class) -> &mut Share {
        match class {
            Class::Queue(at) => &mut self.queues[at].share,
            Class::Tenant(at) => &mut self.tenants[at].share,
        }
    }

    fn set_alarm(&mut self, class: Class, tick: Option<u64>) {
        let tick = tick.map(|tick| tick.max(self.present));
        let held = self
            .alarms
            .iter()
            .find(|(_, other)| **other == class)
            .map(|(at, _)| *at);
        if held.map(|at| at.0) == tick {
            return;
        }
        held.map(|at| self.alarms.remove(&at));
        if let Some(tick) = tick {
            self.order += 1;
            self.alarms.insert((tick, self.order), class);
        }
    }

    fn waiting(&self) -> usize {
        self.queues.iter().map(Queue::packets).sum()
    }

    /// Adds a packet.
    pub fn enqueue(
        &mut self,
        at: usize,
        id: u64,
        len: u32,
        flow: u32,
        now: u64,
    ) -> Result<(), DropReason> {
        let (overhead, bits) = (self.spec.overhead, self.spec.flows.trailing_zeros());
        let slot = bucket(flow, bits);
        let waiting = self.waiting();
        let limit = self.spec.limit_packets as usize;
        let waiting_bytes: u64 = self.queues.iter().map(|queue| queue.bytes(overhead)).sum();
        let limit_bytes = self.spec.limit_bytes;
        let cost = cost(len, overhead);
        let queue = &mut self.queues[at];
        if queue.packets() == 0 {
            queue.tokens.wake(now);
        } else {
            queue.tokens.fill(now);
        }
        let ahead = queue.ahead_of(slot, overhead);
        let full = |queue: &Queue| {
            queue.packets() >= queue.spec.limit_packets as usize
                || queue.bytes(overhead) + cost > queue.spec.limit_bytes.into()
        };
        let mut reason = None;
        if queue.over_bound(ahead, self.spec.slack_ns, now) {
            reason = Some(DropReason::OverBound);
        } else if queue.packets() + waiting >= limit
            || waiting > 0
                && (queue.bytes(overhead) + waiting_bytes >= limit_bytes
                    || waiting_bytes + cost > limit_bytes)
        {
            reason = Some(DropReason::PortFull);
        } else {
            while full(queue) {
                let own = queue
                    .flows
                    .get(&slot)
                    .map_or(0, |flow| flow.bytes(overhead));
                // The most bytes; of equal ones, the lowest bucket.
                let fattest = queue.flows.iter().max_by_key(|(bucket, flow)| {
                    (flow.bytes(overhead), std::cmp::Reverse(**bucket))
                });
                match fattest.map(|(bucket, flow)| (*bucket, flow.bytes(overhead))) {
                    Some((bucket, most)) if most > own && queue.packets() > 1 => {
                        queue.pop(bucket);
                        queue.totals.dropped[DropReason::QueueFull as usize] += 1;
                    }
                    _ => {
                        reason = Some(DropReason::QueueFull);
                        break;
                    }
                }
            }
        }
        if let Some(reason) = reason {
            queue.totals.dropped[reason as usize] += 1;
            return Err(reason);
        }
        let idle = queue.packets() == 0;
        let arrival = now;
        queue.push(
            bits,
            Packet {
                id,
                arrival,
                len,
                ahead,
                flow,
            },
        );
        if waiting == 0 {
            self.root.wake(now);
        }
        if idle {
            self.place(Class::Queue(at), now);
        }
        Ok(())
    }

    /// Lets a packet leave at once, if its queue is empty and no waiting packet would leave first:
    /// by the queue's own rate, or if nobody else borrows from the port. Due alarms ring first.
    pub fn pass(&mut self, at: usize, id: u64, len: u32, flow: u32, now: u64) -> Option<Left> {
        let overhead = self.spec.overhead;
        let waiting = self.waiting() > 0;
        let bytes: u64 = self.queues.iter().map(|queue| queue.bytes(overhead)).sum();
        let full = self.waiting() >= self.spec.limit_packets as usize
            || waiting && bytes >= self.spec.limit_bytes;
        if full || self.queues[at].packets() > 0 || self.queues[at].spec.mark_ns == Some(0) {
            return None;
        }
        self.root.fill(now);
        if !waiting {
            self.root.wake(now);
        }
        if self.root.waits() || waiting && self.ring_alarms(now) || !self.own.is_empty() {
            return None;
        }
        self.queues[at].tokens.wake(now);
        let before = self.clone();
        let alone = self.tenants_own.is_empty() && self.feeds.is_empty();
        let lent = alone && self.queues[at].tenant.is_none();
        if self.enqueue(at, id, len, flow, now).is_ok()
            && (self.queues[at].tokens.sends() || lent && self.queues[at].tokens.borrows())
            && let Some(left) = self.dequeue(now)
        {
            assert_eq!(left.id, id, "none goes before it");
            if !waiting {
                // Nobody has asked for alarms: if a packet that came earlier is reported only now,
                // its own alarm must not be postponed to this time.
                self.present = before.present;
            }
            return Some(left);
        }
        *self = before;
        None
    }

    fn place(&mut self, class: Class, now: u64) {
        match class {
            Class::Queue(at) => {
                let queue = &self.queues[at];
                let waits = queue.packets() > 0;
                let alarm = queue.tokens.better().filter(|_| waits);
                let (own, feed) = (
                    waits && queue.tokens.sends(),
                    waits && queue.tokens.borrows(),
                );
                let (priority, tenant) = (queue.spec.priority, queue.tenant);
                self.set_alarm(class, alarm);
                set_member(&mut self.own, priority, at, own);
                let Some(owner) = tenant else {
                    return set_member(&mut self.feeds, priority, class, feed);
                };
                let tenant = &mut self.tenants[owner];
                let before: Vec<u8> = tenant.feeds.keys().copied().collect();
                set_member(&mut tenant.feeds, priority, at, feed);
                let after: Vec<u8> = tenant.feeds.keys().copied().collect();
                if before != after {
                    if before.is_empty() {
                        tenant.tokens.wake(now);
                    }
                    self.place(Class::Tenant(owner), now);
                }
            }
            Class::Tenant(at) => {
                let tenant = &self.tenants[at];
                let wants: Vec<u8> = tenant.feeds.keys().copied().collect();
                let alarm = tenant.tokens.better().filter(|_| !wants.is_empty());
                let (sends, borrows) = (tenant.tokens.sends(), tenant.tokens.borrows());
                self.set_alarm(class, alarm);
                for priority in 0..8 {
                    let wants = wants.contains(&priority);
                    set_member(&mut self.tenants_own, priority, at, wants && sends);
                    set_member(&mut self.feeds, priority, class, wants && borrows);
                }
            }
        }
    }

    fn ring_alarms(&mut self, now: u64) -> bool {
        for _ in 0..ALARMS_PER_PACKET {
            let due = self
                .alarms
                .iter()
                .next()
                .filter(|(at, _)| at.0 <= now / TICK_NS);
            let Some((at, class)) = due.map(|(at, class)| (*at, *class)) else {
                self.present = self.present.max(now / TICK_NS);
                return false;
            };
            self.present = self.present.max(at.0);
            self.alarms.remove(&at);
            match class {
                Class::Queue(at) => self.queues[at].tokens.fill(now),
                Class::Tenant(at) => self.tenants[at].tokens.fill(now),
            }
            self.place(class, now);
        }
        true
    }

    /// Deficit round robin over a list whose front has the turn.
    fn whose_turn(&mut self, list: &mut VecDeque<Class>) -> Class {
        loop {
            let (first, alone) = (list[0], list.len() == 1);
            let share = self.share(first);
            if share.deficit > 0 {
                return first;
            }
            if alone {
                share.deficit = share.quantum;
                return first;
            }
            share.deficit += share.quantum;
            list.rotate_left(1);
        }
    }

    fn choose_in_tenant(&mut self, tenant: usize, priority: u8) -> usize {
        let list = self.tenants[tenant].feeds[&priority].iter();
        let mut list = list.map(|at| Class::Queue(*at)).collect();
        let chosen = self.whose_turn(&mut list);
        let queues = list.into_iter().map(|class| match class {
            Class::Queue(at) | Class::Tenant(at) => at,
        });
        self.tenants[tenant]
            .feeds
            .insert(priority, queues.collect());
        match chosen {
            Class::Queue(at) | Class::Tenant(at) => at,
        }
    }

    /// Returns the queue that sends, and whose tokens it uses: 0 its own, 1 its tenant's, 2 the
    /// port's.
    fn choose(&mut self) -> Option<(usize, u8)> {
        if let Some((_, list)) = self.own.first_key_value() {
            return Some((list[0], 0));
        }
        if let Some((&priority, list)) = self.tenants_own.first_key_value() {
            let tenant = list[0];
            return Some((self.choose_in_tenant(tenant, priority), 1));
        }
        let (&priority, list) = self.feeds.first_key_value()?;
        let mut list = list.clone();
        let chosen = self.whose_turn(&mut list);
        self.feeds.insert(priority, list);
        match chosen {
            Class::Queue(at) => Some((at, 2)),
            Class::Tenant(at) => Some((self.choose_in_tenant(at, priority), 2)),
        }
    }

    /// Returns the next packet that leaves.
    pub fn dequeue(&mut self, now: u64) -> Option<Left> {
        if self.waiting() == 0 {
            return None;
        }
        self.root.fill(now);
        if self.root.waits() {
            return None;
        }
        loop {
            let more = self.ring_alarms(now);
            while let Some((at, lender)) = self.choose() {
                if let Some(left) = self.send(at, lender, now) {
                    return Some(left);
                }
            }
            if !more {
                return None;
            }
        }
    }

    fn send(&mut self, at: usize, lender: u8, now: u64) -> Option<Left> {
        let (slack, overhead) = (self.spec.slack_ns, self.spec.overhead);
        let queue = &mut self.queues[at];
        let packet = loop {
            let Some(bucket) = queue.next_flow() else {
                self.place(Class::Queue(at), now);
                return None;
            };
            let waited = now.saturating_sub(queue.flows[&bucket].packets[0].arrival);
            let late = queue
                .spec
                .max_latency_ns
                .is_some_and(|bound| waited > bound + slack);
            if !late {
                let flow = queue.flows.get_mut(&bucket)?;
                flow.deficit -= cost(flow.packets[0].len, overhead) as i64;
            }
            let packet = queue.pop(bucket)?;
            if !late {
                break packet;
            }
            queue.totals.dropped[DropReason::Late as usize] += 1;
        };
        let waited_ns = now.saturating_sub(packet.arrival);
        let mark = queue.spec.mark_ns.is_some_and(|mark| waited_ns >= mark);
        queue.totals.packets += 1;
        queue.totals.bytes += u64::from(packet.len);
        queue.totals.marked += u64::from(mark);
        if packet.ahead != 0 {
            queue.sample = (waited_ns, packet.ahead);
        } else {
            queue.sample.0 /= 2;
        }
        self.account(at, lender, cost(packet.len, overhead), now);
        Some(Left {
            id: packet.id,
            queue: at,
            waited_ns,
            mark,
        })
    }

    fn account(&mut self, at: usize, lender: u8, bytes: u64, now: u64) {
        let queue = &mut self.queues[at];
        let (priority, tenant) = (queue.spec.priority, queue.tenant);
        if lender > 0 {
            queue.share.deficit -= bytes as i64;
        }
        queue.tokens.fill(now);
        queue.tokens.spend(bytes, lender == 0);
        self.root.spend(bytes, true);
        if lender == 0 {
            self.own.entry(priority).or_default().rotate_left(1);
        }
        if lender == 1 {
            self.tenants_own.entry(priority).or_default().rotate_left(1);
        }
        if let (2, Some(owner)) = (lender, tenant) {
            self.tenants[owner].share.deficit -= bytes as i64;
        }
        self.place(Class::Queue(at), now);
        if let Some(owner) = tenant {
            self.tenants[owner].tokens.fill(now);
            self.tenants[owner].tokens.spend(bytes, lender < 2);
            self.place(Class::Tenant(owner), now);
        }
    }

    /// Reconfigures the port; what stays keeps its state.
    pub fn reconfigure(&mut self, spec: &PortSpec, now: u64) {
        let old = std::mem::replace(self, Shaper::new(spec, now));
        self.root.inherit(&old.root, now);
        for tenant in &mut self.tenants {
            if let Some(before) = old.tenants.iter().find(|old| old.number == tenant.number) {
                tenant.tokens.inherit(&before.tokens, now);
            }
        }
        for queue in &mut self.queues {
            if let Some(before) = old
                .queues
                .iter()
                .find(|old| old.spec.number == queue.spec.number)
            {
                queue.tokens.inherit(&before.tokens, now);
                queue.totals = before.totals;
            }
        }
        for before in old.queues {
            let numbered = |number| move |queue: &Queue| queue.spec.number == number;
            let at = self.queues.iter().position(numbered(before.spec.number));
            let at = at.or_else(|| self.queues.iter().position(numbered(spec.default_queue)));
            for packet in before.flows.into_values().flat_map(|flow| flow.packets) {
                at.into_iter().for_each(|at| {
                    self.queues[at].push(spec.flows.trailing_zeros(), packet.clone())
                });
            }
        }
        for at in 0..self.queues.len() {
            self.place(Class::Queue(at), now);
        }
    }

    /// Returns a queue's counters.
    pub fn totals(&self, at: usize) -> QueueTotals {
        QueueTotals {
            waiting: self.queues[at].packets() as u64,
            ..self.queues[at].totals
        }
    }
}
