//! Messages that a database server may send: cut into messages, decoded, and applied to a replica
//! of the real schema. Besides not panicking: how the bytes arrive does not matter, a message
//! survives encoding, a refused update changes nothing, and an update applied twice has the effect
//! of one.
//!
//! Input: one byte for the size of the pieces, then the stream. Every object in a message's
//! parameters and result is tried as an update and as a schema.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ovsdb::Replica;
use ovsdb::schema::Schema;
use ovsdb::vswitch::Snapshot;
use ovsdb::wire::{Framer, Message, decode};
use serde_json::Value;
use std::cell::LazyCell;
use std::sync::Arc;

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const LIMIT: usize = 1 << 12;

thread_local! {
    static REAL: LazyCell<Arc<Schema>> = LazyCell::new(|| {
        let text = std::fs::read(SCHEMA).unwrap_or_else(|error| panic!("{SCHEMA} (of the package openvswitch-common): {error}"));
        let schema = serde_json::from_slice(&text).expect("the schema is JSON");
        Arc::new(Schema::from_json(&schema).expect("the schema is one"))
    });
}

/// Returns the messages, and whether the stream ended in an error.
fn cut(bytes: &[u8], piece: usize) -> (Vec<Vec<u8>>, bool) {
    let mut framer = Framer::with_limit(LIMIT);
    let mut frames = Vec::new();
    for piece in bytes.chunks(piece) {
        framer.push(piece);
        loop {
            match framer.next_frame() {
                Ok(Some(frame)) => {
                    assert!(frame.len() <= LIMIT);
                    frames.push(frame.to_vec());
                }
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

/// Returns whether it contains a number that is not an integer: the JSON library may read back a
/// neighbouring value.
fn has_real(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(values) => values.iter().any(has_real),
        Value::Object(fields) => fields.values().any(has_real),
        _ => false,
    }
}

fn apply(replica: &mut Replica, update: &Value) {
    let before = replica.tables.clone();
    let generation = replica.generation;
    if replica.apply(update).is_err() {
        assert_eq!(
            (&before, generation),
            (&replica.tables, replica.generation),
            "a refused update changed something"
        );
        return;
    }
    let _ = Snapshot::of(replica);
    let after = replica.tables.clone();
    replica
        .apply(update)
        .expect("what was good once is good again");
    assert_eq!(
        after, replica.tables,
        "the second time the update did something else"
    );
}

fuzz_target!(|data: &[u8]| {
    let Some((piece, bytes)) = data.split_first() else {
        return;
    };
    let _ = decode(bytes);
    let (frames, broken) = cut(bytes, usize::from(*piece) + 1);
    let (whole, whole_broken) = cut(bytes, bytes.len().max(1));
    assert_eq!(
        (&frames, broken),
        (&whole, whole_broken),
        "messages depend on how the bytes arrive"
    );
    let mut replica = Replica::new(REAL.with(|schema| Arc::clone(schema)));
    for frame in &frames {
        let Ok(message) = decode(frame) else { continue };
        let values: Vec<&Value> = match &message {
            Message::Request { params, .. } | Message::Notification { params, .. } => {
                params.iter().collect()
            }
            Message::Response {
                result: Ok(value), ..
            }
            | Message::Response {
                result: Err(value), ..
            } => vec![value],
        };
        for value in values.iter().filter(|value| value.is_object()) {
            let _ = Schema::from_json(value);
            apply(&mut replica, value);
        }
        if !values.into_iter().any(has_real)
            && !matches!(&message, Message::Request { id, .. } | Message::Response { id, .. } if has_real(id))
        {
            assert_eq!(
                decode(&message.encode()),
                Ok(message),
                "what was sent is not what was meant"
            );
        }
    }
});
