//! A descriptor that the control thread can take away from workers that are still using it.

use crate::background;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// See the module. The number stays valid until the last user drops this; what it refers to may go
/// earlier.
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

    /// What it refers to.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The descriptor, of whoever held this alone.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Whether it has been shut: nothing more comes or goes.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Lets go of the device, now. The number then refers to a socket on which nothing ever arrives
    /// and nothing can be sent, so a worker that waits on it sleeps and one that is just about
    /// to use it does no harm.
    pub(crate) fn shut(&self) {
        self.put_dead_in_place();
    }

    /// As [`Descriptor::shut`]; the socket itself is closed a little later, by a thread that has
    /// time to.
    pub(crate) fn shut_slowly(&self) {
        // Another number for it, so that it does not go with this one.
        let kept = self.fd.try_clone();
        self.put_dead_in_place();
        if let Ok(kept) = kept {
            background::later(kept);
        }
    }

    fn put_dead_in_place(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // SAFETY: plain values.
        let dead = unsafe {
            libc::socket(
                libc::AF_UNIX,
                libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if dead < 0 {
            tracing::warn!(
                "no descriptor left: a device goes only with the last worker that holds it"
            );
            return;
        }
        // SAFETY: `dead` was just made and is owned by nobody else; the other number is owned by
        // self and stays open.
        unsafe {
            let dead = OwnedFd::from_raw_fd(dead);
            libc::dup3(dead.as_raw_fd(), self.fd.as_raw_fd(), libc::O_CLOEXEC);
        }
    }
}
