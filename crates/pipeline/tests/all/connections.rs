//! Rules that track connections: the walk does what the reference does, each with a tracker of its
//! own.

use crate::common::outside::{Outside, To};
use crate::common::{Switch, effects};
use conntrack::{Earlier, Request, Tracked, Tracker, state};
use openflow::parse;
use packet::key::at;
use packet::parse::Layers;
use packet::{FlowKey, HeapFrame, WordSet};
use pipeline::reference::{self, Effect, Surroundings};
use program::actions::ToController;
use program::exec::Engine;
use program::host::{Context, DropReason};
use proptest::prelude::*;

/// Notes effects, and tracks.
struct Notes<'t> {
    effects: Vec<Effect>,
    drops: Vec<DropReason>,
    tracker: &'t Tracker,
    now: u64,
}

impl Outside for Notes<'_> {
    fn output(&mut self, context: Context<'_>, port: u32, frame: HeapFrame, to_in_port: bool) {
        self.effects
            .push(effects::output(context, port, &frame, to_in_port));
    }
    fn controller(&mut self, context: Context<'_>, to: &ToController, frame: &HeapFrame) {
        self.effects.push(effects::controller(&context, to, frame));
    }
    fn track(
        &mut self,
        frame: &HeapFrame,
        layers: &Layers,
        earlier: Earlier,
        request: &Request<'_>,
    ) -> Tracked {
        (self.tracker).track_again(frame, layers, earlier, request, self.now)
    }
    fn tracker(&mut self) -> Option<(&Tracker, u64)> {
        Some((self.tracker, self.now))
    }
    fn dropped(&mut self, reason: DropReason) {
        self.drops.push(reason);
    }
}

/// Tracks for the reference, which has bytes.
fn track(
    tracker: &Tracker,
    bytes: &[u8],
    earlier: Earlier,
    request: &Request<'_>,
    now: u64,
) -> Tracked {
    let mut key = FlowKey::ZERO;
    let layers = packet::parse::parse(bytes, bytes.len(), 1, WordSet(u64::MAX), &mut key);
    tracker.track_again(&HeapFrame::new(bytes), &layers, earlier, request, now)
}

/// One packet of a few connections.
#[derive(Clone, Copy, Debug)]
struct Packet {
    in_port: u32,
    protocol: u8,
    hosts: (u8, u8),
    ports: (u16, u16),
    flags: u8,
    sequence: u32,
}

impl Packet {
    fn bytes(&self) -> Vec<u8> {
        let (source, destination) = self.hosts;
        let mut transport = match self.protocol {
            6 => {
                let mut tcp = vec![0; 20];
                tcp[0..2].copy_from_slice(&self.ports.0.to_be_bytes());
                tcp[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
                tcp[4..8].copy_from_slice(&self.sequence.to_be_bytes());
                tcp[8..12].copy_from_slice(&1_u32.to_be_bytes());
                (tcp[12], tcp[13]) = (0x50, self.flags);
                tcp[14..16].copy_from_slice(&0x2000_u16.to_be_bytes());
                tcp
            }
            17 => {
                let mut udp = vec![0; 12];
                udp[0..2].copy_from_slice(&self.ports.0.to_be_bytes());
                udp[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
                udp[5] = 12;
                udp
            }
            _ => {
                // An echo request or reply.
                let mut icmp = vec![0; 12];
                icmp[0] = if self.flags & 1 == 0 { 8 } else { 0 };
                icmp[5] = self.ports.0 as u8;
                icmp
            }
        };
        let mut ip = vec![0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, self.protocol, 0, 0];
        ip.extend([10, 0, 0, source, 10, 0, 0, destination]);
        let len = (ip.len() + transport.len()) as u16;
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum);
        let at = match self.protocol {
            6 => 16,
            17 => 6,
            _ => 2,
        };
        let pseudo = [&ip[12..20], &[0, self.protocol], &(len - 20).to_be_bytes()].concat();
        let sum = match self.protocol {
            1 => checksum(&[&transport]),
            _ => checksum(&[&pseudo, &transport]),
        };
        transport[at..at + 2].copy_from_slice(&sum);
        let ethernet = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        [&ethernet[..], &ip, &transport].concat()
    }
}

/// A datagram to a name server.
const REQUEST: Packet = Packet {
    in_port: 1,
    protocol: 17,
    hosts: (1, 2),
    ports: (1000, 53),
    flags: 0,
    sequence: 0,
};

fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum = words.map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u32 = sum.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    (!(sum as u16)).to_be_bytes()
}

const MATCHES: &[&str] = &[
    "ip,ct_state=-trk",
    "ip,ct_state=+trk+new",
    "ip,ct_state=+trk+est",
    "ip,ct_state=+trk+inv",
    "ip,ct_state=+trk+rpl",
    "ip,ct_state=+trk+snat",
    "ip,ct_state=+trk,ct_mark=5",
    "ip,ct_state=+trk,ct_zone=2",
    "ip,ct_state=+trk,ct_label=0x10000000000000000/0x10000000000000000",
    "ip,ct_state=+trk+est,ct_nw_src=10.0.0.1",
    "ip,ct_state=+trk+est,ct_nw_proto=6,ct_tp_dst=80",
    "ip,in_port=1",
    "tcp,tp_dst=80",
    "tcp",
    "ip,nw_src=10.0.0.1",
    "ip,nw_dst=10.0.0.9",
    "ip,reg1=1",
    "ip",
];

const ACTIONS: &[&str] = &[
    "ct(table=NEXT)",
    "ct(table=NEXT,zone=2)",
    "ct(table=NEXT,nat)",
    "ct(commit),output:2",
    "ct(commit,table=NEXT)",
    "ct(commit,force,table=NEXT),output:4",
    "ct(commit,nat(src=10.0.0.9),table=NEXT)",
    "ct(commit,nat(dst=10.0.0.8:90-99),table=NEXT)",
    "ct(commit,nat(src=10.0.0.9-10.0.0.10:1000-1002,random),table=NEXT),output:3",
    "ct(commit,exec(set_field:5->ct_mark),table=NEXT)",
    "ct(commit,zone=NXM_NX_REG2[0..15],exec(set_field:0x10000000000000000->ct_label))",
    "load:1->NXM_NX_REG1[],ct(commit,exec(move:NXM_NX_REG1[]->NXM_NX_CT_MARK[]),table=NEXT)",
    "load:2->NXM_NX_REG2[],resubmit(,NEXT),output:5",
    "clone(ct(table=NEXT),output:6),output:7",
    "ct(table=NEXT),ct(commit,zone=3),output:8",
    "ct_clear,resubmit(,NEXT)",
    "set_field:10.0.0.7->nw_src,output:9",
    "output:2",
    "controller",
    "ct(table=SAME)",
    "resubmit(,NEXT),resubmit(,NEXT)",
    "exit",
    "output:7,exit",
    "ct(table=NEXT),output:5,exit",
    "push:NXM_NX_REG1[],ct(table=NEXT),pop:NXM_NX_REG3[],output:NXM_NX_REG3[0..15]",
];

#[derive(Clone, Debug)]
struct Rules(Vec<String>);

impl Rules {
    fn of<const N: usize>(rules: [&str; N]) -> Rules {
        Rules(rules.map(str::to_owned).to_vec())
    }

    /// Returns a switch with these rules.
    fn switch(&self) -> Switch {
        let mut switch = Switch::new();
        for rule in &self.0 {
            let change = parse::flow(rule, &parse::no_names).expect(rule);
            switch.mod10(change).expect(rule);
        }
        switch.publish();
        switch
    }
}

fn rules() -> impl Strategy<Value = Rules> {
    let rule = (0..4_u8, 0..MATCHES.len(), 0..ACTIONS.len());
    proptest::collection::vec(rule, 4..24).prop_map(|rules| {
        let text = |(index, (table, matching, actions)): (usize, (u8, usize, usize))| {
            // Rules of one priority would leave open which one a packet meets.
            let priority = index + 1;
            let actions = ACTIONS[actions]
                .replace("NEXT", &(table + 1).to_string())
                .replace("SAME", &table.to_string());
            let matching = MATCHES[matching];
            format!("table={table},priority={priority},{matching},actions={actions}")
        };
        let first = "table=0,priority=0,ip,actions=ct(table=1)".to_owned();
        let last = "table=4,ip,actions=output:1".to_owned();
        let rules = rules.into_iter().enumerate().map(text);
        Rules(rules.chain([first, last]).collect())
    })
}

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let flags = prop::sample::select(vec![0x02_u8, 0x12, 0x10, 0x18, 0x11, 0x04]);
    let packet = (
        (1..3_u32, prop::sample::select(vec![6_u8, 17, 1])),
        (1..3_u8, prop::sample::select(vec![2_u8, 1, 8, 9])),
        prop::sample::select(vec![(1000, 80), (80, 1000), (1001, 80), (90, 1000)]),
        (flags, 0..3_u32),
    );
    let packet = packet.prop_map(
        |((in_port, protocol), hosts, ports, (flags, sequence))| Packet {
            in_port,
            protocol,
            hosts,
            ports,
            flags,
            sequence,
        },
    );
    proptest::collection::vec(packet, 1..40)
}

/// Returns the ports that a packet left by, 0 for other effects.
fn ports(effects: &[Effect]) -> Vec<u32> {
    let port = |effect: &Effect| match effect {
        Effect::Output { port, .. } => *port,
        _ => 0,
    };
    effects.iter().map(port).collect()
}

fn comparable(effects: &[Effect]) -> Vec<Effect> {
    let plain = |effect: &Effect| match effect {
        Effect::Controller {
            reason,
            table,
            cookie,
            max_len,
            controller_id,
            userdata,
            bytes,
            ..
        } => Effect::Controller {
            reason: *reason,
            table: *table,
            cookie: *cookie,
            max_len: *max_len,
            controller_id: *controller_id,
            userdata: userdata.clone(),
            key: Box::new(FlowKey::ZERO),
            bytes: bytes.clone(),
        },
        other => other.clone(),
    };
    effects.iter().map(plain).collect()
}

/// Sends packets through rules, one after the other, by the walk and by the reference.
fn compare(rules: &Rules, packets: &[Packet]) -> Result<usize, TestCaseError> {
    let switch = rules.switch();
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let mut engine = Engine::new();
    let (ours, theirs) = (Tracker::new([1, 2]), Tracker::new([1, 2]));
    let mut tracked = 0;
    for (index, packet) in packets.iter().enumerate() {
        let (bytes, now) = (packet.bytes(), switch.now + 100 * index as u64);
        let by = |bytes: &[u8], earlier: Earlier, request: &Request<'_>| {
            track(&theirs, bytes, earlier, request, now)
        };
        let outcome = reference::evaluate_tracked(&switch.pipeline, packet.in_port, &bytes, &by);
        let mut notes = Notes {
            effects: Vec::new(),
            drops: Vec::new(),
            tracker: &ours,
            now,
        };
        let guard = reader.begin();
        engine.burst(
            &switch.bridge,
            &guard,
            packet.in_port,
            &mut vec![HeapFrame::new(&bytes)],
            0,
            now,
            &mut To(&mut notes),
        );
        if outcome.cut_short || outcome.failed_copies > 0 {
            // Too many lookups: the trackers may have seen different packets.
            return Ok(tracked);
        }
        prop_assert_eq!(
            comparable(&notes.effects),
            comparable(&outcome.effects),
            "packet {} of {:?}",
            index,
            packet
        );
        prop_assert_eq!(ours.count(), theirs.count());
        tracked += ours.count();
    }
    Ok(tracked)
}

proptest! {
    #[test]
    fn tracked_packets_go_as_the_reference_says(rules in rules(), packets in packets()) {
        compare(&rules, &packets)?;
    }
}

/// Sends packets of different connections through rules in bursts, by lanes where that is possible,
/// and one by one by the reference.
fn compare_bursts(rules: &Rules, packets: &[Packet]) -> Result<(), TestCaseError> {
    let switch = rules.switch();
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let mut engine = Engine::new();
    let (ours, theirs) = (Tracker::new([1, 2]), Tracker::new([1, 2]));
    let (mut rest, mut now) = (packets.to_vec(), switch.now);
    while let Some(first) = rest.first().copied() {
        let mut known = Vec::new();
        let is_of_burst = |packet: &Packet| {
            let (low, high) = (
                packet.hosts.0.min(packet.hosts.1),
                packet.hosts.0.max(packet.hosts.1),
            );
            let connection = (packet.protocol, low, high);
            let fits = packet.in_port == first.in_port && !known.contains(&connection);
            known.push(connection);
            fits
        };
        let (burst, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_of_burst);
        rest = others;
        now += 100;
        let by = |bytes: &[u8], earlier: Earlier, request: &Request<'_>| {
            track(&theirs, bytes, earlier, request, now)
        };
        let mut wanted = Vec::new();
        for packet in &burst {
            let bytes = packet.bytes();
            let outcome =
                reference::evaluate_tracked(&switch.pipeline, packet.in_port, &bytes, &by);
            if outcome.cut_short {
                return Ok(());
            }
            wanted.extend(comparable(&outcome.effects));
        }
        let mut notes = Notes {
            effects: Vec::new(),
            drops: Vec::new(),
            tracker: &ours,
            now,
        };
        let frame = |packet: &Packet| HeapFrame::new(&packet.bytes());
        let guard = reader.begin();
        engine.burst(
            &switch.bridge,
            &guard,
            first.in_port,
            &mut burst.iter().map(frame).collect(),
            0,
            now,
            &mut To(&mut notes),
        );
        // Packets of different connections may overtake each other.
        let sorted = |effects: &[Effect]| {
            let mut all = effects
                .iter()
                .map(|one| format!("{one:?}"))
                .collect::<Vec<_>>();
            all.sort_unstable();
            all
        };
        let got = comparable(&notes.effects);
        prop_assert_eq!(sorted(&got), sorted(&wanted), "burst {:?}", burst);
        prop_assert_eq!(ours.count(), theirs.count());
    }
    Ok(())
}

proptest! {
    /// Which of several ports a translated connection gets depends on the order of a burst.
    #[test]
    fn tracked_bursts_go_as_the_reference_says(rules in rules(), packets in packets()) {
        let untranslated = rules.0.into_iter().filter(|rule| !rule.contains("nat("));
        compare_bursts(&Rules(untranslated.collect()), &packets)?;
    }
}

/// A packet that may not go on behind the tracker once more has been tracked.
#[test]
fn the_last_ct_counts_though_the_packet_may_not_go_on() {
    let rule = |table: u8| {
        let next = table + 1;
        format!("table={table},ip,actions=ct(commit,zone={next},table={next})")
    };
    let rules = Rules((0..9).map(rule).collect());
    assert_eq!(compare(&rules, &[REQUEST]).unwrap(), 7);
}

/// Steps behind lookups, thousands of them, need no deeper a stack than one.
#[test]
fn thousands_of_ct_need_no_deep_stack() {
    let many = "ct(commit)".repeat(1000).replace(")ct", "),ct");
    let rule = |table: u8| format!("table={table},ip,actions=resubmit(,{}),{many}", table + 1);
    let last = ["table=13,ip,actions=output:2".to_owned()];
    let rules = Rules((0..13).map(rule).chain(last).collect());
    let switch = rules.switch();
    let mut reader = switch.program.domain.reader().unwrap();
    switch.program.counters.add_worker(reader.index());
    let tracker = Tracker::new([1, 2]);
    let mut notes = Notes {
        effects: Vec::new(),
        drops: Vec::new(),
        tracker: &tracker,
        now: switch.now,
    };
    let guard = reader.begin();
    let frames = &mut vec![HeapFrame::new(&REQUEST.bytes())];
    let host = &mut To(&mut notes);
    Engine::new().burst(&switch.bridge, &guard, 1, frames, 0, switch.now, host);
    assert_eq!(tracker.count(), 1);
}

/// Packets that loop through the tracker end.
#[test]
fn loops_through_the_tracker_end() {
    let rules = Rules::of(["table=0,ip,actions=ct(table=0),output:3"]);
    compare(&rules, &[REQUEST]).unwrap();
}

/// A step that fails in the tracked copy of a packet ends that copy, with what it was to send, and
/// not the list that tracked the packet; nor the list around a clone that did.
#[test]
fn a_failure_ends_the_tracked_copy_only() {
    for (rules, wanted) in [
        (
            [
                "table=0,ip,actions=output:1,ct(table=1),output:2",
                "table=1,ip,actions=output:3,resubmit(,1),output:4",
                "table=2,ip,actions=drop",
            ],
            vec![1, 2],
        ),
        // A copy of a copy.
        (
            [
                "table=0,ip,actions=ct(table=1),output:2",
                "table=1,ip,actions=ct(table=2),output:3",
                "table=2,ip,actions=clone(resubmit(,2)),output:4",
            ],
            vec![3, 2],
        ),
        // In a clone, whose own list goes on.
        (
            [
                "table=0,ip,actions=clone(ct(table=1),output:2),resubmit(,2)",
                "table=1,ip,actions=resubmit(,1),write_actions(output:3)",
                "table=2,ip,actions=output:4",
            ],
            vec![2, 4],
        ),
    ] {
        let switch = Rules::of(rules).switch();
        let trackers = [Tracker::new([1, 2]), Tracker::new([1, 2])];
        let bytes = REQUEST.bytes();
        let by = |bytes: &[u8], earlier: Earlier, request: &Request<'_>| {
            track(&trackers[0], bytes, earlier, request, switch.now)
        };
        let outcome = reference::evaluate_tracked(&switch.pipeline, REQUEST.in_port, &bytes, &by);
        assert_eq!((outcome.cut_short, outcome.failed_copies), (false, 1));
        let mut notes = Notes {
            effects: Vec::new(),
            drops: Vec::new(),
            tracker: &trackers[1],
            now: switch.now,
        };
        let mut reader = switch.program.domain.reader().unwrap();
        switch.program.counters.add_worker(reader.index());
        Engine::new().burst(
            &switch.bridge,
            &reader.begin(),
            REQUEST.in_port,
            &mut vec![HeapFrame::new(&bytes)],
            0,
            switch.now,
            &mut To(&mut notes),
        );
        assert_eq!(comparable(&notes.effects), comparable(&outcome.effects));
        assert_eq!(ports(&notes.effects), wanted);
        assert_eq!(notes.drops, [DropReason::TooManyResubmits]);
    }
}

/// A traced packet that is tracked goes on in a story of its own, with the state that it is given
/// and the lowest address and port of its translation.
#[test]
fn a_traced_packet_goes_on_in_another_story() {
    let switch = Rules::of([
        "table=0,ip,actions=ct(commit,table=1,zone=5,nat(dst=10.0.0.8-10.0.0.9:90-99),\
         exec(set_field:7->ct_mark)),output:2",
        "table=1,priority=2,udp,ct_state=+est,ct_zone=5,ct_mark=7,nw_dst=10.0.0.8,tp_dst=90,\
         actions=ct_clear,output:3",
        "table=1,priority=1,ip,actions=output:4",
    ])
    .switch();
    let mut key = FlowKey::ZERO;
    key.set_u32(at::IN_PORT, REQUEST.in_port);
    key.set_u16(at::ETH_TYPE, 0x0800);
    let bytes = REQUEST.bytes();
    let surroundings = Surroundings::default();
    let (outcome, story) = reference::trace(&switch.pipeline, &key, &bytes, None, surroundings);
    assert_eq!(ports(&outcome.effects), [2]);
    let forks = story.forks();
    assert_eq!(forks.len(), 1);
    for (state, port) in [
        (state::TRACKED | state::ESTABLISHED, 3),
        (state::TRACKED | state::NEW, 4),
    ] {
        let (outcome, story) =
            reference::resume(&switch.pipeline, &forks[0], state, 9, surroundings);
        assert_eq!(ports(&outcome.effects), [port]);
        assert_eq!(story.before.u32(at::RECIRC_ID), 9);
        assert_eq!(story.before.u32(at::CT_STATE), state);
        assert!(story.forks().is_empty());
        assert_eq!(story.frame[30..34], [10, 0, 0, 8]);
    }
}

/// What tracked packets of a story keep is bounded, stacks included, and not copied any more.
#[test]
fn tracked_packets_of_a_story_take_bounded_memory() {
    let pushes = vec!["push:NXM_OF_IN_PORT[]"; 1000].join(",");
    let tracks = vec!["ct(table=1)"; 1500].join(",");
    let key = {
        let mut key = FlowKey::ZERO;
        key.set_u32(at::IN_PORT, REQUEST.in_port);
        key.set_u16(at::ETH_TYPE, 0x0800);
        key
    };
    // The stacks have 24 and 96 MB together; 64 MiB are admitted.
    for (times, is_whole) in [(1, true), (4, false)] {
        let again = vec!["resubmit(,3)"; times].join(",");
        let rules = [
            format!("table=0,ip,actions=resubmit(,2),{again}"),
            format!("table=2,ip,actions={pushes}"),
            format!("table=3,ip,actions={tracks}"),
        ];
        let switch = Rules::of(rules.each_ref().map(String::as_str)).switch();
        let bytes = REQUEST.bytes();
        let surroundings = Surroundings::default();
        let (outcome, story) = reference::trace(&switch.pipeline, &key, &bytes, None, surroundings);
        assert_eq!(outcome.cut_short, !is_whole);
        let forks = story.forks();
        assert_eq!(forks.len() == 1500 * times, is_whole);
        assert!(std::rc::Rc::ptr_eq(&forks[0], &story.forks()[0]));
    }
}

/// `ct_clear` makes the tracker forget the packet only where rules see its connection.
#[test]
fn ct_clear_forgets_only_what_rules_see() {
    let rules = Rules::of([
        "table=0,ip,actions=ct(commit,nat(dst=10.0.0.8)),ct_clear,ct(table=1),output:2",
        "table=1,priority=2,ip,ct_state=+trk+new+dnat,actions=ct_clear,ct(table=2),output:3",
        "table=1,priority=1,ip,actions=output:4",
        "table=2,priority=2,ip,ct_state=+dnat,actions=output:5",
        "table=2,priority=1,ip,ct_state=-dnat,actions=output:6",
    ]);
    compare(&rules, &[REQUEST]).unwrap();
    let switch = rules.switch();
    let tracker = Tracker::new([1, 2]);
    let by = |bytes: &[u8], earlier: Earlier, request: &Request<'_>| {
        track(&tracker, bytes, earlier, request, switch.now)
    };
    let bytes = REQUEST.bytes();
    let outcome = reference::evaluate_tracked(&switch.pipeline, REQUEST.in_port, &bytes, &by);
    assert_eq!(ports(&outcome.effects), [6, 3, 2]);
}

/// A connection is established for the replies that the rules let in, translated back.
#[test]
fn replies_come_back_translated() {
    let rules = Rules::of([
        "table=0,ip,actions=ct(table=1,nat)",
        "table=1,ip,ct_state=+trk+new,in_port=1,actions=ct(commit,nat(src=10.0.0.9:500)),output:2",
        "table=1,ip,ct_state=+trk+est+rpl+snat,in_port=2,actions=output:1",
    ]);
    let request = REQUEST;
    let reply = Packet {
        in_port: 2,
        hosts: (2, 9),
        ports: (53, 500),
        ..request
    };
    // The connection is there after each of both.
    assert_eq!(compare(&rules, &[request, reply]).unwrap(), 2);
}

/// Replies are looked up by their connection's first packet; other packets skip that.
#[test]
fn replies_are_looked_up_by_the_first_packet() {
    let rules = Rules::of([
        "table=0,ip,actions=ct(table=1)",
        "table=1,priority=1,ip,ct_state=+trk+new,in_port=1,actions=ct(commit),output:2",
        "table=1,priority=2,ip,ct_state=+trk+est,in_port=2,actions=resubmit(,2,ct),output:5",
        "table=2,udp,nw_src=10.0.0.1,tp_src=1000,actions=output:6",
        "table=2,priority=1,ip,actions=output:7",
    ]);
    let request = REQUEST;
    let reply = Packet {
        in_port: 2,
        hosts: (2, 1),
        ports: (53, 1000),
        ..request
    };
    assert_eq!(compare(&rules, &[request, reply]).unwrap(), 2);
    // What the reference says.
    let switch = rules.switch();
    let tracker = Tracker::new([1, 2]);
    let by = |bytes: &[u8], earlier: Earlier, request: &Request<'_>| {
        track(&tracker, bytes, earlier, request, 1000)
    };
    let sent = |packet: Packet| {
        let bytes = packet.bytes();
        let outcome = reference::evaluate_tracked(&switch.pipeline, packet.in_port, &bytes, &by);
        ports(&outcome.effects)
    };
    assert_eq!(sent(request), [2]);
    assert_eq!(sent(reply), [6, 5]);
}
