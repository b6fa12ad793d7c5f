//! Tests of the crate through what it makes public, in one binary: linking the engine once a file
//! takes longer than running them.

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
