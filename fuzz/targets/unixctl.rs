//! Bytes that an `ovs-appctl` may send: in pieces of any size, they are cut into the same messages,
//! and messages into commands.
//!
//! The two modules are included by path, so that the daemon and its dependencies need not be built.
//!
//! Input: one byte for the size of the pieces, then the stream.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/switchd/src/unixctl/framing.rs"]
mod framing;
#[path = "../../crates/switchd/src/unixctl/request.rs"]
mod request;

use framing::{Framer, FramingError, MAXIMUM_MESSAGE};
use request::parse_request;

/// Returns the messages, and how the stream ended.
fn cut(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, Option<FramingError>) {
    let mut framer = Framer::default();
    let mut messages = Vec::new();
    for piece in bytes.chunks(piece) {
        framer.push(piece);
        loop {
            match framer.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Some(error)),
            }
        }
    }
    (messages, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, bytes)) = data.split_first() else {
        return;
    };
    let cut_small = cut(bytes, usize::from(*piece) + 1);
    assert_eq!(
        cut_small,
        cut(bytes, bytes.len().max(1)),
        "messages depend on how the bytes arrive"
    );
    for message in &cut_small.0 {
        assert!(message.len() <= MAXIMUM_MESSAGE);
        if let Ok(request) = parse_request(message) {
            assert!(
                !request.id.is_null(),
                "an answer to this could not be told from a notification"
            );
        }
    }
});
