//! Who has a kernel interface: one that is part of something else, or that another switch of this
//! kind has, is no port.
//!
//! Its frames would be carried twice, by both. Of bridges, bonds and the like the kernel tells. A
//! switch says of each interface of its own that it has it, by a Unix socket with an abstract name:
//! such a name is known in one network namespace only, as interfaces are, and goes with the
//! process.

use crate::error::{Error, last_errno};
use crate::link::{LinkState, Links, SharedLinks};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Devices that another one can be part of although all of its frames go on to whoever listens.
const HARMLESS: [&str; 1] = ["vrf"];

/// A port's hold on an interface, until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    _socket: OwnedFd,
}

/// What an interface is part of, in words; none where it is free.
fn master(links: &mut Links, link: &LinkState) -> Option<String> {
    if link.master == 0 {
        return None;
    }
    // One that has just gone, or is in another namespace, cannot be asked for its name.
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
    /// Takes an interface of this thread's network namespace; fails where something else has it.
    pub(crate) fn take(links: &SharedLinks, name: &str, link: &LinkState) -> Result<Hold, Error> {
        let held = |holder| Error::Held {
            name: name.to_owned(),
            holder,
        };
        if let Some(holder) = master(&mut links.lock(), link) {
            return Err(held(holder));
        }
        let address = format!("sluice/interface/{}", link.ifindex);
        let socket = SocketAddr::from_abstract_name(address)
            .and_then(|address| UnixDatagram::bind_addr(&address));
        match socket {
            Ok(socket) => Ok(Hold {
                _socket: socket.into(),
            }),
            Err(error) => match error.raw_os_error().unwrap_or_else(last_errno) {
                libc::EADDRINUSE => Err(held("another switch has it".into())),
                errno => Err(Error::Open {
                    name: name.to_owned(),
                    errno,
                }),
            },
        }
    }
}

/// Whether the interface of this name is there and nothing has it. What cannot be found out is
/// taken for no.
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
        let links = SharedLinks::new().unwrap();
        let link = LinkState {
            ifindex: 0x7fff_fff0,
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
