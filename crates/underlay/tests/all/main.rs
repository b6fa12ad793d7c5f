//! Tests of the crate's public interface, in one binary: linking one per file takes longer than
//! running them.

mod discovery;
mod neighbours;
mod view;
