//! Sleeping until a descriptor is ready, and being woken by another thread.

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

    /// Makes it unreadable.
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

/// A descriptor to wait for; afterwards `revents` says what happened.
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Waits until one of `fds` is ready, for `limit` at most. A signal ends the wait too.
///
/// `ppoll` and not `epoll`: queues come and go with their guests, so do their descriptors, and a list made anew for every sleep cannot be out of date. It
/// costs some ten nanoseconds for each queue, once per sleep.
pub(crate) fn wait(fds: &mut [libc::pollfd], limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: `fds` is a valid array of its length, `limit` a valid timespec, and no signal mask is given.
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
