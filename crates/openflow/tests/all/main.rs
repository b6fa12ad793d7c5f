//! Tests of the crate's public interface, in one binary: linking a binary for each file would take
//! longer than running the tests.

mod common;
mod format;
mod groups;
mod malformed;
mod malformed_ofctl;
mod ofctl;
mod other_versions;
mod parse;
mod roundtrip;
mod roundtrip_extensions;
mod steering;
mod text;
