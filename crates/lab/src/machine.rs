//! What a run was made on: the processor, memory, kernel and noise of this host, and what limits
//! what can be shown here.

use crate::lines::Line;
use crate::results::{Figure, Machine, Value};
use crate::speed::Probe;
use crate::statistics;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that are copied to measure memory: more than caches hold.
const COPIED: usize = 64 << 20;
/// Measurements of each rate.
const TRIES: usize = 5;
/// By this factor the way between two cores has moved: it is another one.
const MOVED: f64 = 1.5;
/// How long stalls are watched for.
const WATCHED: Duration = Duration::from_millis(200);
/// A pause of a loop that does nothing else is a stall from here on.
const STALL: Duration = Duration::from_micros(20);
/// Bytes of a packet that cross memory twice when a network card writes it and reads it again.
const SMALL: f64 = 64.0;

/// Where the kernel says what it knows; tests have their own.
pub struct Host {
    root: PathBuf,
}

impl Default for Host {
    fn default() -> Host {
        Host { root: "/".into() }
    }
}

/// Time of all processors, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ticks {
    /// All of it.
    pub all: u64,
    /// Taken by the hypervisor for others.
    pub stolen: u64,
    /// In interrupts and softirqs.
    pub interrupted: u64,
}

/// What was measured of this host for the headroom table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Bytes per second copied from memory to memory.
    pub copy: [f64; TRIES],
    /// Bytes per second copied in a cache, 1500 at a time.
    pub cached: [f64; TRIES],
    /// Nanoseconds of a load that misses the processor's own caches.
    pub load_ns: [f64; TRIES],
    /// Share of time in which a loop did not run, 0 to 1.
    pub stalled: f64,
}

impl Host {
    /// One whose root is elsewhere.
    pub fn at(root: &Path) -> Host {
        Host { root: root.into() }
    }

    /// A path below its root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without the end of its line; nothing if there is none.
    pub fn text(&self, path: &str) -> Option<String> {
        let text = std::fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&text).trim_end().to_string())
    }

    /// Names in a directory, in order.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Fields of a file whose lines are `name: value`, of the first paragraph.
    fn fields(&self, path: &str) -> BTreeMap<String, String> {
        let text = self.text(path).unwrap_or_default();
        text.lines()
            .take_while(|line| !line.is_empty())
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.trim().to_string(), value.trim().to_string()))
            .collect()
    }

    /// Times of all processors since they were started.
    pub fn ticks(&self) -> Ticks {
        let text = self.text("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let numbers: Vec<u64> = line
            .split_whitespace()
            .skip(1)
            .filter_map(|word| word.parse().ok())
            .collect();
        let at = |index: usize| numbers.get(index).copied().unwrap_or(0);
        Ticks {
            // Guests' time is in user time already.
            all: numbers.iter().take(8).sum(),
            interrupted: at(5) + at(6),
            stolen: at(7),
        }
    }

    /// Describes the machine. `cores` are those that the run may use, `before` the times when it
    /// began.
    pub fn describe(
        &self,
        cores: &[usize],
        before: Ticks,
        tsc_mhz: f64,
        measured: &Measured,
    ) -> Machine {
        let processor = self.fields("/proc/cpuinfo");
        let memory = self.fields("/proc/meminfo");
        let kib = |name: &str| -> u64 {
            let text = memory.get(name).map_or("", String::as_str);
            text.split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        let after = self.ticks();
        let all = after.all.saturating_sub(before.all).max(1) as f64;
        let part = |now: u64, then: u64| now.saturating_sub(then) as f64 / all;
        let flags = processor.get("flags").cloned().unwrap_or_default();
        let is_virtual = flags.split_whitespace().any(|flag| flag == "hypervisor");
        let page_kib = kib("Hugepagesize");
        let siblings = |core: &usize| {
            let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            self.text(&path)
                .is_some_and(|list| list.contains([',', '-']))
        };
        let mut machine = Machine {
            processor: processor
                .get("model name")
                .cloned()
                .unwrap_or_else(|| "unknown".into()),
            cores: cores.len() as u32,
            threads: cores.iter().any(siblings),
            tsc_mhz,
            caches: self.caches(cores.first().copied().unwrap_or(0)),
            memory_mib: kib("MemTotal") / 1024,
            // What could be made of memory that is free, and what is set aside already.
            huge_mib: (kib("MemAvailable") + kib("HugePages_Total") * page_kib) / 1024,
            kernel: self.text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            hypervisor: is_virtual.then(|| self.hypervisor()),
            nics: self.nics(),
            noise: (part(after.stolen, before.stolen) + measured.stalled).min(1.0),
            speeds: Vec::new(),
            between_ns: Vec::new(),
            limits: Vec::new(),
            headroom: Vec::new(),
        };
        machine.headroom = headroom(&machine, measured);
        machine.limits = self.limits(&machine);
        machine
    }

    /// Caches that a core sees: name and bytes.
    fn caches(&self, core: usize) -> Vec<(String, u64)> {
        let base = format!("/sys/devices/system/cpu/cpu{core}/cache");
        let mut caches = Vec::new();
        for index in self.names(&base) {
            let read = |file: &str| self.text(&format!("{base}/{index}/{file}"));
            let (Some(level), Some(kind), Some(size)) = (read("level"), read("type"), read("size"))
            else {
                continue;
            };
            let suffix = match kind.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            let digits = size.trim_end_matches(|c: char| !c.is_ascii_digit());
            let unit = if size.ends_with('M') {
                1 << 20
            } else {
                1 << 10
            };
            if let Ok(number) = digits.parse::<u64>() {
                caches.push((format!("L{level}{suffix}"), number * unit));
            }
        }
        caches
    }

    fn hypervisor(&self) -> String {
        let product = ["sys_vendor", "product_name"].map(|file| {
            self.text(&format!("/sys/class/dmi/id/{file}"))
                .unwrap_or_default()
        });
        let words = product.join(" ").trim().to_string();
        match words.is_empty() {
            false => words,
            true => "unnamed".into(),
        }
    }

    /// Network interfaces with a device behind them that is no virtio one.
    fn nics(&self) -> Vec<String> {
        let is_nic = |name: &String| {
            let device = format!("/sys/class/net/{name}/device");
            let driver = std::fs::read_link(self.path(&format!("{device}/driver")));
            let driver = driver
                .ok()
                .and_then(|link| Some(link.file_name()?.to_str()?.to_string()));
            self.path(&device).exists() && driver.is_none_or(|driver| driver != "virtio_net")
        };
        self.names("/sys/class/net")
            .into_iter()
            .filter(is_nic)
            .collect()
    }

    /// What limits what can be shown here, a sentence each.
    fn limits(&self, machine: &Machine) -> Vec<String> {
        let mut limits = Vec::new();
        if machine.nics.is_empty() {
            limits.push(
                "There is no physical network interface: memory, vhost-user and veth stand in its \
                 place, and line rate, the card and PCIe limit nothing."
                    .into(),
            );
        }
        if machine.cores < 3 {
            let cores = machine.cores;
            limits.push(format!(
                "There are {cores} cores for switch, generator and guests: more than one worker, or \
                 guests that forward, share cores with the generator."
            ));
        }
        if machine.threads {
            limits.push(
                "Cores are threads of shared cores: a worker has half of a core while its sibling is \
                 busy."
                    .into(),
            );
        }
        if let Some(hypervisor) = &machine.hypervisor {
            limits.push(format!(
                "It is a virtual machine ({hypervisor}): others take its time, caches and memory \
                 bandwidth, so windows in which its speed moved are repeated."
            ));
        }
        if machine.noise > 0.01 {
            limits.push(format!(
                "For {:.1}% of the time the machine did something else: the highest latencies are \
                 its own.",
                100.0 * machine.noise
            ));
        }
        let scaling = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_setspeed";
        if self.text(scaling).is_none() {
            limits.push("The processor's frequency cannot be set.".into());
        }
        let is_there = |name: &String| name == "cpu" || name == "cpu_core";
        if !self
            .names("/sys/bus/event_source/devices")
            .iter()
            .any(is_there)
        {
            limits.push(
                "The processor shows no performance counters: cache misses cannot be counted."
                    .into(),
            );
        }
        limits
    }
}

/// Measures what the headroom table needs, on this core. Takes about a second.
pub fn measure(probe: &mut dyn Probe, core: usize) -> Measured {
    let mut measured = Measured {
        stalled: stalls(),
        ..Measured::default()
    };
    let from = vec![1_u8; COPIED];
    let mut to = vec![0_u8; COPIED];
    for copy in &mut measured.copy {
        *copy = rate(COPIED, 1, || {
            to.copy_from_slice(std::hint::black_box(&from))
        });
    }
    let packet = &from[..1500];
    for cached in &mut measured.cached {
        *cached = rate(1500, 100_000, || {
            std::hint::black_box(&mut to[..1500]).copy_from_slice(std::hint::black_box(packet));
        });
    }
    for load in &mut measured.load_ns {
        *load = probe.look(core).map_or(0.0, |reading| reading.memory_ns);
    }
    measured
}

/// What each bottleneck of this host allows, as cells of an experiment: million packets per second.
pub fn bottlenecks(measured: &Measured, cycles_per_second: f64) -> Vec<Line> {
    let line = |name: &str, rate: f64| Line {
        subject: "host".into(),
        at: BTreeMap::from([("bottleneck".to_string(), Value::from(name))]),
        figures: BTreeMap::from([("rate".to_string(), rate / 1e6)]),
        ..Line::default()
    };
    let load = statistics::median(&measured.load_ns);
    let mut lines = vec![
        line(
            "memory, 64 bytes",
            statistics::median(&measured.copy) / SMALL,
        ),
        line(
            "memory, 1518 bytes",
            statistics::median(&measured.copy) / 1518.0,
        ),
        line(
            "copies in cache, 1500 bytes",
            statistics::median(&measured.cached) / 1500.0,
        ),
        line("processor, 100 cycles", cycles_per_second / 100.0),
        line("processor, 1000 cycles", cycles_per_second / 1000.0),
    ];
    if load > 0.0 {
        lines.push(line("one wait for a far cache line", 1e9 / load));
    }
    lines
}

/// Bytes per second of an action that is repeated.
fn rate(bytes: usize, times: usize, mut act: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..times {
        act();
    }
    (bytes * times) as f64 / begun.elapsed().as_secs_f64().max(1e-9)
}

/// The share of time in which a loop that does nothing did not run.
fn stalls() -> f64 {
    let begun = Instant::now();
    let (mut last, mut lost) = (begun, Duration::ZERO);
    while last.duration_since(begun) < WATCHED {
        let now = Instant::now();
        let pause = now.duration_since(last);
        if pause > STALL {
            lost += pause;
        }
        last = now;
    }
    lost.as_secs_f64() / last.duration_since(begun).as_secs_f64()
}

/// B11: what this host allows at each bottleneck, in million packets of 64 bytes per second where
/// that can be said.
fn headroom(machine: &Machine, measured: &Measured) -> Vec<(String, Figure, String)> {
    let mut rows = Vec::new();
    let scaled = |values: &[f64], factor: f64| {
        let values: Vec<f64> = values.iter().map(|value| value * factor).collect();
        statistics::figure(&values)
    };
    if machine.nics.is_empty() {
        rows.push((
            "Line rate, card and PCIe".to_string(),
            Figure::default(),
            "There is no network card here. The paper's: 14.88 Mpps, 24 Mpps, 32 Gbit/s."
                .to_string(),
        ));
    }
    rows.push((
        "Memory bandwidth".into(),
        scaled(&measured.copy, 8.0 / 1e9),
        format!(
            "Gbit/s copied from memory to memory by one core: {:.0} Mpps of 64 bytes if every packet \
             were copied there once. The paper's: 200 Gbit/s.",
            statistics::median(&measured.copy) / SMALL / 1e6
        ),
    ));
    rows.push((
        "Copies in a cache".into(),
        scaled(&measured.cached, 8.0 / 1e9),
        format!(
            "Gbit/s, 1500 bytes at a time: {:.1} Mpps of such packets into guests.",
            statistics::median(&measured.cached) / 1500.0 / 1e6
        ),
    ));
    let load = statistics::median(&measured.load_ns);
    if load > 0.0 {
        rows.push((
            "Shared cache or memory".into(),
            scaled(&measured.load_ns, 1.0),
            format!(
                "ns for a line that a core's own caches lack: {:.1} Mpps if each packet waited for \
                 one, and nothing else.",
                1e3 / load
            ),
        ));
    }
    let last = machine
        .caches
        .iter()
        .rfind(|(name, _)| name.starts_with('L'));
    if let Some((name, bytes)) = last {
        let entries = *bytes as f64 / 576.0;
        rows.push((
            format!("{name} and table entries"),
            single(*bytes as f64 / 1024.0),
            format!("KiB: {entries:.0} of the paper's flow entries of 576 bytes."),
        ));
    }
    rows.push((
        "Processor".into(),
        single(machine.tsc_mhz / 14.88),
        "cycles for each packet if one core is to forward 14.88 Mpps (10 Gbit/s of 64 bytes)."
            .into(),
    ));
    rows
}

fn single(value: f64) -> Figure {
    statistics::figure(&[value])
}

/// What it means if a cache line's way between two cores was not the same all the time: a sentence,
/// if it was not.
pub fn ways(between_ns: &[f64]) -> Option<String> {
    let least = between_ns.iter().copied().fold(f64::INFINITY, f64::min);
    let most = between_ns.iter().copied().fold(0.0, f64::max);
    let middle = statistics::median(between_ns);
    (least.is_finite() && most > least * MOVED).then(|| {
        format!(
            "A cache line took from {least:.0} to {most:.0} ns between two cores and back (median \
             {middle:.0}): the host moves its virtual processors, or windows used other pairs of \
             cores. Figures with guests, a generator or several workers differ by that from start \
             to start."
        )
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::speed::{ProbeError, Reading};

    /// A host with these files, and the directory that they are in.
    pub(crate) fn host(files: &[(&str, &str)]) -> (Host, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (Host::at(directory.path()), directory)
    }

    fn measured() -> Measured {
        Measured {
            copy: [1e10; 5],
            cached: [3e10; 5],
            load_ns: [80.0; 5],
            stalled: 0.002,
        }
    }

    #[test]
    fn a_virtual_machine_without_cards_is_described() {
        let cache = "sys/devices/system/cpu/cpu1/cache";
        let (host, _directory) = host(&[
            (
                "proc/cpuinfo",
                "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu hypervisor\n\nprocessor: 1\n",
            ),
            (
                "proc/meminfo",
                "MemTotal:       24684000 kB\nMemAvailable:   1048576 kB\nHugePages_Total:      10\nHugepagesize:       2048 kB\n",
            ),
            ("proc/stat", "cpu  100 0 100 800 0 5 15 80 9 9\n"),
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("sys/class/dmi/id/sys_vendor", "QEMU\n"),
            ("sys/class/net/lo/address", "00"),
            (&format!("{cache}/index0/level"), "1"),
            (&format!("{cache}/index0/type"), "Data"),
            (&format!("{cache}/index0/size"), "32K"),
            (&format!("{cache}/index3/level"), "3"),
            (&format!("{cache}/index3/type"), "Unified"),
            (&format!("{cache}/index3/size"), "32M"),
        ]);
        assert_eq!(
            host.ticks(),
            Ticks {
                all: 1100,
                stolen: 80,
                interrupted: 20
            }
        );
        let before = Ticks {
            all: 100,
            stolen: 30,
            interrupted: 0,
        };
        let machine = host.describe(&[1, 0], before, 2596.0, &measured());
        assert_eq!(machine.processor, "AMD EPYC");
        assert_eq!(
            machine.caches,
            [("L1d".to_string(), 32 << 10), ("L3".to_string(), 32 << 20)]
        );
        assert_eq!((machine.memory_mib, machine.huge_mib), (24_105, 1044));
        assert_eq!(machine.hypervisor.as_deref(), Some("QEMU"));
        assert!((machine.noise - 0.052).abs() < 1e-9, "{}", machine.noise);
        assert!(machine.nics.is_empty() && !machine.threads);
        let limits = machine.limits.join("\n");
        for words in [
            "no physical network",
            "2 cores",
            "virtual machine (QEMU)",
            "5.2% of the time",
            "frequency",
            "performance counters",
        ] {
            assert!(limits.contains(words), "{words}: {limits}");
        }
        let row = |name: &str| machine.headroom.iter().find(|(n, ..)| n == name).unwrap();
        assert_eq!(row("Memory bandwidth").1.median, 80.0);
        assert!(row("L3 and table entries").2.contains("58254"));
        assert!((row("Processor").1.median - 174.46).abs() < 0.01);
    }

    #[test]
    fn a_large_host_has_fewer_limits() {
        let (host, directory) = host(&[
            ("proc/cpuinfo", "model name: Xeon\nflags: fpu\n"),
            ("sys/class/net/eth0/device/vendor", "0x8086"),
            (
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_setspeed",
                "<unsupported>",
            ),
            (
                "sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
                "2,34",
            ),
            ("sys/bus/event_source/devices/cpu/type", "4"),
            ("sys/class/net/ens1/device/vendor", "0x1af4"),
        ]);
        let driver = directory.path().join("sys/class/net/ens1/device/driver");
        std::os::unix::fs::symlink("../../../../bus/virtio/drivers/virtio_net", driver).unwrap();
        let machine = host.describe(&[1, 2, 3], Ticks::default(), 2000.0, &measured());
        assert_eq!(machine.nics, ["eth0"]);
        assert!(machine.threads);
        assert_eq!(machine.limits.len(), 1, "{:?}", machine.limits);
        assert_eq!(machine.hypervisor, None);
    }

    #[test]
    fn bottlenecks_are_packets_per_second() {
        let lines = bottlenecks(&measured(), 2e9);
        let rate = |name: &str| {
            let at = |line: &&Line| line.at["bottleneck"] == Value::from(name);
            lines.iter().find(at).unwrap().figures["rate"]
        };
        assert_eq!(rate("memory, 64 bytes"), 156.25);
        assert_eq!(rate("processor, 100 cycles"), 20.0);
        assert_eq!(rate("one wait for a far cache line"), 12.5);
        assert_eq!(
            bottlenecks(&Measured::default(), 2e9).len(),
            5,
            "without a load's time"
        );
    }

    #[test]
    fn a_way_that_moved_is_said() {
        assert_eq!(ways(&[]), None);
        assert_eq!(ways(&[340.0, 350.0, 361.0]), None);
        let text = ways(&[350.0, 50.0, 345.0]).unwrap();
        assert!(
            text.contains("from 50 to 350 ns") && text.contains("median 345"),
            "{text}"
        );
    }

    #[test]
    fn this_host_can_be_measured() {
        struct Still;
        impl Probe for Still {
            fn look(&mut self, _: usize) -> Result<Reading, ProbeError> {
                Ok(Reading {
                    additions: 1.0,
                    memory_ns: 70.0,
                })
            }

            fn cycles_per_second(&self) -> f64 {
                1e9
            }
        }
        let measured = measure(&mut Still, 0);
        assert!(
            measured
                .copy
                .iter()
                .chain(&measured.cached)
                .all(|rate| *rate > 1e6)
        );
        assert_eq!(measured.load_ns, [70.0; TRIES]);
        assert!((0.0..=1.0).contains(&measured.stalled));
        let host = Host::default();
        let machine = host.describe(&[0], host.ticks(), 1000.0, &measured);
        assert!(!machine.kernel.is_empty() && machine.memory_mib > 0);
    }
}
