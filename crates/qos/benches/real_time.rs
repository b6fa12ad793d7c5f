//! Rates and bounds of the shaper in real time. Nothing but a shaper and the processor's clock is
//! involved, so errors seen here affect every user.
//!
//! `rate`: queues that always have packets; measures how far departures deviate from their rates,
//! in total and over any second. `bound`: packets arrive at 1.3 times a queue's rate (regularly, at
//! random, in bursts); counts those that left later than the queue's bound plus the timer's slack
//! and a batch, by a clock that is read after they were removed. The scheduler may run something
//! else meanwhile: packets that were being processed then are counted separately, and the number
//! and length of such stops are printed.
//!
//! `cargo bench -p sluice-qos --bench real_time -- [rate|bound] [seconds of each case]`
#![allow(missing_docs)]

use qos::shaper::{DROP_REASONS, PortSpec, QueueSpec, Shaper};
use std::time::Instant;

const SECOND: u64 = 1_000_000_000;
/// Time between two reads of the clock, in nanoseconds, from which on the scheduler must have run
/// something else.
const STOP_NS: u64 = 20_000;
/// How long removing a packet may take, in nanoseconds: a batch of 32 at 10 Gbit/s. If it takes
/// longer, the scheduler ran something else.
const OUT_NS: u64 = 8_000;
/// Interval between the starts of the one-second windows, in nanoseconds.
const STEP_NS: u64 = SECOND / 100;

struct Clock(Instant);

impl Clock {
    fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// How often and how long the scheduler ran something else.
#[derive(Default)]
struct Stops {
    count: u64,
    total_ns: u64,
    worst_ns: u64,
    last_ns: u64,
}

impl Stops {
    fn look(&mut self, now: u64) {
        let gap = now - self.last_ns;
        self.last_ns = now;
        if gap > STOP_NS {
            self.count += 1;
            self.total_ns += gap;
            self.worst_ns = self.worst_ns.max(gap);
        }
    }

    fn told(&self) -> String {
        format!(
            "stopped {} times, {:.2} ms in all, {:.2} ms at worst",
            self.count,
            self.total_ns as f64 / 1e6,
            self.worst_ns as f64 / 1e6
        )
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Returns by how many percent a rate deviates from what it should be, beyond two frames.
fn beyond(bits: u64, rate: u64, time_ns: u64, len: u32) -> f64 {
    let wanted = rate as f64 * time_ns as f64 / 1e9;
    let missing = (bits as f64 - wanted).abs() - 2.0 * f64::from(len) * 8.0;
    100.0 * missing.max(0.0) / wanted
}

fn rate(queues: u32, rate: u64, len: u32, seconds: u64) {
    let mut spec = PortSpec::new((rate * u64::from(queues)).max(10_000_000_000));
    // 4 ms of packets: what can be made up for after a stop.
    let kept = (rate / 250 / u64::from(len) / 8 + 4).min(900) as u32;
    spec.limit_packets = 2 * queues * kept + 1000;
    spec.flows = if queues > 4096 { 1 } else { 64 };
    spec.queues = (0..queues)
        .map(|number| QueueSpec::new(number, rate, rate))
        .collect();
    let clock = Clock(Instant::now());
    let mut shaper: Shaper<()> = Shaper::new(&spec, 0).expect("a port that can be");
    for queue in 0..queues as usize {
        for _ in 0..kept {
            let _ = shaper.enqueue(queue, (), len, 1, clock.now());
        }
    }
    let steps = ((seconds * SECOND) / STEP_NS) as usize;
    let mut sent = vec![0_u64; queues as usize];
    let mut bins = vec![0_u64; steps + 1];
    let warm = clock.now() + SECOND / 5;
    let end = warm + seconds * SECOND;
    let mut stops = Stops {
        last_ns: clock.now(),
        ..Stops::default()
    };
    loop {
        let now = clock.now();
        stops.look(now);
        if now >= end {
            break;
        }
        for _ in 0..32 {
            let Some(gone) = shaper.dequeue(now) else {
                break;
            };
            let _ = shaper.enqueue(gone.queue, (), len, 1, now);
            if now >= warm {
                sent[gone.queue] += u64::from(len) * 8;
                bins[((now - warm) / STEP_NS) as usize] += u64::from(len) * 8;
            }
        }
    }
    let worst = sent
        .iter()
        .map(|bits| beyond(*bits, rate, seconds * SECOND, len))
        .fold(0.0, f64::max);
    let window = (SECOND / STEP_NS) as usize;
    let all = rate * u64::from(queues);
    let any = bins[..steps]
        .windows(window.min(steps))
        .map(|bins| {
            let time_ns = bins.len() as u64 * STEP_NS;
            beyond(bins.iter().sum(), all, time_ns, len * queues)
        })
        .fold(0.0, f64::max);
    println!(
        "{queues:>6} queues of {:>9.3} Mbit/s, {len:>4} B: worst queue {worst:.4}% beyond two frames in {seconds} s, all together {any:.4}% in any second; {}",
        rate as f64 / 1e6,
        stops.told()
    );
}

#[derive(Clone, Copy, Debug)]
enum Arrivals {
    Regular,
    Random,
    Bursts,
}

/// Returns the packets sent, and the packets late without a stop.
fn bound(bound_us: u64, arrivals: Arrivals, seconds: u64) -> (u64, u64) {
    const RATE: u64 = 2_000_000_000;
    const LEN: u32 = 250;
    let mut spec = PortSpec::new(10_000_000_000);
    spec.limit_packets = 1 << 20;
    spec.queues = vec![QueueSpec {
        max_latency_ns: Some(bound_us * 1000),
        limit_packets: 1 << 20,
        ..QueueSpec::new(0, RATE, RATE)
    }];
    let clock = Clock(Instant::now());
    let mut shaper: Shaper<()> = Shaper::new(&spec, 0).expect("a port that can be");
    let promise = shaper.promise_ns(0).expect("a queue with a bound");
    let gap = u64::from(LEN) * 8 * SECOND * 10 / (RATE * 13);
    let (mut state, mut due, mut number) = (0x2545_f491_4f6c_dd1d_u64, 0, 0_u64);
    let (mut sent, mut late, mut in_hand, mut worst) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut stops = Stops::default();
    loop {
        let now = clock.now();
        stops.look(now);
        if now >= seconds * SECOND {
            break;
        }
        while due <= now {
            // A packet's age counts from its arrival, even if that was noticed late.
            let _ = shaper.enqueue(0, (), LEN, (number % 16) as u32, due);
            number += 1;
            due += match arrivals {
                Arrivals::Regular => gap,
                Arrivals::Random => {
                    let uniform = (random(&mut state) >> 11) as f64 / (1_u64 << 53) as f64;
                    (-(1.0 - uniform).ln() * gap as f64) as u64
                }
                Arrivals::Bursts if number.is_multiple_of(256) => gap * 256,
                Arrivals::Bursts => 0,
            };
        }
        for _ in 0..32 {
            let asked = clock.now();
            let Some(gone) = shaper.dequeue(asked) else {
                break;
            };
            let after = clock.now();
            let waited = gone.waited_ns + (after - asked);
            sent += 1;
            if waited > promise + OUT_NS {
                if after - asked > OUT_NS {
                    in_hand += 1;
                } else {
                    late += 1;
                }
            } else {
                worst = worst.max(waited);
            }
        }
    }
    let totals = shaper.counters().totals(0);
    let drops: Vec<String> = DROP_REASONS
        .iter()
        .zip(totals.dropped)
        .map(|((_, name), count)| format!("{name} {count}"))
        .collect();
    println!(
        "bound {bound_us:>5} us, {arrivals:?}: {sent} sent ({:.2}% of the rate), worst {:.1} us of {:.1}; late {late}, and {in_hand} that were in hand at a stop; dropped: {}; {}",
        sent as f64 * f64::from(LEN) * 8.0 / (RATE * seconds) as f64 * 100.0,
        worst as f64 / 1e3,
        promise as f64 / 1e3,
        drops.join(", "),
        stops.told()
    );
    (sent, late)
}

fn main() {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with("--"))
        .collect();
    let wanted = |name: &str| {
        !words
            .iter()
            .any(|word| word.parse::<u64>().is_err() && word != name)
    };
    let seconds = words.iter().find_map(|word| word.parse().ok()).unwrap_or(2);
    if wanted("rate") {
        for (queues, each, len) in [
            (1, 1_000_000, 64),
            (1, 10_000_000, 1514),
            (1, 500_000_000, 64),
            (1, 1_000_000_000, 1514),
            (1, 10_000_000_000, 1514),
            (8, 100_000_000, 300),
            (8, 1_250_000_000, 1514),
            (100, 50_000_000, 1514),
            (1_000, 5_000_000, 700),
            (100_000, 50_000, 1514),
            (100_000, 50_000, 300),
        ] {
            rate(queues, each, len, seconds);
        }
    }
    if wanted("bound") {
        let (mut sent, mut late) = (0, 0);
        for bound_us in [200, 1_000, 5_000, 20_000] {
            for arrivals in [Arrivals::Regular, Arrivals::Random, Arrivals::Bursts] {
                let (more, bad) = bound(bound_us, arrivals, seconds);
                (sent, late) = (sent + more, late + bad);
            }
        }
        println!("{late} late of {sent}");
    }
}
