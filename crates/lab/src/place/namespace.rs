//! Network namespaces of a place, with what is in them.

use super::{Cleaned, Place, making, names_in, record, records, run, run_with};
use crate::subject::Error;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where `ip netns` has its files.
pub(super) const DIRECTORY: &str = "/run/netns";

/// A network namespace, removed when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    file: File,
    /// Given devices that were moved in, with their records.
    devices: Vec<(String, PathBuf)>,
}

/// What the kernel counts of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Packets received.
    pub received: u64,
    /// Received packets that were dropped, for whatever reason.
    pub receive_dropped: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets that could not be sent.
    pub send_dropped: u64,
}

impl Place {
    /// Makes a network namespace, with no traffic but what the lab sends: without IPv6.
    pub fn namespace(&self, name: &str) -> Result<Namespace, Error> {
        let _making = making()?;
        let name = format!("{}{name}", self.prefix);
        run(&["ip", "netns", "add", &name])?;
        let path = Path::new(DIRECTORY).join(&name);
        let file = File::open(&path).map_err(|error| {
            let _ = run(&["ip", "netns", "del", &name]);
            super::failed(&path, &error)
        })?;
        let namespace = Namespace {
            name,
            file,
            devices: Vec::new(),
        };
        for kind in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{kind}/disable_ipv6");
            // A kernel without IPv6 has no such file.
            let _ = namespace.within(|| fs::write(&path, "1"))?;
        }
        namespace.ip("link set lo up")?;
        Ok(namespace)
    }
}

impl Namespace {
    /// Its name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Runs `ip` with the words of a text in it.
    pub fn ip(&self, text: &str) -> Result<String, Error> {
        let mut words = vec!["ip", "-n", &self.name];
        words.extend(text.split_whitespace());
        run(&words)
    }

    /// Runs a command in it, which sees its interfaces in /sys as well.
    pub fn exec<S: AsRef<str>>(&self, words: &[S]) -> Result<String, Error> {
        self.exec_with(words, "", Duration::from_secs(60))
    }

    /// As [`Namespace::exec`], with input and a limit.
    pub fn exec_with<S: AsRef<str>>(
        &self,
        words: &[S],
        input: &str,
        limit: Duration,
    ) -> Result<String, Error> {
        let mut all = vec!["ip", "netns", "exec", &self.name];
        all.extend(words.iter().map(AsRef::as_ref));
        run_with(&all, |_| {}, input, limit)
    }

    /// Calls a function in a thread that is in the namespace: sockets that it opens are there, and
    /// /proc/thread-self/net is the namespace's.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let work = || -> io::Result<T> {
            let kind = LinkNameSpaceType::Network;
            move_into_link_name_space(self.file.as_fd(), Some(kind))?;
            Ok(work())
        };
        std::thread::scope(|scope| scope.spawn(work).join())
            .map_err(|_| Error::Failed(format!("a thread in {} panicked", self.name)))?
            .map_err(|error| Error::Failed(format!("into the namespace {}: {error}", self.name)))
    }

    /// A veth pair, up: one end here, the other in the namespace `to`.
    pub fn veth(&self, name: &str, to: &Namespace, peer: &str) -> Result<(), Error> {
        let to_name = to.name();
        self.ip(&format!(
            "link add {name} type veth peer name {peer} netns {to_name}"
        ))?;
        self.ip(&format!("link set {name} up"))?;
        to.ip(&format!("link set {peer} up")).map(|_| ())
    }

    /// A persistent TAP with several queues, up.
    pub fn tap(&self, name: &str) -> Result<(), Error> {
        self.ip(&format!("tuntap add dev {name} mode tap multi_queue"))?;
        self.ip(&format!("link set {name} up")).map(|_| ())
    }

    /// Moves a given device in. It goes back before the namespace is removed.
    pub fn take(&mut self, place: &Place, device: &str) -> Result<(), Error> {
        let _making = making()?;
        let path = record(place, "device", &format!("{device} {}\n", self.name))?;
        if let Err(error) = run(&["ip", "link", "set", device, "netns", &self.name]) {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        self.devices.push((device.to_owned(), path));
        self.ip(&format!("link set {device} up")).map(|_| ())
    }

    /// What the kernel counts of an interface.
    pub fn statistics(&self, interface: &str) -> Result<Statistics, Error> {
        let path = "/proc/thread-self/net/dev";
        let text = self
            .within(|| fs::read_to_string(path))?
            .map_err(|error| super::failed(Path::new(path), &error))?;
        statistics_in(&text, interface)
            .ok_or_else(|| Error::Failed(format!("{} has no interface {interface}", self.name)))
    }

    /// Has packets that come in on an interface handled on these cores (receive packet steering).
    pub fn steer(&self, interface: &str, cores: &[usize]) -> Result<(), Error> {
        let mask = mask_of(cores);
        let script = format!(
            "for f in /sys/class/net/{interface}/queues/rx-*/rps_cpus; do echo {mask} > $f; done"
        );
        self.exec(&["sh", "-ec", &script]).map(|_| ())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for (device, path) in self.devices.drain(..) {
            match give_back(&self.name, &device) {
                Ok(()) => drop(fs::remove_file(path)),
                Err(error) => eprintln!("lab: {error}"),
            }
        }
        // It may have been removed with the place.
        if Path::new(DIRECTORY).join(&self.name).exists()
            && let Err(error) = run(&["ip", "netns", "del", &self.name])
        {
            eprintln!("lab: {error}");
        }
    }
}

/// Moves a device out of a namespace into this process's.
fn give_back(namespace: &str, device: &str) -> Result<(), Error> {
    if !Path::new(DIRECTORY).join(namespace).exists() {
        return Ok(());
    }
    let here = std::process::id().to_string();
    run(&["ip", "-n", namespace, "link", "set", device, "netns", &here]).map(|_| ())
}

/// A set of cores as the kernel's files take it: hexadecimal, in groups of 32 bits.
fn mask_of(cores: &[usize]) -> String {
    let words = cores.iter().max().map_or(1, |most| most / 32 + 1);
    let word = |number: usize| {
        cores
            .iter()
            .filter(|core| **core / 32 == number)
            .fold(0u32, |mask, core| mask | 1 << (core % 32))
    };
    let words: Vec<String> = (0..words)
        .rev()
        .map(|number| format!("{:08x}", word(number)))
        .collect();
    words.join(",")
}

/// The line of an interface in /proc/net/dev.
fn statistics_in(text: &str, interface: &str) -> Option<Statistics> {
    text.lines().find_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        if name.trim() != interface {
            return None;
        }
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .map_while(|n| n.parse().ok())
            .collect();
        // bytes packets errs drop fifo frame compressed multicast | bytes packets errs drop ...
        Some(Statistics {
            received: *numbers.get(1)?,
            receive_dropped: numbers.get(2)? + numbers.get(3)?,
            sent: *numbers.get(9)?,
            send_dropped: numbers.get(10)? + numbers.get(11)?,
        })
    })
}

/// Removes all namespaces of a place, and gives back the devices that were moved in.
pub(super) fn remove_all(place: &Place, cleaned: &mut Cleaned) {
    for (path, text) in records(place, "device") {
        if let Some((device, namespace)) = text.trim().split_once(' ') {
            match give_back(namespace, device) {
                Ok(()) => {
                    cleaned
                        .removed
                        .push(format!("{device} from {namespace}, moved back"));
                    let _ = fs::remove_file(path);
                }
                Err(error) => cleaned.failed.push(error.to_string()),
            }
        }
    }
    if !cleaned.failed.is_empty() {
        // A device that is still in there might go with its namespace.
        return;
    }
    for name in names_in(Path::new(DIRECTORY)) {
        if !name.starts_with(&place.prefix) {
            continue;
        }
        let interfaces = run(&["ip", "-n", &name, "-br", "link", "show"]).unwrap_or_default();
        match run(&["ip", "netns", "del", &name]) {
            Ok(_) => cleaned.removed.push(described(&name, &interfaces)),
            Err(error) => cleaned.failed.push(error.to_string()),
        }
    }
}

/// A namespace with its interfaces, of which `ip -br link` has told.
fn described(name: &str, interfaces: &str) -> String {
    let interfaces: Vec<&str> = interfaces
        .lines()
        .filter_map(|line| line.split([' ', '@']).next())
        .filter(|interface| *interface != "lo")
        .collect();
    match interfaces.is_empty() {
        true => format!("namespace {name}"),
        false => format!("namespace {name} with {}", interfaces.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_interfaces() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes\n    \
                    lo:     100       1    0    0    0     0          0         0      100       1 \
                    0    0    0     0       0          0\n  p1: 6000 100 1 2 0 0 0 0 1200 20 3 4 0 0 0 0\n";
        let wanted = Statistics {
            received: 100,
            receive_dropped: 3,
            sent: 20,
            send_dropped: 7,
        };
        assert_eq!(statistics_in(text, "p1"), Some(wanted));
        assert_eq!(statistics_in(text, "p"), None);
        assert_eq!(statistics_in("p1: 1 2", "p1"), None);
    }

    #[test]
    fn sets_of_cores() {
        assert_eq!(mask_of(&[1]), "00000002");
        assert_eq!(mask_of(&[0, 1, 31]), "80000003");
        assert_eq!(mask_of(&[0, 33]), "00000002,00000001");
    }

    #[test]
    fn descriptions_of_namespaces() {
        let text =
            "lo               UNKNOWN        00:00\np1@if3           UP   02:00\ntap1  DOWN 1\n";
        assert_eq!(described("x-s1", text), "namespace x-s1 with p1, tap1");
        assert_eq!(described("x-s1", "lo  UNKNOWN"), "namespace x-s1");
    }
}
