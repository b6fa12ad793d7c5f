//! Cycles per packet (enqueue and dequeue) of a shaped port, by the number of its queues.
//!
//! 10 Gbit/s of 1514-byte frames in bursts of 32 to randomly drawn queues, in three cases: queues
//! that keep to their own rate, queues that borrow everything, and queues with a bound. The
//! shaper's clock is virtual; the result is the minimum of many rounds.
//!
//! `cargo bench -p sluice-qos --bench shaper [-- NUMBER-OF-QUEUES...]`
#![allow(missing_docs)]

use qos::shaper::{PortSpec, QueueSpec, Shaper};
use std::num::NonZeroU64;

const RATE: u64 = 10_000_000_000;
const BURST: usize = 32;
const LEN: u32 = 1514;

#[cfg(target_arch = "x86_64")]
fn cycles() -> u64 {
    // SAFETY: reading the time stamp counter has no effect and every x86_64 has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn cycles() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    START
        .get_or_init(std::time::Instant::now)
        .elapsed()
        .as_nanos() as u64
}

#[derive(Clone, Copy)]
enum Case {
    Own,
    Borrow,
    Bound,
}

fn shaper(queues: u32, case: Case) -> Shaper<NonZeroU64> {
    let mut spec = PortSpec::new(RATE);
    spec.limit_packets = 1 << 20;
    spec.flows = if queues > 4096 { 4 } else { 64 };
    let share = RATE / u64::from(queues);
    spec.queues = (0..queues)
        .map(|number| match case {
            Case::Own => QueueSpec::new(number, share, share),
            Case::Borrow => QueueSpec::new(number, share / 10, RATE),
            Case::Bound => QueueSpec {
                max_latency_ns: Some(1_000_000_000),
                ..QueueSpec::new(number, share, share)
            },
        })
        .collect();
    Shaper::new(&spec, 0).expect("a port that can be")
}

/// Returns cycles per packet, the minimum of some rounds.
fn measure(queues: u32, case: Case) -> f64 {
    const ROUND: usize = 200;
    let mut shaper = shaper(queues, case);
    let mut random = 0x1234_5678_9abc_def1_u64;
    let frame_ns = u64::from(LEN) * 8 * 1_000_000_000 / RATE;
    let mut now = 0;
    let mut best = f64::MAX;
    let mut chosen = [0_usize; BURST];
    let (mut sent, mut offered) = (0_u64, 0_u64);
    let rounds = 60 + queues as usize / 200;
    for round in 0..rounds {
        let before = sent;
        let mut spent = 0;
        for _ in 0..ROUND {
            for place in &mut chosen {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                *place = (random >> 32) as usize % queues as usize;
            }
            // 95% of the port's rate.
            now += frame_ns * BURST as u64 * 20 / 19;
            let start = cycles();
            shaper.take_in_burst(
                BURST,
                |at| (chosen[at], 5),
                |shaper, at| {
                    let came = shaper.enqueue(chosen[at], NonZeroU64::MIN, LEN, 5, now);
                    offered += u64::from(came.is_ok());
                },
            );
            for _ in 0..BURST + 2 {
                if shaper.dequeue(now).is_none() {
                    break;
                }
                sent += 1;
            }
            spent += cycles().wrapping_sub(start);
        }
        if round > rounds / 2 {
            best = best.min(spent as f64 / (sent - before).max(1) as f64);
        }
    }
    assert!(sent * 100 > offered * 80, "{sent} of {offered} have left");
    best
}

fn main() {
    println!("cycles per packet, enqueue and dequeue");
    println!(
        "{:>9} {:>8} {:>8} {:>8}",
        "queues", "own", "borrow", "bound"
    );
    let mut first: Option<[f64; 3]> = None;
    let asked: Vec<u32> = std::env::args()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let all = [8, 1000, 100_000];
    for &queues in if asked.is_empty() { &all[..] } else { &asked } {
        let row = [Case::Own, Case::Borrow, Case::Bound].map(|case| measure(queues, case));
        let first = first.get_or_insert(row);
        let ratio: Vec<String> = row
            .iter()
            .zip(first)
            .map(|(now, then)| format!("{:.2}", now / *then))
            .collect();
        println!(
            "{queues:>9} {:>8.0} {:>8.0} {:>8.0}   ({} times that of 8)",
            row[0],
            row[1],
            row[2],
            ratio.join(", ")
        );
    }
}
