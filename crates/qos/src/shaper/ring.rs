//! Where classes stand: in rings in which they take turns, and among the alarms of a moment.
//!
//! A ring is a circle of links, and whoever owns it knows one of them: whose turn it is. The links of a class lie together with its alarm in half a cache line, apart from the class
//! itself, so that leaving and joining a ring touches little of the neighbours, and all that is moved of a class when its time comes is fetched at once.

use super::prefetch::{Many, fetch};

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
    /// Neighbours among the alarms of its slot.
    pub alarm: Link,
    /// When its alarm rings.
    pub tick: u64,
}

/// The knots of all classes. A link is named by twice its knot's number, plus [`OWN`] or [`FEED`], and is in one ring at most.
pub(crate) struct Knots(Many<Knot>);

impl Knots {
    pub fn new(count: usize) -> Knots {
        let link = Link {
            next: NONE,
            prev: NONE,
        };
        let knot = Knot {
            rings: [link; 2],
            alarm: link,
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

    /// Who rings after it.
    #[inline(always)]
    pub fn after(&self, class: u32) -> u32 {
        self.0[class as usize].alarm.next
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
