//! JSON-RPC 1.0 on a byte stream (RFC 7047 section 4).
//!
//! Messages follow each other without a length or a separator, so their ends are found by counting
//! brackets outside strings. [`Framer`] does this as bytes arrive: every byte is examined once,
//! however the stream is divided, and a message may not exceed [`MAX_MESSAGE`].

use serde_json::{Value, json};

use crate::value::excerpt;

/// Maximum length of a message in bytes.
pub const MAX_MESSAGE: usize = 64 << 20;

/// An error in the received bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A message starts with something other than an object.
    #[error("a message must begin with '{{', not with byte 0x{0:02x}")]
    NotAnObject(u8),
    /// A message is longer than [`MAX_MESSAGE`].
    #[error("message of more than {0} bytes")]
    TooLong(usize),
    /// The text between the brackets is not JSON.
    #[error("bad JSON: {0}")]
    Json(String),
    /// The object is neither a request, a notification nor a response.
    #[error("bad JSON-RPC message: {0}")]
    Message(String),
}

/// One JSON-RPC message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Requires a response with the same `id`.
    Request {
        /// Repeated in the response; anything but null.
        id: Value,
        /// What is asked for.
        method: String,
        /// The arguments.
        params: Vec<Value>,
    },
    /// Requires no response.
    Notification {
        /// The notification's name.
        method: String,
        /// The arguments.
        params: Vec<Value>,
    },
    /// Answers a request.
    Response {
        /// The request's `id`.
        id: Value,
        /// The result, or the error.
        result: Result<Value, Value>,
    },
}

impl Message {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        let value = match self {
            Message::Request { id, method, params } => {
                json!({"id": id, "method": method, "params": params})
            }
            Message::Notification { method, params } => {
                json!({"id": null, "method": method, "params": params})
            }
            Message::Response {
                id,
                result: Ok(result),
            } => json!({"id": id, "result": result, "error": null}),
            Message::Response {
                id,
                result: Err(error),
            } => json!({"id": id, "result": null, "error": error}),
        };
        value.to_string().into_bytes()
    }
}

/// Decodes one whole message.
pub fn decode(bytes: &[u8]) -> Result<Message, WireError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|e| WireError::Json(e.to_string()))?;
    let Value::Object(mut body) = value else {
        return Err(WireError::Message(format!(
            "{} is not an object",
            excerpt(&value)
        )));
    };
    let id = body.remove("id").unwrap_or(Value::Null);
    match (body.remove("method"), body.remove("params")) {
        (Some(Value::String(method)), Some(Value::Array(params))) => Ok(match id {
            Value::Null => Message::Notification { method, params },
            id => Message::Request { id, method, params },
        }),
        (None | Some(Value::Null), None | Some(Value::Null)) => {
            if id.is_null() {
                return Err(WireError::Message("a response without an id".into()));
            }
            let result = body.remove("result").unwrap_or(Value::Null);
            match body.remove("error").unwrap_or(Value::Null) {
                Value::Null => Ok(Message::Response {
                    id,
                    result: Ok(result),
                }),
                error if result.is_null() => Ok(Message::Response {
                    id,
                    result: Err(error),
                }),
                _ => Err(WireError::Message(
                    "a response with both a result and an error".into(),
                )),
            }
        }
        _ => Err(WireError::Message(
            "method must be a string and params an array".into(),
        )),
    }
}

/// Divides a byte stream into messages.
#[derive(Debug)]
pub struct Framer {
    buffer: Vec<u8>,
    /// Position of the first byte of the message being collected.
    start: usize,
    /// Position of the first byte not examined yet.
    scanned: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
    limit: usize,
}

impl Default for Framer {
    fn default() -> Self {
        Framer::with_limit(MAX_MESSAGE)
    }
}

impl Framer {
    /// Creates a framer that refuses messages of more than `limit` bytes.
    pub fn with_limit(limit: usize) -> Framer {
        Framer {
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            depth: 0,
            in_string: false,
            escaped: false,
            limit,
        }
    }

    /// Adds bytes that have arrived. Before the next call, call [`Framer::next_frame`] until it has
    /// no more: that bounds the memory.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        if self.buffer.is_empty() && self.buffer.capacity() > (1 << 20) {
            // A single huge message (the first dump of a large database) must not keep its memory
            // forever.
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the bytes of the next whole message, if it has arrived.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, WireError> {
        if self.depth == 0 && !self.skip_to_message()? {
            return Ok(None);
        }
        while let Some(&byte) = self.buffer.get(self.scanned) {
            self.scanned += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return self.finish();
                    }
                }
                _ => {}
            }
        }
        match self.scanned - self.start {
            length if length > self.limit => Err(WireError::TooLong(self.limit)),
            _ => Ok(None),
        }
    }

    /// Moves to the first bracket of a message; false if only white space is left.
    fn skip_to_message(&mut self) -> Result<bool, WireError> {
        while let Some(&byte) = self.buffer.get(self.scanned) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.scanned += 1,
                b'{' => {
                    self.start = self.scanned;
                    return Ok(true);
                }
                other => return Err(WireError::NotAnObject(other)),
            }
        }
        self.start = self.scanned;
        Ok(false)
    }

    fn finish(&mut self) -> Result<Option<&[u8]>, WireError> {
        let (from, to) = (self.start, self.scanned);
        self.start = to;
        if to - from > self.limit {
            return Err(WireError::TooLong(self.limit));
        }
        Ok(Some(&self.buffer[from..to]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let value = prop_oneof![
            any::<i64>().prop_map(Value::from),
            ".{0,10}".prop_map(Value::from),
            prop::collection::vec("[\\[\\]{}\"\\\\ a]{0,6}", 0..3).prop_map(Value::from),
        ];
        let params = prop::collection::vec(value.clone(), 0..3);
        prop_oneof![
            (any::<u32>(), "[a-z]{1,6}", params.clone()).prop_map(|(id, method, params)| {
                Message::Request {
                    id: id.into(),
                    method,
                    params,
                }
            }),
            ("[a-z]{1,6}", params)
                .prop_map(|(method, params)| Message::Notification { method, params }),
            (any::<u32>(), prop::result::maybe_err(value.clone(), value)).prop_map(
                |(id, result)| Message::Response {
                    id: id.into(),
                    result
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn a_stream_is_cut_the_same_however_it_arrives(
            messages in prop::collection::vec(message(), 0..6),
            gap in "[ \n]{0,2}",
            chunk in 1usize..40,
        ) {
            let mut stream = Vec::new();
            for message in &messages {
                stream.extend(message.encode());
                stream.extend(gap.as_bytes());
            }
            let mut framer = Framer::default();
            let mut found = Vec::new();
            for piece in stream.chunks(chunk) {
                framer.push(piece);
                while let Some(frame) = framer.next_frame().unwrap() {
                    found.push(decode(frame).unwrap());
                }
            }
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = decode(&bytes) {
                prop_assert_eq!(decode(&message.encode()).unwrap(), message);
            }
        }

        #[test]
        fn memory_stays_below_the_limit(pieces in prop::collection::vec("[\\[{}\\]\"\\\\a ]{0,30}", 0..60)) {
            let mut framer = Framer::with_limit(100);
            'stream: for piece in pieces {
                framer.push(piece.as_bytes());
                loop {
                    match framer.next_frame() {
                        Ok(Some(frame)) => prop_assert!(frame.len() <= 100),
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
                prop_assert!(framer.buffer.len() - framer.start <= 100);
            }
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_overflow() {
        let deep = format!("{}{}", "{\"a\":".repeat(200_000), "}".repeat(200_000));
        assert!(matches!(decode(deep.as_bytes()), Err(WireError::Json(_))));
    }

    #[test]
    fn a_stream_must_begin_with_an_object() {
        let mut framer = Framer::default();
        framer.push(b"  [1]");
        assert_eq!(framer.next_frame(), Err(WireError::NotAnObject(b'[')));
    }

    #[test]
    fn responses_need_an_id_and_one_outcome() {
        assert!(decode(br#"{"id":null,"result":1,"error":null}"#).is_err());
        assert!(decode(br#"{"id":1,"result":1,"error":2}"#).is_err());
        assert!(decode(br#"{"id":1,"method":3,"params":[]}"#).is_err());
        assert!(decode(br#"{"id":1,"method":"x"}"#).is_err());
        let empty = decode(br#"{"id":1,"result":null,"error":null}"#);
        assert_eq!(
            empty,
            Ok(Message::Response {
                id: 1.into(),
                result: Ok(Value::Null)
            })
        );
    }
}
