//! The network that tunnels run over: determines the device by which packets to a remote endpoint
//! leave, and their source IP and destination MAC addresses.
//!
//! As in Open vSwitch 3.1's userspace datapath (`lib/ovs-router.c`, `lib/tnl-neigh-cache.c`),
//! packets leave by the LOCAL port of a bridge (a [`Device`]), by the kernel's routes and those
//! that commands add, to neighbours that are resolved by ARP and neighbour discovery, or overheard
//! in packets that pass the bridge.
//!
//! * [`routes`]: routes, and their lookup.
//! * [`neighbours`]: MAC addresses of neighbours, with ageing and limits.
//! * [`view`]: an immutable snapshot of both, for workers.
//! * [`discovery`]: builds ARP requests and neighbour solicitations, and reads what frames say
//!   about neighbours.
//! * [`text`]: arguments and output of `ovs/route/*`, `tnl/neigh/*` and `tnl/ports/show`.
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
