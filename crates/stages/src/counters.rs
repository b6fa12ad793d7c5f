//! What workers have counted, for others to read, and the switch by which others put it on.

use crate::Stage;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What a stage has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Cycles of the time stamp counter, without those of stages inside it.
    pub cycles: u64,
    /// How often it began.
    pub calls: u64,
    /// Packets with which it began.
    pub packets: u64,
}

impl Tally {
    /// Nothing.
    pub const ZERO: Tally = Tally {
        cycles: 0,
        calls: 0,
        packets: 0,
    };

    fn plus(self, other: Tally) -> Tally {
        Tally {
            cycles: self.cycles.saturating_add(other.cycles),
            calls: self.calls.saturating_add(other.calls),
            packets: self.packets.saturating_add(other.packets),
        }
    }
}

/// What a thread, or several, have counted since the account was put on or cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// By stage, in the order of [`Stage::ALL`].
    pub tallies: [Tally; Stage::COUNT],
    /// Changes from a stage to another; each costs what [`crate::cost`] says.
    pub changes: u64,
    /// Cycles between the first and the last reading of the time stamp counter.
    pub elapsed: u64,
}

impl Report {
    /// Returns what a stage has taken.
    pub fn of(&self, stage: Stage) -> Tally {
        self.tallies[stage as usize]
    }

    /// Returns the cycles of all stages.
    pub fn sum(&self) -> u64 {
        let cycles = self.tallies.iter().map(|tally| tally.cycles);
        cycles.fold(0, u64::saturating_add)
    }

    /// Returns both together; elapsed cycles are those of two threads.
    pub fn plus(&self, other: &Report) -> Report {
        let mut both = *self;
        for (one, other) in both.tallies.iter_mut().zip(other.tallies) {
            *one = one.plus(other);
        }
        both.changes = both.changes.saturating_add(other.changes);
        both.elapsed = both.elapsed.saturating_add(other.elapsed);
        both
    }
}

/// Whether workers are to account their stages, and how often that has begun anew.
#[derive(Default, Debug)]
pub struct Switch(AtomicU64);

impl Switch {
    /// Puts the account on, which begins at zero, or off, which leaves what has been counted.
    /// Nothing happens where it is that way already.
    pub fn set(&self, on: bool) {
        let word = self.word();
        match (on, Switch::is_on_in(word)) {
            (true, false) => self.0.store(word + 3, Ordering::Relaxed),
            (false, true) => self.0.store(word - 1, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Begins at zero.
    pub fn clear(&self) {
        self.0.fetch_add(2, Ordering::Relaxed);
    }

    /// Returns whether the account is to be on.
    pub fn is_on(&self) -> bool {
        Switch::is_on_in(self.word())
    }

    #[inline(always)]
    pub(crate) fn word(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn is_on_in(word: u64) -> bool {
        word & 1 == 1
    }

    /// Returns how often it has begun anew.
    pub(crate) fn count_of(word: u64) -> u64 {
        word >> 1
    }
}

/// The counts of one thread, which alone writes them.
#[derive(Default, Debug)]
pub struct Counters {
    /// Odd while the counts are being written.
    version: AtomicU64,
    /// Of [`Switch`], when these counts began.
    count: AtomicU64,
    began: AtomicU64,
    ended: AtomicU64,
    changes: AtomicU64,
    tallies: [[AtomicU64; 3]; Stage::COUNT],
}

fn add(to: &AtomicU64, n: u64) {
    let sum = to.load(Ordering::Relaxed).saturating_add(n);
    to.store(sum, Ordering::Relaxed);
}

impl Counters {
    fn write(&self, write: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        write();
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    pub(crate) fn begin(&self, count: u64, now: u64) {
        self.write(|| {
            self.count.store(count, Ordering::Relaxed);
            self.began.store(now, Ordering::Relaxed);
            self.ended.store(now, Ordering::Relaxed);
            self.changes.store(0, Ordering::Relaxed);
            let counts = self.tallies.iter().flatten();
            counts.for_each(|count| count.store(0, Ordering::Relaxed));
        });
    }

    pub(crate) fn add(&self, tallies: &[Cell<Tally>; Stage::COUNT], changes: u64, now: u64) {
        self.write(|| {
            for ([cycles, calls, packets], tally) in self.tallies.iter().zip(tallies) {
                let tally = tally.get();
                if tally != Tally::ZERO {
                    add(cycles, tally.cycles);
                    add(calls, tally.calls);
                    add(packets, tally.packets);
                }
            }
            add(&self.changes, changes);
            self.ended.store(now, Ordering::Relaxed);
        });
    }

    /// Returns what has been counted; None where nothing has been since the account was last put on
    /// or cleared, and where the writer has been interrupted in the middle.
    pub fn read(&self, switch: &Switch) -> Option<Report> {
        // A writer takes less than a microsecond, once a turn.
        const TRIES: u32 = 1000;
        for _ in 0..TRIES {
            let before = self.version.load(Ordering::Acquire);
            let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
            if get(&self.count) != Switch::count_of(switch.word()) || before == 0 {
                return None;
            }
            let report = Report {
                tallies: std::array::from_fn(|stage| {
                    let [cycles, calls, packets] = &self.tallies[stage];
                    Tally {
                        cycles: get(cycles),
                        calls: get(calls),
                        packets: get(packets),
                    }
                }),
                changes: get(&self.changes),
                elapsed: get(&self.ended).wrapping_sub(get(&self.began)),
            };
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before {
                return Some(report);
            }
            std::hint::spin_loop();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{begin_turn, end_turn, enter};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn names_differ_and_are_in_order() {
        for (index, stage) in Stage::ALL.iter().enumerate() {
            assert_eq!(*stage as usize, index);
            let word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            assert!(stage.name().bytes().all(word));
            let others = &Stage::ALL[index + 1..];
            assert!(others.iter().all(|other| other.name() != stage.name()));
        }
    }

    /// A reader never sees half of a turn.
    #[test]
    fn readers_see_whole_turns() {
        let (switch, counters) = (Switch::default(), Counters::default());
        let done = AtomicBool::new(false);
        switch.set(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..20_000_usize {
                    begin_turn(&switch, &counters);
                    {
                        let _stage = enter(Stage::ALL[turn % Stage::COUNT], 3);
                    }
                    end_turn(&counters, turn % 3 == 0);
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                let Some(report) = counters.read(&switch) else {
                    continue;
                };
                assert_eq!(report.sum(), report.elapsed);
                let packets: u64 = report.tallies.iter().map(|tally| tally.packets).sum();
                assert_eq!(packets % 3, 0);
            }
        });
    }

    #[test]
    fn reports_add_up() {
        let mut one = Report {
            changes: 3,
            elapsed: u64::MAX - 1,
            ..Report::default()
        };
        one.tallies[2] = Tally {
            cycles: u64::MAX - 1,
            calls: 1,
            packets: 4,
        };
        let both = one.plus(&one);
        assert_eq!(both.of(Stage::Parse).cycles, u64::MAX);
        assert_eq!(both.of(Stage::Parse).packets, 8);
        assert_eq!((both.changes, both.elapsed), (6, u64::MAX));
        assert_eq!(both.sum(), u64::MAX);
    }
}
