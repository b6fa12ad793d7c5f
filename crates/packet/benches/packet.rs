//! Measures parsing and editing in cycles per packet (nanoseconds where there is no cycle counter),
//! all in the first-level cache.
//!
//! Run with `cargo bench -p sluice-packet`. Each figure is the minimum of many rounds, since
//! disturbances only add time.

use packet::build::Builder;
use packet::edit::{self, CompiledSet};
use packet::mini_key::{self, MiniKey, Pattern, RawPrefilter, Variant};
use packet::parse::{self, PACKET_WORDS};
use packet::tunnel::{self, Addresses, Decapsulated, Header, HeaderSpec, PerPacket, TunnelKind};
use packet::{Field, FlowKey, Frame, HeapFrame, Layers, Offload, Value, WordSet};
use std::hint::black_box;

#[cfg(target_arch = "x86_64")]
mod clock {
    pub const UNIT: &str = "cycles";

    pub fn now() -> u64 {
        // SAFETY: reading the time stamp counter has no precondition on x86_64.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod clock {
    pub const UNIT: &str = "ns";

    pub fn now() -> u64 {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        START
            .get_or_init(std::time::Instant::now)
            .elapsed()
            .as_nanos() as u64
    }
}

const BURST: usize = 32;
const ROUNDS: usize = 20_000;

/// Prints the minimum time per packet of `work`, which handles a burst.
fn measure(name: &str, mut work: impl FnMut()) {
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let start = clock::now();
        work();
        least = least.min(clock::now() - start);
    }
    println!(
        "{name:40} {:8.1} {}/packet",
        least as f64 / BURST as f64,
        clock::UNIT
    );
}

fn burst(builder: &Builder) -> Vec<HeapFrame> {
    (0..BURST).map(|_| builder.frame()).collect()
}

fn parsing(name: &str, builder: &Builder, needed: WordSet) {
    let mut frames = burst(builder);
    let mut keys = vec![FlowKey::ZERO; BURST];
    let mut layers = vec![Layers::default(); BURST];
    measure(&format!("parse {name}"), || {
        let frames = black_box(&mut frames);
        black_box(parse::parse_burst(
            frames,
            1,
            needed,
            &mut keys,
            &mut layers,
        ));
        black_box(&keys);
    });
}

/// Reads mini keys with each available variant, and compares them with a pattern that does not
/// match.
fn reading(name: &str, builder: &Builder) {
    let frames = burst(builder);
    let mut words = vec![MiniKey::ZERO; BURST];
    let mut found = [0; BURST];
    let patterns: Vec<Pattern> = Pattern::of([(2, 0xffff, 9)]).into_iter().collect();
    for variant in Variant::ALL.into_iter().filter(|one| one.is_there()) {
        measure(&format!("read {name}, {}", variant.name()), || {
            let frames = black_box(&frames);
            let read =
                mini_key::read_burst_by(variant, frames, 1, &patterns, &mut words, &mut found);
            assert_eq!(black_box(read).count, BURST);
            black_box(&words);
        });
    }
}

/// Matches packets in place against two patterns, one for the Ethertype and one that does not
/// match, in either order.
fn sorting(name: &str, builder: &Builder) {
    let frames = burst(builder);
    let mut runs = Vec::with_capacity(BURST);
    let eth_type = u64::from_ne_bytes([0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    let value = u64::from_ne_bytes([0, 0, 0, 0, 8, 0, 0, 0]);
    let ip = Pattern::of([(0, eth_type, value)]);
    let none = Pattern::of([(2, 0xffff, 9)]);
    for (order, patterns) in [("first", [ip, none]), ("second", [none, ip])] {
        let patterns: Vec<Pattern> = patterns.into_iter().flatten().collect();
        let Some(sorting) = RawPrefilter::new(&patterns) else {
            continue;
        };
        for variant in Variant::ALL.into_iter().filter(|one| one.is_there()) {
            measure(&format!("sort {name}, {order}, {}", variant.name()), || {
                let frames = black_box(&frames);
                let (read, _) = mini_key::sort_burst_by(variant, frames, 1, &sorting, &mut runs);
                assert_eq!(black_box(read).count, BURST);
                black_box(&runs);
            });
        }
    }
}

fn editing(
    name: &str,
    builder: &Builder,
    mut edit: impl FnMut(&mut HeapFrame, &mut Layers, &mut FlowKey),
) {
    let mut frames = burst(builder);
    let mut keys = vec![FlowKey::ZERO; BURST];
    let mut layers = vec![Layers::default(); BURST];
    parse::parse_burst(&mut frames, 1, WordSet::EMPTY, &mut keys, &mut layers);
    measure(&format!("edit {name}"), || {
        for ((frame, layers), key) in frames.iter_mut().zip(&mut layers).zip(&mut keys) {
            edit(black_box(frame), layers, key);
        }
        black_box(&keys);
    });
}

/// Pushes a tunnel's header and removes it again; then parses and decapsulates received packets,
/// whose header is put back as plain bytes.
fn tunnelling(name: &str, inner: &Builder, spec: &HeaderSpec) {
    let header = Header::new(spec).expect("a header of this kind");
    let packet = PerPacket {
        id: 5,
        ttl: 64,
        hash: 0x1234_5678,
        ..PerPacket::default()
    };
    let length = header.header_len();
    let kind = black_box(spec.kind);
    let mut found = Decapsulated::default();
    let mut frames = burst(inner);
    measure(&format!("tunnel push {name}"), || {
        for frame in black_box(&mut frames) {
            black_box(header.push(frame, black_box(&packet))).expect("room in front");
            frame.pull_front(length);
            frame.set_offload(Offload::default());
        }
    });
    for frame in &mut frames {
        header.push(frame, &packet).expect("room in front");
        frame.set_offload(Offload::default());
    }
    measure(&format!("tunnel parse {name}"), || {
        for frame in black_box(&mut frames) {
            tunnel::parse_into(frame, kind, &mut found).expect("sound");
            black_box(&found);
        }
    });
    measure(&format!("tunnel parse and decapsulate {name}"), || {
        for frame in black_box(&mut frames) {
            tunnel::parse_into(frame, kind, &mut found).expect("sound");
            tunnel::decapsulate(frame, &found).expect("no congestion");
            frame.push_front(length);
        }
    });
}

fn set(field: Field, value: u128) -> CompiledSet {
    let def = field.def();
    let value = Value::from_u128(value << def.shift, def.bytes);
    CompiledSet::new(field, &value, &def.place())
}

fn main() {
    let ethernet = Builder::ethernet([2; 6], [4; 6]);
    let udp = ethernet
        .clone()
        .ipv4(0x0a00_0001, 0x0a00_0002)
        .udp(1, 2)
        .payload(&[0; 18]);
    let tcp = ethernet
        .clone()
        .ipv4(0x0a00_0001, 0x0a00_0002)
        .tcp(1, 2, 0x10);
    let tagged = ethernet
        .clone()
        .vlan(5)
        .ipv4(0x0a00_0001, 0x0a00_0002)
        .udp(1, 2)
        .payload(&[0; 18]);
    let udp6 = ethernet.clone().ipv6([1; 16], [2; 16]).udp(1, 2);
    let tcp6 = ethernet.clone().ipv6([1; 16], [2; 16]).tcp(1, 2, 0x10);
    let arp = ethernet.clone().arp(1, [4; 6], 1, [0; 6], 2).padding(18);
    parsing("ethernet ipv4 udp", &udp, WordSet::EMPTY);
    parsing("ethernet ipv4 udp, all words", &udp, PACKET_WORDS);
    parsing("ethernet ipv4 tcp", &tcp, WordSet::EMPTY);
    parsing("ethernet vlan ipv4 udp", &tagged, WordSet::EMPTY);
    parsing("ethernet ipv6 udp", &udp6, WordSet::EMPTY);
    parsing("ethernet ipv6 udp, all words", &udp6, PACKET_WORDS);
    parsing("ethernet arp", &arp, WordSet::EMPTY);
    reading("ethernet ipv4 udp", &udp);
    reading("ethernet ipv4 tcp", &tcp);
    reading("ethernet vlan ipv4 udp", &tagged);
    reading("ethernet ipv6 udp", &udp6);
    reading("ethernet ipv6 tcp", &tcp6);
    reading("ethernet arp", &arp);
    sorting("ethernet ipv4 udp", &udp);
    sorting("ethernet ipv4 tcp", &tcp);
    sorting("ethernet ipv6 udp", &udp6);
    sorting("ethernet arp", &arp);

    for (name, field) in [
        ("eth_dst", Field::EthDst),
        ("ip_dst", Field::Ipv4Dst),
        ("udp_dst", Field::UdpDst),
        ("reg0", Field::Reg0),
        ("nw_ttl", Field::IpTtl),
        ("ip_dscp", Field::IpDscpShifted),
        ("vlan_vid of an untagged packet", Field::VlanVid),
        ("xxreg0", Field::Xxreg0),
    ] {
        let mut number = 0;
        let sets: Vec<CompiledSet> = (0..8).map(|value| set(field, value)).collect();
        editing(&format!("set {name}"), &udp, |frame, layers, key| {
            number += 1;
            black_box(sets[number % 8].run(frame, layers, key));
        });
    }
    let (value, mask) = (Value::from_u128(7, 4), Value::ones(32, 4));
    editing(
        "set_field ip_dst, not compiled",
        &udp,
        |frame, layers, key| {
            black_box(edit::set_field(
                frame,
                layers,
                key,
                Field::Ipv4Dst,
                black_box(&value),
                &mask,
            ));
        },
    );
    editing("dec_ttl", &udp, |frame, layers, key| {
        // The TTL must never expire.
        frame.head_mut()[22] = 64;
        black_box(edit::dec_ttl(frame, layers, key)).ok();
    });
    editing("push_vlan, pop_vlan", &udp, |frame, layers, key| {
        black_box(edit::push_vlan(frame, layers, key, 0x8100));
        edit::pop_vlan(frame, layers, key);
    });
    let (v4, v6) = (
        Addresses::V4 { src: 1, dst: 2 },
        Addresses::V6 {
            src: [1; 16],
            dst: [2; 16],
        },
    );
    let vxlan = HeaderSpec::new(TunnelKind::Vxlan { gbp: false }, v4);
    tunnelling("vxlan ipv4", &udp, &vxlan);
    let checked = HeaderSpec {
        checksum: true,
        ..vxlan
    };
    tunnelling("vxlan ipv4, checksum", &udp, &checked);
    let vxlan6 = HeaderSpec::new(vxlan.kind, v6);
    tunnelling("vxlan ipv6, checksum", &udp, &vxlan6);
    let geneve = HeaderSpec::new(TunnelKind::Geneve, v4);
    tunnelling("geneve ipv4", &udp, &geneve);
    let large = ethernet.ipv4(1, 2).udp(3, 4).payload(&[7; 1458]).frame();
    measure("checksum of 1500 bytes (a burst of them)", || {
        for _ in 0..BURST {
            black_box(packet::checksum::frame_sum(
                black_box(&large),
                14,
                large.len(),
            ));
        }
    });
}
