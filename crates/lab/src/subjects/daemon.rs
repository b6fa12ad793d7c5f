//! Daemons that ovsdb-server configures, as ovs-vswitchd is: what Sluice and Open vSwitch share.

mod learn;
mod read;
mod rules;

use super::site::{Site, is_pci};
use super::{check, core_beside, mask, need};
use crate::place::{Launch, Place, Program, run, run_with, wait_for};
use crate::subject::{Counters, End, Error, Job, Plan, Port, Running, Stage, Subject};
use std::path::Path;
use std::time::Duration;

/// Memory of a daemon's DPDK, MiB: a pool of 262,144 buffers and what else it wants.
const MEMORY: u32 = 1024;
/// What more huge pages of 2 MiB are reserved: drivers allocate beyond that.
const SPARE_PAGES: u32 = 64;
/// How long a daemon may take until it answers.
const START: Duration = Duration::from_secs(60);
/// How long it may take to end.
const STOP: Duration = Duration::from_secs(20);
/// How long rules may take: a million of them.
const RULES: Duration = Duration::from_secs(600);
const SCHEMAS: [&str; 2] = [
    "/usr/share/openvswitch/vswitch.ovsschema",
    "/usr/local/share/openvswitch/vswitch.ovsschema",
];

/// What a daemon has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// DPDK inside; its workers serve kernel interfaces as well.
    Sluice,
    /// DPDK; kernel interfaces are served by workers only through DPDK's driver for them.
    OvsDpdk,
    /// No DPDK: the main thread serves kernel interfaces.
    OvsNetdev,
    /// One's own: as Sluice.
    Own,
}

/// A daemon that takes its configuration from ovsdb-server.
#[derive(Clone, Debug)]
pub struct Daemon {
    pub(super) id: String,
    pub(super) name: String,
    /// The command, or why there is none.
    pub(super) command: Result<Vec<String>, String>,
    pub(super) kind: Kind,
}

/// Any daemon by a command that is called like ovs-vswitchd: words parted by blanks.
pub fn daemon(label: &str, command: &str) -> Daemon {
    let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
    Daemon {
        id: label.to_owned(),
        name: label.to_owned(),
        command: match words.is_empty() {
            true => Err(format!("{label}: the command is empty")),
            false => Ok(words),
        },
        kind: Kind::Own,
    }
}

impl Daemon {
    fn has_dpdk(&self) -> bool {
        self.kind != Kind::OvsNetdev
    }

    fn command(&self) -> Result<&[String], Error> {
        match &self.command {
            Ok(words) => Ok(words),
            Err(why) => Err(Error::Missing(why.clone())),
        }
    }
}

impl Subject for Daemon {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn version(&self) -> Result<String, Error> {
        let mut words = self.command()?.to_vec();
        words.push("--version".into());
        let said = run(&words)?;
        for tool in [
            "ovsdb-server",
            "ovsdb-tool",
            "ovs-vsctl",
            "ovs-ofctl",
            "ovs-appctl",
            "ip",
        ] {
            need(tool)?;
        }
        schema()?;
        if self.kind == Kind::OvsDpdk && !said.contains("DPDK") {
            return Err(Error::Missing(format!(
                "{} is built without DPDK",
                words[0]
            )));
        }
        Ok(read::version(&said, self.kind == Kind::Sluice))
    }

    fn setup(&self) -> String {
        let shared = "A bridge of the userspace datapath, with a database server of its own.";
        match self.kind {
            Kind::OvsNetdev => format!(
                "{shared} Ports are kernel interfaces (veths; TAPs for guests) that the main \
                 thread serves by AF_PACKET; it is pinned to the plan's cores."
            ),
            kind => format!(
                "{shared} Workers are pinned to the plan's cores (pmd-cpu-mask), the main thread \
                 beside them. Ports in memory are net_pcap devices that replay a capture for ever \
                 and drop what is sent, or net_null; guests' ports are dpdkvhostuserclient, \
                 reconnecting to the guest's socket; veths are {}.",
                match kind {
                    Kind::OvsDpdk => "served by workers through net_af_packet",
                    _ => "interfaces that workers serve by AF_PACKET",
                }
            ),
        }
    }

    fn can(&self, plan: &Plan) -> Result<(), Error> {
        check(plan)?;
        if !self.has_dpdk() {
            let pci = |port: &Port| matches!(port, Port::Device(name) if is_pci(name));
            if plan
                .ports
                .iter()
                .any(|port| matches!(port, Port::Memory { .. }) || pci(port))
            {
                return Err(Error::Missing(
                    "without DPDK it has neither ports in memory nor PCI devices".into(),
                ));
            }
        }
        Ok(())
    }

    fn start(&self, place: &Place, plan: &Plan) -> Result<Box<dyn Running>, Error> {
        self.can(plan)?;
        let pages = if self.has_dpdk() {
            MEMORY / 2 + SPARE_PAGES
        } else {
            0
        };
        let site = Site::make(place, &self.id, pages)?;
        let schema = schema()?;
        let database = site.path("conf.db");
        run_in(&site, &["ovsdb-tool", "create", &database, schema])?;
        let server = site.place.start(Launch {
            name: format!("{}.ovsdb-server", site.name),
            command: vec![
                "ovsdb-server".into(),
                database,
                format!("--remote=punix:{}", site.path("db.sock")),
                format!("--unixctl={}", site.path("ovsdb.ctl")),
                "-vconsole:warn".into(),
                "-vfile:off".into(),
                "--no-chdir".into(),
            ],
            environment: environment(&site),
            ..Launch::default()
        })?;
        let mut this = Run {
            kind: self.kind,
            ends: Vec::new(),
            names: Vec::new(),
            before: None,
            daemon: None,
            server,
            site,
        };
        this.set_up(self.command()?, plan)?;
        Ok(Box::new(this))
    }
}

fn schema() -> Result<&'static str, Error> {
    SCHEMAS
        .into_iter()
        .find(|path| Path::new(path).is_file())
        .ok_or_else(|| Error::Missing(format!("there is no schema at {}", SCHEMAS.join(" or "))))
}

/// Has all of Open vSwitch's programs put their files into the switch's directory.
fn environment(site: &Site) -> Vec<(String, String)> {
    let directories = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"];
    let directory = site.directory.display().to_string();
    directories
        .map(|name| (name.to_owned(), directory.clone()))
        .to_vec()
}

/// Runs one of Open vSwitch's tools.
fn run_in(site: &Site, words: &[&str]) -> Result<String, Error> {
    run_long(site, words, "", Duration::from_secs(60))
}

fn run_long(site: &Site, words: &[&str], input: &str, limit: Duration) -> Result<String, Error> {
    run_with(
        words,
        |command| {
            command.envs(environment(site));
        },
        input,
        limit,
    )
}

/// A daemon that runs. What is dropped first is ended first.
struct Run {
    kind: Kind,
    ends: Vec<End>,
    /// Of ports, as OpenFlow numbers them.
    names: Vec<String>,
    /// Cycles by stage when they were last asked for.
    before: Option<Vec<Stage>>,
    daemon: Option<Program>,
    server: Program,
    site: Site,
}

impl Run {
    fn set_up(&mut self, command: &[String], plan: &Plan) -> Result<(), Error> {
        let socket = self.site.path("db.sock");
        let server = &mut self.server;
        wait_for("ovsdb-server listens", START, || {
            server.check()?;
            Ok(std::os::unix::net::UnixStream::connect(&socket).ok())
        })?;
        self.vsctl(&["--no-wait", "init"])?;
        let settings = self.settings(plan);
        let mut words = vec!["--no-wait", "set", "Open_vSwitch", "."];
        words.extend(settings.iter().map(String::as_str));
        self.vsctl(&words)?;
        let mut daemon = self.launch(command, plan)?;
        let control = self.site.path("ctl");
        wait_for("the daemon answers", START, || {
            daemon.check()?;
            Ok(run_in(&self.site, &["ovs-appctl", "-t", &control, "version"]).ok())
        })?;
        self.daemon = Some(daemon);
        self.make_ports(plan)
            .map_err(|error| self.with_log(error))?;
        self.apply(&plan.job)
    }

    /// What the database's one row says.
    fn settings(&self, plan: &Plan) -> Vec<String> {
        if self.kind == Kind::OvsNetdev {
            return vec!["other_config:dpdk-init=false".into()];
        }
        let devices: Vec<&str> = plan
            .ports
            .iter()
            .filter_map(|port| match port {
                Port::Device(name) if is_pci(name) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        let pci = match devices.is_empty() {
            true => "--no-pci".to_owned(),
            false => devices
                .iter()
                .map(|device| format!("-a {device} "))
                .collect(),
        };
        let beside = core_beside(&plan.cores);
        let prefix = self.site.file_prefix();
        vec![
            "other_config:dpdk-init=true".into(),
            format!("other_config:pmd-cpu-mask={}", mask(&plan.cores)),
            format!("other_config:dpdk-lcore-mask={}", mask(&[beside])),
            format!("other_config:dpdk-socket-mem={MEMORY}"),
            format!("other_config:dpdk-extra=\"--in-memory --file-prefix={prefix} {pci}\""),
        ]
    }

    fn launch(&self, command: &[String], plan: &Plan) -> Result<Program, Error> {
        let site = &self.site;
        let mut command = command.to_vec();
        command.extend([
            format!("unix:{}", site.path("db.sock")),
            format!("--pidfile={}", site.path("daemon.pid")),
            format!("--unixctl={}", site.path("ctl")),
            format!("--log-file={}", site.path("daemon.log")),
            "--no-chdir".into(),
            "-vconsole:off".into(),
        ]);
        site.place.start(Launch {
            name: site.name.clone(),
            command,
            environment: environment(site),
            namespace: Some(&site.inside),
            // Workers of DPDK are pinned by the daemon.
            cores: match self.kind {
                Kind::OvsNetdev => plan.cores.clone(),
                _ => Vec::new(),
            },
            piped: false,
        })
    }

    fn make_ports(&mut self, plan: &Plan) -> Result<(), Error> {
        self.vsctl(&[
            "add-br",
            "br0",
            "--",
            "set",
            "Bridge",
            "br0",
            "datapath_type=netdev",
            "fail_mode=secure",
        ])?;
        if self.kind == Kind::OvsDpdk
            && self
                .vsctl(&["get", "Open_vSwitch", ".", "dpdk_initialized"])?
                .trim()
                != "true"
        {
            return Err(Error::Failed("DPDK could not be initialized".into()));
        }
        for (number, port) in (1..).zip(&plan.ports) {
            let (name, settings, end) = self.make_port(number, port)?;
            let mut words = vec![
                "add-port".to_owned(),
                "br0".into(),
                name.clone(),
                "--".into(),
                "set".into(),
            ];
            words.extend([
                "Interface".into(),
                name.clone(),
                format!("ofport_request={number}"),
            ]);
            words.extend(settings);
            self.vsctl(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
            let got = self.vsctl(&["get", "Interface", &name, "ofport"])?;
            if got.trim() != number.to_string() {
                let why = self.vsctl(&["get", "Interface", &name, "error"])?;
                return Err(Error::Failed(format!(
                    "port {number} ({name}) has ofport {}: {}",
                    got.trim(),
                    why.trim()
                )));
            }
            self.names.push(name);
            self.ends.push(end);
        }
        Ok(())
    }

    /// A port's name, settings of its interface, and where a generator attaches.
    fn make_port(
        &mut self,
        number: usize,
        port: &Port,
    ) -> Result<(String, Vec<String>, End), Error> {
        let name = format!("p{number}");
        let dpdk = |devargs: String| {
            vec![
                "type=dpdk".to_owned(),
                format!("options:dpdk-devargs=\"{devargs}\""),
            ]
        };
        match port {
            Port::Memory { frames } => Ok((name, dpdk(memory(number, frames)), End::Itself)),
            Port::Device(device) if is_pci(device) => Ok((name, dpdk(device.clone()), End::Itself)),
            Port::Virtual if self.kind != Kind::OvsNetdev => {
                let path = self.site.directory.join(format!("{name}.sock"));
                let settings = vec![
                    "type=dpdkvhostuserclient".to_owned(),
                    format!("options:vhost-server-path={}", path.display()),
                ];
                Ok((name, settings, End::Socket { path, server: true }))
            }
            port => {
                let (interface, end) = self.site.kernel_port(number, port)?;
                match self.kind {
                    Kind::OvsDpdk => {
                        // A port of the same name would be taken for the interface itself.
                        let devargs = format!("net_af_packet{number},iface={interface}");
                        Ok((format!("dpdk{number}"), dpdk(devargs), end))
                    }
                    _ => Ok((interface, Vec::new(), end)),
                }
            }
        }
    }

    fn vsctl(&self, words: &[&str]) -> Result<String, Error> {
        let database = format!("--db=unix:{}", self.site.path("db.sock"));
        let mut all = vec!["ovs-vsctl", &database, "--timeout=50"];
        all.extend(words);
        run_in(&self.site, &all)
    }

    fn appctl(&self, words: &[&str]) -> Result<String, Error> {
        let control = self.site.path("ctl");
        let mut all = vec!["ovs-appctl", "-t", &control];
        all.extend(words);
        run_in(&self.site, &all)
    }

    fn ofctl(&self, words: &[&str], input: &str) -> Result<String, Error> {
        let mut all = vec!["ovs-ofctl"];
        all.extend(words);
        run_long(&self.site, &all, input, RULES)
    }

    /// Where the bridge takes OpenFlow connections.
    fn management(&self) -> String {
        self.site.path("br0.mgmt")
    }

    /// An error with what the daemon has logged last.
    fn with_log(&self, error: Error) -> Error {
        let log = std::fs::read_to_string(self.site.path("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().filter(|line| read::is_trouble(line)).collect();
        match (&error, lines.is_empty()) {
            (Error::Failed(text), false) => Error::Failed(format!(
                "{text}; its log says: {}",
                lines[lines.len().saturating_sub(5)..].join(" | ")
            )),
            _ => error,
        }
    }
}

/// DPDK's device of a port in memory.
pub(super) fn memory(number: usize, frames: &Path) -> String {
    match frames.as_os_str().is_empty() {
        true => format!("net_null{number},no-rx=1"),
        false => format!(
            "net_pcap{number},rx_pcap={},infinite_rx=1",
            frames.display()
        ),
    }
}

impl Running for Run {
    fn ends(&self) -> Vec<End> {
        self.ends.clone()
    }

    fn counters(&mut self) -> Result<Vec<Counters>, Error> {
        if let Some(daemon) = &mut self.daemon {
            daemon.check()?;
        }
        let text = self.ofctl(&["dump-ports", &self.management()], "")?;
        (1..=self.names.len())
            .map(|number| {
                read::port(&text, number).ok_or_else(|| {
                    Error::Failed(format!("port {number} is not among its counters: {text}"))
                })
            })
            .collect()
    }

    fn apply(&mut self, job: &Job) -> Result<(), Error> {
        super::check_job(job, self.names.len())?;
        let management = self.management();
        let wanted = rules::of(job, self.names.len());
        self.ofctl(&["del-flows", &management], "")?;
        self.ofctl(&["-O", "OpenFlow15", "del-groups", &management], "")?;
        let stations = match job {
            Job::Stations(count) => *count,
            _ => 0,
        };
        if stations > 0 {
            // Those of all ports, and some more: the table forgets the oldest when it is full.
            let size = (u64::from(stations) * self.names.len() as u64 + 1024).min(1_000_000);
            self.vsctl(&[
                "set",
                "Bridge",
                "br0",
                &format!("other_config:mac-table-size={size}"),
                "other_config:mac-aging-time=3600",
            ])?;
        }
        let mut versions = vec![];
        if !wanted.groups.is_empty() {
            versions = vec!["-O", "OpenFlow15"];
            let words = [&versions[..], &["add-groups", &management, "-"]].concat();
            self.ofctl(&words, &lines(&wanted.groups))?;
        }
        let words = [&versions[..], &["add-flows", &management, "-"]].concat();
        self.ofctl(&words, &lines(&wanted.rules))?;
        if stations > 0 {
            learn::stations(Path::new(&management), self.names.len() as u16, stations)?;
        }
        Ok(())
    }

    fn control(&self) -> Option<std::path::PathBuf> {
        Some(self.management().into())
    }

    fn process(&self) -> Option<u32> {
        self.daemon.as_ref().map(Program::id)
    }

    fn workers(&self) -> Vec<u32> {
        let Some(daemon) = &self.daemon else {
            return Vec::new();
        };
        match self.kind {
            Kind::OvsNetdev => vec![daemon.id()],
            _ => daemon.threads(read::is_worker),
        }
    }

    /// Sluice's account is off until this is called the first time, which returns nothing. Open
    /// vSwitch tells cycles for packets and for empty turns.
    fn stages(&mut self) -> Result<Option<Vec<Stage>>, Error> {
        let now = match self.kind {
            Kind::Sluice => {
                if self.before.is_none() && self.appctl(&["sluice/stages", "on"]).is_err() {
                    // An older Sluice.
                    return Ok(None);
                }
                let text = self.appctl(&["sluice/stages", "show", "--json"])?;
                read::stages_of_sluice(&text)?
            }
            Kind::OvsDpdk | Kind::OvsNetdev => {
                read::stages_of_ovs(&self.appctl(&["dpif-netdev/pmd-stats-show"])?)
            }
            Kind::Own => return Ok(None),
        };
        let difference = match &self.before {
            Some(before) => read::difference(before, &now),
            None => Vec::new(),
        };
        self.before = Some(now);
        Ok(Some(difference))
    }

    fn stop(self: Box<Self>) -> Result<(), Error> {
        let Run {
            daemon,
            server,
            site,
            ..
        } = *self;
        let ended = daemon.map_or(Ok(()), |daemon| daemon.stop(STOP));
        let server = server.stop(STOP);
        let removed = site.remove();
        ended.and(server).and(removed)
    }
}

fn lines(texts: &[String]) -> String {
    texts.iter().map(|text| format!("{text}\n")).collect()
}
