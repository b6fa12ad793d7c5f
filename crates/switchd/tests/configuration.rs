//! Configuration and write-back against a real `ovsdb-server` and the real `ovs-vsctl`, with a daemon that opens
//! no devices but pretends to: what tools wait for and read is there when they look.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ovsdb::vswitch::{self, Snapshot};
use ovsdb::{Client, Config, Event, Events, LockState, Remote};
use switchd::config::ofport::Allocator;
use switchd::config::writeback::{Capabilities, InterfaceState, Scope, Writeback};
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
        let directory = TempDir::new().unwrap();
        let database = directory.path().join("conf.db");
        let made = Command::new("ovsdb-tool")
            .arg("create")
            .arg(&database)
            .arg(SCHEMA)
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

    /// Runs `ovs-vsctl`, which waits for the daemon; gives success, standard output and standard error.
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

/// The daemon's loop with devices that are names: one whose name begins with `missing` does not open.
struct Daemon {
    client: Client,
    events: Events,
    writeback: Writeback,
    applied: Applied,
    allocators: BTreeMap<String, Allocator>,
    errors: BTreeMap<String, String>,
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
        let mut batch = self.writeback.begin(Scope::All);
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
        for (uuid, error) in &desired.refused {
            batch.interface(*uuid, &InterfaceState::failed(error));
        }
        let capabilities = Capabilities {
            interface_types: abilities.interface_types,
            datapath_types: abilities.datapath_types,
            ..Capabilities::default()
        };
        batch.capabilities(root, &capabilities);
        batch.applied(root, desired.next_cfg);
        if let Some(pending) = batch.finish()
            && self.client.transact(&pending.transaction).await.is_ok()
        {
            self.writeback.confirm(pending);
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
        error.contains("Address family not supported by protocol"),
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

    // What was an error is none once it works.
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
