//! Tests of the crate through what it makes public, in one binary: linking the engine once a file
//! takes longer than running them.

mod discovery;
mod neighbours;
mod view;
