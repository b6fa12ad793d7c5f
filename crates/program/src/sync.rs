//! What [`crate::epoch`] and [`crate::growing`] share between threads, by names of their own: the
//! models (`models/`) compile these two with other types under the same names, which try every
//! order that the memory model allows.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
