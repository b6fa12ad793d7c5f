//! Splits a byte stream into JSON messages. JSON-RPC sends objects one after another with nothing
//! in between, so a message ends where its braces close. The scanner looks at each byte once, in
//! whatever pieces they arrive: a client that sends one byte at a time costs no more than one that
//! sends all.

/// The longest message, in bytes. Commands are short; the largest real ones carry a packet in
/// hexadecimal (128 KiB).
pub const MAXIMUM_MESSAGE: usize = 1 << 20;

/// Error for bytes that are not a JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// The message does not begin with a brace.
    #[error("message is not a JSON object")]
    NotAnObject,
    /// The message does not end within the limit (1 MiB).
    #[error("message is longer than {MAXIMUM_MESSAGE} bytes")]
    TooLong,
}

/// Collects bytes and splits them into messages.
#[derive(Debug, Default)]
pub struct Framer {
    buffer: Vec<u8>,
    /// Index of the first byte of the current message; the bytes before it have been returned.
    start: usize,
    /// Index of the first byte not scanned yet.
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Framer {
    /// Adds bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        // Done only here, so that several messages in one piece are not moved once for each of
        // them.
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete message, if there is one.
    pub fn next_message(&mut self) -> Result<Option<Vec<u8>>, FramingError> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            if self.scanned - self.start >= MAXIMUM_MESSAGE {
                return Err(FramingError::TooLong);
            }
            self.scanned += 1;
            if self.depth == 0 {
                match byte {
                    b' ' | b'\t' | b'\r' | b'\n' => self.start = self.scanned,
                    b'{' => self.depth = 1,
                    _ => return Err(FramingError::NotAnObject),
                }
            } else if self.ends_at(byte) {
                let message = self.buffer[self.start..self.scanned].to_vec();
                self.start = self.scanned;
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Returns whether the object ends with this byte.
    fn ends_at(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            "\\PC{0,8}|[\"\\\\{}\\[\\]]{0,4}".prop_map(Value::from),
            any::<i64>().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("\\PC{0,4}", inner, 0..4)
                    .prop_map(|map| Value::Object(Map::from_iter(map))),
            ]
        })
    }

    #[test]
    fn limits() {
        let mut framer = Framer::default();
        framer.push(b" \n[1]");
        assert_eq!(framer.next_message(), Err(FramingError::NotAnObject));
        let mut framer = Framer::default();
        framer.push(b"{\"a\":\"");
        framer.push(&vec![b'x'; MAXIMUM_MESSAGE]);
        assert_eq!(framer.next_message(), Err(FramingError::TooLong));
    }

    /// Each byte is moved once: if messages were removed one by one, moving these 2 MiB would take
    /// minutes.
    #[test]
    fn neither_white_space_nor_short_messages_pile_up() {
        let mut framer = Framer::default();
        framer.push(&vec![b' '; MAXIMUM_MESSAGE]);
        framer.push(&b"\n{}".repeat(MAXIMUM_MESSAGE / 3));
        for _ in 0..MAXIMUM_MESSAGE / 3 {
            assert_eq!(framer.next_message(), Ok(Some(b"{}".to_vec())));
        }
        assert_eq!(framer.next_message(), Ok(None));
        framer.push(b" ");
        assert_eq!(framer.buffer, b" ");
    }

    proptest! {
        #[test]
        fn messages_come_back_whole_in_any_pieces(values in proptest::collection::vec(value(), 0..4), piece in 1usize..9) {
            let messages: Vec<String> = values.into_iter().map(|value| json!({ "x": value }).to_string()).collect();
            let bytes = messages.join("\n ").into_bytes();
            let mut framer = Framer::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(piece) {
                framer.push(piece);
                while let Some(message) = framer.next_message().unwrap() {
                    found.push(String::from_utf8(message).unwrap());
                }
            }
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(prop_oneof![any::<u8>(), proptest::sample::select(b"{}[]\"\\ ".to_vec())], 0..200)) {
            let mut framer = Framer::default();
            framer.push(&bytes);
            let mut left = bytes.len();
            while let Ok(Some(message)) = framer.next_message() {
                left -= message.len();
            }
            prop_assert!(left <= bytes.len());
        }
    }
}
