//! Kernel network interfaces: read by rtnetlink, changed by ioctl.
//!
//! Contains only what a switch needs of one interface at a time, and reports of changes of any
//! interface ([`LinkEvents`]). A socket belongs to the network namespace in which it was opened;
//! interfaces of another namespace are read by the number that the kernel gives that one here.

use crate::Mac;
use crate::error::last_errno;
use crate::interface::Found;
use crate::namespace::Namespace;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Longest interface name, without the terminating zero.
const MAX_NAME: usize = libc::IFNAMSIZ - 1;

/// Most replies to other requests that are skipped.
const MAX_SKIPPED: usize = 16;

/// Buffer size for a datagram of rtnetlink; the kernel's are shorter.
pub(crate) const DATAGRAM: usize = 32 * 1024;

// linux/if_link.h, linux/net_namespace.h, linux/rtnetlink.h
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TARGET_NETNSID: u16 = 46;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
pub(crate) const RTA_DST: u16 = 1;
pub(crate) const RTA_OIF: u16 = 4;
pub(crate) const RTA_GATEWAY: u16 = 5;
pub(crate) const RTN_UNICAST: u8 = 1;
// linux/veth.h
const VETH_INFO_PEER: u16 = 1;
// linux/if_arp.h
const ATF_COM: i32 = 2;

/// State of an interface, as the kernel reports it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    pub name: String,
    pub ifindex: u32,
    /// `ARPHRD_*`.
    pub hardware: u16,
    /// `IFF_*`.
    pub flags: u32,
    pub mtu: u32,
    pub mac: Mac,
    pub carrier: bool,
    pub carrier_changes: u32,
    /// The index of its master device, such as a bridge; 0 if it has none.
    pub master: u32,
    /// The kind of device, such as `bridge`; empty if the kernel does not say.
    pub kind: String,
    /// Counters in the order of `struct rtnl_link_stats64`, as many as the kernel has.
    pub counters: Vec<u64>,
}

impl LinkState {
    pub(crate) fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u32 != 0
    }

    pub(crate) fn is_promiscuous(&self) -> bool {
        self.flags & libc::IFF_PROMISC as u32 != 0
    }

    /// Returns whether frames get through: a device that is down carries nothing, although a TAP
    /// still has a carrier then.
    pub(crate) fn has_link(&self) -> bool {
        self.carrier && self.is_up()
    }

    /// Returns the counters by the names of `Interface.statistics`; `reversed` for devices whose
    /// kernel side is the other end.
    pub(crate) fn statistics(&self, reversed: bool) -> Vec<(String, u64)> {
        // Order of `struct rtnl_link_stats64`. Counters that the other end of a reversed device
        // cannot have are zero, as in Open vSwitch.
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

/// The next hop to an address, by the routes and neighbours of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The device for outgoing packets.
    pub device: String,
    /// The gateway, or the address itself if it is on the device's link.
    pub address: Ipv4Addr,
    /// Its MAC address; None while unknown.
    pub mac: Option<Mac>,
}

/// Asks the kernel for the next hop to an address. The error is an `errno`: `ENXIO` for an address
/// of this machine, to which no packets leave.
pub fn next_hop(destination: Ipv4Addr) -> Result<NextHop, i32> {
    let links = SharedLinks::new()?;
    let mut links = links.lock();
    let (ifindex, gateway) = links.route(destination)?;
    let device = links.by_index(ifindex)?.name;
    let address = gateway.unwrap_or(destination);
    let mac = links.neighbour(&device, address)?;
    Ok(NextHop {
        device,
        address,
        mac,
    })
}

/// Makes a veth pair in this thread's network namespace and sets both ends up. IPv6 is disabled, so
/// that the kernel sends nothing on its own. The error is an `errno`.
pub fn make_veth(names: [&str; 2]) -> Result<(), i32> {
    let links = SharedLinks::new()?;
    let mut links = links.lock();
    let body = [0; size_of::<libc::ifinfomsg>()];
    let mut peer = body.to_vec();
    peer.extend(name_attribute(names[1])?);
    let mut data = Vec::new();
    push_attribute(&mut data, VETH_INFO_PEER, &peer);
    let mut info = Vec::new();
    push_attribute(&mut info, IFLA_INFO_KIND, b"veth");
    push_attribute(&mut info, IFLA_INFO_DATA, &data);
    let mut attributes = name_attribute(names[0])?;
    push_attribute(&mut attributes, libc::IFLA_LINKINFO, &info);
    let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    links.transact(libc::RTM_NEWLINK, flags, &body, &attributes)?;
    for name in names {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        links.set_up(name, true)?;
    }
    Ok(())
}

/// Counts how many times an interface's link came or went.
///
/// The kernel counts changes of the carrier, even between two readings, but a TAP keeps its carrier
/// while it is set down and up; so observed changes count if the kernel has counted fewer.
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

    /// Returns the number of changes, given the present state `link`.
    pub(crate) fn look(&mut self, link: &LinkState) -> u64 {
        let counted = link.carrier_changes.wrapping_sub(self.changes);
        let seen = u32::from(self.up != link.has_link());
        self.resets += u64::from(counted.max(seen));
        self.changes = link.carrier_changes;
        self.up = link.has_link();
        self.resets
    }
}

/// A driver's description of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Driver {
    pub name: String,
    pub version: String,
    pub firmware: String,
}

/// Sockets to read and change interfaces with. Errors are `errno` values.
pub(crate) struct Links {
    route: OwnedFd,
    control: OwnedFd,
    sequence: u32,
    reply: Vec<u8>,
    /// The network namespace in which they were opened.
    home: Namespace,
}

/// [`Links`] shared by several ports, so that 1,000 ports need no 2,000 sockets.
#[derive(Clone)]
pub(crate) struct SharedLinks(Arc<Shared>);

struct Shared {
    /// Who asks about an interface has them until the kernel answers.
    links: Mutex<Links>,
    /// Where they were made; nobody waits for that.
    home: Namespace,
}

impl SharedLinks {
    /// Returns those of this thread, and so of its network namespace; opens them if there are none.
    pub(crate) fn new() -> Result<SharedLinks, i32> {
        thread_local! {
            static LAST: RefCell<Weak<Shared>> = const { RefCell::new(Weak::new()) };
        }
        let last = LAST.with_borrow(Weak::upgrade);
        if let Some(last) = last
            && Namespace::here().is_ok_and(|here| last.home == here)
        {
            return Ok(SharedLinks(last));
        }
        let shared = Arc::new(Shared {
            links: Mutex::new(Links::new()?),
            home: Namespace::here()?,
        });
        LAST.set(Arc::downgrade(&shared));
        Ok(SharedLinks(shared))
    }

    /// Locks them, for a request or two.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Links> {
        self.0
            .links
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The network namespace that they belong to.
    pub(crate) fn home(&self) -> Namespace {
        self.0.home
    }

    /// Speed and duplex of an interface, where it is in this namespace.
    pub(crate) fn speed_of(&self, found: &Found) -> Option<(u64, Option<bool>)> {
        (found.elsewhere.is_none()).then(|| self.lock().speed(&found.link.name))
    }
}

fn socket(family: AddressFamily, kind: SocketType, flags: SocketFlags) -> Result<OwnedFd, i32> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(family, kind, flags, None).map_err(Errno::raw_os_error)
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

/// Returns whether the kernel accepts `name` for a new interface unchanged.
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
        // NETLINK_ROUTE is the first protocol.
        let none = SocketFlags::empty();
        let route = socket(AddressFamily::NETLINK, SocketType::RAW, none)?;
        let limit = libc::timeval {
            tv_sec: 1,
            tv_usec: 0,
        };
        set_option(&route, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &limit)?;
        Ok(Links {
            route,
            control: socket(AddressFamily::INET, SocketType::DGRAM, none)?,
            sequence: 0,
            reply: vec![0; DATAGRAM],
            home: Namespace::here()?,
        })
    }

    /// Returns the network namespace that they belong to.
    pub(crate) fn home(&self) -> Namespace {
        self.home
    }

    /// Looks an interface up by name. `ENODEV` when there is none.
    pub(crate) fn by_name(&mut self, name: &str) -> Result<LinkState, i32> {
        self.ask(0, &name_attribute(name)?)
    }

    /// Looks an interface up by index. `ENODEV` when there is none.
    pub(crate) fn by_index(&mut self, ifindex: u32) -> Result<LinkState, i32> {
        self.ask(ifindex, &[])
    }

    /// Looks an interface of another network namespace up by name. `ENODEV` when it has none.
    pub(crate) fn by_name_in(
        &mut self,
        namespace: BorrowedFd<'_>,
        name: &str,
    ) -> Result<LinkState, i32> {
        let mut attributes = name_attribute(name)?;
        let id = self.namespace_id(namespace)?;
        push_attribute(&mut attributes, IFLA_TARGET_NETNSID, &id.to_ne_bytes());
        self.ask(0, &attributes)
    }

    /// Returns another network namespace's number in this one; assigns one if it has none.
    fn namespace_id(&mut self, namespace: BorrowedFd<'_>) -> Result<i32, i32> {
        let mut attributes = Vec::new();
        let fd = namespace.as_raw_fd().to_ne_bytes();
        push_attribute(&mut attributes, NETNSA_FD, &fd);
        if let Some(id) = self.known_namespace_id(&attributes)? {
            return Ok(id);
        }
        let mut wanted = attributes.clone();
        // -1: any free number.
        push_attribute(&mut wanted, NETNSA_NSID, &(-1i32).to_ne_bytes());
        match self.transact(libc::RTM_NEWNSID, libc::NLM_F_ACK, &[0; 4], &wanted) {
            // EEXIST: another process has assigned one first.
            Ok(_) | Err(libc::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        self.known_namespace_id(&attributes)?.ok_or(libc::EPROTO)
    }

    fn known_namespace_id(&mut self, attributes: &[u8]) -> Result<Option<i32>, i32> {
        let (kind, message) = self.transact(libc::RTM_GETNSID, 0, &[0; 4], attributes)?;
        if kind != libc::RTM_NEWNSID {
            return Err(libc::EPROTO);
        }
        let id = attributes_of(message.get(4..).unwrap_or_default())
            .find(|(kind, _)| *kind == NETNSA_NSID)
            .and_then(|(_, value)| u32_at(value, 0))
            .ok_or(libc::EPROTO)? as i32;
        Ok((id >= 0).then_some(id))
    }

    fn ask(&mut self, ifindex: u32, attributes: &[u8]) -> Result<LinkState, i32> {
        let mut body = [0; 16];
        body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        match self.transact(libc::RTM_GETLINK, 0, &body, attributes)? {
            (libc::RTM_NEWLINK, message) => read_link(message).ok_or(libc::EPROTO),
            _ => Err(libc::EPROTO),
        }
    }

    /// Sends a request and returns the kind and the content of the reply; kind `NLMSG_ERROR` for a
    /// mere acknowledgement.
    fn transact(
        &mut self,
        kind: u16,
        flags: i32,
        body: &[u8],
        attributes: &[u8],
    ) -> Result<(u16, &[u8]), i32> {
        self.send(kind, flags, body, attributes)?;
        for _ in 0..MAX_SKIPPED {
            let got = match self.receive() {
                Err(libc::EINTR) => continue,
                got => got?,
            };
            let sequence = self.sequence;
            let found = messages(&self.reply[..got])
                .find(|message| message.sequence == sequence)
                .map(|message| (message.kind, message.at.clone()));
            let Some((kind, at)) = found else { continue };
            let content = &self.reply[at];
            if kind != libc::NLMSG_ERROR as u16 {
                return Ok((kind, content));
            }
            return match u32_at(content, 0).ok_or(libc::EPROTO)? as i32 {
                0 => Ok((kind, content)),
                code => Err(code.saturating_neg()),
            };
        }
        Err(libc::ETIMEDOUT)
    }

    /// Sends a request with the next sequence number.
    fn send(&mut self, kind: u16, flags: i32, body: &[u8], attributes: &[u8]) -> Result<(), i32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::with_capacity(96);
        request.extend((16 + body.len() as u32 + attributes.len() as u32).to_ne_bytes());
        request.extend(kind.to_ne_bytes());
        request.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend([0; 4]);
        request.extend(body);
        request.extend(attributes);
        let sent = rustix::net::send(&self.route, &request, SendFlags::empty());
        sent.map(drop).map_err(Errno::raw_os_error)
    }

    /// Waits for the next datagram, and returns its length. `EAGAIN` after a second.
    fn receive(&mut self) -> Result<usize, i32> {
        let got = rustix::net::recv(&self.route, &mut self.reply, RecvFlags::empty());
        got.map(|(got, _)| got).map_err(Errno::raw_os_error)
    }

    /// Requests all objects of a kind, and passes the content of every reply to `each`. `EINTR` if
    /// the kernel's list has changed meanwhile, so that some may be missing or repeated, or on a
    /// signal. After any error further replies may arrive, so this socket must not be used for
    /// other requests.
    pub(crate) fn dump(
        &mut self,
        kind: u16,
        body: &[u8],
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<(), i32> {
        self.send(kind, libc::NLM_F_DUMP, body, &[])?;
        let mut changed = false;
        loop {
            let got = self.receive()?;
            let sequence = self.sequence;
            let mine = messages(&self.reply[..got]).filter(|message| message.sequence == sequence);
            for message in mine {
                changed |= message.flags & libc::NLM_F_DUMP_INTR as u16 != 0;
                let content = &self.reply[message.at];
                match i32::from(message.kind) {
                    libc::NLMSG_DONE if changed => return Err(libc::EINTR),
                    libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                        return match u32_at(content, 0).ok_or(libc::EPROTO)? as i32 {
                            0.. => Ok(()),
                            code => Err(code.saturating_neg()),
                        };
                    }
                    _ => each(message.kind, content),
                }
            }
        }
    }

    /// Sets the interface up or down.
    pub(crate) fn set_up(&self, name: &str, up: bool) -> Result<(), i32> {
        self.set_flag(name, libc::IFF_UP, up)
    }

    /// Makes the interface receive frames for other MAC addresses, or only those for its own.
    pub(crate) fn set_promiscuous(&self, name: &str, promiscuous: bool) -> Result<(), i32> {
        self.set_flag(name, libc::IFF_PROMISC, promiscuous)
    }

    fn set_flag(&self, name: &str, flag: i32, set: bool) -> Result<(), i32> {
        let mut request = request(name)?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: the kernel filled in the flags.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        let wanted = if set { flags | flag } else { flags & !flag };
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
        set_mac(self.control.as_raw_fd(), request(name)?, mac)
    }

    /// Returns the device and the gateway of the route to an address.
    fn route(&mut self, destination: Ipv4Addr) -> Result<(u32, Option<Ipv4Addr>), i32> {
        let mut body = [0; 12];
        (body[0], body[1]) = (libc::AF_INET as u8, 32);
        let mut attributes = Vec::new();
        push_attribute(&mut attributes, RTA_DST, &destination.octets());
        let (kind, answer) = self.transact(libc::RTM_GETROUTE, 0, &body, &attributes)?;
        if kind != libc::RTM_NEWROUTE {
            return Err(libc::EPROTO);
        }
        read_route(answer)
    }

    /// Returns a neighbour's MAC address, if it is known.
    fn neighbour(&self, device: &str, address: Ipv4Addr) -> Result<Option<Mac>, i32> {
        let request = request(device)?;
        // SAFETY: all zeroes is a valid arpreq.
        let mut question: libc::arpreq = unsafe { std::mem::zeroed() };
        question.arp_pa = socket_address(address);
        question.arp_ha.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
        question.arp_dev = request.ifr_name;
        match self.ioctl(libc::SIOCGARP, &mut question) {
            Ok(()) => {}
            Err(libc::ENXIO) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let mac: Mac = std::array::from_fn(|at| question.arp_ha.sa_data[at] as u8);
        // An incomplete entry has no address yet.
        Ok((question.arp_flags & ATF_COM != 0 && mac != Mac::default()).then_some(mac))
    }

    /// Gives the interface an IPv4 address in place of its present one.
    pub(crate) fn set_ipv4(
        &self,
        name: &str,
        address: Ipv4Addr,
        netmask: Ipv4Addr,
    ) -> Result<(), i32> {
        for (number, value) in [
            (libc::SIOCSIFADDR, address),
            (libc::SIOCSIFNETMASK, netmask),
        ] {
            let mut request = request(name)?;
            request.ifr_ifru.ifru_addr = socket_address(value);
            self.ioctl(number, &mut request)?;
        }
        Ok(())
    }

    /// Adds a default route through a gateway, unless it exists.
    pub(crate) fn add_gateway(&self, gateway: Ipv4Addr) -> Result<(), i32> {
        // SAFETY: all zeroes is a valid rtentry.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = socket_address(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        // The route names no device.
        match self.ioctl(libc::SIOCADDRT, &mut route) {
            Err(libc::EEXIST) => Ok(()),
            done => done,
        }
    }

    /// Returns bits per second (0 if unknown) and whether it is full duplex (None if unknown).
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

    /// Returns the driver's description of itself, if there is one.
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

    fn ioctl<T>(&self, number: libc::c_ulong, request: &mut T) -> Result<(), i32> {
        ioctl(self.control.as_raw_fd(), number, request)
    }
}

/// Makes an ioctl; `request` must have the type that `number` takes.
fn ioctl<T>(fd: RawFd, number: libc::c_ulong, request: &mut T) -> Result<(), i32> {
    // SAFETY: each caller's request is a whole one of the number's type: an ifreq, an arpreq for
    // SIOCGARP, an rtentry for SIOCADDRT. Where it points to data, the data is as large as its
    // command says.
    let code = unsafe { libc::ioctl(fd, number, std::ptr::from_mut(request)) };
    if code < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Changes the MAC address of the interface that `request` names or, if `fd` is a TAP's, of that
/// TAP.
pub(crate) fn set_mac(fd: RawFd, mut request: libc::ifreq, mac: Mac) -> Result<(), i32> {
    let mut address = libc::sockaddr {
        sa_family: libc::ARPHRD_ETHER,
        sa_data: [0; 14],
    };
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = from as c_char;
    }
    request.ifr_ifru.ifru_hwaddr = address;
    ioctl(fd, libc::SIOCSIFHWADDR, &mut request)
}

/// Returns an IPv4 address in the form that ioctls take.
fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut general = libc::sockaddr {
        sa_family: libc::AF_INET as libc::sa_family_t,
        sa_data: [0; 14],
    };
    // `sockaddr_in` has the address behind the port.
    for (to, from) in general.sa_data[2..].iter_mut().zip(address.octets()) {
        *to = from as c_char;
    }
    general
}

/// Returns the device and the gateway in a route's message.
fn read_route(message: &[u8]) -> Result<(u32, Option<Ipv4Addr>), i32> {
    // `struct rtmsg`: the route's type is the eighth byte, attributes follow the twelfth.
    match message.get(7) {
        Some(&RTN_UNICAST) => {}
        Some(_) => return Err(libc::ENXIO),
        None => return Err(libc::EPROTO),
    }
    let (mut device, mut gateway) = (None, None);
    for (kind, value) in attributes_of(message.get(12..).unwrap_or_default()) {
        match kind {
            RTA_OIF => device = u32_at(value, 0),
            RTA_GATEWAY => {
                gateway = <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from);
            }
            _ => {}
        }
    }
    Ok((device.ok_or(libc::EPROTO)?, gateway))
}

/// Returns an `ifreq` for `name`. `ENODEV` if that cannot be an interface's name.
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

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A netlink message in a datagram.
pub(crate) struct Message {
    pub kind: u16,
    /// `NLM_F_*`.
    flags: u16,
    sequence: u32,
    /// Position of its content in the datagram.
    pub at: std::ops::Range<usize>,
}

/// Returns the complete messages of a datagram.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = datagram.get(from..)?;
        let length = u32_at(rest, 0)? as usize;
        let message = Message {
            kind: u16_at(rest, 4)?,
            flags: u16_at(rest, 6)?,
            sequence: u32_at(rest, 8)?,
            at: from + 16..from + length,
        };
        if length < 16 || length > rest.len() {
            return None;
        }
        from += length.next_multiple_of(4);
        Some(message)
    })
}

/// Returns the kinds and values of the complete attributes in a list.
pub(crate) fn attributes_of(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(crate) fn push_attribute(list: &mut Vec<u8>, kind: u16, value: &[u8]) {
    list.extend((4 + value.len() as u16).to_ne_bytes());
    list.extend(kind.to_ne_bytes());
    list.extend(value);
    list.resize(list.len().next_multiple_of(4), 0);
}

/// Encodes a name as an attribute. `ENODEV` if it cannot be an interface's name.
fn name_attribute(name: &str) -> Result<Vec<u8>, i32> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
        return Err(libc::ENODEV);
    }
    let mut attribute = Vec::with_capacity(32);
    let mut value = name.as_bytes().to_vec();
    value.push(0);
    push_attribute(&mut attribute, libc::IFLA_IFNAME, &value);
    Ok(attribute)
}

fn text(value: &[u8]) -> Option<&str> {
    CStr::from_bytes_until_nul(value).ok()?.to_str().ok()
}

fn read_link(message: &[u8]) -> Option<LinkState> {
    let mut link = LinkState {
        hardware: u16_at(message, 2)?,
        ifindex: u32_at(message, 4)?,
        flags: u32_at(message, 8)?,
        ..LinkState::default()
    };
    link.carrier = link.flags & libc::IFF_RUNNING as u32 != 0;
    for (kind, value) in attributes_of(message.get(16..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value).unwrap_or_default().to_owned(),
            libc::IFLA_ADDRESS if value.len() == 6 => link.mac.copy_from_slice(value),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            libc::IFLA_CARRIER => link.carrier = value.first() == Some(&1),
            libc::IFLA_MASTER => link.master = u32_at(value, 0)?,
            libc::IFLA_LINKINFO => {
                let kind = attributes_of(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                let kind = kind.and_then(|(_, value)| text(value));
                link.kind = kind.unwrap_or_default().to_owned();
            }
            libc::IFLA_CARRIER_CHANGES => link.carrier_changes = u32_at(value, 0)?,
            libc::IFLA_STATS64 => {
                link.counters = value
                    .chunks_exact(8)
                    .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
                    .collect();
            }
            _ => {}
        }
    }
    Some(link)
}

/// Changes of kernel interfaces since the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkChanges {
    /// Indexes of interfaces that were added, changed or removed, in whatever namespace each is.
    pub indexes: BTreeSet<u32>,
    /// The names that these had then.
    pub names: BTreeSet<String>,
    /// Reports were lost: any interface may have changed.
    pub missed: bool,
}

impl LinkChanges {
    /// Returns whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.indexes.is_empty() && !self.missed
    }
}

/// Socket buffer for unread reports, in bytes; some hundred changes.
const NEWS: i32 = 1 << 20;

/// A socket that receives reports of groups (`RTMGRP_*`) and never blocks, with a buffer to read
/// them.
pub(crate) struct News {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl News {
    /// Starts to listen; with `everywhere`, also to reports from other network namespaces, as far
    /// as the kernel allows it. The error is an `errno`.
    pub fn new(groups: i32, everywhere: bool) -> Result<News, i32> {
        Ok(News {
            socket: listen(groups, everywhere)?,
            buffer: vec![0; DATAGRAM],
        })
    }

    /// Passes up to `most` datagrams to `note`, and None if some may have been lost; false while
    /// there may be more. Never blocks.
    pub fn read(&mut self, most: usize, mut note: impl FnMut(Option<&[u8]>)) -> bool {
        for _ in 0..most {
            match rustix::net::recv(&self.socket, &mut self.buffer, RecvFlags::DONTWAIT) {
                Ok((got, _)) => note(Some(&self.buffer[..got])),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                // ENOBUFS: the kernel has dropped reports. After any other error, too, some may be
                // lost.
                Err(_) => note(None),
            }
        }
        false
    }
}

impl AsFd for News {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for News {
    fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}

fn listen(groups: i32, everywhere: bool) -> Result<OwnedFd, i32> {
    let flags = SocketFlags::NONBLOCK;
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, flags)?;
    let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &NEWS);
    // Without it, changes in other namespaces are only found by checking.
    let all = libc::NETLINK_LISTEN_ALL_NSID;
    if everywhere && let Err(errno) = set_option(&socket, libc::SOL_NETLINK, all, &1) {
        tracing::debug!(target: "netlink", "no news of other network namespaces: {}", crate::describe(errno));
    }
    let address = SocketAddrNetlink::new(0, groups as u32);
    rustix::net::bind(&socket, &address).map_err(Errno::raw_os_error)?;
    Ok(socket)
}

/// Reports about kernel interfaces in this network namespace and, if the kernel allows it, in all
/// those that have a number in it, such as those to which an interface has been moved from here.
pub struct LinkEvents(News);

impl LinkEvents {
    /// Starts to listen. The error is an `errno`.
    pub fn new() -> Result<LinkEvents, i32> {
        News::new(libc::RTMGRP_LINK, true).map(LinkEvents)
    }

    /// Adds the changes in up to `most` datagrams to `changes`; false while there may be more.
    /// Never blocks.
    pub fn read(&mut self, most: usize, changes: &mut LinkChanges) -> bool {
        self.0.read(most, |datagram| match datagram {
            Some(datagram) => note(datagram, changes),
            None => changes.missed = true,
        })
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for LinkEvents {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Notes which interfaces a datagram is about.
fn note(datagram: &[u8], changes: &mut LinkChanges) {
    for message in messages(datagram) {
        let content = &datagram[message.at];
        if !matches!(message.kind, libc::RTM_NEWLINK | libc::RTM_DELLINK) {
            continue;
        }
        let Some(index) = u32_at(content, 4) else {
            continue;
        };
        changes.indexes.insert(index);
        let name = attributes_of(content.get(16..).unwrap_or_default())
            .find(|(kind, _)| *kind == libc::IFLA_IFNAME)
            .and_then(|(_, value)| text(value));
        if let Some(name) = name {
            changes.names.insert(name.to_owned());
        }
    }
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
    fn routes_tell_devices_and_gateways() {
        let route = |kind: u8, attributes: &[(u16, &[u8])]| {
            let mut message = vec![0; 12];
            message[7] = kind;
            for (kind, value) in attributes {
                push_attribute(&mut message, *kind, value);
            }
            read_route(&message)
        };
        let device = 5u32.to_ne_bytes();
        let gateway = Some(Ipv4Addr::new(10, 0, 0, 1));
        let both: [(u16, &[u8]); 2] = [(RTA_OIF, &device), (RTA_GATEWAY, &[10, 0, 0, 1])];
        assert_eq!(route(RTN_UNICAST, &both), Ok((5, gateway)));
        assert_eq!(route(RTN_UNICAST, &both[..1]), Ok((5, None)));
        assert_eq!(route(RTN_UNICAST, &both[1..]), Err(libc::EPROTO));
        assert_eq!(route(2, &both), Err(libc::ENXIO), "this machine's own");
        assert_eq!(read_route(&[0; 3]), Err(libc::EPROTO));
        // An address to which packets leave on no machine.
        assert_eq!(next_hop(Ipv4Addr::LOCALHOST), Err(libc::ENXIO));
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
        // A TAP is set up.
        assert_eq!(watch.look(&state(true, true, 3)), 1);
        // A veth's link went and came between two readings, and then went.
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
    fn lying_messages_are_not_believed() {
        let told = |datagram: &[u8]| {
            let mut changes = LinkChanges::default();
            note(datagram, &mut changes);
            changes.indexes.into_iter().collect::<Vec<_>>()
        };
        assert!(told(&[]).is_empty());
        let mut message = vec![0u8; 36];
        message[0] = 200;
        message[4] = libc::RTM_NEWLINK as u8;
        message[20] = 7;
        assert!(told(&message).is_empty(), "longer than the datagram");
        for length in [0, 4, 15] {
            message[0] = length;
            assert!(told(&message).is_empty(), "shorter than its head");
        }
        message[0] = 20;
        assert!(told(&message).is_empty(), "without an index");
        assert!(read_link(&message[16..20]).is_none());
        message[0] = 36;
        assert_eq!(told(&message), [7]);
        // An attribute whose length exceeds the message, and one shorter than its own header.
        for length in [100, 0, 3] {
            message.truncate(36);
            message.extend([length, 0, libc::IFLA_IFNAME as u8, 0]);
            message[0] = 40;
            assert_eq!(told(&message), [7]);
            assert_eq!(read_link(&message[16..]).unwrap().name, "");
        }
    }

    #[test]
    fn a_links_master_and_kind_are_read() {
        let mut message = vec![0u8; 16];
        message[4] = 7;
        let mut kind = Vec::new();
        push_attribute(&mut kind, IFLA_INFO_KIND, b"bridge\0");
        push_attribute(&mut message, libc::IFLA_MASTER, &9u32.to_ne_bytes());
        push_attribute(&mut message, libc::IFLA_LINKINFO, &kind);
        let link = read_link(&message).unwrap();
        assert_eq!((link.master, link.kind.as_str()), (9, "bridge"));
        // Shorter than its nested attributes claim.
        let end = message.len();
        message[end - 12..end - 10].copy_from_slice(&200u16.to_ne_bytes());
        assert_eq!(read_link(&message).unwrap().kind, "");
        let mut short = vec![0u8; 16];
        push_attribute(&mut short, libc::IFLA_MASTER, &[1, 2]);
        assert!(read_link(&short).is_none());
    }

    #[test]
    fn several_messages_of_a_datagram_are_read() {
        let mut datagram = Vec::new();
        for (index, name) in [(3u32, "va"), (9, "a-longer-name")] {
            let mut content = vec![0u8; 16];
            content[4..8].copy_from_slice(&index.to_ne_bytes());
            content.extend(name_attribute(name).unwrap());
            datagram.extend((16 + content.len() as u32).to_ne_bytes());
            datagram.extend(libc::RTM_DELLINK.to_ne_bytes());
            datagram.extend([0; 10]);
            datagram.extend(content);
            datagram.resize(datagram.len().next_multiple_of(4), 0);
        }
        let mut changes = LinkChanges::default();
        note(&datagram, &mut changes);
        assert_eq!(changes.indexes, BTreeSet::from([3, 9]));
        let names: Vec<&str> = changes.names.iter().map(String::as_str).collect();
        assert_eq!(names, ["a-longer-name", "va"]);
        assert!(!changes.missed);
    }

    #[test]
    fn ports_of_one_namespace_share_their_sockets() {
        let (a, b) = (SharedLinks::new().unwrap(), SharedLinks::new().unwrap());
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert_eq!(a.lock().by_name("lo").unwrap().name, "lo");
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
