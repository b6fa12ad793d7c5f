//! Arrays that grow while others read: a full one is copied to a larger one, which replaces it.

use crate::epoch::Domain;
use crate::sync::{AtomicPtr, Ordering};
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};

/// An element that is all zeros at first, and is changed by one writer in place while others read.
///
/// # Safety
/// All zeros is a valid value.
pub(crate) unsafe trait Cell: Send + Sync + 'static {
    /// Takes the value of another element, which nobody changes meanwhile.
    fn copy(&self, from: &Self);
}

// SAFETY: a null pointer is one of its values.
unsafe impl<T: 'static> Cell for std::sync::atomic::AtomicPtr<T> {
    fn copy(&self, from: &Self) {
        self.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// An array that grows. Whoever looks at it holds a guard of the domain, or is its one writer. A
/// reader may continue with an array that has been replaced and not see later changes: that must be
/// as good for its epoch as the new contents.
pub(crate) struct Growing<T>(AtomicPtr<Box<[T]>>);

impl<T: Cell> Growing<T> {
    /// Creates an array of `count` zeros.
    pub fn new(count: usize) -> Self {
        Growing(AtomicPtr::new(Self::zeros(count)))
    }

    /// Allocates zeroed memory without writing to it, so that pages are taken from the system only
    /// when they are used.
    fn zeros(count: usize) -> *mut Box<[T]> {
        let layout = Layout::array::<T>(count.max(1)).unwrap_or_else(|_| unreachable!());
        assert!(layout.size() > 0);
        // SAFETY: the layout has a size.
        let cells = unsafe { alloc_zeroed(layout) }.cast::<T>();
        if cells.is_null() {
            handle_alloc_error(layout);
        }
        let cells = std::ptr::slice_from_raw_parts_mut(cells, count.max(1));
        // SAFETY: allocated with the layout of just such a slice, and all zeros is valid, says
        // `Cell`.
        Box::into_raw(Box::new(unsafe { Box::from_raw(cells) }))
    }

    /// Returns the current elements.
    #[inline(always)]
    pub fn view(&self) -> &[T] {
        // SAFETY: never null; arrays that are replaced are retired, and readers hold a guard.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    /// Ensures that there is room for `index`; grows by half at least. For the writer only.
    pub fn ensure(&self, domain: &Domain, index: usize) {
        let old = self.view();
        if index < old.len() {
            return;
        }
        let new = Self::zeros((index + 1).max(old.len() + old.len() / 2));
        // SAFETY: just made, and nobody else's yet.
        let cells: &[T] = unsafe { &*new };
        for (to, from) in cells.iter().zip(old) {
            to.copy(from);
        }
        let old = self.0.swap(new, Ordering::AcqRel);
        // SAFETY: made by `Box::into_raw`, unlinked by the swap.
        domain.retire(unsafe { Box::from_raw(old) });
    }
}

impl<T> Drop for Growing<T> {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`; the last owner goes, so no reader is left.
        drop(unsafe { Box::from_raw(self.0.load(Ordering::Acquire)) });
    }
}
