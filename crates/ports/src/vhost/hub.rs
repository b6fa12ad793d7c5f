//! Connections with front ends, all on one thread that never waits for any of them.
//!
//! Messages are read as far as they have arrived. A connection is closed if the rest of a message
//! does not arrive within [`PATIENCE`], or if a reply does not fit into the socket, because the
//! front end leaves its replies unread. A connection that sends more than [`MESSAGES`] in a tenth
//! of a second is paused until that time is over. So a front end delays others by one message at
//! most, and deleting a port waits for the current message, not for its front end.

use super::Shared;
use super::device::Device;
use super::message::{HEAD, Head, MOST_FILES, Request, reply};
use crate::error::last_errno;
use crate::{eal, fault};
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// How long a message may take to arrive completely. Front ends write each in one piece.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval at which connections are checked, and at which absent front ends are tried.
const TICK: Duration = Duration::from_millis(100);
const CALLS: Duration = Duration::from_secs(1);

/// Most messages of a connection between two ticks. Setting up a device of 64 queue pairs takes
/// 900.
const MESSAGES: u32 = 1000;

/// Most connections to one socket. A new one replaces the oldest that is not served.
const MOST_CONNECTIONS: usize = 16;

/// Most connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Bytes for the descriptors of a message: a header, and room for twice as many as a message has.
const CONTROL: usize = 16 + 2 * MOST_FILES * size_of::<RawFd>();

/// What sockets are registered for.
const EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

/// Token of a listening socket, next to those of connections.
const LISTENER: u32 = 0;

/// All ports, and the epoll set of their sockets.
pub(super) struct Hub {
    epoll: OwnedFd,
    ports: Mutex<BTreeMap<u32, Arc<Port>>>,
    next: AtomicU32,
}

/// The sockets of a port.
struct Port {
    number: u32,
    path: String,
    /// Whether we connect; else we listen.
    calls: bool,
    shared: Arc<Shared>,
    sockets: Mutex<Sockets>,
}

#[derive(Default)]
struct Sockets {
    listener: Option<UnixListener>,
    connections: BTreeMap<u32, Connection>,
    next: u32,
    /// When the last connection attempt was made, and its error.
    called: Option<Instant>,
    silent: Option<ErrorKind>,
    gone: bool,
}

struct Connection {
    stream: UnixStream,
    device: Device,
    buffer: Vec<u8>,
    files: Vec<OwnedFd>,
    /// When the first part of an incomplete message arrived.
    since: Option<Instant>,
    /// Messages since the last tick.
    messages: u32,
    /// Whether it has sent too many messages.
    paused: bool,
}

/// Why a connection ends.
enum End {
    /// The front end has hung up.
    HungUp,
    Broken(io::Error),
    Wrong(String),
}

/// A port that is watched until this is dropped.
pub(super) struct Watched {
    hub: &'static Hub,
    port: Arc<Port>,
}

impl Hub {
    /// Returns the hub of this process; the first call starts its thread.
    pub fn get() -> io::Result<&'static Hub> {
        static HUB: OnceLock<Hub> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _alone = STARTING.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(hub) = HUB.get() {
            return Ok(hub);
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let hub = HUB.get_or_init(|| Hub {
            epoll,
            ports: Mutex::default(),
            next: AtomicU32::new(1),
        });
        eal::with_signals_blocked(|| {
            let thread = std::thread::Builder::new().name("vhost-events".into());
            thread.spawn(|| hub.run())
        })?;
        Ok(hub)
    }

    /// Watches a socket: listens on it, or repeatedly connects to it.
    pub fn watch(
        &'static self,
        path: &str,
        calls: bool,
        shared: Arc<Shared>,
    ) -> io::Result<Watched> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let port = Arc::new(Port {
            number,
            path: path.to_owned(),
            calls,
            shared,
            sockets: Mutex::default(),
        });
        {
            let mut ports = self.ports();
            if ports.values().any(|other| other.path == path) {
                return Err(ErrorKind::AddrInUse.into());
            }
            ports.insert(number, Arc::clone(&port));
        }
        // From here on dropping it undoes everything.
        let watched = Watched { hub: self, port };
        if calls {
            watched.port.call(self, &mut watched.port.sockets());
        } else {
            watched.port.listen(self)?;
        }
        Ok(watched)
    }

    fn ports(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Port>>> {
        self.ports
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    fn run(&self) {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
        let mut ticked = Instant::now();
        loop {
            let left = TICK.saturating_sub(ticked.elapsed());
            // Rounded up, so that the loop does not spin just before the time.
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: (left.as_millis() as i64 + 1) * 1_000_000,
            };
            let came = epoll::wait(&self.epoll, &mut events, Some(&wait));
            for event in came.map_or(&mut [][..], |(came, _)| came) {
                let token = event.data.u64();
                let port = self.ports().get(&((token >> 32) as u32)).cloned();
                if let Some(port) = port {
                    guarded(&port.path, || port.look(self, token as u32));
                }
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                self.tick(ticked);
            }
        }
    }

    fn tick(&self, now: Instant) {
        let ports: Vec<_> = self.ports().values().cloned().collect();
        let taken = fault::recent();
        for port in ports {
            guarded(&port.path, || port.tick(self, now, &taken));
        }
    }

    /// Registers a socket with epoll.
    fn register(&self, socket: &impl AsFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, socket, data, EVENTS)?)
    }

    /// Pauses a registered socket, which then has no events, or ends the pause.
    fn pause(&self, socket: &impl AsFd, token: u64, paused: bool) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        let events = match paused {
            true => epoll::EventFlags::empty(),
            false => EVENTS,
        };
        Ok(epoll::modify(&self.epoll, socket, data, events)?)
    }
}

/// Catches a panic about one port, so that others are served.
fn guarded(path: &str, act: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err() {
        tracing::error!("looking after vhost-user socket {path} panicked");
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.hub.ports().remove(&self.port.number);
        // Dropping devices waits for workers and unmaps memory.
        let mut sockets = self.port.sockets();
        sockets.gone = true;
        sockets.connections.clear();
        if sockets.listener.take().is_some() {
            super::remove_stale(&self.port.path);
        }
    }
}

impl Watched {
    pub fn path(&self) -> &str {
        &self.port.path
    }

    /// Returns the process at the other end of the served connection, according to the kernel.
    pub fn peer_process(&self) -> Option<u32> {
        let sockets = self.port.sockets();
        let mut connections = sockets.connections.values();
        let served = connections.find(|connection| connection.device.serves())?;
        peer_of(&served.stream)
    }
}

impl Port {
    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        self.sockets
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    fn token(&self, connection: u32) -> u64 {
        u64::from(self.number) << 32 | u64::from(connection)
    }

    fn listen(&self, hub: &Hub) -> io::Result<()> {
        super::remove_stale(&self.path);
        let listener = UnixListener::bind(&self.path)?;
        listener.set_nonblocking(true)?;
        // Only its backlog changes.
        let _ = rustix::net::listen(&listener, BACKLOG);
        hub.register(&listener, self.token(LISTENER))?;
        self.sockets().listener = Some(listener);
        Ok(())
    }

    /// Connects to the front end, if it listens.
    fn call(&self, hub: &Hub, sockets: &mut Sockets) {
        sockets.called = Some(Instant::now());
        match connect(&self.path) {
            Ok(stream) => {
                sockets.silent = None;
                self.adopt(hub, sockets, stream);
            }
            Err(error) => {
                let kind = Some(error.kind());
                if std::mem::replace(&mut sockets.silent, kind) != kind {
                    let (path, each) = (&self.path, CALLS.as_secs());
                    tracing::info!(target: "dpdk", "vhost-user socket {path}: {error}; connecting again every {each} s");
                }
            }
        }
    }

    /// Handles an event of a socket.
    fn look(&self, hub: &Hub, connection: u32) {
        let mut sockets = self.sockets();
        if sockets.gone {
            return;
        }
        if connection != LISTENER {
            return self.read(hub, &mut sockets, connection);
        }
        let accepted = sockets.listener.as_ref().map(UnixListener::accept);
        match accepted {
            Some(Ok((stream, _))) => match stream.set_nonblocking(true) {
                Ok(()) => self.adopt(hub, &mut sockets, stream),
                Err(error) => tracing::warn!(target: "dpdk", "{}: {error}", self.path),
            },
            Some(Err(error)) if error.kind() != ErrorKind::WouldBlock => {
                // Most likely there are no free descriptors; some may be closed soon.
                tracing::warn!(target: "dpdk", "vhost-user socket {}: accept: {error}", self.path);
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => {}
        }
    }

    fn adopt(&self, hub: &Hub, sockets: &mut Sockets, stream: UnixStream) {
        /// Numbers of all connections of this process, by which devices are known.
        static IDS: AtomicI32 = AtomicI32::new(0);
        if sockets.connections.len() >= MOST_CONNECTIONS {
            let serves = |connection: &Connection| connection.device.serves();
            let oldest = sockets.connections.iter().find(|(_, one)| !serves(one));
            if let Some(number) = oldest.map(|(number, _)| *number) {
                tracing::warn!(target: "dpdk", "vhost-user socket {}: more than {MOST_CONNECTIONS} connections; the oldest is closed", self.path);
                sockets.connections.remove(&number);
            }
        }
        sockets.next = sockets.next.checked_add(1).unwrap_or(1);
        let number = sockets.next;
        let token = self.token(number);
        if let Err(error) = hub.register(&stream, token) {
            tracing::warn!(target: "dpdk", "vhost-user socket {}: {error}", self.path);
            return;
        }
        let id = IDS.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let connection = Connection {
            stream,
            device: Device::new(id, Arc::clone(&self.shared)),
            buffer: Vec::new(),
            files: Vec::new(),
            since: None,
            messages: 0,
            paused: false,
        };
        sockets.connections.insert(number, connection);
    }

    /// Reads and carries out one message, if it is complete.
    fn read(&self, hub: &Hub, sockets: &mut Sockets, number: u32) {
        let Some(connection) = sockets.connections.get_mut(&number) else {
            return;
        };
        let ended = match connection.advance() {
            Ok(()) if connection.messages <= MESSAGES => None,
            Ok(()) => {
                connection.paused = true;
                let paused = hub.pause(&connection.stream, self.token(number), true);
                paused.err().map(End::Broken)
            }
            Err(end) => Some(end),
        };
        if let Some(end) = ended {
            self.close(hub, sockets, number, end);
        }
    }

    fn close(&self, hub: &Hub, sockets: &mut Sockets, number: u32, end: End) {
        let path = &self.path;
        match end {
            End::HungUp => {
                tracing::info!(target: "dpdk", "vhost-user socket {path}: the front end has hung up");
            }
            End::Broken(error) => {
                tracing::warn!(target: "dpdk", "vhost-user socket {path}: {error}; closing the connection");
            }
            End::Wrong(why) => {
                tracing::warn!(target: "dpdk", "vhost-user socket {path}: {why}; closing the connection");
            }
        }
        sockets.connections.remove(&number);
        let waits = sockets.called.is_some_and(|last| last.elapsed() < CALLS);
        if self.calls && sockets.connections.is_empty() && !waits {
            // Try at once, since the front end may have restarted already.
            self.call(hub, sockets);
        }
    }

    fn tick(&self, hub: &Hub, now: Instant, taken: &[usize]) {
        let mut sockets = self.sockets();
        if sockets.gone {
            return;
        }
        let numbers: Vec<u32> = sockets.connections.keys().copied().collect();
        for number in numbers {
            let Some(connection) = sockets.connections.get_mut(&number) else {
                continue;
            };
            connection.messages = 0;
            if connection.device.has_blocked() {
                let path = &self.path;
                tracing::warn!(target: "dpdk", "vhost-user socket {path}: the front end has made its call descriptors block again");
            }
            let late = connection.since.is_some_and(|since| now - since > PATIENCE);
            let end = if taken.iter().any(|at| connection.device.has_memory_at(*at)) {
                Some(End::Wrong("the front end took back memory in use".into()))
            } else if late {
                let seconds = PATIENCE.as_secs();
                Some(End::Wrong(format!(
                    "half of a message, and no more for {seconds} s"
                )))
            } else if std::mem::take(&mut connection.paused) {
                let again = hub.pause(&connection.stream, self.token(number), false);
                again.err().map(End::Broken)
            } else {
                None
            };
            if let Some(end) = end {
                self.close(hub, &mut sockets, number, end);
            }
        }
        let due = sockets
            .called
            .is_none_or(|last| now.saturating_duration_since(last) >= CALLS);
        if self.calls && sockets.connections.is_empty() && due {
            self.call(hub, &mut sockets);
        }
    }
}

impl Connection {
    /// Reads as much of the next message as has arrived, and carries it out if it is complete.
    fn advance(&mut self) -> Result<(), End> {
        loop {
            let wanted = match self.buffer.first_chunk::<HEAD>() {
                None => HEAD - self.buffer.len(),
                Some(head) => {
                    let head = Head::decode(head).map_err(|wrong| End::Wrong(wrong.to_string()))?;
                    let wanted = HEAD + head.length - self.buffer.len();
                    if wanted == 0 {
                        self.since = None;
                        self.messages += 1;
                        return self.obey(head);
                    }
                    wanted
                }
            };
            match self.receive(wanted) {
                Ok(0) => return Err(End::HungUp),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !self.buffer.is_empty() {
                        self.since.get_or_insert_with(Instant::now);
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(End::Broken(error)),
            }
        }
    }

    /// Receives up to `wanted` bytes, and the descriptors that come with them.
    fn receive(&mut self, wanted: usize) -> io::Result<usize> {
        let before = self.buffer.len();
        self.buffer.resize(before + wanted, 0);
        let mut control = [0u64; CONTROL / size_of::<u64>()];
        let mut place = libc::iovec {
            iov_base: self.buffer[before..].as_mut_ptr().cast(),
            iov_len: wanted,
        };
        // SAFETY: all zeroes is a valid header.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &mut place;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header leads to places that are writable for the lengths given.
        let count = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut header, flags) };
        let error = last_errno();
        let received = usize::try_from(count).unwrap_or(0);
        self.buffer.truncate(before + received);
        if count < 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: the kernel has written control messages as the header now says, and the
        // descriptors in them are new and nobody else's.
        unsafe {
            let mut one = libc::CMSG_FIRSTHDR(&header);
            while let Some(message) = one.as_ref() {
                if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                    let bytes = message.cmsg_len - libc::CMSG_LEN(0) as usize;
                    let first = libc::CMSG_DATA(one).cast::<RawFd>();
                    for index in 0..bytes / size_of::<RawFd>() {
                        let fd = first.add(index).read_unaligned();
                        self.files.push(OwnedFd::from_raw_fd(fd));
                    }
                }
                one = libc::CMSG_NXTHDR(&header, one);
            }
        }
        if header.msg_flags & libc::MSG_CTRUNC != 0 || self.files.len() > MOST_FILES {
            return Err(io::Error::other("more file descriptors than a message has"));
        }
        Ok(received)
    }

    fn obey(&mut self, head: Head) -> Result<(), End> {
        let files = std::mem::take(&mut self.files);
        let request = Request::decode(head.request, &self.buffer[HEAD..]);
        self.buffer.clear();
        let outcome = match request {
            Ok(request) => self
                .device
                .handle(request, files)
                .map_err(|refusal| refusal.0),
            Err(wrong) => Err(wrong.to_string()),
        };
        let status = |code: u64| reply(head.request, &code.to_ne_bytes());
        let (bytes, file) = match outcome {
            Ok(Some(answer)) => (reply(head.request, &answer.payload), answer.file),
            Ok(None) if head.wants_reply => (status(0), None),
            Ok(None) => return Ok(()),
            Err(why) if head.wants_reply => {
                tracing::warn!(target: "dpdk", "vhost-user request {} is refused: {why}", head.request);
                (status(1), None)
            }
            Err(why) => return Err(End::Wrong(why)),
        };
        self.send(&bytes, file.as_ref())
    }

    /// Sends a reply, all of it or nothing.
    fn send(&mut self, bytes: &[u8], file: Option<&OwnedFd>) -> Result<(), End> {
        let mut control = [0u64; CONTROL / size_of::<u64>()];
        let mut place = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: all zeroes is a valid header; its control message lies in room for more than one
        // descriptor, and all that it leads to is readable.
        let sent = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &mut place;
            header.msg_iovlen = 1;
            if let Some(file) = file {
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as usize;
                let one = libc::CMSG_FIRSTHDR(&header);
                (*one).cmsg_level = libc::SOL_SOCKET;
                (*one).cmsg_type = libc::SCM_RIGHTS;
                (*one).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
                let first = libc::CMSG_DATA(one).cast::<RawFd>();
                first.write_unaligned(file.as_raw_fd());
            }
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::sendmsg(self.stream.as_raw_fd(), &header, flags)
        };
        match usize::try_from(sent) {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(End::Wrong("the front end leaves answers unread".into())),
            Err(_) => {
                let error = io::Error::last_os_error();
                Err(match error.kind() {
                    ErrorKind::WouldBlock => {
                        End::Wrong("the front end leaves answers unread".into())
                    }
                    _ => End::Broken(error),
                })
            }
        }
    }
}

/// Returns the process at the other end of a socket (`SO_PEERCRED`); None if the kernel does not
/// say, or if the process has no PID in this namespace.
fn peer_of(stream: &UnixStream) -> Option<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are of a live value and of its length, and the kernel writes no more.
    let code = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    (code == 0)
        .then_some(peer.pid)
        .and_then(|pid| u32::try_from(pid).ok())
        .filter(|pid| *pid > 0)
}

/// Connects to a socket without blocking.
fn connect(path: &str) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path).map_err(|_| ErrorKind::InvalidInput)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&stream, &address)?;
    Ok(stream.into())
}
