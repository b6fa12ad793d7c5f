//! What [`crate::gate`] shares between threads, by names of its own: the models (`models/`) compile
//! it with other types under the same names, which try every order that the memory model allows.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
pub(crate) use std::thread::yield_now;
