//! The processors of this process, and which of them the control thread leaves to workers.
//!
//! A worker that is pinned to a processor never rests while there are packets. Were the control
//! thread to run there too, it would have half of the processor, and that only every few
//! milliseconds, while another idles; and the worker would lose the other half. The scheduler sees
//! neither. So control keeps off the workers' processors as long as it is left one.
//!
//! Workers are pinned where `pmd-cpu-mask` says, also where that is beyond what the process was
//! started with: who starts a daemon on one processor and names another for its workers means it,
//! and Open vSwitch does it. What a cpuset forbids stays forbidden.

use std::sync::{Mutex, OnceLock};

/// What the process was started with.
static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
/// Where all but workers keep to.
static LEFT: Mutex<Option<Vec<usize>>> = Mutex::new(None);
/// What its workers may have.
static POSSIBLE: OnceLock<Vec<usize>> = OnceLock::new();

/// The processors that this process was started on, ascending. Threads may have been pinned since
/// it was asked first.
pub fn allowed() -> &'static [usize] {
    ALLOWED.get_or_init(own)
}

/// The processors that a thread of this process can be pinned to, ascending.
pub fn possible() -> &'static [usize] {
    POSSIBLE.get_or_init(ask)
}

fn ask() -> Vec<usize> {
    // On a thread that ends: asking for all processors gives those that its cpuset has.
    let asked = std::thread::spawn(|| {
        // SAFETY: an all-zero cpu_set_t is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for cpu in 0..libc::CPU_SETSIZE as usize {
            // SAFETY: `cpu` is below CPU_SETSIZE.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        // SAFETY: `set` is valid for its own size; pid 0 is the calling thread. Where it is
        // refused, the thread has what it had.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
        own()
    });
    match asked.join() {
        Ok(cpus) if !cpus.is_empty() => cpus,
        _ => allowed().to_vec(),
    }
}

/// The processors that the calling thread may run on, ascending.
fn own() -> Vec<usize> {
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

/// A processor for what is to be measured or to take long: one that no worker has, if there is one.
pub fn quiet(workers: &[usize]) -> usize {
    left(allowed(), workers).last().copied().unwrap_or(0)
}

/// Makes this process's threads, but for workers, keep off the processors of workers, as far as
/// others are left.
///
/// DPDK's own threads are meant too: it pins them to processors that it does not use itself, which
/// are those that workers get. So is the one that reads messages of hypervisors: there it
/// would stop a worker for each; and a worker that waits at a gate would use up the time of the
/// very thread that is to open it.
pub fn leave_to_workers(workers: &[usize]) {
    let cpus = left(allowed(), workers);
    *LEFT.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(cpus.clone());
    keep_to(&cpus);
}

/// The same for threads that have come since.
pub fn leave_to_workers_again() {
    let cpus = LEFT.lock().unwrap_or_else(|poison| poison.into_inner());
    if let Some(cpus) = &*cpus {
        keep_to(cpus);
    }
}

fn keep_to(cpus: &[usize]) {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus {
        // SAFETY: `allowed` gives indices below CPU_SETSIZE.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` is valid for its own size; a thread that has ended meanwhile, or is not ours,
    // is an error and nothing else.
    let keep = |thread| unsafe {
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set) == 0
    };
    if !keep(0) && !cpus.is_empty() {
        let error = crate::plain_error(&std::io::Error::last_os_error());
        tracing::warn!(target: "dpif_netdev", "the control thread cannot keep to CPUs {cpus:?}: {error}");
    }
    let threads = std::fs::read_dir("/proc/self/task");
    for thread in threads.into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        let number = thread.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(number) = number
            && is_helper(&name)
        {
            keep(number);
        }
    }
}

/// Whether a thread with this name only helps: DPDK's own, those that read hypervisors' messages,
/// build tables, close sockets and write the log.
fn is_helper(name: &str) -> bool {
    const HELPERS: [&str; 6] = ["eal-intr", "vhost", "rte_mp", "tables", "log", "close"];
    HELPERS.iter().any(|helper| name.starts_with(helper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_only_help_are_known_by_their_names() {
        for name in [
            "eal-intr-thread\n",
            "vhost-events",
            "tables",
            "close",
            "log",
        ] {
            assert!(is_helper(name), "{name}");
        }
        for name in [
            "pmd-c01/id:1\n",
            "pmd-any/id:1",
            "sluiced",
            "lcore-worker-1",
        ] {
            assert!(!is_helper(name), "{name}");
        }
    }

    #[test]
    fn workers_may_run_where_control_does_not() {
        let then = std::thread::spawn(|| {
            let before = ask();
            leave_to_workers(&before[..before.len() - 1]);
            (before, ask())
        });
        let (before, after) = then.join().unwrap();
        assert_eq!(before, after);
    }

    #[test]
    fn control_keeps_off_workers_as_long_as_it_is_left_something() {
        assert_eq!(left(&[0, 1, 4], &[1]), [0, 4]);
        assert_eq!(left(&[0, 1, 4], &[]), [0, 1, 4]);
        assert_eq!(left(&[0, 1], &[0, 1]), [0, 1]);
        // A thread of its own: affinity is a thread's.
        let then = std::thread::spawn(|| {
            let before = allowed().to_vec();
            leave_to_workers(&before[..1]);
            // What control may use now is not asked, but what the process may.
            assert_eq!(quiet(&before[..1]), before[before.len() - 1]);
            assert_eq!(quiet(&before[1..]), before[0]);
            assert!(before.contains(&quiet(&before)));
            leave_to_workers(&[]);
            (before, allowed().to_vec())
        });
        let (before, after) = then.join().unwrap();
        assert_eq!(before, after);
    }
}
