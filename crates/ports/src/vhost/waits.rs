//! Limits for the library's waits on a hypervisor.
//!
//! The library reads messages and writes replies by calls that block, on one thread for all guests, and while it does, whoever deletes
//! the port of that guest waits, too. A hypervisor that sends the head of a message and not the rest, or that leaves its replies unread
//! until no more of them fit into the socket, would hold all of them for as long as it likes. So each connection's socket gets limits:
//! the call fails then, and the library closes the connection.

use std::ffi::c_int;
use std::fs;
use std::mem::{offset_of, size_of, size_of_val};
use std::os::fd::RawFd;
use std::time::Duration;

/// How long the library waits for the rest of a message, or for room for a reply. Hypervisors write messages whole, and read each reply
/// before they ask anything else.
pub(super) const LIMIT: Duration = Duration::from_millis(200);

/// Sets limits for the connections of the port with this socket, of which the library does not tell the descriptors: those of stream sockets
/// that block, have no limits, and are named as ours is or, where we connect, have no name. Returns for how many.
pub(super) fn bound(path: &str) -> usize {
    let Ok(list) = fs::read_dir("/proc/self/fd") else {
        return 0;
    };
    let numbers = list.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.parse::<RawFd>().ok()
    });
    numbers
        .filter(|fd| *fd > libc::STDERR_FILENO && is_connection(*fd, path) && limit(*fd))
        .count()
}

/// Whether a descriptor, which may have been closed meanwhile, is a connection as [`bound`] wants it.
fn is_connection(fd: RawFd, path: &str) -> bool {
    let name = |ask: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut u32) -> c_int| {
        // SAFETY: all zeroes is a valid address.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_un>() as u32;
        // SAFETY: the address is writable for the length given.
        let code = unsafe { ask(fd, (&raw mut address).cast(), &raw mut length) };
        let known = code == 0 && c_int::from(address.sun_family) == libc::AF_UNIX;
        let used = (length as usize).saturating_sub(offset_of!(libc::sockaddr_un, sun_path));
        known.then(|| {
            let bytes = address.sun_path.iter().take(used);
            let bytes = bytes.map(|byte| *byte as u8).take_while(|byte| *byte != 0);
            bytes.collect::<Vec<u8>>()
        })
    };
    let (Some(ours), Some(_)) = (name(libc::getsockname), name(libc::getpeername)) else {
        return false;
    };
    let mut kind: c_int = 0;
    let mut length = size_of_val(&kind) as u32;
    // SAFETY: the number is writable for its length; flags are plain values.
    let (code, flags) = unsafe {
        let kind = (&raw mut kind).cast();
        (
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, kind, &raw mut length),
            libc::fcntl(fd, libc::F_GETFL),
        )
    };
    let blocks = flags >= 0 && flags & libc::O_NONBLOCK == 0;
    code == 0 && kind == libc::SOCK_STREAM && blocks && (ours.is_empty() || ours == path.as_bytes())
}

/// Sets limits where there are none.
fn limit(fd: RawFd) -> bool {
    let time = libc::timeval {
        tv_sec: LIMIT.as_secs() as libc::time_t,
        tv_usec: libc::suseconds_t::from(LIMIT.subsec_micros() as i32),
    };
    [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].iter().all(|option| {
        let value = (&raw const time).cast();
        // SAFETY: the time is readable for its length.
        unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_SOCKET,
                *option,
                value,
                size_of_val(&time) as u32,
            ) == 0
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn connections_of_a_socket_wait_no_longer_than_the_limit() {
        let path = std::env::temp_dir().join(format!("sluice-waits-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let mut peer = UnixStream::connect(&path).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        peer.set_nonblocking(true).unwrap();
        assert!(bound(path.to_str().unwrap()) >= 1);
        assert_eq!(peer.read_timeout().unwrap(), None, "it does not block");
        assert_eq!(accepted.read_timeout().unwrap(), Some(LIMIT));
        assert_eq!(accepted.write_timeout().unwrap(), Some(LIMIT));
        // Half a message.
        peer.write_all(&[1; 12]).unwrap();
        let error = accepted.read_exact(&mut [0; 20]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        // Replies that nobody reads.
        let error = (0..1_000_000).find_map(|_| accepted.write_all(&[2; 20]).err());
        assert_eq!(error.unwrap().kind(), ErrorKind::WouldBlock);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn sockets_with_other_names_are_left_alone() {
        let path = std::env::temp_dir().join(format!("sluice-others-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let _peer = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        bound("/nowhere");
        assert_eq!(accepted.read_timeout().unwrap(), None);
        fs::remove_file(&path).unwrap();
    }
}
