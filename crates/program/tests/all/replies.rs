//! DHCP replies reach the local port where the bridge wants that, whichever way the burst takes
//! through the engine, once, and no other packet does.

use crate::support::{BACK, Met, Switch};
use packet::{Field, HeapFrame, Match};
use program::actions::{Op, PortNo};

const LOCAL: PortNo = 0xffff_fffe;

/// Returns a UDP packet between these ports, by a tag or without.
fn frame(tagged: bool, host: u8, source: u8, destination: u8) -> HeapFrame {
    let mut bytes = vec![2, 0, 0, 0, 0, host, 2, 0, 0, 0, 0, 1];
    if tagged {
        bytes.extend([0x81, 0, 0, 5]);
    }
    bytes.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend([10, 0, 0, 1, 10, 0, 0, host]);
    bytes.extend([0, source, 0, destination, 0, 8, 0, 0]);
    bytes.resize(64, 0);
    HeapFrame::new(&bytes)
}

/// Creates a switch with these rules of table 0, for packets to a host or for all, and one of table
/// 1.
fn with_rules(rules: Vec<(Option<u8>, Vec<Op>)>) -> Switch {
    let mut switch = Switch::new();
    for (host, ops) in rules {
        let mut matching = Match::any();
        if let Some(host) = host {
            matching.set_exact(Field::EthDst, 0x0200_0000_0000 + u128::from(host));
        }
        switch.add(0, matching, 10 - u32::from(host.is_none()), ops);
    }
    switch.add(1, Match::any(), 1, vec![Op::Output(4)]);
    switch.shape();
    switch
}

/// How many packets left by each of these ports.
fn left(met: &Met, ports: [PortNo; 4]) -> [usize; 4] {
    assert!(met.sent.iter().all(|(port, _)| ports.contains(port)));
    ports.map(|port| met.sent.iter().filter(|(to, _)| *to == port).count())
}

#[test]
fn replies_reach_the_local_port_once() {
    let resubmit = Op::Resubmit {
        in_port: None,
        table: Some(1),
    };
    // What rules do with packets, and how many of them leave by 2, 3 and 4.
    let lists: Vec<(Vec<Op>, [usize; 3])> = vec![
        (vec![], [0, 0, 0]),
        (vec![Op::Output(2)], [1, 0, 0]),
        (vec![Op::Output(2), Op::Output(3)], [1, 1, 0]),
        (vec![Op::Output(LOCAL), Op::Output(2)], [1, 0, 0]),
        (vec![resubmit, Op::Output(2)], [1, 0, 1]),
        (vec![Op::PopVlan, Op::Output(2)], [1, 0, 0]),
    ];
    for many in [false, true] {
        for (ops, [two, three, four]) in &lists {
            let what = format!("{many} {ops:?}");
            let sends_there = ops.iter().any(|op| matches!(op, Op::Output(LOCAL)));
            let rules = match many {
                // A table that is told by value and a rule for each packet, or one for all.
                true => (0..100).map(|host| (Some(host), ops.clone())).collect(),
                false => vec![(None, ops.clone())],
            };
            let mut switch = with_rules(rules);
            let others = |source, destination| {
                (0..30).map(move |at| frame(at % 3 == 0, at, source, destination))
            };
            let bursts = |switch: &mut Switch| {
                let mut frames: Vec<HeapFrame> = others(68, 67).chain(others(67, 67)).collect();
                let without = switch.walk(1, others(67, 1).collect());
                for (at, tagged) in [(5, false), (50, true)] {
                    frames.insert(at, frame(tagged, 40, 67, 68));
                }
                (without, switch.walk(1, frames))
            };
            let local = |replies: usize, all: usize| match sends_there {
                true => all,
                false => replies,
            };
            for wanted in [false, true, true, false] {
                switch.writer.bridge().deliver_replies(wanted);
                let (without, with) = bursts(&mut switch);
                let ports = [LOCAL, 2, 3, 4];
                let replies = if wanted { 2 } else { 0 };
                let expected =
                    |replies, all| [local(replies, all), all * two, all * three, all * four];
                assert_eq!(left(&without, ports), expected(0, 30), "{what}");
                assert_eq!(left(&with, ports), expected(replies, 62), "{what}");
                // What reaches the local port is not dropped.
                if ops.is_empty() {
                    assert_eq!(with.dropped.len(), 62 - replies, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_reply_of_the_local_port_comes_back() {
    let mut switch = with_rules(vec![(None, vec![Op::Output(2)])]);
    switch.writer.bridge().deliver_replies(true);
    let met = switch.walk(
        LOCAL,
        vec![frame(false, 1, 67, 68), frame(false, 1, 68, 67)],
    );
    assert_eq!(left(&met, [BACK, 2, 3, 4]), [1, 2, 0, 0]);
}

#[test]
fn a_reply_reaches_the_local_port_as_the_rules_leave_it() {
    let mut switch = with_rules(vec![(None, vec![Op::PopVlan, Op::Output(2)])]);
    switch.writer.bridge().deliver_replies(true);
    let sent = switch.walk(1, vec![frame(true, 1, 67, 68)]).only_sent();
    assert_eq!(sent.len(), 2);
    assert!(sent.iter().all(|(_, bytes)| bytes[12..14] == [8, 0]));
    // Without a rule: it is not counted as dropped.
    let mut switch = with_rules(vec![]);
    switch.writer.bridge().deliver_replies(true);
    let sent = switch.walk(1, vec![frame(true, 1, 67, 68)]).only_sent();
    assert_eq!(sent.len(), 1);
}
