//! Frames with any contents, in which a sink looks for what a generator wrote. Must hold:
//!
//! * nothing panics;
//! * what is found lies within the frame;
//! * a stamp that is read and written again is the same, and nothing around it changes.
//!
//! Input: a byte that chooses the layout, then the frame.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/traffic/src/stamp.rs"]
mod stamp;

use stamp::Layout;

fuzz_target!(|data: &[u8]| {
    let Some((choice, frame)) = data.split_first() else {
        return;
    };
    let layout = [Layout::Full, Layout::Short, Layout::Tcp][usize::from(*choice % 3)];
    let Some(at) = stamp::payload_at(frame) else {
        return;
    };
    let Some(found) = layout.read(frame, at) else {
        return;
    };
    assert!(at + layout.bytes() <= frame.len());
    assert_eq!(stamp::owner(frame, at), Some((found.stream, found.run)));
    let mut copy = frame.to_vec();
    layout.write(&mut copy, at, &found);
    assert_eq!(copy, frame);
});
