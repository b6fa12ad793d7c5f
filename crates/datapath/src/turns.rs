//! The longest turns of workers, and what they were doing.
//!
//! While a worker is in a turn it does nothing for its other queues, answers no barrier and lets
//! nothing be freed, so its longest turn is what a packet may have to wait for others. A worker
//! compares each turn's cycles with those of the longest one since control last looked, and each
//! part of it with the longest before it; only a turn that is longer, or takes a millisecond, costs
//! more. What it did not have a processor for is told apart by the time that the kernel charged its
//! thread with: another process had the processor, or the worker waited for something in the
//! kernel.

use crate::clock::{cycles, cycles_per_second};
use crate::counters::Count;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Turns of this length and more are counted and told of.
pub const LONG: Duration = Duration::from_millis(10);
/// Turns that are shorter are not asked whether they had a processor: asking is a system call.
const WORTH_ASKING: Duration = Duration::from_millis(1);

/// What a worker was doing for the longest part of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Doing {
    /// Looking at queues that had nothing, and whatever is not among the others.
    #[default]
    Looking,
    /// What control asked for: taking and giving back queues.
    Commands,
    /// Packets that control or a controller sent.
    PacketOuts,
    /// Packets that had waited for rules.
    Held,
    /// A burst that came in by the port, from its receipt until it was sent.
    Frames,
    /// Frames that had waited in shaped ports.
    Shaped,
    /// Paying counters.
    Counters,
}

impl Doing {
    const ALL: [Doing; 7] = [
        Doing::Looking,
        Doing::Commands,
        Doing::PacketOuts,
        Doing::Held,
        Doing::Frames,
        Doing::Shaped,
        Doing::Counters,
    ];

    /// In words, without the port.
    pub fn name(self) -> &'static str {
        match self {
            Doing::Looking => "looking at queues",
            Doing::Commands => "a command of control",
            Doing::PacketOuts => "packet-outs",
            Doing::Held => "packets that waited for rules",
            Doing::Frames => "frames",
            Doing::Shaped => "frames of shaped ports",
            Doing::Counters => "counting",
        }
    }
}

/// Bits of a packed note below the cycles: what was done, and a port's slot (below
/// [`crate::MAX_PORTS`]).
const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 16;
const CYCLE_SHIFT: u32 = KIND_BITS + SLOT_BITS;
const MOST_CYCLES: u64 = u64::MAX >> CYCLE_SHIFT;

/// How long something took, and what it was; ordered by the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
struct Note(u64);

impl Note {
    fn new(cycles: u64, doing: Doing, slot: u32) -> Note {
        let slot = u64::from(slot) & ((1 << SLOT_BITS) - 1);
        Note((cycles.min(MOST_CYCLES) << CYCLE_SHIFT) | (slot << KIND_BITS) | doing as u64)
    }

    fn cycles(self) -> u64 {
        self.0 >> CYCLE_SHIFT
    }

    fn doing(self) -> Doing {
        let kind = self.0 as usize & ((1 << KIND_BITS) - 1);
        Doing::ALL.get(kind).copied().unwrap_or_default()
    }

    fn slot(self) -> u32 {
        (self.0 >> KIND_BITS) as u32 & ((1 << SLOT_BITS) - 1)
    }
}

/// What a worker tells control of its turns. Control takes it; the worker begins anew.
#[derive(Default)]
pub(crate) struct Told {
    /// The longest turn.
    longest: AtomicU64,
    /// For how many cycles of it the worker had no processor.
    away: AtomicU64,
    /// The turn with the most work in it.
    most_work: AtomicU64,
    /// Turns of [`LONG`] and more.
    long: Count,
    /// How many of them had so much work in them.
    long_work: Count,
}

/// How a worker's turns have been since somebody last looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    longest: Note,
    away: u64,
    most_work: Note,
}

impl Seen {
    pub fn merge(&mut self, other: &Seen) {
        if other.longest > self.longest {
            (self.longest, self.away) = (other.longest, other.away);
        }
        self.most_work = self.most_work.max(other.most_work);
    }
}

impl Told {
    /// Takes what has been told since the last call. Where the worker tells of another turn
    /// meanwhile, `away` may be that one's.
    pub fn take(&self) -> Seen {
        let longest = Note(self.longest.swap(0, Ordering::Acquire));
        let most_work = Note(self.most_work.swap(0, Ordering::Relaxed));
        let away = self.away.load(Ordering::Relaxed).min(longest.cycles());
        Seen {
            longest,
            away,
            most_work,
        }
    }

    /// Long turns so far, and those with so much work in them.
    pub fn long(&self) -> (u64, u64) {
        (self.long.get(), self.long_work.get())
    }
}

/// How a worker's turns have been.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TurnStats {
    /// The longest turn.
    pub longest: Duration,
    /// For how much of it the worker had no processor: others had it, or it waited in the kernel.
    pub away: Duration,
    /// What it was doing for the longest part of it.
    pub doing: String,
    /// The most that a worker has worked in one turn, by the processor's time.
    pub most_work: Duration,
    /// What it was doing then.
    pub most_work_doing: String,
    /// Turns of [`LONG`] and more.
    pub long: u64,
    /// Turns with that much work in them.
    pub long_work: u64,
}

impl TurnStats {
    /// `name` says which port a slot is.
    pub(crate) fn new(
        seen: &Seen,
        (long, long_work): (u64, u64),
        name: impl Fn(u32) -> String,
    ) -> TurnStats {
        let doing = |note: Note| match note.doing() {
            Doing::Frames => format!("frames from {}", name(note.slot())),
            other => other.name().to_owned(),
        };
        TurnStats {
            longest: to_time(seen.longest.cycles()),
            away: to_time(seen.away),
            doing: doing(seen.longest),
            most_work: to_time(seen.most_work.cycles()),
            most_work_doing: doing(seen.most_work),
            long,
            long_work,
        }
    }
}

fn to_time(cycles: u64) -> Duration {
    let ns = u128::from(cycles) * 1_000_000_000 / u128::from(cycles_per_second());
    Duration::from_nanos(ns.try_into().unwrap_or(u64::MAX))
}

fn to_cycles(time: Duration) -> u64 {
    (time.as_nanos() * u128::from(cycles_per_second()) / 1_000_000_000) as u64
}

/// The processor time that the kernel has charged the calling thread with.
fn worked() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live variable. On failure, which the manual does not know for
    // this clock, the time stays 0.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The parts of the turn that a worker is in.
pub(crate) struct Parts {
    since: u64,
    longest: u64,
    doing: Doing,
    slot: u32,
}

impl Parts {
    #[inline(always)]
    pub fn begin(now: u64) -> Parts {
        Parts {
            since: now,
            longest: 0,
            doing: Doing::Looking,
            slot: 0,
        }
    }

    /// A part has ended at `now`, which was `doing`, with the port in `slot`.
    #[inline(always)]
    pub fn end(&mut self, now: u64, doing: Doing, slot: u32) {
        let took = now.wrapping_sub(self.since);
        self.since = now;
        if took > self.longest {
            (self.longest, self.doing, self.slot) = (took, doing, slot);
        }
    }
}

/// A worker's eye on its turns.
pub(crate) struct Eye {
    worth_asking: u64,
    long: u64,
    /// When the thread's time was read last, in cycles; what it was; how much the worker had
    /// rested by then, in cycles.
    mark: (u64, Duration, u64),
}

impl Eye {
    pub fn new(now: u64) -> Eye {
        Eye {
            worth_asking: to_cycles(WORTH_ASKING),
            long: to_cycles(LONG),
            mark: (now, worked(), 0),
        }
    }

    /// Reads the thread's time: now and then, so that what is missing of a long turn can be told
    /// from what was missing before. `rested`: for how many cycles the worker has rested since
    /// it began.
    #[cold]
    pub fn mark(&mut self, rested: u64) {
        self.mark = (cycles(), worked(), rested);
    }

    /// A turn has ended that took `whole` cycles. `rested`: as for [`Eye::mark`].
    #[inline(always)]
    pub fn ended(&mut self, told: &Told, whole: u64, parts: &Parts, rested: u64) {
        let longest = told.longest.load(Ordering::Relaxed) >> CYCLE_SHIFT;
        if whole > longest.min(self.worth_asking) {
            self.look(told, whole, parts, rested);
        }
    }

    #[cold]
    fn look(&mut self, told: &Told, whole: u64, parts: &Parts, rested: u64) {
        let mut away = 0;
        if whole > self.worth_asking {
            let (then, had, rested_then) = self.mark;
            self.mark(rested);
            let passed = self.mark.0.wrapping_sub(then);
            let worked = to_cycles(self.mark.1.saturating_sub(had));
            let rested = rested.wrapping_sub(rested_then);
            away = passed.saturating_sub(worked + rested).min(whole);
        }
        let (doing, slot) = (parts.doing, parts.slot);
        let note = Note::new(whole, doing, slot);
        if note > Note(told.longest.load(Ordering::Relaxed)) {
            told.away.store(away, Ordering::Relaxed);
            told.longest.store(note.0, Ordering::Release);
        }
        let work = Note::new(whole - away, doing, slot);
        if work > Note(told.most_work.load(Ordering::Relaxed)) {
            told.most_work.store(work.0, Ordering::Relaxed);
        }
        if whole >= self.long {
            told.long.add(1);
            told.long_work.add(u64::from(whole - away >= self.long));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_what_they_are_given() {
        for doing in Doing::ALL {
            let note = Note::new(123_456_789, doing, 65_535);
            assert_eq!(
                (note.cycles(), note.doing(), note.slot()),
                (123_456_789, doing, 65_535)
            );
        }
        assert_eq!(Note::new(u64::MAX, Doing::Shaped, 0).cycles(), MOST_CYCLES);
        assert!(Note::new(2, Doing::Looking, 0) > Note::new(1, Doing::Counters, 9));
    }

    /// The longest part gives a turn its name, and control takes each longest turn once.
    #[test]
    fn the_longest_turn_is_told_with_its_longest_part() {
        let told = Told::default();
        let mut eye = Eye::new(cycles());
        let name = |slot| format!("p{slot}");
        let mut turn = |parts: &[(u64, Doing, u32)]| {
            let mut turn = Parts::begin(0);
            let mut now = 0;
            for (took, doing, slot) in parts {
                now += took;
                turn.end(now, *doing, *slot);
            }
            eye.ended(&told, now, &turn, 0);
        };
        turn(&[
            (10, Doing::Commands, 0),
            (30, Doing::Frames, 7),
            (20, Doing::Frames, 8),
        ]);
        turn(&[(40, Doing::PacketOuts, 0)]);
        turn(&[(59, Doing::Shaped, 0)]);
        let seen = told.take();
        let stats = TurnStats::new(&seen, told.long(), name);
        assert_eq!((seen.longest.cycles(), seen.away), (60, 0));
        assert_eq!(stats.doing, "frames from p7");
        assert_eq!((stats.long, stats.long_work), (0, 0));
        assert_eq!(told.take(), Seen::default());
        turn(&[(5, Doing::Held, 0)]);
        let mut all = told.take();
        assert_eq!(all.longest.doing(), Doing::Held);
        all.merge(&seen);
        assert_eq!(all, seen);
    }

    /// What a thread did not work is not called work: this one sleeps through its turn, and works
    /// through the next.
    #[test]
    fn sleep_in_a_turn_is_no_work() {
        let told = Told::default();
        let begin = cycles();
        let mut eye = Eye::new(begin);
        std::thread::sleep(2 * LONG);
        let end = cycles();
        eye.ended(&told, end - begin, &Parts::begin(begin), 0);
        assert_eq!(told.long(), (1, 0));
        let seen = told.take();
        assert!(seen.away > seen.longest.cycles() / 2, "{seen:?}");
        assert!(seen.most_work.cycles() < eye.long, "{seen:?}");
        let (begin, had) = (cycles(), worked());
        while worked() - had < 2 * LONG {}
        let end = cycles();
        eye.ended(&told, end - begin, &Parts::begin(begin), 0);
        assert_eq!(told.long(), (2, 1));
    }
}
