//! A client of the daemon's unixctl socket: JSON-RPC 1.0 over a Unix stream, as `ovs-appctl` speaks
//! it.

use anyhow::{Context, Result, bail};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon may send nothing, or not read a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Total time that an answer may take.
const ANSWER: Duration = Duration::from_secs(30);
/// Run-time directory of the distribution's daemon.
const SYSTEM: &str = "/var/run/openvswitch";
/// Maximum length of an answer in bytes.
const LONGEST: usize = 64 << 20;

/// A connection to a daemon.
pub struct Appctl {
    stream: UnixStream,
    buffer: Vec<u8>,
    next_id: u64,
}

/// Returns the directory in which Open vSwitch's tools look for run-time files: `OVS_RUNDIR`, or
/// the distribution's. If no daemon has left anything there, returns that of `sluice up`.
pub fn run_directory() -> PathBuf {
    let named = std::env::var_os("OVS_RUNDIR").filter(|name| !name.is_empty());
    chosen(
        named.as_deref(),
        Path::new(SYSTEM),
        Path::new(crate::up::DIRECTORY),
    )
}

fn chosen(named: Option<&OsStr>, system: &Path, own: &Path) -> PathBuf {
    let has_pidfile = |directory: &Path| directory.join(PIDFILE).exists();
    match named {
        Some(named) => named.into(),
        None if !has_pidfile(system) && has_pidfile(own) => own.into(),
        None => system.into(),
    }
}

/// The name of the daemon's pidfile.
const PIDFILE: &str = "ovs-vswitchd.pid";
/// Maximum length of a pidfile in bytes.
const PIDFILE_MAX: u64 = 64;

/// Returns the socket of the daemon whose files are in `directory`, found through its pidfile.
pub fn socket_in(directory: &Path) -> Result<PathBuf> {
    let pidfile = directory.join(PIDFILE);
    let shown = pidfile.display();
    let mut text = String::new();
    std::fs::File::open(&pidfile)
        .and_then(|file| file.take(PIDFILE_MAX).read_to_string(&mut text))
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => anyhow::anyhow!(
                "{shown} is not there: no daemon seems to run in that directory (after `sluice up \
                 DIRECTORY` run what it prints, or name the directory here)"
            ),
            ErrorKind::PermissionDenied => anyhow::anyhow!("{shown}: {error}; are you root?"),
            _ => anyhow::anyhow!("{shown}: {error}"),
        })?;
    let pid: u32 = text
        .trim()
        .parse()
        .with_context(|| format!("{shown}: not a process id"))?;
    Ok(directory.join(format!("ovs-vswitchd.{pid}.ctl")))
}

/// Longest path of a socket, in bytes: `sun_path` without the zero that ends it.
const SOCKET_PATH_MAX: usize = 107;

/// Connects within [`PATIENCE`], which the standard library cannot do: connecting to a daemon that
/// no longer accepts connections would block.
fn connect_within(path: &Path) -> io::Result<UnixStream> {
    // A longer path is reached by its directory's descriptor.
    let mut directory = None;
    let mut path = std::borrow::Cow::Borrowed(path);
    if path.as_os_str().len() > SOCKET_PATH_MAX
        && let (Some(parent), Some(name)) = (path.parent(), path.file_name())
    {
        let parent = directory.insert(std::fs::File::open(parent)?);
        let short = format!("/proc/self/fd/{}", parent.as_raw_fd());
        path = Path::new(&short).join(name).into();
    }
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        let text = format!("a path of more than {SOCKET_PATH_MAX} bytes");
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    let address = SocketAddrUnix::new(&*path)?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let stream = UnixStream::from(socket_with(family, kind, SocketFlags::CLOEXEC, None)?);
    stream.set_read_timeout(Some(PATIENCE))?;
    // This also limits the time to connect.
    stream.set_write_timeout(Some(PATIENCE))?;
    rustix::net::connect(&stream, &address)?;
    Ok(stream)
}

/// Returns a socket's error in words for people.
fn explained(error: io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied => "; are you root?",
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => "; the daemon has ended",
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            let seconds = PATIENCE.as_secs();
            return anyhow::anyhow!("the daemon does not answer (for {seconds} s)");
        }
        _ => "",
    };
    anyhow::anyhow!("{error}{hint}")
}

impl Appctl {
    /// Connects to a socket.
    pub fn connect(socket: &Path) -> Result<Appctl> {
        let stream = connect_within(socket)
            .map_err(explained)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        Ok(Appctl {
            stream,
            buffer: Vec::new(),
            next_id: 0,
        })
    }

    /// Runs a command and returns its output; an error reply is an error here.
    pub fn call(&mut self, command: &str, arguments: &[&str]) -> Result<String> {
        self.next_id += 1;
        let request = json!({"id": self.next_id, "method": command, "params": arguments});
        self.stream
            .write_all(request.to_string().as_bytes())
            .map_err(explained)
            .with_context(|| format!("{command} cannot be asked"))?;
        let reply = self
            .read_reply(Instant::now() + ANSWER)
            .with_context(|| command.to_owned())?;
        if reply["id"] != json!(self.next_id) {
            bail!("{command}: the daemon's answer is to another question");
        }
        match (&reply["error"], &reply["result"]) {
            (Value::Null, Value::String(text)) => Ok(text.clone()),
            (Value::String(text), _) => bail!("{command}: {}", text.trim_end()),
            _ => bail!("{command}: the daemon's answer is not understood"),
        }
    }

    /// Asks a server of the same protocol, such as a database's, for any answer.
    pub fn greet(&mut self) -> Result<()> {
        self.next_id += 1;
        let request = json!({"id": self.next_id, "method": "echo", "params": []});
        self.stream
            .write_all(request.to_string().as_bytes())
            .map_err(explained)?;
        self.read_reply(Instant::now() + PATIENCE).map(|_| ())
    }

    /// Reads one object; bytes behind it are kept for the next call.
    fn read_reply(&mut self, end: Instant) -> Result<Value> {
        let mut chunk = [0; 65536];
        let mut scan = Scan::default();
        loop {
            if let Some(length) = scan.object(&self.buffer)? {
                let text: Vec<u8> = self.buffer.drain(..length).collect();
                return serde_json::from_slice(&text).context("the daemon's answer is not JSON");
            }
            if self.buffer.len() > LONGEST {
                bail!("the daemon's answer is longer than {LONGEST} bytes");
            }
            if Instant::now() > end {
                bail!(
                    "the daemon's answer is not complete after {} s",
                    ANSWER.as_secs()
                );
            }
            match self.stream.read(&mut chunk).map_err(explained)? {
                0 => bail!("the daemon closed the connection"),
                n => self.buffer.extend_from_slice(&chunk[..n]),
            }
        }
    }
}

/// Finds the end of an object in bytes that arrive in pieces. Each byte is examined once, because
/// an answer may have megabytes.
#[derive(Default)]
struct Scan {
    /// Number of bytes examined.
    at: usize,
    /// Number of open braces.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Returns the length of the object at the beginning of `buffer`, leading blanks included, once
    /// it is complete. Fails if there is something else.
    fn object(&mut self, buffer: &[u8]) -> Result<Option<usize>> {
        while let Some(&byte) = buffer.get(self.at) {
            self.at += 1;
            if self.in_string {
                let escapes = byte == b'\\' && !self.escaped;
                self.in_string = byte != b'"' || self.escaped;
                self.escaped = escapes;
                continue;
            }
            match byte {
                b'{' => self.depth += 1,
                _ if self.depth == 0 && !byte.is_ascii_whitespace() => {
                    bail!("the daemon's answer is not JSON")
                }
                b'"' => self.in_string = true,
                b'}' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Ok(Some(self.at));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn answer(reply: &'static str) -> Result<String> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("ctl");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let n = stream.read(&mut request).unwrap();
            assert!(n > 0);
            // In two pieces, to test that they are joined.
            let (a, b) = reply.split_at(reply.len() / 2);
            stream.write_all(a.as_bytes()).unwrap();
            // The client may have closed the connection when it saw garbage.
            let _ = stream.write_all(b.as_bytes());
        });
        let result = Appctl::connect(&socket)?.call("version", &[]);
        server.join().unwrap();
        result
    }

    #[test]
    fn replies_errors_and_rubbish_are_told_apart() {
        assert_eq!(
            answer(r#"{"id":1,"result":"sluiced 0.1\n","error":null}"#).unwrap(),
            "sluiced 0.1\n"
        );
        assert!(
            answer(r#"{"id":1,"result":null,"error":"no such bridge\n"}"#)
                .unwrap_err()
                .to_string()
                .contains("no such bridge")
        );
        assert!(answer("]]]]").is_err());
        assert!(format!("{:#}", answer("{").unwrap_err()).contains("closed"));
        let other = answer(r#"{"id":2,"result":"","error":null}"#).unwrap_err();
        assert!(other.to_string().contains("another question"));
    }

    #[test]
    fn an_object_ends_where_its_braces_do_however_it_comes() {
        let text = br#" {"a":"}\"{\\","b":{"c":[1,{}]}}{"d":1}"#;
        let first = text.iter().rposition(|byte| *byte == b'{').unwrap();
        for step in 1..text.len() {
            let (mut scan, mut found) = (Scan::default(), None);
            for end in (0..text.len()).step_by(step).chain([text.len()]) {
                found = found.or(scan.object(&text[..end]).unwrap());
            }
            assert_eq!(found, Some(first), "{step} bytes at a time");
        }
        for wrong in ["}", "x{}", "1", "\"{}\""] {
            assert!(Scan::default().object(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_of_megabytes_is_read_and_the_next_one_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("ctl");
        let listener = UnixListener::bind(&socket).unwrap();
        let text = "0123456789\"\\".repeat(1 << 18);
        let reply = json!({"id": 1, "result": text, "error": null}).to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let next = r#"{"id":2,"result":"next","error":null}"#;
            stream.write_all((reply + next).as_bytes()).unwrap();
            let mut request = [0; 1024];
            while stream.read(&mut request).is_ok_and(|n| n > 0) {}
        });
        let mut daemon = Appctl::connect(&socket).unwrap();
        assert_eq!(daemon.call("one", &[]).unwrap(), text);
        assert_eq!(daemon.call("two", &[]).unwrap(), "next");
        drop(daemon);
        server.join().unwrap();
    }

    #[test]
    fn missing_daemon_error_says_why_and_what_to_run() {
        let directory = tempfile::tempdir().unwrap();
        let said = |result: Result<PathBuf>| format!("{:#}", result.unwrap_err());
        let error = said(socket_in(directory.path()));
        assert!(
            error.contains("no daemon") && error.contains("sluice up"),
            "{error}"
        );
        std::fs::write(directory.path().join(PIDFILE), "12\n").unwrap();
        let socket = socket_in(directory.path()).unwrap();
        assert!(socket.ends_with("ovs-vswitchd.12.ctl"));
        let error = format!("{:#}", Appctl::connect(&socket).err().unwrap());
        assert!(error.contains("the daemon has ended"), "{error}");
        std::fs::write(directory.path().join(PIDFILE), "x".repeat(9999)).unwrap();
        assert!(said(socket_in(directory.path())).contains("not a process id"));
        let long = Path::new("/").join("x".repeat(200));
        let error = format!("{:#}", Appctl::connect(&long).err().unwrap());
        assert!(error.contains("more than 107 bytes"), "{error}");
    }

    #[test]
    fn a_socket_in_a_long_directory_is_reached() {
        let directory = tempfile::tempdir().unwrap();
        let long = directory.path().join("x".repeat(200));
        std::fs::create_dir(&long).unwrap();
        let file = std::fs::File::open(&long).unwrap();
        let short = format!("/proc/self/fd/{}/ctl", file.as_raw_fd());
        let _listener = UnixListener::bind(short).unwrap();
        assert!(Appctl::connect(&long.join("ctl")).is_ok());
    }

    #[test]
    fn a_switch_of_sluice_up_is_found_where_the_system_has_none() {
        let both = tempfile::tempdir().unwrap();
        let (system, own) = (both.path().join("system"), both.path().join("own"));
        for directory in [&system, &own] {
            std::fs::create_dir(directory).unwrap();
        }
        assert_eq!(chosen(None, &system, &own), system);
        std::fs::write(own.join(PIDFILE), "1").unwrap();
        assert_eq!(chosen(None, &system, &own), own);
        assert_eq!(
            chosen(Some(OsStr::new("/x")), &system, &own),
            Path::new("/x")
        );
        std::fs::write(system.join(PIDFILE), "1").unwrap();
        assert_eq!(chosen(None, &system, &own), system);
    }
}
