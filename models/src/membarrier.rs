//! What stands for the system call: the heavy side of an asymmetric fence. See [`crate::sync`].

use crate::sync::{Ordering, fence};

pub(crate) fn is_there() -> bool {
    true
}

pub(crate) fn order_all_threads() {
    fence(Ordering::SeqCst);
}
