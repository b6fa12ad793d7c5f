//! Kernel network interfaces: asking about them by rtnetlink, changing them by ioctl.
//!
//! Only what a switch needs of one interface at a time. The sockets belong to the network namespace in which they were made.

use crate::Mac;
use crate::error::last_errno;
use std::ffi::{CStr, c_char};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Longest interface name, without the zero at its end.
const MAX_NAME: usize = libc::IFNAMSIZ - 1;

/// Replies to other questions that are skipped before giving up.
const MAX_SKIPPED: usize = 16;

/// What the kernel says about an interface.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    pub ifindex: u32,
    /// `ARPHRD_*`.
    pub hardware: u16,
    /// `IFF_*`.
    pub flags: u32,
    pub mtu: u32,
    pub mac: Mac,
    pub carrier: bool,
    pub carrier_changes: u32,
    /// `struct rtnl_link_stats64`, as many of its counters as the kernel has.
    pub counters: Vec<u64>,
}

impl LinkState {
    pub(crate) fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    /// Whether frames get through: a device that is down carries nothing, although a TAP keeps its carrier then.
    pub(crate) fn has_link(&self) -> bool {
        self.carrier && self.is_up()
    }

    /// The counters by the names of `Interface.statistics`; `reversed` for devices whose kernel side is the other end.
    pub(crate) fn statistics(&self, reversed: bool) -> Vec<(String, u64)> {
        // Order of `struct rtnl_link_stats64`. What a reversed device's other end cannot have is zero, as Open vSwitch shows it.
        const NAMES: [(&str, &str); 16] = [
            ("rx_packets", "tx_packets"),
            ("tx_packets", "rx_packets"),
            ("rx_bytes", "tx_bytes"),
            ("tx_bytes", "rx_bytes"),
            ("rx_errors", "tx_errors"),
            ("tx_errors", "rx_errors"),
            ("rx_dropped", "tx_dropped"),
            ("tx_dropped", "rx_dropped"),
            ("rx_multicast_packets", "rx_multicast_packets"),
            ("collisions", "collisions"),
            ("", ""),
            ("rx_over_err", ""),
            ("rx_crc_err", ""),
            ("rx_frame_err", ""),
            ("", ""),
            ("rx_missed_errors", ""),
        ];
        NAMES
            .iter()
            .zip(&self.counters)
            .filter(|((name, _), _)| !name.is_empty())
            .map(
                |((name, other), value)| match (reversed, other.is_empty()) {
                    (false, _) => (name.to_string(), *value),
                    (true, false) => (other.to_string(), *value),
                    (true, true) => (name.to_string(), 0),
                },
            )
            .collect()
    }
}

/// Counts how often an interface's link came or went.
///
/// The kernel counts changes of the carrier, also those between two looks, but a TAP keeps its carrier while it is set down
/// and up; so what was seen counts where the kernel has counted less.
#[derive(Debug)]
pub(crate) struct LinkWatch {
    changes: u32,
    up: bool,
    resets: u64,
}

impl LinkWatch {
    pub(crate) fn new(link: &LinkState) -> LinkWatch {
        LinkWatch {
            changes: link.carrier_changes,
            up: link.has_link(),
            resets: 0,
        }
    }

    /// How many changes there were, now that the interface is as `link` says.
    pub(crate) fn look(&mut self, link: &LinkState) -> u64 {
        let counted = link.carrier_changes.wrapping_sub(self.changes);
        let seen = u32::from(self.up != link.has_link());
        self.resets += u64::from(counted.max(seen));
        self.changes = link.carrier_changes;
        self.up = link.has_link();
        self.resets
    }
}

/// What a driver says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Driver {
    pub name: String,
    pub version: String,
    pub firmware: String,
}

/// Sockets to ask and change interfaces with. Errors are the system's numbers.
pub(crate) struct Links {
    route: OwnedFd,
    control: OwnedFd,
    sequence: u32,
}

fn socket(domain: i32, kind: i32, protocol: i32) -> Result<OwnedFd, i32> {
    // SAFETY: plain values.
    let fd = unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the descriptor was just made and is owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets a socket option of any plain type.
pub(crate) fn set_option<T>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> Result<(), i32> {
    // SAFETY: the value is readable for its size.
    let code = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            std::mem::size_of::<T>() as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Whether the kernel takes `name` for a new interface, as it is.
pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name != "."
        && name != ".."
        && !name
            .bytes()
            .any(|byte| byte <= b' ' || matches!(byte, b'/' | b':' | b'%' | 0x7f))
}

impl Links {
    pub(crate) fn new() -> Result<Links, i32> {
        let route = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        let limit = libc::timeval {
            tv_sec: 1,
            tv_usec: 0,
        };
        set_option(&route, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit)?;
        Ok(Links {
            route,
            control: socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?,
            sequence: 0,
        })
    }

    /// Looks an interface up by name. `ENODEV` when there is none.
    pub(crate) fn by_name(&mut self, name: &str) -> Result<LinkState, i32> {
        if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
            return Err(libc::ENODEV);
        }
        let mut attribute = Vec::new();
        attribute.extend((4 + name.len() as u16 + 1).to_ne_bytes());
        attribute.extend(libc::IFLA_IFNAME.to_ne_bytes());
        attribute.extend(name.as_bytes());
        attribute.resize((attribute.len() + 1).next_multiple_of(4), 0);
        self.ask(0, &attribute)
    }

    /// Looks an interface up by index. `ENODEV` when there is none.
    pub(crate) fn by_index(&mut self, ifindex: u32) -> Result<LinkState, i32> {
        self.ask(ifindex, &[])
    }

    fn ask(&mut self, ifindex: u32, attributes: &[u8]) -> Result<LinkState, i32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::with_capacity(64);
        request.extend((32 + attributes.len() as u32).to_ne_bytes());
        request.extend(libc::RTM_GETLINK.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend([0; 4]);
        request.extend(ifindex.to_ne_bytes());
        request.extend([0; 8]);
        request.extend(attributes);
        let fd = self.route.as_raw_fd();
        // SAFETY: the request is readable for its length.
        let sent = unsafe { libc::send(fd, request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 {
            return Err(last_errno());
        }
        let mut reply = vec![0u8; 32 * 1024];
        for _ in 0..MAX_SKIPPED {
            // SAFETY: the buffer is writable for its length.
            let got = unsafe { libc::recv(fd, reply.as_mut_ptr().cast(), reply.len(), 0) };
            if got < 0 {
                match last_errno() {
                    libc::EINTR => continue,
                    errno => return Err(errno),
                }
            }
            if let Some(answer) = read_reply(&reply[..got as usize], self.sequence) {
                return answer;
            }
        }
        Err(libc::ETIMEDOUT)
    }

    /// Sets the interface up or down.
    pub(crate) fn set_up(&self, name: &str, up: bool) -> Result<(), i32> {
        let mut request = request(name)?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel filled in the flags.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        let wanted = if up {
            flags | libc::IFF_UP
        } else {
            flags & !libc::IFF_UP
        };
        if wanted == flags {
            return Ok(());
        }
        request.ifr_ifru.ifru_flags = wanted as libc::c_short;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    pub(crate) fn set_mtu(&self, name: &str, mtu: u16) -> Result<(), i32> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_mtu = i32::from(mtu);
        self.ioctl(libc::SIOCSIFMTU, &mut request)
    }

    pub(crate) fn set_mac(&self, name: &str, mac: Mac) -> Result<(), i32> {
        let mut request = request(name)?;
        let mut address = libc::sockaddr {
            sa_family: libc::ARPHRD_ETHER,
            sa_data: [0; 14],
        };
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as c_char;
        }
        request.ifr_ifru.ifru_hwaddr = address;
        self.ioctl(libc::SIOCSIFHWADDR, &mut request)
    }

    /// Bits per second (0 when unknown) and whether both directions at once (None when unknown).
    pub(crate) fn speed(&self, name: &str) -> (u64, Option<bool>) {
        let mut command = [0u8; 44];
        command[..4].copy_from_slice(&1u32.to_ne_bytes()); // ETHTOOL_GSET
        if self.ethtool(name, &mut command).is_err() {
            return (0, None);
        }
        let low = u16::from_ne_bytes([command[12], command[13]]);
        let high = u16::from_ne_bytes([command[28], command[29]]);
        let megabits = u32::from(high) << 16 | u32::from(low);
        let speed = match megabits {
            0 | 0xffff | u32::MAX => 0,
            megabits => u64::from(megabits) * 1_000_000,
        };
        let duplex = match command[14] {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        (speed, duplex)
    }

    /// What the driver says about itself, if it does.
    pub(crate) fn driver(&self, name: &str) -> Option<Driver> {
        let mut command = [0u8; 196];
        command[..4].copy_from_slice(&3u32.to_ne_bytes()); // ETHTOOL_GDRVINFO
        self.ethtool(name, &mut command).ok()?;
        let text = |at: usize| {
            CStr::from_bytes_until_nul(&command[at..at + 32])
                .map(|text| text.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Some(Driver {
            name: text(4),
            version: text(36),
            firmware: text(68),
        })
    }

    fn ethtool(&self, name: &str, command: &mut [u8]) -> Result<(), i32> {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
        self.ioctl(libc::SIOCETHTOOL as libc::c_ulong, &mut request)
    }

    fn ioctl(&self, number: libc::c_ulong, request: &mut libc::ifreq) -> Result<(), i32> {
        // SAFETY: the request is a whole ifreq; where it points to data, the data is as large as its command says.
        let code = unsafe {
            libc::ioctl(
                self.control.as_raw_fd(),
                number,
                std::ptr::from_mut(request),
            )
        };
        if code < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

/// An `ifreq` about `name`. `ENODEV` when that cannot be an interface's name.
pub(crate) fn request(name: &str) -> Result<libc::ifreq, i32> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
        return Err(libc::ENODEV);
    }
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
    Ok(request)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The answer to request `sequence` in a datagram, if it is there.
fn read_reply(mut datagram: &[u8], sequence: u32) -> Option<Result<LinkState, i32>> {
    while let (Some(length), Some(kind), Some(number)) = (
        u32_at(datagram, 0),
        u16_at(datagram, 4),
        u32_at(datagram, 8),
    ) {
        let message = datagram.get(16..length as usize)?;
        if number == sequence {
            if kind == libc::NLMSG_ERROR as u16 {
                let code = u32_at(message, 0)? as i32;
                return Some(Err(if code == 0 { libc::EPROTO } else { -code }));
            }
            if kind == libc::RTM_NEWLINK {
                return Some(read_link(message).ok_or(libc::EPROTO));
            }
        }
        let aligned = (length as usize).next_multiple_of(4);
        datagram = datagram.get(aligned..)?;
    }
    None
}

fn read_link(message: &[u8]) -> Option<LinkState> {
    let mut link = LinkState {
        hardware: u16_at(message, 2)?,
        ifindex: u32_at(message, 4)?,
        flags: u32_at(message, 8)?,
        ..LinkState::default()
    };
    link.carrier = link.flags & libc::IFF_RUNNING as u32 != 0;
    let mut rest = message.get(16..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let Some(value) = rest.get(4..usize::from(length)) else {
            break;
        };
        match kind & 0x3fff {
            libc::IFLA_ADDRESS if value.len() == 6 => link.mac.copy_from_slice(value),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            libc::IFLA_CARRIER => link.carrier = value.first() == Some(&1),
            libc::IFLA_CARRIER_CHANGES => link.carrier_changes = u32_at(value, 0)?,
            libc::IFLA_STATS64 => {
                link.counters = value
                    .chunks_exact(8)
                    .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
                    .collect();
            }
            _ => {}
        }
        rest = rest
            .get(usize::from(length).next_multiple_of(4)..)
            .unwrap_or_default();
    }
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_by_name_and_by_index() {
        let mut links = Links::new().unwrap();
        let named = links.by_name("lo").unwrap();
        assert_eq!(named.hardware, libc::ARPHRD_LOOPBACK);
        assert!(named.mtu > 0 && named.counters.len() >= 14);
        let indexed = links.by_index(named.ifindex).unwrap();
        assert_eq!(indexed.mtu, named.mtu);
        assert_eq!(links.by_name("nosuchdevice").unwrap_err(), libc::ENODEV);
        assert_eq!(
            links.by_name("a name that is too long").unwrap_err(),
            libc::ENODEV
        );
        assert_eq!(links.by_index(999_999).unwrap_err(), libc::ENODEV);
    }

    #[test]
    fn a_link_that_is_down_has_no_link_and_its_changes_count() {
        let state = |up: bool, carrier, carrier_changes| LinkState {
            flags: if up { libc::IFF_UP as u32 } else { 0 },
            carrier,
            carrier_changes,
            ..LinkState::default()
        };
        assert!(!state(false, true, 0).has_link() && !state(true, false, 0).has_link());
        let mut watch = LinkWatch::new(&state(false, true, 3));
        assert_eq!(watch.look(&state(false, true, 3)), 0);
        // A TAP that is set up.
        assert_eq!(watch.look(&state(true, true, 3)), 1);
        // A veth that went and came between two looks, and then went.
        assert_eq!(watch.look(&state(true, true, 5)), 3);
        assert_eq!(watch.look(&state(false, false, 6)), 4);
    }

    #[test]
    fn counters_have_open_vswitchs_names() {
        let link = LinkState {
            counters: (100..124).collect(),
            ..LinkState::default()
        };
        let value = |reversed: bool, wanted: &str| {
            let all = link.statistics(reversed);
            assert_eq!(all.len(), 14);
            all.into_iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value)
        };
        assert_eq!(value(false, "rx_packets"), Some(100));
        assert_eq!(value(true, "tx_packets"), Some(100));
        assert_eq!(value(false, "rx_frame_err"), Some(113));
        assert_eq!(value(true, "rx_frame_err"), Some(0));
        assert_eq!(value(false, "rx_missed_errors"), Some(115));
        assert_eq!(value(true, "rx_multicast_packets"), Some(108));
    }

    #[test]
    fn lying_replies_are_not_believed() {
        assert!(read_reply(&[], 1).is_none());
        let mut message = vec![0u8; 20];
        message[0] = 200;
        message[8] = 1;
        assert!(read_reply(&message, 1).is_none());
        message[0] = 0;
        assert!(read_reply(&message, 1).is_none());
        message[0] = 20;
        message[4] = libc::RTM_NEWLINK as u8;
        assert_eq!(read_reply(&message, 1).unwrap().unwrap_err(), libc::EPROTO);
    }

    #[test]
    fn names_are_checked() {
        assert!(is_name("br0") && is_name("fifteen-letters"));
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "a b",
            "tap%d",
            "sixteen-letters!",
            "a:1",
        ] {
            assert!(!is_name(name), "{name}");
        }
    }
}
