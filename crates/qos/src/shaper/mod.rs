//! The shaper: packets wait in queues until rates and turns let them go, and no longer than they
//! may.
//!
//! **Rates.** A port has queues, or tenants that have queues. Each of these classes has a
//! guaranteed and a maximum rate with a burst ([`PortSpec`]). A packet leaves by its queue's
//! guaranteed rate; when no queue can, by what a tenant has guaranteed; when no tenant can, by what
//! the port still has. What a parent lends goes to the child of the first priority, and among
//! equals by deficit round robin in proportion to their rates. That is the order of the kernel's
//! HTB; other than there, nothing exceeds the port's own rate.
//!
//! **Bound.** A queue may have a bound (`max_latency_ns`). A packet that cannot leave within it is
//! dropped when it comes: certainly, when not even the maximum rate could bring what stands before
//! it away in time; presumably, when the guaranteed rate could not and the queue was lately served
//! too slowly (the packet that left last had waited so long behind so many bytes). Where this is
//! too hopeful, the packet is dropped when its turn comes ([`DropReason::Late`]). A dropped packet
//! costs no tokens. So a bound of 0 makes a policer, no bound makes HTB.
//!
//! **Flows.** A queue's flows take turns ([`PortSpec::flows`]), and what stands before a packet is
//! counted that way.
//!
//! **Cost.** Who may send stands in a ring, who must wait has an alarm in a timing wheel, and a
//! packet moves its own queue and tenant only. So a packet costs the same among 8 queues and among
//! 100,000, but for the memory that it touches; callers say early which queue comes
//! ([`Shaper::prefetch`]).
//!
//! Nothing here reads a clock or knows a packet: handles have a length, and time comes in as
//! nanoseconds that do not go back (where they do, time stands still).

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

/// Alarms that ring between two packets at most, so that many at once do not make a packet wait
/// that may leave.
pub const ALARMS_PER_PACKET: usize = 64;

/// How many alarms before its own what a queue's packet needs is fetched; the queue itself twice as
/// many before.
const FETCHED: usize = 8;

/// How many packets of a burst before its own a packet's queue is fetched; what it needs of flows
/// and packets half as many before.
const BURST_AHEAD: usize = 16;

/// Where a queue stands besides its place in memory: in the ring of those that send by their own
/// rate.
const IN_OWN: u8 = 1;
/// In its parent's ring of those that borrow.
const IN_FEED: u8 = 2;
/// Its alarm is set.
const ALARMED: u8 = 4;

/// What a queue was given. Queues that were given the same share it, so that a packet finds it in
/// the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(align(64))]
struct Kind {
    rates: Rates,
    bound_ns: u64,
    limit_packets: u32,
    limit_bytes: u32,
    mark_ns: u32,
    quantum: u32,
    /// Its tenant, or [`NONE`] for the port itself.
    tenant: u32,
    priority: u8,
}

/// Kinds that are few enough to be shared; where queues are of more, each has its own at its own
/// place, which can be fetched with the queue.
const SHARED_KINDS: usize = 256;

/// A queue, in one cache line: tokens, what waits, and where it stands ([`IN_OWN`], [`IN_FEED`],
/// [`ALARMED`]).
#[repr(C, align(64))]
struct Leaf {
    credit: Credit,
    backlog: Backlog,
    /// The last packet that found others waiting had waited so long, in nanoseconds (halved by
    /// each since that found none),
    sample_ns: u32,
    /// behind so many bytes.
    sample_bytes: u32,
    /// Its place among the kinds.
    kind: u32,
}

const _: () = assert!(size_of::<Leaf>() == 64 && size_of::<Kind>() == 64);

/// Queues that borrow, a ring for each priority, and whose turn it is.
struct Feeds {
    turns: [u32; PRIORITIES],
    /// Priorities that have any.
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
    /// Priorities by which it stands in the ring of tenants that send by their own rate.
    in_own: u8,
    /// Priorities by which it stands in the port's rings of those that borrow.
    in_feed: u8,
    deficit: i32,
    quantum: u32,
    number: u32,
}

/// Numbers of queues and their places.
struct Numbers {
    /// By number, where numbers are dense.
    dense: Box<[u32]>,
    /// Sorted pairs otherwise.
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
    /// Its length.
    pub len: u32,
    /// How long it has waited.
    pub waited_ns: u64,
    /// It is to be marked (ECN), where it can be.
    pub mark: bool,
    /// The hash of its flow, as it was given.
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

/// A port's shaper, over handles of packets.
pub struct Shaper<H> {
    leaves: Many<Leaf>,
    kinds: Many<Kind>,
    tenants: Box<[Tenant]>,
    root: Credit,
    root_rates: Rates,
    /// Who borrows from the port.
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
    /// Packets dropped, for whatever reason.
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
    /// An empty shaper, buckets full.
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
            .map(|(queue, quantum)| Kind {
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

    /// Has no more packets and bytes wait than so many, and than the port's own limits, until this
    /// is called again. Those that wait already stay.
    #[inline]
    pub fn bound(&mut self, packets: u32, bytes: u64) {
        self.now_packets = self.limit_packets.min(packets);
        self.now_bytes = self.limit_bytes.min(bytes);
    }

    /// The place of the queue for packets that name this one; the default queue's where it is not
    /// there.
    #[inline]
    pub fn place_of(&self, number: Option<u32>) -> usize {
        number
            .and_then(|number| self.numbers.find(number))
            .unwrap_or(self.default)
    }

    /// The numbers of the queues, by their places.
    pub fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// The queues' counters, by their places; they may be read by any thread.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Who is watched, for predictions; any thread may ask and read.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// How long a packet of the queue at this place may wait before it is handed on, in
    /// nanoseconds: the queue's bound and the timer's slack. None without a bound.
    pub fn promise_ns(&self, queue: usize) -> Option<u64> {
        let bound = self.kind(queue).bound_ns;
        (bound != u64::MAX).then(|| bound + self.slack_ns)
    }

    /// How long so many bytes of the queue at this place take by its maximum rate, in nanoseconds.
    pub fn time_ns(&self, queue: usize, bytes: u32) -> u64 {
        u64::from(bytes) * 8 * 1_000_000_000 / self.kind(queue).rates.max_rate
    }

    #[inline(always)]
    fn kind(&self, queue: usize) -> &Kind {
        &self.kinds[self.leaves[queue].kind as usize]
    }

    /// Packets that wait.
    pub fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Bytes of the packets that wait, each with the port's overhead.
    #[inline]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Packets dropped since it was made, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Goes through a burst of so many packets and calls `take_in` for each in order, with its
    /// place in the burst, while what those some places later will need is being fetched.
    /// `packet` tells each one's queue and flow.
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

    /// Fetches what a packet for this queue will need, whatever the queue's state. Best called for
    /// some packets, and [`Shaper::prefetch_flow`] for them after that.
    #[inline]
    pub fn prefetch(&self, queue: usize) {
        if let Some(leaf) = self.leaves.get(queue) {
            prefetch::fetch(leaf);
            self.fetch_kind(queue);
            self.counters.fetch_waiting(queue);
        }
    }

    /// Fetches what else it will need, now that the queue can be looked at: the packet behind which
    /// it will stand, tokens where they are asked for.
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

    /// A queue's flows.
    #[inline(always)]
    fn flows_of(&self, queue: usize) -> &[Flow] {
        &self.flows[queue << self.flow_bits..][..1 << self.flow_bits]
    }

    /// Fetches what a queue was given, where that is its own.
    #[inline(always)]
    fn fetch_kind(&self, queue: usize) {
        if self.kinds.len() > SHARED_KINDS {
            prefetch::fetch(&self.kinds[queue]);
        }
    }

    /// Fetches what a queue needs to be placed and to send.
    #[inline]
    fn fetch_all(&self, queue: usize) {
        if let Some(leaf) = self.leaves.get(queue) {
            prefetch::fetch(leaf);
            self.fetch_kind(queue);
            self.counters.fetch(queue);
        }
    }

    /// A packet comes to the queue at this place; `flow` is any hash that packets of one flow
    /// share.
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

    /// Whether the port has no room for a queue's packet. A queue may have as much of the port's
    /// room as is left (Choudhury and Hahne, Dynamic queue length thresholds for shared-memory
    /// packet switches, 1998): however many queues are flooded, one that is not finds room. A port
    /// where nothing waits takes any packet.
    #[inline]
    fn is_full(&self, queue: usize, cost: u32) -> bool {
        let backlog = &self.leaves[queue].backlog;
        let packets = self.now_packets.saturating_sub(self.waiting);
        let bytes = self.now_bytes.saturating_sub(self.waiting_bytes);
        backlog.packets >= packets
            || self.waiting != 0 && (u64::from(backlog.bytes) >= bytes || u64::from(cost) > bytes)
    }

    /// Drops old packets of the fattest flow until there is room; false when that is the newcomer's
    /// own.
    #[cold]
    fn make_room(&mut self, queue: usize, bucket: usize, cost: u32) -> bool {
        let leaf = &mut self.leaves[queue];
        let flows = &mut self.flows[queue << self.flow_bits..][..1 << self.flow_bits];
        let kind = &self.kinds[leaf.kind as usize];
        while leaf.is_full(kind, cost) {
            // A packet that is larger than the queue finds it empty and full.
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

    /// The next packet that may leave now.
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

    /// When to ask for the next packet: now or before, when one may leave; a time at which one may
    /// or which is at most a millisecond before such; none when nothing waits.
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
    fn is_full(&self, kind: &Kind, cost: u32) -> bool {
        let backlog = &self.backlog;
        backlog.packets >= kind.limit_packets
            || u64::from(backlog.bytes) + u64::from(cost) > u64::from(kind.limit_bytes)
    }

    /// Whether a packet that came at a time and stands behind so many bytes cannot leave within the
    /// bound, or presumably not.
    ///
    /// A wait may count from before the queue was last looked at (from when the kernel had the
    /// packet). What has passed since then is gone from its bound; credit tells of
    /// the later time.
    #[inline]
    fn is_over_bound(&mut self, kind: &Kind, ahead: u32, slack_ns: u64, came_ns: u64) -> bool {
        let rates = &kind.rates;
        self.credit.fill(rates, came_ns);
        let credit = &self.credit;
        let passed_ns = credit.passed_since(came_ns);
        if ahead != 0 && passed_ns > kind.bound_ns.saturating_add(slack_ns) {
            // Its turn comes no earlier than now, when it is late. Who meets an empty queue is not
            // asked.
            return true;
        }
        // Who has no time left may still leave at once, by what the buckets hold.
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

/// The different ones among the queues' kinds, and each queue's; all of them, in order, where that
/// would be too many to be shared.
fn shared(all: Vec<Kind>) -> (Vec<Kind>, Vec<u32>) {
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

/// The quanta of all queues and tenants: siblings share by their guaranteed rates.
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
