//! Tests of the crate through what it makes public, in one binary: linking the engine once a file
//! takes longer than running them.

mod conjunction;
mod exact;
mod front;
mod fused;
mod order;
mod prefixes;
mod support;
mod table;
mod walk;
