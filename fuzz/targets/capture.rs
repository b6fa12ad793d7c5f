//! Captures with any contents, pcap and pcapng. Must hold:
//!
//! * nothing panics;
//! * frames that are read lie within the file, and their times do not decrease;
//! * a file that is read is read the same way once more.
//!
//! Input: the file.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/traffic/src/capture.rs"]
mod capture;

fuzz_target!(|data: &[u8]| {
    let Ok(read) = capture::Capture::read(data.to_vec()) else {
        return;
    };
    let times: Vec<u64> = read.times().collect();
    assert!(times.is_sorted() && times.len() == read.len());
    let again = capture::Capture::read(data.to_vec()).expect("it was read before");
    for number in 0..read.len() {
        let frame = read.frame(number);
        assert!((14..=capture::LONGEST).contains(&frame.len()) && frame.len() < data.len());
        assert_eq!(frame, again.frame(number));
    }
});
