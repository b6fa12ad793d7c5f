//! Configuration of a shaped port, and its checks.

use std::collections::HashMap;
use thiserror::Error;

/// Lowest maximum rate of a class, in bit/s.
pub const MIN_RATE: u64 = 8_000;
/// Highest rate, in bit/s: 400 Gbit/s.
pub const MAX_RATE: u64 = 400_000_000_000;
/// Largest burst, in bits: 250 MB.
pub const MAX_BURST: u64 = 2_000_000_000;
/// Longest bound, in nanoseconds: 4 s.
pub const MAX_LATENCY_NS: u64 = 4_000_000_000;
/// Longest timer slack, in nanoseconds.
pub const MAX_SLACK_NS: u64 = 1_000_000;
/// Longest catch-up time, in nanoseconds ([`PortSpec::catch_up_ns`]).
pub const MAX_CATCH_UP_NS: u64 = 10_000_000;
/// Most queues.
pub const MAX_QUEUES: usize = 1 << 20;
/// Most tenants.
pub const MAX_TENANTS: usize = 1 << 16;
/// Most bytes that may wait in a queue: 512 MB.
pub const MAX_BYTES: u32 = 1 << 29;
/// Most packets that may wait at a port.
pub const MAX_PACKETS: u32 = 1 << 24;
/// Largest overhead in bytes per packet ([`PortSpec::overhead`]).
pub const MAX_OVERHEAD: i32 = 1000;
/// Priorities are 0 (first) to 7.
pub const PRIORITIES: usize = 8;

/// A queue. Rates are in bit/s of frames without FCS (plus the port's overhead), bursts in bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueSpec {
    /// Its number in OpenFlow and in `QoS.queues`.
    pub number: u32,
    /// The tenant it belongs to, by number.
    pub tenant: Option<u32>,
    /// Guaranteed rate; 0 if the queue only borrows.
    pub min_rate: u64,
    /// Maximum rate.
    pub max_rate: u64,
    /// What it may send at once after a pause.
    pub burst: u64,
    /// Order of borrowing: 0 (first) to 7.
    pub priority: u8,
    /// How long a packet may wait, in nanoseconds; None for any time.
    pub max_latency_ns: Option<u64>,
    /// Wait after which packets are ECN-marked, in nanoseconds.
    pub mark_ns: Option<u64>,
    /// Most packets that may wait.
    pub limit_packets: u32,
    /// Most bytes that may wait.
    pub limit_bytes: u32,
}

impl QueueSpec {
    /// Makes a queue with these rates and defaults otherwise: a burst of one frame, 1000 packets,
    /// no bound.
    pub fn new(number: u32, min_rate: u64, max_rate: u64) -> QueueSpec {
        QueueSpec {
            number,
            tenant: None,
            min_rate,
            max_rate,
            burst: 1514 * 8,
            priority: 0,
            max_latency_ns: None,
            mark_ns: None,
            limit_packets: 1000,
            limit_bytes: MAX_BYTES,
        }
    }
}

/// A group of queues with its own rates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TenantSpec {
    /// Its number, by which queues name it.
    pub number: u32,
    /// Guaranteed rate, in bit/s; the sum of its queues' guarantees may not exceed it.
    pub min_rate: u64,
    /// Maximum rate, in bit/s.
    pub max_rate: u64,
    /// What it may send at once after a pause, in bits.
    pub burst: u64,
}

/// A shaped port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortSpec {
    /// The port's rate, in bit/s.
    pub max_rate: u64,
    /// What it may send at once, in bits.
    pub burst: u64,
    /// Bytes counted for each packet in addition to the frame's own: 24 for FCS, preamble and gap,
    /// -14 to leave out the Ethernet header.
    pub overhead: i32,
    /// How late a timer may wake the sender, in nanoseconds.
    pub slack_ns: u64,
    /// While packets wait, buckets may hold tokens of this time in addition to the burst, in
    /// nanoseconds, to make up for late wake-ups.
    pub catch_up_ns: u64,
    /// Most packets that may wait in all queues together.
    pub limit_packets: u32,
    /// Most bytes that may wait in all queues together; a single packet may always wait.
    pub limit_bytes: u64,
    /// Flows that a queue distinguishes: 1 to 64, a power of two.
    pub flows: u32,
    /// The queue of packets that name none or an unknown one, and of waiting packets whose queue is
    /// removed.
    pub default_queue: u32,
    /// Tenants.
    pub tenants: Vec<TenantSpec>,
    /// Queues; at least one.
    pub queues: Vec<QueueSpec>,
}

impl PortSpec {
    /// Makes a port of this rate with defaults otherwise and no queues yet.
    pub fn new(max_rate: u64) -> PortSpec {
        PortSpec {
            max_rate,
            burst: 1514 * 8,
            overhead: 0,
            slack_ns: 60_000,
            catch_up_ns: 4_000_000,
            limit_packets: 16_384,
            limit_bytes: u64::MAX,
            flows: 64,
            default_queue: 0,
            tenants: Vec::new(),
            queues: Vec::new(),
        }
    }
}

/// Why a port's configuration is invalid.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SpecError {
    /// A rate is out of range.
    #[error("{0}: {1} bit/s is not a rate between {MIN_RATE} and {MAX_RATE} bit/s")]
    Rate(Owner, u64),
    /// The guaranteed rate is above the maximum.
    #[error("{0}: guaranteed rate {1} bit/s is above the maximum of {2} bit/s")]
    MinimumOverMaximum(Owner, u64, u64),
    /// The guaranteed rates add up to too much.
    #[error("{0}: guaranteed rates add up to {1} bit/s, more than its {2} bit/s")]
    Minimums(Owner, u64, u64),
    /// A burst is out of range.
    #[error("{0}: a burst of {1} bits is more than {MAX_BURST}")]
    Burst(Owner, u64),
    /// A priority is out of range.
    #[error("{0}: priority {1} is not between 0 and 7")]
    Priority(Owner, u8),
    /// A bound is out of range.
    #[error("{0}: a latency of {1} ns is more than {MAX_LATENCY_NS}")]
    Latency(Owner, u64),
    /// A limit is out of range.
    #[error("{0}: a limit of {1} is not between 1 and {2}")]
    Limit(Owner, u32, u32),
    /// A number is used twice.
    #[error("{0} is there twice")]
    Twice(Owner),
    /// A queue's tenant does not exist.
    #[error("{0} names tenant {1}, which is not there")]
    NoTenant(Owner, u32),
    /// The default queue does not exist.
    #[error("there is no queue {0} for packets that name none")]
    NoDefault(u32),
    /// There are too many queues or tenants.
    #[error("{0} {1} are more than {2}")]
    TooMany(usize, &'static str, usize),
    /// A value of the port itself is out of range.
    #[error("{0} of {1} is out of range")]
    Range(&'static str, i64),
}

/// The class that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The port.
    Port,
    /// A tenant.
    Tenant(u32),
    /// A queue.
    Queue(u32),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Port => f.write_str("port"),
            Owner::Tenant(number) => write!(f, "tenant {number}"),
            Owner::Queue(number) => write!(f, "queue {number}"),
        }
    }
}

fn check_class(owner: Owner, min: u64, max: u64, burst: u64) -> Result<(), SpecError> {
    if !(MIN_RATE..=MAX_RATE).contains(&max) {
        return Err(SpecError::Rate(owner, max));
    }
    if min > max {
        return Err(SpecError::MinimumOverMaximum(owner, min, max));
    }
    if burst > MAX_BURST {
        return Err(SpecError::Burst(owner, burst));
    }
    Ok(())
}

/// The link that a port sends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// Its rate, in bit/s, at least 1.
    pub rate: u64,
    /// The largest frame, in bytes.
    pub largest: u32,
    /// How long handing over a batch of packets may take, in nanoseconds.
    pub batch_ns: u64,
}

impl PortSpec {
    /// Returns the time after its arrival by which a packet of the queue is sent, in nanoseconds:
    /// the bound plus the time of timers, a batch and the packet itself on the line. None without a
    /// bound.
    pub fn promise_ns(&self, queue: &QueueSpec, line: Line) -> Option<u64> {
        let line_ns = u64::from(line.largest) * 8_000_000_000 / line.rate.max(1);
        let bound = queue.max_latency_ns?.saturating_add(self.slack_ns);
        Some(bound.saturating_add(line.batch_ns).saturating_add(line_ns))
    }

    /// Checks the configuration.
    pub fn check(&self) -> Result<(), SpecError> {
        self.check_port()?;
        let mut tenants: HashMap<u32, (u64, u64)> = HashMap::new();
        let mut total = 0_u64;
        for tenant in &self.tenants {
            let owner = Owner::Tenant(tenant.number);
            check_class(owner, tenant.min_rate, tenant.max_rate, tenant.burst)?;
            total = total.saturating_add(tenant.min_rate);
            let entry = (tenant.min_rate, 0);
            if tenants.insert(tenant.number, entry).is_some() {
                return Err(SpecError::Twice(owner));
            }
        }
        let mut numbers = std::collections::HashSet::new();
        for queue in &self.queues {
            queue.check(self.limit_packets)?;
            if !numbers.insert(queue.number) {
                return Err(SpecError::Twice(Owner::Queue(queue.number)));
            }
            match queue.tenant {
                None => total = total.saturating_add(queue.min_rate),
                Some(number) => match tenants.get_mut(&number) {
                    Some((_, sum)) => *sum = sum.saturating_add(queue.min_rate),
                    None => return Err(SpecError::NoTenant(Owner::Queue(queue.number), number)),
                },
            }
        }
        if !numbers.contains(&self.default_queue) {
            return Err(SpecError::NoDefault(self.default_queue));
        }
        if total > self.max_rate {
            return Err(SpecError::Minimums(Owner::Port, total, self.max_rate));
        }
        for tenant in &self.tenants {
            let (min, sum) = tenants[&tenant.number];
            if sum > min {
                return Err(SpecError::Minimums(Owner::Tenant(tenant.number), sum, min));
            }
        }
        Ok(())
    }

    /// Guarantees the default queue `rate` bit/s, if other queues have guarantees and it has less:
    /// else it would get nothing while they use the port's whole rate. If the port cannot keep that
    /// beside the others' guarantees, those are reduced in proportion, by at most an eighth of the
    /// port's rate together, and the default queue gets no more than the highest of them, since the
    /// rest of the rate is shared in proportion to guarantees. Changes nothing if the guarantees
    /// cannot be kept anyway ([`PortSpec::check`] reports that) or the default queue belongs to a
    /// tenant.
    pub fn guarantee_default(&mut self, rate: u64) {
        let default = self.default_queue;
        let is_default = |queue: &QueueSpec| queue.number == default && queue.tenant.is_none();
        let Some(at) = self.queues.iter().position(is_default) else {
            return;
        };
        let rate = rate.min(self.queues[at].max_rate).min(self.max_rate / 8);
        let tenants = self.tenants.iter().map(|tenant| tenant.min_rate);
        let direct = |queue: &&QueueSpec| queue.tenant.is_none() && queue.number != default;
        let queues = self
            .queues
            .iter()
            .filter(direct)
            .map(|queue| queue.min_rate);
        let guarantees = tenants.chain(queues);
        let rate = rate.min(guarantees.clone().max().unwrap_or(0));
        let others = guarantees.fold(0, u64::saturating_add);
        if others == 0 || self.queues[at].min_rate >= rate {
            return;
        }
        if self.queues[at].min_rate.saturating_add(others) > self.max_rate {
            return;
        }
        self.queues[at].min_rate = rate;
        let left = self.max_rate - rate;
        if others <= left {
            return;
        }
        // Rounded down, so that a tenant's queues still fit its guarantee.
        let less = |rate: &mut u64| {
            *rate = (u128::from(*rate) * u128::from(left) / u128::from(others)) as u64;
        };
        let queues = self.queues.iter_mut();
        let queues = queues.filter(|queue| queue.number != default);
        queues.for_each(|queue| less(&mut queue.min_rate));
        let tenants = self.tenants.iter_mut();
        tenants.for_each(|tenant| less(&mut tenant.min_rate));
    }

    fn check_port(&self) -> Result<(), SpecError> {
        check_class(Owner::Port, 0, self.max_rate, self.burst)?;
        let limit = self.limit_packets;
        if !(1..=MAX_PACKETS).contains(&limit) {
            return Err(SpecError::Limit(Owner::Port, limit, MAX_PACKETS));
        }
        if self.overhead.abs() > MAX_OVERHEAD {
            return Err(SpecError::Range("an overhead", self.overhead.into()));
        }
        if self.slack_ns > MAX_SLACK_NS {
            return Err(SpecError::Range("a timer slack", self.slack_ns as i64));
        }
        if self.catch_up_ns > MAX_CATCH_UP_NS {
            return Err(SpecError::Range(
                "a time to catch up",
                self.catch_up_ns as i64,
            ));
        }
        if !self.flows.is_power_of_two() || self.flows > 64 {
            return Err(SpecError::Range("a number of flows", self.flows.into()));
        }
        for (count, what, most) in [
            (self.queues.len(), "queues", MAX_QUEUES),
            (self.tenants.len(), "tenants", MAX_TENANTS),
        ] {
            if count > most {
                return Err(SpecError::TooMany(count, what, most));
            }
        }
        Ok(())
    }
}

impl QueueSpec {
    fn check(&self, port_limit: u32) -> Result<(), SpecError> {
        let owner = Owner::Queue(self.number);
        check_class(owner, self.min_rate, self.max_rate, self.burst)?;
        if usize::from(self.priority) >= PRIORITIES {
            return Err(SpecError::Priority(owner, self.priority));
        }
        for latency in [self.max_latency_ns, self.mark_ns].into_iter().flatten() {
            if latency > MAX_LATENCY_NS {
                return Err(SpecError::Latency(owner, latency));
            }
        }
        if self.limit_packets == 0 {
            return Err(SpecError::Limit(owner, 0, port_limit));
        }
        if !(1..=MAX_BYTES).contains(&self.limit_bytes) {
            return Err(SpecError::Limit(owner, self.limit_bytes, MAX_BYTES));
        }
        Ok(())
    }
}

/// Returns what each of several siblings may send per turn, in bytes, in proportion to their rates:
/// the lowest rate gets one frame, but no rate more than 64 KiB. If rates differ by more, the
/// highest gets 64 KiB, and the lowest needs several turns for a frame. Among many siblings none
/// gets less than a frame: a whole round in which no one may send would take long.
pub(crate) fn quanta(rates: &[u64]) -> Vec<u32> {
    const FRAME: u64 = 1514;
    const LONGEST: u64 = 1 << 16;
    const SHORT: u64 = 256;
    const MANY: usize = 256;
    let shortest = if rates.len() > MANY { FRAME } else { SHORT };
    let lowest = rates.iter().copied().min().unwrap_or(0).max(1);
    let highest = rates.iter().copied().max().unwrap_or(0).max(1);
    let near = highest / lowest <= LONGEST / FRAME;
    let quantum = |rate: u64| {
        let scaled = if near {
            u128::from(FRAME) * u128::from(rate) / u128::from(lowest)
        } else {
            u128::from(LONGEST) * u128::from(rate) / u128::from(highest)
        };
        (scaled as u64).max(shortest) as u32
    };
    rates.iter().map(|rate| quantum(*rate)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn port(rate: u64, queues: &[(u32, u64)]) -> PortSpec {
        let mut port = PortSpec::new(rate);
        let queue = |(number, min): &(u32, u64)| QueueSpec::new(*number, *min, rate);
        port.queues = queues.iter().map(queue).collect();
        port
    }

    fn guarantees(port: &PortSpec) -> Vec<u64> {
        port.queues.iter().map(|queue| queue.min_rate).collect()
    }

    fn guaranteed(rate: u64, queues: &[(u32, u64)]) -> Vec<u64> {
        let mut port = port(rate, queues);
        port.guarantee_default(12_000);
        guarantees(&port)
    }

    #[test]
    fn the_default_queue_gets_a_share_where_others_have_guarantees() {
        let all = guaranteed(100_000_000, &[(1, 80_000_000), (2, 20_000_000), (0, 0)]);
        assert_eq!(all, [79_990_400, 19_997_600, 12_000]);
        // There is room: nothing is reduced.
        let room = guaranteed(100_000_000, &[(0, 0), (1, 80_000_000), (2, 0)]);
        assert_eq!(room, [12_000, 80_000_000, 0]);
        // All are equal, or the default queue has as much already.
        assert_eq!(guaranteed(1_000_000, &[(0, 0), (1, 0)]), [0, 0]);
        let own = [(0, 12_000), (1, 88_000)];
        assert_eq!(guaranteed(100_000, &own), [12_000, 88_000]);
        // A guarantee that is too small is raised; a slow port is not used up by it.
        assert_eq!(guaranteed(1_000_000, &[(0, 5), (1, 7)]), [7, 7]);
        assert_eq!(guaranteed(8_000, &[(0, 0), (1, 8_000)]), [1_000, 7_000]);
        // Guarantees that cannot be kept are left for `check` to reject.
        let above = [(0, 0), (1, 2_000_000)];
        assert_eq!(guaranteed(1_000_000, &above), [0, 2_000_000]);
    }

    proptest! {
        #[test]
        fn guarantees_go_on_fitting(
            rate in 8_000u64..=400_000_000_000,
            queues in proptest::collection::vec((0u64..1000, 0u32..4), 1..12),
        ) {
            let mut port = port(rate, &[(0, 0)]);
            let total: u64 = queues.iter().map(|queue| queue.0).sum::<u64>().max(1);
            for (number, (part, tenant)) in queues.iter().enumerate() {
                // The port's whole rate, divided among queues; tenant 0 means none.
                let min = (u128::from(rate) * u128::from(*part) / u128::from(total)) as u64;
                let mut queue = QueueSpec::new(number as u32 + 1, min, rate);
                queue.tenant = (*tenant > 0).then_some(*tenant);
                port.queues.push(queue);
            }
            for number in 1..4 {
                let members = port.queues.iter().filter(|queue| queue.tenant == Some(number));
                let min_rate = members.map(|queue| queue.min_rate).sum();
                port.tenants.push(TenantSpec { number, min_rate, max_rate: rate, burst: 12_112 });
            }
            prop_assert_eq!(port.check(), Ok(()));
            let before = port.clone();
            port.guarantee_default(12_000);
            prop_assert_eq!(port.check(), Ok(()));
            let highest = guarantees(&before).into_iter().max().unwrap_or(0);
            let wanted = 12_000.min(rate / 8).min(highest);
            let others: u64 = guarantees(&before).iter().sum();
            prop_assert_eq!(port.queues[0].min_rate, if others == 0 { 0 } else { wanted });
            for (now, was) in port.queues.iter().zip(&before.queues).skip(1) {
                // In proportion: each keeps the same share, except for rounding.
                let whole = u128::from(was.min_rate);
                let left = whole * u128::from(rate - wanted) / u128::from(others.max(1));
                prop_assert_eq!(u128::from(now.min_rate), whole.min(left));
            }
        }
    }
}
