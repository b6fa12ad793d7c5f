//! The kernel's own switching: its bridge, and IP forwarding.

use super::site::Site;
use super::{check, check_job, destinations, need};
use crate::place::Place;
use crate::subject::{
    Counters, End, Error, Job, Plan, Port, ROUTER, Running, Stage, Subject, route, station,
};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::time::Duration;

/// How long a million entries may take.
const ENTRIES: Duration = Duration::from_secs(600);
/// The first table of routes by ingress port; a port's number is added.
const TABLE: u32 = 100;
/// Where routed frames go next. It has the router's own address on Ethernet, so that a guest that
/// sends frames back unchanged addresses the router.
const NEXT_HOP: &str = "10.99.0.2";

/// Switching by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linux {
    /// The bridge.
    Bridge,
    /// IP forwarding.
    Ip,
}

impl Subject for Linux {
    fn id(&self) -> &str {
        match self {
            Linux::Bridge => "linux-bridge",
            Linux::Ip => "linux-ip",
        }
    }

    fn name(&self) -> String {
        match self {
            Linux::Bridge => "Linux bridge".into(),
            Linux::Ip => "Linux IP forwarding".into(),
        }
    }

    fn version(&self) -> Result<String, Error> {
        need("ip")?;
        if *self == Linux::Bridge {
            need("bridge")?;
        }
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")
            .map_err(|error| Error::Failed(format!("the kernel's release: {error}")))?;
        Ok(release.trim().to_owned())
    }

    fn setup(&self) -> String {
        let how = match self {
            Linux::Bridge => {
                "Ports that forward to each other are in a bridge of their own, which floods, \
                 without learning, STP, multicast snooping and netfilter: with two ports a frame has \
                 one place to go. Stations are static entries of one bridge's table."
            }
            Linux::Ip => {
                "Each port has a table of routes of its own, with one route to the port beside it; \
                 routes in number are in the main table. Neighbours are permanent, and reverse path \
                 filters off. All ports have one Ethernet address."
            }
        };
        format!(
            "A network namespace of its own; where user space switches have ports in memory, it has \
             veths, which a generator feeds, and TAPs for guests. {how} What comes in is handled on \
             the plan's cores by receive packet steering (rps_cpus of each port). Frames that did \
             not fit into the cores' backlog count as dropped by the port."
        )
    }

    fn can(&self, plan: &Plan) -> Result<(), Error> {
        check(plan)?;
        if plan
            .ports
            .iter()
            .any(|port| matches!(port, Port::Memory { .. }))
        {
            return Err(Error::Missing(
                "the kernel has no port in memory; a veth or TAP that a generator feeds stands in \
                 its place"
                    .into(),
            ));
        }
        let devices = |port: &Port| matches!(port, Port::Device(_));
        if *self == Linux::Ip && plan.ports.iter().any(devices) {
            return Err(Error::Missing(format!(
                "the lab's frames are addressed to {ROUTER}, and given devices keep their addresses"
            )));
        }
        self.can_do(&plan.job, plan.ports.len())
    }

    fn start(&self, place: &Place, plan: &Plan) -> Result<Box<dyn Running>, Error> {
        self.can(plan)?;
        let mut site = Site::make(place, self.id(), 0)?;
        let mut ports = Vec::new();
        for (number, port) in (1..).zip(&plan.ports) {
            let (interface, end) = site.kernel_port(number, port)?;
            site.inside.steer(&interface, &plan.cores)?;
            if *self == Linux::Ip {
                site.inside
                    .ip(&format!("link set {interface} address {ROUTER}"))?;
            }
            ports.push((interface, end));
        }
        let mut this = Run {
            kind: *self,
            ports,
            cores: plan.cores.clone(),
            site,
        };
        match self {
            Linux::Bridge => this.without_netfilter()?,
            Linux::Ip => this.prepare_routing()?,
        }
        this.apply(&plan.job)?;
        Ok(Box::new(this))
    }
}

impl Linux {
    fn can_do(self, job: &Job, ports: usize) -> Result<(), Error> {
        check_job(job, ports)?;
        let lacks = |what: &str| Err(Error::Missing(format!("{} {what}", self.id())));
        match (self, job) {
            (_, Job::Rules { .. }) => lacks("has no OpenFlow rules"),
            (Linux::Bridge, Job::Routes(_)) => lacks("does not route"),
            (Linux::Bridge, Job::Cross | Job::To(_)) => groups(job, ports).map(|_| ()),
            (Linux::Ip, Job::Stations(_)) => lacks("does not forward by Ethernet addresses"),
            (Linux::Ip, Job::To(pairs)) if pairs.iter().any(|(_, to)| to.len() > 1) => {
                lacks("sends no copies")
            }
            _ => Ok(()),
        }
    }
}

/// Ports that forward to each other: each such group is a bridge.
fn groups(job: &Job, ports: usize) -> Result<Vec<BTreeSet<u16>>, Error> {
    let mut groups: Vec<BTreeSet<u16>> = Vec::new();
    for (from, to) in destinations(job, ports).unwrap_or_default() {
        let group: BTreeSet<u16> = to.iter().copied().chain([from]).collect();
        if to.contains(&from) {
            return Err(Error::Missing(format!(
                "a bridge sends nothing back to its port {from}"
            )));
        }
        match groups.iter().find(|other| !other.is_disjoint(&group)) {
            None => groups.push(group),
            Some(other) if *other == group => {}
            Some(_) => {
                return Err(Error::Missing(format!(
                    "a bridge that floods cannot send from port {from} to {to:?} only, given where \
                     other ports' frames go"
                )));
            }
        }
    }
    Ok(groups)
}

/// The kernel, set up to forward.
struct Run {
    kind: Linux,
    ports: Vec<(String, End)>,
    cores: Vec<usize>,
    site: Site,
}

impl Run {
    /// Keeps bridged packets out of iptables, through which they go by default where the kernel has
    /// that built in.
    fn without_netfilter(&self) -> Result<(), Error> {
        for name in ["iptables", "ip6tables", "arptables"] {
            let path = format!("/proc/sys/net/bridge/bridge-nf-call-{name}");
            match self.site.inside.within(|| fs::write(&path, "0"))? {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::Failed(format!("{path}: {error}")));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn prepare_routing(&self) -> Result<(), Error> {
        let settings = [
            ("ip_forward", "1"),
            ("conf/all/rp_filter", "0"),
            ("conf/default/rp_filter", "0"),
            ("conf/all/send_redirects", "0"),
        ];
        let interfaces = self.ports.iter().flat_map(|(interface, _)| {
            ["rp_filter", "send_redirects"].map(|name| (format!("conf/{interface}/{name}"), "0"))
        });
        let settings = settings.map(|(name, value)| (name.to_owned(), value));
        for (name, value) in settings.into_iter().chain(interfaces) {
            let path = format!("/proc/sys/net/ipv4/{name}");
            self.site
                .inside
                .within(|| fs::write(&path, value))?
                .map_err(|error| Error::Failed(format!("{path}: {error}")))?;
        }
        for (interface, _) in &self.ports {
            let text =
                format!("neigh replace {NEXT_HOP} lladdr {ROUTER} dev {interface} nud permanent");
            self.site.inside.ip(&text)?;
        }
        Ok(())
    }

    fn interface(&self, port: u16) -> &str {
        &self.ports[usize::from(port) - 1].0
    }

    /// Has `ip` or `bridge` carry out many lines.
    fn batch(&self, words: &[&str], lines: &str) -> Result<(), Error> {
        if lines.is_empty() {
            return Ok(());
        }
        self.site
            .inside
            .exec_with(words, lines, ENTRIES)
            .map(|_| ())
    }

    fn bridge(&self, job: &Job) -> Result<(), Error> {
        let all = (1..=self.ports.len() as u16).collect();
        let groups = match job {
            Job::Stations(_) => vec![all],
            _ => groups(job, self.ports.len())?,
        };
        for number in 0..=self.ports.len() {
            // Of an earlier job.
            let _ = self.site.inside.ip(&format!("link del br{number}"));
        }
        for (number, group) in groups.iter().enumerate() {
            self.site.inside.ip(&format!(
                "link add br{number} type bridge stp_state 0 mcast_snooping 0"
            ))?;
            for port in group {
                let interface = self.interface(*port);
                self.site
                    .inside
                    .ip(&format!("link set {interface} master br{number}"))?;
                let settings = "learning off flood on";
                let words: Vec<&str> = ["bridge", "link", "set", "dev", interface]
                    .into_iter()
                    .chain(settings.split(' '))
                    .collect();
                self.site.inside.exec(&words)?;
            }
            self.site.inside.ip(&format!("link set br{number} up"))?;
        }
        let mut lines = String::new();
        if let Job::Stations(count) = job {
            for port in 1..=self.ports.len() as u16 {
                for number in 0..*count {
                    let address = address_text(station(port, number, *count));
                    let interface = self.interface(port);
                    let _ = writeln!(lines, "fdb replace {address} dev {interface} master static");
                }
            }
        }
        self.batch(&["bridge", "-batch", "-"], &lines)
    }

    fn route(&self, job: &Job) -> Result<(), Error> {
        let ip = |text: &str| self.site.inside.ip(text);
        for port in 1..=self.ports.len() as u32 {
            let table = TABLE + port;
            // Of an earlier job.
            let _ = ip(&format!("rule del table {table}"));
            let _ = ip(&format!("route flush table {table}"));
        }
        ip("route flush table main")?;
        let mut lines = String::new();
        if let Job::Routes(count) = job {
            let interface = self.interface(2);
            for number in 0..*count {
                let network = route(number);
                let _ = writeln!(
                    lines,
                    "route add {network}/24 via {NEXT_HOP} dev {interface} onlink"
                );
            }
        }
        for (from, to) in destinations(job, self.ports.len()).unwrap_or_default() {
            let table = TABLE + u32::from(from);
            let interface = self.interface(from);
            let _ = writeln!(lines, "rule add iif {interface} lookup {table}");
            match to.first() {
                Some(to) => {
                    let to = self.interface(*to);
                    let _ = writeln!(
                        lines,
                        "route add default via {NEXT_HOP} dev {to} onlink table {table}"
                    );
                }
                None => {
                    let _ = writeln!(lines, "route add blackhole default table {table}");
                }
            }
        }
        self.batch(&["ip", "-batch", "-"], &lines)
    }
}

fn address_text(address: u64) -> String {
    let bytes: Vec<String> = address.to_be_bytes()[2..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    bytes.join(":")
}

impl Running for Run {
    fn ends(&self) -> Vec<End> {
        self.ports.iter().map(|(_, end)| end.clone()).collect()
    }

    fn counters(&mut self) -> Result<Vec<Counters>, Error> {
        self.ports
            .iter()
            .map(|(interface, end)| {
                let mut counters = Counters::from(self.site.inside.statistics(interface)?);
                if let End::Interface { name, .. } = end {
                    // What found no room in a core's backlog is counted where it was sent.
                    counters.dropped += self.site.outside.statistics(name)?.send_dropped;
                }
                Ok(counters)
            })
            .collect()
    }

    fn apply(&mut self, job: &Job) -> Result<(), Error> {
        self.kind.can_do(job, self.ports.len())?;
        match self.kind {
            Linux::Bridge => self.bridge(job),
            Linux::Ip => self.route(job),
        }
    }

    fn process(&self) -> Option<u32> {
        None
    }

    /// The threads that handle interrupts of the plan's cores where these are busy: `ksoftirqd`.
    fn workers(&self) -> Vec<u32> {
        let wanted: Vec<String> = self
            .cores
            .iter()
            .map(|core| format!("ksoftirqd/{core}"))
            .collect();
        let Ok(entries) = fs::read_dir("/proc") else {
            return Vec::new();
        };
        let mut found: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|id| {
                let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
                wanted.iter().any(|wanted| wanted == name.trim())
            })
            .collect();
        found.sort_unstable();
        found
    }

    fn stages(&mut self) -> Result<Option<Vec<Stage>>, Error> {
        Ok(None)
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        self.site.remove()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_the_kernel_can_do() {
        let error = |kind: Linux, job: Job| kind.can_do(&job, 4).unwrap_err().to_string();
        let rules = Job::Rules {
            rules: vec![],
            groups: vec![],
        };
        assert!(error(Linux::Bridge, rules.clone()).contains("OpenFlow"));
        assert!(error(Linux::Ip, rules).contains("OpenFlow"));
        assert!(error(Linux::Bridge, Job::Routes(1)).contains("route"));
        assert!(error(Linux::Ip, Job::Stations(1)).contains("Ethernet"));
        assert!(error(Linux::Ip, Job::To(vec![(1, vec![2, 3])])).contains("copies"));
        for job in [
            Job::Cross,
            Job::Stations(1_000_000),
            Job::To(vec![(1, vec![2, 3, 4])]),
        ] {
            assert!(Linux::Bridge.can_do(&job, 4).is_ok(), "{job:?}");
        }
        for job in [
            Job::Cross,
            Job::Routes(1000),
            Job::To(vec![(1, vec![2]), (3, vec![])]),
        ] {
            assert!(Linux::Ip.can_do(&job, 4).is_ok(), "{job:?}");
        }
    }

    #[test]
    fn ports_that_forward_to_each_other_share_a_bridge() {
        let of = |job: &Job| -> Result<Vec<Vec<u16>>, String> {
            let groups = groups(job, 4).map_err(|error| error.to_string())?;
            Ok(groups
                .into_iter()
                .map(|group| group.into_iter().collect())
                .collect())
        };
        let both = of(&Job::Cross);
        assert_eq!(both.unwrap(), [[1, 2], [3, 4]]);
        let copies = of(&Job::To(vec![(1, vec![2, 3])]));
        assert_eq!(copies.unwrap(), [[1, 2, 3]]);
        let chain = of(&Job::To(vec![(1, vec![2]), (2, vec![3])]));
        assert!(chain.unwrap_err().contains("from port 2"));
        assert!(
            of(&Job::To(vec![(1, vec![1])]))
                .unwrap_err()
                .contains("back")
        );
    }

    #[test]
    fn addresses_as_text() {
        assert_eq!(address_text(station(3, 258, 1000)), "02:00:00:03:01:02");
        assert_eq!(
            address_text(station(3, 999_999, 1_000_000)),
            "02:00:03:0f:42:3f"
        );
    }
}
