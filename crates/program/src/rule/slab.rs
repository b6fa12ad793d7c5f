//! Slab allocator for rules: blocks of equal slots, each of whole cache lines.
//!
//! Lookups read one line of a rule, which in tables of many rules is not in the first-level cache.
//! With a general allocator a rule's first part would often straddle two lines; and if rules were
//! placed at multiples of a power of two, their first lines would use only some of a cache's sets.
//! Slots of three lines, back to back, avoid both, and take no more memory.

use crate::rule::Rule;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

/// Size and alignment of blocks.
const ALIGN: usize = 16 << 10;
/// Offset of the first slot in a block.
const FIRST: usize = 64;
const ROOM: usize = size_of::<Rule>();
/// Slots of a block: some bytes are left for an allocator's header between two blocks.
const ROOMS: u32 = ((ALIGN - FIRST - 64) / ROOM) as u32;
const LAYOUT: Layout = match Layout::from_size_align(FIRST + ROOMS as usize * ROOM, ALIGN) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two, and small"),
};
const _: () = assert!(ROOM.is_multiple_of(64) && !(ROOM / 64).is_multiple_of(2));
const _: () = assert!(size_of::<Head>() <= FIRST && align_of::<Rule>() <= FIRST);
/// Marks a block without a free slot.
const FULL: usize = usize::MAX;

/// The header of a block.
struct Head {
    /// The slot that was freed last; each free slot begins with the address of the one freed before
    /// it.
    free: *mut u8,
    /// Slots that have ever been used.
    touched: u32,
    /// Slots in use.
    used: u32,
    /// Its index in the list of blocks with free slots, or [`FULL`].
    place: usize,
}

/// A block. Its memory is accessed under the lock only, except for slots in use, which belong to
/// their users.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Block(NonNull<Head>);

// SAFETY: only an address; memory is accessed as documented at the type.
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

    /// Returns the block that a slot belongs to.
    fn of(room: NonNull<Rule>) -> Block {
        Block(room.cast::<u8>().map_addr(aligned).cast())
    }

    /// Returns its header, under the lock.
    fn head(&mut self, _: &mut Blocks) -> &mut Head {
        // SAFETY: a block lives while it is among those with free slots or has a slot in use, and
        // nobody else has its head while the blocks are locked.
        unsafe { self.0.as_mut() }
    }

    fn room(self, index: u32) -> *mut u8 {
        let first = self.0.as_ptr().cast::<u8>().wrapping_add(FIRST);
        first.wrapping_add(index as usize * ROOM)
    }
}

fn aligned(address: std::num::NonZeroUsize) -> std::num::NonZeroUsize {
    // No slot is in the first block of the address space.
    std::num::NonZeroUsize::new(address.get() & !(ALIGN - 1)).unwrap_or(address)
}

/// All blocks with free slots.
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
            // SAFETY: a freed slot begins with the address of another one; see `give`.
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
    /// The slot was taken, and its contents have been dropped.
    unsafe fn give(&mut self, room: NonNull<Rule>) {
        let mut block = Block::of(room);
        let head = block.head(self);
        // SAFETY: the slot is not used any more, and is aligned as a rule is.
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
            // SAFETY: made by `alloc` with this layout, and nobody has a slot of it or finds it any
            // more.
            unsafe { dealloc(block.0.as_ptr().cast(), LAYOUT) };
        }
    }
}

/// A rule in its slot. Dropping it drops the rule and frees the slot.
pub(crate) struct RuleSlab(NonNull<Rule>);

// SAFETY: it owns the rule, which may be sent (asserted below).
unsafe impl Send for RuleSlab {}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Rule>();
};

impl RuleSlab {
    /// Moves a rule to a slot, where it stays until [`RuleSlab::take_back`].
    pub fn alloc(rule: Rule) -> NonNull<Rule> {
        let room = blocks().take();
        // SAFETY: the slot is as large and as aligned as a rule, and now the caller's.
        unsafe { room.write(rule) };
        room
    }

    /// Takes ownership of a rule.
    ///
    /// # Safety
    /// It comes from [`RuleSlab::alloc`], has not been taken back before, and nobody follows it
    /// once the returned value is dropped.
    pub unsafe fn take_back(rule: NonNull<Rule>) -> RuleSlab {
        RuleSlab(rule)
    }
}

impl Drop for RuleSlab {
    fn drop(&mut self) {
        // SAFETY: guaranteed by the caller of `take_back`: the rule is alive, and nobody uses it
        // later.
        unsafe { self.0.drop_in_place() };
        // SAFETY: its contents have just been dropped.
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

    /// After each step the lists of blocks are consistent; all slots are reused; and one block
    /// remains when all have been freed.
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
        // SAFETY: made by `alloc` with this layout; nobody has a slot of it.
        unsafe { dealloc(last.0.as_ptr().cast(), LAYOUT) };
    }

    /// Rules of several threads come and go in random order, and each keeps its contents.
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
                // More rules come in the first half, more go in the second.
                let goes = random % 8 < if number < 4 * ROOMS { 2 } else { 6 };
                if goes && !kept.is_empty() {
                    let (number, room) = kept.swap_remove(random as usize % kept.len());
                    // SAFETY: allocated below, and not referred to elsewhere any more.
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
