//! Models of what threads share without a lock, by [loom](https://docs.rs/loom): each is run in
//! every order of its threads' steps, with every value that a load may give in the C11 memory
//! model, up to a bound on how often a thread is interrupted.
//!
//! The modules below are the crates' own sources, compiled once more with loom's types for those
//! that their `sync` modules name. Each model stands beside one that leaves its fences out and must
//! fail: a model that cannot see that sees nothing.
#![allow(dead_code)] // of each source a model uses its part

mod membarrier;
mod sync;
mod wake;

#[path = "../../crates/datapath/src/shape/due.rs"]
mod due;
#[path = "../../crates/program/src/epoch.rs"]
pub(crate) mod epoch;
#[path = "../../crates/ports/src/gate.rs"]
mod gate;
#[path = "../../crates/program/src/growing.rs"]
mod growing;
#[path = "../../crates/datapath/src/shape/ring.rs"]
mod ring;
#[path = "../../crates/datapath/src/worker/sleeper.rs"]
mod sleeper;
#[path = "../../crates/conntrack/src/versioned.rs"]
mod versioned;

pub mod epochs;
pub mod gates;
pub mod lines;
pub mod rooms;
pub mod shaped;
pub mod workers;

/// Whether a model fails.
pub fn fails(model: fn()) -> bool {
    std::panic::catch_unwind(model).is_err()
}

/// Whether a model fails without its fences.
pub fn misses_its_fences(model: fn()) -> bool {
    std::panic::catch_unwind(|| sync::without_fences(model)).is_err()
}
