//! Tests of the crate's public interface, in one binary: linking the engine for each file would
//! take longer than running them.

mod cards;
mod fragments;
mod life;
mod monitors;
mod normal_reference;
mod normal_runs;
mod shaped;
mod steering;
mod support;
mod switching;
mod tunnels;
