//! Decides by measured cycles whether a flow cache is used.
//!
//! Without the cache some bursts are measured now and then: the cost of a packet's walk. Where that
//! is high, the cache is tried for a number of packets, at the end of which it should be full; if
//! packets cost less by then, it stays on. While it is on, each window of packets is measured, and
//! the walk again from time to time, sooner where few packets hit, since walks may have become
//! cheaper. A cache that does not pay is switched off, and tried again later, less and less often.
//!
//! *No measurement is trusted for long.* The walk is measured in a few bursts before a trial, and
//! these may be slow by chance: an interrupted burst, or a neighbour on the same core. So the walk
//! is measured again (a *control*) right after a trial that the cache has won, and after two
//! windows, four and so on; a trial won by chance then costs a few milliseconds. Walks right after
//! cached bursts hit cold memory, so each control discards its first packets, and where the
//! difference between both costs may be due to that alone, the control goes on for longer.
//!
//! A trial is extended as long as hits keep growing, at most [`FILLINGS`] times: many flows take
//! long to be stored, since a burst records only a few.
//!
//! Pauses are counted in cycles of walking, not in packets: a packet of a long pipeline costs fifty
//! times what one of a short list does, and delaying a trial costs time. The extra cost of a failed
//! trial over walking is known when it ends, and from the second on the pause after it is [`SHARE`]
//! times as long; so a flood of new flows costs one cycle in a hundred, whatever its packets cost.

use crate::exec::flow_cache::board::CacheMode;

/// Cycles of walking before the first trial, and initially between later ones: some 25 ms.
const PAUSE: u64 = 1 << 26;
/// Longest pause while trials cost little: some 3 s.
const LONGEST_PAUSE: u64 = 1 << 33;
/// Shortest pause after a failed trial, as a multiple of the cycles it has lost.
const SHARE: u64 = 100;
/// Packets that fill the cache in a trial.
const FILLING: u64 = 1 << 16;
/// Most extensions of a trial.
const FILLINGS: u32 = 16;
/// Growth in hits within a window that extends a trial.
const GROWTH: u64 = WINDOW / 32;
/// Packets over which the cache is measured.
const WINDOW: u64 = 1 << 14;
/// Packets discarded at the beginning of a control, before the walk is measured.
const SETTLING: u64 = 1 << 10;
/// Packets over which a control measures the walk.
const CONTROL: u64 = 1 << 10;
/// Packets over which the walk is measured once more behind those, where the cache has won but
/// walks have cost less than [`CLOSE`] times as much.
const CLOSER: u64 = 1 << 12;
const CLOSE: f32 = 2.0;
/// Most windows between controls where most packets hit, and where few do; then a drop in hits also
/// leads to one.
const CONTROL_INTERVAL: u32 = 256;
const CONTROL_INTERVAL_OF_FEW: u32 = 8;
/// Bursts between two that are measured while the cache is off.
const SAMPLING: u32 = 64;
/// Measured bursts before a trial.
const SAMPLES: u32 = 16;
/// Shorter bursts are not measured, because a packet costs more in a small burst.
const FULL: usize = 16;
/// Walks cheaper than this, in cycles, do not gain from the cache.
const SHORT: f32 = 120.0;
/// Cost with the cache over cost without at which the cache is switched on, and at which it stays
/// on.
const GAIN: f32 = 0.95;
const KEEP: f32 = 0.98;

/// Whether a cache is used, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Standing {
    Untried = 0,
    Short = 1,
    Trial = 2,
    On = 3,
    Control = 4,
    NoGain = 5,
    Forced = 6,
    Forbidden = 7,
    /// It failed its first trial.
    Doubted = 8,
}

impl Standing {
    /// Returns whether it has been measured whether the cache pays.
    pub fn is_judged(self) -> bool {
        !matches!(
            self,
            Standing::Untried | Standing::Trial | Standing::Doubted
        )
    }

    /// Returns whether the cache is off because of a measurement, and waits for its next trial.
    fn waits(self) -> bool {
        matches!(
            self,
            Standing::Untried | Standing::Short | Standing::Doubted | Standing::NoGain
        )
    }

    /// All variants, by number.
    pub const ALL: [Standing; 9] = [
        Standing::Untried,
        Standing::Short,
        Standing::Trial,
        Standing::On,
        Standing::Control,
        Standing::NoGain,
        Standing::Forced,
        Standing::Forbidden,
        Standing::Doubted,
    ];

    /// Returns the name for display.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Untried => "off: not tried yet",
            Standing::Short => "off: walks are short",
            Standing::Trial => "being tried",
            Standing::On | Standing::Control => "on: packets cost less with it",
            Standing::Doubted => "off: packets cost no less with it, and is soon tried again",
            Standing::NoGain => "off: packets cost no less with it",
            Standing::Forced => "on: told so",
            Standing::Forbidden => "off: told so",
        }
    }
}

/// What to do with a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Use the cache.
    pub used: bool,
    /// Measure the burst.
    pub measured: bool,
    /// Bursts that may follow without a call, as long as none uses the cache.
    pub rest: u32,
}

/// Cycles over a number of packets, by cycles per packet of their bursts: powers of two, from 1 to
/// 2^31.
#[derive(Clone, Copy, Default)]
struct Sum {
    kinds: [SimilarBursts; 32],
    bursts: u32,
}

/// Bursts of similar cost per packet.
#[derive(Clone, Copy, Default)]
struct SimilarBursts {
    cycles: f32,
    packets: f32,
    bursts: u32,
}

impl SimilarBursts {
    fn each(&self) -> f32 {
        self.cycles / self.packets.max(1.0)
    }
}

impl Sum {
    /// Adds a burst.
    fn add(&mut self, packets: usize, cycles: u64) {
        let each = cycles / (packets as u64).max(1);
        let kind = &mut self.kinds[each.checked_ilog2().unwrap_or(0).min(31) as usize];
        kind.cycles += cycles as f32;
        kind.packets += packets as f32;
        kind.bursts += 1;
        self.bursts += 1;
    }

    /// Returns the cycles per packet. Bursts that took much longer than most others were
    /// interrupted: they count as four times the usual cost. "Most" means seven in eight, not half:
    /// a burst comes in by one port, and those of another port may cost many times as much.
    fn each(&self) -> f32 {
        let mut before = 0;
        let dear = self.kinds.iter().find(|kind| {
            before += kind.bursts;
            8 * before >= 7 * self.bursts
        });
        let most = 4.0 * dear.map_or(0.0, SimilarBursts::each);
        let (cycles, packets) = (self.kinds.iter()).fold((0.0, 0.0), |(cycles, packets), kind| {
            let bounded = kind.cycles.min(kind.packets * most);
            (cycles + bounded, packets + kind.packets)
        });
        cycles / packets.max(1.0_f32)
    }
}

/// The state of one bridge's cache.
pub(crate) struct CacheController {
    standing: Standing,
    /// What remains until the next decision: cycles of walking while the cache is off because of a
    /// measurement, else packets.
    left: u64,
    pause: u64,
    /// Packets that went without the cache since their cycles were last subtracted from `left`.
    passed: u64,
    /// Bursts since one was measured.
    bursts: u32,
    sum: Sum,
    hits: u64,
    /// Of an extended trial: hits in its last window, number of extensions, and extra cycles over
    /// walking so far.
    hits_before: u64,
    fillings: u32,
    lost: u64,
    /// Windows since the last control, windows until the next, and whether a control has been
    /// extended.
    windows: u32,
    interval: u32,
    closer: bool,
    /// Hits of the window before the last control.
    hits_at_control: u64,
    walk: f32,
    /// Cycles per packet while a trial filled the cache.
    filling: f32,
    cached: f32,
}

impl CacheController {
    pub fn new() -> CacheController {
        CacheController {
            standing: Standing::Untried,
            left: PAUSE,
            pause: PAUSE,
            passed: 0,
            bursts: 0,
            sum: Sum::default(),
            hits: 0,
            hits_before: 0,
            fillings: 0,
            lost: 0,
            windows: 0,
            interval: 1,
            closer: false,
            hits_at_control: 0,
            walk: 0.0,
            filling: 0.0,
            cached: 0.0,
        }
    }

    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Returns the cycles for each packet without the cache, when last measured.
    pub fn walk_cycles(&self) -> u64 {
        self.walk as u64
    }

    /// Returns the cycles for each packet with the cache, when last measured.
    pub fn cached_cycles(&self) -> u64 {
        self.cached as u64
    }

    /// Records packets that went without the cache.
    pub fn pass(&mut self, packets: usize) {
        if self.standing.waits() {
            self.passed += packets as u64;
        }
    }

    /// Decides what to do with a burst of this many packets.
    pub fn begin(&mut self, mode: CacheMode, packets: usize) -> Plan {
        let free = !matches!(self.standing, Standing::Forced | Standing::Forbidden);
        if mode != CacheMode::Auto || !free {
            self.obey(mode);
        }
        self.bursts += 1;
        let full = packets >= FULL;
        match self.standing {
            Standing::Untried | Standing::Short | Standing::Doubted | Standing::NoGain => {
                self.pass(packets);
                Plan {
                    used: false,
                    measured: full,
                    rest: SAMPLING - 1,
                }
            }
            Standing::Trial => Plan {
                used: true,
                measured: full && (self.left <= WINDOW || self.bursts.is_multiple_of(4)),
                rest: 0,
            },
            Standing::On => Plan {
                used: true,
                measured: full && self.bursts.is_multiple_of(4),
                rest: 0,
            },
            Standing::Control => Plan {
                used: false,
                measured: full,
                rest: 0,
            },
            Standing::Forced => Plan {
                used: true,
                measured: false,
                rest: 0,
            },
            Standing::Forbidden => Plan {
                used: false,
                measured: false,
                rest: 0,
            },
        }
    }

    /// Decides what to do with a burst whose walks are known to be short, whatever they cost: walks
    /// in small tables may wait for memory, but so would the cache.
    pub fn needless(&mut self) -> Plan {
        let known = self.standing == Standing::Short;
        // Turn to this standing again even if it is the current one, because its bursts, which
        // would lead to a trial, are not of this kind.
        self.turn(Standing::Short, PAUSE);
        Plan {
            used: false,
            // Measured once, so that the cost can be shown.
            measured: !known,
            rest: SAMPLING - 1,
        }
    }

    #[cold]
    fn obey(&mut self, mode: CacheMode) {
        match (mode, self.standing) {
            (CacheMode::Auto, _) => *self = CacheController::new(),
            (CacheMode::Always, _) => self.standing = Standing::Forced,
            (CacheMode::Never, _) => self.standing = Standing::Forbidden,
        }
    }

    /// Records a burst with this many hits, and its cycles if it was measured.
    pub fn end(&mut self, packets: usize, hits: u64, spent: Option<u64>) {
        if let Some(cycles) = spent {
            self.sum.add(packets, cycles);
        }
        let used = match self.standing {
            Standing::Untried | Standing::Short | Standing::Doubted | Standing::NoGain => {
                return self.wait();
            }
            Standing::Forced | Standing::Forbidden => return,
            Standing::Trial | Standing::On => true,
            Standing::Control => false,
        };
        self.hits += hits;
        let before = self.left;
        self.left = self.left.saturating_sub(packets as u64);
        if self.left > 0 {
            if used && before > WINDOW && self.left <= WINDOW {
                self.filling = std::mem::take(&mut self.sum).each();
                self.hits = 0;
            }
            if !used && before > CONTROL && self.left <= CONTROL && !self.closer {
                self.sum = Sum::default();
            }
            return;
        }
        let measured = std::mem::take(&mut self.sum);
        if measured.bursts < 4 {
            // Bursts are small, so take more time for the measurement and count all of it.
            (self.closer, self.left) = (!used, WINDOW);
        } else if used {
            self.cached = measured.each();
            self.judge();
        } else {
            self.walk = measured.each();
            let close = self.cached <= self.walk && self.walk < CLOSE * self.cached;
            if close && !self.closer {
                (self.closer, self.left) = (true, CLOSER);
                return;
            }
            (self.windows, self.closer) = (0, false);
            self.interval = (self.interval * 2).min(CONTROL_INTERVAL);
            if self.cached > self.walk * KEEP {
                return self.judge();
            }
            self.turn(Standing::On, WINDOW);
        }
    }

    /// Decides about a trial, while the cache is off.
    fn wait(&mut self) {
        if self.sum.bursts < SAMPLES {
            return;
        }
        self.walk = std::mem::take(&mut self.sum).each();
        let spent = self.walk * std::mem::take(&mut self.passed) as f32;
        self.left = self.left.saturating_sub(spent as u64);
        if self.walk < SHORT {
            if self.left == 0 || self.standing == Standing::Untried {
                self.turn(Standing::Short, PAUSE);
            }
        } else if self.left == 0 {
            (self.hits_before, self.fillings, self.lost) = (0, 0, 0);
            self.turn(Standing::Trial, FILLING + WINDOW);
        }
    }

    /// Returns whether to extend a losing trial: hits grow, and there are misses left.
    fn fills(&mut self) -> bool {
        let hits = self.hits;
        let grows = hits >= self.hits_before + GROWTH && hits + GROWTH <= WINDOW;
        self.hits_before = hits;
        self.fillings += 1;
        grows && self.fillings <= FILLINGS
    }

    /// Ends a trial or a window.
    fn judge(&mut self) {
        let trial = self.standing == Standing::Trial;
        if self.cached > self.walk * if trial { GAIN } else { KEEP } {
            let over = |each: f32, packets| ((each - self.walk).max(0.0) * packets as f32) as u64;
            let mut lost = over(self.cached, WINDOW);
            if trial {
                lost = lost.saturating_add(over(self.filling, FILLING));
                self.lost = self.lost.saturating_add(lost);
                if self.fills() {
                    return self.turn(Standing::Trial, FILLING + WINDOW);
                }
                lost = self.lost;
            }
            // Bounded, because a loss may be due to the worker being stopped for a while. The first
            // trial may have met changing rules or an interruption, so a second follows soon.
            let again = self.pause > PAUSE;
            let least = if again {
                lost.saturating_mul(SHARE).min(4 * LONGEST_PAUSE)
            } else {
                0
            };
            let pause = self.pause.max(least);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            let standing = if again {
                Standing::NoGain
            } else {
                Standing::Doubted
            };
            return self.turn(standing, pause);
        }
        self.windows += 1;
        let few = self.hits < WINDOW / 2;
        if trial {
            self.interval = 1;
        }
        let (due, fewer) = if few {
            let fewer = self.hits + GROWTH < self.hits_at_control;
            (self.interval.min(CONTROL_INTERVAL_OF_FEW), fewer)
        } else {
            (self.interval, false)
        };
        if trial || self.windows >= due || fewer {
            (self.closer, self.hits_at_control) = (false, self.hits);
            return self.turn(Standing::Control, SETTLING + CONTROL);
        }
        if self.windows > CONTROL_INTERVAL / 2 {
            self.pause = PAUSE;
        }
        self.turn(Standing::On, WINDOW);
    }

    /// Changes the standing; `left` as documented at the field.
    fn turn(&mut self, standing: Standing, left: u64) {
        self.standing = standing;
        self.left = left;
        self.passed = 0;
        self.hits = 0;
        self.bursts = 0;
        self.sum = Sum::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: usize = 32;
    /// Packets of a first trial.
    const TRIAL: u64 = FILLING + WINDOW;
    /// Packets between two measurements of the walk.
    const LOOK: u64 = SAMPLING as u64 * SAMPLES as u64 * BURST as u64;

    /// Cycles of packets with and without the cache, and how many of a burst hit.
    #[derive(Clone, Copy)]
    struct Cost {
        walk: u64,
        cached: u64,
        hits: u64,
    }

    /// Returns the cost of packets that all miss, which adds a tenth.
    fn flood(walk: u64) -> Cost {
        let cached = walk + walk / 10;
        Cost {
            walk,
            cached,
            hits: 0,
        }
    }

    /// Returns the cost of packets that all hit.
    fn good(walk: u64, cached: u64) -> Cost {
        let hits = BURST as u64;
        Cost { walk, cached, hits }
    }

    /// Runs this many packets; returns how many were looked up in the cache, and the cycles of all.
    fn run(controller: &mut CacheController, packets: u64, cost: Cost) -> (u64, u64) {
        let (mut met, mut spent, mut rest) = (0, 0, 0);
        for _ in 0..packets / BURST as u64 {
            if rest > 0 {
                rest -= 1;
                controller.pass(BURST);
                spent += cost.walk * BURST as u64;
                continue;
            }
            let plan = controller.begin(CacheMode::Auto, BURST);
            rest = plan.rest;
            let each = if plan.used { cost.cached } else { cost.walk };
            let hits = if plan.used { cost.hits } else { 0 };
            met += u64::from(plan.used) * BURST as u64;
            let cycles = each * BURST as u64;
            spent += cycles;
            controller.end(BURST, hits, plan.measured.then_some(cycles));
        }
        (met, spent)
    }

    /// Returns the number of packets until the first trial has ended.
    fn judged(walk: u64) -> u64 {
        (PAUSE / walk).next_multiple_of(LOOK) + TRIAL + LOOK
    }

    #[test]
    fn the_first_trial_comes_after_so_many_cycles_whatever_a_packet_costs() {
        for walk in [150, 400, 2000, 20_000] {
            let mut controller = CacheController::new();
            let before = (PAUSE / walk).saturating_sub(LOOK);
            assert_eq!(run(&mut controller, before, good(walk, 100)).0, 0, "{walk}");
            assert_eq!(controller.standing(), Standing::Untried);
            run(&mut controller, judged(walk) - before, good(walk, 100));
            assert_eq!(controller.standing(), Standing::On, "{walk}");
        }
    }

    #[test]
    fn it_is_switched_on_where_packets_cost_less() {
        let mut controller = CacheController::new();
        run(&mut controller, judged(2000), good(2000, 100));
        assert_eq!(controller.standing(), Standing::On);
        let (met, _) = run(&mut controller, 1 << 24, good(2000, 100));
        assert!(met > (1 << 24) * 99 / 100, "{met}");
        assert_eq!(
            (controller.walk_cycles(), controller.cached_cycles()),
            (2000, 100)
        );
    }

    #[test]
    fn a_flood_costs_one_cycle_in_a_hundred() {
        for walk in [150, 400, 2000, 20_000] {
            let mut controller = CacheController::new();
            let packets = (64 * LONGEST_PAUSE / walk).max(64 * TRIAL);
            let (met, spent) = run(&mut controller, packets, flood(walk));
            assert!(met >= 8 * TRIAL, "{met}");
            let least = packets * walk;
            assert!(spent - least <= least / 90, "{walk}: {spent}, {least}");
            assert_eq!(controller.standing(), Standing::NoGain);
            // When the flood is over, the cache comes back on.
            run(
                &mut controller,
                4 * LONGEST_PAUSE / walk + judged(walk),
                good(walk, 100),
            );
            assert_eq!(controller.standing(), Standing::On, "{walk}");
        }
    }

    /// Simulates bursts: `cost` by whether the cache is used, and by how many packets have gone
    /// that way without a break.
    fn run_on(
        controller: &mut CacheController,
        packets: u64,
        cost: impl Fn(bool, u64) -> u64,
    ) -> Vec<(u64, Standing)> {
        let (mut rest, mut since, mut used) = (0, 0, false);
        let mut standings: Vec<(u64, Standing)> = Vec::new();
        for burst in 0..packets / BURST as u64 {
            if rest > 0 {
                rest -= 1;
                controller.pass(BURST);
                since += BURST as u64;
                continue;
            }
            let plan = controller.begin(CacheMode::Auto, BURST);
            rest = plan.rest;
            if plan.used != used {
                (used, since) = (plan.used, 0);
            }
            let cycles = cost(used, since) * BURST as u64;
            since += BURST as u64;
            let hits = if used { BURST as u64 } else { 0 };
            controller.end(BURST, hits, plan.measured.then_some(cycles));
            let standing = controller.standing();
            if standings.last().is_none_or(|(_, last)| *last != standing) {
                standings.push((burst * BURST as u64, standing));
            }
        }
        standings
    }

    /// Packets of an extended control, and of the window behind it.
    const PROOF: u64 = SETTLING + CONTROL + CLOSER + WINDOW;

    #[test]
    fn a_trial_won_while_the_machine_was_slow_is_found_out_at_once() {
        // `slow`: how much longer walks took before the trial, and only then.
        for slow in [2, 10, 1000] {
            let mut controller = CacheController::new();
            while controller.standing() != Standing::Trial {
                run(&mut controller, BURST as u64, good(140 * slow, 200));
            }
            let after = run_on(
                &mut controller,
                TRIAL + PROOF + 16 * BURST as u64,
                |used, _| {
                    if used { 200 } else { 140 }
                },
            );
            assert!(
                after
                    .iter()
                    .any(|(_, standing)| *standing == Standing::Control)
            );
            assert_eq!(controller.standing(), Standing::Doubted, "{slow}");
        }
    }

    #[test]
    fn walks_that_are_slow_for_having_been_left_do_not_keep_it_on() {
        let mut controller = CacheController::new();
        while controller.standing() != Standing::Trial {
            run(&mut controller, BURST as u64, good(1400, 200));
        }
        // The walk's memory has been evicted from the processor's caches, and returns gradually.
        let cost = |used: bool, since: u64| {
            if used {
                200
            } else {
                140 + 200_000 / (since + 1000)
            }
        };
        run_on(&mut controller, TRIAL + PROOF + 16 * BURST as u64, cost);
        assert_eq!(controller.standing(), Standing::Doubted);
    }

    #[test]
    fn bursts_that_are_interrupted_say_nothing_whenever_they_come() {
        for at in 0..u64::from(SAMPLES) {
            let mut sum = Sum::default();
            for burst in 0..u64::from(SAMPLES) {
                let each = if burst == at {
                    1 << 24
                } else {
                    140 + burst % 3
                };
                sum.add(BURST, each * BURST as u64);
            }
            // One burst in sixteen, counted four times.
            assert!(
                (140.0..141.0 * 1.25).contains(&sum.each()),
                "{at}: {}",
                sum.each()
            );
        }
        let mut sum = Sum::default();
        assert_eq!(sum.each(), 0.0);
        for each in [100, 300, 200, 400] {
            sum.add(BURST, each * BURST as u64);
        }
        assert!((sum.each() - 250.0).abs() < 0.1);
    }

    #[test]
    fn bursts_of_a_dear_port_are_not_taken_for_interrupted_ones() {
        let mut sum = Sum::default();
        for burst in 0..u64::from(SAMPLES) {
            let each = if burst % 2 == 0 { 50 } else { 3000 };
            sum.add(BURST, each * BURST as u64);
        }
        assert!((sum.each() - 1525.0).abs() < 1.0, "{}", sum.each());
    }

    #[test]
    fn where_few_packets_hit_it_is_not_looked_at_all_the_time() {
        let mut controller = CacheController::new();
        let hits = BURST as u64 * 2 / 5;
        let cost = Cost {
            walk: 700,
            cached: 400,
            hits,
        };
        run(&mut controller, judged(700) + (1 << 20), cost);
        let (met, _) = run(&mut controller, 1 << 22, cost);
        assert_eq!(controller.standing(), Standing::On);
        assert!(met > (1 << 22) * 19 / 20, "{met}");
    }

    #[test]
    fn a_control_ends_where_few_bursts_are_full() {
        let mut controller = CacheController::new();
        while controller.standing() != Standing::Control {
            run(&mut controller, BURST as u64, good(2000, 100));
        }
        let mut packets = 0;
        while controller.standing() == Standing::Control {
            let count = if packets % 640 < 6 { BURST } else { 6 };
            let plan = controller.begin(CacheMode::Auto, count);
            let spent = plan.measured.then_some(2000 * count as u64);
            controller.end(count, 0, spent);
            packets += count as u64;
            assert!(packets < 2 * WINDOW, "it goes on for ever");
        }
        assert_eq!(controller.standing(), Standing::On);
    }

    #[test]
    fn it_is_looked_at_again_more_and_more_seldom() {
        let mut controller = CacheController::new();
        let standings = run_on(
            &mut controller,
            1 << 24,
            |used, _| if used { 100 } else { 2000 },
        );
        let controls = standings
            .iter()
            .filter(|(_, standing)| *standing == Standing::Control);
        let controls: Vec<u64> = controls.map(|(at, _)| *at / WINDOW).collect();
        let between: Vec<u64> = controls.windows(2).map(|pair| pair[1] - pair[0]).collect();
        for (index, windows) in between.iter().take(9).enumerate() {
            let wanted = CONTROL_INTERVAL.min(2 << index).into();
            assert!((wanted..wanted + 2).contains(windows), "{between:?}");
        }
        assert!(between.len() >= 9);
        assert_eq!(controller.standing(), Standing::On);
    }

    #[test]
    fn a_trial_that_fills_in_vain_counts_what_filling_cost() {
        let mut controller = CacheController::new();
        // As cheap as the walk in the end, but not cheaper, and more expensive until then.
        for trial in 0..2 {
            while controller.standing() != Standing::Trial {
                run(&mut controller, BURST as u64, good(400, 400));
            }
            run(&mut controller, FILLING, good(400, 900));
            run(&mut controller, WINDOW, good(400, 400));
            // The first failure may have been bad luck.
            let standing = [Standing::Doubted, Standing::NoGain][trial];
            assert_eq!(controller.standing(), standing);
            assert_eq!(controller.left == PAUSE, trial == 0);
        }
        let pause = (900 - 400) * FILLING * SHARE;
        assert_eq!(controller.left, pause);
        // Packets that are not measured count for the pause, too.
        let (met, _) = run(&mut controller, pause / 400 - LOOK, good(400, 900));
        assert_eq!((met, controller.standing()), (0, Standing::NoGain));
        run(&mut controller, 2 * LOOK, good(400, 900));
        assert_eq!(controller.standing(), Standing::Trial);
    }

    /// Returns the cost of packets of which this many in a window hit.
    fn mixed(hits: u64) -> Cost {
        let each = |of: u64, all: u64| of * BURST as u64 / all;
        let hits = each(hits, WINDOW);
        let misses = BURST as u64 - hits;
        Cost {
            walk: 400,
            cached: (hits * 100 + misses * 600) / BURST as u64,
            hits,
        }
    }

    /// Runs one trial in which hits grow by `growth` in each filling, from the trial's first packet
    /// on; returns the number of fillings, and the standing afterwards.
    fn filled(growth: u64) -> (u64, Standing) {
        let mut controller = CacheController::new();
        while controller.standing() != Standing::Trial {
            run(&mut controller, BURST as u64, flood(400));
        }
        for filling in 1.. {
            run(
                &mut controller,
                TRIAL,
                mixed((growth * filling).min(WINDOW)),
            );
            if controller.standing() != Standing::Trial {
                return (filling, controller.standing());
            }
        }
        unreachable!()
    }

    #[test]
    fn a_trial_goes_on_while_hits_grow() {
        // It pays if 44 packets of 100 hit.
        assert_eq!(filled(WINDOW / 2), (1, Standing::Control));
        assert_eq!(filled(WINDOW / 8), (4, Standing::Control));
        assert_eq!(filled(WINDOW / 16), (8, Standing::Control));
        // Growth that is too slow, and none.
        assert_eq!(filled(WINDOW / 64), (1, Standing::Doubted));
        assert_eq!(filled(0), (1, Standing::Doubted));
        // A trial that is extended as long as possible, and fails.
        let mut controller = CacheController::new();
        while controller.standing() != Standing::Trial {
            run(&mut controller, BURST as u64, flood(400));
        }
        let dear = |hits| Cost {
            cached: 600,
            ..mixed(hits)
        };
        let mut fillings = 0;
        while controller.standing() == Standing::Trial {
            fillings += 1;
            run(&mut controller, TRIAL, dear(fillings * GROWTH));
        }
        assert_eq!(controller.standing(), Standing::Doubted);
        assert!((u64::from(FILLINGS)..32).contains(&fillings), "{fillings}");
    }

    #[test]
    fn a_flood_that_begins_later_switches_it_off() {
        let mut controller = CacheController::new();
        run(&mut controller, judged(2000), good(2000, 100));
        let (met, _) = run(&mut controller, TRIAL / 2, flood(2000));
        assert_eq!(controller.standing(), Standing::Doubted);
        // A window that had begun before, and one that the flood filled.
        assert!(met <= 2 * WINDOW, "{met}");
        // Also when the flood's walks are cheap.
        let mut controller = CacheController::new();
        run(&mut controller, judged(2000), good(2000, 100));
        run(&mut controller, TRIAL / 2, flood(150));
        assert_eq!(controller.standing(), Standing::Doubted);
    }

    #[test]
    fn short_walks_and_small_bursts_leave_it_off() {
        let mut controller = CacheController::new();
        assert_eq!(run(&mut controller, LOOK, good(60, 50)).0, 0);
        assert_eq!(controller.standing(), Standing::Short);
        assert_eq!(run(&mut controller, 1 << 24, good(60, 50)).0, 0);
        assert_eq!(controller.standing(), Standing::Short);
        // Longer walks later are tried as if they were the first.
        run(&mut controller, judged(2000), good(2000, 100));
        assert_eq!(controller.standing(), Standing::On);
        let mut controller = CacheController::new();
        for _ in 0..1 << 20 {
            let plan = controller.begin(CacheMode::Auto, 4);
            assert!(!plan.used && !plan.measured);
            controller.pass(4 * plan.rest as usize);
            controller.end(4, 0, None);
        }
    }

    #[test]
    fn needless_it_is_off_until_walks_grow() {
        let mut controller = CacheController::new();
        run(&mut controller, judged(400), good(400, 100));
        assert_eq!(controller.standing(), Standing::On);
        let first = controller.needless();
        controller.end(BURST, 0, Some(400 * BURST as u64));
        assert!(!first.used && first.measured);
        for _ in 0..1 << 16 {
            let plan = controller.needless();
            assert_eq!((plan.used, plan.measured), (false, false));
            controller.pass(BURST * plan.rest as usize);
            controller.end(BURST, 0, None);
            assert_eq!(controller.standing(), Standing::Short);
        }
        assert!(controller.standing().is_judged());
        run(&mut controller, judged(400), good(400, 100));
        assert_eq!(controller.standing(), Standing::On);
    }

    #[test]
    fn it_does_as_told() {
        let mut controller = CacheController::new();
        assert!(controller.begin(CacheMode::Always, 1).used);
        assert!(!controller.begin(CacheMode::Never, 32).used);
        assert!(!controller.begin(CacheMode::Auto, 32).used);
        assert_eq!(controller.standing(), Standing::Untried);
    }
}
