//! What becomes of packets on which a step cannot be executed.

use crate::support::Met;
use conntrack::{Direction, Helper, Nat, Range, Request, Tracked, Tracker};
use packet::checksum::Sum;
use packet::key::at;
use packet::parse::parse_frame;
use packet::{Field, FlowKey, Frame, HeapFrame, Value, WordSet};
use program::Program;
use program::actions::connection::{Track, Zone};
use program::actions::{Op, OpList};
use program::exec::Engine;
use program::host::DropReason;
use program::table::Bridge;
use std::sync::Arc;

/// Returns an untagged frame, with headroom or without.
fn frame(room: bool) -> HeapFrame {
    let bytes = [[2; 12].as_slice(), &[0x88, 0xcc], &[7; 46]].concat();
    let mut frame = HeapFrame::new(&bytes);
    if !room {
        let headroom = frame.headroom();
        assert!(frame.push_front(headroom));
        frame.head_mut()[..bytes.len()].copy_from_slice(&bytes);
    }
    frame
}

#[test]
fn a_packet_without_room_for_its_tag_is_dropped_and_counted() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut reader = program.domain.reader().unwrap();
    program.counters.add_worker(reader.index());
    let tci = Field::VlanTci.def();
    assert_eq!(tci.offset, at::VLAN_TCI);
    let tags = [
        Op::PushVlan(0x8100),
        Op::SetVlanVid { vid: 5, push: true },
        Op::SetVlanPcp { pcp: 5, push: true },
        Op::SetField {
            field: Field::VlanTci,
            value: Value::from_u128(0x1005, tci.bytes),
            mask: tci.place(),
        },
    ];
    for tag in tags {
        let list = std::sync::Arc::new(OpList::new(vec![tag, Op::Output(2)]));
        let mut walk = |room| {
            let mut sink = Met::default();
            let mut engine = Engine::new();
            let guard = reader.begin();
            engine.run_ops(&bridge, &guard, 1, frame(room), &list, 0, &mut sink);
            sink
        };
        let with = walk(true);
        assert_eq!((with.sent.len(), with.dropped.len()), (1, 0), "{list:?}");
        assert_eq!(with.sent[0].1[12..14], [0x81, 0], "{list:?}");
        let without = walk(false);
        assert_eq!(without.sent.len(), 0, "{list:?}");
        assert_eq!(without.dropped, [DropReason::ActionFailed], "{list:?}");
    }
}

#[test]
fn fragments_are_dropped_where_the_bridge_says_so() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut reader = program.domain.reader().unwrap();
    program.counters.add_worker(reader.index());
    let ip = |fragment: [u8; 2]| {
        let mut header = vec![0x45, 0, 0, 40, 0, 1];
        header.extend(fragment);
        header.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        HeapFrame::new(&[[2; 12].as_slice(), &[8, 0], &header, &[7; 40]].concat())
    };
    // Whole, with the flag that forbids fragments, a first fragment, a later one, the last one.
    let packets = [[0, 0], [0x40, 0], [0x20, 0], [0x20, 5], [0, 9]];
    let mut engine = Engine::new();
    let mut dropped = |wanted: bool| {
        bridge.drop_fragments(wanted);
        let mut sink = Met::default();
        let mut frames: Vec<HeapFrame> = packets.iter().map(|bytes| ip(*bytes)).collect();
        let guard = reader.begin();
        engine.burst(&bridge, &guard, 1, &mut frames, 0, 1, &mut sink);
        sink.dropped_for(DropReason::Fragment)
    };
    assert_eq!(dropped(false), 0);
    assert_eq!(dropped(true), 3);
    assert_eq!(dropped(false), 0);
}

const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 4000);
const SERVER: ([u8; 4], u16) = ([10, 0, 0, 2], 21);
/// What the server has as the client's address.
const OUTSIDE: [u8; 4] = [200, 200, 200, 200];

fn tcp(
    from: ([u8; 4], u16),
    to: ([u8; 4], u16),
    flags: u8,
    [sequence, acknowledgement]: [u32; 2],
    payload: &[u8],
) -> Vec<u8> {
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledgement.to_be_bytes());
    segment.extend([0x50, flags, 0xf0, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    let length = segment.len() as u16;
    let mut sum = Sum::new();
    sum.add_bytes(&segment);
    sum.add_pseudo_header(&from.0, &to.0, 6, length.into());
    segment[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    let mut header = [&[0x45, 0], (length + 20).to_be_bytes().as_slice()].concat();
    header.extend([0, 1, 0, 0, 64, 6, 0, 0]);
    header.extend([from.0, to.0].concat());
    let checksum = packet::checksum::ipv4_header(&header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&[2; 12], [8, 0].as_slice(), &header, &segment].concat()
}

/// Returns a command of a translated control connection with the tracker's answer, and likewise the
/// segment behind it.
fn command_and_next() -> [(Vec<u8>, Tracked); 2] {
    let tracker = Tracker::new([1, 2]);
    let address = OUTSIDE.into();
    let nat = Nat {
        direction: Some(Direction::Source),
        range: Some(Range {
            min: address,
            max: address,
            ports: None,
        }),
        ..Nat::default()
    };
    let request = Request {
        commit: true,
        nat: Some(&nat),
        helper: Some(Helper::Ftp),
        ..Request::default()
    };
    let track = |bytes: Vec<u8>| {
        let mut frame = HeapFrame::new(&bytes);
        let mut key = FlowKey::ZERO;
        let layers = parse_frame(&mut frame, 1, WordSet::MINI_KEY, &mut key);
        let tracked = tracker.track(&frame, &layers, &request, 1);
        (bytes, tracked)
    };
    let (syn, ack) = (2, 16);
    let line = b"PORT 10,0,0,1,4,3\r\n";
    track(tcp(CLIENT, SERVER, syn, [0, 0], b""));
    track(tcp(SERVER, (OUTSIDE, CLIENT.1), syn | ack, [0, 1], b""));
    track(tcp(CLIENT, SERVER, ack, [1, 1], b""));
    let command = track(tcp(CLIENT, SERVER, ack, [1, 1], line));
    let behind = 1 + line.len() as u32;
    let next = track(tcp(CLIENT, SERVER, ack, [behind, 1], &[7; 64]));
    [command, next]
}

#[test]
fn only_the_first_fragment_of_a_control_connections_segment_is_rewritten() {
    let program = Arc::new(Program::new());
    let bridge = Bridge::new(Arc::clone(&program));
    let mut reader = program.domain.reader().unwrap();
    program.counters.add_worker(reader.index());
    let list = Arc::new(OpList::new(vec![
        Op::Track(Box::new(Track {
            commit: false,
            force: false,
            zone: Zone::Number(0),
            table: None,
            writes: [].into(),
            nat: Some(Nat::default()),
            helper: None,
        })),
        Op::Output(2),
    ]));
    let mut walk = |bytes: &[u8], tracked: &Tracked| {
        let mut sink = Met {
            // Its rewrite is what counts here.
            answer: Tracked {
                translation: Default::default(),
                ..*tracked
            },
            ..Met::default()
        };
        let guard = reader.begin();
        let frame = HeapFrame::new(bytes);
        Engine::new().run_ops(&bridge, &guard, 1, frame, &list, 0, &mut sink);
        sink
    };
    let at_sequence = 14 + 20 + 4..14 + 20 + 8;
    let [command, next] = command_and_next();
    assert!(command.1.rewrite.unwrap().replaces_text());
    assert!(!next.1.rewrite.unwrap().replaces_text());
    // Whole, a first fragment, a later one, the last one.
    for place in [[0, 0], [0x20, 0], [0x20, 5], [0, 9]] {
        let fragment = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[20..22].copy_from_slice(&place);
            bytes
        };
        let whole = place == [0, 0];
        let bytes = fragment(&next.0);
        let sent = walk(&bytes, &next.1).only_sent();
        if place[1] == 0 {
            let changed = &sent[0].1[at_sequence.clone()];
            assert_ne!(changed, &bytes[at_sequence.clone()], "{place:?}");
        } else {
            assert_eq!(sent[0].1, bytes, "{place:?}");
        }
        let sink = walk(&fragment(&command.0), &command.1);
        assert_eq!(sink.sent.len(), usize::from(whole), "{place:?}");
        let dropped = sink.dropped_for(DropReason::ActionFailed);
        assert_eq!(dropped, u64::from(!whole), "{place:?}");
    }
}
