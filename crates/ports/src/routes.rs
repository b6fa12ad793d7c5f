//! The kernel's routes and addresses, and reports of their changes, by rtnetlink, in the network
//! namespace of the calling thread.
//!
//! The same routes are used as in Open vSwitch (`lib/route-table.c`), but only those of the tables
//! local, main and default, as in its later versions: others apply only to packets that policy
//! rules (`ip rule`) select, and those rules are not read.

use crate::link::{
    Links, News, RTA_DST, RTA_GATEWAY, RTA_OIF, RTN_UNICAST, attributes_of, messages, u32_at,
};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

// linux/rtnetlink.h, linux/if_addr.h
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const RTA_MARK: u16 = 16;
const RTA_VIA: u16 = 18;
const RTN_LOCAL: u8 = 2;
const SCOPE_NOWHERE: u8 = 255;
const CLONED: u32 = 0x200;
const DEAD: u32 = 1;
const TABLE_DEFAULT: u32 = 253;
const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
const DAD_FAILED: u32 = 0x08;

/// Lengths of `struct rtmsg`, `ifaddrmsg`; attributes follow.
const ROUTE_HEAD: usize = 12;
const ADDRESS_HEAD: usize = 8;

/// How many times a list is read that changes while it is being read.
const ATTEMPTS: usize = 8;

/// A route of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The destination: addresses that begin with the first `len` bits of this one.
    pub prefix: IpAddr,
    /// Length of the prefix in bits; IPv4: 0 to 32, IPv6: 0 to 128.
    pub len: u8,
    /// The device for outgoing packets.
    pub device: String,
    /// The device's index.
    pub ifindex: u32,
    /// The next hop's address; None if the destinations are on the device's link.
    pub gateway: Option<IpAddr>,
    /// The route's preferred source address, if there is one.
    pub source: Option<IpAddr>,
    /// The kernel's preference among routes to the same destination: the lowest wins.
    pub metric: u32,
    /// The packet mark that it applies to; always 0 except on old kernels.
    pub mark: u32,
    /// Its table: 255 (local), 254 (main) or 253 (default).
    pub table: u32,
    /// Whether the destinations are this machine's own addresses.
    pub local: bool,
}

/// An address of a kernel interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelAddress {
    /// The interface's name.
    pub device: String,
    /// The interface's index.
    pub ifindex: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of its network's prefix in bits; IPv4: 0 to 32, IPv6: 0 to 128.
    pub len: u8,
}

/// Returns the kernel's routes of the tables local, main and default that use one device, with or
/// without a gateway. Of routes to the same destination the one that the kernel prefers comes
/// first.
///
/// Left out are multipath and blackhole routes, routes to multicast groups and broadcast addresses,
/// those through a gateway of the other address family, and those whose device is down or gone. The
/// error is an `errno`.
pub fn kernel_routes() -> Result<Vec<KernelRoute>, i32> {
    let (mut links, mut routes) = collect(libc::RTM_GETROUTE, ROUTE_HEAD, |kind, content| {
        (kind == libc::RTM_NEWROUTE)
            .then(|| read_route(content))
            .flatten()
    })?;
    name_devices(
        &mut links,
        &mut routes,
        |route| route.ifindex,
        |route, name| {
            route.device = name;
        },
    )?;
    let turn = |table| match table {
        TABLE_LOCAL => 0,
        TABLE_MAIN => 1,
        _ => 2,
    };
    routes.sort_by_key(|route| (turn(route.table), route.metric));
    Ok(routes)
}

/// Returns the addresses of all kernel interfaces, except IPv6 ones that were found to be
/// duplicates. Those of an interface are in the kernel's order. The error is an `errno`.
pub fn addresses() -> Result<Vec<KernelAddress>, i32> {
    let (mut links, mut found) = collect(libc::RTM_GETADDR, ADDRESS_HEAD, |kind, content| {
        (kind == libc::RTM_NEWADDR)
            .then(|| read_address(content))
            .flatten()
    })?;
    name_devices(
        &mut links,
        &mut found,
        |address| address.ifindex,
        |address, name| {
            address.device = name;
        },
    )?;
    Ok(found)
}

/// Returns all objects of a kind that `read` accepts, IPv4 first, and the sockets that were used
/// for the requests.
fn collect<T>(
    kind: u16,
    head: usize,
    read: impl Fn(u16, &[u8]) -> Option<T>,
) -> Result<(Links, Vec<T>), i32> {
    let attempt = || {
        // Uses its own sockets, because after an error further replies may arrive.
        let mut links = Links::new()?;
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut body = vec![0; head];
            body[0] = family as u8;
            links.dump(kind, &body, |kind, content| {
                // A kernel without IPv6 returns objects of all families.
                if content.first() == Some(&(family as u8)) {
                    found.extend(read(kind, content));
                }
            })?;
        }
        Ok((links, found))
    };
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(libc::EINTR) => {}
            done => return done,
        }
    }
    attempt()
}

/// Sets the device name of each object in a list, and removes those whose device is gone.
fn name_devices<T>(
    links: &mut Links,
    list: &mut Vec<T>,
    index: impl Fn(&T) -> u32,
    set: impl Fn(&mut T, String),
) -> Result<(), i32> {
    let mut names: BTreeMap<u32, Option<String>> = BTreeMap::new();
    for ifindex in list.iter().map(&index) {
        if let std::collections::btree_map::Entry::Vacant(place) = names.entry(ifindex) {
            place.insert(match links.by_index(ifindex) {
                Ok(link) => Some(link.name),
                Err(libc::ENODEV | libc::ENXIO) => None,
                Err(errno) => return Err(errno),
            });
        }
    }
    list.retain_mut(|item| match &names[&index(item)] {
        Some(name) => {
            set(item, name.clone());
            true
        }
        None => false,
    });
    Ok(())
}

/// Decodes an address attribute.
fn address(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(value)
            .ok()
            .map(|octets| Ipv4Addr::from(octets).into()),
        libc::AF_INET6 => <[u8; 16]>::try_from(value)
            .ok()
            .map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

/// Returns the all-zero address, and the length of a whole address in bits.
fn unspecified(family: u8) -> Option<(IpAddr, u8)> {
    match i32::from(family) {
        libc::AF_INET => Some((Ipv4Addr::UNSPECIFIED.into(), 32)),
        libc::AF_INET6 => Some((Ipv6Addr::UNSPECIFIED.into(), 128)),
        _ => None,
    }
}

/// Decodes a route, without its device's name; None if it is not used.
fn read_route(message: &[u8]) -> Option<KernelRoute> {
    // `struct rtmsg`: family, lengths of destination and source, tos, table, protocol, scope, type,
    // flags.
    let head = message.get(..ROUTE_HEAD)?;
    let (family, len, scope, kind) = (head[0], head[1], head[6], head[7]);
    let flags = u32_at(head, 8)?;
    let (none, longest) = unspecified(family)?;
    if !matches!(kind, RTN_UNICAST | RTN_LOCAL)
        || scope == SCOPE_NOWHERE
        || flags & (CLONED | DEAD) != 0
        || len > longest
        // Routes that depend on the source address.
        || head[2] != 0
    {
        return None;
    }
    let mut route = KernelRoute {
        prefix: none,
        len,
        device: String::new(),
        ifindex: 0,
        gateway: None,
        source: None,
        metric: 0,
        mark: 0,
        table: head[4].into(),
        local: kind == RTN_LOCAL,
    };
    for (kind, value) in attributes_of(&message[ROUTE_HEAD..]) {
        match kind {
            RTA_DST => route.prefix = address(family, value)?,
            RTA_OIF => route.ifindex = u32_at(value, 0)?,
            RTA_GATEWAY => route.gateway = Some(address(family, value)?),
            RTA_PREFSRC => route.source = Some(address(family, value)?),
            RTA_PRIORITY => route.metric = u32_at(value, 0)?,
            RTA_TABLE => route.table = u32_at(value, 0)?,
            RTA_MARK => route.mark = u32_at(value, 0)?,
            RTA_VIA => return None,
            _ => {}
        }
    }
    // Multipath routes have no single device.
    (is_standard(route.table) && route.ifindex != 0).then_some(route)
}

fn is_standard(table: u32) -> bool {
    matches!(table, TABLE_DEFAULT | TABLE_MAIN | TABLE_LOCAL)
}

/// Returns whether a message is about a route of one of the tables. Even an unused route matters:
/// it may have replaced a used one.
fn may_count(message: &[u8]) -> bool {
    let Some(head) = message.get(..ROUTE_HEAD) else {
        return false;
    };
    let table = attributes_of(&message[ROUTE_HEAD..])
        .find(|(kind, _)| *kind == RTA_TABLE)
        .and_then(|(_, value)| u32_at(value, 0))
        .unwrap_or(head[4].into());
    is_standard(table) && u32_at(head, 8).is_some_and(|flags| flags & CLONED == 0)
}

/// Decodes an address, without its device's name; None if it is not used.
fn read_address(message: &[u8]) -> Option<KernelAddress> {
    // `struct ifaddrmsg`: family, length of the prefix, flags, scope, index.
    let head = message.get(..ADDRESS_HEAD)?;
    let (family, len) = (head[0], head[1]);
    let (_, longest) = unspecified(family)?;
    let (mut own, mut other, mut flags) = (None, None, u32::from(head[2]));
    for (kind, value) in attributes_of(&message[ADDRESS_HEAD..]) {
        match kind {
            libc::IFA_LOCAL => own = Some(address(family, value)?),
            libc::IFA_ADDRESS => other = Some(address(family, value)?),
            libc::IFA_FLAGS => flags = u32_at(value, 0)?,
            _ => {}
        }
    }
    if len > longest || flags & DAD_FAILED != 0 {
        return None;
    }
    Some(KernelAddress {
        device: String::new(),
        ifindex: u32_at(head, 4)?,
        // If both exist, `other` is the remote end of a point-to-point link.
        address: own.or(other)?,
        len,
    })
}

/// Reports of changes of the kernel's routes and addresses, in the network namespace of the
/// creating thread.
///
/// Changes of interfaces count, too: the kernel does not report routes that disappear with them.
pub struct RouteEvents(News);

impl RouteEvents {
    /// Starts to listen. The error is an `errno`.
    pub fn new() -> Result<RouteEvents, i32> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_ROUTE
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV6_IFADDR;
        News::new(groups, false).map(RouteEvents)
    }

    /// Reads up to `most` datagrams, and sets `changed` if [`kernel_routes`] or [`addresses`] may
    /// now return something else, also if reports were lost. False while there may be more to read.
    /// Never blocks.
    pub fn drain(&mut self, most: usize, changed: &mut bool) -> bool {
        self.0.read(most, |datagram| {
            *changed |= datagram.is_none_or(is_news);
        })
    }
}

impl AsFd for RouteEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for RouteEvents {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Returns whether a datagram reports a relevant change.
fn is_news(datagram: &[u8]) -> bool {
    messages(datagram).any(|message| {
        let content = &datagram[message.at];
        match message.kind {
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE => may_count(content),
            libc::RTM_NEWADDR | libc::RTM_DELADDR => true,
            // Bridges and the like report their members with other address families.
            libc::RTM_NEWLINK | libc::RTM_DELLINK => {
                content.first() == Some(&(libc::AF_UNSPEC as u8))
            }
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::push_attribute;

    /// Makes a route's message: family, length, table, type, and attributes.
    fn route(head: [u8; 4], attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let [family, len, table, kind] = head;
        let mut message = vec![family, len, 0, 0, table, 0, 0, kind, 0, 0, 0, 0];
        for (kind, value) in attributes {
            push_attribute(&mut message, *kind, value);
        }
        message
    }

    const V4: u8 = libc::AF_INET as u8;
    const V6: u8 = libc::AF_INET6 as u8;
    const DEVICE: (u16, &[u8]) = (RTA_OIF, &5u32.to_ne_bytes());

    #[test]
    fn routes_that_count_are_read() {
        let read = |head, attributes: &[(u16, &[u8])]| read_route(&route(head, attributes));
        let all: [(u16, &[u8]); 6] = [
            (RTA_DST, &[10, 1, 0, 0]),
            DEVICE,
            (RTA_GATEWAY, &[10, 0, 0, 9]),
            (RTA_PREFSRC, &[10, 0, 0, 2]),
            (RTA_PRIORITY, &100u32.to_ne_bytes()),
            (RTA_MARK, &7u32.to_ne_bytes()),
        ];
        let found = read([V4, 16, 254, RTN_UNICAST], &all).unwrap();
        let wanted = KernelRoute {
            prefix: [10, 1, 0, 0].into(),
            len: 16,
            device: String::new(),
            ifindex: 5,
            gateway: Some([10, 0, 0, 9].into()),
            source: Some([10, 0, 0, 2].into()),
            metric: 100,
            mark: 7,
            table: 254,
            local: false,
        };
        assert_eq!(found, wanted);
        let found = read([V6, 0, 253, RTN_UNICAST], &[DEVICE]).unwrap();
        assert_eq!(found.prefix, IpAddr::from(Ipv6Addr::UNSPECIFIED));
        assert!(read([V4, 32, 255, RTN_LOCAL], &[DEVICE]).unwrap().local);

        let table: (u16, &[u8]) = (RTA_TABLE, &1000u32.to_ne_bytes());
        for (head, attributes) in [
            ([V4, 16, 100, RTN_UNICAST], &[DEVICE] as &[(u16, &[u8])]),
            ([V4, 16, 254, RTN_UNICAST], &[DEVICE, table]),
            ([V4, 16, 254, RTN_UNICAST], &[]),
            ([V4, 16, 254, 6], &[DEVICE]),
            ([V4, 33, 254, RTN_UNICAST], &[DEVICE]),
            ([V6, 129, 254, RTN_UNICAST], &[DEVICE]),
            ([7, 16, 254, RTN_UNICAST], &[DEVICE]),
            ([V4, 16, 254, RTN_UNICAST], &[DEVICE, (RTA_DST, &[0; 16])]),
            ([V4, 16, 254, RTN_UNICAST], &[DEVICE, (RTA_VIA, &[0; 18])]),
        ] {
            assert_eq!(read(head, attributes), None, "{head:?} {attributes:?}");
        }
        for flags in [CLONED, DEAD] {
            let mut message = route([V4, 16, 254, RTN_UNICAST], &[DEVICE]);
            message[8..12].copy_from_slice(&flags.to_ne_bytes());
            assert_eq!(read_route(&message), None);
        }
        assert_eq!(read_route(&[V4; 11]), None);
    }

    #[test]
    fn addresses_are_read() {
        let read = |head: [u8; 3], attributes: &[(u16, &[u8])]| {
            let [family, len, flags] = head;
            let mut message = vec![family, len, flags, 0];
            message.extend(5u32.to_ne_bytes());
            for (kind, value) in attributes {
                push_attribute(&mut message, *kind, value);
            }
            read_address(&message).map(|found| (found.ifindex, found.address, found.len))
        };
        let own: (u16, &[u8]) = (libc::IFA_LOCAL, &[10, 0, 0, 1]);
        let far: (u16, &[u8]) = (libc::IFA_ADDRESS, &[10, 0, 0, 2]);
        let v6: (u16, &[u8]) = (libc::IFA_ADDRESS, &[1; 16]);
        assert_eq!(
            read([V4, 24, 0], &[far, own]),
            Some((5, [10, 0, 0, 1].into(), 24))
        );
        assert_eq!(read([V6, 64, 0], &[v6]), Some((5, [1u8; 16].into(), 64)));
        assert_eq!(read([V6, 64, DAD_FAILED as u8], &[v6]), None);
        let flags: (u16, &[u8]) = (libc::IFA_FLAGS, &DAD_FAILED.to_ne_bytes());
        assert_eq!(read([V6, 64, 0], &[v6, flags]), None);
        assert_eq!(read([V6, 64, 0], &[own]), None);
        assert_eq!(read([V4, 33, 0], &[own]), None);
        assert_eq!(read([V4, 24, 0], &[]), None);
        assert_eq!(read_address(&[V4; 7]), None);
    }

    #[test]
    fn only_news_that_count_are_news() {
        let datagram = |kind: u16, content: &[u8]| {
            let mut datagram = Vec::new();
            datagram.extend((16 + content.len() as u32).to_ne_bytes());
            datagram.extend(kind.to_ne_bytes());
            datagram.extend([0; 10]);
            datagram.extend(content);
            datagram
        };
        let blackhole = route([V4, 16, 254, 6], &[]);
        assert!(is_news(&datagram(libc::RTM_NEWROUTE, &blackhole)));
        let elsewhere = route([V4, 16, 100, RTN_UNICAST], &[DEVICE]);
        assert!(!is_news(&datagram(libc::RTM_DELROUTE, &elsewhere)));
        assert!(is_news(&datagram(libc::RTM_DELADDR, &[])));
        assert!(is_news(&datagram(libc::RTM_NEWLINK, &[0; 16])));
        assert!(!is_news(&datagram(libc::RTM_NEWLINK, &[7; 16])));
        assert!(!is_news(&datagram(libc::RTM_NEWROUTE, &[V4; 5])));
        assert!(!is_news(&[]));
    }
}
