//! The client with a real `ovsdb-server` and the `Open_vSwitch` schema.
//!
//! Each test starts a server of its own, in a directory of its own, and ends it by its process id.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ovsdb::client::ClientError;
use ovsdb::transaction::{Mutator, Where};
use ovsdb::vswitch::{self, Snapshot};
use ovsdb::{Atom, Client, Config, Datum, Event, Events, Remote, Transaction, Uuid};
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
        let path = directory.path();
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(path.join("conf.db"))
            .arg(SCHEMA));
        let process = Server::spawn(path);
        let server = Server { directory, process };
        server.vsctl(&["init"]);
        server
    }

    fn spawn(path: &Path) -> Child {
        let child = Command::new("ovsdb-server")
            .arg(path.join("conf.db"))
            .arg(format!("--remote=punix:{}", path.join("db.sock").display()))
            .arg(format!("--unixctl={}", path.join("ctl").display()))
            .args(["--no-chdir", "-vconsole:off"])
            .stderr(Stdio::null())
            .spawn()
            .expect("ovsdb-server must be installed");
        let mut tries = 0;
        while !path.join("db.sock").exists() && tries < 400 {
            std::thread::sleep(Duration::from_millis(25));
            tries += 1;
        }
        child
    }

    fn stop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let _ = std::fs::remove_file(self.directory.path().join("db.sock"));
    }

    fn restart(&mut self) {
        self.stop();
        self.process = Server::spawn(self.directory.path());
    }

    fn remote(&self) -> Remote {
        Remote::Unix(self.directory.path().join("db.sock"))
    }

    fn vsctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("ovs-vsctl");
        command.arg(format!("--db={}", self.remote())).args([
            "--no-wait",
            "--timeout=10",
            "-vconsole:off",
        ]);
        run(command.args(arguments))
    }

    fn config(&self) -> Config {
        let mut config = Config::new(self.remote(), vswitch::DATABASE);
        config.monitor = vswitch::monitor();
        config.min_backoff = Duration::from_millis(20);
        config.max_backoff = Duration::from_millis(100);
        config
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .expect("Open vSwitch's tools must be installed");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

async fn expect(events: &mut Events, wanted: Event) {
    loop {
        let event = timeout(LIMIT, events.next())
            .await
            .expect("no event in time")
            .expect("the client ended");
        if event == wanted {
            return;
        }
    }
}

async fn until(
    client: &Client,
    events: &mut Events,
    holds: impl Fn(&Snapshot) -> bool,
) -> Snapshot {
    loop {
        let snapshot = client.with_replica(Snapshot::of);
        if holds(&snapshot) {
            return snapshot;
        }
        timeout(LIMIT, events.next())
            .await
            .expect("no event in time")
            .expect("the client ended");
    }
}

fn bridge_names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot
        .open_vswitch
        .iter()
        .flat_map(|root| &root.bridges)
        .map(|bridge| bridge.name.as_str())
        .collect()
}

#[tokio::test]
async fn the_replica_follows_and_links_are_resolved() {
    let server = Server::start();
    server.vsctl(&["add-br", "br1"]);
    let (client, mut events) = ovsdb::client::connect(server.config());
    expect(&mut events, Event::Connected).await;
    assert_eq!(bridge_names(&client.with_replica(Snapshot::of)), ["br1"]);

    server.vsctl(&[
        "add-br",
        "br0",
        "--",
        "set",
        "bridge",
        "br0",
        "other-config:hwaddr=00:00:00:00:00:01",
        "protocols=OpenFlow13",
        "fail_mode=secure",
        "--",
        "set-controller",
        "br0",
        "tcp:127.0.0.1:6653",
        "ptcp:6654",
        "--",
        "add-port",
        "br0",
        "p1",
        "tag=5",
        "--",
        "set",
        "interface",
        "p1",
        "type=dummy",
        "options:a=b",
        "ofport_request=9",
        "mtu_request=1400",
        "--",
        "--id=@m",
        "create",
        "mirror",
        "name=m0",
        "output-vlan=7",
        "select-all=true",
        "--",
        "set",
        "bridge",
        "br0",
        "mirrors=@m",
    ]);
    let snapshot = until(&client, &mut events, |s| bridge_names(s) == ["br0", "br1"]).await;
    let root = snapshot.open_vswitch.unwrap();
    let bridge = &root.bridges[0];
    assert_eq!(bridge.other_config["hwaddr"], "00:00:00:00:00:01");
    assert_eq!(
        (bridge.protocols.as_slice(), bridge.fail_mode.as_deref()),
        (&["OpenFlow13".to_owned()][..], Some("secure"))
    );
    let targets: Vec<&str> = bridge
        .controllers
        .iter()
        .map(|c| c.target.as_str())
        .collect();
    assert_eq!(targets, ["ptcp:6654", "tcp:127.0.0.1:6653"]);
    assert_eq!(
        (
            bridge.mirrors[0].name.as_str(),
            bridge.mirrors[0].output_vlan
        ),
        ("m0", Some(7))
    );
    let names: Vec<&str> = bridge.ports.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["br0", "p1"]);
    let interface = &bridge.ports[1].interfaces[0];
    assert_eq!(
        (
            bridge.ports[1].tag,
            interface.kind.as_str(),
            interface.options["a"].as_str()
        ),
        (Some(5), "dummy", "b")
    );
    assert_eq!(
        (interface.ofport_request, interface.mtu_request),
        (Some(9), Some(1400))
    );

    server.vsctl(&["del-br", "br0"]);
    until(&client, &mut events, |s| bridge_names(s) == ["br1"]).await;
}

#[tokio::test]
async fn own_writes_reach_the_server_and_cause_no_event() {
    let server = Server::start();
    server.vsctl(&["add-br", "br0"]);
    let (client, mut events) = ovsdb::client::connect(server.config());
    expect(&mut events, Event::Connected).await;
    let snapshot = client.with_replica(Snapshot::of);
    let root = snapshot.open_vswitch.unwrap();
    let interface = root.bridges[0].ports[0].interfaces[0].uuid;

    let mut transaction = Transaction::new();
    transaction
        .update("Interface", interface)
        .set("ofport", 65534)
        .set("statistics", Datum::map([("rx_bytes", 3)]));
    transaction
        .update("Interface", interface)
        .set("mac_in_use", "00:00:00:00:00:05")
        .set("error", Datum::empty());
    transaction
        .update("Open_vSwitch", root.uuid)
        .set("cur_cfg", root.next_cfg);
    let outcome = client.transact(&transaction).await.unwrap();
    assert_eq!((outcome.count(0), outcome.count(2)), (Some(1), Some(1)));
    assert_eq!(
        server.vsctl(&["get", "interface", "br0", "ofport", "statistics"]),
        "65534\n{rx_bytes=3}"
    );

    // The echo of a monitored quiet column is in the replica, but causes no event.
    let ofport = client.with_replica(|replica| {
        replica
            .row("Interface", interface)
            .unwrap()
            .optional_int("ofport")
    });
    assert_eq!(ofport, Some(65534));
    assert_eq!(events.try_next(), None);
}

#[tokio::test]
async fn refusals_say_what_and_where_and_nothing_happens() {
    let server = Server::start();
    server.vsctl(&["add-br", "br0"]);
    let (client, mut events) = ovsdb::client::connect(server.config());
    expect(&mut events, Event::Connected).await;
    let root = client.with_replica(Snapshot::of).open_vswitch.unwrap();
    let interface = root.bridges[0].ports[0].interfaces[0].uuid;

    let mut transaction = Transaction::new();
    transaction.update("Interface", interface).set("ofport", 4);
    transaction
        .update("Interface", interface)
        .set("admin_state", "sideways");
    let Err(ClientError::Refused(refused)) = client.transact(&transaction).await else {
        panic!("not refused")
    };
    assert_eq!(refused.error, "constraint violation", "{refused}");
    let operation = refused.operation.unwrap();
    assert_eq!((operation.index, operation.name.as_str()), (1, "update"));
    assert_eq!(
        (operation.table.as_str(), operation.columns),
        ("Interface", vec!["admin_state".to_owned()])
    );
    assert_eq!(server.vsctl(&["get", "interface", "br0", "ofport"]), "[]");

    let mut transaction = Transaction::new();
    transaction.assert_lock("nobody_has_this");
    transaction.update("Interface", interface).set("ofport", 4);
    let Err(ClientError::Refused(refused)) = client.transact(&transaction).await else {
        panic!("not refused")
    };
    assert_eq!(refused.error, "not owner");
}

#[tokio::test]
async fn rows_are_inserted_mutated_selected_and_deleted() {
    let server = Server::start();
    let (client, mut events) = ovsdb::client::connect(server.config());
    expect(&mut events, Event::Connected).await;
    let root = client.with_replica(Snapshot::of).open_vswitch.unwrap().uuid;

    let mut transaction = Transaction::new();
    transaction.insert("Bridge", "b").set("name", "br7");
    transaction
        .mutate("Open_vSwitch", root)
        .change("bridges", Mutator::Insert, Atom::Named("b".into()))
        .change("next_cfg", Mutator::Add, 1);
    transaction.comment("a test");
    let outcome = client.transact(&transaction).await.unwrap();
    let bridge: Uuid = outcome.inserted(0).unwrap();
    let snapshot = client.with_replica(Snapshot::of).open_vswitch.unwrap();
    assert_eq!(
        (
            snapshot.bridges[0].uuid,
            snapshot.bridges[0].name.as_str(),
            snapshot.next_cfg
        ),
        (bridge, "br7", 1)
    );

    let mut transaction = Transaction::new();
    transaction.select("Bridge", Where::all(), &["name"]);
    transaction.wait("Bridge", bridge, "name", true, "br7".into(), 0);
    transaction
        .mutate("Open_vSwitch", root)
        .change("bridges", Mutator::Delete, bridge);
    let outcome = client.transact(&transaction).await.unwrap();
    assert_eq!(outcome.rows(0).unwrap()[0]["name"], "br7");
    assert!(
        client
            .with_replica(Snapshot::of)
            .open_vswitch
            .unwrap()
            .bridges
            .is_empty()
    );

    let mut transaction = Transaction::new();
    transaction.wait("Bridge", bridge, "name", true, "br7".into(), 0);
    assert!(
        matches!(client.transact(&transaction).await, Err(ClientError::Refused(r)) if r.error == "timed out")
    );
    assert!(
        client
            .list_dbs()
            .await
            .unwrap()
            .contains(&"Open_vSwitch".to_owned())
    );
    assert!(
        client
            .get_schema("Open_vSwitch")
            .await
            .unwrap()
            .column("Bridge", "name")
            .is_some()
    );
}

#[tokio::test]
async fn one_client_at_a_time_has_the_lock() {
    let server = Server::start();
    let mut config = server.config();
    config.lock = Some(vswitch::LOCK.into());
    let (first, mut first_events) = ovsdb::client::connect(config.clone());
    expect(&mut first_events, Event::LockAcquired).await;
    let (second, mut second_events) = ovsdb::client::connect(config);
    expect(&mut second_events, Event::Connected).await;
    expect(&mut second_events, Event::LockLost).await;
    assert!(first.has_lock() && !second.has_lock());

    let mut transaction = Transaction::new();
    transaction.assert_lock(vswitch::LOCK);
    assert!(
        matches!(second.transact(&transaction).await, Err(ClientError::Refused(r)) if r.error == "not owner")
    );
    drop(first);
    assert_eq!(
        timeout(LIMIT, async {
            while first_events.next().await.is_some() {}
        })
        .await,
        Ok(())
    );
    expect(&mut second_events, Event::LockAcquired).await;
    assert!(second.transact(&transaction).await.is_ok());
}

#[tokio::test]
async fn the_client_reconnects_when_the_server_comes_back() {
    let mut server = Server::start();
    server.vsctl(&["add-br", "br0"]);
    let mut config = server.config();
    config.lock = Some(vswitch::LOCK.into());
    let (client, mut events) = ovsdb::client::connect(config);
    expect(&mut events, Event::Connected).await;

    server.stop();
    expect(&mut events, Event::Disconnected).await;
    assert!(!client.has_lock());
    assert_eq!(
        client.transact(&Transaction::new()).await,
        Err(ClientError::NotConnected)
    );
    assert_eq!(
        bridge_names(&client.with_replica(Snapshot::of)),
        ["br0"],
        "the last contents stay"
    );

    server.restart();
    server.vsctl(&["add-br", "br1"]);
    expect(&mut events, Event::LockAcquired).await;
    until(&client, &mut events, |s| bridge_names(s) == ["br0", "br1"]).await;
    assert!(client.is_connected());
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named() {
    let server = Server::start();
    let mut config = server.config();
    config.database = "Nonsense".into();
    let (client, _events) = ovsdb::client::connect(config);
    let found = timeout(LIMIT, async {
        loop {
            if let Some(error) = client.last_error() {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let error = found.await.unwrap();
    assert!(
        error.contains("Nonsense") && error.contains("Open_vSwitch"),
        "{error}"
    );
}

#[tokio::test]
async fn tables_and_columns_that_the_server_lacks_are_left_out() {
    let server = Server::start();
    let mut config = server.config();
    config.monitor[0].columns.push("colour".into());
    config.monitor.push(ovsdb::MonitorTable {
        table: "Weather".into(),
        columns: vec![],
        quiet: vec![],
    });
    let (client, mut events) = ovsdb::client::connect(config);
    expect(&mut events, Event::Connected).await;
    assert!(client.with_replica(Snapshot::of).open_vswitch.is_some());
}
