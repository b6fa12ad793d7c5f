//! Tests of the crate through what it makes public, in one binary: linking the engine once a file
//! takes longer than running them.

mod actions;
mod cached;
mod common;
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
mod ways;
