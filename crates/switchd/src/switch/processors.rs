//! The processors of this process, and which of them the control thread leaves to workers.
//!
//! A worker that is pinned to a processor never rests while there are packets. Were the control thread to run there too, it would have half of the processor, and
//! that only every few milliseconds, while another idles; and the worker would lose the other half. The scheduler sees neither. So control keeps off the
//! workers' processors as long as it is left one.

use std::sync::OnceLock;

/// What the process was started with.
static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();

/// The processors that this process may run on, ascending. Threads may have been pinned since it was asked first.
pub fn allowed() -> &'static [usize] {
    ALLOWED.get_or_init(|| {
        // SAFETY: an all-zero cpu_set_t is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid place for a set of its own size.
        if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0 {
            return Vec::new();
        }
        // SAFETY: indices are below CPU_SETSIZE.
        (0..libc::CPU_SETSIZE as usize)
            .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
            .collect()
    })
}

/// The processors that are left when workers have these; all where none would be.
fn left(allowed: &[usize], workers: &[usize]) -> Vec<usize> {
    let left = allowed.iter().filter(|cpu| !workers.contains(cpu));
    let left: Vec<usize> = left.copied().collect();
    if left.is_empty() {
        allowed.to_vec()
    } else {
        left
    }
}

/// Makes the calling thread, and threads that it will start, keep off the processors of workers, as far as others are left.
pub fn leave_to_workers(workers: &[usize]) {
    let cpus = left(allowed(), workers);
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in &cpus {
        // SAFETY: `allowed` gives indices below CPU_SETSIZE.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` is valid for its own size; pid 0 is the calling thread.
    let done = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if done != 0 && !cpus.is_empty() {
        let error = crate::plain_error(&std::io::Error::last_os_error());
        tracing::warn!(target: "dpif_netdev", "the control thread cannot keep to CPUs {cpus:?}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_keeps_off_workers_as_long_as_it_is_left_something() {
        assert_eq!(left(&[0, 1, 4], &[1]), [0, 4]);
        assert_eq!(left(&[0, 1, 4], &[]), [0, 1, 4]);
        assert_eq!(left(&[0, 1], &[0, 1]), [0, 1]);
        // A thread of its own: affinity is a thread's.
        let then = std::thread::spawn(|| {
            let before = allowed().to_vec();
            leave_to_workers(&before[..1]);
            leave_to_workers(&[]);
            (before, allowed().to_vec())
        });
        let (before, after) = then.join().unwrap();
        assert_eq!(before, after);
    }
}
