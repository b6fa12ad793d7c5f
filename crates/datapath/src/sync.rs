//! The types by which workers and control share state in modules that have models, imported from
//! here so that the models (`models/`) can compile these modules with other types of the same
//! names, which try every order that the memory model allows.

pub(crate) use crossbeam_queue::ArrayQueue;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
