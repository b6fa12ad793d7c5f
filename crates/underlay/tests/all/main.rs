//! Tests of the crate's public interface, in one binary: linking the engine once per file takes
//! longer than running them.

mod discovery;
mod neighbours;
mod view;
