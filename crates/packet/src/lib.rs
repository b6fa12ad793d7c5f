//! Frames, header views, the flow key and the one table of match fields.
//!
//! This is the lowest floor: it knows bytes and headers, and nothing of rules, ports or threads.
//!
//! * [`frame::Frame`] is what a packet buffer must offer; DPDK mbufs and test buffers implement it.
//! * [`io`] holds the traits through which frames come in and go out.
//! * [`key::FlowKey`] is what is known about one packet, as words that a classifier can mask and
//!   compare.
//! * [`fields`] is the one table of match fields: name, width, place in the key, wire numbers,
//!   prerequisites.
//! * [`matching::Match`] is a set of (value, mask) bits over the key: what a rule matches.
//! * [`options`] are the fields of tunnels that each bridge gives a meaning.
//! * [`mini_key`] reads a burst's common packets into one cache line each and compares them with
//!   patterns.
//! * [`flow_hash`] tells flows apart before anybody has parsed them.
//! * [`parse`] fills a key from a frame; [`edit`] changes a frame; [`checksum`] keeps it sound;
//!   [`segment`] cuts large ones.
//! * [`fragment`] cuts IP packets into fragments, and puts such together.
//! * [`tunnel`] puts tunnel headers in front of frames, and checks and removes them.
//! * [`wire`] has views of headers, [`build`] puts packets together for tests.

pub mod build;
pub mod checksum;
pub mod edit;
pub mod fields;
pub mod flow_hash;
pub mod fragment;
pub mod frame;
pub mod io;
pub mod key;
pub mod keyed;
pub mod matching;
pub mod mini_key;
pub mod options;
pub mod parse;
pub mod segment;
pub mod tunnel;
pub mod value;
pub mod wire;

pub use fields::Field;
pub use frame::{Frame, HeapFrame, Offload};
pub use key::{FlowKey, WordSet};
pub use matching::Match;
pub use parse::{Layers, Malformed};
pub use value::Value;

/// How many cases a property test draws: a few under Miri, which takes some hundred times as long.
#[cfg(test)]
fn cases(usual: u32) -> u32 {
    if cfg!(miri) { 4 } else { usual }
}
