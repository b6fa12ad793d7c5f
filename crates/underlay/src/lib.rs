//! The network that tunnels run over: by which device packets to a remote endpoint leave, from
//! which address, and to which MAC address.
//!
//! As in Open vSwitch 3.1's userspace datapath (`lib/ovs-router.c`, `lib/tnl-neigh-cache.c`),
//! packets leave by the LOCAL port of a bridge (a [`Device`]), by the kernel's routes and those
//! that commands add, to neighbours that ARP and neighbour discovery find, or that are overheard in
//! what passes the bridge.
//!
//! * [`routes`]: routes, and which one an address has.
//! * [`neighbours`]: MAC addresses of neighbours, their ageing and their bounds.
//! * [`view`]: both at one moment, for workers.
//! * [`discovery`]: ARP requests and neighbour solicitations, and what frames tell of neighbours.
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
