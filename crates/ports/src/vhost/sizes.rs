//! Packets by size, as Open vSwitch counts those of guests.
//!
//! A burst's packets are counted in a register, which has nine bits for each class ([`Tally`]):
//! that takes some four instructions for each packet, whatever its size, and nothing in memory is
//! written. Only the sums of a burst are added to the port's counts.

use packet::io::BURST;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of classes.
const CLASSES: usize = 7;
/// The longest packet of each class but the last, in bytes.
const BOUNDS: [usize; CLASSES - 1] = [64, 127, 255, 511, 1023, 1522];
/// Lengths from this on are of the last class.
const LONG: usize = 1523;
/// The classes' names in `Interface.statistics`, behind the direction.
const NAMES: [&str; CLASSES] = [
    "1_to_64_packets",
    "65_to_127_packets",
    "128_to_255_packets",
    "256_to_511_packets",
    "512_to_1023_packets",
    "1024_to_1522_packets",
    "1523_to_max_packets",
];
/// Bits of a class in a tally.
const BITS: usize = 9;
/// Most packets of one tally.
pub(super) const MOST: usize = (1 << BITS) - 1;
const _: () = assert!(BURST <= MOST && BITS * CLASSES <= 64);

/// Where the class of each length begins in a tally.
const PLACES: [u8; LONG + 1] = {
    let mut places = [0; LONG + 1];
    let (mut length, mut class) = (0, 0);
    while length <= LONG {
        if class < BOUNDS.len() && length > BOUNDS[class] {
            class += 1;
        }
        places[length] = (class * BITS) as u8;
        length += 1;
    }
    places
};

/// Counts of at most [`MOST`] packets by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally(u64);

impl Tally {
    /// No packet.
    pub const NONE: Tally = Tally(0);

    /// Counts a packet of this length.
    #[inline(always)]
    pub fn add(&mut self, length: usize) {
        self.0 += 1_u64 << PLACES[length.min(LONG)];
    }

    /// Adds another's counts.
    #[inline(always)]
    pub fn join(&mut self, other: Tally) {
        self.0 += other.0;
    }
}

/// Counts of packets by size; one thread at a time counts, and others read.
#[derive(Default)]
pub(super) struct Sizes([AtomicU64; CLASSES]);

impl Sizes {
    /// Adds a burst's counts. Most bursts are of few classes.
    #[inline(always)]
    pub fn add(&self, Tally(mut counts): Tally) {
        while counts != 0 {
            let class = counts.trailing_zeros() as usize / BITS;
            let Some(counter) = self.0.get(class) else {
                break;
            };
            let place = class * BITS;
            let count = counts >> place & MOST as u64;
            let sum = counter.load(Ordering::Relaxed).wrapping_add(count);
            counter.store(sum, Ordering::Relaxed);
            counts &= !((MOST as u64) << place);
        }
    }

    /// Takes one packet back that has been counted, or will be.
    #[cold]
    pub fn take_back(&self, length: usize) {
        let class = usize::from(PLACES[length.min(LONG)]) / BITS;
        let counter = &self.0[class];
        let less = counter.load(Ordering::Relaxed).wrapping_sub(1);
        counter.store(less, Ordering::Relaxed);
    }

    /// Returns the counts' names, for packets received (`rx`) or sent (`tx`), and the sums.
    pub fn named<'s>(
        way: &str,
        all: impl Iterator<Item = &'s Sizes> + Clone,
    ) -> impl Iterator<Item = (String, u64)> {
        (NAMES.iter().enumerate()).map(move |(class, name)| {
            let counts = all.clone().map(|one| one.0[class].load(Ordering::Relaxed));
            (format!("{way}_{name}"), counts.sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each length is counted in the class whose name has it, at the bounds, too, and no burst of
    /// them disturbs another class.
    #[test]
    fn packets_are_counted_in_the_class_that_its_name_says() {
        let lengths: Vec<usize> = (1..4000).chain([65_535, 1 << 20]).collect();
        let sizes = Sizes::default();
        for burst in lengths.chunks(MOST) {
            let mut tally = Tally::NONE;
            burst.iter().for_each(|length| tally.add(*length));
            sizes.add(tally);
        }
        let mut all = Tally::NONE;
        (0..MOST).for_each(|_| all.add(64));
        sizes.add(all);
        for (name, count) in Sizes::named("rx", [&sizes].into_iter()) {
            let class = name.strip_prefix("rx_").unwrap();
            let (least, most) = class
                .strip_suffix("_packets")
                .unwrap()
                .split_once("_to_")
                .unwrap();
            let least: usize = least.parse().unwrap();
            let most: usize = most.parse().unwrap_or(usize::MAX);
            let within = lengths
                .iter()
                .filter(|length| (least..=most).contains(*length));
            let more = if least == 1 { MOST } else { 0 };
            assert_eq!(count, (within.count() + more) as u64, "{name}");
        }
    }
}
