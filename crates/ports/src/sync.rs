//! Names for the synchronisation types that [`crate::gate`] uses. The models (`models/`) compile it
//! with other types under the same names, which try every order that the memory model allows.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
pub(crate) use std::thread::yield_now;
