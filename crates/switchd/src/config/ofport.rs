//! OpenFlow port numbers.
//!
//! A port gets the number that the user asked for, or that it had before, if it is free. Otherwise
//! numbers are assigned in turn, from 1 up to 32767 and round again. The number of a port that was
//! removed is not reused for an hour: rules written for the old port should not match a new one.

use std::collections::HashMap;

/// The number of a bridge's own port (OFPP_LOCAL as OpenFlow 1.0 writes it).
pub const LOCAL: u16 = 65534;

/// Numbers from here on are reserved (OFPP_MAX).
pub const END: u16 = 0xff00;

/// Automatic numbers are below this; the rest are for users and controllers.
const AUTOMATIC_END: u16 = 32768;

/// How long a freed number is not reused, ms.
const REST: u64 = 60 * 60 * 1000;

/// A number's history: in use, or when it was given back (ms).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Usage {
    Used,
    Freed(u64),
}

/// Allocator of one bridge's port numbers.
#[derive(Clone, Debug, Default)]
pub struct Allocator {
    last: u16,
    usage: HashMap<u16, Usage>,
}

impl Allocator {
    /// Takes a number: `preferred` if it is usable and free, else the next in turn. `now` is a
    /// clock in ms. Returns none when every number is in use.
    pub fn allocate(&mut self, preferred: Option<u16>, now: u64) -> Option<u16> {
        let number = match preferred {
            Some(number) if (1..END).contains(&number) && !self.is_used(number) => number,
            _ => self.next(now)?,
        };
        self.usage.insert(number, Usage::Used);
        Some(number)
    }

    /// Gives a number back. `now` is a clock in ms.
    pub fn release(&mut self, number: u16, now: u64) {
        if let Some(usage) = self.usage.get_mut(&number) {
            *usage = Usage::Freed(now);
        }
    }

    /// Returns whether a port has the number.
    pub fn is_used(&self, number: u16) -> bool {
        self.usage.get(&number) == Some(&Usage::Used)
    }

    fn next(&mut self, now: u64) -> Option<u16> {
        let mut longest_free: Option<(u64, u16)> = None;
        for _ in 1..AUTOMATIC_END {
            self.last = if self.last + 1 >= AUTOMATIC_END {
                1
            } else {
                self.last + 1
            };
            match self.usage.get(&self.last) {
                None => return Some(self.last),
                Some(Usage::Used) => {}
                Some(Usage::Freed(since)) if now.saturating_sub(*since) >= REST => {
                    return Some(self.last);
                }
                Some(Usage::Freed(since)) => {
                    longest_free = Some(
                        longest_free
                            .map_or((*since, self.last), |best| best.min((*since, self.last))),
                    );
                }
            }
        }
        longest_free.map(|(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_come_in_turn_and_rest_after_use() {
        let mut allocator = Allocator::default();
        assert_eq!(allocator.allocate(None, 0), Some(1));
        assert_eq!(allocator.allocate(None, 0), Some(2));
        allocator.release(1, 0);
        assert_eq!(allocator.allocate(None, 1), Some(3));
        assert_eq!(
            allocator.allocate(Some(1), 1),
            Some(1),
            "asked for, it need not rest"
        );
        assert_eq!(allocator.allocate(Some(1), 1), Some(4));
        assert_eq!(allocator.allocate(Some(5), 1), Some(5));
        assert_eq!(allocator.allocate(Some(END), 1), Some(6));
        assert_eq!(allocator.allocate(Some(0), 1), Some(7));
    }

    #[test]
    fn the_number_that_rested_longest_is_taken_when_all_are_worn() {
        let mut allocator = Allocator::default();
        for number in 1..AUTOMATIC_END {
            assert_eq!(allocator.allocate(None, 0), Some(number));
        }
        assert_eq!(allocator.allocate(None, 0), None);
        allocator.release(9, 20);
        allocator.release(7, 10);
        assert_eq!(allocator.allocate(None, 30), Some(7));
        assert_eq!(allocator.allocate(None, 30), Some(9));
        assert_eq!(allocator.allocate(None, 30), None);
    }

    proptest! {
        #[test]
        fn no_two_ports_have_one_number(steps in prop::collection::vec((prop::option::of(0u16..20), any::<bool>()), 0..200)) {
            let mut allocator = Allocator::default();
            let mut used = HashSet::new();
            for (now, (preferred, give_back)) in steps.into_iter().enumerate() {
                if give_back && let Some(&number) = used.iter().next() {
                    used.remove(&number);
                    allocator.release(number, now as u64);
                } else {
                    let number = allocator.allocate(preferred, now as u64).unwrap();
                    prop_assert!((1..END).contains(&number));
                    prop_assert!(used.insert(number));
                }
            }
        }
    }
}
