//! What workers and control share, in those modules of which there are models (`models/`): these
//! compile them with other types under the same names, which try every order that the memory model
//! allows.

pub(crate) use crossbeam_queue::ArrayQueue;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
