//! What the crates' own `sync` modules name, of loom's making, so that every access is a step that
//! a model puts into every order.
//!
//! loom gives no more to sequentially consistent accesses than to acquiring and releasing ones, but
//! knows sequentially consistent fences. So such an access here is one between two fences, which is
//! what processors make of it.

use loom::sync::atomic;
use std::cell::Cell;
use std::collections::VecDeque;

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;
pub(crate) use std::sync::atomic::Ordering;

thread_local! {
    /// Whether fences do nothing, to see whether a model misses them. A model's threads are all of
    /// one thread of the system.
    static WITHOUT_FENCES: Cell<bool> = const { Cell::new(false) };
}

/// Does something in a world in which [`fence`], [`compiler_fence`] and `membarrier` do nothing.
pub(crate) fn without_fences(what: impl FnOnce()) {
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            WITHOUT_FENCES.set(false);
        }
    }
    WITHOUT_FENCES.set(true);
    let _back = Back;
    what();
}

/// A fence, of any kind: it counts for the strongest.
pub(crate) fn fence(_order: Ordering) {
    if !WITHOUT_FENCES.get() {
        atomic::fence(Ordering::SeqCst);
    }
}

/// The light side of an asymmetric fence, of which `membarrier` is the heavy one. Where that one is
/// used, this counts as a fence, for it is made one at some moment in between.
pub(crate) fn compiler_fence(order: Ordering) {
    fence(order);
}

fn fenced<T>(orders: &[Ordering], access: impl FnOnce() -> T) -> T {
    let whole = orders.contains(&Ordering::SeqCst);
    if whole {
        atomic::fence(Ordering::SeqCst);
    }
    let done = access();
    if whole {
        atomic::fence(Ordering::SeqCst);
    }
    done
}

macro_rules! fenced {
    ($name:ident, $value:ty) => {
        /// loom's, with sequentially consistent accesses.
        #[derive(Debug)]
        pub(crate) struct $name(atomic::$name);

        #[allow(dead_code)] // each has the accesses that are used of one of them
        impl $name {
            pub fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                fenced(&[order], || self.0.load(order))
            }

            pub fn store(&self, value: $value, order: Ordering) {
                fenced(&[order], || self.0.store(value, order));
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                fenced(&[order], || self.0.swap(value, order))
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                fenced(&[order], || self.0.fetch_or(value, order))
            }

            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                fenced(&[order], || self.0.fetch_and(value, order))
            }
        }
    };
}

fenced!(AtomicBool, bool);
fenced!(AtomicU8, u8);

/// What stands for crossbeam's bounded queue: it orders less than that does, for how much is in it
/// is read and written without an order between several queues.
pub(crate) struct ArrayQueue<T> {
    /// No step of the model: who comes here is alone.
    items: std::sync::Mutex<VecDeque<T>>,
    len: atomic::AtomicUsize,
    room: usize,
}

impl<T> ArrayQueue<T> {
    pub fn new(room: usize) -> Self {
        ArrayQueue {
            items: std::sync::Mutex::default(),
            len: atomic::AtomicUsize::new(0),
            room,
        }
    }

    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn push(&self, item: T) -> Result<(), T> {
        if self.len() >= self.room {
            return Err(item);
        }
        self.items.lock().expect("nobody fails").push_back(item);
        self.len.fetch_add(1, Ordering::Release);
        Ok(())
    }

    pub fn pop(&self) -> Option<T> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        let item = self.items.lock().expect("nobody fails").pop_front()?;
        self.len.fetch_sub(1, Ordering::AcqRel);
        Some(item)
    }
}

/// Tries a model in all orders in which a thread is interrupted so often, where it need not wait,
/// and `MODEL_DEPTH` times more.
pub(crate) fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    // What needs more of them has not been seen in practice (CHESS, PLDI 2007), and takes for ever.
    let depth = std::env::var("MODEL_DEPTH").ok();
    let depth: usize = depth.map_or(0, |depth| depth.parse().expect("a number"));
    builder.preemption_bound = Some(preemptions + depth);
    builder.check(model);
}
