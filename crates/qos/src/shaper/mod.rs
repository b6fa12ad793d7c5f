//! The shaper: packets wait in queues until rates and turns let them leave, and no longer than
//! their bound allows.
//!
//! **Rates.** A port has queues, or tenants that have queues. Each of these classes has a
//! guaranteed and a maximum rate with a burst ([`PortSpec`]). A packet leaves by its queue's
//! guaranteed rate; if no queue has tokens of that, by a tenant's guaranteed rate; if no tenant
//! has, by what is left of the port's rate. A parent lends its tokens to the child of the first
//! priority, and among equals by deficit round robin in proportion to their rates. That is the
//! order of the kernel's HTB; unlike there, nothing exceeds the port's own rate.
//!
//! **Bound.** A queue may have a bound (`max_latency_ns`). A packet that cannot leave within it is
//! dropped on arrival: certainly, if not even the maximum rate could send what is ahead of it in
//! time; presumably, if the guaranteed rate could not and the queue was recently served too slowly
//! (measured by the wait of the packet that left last, and the bytes that were ahead of it). If
//! that estimate was too optimistic, the packet is dropped when its turn comes
//! ([`DropReason::Late`]). A dropped packet costs no tokens. So a bound of 0 makes a policer, and
//! no bound makes HTB.
//!
//! **Flows.** A queue's flows take turns ([`PortSpec::flows`]), and what is ahead of a packet is
//! counted accordingly.
//!
//! **Cost.** Classes that may send are in rings, classes that must wait have alarms in a timing
//! wheel, and a packet moves only its own queue and tenant. So a packet costs the same with 8
//! queues as with 100,000, except for cache misses; callers can announce queues early
//! ([`Shaper::prefetch`]).
//!
//! Nothing here reads a clock or knows a packet: handles have a length, and time comes in as
//! nanoseconds that do not go back (if they do, time stands still).

mod adopt;
pub(crate) mod backlog;
mod counters;
mod credit;
mod pass;
mod prefetch;
mod ring;
pub mod spec;
mod tree;
pub mod waits;
pub mod watch;
mod wheel;

pub use counters::{Counters, DROP_REASONS, DropReason, QueueTotals};
pub use spec::{Line, PortSpec, QueueSpec, SpecError, TenantSpec};
pub use wheel::TICK_NS;

use backlog::{Backlog, Flow, Nodes, Taken, bucket};
use credit::{Credit, Mode, Rates};
use prefetch::Many;
use ring::{Knots, Lines};
use spec::{PRIORITIES, quanta};
use std::sync::Arc;
use watch::Watch;
use wheel::Wheel;

const NONE: u32 = u32::MAX;

/// Most alarms handled between two packets, so that many at once do not delay a packet that may
/// leave.
pub const ALARMS_PER_PACKET: usize = 64;

/// How many alarms ahead the memory of a queue's packet is prefetched; the queue itself, twice as
/// many ahead.
const FETCHED: usize = 8;

/// How many packets of a burst ahead a packet's queue is prefetched; its flow and the packet before
/// it, half as many ahead.
const BURST_AHEAD: usize = 16;

/// Bits of [`Backlog::placed`]. This one: the queue is in the ring of those that send by their own
/// rate.
const IN_OWN: u8 = 1;
/// The queue is in its parent's ring of borrowers.
const IN_FEED: u8 = 2;
/// The queue's alarm is set.
const ALARMED: u8 = 4;

/// A queue's configuration. Queues with the same configuration share it, so that it stays in the
/// cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(64))]
struct QueueConfig {
    rates: Rates,
    bound_ns: u64,
    limit_packets: u32,
    limit_bytes: u32,
    mark_ns: u32,
    quantum: u32,
    /// Place of its tenant, or [`NONE`] if its parent is the port.
    tenant: u32,
    priority: u8,
}

/// Packets that may wait in a queue whatever [`Shaper::bound`] says, within the port's own limits:
/// a queue that is not flooded finds room at once when other ports have taken what is shared.
const FEW: u32 = 4;

/// Most kinds that queues share; if there are more, each queue has its own at the queue's place,
/// which can be prefetched with the queue.
const SHARED_KINDS: usize = 256;

/// A queue, in one cache line: tokens, backlog, and where it is placed ([`IN_OWN`], [`IN_FEED`],
/// [`ALARMED`]).
#[repr(C, align(64))]
struct Leaf {
    credit: Credit,
    backlog: Backlog,
    /// The wait of the last packet that found others waiting, in nanoseconds (halved by each since
    /// that found none),
    sample_ns: u32,
    /// and the bytes that were ahead of it.
    sample_bytes: u32,
    /// Index of its kind.
    kind: u32,
}

const _: () = assert!(size_of::<Leaf>() == 64 && size_of::<QueueConfig>() == 64);

/// Rings of classes, one for each priority, known by the member whose turn it is.
struct Feeds {
    turns: [u32; PRIORITIES],
    /// Bit set of the priorities that have any.
    filled: u8,
}

impl Feeds {
    const EMPTY: Feeds = Feeds {
        turns: [NONE; PRIORITIES],
        filled: 0,
    };
}

struct Tenant {
    credit: Credit,
    rates: Rates,
    feeds: Feeds,
    /// Bit set of the priorities by which it is in the ring of tenants that send by their own rate.
    in_own: u8,
    /// Bit set of the priorities by which it is in the port's rings of borrowers.
    in_feed: u8,
    deficit: i32,
    quantum: u32,
    number: u32,
}

/// Maps queue numbers to places.
struct Numbers {
    /// Indexed by number, if numbers are dense.
    dense: Box<[u32]>,
    /// Otherwise sorted (number, place) pairs.
    sparse: Box<[(u32, u32)]>,
}

impl Numbers {
    fn new(queues: &[QueueSpec]) -> Numbers {
        let highest = queues.iter().map(|queue| queue.number).max().unwrap_or(0);
        let pairs = queues.iter().zip(0..).map(|(queue, at)| (queue.number, at));
        if (highest as usize) < queues.len() * 4 + 1024 {
            let mut dense = vec![NONE; highest as usize + 1];
            pairs.for_each(|(number, at)| dense[number as usize] = at);
            return Numbers {
                dense: dense.into(),
                sparse: Box::default(),
            };
        }
        let mut sparse: Vec<(u32, u32)> = pairs.collect();
        sparse.sort_unstable();
        Numbers {
            dense: Box::default(),
            sparse: sparse.into(),
        }
    }

    #[inline]
    fn find(&self, number: u32) -> Option<usize> {
        if let Some(&at) = self.dense.get(number as usize) {
            return (at != NONE).then_some(at as usize);
        }
        let sparse = &self.sparse;
        let at = sparse.binary_search_by_key(&number, |pair| pair.0).ok()?;
        Some(sparse[at].1 as usize)
    }
}

/// A packet that leaves.
#[derive(Debug, PartialEq, Eq)]
pub struct Departure<H> {
    /// The packet.
    pub handle: H,
    /// The place of its queue.
    pub queue: usize,
    /// Its length in bytes.
    pub len: u32,
    /// How long it has waited.
    pub waited_ns: u64,
    /// Whether it is to be ECN-marked, if it can be.
    pub mark: bool,
    /// The hash of its flow, as given to [`Shaper::enqueue`].
    pub flow: u32,
}

/// A packet that was refused.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused<H> {
    /// The packet.
    pub handle: H,
    /// Why.
    pub reason: DropReason,
}

/// A port's shaper, which holds packets by their handles.
pub struct Shaper<H> {
    leaves: Many<Leaf>,
    kinds: Many<QueueConfig>,
    tenants: Box<[Tenant]>,
    root: Credit,
    root_rates: Rates,
    /// Classes that borrow from the port.
    feeds: Feeds,
    /// Queues that send by their own rate.
    own: Lines,
    /// Tenants that send by their own rate.
    tenants_own: Feeds,
    knots: Knots,
    wheel: Wheel,
    flows: Many<Flow>,
    flow_bits: u32,
    nodes: Nodes<H>,
    counters: Arc<Counters>,
    watch: Arc<Watch>,
    numbers: Numbers,
    queues: Box<[u32]>,
    default: usize,
    waiting: u32,
    waiting_bytes: u64,
    /// Packets dropped, for any reason.
    dropped: u64,
    limit_packets: u32,
    limit_bytes: u64,
    /// The limits for now: those of the port, or less ([`Shaper::bound`]).
    now_packets: u32,
    now_bytes: u64,
    slack_ns: u64,
    catch_up_ns: u64,
}

impl<H> Shaper<H> {
    /// Makes an empty shaper with full buckets.
    pub fn new(spec: &PortSpec, now_ns: u64) -> Result<Shaper<H>, SpecError> {
        spec.check()?;
        let catch_up = spec.catch_up_ns;
        let numbers = Numbers::new(&spec.queues);
        let tenant_at: std::collections::HashMap<u32, u32> = spec
            .tenants
            .iter()
            .zip(0..)
            .map(|(tenant, at)| (tenant.number, at))
            .collect();
        let tenant_of = |queue: &QueueSpec| queue.tenant.map_or(NONE, |number| tenant_at[&number]);
        let (queue_quanta, tenant_quanta) = all_quanta(spec, tenant_of);
        let rates = |min: u64, max: u64, burst: u64| {
            Rates::new(min, max.min(spec.max_rate), burst, catch_up)
        };
        let kinds = spec
            .queues
            .iter()
            .zip(queue_quanta)
            .map(|(queue, quantum)| QueueConfig {
                rates: rates(queue.min_rate, queue.max_rate, queue.burst),
                bound_ns: queue.max_latency_ns.unwrap_or(u64::MAX),
                limit_packets: queue.limit_packets,
                limit_bytes: queue.limit_bytes,
                mark_ns: queue.mark_ns.map_or(u32::MAX, |ns| ns as u32),
                quantum,
                tenant: tenant_of(queue),
                priority: queue.priority,
            });
        let (kinds, kind_of) = shared(kinds.collect());
        let leaves = kind_of.into_iter().map(|at| {
            let kind = &kinds[at as usize];
            Leaf {
                credit: Credit::new(&kind.rates, catch_up, now_ns),
                backlog: Backlog::new(kind.quantum as i32),
                sample_ns: 0,
                sample_bytes: 0,
                kind: at,
            }
        });
        let tenants = spec
            .tenants
            .iter()
            .zip(tenant_quanta)
            .map(|(tenant, quantum)| {
                let rates = rates(tenant.min_rate, tenant.max_rate, tenant.burst);
                Tenant {
                    credit: Credit::new(&rates, catch_up, now_ns),
                    rates,
                    feeds: Feeds::EMPTY,
                    in_own: 0,
                    in_feed: 0,
                    deficit: quantum as i32,
                    quantum,
                    number: tenant.number,
                }
            });
        let root_rates = rates(spec.max_rate, spec.max_rate, spec.burst);
        let (queues, tenant_count) = (spec.queues.len(), spec.tenants.len());
        let flows = queues * spec.flows as usize;
        let knots = tree::tenant_knot(queues, tenant_count, tenant_count, 0);
        let default = numbers.find(spec.default_queue);
        let mut queues_of = [0; PRIORITIES];
        spec.queues
            .iter()
            .for_each(|queue| queues_of[usize::from(queue.priority)] += 1);
        Ok(Shaper {
            leaves: Many::new(queues, leaves),
            kinds: Many::new(kinds.len(), kinds.iter().copied()),
            tenants: tenants.collect(),
            root: Credit::new(&root_rates, catch_up, now_ns),
            root_rates,
            feeds: Feeds::EMPTY,
            own: Lines::new(queues_of),
            tenants_own: Feeds::EMPTY,
            knots: Knots::new(knots),
            wheel: Wheel::new(now_ns, queues + tenant_count),
            flows: Many::new(flows, std::iter::repeat_n(Flow::EMPTY, flows)),
            flow_bits: spec.flows.trailing_zeros(),
            nodes: Nodes::new(spec.limit_packets, spec.overhead),
            counters: Arc::new(Counters::new(queues)),
            watch: Arc::new(Watch::new(queues)),
            numbers,
            queues: spec.queues.iter().map(|queue| queue.number).collect(),
            default: default.expect("a checked port has its default queue"),
            waiting: 0,
            waiting_bytes: 0,
            dropped: 0,
            limit_packets: spec.limit_packets,
            now_packets: spec.limit_packets,
            now_bytes: spec.limit_bytes,
            slack_ns: spec.slack_ns,
            catch_up_ns: catch_up,
            limit_bytes: spec.limit_bytes,
        })
    }

    /// Sets how many packets and bytes may wait at the port until the next call, where that is less
    /// than its own limits. Packets that wait already stay, and each queue may have a few.
    #[inline]
    pub fn bound(&mut self, packets: u32, bytes: u64) {
        self.now_packets = self.limit_packets.min(packets);
        self.now_bytes = self.limit_bytes.min(bytes);
    }

    /// Returns the place of the queue of this number; the default queue's if there is none.
    #[inline]
    pub fn place_of(&self, number: Option<u32>) -> usize {
        number
            .and_then(|number| self.numbers.find(number))
            .unwrap_or(self.default)
    }

    /// Returns the numbers of the queues, by place.
    pub fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// Returns the queues' counters, by place; any thread may read them.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns what predictions use to watch queues; any thread may ask and read.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Returns how long a packet of the queue at this place may wait before it is handed on, in
    /// nanoseconds: the queue's bound plus the timer's slack. None without a bound.
    pub fn promise_ns(&self, queue: usize) -> Option<u64> {
        let bound = self.kind(queue).bound_ns;
        (bound != u64::MAX).then(|| bound + self.slack_ns)
    }

    /// Returns how long this many bytes of the queue at this place take at its maximum rate, in
    /// nanoseconds.
    pub fn time_ns(&self, queue: usize, bytes: u32) -> u64 {
        u64::from(bytes) * 8 * 1_000_000_000 / self.kind(queue).rates.max_rate
    }

    #[inline(always)]
    fn kind(&self, queue: usize) -> &QueueConfig {
        &self.kinds[self.leaves[queue].kind as usize]
    }

    /// Returns the number of waiting packets.
    pub fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Bytes of the packets that wait, each with the port's overhead.
    #[inline]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Returns the number of packets dropped since the shaper was made, for any reason.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Calls `take_in` for each of a burst of `count` packets, in order, with its index, and
    /// prefetches what later packets of the burst will need. `packet` returns the queue and flow of
    /// each.
    #[inline(always)]
    pub fn take_in_burst(
        &mut self,
        count: usize,
        packet: impl Fn(usize) -> (usize, u32),
        mut take_in: impl FnMut(&mut Shaper<H>, usize),
    ) {
        for at in 0..count + BURST_AHEAD {
            if at < count {
                self.prefetch(packet(at).0);
            }
            if let Some(at) = at.checked_sub(BURST_AHEAD / 2)
                && at < count
            {
                let (queue, flow) = packet(at);
                self.prefetch_flow(queue, flow);
            }
            if let Some(at) = at.checked_sub(BURST_AHEAD) {
                take_in(self, at);
            }
        }
    }

    /// Prefetches a queue. Best called for several packets before [`Shaper::prefetch_flow`] is
    /// called for each of them.
    #[inline]
    pub fn prefetch(&self, queue: usize) {
        if let Some(leaf) = self.leaves.get(queue) {
            prefetch::fetch(leaf);
            self.fetch_kind(queue);
            self.counters.fetch_waiting(queue);
        }
    }

    /// Prefetches what a packet needs beyond its queue: the packet behind which it will be queued,
    /// or, if the queue is empty, what sending at once needs.
    #[inline]
    pub fn prefetch_flow(&self, queue: usize, flow: u32) {
        if let Some(leaf) = self.leaves.get(queue) {
            if leaf.backlog.packets == 0 {
                // It may leave at once.
                self.counters.fetch(queue);
                if self.kind(queue).rates.borrows() {
                    self.knots.fetch(queue as u32);
                }
                return;
            }
            match leaf.backlog.known_tail() {
                Some(tail) => self.nodes.fetch(tail),
                None => {
                    let bucket = bucket(flow, self.flow_bits);
                    let tail = leaf.backlog.tail_of(self.flows_of(queue), bucket);
                    self.nodes.fetch(tail);
                }
            }
        }
    }

    /// Returns a queue's flows.
    #[inline(always)]
    fn flows_of(&self, queue: usize) -> &[Flow] {
        &self.flows[queue << self.flow_bits..][..1 << self.flow_bits]
    }

    /// Prefetches a queue's kind, if it is not shared.
    #[inline(always)]
    fn fetch_kind(&self, queue: usize) {
        if self.kinds.len() > SHARED_KINDS {
            prefetch::fetch(&self.kinds[queue]);
        }
    }

    /// Prefetches what a queue needs to be placed and to send.
    #[inline]
    fn fetch_all(&self, queue: usize) {
        if let Some(leaf) = self.leaves.get(queue) {
            prefetch::fetch(leaf);
            self.fetch_kind(queue);
            self.counters.fetch(queue);
        }
    }

    /// Adds a packet to the queue at this place; `flow` is any hash that packets of one flow share.
    #[inline]
    pub fn enqueue(
        &mut self,
        queue: usize,
        handle: H,
        len: u32,
        flow: u32,
        now_ns: u64,
    ) -> Result<(), Refused<H>> {
        let bucket = bucket(flow, self.flow_bits);
        let cost = self.nodes.cost(len);
        if let Some(cell) = self.watch.of(queue) {
            cell.arrive(cost, now_ns);
        }
        let catch_up_ns = self.catch_up_ns;
        let port_full = self.is_full(queue, cost);
        let leaf = &mut self.leaves[queue];
        let flows = &mut self.flows[queue << self.flow_bits..][..1 << self.flow_bits];
        let kind = &self.kinds[leaf.kind as usize];
        let ahead = leaf.backlog.ahead_of(flows, bucket);
        let idle = leaf.backlog.packets == 0;
        if idle {
            leaf.credit.wake(&kind.rates, catch_up_ns, now_ns);
        }
        let refused = if kind.bound_ns != u64::MAX
            && leaf.is_over_bound(kind, ahead, self.slack_ns, now_ns)
        {
            Some(DropReason::OverBound)
        } else if port_full {
            Some(DropReason::PortFull)
        } else if leaf.is_full(kind, cost) && !self.make_room(queue, bucket, cost) {
            Some(DropReason::QueueFull)
        } else {
            None
        };
        if let Some(reason) = refused {
            self.counters.refuse(queue, reason);
            if let Some(cell) = self.watch.of(queue) {
                cell.refuse();
            }
            self.dropped += 1;
            return Err(Refused { handle, reason });
        }
        if self.waiting == 0 {
            self.root.wake(&self.root_rates, catch_up_ns, now_ns);
        }
        let taken = Taken {
            handle,
            arrival_ns: now_ns,
            len,
            ahead,
            flow,
        };
        let leaf = &mut self.leaves[queue];
        let flows = &mut self.flows[queue << self.flow_bits..][..1 << self.flow_bits];
        leaf.backlog.push(flows, &mut self.nodes, taken);
        self.counters.wait(queue, leaf.backlog.packets);
        self.waiting += 1;
        self.waiting_bytes += u64::from(cost);
        if idle {
            self.place_anew(queue, now_ns);
        }
        Ok(())
    }

    /// Returns whether the port has no room for a queue's packet. A queue may occupy as much of the
    /// port's room as is still free (Choudhury and Hahne, Dynamic queue length thresholds for
    /// shared-memory packet switches, 1998): however many queues are flooded, one that is not finds
    /// room. A port with nothing waiting takes any packet.
    #[inline]
    fn is_full(&self, queue: usize, cost: u32) -> bool {
        let backlog = &self.leaves[queue].backlog;
        let packets = self.limit_packets.saturating_sub(self.waiting);
        let bytes = self.limit_bytes.saturating_sub(self.waiting_bytes);
        if backlog.packets >= packets
            || self.waiting != 0 && (u64::from(backlog.bytes) >= bytes || u64::from(cost) > bytes)
        {
            return true;
        }
        backlog.packets >= FEW
            && (backlog.packets >= self.now_packets.saturating_sub(self.waiting)
                || u64::from(backlog.bytes) >= self.now_bytes.saturating_sub(self.waiting_bytes))
    }

    /// Drops old packets of the largest flow until there is room; returns false if the new packet's
    /// flow is the largest.
    #[cold]
    fn make_room(&mut self, queue: usize, bucket: usize, cost: u32) -> bool {
        let leaf = &mut self.leaves[queue];
        let flows = &mut self.flows[queue << self.flow_bits..][..1 << self.flow_bits];
        let kind = &self.kinds[leaf.kind as usize];
        while leaf.is_full(kind, cost) {
            // A packet larger than the queue's limit finds it empty and full.
            let own = leaf.backlog.bytes_of(flows, bucket);
            let fattest = leaf.backlog.fattest(flows);
            if leaf.backlog.packets <= 1 || leaf.backlog.bytes_of(flows, fattest) <= own {
                return false;
            }
            let before = u64::from(leaf.backlog.bytes);
            drop(leaf.backlog.pop(flows, &mut self.nodes, fattest, false));
            self.counters.refuse(queue, DropReason::QueueFull);
            self.dropped += 1;
            self.counters.wait(queue, leaf.backlog.packets);
            self.waiting -= 1;
            self.waiting_bytes -= before - u64::from(leaf.backlog.bytes);
        }
        true
    }

    /// Returns the next packet that may leave now.
    pub fn dequeue(&mut self, now_ns: u64) -> Option<Departure<H>> {
        if self.waiting == 0 {
            return None;
        }
        self.root.fill(&self.root_rates, now_ns);
        if self.root.mode() == Mode::Wait {
            return None;
        }
        loop {
            let more = self.ring_alarms(now_ns);
            while let Some(choice) = self.choose() {
                if let Some(departure) = self.send(choice, now_ns) {
                    return Some(departure);
                }
            }
            if !more {
                return None;
            }
        }
    }

    /// Returns when to call [`Shaper::dequeue`] again: a time at which a packet may leave, or up to
    /// a millisecond earlier; it is not in the future if one may leave now. None if nothing waits.
    pub fn next_departure_ns(&self) -> Option<u64> {
        if self.waiting == 0 {
            return None;
        }
        let port = match self.root.mode() {
            Mode::Wait => self.root.better_at(&self.root_rates).unwrap_or(0),
            _ => 0,
        };
        let ready = self.own.filled | self.tenants_own.filled | self.feeds.filled != 0;
        let queue = if ready {
            0
        } else {
            self.wheel.next_ns().unwrap_or(0)
        };
        Some(queue.max(port))
    }
}

impl Leaf {
    #[inline]
    fn is_full(&self, kind: &QueueConfig, cost: u32) -> bool {
        let backlog = &self.backlog;
        backlog.packets >= kind.limit_packets
            || u64::from(backlog.bytes) + u64::from(cost) > u64::from(kind.limit_bytes)
    }

    /// Returns whether a packet that came at `came_ns` and has `ahead` bytes before it will,
    /// certainly or presumably, not leave within the bound.
    ///
    /// `came_ns` may lie before the last fill of the buckets (the kernel had the packet earlier).
    /// The time since then is subtracted from the bound, and the buckets' levels are those of the
    /// later time.
    #[inline]
    fn is_over_bound(
        &mut self,
        kind: &QueueConfig,
        ahead: u32,
        slack_ns: u64,
        came_ns: u64,
    ) -> bool {
        let rates = &kind.rates;
        self.credit.fill(rates, came_ns);
        let credit = &self.credit;
        let passed_ns = credit.passed_since(came_ns);
        if ahead != 0 && passed_ns > kind.bound_ns.saturating_add(slack_ns) {
            // Its turn comes now at the earliest, which is too late. A packet for an empty queue is
            // not subject to this.
            return true;
        }
        // A packet without time left may still leave at once, by the tokens in the buckets.
        let bound = kind.bound_ns.saturating_sub(passed_ns);
        let bits = u64::from(ahead) * 8;
        if !Credit::within(credit.limit, rates.max_rate, bits, bound) {
            return true;
        }
        if Credit::within(credit.own, rates.rate, bits, bound) {
            return false;
        }
        let (sample_ns, sample_bytes) = (u128::from(self.sample_ns), u128::from(self.sample_bytes));
        u128::from(ahead) * sample_ns > u128::from(bound) * sample_bytes
    }
}

/// Returns the distinct kinds and each queue's index among them; if there are too many to share,
/// returns all kinds in the order of the queues.
fn shared(all: Vec<QueueConfig>) -> (Vec<QueueConfig>, Vec<u32>) {
    let mut places = std::collections::HashMap::new();
    let (mut kinds, mut kind_of) = (Vec::new(), Vec::with_capacity(all.len()));
    for kind in &all {
        let at = *places.entry(*kind).or_insert_with(|| {
            kinds.push(*kind);
            kinds.len() as u32 - 1
        });
        if kinds.len() > SHARED_KINDS {
            let each = (0..all.len() as u32).collect();
            return (all, each);
        }
        kind_of.push(at);
    }
    (kinds, kind_of)
}

/// Returns the quanta of all queues and tenants: siblings share by their guaranteed rates.
fn all_quanta(spec: &PortSpec, tenant_of: impl Fn(&QueueSpec) -> u32) -> (Vec<u32>, Vec<u32>) {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); spec.tenants.len() + 1];
    for (at, queue) in spec.queues.iter().enumerate() {
        let parent = match tenant_of(queue) {
            NONE => spec.tenants.len(),
            tenant => tenant as usize,
        };
        children[parent].push(at);
    }
    let mut queues = vec![0; spec.queues.len()];
    let mut share = |children: &[usize], more: &[u64]| -> Vec<u32> {
        let rates = children.iter().map(|at| spec.queues[*at].min_rate);
        let rates: Vec<u64> = rates.chain(more.iter().copied()).collect();
        let shares = quanta(&rates);
        children
            .iter()
            .zip(&shares)
            .for_each(|(at, share)| queues[*at] = *share);
        shares[children.len()..].to_vec()
    };
    let direct = children.pop().unwrap_or_default();
    for children in &children {
        share(children, &[]);
    }
    let rates: Vec<u64> = spec.tenants.iter().map(|tenant| tenant.min_rate).collect();
    let tenants = share(&direct, &rates);
    (queues, tenants)
}
