//! The types by which [`crate::versioned`] shares state between threads, imported from here so that
//! the models (`models/`) can compile that module with other types of the same names, which try
//! every order that the memory model allows.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
pub(crate) use std::thread::yield_now;
