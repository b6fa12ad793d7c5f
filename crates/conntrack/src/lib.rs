//! Connection tracking: what Open vSwitch's `ct` action asks of a userspace datapath.
//!
//! A connection is known by the tuple of its first packet and by the tuple of its replies, which
//! differ by more than their direction if addresses are translated. [`Tracker::track`] finds the
//! connection of a packet, moves its state machine on, and says what `ct_state` is and how the
//! packet is to be translated; it does not change the packet.
//!
//! * [`Tracker`] holds the connections; workers share one.
//! * [`Request`] is what a `ct` action asks, [`Tracked`] the answer.
//! * [`nat`] has ranges of translation, and rewrites packets that ICMP errors quote.
//! * [`fragments`] holds fragments until their datagram is whole.
//! * [`Rewrite`] is what a helper (FTP) has written into a packet; the connections that helpers
//!   expect are related to the one that has announced them.
//! * [`timeouts`]: how long a connection in which nothing happens is kept.
//! * [`text`] prints connections as `ovs-appctl dpctl/dump-conntrack` does.
//!
//! The behaviour is that of Open vSwitch 3.1's userspace datapath. Nothing here reads a clock or
//! does I/O: time comes in as milliseconds of any clock that does not go back.

mod alg;
mod connection;
mod counters;
mod create;
mod established;
mod extract;
pub mod fragments;
mod key;
mod manage;
pub mod nat;
mod request;
mod shard;
mod slab;
mod stripes;
mod sync;
mod tcp;
pub mod text;
pub mod timeouts;
mod tracker;
mod versioned;

pub use alg::Rewrite;
pub use counters::{Counter, Counters};
pub use established::{Ends, Settled};
pub use manage::{Connection, Cursor, Filter, Flow, Flushed, Part};
pub use nat::{Direction, Nat, Range, Translation};
pub use request::{Answers, Coming, Earlier, Helper, Masked, Request, Tracked, Tuple};
pub use tcp::{Peer, TcpInfo, TcpState};
pub use timeouts::{Policy, Timeout};
pub use tracker::{DEFAULT_LIMIT, Tracker};

/// The bits of `ct_state`, as in Open vSwitch's OXM field.
pub mod state {
    /// Begins a connection that is not committed, or is the first of one.
    pub const NEW: u32 = 0x01;
    /// Belongs to a connection that has been committed.
    pub const ESTABLISHED: u32 = 0x02;
    /// Belongs to a connection only by what it quotes (an ICMP error), or to one that another has
    /// announced.
    pub const RELATED: u32 = 0x04;
    /// Goes against the direction of the connection's first packet.
    pub const REPLY: u32 = 0x08;
    /// Belongs to no connection and cannot begin one.
    pub const INVALID: u32 = 0x10;
    /// Went through the tracker; set in every answer.
    pub const TRACKED: u32 = 0x20;
    /// The source was translated.
    pub const SOURCE_NAT: u32 = 0x40;
    /// The destination was translated.
    pub const DESTINATION_NAT: u32 = 0x80;
}
