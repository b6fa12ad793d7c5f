//! Rings in which classes take turns.
//!
//! A ring is a circular list of links; its owner knows the link whose turn it is. The links of a
//! class and the place of its alarm share half a cache line (a knot), apart from the class itself,
//! so that leaving and joining a ring touches little of the neighbours. Queues that send by their
//! own rate need no links ([`Lines`]), so a queue that does not borrow does not use its knot.

use super::prefetch::{Many, fetch};
use super::spec::PRIORITIES;

pub(crate) const NONE: u32 = u32::MAX;
/// The tick of an alarm that is not set.
pub(crate) const NEVER: u64 = u64::MAX;

/// Number of the ring of classes that send by their own rate, as the low bit of a link.
pub(crate) const OWN: u32 = 0;
/// Number of the ring of borrowers, likewise.
pub(crate) const FEED: u32 = 1;

#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub next: u32,
    pub prev: u32,
}

/// A class's links and alarm.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Knot {
    rings: [Link; 2],
    /// Place of its alarm, unless it is a firm one,
    pub alarm: u32,
    /// and the tick at which it rings.
    pub tick: u64,
}

/// The knots of all classes. A link's number is twice its knot's number, plus [`OWN`] or [`FEED`];
/// it is in one ring at most.
pub(crate) struct Knots(Many<Knot>);

impl Knots {
    pub fn new(count: usize) -> Knots {
        let link = Link {
            next: NONE,
            prev: NONE,
        };
        let knot = Knot {
            rings: [link; 2],
            alarm: NONE,
            tick: NEVER,
        };
        Knots(Many::new(count, std::iter::repeat_n(knot, count)))
    }

    #[inline(always)]
    pub fn of(&mut self, class: u32) -> &mut Knot {
        &mut self.0[class as usize]
    }

    #[inline(always)]
    pub fn fetch(&self, class: u32) {
        if let Some(knot) = self.0.get(class as usize) {
            fetch(knot);
        }
    }

    #[inline(always)]
    fn link(&mut self, link: u32) -> &mut Link {
        &mut self.0[link as usize / 2].rings[link as usize % 2]
    }

    /// Joins a ring at its end: its turn comes after all others'.
    #[inline]
    pub fn join(&mut self, turn: &mut u32, link: u32) {
        if *turn == NONE {
            *self.link(link) = Link {
                next: link,
                prev: link,
            };
            *turn = link;
            return;
        }
        let next = *turn;
        let prev = std::mem::replace(&mut self.link(next).prev, link);
        self.link(prev).next = link;
        *self.link(link) = Link { next, prev };
    }

    /// Leaves its ring; if it had the turn, that passes to the next.
    #[inline]
    pub fn leave(&mut self, turn: &mut u32, link: u32) {
        let Link { next, prev } = *self.link(link);
        if next == link {
            *turn = NONE;
        } else {
            self.link(prev).next = next;
            self.link(next).prev = prev;
            if *turn == link {
                *turn = next;
            }
        }
    }

    /// Returns the next link of the ring.
    #[inline]
    pub fn next(&self, link: u32) -> u32 {
        self.0[link as usize / 2].rings[link as usize % 2].next
    }
}

/// Queues of one priority that send by their own rate, in the order of their turns. Only the one
/// whose turn it is leaves, so it needs no links: an array of numbers, which tells what to prefetch
/// next.
struct Line {
    /// A ring buffer; its size is a power of two, at least the number of queues.
    places: Box<[u32]>,
    first: u32,
    end: u32,
}

impl Line {
    fn new(queues: usize) -> Line {
        Line {
            places: vec![NONE; queues.next_power_of_two()].into(),
            first: 0,
            end: 0,
        }
    }

    #[inline(always)]
    fn at(&self, index: u32) -> usize {
        index as usize & (self.places.len() - 1)
    }

    /// Returns the queue whose turn comes after `others` more.
    #[inline(always)]
    fn after(&self, others: u32) -> u32 {
        if others < self.end.wrapping_sub(self.first) {
            self.places[self.at(self.first.wrapping_add(others))]
        } else {
            NONE
        }
    }
}

/// All queues that send by their own rate, by priority.
pub(crate) struct Lines {
    lines: [Line; PRIORITIES],
    /// Bit set of the priorities that have any.
    pub filled: u8,
}

impl Lines {
    /// Makes lines for this many queues of each priority.
    pub fn new(queues: [usize; PRIORITIES]) -> Lines {
        Lines {
            lines: queues.map(Line::new),
            filled: 0,
        }
    }

    /// Returns whose turn it is; None if all lines are empty.
    #[inline(always)]
    pub fn turn(&self) -> Option<u32> {
        (self.filled != 0).then(|| self.after(self.filled.trailing_zeros() as u8, 0))
    }

    /// Returns the queue of a priority whose turn comes after `others` more; [`NONE`] if there are
    /// no more.
    #[inline(always)]
    pub fn after(&self, priority: u8, others: u32) -> u32 {
        self.lines[usize::from(priority)].after(others)
    }

    /// Appends a queue that is not in the line.
    #[inline(always)]
    pub fn join(&mut self, priority: u8, queue: u32) {
        let line = &mut self.lines[usize::from(priority)];
        let at = line.at(line.end);
        line.places[at] = queue;
        line.end = line.end.wrapping_add(1);
        self.filled |= 1 << priority;
    }

    /// Removes the queue of a priority whose turn it is.
    #[inline(always)]
    pub fn leave(&mut self, priority: u8) {
        let line = &mut self.lines[usize::from(priority)];
        line.first = line.first.wrapping_add(1);
        if line.first == line.end {
            self.filled &= !(1 << priority);
        }
    }

    /// Empties all lines.
    pub fn clear(&mut self) {
        self.lines.iter_mut().for_each(|line| line.first = line.end);
        self.filled = 0;
    }
}
