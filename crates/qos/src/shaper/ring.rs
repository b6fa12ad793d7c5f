//! Where classes stand: in rings in which they take turns, and among the alarms of a moment.
//!
//! A ring is a circle of links, and whoever owns it knows one of them: whose turn it is. The links
//! of a class lie together with what it knows of its alarm in half a cache line, apart from the
//! class itself, so that leaving and joining a ring touches little of the neighbours. Queues that
//! send by their own rate need no links ([`Lines`]): one that borrows from nobody has no use for
//! its knot.

use super::prefetch::{Many, fetch};
use super::spec::PRIORITIES;

pub(crate) const NONE: u32 = u32::MAX;
/// No tick.
pub(crate) const NEVER: u64 = u64::MAX;

/// The ring of those that send by their own rate, as the last bit of a link.
pub(crate) const OWN: u32 = 0;
/// The ring of those that borrow.
pub(crate) const FEED: u32 = 1;

#[derive(Clone, Copy)]
pub(crate) struct Link {
    pub next: u32,
    pub prev: u32,
}

/// Where one class stands.
#[derive(Clone, Copy)]
#[repr(align(32))]
pub(crate) struct Knot {
    rings: [Link; 2],
    /// Where its alarm lies, unless it is a firm one,
    pub alarm: u32,
    /// and when it rings.
    pub tick: u64,
}

/// The knots of all classes. A link is named by twice its knot's number, plus [`OWN`] or [`FEED`],
/// and is in one ring at most.
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

    /// Leaves its ring; a turn that it had passes to the next.
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

    /// Who comes after.
    #[inline]
    pub fn next(&self, link: u32) -> u32 {
        self.0[link as usize / 2].rings[link as usize % 2].next
    }
}

/// Queues of one priority that send by their own rate, in the order of their turns. Only who has
/// the turn leaves, so it needs no links: numbers one behind the other, which tell whom to fetch
/// next.
struct Line {
    /// A power of two of places, no fewer than queues.
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

    /// Who has the turn after so many others.
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
    /// Priorities that have any.
    pub filled: u8,
}

impl Lines {
    /// For so many queues of each priority.
    pub fn new(queues: [usize; PRIORITIES]) -> Lines {
        Lines {
            lines: queues.map(Line::new),
            filled: 0,
        }
    }

    /// Who has the turn; none where nobody is there.
    #[inline(always)]
    pub fn turn(&self) -> Option<u32> {
        (self.filled != 0).then(|| self.after(self.filled.trailing_zeros() as u8, 0))
    }

    /// Who has the turn among those of a priority after so many others; [`NONE`] where there are no
    /// more.
    #[inline(always)]
    pub fn after(&self, priority: u8, others: u32) -> u32 {
        self.lines[usize::from(priority)].after(others)
    }

    /// A queue that is not there comes; its turn is after all others'.
    #[inline(always)]
    pub fn join(&mut self, priority: u8, queue: u32) {
        let line = &mut self.lines[usize::from(priority)];
        let at = line.at(line.end);
        line.places[at] = queue;
        line.end = line.end.wrapping_add(1);
        self.filled |= 1 << priority;
    }

    /// Who has the turn among those of a priority leaves.
    #[inline(always)]
    pub fn leave(&mut self, priority: u8) {
        let line = &mut self.lines[usize::from(priority)];
        line.first = line.first.wrapping_add(1);
        if line.first == line.end {
            self.filled &= !(1 << priority);
        }
    }

    /// Nobody is there any more.
    pub fn clear(&mut self) {
        self.lines.iter_mut().for_each(|line| line.first = line.end);
        self.filled = 0;
    }
}
