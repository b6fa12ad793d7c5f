//! Statistics of the machine for the root row's `statistics` column, kept when
//! `other_config:enable-statistics` is true.
//!
//! The keys and their formats are those of ovs-vswitchd.conf.db(5): `cpu`, `load_average`,
//! `memory`, `process_NAME` for each daemon with a pidfile, and `file_systems`. What cannot be
//! determined is left out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ovsdb::vswitch::Strings;

/// Ticks per second in `/proc/PID/stat`: the kernel scales them to 100 on every machine.
const TICKS_PER_SECOND: u64 = 100;

/// Reads the statistics. `proc` is where procfs is mounted, `rundir` where the daemons' pidfiles
/// are.
pub fn collect(proc: &Path, rundir: &Path) -> Strings {
    let read = |name: &str| fs::read_to_string(proc.join(name)).unwrap_or_default();
    let mut statistics = Strings::new();
    let mut put = |key: &str, value: Option<String>| {
        statistics.extend(value.map(|value| (key.to_owned(), value)));
    };
    put("cpu", cpus(&read("stat")));
    put("load_average", load_average(&read("loadavg")));
    put("memory", memory(&read("meminfo")));
    put("file_systems", file_systems(&read("mounts"), disk_usage));
    for (name, pid) in pidfiles(rundir) {
        put(
            &format!("process_{name}"),
            process(proc, pid, &read("uptime")),
        );
    }
    statistics
}

fn cpus(stat: &str) -> Option<String> {
    let is_cpu = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let count = stat.lines().filter(is_cpu).count();
    (count > 0).then(|| count.to_string())
}

fn load_average(loadavg: &str) -> Option<String> {
    let numbers: Vec<f64> = loadavg
        .split_whitespace()
        .take(3)
        .map_while(|text| text.parse().ok())
        .collect();
    match numbers.as_slice() {
        [one, five, fifteen] => Some(format!("{one:.2},{five:.2},{fifteen:.2}")),
        _ => None,
    }
}

fn memory(meminfo: &str) -> Option<String> {
    let kilobytes: BTreeMap<&str, u64> = meminfo
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(':')?;
            Some((name, rest.split_whitespace().next()?.parse().ok()?))
        })
        .collect();
    let get = |name: &str| kilobytes.get(name).copied();
    let (total, free) = (get("MemTotal")?, get("MemFree")?);
    let cache = get("Buffers").unwrap_or(0) + get("Cached").unwrap_or(0);
    let (swap, swap_free) = (get("SwapTotal").unwrap_or(0), get("SwapFree").unwrap_or(0));
    Some(format!(
        "{total},{},{cache},{swap},{}",
        total.saturating_sub(free),
        swap.saturating_sub(swap_free)
    ))
}

/// Returns the PIDs in the files `NAME.pid` of a directory, by NAME.
fn pidfiles(rundir: &Path) -> BTreeMap<String, u32> {
    let entries = fs::read_dir(rundir).into_iter().flatten().flatten();
    let pid = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let name = name.strip_suffix(".pid")?.to_owned();
        let pid = fs::read_to_string(entry.path()).ok()?.trim().parse().ok()?;
        Some((name, pid))
    };
    // The limit keeps the column small even if the directory is full of pidfiles.
    entries.filter_map(pid).take(64).collect()
}

/// Returns memory in kB (virtual, resident), CPU time, crashes, and ms since the first start and
/// since the last.
fn process(proc: &Path, pid: u32, uptime: &str) -> Option<String> {
    let directory = proc.join(pid.to_string());
    let status = fs::read_to_string(directory.join("status")).ok()?;
    let kilobytes = |name: &str| {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let own = Times::of(proc, pid, uptime)?;
    let (crashes, since_first) = match monitored(proc, own.parent) {
        Some(crashes) => (crashes, Times::of(proc, own.parent, uptime)?.age),
        None => (0, own.age),
    };
    let (size, resident) = (kilobytes("VmSize")?, kilobytes("VmRSS")?);
    Some(format!(
        "{size},{resident},{},{crashes},{since_first},{}",
        own.used, own.age
    ))
}

/// A process's times, ms.
struct Times {
    parent: u32,
    used: u64,
    age: u64,
}

impl Times {
    fn of(proc: &Path, pid: u32, uptime: &str) -> Option<Times> {
        let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
        // The name, in parentheses, may contain anything; the fields after it are counted from its
        // end.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
        let to_ms = 1000 / TICKS_PER_SECOND;
        let since_boot = (uptime.split_whitespace().next()?.parse::<f64>().ok()? * 1000.0) as u64;
        Some(Times {
            parent: u32::try_from(number(1)?).ok()?,
            used: number(11)?
                .saturating_add(number(12)?)
                .saturating_mul(to_ms),
            age: since_boot.saturating_sub(number(19)?.saturating_mul(to_ms)),
        })
    }
}

/// Returns how often a monitor has restarted its daemon, according to its title; none for other
/// processes.
fn monitored(proc: &Path, pid: u32) -> Option<u64> {
    let title = fs::read_to_string(proc.join(pid.to_string()).join("cmdline")).ok()?;
    let (_, rest) = title.split_once("monitoring pid ")?;
    let crashes = rest
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(" crashes")?.0.parse().ok());
    Some(crashes.unwrap_or(0))
}

/// Returns space-separated `MOUNTPOINT,TOTAL,USED` (kB) of writable file systems on devices.
fn file_systems(mounts: &str, usage: impl Fn(&str) -> Option<(u64, u64)>) -> Option<String> {
    let mut list = Vec::new();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (Some(device), Some(point), Some(_), Some(options)) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if !device.starts_with('/') || options.split(',').any(|option| option == "ro") {
            continue;
        }
        // The kernel writes a space in a path as \040.
        let path = point.replace("\\040", " ");
        if let Some((total, used)) = usage(&path) {
            list.push(format!("{},{total},{used}", path.replace([' ', ','], "_")));
        }
    }
    (!list.is_empty()).then(|| list.join(" "))
}

/// Returns a file system's size and used space, kB.
fn disk_usage(path: &str) -> Option<(u64, u64)> {
    let usage = rustix::fs::statvfs(path).ok()?;
    let kilobytes = |blocks: u64| (u128::from(blocks) * u128::from(usage.f_frsize) / 1024) as u64;
    Some((
        kilobytes(usage.f_blocks),
        kilobytes(usage.f_blocks.saturating_sub(usage.f_bfree)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn formats_are_the_manuals() {
        assert_eq!(
            cpus("cpu  1 2\ncpu0 1\ncpu1 1\nintr 3\n").as_deref(),
            Some("2")
        );
        assert_eq!(
            load_average("0.1 2 3.456 1/2 3\n").as_deref(),
            Some("0.10,2.00,3.46")
        );
        let meminfo = "MemTotal: 100 kB\nMemFree: 30 kB\nBuffers: 5 kB\nCached: 6 kB\nSwapTotal: 9 kB\nSwapFree: 7 kB\n";
        assert_eq!(memory(meminfo).as_deref(), Some("100,70,11,9,2"));
        let mounts = "proc /proc proc rw 0 0\n/dev/a / ext4 rw,x 0 0\n/dev/b /b ext4 ro 0 0\n/dev/c /c\\040d,e ext4 rw 0 0\n";
        assert_eq!(
            file_systems(mounts, |_| Some((10, 3))).as_deref(),
            Some("/,10,3 /c_d_e,10,3")
        );
    }

    #[test]
    fn a_monitor_tells_the_crashes() {
        let proc = tempfile::TempDir::new().unwrap();
        let run = tempfile::TempDir::new().unwrap();
        let write = |path: &str, text: &str| {
            let path = proc.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("uptime", "1000.50 3.0\n");
        let stat = |pid: u32, parent: u32, start: u64| {
            format!("{pid} (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 25 5 0 0 20 0 1 0 {start} 0 0 0\n")
        };
        write("7/stat", &stat(7, 6, 50_000));
        write(
            "7/status",
            "Name:\ta\nVmSize:\t  2048 kB\nVmRSS:\t 512 kB\n",
        );
        write("6/stat", &stat(6, 1, 10_000));
        write(
            "6/cmdline",
            "ovs-vswitchd: monitoring pid 7 (2 crashes: pid 5 died, killed (Aborted))\0",
        );
        fs::write(run.path().join("ovs-vswitchd.pid"), "7\n").unwrap();
        fs::write(run.path().join("gone.pid"), "99\n").unwrap();
        let statistics = collect(proc.path(), run.path());
        assert_eq!(
            statistics,
            Strings::from([(
                "process_ovs-vswitchd".into(),
                "2048,512,300,2,900500,500500".into()
            )])
        );
    }

    #[test]
    fn this_machine_has_statistics() {
        let statistics = collect(Path::new("/proc"), Path::new("/nonexistent"));
        for key in ["cpu", "load_average", "memory"] {
            assert!(statistics.contains_key(key), "{statistics:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_left_out(text in "[a-zA-Z0-9:, ./\\\\\n]{0,200}") {
            cpus(&text);
            load_average(&text);
            memory(&text);
            file_systems(&text, |_| Some((1, 1)));
        }
    }
}
