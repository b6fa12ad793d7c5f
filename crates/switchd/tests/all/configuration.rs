//! Tests of configuration and write-back with a real `ovsdb-server` and the real `ovs-vsctl`, and a
//! daemon that only pretends to open devices: what tools wait for and read must be there when they
//! look.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ovsdb::client::ClientError;
use ovsdb::vswitch::{self, Snapshot};
use ovsdb::{Client, Config, Event, Events, LockState, Remote};
use serde_json::{Value, json};
use switchd::config::ofport::Allocator;
use switchd::config::writeback::{Blame, Capabilities, InterfaceState, Refusal, Values, Writeback};
use switchd::config::{Abilities, Action, Applied, Desired, Mac, address, plan};
use tempfile::TempDir;
use tokio::time::timeout;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const LIMIT: Duration = Duration::from_secs(20);

struct Server {
    directory: TempDir,
    process: Child,
}

impl Server {
    fn start() -> Server {
        Server::with_schema(|_| {})
    }

    /// Starts a server with a changed schema.
    fn with_schema(change: impl FnOnce(&mut Value)) -> Server {
        let directory = TempDir::new().unwrap();
        let database = directory.path().join("conf.db");
        let mut schema: Value = serde_json::from_slice(&std::fs::read(SCHEMA).unwrap()).unwrap();
        change(&mut schema);
        let changed = directory.path().join("schema");
        std::fs::write(&changed, schema.to_string()).unwrap();
        let made = Command::new("ovsdb-tool")
            .arg("create")
            .arg(&database)
            .arg(&changed)
            .status();
        assert!(made.expect("ovsdb-tool must be installed").success());
        let process = Command::new("ovsdb-server")
            .arg(&database)
            .arg(format!(
                "--remote=punix:{}",
                directory.path().join("db.sock").display()
            ))
            .args(["--no-chdir", "--unixctl=none", "-vconsole:off"])
            .env("OVS_RUNDIR", directory.path())
            .stderr(Stdio::null())
            .spawn()
            .expect("ovsdb-server must be installed");
        let server = Server { directory, process };
        for _ in 0..400 {
            if server.socket().exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        let socket = server.socket();
        assert!(
            vsctl_now(&socket, &["--no-wait", "init"]).0,
            "ovsdb-server does not answer"
        );
        server
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("db.sock")
    }

    /// Runs `ovs-vsctl`, which waits for the daemon; returns success, standard output and standard
    /// error.
    async fn vsctl(&self, arguments: &[&str]) -> (bool, String, String) {
        let socket = self.socket();
        let arguments: Vec<String> = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        let run = move || vsctl_now(&socket, &arguments);
        timeout(LIMIT, tokio::task::spawn_blocking(run))
            .await
            .expect("ovs-vsctl does not end")
            .unwrap()
    }

    async fn get(&self, interface: &str, column: &str) -> String {
        let (success, output, error) = self.vsctl(&["get", "interface", interface, column]).await;
        assert!(success, "{error}");
        output.trim().trim_matches('"').to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn vsctl_now(socket: &Path, arguments: &[impl AsRef<std::ffi::OsStr>]) -> (bool, String, String) {
    let output = Command::new("ovs-vsctl")
        .arg(format!("--db=unix:{}", socket.display()))
        .args(["--timeout=15", "-vconsole:off"])
        .args(arguments)
        .output()
        .expect("ovs-vsctl must be installed");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The daemon's loop with devices that are only names; a name that begins with `missing` fails to
/// open.
struct Daemon {
    client: Client,
    events: Events,
    writeback: Writeback,
    applied: Applied,
    allocators: BTreeMap<String, Allocator>,
    errors: BTreeMap<String, String>,
    said: Arc<Mutex<Said>>,
}

/// What a daemon would have logged: refused values, and missing columns.
#[derive(Default)]
struct Said {
    refusals: Vec<Refusal>,
    lacking: Vec<(&'static str, &'static str)>,
}

impl Daemon {
    fn new(server: &Server) -> Daemon {
        let mut config = Config::new(Remote::Unix(server.socket()), vswitch::DATABASE);
        config.monitor = vswitch::monitor();
        config.lock = Some(vswitch::LOCK.to_owned());
        config.min_backoff = Duration::from_millis(20);
        let (client, events) = ovsdb::client::connect(config);
        Daemon {
            client,
            events,
            writeback: Writeback::default(),
            applied: Applied::default(),
            allocators: BTreeMap::new(),
            errors: BTreeMap::new(),
            said: Arc::default(),
        }
    }

    async fn run(mut self) {
        while let Some(event) = self.events.next().await {
            if event == Event::Connected {
                self.writeback.forget();
            }
            if self.client.is_connected() && self.client.lock() == LockState::Held {
                self.configure().await;
            }
        }
    }

    async fn configure(&mut self) {
        let owned = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<BTreeSet<String>>()
        };
        let abilities = Abilities {
            interface_types: owned(&["system", "internal", "dummy"]),
            datapath_types: owned(&["system", "netdev"]),
            ..Abilities::default()
        };
        let snapshot = self.client.with_replica(Snapshot::of);
        let (desired, _) = Desired::from_snapshot(&snapshot, &abilities);
        for action in plan(&desired, &self.applied) {
            self.act(&action);
        }
        let Some(root) = desired.root else { return };
        let mut batch = self.writeback.begin();
        for (name, bridge) in &desired.bridges {
            let settings = &bridge.settings;
            let mac = address::bridge_address(settings.hwaddr, settings.default_mac, []);
            batch.bridge(
                settings.uuid,
                address::datapath_id(settings.datapath_id, mac),
                "<built-in>",
            );
            for (interface, port) in &bridge.ports {
                let number = self.applied.bridges[name]
                    .ports
                    .get(interface)
                    .map(|port| port.number);
                let state = match number {
                    Some(_) => InterfaceState {
                        ofport: number,
                        mac_in_use: Some(mac),
                        ..InterfaceState::default()
                    },
                    None => InterfaceState::failed(&self.errors[interface]),
                };
                port.interface
                    .into_iter()
                    .for_each(|uuid| batch.interface(uuid, &state));
            }
        }
        for (uuid, refused) in &desired.refused {
            batch.interface(*uuid, &InterfaceState::failed(refused.error.to_string()));
        }
        let capabilities = Capabilities {
            interface_types: abilities.interface_types,
            datapath_types: abilities.datapath_types,
            ..Capabilities::default()
        };
        batch.capabilities(root, &capabilities);
        batch.applied(root, desired.next_cfg);
        let values = batch.finish();
        self.write(values).await;
    }

    async fn write(&mut self, values: Values) {
        let schema = self.client.with_replica(|replica| replica.schema.clone());
        let knows = |table: &str, column: &str| schema.column(table, column).is_some();
        let mut turn = self.writeback.turn(values, knows, Instant::now());
        (self.said.lock().unwrap().lacking).append(&mut turn.lacking);
        while let Some(pending) = turn.next(&mut self.writeback, Instant::now()) {
            match self.client.transact(&pending.transaction).await {
                Ok(_) => turn.accepted(&mut self.writeback, pending),
                Err(ClientError::Refused(refused)) => {
                    let now = Instant::now();
                    match turn.refused(&mut self.writeback, pending, &refused, now) {
                        Blame::Nothing => return,
                        Blame::Values => {}
                        Blame::News(refusal) => self.said.lock().unwrap().refusals.push(refusal),
                    }
                }
                Err(_) => return,
            }
        }
    }

    fn act(&mut self, action: &Action) {
        let mut number = None;
        match action {
            Action::AddPort { port, .. } if port.interface_name.starts_with("missing") => {
                let name = &port.interface_name;
                self.errors.insert(
                    name.clone(),
                    format!("could not open network device {name} (No such device)"),
                );
                return;
            }
            Action::AddPort {
                bridge,
                port,
                number: wanted,
            } if !port.local => {
                number = self
                    .allocators
                    .entry(bridge.clone())
                    .or_default()
                    .allocate(*wanted, 0);
            }
            Action::RemovePort { bridge, interface } => {
                let had = self.applied.bridges[bridge].ports[interface].number;
                self.allocators
                    .entry(bridge.clone())
                    .or_default()
                    .release(had, 0);
            }
            _ => {}
        }
        self.applied.record(action, number);
    }
}

#[tokio::test]
async fn vsctl_waits_for_what_is_written_with_cur_cfg() {
    let server = Server::start();
    let daemon = tokio::spawn(Daemon::new(&server).run());

    let (success, _, error) = server
        .vsctl(&[
            "add-br",
            "br0",
            "--",
            "set",
            "bridge",
            "br0",
            "datapath_type=netdev",
        ])
        .await;
    assert!(success && error.is_empty(), "{error}");
    assert_eq!(server.get("br0", "ofport").await, "65534");
    let mac: Mac = server.get("br0", "mac_in_use").await.parse().unwrap();
    let (_, id, _) = server.vsctl(&["get", "bridge", "br0", "datapath_id"]).await;
    assert_eq!(id.trim(), format!("\"{:016x}\"", mac.to_number()));

    let (_, _, error) = server
        .vsctl(&["add-port", "br0", "p1", "--", "add-port", "br0", "missing0"])
        .await;
    assert!(
        error.contains("could not open network device missing0 (No such device)"),
        "{error}"
    );
    assert_eq!(server.get("p1", "ofport").await, "1");
    assert_eq!(server.get("missing0", "ofport").await, "-1");

    let bad = [
        "add-port",
        "br0",
        "odd",
        "--",
        "set",
        "interface",
        "odd",
        "type=nonsense",
    ];
    let (_, _, error) = server.vsctl(&bad).await;
    assert!(
        error.contains(
            "(Address family not supported by protocol): type \"nonsense\" does not exist; there are "
        ),
        "{error}"
    );
    let (_, _, error) = server
        .vsctl(&["add-bond", "br0", "bond0", "b1", "b2"])
        .await;
    assert!(error.contains("bonds are not supported"), "{error}");
    let (_, types, _) = server
        .vsctl(&["get", "open_vswitch", ".", "iface_types", "dpdk_version"])
        .await;
    assert_eq!(types, "[dummy, internal, system]\nnone\n");

    // An error is cleared once the port works.
    let (_, _, error) = server
        .vsctl(&["set", "interface", "odd", "type=dummy", "ofport_request=30"])
        .await;
    assert!(error.is_empty(), "{error}");
    assert_eq!(
        (
            server.get("odd", "ofport").await,
            server.get("odd", "error").await
        ),
        ("30".into(), "[]".into())
    );
    daemon.abort();
}

#[tokio::test]
async fn the_daemon_that_has_the_lock_configures_and_the_next_keeps_its_numbers() {
    let server = Server::start();
    let first = tokio::spawn(Daemon::new(&server).run());
    server
        .vsctl(&["add-br", "br0", "--", "add-port", "br0", "z"])
        .await;
    server.vsctl(&["add-port", "br0", "a"]).await;
    let mut second = Daemon::new(&server);
    let contended = async { while second.events.next().await != Some(Event::LockLost) {} };
    timeout(LIMIT, contended).await.expect("no connection");
    assert_eq!(second.client.lock(), LockState::Contended);

    let second = tokio::spawn(second.run());
    server.vsctl(&["add-port", "br0", "b"]).await;
    assert_eq!(
        (
            server.get("z", "ofport").await,
            server.get("a", "ofport").await
        ),
        ("1".into(), "2".into())
    );
    first.abort();
    let _ = first.await;
    let (success, _, error) = server.vsctl(&["add-port", "br0", "c"]).await;
    assert!(success && error.is_empty(), "{error}");
    for (interface, number) in [("z", "1"), ("a", "2"), ("b", "3")] {
        assert_eq!(server.get(interface, "ofport").await, number, "{interface}");
    }
    second.abort();
}

/// A server whose schema refuses a port number as large as the local port's and lacks the datapath
/// version: everything else is written, and the number once the schema is the usual one.
#[tokio::test]
async fn values_refused_by_the_schema_are_written_when_the_schema_changes() {
    let server = Server::with_schema(|schema| {
        let tables = &mut schema["tables"];
        tables["Interface"]["columns"]["ofport"]["type"]["key"] =
            json!({"type": "integer", "maxInteger": 60000});
        let columns = tables["Bridge"]["columns"].as_object_mut().unwrap();
        assert!(columns.remove("datapath_version").is_some());
    });
    let daemon = Daemon::new(&server);
    let said = Arc::clone(&daemon.said);
    let daemon = tokio::spawn(daemon.run());
    for (port, number) in [("p1", "1"), ("p2", "2")] {
        let (success, _, error) = server
            .vsctl(&[
                "--may-exist",
                "add-br",
                "br0",
                "--",
                "add-port",
                "br0",
                port,
            ])
            .await;
        // The tool does not wait for a number that will not come, but points to the log.
        let wanted = if port == "p1" { "'br0'" } else { "" };
        assert!(success && error.contains(wanted), "{error}");
        assert_eq!(error.is_empty(), wanted.is_empty(), "{error}");
        assert_eq!(server.get(port, "ofport").await, number);
    }
    assert_eq!(server.get("br0", "ofport").await, "[]");
    let mac: Mac = server.get("br0", "mac_in_use").await.parse().unwrap();
    let (_, id, _) = server.vsctl(&["get", "bridge", "br0", "datapath_id"]).await;
    assert_eq!(id.trim(), format!("\"{:016x}\"", mac.to_number()));
    {
        let said = said.lock().unwrap();
        assert_eq!(said.lacking, [("Bridge", "datapath_version")]);
        let [refusal] = said.refusals.as_slice() else {
            panic!("{:?}", said.refusals)
        };
        assert_eq!((refusal.table, refusal.column), ("Interface", "ofport"));
        let reason = refusal.reason.as_str();
        assert!(
            reason.starts_with("constraint violation: ") && reason.contains("65534"),
            "{reason}"
        );
    }

    let converted = Command::new("ovsdb-client")
        .arg("convert")
        .arg(format!("unix:{}", server.socket().display()))
        .arg(SCHEMA)
        .status();
    assert!(converted.expect("ovsdb-client must be installed").success());
    for _ in 0..400 {
        if server.get("br0", "ofport").await == "65534" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(server.get("br0", "ofport").await, "65534");
    let said = said.lock().unwrap();
    assert_eq!((said.refusals.len(), said.lacking.len()), (1, 1));
    daemon.abort();
}
