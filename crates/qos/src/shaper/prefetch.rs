//! Large memory with random accesses: prefetching and huge pages.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

/// Prefetches the cache line that a value begins on.
#[inline(always)]
pub(crate) fn fetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect on memory, whatever the address, and SSE is part of
        // x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// The size of a huge page.
const HUGE: usize = 2 << 20;
/// Memory from this size on is aligned to huge pages at both ends.
const LARGE: usize = HUGE / 2;

/// Asks for huge pages for large memory that has not been touched yet: without them, half the cost
/// of touching a queue is the page walk.
fn advise<T>(memory: &[MaybeUninit<T>]) {
    let start = (memory.as_ptr().addr()).next_multiple_of(HUGE);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) / HUGE * HUGE;
    if start < end {
        let inside = memory.as_ptr().with_addr(start).cast_mut();
        // SAFETY: the range lies within `memory`. The advice changes which pages back it, not what
        // they hold; a refusal costs only speed.
        unsafe { libc::madvise(inside.cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}

/// A fixed number of values that are accessed at random.
pub(crate) struct Many<T> {
    start: NonNull<T>,
    count: usize,
}

// SAFETY: it owns its values, as a boxed slice would.
unsafe impl<T: Send> Send for Many<T> {}
// SAFETY: shared, it gives nothing but shared references to them.
unsafe impl<T: Sync> Sync for Many<T> {}

/// Returns the layout of this many values.
fn layout_of<T>(count: usize) -> Layout {
    let layout = Layout::array::<T>(count).expect("no port has so many queues");
    if layout.size() < LARGE {
        return layout;
    }
    let layout = layout
        .align_to(HUGE)
        .expect("the alignment is a power of 2");
    layout.pad_to_align()
}

impl<T> Many<T> {
    /// Collects `count` values; the iterator must yield that many.
    pub fn new(count: usize, values: impl Iterator<Item = T>) -> Many<T> {
        let layout = layout_of::<T>(count);
        if layout.size() == 0 {
            let start = NonNull::dangling();
            return Many { start, count: 0 };
        }
        // SAFETY: the layout has a size.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout);
        };
        // SAFETY: these bytes have just been allocated, and nothing claims that they are
        // initialised.
        advise(unsafe {
            slice::from_raw_parts(start.as_ptr().cast::<MaybeUninit<u8>>(), layout.size())
        });
        let start = start.cast::<T>();
        let mut written = 0;
        for value in values.take(count) {
            // SAFETY: fewer than `count` values have been written, so there is room for this one.
            unsafe { start.add(written).write(value) };
            written += 1;
        }
        assert_eq!(written, count, "fewer values than were said");
        Many { start, count }
    }
}

impl<T> Drop for Many<T> {
    fn drop(&mut self) {
        let layout = layout_of::<T>(self.count);
        if layout.size() != 0 {
            // SAFETY: it was allocated with this layout in `new`, which initialised all values, and
            // nothing refers to it any more.
            unsafe {
                std::ptr::drop_in_place(std::ptr::from_mut(&mut **self));
                dealloc(self.start.as_ptr().cast(), layout);
            }
        }
    }
}

impl<T> Deref for Many<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `count` values have been written from `start` on, which is aligned for them.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Many<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is mutably borrowed for as long.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

/// Makes a vector with room for `count` values.
pub(crate) fn with_capacity<T>(count: usize) -> Vec<T> {
    let mut all = Vec::with_capacity(count);
    advise(all.spare_capacity_mut());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn values_are_kept_and_dropped() {
        let value = Rc::new(1_u64);
        for count in [0, 1, 1000, LARGE / 8 - 1, LARGE / 8, LARGE / 4 + 3] {
            let mut many = Many::new(count, std::iter::repeat_with(|| Rc::clone(&value)));
            assert_eq!((many.len(), Rc::strong_count(&value)), (count, count + 1));
            assert_eq!(
                many.as_ptr().addr() % if count * 8 >= LARGE { HUGE } else { 8 },
                0
            );
            if let Some(last) = many.last_mut() {
                *last = Rc::new(2);
            }
            assert_eq!(
                many.iter().map(|value| **value).sum::<u64>(),
                count as u64 + u64::from(count != 0)
            );
        }
        assert_eq!(Rc::strong_count(&value), 1);
    }

    #[test]
    #[should_panic(expected = "fewer values")]
    fn too_few_values_are_no_many() {
        Many::new(3, [1_u8, 2].into_iter());
    }
}
