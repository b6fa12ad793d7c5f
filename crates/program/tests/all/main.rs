//! Tests of the crate's public interface, in one binary: linking the engine for each file would
//! take longer than running them.

mod conjunction;
mod exact;
mod front;
mod fused;
mod order;
mod prefixes;
mod replies;
mod support;
mod table;
mod walk;
