//! Tests of streams with real peers from Open vSwitch: certificates by `ovs-pki`, `ovs-ofctl` as a
//! client, and `ovs-testcontroller` as a server, over TLS, IPv6 and local sockets.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use switchd::streams::{Active, Listener, OPENFLOW_PORT, Passive, Stream, Tls, TlsFiles, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const LIMIT: Duration = Duration::from_secs(30);
const HELLO: u8 = 0;
const FEATURES_REQUEST: u8 = 5;

/// A public key infrastructure in its own directory.
struct Keys {
    directory: tempfile::TempDir,
}

impl Keys {
    fn new() -> Self {
        let keys = Keys {
            directory: tempfile::tempdir().unwrap(),
        };
        keys.pki(&["init"]);
        keys.pki(&["req+sign", "sw", "switch"]);
        keys.pki(&["req+sign", "ctl", "controller"]);
        keys
    }

    fn pki(&self, arguments: &[&str]) {
        let mut command = Command::new("ovs-pki");
        command
            .current_dir(self.directory.path())
            .arg("--dir=pki")
            .arg("--log=log")
            .args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn switch(&self) -> TlsFiles {
        TlsFiles {
            private_key: Some(self.path("sw-privkey.pem")),
            certificate: Some(self.path("sw-cert.pem")),
            ca_cert: Some(self.path("pki/controllerca/cacert.pem")),
            ..TlsFiles::default()
        }
    }

    /// Returns the options that pass a controller's keys to one of Open vSwitch's programs.
    fn controller_options(&self) -> Vec<String> {
        let option = |name: &str, path: &str| format!("--{name}={}", self.path(path).display());
        vec![
            option("private-key", "ctl-privkey.pem"),
            option("certificate", "ctl-cert.pem"),
            option("ca-cert", "pki/switchca/cacert.pem"),
        ]
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(program: &str, directory: &Path, arguments: impl IntoIterator<Item = String>) -> Running {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(directory)
        .env("OVS_RUNDIR", directory);
    Running(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

/// Reads one OpenFlow message; returns its type.
async fn message(stream: &mut Stream) -> u8 {
    let read = async {
        let mut header = [0; 8];
        stream.read_exact(&mut header).await.unwrap();
        let length = u16::from_be_bytes([header[2], header[3]]);
        let mut rest = vec![0; usize::from(length) - header.len()];
        stream.read_exact(&mut rest).await.unwrap();
        header[1]
    };
    tokio::time::timeout(LIMIT, read)
        .await
        .expect("a message comes")
}

async fn say_hello(stream: &mut Stream) {
    stream
        .write_all(&[1, HELLO, 0, 8, 0, 0, 0, 1])
        .await
        .unwrap();
    stream.flush().await.unwrap();
}

async fn serves_ofctl(
    listener: Listener,
    name: &str,
    tls: &Tls,
    mut options: Vec<String>,
    directory: &Path,
) {
    options.extend(["show".into(), name.into()]);
    let _client = run("ovs-ofctl", directory, options);
    let incoming = tokio::time::timeout(LIMIT, listener.accept())
        .await
        .unwrap()
        .unwrap();
    let mut stream = incoming.establish(tls).await.unwrap();
    assert_eq!(message(&mut stream).await, HELLO);
    say_hello(&mut stream).await;
    assert_eq!(message(&mut stream).await, FEATURES_REQUEST);
}

#[tokio::test]
async fn ovs_ofctl_connects_in_every_way() {
    let keys = Keys::new();
    let tls = Tls::new(keys.switch());
    let directory = keys.directory.path();
    for (passive, method, host) in [
        ("ptcp:0:127.0.0.1", "tcp", "127.0.0.1"),
        ("ptcp:0:[::1]", "tcp", "[::1]"),
        ("pssl:0:[::1]", "ssl", "[::1]"),
    ] {
        let listener = Listener::bind(&Passive::parse(passive, OPENFLOW_PORT).unwrap()).unwrap();
        let name = format!(
            "{method}:{host}:{}",
            listener.local_address().unwrap().port()
        );
        let options = if method == "ssl" {
            keys.controller_options()
        } else {
            vec![]
        };
        serves_ofctl(listener, &name, &tls, options, directory).await;
    }
    let path = keys.path("br0.mgmt");
    let listener = Listener::bind(&Passive::Unix(path.clone())).unwrap();
    serves_ofctl(
        listener,
        &format!("unix:{}", path.display()),
        &tls,
        vec![],
        directory,
    )
    .await;
}

#[tokio::test]
async fn a_controller_is_reached_and_its_authority_bootstrapped() {
    let keys = Keys::new();
    // Choose a free port; in this network nobody else takes it in the next moment.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut arguments = keys.controller_options();
    let sent_along = keys.path("pki/controllerca/cacert.pem");
    arguments.push(format!("--peer-ca-cert={}", sent_along.display()));
    arguments.extend(["--unixctl=none".into(), format!("pssl:{port}:127.0.0.1")]);
    let _controller = run("ovs-testcontroller", keys.directory.path(), arguments);
    let target = Active::parse(&format!("ssl:127.0.0.1:{port}"), OPENFLOW_PORT).unwrap();
    let stored = keys.path("bootstrapped.pem");
    let tls = Tls::new(TlsFiles {
        ca_cert: Some(stored.clone()),
        bootstrap: true,
        ..keys.switch()
    });
    let start = std::time::Instant::now();
    let mut stream = loop {
        match connect(&target, &tls, LIMIT).await {
            Ok(stream) => break stream,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(message(&mut stream).await, HELLO);
    say_hello(&mut stream).await;
    assert_eq!(message(&mut stream).await, FEATURES_REQUEST);
    let authority =
        |path: &Path| openssl::x509::X509::from_pem(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!(
        authority(&stored).to_der().unwrap(),
        authority(&keys.path("pki/controllerca/cacert.pem"))
            .to_der()
            .unwrap()
    );
    // The same controller, for a daemon that trusts another authority.
    let suspicious = Tls::new(TlsFiles {
        ca_cert: Some(keys.path("pki/switchca/cacert.pem")),
        ..keys.switch()
    });
    let error = connect(&target, &suspicious, LIMIT)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("certificate verify failed"), "{error}");
}
