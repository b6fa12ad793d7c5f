//! What the shaper promises, seen from outside: rates over time, borrowing, bounds, flows, turns.

use qos::shaper::{DropReason, PortSpec, QueueSpec, Shaper, SpecError, TICK_NS, TenantSpec};

const SECOND: u64 = 1_000_000_000;

fn port(max_rate: u64, queues: impl IntoIterator<Item = QueueSpec>) -> PortSpec {
    let mut port = PortSpec::new(max_rate);
    port.queues = queues.into_iter().collect();
    port.default_queue = port.queues[0].number;
    port
}

/// Runs a shaper for a time while `feed` fills queues; calls are late by varying times up to
/// `late_ns`.
struct Run {
    shaper: Shaper<u64>,
    now: u64,
    sent: Vec<u64>,
    worst_ns: u64,
}

impl Run {
    fn new(spec: &PortSpec) -> Run {
        Run {
            shaper: Shaper::new(spec, 0).expect("a port that can be"),
            now: 0,
            sent: vec![0; spec.queues.len()],
            worst_ns: 0,
        }
    }

    fn keep_filled(&mut self, queue: usize, packets: u64, len: u32) {
        let waiting = self.shaper.counters().totals(queue).waiting;
        for _ in waiting..packets {
            let _ = self.shaper.enqueue(queue, 0, len, 7, self.now);
        }
    }

    fn until(&mut self, end: u64, late_ns: u64, mut feed: impl FnMut(&mut Run)) {
        let mut turn = 0_u64;
        while self.now < end {
            feed(self);
            turn += 1;
            let late = if late_ns == 0 {
                0
            } else {
                turn.wrapping_mul(7919) % late_ns
            };
            let due = self.shaper.next_departure_ns().unwrap_or(self.now + 10_000);
            self.now = due.max(self.now) + late.max(1);
            for _ in 0..32 {
                let Some(gone) = self.shaper.dequeue(self.now) else {
                    break;
                };
                self.sent[gone.queue] += u64::from(gone.len) * 8;
                self.worst_ns = self.worst_ns.max(gone.waited_ns);
            }
        }
    }

    fn rates(&mut self, seconds: u64) -> Vec<u64> {
        std::mem::take(&mut self.sent)
            .into_iter()
            .map(|bits| bits / seconds)
            .collect()
    }
}

fn near(rate: u64, wanted: u64, len: u32) {
    let slip = (wanted / 1000).max(2 * u64::from(len) * 8);
    assert!(
        rate.abs_diff(wanted) <= slip,
        "{rate} bit/s instead of {wanted}"
    );
}

#[test]
fn rates_hold_whatever_their_size_the_packets_and_the_timers_lateness() {
    for rate in [
        100_000_u64,
        1_000_000,
        9_999_991,
        100_000_000,
        1_000_000_000,
        9_000_000_000,
    ] {
        for (len, late) in [(64, 0), (1514, 50_000), (9000, 50_000)] {
            // As many packets as ten seconds' worth at the lower rates; a tenth of a second is
            // enough at the higher ones.
            let time = if rate > 10_000_000 {
                SECOND / 10
            } else {
                10 * SECOND
            };
            if rate / 8 / u64::from(len) * time / SECOND > 3_000_000 {
                continue;
            }
            let mut run = Run::new(&port(10_000_000_000, [QueueSpec::new(0, rate, rate)]));
            let start = SECOND / 20;
            run.until(start, late, |run| run.keep_filled(0, 900, len));
            let (from, _) = (run.now, run.rates(1));
            run.sent = vec![0];
            run.until(from + time, late, |run| run.keep_filled(0, 900, len));
            let bits = run.sent[0];
            let wanted =
                (u128::from(rate) * u128::from(run.now - from) / u128::from(SECOND)) as u64;
            let slack = rate * 60_000 / SECOND;
            let slip = (wanted / 1000).max(2 * u64::from(len) * 8) + slack;
            assert!(
                bits.abs_diff(wanted) <= slip,
                "{rate} bit/s of {len} bytes: {bits} bits instead of {wanted}"
            );
        }
    }
}

#[test]
fn guarantees_are_kept_and_the_rest_is_lent_by_priority_and_by_rate() {
    let gigabit = 1_000_000_000;
    let mut queues = vec![
        QueueSpec::new(0, 100_000_000, gigabit),
        QueueSpec::new(1, 300_000_000, gigabit),
        QueueSpec::new(2, 50_000_000, gigabit),
    ];
    queues[2].priority = 1;
    let mut run = Run::new(&port(gigabit, queues.clone()));
    run.until(2 * SECOND, 20_000, |run| {
        (0..3).for_each(|queue| run.keep_filled(queue, 500, 1514))
    });
    let rates = run.rates(2);
    let total: u64 = rates.iter().sum();
    assert!(total.abs_diff(gigabit) < gigabit / 200, "{total}");
    // 550 Mbit/s are left, for the first two only, shared one to three.
    near(rates[2], 50_000_000, 1514);
    assert!(rates[0].abs_diff(237_500_000) < 5_000_000, "{rates:?}");
    assert!(rates[1].abs_diff(712_500_000) < 5_000_000, "{rates:?}");
    // When the first two pause, the last gets everything; if it may not borrow, nobody does.
    run.sent = vec![0; 3];
    run.until(3 * SECOND + SECOND / 2, 20_000, |run| {
        run.keep_filled(2, 500, 1514)
    });
    assert!(run.sent[2] > gigabit, "{:?}", run.sent);
    queues[2].max_rate = 50_000_000;
    let mut run = Run::new(&port(gigabit, queues));
    run.until(SECOND, 20_000, |run| run.keep_filled(2, 500, 1514));
    assert!(run.rates(1)[2].abs_diff(50_000_000) < 300_000);
}

#[test]
fn tenants_share_by_their_rates_and_none_passes_its_maximum() {
    let (million, gigabit) = (1_000_000, 1_000_000_000);
    let mut queues: Vec<QueueSpec> = (0..4)
        .map(|number| QueueSpec::new(number, 50 * million, gigabit))
        .collect();
    queues
        .iter_mut()
        .zip([0, 0, 1, 1])
        .for_each(|(queue, tenant)| queue.tenant = Some(tenant));
    let mut spec = port(gigabit, queues);
    let tenant = |number, min_rate, max_rate| TenantSpec {
        number,
        min_rate,
        max_rate,
        burst: 1514 * 8,
    };
    spec.tenants = vec![
        tenant(0, 200 * million, gigabit),
        tenant(1, 400 * million, 500 * million),
    ];
    let mut run = Run::new(&spec);
    run.until(2 * SECOND, 20_000, |run| {
        (0..4).for_each(|queue| run.keep_filled(queue, 200, 1514))
    });
    let rates = run.rates(2);
    let (first, second) = (rates[0] + rates[1], rates[2] + rates[3]);
    assert!(second.abs_diff(500 * million) < 5 * million, "{rates:?}");
    assert!(first.abs_diff(500 * million) < 5 * million, "{rates:?}");
    assert!(rates[0].abs_diff(rates[1]) < 5 * million, "{rates:?}");
    // A tenant whose queues pause lends all it has.
    run.sent = vec![0; 4];
    run.until(3 * SECOND + SECOND / 2, 20_000, |run| {
        run.keep_filled(0, 500, 1514)
    });
    assert!(run.sent[0] > gigabit, "{:?}", run.sent);
}

#[test]
fn nothing_leaves_later_than_the_bound_and_the_slack_and_nothing_is_wasted() {
    for bound in [0_u64, 200_000, 1_000_000, 5_000_000, 20_000_000] {
        let rate = 500_000_000;
        let mut queue = QueueSpec::new(0, rate, rate);
        queue.max_latency_ns = Some(bound);
        queue.limit_packets = 10_000;
        queue.burst = 64 * 1514 * 8;
        let spec = port(1_000_000_000, [queue]);
        let mut run = Run::new(&spec);
        run.until(SECOND, 50_000, |run| {
            // Three times the rate.
            for _ in 0..6 {
                let _ = run.shaper.enqueue(0, 0, 1514, 7, run.now);
            }
        });
        assert!(
            run.worst_ns <= bound + spec.slack_ns,
            "{} ns with a bound of {bound}",
            run.worst_ns
        );
        let rate_seen = run.rates(1)[0];
        assert!(
            rate_seen.abs_diff(rate) < rate / 200 + 1_000_000,
            "{rate_seen} with a bound of {bound}"
        );
        let totals = run.shaper.counters().totals(0);
        let late = totals.dropped[DropReason::Late as usize];
        assert!(totals.dropped[DropReason::OverBound as usize] > 50_000);
        assert!(
            late * 100 <= totals.packets,
            "{late} came too late, though their departure was known when they came"
        );
    }
}

#[test]
fn a_bounded_queue_that_borrows_uses_what_it_gets() {
    let gigabit = 1_000_000_000;
    let mut queue = QueueSpec::new(0, 10_000_000, gigabit);
    queue.max_latency_ns = Some(1_000_000);
    let rival = QueueSpec::new(1, 500_000_000, gigabit);
    let spec = port(gigabit, [queue, rival]);
    let mut run = Run::new(&spec);
    let flood = |run: &mut Run| {
        for _ in 0..12 {
            let _ = run.shaper.enqueue(0, 0, 1514, 7, run.now);
        }
    };
    run.until(SECOND, 20_000, flood);
    let alone = run.rates(1)[0];
    assert!(alone > gigabit / 100 * 98, "alone it gets {alone}");
    run.sent = vec![0; 2];
    run.until(2 * SECOND, 20_000, |run| {
        flood(run);
        run.keep_filled(1, 300, 1514);
    });
    let rates = run.rates(1);
    // 490 Mbit/s are to be shared 1 to 50, as far as packets can wait for their turn.
    assert!(rates[0] > 10_000_000 && rates[0] < 25_000_000, "{rates:?}");
    assert!(rates[0] + rates[1] > gigabit / 100 * 98, "{rates:?}");
    run.sent = vec![0; 2];
    run.until(3 * SECOND, 20_000, flood);
    assert!(
        run.rates(1)[0] > gigabit / 100 * 95,
        "alone again it gets {:?}",
        run.sent
    );
}

#[test]
fn one_slow_departure_does_not_refuse_bursts_for_ever() {
    let mut queue = QueueSpec::new(0, 0, 1_000_000_000);
    queue.max_latency_ns = Some(2_000_000);
    let mut shaper = Shaper::new(&port(1_000_000_000, [queue]), 0).expect("a port that can be");
    let come = |shaper: &mut Shaper<u64>, now| shaper.enqueue(0, 0, 1514, 7, now).is_ok();
    assert!(come(&mut shaper, 0) && come(&mut shaper, 0));
    assert!(shaper.dequeue(1_000_000).is_some());
    let late = shaper.dequeue(2_030_000).expect("within bound and slack");
    assert_eq!(late.waited_ns, 2_030_000);
    // After this sample, any packet that finds another waiting would presumably be late.
    assert!(come(&mut shaper, 3_000_000) && !come(&mut shaper, 3_000_000));
    assert!(shaper.dequeue(3_000_000).is_some());
    for turn in 4..8 {
        let now = turn * 1_000_000;
        assert!(come(&mut shaper, now) && shaper.dequeue(now).is_some());
    }
    let burst = (0..8).filter(|_| come(&mut shaper, SECOND)).count();
    assert_eq!(burst, 8);
}

#[test]
fn an_idle_time_after_late_packets_is_not_noted_as_busy() {
    let mut queue = QueueSpec::new(0, 1_000_000_000, 1_000_000_000);
    queue.max_latency_ns = Some(1_000_000);
    let mut shaper = Shaper::new(&port(1_000_000_000, [queue]), 0).expect("a port that can be");
    assert!(shaper.watch().ask(0));
    for _ in 0..2 {
        shaper.enqueue(0, 0, 1514, 7, 1).expect("room for it");
    }
    assert!(shaper.dequeue(1).is_some());
    assert!(
        shaper.dequeue(5_000_000).is_none(),
        "the second is too late"
    );
    assert_eq!(
        shaper.counters().totals(0).dropped[DropReason::Late as usize],
        1
    );
    shaper
        .enqueue(0, 0, 1514, 7, 10 * SECOND)
        .expect("room for it");
    assert!(shaper.dequeue(10 * SECOND).is_some());
    let seen = shaper.watch().seen(0).expect("it is watched");
    assert_eq!((seen.sent, seen.busy_packets, seen.busy_ns), (2, 0, 0));
}

#[test]
fn a_bulk_flow_uses_up_neither_the_bound_nor_the_room_of_its_neighbours() {
    for limit in [100_u32, 100_000] {
        let mut queue = QueueSpec::new(0, 100_000_000, 100_000_000);
        queue.max_latency_ns = Some(2_000_000);
        queue.limit_packets = limit;
        let mut run = Run::new(&port(1_000_000_000, [queue]));
        let (mut next, mut refused, mut offered) = (0, 0, 0_u64);
        let mut slowest = 0;
        while run.now < SECOND {
            run.now += 20_000;
            for _ in 0..4 {
                let _ = run.shaper.enqueue(0, 0, 1514, 1, run.now);
            }
            if run.now > next {
                next = run.now + 1_000_000;
                offered += 1;
                refused += u64::from(run.shaper.enqueue(0, 1, 200, 2, run.now).is_err());
            }
            while let Some(gone) = run.shaper.dequeue(run.now) {
                if gone.handle == 1 {
                    slowest = slowest.max(gone.waited_ns);
                }
            }
        }
        assert!(offered > 900);
        assert_eq!(refused, 0, "of {offered} packets of the small flow");
        // One turn of the bulk flow, and the bucket's debt: three frames of 121 us plus the
        // interval between calls.
        assert!(slowest < 450_000, "{slowest} ns");
    }
}

#[test]
fn a_packet_that_is_dropped_uses_no_tokens_and_a_marked_one_leaves() {
    let mut queue = QueueSpec::new(0, 8_000_000, 8_000_000);
    queue.max_latency_ns = Some(10_000_000);
    queue.mark_ns = Some(5_000_000);
    let mut shaper = Shaper::new(&port(1_000_000_000, [queue]), 0).expect("a port");
    // A packet of 1000 bytes takes a millisecond, and the bucket holds one and a half: each leaves
    // when the debt of those before it is paid.
    let came = (0..30_u32)
        .filter(|id| shaper.enqueue(0, *id, 1000, 0, 0).is_ok())
        .count();
    let mut left = Vec::new();
    while let Some(due) = shaper.next_departure_ns() {
        if let Some(gone) = shaper.dequeue(due) {
            left.push((gone.handle, due, gone.mark));
        }
    }
    assert_eq!(left.len(), came, "none was late");
    assert_eq!(came, 12, "{left:?}");
    for (at, (id, due, mark)) in left.iter().enumerate() {
        assert_eq!(*id as usize, at);
        let exact = (at as u64 * 1_000_000).saturating_sub(1_514_000);
        assert!(
            *due >= exact && *due < exact + TICK_NS,
            "{id} left at {due}, not at {exact}"
        );
        assert_eq!(*mark, *due >= 5_000_000);
    }
    let totals = shaper.counters().totals(0);
    assert_eq!(totals.dropped, [18, 0, 0, 0]);
    assert_eq!(
        totals.marked,
        left.iter().filter(|gone| gone.2).count() as u64
    );
}

#[test]
fn another_shape_loses_no_packet_and_keeps_the_order_of_flows() {
    let queues = |numbers: &[u32]| -> PortSpec {
        port(
            1_000_000_000,
            numbers
                .iter()
                .map(|number| QueueSpec::new(*number, 1_000_000, 1_000_000_000)),
        )
    };
    let mut shaper = Shaper::new(&queues(&[0, 1, 2]), 0).expect("a port");
    for id in 0..300_u32 {
        let at = shaper.place_of(Some(id % 3));
        assert!(shaper.enqueue(at, id, 100, id % 5, 0).is_ok());
    }
    let sent_before = std::iter::from_fn(|| shaper.dequeue(1_000)).count();
    let before = shaper.counters().totals(shaper.place_of(Some(1)));
    let mut smaller = queues(&[0, 1]);
    smaller.flows = 4;
    let mut faulty = smaller.clone();
    faulty.max_rate = 0;
    assert_eq!(
        shaper
            .reconfigure(&faulty, 1_000)
            .map_err(|error| error.to_string()),
        Err("port: 0 bit/s is not a rate between 8000 and 400000000000 bit/s".to_owned())
    );
    shaper
        .reconfigure(&smaller, 1_000)
        .expect("a port that can be");
    let one = shaper.place_of(Some(1));
    assert_eq!(shaper.counters().totals(one), before);
    assert_eq!(shaper.place_of(Some(2)), shaper.place_of(Some(0)));
    let mut last = std::collections::HashMap::new();
    let mut count = sent_before;
    while let Some(due) = shaper.next_departure_ns() {
        while let Some(gone) = shaper.dequeue(due) {
            count += 1;
            let earlier = last.insert((gone.handle % 3, gone.handle % 5), gone.handle);
            assert!(
                earlier < Some(gone.handle),
                "{} left after {earlier:?}",
                gone.handle
            );
        }
    }
    assert_eq!(count, 300);
}

#[test]
fn errors_of_port_specs_name_port_or_queue() {
    let good = || {
        port(
            1_000_000_000,
            [
                QueueSpec::new(0, 1_000_000, 10_000_000),
                QueueSpec::new(7, 0, 8_000),
            ],
        )
    };
    assert_eq!(good().check(), Ok(()));
    let refused = |change: &dyn Fn(&mut PortSpec)| -> String {
        let mut spec = good();
        change(&mut spec);
        let error: Result<Shaper<u8>, SpecError> = Shaper::new(&spec, 0);
        error
            .err()
            .map_or_else(|| "nothing wrong".to_owned(), |error| error.to_string())
    };
    type Change<'a> = &'a dyn Fn(&mut PortSpec);
    let cases: [(Change, &str); 14] = [
        (
            &|port| port.max_rate = u64::MAX,
            "port: 18446744073709551615 bit/s is not a rate between 8000 and 400000000000 bit/s",
        ),
        (
            &|port| port.queues[1].max_rate = 0,
            "queue 7: 0 bit/s is not a rate between 8000 and 400000000000 bit/s",
        ),
        (
            &|port| port.queues[1].min_rate = 9_000,
            "queue 7: guaranteed rate 9000 bit/s is above the maximum of 8000 bit/s",
        ),
        (
            &|port| port.max_rate = 900_000,
            "port: guaranteed rates add up to 1000000 bit/s, more than its 900000 bit/s",
        ),
        (
            &|port| port.queues[0].min_rate = u64::MAX,
            "queue 0: guaranteed rate 18446744073709551615 bit/s is above the maximum of 10000000 bit/s",
        ),
        (
            &|port| port.queues[0].burst = u64::MAX,
            "queue 0: a burst of 18446744073709551615 bits is more than 2000000000",
        ),
        (
            &|port| port.queues[0].priority = 8,
            "queue 0: priority 8 is not between 0 and 7",
        ),
        (
            &|port| port.queues[0].max_latency_ns = Some(4_000_000_001),
            "queue 0: a latency of 4000000001 ns is more than 4000000000",
        ),
        (
            &|port| port.queues[0].limit_packets = 0,
            "queue 0: a limit of 0 is not between 1 and 16384",
        ),
        (&|port| port.queues[1].number = 0, "queue 0 is there twice"),
        (
            &|port| port.queues[1].tenant = Some(3),
            "queue 7 names tenant 3, which is not there",
        ),
        (
            &|port| port.default_queue = 5,
            "there is no queue 5 for packets that name none",
        ),
        (
            &|port| port.flows = 3,
            "a number of flows of 3 is out of range",
        ),
        (
            &|port| port.overhead = -1001,
            "an overhead of -1001 is out of range",
        ),
    ];
    for (change, text) in cases {
        assert_eq!(refused(change), text);
    }
}

#[test]
fn a_hundred_thousand_queues_work() {
    let count = 100_000;
    let mut spec = port(
        10_000_000_000,
        (0..count).map(|number| QueueSpec::new(number, 100_000, 10_000_000)),
    );
    spec.flows = 4;
    spec.limit_packets = 400_000;
    let mut run = Run::new(&spec);
    for number in 0..count {
        for _ in 0..3 {
            assert!(
                run.shaper
                    .enqueue(number as usize, number.into(), 1250, 1, 0)
                    .is_ok()
            );
        }
    }
    let mut order = Vec::new();
    while let Some(due) = run.shaper.next_departure_ns() {
        run.now = run.now.max(due);
        while let Some(gone) = run.shaper.dequeue(run.now) {
            order.push(gone.handle);
        }
    }
    assert_eq!(order.len(), 300_000);
    // 3 Gbit at 10 Gbit/s.
    assert!(run.now.abs_diff(300_000_000) < 1_000_000, "{} ns", run.now);
}

/// After a stop, packets arrive that the kernel has had for a while: those that cannot leave within
/// what is left of their bound are refused on arrival. Otherwise they would be dropped when their
/// turn comes, and until then keep out packets that could leave in time.
#[test]
fn packets_that_have_waited_elsewhere_have_that_much_less_time() {
    let mut queue = QueueSpec::new(0, 100_000_000, 100_000_000);
    queue.max_latency_ns = Some(2_000_000);
    let mut shaper = Shaper::new(&port(1_000_000_000, [queue]), 0).expect("a port that can be");
    let come = |shaper: &mut Shaper<u64>, came| {
        let mut packets = 0..1000;
        packets
            .find(|_| shaper.enqueue(0, 0, 1514, 7, came).is_err())
            .expect("there is an end to it")
    };
    let now = SECOND;
    // 2 ms are 16 packets, and its burst is a bit more than one.
    assert!((17..20).contains(&come(&mut shaper, now)));
    while shaper.dequeue(now).is_some() {}
    while shaper.waiting() > 4 {
        let due = shaper.next_departure_ns().expect("packets wait");
        shaper.dequeue(due);
    }
    let now = shaper.next_departure_ns().expect("packets wait");
    assert!(shaper.dequeue(now).is_some());
    // Three packets and a debt of one are ahead of what arrives. The 0.5 ms left after 1.5 ms are
    // enough for four packets, 1 ms for eight. Once the bound has passed, nothing is accepted.
    assert_eq!(come(&mut shaper, now - 2_100_000), 0);
    assert_eq!(come(&mut shaper, now - 1_500_000), 1);
    assert_eq!(come(&mut shaper, now - 1_000_000), 4);
    // A packet that has just arrived has its whole bound.
    assert_eq!(come(&mut shaper, now), 8);
    let mut last = now;
    while let Some(due) = shaper.next_departure_ns() {
        last = last.max(due);
        shaper.dequeue(last);
    }
    let totals = shaper.counters().totals(0);
    assert_eq!(totals.dropped[DropReason::Late as usize], 0);
    assert_eq!(totals.dropped[DropReason::OverBound as usize], 5);
    // A packet for an empty queue leaves at once in any case.
    let now = last + SECOND;
    assert!(shaper.enqueue(0, 0, 1514, 7, now).is_ok());
    assert!(shaper.dequeue(now).is_some());
    assert_eq!(shaper.pass(0, [1514].into_iter(), now - 5_000_000), 1);
}

/// A bound from outside stops queues that are flooded; a queue with little waiting, packets that
/// need not wait, and the port's own limits are as without it.
#[test]
fn a_bound_from_outside_leaves_each_queue_a_few_packets() {
    let spec = port(
        1_000_000,
        (0..3).map(|number| QueueSpec::new(number, 100_000, 1_000_000)),
    );
    let mut run = Run::new(&spec);
    run.keep_filled(0, 100, 1500);
    assert_eq!(run.shaper.waiting(), 100);
    run.shaper.bound(50, 50 * 2048);
    run.keep_filled(0, 101, 1500);
    assert_eq!(
        run.shaper.waiting(),
        100,
        "those that wait stay, no other comes"
    );
    for queue in [1, 2] {
        run.keep_filled(queue, 20, 1500);
        assert_eq!(run.shaper.counters().totals(queue).waiting, 4);
    }
    run.shaper.bound(u32::MAX, u64::MAX);
    run.keep_filled(1, 20, 1500);
    assert_eq!(run.shaper.counters().totals(1).waiting, 20);
    // Nothing waits, and nothing is left of the room.
    let mut idle = Run::new(&spec);
    idle.shaper.bound(0, 0);
    assert_eq!(idle.shaper.pass(1, [1000].into_iter(), 1), 1);
}
