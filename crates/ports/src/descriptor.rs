//! A descriptor whose device the control thread can close while workers still use the descriptor.

use crate::background;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A descriptor that can be shut. The number stays valid until the last user drops this; the device
/// behind it may be closed earlier.
pub(crate) struct Descriptor {
    fd: OwnedFd,
    closed: AtomicBool,
}

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd) -> Descriptor {
        Descriptor {
            fd,
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns the descriptor.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns the descriptor, for the only owner of this.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Returns whether it has been shut, so that nothing can be received or sent.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Closes the device at once. The number then refers to a socket on which nothing ever arrives
    /// and nothing can be sent, so a worker that waits on it sleeps, and one that is just about to
    /// use it does no harm.
    pub(crate) fn shut(&self) {
        self.put_dead_in_place();
    }

    /// Shuts it as [`Descriptor::shut`] does, but leaves closing the slow socket itself to a
    /// background thread.
    pub(crate) fn shut_slowly(&self) {
        // Keep the socket open under another number.
        let kept = self.fd.try_clone();
        self.put_dead_in_place();
        if let Ok(kept) = kept {
            background::later(kept);
        }
    }

    fn put_dead_in_place(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(dead) = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None) else {
            tracing::warn!(
                "no descriptor left: a device goes only with the last worker that holds it"
            );
            return;
        };
        // SAFETY: plain values. Both descriptors are open; that of self stays so and stays its own.
        unsafe { libc::dup3(dead.as_raw_fd(), self.fd.as_raw_fd(), libc::O_CLOEXEC) };
    }
}
