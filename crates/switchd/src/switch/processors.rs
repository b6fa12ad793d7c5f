//! The processors of this process, and which of them the control thread leaves to workers.
//!
//! A worker that is pinned to a processor never rests while there are packets. If the control
//! thread ran there too, it would get half of the processor, and only every few milliseconds, while
//! another processor idles; and the worker would lose that half. The scheduler does not prevent
//! this. So control avoids the workers' processors while there is another one.
//!
//! Workers are pinned where `pmd-cpu-mask` says, even outside the affinity that the process was
//! started with, as in Open vSwitch: whoever starts a daemon on one processor and names another for
//! its workers means it. Limits of a cpuset are kept.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::{Mutex, OnceLock};

/// The affinity that the process was started with.
static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();
/// The processors for all threads but workers.
static LEFT: Mutex<Option<Vec<usize>>> = Mutex::new(None);
/// The processors that workers may use.
static POSSIBLE: OnceLock<Vec<usize>> = OnceLock::new();

/// Returns the processors that this process was started on, ascending. The first call stores them,
/// so later pinning has no effect.
pub fn allowed() -> &'static [usize] {
    ALLOWED.get_or_init(own)
}

/// Returns the processors that a thread of this process can be pinned to, ascending.
pub fn possible() -> &'static [usize] {
    POSSIBLE.get_or_init(ask)
}

fn ask() -> Vec<usize> {
    // On a temporary thread: asking for all processors gives those of its cpuset.
    let asked = std::thread::spawn(|| {
        // If it is refused, the thread keeps its affinity.
        let _ = sched_setaffinity(None, &set_of(0..CpuSet::MAX_CPU));
        own()
    });
    match asked.join() {
        Ok(cpus) if !cpus.is_empty() => cpus,
        _ => allowed().to_vec(),
    }
}

/// Returns the processors that the calling thread may run on, ascending.
fn own() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

/// Returns a set of processors, whose numbers are below [`CpuSet::MAX_CPU`].
fn set_of(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.into_iter().for_each(|cpu| set.set(cpu));
    set
}

/// Returns the processors left when workers have `workers`; all if none would be left.
fn left(allowed: &[usize], workers: &[usize]) -> Vec<usize> {
    let left = allowed.iter().filter(|cpu| !workers.contains(cpu));
    let left: Vec<usize> = left.copied().collect();
    if left.is_empty() {
        allowed.to_vec()
    } else {
        left
    }
}

/// Returns a processor for measurements and long tasks: one without a worker, if there is one.
pub fn quiet(workers: &[usize]) -> usize {
    left(allowed(), workers).last().copied().unwrap_or(0)
}

/// Makes this process's threads, except workers, avoid the processors of workers, as far as others
/// are left.
///
/// This includes DPDK's own threads, which DPDK pins to processors that it does not use itself, and
/// these are just the workers'. It also includes the thread that reads messages of hypervisors: on
/// a worker's processor it would stop the worker for each message, and a worker that waits at a
/// gate would use up the time of the very thread that is to open it.
pub fn leave_to_workers(workers: &[usize]) {
    let cpus = left(allowed(), workers);
    *LEFT.lock().unwrap_or_else(|poison| poison.into_inner()) = Some(cpus.clone());
    keep_to(&cpus);
}

/// Applies [`leave_to_workers`] to threads started since.
pub fn leave_to_workers_again() {
    let cpus = LEFT.lock().unwrap_or_else(|poison| poison.into_inner());
    if let Some(cpus) = &*cpus {
        keep_to(cpus);
    }
}

fn keep_to(cpus: &[usize]) {
    let set = set_of(cpus.iter().copied());
    if let Err(error) = sched_setaffinity(None, &set)
        && !cpus.is_empty()
    {
        let error = crate::plain_error(&error.into());
        tracing::warn!(target: "dpif_netdev", "the control thread cannot keep to CPUs {cpus:?}: {error}");
    }
    let threads = std::fs::read_dir("/proc/self/task");
    for thread in threads.into_iter().flatten().flatten() {
        let name = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        let number = thread.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(number) = number
            && is_helper(&name)
        {
            // A thread that has ended meanwhile, or is not ours, is an error and nothing else.
            let _ = sched_setaffinity(Pid::from_raw(number), &set);
        }
    }
}

/// Returns whether a thread with this name is a helper: DPDK's own, and those that read
/// hypervisors' messages, build tables, open devices, close sockets, steer and write the log.
fn is_helper(name: &str) -> bool {
    const HELPERS: [&str; 9] = [
        "eal-intr", "vhost", "rte_mp", "tables", "log", "close", "links", "devices", "steer",
    ];
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
            "devices",
            "links",
            "steer-eth0",
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
        // On a thread of its own, since affinity belongs to a thread.
        let then = std::thread::spawn(|| {
            let before = allowed().to_vec();
            leave_to_workers(&before[..1]);
            // The result depends on the process's affinity, not on what control may use now.
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
