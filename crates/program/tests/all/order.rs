//! Packets of one flow leave in the order of arrival, whatever the packets between them meet: rules
//! that only send, with verdicts, and rules that look up in many tables before they send.

use crate::support::Switch;
use packet::key::at;
use packet::{Field, HeapFrame, Match};
use program::actions::{Op, PortNo};
use program::exec::CacheMode;
use program::table::LOOKUP_MAX;
use std::ops::Range;

/// Rules of the first table that only send, and those that look up first. Each is for one
/// destination, and so for one flow.
const SEND: Range<u8> = 0..96;
const LOOK_UP: Range<u8> = 96..160;
/// The later tables in which these look up.
const LATER: Range<u8> = 1..11;
/// Rules of each of these, in addition to one for all packets.
const RULES: u16 = 16;

fn port_of(flow: u8) -> PortNo {
    1 + PortNo::from(flow % 3)
}

/// Returns a UDP packet of a flow, with its number among those of its burst as identification.
fn frame(flow: u8, number: u16) -> HeapFrame {
    let mut bytes = vec![2, 0, 0, 0, 0, flow, 2, 0, 0, 0, 0, 1];
    bytes.extend([8, 0, 0x45, 0, 0, 28]);
    bytes.extend(number.to_be_bytes());
    bytes.extend([0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    // A port with more bits set than rules match.
    bytes.extend([0, 1, 0, 3, 0, 8, 0, 0]);
    bytes.resize(60, 0);
    HeapFrame::new(&bytes)
}

/// How rules of the first table look up in later ones.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Lookups {
    /// In one table after the other, and then they send.
    Listed,
    /// In one whose rule looks up in the next one, and so on; they send when all have returned.
    Nested,
}

/// Creates a switch with these rules.
fn looking_up(lookups: Lookups) -> Switch {
    let mut switch = Switch::new();
    switch.program.walk_caches.set_mode(CacheMode::Never);
    let resubmit = |table| Op::Resubmit {
        in_port: None,
        table: Some(table),
    };
    for flow in SEND.start..LOOK_UP.end {
        let mut matching = Match::any();
        matching.set_exact(Field::EthType, 0x0800);
        matching.set_bytes(at::ETH_DST + 2, &[0, 0, 0, flow], &[0xff; 4]);
        let mut ops = match lookups {
            _ if SEND.contains(&flow) => vec![],
            Lookups::Listed => LATER.map(resubmit).collect(),
            Lookups::Nested => vec![resubmit(LATER.start)],
        };
        ops.push(Op::Output(port_of(flow)));
        switch.add(0, matching, 10, ops);
    }
    for table in LATER {
        // Ports without common bits would take too many comparisons for these stages to be
        // fused with those before them.
        for bit in 0..RULES {
            let mut matching = Match::any();
            matching.set_exact(Field::EthType, 0x0800);
            matching.set_exact(Field::IpProto, 17);
            matching.set_exact(Field::UdpDst, 1 << bit);
            switch.add(table, matching, 10 + u32::from(bit), vec![]);
        }
        let next = table + 1;
        let more = lookups == Lookups::Nested && LATER.contains(&next);
        let ops = more.then(|| resubmit(next)).into_iter().collect();
        switch.add(table, Match::any(), 1, ops);
    }
    switch.shape();
    let described = switch.writer.describe(0);
    assert!(described.why.contains("told by value"), "{described:?}");
    switch
}

/// Sends a burst of packets of these flows, and checks that all leave, those of each flow in
/// order.
fn keeps_order(switch: &mut Switch, flows: &[u8]) {
    let packets = flows.iter().zip(0..);
    let mut frames = packets.clone().map(|(flow, number)| frame(*flow, number));
    let met = switch.walk(1, frames.by_ref().collect());
    // Flow and number of what has left.
    let number = |bytes: &[u8]| u16::from_be_bytes([bytes[18], bytes[19]]);
    let sent = met.only_sent();
    let left = sent.iter().map(|(port, bytes)| {
        assert_eq!(*port, port_of(bytes[5]));
        (bytes[5], number(bytes))
    });
    let mut left: Vec<(u8, u16)> = left.collect();
    let mut wanted: Vec<(u8, u16)> = packets.map(|(flow, number)| (*flow, number)).collect();
    // Both sorts are stable.
    wanted.sort_by_key(|(flow, _)| *flow);
    left.sort_by_key(|(flow, _)| *flow);
    assert_eq!(left, wanted, "of {flows:?}");
}

/// Returns a reproducible pseudorandom generator of numbers below its argument.
fn numbers() -> impl FnMut(usize) -> usize {
    let mut random = 1_u64;
    move |bound| {
        random = random.wrapping_mul(6_364_136_223_846_793_005) + 1;
        (random >> 40) as usize % bound
    }
}

fn shuffle(flows: &mut [u8], below: &mut impl FnMut(usize) -> usize) {
    for at in (1..flows.len()).rev() {
        flows.swap(at, below(at + 1));
    }
}

/// The first packets need more lookups than are made for a burst at once, so some of these wait;
/// the second ones need fewer, and come behind packets that need none.
#[test]
fn packets_that_wait_for_lookups_leave_before_later_ones_of_their_flows() {
    for lookups in [Lookups::Listed, Lookups::Nested] {
        let mut switch = looking_up(lookups);
        for (first, then) in [(28, 20), (32, 16), (40, 8), (26, 26)] {
            let first = LOOK_UP.take(first);
            let then = LOOK_UP.rev().skip(LOOK_UP.len() - first.len()).take(then);
            let between = SEND.take(2);
            let mut flows: Vec<u8> = first.chain(between.clone()).chain(then).collect();
            flows.extend(between.cycle().take(LOOKUP_MAX - flows.len()));
            keeps_order(&mut switch, &flows);
        }
    }
}

/// The same for bursts with two packets of each flow, and packets that are only sent anywhere
/// between them.
#[test]
fn packets_of_a_flow_leave_in_order_whatever_is_between_them() {
    for lookups in [Lookups::Listed, Lookups::Nested] {
        let (mut switch, mut below) = (looking_up(lookups), numbers());
        for turn in 0..600 {
            let slow = 8 + below(23);
            let mut pick = |range: Range<u8>, count: usize| {
                let mut all: Vec<u8> = range.collect();
                shuffle(&mut all, &mut below);
                all.truncate(count);
                all
            };
            let (slow, fast) = (pick(LOOK_UP, slow), pick(SEND, LOOKUP_MAX / 2 - slow));
            let mut flows = [&slow[..], &fast, &slow, &fast].concat();
            match turn % 3 {
                // In any order.
                0 => shuffle(&mut flows, &mut below),
                // The first packets of all flows, and then the second ones.
                1 => {
                    for half in flows.chunks_mut(LOOKUP_MAX / 2) {
                        shuffle(half, &mut below);
                    }
                }
                // Runs of those that look up, with others between.
                _ => {
                    let at = below(slow.len());
                    flows[slow.len()..].rotate_left(at);
                }
            }
            keeps_order(&mut switch, &flows);
        }
    }
}
