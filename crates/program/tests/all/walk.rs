//! What becomes of packets on which a step cannot be executed.

use crate::support::Met;
use packet::key::at;
use packet::{Field, Frame, HeapFrame, Value};
use program::Program;
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
