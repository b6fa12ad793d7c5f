//! `sluice`: one command for people.
//!
//! It drives the switch from outside: `up` and `down` start and stop a database and a daemon in a directory of their own, `top` shows what
//! a running daemon does. It knows the daemon only by its unixctl socket and its files.

pub mod appctl;
pub mod stats;
pub mod top;
pub mod up;
