//! Timing wheel: which class is to be looked at when.
//!
//! Time is cut into ticks of [`TICK_NS`]. The lowest wheel has a slot for each tick of the block of 1024 ticks (1 ms) in which the present lies, the middle one a slot for each
//! such block of the next 4.3 s, the highest one for each 4.3 s of the next 73 minutes. When the present enters a block, the block's slot is spread over the wheel below. Bitmaps say which
//! slots hold anything. Setting, moving and cancelling an alarm take the same time however many there are, and so, averaged, does ringing.
//!
//! Alarms of one tick ring in the order in which they were set. That holds across the wheels: an alarm for a far tick is spread before any other for this tick can be set further down.

use super::ring::{Knots, Link, NEVER, NONE};

/// Nanoseconds of a tick, as a shift.
pub(crate) const TICK_SHIFT: u32 = 10;
/// Nanoseconds of a tick.
pub const TICK_NS: u64 = 1 << TICK_SHIFT;

const LOW_BITS: u32 = 10;
const MIDDLE_BITS: u32 = 12;
const HIGH_BITS: u32 = 10;
/// Lists of a slot of the middle wheel, as a shift, where classes are many.
const LANE_BITS: u32 = 4;
/// Likewise where they are few enough to stay in a cache.
const FEW_LANE_BITS: u32 = 2;
const FEW: usize = 4096;
/// An alarm further away rings at this distance, and its class looks again.
const HORIZON: u64 = 1 << (LOW_BITS + MIDDLE_BITS + HIGH_BITS - 1);
/// The first tick that is not before a time.
pub(crate) fn tick_from(ns: u64) -> u64 {
    ns.div_ceil(TICK_NS)
}

/// One wheel: its slots' lists and a bitmap of those that are not empty, with a bitmap of the bitmap's words.
///
/// A slot of a block has several lists, so that when it is spread the next of one is fetched while the others are gone through. Alarms of one tick are in the same list.
struct Slots {
    shift: u32,
    mask: u64,
    lane_bits: u32,
    heads: Box<[u32]>,
    tails: Box<[u32]>,
    filled: Box<[u64]>,
    words: u64,
}

impl Slots {
    fn new(shift: u32, bits: u32, lane_bits: u32) -> Slots {
        let count = 1_usize << bits;
        Slots {
            shift,
            mask: (1 << bits) - 1,
            lane_bits,
            heads: vec![NONE; count << lane_bits].into(),
            tails: vec![NONE; count << lane_bits].into(),
            filled: vec![0; count / 64].into(),
            words: 0,
        }
    }

    #[inline]
    fn index(&self, tick: u64) -> usize {
        (tick >> self.shift & self.mask) as usize
    }

    /// The place of the list that an alarm of this tick hangs in.
    #[inline]
    fn lane(&self, tick: u64) -> usize {
        let lane = tick & ((1 << self.lane_bits) - 1);
        self.index(tick) << self.lane_bits | lane as usize
    }

    #[inline]
    fn is_empty(&self, slot: usize) -> bool {
        let lanes = slot << self.lane_bits..(slot + 1) << self.lane_bits;
        self.heads[lanes].iter().all(|head| *head == NONE)
    }

    #[inline]
    fn fill(&mut self, slot: usize) {
        self.filled[slot / 64] |= 1 << (slot % 64);
        self.words |= 1 << (slot / 64);
    }

    #[inline]
    fn empty(&mut self, slot: usize) {
        self.filled[slot / 64] &= !(1 << (slot % 64));
        if self.filled[slot / 64] == 0 {
            self.words &= !(1 << (slot / 64));
        }
    }

    /// The first slot from `from` on that holds something.
    #[inline]
    fn next_filled(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let here = self.filled.get(word)? >> (from % 64);
        if here != 0 {
            return Some(from + here.trailing_zeros() as usize);
        }
        let later = self.words.checked_shr(word as u32 + 1).unwrap_or(0);
        if later == 0 {
            return None;
        }
        let word = word + 1 + later.trailing_zeros() as usize;
        Some(word * 64 + self.filled[word].trailing_zeros() as usize)
    }
}

/// How far what alarms will need has been fetched.
#[derive(Clone, Copy)]
pub(crate) struct Upcoming {
    /// The next tick to look at,
    tick: u64,
    /// and who is left of the one before.
    class: u32,
}

impl Upcoming {
    pub const NONE: Upcoming = Upcoming {
        tick: 0,
        class: NONE,
    };
}

/// The three wheels, with at most one alarm for each class; the alarms themselves lie in the classes' knots.
pub(crate) struct Wheel {
    wheels: [Slots; 3],
    /// The tick being rung, or the last one that was.
    present: u64,
    /// Nothing rings before this tick.
    quiet: u64,
}

impl Wheel {
    /// For so many classes.
    pub fn new(now_ns: u64, classes: usize) -> Wheel {
        let lane_bits = if classes <= FEW {
            FEW_LANE_BITS
        } else {
            LANE_BITS
        };
        Wheel {
            wheels: [
                Slots::new(0, LOW_BITS, 0),
                Slots::new(LOW_BITS, MIDDLE_BITS, lane_bits),
                Slots::new(LOW_BITS + MIDDLE_BITS, HIGH_BITS, 0),
            ],
            present: now_ns >> TICK_SHIFT,
            quiet: NEVER,
        }
    }

    /// Which wheel an alarm of this tick hangs in.
    #[inline]
    fn level(&self, tick: u64) -> usize {
        let differs = tick ^ self.present;
        if differs >> LOW_BITS == 0 {
            0
        } else if differs >> (LOW_BITS + MIDDLE_BITS) == 0 {
            1
        } else {
            2
        }
    }

    /// Sets a class's alarm; one that is set for this tick already keeps its place.
    #[inline]
    pub fn set(&mut self, knots: &mut Knots, class: u32, tick: u64) {
        let tick = tick.clamp(self.present, self.present + HORIZON);
        if knots.of(class).tick == tick {
            return;
        }
        self.cancel(knots, class);
        knots.of(class).tick = tick;
        self.hang(knots, class, tick);
    }

    #[inline]
    fn hang(&mut self, knots: &mut Knots, class: u32, tick: u64) {
        let wheel = &mut self.wheels[self.level(tick)];
        // A block is entered as a whole.
        self.quiet = self.quiet.min(tick >> wheel.shift << wheel.shift);
        let (slot, lane) = (wheel.index(tick), wheel.lane(tick));
        let tail = std::mem::replace(&mut wheel.tails[lane], class);
        if tail == NONE {
            wheel.heads[lane] = class;
            wheel.fill(slot);
        } else {
            knots.of(tail).alarm.next = class;
        }
        knots.of(class).alarm = Link {
            next: NONE,
            prev: tail,
        };
    }

    /// Takes a class's alarm away, if it has one.
    #[inline]
    pub fn cancel(&mut self, knots: &mut Knots, class: u32) {
        let knot = knots.of(class);
        let tick = std::mem::replace(&mut knot.tick, NEVER);
        if tick == NEVER {
            return;
        }
        let Link { next, prev } = knot.alarm;
        // Where it hangs follows from the present, which has not entered the alarm's block since, or it would have been spread.
        let wheel = &mut self.wheels[self.level(tick)];
        let (slot, lane) = (wheel.index(tick), wheel.lane(tick));
        if prev == NONE {
            wheel.heads[lane] = next;
        } else {
            knots.of(prev).alarm.next = next;
        }
        if next == NONE {
            wheel.tails[lane] = prev;
        } else {
            knots.of(next).alarm.prev = prev;
        }
        if prev == NONE && next == NONE && wheel.is_empty(slot) {
            wheel.empty(slot);
        }
    }

    /// Whether an alarm may have come. Where none has, the present catches up.
    #[inline(always)]
    pub fn is_due(&mut self, now_ns: u64) -> bool {
        let now = now_ns >> TICK_SHIFT;
        let due = self.quiet <= now;
        if !due {
            self.present = self.present.max(now);
        }
        due
    }

    /// The next class whose alarm has come, its alarm taken away.
    #[inline]
    pub fn ring(&mut self, knots: &mut Knots, now_ns: u64) -> Option<u32> {
        let now = now_ns >> TICK_SHIFT;
        loop {
            if !self.is_due(now_ns) || self.present > now {
                return None;
            }
            let from = (self.present & self.wheels[0].mask) as usize;
            if let Some(slot) = self.wheels[0].next_filled(from) {
                let tick = self.present - from as u64 + slot as u64;
                self.quiet = tick;
                if tick > now {
                    self.present = now;
                    return None;
                }
                self.present = tick;
                let class = self.wheels[0].heads[slot];
                self.cancel(knots, class);
                return Some(class);
            }
            if !self.enter_next_block(knots, now) {
                return None;
            }
        }
    }

    /// Goes on to the next block that holds alarms, if it has begun by now, and spreads it.
    #[inline(never)]
    fn enter_next_block(&mut self, knots: &mut Knots, now: u64) -> bool {
        let Some((level, start)) = self.next_block() else {
            // Nothing is set: the present may catch up.
            (self.present, self.quiet) = (now, NEVER);
            return false;
        };
        self.quiet = start;
        if start > now {
            self.present = now;
            return false;
        }
        self.present = start;
        let wheel = &mut self.wheels[level];
        let slot = wheel.index(start);
        let first = slot << wheel.lane_bits;
        let lanes = first..first + (1 << wheel.lane_bits);
        let mut classes = [NONE; 1 << LANE_BITS];
        let heads = classes.iter_mut().zip(&mut wheel.heads[lanes.clone()]);
        heads.for_each(|(class, head)| *class = std::mem::replace(head, NONE));
        wheel.tails[lanes].fill(NONE);
        wheel.empty(slot);
        while classes.iter().any(|class| *class != NONE) {
            for class in &mut classes {
                if *class != NONE {
                    let knot = knots.of(*class);
                    let (next, tick) = (knot.alarm.next, knot.tick);
                    knots.fetch(next);
                    self.hang(knots, *class, tick);
                    *class = next;
                }
            }
        }
        true
    }

    /// The next block of the upper wheels that holds alarms: its wheel and first tick.
    fn next_block(&self) -> Option<(usize, u64)> {
        let middle = &self.wheels[1];
        let at = middle.index(self.present);
        if let Some(slot) = middle.next_filled(at + 1) {
            let base = self.present >> (LOW_BITS + MIDDLE_BITS) << (LOW_BITS + MIDDLE_BITS);
            return Some((1, base + ((slot as u64) << LOW_BITS)));
        }
        // The highest wheel goes round.
        let high = &self.wheels[2];
        let at = high.index(self.present);
        let (slot, turn) = match high.next_filled(at + 1) {
            Some(slot) => (slot, 0),
            None => (high.next_filled(0)?, 1),
        };
        let shift = LOW_BITS + MIDDLE_BITS;
        let round = (self.present >> (shift + HIGH_BITS)) + turn;
        Some((2, (round << HIGH_BITS | slot as u64) << shift))
    }

    /// A time before which nothing rings, exact within the present block of 1 ms; none if nothing is set.
    pub fn next_ns(&self) -> Option<u64> {
        let low = &self.wheels[0];
        let from = self.present & low.mask;
        let tick = match low.next_filled(from as usize) {
            Some(slot) => self.present - from + slot as u64,
            None => self.next_block()?.1,
        };
        Some(tick << TICK_SHIFT)
    }

    /// Classes whose alarms ring next, within the present block, for fetching what they need, from where the last look ended. What is set meanwhile for a tick that was gone through is missed.
    #[inline]
    pub fn upcoming<const MOST: usize>(
        &self,
        knots: &Knots,
        from: Upcoming,
    ) -> ([u32; MOST], Upcoming) {
        let low = &self.wheels[0];
        let begin = self.present & !low.mask;
        let mut classes = [NONE; MOST];
        let Upcoming {
            mut tick,
            mut class,
        } = from;
        if tick <= self.present {
            // Alarms have rung beyond what was looked at.
            (tick, class) = (self.present, NONE);
        }
        for place in &mut classes {
            if class == NONE {
                let Some(slot) = low.next_filled((tick - begin) as usize) else {
                    break;
                };
                tick = begin + slot as u64 + 1;
                class = low.heads[slot];
            }
            *place = class;
            class = knots.after(class);
        }
        (classes, Upcoming { tick, class })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Against a sorted list of (tick, order of setting).
        #[test]
        fn rings_like_a_sorted_list(
            few in any::<bool>(),
            start in prop_oneof![Just(0_u64), 0..1_u64 << 44],
            steps in prop::collection::vec((0..20_u32, prop_oneof![0..3_u64, 0..2000_u64, 0..3_000_000_u64, 0..1_u64 << 33], prop_oneof![0..2_u64, 0..50_u64, 0..5000_u64, 0..1_u64 << 32], 0..8_u8), 1..200),
        ) {
            let mut now = start;
            let mut wheel = Wheel::new(now, if few { 20 } else { FEW + 1 });
            let mut knots = Knots::new(20);
            let mut set: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let mut order = 0;
            for (class, ahead, pause, what) in steps {
                let held = set.iter().find(|(_, other)| **other == class).map(|(at, _)| *at);
                if what == 0 {
                    wheel.cancel(&mut knots, class);
                    held.map(|at| set.remove(&at));
                } else {
                    let tick = (now >> TICK_SHIFT) + 1 + ahead.min(HORIZON / 2);
                    wheel.set(&mut knots, class, tick);
                    if held.is_none_or(|(old, _)| old != tick) {
                        held.map(|at| set.remove(&at));
                        order += 1;
                        set.insert((tick, order), class);
                    }
                }
                now += pause << TICK_SHIFT;
                let next = wheel.next_ns();
                let first = set.keys().next().map(|(tick, _)| tick << TICK_SHIFT);
                prop_assert_eq!(next.is_some(), first.is_some());
                prop_assert!(next <= first || next.is_none());
                while let Some((&at, &expected)) = set.iter().next() {
                    if at.0 > now >> TICK_SHIFT {
                        break;
                    }
                    prop_assert_eq!(wheel.ring(&mut knots, now), Some(expected));
                    set.remove(&at);
                }
                prop_assert_eq!(wheel.ring(&mut knots, now), None);
            }
        }
    }
}
