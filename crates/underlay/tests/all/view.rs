//! Compares a view with a list of routes that is searched linearly, and with cases from Open
//! vSwitch's manual page and source.

use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use underlay::{Device, Hop, Neighbours, Route, Routes, Unresolved, View};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn br0() -> Device {
    Device {
        name: "br0".into(),
        id: 7,
        mac: [2, 0, 0, 0, 0, 7],
        addresses: vec![(ip("10.1.1.1"), 24), (ip("fc00::1"), 64)],
        mtu: 1500,
    }
}

fn user(prefix: &str, len: u8, gateway: Option<&str>) -> Route {
    Route::by(&br0(), ip(prefix), len, gateway.map(ip), 0, true).unwrap()
}

const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

#[test]
fn packets_go_by_the_route_to_the_neighbour() {
    let mut routes = Routes::new();
    assert!(routes.insert(user("10.1.1.0", 24, None)));
    assert!(routes.insert(user("0.0.0.0", 0, Some("10.1.1.9"))));
    let mut neighbours = Neighbours::new();
    let view = View::new(1, &routes, &neighbours, &[br0()]);
    let source = ip("10.1.1.1");
    let missing = |address: &str| {
        Err(Unresolved::Neighbour {
            device: 7,
            address: ip(address),
            source,
        })
    };
    assert_eq!(view.resolve(ip("10.1.1.5"), None, 0), missing("10.1.1.5"));
    assert_eq!(view.resolve(ip("99.1.1.5"), None, 0), missing("10.1.1.9"));
    assert_eq!(
        view.resolve(ip("10.1.1.5"), None, 1),
        Err(Unresolved::NoRoute)
    );
    assert_eq!(
        view.resolve(ip("fc00::5"), None, 0),
        Err(Unresolved::NoRoute)
    );
    assert!(neighbours.learn("br0", ip("10.1.1.9"), PEER, 0));
    let view = View::new(2, &routes, &neighbours, &[br0()]);
    let hop = Hop {
        device: 7,
        source,
        via: ip("10.1.1.9"),
        eth_src: br0().mac,
        eth_dst: PEER,
        mtu: 1500,
    };
    assert_eq!(view.resolve(ip("99.1.1.5"), None, 0), Ok(hop));
    assert_eq!(view.resolve(ip("::ffff:99.1.1.5"), None, 0), Ok(hop));
    // Without the device, nothing can be sent.
    let view = View::new(3, &routes, &neighbours, &[]);
    assert_eq!(
        view.resolve(ip("99.1.1.5"), None, 0),
        Err(Unresolved::NoRoute)
    );
}

#[test]
fn packets_to_a_group_need_no_neighbour() {
    let mut routes = Routes::new();
    routes.insert(user("0.0.0.0", 0, Some("10.1.1.9")));
    routes.insert(user("::", 0, Some("fc00::9")));
    let view = View::new(1, &routes, &Neighbours::new(), &[br0()]);
    let hop = view.resolve(ip("239.129.2.3"), None, 0).unwrap();
    assert_eq!(hop.eth_dst, [0x01, 0x00, 0x5e, 1, 2, 3]);
    let hop = view.resolve(ip("ff05::1:2:3:4"), None, 0).unwrap();
    assert_eq!(hop.eth_dst, [0x33, 0x33, 0, 3, 0, 4]);
    assert_eq!(hop.source, ip("fc00::1"));
}

#[test]
fn a_source_that_is_asked_for_must_be_the_machines_own() {
    let mut routes = Routes::new();
    routes.insert(user("10.1.1.0", 24, None));
    let mut neighbours = Neighbours::new();
    neighbours.learn("br0", ip("10.1.1.9"), PEER, 0);
    let resolve = |routes: &Routes, source: &str| {
        View::new(1, routes, &neighbours, &[br0()])
            .resolve(ip("10.1.1.9"), Some(ip(source)), 0)
            .map(|hop| hop.source)
    };
    assert_eq!(resolve(&routes, "10.1.1.2"), Err(Unresolved::NoRoute));
    routes.insert(Route {
        local: true,
        user: false,
        ..user("10.1.1.2", 32, None)
    });
    assert_eq!(resolve(&routes, "10.1.1.2"), Ok(ip("10.1.1.2")));
    assert_eq!(resolve(&routes, "0.0.0.0"), Ok(ip("10.1.1.1")));
    assert_eq!(resolve(&routes, "fc00::1"), Err(Unresolved::NoRoute));
}

#[test]
fn commands_win_over_the_kernel_and_own_addresses_over_all() {
    let kernel = |prefix: &str, len, local| Route {
        user: false,
        local,
        device: "kernel".into(),
        ..user(prefix, len, None)
    };
    let mut routes = Routes::new();
    routes.insert(user("10.0.0.0", 8, Some("10.1.1.9")));
    assert!(routes.replace_kernel(vec![
        kernel("10.1.1.0", 24, false),
        kernel("10.1.1.0", 24, false),
        kernel("10.1.1.1", 32, true),
    ]));
    assert!(!routes.replace_kernel(vec![
        kernel("10.1.1.1", 32, true),
        kernel("10.1.1.0", 24, false),
    ]));
    let device = |to: &str| routes.lookup(ip(to), 0).unwrap().device.clone();
    assert_eq!(device("10.1.1.5"), "br0");
    assert_eq!(device("10.1.1.1"), "kernel");
    assert!(routes.leads_by("br0"));
    assert!(routes.remove_user(ip("10.0.0.77"), 8, 0));
    assert!(!routes.leads_by("br0"));
    assert!(!routes.remove_user(ip("10.0.0.77"), 8, 0));
    assert!(!routes.remove_user(ip("10.1.1.0"), 24, 0));
    assert_eq!(routes.lookup(ip("10.1.1.5"), 0).unwrap().device, "kernel");
    assert!(routes.replace_kernel(Vec::new()));
    assert!(routes.is_empty());
}

fn address() -> impl Strategy<Value = IpAddr> {
    // Few bits, so that prefixes often contain addresses.
    prop_oneof![
        (0u32..4, 0u32..4).prop_map(|(a, b)| Ipv4Addr::from(a << 30 | a << 16 | b << 8 | b).into()),
        (0u128..4, 0u128..4).prop_map(|(a, b)| Ipv6Addr::from(a << 126 | a << 90 | b).into()),
    ]
}

fn route() -> impl Strategy<Value = Route> {
    let flags = (any::<bool>(), any::<bool>(), 0u32..2);
    (address(), 0u8..=128, flags).prop_map(|(prefix, len, (local, user, mark))| Route {
        len: len.min(if prefix.is_ipv4() { 32 } else { 128 }),
        prefix,
        device: "br0".into(),
        gateway: None,
        source: prefix,
        mark,
        local,
        user: user && !local,
    })
}

/// Returns whether a route's prefix contains an address, bit by bit.
fn holds(route: &Route, address: IpAddr) -> bool {
    let bits = |address: IpAddr| -> Vec<bool> {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let bit = |at: usize| octets[at / 8] >> (7 - at % 8) & 1 == 1;
        (0..octets.len() * 8).map(bit).collect()
    };
    let len = usize::from(route.len);
    route.prefix.is_ipv4() == address.is_ipv4() && bits(route.prefix)[..len] == bits(address)[..len]
}

/// Returns the best route by a linear search.
fn reference(routes: &[Route], to: IpAddr, mark: u32) -> Option<&Route> {
    let rank = |route: &Route| {
        let advantage = match (route.local, route.user) {
            (true, _) => 64,
            (_, true) => 32,
            _ => 0,
        };
        (route.len + advantage, route.len)
    };
    routes
        .iter()
        .filter(|route| route.mark == mark && holds(route, to))
        .max_by_key(|route| rank(route))
}

proptest! {
    #[test]
    fn lookups_find_what_a_search_finds(
        routes in proptest::collection::vec(route(), 0..40),
        removed in proptest::collection::vec(0usize..40, 0..10),
        kernel in proptest::collection::vec(route(), 0..10),
        to in proptest::collection::vec((address(), 0u32..2), 20),
    ) {
        let mut all = Routes::new();
        let mut list: Vec<Route> = Vec::new();
        let same = |a: &Route, b: &Route| {
            a.len == b.len && holds(a, b.prefix)
                && (a.mark, a.local, a.user) == (b.mark, b.local, b.user)
        };
        for route in routes {
            all.insert(route.clone());
            list.retain(|old| !same(old, &route));
            list.push(route);
        }
        for at in removed {
            let Some(route) = list.get(at).cloned() else { continue };
            let found = all.remove_user(route.prefix, route.len, route.mark);
            let before = list.len();
            let removed = Route { local: false, user: true, ..route };
            list.retain(|old| !same(old, &removed));
            prop_assert_eq!(found, list.len() < before);
        }
        let kernel: Vec<Route> = kernel.into_iter().map(|r| Route { user: false, ..r }).collect();
        all.replace_kernel(kernel.clone());
        list.retain(|route| route.user);
        for route in kernel {
            if !list.iter().any(|old| same(old, &route)) {
                list.push(route);
            }
        }
        prop_assert_eq!(all.len(), list.len());
        prop_assert_eq!(all.iter().count(), list.len());
        let view = View::new(0, &all, &Neighbours::new(), &[br0()]);
        for (to, mark) in to {
            let wanted = reference(&list, to, mark);
            let got = all.lookup(to, mark);
            // `source` is the prefix as it was inserted.
            prop_assert_eq!(got.map(|r| r.source), wanted.map(|r| r.source));
            if to.is_multicast() {
                continue;
            }
            let unresolved = view.resolve(to, None, mark).unwrap_err();
            // No tunnel goes to the machine's own addresses.
            let wanted = wanted.filter(|route| !route.local);
            let wanted = wanted.map_or(Unresolved::NoRoute, |route| Unresolved::Neighbour {
                device: 7,
                address: to,
                source: route.source,
            });
            prop_assert_eq!(unresolved, wanted);
        }
    }
}
