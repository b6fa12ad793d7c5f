//! Messages that a vhost-user front end may send: headers and payloads of any kind. They are read
//! or refused, and what is read keeps the limits that the device relies on.
//!
//! Input: messages one after the other, each a header and its payload, as on the wire.
#![no_main]
#![allow(dead_code, unused_imports)]

use libfuzzer_sys::fuzz_target;
use message::{HEAD, Head, MAX_MSG_SIZE, MOST_FILES, Request};

#[path = "../../crates/ports/src/vhost/message.rs"]
mod message;

/// Returns whether the sum does not overflow.
fn adds(parts: &[u64]) -> bool {
    parts
        .iter()
        .try_fold(0u64, |sum, part| sum.checked_add(*part))
        .is_some()
}

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD>() {
        let Ok(head) = Head::decode(head) else { return };
        assert!(head.length <= MAX_MSG_SIZE);
        let (payload, next) = behind.split_at(head.length.min(behind.len()));
        rest = next;
        match Request::decode(head.request, payload) {
            Ok(Request::SetMemTable(regions)) => {
                assert!((1..=MOST_FILES).contains(&regions.len()));
                for region in regions {
                    let (size, offset) = (region.memory_size, region.mmap_offset);
                    assert!(size > 0 && adds(&[region.guest_phys_addr, size]));
                    assert!(adds(&[region.user_addr, size]) && adds(&[offset, size]));
                }
            }
            Ok(Request::SetLogBase(log)) => assert!(adds(&[log.mmap_offset, log.mmap_size])),
            Ok(Request::SetVringKick(file) | Request::SetVringCall(file)) => {
                assert!(file.ring <= 0xff);
            }
            Ok(_) => {}
            Err(wrong) => assert!(!wrong.to_string().is_empty()),
        }
    }
});
