//! A client of the daemon's unixctl socket: JSON-RPC 1.0 over a Unix stream, as `ovs-appctl` speaks it.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes.
const LONGEST: usize = 64 << 20;

/// A connection to a daemon.
pub struct Appctl {
    stream: UnixStream,
    buffer: Vec<u8>,
    next_id: u64,
}

/// Where Open vSwitch's tools look for run-time files: `OVS_RUNDIR`, or the distribution's place.
pub fn run_directory() -> PathBuf {
    std::env::var_os("OVS_RUNDIR")
        .map_or_else(|| PathBuf::from("/var/run/openvswitch"), PathBuf::from)
}

/// The socket of the daemon whose files are in `directory`, found through its pidfile.
pub fn socket_in(directory: &Path) -> Result<PathBuf> {
    let pidfile = directory.join("ovs-vswitchd.pid");
    let text = std::fs::read_to_string(&pidfile)
        .with_context(|| format!("{}: no daemon seems to run there", pidfile.display()))?;
    let pid: u32 = text
        .trim()
        .parse()
        .with_context(|| format!("{}: not a process id", pidfile.display()))?;
    Ok(directory.join(format!("ovs-vswitchd.{pid}.ctl")))
}

impl Appctl {
    /// Connects to a socket.
    pub fn connect(socket: &Path) -> Result<Appctl> {
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
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
            .context("cannot send to the daemon")?;
        let reply = self.read_reply()?;
        match (&reply["error"], &reply["result"]) {
            (Value::Null, Value::String(text)) => Ok(text.clone()),
            (Value::String(text), _) => bail!("{command}: {}", text.trim_end()),
            _ => bail!("{command}: the daemon's answer is not understood"),
        }
    }

    fn read_reply(&mut self) -> Result<Value> {
        let mut chunk = [0; 65536];
        loop {
            let mut values =
                serde_json::Deserializer::from_slice(&self.buffer).into_iter::<Value>();
            match values.next() {
                Some(Ok(value)) => {
                    let used = values.byte_offset();
                    self.buffer.drain(..used);
                    return Ok(value);
                }
                Some(Err(error)) if !error.is_eof() => {
                    bail!("the daemon's answer is not JSON: {error}")
                }
                _ => {}
            }
            if self.buffer.len() > LONGEST {
                bail!("the daemon's answer is longer than {LONGEST} bytes");
            }
            match self
                .stream
                .read(&mut chunk)
                .context("no answer from the daemon")?
            {
                0 => bail!("the daemon closed the connection"),
                n => self.buffer.extend_from_slice(&chunk[..n]),
            }
        }
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
            // In two pieces, to see them put together.
            let (a, b) = reply.split_at(reply.len() / 2);
            stream.write_all(a.as_bytes()).unwrap();
            // A client that has seen enough of rubbish may be gone by now.
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
        assert!(answer("{").unwrap_err().to_string().contains("closed"));
    }
}
