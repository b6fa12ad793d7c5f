//! The clock that frames are stamped with, and what it tells about the thread that reads it.
//!
//! Time is in nanoseconds since the clock was made. On x86 with an invariant time-stamp counter a
//! reading takes some 20 cycles; elsewhere the kernel's monotonic clock is used.

use std::time::{Duration, Instant};

/// How long the counter is compared with the kernel's clock.
const COMPARED: Duration = Duration::from_millis(50);

/// A clock, cheap to read.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    counter: Option<Counter>,
}

/// A time-stamp counter that runs at a constant rate.
#[derive(Clone, Copy, Debug)]
struct Counter {
    /// Its value when the clock was made.
    base: u64,
    /// Nanoseconds a tick, in units of 2^-32.
    scale: u64,
}

impl Clock {
    /// Makes a clock. Takes 50 ms, in which it compares the processor's counter with the kernel's
    /// clock.
    pub fn new() -> Clock {
        if !is_invariant() {
            return Clock {
                start: Instant::now(),
                counter: None,
            };
        }
        let (start, base) = both();
        std::thread::sleep(COMPARED);
        let (end, last) = both();
        let ns = end.duration_since(start).as_nanos();
        let ticks = u128::from(last.wrapping_sub(base)).max(1);
        let scale = ((ns << 32) / ticks) as u64;
        Clock {
            start,
            counter: Some(Counter { base, scale }),
        }
    }

    /// Returns the time in nanoseconds.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        match self.counter {
            Some(Counter { base, scale }) => {
                let ticks = ticks().wrapping_sub(base);
                ((u128::from(ticks) * u128::from(scale)) >> 32) as u64
            }
            None => self.start.elapsed().as_nanos() as u64,
        }
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// Reads both clocks at one time: the closest of some pairs of readings.
fn both() -> (Instant, u64) {
    let mut best = (u64::MAX, Instant::now(), 0);
    for _ in 0..16 {
        let before = ticks();
        let instant = Instant::now();
        let took = ticks().wrapping_sub(before);
        if took < best.0 {
            best = (took, instant, before.wrapping_add(took / 2));
        }
    }
    (best.1, best.2)
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has this instruction; where the kernel forbids it, the clock
    // source is not the counter, and `is_invariant` is false.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn ticks() -> u64 {
    0
}

/// Returns whether the counter runs at a constant rate, on all processors alike, in the kernel's
/// opinion.
fn is_invariant() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(source).unwrap_or_default();
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags"));
    let constant = flags.is_some_and(|flags| {
        let has = |flag| flags.split_whitespace().any(|word| word == flag);
        has("constant_tsc") && has("nonstop_tsc")
    });
    constant && ["tsc", "kvm-clock"].contains(&source.trim())
}

/// Finds times in which this thread did not run although it wanted to.
#[derive(Clone, Debug)]
pub struct Watch {
    /// The clock, and the thread's processor time, when both were read last.
    seen: (u64, u64),
    /// The clock at the last turn.
    turn: u64,
    /// Time in which the thread did not run, nanoseconds.
    pub stalled: u64,
    /// How many times that was so.
    pub stalls: u64,
    /// The longest of them, nanoseconds.
    pub longest: u64,
    /// When the last of them ended; at first, when watching began.
    pub until: u64,
}

/// A turn that takes longer than this, in nanoseconds, may have been interrupted.
const SUSPICIOUS: u64 = 20_000;
/// A turn that takes longer than this was, even if the kernel takes it for the thread's own time:
/// it does so where a hypervisor had the processor.
const CERTAIN: u64 = 1_000_000;

impl Watch {
    /// Begins at this time.
    pub fn new(now: u64) -> Watch {
        Watch {
            seen: (now, processor_time()),
            turn: now,
            stalled: 0,
            stalls: 0,
            longest: 0,
            until: now,
        }
    }

    /// Notes that a turn begins; returns how long the thread did not run since the last one, in
    /// nanoseconds, as far as the kernel knows. Gaps of less than 20 us are no stalls, and those of
    /// a millisecond are stalls in any case.
    #[inline(always)]
    pub fn turn(&mut self, now: u64) -> u64 {
        let took = now.saturating_sub(self.turn);
        self.turn = now;
        if took < SUSPICIOUS {
            return 0;
        }
        self.long_turn(now, took)
    }

    #[cold]
    fn long_turn(&mut self, now: u64, took: u64) -> u64 {
        let used = processor_time();
        let (then, before) = self.seen;
        self.seen = (now, used);
        // The thread never waits: what it did not use of the time it was not given. Small
        // differences add up between two readings and are no stall.
        let missed = now
            .saturating_sub(then)
            .saturating_sub(used - before)
            .min(took);
        let missed = if took >= CERTAIN { took } else { missed };
        if missed < SUSPICIOUS / 2 {
            return 0;
        }
        self.until = now;
        self.note(missed);
        missed
    }

    /// Counts a stall of so many nanoseconds; 0 is none.
    pub fn note(&mut self, missed: u64) {
        self.stalled += missed;
        self.stalls += u64::from(missed > 0);
        self.longest = self.longest.max(missed);
    }
}

/// Returns the processor time that this thread has used, nanoseconds.
fn processor_time() -> u64 {
    // SAFETY: `time` is valid memory for the call; a thread's own clock always exists.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }
}

/// Pins the calling thread to a processor.
pub fn pin(core: usize) -> std::io::Result<()> {
    // SAFETY: the set is plain memory of the size given; the index is checked.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if core >= libc::CPU_SETSIZE as usize {
            return Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        }
        libc::CPU_SET(core, &mut set);
        match libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_agrees_with_the_kernels() {
        let clock = Clock::new();
        let (begin, start) = (clock.now(), Instant::now());
        std::thread::sleep(Duration::from_millis(200));
        let (end, elapsed) = (clock.now(), start.elapsed());
        let ns = (end - begin) as f64;
        let kernel = elapsed.as_nanos() as f64;
        // The two readings at each end are apart if the thread is interrupted between them.
        assert!((ns / kernel - 1.0).abs() < 0.05, "{ns} {kernel}");
    }

    #[test]
    fn sleeping_is_found_and_working_is_not() {
        let clock = Clock::new();
        let mut watch = Watch::new(clock.now());
        std::thread::sleep(Duration::from_millis(30));
        let missed = watch.turn(clock.now());
        assert!(missed > 25_000_000, "{missed}");
        assert_eq!((watch.stalls, watch.longest), (1, missed));
        assert_eq!(watch.until, watch.turn);
        // What a hypervisor takes is the thread's own time for the kernel.
        let after = watch.turn + 5 * CERTAIN;
        assert_eq!(watch.turn(after), 5 * CERTAIN);
        let mut watch = Watch::new(clock.now());
        assert_eq!(watch.turn(watch.turn + SUSPICIOUS - 1), 0);
        assert_eq!((watch.stalled, watch.stalls), (0, 0));
    }
}
