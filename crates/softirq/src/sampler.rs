//! Loads of cores, from the programs on the kernel's tracepoints, or else from /proc/stat.
//!
//! On kernels without IRQ_TIME_ACCOUNTING /proc/stat does not include the time of interrupts; a
//! core that only runs softirqs can look idle there. So /proc/stat is only used if there are no
//! tracepoints, and the status names the source.

use crate::clock::now_ns;
use crate::layout::{BUCKETS, CPUMAP, Core, IDLE, IRQ, SOFTIRQ, TASK};
use crate::program::Program;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::HashMap;
use steer::cores::Load;

/// Source of loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The kernel's tracepoints: exact.
    Tracepoints,
    /// /proc/stat, which may not include interrupts.
    ProcStat,
}

/// A core's time between two samples, as shares of it.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Shares {
    /// Everything but idle time.
    pub load: f64,
    /// Tasks.
    pub task: f64,
    /// Threads of cpumaps, which process redirected packets.
    pub cpumap: f64,
    /// Softirqs.
    pub softirq: f64,
    /// Interrupts.
    pub irq: f64,
}

impl Shares {
    /// Returns the load in the policy's form.
    pub fn as_load(&self) -> Load {
        Load::of(self.load)
    }

    /// Returns the share of the time that packets can have cost at most.
    pub fn packets(&self) -> f64 {
        self.cpumap + self.softirq
    }
}

/// A reading of one core: time by kind until `at_ns`.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at_ns: u64,
    ns: [u64; BUCKETS],
}

/// Reader of loads.
pub struct Sampler {
    source: Source,
    before: HashMap<u32, Reading>,
}

impl Sampler {
    /// Starts to read from a source.
    pub fn new(source: Source) -> Sampler {
        Sampler {
            source,
            before: HashMap::new(),
        }
    }

    /// Returns the source of loads.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns how a core spent the time since the last call; none at the first call, if nothing
    /// has been seen of the core, or if no time has passed.
    pub fn shares(&mut self, program: &Program, cpu: u32) -> Option<Shares> {
        let now = match self.source {
            Source::Tracepoints => of_core(&program.core(cpu)?, now_ns()),
            Source::ProcStat => {
                let text = std::fs::read_to_string("/proc/stat").ok()?;
                of_proc_stat(&text, cpu, now_ns())?
            }
        };
        let before = self.before.insert(cpu, now)?;
        between(&before, &now)
    }
}

/// Adds the time that is not in the sums yet to what the core does now.
fn of_core(core: &Core, now_ns: u64) -> Reading {
    let mut ns = core.ns;
    let bucket = match (core.irq_depth, core.in_softirq) {
        (0, 0) => core.running as usize,
        (0, _) => SOFTIRQ,
        _ => IRQ,
    };
    ns[bucket.min(IRQ)] += now_ns.saturating_sub(core.since_ns);
    Reading { at_ns: now_ns, ns }
}

/// Reads a core's line of /proc/stat. Times are in hundredths of a second: user, nice, system,
/// idle, iowait, irq, softirq, steal.
fn of_proc_stat(text: &str, cpu: u32, now_ns: u64) -> Option<Reading> {
    let name = format!("cpu{cpu} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
    let ticks: Vec<u64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    let of = |at: usize| ticks.get(at).copied().unwrap_or(0) * 10_000_000;
    let mut ns = [0; BUCKETS];
    ns[IDLE] = of(3) + of(4);
    ns[TASK] = of(0) + of(1) + of(2) + of(7);
    (ns[IRQ], ns[SOFTIRQ]) = (of(5), of(6));
    Some(Reading { at_ns: now_ns, ns })
}

fn between(before: &Reading, now: &Reading) -> Option<Shares> {
    let spent = |bucket: usize| now.ns[bucket].saturating_sub(before.ns[bucket]) as f64;
    // Shares of the accounted time. It differs from the clock's by what was read a moment later,
    // and in /proc/stat by time for which there has been no tick yet.
    let all: f64 = (0..BUCKETS).map(spent).sum();
    let passed = now.at_ns.saturating_sub(before.at_ns) as f64;
    if all <= 0.0 || passed <= 0.0 {
        return None;
    }
    let share = |bucket| spent(bucket) / all;
    Some(Shares {
        load: 1.0 - share(IDLE),
        task: share(TASK),
        cpumap: share(CPUMAP),
        softirq: share(SOFTIRQ),
        irq: share(IRQ),
    })
}

/// Causes a task switch on each of these processors, so that their state is known from then on: a
/// core that runs a single task all the time would not be seen otherwise. Does not wait, since a
/// processor may be busy with tasks of the highest priority.
pub fn visit(cpus: &[u32]) {
    let cpus = cpus.to_vec();
    std::thread::spawn(move || {
        for cpu in cpus {
            let mut set = CpuSet::new();
            set.set(cpu as usize);
            // Fails for a processor that has gone offline.
            let _ = sched_setaffinity(None, &set);
            std::thread::yield_now();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_belongs_to_what_a_core_does_until_it_does_another() {
        let mut core: Core = crate::object::zeroed();
        core.since_ns = 100;
        core.ns = [40, 30, 20, 10, 0];
        core.running = CPUMAP as u32;
        assert_eq!(of_core(&core, 105).ns, [40, 30, 25, 10, 0]);
        core.in_softirq = 1;
        assert_eq!(of_core(&core, 105).ns, [40, 30, 20, 15, 0]);
        core.irq_depth = 1;
        assert_eq!(of_core(&core, 105).ns, [40, 30, 20, 10, 5]);
    }

    #[test]
    fn shares_are_of_the_time_between_two_readings() {
        let reading = |at_ns, ns| Reading { at_ns, ns };
        let before = reading(0, [0; BUCKETS]);
        let shares = between(&before, &reading(100, [25, 25, 0, 50, 0])).unwrap();
        assert_eq!(
            (shares.load, shares.softirq, shares.task),
            (0.75, 0.5, 0.25)
        );
        assert_eq!(shares.as_load(), Load::percent(75));
        assert!(between(&before, &before).is_none());
    }

    #[test]
    fn proc_stat_is_read_by_processor() {
        let text = "cpu  1 1 1 1\ncpu0 10 0 5 80 5 1 2 0 0 0\ncpu1 1 2 3 4\n";
        let reading = of_proc_stat(text, 0, 7).unwrap();
        assert_eq!(reading.ns[IDLE], 850_000_000);
        assert_eq!(reading.ns[SOFTIRQ], 20_000_000);
        assert!(of_proc_stat(text, 2, 7).is_none());
    }
}
