//! Cycles for each packet of parse, lookup and steps together, by rule set; frames are in memory
//! and reused, nothing is sent.
//!
//! `cargo bench -p sluice-program --bench walk` prints one line a case: median and lowest of
//! several rounds, in TSC cycles.

mod ovn;
mod support;

use program::exec::{CacheMode, Engine};
use stages::cycles;
use support::{BURST, Buffer, Rules, Sink, Switch};

const FLOWS: usize = 100_000;
/// Packets of a round.
const ROUND: usize = 2048;

/// Makes a case's rules.
type Make = fn() -> Rules;

fn cases() -> Vec<(&'static str, usize, Make)> {
    vec![
        ("inport-1", 1, support::one_port),
        ("udp-1", 1, support::one_service),
        ("udp-100k", FLOWS, support::one_service),
        ("exact-1k", 1000, || support::exact(1000)),
        ("exact-100k", FLOWS, || support::exact(FLOWS as u32)),
        ("exact-10k-ports", 10_000, || {
            support::exact_with_ports(10_000)
        }),
        ("exact-10k-rest-with-arp", 10_000, || {
            support::exact_with_ports_and_rest(10_000)
        }),
        ("exact-10k-edits", 10_000, || support::neighbours(10_000)),
        ("acl-1k-10masks", FLOWS, support::masks),
        ("acl-10masks", 0, || support::access_list(10, 0).0),
        ("acl-50masks", 0, || support::access_list(50, 0).0),
        ("acl-50masks-warm", 1024, || support::access_list(50, 0).0),
        ("strangers", FLOWS, || support::strangers(FLOWS as u32)),
        ("route-1k", 0, || support::router(1000)),
        ("route-10k", 0, || support::router(10_000)),
        ("route-10k-warm", 1024, || support::router(10_000)),
        ("route-100k", 0, || support::router(FLOWS)),
        ("route-1m", 0, || support::router(1_000_000)),
        ("mac-10k", 10_000, || support::stations(10_000)),
        ("mac-10k-warm", 10_000, || support::stations(10_000)),
        ("mac-100k", FLOWS, || support::stations(FLOWS)),
        ("mac-10k-flood", 10_000, || {
            support::stations_and_flood(10_000)
        }),
        ("mac-10k-bcast", 10_000, || {
            support::stations_and_flood(10_000)
        }),
        ("mac-10k-auto", 10_000, || support::stations(10_000)),
        ("rewrite", 1, || {
            vec![(0, support::udp(), 1, support::rewrite())]
        }),
        ("l2l3", 10_000, support::l2l3),
        ("l2l3-warm", 1024, support::l2l3),
        ("l2l3-10k", 10_000, support::l2l3_10k),
        ("l2l3-10k-warm", 1024, support::l2l3_10k),
        ("spread-10k", 10_000, support::spread),
        ("udp6-1", 1, support::one_service6),
        ("udp6-10k", 10_000, || support::exact6(10_000)),
        ("udp6-l2l3", 10_000, support::l2l3_6),
        ("udp6-l2l3-warm", 1024, support::l2l3_6),
        ("arp", 1, support::arp),
        ("udp-1-with-arp", 1, || {
            [support::one_service(), support::arp()].concat()
        }),
        ("dual-1k", 1000, || support::dual(1000)),
        ("udp6-dual-1k", 1000, || support::dual(1000)),
        ("ovn", 10_000, ovn::rules),
        ("ovn-warm", 1024, ovn::rules),
        ("ovn-cached", 10_000, ovn::rules),
        ("ovn-new", 4 * FLOWS, ovn::rules),
        ("ovn-new-cached", 4 * FLOWS, ovn::rules),
    ]
}

/// Puts an ARP frame into each burst, at varying places.
fn with_arp(mut frames: Vec<Buffer>) -> Vec<Buffer> {
    let bursts = frames.len() / BURST;
    for burst in 0..bursts {
        frames[burst * BURST + burst * 7 % BURST] = support::arp_frame(burst as u32, 1);
    }
    frames
}

/// Makes every sixteenth frame a broadcast, at varying places.
fn with_broadcasts(mut frames: Vec<Buffer>) -> Vec<Buffer> {
    for (number, frames) in frames.chunks_exact_mut(16).enumerate() {
        packet::Frame::head_mut(&mut frames[number * 7 % 16])[..6].fill(0xff);
    }
    frames
}

/// Restores frames for reuse, outside of what is measured.
type Renew = fn(&mut Buffer);

fn run(
    mut frames: Vec<Buffer>,
    rules: &Rules,
    mode: CacheMode,
    renew: Option<Renew>,
) -> (Vec<f64>, usize) {
    let mut switch = Switch::shaped(rules);
    switch.program.walk_caches.set_mode(mode);
    let (mut engine, mut sink, mut burst) =
        (Engine::new(), Sink::default(), Vec::with_capacity(BURST));
    let mut rounds = Vec::new();
    let (mut spent, mut packets) = (0, 0);
    // The same number of packets for each case.
    for _ in 0..27 * FLOWS / frames.len().clamp(1, FLOWS) {
        while frames.len() >= BURST {
            burst.extend(frames.drain(frames.len() - BURST..));
            let start = cycles();
            let guard = switch.reader.begin();
            engine.burst(&switch.bridge, &guard, 1, &mut burst, 0, 1, &mut sink);
            spent += cycles() - start;
            packets += BURST;
            // Short rounds, because between two of them others may have had the processor.
            if packets >= ROUND {
                rounds.push(spent as f64 / packets as f64);
                (spent, packets) = (0, 0);
            }
        }
        if let Some(renew) = renew {
            sink.out.iter_mut().for_each(renew);
        }
        frames.append(&mut sink.out);
    }
    (rounds, sink.lost)
}

fn main() {
    // Fixed hash keys, so that two builds differ in their code alone.
    program::secret::fix();
    // Names of cases; without any, all.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let any = wanted.iter().all(|name| name.starts_with("--"));
    for (name, flows, rules) in cases() {
        if !any && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let rules = rules();
        let mode = if name.ends_with("cached") {
            CacheMode::Always
        } else if name.ends_with("auto") {
            CacheMode::Auto
        } else {
            CacheMode::Never
        };
        // "warm" cases stay in the caches and show the cost without waits for memory.
        let warm = name.ends_with("warm");
        let count = if warm { flows } else { FLOWS };
        let decrements = name.starts_with("l2l3-10k");
        let turns = name == "mac-10k-warm";
        let frames = if name.starts_with("route") {
            support::routed(count, &rules)
        } else if name.starts_with("acl-10masks") {
            support::access_list(10, count).1
        } else if name.starts_with("acl-50masks") {
            support::access_list(50, count).1
        } else if name.starts_with("mac") {
            support::bridged(if turns { 1024 } else { FLOWS }, flows)
        } else if name.starts_with("ovn") {
            (0..if warm { flows } else { flows.max(FLOWS) })
                .map(|number| ovn::flow((number * 7919 % flows) as u32))
                .collect()
        } else if decrements {
            support::frames_l2l3(count, flows as u32)
        } else if name.starts_with("udp6") {
            support::frames6(count, flows as u32)
        } else if name.starts_with("arp") {
            (0..FLOWS as u32)
                .map(|number| support::arp_frame(number, 1))
                .collect()
        } else {
            support::frames(count, flows as u32)
        };
        let frames = if name.ends_with("with-arp") {
            with_arp(frames)
        } else if name.ends_with("bcast") {
            with_broadcasts(frames)
        } else {
            frames
        };
        let renew = match (decrements, turns) {
            (true, _) => Some(support::renew as Renew),
            // Few frames, each to another station every time: the frames stay in the caches, the
            // rules do not.
            (_, true) => Some((|frame| support::next_station(frame, 10_000)) as Renew),
            _ => None,
        };
        let (mut rounds, lost) = run(frames, &rules, mode, renew);
        rounds.sort_by(f64::total_cmp);
        println!(
            "{name:24} {:6.1} cycles/packet (lowest {:.1}), {lost} lost",
            rounds[rounds.len() / 2],
            rounds[0]
        );
    }
}
