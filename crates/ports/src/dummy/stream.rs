//! Dummies connected to a peer outside the switch (`options:stream`, `options:pstream`): frames are
//! sent and received over a socket, each behind its length in two bytes, as in Open vSwitch's
//! dummies.
//!
//! One thread connects or accepts, and each connection has a thread per direction that waits for
//! its socket, so that no worker does. If a peer does not read, frames beyond [`WAITING`] are
//! dropped and counted.

use super::LONGEST;
use crate::error::Error;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Most frames that wait for a peer; more are dropped (Open vSwitch's `NETDEV_DUMMY_MAX_QUEUE`).
const WAITING: usize = 100;
/// Most connections of one port; more are closed at once.
const PEERS: usize = 16;
/// Shortest frame; a peer that sends a smaller length is disconnected.
const SHORTEST: usize = 14;
/// Interval at which a thread checks whether its port is closed.
const LOOK: Duration = Duration::from_millis(50);
/// Number of [`LOOK`]s between two attempts to connect.
const RETRY: u32 = 20;

/// The other end of the connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// `unix:FILE`: connect there.
    Unix(PathBuf),
    /// `tcp:HOST:PORT`: connect there.
    Tcp(String),
    /// `punix:FILE`: listen there.
    ListenUnix(PathBuf),
    /// `ptcp:PORT[:HOST]`: listen there.
    ListenTcp(String),
}

impl Target {
    /// Parses a target; files without a directory are in `directory`.
    pub fn parse(text: &str, directory: &std::path::Path) -> Result<Target, Error> {
        let wrong = || Error::Option(format!("{text}: no stream: unix:FILE, tcp:HOST:PORT"));
        let (method, rest) = text.split_once(':').ok_or_else(wrong)?;
        if rest.is_empty() {
            return Err(wrong());
        }
        let port = |port: &str| port.parse::<u16>().map_err(|_| wrong());
        Ok(match method {
            "unix" => Target::Unix(directory.join(rest)),
            "punix" => Target::ListenUnix(directory.join(rest)),
            "tcp" => {
                let (host, number) = rest.rsplit_once(':').ok_or_else(wrong)?;
                if host.is_empty() {
                    return Err(wrong());
                }
                Target::Tcp(format!("{host}:{}", port(number)?))
            }
            "ptcp" => {
                let (number, host) = rest.split_once(':').unwrap_or((rest, "0.0.0.0"));
                Target::ListenTcp(format!("{host}:{}", port(number)?))
            }
            _ => return Err(wrong()),
        })
    }

    /// Returns whether this end connects.
    pub fn is_active(&self) -> bool {
        matches!(self, Target::Unix(_) | Target::Tcp(_))
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(stream.into())
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(stream.into())
            }
        }
    }
}

struct Peer {
    number: u64,
    frames: SyncSender<Vec<u8>>,
    socket: File,
}

/// Receives a peer's frames.
type Deliver = dyn Fn(&[u8]) + Send + Sync;

/// The connections of one port.
pub(super) struct Streams {
    active: bool,
    closed: AtomicBool,
    peers: Mutex<Vec<Peer>>,
    numbers: AtomicU64,
    dropped: AtomicU64,
    file: Option<PathBuf>,
}

impl Streams {
    /// Starts to connect or to listen. `deliver` is called on a connection's thread.
    pub fn open(name: &str, target: &Target, deliver: Box<Deliver>) -> Result<Arc<Streams>, Error> {
        let failed = |what: String, error: io::Error| Error::Device {
            name: name.to_owned(),
            what,
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        };
        let listener = match target {
            Target::ListenUnix(path) => {
                // Remove a socket that a dead daemon has left, but not one that somebody listens
                // on.
                if UnixStream::connect(path).is_err() {
                    let _ = std::fs::remove_file(path);
                }
                let listener = UnixListener::bind(path)
                    .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                    .map_err(|error| failed(format!("listening on {}", path.display()), error))?;
                Some(Listener::Unix(listener))
            }
            Target::ListenTcp(address) => {
                let listener = TcpListener::bind(address)
                    .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                    .map_err(|error| failed(format!("listening on {address}"), error))?;
                Some(Listener::Tcp(listener))
            }
            _ => None,
        };
        let streams = Arc::new(Streams {
            active: target.is_active(),
            closed: AtomicBool::new(false),
            peers: Mutex::default(),
            numbers: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            file: match target {
                Target::ListenUnix(path) => Some(path.clone()),
                _ => None,
            },
        });
        let deliver: Arc<Deliver> = Arc::from(deliver);
        let (mine, target) = (streams.clone(), target.clone());
        let begun =
            thread::Builder::new()
                .name("dummy-stream".into())
                .spawn(move || match listener {
                    Some(listener) => mine.accept(&listener, &deliver),
                    None => mine.connect(&target, &deliver),
                });
        begun.map_err(|error| failed("starting a thread".into(), error))?;
        Ok(streams)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn accept(self: &Arc<Self>, listener: &Listener, deliver: &Arc<Deliver>) {
        while !self.is_closed() {
            let Ok(socket) = listener.accept() else {
                thread::sleep(LOOK);
                continue;
            };
            if super::lock(&self.peers).len() >= PEERS {
                continue; // dropping the socket closes it
            }
            let (mine, deliver) = (self.clone(), deliver.clone());
            let _ = thread::Builder::new()
                .name("dummy-stream".into())
                .spawn(move || mine.serve(socket.into(), &*deliver));
        }
    }

    fn connect(self: &Arc<Self>, target: &Target, deliver: &Arc<Deliver>) {
        while !self.is_closed() {
            let socket: io::Result<OwnedFd> = match target {
                Target::Unix(path) => UnixStream::connect(path).map(Into::into),
                Target::Tcp(address) => TcpStream::connect(address).map(Into::into),
                _ => return,
            };
            if let Ok(socket) = socket {
                self.serve(socket.into(), &**deliver);
            }
            for _ in 0..RETRY {
                if !self.is_closed() {
                    thread::sleep(LOOK);
                }
            }
        }
    }

    /// Reads from a connection until it ends, while another thread writes.
    fn serve(self: &Arc<Self>, socket: File, deliver: &Deliver) {
        let (Ok(kept), Ok(writing)) = (socket.try_clone(), socket.try_clone()) else {
            return;
        };
        let (frames, waiting) = sync_channel(WAITING);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        {
            let mut peers = super::lock(&self.peers);
            if self.is_closed() || peers.len() >= PEERS {
                return;
            }
            peers.push(Peer {
                number,
                frames,
                socket: kept,
            });
        }
        let writer = thread::Builder::new()
            .name("dummy-stream".into())
            .spawn(move || write(writing, &waiting));
        if writer.is_ok() {
            let _ = read(socket, deliver);
        }
        // Removing the peer drops the sender, which ends the writer.
        let mut peers = super::lock(&self.peers);
        if let Some(place) = peers.iter().position(|peer| peer.number == number) {
            end(&peers.swap_remove(place).socket);
        }
    }

    /// Sends a frame to every peer; frames that a peer does not take are dropped and counted.
    pub fn send(&self, frame: &[u8]) {
        let Ok(len) = u16::try_from(frame.len()) else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        for peer in super::lock(&self.peers).iter() {
            let mut message = Vec::with_capacity(2 + frame.len());
            message.extend(len.to_be_bytes());
            message.extend(frame);
            if let Err(TrySendError::Full(_)) = peer.frames.try_send(message) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns whether there is a connection, for a port that connects itself.
    pub fn is_connected(&self) -> Option<bool> {
        self.active.then(|| !super::lock(&self.peers).is_empty())
    }

    /// Returns how many frames were dropped because a peer did not take them.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Ends all connections and their threads.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for peer in super::lock(&self.peers).drain(..) {
            end(&peer.socket);
        }
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Ends a connection, which wakes the threads that wait for it.
fn end(socket: &File) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

fn write(mut socket: File, frames: &Receiver<Vec<u8>>) {
    while let Ok(message) = frames.recv() {
        if socket.write_all(&message).is_err() {
            break;
        }
    }
    end(&socket);
}

fn read(mut socket: File, deliver: &Deliver) -> io::Result<()> {
    let mut frame = vec![0; LONGEST];
    loop {
        let mut len = [0; 2];
        socket.read_exact(&mut len)?;
        let len = usize::from(u16::from_be_bytes(len));
        if len < SHORTEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        socket.read_exact(&mut frame[..len])?;
        deliver(&frame[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(name: &str, deliver: Box<Deliver>) -> (Arc<Streams>, UnixStream, PathBuf) {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let target = Target::ListenUnix(path.clone());
        let streams = Streams::open("d", &target, deliver).unwrap();
        let peer = UnixStream::connect(&path).unwrap();
        while super::super::lock(&streams.peers).is_empty() {
            thread::sleep(LOOK);
        }
        (streams, peer, path)
    }

    #[test]
    fn frames_that_the_peer_does_not_read_are_dropped_and_counted() {
        let (streams, mut peer, path) = opened("dummy-stream-full", Box::new(|_| {}));
        for _ in 0..20_000 {
            streams.send(&[0; 1000]);
        }
        // The socket takes some hundred kilobytes, and a hundred frames wait.
        assert!(streams.dropped() > 10_000, "{}", streams.dropped());
        assert_eq!(streams.is_connected(), None, "it listens");
        let mut length = [0; 2];
        peer.read_exact(&mut length).unwrap();
        assert_eq!(length, 1000_u16.to_be_bytes());
        streams.close();
        let mut taken = Vec::new();
        let _ = peer.read_to_end(&mut taken);
        assert!(taken.len() < 10_000 * 1002, "{}", taken.len());
        assert!(!path.exists(), "its socket is left behind");
    }

    #[test]
    fn frames_of_a_peer_are_whole_and_a_bad_length_ends_the_connection() {
        let (sender, received) = std::sync::mpsc::channel();
        let deliver = move |frame: &[u8]| drop(sender.send(frame.to_vec()));
        let (streams, mut peer, _) = opened("dummy-stream-read", Box::new(deliver));
        for part in [&[0][..], &[20, 1, 2, 3], &[4; 17], &[0, 14], &[5; 14]] {
            peer.write_all(part).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        let first = received.recv().unwrap();
        assert_eq!((first.len(), &first[..4]), (20, &[1, 2, 3, 4][..]));
        assert_eq!(received.recv().unwrap(), [5; 14]);
        peer.write_all(&[0, 13, 1, 1]).unwrap();
        let mut rest = Vec::new();
        let _ = peer.read_to_end(&mut rest);
        assert!(rest.is_empty());
        streams.close();
        assert!(received.try_recv().is_err());
    }
}
