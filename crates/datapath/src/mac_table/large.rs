//! Memory that is large and accessed at random.

/// The size of a huge page.
const HUGE: usize = 2 << 20;

/// Returns a vector of `count` values made by `make`, on huge pages where they fill some: otherwise
/// half of the cost of an access among a million values is a TLB miss.
pub(super) fn many<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    let mut all: Vec<T> = Vec::with_capacity(count);
    // Before the memory is touched, because pages that exist already are not changed.
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
