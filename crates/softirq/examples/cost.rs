//! Measures what the XDP program costs for a packet, by the kernel's test runs: parsing, lookup and
//! choice, without the redirect. Needs root.
//!
//!     cargo run --release -p sluice-softirq --example cost

use softirq::key::parse_match;
use softirq::layout::{Entry, NONE, TARGET_CORE, TARGET_ENTRY, TARGET_FLOW};
use softirq::parse::Layout;
use softirq::program::{Constants, Limits, Program, Published};

const REPEAT: u32 = 200_000;

fn published(matching: &str, slot: u32, target: u8) -> Published {
    Published {
        matching: parse_match(matching).expect("a match"),
        entry: Entry {
            id: u64::from(slot),
            slot,
            expected: 10_000,
            core: 0,
            precedence: 1,
            vm: 0,
            has_vm: 0,
            priority: 0,
            target,
            overrides: 0,
            zero: 0,
        },
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = Limits {
        cpus: softirq::cpus::present().last().map_or(1, |cpu| cpu + 1),
        entries: 64,
        flows: 1024,
    };
    let constants = Constants {
        choice_age_ns: u64::MAX / 2,
        least_wait_ns: 1,
        layout: Layout::Dscp6,
        trusted: true,
        strip: false,
        vxlan_port: 4789,
        seed: 1,
    };
    let mut program = Program::load(limits, &constants)?;
    for slot in 0..limits.entries {
        program.open_slot(slot, u64::from(slot), NONE);
    }
    // Ethernet, IPv4, UDP, VXLAN, and an inner frame of the same kinds.
    let ip = |protocol: u8| {
        let mut ip = vec![0x45, 12, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
        ip.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        ip
    };
    let udp = |port: u16| [&1000_u16.to_be_bytes()[..], &port.to_be_bytes(), &[0; 4]].concat();
    let plain = [&[2; 12], &[8, 0][..], &ip(17), &udp(7), &[0; 60]].concat();
    let vxlan = [8, 0, 0, 0, 0, 0, 5, 0];
    let outer = [&[2; 12], &[8, 0][..], &ip(17), &udp(4789), &vxlan].concat();
    let tunnelled = [&outer[..], &plain].concat();
    let many: Vec<Published> = (1..=32)
        .map(|bits| published(&format!("nw_dst=192.0.0.0/{bits}"), bits, TARGET_CORE))
        .collect();
    let mut last = many[..31].to_vec();
    last.push(published("udp", 40, TARGET_CORE));
    for (name, entries, frame) in [
        ("no entry", vec![], &plain),
        ("32 masks, none matches", many, &plain),
        ("32 masks, the last one matches", last, &plain),
        (
            "an entry with a core",
            vec![published("udp", 41, TARGET_CORE)],
            &plain,
        ),
        (
            "VXLAN, an entry by VNI with one choice",
            vec![published("vni=5", 42, TARGET_ENTRY)],
            &tunnelled,
        ),
        (
            "VXLAN, an entry by VNI, a choice for each flow",
            vec![published("vni=5", 43, TARGET_FLOW)],
            &tunnelled,
        ),
    ] {
        program.publish_entries(&entries)?;
        let fastest = (0..5).map(|_| program.test(frame, REPEAT).map(|run| run.duration_ns));
        let fastest = fastest.collect::<Result<Vec<u32>, _>>()?.into_iter().min();
        println!("{name}: {} ns", fastest.unwrap_or(0));
    }
    Ok(())
}
