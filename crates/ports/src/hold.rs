//! Exclusive use of kernel interfaces: one that is part of another device, or that another switch
//! of this kind uses, cannot be a port, because its frames would be forwarded twice.
//!
//! The kernel reports membership in bridges, bonds and the like. A switch takes a lock for each
//! kernel interface that it opens as a `system` port, on one byte of a file; it is released when
//! the process ends. There is one file for each network namespace; its directory belongs to root,
//! so unprivileged users cannot keep interfaces from a switch. A switch that may not open the file
//! uses its interfaces without locks.

use crate::error::Error;
use crate::link::{LinkState, Links, SharedLinks};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

/// Directory of the lock files, for all switches of the machine.
const DIRECTORY: &str = "/run/sluice";

/// Kinds of master devices that leave all frames of their members to other listeners.
const HARMLESS: [&str; 1] = ["vrf"];

/// A port's claim on an interface, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    _locked: Option<File>,
}

/// Opens the lock file of this thread's network namespace.
fn locks() -> io::Result<File> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
    let made = DirBuilder::new().mode(0o755).create(DIRECTORY);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(format!("{DIRECTORY}/interfaces-{namespace}"))
}

/// Locks the byte of an interface; fails with `EAGAIN` if it is locked elsewhere. The lock belongs
/// to the open file, not to the process, so another open file of the same process cannot take it
/// either (fcntl(2), F_OFD_SETLK).
fn lock(file: &File, ifindex: u32) -> io::Result<()> {
    // SAFETY: a `flock` is plain numbers, of which zero is one.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    range.l_start = ifindex.into();
    range.l_len = 1;
    // SAFETY: the descriptor is open, and `range` is read during the call only.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Describes the device that an interface is part of; none if it is free.
fn master(links: &mut Links, link: &LinkState) -> Option<String> {
    if link.master == 0 {
        return None;
    }
    // A master that has just gone, or is in another namespace, has no name here.
    let master = links.by_index(link.master).unwrap_or_default();
    if HARMLESS.contains(&master.kind.as_str()) {
        return None;
    }
    let kind = match master.kind.as_str() {
        "" => "device",
        "bridge" => "Linux bridge",
        "openvswitch" => "Open vSwitch's kernel datapath",
        kind => kind,
    };
    let name = if master.name.is_empty() {
        format!("number {}", link.master)
    } else {
        master.name
    };
    Some(format!("it is part of {kind} {name}"))
}

impl Hold {
    /// Claims an interface of this thread's network namespace; fails if something else uses it.
    pub(crate) fn take(links: &SharedLinks, name: &str, link: &LinkState) -> Result<Hold, Error> {
        let held = |holder| Error::Held {
            name: name.to_owned(),
            holder,
        };
        if let Some(holder) = master(&mut links.lock(), link) {
            return Err(held(holder));
        }
        let locked = locks().and_then(|file| lock(&file, link.ifindex).map(|()| file));
        match locked {
            Ok(file) => Ok(Hold {
                _locked: Some(file),
            }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(held("another switch has it".into()))
            }
            Err(error) => {
                tracing::debug!(target: "netdev", "{name}: not locked against other switches: {error}");
                Ok(Hold { _locked: None })
            }
        }
    }
}

/// Returns whether the interface exists and nothing uses it; false if that cannot be found out.
pub fn is_free(name: &str) -> bool {
    let Ok(links) = SharedLinks::new() else {
        return false;
    };
    let link = links.lock().by_name(name);
    link.is_ok_and(|link| Hold::take(&links, name, &link).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_had_once() {
        if locks().is_err() {
            return; // without privileges there are no locks, only what the kernel reports
        }
        let links = SharedLinks::new().unwrap();
        let link = LinkState {
            // An index that neither an interface nor another run of this test has.
            ifindex: 0x4000_0000 + std::process::id(),
            ..LinkState::default()
        };
        let first = Hold::take(&links, "x", &link).unwrap();
        let error = Hold::take(&links, "x", &link).unwrap_err();
        assert!(error.to_string().ends_with(": another switch has it"));
        drop(first);
        Hold::take(&links, "x", &link).unwrap();
        let part = LinkState {
            master: 0x7fff_fff1,
            ..link
        };
        let error = Hold::take(&links, "x", &part).unwrap_err().to_string();
        assert!(error.contains("number 2147483633"), "{error}");
        assert!(!is_free("nosuchdevice"));
    }
}
