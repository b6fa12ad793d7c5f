//! Arrays that grow while others read.

use crate::epoch::Domain;
use crate::growing::{Cell, Growing};
use crate::sync::explore;
use loom::thread;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Places that a worker looks at just now. All threads of a model are one of the system's.
    static LOOKED_AT: RefCell<HashSet<usize>> = RefCell::default();
}

/// A number. Its accesses are no steps of the model, only those of the array are.
struct Number(AtomicU64);

// SAFETY: 0 is a number.
unsafe impl Cell for Number {
    fn copy(&self, from: &Self) {
        let number = from.0.load(Ordering::Relaxed);
        self.0.store(number, Ordering::Relaxed);
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let place = std::ptr::from_ref(self).addr();
        let looked_at = LOOKED_AT.with_borrow(|places| places.contains(&place));
        assert!(!looked_at, "freed while a worker looks at it");
    }
}

/// The writer puts numbers in, for which the array grows twice, while a worker reads: it finds what
/// was there when its burst began, and what it looks at stays.
pub fn readers_keep_what_they_look_at() {
    explore(3, || {
        LOOKED_AT.with_borrow_mut(HashSet::clear);
        let domain = Arc::new(Domain::default());
        let array = Arc::new(Growing::<Number>::new(1));
        array.view()[0].0.store(7, Ordering::Relaxed);
        let mut reader = domain.reader().expect("a slot");
        let worker = {
            let array = Arc::clone(&array);
            thread::spawn(move || {
                for _ in 0..2 {
                    let _guard = reader.begin();
                    let view = array.view();
                    let place = std::ptr::from_ref(&view[0]).addr();
                    LOOKED_AT.with_borrow_mut(|places| places.insert(place));
                    thread::yield_now();
                    assert_eq!(view[0].0.load(Ordering::Relaxed), 7);
                    LOOKED_AT.with_borrow_mut(|places| places.remove(&place));
                }
                reader.offline();
            })
        };
        for index in 1..3 {
            array.ensure(&domain, index);
            array.view()[index].0.store(8, Ordering::Relaxed);
            domain.publish();
            domain.collect();
        }
        worker.join().expect("a worker");
        assert_eq!(domain.collect(), 0);
        let numbers = array.view().iter();
        let numbers: Vec<u64> = numbers.map(|cell| cell.0.load(Ordering::Relaxed)).collect();
        assert_eq!(numbers[..3], [7, 8, 8]);
    });
}
