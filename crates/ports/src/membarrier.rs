//! The system call that makes other threads of this process pass a memory barrier (since Linux
//! 4.14).

use std::sync::OnceLock;

// linux/membarrier.h
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
/// After so many refusals in a row it is told, once.
const REFUSALS_TOLD: u32 = 10_000;

#[cfg(test)]
thread_local! {
    /// How often this thread has made others pass a barrier.
    pub(crate) static ORDERED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn call(command: libc::c_int) -> bool {
    // SAFETY: these commands take no pointers; flags and processor are unused.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Whether there is such a thing. Always the same.
pub(crate) fn is_there() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // What registers may yet be refused what it has registered for, by a filter of system calls.
    *REGISTERED.get_or_init(|| call(REGISTER_PRIVATE_EXPEDITED) && call(PRIVATE_EXPEDITED))
}

/// When this returns, every other thread of the process has passed a full memory barrier since it
/// was called, and so has this one. Only where there is such a thing.
pub(crate) fn order_all_threads() {
    #[cfg(test)]
    ORDERED.set(ORDERED.get() + 1);
    // Who is registered is only refused for want of memory, or by a filter of system calls that
    // came later. Going on without would free memory in use.
    let mut refused = 0u32;
    while !call(PRIVATE_EXPEDITED) {
        refused = refused.saturating_add(1);
        if refused == REFUSALS_TOLD {
            tracing::error!(target: "dpdk", "membarrier is refused: {}", std::io::Error::last_os_error());
        }
        std::thread::yield_now();
    }
}
