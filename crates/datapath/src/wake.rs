//! Sleeping until a descriptor is ready, and being woken by another thread.

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use smallvec::SmallVec;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// An event counter of the kernel (eventfd(2)): raised by one thread, waited for by another.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub fn new() -> io::Result<Wake> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Wake(eventfd(0, flags)?))
    }

    /// Makes the descriptor readable until it is cleared.
    pub fn raise(&self) {
        // A full counter (EAGAIN) is as good as raised.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub fn clear(&self) {
        // Nothing to read (EAGAIN) is as good as cleared.
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
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
        Ok(Watched(epoll::create(epoll::CreateFlags::CLOEXEC)?))
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
        let mut events = [MaybeUninit::uninit(); FOUND];
        // Does not wait.
        let found = epoll::wait(&self.0, &mut events, Some(&Timespec::default()));
        let found = found.map_or(&mut [][..], |(found, _)| found);
        found
            .iter()
            .map(|event| event.data.u64() as usize)
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
