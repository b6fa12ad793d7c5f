//! The switches that the lab can set up, one file each.

mod daemon;
mod linux;
mod ovs;
mod site;
mod sluice;
pub(crate) mod testpmd;
mod vpp;

pub use daemon::{Daemon, daemon};
pub use linux::Linux;
pub use ovs::{ovs_dpdk, ovs_netdev};
pub(crate) use site::is_pci;
pub(crate) use sluice::beside;
pub use sluice::sluice;
pub use testpmd::Testpmd;
pub use vpp::Vpp;

use crate::subject::{Error, Job, MOST_ROUTES, MOST_STATIONS, Plan, Port, Subject};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::path::{Path, PathBuf};

/// All switches that the lab knows, whether they are installed or not. `sluiced` is Sluice's
/// daemon where it is not to be looked for.
pub fn all(sluiced: Option<&Path>) -> Vec<Box<dyn Subject>> {
    vec![
        Box::new(sluice(sluiced)),
        Box::new(ovs_dpdk()),
        Box::new(ovs_netdev()),
        Box::new(Linux::Bridge),
        Box::new(Linux::Ip),
        Box::new(Testpmd),
        Box::new(Vpp),
    ]
}

/// The switch of this name.
pub fn named(id: &str, sluiced: Option<&Path>) -> Result<Box<dyn Subject>, Error> {
    let mut all = all(sluiced);
    let names: Vec<String> = all.iter().map(|subject| subject.id().to_owned()).collect();
    match names.iter().position(|name| name == id) {
        Some(position) => Ok(all.swap_remove(position)),
        None => Err(Error::Missing(format!(
            "no switch is called {id:?}; there are {}",
            names.join(", ")
        ))),
    }
}

/// Checks what every plan must have; an error says which port, core or number is wrong.
fn check(plan: &Plan) -> Result<(), Error> {
    let wrong = |text: String| Err(Error::Missing(text));
    let count = plan.ports.len();
    if !(1..=250).contains(&count) {
        return wrong(format!("a plan has 1 to 250 ports, and not {count}"));
    }
    if plan.cores.is_empty() {
        return wrong("a plan names at least one core".into());
    }
    let allowed = allowed_cores();
    if let Some(core) = plan.cores.iter().find(|core| !allowed.contains(core)) {
        return wrong(format!(
            "core {core} is not among those that the lab may use: {allowed:?}"
        ));
    }
    for (number, port) in (1..).zip(&plan.ports) {
        if let Port::Memory { frames } = port
            && !frames.as_os_str().is_empty()
            && !frames.is_file()
        {
            return wrong(format!(
                "port {number}: there is no capture {}",
                frames.display()
            ));
        }
    }
    check_job(&plan.job, count)
}

fn check_job(job: &Job, ports: usize) -> Result<(), Error> {
    let wrong = |text: String| Err(Error::Missing(text));
    match job {
        Job::Cross if ports % 2 == 1 => wrong(format!(
            "of {ports} ports the last has none beside it to forward to"
        )),
        Job::To(pairs) => {
            let numbers = pairs.iter().flat_map(|(from, to)| to.iter().chain([from]));
            match numbers
                .into_iter()
                .find(|port| !(1..=ports).contains(&usize::from(**port)))
            {
                Some(port) => wrong(format!("there is no port {port} among {ports}")),
                None => Ok(()),
            }
        }
        Job::Stations(count) if !(1..=MOST_STATIONS).contains(count) => wrong(format!(
            "1 to {MOST_STATIONS} stations are behind a port, and not {count}"
        )),
        Job::Stations(_) | Job::Routes(_) if ports < 2 => {
            wrong("frames from one port go to another one, and there is only one".into())
        }
        Job::Routes(count) if !(1..=MOST_ROUTES).contains(count) => wrong(format!(
            "there are 1 to {MOST_ROUTES} routes, and not {count}"
        )),
        _ => Ok(()),
    }
}

/// For each port the ports to which its frames go, where the job says no more than that.
fn destinations(job: &Job, ports: usize) -> Option<Vec<(u16, Vec<u16>)>> {
    match job {
        Job::Cross => Some(
            (1..=ports as u16)
                .map(|port| (port, vec![if port % 2 == 1 { port + 1 } else { port - 1 }]))
                .collect(),
        ),
        Job::To(pairs) => Some(pairs.clone()),
        _ => None,
    }
}

/// Cores that this process may use.
pub fn allowed_cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    let all = 0..CpuSet::MAX_CPU;
    all.filter(|core| set.is_set(*core)).collect()
}

/// A core for what does not forward: one that the plan leaves, else the first.
fn core_beside(cores: &[usize]) -> usize {
    let allowed = allowed_cores();
    let free = allowed.iter().find(|core| !cores.contains(core));
    *free.or(allowed.first()).unwrap_or(&0)
}

/// Cores as a mask in hexadecimal.
fn mask(cores: &[usize]) -> String {
    let most = cores.iter().max().copied().unwrap_or(0);
    let digits: String = (0..=most / 4)
        .rev()
        .map(|digit| {
            let inside = cores.iter().filter(|core| **core / 4 == digit);
            let value = inside.fold(0, |value, core| value | 1 << (core % 4));
            char::from_digit(value, 16).unwrap_or('0')
        })
        .collect();
    format!("0x{digits}")
}

/// A program in PATH or where administrators' programs are.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

/// A program that a switch needs beside its own.
fn need(name: &str) -> Result<PathBuf, Error> {
    find_program(name).ok_or_else(|| Error::Missing(format!("{name} is not installed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ports: Vec<Port>, job: Job) -> Plan {
        Plan {
            ports,
            cores: vec![allowed_cores()[0]],
            job,
        }
    }

    #[test]
    fn what_is_wrong_with_a_plan_is_named() {
        let veths = |count| vec![Port::Veth; count];
        assert!(check(&plan(veths(2), Job::Cross)).is_ok());
        let text = |plan: Plan| check(&plan).unwrap_err().to_string();
        assert!(text(plan(veths(3), Job::Cross)).contains("of 3 ports"));
        assert!(text(plan(veths(0), Job::Cross)).contains("not 0"));
        assert!(text(plan(veths(2), Job::To(vec![(1, vec![2, 3])]))).contains("no port 3"));
        assert!(text(plan(veths(2), Job::To(vec![(0, vec![2])]))).contains("no port 0"));
        assert!(text(plan(veths(2), Job::Stations(1_000_001))).contains("1000001"));
        assert!(text(plan(veths(1), Job::Routes(1))).contains("only one"));
        assert!(text(plan(veths(2), Job::Routes(0))).contains("not 0"));
        let memory = Port::Memory {
            frames: "/no/such.pcap".into(),
        };
        assert!(text(plan(vec![Port::Veth, memory], Job::Cross)).contains("port 2"));
        let mut elsewhere = plan(veths(2), Job::Cross);
        elsewhere.cores = vec![100_000];
        assert!(text(elsewhere).contains("core 100000"));
    }

    #[test]
    fn frames_cross_to_the_port_beside() {
        let pairs = destinations(&Job::Cross, 4).unwrap();
        assert_eq!(
            pairs,
            [(1, vec![2]), (2, vec![1]), (3, vec![4]), (4, vec![3])]
        );
        assert_eq!(destinations(&Job::Stations(1), 2), None);
    }

    #[test]
    fn masks_of_cores() {
        assert_eq!(mask(&[0]), "0x1");
        assert_eq!(mask(&[1]), "0x2");
        assert_eq!(mask(&[0, 5, 70]), "0x400000000000000021");
    }

    #[test]
    fn names_that_are_not_known_are_answered_with_those_that_are() {
        let error = named("hub", None).err().unwrap().to_string();
        assert!(
            error.contains("hub") && error.contains("ovs-dpdk"),
            "{error}"
        );
        assert_eq!(named("testpmd", None).unwrap().id(), "testpmd");
    }
}
