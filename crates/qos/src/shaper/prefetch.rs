//! Memory that is large and touched here and there: asking for it early, and in large pages.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// Fetches the cache line that a value begins on.
#[inline(always)]
pub(crate) fn fetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: fetching has no effect on memory, whatever the address, and SSE is part of x86_64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Asks for huge pages behind memory that has not been touched yet, where it is large: else half of what touching a queue costs is finding its page.
fn advise<T>(memory: &[MaybeUninit<T>]) {
    const HUGE: usize = 2 << 20;
    let start = (memory.as_ptr().addr()).next_multiple_of(HUGE);
    let end = (memory.as_ptr().addr() + size_of_val(memory)) / HUGE * HUGE;
    if start < end {
        let inside = memory.as_ptr().with_addr(start).cast_mut();
        // SAFETY: the range lies within `memory`. The advice changes which pages are behind it and not what they hold; a refusal costs speed only.
        unsafe { libc::madvise(inside.cast(), end - start, libc::MADV_HUGEPAGE) };
    }
}

/// A fixed number of values of which any may be touched next.
pub(crate) struct Many<T>(Vec<T>);

impl<T> Many<T> {
    /// `count` values.
    pub fn new(count: usize, values: impl Iterator<Item = T>) -> Many<T> {
        Many(with_capacity(count, values))
    }
}

impl<T> Deref for Many<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Many<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// A vector that has room for `count` values, and some of them.
pub(crate) fn with_capacity<T>(count: usize, values: impl Iterator<Item = T>) -> Vec<T> {
    let mut all = Vec::with_capacity(count);
    advise(all.spare_capacity_mut());
    all.extend(values.take(count));
    all
}
