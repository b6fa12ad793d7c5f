//! Tests of OpenFlow connections: `ovs-ofctl` and raw controllers against a bridge whose switch is
//! only a list of rules.

use openflow::action::{Action, Instruction};
use openflow::ct_flush::CtFlush;
use openflow::error::Error;
use openflow::flow::{
    FlowMod, FlowModCommand, FlowRemoved, FlowRemovedReason, FlowStats, FlowStatsRequest, TABLE_ALL,
};
use openflow::group::{GroupDescription, GroupMod, GroupStats};
use openflow::message::{
    ErrorKind, Features, FlowFormat, Fragments, Hello, Message, MultipartReply, MultipartRequest,
    NO_BUFFER, PacketIn, PacketInFormat, PacketInReason, PacketOut, QueueRequest, Role,
    RoleMessage,
};
use openflow::meter::{MeterConfig, MeterMod, MeterStats};
use openflow::monitor::MonitorRequest;
use openflow::port::{
    self, PortConfig, PortDescription, PortMod, PortReason, PortStats, PortStatus,
};
use openflow::stats::{
    Aggregate, Description, GroupFeatures, MeterFeatures, QueueDescription, QueueStats,
    TableConfig, TableFeatures, TableStats, TableStatus,
};
use openflow::version::ALL_VERSIONS;
use openflow::{DecodeOptions, Version, decode, encode, frame_length};
use packet::{Field, Match};
use pipeline::SeenRule;
use std::cell::{Cell, RefCell};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;
use switchd::openflow::{
    BundleFailure, ControllerSettings, FlowDump, LocalFuture, OpenFlow, Origin, Switch,
    WatchedRules,
};
use switchd::streams::{Tls, TlsFiles};

/// Time limit for everything here.
const LIMIT: Duration = Duration::from_secs(20);

/// A switch that is a list of rules and two ports.
#[derive(Default)]
struct Rules {
    rules: RefCell<Vec<FlowStats>>,
    fragments: Cell<Fragments>,
    down: Cell<bool>,
    /// Packet-outs sent: the port of the first output, and the packet's length.
    sent: RefCell<Vec<(u32, usize)>>,
    published: Cell<usize>,
    connected: Cell<bool>,
    /// How many times the switch was told about controllers.
    told: Cell<usize>,
    /// While set, barriers are not answered.
    held: Rc<Cell<bool>>,
    /// While set, rules are being changed in slices.
    slow: Rc<Cell<bool>>,
}

/// Priority of flow mods that take until the test ends them, and are then refused.
const SLOW: u16 = 777;
const SLOW_AND_WRONG: u16 = 778;

async fn until_fast(slow: Rc<Cell<bool>>) {
    while slow.get() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns a removed rule's message.
fn removed(cookie: u64) -> FlowRemoved {
    let stats = FlowStats {
        table: 1,
        matching: Match::any(),
        priority: 3,
        cookie,
        duration_ns: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        idle_age: 0,
        hard_age: 0,
        flags: Default::default(),
        importance: 0,
        packets: 0,
        bytes: 0,
        instructions: [].into(),
    };
    FlowRemoved {
        reason: FlowRemovedReason::Delete,
        stats,
    }
}

fn ports(down: bool) -> Vec<PortDescription> {
    [1, port::LOCAL]
        .map(|number| PortDescription {
            number,
            hw_addr: [2, 0, 0, 0, 0, number as u8],
            name: if number == 1 {
                "p1".into()
            } else {
                "br0".into()
            },
            config: if down && number == 1 {
                PortConfig::DOWN
            } else {
                PortConfig::empty()
            },
            ..PortDescription::default()
        })
        .to_vec()
}

impl Rules {
    fn meant(request: &FlowStatsRequest, rule: &FlowStats) -> bool {
        (request.table == TABLE_ALL || request.table == rule.table)
            && rule.matching.is_within(&request.matching)
            && (rule.cookie ^ request.cookie) & request.cookie_mask == 0
    }
}

/// A dump in slices.
struct Slices(std::vec::IntoIter<FlowStats>);

impl FlowDump for Slices {
    fn next(&mut self, budget: usize, take: &mut dyn FnMut(&FlowStats)) -> bool {
        self.0.by_ref().take(budget).for_each(|rule| take(&rule));
        self.0.len() == 0
    }
    fn sum(&mut self, budget: usize, sums: &mut Aggregate) -> bool {
        self.next(budget, &mut |rule| {
            sums.packets += rule.packets;
            sums.bytes += rule.bytes;
            sums.flows += 1;
        })
    }
}

/// A monitor without rules.
struct Unwatched;

impl WatchedRules for Unwatched {
    fn next(&mut self, _budget: usize, _take: &mut dyn FnMut(SeenRule)) -> bool {
        true
    }
}

impl Switch for Rules {
    fn bundle_idle_ms(&self) -> i64 {
        10_000
    }

    fn features(&self, with_ports: bool) -> Features {
        Features {
            datapath_id: 0x1234,
            tables: 254,
            ports: if with_ports {
                ports(self.down.get())
            } else {
                Vec::new()
            },
            ..Features::default()
        }
    }
    fn description(&self) -> Description {
        Description {
            manufacturer: "Test".into(),
            ..Description::default()
        }
    }
    fn fragments(&self) -> Fragments {
        self.fragments.get()
    }
    fn set_fragments(&self, fragments: Fragments) -> Result<(), Error> {
        self.fragments.set(fragments);
        Ok(())
    }
    fn flow_mod(
        &self,
        change: &FlowMod,
        _version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        let mut rules = self.rules.borrow_mut();
        if change.priority == 666 {
            return Err(Error::TableFull);
        }
        if change.priority == SLOW || change.priority == SLOW_AND_WRONG {
            self.slow.set(true);
            let (slow, priority) = (self.slow.clone(), change.priority);
            return Ok(Some(Box::pin(async move {
                until_fast(slow).await;
                match priority {
                    SLOW => Ok(()),
                    _ => Err(Error::TableFull),
                }
            })));
        }
        match change.command {
            FlowModCommand::Add | FlowModCommand::Modify | FlowModCommand::ModifyStrict => rules
                .push(FlowStats {
                    table: change.table,
                    matching: change.matching.clone(),
                    priority: change.priority,
                    cookie: change.cookie,
                    duration_ns: 1_000_000_000,
                    idle_timeout: change.idle_timeout,
                    hard_timeout: change.hard_timeout,
                    idle_age: 1,
                    hard_age: 1,
                    flags: change.flags,
                    importance: change.importance,
                    packets: 3,
                    bytes: 180,
                    instructions: change.instructions.shared().clone(),
                }),
            FlowModCommand::Delete | FlowModCommand::DeleteStrict => rules.retain(|rule| {
                change.table != TABLE_ALL && change.table != rule.table
                    || !rule.matching.is_within(&change.matching)
            }),
        }
        Ok(None)
    }
    fn busy(&self) -> Option<LocalFuture<()>> {
        let slow = self.slow.clone();
        slow.get()
            .then(|| Box::pin(until_fast(slow)) as LocalFuture<()>)
    }
    fn packet_out(&self, packet: &PacketOut, _version: Version) -> Result<(), Error> {
        for action in &packet.actions {
            if let openflow::action::Action::Output { port, .. } = action {
                self.sent.borrow_mut().push((*port, packet.data.len()));
            }
        }
        Ok(())
    }
    fn port_mod(&self, change: &PortMod) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        if change.port != 1 {
            return Err(Error::PortModBadPort);
        }
        if change.mask.contains(PortConfig::DOWN) {
            self.down.set(change.config.contains(PortConfig::DOWN));
        }
        Ok(None)
    }
    fn table_mod(&self, _change: &TableConfig, _version: Version) -> Result<(), Error> {
        Ok(())
    }
    fn change_table_features(&self, _wanted: &[TableFeatures]) -> Result<(), Error> {
        Err(Error::TableFeaturesPermission)
    }
    fn flush_connections(&self, _: &CtFlush) -> LocalFuture<Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn tlv_table_mod(&self, _: &openflow::tlv::TlvTableMod) -> Result<(), Error> {
        Err(Error::TlvTableFull)
    }
    fn tlv_table(&self) -> openflow::tlv::TlvTable {
        openflow::tlv::TlvTable {
            max_space: 4,
            max_fields: 1,
            mappings: Vec::new(),
        }
    }
    fn group_mod(
        &self,
        _change: &GroupMod,
        _version: Version,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        Err(Error::OutOfGroups)
    }
    fn meter_mod(
        &self,
        _change: &MeterMod,
    ) -> Result<Option<LocalFuture<Result<(), Error>>>, Error> {
        Err(Error::OutOfMeters)
    }
    fn bundle(
        &self,
        pieces: Vec<Vec<Message>>,
        version: Version,
    ) -> Result<Option<LocalFuture<Result<(), BundleFailure>>>, BundleFailure> {
        let before = self.rules.borrow().clone();
        for (message, what) in pieces.into_iter().flatten().enumerate() {
            let done = match what {
                Message::FlowMod { change, .. } => self.flow_mod(&change, version).map(|_| ()),
                _ => Err(Error::BundleMessageUnsupported),
            };
            if let Err(error) = done {
                *self.rules.borrow_mut() = before;
                return Err(BundleFailure { message, error });
            }
        }
        Ok(None)
    }
    fn publish(&self) {
        self.published.set(self.published.get() + 1);
    }
    fn barrier(&self) -> LocalFuture<()> {
        let held = self.held.clone();
        Box::pin(async move {
            while held.get() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }
    fn flows(&self, request: &FlowStatsRequest) -> Result<Box<dyn FlowDump + '_>, Error> {
        let meant = |rule: &&FlowStats| Rules::meant(request, rule);
        let rules: Vec<FlowStats> = self.rules.borrow().iter().filter(meant).cloned().collect();
        Ok(Box::new(Slices(rules.into_iter())))
    }
    fn watch(&self, _watched: bool) {}
    fn take_changes(&self, _limit: usize) -> Vec<pipeline::RuleChange> {
        Vec::new()
    }
    fn watched(&self, _monitor: &MonitorRequest) -> Box<dyn WatchedRules + '_> {
        Box::new(Unwatched)
    }
    fn begin_page(&self) -> u32 {
        0
    }
    fn take_table_status(&self) -> Vec<TableStatus> {
        Vec::new()
    }
    fn table_stats(&self) -> Vec<TableStats> {
        (0..254)
            .map(|table| TableStats {
                table,
                active: u32::from(table),
                ..TableStats::default()
            })
            .collect()
    }
    fn table_features(&self) -> Vec<TableFeatures> {
        (0..254)
            .map(|table| TableFeatures {
                table,
                name: format!("table{table}"),
                matchable: vec![(Field::EthDst, true), (Field::InPortOxm, false)],
                wildcards: vec![Field::EthDst, Field::InPortOxm],
                ..TableFeatures::default()
            })
            .collect()
    }
    fn table_configs(&self) -> Vec<TableConfig> {
        vec![TableConfig {
            table: 0,
            config: 0,
            ..TableConfig::default()
        }]
    }
    fn ports(&self) -> Vec<PortDescription> {
        ports(self.down.get())
    }
    fn port_stats(&self, wanted: u32) -> Result<Vec<PortStats>, Error> {
        let all = [1, port::LOCAL].map(|port| PortStats {
            port,
            rx_packets: 5,
            ..PortStats::default()
        });
        let some: Vec<_> = all
            .into_iter()
            .filter(|stats| [port::ANY, stats.port].contains(&wanted))
            .collect();
        Ok(some)
    }
    fn queue_stats(&self, _request: QueueRequest) -> Result<Vec<QueueStats>, Error> {
        Ok(Vec::new())
    }
    fn queues(&self, _request: QueueRequest) -> Result<Vec<QueueDescription>, Error> {
        Ok(Vec::new())
    }
    fn group_stats(&self, _group: u32) -> Result<Vec<GroupStats>, Error> {
        Ok(Vec::new())
    }
    fn groups(&self, _group: u32) -> Result<Vec<GroupDescription>, Error> {
        Ok(Vec::new())
    }
    fn group_features(&self) -> GroupFeatures {
        GroupFeatures::default()
    }
    fn meter_stats(&self, _meter: u32) -> Result<Vec<MeterStats>, Error> {
        Ok(Vec::new())
    }
    fn meters(&self, _meter: u32) -> Result<Vec<MeterConfig>, Error> {
        Ok(Vec::new())
    }
    fn meter_features(&self) -> MeterFeatures {
        MeterFeatures::default()
    }
    fn controllers_connected(&self, connected: bool) {
        self.connected.set(connected);
        self.told.set(self.told.get() + 1);
    }
}

type Job = Box<dyn FnOnce(&Rules, &OpenFlow) + Send>;

/// A bridge `br0` on a thread of its own.
struct Bridge {
    directory: tempfile::TempDir,
    jobs: tokio::sync::mpsc::UnboundedSender<Job>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bridge {
    fn start() -> Bridge {
        let directory = tempfile::tempdir().unwrap();
        let (jobs, mut queue) = tokio::sync::mpsc::unbounded_channel::<Job>();
        let rundir = directory.path().to_owned();
        let (ready, started) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let rules = Rc::new(Rules::default());
                let tls = Rc::new(Tls::new(TlsFiles::default()));
                let openflow = OpenFlow::new("br0", rules.clone(), tls, ALL_VERSIONS);
                assert_eq!(openflow.open_sockets(&rundir), Vec::<String>::new());
                ready.send(()).unwrap();
                while let Some(job) = queue.recv().await {
                    job(&rules, &openflow);
                }
            });
        });
        started.recv_timeout(LIMIT).unwrap();
        Bridge {
            directory,
            jobs,
            thread: Some(thread),
        }
    }

    fn socket(&self, suffix: &str) -> PathBuf {
        self.directory.path().join(format!("br0.{suffix}"))
    }

    /// Runs a closure on the bridge's thread and returns its result.
    fn with<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Rules, &OpenFlow) -> T + Send + 'static,
    ) -> T {
        let (answer, result) = mpsc::channel();
        self.jobs
            .send(Box::new(move |rules, openflow| {
                answer.send(job(rules, openflow)).unwrap()
            }))
            .unwrap_or_else(|_| panic!("the bridge's thread has ended"));
        result.recv_timeout(LIMIT).unwrap()
    }

    /// Waits until a condition holds.
    fn wait(
        &self,
        what: &str,
        mut holds: impl FnMut(&Rules, &OpenFlow) -> bool + Send + Clone + 'static,
    ) {
        let end = std::time::Instant::now() + LIMIT;
        loop {
            let mut check = holds.clone();
            if self.with(move |rules, openflow| check(rules, openflow)) {
                return;
            }
            assert!(std::time::Instant::now() < end, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(5));
            let _ = &mut holds;
        }
    }

    /// Runs `ovs-ofctl` on the bridge; None where it is not installed.
    fn ofctl(&self, arguments: &[&str]) -> Option<(bool, String)> {
        let target = format!("unix:{}", self.socket("mgmt").display());
        let arguments: Vec<&str> = arguments
            .iter()
            .map(|argument| {
                if *argument == "br0" {
                    target.as_str()
                } else {
                    argument
                }
            })
            .collect();
        let output = match Command::new("ovs-ofctl")
            .arg("--timeout=15")
            .args(&arguments)
            .output()
        {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("skipped: ovs-ofctl is not installed");
                return None;
            }
            Err(error) => panic!("ovs-ofctl: {error}"),
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        Some((output.status.success(), text))
    }

    /// Runs `ovs-ofctl`, which must succeed and print all of `expected`.
    fn prints(&self, arguments: &[&str], expected: &[&str]) {
        let Some((success, text)) = self.ofctl(arguments) else {
            return;
        };
        assert!(success, "{arguments:?}: {text}");
        for part in expected {
            assert!(
                text.contains(part),
                "{arguments:?}: expected {part:?} in\n{text}"
            );
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let (closed, _) = tokio::sync::mpsc::unbounded_channel();
        self.jobs = closed;
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

const VERSIONS: [&str; 6] = [
    "OpenFlow10",
    "OpenFlow11",
    "OpenFlow12",
    "OpenFlow13",
    "OpenFlow14",
    "OpenFlow15",
];

#[test]
fn ofctl_in_every_version() {
    for version in VERSIONS {
        let bridge = Bridge::start();
        let run = |arguments: &[&str], expected: &[&str]| {
            bridge.prints(&[&["-O", version], arguments].concat(), expected);
        };
        run(
            &["show", "br0"],
            &[
                "dpid:0000000000001234",
                "1(p1)",
                "LOCAL(br0)",
                "n_tables:254",
            ],
        );
        run(
            &[
                "add-flow",
                "br0",
                "priority=9,tcp,in_port=1,tp_dst=80,actions=output:2",
            ],
            &[],
        );
        run(
            &[
                "add-flow",
                "br0",
                "priority=10,ip,nw_src=10.0.0.0/8,actions=drop",
            ],
            &[],
        );
        run(
            &["dump-flows", "br0"],
            &[
                "priority=9,tcp,in_port=1,tp_dst=80 actions=output:2",
                "priority=10,ip,nw_src=10.0.0.0/8 actions=drop",
            ],
        );
        run(
            &["dump-aggregate", "br0"],
            &["packet_count=6 byte_count=360 flow_count=2"],
        );
        run(&["del-flows", "br0", "tcp"], &[]);
        assert_eq!(bridge.with(|rules, _| rules.rules.borrow().len()), 1);
        run(&["dump-ports", "br0"], &["port  1: rx pkts=5"]);
        run(&["dump-ports", "br0", "1"], &["1 ports"]);
        run(
            &["dump-ports-desc", "br0"],
            &["1(p1): addr:02:00:00:00:00:01"],
        );
        run(&["dump-tables", "br0"], &["active=2"]);
        run(&["mod-port", "br0", "p1", "down"], &[]);
        assert!(bridge.with(|rules, _| rules.down.get()));
        run(
            &[
                "packet-out",
                "br0",
                "in_port=1 packet=ffffffffffff02000000000108004500 actions=output:2",
            ],
            &[],
        );
        assert_eq!(
            bridge.with(|rules, _| rules.sent.borrow().clone()),
            [(2, 16)]
        );
        run(&["queue-stats", "br0"], &["0 queues"]);
        run(&["get-frags", "br0"], &["normal"]);
        run(&["set-frags", "br0", "nx-match"], &[]);
        run(&["get-frags", "br0"], &["nx-match"]);
        if version >= "OpenFlow12" {
            run(&["dump-groups", "br0"], &[]);
            run(&["dump-group-features", "br0"], &["Group table:"]);
        }
        if version >= "OpenFlow13" {
            run(&["meter-features", "br0"], &["max_meter:0"]);
            run(
                &["dump-table-features", "br0"],
                &["table 253 (\"table253\")"],
            );
        }
        if version >= "OpenFlow14" {
            run(&["dump-table-desc", "br0"], &[]);
            run(
                &["--bundle", "add-flow", "br0", "priority=7,arp,actions=drop"],
                &[],
            );
            assert_eq!(bridge.with(|rules, _| rules.rules.borrow().len()), 2);
        }
        run(&["probe", "br0"], &[]);
        run(&["ping", "br0", "64"], &["64 bytes from"]);
    }
}

#[test]
fn errors_reach_the_client() {
    let bridge = Bridge::start();
    let failing = |arguments: &[&str], expected: &str| {
        let Some((success, text)) = bridge.ofctl(arguments) else {
            return;
        };
        assert!(!success, "{arguments:?} should fail");
        assert!(
            text.contains(expected),
            "{arguments:?}: expected {expected} in\n{text}"
        );
    };
    failing(
        &["add-flow", "br0", "priority=666,actions=drop"],
        "OFPFMFC_TABLE_FULL",
    );
    failing(
        &[
            "-O",
            "OpenFlow13",
            "add-group",
            "br0",
            "group_id=1,type=all,bucket=output:1",
        ],
        "OFPGMFC_OUT_OF_GROUPS",
    );
    failing(
        &[
            "-O",
            "OpenFlow13",
            "add-meter",
            "br0",
            "meter=1,kbps,band=type=drop,rate=10",
        ],
        "OFPMMFC_OUT_OF_METERS",
    );
    failing(
        &[
            "-O",
            "OpenFlow14",
            "--bundle",
            "replace-flows",
            "br0",
            "/dev/stdin/none",
        ],
        "/dev/stdin/none",
    );
    let flows = bridge.directory.path().join("flows");
    std::fs::write(
        &flows,
        "priority=1,actions=drop\npriority=666,actions=drop\n",
    )
    .unwrap();
    failing(
        &[
            "-O",
            "OpenFlow14",
            "--bundle",
            "add-flows",
            "br0",
            flows.to_str().unwrap(),
        ],
        "OFPFMFC_TABLE_FULL",
    );
    assert_eq!(
        bridge.with(|rules, _| rules.rules.borrow().len()),
        0,
        "a bundle is done whole or not at all"
    );
}

#[test]
fn a_dump_leaves_out_a_rule_that_no_message_holds() {
    let bridge = Bridge::start();
    // 8 bytes each in 1.0, 16 in later versions.
    let outputs = vec![
        Action::Output {
            port: 1,
            max_len: 0
        };
        4095
    ];
    let change = FlowMod::add(Match::any(), 7, vec![Instruction::ApplyActions(outputs)]);
    let mut old = bridge.manage(Version::V1_0);
    old.send(&Message::FlowMod {
        change,
        form: Default::default(),
    });
    let dump = Message::MultipartRequest {
        request: MultipartRequest::Flow {
            request: FlowStatsRequest {
                table: TABLE_ALL,
                matching: Match::any(),
                cookie: 0,
                cookie_mask: 0,
                out_port: port::ANY,
                out_group: u32::MAX,
            },
            format: FlowFormat::Standard,
        },
        more: false,
    };
    let answer = old.ask(&dump);
    let Message::MultipartReply {
        reply: MultipartReply::Flow { flows, .. },
        ..
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(flows.len(), 1);
    let mut new = bridge.manage(Version::V1_3);
    let answer = new.ask(&dump);
    let Message::MultipartReply {
        reply: MultipartReply::Flow { flows, .. },
        more: false,
    } = answer
    else {
        panic!("{answer:?}");
    };
    assert_eq!(flows.len(), 0);
    assert_eq!(new.receive_all(), []);
}

#[test]
fn many_rules_come_back_whole() {
    let bridge = Bridge::start();
    let flows = bridge.directory.path().join("flows");
    let text: String = (0..5000)
        .map(|n| format!("udp,udp_dst={n},actions=output:1,output:2\n"))
        .collect();
    std::fs::write(&flows, text).unwrap();
    for version in ["OpenFlow10", "OpenFlow13"] {
        bridge.prints(
            &["-O", version, "add-flows", "br0", flows.to_str().unwrap()],
            &[],
        );
        let Some((_, text)) = bridge.ofctl(&["-O", version, "dump-flows", "br0"]) else {
            return;
        };
        assert_eq!(
            text.lines().filter(|line| line.contains("tp_dst=")).count(),
            5000
        );
        bridge.prints(&["-O", version, "del-flows", "br0"], &[]);
    }
}

/// A controller for tests.
struct Controller<S> {
    stream: S,
    version: Version,
    xid: u32,
}

impl<S: Read + Write> Controller<S> {
    fn hello(stream: S, version: Version) -> Controller<S> {
        let mut controller = Controller {
            stream,
            version,
            xid: 100,
        };
        controller.send(&Message::Hello(Hello {
            versions: version.bit(),
        }));
        assert!(matches!(controller.receive(), Message::Hello(_)));
        controller
    }

    fn send(&mut self, message: &Message) -> u32 {
        self.xid += 1;
        self.stream
            .write_all(&encode(self.version, self.xid, message))
            .unwrap();
        self.xid
    }

    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 8];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes.resize(frame_length(&bytes).unwrap(), 0);
        self.stream.read_exact(&mut bytes[8..]).unwrap();
        bytes
    }

    fn receive(&mut self) -> Message {
        let bytes = self.bytes();
        decode(&bytes, &DecodeOptions::default()).unwrap().1
    }

    /// Returns all messages up to the reply to an echo request, which comes behind everything sent
    /// before.
    fn receive_all(&mut self) -> Vec<Message> {
        self.send(&Message::EchoRequest(b"end".to_vec()));
        let mut all = Vec::new();
        loop {
            match self.receive() {
                Message::EchoReply(data) if data == b"end" => return all,
                message => all.push(message),
            }
        }
    }

    fn ask(&mut self, message: &Message) -> Message {
        self.send(message);
        self.receive()
    }
}

impl Bridge {
    fn manage(&self, version: Version) -> Controller<UnixStream> {
        let stream = UnixStream::connect(self.socket("mgmt")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Controller::hello(stream, version)
    }

    /// Makes the bridge connect to a controller of the test.
    fn primary(&self, version: Version) -> (Controller<TcpStream>, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = settings(&format!("tcp:{}", listener.local_addr().unwrap()));
        self.with(move |_, openflow| {
            assert_eq!(openflow.set_controllers(&[settings]), Vec::<String>::new())
        });
        let stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        (Controller::hello(stream, version), listener)
    }
}

fn settings(target: &str) -> ControllerSettings {
    ControllerSettings {
        target: target.to_owned(),
        service: false,
        max_backoff: 1,
        inactivity_probe: 0,
        asynchronous: true,
        queue_size: 100,
        rate_limit: 0,
        burst_limit: 0,
        dscp: 48,
    }
}

fn add(priority: u16) -> Message {
    Message::FlowMod {
        change: FlowMod::add(Match::any(), priority, Vec::new()),
        form: Default::default(),
    }
}

fn packet_in(reason: PacketInReason) -> PacketIn {
    let mut matching = Match::any();
    matching.set_exact(Field::InPortOxm, 1);
    PacketIn {
        format: PacketInFormat::Standard,
        buffer_id: NO_BUFFER,
        total_len: 300,
        reason,
        table: 0,
        cookie: 7,
        matching,
        data: vec![1; 300],
        userdata: Vec::new(),
        continuation: Vec::new(),
    }
}

#[test]
fn nothing_behind_a_barrier_is_done_before_it_is_answered() {
    let bridge = Bridge::start();
    let mut slow = bridge.manage(Version::V1_3);
    bridge.with(|rules, _| rules.held.set(true));
    slow.send(&add(1));
    let barrier = slow.send(&Message::BarrierRequest);
    slow.send(&add(2));
    bridge.wait("the first rule", |rules, _| rules.rules.borrow().len() == 1);
    // Another connection is served meanwhile.
    let mut other = bridge.manage(Version::V1_0);
    assert!(matches!(
        other.ask(&Message::FeaturesRequest),
        Message::FeaturesReply(_)
    ));
    assert_eq!(
        bridge.with(|rules, _| (rules.rules.borrow().len(), rules.published.get() > 0)),
        (1, true)
    );
    bridge.with(|rules, _| rules.held.set(false));
    let answer = slow.bytes();
    assert_eq!(answer[4..8], barrier.to_be_bytes());
    bridge.wait("the second rule", |rules, _| {
        rules.rules.borrow().len() == 2
    });
}

#[test]
fn messages_read_together_are_published_together() {
    let bridge = Bridge::start();
    let mut controller = bridge.manage(Version::V1_3);
    let many: Vec<u8> = (0..500)
        .flat_map(|n| encode(Version::V1_3, n, &add(n as u16 % 600)))
        .collect();
    controller.stream.write_all(&many).unwrap();
    assert!(matches!(
        controller.ask(&Message::BarrierRequest),
        Message::BarrierReply
    ));
    let (rules, published) =
        bridge.with(|rules, _| (rules.rules.borrow().len(), rules.published.get()));
    assert_eq!(rules, 500);
    assert!(published < 50, "published {published} times");
}

#[test]
fn malformed_messages_are_answered_and_the_connection_goes_on() {
    let bridge = Bridge::start();
    let mut controller = bridge.manage(Version::V1_3);
    // An unknown type, a flow mod that is too short, a hello in the middle, an unknown multipart.
    controller
        .stream
        .write_all(&[4, 99, 0, 8, 0, 0, 0, 1])
        .unwrap();
    controller
        .stream
        .write_all(&[4, 14, 0, 16, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8])
        .unwrap();
    controller
        .stream
        .write_all(&[4, 18, 0, 16, 0, 0, 0, 3, 0x12, 0x34, 0, 0, 0, 0, 0, 0])
        .unwrap();
    let kinds: Vec<_> = (0..3)
        .map(|_| match controller.receive() {
            Message::Error(error) => (error.kind, error.data[4..8].to_vec()),
            other => panic!("{other:?}"),
        })
        .collect();
    use openflow::message::ErrorKind::Known;
    assert_eq!(
        kinds,
        [
            (Known(Error::BadType), vec![0, 0, 0, 1]),
            (Known(Error::BadLength), vec![0, 0, 0, 2]),
            (Known(Error::BadMultipart), vec![0, 0, 0, 3]),
        ]
    );
    assert!(matches!(
        controller.ask(&Message::BarrierRequest),
        Message::BarrierReply
    ));
    // An impossible length ends the connection, after an error message.
    controller
        .stream
        .write_all(&[4, 2, 0, 3, 0, 0, 0, 9])
        .unwrap();
    assert!(matches!(controller.receive(), Message::Error(_)));
    assert_eq!(controller.stream.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn versions_that_do_not_meet_are_refused() {
    let bridge = Bridge::start();
    bridge.with(|_, openflow| openflow.set_versions(Version::V1_3.bit() | Version::V1_0.bit()));
    let mut stream = UnixStream::connect(bridge.socket("mgmt")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let only_14 = Message::Hello(Hello {
        versions: Version::V1_4.bit(),
    });
    stream
        .write_all(&encode(Version::V1_4, 1, &only_14))
        .unwrap();
    let mut controller = Controller {
        stream,
        version: Version::V1_4,
        xid: 0,
    };
    match controller.receive() {
        Message::Hello(hello) => assert_eq!(hello.versions, 0b1_0010),
        other => panic!("{other:?}"),
    }
    match controller.receive() {
        Message::Error(error) => {
            assert_eq!(
                error.kind,
                openflow::message::ErrorKind::Known(Error::HelloIncompatible)
            );
        }
        other => panic!("{other:?}"),
    }
    // A hello of a future version without a bitmap also means every older version.
    let mut stream = UnixStream::connect(bridge.socket("mgmt")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&[9, 0, 0, 8, 0, 0, 0, 1]).unwrap();
    let mut controller = Controller {
        stream,
        version: Version::V1_3,
        xid: 0,
    };
    assert!(matches!(controller.receive(), Message::Hello(_)));
    assert!(matches!(
        controller.ask(&Message::FeaturesRequest),
        Message::FeaturesReply(_)
    ));
}

#[test]
fn tools_hear_nothing_unasked_and_primaries_do() {
    let bridge = Bridge::start();
    let mut tool = bridge.manage(Version::V1_3);
    let (mut primary, _listener) = bridge.primary(Version::V1_3);
    bridge.wait("the primary", |rules, _| rules.connected.get());
    let tell = |_: &Rules, openflow: &OpenFlow| {
        openflow.packet_in(&packet_in(PacketInReason::NoMatch), Origin::TableMiss, 0);
        openflow.packet_in(&packet_in(PacketInReason::Action), Origin::Rule, 0);
        openflow.packet_in(&packet_in(PacketInReason::InvalidTtl), Origin::Rule, 0);
        openflow.packet_in(&packet_in(PacketInReason::Action), Origin::Rule, 5);
        openflow.port_status(&PortStatus {
            reason: PortReason::Modify,
            port: ports(false).remove(0),
        });
        openflow.flows_removed(&[removed(0)]);
    };
    bridge.with(tell);
    let heard: Vec<_> = primary
        .receive_all()
        .into_iter()
        .map(|message| match message {
            Message::PacketIn(packet) => format!("{:?} {}", packet.reason, packet.data.len()),
            Message::PortStatus(_) => "port".into(),
            Message::FlowRemoved { .. } => "removed".into(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(heard, ["NoMatch 300", "Action 300", "port", "removed"]);
    assert_eq!(tool.receive_all(), []);
    // A tool that sets a miss send length gets packet-ins, too, and with its own controller id
    // those for that id.
    tool.send(&Message::SetConfig(openflow::message::SwitchConfig {
        fragments: Fragments::Normal,
        invalid_ttl_to_controller: false,
        miss_send_len: 0xffff,
    }));
    tool.send(&Message::SetControllerId(5));
    assert_eq!(tool.receive_all(), []);
    bridge.with(tell);
    assert_eq!(tool.receive_all().len(), 3);
}

#[test]
fn controllers_before_1_3_get_whole_packets_that_match_no_rule() {
    let bridge = Bridge::start();
    let config = |miss_send_len| {
        Message::SetConfig(openflow::message::SwitchConfig {
            fragments: Fragments::Normal,
            invalid_ttl_to_controller: false,
            miss_send_len,
        })
    };
    let mut tools = [Version::V1_0, Version::V1_2, Version::V1_3, Version::V1_5]
        .map(|version| bridge.manage(version));
    let wants = || bridge.with(|_, openflow| openflow.wants_misses());
    assert!(!wants(), "a tool takes no packets until it says so");
    for tool in &mut tools {
        tool.send(&config(100));
        assert_eq!(tool.receive_all(), []);
    }
    assert!(wants());
    bridge.with(|_: &Rules, openflow: &OpenFlow| {
        openflow.packet_in(&packet_in(PacketInReason::NoMatch), Origin::NoRule, 0);
        openflow.packet_in(&packet_in(PacketInReason::NoMatch), Origin::TableMiss, 0);
        openflow.packet_in(&packet_in(PacketInReason::NoMatch), Origin::Rule, 0);
    });
    let heard = tools.each_mut().map(|tool| {
        let heard = tool.receive_all().into_iter();
        let heard = heard.map(|message| match message {
            Message::PacketIn(packet) => format!("{:?} {}", packet.reason, packet.data.len()),
            other => format!("{other:?}"),
        });
        heard.collect::<Vec<_>>()
    });
    let old = ["NoMatch 300", "Action 300", "NoMatch 300"];
    let new = ["NoMatch 300", "NoMatch 300"];
    assert_eq!(heard, [&old[..], &old, &new, &new]);
    for tool in &mut tools[..2] {
        tool.send(&Message::SetControllerId(3));
        assert_eq!(tool.receive_all(), []);
    }
    assert!(
        !wants(),
        "controllers with an id of their own get what is meant for it"
    );
}

#[test]
fn only_one_is_primary() {
    let bridge = Bridge::start();
    let (mut first, mut second) = (bridge.manage(Version::V1_3), bridge.manage(Version::V1_4));
    let role = |role, generation| {
        Message::RoleRequest(RoleMessage {
            role,
            generation,
            nicira: false,
        })
    };
    let is = |message: Message, expected| match message {
        Message::RoleReply(reply) => assert_eq!(reply.role, expected),
        other => panic!("{other:?}"),
    };
    is(first.ask(&role(Role::NoChange, None)), Role::Equal);
    is(first.ask(&role(Role::Primary, Some(10))), Role::Primary);
    is(second.ask(&role(Role::Primary, Some(11))), Role::Primary);
    let loses = |message: Message| match message {
        Message::RoleStatus(status) => assert_eq!(status.role, Role::Secondary),
        other => panic!("{other:?}"),
    };
    // A primary that becomes secondary is told so, in 1.3 by ONF's extension.
    loses(first.receive());
    is(first.ask(&role(Role::NoChange, None)), Role::Secondary);
    let error = |message: Message| match message {
        Message::Error(error) => error.kind,
        other => panic!("{other:?}"),
    };
    use openflow::message::ErrorKind::Known;
    assert_eq!(error(first.ask(&add(1))), Known(Error::IsSlave));
    assert_eq!(
        error(first.ask(&role(Role::Primary, Some(10)))),
        Known(Error::RoleStale)
    );
    is(first.ask(&role(Role::Primary, Some(11))), Role::Primary);
    loses(second.receive());
    is(second.ask(&role(Role::NoChange, None)), Role::Secondary);
}

#[test]
fn a_controller_that_goes_is_looked_for_again() {
    let bridge = Bridge::start();
    let (primary, listener) = bridge.primary(Version::V1_3);
    bridge.wait("the primary", |rules, _| rules.connected.get());
    let status = bridge.with(|_, openflow| openflow.controller_status().remove(0));
    assert!(status.is_connected);
    assert_eq!(status.role, Some("other"));
    assert!(status.status.contains(&("state", "ACTIVE".into())));
    drop(primary);
    bridge.wait("its end", |rules, _| !rules.connected.get());
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let _again = Controller::hello(stream, Version::V1_0);
    bridge.wait("its return", |rules, _| rules.connected.get());
    let status = bridge.with(|_, openflow| openflow.controller_status().remove(0));
    assert!(
        status
            .status
            .contains(&("last_error", "connection closed by peer".into())),
        "{status:?}"
    );
    bridge.with(|_, openflow| openflow.set_controllers(&[]));
    bridge.wait("its end", |rules, _| !rules.connected.get());
}

#[test]
fn an_old_controller_beside_a_new_one_gets_what_meets_no_rule() {
    let bridge = Bridge::start();
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let wanted = listeners
        .each_ref()
        .map(|listener| settings(&format!("tcp:{}", listener.local_addr().unwrap())));
    bridge.with(move |_, openflow| openflow.set_controllers(&wanted));
    let accept = |listener: &TcpListener, version| {
        let stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Controller::hello(stream, version)
    };
    let _new = accept(&listeners[0], Version::V1_3);
    bridge.wait("the new one", |rules, _| rules.told.get() == 1);
    assert!(!bridge.with(|_, openflow| openflow.wants_misses()));
    let old = accept(&listeners[1], Version::V1_0);
    bridge.wait("the old one", |rules, openflow| {
        rules.told.get() == 2 && openflow.wants_misses()
    });
    drop(old);
    bridge.wait("its end", |rules, openflow| {
        rules.told.get() == 3 && rules.connected.get() && !openflow.wants_misses()
    });
}

#[test]
fn a_silent_controller_is_given_up() {
    let bridge = Bridge::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut wanted = settings(&format!("tcp:{}", listener.local_addr().unwrap()));
    // The test itself has the same time to answer.
    wanted.inactivity_probe = 3;
    bridge.with(move |_, openflow| openflow.set_controllers(&[wanted]));
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut controller = Controller::hello(stream, Version::V1_3);
    let Message::EchoRequest(data) = controller.receive() else {
        panic!("no probe")
    };
    controller.send(&Message::EchoReply(data));
    assert!(
        matches!(controller.receive(), Message::EchoRequest(_)),
        "an answered probe is followed by the next"
    );
    // Not answered: the connection ends.
    assert_eq!(controller.stream.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn timers_and_limits_change_without_a_new_connection() {
    let bridge = Bridge::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let wanted = settings(&format!("tcp:{}", listener.local_addr().unwrap()));
    let first = wanted.clone();
    bridge.with(move |_, openflow| openflow.set_controllers(&[first]));
    let stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut controller = Controller::hello(stream, Version::V1_3);
    bridge.wait("the primary", |rules, _| rules.connected.get());
    let send = |_: &Rules, openflow: &OpenFlow| {
        for _ in 0..50 {
            openflow.packet_in(&packet_in(PacketInReason::Action), Origin::Rule, 0);
        }
    };
    bridge.with(send);
    assert_eq!(controller.receive_all().len(), 50);
    let limited = ControllerSettings {
        inactivity_probe: 1,
        rate_limit: 1,
        burst_limit: 10,
        ..wanted
    };
    bridge.with(move |_, openflow| openflow.set_controllers(&[limited]));
    bridge.with(send);
    // The burst, and more if the machine is slow; there may be a probe, too.
    let heard = controller.receive_all();
    let packets = heard
        .iter()
        .filter(|message| matches!(message, Message::PacketIn(_)))
        .count();
    assert!((10..40).contains(&packets), "{packets}");
    // After a second of silence the probe comes, which was off before.
    if !heard
        .iter()
        .any(|message| matches!(message, Message::EchoRequest(_)))
    {
        // Packets that waited for the rate limit may come before it.
        let next = std::iter::repeat_with(|| controller.receive()).take(60);
        let mut others = next.take_while(|message| !matches!(message, Message::EchoRequest(_)));
        assert!(others.all(|message| matches!(message, Message::PacketIn(_))));
    }
}

#[test]
fn a_controller_that_does_not_read_loses_packets_only() {
    let bridge = Bridge::start();
    let (mut slow, _listener) = bridge.primary(Version::V1_3);
    bridge.wait("the primary", |rules, _| rules.connected.get());
    bridge.with(|_, openflow| {
        for _ in 0..20_000 {
            openflow.packet_in(&packet_in(PacketInReason::Action), Origin::Rule, 0);
        }
        assert!(openflow.packet_ins_dropped() >= 19_000);
    });
    let mut other = bridge.manage(Version::V1_3);
    assert!(matches!(
        other.ask(&Message::BarrierRequest),
        Message::BarrierReply
    ));
    assert!(slow.receive_all().len() <= 1000);
}

/// While a message is carried out in slices, its sender's echo requests are answered and later
/// messages wait; other connections are served, but their requests about rules wait, too.
#[test]
fn echo_is_answered_between_slices() {
    let bridge = Bridge::start();
    let (mut writer, mut other) = (bridge.manage(Version::V1_3), bridge.manage(Version::V1_0));
    writer.send(&add(SLOW));
    bridge.wait("the change begins", |rules, _| rules.slow.get());
    let barrier = writer.send(&Message::BarrierRequest);
    for data in [b"one", b"two"] {
        let echo = writer.ask(&Message::EchoRequest(data.to_vec()));
        assert_eq!(echo, Message::EchoReply(data.to_vec()));
    }
    writer.send(&add(5));
    assert_eq!(other.receive_all(), [], "it has asked nothing yet");
    assert!(matches!(
        other.ask(&Message::FeaturesRequest),
        Message::FeaturesReply(_)
    ));
    other.send(&add(6));
    let barrier_of_other = other.send(&Message::BarrierRequest);
    assert_eq!(other.receive_all(), [], "its change waits");
    assert_eq!(bridge.with(|rules, _| rules.rules.borrow().len()), 0);
    bridge.with(|rules, _| rules.slow.set(false));
    let answer = writer.bytes();
    assert_eq!(
        answer[4..8],
        barrier.to_be_bytes(),
        "no echo is answered twice"
    );
    let answer = other.bytes();
    assert_eq!(answer[4..8], barrier_of_other.to_be_bytes());
    bridge.wait("both rules", |rules, _| rules.rules.borrow().len() == 2);
    assert_eq!(writer.receive_all(), []);
}

/// A message that fails after some slices gets a normal error reply.
#[test]
fn an_error_of_a_slow_message_quotes_it() {
    let bridge = Bridge::start();
    let mut writer = bridge.manage(Version::V1_3);
    let xid = writer.send(&add(SLOW_AND_WRONG));
    bridge.wait("the change begins", |rules, _| rules.slow.get());
    let echo = writer.ask(&Message::EchoRequest(Vec::new()));
    assert_eq!(echo, Message::EchoReply(Vec::new()));
    bridge.with(|rules, _| rules.slow.set(false));
    let bytes = writer.bytes();
    assert_eq!(bytes[4..8], xid.to_be_bytes());
    let Message::Error(error) = decode(&bytes, &DecodeOptions::default()).unwrap().1 else {
        panic!("{bytes:?}");
    };
    assert_eq!(error.kind, ErrorKind::Known(Error::TableFull));
    assert_eq!(error.data[4..8], xid.to_be_bytes());
}

/// A connection that ends in the middle breaks nothing, and its earlier messages are carried out.
#[test]
fn a_writer_that_goes_leaves_the_bridge_usable() {
    let bridge = Bridge::start();
    let mut writer = bridge.manage(Version::V1_3);
    writer.send(&add(SLOW));
    writer.send(&add(2));
    bridge.wait("the change begins", |rules, _| rules.slow.get());
    drop(writer);
    let mut other = bridge.manage(Version::V1_3);
    other.send(&add(1));
    other.send(&Message::BarrierRequest);
    bridge.with(|rules, _| rules.slow.set(false));
    assert_eq!(other.receive(), Message::BarrierReply);
    bridge.wait("it has gone", |_, openflow| {
        openflow.connection_count() == 1
    });
    assert_eq!(bridge.with(|rules, _| rules.rules.borrow().len()), 2);
}

/// However many rules are removed at once, a controller that reads is told of each, in order, and
/// stays connected; one that does not read delays no other.
#[test]
fn a_controller_that_reads_hears_of_every_rule_that_goes() {
    const RULES: u64 = 300_000;
    let bridge = Bridge::start();
    let (mut reader, _listener) = bridge.primary(Version::V1_3);
    bridge.wait("the primary", |rules, _| rules.connected.get());
    let mut idle = bridge.manage(Version::V1_3);
    idle.send(&Message::SetConfig(openflow::message::SwitchConfig {
        fragments: Fragments::Normal,
        invalid_ttl_to_controller: false,
        miss_send_len: 0xffff,
    }));
    assert_eq!(idle.receive_all(), []);
    bridge.with(|_, openflow| {
        let all: Vec<FlowRemoved> = (0..RULES).map(removed).collect();
        all.chunks(256)
            .for_each(|some| openflow.flows_removed(some));
    });
    let mut other = bridge.manage(Version::V1_0);
    assert_eq!(other.ask(&Message::BarrierRequest), Message::BarrierReply);
    for cookie in 0..RULES {
        match reader.receive() {
            Message::FlowRemoved { removed, .. } => assert_eq!(removed.stats.cookie, cookie),
            other => panic!("{other:?} after {cookie}"),
        }
    }
    assert_eq!(reader.ask(&Message::BarrierRequest), Message::BarrierReply);
    // The connection that has not read until now has lost nothing either.
    for cookie in 0..RULES {
        match idle.receive() {
            Message::FlowRemoved { removed, .. } => assert_eq!(removed.stats.cookie, cookie),
            other => panic!("{other:?} after {cookie}"),
        }
    }
    assert_eq!(bridge.with(|_, openflow| openflow.connection_count()), 3);
}

#[test]
fn snoopers_get_copies() {
    let bridge = Bridge::start();
    let (mut primary, _listener) = bridge.primary(Version::V1_3);
    let stream = UnixStream::connect(bridge.socket("snoop")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut snooper = Controller::hello(stream, Version::V1_0);
    bridge.wait("the primary", |rules, _| rules.connected.get());
    // The snooper may be registered a moment after its hello was answered.
    let mut heard = Vec::new();
    let end = std::time::Instant::now() + LIMIT;
    snooper
        .stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    while heard.len() < 2 && std::time::Instant::now() < end {
        primary.ask(&Message::GetConfigRequest);
        let mut header = [0; 8];
        while heard.len() < 2 && snooper.stream.read_exact(&mut header).is_ok() {
            let mut rest = vec![0; frame_length(&header).unwrap() - 8];
            snooper.stream.read_exact(&mut rest).unwrap();
            heard.push(header[1]);
        }
    }
    // Types of a request and its reply.
    assert_eq!(heard, [7, 8]);
}

/// os-ken's parsers, which share no code with ours or with Open vSwitch's, encode the requests and
/// decode the replies. Skipped if os-ken is not installed, in the virtual environment that
/// `scripts/setup` makes or the one that `VENV` names.
#[test]
fn os_ken_understands_the_answers() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let environment = std::env::var("VENV").unwrap_or_else(|_| format!("{root}/.build/venv"));
    let python = format!("{environment}/bin/python");
    let has_os_ken = Command::new(&python)
        .args(["-c", "import os_ken.ofproto"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_os_ken {
        eprintln!("skipped: os-ken is not in {environment}");
        return;
    }
    for version in [1, 3, 4, 5, 6] {
        let bridge = Bridge::start();
        let socket = bridge.socket("mgmt");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/osken_client.py");
        let output = Command::new("timeout")
            .args([
                "60",
                &python,
                "-W",
                "ignore",
                script,
                socket.to_str().unwrap(),
                &version.to_string(),
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let all = format!(
            "version {version}\n{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success() && text.ends_with("done\n"), "{all}");
        let mut expected = vec![
            "0x1234 254",
            "EchoReply hello",
            "OFPBarrierReply",
            "Test",
            "[(1, 5), (",
        ];
        match version {
            1 => expected.extend(["7 9 167838211 80 [2]", "OFPErrorMsg 3 0"]),
            _ => {
                expected.push("('ipv4_src', ('10.1.0.0', '255.255.0.0'))");
                expected.push("['OFPActionSetField', 'OFPActionOutput'] 3");
                expected.push("OFPErrorMsg 5 1");
            }
        }
        if version >= 4 {
            expected.extend(["(1, b'p1')", "OFPRoleReply 2 3"]);
        }
        for part in expected {
            assert!(text.contains(part), "expected {part:?} in {all}");
        }
    }
}
