//! Tests of the crate's public interface, in one binary: linking a binary for each file would take
//! longer than running the tests.

mod hostile;
mod server;
mod tls;
