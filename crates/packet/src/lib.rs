//! Frames, header views, the flow key and the table of match fields.
//!
//! Lowest layer of the workspace: it knows bytes and headers, but no rules, ports or threads.
//!
//! * [`frame::Frame`] is the trait of packet buffers; DPDK mbufs and test buffers implement it.
//! * [`io`] holds the traits through which frames come in and go out.
//! * [`key::FlowKey`] holds what is known about one packet, as words that a classifier can mask and
//!   compare.
//! * [`fields`] is the single table of match fields: name, width, place in the key, wire numbers,
//!   prerequisites.
//! * [`matching::Match`] is a set of (value, mask) bits over the key: what a rule matches.
//! * [`options`] are tunnel options whose meaning each bridge defines (`tun_metadata`).
//! * [`mini_key`] reads a burst's common packets into one cache line each and compares them with
//!   patterns.
//! * [`flow_hash`] hashes a frame by its flow without parsing it first, [`rss`] as network cards
//!   do.
//! * [`parse`] fills a key from a frame; [`edit`] changes a frame; [`checksum`] keeps its checksums
//!   correct; [`segment`] splits large frames (GSO).
//! * [`mod@tuple`] reads addresses and ports of packets whose checksums are right.
//! * [`fragment`] cuts IP packets into fragments and reassembles them.
//! * [`tunnel`] puts tunnel headers in front of frames, and checks and removes them.
//! * [`wire`] has views of headers; [`build`] builds packets for tests.

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
pub mod rss;
pub mod segment;
pub mod tunnel;
pub mod tuple;
pub mod value;
pub mod wire;

pub use fields::Field;
pub use frame::{Frame, HeapFrame, Offload};
pub use key::{FlowKey, WordSet};
pub use matching::Match;
pub use parse::{Layers, Malformed};
pub use value::Value;

/// Returns the number of cases of a property test: a few under Miri, which is some hundred times
/// slower.
#[cfg(test)]
fn cases(usual: u32) -> u32 {
    if cfg!(miri) { 4 } else { usual }
}
