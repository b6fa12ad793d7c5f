//! Sleeping until a descriptor is ready, and being woken by another thread.

use smallvec::SmallVec;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// An event counter of the kernel (eventfd(2)): raised by one thread, waited for by another.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Wake> {
        // SAFETY: eventfd takes no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else has it.
        Ok(Wake(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Makes the descriptor readable until it is cleared.
    pub fn raise(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: `one` is eight readable bytes. A full counter (EAGAIN) is as good as raised.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the descriptor unreadable.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: `count` is eight writable bytes. Nothing to read (EAGAIN) is as good as cleared.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsRawFd for Wake {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Most readable descriptors returned at a time.
const FOUND: usize = 32;

/// A set of descriptors that is readable while one of them is (epoll(7)): waiting for many costs no
/// more than for one.
pub(crate) struct Watched(OwnedFd);

impl Watched {
    pub fn new() -> io::Result<Watched> {
        // SAFETY: epoll_create1 takes no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else has it.
        Ok(Watched(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor under a name; returns false where the kernel cannot watch it.
    pub fn add(&self, fd: RawFd, name: usize) -> bool {
        self.control(libc::EPOLL_CTL_ADD, fd, name)
    }

    /// Watches a descriptor, under a name, for being readable once: adds it, or rearms it if it is
    /// in the set already. Returns false where the kernel cannot watch it.
    pub fn watch_once(&self, fd: RawFd, name: usize) -> bool {
        let events = libc::EPOLLIN | libc::EPOLLONESHOT;
        self.control_for(libc::EPOLL_CTL_MOD, fd, name, events)
            || self.control_for(libc::EPOLL_CTL_ADD, fd, name, events)
    }

    /// Removes a descriptor. A closed one is removed by the kernel.
    pub fn remove(&self, fd: RawFd) {
        self.control(libc::EPOLL_CTL_DEL, fd, 0);
    }

    fn control(&self, what: libc::c_int, fd: RawFd, name: usize) -> bool {
        self.control_for(what, fd, name, libc::EPOLLIN)
    }

    fn control_for(&self, what: libc::c_int, fd: RawFd, name: usize, events: libc::c_int) -> bool {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: name as u64,
        };
        // SAFETY: the event is valid; the kernel refuses a descriptor that is none.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &mut event) == 0 }
    }

    /// Returns the names of some descriptors that are readable now.
    pub fn found(&self) -> SmallVec<[usize; FOUND]> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; FOUND];
        // SAFETY: there is room for as many events as are asked for; a timeout of 0 does not wait.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                FOUND as libc::c_int,
                0,
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        events[..count]
            .iter()
            .map(|event| event.u64 as usize)
            .collect()
    }
}

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Returns an entry for waiting on a descriptor; afterwards `revents` says what happened.
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Waits until one of `fds` is ready, at most for `limit`. A signal ends the wait too.
///
/// `ppoll` and not `epoll`: queues come and go with their guests, and so do their descriptors; a
/// list made for every sleep cannot be out of date. It costs some ten nanoseconds for each queue,
/// once per sleep.
pub(crate) fn wait(fds: &mut [libc::pollfd], limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: `fds` is a valid array of its length, `limit` a valid timespec, and no signal mask is
    // given.
    let ready = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            &limit,
            std::ptr::null(),
        )
    };
    if ready < 0 {
        fds.iter_mut().for_each(|fd| fd.revents = 0);
    }
}
