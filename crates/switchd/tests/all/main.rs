//! Tests of the crate's public interface, in one binary: linking the engine for each file takes
//! longer than running the tests.

mod commands;
mod configuration;
mod openflow;
mod shell;
mod streams;
