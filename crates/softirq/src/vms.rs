//! The cores on which virtual machines run: as told, or as found from their threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Most threads of one process that are read.
const THREADS_MAX: usize = 1024;

/// How a virtual machine's cores are known.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VmLocation {
    /// It runs on this core.
    Core(u32),
    /// It is this process: QEMU, or another one that runs its virtual processors.
    Process(u32),
}

/// A thread of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Thread {
    /// Time that it has run, ticks.
    ticks: u64,
    /// The processor on which it ran last.
    cpu: u32,
}

/// A virtual machine.
#[derive(Clone, Debug)]
pub struct Vm {
    /// How its cores are known.
    pub place: VmLocation,
    /// The cores that it runs on.
    pub cores: BTreeSet<u32>,
    threads: BTreeMap<u32, Thread>,
}

impl Vm {
    /// Creates a virtual machine; its cores are not known yet, unless they are told.
    pub fn new(place: VmLocation) -> Vm {
        let cores = match place {
            VmLocation::Core(core) => BTreeSet::from([core]),
            VmLocation::Process(_) => BTreeSet::new(),
        };
        Vm {
            place,
            cores,
            threads: BTreeMap::new(),
        }
    }

    /// Finds the cores of its threads. Returns false if its process has ended.
    pub fn look(&mut self) -> bool {
        let VmLocation::Process(pid) = self.place else {
            return true;
        };
        let Some(threads) = threads(pid) else {
            self.cores.clear();
            return false;
        };
        let busy = cores_of(&self.threads, &threads);
        // If none has run meanwhile, they are still where they were.
        if !busy.is_empty() {
            self.cores = busy;
        }
        self.threads = threads;
        true
    }
}

/// Returns the cores of the virtual processors' threads, which QEMU names `CPU n/KVM`; if no thread
/// has such a name, of all that have run since the last reading, or of all at the first one.
fn cores_of(before: &BTreeMap<u32, Thread>, now: &BTreeMap<u32, Thread>) -> BTreeSet<u32> {
    let has_run = |(id, thread): &(&u32, &Thread)| {
        before.is_empty()
            || before
                .get(id)
                .is_none_or(|before| before.ticks != thread.ticks)
    };
    now.iter()
        .filter(has_run)
        .map(|(_, thread)| thread.cpu)
        .collect()
}

fn threads(pid: u32) -> Option<BTreeMap<u32, Thread>> {
    let directory = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut all = BTreeMap::new();
    let mut vcpus = BTreeMap::new();
    for thread in directory.flatten().take(THREADS_MAX) {
        let Some(id) = thread
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        if let Some((name, thread)) = parse_stat(&stat) {
            all.insert(id, thread);
            if name.starts_with("CPU ") && name.ends_with("/KVM") {
                vcpus.insert(id, thread);
            }
        }
    }
    let found = if vcpus.is_empty() { all } else { vcpus };
    (!found.is_empty()).then_some(found)
}

/// Parses `PID (NAME) STATE ...`: user and system time are fields 14 and 15, the processor is 39.
fn parse_stat(stat: &str) -> Option<(&str, Thread)> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let name = head.split_once('(')?.1;
    let words: Vec<&str> = rest.split(' ').collect();
    if words
        .first()
        .is_some_and(|state| ["Z", "X"].contains(state))
    {
        return None;
    }
    let number = |field: usize| words.get(field - 3)?.trim().parse::<u64>().ok();
    let thread = Thread {
        ticks: number(14)? + number(15)?,
        cpu: u32::try_from(number(39)?).ok()?,
    };
    Some((name, thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_stat_is_read() {
        let mut words = vec!["0"; 50];
        (words[0], words[11], words[12], words[36]) = ("R", "70", "5", "3");
        let stat = format!("12 (CPU 0) x/KVM) {}", words.join(" "));
        let (name, thread) = parse_stat(&stat).unwrap();
        assert_eq!(name, "CPU 0) x/KVM");
        assert_eq!(thread, Thread { ticks: 75, cpu: 3 });
        assert_eq!(parse_stat("12 (a"), None);
    }

    #[test]
    fn threads_that_have_run_say_where_it_is() {
        let thread = |ticks, cpu| Thread { ticks, cpu };
        let before = BTreeMap::from([(1, thread(5, 0)), (2, thread(9, 1))]);
        let now = BTreeMap::from([(1, thread(5, 0)), (2, thread(12, 3)), (4, thread(0, 2))]);
        assert_eq!(cores_of(&before, &now), BTreeSet::from([2, 3]));
        assert_eq!(cores_of(&BTreeMap::new(), &before), BTreeSet::from([0, 1]));
        let mut this = Vm::new(VmLocation::Process(std::process::id()));
        assert!(this.look() && !this.cores.is_empty());
        assert!(!Vm::new(VmLocation::Process(u32::MAX)).look());
    }
}
