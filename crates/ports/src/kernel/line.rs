//! A port's receiving sockets, and how one replaces another.
//!
//! A quiet port has a plain socket, which takes no kernel memory except for waiting frames. A busy
//! port gets one with a ring ([`super::ring`]), 2 MiB of kernel memory, and goes back to a plain
//! socket when it has been quiet for a while and other ports have rings, too. A socket that
//! receives cannot be given a ring without losing frames meanwhile. So a second socket is prepared
//! and takes over: both are in a fanout group (packet(7)), whose program (`PACKET_FANOUT_CBPF`)
//! selects the member that gets all frames. The program is replaced between two frames, and the
//! call returns when no processor runs the old one: all frames in the first socket are then older
//! than any in the second, and the first gets no more. The worker reads the first socket until it
//! is empty, and then the second: no frame is lost, duplicated or reordered.
//!
//! All steps that wait for the kernel are done in the [`background`].

use super::ring::{PacketRing, Permit, rings};
use crate::background;
use crate::descriptor::Descriptor;
use crate::error::last_errno;
use crate::link::set_option;
use libc::c_int;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

// linux/if_packet.h, linux/filter.h
const PACKET_ADD_MEMBERSHIP: c_int = 1;
const PACKET_AUXDATA: c_int = 8;
const PACKET_VNET_HDR: c_int = 15;
const PACKET_FANOUT: c_int = 18;
const PACKET_FANOUT_DATA: c_int = 22;
const PACKET_IGNORE_OUTGOING: c_int = 23;
const PACKET_MR_PROMISC: u16 = 1;
const FANOUT_CBPF: u32 = 6;
const FANOUT_UNIQUE_ID: u32 = 0x2000;
const FANOUT_IGNORE_OUTGOING: u32 = 0x4000;

/// Up to this many rings in all, ports get one at once, and keep it even if they are quiet.
pub(super) const FEW_RINGS: usize = 16;
/// Bytes that the kernel may queue on a socket: a few hundred frames of 64 KiB, some thousand short
/// ones.
const RECEIVE_BUFFER: c_int = 8 << 20;
/// Interval at which rings are checked.
pub(super) const TEND: Duration = Duration::from_secs(5);
/// Checks in a row without a frame after which a ring is given back.
const QUIET_LOOKS: u32 = 2;
/// Failures to change a socket after which that is no longer tried.
const FAILURES: u32 = 3;

/// `struct packet_mreq`.
#[repr(C)]
struct Membership {
    ifindex: c_int,
    kind: u16,
    address_length: u16,
    address: [u8; 8],
}

/// Opens a packet socket in the calling thread's network namespace, which receives nothing yet.
pub(super) fn packet_socket() -> Result<OwnedFd, c_int> {
    // Protocol 0 receives nothing until the socket is bound to one.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
        .map_err(Errno::raw_os_error)?;
    set_option(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, &1)?;
    Ok(fd)
}

/// Binds a packet socket to an interface.
pub(super) fn bind(fd: &OwnedFd, ifindex: u32, protocol: u16) -> Result<(), c_int> {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = ifindex as c_int;
    // SAFETY: the address is readable for its size.
    let code = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            std::mem::size_of_val(&address) as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Makes a socket receive everything that arrives on an interface, but not what this process sends.
fn receive_all(fd: &OwnedFd, ifindex: u32) -> Result<(), c_int> {
    set_option(fd, libc::SOL_PACKET, PACKET_AUXDATA, &1)?;
    set_option(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &RECEIVE_BUFFER)?;
    let promiscuous = Membership {
        ifindex: ifindex as c_int,
        kind: PACKET_MR_PROMISC,
        address_length: 0,
        address: [0; 8],
    };
    set_option(fd, libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous)?;
    bind(fd, ifindex, libc::ETH_P_ALL as u16)
}

/// Adds a bound socket to a fanout group, or to a new one; returns the group's number.
fn join(fd: &OwnedFd, group: Option<u16>) -> Result<u16, c_int> {
    let mut kind = FANOUT_CBPF | FANOUT_IGNORE_OUTGOING;
    if group.is_none() {
        kind |= FANOUT_UNIQUE_ID;
    }
    let wanted = kind << 16 | u32::from(group.unwrap_or(0));
    set_option(fd, libc::SOL_PACKET, PACKET_FANOUT, &wanted)?;
    let mut got = 0_u32;
    let mut length = std::mem::size_of_val(&got) as libc::socklen_t;
    // SAFETY: the number is writable for the length given.
    let code = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_FANOUT,
            std::ptr::from_mut(&mut got).cast(),
            &mut length,
        )
    };
    if code == 0 {
        Ok(got as u16)
    } else {
        Err(last_errno())
    }
}

/// Returns a BPF program that always returns `value`.
fn constant(value: u32) -> [libc::sock_filter; 1] {
    [libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: value,
    }]
}

fn set_program(
    fd: &OwnedFd,
    level: c_int,
    option: c_int,
    mut program: [libc::sock_filter; 1],
) -> Result<(), c_int> {
    let program = libc::sock_fprog {
        len: 1,
        filter: program.as_mut_ptr(),
    };
    // The kernel copies the program.
    set_option(fd, level, option, &program)
}

/// Directs all frames of a socket's fanout group to member number `member`. When this returns, no
/// processor runs the previous program.
fn choose(fd: &OwnedFd, member: u32) -> Result<(), c_int> {
    set_program(fd, libc::SOL_PACKET, PACKET_FANOUT_DATA, constant(member))
}

/// A set of descriptors (epoll(7)) that can be waited for like one: until one of them is readable.
struct Any(OwnedFd);

impl Any {
    fn new() -> Result<Any, c_int> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC);
        set.map(Any).map_err(Errno::raw_os_error)
    }

    /// Adds a descriptor; the kernel removes it when it is closed.
    fn add(&self, fd: RawFd) -> Result<(), c_int> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: the event is valid; the kernel refuses a descriptor that is none.
        let code =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if code == 0 { Ok(()) } else { Err(last_errno()) }
    }
}

/// Returns a descriptor that is readable until it is closed.
fn bell() -> Result<OwnedFd, c_int> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    eventfd(1, flags).map_err(Errno::raw_os_error)
}

/// A receiving socket as its worker has it.
pub(super) struct Line {
    pub ring: Option<PacketRing>,
    pub socket: Arc<Descriptor>,
    /// Wakes the worker when the socket takes over, so that the old one can be closed.
    bell: Option<OwnedFd>,
}

impl Line {
    fn new(fd: OwnedFd, ring: Option<PacketRing>) -> Line {
        Line {
            ring,
            socket: Arc::new(Descriptor::new(fd)),
            bell: None,
        }
    }
}

/// No change is going on.
const STEADY: u8 = 0;
/// Another socket is being prepared.
const PENDING: u8 = 1;
/// It has taken over: the worker must read what is left in the old one and then switch.
const READY: u8 = 2;
/// The worker has switched, and the old socket is being closed.
const LEAVING: u8 = 3;
/// The port is closed.
const SHUT: u8 = 4;

/// A port's sockets, as shared by workers, control and the background.
pub(super) struct Sockets {
    name: String,
    ifindex: u32,
    phase: AtomicU8,
    /// Frames received so far, as reported by the worker.
    frames: AtomicU64,
    /// The descriptor to wait for, once sockets have begun to change.
    any: OnceLock<Any>,
    state: Mutex<State>,
}

struct State {
    /// The fanout group of the present socket, if there is one.
    group: Option<u16>,
    /// The present socket; None if the port is closed.
    current: Option<Arc<Descriptor>>,
    /// All open sockets, to be shut with the port.
    open: Vec<Arc<Descriptor>>,
    /// The socket that has taken over.
    next: Option<Line>,
    /// A socket to replace the ring later: only the worker's thread is sure to be in the right
    /// network namespace.
    spare: Option<OwnedFd>,
    has_ring: bool,
    failures: u32,
    /// Frames at the last check, and checks without new ones since.
    seen: u64,
    quiet: u32,
}

/// Ports that have had rings.
static TENDED: Mutex<Vec<Weak<Sockets>>> = Mutex::new(Vec::new());

fn tended() -> MutexGuard<'static, Vec<Weak<Sockets>>> {
    TENDED
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets quiet ports give their rings back, if there are more than a few rings.
pub(super) fn tend() {
    let all: Vec<Arc<Sockets>> = {
        let mut tended = tended();
        tended.retain(|sockets| sockets.strong_count() > 0);
        tended.iter().filter_map(Weak::upgrade).collect()
    };
    for sockets in all {
        sockets.tend();
    }
}

impl Sockets {
    /// Opens a socket that receives what arrives on an interface. The error is an `errno`.
    pub(super) fn open(name: &str, ifindex: u32) -> Result<(Arc<Sockets>, Line), c_int> {
        let fd = packet_socket()?;
        receive_all(&fd, ifindex)?;
        // If that fails now (before Linux 6.10 the interface must be up), it is tried later; frames
        // that arrive at that very moment are then lost.
        let group = join(&fd, None).ok();
        let line = Line::new(fd, None);
        let sockets = Arc::new(Sockets {
            name: name.to_owned(),
            ifindex,
            phase: AtomicU8::new(STEADY),
            frames: AtomicU64::new(0),
            any: OnceLock::new(),
            state: Mutex::new(State {
                group,
                current: Some(Arc::clone(&line.socket)),
                open: vec![Arc::clone(&line.socket)],
                next: None,
                spare: None,
                has_ring: false,
                failures: 0,
                seen: 0,
                quiet: 0,
            }),
        });
        Ok((sockets, line))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns whether the port is closed, so that nothing is received or sent.
    #[inline]
    pub(super) fn is_shut(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == SHUT
    }

    /// Returns whether another socket has taken over. Must be called before the present one is
    /// found empty.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.phase.load(Ordering::Acquire) == READY
    }

    /// Reports how many frames have been received so far.
    #[inline]
    pub(super) fn came(&self, frames: u64) {
        self.frames.store(frames, Ordering::Relaxed);
    }

    /// Returns the descriptor that is readable when frames may have arrived, while `line` is in
    /// use.
    pub(super) fn wait_fd(&self, line: &Line) -> RawFd {
        match self.any.get() {
            Some(any) => any.0.as_raw_fd(),
            None => line.socket.number(),
        }
    }

    fn go(&self, from: u8, to: u8) -> bool {
        let changed = self
            .phase
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        changed.is_ok()
    }

    /// Asks for a ring, if there will be at most `most` with it; returns whether it is being made.
    /// For the worker's thread, or the one that opens the port.
    pub(super) fn ask_for_ring(self: &Arc<Self>, most: usize) -> bool {
        if !self.go(STEADY, PENDING) {
            return false;
        }
        let begun = self.begin_ring(most).is_some();
        if !begun {
            self.go(PENDING, STEADY);
        }
        begun
    }

    fn begin_ring(self: &Arc<Self>, most: usize) -> Option<()> {
        if self.state().failures >= FAILURES {
            return None;
        }
        let permit = Permit::ask(most)?;
        if self.any.get().is_none() {
            let any = Any::new().ok()?;
            any.add(self.state().current.as_ref()?.number()).ok()?;
            let _ = self.any.set(any);
        }
        let (fd, spare) = (packet_socket().ok()?, packet_socket().ok()?);
        self.state().spare = Some(spare);
        let this = Arc::clone(self);
        background::run(move || this.change(fd, Some(permit)));
        Some(())
    }

    /// Checks a port with a ring.
    fn tend(self: &Arc<Self>) {
        let frames = self.frames.load(Ordering::Relaxed);
        let mut state = self.state();
        state.quiet = if frames == state.seen {
            state.quiet + 1
        } else {
            0
        };
        state.seen = frames;
        let gives_back = state.has_ring && state.quiet >= QUIET_LOOKS && rings() > FEW_RINGS;
        if !gives_back || state.spare.is_none() || !self.go(STEADY, PENDING) {
            return;
        }
        let Some(fd) = state.spare.take() else {
            return;
        };
        drop(state);
        let this = Arc::clone(self);
        background::run(move || this.change(fd, None));
    }

    /// Prepares a socket and lets it take over.
    fn change(self: &Arc<Self>, fd: OwnedFd, permit: Option<Permit>) {
        match self.make(fd, permit) {
            Ok(line) => {
                let grown = line.ring.is_some();
                let mut state = self.state();
                state.next = Some(line);
                if !self.go(PENDING, READY) {
                    // The port was closed meanwhile.
                    let unwanted = state.next.take();
                    drop(state);
                    return drop(unwanted);
                }
                drop(state);
                let this = Arc::downgrade(self);
                let mut tended = tended();
                if grown && !tended.iter().any(|other| other.ptr_eq(&this)) {
                    tended.push(this);
                }
            }
            Err(errno) => {
                self.state().failures += 1;
                if self.go(PENDING, STEADY) {
                    let (name, error) = (&self.name, crate::describe(errno));
                    tracing::warn!(target: "netdev_linux", "{name}: its receiving socket could not be replaced by one with other memory ({error})");
                }
            }
        }
    }

    fn make(&self, fd: OwnedFd, permit: Option<Permit>) -> Result<Line, c_int> {
        let ring = permit
            .map(|permit| PacketRing::new(&fd, permit))
            .transpose()?;
        // It must receive nothing before it is a member.
        set_program(&fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, constant(0))?;
        receive_all(&fd, self.ifindex)?;
        let (current, group) = {
            let state = self.state();
            (state.current.clone(), state.group)
        };
        let current = current.ok_or(libc::ENODEV)?;
        let group = match group {
            Some(group) => group,
            None => {
                let group = join(current.fd(), None)?;
                self.state().group = Some(group);
                group
            }
        };
        // The present socket is the only member, and so has number 0.
        choose(current.fd(), 0)?;
        join(&fd, Some(group))?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0)?;
        let any = self.any.get().ok_or(libc::EINVAL)?;
        any.add(fd.as_raw_fd())?;
        let bell = bell()?;
        any.add(bell.as_raw_fd())?;
        choose(&fd, 1)?;
        let mut line = Line::new(fd, ring);
        line.bell = Some(bell);
        Ok(line)
    }

    /// Returns the socket that has taken over, to its worker, which has found the old one empty
    /// after [`Sockets::is_over`] was true.
    pub(super) fn take(&self) -> Option<Line> {
        let mut state = self.state();
        if !self.go(READY, LEAVING) {
            return None;
        }
        let mut line = state.next.take()?;
        line.bell = None;
        state.has_ring = line.ring.is_some();
        state.current = Some(Arc::clone(&line.socket));
        state.open.push(Arc::clone(&line.socket));
        Some(line)
    }

    /// Closes the previous socket.
    pub(super) fn leave(self: &Arc<Self>, old: Line) {
        let this = Arc::clone(self);
        background::run(move || {
            let held = &old.socket;
            this.state().open.retain(|open| !Arc::ptr_eq(open, held));
            drop(old);
            // Only now the new one is the only member of the group.
            this.go(LEAVING, STEADY);
        });
    }

    /// Releases the interface at once; the sockets are closed a little later.
    pub(super) fn shut(&self) {
        let mut state = self.state();
        self.phase.store(SHUT, Ordering::Release);
        state.current = None;
        let (next, spare) = (state.next.take(), state.spare.take());
        if next.is_some() || spare.is_some() {
            background::later((next, spare));
        }
        for socket in state.open.drain(..) {
            // Still in use if a worker has not given its queue back.
            match Arc::try_unwrap(socket) {
                Ok(socket) => background::later(socket.into_fd()),
                Err(socket) => socket.shut_slowly(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    fn ip(arguments: &str) {
        let done = Command::new("ip")
            .args(arguments.split_whitespace())
            .status();
        assert!(done.expect("ip runs").success(), "ip {arguments}");
    }

    /// Waits until another socket has taken over, and switches to it.
    fn follow(sockets: &Arc<Sockets>, line: &mut Line) {
        let end = Instant::now() + Duration::from_secs(60);
        while !sockets.is_over() {
            assert!(Instant::now() < end, "no other socket");
            std::thread::sleep(Duration::from_millis(1));
        }
        let next = sockets.take().expect("another socket");
        sockets.leave(std::mem::replace(line, next));
        while sockets.phase.load(Ordering::Relaxed) != STEADY {
            assert!(Instant::now() < end, "the old socket stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Rings of quiet ports are given back, except for a few; those of busy ports are kept.
    #[test]
    fn quiet_rings_are_given_back() {
        // SAFETY: plain value; only the calling thread moves.
        let code = unsafe { libc::unshare(libc::CLONE_NEWNET) };
        assert_eq!(code, 0, "a network namespace; these tests need root");
        ip("link add va type veth peer name vb");
        ip("link set va up");
        ip("link set vb up");
        // SAFETY: a string that ends with a zero byte.
        let ifindex = unsafe { libc::if_nametoindex(c"va".as_ptr()) };
        background::start(Duration::from_secs(3600), || {});
        let many = FEW_RINGS + 4;
        let mut ports: Vec<(Arc<Sockets>, Line)> = (0..many)
            .map(|_| Sockets::open("va", ifindex).expect("a socket"))
            .collect();
        for (sockets, line) in &mut ports {
            assert!(!sockets.ask_for_ring(0), "there may be none");
            assert!(sockets.ask_for_ring(many));
            assert!(!sockets.ask_for_ring(many), "one is being made");
            follow(sockets, line);
            assert!(line.ring.is_some());
        }
        assert_eq!(rings(), many);
        assert!(Permit::ask(many).is_none(), "as many as may be");
        // The first port is busy. The others have not been quiet for long enough, and then they
        // have.
        for look in 1..=QUIET_LOOKS {
            ports[0].0.came(u64::from(look));
            assert!(ports.iter().all(|(sockets, _)| !sockets.is_over()));
            tend();
        }
        for (sockets, line) in &mut ports[1..] {
            follow(sockets, line);
            assert!(line.ring.is_none());
        }
        assert_eq!(rings(), 1, "few enough for one to stay however quiet it is");
        (0..5).for_each(|_| tend());
        assert_eq!(ports[0].0.phase.load(Ordering::Relaxed), STEADY);
        // A ring can be requested again.
        let (sockets, line) = &mut ports[1];
        assert!(sockets.ask_for_ring(many));
        follow(sockets, line);
        assert_eq!(rings(), 2);
        // A port is closed while another socket is being prepared: everything is released.
        let (sockets, line) = ports.pop().expect("one");
        assert!(sockets.ask_for_ring(many));
        sockets.shut();
        assert!(sockets.is_shut() && !sockets.is_over());
        drop((line, ports));
        assert!(background::finish(Duration::from_secs(60)));
        assert_eq!(rings(), 0);
        assert!(!sockets.is_over() && sockets.state().next.is_none());
    }
}
