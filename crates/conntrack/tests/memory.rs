//! Memory of a million connections. Takes half a gigabyte: `cargo test --release -- --ignored`.

use conntrack::{Direction, Nat, Range, Request, Tracker};
use packet::build::Builder;
use packet::parse::parse_frame;
use packet::{FlowKey, WordSet};
use std::net::Ipv4Addr;

const CONNECTIONS: u32 = 1_000_000;

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes: usize = kilobytes.expect("in kB").parse().expect("a number");
    kilobytes * 1024
}

/// Returns the bytes that each UDP connection takes, with replies or without, and the tracker: if
/// it was freed, the next one would seem to take less.
fn measure(nat: Option<&Nat>, replies: bool) -> (usize, Tracker) {
    let before = resident();
    let tracker = Tracker::new([0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
    let request = Request {
        commit: true,
        nat,
        ..Request::default()
    };
    for number in 0..CONNECTIONS {
        let (host, port) = (number >> 8, 2000 + (number & 0xff) as u16);
        let (client, server) = ((0x0a00_0000 + host, port), (0x0b00_0000, 53));
        let send = |source: (u32, u16), destination: (u32, u16)| {
            let packet = Builder::ethernet([2; 6], [4; 6]).ipv4(source.0, destination.0);
            let mut frame = packet.udp(source.1, destination.1).frame();
            let mut key = FlowKey::ZERO;
            let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
            tracker.track(&frame, &layers, &request, 1000);
        };
        send(client, server);
        if replies {
            send(server, client);
        }
    }
    assert_eq!(tracker.count(), CONNECTIONS as usize);
    let each = (resident() - before) / CONNECTIONS as usize;
    (each, tracker)
}

#[test]
#[ignore = "takes half a gigabyte"]
fn connections_take_little_memory() {
    let (plain, _kept) = measure(None, false);
    println!("{plain} bytes for each connection");
    let (established, _kept_as_well) = measure(None, true);
    println!("{established} bytes for each established connection");
    let nat = Nat {
        direction: Some(Direction::Source),
        range: Some(Range {
            min: Ipv4Addr::new(12, 0, 0, 0).into(),
            max: Ipv4Addr::new(12, 0, 255, 255).into(),
            ports: None,
        }),
        ..Nat::default()
    };
    let (translated, _also_kept) = measure(Some(&nat), false);
    println!("{translated} bytes for each translated connection");
    assert!(plain < 300 && established < 300, "{plain} {established}");
    assert!(translated < 450, "{translated}");
}
