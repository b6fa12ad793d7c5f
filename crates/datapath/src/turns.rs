//! Records workers' longest turns, and what they were doing.
//!
//! During a turn a worker does nothing for its other queues, answers no barrier and lets nothing be
//! freed, so its longest turn is what a packet may have to wait for others. A worker compares each
//! turn's cycles with those of the longest one since control last looked, and each part of it with
//! the longest part before it; only a turn that is longer, or takes a millisecond, costs more. Time
//! without a processor is told apart by the processor time that the kernel charged to its thread:
//! another process had the processor, or the worker waited in the kernel.

use crate::clock::{cycles, cycles_per_second};
use crate::counters::Count;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Turns at least this long are counted and reported.
pub const LONG: Duration = Duration::from_millis(10);
/// Shorter turns are not checked for time without a processor, which costs a system call.
const WORTH_ASKING: Duration = Duration::from_millis(1);

/// What a worker was doing in the longest part of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Doing {
    /// Looking at empty queues, and anything not listed below.
    #[default]
    Looking,
    /// Commands from control: taking and giving back queues.
    Commands,
    /// Packets that control or a controller sent.
    PacketOuts,
    /// Packets that had waited for rules.
    Held,
    /// A burst that came in by the port, from its receipt until it was sent.
    Frames,
    /// Frames that had waited in shaped ports.
    Shaped,
    /// Flushing deferred counters.
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

    /// Returns a description, without the port.
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

/// Bits of a packed note below the cycles: the kind of work, and a port's slot (below
/// [`crate::MAX_PORTS`]).
const KIND_BITS: u32 = 4;
const SLOT_BITS: u32 = 16;
const CYCLE_SHIFT: u32 = KIND_BITS + SLOT_BITS;
const MOST_CYCLES: u64 = u64::MAX >> CYCLE_SHIFT;

/// How long something took, and what it was; ordered by time.
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

/// A worker's record of its turns for control. When control takes it, a new record begins.
#[derive(Default)]
pub(crate) struct Told {
    /// The longest turn.
    longest: AtomicU64,
    /// Cycles of it without a processor.
    away: AtomicU64,
    /// The turn with the most work in it.
    most_work: AtomicU64,
    /// Number of turns of [`LONG`] or more.
    long: Count,
    /// Number of turns with at least that much work in them.
    long_work: Count,
}

/// A worker's turns since control last looked.
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
    /// Returns the record since the last call. If the worker records another turn meanwhile, `away`
    /// may be that turn's.
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

    /// Returns the number of long turns so far, and of those with that much work in them.
    pub fn long(&self) -> (u64, u64) {
        (self.long.get(), self.long_work.get())
    }
}

/// A worker's turns.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TurnStats {
    /// The longest turn.
    pub longest: Duration,
    /// Time of it without a processor: others had it, or the worker waited in the kernel.
    pub away: Duration,
    /// What it was doing in the longest part of it.
    pub doing: String,
    /// The most work in one turn, by processor time.
    pub most_work: Duration,
    /// What it was doing then.
    pub most_work_doing: String,
    /// Number of turns of [`LONG`] or more.
    pub long: u64,
    /// Number of turns with that much work in them.
    pub long_work: u64,
}

impl TurnStats {
    /// Converts a record; `name` returns the name of the port in a slot.
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

/// Returns the processor time that the kernel has charged to the calling thread.
fn worked() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The parts of a worker's current turn.
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

    /// Ends a part at `now`, which was `doing`, with the port in `slot`.
    #[inline(always)]
    pub fn end(&mut self, now: u64, doing: Doing, slot: u32) {
        let took = now.wrapping_sub(self.since);
        self.since = now;
        if took > self.longest {
            (self.longest, self.doing, self.slot) = (took, doing, slot);
        }
    }
}

/// Observes a worker's turns.
pub(crate) struct Eye {
    worth_asking: u64,
    long: u64,
    /// When the thread's time was last read, in cycles; that time; and the worker's total rest by
    /// then, in cycles.
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

    /// Reads the thread's time. Called now and then, so that time missing from a long turn can be
    /// told from time missing before it. `rested`: cycles that the worker has rested since it
    /// began.
    #[cold]
    pub fn mark(&mut self, rested: u64) {
        self.mark = (cycles(), worked(), rested);
    }

    /// Ends a turn that took `whole` cycles. `rested`: as for [`Eye::mark`].
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

    /// A turn is described by its longest part, and control takes each longest turn once.
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

    /// Time in which a thread does not run is not work: this one sleeps through its turn, and works
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
