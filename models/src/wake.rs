//! What stands for the kernel's event counter (`datapath::wake`).

use loom::sync::{Condvar, Mutex};

/// An event counter that can be waited for without a limit: a model in which nobody raises it ends
/// as a deadlock.
pub(crate) struct Wake {
    raised: Mutex<bool>,
    more: Condvar,
}

impl Wake {
    pub fn new() -> Wake {
        Wake {
            raised: Mutex::new(false),
            more: Condvar::new(),
        }
    }

    pub fn raise(&self) {
        *self.raised.lock().expect("nobody fails") = true;
        self.more.notify_all();
    }

    pub fn clear(&self) {
        *self.raised.lock().expect("nobody fails") = false;
    }

    /// Sleeps until it is raised.
    pub fn wait(&self) {
        let mut raised = self.raised.lock().expect("nobody fails");
        while !*raised {
            raised = self.more.wait(raised).expect("nobody fails");
        }
    }
}
