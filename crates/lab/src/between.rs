//! The way of a cache line between two cores.
//!
//! Whoever hands packets from one core to another waits for cache lines to come over. A hypervisor
//! that moves virtual processors changes that way: the same two cores have been seen to share a
//! physical one (50 ns there and back) and a second later to be on different parts of a processor
//! (350 ns), while neither core's own speed changed.

use crate::place::pin;
use crate::statistics::median;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Ways there and back in one measurement. Few, so that most are not interrupted.
const TURNS: u32 = 64;
/// Most measurements, and fewest that tell anything.
const MOST: usize = 101;
const LEAST: usize = 9;
/// How long it may take, however busy the cores are.
const LIMIT: Duration = Duration::from_millis(20);

/// A cache line of its own. (Two, since neighbours are fetched together.)
#[repr(align(128))]
struct Line(AtomicU32);

/// Nanoseconds of a cache line's way to another core and back: the median of up to 101
/// measurements within 20 ms. None where the cores are the same, or were too busy for nine.
pub fn round_trip(one: usize, other: usize) -> Option<f64> {
    if one == other {
        return None;
    }
    let (line, stop) = (Line(AtomicU32::new(0)), AtomicBool::new(false));
    let times = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(other);
            while !stop.load(Ordering::Relaxed) {
                let came = line.0.load(Ordering::Acquire);
                if came % 2 == 1 {
                    line.0.store(came.wrapping_add(1), Ordering::Release);
                }
                std::hint::spin_loop();
            }
        });
        // Not on the caller's thread, which stays where it is.
        let times = scope.spawn(|| {
            pin(one);
            let times = measure(&line.0, Instant::now() + LIMIT);
            stop.store(true, Ordering::Relaxed);
            times
        });
        times.join()
    });
    let times = times.ok()?;
    (times.len() >= LEAST).then(|| median(&times))
}

/// Times of a way there and back, each the mean of a few, until there are enough or it is time.
fn measure(line: &AtomicU32, until: Instant) -> Vec<f64> {
    let (mut times, mut at) = (Vec::new(), 0_u32);
    while times.len() < MOST {
        let begun = Instant::now();
        for _ in 0..TURNS {
            line.store(at.wrapping_add(1), Ordering::Release);
            at = at.wrapping_add(2);
            let mut spins = 0_u32;
            while line.load(Ordering::Acquire) != at {
                spins = spins.wrapping_add(1);
                if spins.is_multiple_of(1024) && Instant::now() > until {
                    return times;
                }
                std::hint::spin_loop();
            }
        }
        times.push(begun.elapsed().as_nanos() as f64 / f64::from(TURNS));
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_there_and_back() {
        assert_eq!(round_trip(0, 0), None);
        let cores = crate::subjects::allowed_cores();
        if let [one, other, ..] = cores[..] {
            // Others may keep the cores busy all the time.
            let found = (0..50).find_map(|_| round_trip(one, other));
            assert!(found.is_none_or(|ns| (1.0..1e6).contains(&ns)), "{found:?}");
        }
    }

    /// Who does not answer is not waited for.
    #[test]
    fn a_silent_core_ends_it() {
        let line = AtomicU32::new(0);
        assert!(measure(&line, Instant::now() + Duration::from_millis(5)).is_empty());
    }

    #[test]
    fn a_core_that_answers_is_timed() {
        let (line, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let came = line.load(Ordering::Acquire);
                    if came % 2 == 1 {
                        line.store(came.wrapping_add(1), Ordering::Release);
                    }
                    std::thread::yield_now();
                }
            });
            let times = measure(&line, Instant::now() + Duration::from_secs(60));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(times.len(), MOST);
            assert!(times.iter().all(|ns| *ns > 0.0));
        });
    }
}
