//! TLS with a real `ovsdb-server`: both sides present certificates of one authority.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ovsdb::{Client, Config, Event, Remote, TlsFiles};
use tempfile::TempDir;
use tokio::time::timeout;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const LIMIT: Duration = Duration::from_secs(20);

fn run(directory: &Path, program: &str, arguments: &str) {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .current_dir(directory)
        .output()
        .expect(program);
    assert!(
        output.status.success(),
        "{program} {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Creates an authority `NAME-ca.pem`, and a key and certificate `NAME.pem` for both sides.
fn certificates(directory: &Path, name: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    run(
        directory,
        "openssl",
        &format!(
            "req -x509 {key} -keyout {name}-cakey.pem -out {name}-ca.pem -subj /CN={name}-ca -days 2"
        ),
    );
    run(
        directory,
        "openssl",
        &format!("req {key} -keyout {name}-key.pem -out {name}.csr -subj /CN={name}"),
    );
    let signing = format!("-CA {name}-ca.pem -CAkey {name}-cakey.pem -CAcreateserial -days 2");
    run(
        directory,
        "openssl",
        &format!("x509 -req -in {name}.csr {signing} -out {name}-only.pem"),
    );
    // As with ovs-pki, the authority's certificate follows: a bootstrapping client stores it.
    let chain = ["-only.pem", "-ca.pem"]
        .map(|end| std::fs::read(directory.join(format!("{name}{end}"))).unwrap());
    std::fs::write(directory.join(format!("{name}.pem")), chain.concat()).unwrap();
}

struct Server {
    directory: TempDir,
    process: Child,
    port: u16,
}

impl Server {
    fn start() -> Server {
        let directory = TempDir::new().unwrap();
        let path = directory.path();
        certificates(path, "good");
        certificates(path, "other");
        run(path, "ovsdb-tool", &format!("create conf.db {SCHEMA}"));
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let process = Command::new("ovsdb-server")
            .args(["conf.db", "--no-chdir", "-vconsole:off", "--unixctl=none"])
            .arg(format!("--remote=pssl:{port}:127.0.0.1"))
            .args([
                "--private-key=good-key.pem",
                "--certificate=good.pem",
                "--ca-cert=good-ca.pem",
            ])
            .current_dir(path)
            .env("OVS_RUNDIR", path)
            .stderr(Stdio::null())
            .spawn()
            .expect("ovsdb-server must be installed");
        Server {
            directory,
            process,
            port,
        }
    }

    fn config(&self, name: &str, authority: &str, bootstrap: bool) -> Config {
        let file = |name: String| self.directory.path().join(name);
        let mut config = Config::new(Remote::Ssl("127.0.0.1".into(), self.port), "Open_vSwitch");
        config.tls = Some(TlsFiles {
            private_key: file(format!("{name}-key.pem")),
            certificate: file(format!("{name}.pem")),
            ca_cert: file(authority.into()),
            bootstrap,
        });
        config.min_backoff = Duration::from_millis(20);
        config.max_backoff = Duration::from_millis(20);
        config
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn connects(config: Config) -> Client {
    let (client, mut events) = ovsdb::client::connect(config);
    let connected = async { while events.next().await != Some(Event::Connected) {} };
    if timeout(LIMIT, connected).await.is_err() {
        panic!("not connected: {:?}", client.last_error());
    }
    client
}

/// Waits until the connection fails because of TLS; the server may still be starting.
async fn fails(config: Config) -> String {
    let (client, _events) = ovsdb::client::connect(config);
    let failing = async {
        loop {
            assert!(!client.is_connected());
            match client.last_error() {
                Some(error) if !error.contains("refused") => return error,
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    timeout(LIMIT, failing).await.expect("no error")
}

#[tokio::test]
async fn both_sides_check_each_other() {
    let server = Server::start();
    connects(server.config("good", "good-ca.pem", false)).await;
    let error = fails(server.config("good", "other-ca.pem", false)).await;
    assert!(error.contains("certificate"), "{error}");
    fails(server.config("other", "good-ca.pem", false)).await;
    let error = fails(server.config("missing", "good-ca.pem", false)).await;
    assert!(error.contains("missing-key.pem"), "{error}");
    let mut config = server.config("good", "good-ca.pem", false);
    config.tls = None;
    assert!(fails(config).await.contains("private key"));
}

#[tokio::test]
async fn an_authority_is_taken_from_the_first_server_and_kept() {
    let server = Server::start();
    connects(server.config("good", "learned.pem", true)).await;
    let file = |name: &str| std::fs::read_to_string(server.directory.path().join(name)).unwrap();
    assert_eq!(file("learned.pem").trim(), file("good-ca.pem").trim());
    connects(server.config("good", "learned.pem", false)).await;
    std::fs::copy(
        server.directory.path().join("other-ca.pem"),
        server.directory.path().join("learned.pem"),
    )
    .unwrap();
    fails(server.config("good", "learned.pem", true)).await;
}
