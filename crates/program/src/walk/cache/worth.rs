//! Whether a cache pays.
//!
//! Cycles decide, measured over whole bursts. Without the cache some bursts are measured now and then: what a packet's walk costs. Where that is much, the cache is tried for a number of packets,
//! at the end of which it has filled as far as it will; if packets cost less by then, it stays on. While it is on, each window of packets is measured, and the walk again from time to time,
//! sooner where few packets hit, since walks may have become cheaper. A cache that does not pay is switched off, and tried again later, less and less often. So a flood of
//! new flows costs what the trials cost: one packet in some hundred is met by a cache that does not help.

use super::board::CacheMode;

/// Packets before the first trial, and between later ones at first.
const PAUSE: u64 = 1 << 20;
/// Packets between trials at most.
const LONGEST_PAUSE: u64 = 1 << 24;
/// Packets that fill the cache in a trial.
const FILLING: u64 = 1 << 16;
/// Packets over which the cache is measured.
const WINDOW: u64 = 1 << 14;
/// Packets that go without the cache to measure the walk while the cache is on.
const CONTROL: u64 = 1 << 9;
/// Windows between such controls, where most packets hit.
const CONTROL_INTERVAL: u32 = 256;
/// Packets after which a worker has made up its mind for the first time.
pub const JUDGED: u64 = PAUSE + 2 * FILLING + 2 * WINDOW;
/// Bursts between two that are measured without the cache.
const SAMPLING: u32 = 64;
/// Measured bursts before a trial.
const SAMPLES: u32 = 16;
/// Fewer packets than this in a burst are not measured: they cost what small bursts cost.
const FULL: usize = 16;
/// Walks cheaper than this, in cycles, gain nothing.
const SHORT: f32 = 120.0;
/// What packets may cost with the cache, of what they cost without, for it to be switched on, and to stay on.
const GAIN: f32 = 0.95;
const KEEP: f32 = 0.98;

/// Whether a cache is used, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Standing {
    Untried = 0,
    Short = 1,
    Trial = 2,
    On = 3,
    Control = 4,
    NoGain = 5,
    Forced = 6,
    Forbidden = 7,
}

impl Standing {
    pub const NAMES: [&'static str; 8] = [
        "off: not tried yet",
        "off: walks are short",
        "being tried",
        "on: packets cost less with it",
        "on: packets cost less with it",
        "off: packets cost no less with it",
        "on: told so",
        "off: told so",
    ];
}

/// What to do with a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    /// Use the cache.
    pub used: bool,
    /// Measure it.
    pub measured: bool,
    /// Bursts that may follow without asking, as long as none uses the cache.
    pub rest: u32,
}

/// Cycles over some packets.
#[derive(Clone, Copy, Default)]
struct Sum {
    cycles: f32,
    packets: f32,
    bursts: u32,
}

impl Sum {
    /// Adds a burst. One that took very long was interrupted.
    fn add(&mut self, packets: usize, cycles: u64) {
        let (packets, mut cycles) = (packets as f32, cycles as f32);
        if self.bursts >= 4 {
            cycles = cycles.min(4.0 * packets * self.each());
        }
        self.cycles += cycles;
        self.packets += packets;
        self.bursts += 1;
    }

    fn each(&self) -> f32 {
        self.cycles / self.packets.max(1.0)
    }
}

/// One bridge's judgement.
pub(super) struct Worth {
    standing: Standing,
    /// Packets until the standing is thought over.
    left: u64,
    pause: u64,
    /// Bursts since one was measured.
    bursts: u32,
    sum: Sum,
    hits: u64,
    /// Windows since the last control.
    windows: u32,
    walk: f32,
    cached: f32,
}

impl Worth {
    pub fn new() -> Worth {
        Worth {
            standing: Standing::Untried,
            left: PAUSE,
            pause: PAUSE,
            bursts: 0,
            sum: Sum::default(),
            hits: 0,
            windows: 0,
            walk: 0.0,
            cached: 0.0,
        }
    }

    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Cycles for each packet without the cache, as measured last.
    pub fn walk_cycles(&self) -> u64 {
        self.walk as u64
    }

    /// With it.
    pub fn cached_cycles(&self) -> u64 {
        self.cached as u64
    }

    /// So many packets have gone by without the cache.
    pub fn pass(&mut self, packets: usize) {
        if matches!(
            self.standing,
            Standing::Untried | Standing::Short | Standing::NoGain
        ) {
            self.left = self.left.saturating_sub(packets as u64);
        }
    }

    /// What to do with a burst of so many packets.
    pub fn begin(&mut self, mode: CacheMode, packets: usize) -> Plan {
        let free = !matches!(self.standing, Standing::Forced | Standing::Forbidden);
        if mode != CacheMode::Auto || !free {
            self.obey(mode);
        }
        self.bursts += 1;
        let full = packets >= FULL;
        match self.standing {
            Standing::Untried | Standing::Short | Standing::NoGain => {
                self.pass(packets);
                Plan {
                    used: false,
                    measured: full,
                    rest: SAMPLING - 1,
                }
            }
            Standing::Trial => Plan {
                used: true,
                measured: full && self.left <= WINDOW,
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

    #[cold]
    fn obey(&mut self, mode: CacheMode) {
        match (mode, self.standing) {
            (CacheMode::Auto, _) => *self = Worth::new(),
            (CacheMode::Always, _) => self.standing = Standing::Forced,
            (CacheMode::Never, _) => self.standing = Standing::Forbidden,
        }
    }

    /// A burst has been done, with so many hits, and in so many cycles if it was measured.
    pub fn end(&mut self, packets: usize, hits: u64, spent: Option<u64>) {
        if let Some(cycles) = spent {
            self.sum.add(packets, cycles);
        }
        let used = match self.standing {
            Standing::Untried | Standing::Short | Standing::NoGain => return self.wait(),
            Standing::Forced | Standing::Forbidden => return,
            Standing::Trial | Standing::On => true,
            Standing::Control => false,
        };
        self.hits += hits;
        self.left = self.left.saturating_sub(packets as u64);
        if self.left > 0 {
            return;
        }
        let measured = std::mem::take(&mut self.sum);
        if measured.bursts < 4 {
            // Bursts are small: there is time enough.
            self.left = WINDOW;
        } else if used {
            self.cached = measured.each();
            self.judge();
        } else {
            self.walk = measured.each();
            self.windows = 0;
            self.turn(Standing::On, WINDOW);
        }
    }

    /// Without the cache: thinks about a trial.
    fn wait(&mut self) {
        if self.sum.bursts < SAMPLES {
            return;
        }
        self.walk = std::mem::take(&mut self.sum).each();
        if self.left > 0 {
            return;
        }
        if self.walk < SHORT {
            self.turn(Standing::Short, PAUSE);
        } else {
            self.turn(Standing::Trial, FILLING + WINDOW);
        }
    }

    /// A trial or a window has ended.
    fn judge(&mut self) {
        let trial = self.standing == Standing::Trial;
        if self.cached > self.walk * if trial { GAIN } else { KEEP } {
            let pause = self.pause;
            self.pause = (pause * 2).min(LONGEST_PAUSE);
            return self.turn(Standing::NoGain, pause);
        }
        self.windows += 1;
        let few = !trial && self.hits < WINDOW / 2;
        if self.windows >= CONTROL_INTERVAL || few {
            return self.turn(Standing::Control, CONTROL);
        }
        if self.windows > CONTROL_INTERVAL / 2 {
            self.pause = PAUSE;
        }
        self.turn(Standing::On, WINDOW);
    }

    fn turn(&mut self, standing: Standing, packets: u64) {
        self.standing = standing;
        self.left = packets;
        self.hits = 0;
        self.bursts = 0;
        self.sum = Sum::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BURST: usize = 32;

    /// So many packets, each of which costs so much without the cache and with it; how many met the cache.
    fn run(worth: &mut Worth, packets: u64, walk: u64, cached: u64, hits: u64) -> u64 {
        let mut met = 0;
        let mut rest = 0;
        for _ in 0..packets / BURST as u64 {
            if rest > 0 {
                rest -= 1;
                worth.pass(BURST);
                continue;
            }
            let plan = worth.begin(CacheMode::Auto, BURST);
            rest = plan.rest;
            let each = if plan.used { cached } else { walk };
            let hits = if plan.used { hits } else { 0 };
            met += u64::from(plan.used) * BURST as u64;
            let spent = plan.measured.then_some(each * BURST as u64);
            worth.end(BURST, hits, spent);
        }
        met
    }

    #[test]
    fn it_is_switched_on_where_packets_cost_less() {
        let mut worth = Worth::new();
        run(&mut worth, 2 * PAUSE, 2000, 100, 32);
        assert_eq!(worth.standing(), Standing::On);
        let met = run(&mut worth, 1 << 24, 2000, 100, 32);
        assert!(met > (1 << 24) * 99 / 100, "{met}");
        assert_eq!((worth.walk_cycles(), worth.cached_cycles()), (2000, 100));
    }

    #[test]
    fn a_flood_meets_it_rarely() {
        let mut worth = Worth::new();
        let packets = 1 << 28;
        let met = run(&mut worth, packets, 2000, 2200, 0);
        assert!(met < packets / 100, "{met} of {packets}");
        assert_eq!(worth.standing(), Standing::NoGain);
        // And when the flood is over, it comes back.
        run(&mut worth, 2 * LONGEST_PAUSE, 2000, 100, 32);
        assert_eq!(worth.standing(), Standing::On);
    }

    #[test]
    fn a_flood_that_begins_later_switches_it_off() {
        let mut worth = Worth::new();
        run(&mut worth, 2 * PAUSE, 2000, 100, 32);
        let met = run(&mut worth, PAUSE / 2, 2000, 2200, 0);
        assert_eq!(worth.standing(), Standing::NoGain);
        assert!(met <= WINDOW + BURST as u64, "{met}");
        // Also when the flood's walks are cheap.
        let mut worth = Worth::new();
        run(&mut worth, 2 * PAUSE, 2000, 100, 32);
        run(&mut worth, PAUSE / 2, 150, 250, 0);
        assert_eq!(worth.standing(), Standing::NoGain);
    }

    #[test]
    fn short_walks_and_small_bursts_leave_it_off() {
        let mut worth = Worth::new();
        assert_eq!(run(&mut worth, 1 << 24, 60, 50, 32), 0);
        assert_eq!(worth.standing(), Standing::Short);
        let mut worth = Worth::new();
        for _ in 0..PAUSE {
            let plan = worth.begin(CacheMode::Auto, 4);
            assert!(!plan.used && !plan.measured);
            worth.pass(4 * plan.rest as usize);
            worth.end(4, 0, None);
        }
    }

    #[test]
    fn it_does_as_told() {
        let mut worth = Worth::new();
        assert!(worth.begin(CacheMode::Always, 1).used);
        assert!(!worth.begin(CacheMode::Never, 32).used);
        assert!(!worth.begin(CacheMode::Auto, 32).used);
        assert_eq!(worth.standing(), Standing::Untried);
    }
}
