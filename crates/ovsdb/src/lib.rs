//! A client of the Open vSwitch database: RFC 7047 over unix, TCP and TLS, and the typed rows of
//! the `Open_vSwitch` schema.
//!
//! Three layers, each usable without the one above:
//!
//! - [`wire`], [`value`] and [`schema`] turn bytes into messages, and JSON into atoms and columns
//!   whose types come from the server's own schema. Nothing that the server sends can cause a panic
//!   or grow without bound.
//! - [`client`] keeps one connection alive: it reconnects, probes, requests the lock, and keeps a
//!   [`replica`] of the monitored columns. [`transaction`] builds what is sent back.
//! - [`vswitch`] reads a replica as bridges, ports and interfaces, with their references resolved.

pub mod client;
pub mod replica;
pub mod schema;
pub mod stream;
pub mod transaction;
pub mod value;
pub mod vswitch;
pub mod wire;

pub use client::{Client, ClientError, Config, Event, Events, LockState, MonitorTable};
pub use replica::{Replica, Row, Table};
pub use stream::{Remote, TlsFiles};
pub use transaction::{Outcome, Transaction};
pub use value::{Atom, Datum, Uuid};
