//! The kernel's routes and addresses, as set by `ip` in the test's own network namespace.

use crate::kernel::{ip, own_namespace};
use ports::{KernelRoute, RouteEvents, addresses, kernel_routes};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Formats routes, without those of link-local addresses.
fn shown(routes: &[KernelRoute]) -> Vec<String> {
    let mut lines = Vec::new();
    for route in routes {
        let link_local = matches!(route.prefix, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if route.device == "lo" || link_local {
            continue;
        }
        let mut line = format!("{}/{} {}", route.prefix, route.len, route.device);
        if let Some(gateway) = route.gateway {
            line += &format!(" via {gateway}");
        }
        if let Some(source) = route.source {
            line += &format!(" src {source}");
        }
        if route.local {
            line += " local";
        }
        lines.push(line);
    }
    lines
}

/// Creates a veth pair.
fn pair() {
    own_namespace();
    ip("link add k0 type veth peer name k1");
    for name in ["k0", "k1"] {
        ip(&format!("link set {name} addrgenmode none"));
        ip(&format!("link set {name} up"));
    }
}

#[test]
fn routes_are_those_of_the_kernel() {
    pair();
    for arguments in [
        "addr add 10.9.1.1/24 dev k0",
        "addr add fc09::1/64 dev k0 nodad",
        "route add default via 10.9.1.254",
        "route add 10.12.0.0/16 via 10.9.1.254 src 10.9.1.1",
        "route add 10.13.0.0/16 via 10.9.1.254 table 100",
        "route add 10.14.0.0/16 via 10.9.1.254 table default",
        "route add blackhole 10.15.0.0/16",
        "route add 10.16.0.0/16 nexthop via 10.9.1.254 nexthop via 10.9.1.253",
        "route add 10.17.0.0/16 via 10.9.1.253 metric 20",
        "route add 10.17.0.0/16 via 10.9.1.254 metric 10",
        "route add 10.18.0.0/16 via inet6 fc09::9 dev k0",
        "-6 route add fc10::/64 via fc09::9",
        "-6 route add fc12::/64 via fc09::9 table 1000",
        "-6 route add fc13::/64 nexthop via fc09::8 nexthop via fc09::7",
    ] {
        ip(arguments);
    }
    let routes = kernel_routes().unwrap();
    let mut lines = shown(&routes);
    let at = |line: &str| lines.iter().position(|found| found == line).unwrap();
    assert!(
        at("10.17.0.0/16 k0 via 10.9.1.254") < at("10.17.0.0/16 k0 via 10.9.1.253"),
        "the kernel takes the lowest metric"
    );
    lines.sort();
    assert_eq!(
        lines,
        [
            "0.0.0.0/0 k0 via 10.9.1.254",
            "10.12.0.0/16 k0 via 10.9.1.254 src 10.9.1.1",
            "10.14.0.0/16 k0 via 10.9.1.254",
            "10.17.0.0/16 k0 via 10.9.1.253",
            "10.17.0.0/16 k0 via 10.9.1.254",
            "10.9.1.0/24 k0 src 10.9.1.1",
            "10.9.1.1/32 k0 src 10.9.1.1 local",
            "fc09::/64 k0",
            "fc09::1/128 k0 local",
            "fc10::/64 k0 via fc09::9",
        ]
    );
    let found: Vec<_> = addresses()
        .unwrap()
        .into_iter()
        .map(|found| (found.device, found.address.to_string(), found.len))
        .collect();
    let wanted = [
        ("lo", "127.0.0.1", 8),
        ("k0", "10.9.1.1", 24),
        ("lo", "::1", 128),
        ("k0", "fc09::1", 64),
    ];
    assert_eq!(
        found,
        wanted.map(|(device, address, len)| (device.to_owned(), address.to_owned(), len))
    );
}

#[test]
fn many_routes_are_all_read() {
    pair();
    ip("addr add 10.9.1.1/24 dev k0");
    let batch = tempfile(
        &(0..3000)
            .map(|n| format!("route add 11.{}.{}.0/24 via 10.9.1.9\n", n >> 8, n & 255))
            .collect::<String>(),
    );
    ip(&format!("-batch {batch}"));
    let _ = std::fs::remove_file(&batch);
    let routes = kernel_routes().unwrap();
    let added = routes.iter().filter(|route| route.gateway.is_some());
    assert_eq!(added.count(), 3000);
}

fn tempfile(content: &str) -> String {
    let path = format!(
        "{}/routes-{}",
        std::env::temp_dir().display(),
        std::process::id()
    );
    std::fs::write(&path, content).expect("a file");
    path
}

/// Waits until there is a report, for ten seconds at most.
fn wait(events: &mut RouteEvents) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    let mut changed = false;
    while !changed && Instant::now() < end {
        while !events.drain(16, &mut changed) {}
        std::thread::sleep(Duration::from_millis(1));
    }
    changed
}

/// How long the kernel may take to report a new device's link.
const LINK: Duration = Duration::from_millis(1500);
/// How long the kernel may take for the remaining reports of a change.
const REST: Duration = Duration::from_millis(100);

/// Reads all reports for a time.
fn settle(events: &mut RouteEvents, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        while !events.drain(16, &mut false) {}
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn changes_are_told() {
    pair();
    let mut events = RouteEvents::new().unwrap();
    settle(&mut events, LINK);
    let mut changed = false;
    assert!(events.drain(16, &mut changed) && !changed);
    for arguments in [
        "addr add 10.9.1.1/24 dev k0",
        "addr add fc09::1/64 dev k0 nodad",
        "route add 10.12.0.0/16 via 10.9.1.254",
        "route del 10.12.0.0/16",
        "-6 route add fc10::/64 via fc09::9",
        "link set k0 down",
        "link set k0 up",
        "link del k0",
    ] {
        ip(arguments);
        assert!(wait(&mut events), "{arguments}");
        settle(&mut events, REST);
    }
}

#[test]
fn lost_news_are_a_change() {
    pair();
    ip("addr add 10.9.1.1/24 dev k0");
    let mut events = RouteEvents::new().unwrap();
    settle(&mut events, LINK);
    // Too small for the reports, so that some are lost.
    let least = 1i32;
    // SAFETY: the value is readable for its size.
    let code = unsafe {
        libc::setsockopt(
            events.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            std::ptr::from_ref(&least).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(code, 0);
    for n in 0..64 {
        // In a table that is not used, so that only the loss itself sets the flag.
        ip(&format!("route add 10.{n}.0.0/16 via 10.9.1.9 table 100"));
    }
    let mut changed = false;
    while !events.drain(16, &mut changed) {}
    assert!(changed);
}
