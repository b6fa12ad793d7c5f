//! Rings of classes that take turns.
//!
//! A ring is a circle of links, and whoever owns it knows one of them: whose turn it is. Links lie together in one array, apart from the classes, so that leaving and joining a
//! ring does not touch the neighbours' own memory.

pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    next: u32,
    prev: u32,
}

/// All links; a link is in one ring at most.
pub(crate) struct Links(Box<[Link]>);

impl Links {
    pub fn new(count: usize) -> Links {
        let link = Link {
            next: NONE,
            prev: NONE,
        };
        Links(vec![link; count].into())
    }

    /// Joins a ring at its end: its turn comes after all others'.
    #[inline]
    pub fn join(&mut self, turn: &mut u32, link: u32) {
        if *turn == NONE {
            self.0[link as usize] = Link {
                next: link,
                prev: link,
            };
            *turn = link;
            return;
        }
        let next = *turn;
        let prev = std::mem::replace(&mut self.0[next as usize].prev, link);
        self.0[prev as usize].next = link;
        self.0[link as usize] = Link { next, prev };
    }

    /// Leaves its ring; a turn that it had passes to the next.
    #[inline]
    pub fn leave(&mut self, turn: &mut u32, link: u32) {
        let Link { next, prev } = self.0[link as usize];
        if next == link {
            *turn = NONE;
        } else {
            self.0[prev as usize].next = next;
            self.0[next as usize].prev = prev;
            if *turn == link {
                *turn = next;
            }
        }
    }

    /// Who comes after.
    #[inline]
    pub fn next(&self, link: u32) -> u32 {
        self.0[link as usize].next
    }
}
