//! The system call that makes other threads of this process pass a memory barrier (since Linux
//! 4.14).

use std::sync::OnceLock;

// linux/membarrier.h
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
/// Refusals in a row after which that is logged, once.
const REFUSALS_TOLD: u32 = 10_000;

#[cfg(test)]
thread_local! {
    /// How many times this thread has made others pass a barrier.
    pub(crate) static ORDERED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn call(command: libc::c_int) -> bool {
    // SAFETY: these commands take no pointers; flags and processor are unused.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Returns whether the system call works. The answer never changes.
pub(crate) fn is_there() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // A filter of system calls may allow the registration and yet refuse the barrier.
    *REGISTERED.get_or_init(|| call(REGISTER_PRIVATE_EXPEDITED) && call(PRIVATE_EXPEDITED))
}

/// Makes every thread of the process, including this one, pass a full memory barrier before this
/// returns. Must be called only if [`is_there`].
pub(crate) fn order_all_threads() {
    #[cfg(test)]
    ORDERED.set(ORDERED.get() + 1);
    // A registered process is only refused for lack of memory, or by a filter of system calls
    // installed later. Continuing without the barrier would free memory in use.
    let mut refused = 0u32;
    while !call(PRIVATE_EXPEDITED) {
        refused = refused.saturating_add(1);
        if refused == REFUSALS_TOLD {
            tracing::error!(target: "dpdk", "membarrier is refused: {}", std::io::Error::last_os_error());
        }
        std::thread::yield_now();
    }
}
