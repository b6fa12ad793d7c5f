//! Guests behind TAPs: a thread that reads their files and writes to others.

use super::{At, Handled};
use crate::place::{pin, run};
use crate::subject::{End, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Frames that are read from one file before it is the next one's turn.
const BURST: usize = 64;
const LARGEST: usize = 65536;
/// How long the thread sleeps at most until it sees that it is to end.
const SLEEP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The thread. It ends when this is dropped.
pub(super) struct Taps {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    ends: AtomicBool,
    ports: Vec<Port>,
}

/// A TAP.
struct Port {
    number: u16,
    file: File,
    /// Where its frames go: an index; none: nowhere.
    to: Option<usize>,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Taps {
    pub fn start(pairs: &[(At, Option<At>)], core: usize) -> Result<Taps, Error> {
        let mut ports = Vec::new();
        for ((number, end), other) in pairs {
            let first = ports.len();
            let mut add = |number: u16, end: &End, to: Option<usize>| {
                ports.push(Port {
                    number,
                    file: open(end)?,
                    to,
                    received: AtomicU64::new(0),
                    sent: AtomicU64::new(0),
                });
                Ok::<(), Error>(())
            };
            add(*number, end, other.map(|_| first + 1))?;
            if let Some((number, end)) = other {
                add(*number, end, Some(first))?;
            }
        }
        let shared = Arc::new(Shared {
            ends: AtomicBool::new(false),
            ports,
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("guests".into())
            .spawn(move || {
                pin(core);
                theirs.forward();
            })
            .map_err(|error| Error::Failed(format!("a thread for guests: {error}")))?;
        Ok(Taps {
            shared,
            thread: Some(thread),
        })
    }

    pub fn handled(&self) -> Result<Vec<Handled>, Error> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return Err(Error::Failed(
                "the guests' thread has ended: a TAP is gone".into(),
            ));
        }
        let handled = |port: &Port| Handled {
            port: port.number,
            received: port.received.load(Ordering::Relaxed),
            sent: port.sent.load(Ordering::Relaxed),
        };
        Ok(self.shared.ports.iter().map(handled).collect())
    }

    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.shared.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map_or(Ok(()), JoinHandle::join);
        ended.map_err(|_| Error::Failed("the guests' thread panicked".into()))
    }
}

impl Drop for Taps {
    fn drop(&mut self) {
        // A panic has been printed.
        let _ = self.end();
    }
}

impl Shared {
    /// Forwards until the end is asked for, or a TAP is gone.
    fn forward(&self) {
        let mut frame = vec![0; LARGEST];
        let files = self.ports.iter().map(|port| &port.file);
        let mut polls: Vec<PollFd<'_>> =
            files.map(|file| PollFd::new(file, PollFlags::IN)).collect();
        while !self.ends.load(Ordering::Relaxed) {
            let mut busy = false;
            for port in &self.ports {
                for _ in 0..BURST {
                    match (&port.file).read(&mut frame) {
                        Ok(length) => {
                            busy = true;
                            port.received.fetch_add(1, Ordering::Relaxed);
                            if let Some(to) = port.to {
                                let to = &self.ports[to];
                                // Where it is not taken the kernel counts it as dropped.
                                if (&to.file).write(&frame[..length]).is_ok() {
                                    to.sent.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) => return,
                    }
                }
            }
            if !busy {
                let _ = poll(&mut polls, Some(&SLEEP));
            }
        }
    }
}

/// Opens a TAP's file, in a thread that is in its namespace.
fn open(end: &End) -> Result<File, Error> {
    let End::Tap { namespace, name } = end else {
        return Err(Error::Failed(format!("{end:?} is no TAP")));
    };
    let failed = |what: &str, error: io::Error| {
        Error::Failed(format!("{what} {name} in {namespace}: {error}"))
    };
    let path = Path::new("/run/netns").join(namespace);
    let there = File::open(&path).map_err(|error| failed("the namespace of", error))?;
    let file = std::thread::scope(|scope| scope.spawn(|| open_in(&there, name)).join())
        .map_err(|_| Error::Failed("a thread that opens a TAP panicked".into()))?
        .map_err(|error| failed("the TAP", error))?;
    // Without a carrier before it was opened it may not be up.
    run(&["ip", "-n", namespace, "link", "set", name, "up"])?;
    Ok(file)
}

fn open_in(namespace: &File, name: &str) -> io::Result<File> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: the request is plain data, of which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::other("the name is too long"));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request lives until the call returns, and has the form that TUNSETIFF takes.
    if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}
