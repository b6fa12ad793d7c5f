//! Frames with any contents are read as BFD's, and what they carry goes to a session whose time
//! passes. Must hold:
//!
//! * nothing panics;
//! * a message that is read, written and read again is the same;
//! * a message that is refused changes nothing that is shown;
//! * what the session sends is a message that another one takes.
//!
//! Input: a byte with the session's settings, then records: a byte of time (units of 50 ms), a
//! length, and so many bytes of a frame.
#![no_main]

use bfd::session::{Session, Settings};
use bfd::wire::{self, Message};
use libfuzzer_sys::fuzz_target;

const RECORDS: usize = 64;

fuzz_target!(|data: &[u8]| {
    let Some((options, mut data)) = data.split_first() else {
        return;
    };
    let settings = Settings {
        forwarding_if_rx: options & 1 != 0,
        cpath_down: options & 2 != 0,
        decay_min_rx_ms: if options & 4 != 0 { 2000 } else { 0 },
        multiplier: options >> 4 | 1,
        ..Settings::default()
    };
    let mut session = Session::new(settings, 0x0102_0304, 0, 0);
    let mut now = 0;
    for packets in 0..RECORDS as u64 {
        let [time, length, rest @ ..] = data else {
            return;
        };
        let (frame, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        (now, data) = (now + u64::from(*time) * 50, rest);
        session.run(now, packets);
        if let Some(message) = session.transmit(now) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        let Some(carried) = wire::carried(frame) else {
            continue;
        };
        if let Ok(message) = Message::decode(carried.payload) {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        let before = bfd::text::details(&session, now);
        if session.receive(carried.ttl, carried.payload, now).is_err() {
            assert_eq!(bfd::text::details(&session, now), before);
        }
    }
});
