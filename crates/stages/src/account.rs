//! The calling thread's account of the turn that it is in.

use crate::{Counters, Stage, Switch, Tally, cycles};
use std::cell::Cell;

thread_local! {
    /// Whether the thread's stages are being accounted. Apart from the account, so that a thread
    /// whose account is off touches nothing else.
    static ON: Cell<bool> = const { Cell::new(false) };
    /// What [`Switch`] said when the thread last looked.
    static SEEN: Cell<u64> = const { Cell::new(0) };
    static ACCOUNT: Account = const { Account::new() };
}

/// What this turn has spent so far, and what spends it now.
struct Account {
    stage: Cell<Stage>,
    /// Up to when cycles have been charged.
    since: Cell<u64>,
    /// Number of changes from a stage to another.
    changes: Cell<u64>,
    tallies: [Cell<Tally>; Stage::COUNT],
}

impl Account {
    const fn new() -> Account {
        Account {
            stage: Cell::new(Stage::Control),
            since: Cell::new(0),
            changes: Cell::new(0),
            tallies: [const { Cell::new(Tally::ZERO) }; Stage::COUNT],
        }
    }

    fn tally(&self, stage: Stage, change: impl FnOnce(&mut Tally)) {
        let cell = &self.tallies[stage as usize];
        let mut tally = cell.get();
        change(&mut tally);
        cell.set(tally);
    }

    /// Charges the present stage up to `now`, and goes over to `next`; returns which was present.
    fn change(&self, next: Stage, now: u64) -> Stage {
        let stage = self.stage.replace(next);
        let spent = now.wrapping_sub(self.since.replace(now));
        // Counters of different processors may differ by a few cycles when the thread moves; that
        // must not add up to centuries.
        if spent as i64 > 0 {
            self.tally(stage, |tally| {
                tally.cycles = tally.cycles.saturating_add(spent);
            });
        } else {
            self.since.set(now.wrapping_sub(spent));
        }
        self.changes.set(self.changes.get() + 1);
        stage
    }

    fn begin(&self, now: u64) {
        self.tallies.iter().for_each(|tally| tally.set(Tally::ZERO));
        self.changes.set(0);
        self.stage.set(Stage::Control);
        self.since.set(now);
    }

    /// Ends the turn at `now` in `counters`.
    fn end(&self, counters: &Counters, now: u64) {
        self.change(Stage::Control, now);
        counters.add(&self.tallies, self.changes.replace(0), self.since.get());
        self.tallies.iter().for_each(|tally| tally.set(Tally::ZERO));
    }
}

/// Returns whether the calling thread's stages are being accounted.
#[inline(always)]
pub fn is_on() -> bool {
    ON.get()
}

/// Begins a stage, with this many packets. It lasts until another begins; where [`enter`] began the
/// present one, at the latest until that one ends.
#[inline(always)]
pub fn go(stage: Stage, packets: usize) {
    if ON.get() {
        begin(stage, packets);
    }
}

/// Begins a stage, with this many packets, that lasts until the value is dropped; then the present
/// one continues.
#[inline(always)]
#[must_use]
pub fn enter(stage: Stage, packets: usize) -> Entered {
    Entered(match ON.get() {
        true => Some(begin(stage, packets)),
        false => None,
    })
}

/// A stage that [`enter`] has begun.
pub struct Entered(Option<Stage>);

impl Drop for Entered {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(stage) = self.0 {
            resume(stage);
        }
    }
}

#[cold]
#[inline(never)]
fn begin(stage: Stage, packets: usize) -> Stage {
    ACCOUNT.with(|account| {
        account.tally(stage, |tally| {
            tally.calls += 1;
            tally.packets += packets as u64;
        });
        account.change(stage, cycles())
    })
}

#[cold]
#[inline(never)]
fn resume(stage: Stage) {
    ACCOUNT.with(|account| account.change(stage, cycles()));
}

/// Adds packets to a stage whose number was not known when it began.
#[inline(always)]
pub fn add_packets(stage: Stage, packets: usize) {
    if ON.get() {
        ACCOUNT.with(|account| account.tally(stage, |tally| tally.packets += packets as u64));
    }
}

/// Says that the present stage, since it began, has been another one.
#[inline(always)]
pub fn relabel(stage: Stage) {
    if ON.get() {
        relabel_now(stage);
    }
}

#[cold]
#[inline(never)]
fn relabel_now(stage: Stage) {
    ACCOUNT.with(|account| {
        let was = account.stage.replace(stage);
        account.tally(was, |tally| tally.calls -= tally.calls.min(1));
        account.tally(stage, |tally| tally.calls += 1);
    });
}

/// Begins a worker's turn: looks whether the account is to be on, and charges the time since the
/// last turn to what was present.
#[inline(always)]
pub fn begin_turn(switch: &Switch, counters: &Counters) {
    let word = switch.word();
    if word != SEEN.get() {
        turn(word, counters);
    } else if ON.get() {
        resume(Stage::Control);
    }
}

/// Puts the account on, off, or back to zero.
#[cold]
#[inline(never)]
fn turn(word: u64, counters: &Counters) {
    let now = cycles();
    ACCOUNT.with(|account| {
        if ON.get() {
            account.end(counters, now);
        }
        if Switch::count_of(word) != Switch::count_of(SEEN.get()) {
            counters.begin(Switch::count_of(word), now);
        }
        account.begin(now);
    });
    SEEN.set(word);
    ON.set(Switch::is_on_in(word));
}

/// Ends a worker's turn; `idle` if it found nothing to do.
#[inline(always)]
pub fn end_turn(counters: &Counters, idle: bool) {
    if ON.get() {
        end(counters, idle);
    }
}

#[cold]
#[inline(never)]
fn end(counters: &Counters, idle: bool) {
    ACCOUNT.with(|account| {
        account.change(Stage::Control, cycles());
        if idle {
            let control = account.tallies[Stage::Control as usize].replace(Tally::ZERO);
            account.tally(Stage::EmptyPolls, |tally| {
                tally.cycles = tally.cycles.saturating_add(control.cycles);
            });
        }
        account.end(counters, account.since.get());
    });
}

/// Returns the cycles that a change from a stage to another takes on this machine: the least of
/// many, measured on the calling thread, whose account must be off.
pub fn cost() -> f64 {
    const CHANGES: u32 = 256;
    const ROUNDS: u32 = 32;
    if ON.get() {
        return 0.0;
    }
    ON.set(true);
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let from = cycles();
        for _ in 0..CHANGES / 2 {
            let _entered = enter(std::hint::black_box(Stage::Lookup), 1);
        }
        least = least.min(cycles().wrapping_sub(from));
    }
    ON.set(false);
    ACCOUNT.with(|account| account.begin(0));
    least as f64 / f64::from(CHANGES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Report;
    use proptest::prelude::*;

    /// Runs on a thread of its own, whose account nobody else uses.
    fn alone(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(test);
        });
    }

    fn spin(least: u64) {
        let from = cycles();
        while cycles().wrapping_sub(from) < least {}
    }

    fn sum(report: &Report) -> u64 {
        report.tallies.iter().map(|tally| tally.cycles).sum()
    }

    fn of(report: &Report, stage: Stage) -> Tally {
        report.tallies[stage as usize]
    }

    #[test]
    fn nothing_is_counted_while_accounting_is_off() {
        alone(|| {
            let (switch, counters) = (Switch::default(), Counters::default());
            let turn = || {
                begin_turn(&switch, &counters);
                {
                    let _parse = enter(Stage::Parse, 5);
                    go(Stage::Lookup, 5);
                }
                end_turn(&counters, false);
            };
            turn();
            assert!(!is_on());
            assert!(counters.read(&switch).is_none());
            switch.set(true);
            turn();
            let first = counters.read(&switch).expect("it is on");
            assert_eq!(of(&first, Stage::Parse).packets, 5);
            switch.set(false);
            turn();
            let last = counters.read(&switch).expect("what was counted stays");
            turn();
            assert!(!is_on());
            assert_eq!(counters.read(&switch).expect("stays"), last);
            assert_eq!(of(&last, Stage::Parse), of(&first, Stage::Parse));
        });
    }

    #[test]
    fn a_nested_stages_cycles_are_its_own() {
        alone(|| {
            let (switch, counters) = (Switch::default(), Counters::default());
            switch.set(true);
            begin_turn(&switch, &counters);
            {
                let _outer = enter(Stage::Actions, 32);
                {
                    let _inner = enter(Stage::Send, 8);
                    spin(1_000_000);
                }
                let _other = enter(Stage::Tunnel, 1);
            }
            end_turn(&counters, false);
            let report = counters.read(&switch).expect("it is on");
            assert!(of(&report, Stage::Send).cycles >= 1_000_000);
            assert_eq!(sum(&report), report.elapsed);
            let tally = |stage| {
                let tally = of(&report, stage);
                (tally.calls, tally.packets)
            };
            assert_eq!(tally(Stage::Actions), (1, 32));
            assert_eq!(tally(Stage::Send), (1, 8));
            assert_eq!(tally(Stage::Tunnel), (1, 1));
            // Into each of three and out again, and the turn's end.
            assert!(report.changes >= 7);
        });
    }

    #[test]
    fn a_turn_that_found_nothing_is_an_empty_poll_and_rest_is_not() {
        alone(|| {
            let (switch, counters) = (Switch::default(), Counters::default());
            switch.set(true);
            for _ in 0..2 {
                begin_turn(&switch, &counters);
                spin(10_000);
                go(Stage::Receive, 0);
                relabel(Stage::EmptyPolls);
                spin(10_000);
                end_turn(&counters, true);
                go(Stage::Rest, 0);
                spin(10_000);
            }
            begin_turn(&switch, &counters);
            end_turn(&counters, true);
            let report = counters.read(&switch).expect("it is on");
            assert_eq!(of(&report, Stage::Receive), Tally::ZERO);
            assert_eq!(of(&report, Stage::Control), Tally::ZERO);
            assert_eq!(of(&report, Stage::EmptyPolls).calls, 2);
            assert!(of(&report, Stage::EmptyPolls).cycles >= 40_000);
            assert!(of(&report, Stage::Rest).cycles >= 20_000);
            assert_eq!(sum(&report), report.elapsed);
        });
    }

    #[test]
    fn cleared_counters_begin_at_zero() {
        alone(|| {
            let (switch, counters) = (Switch::default(), Counters::default());
            let turn = || {
                begin_turn(&switch, &counters);
                go(Stage::Parse, 7);
                end_turn(&counters, false);
            };
            switch.set(true);
            (0..9).for_each(|_| turn());
            switch.clear();
            assert!(
                counters.read(&switch).is_none(),
                "the worker has not heard of it"
            );
            turn();
            let report = counters.read(&switch).expect("it has now");
            assert_eq!(of(&report, Stage::Parse).packets, 7);
            assert_eq!(sum(&report), report.elapsed);
            // On again begins anew, too; on twice does not.
            switch.set(true);
            turn();
            let report = counters.read(&switch).expect("it is on");
            assert_eq!(of(&report, Stage::Parse).packets, 14);
            switch.set(false);
            turn();
            switch.set(true);
            turn();
            let report = counters.read(&switch).expect("it is on");
            assert_eq!(of(&report, Stage::Parse).packets, 7);
        });
    }

    #[test]
    fn a_panic_ends_the_stages_it_leaves() {
        alone(|| {
            let (switch, counters) = (Switch::default(), Counters::default());
            switch.set(true);
            begin_turn(&switch, &counters);
            let failed = std::panic::catch_unwind(|| {
                let _outer = enter(Stage::Actions, 1);
                let _inner = enter(Stage::Send, 1);
                std::panic::resume_unwind(Box::new(()));
            });
            assert!(failed.is_err());
            begin_turn(&switch, &counters);
            end_turn(&counters, false);
            let report = counters.read(&switch).expect("it is on");
            assert_eq!(sum(&report), report.elapsed);
        });
    }

    /// A processor's counter behind another's adds nothing, and is not charged twice.
    #[test]
    fn a_counter_that_goes_back_adds_nothing() {
        let account = Account::new();
        account.begin(1000);
        account.change(Stage::Send, 1100);
        account.change(Stage::Parse, 1050);
        account.change(Stage::Control, 1300);
        let cycles = |stage: Stage| account.tallies[stage as usize].get().cycles;
        let all: Vec<u64> = Stage::ALL.map(cycles).into_iter().collect();
        assert_eq!(all.iter().sum::<u64>(), 300);
        assert_eq!(cycles(Stage::Control), 100);
        assert_eq!(cycles(Stage::Send), 0);
        assert_eq!(cycles(Stage::Parse), 200);
    }

    #[test]
    fn counts_saturate() {
        let account = Account::new();
        let full = Tally {
            cycles: u64::MAX - 5,
            ..Tally::ZERO
        };
        account.tallies[Stage::Send as usize].set(full);
        account.begin_stage_at(Stage::Send, 0);
        account.change(Stage::Control, 100);
        let cycles = account.tallies[Stage::Send as usize].get().cycles;
        assert_eq!(cycles, u64::MAX);
    }

    impl Account {
        fn begin_stage_at(&self, stage: Stage, now: u64) {
            self.stage.set(stage);
            self.since.set(now);
        }
    }

    #[test]
    fn the_cost_of_accounting_is_measured() {
        alone(|| {
            let cost = cost();
            assert!(cost > 0.0 && cost < 1e6, "{cost}");
            assert!(!is_on());
        });
    }

    fn stage() -> impl Strategy<Value = Stage> {
        (0..Stage::COUNT).prop_map(|index| Stage::ALL[index])
    }

    #[derive(Clone, Debug)]
    enum Act {
        Go(Stage, usize),
        Enter(Stage, usize),
        Leave,
        Relabel(Stage),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (stage(), 0..64_usize).prop_map(|(stage, packets)| Act::Go(stage, packets)),
            (stage(), 0..64_usize).prop_map(|(stage, packets)| Act::Enter(stage, packets)),
            Just(Act::Leave),
            stage().prop_map(Act::Relabel),
        ]
    }

    proptest! {
        /// However stages follow and contain one another, their cycles add up to what has passed.
        #[test]
        fn stages_add_up(turns in prop::collection::vec(
            (prop::collection::vec(act(), 0..20), any::<bool>()), 1..6,
        )) {
            let same = std::thread::scope(|scope| scope.spawn(|| {
                let (switch, counters) = (Switch::default(), Counters::default());
                switch.set(true);
                for (acts, idle) in &turns {
                    begin_turn(&switch, &counters);
                    let mut entered = Vec::new();
                    for act in acts {
                        match act {
                            Act::Go(stage, packets) => go(*stage, *packets),
                            Act::Enter(stage, packets) => entered.push(enter(*stage, *packets)),
                            Act::Leave => drop(entered.pop()),
                            Act::Relabel(stage) => relabel(*stage),
                        }
                    }
                    while let Some(last) = entered.pop() {
                        drop(last);
                    }
                    end_turn(&counters, *idle);
                }
                let report = counters.read(&switch).expect("it is on");
                (sum(&report), report.elapsed)
            }).join().expect("no panic"));
            prop_assert_eq!(same.0, same.1);
        }
    }
}
