//! `sluice`: the command for people.
//!
//! It drives the switch from outside: `up` and `down` start and stop a database and a daemon in a
//! directory of their own; `restart`, `save` and `restore` keep rules; `top` shows what a running
//! daemon does; `predict` computes, without a daemon, what rules would cost and how long packets
//! will wait in queues. It knows the daemon only by its unixctl socket, its files and its helper
//! commands. `steer` needs no daemon: it steers a kernel interface's packets to cores by itself.
//! `lab` measures this daemon and others.

pub mod appctl;
pub mod r#gen;
pub mod keep;
pub mod lab;
pub mod output;
pub mod predict;
pub mod stats;
pub mod steer;
pub mod top;
pub mod up;
