//! What has arrived: losses, duplicates and reordering, in bounded memory.

use crate::histogram::Histogram;
use crate::report::Arrived;

/// How many sequence numbers behind the greatest are told apart (512 KiB of bits): at 10 million
/// packets a second, 0.4 s.
pub const WINDOW: u64 = 1 << 22;
/// Most flows whose last frames are remembered (16 MiB). No flow has the number 2^32 - 1.
pub const FLOWS: usize = 1 << 21;

/// What became of an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The first with its sequence number.
    First,
    /// One that came before.
    Duplicate,
    /// So far behind that it is not known which; it is taken for the first.
    Stale,
}

/// The sequence numbers that have arrived.
#[derive(Clone, Debug)]
pub struct Window {
    bits: Vec<u64>,
    /// One more than the greatest number that has arrived; 0: none.
    end: u64,
    /// The greatest number that is too far behind to arrive still, and has not.
    missed: Option<u64>,
}

impl Window {
    /// Makes a window in which nothing has arrived.
    pub fn new() -> Window {
        Window {
            bits: vec![0; (WINDOW / 64) as usize],
            end: 0,
            missed: None,
        }
    }

    /// Returns the greatest number below `sent` that has not arrived; None if all have.
    pub fn last_missing(&self, sent: u64) -> Option<u64> {
        if sent > self.end {
            return Some(sent - 1);
        }
        let is_missing = |number: &u64| {
            let place = (number % WINDOW) as usize;
            self.bits[place / 64] & (1 << (place % 64)) == 0
        };
        let oldest = self.end.saturating_sub(WINDOW);
        let known = (oldest..sent).rev().find(is_missing);
        known.or(self.missed.filter(|number| *number < sent))
    }

    /// Returns the whole sequence number of which these are the least significant 32 bits: the one
    /// nearest to the greatest that has arrived.
    #[inline(always)]
    pub fn whole(&self, low: u32) -> u64 {
        let distance = low.wrapping_sub(self.end as u32) as i32;
        let near = self.end.wrapping_add(distance as i64 as u64);
        // Before the first wrap there is nothing below 0.
        match near > self.end && distance < 0 {
            true => u64::from(low),
            false => near,
        }
    }

    /// Notes that a number has arrived.
    #[inline(always)]
    pub fn arrive(&mut self, number: u64) -> Arrival {
        let place = (number % WINDOW) as usize;
        let bit = 1 << (place % 64);
        if number < self.end {
            if self.end - number > WINDOW {
                return Arrival::Stale;
            }
            let word = &mut self.bits[place / 64];
            let known = *word & bit != 0;
            *word |= bit;
            return match known {
                true => Arrival::Duplicate,
                false => Arrival::First,
            };
        }
        if number > self.end {
            self.skip(number);
        }
        // The place may still have the bit of the number one window before.
        let word = &mut self.bits[place / 64];
        if *word & bit == 0 && number >= WINDOW {
            self.missed = Some(number - WINDOW);
        }
        *word |= bit;
        self.end = number + 1;
        Arrival::First
    }

    /// Clears the places of numbers from `end` up to `number`, which have not arrived.
    #[cold]
    fn skip(&mut self, number: u64) {
        if number - self.end >= WINDOW {
            // The number one window before is among those that have not arrived.
            self.bits.fill(0);
            return;
        }
        let mut at = self.end;
        while at < number {
            let place = (at % WINDOW) as usize;
            if at.is_multiple_of(64) && number - at >= 64 {
                let missing = !self.bits[place / 64];
                if missing != 0 && at >= WINDOW {
                    let last = 63 - u64::from(missing.leading_zeros());
                    self.missed = Some(at + last - WINDOW);
                }
                self.bits[place / 64] = 0;
                at += 64;
            } else {
                let bit = 1 << (place % 64);
                if self.bits[place / 64] & bit == 0 && at >= WINDOW {
                    self.missed = Some(at - WINDOW);
                }
                self.bits[place / 64] &= !bit;
                at += 1;
            }
        }
    }
}

impl Default for Window {
    fn default() -> Window {
        Window::new()
    }
}

/// The last frame of each flow.
#[derive(Clone, Debug)]
pub struct Order {
    /// A flow (32 bits) and the greatest sequence number of it that has arrived (the least
    /// significant 32 bits), complemented, so that empty places are zeroes that need no memory yet.
    /// A flow that finds another one in its place takes it, so beyond [`FLOWS`] some reordering is
    /// not seen, but none is invented.
    last: Vec<u64>,
}

impl Order {
    /// Makes one for so many flows.
    pub fn new(flows: u64) -> Order {
        let places = usize::try_from(flows).unwrap_or(FLOWS).clamp(1, FLOWS);
        Order {
            last: vec![0; places.next_power_of_two()],
        }
    }

    /// Notes that a frame of a flow has arrived; returns whether a later one of the flow had come
    /// before (RFC 4737, section 3.3).
    #[inline(always)]
    pub fn arrive(&mut self, flow: u64, number: u64) -> bool {
        let place = flow as usize & (self.last.len() - 1);
        let last = !self.last[place];
        if last >> 32 == flow & 0xffff_ffff && (number as u32).wrapping_sub(last as u32) as i32 <= 0
        {
            return true;
        }
        self.last[place] = !(flow << 32 | number & 0xffff_ffff);
        false
    }
}

/// What has arrived of one stream at one sink.
#[derive(Clone, Debug)]
pub struct Ledger {
    window: Window,
    order: Order,
    /// Of frames on whose way the generator ran all the time.
    latency: Histogram,
    /// Of the others.
    disturbed: Histogram,
    arrivals: Histogram,
    last: Option<u64>,
    /// Frames, each counted once.
    pub packets: u64,
    /// Bytes of all frames, also of those that came again.
    pub bytes: u64,
    /// Frames that came again.
    pub duplicates: u64,
    /// Frames that came after a later one of their flow.
    pub reordered: u64,
    /// Frames of which it is not known whether they came before.
    pub stale: u64,
}

impl Ledger {
    /// Makes an empty one for a stream of so many flows.
    pub fn new(flows: u64) -> Ledger {
        Ledger {
            window: Window::new(),
            order: Order::new(flows),
            latency: Histogram::new(),
            disturbed: Histogram::new(),
            arrivals: Histogram::new(),
            last: None,
            packets: 0,
            bytes: 0,
            duplicates: 0,
            reordered: 0,
            stale: 0,
        }
    }

    /// Returns the whole sequence number; see [`Window::whole`].
    #[inline(always)]
    pub fn whole(&self, low: u32) -> u64 {
        self.window.whole(low)
    }

    /// Returns the greatest number that has not arrived; see [`Window::last_missing`].
    pub fn last_missing(&self, sent: u64) -> Option<u64> {
        self.window.last_missing(sent)
    }

    /// Notes that a number has arrived that does not count, so that those behind it are understood.
    #[inline(always)]
    pub fn pass(&mut self, number: u64, flow: u64) {
        self.window.arrive(number);
        self.order.arrive(flow, number);
    }

    /// Notes an arrival at `now` of a frame that was due at `due`, nanoseconds. `until` is when the
    /// generator's last stop ended.
    #[inline(always)]
    pub fn arrive(
        &mut self,
        number: u64,
        flow: u64,
        length: usize,
        (due, now): (u64, u64),
        until: u64,
    ) {
        self.bytes += length as u64;
        match self.window.arrive(number) {
            Arrival::First => {}
            Arrival::Stale => self.stale += 1,
            Arrival::Duplicate => {
                self.duplicates += 1;
                return;
            }
        }
        self.packets += 1;
        self.reordered += u64::from(self.order.arrive(flow, number));
        let histogram = match due < until {
            true => &mut self.disturbed,
            false => &mut self.latency,
        };
        histogram.add(now.saturating_sub(due), 1);
        self.note_arrival(now);
    }

    /// Notes an arrival of a frame without a number; `is_first` tells it from one that came again.
    pub fn arrive_bare(&mut self, length: usize, now: u64, is_first: bool) {
        self.bytes += length as u64;
        match is_first {
            true => self.packets += 1,
            false => self.duplicates += 1,
        }
        self.note_arrival(now);
    }

    #[inline(always)]
    fn note_arrival(&mut self, now: u64) {
        if let Some(last) = self.last {
            self.arrivals.add(now.saturating_sub(last), 1);
        }
        self.last = Some(now);
    }

    /// Returns what a report says of it, where so many frames were sent.
    pub fn report(&self, sent: u64) -> Arrived {
        let disturbed = self.disturbed.count();
        let mut latency = self.disturbed.clone();
        latency.add_all(&self.latency);
        Arrived {
            packets: self.packets,
            lost: sent.saturating_sub(self.packets),
            duplicates: self.duplicates,
            reordered: self.reordered,
            stale: self.stale,
            latency: latency.percentiles(),
            disturbed,
            undisturbed: (disturbed > 0).then(|| self.latency.percentiles()),
            arrivals: self.arrivals.percentiles(),
            steps: Vec::new(),
            last_lost_ns: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    /// What happens to one frame on its way.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Arrives,
        Lost,
        Twice,
        /// Arrives so many places later.
        Late(u8),
    }

    fn fates() -> impl Strategy<Value = Vec<Fate>> {
        let fate = prop_oneof![
            10 => Just(Fate::Arrives),
            1 => Just(Fate::Lost),
            1 => Just(Fate::Twice),
            2 => any::<u8>().prop_map(Fate::Late),
        ];
        proptest::collection::vec(fate, 0..600)
    }

    proptest! {
        #[test]
        fn counts_are_those_of_an_obvious_reference(
            fates in fates(), start in prop_oneof![Just(0_u64), Just((1 << 32) - 100)], flows in 1_u64..9,
        ) {
            let mut on_the_way = Vec::new();
            for (n, fate) in fates.iter().enumerate() {
                let number = start + n as u64;
                match fate {
                    Fate::Arrives => on_the_way.push((n, number)),
                    Fate::Lost => {}
                    Fate::Twice => on_the_way.extend([(n, number), (n + 3, number)]),
                    Fate::Late(by) => on_the_way.push((n + usize::from(*by), number)),
                }
            }
            on_the_way.sort_by_key(|(place, _)| *place);
            let mut ledger = Ledger::new(flows);
            if start > 0 {
                ledger.pass(start - 1, 0);
            }
            let (mut seen, mut last) = (HashSet::new(), HashMap::<u64, u64>::new());
            let (mut duplicates, mut reordered) = (0, 0);
            for (time, &(_, number)) in on_the_way.iter().enumerate() {
                let flow = number % flows;
                let whole = ledger.whole(number as u32);
                prop_assert_eq!(whole, number);
                let due = time as u64;
                ledger.arrive(whole, flow, 60, (due, due + 5), 100);
                if !seen.insert(number) {
                    duplicates += 1;
                    continue;
                }
                let newest = last.entry(flow).or_insert(number);
                reordered += u64::from(number < *newest);
                *newest = number.max(*newest);
            }
            let report = ledger.report(fates.len() as u64);
            prop_assert_eq!(report.packets, seen.len() as u64);
            prop_assert_eq!(report.lost, (fates.len() - seen.len()) as u64);
            prop_assert_eq!(report.duplicates, duplicates);
            prop_assert_eq!(report.reordered, reordered);
            prop_assert_eq!(report.stale, 0);
            // Nothing is known of what was before the start.
            let sent = start + fates.len() as u64;
            let missing = (start..sent).rev().find(|number| !seen.contains(number));
            let found = ledger.last_missing(sent).filter(|number| *number >= start);
            prop_assert_eq!(found, missing);
            // Each is in one of the two; the stop ended at 100.
            let clear = report.undisturbed.as_ref().unwrap_or(&report.latency);
            prop_assert_eq!(report.latency.count, report.packets);
            prop_assert_eq!(clear.count + report.disturbed, report.packets);
            prop_assert!(report.disturbed <= 100);
            prop_assert_eq!(ledger.bytes, 60 * on_the_way.len() as u64);
        }

        /// Gaps of any length leave nothing of earlier windows behind.
        #[test]
        fn gaps_are_cleared(gaps in proptest::collection::vec(
            prop_oneof![1_u64..3, 60_u64..200, WINDOW - 70..WINDOW + 70], 1..20,
        )) {
            let mut window = Window::new();
            let (mut number, mut seen) = (0, HashSet::new());
            for gap in gaps {
                number += gap;
                prop_assert_eq!(window.arrive(number), Arrival::First);
                seen.insert(number);
                prop_assert_eq!(window.last_missing(number + 2), Some(number + 1));
                // None is looked for that may have been forgotten.
                if let Some(missing) = window.last_missing(number + 1) {
                    prop_assert!(!seen.contains(&missing), "{}", missing);
                    let later = (missing + 1..=number).rev().take(300);
                    prop_assert!(later.clone().all(|later| seen.contains(&later)));
                }
                let behind = [1, 2, 63, 64, 65, gap.saturating_sub(1), gap];
                for back in behind.into_iter().filter(|&back| back <= number && back < WINDOW) {
                    let wanted = match seen.insert(number - back) {
                        true => Arrival::First,
                        false => Arrival::Duplicate,
                    };
                    prop_assert_eq!(window.arrive(number - back), wanted, "{} - {}", number, back);
                }
            }
        }
    }

    #[test]
    fn stale_frames_are_told_from_duplicates() {
        let mut window = Window::new();
        assert_eq!(window.arrive(WINDOW), Arrival::First);
        assert_eq!(window.arrive(0), Arrival::Stale);
        assert_eq!(window.arrive(1), Arrival::First);
        assert_eq!(window.arrive(1), Arrival::Duplicate);
    }

    /// What was lost long ago is still known when all that came after it arrived.
    #[test]
    fn the_last_that_is_missing_is_known_for_ever() {
        for lost in [3, 64, 127, 5000] {
            for step in [1, 2] {
                let mut window = Window::new();
                let end = lost + WINDOW + 3;
                for number in (0..end).filter(|number| *number != lost) {
                    // In pairs of which the later comes first: gaps that are filled.
                    let number = match (step, number ^ 1) {
                        (2, other) if other != lost && other < end => other,
                        _ => number,
                    };
                    window.arrive(number);
                }
                assert_eq!(window.last_missing(end), Some(lost), "{lost} {step}");
            }
        }
        // A gap of more than a window.
        let mut window = Window::new();
        window.arrive(0);
        window.arrive(2 * WINDOW);
        for number in WINDOW + 1..2 * WINDOW {
            window.arrive(number);
        }
        assert_eq!(window.last_missing(2 * WINDOW + 1), Some(WINDOW));
        assert_eq!(Window::new().last_missing(0), None);
    }

    #[test]
    fn flows_in_one_place_invent_no_reordering() {
        let flows = FLOWS as u64;
        let mut order = Order::new(2 * flows);
        assert!(!order.arrive(flows + 7, 100));
        assert!(!order.arrive(7, 50), "another flow");
        assert!(!order.arrive(flows + 7, 101));
        assert!(order.arrive(flows + 7, 99));
    }
}
