//! What tunnels know of the network they run over: which device packets to a remote endpoint leave
//! by, from which address, and to which MAC address.
//!
//! As in Open vSwitch's userspace datapath (`lib/ovs-router.c`, `lib/tnl-neigh-cache.c`), which
//! version 3.1 is the reference of: tunnels leave by the LOCAL port of a bridge (a [`Device`]), by
//! the routes of the kernel and those that commands add, to neighbours that are asked for by ARP
//! and neighbour discovery and learned from what passes the bridge.
//!
//! * [`routes`]: routes, and which one an address has.
//! * [`neighbours`]: MAC addresses of neighbours, their ageing and their bounds.
//! * [`view`]: both at one moment, for workers.
//! * [`discovery`]: questions for neighbours, and what frames tell of them.
//! * [`text`]: what `ovs/route/*`, `tnl/neigh/*` and `tnl/ports/show` take and print.
//!
//! Nothing here does I/O, starts threads or reads a clock: time is an argument, in milliseconds of
//! any clock that does not go back.

#![forbid(unsafe_code)]

mod device;
pub mod discovery;
pub mod neighbours;
pub mod routes;
pub mod text;
pub mod view;

pub use device::{Device, NoSource, source_among};
pub use discovery::{Told, arp_request, learned_from, neighbour_solicitation, told_by};
pub use neighbours::{Neighbour, Neighbours};
pub use routes::{Route, Routes};
pub use view::{Hop, Seen, Unresolved, View};

/// A MAC address.
pub type Mac = [u8; 6];
