//! Replies that are too long to be put together in memory: the command makes them in pieces, and
//! makes the next one when the client has read the last.

use serde_json::Value;
use tokio::sync::mpsc;

/// Bytes that a piece has at most, about: the command stops adding to one that has so many.
pub const PIECE: usize = 32 * 1024;

/// A reply's text.
#[derive(Debug)]
pub enum Text {
    /// All of it.
    Whole(String),
    /// As it is made; it ends when the command drops its [`Pieces`].
    Pieces(mpsc::Receiver<String>),
}

/// Where a command puts the pieces of a reply.
#[derive(Debug)]
pub struct Pieces(mpsc::Sender<String>);

impl Pieces {
    /// Returns both ends. One piece at most is on its way, besides the one that is being written.
    pub(super) fn new() -> (Pieces, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(1);
        (Pieces(sender), receiver)
    }

    /// Adds a piece to the reply, once the client has read enough of it; returns false if it has
    /// gone, or does not read: then no more is needed.
    pub async fn add(&self, piece: String) -> bool {
        piece.is_empty() || self.0.send(piece).await.is_ok()
    }
}

/// A reply with a result in pieces, as bytes. Together they are the same as for a whole text.
pub(super) struct Encoder {
    ends_line: bool,
    is_empty: bool,
}

impl Encoder {
    pub fn new() -> Encoder {
        Encoder {
            ends_line: false,
            is_empty: true,
        }
    }

    /// Returns what comes before the first piece.
    pub fn begin(&self, id: &Value) -> Vec<u8> {
        format!("{{\"error\":null,\"id\":{id},\"result\":\"").into_bytes()
    }

    /// Returns a piece as part of a JSON string.
    pub fn piece(&mut self, piece: &str) -> Vec<u8> {
        if let Some(last) = piece.as_bytes().last() {
            self.is_empty = false;
            self.ends_line = *last == b'\n';
        }
        let mut text = Value::from(piece).to_string().into_bytes();
        text.pop();
        text.remove(0);
        text
    }

    /// Returns what comes behind the last piece. As in whole replies, the last line is ended.
    pub fn end(&self) -> Vec<u8> {
        let line = if self.is_empty || self.ends_line {
            ""
        } else {
            "\\n"
        };
        format!("{line}\"}}").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_the_whole(
            pieces in proptest::collection::vec("[a-z\"\\\\\n\t\u{1}é😀]{0,6}", 0..6),
            id in prop_oneof![Just(Value::from(7)), Just(Value::from("a\"b"))],
        ) {
            let mut encoder = Encoder::new();
            let mut bytes = encoder.begin(&id);
            for piece in &pieces {
                bytes.extend(encoder.piece(piece));
            }
            bytes.extend(encoder.end());
            let mut whole = pieces.concat();
            if !whole.is_empty() && !whole.ends_with('\n') {
                whole.push('\n');
            }
            let expected = serde_json::json!({ "id": id, "result": whole, "error": null });
            prop_assert_eq!(serde_json::from_slice::<Value>(&bytes).unwrap(), expected);
        }
    }
}
