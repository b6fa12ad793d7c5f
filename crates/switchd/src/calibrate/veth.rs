//! A veth pair in a network namespace of this process's own: the kernel takes both with the
//! process, however that ends.

use super::pump::Peer;
use libc::{c_int, c_void};
use std::ffi::CString;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

// linux/if_link.h, linux/veth.h
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

/// Frames that are sent with one system call.
const TOGETHER: usize = 64;

/// Enters a network namespace of its own, which takes root. To be called before there are other
/// threads. False where it cannot be.
pub(super) fn enter_namespace() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

/// Appends an attribute of netlink's with what `fill` puts into it.
fn attribute(message: &mut Vec<u8>, kind: u16, fill: impl FnOnce(&mut Vec<u8>)) {
    let at = message.len();
    message.extend([0; 2]);
    message.extend(kind.to_ne_bytes());
    fill(message);
    let length = (message.len() - at) as u16;
    message[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    message.resize(message.len().next_multiple_of(4), 0);
}

/// The request that makes a pair of interfaces.
fn request(names: [&str; 2]) -> Vec<u8> {
    let name = |message: &mut Vec<u8>, name: &str| {
        attribute(message, libc::IFLA_IFNAME, |message| {
            message.extend(name.as_bytes());
            message.push(0);
        });
    };
    let info = [0; size_of::<libc::ifinfomsg>()];
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut message = vec![0; 4];
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend((flags as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(info);
    name(&mut message, names[0]);
    attribute(&mut message, libc::IFLA_LINKINFO, |message| {
        attribute(message, IFLA_INFO_KIND, |message| message.extend(b"veth"));
        attribute(message, IFLA_INFO_DATA, |message| {
            attribute(message, VETH_INFO_PEER, |message| {
                message.extend(info);
                name(message, names[1]);
            });
        });
    });
    let length = message.len() as u32;
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message
}

fn socket(domain: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd> {
    // SAFETY: plain values.
    let fd = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) };
    match fd {
        ..0 => Err(Error::last_os_error()),
        // SAFETY: just made, owned by nobody else.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

/// Makes a pair of interfaces.
fn make(names: [&str; 2]) -> Result<()> {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let message = request(names);
    let mut reply = [0_u8; 1024];
    // SAFETY: both buffers live until the calls return, which write no more than they hold. The
    // kernel answers such a request before the first call returns.
    let got = unsafe {
        let sent = libc::send(
            socket.as_raw_fd(),
            message.as_ptr().cast(),
            message.len(),
            0,
        );
        match sent {
            ..0 => sent,
            _ => libc::recv(
                socket.as_raw_fd(),
                reply.as_mut_ptr().cast(),
                reply.len(),
                libc::MSG_DONTWAIT,
            ),
        }
    };
    if got < 0 {
        return Err(Error::last_os_error());
    }
    // A header of 16 bytes, then 0 or an error's number with its sign turned.
    let code = reply[..got as usize]
        .get(16..20)
        .and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(Error::from_raw_os_error(-code)),
        None => Err(Error::other("the kernel's answer is too short")),
    }
}

/// Sets an interface up.
fn set_up(name: &str) -> Result<()> {
    // Of itself the kernel would say something on new interfaces.
    let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: all zeroes is a valid request.
    let mut asked: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in asked.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    asked.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
    // SAFETY: the request is read and written for its size.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &mut asked) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// The end that sends, and drops what it gets: nobody there has an address.
pub(super) struct Pair {
    socket: OwnedFd,
    frames: Vec<Vec<u8>>,
    next: usize,
}

impl Pair {
    /// Makes a pair of these names, both up; the second sends these frames without end.
    pub(super) fn new(names: [&str; 2], frames: Vec<Vec<u8>>) -> Result<Pair> {
        make(names)?;
        for name in names {
            set_up(name)?;
        }
        let socket = socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
        let name = CString::new(names[1])?;
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
            0 => Ok(Pair {
                socket,
                frames,
                next: 0,
            }),
            _ => Err(Error::last_os_error()),
        }
    }
}

impl Peer for Pair {
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
        // The stack has dropped them.
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_long_as_it_says_and_so_are_its_attributes() {
        let message = request(["a", "peer-b"]);
        let word = |at: usize| usize::from(u16::from_ne_bytes([message[at], message[at + 1]]));
        assert_eq!(word(0), message.len());
        // Behind both heads: a name, and what kind of interface.
        let name = 16 + size_of::<libc::ifinfomsg>();
        assert_eq!(
            (word(name), message[name + 4], message[name + 5]),
            (6, b'a', 0)
        );
        let info = name + 8;
        assert_eq!(word(info), message.len() - info);
        assert_eq!(&message[info + 8..info + 12], b"veth");
    }

    /// Whether interfaces are there, in this thread's namespace.
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
            // Of a thread alone: others of the tests stay where they are.
            if !enter_namespace() {
                return false;
            }
            let mut pair = Pair::new(names, vec![vec![0xff; 60], vec![1; 1514]]).unwrap();
            assert_eq!(are_there(names), [true, true]);
            assert_eq!(pair.send(3), 3);
            assert_eq!(pair.send(1000), TOGETHER);
            assert_eq!(pair.take(9), 9);
            let again = Pair::new(names, Vec::new()).err().unwrap();
            assert_eq!(again.raw_os_error(), Some(libc::EEXIST));
            true
        });
        let made = made.join().unwrap();
        // SAFETY: takes no pointers.
        assert!(made || unsafe { libc::geteuid() } != 0, "root may");
        assert_eq!(are_there(names), [false, false]);
    }
}
