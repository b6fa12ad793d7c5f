//! Compares the shaper with its reference: every packet's fate, order and time.

use proptest::prelude::*;
use qos::reference;
use qos::shaper::{PortSpec, QueueSpec, Shaper, TenantSpec};

const RATES: [u64; 9] = [
    8_000,
    100_000,
    1_000_000,
    7_777_777,
    10_000_000,
    99_999_989,
    500_000_000,
    1_000_000_000,
    100_000_000_000,
];

fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![prop::sample::select(&RATES[..]), 100_000..2_000_000_000_u64]
}

fn burst() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1514 * 8),
        0..100_000_u64,
        0..2_000_000_000_u64
    ]
}

/// A queue and its share of the rate, in thousandths, so that guarantees fit.
fn queue(number: u32) -> impl Strategy<Value = (QueueSpec, u64)> {
    let bound = prop_oneof![
        2 => Just(None),
        1 => Just(Some(0)),
        3 => (0..20_000_000_u64).prop_map(Some),
    ];
    let mark = prop_oneof![2 => Just(None), 1 => (0..5_000_000_u64).prop_map(Some)];
    let limit = prop_oneof![1..8_u32, Just(1000)];
    let bytes = prop_oneof![3 => Just(1_u32 << 29), 1 => 1..20_000_u32];
    let share = prop_oneof![1 => Just(0_u64), 4 => 1..160_u64];
    let max = prop_oneof![2 => Just(None), 1 => rate().prop_map(Some)];
    (
        bound,
        mark,
        limit,
        bytes,
        share,
        max,
        burst(),
        0..3_u8,
        prop::option::of(0..3_u32),
    )
        .prop_map(
            move |(
                max_latency_ns,
                mark_ns,
                limit_packets,
                limit_bytes,
                share,
                max,
                burst,
                priority,
                tenant,
            )| {
                let mut spec = QueueSpec::new(number, 0, max.unwrap_or(0));
                (spec.max_latency_ns, spec.mark_ns) = (max_latency_ns, mark_ns);
                (spec.limit_packets, spec.limit_bytes) = (limit_packets, limit_bytes);
                (spec.burst, spec.priority, spec.tenant) = (burst, priority, tenant);
                (spec, share)
            },
        )
}

fn port() -> impl Strategy<Value = PortSpec> {
    let queues: Vec<_> = (0..6).map(queue).collect();
    let tenants = prop::collection::vec((0..200_u64, rate(), burst()), 0..3);
    let overhead = prop_oneof![Just(0), Just(24), Just(-14)];
    let slack = prop_oneof![Just(0), Just(60_000), 0..1_000_000_u64];
    let flows = prop_oneof![Just(1_u32), Just(4), Just(64)];
    let limit = prop_oneof![1 => 1..20_u32, 3 => Just(16_384_u32)];
    let bytes = prop_oneof![1 => 1..100_000_u64, 3 => Just(u64::MAX)];
    (
        queues,
        1..=6_usize,
        tenants,
        rate(),
        burst(),
        overhead,
        slack,
        flows,
        (limit, bytes),
        0..6_u32,
    )
        .prop_map(
            |(
                queues,
                count,
                tenants,
                max_rate,
                burst,
                overhead,
                slack_ns,
                flows,
                (limit_packets, limit_bytes),
                default,
            )| {
                let mut port = PortSpec::new(max_rate);
                (port.burst, port.overhead, port.slack_ns, port.flows) =
                    (burst, overhead, slack_ns, flows);
                (port.limit_packets, port.default_queue) = (limit_packets, default);
                port.catch_up_ns = slack_ns * 10;
                port.limit_bytes = limit_bytes;
                let part = |share: u64, of: u64| (u128::from(of) * u128::from(share) / 1000) as u64;
                // When the port changes, queues with other numbers come and go; the default one
                // stays.
                let mut chosen: Vec<_> = queues
                    .into_iter()
                    .cycle()
                    .skip(default as usize)
                    .take(6)
                    .collect();
                chosen.truncate(count);
                port.queues = chosen
                    .into_iter()
                    .map(|(mut queue, share)| {
                        let tenant = queue.tenant.filter(|at| (*at as usize) < tenants.len());
                        queue.tenant = tenant;
                        queue.min_rate = match tenant {
                            Some(at) => part(part(tenants[at as usize].0, max_rate), share),
                            None => part(max_rate, share),
                        };
                        queue.max_rate = queue.max_rate.max(queue.min_rate).max(8_000);
                        queue
                    })
                    .collect();
                let mut numbers = 0..;
                port.tenants = tenants
                    .into_iter()
                    .map(|(share, max, burst)| {
                        let number = numbers.next().unwrap_or(0);
                        let children = port
                            .queues
                            .iter()
                            .filter(|queue| queue.tenant == Some(number));
                        let min_rate = children
                            .map(|queue| queue.min_rate)
                            .sum::<u64>()
                            .max(part(max_rate, share));
                        TenantSpec {
                            number,
                            min_rate,
                            max_rate: max.max(min_rate),
                            burst,
                        }
                    })
                    .collect();
                // What does not fit is reduced.
                while port.check().is_err() {
                    port.queues.iter_mut().for_each(|queue| queue.min_rate /= 2);
                    port.tenants
                        .iter_mut()
                        .for_each(|tenant| tenant.min_rate /= 2);
                    let sums: Vec<u64> = port
                        .tenants
                        .iter()
                        .map(|tenant| {
                            port.queues
                                .iter()
                                .filter(|queue| queue.tenant == Some(tenant.number))
                                .map(|queue| queue.min_rate)
                                .sum()
                        })
                        .collect();
                    port.tenants
                        .iter_mut()
                        .zip(sums)
                        .for_each(|(tenant, sum)| tenant.min_rate = tenant.min_rate.max(sum));
                }
                port
            },
        )
}

#[derive(Clone, Debug)]
enum Step {
    Come {
        queue: u32,
        len: u32,
        flow: u32,
        copies: u32,
        /// How long before the call it arrived, in nanoseconds.
        before: u64,
    },
    /// Arrives and leaves at once, if it need not wait.
    Pass {
        queue: u32,
        len: u32,
        copies: u32,
        before: u64,
    },
    /// Packets of several queues that arrive and leave at once, if all may.
    PassAll(Vec<(u32, u32)>, u64),
    Leave(u32),
    Pause(u64),
    /// Waits until the shaper says that a packet may leave.
    Until,
    Change(Box<PortSpec>),
}

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![Just(60_u32), Just(1514), 1..1600_u32, Just(65_000)];
    let pause = prop_oneof![
        0..2000_u64,
        0..100_000_u64,
        0..5_000_000_u64,
        0..2_000_000_000_u64
    ];
    let before = || {
        prop_oneof![
            3 => Just(0_u64),
            1 => 0..100_000_u64,
            1 => 0..30_000_000_u64
        ]
    };
    prop_oneof![
        8 => (0..8_u32, len(), 0..6_u32, 1..6_u32, before()).prop_map(|(queue, len, flow, copies, before)| Step::Come { queue, len, flow, copies, before }),
        8 => (0..8_u32, len(), 1..6_u32, before()).prop_map(|(queue, len, copies, before)| Step::Pass { queue, len, copies, before }),
        4 => (prop::collection::vec((0..8_u32, len()), 1..20), before()).prop_map(|(packets, before)| Step::PassAll(packets, before)),
        6 => (1..12_u32).prop_map(Step::Leave),
        4 => pause.prop_map(Step::Pause),
        6 => Just(Step::Until),
        1 => port().prop_map(|port| Step::Change(Box::new(port))),
    ]
}

struct Both {
    fast: Shaper<u64>,
    slow: reference::shaper::Shaper,
    now: u64,
    next_id: u64,
    known: u64,
}

impl Both {
    fn come(&mut self, queue: u32, len: u32, flow: u32, now: u64) -> Result<(), TestCaseError> {
        let at = self.fast.place_of(Some(queue));
        let id = self.next_id;
        self.next_id += 1;
        let slow = self.slow.enqueue(at, id, len, flow, now);
        let fast = self.fast.enqueue(at, id, len, flow, now);
        prop_assert_eq!(
            fast.map_err(|refused| refused.reason),
            slow,
            "packet {} of {} bytes in flow {} of queue {}",
            id,
            len,
            flow,
            at
        );
        Ok(())
    }

    fn pass(&mut self, queue: u32, len: u32, copies: u32, now: u64) -> Result<(), TestCaseError> {
        let at = self.fast.place_of(Some(queue));
        let lens = std::iter::repeat_n(len, copies as usize);
        let passed = self.fast.pass(at, lens, now);
        for copy in 0..copies as usize {
            let id = self.next_id;
            self.next_id += 1;
            let slow = self.slow.pass(at, id, len, 3, now);
            prop_assert_eq!(slow.is_some(), copy < passed, "copy {} of {}", copy, passed);
            if slow.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Passes all or none; if none, nothing may have changed, since the packets are enqueued now.
    fn pass_all(&mut self, packets: &[(u32, u32)], now: u64) -> Result<(), TestCaseError> {
        let places: Vec<(usize, u32)> = packets
            .iter()
            .map(|(queue, len)| (self.fast.place_of(Some(*queue)), *len))
            .collect();
        let all = self.fast.pass_all(places.iter().copied(), now);
        for (&(place, len), &(queue, _)) in places.iter().zip(packets) {
            if !all {
                self.come(queue, len, 3, now)?;
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            let slow = self.slow.pass(place, id, len, 3, now);
            prop_assert!(
                slow.is_some(),
                "packet {} of {} bytes, queue {}",
                id,
                len,
                queue
            );
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<bool, TestCaseError> {
        let due = self.fast.next_departure_ns();
        let slow = self.slow.dequeue(self.now);
        let fast = self.fast.dequeue(self.now);
        let seen = fast.as_ref().map(|gone| reference::shaper::Left {
            id: gone.handle,
            queue: gone.queue,
            waited_ns: gone.waited_ns,
            mark: gone.mark,
        });
        prop_assert_eq!(seen, slow, "at {}", self.now);
        if fast.is_some() {
            prop_assert!(
                due.is_some_and(|due| due <= self.now),
                "said to be due at {:?}, left at {}",
                due,
                self.now
            );
        } else if let Some(due) = self.fast.next_departure_ns() {
            prop_assert!(
                due > self.now,
                "due at {} and nothing leaves at {}",
                due,
                self.now
            );
        }
        Ok(fast.is_some())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let counters = self.fast.counters();
        let mut sum = self.known;
        for (at, totals) in counters.all().enumerate() {
            prop_assert_eq!(totals, self.slow.totals(at), "queue {}", at);
            sum += totals.waiting;
        }
        prop_assert_eq!(sum, self.fast.waiting() as u64);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(std::env::var("SLUICE_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(600)))]

    #[test]
    fn every_packet_leaves_as_in_the_reference(
        port in port(),
        start in prop_oneof![Just(0_u64), 0..1_u64 << 50],
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let fast = Shaper::new(&port, start).expect("a port that can be");
        let slow = reference::shaper::Shaper::new(&port, start);
        let mut both = Both { fast, slow, now: start, next_id: 0, known: 0 };
        for step in steps {
            match step {
                Step::Come { queue, len, flow, copies, before } => {
                    for _ in 0..copies {
                        both.come(queue, len, flow, both.now.saturating_sub(before))?;
                    }
                }
                Step::Pass { queue, len, copies, before } => both.pass(queue, len, copies, both.now.saturating_sub(before))?,
                Step::PassAll(packets, before) => both.pass_all(&packets, both.now.saturating_sub(before))?,
                Step::Leave(count) => {
                    for _ in 0..count {
                        both.leave()?;
                    }
                }
                Step::Pause(ns) => both.now += ns,
                Step::Until => {
                    if let Some(due) = both.fast.next_departure_ns() {
                        both.now = both.now.max(due);
                        both.leave()?;
                    }
                }
                Step::Change(port) => {
                    both.fast.reconfigure(&port, both.now).expect("a port that can be");
                    both.slow.reconfigure(&port, both.now);
                }
            }
            both.compare()?;
        }
        // Everything that waits leaves in the end, or is late.
        for _ in 0..20_000 {
            let Some(due) = both.fast.next_departure_ns() else { break };
            both.now = both.now.max(due);
            both.leave()?;
        }
        both.compare()?;
    }
}
