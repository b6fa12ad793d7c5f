//! Tests of the crate through what it makes public, in one binary: linking the engine once a file
//! takes longer than running them.

mod life;
mod normal_runs;
mod normal_twin;
mod shaped;
mod steering;
mod support;
mod switching;
mod tunnels;
