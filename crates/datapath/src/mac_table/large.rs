//! Memory that is large and touched here and there.

/// The size of a huge page.
const HUGE: usize = 2 << 20;

/// So many values made by `make`, on huge pages where they fill some: else half of what touching
/// one of a million costs is finding its page.
pub(super) fn many<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    let mut all: Vec<T> = Vec::with_capacity(count);
    // Before it is touched: pages that are there already stay as they are.
    let start = all.as_ptr().addr().next_multiple_of(HUGE);
    let end = (all.as_ptr().addr() + all.capacity() * size_of::<T>()) / HUGE * HUGE;
    if start < end {
        let inside = all.as_mut_ptr().with_addr(start);
        // SAFETY: the range lies within the vector's memory. The advice changes which pages are
        // behind it and not what they hold; a refusal costs speed only.
        unsafe { libc::madvise(inside.cast(), end - start, libc::MADV_HUGEPAGE) };
    }
    all.resize_with(count, make);
    all
}
