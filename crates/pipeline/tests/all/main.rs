//! Tests of the crate's public interface, in one binary: linking a binary for each file would take
//! longer than running the tests.

mod actions;
mod cached;
mod common;
mod connections;
mod differential;
mod fcf;
mod flow_mods;
mod groups;
mod keeping;
mod learning;
mod meters;
mod openvswitch;
mod options;
mod publication;
mod slices;
mod story;
mod timeouts;
mod tunnelled;
mod ways;
