//! The resident's socket: requests and replies, one line of JSON each; and the loop that serves
//! them between samples.
//!
//! Every wait has a limit: clients that send nothing, or do not read, are disconnected.

use crate::clock::now_ns;
use crate::key::{MatchError, parse_match};
use crate::session::{EntryRequest, Session, SessionError};
use crate::vms::VmLocation;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use steer::cores::Load;
use steer::settings::Settings;
use steer::table::TableError;

/// Most bytes of a request.
const REQUEST_MAX: usize = 64 << 10;
/// Most clients at once; further ones wait until one is done.
const CLIENTS_MAX: usize = 16;
/// Time limit for a client to send its request and to read the reply, ns.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How long somebody who wants to steer waits for a resident to take a connection.
const CONNECTING: Duration = Duration::from_secs(1);
/// How long a command waits for a reply, and before that to be connected.
const ANSWER: Duration = Duration::from_secs(10);

/// A request to the resident.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Returns the core table, mode and counters.
    Show,
    /// Returns entries and at most `limit` choices.
    Flows {
        /// Most choices.
        limit: usize,
    },
    /// Adds an entry.
    Add(EntryRequest),
    /// Changes an entry.
    Modify(EntryRequest),
    /// Deletes the entry of this match and precedence, or all within the match.
    Delete {
        /// The match.
        matching: String,
        /// The precedence.
        precedence: Option<u16>,
    },
    /// Reports that a virtual machine starts, moves or stops.
    Vm {
        /// Its number.
        id: u16,
        /// Where it runs; none if it has stopped.
        place: Option<VmLocation>,
    },
    /// Sets the priority bit of a virtual machine's entries.
    Priority {
        /// The virtual machine.
        vm: u16,
        /// The bit.
        on: bool,
    },
    /// Sets a constant of the policy: loads in percent, times in ms.
    Constant {
        /// Its name.
        name: String,
        /// Its value.
        value: f64,
    },
    /// Moves a choice.
    Move {
        /// The entry.
        entry: u64,
        /// The flow's hash, hexadecimal; none for the entry's own choice.
        flow: Option<String>,
        /// The core.
        core: u32,
    },
    /// Ends the resident.
    Stop,
}

/// The resident's reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Done, with the requested data.
    Done(serde_json::Value),
    /// Refused, with the reason.
    Error(String),
    /// Refused for a reason for which OpenFlow has a code.
    Refused {
        /// The reason.
        kind: RefusalKind,
        /// The reason as text.
        text: String,
    },
}

/// Reasons for which OpenFlow has codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The table is full of entries or masks.
    Full,
    /// The core does not exist, or is not steered to.
    Core,
    /// There is no such entry.
    Entry,
    /// Anything else.
    Other,
}

impl Answer {
    /// Reads a reply's line.
    ///
    /// # Errors
    ///
    /// The resident's refusal, with its text; None if the line is not a reply.
    pub fn read(line: &str) -> Result<serde_json::Value, Option<(RefusalKind, String)>> {
        match serde_json::from_str(line) {
            Ok(Answer::Done(value)) => Ok(value),
            Ok(Answer::Error(text)) => Err(Some((RefusalKind::Other, text))),
            Ok(Answer::Refused { kind, text }) => Err(Some((kind, text))),
            Err(_) => Err(None),
        }
    }
}

/// Why a resident cannot be asked, or cannot work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket or directory cannot be used.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The socket or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Nobody listens at the socket.
    #[error("{}: nothing is steered there (sluice steer run)", .0.display())]
    NotSteered(PathBuf),
    /// A resident listens for the interface already.
    #[error("{device}: is steered already, by the process at {}", .path.display())]
    Steered {
        /// The interface.
        device: String,
        /// The resident's socket.
        path: PathBuf,
    },
    /// The resident gave no answer, or none that can be read.
    #[error("{}: no answer came", .0.display())]
    NoAnswer(PathBuf),
    /// The resident refused the request; its text.
    #[error("{0}")]
    Refused(String),
    /// The request cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A constant of the policy has no such name, or cannot have the value.
    #[error("{0}")]
    Constant(String),
    /// The session does not go on.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Match(#[from] MatchError),
    #[error("{0}: there is no such constant; there are {1}")]
    Constant(String, String),
    #[error("{name}: {value} is out of range")]
    Range { name: String, value: f64 },
    #[error("{0}: a flow's hash has 16 hexadecimal digits")]
    Flow(String),
    #[error("the request is not understood: {0}")]
    Rubbish(String),
    #[error("{0}")]
    Kept(String),
}

impl Refusal {
    fn kind(&self) -> RefusalKind {
        match self {
            Refusal::Session(SessionError::Table(
                TableError::EntriesFull(_) | TableError::MasksFull | TableError::ChoicesFull(_),
            )) => RefusalKind::Full,
            Refusal::Session(
                SessionError::NoCore { .. }
                | SessionError::Offline(_)
                | SessionError::NotSteered { .. }
                | SessionError::Beyond(_)
                | SessionError::Table(TableError::Core(_)),
            ) => RefusalKind::Core,
            Refusal::Session(
                SessionError::NoEntry(_) | SessionError::Table(TableError::NoEntry),
            ) => RefusalKind::Entry,
            _ => RefusalKind::Other,
        }
    }
}

/// Names of the policy's constants.
pub const CONSTANTS: [&str; 8] = [
    "high",
    "margin",
    "expected",
    "sample_period",
    "hold",
    "choice_age",
    "ranking_samples",
    "held_cores",
];

/// Sets a constant by its name: loads in percent, times in ms.
///
/// # Errors
///
/// The name is unknown, or the value is not valid.
fn set_constant(settings: &mut Settings, name: &str, value: f64) -> Result<(), Refusal> {
    let range = || Refusal::Range {
        name: name.to_owned(),
        value,
    };
    if !(0.0..=1e9).contains(&value) {
        return Err(range());
    }
    let load = Load::of(value / 100.0);
    let time = (value * 1e6) as u64;
    match name {
        "high" => settings.high = load,
        "margin" => settings.margin = load,
        "expected" => settings.expected = load,
        "sample_period" => settings.sample_period_ns = time,
        "hold" => settings.hold_ns = time,
        "choice_age" => settings.choice_age_ns = time,
        "ranking_samples" if value <= 1000.0 => settings.ranking_samples = value as u32,
        "held_cores" if value <= 65_535.0 => settings.held_cores = value as u16,
        "ranking_samples" | "held_cores" => return Err(range()),
        _ => return Err(Refusal::Constant(name.to_owned(), CONSTANTS.join(", "))),
    }
    Ok(())
}

/// Sets constants before the session begins.
///
/// # Errors
///
/// [`Error::Constant`]: a name is unknown, or a value is not valid.
pub fn set_constants(settings: &mut Settings, all: &[(String, f64)]) -> Result<(), Error> {
    for (name, value) in all {
        set_constant(settings, name, *value).map_err(|error| Error::Constant(error.to_string()))?;
    }
    Ok(())
}

/// Carries out a request. `None`: the resident must end.
fn answer(
    session: &mut Session,
    owner: &Owner<'_>,
    line: &str,
) -> Result<Option<serde_json::Value>, Refusal> {
    let request: Request =
        serde_json::from_str(line).map_err(|error| Refusal::Rubbish(error.to_string()))?;
    let json = |value: Result<serde_json::Value, serde_json::Error>| {
        value.map_err(|error| Refusal::Rubbish(error.to_string()))
    };
    let done = match request {
        Request::Show => json(serde_json::to_value(session.status()?))?,
        Request::Flows { limit } => json(serde_json::to_value(session.flows(limit)))?,
        Request::Add(entry) => {
            let matching = parse_match(&entry.matching)?;
            session.add(&entry, matching)?.into()
        }
        Request::Modify(entry) => {
            let matching = parse_match(&entry.matching)?;
            session.modify(&entry, matching)?.into()
        }
        Request::Delete {
            matching,
            precedence,
        } => session.delete(&parse_match(&matching)?, precedence)?.into(),
        Request::Vm { id, place } => {
            session.set_vm(id, place)?;
            serde_json::Value::Null
        }
        Request::Priority { vm, on } => session.set_priority(vm, on)?.into(),
        Request::Constant { name, value } => {
            let mut settings = *session.settings();
            set_constant(&mut settings, &name, value)?;
            session.set_settings(settings)?;
            serde_json::Value::Null
        }
        Request::Move { entry, flow, core } => {
            let hash = |text: &String| {
                u64::from_str_radix(text, 16).map_err(|_| Refusal::Flow(text.clone()))
            };
            session.move_choice(entry, flow.as_ref().map(hash).transpose()?, core)?;
            serde_json::Value::Null
        }
        Request::Stop => match owner.keeps {
            None => return Ok(None),
            Some(why) => return Err(Refusal::Kept(why.to_owned())),
        },
    };
    Ok(Some(done))
}

/// Returns the path of an interface's resident's socket.
pub fn socket_path(directory: &Path, device: &str) -> PathBuf {
    directory.join(format!("steer-{device}.sock"))
}

/// Returns the interfaces that have a socket in a directory, whether or not a resident listens.
pub fn devices(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut devices: Vec<String> = names
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            Some(
                name.strip_prefix("steer-")?
                    .strip_suffix(".sock")?
                    .to_owned(),
            )
        })
        .collect();
    devices.sort();
    devices
}

/// Sends a request to a resident and returns its reply.
///
/// # Errors
///
/// Nobody listens, or no reply comes in time; or the resident's refusal, with its text.
pub fn ask(path: &Path, request: &Request) -> Result<serde_json::Value, Error> {
    let wrong = |error: io::Error| Error::Io {
        path: path.to_owned(),
        error,
    };
    let mut stream = connect(path, ANSWER).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            Error::NotSteered(path.to_owned())
        }
        _ => wrong(error),
    })?;
    stream.set_read_timeout(Some(ANSWER)).map_err(wrong)?;
    stream.set_write_timeout(Some(ANSWER)).map_err(wrong)?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    stream.write_all(line.as_bytes()).map_err(wrong)?;
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .map_err(wrong)?;
    Answer::read(&answer).map_err(|refused| match refused {
        Some((_, text)) => Error::Refused(text),
        None => Error::NoAnswer(path.to_owned()),
    })
}

/// Fails if a resident listens for this interface.
///
/// # Errors
///
/// [`Error::Steered`].
pub fn check_free(directory: &Path, device: &str) -> Result<(), Error> {
    let path = socket_path(directory, device);
    match connect(&path, CONNECTING) {
        // Whoever takes no connections for so long listens all the same.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Ok(()),
        _ => Err(Error::Steered {
            device: device.to_owned(),
            path,
        }),
    }
}

/// Connects to a socket, within a time limit: the connection waits while the listener's queue is
/// full, and fails with `WouldBlock` at the limit.
fn connect(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let stream = UnixStream::from(socket_with(family, kind, SocketFlags::CLOEXEC, None)?);
    stream.set_write_timeout(Some(limit))?;
    rustix::net::connect(&stream, &address)?;
    Ok(stream)
}

/// Creates the socket, and replaces one on which nobody listens.
///
/// # Errors
///
/// Somebody listens already, or the directory cannot be written.
pub fn listen(directory: &Path, device: &str) -> Result<Server, Error> {
    std::fs::create_dir_all(directory).map_err(|error| Error::Io {
        path: directory.to_owned(),
        error,
    })?;
    let path = socket_path(directory, device);
    check_free(directory, device)?;
    let _ = std::fs::remove_file(&path);
    let wrong = |error: io::Error| Error::Io {
        path: path.clone(),
        error,
    };
    let listener = UnixListener::bind(&path).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    // Only users who may load programs may steer.
    let owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, owner).map_err(wrong)?;
    Ok(Server {
        listener,
        clients: Vec::new(),
        _file: SocketFile(path),
    })
}

/// The resident's socket, and the clients that are being served.
pub struct Server {
    listener: UnixListener,
    clients: Vec<Client>,
    _file: SocketFile,
}

/// The socket's file, removed when the resident ends.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A client being served.
struct Client {
    stream: UnixStream,
    asked: Vec<u8>,
    answer: Vec<u8>,
    since_ns: u64,
}

/// Who keeps a resident.
pub struct Owner<'a> {
    /// Readable once the resident must return to its owner. It is not read from.
    pub calls: BorrowedFd<'a>,
    /// Why clients cannot end the resident; none if they can.
    pub keeps: Option<&'a str>,
}

/// Why the resident ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// A command asked for it, or the owner calls.
    Asked,
    /// The interface has been deleted, or its program was detached.
    Detached,
}

/// Samples and serves requests until told to end. Can be called again, after which the clients of
/// before are served. The calling thread gets a higher priority.
///
/// # Errors
///
/// Errors of the kernel.
pub fn serve(session: &mut Session, server: &mut Server, owner: &Owner<'_>) -> Result<End, Error> {
    // Busy tasks must not delay the rankings. If the priority is refused, they may.
    let _ = rustix::process::setpriority_process(None, -10);
    let Server {
        listener, clients, ..
    } = server;
    let mut next_ns = now_ns();
    let mut looked_ns = now_ns();
    let mut ending = false;
    loop {
        let now = now_ns();
        if now >= next_ns {
            session.sample()?;
            next_ns = next_ns.saturating_add(session.sample_period_ns());
            // Missed samples are not made up for.
            next_ns = next_ns.max(now_ns());
        }
        if now.saturating_sub(looked_ns) > 500_000_000 {
            looked_ns = now;
            if !session.is_attached() {
                return Ok(End::Detached);
            }
        }
        if ending && clients.iter().all(|client| client.answer.is_empty()) {
            return Ok(End::Asked);
        }
        let mut waits = vec![wait_for(owner.calls.as_raw_fd(), libc::POLLIN)];
        let accepting = clients.len() < CLIENTS_MAX;
        waits.push(wait_for(
            if accepting { listener.as_raw_fd() } else { -1 },
            libc::POLLIN,
        ));
        waits.extend(clients.iter().map(|client| {
            let events = match client.answer.is_empty() {
                true => libc::POLLIN,
                false => libc::POLLOUT,
            };
            wait_for(client.stream.as_raw_fd(), events)
        }));
        let timeout = next_ns
            .saturating_sub(now_ns())
            .div_ceil(1_000_000)
            .min(100) as i32;
        // SAFETY: the pointer and length are of a live array.
        unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, timeout) };
        if waits[0].revents != 0 {
            return Ok(End::Asked);
        }
        let now = now_ns();
        clients.retain_mut(|client| {
            now.saturating_sub(client.since_ns) < PATIENCE_NS
                && client.turn(session, owner, &mut ending)
        });
        if accepting
            && waits[1].revents != 0
            && let Ok((stream, _)) = listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            clients.push(Client {
                stream,
                asked: Vec::new(),
                answer: Vec::new(),
                since_ns: now,
            });
        }
    }
}

fn wait_for(fd: RawFd, events: i16) -> libc::pollfd {
    libc::pollfd {
        fd,
        events,
        revents: 0,
    }
}

impl Client {
    /// Reads, replies and writes as far as possible without waiting. Returns false once the client
    /// is done.
    fn turn(&mut self, session: &mut Session, owner: &Owner<'_>, ending: &mut bool) -> bool {
        if self.answer.is_empty() {
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(length) => self.asked.extend_from_slice(&buffer[..length]),
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
            let Some(end) = self.asked.iter().position(|byte| *byte == b'\n') else {
                return self.asked.len() < REQUEST_MAX;
            };
            let line = String::from_utf8_lossy(&self.asked[..end]).into_owned();
            let answer = match answer(session, owner, &line) {
                Ok(Some(done)) => Answer::Done(done),
                Ok(None) => {
                    *ending = true;
                    Answer::Done(serde_json::Value::Null)
                }
                Err(error) => match error.kind() {
                    RefusalKind::Other => Answer::Error(error.to_string()),
                    kind => Answer::Refused {
                        kind,
                        text: error.to_string(),
                    },
                },
            };
            self.answer = serde_json::to_vec(&answer).unwrap_or_default();
            self.answer.push(b'\n');
        }
        match self.stream.write(&self.answer) {
            Ok(length) => {
                self.answer.drain(..length);
                !self.answer.is_empty()
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => true,
            Err(_) => {
                self.answer.clear();
                false
            }
        }
    }
}

/// A descriptor for SIGTERM, SIGINT and SIGHUP, which have no other effect any more.
pub struct Signals(OwnedFd);

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Signals {
    /// Takes the signals over. Must be called before any thread is started, since that would
    /// receive them otherwise.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn take() -> io::Result<Signals> {
        // SAFETY: the set is plain data that is filled before it is read; the descriptor is new
        // and belongs to nobody else.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals(OwnedFd::from_raw_fd(fd)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connecting_has_a_limit() {
        let directory = std::env::temp_dir().join(format!("sluice-steer-{}", std::process::id()));
        let server = listen(&directory, "x").unwrap();
        assert!(check_free(&directory, "x").is_err());
        assert!(check_free(&directory, "y").is_ok());
        // Makes its queue as short as can be.
        rustix::net::listen(&server.listener, 0).unwrap();
        let path = socket_path(&directory, "x");
        let soon = Duration::from_millis(10);
        let mut waiting = Vec::new();
        let full = loop {
            match connect(&path, soon) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the queue has no end");
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(check_free(&directory, "x").is_err());
        drop(server);
        assert!(check_free(&directory, "x").is_ok());
        assert!(!path.exists());
        let long = directory.join("x".repeat(200));
        let error = connect(&long, soon).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidFilename);
        std::fs::remove_dir(&directory).unwrap();
    }
}
