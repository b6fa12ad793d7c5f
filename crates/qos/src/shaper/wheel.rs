//! Timing wheel: tells when each class must be looked at.
//!
//! Time is divided into ticks of [`TICK_NS`]. The lowest wheel has a slot for each tick of the
//! present block of 1024 ticks (1 ms), the middle one a slot for each such block of the next 4.3 s,
//! the highest one a slot for each 4.3 s of the next 73 minutes. When the present enters a block of
//! 1 ms, its alarms are sorted into a plan, which is read from front to back; a block of 4.3 s is
//! spread over the wheel below. Bitmaps say which slots hold anything. Setting, moving and
//! cancelling an alarm take constant time, and so, amortised, does ringing.
//!
//! Alarms of one tick ring in the order in which they were set. That holds across the wheels: an
//! alarm for a far tick is spread or planned before another for the same tick can be set further
//! down.
//!
//! A slot's alarms are stored contiguously in chunks of a few cache lines, so the next ones to ring
//! can be prefetched. Removing an alarm leaves a hole, for which its class must know the alarm's
//! place; a class that promises never to remove it (a firm alarm) need not. Holes are closed when a
//! slot has `HOLES` more of them than alarms.

use super::prefetch::{fetch, with_capacity};
use super::ring::{Knots, NEVER, NONE};

/// Logarithm of a tick's length in nanoseconds.
pub(crate) const TICK_SHIFT: u32 = 10;
/// Nanoseconds of a tick.
pub const TICK_NS: u64 = 1 << TICK_SHIFT;

const LOW_BITS: u32 = 10;
const MIDDLE_BITS: u32 = 12;
const HIGH_BITS: u32 = 10;
/// An alarm further away rings at this distance, and its class sets it again.
const HORIZON: u64 = 1 << (LOW_BITS + MIDDLE_BITS + HIGH_BITS - 1);
/// Returns the first tick that is not before a time.
pub(crate) fn tick_from(ns: u64) -> u64 {
    ns.div_ceil(TICK_NS)
}

/// Alarms per chunk.
const CHUNK: usize = 31;
/// Places per chunk, of which the last is unused.
const PLACES: u32 = CHUNK as u32 + 1;
/// Holes that a slot may have in excess of its alarms.
const HOLES: u32 = 2 * PLACES;
/// Bit of an alarm's place: it is an index into the plan.
const PLANNED: u32 = 1 << 31;
/// Bit of a class's number: its alarm is firm.
const FIRM: u32 = 1 << 31;

#[derive(Clone, Copy)]
struct Alarm {
    /// May include [`FIRM`]; [`NONE`] for a hole.
    class: u32,
    /// The low 32 bits of its tick; the present determines the rest.
    tick: u32,
}

const HOLE: Alarm = Alarm {
    class: NONE,
    tick: 0,
};

/// Some alarms of one slot, in cache lines that are prefetched together.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Chunk {
    next: u32,
    /// Index of the first that has not rung,
    first: u16,
    /// and of the first free place.
    end: u16,
    alarms: [Alarm; CHUNK],
}

const _: () = assert!(size_of::<Chunk>() == 256);

impl Chunk {
    const EMPTY: Chunk = Chunk {
        alarms: [HOLE; CHUNK],
        next: NONE,
        first: 0,
        end: 0,
    };

    #[inline(always)]
    fn alarms(&self) -> &[Alarm] {
        &self.alarms[usize::from(self.first)..usize::from(self.end)]
    }
}

/// All chunks of the wheels.
struct Chunks {
    all: Vec<Chunk>,
    free: u32,
}

impl Chunks {
    #[inline]
    fn of(&mut self, chunk: u32) -> &mut Chunk {
        &mut self.all[chunk as usize]
    }

    #[inline]
    fn take(&mut self) -> u32 {
        if self.free == NONE {
            self.all.push(Chunk::EMPTY);
            return self.all.len() as u32 - 1;
        }
        let at = self.free;
        let chunk = &mut self.all[at as usize];
        self.free = chunk.next;
        (chunk.next, chunk.first, chunk.end) = (NONE, 0, 0);
        at
    }

    #[inline]
    fn give_back(&mut self, chunk: u32) {
        self.all[chunk as usize].next = self.free;
        self.free = chunk;
    }

    /// Frees this chunk and all behind it.
    #[inline]
    fn give_back_all(&mut self, mut chunk: u32) {
        while chunk != NONE {
            let next = self.all[chunk as usize].next;
            self.give_back(chunk);
            chunk = next;
        }
    }

    /// Calls `act` for each alarm of this chunk and those behind it, in order.
    #[inline(always)]
    fn each(&self, mut chunk: u32, mut act: impl FnMut(Alarm)) {
        while let Some(here) = self.all.get(chunk as usize) {
            if let Some(next) = self.all.get(here.next as usize) {
                fetch(next);
                // The first alarms of the chunk's other cache lines.
                next.alarms[7..].iter().step_by(8).for_each(fetch);
            }
            for alarm in here.alarms() {
                if alarm.class != NONE {
                    act(*alarm);
                }
            }
            chunk = here.next;
        }
    }
}

/// A slot's chunks, and how many alarms and holes they hold.
#[derive(Clone, Copy)]
struct Slot {
    head: u32,
    tail: u32,
    alarms: u32,
    holes: u32,
}

impl Slot {
    const EMPTY: Slot = Slot {
        head: NONE,
        tail: NONE,
        alarms: 0,
        holes: 0,
    };

    /// Appends an alarm; returns its place.
    #[inline(always)]
    fn push(&mut self, chunks: &mut Chunks, alarm: Alarm) -> u32 {
        self.alarms += 1;
        if let Some(chunk) = chunks.all.get_mut(self.tail as usize) {
            let at = chunk.end;
            if let Some(place) = chunk.alarms.get_mut(usize::from(at)) {
                *place = alarm;
                chunk.end = at + 1;
                return self.tail * PLACES + u32::from(at);
            }
        }
        self.push_to_fresh(chunks, alarm)
    }

    #[inline(never)]
    fn push_to_fresh(&mut self, chunks: &mut Chunks, alarm: Alarm) -> u32 {
        let fresh = chunks.take();
        match self.tail {
            NONE => self.head = fresh,
            tail => chunks.of(tail).next = fresh,
        }
        self.tail = fresh;
        let chunk = chunks.of(fresh);
        chunk.alarms[0] = alarm;
        chunk.end = 1;
        fresh * PLACES
    }

    /// Removes and returns the alarm that was set first. There must be one.
    #[inline]
    fn pop(&mut self, chunks: &mut Chunks) -> Alarm {
        loop {
            let chunk = chunks.of(self.head);
            if chunk.first == chunk.end {
                let next = chunk.next;
                chunks.give_back(self.head);
                self.head = next;
                continue;
            }
            let alarm = chunk.alarms[usize::from(chunk.first)];
            chunk.first += 1;
            if alarm.class == NONE {
                self.holes -= 1;
                continue;
            }
            self.alarms -= 1;
            return alarm;
        }
    }

    /// Closes the holes, keeping the order.
    #[cold]
    fn close_holes(&mut self, chunks: &mut Chunks, knots: &mut Knots) {
        let (mut write, mut count) = (self.head, 0);
        let mut read = self.head;
        while read != NONE {
            let chunk = *chunks.of(read);
            for alarm in chunk.alarms().iter().filter(|alarm| alarm.class != NONE) {
                if count == CHUNK {
                    let full = chunks.of(write);
                    (full.first, full.end) = (0, CHUNK as u16);
                    (write, count) = (full.next, 0);
                }
                chunks.of(write).alarms[count] = *alarm;
                if alarm.class & FIRM == 0 {
                    knots.of(alarm.class).alarm = write * PLACES + count as u32;
                }
                count += 1;
            }
            read = chunk.next;
        }
        let last = chunks.of(write);
        (last.first, last.end) = (0, count as u16);
        let rest = std::mem::replace(&mut last.next, NONE);
        chunks.give_back_all(rest);
        self.tail = write;
        self.holes = 0;
    }
}

/// One wheel: its slots, a bitmap of those that are not empty, and a bitmap of the bitmap's nonzero
/// words.
struct Slots {
    shift: u32,
    mask: u64,
    slots: Box<[Slot]>,
    filled: Box<[u64]>,
    words: u64,
}

impl Slots {
    fn new(shift: u32, bits: u32) -> Slots {
        let count = 1_usize << bits;
        Slots {
            shift,
            mask: (1 << bits) - 1,
            slots: vec![Slot::EMPTY; count].into(),
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

    /// Empties a slot and returns what it held.
    #[inline]
    fn empty(&mut self, slot: usize) -> Slot {
        self.filled[slot / 64] &= !(1 << (slot % 64));
        if self.filled[slot / 64] == 0 {
            self.words &= !(1 << (slot / 64));
        }
        std::mem::replace(&mut self.slots[slot], Slot::EMPTY)
    }

    /// Returns the first slot from `from` on that is not empty.
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

/// The three wheels, with at most one alarm per class.
pub(crate) struct Wheel {
    wheels: [Slots; 3],
    chunks: Chunks,
    /// The alarms of the present block that were set before it was entered, in the order in which
    /// they ring.
    plan: Vec<Alarm>,
    /// How many of them have rung. The next one is not a hole.
    rung: usize,
    /// Scratch space for sorting: how many there are of each tick.
    counts: Box<[u32; 1 << LOW_BITS]>,
    /// The tick that rings or rang last.
    present: u64,
    /// Nothing rings before this tick.
    quiet: u64,
}

impl Wheel {
    /// Makes a wheel for this many classes.
    pub fn new(now_ns: u64, classes: usize) -> Wheel {
        let slots = (1 << LOW_BITS) + (1 << MIDDLE_BITS) + (1 << HIGH_BITS);
        // The first and the last of a slot's chunks may be partly filled.
        let most = 2 * classes.div_ceil(CHUNK) + classes.min(slots) * (3 + HOLES as usize / CHUNK);
        Wheel {
            wheels: [
                Slots::new(0, LOW_BITS),
                Slots::new(LOW_BITS, MIDDLE_BITS),
                Slots::new(LOW_BITS + MIDDLE_BITS, HIGH_BITS),
            ],
            chunks: Chunks {
                all: with_capacity(most),
                free: NONE,
            },
            plan: with_capacity(classes),
            rung: 0,
            counts: Box::new([0; 1 << LOW_BITS]),
            present: now_ns >> TICK_SHIFT,
            quiet: NEVER,
        }
    }

    /// Returns which wheel an alarm of this tick belongs in.
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

    /// Returns the full tick of an alarm.
    #[inline]
    fn tick_of(&self, alarm: Alarm) -> u64 {
        self.present + u64::from(alarm.tick.wrapping_sub(self.present as u32))
    }

    #[inline]
    fn clamp(&self, tick: u64) -> u64 {
        tick.clamp(self.present, self.present + HORIZON)
    }

    /// Sets a class's alarm; one that is already set for this tick keeps its place.
    #[inline]
    pub fn set(&mut self, knots: &mut Knots, class: u32, tick: u64) {
        let tick = self.clamp(tick);
        if knots.of(class).tick == tick {
            return;
        }
        self.cancel(knots, class);
        let place = self.hang(class, tick);
        let knot = knots.of(class);
        (knot.tick, knot.alarm) = (tick, place);
    }

    /// Sets the alarm of a class that has none and will neither move nor cancel this one.
    #[inline]
    pub fn set_firm(&mut self, class: u32, tick: u64) {
        self.hang(class | FIRM, self.clamp(tick));
    }

    #[inline(always)]
    fn hang(&mut self, class: u32, tick: u64) -> u32 {
        let alarm = Alarm {
            class,
            tick: tick as u32,
        };
        // With constants known at compile time, it costs half.
        match self.level(tick) {
            0 => self.hang_in(0, LOW_BITS, 0, alarm, tick),
            1 => self.hang_in(1, MIDDLE_BITS, LOW_BITS, alarm, tick),
            _ => self.hang_in(2, HIGH_BITS, LOW_BITS + MIDDLE_BITS, alarm, tick),
        }
    }

    #[inline(always)]
    fn hang_in(&mut self, level: usize, bits: u32, shift: u32, alarm: Alarm, tick: u64) -> u32 {
        // A block is entered as a whole.
        self.quiet = self.quiet.min(tick >> shift << shift);
        let wheel = &mut self.wheels[level];
        let at = (tick >> shift) as usize & ((1 << bits) - 1);
        let slot = &mut wheel.slots[at];
        let place = slot.push(&mut self.chunks, alarm);
        if slot.alarms == 1 {
            wheel.fill(at);
        }
        place
    }

    /// Cancels a class's alarm, if it has one that is not firm.
    #[inline]
    pub fn cancel(&mut self, knots: &mut Knots, class: u32) {
        let knot = knots.of(class);
        let tick = std::mem::replace(&mut knot.tick, NEVER);
        if tick == NEVER {
            return;
        }
        let place = knot.alarm;
        if place & PLANNED != 0 {
            self.plan[(place & !PLANNED) as usize] = HOLE;
            return self.skip_holes();
        }
        // The present determines which wheel it is in: the present has not entered the alarm's
        // block since it was set, or the alarm would have been spread.
        let wheel = &mut self.wheels[self.level(tick)];
        let at = wheel.index(tick);
        let slot = &mut wheel.slots[at];
        slot.alarms -= 1;
        if slot.alarms == 0 {
            let slot = wheel.empty(at);
            return self.chunks.give_back_all(slot.head);
        }
        self.chunks.of(place / PLACES).alarms[(place % PLACES) as usize] = HOLE;
        slot.holes += 1;
        if slot.holes > slot.alarms + HOLES {
            slot.close_holes(&mut self.chunks, knots);
        }
    }

    /// Cancels all alarms, firm ones too.
    pub fn clear(&mut self, knots: &mut Knots) {
        for wheel in &mut self.wheels {
            while let Some(at) = wheel.next_filled(0) {
                let slot = wheel.empty(at);
                let mut chunk = slot.head;
                while chunk != NONE {
                    let Chunk { next, .. } = *self.chunks.of(chunk);
                    for alarm in self.chunks.of(chunk).alarms() {
                        if alarm.class & FIRM == 0 {
                            knots.of(alarm.class).tick = NEVER;
                        }
                    }
                    self.chunks.give_back(chunk);
                    chunk = next;
                }
            }
        }
        for alarm in &self.plan[self.rung..] {
            if alarm.class & FIRM == 0 {
                knots.of(alarm.class).tick = NEVER;
            }
        }
        self.plan.clear();
        self.rung = 0;
        self.quiet = NEVER;
    }

    /// Returns whether an alarm may be due. If none is, the present catches up.
    #[inline(always)]
    pub fn is_due(&mut self, now_ns: u64) -> bool {
        let now = now_ns >> TICK_SHIFT;
        let due = self.quiet <= now;
        if !due {
            self.present = self.present.max(now);
        }
        due
    }

    #[inline(always)]
    fn skip_holes(&mut self) {
        while self
            .plan
            .get(self.rung)
            .is_some_and(|alarm| alarm.class == NONE)
        {
            self.rung += 1;
        }
    }

    /// Returns the ticks of the next alarms in the present block: in the plan, and of those set
    /// since; [`NEVER`] if there is none.
    #[inline(always)]
    fn next_ticks(&self) -> (u64, u64) {
        let next = self.plan.get(self.rung);
        let planned = next.map_or(NEVER, |alarm| self.tick_of(*alarm));
        let low = &self.wheels[0];
        if low.words == 0 {
            return (planned, NEVER);
        }
        let from = self.present & low.mask;
        let set = low.next_filled(from as usize);
        let set = set.map_or(NEVER, |slot| self.present - from + slot as u64);
        (planned, set)
    }

    /// Returns the next class whose alarm is due, and removes the alarm.
    #[inline]
    pub fn ring(&mut self, knots: &mut Knots, now_ns: u64) -> Option<u32> {
        let now = now_ns >> TICK_SHIFT;
        loop {
            if !self.is_due(now_ns) || self.present > now {
                return None;
            }
            let (planned, set) = self.next_ticks();
            let tick = planned.min(set);
            if tick == NEVER {
                if self.enter_next_block(knots, now) {
                    continue;
                }
                return None;
            }
            self.quiet = tick;
            if tick > now {
                self.present = now;
                return None;
            }
            self.present = tick;
            // Of one tick, those in the plan were set first.
            let alarm = if planned == tick {
                let alarm = self.plan[self.rung];
                self.rung += 1;
                self.skip_holes();
                alarm
            } else {
                let low = &mut self.wheels[0];
                let at = low.index(tick);
                let slot = &mut low.slots[at];
                let alarm = slot.pop(&mut self.chunks);
                if slot.alarms == 0 {
                    let slot = low.empty(at);
                    self.chunks.give_back_all(slot.head);
                }
                alarm
            };
            if alarm.class & FIRM == 0 {
                knots.of(alarm.class).tick = NEVER;
            }
            return Some(alarm.class & !FIRM);
        }
    }

    /// Returns the class that rings after `others` more, if it is in the plan, and whether its
    /// alarm is firm.
    #[inline(always)]
    pub fn after(&self, others: usize) -> Option<(usize, bool)> {
        let alarm = self.plan.get(self.rung + others)?;
        let class = alarm.class & !FIRM;
        Some((class as usize, class != alarm.class))
    }

    /// Enters the next block that holds alarms, if it has begun by now, and spreads its alarms.
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
        let head = wheel.empty(slot).head;
        if level == 1 {
            self.make_plan(knots, head);
        } else {
            self.spread(knots, head);
        }
        self.chunks.give_back_all(head);
        true
    }

    /// Sorts the alarms of a new block by tick, and those of one tick in the order of setting. The
    /// old plan must be used up.
    fn make_plan(&mut self, knots: &mut Knots, head: u32) {
        let mask = (1 << LOW_BITS) - 1;
        let mut count = 0;
        self.chunks.each(head, |alarm| {
            self.counts[(alarm.tick & mask) as usize] += 1;
            count += 1;
        });
        let mut before = 0;
        for count in self.counts.iter_mut() {
            before += std::mem::replace(count, before);
        }
        self.plan.clear();
        self.plan.resize(count, HOLE);
        self.rung = 0;
        self.chunks.each(head, |alarm| {
            let place = &mut self.counts[(alarm.tick & mask) as usize];
            self.plan[*place as usize] = alarm;
            if alarm.class & FIRM == 0 {
                knots.of(alarm.class).alarm = PLANNED | *place;
            }
            *place += 1;
        });
        self.counts.fill(0);
    }

    /// Moves the alarms of a block into the wheel below.
    fn spread(&mut self, knots: &mut Knots, mut chunk: u32) {
        while chunk != NONE {
            let Chunk { next, .. } = *self.chunks.of(chunk);
            for at in 0..CHUNK {
                let alarm = self.chunks.of(chunk).alarms().get(at).copied();
                let Some(alarm) = alarm.filter(|alarm| alarm.class != NONE) else {
                    continue;
                };
                let place = self.hang(alarm.class, self.tick_of(alarm));
                if alarm.class & FIRM == 0 {
                    knots.of(alarm.class).alarm = place;
                }
            }
            chunk = next;
        }
    }

    /// Returns the wheel and first tick of the next block of the upper wheels that holds alarms.
    fn next_block(&self) -> Option<(usize, u64)> {
        let middle = &self.wheels[1];
        let at = middle.index(self.present);
        if let Some(slot) = middle.next_filled(at + 1) {
            let base = self.present >> (LOW_BITS + MIDDLE_BITS) << (LOW_BITS + MIDDLE_BITS);
            return Some((1, base + ((slot as u64) << LOW_BITS)));
        }
        // The highest wheel wraps around.
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

    /// Returns a time before which nothing rings, exact within the present block of 1 ms; None if
    /// nothing is set.
    pub fn next_ns(&self) -> Option<u64> {
        let (planned, set) = self.next_ticks();
        let tick = match planned.min(set) {
            NEVER => self.next_block()?.1,
            tick => tick,
        };
        Some(tick << TICK_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Number of classes; those from [`LOOSE`] on have firm alarms.
    const CLASSES: u32 = 20;
    const LOOSE: u32 = 14;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Compares the wheel with a sorted list of (tick, order of setting).
        #[test]
        fn rings_like_a_sorted_list(
            start in prop_oneof![Just(0_u64), 0..1_u64 << 44],
            steps in prop::collection::vec((0..CLASSES, prop_oneof![0..3_u64, 0..2000_u64, 0..3_000_000_u64, 0..1_u64 << 33], prop_oneof![4 => 0..2_u64, 1 => 0..50_u64, 1 => 0..5000_u64, 1 => 0..1_u64 << 32], 0..8_u8), 1..400),
        ) {
            let mut now = start;
            let mut wheel = Wheel::new(now, CLASSES as usize);
            let mut knots = Knots::new(CLASSES as usize);
            let mut set: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let mut order = 0;
            for (class, ahead, pause, what) in steps {
                let held = set.iter().find(|(_, other)| **other == class).map(|(at, _)| *at);
                let tick = (now >> TICK_SHIFT) + 1 + ahead.min(HORIZON / 2);
                if class >= LOOSE {
                    if held.is_none() {
                        wheel.set_firm(class, tick);
                        order += 1;
                        set.insert((tick, order), class);
                    }
                } else if what == 0 {
                    wheel.cancel(&mut knots, class);
                    held.map(|at| set.remove(&at));
                } else {
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
            wheel.clear(&mut knots);
            prop_assert_eq!(wheel.next_ns(), None);
            prop_assert_eq!(wheel.ring(&mut knots, u64::MAX >> 1), None);
            (0..LOOSE).for_each(|class| assert_eq!(knots.of(class).tick, NEVER));
        }
    }

    /// Alarms that are moved again and again leave holes, which are closed: the wheel needs no more
    /// memory than it has reserved, and rings in order.
    #[test]
    fn holes_are_closed() {
        let (classes, moves) = (100, 50_000_u64);
        let mut wheel = Wheel::new(0, classes);
        let mut knots = Knots::new(classes);
        let room = wheel.chunks.all.capacity();
        let mut last = BTreeMap::new();
        // Within a few blocks of the middle wheel.
        for step in 0..moves {
            let class = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            let class = (class % classes as u64) as u32;
            let tick = 2000 + 700 * (step % 5) + step % 3;
            if knots.of(class).tick != tick {
                last.insert(class, (tick, step));
            }
            wheel.set(&mut knots, class, tick);
        }
        assert!(last.len() == classes && wheel.chunks.all.len() < room);
        let mut expected: Vec<_> = last.into_iter().map(|(class, at)| (at, class)).collect();
        expected.sort_unstable();
        for (_, class) in expected {
            assert_eq!(wheel.ring(&mut knots, 10_000 << TICK_SHIFT), Some(class));
        }
        assert_eq!(wheel.ring(&mut knots, 10_000 << TICK_SHIFT), None);
    }
}
