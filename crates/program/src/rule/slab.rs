//! Memory for rules: blocks of equal rooms, each of whole cache lines.
//!
//! Lookups read one line of a rule, in tables of many rules one that is not in the first cache. A
//! rule that an allocator puts anywhere lies across one more of them, and where each begins a power
//! of two behind the other, only some of a cache's sets hold their first lines. Rooms of three
//! lines, back to back, have neither fault, and take no more memory.

use crate::rule::Rule;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

/// Blocks begin at multiples of this.
const ALIGN: usize = 16 << 10;
/// Where rooms begin in a block.
const FIRST: usize = 64;
const ROOM: usize = size_of::<Rule>();
/// Rooms of a block: a little is left for what an allocator keeps between two blocks.
const ROOMS: u32 = ((ALIGN - FIRST - 64) / ROOM) as u32;
const LAYOUT: Layout = match Layout::from_size_align(FIRST + ROOMS as usize * ROOM, ALIGN) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two, and small"),
};
const _: () = assert!(ROOM.is_multiple_of(64) && !(ROOM / 64).is_multiple_of(2));
const _: () = assert!(size_of::<Head>() <= FIRST && align_of::<Rule>() <= FIRST);
/// Of a block without a free room.
const FULL: usize = usize::MAX;

/// What a block begins with.
struct Head {
    /// The room that was given back last; each such one begins with the address of the one before.
    free: *mut u8,
    /// Rooms that have been taken at some time.
    touched: u32,
    /// Rooms in use.
    used: u32,
    /// Its place among those with free rooms, or [`FULL`].
    place: usize,
}

/// A block. Its memory is touched under the lock only, but for rooms in use, which belong to those
/// who took them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Block(NonNull<Head>);

// SAFETY: only a name; see there.
unsafe impl Send for Block {}

impl Block {
    fn new() -> Block {
        // SAFETY: the layout has a size.
        let Some(head) = NonNull::new(unsafe { alloc(LAYOUT) }.cast::<Head>()) else {
            handle_alloc_error(LAYOUT);
        };
        let begin = Head {
            free: std::ptr::null_mut(),
            touched: 0,
            used: 0,
            place: FULL,
        };
        // SAFETY: just allocated, aligned to more than a head, and large enough.
        unsafe { head.write(begin) };
        Block(head)
    }

    /// The block that a room belongs to.
    fn of(room: NonNull<Rule>) -> Block {
        Block(room.cast::<u8>().map_addr(aligned).cast())
    }

    /// Its head, under the lock.
    fn head(&mut self, _: &mut Blocks) -> &mut Head {
        // SAFETY: a block lives while it is among those with free rooms or has a room in use, and
        // nobody else has its head while the blocks are locked.
        unsafe { self.0.as_mut() }
    }

    fn room(self, index: u32) -> *mut u8 {
        let first = self.0.as_ptr().cast::<u8>().wrapping_add(FIRST);
        first.wrapping_add(index as usize * ROOM)
    }
}

fn aligned(address: std::num::NonZeroUsize) -> std::num::NonZeroUsize {
    // Rooms never lie in the first block of the address space.
    std::num::NonZeroUsize::new(address.get() & !(ALIGN - 1)).unwrap_or(address)
}

/// All blocks with free rooms.
struct Blocks(Vec<Block>);

static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks(Vec::new()));

fn blocks() -> MutexGuard<'static, Blocks> {
    BLOCKS
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Blocks {
    fn take(&mut self) -> NonNull<Rule> {
        let mut block = match self.0.last() {
            Some(block) => *block,
            None => {
                let mut block = Block::new();
                block.head(self).place = 0;
                self.0.push(block);
                block
            }
        };
        let head = block.head(self);
        let mut room = head.free;
        if room.is_null() {
            head.touched += 1;
            room = block.room(block.head(self).touched - 1);
        } else {
            // SAFETY: a room that was given back begins with the address of another one; see
            // `give`.
            head.free = unsafe { room.cast::<*mut u8>().read() };
        }
        let head = block.head(self);
        head.used += 1;
        if head.used == ROOMS {
            head.place = FULL;
            self.0.pop();
        }
        NonNull::new(room.cast()).unwrap_or_else(|| unreachable!("within a block"))
    }

    /// # Safety
    /// The room was taken, and what was in it has been dropped.
    unsafe fn give(&mut self, room: NonNull<Rule>) {
        let mut block = Block::of(room);
        let head = block.head(self);
        // SAFETY: the room is nobody's any more, and as aligned as a rule.
        unsafe { room.cast::<*mut u8>().write(head.free) };
        head.free = room.as_ptr().cast();
        head.used -= 1;
        if head.place == FULL {
            head.place = self.0.len();
            self.0.push(block);
        } else if head.used == 0 && self.0.len() > 1 {
            let place = head.place;
            self.0.swap_remove(place);
            if let Some(mut moved) = self.0.get(place).copied() {
                moved.head(self).place = place;
            }
            // SAFETY: made by `alloc` with this layout, and nobody has a room of it or finds it any
            // more.
            unsafe { dealloc(block.0.as_ptr().cast(), LAYOUT) };
        }
    }
}

/// A rule in its room. Dropped, it leaves it.
pub(crate) struct RuleSlab(NonNull<Rule>);

// SAFETY: it owns the rule, which may be sent (asserted below).
unsafe impl Send for RuleSlab {}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Rule>();
};

impl RuleSlab {
    /// Puts a rule into a room, in which it stays until [`RuleSlab::take_back`].
    pub fn alloc(rule: Rule) -> NonNull<Rule> {
        let room = blocks().take();
        // SAFETY: the room is as large and as aligned as a rule, and now the caller's.
        unsafe { room.write(rule) };
        room
    }

    /// Takes a rule back.
    ///
    /// # Safety
    /// It comes from [`RuleSlab::alloc`], has not been taken back before, and nobody follows it
    /// once what is returned is dropped.
    pub unsafe fn take_back(rule: NonNull<Rule>) -> RuleSlab {
        RuleSlab(rule)
    }
}

impl Drop for RuleSlab {
    fn drop(&mut self) {
        // SAFETY: promised in `take_back`: it lives, and it is the last time that it is looked at.
        unsafe { self.0.drop_in_place() };
        // SAFETY: dropped just now.
        unsafe { blocks().give(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::OpList;
    use crate::counters::CounterId;
    use crate::rule::RuleSpec;
    use packet::Match;
    use std::collections::HashSet;
    use std::sync::Arc;

    fn rule(number: u32, ops: &Arc<OpList>) -> Rule {
        let spec = RuleSpec {
            priority: number,
            counter: CounterId(number),
            ops: Arc::clone(ops),
            cookie: number.into(),
            matching: Match::any(),
        };
        Rule::new(spec, 1)
    }

    /// What is known of blocks is true after each step, all rooms come back into use, and but one
    /// block stays when all have been given back.
    #[test]
    fn blocks_come_and_go_with_their_rooms() {
        let mut blocks = Blocks(Vec::new());
        let (mut kept, mut random, mut most) = (Vec::new(), 1_u32, 0);
        for number in 0..40 * ROOMS {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            let goes = random % 8
                < if (number / (10 * ROOMS)).is_multiple_of(2) {
                    2
                } else {
                    6
                };
            if goes && !kept.is_empty() {
                let room: NonNull<Rule> = kept.swap_remove(random as usize % kept.len());
                // SAFETY: taken below, and nothing was put into it.
                unsafe { blocks.give(room) };
            } else {
                kept.push(blocks.take());
            }
            let (mut empty, mut free) = (0, 0);
            for place in 0..blocks.0.len() {
                let mut block = blocks.0[place];
                let head = block.head(&mut blocks);
                assert!(head.place == place && head.used < ROOMS && head.used <= head.touched);
                empty += usize::from(head.used == 0);
                free += ROOMS - head.used;
            }
            assert!(empty <= 1);
            let all: HashSet<Block> = kept.iter().map(|room| Block::of(*room)).collect();
            let rooms = (all.len() + empty) as u32 * ROOMS;
            assert_eq!(
                kept.len() as u32 + free,
                rooms,
                "a room is lost, or a block is"
            );
            most = most.max(all.len());
        }
        assert!(most > 4, "{most} blocks");
        for room in kept {
            // SAFETY: as above.
            unsafe { blocks.give(room) };
        }
        assert_eq!(blocks.0.len(), 1);
        let mut last = blocks.0[0];
        assert_eq!(last.head(&mut blocks).used, 0);
        // SAFETY: made by `alloc` with this layout; nobody has a room of it.
        unsafe { dealloc(last.0.as_ptr().cast(), LAYOUT) };
    }

    /// Rules of several threads come and go in no order, and each stays what it is.
    #[test]
    fn rules_keep_their_rooms_to_themselves() {
        let ops = Arc::new(OpList::new(vec![]));
        let work = |seed: u32| {
            let mut random = seed * 2 + 1;
            let mut kept: Vec<(u32, NonNull<Rule>)> = Vec::new();
            for number in 0..8 * ROOMS {
                random ^= random << 13;
                random ^= random >> 17;
                random ^= random << 5;
                // More come in one half, more go in the other.
                let goes = random % 8 < if number < 4 * ROOMS { 2 } else { 6 };
                if goes && !kept.is_empty() {
                    let (number, room) = kept.swap_remove(random as usize % kept.len());
                    // SAFETY: lodged below, and named nowhere else any more.
                    assert_eq!(unsafe { room.as_ref() }.spec.priority, number);
                    // SAFETY: as above.
                    drop(unsafe { RuleSlab::take_back(room) });
                } else {
                    let room = RuleSlab::alloc(rule(number, &ops));
                    assert!(room.addr().get().is_multiple_of(64));
                    kept.push((number, room));
                }
            }
            for (number, room) in kept {
                // SAFETY: as above.
                assert_eq!(unsafe { room.as_ref() }.spec.cookie, number.into());
                // SAFETY: as above.
                drop(unsafe { RuleSlab::take_back(room) });
            }
        };
        std::thread::scope(|scope| {
            (1..=4).for_each(|seed| drop(scope.spawn(move || work(seed))));
        });
        assert_eq!(
            Arc::strong_count(&ops),
            1,
            "each rule has been dropped once"
        );
    }
}
