//! JSON: what `ovsdb-server` sends to a client that configures a switch, and what `ovs-appctl`
//! sends.

use crate::{Corpus, SocketDirectory};
use ovsdb::wire::Framer;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// Columns to monitor: every kind of column, but few enough for small seeds.
const MONITOR: &str = r#"{"id":1,"method":"monitor","params":["Open_vSwitch",0,{
    "Open_vSwitch":{"columns":["bridges","next_cfg","other_config","ssl"]},
    "Bridge":{"columns":["name","ports","controller","mirrors","fail_mode","other_config","flood_vlans","protocols"]},
    "Port":{"columns":["name","interfaces","tag","trunks","vlan_mode"]},
    "Interface":{"columns":["name","type","options","ofport","ofport_request","mtu_request","mac"]},
    "Controller":{"columns":["target","connection_mode","is_connected","status"]},
    "Mirror":{"columns":["name","select_all","output_port","select_vlan"]}}]}"#;
/// Changes of the configuration, in order.
const CHANGES: &[&[&str]] = &[
    &["init"],
    &[
        "add-br",
        "b",
        "--",
        "set",
        "bridge",
        "b",
        "datapath_type=netdev",
        "fail_mode=secure",
        "flood_vlans=1,2",
        "other_config:mac-aging-time=9",
    ],
    &[
        "add-port",
        "b",
        "p",
        "tag=7",
        "--",
        "set",
        "interface",
        "p",
        "type=dummy",
        "ofport_request=3",
        "mtu_request=9000",
        "options:a=b",
    ],
    &["set-controller", "b", "tcp:127.0.0.1:6653", "ptcp:6634"],
    &[
        "add-port",
        "b",
        "q",
        "trunks=1,2,3",
        "--",
        "--id=@q",
        "get",
        "port",
        "q",
        "--",
        "--id=@m",
        "create",
        "mirror",
        "name=m",
        "select_all=true",
        "output_port=@q",
        "--",
        "set",
        "bridge",
        "b",
        "mirrors=@m",
    ],
    &[
        "set",
        "open",
        ".",
        "other_config:max-idle=5000",
        "external_ids:note=\"\\\"{[\\\"\"",
    ],
    &["del-port", "p"],
    &["del-br", "b"],
];

pub fn write_ovsdb(corpus: &Corpus, place: &SocketDirectory) -> io::Result<()> {
    let (database, socket) = (place.join("db"), place.join("db.sock"));
    run(Command::new("ovsdb-tool")
        .arg("create")
        .arg(&database)
        .arg(SCHEMA))?;
    let server = Command::new("ovsdb-server")
        .arg(&database)
        .arg(format!("--remote=punix:{}", socket.display()))
        .arg(format!("--unixctl={}", place.join("db.ctl").display()))
        .args(["--no-chdir", "-vconsole:off"])
        .stdin(Stdio::null())
        .spawn()?;
    let _server = Ended(server);
    let mut stream = connect(&socket)?;
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    let mut framer = Framer::default();
    let mut number = 0;
    let mut keep = |stream: &mut UnixStream, what: &str| -> io::Result<()> {
        for message in receive(stream, &mut framer)? {
            number += 1;
            corpus.add(
                &format!("server-{number}-{what}"),
                &[&[number * 13], &message],
            )?;
        }
        Ok(())
    };
    stream.write_all(br#"{"id":0,"method":"lock","params":["ovs_vswitchd"]}{"id":9,"method":"list_dbs","params":[]}{"id":8,"method":"nonsense","params":[]}"#)?;
    keep(&mut stream, "lock")?;
    for change in CHANGES {
        run(Command::new("ovs-vsctl")
            .arg(format!("--db=unix:{}", socket.display()))
            .arg("--no-wait")
            .args(*change))?;
        if change == &CHANGES[2] {
            stream.write_all(MONITOR.as_bytes())?;
        }
        keep(&mut stream, change[0])?;
    }
    stream.write_all(br#"{"id":2,"method":"transact","params":["Open_vSwitch",{"op":"select","table":"Open_vSwitch","where":[]},{"op":"abort"}]}{"id":3,"method":"get_schema","params":["No"]}"#)?;
    keep(&mut stream, "transact")?;
    for (name, text) in BY_HAND_OVSDB {
        corpus.add(name, &[&[3], text.as_bytes()])?;
    }
    Ok(())
}

const BY_HAND_OVSDB: &[(&str, &str)] = &[
    (
        "echo",
        r#" {"id":"echo","method":"echo","params":[]} {"id":"echo","result":[],"error":null}"#,
    ),
    (
        "locked",
        r#"{"id":null,"method":"locked","params":["ovs_vswitchd"]}{"id":null,"method":"stolen","params":["ovs_vswitchd"]}"#,
    ),
    (
        "schema",
        r#"{"id":1,"error":null,"result":{"name":"D","version":"1.0.0","tables":{"T":{"columns":{"a":{"type":"integer"},"b":{"type":{"key":{"type":"string","enum":["set",["x"]]},"min":0,"max":1}},"c":{"type":{"key":"string","value":{"type":"uuid","refTable":"T"},"min":0,"max":"unlimited"}},"d":{"type":{"key":"real"}},"e":{"type":"boolean"}}}}}}"#,
    ),
    (
        "atoms",
        r#"{"id":null,"method":"update","params":[0,{"Interface":{"550e8400-e29b-41d4-a716-446655440000":{"old":{"mtu":["set",[]]},"new":{"name":"x","mtu":1500,"ofport":["set",[]],"options":["map",[["a","b"],["c","d"]]],"statistics":["map",[["rx",1]]],"admin_state":"up","lacp_current":true,"link_speed":-9223372036854775808}}}}]}"#,
    ),
    (
        "text",
        r#"{"id":null,"method":"update","params":[0,{"Bridge":{"550e8400-e29b-41d4-a716-446655440001":{"new":{"name":"\u0000\ud83d\ude00\"\\\n"}}}}]}"#,
    ),
    (
        "refused",
        r#"{"id":null,"method":"update","params":[0,{"Bridge":{"550e8400-e29b-41d4-a716-446655440001":{"new":{"name":["set",["a","b"]]}},"x":{"new":null}},"None":{}}]}"#,
    ),
    (
        "numbers",
        r#"{"id":1.5e300,"result":[1e400,-0,18446744073709551615,0.1],"error":null}"#,
    ),
    (
        "nesting",
        r#"{"id":1,"result":[[[[[[[[[[[[[[[[[[[[{"a":{"a":{"a":{"a":[]}}}}]]]]]]]]]]]]]]]]]]]],"error":null}"#,
    ),
];

pub fn write_unixctl(corpus: &Corpus, place: &SocketDirectory) -> io::Result<()> {
    let path = place.join("ctl");
    let listener = UnixListener::bind(&path)?;
    let commands: &[&[&str]] = &[
        &["list-commands"],
        &["version"],
        &["exit", "--cleanup"],
        &["vlog/set", "ANY:file:dbg", "netdev:syslog:off"],
        &["vlog/set", "PATTERN:file:%D{%Y} \"%m\"\n"],
        &["fdb/add", "br0", "p1", "7", "02:00:00:00:00:01"],
        &[
            "netdev-dummy/receive",
            "p1",
            "in_port(1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800)",
        ],
        &["ofproto/trace", "br0", "{[\\\"]}"],
        &["no-arguments", ""],
        &["text", "\u{1f600}\u{1}"],
    ];
    for (number, command) in commands.iter().enumerate() {
        let mut client = Command::new("ovs-appctl")
            .arg("-t")
            .arg(&path)
            .args(*command)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(Duration::from_millis(300)))?;
        let mut message = vec![0; 1 << 16];
        let length = stream.read(&mut message)?;
        drop(stream);
        client.wait()?;
        let name = command[0].replace('/', "-");
        corpus.add(
            &format!("appctl-{number}-{name}"),
            &[&[number as u8 * 5], &message[..length]],
        )?;
    }
    let by_hand = [
        (
            "two",
            " \n{\"id\":0,\"method\":\"a\",\"params\":[]}{\"id\":\"x\",\"method\":\"b\",\"params\":[\"]\\\"\"]}\n",
        ),
        (
            "null-members",
            "{\"id\":[1,{}],\"method\":\"a\",\"params\":[\"b\"],\"result\":null,\"error\":null}",
        ),
        (
            "notification",
            "{\"id\":null,\"method\":\"a\",\"params\":[]}",
        ),
        ("reply", "{\"id\":1,\"result\":\"x\",\"error\":null}"),
        (
            "other-members",
            "{\"id\":1,\"method\":\"a\",\"params\":[],\"jsonrpc\":\"2.0\"}",
        ),
        (
            "numbers",
            "{\"id\":1,\"method\":\"a\",\"params\":[1,null,{}]}",
        ),
        ("brackets", "{]}[{}"),
        ("array", "[1]"),
    ];
    for (name, text) in by_hand {
        corpus.add(name, &[&[2], text.as_bytes()])?;
    }
    Ok(())
}

/// A child process that is killed when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let status = command.stdout(Stdio::null()).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("{command:?}: {status}")))
    }
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(path) {
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            result => return result,
        }
    }
}

/// Returns the messages received until none comes for a while.
fn receive(stream: &mut UnixStream, framer: &mut Framer) -> io::Result<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    let mut buffer = [0; 1 << 16];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(messages),
            Ok(length) => framer.push(&buffer[..length]),
            Err(error)
                if [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut].contains(&error.kind()) =>
            {
                return Ok(messages);
            }
            Err(error) => return Err(error),
        }
        while let Some(message) = framer.next_frame().map_err(io::Error::other)? {
            messages.push(message.to_vec());
        }
    }
}
