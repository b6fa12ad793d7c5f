//! Epochs: barriers, and memory that is freed.

use crate::epoch::{Domain, NEVER};
use crate::sync::{AtomicU64, Ordering, explore, yield_now};
use loom::thread;
use std::sync::Arc;
use std::sync::atomic;

/// Two epochs are published, and each is declared passed as soon as it seems so, while a worker
/// works burst after burst and sleeps in between: it never works in an epoch before that.
pub fn a_barrier_waits_for_a_worker_that_is_about_to_begin() {
    explore(3, || {
        let domain = Arc::new(Domain::default());
        let declared = Arc::new(AtomicU64::new(0));
        // Its slot is taken before others look, as control does it.
        let mut reader = domain.reader().expect("a slot");
        let worker = {
            let declared = Arc::clone(&declared);
            thread::spawn(move || {
                for turn in 0..2 {
                    let epoch = reader.begin().epoch();
                    let floor = declared.load(Ordering::Acquire);
                    assert!(epoch >= floor, "works in {epoch} after {floor} has passed");
                    if turn == 0 {
                        reader.offline();
                    }
                }
            })
        };
        for _ in 0..2 {
            let epoch = domain.publish();
            if domain.passed(epoch) {
                declared.store(epoch, Ordering::Release);
            }
        }
        worker.join().expect("a worker");
    });
}

/// Things that a worker may look at: which have been freed. No steps of the model.
type Freed = Arc<[atomic::AtomicBool; 2]>;

/// One of them, until it is freed.
struct Thing(usize, Freed);

impl Drop for Thing {
    fn drop(&mut self) {
        self.1[self.0].store(true, atomic::Ordering::SeqCst);
    }
}

/// Control replaces what is to be looked at, and frees what it was when it may, while a worker
/// begins bursts, looks, and sleeps.
pub fn nothing_is_freed_that_a_worker_looks_at() {
    explore(3, || {
        let domain = Arc::new(Domain::default());
        let freed = Freed::default();
        // Instead of a pointer, so that a mistake is no undefined behaviour.
        let place = Arc::new(AtomicU64::new(0));
        let mut reader = domain.reader().expect("a slot");
        let worker = {
            let (place, freed) = (Arc::clone(&place), Arc::clone(&freed));
            thread::spawn(move || {
                for turn in 0..2 {
                    reader.begin();
                    let thing = place.load(Ordering::Acquire) as usize;
                    let is_there = || !freed[thing].load(atomic::Ordering::SeqCst);
                    assert!(is_there(), "{thing} is found after it has been freed");
                    yield_now();
                    assert!(is_there(), "{thing} is freed while it is looked at");
                    if turn == 0 {
                        reader.offline();
                    }
                }
                reader.offline();
            })
        };
        place.store(1, Ordering::Release);
        domain.retire(Box::new(Thing(0, Arc::clone(&freed))));
        domain.publish();
        domain.collect();
        domain.collect();
        worker.join().expect("a worker");
        assert_eq!(domain.collect(), 0, "nobody is there any more");
        assert!(freed[0].load(atomic::Ordering::SeqCst));
    });
}

/// A worker holds something of an epoch beyond its burst, and says later that it does so no longer.
pub fn what_is_held_beyond_a_burst_is_kept() {
    explore(3, || {
        let domain = Arc::new(Domain::default());
        let mut reader = domain.reader().expect("a slot");
        let held = Arc::new(AtomicU64::new(NEVER));
        let worker = {
            let held = Arc::clone(&held);
            thread::spawn(move || {
                let guard = reader.begin();
                let epoch = guard.epoch();
                guard.hold(epoch);
                held.store(epoch, Ordering::Release);
                let guard = reader.begin();
                assert!(guard.in_held(epoch).epoch() == epoch);
                held.store(NEVER, Ordering::Release);
                guard.hold(NEVER);
                reader.offline();
            })
        };
        let epoch = domain.publish();
        if domain.passed(epoch) && domain.quiet(epoch) {
            let oldest = held.load(Ordering::Acquire);
            assert!(oldest >= epoch, "{epoch} is quiet while {oldest} is held");
        }
        worker.join().expect("a worker");
        assert!(domain.quiet(epoch));
    });
}
