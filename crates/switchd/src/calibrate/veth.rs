//! Kernel interfaces in a network namespace of this process's own: the kernel removes them when the
//! process ends, however it ends.

use super::pump::Peer;
use libc::{c_int, c_void};
use std::ffi::CString;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Frames sent by one system call.
const TOGETHER: usize = 64;

/// Moves the calling thread into a new network namespace, which takes root. To be called before
/// there are other threads. Returns false if that fails.
pub(super) fn enter_namespace() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

/// Opens a socket that sends raw frames.
fn socket() -> Result<OwnedFd> {
    // SAFETY: plain values.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    match fd {
        ..0 => Err(Error::last_os_error()),
        // SAFETY: just made, owned by nobody else.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// The end that sends: the other one of a pair, or the host's of a TAP device. It drops what it
/// receives, because no address is configured there.
pub(super) struct Sender {
    socket: OwnedFd,
    frames: Vec<Vec<u8>>,
    next: usize,
}

impl Sender {
    /// Makes a pair of interfaces with these names, both up; the second sends `frames` over and
    /// over.
    pub(super) fn of_pair(names: [&str; 2], frames: Vec<Vec<u8>>) -> Result<Sender> {
        ports::make_veth(names).map_err(Error::from_raw_os_error)?;
        Sender::on(names[1], frames)
    }

    /// Sends `frames` over and over on the interface of this name.
    pub(super) fn on(name: &str, frames: Vec<Vec<u8>>) -> Result<Sender> {
        let socket = socket()?;
        let name = CString::new(name)?;
        // SAFETY: all zeroes is a valid address, the name ends with a zero, and the address is
        // readable for its size.
        let bound = unsafe {
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as c_int;
            libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        match bound {
            0 => Ok(Sender {
                socket,
                frames,
                next: 0,
            }),
            _ => Err(Error::last_os_error()),
        }
    }
}

impl Peer for Sender {
    fn send(&mut self, count: usize) -> usize {
        let count = count.min(TOGETHER);
        let mut parts: Vec<libc::iovec> = (0..count)
            .map(|index| {
                let frame = &self.frames[(self.next + index) % self.frames.len()];
                libc::iovec {
                    iov_base: frame.as_ptr().cast_mut().cast::<c_void>(),
                    iov_len: frame.len(),
                }
            })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: all zeroes is a valid message header.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
                message
            })
            .collect();
        // SAFETY: the headers point at parts, and these at frames, that live until the call
        // returns.
        let sent = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT,
            )
        };
        let sent = usize::try_from(sent).unwrap_or(0);
        self.next = (self.next + sent) % self.frames.len();
        sent
    }

    fn take(&mut self, sent: u64) -> u64 {
        // The kernel's stack has dropped them already.
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns, for each name, whether such an interface exists in this thread's namespace.
    fn are_there(names: [&str; 2]) -> [bool; 2] {
        names.map(|name| {
            let name = CString::new(name).unwrap();
            // SAFETY: the name ends with a zero.
            unsafe { libc::if_nametoindex(name.as_ptr()) > 0 }
        })
    }

    #[test]
    fn a_pair_carries_frames_and_goes_with_its_namespace() {
        let names = ["sluice-cal0", "sluice-cal1"];
        let made = std::thread::spawn(move || {
            // Applies to this test's thread only; other tests keep their namespace.
            if !enter_namespace() {
                return false;
            }
            let mut pair = Sender::of_pair(names, vec![vec![0xff; 60], vec![1; 1514]]).unwrap();
            assert_eq!(are_there(names), [true, true]);
            assert_eq!(pair.send(3), 3);
            assert_eq!(pair.send(1000), TOGETHER);
            assert_eq!(pair.take(9), 9);
            let again = Sender::of_pair(names, Vec::new()).err().unwrap();
            assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
            true
        });
        let made = made.join().unwrap();
        assert!(made || !rustix::process::geteuid().is_root(), "root may");
        assert_eq!(are_there(names), [false, false]);
    }
}
