//! The types by which [`crate::epoch`] and [`crate::growing`] share state between threads, imported
//! from here so that the models (`models/`) can compile these two modules with other types of the
//! same names, which try every order that the memory model allows.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
