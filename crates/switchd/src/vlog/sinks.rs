//! The log's sinks: standard error, the log file, the system log. Before the last fork lines are
//! written at once (there must be no thread then); afterwards by a separate thread behind a bounded
//! queue, so a full disk, a hung terminal or a slow system log costs lines, which are counted, and
//! never time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::pattern::time_text;
use super::{QUEUE_FULL, WRITE_FAILED};

/// Most lines that wait for the writer.
const QUEUE_LENGTH: usize = 2048;
/// Pause before a system log that did not take a line is tried again.
const SYSLOG_PAUSE: Duration = Duration::from_secs(1);

/// One message, formatted for each destination that logs it.
pub(super) struct Line {
    pub console: Option<String>,
    pub file: Option<String>,
    pub syslog: Option<String>,
    pub priority: u8,
    pub program: String,
    pub host: String,
    pub now: Duration,
}

type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

enum Job {
    Line(Box<Line>),
    Reopen(Done),
    Close,
    Flush(mpsc::Sender<()>),
}

/// Returns whether `--syslog-method` accepts this text. Hosts must be given by address: the log
/// looks no names up.
pub fn is_syslog_method(text: &str) -> bool {
    method(text).is_some()
}

enum Method {
    Null,
    Unix { path: PathBuf, with_host: bool },
    Udp(SocketAddr),
}

fn method(text: &str) -> Option<Method> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Some(Method::Unix {
            path: path.into(),
            with_host: true,
        });
    }
    match text {
        "libc" | "" => Some(Method::Unix {
            path: "/dev/log".into(),
            with_host: false,
        }),
        "null" => Some(Method::Null),
        _ => text.strip_prefix("udp:")?.parse().ok().map(Method::Udp),
    }
}

/// The system log: `/dev/log` in libc's format, or another socket in the format of RFC 3164, with
/// the host's name.
struct Syslog {
    method: Method,
    socket: Option<Socket>,
    resting: Option<Instant>,
}

enum Socket {
    Unix(UnixDatagram),
    Udp(UdpSocket),
}

impl Syslog {
    fn connect(&self) -> io::Result<Option<Socket>> {
        match &self.method {
            Method::Null => Ok(None),
            Method::Unix { path, .. } => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                socket.connect(path)?;
                Ok(Some(Socket::Unix(socket)))
            }
            Method::Udp(address) => udp(*address).map(Socket::Udp).map(Some),
        }
    }

    fn send(&mut self, line: &Line, text: &str) -> io::Result<()> {
        if self
            .resting
            .is_some_and(|since| since.elapsed() < SYSLOG_PAUSE)
        {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let with_host = !matches!(
            self.method,
            Method::Unix {
                with_host: false,
                ..
            }
        );
        let datagram = datagram(line, text, with_host);
        let result = match &self.socket {
            Some(socket) => send(socket, &datagram),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let result = result.or_else(|_| {
            self.socket = self.connect()?;
            self.socket
                .as_ref()
                .map_or(Ok(()), |socket| send(socket, &datagram))
        });
        self.resting = result.is_err().then(Instant::now);
        // A machine without a system log is no error.
        match result {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}

fn send(socket: &Socket, datagram: &[u8]) -> io::Result<()> {
    match socket {
        Socket::Unix(socket) => socket.send(datagram),
        Socket::Udp(socket) => socket.send(datagram),
    }
    .map(|_| ())
}

fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = if address.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    socket.connect(address)?;
    Ok(socket)
}

/// Formats a system log line: `<PRI>TIME [HOST] PROGRAM[PID]: text`.
fn datagram(line: &Line, text: &str, with_host: bool) -> Vec<u8> {
    let time = time_text(c"%h %e %T", line.now, with_host);
    let Line {
        priority, program, ..
    } = line;
    let host = if with_host {
        format!(" {}", line.host)
    } else {
        String::new()
    };
    format!("<{priority}>{time}{host} {program}: {text}").into_bytes()
}

/// The open destinations.
pub(super) struct Sinks {
    file: Option<File>,
    path: Option<PathBuf>,
    syslog: Syslog,
    target: Option<UdpSocket>,
}

impl Sinks {
    /// Creates sinks without a file. Also returns what is wrong with `target`, if anything; logging
    /// works without it.
    pub(super) fn new(syslog_method: &str, target: Option<&str>) -> (Self, Option<String>) {
        let (target, complaint) = match target.map(syslog_target) {
            None => (None, None),
            Some(Ok(socket)) => (Some(socket), None),
            Some(Err(error)) => (None, Some(error)),
        };
        let method = method(syslog_method).unwrap_or(Method::Null);
        let syslog = Syslog {
            method,
            socket: None,
            resting: None,
        };
        (
            Sinks {
                file: None,
                path: None,
                syslog,
                target,
            },
            complaint,
        )
    }

    fn open(&mut self, path: PathBuf) -> io::Result<()> {
        self.file = None;
        let path = self.path.insert(path);
        self.file = Some(open_file(path)?);
        Ok(())
    }

    fn reopen(&mut self) -> io::Result<()> {
        match self.path.take() {
            Some(path) => self.open(path),
            None => Ok(()),
        }
    }

    fn take(&mut self, line: &Line) {
        let mut failed = 0;
        let mut count = |result: io::Result<()>| failed += u64::from(result.is_err());
        if let Some(text) = &line.console {
            count(write_line(&mut io::stderr(), text));
        }
        if let (Some(text), Some(file)) = (&line.file, &mut self.file) {
            count(write_line(file, text));
        }
        if let Some(text) = &line.syslog {
            count(self.syslog.send(line, text));
            if let Some(target) = &self.target {
                count(target.send(&datagram(line, text, true)).map(|_| ()));
            }
        }
        if failed > 0 {
            WRITE_FAILED.add(failed);
        }
    }
}

fn syslog_target(text: &str) -> Result<UdpSocket, String> {
    if text
        .rsplit_once(':')
        .is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err())
    {
        return Err(format!("{text}: port must be specified"));
    }
    let address = text
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next());
    let address = address.ok_or_else(|| format!("{text}: bad IP address"))?;
    udp(address).map_err(|error| format!("{text}: {error}"))
}

/// Writes each line by one call, so that lines of several processes that share the file do not mix.
fn write_line(to: &mut impl Write, text: &str) -> io::Result<()> {
    let mut line = String::with_capacity(text.len() + 1);
    line.push_str(text);
    line.push('\n');
    to.write_all(line.as_bytes())
}

fn open_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o640)
        .open(path)
}

/// The log's output: the sinks themselves, or the queue to the writer's thread.
pub(super) struct Output {
    direct: Mutex<Option<Sinks>>,
    queue: OnceLock<SyncSender<Job>>,
}

impl Output {
    pub(super) fn direct(sinks: Sinks) -> Self {
        Output {
            direct: Mutex::new(Some(sinks)),
            queue: OnceLock::new(),
        }
    }

    fn sinks(&self) -> std::sync::MutexGuard<'_, Option<Sinks>> {
        self.direct
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens the log file at once.
    pub(super) fn open(&self, path: PathBuf) -> io::Result<()> {
        self.sinks()
            .as_mut()
            .map_or(Ok(()), |sinks| sinks.open(path))
    }

    pub(super) fn start_writer(&self) -> io::Result<()> {
        let Some(sinks) = self.sinks().take() else {
            return Ok(());
        };
        let (sender, receiver) = mpsc::sync_channel(QUEUE_LENGTH);
        std::thread::Builder::new()
            .name(super::WRITER.into())
            .spawn(move || work(sinks, &receiver))?;
        let _ = self.queue.set(sender);
        Ok(())
    }

    pub(super) fn give(&self, line: Line) {
        match self.queue.get() {
            Some(queue) => {
                if queue.try_send(Job::Line(Box::new(line))).is_err() {
                    QUEUE_FULL.increment();
                }
            }
            None => {
                if let Some(sinks) = self.sinks().as_mut() {
                    sinks.take(&line);
                }
            }
        }
    }

    pub(super) fn reopen(&self, done: Done) {
        match self.queue.get() {
            Some(queue) => {
                if let Err(
                    TrySendError::Full(Job::Reopen(done))
                    | TrySendError::Disconnected(Job::Reopen(done)),
                ) = queue.try_send(Job::Reopen(done))
                {
                    done(Err(io::Error::new(
                        io::ErrorKind::WouldBlock,
                        "the log's queue is full",
                    )));
                }
            }
            None => done(self.sinks().as_mut().map_or(Ok(()), Sinks::reopen)),
        }
    }

    pub(super) fn close(&self) {
        match self.queue.get() {
            Some(queue) => {
                if queue.try_send(Job::Close).is_err() {
                    QUEUE_FULL.increment();
                }
            }
            None => {
                if let Some(sinks) = self.sinks().as_mut() {
                    sinks.file = None;
                }
            }
        }
    }

    pub(super) fn flush(&self, limit: Duration) {
        let Some(queue) = self.queue.get() else {
            return;
        };
        let deadline = Instant::now() + limit;
        let (sender, receiver) = mpsc::channel();
        while let Err(TrySendError::Full(_)) = queue.try_send(Job::Flush(sender.clone())) {
            if Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

fn work(mut sinks: Sinks, jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        match job {
            Job::Line(line) => sinks.take(&line),
            Job::Reopen(done) => done(sinks.reopen()),
            Job::Close => sinks.file = None,
            Job::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Line {
            console: None,
            file: Some(text.into()),
            syslog: Some(text.into()),
            priority: 30,
            program: "p".into(),
            host: "h".into(),
            now: Duration::from_secs(1_795_255_200),
        }
    }

    #[test]
    fn methods() {
        for good in [
            "libc",
            "null",
            "unix:/x",
            "udp:127.0.0.1:514",
            "udp:[::1]:514",
        ] {
            assert!(is_syslog_method(good), "{good}");
        }
        for bad in ["foo", "udp:1", "udp:host:514", "UNIX:/x"] {
            assert!(!is_syslog_method(bad), "{bad}");
        }
        assert_eq!(
            Sinks::new("null", Some("foo")).1.as_deref(),
            Some("foo: port must be specified")
        );
        assert_eq!(Sinks::new("null", Some("127.0.0.1:1")).1, None);
    }

    #[test]
    fn a_rotated_file_is_opened_again_under_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("log"), directory.path().join("log.1"));
        let output = Output::direct(Sinks::new("null", None).0);
        output.open(path.clone()).unwrap();
        output.give(line("before the writer"));
        output.start_writer().unwrap();
        output.give(line("first"));
        output.flush(Duration::from_secs(10));
        std::fs::rename(&path, &old).unwrap();
        output.give(line("still the old file"));
        let (sender, receiver) = mpsc::channel();
        output.reopen(Box::new(move |result| sender.send(result.is_ok()).unwrap()));
        assert!(receiver.recv_timeout(Duration::from_secs(10)).unwrap());
        output.give(line("second"));
        output.close();
        output.give(line("to nobody"));
        output.flush(Duration::from_secs(10));
        assert_eq!(
            std::fs::read_to_string(&old).unwrap(),
            "before the writer\nfirst\nstill the old file\n"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second\n");
    }

    #[test]
    fn the_system_log_gets_datagrams() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut sinks = Sinks::new(&format!("unix:{}", path.display()), None).0;
        sinks.take(&line("hello"));
        let mut buffer = [0; 200];
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"<30>Nov 21 10:00:00 h p: hello");
    }

    #[test]
    fn a_hung_reader_costs_lines_and_no_time() {
        let (sender, _receiver) = mpsc::sync_channel(4);
        let output = Output {
            direct: Mutex::new(None),
            queue: OnceLock::from(sender),
        };
        let before = QUEUE_FULL.total();
        for _ in 0..10 {
            output.give(line("x"));
        }
        assert_eq!(QUEUE_FULL.total() - before, 6);
        output.flush(Duration::from_millis(20));
        let (done, answer) = mpsc::channel();
        output.reopen(Box::new(move |result| done.send(result.is_err()).unwrap()));
        assert!(answer.recv().unwrap());
    }
}
