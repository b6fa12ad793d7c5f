//! Timing wheel: which class is to be looked at when.
//!
//! Time is cut into ticks of [`TICK_NS`]. The lowest wheel has a slot for each tick of the block of 1024 ticks (1 ms) in which the present lies, the middle one a slot for each
//! such block of the next 4.3 s, the highest one for each 4.3 s of the next 73 minutes. When the present enters a block, the block's slot is spread over the wheel below. Bitmaps say which
//! slots hold anything. Setting, moving and cancelling an alarm take the same time however many there are, and so, averaged, does ringing.
//!
//! Alarms of one tick ring in the order in which they were set. That holds across the wheels: an alarm for a far tick is spread before any other for this tick can be set further down.

/// Nanoseconds of a tick, as a shift.
pub(crate) const TICK_SHIFT: u32 = 10;
/// Nanoseconds of a tick.
pub const TICK_NS: u64 = 1 << TICK_SHIFT;

pub(crate) const NONE: u32 = u32::MAX;

const LOW_BITS: u32 = 10;
const MIDDLE_BITS: u32 = 12;
const HIGH_BITS: u32 = 10;
/// An alarm further away rings at this distance, and its class looks again.
const HORIZON: u64 = 1 << (LOW_BITS + MIDDLE_BITS + HIGH_BITS - 1);
/// No tick.
const NEVER: u64 = u64::MAX;

/// The first tick that is not before a time.
pub(crate) fn tick_from(ns: u64) -> u64 {
    ns.div_ceil(TICK_NS)
}

#[derive(Clone, Copy)]
struct Alarm {
    next: u32,
    prev: u32,
    tick: u64,
}

/// One wheel: its slots' lists and a bitmap of those that are not empty, with a bitmap of the bitmap's words.
struct Slots {
    shift: u32,
    mask: u64,
    heads: Box<[u32]>,
    tails: Box<[u32]>,
    filled: Box<[u64]>,
    words: u64,
}

impl Slots {
    fn new(shift: u32, bits: u32) -> Slots {
        let count = 1_usize << bits;
        Slots {
            shift,
            mask: (1 << bits) - 1,
            heads: vec![NONE; count].into(),
            tails: vec![NONE; count].into(),
            filled: vec![0; count / 64].into(),
            words: 0,
        }
    }

    #[inline]
    fn index(&self, tick: u64) -> usize {
        (tick >> self.shift & self.mask) as usize
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

/// The three wheels, with at most one alarm for each class.
pub(crate) struct Wheel {
    alarms: Box<[Alarm]>,
    wheels: [Slots; 3],
    /// The tick being rung, or the last one that was.
    present: u64,
}

impl Wheel {
    pub fn new(classes: usize, now_ns: u64) -> Wheel {
        let alarm = Alarm {
            next: NONE,
            prev: NONE,
            tick: NEVER,
        };
        Wheel {
            alarms: vec![alarm; classes].into(),
            wheels: [
                Slots::new(0, LOW_BITS),
                Slots::new(LOW_BITS, MIDDLE_BITS),
                Slots::new(LOW_BITS + MIDDLE_BITS, HIGH_BITS),
            ],
            present: now_ns >> TICK_SHIFT,
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
    pub fn set(&mut self, class: u32, tick: u64) {
        let tick = tick.clamp(self.present, self.present + HORIZON);
        if self.alarms[class as usize].tick == tick {
            return;
        }
        self.cancel(class);
        self.alarms[class as usize].tick = tick;
        self.hang(class, tick);
    }

    #[inline]
    fn hang(&mut self, class: u32, tick: u64) {
        let wheel = &mut self.wheels[self.level(tick)];
        let slot = wheel.index(tick);
        let tail = std::mem::replace(&mut wheel.tails[slot], class);
        if tail == NONE {
            wheel.heads[slot] = class;
            wheel.fill(slot);
        } else {
            self.alarms[tail as usize].next = class;
        }
        let alarm = &mut self.alarms[class as usize];
        (alarm.prev, alarm.next) = (tail, NONE);
    }

    /// Takes a class's alarm away, if it has one.
    #[inline]
    pub fn cancel(&mut self, class: u32) {
        let Alarm { next, prev, tick } = self.alarms[class as usize];
        if tick == NEVER {
            return;
        }
        self.alarms[class as usize].tick = NEVER;
        // Where it hangs follows from the present, which has not entered the alarm's block since, or it would have been spread.
        let wheel = &mut self.wheels[self.level(tick)];
        let slot = wheel.index(tick);
        if prev == NONE {
            wheel.heads[slot] = next;
        } else {
            self.alarms[prev as usize].next = next;
        }
        if next == NONE {
            wheel.tails[slot] = prev;
        } else {
            self.alarms[next as usize].prev = prev;
        }
        if prev == NONE && next == NONE {
            wheel.empty(slot);
        }
    }

    /// The next class whose alarm has come, its alarm taken away.
    #[inline]
    pub fn ring(&mut self, now_ns: u64) -> Option<u32> {
        let now = now_ns >> TICK_SHIFT;
        loop {
            if self.present > now {
                return None;
            }
            let from = (self.present & self.wheels[0].mask) as usize;
            if let Some(slot) = self.wheels[0].next_filled(from) {
                let tick = self.present - from as u64 + slot as u64;
                if tick > now {
                    self.present = now;
                    return None;
                }
                self.present = tick;
                let class = self.wheels[0].heads[slot];
                self.cancel(class);
                return Some(class);
            }
            if !self.enter_next_block(now) {
                return None;
            }
        }
    }

    /// Goes on to the next block that holds alarms, if it has begun by now, and spreads it.
    #[inline(never)]
    fn enter_next_block(&mut self, now: u64) -> bool {
        let Some((level, start)) = self.next_block() else {
            // Nothing is set: the present may catch up.
            self.present = now;
            return false;
        };
        if start > now {
            self.present = now;
            return false;
        }
        self.present = start;
        let wheel = &mut self.wheels[level];
        let slot = wheel.index(start);
        let mut class = std::mem::replace(&mut wheel.heads[slot], NONE);
        wheel.tails[slot] = NONE;
        wheel.empty(slot);
        while class != NONE {
            let Alarm { next, tick, .. } = self.alarms[class as usize];
            self.hang(class, tick);
            class = next;
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

    /// The class whose alarm is likely to ring next, for fetching what it needs.
    #[inline]
    pub fn upcoming(&self) -> Option<u32> {
        let low = &self.wheels[0];
        let slot = low.next_filled((self.present & low.mask) as usize)?;
        Some(low.heads[slot])
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
            start in prop_oneof![Just(0_u64), 0..1_u64 << 44],
            steps in prop::collection::vec((0..20_u32, prop_oneof![0..3_u64, 0..2000_u64, 0..3_000_000_u64, 0..1_u64 << 33], prop_oneof![0..2_u64, 0..50_u64, 0..5000_u64, 0..1_u64 << 32], 0..8_u8), 1..200),
        ) {
            let mut now = start;
            let mut wheel = Wheel::new(20, now);
            let mut set: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let mut order = 0;
            for (class, ahead, pause, what) in steps {
                let held = set.iter().find(|(_, other)| **other == class).map(|(at, _)| *at);
                if what == 0 {
                    wheel.cancel(class);
                    held.map(|at| set.remove(&at));
                } else {
                    let tick = (now >> TICK_SHIFT) + 1 + ahead.min(HORIZON / 2);
                    wheel.set(class, tick);
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
                    prop_assert_eq!(wheel.ring(now), Some(expected));
                    set.remove(&at);
                }
                prop_assert_eq!(wheel.ring(now), None);
            }
        }
    }
}
