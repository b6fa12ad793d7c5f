//! VPP. Written after its documentation (cli-reference of 23.02 to 25.10, `startup.conf` of its
//! wiki), and untried: no machine with VPP has run this yet.

use super::site::{Site, is_pci};
use super::{check, check_job, core_beside, destinations, find_program, need};
use crate::place::{Launch, Place, Program, run, wait_for};
use crate::subject::{
    Counters, End, Error, Job, Plan, Port, ROUTER, Running, Stage, Subject, route, station,
};
use std::fs;
use std::time::Duration;

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(20);
/// Huge pages of 2 MiB.
const PAGES: u32 = 512;
/// The next hop of all routes.
const NEXT_HOP: &str = "10.99.0.2";
/// The bridge domain of stations.
const DOMAIN: u32 = 1;

/// VPP.
#[derive(Clone, Copy, Debug)]
pub struct Vpp;

impl Subject for Vpp {
    fn id(&self) -> &str {
        "vpp"
    }

    fn name(&self) -> String {
        "VPP".into()
    }

    fn version(&self) -> Result<String, Error> {
        let vpp = need("vpp")?;
        need("vppctl")?;
        let said = run(&[&vpp.display().to_string(), "--version"])?;
        Ok(said.lines().next().unwrap_or("unknown").trim().to_owned())
    }

    fn setup(&self) -> String {
        "Untried: written after VPP's documentation. Workers are pinned to the plan's cores \
         (corelist-workers), the main thread beside them. Guests' ports are vhost-user interfaces \
         that connect to the guest's socket, veths are host interfaces (AF_PACKET), devices DPDK's. \
         Ports that forward to each other are cross-connected; stations are static entries of a \
         bridge domain, routes are in the one table of routes."
            .into()
    }

    fn can(&self, plan: &Plan) -> Result<(), Error> {
        check(plan)?;
        if plan
            .ports
            .iter()
            .any(|port| matches!(port, Port::Memory { .. }))
        {
            return Err(Error::Missing(
                "VPP's packages have no drivers for ports in memory; veths are in their place"
                    .into(),
            ));
        }
        can_do(&plan.job, plan.ports.len())
    }

    fn start(&self, place: &Place, plan: &Plan) -> Result<Box<dyn Running>, Error> {
        self.can(plan)?;
        let vpp = find_program("vpp").ok_or_else(|| Error::Missing("no vpp".into()))?;
        let mut site = Site::make(place, self.id(), PAGES)?;
        let configuration = site.path("startup.conf");
        fs::write(&configuration, startup(&site, plan))
            .map_err(|error| Error::Failed(format!("{configuration}: {error}")))?;
        let mut commands = Vec::new();
        let mut ends = Vec::new();
        for (number, port) in (1..).zip(&plan.ports) {
            match port {
                Port::Virtual => {
                    let path = site.directory.join(format!("p{number}.sock"));
                    commands.push(Some(format!("create vhost-user socket {}", path.display())));
                    ends.push(End::Socket { path, server: true });
                }
                Port::Device(name) if is_pci(name) => {
                    commands.push(None);
                    ends.push(End::Itself);
                }
                port => {
                    let (interface, end) = site.kernel_port(number, port)?;
                    commands.push(Some(format!("create host-interface name {interface}")));
                    ends.push(end);
                }
            }
        }
        let mut program = site.place.start(Launch {
            name: site.name.clone(),
            command: vec![vpp.display().to_string(), "-c".into(), configuration],
            namespace: Some(&site.inside),
            ..Launch::default()
        })?;
        let socket = site.path("cli.sock");
        wait_for("vpp answers", START, || {
            program.check()?;
            Ok(run(&["vppctl", "-s", &socket, "show", "version"]).ok())
        })?;
        let mut this = Run {
            names: Vec::new(),
            ends,
            program,
            site,
        };
        for (port, command) in plan.ports.iter().zip(commands) {
            let name = match (port, command) {
                // The command prints the name of the interface that it made.
                (_, Some(command)) => this.control(&command)?.trim().to_owned(),
                (Port::Device(device), None) => this.device(device)?,
                (port, None) => return Err(Error::Failed(format!("no command for {port:?}"))),
            };
            this.control(&format!("set interface state {name} up"))?;
            this.names.push(name);
        }
        this.apply(&plan.job)?;
        Ok(Box::new(this))
    }
}

fn can_do(job: &Job, ports: usize) -> Result<(), Error> {
    check_job(job, ports)?;
    match job {
        Job::Rules { .. } => Err(Error::Missing("vpp has no OpenFlow rules".into())),
        Job::To(pairs) if pairs.iter().any(|(_, to)| to.len() > 1) => Err(Error::Missing(
            "a cross-connect of vpp sends no copies".into(),
        )),
        _ => Ok(()),
    }
}

fn startup(site: &Site, plan: &Plan) -> String {
    let workers: Vec<String> = plan.cores.iter().map(usize::to_string).collect();
    let devices: Vec<String> = plan
        .ports
        .iter()
        .filter_map(|port| match port {
            Port::Device(name) if is_pci(name) => Some(format!("dev {name}")),
            _ => None,
        })
        .collect();
    let dpdk = match devices.is_empty() {
        true => "no-pci".to_owned(),
        false => devices.join("\n"),
    };
    format!(
        "unix {{ nodaemon cli-no-pager runtime-dir {} cli-listen {} }}\n\
         cpu {{ main-core {} corelist-workers {} }}\n\
         api-segment {{ prefix {} }}\n\
         dpdk {{ {dpdk} }}\n",
        site.directory.display(),
        site.path("cli.sock"),
        core_beside(&plan.cores),
        workers.join(","),
        site.file_prefix(),
    )
}

/// A VPP that runs.
struct Run {
    names: Vec<String>,
    ends: Vec<End>,
    program: Program,
    site: Site,
}

impl Run {
    /// Runs a command. VPP prints what is wrong and still succeeds, so words of errors are looked
    /// for.
    fn control(&self, command: &str) -> Result<String, Error> {
        let socket = self.site.path("cli.sock");
        let mut words = vec!["vppctl", "-s", &socket];
        words.extend(command.split_whitespace());
        let said = run(&words)?;
        let wrong = ["unknown input", "failed", "invalid", "error:"];
        let lower = said.to_lowercase();
        match !command.starts_with("show") && wrong.iter().any(|word| lower.contains(word)) {
            true => Err(Error::Failed(format!("vpp: {command}: {}", said.trim()))),
            false => Ok(said),
        }
    }

    /// The interface of a PCI device: `show hardware-interfaces` has its address below its name.
    fn device(&self, device: &str) -> Result<String, Error> {
        let said = self.control("show hardware-interfaces")?;
        named_by(&said, device)
            .ok_or_else(|| Error::Failed(format!("vpp has no interface of the device {device}")))
    }
}

fn named_by(said: &str, device: &str) -> Option<String> {
    // VPP writes functions with two digits: 0000:05:00.01.
    let (slot, function) = device.rsplit_once('.')?;
    let address = format!("{slot}.{function:0>2}");
    let mut name = None;
    for line in said.lines() {
        if !line.starts_with(char::is_whitespace) {
            name = line.split_whitespace().next();
        } else if line.split_whitespace().any(|word| word == address) {
            return name.map(str::to_owned);
        }
    }
    None
}

/// An interface's counters in what `show interface` prints.
fn counters(said: &str, interface: &str) -> Option<Counters> {
    let mut counters = None;
    let mut inside = false;
    for line in said.lines() {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(char::is_whitespace) && !words.is_empty() {
            inside = words[0] == interface;
            if inside {
                counters = Some(Counters::default());
            }
        }
        let (true, Some(found)) = (inside, counters.as_mut()) else {
            continue;
        };
        let value = words.pop().and_then(|word| word.parse::<u64>().ok());
        let Some(value) = value else { continue };
        match words[..] {
            [.., "rx", "packets"] => found.received = value,
            [.., "tx", "packets"] => found.sent = value,
            [.., "drops" | "rx-miss" | "tx-error" | "rx-no-buf"] => found.dropped += value,
            _ => {}
        }
    }
    counters
}

impl Running for Run {
    fn ends(&self) -> Vec<End> {
        self.ends.clone()
    }

    fn counters(&mut self) -> Result<Vec<Counters>, Error> {
        self.program.check()?;
        let said = self.control("show interface")?;
        self.names
            .iter()
            .map(|name| {
                counters(&said, name)
                    .ok_or_else(|| Error::Failed(format!("vpp shows no interface {name}: {said}")))
            })
            .collect()
    }

    fn apply(&mut self, job: &Job) -> Result<(), Error> {
        can_do(job, self.names.len())?;
        for name in &self.names {
            self.control(&format!("set interface l3 {name}"))?;
        }
        for (from, to) in destinations(job, self.names.len()).unwrap_or_default() {
            if let Some(to) = to.first() {
                let name = |port: u16| &self.names[usize::from(port) - 1];
                self.control(&format!(
                    "set interface l2 xconnect {} {}",
                    name(from),
                    name(*to)
                ))?;
            }
        }
        let mut lines = Vec::new();
        if let Job::Stations(count) = job {
            lines.push(format!(
                "create bridge-domain {DOMAIN} learn 0 flood 1 forward 1"
            ));
            for name in &self.names {
                lines.push(format!("set interface l2 bridge {name} {DOMAIN}"));
            }
            for (port, name) in (1..).zip(&self.names) {
                for number in 0..*count {
                    let bytes = station(port, number, *count).to_be_bytes();
                    let text: Vec<String> = bytes[2..]
                        .iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect();
                    lines.push(format!(
                        "l2fib add {} {DOMAIN} {name} static",
                        text.join(":")
                    ));
                }
            }
        }
        if let Job::Routes(count) = job {
            for (number, name) in self.names.iter().enumerate() {
                lines.push(format!("set interface mac address {name} {ROUTER}"));
                lines.push(format!(
                    "set interface ip address {name} 10.{}.0.1/24",
                    98 + number
                ));
            }
            let out = &self.names[1];
            lines.push(format!(
                "set ip neighbor {out} {NEXT_HOP} 02:00:00:00:00:03 static"
            ));
            lines.push(format!(
                "ip route add count {count} {}/24 via {NEXT_HOP} {out}",
                route(0)
            ));
        }
        if lines.is_empty() {
            return Ok(());
        }
        let path = self.site.path("job.cli");
        fs::write(&path, lines.join("\n") + "\n")
            .map_err(|error| Error::Failed(format!("{path}: {error}")))?;
        self.control(&format!("exec {path}")).map(|_| ())
    }

    fn process(&self) -> Option<u32> {
        Some(self.program.id())
    }

    fn workers(&self) -> Vec<u32> {
        self.program.threads(|name| name.starts_with("vpp_wk_"))
    }

    fn stages(&mut self) -> Result<Option<Vec<Stage>>, Error> {
        Ok(None)
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        let Run { program, site, .. } = *self;
        let ended = program.stop(STOP);
        let removed = site.remove();
        ended.and(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_interfaces() {
        let said = "              Name               Idx       State          Counter          Count\n\
            TenGigabitEthernet86/0/0          1         up       rx packets               6569213\n\
            \x20                                                    rx bytes              9928352943\n\
            \x20                                                    tx packets                 50384\n\
            TenGigabitEthernet86/0/1          2        down\n\
            VirtualEthernet0/0/0              3         up       rx packets                 50384\n\
            \x20                                                    drops                       1498\n\
            local0                            0        down\n";
        let wanted = Counters {
            received: 6569213,
            sent: 50384,
            dropped: 0,
        };
        assert_eq!(counters(said, "TenGigabitEthernet86/0/0"), Some(wanted));
        assert_eq!(
            counters(said, "TenGigabitEthernet86/0/1"),
            Some(Counters::default())
        );
        let wanted = Counters {
            received: 50384,
            sent: 0,
            dropped: 1498,
        };
        assert_eq!(counters(said, "VirtualEthernet0/0/0"), Some(wanted));
        assert_eq!(counters(said, "VirtualEthernet0/0/1"), None);
    }

    #[test]
    fn interfaces_by_address() {
        let said = "  Name   Idx\nTen5/0/0   1  up\n  Ethernet address 02:00\n  pci: device \
                    address 0000:05:00.00\nTen5/0/1  2  up\n  address 0000:05:00.01\n";
        assert_eq!(named_by(said, "0000:05:00.1").as_deref(), Some("Ten5/0/1"));
        assert_eq!(named_by(said, "0000:06:00.0"), None);
    }
}
